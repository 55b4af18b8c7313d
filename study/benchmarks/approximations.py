"""Two approximations that the paper says are no better than its own, tried on small streams: rows of results.

    python benchmarks/approximations.py results/approximations.jsonl

    first-order         the paper: f linearised at the means, the noise in closed form
    second-order        mean and variance of f by its expansion up to the second order
    noise-quadrature    f linearised, the noise by its exact posterior moments given one entry

An entry is learned as mathematics.md section 3 says, with every derivative of log Z by autodiff, in float64:
obvious and slow. What is not in question is the same for all three, and is the package's: start, refinement,
evaluation, here on at most 10,000 entries of a test set, drawn by the seed. Settings are the paper's
(curvature, noise that forgets nothing) but for a smaller network, since the second order has a Hessian of as
many rows as there are weights, and for rho0 = 0.9, as rho0 = 1/2 prunes all of a network so small before it
has learned anything of movielens. `rejected` counts elements that an update would have given a variance that
is not positive, or no number: they stay as they were.

With ReLU no weight has a second derivative of its own, so that only the variance of f has second-order terms;
with tanh, in an experiment of its own, the mean has them as well.

Killed at any moment, the next start goes on with the runs that are missing.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr

from spidertensor.evaluation import protocols
from spidertensor.method import Bags, Batch, Method, Prediction, Update, check_batch, check_index
from spidertensor.spider import posterior
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT, Likelihood, check
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Gaussian, Prior, State
from spidertensor.spider.spike_slab import refine_layer
from spidertensor.spider.vectorized_networks import function, parts
from spidertensor_study import datasets, grid
from spidertensor_study.rows import Row, Settings, opened

Array = Any
Function = Callable[[Array], Array]  # f of all weights and of the entry's factors, in one vector

POINTS = 200  # of the quadrature over the noise
TOGETHER = 4  # entries predicted at a time: a Hessian each


# --- mean and variance of f, given those of its parameters ----------------------------------------


def first_order(f: Function, mean: Array, var: Array) -> tuple[Array, Array]:
    """alpha = f, beta = g^T Sigma g"""
    alpha, g = jax.value_and_grad(f)(mean)
    return alpha, jnp.sum(g**2 * var)


def second_order(f: Function, mean: Array, var: Array) -> tuple[Array, Array]:
    """alpha = f + ½ tr(H Sigma), beta = g^T Sigma g + ½ tr(H Sigma H Sigma)"""
    alpha, beta = first_order(f, mean, var)
    H = jax.hessian(f)(mean)
    return alpha + 0.5 * jnp.sum(jnp.diag(H) * var), beta + 0.5 * var @ H**2 @ var


# --- Gamma(a, b) of the noise precision after one entry, f ~ N(alpha, beta) before it ---------------


def closed_form(a: Array, b: Array, y: Array, alpha: Array, beta: Array) -> tuple[Array, Array]:
    return a + 0.5, b + 0.5 * ((y - alpha) ** 2 + beta)


def quadrature(a: Array, b: Array, y: Array, alpha: Array, beta: Array) -> tuple[Array, Array]:
    """The Gamma with the mean and the variance of Gamma(tau | a, b) N(y | alpha, beta + 1/tau), normalised.

    Gauss-Legendre over log tau. Given f, tau is Gamma(a + ½, b + ½ (y - f)²), so that all of it lies between
    the ends of that with the smallest error and of that with the largest that f can make.
    """
    shape, largest = a + 0.5, (jnp.abs(y - alpha) + 8 * jnp.sqrt(beta)) ** 2
    low = jnp.log(shape / (b + 0.5 * largest)) - 8 / jnp.sqrt(shape) - 35 / shape
    high = jnp.log(shape / b) + 8 / jnp.sqrt(shape)
    points, weights = np.polynomial.legendre.leggauss(POINTS)
    log_tau = 0.5 * (low + high) + 0.5 * (high - low) * points
    tau = jnp.exp(log_tau)
    s = beta + 1 / tau
    log_density = a * log_tau - b * tau - 0.5 * jnp.log(s) - 0.5 * (y - alpha) ** 2 / s  # of log tau
    share = weights * jnp.exp(log_density - jnp.max(log_density))
    share = share / jnp.sum(share)
    mean = share @ tau
    var = share @ (tau - mean) ** 2
    return mean**2 / var, mean / var


class Variant(NamedTuple):
    moments: Callable[[Function, Array, Array], tuple[Array, Array]]
    noise: Callable[[Array, Array, Array, Array, Array], tuple[Array, Array]]


VARIANTS = {
    "first-order": Variant(first_order, closed_form),
    "second-order": Variant(second_order, closed_form),
    "noise-quadrature": Variant(first_order, quadrature),
}


# --- one entry ------------------------------------------------------------------------------------


class Model(NamedTuple):
    """Hashable: what a compiled function depends on."""

    variant: Variant
    network: Network  # of the paper: the same rank in every mode, nothing but the deep part
    likelihood: Likelihood


class Learned(NamedTuple):
    mean: Array
    var: Array
    noise: Array  # a, b
    said: Array  # alpha, beta, noise and log Z, from before the entry
    rejected: Array


def moments(model: Model, mean: Array, var: Array) -> tuple[Array, Array]:
    """alpha and beta; mean and var hold the weights, then the factors of the entry's nodes."""
    network, n = model.network, model.network.n_weights
    f = function(network)
    shape = (network.n_modes, -1)
    return model.variant.moments(lambda x: f(parts(network, x[:n]), x[n:].reshape(shape)), mean, var)


