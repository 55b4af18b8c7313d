"""Counters in the states of baselines."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Counts(NamedTuple):
    nodes: NDArray[np.int64]  # per mode
    entries: NDArray[np.int64]
    rejected: NDArray[np.int64]  # elements whose update was rejected, as in Update
    refused: NDArray[np.int64]  # entries that were not learned
    log_evidence: NDArray[np.float64]  # sum over learned entries

    def with_nodes(self, n_nodes: NDArray[np.int64]) -> Counts:
        return self._replace(nodes=np.maximum(self.nodes, n_nodes))


def no_counts(n_modes: int) -> Counts:
    return Counts(np.zeros(n_modes, np.int64), np.array(0), np.array(0), np.array(0), np.array(0.0))
