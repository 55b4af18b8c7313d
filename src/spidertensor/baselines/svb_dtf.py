"""SVB-DTF: the network of mathematics.md section 1 by streaming variational Bayes with gradients. Section 8.

q has an independent Gaussian for each weight and factor element, and Gamma(a, b) for the noise precision. The
posterior before a batch is the prior of the batch, N(0, 1) at first. With theta all weights and the factors
of the batch's nodes (no other node moves), each batch maximises

    bound = E_q[sum_n log p(y_n | f_n)] - KL(q || q before the batch)

over the means and log stds of theta by `epochs` steps of Adam, which starts afresh with every batch; a step
follows the gradient at one draw theta = mean + std eps, eps ~ N(0, I), over all entries of the batch.

- Start: an element of which nothing is known yet has q = N(0, 1). The draws of a whole network of those are
  all noise, and an ascent that starts there stays there (measured: no better than the mean). So it starts
  with variance START_VAR, a factor at mean 0 and a weight at a random mean, which tells the units apart.
- Noise (gaussian): exact given theta, so it has no gradient and no learning rate. a = a_before + n/2 and
  b = b_before + sum_n (y_n - f_n)²/2, at the draw in each epoch, in expectation (linearised) after the last.
- Prediction: f at the means; its variance is the sum of gradient² var, as SPIDER's.
- A batch with an absurd value, or that ends in anything not finite, is rejected as a whole: entries counted,
  posterior kept.

The batch is the unit: the entries of one update are cut into batches of `batch_size`, the last one shorter.
So one sentence of the contract of `spidertensor.method` cannot hold: how a stream is cut into calls does
change the posterior. What holds instead: calls of whole batches, only the last of them shorter, change
nothing, bit for bit; and what an update reports for an entry is what `predict` said before its *batch*.
Random numbers are keyed by (seed, entries learned before the batch, epoch): save and continue is the same as
never to stop.

The caller shifts and scales the values, to about mean 0 and standard deviation 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, random
from jax.flatten_util import ravel_pytree
from jax.scipy.special import log_ndtr
from numpy.typing import NDArray

from spidertensor.method import Batch, Method, Prediction, Update, check_batch, check_index
from spidertensor.spider import posterior
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT, Likelihood, check
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Gaussian, Prior, State
from spidertensor.spider.vectorized_networks import function

RATES = (1e-5, 5e-5, 1e-4, 3e-4, 5e-4, 1e-3, 3e-3, 5e-3, 1e-2)  # what the paper tunes the learning rate from
START_VAR = 0.1
AT_ONCE = 16  # batches in one compiled call, or fewer
BLOCK = 1024  # entries in one prediction
EXPLICIT = 2**24  # gradients held at a time by `moments`
LIMIT = 1e6  # on a value: they are scaled, and one beyond would be all that is known from then on

PRIOR = Prior(bias_var=1.0, multilinear_var=1.0, multilinear_start=0.0)  # N(0, 1) for every element

Array = Any  # a jax.Array inside compiled functions, a NumPy array outside


class Normal(NamedTuple):
    """`posterior.Gaussian` on the device."""

    mean: Array
    var: Array


class Pair(NamedTuple):
    """A running sum as high + low, in float32 as good as one float64 and exactly that outside."""

    high: Array
    low: Array


class Noise(NamedTuple):
    """`posterior.Gamma` on the device."""

    a: Pair
    b: Pair


Weights = tuple[Normal, ...]


class Settings(NamedTuple):
    """Hashable: what a compiled function depends on."""

    network: Network
    likelihood: Likelihood
    epochs: int


class Entries(NamedTuple):
    """Batches with a fixed number of places of which `count` are taken: shapes do not depend on the data."""

    rows: Array  # (batches, K, places): the batch's nodes as rows of the table; no row where there are fewer
    local: Array  # (batches, places, K): which of these nodes an entry has
    value: Array  # (batches, places)
    count: Array  # (batches,)
    before: Array  # (batches,): entries learned before the batch


class Carry(NamedTuple):
    """The state on the device, of the nodes that the call needs."""

    factors: Normal  # the table: (K, rows, longest factor vector)
    weights: Weights
    noise: Noise


class Learned(NamedTuple):
    """What each batch leaves behind besides the state; mean, var and noise as predicted before it."""

    mean: Array  # (batches, places)
    var: Array
    noise: Array  # (batches,)
    good: Array  # (batches,): False if rejected
    bound: Array  # (batches, epochs): at the draw of the epoch, given the noise


# --- one batch ------------------------------------------------------------------------------------


def kl(mean: Array, log_std: Array, prior_mean: Array, prior_log_std: Array) -> Array:
    """KL(N(mean, std²) || N(prior_mean, prior_std²)) per element; its gradient at the prior is exactly 0."""
    ratio = log_std - prior_log_std
    away = (mean - prior_mean) * jnp.exp(-prior_log_std)
    return 0.5 * (jnp.exp(2 * ratio) + away * away - 1) - ratio


def log_cdf(t: Array) -> Array:
    """log Phi(t) by its asymptotic series far out, where the derivative of `log_ndtr` loses all digits."""
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

    All vectors are flat; `used` is 0 for elements that only fill up the shape.
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
    """Mean and variance of f, linearised, of entries with the factors u: (n, K, longest factor vector)."""
    f = jax.value_and_grad(function(network), argnums=(0, 1))

    def entry(u: Normal) -> tuple[Array, Array]:
        alpha, (g, g_u) = f(tuple(weight.mean for weight in weights), u.mean)
        parts = zip((*g, g_u), (*weights, u), strict=True)
        return alpha, sum((jnp.sum(each * each * var) for each, (_, var) in parts), jnp.zeros(()))

    return lax.map(entry, u, batch_size=EXPLICIT // (network.n_weights + 1) + 1)


def _learn_batch(settings: Settings, carry: Carry, batch: Entries, rate, key) -> tuple[Carry, Learned]:
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
        if settings.likelihood is PROBIT:
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
    return carry, Learned(mean, var, b / a, good, bound)


def _add(pair: Pair, x: Array) -> Pair:
    """pair + x by the error-free sum of two numbers (Knuth)."""
    total = pair.high + x
    rest = total - pair.high
    low = pair.low + ((pair.high - (total - rest)) + (x - rest))
    high = total + low
    return Pair(high, low - (high - total))


def _flat(weights: Weights, table: Normal) -> tuple[Normal, Callable[[Array], Any]]:
    """Weights, then factors, as vectors; and the way back for one of these vectors."""
    mean, unravel = ravel_pytree((tuple(weight.mean for weight in weights), table.mean))
    var, _ = ravel_pytree((tuple(weight.var for weight in weights), table.var))
    return Normal(mean, var), unravel


def _unflat(q: Normal, unravel: Callable[[Array], Any]) -> tuple[Weights, Normal]:
    (means, u_mean), (variances, u_var) = unravel(q.mean), unravel(q.var)
    return tuple(map(Normal, means, variances)), Normal(u_mean, u_var)


def _start(network: Network, prior: Normal, key: Array) -> Normal:
    """Where the ascent starts: at the prior, but for elements of which nothing has been learned."""
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


def learn(settings: Settings, carry: Carry, entries: Entries, n_batches, rate, key) -> tuple[Carry, Learned]:
    """The first `n_batches` batches, one after the other.

    Pure, and but for `settings` a function of arrays: vmap over `rate` and `key` runs learning rates and
    seeds side by side, as `side_by_side` does.
    """
    n, places = entries.value.shape
    blank = jnp.zeros((n, places))
    out = Learned(blank, blank, blank[:, 0], jnp.zeros(n, bool), jnp.zeros((n, settings.epochs)))

    def batch(i, loop):
        carry, out = loop
        carry, learned = _learn_batch(settings, carry, jax.tree.map(lambda part: part[i], entries), rate, key)
        return carry, jax.tree.map(lambda whole, part: whole.at[i].set(part), out, learned)

    return lax.fori_loop(0, n_batches, batch, (carry, out))


_learn = jax.jit(learn, static_argnums=0)
_moments = jax.jit(moments, static_argnums=0)


@partial(jax.jit, static_argnums=0)
def _learn_each(settings: Settings, carry, entries, n_batches, rates, keys) -> tuple[Carry, Learned]:
    of_seeds = jax.vmap(partial(learn, settings), (None, None, None, None, 0))
    return jax.vmap(of_seeds, (None, None, None, 0, None))(carry, entries, n_batches, rates, keys)


# --- the method: NumPy in, NumPy out --------------------------------------------------------------


def svb_dtf(
    network: Network,
    likelihood: Likelihood,
    *,
    learning_rate: float = 1e-3,
    epochs: int = 100,
    batch_size: int = 256,
) -> Method:
    """SVB-DTF as a Method; see the module for what is its unit, the batch."""
    settings = _settings(network, likelihood, [learning_rate], epochs, batch_size)

    def update(state: State, batch: Batch) -> tuple[State, Update]:
        check_batch(batch, network.n_modes)
        out, rejected = np.empty((4, len(batch.value))), 0
        for first in range(0, len(batch.value), AT_ONCE * batch_size):
            part = slice(first, first + AT_ONCE * batch_size)
            some = Batch(batch.index[part], batch.value[part])
            state, learned = _learned(settings, state, some, learning_rate, batch_size)
            out[:, part] = learned[:4]
            rejected += learned.rejected
        return state, Update(*out, rejected=rejected)

    def predict(state: State, index: NDArray[np.integer]) -> Prediction:
        index = np.asarray(index)
        check_index(index, network.n_modes)
        out = np.empty((3, len(index)))
        for first in range(0, len(index), BLOCK):
            part = index[first : first + BLOCK]
            u = _blank(network, (BLOCK, network.n_modes))  # the prior, which is what an unseen node has
            for k, factor in enumerate(state.posterior.factors):
                known = np.flatnonzero((part[:, k] >= 0) & (part[:, k] < state.counts.nodes[k]))
                for to, have in zip(u, factor, strict=True):
                    to[known, k, : have.shape[1]] = have[part[known, k]]
            of_block = np.array(_moments(network, state.posterior.weights, u))
            out[:2, first : first + BLOCK] = of_block[:, : len(part)]
        out[2] = likelihood.noise_var(*state.posterior.noise)
        return Prediction(*out)

    return Method(partial(_init, network), update, predict)


def side_by_side(
    network: Network,
    likelihood: Likelihood,
    batch: Batch,
    *,
    learning_rates: Sequence[float] = RATES,
    seeds: Sequence[int] = (0,),
    epochs: int = 100,
    batch_size: int = 256,
) -> tuple[Update, NDArray[np.floating]]:
    """A stream from its start with every learning rate and seed, in one compiled call: to tune the rate by.

    The update's arrays are (rates, seeds, entries), `rejected` is over all runs; the bound is (rates, seeds,
    batches, epochs).
    """
    settings = _settings(network, likelihood, learning_rates, epochs, batch_size)
    check_batch(batch, network.n_modes)
    if not len(batch.value):
        raise ValueError("a stream without entries tells nothing of a learning rate")
    n_batches = -(-len(batch.value) // batch_size)
    state = posterior.grow(_init(network, 0), network, PRIOR, batch.index.max(axis=0) + 1)
    nodes, entries = _packed(batch, batch_size, n_batches, 0)
    carry = _carry(network, state, nodes, max(map(len, nodes)))
    keys = jnp.stack([_key(seed) for seed in seeds])
    _, learned = _learn_each(settings, carry, entries, n_batches, jnp.array(learning_rates), keys)
    update, _ = _update(likelihood, learned, batch.value)
    return update, np.asarray(learned.bound)


def _settings(network, likelihood, rates, epochs: int, batch_size: int) -> Settings:
    check(likelihood, (GAUSSIAN, PROBIT), "SVB-DTF")
    for rate in rates:
        if not 0 < rate < math.inf:
            raise ValueError(f"a learning rate must be positive and finite, got {rate}")
    if min(epochs, batch_size) < 1:
        raise ValueError(f"need an epoch and a batch, got epochs={epochs} and batch_size={batch_size}")
    return Settings(network, likelihood, int(epochs))


def _init(network: Network, seed: int) -> State:
    """No nodes, every weight N(0, 1), and no sites: the prior needs none."""
    state = posterior.init(network, PRIOR, seed)
    weights = tuple(
        Gaussian(np.zeros(shape, np.float32), np.ones(shape, np.float32)) for shape in network.layers
    )
    return state._replace(posterior=state.posterior._replace(weights=weights), sites=())


def _key(seed: int) -> Array:
    words = jnp.array(divmod(seed % 2**64, 2**32), jnp.uint32)
    return random.wrap_key_data(words, impl="threefry2x32")  # the same draws on every device, and under vmap


def _learned(
    settings: Settings, state: State, batch: Batch, rate: float, batch_size: int
) -> tuple[State, Update]:
    """One compiled call; arrays of the state are written to where they are."""
    network, n = settings.network, len(batch.value)
    state = posterior.grow(state, network, PRIOR, batch.index.max(axis=0) + 1)
    nodes, entries = _packed(batch, batch_size, AT_ONCE, int(state.counts.entries))
    carry = _carry(network, state, nodes, AT_ONCE * batch_size)
    carry, learned = _learn(settings, carry, entries, -(-n // batch_size), rate, _key(int(state.seed)))
    for k, (factor, rows) in enumerate(zip(state.posterior.factors, nodes, strict=True)):
        for to, new in zip(factor, carry.factors, strict=True):
            to[rows] = np.asarray(new)[k, : len(rows), : to.shape[1]]
    if settings.likelihood is GAUSSIAN:
        for to, new in zip(state.posterior.noise, carry.noise, strict=True):
            to[()] = float(new.high) + float(new.low)
    update, good = _update(settings.likelihood, learned, batch.value)
    state.counts.entries[()] += n
    state.counts.rejected[()] += update.rejected
    # one running sum: how calls are cut does not change a bit of it
    total = state.counts.log_evidence
    total[()] = np.cumsum([total, *update.log_evidence[good]])[-1]
    weights = tuple(Gaussian(*map(np.array, weight)) for weight in carry.weights)
    return state._replace(posterior=state.posterior._replace(weights=weights)), update


def _update(likelihood: Likelihood, learned: Learned, value: NDArray) -> tuple[Update, NDArray[np.bool_]]:
    """Per entry, without the empty places; and which entries were learned."""
    shape = np.shape(learned.mean)
    parts = learned.mean, learned.var, learned.noise[..., None], learned.good[..., None]
    mean, var, noise, good = (
        np.broadcast_to(part, shape).astype(np.float64).reshape(*shape[:-2], -1)[..., : len(value)]
        for part in parts
    )
    if likelihood is PROBIT:
        noise = np.zeros_like(noise)
    log_evidence = likelihood.log_evidence(value, mean, var, noise)
    return Update(mean, var, noise, log_evidence, int((good == 0).sum())), good > 0


def _blank(network: Network, shape: tuple[int, ...]) -> Gaussian:
    shape = (*shape, max(network.factor_sizes))
    return Gaussian(np.zeros(shape, np.float32), np.ones(shape, np.float32))


def _carry(network: Network, state: State, nodes: list[NDArray], rows: int) -> Carry:
    table = _blank(network, (network.n_modes, rows))
    for k, (factor, some) in enumerate(zip(state.posterior.factors, nodes, strict=True)):
        for to, have in zip(table, factor, strict=True):
            to[k, : len(some), : have.shape[1]] = have[some]
    weights = tuple(Normal(*weight) for weight in state.posterior.weights)
    pairs = (Pair(np.float32(part), np.float32(part - np.float32(part))) for part in state.posterior.noise)
    return Carry(Normal(*table), weights, Noise(*pairs))


def _packed(batch: Batch, places: int, n_batches: int, before: int) -> tuple[list[NDArray], Entries]:
    """The nodes of all entries per mode, which are the rows of the table; and the entries in batches."""
    n, K = batch.index.shape
    nodes, inverse = zip(*(np.unique(column, return_inverse=True) for column in batch.index.T), strict=True)
    rows = np.full((n_batches, K, places), np.iinfo(np.int32).max, np.int32)
    local = np.zeros((n_batches * places, K), np.int32)
    for start in range(0, n, places):
        part = slice(start, min(start + places, n))
        for k in range(K):
            # in order of first appearance, so that what nodes are called decides nothing
            found, first, which = np.unique(inverse[k][part], return_index=True, return_inverse=True)
            order = np.argsort(first)
            rows[start // places, k, : len(found)] = found[order]
            local[part, k] = np.argsort(order)[which]
    value = np.zeros(n_batches * places, np.float32)
    value[:n] = np.where(np.abs(batch.value) < LIMIT, batch.value, np.inf)  # then its batch is rejected
    starts = places * np.arange(n_batches)
    entries = Entries(
        rows,
        local.reshape(n_batches, places, K),
        value.reshape(n_batches, places),
        np.clip(n - starts, 0, places).astype(np.int32),
        ((before + starts) % 2**32).astype(np.uint32),
    )
    return list(nodes), entries
