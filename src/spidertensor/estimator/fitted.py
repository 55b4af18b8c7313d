"""What an estimator has learned: the state of its method, the ids of its nodes, the scaling of its values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor import checkpoint
from spidertensor.estimator.bounds import Bounded
from spidertensor.estimator.columns import Checked, FittedColumns, Recent, Schema
from spidertensor.estimator.columns.fitted_columns import check_once
from spidertensor.estimator.columns.undo import Undo
from spidertensor.estimator.event_rule import seen_modes
from spidertensor.estimator.eviction import BoundedIndex, Segment, segments
from spidertensor.estimator.ids import NodeIndex, to_index
from spidertensor.estimator.inputs import Column, Columns, refuse
from spidertensor.estimator.labels import Classes
from spidertensor.estimator.parameters import NO_ATTRIBUTES, Attributes, Model, is_number, plain
from spidertensor.estimator.seen_pairs import SeenPairs
from spidertensor.estimator.tally import Tally
from spidertensor.faults import EntryError
from spidertensor.method import Bags, Prediction
from spidertensor.scaling import FARTHEST, FARTHEST_CLIPPED, LARGEST, Scaling
from spidertensor.spider import calibration as calibrations
from spidertensor.spider import events, posterior
from spidertensor.spider.bags import concatenated
from spidertensor.spider.committee import CommitteeState
from spidertensor.spider.events import Rule
from spidertensor.spider.forecasts import histogram
from spidertensor.spider.likelihoods import Likelihood
from spidertensor.spider.likelihoods.ordinal import Ordinal
from spidertensor.spider.posterior import State


class Fitted(NamedTuple):
    """Everything that learning changes, so that resetting or loading is one assignment."""

    params: dict[str, Any]  # flat, as of when learning began
    model: Model
    state: CommitteeState
    nodes: list[NodeIndex]
    scaling: Scaling
    tally: Tally
    classes: Classes | None = None  # the labels of a classifier
    pairs: SeenPairs | None = None  # for `remember_seen`
    columns: FittedColumns | None = None  # attributes beside the ids, if the model has any
    history: dict[str, Any] | None = None  # how `fit` learned it in several passes: history.py
    generation: int = 0  # changes when the model is fitted anew, so that it knows its own forecasts

    @property
    def bounded(self) -> bool:
        """Whether a mode has a limited number of nodes (eviction.py)."""
        return self.params["max_nodes"] is not None

    @property
    def leading(self) -> int:
        """Index of the member with the largest weight."""
        return int(self.state.weights.argmax())

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood with all that was learned about it."""
        return self.model.likelihood.at(self.state)

    @property
    def shown(self) -> Likelihood:
        """The same for values in user units: what is said of them keeps to the model's bounds."""
        if self.tally.seen and (seen := self.tally.range()) is not None:
            return Bounded(*seen, strict=False)
        return self.model.shown.at(self.state)

    @property
    def leader(self) -> State:
        return self.state.members[self.leading]


def generation_of(*what: Any) -> int:
    """A number that tells a model from others: the same for the same parameters, scaling and first entry."""
    text = json.dumps(what, sort_keys=True, default=lambda network: network.name)
    return int.from_bytes(sha256(text.encode()).digest()[:6], "big")  # exact also as a float


def fitted_anew(fitted: Fitted) -> Fitted:
    """The model after several passes over a history, as a generation of its own."""
    counts = fitted.state.counts
    data = int(counts.entries), float(counts.log_evidence)
    return fitted._replace(generation=generation_of(fitted.generation, data))


def copied(state: CommitteeState) -> CommitteeState:
    return checkpoint.restore(state, checkpoint.flatten(state))


def scaled_values(value: NDArray[np.float64], fitted: Fitted) -> NDArray[np.float64]:
    """The values in the method's units; EntryError if one is too far from the shift.

    The limit is in units of the leading member's current scale. It is far larger for a model that clips,
    which can adapt if the scale of the values changes; but a scale above LARGEST cannot be loaded.
    """
    scaled, (centre, farthest) = fitted.scaling.scaled(value), accepted(fitted)
    far = np.abs(scaled - centre) > farthest
    if far.any():
        limit, now = _limit(fitted), units(fitted)
        most = f"{limit:g} times the scale {now.scale:g}" if limit * now.scale < LARGEST else f"{LARGEST:g}"
        refuse(
            value,
            far,
            f"is more than {most} away from {now.shift:g}",
            kind="too far",
            remedy="leave it out, clip it, or pass a fitting scaling=(shift, scale)",
        )
    return scaled


