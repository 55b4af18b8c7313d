"""SPIDER entry by entry: assumed-density filtering in a compiled loop. mathematics.md sections 3 to 5."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import HUGE, Bags, Batch, Method, Prediction, Update, check_batch, check_index
from spidertensor.spider import posterior
from spidertensor.spider.bags import plain
from spidertensor.spider.compiled import COMPILE, PART, kernel
from spidertensor.spider.follow import DECIDE, LEAST_NOISE, WATCH, WILD, follow, full_window, note_value
from spidertensor.spider.likelihoods import OF_ENGINES, Likelihood, check
from spidertensor.spider.likelihoods.count import learn_level
from spidertensor.spider.likelihoods.gaussian import forgetting, misfit
from spidertensor.spider.likelihoods.kernel import (
    ORDINAL,
    clipped,
    evidence,
    evidence_to_learn,
    learn_noise,
    shared_noise,
)
from spidertensor.spider.likelihoods.ordinal import expected_value, level_evidence
from spidertensor.spider.network import ACTIVATIONS, Network
from spidertensor.spider.posterior import Prior, State
from spidertensor.spider.quick_moments import has_quick_moments, quick_moments
from spidertensor.spider.robust import check_robust, log_noise_widening, widening
from spidertensor.spider.sequential_memory import (
    DOUBLE,
    WHOLE,
    Settings,
    add_bag,
    elements,
    load,
    pack,
    prefetch_rows,
    scratch,
    set_inputs,
    unpack,
)
from spidertensor.spider.sequential_passes import (
    bend_weights,
    curvature_pass,
    evaluate,
    load_log_noise,
    log_noise_at,
    move_bag,
    move_factors,
    move_level_noise,
    move_log_noise,
    n_elements,
    narrow_weights,
    relative_square,
)
from spidertensor.spider.sequential_record import (
    Record,
    only_grown,
    part,
    point_to,
    point_to_nodes,
    record_of,
)
from spidertensor.spider.spike_slab import refine


@kernel(**COMPILE)
def run_models(learning, start, index, value, records, like, out):
    """Run `_entries` on the entries of a call from `start` on, for each model in `records`.

    out (models, 4, n). Returns where the last model stopped and how many elements were rejected in all; -1
    and 0, with nothing done, if the models are out of step or have no room for a node to be learned. This is
    the only way from Python into the loop: one entry and many, one model and several run the same machine
    code, so they agree bit for bit.
    """
    if learning and not _can_learn(index, records):
        return np.int64(-1), np.int64(0)
    stopped, rejected = np.int64(start), np.int64(0)
    for m in range(len(records)):
        r = records[m]
        counts, stream = part(r, "counts"), part(r, "stream")
        rejected -= counts.rejected[()]
        is_packed = r.scratch != 0 and r.packed_at == counts.entries[()]
        stopped = _entries(
            learning, start, index, value, part(r, "bags"), part(r, "places"), part(r, "noise"), counts,
            stream, part(r, "settings"), r.scratch, is_packed, like, out[m],
        )  # fmt: skip
        rejected += counts.rejected[()]
        if r.scratch:
            r.packed_at = -1 if stream.watching[()] == DECIDE else counts.entries[()]
    return stopped, rejected


@kernel(**PART)
def _can_learn(index, records):
    for m in range(len(records)):
        r = records[m]
        counts = part(r, "counts")
        if counts.entries[()] != part(records[0], "counts").entries[()]:
            return False
        for n in range(index.shape[0]):
            for k in range(index.shape[1]):
                if not 0 <= index[n, k] < counts.nodes[k] and part(r, "settings").has_id[k]:
                    return False
        if r.bags_start:
            for j in range(elements(r.bags_start, WHOLE)[index.shape[0]]):
                table = index.shape[1] + elements(r.bags_table, WHOLE)[j]
                if not 0 <= elements(r.bags_row, WHOLE)[j] < counts.nodes[table]:
                    return False
    return True


@kernel(inline="always", **PART)  # into its only caller, before compilation: else it is optimised twice
def _entries(
    learning,
    start,
    index,
    value,
    bags,
    places,
    noise,
    counts,
    stream,
    settings,
    address,
    is_packed,
    like,
    out,
):
    """Predict the entries in order and, if `learning`, learn them.

    One function for both, because both need nearly all of the code and each function compiles for seconds.
    Refines the prior sites every `refine_every` entries. Returns where it stopped: at the end, or after an
    entry where `follow` has to decide.

    address, is_packed: see `scratch`
    """
    mem = scratch(settings, address, is_packed, like)
    if not is_packed:
        pack(places, settings, mem)
    real = mem.s.dtype.type
    likelihood, clips = settings.likelihood, settings.clip < np.inf
    shift, scale = stream.shift[()], stream.scale[()]
    log_scale = math.log(scale)
    widening = real(settings.widening if learning else 1.0)
    for n in range(start, index.shape[0]):
        if n + 1 < index.shape[0]:
            prefetch_rows(places, counts.nodes, index, n + 1, settings, mem)
        load(places, counts.nodes, index, n, settings, widening, mem)
        if bags.start:
            add_bag(places, counts.nodes, bags, n, settings, widening, mem)
        set_inputs(settings, mem)
        alpha, beta = evaluate(settings, mem)
        noise_var, factor, by_level, level = 0.0, 1.0, 1.0, 0.0
        if settings.normal:
            if settings.node_noise:
                factor = math.exp(load_log_noise(places, counts.nodes, index, n, settings, mem))
                by_level = math.exp(log_noise_at(stream.level_noise, alpha))
            noise_var = noise.rate[()] / noise.shape[()] * factor
            least = max(LEAST_NOISE * stream.var[()], 1 / HUGE) if settings.follows else 0.0
            noise_var = max(noise_var, least)
            reported_noise = max(noise_var * by_level, least)  # section 23: not in the step of the mean
            if likelihood == ORDINAL:
                noise_var = reported_noise
        else:
            noise_var = shared_noise(likelihood, noise)
            reported_noise = noise_var
            if settings.has_level:  # section 17: one more element, with gradient 1
                level = stream.mean[()]
                alpha, beta = alpha + level, beta + stream.var[()]
        out[0, n], out[1, n], out[2, n] = (
            shift + scale * alpha,
            scale * scale * beta,
            scale * scale * reported_noise,
        )
        if not learning:
            continue
        # section 11: learn the clipped residual, report the true one
        y = (value[n] - shift) / scale
        y_true = y
        if clips:
            y = clipped(likelihood, y, alpha, beta, noise_var, settings.clip)
        w = elements(bags.entry_weight, DOUBLE)[n] if bags.entry_weight else 1.0
        score = 0.0
        if likelihood == ORDINAL:  # not in evidence_to_learn: there it costs all others 5 %
            log_z, da, db, narrowing = level_evidence(stream, y, alpha, beta, noise_var)
        elif w == 1.0:
            log_z, da, db, narrowing, score = evidence_to_learn(
                likelihood, y, alpha, beta, noise_var, level, None
            )
        else:
            log_z, da, db, narrowing, score = evidence_to_learn(
                likelihood, y, alpha, beta, noise_var, level, w
            )
        if (clips and y != y_true) or reported_noise != noise_var or w != 1.0:
            log_z = evidence(likelihood, y_true, alpha, beta, reported_noise)[0]
        out[3, n] = log_z - log_scale
        good = abs(log_z) < HUGE and abs(da) < HUGE and 0 <= narrowing < HUGE  # false for NaN
        if good:
            counts.log_evidence[()] += log_z - log_scale
        else:
            counts.refused[()] += 1
            counts.rejected[()] += n_elements(settings, index, bags, n)
        if good:
            counts.clipped[()] += y != y_true
        if good and settings.follows:
            note_value(stream, y_true, alpha, beta + reported_noise, settings.clip)
        if good and stream.watching[()] != WATCH:
            db2 = real(0)
            if settings.curvature:
                curvature_pass(settings, mem)
                db2 = real(2 * db)
            # c g² var <= c beta for every element, so c beta < 1 keeps all variances positive
            if settings.curvature or narrowing * beta > SAFE:
                counts.rejected[()] += bend_weights(settings, mem, real(da), db2, real(narrowing))
            else:
                narrow_weights(mem, real(da), real(narrowing))
            if bags.start:
                counts.rejected[()] += move_bag(
                    places, index, bags, n, settings, mem, real(da), db2, real(narrowing), widening
                )
            else:
                counts.rejected[()] += move_factors(
                    places, index, n, settings, mem, real(da), db2, real(narrowing)
                )
            if settings.normal:
                # the noise learns unclipped values unless they are wild: clipped ones would let it collapse
                y_noise = y_true if abs(y_true) < WILD else y
                if likelihood == ORDINAL:
                    y_noise = expected_value(alpha, beta + reported_noise, db)
                lam = settings.forgetting
                off = misfit(y_noise, alpha, beta, reported_noise, settings.paper_noise)
                half = 0.5 * w
                noise.shape[()] = lam * noise.shape[()] + half
                if not settings.node_noise:
                    noise.rate[()] = lam * noise.rate[()] + half * off
                else:
                    noise.rate[()] = lam * noise.rate[()] + half * off / (factor * by_level)
                    total = beta + reported_noise
                    kept = reported_noise / total
                    square = relative_square(stream.squares, (y_noise - alpha) ** 2 / total, kept, w)
                    move_log_noise(places, index, n, settings, mem, square, kept, w)
                    move_level_noise(stream.level_noise, stream.level_noise_var, alpha, square, kept, w)
            else:
                if settings.has_level:
                    learn_level(stream, da, narrowing)
                if w == 1.0:
                    learn_noise(likelihood, noise, score, settings.forgetting, None)
                else:
                    learn_noise(likelihood, noise, score, settings.forgetting, w)
        counts.entries[()] += 1
        if counts.entries[()] % settings.refine_every == 0:
            unpack(places, settings, mem, False)
            counts.rejected[()] += _refine(places, settings, mem.s)
            if settings.follows and full_window(stream, settings.clip):
                return n + 1
            if address or n + 1 < index.shape[0]:
                pack(places, settings, mem)
    if learning and counts.entries[()] % settings.refine_every != 0:  # else the state has them since refining
        unpack(places, settings, mem, is_packed and index.shape[0] - start == 1)
    return index.shape[0]


@kernel(**PART)
def _refine(places, settings, like):
    """For every layer, widen the weights (section 13), then refine the sites (section 4).

    Returns how many elements were rejected.
    """
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
LAYOUT: Any = ["C_CONTIGUOUS", "WRITEABLE"]  # numba would compile again for any other layout
SAFE = 0.999  # c beta below this keeps every variance positive despite rounding


@dataclass(frozen=True, kw_only=True)
class SequentialMethod(Method):
    """A Method whose states can be run together with others' by `run_models`."""

    record: Callable[[State], Record]  # a state's record for `run_models`
    follow: Callable[[State], None]  # what a state where `run_models` stopped needs before it goes on


