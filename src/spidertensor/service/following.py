"""The model of a read-only follower, which answers from checkpoints written by another process."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from spidertensor.checkpoint import CheckpointError
from spidertensor.estimator import load
from spidertensor.estimator.loading import Estimator
from spidertensor.learner.errors import LearnerError
from spidertensor.service.errors import ServiceError
from spidertensor.service.opening import served_learner
from spidertensor.service.requests import Outcome, Request

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
        self._stamp = _stamp(path)
        self._take(load(path))

    def _take(self, estimator: Estimator) -> None:
        self.learner = served_learner(estimator, self.path)
        # The file's time of writing, on the monotonic clock.
        self.saved_at = time.monotonic() - max(0.0, time.time() - self._stamp[0] / 1e9)

    def tick(self) -> None:
        """Reload the file if it has changed. Writers replace it atomically, so it is always complete."""
        try:
            stamp = _stamp(self.path)
            if stamp != self._stamp:
                found, self._stamp = load(self.path), stamp
                self._take(found)
            self.trouble.clear()
        except (OSError, CheckpointError, LearnerError) as error:
            # moved away, or replaced by something else: keep the last model
            self.trouble["checkpoint"] = f"{self.path}: {getattr(error, 'strerror', None) or error}"

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


def _stamp(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_ino, found.st_size
