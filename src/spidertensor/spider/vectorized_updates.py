"""Learn a batch as a whole, compiled by JAX: mathematics.md section 7. A batch of one entry is section 3.

Pairs, clipping, noise per node, memory and attributes are those of sections 10 to 13 and 19, and so are the
letters.

A batch turns one `Carry`, the state on the device, into the next. Compiled shapes do not depend on the data:
a batch has a fixed number of places, of which the first `taken` hold entries.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from spidertensor.method import HUGE
from spidertensor.spider.network import Network
from spidertensor.spider.spike_slab import jax_refine
from spidertensor.spider.vectorized_linear import linearise
from spidertensor.spider.vectorized_networks import Normal, flat, function, parts
from spidertensor.spider.vectorized_nodes import (
    Entries,
    Group,
    before,
    covariance,
    gathered,
    groups_of,
    has_id,
    learned,
    moved,
    narrowed,
    put,
    summed,
)
from spidertensor.spider.vectorized_noise import (
    LEVEL_COUNTS,
    SQUARES,
    VALUES,
    Numbers,
    Pair,
    Settings,
    clipped,
    count,
    counted,
    for_noise,
    level_change,
    level_of,
    log_noise_of,
    moved_log_noise,
    noise_of,
    relative_squares,
    sums_after,
    sums_after_scores,
    widened,
)

GRADIENTS_AT_ONCE = 2**29  # numbers in a matrix of gradients, 2 GiB; more are computed in blocks
BASE_ROWS = 32  # of a triangle that is inverted without halving


class Sites(NamedTuple):
    """A posterior.Site on the device."""

    precision: jax.Array
    precision_mean: jax.Array
    log_odds: jax.Array


class Carry(NamedTuple):
    """The state on the device, in few arrays: each one costs a launch per batch."""

    factors: Normal  # (rows, longest factor vector): the nodes of all tables
    weights: Normal  # (P,): all layers
    sites: Sites
    log_noise: Normal | None  # (rows,): log of the nodes' noise factors, if any
    sums: Pair  # (25 or more,): NOISE, VALUES, SQUARES, LEVEL, LEVEL_COUNTS


class LearnedBatch(NamedTuple):
    """Results of a batch besides the state."""

    reported: jax.Array  # (4, places) mean, var, noise, log evidence; (5, places) with clipped values, if any
    good: jax.Array  # (places,) entries that were learned
    rejected: jax.Array  # number of elements that these entries could not move
    values_var: jax.Array  # the running variance of the values


# --- a batch: section 7 --------------------------------------------------------------------------


def _joint(
    settings: Settings, numbers: Numbers, carry: Carry, entries: Entries, taken, watching
) -> tuple[Carry, LearnedBatch]:
    """Learn all entries at once, linearised at the posterior before the batch. With curvature it has one."""
    evidence, (ids, value, _, weight) = settings.likelihood.jax_evidence, entries
    there = jnp.arange(len(value)) < taken
    groups = groups_of(settings.network, numbers.prior_var, entries)
    nodes = gathered(carry.factors, groups)
    x = summed(groups, [group.weighted(node.mean) for group, node in zip(groups, nodes, strict=True)])
    alpha, g_x, cov, beta, back = linearise(settings.network, carry.weights, x, GRADIENTS_AT_ONCE)
    # cov = G diag(var) G^T: all entries share the weights, those with the same node its factors
    nodes = before(groups, nodes, numbers.log_widening, there & jnp.isfinite(value))
    A = [group.gradient(g_x) * jnp.sqrt(node.var) for group, node in zip(groups, nodes, strict=True)]
    for added_cov, added_beta in map(covariance, groups, A):
        cov, beta = cov + added_cov, beta + added_beta
    level, level_var = level_of(settings, carry.sums)  # shared by all entries
    alpha, beta, cov = alpha + level, beta + level_var, cov + level_var
    if settings.likelihood.levels:
        level = carry.sums.high[LEVEL_COUNTS]

    # what each entry alone says about f; with noise below `n eps beta` B would be all rounding error
    log_noise = log_noise_of(settings, carry.log_noise, ids)
    noise_var, reported_noise, own = noise_of(settings, carry.sums, log_noise, alpha)
    if settings.likelihood.ordinal:
        noise_var = reported_noise
    least = len(value) * jnp.finfo(cov.dtype).eps * beta
    used, reported_used = jnp.maximum(noise_var, least), jnp.maximum(reported_noise, least)
    y = clipped(settings, numbers.clip, value, alpha, beta, used)
    in_step, power = used, () if weight is None else (weight,)
    if weight is not None and settings.likelihood.normal:  # section 27
        in_step, power = jnp.maximum(used / weight, least), ()
    _, _, db, _, precision, root, score = evidence(y, alpha, beta, in_step, level, *power)
    log_z = evidence(value, alpha, beta, reported_used, level).log_z
    good = there & (jnp.abs(log_z) < HUGE) & (jnp.abs(root) < HUGE)  # false for NaN
    solved = _solve(cov, good & ~watching, precision, root)
    moves, good = solved.good, jnp.where(watching, good, solved.good)

    # mean += var G^T S^-1 res,   var -= var² (column sums of g S^-1 g)
    if settings.curvature:
        db = jnp.where(moves, db, 0)
        weights, after, rejected = _bent(settings.network, carry.weights, x, groups, nodes, solved, db)
    else:
        weights, bad = narrowed(carry.weights, *back(solved.S_res, solved.M, solved.S_inv))
        each = zip(groups, nodes, A, strict=True)
        after, bad_of = zip(*(learned(*of, solved.S_res, solved.S_inv) for of in each), strict=True)
        rejected = count(bad) + sum(bad_of)
    times = [group.times(moves) for group in groups]  # number of learned entries of each node
    factors = carry.factors
    for group, node, n in zip(groups, after, times, strict=True):
        factors = put(factors, node, group.row, (n > 0)[..., None])  # other nodes do not widen
    mean, var, sums, stored = alpha, beta, carry.sums, carry.log_noise
    if settings.likelihood.normal:
        mean, var = _innovations(solved, alpha, beta, in_step)
        log_z = evidence(value, mean, var, reported_noise, level).log_z
        y_noise, own_precision = for_noise(settings, value, y), jnp.diagonal(solved.S_inv)
        misfit = (y_noise - alpha) ** 2 + beta
        # f given the other entries of the batch, and the unclipped residual from there
        precise = jnp.where(moves, own_precision, 1)
        left, of_f = solved.S_res / precise + y_noise - y, jnp.maximum(1 / precise - in_step, 0)
    else:  # of ordinal values: as far as f + noise is from alpha on average, given the level
        left = jnp.sqrt(jnp.maximum((s2 := beta + used) * (1 + 2 * s2 * db), 0))
        misfit, of_f = left**2 + beta, beta
    if settings.likelihood.normal_noise:
        kept = reported_used / (of_f + reported_used)
        if settings.noise_fades:  # gaussian.misfit: f after the batch
            misfit = (kept * left) ** 2 + kept * of_f
        added = jnp.zeros_like(sums.high[SQUARES.start :])
        if log_noise is not None:
            information = jnp.where(moves, 0.5 * kept**2, 0)
            square, of_squares = relative_squares(sums, moves, left**2 / (of_f + reported_used), kept, weight)
            score = jnp.where(moves, 0.5 * kept * (square - 1), 0)
            if weight is not None:
                information, score = weight * information, weight * score
            of_levels = level_change(sums, moves, alpha, information, score)
            added = jnp.concatenate([of_squares, of_levels])
            of_entries = jnp.stack([information, score], axis=-1)
            sums_of, widening = groups[0].shared @ of_entries, numbers.log_noise_log_widening
            log_noise = moved_log_noise(settings, widening, log_noise, times[0].T, *sums_of.T)
            stored = put(stored, log_noise, ids, _with_id(settings.network, times[0].T > 0))
        misfit = misfit / own
        sums = sums_after(settings, numbers.log_forgetting, sums, moves, value, misfit, added, weight)
    else:
        of_f = jnp.sum(solved.S_res), jnp.sum(solved.S_inv)
        sums = sums_after_scores(settings, numbers.log_forgetting, sums, moves, score, *of_f, weight)
    sums = counted(settings, sums, there, value)
    reported = [mean, var, jnp.broadcast_to(reported_noise, mean.shape), log_z, y]
    reported = reported[: 5 if settings.clips else 4]
    carry = Carry(factors, weights, carry.sites, stored, sums)
    return carry, LearnedBatch(jnp.stack(reported), good, rejected, sums.high[VALUES][2])


class _Solved(NamedTuple):
    good: jax.Array  # (n,) entries that take part
    L: jax.Array
    e: jax.Array  # (n,) L^-1 D res
    S_res: jax.Array  # (n,) S^-1 res
    M: jax.Array  # S^-1 = M^T M
    S_inv: jax.Array


def _solve(cov, good, precision, root) -> _Solved:
    """Solve with S = cov + diag(noise_n) over the good entries.

    D = diag(1/sqrt(noise_n)), 0 for an entry that takes no part, and B = I + D cov D = L L^T: S^-1 = D B^-1 D
    without a small pivot, however small or large the noise.
    """
    D, root = jnp.where(good, jnp.sqrt(precision), 0), jnp.where(good, root, 0)
    identity = jnp.eye(len(cov), dtype=cov.dtype)
    L = lax.linalg.cholesky(identity + D[:, None] * cov * D, symmetrize_input=False)
    sound = jnp.isfinite(L[-1, -1])  # else all of L is NaN, and no entry takes part
    good, D, root, L = good & sound, D * sound, root * sound, jnp.where(sound, L, identity)
    L_inv = _inverse(L)
    e = L_inv @ root
    M = L_inv * D
    return _Solved(good, L, e, D * (e @ L_inv), M, M.T @ M)


def _innovations(solved: _Solved, alpha, beta, noise) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of f for each entry given those before it in the batch, which add L[n, :n] e[:n]."""
    before = jnp.tril(solved.L, -1)
    mean = alpha + jnp.sqrt(noise) * (before @ solved.e)
    least = jnp.finfo(beta.dtype).eps * beta
    return mean, jnp.maximum(beta - noise * jnp.sum(before * before, axis=1), least)


