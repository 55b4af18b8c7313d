"""Several workers learn one member in rounds: mathematics.md section 18.

A round takes the next entries of the stream and cuts them into one part per worker. All workers start from
the state before the round; each learns its part entry by entry with the sequential engine, without refining
the prior. Then their states are merged (merge.py), and the prior is refined once.

Which entries are in which part depends only on the number of entries before. So the result is the same
whichever machine learns a part, and however often a part has to be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from spidertensor.cluster.merge import copied, for_workers, merge_shared
from spidertensor.cluster.parts import (
    Recipe,
    WorkerResult,
    engine,
    learn_part,
    plan,
    whole_engine,
    with_rows,
    without_rows,
)
from spidertensor.cluster.shards import AFRESH, KEEP_MEANS, Numbers, Rows, Shard, Touched, around
from spidertensor.method import Batch, Method, Prediction, Update, check_batch, check_index
from spidertensor.method import joined as joined_updates
from spidertensor.spider import posterior
from spidertensor.spider.committee import in_threads
from spidertensor.spider.follow import DECIDE, follow, full_window
from spidertensor.spider.likelihoods import likelihood_by_name
from spidertensor.spider.likelihoods.gaussian import forgetting
from spidertensor.spider.posterior import State
from spidertensor.spider.robust import widening
from spidertensor.spider.spike_slab import refine_layer

PART = 1024  # entries of a worker's part of a round
FIRST = 32  # entries of a part at the start of a stream
GROWTH = 64  # a round has at most 1/GROWTH of the entries before it


class Rounds(NamedTuple):
    """How a stream is cut: the number of workers, and the most entries (`part`) of each in a round.

    Early on every entry changes the model a lot, and workers that do not see each other's entries would all
    learn the same. So rounds are short at first and grow with the stream.
    """

    workers: int
    part: int = PART

    def length(self, before: int) -> int:
        """Number of entries in the round that starts after `before` entries."""
        return self.workers * min(max(before // (GROWTH * self.workers), FIRST), self.part)

    def whole(self, before: int, n: int) -> int:
        """How many of the next n entries fill complete rounds."""
        end = 0
        while end + (size := self.length(before + end)) <= n:
            end += size
        return end


class Machines(Protocol):
    """Where a member's shards live and its parts are learned."""

    n_shards: int

    def put(self, batch: Batch) -> Any:
        """A reference to the entries of a call, for `learn`."""
        ...

    def learn(
        self, batch: Any, ends: NDArray[np.int64], shared: State
    ) -> tuple[list[WorkerResult], list[Any]]:
        """Learn the parts of the batch between these `ends`, each from the state `shared`.

        Returns what each worker learned, and references to its rows for each shard, for `merge`.
        """
        ...

    def merge(self, touched: list[Any], about: dict[str, Any]) -> int:
        """Merge a round into all shards (Shard.merge); returns how many elements were rejected."""
        ...

    def fetch(self, at: int, nodes: NDArray[np.int64], rows: list[Numbers]) -> Sequence[Rows]:
        """Shard.fetch on all shards."""
        ...


def learn(
    machines: Machines, recipe: Recipe, rounds: Rounds, shared: State, batch: Batch
) -> tuple[State, Update]:
    """Learn all rounds of a batch; the last one ends with it. `shared` is the state without the rows."""
    updates, done, there = [], 0, machines.put(batch)
    while done < len(batch.value):
        end = min(done + rounds.length(int(shared.counts.entries)), len(batch.value))
        shared, update = one_round(machines, recipe, rounds.workers, shared, there, done, end)
        updates.append(update)
        done = end
    return shared, joined_updates(updates)


def one_round(
    machines: Machines, recipe: Recipe, workers: int, shared: State, batch: Any, start: int, end: int
) -> tuple[State, Update]:
    """Learn entries start to end of the batch that was put on the machines."""
    ends = start + np.linspace(0, end - start, min(workers, end - start) + 1).astype(int)
    begin = for_workers(shared, len(ends) - 1)._replace(sites=())
    learned, touched = machines.learn(batch, ends, begin)
    keeps = forgetting(recipe.option("noise_memory"))
    after = merge_shared(shared, [each.shared for each in learned], recipe.prior.slab_var, keeps)
    rejected, then = _refined(after, recipe, end - start)
    about = {
        "start": int(shared.counts.entries),
        "end": int(after.counts.entries),
        "memory": recipe.option("memory"),
        "then": then,
    }
    after.counts.rejected[()] += rejected + machines.merge(touched, about)
    lost = [
        int(getattr(after.counts, name) - getattr(shared.counts, name))
        for name in ("rejected", "refused", "clipped")
    ]
    return after, Update(*np.concatenate([each.reported for each in learned], axis=1), *lost)


