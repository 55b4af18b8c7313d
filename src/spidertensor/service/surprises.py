"""The latest entries that were far from what was predicted for them."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np

from spidertensor.learner.learner import Learned
from spidertensor.method import Prediction
from spidertensor.service.errors import shown
from spidertensor.spider.likelihoods import Likelihood

SURPRISING = 4.0  # predictive standard deviations
UNLIKELY = 0.01  # probability of a 0/1 value that is surprising
KEPT = 20  # surprising entries


class Surprises:
    def __init__(self, likelihood: Likelihood) -> None:
        self._likelihood, self._by_squares = likelihood, likelihood.metric == "rmse"
        self.latest: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def add(self, learned: Learned, entries: int) -> None:
        """entries: all that were scored, with these"""
        value, predicted = learned.values, Prediction(*learned.numbered.update[:3])
        mean, std = self._likelihood.expected(*predicted[:2]), self._likelihood.std(*predicted)
        if self._by_squares:
            z = self._likelihood.residual(value, predicted, entries)
            strange = np.abs(z) > SURPRISING
        else:
            z = np.full(len(value), np.nan)
            strange = self._likelihood.log_evidence(value, *predicted) < np.log(UNLIKELY)
        for row in np.flatnonzero(strange)[-KEPT:].tolist():
            self.latest.appendleft(
                {
                    "time": time.time(),
                    "ids": [shown(_plain(column[row])) for column in learned.ids],
                    "value": float(value[row]),
                    "mean": float(mean[row]),
                    "std": float(std[row]) if self._by_squares else None,
                    "z": float(z[row]) if self._by_squares else None,
                }
            )


def _plain(raw: Any) -> Any:
    return raw.item() if isinstance(raw, np.generic) else raw
