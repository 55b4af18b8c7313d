"""SS-GPTF: tensor factorization with the streaming sparse Gaussian process of Bui, Nguyen & Turner (2017).

The model is that of `gp`. What the entries so far say about g is kept as a Gaussian site on the values a =
g(Z) at the earlier inducing inputs, the ratio of posterior to prior under the earlier hyper-parameters:

    q_old(a) / p_old(a) = exp(shift^T w - ½ w^T precision w) / constant,   a = L_old w

A batch has new inducing inputs Z_b, b = g(Z_b), which start at the old ones or, if the bound is higher there,
at a choice from the old ones and the inputs of its entries. Its bound is

    sum_n E[log p(y_n | f_n)] - KL(q(b) || p(b)) + E[log q_old(a) / p_old(a)] - KL(q(factors) || before)

with a ~ ∫ p(a | b) q(b) db under the new hyper-parameters; the third term is what the paper writes as
-KL(q(a) || q_old(a)) + KL(q(a) || p_old(a)). Adam maximises this bound over Z_b, hyper-parameters and
factors, at one draw of x from q(factors) per entry and epoch. q(b) is always optimal: an entry is a site of
precision λ on its f. With b = L v, T = L^-1 k(Z_b, Z) L_old^-T, A = L^-1 k(Z_b, x):

    q(v) = N(S h, S),   S^-1 = I + T precision T^T + A diag(λ) A^T,   h = T shift + A η

    gaussian: λ = 1/noise, η = y/noise
    probit:   λ = -2 dE/dvar > 0, η = dE/dmean + λ mean, E = E[log p(y | f)]. A fixed point, approached
              by a step per epoch (conjugate-computation variational inference, Khan & Lin 2017).

As q(b) is optimal, the gradient of everything else is the one with q(b) held fixed. After the last epoch the
old site and the entries make the site on b, with expectations over the factors instead of a draw.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular

from spidertensor.method import Method
from spidertensor.spider.likelihoods import Likelihood
from spidertensor_study.competitors import gp, gp_method
from spidertensor_study.competitors.gp import Entries, GPLearned, GPSettings, Hyper, Nodes
from spidertensor_study.competitors.gp_site import (
    Before,
    Process,
    gaussian,
    link,
    posterior,
    remember,
    start,
    without_negative,
)

SITE_STEP = 0.3  # share of the way that a site of the probit moves per epoch
SETTLING = 5  # epochs for the sites of the probit before two choices of inputs are compared


class Sites(NamedTuple):
    """The sites of the entries; only the probit keeps them between epochs."""

    precision: Any  # λ
    shift: Any  # η


class Params(NamedTuple):
    """What Adam moves."""

    inputs: Any  # Z_b
    hyper: Hyper
    nodes: Nodes


def ss_gptf(n_modes: int, likelihood: Likelihood, **settings: Any) -> Method:
    """SS-GPTF as a Method, for scaled values; the settings are those of `gp_method.build`."""
    return gp_method.build(ALGORITHM, n_modes, likelihood, **settings)


@partial(jax.jit, static_argnums=0)
def learn(
    settings: GPSettings, learning_rate, before: Process, nodes: Nodes, entries: Entries, key
) -> GPLearned:
    """Learn one batch. All arguments but the settings are arrays, so vmap can run several rates or seeds."""
    start_key, key = gp.split(key)
    moved = gp.start_nodes(nodes, entries, start_key)
    x = moved.mean[entries.node].reshape(len(entries.node), -1)
    candidates = jnp.concatenate([before.inputs, x])

    def begin(chosen) -> tuple[Before, Params]:
        at = Params(candidates[chosen], before.hyper, moved)
        return remember(settings, before, nodes, chosen), at

    # Information at old inputs that new ones do not cover is lost for good. Inputs chosen anew in every batch
    # inflate the kernel's variance until nothing is left.
    choices = jnp.stack([jnp.arange(settings.inducing), choose(settings, before, x, entries.here)])
    bounds = jax.vmap(lambda chosen: _at_start(settings, entries, *begin(chosen), key))(choices)
    known, params = begin(choices[jnp.argmax(bounds)])
    return climb(settings, learning_rate, known, entries, params, key)


def _at_start(settings: GPSettings, entries: Entries, before: Before, params: Params, key) -> jax.Array:
    """The bound before the first step, to compare inducing inputs; all of them use the same draw.

    The sites of the probit take a few epochs first: without any sites all inputs would be equally good for a
    first batch.
    """

    def settle(sites, _):
        reached, sites = bound(settings, before, entries, params, sites, key)
        return sites, reached

    rounds = 1 if settings.likelihood.normal else SETTLING
    return lax.scan(settle, Sites(*jnp.zeros((2, settings.batch_size))), None, rounds)[1][-1]


def choose(settings: GPSettings, process: Process, x, here) -> jax.Array:
    """Choose inputs to start with from the old inputs and, numbered after them, the x.

    Each choice has the largest variance of g given g at those chosen before: a pivoted Cholesky. Equal inputs
    are chosen twice only if there is no other.
    """
    candidates = jnp.concatenate([process.inputs, x])
    prior_var = jnp.exp(process.hyper.log_var)

    def pick(carry, i):
        left, factor = carry  # remaining variance of each candidate, and the rows of the factor so far
        best = jnp.argmax(left)
        pivot = jnp.sqrt(jnp.maximum(left[best], settings.jitter * prior_var))
        cov = gp.kernel(process.hyper, candidates[best][None], candidates)[0]
        row = (cov - factor[:, best] @ factor) / pivot
        left = (left - row * row).at[best].set(-jnp.inf)
        return (left, factor.at[i].set(row)), best

    usable = jnp.concatenate([jnp.ones(len(process.inputs)), here]) > 0
    empty = jnp.zeros((settings.inducing, len(candidates)))
    begin = (jnp.where(usable, prior_var, -jnp.inf), empty)
    return lax.scan(pick, begin, jnp.arange(settings.inducing))[1]


def climb(
    settings: GPSettings, learning_rate, before: Before, entries: Entries, params: Params, key
) -> GPLearned:
    sites = Sites(*jnp.zeros((2, settings.batch_size)))
    params, sites, bounds = gp.ascend(
        settings, learning_rate, params, sites, key, partial(bound, settings, before, entries)
    )
    return GPLearned(absorb(settings, before, entries, params, sites), params.nodes, bounds)


def bound(settings: GPSettings, before: Before, entries: Entries, params: Params, sites: Sites, key):
    """The bound at the optimal q(b), at one draw of x per entry; and the sites of the next epoch."""
    hyper, inputs, old = params.hyper, params.inputs, before.process
    x = gp.draw_inputs(params.nodes, entries, key)
    L = jnp.linalg.cholesky(gp.inducing_cov(settings, hyper, inputs))
    both = jnp.column_stack(
        [link(settings, before, params.hyper, params.inputs), gp.kernel(hyper, inputs, x)]
    )
    T, A = jnp.split(solve_triangular(L, both, lower=True), [len(L)], axis=1)
    known = T @ old.precision @ T.T
    site = _at_optimum(settings, entries, hyper, sites)
    combined = known + (A * site.precision) @ A.T, T @ old.shift + A @ site.shift
    mean, cov, log_det = map(lax.stop_gradient, gaussian(*combined))

    f, var = A.T @ mean, jnp.exp(hyper.log_var) - jnp.sum(A * A, 0) + jnp.sum(A * (cov @ A), 0)
    fit = gp.expected_log_likelihood(settings.likelihood, entries.value, f, var, gp.noise_of(hyper))
    second = cov + jnp.outer(mean, mean)
    kl = 0.5 * (jnp.trace(second) - len(L) + log_det) + gp.kl_nodes(params.nodes, before.nodes)
    # E[w w^T] = L_old^-1 k(Z, Z) L_old^-T + T^T (S + m m^T - I) T
    square = jnp.sum(before.precision_a * gp.inducing_cov(settings, hyper, old.inputs))
    square += jnp.sum(known * (second - jnp.eye(len(L))))
    past = old.shift @ (T.T @ mean) - 0.5 * square - before.constant
    return jnp.sum(entries.here * fit) - kl + past, _next(settings, entries, sites, f, var)


def _at_optimum(settings: GPSettings, entries: Entries, hyper: Hyper, sites: Sites) -> Sites:
    if not settings.likelihood.normal:
        return sites
    precision = entries.here / gp.noise_of(hyper)
    return Sites(precision, precision * entries.value)


def _next(settings: GPSettings, entries: Entries, sites: Sites, mean, var) -> Sites:
    if settings.likelihood.normal:
        return sites

    def fit(mean, var):
        each = gp.expected_log_likelihood(settings.likelihood, entries.value, mean, var, None)
        return jnp.sum(entries.here * each)

    mean, var = map(lax.stop_gradient, (mean, var))
    d_mean, d_var = jax.grad(fit, (0, 1))(mean, var)
    precision = jnp.maximum(-2 * d_var, 0)
    goal = Sites(precision, d_mean + precision * mean)
    return jax.tree.map(lambda have, want: have + SITE_STEP * (want - have), sites, goal)


def absorb(settings: GPSettings, before: Before, entries: Entries, params: Params, sites: Sites) -> Process:
    """The site on b: precision T precision_old T^T + L^-1 (sum_n λ_n E[k_n k_n^T]) L^-T, shift likewise.

    Unwhitening and whitening the precision in every batch would lose as many digits as the condition number
    of k(Z, Z) has, until it is no longer positive. So each part is whitened on its own, and negative
    eigenvalues from rounding are removed.
    """
    hyper, inputs, old = params.hyper, params.inputs, before.process
    L = jnp.linalg.cholesky(gp.inducing_cov(settings, hyper, inputs))
    whiten = partial(solve_triangular, L, lower=True)
    T = whiten(link(settings, before, params.hyper, params.inputs))

    def add(total, entry):
        node, site = entry
        x = params.nodes.mean[node].ravel(), jnp.exp(params.nodes.log_var[node]).ravel()
        first, second = gp.expected_kernels(hyper, inputs, *x)
        return (total[0] + site.precision * second, total[1] + site.shift * first), None

    nothing = jnp.zeros_like(L), jnp.zeros(len(L))
    total, _ = lax.scan(add, nothing, (entries.node, _at_optimum(settings, entries, hyper, sites)))
    precision = T @ old.precision @ T.T + whiten(whiten(total[0]).T)
    return Process(inputs, without_negative(precision), T @ old.shift + whiten(total[1]), hyper)


ALGORITHM = gp.Algorithm(start, learn, posterior)
