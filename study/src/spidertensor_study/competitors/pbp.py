"""PBP: SPIDER's network, learned through moments of every layer instead of one linearisation of f.

After Hernández-Lobato and Adams (2015), probabilistic backpropagation, with the factors as random inputs. The
model, its start, its noise and its spike-and-slab prior are those of SPIDER without curvature (mathematics.md
sections 1 to 4); only the mean and variance of f differ, and the gradients of log Z with them.

With independent inputs of mean m and variance v (the constant 1 has variance 0) and weights of mean M and
variance V, a layer scaled by s = 1 / sqrt(inputs) has outputs a with

    E[a_i]   = s sum_j M_ij m_j
    Var[a_i] = s^2 sum_j (M_ij^2 v_j + V_ij (m_j^2 + v_j))

which are taken as independent Gaussians, and h = max(a, 0) has, with t = E[a] / sqrt(Var[a]),

    E[h]   = E[a] Phi(t) + sqrt(Var[a]) phi(t),     Var[h] = E[h^2] - E[h]^2   (`rectified`)

The output has mean alpha and variance beta, log Z(alpha, beta) is the evidence of the entry, and every weight
and factor element moves by its gradients, mean += var g, var -= var^2 (g^2 - 2 g_var). A result that is not
finite or not positive is rejected and counted.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import HUGE, Bags, Batch, Method, Prediction, Update, check_batch, check_index
from spidertensor.spider import posterior
from spidertensor.spider.compiled import COMPILE, PART, kernel
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT, Likelihood, check
from spidertensor.spider.likelihoods.gaussian import forgetting, misfit
from spidertensor.spider.likelihoods.kernel import evidence, is_normal
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Gaussian, Prior, Site, State
from spidertensor.spider.spike_slab import refine

PRIOR = Prior()
SLAB_VAR, RHO0 = PRIOR.slab_var, PRIOR.rho0
NOISE_MEMORY = 10_000  # entries, as in SPIDER
DEAD = -30.0  # a unit whose mean is this many standard deviations below 0 is always 0
_SQRT_HALF = math.sqrt(0.5)
_INVERSE_SQRT_2PI = 1 / math.sqrt(2 * math.pi)


def pbp(network: Network, likelihood: Likelihood, *, refine_every: int = 256) -> Method:
    """Probabilistic backpropagation over an entry's factors as a Method. refine_every: as in `sequential`."""
    code = check(likelihood, (GAUSSIAN, PROBIT), "PBP").code
    if network.activation != "relu" or network.deep_start:
        raise ValueError(f"PBP has moments for the paper's network with relu only, got {network}")
    if refine_every < 1:
        raise ValueError(f"refine_every must be at least 1 entry, got {refine_every}")
    inputs = np.array([columns for _, columns in network.layers], np.int64)
    ranks = np.array(network.ranks, np.int64)
    lam = forgetting(NOISE_MEMORY)

    def init(seed: int) -> State:
        """SPIDER's initial state in float64: moments of layers lose more digits than f does."""
        state = posterior.init(network, PRIOR, seed)
        return state._replace(
            posterior=state.posterior._replace(
                factors=_float64(state.posterior.factors), weights=_float64(state.posterior.weights)
            ),
            sites=_float64(state.sites),
        )

    def update(state: State, batch: Batch) -> tuple[State, Update]:
        check_batch(batch, network.n_modes)
        out = np.empty((4, len(batch.value)))
        if not len(batch.value):
            return state, Update(*out, rejected=0)
        state = posterior.grow(state, network, PRIOR, batch.index.max(axis=0) + 1)
        counts, noise = state.counts, state.posterior.noise
        before = int(counts.rejected), int(counts.refused)
        rows, place, factors = _gathered(network, state, batch.index)
        weights, sites = Gaussian(*_flat(state.posterior.weights)), Site(*_flat(state.sites))
        value = np.require(
            batch.value, np.float64, ["C", "W"]
        )  # read-only arrays would be another type for numba
        learn(
            place, value, factors, weights, sites, ranks, inputs, noise, counts, code, lam, refine_every, out
        )  # fmt: skip
        _write_back(weights, state.posterior.weights, [np.s_[:]] * len(inputs))
        _write_back(sites, state.sites, [np.s_[:]] * len(inputs))
        _write_back(factors, state.posterior.factors, rows)
        rejected, refused = int(counts.rejected) - before[0], int(counts.refused) - before[1]
        return state, Update(*out, rejected=rejected, refused=refused)

    def predict(state: State, index: NDArray[np.integer], bags: Bags | None = None) -> Prediction:
        check_index(index, network.n_modes, bags)
        _, place, factors = _gathered(network, state, index)
        out = np.empty((3, len(index)))
        weights = Gaussian(*_flat(state.posterior.weights))
        predict_all(place, factors, weights, ranks, inputs, out)
        out[2] = likelihood.noise_var(*state.posterior.noise)
        return Prediction(*out)

    return Method(init, update, predict)


