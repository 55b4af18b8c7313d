"""Merge the states of several workers that started from the same state: mathematics.md section 18.

An entry adds to the natural parameters of a Gaussian, precision and precision times mean. So what several
workers learn adds up as long as their steps are small. The sum is too much for a row that very many workers
touched, and for the weights of the network, which all of them move in the same direction: such steps would
overshoot. There the mean takes a smaller step, while the precision takes the sum, because all entries have
been seen.

Everything stays positive and finite: an element for which that fails keeps its value from before the round
and counts as rejected. Sums run in the order of the workers' numbers, not of their arrival.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import HUGE
from spidertensor.spider.follow import RUNNING_ENTRIES, WATCH
from spidertensor.spider.posterior import Counts, Gamma, Gaussian, State, Stream
from spidertensor.spider.robust import LOG_NOISE_RUNNING


def merge_weights(before: Gaussian, parts: Sequence[Gaussian], prior_var: float) -> tuple[Gaussian, int]:
    """Merge a layer's weights; also returns how many elements were rejected."""
    var_then = before.var.astype(np.float64)
    precision, weighted = 1 / var_then, before.mean / var_then
    more_precision, more_weighted = np.zeros((2, *var_then.shape))
    # between the sum, which overshoots, and the mean, which hardly moves
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
        good = (np.abs(mean) < HUGE) & (var > 1 / HUGE) & (var < HUGE)  # false for NaN
    merged = Gaussian(np.where(good, mean, before.mean), np.where(good, var, before.var))
    return merged, int((~good).sum())


def merge_shared(before: State, parts: Sequence[State], slab_var: float, forgetting: float) -> State:
    """Merge all of a state except the rows of its nodes and its sites, which workers do not change.

    Each of several workers starts its window at 0 (`for_workers`), so that no entry counts twice.

    forgetting: factor by which an entry shrinks the noise's shape and rate
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
    """The state that workers start from; several workers start with an empty window each."""
    if workers == 1:
        return state
    return state._replace(stream=state.stream._replace(window=np.zeros_like(state.stream.window)))


def _counts(before: Counts, parts: Sequence[Counts], rejected: int) -> Counts:
    """Add up the workers' counts, which all started from the same numbers."""
    changes = {
        name: sum(getattr(part, name) - getattr(before, name) for part in parts)
        for name in ("entries", "rejected", "refused", "clipped", "log_evidence")
    }
    changes["rejected"] += rejected
    return before._replace(**{name: np.array(getattr(before, name) + n) for name, n in changes.items()})


def _learned(before: State, parts: Sequence[State]) -> list[int]:
    """Number of entries that each worker learned, without refused ones; 0 while the values are watched."""
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
        entries = min(entries + n, float(RUNNING_ENTRIES))
    mean, var = (
        _in_turn(getattr(then, name), [getattr(part.stream, name) for part in parts], alone, turn)
        for name in ("mean", "var")
    )
    window = then.window
    for part in parts:
        window = _joined_windows(window, part.stream.window)
    return then._replace(entries=np.array(entries), mean=mean, var=var, log_noise=log_noise, window=window)


def _noise(before: State, parts: Sequence[State], log_noise: NDArray[np.float64], forgetting: float) -> Gamma:
    """Merge the noise. The running means' moves were taken out of the rate (section 12): put them back,
    merge, and take out the merged move."""
    steps, noise = [forgetting**n for n in _learned(before, parts)], before.posterior.noise
    shape = _in_turn(noise.shape, [part.posterior.noise.shape for part in parts], steps, steps)
    moved = [float((part.stream.log_noise - before.stream.log_noise).sum()) for part in parts]
    rates = [part.posterior.noise.rate * math.exp(by) for part, by in zip(parts, moved, strict=True)]
    # except for rounding, no worker takes away more than forgetting does
    rates = [np.maximum(rate, step * noise.rate) for rate, step in zip(rates, steps, strict=True)]
    rate = _in_turn(noise.rate, rates, steps, steps)
    return Gamma(shape, np.array(rate * math.exp(-float((log_noise - before.stream.log_noise).sum()))))


def _left(entries: float, n: int) -> float:
    """Weight that remains of a running mean over `entries` (at most RUNNING_ENTRIES) after n more."""
    growing = min(n, max(RUNNING_ENTRIES - entries, 0.0))
    return entries / max(entries + growing, 1.0) * (1 - 1 / RUNNING_ENTRIES) ** (n - growing)


def _in_turn(
    before: NDArray[np.float64], parts: Sequence[Any], alone: Sequence[float], turn: Sequence[float]
) -> NDArray[np.float64]:
    """Apply the workers' moves of a quantity that forgets one after the other; all started from `before`.

    alone: weight of the starting value in each worker's result; turn: weight that each leaves in its turn.
    The mean of the results would follow as slowly as one worker alone; the sum would overshoot.
    """
    value = np.array(before, np.float64)
    for own, left, keep in zip(parts, alone, turn, strict=True):
        scale = 1.0 if left == keep else (1 - keep) / (1 - left)
        value = keep * value + scale * (own - left * before)
    return np.array(value)


def _joined_windows(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Two windows (Stream.window) as one."""
    if not a[0] or not b[0]:
        return (a if a[0] else b).copy()
    n = a[0] + b[0]
    share = b[0] / n
    joined = a + share * (b - a)  # the means, and the within-window part of the second moments
    off_y, off_f = b[2] - a[2], b[3] - a[3]
    joined[4:] += share * (1 - share) * np.array([off_y * off_y, off_f * off_f, off_y * off_f])
    joined[0], joined[1] = n, a[1] + b[1]
    return joined


def copied(tree: Any) -> Any:
    """A deep copy with writable arrays: what a worker sends may be read-only."""
    if isinstance(tree, tuple):
        return type(tree)(*map(copied, tree)) if hasattr(tree, "_fields") else tuple(map(copied, tree))
    return tree.copy()
