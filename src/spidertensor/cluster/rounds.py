"""One member learned by several workers, in rounds: mathematics.md section 18.

A round is the next entries of the stream, cut into one part for each worker. All workers start from the state
before the round; each learns its part, one entry after the other, by the sequential engine and without
refining the prior. Then one state is made of theirs (merge.py), and the prior is refined once.

Which entries are in which part depends on how many entries there were before, and on nothing else. So the
result is the same whatever machine does which part, and however often a part has to be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from spidertensor.cluster.merge import copied, for_workers, merge_shared
from spidertensor.cluster.shards import AFRESH, KEEP_MEANS, Numbers, Rows, Shard, around
from spidertensor.estimator.parameters import OF_INFERENCE, Model
from spidertensor.method import Batch, Method, Prediction, Update, check_batch, check_index
from spidertensor.method import joined as joined_updates
from spidertensor.spider import posterior
from spidertensor.spider.follow import DECIDE, follow, full_window
from spidertensor.spider.likelihoods import GAUSSIAN, LIKELIHOODS
from spidertensor.spider.likelihoods.gaussian import forgetting
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Gaussian, Posterior, Prior, Site, State
from spidertensor.spider.robust import widening
from spidertensor.spider.sequential import sequential
from spidertensor.spider.spike_slab import refine_layer

PART = 1024  # entries of a worker's part of a round
NEVER = 2**62  # entries between two refinements, for a worker
FIRST = 32  # entries of a part at the start of a stream
GROWTH = 64  # a round has at most one entry for so many before it


class Rounds(NamedTuple):
    """How a stream is cut: so many workers, and at most so many entries of each in a round.

    Early on every entry changes the model much, and workers who do not know of each other's entries would
    all learn the same. So rounds are short at first, and grow with the stream.
    """

    workers: int
    part: int = PART

    def length(self, before: int) -> int:
        """Entries of the round that begins after so many."""
        return self.workers * min(max(before // (GROWTH * self.workers), FIRST), self.part)

    def whole(self, before: int, n: int) -> int:
        """How many of the next n entries are in rounds that are full with them."""
        end = 0
        while end + (size := self.length(before + end)) <= n:
            end += size
        return end


class Recipe(NamedTuple):
    """What a process needs to know to learn for a member: plain values, from which it builds the engine."""

    network: Network
    prior: Prior
    likelihood: str
    refine_every: int
    inference: tuple[tuple[str, Any], ...]  # options of `sequential`

    def option(self, name: str) -> Any:
        return dict(self.inference).get(name)


class Plan(NamedTuple):
    """A part of a round."""

    entries: Batch  # its index: places in the rows that are fetched, one shard after the other
    rows: list[Numbers]  # per shard and mode, the rows to fetch
    times: list[Numbers]  # how many of the entries each of them is in


class Learned(NamedTuple):
    """What a worker sends back beside the rows."""

    shared: State  # without rows and sites
    told: NDArray[np.float64]  # (4, n): mean, var, noise and log evidence of each entry


class Machines(Protocol):
    """Where the shards of a member are and its parts are learned. What is passed on may be a reference to
    something on another machine, which only `get` turns into the thing itself."""

    n_shards: int

    def put(self, shared: State) -> Any: ...

    def fetch(self, shard: int, nodes: NDArray[np.int64], parts: list[Numbers]) -> list[Any]: ...

    def learn(self, shared: Any, entries: Batch, rows: list[Any]) -> tuple[Any, list[Any]]:
        """A reference to a Learned, and one to the Rows of each shard."""
        ...

    def merge(self, shard: int, learned: list[Any], **about: Any) -> Any: ...

    def get(self, references: list[Any]) -> list[Any]: ...


def recipes_of(params: dict[str, Any], model: Model) -> list[Recipe]:
    """Of the members of a model that these parameters have built."""
    if params["engine"] != "sequential":
        raise ValueError(f"workers learn with the sequential engine, not with {params['engine']!r}")
    found = []
    for member in model.members:
        settings = params | member.own
        inference = tuple((name, settings[name]) for name in OF_INFERENCE if name in settings)
        found.append(
            Recipe(member.network, member.prior, model.likelihood.name, settings["batch_size"], inference)
        )
    return found


@lru_cache(maxsize=64)
def engine(recipe: Recipe) -> Method:
    """What a worker learns with: the sequential engine, which leaves the prior alone."""
    likelihood = LIKELIHOODS[recipe.likelihood]
    return sequential(recipe.network, likelihood, recipe.prior, refine_every=NEVER, **dict(recipe.inference))


@lru_cache(maxsize=64)
def whole_engine(recipe: Recipe) -> Method:
    """The engine that learns the member alone."""
    likelihood = LIKELIHOODS[recipe.likelihood]
    return sequential(
        recipe.network, likelihood, recipe.prior, refine_every=recipe.refine_every, **dict(recipe.inference)
    )


def learn_part(
    recipe: Recipe, shared: State, entries: Batch, rows: Sequence[Rows]
) -> tuple[Learned, list[Rows]]:
    """A worker's part of a round: from the state before it, and the rows that each shard has given."""
    state = _with_rows(shared, recipe.network, rows)
    state, update = engine(recipe).update(state, entries)
    own = Rows(state.posterior.factors, state.posterior.log_noise)
    return Learned(without_rows(state)._replace(sites=()), np.array(update[:4])), _cut(own, rows)


