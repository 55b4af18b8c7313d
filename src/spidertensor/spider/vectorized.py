"""SPIDER for any network, on CPU or GPU: a Method in JAX. Needs the extra `jax`.

The state is the NumPy state of the sequential engine. A call gathers the nodes of its entries into one table,
learns batch after batch on the device (vectorized_updates.py), and writes the results back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from spidertensor.method import HUGE, Bags, Batch, Method, Prediction, Update, check_batch, check_index
from spidertensor.spider import posterior
from spidertensor.spider.bags import plain
from spidertensor.spider.custom_network import CustomSizes
from spidertensor.spider.follow import DECIDE, LEAST_NOISE, WATCH, follow, full_window, note_in_window
from spidertensor.spider.likelihoods import OF_ENGINES, Likelihood, check
from spidertensor.spider.likelihoods.gaussian import forgetting
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import LEVEL_NOISE_VAR, Prior, State, StreamState
from spidertensor.spider.robust import LARGEST_LEVEL_NOISE, check_robust, log_noise_widening, widening
from spidertensor.spider.vectorized_networks import Normal, check_function, flat
from spidertensor.spider.vectorized_noise import Numbers, Pair, Settings, hats
from spidertensor.spider.vectorized_table import CallNodes, factors_of, gathered, n_elements, slots_of
from spidertensor.spider.vectorized_updates import Carry, LearnedBatch, Sites, evaluate, learn

BATCHES_AT_ONCE = (64, 8, 1)  # batches in one compiled call: the largest number that fits
LARGEST_BATCH = 2**14  # entries, or attributes of a table in them: the n x n matrix takes 1 GiB
SMALL_BATCH = 16  # places for a batch, or a prediction, with at most this many entries
BLOCK_ENTRIES = 1024  # predicted at once, or fewer:
BLOCK_GRADIENTS = 2**26  # numbers in the gradients of one block


class _Cuts(NamedTuple):
    """The batches of a call: start and number of entries of each, and whether to refine after it."""

    start: NDArray[np.int64]
    taken: NDArray[np.int32]
    due: NDArray[np.bool_]


class _Room(NamedTuple):
    """Sizes of compiled functions: entries of a batch, and slots of an entry for a table's attributes."""

    places: int
    slots: tuple[int, ...] = ()  # empty without attributes


def _cuts(seen: int, n: int, places: int, refine_every: int) -> _Cuts:
    """Cut n entries into batches by the number the state has `seen`, not by where the call starts."""
    phase = (seen + np.arange(n)) % refine_every
    start = np.flatnonzero(phase % places == 0)
    start = start if start.size and start[0] == 0 else np.insert(start, 0, 0)
    end = np.append(start[1:], n)
    return _Cuts(start, (end - start).astype(np.int32), (seen + end) % refine_every == 0)


def _learn_all(
    settings: Settings, numbers: Numbers, state: State, batch: Batch, cuts: _Cuts, room: _Room, done: int
) -> tuple[int, NDArray[np.float64]]:
    """Learn the batches of a call from number `done` on, in place: to the end, or to a batch after which a
    window is to be watched or decided on. Returns the number of batches done, and their `_report`."""
    stream = state.stream
    places = room.places
    table = gathered(state, settings.network, batch, len(cuts.start) * places, room.slots)
    carry = _carry(state, table)
    with np.errstate(over="ignore"):  # a value that overflows float32 is an entry without evidence
        y = (batch.value - stream.shift) / stream.scale
        value = y.astype(carry.weights.mean.dtype)
    given = Numbers(*(np.asarray(number, value.dtype) for number in numbers))
    results: list[tuple[LearnedBatch, NDArray[np.bool_], NDArray[np.floating]]] = []
    first, stop = cuts.start[done], len(cuts.start)
    while done < stop:
        length = next(length for length in BATCHES_AT_ONCE if length <= stop - done)
        start, taken, due = (part[done : done + length] for part in cuts)
        width = min(places, SMALL_BATCH) if length == 1 and taken[0] <= SMALL_BATCH else places
        at = start[:, None] + np.arange(width)
        filled = np.arange(width) < taken[:, None]
        at[~filled] = 0
        entries, watching = table.entries(at, filled, value, batch.weight), stream.watching == WATCH
        after, learned = learn(settings, given, carry, entries, taken, due, watching)
        _fetch(learned)
        if settings.robust:
            kept = [part.copy() for part in stream]
            changes = _note(numbers.clip, stream, learned, y[at], due)
            if changes is not None:
                stop = done + changes + 1
            if stop < done + length:  # learned too far: undo, and learn again up to there
                for part, old in zip(stream, kept, strict=True):
                    part[...] = old
                continue
        carry = after
        results.append((learned, filled, value[at]))
        done += length
    _fetch(carry)
    _put_back(state, table, carry)
    return done, _report(settings, state, results, n_elements(settings.network, batch)[first:])


