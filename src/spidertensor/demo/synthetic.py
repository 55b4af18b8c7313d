"""A synthetic stream with known truth."""

from __future__ import annotations

import numpy as np

from spidertensor.evaluation.dataset import TEST_SHARE, Dataset, Info, as_batch
from spidertensor.spider.likelihoods import COUNT, GAUSSIAN, PROBIT, Likelihood, check

STEEPNESS = 3.0  # of the network: with small inputs tanh would be linear, and f a sum of biases

INFO = Info(
    "synthetic",
    "a random network over random factors, with known truth, and drift on request",
    ("mode0", "mode1", "mode2"), "value", GAUSSIAN, "none", "spidertensor.demo.synthetic",
)  # fmt: skip


def synthetic(
    shape: tuple[int, ...] = (60, 50, 40),
    n_entries: int = 30_000,
    *,
    likelihood: Likelihood = GAUSSIAN,
    rank: int = 3,
    noise: float = 0.3,
    drift: float | str | None = None,
    seed: int = 0,
) -> Dataset:
    """A random network f over random factors.

    Gaussian: value = f + noise N(0, 1); binary: whether that is positive; counts: mean exp(f + 1) and
    dispersion `noise`. f has mean 0 and standard deviation 1. A tenth more entries, after the end of the
    stream, are the test.
    drift: the share of the stream after which all factors change; or "slow" for continuous change
    """
    rng = np.random.default_rng(seed)
    n = n_entries + int(TEST_SHARE * n_entries)
    index = np.stack([rng.integers(size, size=n) for size in shape], axis=1)
    time = np.minimum(np.arange(n) / n_entries, 1)
    turned = np.zeros(n) if drift is None else time if drift == "slow" else time >= float(drift)
    before, after = (
        np.hstack([rng.normal(size=(size, rank))[index[:, k]] for k, size in enumerate(shape)])
        for _ in range(2)
    )
    angle = 0.5 * np.pi * turned[:, None]  # a rotation keeps the factors' variance
    x = np.cos(angle) * before + np.sin(angle) * after
    hidden = np.tanh(STEEPNESS * x @ rng.normal(size=(x.shape[1], 10)) / np.sqrt(x.shape[1]))
    f = hidden @ rng.normal(size=10)
    f = (f - f.mean()) / f.std()
    value = f + noise * rng.normal(size=n)
    if check(likelihood, (GAUSSIAN, PROBIT, COUNT), "the synthetic data set").binary:
        f, value = f / noise, value > 0
    if likelihood.counts:
        f = f + 1
        value = rng.negative_binomial(1 / noise, 1 / (1 + noise * np.exp(f)))
    about = vars(INFO) | {
        "modes": tuple(f"mode{k}" for k in range(len(shape))),
        "likelihood": likelihood,
    }
    return Dataset(
        **about,
        shape=tuple(shape),
        train=as_batch(index[:n_entries], value[:n_entries]),
        tests={"paper": as_batch(index[n_entries:], value[n_entries:])},
        time_order=np.arange(n_entries),
        truth={"train": f[:n_entries], "test": f[n_entries:]},
    )
