"""The running scores of `spider fit`, those of the floors, and what they say about the model."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.eviction import Numbered
from spidertensor.faults import SpiderWarning
from spidertensor.learner.floors import FLOORS, RunningFloors, in_intervals
from spidertensor.spider.events import Rule
from spidertensor.spider.likelihoods import Likelihood

LAST = 10_000  # entries of the last part of a run, by which the model is judged; half of a shorter run
SHORTEST = 500  # entries of a last part that says anything
MARGIN = 1.01  # by which factor a model must be worse than a floor
ERRORS = 3.0  # and by how many standard errors of the difference


class Tally:
    """Scores of this run, by the losses of running_floors.py.

    The floors begin with the run, also where the model does not: against a model that knows more they can
    only look worse than they are.
    """

    def __init__(self, likelihood: Likelihood, n_modes: int, rule: Rule | None = None) -> None:
        self.entries = 0
        self.calibrated = self.inside = 0  # entries with an interval, and those that were in it
        self.log_evidence = 0.0
        # seconds; the first chunk, for which kernels are compiled, counts as `starting`
        self.reading = self.starting = self.learning = 0.0
        self.timed = 0  # entries learned in `learning`
        self._floors = RunningFloors(likelihood, n_modes, rule)
        self._sums = np.zeros(1 + len(FLOORS))  # of the losses of the model and of each floor
        self._last: deque[NDArray[np.float64]] = deque()  # losses of at least the last LAST entries
        self._in_last = 0

    def add(self, value: Any, learned: Numbered, shift: float) -> None:
        """shift: the mean that the model assumes before the first entry, so the floors start with it too"""
        self._note_losses(self._floors.learn(value, learned, shift))
        self.entries += len(value)
        self.log_evidence += float(learned.update.log_evidence.sum())
        calibrated, inside = in_intervals(learned.update).sum(axis=1).tolist()
        self.calibrated += calibrated
        self.inside += inside

    def _note_losses(self, losses: NDArray[np.float64]) -> None:
        self._sums += losses.sum(axis=1)
        self._last.append(losses[:, -LAST:])
        self._in_last += self._last[-1].shape[1]
        while self._in_last - self._last[0].shape[1] >= LAST:
            self._in_last -= self._last.popleft().shape[1]

    @property
    def coverage(self) -> float | None:
        """The share of the entries that were in their calibrated 90 % intervals."""
        return self.inside / self.calibrated if self.calibrated else None

    @property
    def metric(self) -> str:
        return "rmse" if self._floors.by_squares else "log_loss"

    @property
    def score(self) -> float:
        return self._floors.scores(self._sums / max(self.entries, 1))[0]

    @property
    def floors(self) -> dict[str, float]:
        """The scores of predicting the mean of all earlier entries, and their online biases."""
        return dict(zip(FLOORS, self._floors.scores(self._sums / max(self.entries, 1))[1:], strict=True))

    @property
    def last_part(self) -> dict[str, Any] | None:
        """The scores over the last part of the run; None if it has no entries."""
        losses = self._losses_of_last_part()
        if not losses.shape[1]:
            return None
        score, *of_floors = self._floors.scores(losses.mean(axis=1))
        return {
            "entries": losses.shape[1],
            "score": score,
            "floors": dict(zip(FLOORS, of_floors, strict=True)),
        }

    def notes(self) -> Iterator[SpiderWarning]:
        """At the end of a run: whether a floor was better than the model in the last part."""
        losses = self._losses_of_last_part()
        n = losses.shape[1]
        if n < SHORTEST:
            return
        score, *of_floors = self._floors.scores(losses.mean(axis=1))
        for (name, words), floor, own in zip(FLOORS.items(), of_floors, losses[1:], strict=True):
            difference = losses[0] - own
            if score > MARGIN * floor and difference.mean() > ERRORS * difference.std() / n**0.5:
                scores = f"{score:.4g} and {floor:.4g}"
                yield SpiderWarning(
                    f"in the last {n:,} entries the model was worse than {words} ({scores})",
                    kind=f"worse than {name}",
                    remedy="check the columns and the order of the rows; if the values drift, use --memory",
                )

    def _losses_of_last_part(self) -> NDArray[np.float64]:
        """(1 + floors, n)"""
        n = min(LAST, self.entries // 2)
        losses = np.concatenate([np.empty((len(self._sums), 0)), *self._last], axis=1)
        return losses[:, losses.shape[1] - n :]
