"""SVB-GPTF: sparse Gaussian-process tensor factorization by streaming variational Bayes.

The model is that of `gp`. Per batch, starting at the posterior before it,

    maximise  sum_n E_q[log p(y_n | f_n)] - KL(q || q before the batch),     q = q(v) prod q(factors)

by Adam: x is drawn from q(factors), reparameterised, once per entry and epoch; given x the expectation over
f is closed form (gaussian) or quadrature (probit). q(v) = N(m, R R^T) with R a full lower triangle.

mathematics.md has a posterior over the inducing inputs too. Here they are point estimates, like s, l and the
noise, that begin each batch where they were. v means something by Z, s and l only, so the KL is not of v but
of what q says of g, at the old inputs (a = g(Z_old) = L_old w) and the new ones (b = L v) together:

    KL(q(g) || q_old(g)) = KL(q(b) || p(b)) - E[log q_old(a) / p_old(a)],     a ~ ∫ p(a | b) q(b) db

the same as in SS-GPTF. What was known has its price wherever the inputs go; moving the inputs and the kernel
is free where nothing was known. With KL(q(v) || q_old(v)), other inputs would give what was known another
meaning at no cost.
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


class Before(NamedTuple):
    """q_old(a) / p_old(a) = exp(shift^T w - ½ w^T precision w - constant), a = L_old w."""

    process: Process
    whiten: Any  # L_old^-T
    precision: Any
    precision_a: Any  # L_old^-T precision L_old^-1
    shift: Any
    constant: Any


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
    known = remember(settings, before)

    def objective(params: Params, extra, key):
        now = params._replace(process=_on_diagonal(jnp.exp, params.process))
        return bound(settings, known, nodes, entries, now, key), extra

    params = Params(_on_diagonal(jnp.log, before), gp.start_nodes(nodes, entries, start_key))
    params, _, bounds = gp.ascend(settings, learning_rate, params, (), key, objective)
    return GPLearned(_on_diagonal(jnp.exp, params.process), params.nodes, bounds)


def _on_diagonal(function, process: Process) -> Process:
    diagonal = jnp.diag(function(jnp.diag(process.root)))
    return process._replace(root=jnp.tril(process.root, -1) + diagonal)


def bound(
    settings: GPSettings, before: Before, nodes: Nodes, entries: Entries, now: Params, key
) -> jax.Array:
    """E_q[log p(y | f)] - KL(q || q before the batch), at one draw of x per entry."""
    process, hyper = now.process, now.process.hyper
    x = gp.draw_inputs(now.nodes, entries, key)
    L = jnp.linalg.cholesky(gp.inducing_cov(settings, hyper, process.inputs))
    a = solve_triangular(L, gp.kernel(hyper, process.inputs, x), lower=True)
    mean = a.T @ process.mean
    var = jnp.exp(hyper.log_var) - jnp.sum(a * a, 0) + jnp.sum((process.root.T @ a) ** 2, 0)
    fit = gp.expected_log_likelihood(settings.likelihood, entries.value, mean, var, gp.noise_of(hyper))
    kl = kl_process(settings, process, L, before) + gp.kl_nodes(now.nodes, nodes)
    return jnp.sum(entries.here * fit) - kl


def remember(settings: GPSettings, process: Process) -> Before:
    L = jnp.linalg.cholesky(gp.inducing_cov(settings, process.hyper, process.inputs))
    eye = jnp.eye(len(L))
    whiten = solve_triangular(L, eye, lower=True).T
    inverse = solve_triangular(process.root, eye, lower=True)
    precision, shift = inverse.T @ inverse - eye, inverse.T @ (inverse @ process.mean)
    log_det = 2 * jnp.sum(jnp.log(jnp.diag(process.root)))
    constant = 0.5 * (shift @ process.mean + log_det)
    return Before(process, whiten, precision, whiten @ precision @ whiten.T, shift, constant)


def kl_process(settings: GPSettings, now: Process, L, before: Before) -> jax.Array:
    """KL(q(g) || q_old(g)), L being that of the inputs now.

    With T = L^-1 k(Z, Z_old) L_old^-T, w has mean T^T m and E[w w^T] = L_old^-1 k(Z_old, Z_old) L_old^-T +
    T^T (S + m m^T - I) T. An input shares its jitter with the one it was: unmoved, T = I, and all this is
    KL(q(v) || q_old(v)).
    """
    old, eye = before.process, jnp.eye(len(L))
    link = gp.kernel(now.hyper, now.inputs, old.inputs) + settings.jitter * jnp.exp(now.hyper.log_var) * eye
    T = solve_triangular(L, link @ before.whiten, lower=True)
    second = now.root @ now.root.T + jnp.outer(now.mean, now.mean) - eye
    own = 0.5 * jnp.trace(second) - jnp.sum(jnp.log(jnp.diag(now.root)))
    square = jnp.sum(before.precision_a * gp.inducing_cov(settings, now.hyper, old.inputs))
    square += jnp.sum((T @ before.precision @ T.T) * second)
    return own + 0.5 * square - before.shift @ (T.T @ now.mean) + before.constant


ALGORITHM = gp.Algorithm(start, learn, posterior)
