"""What an estimator has learned: the state of its method, the ids of its nodes, the scaling of its values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.eviction import Segment, segments
from spidertensor.estimator.ids import NodeIndex, to_index
from spidertensor.estimator.inputs import Columns, refuse
from spidertensor.estimator.labels import Classes
from spidertensor.estimator.parameters import Model, is_number, plain
from spidertensor.estimator.seen_pairs import SeenPairs
from spidertensor.method import Prediction
from spidertensor.scaling import FARTHEST, FARTHEST_CLIPPED, Scaling
from spidertensor.spider import events, posterior
from spidertensor.spider.committee import CommitteeState
from spidertensor.spider.posterior import State


class Fitted(NamedTuple):
    """Everything that learning changes, so that resetting or loading is one assignment."""

    params: dict[str, Any]  # flat, as of when learning began
    model: Model
    state: CommitteeState
    nodes: list[NodeIndex]
    scaling: Scaling
    classes: Classes | None = None  # the labels of a classifier
    pairs: SeenPairs | None = None  # for `remember_seen`

    @property
    def bounded(self) -> bool:
        """Whether a mode has a limited number of nodes (eviction.py)."""
        return self.params["max_nodes"] is not None

    @property
    def leading(self) -> int:
        """Index of the member with the largest weight."""
        return int(self.state.weights.argmax())

    @property
    def leader(self) -> State:
        return self.state.members[self.leading]


def scaled_values(value: NDArray[np.float64], fitted: Fitted) -> NDArray[np.float64]:
    """The values in the method's units; EntryError if one is too far from the shift.

    The limit is in units of the leading member's current scale. It is far larger for a model that clips,
    which can adapt if the scale of the values changes.
    """
    scaled, (centre, farthest) = fitted.scaling.scaled(value), accepted(fitted)
    far = np.abs(scaled - centre) > farthest
    if far.any():
        limit, now = _limit(fitted), units(fitted)
        refuse(
            value,
            far,
            f"is more than {limit:g} times the scale {now.scale:g} away from {now.shift:g}",
            kind="too far",
            remedy="leave it out, clip it, or pass a fitting scaling=(shift, scale)",
        )
    return scaled


def accepted(fitted: Fitted) -> tuple[float, float]:
    """Centre and radius of the scaled values that are accepted."""
    if not fitted.model.likelihood.scaled:
        return 0.0, math.inf
    stream = fitted.leader.stream
    return float(stream.shift), _limit(fitted) * float(stream.scale)


def _limit(fitted: Fitted) -> float:
    return FARTHEST if fitted.params.get("clip") is None else FARTHEST_CLIPPED


def units(fitted: Fitted) -> Scaling:
    """The leading member's current scaling: the first one and all changes it has followed since."""
    (shift, scale), stream = fitted.scaling, fitted.leader.stream
    return Scaling(float(shift + scale * stream.shift), float(scale * stream.scale))


def with_room(fitted: Fitted, columns: Columns) -> tuple[Fitted, NDArray[np.int64], list[Segment]]:
    """Add all new ids. Return the grown model, the (n, K) node numbers, and the segments (eviction.py).

    On failure nothing is added. The state grows here, not in the update, so that ids and state agree as soon
    as the result is stored, and the update can work in place.
    """
    nodes, known = fitted.nodes, [len(each) for each in fitted.nodes]
    try:
        index = to_index(nodes, columns, add=True)
        wanted = np.array([len(each) for each in nodes])
        members = tuple(
            posterior.grow(state, member.network, member.prior, wanted)
            for state, member in zip(fitted.state.members, fitted.model.members, strict=True)
        )
        parts, rule, draws = [], fitted.model.rule, fitted.state.draws
        if fitted.bounded:
            size, entries = fitted.params["batch_size"], int(fitted.state.counts.entries)
            parts = segments(nodes, index, entries, size, at_once=rule is not None)
        if rule and draws:
            draws = events.with_room(draws, rule, wanted)
    except BaseException:  # out of memory, or Ctrl-C
        for each, n in zip(nodes, known, strict=True):
            each.truncate(n)
        raise
    return fitted._replace(state=fitted.state._replace(members=members, draws=draws)), index, parts


@contextmanager
def remembering(fitted: Fitted, index: NDArray[np.int64]) -> Iterator[None]:
    """Context for learning events: remembers the pairs of those learned, even if interrupted."""
    draws, pairs, rule = fitted.state.draws, fitted.pairs, fitted.model.rule
    if not draws or pairs is None or rule is None:
        yield
        return
    before = int(draws.events)
    try:
        yield
    finally:
        learned = index[: int(draws.events) - before]
        pairs.add(learned[:, fitted.params["remember_seen"]], learned[:, rule.over[0]])


def without(fitted: Fitted, mode: int, numbers: set[int]) -> Fitted:
    """The same model without some nodes of a mode: their ids and rows are removed."""
    keep = np.ones(len(fitted.nodes[mode]), bool)
    keep[list(numbers)] = False
    members = tuple(posterior.keep_rows(member, mode, keep) for member in fitted.state.members)
    nodes = [each.without(numbers) if m == mode else each for m, each in enumerate(fitted.nodes)]
    draws, pairs, rule = fitted.state.draws, fitted.pairs, fitted.model.rule
    if rule and draws:
        draws = events.without(draws, rule, mode, keep)
    whose = fitted.params.get("remember_seen")
    if pairs is not None and rule and mode in (whose, *rule.over):
        pairs = pairs.without(keep, of_first=mode == whose)
    state = fitted.state._replace(members=members, draws=draws)
    return fitted._replace(state=state, nodes=nodes, pairs=pairs)


def followed(fitted: Fitted, member: int) -> NDArray[np.int64]:
    """(3,) how many lasting changes of the values a member has found, by kind (follow.py)."""
    return fitted.state.members[member].stream.followed.copy()


def intervals(
    fitted: Fitted, predicted: Prediction, coverage: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Low and high ends of calibrated prediction intervals, in user units."""
    likelihood, quantile = fitted.model.likelihood, fitted.model.method.quantile
    if not likelihood.intervals or quantile is None:
        raise ValueError(
            f"a {likelihood.name} model predicts a {likelihood.mean_name}, which has no interval"
        )
    coverage = checked_coverage(coverage)
    low, high = (quantile(fitted.state, (1 + side * coverage) / 2) for side in (-1, 1))
    return likelihood.at_residual(low, predicted), likelihood.at_residual(high, predicted)


def checked_coverage(coverage: Any) -> float:
    coverage = plain(coverage)
    if not (is_number(coverage) and 0 < coverage < 1):
        raise ValueError(f"coverage is a probability between 0 and 1, got {coverage!r}")
    return coverage
