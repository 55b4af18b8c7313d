"""A call of the vectorized engine, on the host: one model learns a batch, or several models that share a
compiled program learn it together.

The nodes of the entries are gathered into a table for each model, batch after batch is learned on the device
(vectorized_updates.py), and the results are written back. All that a device holds of a model is one vector:
each array would be a transfer of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Batch, Update
from spidertensor.spider import posterior
from spidertensor.spider.follow import DECIDE, WATCH, follow, full_window, note_in_window
from spidertensor.spider.posterior import LEVEL_NOISE_VAR, Prior, State, StreamState
from spidertensor.spider.robust import LARGEST_LEVEL_NOISE
from spidertensor.spider.vectorized_noise import Numbers, Settings
from spidertensor.spider.vectorized_table import CallNodes, gathered, n_elements
from spidertensor.spider.vectorized_updates import LearnedBatch, learn, unpacked

BATCHES_AT_ONCE = (64, 8, 1)  # batches in one compiled call: the largest number that fits
SMALL_BATCH = 16  # places for a batch, or a prediction, with at most this many entries


class Program(NamedTuple):
    """What models have in common that can learn together."""

    settings: Settings
    places: int  # most entries learned at once
    refine_every: int


class Member(NamedTuple):
    """What models that learn together may differ in."""

    numbers: Numbers
    prior: Prior


class _Cuts(NamedTuple):
    """The batches of a call: start and number of entries of each, and whether to refine after it."""

    start: NDArray[np.int64]
    taken: NDArray[np.int32]
    due: NDArray[np.bool_]


def learn_call(
    program: Program, members: Sequence[Member], states: Sequence[State], batch: Batch, slots: tuple[int, ...]
) -> list[tuple[State, Update]]:
    """Learn a batch of at least one entry. The states have learned the same entries before.

    slots: of an entry for the attributes of each table; () without attributes
    """
    network = program.settings.network
    rows = posterior.rows_of(network, batch)
    pairs = list(zip(states, members, strict=True))
    states = [posterior.grow(state, network, member.prior, rows) for state, member in pairs]
    cuts = _cuts(int(states[0].counts.entries), len(batch.value), program.places, program.refine_every)
    before, done, reports = list(map(_reported_counts, states)), 0, []
    while done < len(cuts.start):
        done, out = _learn_some(program, members, states, batch, cuts, slots, done)
        reports.append(out)
        for state, member in zip(states, members, strict=True):
            if state.stream.watching == DECIDE:
                follow(state, network, member.prior)
    results = zip(states, np.concatenate(reports, axis=2), before, strict=True)
    return [
        (state, Update(*out, *(_reported_counts(state) - counts).tolist())) for state, out, counts in results
    ]


def _cuts(seen: int, n: int, places: int, refine_every: int) -> _Cuts:
    """Cut n entries into batches by the number the state has `seen`, not by where the call starts."""
    phase = (seen + np.arange(n)) % refine_every
    start = np.flatnonzero(phase % places == 0)
    start = start if start.size and start[0] == 0 else np.insert(start, 0, 0)
    end = np.append(start[1:], n)
    return _Cuts(start, (end - start).astype(np.int32), (seen + end) % refine_every == 0)


def _learn_some(
    program: Program,
    members: Sequence[Member],
    states: Sequence[State],
    batch: Batch,
    cuts: _Cuts,
    slots: tuple[int, ...],
    done: int,
) -> tuple[int, NDArray[np.float64]]:
    """Learn the batches of a call from number `done` on, in place: to the end, or to a batch after which a
    window is to be watched or decided on. Returns the number of batches done, and their (models, 4, n)
    `_report`s."""
    settings, places = program.settings, program.places
    streams = [state.stream for state in states]
    tables = [gathered(state, settings.network, batch, len(cuts.start) * places, slots) for state in states]
    size = len(tables[0].factors.mean)
    arrays = chain.from_iterable(_packed(*each) for each in zip(states, tables, strict=True))
    vectors = np.concatenate([array.reshape(-1) for array in arrays]).reshape(len(states), -1)
    carry = jnp.asarray(vectors)
    with np.errstate(over="ignore"):  # a value that overflows float32 is an entry without evidence
        y = np.stack([(batch.value - stream.shift) / stream.scale for stream in streams])
        value = y.astype(carry.dtype)
    numbers = np.stack([member.numbers.packed(carry.dtype) for member in members])
    watching = np.array([stream.watching == WATCH for stream in streams])
    results: list[tuple[LearnedBatch, NDArray[np.floating], NDArray[np.bool_]]] = []
    first, stop = cuts.start[done], len(cuts.start)
    while done < stop:
        length = next(length for length in BATCHES_AT_ONCE if length <= stop - done)
        start, taken, due = (part[done : done + length] for part in cuts)
        width = min(places, SMALL_BATCH) if length == 1 and taken[0] <= SMALL_BATCH else places
        at = start[:, None] + np.arange(width)
        filled = np.arange(width) < taken[:, None]
        at[~filled] = 0
        entries = tables[0].entries(at, filled, value, batch.weight)
        after, learned = learn(settings, size, numbers, carry, entries, taken, due, watching)
        for array in learned:  # start all copies: one by one would wait for each
            array.copy_to_host_async()
        if settings.robust:
            kept = [[part.copy() for part in stream] for stream in streams]
            each = zip(members, streams, _of_models(learned), y, strict=True)
            changes = [_note(member.numbers.clip, stream, of, y[at], due) for member, stream, of, y in each]
            stop = min([stop, *(done + change + 1 for change in changes if change is not None)])
            if stop < done + length:  # learned too far: undo, and learn again up to there
                for part, old in zip(chain(*streams), chain(*kept), strict=True):
                    part[...] = old
                continue
        carry = after
        results.append((learned, value[:, at], filled))
        done += length
    for state, table, vector in zip(states, tables, np.asarray(carry), strict=True):
        _put_back(settings, state, table, vector)
    elements = n_elements(settings.network, batch)[first:]
    found = [
        zip(_of_models(learned), value, [filled] * len(states), strict=True)
        for learned, value, filled in results
    ]
    return done, np.array(
        [_report(settings, state, of, elements) for state, *of in zip(states, *found, strict=True)]
    )


def _of_models(learned: LearnedBatch) -> list[LearnedBatch]:
    """The results of each model, on the host."""
    return [LearnedBatch(*parts) for parts in zip(*map(np.asarray, learned), strict=True)]


def _note(clip: float, stream: StreamState, learned: LearnedBatch, y, due) -> int | None:
    """Section 11, on the host: update the windows with these batches, whose values are y. Returns the number
    of the first batch after which a window is to be watched or decided on, if any."""
    reported, good, _, var = learned
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


def _report(settings: Settings, state: State, results, elements: NDArray[np.int64]) -> NDArray[np.float64]:
    """(4, n) mean, var, noise and log evidence in the units of the values; updates the state's counts.

    elements: how many each entry moves, or fails to move if it is refused
    """
    n, at = sum(np.count_nonzero(filled) for _, _, filled in results), 0
    out, good, counts = np.empty((4, n)), np.empty(n, bool), state.counts
    for learned, value, filled in results:
        here = slice(at, at + np.count_nonzero(filled))
        reported = learned.reported.swapaxes(0, 1)
        for row, numbers in zip(out, reported, strict=False):
            row[here] = numbers[filled]
        good[here] = learned.good[filled]
        counts.rejected[()] += int(learned.rejected.sum())
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


def _packed(state: State, table: CallNodes) -> list[NDArray[np.floating]]:
    """What a device holds of a model, in the order of `unpacked`."""
    sums = np.concatenate([np.ravel(part) for part in _sums(state)])
    high = sums.astype(table.factors.mean.dtype)
    arrays = list(table.factors)
    for layers in (state.posterior.weights, state.sites):
        for of_layers in zip(*layers, strict=True):
            arrays += of_layers
    return [*arrays, *(table.log_noise or ()), high, (sums - high).astype(high.dtype)]


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


def _put_back(settings: Settings, state: State, table: CallNodes, vector: NDArray[np.floating]) -> None:
    carry = unpacked(settings, len(table.factors.mean), vector)
    learned = table._replace(factors=carry.factors, log_noise=carry.log_noise)
    for mode, here, rows, place in learned.places(state):
        mode.mean[rows], mode.var[rows] = here.mean[place], here.var[place]
    for layers, vectors in ((state.posterior.weights, carry.weights), (state.sites, carry.sites)):
        for arrays, of_all in zip(zip(*layers, strict=True), vectors, strict=True):
            at = 0
            for array in arrays:
                array[...] = of_all[at : at + array.size].reshape(array.shape)
                at += array.size
    sums, at = np.asarray(carry.sums.high, np.float64) + carry.sums.low, 0
    for part in _sums(state):
        part[...] = sums[at : at + part.size].reshape(part.shape)
        at += part.size
    # float32 on the device may round beyond the bounds, and a file of such a state would be refused
    level, var = state.stream.level_noise, state.stream.level_noise_var
    np.clip(level, -LARGEST_LEVEL_NOISE, LARGEST_LEVEL_NOISE, out=level)
    np.minimum(var, LEVEL_NOISE_VAR, out=var)
