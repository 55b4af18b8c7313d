"""The model that the Gaussian-process competitors share, and how they learn a batch.

mathematics.md section 8. x is the concatenation of an entry's factors, f = g(x) with g ~ GP(0, k) and

    k(x, z) = s² exp(-½ sum_d (x_d - z_d)² / l_d²)                                               ARD-RBF
    u = g(Z) at M inducing inputs Z, kept whitened: u = L v with L L^T = k(Z, Z) + jitter, so v ~ N(0, I)
    q(v) = N(m, S):   f | x ~ N(a^T m, s² - a^T a + a^T S a),   a = L^-1 k(Z, x)
    q(factor element) = N(mean, var), before any entry N(0, 1)

Inducing inputs, s, l and the noise of a gaussian are point estimates, learned with the rest.

All in float64: in float32 a kernel matrix of 128 inputs needs a jitter so large that it shows in the
predictions. The Method around it is in gp_method.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.scipy.special import log_ndtr
from numpy.typing import NDArray

from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT, Likelihood, check

HANDLED = (GAUSSIAN, PROBIT)
JITTER = 1e-6  # on the diagonal of k(Z, Z), in units of s²: the Cholesky of equal inputs still exists
MIN_NOISE = 1e-4  # added to the noise that is learned: values without noise would drive it to 0
TINY_VAR = 1e-9  # smallest variance of f, since rounding can make it negative
# Where the ascent of a node without any entry begins; its prior stays N(0, 1). With all means at 0 the nodes
# are all alike and g has no slope, and draws of x with variance 1 hide that for very many batches.
START_STD = 0.03  # standard deviation of the random starting means
START_VAR = 0.01
QUADRATURE = 20  # Gauss-Hermite points of the probit


class GPSettings(NamedTuple):
    """Hashable: what a compiled function depends on."""

    n_modes: int
    likelihood: Likelihood
    rank: int
    inducing: int
    epochs: int
    batch_size: int
    jitter: float = JITTER


class Hyper(NamedTuple):
    log_var: Any  # log s²
    log_lengths: Any  # log l, one per element of x
    log_noise: Any  # gaussian only


class Nodes(NamedTuple):
    """q of the factors of a batch's nodes, `batch_size` rows for each mode."""

    mean: Any
    log_var: Any


class Entries(NamedTuple):
    """A batch as arrays of one size: `here` is 1 for an entry, 0 for an empty place."""

    node: Any  # (batch_size, K), rows of the Nodes
    value: Any
    here: Any
    fresh: Any  # (rows of the Nodes, 1): whether the node has no entries yet


class GPLearned(NamedTuple):
    process: Any
    nodes: Nodes
    bound: Any  # of the whole batch, in each epoch


class Algorithm(NamedTuple):
    """The functions of a method. process: a NamedTuple of arrays for g, with `inputs` and `hyper`"""

    start: Callable[[GPSettings, NDArray[np.float64]], Any]  # the process, from the first inducing inputs
    learn: Callable[..., GPLearned]  # settings, learning_rate, process, nodes, entries, key
    posterior: Callable[[GPSettings, Any], tuple[Any, Any]]  # m and S


def start_hyper(settings: GPSettings) -> Hyper:
    """s = noise = 1. With l² the length of x, k between two draws from the prior of x is about 1/e."""
    size = settings.n_modes * settings.rank
    return Hyper(np.zeros(()), np.full(size, 0.5 * np.log(size)), np.zeros(()))


def noise_of(hyper: Hyper) -> Any:
    return MIN_NOISE + jnp.exp(hyper.log_noise)


def kernel(hyper: Hyper, x: jax.Array, z: jax.Array) -> jax.Array:
    x, z = x * jnp.exp(-hyper.log_lengths), z * jnp.exp(-hyper.log_lengths)
    square = jnp.sum(x * x, 1)[:, None] + jnp.sum(z * z, 1) - 2 * x @ z.T
    return jnp.exp(hyper.log_var - 0.5 * jnp.maximum(square, 0))


def inducing_cov(settings: GPSettings, hyper: Hyper, inputs: jax.Array) -> jax.Array:
    jitter = settings.jitter * jnp.exp(hyper.log_var)
    return kernel(hyper, inputs, inputs) + jitter * jnp.eye(len(inputs))


