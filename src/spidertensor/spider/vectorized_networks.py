"""f as a pure function of the weights and an entry's factor vectors.

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


def mlp(activation: Callable[[jax.Array], jax.Array]) -> Callable[..., tuple[jax.Array, Arrays]]:
    """The paper's network (section 1), and the inputs of its layers.

    shifts: added to what goes into the units of each layer, so that derivatives by them can be taken
    """

    def f(weights: Arrays, x: Arrays, shifts: Sequence[Any] = ()) -> tuple[jax.Array, Arrays]:
        a, inputs = jnp.concatenate(x), []
        for layer, W in enumerate(weights):
            # a_m = W_m [h_{m-1}; 1] / sqrt(V_{m-1} + 1)
            inputs.append(jnp.append(activation(a) if layer else a, 1) / math.sqrt(W.shape[1]))
            a = inputs[-1] @ W.T + (shifts[layer] if shifts else 0)
        return a[0], tuple(inputs)

    return f


def layered(network: Network) -> Callable[..., tuple[jax.Array, Arrays]]:
    """f of an entry's factor vectors u: (K, longest), one row per mode, shorter ones padded; with the inputs
    of the layers, and shifts, as in `mlp`. A network of one's own has neither.

    Section 10: f = sum_k bias^k + sum_e sum_{k<l} m^k_e m^l_e + network(deep parts); section 9 has a product
    over all modes in the middle.
    """
    first, start = int(network.bias), network.deep_start

    def deep(weights: Arrays, x: Arrays, shifts: Sequence[Any]) -> tuple[jax.Array, Arrays]:
        if isinstance(network, CustomSizes):
            return network.custom.function(weights, x), ()
        return mlp(ACTIVATIONS[network.activation])(weights, x, shifts)

    def f(weights: Arrays, u: jax.Array, shifts: Sequence[Any] = ()) -> tuple[jax.Array, Arrays]:
        x = tuple(u[k, start : start + rank] for k, rank in enumerate(network.ranks))
        result, inputs = deep(weights, x, shifts)
        if network.multilinear:
            m = u[:, first:start]
            result += jnp.sum(reduce(mul, m)) if network.product else _pairs(m)
        return result + jnp.sum(u[:, :first]), inputs

    return f


def function(network: Network) -> Callable[[Arrays, jax.Array], jax.Array]:
    """f alone."""
    f = layered(network)
    return lambda weights, u: f(weights, u)[0]


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
