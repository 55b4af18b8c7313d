"""POST: Bayesian CP factorization by streaming variational Bayes (Du et al., ICDM 2018).

mathematics.md section 8:

    f_n = sum_r prod_k u^k_{i_k, r},   q(u^k_j) = N(mean, cov) with a full r x r cov,   tau ~ Gamma(a, b)

The posterior before a batch is the prior of the batch; inside it, exact coordinate ascent on the variational
bound, mode after mode, until the means converge. Values are not scaled.

The unit is the batch: the entries of one update are cut into batches of `batch_size`, the last one shorter.
An update reports the prediction made for each entry before its batch. The ascent of one batch is in
post_ascent.py.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.evaluation.counts import Counts, no_counts
from spidertensor.method import HUGE, Bags, Batch, Method, Prediction, Update, check_batch, check_index
from spidertensor.spider.compiled import COMPILE, kernel
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT, Likelihood, check
from spidertensor.spider.posterior import Gamma, uniforms, with_room
from spidertensor_study.competitors.post_ascent import POSTSettings, ascend

NOISE_START = 1e-3  # a = b before any entry
TINY_VAR = 1e-12  # smallest variance of f: rounding, or nodes that are known exactly, can leave 0

# A node starts with a mean uniform on [0, 1] and with cov I. An unseen node has the average over these
# starts: mean 1/2, variance 1 + 1/12.
UNSEEN_MEAN = 0.5
UNSEEN_VAR = 1 + 1 / 12


class POSTFactor(NamedTuple):
    """One mode, with spare rows that hold what a new node starts with.

    A symmetric matrix is stored as its lower triangle, row by row: (0, 0), (1, 0), (1, 1), (2, 0), ... That
    is half the memory, and a product of matrices element by element is one flat loop. In float64, because a
    cov is inverted in every batch.
    """

    mean: NDArray[np.float64]  # (rows, r)
    cov: NDArray[np.float64]  # (rows, r (r + 1) / 2)


class POSTState(NamedTuple):
    factors: tuple[POSTFactor, ...]
    noise: Gamma  # of tau; learned only for the gaussian
    counts: Counts
    seed: NDArray[np.int64]


def post(
    n_modes: int,
    likelihood: Likelihood,
    *,
    rank: int = 8,
    batch_size: int = 256,
    tolerance: float = 1e-3,
    max_sweeps: int = 500,
) -> Method:
    """POST as a Method.

    batch_size: entries learned together, see the module
    tolerance:  a batch is learned when a sweep over the modes moves its means by less than this, summed up
    max_sweeps: or after this many sweeps
    """
    settings = POSTSettings(
        check(likelihood, (GAUSSIAN, PROBIT), "POST").normal, float(tolerance), max_sweeps
    )
    if not 0 <= tolerance < np.inf:
        raise ValueError(f"tolerance must be finite and not negative, got {tolerance}")
    if min(n_modes, rank, batch_size, max_sweeps) < 1:
        raise ValueError(f"{n_modes=}, {rank=}, {batch_size=} and {max_sweeps=} must be at least 1")

    def init(seed: int) -> POSTState:
        return POSTState(
            tuple(_start(seed, rank, mode, 0, 0) for mode in range(n_modes)),
            Gamma(np.array(NOISE_START), np.array(NOISE_START)),
            no_counts(n_modes),
            np.array(seed, np.int64),
        )

    def update(state: POSTState, batch: Batch) -> tuple[POSTState, Update]:
        check_batch(batch, n_modes)
        before = int(state.counts.rejected), int(state.counts.refused)
        out = np.empty((4, len(batch.value)))
        for start in range(0, len(batch.value), batch_size):
            part = slice(start, start + batch_size)
            piece = Batch(batch.index[part], batch.value[part])
            state, out[:, part] = _learned(state, piece, likelihood, settings)
        rejected, refused = int(state.counts.rejected) - before[0], int(state.counts.refused) - before[1]
        return state, Update(*out, rejected=rejected, refused=refused)

    def predict(state: POSTState, index: NDArray[np.integer], bags: Bags | None = None) -> Prediction:
        check_index(index, len(state.factors), bags)
        mean, var, _ = _moments(state, index)
        return Prediction(mean, var, np.full(len(index), likelihood.noise_var(*state.noise)))

    return Method(init, update, predict, unit="batch")


def score(state: POSTState, index: NDArray[np.integer]) -> NDArray[np.float64]:
    """The authors' score for ranking binary entries: f / sqrt(1 + sum of all elements of prod_k cov).

    The predictive variance of f has more terms: sum of prod_k (cov + mean mean^T) - prod_k mean mean^T. That
    is the `var` of a Prediction, and Phi(mean / sqrt(1 + var)) is a probability; Phi of this score is not.
    """
    mean, _, spread = _moments(state, index)
    return mean / np.sqrt(1 + spread)


def _moments(state: POSTState, index: NDArray[np.integer]) -> NDArray[np.float64]:
    """Mean and variance of f, and the sum of prod_k cov, for every entry."""
    check_index(index, len(state.factors))
    out = np.empty((3, len(index)))
    _evaluate(np.ascontiguousarray(index, np.int64), state.factors, state.counts.nodes, out)
    return out


@kernel(**COMPILE)
def _evaluate(index, factors, nodes, out):
    r = factors[0].mean.shape[1]
    for n in range(index.shape[0]):
        mean, var, spread = 0.0, 0.0, 0.0
        for p in range(r):
            f = 1.0
            for q in range(p + 1):
                # prod_k (cov + mean mean^T) - prod_k mean mean^T as a running sum: a difference of the two
                # products would lose the small variance of nodes that are known well
                rest, outer, covs, f = 0.0, 1.0, 1.0, 1.0
                for k in range(len(factors)):
                    row = index[n, k]
                    if 0 <= row < nodes[k]:
                        u, w = factors[k].mean[row, p], factors[k].mean[row, q]
                        cov = factors[k].cov[row, p * (p + 1) // 2 + q]
                    else:
                        u, w, cov = UNSEEN_MEAN, UNSEEN_MEAN, UNSEEN_VAR if p == q else 0.0
                    rest = rest * (cov + u * w) + outer * cov
                    outer *= u * w
                    covs *= cov
                    f *= u
                times = 1.0 if p == q else 2.0  # both triangles
                var += times * rest
                spread += times * covs
            mean += f
        out[0, n], out[1, n], out[2, n] = mean, max(var, TINY_VAR), max(spread, 0.0)


def _learned(
    state: POSTState, batch: Batch, likelihood: Likelihood, settings: POSTSettings
) -> tuple[POSTState, NDArray[np.float64]]:
    """Learn one batch: predict its entries, then gather, update and store its nodes."""
    before = np.empty((4, len(batch.value)))
    before[:2] = _moments(state, batch.index)[:2]
    before[2] = likelihood.noise_var(*state.noise)
    before[3] = likelihood.log_evidence(batch.value, *before[:3])
    good = np.abs(before[3]) < HUGE  # also false for NaN
    state = _grown(state, batch.index.max(axis=0) + 1)
    rows, local, first = _local(batch.index[good])
    mean, cov = (
        np.concatenate([factor[part][row] for factor, row in zip(state.factors, rows, strict=True)])
        for part in range(2)
    )
    value = batch.value[good].astype(np.float64)
    _, rate, rejected = ascend(local, value, first, mean, cov, state.noise, settings)
    for k, (factor, row) in enumerate(zip(state.factors, rows, strict=True)):
        factor.mean[row] = mean[first[k] : first[k + 1]]
        factor.cov[row] = cov[first[k] : first[k + 1]]
    if likelihood.normal:
        state.noise.shape[()] += 0.5 * len(value)
        state.noise.rate[()] = rate
    state.counts.entries[()] += len(good)
    refused = int((~good).sum())
    state.counts.rejected[()] += rejected + refused * sum(factor.mean.shape[1] for factor in state.factors)
    state.counts.refused[()] += refused
    state.counts.log_evidence[()] += before[3, good].sum()
    return state, before


def _local(index: NDArray[np.int64]) -> tuple[list[NDArray[np.int64]], NDArray[np.int64], NDArray[np.int64]]:
    """The nodes of a batch, mode after mode: rows per mode, the entries, where each mode begins."""
    local = np.empty(index.shape, np.int64)
    rows, first = [], [0]
    for k, column in enumerate(index.T):
        row, inverse = np.unique(column, return_inverse=True)
        local[:, k] = inverse + first[-1]
        rows.append(row)
        first.append(first[-1] + len(row))
    return rows, local, np.array(first)


def _grown(state: POSTState, n_nodes: NDArray[np.int64]) -> POSTState:
    rank = state.factors[0].mean.shape[1]
    factors = with_room(state.factors, n_nodes, partial(_start, int(state.seed), rank))
    return state._replace(factors=factors, counts=state.counts.with_nodes(n_nodes))


def _start(seed: int, rank: int, mode: int, first: int, last: int) -> POSTFactor:
    """Starting values of rows first..last of a mode."""
    cov = np.tile(np.eye(rank)[np.tril_indices(rank)], (last - first, 1))
    return POSTFactor(uniforms(seed, mode, rank, first, last), cov)
