"""One state out of those of several workers that started from the same one: mathematics.md section 18.

A Gaussian factor has natural parameters, precision and precision times mean, and what an entry tells adds to
them. So what several workers have learned adds up, as long as their steps are small. Two things need less
than the sum: a row that very many workers touched, and the weights of the network, which all of them moved
in the same direction: added up, such steps overshoot. There the mean takes fewer steps, while the precision
takes the sum, because the entries have all been seen.

Everything stays positive and finite: an element for which that fails is left as it was before the round, and
counted as rejected. All sums go in the order of the workers' numbers, so they do not depend on who was first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import HUGE
from spidertensor.spider.compiled import COMPILE, PART, kernel
from spidertensor.spider.follow import RUNNING, WATCH
from spidertensor.spider.posterior import Counts, Gamma, Gaussian, State, Stream
from spidertensor.spider.robust import LARGEST_LOG_NOISE, LOG_NOISE_RUNNING

MOST = 8  # of a row, also if more workers have touched it


class Marks(NamedTuple):
    """Of each row of a mode: workers that touch it in this round, and where its sums are. All 0 between two
    merges, so that a merge costs nothing for the rows it does not touch."""

    touches: NDArray[np.int32]
    place: NDArray[np.int32]


def marks(n_rows: int) -> Marks:
    return Marks(*np.zeros((2, n_rows), np.int32))


def merge_rows(
    rows: Gaussian,
    parts: Sequence[tuple[NDArray[np.int64], Gaussian]],
    prior_var: NDArray[np.floating] | float,
    unseen_mean: float = math.nan,
    used: Marks | None = None,
    left: Sequence[NDArray[np.float64]] | None = None,
    modes: int = 1,
) -> int:
    """Change rows of `rows` in place to what all workers have learned of them; how many elements were not.

    parts:       of each worker, the rows that it touched, each once, and what these are now
    prior_var:   of an element; a memory widens a variance up to it and no further
    unseen_mean: what the mean of a row counts as that has the variance of the prior; NaN: as it is
    used:        marks that are kept from round to round
    left:        of each worker and row, how much of the precision a memory has left; None: all of it
    modes:       of an entry
    """
    size = math.prod(rows.mean.shape[1:])
    mean, var = (each.reshape(-1, size) for each in rows)  # views
    prior_var = np.full(size, prior_var, np.float64)
    left = left or [np.ones(len(where)) for where, _ in parts]
    touches, place = used or marks(len(mean))
    shared = sum(_count(where, touches) for where, _ in parts)
    sums = np.empty((shared, 6, size))
    n = 0
    for (where, after), keep in zip(parts, left, strict=True):
        own = [each.reshape(-1, size) for each in after]
        n = _add(where, *own, keep, mean, var, touches, place, sums, n, prior_var, unseen_mean)
    return sum(
        _finish(where, mean, var, touches, place, sums, prior_var, unseen_mean, modes) for where, _ in parts
    )


# Compiled: in a round of many workers this is what they all wait for. Not fastmath: a NaN must be noticed.
_EXACT: dict[str, Any] = COMPILE | {"fastmath": False}


@kernel(**_EXACT)
def _count(where, touches):
    """Mark the rows that a worker has touched; how many of them are now touched by two."""
    shared = 0
    for row in where:
        touches[row] += 1
        shared += touches[row] == 2
    return shared


@kernel(**_EXACT)
def _add(where, own_mean, own_var, keep, mean, var, touches, place, sums, n, prior_var, unseen_mean):
    """What one worker has made of its rows: rows of its own at once, bit for bit; of others the sums.

    sums: precision, worker by worker: what a memory leaves of what is there, and what this one has learned;
          change of precision; precision times step of the mean; largest and smallest precision of a worker;
          and once for the row, what the memories have taken
    n:    rows that have sums so far; returns how many have then
    """
    size = mean.shape[1]
    for i in range(len(where)):
        row = where[i]
        if touches[row] == 1:
            for e in range(size):
                mean[row, e], var[row, e] = own_mean[i, e], own_var[i, e]
            continue
        fresh = place[row] == 0
        if fresh:
            n += 1
            place[row] = n
        of = sums[place[row] - 1]
        for e in range(size):
            m, v = _before(mean[row, e], var[row, e], prior_var[e], unseen_mean)
            if fresh:
                of[:, e] = 0
                of[0, e], of[4, e] = 1 / v, 1 / v
            least, own = 1 / prior_var[e], 1 / np.float64(own_var[i, e])
            of[0, e] = _kept(of[0, e], keep[i], least) + own - _kept(1 / v, keep[i], least)
            of[1, e] += own - 1 / v
            of[2, e] += own * (own_mean[i, e] - m)
            of[3, e], of[4, e] = max(of[3, e], own), min(of[4, e], own)
        of[5, 0] += 1 - keep[i]
    return n


@kernel(**_EXACT)
def _finish(where, mean, var, touches, place, sums, prior_var, unseen_mean, modes):
    """The rows of one worker that others have touched too, from the sums, once; and all marks taken away."""
    rejected, dtype = 0, mean.dtype.type
    for row in where:
        at, workers = place[row] - 1, touches[row]
        touches[row], place[row] = 0, 0
        if at < 0:
            continue
        of = sums[at]
        share = min(1.0, MOST / workers)
        # What each worker forgets of a node it has to learn again from its own entries, and so have the nodes
        # of all modes: so much of an error all workers have corrected alike, and it must not be added up.
        alike = min(1.0, modes * of[5, 0] / workers)
        if alike > 0:
            share *= (1 - (1 - alike) ** workers) / (workers * alike)
        for e in range(mean.shape[1]):
            m, v = _before(mean[row, e], var[row, e], prior_var[e], unseen_mean)
            least = min(of[4, e], 1 / prior_var[e])  # never wider than the prior, or than a worker has it
            new_mean = dtype(m + share * of[2, e] / max(1 / v + share * of[1, e], of[3, e]))
            new_var = dtype(1 / max(of[0, e], least))
            if abs(new_mean) < HUGE and 1 / HUGE < new_var < HUGE:  # a NaN fails too
                mean[row, e], var[row, e] = new_mean, new_var
            else:
                rejected += 1
    return rejected


@kernel(**PART)
def _kept(precision, keep, least):
    """What a memory leaves of a precision: no less than the prior's, if it had as much."""
    return max(precision * keep, min(precision, least))


