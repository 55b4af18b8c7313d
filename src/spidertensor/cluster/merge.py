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

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import HUGE
from spidertensor.spider.follow import RUNNING
from spidertensor.spider.posterior import Counts, Gamma, Gaussian, State, Stream
from spidertensor.spider.robust import LARGEST_LOG_NOISE

STEPS = 2  # average steps of the workers that the mean of a weight takes
MOST = 8  # of a row, also if more workers have touched it


def merge_rows(
    rows: Gaussian,
    parts: Sequence[tuple[NDArray[np.int64], Gaussian]],
    prior_var: NDArray[np.floating] | float,
    unseen_mean: float | None = None,
) -> int:
    """Change rows of `rows` in place to what all workers have learned of them; how many elements were not.

    parts:       of each worker, the rows that it touched, each once, and what these are now
    prior_var:   of an element; a memory widens a variance up to it and no further
    unseen_mean: what the mean of a row counts as that has exactly the variance of the prior
    """
    touched, place, touches = np.unique(
        np.concatenate([where for where, _ in parts]), return_inverse=True, return_counts=True
    )
    places = np.split(place, np.cumsum([len(where) for where, _ in parts])[:-1])
    shared = touches > 1
    for (where, after), at in zip(parts, places, strict=True):
        alone = ~shared[at]  # nothing to merge: bit for bit what the worker has
        rows.mean[where[alone]], rows.var[where[alone]] = after.mean[alone], after.var[alone]
    if not shared.any():
        return 0
    target, number = touched[shared], np.cumsum(shared) - 1
    before = Gaussian(rows.mean[target], rows.var[target])
    if unseen_mean is not None:
        unseen = before.var >= np.float32(prior_var)
        before = before._replace(mean=np.where(unseen, unseen_mean, before.mean))
    sums = _Sums(before)
    for (_, after), at in zip(parts, places, strict=True):
        several = shared[at]
        sums.add(Gaussian(after.mean[several], after.var[several]), number[at[several]])
    share = np.minimum(1, MOST / touches[shared]).reshape(-1, *[1] * (rows.mean.ndim - 1))
    mean, var, rejected = sums.merged(share, prior_var)
    rows.mean[target], rows.var[target] = mean, var
    return rejected


def merge_weights(before: Gaussian, parts: Sequence[Gaussian], prior_var: float) -> tuple[Gaussian, int]:
    """A layer's weights, and how many elements were rejected."""
    sums = _Sums(before)
    for after in parts:
        sums.add(after, ...)
    mean, var, rejected = sums.merged(min(1, STEPS / len(parts)), prior_var)
    return Gaussian(mean, var), rejected


class _Sums:
    """Of the changes of natural parameters, in float64: they are small differences of large numbers."""

    def __init__(self, before: Gaussian) -> None:
        self.before = before
        self.precision = 1 / before.var.astype(np.float64)
        self.weighted = self.precision * before.mean
        self.more_precision = np.zeros(before.var.shape)
        self.more_weighted = np.zeros(before.var.shape)
        self.widest = before.var.astype(np.float64)

    def add(self, after: Gaussian, at: Any) -> None:
        var = after.var.astype(np.float64)
        self.more_precision[at] += 1 / var - self.precision[at]
        self.more_weighted[at] += after.mean / var - self.weighted[at]
        self.widest[at] = np.maximum(self.widest[at], var)

    def merged(
        self, share: NDArray[np.float64] | float, prior_var: NDArray[np.floating] | float
    ) -> tuple[NDArray[np.floating], NDArray[np.floating], int]:
        """`share`: how much of the summed step the mean takes; the precision takes all of it."""
        mean_then, var_then = self.before
        # A memory makes changes negative, and their sum may leave no precision at all: a variance grows to
        # that of the prior, or the largest that any worker has arrived at, and no further.
        least = 1 / np.maximum(self.widest, prior_var)
        with np.errstate(all="ignore"):
            precision = np.maximum(self.precision + share * self.more_precision, least)
            mean = (self.weighted + share * self.more_weighted) / precision
            mean = mean.astype(mean_then.dtype)
            var = (1 / np.maximum(self.precision + self.more_precision, least)).astype(var_then.dtype)
            good = (np.abs(mean) < HUGE) & (var > 1 / HUGE) & (var < HUGE)  # a NaN fails too
        return np.where(good, mean, mean_then), np.where(good, var, var_then), int((~good).sum())


def merge_log_noise(
    rows: Gaussian,
    parts: Sequence[tuple[NDArray[np.int64], Gaussian]],
    prior_var: float,
    running: float,
) -> int:
    """`merge_rows` for a mode's log_noise. A node that no entry had touched started at the running mean."""
    rejected = merge_rows(rows, parts, prior_var, unseen_mean=running)
    for where, _ in parts:
        rows.mean[where] = np.clip(rows.mean[where], -LARGEST_LOG_NOISE, LARGEST_LOG_NOISE)
    return rejected


def merge_shared(before: State, parts: Sequence[State], slab_var: float) -> State:
    """All of a state but the rows of its nodes and its sites, which a worker does not change.

    Each of several workers counts its window from 0 (`for_workers`), so that no entry is counted twice.
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
    noise = Gamma(*_averages(before.posterior.noise, [part.posterior.noise for part in parts]))
    return before._replace(
        posterior=before.posterior._replace(weights=tuple(weights), noise=noise),
        counts=_counts(before.counts, [part.counts for part in parts], rejected),
        stream=_stream(before.stream, [part.stream for part in parts]),
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


def _stream(before: Stream, parts: Sequence[Stream]) -> Stream:
    """Running means move by the average of the workers' steps: each step is a share of the way to where the
    values are now, and the sum of several would go past it. The window counts entries, and adds up."""
    entries = min(before.entries + sum(part.entries - before.entries for part in parts), float(RUNNING))
    mean, var, log_noise = _averages(
        (before.mean, before.var, before.log_noise), [(part.mean, part.var, part.log_noise) for part in parts]
    )
    window = before.window
    for part in parts:
        window = _joined_windows(window, part.window)
    return before._replace(entries=np.array(entries), mean=mean, var=var, log_noise=log_noise, window=window)


def _averages(before: Sequence[Any], parts: Sequence[Sequence[Any]]) -> list[NDArray[np.float64]]:
    return [
        np.array(then + sum(part[i] - then for part in parts) / len(parts)) for i, then in enumerate(before)
    ]


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
