"""The scores over the last part of a run, and notes if a floor did better than the model there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.faults import SpiderWarning
from spidertensor.learner.floors import FLOORS
from spidertensor.learner.scores import Scores

LAST_ENTRIES = 10_000  # entries of the last part of a run; half of a shorter run
MIN_ENTRIES = 500  # a shorter last part gets no notes
MARGIN = 1.01  # a note needs an error this factor above that of a floor ...
STANDARD_ERRORS = 3.0  # ... and a difference of this many standard errors


class LastPart:
    def __init__(self, scores: Scores) -> None:
        self.scores = scores  # of the whole run
        self._parts: deque[NDArray[np.float64]] = deque()  # losses of at least the last LAST_ENTRIES entries
        self._kept = 0
        self._judged: NDArray[np.float64] | None = None

    def add(self, losses: NDArray[np.float64]) -> None:
        """losses: as returned by `Scores.add`"""
        self._parts.append(losses[:, -LAST_ENTRIES:])
        self._kept += self._parts[-1].shape[1]
        while self._kept - self._parts[0].shape[1] >= LAST_ENTRIES:
            self._kept -= self._parts.popleft().shape[1]

    def judge(self, losses: NDArray[np.float64]) -> None:
        """Let the notes speak of entries held back from several passes, and learned after them, with these
        losses: all others were learned in the first pass, of which the model has left little."""
        self._judged = losses

    def record(self) -> dict[str, Any] | None:
        """The scores over the last part; None if it has no entries."""
        losses = self._losses()
        if not losses.shape[1]:
            return None
        score, *of_floors = self.scores.in_units(losses.mean(axis=1))
        return {
            "entries": losses.shape[1],
            "score": score,
            "floors": dict(zip(FLOORS, of_floors, strict=True)),
        }

    def notes(self) -> Iterator[SpiderWarning]:
        """One note for each floor that did better than the model; for the end of a run."""
        losses = self._losses() if self._judged is None else self._judged
        n = losses.shape[1]
        if n < MIN_ENTRIES:
            return
        where = f"in the last {n:,} entries"
        if self._judged is not None:
            where = f"on the {n:,} entries held back, which it learned after its passes,"
        score, *of_floors = self.scores.in_units(losses.mean(axis=1))
        for (name, words), floor, own in zip(FLOORS.items(), of_floors, losses[1:], strict=True):
            difference = losses[0] - own
            if score > MARGIN * floor and difference.mean() > STANDARD_ERRORS * difference.std() / n**0.5:
                scores = f"{score:.4g} and {floor:.4g}"
                yield SpiderWarning(
                    f"{where} the model was worse than {words} ({scores})",
                    kind=f"worse than {name}",
                )

    def _losses(self) -> NDArray[np.float64]:
        """(1 + floors, n) the losses over the last part."""
        n = min(LAST_ENTRIES, self.scores.entries // 2)
        losses = np.concatenate([np.empty((1 + len(FLOORS), 0)), *self._parts], axis=1)
        return losses[:, losses.shape[1] - n :]
