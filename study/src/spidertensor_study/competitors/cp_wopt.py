"""CP-WOPT: CP factorization of the observed entries by weighted least squares (Acar et al. 2011), static.

mathematics.md section 8. With A the factors of all modes and weight 1 for an observed entry, 0 for others,

    loss(A) = 1/2 sum_n (y_n - f_n)^2,   f_n = sum_r prod_k A^k_{i_k, r}
    d loss / d A^k_{j, r} = sum over the entries n of node j: (f_n - y_n) prod_{l != k} A^l_{i_l, r}

is minimised by SciPy's L-BFGS from several random starts, and the lowest loss is kept. Every fourth start has
no negative element: where the true factors are all positive, a start with both signs gets stuck. The only
regularisation is that a descent ends: after `max_iterations`, or, with `stop_early`, where the loss on a
held-back tenth of the entries is lowest. Values are taken raw, with the squared loss for 0/1 too.

All entries come in one update; a second update is an error, because the state keeps no entries. Least squares
has no posterior, so a Method's other outputs are made up as follows:

- An unseen node has the average factors of its mode, each node weighted by its number of entries. f is then
  the average over the nodes, whatever signs and scales the factorization happens to have.
- `var` of f is close to zero, `noise` is the mean squared residual.
- For 0/1 values the latent f of a Prediction is (fit - 1/2) / (standard deviation of the residuals), so
  P(1) is the chance that fit + residual lies above 1/2. The AUC depends only on the order of the fits.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from spidertensor.evaluation.counts import Counts, no_counts
from spidertensor.method import HUGE, Bags, Batch, Method, Prediction, check_index
from spidertensor.spider.compiled import COMPILE, kernel
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT, Likelihood, check
from spidertensor_study.competitors.static import learns_once

FLAT = 1e-10  # a descent ends when an iteration lowers the loss by a smaller share than this
TINY = 1e-12  # a variance must be positive, also for a perfect fit
SMALLEST = 1e-280  # smallest noise: the squares of very small values underflow to 0
WATCHED = 0.1  # share of the entries that decide when to stop early
PATIENCE = 20  # stop after this many iterations without a lower loss on these entries


Entries = tuple[NDArray[np.int64], NDArray[np.float64]]  # nodes, as numbered in A, and values


class CPWOPTState(NamedTuple):
    factors: tuple[NDArray[np.float64], ...]  # one (nodes, rank) per mode
    average: NDArray[np.float64]  # (modes, rank): factors of an unseen node
    noise: NDArray[np.float64]  # mean squared residual
    counts: Counts
    seed: NDArray[np.int64]


def cp_wopt(
    n_modes: int,
    likelihood: Likelihood,
    *,
    rank: int = 8,
    starts: int = 3,
    max_iterations: int = 100,
    stop_early: bool = False,
) -> Method:
    """CP-WOPT as a static Method; the module says where its variances come from.

    starts:         number of random starts; the one with the lowest loss is kept; every fourth has no
                    negative elements
    max_iterations: of L-BFGS from each start (the authors' optimiser has 1,000); more fit the learned entries
                    better and nodes with few entries worse
    stop_early:     a tenth of the entries is held back, and what fits them best on the way is kept
    """
    check(likelihood, (GAUSSIAN, PROBIT), "CP-WOPT")
    if min(n_modes, rank, starts, max_iterations) < 1:
        raise ValueError(f"{n_modes=}, {rank=}, {starts=} and {max_iterations=} must be at least 1")

    def init(seed: int) -> CPWOPTState:
        return CPWOPTState(
            tuple(np.empty((0, rank)) for _ in range(n_modes)),
            np.zeros((n_modes, rank)),
            np.ones(()),
            no_counts(n_modes),
            np.array(seed, np.int64),
        )

    def predict(state: CPWOPTState, index: NDArray[np.integer], bags: Bags | None = None) -> Prediction:
        check_index(index, n_modes, bags)
        n = len(index)
        product = np.ones((n, rank))
        for k, factor in enumerate(state.factors):
            rows = np.where((index[:, k] >= 0) & (index[:, k] < len(factor)), index[:, k], -1)
            product *= np.vstack([factor, state.average[k]])[rows]  # the last row stands for unseen nodes
        fit, noise = product.sum(axis=1), float(state.noise)
        if likelihood.normal:
            return Prediction(fit, np.full(n, TINY * noise), np.full(n, noise))
        f = (fit - 0.5) / np.sqrt(noise) if state.counts.entries else fit
        return Prediction(f, np.full(n, TINY), np.zeros(n))

    fitted = partial(_fitted, starts, max_iterations, stop_early)
    update = learns_once("CP-WOPT", likelihood, (n_modes, rank), HUGE, predict, fitted)
    return Method(init, update, predict, unit="all")


def _fitted(
    starts: int, max_iterations: int, stop_early: bool, state: CPWOPTState, entries: Batch
) -> CPWOPTState:
    """The factors with the lowest loss of several descents. A has one row per node, mode after mode.

    Values are divided by their root mean square, so the user's units do not matter.
    """
    n_modes, rank = state.average.shape
    first = np.concatenate([[0], np.cumsum(entries.index.max(axis=0) + 1)])
    nodes = np.ascontiguousarray(entries.index + first[:-1], np.int64)
    scale = float(np.sqrt(np.mean(entries.value**2))) or 1.0
    value = np.ascontiguousarray(entries.value / scale)
    watched = None
    if stop_early and len(value) > 1:
        order = np.random.default_rng([int(state.seed), starts]).permutation(len(value))
        held, rest = np.split(order, [max(1, int(WATCHED * len(value)))])
        watched, (nodes, value) = (nodes[held], value[held]), (nodes[rest], value[rest])

    best = np.zeros((first[-1], rank))
    lowest = 0.5 if watched is None else 0.5 * float(np.mean(watched[1] ** 2))  # the loss of all zeros
    for number in range(starts):
        start = _start(np.random.default_rng([int(state.seed), number]), first, rank)
        if number % 4 == 3:
            start = np.abs(start)
        found, its_loss = _descended((nodes, value), watched, start, max_iterations)
        if its_loss < lowest:  # also false for NaN
            best, lowest = found, its_loss

    best *= scale ** (1 / n_modes)
    entries_of = np.bincount(nodes.ravel(), minlength=first[-1])[:, None]
    modes = [slice(a, b) for a, b in pairwise(first)]
    average = np.stack([(entries_of[mode] * best[mode]).sum(axis=0) for mode in modes]) / len(value)
    factors = (np.where(entries_of[mode], best[mode], average[k]) for k, mode in enumerate(modes))
    noise = max(scale**2 * max(2 * lowest, TINY), SMALLEST)
    np.maximum(state.counts.nodes, np.diff(first), out=state.counts.nodes)
    return state._replace(factors=tuple(factors), average=average, noise=np.array(noise))


def _descended(
    learned: Entries, watched: Entries | None, start: NDArray[np.float64], max_iterations: int
) -> tuple[NDArray[np.float64], float]:
    """Where a descent ends, or fitted the watched entries best on the way; and the mean loss there."""

    def mean_loss(entries: Entries, x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        gradient = np.zeros_like(start)
        total = loss(*entries, x.reshape(start.shape), gradient)
        return total / len(entries[1]), gradient.ravel() / len(entries[1])

    best, lowest, since = start, np.inf, 0

    def watch(x: NDArray[np.float64]) -> None:
        nonlocal best, lowest, since
        assert watched is not None
        now, since = mean_loss(watched, x)[0], since + 1
        if now < lowest:
            best, lowest, since = x.reshape(start.shape).copy(), now, 0
        if since == PATIENCE:
            raise StopIteration

    # The size of the gradient says nothing: next to 0, where the descent starts, it is small as well.
    options = {"maxiter": max_iterations, "gtol": 0.0, "ftol": FLAT}
    with threadpool_limits(1, "blas"):  # vectors are short, so threads cost ten times what they save
        found = minimize(
            lambda x: mean_loss(learned, x),
            start.ravel(),
            jac=True,
            method="L-BFGS-B",
            callback=None if watched is None else watch,
            options=options,
        )
    return (found.x.reshape(start.shape), float(found.fun)) if watched is None else (best, lowest)


def _start(rng: np.random.Generator, first: NDArray[np.int64], rank: int) -> NDArray[np.float64]:
    """Normal draws, the columns of each mode scaled to length 1, as the authors' toolbox does.

    So small a start matters: on dblp, one whose f is as large as the values stays at an AUC of 0.51.
    """
    A = rng.standard_normal((first[-1], rank))
    for a, b in pairwise(first):
        A[a:b] /= np.linalg.norm(A[a:b], axis=0)
    return A


@kernel(**COMPILE)
def loss(nodes, value, A, gradient):
    """The loss; adds its gradient, in the layout of A, to `gradient`."""
    K, r = nodes.shape[1], A.shape[1]
    left, right = np.ones((K + 1, r)), np.empty(r)  # products of the factors before a mode, and after it
    total = 0.0
    for n in range(nodes.shape[0]):
        for k in range(K):
            row = nodes[n, k]
            for p in range(r):
                left[k + 1, p] = left[k, p] * A[row, p]
        f = 0.0
        for p in range(r):
            f += left[K, p]
        error = f - value[n]
        total += error * error
        for p in range(r):
            right[p] = error
        for k in range(K - 1, -1, -1):
            row = nodes[n, k]
            for p in range(r):
                gradient[row, p] += left[k, p] * right[p]
                right[p] *= A[row, p]
    return 0.5 * total
