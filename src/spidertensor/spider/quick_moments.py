"""Means and variances of f, for many nodes at once: matrix products, and compiled loops between them.

Half of the time of `predict`. The sums have another order than in the engines, as in quick_means.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spidertensor.spider.compiled import COMPILE, kernel
from spidertensor.spider.custom_network import CustomSizes
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Prior, State, factor_prior_var
from spidertensor.spider.quick_means import Floats, factor_rows, multilinear


def has_quick_moments(network: Network) -> bool:
    """Whether `quick_moments` has the formulas: for networks as they are built by default."""
    return not isinstance(network, CustomSizes) and network.activation == "relu" and not network.product


def quick_moments(
    state: State, network: Network, prior: Prior, numbers: Sequence[NDArray[np.int64]]
) -> tuple[Floats, Floats]:
    """(n,) mean of f and (n,) its variance. Units and numbers: see quick_means."""
    modes = list(zip(state.posterior.factors, numbers, strict=True))
    mean = [factor_rows(factor.mean, number, 0) for factor, number in modes]
    var = [
        factor_rows(factor.var, number, factor_prior_var(network, prior, mode))
        for mode, (factor, number) in enumerate(modes)
    ]
    deep = slice(network.deep_start, None)
    f, f_var = _deep(state, network, [each[:, deep] for each in mean], [each[:, deep] for each in var])
    if network.bias:
        for each_mean, each_var in zip(mean, var, strict=True):
            f, f_var = f + each_mean[:, 0], f_var + each_var[:, 0]
    if network.multilinear:
        columns = slice(int(network.bias), network.deep_start)
        parts = [each[:, columns] for each in mean]
        f = f + multilinear(parts, network)
        for mode, each_var in enumerate(var):
            others = sum(part for other, part in enumerate(parts) if other != mode)  # df/du of this mode
            f_var = f_var + _dot(np.square(others), each_var[:, columns])
    return f, f_var


def _deep(state: State, network: Network, mean: list[Floats], var: list[Floats]) -> tuple[Floats, Floats]:
    """mathematics.md section 3, in its order and with its names. mean, var: of the factors that enter the
    network, (n, rank) of each mode, or (1, rank) if all entries have the same node."""
    cuts = np.cumsum(network.ranks)[:-1]
    W = [each.mean / np.sqrt(each.mean.shape[1], dtype=each.mean.dtype) for each in state.posterior.weights]
    V = [each.var / each.var.dtype.type(each.var.shape[1]) for each in state.posterior.weights]
    h, h2 = [mean], [[np.square(each) for each in mean]]  # of the first layer in parts, one of each mode
    p = []  # s² sum_j V[i,j] h[j]², and a constant
    for weight, weight_var in zip(W[:-1], V[:-1], strict=True):
        p.append(_affine(h2[-1], weight_var, cuts))
        a, constant = _affine(h[-1], weight, cuts)
        squares = np.empty_like(a)
        _relu(a, constant, squares)
        h.append([a])
        h2.append([squares])
    f, f_var = (sum(_affine(*each, cuts))[:, 0] for each in ((h[-1], W[-1]), (h2[-1], V[-1])))
    back = W[-1][:, :-1]
    for (unit_var, constant), weight, (unit,) in zip(p[::-1], W[-2::-1], h[:0:-1], strict=True):
        _through_relu(back, unit, constant, unit_var, f_var)
        back = unit_var @ weight[:, :-1]
    for slope, each_var in zip(np.split(back, cuts, axis=1), var, strict=True):
        f_var = f_var + _dot(np.square(slope), each_var)
    return f, f_var


def _affine(inputs: list[Floats], weight: Floats, cuts: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """(n, outputs) and (outputs,), whose sum is: inputs side by side, and a 1, times weight (outputs, inputs + 1)."""
    parts = np.split(weight[:, :-1], cuts, axis=1) if len(inputs) > 1 else [weight[:, :-1]]
    n, constant = max(map(len, inputs)), weight[:, -1].copy()
    products = []
    for part, columns in zip(inputs, parts, strict=True):
        product = part @ columns.T
        if len(part) == n:
            products.append(product)
        else:
            constant += product[0]
    for other in products[1:]:
        products[0] += other
    return products[0], constant


def _dot(squares: Floats, var: Floats) -> Floats:
    """(n,) sum over the columns of squares * var, each of which may have one row for all."""
    if len(var) == 1:
        return squares @ var[0]
    return var @ squares[0] if len(squares) == 1 else np.einsum("ne,ne->n", squares, var)


@kernel(**COMPILE)
def _relu(a, constant, squares):
    """a (n, units) becomes h = relu(a + constant); squares, to fill: h²."""
    for n in range(a.shape[0]):
        for i in range(a.shape[1]):
            h = a[n, i] + constant[i]
            h = h if h > 0 else np.float32(0)
            a[n, i], squares[n, i] = h, h * h


@kernel(**COMPILE)
def _through_relu(back, h, constant, p, var):
    """p (n, units) becomes delta = back where h > 0, and var (n,) grows by the sum of delta² (p + constant).
    back may have one row for all."""
    for n in range(h.shape[0]):
        row, total = min(n, back.shape[0] - 1), np.float32(0)
        for i in range(h.shape[1]):
            delta = back[row, i] if h[n, i] > 0 else np.float32(0)
            total += delta * delta * (p[n, i] + constant[i])
            p[n, i] = delta
        var[n] += total
