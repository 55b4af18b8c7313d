"""SPIDER for any network, on CPU or GPU: a Method in JAX. Needs the extra `jax`.

The state is the NumPy state of the sequential engine. vectorized_calls.py learns a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from spidertensor.method import (
    HUGE,
    Bags,
    Batch,
    JointMethod,
    Prediction,
    Update,
    check_batch,
    check_index,
)
from spidertensor.spider import posterior
from spidertensor.spider.bags import plain
from spidertensor.spider.custom_network import CustomSizes
from spidertensor.spider.follow import LEAST_NOISE
from spidertensor.spider.likelihoods import OF_ENGINES, Likelihood, check
from spidertensor.spider.likelihoods.gaussian import forgetting
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Prior, State
from spidertensor.spider.robust import check_robust, log_noise_widening, widening
from spidertensor.spider.vectorized_calls import SMALL_BATCH, Member, Program, learn_call
from spidertensor.spider.vectorized_networks import Normal, check_function, flat
from spidertensor.spider.vectorized_noise import Numbers, Settings, hats
from spidertensor.spider.vectorized_table import factors_of, slots_of
from spidertensor.spider.vectorized_updates import evaluate

LARGEST_BATCH = 2**14  # entries, or attributes of a table in them: the n x n matrix takes 1 GiB
LARGEST_TOGETHER = (
    2**10
)  # entries in a batch of several models; a larger one fills a GPU, and its memory, alone
BLOCK_ENTRIES = 1024  # predicted at once, or fewer:
BLOCK_GRADIENTS = 2**26  # numbers in the gradients of one block


def _noise_of(settings: Settings, state: State, index, alpha: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,) noise of the entries: mathematics.md sections 11, 12 and 23."""
    log_noise = np.zeros(len(index))
    for mode, (mean, _) in enumerate(state.posterior.log_noise):
        rows = index[:, mode]
        seen = (rows >= 0) & (rows < state.counts.nodes[mode])
        log_noise[seen] += mean[rows[seen]]
    noise = settings.likelihood.noise_var(*state.posterior.noise) * np.exp(log_noise)
    least = max(LEAST_NOISE * float(state.stream.var), 1 / HUGE) if settings.robust else 0
    noise = np.maximum(noise, least)
    if settings.node_noise:
        noise = np.maximum(noise * np.exp(hats(alpha, np) @ state.stream.level_noise), least)
    return noise


def check_slots(places: int, slots: list[int]) -> None:
    if places * max(slots) > LARGEST_BATCH:
        raise ValueError(
            f"an entry has up to {max(slots)} attributes in one column, too many for batches of {places}: "
            f"choose a batch_size of at most {max(1, LARGEST_BATCH // max(slots))}"
        )


@dataclass(frozen=True, kw_only=True)
class VectorizedMethod(JointMethod):
    member: Member


_DEFAULT = Prior()


