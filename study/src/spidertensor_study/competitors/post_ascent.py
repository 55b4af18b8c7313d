"""One batch of POST: coordinate ascent on the variational bound, compiled. mathematics.md section 8.

The nodes of the batch are stored mode after mode, those of mode k from first[k] to first[k + 1].
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.spider.compiled import COMPILE, HOT, PART, kernel
from spidertensor.spider.likelihoods.probit import mills


class POSTSettings(NamedTuple):
    gaussian: bool  # the likelihood; probit if not
    tolerance: float
    max_sweeps: int


class NodePrior(NamedTuple):
    precision: NDArray[np.float64]  # prior_cov^-1
    shift: NDArray[np.float64]  # prior_cov^-1 prior_mean
    fixed: NDArray[np.bool_]  # prior_cov has no inverse: the node is known exactly and does not move


class Nodes(NamedTuple):
    mean: NDArray[np.float64]
    cov: NDArray[np.float64]
    second: NDArray[np.float64]  # E[u u^T] = cov + mean mean^T


class Scratch(NamedTuple):
    sum_T: NDArray[np.float64]  # sums over the entries of each node
    sum_t: NDArray[np.float64]
    matrix: NDArray[np.float64]
    vector: NDArray[np.float64]


@kernel(**COMPILE)
def ascend(index, value, first, mean, cov, noise, settings):
    """Coordinate ascent from the prior in `mean` and `cov`, which become the posterior.

    Returns the number of sweeps, b, and how many elements of means could not be updated.
    """
    r = mean.shape[1]
    nodes = Nodes(mean, cov, np.empty_like(cov))
    work = Scratch(np.empty_like(cov), np.empty_like(mean), np.empty((r, r)), np.empty(r))
    prior = _natural(nodes, work)
    rejected = prior.fixed.sum()
    gaussian = settings.gaussian
    # the target is y, or E[z] of the probit, which starts at 2y - 1 and has tau = 1
    target = value.copy() if gaussian else 2.0 * value - 1.0
    shape, rate = noise.shape[()] + 0.5 * len(value), noise.rate[()]
    tau = noise.shape[()] / rate if gaussian else 1.0
    sweep, change = 0, np.inf
    while sweep < settings.max_sweeps and change >= settings.tolerance:
        sweep, change = sweep + 1, 0.0
        for k in range(index.shape[1]):
            work.sum_T[first[k] : first[k + 1]] = 0.0
            work.sum_t[first[k] : first[k + 1]] = 0.0
            _add_up(index, target, k, nodes, work)
            for j in range(first[k], first[k + 1]):
                if not prior.fixed[j]:
                    step = _move(j, tau, prior, nodes, work)
                    rejected += step == np.inf
                    change += step if step < np.inf else 0.0
            if gaussian:
                rate = noise.rate[()] + 0.5 * _square_error(index, value, nodes)
                tau = shape / rate
            else:
                _auxiliary(index, value, nodes, target)
    return sweep, rate, r * rejected


@kernel(**PART)
def _natural(nodes, work):
    """Fill in the natural parameters of the prior, and `nodes.second`."""
    L, r = nodes.mean.shape
    precision, shift, fixed = np.zeros_like(nodes.cov), np.zeros((L, r)), np.zeros(L, np.bool_)
    inverse = work.matrix
    for j in range(L):
        _square(j, nodes)
        for p in range(r):
            for q in range(p + 1):
                inverse[p, q] = nodes.cov[j, p * (p + 1) // 2 + q]
        fixed[j] = not _invert(inverse)
        if not fixed[j]:
            for p in range(r):
                for q in range(p + 1):
                    precision[j, p * (p + 1) // 2 + q] = inverse[p, q]
                for q in range(r):
                    shift[j, p] += inverse[p, q] * nodes.mean[j, q]
    return NodePrior(precision, shift, fixed)


@kernel(**HOT)
def _square(j, nodes):
    for p in range(nodes.mean.shape[1]):
        for q in range(p + 1):
            e = p * (p + 1) // 2 + q
            nodes.second[j, e] = nodes.cov[j, e] + nodes.mean[j, p] * nodes.mean[j, q]


@kernel(**PART)
def _add_up(index, target, k, nodes, work):
    """For each node of mode k, over its entries: sum_n T_n and sum_n t_n y_n, products over other modes."""
    r, elements = nodes.mean.shape[1], nodes.second.shape[1]
    t, T = np.empty(r), np.empty(elements)
    for n in range(index.shape[0]):
        t[:] = target[n]
        T[:] = 1.0
        for other in range(index.shape[1]):
            node = index[n, other]
            if other != k:
                for p in range(r):
                    t[p] *= nodes.mean[node, p]
                for e in range(elements):
                    T[e] *= nodes.second[node, e]
        node = index[n, k]
        for p in range(r):
            work.sum_t[node, p] += t[p]
        for e in range(elements):
            work.sum_T[node, e] += T[e]


@kernel(**HOT)
def _move(j, tau, prior, nodes, work):
    """cov^-1 = prior_cov^-1 + tau sum T,  mean = cov (prior_cov^-1 prior_mean + tau sum t y) of node j.

    Returns how far the mean moved; infinite, with nothing changed, if the result would not be finite.
    """
    r = nodes.mean.shape[1]
    new, moved = work.matrix, work.vector
    for p in range(r):
        work.sum_t[j, p] = (
            prior.shift[j, p] + tau * work.sum_t[j, p]
        )  # overwrites the sum, which is not needed any more
        for q in range(p + 1):
            e = p * (p + 1) // 2 + q
            new[p, q] = prior.precision[j, e] + tau * work.sum_T[j, e]
    if not _invert(new):
        return np.inf
    step = 0.0
    for p in range(r):
        moved[p] = 0.0
        for q in range(r):
            moved[p] += new[p, q] * work.sum_t[j, q]
        step += abs(moved[p] - nodes.mean[j, p])
    if not step < np.inf:  # also false for NaN
        return np.inf
    for p in range(r):
        nodes.mean[j, p] = moved[p]
        for q in range(p + 1):
            nodes.cov[j, p * (p + 1) // 2 + q] = new[p, q]
    _square(j, nodes)
    return step


@kernel(**HOT)
def _invert(a):
    """Invert a in place, reading its lower triangle; False if it is not positive definite."""
    r = len(a)
    for p in range(r):  # a = C C^T, with 1 / C_pp on the diagonal of C
        rest = a[p, p]
        for s in range(p):
            rest -= a[p, s] * a[p, s]
        if not 0.0 < rest < np.inf:  # also false for NaN
            return False
        a[p, p] = 1.0 / np.sqrt(rest)
        for i in range(p + 1, r):
            rest = a[i, p]
            for s in range(p):
                rest -= a[i, s] * a[p, s]
            a[i, p] = rest * a[p, p]
    for q in range(r):  # C^-1
        for p in range(q + 1, r):
            rest = 0.0
            for s in range(q, p):
                rest -= a[p, s] * a[s, q]
            a[p, q] = rest * a[p, p]
    for p in range(r):  # C^-T C^-1
        for q in range(p + 1):
            total = 0.0
            for s in range(p, r):
                total += a[s, p] * a[s, q]
            a[p, q] = a[q, p] = total
    return True


@kernel(**PART)
def _square_error(index, value, nodes):
    """sum_n E[(y_n - f_n)^2]: the same as in mathematics.md, here as (y - E f)^2 + var f, never negative."""
    r, elements = nodes.mean.shape[1], nodes.second.shape[1]
    total, T = 0.0, np.empty(elements)
    for n in range(index.shape[0]):
        T[:] = 1.0
        for k in range(index.shape[1]):
            node = index[n, k]
            for e in range(elements):
                T[e] *= nodes.second[node, e]
        square = 2.0 * T.sum()  # counts both triangles, and so the diagonal twice
        for p in range(r):
            square -= T[p * (p + 3) // 2]
        f = _f(index, n, nodes)
        total += (value[n] - f) ** 2 + max(square - f * f, 0.0)
    return total


@kernel(**PART)
def _auxiliary(index, value, nodes, target):
    """E[z] = f + (2y - 1) phi(f) / Phi((2y - 1) f); with t = (2y - 1) f this is (2y - 1) (t + R(t))."""
    for n in range(len(value)):
        sign = 2.0 * value[n] - 1.0
        target[n] = sign * mills(sign * _f(index, n, nodes))[2]


@kernel(**HOT)
def _f(index, n, nodes):
    f = 0.0
    for p in range(nodes.mean.shape[1]):
        product = 1.0
        for k in range(index.shape[1]):
            product *= nodes.mean[index[n, k], p]
        f += product
    return f
