"""The contract of everything that learns.

A `Method` is three functions over a plain state: a tuple of arrays, nested in NamedTuples, that holds all
there is to know. Two facts stand beside them: how a stream may be cut (`unit`) and, where intervals are
calibrated, the quantiles they are made of (`quantile`). The engines and every baseline are Methods, so the
evaluation, the command line and the report handle all of them in the same way.

What every Method promises (spidertensor.testing.check_method checks it):

- `init(seed)` depends on nothing but the seed and the settings the method was built with.
- `update(state, batch)` learns the entries of the batch and returns the new state. Do not use the old state
  afterwards: its arrays may have been overwritten. Nodes that the state has not seen are added. An empty
  batch changes nothing.
- What an update reports for an entry was predicted without that entry's value, or any later value.
- `predict(state, index)` is pure: it adds no node and draws no random number. An unseen node (one beyond
  those in the state, or -1) is answered from the prior.
- Variances are positive and finite. An update that would break this is not made, and is counted.
- How a stream may be cut into calls of `update` depends on `Method.unit`:

      "entry"  learns entry by entry: cuts change nothing, bit for bit
      "batch"  learns a batch as a whole, and a call ends a batch: cuts between two batches change nothing,
               cuts inside one change the result
      "all"    static: all entries have to come in one call of `update`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Unit = Literal["entry", "batch", "all"]

# Values are refused from this size on: their squares, and sums of these, must stay finite.
HUGE = 1e30
# The same for methods that want scaled values: a single one of this size would outweigh everything else.
HUGE_SCALED = 1e6


class Batch(NamedTuple):
    """Entries that arrive together: index (n, K), the node of each mode; value (n,)."""

    index: NDArray[np.int64]  # pyright: ignore[reportIncompatibleMethodOverride] (hides tuple.index)
    value: NDArray[np.float64]


class Prediction(NamedTuple):
    """All (n,): mean and variance of the latent f, and what an observation adds to it (0 for probit; of
    counts the d of a variance mean + d mean²)."""

    mean: NDArray[np.float64]
    var: NDArray[np.float64]
    noise: NDArray[np.float64]


class Update(NamedTuple):
    """What was predicted for each entry before it was learned, how well it fitted, and what was not learned.

    mean, var, noise: (n,), as in a Prediction; the noise is here because it moves with every entry
    log_evidence:     (n,), of the entry's value under that prediction
    rejected:         elements (one mean with its variance) whose update was not made, because the result
                      would not be finite or its variance not positive; all elements of refused entries too
    refused:          entries that were not learned at all, for instance because of an absurd value
    clipped:          entries whose residual was too large to be learned in full; of a committee, by its own
                      prediction
    below:            (n,), how much of an entry's calibrated predictive distribution lay below its value:
                      it is in the interval of coverage c if this is between (1 - c)/2 and (1 + c)/2. None
                      of a method that does not calibrate
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
    """The Updates of calls one after the other as that of one call."""
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
        """The state before any entry: a NamedTuple of arrays."""
        ...


class UpdateFunction(Protocol):
    def __call__(self, state: Any, batch: Batch, /) -> tuple[Any, Update]:
        """The state after the n entries of the batch, and the Update with its (n,) arrays."""
        ...


class PredictFunction(Protocol):
    def __call__(self, state: Any, index: NDArray[np.integer], /) -> Prediction:
        """index (n, K), -1 for an unseen node -> a Prediction with its (n,) arrays."""
        ...


class QuantileFunction(Protocol):
    def __call__(self, state: Any, probability: float, /) -> float:
        """The quantile of the residuals (Likelihood.residual), calibrated by the entries so far."""
        ...


@dataclass(frozen=True)
class Method:
    """Three functions, the unit in which they learn, and the quantiles of the residuals: all that a caller
    needs. The sequential engine and the committee add one field each (`SequentialMethod`, `CommitteeMethod`),
    by which calls of few entries are fast: spider/few_entries.py says why."""

    init: InitFunction
    update: UpdateFunction
    predict: PredictFunction
    unit: Unit = "entry"
    quantile: QuantileFunction | None = None  # None: its residuals are taken as normal


def check_batch(batch: Batch, n_modes: int) -> None:
    """Compiled loops check no bounds, so a batch is checked before it gets there."""
    check_index(batch.index, n_modes)
    if batch.value.shape != batch.index.shape[:1]:
        raise ValueError(f"values of shape {batch.value.shape}, but an index of shape {batch.index.shape}")
    if batch.index.min(initial=0) < 0:
        raise ValueError("a batch to learn from has a negative row")


def check_index(index: NDArray[np.integer], n_modes: int) -> None:
    if index.shape[1:] != (n_modes,):
        raise ValueError(f"{n_modes} modes, but an index of shape {index.shape}")
