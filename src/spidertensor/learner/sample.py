"""A sample of the rows of a history, which decides what its attributes are, whatever order the rows have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.learner.chunks import concatenated

MOST_ROWS = 2**16


class Sample:
    """Columns of all rows, or of MOST_ROWS / 2 to MOST_ROWS rows at random, however the rows are cut."""

    def __init__(self, seed: int) -> None:
        self.n_rows = 0  # of which it is a sample
        self._rng, self._share = np.random.default_rng(seed), 1.0
        self._parts: list[tuple[NDArray[np.float64], dict[str, NDArray[Any]]]] = []

    def add(self, columns: Mapping[str, NDArray[Any]], n: int) -> None:
        self.n_rows += n
        self._parts.append((self._rng.random(n), dict(columns)))
        self._keep()
        while sum(len(lot) for lot, _ in self._parts) > MOST_ROWS:
            self._share /= 2
            self._keep()

    def _keep(self) -> None:
        kept = [(lot, columns, lot < self._share) for lot, columns in self._parts]
        self._parts = [
            (lot[stays], {name: column[stays] for name, column in columns.items()})
            for lot, columns, stays in kept
        ]

    def columns(self) -> dict[str, NDArray[Any]]:
        names = self._parts[0][1] if self._parts else {}
        return {name: concatenated(*(columns[name] for _, columns in self._parts)) for name in names}
