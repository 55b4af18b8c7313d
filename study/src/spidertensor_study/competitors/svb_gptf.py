"""SVB-GPTF: sparse Gaussian-process tensor factorization by streaming variational Bayes.

The model is that of `gp`. Per batch, starting at the posterior before it,

    maximise  sum_n E_q[log p(y_n | f_n)] - KL(q || q before the batch),     q = q(v) prod q(factors)

by Adam: x is drawn from q(factors), reparameterised, once per entry and epoch; given x the expectation over
f is closed form (gaussian) or quadrature (probit).

mathematics.md has a posterior over the inducing inputs too. Here they are point estimates, like s, l and the
noise, and start each batch where they were. The meaning of v depends on Z, s and l, so KL(q(v) || q_old(v))
would let them change at no cost. The KL is therefore that of g at the old inputs (a = g(Z_old)) and the new
ones (b = L v) together, as in SS-GPTF:

    KL(q(g) || q_old(g)) = KL(q(b) || p(b)) - E[log q_old(a) / p_old(a)],     a ~ ∫ p(a | b) q(b) db

Without entries its minimum is the posterior of v by `gp_site`, N(c, C) with c = C T shift and
C^-1 = G G^T = I + T precision T^T. q is stored relative to it:

    q(v) = N(c + G^-T d, G^-T E E^T G^-1),   KL = KL(N(d, E E^T) || N(0, I)) - (what N(c, C) reaches)

Steps of Adam are then in units of the remaining uncertainty. Steps in v itself would be larger than that
after many batches, and would destroy what was known. Steps shrink towards the end of a batch, because their
noise in E would count as knowledge and accumulate over batches.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from spidertensor.method import Method
from spidertensor.spider.likelihoods import Likelihood
from spidertensor_study.competitors import gp, gp_method
from spidertensor_study.competitors.gp import Entries, GPLearned, GPSettings, Hyper, Nodes
from spidertensor_study.competitors.gp_site import (
    Before,
    Process,
    link,
    posterior,
    remember,
    start,
    without_negative,
)


class Away(NamedTuple):
    mean: Any  # d
    root: Any  # E, a lower triangle with a positive diagonal


class Params(NamedTuple):
    """What Adam moves. The diagonal of `away.root` is a logarithm there."""

    inputs: Any
    hyper: Hyper
    away: Away
    nodes: Nodes


class CarriedOver(NamedTuple):
    """What the entries before the batch say about v, and how v relates to g at some x."""

    G: Any
    centre: Any  # G^T c = G^-1 T shift
    reached: Any  # the bound of N(c, C), before any entry of the batch
    a: Any  # L^-1 k(Z, x)
    in_units: Any  # G^-1 a


def svb_gptf(n_modes: int, likelihood: Likelihood, **settings: Any) -> Method:
    """SVB-GPTF as a Method, for scaled values; the settings are those of `gp_method.build`."""
    return gp_method.build(ALGORITHM, n_modes, likelihood, **settings)


@partial(jax.jit, static_argnums=0)
def learn(
    settings: GPSettings, learning_rate, before: Process, nodes: Nodes, entries: Entries, key
) -> GPLearned:
    """Learn one batch. All arguments but the settings are arrays, so vmap can run several rates or seeds."""
    start_key, key = gp.split(key)
    M = settings.inducing
    known = remember(settings, before, nodes, jnp.arange(M))

    def objective(params: Params, extra, key):
        return bound(settings, known, entries, on_scale(params), key), extra

    away = Away(jnp.zeros(M), jnp.zeros((M, M)))
    params = Params(before.inputs, before.hyper, away, gp.start_nodes(nodes, entries, start_key))
    rates = learning_rate * (1 - jnp.arange(settings.epochs) / settings.epochs)
    params, _, bounds = gp.ascend(settings, rates, params, (), key, objective)
    return GPLearned(absorb(settings, known, on_scale(params)), params.nodes, bounds)


def on_scale(params: Params) -> Params:
    root = params.away.root
    root = jnp.tril(root, -1) + jnp.diag(jnp.exp(jnp.diag(root)))
    return params._replace(away=params.away._replace(root=root))


def carry_over(settings: GPSettings, before: Before, hyper: Hyper, inputs, x) -> CarriedOver:
    old = before.process
    L = jnp.linalg.cholesky(gp.inducing_cov(settings, hyper, inputs))
    # one solve for all columns: on a GPU it costs about the same for more of them
    both = jnp.column_stack([link(settings, before, hyper, inputs), gp.kernel(hyper, inputs, x)])
    T, a = jnp.split(solve_triangular(L, both, lower=True), [len(L)], axis=1)
    precision = T @ old.precision @ T.T
    G = jnp.linalg.cholesky(jnp.eye(len(L)) + precision)
    units = solve_triangular(G, jnp.column_stack([T @ old.shift, a]), lower=True)
    centre = units[:, 0]
    lost = jnp.sum(before.precision_a * gp.inducing_cov(settings, hyper, old.inputs)) - jnp.trace(precision)
    reached = 0.5 * (centre @ centre - lost) - jnp.sum(jnp.log(jnp.diag(G))) - before.constant
    return CarriedOver(G, centre, reached, a, units[:, 1:])


def bound(settings: GPSettings, before: Before, entries: Entries, now: Params, key) -> jax.Array:
    """E_q[log p(y | f)] - KL(q || q before the batch), at one draw of x per entry."""
    carried = carry_over(settings, before, now.hyper, now.inputs, gp.draw_inputs(now.nodes, entries, key))
    mean = carried.in_units.T @ (carried.centre + now.away.mean)
    var = jnp.exp(now.hyper.log_var) - jnp.sum(carried.a**2, 0)
    var += jnp.sum((now.away.root.T @ carried.in_units) ** 2, 0)
    fit = gp.expected_log_likelihood(settings.likelihood, entries.value, mean, var, gp.noise_of(now.hyper))
    kl = gp.kl_standard(*now.away) + gp.kl_nodes(now.nodes, before.nodes)
    return jnp.sum(entries.here * fit) - kl + carried.reached


def absorb(settings: GPSettings, before: Before, now: Params) -> Process:
    """q as a site: the precision of q(v) minus that of the prior, G E^-T E^-1 G^T - I, and the same mean."""
    carried = carry_over(settings, before, now.hyper, now.inputs, now.inputs[:0])
    mean = solve_triangular(carried.G, carried.centre + now.away.mean, lower=True, trans=1)
    half = solve_triangular(now.away.root, carried.G.T, lower=True)
    eye = jnp.eye(len(mean))
    precision = without_negative(half.T @ half - eye)
    return Process(now.inputs, precision, (eye + precision) @ mean, now.hyper)


ALGORITHM = gp.Algorithm(start, learn, posterior)