def expected_kernels(hyper: Hyper, inputs: jax.Array, mean, var) -> tuple[jax.Array, jax.Array]:
    """E[k(Z, x)] and E[k(Z, x) k(x, Z)] over one x ~ N(mean, diag v).

        s² prod_d (1 + v/l²)^-½ exp(-½ (z - x)² / (l² + v))
        s⁴ prod_d (1 + 2v/l²)^-½ exp(-(z - z')² / 4l² - (x - (z + z')/2)² / (l² + 2v))

    With d = z - x the second exponent is -(p + w)(d² + d'²) - 2 (w - p) d d', p = 1/4l², w = 1/4(l² + 2v).
    """
    square = jnp.exp(2 * hyper.log_lengths)
    d = inputs - mean
    log_peak = hyper.log_var - 0.5 * jnp.sum(jnp.log1p(var / square))
    first = jnp.exp(log_peak - 0.5 * (d * d) @ (1 / (square + var)))
    log_peak = 2 * hyper.log_var - 0.5 * jnp.sum(jnp.log1p(2 * var / square))
    p, w = 0.25 / square, 0.25 / (square + 2 * var)
    own = (d * d) @ (p + w)
    return first, jnp.exp(log_peak - own[:, None] - own - 2 * (d * (w - p)) @ d.T)


def expected_log_likelihood(likelihood: Likelihood, value, mean, var, noise) -> jax.Array:
    """E[log p(y | f)] for f ~ N(mean, var)."""
    if check(likelihood, HANDLED, "the Gaussian process").normal:
        return -0.5 * (jnp.log(2 * jnp.pi * noise) + ((value - mean) ** 2 + var) / noise)
    points, weights = np.polynomial.hermite_e.hermegauss(QUADRATURE)
    f = mean[:, None] + jnp.sqrt(jnp.maximum(var, TINY_VAR))[:, None] * points
    return log_ndtr((2 * value - 1)[:, None] * f) @ jnp.asarray(weights / np.sqrt(2 * np.pi))


def kl_standard(mean, root) -> jax.Array:
    """KL(N(mean, root root^T) || N(0, I)) for a lower triangular root."""
    square = jnp.sum(root**2) + mean @ mean
    return 0.5 * (square - len(mean)) - jnp.sum(jnp.log(jnp.diag(root)))


def kl_nodes(nodes: Nodes, before: Nodes) -> jax.Array:
    log_ratio = nodes.log_var - before.log_var
    away = (nodes.mean - before.mean) ** 2 * jnp.exp(-before.log_var)
    return 0.5 * jnp.sum(jnp.expm1(log_ratio) - log_ratio + away)


def split(key) -> tuple[Any, Any]:
    """A random key from two words, with the same draws whatever generator JAX is set to."""
    start, rest = jax.random.split(jax.random.wrap_key_data(key, impl="threefry2x32"))
    return start, rest


def start_nodes(nodes: Nodes, entries: Entries, key) -> Nodes:
    """Where the ascent begins: at the posterior before the batch, except for new nodes."""
    mean = START_STD * jax.random.normal(key, nodes.mean.shape)
    start = Nodes(mean, jnp.full_like(mean, np.log(START_VAR)))
    return jax.tree.map(partial(jnp.where, entries.fresh > 0), start, nodes)


def draw_inputs(nodes: Nodes, entries: Entries, key) -> jax.Array:
    """One reparameterised draw of x per entry, which is less noisy than one draw per node."""
    mean, std = nodes.mean[entries.node], jnp.exp(0.5 * nodes.log_var)[entries.node]
    x = mean + std * jax.random.normal(key, mean.shape)
    return x.reshape(len(x), -1)


def ascend(settings: GPSettings, learning_rate, params, extra, key, bound) -> tuple[Any, Any, jax.Array]:
    """Run all epochs of a batch: Adam maximises bound(params, extra, key) -> (bound, extra for next epoch).

    learning_rate: one number, or one per epoch
    """
    adam = optax.scale_by_adam()

    def epoch(carry, key_and_rate):
        params, extra, memory = carry
        key, rate = key_and_rate
        (value, extra), gradient = jax.value_and_grad(bound, has_aux=True)(params, extra, key)
        step, memory = adam.update(gradient, memory)
        params = jax.tree.map(lambda each, move: each + rate * move, params, step)
        return (params, extra, memory), value

    params = jax.tree.map(jnp.asarray, params)
    each_epoch = jax.random.split(key, settings.epochs), jnp.broadcast_to(learning_rate, settings.epochs)
    (params, extra, _), bounds = lax.scan(epoch, (params, extra, adam.init(params)), each_epoch)
    return params, extra, bounds
