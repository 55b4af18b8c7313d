"""A fast path for single entries, without the checks and arrays that many entries need.

It handles known nodes with plain ids (exactly int, str, bytes or bool) and plain numbers. It runs the same
kernels as the general path, so results agree bit for bit. For everything else it returns None, and the
general path handles the entry or reports the error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.columns.single import Found, plain_cell
from spidertensor.estimator.fitted import Fitted, accepted
from spidertensor.estimator.ids import plain_numbers
from spidertensor.estimator.inputs import Columns
from spidertensor.estimator.labels import Label
from spidertensor.estimator.notes import Notes
from spidertensor.faults import EntryError
from spidertensor.method import Batch, Prediction, Update
from spidertensor.spider.likelihoods import COUNT, Likelihood

_NUMBERS = frozenset({float, int, bool, np.float64, np.float32, np.int64, np.int32, np.bool_})


class EntryUpdate(NamedTuple):
    """The prediction for an entry just before it was learned, its log evidence, and what was not learned: the
    fields of an `Update`, as numbers."""

    mean: float
    var: float
    noise: float
    log_evidence: float
    rejected: int
    refused: int
    clipped: int
    below: float | None  # None for a classifier, which has no intervals

    @property
    def std(self) -> float:
        """Predicted standard deviation of the value; for a classifier, of f."""
        return math.sqrt(self.var + self.noise)


class CountUpdate(EntryUpdate):
    """EntryUpdate for a count: `mean`, `var` and `noise` are those of f, the log rate."""

    __slots__ = ()

    @property
    def expected(self) -> float:
        """Predicted mean of the count."""
        return float(COUNT.expected(self.mean, self.var))

    @property
    def std(self) -> float:
        """Predicted standard deviation of the count."""
        return float(COUNT.std(self.mean, self.var, self.noise))


class EntryPrediction(NamedTuple):
    """Predicted mean and standard deviation of an observation."""

    mean: float
    std: float


class EntryProbability(NamedTuple):
    """The more probable label, and the probability of the positive label (1 if the labels are 0 and 1). The
    label is None before the first entry is learned."""

    label: Label | None
    probability: float


def as_row(ids: Any, names: Sequence[str] | None, *, learned: bool) -> Any:
    """The ids of one entry in order of the modes, if given by name: {"user": "anna", ...}."""
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
    """An X with this one entry, for the general path."""
    if isinstance(ids, Mapping):
        return Columns([[raw] for raw in ids.values()], tuple(map(str, ids)))
    return [ids]


def learn_fast(fitted: Fitted | None, notes: Notes, ids: Any, value: Any) -> EntryUpdate | None:
    """Learn one entry by the fast path; None, with nothing learned, if it does not apply."""
    learned = None if fitted is None else _learned(fitted, notes, ids, value)
    return None if learned is None else learned[0]


def learn_rows(
    fitted: Fitted | None, notes: Notes, X: Any, y: Any
) -> tuple[Update, NDArray[np.int64]] | None:
    """Like learn_fast, for `learn` with one entry: its Update and its (1, K) nodes."""
    if fitted is None or not (type(X) is list and type(y) is list and len(X) == len(y) == 1):
        return None
    learned = _learned(fitted, notes, X[0], y[0])
    if learned is None:
        return None
    (*numbers, rejected, refused, clipped, below), nodes = learned
    mean, var, noise, log_evidence = (np.array([number]) for number in numbers)
    below = None if below is None else np.array([below])
    index = np.array([nodes], np.int64)
    return Update(mean, var, noise, log_evidence, rejected, refused, clipped, below), index


def _learned(fitted: Fitted, notes: Notes, ids: Any, given: Any) -> tuple[EntryUpdate, list[int]] | None:
    """Learn one entry: its update in user units, and its nodes. None if the fast path does not apply."""
    if fitted.bounded:
        return None  # recency must be updated
    if fitted.pairs is not None:
        return None  # the pair must be remembered
    nodes, found = _nodes(fitted, ids, learn=True)
    if nodes is None:
        return None
    # an event needs no value
    value: Any = _number(fitted, 1.0 if given is None and fitted.model.rule else given)
    if value is None or (fitted.model.rule and value != 1):
        return None
    scaling, (centre, farthest) = fitted.scaling, accepted(fitted)
    scaled = scaling.scaled_one(value)
    if not fitted.model.shown.allows_one(value) or abs(scaled - centre) > farthest:
        return None
    learned = _updated(fitted, nodes, found, scaled)
    if learned is None:
        return None
    if found is not None:
        found.keep()
    mean, var, noise, log_evidence, rejected, refused, clipped, below = learned
    notes.learned_one(fitted, value, mean, var, clipped=clipped, refused=refused)
    in_units: Any = scaling.user_units(mean, var, noise)
    log_evidence = scaling.log_density(log_evidence)
    fitted.tally.add_one(nodes, value, in_units[0], in_units[1], log_evidence, below)
    kind = _kind(fitted.model.likelihood)
    return kind._make((*in_units, log_evidence, rejected, refused, clipped, below)), nodes


def _nodes(fitted: Fitted, ids: Any, *, learn: bool) -> tuple[list[int] | None, Found | None]:
    """The nodes of an entry, None if the fast path does not apply; and its attributes, if there are any."""
    columns = fitted.columns
    if columns is None:
        nodes = plain_numbers(fitted.nodes, ids)
        return (None if nodes is None or -1 in nodes else nodes), None
    if fitted.model.rule is not None or (type(ids) not in (dict, list, tuple)):
        return None, None
    names = [name for _, name in columns.with_id]
    row = [plain_cell(ids.get(name)) for name in names] if type(ids) is dict else ids
    known = plain_numbers([fitted.nodes[mode] for mode, _ in columns.with_id], row)
    if known is None or -1 in known:
        return None, None
    nodes = [-1] * len(fitted.nodes)
    for (mode, _), number in zip(columns.with_id, known, strict=True):
        nodes[mode] = number
    if not columns.columns:
        return nodes, None
    given = ids if type(ids) is dict else dict(zip(names, row, strict=True))
    found = columns.single(given, nodes, learn=learn)
    return (None if found is None else nodes), found


def _updated(fitted: Fitted, nodes: list[int], found: Found | None, scaled: float) -> Any:
    """The numbers of the method's Update, in its units; None if the general path must learn the entry."""
    state, method = fitted.state, fitted.model.method
    # An event is several entries, so it cannot use learn_one.
    if fitted.model.rule is None and (ready := method.ready(state)) is not None:
        return ready.learn_one(nodes, scaled, None if found is None else found.elements)
    if found is not None:
        return None
    if method.unit != "entry" or (int(state.counts.entries) + 1) % fitted.params["batch_size"] == 0:
        return None  # at a refinement a member may follow a change, which needs a warning
    _, update = method.update(state, Batch(np.array([nodes], np.int64), np.array([scaled])))  # in place
    return numbers_of(update, fitted.model.likelihood)


