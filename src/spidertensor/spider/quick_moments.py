"""Means of f and its variance, for many nodes at once: matrix products, and compiled loops between.

A hidden layer's weights add to the variance the sum over its outputs i of delta_i² sum_j V_ij h_j²
(mathematics.md section 3). That takes another matrix product per layer, and is small after many entries. It
lies between the same sums with the least and the greatest V_ij over i, which need no such product: good
enough for a shortlist.

The order of summation differs from the engines', as in quick_means.py.
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
    state: State, network: Network, prior: Prior, numbers: Sequence[NDArray[np.int64]], *, exact: bool = False
) -> tuple[Floats, Floats]:
    """(n,) mean of f and (2, n) lower and upper bounds of its variance. Units and numbers: see quick_means.

    exact: the variance itself in place of both bounds, for a third more time
    """
    modes = list(zip(state.posterior.factors, numbers, strict=True))
    mean = [factor_rows(factor.mean, number, 0) for factor, number in modes]
    start, pairs = network.deep_start, slice(int(network.bias), network.deep_start)
    f, var, back = _deep(state, network, [each[:, start:] for each in mean], exact=exact)
    if network.multilinear:
        f = f + multilinear([each[:, pairs] for each in mean], network)
    n = np.broadcast_shapes(*(number.shape for number in numbers))[0]  # 0 if there are no candidates
    f, of_factors = np.array(np.broadcast_to(f, n)), np.zeros(n, f.dtype)
    total = sum(each[:, :start] for each in mean) if len(mean) > 2 else None
    first = 0
    for mode, (factor, number) in enumerate(modes):
        prior_var = factor_prior_var(network, prior, mode)
        others = mean[1 - mode] if total is None else total - mean[mode][:, :start]
        rows = mean[mode], factor_rows(factor.var, number, prior_var), others
        _add_factors(*map(np.ascontiguousarray, (*rows, back)), pairs.start, start, first, f, of_factors)
        first += network.ranks[mode]
    return f, var + of_factors


def _deep(
    state: State, network: Network, mean: list[Floats], *, exact: bool
) -> tuple[Floats, Floats, Floats]:
    """The deep part of f (n,); what its weights add to the variance, (1, n) if `exact`, else (2, n) bounds of
    it; and the gradient of f with respect to the factors of all modes. Letters: mathematics.md section 3.

    mean: factor means, (n, rank) per mode, or (1, rank) if all entries have the same node
    """
    cuts = np.cumsum(network.ranks)[:-1]
    W, V = zip(*(_scaled(weight) for weight in state.posterior.weights), strict=True)
    if not exact:  # the least and the greatest of all outputs
        V = [np.stack([each.min(axis=0), each.max(axis=0)]) for each in V]
    h = mean
    units, sums = [], [_affine([np.square(each) for each in mean], V[0], cuts)]
    for weight, spread in zip(W[:-1], V[1:], strict=True):
        a, constant = _affine(h, weight, cuts)
        if exact:
            square = np.empty_like(a)
            _relu(a, constant, square)
            sums.append(_affine([square], spread, cuts))
        else:
            both = np.empty((len(a), 2), a.dtype)
            _relu_and_sums(a, constant, spread, both)
            sums.append((both, np.zeros(2, a.dtype)))
        h = [a]
        units.append(a)
    f = np.add(*_affine(h, W[-1], cuts))[:, 0]
    var, back = np.add(*sums.pop()).T, W[-1][:, :-1]
    for unit, (products, constant), weight in zip(units[::-1], sums[::-1], W[-2::-1], strict=True):
        delta = np.empty_like(unit)
        added = np.empty((len(unit), 1 if exact else 2), unit.dtype)
        through = _through_relu if exact else _through_relu_in_bounds
        through(back, unit, products, constant, delta, added)
        var = var + added.T
        back = delta @ weight[:, :-1]
    return f, var, back


def _scaled(weight: Gaussian) -> tuple[Floats, Floats]:
    """Mean and variance of s times the weights, s = 1/sqrt(inputs + 1)."""
    columns = weight.mean.dtype.type(weight.mean.shape[1])
    return weight.mean / np.sqrt(columns), weight.var / columns


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


@kernel(**COMPILE)
def _add_factors(mean, var, others, back, pairs, deep, first, f, added):
    """Add a mode's biases to f (n,), and to added (n,) what the variances of its factors are in that of f.

    mean, var, others, back: one row for each entry or one for all. others: sums of the other modes' factors
    pairs, deep, first: columns where the pairs and the deep part of a factor begin, and those of `back`
    """
    for n in range(len(f)):
        i, j = min(n, mean.shape[0] - 1), min(n, var.shape[0] - 1)
        other, slope, total = min(n, others.shape[0] - 1), min(n, back.shape[0] - 1), f.dtype.type(0)
        if pairs:
            f[n] += mean[i, 0]
            total += var[j, 0]
        for e in range(pairs, deep):
            total += var[j, e] * others[other, e] * others[other, e]
        for e in range(var.shape[1] - deep):
            total += var[j, deep + e] * back[slope, first + e] * back[slope, first + e]
        added[n] += total


@kernel(**COMPILE)
def _relu(a, constant, square):
    """a (n, units) becomes h = relu(a + constant). Fills square (n, units): h²."""
    zero = a.dtype.type(0)
    for n in range(a.shape[0]):
        for i in range(a.shape[1]):
            h = a[n, i] + constant[i]
            h = h if h > 0 else zero
            a[n, i] = h
            square[n, i] = h * h


@kernel(**COMPILE)
def _relu_and_sums(a, constant, ends, sums):
    """a (n, units) becomes h = relu(a + constant). Fills sums (n, 2): of ends * h², plus the last column of
    ends."""
    units, zero = a.shape[1], a.dtype.type(0)
    for n in range(a.shape[0]):
        low, high = zero, zero
        for i in range(units):
            h = a[n, i] + constant[i]
            h = h if h > 0 else zero
            a[n, i] = h
            low += ends[0, i] * (h * h)
            high += ends[1, i] * (h * h)
        sums[n, 0], sums[n, 1] = low + ends[0, units], high + ends[1, units]


@kernel(**COMPILE)
def _through_relu(back, h, products, constant, delta, added):
    """Fills delta (n, units): back where h > 0, else 0; and added (n, 1): the sum of delta² times the sums.
    back may have one row for all entries. products (n, units), constant (units,): the sums, in two parts"""
    zero = h.dtype.type(0)
    for n in range(h.shape[0]):
        row, total = min(n, back.shape[0] - 1), zero
        for i in range(h.shape[1]):
            slope = back[row, i] if h[n, i] > 0 else zero
            total += slope * slope * (products[n, i] + constant[i])
            delta[n, i] = slope
        added[n, 0] = total


@kernel(**COMPILE)
def _through_relu_in_bounds(back, h, products, constant, delta, added):
    """The same with two sums, a lower and an upper one, for all units of an entry: added (n, 2)."""
    zero = h.dtype.type(0)
    for n in range(h.shape[0]):
        row, total = min(n, back.shape[0] - 1), zero
        for i in range(h.shape[1]):
            slope = back[row, i] if h[n, i] > 0 else zero
            total += slope * slope
            delta[n, i] = slope
        added[n, 0] = total * (products[n, 0] + constant[0])
        added[n, 1] = total * (products[n, 1] + constant[1])
