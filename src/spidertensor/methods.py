"""Every Method by its name: what `spider evaluate --method NAME` and an experiment can run.

    METHODS["spider"].build(rank, n_modes, binary, batch_size) -> Method

A competitor is added by one line in METHODS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from spidertensor.baselines import floors
from spidertensor.baselines.cp_wopt import cp_wopt
from spidertensor.baselines.post import post
from spidertensor.method import Method
from spidertensor.network import Network
from spidertensor.parameters import engine
from spidertensor.posterior import Prior

HIDDEN = (50, 50)  # the paper's

Builder = Callable[[int, int, bool, int], Method]  # rank, n_modes, binary, batch_size


class Named(NamedTuple):
    build: Builder
    about: str
    scaled: bool = True  # wants values of mean 0 and standard deviation 1; the floors take them as they are


def _likelihood(binary: bool) -> str:
    return "probit" if binary else "gaussian"


def _spider(
    activation: str = "relu", rho0: float = 0.9, multilinear: int = 0, on: str = "sequential", **settings: Any
) -> Builder:
    """The paper's network, or with `multilinear` the hybrid, and the inference that the settings say."""

    def build(rank: int, n_modes: int, binary: bool, batch_size: int) -> Method:
        network = Network((rank,) * n_modes, HIDDEN, activation, multilinear > 0, multilinear)
        prior = Prior(rho0=rho0)
        build_on = engine(on, settings.get("curvature", False), batch_size)
        return build_on(network, _likelihood(binary), prior, **settings)

    return build


def _mean(rank: int, n_modes: int, binary: bool, batch_size: int) -> Method:
    return floors.mean(_likelihood(binary))


def _biases(rank: int, n_modes: int, binary: bool, batch_size: int) -> Method:
    return floors.biases(n_modes, _likelihood(binary))


def _static_biases(rank: int, n_modes: int, binary: bool, batch_size: int) -> Method:
    return floors.static_biases(n_modes, _likelihood(binary))


def _post(rank: int, n_modes: int, binary: bool, batch_size: int) -> Method:
    return post(n_modes, _likelihood(binary), rank=rank, batch_size=batch_size)


def _cp_wopt(rank: int, n_modes: int, binary: bool, batch_size: int) -> Method:
    return cp_wopt(n_modes, _likelihood(binary), rank=rank)


# The SVB family needs JAX, so its modules are imported when one of them is built. Learning rates: tuned on
# the first tenth of movielens-100k by the prequential score there.


def _svb_dtf(rank: int, n_modes: int, binary: bool, batch_size: int) -> Method:
    from spidertensor.baselines.svb_dtf import svb_dtf

    network = Network((rank,) * n_modes, HIDDEN)
    return svb_dtf(network, _likelihood(binary), learning_rate=3e-3, batch_size=batch_size)


def _svb_gptf(rank: int, n_modes: int, binary: bool, batch_size: int) -> Method:
    from spidertensor.baselines.svb_gptf import svb_gptf

    return svb_gptf(n_modes, _likelihood(binary), rank=rank, learning_rate=1e-3, batch_size=batch_size)


def _ss_gptf(rank: int, n_modes: int, binary: bool, batch_size: int) -> Method:
    from spidertensor.baselines.ss_gptf import ss_gptf

    return ss_gptf(n_modes, _likelihood(binary), rank=rank, learning_rate=5e-4, batch_size=batch_size)


_PAPER: dict[str, Any] = {"rho0": 0.5, "curvature": True, "noise_memory": None}

_SPIDERS: dict[str, tuple[dict[str, Any], str]] = {
    "spider": ({"multilinear": 32}, "the library's default: the hybrid network"),
    "spider-plain": ({}, "the paper's network with the default inference"),
    "spider-paper": (_PAPER, "the paper: curvature, rho0 = 0.5, noise that forgets nothing"),
    "spider-paper-tanh": (_PAPER | {"activation": "tanh"}, "the same with tanh"),
}
VECTORIZED = {name: Named(_spider(on="vectorized", **how), about) for name, (how, about) in _SPIDERS.items()}
METHODS: dict[str, Named] = {
    **{name: Named(_spider(**how), about) for name, (how, about) in _SPIDERS.items()},
    "post": Named(_post, "POST: streaming Bayesian CP (Du et al. 2018)", scaled=False),
    "svb-dtf": Named(_svb_dtf, "SVB-DTF: the paper's network by stochastic variational Bayes (needs jax)"),
    "svb-gptf": Named(_svb_gptf, "SVB-GPTF: sparse Gaussian process by variational Bayes (needs jax)"),
    "ss-gptf": Named(_ss_gptf, "SS-GPTF: streaming sparse Gaussian process (needs jax)"),
    "cp-wopt": Named(_cp_wopt, "CP-WOPT: static CP on the observed entries (Acar et al. 2011)", scaled=False),
    "mean": Named(_mean, "floor: the mean so far, or the rate of ones", scaled=False),
    "biases": Named(_biases, "floor: additive biases, learned entry by entry", scaled=False),
    "static-biases": Named(
        _static_biases, "floor: additive biases, fitted to all entries at once", scaled=False
    ),
}
FLOORS = ("mean", "biases", "static-biases")
