"""The two ways to learn a batch, and the refinement of the prior, as compiled functions of JAX.

    joint  all entries of the batch together, linearised at the posterior before it: mathematics.md section 7
    scan   entry by entry: section 3

Both turn a `Carry`, the state as it lies on the device, into the next. Compiled shapes do not follow the
data: a batch has a fixed number of places, of which the first `taken` hold entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import erfc

from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT, Likelihood, check
from spidertensor.spider.network import Network
from spidertensor.spider.spike_slab import WIDEST_CAVITY
from spidertensor.spider.vectorized_networks import Normal, flat, function, linearise, parts

LIMIT = 2**29  # numbers in a matrix of gradients, 2 GiB; more are computed in blocks
BASE = 32  # rows of a triangle that is inverted as it is

_LOG_2PI = math.log(2 * math.pi)
_count = partial(jnp.sum, dtype=jnp.int32)


class Settings(NamedTuple):
    """What the compiled functions depend on; hashable."""

    network: Network
    likelihood: Likelihood
    update: str
    curvature: bool
    slab_var: float
    rho0: float
    forgetting: float


class Pair(NamedTuple):
    """Running sums high + low: in float32 they do not stall, and as one float64 they are exact."""

    high: jax.Array
    low: jax.Array


class Sites(NamedTuple):
    """A posterior.Site on the device."""

    precision: jax.Array
    precision_mean: jax.Array
    log_odds: jax.Array


class Carry(NamedTuple):
    """The state on the device, in few arrays: each costs a launch per batch and a transfer per call."""

    factors: Normal  # (rows, longest factor vector): the nodes of all modes
    weights: Normal  # (P,): all layers
    sites: Sites
    noise: Pair  # (2,): shape, rate


class Learned(NamedTuple):
    """What is known of a batch besides the state after it."""

    said: jax.Array  # (4, places) mean, var, noise, log evidence
    good: jax.Array  # (places,) entries that were learned
    rejected: jax.Array  # elements that such entries did not move


# --- likelihood: section 3 ------------------------------------------------------------------------


def mills(t: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """log Phi(t), R = phi(t) / Phi(t) and R + t, exact in both tails and positive for any finite t."""
    # t < -2: R + t = 1/(x + 2/(x + 3/(x + ...))) with x = -t, no difference of nearly equal numbers
    x = jnp.maximum(-t, 2)
    rest = jnp.zeros_like(t)
    for term in range(40, 0, -1):
        rest = term / (x + rest)
    # elsewhere the plain forms
    near = jnp.maximum(t, -2)
    upper, lower = 0.5 * erfc(near * math.sqrt(0.5)), 0.5 * erfc(-near * math.sqrt(0.5))
    log_cdf = jnp.where(near > 0, jnp.log1p(-upper), jnp.log(lower))
    ratio = jnp.exp(-0.5 * near * near - 0.5 * _LOG_2PI) / lower
    tail = t < -2
    return (
        jnp.where(tail, -0.5 * t * t - 0.5 * _LOG_2PI - jnp.log(x + rest), log_cdf),
        jnp.where(tail, x + rest, ratio),
        jnp.where(tail, rest, ratio + near),
    )


class Evidence(NamedTuple):
    """Of one entry or, elementwise, of many. With c = da² - 2 db the entry is to f what an observation of
    variance noise_n = 1/c - beta at alpha + res is, res = da / c."""

    log_z: jax.Array
    da: jax.Array
    db: jax.Array
    c: jax.Array
    precision: jax.Array  # 1 / noise_n
    root: jax.Array  # res / sqrt(noise_n)


def evidence(likelihood: Likelihood, y, alpha, beta, noise) -> Evidence:
    """`noise` is b/a, and only the gaussian looks at it."""
    return EVIDENCE[check(likelihood, EVIDENCE, "the vectorized engine")](y, alpha, beta, noise)


def _gaussian(y, alpha, beta, noise) -> Evidence:
    s, r = beta + noise, y - alpha
    fit = r * r / s
    log_z = -0.5 * (_LOG_2PI + jnp.log(s) + fit)
    return Evidence(log_z, r / s, 0.5 * (fit - 1) / s, 1 / s, 1 / noise, r / jnp.sqrt(noise))


def _probit(y, alpha, beta, noise) -> Evidence:
    z, width = 2 * y - 1, 1 + beta
    t = z * alpha / jnp.sqrt(width)
    log_z, R, R_t = mills(t)
    # w = R(R+t) lies in (0, 1), so noise_n = (1 + beta (1-w)) / w > 1: proper for any t, any beta
    w = jnp.minimum(R * R_t, 1)
    precision = w / (1 + beta * (1 - w))
    root = z * jnp.sqrt(precision * width) / R_t
    return Evidence(log_z, z * R / jnp.sqrt(width), -0.5 * R * t / width, w / width, precision, root)


EVIDENCE: dict[Likelihood, Callable[..., Evidence]] = {GAUSSIAN: _gaussian, PROBIT: _probit}


def _noise_var(settings: Settings, noise: Pair) -> jax.Array:
    return noise.high[1] / noise.high[0] * (settings.likelihood is GAUSSIAN)


def _noise_after(settings: Settings, noise: Pair, good: jax.Array, misfit: jax.Array) -> Pair:
    """a = lam^n a + 1/2 sum_i lam^(n-i), b likewise with the misfits; rejected entries are ignored."""
    if settings.likelihood is not GAUSSIAN:
        return noise
    log_lam, n = math.log(settings.forgetting), _count(good)
    kept = jnp.where(good, jnp.exp(log_lam * (n - jnp.cumsum(good))), 0)
    new = jnp.stack([kept, kept * jnp.where(good, misfit, 0)])
    return _add(noise, jnp.expm1(log_lam * n) * noise.high + 0.5 * jnp.sum(new, axis=1))


def _add(pair: Pair, x: jax.Array) -> Pair:
    """The error-free sum of two numbers (Knuth), its error kept in `low`."""
    total = pair.high + x
    rest = total - pair.high
    low = pair.low + ((pair.high - (total - rest)) + (x - rest))
    high = total + low
    return Pair(high, low - (high - total))


# --- refinement of the prior: section 4 -----------------------------------------------------------


def refine(weights: Normal, sites: Sites, slab_var: float, rho0: float) -> tuple[Normal, Sites, jax.Array]:
    """Weights after spike_slab.refine_layer, and how many elements were rejected.

    float32 here, so the new site is written as what the prior adds to the cavity: posterior and cavity, whose
    difference it is, are large and nearly equal once much data was seen.
    """
    # cavity = posterior / site
    cavity_precision = 1 / weights.var - sites.precision
    proper = cavity_precision > 1 / WIDEST_CAVITY
    cavity_precision = jnp.where(proper, cavity_precision, 1)
    cavity_precision_mean = weights.mean / weights.var - sites.precision_mean
    v_c = 1 / cavity_precision
    m_c = v_c * cavity_precision_mean
    # rho = log N(m_c | 0, v_c + slab) - log N(m_c | 0, v_c)
    wide = v_c + slab_var
    rho = 0.5 * m_c * m_c * slab_var / (v_c * wide) - 0.5 * jnp.log(wide * cavity_precision)
    # incl = sigmoid(rho + logit(rho0)); 1 - incl on its own, or it is lost to rounding near 1
    logit = rho + (math.log(rho0 / (1 - rho0)) if rho0 < 1 else math.inf)
    included, excluded = jax.nn.sigmoid(logit), jax.nn.sigmoid(-logit)
    # slab times cavity, then the moments of the mixture with the spike at 0
    v_slab = 1 / (cavity_precision + 1 / slab_var)
    m_slab = v_slab * cavity_precision_mean
    spread = v_slab + excluded * m_slab * m_slab
    new = Normal(included * m_slab, included * spread)
    # site = posterior / cavity, where 1/v_slab = cavity_precision + 1/slab and m_slab/v_slab is its mean part
    pull = excluded / (v_slab * spread)
    precision = 1 / slab_var + pull * (v_slab / included - m_slab * m_slab)
    new_sites = Sites(precision, -pull * m_slab**3, rho)
    # One comparison chain that a NaN or an inf anywhere fails.
    fine = (new.var > 1e-30) & (jnp.abs(new.mean) < 1e30)
    fine &= (jnp.abs(new_sites.precision) < 1e30) & (jnp.abs(new_sites.precision_mean) < 1e30)
    put = partial(jnp.where, proper & fine)
    return Normal(*map(put, new, weights)), Sites(*map(put, new_sites, sites)), _count(proper & ~fine)


# --- a batch entry by entry: section 3 ------------------------------------------------------------


def _scan(settings: Settings, carry: Carry, index, value, taken) -> tuple[Carry, Learned]:
    network = settings.network
    f = function(network)
    gradient = jax.grad(f, argnums=(0, 1))

    def entry(i, loop: tuple[Carry, Learned]) -> tuple[Carry, Learned]:
        (factors, weights, sites, noise), out = loop
        row, y, noise_var = index[i], value[i], _noise_var(settings, noise)
        u = Normal(*(part[row] for part in factors))
        at = parts(network, weights.mean), u.mean
        g, g_u = gradient(*at)
        alpha, g = f(*at), flat(g)
        beta = jnp.sum(g * g * weights.var) + jnp.sum(g_u * g_u * u.var)
        log_z, da, db, c, *_ = evidence(settings.likelihood, y, alpha, beta, noise_var)
        good = (jnp.abs(log_z) < 1e30) & (jnp.abs(da) < 1e30) & (c >= 0) & (c < 1e30)
        bend: Any = 0
        bend_u: Any = 0
        if settings.curvature:  # db dbeta/dmu = 2 db H (var g)
            direction = parts(network, weights.var * g), u.var * g_u
            Hd, Hd_u = jax.jvp(gradient, at, direction)[1]
            bend, bend_u = 2 * db * flat(Hd), 2 * db * Hd_u
        weights, bad = _moved(weights, g, bend, da, c, good)
        u, bad_u = _moved(u, g_u, bend_u, da, c, good)
        factors = Normal(*(part.at[row].set(now) for part, now in zip(factors, u, strict=True)))
        misfit = (y - alpha) ** 2 + beta
        if settings.forgetting < 1:  # likelihoods.misfit: f as it is known after the entry
            kept = noise_var / (beta + noise_var)
            misfit = (kept * (y - alpha)) ** 2 + kept * beta
        noise = _noise_after(settings, noise, good[None], misfit[None])
        return Carry(factors, weights, sites, noise), Learned(
            out.said.at[:, i].set(jnp.stack([alpha, beta, noise_var, log_z])),
            out.good.at[i].set(good),
            out.rejected + jnp.where(good, bad + bad_u, 0),
        )

    blank = Learned(jnp.zeros((4, *value.shape), value.dtype), jnp.zeros(value.shape, bool), jnp.int32(0))
    return lax.fori_loop(0, taken, entry, (carry, blank))


def _moved(old: Normal, g, bend, da, c, good) -> tuple[Normal, jax.Array]:
    """Elements after the entry, and how many stay as they were because var would not stay positive.

    dmu² - 2 dv = c g² + bend (2 da g + bend): da² and 2 db, which cancel for an outlier, do not meet.
    """
    dmu = da * g + bend
    var = old.var - old.var * old.var * (c * g * g + bend * (dmu + da * g))
    fine = (var > 0) & good
    new = Normal(jnp.where(fine, old.mean + old.var * dmu, old.mean), jnp.where(fine, var, old.var))
    return new, _count(~fine)


# --- a batch as a whole: section 7 ----------------------------------------------------------------


def _joint(settings: Settings, carry: Carry, index, value, taken) -> tuple[Carry, Learned]:
    """All entries linearised at the posterior before the batch.

    D = diag(1/sqrt(noise_n)), 0 for an entry that takes no part, and B = I + D K D = L L^T: S^-1 = D B^-1 D
    without a small pivot, however small or large the noise is.
    """
    n, noise_var = len(value), _noise_var(settings, carry.noise)
    u = Normal(*(part[index] for part in carry.factors))  # (n, K, ·)
    alpha, g_u, K, beta, back = linearise(settings.network, carry.weights, u.mean, LIMIT)
    # K = G diag(var) G^T: a weight is shared by all entries, a node by those that have it
    u = Normal(*(part.swapaxes(0, 1) for part in u))  # (K, n, ·)
    A = g_u.swapaxes(0, 1) * jnp.sqrt(u.var)
    shared = (index.T[:, :, None] == index.T[:, None, :]).astype(A.dtype)  # (K, n, n)
    K += jnp.sum(shared * (A @ A.mT), axis=0)
    beta += jnp.sum(A * A, axis=(0, 2))

    # what each entry says by itself; noise below `n eps beta` would leave nothing of B but rounding
    eps = jnp.finfo(K.dtype).eps
    used = jnp.maximum(noise_var, n * eps * beta)
    log_z, *_, precision, root = evidence(settings.likelihood, value, alpha, beta, used)
    good = (jnp.arange(n) < taken) & (jnp.abs(log_z) < 1e30) & (jnp.abs(root) < 1e30)  # a NaN fails too
    D, root = jnp.where(good, jnp.sqrt(precision), 0), jnp.where(good, root, 0)

    identity = jnp.eye(n, dtype=K.dtype)
    L = lax.linalg.cholesky(identity + D[:, None] * K * D, symmetrize_input=False)
    sound = jnp.isfinite(L[-1, -1])  # or all of L is NaN, and no entry takes part
    good, D, root, L = good & sound, D * sound, root * sound, jnp.where(sound, L, identity)
    L_inv = _inverse(L)
    e = L_inv @ root
    S_res, M = D * (e @ L_inv), L_inv * D  # S^-1 res, and S^-1 = M^T M
    S_inv = M.T @ M

    # mean += var G^T S^-1 res,   var -= var² (column sums of g S^-1 g)
    weights, bad = _narrowed(carry.weights, *back(S_res, M))
    u, bad_u = _shared_rows(u, A, shared, S_res, S_inv)
    factors = Normal(*(part.at[index.T].set(now) for part, now in zip(carry.factors, u, strict=True)))

    mean, var, noise = alpha, beta, carry.noise
    if settings.likelihood is GAUSSIAN:
        # innovations: what the entries before it in the batch say of an entry is L[n, :n] e[:n]
        before = jnp.tril(L, -1)
        mean = alpha + jnp.sqrt(used) * (before @ e)
        var = jnp.maximum(beta - used * jnp.sum(before * before, axis=1), eps * beta)
        log_z = evidence(GAUSSIAN, value, mean, var, noise_var).log_z
        misfit = (value - alpha) ** 2 + beta
        if settings.forgetting < 1:  # likelihoods.misfit: f as it is known after the batch
            misfit = (used * S_res) ** 2 + used * (1 - used * jnp.diagonal(S_inv))
        noise = _noise_after(settings, noise, good, misfit)
    said = jnp.stack([mean, var, jnp.broadcast_to(noise_var, mean.shape), log_z])
    return Carry(factors, weights, carry.sites, noise), Learned(said, good, _count(bad) + bad_u)


def _inverse(L: jax.Array) -> jax.Array:
    """L^-1 of lower triangles by halves, all of one size at once: a GPU is slow at a large triangle."""
    n = L.shape[-1]
    if n <= BASE or n % 2:
        identity = jnp.broadcast_to(jnp.eye(n, dtype=L.dtype), L.shape)
        return lax.linalg.triangular_solve(L, identity, left_side=True, lower=True)
    half = n // 2
    first, second = _inverse(jnp.stack([L[..., :half, :half], L[..., half:, half:]]))
    corner = -second @ L[..., half:, :half] @ first
    return jnp.block([[first, jnp.zeros_like(first)], [corner, second]])


def _shared_rows(u: Normal, A, shared, S_res, S_inv) -> tuple[Normal, jax.Array]:
    """The nodes' factors: sums run over the entries that share a node, and all of those get its new row."""
    sums = shared @ jnp.concatenate(
        [A * S_res[:, None], A * ((shared * S_inv) @ A), jnp.ones_like(A[..., :1])], axis=-1
    )
    step, shrink, times = jnp.split(sums, [A.shape[-1], 2 * A.shape[-1]], axis=-1)
    new, bad = _narrowed(u, jnp.sqrt(u.var) * step, shrink)
    return new, jnp.round(jnp.sum(bad / times)).astype(jnp.int32)  # a node counts once