@partial(jax.jit, static_argnums=0)
def learn_entry(model: Model, mean: Array, var: Array, noise: Array, y: Array) -> Learned:
    def evidence(mean: Array, var: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        alpha, beta = moments(model, mean, var)
        if model.likelihood is PROBIT:
            return log_ndtr((2 * y - 1) * alpha / jnp.sqrt(1 + beta)), (alpha, beta, jnp.zeros(()))
        noise_var = noise[1] / noise[0]
        s = beta + noise_var
        return -0.5 * (jnp.log(2 * jnp.pi * s) + (y - alpha) ** 2 / s), (alpha, beta, noise_var)

    (log_z, before), (dmu, dv) = jax.value_and_grad(evidence, (0, 1), has_aux=True)(mean, var)
    new_mean = mean + var * dmu
    new_var = var - var**2 * (dmu**2 - 2 * dv)
    good = jnp.isfinite(log_z) & jnp.isfinite(new_mean) & (new_var > 0) & (new_var < jnp.inf)
    rejected = jnp.sum(~good)
    if model.likelihood is GAUSSIAN:
        new_noise = jnp.stack(model.variant.noise(*noise, y, *before[:2]))
        fine = jnp.all((new_noise > 0) & (new_noise < jnp.inf)) & jnp.isfinite(log_z)
        noise, rejected = jnp.where(fine, new_noise, noise), rejected + ~fine
    said = jnp.stack([*before, log_z])
    return Learned(jnp.where(good, new_mean, mean), jnp.where(good, new_var, var), noise, said, rejected)


@partial(jax.jit, static_argnums=0)
def predict_entries(model: Model, mean: Array, var: Array) -> tuple[Array, Array]:
    return jax.lax.map(lambda each: moments(model, *each), (mean, var), batch_size=TOGETHER)


# --- a Method -------------------------------------------------------------------------------------


def approximate(
    variant: str, network: Network, likelihood: Likelihood, prior: Prior, *, refine_every: int
) -> Method:
    """A variant as a Method; its state is that of the engines, in float64."""
    model = Model(VARIANTS[variant], network, likelihood)
    check(likelihood, (GAUSSIAN, PROBIT), "an approximation")

    def init(seed: int) -> State:
        state = posterior.init(network, prior, seed)
        return jax.tree.map(lambda leaf: leaf.astype(float) if leaf.dtype == np.float32 else leaf, state)

    def update(state: State, batch: Batch) -> tuple[State, Update]:
        check_batch(batch, network.n_modes)
        if not len(batch.value):
            return state, Update(*np.empty((4, 0)), rejected=0)
        state = posterior.grow(state, network, prior, batch.index.max(axis=0) + 1)
        (factors, weights, noise, _), counts = state.posterior, state.counts
        out, before = np.empty((4, len(batch.value))), int(counts.rejected)
        for n, (rows, y) in enumerate(zip(batch.index, batch.value, strict=True)):
            nodes = (Gaussian(u.mean[row], u.var[row]) for u, row in zip(factors, rows, strict=True))
            places = [*weights, *nodes]  # views: what is written to them moves the state
            mean, var = (
                np.concatenate([each.ravel() for each in some]) for some in zip(*places, strict=True)
            )
            with jax.enable_x64(True):
                new = jax.tree.map(np.asarray, learn_entry(model, mean, var, np.array(noise), y))
            start = 0
            for place in places:
                part = slice(start, start + place.mean.size)
                place.mean.flat, place.var.flat = new.mean[part], new.var[part]
                start = part.stop
            noise.shape[()], noise.rate[()] = new.noise
            out[:, n] = new.said
            counts.rejected[()] += new.rejected
            counts.log_evidence[()] += new.said[3] if np.isfinite(new.said[3]) else 0.0
            counts.entries[()] += 1
            if counts.entries % refine_every == 0:
                for weight, site in zip(weights, state.sites, strict=True):
                    counts.rejected[()] += refine_layer(weight, site, prior.slab_var, prior.rho0)
        return state, Update(*out, rejected=int(counts.rejected) - before)

    def predict(state: State, index: np.ndarray, bags: Bags | None = None) -> Prediction:
        check_index(index, network.n_modes, bags)
        n = len(index)
        x = np.zeros((2, -(-n // TOGETHER) * TOGETHER, network.n_weights + sum(network.ranks)))
        for which, values in enumerate(zip(*state.posterior.weights, strict=True)):
            x[which, :, : network.n_weights] = np.concatenate([each.ravel() for each in values])
        for mode, (factor, known) in enumerate(zip(state.posterior.factors, state.counts.nodes, strict=True)):
            rows = np.where((index[:, mode] >= 0) & (index[:, mode] < known), index[:, mode], -1)
            rank = network.ranks[mode]
            unseen = np.zeros(rank), posterior.factor_prior_var(network, prior, mode)
            to = slice(network.n_weights + mode * rank, network.n_weights + (mode + 1) * rank)
            for which, (values, of_unseen) in enumerate(zip(factor, unseen, strict=True)):
                x[which, :n, to] = np.vstack([values, of_unseen])[rows]  # the last row is the unseen node's
        with jax.enable_x64(True):
            mean, var = (np.asarray(each)[:n] for each in predict_entries(model, *x))
        return Prediction(mean, var, np.full(n, likelihood.noise_var(*state.posterior.noise)))

    return Method(init, update, predict)


# --- the runs -------------------------------------------------------------------------------------

EXPERIMENTS = {"approximations": "relu", "approximations-tanh": "tanh"}
ENTRIES = {"synthetic": 10_000, "movielens-100k": 20_000, "acc": 10_000, "dblp": 10_000}
SEEDS = range(3)
TEST_ENTRIES = 10_000
RHO0 = 0.9


def plan(activation: str) -> list[Settings]:
    runs = []
    for (data, entries), seed, method in itertools.product(ENTRIES.items(), SEEDS, VARIANTS):
        if method == "noise-quadrature" and datasets.describe(data).likelihood is PROBIT:
            continue  # a probit has no noise to learn
        about = {"method": method, "data": data, "protocol": "held-out", "rank": 3, "batch_size": 256}
        about |= {"seed": seed, "at": 1, "entries": entries}
        runs.append(about | {"hidden": [10, 10], "activation": activation, "rho0": RHO0})
    return runs


def run(settings: Settings) -> Row:
    data, size = datasets.load(settings["data"]), settings["batch_size"]
    train, test = data.split(settings["seed"])
    train = Batch(train.index[: settings["entries"]], train.value[: settings["entries"]])
    drawn = np.random.default_rng(settings["seed"]).permutation(len(test.value))[:TEST_ENTRIES]
    test = Batch(test.index[drawn], test.value[drawn])
    method = approximate(
        settings["method"],
        Network((settings["rank"],) * len(data.shape), tuple(settings["hidden"]), settings["activation"]),
        data.likelihood,
        Prior(rho0=settings["rho0"]),
        refine_every=size,
    )
    how: dict[str, Any] = {"likelihood": data.likelihood, "batch_size": size, "scaled": True}
    (last,) = protocols.held_out(method, train, test, seed=settings["seed"], at=settings["at"], **how)
    point = {"n_entries": last["n_entries"], "seconds": last["seconds"], "paper": last["score"]}
    return {"scores": {"paper": last}, "curve": [point], "seconds": last["seconds"]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Approximations that the paper says are no better.")
    parser.add_argument("path", type=Path, help="the file of rows to add to")
    with opened(parser.parse_args().path) as written:
        for name, activation in EXPERIMENTS.items():
            for settings in written.missing(plan(activation)):
                began = perf_counter()
                try:
                    row = grid.row_of(settings, **run(settings))
                except Exception as error:  # a run that fails is a row as well
                    row = grid.row_of(settings, error=f"{type(error).__name__}: {error}"[:500])
                row |= {"experiment": name, "jobs": 1, "wall_seconds": perf_counter() - began}
                written.append(row)
                score = row["scores"]["paper"] if row["scores"] else {"score": row["error"], "rejected": None}
                print(*settings.values(), score["score"], score["rejected"], f"{row['wall_seconds']:.0f} s")


if __name__ == "__main__":
    main()
