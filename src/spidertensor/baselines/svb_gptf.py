"""SVB-GPTF: sparse Gaussian-process tensor factorization by streaming variational Bayes.

The model is that of `gp`. Per batch, starting at the posterior before it,

    maximise  sum_n E_q[log p(y_n | f_n)] - KL(q || q before the batch),     q = q(v) prod q(factors)

by Adam: x is drawn from q(factors), reparameterised, once per entry and epoch; given x the expectation over
f is closed form (gaussian) or quadrature (probit). q(v) = N(m, R R^T) with R a full lower triangle.

mathematics.md has a posterior over the inducing inputs too. Here they are point estimates, like s, l and the
noise, and what moving them costs is not in the bound: v is what it is by Z, s and l, so that the same q(v) at
other Z says something else of g. A stream that stays in one region for long forgets the others by that; one
in random order does not notice.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from numpy.typing import NDArray

from spidertensor.baselines import gp, gp_method
from spidertensor.baselines.gp import Entries, GPLearned, GPSettings, Hyper, Nodes
from spidertensor.method import Method
from spidertensor.spider.likelihoods import Likelihood


class Process(NamedTuple):
    inputs: Any  # Z, (M, length of x)
    mean: Any  # m
    root: Any  # R, with a positive diagonal
    hyper: Hyper


class Params(NamedTuple):
    """What Adam moves. The diagonal of `process.root` is a logarithm here."""

    process: Process
    nodes: Nodes


def svb_gptf(n_modes: int, likelihood: Likelihood, **settings: Any) -> Method:
    """SVB-GPTF as a Method, for scaled values; the settings are those of `gp_method.build`."""
    return gp_method.build(ALGORITHM, n_modes, likelihood, **settings)


def start(settings: GPSettings, inputs: NDArray[np.float64]) -> Process:
    return Process(inputs, np.zeros(len(inputs)), np.eye(len(inputs)), gp.start_hyper(settings))


def posterior(settings: GPSettings, process: Process) -> tuple[Any, Any]:
    return process.mean, process.root @ process.root.T


@partial(jax.jit, static_argnums=0)
def learn(
    settings: GPSettings, learning_rate, before: Process, nodes: Nodes, entries: Entries, key
) -> GPLearned:
    """One batch. Pure, and all but the settings are arrays: vmap runs learning rates or seeds together."""
    start_key, key = gp.split(key)

    def objective(params: Params, extra, key):
        now = params._replace(process=_on_diagonal(jnp.exp, params.process))
        return bound(settings, Params(before, nodes), entries, now, key), extra

    params = Params(_on_diagonal(jnp.log, before), gp.start_nodes(nodes, entries, start_key))
    params, _, bounds = gp.ascend(settings, learning_rate, params, (), key, objective)
    return GPLearned(_on_diagonal(jnp.exp, params.process), params.nodes, bounds)


def _on_diagonal(function, process: Process) -> Process:
    diagonal = jnp.diag(function(jnp.diag(process.root)))
    return process._replace(root=jnp.tril(process.root, -1) + diagonal)


def bound(settings: GPSettings, before: Params, entries: Entries, now: Params, key) -> jax.Array:
    """E_q[log p(y | f)] - KL(q || q before the batch), at one draw of x per entry."""
    process, hyper = now.process, now.process.hyper
    x = gp.draw_inputs(now.nodes, entries, key)
    L = jnp.linalg.cholesky(gp.inducing_cov(settings, hyper, process.inputs))
    a = solve_triangular(L, gp.kernel(hyper, process.inputs, x), lower=True)
    mean = a.T @ process.mean
    var = jnp.exp(hyper.log_var) - jnp.sum(a * a, 0) + jnp.sum((process.root.T @ a) ** 2, 0)
    fit = gp.expected_log_likelihood(settings.likelihood, entries.value, mean, var, gp.noise_of(hyper))
    kl = kl_process(process, before.process) + gp.kl_nodes(now.nodes, before.nodes)
    return jnp.sum(entries.here * fit) - kl


def kl_process(now: Process, before: Process) -> jax.Array:
    """KL(N(m, R R^T) || N(m0, R0 R0^T)) = ½ |R0^-1 R|² + ½ |R0^-1 (m - m0)|² - ½ M - log |R| + log |R0|."""
    both = jnp.column_stack([now.root, now.mean - before.mean])
    away = solve_triangular(before.root, both, lower=True)
    log_ratio = jnp.sum(jnp.log(jnp.diag(now.root)) - jnp.log(jnp.diag(before.root)))
    return 0.5 * (jnp.sum(away * away) - len(now.mean)) - log_ratio


ALGORITHM = gp.Algorithm(start, learn, posterior)
