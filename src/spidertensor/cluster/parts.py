"""A worker's part of a round: fetch the rows that its entries touch from the shards, and learn.

A worker keeps nothing from one part to the next, so a part can be learned anywhere and repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.cluster.merge import copied
from spidertensor.cluster.shards import Numbers, Rows, Touched
from spidertensor.estimator.parameters import OF_ENGINE, Model
from spidertensor.method import Batch, Method
from spidertensor.spider.compiled import COMPILE, kernel
from spidertensor.spider.likelihoods import LIKELIHOODS
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Gaussian, Posterior, Prior, Site, State
from spidertensor.spider.sequential import sequential

NEVER = 2**62  # entries between two refinements: workers do not refine


class Recipe(NamedTuple):
    """Plain values from which a process builds the engine of a member."""

    network: Network
    prior: Prior
    likelihood: str
    refine_every: int
    inference: tuple[tuple[str, Any], ...]  # options of `sequential`

    def option(self, name: str) -> Any:
        return dict(self.inference).get(name)


class PartPlan(NamedTuple):
    """The rows and entries of a part."""

    entries: Batch  # its index: positions in the fetched rows, one shard after the other
    rows: list[Numbers]  # per shard and mode, the rows to fetch
    times: list[Numbers]  # number of entries that each of these rows is in


class WorkerResult(NamedTuple):
    """What a worker sends back besides the rows."""

    shared: State  # without rows and sites
    reported: NDArray[np.float64]  # (4, n): mean, var, noise and log evidence of each entry


def recipes_of(params: dict[str, Any], model: Model) -> list[Recipe]:
    """The recipes of the members of a model built with these parameters."""
    if params["engine"] != "sequential":
        raise ValueError(f"workers learn with the sequential engine, not with {params['engine']!r}")
    found = []
    for member in model.members:
        settings = params | member.own
        inference = tuple((name, settings[name]) for name in OF_ENGINE if name in settings)
        found.append(
            Recipe(member.network, member.prior, model.likelihood.name, settings["batch_size"], inference)
        )
    return found


@lru_cache(maxsize=64)
def engine(recipe: Recipe) -> Method:
    """The engine of a worker: sequential, without refining the prior."""
    likelihood = LIKELIHOODS[recipe.likelihood]
    return sequential(recipe.network, likelihood, recipe.prior, refine_every=NEVER, **dict(recipe.inference))


@lru_cache(maxsize=64)
def whole_engine(recipe: Recipe) -> Method:
    """The engine of a member that is learned whole."""
    likelihood = LIKELIHOODS[recipe.likelihood]
    return sequential(
        recipe.network, likelihood, recipe.prior, refine_every=recipe.refine_every, **dict(recipe.inference)
    )


def learn_part(
    recipe: Recipe,
    shared: State,
    entries: Batch,
    n_shards: int,
    fetch: Callable[[list[Numbers]], Sequence[Rows]],
) -> tuple[WorkerResult, list[Touched]]:
    """Learn a part from the state before the round; returns the shared part, and the new rows per shard.

    fetch: row numbers per shard and mode -> the rows of each shard
    """
    wanted = plan(entries, n_shards)
    rows = fetch(wanted.rows)
    state = with_rows(shared, recipe.network, rows)
    state, update = engine(recipe).update(state, wanted.entries)
    own = Rows(state.posterior.factors, state.posterior.log_noise)
    touched = map(Touched, wanted.rows, wanted.times, _cut(own, rows))
    return WorkerResult(without_rows(state)._replace(sites=()), np.array(update[:4])), list(touched)


def plan(batch: Batch, n_shards: int) -> PartPlan:
    """Which rows the entries of a part need from each shard, and the entries in terms of these rows."""
    index = np.empty(batch.index.shape, np.int64)
    rows: list[list[NDArray[np.int64]]] = [[] for _ in range(n_shards)]
    times: list[list[NDArray[np.int64]]] = [[] for _ in range(n_shards)]
    for mode, nodes in enumerate(batch.index.T):
        wanted, often = _numbered(nodes, index[:, mode])
        if n_shards > 1:
            shard = wanted % n_shards
            order = np.argsort(shard, kind="stable")
            moved = np.empty_like(order)
            moved[order] = np.arange(len(order))
            index[:, mode] = moved[index[:, mode]]
            wanted, often, ends = wanted[order], often[order], np.bincount(shard, minlength=n_shards).cumsum()
            for number, (some, n) in enumerate(
                zip(np.split(wanted, ends[:-1]), np.split(often, ends[:-1]), strict=True)
            ):
                rows[number].append(some)
                times[number].append(n)
        else:
            rows[0].append(wanted)
            times[0].append(often)
    return PartPlan(Batch(index, np.ascontiguousarray(batch.value, np.float64)), list(rows), list(times))


@kernel(**COMPILE)
def _numbered(nodes, place):
    """Distinct nodes in order of appearance, and how often each appears; fills `place` with the number of
    each entry's node among them. Uses a hash table, which is several times as fast as sorting."""
    bits = 4
    while 2**bits < 2 * len(nodes):
        bits += 1
    mask, shift = 2**bits - 1, np.uint64(64 - bits)
    slots = np.full(2**bits, -1, np.int32)
    wanted, often = np.empty(len(nodes), np.int64), np.zeros(len(nodes), np.int64)
    n = 0
    for i in range(len(nodes)):
        node = np.int64(nodes[i])
        slot = np.int64((np.uint64(node) * np.uint64(0x9E3779B97F4A7C15)) >> shift)  # Fibonacci hashing
        while slots[slot] >= 0 and wanted[slots[slot]] != node:
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            slots[slot], wanted[n] = n, node
            n += 1
        place[i] = slots[slot]
        often[slots[slot]] += 1
    return wanted[:n].copy(), often[:n].copy()


def without_rows(state: State) -> State:
    """The state without the rows of its nodes: what all workers share."""
    factors, log_noise = (
        tuple(Gaussian(*(part[:0].copy() for part in each)) for each in modes)
        for modes in (state.posterior.factors, state.posterior.log_noise)
    )
    return state._replace(posterior=state.posterior._replace(factors=factors, log_noise=log_noise))


def with_rows(shared: State, network: Network, shards: Sequence[Rows]) -> State:
    """A writable state with exactly the rows of these shards. Copies `shared`, which may be read-only or in
    use by other workers."""
    factors, log_noise = (
        tuple(Gaussian(*map(_one, zip(*mode, strict=True))) for mode in zip(*modes, strict=True))
        for modes in zip(*shards, strict=True)
    )
    own = copied(shared)
    return own._replace(
        posterior=Posterior(factors, own.posterior.weights, own.posterior.noise, log_noise),
        # placeholders: without refining the engine does not use them
        sites=tuple(Site(*np.zeros((3, *shape), np.float32)) for shape in network.layers),
        counts=own.counts._replace(nodes=np.array([len(each.mean) for each in factors])),
    )


def _one(parts: Sequence[NDArray[np.floating]]) -> NDArray[np.floating]:
    """The parts as one array; rows fetched in this process are already copies."""
    return parts[0] if len(parts) == 1 and parts[0].flags.writeable else np.concatenate(parts)


def _cut(rows: Rows, shards: Sequence[Rows]) -> list[Rows]:
    """Split concatenated rows back into those of each shard."""
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
