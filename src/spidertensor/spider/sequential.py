"""SPIDER, entry by entry: assumed-density filtering in a compiled loop. mathematics.md sections 3 to 5."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from spidertensor.method import HUGE, Batch, Method, Prediction, Update, check_batch, check_index
from spidertensor.spider import posterior
from spidertensor.spider.likelihoods import LIKELIHOODS, Likelihood, check
from spidertensor.spider.likelihoods.gaussian import forgetting, misfit
from spidertensor.spider.likelihoods.kernel import GAUSSIAN, evidence
from spidertensor.spider.network import ACTIVATIONS, Network
from spidertensor.spider.posterior import Prior, State
from spidertensor.spider.sequential_passes import (
    COMPILE,
    PART,
    Settings,
    bend_weights,
    curvature_pass,
    evaluate,
    load,
    move_factors,
    narrow_weights,
    pack,
    scratch,
    unpack,
)
from spidertensor.spider.spike_slab import refine_layer


@njit(**COMPILE)
def _learn(index, value, posterior, sites, counts, settings, out):
    """All entries of a batch, in order; refines the prior sites whenever `refine_every` entries are full."""
    factors, weights, noise = posterior
    c = scratch(weights, factors, settings)
    real = c.s.dtype.type
    for n in range(index.shape[0]):
        load(factors, counts.nodes, index, n, settings, c)
        alpha, beta = evaluate(settings, c)
        noise_var = noise.rate[()] / noise.shape[()] if settings.likelihood == GAUSSIAN else 0.0
        log_z, da, db, narrowing = evidence(settings.likelihood, value[n], alpha, beta, noise_var)
        out[0, n], out[1, n], out[2, n], out[3, n] = alpha, beta, noise_var, log_z
        if abs(log_z) < 1e30 and abs(da) < 1e30 and 0 <= narrowing < 1e30:  # a NaN fails too
            counts.log_evidence[()] += log_z
            db2 = real(0)
            if settings.curvature:
                curvature_pass(settings, c)
                db2 = real(2 * db)
            # c g² var <= c beta for every element, so c beta < 1 keeps all variances positive
            if settings.curvature or narrowing * beta > 0.999:
                counts.rejected[()] += bend_weights(settings, c, real(da), db2, real(narrowing))
            else:
                narrow_weights(c, real(da), real(narrowing))
            counts.rejected[()] += move_factors(factors, index, n, c, real(da), db2, real(narrowing))
            if settings.likelihood == GAUSSIAN:
                lam = settings.forgetting
                noise.shape[()] = lam * noise.shape[()] + 0.5
                noise.rate[()] = lam * noise.rate[()] + 0.5 * misfit(
                    value[n], alpha, beta, noise_var, settings.paper_noise
                )
        else:
            counts.rejected[()] += _n_elements(posterior)
        counts.entries[()] += 1
        if counts.entries[()] % settings.refine_every == 0:
            unpack(weights, c)
            for m in range(len(weights)):
                counts.rejected[()] += refine_layer(weights[m], sites[m], settings.slab_var, settings.rho0)
            pack(weights, c)
    unpack(weights, c)


@njit(**PART)
def _n_elements(posterior):
    n = 0
    for factor in posterior.factors:
        n += factor.mean.shape[1]
    for weight in posterior.weights:
        n += weight.mean.size
    return n


@njit(**COMPILE)
def _predict(index, posterior, nodes, settings, out):
    c = scratch(posterior.weights, posterior.factors, settings)
    for n in range(index.shape[0]):
        load(posterior.factors, nodes, index, n, settings, c)
        out[0, n], out[1, n] = evaluate(settings, c)


_DEFAULT = Prior()


def sequential(
    network: Network,
    likelihood: Likelihood,
    prior: Prior = _DEFAULT,
    *,
    curvature: bool = False,
    noise_memory: float | None = 10_000,
    refine_every: int = 256,
) -> Method:
    """SPIDER as a Method.

    curvature:    differentiate log Z through beta as well (the paper); without it, cheaper and mostly better
    noise_memory: entries after which an error has faded from the noise by 1/e; None is the paper's noise,
                  which remembers all errors and counts an entry's uncertainty twice (likelihoods.misfit)
    refine_every: entries between two refinements of the prior, however the calls are cut
    """
    if refine_every < 1:
        raise ValueError(f"refine_every must be at least 1 entry, got {refine_every}")
    ranks = np.array(network.ranks, np.int64)
    settings = Settings(
        likelihood=check(likelihood, LIKELIHOODS.values(), "the sequential engine").code,
        activation=ACTIVATIONS.index(network.activation),
        curvature=bool(curvature),
        slab_var=float(prior.slab_var),
        rho0=float(prior.rho0),
        forgetting=forgetting(noise_memory),
        paper_noise=noise_memory is None,
        refine_every=int(refine_every),
        bias=int(network.bias),
        multilinear=network.multilinear,
        ranks=ranks,
        inputs=np.array([columns - 1 for _, columns in network.layers], np.int64),
        # depends on an element's part, not on the mode: the longest vector serves all
        prior_var=posterior.factor_prior_var(network, prior, int(np.argmax(ranks))),
    )

    def init(seed: int) -> State:
        return posterior.init(network, prior, seed)

    def update(state: State, batch: Batch) -> tuple[State, Update]:
        check_batch(batch, network.n_modes)
        out = np.empty((4, len(batch.value)))
        if not len(batch.value):
            return state, Update(*out, rejected=0)
        state = posterior.grow(state, network, prior, batch.index.max(axis=0) + 1)
        before = int(state.counts.rejected)
        _learn(batch.index, batch.value, state.posterior, state.sites, state.counts, settings, out)
        refused = int(np.count_nonzero(~(np.abs(out[3]) < HUGE)))
        return state, Update(*out, rejected=int(state.counts.rejected) - before, refused=refused)

    def predict(state: State, index: NDArray[np.integer]) -> Prediction:
        index = np.ascontiguousarray(index, np.int64)
        check_index(index, network.n_modes)
        out = np.empty((3, len(index)))
        _predict(index, state.posterior, state.counts.nodes, settings, out)
        out[2] = likelihood.noise_var(*state.posterior.noise)
        return Prediction(*out)

    return Method(init, update, predict)
