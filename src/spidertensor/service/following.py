"""The model of a read-only follower, which answers from checkpoints written by another process."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from spidertensor.checkpoint import CheckpointError
from spidertensor.estimator import load
from spidertensor.learner.errors import LearnerError
from spidertensor.learner.learner import Learner
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
        stamp = _stamp(path)
        self._take(served_learner(load(path), path), stamp)

    def _take(self, learner: Learner, stamp: Stamp) -> None:
        self.learner, self._taken = learner, stamp
        # The file's time of writing, on the monotonic clock.
        self.saved_at = time.monotonic() - max(0.0, time.time() - stamp[0] / 1e9)

    def tick(self) -> None:
        """Reload the file if it has changed. Writers replace it atomically, so it is always complete.

        A file moved away, or replaced by something else, is an alarm until a good one is there; until then
        the last model answers.
        """
        try:
            stamp = _stamp(self.path)
            if stamp == self._refused:
                return
            if stamp != self._taken:
                self._take(self._next(stamp), stamp)
            self.trouble.clear()
        except (OSError, CheckpointError, LearnerError) as error:
            self.trouble["checkpoint"] = f"{self.path}: {getattr(error, 'strerror', None) or error}"

    def _next(self, stamp: Stamp) -> Learner:
        try:
            found = served_learner(load(self.path), self.path)
            if _columns(found) != _columns(self.learner):
                names = ", ".join(found.id_columns)
                remedy = "restart this server to follow it"
                raise LearnerError(f"is now a model of other columns: {names}", kind="columns", remedy=remedy)
        except (CheckpointError, LearnerError):
            self._refused = stamp
            raise
        return found

    def snapshot_file(self) -> int:
        return os.open(self.path, os.O_RDONLY)

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
