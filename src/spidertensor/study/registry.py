"""Every Method by its name: what `spider evaluate --method NAME` and an experiment can run.

    METHODS["spider"].build(rank, n_modes, binary, batch_size, **settings) -> Method

METHODS[name].settings names what else a method can be told; each of these has a default. A competitor
is added by one line in METHODS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from spidertensor.baselines import floors
from spidertensor.baselines.cp_wopt import cp_wopt
from spidertensor.baselines.post import post
from spidertensor.estimator.parameters import engine as engine_named
from spidertensor.method import Method
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT, Likelihood
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Prior

HIDDEN = (50, 50)  # the paper's

# Learning rates of the SVB family: of the paper's list the best by the prequential score of the first tenth
# of the training stream (benchmarks/learning_rates.py, rows in results/tuning.jsonl.gz).
_DTF_RATES = {"movielens-100k": 3e-3, "movielens-1m": 5e-3, "acc": 3e-3, "anime": 5e-3, "dblp": 1e-3}
_SVB_GP_RATES = {"movielens-100k": 1e-3, "movielens-1m": 5e-4, "acc": 3e-4, "anime": 5e-4, "dblp": 5e-4}
_SS_GP_RATES = {"movielens-100k": 5e-4, "movielens-1m": 5e-4, "acc": 3e-3, "anime": 3e-4, "dblp": 3e-4}


class Named(NamedTuple):
    build: Callable[..., Method]
    about: str
    scaled: bool = True  # wants values of mean 0 and standard deviation 1, not as they are
    settings: tuple[str, ...] = ()
    learning_rates: Mapping[str, float] = MappingProxyType({})  # by data set, where there is one to tune
    needs: tuple[str, ...] = ()  # packages of the extra `jax`

    def tuned(self, data: str) -> dict[str, float]:
        """The settings that were tuned on a data set, if any were."""
        return {"learning_rate": self.learning_rates[data]} if data in self.learning_rates else {}


def _likelihood(binary: bool) -> Likelihood:
    return PROBIT if binary else GAUSSIAN


def _spider(
    rank: int,
    n_modes: int,
    binary: bool,
    batch_size: int,
    *,
    activation: str = "relu",
    engine: str = "sequential",
    multilinear: int = 0,
    rho0: float = 0.9,
    **inference: Any,
) -> Method:
    """The paper's network, or with `multilinear` the hybrid."""
    network = Network((rank,) * n_modes, HIDDEN, activation, multilinear > 0, multilinear)
    build = engine_named(engine, inference.get("curvature", False), batch_size)
    return build(network, _likelihood(binary), Prior(rho0=rho0), **inference)


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


# The SVB family needs JAX, so its modules are imported when one of them is built.


def _svb_dtf(rank, n_modes, binary, batch_size, *, activation: str = "relu", **settings: Any) -> Method:
    from spidertensor.baselines.svb_dtf import svb_dtf

    network = Network((rank,) * n_modes, HIDDEN, activation)
    return svb_dtf(network, _likelihood(binary), batch_size=batch_size, **settings)


def _svb_gptf(rank: int, n_modes: int, binary: bool, batch_size: int, **settings: Any) -> Method:
    from spidertensor.baselines.svb_gptf import svb_gptf

    return svb_gptf(n_modes, _likelihood(binary), rank=rank, batch_size=batch_size, **settings)


def _ss_gptf(rank: int, n_modes: int, binary: bool, batch_size: int, **settings: Any) -> Method:
    from spidertensor.baselines.ss_gptf import ss_gptf

    return ss_gptf(n_modes, _likelihood(binary), rank=rank, batch_size=batch_size, **settings)


_PAPER: dict[str, Any] = {"rho0": 0.5, "curvature": True, "noise_memory": None}

_OF_SPIDER = ("activation", "engine")
_OF_SVB = ("learning_rate", "epochs")
_NEEDS = ("jax", "optax")
METHODS: dict[str, Named] = {
    "spider": Named(
        partial(_spider, multilinear=32), "the library's default: the hybrid network", settings=_OF_SPIDER
    ),
    "spider-plain": Named(_spider, "the paper's network with the default inference", settings=_OF_SPIDER),
    "spider-paper": Named(
        partial(_spider, **_PAPER),
        "the paper: curvature, rho0 = 0.5, noise that forgets nothing",
        settings=_OF_SPIDER,
    ),
    "spider-paper-tanh": Named(
        partial(_spider, **_PAPER, activation="tanh"), "the same with tanh", settings=("engine",)
    ),
    "post": Named(_post, "POST: streaming Bayesian CP (Du et al. 2018)", scaled=False),
    "svb-dtf": Named(
        _svb_dtf,
        "SVB-DTF: the paper's network by stochastic variational Bayes (needs jax)",
        settings=("activation", *_OF_SVB),
        learning_rates=_DTF_RATES,
        needs=_NEEDS,
    ),
    "svb-gptf": Named(
        _svb_gptf,
        "SVB-GPTF: sparse Gaussian process by variational Bayes (needs jax)",
        settings=_OF_SVB,
        learning_rates=_SVB_GP_RATES,
        needs=_NEEDS,
    ),
    "ss-gptf": Named(
        _ss_gptf,
        "SS-GPTF: streaming sparse Gaussian process (needs jax)",
        settings=_OF_SVB,
        learning_rates=_SS_GP_RATES,
        needs=_NEEDS,
    ),
    "cp-wopt": Named(_cp_wopt, "CP-WOPT: static CP on the observed entries (Acar et al. 2011)", scaled=False),
    "mean": Named(_mean, "floor: the mean so far, or the rate of ones", scaled=False),
    "biases": Named(_biases, "floor: additive biases, learned entry by entry", scaled=False),
    "static-biases": Named(
        _static_biases, "floor: additive biases, fitted to all entries at once", scaled=False
    ),
}
FLOORS = ("mean", "biases", "static-biases")
