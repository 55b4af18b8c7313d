"""The contract of everything that learns.

A `Method` is three functions over a plain state (arrays in nested NamedTuples). It also says how a stream
may be cut into calls (`unit`), for calibrated intervals the quantiles of the residuals (`quantile`), and what
is faster than `predict` to rank many nodes (`quick`). The engines and all baselines are Methods, so the
evaluation, the command line and the report treat them alike.

Every Method guarantees (spidertensor.testing.check_method checks it):

- `init(seed)` depends only on the seed and the settings the method was built with.
- `update(state, batch)` learns the entries of the batch and returns the new state. Do not use the old state
  afterwards: its arrays may have been overwritten. Unseen nodes are added. An empty batch changes nothing.
- An update reports predictions made without the value of their entry, or any later value.
- `predict(state, index)` is pure: it adds no nodes and draws no random numbers. Unseen nodes (beyond
  those in the state, or -1) are predicted from the prior.
- Variances are positive and finite. An update that would violate this is rejected and counted.
- `Method.unit` says how a stream may be cut into calls of `update`:

      "entry"  learns entry by entry: cuts do not change the result, bit for bit
      "batch"  learns whole batches, one per call: cuts between batches do not change the result,
               cuts inside a batch do
      "all"    static: needs all entries in one call of `update`
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Unit = Literal["entry", "batch", "all"]

# Values of this size or more are refused: their squares, and sums of these, must stay finite.
HUGE = 1e30
# The same for methods that need scaled values: one of this size would outweigh everything else.
HUGE_SCALED = 1e6

IDS_ONLY = "this method learns ids only: leave the attributes out"
UNWEIGHTED = "this method counts every entry once: leave the weights out"


class Bags(NamedTuple):
    """Attribute nodes of n entries, beside their own ids: entry i has the elements start[i] to start[i + 1].

    An element is a node of an attribute table (see Network.tables) with a weight. No node comes twice in an
    entry: `spider.bags.plain` adds up the weights of those that do.
    """

    start: NDArray[np.int64]  # (n + 1,)
    table: NDArray[np.int64]  # (m,)
    row: NDArray[np.int64]  # (m,) in that table, -1 for an unseen node
    weight: NDArray[np.float32]  # (m,)

    def part(self, first: int, last: int) -> Bags:
        """The bags of entries first to last."""
        start = self.start[first : last + 1]
        return self.elements(start - start[0], slice(start[0], start[-1]))

    def elements(self, start: NDArray[np.int64], at: Any) -> Bags:
        """Bags with this start, of the elements at these positions."""
        return Bags(start, self.table[at], self.row[at], self.weight[at])


class Batch(NamedTuple):
    """Entries that arrive together.

    index:  (n, K) the node of each mode, -1 in modes without ids
    value:  (n,)
    bags:   the attributes of the entries, if the model has any
    weight: (n,) how many observations each entry counts as, positive; None: one
    """

    index: NDArray[np.int64]  # pyright: ignore[reportIncompatibleMethodOverride] (hides tuple.index)
    value: NDArray[np.float64]
    bags: Bags | None = None
    weight: NDArray[np.float64] | None = None

    def part(self, first: int, last: int) -> Batch:
        """Entries first to last."""
        bags = None if self.bags is None else self.bags.part(first, last)
        weight = None if self.weight is None else self.weight[first:last]
        return Batch(self.index[first:last], self.value[first:last], bags, weight)


class Prediction(NamedTuple):
    """All (n,): mean and variance of the latent f, and the observation noise (0 for probit; for counts the
    dispersion d of the variance mean + d mean²)."""

    mean: NDArray[np.float64]
    var: NDArray[np.float64]
    noise: NDArray[np.float64]


class Update(NamedTuple):
    """Predictions made before learning each entry, their log evidence, and counts of what was not learned.

    For an entry learned with its forecast, mean to log_evidence and below are those of the forecast.

    mean, var, noise: (n,), as in a Prediction; the noise changes with every entry
    log_evidence:     (n,), of the entry's value under that prediction
    rejected:         elements (a mean with its variance) not updated, because the result would not be
                      finite or its variance not positive; includes all elements of refused entries
    refused:          entries not learned at all, for instance because of an absurd value
    clipped:          entries whose residual was too large to be learned in full; for a committee, judged by
                      its own prediction
    below:            (n,), share of the calibrated predictive distribution below the value: the value is in
                      the interval of coverage c if this is between (1 - c)/2 and (1 + c)/2. None
                      if the method does not calibrate
    """

    mean: NDArray[np.float64]
    var: NDArray[np.float64]
    noise: NDArray[np.float64]
    log_evidence: NDArray[np.float64]
    rejected: int
    refused: int = 0
    clipped: int = 0
    below: NDArray[np.float64] | None = None


def joined(updates: list[Update]) -> Update:
    """Join the Updates of consecutive calls into one."""
    *arrays, rejected, refused, clipped, below = zip(*updates, strict=True)
    return Update(
        *map(np.concatenate, arrays),
        rejected=sum(rejected),
        refused=sum(refused),
        clipped=sum(clipped),
        below=None if below[0] is None else np.concatenate(below),
    )


class InitFunction(Protocol):
    def __call__(self, seed: int, /) -> Any:
        """The initial state: a NamedTuple of arrays."""
        ...


class UpdateFunction(Protocol):
    def __call__(self, state: Any, batch: Batch, /) -> tuple[Any, Update]:
        """The state after learning the n entries, and the Update with (n,) arrays."""
        ...


class PredictFunction(Protocol):
    def __call__(self, state: Any, index: NDArray[np.integer], bags: Bags | None = None, /) -> Prediction:
        """A Prediction with (n,) arrays. index: (n, K), -1 for an unseen node"""
        ...


class QuickFunction(Protocol):
    def __call__(self, state: Any, numbers: Sequence[NDArray[np.int64]], /) -> Prediction:
        """`predict` up to rounding, faster for many entries.

        numbers: per mode, the nodes of n entries, or one node for all of them; -1 for an unseen node
        """
        ...


class QuantileFunction(Protocol):
    def __call__(self, state: Any, probability: Any, /) -> Any:
        """A quantile of the residuals (Likelihood.residual), calibrated on the entries so far; or several."""
        ...


class LikelihoodFunction(Protocol):
    def __call__(self, state: Any, /) -> Any:
        """The likelihood (spider/likelihoods) that predictions of this state have."""
        ...


@dataclass(frozen=True)
class Method:
    """Three functions, the unit in which they learn, and the quantiles of the residuals.

    SequentialMethod adds `record` and CommitteeMethod `ready`, which make calls of few entries fast (see
    spider/few_entries.py); JointMethod adds `update_all`, ForecastingMethod `forecast` and `update_by`.
    """

    init: InitFunction
    update: UpdateFunction
    predict: PredictFunction
    unit: Unit = "entry"
    quantile: QuantileFunction | None = None  # None: residuals are treated as normal
    quick: QuickFunction | None = None  # None: nothing is faster than `predict`
    likelihood: LikelihoodFunction | None = None  # None: always the one that the method was built with


@dataclass(frozen=True, kw_only=True)
class JointMethod(Method):
    """A Method that can learn together with others, faster than one after the other.

    program:    methods for which it returns the same, and not None, can learn together
    update_all: `update` for these methods and their states, which have learned the same entries
    """

    program: Callable[[], Hashable]
    update_all: Callable[[Sequence[Any], Sequence[Any], Batch], list[tuple[Any, Update]]]


def check_batch(
    batch: Batch,
    n_modes: int,
    *,
    without_id: Collection[int] = (),
    n_tables: int = 0,
    weighted: bool = False,
) -> None:
    """Check a batch before it reaches compiled loops, which do not check bounds.

    without_id: modes whose index is -1
    n_tables:   number of attribute tables; 0: the method does not learn attributes, and refuses them
    weighted:   whether the method learns weights; else it refuses them
    """
    check_index(batch.index, n_modes, batch.bags, n_tables)
    if batch.value.shape != batch.index.shape[:1]:
        raise ValueError(f"values of shape {batch.value.shape}, but an index of shape {batch.index.shape}")
    if batch.weight is not None:
        if not weighted:
            raise ValueError(UNWEIGHTED)
        if batch.weight.shape != batch.value.shape:
            raise ValueError(f"weights of shape {batch.weight.shape}, values of shape {batch.value.shape}")
        if not ((batch.weight > 0) & (batch.weight < HUGE)).all():
            raise ValueError("weights of entries must be positive and finite")
    if batch.index.min(initial=0) < 0:
        with_id = [mode for mode in range(n_modes) if mode not in without_id]
        if batch.index[:, with_id].min(initial=0) < 0:
            raise ValueError("a batch to learn from has a negative row")
    if batch.bags is not None and batch.bags.row.min(initial=0) < 0:
        raise ValueError("a batch to learn from has attributes in a negative row")


def check_index(
    index: NDArray[np.integer], n_modes: int, bags: Bags | None = None, n_tables: int = 0
) -> None:
    if index.shape[1:] != (n_modes,):
        raise ValueError(f"{n_modes} modes, but an index of shape {index.shape}")
    if bags is None:
        return
    if not n_tables:
        raise ValueError(IDS_ONLY)
    start, table, row, weight = bags
    m = len(table)
    if not (
        start.shape == (len(index) + 1,)
        and table.shape == row.shape == weight.shape == (m,)
        and start[0] == 0
        and start[-1] == m
        and (np.diff(start) >= 0).all()
        and 0 <= table.min(initial=0) <= table.max(initial=0) < n_tables
        and np.isfinite(weight).all()
    ):
        raise ValueError(f"the bags do not belong to {len(index)} entries and {n_tables} attribute tables")
