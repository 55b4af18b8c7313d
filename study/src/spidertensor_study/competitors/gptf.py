"""GPTF: sparse Gaussian-process tensor factorization of all entries at once, static (after Zhe et al. 2016).

The model is that of `gp`, q(v) = N(m, R R^T) with R a full lower triangle, and all entries have one bound,

    sum_n E_q[log p(y_n | f_n)] - KL(q(v) || N(0, I)) - KL(q(factors) || N(0, I))

which Adam climbs by mini-batches (Hensman et al. 2013): every pass takes the entries in another order, and a
step counts the fit of its entries as often as a pass has steps. The learning rate falls linearly to 0.

Zhe et al. have point estimates of the factors, and a bound with the best q(v) put in, whose gradient is
summed over all entries by many machines. Here the factors are Gaussian, as in the streaming methods, and
q(v) is moved with the rest: steps are cheap, and there is one for every thousand entries.

All entries come in one update; a second update is an error, because the state keeps no entries.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.scipy.linalg import solve_triangular

from spidertensor.method import HUGE_SCALED, Batch, Method
from spidertensor.spider.likelihoods import Likelihood
from spidertensor_study.competitors import gp, gp_method, gp_site, svb_gptf
from spidertensor_study.competitors.gp import Entries, GPSettings, Nodes
from spidertensor_study.competitors.gp_method import GPState
from spidertensor_study.competitors.static import learns_once
from spidertensor_study.competitors.svb_gptf import Away, Params, on_scale

ADAM = optax.scale_by_adam()


def gptf(
    n_modes: int,
    likelihood: Likelihood,
    *,
    rank: int = 8,
    inducing: int = 128,
    learning_rate: float = 1e-2,
    epochs: int = 100,
    batch_size: int = 1024,
) -> Method:
    """GPTF as a static Method, for scaled values.

    inducing:   number of inducing inputs
    epochs:     passes over all entries, in steps of Adam of `batch_size` entries each
    """
    settings = GPSettings(n_modes, likelihood, rank, inducing, epochs, batch_size)
    streaming = gp_method.method_of(settings, learning_rate, svb_gptf.ALGORITHM)
    fitted = partial(_fitted, settings, learning_rate)
    update = learns_once("GPTF", likelihood, (n_modes, rank), HUGE_SCALED, streaming.predict, fitted)
    return Method(streaming.init, update, streaming.predict, unit="all")


def _fitted(settings: GPSettings, learning_rate: float, state: GPState, entries: Batch) -> GPState | None:
    """The state after all passes; None if anything in it is not finite."""
    rows, numbers = zip(*map(gp_method.by_appearance, entries.index.T), strict=True)
    sizes = [len(row) for row in rows]
    first = np.cumsum([0, *sizes])
    node = np.column_stack(numbers) + first[:-1]
    n = len(node)
    B = min(settings.batch_size, n)
    steps = -(-n // B)
    rates = learning_rate * (1 - np.arange(settings.epochs * steps) / (settings.epochs * steps))
    with gp_method.enable_x64(True):
        carry = start(state, first[-1], settings.rank)
        bounds = []
        for number, its_rates in enumerate(np.split(rates, settings.epochs)):
            source = np.random.SeedSequence([int(state.seed), number + 1])
            order = np.full(steps * B, n, np.int32)  # n: an empty place
            order[:n] = np.random.default_rng(source).permutation(n)
            key = source.generate_state(2)
            carry, bound = one_pass(
                settings, carry, node, entries.value, order.reshape(steps, B), its_rates, key
            )
            bounds.append(bound)
        now = on_scale(carry[0])
        nothing = gp_site.remember(settings, state.process, now.nodes, np.arange(settings.inducing))
        now, process = jax.tree.map(np.array, (now, svb_gptf.absorb(settings, nothing, now)))
        bounds = np.array([float(bound) for bound in bounds]) / n
    with np.errstate(over="ignore"):
        var = np.exp(now.nodes.log_var)
    finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((now, process, var, bounds)))
    if not (finite and (var > 0).all()):
        return None
    state = gp_method.grown(state, entries.index.max(axis=0) + 1)
    for factor, row, begin in zip(state.factors, rows, first[:-1], strict=True):
        part = slice(begin, begin + len(row))
        factor.mean[row], factor.var[row] = now.nodes.mean[part], var[part]
    return state._replace(process=process, bound=bounds[[0, -1]], batches=state.batches + 1)


def start(state: GPState, n_nodes: int, rank: int) -> tuple[Params, Any]:
    """The starting parameters and the empty state of Adam. Nodes start as in a first batch."""
    mean = gp.START_STD * np.random.default_rng([int(state.seed), 0, 0]).normal(size=(n_nodes, rank))
    nodes = Nodes(mean, np.full_like(mean, np.log(gp.START_VAR)))
    M = len(state.process.inputs)
    params = Params(state.process.inputs, state.process.hyper, Away(np.zeros(M), np.zeros((M, M))), nodes)
    params = jax.tree.map(jnp.asarray, params)
    return params, ADAM.init(params)  # pyright: ignore[reportArgumentType]


@partial(jax.jit, static_argnums=0)
def one_pass(settings: GPSettings, carry, node, value, order, rates, key) -> tuple[Any, jax.Array]:
    """Run all steps of a pass and return the mean of their bounds too. order: (steps, batch_size) rows"""
    steps = len(order)

    def step(carry, rows_rate_key):
        params, memory = carry
        rows, rate, key = rows_rate_key
        here = (rows < len(value)).astype(value.dtype)
        entries = Entries(node[rows], value[rows], here, None)
        reached, gradient = jax.value_and_grad(
            lambda params: bound(settings, on_scale(params), entries, steps, key)
        )(params)
        move, memory = ADAM.update(gradient, memory)
        return (jax.tree.map(lambda at, by: at + rate * by, params, move), memory), reached

    keys = jax.random.split(jax.random.wrap_key_data(key, impl="threefry2x32"), steps)
    carry, bounds = lax.scan(step, carry, (order, rates, keys))
    return carry, jnp.mean(bounds)


def bound(settings: GPSettings, now: Params, entries: Entries, steps: int, key) -> jax.Array:
    """The bound of all entries, estimated from one of `steps` equal parts of them."""
    L = jnp.linalg.cholesky(gp.inducing_cov(settings, now.hyper, now.inputs))
    x = gp.draw_inputs(now.nodes, entries, key)
    a = solve_triangular(L, gp.kernel(now.hyper, now.inputs, x), lower=True)
    mean = a.T @ now.away.mean
    var = jnp.exp(now.hyper.log_var) - jnp.sum(a * a, 0) + jnp.sum((now.away.root.T @ a) ** 2, 0)
    fit = gp.expected_log_likelihood(settings.likelihood, entries.value, mean, var, gp.noise_of(now.hyper))
    kl = gp.kl_standard(*now.away) + gp.kl_nodes(now.nodes, jax.tree.map(jnp.zeros_like, now.nodes))
    return steps * jnp.sum(entries.here * fit) - kl
