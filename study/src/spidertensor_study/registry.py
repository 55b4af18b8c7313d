"""Every method that can be evaluated, described by one entry of METHODS each.

    METHODS["spider"].build(rank, n_modes, likelihood, batch_size, **settings) -> Method

The order of METHODS is the order in tables and legends. To add a competitor, write its file in
competitors/ and its entry here: evaluation, experiments, report and the contract tests take everything from
the entry.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from spidertensor.evaluation import methods, styles
from spidertensor.evaluation.methods import (
    DEFAULT,
    DEFAULT_SETTINGS,
    SPIDER_SETTINGS,
    Entry,
    spider,
    spider_per_node,
)
from spidertensor.method import Method
from spidertensor.spider.likelihoods import Likelihood
from spidertensor.spider.network import Network
from spidertensor_study.competitors.cp_wopt import cp_wopt
from spidertensor_study.competitors.pbp import pbp
from spidertensor_study.competitors.post import post

HIDDEN = (50, 50)  # the paper's

# Learning rates of the SVB family: the best of the paper's list by the prequential score on the first tenth
# of the training stream (benchmarks/learning_rates.py, rows in results/tuning.jsonl.gz).
_DTF_RATES = {"movielens-100k": 3e-3, "movielens-1m": 5e-3, "acc": 3e-3, "anime": 5e-3, "dblp": 1e-3}
_DTF_TANH_RATES = {"movielens-100k": 3e-3, "movielens-1m": 1e-3, "acc": 3e-3, "anime": 1e-2, "dblp": 1e-2}
_SVB_GP_RATES = {"movielens-100k": 3e-3, "movielens-1m": 1e-3, "acc": 3e-3, "anime": 1e-2, "dblp": 5e-3}
_SS_GP_RATES = {"movielens-100k": 5e-4, "movielens-1m": 5e-4, "acc": 5e-3, "anime": 3e-4, "dblp": 3e-4}
# Learning rates of static methods: the best by the method's own score on training entries, CoSTCo with its 64
# channels (benchmarks/static_settings.jsonl).
_GPTF_RATES = {"movielens-1m": 1e-2, "acc": 3e-2, "anime": 3e-2, "dblp": 3e-2}
_COSTCO_RATES = {"dblp": 3e-3}  # elsewhere its default


def _post(rank: int, n_modes: int, likelihood: Likelihood, batch_size: int) -> Method:
    return post(n_modes, likelihood, rank=rank, batch_size=batch_size)


def _pbp(rank: int, n_modes: int, likelihood: Likelihood, batch_size: int) -> Method:
    return pbp(Network((rank,) * n_modes, HIDDEN), likelihood, refine_every=batch_size)


def _cp_wopt(rank: int, n_modes: int, likelihood: Likelihood, batch_size: int, **settings: Any) -> Method:
    return cp_wopt(n_modes, likelihood, rank=rank, **settings)


# The SVB family needs JAX, so its modules are imported when one of them is built.


def _svb_dtf(rank, n_modes, likelihood, batch_size, *, activation: str = "relu", **settings: Any) -> Method:
    from spidertensor_study.competitors.svb_dtf import svb_dtf

    network = Network((rank,) * n_modes, HIDDEN, activation)
    return svb_dtf(network, likelihood, batch_size=batch_size, **settings)


def _svb_gptf(rank: int, n_modes: int, likelihood: Likelihood, batch_size: int, **settings: Any) -> Method:
    from spidertensor_study.competitors.svb_gptf import svb_gptf

    return svb_gptf(n_modes, likelihood, rank=rank, batch_size=batch_size, **settings)


def _ss_gptf(rank: int, n_modes: int, likelihood: Likelihood, batch_size: int, **settings: Any) -> Method:
    from spidertensor_study.competitors.ss_gptf import ss_gptf

    return ss_gptf(n_modes, likelihood, rank=rank, batch_size=batch_size, **settings)


def _costco(rank: int, n_modes: int, likelihood: Likelihood, batch_size: int, **settings: Any) -> Method:
    from spidertensor_study.competitors.costco import costco

    return costco(n_modes, likelihood, rank=rank, **settings)


def _gptf(rank: int, n_modes: int, likelihood: Likelihood, batch_size: int, **settings: Any) -> Method:
    from spidertensor_study.competitors.gptf import gptf

    return gptf(n_modes, likelihood, rank=rank, **settings)


# the paper's network, without the rest of the default
_PLAIN: dict[str, Any] = {
    "bias": False,
    "multilinear": 0,
    "clip": None,
    "node_noise": False,
    "committee": 1,
}
_OF_SVB = ("learning_rate", "epochs")


def _mean_and_variance(rank: int, **_: Any) -> int:
    return 2 * rank


def _mean_and_covariance(rank: int, **_: Any) -> int:
    return rank + rank * (rank + 1) // 2


_NEEDS = ("jax", "optax")

_ENTRIES = (
    Entry(
        partial(spider, paper=True),
        "spider-paper",
        "SPIDER-ReLU",
        "the paper's method: curvature, rho0 = 0.5, noise that forgets nothing",
        styles.BLUE,
        unit="entry",
        role="paper",
        counts=True,
        settings=SPIDER_SETTINGS,
        per_node=partial(spider_per_node, paper=True),
    ),
    Entry(
        partial(spider, paper=True, activation="tanh"),
        "spider-paper-tanh",
        "SPIDER-tanh",
        "the paper's method with tanh",
        styles.SKY,
        unit="entry",
        role="paper",
        counts=True,
        settings=("engine",),
        per_node=partial(spider_per_node, paper=True),
    ),
    DEFAULT,
    Entry(
        partial(spider, committee=1),
        "spider-single",
        "spidertensor single",
        "one model of the default committee: the hybrid network, a clipped step, noise per node",
        styles.WINE,
        unit="entry",
        role="variant",
        counts=True,
        events=True,
        settings=DEFAULT_SETTINGS,
        per_node=partial(spider_per_node, committee=1),
    ),
    Entry(
        partial(spider, **_PLAIN),
        "spider-plain",
        "spidertensor plain",
        "the paper's network without curvature, with noise that forgets",
        styles.BROWN,
        unit="entry",
        role="variant",
        counts=True,
        settings=SPIDER_SETTINGS,
        per_node=partial(spider_per_node, **_PLAIN),
    ),
    Entry(
        _post,
        "post",
        "POST",
        "streaming Bayesian CP factorization (Du et al. 2018)",
        styles.ORANGE,
        unit="batch",
        role="competitor",
        scaled=False,
        per_node=_mean_and_covariance,
    ),
    Entry(
        _svb_dtf,
        "svb-dtf",
        "SVB-DTF",
        "the paper's network by streaming variational Bayes (needs jax)",
        styles.PINK,
        unit="batch",
        role="competitor",
        settings=("activation", *_OF_SVB),
        learning_rates=_DTF_RATES,
        needs=_NEEDS,
        per_node=_mean_and_variance,
    ),
    Entry(
        partial(_svb_dtf, activation="tanh"),
        "svb-dtf-tanh",
        "SVB-DTF-tanh",
        "the paper's network with tanh by streaming variational Bayes (needs jax)",
        styles.PINK_DASHED,
        unit="batch",
        role="competitor",
        settings=_OF_SVB,
        learning_rates=_DTF_TANH_RATES,
        needs=_NEEDS,
        per_node=_mean_and_variance,
    ),
    Entry(
        _svb_gptf,
        "svb-gptf",
        "SVB-GPTF",
        "sparse Gaussian process by streaming variational Bayes (needs jax)",
        styles.GREEN,
        unit="batch",
        role="competitor",
        settings=_OF_SVB,
        learning_rates=_SVB_GP_RATES,
        needs=_NEEDS,
        per_node=_mean_and_variance,
    ),
    Entry(
        _ss_gptf,
        "ss-gptf",
        "SS-GPTF",
        "streaming sparse Gaussian process (needs jax)",
        styles.YELLOW,
        unit="batch",
        role="competitor",
        settings=_OF_SVB,
        learning_rates=_SS_GP_RATES,
        needs=_NEEDS,
        per_node=_mean_and_variance,
    ),
    Entry(
        _cp_wopt,
        "cp-wopt",
        "CP-WOPT, 100 iterations",
        "static CP factorization of the observed entries (Acar et al. 2011), best of three starts",
        styles.PURPLE,
        unit="all",
        role="competitor",
        scaled=False,
        has_batch_size=False,
        settings=("starts",),
    ),
    Entry(
        partial(_cp_wopt, max_iterations=1000),
        "cp-wopt-1000",
        "CP-WOPT, 1,000 iterations",
        "the same with the iterations of its authors' optimiser",
        styles.PURPLE_DASHED,
        unit="all",
        role="competitor",
        scaled=False,
        has_batch_size=False,
        settings=("starts",),
    ),
    Entry(
        partial(_cp_wopt, max_iterations=1000, stop_early=True),
        "cp-wopt-early",
        "CP-WOPT, stopped early",
        "the same, stopped where a tenth of the training entries that it holds back is fitted best",
        styles.PURPLE_DOTTED,
        unit="all",
        role="competitor",
        scaled=False,
        has_batch_size=False,
        settings=("starts",),
    ),
    Entry(
        _costco,
        "costco",
        "CoSTCo",
        "static convolutional network over embeddings (Liu et al. 2019; needs jax)",
        styles.TEAL,
        unit="all",
        role="competitor",
        has_batch_size=False,
        settings=("channels", *_OF_SVB),
        learning_rates=_COSTCO_RATES,
        needs=_NEEDS,
    ),
    Entry(
        _pbp,
        "pbp",
        "PBP",
        "the network of spider-plain with moments of every layer (after Hernández-Lobato and Adams 2015)",
        styles.OLIVE,
        unit="entry",
        role="variant",
        per_node=_mean_and_variance,
    ),
    Entry(
        _gptf,
        "gptf",
        "GPTF",
        "static sparse Gaussian process of all entries (after Zhe et al. 2016; needs jax)",
        styles.GREY,
        unit="all",
        role="competitor",
        has_batch_size=False,
        settings=_OF_SVB,
        learning_rates=_GPTF_RATES,
        needs=_NEEDS,
        per_node=_mean_and_variance,
    ),
    *methods.FLOORS,
)
METHODS: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
FLOORS = tuple(entry.name for entry in reversed(methods.FLOORS))  # the simplest first
