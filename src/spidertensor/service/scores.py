"""How good the model is while it runs: error and floors, coverage, clipping, surprising entries.

Every entry is scored by what was predicted before it was learned. Running numbers forget: an entry counts 1/e
after MEMORY further ones.
"""

from __future__ import annotations

import io
import time
from collections import deque
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor import checkpoint
from spidertensor.estimator.eviction import Numbered
from spidertensor.learner.floors import FLOORS, RunningFloors, in_intervals
from spidertensor.method import Prediction, Update
from spidertensor.service.errors import shown
from spidertensor.spider.events import Rule
from spidertensor.spider.likelihoods import Likelihood

MEMORY = 5000  # entries
SURPRISING = 4.0  # predictive standard deviations
UNLIKELY = 0.01  # probability of a 0/1 value that is surprising
KEPT = 20  # surprising entries


class Sums(NamedTuple):
    """Running sums over entries, so their ratios to `weight` are running means."""

    weight: NDArray[np.float64]
    losses: NDArray[np.float64]  # of the model and of the floors
    intervals: NDArray[np.float64]  # entries with an interval, and those inside it
    clipped: NDArray[np.float64]
    entries: NDArray[np.int64]  # all that were scored
    n_clipped: NDArray[np.int64]


class Scores:
    def __init__(self, likelihood: Likelihood, n_modes: int, rule: Rule | None = None) -> None:
        self.likelihood = likelihood
        self.floors = RunningFloors(likelihood, n_modes, rule)
        self.by_squares = self.floors.by_squares
        self.surprises: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.sums = Sums(
            np.zeros(()),
            np.zeros(1 + len(FLOORS)),
            np.zeros(2),
            np.zeros(()),
            np.zeros((), np.int64),
            np.zeros((), np.int64),
        )

    def add(self, ids: list[NDArray[Any]], value: NDArray, learned: Numbered) -> None:
        """The entries of one call: their ids and values, and what the model made of them."""
        n, update = len(value), learned.update
        keep = np.exp(-(np.arange(n)[::-1]) / MEMORY)  # the last entry counts 1
        sums, left = self.sums, np.exp(-n / MEMORY)
        losses = self.floors.learn(value, learned, float(update.mean[0]))
        good = np.isfinite(update.log_evidence)
        sums.weight[()] = sums.weight * left + keep[good].sum()
        sums.losses[:] = sums.losses * left + [float(keep[good] @ each[good]) for each in losses]
        sums.intervals[:] = sums.intervals * left + in_intervals(update) @ keep
        sums.clipped[()] = sums.clipped * left + update.clipped
        sums.entries[()] += n
        sums.n_clipped[()] += update.clipped
        self._note_surprises(ids, value, update)

    def _note_surprises(self, ids: list[NDArray[Any]], value: NDArray, update: Update) -> None:
        predicted = Prediction(*update[:3])
        mean, std = self.likelihood.expected(*predicted[:2]), self.likelihood.std(*predicted)
        if self.by_squares:
            z = self.likelihood.residual(value, predicted, int(self.sums.entries))
            strange = np.abs(z) > SURPRISING
        else:
            z = np.full(len(value), np.nan)
            strange = self.likelihood.log_evidence(value, *predicted) < np.log(UNLIKELY)
        for row in np.flatnonzero(strange)[-KEPT:].tolist():
            self.surprises.appendleft(
                {
                    "time": time.time(),
                    "ids": [shown(_plain(column[row])) for column in ids],
                    "value": float(value[row]),
                    "mean": float(mean[row]),
                    "std": float(std[row]) if self.by_squares else None,
                    "z": float(z[row]) if self.by_squares else None,
                }
            )

    def running(self) -> dict[str, Any]:
        """Errors, coverage and share of clipped entries; None as long as there is nothing to tell."""
        weight, intervals = float(self.sums.weight), self.sums.intervals
        nothing = [None] * len(self.sums.losses)
        told = self.floors.scores(self.sums.losses / weight) if weight else nothing
        return {
            "error": told[0],
            **{f"floor_{name}": floor for name, floor in zip(FLOORS, told[1:], strict=True)},
            "coverage": float(intervals[1] / intervals[0]) if intervals[0] else None,
            "clipped": float(self.sums.clipped) / weight if weight and self.by_squares else None,
            "scored": int(self.sums.entries),
        }

    def state(self, model: Any) -> bytes:
        """model: the estimator that is scored"""
        file = io.BytesIO()
        arrays: Any = checkpoint.flatten((self.sums, self.floors.state(model)))
        np.savez(file, **arrays)
        return file.getvalue()

    def restore(self, state: bytes, model: Any) -> None:
        """As they were; ValueError if the bytes are no such state."""
        with np.load(io.BytesIO(state), allow_pickle=False) as arrays:
            self.sums, of_floors = checkpoint.restore((self.sums, self.floors.state(model)), dict(arrays))
        self.floors.restore(of_floors, model)


def _plain(raw: Any) -> Any:
    return raw.item() if isinstance(raw, np.generic) else raw