def _inverse(L: jax.Array) -> jax.Array:
    """L^-1 of lower triangles by halving, all of one size at once: a GPU is slow on a large triangle."""
    n = L.shape[-1]
    if n <= BASE_ROWS or n % 2:
        return _inverse_of_small(L.reshape(-1, n, n)).reshape(L.shape)
    half = n // 2
    first, second = _inverse(jnp.stack([L[..., :half, :half], L[..., half:, half:]]))
    corner = -second @ L[..., half:, :half] @ first
    return jnp.block([[first, jnp.zeros_like(first)], [corner, second]])


def _inverse_of_small(stack: jax.Array) -> jax.Array:
    """L^-1 of a stack of small triangles. On a CPU one by one: jaxlib 0.10 solves a stack on the thread pool
    that it runs on itself, and waits for it; two models learning at the same time would deadlock."""

    def one(L: jax.Array) -> jax.Array:
        identity = jnp.eye(len(L), dtype=L.dtype)
        return lax.linalg.triangular_solve(L, identity, left_side=True, lower=True)

    return lax.platform_dependent(stack, cpu=partial(lax.map, one), default=jax.vmap(one))


def _with_id(network: Network, where: jax.Array) -> jax.Array:
    """(n, K) `where`, but false in modes without ids."""
    there = has_id(network)
    return where if there is None else where & there


