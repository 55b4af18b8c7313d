"""The model of a read-only follower, which answers from checkpoints written by another process.

A new file is read by another thread, beside the model that answers meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from spidertensor.checkpoint import CheckpointError
from spidertensor.estimator import load
from spidertensor.learner.errors import LearnerError
from spidertensor.learner.learner import Learner
from spidertensor.service.background import Background
from spidertensor.service.errors import ServiceError
from spidertensor.service.opening import served_learner
from spidertensor.service.requests import Outcome, Request

Stamp: TypeAlias = tuple[int, int, int]

READ_ONLY = "this server follows a model that another process writes"
REMEDY = "send it to the server that learns"


class Following:
    """See served.Served for its fields."""

    read_only = True
    learned = checkpointed = saved_stream = rejects = surprises = forecasts = None
    saved_entries = journal_bytes = 0

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble: dict[str, str] = {}
        self._refused: Stamp | None = None
        self.reader: Background | None = None  # of a new file
        self._read: Stamp | None = None  # what it reads
        stamp = _stamp(path)
        self._take(served_learner(load(path), path), stamp)

    def _take(self, learner: Learner, stamp: Stamp) -> None:
        self.learner, self._taken = learner, stamp
        # The file's time of writing, on the monotonic clock.
        self.saved_at = time.monotonic() - max(0.0, time.time() - stamp[0] / 1e9)

    def tick(self) -> None:
        """Read the file if it has changed, and take what was read. Writers replace it atomically, so it is
        always complete.

        A file moved away, or replaced by something else, is an alarm until a good one is there; until then
        the last model answers.
        """
        try:
            if self.reader is not None:
                if not self.reader.has_ended:
                    return
                found, self.reader = self.reader.outcome, None
                self._take_next(found)
            stamp = _stamp(self.path)
            if stamp == self._refused:
                return
            if stamp == self._taken:
                self.trouble.clear()
                return
            self._read, self.reader = stamp, Background("reader of the model", self._next)
        except (OSError, CheckpointError, LearnerError) as error:
            self.trouble["checkpoint"] = f"{self.path}: {getattr(error, 'strerror', None) or error}"

    def _next(self) -> Learner:
        found = served_learner(load(self.path), self.path)
        if _columns(found) != _columns(self.learner):
            names = ", ".join(found.id_columns)
            remedy = "restart this server to follow it"
            raise LearnerError(f"is now a model of other columns: {names}", kind="columns", remedy=remedy)
        return found

    def _take_next(self, found: Learner | Exception) -> None:
        """found: the outcome of `_next`"""
        assert self._read is not None
        if isinstance(found, Exception):
            if isinstance(found, CheckpointError | LearnerError):
                self._refused = self._read
            raise found
        self._take(found, self._read)

    def warm_up(self) -> None:
        self.learner.estimator.predict([[0] * len(self.learner.with_ids)])

    def replay(self) -> int:
        return 0

    def learn(self, requests: Sequence[Request]) -> list[Outcome]:
        return [ServiceError(405, "read only", READ_ONLY, remedy=REMEDY)] * len(requests)

    def checkpoint(self) -> None:
        raise ServiceError(405, "read only", READ_ONLY, remedy=REMEDY)

    def close(self) -> None:
        """Nothing to save."""


def _columns(learner: Learner) -> tuple[list[str], list[str], str | None]:
    return learner.id_columns, learner.attributes, learner.value


def _stamp(path: Path) -> Stamp:
    found = path.stat()
    return found.st_mtime_ns, found.st_ino, found.st_size