def learn(
    machines: Machines, recipe: Recipe, rounds: Rounds, shared: State, batch: Batch
) -> tuple[State, Update]:
    """All rounds of a batch; its end is the end of a round. `shared` is the state without the rows."""
    updates, done = [], 0
    while done < len(batch.value):
        end = done + rounds.length(int(shared.counts.entries))
        shared, update = _round(
            machines, recipe, rounds.workers, shared, Batch(batch.index[done:end], batch.value[done:end])
        )
        updates.append(update)
        done = end
    return shared, joined_updates(updates)


def _round(
    machines: Machines, recipe: Recipe, workers: int, shared: State, batch: Batch
) -> tuple[State, Update]:
    ends = np.linspace(0, len(batch.value), min(workers, len(batch.value)) + 1).astype(int)
    plans = [
        plan(Batch(batch.index[start:end], batch.value[start:end]), machines.n_shards)
        for start, end in pairwise(ends)
    ]
    shards = range(machines.n_shards)
    wanted = [[each.rows[shard] for each in plans] for shard in shards]
    fetched = [machines.fetch(shard, shared.counts.nodes, wanted[shard]) for shard in shards]
    start = machines.put(for_workers(shared, len(plans))._replace(sites=()))
    working = [
        machines.learn(start, each.entries, [rows[part] for rows in fetched])
        for part, each in enumerate(plans)
    ]
    learned: list[Learned] = machines.get([told for told, _ in working])
    keeps = forgetting(recipe.option("noise_memory"))
    after = merge_shared(shared, [each.shared for each in learned], recipe.prior.slab_var, keeps)
    rejected, then = _refined(after, recipe, len(batch.value))
    memory = recipe.option("memory")
    merged = [
        machines.merge(
            shard,
            [rows[shard] for _, rows in working],
            start=int(shared.counts.entries),
            end=int(after.counts.entries),
            parts=wanted[shard],
            running=shared.stream.log_noise,
            times=None if memory is None else [each.times[shard] for each in plans],
            memory=memory,
            then=then,
        )
        for shard in shards
    ]
    after.counts.rejected[()] += rejected + sum(machines.get(merged))
    lost = [
        int(getattr(after.counts, name) - getattr(shared.counts, name))
        for name in ("rejected", "refused", "clipped")
    ]
    return after, Update(*np.concatenate([each.told for each in learned], axis=1), *lost)


def _refined(state: State, recipe: Recipe, entries: int) -> tuple[int, str | None]:
    """What the engine does every `refine_every` entries, once for a round of so many; in place.

    Returns how many elements were rejected, and what has to happen to the rows of all nodes if the values
    have changed for good.
    """
    prior, rejected = recipe.prior, 0
    wider = widening(recipe.option("memory")) ** (entries / recipe.refine_every)
    for weight, site in zip(state.posterior.weights, state.sites, strict=True):
        if wider > 1:
            var = weight.var.astype(np.float64)
            weight.var[:] = np.maximum(var, np.minimum(prior.slab_var, var * wider))
        rejected += refine_layer(weight, site, prior.slab_var, prior.rho0)
    clip, then = recipe.option("clip"), None
    follows = clip is not None and recipe.likelihood == GAUSSIAN.name
    if follows and full_window.py_func(state.stream, clip) and state.stream.watching == DECIDE:
        before = state.stream.followed.copy()
        follow(state, recipe.network, prior)
        level, scale, afresh = (state.stream.followed - before).tolist()
        then = AFRESH if afresh else KEEP_MEANS if level or scale else None
    return rejected, then


def plan(batch: Batch, n_shards: int) -> Plan:
    """Which rows the entries of a part need of each shard, and the entries in numbers of these."""
    index = np.empty(batch.index.shape, np.int64)
    rows: list[list[NDArray[np.int64]]] = [[] for _ in range(n_shards)]
    times: list[list[NDArray[np.int64]]] = [[] for _ in range(n_shards)]
    for mode, nodes in enumerate(batch.index.T):
        wanted, place, often = np.unique(nodes, return_inverse=True, return_counts=True)
        order = np.argsort(wanted % n_shards, kind="stable")
        moved = np.empty_like(order)
        moved[order] = np.arange(len(order))
        index[:, mode] = moved[place]
        wanted, often = wanted[order], often[order]
        for shard in range(n_shards):
            here = wanted % n_shards == shard
            rows[shard].append(wanted[here])
            times[shard].append(often[here])
    return Plan(Batch(index, np.ascontiguousarray(batch.value, np.float64)), list(rows), list(times))


