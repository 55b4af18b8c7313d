"""`quadrature` in JAX, with derivatives of the log density by autodiff: mathematics.md section 17."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from spidertensor.spider.likelihoods.base import Evidence
from spidertensor.spider.likelihoods.hermite import LOG_WEIGHTS, NODES

_STEPS = 32  # to the mode of a tilted density


def by_quadrature(
    log_density: Callable[..., jax.Array], y, alpha, beta, noise, weight: jax.Array | None = None
) -> Evidence:
    """What entries say about f, for any elementwise log_density(y, f, log noise) that is concave in f.

    weight: None, or the power of p(y | f), section 27. The score stays that of one observation, and log_z is
            of no use
    """
    y, alpha, beta, log_noise = jnp.broadcast_arrays(y, alpha, beta, jnp.log(noise))

    def derivatives(f):
        """l, l' and l''"""
        one = jnp.ones_like(f)

        def value(f):
            density = log_density(y, f, log_noise)
            return density if weight is None else weight * density

        slope = lambda f: jax.jvp(value, (f,), (one,))  # noqa: E731
        (density, first), (_, second) = jax.jvp(slope, (f,), (one,))
        return density, first, second

    def of_noise(f):
        return jax.jvp(lambda at: log_density(y, f, at), (log_noise,), (jnp.ones_like(f),))[1]

    centre, width = _mode(derivatives, alpha, beta)
    nodes = jnp.asarray(NODES, alpha.dtype)
    off = nodes.reshape(-1, *[1] * alpha.ndim) * width
    density, slope, bend = jax.vmap(derivatives)(centre + off)
    log_weights = jnp.asarray(LOG_WEIGHTS, alpha.dtype).reshape(-1, *[1] * alpha.ndim)
    level = log_weights + density - 0.5 * (centre + off - alpha) ** 2 / beta
    best = jnp.max(level, axis=0)
    p = jnp.exp(level - best)
    total = jnp.sum(p, axis=0)
    mean = lambda of: jnp.sum(p * of, axis=0) / total  # noqa: E731
    log_z = best + jnp.log(total * width / jnp.sqrt(beta))
    m_off, m_slope, m_bend = mean(off), mean(slope), mean(bend)
    var = mean((off - m_off) ** 2)  # of f, given the entry
    much = -m_bend * beta > 1
    da = jnp.where(much, (centre - alpha + m_off) / beta, m_slope)
    c = jnp.where(much, (beta - var) / beta**2, -m_bend - mean((slope - m_slope) ** 2))
    c = jnp.clip(c, 0, 1 / beta)
    precision = c * beta / var
    root = jnp.where(c > 0, da / jnp.where(c > 0, c, 1), 0) * jnp.sqrt(precision)
    return Evidence(
        log_z, da, 0.5 * (da * da - c), c, precision, root, mean(jax.vmap(of_noise)(centre + off))
    )


def _mode(derivatives, alpha, beta) -> tuple[jax.Array, jax.Array]:
    """Mode of the tilted density, and its width there: Newton's steps between bounds, else bisection."""

    def better(_, at):
        f, low, high = at
        _, slope, bend = derivatives(f)
        uphill = slope - (f - alpha) / beta
        low, high = jnp.where(uphill > 0, f, low), jnp.where(uphill > 0, high, f)
        new = f + uphill / (1 / beta - bend)
        return jnp.where((new >= low) & (new <= high), new, 0.5 * (low + high)), low, high

    end = alpha + beta * derivatives(alpha)[1]
    start = alpha, jnp.minimum(alpha, end), jnp.maximum(alpha, end)
    centre = lax.fori_loop(0, _STEPS, better, start)[0]
    return centre, 1 / jnp.sqrt(1 / beta - derivatives(centre)[2])