@kernel(**PART)
def _before(mean, var, prior_var, unseen_mean):
    if not math.isnan(unseen_mean) and var >= np.float32(prior_var):
        return np.float64(unseen_mean), np.float64(var)
    return np.float64(mean), np.float64(var)


def merge_weights(before: Gaussian, parts: Sequence[Gaussian], prior_var: float) -> tuple[Gaussian, int]:
    """A layer's weights, and how many elements were rejected."""
    var_then = before.var.astype(np.float64)
    precision, weighted = 1 / var_then, before.mean / var_then
    more_precision, more_weighted = np.zeros((2, *var_then.shape))
    # between their sum, which goes too far, and their mean, which hardly moves
    widest, share = var_then, len(parts) ** -0.5
    with np.errstate(all="ignore"):
        for after in parts:
            var = after.var.astype(np.float64)
            more_precision += 1 / var - precision
            more_weighted += after.mean / var - weighted
            widest = np.maximum(widest, var)
        least = 1 / np.maximum(widest, prior_var)
        mean = (weighted + share * more_weighted) / np.maximum(precision + share * more_precision, least)
        mean = mean.astype(before.mean.dtype)
        var = (1 / np.maximum(precision + more_precision, least)).astype(before.var.dtype)
        good = (np.abs(mean) < HUGE) & (var > 1 / HUGE) & (var < HUGE)  # a NaN fails too
    merged = Gaussian(np.where(good, mean, before.mean), np.where(good, var, before.var))
    return merged, int((~good).sum())


def merge_log_noise(
    rows: Gaussian,
    parts: Sequence[tuple[NDArray[np.int64], Gaussian]],
    prior_var: float,
    running: float,
    used: Marks | None = None,
    left: Sequence[NDArray[np.float64]] | None = None,
) -> int:
    """`merge_rows` for a mode's log_noise. A node that no entry had touched started at the running mean."""
    rejected = merge_rows(rows, parts, prior_var, running, used, left)
    for where, _ in parts:
        rows.mean[where] = np.clip(rows.mean[where], -LARGEST_LOG_NOISE, LARGEST_LOG_NOISE)
    return rejected


def merge_shared(before: State, parts: Sequence[State], slab_var: float, forgetting: float) -> State:
    """All of a state but the rows of its nodes and its sites, which a worker does not change.

    Each of several workers counts its window from 0 (`for_workers`), so that no entry is counted twice.

    forgetting: what an entry leaves of the noise's shape and rate
    """
    kept = {"factors": before.posterior.factors, "log_noise": before.posterior.log_noise}
    if len(parts) == 1:  # nothing to merge
        own = copied(parts[0])
        counts = own.counts._replace(nodes=before.counts.nodes)
        return own._replace(posterior=own.posterior._replace(**kept), sites=before.sites, counts=counts)
    weights, rejected = [], 0
    for layer, then in enumerate(before.posterior.weights):
        weight, lost = merge_weights(then, [part.posterior.weights[layer] for part in parts], slab_var)
        weights.append(weight)
        rejected += lost
    stream = _stream(before, parts)
    return before._replace(
        posterior=before.posterior._replace(
            weights=tuple(weights), noise=_noise(before, parts, stream.log_noise, forgetting)
        ),
        counts=_counts(before.counts, [part.counts for part in parts], rejected),
        stream=stream,
    )


