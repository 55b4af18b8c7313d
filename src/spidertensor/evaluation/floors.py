"""Floors: simple methods that any useful method must beat. They take values in the user's units.

    mean            one number for all entries: the mean or rate of ones so far; for counts also the
                    dispersion so far
    biases          f = b + sum_k b^k_{i_k}, learned entry by entry
    static_biases   the same f, fitted to all entries at once

Both kinds of biases share state and prediction. A bias has the prior N(0, unit / RIDGE); the common offset b
has an almost flat prior (for counts, the likelihood's `level_var`). `unit` is the noise variance for Gaussian
values, else 1. Variances are stored in this unit, so the scale of the values does not matter: this is ridge
regression with penalty RIDGE.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from spidertensor.evaluation.counts import Counts, no_counts
from spidertensor.method import (
    HUGE,
    Bags,
    Batch,
    Method,
    PredictFunction,
    Prediction,
    Update,
    check_batch,
    check_index,
)
from spidertensor.spider.compiled import kernel
from spidertensor.spider.likelihoods import GAUSSIAN, LIKELIHOODS, PROBIT, Likelihood, check
from spidertensor.spider.likelihoods.kernel import (
    evidence,
    is_normal,
    learn_noise,
    learns_from_scores,
    shared_noise,
)
from spidertensor.spider.likelihoods.quadrature import by_quadrature
from spidertensor.spider.posterior import Gamma, Gaussian, with_room

RIDGE = 5.0  # entries after which a node's bias is half of their mean error
OFFSET_VAR = 1e6  # wide enough for the offset to start at the first value
SWEEPS = 30  # of the static fit


class MeanState(NamedTuple):
    """Sums over entries so far, relative to `origin` so that a large mean costs no precision."""

    origin: NDArray[np.float64]  # the first value
    sums: NDArray[np.float64]  # of 1, value - origin and its square


class BiasesState(NamedTuple):
    offset: Gaussian  # 0-d arrays; variances in units of the noise
    nodes: tuple[Gaussian, ...]  # one per mode; spare rows hold the prior
    noise: Gamma
    counts: Counts


def mean(likelihood: Likelihood) -> Method:
    """Predict the mean of the values so far, with their variance as noise, or the rate of ones so far.

    Gaussian: starts with mean 0 and noise 1, which weigh as much as one entry. Binary: the rate
    starts at 1/2, as if a one and a zero had been seen, and is predicted as the f with Phi(f) = rate. Counts:
    the mean starts at 1, as if one count of 1 had been seen.
    """
    check(likelihood, LIKELIHOODS.values(), "the mean")

    def init(seed: int) -> MeanState:
        return MeanState(np.zeros(()), np.zeros(3))

    def update(state: MeanState, batch: Batch) -> tuple[MeanState, Update]:
        check_index(batch.index, batch.index.shape[1], batch.bags)
        good = np.abs(batch.value) < HUGE
        if good.any() and not state.sums[0]:
            state = state._replace(origin=np.array(batch.value[good][0]))
        away = np.where(good, batch.value, state.origin) - state.origin
        # One running sum starting from the state, so that the result does not depend on how calls are cut.
        steps = np.column_stack([good.astype(np.float64), away, away**2])
        sums = np.cumsum(np.vstack([state.sums, steps]), axis=0)
        before = _moments_prediction(likelihood, state.origin, sums[:-1])
        log_evidence = likelihood.log_evidence(batch.value, *before)
        refused = int((~good).sum())
        new = MeanState(state.origin, sums[-1].copy())
        return new, Update(*before, log_evidence, rejected=refused, refused=refused)  # one element: the mean

    def predict(state: MeanState, index: NDArray[np.integer], bags: Bags | None = None) -> Prediction:
        check_index(index, index.shape[1], bags)
        return _moments_prediction(likelihood, state.origin, np.tile(state.sums, (len(index), 1)))

    return Method(init, update, predict)


def _moments_prediction(
    likelihood: Likelihood, origin: NDArray[np.float64], sums: NDArray[np.float64]
) -> Prediction:
    count, total, squares = sums.T
    return likelihood.from_moments(count, total, squares, origin)


def biases(n_modes: int, likelihood: Likelihood) -> Method:
    """Additive biases, learned entry by entry with assumed-density filtering on a linear f."""
    code = check(likelihood, LIKELIHOODS.values(), "the biases").code

    def update(state: BiasesState, batch: Batch) -> tuple[BiasesState, Update]:
        check_batch(batch, n_modes)
        out = np.empty((4, len(batch.value)))
        if not len(batch.value):
            return state, Update(*out, rejected=0)
        state = _grown(state, batch.index.max(axis=0) + 1)
        before = int(state.counts.rejected), int(state.counts.refused)
        # One array for all modes: a tuple of arrays would be recompiled for each number of modes.
        columns = list(zip(state.nodes, batch.index.T, strict=True))
        place = np.stack([_places(rows, len(node.mean)) for node, rows in columns], axis=1)
        place = np.ascontiguousarray(place + len(batch.value) * np.arange(n_modes))
        mean = np.concatenate([node.mean[rows] for node, rows in columns])
        var = np.concatenate([node.var[rows] for node, rows in columns])
        value = np.require(
            batch.value, np.float64, ["C", "W"]
        )  # a read-only array would be another Numba type
        _learn(place, value, state.offset, mean, var, state.noise, state.counts, code, out)
        for (node, rows), where in zip(columns, place.T, strict=True):
            node.mean[rows], node.var[rows] = mean[where], var[where]
        rejected, refused = int(state.counts.rejected) - before[0], int(state.counts.refused) - before[1]
        return state, Update(*out, rejected=rejected, refused=refused)

    offset_var = likelihood.level_var or OFFSET_VAR
    return Method(lambda seed: _start(n_modes, offset_var), update, _biases_predict(likelihood))


def static_biases(n_modes: int, likelihood: Likelihood) -> Method:
    """Additive biases fitted to all entries of one update at once; another update starts over.

    Alternates ridge regressions over the modes. Binary values are fitted by expectation-maximisation: the
    probit's auxiliary z = E[z | y, f] is recomputed before every sweep.
    """
    check(likelihood, (GAUSSIAN, PROBIT), "the static biases")
    predict = _biases_predict(likelihood)

    def update(state: BiasesState, batch: Batch) -> tuple[BiasesState, Update]:
        check_batch(batch, n_modes)
        before = predict(state, batch.index)
        log_evidence = likelihood.log_evidence(batch.value, *before)
        good = np.abs(batch.value) < HUGE  # a NaN fails too
        refused = int((~good).sum())
        rejected = refused * (1 + n_modes)
        if good.any():
            start = _grown(_start(n_modes), batch.index.max(axis=0) + 1)
            state = _fitted(start, Batch(batch.index[good], batch.value[good]), likelihood)
            state.counts.entries[()] = len(good)
            state.counts.log_evidence[()] = log_evidence[good].sum()
        state.counts.rejected[()], state.counts.refused[()] = rejected, refused
        return state, Update(*before, log_evidence, rejected, refused)

    return Method(lambda seed: _start(n_modes), update, predict, unit="all")


def _start(n_modes: int, offset_var: float = OFFSET_VAR) -> BiasesState:
    return BiasesState(
        Gaussian(np.array(0.0), np.array(offset_var)),
        tuple(Gaussian(np.zeros(0), np.zeros(0)) for _ in range(n_modes)),
        Gamma(np.array(1.0), np.array(1.0)),
        no_counts(n_modes),
    )


def _grown(state: BiasesState, n_nodes: NDArray[np.int64]) -> BiasesState:
    def start(mode: int, first: int, last: int) -> Gaussian:
        return Gaussian(np.zeros(last - first), np.full(last - first, 1 / RIDGE))

    nodes = with_room(state.nodes, n_nodes, start)
    return state._replace(nodes=nodes, counts=state.counts.with_nodes(n_nodes))


def reset_nodes(state: BiasesState, reused: list[list[int]]) -> None:
    """Reset these rows of each mode to the prior, in place."""
    for node, rows in zip(state.nodes, reused, strict=True):
        known = [row for row in rows if row < len(node.mean)]
        node.mean[known], node.var[known] = 0.0, 1 / RIDGE


def without_nodes(state: BiasesState) -> BiasesState:
    """A state with only the offset and the noise."""
    none = _start(len(state.nodes))
    return state._replace(nodes=none.nodes, counts=state.counts._replace(nodes=none.counts.nodes))


def _places(rows: NDArray[np.integer], n_nodes: int) -> NDArray[np.int64]:
    """(n,) a position of each row in `rows`, the same for equal rows. Faster than np.unique."""
    found = np.empty(n_nodes, np.int64)
    found[rows] = np.arange(len(rows))
    return found[rows]


@kernel(cache=True, nogil=True, error_model="numpy")
def _learn(index, value, offset, mean, var, noise, counts, likelihood, out):
    n_modes, normal, scored = index.shape[1], is_normal(likelihood), learns_from_scores(likelihood)
    for n in range(index.shape[0]):
        alpha, beta = offset.mean[()], offset.var[()]
        for k in range(n_modes):
            alpha += mean[index[n, k]]
            beta += var[index[n, k]]
        noise_var, score = 0.0, 0.0
        if normal:
            noise_var = noise.rate[()] / noise.shape[()]
        elif scored:
            noise_var = shared_noise(likelihood, noise)
        unit = noise_var if normal else 1.0
        if scored:
            log_z, da, _, curvature, score = by_quadrature(likelihood, value[n], alpha, beta, noise_var)
        else:
            log_z, da, _, curvature = evidence(likelihood, value[n], alpha, unit * beta, noise_var)
        out[0, n], out[1, n], out[2, n], out[3, n] = alpha, unit * beta, noise_var, log_z
        counts.entries[()] += 1
        if not abs(log_z) < HUGE:  # a NaN fails too
            counts.rejected[()] += 1 + n_modes
            counts.refused[()] += 1
            continue
        counts.log_evidence[()] += log_z
        step, narrowing = unit * da, unit * curvature
        offset.mean[()] += offset.var[()] * step
        offset.var[()] -= offset.var[()] ** 2 * narrowing
        for k in range(n_modes):
            row = index[n, k]
            mean[row] += var[row] * step
            var[row] -= var[row] ** 2 * narrowing
        if normal:
            # the exact conjugate step: an error explained by the variance of the biases hardly counts
            noise.shape[()] += 0.5
            noise.rate[()] += 0.5 * (value[n] - alpha) ** 2 / (1.0 + beta)
        elif scored:
            learn_noise(likelihood, noise, score, 1.0, None)


def _fitted(state: BiasesState, batch: Batch, likelihood: Likelihood) -> BiasesState:
    value, columns = batch.value, batch.index.T
    means = [np.zeros(len(node.mean)) for node in state.nodes]
    counts = [np.bincount(column, minlength=len(mean)) for column, mean in zip(columns, means, strict=True)]
    offset, fit, target = 0.0, np.zeros(len(value)), value
    for _ in range(SWEEPS):
        if likelihood.binary:
            sign = 2 * value - 1
            target = fit + sign * np.exp(-0.5 * fit**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(sign * fit))
        step = np.mean(target - fit)
        offset, fit = offset + step, fit + step
        for k, column in enumerate(columns):
            rest = target - fit + means[k][column]
            new = np.bincount(column, rest, len(means[k])) / (counts[k] + RIDGE)
            fit += (new - means[k])[column]
            means[k] = new
    n = len(value)
    noise = state.noise
    if likelihood.normal:
        noise = Gamma(np.array(1 + n / 2), np.array(1 + np.sum((value - fit) ** 2) / 2))
    return state._replace(
        offset=Gaussian(np.array(offset), np.array(1 / n)),
        nodes=tuple(Gaussian(mean, 1 / (count + RIDGE)) for mean, count in zip(means, counts, strict=True)),
        noise=noise,
    )


def _biases_predict(likelihood: Likelihood) -> PredictFunction:
    def predict(state: BiasesState, index: NDArray[np.integer], bags: Bags | None = None) -> Prediction:
        check_index(index, len(state.nodes), bags)
        mean = np.full(len(index), state.offset.mean)
        var = np.full(len(index), state.offset.var)
        for k, node in enumerate(state.nodes):
            row = index[:, k]
            row = np.where((row >= 0) & (row < state.counts.nodes[k]), row, -1)
            # an extra element, the prior, stands for unseen nodes
            mean += np.append(node.mean, 0.0)[row]
            var += np.append(node.var, 1 / RIDGE)[row]
        noise = likelihood.noise_var(*state.noise)
        unit = noise if likelihood.normal else 1.0
        return Prediction(mean, unit * var, np.full(len(index), noise))

    return predict
