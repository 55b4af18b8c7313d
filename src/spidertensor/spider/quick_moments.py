"""Means of f and bounds of its variance, for many nodes at once: matrix products, and compiled loops between.

The variance is that of `predict` except for the part from a hidden layer's weights: the sum over its outputs
i of delta_i² sum_j V_ij h_j² (mathematics.md section 3). That would take another matrix product per layer,
and is small after many entries. It lies between the same sums with the least and the greatest V_ij over i,
which need no such product.

Takes a little more than half the time of `predict`. The order of summation differs, as in quick_means.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spidertensor.spider.compiled import COMPILE, kernel
from spidertensor.spider.custom_network import CustomSizes
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Gaussian, Prior, State, factor_prior_var
from spidertensor.spider.quick_means import Floats, factor_rows, multilinear


def has_quick_moments(network: Network) -> bool:
    """Whether `quick_moments` supports this network, as it does those built by default."""
    return not isinstance(network, CustomSizes) and network.activation == "relu" and not network.product


def quick_moments(
    state: State, network: Network, prior: Prior, numbers: Sequence[NDArray[np.int64]]
) -> tuple[Floats, Floats, Floats]:
    """(n,) mean of f, and (n,) lower and upper bounds of its variance. Units and numbers: see quick_means."""
    modes = list(zip(state.posterior.factors, numbers, strict=True))
    mean = [factor_rows(factor.mean, number, 0) for factor, number in modes]
    var = [
        factor_rows(factor.var, number, factor_prior_var(network, prior, mode))
        for mode, (factor, number) in enumerate(modes)
    ]
    deep = slice(network.deep_start, None)
    f, (low, high), slopes = _deep(state, network, [each[:, deep] for each in mean])
    of_factors = sum(_dot(np.square(slope), each[:, deep]) for slope, each in zip(slopes, var, strict=True))
    if network.bias:
        f = f + sum(each[:, 0] for each in mean)
        of_factors = of_factors + sum(each[:, 0] for each in var)
    if network.multilinear:
        columns = slice(int(network.bias), network.deep_start)
        parts = [each[:, columns] for each in mean]
        f = f + multilinear(parts, network)
        for mode, each in enumerate(var):
            slope = sum(part for other, part in enumerate(parts) if other != mode)
            of_factors = of_factors + _dot(np.square(slope), each[:, columns])
    return f, low + of_factors, high + of_factors


def _deep(state: State, network: Network, mean: list[Floats]) -> tuple[Floats, Floats, list[Floats]]:
    """The deep part of f (n,); (2, n) bounds of what its weights add to the variance; and the gradient of f
    with respect to each mode's factors. Letters: mathematics.md section 3.

    mean: factor means, (n, rank) per mode, or (1, rank) if all entries have the same node
    """
    cuts = np.cumsum(network.ranks)[:-1]
    W, V = zip(*(_scaled(weight) for weight in state.posterior.weights), strict=True)
    ends = [np.stack([each.min(axis=0), each.max(axis=0)]) for each in V]  # (2, inputs + 1) of each layer
    h = mean
    units, bounds = [], [_sum(*_affine([np.square(each) for each in mean], ends[0], cuts))]
    for weight, end in zip(W[:-1], ends[1:], strict=True):
        a, constant = _affine(h, weight, cuts)
        bound = np.empty((len(a), 2), a.dtype)
        _relu(a, constant, end, bound)
        h = [a]
        units.append(a)
        bounds.append(bound)
    f = _sum(*_affine(h, W[-1], cuts))[:, 0]
    var, back = bounds.pop().T, W[-1][:, :-1]
    for unit, bound, weight in zip(units[::-1], bounds[::-1], W[-2::-1], strict=True):
        delta, steep = np.empty_like(unit), np.empty(len(unit), unit.dtype)
        _through_relu(back, unit, delta, steep)
        var = var + steep * bound.T
        back = delta @ weight[:, :-1]
    return f, var, np.split(back, cuts, axis=1)


def _scaled(weight: Gaussian) -> tuple[Floats, Floats]:
    """Mean and variance of s times the weights, s = 1/sqrt(inputs + 1)."""
    columns = weight.mean.dtype.type(weight.mean.shape[1])
    return weight.mean / np.sqrt(columns), weight.var / columns


def _sum(products: Floats, constant: Floats) -> Floats:
    return products + constant


def _affine(inputs: list[Floats], weight: Floats, cuts: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """weight (outputs, inputs + 1) times the concatenated inputs and a 1, as two summands: (n, outputs), and
    (outputs,) for what all entries share."""
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
    """(n,) sum over the columns of squares * var; either may have one row for all entries."""
    if len(var) == 1:
        return squares @ var[0]
    return var @ squares[0] if len(squares) == 1 else np.einsum("ne,ne->n", squares, var)


@kernel(**COMPILE)
def _relu(a, constant, ends, bound):
    """a (n, units) becomes h = relu(a + constant). Fills bound (n, 2): sums of ends * h², plus the last
    column of ends."""
    units, zero = a.shape[1], a.dtype.type(0)
    for n in range(a.shape[0]):
        low, high = zero, zero
        for i in range(units):
            h = a[n, i] + constant[i]
            h = h if h > 0 else zero
            a[n, i] = h
            low += ends[0, i] * (h * h)
            high += ends[1, i] * (h * h)
        bound[n, 0], bound[n, 1] = low + ends[0, units], high + ends[1, units]


@kernel(**COMPILE)
def _through_relu(back, h, delta, steep):
    """Fills delta (n, units): back where h > 0, else 0; and steep (n,): the sum of delta². back may have one
    row for all entries."""
    zero = h.dtype.type(0)
    for n in range(h.shape[0]):
        row, total = min(n, back.shape[0] - 1), zero
        for i in range(h.shape[1]):
            slope = back[row, i] if h[n, i] > 0 else zero
            total += slope * slope
            delta[n, i] = slope
        steep[n] = total