def _refined(state: State, recipe: Recipe, entries: int) -> tuple[int, str | None]:
    """Do in place, once for a round of `entries`, what the engine does every `refine_every` entries.

    Returns how many elements were rejected, and what to do with the rows of all nodes if the values have
    changed for good.
    """
    prior, rejected = recipe.prior, 0
    wider = widening(recipe.option("memory")) ** (entries / recipe.refine_every)
    for weight, site in zip(state.posterior.weights, state.sites, strict=True):
        if wider > 1:
            var = weight.var.astype(np.float64)
            weight.var[:] = np.maximum(var, np.minimum(prior.slab_var, var * wider))
        rejected += refine_layer(weight, site, prior.slab_var, prior.rho0)
    clip, then = recipe.option("clip"), None
    follows = clip is not None and likelihood_by_name(recipe.likelihood).normal
    if follows and full_window.py_func(state.stream, clip) and state.stream.watching == DECIDE:
        before = state.stream.followed.copy()
        follow(state, recipe.network, prior)
        level, scale, afresh = (state.stream.followed - before).tolist()
        then = AFRESH if afresh else KEEP_MEANS if level or scale else None
    return rejected, then


class Here:
    """Machines in this process, with threads; shards are objects, and references the data itself."""

    def __init__(self, recipe: Recipe, shards: list[Shard], threads: int = 1) -> None:
        self.recipe, self.shards, self.n_shards, self.threads = recipe, shards, len(shards), threads

    def put(self, batch: Batch) -> Batch:
        return batch

    def learn(
        self, batch: Batch, ends: NDArray[np.int64], shared: State
    ) -> tuple[list[WorkerResult], list[list[Touched]]]:
        for shard in self.shards:
            shard.grow(shared.counts.nodes)  # before several threads read it
        fetch = partial(self.fetch, int(shared.counts.entries), shared.counts.nodes)
        parts = [Batch(batch.index[start:end], batch.value[start:end]) for start, end in pairwise(ends)]
        done = self.run(
            [partial(learn_part, self.recipe, shared, part, self.n_shards, fetch) for part in parts]
        )
        return [learned for learned, _ in done], [touched for _, touched in done]

    def merge(self, touched: list[list[Touched]], about: dict[str, Any]) -> int:
        parts = zip(self.shards, zip(*touched, strict=True), strict=True)
        return sum(self.run([partial(shard.merge, own, **about) for shard, own in parts]))

    def fetch(self, at: int, nodes: NDArray[np.int64], rows: list[Numbers]) -> list[Rows]:
        return [shard.fetch(nodes, some, at) for shard, some in zip(self.shards, rows, strict=True)]

    def run(self, jobs: list[Callable[[], Any]]) -> list[Any]:
        return in_threads(lambda number: jobs[number](), len(jobs), min(self.threads, len(jobs)))


def split(recipe: Recipe, rounds: Rounds, threads: int = 1) -> Method:
    """A member learned in rounds in this process: exactly the result of several machines."""
    network, prior = recipe.network, recipe.prior
    whole = whole_engine(recipe)
    if rounds.workers == 1:
        return whole

    def update(state: State, batch: Batch) -> tuple[State, Update]:
        check_batch(batch, network.n_modes)
        if not len(batch.value):
            return state, Update(*np.empty((4, 0)), rejected=0)
        state = posterior.grow(state, network, prior, batch.index.max(axis=0) + 1)
        machines = Here(recipe, [around(state, network, prior, threads)], threads)
        rows = {"factors": state.posterior.factors, "log_noise": state.posterior.log_noise}
        shared, update = learn(machines, recipe, rounds, copied(without_rows(state)), batch)
        return shared._replace(posterior=shared.posterior._replace(**rows)), update

    return Method(whole.init, update, whole.predict, unit="batch")


def predict_rows(machines: Machines, recipe: Recipe, shared: State, index: NDArray[np.integer]) -> Prediction:
    """Predictions for nodes whose rows are in shards; -1 and rows beyond the last are unseen nodes."""
    check_index(index, recipe.network.n_modes)
    known = (index >= 0) & (index < shared.counts.nodes)
    wanted = plan(Batch(np.where(known, index, 0), np.zeros(len(index))), machines.n_shards)
    nodes = np.maximum(shared.counts.nodes, 1)  # row 0 stands in for unseen nodes, even if there are no nodes
    rows = machines.fetch(int(shared.counts.entries), nodes, wanted.rows)
    state = with_rows(shared, recipe.network, rows)
    return engine(recipe).predict(state, np.where(known, wanted.entries.index, -1))
