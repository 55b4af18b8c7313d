"""The model of a read-only follower: it answers from checkpoints that another process writes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spidertensor.checkpoint import CheckpointError
from spidertensor.estimator import load
from spidertensor.service.errors import ServiceError
from spidertensor.service.journal import JournalError
from spidertensor.service.learning import Outcome, Request
from spidertensor.service.opening import position_of

READ_ONLY = "this server follows a model that another process writes"
REMEDY = "send it to the server that learns"


class Following:
    read_only = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble: dict[str, str] = {}
        self.saved_at: float | None = None
        self._stamp = _stamp(path)
        self._take(load(path))

    def _take(self, estimator: Any) -> None:
        self.value = position_of(estimator, self.path).get("value")  # first: it may refuse the model
        self.estimator, self.modes = estimator, estimator.mode_names_
        # How old the file was when it was read, by a clock that never goes backwards.
        self.saved_at = time.monotonic() - max(0.0, time.time() - self._stamp[0] / 1e9)

    def tick(self) -> None:
        """Take the file anew if it has changed. It is replaced as a whole, so it is never half written."""
        try:
            stamp = _stamp(self.path)
            if stamp != self._stamp:
                found, self._stamp = load(self.path), stamp
                self._take(found)
            self.trouble.clear()
        except (OSError, CheckpointError, JournalError) as error:
            # moved away, or replaced by something else: go on as before
            self.trouble["checkpoint"] = f"{self.path}: {getattr(error, 'strerror', None) or error}"

    def snapshot_file(self) -> int:
        return os.open(self.path, os.O_RDONLY)

    def warm_up(self) -> None:
        self.estimator.predict([[0] * len(self.modes)])

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
