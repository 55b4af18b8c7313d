"""log Z and its derivatives for any likelihood whose log density is concave in f: mathematics.md section 17.

Gauss-Hermite nodes are placed around the mode of the tilted density p(y | f) N(f | alpha, beta), with a width
from its curvature there. (Nodes of N(alpha, beta) itself would miss a narrow likelihood.) With E over the
tilted density

    da = E[l'] = (E[f] - alpha) / beta,   c = -E[l''] - Var[l'] = (beta - Var[f]) / beta²

Of the two forms the one without cancellation is used: the first where the entry says little about f, the
second where it says much.
"""

from __future__ import annotations

import math

import numpy as np

from spidertensor.spider.compiled import COMPILE, kernel
from spidertensor.spider.likelihoods.density import constants, log_density
from spidertensor.spider.likelihoods.hermite import LOG_WEIGHTS, N_NODES, NODES

STEPS = 60  # most steps to the mode: after these, bisection alone would be exact to all digits
CLOSE = 1e-4  # in units of the tilted density's width: the nodes need no better centre


@kernel(**COMPILE)
def by_quadrature(likelihood, y, alpha, beta, noise, weight=None):
    """log_z, da, db and c of one entry (see the package docstring), and d log_z / dlog noise.

    weight: None, or the power of p(y | f), section 27. The last stays that of one observation, and log_z is
            of no use
    """
    centre, width = _mode(likelihood, y, alpha, beta, noise, weight)
    level, slope, best = np.empty(N_NODES), np.empty(N_NODES), -np.inf
    bend, of_noise = np.empty(N_NODES), np.empty(N_NODES)
    for n in range(N_NODES):
        f = centre + width * NODES[n]
        density, slope[n], bend[n], of_noise[n] = log_density(likelihood, y, f, noise)
        if weight is not None:
            density, slope[n], bend[n] = weight * density, weight * slope[n], weight * bend[n]
        level[n] = LOG_WEIGHTS[n] + density - 0.5 * (f - alpha) ** 2 / beta
        best = max(best, level[n])
    total, m_off, m_slope, m_bend, m_noise = 0.0, 0.0, 0.0, 0.0, 0.0
    for n in range(N_NODES):
        level[n] = math.exp(level[n] - best)
        total += level[n]
        m_off += level[n] * width * NODES[n]
        m_slope += level[n] * slope[n]
        m_bend += level[n] * bend[n]
        m_noise += level[n] * of_noise[n]
    m_off, m_slope, m_bend, m_noise = m_off / total, m_slope / total, m_bend / total, m_noise / total
    var_off, var_slope = 0.0, 0.0
    for n in range(N_NODES):
        var_off += level[n] * (width * NODES[n] - m_off) ** 2
        var_slope += level[n] * (slope[n] - m_slope) ** 2
    var_off, var_slope = var_off / total, var_slope / total
    of_y, noise_of_y = constants(likelihood, y, noise)
    log_z = of_y + best + math.log(total * width) - 0.5 * math.log(beta)
    if -m_bend * beta > 1.0:
        da, c = (centre - alpha + m_off) / beta, (beta - var_off) / (beta * beta)
    else:
        da, c = m_slope, -m_bend - var_slope
    c = min(max(c, 0.0), 1.0 / beta)
    return log_z, da, 0.5 * (da * da - c), c, noise_of_y + m_noise


@kernel(**COMPILE)
def _mode(likelihood, y, alpha, beta, noise, weight):
    """Mode of the tilted density, and its width there. l is concave, so the mode lies between alpha and
    alpha + beta l'(alpha): Newton's steps, or bisection where one would leave the remaining interval."""
    end = alpha + beta * log_density(likelihood, y, alpha, noise)[1]
    if weight is not None:
        end = alpha + weight * (end - alpha)
    low, high, f, width = min(alpha, end), max(alpha, end), alpha, math.sqrt(beta)
    for _ in range(STEPS):
        _, slope, bend, _ = log_density(likelihood, y, f, noise)
        if weight is not None:
            slope, bend = weight * slope, weight * bend
        uphill = slope - (f - alpha) / beta
        width = 1.0 / math.sqrt(1.0 / beta - bend)
        step = uphill * width * width
        if not abs(step) > CLOSE * width:  # a NaN ends it too
            break
        if uphill > 0:
            low = f
        else:
            high = f
        f += step
        if not low < f < high:
            f = 0.5 * (low + high)
    return f, width


@kernel(**COMPILE)
def log_evidences(likelihood, y, mean, var, noise, out):
    """Fill out (n,) with log Z of many entries."""
    for n in range(len(y)):
        out[n] = by_quadrature(likelihood, y[n], mean[n], var[n], noise[n], None)[0]
