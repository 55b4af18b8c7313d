"""What an estimator has learned: the state of its method, and what gives it a meaning."""

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
    """Everything that learning changes, so that a reset or a load is one assignment."""

    params: dict[str, Any]  # as they were when learning began
    model: Model
    state: CommitteeState
    nodes: list[NodeIndex]
    scaling: Scaling
    classes: Classes | None = None  # the labels of a classifier
    pairs: SeenPairs | None = None  # of `remember_seen`

    @property
    def bounded(self) -> bool:
        """Whether a mode has a limit of nodes (eviction.py)."""
        return self.params["max_nodes"] is not None

    @property
    def leading(self) -> int:
        """The member of the greatest weight."""
        return int(self.state.weights.argmax())

    @property
    def leader(self) -> State:
        return self.state.members[self.leading]


def scaled_values(value: NDArray[np.float64], fitted: Fitted) -> NDArray[np.float64]:
    """The values as the method sees them; EntryError if one is too far from the shift.

    A model that clips can take far more: its scale may have been that of other values. It is the scale that
    the leading member has followed the values to.
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
    """Scaled values are accepted around the one up to the other."""
    if not fitted.model.likelihood.scaled:
        return 0.0, math.inf
    stream = fitted.leader.stream
    return float(stream.shift), _limit(fitted) * float(stream.scale)


def _limit(fitted: Fitted) -> float:
    return FARTHEST if fitted.params.get("clip") is None else FARTHEST_CLIPPED


def units(fitted: Fitted) -> Scaling:
    """What the leading member works in now: the first scaling, and what it has followed since."""
    (shift, scale), stream = fitted.scaling, fitted.leader.stream
    return Scaling(float(shift + scale * stream.shift), float(scale * stream.scale))


def with_room(fitted: Fitted, columns: Columns) -> tuple[Fitted, NDArray[np.int64], list[Segment]]:
    """The same with room for every id, the (n, K) node numbers, and where rows change their ids
    (eviction.py). If it fails, nothing was added.

    The state grows here and not in the update: once the result is stored, ids and state agree, and the
    update, which works in place, finds nothing left to add.
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
    """Around learning events: remember the pairs of those that were learned, also if it is interrupted."""
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
    """The same without some nodes of a mode: neither their ids nor their rows are left in it."""
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
    """(3,) how often a member has found that the values have changed for good (follow.py)."""
    return fitted.state.members[member].stream.followed.copy()


def intervals(
    fitted: Fitted, predicted: Prediction, coverage: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Low and high ends of the calibrated intervals of predictions in user units."""
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
