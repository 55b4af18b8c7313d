"""Streams of events, without zeros: after each event some negatives are learned: mathematics.md section 16.

An event is an entry of value 1. A negative is the same entry with value 0 and the node of one mode replaced
by another one seen before. Which one depends only on the model's seed, the event's number and, in several
passes (event_passes.py), the pass, so cuts, resumes and engines agree. All members of a committee learn the
same entries, so their predictions can be compared.

`events` wraps the Method of a committee, whose state holds `draws`. Entries are made for a block of events at
a time, so memory does not grow with the length of a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import IDS_ONLY, Bags, Batch, Method, Prediction, Update, check_batch, joined
from spidertensor.spider import popularity
from spidertensor.spider.compiled import COMPILE, kernel
from spidertensor.spider.event_bags import EventBags
from spidertensor.spider.keyed import uniform
from spidertensor.spider.popularity import Popularity, before, node_at, set_times

M = TypeVar("M", bound=Method)

BLOCK_ENTRIES = 9216  # events and their negatives that are made at once


class Rule(NamedTuple):
    """How negatives are drawn.

    negatives: number of negatives after each event
    over:      numbers of the modes whose nodes are replaced; negatives take turns among several
    power:     a node is drawn in proportion to this power of its number of events so far, from 0 (uniform)
               to 1
    """

    negatives: int
    over: tuple[int, ...]
    power: float = 0.0


class Draws(NamedTuple):
    """What draws depend on besides the seed."""

    events: NDArray[np.int64]  # number of events learned
    seen: NDArray[np.int64]  # per mode of the rule, the number of nodes seen in events: rows below this
    popularity: tuple[Popularity, ...]  # per mode of the rule; () if draws are uniform


def start(rule: Rule) -> Draws:
    n = len(rule.over)
    none = tuple(popularity.empty() for _ in range(n if rule.power else 0))
    return Draws(np.zeros((), np.int64), np.zeros(n, np.int64), none)


def with_room(draws: Draws, rule: Rule, nodes: NDArray[np.int64]) -> Draws:
    """The same draws with room for this many nodes in each mode of the model."""
    rooms = [int(nodes[mode]) for mode in rule.over]
    return draws._replace(popularity=tuple(map(popularity.grown, draws.popularity, rooms)))


def without(draws: Draws, rule: Rule, mode: int, keep: NDArray[np.bool_]) -> Draws:
    """The same draws without the dropped nodes of a mode; rows of kept nodes move up."""
    seen, of = draws.seen.copy(), list(draws.popularity)
    for place in [place for place, each in enumerate(rule.over) if each == mode]:
        seen[place] = keep[: seen[place]].sum()
        if of:
            of[place] = popularity.from_times(of[place].times[: len(keep)][keep], rule.power)
    return draws._replace(seen=seen, popularity=tuple(of))


def restart(draws: Draws, rule: Rule, mode: int, rows: NDArray[np.int64]) -> None:
    """Reset these rows of a mode for new nodes."""
    for of, each in zip(draws.popularity, rule.over, strict=False):
        if each == mode:
            popularity.forget(*of, rows, rule.power)


def trimmed(draws: Draws, rule: Rule, nodes: Sequence[int]) -> Draws:
    """The same draws with exactly this many nodes in each mode of the model, for a file."""
    of = zip(with_room(draws, rule, np.array(nodes)).popularity, rule.over, strict=False)
    cut = [Popularity(each.times[: nodes[mode]], each.tree[: nodes[mode]]) for each, mode in of]
    return draws._replace(popularity=tuple(cut))


def events(method: M, rule: Rule, attributes: EventBags | None = None) -> M:
    """Wrap `method`, a committee of probit models, to learn events and draw their negatives.

    attributes: makes the bags of negatives, if the model has attributes

    All values of a batch are 1. An Update reports each event's prediction; its log evidence is the sum over
    the event and its negatives.
    """

    def init(seed: int) -> Any:
        return method.init(seed)._replace(draws=start(rule))

    def update(state: Any, batch: Batch) -> tuple[Any, Update]:
        return _in_blocks(learn, rule, state, batch)

    def learn(state: Any, block: Batch) -> tuple[Any, Update]:
        """Learn a block of events and their negatives."""
        entries, index = int(state.counts.entries), block.index
        state = state._replace(draws=with_room(state.draws, rule, index.max(axis=0, initial=-1) + 1))
        batch = made(state.draws, rule, int(state.members[0].seed), index).like(block, attributes)
        try:
            after, update = method.update(state, batch)
        finally:  # an interrupt comes before these entries are learned or after all of them are
            if int(state.counts.entries) == entries + len(batch.value):
                commit(state.draws, rule, index)
        return after, update_of_events(update, batch.value)

    return replace(method, init=init, update=update)


class Around(NamedTuple):
    """State of `around`: that of the wrapped method, and the draws."""

    state: Any
    draws: Draws
    seed: NDArray[np.int64]


def around(method: Method, rule: Rule) -> Method:
    """`events` for any method of binary values, such as a floor.

    With the same seed it learns the same entries as a committee, so the two can be compared.
    """

    def init(seed: int) -> Around:
        return Around(method.init(seed), start(rule), np.array(seed, np.int64))

    def update(state: Around, batch: Batch) -> tuple[Around, Update]:
        return _in_blocks(learn, rule, state, batch)

    def learn(state: Around, block: Batch) -> tuple[Around, Update]:
        index = block.index
        draws = with_room(state.draws, rule, index.max(axis=0, initial=-1) + 1)
        batch = made(draws, rule, int(state.seed), index).like(block, None)
        after, update = method.update(state.state, batch)
        commit(draws, rule, index)
        return Around(after, draws, state.seed), update_of_events(update, batch.value)

    def predict(state: Around, index: NDArray[np.integer], bags: Bags | None = None) -> Prediction:
        return method.predict(state.state, index, bags)

    return Method(init, update, predict, method.unit)


def _in_blocks(learn: Any, rule: Rule, state: Any, batch: Batch) -> tuple[Any, Update]:
    if batch.bags is None:
        check_batch(batch, batch.index.shape[1], weighted=True)
    if not (batch.value == 1).all():
        raise ValueError("a model of events learns only values of 1: it draws the zeros itself")
    updates = []
    size = max(1, BLOCK_ENTRIES // (1 + rule.negatives))
    for first in range(0, max(len(batch.value), 1), size):
        block = batch.part(first, min(first + size, len(batch.value)))
        block = block._replace(index=np.require(block.index, np.int64, "C"))
        state, update = learn(state, block)
        updates.append(update)
    return state, updates[0] if len(updates) == 1 else joined(updates)


class Made(NamedTuple):
    """Events and their negatives, without attributes and weights."""

    batch: Batch
    event: NDArray[np.int64]  # of each entry of the batch
    replaced: NDArray[np.int64]  # the mode whose node was drawn, -1 for an event
    first: int  # the number of the first event

    def like(self, events: Batch, attributes: EventBags | None) -> Batch:
        """The entries with attributes and weights, if these events have them."""
        batch = self.batch
        if events.weight is not None:
            batch = batch._replace(weight=events.weight[self.event])
        if events.bags is None:
            return batch
        if attributes is None:
            raise ValueError(IDS_ONLY)
        made = attributes.made(events.bags, self.event, self.replaced, batch.index, self.first)
        return batch._replace(bags=made)


def made(draws: Draws, rule: Rule, key: int, index: NDArray[np.int64], visit: int = 0) -> Made:
    """Make the entries of a block of events: the events and their negatives.

    visit: how often these events were learned before. If they were, `draws` counts them already
    """
    first, n = int(draws.events), rule.negatives
    number = first + np.arange(len(index))[:, None]
    # (n, negatives) which mode of rule.over gets another node: negatives take turns
    turn = (number * n + np.arange(n)) % len(rule.over)
    drawn = np.empty(turn.shape, np.int64)
    for place, mode in enumerate(rule.over):
        nodes, is_on = np.ascontiguousarray(index[:, mode]), turn == place
        if draws.popularity:
            of = draws.popularity[place]
            draw_by_popularity(key, first, nodes, *of, rule.power, is_on, drawn, visit)
        else:
            draw_alike(key, first, nodes, draws.seen[place], is_on, drawn, visit)
    modes = np.array(rule.over, np.int64)[turn]
    entries, value = with_negatives(index, modes, drawn)
    event = np.repeat(np.arange(len(index)), 1 + (drawn >= 0).sum(axis=1))
    replaced = np.full(len(value), -1)
    replaced[value == 0] = modes[drawn >= 0]
    return Made(Batch(entries, value), event, replaced, first)


def commit(draws: Draws, rule: Rule, index: NDArray[np.int64]) -> None:
    """Count these events as learned."""
    draws.events[()] += len(index)
    np.maximum(draws.seen, index[:, list(rule.over)].max(axis=0, initial=-1) + 1, out=draws.seen)
    for of, mode in zip(draws.popularity, rule.over, strict=False):
        popularity.count_in(*of, np.ascontiguousarray(index[:, mode]), rule.power)


@kernel(**COMPILE)
def draw_alike(key, first, nodes, seen, is_on, drawn, visit):
    """Draw uniformly among the other nodes seen so far; -1 if there is none.

    Fills drawn (n, negatives) where `is_on`, for events from number `first` on that have these `nodes`.
    visit: how often they were learned before; other draws each time
    """
    at = visit * drawn.shape[1]
    for i in range(len(nodes)):
        seen = max(seen, nodes[i] + 1)
        for j in range(drawn.shape[1]):
            if is_on[i, j]:
                node = np.int64(-1)
                if seen > 1:
                    node = np.int64(uniform(key, first + i, at + j) * (seen - 1))
                    node += node >= nodes[i]
                drawn[i, j] = node


@kernel(**COMPILE)
def draw_by_popularity(key, first, nodes, times, tree, power, is_on, drawn, visit):
    """`draw_alike`, but by popularity; each event counts for its own draws and those of later events."""
    at, count = visit * drawn.shape[1], np.int64(visit == 0)
    for i in range(len(nodes)):
        own = set_times(times, tree, nodes[i], power, times[nodes[i]] + count)
        others, below = before(tree, len(tree)) - own, before(tree, nodes[i])
        for j in range(drawn.shape[1]):
            if is_on[i, j]:
                node = np.int64(-1)
                if others > 0:
                    place = min(np.int64(uniform(key, first + i, at + j) * others), others - 1)
                    node = node_at(tree, place + own * (place >= below))
                drawn[i, j] = node
    for i in range(len(nodes)):  # undo the counts: the events may not be learned after all
        set_times(times, tree, nodes[i], power, times[nodes[i]] - count)


@kernel(**COMPILE)
def with_negatives(index, modes, drawn):
    """Index and value of each event followed by its negatives.

    modes, drawn (n, negatives): the mode whose node is replaced, and by which node; -1: no negative
    """
    n, negatives = drawn.shape
    size = n
    for i in range(n):
        for j in range(negatives):
            size += drawn[i, j] >= 0
    made, value = np.empty((size, index.shape[1]), np.int64), np.zeros(size)
    at = 0
    for i in range(n):
        made[at] = index[i]
        value[at] = 1.0
        at += 1
        for j in range(negatives):
            if drawn[i, j] >= 0:
                made[at] = index[i]
                made[at, modes[i, j]] = drawn[i, j]
                at += 1
    return made, value


def update_of_events(update: Update, value: NDArray[np.float64]) -> Update:
    """The Update of events and negatives, which have these values, reduced to the events."""
    first = np.flatnonzero(value == 1)
    mean, var, noise = (part[first] for part in update[:3])
    log_evidence = np.add.reduceat(update.log_evidence, first) if len(first) else update.log_evidence
    return update._replace(mean=mean, var=var, noise=noise, log_evidence=log_evidence)