def _float64(layers: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(type(each)(*(part.astype(np.float64) for part in each)) for each in layers)


def _flat(layers: tuple[Any, ...]) -> list[NDArray[np.float64]]:
    """Concatenate all layers, or modes, so that one compilation serves any number of them."""
    return [np.concatenate([part.ravel() for part in parts]) for parts in zip(*layers, strict=True)]


def _gathered(
    network: Network, state: State, index: NDArray[np.integer]
) -> tuple[list[NDArray[np.int64]], NDArray[np.int64], Gaussian]:
    """The factors that entries need: their rows per mode, where those of an entry begin, and all elements.

    The last row, with mean zero and the prior's variance, stands for unseen nodes of every mode.
    """
    found, parts, first = [], [], 0
    place = np.full(index.shape, -1)
    for k, factor in enumerate(state.posterior.factors):
        known = (index[:, k] >= 0) & (index[:, k] < state.counts.nodes[k])
        rows, where = np.unique(index[known, k], return_inverse=True)
        place[known, k] = first + network.ranks[k] * where
        first += network.ranks[k] * len(rows)
        found.append(rows)
        parts.append(Gaussian(*(have[rows] for have in factor)))
    place[place < 0] = first
    longest = max(network.ranks)
    parts.append(Gaussian(np.zeros(longest), np.full(longest, PRIOR.factor_var)))
    return found, place, Gaussian(*_flat(tuple(parts)))


def _write_back(flat: tuple[Any, ...], into: tuple[Any, ...], rows: list[Any]) -> None:
    """Copy the elements of `_flat` back to these rows of their arrays."""
    first = 0
    for arrays, at in zip(into, rows, strict=True):
        size = arrays[0][at].size
        for new, old in zip(flat, arrays, strict=True):
            old[at] = new[first : first + size].reshape(old[at].shape)
        first += size


# --- compiled -------------------------------------------------------------------------------------


class Passes(NamedTuple):
    """Working memory, (layers, widest input): what the forward pass leaves for the backward pass."""

    mean: NDArray[np.float64]  # of the inputs of each layer, the constant 1 last
    var: NDArray[np.float64]
    square: NDArray[np.float64]  # mean^2 + var
    cdf: NDArray[np.float64]  # Phi(t) of these inputs, the units of the previous layer
    pdf: NDArray[np.float64]  # and phi(t) / standard deviation


@kernel(**PART)
def rectified(mean, var):
    """Mean and variance of max(a, 0) with a ~ N(mean, var), Phi(t) and phi(t) / standard deviation."""
    sigma = math.sqrt(var)
    t = mean / sigma
    if t < DEAD:
        return 0.0, 0.0, 0.0, 0.0
    tail = 0.5 * math.erfc(abs(t) * _SQRT_HALF)
    above, below = (1.0 - tail, tail) if t > 0 else (tail, 1.0 - tail)  # Phi(t) and 1 - Phi(t)
    pdf = _INVERSE_SQRT_2PI * math.exp(-0.5 * t * t)
    # E[h^2] - E[h]^2, arranged so that for large t nothing large cancels
    share = above + t * t * above * below + t * pdf * (below - above) - pdf * pdf
    return sigma * max(t * above + pdf, 0.0), var * max(share, 0.0), above, pdf / sigma


@kernel(**PART)
def passes_of(inputs):
    shape = len(inputs), inputs.max()
    return Passes(np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape))


@kernel(**PART)
def forward(place, n, factors, weights, ranks, inputs, c):
    """alpha and beta of entry n."""
    at = 0
    for k in range(len(ranks)):
        for p in range(ranks[k]):
            c.mean[0, at] = factors.mean[place[n, k] + p]
            c.var[0, at] = factors.var[place[n, k] + p]
            at += 1
    alpha, beta, first = 0.0, 0.0, 0
    for layer in range(len(inputs)):
        width, last = inputs[layer], layer == len(inputs) - 1
        mean, var, square = c.mean[layer], c.var[layer], c.square[layer]
        mean[width - 1], var[width - 1] = 1.0, 0.0
        for j in range(width):
            square[j] = mean[j] * mean[j] + var[j]
        for i in range(1 if last else inputs[layer + 1] - 1):
            w_mean, w_var = weights.mean[first : first + width], weights.var[first : first + width]
            total, spread = 0.0, 0.0
            for j in range(width):
                total += w_mean[j] * mean[j]
                spread += w_mean[j] * w_mean[j] * var[j] + w_var[j] * square[j]
            first += width
            alpha, beta = total / math.sqrt(width), spread / width
            if not last:
                h = rectified(alpha, beta)
                c.mean[layer + 1, i], c.var[layer + 1, i] = h[0], h[1]
                c.cdf[layer + 1, i], c.pdf[layer + 1, i] = h[2], h[3]
    return alpha, beta


