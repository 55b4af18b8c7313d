"""SPIDER, entry by entry: assumed-density filtering in a compiled loop. mathematics.md sections 3 to 5."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import HUGE, Batch, Method, Prediction, Update, check_batch, check_index
from spidertensor.spider import posterior
from spidertensor.spider.compiled import COMPILE, PART, kernel
from spidertensor.spider.follow import DECIDE, LEAST_NOISE, WATCH, WILD, follow, full_window, note_value
from spidertensor.spider.likelihoods import LIKELIHOODS, Likelihood, check
from spidertensor.spider.likelihoods.count import learn_level
from spidertensor.spider.likelihoods.gaussian import forgetting, misfit
from spidertensor.spider.likelihoods.kernel import (
    clipped,
    evidence,
    evidence_to_learn,
    learn_noise,
    shared_noise,
)
from spidertensor.spider.network import ACTIVATIONS, Network
from spidertensor.spider.posterior import Prior, State
from spidertensor.spider.robust import check_robust, log_noise_widening, widening
from spidertensor.spider.sequential_memory import Settings, elements, load, pack, scratch, unpack
from spidertensor.spider.sequential_passes import (
    bend_weights,
    curvature_pass,
    evaluate,
    load_log_noise,
    move_factors,
    move_log_noise,
    narrow_weights,
)
from spidertensor.spider.sequential_record import (
    Record,
    counts_of,
    noise_of,
    places_of,
    record_of,
    settings_of,
    stream_of,
)
from spidertensor.spider.spike_slab import refine


@kernel(**COMPILE)
def run_models(learning, start, index, value, records, like, out):
    """The entries of a call from `start` on, by each of the models that `records` are of: `_entries`.

    out (models, 4, n). Returns where the last of them stopped, and how many elements all have rejected; -1
    and 0, and nothing was done, if the models are not in step or have no room for a node to be learned. This
    is the only way from Python into the loop: one entry and many, one model and several run the same machine
    code, so they agree bit for bit.
    """
    if learning and not _can_learn(index, records):
        return np.int64(-1), np.int64(0)
    stopped, rejected = np.int64(start), np.int64(0)
    for m in range(len(records)):
        r = records[m]
        counts, stream = counts_of(r), stream_of(r)
        rejected -= counts.rejected[()]
        is_packed = r.scratch != 0 and r.packed_at == counts.entries[()]
        stopped = _entries(
            learning, start, index, value, places_of(r), noise_of(r), counts, stream, settings_of(r),
            r.scratch, is_packed, like, out[m],
        )  # fmt: skip
        rejected += counts.rejected[()]
        if r.scratch:
            r.packed_at = -1 if stream.watching[()] == DECIDE else counts.entries[()]
    return stopped, rejected


@kernel(**PART)
def _can_learn(index, records):
    for m in range(len(records)):
        nodes = counts_of(records[m]).nodes
        if counts_of(records[m]).entries[()] != counts_of(records[0]).entries[()]:
            return False
        for n in range(index.shape[0]):
            for k in range(index.shape[1]):
                if not 0 <= index[n, k] < nodes[k]:
                    return False
    return True


@kernel(inline="always", **PART)  # into its one caller, before compilation: else it is optimised twice
def _entries(
    learning, start, index, value, places, noise, counts, stream, settings, address, is_packed, like, out
):
    """In order: predicted and then, if `learning`, learned.

    One function for both, because both need nearly all of the code and each function compiles for seconds.
    Refines the prior sites whenever `refine_every` entries are full. Returns where it stopped: at the end, or
    behind an entry after which `follow` has to decide.

    address, is_packed: of the working memory, see `scratch`
    """
    c = scratch(settings, address, is_packed, like)
    if not is_packed:
        pack(places, settings, c)
    real = c.s.dtype.type
    likelihood, clips = settings.likelihood, settings.clip < np.inf
    shift, scale = stream.shift[()], stream.scale[()]
    log_scale = math.log(scale)
    widening = real(settings.widening if learning else 1.0)
    for n in range(start, index.shape[0]):
        load(places, counts.nodes, index, n, settings, widening, c)
        alpha, beta = evaluate(settings, c)
        noise_var, factor, level = 0.0, 1.0, 0.0
        if settings.normal:
            if settings.node_noise:
                factor = math.exp(
                    load_log_noise(places, counts.nodes, stream.log_noise, index, n, settings, c)
                )
            noise_var = noise.rate[()] / noise.shape[()] * factor
            if settings.follows:
                noise_var = max(noise_var, LEAST_NOISE * stream.var[()], 1 / HUGE)
        else:
            noise_var = shared_noise(likelihood, noise)
            if settings.has_level:  # section 17: one more element, of gradient 1
                level = stream.mean[()]
                alpha, beta = alpha + level, beta + stream.var[()]
        out[0, n], out[1, n], out[2, n] = (
            shift + scale * alpha,
            scale * scale * beta,
            scale * scale * noise_var,
        )
        if not learning:
            continue
        # section 11: learn from a clipped residual, report the true one
        y = (value[n] - shift) / scale
        y_true = y
        if clips:
            y = clipped(likelihood, y, alpha, beta, noise_var, settings.clip)
        log_z, da, db, narrowing, score = evidence_to_learn(likelihood, y, alpha, beta, noise_var, level)
        if y != y_true:
            log_z = evidence(likelihood, y_true, alpha, beta, noise_var)[0]
        out[3, n] = log_z - log_scale
        good = abs(log_z) < HUGE and abs(da) < HUGE and 0 <= narrowing < HUGE  # a NaN fails too
        if good:
            counts.log_evidence[()] += log_z - log_scale
        else:
            counts.refused[()] += 1
            counts.rejected[()] += settings.n_elements
        if good:
            counts.clipped[()] += y != y_true
        if good and settings.follows:
            note_value(stream, y_true, alpha, beta + noise_var, settings.clip)
        if good and stream.watching[()] != WATCH:
            db2 = real(0)
            if settings.curvature:
                curvature_pass(settings, c)
                db2 = real(2 * db)
            # c g² var <= c beta for every element, so c beta < 1 keeps all variances positive
            if settings.curvature or narrowing * beta > SAFE:
                counts.rejected[()] += bend_weights(settings, c, real(da), db2, real(narrowing))
            else:
                narrow_weights(c, real(da), real(narrowing))
            counts.rejected[()] += move_factors(places, index, n, settings, c, real(da), db2, real(narrowing))
            if settings.normal:
                # rare large values are noise, unless they are wild: clipped, they would let it collapse
                y_noise = y_true if abs(y_true) < WILD else y
                lam, off = settings.forgetting, misfit(y_noise, alpha, beta, noise_var, settings.paper_noise)
                noise.shape[()] = lam * noise.shape[()] + 0.5
                if not settings.node_noise:
                    noise.rate[()] = lam * noise.rate[()] + 0.5 * off
                else:
                    noise.rate[()] = lam * noise.rate[()] + 0.5 * off / factor
                    square, kept = off / noise_var, noise_var / (beta + noise_var)
                    common = move_log_noise(places, stream.log_noise, index, n, settings, c, square, kept)
                    noise.rate[()] *= math.exp(-common)
            else:
                if settings.has_level:
                    learn_level(stream, da, narrowing)
                learn_noise(likelihood, noise, score, settings.forgetting)
        counts.entries[()] += 1
        if counts.entries[()] % settings.refine_every == 0:
            unpack(places, settings, c, False)
            counts.rejected[()] += _refine(places, settings, c.s)
            if settings.follows and full_window(stream, settings.clip):
                return n + 1
            pack(places, settings, c)
    if learning:
        unpack(places, settings, c, is_packed and index.shape[0] - start == 1)
    return index.shape[0]


@kernel(**PART)
def _refine(places, settings, like):
    """Sections 13 and 4 for every layer: what a memory forgets, then the sites; how many were rejected."""
    rejected, last = 0, len(settings.inputs) - 1
    for m in range(last + 1):
        outputs = settings.inputs[m + 1] if m < last else 1
        var = elements(places.weight_var[m], like)
        if settings.widening > 1:
            for e in range(outputs * (settings.inputs[m] + 1)):
                var[e] = max(var[e], min(settings.slab_var, var[e] * settings.widening))
        rejected += refine(
            elements(places.weight_mean[m], like),
            var,
            elements(places.site_precision[m], like),
            elements(places.site_precision_mean[m], like),
            elements(places.site_log_odds[m], like),
            outputs * (settings.inputs[m] + 1),
            settings.slab_var,
            settings.rho0,
        )
    return rejected


_DEFAULT = Prior()
LAYOUT: Any = ["C_CONTIGUOUS", "WRITEABLE"]  # an array of another layout is another type to compile for
SAFE = 0.999  # c beta below this keeps every variance positive, rounding included


@dataclass(frozen=True, kw_only=True)
class SequentialMethod(Method):
    """A Method whose states the kernel can run beside those of others, without its `update` and `predict`."""

    record: Callable[[State], Record]  # of a state, for `run_models`


def _told(state: State) -> NDArray[np.int64]:
    """The counts that an Update reports."""
    return np.array([state.counts.rejected, state.counts.refused, state.counts.clipped])


def sequential(
    network: Network,
    likelihood: Likelihood,
    prior: Prior = _DEFAULT,
    *,
    curvature: bool = False,
    noise_memory: float | None = 10_000,
    refine_every: int = 256,
    clip: float | None = None,
    node_noise: bool = False,
    memory: float | None = None,
) -> SequentialMethod:
    """SPIDER as a Method.

    curvature:    differentiate log Z through beta as well (the paper); without it, cheaper and mostly better
    noise_memory: entries after which an error has faded from the noise by 1/e; None is the paper's noise,
                  which remembers all errors and counts an entry's uncertainty twice (likelihoods.misfit)
    refine_every: entries between two refinements of the prior, however the calls are cut
    clip:         learn from a residual as if it were at most so many predictive standard deviations, and
                  follow the level and the scale of the values; None: take every value as it is
    node_noise:   give every node its own part of the noise
    memory:       entries of its own after which a node has forgotten; None: never
    """
    if refine_every < 1:
        raise ValueError(f"refine_every must be at least 1 entry, got {refine_every}")
    ranks = np.array(network.ranks, np.int64)
    code = check(likelihood, LIKELIHOODS.values(), "the sequential engine").code
    node_noise = bool(node_noise) and likelihood.normal  # others have no noise to give to nodes
    check_robust(clip, node_noise, memory, noise_memory)
    settings = Settings(
        likelihood=code,
        activation=ACTIVATIONS.index(network.activation),
        curvature=bool(curvature),
        slab_var=float(prior.slab_var),
        rho0=float(prior.rho0),
        forgetting=forgetting(noise_memory),
        paper_noise=noise_memory is None,
        refine_every=int(refine_every),
        normal=likelihood.normal,
        has_level=likelihood.level_var > 0,
        clip=float(clip) if clip is not None and likelihood.clips else math.inf,
        follows=clip is not None and likelihood.normal,
        node_noise=node_noise,
        widening=widening(memory),
        log_noise_prior=posterior.node_noise_var(network.n_modes),
        log_noise_widening=log_noise_widening(memory),
        bias=int(network.bias),
        multilinear=network.multilinear,
        product=network.product,
        ranks=ranks,
        inputs=np.array([columns - 1 for _, columns in network.layers], np.int64),
        n_elements=sum(network.factor_sizes) + network.n_weights,
        # depends on an element's part, not on the mode: the longest vector serves all
        prior_var=posterior.factor_prior_var(network, prior, int(np.argmax(ranks))),
    )

    shapes = [
        *network.layers,
        *((size,) for size in network.factor_sizes),
        *[()] * (network.n_modes * node_noise),
    ]

    def init(seed: int) -> State:
        return posterior.init(network, prior, seed, node_noise=node_noise, level_var=likelihood.level_var)

    known: Any = None, None  # a state and its record: making it takes 100 us

    def record(state: State) -> Record:
        nonlocal known
        of, found = known
        if of is not state:
            found = record_of(state, settings, shapes)
            known = state, found
        return found

    def run(learning: bool, state: State, start: int, index, value, out) -> int:
        found = record(state)
        if learning and not found.writable:
            raise ValueError("this state is read-only, and learning works in place: copy it first")
        return run_models(learning, start, index, value, found.record, found.like, out[None])[0]

    def update(state: State, batch: Batch) -> tuple[State, Update]:
        check_batch(batch, network.n_modes)
        n = len(batch.value)
        out = np.empty((4, n))
        if not n:
            return state, Update(*out, rejected=0)
        state = posterior.grow(state, network, prior, batch.index.max(axis=0) + 1)
        index = np.require(batch.index, np.int64, LAYOUT)
        value = np.require(batch.value, np.float64, LAYOUT)
        before, done = _told(state), 0
        while done < n:
            done = run(True, state, done, index, value, out)
            if state.stream.watching == DECIDE:
                follow(state, network, prior)
        mean, var, noise, log_evidence = out
        return state, Update(mean, var, noise, log_evidence, *(_told(state) - before).tolist())

    def predict(state: State, index: NDArray[np.integer]) -> Prediction:
        check_index(index, network.n_modes)
        index = np.require(index, np.int64, LAYOUT)
        out = np.empty((4, len(index)))
        run(False, state, 0, index, np.empty(0), out)
        return Prediction(*out[:3])

    return SequentialMethod(init, update, predict, record=record)
