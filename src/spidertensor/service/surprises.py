"""The latest entries that were far from their predictions."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np

from spidertensor.learner.learner import Learned
from spidertensor.method import Prediction
from spidertensor.service.errors import shown
from spidertensor.spider.likelihoods import Likelihood

SURPRISING_STDS = 4.0  # predictive standard deviations from the mean
UNLIKELY_PROBABILITY = 0.01  # of a 0/1 value
KEPT_ENTRIES = 20


class Surprises:
    def __init__(self) -> None:
        self.latest: deque[dict[str, Any]] = deque(maxlen=KEPT_ENTRIES)

    def add(self, learned: Learned, entries: int, likelihood: Likelihood) -> None:
        """Keep the surprising ones.

        entries:    scored so far, including these
        likelihood: with what the model has learned about it
        """
        by_squares = likelihood.metric == "rmse"
        value, predicted = learned.values, Prediction(*learned.numbered.update[:3])
        mean, std = likelihood.expected(*predicted[:3]), likelihood.std(*predicted)
        if by_squares:
            z = likelihood.residual(value, predicted, entries)
            strange = np.abs(z) > SURPRISING_STDS
        else:
            z = np.full(len(value), np.nan)
            strange = likelihood.log_evidence(value, *predicted) < np.log(UNLIKELY_PROBABILITY)
        for row in np.flatnonzero(strange)[-KEPT_ENTRIES:].tolist():
            self.latest.appendleft(
                {
                    "time": time.time(),
                    "ids": [shown(_plain(column[row])) for column in learned.ids],
                    "value": float(value[row]),
                    "mean": float(mean[row]),
                    "std": float(std[row]) if by_squares else None,
                    "z": float(z[row]) if by_squares else None,
                }
            )


def _plain(raw: Any) -> Any:
    return raw.item() if isinstance(raw, np.generic) else raw
