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

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import HUGE
from spidertensor.spider.follow import RUNNING_ENTRIES, WATCH
from spidertensor.spider.posterior import LEVEL_NOISE_VAR, Counts, Gamma, Gaussian, State, StreamState
from spidertensor.spider.robust import LARGEST_LEVEL_NOISE, SQUARES_RUNNING


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
    if len(parts) == 1:  # nothing to merge
        (of, own), then = (parts[0].posterior, parts[0]), before.posterior
        weights, noise, counts, stream = copied((of.weights, of.noise, own.counts, own.stream))
        return before._replace(
            posterior=then._replace(weights=weights, noise=noise),
            counts=counts._replace(nodes=before.counts.nodes),
            stream=stream,
        )
    weights, rejected = [], 0
    for layer, then in enumerate(before.posterior.weights):
        weight, lost = merge_weights(then, [part.posterior.weights[layer] for part in parts], slab_var)
        weights.append(weight)
        rejected += lost
    noise = _noise(before, parts, forgetting)
    return before._replace(
        posterior=before.posterior._replace(weights=tuple(weights), noise=noise),
        counts=_counts(before.counts, [part.counts for part in parts], rejected),
        stream=_stream(before, parts)._replace(**_level_noise(before, parts)),
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


def _stream(before: State, parts: Sequence[State]) -> StreamState:
    then, streams, learned = before.stream, [part.stream for part in parts], _learned(before, parts)
    entries, alone, turn = _running(float(then.entries), learned, RUNNING_ENTRIES)
    mean, var = (
        _in_turn(getattr(then, name), [getattr(stream, name) for stream in streams], alone, turn)
        for name in ("mean", "var")
    )
    n, *steps = _running(float(then.squares[0]), learned, SQUARES_RUNNING)
    square = _in_turn(then.squares[1], [stream.squares[1] for stream in streams], *steps)
    # rounding aside, no worker lets the mean fall below the least of all
    square = max(float(square), min(float(each.squares[1]) for each in (then, *streams)))
    window = then.window
    for stream in streams:
        window = _joined_windows(window, stream.window)
    squares = np.array([n, square])
    return then._replace(entries=np.array(entries), mean=mean, var=var, squares=squares, window=window)


def _level_noise(before: State, parts: Sequence[State]) -> dict[str, NDArray[np.float64]]:
    """Noise by level (section 23): all workers move it in the same direction, as they do the weights."""
    then, *after = (
        Gaussian(each.stream.level_noise, each.stream.level_noise_var) for each in (before, *parts)
    )
    merged, _ = merge_weights(then, after, LEVEL_NOISE_VAR)
    mean = np.clip(merged.mean, -LARGEST_LEVEL_NOISE, LARGEST_LEVEL_NOISE)
    var = np.minimum(merged.var, LEVEL_NOISE_VAR)
    return {"level_noise": mean.astype(np.float64), "level_noise_var": var.astype(np.float64)}


def _noise(before: State, parts: Sequence[State], forgetting: float) -> Gamma:
    steps, noise = [forgetting**n for n in _learned(before, parts)], before.posterior.noise
    return Gamma(
        *(
            _in_turn(
                getattr(noise, name), [getattr(part.posterior.noise, name) for part in parts], steps, steps
            )
            for name in noise._fields
        )
    )


def _running(entries: float, learned: list[int], most: float) -> tuple[float, list[float], list[float]]:
    """The number of entries of a running mean after those of all workers; and the weights for `_in_turn`.

    most: entries over which it runs
    """
    start, alone, turn = entries, [], []
    for n in learned:
        alone.append(_left(start, n, most))
        turn.append(_left(entries, n, most))
        entries = min(entries + n, float(most))
    return entries, alone, turn


def _left(entries: float, n: int, most: float) -> float:
    """Weight that remains of a running mean over `entries` (at most `most`) after n more."""
    growing = min(n, max(most - entries, 0.0))
    return entries / max(entries + growing, 1.0) * (1 - 1 / most) ** (n - growing)


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
    """Two windows (StreamState.window) as one."""
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
