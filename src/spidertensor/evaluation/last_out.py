"""Two protocols for events, which score the rank of an event's node.

    last_out           hold out the last event of each user, learn all others in one pass, then rank the node
                       of the held-out event among those that the user has not had
    prequential_ranks  one pass over a stream; rank the node of every n-th event before learning it

An event is an entry with the value 1. The mode `over` is ranked; the other modes are the context. The index
may have a further column that is none of them, the row of a table (with_attributes.py): `n_modes` says so.
The user is the node of the first mode other than `over`. Candidates are the nodes learned so far, without
those that the same context has had, because a recommendation would leave them out. So an event that
repeats a learned one is not scored, and an event whose node was never learned has rank inf.

Rows are dicts of plain numbers as in protocols.py, one for each kind of ranking:

    test                    "full": among all candidates. "sampled": among 99 random ones; every method looks
                            better with so few rivals, and the order of methods may differ
    metric, score           "hr_10"
    hr_10, ndcg_10, recall_20, mrr
                            see ranking_metrics.py; with one wanted node, recall@k equals HR@k
    coverage_10             share of nodes that appear in any top 10; None for "sampled"
    n_entries, n_scored     events learned, and events ranked
    skipped                 events at the start of a stream that are not scored: a tenth
    seconds, entries_per_second, rejected, refused, clipped, members
                            as in protocols.py: learning only, without compiling and ranking
    ranking_seconds         spent predicting and ranking
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.evaluation import ranking_metrics
from spidertensor.evaluation.protocols import SKIPPED_SHARE, NotLearned, Row, one_pass, progress
from spidertensor.method import Batch, Method
from spidertensor.spider.committee import cores
from spidertensor.spider.crew import in_threads
from spidertensor.spider.quick_means import one_blas_thread

N_SAMPLED = 99  # candidates of a sampled rank
BLOCK_PREDICTIONS = 2**20  # made at once: about 50 MB
EVERY_EVENTS = 100  # prequential: rank the first of so many events

# (u, K) events -> (u, nodes) scores of every node in place of the event's own; higher is better
Scorer = Callable[[NDArray[np.int64]], NDArray[np.float64]]


class LastOut(NamedTuple):
    """Events in the order of learning, and held-out events, at most one per user."""

    train: Batch
    held: NDArray[np.int64]  # (u, K)


class Ranked(NamedTuple):
    full: NDArray[np.float64]  # (u,) ranks among all candidates
    sampled: NDArray[np.float64]  # (u,) ranks among N_SAMPLED of them
    coverage: float  # share of learned nodes that appear in any full top ten


def split_last(
    events: Batch, over: int, *, shuffled_by: int | None = None, n_modes: int | None = None
) -> LastOut:
    """Hold out the last event of each user who has at least two. `events` are in time order.

    A last event that repeats an earlier one is learned instead. shuffled_by: a
    seed to shuffle the events to learn; it does not affect which events are held out.
    """
    user = events.index[:, _user_mode(over)]
    n = len(user)
    _, from_end, counts = np.unique(user[::-1], return_index=True, return_counts=True)
    last = n - 1 - from_end[counts > 1]
    first = np.unique(events.index[:, :n_modes], axis=0, return_index=True)[1]
    last = np.intersect1d(last, first)  # without events that repeat an earlier one
    learned = np.delete(np.arange(n), last)
    if shuffled_by is not None:
        learned = np.random.default_rng(shuffled_by).permutation(learned)
    return LastOut(Batch(events.index[learned], events.value[learned]), events.index[last])


def numbers_by_arrival(learned: NDArray[np.int64], n_nodes: int) -> NDArray[np.int64]:
    """(n_nodes,) new numbers of nodes, in the order of their first event; nodes without events come last.

    Estimators number ids in this way. A model of events draws negatives from the nodes up to the highest
    number so far; with the numbers of a file it could draw nodes of the future.
    """
    nodes, first = np.unique(learned, return_index=True)
    known = nodes[np.argsort(first)]
    order = np.concatenate([known, np.setdiff1d(np.arange(n_nodes), known)])
    return np.argsort(order)


def _renumbered(index: NDArray[np.int64], over: int, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    index = index.copy()
    index[:, over] = numbers[index[:, over]]
    return index


def rank_held(
    scorer: Scorer,
    split: LastOut,
    over: int,
    n_nodes: int,
    *,
    seed: int = 0,
    others: int = N_SAMPLED,
    n_modes: int | None = None,
) -> Ranked:
    """Rank the nodes of held-out events among all learned nodes that their contexts have not had.

    Works in blocks of events, so memory does not grow with the number of users.
    """
    learned = np.zeros(n_nodes, bool)
    learned[split.train.index[:, over]] = True
    had = _Had(np.concatenate([split.train.index, split.held])[:, :n_modes], over)
    rng = np.random.default_rng(seed)
    n_learned, size = len(split.train.value), max(BLOCK_PREDICTIONS // n_nodes, 1)
    full, sampled, listed = [], [], [np.empty(0, np.int64)]
    for start in range(0, len(split.held), size):
        held = split.held[start : start + size]
        candidates = np.tile(learned, (len(held), 1))
        for row in range(len(held)):
            candidates[row, had.before(n_learned + start + row, n_learned)] = False
        scores, wanted = scorer(held), held[:, over]
        listed.append(ranking_metrics.best(scores, candidates, ranking_metrics.HITS_TOP))
        for ranks, among in ((full, candidates), (sampled, _drawn(candidates, wanted, others, rng))):
            found = ranking_metrics.ranks(scores, wanted, among)
            ranks.append(np.where(learned[wanted], found, np.inf))
    coverage = len(np.unique(np.concatenate(listed))) / max(int(learned.sum()), 1)
    return Ranked(*(np.concatenate([np.empty(0), *each]) for each in (full, sampled)), coverage=coverage)


def method_scorer(method: Method, state: Any, over: int, nodes: NDArray[np.int64]) -> Scorer:
    """Score nodes by mean / sqrt(1 + var), which increases with their probability."""

    def scores(events: NDArray[np.int64]) -> NDArray[np.float64]:
        index = np.repeat(events, len(nodes), axis=0)
        index[:, over] = np.tile(nodes, len(events))
        mean, var, _ = method.predict(state, index)
        return (mean / np.sqrt(1 + var)).reshape(len(events), len(nodes))

    if method.quick is None:
        return scores
    quick = method.quick

    def quick_scores(events: NDArray[np.int64]) -> NDArray[np.float64]:
        def of(event: int) -> NDArray[np.float64]:
            numbers = [nodes if mode == over else node for mode, node in enumerate(events[event, :, None])]
            mean, var, _ = quick(state, numbers)
            return mean / np.sqrt(1 + var)

        with one_blas_thread():
            return np.array(in_threads(of, len(events), cores()))

    return quick_scores


def last_out(
    method: Method,
    events: Batch,
    *,
    over: int,
    n_nodes: int,
    batch_size: int = 256,
    seed: int = 0,
    shuffled: bool = False,
    n_modes: int | None = None,
) -> Iterator[Row]:
    """Learn all but the last event of each user, in time order or shuffled; rank the held-out events.

    events:  in time order
    n_nodes: number of nodes of the mode `over`
    """
    train, held = split_last(events, over, shuffled_by=seed if shuffled else None, n_modes=n_modes)
    numbers = numbers_by_arrival(train.index[:, over], n_nodes)
    learned = Batch(_renumbered(train.index, over, numbers), train.value)
    split = LastOut(learned, _renumbered(held, over, numbers))
    lost, step = NotLearned(), None
    for step in one_pass(method, split.train, batch_size, seed, 1):
        lost = lost.plus(step.update)
    assert step is not None  # a pass over no entries raises
    began = perf_counter()
    n_learned = int(learned.index[:, over].max(initial=-1)) + 1
    of_learned = method_scorer(method, step.state, over, np.arange(n_learned))

    def scorer(events: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.pad(of_learned(events), ((0, 0), (0, n_nodes - n_learned)), constant_values=-np.inf)

    ranked = rank_held(scorer, split, over, n_nodes, seed=seed, n_modes=n_modes)
    seconds = perf_counter() - began
    done = progress(step, lost, n_scored=len(split.held), skipped=0)
    yield _scores("full", ranked.full, ranked.coverage) | done | {"ranking_seconds": seconds}
    yield _scores("sampled", ranked.sampled, None) | done | {"ranking_seconds": seconds}


def prequential_ranks(
    method: Method,
    stream: Batch,
    *,
    over: int,
    seed: int = 0,
    every: int = EVERY_EVENTS,
    n_modes: int | None = None,
) -> Iterator[Row]:
    """Learn `stream` in batches of `every` events; rank the first event of each batch before learning it.

    The first tenth of the stream, and at least one batch, is learned but not scored.
    """
    if method.unit == "all":
        raise ValueError("a static method has no prequential ranks, because it needs all entries at once")
    n_nodes = int(stream.index[:, over].max(initial=-1)) + 1
    index = _renumbered(stream.index, over, numbers_by_arrival(stream.index[:, over], n_nodes))
    node, had, seen = index[:, over], _Had(index[:, :n_modes], over), np.zeros(n_nodes, bool)
    skipped = int(SKIPPED_SHARE * len(index))
    ranks, listed, seconds, lost, step = [], [np.empty(0, np.int64)], 0.0, NotLearned(), None
    n_batches = -(-len(index) // every)  # as many rows, so that none are learned together
    for step in one_pass(method, Batch(index, stream.value), every, seed, n_batches):
        lost = lost.plus(step.update)
        next_ = step.n_entries
        seen[node[next_ - len(step.update.mean) : next_]] = True
        if step.last or next_ < skipped:
            continue
        began = perf_counter()
        candidates = seen.copy()
        past = had.before(next_, next_)
        candidates[past] = False
        if node[next_] not in past:
            rank, best = _rank_one(method, step.state, index[next_], over, np.flatnonzero(candidates))
            ranks.append(rank)
            listed.append(best)
        seconds += perf_counter() - began
    assert step is not None  # a pass over no entries raises
    coverage = len(np.unique(np.concatenate(listed))) / max(int(seen.sum()), 1)
    done = progress(step, lost, n_scored=len(ranks), skipped=skipped)
    yield _scores("full", np.array(ranks), coverage) | done | {"ranking_seconds": seconds}


def _rank_one(
    method: Method, state: Any, event: NDArray[np.int64], over: int, nodes: NDArray[np.int64]
) -> tuple[float, NDArray[np.int64]]:
    """The rank of the event's node among `nodes`, and the ten best nodes."""
    scores, every = method_scorer(method, state, over, nodes)(event[None]), np.ones((1, len(nodes)), bool)
    best = nodes[ranking_metrics.best(scores, every, ranking_metrics.HITS_TOP)]
    place = np.flatnonzero(nodes == event[over])
    if not len(place):
        return float("inf"), best
    return float(ranking_metrics.ranks(scores, place, every)[0]), best