def vectorized(
    network: Network,
    likelihood: Likelihood,
    prior: Prior = _DEFAULT,
    *,
    curvature: bool = False,
    noise_memory: float | None = 10_000,
    refine_every: int = 256,
    batch_size: int = 256,
    clip: float | None = None,
    node_noise: bool = False,
    memory: float | None = None,
) -> VectorizedMethod:
    """SPIDER as a Method; its state is that of the sequential engine.

    network:      sizes of a built-in network, or CustomSizes with a function of your own
    curvature:    also differentiate log Z through beta (the paper); learns entry by entry
    noise_memory: entries after which an error's weight in the noise is 1/e; None: never forgets (the paper)
    refine_every: entries between two refinements of the prior, however the calls are cut
    batch_size:   most entries learned together; a batch also ends at a refinement and with the call. With 1,
                  cuts of a stream into calls change nothing, and with attributes only the rounding
    clip, node_noise, memory: as in `sequential`
    """
    if refine_every < 1 or batch_size < 1:
        raise ValueError(
            f"refine_every and batch_size must be at least 1 entry, got {refine_every} and {batch_size}"
        )
    places = 1 if curvature else min(batch_size, refine_every)
    if places > LARGEST_BATCH:
        raise ValueError(f"this engine learns at most {LARGEST_BATCH} entries at once, got {places}")
    if isinstance(network, CustomSizes):
        check_function(network)
    check(likelihood, OF_ENGINES, "the vectorized engine")
    check_robust(clip, node_noise and likelihood.normal_noise, memory, noise_memory)
    settings = Settings(
        network=network,
        likelihood=likelihood,
        curvature=bool(curvature),
        noise_fades=noise_memory is not None,
        # other likelihoods have no normal noise to clip by or to split among nodes
        robust=clip is not None and likelihood.normal,
        clips=clip is not None and likelihood.clips,
        node_noise=bool(node_noise) and likelihood.normal_noise,
    )
    numbers = Numbers(
        slab_var=prior.slab_var,
        log_odds=logit(prior.rho0),
        log_forgetting=math.log(forgetting(noise_memory)),
        clip=math.inf if clip is None else float(clip),
        log_widening=math.log(widening(memory)),
        log_noise_log_widening=math.log(log_noise_widening(memory)),
        # depends on the part of the vector, not on the mode: the longest vector serves all
        prior_var=posterior.factor_prior_var(network, prior, int(np.argmax(network.ranks))),
    )

    program = Program(settings, places, refine_every)
    learned: dict[str, Any] = {"without_id": network.without_id, "n_tables": len(network.tables)}
    learned["weighted"] = likelihood.weighted

    def init(seed: int) -> State:
        own = {"level_var": likelihood.level_var, "levels": likelihood.levels}
        return posterior.init(network, prior, seed, node_noise=settings.node_noise, **own)

    widest = [1] * len(network.tables)

    def with_slots(bags: Bags) -> tuple[int, ...]:
        """Slots for these attributes. They never shrink: otherwise calls of few entries, whose largest bags
        vary, would compile for all combinations of sizes."""
        slots = slots_of(network, bags)
        check_slots(places, slots)
        widest[:] = map(max, widest, slots)
        return tuple(widest)

    def update_all(
        methods: Sequence[VectorizedMethod], states: Sequence[State], batch: Batch
    ) -> list[tuple[State, Update]]:
        check_batch(batch, network.n_modes, **learned)
        if not len(batch.value):
            return [(state, Update(*np.empty((4, 0)), rejected=0)) for state in states]
        slots = ()
        if batch.bags is not None:
            batch = batch._replace(bags=(bags := plain(batch.bags)))
            slots = with_slots(bags)
        return learn_call(program, [method.member for method in methods], states, batch, slots)

    def update(state: State, batch: Batch) -> tuple[State, Update]:
        return update_all([method], [state], batch)[0]

    def predict(state: State, index: NDArray[np.integer], bags: Bags | None = None) -> Prediction:
        index = np.asarray(index)
        check_index(index, network.n_modes, bags, len(network.tables))
        bags = None if bags is None else plain(bags)
        out = np.empty((3, len(index)))
        parts = zip(*state.posterior.weights, strict=True)
        weights, places = Normal(*(jnp.asarray(flat(of, np)) for of in parts)), SMALL_BATCH
        if len(index) > SMALL_BATCH:
            places = max(min(BLOCK_ENTRIES, BLOCK_GRADIENTS // network.n_weights), SMALL_BATCH)
        results = []
        for start in range(0, len(index), places):
            rows = index[start : start + places]
            of = None if bags is None else bags.part(start, start + len(rows))
            u = factors_of(state, network, prior, rows, of, places)
            results.append(evaluate(network, weights, Normal(*map(jnp.asarray, u))))
            for array in results[-1]:
                array.copy_to_host_async()
        for row, blocks in zip(out, zip(*results, strict=True), strict=False):
            row[:] = np.concatenate(list(map(np.asarray, blocks)))[: len(index)]
        out[2] = _noise_of(settings, state, index, out[0])
        if likelihood.level_var:  # section 17
            out[0] += state.stream.mean
            out[1] += state.stream.var
            return Prediction(*out)
        shift, scale = float(state.stream.shift), float(state.stream.scale)
        out[0] = shift + scale * out[0]
        out[1:] *= scale * scale
        return Prediction(*out)

    method = VectorizedMethod(
        init,
        update,
        predict,
        unit="entry" if places == 1 else "batch",
        program=lambda: program if places <= LARGEST_TOGETHER and jax.default_backend() != "cpu" else None,
        update_all=update_all,
        member=Member(numbers, prior),
    )
    return method