def _bent(
    network: Network, weights: Normal, x, groups: list[Group], nodes: list[Normal], solved: _Solved, db
) -> tuple[Normal, list[Normal], jax.Array]:
    """Section 3: a batch of one entry with the curvature term, db dbeta/dmu = 2 db H (var g)."""
    gradient = jax.grad(function(network), argnums=(0, 1))
    at = parts(network, weights.mean), x[0]
    g, g_x = gradient(*at)
    spread = [group.weighted(group.weighted(node.var)) for group, node in zip(groups, nodes, strict=True)]
    direction = parts(network, weights.var * flat(g)), summed(groups, spread)[0] * g_x
    Hd, Hd_x = jax.jvp(gradient, at, direction)[1]
    da, c, db = solved.S_res[0], solved.S_inv[0, 0], db[0]
    weights, bad = moved(weights, flat(g), 2 * db * flat(Hd), da, c)
    after, rejected = [], count(bad)
    for group, node in zip(groups, nodes, strict=True):
        node, bad = moved(node, group.gradient(g_x[None]), 2 * db * group.gradient(Hd_x[None]), da, c)
        after.append(node)
        rejected += count(bad)
    return weights, after, rejected


# --- many batches ---------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=(0, 1))
@jax.default_matmul_precision("highest")  # a GPU's default of 10 bits is too little for 1 - shrink
def learn(
    settings: Settings, rows: int, numbers, carry, entries: Entries, taken, due, watching
) -> tuple[jax.Array, LearnedBatch]:
    """Learn batches in order, with one model or several.

    rows:     of the table of nodes
    numbers:  (models, ·) Numbers.packed
    carry:    (models, ·) see `unpacked`
    entries:  (batches, places, ...), but values (models, batches, places)
    taken, due (batches,): how many places hold entries, and whether to refine the prior after the batch
    watching: (models,) whether entries are only predicted
    """

    def one(numbers, carry, value, watching):
        given = Numbers.unpacked(numbers), unpacked(settings, rows, carry), entries._replace(value=value)
        carry, learned = _learn(settings, *given, taken, due, watching)
        return jnp.concatenate([part.reshape(-1) for part in jax.tree.leaves(carry)]), learned

    several = numbers, carry, entries.value, watching
    if len(carry) > 1:
        return jax.vmap(one)(*several)
    return jax.tree.map(lambda part: part[None], one(*(part[0] for part in several)))


