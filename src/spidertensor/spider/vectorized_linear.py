"""f of a batch linearised at the means, and the products of its gradients G: mathematics.md section 7.

The gradient by the weights between two layers is delta_n h_n^T: what f gains per unit of input to the upper
units, times the outputs of the lower ones. Where both layers are wide, G is never formed: its products are
sums over pairs of entries, which take half the arithmetic and far less memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from spidertensor.spider.custom_network import CustomSizes
from spidertensor.spider.network import Network
from spidertensor.spider.vectorized_networks import Arrays, Normal, flat, function, layered, parts

WIDE = 200  # units, and inputs of them: from here on pairs are faster


class Linear(NamedTuple):
    """f of n entries linearised at the means, with G (n, weights) = df/dweights.

    back(r, M, M^T M): var G^T r, and var times the column sums of (M G)²
    """

    alpha: jax.Array  # (n,)
    g_u: jax.Array  # (n, K, ·) df/du
    cov: jax.Array  # (n, n) G diag(var) G^T: covariance of f
    beta: jax.Array  # (n,) its diagonal
    back: Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


def linearise(network: Network, weights: Normal, u: jax.Array, limit: int) -> Linear:
    """Linearise at factor vectors u (n, K, ·) and flat weights, with at most `limit` numbers in a matrix."""
    layers = [] if isinstance(network, CustomSizes) else network.layers
    wide = [number for number, shape in enumerate(layers) if min(shape) >= WIDE]
    explicit = network.n_weights - sum(layers[number][0] * (layers[number][1] - 1) for number in wide)
    if len(u) * explicit <= limit:
        return _by_layers(network, weights, u, wide, limit)
    return _in_blocks(network, weights, u, max(limit // network.n_weights, 1))


def _by_layers(network: Network, weights: Normal, u: jax.Array, wide: list[int], limit: int) -> Linear:
    """With A = G sqrt(var), cov = A A^T is positive semidefinite whatever the precision of the product. Of
    `wide` layers only the last column, that of the constant input, is in A; the others are pairs."""
    means, var = parts(network, weights.mean), list(parts(network, weights.var))
    pairs = {}
    if isinstance(network, CustomSizes):
        both = jax.value_and_grad(function(network), argnums=(0, 1))
        alpha, (g, g_u) = jax.vmap(both, in_axes=(None, 0))(means, u)
    else:
        shifts = [jnp.zeros_like(each[:, 0]) for each in var]
        both = jax.value_and_grad(layered(network), argnums=(1, 2), has_aux=True)
        (alpha, h), (g_u, delta) = jax.vmap(both, in_axes=(None, 0, None))(means, u, shifts)
        g = [of[:, :, None] * by[:, None] for of, by in zip(delta, h, strict=True)]
        for at in wide:
            pairs[at] = _Pairs(delta[at], h[at][:, :-1], var[at][:, :-1], limit)
            g[at], var[at] = g[at][..., -1], var[at][:, -1]
    sd = jnp.sqrt(flat(var))
    A = flat(g, entries=(len(u),)) * sd
    cov, beta = A @ A.T, jnp.sum(A * A, axis=1)
    for of in pairs.values():
        added = of.cov()
        cov, beta = cov + added, beta + jnp.diagonal(added)

    def whole(explicit: jax.Array, of_pairs: dict[int, jax.Array]) -> jax.Array:
        """The weights in their order."""
        if not of_pairs:
            return explicit
        cut = jnp.split(explicit, list(accumulate(each.size for each in var))[:-1])
        for layer, matrix in of_pairs.items():
            cut[layer] = jnp.column_stack([matrix, cut[layer]])
        return flat(cut)

    def back(r: jax.Array, M: jax.Array, S_inv: jax.Array) -> tuple[jax.Array, jax.Array]:
        T = A.T @ M.T
        step = whole(sd * (r @ A), {layer: of.step(r) for layer, of in pairs.items()})
        return step, whole(jnp.sum(T * T, axis=1), {layer: of.shrink(S_inv) for layer, of in pairs.items()})

    return Linear(alpha, g_u, cov, beta, back)


class _Pairs:
    """The part of weights W (units, inputs) in the products: g_nij = delta_ni h_nj, with variances v_ij.

        cov_nm  = sum_i (delta_ni delta_mi) sum_j v_ij (h_nj h_mj)
        shrink  = v_ij sum_nm (delta_ni delta_mi) (S^-1)_nm (h_nj h_mj)

    Entry n is paired with n + k (mod n entries) for shifts k of up to half their number: each pair once, but
    those at exactly half twice.
    """

    def __init__(self, delta: jax.Array, h: jax.Array, var: jax.Array, limit: int) -> None:
        self._delta, self._h, self._var = delta, h, var
        self._n = len(delta)
        self._half = self._n // 2
        at_once = max(1, limit // (self._n * sum(var.shape)))  # shifts
        chunks = -(-(self._half + 1) // at_once)
        self._shifts = jnp.arange(chunks * -(-(self._half + 1) // chunks)).reshape(chunks, -1)

    def _partners(self, k: jax.Array) -> jax.Array:
        return (jnp.arange(self._n) + k[:, None]) % self._n

    def _pairs(self, x: jax.Array, partners: jax.Array) -> jax.Array:
        return (x * x[partners]).reshape(-1, x.shape[1])

    def cov(self) -> jax.Array:
        def some(k: jax.Array) -> jax.Array:
            partners = self._partners(k)
            by_inputs = product(self._pairs(self._delta, partners), self._var, 1)
            return jnp.sum(by_inputs * self._pairs(self._h, partners), axis=1).reshape(partners.shape)

        found = lax.map(some, self._shifts).reshape(-1, self._n)
        row, column = jnp.arange(self._n)[:, None], jnp.arange(self._n)
        k = (column - row) % self._n
        return jnp.where(k <= self._half, found[k, row], found[-k % self._n, column])

    def step(self, r: jax.Array) -> jax.Array:
        return self._var * ((self._delta * r[:, None]).T @ self._h)

    def shrink(self, S_inv: jax.Array) -> jax.Array:
        def add(total: jax.Array, k: jax.Array) -> tuple[jax.Array, None]:
            partners = self._partners(k)
            times = jnp.where(k > self._half, 0, jnp.where((k == 0) | (2 * k == self._n), 1, 2))
            s = times[:, None] * S_inv[jnp.arange(self._n), partners]
            weighted = s.reshape(-1, 1) * self._pairs(self._h, partners)
            return total + product(self._pairs(self._delta, partners), weighted, 0), None

        return self._var * lax.scan(add, jnp.zeros_like(self._var), self._shifts)[0]


def product(a: jax.Array, b: jax.Array, axis: int) -> jax.Array:
    """The matrix product over this axis of a and the rows of b; in float32 on a GPU, `three_terms` of it."""
    if a.dtype != jnp.float32:
        return contracted(a, b, axis)
    plain, short = (partial(each, axis=axis) for each in (contracted, three_terms))
    return lax.platform_dependent(a, b, cpu=plain, default=short)


def contracted(a: jax.Array, b: jax.Array, axis: int, **settings: Any) -> jax.Array:
    return lax.dot_general(a, b, (((axis,), (0,)), ((), ())), **settings)


def three_terms(a: jax.Array, b: jax.Array, axis: int) -> jax.Array:
    """high high + low high + high low, as one product of bfloat16 summed in float32. Errors are near 2^-17 of
    a number multiplied, and average out over many."""
    (high_a, low_a), (high_b, low_b) = map(halves, (a, b))
    terms = jnp.concatenate([high_a, low_a, high_a], axis), jnp.concatenate([high_b, high_b, low_b])
    return contracted(*terms, axis, precision="default", preferred_element_type=jnp.float32)


def halves(x: jax.Array) -> Arrays:
    """x as a sum of two bfloat16. A cast there and back would be optimised away; reduce_precision is not."""
    high = lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
    return high.astype(jnp.bfloat16), (x - high).astype(jnp.bfloat16)


def _in_blocks(network: Network, weights: Normal, u: jax.Array, block: int) -> Linear:
    """With `block` rows of G in memory: G d by forward, G^T r by reverse differentiation."""
    f = function(network)
    means = parts(network, weights.mean)
    alpha, g_u = jax.vmap(jax.value_and_grad(f, argnums=1), in_axes=(None, 0))(means, u)

    def whole(means: Arrays) -> jax.Array:
        return jax.vmap(f, in_axes=(None, 0))(means, u)

    def row(u_n: jax.Array) -> jax.Array:  # of cov: G (var g_n)
        direction = weights.var * flat(jax.grad(f)(means, u_n))
        return jax.jvp(whole, (means,), (parts(network, direction),))[1]

    cov = lax.map(row, u, batch_size=block)
    pull = jax.vjp(whole, means)[1]

    def back(r: jax.Array, M: jax.Array, _) -> tuple[jax.Array, jax.Array]:
        def add(total: jax.Array, rows: jax.Array) -> tuple[jax.Array, None]:
            (T,) = jax.vmap(pull)(rows)
            return total + jnp.sum(flat(T, entries=(block,)) ** 2, axis=0), None

        rows = jnp.pad(M, ((0, -len(M) % block), (0, 0))).reshape(-1, block, M.shape[1])
        total, _ = lax.scan(add, jnp.zeros_like(weights.var), rows)
        return weights.var * flat(pull(r)[0]), weights.var * total

    return Linear(alpha, g_u, cov, jnp.diagonal(cov), back)