class _Had:
    """Looks up which nodes a context has had so far."""

    def __init__(self, index: NDArray[np.int64], over: int) -> None:
        self.node, self.context = index[:, over], np.zeros(len(index), np.int64)
        for column in np.delete(index, over, axis=1).T:
            # renumbered after each mode: the product of all mode sizes could overflow
            code = self.context * (column.max(initial=0) + 1) + column
            self.context = np.unique(code, return_inverse=True)[1]
        self.order = np.argsort(self.context, kind="stable")
        self.ends = np.cumsum(np.bincount(self.context))

    def before(self, event: int, limit: int) -> NDArray[np.int64]:
        """The nodes that the context of an event had before event number `limit`."""
        context = self.context[event]
        own = self.order[self.ends[context - 1] if context else 0 : self.ends[context]]
        return self.node[own[: np.searchsorted(own, limit)]]


def _user_mode(over: int) -> int:
    return 1 if over == 0 else 0


def _drawn(
    candidates: NDArray[np.bool_], wanted: NDArray[np.int64], others: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw up to `others` candidates per row, without the wanted one."""
    left_out = ~candidates
    left_out[np.arange(len(wanted)), wanted] = True
    keys = np.where(left_out, 2.0, rng.random(candidates.shape))
    others = min(others, keys.shape[1])
    chosen = np.argpartition(keys, others - 1, axis=1)[:, :others]
    drawn = np.zeros_like(candidates)
    np.put_along_axis(drawn, chosen, True, axis=1)
    return drawn & ~left_out


def _scores(test: str, ranks: NDArray[np.float64], coverage: float | None) -> Row:
    scores = ranking_metrics.scores_of(ranks)
    first = next(iter(scores))
    return {"test": test, "metric": first, "score": scores[first], **scores, "coverage_10": coverage}
