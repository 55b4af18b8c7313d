"""Expectation propagation over the spike-and-slab prior of the weights. mathematics.md section 4."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from spidertensor.method import HUGE
from spidertensor.spider.compiled import COMPILE, kernel
from spidertensor.spider.posterior import Gaussian, Site

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


def inclusion(site: Site, rho0: float) -> NDArray[np.float64]:
    """Posterior probability that each weight of a layer is in the network at all."""
    return expit(site.log_odds.astype(np.float64) + logit(rho0))
