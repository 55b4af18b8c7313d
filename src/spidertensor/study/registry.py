"""Every method that can be evaluated, with all that is known about it in one entry of METHODS.

    METHODS["spider"].build(rank, n_modes, likelihood, batch_size, **settings) -> Method

The order of METHODS is the order in tables and legends. To add a competitor, write its file in baselines/
and its entry here: evaluation, experiments, report and the contract tests take everything from the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from spidertensor.baselines import floors
from spidertensor.baselines.cp_wopt import cp_wopt
from spidertensor.baselines.pbp import pbp
from spidertensor.baselines.post import post
from spidertensor.method import Method, Unit
from spidertensor.spider.likelihoods import Likelihood
from spidertensor.spider.network import Network
from spidertensor.study import styles
from spidertensor.study.styles import Style

HIDDEN = (50, 50)  # the paper's

# Learning rates of the SVB family: of the paper's list the best by the prequential score of the first tenth
# of the training stream (benchmarks/learning_rates.py, rows in results/tuning.jsonl.gz).
_DTF_RATES = {"movielens-100k": 3e-3, "movielens-1m": 5e-3, "acc": 3e-3, "anime": 5e-3, "dblp": 1e-3}
_DTF_TANH_RATES = {"movielens-100k": 3e-3, "movielens-1m": 1e-3, "acc": 3e-3, "anime": 1e-2, "dblp": 1e-2}
_SVB_GP_RATES = {"movielens-100k": 3e-3, "movielens-1m": 1e-3, "acc": 3e-3, "anime": 1e-2, "dblp": 5e-3}
_SS_GP_RATES = {"movielens-100k": 5e-4, "movielens-1m": 5e-4, "acc": 5e-3, "anime": 3e-4, "dblp": 3e-4}
# Of static methods: the best by what they say of their training entries, CoSTCo with its 64 channels
# (benchmarks/static_settings.jsonl).
_GPTF_RATES = {"movielens-1m": 1e-2, "acc": 3e-2, "anime": 3e-2, "dblp": 3e-2}
_COSTCO_RATES = {"dblp": 3e-3}  # elsewhere its default


class Entry(NamedTuple):
    """What is known about a method.

    build:          rank, n_modes, likelihood, batch_size, **settings -> Method
    name:           in commands, experiment files and rows
    label:          in tables, figures and text
    description:    one line for those who do not know it
    style:          of its lines in figures
    unit:           of its Method, with the default settings
    role:           the paper's own method, a variant of it, a competitor of the paper, or a floor
    counts:         has the likelihood of counts
    scaled:         wants values of mean 0 and standard deviation 1, not raw ones
    has_rank:       False: the rank changes nothing
    has_batch_size: False: the batch size changes nothing
    events:         learns from events alone, if told `negatives` and `negatives_over`
    settings:       what else it can be told; each has a default
    learning_rates: by data set, where there is one to tune
    needs:          packages of the extra `jax`
    """

    build: Callable[..., Method]
    name: str
    label: str
    description: str
    style: Style
    unit: Unit
    role: Literal["paper", "variant", "competitor", "floor"]
    counts: bool = False
    scaled: bool = True
    has_rank: bool = True
    has_batch_size: bool = True
    events: bool = False
    settings: tuple[str, ...] = ()
    learning_rates: Mapping[str, float] = MappingProxyType({})
    needs: tuple[str, ...] = ()

    def tuned(self, data: str) -> dict[str, float]:
        """The settings that were tuned on a data set, if any were."""
        return {"learning_rate": self.learning_rates[data]} if data in self.learning_rates else {}


def _spider(
    rank: int, n_modes: int, likelihood: Likelihood, batch_size: int, *, paper: bool = False, **settings: Any
) -> Method:
    """What an estimator builds from these parameters; those of a regressor are left out for a classifier."""
    from spidertensor.estimator import SpiderClassifier, SpiderRegressor  # scikit-learn takes a second
    from spidertensor.estimator.parameters import checked, model_of

    kind = SpiderClassifier if likelihood.binary else SpiderRegressor
    known = kind._get_param_names()
    settings = {name: value for name, value in settings.items() if name in known}
    estimator = (kind.paper if paper else kind)(rank=rank, batch_size=batch_size, **settings)
    params = estimator._resolved(checked(estimator.get_params(deep=False)), None, n_modes)
    return model_of(params, likelihood, n_modes).method


def _mean(rank: int, n_modes: int, likelihood: Likelihood, batch_size: int) -> Method:
    return floors.mean(likelihood)


def _biases(rank: int, n_modes: int, likelihood: Likelihood, batch_size: int) -> Method:
    return floors.biases(n_modes, likelihood)


def _static_biases(rank: int, n_modes: int, likelihood: Likelihood, batch_size: int) -> Method:
    return floors.static_biases(n_modes, likelihood)


def _post(rank: int, n_modes: int, likelihood: Likelihood, batch_size: int) -> Method:
    return post(n_modes, likelihood, rank=rank, batch_size=batch_size)


def _pbp(rank: int, n_modes: int, likelihood: Likelihood, batch_size: int) -> Method:
    return pbp(Network((rank,) * n_modes, HIDDEN), likelihood, refine_every=batch_size)


def _cp_wopt(rank: int, n_modes: int, likelihood: Likelihood, batch_size: int, **settings: Any) -> Method:
    return cp_wopt(n_modes, likelihood, rank=rank, **settings)


# The SVB family needs JAX, so its modules are imported when one of them is built.


def _svb_dtf(rank, n_modes, likelihood, batch_size, *, activation: str = "relu", **settings: Any) -> Method:
    from spidertensor.baselines.svb_dtf import svb_dtf

    network = Network((rank,) * n_modes, HIDDEN, activation)
    return svb_dtf(network, likelihood, batch_size=batch_size, **settings)


def _svb_gptf(rank: int, n_modes: int, likelihood: Likelihood, batch_size: int, **settings: Any) -> Method:
    from spidertensor.baselines.svb_gptf import svb_gptf

    return svb_gptf(n_modes, likelihood, rank=rank, batch_size=batch_size, **settings)


def _ss_gptf(rank: int, n_modes: int, likelihood: Likelihood, batch_size: int, **settings: Any) -> Method:
    from spidertensor.baselines.ss_gptf import ss_gptf

    return ss_gptf(n_modes, likelihood, rank=rank, batch_size=batch_size, **settings)


def _costco(rank: int, n_modes: int, likelihood: Likelihood, batch_size: int, **settings: Any) -> Method:
    from spidertensor.baselines.costco import costco

    return costco(n_modes, likelihood, rank=rank, **settings)


def _gptf(rank: int, n_modes: int, likelihood: Likelihood, batch_size: int, **settings: Any) -> Method:
    from spidertensor.baselines.gptf import gptf

    return gptf(n_modes, likelihood, rank=rank, **settings)


_OF_SPIDER = ("activation", "engine")
_OF_DEFAULT = (*_OF_SPIDER, "clip", "node_noise", "memory", "multilinear_var")
# the paper's network, without the rest of the default
_PLAIN: dict[str, Any] = {
    "bias": False,
    "multilinear": 0,
    "clip": None,
    "node_noise": False,
    "committee": 1,
}
_OF_SVB = ("learning_rate", "epochs")
_NEEDS = ("jax", "optax")

_ENTRIES = (
    Entry(
        partial(_spider, paper=True),
        "spider-paper",
        "SPIDER-ReLU",
        "the paper's method: curvature, rho0 = 0.5, noise that forgets nothing",
        styles.BLUE,
        unit="entry",
        role="paper",
        counts=True,
        settings=_OF_SPIDER,
    ),
    Entry(
        partial(_spider, paper=True, activation="tanh"),
        "spider-paper-tanh",
        "SPIDER-tanh",
        "the paper's method with tanh",
        styles.SKY,
        unit="entry",
        role="paper",
        counts=True,
        settings=("engine",),
    ),
    Entry(
        _spider,
        "spider",
        "spidertensor default",
        "the library's default: a committee of four models with the hybrid network",
        styles.BLACK,
        unit="entry",
        role="variant",
        counts=True,
        events=True,
        settings=(*_OF_DEFAULT, "committee"),
    ),
    Entry(
        partial(_spider, committee=1),
        "spider-single",
        "spidertensor single",
        "one model of the default committee: the hybrid network, a clipped step, noise per node",
        styles.WINE,
        unit="entry",
        role="variant",
        counts=True,
        events=True,
        settings=_OF_DEFAULT,
    ),
    Entry(
        partial(_spider, **_PLAIN),
        "spider-plain",
        "spidertensor plain",
        "the paper's network without curvature, with noise that forgets",
        styles.BROWN,
        unit="entry",
        role="variant",
        counts=True,
        settings=_OF_SPIDER,
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
    ),
    Entry(
        _static_biases,
        "static-biases",
        "static biases",
        "floor: additive biases, fitted to all entries at once",
        styles.THIN_DASHDOTTED,
        unit="all",
        role="floor",
        scaled=False,
        has_rank=False,
        has_batch_size=False,
    ),
    Entry(
        _biases,
        "biases",
        "online biases",
        "floor: additive biases, learned entry by entry",
        styles.THIN_DASHED,
        unit="entry",
        role="floor",
        counts=True,
        scaled=False,
        has_rank=False,
        has_batch_size=False,
    ),
    Entry(
        _mean,
        "mean",
        "mean",
        "floor: the mean so far, or the rate of ones",
        styles.THIN_DOTTED,
        unit="entry",
        role="floor",
        counts=True,
        scaled=False,
        has_rank=False,
        has_batch_size=False,
    ),
)
METHODS: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
FLOORS = tuple(entry.name for entry in reversed(_ENTRIES) if entry.role == "floor")  # the simplest first


class Described(NamedTuple):
    name: str
    label: str
    description: str


def described() -> list[Described]:
    """All methods in the order of tables, for a list that a user reads."""
    return [Described(entry.name, entry.label, entry.description) for entry in METHODS.values()]