def for_workers(state: State, workers: int) -> State:
    """The state as workers start from it: of several, each has a window in which only its entries count."""
    if workers == 1:
        return state
    return state._replace(stream=state.stream._replace(window=np.zeros_like(state.stream.window)))


def _counts(before: Counts, parts: Sequence[Counts], rejected: int) -> Counts:
    """Every worker has counted on from the same numbers."""
    changes = {
        name: sum(getattr(part, name) - getattr(before, name) for part in parts)
        for name in ("entries", "rejected", "refused", "clipped", "log_evidence")
    }
    changes["rejected"] += rejected
    return before._replace(**{name: np.array(getattr(before, name) + n) for name, n in changes.items()})


def _learned(before: State, parts: Sequence[State]) -> list[int]:
    """Entries that each worker has learned: none while the values are watched, and no refused ones."""
    if before.stream.watching == WATCH:
        return [0] * len(parts)
    counted = [part.counts.entries - part.counts.refused for part in parts]
    return [int(n - before.counts.entries + before.counts.refused) for n in counted]


def _stream(before: State, parts: Sequence[State]) -> Stream:
    then, learned = before.stream, _learned(before, parts)
    steps = [(1 - 1 / LOG_NOISE_RUNNING) ** n for n in learned]
    log_noise = _in_turn(then.log_noise, [part.stream.log_noise for part in parts], steps, steps)
    start, alone, turn = float(then.entries), [], []
    entries = start
    for n in learned:
        alone.append(_left(start, n))
        turn.append(_left(entries, n))
        entries = min(entries + n, float(RUNNING))
    mean, var = (
        _in_turn(getattr(then, name), [getattr(part.stream, name) for part in parts], alone, turn)
        for name in ("mean", "var")
    )
    window = then.window
    for part in parts:
        window = _joined_windows(window, part.stream.window)
    return then._replace(entries=np.array(entries), mean=mean, var=var, log_noise=log_noise, window=window)


def _noise(before: State, parts: Sequence[State], log_noise: NDArray[np.float64], forgetting: float) -> Gamma:
    """What moved all nodes' log_noise was taken out of the rate (section 12): put in, merged, taken out."""
    steps, noise = [forgetting**n for n in _learned(before, parts)], before.posterior.noise
    shape = _in_turn(noise.shape, [part.posterior.noise.shape for part in parts], steps, steps)
    moved = [float((part.stream.log_noise - before.stream.log_noise).sum()) for part in parts]
    rates = [part.posterior.noise.rate * math.exp(by) for part, by in zip(parts, moved, strict=True)]
    # no worker can have taken more away than forgetting does, but for rounding
    rates = [np.maximum(rate, step * noise.rate) for rate, step in zip(rates, steps, strict=True)]
    rate = _in_turn(noise.rate, rates, steps, steps)
    return Gamma(shape, np.array(rate * math.exp(-float((log_noise - before.stream.log_noise).sum()))))


def _left(entries: float, n: int) -> float:
    """How much of a mean over so many entries, at most RUNNING, is left after n more."""
    growing = min(n, max(RUNNING - entries, 0.0))
    return entries / max(entries + growing, 1.0) * (1 - 1 / RUNNING) ** (n - growing)


def _in_turn(
    before: NDArray[np.float64], parts: Sequence[Any], alone: Sequence[float], turn: Sequence[float]
) -> NDArray[np.float64]:
    """Something that forgets, which all workers have moved from the same value: moved by them in turn.

    alone: how much of that value is left in what each worker has; turn: how much each leaves in its turn.
    Their mean would follow as slowly as if only one of them had learned, their sum would go too far.
    """
    value = np.array(before, np.float64)
    for own, left, keep in zip(parts, alone, turn, strict=True):
        scale = 1.0 if left == keep else (1 - keep) / (1 - left)
        value = keep * value + scale * (own - left * before)
    return np.array(value)


def _joined_windows(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Number, sum of squares, means of y and f, variances and covariance of two windows as those of one."""
    if not a[0] or not b[0]:
        return (a if a[0] else b).copy()
    n = a[0] + b[0]
    share = b[0] / n
    joined = a + share * (b - a)  # means; and of the moments around these, the part within each window
    off_y, off_f = b[2] - a[2], b[3] - a[3]
    joined[4:] += share * (1 - share) * np.array([off_y * off_y, off_f * off_f, off_y * off_f])
    joined[0], joined[1] = n, a[1] + b[1]
    return joined


def copied(tree: Any) -> Any:
    """Arrays of its own: what a worker has sent may be read-only."""
    if isinstance(tree, tuple):
        return type(tree)(*map(copied, tree)) if hasattr(tree, "_fields") else tuple(map(copied, tree))
    return tree.copy()
