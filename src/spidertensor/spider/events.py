"""Streams of events, without zeros: after each event some that did not happen are learned as well.

mathematics.md section 16. An event is an entry of value 1. A negative is the same entry with the node of one
mode replaced by another that was seen before, and has the value 0. Which one depends on the seed of the model
and the number of the event alone, so cuts, resumes and engines agree; and all members of a committee learn
the same entries, or their predictions could not be compared.

This is a Method around the Method of a committee, in whose state `draws` is. Entries are made for a block of
events at a time, so memory does not grow with the length of a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Batch, Method, Prediction, Update, check_batch, joined
from spidertensor.spider import popularity
from spidertensor.spider.compiled import COMPILE, kernel
from spidertensor.spider.keyed import uniform
from spidertensor.spider.popularity import Popularity, before, node_at, set_times

M = TypeVar("M", bound=Method)

BLOCK = 9216  # entries that are made at once: events and their negatives


class Rule(NamedTuple):
    """How negatives are drawn.

    negatives: how many after each event
    over:      the modes whose nodes are replaced, by their numbers; negatives take turns if these are several
    power:     a node is drawn in proportion to how often it was in events so far, to this power, from 0 (all
               nodes alike) to 1
    """

    negatives: int
    over: tuple[int, ...]
    power: float = 0.0


class Draws(NamedTuple):
    """What drawing depends on, beside the seed."""

    events: NDArray[np.int64]  # that were learned
    seen: NDArray[np.int64]  # for each mode of the rule, the nodes that events have had: rows below this
    popularity: tuple[Popularity, ...]  # for each mode of the rule; () if all nodes are alike


def start(rule: Rule) -> Draws:
    n = len(rule.over)
    none = tuple(popularity.none_yet() for _ in range(n if rule.power else 0))
    return Draws(np.zeros((), np.int64), np.zeros(n, np.int64), none)


def with_room(draws: Draws, rule: Rule, nodes: NDArray[np.int64]) -> Draws:
    """The same for so many nodes in each mode of the model."""
    rooms = [int(nodes[mode]) for mode in rule.over]
    return draws._replace(popularity=tuple(map(popularity.grown, draws.popularity, rooms)))


def without(draws: Draws, rule: Rule, mode: int, keep: NDArray[np.bool_]) -> Draws:
    """The same without some nodes of a mode: those to keep move up."""
    seen, of = draws.seen.copy(), list(draws.popularity)
    for place in [place for place, each in enumerate(rule.over) if each == mode]:
        seen[place] = keep[: seen[place]].sum()
        if of:
            of[place] = popularity.of_times(of[place].times[: len(keep)][keep], rule.power)
    return draws._replace(seen=seen, popularity=tuple(of))


def restart(draws: Draws, rule: Rule, mode: int, rows: NDArray[np.int64]) -> None:
    """These rows of a mode get new nodes, which were never seen."""
    for of, each in zip(draws.popularity, rule.over, strict=False):
        if each == mode:
            popularity.forget(*of, rows, rule.power)


def trimmed(draws: Draws, rule: Rule, nodes: Sequence[int]) -> Draws:
    """Without room for more than so many nodes in each mode of the model, for a file."""
    of = zip(with_room(draws, rule, np.array(nodes)).popularity, rule.over, strict=False)
    cut = [Popularity(each.times[: nodes[mode]], each.tree[: nodes[mode]]) for each, mode in of]
    return draws._replace(popularity=tuple(cut))


def events(method: M, rule: Rule) -> M:
    """`method` is a committee of probit models. The values of a batch are all 1.

    An Update tells of each event what was predicted for it; its log evidence is that of the event and of its
    negatives, in sum.
    """

    def init(seed: int) -> Any:
        return method.init(seed)._replace(draws=start(rule))

    def update(state: Any, batch: Batch) -> tuple[Any, Update]:
        return _in_blocks(learn, rule, state, batch)

    def learn(state: Any, index: NDArray[np.int64]) -> tuple[Any, Update]:
        """A block of events, and their negatives."""
        entries = int(state.counts.entries)
        state = state._replace(draws=with_room(state.draws, rule, index.max(axis=0, initial=-1) + 1))
        made = _made(state.draws, rule, int(state.members[0].seed), index)
        try:
            after, update = method.update(state, made.batch)
        finally:  # an interrupt comes before these entries are learned, or when they are
            if int(state.counts.entries) == entries + len(made.batch.value):
                _commit(state.draws, rule, index)
        return after, _of_events(update, made.first)

    return replace(method, init=init, update=update)


class Around(NamedTuple):
    """The state of any method that learns events, and the draws beside it."""

    state: Any
    draws: Draws
    seed: NDArray[np.int64]


def around(method: Method, rule: Rule) -> Method:
    """The same for any method of binary values, such as a floor. With the same seed it learns the entries
    that a committee learns, so that the two can be compared."""

    def init(seed: int) -> Around:
        return Around(method.init(seed), start(rule), np.array(seed, np.int64))

    def update(state: Around, batch: Batch) -> tuple[Around, Update]:
        return _in_blocks(learn, rule, state, batch)

    def learn(state: Around, index: NDArray[np.int64]) -> tuple[Around, Update]:
        draws = with_room(state.draws, rule, index.max(axis=0, initial=-1) + 1)
        made = _made(draws, rule, int(state.seed), index)
        after, update = method.update(state.state, made.batch)
        _commit(draws, rule, index)
        return Around(after, draws, state.seed), _of_events(update, made.first)

    def predict(state: Around, index: NDArray[np.integer]) -> Prediction:
        return method.predict(state.state, index)

    return Method(init, update, predict, method.unit)


def _in_blocks(learn: Any, rule: Rule, state: Any, batch: Batch) -> tuple[Any, Update]:
    check_batch(batch, batch.index.shape[1])
    if not (batch.value == 1).all():
        raise ValueError("a model of events learns values of 1 only, and draws the others itself")
    updates = []
    size = max(1, BLOCK // (1 + rule.negatives))
    for first in range(0, max(len(batch.value), 1), size):
        state, update = learn(state, np.require(batch.index[first : first + size], np.int64, "C"))
        updates.append(update)
    return state, updates[0] if len(updates) == 1 else joined(updates)


class _Made(NamedTuple):
    batch: Batch  # events and negatives
    first: NDArray[np.int64]  # (n,) where in it the events are


def _made(draws: Draws, rule: Rule, key: int, index: NDArray[np.int64]) -> _Made:
    """The entries of a block of events."""
    first = int(draws.events)
    number = first + np.arange(len(index))[:, None]
    # (n, negatives) in the place of which of these modes a negative has another node: they take turns
    turn = (number * rule.negatives + np.arange(rule.negatives)) % len(rule.over)
    drawn = np.empty(turn.shape, np.int64)
    for place, mode in enumerate(rule.over):
        nodes, is_on = np.ascontiguousarray(index[:, mode]), turn == place
        if draws.popularity:
            draw_by_popularity(key, first, nodes, *draws.popularity[place], rule.power, is_on, drawn)
        else:
            draw_alike(key, first, nodes, draws.seen[place], is_on, drawn)
    made, value, at = with_negatives(index, np.array(rule.over, np.int64)[turn], drawn)
    return _Made(Batch(made, value), at)


def _commit(draws: Draws, rule: Rule, index: NDArray[np.int64]) -> None:
    """These events were learned."""
    draws.events[()] += len(index)
    np.maximum(draws.seen, index[:, list(rule.over)].max(axis=0, initial=-1) + 1, out=draws.seen)
    for of, mode in zip(draws.popularity, rule.over, strict=False):
        popularity.count_in(*of, np.ascontiguousarray(index[:, mode]), rule.power)


@kernel(**COMPILE)
def draw_alike(key, first, nodes, seen, is_on, drawn):
    """For events from number `first` on with these `nodes`: any other node seen so far, -1 if there is none,
    into drawn (n, negatives) where it `is_on`."""
    for i in range(len(nodes)):
        seen = max(seen, nodes[i] + 1)
        for j in range(drawn.shape[1]):
            if is_on[i, j]:
                node = np.int64(-1)
                if seen > 1:
                    node = np.int64(uniform(key, first + i, j) * (seen - 1))
                    node += node >= nodes[i]
                drawn[i, j] = node


@kernel(**COMPILE)
def draw_by_popularity(key, first, nodes, times, tree, power, is_on, drawn):
    """The same by popularity, in which these events count, while they are drawn."""
    for i in range(len(nodes)):
        own = set_times(times, tree, nodes[i], power, times[nodes[i]] + 1)
        others, below = before(tree, len(tree)) - own, before(tree, nodes[i])
        for j in range(drawn.shape[1]):
            if is_on[i, j]:
                node = np.int64(-1)
                if others > 0:
                    place = min(np.int64(uniform(key, first + i, j) * others), others - 1)
                    node = node_at(tree, place + own * (place >= below))
                drawn[i, j] = node
    for i in range(len(nodes)):  # they may not be learned after all
        set_times(times, tree, nodes[i], power, times[nodes[i]] - 1)


@kernel(**COMPILE)
def with_negatives(index, modes, drawn):
    """Each event and, behind it, its negatives: their index and value, and (n,) where the events are.

    modes, drawn (n, negatives): the mode that has another node, and that node; -1: there is none
    """
    n, negatives = drawn.shape
    size = n
    for i in range(n):
        for j in range(negatives):
            size += drawn[i, j] >= 0
    made, value, first = np.empty((size, index.shape[1]), np.int64), np.zeros(size), np.empty(n, np.int64)
    at = 0
    for i in range(n):
        first[i] = at
        made[at] = index[i]
        value[at] = 1.0
        at += 1
        for j in range(negatives):
            if drawn[i, j] >= 0:
                made[at] = index[i]
                made[at, modes[i, j]] = drawn[i, j]
                at += 1
    return made, value, first


def _of_events(update: Update, first: NDArray[np.int64]) -> Update:
    """The Update of entries as one of their events."""
    mean, var, noise = (part[first] for part in update[:3])
    log_evidence = np.add.reduceat(update.log_evidence, first) if len(first) else update.log_evidence
    return update._replace(mean=mean, var=var, noise=noise, log_evidence=log_evidence)
