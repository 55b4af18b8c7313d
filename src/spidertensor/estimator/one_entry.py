"""One entry at a time, without the checks and arrays that many entries need.

The short way is for nodes that are known, by plain ids (exact ints, strs, bytes, bools), and for plain
numbers. It ends in `Method.update` and `Method.predict` like the general way, so it gives the same bit for
bit. For everything else it gives None: then the general way finds out what to do, or what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.fitted import Fitted, accepted
from spidertensor.estimator.ids import plain_numbers
from spidertensor.estimator.inputs import Columns
from spidertensor.estimator.labels import Label
from spidertensor.estimator.notes import Notes
from spidertensor.faults import EntryError
from spidertensor.method import Batch, Prediction, Update

_NUMBERS = frozenset({float, int, bool, np.float64, np.float32, np.int64, np.int32, np.bool_})


class EntryUpdate(NamedTuple):
    """What was predicted for an entry before it was learned, how well it fitted, and what was not learned:
    the fields of an `Update`, as numbers."""

    mean: float
    var: float
    noise: float
    log_evidence: float
    rejected: int
    refused: int
    clipped: int
    below: float | None  # None of a classifier, which has no intervals

    @property
    def std(self) -> float:
        """Predicted standard deviation of the value; of a classifier's, the one of f."""
        return math.sqrt(self.var + self.noise)


class EntryPrediction(NamedTuple):
    """Mean and standard deviation of an observation."""

    mean: float
    std: float


class EntryProbability(NamedTuple):
    """The more probable label, and the probability of the positive one, a 1 if the labels are 0 and 1."""

    label: Label
    probability: float


def as_row(ids: Any, names: Sequence[str] | None, *, learned: bool) -> Any:
    """The ids of one entry in the order of the modes, if they came by name: {"user": "anna", ...}."""
    if isinstance(ids, Mapping) and names is None and learned:
        remedy = "pass them in the order of the modes"
        raise EntryError("ids by name, but the model has learned no names", kind="names", remedy=remedy)
    if isinstance(ids, Mapping) and names is not None and len(ids) == len(names):
        try:
            return [ids[name] for name in names]
        except KeyError:
            return ids
    return ids


def as_rows(ids: Any) -> Any:
    """An X with this one entry, for the general way."""
    if isinstance(ids, Mapping):
        return Columns([[raw] for raw in ids.values()], tuple(map(str, ids)))
    return [ids]


def learn_shortly(fitted: Fitted | None, notes: Notes, ids: Any, value: Any) -> EntryUpdate | None:
    learned = _learned(fitted, notes, ids, value)
    if fitted is None or learned is None:
        return None
    mean, var, noise, log_evidence, *rest = numbers_of(learned[0])
    in_units: Any = fitted.scaling.user_units(mean, var, noise)
    return EntryUpdate._make((*in_units, fitted.scaling.log_density(log_evidence), *rest))


def learn_rows(
    fitted: Fitted | None, notes: Notes, X: Any, y: Any
) -> tuple[Update, NDArray[np.int64]] | None:
    """The same for a call of `learn` with one entry: its Update, and its (1, K) nodes."""
    if not (type(X) is list and type(y) is list and len(X) == len(y) == 1):
        return None
    learned = _learned(fitted, notes, X[0], y[0])
    if fitted is None or learned is None:
        return None
    update, index = learned
    prediction = fitted.scaling.user_units(update.mean, update.var, update.noise)
    return Update(*prediction, fitted.scaling.log_density(update.log_evidence), *update[4:]), index


def _learned(
    fitted: Fitted | None, notes: Notes, ids: Any, given: Any
) -> tuple[Update, NDArray[np.int64]] | None:
    """The Update of the method, in its units, and the nodes."""
    if fitted is None or fitted.model.method.unit != "entry":
        return None
    if fitted.params["max_nodes"] is not None:
        return None  # a node that is seen becomes the last to be evicted
    if fitted.pairs is not None:
        return None  # which have to be remembered
    numbers, state = plain_numbers(fitted.nodes, ids), fitted.state
    if numbers is None or -1 in numbers:
        return None
    if (int(state.counts.entries) + 1) % fitted.params["batch_size"] == 0:
        return None  # where the prior is refined a member may follow a change, which is told
    value: Any = _number(fitted, 1.0 if given is None and fitted.model.rule else given)  # an event needs none
    if value is None or (fitted.model.rule and value != 1):
        return None
    scaled = fitted.scaling.scaled_one(value)
    centre, farthest = accepted(fitted)
    if not fitted.model.likelihood.allows(value) or abs(scaled - centre) > farthest:
        return None
    index = np.array([numbers], np.int64)
    _, update = fitted.model.method.update(state, Batch(index, np.array([scaled])))  # the state is the same
    notes.learned(fitted, np.array([value]), update, followed=False)
    return update, index


def _number(fitted: Fitted, value: Any) -> Any:
    """A plain number as a float, or a label as 0 or 1; None of anything else."""
    if fitted.classes is not None and (type(value) is str or type(value) in _NUMBERS):
        return {fitted.classes[0]: 0.0, fitted.classes[1]: 1.0}.get(value)
    if type(value) not in _NUMBERS:
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def predict_shortly(fitted: Fitted, ids: Any) -> tuple[float, float, float] | None:
    """mean, var and noise, as in a Prediction. Not for unseen nodes, about which there may be a note."""
    numbers = plain_numbers(fitted.nodes, ids)
    if numbers is None or -1 in numbers:
        return None
    mean, var, noise = fitted.model.method.predict(fitted.state, np.array([numbers], np.int64))
    in_units: Any = fitted.scaling.user_units(mean.item(), var.item(), noise.item())
    return in_units


def predict_rows(fitted: Fitted, X: Any) -> Prediction | None:
    """The same for an X with one row."""
    one = predict_shortly(fitted, X[0]) if type(X) is list and len(X) == 1 else None
    return None if one is None else Prediction(*(np.array([number]) for number in one))


def numbers_of(update: Update) -> EntryUpdate:
    """An Update of one entry, as numbers."""
    mean, var, noise, log_evidence = (part.item() for part in update[:4])
    below = None if update.below is None else update.below.item()
    return EntryUpdate(mean, var, noise, log_evidence, update.rejected, update.refused, update.clipped, below)