def accepted(fitted: Fitted) -> tuple[float, float]:
    """Centre and radius of the scaled values that are accepted."""
    if not fitted.model.likelihood.scaled:
        return 0.0, math.inf
    stream = fitted.leader.stream
    return float(stream.shift), min(_limit(fitted) * float(stream.scale), LARGEST / fitted.scaling.scale)


def _limit(fitted: Fitted) -> float:
    return FARTHEST if fitted.params.get("clip") is None else FARTHEST_CLIPPED


def units(fitted: Fitted) -> Scaling:
    """The leading member's current scaling: the first one and all changes it has followed since."""
    (shift, scale), stream = fitted.scaling, fitted.leader.stream
    return Scaling(float(shift + scale * stream.shift), float(scale * stream.scale))


class Rows(NamedTuple):
    """Where the entries of a call are in the state."""

    nodes: NDArray[np.int64]  # (n, K) of the ids
    bags: Bags | None  # their attributes
    segments: list[Segment]  # see eviction.py


def with_room(fitted: Fitted, columns: Columns, *, grows: bool = True) -> tuple[Fitted, Rows]:
    """Add all new ids and attribute values. Return the grown model, and the rows of the entries.

    grows: else the state gets its rows later, by `with_rows`

    On failure nothing is added, except where something was evicted for it. The state grows here, not in the
    update, so that ids and state agree as soon as the result is stored, and the update can work in place.
    """
    nodes, known = fitted.nodes, [len(each) for each in fitted.nodes]
    checked = undo = None
    if fitted.columns is not None and fitted.columns.tables:
        checked = fitted.columns.check(columns.given, columns.n_entries)
    try:
        index = to_index(nodes, columns, add=True)
        grown = with_rows(fitted) if grows else fitted
        parts, rule, bags = [], fitted.model.rule, None
        if fitted.bounded:
            size, entries = fitted.params["batch_size"], int(fitted.state.counts.entries)
            recent = fitted.columns is not None and fitted.columns.keeps_recent
            parts = segments(nodes, index, entries, size, at_once=rule is not None or recent)
        if checked is not None:
            assert fitted.columns is not None
            if rule is not None and fitted.state.draws:
                fitted.columns.expect_events(int(fitted.state.draws.events), rule.over)
            if not fitted.bounded:
                undo = Undo(fitted.columns.columns, index)
            bags, parts = _learned_bags(fitted, checked, index, parts)
            grown = with_rows(grown) if grows else grown  # for new values
    except BaseException:  # out of memory, or Ctrl-C
        undone = undo is None or undo.back()
        for mode, (each, n) in enumerate(zip(nodes, known, strict=True)):
            if fitted.columns is not None and not undone and len(each) > n:
                fitted.columns.keep(mode, np.arange(len(each)) < n)  # no attributes without a node
            each.truncate(n)
        raise
    return grown, Rows(index, bags, parts)


def with_rows(fitted: Fitted) -> Fitted:
    """The same model with a row in every table for every node and every attribute value."""
    rows = [len(each) for each in fitted.nodes]
    wanted = np.array(rows if fitted.columns is None else [*rows, *fitted.columns.n_rows])
    members = tuple(
        posterior.grow(state, member.network, member.prior, wanted)
        for state, member in zip(fitted.state.members, fitted.model.members, strict=True)
    )
    rule, draws = fitted.model.rule, fitted.state.draws
    if rule and draws:
        draws = events.with_room(draws, rule, wanted)
    return fitted._replace(state=fitted.state._replace(members=members, draws=draws))


def _learned_bags(
    fitted: Fitted, checked: Checked, index: NDArray[np.int64], parts: list[Segment]
) -> tuple[Bags, list[Segment]]:
    """The attributes of the entries, segment by segment: in each some nodes may have become others."""
    columns, n_modes = fitted.columns, len(fitted.nodes)
    assert columns is not None
    if not parts:
        bags = columns.bags(checked, index, learn=True)
        if not columns.restarts:
            return bags, parts
        return bags, _with_restarts(
            [Segment(0, [[] for _ in range(n_modes + len(columns.columns))])], columns
        )
    found, longer = [], []
    for number, (start, reused) in enumerate(parts):
        end = parts[number + 1].start if number + 1 < len(parts) else len(index)
        of_tables: list[list[int]] = [[] for _ in columns.tables]
        for mode, rows in enumerate(reused):
            if rows:
                for table, afresh in columns.clear(mode, np.array(rows)).items():
                    of_tables[table].extend(afresh.tolist())
        found.append(columns.bags(checked.cut(start, end), index[start:end], learn=True))
        longer += _with_restarts([Segment(start, [*reused, *of_tables])], columns)
    return concatenated(found), longer