def _note(clip: float, stream: StreamState, learned: LearnedBatch, y, due) -> int | None:
    """Section 11, on the host: update the windows with these batches, whose values are y. Returns the number
    of the first batch after which a window is to be watched or decided on, if any."""
    reported, good, var = (np.asarray(part) for part in (learned.reported, learned.good, learned.values_var))
    f, f_var, noise = (reported[:, row][good].astype(np.float64) for row in range(3))
    y, total_var = y[good], f_var + noise
    watching, first, last = int(stream.watching), 0, np.cumsum(good.sum(axis=1)).tolist()
    for number in np.union1d(np.flatnonzero(due), len(due) - 1).tolist():
        here = slice(first, last[number])
        note_in_window(stream.window, y[here], f[here], total_var[here], clip)
        if due[number]:
            stream.var[()] = var[number]
            full_window.py_func(stream, clip)
            if stream.watching != watching:
                return number
        first = here.stop
    return None


def _fetch(tree: tuple) -> None:
    """Start copying all arrays to the host: copying one by one would wait for each."""
    for array in jax.tree.leaves(tree):
        array.copy_to_host_async()


def _report(settings: Settings, state: State, results, elements: NDArray[np.int64]) -> NDArray[np.float64]:
    """(4, n) mean, var, noise and log evidence in the units of the values; updates the state's counts.

    elements: how many each entry moves, or fails to move if it is refused
    """
    n, at = sum(np.count_nonzero(filled) for _, filled, _ in results), 0
    out, good, counts = np.empty((4, n)), np.empty(n, bool), state.counts
    for learned, filled, value in results:
        here = slice(at, at + np.count_nonzero(filled))
        reported = np.asarray(learned.reported).swapaxes(0, 1)
        for row, numbers in zip(out, reported, strict=False):
            row[here] = numbers[filled]
        good[here] = np.asarray(learned.good)[filled]
        counts.rejected[()] += int(np.asarray(learned.rejected).sum())
        if settings.clips:
            counts.clipped[()] += np.count_nonzero((reported[4] != value) & learned.good)
        at = here.stop
    shift, scale = float(state.stream.shift), float(state.stream.scale)
    out[0] = shift + scale * out[0]
    out[1:3] *= scale * scale
    out[3] -= math.log(scale)
    counts.entries[()] += n
    counts.refused[()] += n - np.count_nonzero(good)
    counts.rejected[()] += elements[:n][~good].sum()
    # summed in the order of the entries: the result does not depend on how calls are cut
    log_evidence = out[3, good]
    if log_evidence.size:
        log_evidence[0] += counts.log_evidence
        counts.log_evidence[()] = np.cumsum(log_evidence)[-1]
    return out


def _reported_counts(state: State) -> NDArray[np.int64]:
    """The counts whose changes an Update reports."""
    return np.array([state.counts.rejected, state.counts.refused, state.counts.clipped])


def _vectors(layers: Sequence[tuple[NDArray[np.floating], ...]]) -> Iterator[jax.Array]:
    """Gaussians or sites of all layers concatenated, each part as one vector."""
    return (jnp.asarray(flat(arrays, np)) for arrays in zip(*layers, strict=True))


def _carry(state: State, table: CallNodes) -> Carry:
    """The state on the device."""
    sums = np.concatenate([np.ravel(part) for part in _sums(state)])
    high = sums.astype(table.factors.mean.dtype)
    return Carry(
        Normal(*map(jnp.asarray, table.factors)),
        Normal(*_vectors(state.posterior.weights)),
        Sites(*_vectors(state.sites)),
        Normal(*map(jnp.asarray, table.log_noise)) if table.log_noise else None,
        Pair(jnp.asarray(high), jnp.asarray((sums - high).astype(high.dtype))),
    )