def without_rows(state: State) -> State:
    """The state without its nodes: what all workers share."""
    factors, log_noise = (
        tuple(Gaussian(*(part[:0].copy() for part in each)) for each in modes)
        for modes in (state.posterior.factors, state.posterior.log_noise)
    )
    return state._replace(posterior=state.posterior._replace(factors=factors, log_noise=log_noise))


def _with_rows(shared: State, network: Network, shards: Sequence[Rows]) -> State:
    """A state of its own, with the rows of all shards and no others. It can be learned into: what it is made
    of may be read-only, or another worker's too."""
    factors, log_noise = (
        tuple(Gaussian(*map(np.concatenate, zip(*mode, strict=True))) for mode in zip(*modes, strict=True))
        for modes in zip(*shards, strict=True)
    )
    own = copied(shared)
    return own._replace(
        posterior=Posterior(factors, own.posterior.weights, own.posterior.noise, log_noise),
        # the engine wants some; without refining they are not used
        sites=tuple(Site(*np.zeros((3, *shape), np.float32)) for shape in network.layers),
        counts=own.counts._replace(nodes=np.array([len(each.mean) for each in factors])),
    )


def _cut(rows: Rows, shards: Sequence[Rows]) -> list[Rows]:
    """The inverse of putting the shards' rows one after the other."""
    parts, first = [], [0] * len(rows.factors)
    for shard in shards:
        last = [start + len(own.mean) for start, own in zip(first, shard.factors, strict=True)]
        where = [slice(*ends) for ends in zip(first, last, strict=True)]
        parts.append(
            Rows(
                *(
                    tuple(Gaussian(mean[at], var[at]) for (mean, var), at in zip(modes, where, strict=False))
                    for modes in rows
                )
            )
        )
        first = last
    return parts


class Here:
    """All in this process, one part after the other: shards are objects, and references the things."""

    def __init__(self, recipe: Recipe, shards: list[Shard]) -> None:
        self.recipe, self.shards, self.n_shards = recipe, shards, len(shards)

    def put(self, shared: State) -> State:
        return shared

    def fetch(self, shard: int, nodes: NDArray[np.int64], parts: list[Numbers]) -> list[Rows]:
        return self.shards[shard].fetch(nodes, parts)

    def learn(self, shared: State, entries: Batch, rows: list[Rows]) -> tuple[Learned, list[Rows]]:
        return learn_part(self.recipe, shared, entries, rows)

    def merge(self, shard: int, learned: list[Rows], **about: Any) -> int:
        return self.shards[shard].merge(learned=learned, **about)

    def get(self, references: list[Any]) -> list[Any]:
        return references


def split(recipe: Recipe, rounds: Rounds) -> Method:
    """A member that is learned in rounds, all in this process: what several machines make of it, exactly."""
    network, prior = recipe.network, recipe.prior
    whole = whole_engine(recipe)
    if rounds.workers == 1:
        return whole

    def update(state: State, batch: Batch) -> tuple[State, Update]:
        check_batch(batch, network.n_modes)
        if not len(batch.value):
            return state, Update(*np.empty((4, 0)), rejected=0)
        state = posterior.grow(state, network, prior, batch.index.max(axis=0) + 1)
        machines = Here(recipe, [around(state, network, prior)])
        rows = {"factors": state.posterior.factors, "log_noise": state.posterior.log_noise}
        shared, update = learn(machines, recipe, rounds, copied(without_rows(state)), batch)
        return shared._replace(posterior=shared.posterior._replace(**rows)), update

    return Method(whole.init, update, whole.predict, unit="batch")


def predict_rows(machines: Machines, recipe: Recipe, shared: State, index: NDArray[np.integer]) -> Prediction:
    """Predictions of nodes whose rows are in shards; -1 and rows beyond are unseen nodes."""
    check_index(index, recipe.network.n_modes)
    known = (index >= 0) & (index < shared.counts.nodes)
    wanted = plan(Batch(np.where(known, index, 0), np.zeros(len(index))), machines.n_shards)
    nodes = np.maximum(shared.counts.nodes, 1)  # row 0 stands in for unseen nodes, also where there are none
    fetched = [machines.fetch(shard, nodes, [wanted.rows[shard]])[0] for shard in range(machines.n_shards)]
    state = _with_rows(shared, recipe.network, machines.get(fetched))
    return engine(recipe).predict(state, np.where(known, wanted.entries.index, -1))