def _with_restarts(parts: list[Segment], columns: FittedColumns) -> list[Segment]:
    """A segment, cut where values of its attributes were evicted."""
    first, empty = parts[0].start, len(parts[0].reused)
    for entry, table, rows in columns.restarts:
        if first + entry > parts[-1].start:
            parts.append(Segment(first + entry, [[] for _ in range(empty)]))
        parts[-1].reused[empty - len(columns.columns) + table].extend(rows.tolist())
    return parts


def bags_of(fitted: Fitted, columns: Columns, index: NDArray[np.int64]) -> Bags | None:
    """The attributes of entries to predict, whose ids have these nodes."""
    if fitted.columns is None or not fitted.columns.tables:
        return None
    checked = fitted.columns.check(columns.given, columns.n_entries)
    return fitted.columns.bags(checked, index, learn=False)


def describe(
    columns: FittedColumns | None, nodes: Sequence[NodeIndex], mode: int, table: Mapping[str, Column]
) -> list[list[int]]:
    """Remember the attributes of nodes of a mode; unseen ids become nodes. EntryError changes nothing.

    Return the rows that must start afresh because a node was evicted for another: per mode, then per table.
    """
    assert columns is not None
    checked = check_description(columns, mode, table)
    ids, own = table[columns.schema.names[mode]], nodes[mode]
    reused: list[list[int]] = [[] for _ in (*nodes, *columns.columns)]
    if not isinstance(own, BoundedIndex):
        columns.describe(mode, own.find_or_add(ids), checked)
        return _with_evicted(reused, columns)
    if len(ids) > own.limit:
        reason = (
            f"{len(ids)} ids, but at most {own.limit} of {columns.schema.names[mode]} are kept (max_nodes)"
        )
        raise EntryError(reason, kind="attribute", remedy="describe fewer")
    known = own.find(ids) >= 0
    own.find_or_add([raw for raw, is_known in zip(ids, known, strict=True) if is_known])  # not to be evicted
    numbers = own.find_or_add(ids)
    rows = own.evictions()[:, 1]
    own.settle()
    if len(rows):
        reused[mode] = rows.tolist()
        for table_number, afresh in columns.clear(mode, rows).items():
            reused[len(nodes) + table_number] = afresh.tolist()
    columns.describe(mode, numbers, checked)
    return _with_evicted(reused, columns)


def _with_evicted(reused: list[list[int]], columns: FittedColumns) -> list[list[int]]:
    for _, table, rows in columns.restarts:
        reused[len(reused) - len(columns.columns) + table].extend(rows.tolist())
    return reused


def check_description(columns: FittedColumns, mode: int, table: Mapping[str, Column]) -> Checked:
    """Check a table of attributes; EntryError if something in it is not allowed."""
    name = columns.schema.names[mode]
    ids = table[name]
    check_once(NodeIndex().find_or_add(ids), name)
    return columns.check(table, len(ids), mode)


class Described:
    """Tables of attributes set before the first entry, and what they make: they must not contradict."""

    def __init__(self, schema: Schema, nodes: list[NodeIndex], before: Described | None = None) -> None:
        """nodes: those of a new model; before: the same for another schema"""
        self.columns, self.nodes = FittedColumns(schema), nodes
        self.tables: list[tuple[str, Mapping[str, Column]]] = []  # by the name of the mode
        for name, table in () if before is None else before.tables:
            self.add(schema.number_of(name), table)

    def add(self, mode: int, table: Mapping[str, Column]) -> None:
        describe(self.columns, self.nodes, mode, table)
        # copied: the caller may change it before the first entry comes
        own = {
            name: each.copy() if isinstance(each, np.ndarray) else list(each) for name, each in table.items()
        }
        self.tables.append((self.columns.schema.names[mode], own))


