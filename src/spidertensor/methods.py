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
from spidertensor.engines.sequential import sequential
from spidertensor.method import Method
from spidertensor.network import Network
from spidertensor.posterior import Prior

HIDDEN = (50, 50)  # the paper's

Builder = Callable[[int, int, bool, int], Method]  # rank, n_modes, binary, batch_size


class Named(NamedTuple):
    build: Builder
    about: str
    scaled: bool = True  # wants values of mean 0 and standard deviation 1; the floors take them as they are


def _likelihood(binary: bool) -> str:
    return "probit" if binary else "gaussian"


def _spider(activation: str = "relu", rho0: float = 0.9, multilinear: int = 0, **settings: Any) -> Builder:
    """The paper's network, or with `multilinear` the hybrid, and the inference that the settings say."""

    def build(rank: int, n_modes: int, binary: bool, batch_size: int) -> Method:
        network = Network((rank,) * n_modes, HIDDEN, activation, multilinear > 0, multilinear)
        prior = Prior(rho0=rho0)
        return sequential(network, _likelihood(binary), prior, refine_every=batch_size, **settings)

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


_PAPER: dict[str, Any] = {"rho0": 0.5, "curvature": True, "noise_memory": None}

METHODS: dict[str, Named] = {
    "spider": Named(_spider(multilinear=32), "the library's default: the hybrid network"),
    "spider-plain": Named(_spider(), "the paper's network with the default inference"),
    "spider-paper": Named(_spider(**_PAPER), "the paper: curvature, rho0 = 0.5, noise that forgets nothing"),
    "spider-paper-tanh": Named(_spider("tanh", **_PAPER), "the same with tanh"),
    "post": Named(_post, "POST: streaming Bayesian CP (Du et al. 2018)", scaled=False),
    "cp-wopt": Named(_cp_wopt, "CP-WOPT: static CP on the observed entries (Acar et al. 2011)", scaled=False),
    "mean": Named(_mean, "floor: the mean so far, or the rate of ones", scaled=False),
    "biases": Named(_biases, "floor: additive biases, learned entry by entry", scaled=False),
    "static-biases": Named(
        _static_biases, "floor: additive biases, fitted to all entries at once", scaled=False
    ),
}
FLOORS = ("mean", "biases", "static-biases")
