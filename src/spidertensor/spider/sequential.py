"""SPIDER, entry by entry: assumed-density filtering in a compiled loop. mathematics.md sections 3 to 5."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Batch, Method, Prediction, Update, check_batch, check_index
from spidertensor.spider import likelihoods, posterior
from spidertensor.spider.compiled import COMPILE, PART, kernel
from spidertensor.spider.likelihoods.gaussian import forgetting, misfit
from spidertensor.spider.likelihoods.kernel import GAUSSIAN, evidence
from spidertensor.spider.network import ACTIVATIONS, Network
from spidertensor.spider.posterior import Prior, State
from spidertensor.spider.sequential_passes import (
    Settings,
    bend_weights,
    curvature_pass,
    elements,
    evaluate,
    load,
    move_factors,
    narrow_weights,
    pack,
    places,
    scratch,
    unpack,
)
from spidertensor.spider.spike_slab import refine


@kernel(**COMPILE)
def _run(learning, index, value, places, noise, counts, settings, like, out):
    """All entries of a call, in order: predicted, and then learned unless `learning` is False.

    One function for both, because both need nearly all of the code and each function compiles for seconds.
    Refines the prior sites whenever `refine_every` entries are full.
    """
    c = scratch(places, settings, like)
    real = c.s.dtype.type
    for n in range(index.shape[0]):
        load(places, counts.nodes, index, n, settings, c)
        alpha, beta = evaluate(settings, c)
        noise_var = noise.rate[()] / noise.shape[()] if settings.likelihood == GAUSSIAN else 0.0
        out[0, n], out[1, n], out[2, n] = alpha, beta, noise_var
        if not learning:
            continue
        log_z, da, db, narrowing = evidence(settings.likelihood, value[n], alpha, beta, noise_var)
        out[3, n] = log_z
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
            counts.rejected[()] += move_factors(places, index, n, settings, c, real(da), db2, real(narrowing))
            if settings.likelihood == GAUSSIAN:
                lam = settings.forgetting
                noise.shape[()] = lam * noise.shape[()] + 0.5
                noise.rate[()] = lam * noise.rate[()] + 0.5 * misfit(
                    value[n], alpha, beta, noise_var, settings.paper_noise
                )
        else:
            counts.rejected[()] += settings.n_elements
        counts.entries[()] += 1
        if counts.entries[()] % settings.refine_every == 0:
            unpack(places, settings, c)
            counts.rejected[()] += _refine(places, settings, c.s)
            pack(places, settings, c)
    if learning:
        unpack(places, settings, c)


@kernel(**PART)
def _refine(places, settings, like):
    rejected, last = 0, len(settings.inputs) - 1
    for m in range(last + 1):
        outputs = settings.inputs[m + 1] if m < last else 1
        rejected += refine(
            elements(places.weight_mean[m], like),
            elements(places.weight_var[m], like),
            elements(places.site_precision[m], like),
            elements(places.site_precision_mean[m], like),
            elements(places.site_log_odds[m], like),
            outputs * (settings.inputs[m] + 1),
            settings.slab_var,
            settings.rho0,
        )
    return rejected


_DEFAULT = Prior()


def sequential(
    network: Network,
    likelihood: str,
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
        likelihood=likelihoods.code(likelihood),
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
        n_elements=sum(network.factor_sizes) + network.n_weights,
        prior_var=posterior.factor_prior_var(network, prior, int(np.argmax(ranks))),
    )

    def init(seed: int) -> State:
        return posterior.init(network, prior, seed)

    def run(learning: bool, state: State, index, value) -> NDArray[np.float64]:
        """(4, n) mean, var, noise and, if learning, log evidence."""
        # arrays of another layout would be another type, and compiled for again
        index, value = np.require(index, np.int64, "CW"), np.require(value, np.float64, "CW")
        out = np.empty((4, len(index)))
        like = state.posterior.weights[0].mean
        _run(learning, index, value, places(state), state.posterior.noise, state.counts, settings, like, out)
        return out

    def update(state: State, batch: Batch) -> tuple[State, Update]:
        check_batch(batch, network.n_modes)
        if not len(batch.value):
            return state, Update(*np.empty((4, 0)), rejected=0)
        state = posterior.grow(state, network, prior, batch.index.max(axis=0) + 1)
        before = int(state.counts.rejected)
        out = run(True, state, batch.index, batch.value)
        return state, Update(*out, rejected=int(state.counts.rejected) - before)

    def predict(state: State, index: NDArray[np.integer]) -> Prediction:
        check_index(index, network.n_modes)
        return Prediction(*run(False, state, index, np.empty(0))[:3])

    return Method(init, update, predict)
