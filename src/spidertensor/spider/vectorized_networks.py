"""f as a pure function, and the products of its gradients that the vectorized engine needs.

    f(weights, x) -> scalar      weights: a tuple of arrays;  x: a tuple with one factor vector per mode

mathematics.md sections 1, 9 and 10. Gradients come from autodiff, so a network is only its function and the
shapes of its weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from spidertensor.spider import posterior
from spidertensor.spider.custom_network import CustomSizes
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Prior

Arrays = tuple[jax.Array, ...]


class Normal(NamedTuple):
    """A posterior.Gaussian on the device."""

    mean: jax.Array
    var: jax.Array


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "softplus": jax.nn.softplus,
    "gelu": lambda a: jax.nn.gelu(a, approximate=False),
}


def check_function(network: CustomSizes) -> None:
    """Check before compiling that the function takes its arguments, returns a scalar and has a gradient."""
    weights = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in network.layers)
    x = tuple(jax.ShapeDtypeStruct((rank,), jnp.float32) for rank in network.ranks)
    given = f"weights of shapes {network.layers} and factors of ranks {network.ranks}"
    start = tuple(weight.mean for weight in posterior.init(network, Prior(), 0).posterior.weights)
    slopes = None
    try:
        result = jax.eval_shape(network.custom.function, weights, x)
        if getattr(result, "shape", None) == ():
            slopes = jax.tree.leaves(_slope(network, start, tuple(map(jnp.zeros, network.ranks))))
    except Exception as error:
        raise ValueError(f"the network {network.custom.name!r} fails on {given}: {error}") from error
    if slopes is None:
        shape = getattr(result, "shape", type(result).__name__)
        raise ValueError(
            f"a network must return one number, {network.custom.name!r} gives {shape} for {given}"
        )
    if not all(jnp.isfinite(each).all() for each in slopes):
        raise ValueError(
            f"the gradient of {network.custom.name!r} is not finite at the start, where factors are 0"
        )


@partial(jax.jit, static_argnums=0)
def _slope(network: CustomSizes, weights: Arrays, x: Arrays) -> Any:
    return jax.grad(network.custom.function, (0, 1))(weights, x)


def mlp(activation: Callable[[jax.Array], jax.Array]) -> Callable[[Arrays, Arrays], jax.Array]:
    """The paper's network (section 1)."""

    def f(weights: Arrays, x: Arrays) -> jax.Array:
        a = jnp.concatenate(x)
        for layer, W in enumerate(weights):
            h = activation(a) if layer else a
            # a_m = W_m [h_{m-1}; 1] / sqrt(V_{m-1} + 1)
            a = W @ jnp.append(h, 1) / math.sqrt(W.shape[1])
        return a[0]

    return f


def function(network: Network) -> Callable[[Arrays, jax.Array], jax.Array]:
    """f of an entry's factor vectors u: (K, longest), one row per mode, shorter ones padded.

    Section 10: f = sum_k bias^k + sum_e sum_{k<l} m^k_e m^l_e + network(deep parts); section 9 has a product
    over all modes in the middle.
    """
    custom = isinstance(network, CustomSizes)
    deep = network.custom.function if custom else mlp(ACTIVATIONS[network.activation])
    first, start = int(network.bias), network.deep_start

    def f(weights: Arrays, u: jax.Array) -> jax.Array:
        result = deep(weights, tuple(u[k, start : start + rank] for k, rank in enumerate(network.ranks)))
        if network.multilinear:
            m = u[:, first:start]
            result += jnp.sum(reduce(mul, m)) if network.product else _pairs(m)
        return result + jnp.sum(u[:, :first])

    return f


def _pairs(m: jax.Array) -> jax.Array:
    """Sum of products over pairs of rows: each row times the sum of those before it, no cancellation."""
    result, before = jnp.zeros((), m.dtype), m[0]
    for row in m[1:]:
        result += jnp.sum(before * row)
        before += row
    return result


def flat(arrays: Sequence[Any], np: Any = jnp, *, entries: tuple[int, ...] = ()) -> Any:
    """The arrays of all weights concatenated into one vector, or into one vector per entry."""
    return np.concatenate([array.reshape(*entries, -1) for array in arrays], axis=-1)


def parts(network: Network, vector: jax.Array) -> Arrays:
    """The inverse of `flat`."""
    ends = list(accumulate(math.prod(shape) for shape in network.layers))
    starts = [0, *ends[:-1]]
    cut = zip(network.layers, starts, ends, strict=True)
    return tuple(vector[start:end].reshape(shape) for shape, start, end in cut)


class Linear(NamedTuple):
    """f of n entries linearised at the means: mathematics.md section 7, with G (n, weights) = df/dweights.

    back(r, M): var G^T r, and var times the column sums of (M G)²
    """

    alpha: jax.Array  # (n,)
    g_u: jax.Array  # (n, K, ·) df/du
    cov: jax.Array  # (n, n) G diag(var) G^T: covariance of f
    beta: jax.Array  # (n,) its diagonal
    back: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


def linearise(network: Network, weights: Normal, u: jax.Array, limit: int) -> Linear:
    """Linearise at factor vectors u (n, K, ·) and flat weights; G is formed only up to `limit` numbers."""
    if len(u) * network.n_weights <= limit:
        return _explicit(network, weights, u)
    return _in_blocks(network, weights, u, max(limit // network.n_weights, 1))


def _explicit(network: Network, weights: Normal, u: jax.Array) -> Linear:
    """With A = G sqrt(var), cov = A A^T is positive semidefinite whatever the precision of the product."""
    both = jax.value_and_grad(function(network), argnums=(0, 1))
    alpha, (g, g_u) = jax.vmap(both, in_axes=(None, 0))(parts(network, weights.mean), u)
    sd = jnp.sqrt(weights.var)
    A = flat(g, entries=(len(u),)) * sd

    def back(r: jax.Array, M: jax.Array) -> tuple[jax.Array, jax.Array]:
        T = M @ A
        return sd * (r @ A), jnp.sum(T * T, axis=0)

    return Linear(alpha, g_u, A @ A.T, jnp.sum(A * A, axis=1), back)


def _in_blocks(network: Network, weights: Normal, u: jax.Array, block: int) -> Linear:
    """The same with `block` rows of G in memory: G d by forward, G^T r by reverse differentiation."""
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

    def back(r: jax.Array, M: jax.Array) -> tuple[jax.Array, jax.Array]:
        def add(total: jax.Array, rows: jax.Array) -> tuple[jax.Array, None]:
            (T,) = jax.vmap(pull)(rows)
            return total + jnp.sum(flat(T, entries=(block,)) ** 2, axis=0), None

        rows = jnp.pad(M, ((0, -len(M) % block), (0, 0))).reshape(-1, block, M.shape[1])
        total, _ = lax.scan(add, jnp.zeros_like(weights.var), rows)
        return weights.var * flat(pull(r)[0]), weights.var * total

    return Linear(alpha, g_u, cov, jnp.diagonal(cov), back)
