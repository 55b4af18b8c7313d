"""Batches of SVB-DTF, learned by compiled functions of JAX. mathematics.md section 8.

q has an independent Gaussian for each weight and factor element, and Gamma(a, b) for the noise precision. The
posterior before a batch is the prior of the batch, N(0, 1) at first. With theta all weights and the factors
of the batch's nodes (no other node moves), each batch maximises

    bound = E_q[sum_n log p(y_n | f_n)] - KL(q || q before the batch)

over the means and log stds of theta by `epochs` steps of Adam, which starts afresh with every batch; a step
follows the gradient at one draw theta = mean + std eps, eps ~ N(0, I), over all entries of the batch.

- Start: an element without entries has q = N(0, 1). Draws of a whole network of such elements are all noise,
  and an ascent that starts there does not get away. So it starts with variance START_VAR, a factor at mean 0
  and a weight at a random mean, so that the units differ.
- Noise (gaussian): exact given theta, so it has no gradient and no learning rate. a = a_before + n/2 and
  b = b_before + sum_n (y_n - f_n)²/2, at the draw in each epoch, in expectation (linearised) after the last.
- Prediction: f at the means; its variance is the sum of gradient² var, as SPIDER's.
- A batch that ends in anything not finite is refused as a whole, and the posterior stays as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax, random
from jax.flatten_util import ravel_pytree
from jax.scipy.special import log_ndtr

from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT, Likelihood, check
from spidertensor.spider.network import Network
from spidertensor.spider.vectorized_networks import function

HANDLED = (GAUSSIAN, PROBIT)
START_VAR = 0.1
EXPLICIT = 2**24  # gradients held at a time by `moments`

Array = Any  # a jax.Array inside compiled functions, a NumPy array outside


class Normal(NamedTuple):
    """`posterior.Gaussian` on the device."""

    mean: Array
    var: Array


class Pair(NamedTuple):
    """A running sum as high + low: two float32 on the device, as precise as a float64."""

    high: Array
    low: Array


class Noise(NamedTuple):
    """`posterior.Gamma` on the device."""

    a: Pair
    b: Pair


Weights = tuple[Normal, ...]


class DTFSettings(NamedTuple):
    """What a compiled function depends on; hashable."""

    network: Network
    likelihood: Likelihood
    epochs: int


class Entries(NamedTuple):
    """Batches with a fixed number of places, `count` of them used, so shapes do not depend on the data."""

    rows: Array  # (batches, K, places): the batch's nodes as rows of the table; no row where there are fewer
    local: Array  # (batches, places, K): which of these nodes an entry has
    value: Array  # (batches, places)
    count: Array  # (batches,)
    before: Array  # (batches,): entries learned before the batch


class Carry(NamedTuple):
    """The state on the device, with the nodes that the call needs."""

    factors: Normal  # the table: (K, rows, longest factor vector)
    weights: Weights
    noise: Noise


class DTFLearned(NamedTuple):
    """Results of each batch besides the state; mean, var and noise are those predicted before it."""

    mean: Array  # (batches, places)
    var: Array
    noise: Array  # (batches,)
    good: Array  # (batches,): False if refused
    bound: Array  # (batches, epochs): at the draw of the epoch, given the noise


# --- one batch ------------------------------------------------------------------------------------


def kl(mean: Array, log_std: Array, prior_mean: Array, prior_log_std: Array) -> Array:
    """KL(N(mean, std²) || N(prior_mean, prior_std²)) per element; its gradient at the prior is exactly 0."""
    ratio = log_std - prior_log_std
    away = (mean - prior_mean) * jnp.exp(-prior_log_std)
    return 0.5 * (jnp.exp(2 * ratio) + away * away - 1) - ratio


def log_cdf(t: Array) -> Array:
    """log Phi(t), by its asymptotic series in the tail, where the derivative of `log_ndtr` loses digits."""
    far = t < -20
    x = jnp.where(far, t, -20.0)
    u = 1 / (x * x)
    series = jnp.log1p(-u * (1 - 3 * u * (1 - 5 * u)))
    tail = -0.5 * x * x - jnp.log(-x) - 0.5 * math.log(2 * math.pi) + series
    return jnp.where(far, tail, log_ndtr(jnp.where(far, -20.0, t)))


def ascend(
    log_lik: Callable[[Array], Array], prior: Normal, start: Normal, used: Array, rate, key, epochs: int
) -> tuple[Normal, Array]:
    """Maximise E_q[log_lik(theta)] - KL(q || prior) over q; also the bound at the draw of each epoch.

    All vectors are flat; `used` is 0 for padding.
    """
    adam = optax.adam(rate)
    prior_log_std = 0.5 * jnp.log(prior.var)

    def loss(q: tuple[Array, Array], eps: Array) -> Array:
        mean, log_std = q
        away = jnp.sum(used * kl(mean, log_std, prior.mean, prior_log_std))
        return away - log_lik(mean + jnp.exp(log_std) * eps)

    def epoch(loop: tuple[Any, Any], number: Array) -> tuple[tuple[Any, Any], Array]:
        q, memory = loop
        eps = random.normal(random.fold_in(key, number), q[0].shape)
        value, gradient = jax.value_and_grad(loss)(q, eps)
        step, memory = adam.update(gradient, memory)
        return (optax.apply_updates(q, step), memory), -value

    q = start.mean, 0.5 * jnp.log(start.var)
    ((mean, log_std), _), bound = lax.scan(epoch, (q, adam.init(q)), jnp.arange(epochs))
    return Normal(mean, jnp.exp(2 * log_std)), bound


def moments(network: Network, weights: Weights, u: Normal) -> tuple[Array, Array]:
    """Linearised mean and variance of f for entries with factors u: (n, K, longest factor vector)."""
    f = jax.value_and_grad(function(network), argnums=(0, 1))

    def entry(u: Normal) -> tuple[Array, Array]:
        alpha, (g, g_u) = f(tuple(weight.mean for weight in weights), u.mean)
        parts = zip((*g, g_u), (*weights, u), strict=True)
        return alpha, sum((jnp.sum(each * each * var) for each, (_, var) in parts), jnp.zeros(()))

    return lax.map(entry, u, batch_size=EXPLICIT // (network.n_weights + 1) + 1)


def _learn_batch(settings: DTFSettings, carry: Carry, batch: Entries, rate, key) -> tuple[Carry, DTFLearned]:
    network = settings.network
    modes = jnp.arange(network.n_modes)
    at = modes[:, None], batch.rows
    table = Normal(
        carry.factors.mean.at[at].get(mode="fill", fill_value=0),
        carry.factors.var.at[at].get(mode="fill", fill_value=1),
    )
    prior, unravel = _flat(carry.weights, table)
    a, b = carry.noise.a.high, carry.noise.b.high
    taken = jnp.arange(len(batch.value)) < batch.count

    def log_lik(theta: Array) -> Array:
        weights, factors = unravel(theta)
        f = jax.vmap(function(network), (None, 0))(weights, factors[modes, batch.local])
        if check(settings.likelihood, HANDLED, "SVB-DTF").binary:
            return jnp.sum(jnp.where(taken, log_cdf((2 * batch.value - 1) * f), 0))
        squares = jnp.sum(jnp.where(taken, (batch.value - f) ** 2, 0))
        noise = lax.stop_gradient((b + 0.5 * squares) / (a + 0.5 * batch.count))
        return -0.5 * (batch.count * jnp.log(2 * math.pi * noise) + squares / noise)

    def predicted(weights: Weights, table: Normal) -> tuple[Array, Array]:
        return moments(network, weights, Normal(*(part[modes, batch.local] for part in table)))

    mean, var = predicted(carry.weights, table)
    start_key, draw_key = random.split(key)
    start, used = _start(network, prior, start_key), _used(network, batch, carry)
    draw_key = random.fold_in(draw_key, batch.before)
    q, bound = ascend(log_lik, prior, start, used, rate, draw_key, settings.epochs)

    weights, table = _unflat(q, unravel)
    alpha, beta = predicted(weights, table)
    squares = jnp.sum(jnp.where(taken, (batch.value - alpha) ** 2 + beta, 0))
    noise = Noise(_add(carry.noise.a, 0.5 * batch.count), _add(carry.noise.b, 0.5 * squares))
    factors = (old.at[at].set(new, mode="drop") for old, new in zip(carry.factors, table, strict=True))
    good = jnp.all(jnp.isfinite(q.mean) & jnp.isfinite(q.var) & (q.var > 0)) & jnp.isfinite(squares)
    new = Carry(Normal(*factors), weights, noise)
    carry = jax.tree.map(lambda new, old: jnp.where(good, new, old), new, carry)
    return carry, DTFLearned(mean, var, b / a, good, bound)


def _add(pair: Pair, x: Array) -> Pair:
    """pair + x by the error-free sum of two numbers (Knuth)."""
    total = pair.high + x
    rest = total - pair.high
    low = pair.low + ((pair.high - (total - rest)) + (x - rest))
    high = total + low
    return Pair(high, low - (high - total))


def _flat(weights: Weights, table: Normal) -> tuple[Normal, Callable[[Array], Any]]:
    """Weights, then factors, as vectors; and the inverse for one of these vectors."""
    mean, unravel = ravel_pytree((tuple(weight.mean for weight in weights), table.mean))
    var, _ = ravel_pytree((tuple(weight.var for weight in weights), table.var))
    return Normal(mean, var), unravel


def _unflat(q: Normal, unravel: Callable[[Array], Any]) -> tuple[Weights, Normal]:
    (means, u_mean), (variances, u_var) = unravel(q.mean), unravel(q.var)
    return tuple(map(Normal, means, variances)), Normal(u_mean, u_var)


def _start(network: Network, prior: Normal, key: Array) -> Normal:
    """Where the ascent starts: at the prior, except for elements without entries."""
    unknown = (prior.mean == 0) & (prior.var == 1)
    mean = jnp.zeros_like(prior.mean).at[: network.n_weights].set(random.normal(key, (network.n_weights,)))
    return Normal(jnp.where(unknown, mean, prior.mean), jnp.where(unknown, START_VAR, prior.var))


def _used(network: Network, batch: Entries, carry: Carry) -> Array:
    """1 for each element of theta, 0 where there is no node or its factor vector is shorter."""
    _, rows, longest = carry.factors.mean.shape
    there = (batch.rows < rows)[:, :, None]
    long = jnp.arange(longest) < jnp.array(network.factor_sizes)[:, None, None]
    return jnp.concatenate([jnp.ones(network.n_weights), (there & long).ravel()])


# --- many batches ---------------------------------------------------------------------------------


def learn(
    settings: DTFSettings, carry: Carry, entries: Entries, n_batches, rate, key
) -> tuple[Carry, DTFLearned]:
    """Learn the first `n_batches` batches, one after the other.

    All arguments but `settings` are arrays, so vmap over `rate` and `key` can run learning rates and seeds
    side by side, as `side_by_side` does.
    """
    n, places = entries.value.shape
    blank = jnp.zeros((n, places))
    out = DTFLearned(blank, blank, blank[:, 0], jnp.zeros(n, bool), jnp.zeros((n, settings.epochs)))

    def batch(i, loop):
        carry, out = loop
        carry, learned = _learn_batch(settings, carry, jax.tree.map(lambda part: part[i], entries), rate, key)
        return carry, jax.tree.map(lambda whole, part: whole.at[i].set(part), out, learned)

    return lax.fori_loop(0, n_batches, batch, (carry, out))


learn_compiled = jax.jit(learn, static_argnums=0)
moments_compiled = jax.jit(moments, static_argnums=0)


@partial(jax.jit, static_argnums=0)
def learn_each(settings: DTFSettings, carry, entries, n_batches, rates, keys) -> tuple[Carry, DTFLearned]:
    of_seeds = jax.vmap(partial(learn, settings), (None, None, None, None, 0))
    return jax.vmap(of_seeds, (None, None, None, 0, None))(carry, entries, n_batches, rates, keys)