def _reported_counts(state: State) -> NDArray[np.int64]:
    """The counts whose changes an Update reports."""
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

    curvature:    also differentiate log Z through beta (the paper); without it, cheaper and mostly better
    noise_memory: entries after which an error's weight in the noise has fallen to 1/e; None is the paper's
                  noise, which never forgets and counts an entry's uncertainty twice (gaussian.misfit)
    refine_every: entries between two refinements of the prior, however the calls are cut
    clip:         clip residuals at this many predictive standard deviations, and follow the level and scale
                  of the values; None: learn every value as it is
    node_noise:   give every node its own noise factor
    memory:       number of its own entries over which a node forgets; None: never
    """
    if refine_every < 1:
        raise ValueError(f"refine_every must be at least 1 entry, got {refine_every}")
    ranks = np.array(network.ranks, np.int64)
    code = check(likelihood, OF_ENGINES, "the sequential engine").code
    node_noise = bool(node_noise) and likelihood.normal_noise  # others have no noise per node
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
        normal=likelihood.normal_noise,
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
        has_id=np.array([mode not in network.without_id for mode in range(network.n_modes)], np.int64),
        table_modes=np.array(network.table_modes, np.int64),
        table_scales=np.array(network.table_scales, np.float32),
        inputs=np.array([columns - 1 for _, columns in network.layers], np.int64),
        n_elements=sum(network.factor_sizes) + network.n_weights,
        # depends on the part of the vector, not on the mode: the longest vector serves all
        prior_var=posterior.factor_prior_var(network, prior, int(np.argmax(ranks))),
    )

    shapes = [
        *network.layers,
        *((network.factor_sizes[mode],) for mode in network.table_modes),
        *[()] * (network.n_modes * node_noise),
    ]

    learned: dict[str, Any] = {"without_id": network.without_id, "n_tables": len(network.tables)}
    learned["weighted"] = likelihood.weighted

    def init(seed: int) -> State:
        own = {"level_var": likelihood.level_var, "levels": likelihood.levels}
        return posterior.init(network, prior, seed, node_noise=node_noise, **own)

    known: Any = None, None  # the last state and its record, which takes 100 us to make

    def record(state: State) -> Record:
        nonlocal known
        of, found = known
        if of is not state:
            if of is not None and only_grown(of, state):
                found = found._replace(record=found.record.copy(), kept=(found.kept[0], state))
                point_to_nodes(found.record, state)
            else:
                found = record_of(state, settings, shapes)
            known = state, found
        return found

    def run(
        learning: bool, state: State, start: int, index, value, bags: Bags | None, out, weight: Any = None
    ) -> int:
        found = record(state)
        records = found.record
        if bags is not None or weight is not None:
            records = records.copy()  # other threads may be predicting with the same record
            point_to(records, bags, weight)
        if learning and not found.writable:
            raise ValueError("this state is read-only, but learning works in place: copy it first")
        return run_models(learning, start, index, value, records, found.like, out[None])[0]

    def follow_change(state: State) -> None:
        follow(state, network, prior)

    def update(state: State, batch: Batch) -> tuple[State, Update]:
        n = len(batch.value)
        check_batch(batch, network.n_modes, **learned)
        out = np.empty((4, n))
        if not n:
            return state, Update(*out, rejected=0)
        state = posterior.grow(state, network, prior, posterior.rows_of(network, batch))
        index = np.require(batch.index, np.int64, LAYOUT)
        value = np.require(batch.value, np.float64, LAYOUT)
        bags = None if batch.bags is None else plain(batch.bags)
        weight = None if batch.weight is None else np.require(batch.weight, np.float64, LAYOUT)
        before, done = _reported_counts(state), 0
        while done < n:
            done = run(True, state, done, index, value, bags, out, weight)
            if state.stream.watching == DECIDE:
                follow_change(state)
        mean, var, noise, log_evidence = out
        return state, Update(mean, var, noise, log_evidence, *(_reported_counts(state) - before).tolist())

    def predict(state: State, index: NDArray[np.integer], bags: Bags | None = None) -> Prediction:
        check_index(index, network.n_modes, bags, len(network.tables))
        index = np.require(index, np.int64, LAYOUT)
        out = np.empty((4, len(index)))
        run(False, state, 0, index, np.empty(0), None if bags is None else plain(bags), out)
        return Prediction(*out[:3])

    def quick(state: State, numbers: Sequence[NDArray[np.int64]]) -> Prediction:
        nodes = state.counts.nodes.tolist()
        seen = [np.where(number < n, number, -1) for number, n in zip(numbers, nodes, strict=True)]
        mean, var = quick_moments(state, network, prior, seen, exact=True)
        return Prediction(mean.astype(np.float64), var[0].astype(np.float64), np.zeros(len(mean)))

    # of values that are not 0 or 1, units and noise would come in too
    is_quick = likelihood.binary and not network.tables and has_quick_moments(network)
    fast = quick if is_quick else None
    return SequentialMethod(init, update, predict, quick=fast, record=record, follow=follow_change)