def check_possible(columns: FittedColumns, params: dict[str, Any], rule: Rule | None) -> None:
    """ValueError if the other parameters do not allow these columns."""
    if rule is not None:
        columns.check_drawn(rule.over)
        whose = params["remember_seen"]
        if whose is not False and not columns.schema.modes[whose].has_id:
            raise ValueError(
                f"remember_seen needs a mode with ids, and {columns.schema.names[whose]!r} has none"
            )
    if params["engine"] == "vectorized":
        from spidertensor.spider.vectorized import check_slots  # imported here: needs JAX

        recent = [column.spec.n for column in columns.columns if isinstance(column.spec, Recent)]
        check_slots(params["batch_size"], [1 << (n - 1).bit_length() for n in [*recent, 1]])


def attributes_of(columns: FittedColumns | None) -> Attributes:
    """What the model of these columns has to know of them."""
    if columns is None:
        return NO_ATTRIBUTES
    without_id = [mode for mode, each in enumerate(columns.schema.modes) if not each.has_id]
    return Attributes(columns.tables, tuple(without_id), columns.of_nodes)


@contextmanager
def remembering(fitted: Fitted, index: NDArray[np.int64]) -> Iterator[None]:
    """Context for learning: remembers the pairs of the entries or events learned, even if interrupted."""
    draws = fitted.state.draws
    learned = draws.events if draws else fitted.state.counts.entries  # counts in place
    before = int(learned)
    try:
        yield
    finally:
        remember(fitted, index[: int(learned) - before])


def remember(fitted: Fitted, learned: NDArray[np.int64]) -> None:
    """Remember the pairs of learned entries, if the model does so."""
    modes = seen_modes(fitted.params, fitted.model.rule)
    if fitted.pairs is not None and modes is not None:
        fitted.pairs.add(learned[:, modes[0]], learned[:, modes[1]])


def without(fitted: Fitted, mode: int, numbers: set[int]) -> Fitted:
    """The same model without some nodes of a mode: their ids and rows are removed."""
    keep = np.ones(len(fitted.nodes[mode]), bool)
    keep[list(numbers)] = False
    members = tuple(posterior.keep_rows(member, mode, keep) for member in fitted.state.members)
    fitted.tally.keep(mode, keep)
    if fitted.columns is not None:
        for table, rows in fitted.columns.keep(mode, keep).items():
            members = tuple(posterior.keep_rows(each, len(fitted.nodes) + table, rows) for each in members)
    nodes = [each.without(numbers) if m == mode else each for m, each in enumerate(fitted.nodes)]
    draws, pairs, rule = fitted.state.draws, fitted.pairs, fitted.model.rule
    if rule and draws:
        draws = events.without(draws, rule, mode, keep)
    seen = seen_modes(fitted.params, rule)
    if pairs is not None and seen is not None and mode in seen:
        pairs = pairs.without(keep, of_first=mode == seen[0])
    state = fitted.state._replace(members=members, draws=draws)
    return fitted._replace(state=state, nodes=nodes, pairs=pairs)


def followed(fitted: Fitted, member: int) -> NDArray[np.int64]:
    """(3,) how many lasting changes of the values a member has found, by kind (follow.py)."""
    return fitted.state.members[member].stream.followed.copy()


def intervals(
    fitted: Fitted,
    predicted: Prediction,
    coverage: float,
    calibration: str = "auto",
    likelihood: Likelihood | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Low and high ends of calibrated prediction intervals, in user units.

    likelihood: of the predictions, if they are not of now
    """
    likelihood, residuals = likelihood or fitted.shown, histogram(fitted.state, calibration)
    if isinstance(likelihood, Ordinal):
        return likelihood.interval(predicted, checked_coverage(coverage))
    if residuals is None:
        raise ValueError(
            f"a {likelihood.name} model predicts a {likelihood.mean_name}, which has no interval"
        )
    coverage = checked_coverage(coverage)
    low, high = (calibrations.quantile(residuals, (1 + side * coverage) / 2) for side in (-1, 1))
    return likelihood.at_residual(low, predicted), likelihood.at_residual(high, predicted)


def checked_coverage(coverage: Any) -> float:
    coverage = plain(coverage)
    if not (is_number(coverage) and 0 < coverage < 1):
        raise ValueError(f"coverage is a probability between 0 and 1, got {coverage!r}")
    return coverage
