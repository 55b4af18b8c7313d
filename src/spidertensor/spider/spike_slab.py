"""Expectation propagation over the spike-and-slab prior of the weights. mathematics.md section 4."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from spidertensor.method import HUGE
from spidertensor.spider.compiled import COMPILE, kernel
from spidertensor.spider.posterior import Gaussian, Site

T = TypeVar("T", bound=tuple[Any, ...])
S = TypeVar("S", bound=tuple[Any, ...])

WIDEST_CAVITY = 1e6  # variance; a wider cavity has seen no data, so there is nothing to refine


@kernel(**COMPILE)
def refine(mean, var, precision, precision_mean, log_odds, n, slab_var, rho0):
    """Refine n weights and their sites in place; returns how many elements were rejected.

    Natural parameters become differences of large numbers as data accumulates, so they are float64 here;
    log and exp need only float32.
    """
    odds_against = np.float32((1.0 - rho0) / rho0)
    rejected = 0
    for i in range(n):
        m, v = float(mean[i]), float(var[i])
        # cavity = posterior / site
        cavity_precision = 1.0 / v - precision[i]
        if not cavity_precision > 1.0 / WIDEST_CAVITY:  # improper or too wide: common early on
            continue
        cavity_precision_mean = m / v - precision_mean[i]
        v_c = 1.0 / cavity_precision
        m_c = v_c * cavity_precision_mean
        # rho = log N(m_c | 0, v_c + slab) - log N(m_c | 0, v_c)
        wide = v_c + slab_var
        fit = 0.5 * m_c * m_c * slab_var / (v_c * wide)
        rho = fit - 0.5 * math.log(np.float32(wide * cavity_precision))
        # incl = sigmoid(rho + logit(rho0)); 1 - incl is computed directly, to keep its digits near incl = 1
        against = odds_against * math.exp(-np.float32(rho))
        included = 1.0 / (1.0 + against)
        excluded = 1.0 - included if against > HUGE else against * included
        # slab times cavity, then the moments of its mixture with the spike at 0
        v_slab = 1.0 / (cavity_precision + 1.0 / slab_var)
        m_slab = v_slab * cavity_precision_mean
        new_mean = included * m_slab
        new_var = included * (v_slab + excluded * m_slab * m_slab)
        # site = posterior / cavity
        new_precision = 1.0 / new_var - cavity_precision
        new_precision_mean = new_mean / new_var - cavity_precision_mean
        # A NaN or inf anywhere fails this comparison.
        if not (
            new_var > 1 / HUGE
            and abs(new_mean) < HUGE
            and abs(new_precision) < HUGE
            and abs(new_precision_mean) < HUGE
        ):
            rejected += 1
            continue
        mean[i], var[i] = new_mean, new_var
        precision[i], precision_mean[i] = new_precision, new_precision_mean
        log_odds[i] = rho
    return rejected


def refine_layer(weight: Gaussian, site: Site, slab_var: float, rho0: float) -> int:
    """Call `refine` on the arrays of one layer."""
    arrays = (array.reshape(-1) for array in (*weight, *site))  # views: the arrays are C-contiguous
    return refine(*arrays, weight.mean.size, slab_var, rho0)


def jax_refine(weights: T, sites: S, slab_var: Any, log_odds: Any) -> tuple[T, S, Any]:
    """`refine` in JAX, for all weights at once: refined Gaussians and sites, and how many were rejected.

    In float32 the new site is computed directly as what the prior adds to the cavity: as a difference of
    posterior and cavity, which become large and nearly equal, it would lose its digits.
    """
    import jax
    import jax.numpy as jnp

    (mean, var), (site_precision, site_precision_mean, _) = weights, sites
    # cavity = posterior / site
    cavity_precision = 1 / var - site_precision
    proper = cavity_precision > 1 / WIDEST_CAVITY
    cavity_precision = jnp.where(proper, cavity_precision, 1)
    cavity_precision_mean = mean / var - site_precision_mean
    v_c = 1 / cavity_precision
    m_c = v_c * cavity_precision_mean
    # rho = log N(m_c | 0, v_c + slab) - log N(m_c | 0, v_c)
    wide = v_c + slab_var
    rho = 0.5 * m_c * m_c * slab_var / (v_c * wide) - 0.5 * jnp.log(wide * cavity_precision)
    # incl = sigmoid(rho + logit(rho0)); 1 - incl is computed directly, to keep its digits near incl = 1
    included, excluded = jax.nn.sigmoid(rho + log_odds), jax.nn.sigmoid(-(rho + log_odds))
    # slab times cavity, then the moments of its mixture with the spike at 0
    v_slab = 1 / (cavity_precision + 1 / slab_var)
    m_slab = v_slab * cavity_precision_mean
    spread = v_slab + excluded * m_slab * m_slab
    new = included * m_slab, included * spread
    # site = posterior / cavity, with 1/v_slab = cavity_precision + 1/slab, m_slab/v_slab its precision * mean
    pull = excluded / (v_slab * spread)
    precision = 1 / slab_var + pull * (v_slab / included - m_slab * m_slab)
    new_sites = precision, -pull * m_slab**3, rho
    # A NaN or inf anywhere fails this comparison.
    fine = (new[1] > 1 / HUGE) & (jnp.abs(new[0]) < HUGE)
    fine &= (jnp.abs(new_sites[0]) < HUGE) & (jnp.abs(new_sites[1]) < HUGE)
    put = partial(jnp.where, proper & fine)
    rejected = jnp.sum(proper & ~fine, dtype=jnp.int32)
    return type(weights)(*map(put, new, weights)), type(sites)(*map(put, new_sites, sites)), rejected


def inclusion(site: Site, rho0: float) -> NDArray[np.float64]:
    """Posterior probability that each weight of a layer is in the network at all."""
    return expit(site.log_odds.astype(np.float64) + logit(rho0))
