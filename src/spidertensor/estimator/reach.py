"""Bound the predictions of a state from a file, without predicting.

Each number of a state may be valid while products of them overflow: with three layers of weights of 1e13, the
variance overflows float32. So the norms of all parts are multiplied the way the network multiplies the parts.
This is in float64, which the norms allowed here cannot overflow.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.spider import posterior
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Gaussian, Prior, Site, State

LARGEST_WEIGHTS = 40.0  # of all attribute nodes of a table in an entry: sqrt(1000) for a full list
STEEPEST = 1.13  # largest slope of an activation: gelu; the others have at most 1
FARTHEST_DRAW = 8.3  # standard deviations: the largest from `posterior.uniforms`
EXACT_NORM_SIZE = 1024  # rows and columns up to which the exact norm takes less than a second
BLOCK_ROWS = 2**16  # at once: bounds temporary memory


class Reach(NamedTuple):
    """Upper bounds of a prediction."""

    f: float  # of |mean of f|
    var: float  # of the variance of f


class _Part(NamedTuple):
    """Bounds for a layer: |W h| / |h| with its mean weights, and the largest variance of a weight."""

    norm: float
    var: float


def reach(state: State, network: Network, prior: Prior) -> Reach:
    """Bound f and its variance for any entry of known or new nodes, now and after a refinement."""
    sites = zip(state.posterior.weights, state.sites, network.layers, strict=True)
    layers = [_layer(weight, site, prior, shape) for weight, site, shape in sites]
    found = _reach(layers, state, network, prior)
    if not (found.var < 1e30) and max(map(max, network.layers)) <= EXACT_NORM_SIZE:
        # Frobenius norms overestimate by far if there are many wide layers.
        sites = zip(state.posterior.weights, state.sites, layers, strict=True)
        layers = [_Part(_exact_norm(weight, site, prior), layer.var) for weight, site, layer in sites]
        found = _reach(layers, state, network, prior)
    return found


def after_refinement(weight: Gaussian, site: Site, prior: Prior) -> NDArray[np.float64]:
    """The largest means that a refinement can give (spike_slab.refine).

    Includes weights with an improper cavity, which the next refinement skips but a later one may not.
    """
    mean, var = weight.mean.astype(np.float64), weight.var.astype(np.float64)
    precision = np.maximum(1 / var - site.precision, 0.0)
    return (mean / var - site.precision_mean) / (precision + 1 / prior.slab_var)


def _layer(weight: Gaussian, site: Site, prior: Prior, shape: tuple[int, int]) -> _Part:
    refined = after_refinement(weight, site, prior)
    largest = np.maximum(np.abs(weight.mean), np.abs(refined))
    var = max(float(weight.var.max()), float(np.square(refined).max()), prior.slab_var)
    return _Part(float(np.linalg.norm(largest)) / math.sqrt(shape[1]), var)


def _exact_norm(weight: Gaussian, site: Site, prior: Prior) -> float:
    means = (weight.mean.astype(np.float64), after_refinement(weight, site, prior))
    return max(float(np.linalg.norm(mean, 2)) for mean in means) / math.sqrt(weight.mean.shape[1])


def _reach(layers: list[_Part], state: State, network: Network, prior: Prior) -> Reach:
    """The network of mathematics.md section 3, with norms in place of vectors."""
    inputs, bias, multilinear = _factors(state, network, prior)
    h = [math.hypot(inputs, 1.0)]
    for layer, (outputs, _) in zip(layers[:-1], network.layers[:-1], strict=True):
        # softplus and sigmoid add at most 1 to each output
        h.append(math.hypot(layer.norm * h[-1] + math.sqrt(outputs), 1.0))
    f = layers[-1].norm * h[-1] + bias
    var, back = layers[-1].var * h[-1] ** 2, layers[-1].norm
    for layer, into in zip(layers[-2::-1], h[-2::-1], strict=True):
        delta = STEEPEST * back
        var += layer.var * (into * delta) ** 2
        back = layer.norm * delta
    factor_var = max(
        *(float(factor.var.max(initial=0)) for factor in state.posterior.factors),
        *(float(posterior.factor_prior_var(network, prior, mode).max()) for mode in range(network.n_modes)),
    )
    factor_var *= (1 + len(network.tables)) * LARGEST_WEIGHTS**2 if network.tables else 1
    if network.multilinear:
        pair, slope = _multilinear(multilinear, product=network.product)
        f += pair
        var += factor_var * slope
    return Reach(f, var + factor_var * (back**2 + network.n_modes))


def _factors(state: State, network: Network, prior: Prior) -> tuple[float, float, list[float]]:
    """Bounds of the norm of the network's input, of the sum of biases, and of each multilinear part."""
    deep, bias, multilinear = [0.0] * network.n_modes, 0.0, [0.0] * network.n_modes
    start = FARTHEST_DRAW * prior.multilinear_start * math.sqrt(max(network.multilinear, 1))
    for table, (mode, factor) in enumerate(zip(network.table_modes, state.posterior.factors, strict=True)):
        weights = 1.0 if table < network.n_modes else LARGEST_WEIGHTS
        mean = factor.mean
        deep[mode] += weights * _longest(mean[:, network.deep_start :])
        bias += weights * float(np.abs(mean[:, 0]).max(initial=0)) if network.bias else 0.0
        own = mean[:, int(network.bias) : network.deep_start]
        multilinear[mode] += weights * max(_longest(own), start)
    return math.hypot(*deep), bias, multilinear


def _longest(rows: NDArray[np.floating]) -> float:
    """The largest norm of a row."""
    blocks = (rows[at : at + BLOCK_ROWS].astype(np.float64) for at in range(0, len(rows), BLOCK_ROWS))
    return math.sqrt(max((float(np.square(block).sum(axis=1).max()) for block in blocks), default=0.0))


def _multilinear(norms: list[float], *, product: bool) -> tuple[float, float]:
    """Bounds of the multilinear part and of the sum of its squared derivatives (sections 9 and 10)."""
    if product:
        return math.prod(norms), sum(math.prod(norms[:k] + norms[k + 1 :]) ** 2 for k in range(len(norms)))
    total = sum(norms)
    return total**2 / 2, sum((total - norm) ** 2 for norm in norms)