def _narrowed(old: Normal, step, shrink) -> tuple[Normal, jax.Array]:
    """mean + step and var (1 - shrink), or as they were where that is not positive; and where that is."""
    bad = ~(shrink < 1)  # a NaN too
    mean = jnp.where(bad, old.mean, old.mean + step)
    return Normal(mean, jnp.where(bad, old.var, old.var * (1 - shrink))), bad


# --- many batches ---------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=0)
@jax.default_matmul_precision("highest")  # a GPU's usual 10 bits would be lost in 1 - shrink
def learn(settings: Settings, carry: Carry, index, value, taken, due) -> tuple[Carry, Learned]:
    """Batches in their order: index (batches, places, K), value (batches, places), how many places are taken,
    and whether the prior is to be refined after the batch."""
    learn_one = _joint if settings.update == "joint" else _scan

    def batch(carry: Carry, of: tuple[jax.Array, ...]) -> tuple[Carry, Learned]:
        *entries, due = of
        carry, out = learn_one(settings, carry, *entries)
        # Always computed and then chosen: a branch would make a GPU wait for the host at every batch.
        weights, sites, rejected = refine(carry.weights, carry.sites, settings.slab_var, settings.rho0)
        put = partial(jnp.where, due)
        weights, sites = Normal(*map(put, weights, carry.weights)), Sites(*map(put, sites, carry.sites))
        carry = carry._replace(weights=weights, sites=sites)
        return carry, out._replace(rejected=out.rejected + put(rejected, 0))

    return lax.scan(batch, carry, (index, value, taken, due))


@partial(jax.jit, static_argnums=0)
@jax.default_matmul_precision("highest")
def evaluate(network: Network, weights: Normal, u: Normal) -> tuple[jax.Array, jax.Array]:
    """alpha and beta of the entries with factor vectors u (n, K, ·). Section 5."""
    means = parts(network, weights.mean)

    def one(u: Normal) -> tuple[jax.Array, jax.Array]:
        alpha, (g, g_u) = jax.value_and_grad(function(network), argnums=(0, 1))(means, u.mean)
        return alpha, jnp.sum(flat(g) ** 2 * weights.var) + jnp.sum(g_u * g_u * u.var)

    return jax.vmap(one)(u)
