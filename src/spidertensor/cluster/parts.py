"""A worker's part of a round: copy the rows that its entries touch, and learn."""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.cluster.merge import copied
from spidertensor.estimator.parameters import OF_ENGINE, Model
from spidertensor.method import Batch
from spidertensor.spider.compiled import COMPILE, kernel
from spidertensor.spider.likelihoods import LIKELIHOODS
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Gaussian, Prior, Site, State
from spidertensor.spider.sequential import SequentialMethod, run_models, sequential
from spidertensor.spider.sequential_record import Record

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


class WorkerResult(NamedTuple):
    """What a worker has learned. The state is used again for its next part."""

    state: State  # with the rows that its entries touch, and spare ones
    rows: list[NDArray[np.int64]]  # per mode, the numbers of these rows, each once
    times: list[NDArray[np.int64]]  # number of entries that each is in
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
def engine(recipe: Recipe) -> SequentialMethod:
    """The engine of a worker: sequential, without refining the prior."""
    likelihood = LIKELIHOODS[recipe.likelihood]
    return sequential(recipe.network, likelihood, recipe.prior, refine_every=NEVER, **dict(recipe.inference))


@lru_cache(maxsize=64)
def whole_engine(recipe: Recipe) -> SequentialMethod:
    """The engine of a member that is learned whole."""
    likelihood = LIKELIHOODS[recipe.likelihood]
    return sequential(
        recipe.network, likelihood, recipe.prior, refine_every=recipe.refine_every, **dict(recipe.inference)
    )


class Worker:
    """Learns a part of each round, in memory that stays from round to round."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._own: tuple[State, Record] | None = None

    def learn(self, start: State, part: Batch) -> WorkerResult:
        """Learn a part from the state before the round, which stays as it is."""
        index = np.empty(part.index.shape, np.int64)
        found = [_numbered(nodes, place) for nodes, place in zip(part.index.T, index.T, strict=True)]
        rows, times = [wanted for wanted, _ in found], [often for _, often in found]
        state, record = self._with_room(start, list(map(len, rows)))
        for own, shared in zip(_shared(state), _shared(start), strict=True):
            own[...] = shared
        state.counts.nodes[:] = list(map(len, rows))
        for name in ("factors", "log_noise"):
            pairs = zip(getattr(state.posterior, name), getattr(start.posterior, name), strict=True)
            for numbers, (own, known) in zip(rows, pairs, strict=False):
                for copy, array in zip(own, known, strict=True):
                    # without a mode, NumPy would first write into a buffer
                    array.take(numbers, axis=0, out=copy[: len(numbers)], mode="clip")
        reported = np.empty((1, 4, len(index)))
        value = np.require(part.value, np.float64, ["C_CONTIGUOUS", "WRITEABLE"])
        run_models(True, 0, index, value, record.record, record.like, reported)
        return WorkerResult(state, rows, times, reported[0])

    def _with_room(self, start: State, n_rows: list[int]) -> tuple[State, Record]:
        """The worker's own state with its record; new ones if these are too small."""
        have = [0] * len(n_rows)
        if self._own is not None:
            have = [len(each.mean) for each in self._own[0].posterior.factors]
            if all(n <= room for n, room in zip(n_rows, have, strict=True)):
                return self._own
        sizes = [max(room, n + n // 4) for n, room in zip(n_rows, have, strict=True)]
        factors, log_noise = (
            tuple(
                Gaussian(*(np.empty((n, *array.shape[1:]), array.dtype) for array in each))
                for n, each in zip(sizes, of_modes, strict=False)
            )
            for of_modes in (start.posterior.factors, start.posterior.log_noise)
        )
        own = copied(start._replace(posterior=start.posterior._replace(factors=(), log_noise=()), sites=()))
        state = own._replace(
            posterior=own.posterior._replace(factors=factors, log_noise=log_noise),
            # placeholders: without refining the engine does not use them
            sites=tuple(Site(*np.zeros((3, *shape), np.float32)) for shape in self._recipe.network.layers),
        )
        self._own = state, engine(self._recipe).record(state)
        return self._own


def _shared(state: State) -> list[NDArray[Any]]:
    """What all workers start from, besides rows."""
    return [
        *chain.from_iterable(state.posterior.weights),
        *state.posterior.noise,
        *state.counts[1:],
        *state.stream,
    ]


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
