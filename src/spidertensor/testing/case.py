"""What is checked, and the synthetic streams it is checked on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Batch, Method, Unit
from spidertensor.spider.likelihoods import Likelihood
from spidertensor.testing.states import bits, without_spare_rows

ENTRIES = 60  # of the usual stream


class Traits(NamedTuple):
    """What is particular to a method.

    equal_starts: all nodes of a mode start with the same values
    random:       init draws something, so that another seed gives another state
    one_number:   the answer is the same for every entry, whatever its nodes
    forgets:      update widens the nodes of an entry before it is learned, so that the variance it reports
                  is a little more than what predict said
    calls:        of a long stream; fewer for a slow method
    trim:         the state without rows that are reserved for nodes to come; states are compared by that
    """

    equal_starts: bool = True
    random: bool = True
    one_number: bool = False
    forgets: bool = False
    calls: int = 100
    trim: Callable[[Any], Any] = without_spare_rows


class Case(NamedTuple):
    """A method to check; see `check_method` for the fields."""

    build: Callable[[], Method]
    likelihood: Likelihood
    n_modes: int = 3
    unit: Unit = "entry"
    batch_size: int = 16
    traits: Traits = Traits()

    @property
    def nodes(self) -> tuple[int, ...]:
        return nodes(self.n_modes)

    def stream(self, n: int = ENTRIES, seed: int = 0) -> Batch:
        return stream(self.likelihood, n, seed, self.n_modes)

    def everything(self) -> NDArray[np.int64]:
        return everything(self.n_modes)

    def learned(self, n: int = ENTRIES, seed: int = 0) -> tuple[Method, Any]:
        """A method and its state after a stream of n entries."""
        method = self.build()
        state, _ = method.update(method.init(seed), self.stream(n))
        return method, state

    def bits(self, state: Any) -> list[tuple[str, tuple[int, ...], bytes]]:
        """All that a state holds, apart from spare rows."""
        return bits(self.traits.trim(state))


def nodes(n_modes: int = 3) -> tuple[int, ...]:
    """How many nodes each mode of the streams has: 6, 5, 4, 3, 3, ..."""
    return tuple(max(6 - mode, 3) for mode in range(n_modes))


def stream(likelihood: Likelihood, n: int = ENTRIES, seed: int = 0, n_modes: int = 3) -> Batch:
    """Values are the sum of an effect of each node and noise, or drawn from that."""
    rng = np.random.default_rng(seed)
    index = np.stack([rng.integers(d, size=n) for d in nodes(n_modes)], axis=1)
    effects = [rng.normal(size=d) for d in nodes(n_modes)]
    value = 0.3 * rng.normal(size=n) + sum(
        effect[rows] for effect, rows in zip(effects, index.T, strict=True)
    )
    if likelihood.counts:
        return Batch(index, rng.poisson(np.exp(value)).astype(float))
    if likelihood.ordinal:
        place = np.clip(np.round(len(likelihood.levels) / 2 + value), 0, len(likelihood.levels) - 1)
        return Batch(index, np.array(likelihood.levels)[place.astype(int)])
    return Batch(index, (value > 0).astype(float) if likelihood.binary else value)


def part(batch: Batch, rows: slice) -> Batch:
    return Batch(np.ascontiguousarray(batch.index[rows]), np.ascontiguousarray(batch.value[rows]))


def everything(n_modes: int = 3) -> NDArray[np.int64]:
    """Every entry that the tensor of the streams can have."""
    grid = np.meshgrid(*map(np.arange, nodes(n_modes)), indexing="ij")
    return np.stack([rows.ravel() for rows in grid], axis=1)


def require(condition: bool | np.bool_, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def require_equal(got: Any, wanted: Any, what: str) -> None:
    """Two predictions or two updates are equal, number for number; an array may be None in both."""
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=what)
