"""What the entries so far say about g: a Gaussian site on the values a = g(Z) at earlier inducing inputs Z.

Shared by SVB-GPTF and SS-GPTF. It is the ratio of posterior to prior under the earlier hyper-parameters:

    q_old(a) / p_old(a) = exp(shift^T w - ½ w^T precision w) / constant,   a = L_old w

So it keeps its meaning when the inducing inputs and the kernel change. With a ~ ∫ p(a | b) q(b) db, what it
says about g at new inputs, b = g(Z_b) = L v, is a site on v of precision T precision T^T and shift T shift,
where T = L^-1 k(Z_b, Z) L_old^-T. What b does not determine about a is lost, and costs ½ tr(precision cov(w |
b)).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from numpy.typing import NDArray

from spidertensor_study.competitors import gp
from spidertensor_study.competitors.gp import GPSettings, Hyper, Nodes


class Process(NamedTuple):
    inputs: Any  # Z, (M, length of x)
    precision: Any  # of the site, whitened: on g(Z) itself rounding could change its sign
    shift: Any
    hyper: Hyper


class Before(NamedTuple):
    """The posterior before the batch, and its relation to the new inducing inputs."""

    process: Process
    nodes: Nodes
    kept: Any  # (new, old): 1 where a new input started as this old one; the two share their jitter
    whiten: Any  # L_old^-T
    precision_a: Any  # L_old^-T precision L_old^-1
    constant: Any  # log ∫ N(w | 0, I) exp(shift^T w - ½ w^T precision w) dw


def start(settings: GPSettings, inputs: NDArray[np.float64]) -> Process:
    M = len(inputs)
    return Process(inputs, np.zeros((M, M)), np.zeros(M), gp.start_hyper(settings))


def posterior(settings: GPSettings, process: Process) -> tuple[Any, Any]:
    return gaussian(process.precision, process.shift)[:2]


def gaussian(precision, shift) -> tuple[jax.Array, jax.Array, jax.Array]:
    """N(0, I) times exp(shift^T v - ½ v^T precision v): its mean, its covariance S, and log |S^-1|."""
    eye = jnp.eye(len(shift))
    root = jnp.linalg.cholesky(eye + precision)
    cov = cho_solve((root, True), eye)
    return cov @ shift, cov, 2 * jnp.sum(jnp.log(jnp.diag(root)))


def remember(settings: GPSettings, process: Process, nodes: Nodes, chosen) -> Before:
    L = jnp.linalg.cholesky(gp.inducing_cov(settings, process.hyper, process.inputs))
    whiten = solve_triangular(L, jnp.eye(len(L)), lower=True).T
    mean, _, log_det = gaussian(process.precision, process.shift)
    kept = (chosen[:, None] == jnp.arange(len(L))).astype(L.dtype)
    precision_a = whiten @ process.precision @ whiten.T
    return Before(process, nodes, kept, whiten, precision_a, 0.5 * (process.shift @ mean - log_det))


def link(settings: GPSettings, before: Before, hyper: Hyper, inputs) -> jax.Array:
    """k(Z_b, Z) L_old^-T. A kept input keeps its jitter; otherwise every batch would lose information."""
    jitter = settings.jitter * jnp.exp(hyper.log_var)
    cov = gp.kernel(hyper, inputs, before.process.inputs) + jitter * before.kept
    return cov @ before.whiten


def without_negative(precision) -> jax.Array:
    """Remove negative eigenvalues, which rounding or steps of Adam can cause."""
    sizes, axes = jnp.linalg.eigh(0.5 * (precision + precision.T))
    return (axes * jnp.maximum(sizes, 0)) @ axes.T