def _sums(state: State) -> tuple[NDArray[np.float64], ...]:
    """The running sums, in the order of Carry.sums."""
    stream = state.stream
    return (
        *state.posterior.noise,
        stream.entries,
        stream.mean,
        stream.var,
        stream.squares,
        stream.level_noise,
        stream.level_noise_var,
        stream.level_counts,
    )


def _put_back(state: State, table: CallNodes, carry: Carry) -> None:
    carry = jax.tree.map(np.asarray, carry)
    learned = table._replace(factors=carry.factors, log_noise=carry.log_noise)
    for mode, here, rows, place in learned.places(state):
        mode.mean[rows], mode.var[rows] = here.mean[place], here.var[place]
    for layers, vectors in ((state.posterior.weights, carry.weights), (state.sites, carry.sites)):
        for arrays, vector in zip(zip(*layers, strict=True), vectors, strict=True):
            at = 0
            for array in arrays:
                array.flat = vector[at : at + array.size]
                at += array.size
    sums, at = np.asarray(carry.sums.high, np.float64) + carry.sums.low, 0
    for part in _sums(state):
        part[...] = sums[at : at + part.size].reshape(part.shape)
        at += part.size
    # float32 on the device may round beyond the bounds, and a file of such a state would be refused
    level, var = state.stream.level_noise, state.stream.level_noise_var
    np.clip(level, -LARGEST_LEVEL_NOISE, LARGEST_LEVEL_NOISE, out=level)
    np.minimum(var, LEVEL_NOISE_VAR, out=var)


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
) -> Method:
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

    learned: dict[str, Any] = {"without_id": network.without_id, "n_tables": len(network.tables)}
    learned["weighted"] = likelihood.weighted

    def init(seed: int) -> State:
        own = {"level_var": likelihood.level_var, "levels": likelihood.levels}
        return posterior.init(network, prior, seed, node_noise=settings.node_noise, **own)

    widest = [1] * len(network.tables)

    def with_slots(bags: Bags) -> _Room:
        """Room for these attributes. It never shrinks: otherwise calls of few entries, whose largest bags
        vary, would compile for all combinations of sizes."""
        slots = slots_of(network, bags)
        check_slots(places, slots)
        widest[:] = map(max, widest, slots)
        return _Room(places, tuple(widest))

    def learn_batch(state: State, batch: Batch) -> tuple[State, Update]:
        n = len(batch.value)
        check_batch(batch, network.n_modes, **learned)
        if not n:
            return state, Update(*np.empty((4, 0)), rejected=0)
        room = _Room(places)
        if batch.bags is not None:
            batch = batch._replace(bags=(bags := plain(batch.bags)))
            room = with_slots(bags)
        state = posterior.grow(state, network, prior, posterior.rows_of(network, batch))
        cuts = _cuts(int(state.counts.entries), n, places, refine_every)
        before, done, reports = _reported_counts(state), 0, []
        while done < len(cuts.start):
            done, out = _learn_all(settings, numbers, state, batch, cuts, room, done)
            reports.append(out)
            if state.stream.watching == DECIDE:
                follow(state, network, prior)
        return state, Update(*np.concatenate(reports, axis=1), *(_reported_counts(state) - before).tolist())

    def predict(state: State, index: NDArray[np.integer], bags: Bags | None = None) -> Prediction:
        index = np.asarray(index)
        check_index(index, network.n_modes, bags, len(network.tables))
        bags = None if bags is None else plain(bags)
        out = np.empty((3, len(index)))
        weights, places = Normal(*_vectors(state.posterior.weights)), SMALL_BATCH
        if len(index) > SMALL_BATCH:
            places = max(min(BLOCK_ENTRIES, BLOCK_GRADIENTS // network.n_weights), SMALL_BATCH)
        results = []
        for start in range(0, len(index), places):
            rows = index[start : start + places]
            of = None if bags is None else bags.part(start, start + len(rows))
            u = factors_of(state, network, prior, rows, of, places)
            results.append(evaluate(network, weights, Normal(*map(jnp.asarray, u))))
            _fetch(results[-1])
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

    return Method(init, learn_batch, predict, unit="entry" if places == 1 else "batch")