@kernel(**PART)
def moved(mean, var, g, g_var):
    """Updated mean and variance for these gradients of log Z, and 0; if rejected, the old ones, and 1."""
    new_mean, new_var = mean + var * g, var - var * var * (g * g - 2.0 * g_var)
    if 1 / HUGE < new_var < HUGE and abs(new_mean) < HUGE:  # also false for NaN
        return new_mean, new_var, 0
    return mean, var, 1


@kernel(**PART)
def backward(place, n, factors, weights, ranks, inputs, c, da, db):
    """Update all layers and the factors of entry n, from the output back; return how many were rejected."""
    widest, rejected = c.mean.shape[1], 0
    up_mean, up_var = (
        np.zeros(widest),
        np.zeros(widest),
    )  # gradients of log Z by the moments of a layer's outputs
    in_mean, in_var = np.zeros(widest), np.zeros(widest)  # by those of its inputs
    up_mean[0], up_var[0] = da, db
    first = len(weights.mean)
    for layer in range(len(inputs) - 1, -1, -1):
        width = inputs[layer]
        outputs = 1 if layer == len(inputs) - 1 else inputs[layer + 1] - 1
        first -= width * outputs
        mean, var, square = c.mean[layer], c.var[layer], c.square[layer]
        in_mean[:], in_var[:] = 0.0, 0.0
        for i in range(outputs):
            a, b = up_mean[i] / math.sqrt(width), up_var[i] / width
            start = first + i * width
            w_mean, w_var = weights.mean[start : start + width], weights.var[start : start + width]
            for j in range(width):
                in_mean[j] += a * w_mean[j] + 2.0 * b * w_var[j] * mean[j]
                in_var[j] += b * (w_mean[j] * w_mean[j] + w_var[j])
            for j in range(width):
                g = a * mean[j] + 2.0 * b * w_mean[j] * var[j]
                w_mean[j], w_var[j], lost = moved(w_mean[j], w_var[j], g, b * square[j])
                rejected += lost
        for j in range(width - 1 if layer else 0):  # through the rectifier
            cdf, pdf, h = c.cdf[layer, j], c.pdf[layer, j], mean[j]
            up_mean[j] = in_mean[j] * cdf + 2.0 * in_var[j] * h * (1.0 - cdf)
            up_var[j] = 0.5 * in_mean[j] * pdf + in_var[j] * (cdf - h * pdf)
    at = 0
    for k in range(len(ranks)):
        for e in range(place[n, k], place[n, k] + ranks[k]):
            factors.mean[e], factors.var[e], lost = moved(
                factors.mean[e], factors.var[e], in_mean[at], in_var[at]
            )
            rejected += lost
            at += 1
    return rejected


@kernel(**COMPILE)
def learn(
    place, value, factors, weights, sites, ranks, inputs, noise, counts, likelihood, lam, refine_every, out
):
    c, normal = passes_of(inputs), is_normal(likelihood)
    for n in range(len(value)):
        alpha, beta = forward(place, n, factors, weights, ranks, inputs, c)
        noise_var = noise.rate[()] / noise.shape[()] if normal else 0.0
        log_z, da, db, _ = evidence(likelihood, value[n], alpha, beta, noise_var)
        out[0, n], out[1, n], out[2, n], out[3, n] = alpha, beta, noise_var, log_z
        if abs(log_z) < HUGE and abs(da) < HUGE and abs(db) < HUGE:  # also false for NaN
            counts.log_evidence[()] += log_z
            counts.rejected[()] += backward(place, n, factors, weights, ranks, inputs, c, da, db)
            if normal:
                off = misfit(value[n], alpha, beta, noise_var, False)
                noise.shape[()] = lam * noise.shape[()] + 0.5
                noise.rate[()] = lam * noise.rate[()] + 0.5 * off
        else:
            counts.refused[()] += 1
            counts.rejected[()] += len(weights.mean) + ranks.sum()
        counts.entries[()] += 1
        if counts.entries[()] % refine_every == 0:
            precision, shift, log_odds = sites
            counts.rejected[()] += refine(
                weights.mean, weights.var, precision, shift, log_odds, len(weights.mean), SLAB_VAR, RHO0
            )


@kernel(**COMPILE)
def predict_all(place, factors, weights, ranks, inputs, out):
    c = passes_of(inputs)
    for n in range(len(place)):
        out[0, n], out[1, n] = forward(place, n, factors, weights, ranks, inputs, c)
