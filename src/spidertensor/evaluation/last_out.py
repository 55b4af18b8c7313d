"""Two protocols for events, which say only what happened: where does the node of an event rank?

    last_out           the last event of each user is held out and all others are learned, one pass; then the
                       node of the held-out event is ranked among those that the user has not had
    prequential_ranks  one pass over a stream; of every n-th event the node is ranked before it is learned

An event is an entry with the value 1. Ranked is one of its modes, `over`; the other modes are its context.
The user is the node of the first mode that is not `over`. Candidates are the nodes that were learned by then,
but not those that the same context has had, because a recommendation would leave them out. So an event that
repeats a learned one is not scored, and one whose node was never learned is never found: its rank is inf.

Rows are dicts of plain numbers as those of protocols.py, one for each way to rank:

    test                    "full": among all candidates. "sampled": among 99 of them, drawn by seed; with so
                            few rivals every method looks better, and methods may even change places
    metric, score           "hr_10"
    hr_10, ndcg_10, recall_20, mrr
                            see ranking_metrics.py; with one node asked for, recall@k is HR@k
    coverage_10             full only, else None: share of the nodes that are among the first 10 of anyone
    n_entries, n_scored     events learned, and events ranked
    skipped                 prequentially, events at the start that are not scored: a tenth
    seconds, entries_per_second, rejected, refused, clipped, members
                            as in protocols.py: learning alone, no compiling, no ranking
    ranking_seconds         spent in `predict` and in ranking
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.evaluation import ranking_metrics
from spidertensor.evaluation.protocols import SKIPPED_SHARE, Lost, Row, one_pass, progress
from spidertensor.method import Batch, Method

OTHERS = 99  # drawn for a sampled rank
BLOCK = 2**20  # predictions at a time: some 50 MB
EVERY = 100  # events: prequentially, the first of so many is ranked

# (u, K) events -> (u, nodes): how each node would score in the place of theirs; greater is better
Scorer = Callable[[NDArray[np.int64]], NDArray[np.float64]]


class LastOut(NamedTuple):
    """Events in the order in which they are learned, and those held out, at most one of a user."""

    train: Batch
    held: NDArray[np.int64]  # (u, K)


class Ranked(NamedTuple):
    full: NDArray[np.float64]  # (u,) ranks among all candidates
    sampled: NDArray[np.float64]  # (u,) ranks among OTHERS of them
    coverage: float  # share of the learned nodes that are in anyone's first ten of all


def split_last(events: Batch, over: int, *, shuffled_by: int | None = None) -> LastOut:
    """Hold out the last event of each user who has at least two. `events` are in time order.

    A user whose last event repeats an earlier one is not asked, and that event is learned. shuffled_by: a
    seed that shuffles what is learned; which events are held out does not depend on it.
    """
    user = events.index[:, _user_mode(over)]
    n = len(user)
    _, from_end, counts = np.unique(user[::-1], return_index=True, return_counts=True)
    last = n - 1 - from_end[counts > 1]
    first = np.unique(events.index, axis=0, return_index=True)[1]
    last = np.intersect1d(last, first)  # an event that is not the first of its kind is a repeat
    learned = np.delete(np.arange(n), last)
    if shuffled_by is not None:
        learned = np.random.default_rng(shuffled_by).permutation(learned)
    return LastOut(Batch(events.index[learned], events.value[learned]), events.index[last])


def as_they_come(learned: NDArray[np.int64], n_nodes: int) -> NDArray[np.int64]:
    """(n_nodes,) new numbers of nodes, in the order in which they are first learned, the others behind them.

    So do estimators number ids. A model of events draws its negatives from the nodes below the highest number
    so far; with the numbers of a file it would draw nodes that are still to come.
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
    scorer: Scorer, split: LastOut, over: int, n_nodes: int, *, seed: int = 0, others: int = OTHERS
) -> Ranked:
    """Where the nodes of the held-out events rank among all learned ones that their contexts have not had.

    A block of events at a time, so memory does not grow with the number of users.
    """
    learned = np.zeros(n_nodes, bool)
    learned[split.train.index[:, over]] = True
    had = _Had(np.concatenate([split.train.index, split.held]), over)
    rng = np.random.default_rng(seed)
    n_learned, size = len(split.train.value), max(BLOCK // n_nodes, 1)
    full, sampled, listed = [], [], [np.empty(0, np.int64)]
    for start in range(0, len(split.held), size):
        held = split.held[start : start + size]
        candidates = np.tile(learned, (len(held), 1))
        for row in range(len(held)):
            candidates[row, had.before(n_learned + start + row, n_learned)] = False
        scores, wanted = scorer(held), held[:, over]
        listed.append(ranking_metrics.best(scores, candidates, ranking_metrics.HITS))
        for ranks, among in ((full, candidates), (sampled, _drawn(candidates, wanted, others, rng))):
            found = ranking_metrics.ranks(scores, wanted, among)
            ranks.append(np.where(learned[wanted], found, np.inf))
    coverage = len(np.unique(np.concatenate(listed))) / max(int(learned.sum()), 1)
    return Ranked(*(np.concatenate([np.empty(0), *each]) for each in (full, sampled)), coverage=coverage)


def scorer_of(method: Method, state: Any, over: int, nodes: NDArray[np.int64]) -> Scorer:
    """The given nodes by their probability, which rises with mean / sqrt(1 + var)."""

    def scores(events: NDArray[np.int64]) -> NDArray[np.float64]:
        index = np.repeat(events, len(nodes), axis=0)
        index[:, over] = np.tile(nodes, len(events))
        mean, var, _ = method.predict(state, index)
        return (mean / np.sqrt(1 + var)).reshape(len(events), len(nodes))

    return scores


def last_out(
    method: Method,
    events: Batch,
    *,
    over: int,
    n_nodes: int,
    batch_size: int = 256,
    seed: int = 0,
    shuffled: bool = False,
) -> Iterator[Row]:
    """Learn all but the last event of each user, in time order or shuffled by seed; rank what was held out.

    events:  in time order
    n_nodes: how many the mode `over` has
    """
    train, held = split_last(events, over, shuffled_by=seed if shuffled else None)
    numbers = as_they_come(train.index[:, over], n_nodes)
    learned = Batch(_renumbered(train.index, over, numbers), train.value)
    split = LastOut(learned, _renumbered(held, over, numbers))
    lost, step = Lost(), None
    for step in one_pass(method, split.train, batch_size, seed, 1):
        lost = lost.and_of(step.update)
    assert step is not None  # a pass over no entries raises
    began = perf_counter()
    scorer = scorer_of(method, step.state, over, np.arange(n_nodes))
    ranked = rank_held(scorer, split, over, n_nodes, seed=seed)
    seconds = perf_counter() - began
    done = progress(step, lost, n_scored=len(split.held), skipped=0)
    yield _scores("full", ranked.full, ranked.coverage) | done | {"ranking_seconds": seconds}
    yield _scores("sampled", ranked.sampled, None) | done | {"ranking_seconds": seconds}


def prequential_ranks(
    method: Method, stream: Batch, *, over: int, seed: int = 0, every: int = EVERY
) -> Iterator[Row]:
    """Learn `stream` in batches of `every` events; the first of each is ranked before the batch is learned.

    The first tenth of the stream, and at least one batch, is learned but not scored.
    """
    if method.unit == "all":
        raise ValueError("a static method ranks nothing on the way: it has no prequential ranks")
    n_nodes = int(stream.index[:, over].max(initial=-1)) + 1
    index = _renumbered(stream.index, over, as_they_come(stream.index[:, over], n_nodes))
    node, had, seen = index[:, over], _Had(index, over), np.zeros(n_nodes, bool)
    skipped = int(SKIPPED_SHARE * len(index))
    ranks, listed, seconds, lost, step = [], [np.empty(0, np.int64)], 0.0, Lost(), None
    for step in one_pass(method, Batch(index, stream.value), every, seed, 1):
        lost = lost.and_of(step.update)
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
    """The rank of the event's node among `nodes`, and the best ten of these."""
    scores, every = scorer_of(method, state, over, nodes)(event[None]), np.ones((1, len(nodes)), bool)
    best = nodes[ranking_metrics.best(scores, every, ranking_metrics.HITS)]
    place = np.flatnonzero(nodes == event[over])
    if not len(place):
        return float("inf"), best
    return float(ranking_metrics.ranks(scores, place, every)[0]), best


class _Had:
    """Which nodes a context has had before: the events of each context, in their order."""

    def __init__(self, index: NDArray[np.int64], over: int) -> None:
        self.node, self.context = index[:, over], np.zeros(len(index), np.int64)
        for column in np.delete(index, over, axis=1).T:
            # numbered anew after each mode, so that the product of all their sizes is never needed
            code = self.context * (column.max(initial=0) + 1) + column
            self.context = np.unique(code, return_inverse=True)[1]
        self.order = np.argsort(self.context, kind="stable")
        self.ends = np.cumsum(np.bincount(self.context))

    def before(self, event: int, limit: int) -> NDArray[np.int64]:
        """The nodes that the context of an event has had in the events before number `limit`."""
        context = self.context[event]
        own = self.order[self.ends[context - 1] if context else 0 : self.ends[context]]
        return self.node[own[: np.searchsorted(own, limit)]]


def _user_mode(over: int) -> int:
    return 1 if over == 0 else 0


def _drawn(
    candidates: NDArray[np.bool_], wanted: NDArray[np.int64], others: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """So many candidates of each row, or all if there are fewer, without the wanted one."""
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
