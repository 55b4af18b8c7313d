"""POST: Bayesian CP factorization by streaming variational Bayes (Du et al., ICDM 2018).

mathematics.md section 8:

    f_n = sum_r prod_k u^k_{i_k, r},   q(u^k_j) = N(mean, cov) with a full r x r cov,   tau ~ Gamma(a, b)

The posterior before a batch is the prior of the batch; inside it, exact coordinate ascent on the variational
bound, mode after mode, until the means stand still. Values are taken as they are: POST wants them raw.

POST learns a batch at once, so of the contract of `spidertensor.method` one sentence cannot hold: how a
stream is cut into calls does change the posterior. The entries of one update are cut into batches of
`batch_size`, the last one shorter. What holds instead: calls of whole batches, only the last of them shorter,
change nothing, bit for bit; and what an update reports for an entry is what `predict` said before its batch.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Batch, Method, Prediction, Update, check_batch, check_index
from spidertensor.spider import likelihoods
from spidertensor.spider.compiled import COMPILE, HOT, PART, kernel
from spidertensor.spider.likelihoods.kernel import GAUSSIAN
from spidertensor.spider.likelihoods.probit import mills
from spidertensor.spider.posterior import Counts, Gamma, uniforms, with_room

NOISE_START = 1e-3  # a = b before any entry
LIMIT = 1e30  # on the log evidence of an entry: what is learned from one beyond it would not stay finite
TINY_VAR = 1e-12  # variances are positive, also where rounding or a node known exactly leaves 0

# A mean starts uniform on [0, 1] and its cov as I: over all starts, which is all that is known of an unseen
# node, this is mean 1/2 and variance 1 + 1/12.
UNSEEN_MEAN = 0.5
UNSEEN_VAR = 1 + 1 / 12


class Factor(NamedTuple):
    """One mode, with spare rows that hold what a new node starts with.

    A symmetric matrix is stored as its lower triangle, row by row: (0, 0), (1, 0), (1, 1), (2, 0), ... That
    is half the memory, and a product of matrices element by element is one flat loop. In float64, because a
    cov is inverted at every batch for ever.
    """

    mean: NDArray[np.float64]  # (rows, r)
    cov: NDArray[np.float64]  # (rows, r (r + 1) / 2)


class State(NamedTuple):
    factors: tuple[Factor, ...]
    noise: Gamma  # of tau; only the gaussian moves it
    counts: Counts  # rejected: entries left out, and moves of a node that were not made
    seed: NDArray[np.int64]


def post(
    n_modes: int,
    likelihood: str,
    *,
    rank: int = 8,
    batch_size: int = 256,
    tolerance: float = 1e-3,
    max_sweeps: int = 500,
) -> Method:
    """POST as a Method.

    batch_size: entries that are learned at once, see the module
    tolerance:  a batch is learned when a sweep over the modes moves its means by less than this, summed up
    max_sweeps: or after so many sweeps
    """
    settings = _Settings(likelihoods.code(likelihood), float(tolerance), max_sweeps)
    if not 0 <= tolerance < np.inf:
        raise ValueError(f"tolerance must be finite and not negative, got {tolerance}")
    if min(n_modes, rank, batch_size, max_sweeps) < 1:
        raise ValueError(f"{n_modes=}, {rank=}, {batch_size=} and {max_sweeps=} must be at least 1")

    def init(seed: int) -> State:
        return State(
            tuple(_start(seed, rank, mode, 0, 0) for mode in range(n_modes)),
            Gamma(np.array(NOISE_START), np.array(NOISE_START)),
            Counts(np.zeros(n_modes, np.int64), np.array(0), np.array(0), np.array(0.0)),
            np.array(seed, np.int64),
        )

    def update(state: State, batch: Batch) -> tuple[State, Update]:
        check_batch(batch, n_modes)
        before = int(state.counts.rejected)
        out = np.empty((4, len(batch.value)))
        for start in range(0, len(batch.value), batch_size):
            part = slice(start, start + batch_size)
            state, out[:, part] = _learned(state, Batch(batch.index[part], batch.value[part]), settings)
        return state, Update(*out, rejected=int(state.counts.rejected) - before)

    def predict(state: State, index: NDArray[np.integer]) -> Prediction:
        mean, var, _ = _moments(state, index)
        return Prediction(mean, var, np.full(len(index), _noise(state, settings.likelihood)))

    return Method(init, update, predict)


def score(state: State, index: NDArray[np.integer]) -> NDArray[np.float64]:
    """What the authors rank binary entries by: f / sqrt(1 + sum of all elements of prod_k cov).

    The predictive variance of f has more terms: sum of prod_k (cov + mean mean^T) - prod_k mean mean^T. That
    is the `var` of a Prediction, and Phi(mean / sqrt(1 + var)) is a probability; Phi of this score is not.
    """
    mean, _, spread = _moments(state, index)
    return mean / np.sqrt(1 + spread)


def _noise(state: State, code: int) -> float:
    return float(state.noise.rate / state.noise.shape) if code == GAUSSIAN else 0.0


def _moments(state: State, index: NDArray[np.integer]) -> NDArray[np.float64]:
    """Mean and variance of f, and the sum of prod_k cov, of every entry."""
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


def _learned(state: State, batch: Batch, settings: _Settings) -> tuple[State, NDArray[np.float64]]:
    """One batch: what was predicted before it, then its nodes gathered, moved and put back."""
    code = settings.likelihood
    before = np.empty((4, len(batch.value)))
    before[:2] = _moments(state, batch.index)[:2]
    before[2] = _noise(state, code)
    before[3] = likelihoods.log_evidence(list(likelihoods.LIKELIHOODS)[code], batch.value, *before[:3])
    good = np.abs(before[3]) < LIMIT  # a NaN fails too
    state = _grown(state, batch.index.max(axis=0) + 1)
    rows, local, first = _local(batch.index[good])
    mean, cov = (
        np.concatenate([factor[part][row] for factor, row in zip(state.factors, rows, strict=True)])
        for part in range(2)
    )
    value = batch.value[good].astype(np.float64)
    _, rate, rejected = _ascend(local, value, first, mean, cov, state.noise, settings)
    for k, (factor, row) in enumerate(zip(state.factors, rows, strict=True)):
        factor.mean[row] = mean[first[k] : first[k + 1]]
        factor.cov[row] = cov[first[k] : first[k + 1]]
    if code == GAUSSIAN:
        state.noise.shape[()] += 0.5 * len(value)
        state.noise.rate[()] = rate
    state.counts.entries[()] += len(good)
    state.counts.rejected[()] += rejected + (~good).sum()
    state.counts.log_evidence[()] += before[3, good].sum()
    return state, before


def _local(index: NDArray[np.int64]) -> tuple[list[NDArray[np.int64]], NDArray[np.int64], NDArray[np.int64]]:
    """The nodes of a batch, all modes one under another: rows per mode, the entries, where a mode begins."""
    local = np.empty(index.shape, np.int64)
    rows, first = [], [0]
    for k, column in enumerate(index.T):
        row, inverse = np.unique(column, return_inverse=True)
        local[:, k] = inverse + first[-1]
        rows.append(row)
        first.append(first[-1] + len(row))
    return rows, local, np.array(first)


def _grown(state: State, n_nodes: NDArray[np.int64]) -> State:
    rank = state.factors[0].mean.shape[1]
    factors = with_room(state.factors, n_nodes, partial(_start, int(state.seed), rank))
    counts = state.counts._replace(nodes=np.maximum(state.counts.nodes, n_nodes))
    return state._replace(factors=factors, counts=counts)


def _start(seed: int, rank: int, mode: int, first: int, last: int) -> Factor:
    """Starting values of rows first..last of a mode."""
    cov = np.tile(np.eye(rank)[np.tril_indices(rank)], (last - first, 1))
    return Factor(uniforms(seed, mode, rank, first, last), cov)


# --- one batch: its nodes of all modes one under another, those of mode k from first[k] to first[k + 1] ---


class _Settings(NamedTuple):
    likelihood: int
    tolerance: float
    max_sweeps: int


class _Prior(NamedTuple):
    precision: NDArray[np.float64]  # prior_cov^-1
    shift: NDArray[np.float64]  # prior_cov^-1 prior_mean
    fixed: NDArray[np.bool_]  # prior_cov has no inverse: such a node is known exactly and does not move


class _Nodes(NamedTuple):
    mean: NDArray[np.float64]
    cov: NDArray[np.float64]
    second: NDArray[np.float64]  # E[u u^T] = cov + mean mean^T


class _Work(NamedTuple):
    sum_T: NDArray[np.float64]  # of each node, over its entries
    sum_t: NDArray[np.float64]
    matrix: NDArray[np.float64]
    vector: NDArray[np.float64]


@kernel(**COMPILE)
def _ascend(index, value, first, mean, cov, noise, settings):
    """Coordinate ascent from the prior in `mean` and `cov`, which become the posterior.

    Returns the sweeps it took, b, and how many moves of a node were not made.
    """
    r = mean.shape[1]
    nodes = _Nodes(mean, cov, np.empty_like(cov))
    work = _Work(np.empty_like(cov), np.empty_like(mean), np.empty((r, r)), np.empty(r))
    prior = _natural(nodes, work)
    rejected = prior.fixed.sum()
    gaussian = settings.likelihood == GAUSSIAN
    # the target is y, or E[z] of the probit, which starts at 2y - 1 and has tau = 1
    target = value.copy() if gaussian else 2.0 * value - 1.0
    shape, rate = noise.shape[()] + 0.5 * len(value), noise.rate[()]
    tau = noise.shape[()] / rate if gaussian else 1.0
    sweep, change = 0, np.inf
    while sweep < settings.max_sweeps and change >= settings.tolerance:
        sweep, change = sweep + 1, 0.0
        for k in range(index.shape[1]):
            work.sum_T[first[k] : first[k + 1]] = 0.0
            work.sum_t[first[k] : first[k + 1]] = 0.0
            _add_up(index, target, k, nodes, work)
            for j in range(first[k], first[k + 1]):
                if not prior.fixed[j]:
                    step = _move(j, tau, prior, nodes, work)
                    rejected += step == np.inf
                    change += step if step < np.inf else 0.0
            if gaussian:
                rate = noise.rate[()] + 0.5 * _square_error(index, value, nodes)
                tau = shape / rate
            else:
                _auxiliary(index, value, nodes, target)
    return sweep, rate, rejected


@kernel(**PART)
def _natural(nodes, work):
    """The prior as natural parameters; fills in `nodes.second` on the way."""
    L, r = nodes.mean.shape
    precision, shift, fixed = np.zeros_like(nodes.cov), np.zeros((L, r)), np.zeros(L, np.bool_)
    inverse = work.matrix
    for j in range(L):
        _square(j, nodes)
        for p in range(r):
            for q in range(p + 1):
                inverse[p, q] = nodes.cov[j, p * (p + 1) // 2 + q]
        fixed[j] = not _invert(inverse)
        if not fixed[j]:
            for p in range(r):
                for q in range(p + 1):
                    precision[j, p * (p + 1) // 2 + q] = inverse[p, q]
                for q in range(r):
                    shift[j, p] += inverse[p, q] * nodes.mean[j, q]
    return _Prior(precision, shift, fixed)


@kernel(**HOT)
def _square(j, nodes):
    for p in range(nodes.mean.shape[1]):
        for q in range(p + 1):
            e = p * (p + 1) // 2 + q
            nodes.second[j, e] = nodes.cov[j, e] + nodes.mean[j, p] * nodes.mean[j, q]


@kernel(**PART)
def _add_up(index, target, k, nodes, work):
    """For each node of mode k, over its entries: sum_n T_n and sum_n t_n y_n, products over other modes."""
    r, elements = nodes.mean.shape[1], nodes.second.shape[1]
    t, T = np.empty(r), np.empty(elements)
    for n in range(index.shape[0]):
        t[:] = target[n]
        T[:] = 1.0
        for other in range(index.shape[1]):
            node = index[n, other]
            if other != k:
                for p in range(r):
                    t[p] *= nodes.mean[node, p]
                for e in range(elements):
                    T[e] *= nodes.second[node, e]
        node = index[n, k]
        for p in range(r):
            work.sum_t[node, p] += t[p]
        for e in range(elements):
            work.sum_T[node, e] += T[e]


@kernel(**HOT)
def _move(j, tau, prior, nodes, work):
    """cov^-1 = prior_cov^-1 + tau sum T,  mean = cov (prior_cov^-1 prior_mean + tau sum t y) of node j.

    Returns by how much the mean moved; infinite if that would not be finite, and then nothing has moved.
    """
    r = nodes.mean.shape[1]
    new, moved = work.matrix, work.vector
    for p in range(r):
        work.sum_t[j, p] = prior.shift[j, p] + tau * work.sum_t[j, p]  # the sum is spent with this
        for q in range(p + 1):
            e = p * (p + 1) // 2 + q
            new[p, q] = prior.precision[j, e] + tau * work.sum_T[j, e]
    if not _invert(new):
        return np.inf
    step = 0.0
    for p in range(r):
        moved[p] = 0.0
        for q in range(r):
            moved[p] += new[p, q] * work.sum_t[j, q]
        step += abs(moved[p] - nodes.mean[j, p])
    if not step < np.inf:  # a NaN fails too
        return np.inf
    for p in range(r):
        nodes.mean[j, p] = moved[p]
        for q in range(p + 1):
            nodes.cov[j, p * (p + 1) // 2 + q] = new[p, q]
    _square(j, nodes)
    return step


@kernel(**HOT)
def _invert(a):
    """The inverse of a, of which the lower triangle is read, in its place; False if not positive definite."""
    r = len(a)
    for p in range(r):  # a = C C^T, with 1 / C_pp on the diagonal of C
        rest = a[p, p]
        for s in range(p):
            rest -= a[p, s] * a[p, s]
        if not 0.0 < rest < np.inf:  # a NaN fails too
            return False
        a[p, p] = 1.0 / np.sqrt(rest)
        for i in range(p + 1, r):
            rest = a[i, p]
            for s in range(p):
                rest -= a[i, s] * a[p, s]
            a[i, p] = rest * a[p, p]
    for q in range(r):  # C^-1
        for p in range(q + 1, r):
            rest = 0.0
            for s in range(q, p):
                rest -= a[p, s] * a[s, q]
            a[p, q] = rest * a[p, p]
    for p in range(r):  # C^-T C^-1
        for q in range(p + 1):
            total = 0.0
            for s in range(p, r):
                total += a[s, p] * a[s, q]
            a[p, q] = a[q, p] = total
    return True


@kernel(**PART)
def _square_error(index, value, nodes):
    """sum_n E[(y_n - f_n)^2]: the same as in mathematics.md, here as (y - E f)^2 + var f, never negative."""
    r, elements = nodes.mean.shape[1], nodes.second.shape[1]
    total, T = 0.0, np.empty(elements)
    for n in range(index.shape[0]):
        T[:] = 1.0
        for k in range(index.shape[1]):
            node = index[n, k]
            for e in range(elements):
                T[e] *= nodes.second[node, e]
        square = 2.0 * T.sum()  # both triangles, and with them the diagonal once too often
        for p in range(r):
            square -= T[p * (p + 3) // 2]
        f = _f(index, n, nodes)
        total += (value[n] - f) ** 2 + max(square - f * f, 0.0)
    return total


@kernel(**PART)
def _auxiliary(index, value, nodes, target):
    """E[z] = f + (2y - 1) phi(f) / Phi((2y - 1) f); with t = (2y - 1) f this is (2y - 1) (t + R(t))."""
    for n in range(len(value)):
        sign = 2.0 * value[n] - 1.0
        target[n] = sign * mills(sign * _f(index, n, nodes))[2]


@kernel(**HOT)
def _f(index, n, nodes):
    f = 0.0
    for p in range(nodes.mean.shape[1]):
        product = 1.0
        for k in range(index.shape[1]):
            product *= nodes.mean[index[n, k], p]
        f += product
    return f