def unpacked(settings: Settings, rows: int, vector: Any) -> Carry:
    """The state in one vector, part after part, on the host or the device."""
    network = settings.network
    shapes = [(rows, max(network.factor_sizes))] * 2 + [(network.n_weights,)] * 5
    shapes += [(rows,)] * 2 if settings.node_noise else []
    found, at = [], 0
    for shape in shapes:
        found.append(vector[at : at + math.prod(shape)].reshape(shape))
        at += math.prod(shape)
    log_noise = Normal(*found[7:]) if settings.node_noise else None
    sums = Pair(*vector[at:].reshape(2, -1))
    return Carry(Normal(*found[:2]), Normal(*found[2:4]), Sites(*found[4:7]), log_noise, sums)


def _learn(
    settings: Settings, numbers: Numbers, carry: Carry, entries: Entries, taken, due, watching
) -> tuple[Carry, LearnedBatch]:
    def batch(carry: Carry, of: tuple[Entries, jax.Array, jax.Array]) -> tuple[Carry, LearnedBatch]:
        entries, taken, due = of
        carry, out = _joint(settings, numbers, carry, entries, taken, watching)
        # Always computed, then selected: a branch would make a GPU wait for the host at every batch.
        wide = widened(carry.weights.var, numbers.slab_var, numbers.log_widening, 1)
        weights = carry.weights._replace(var=wide)
        weights, sites, rejected = jax_refine(weights, carry.sites, numbers.slab_var, numbers.log_odds)
        put = partial(jnp.where, due)
        weights, sites = Normal(*map(put, weights, carry.weights)), Sites(*map(put, sites, carry.sites))
        carry = carry._replace(weights=weights, sites=sites)
        return carry, out._replace(rejected=out.rejected + put(rejected, 0))

    return lax.scan(batch, carry, (entries, taken, due))


@partial(jax.jit, static_argnums=0)
@jax.default_matmul_precision("highest")
def evaluate(network: Network, weights: Normal, u: Normal) -> tuple[jax.Array, jax.Array]:
    """alpha and beta of the entries with factor vectors u (n, K, ·): section 5."""
    means = parts(network, weights.mean)

    def one(u: Normal) -> tuple[jax.Array, jax.Array]:
        alpha, (g, g_u) = jax.value_and_grad(function(network), argnums=(0, 1))(means, u.mean)
        return alpha, jnp.sum(flat(g) ** 2 * weights.var) + jnp.sum(g_u * g_u * u.var)

    return jax.vmap(one)(u)