def _number(fitted: Fitted, value: Any) -> Any:
    """A plain number as a float, or a label as 0.0 or 1.0; None for anything else."""
    if fitted.classes is not None and (type(value) is str or type(value) in _NUMBERS):
        return {fitted.classes[0]: 0.0, fitted.classes[1]: 1.0}.get(value)
    if type(value) not in _NUMBERS:
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def predict_fast(fitted: Fitted, ids: Any) -> tuple[float, float, float] | None:
    """mean, var and noise in user units; None if the fast path does not apply, as for unseen nodes."""
    nodes, found = _nodes(fitted, ids, learn=False)
    if nodes is None:
        return None
    state, method = fitted.state, fitted.model.method
    if (ready := method.ready(state)) is not None:
        predicted: Any = ready.predict_one(nodes, None if found is None else found.elements)
    elif found is not None:
        return None
    else:
        parts = method.predict(state, np.array([nodes], np.int64))
        predicted = [part.item() for part in parts]
    in_units: Any = fitted.scaling.user_units(*predicted)
    return in_units


def predict_rows(fitted: Fitted, X: Any) -> Prediction | None:
    """Like predict_fast, for an X with one row."""
    one = predict_fast(fitted, X[0]) if type(X) is list and len(X) == 1 else None
    return None if one is None else Prediction(*(np.array([number]) for number in one))


def _kind(likelihood: Likelihood) -> type[EntryUpdate]:
    return CountUpdate if likelihood.counts else EntryUpdate


def numbers_of(update: Update, likelihood: Likelihood) -> EntryUpdate:
    """Convert an Update of one entry to numbers."""
    mean, var, noise, log_evidence = (part.item() for part in update[:4])
    below = None if update.below is None else update.below.item()
    kind = _kind(likelihood)
    return kind(mean, var, noise, log_evidence, update.rejected, update.refused, update.clipped, below)
