"""The methods that can be evaluated by name, with all facts about a method in one entry.

    METHODS["spider"].build(rank, n_modes, likelihood, batch_size, **settings) -> Method

METHODS has the library's default and the floors, in the order of tables and legends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from spidertensor.estimator.columns import Schema
from spidertensor.evaluation import floors, styles
from spidertensor.evaluation.dataset import Dataset, DatasetError, Info
from spidertensor.evaluation.levels import between_half_ways, frequencies
from spidertensor.evaluation.styles import Style
from spidertensor.method import Method, Unit
from spidertensor.spider.likelihoods import GAUSSIAN, OF_ENGINES, Likelihood, check


class Entry(NamedTuple):
    """Facts about a method.

    build:          rank, n_modes, likelihood, batch_size, **settings -> Method
    name:           in commands, experiment files and rows
    label:          in tables, figures and text
    description:    one line
    style:          of its lines in figures
    unit:           of its Method, with the default settings
    role:           the paper's method, a variant of it, a competitor in the paper, or a floor
    counts:         supports the count likelihood
    scaled:         needs values with mean 0 and standard deviation 1
    has_rank:       False if it ignores the rank
    has_batch_size: False if it ignores the batch size
    events:         can learn from events alone, with `negatives` and `negatives_over`
    settings:       names of optional settings
    learning_rates: tuned rates by data set
    needs:          packages imported by `build`
    per_node:       rank, **settings -> how many numbers it keeps of a node: means, variances, noise, counts
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
    per_node: Callable[..., int] = lambda rank, **_: rank

    def tuned(self, data: str) -> dict[str, float]:
        """Settings tuned on a data set, if any."""
        return {"learning_rate": self.learning_rates[data]} if data in self.learning_rates else {}

    def numbers_per_node(self, settings: Mapping[str, Any]) -> int:
        """How many numbers it keeps of a node in a run with these settings."""
        own = {name: settings[name] for name in self.settings if name in settings}
        return self.per_node(settings["rank"], **own)

    def for_run(self, data: Dataset, settings: Mapping[str, Any]) -> tuple[Method, dict[str, Any]]:
        """The method for a run on this data set, and keyword arguments for the protocols.

        settings: rank, batch_size, seed, and any of the entry's `settings`
        """
        own = {name: settings[name] for name in self.settings if name in settings}
        if data.events_over and self.events:
            from spidertensor.estimator.event_rule import NEGATIVES  # imported late: slow

            own |= {"negatives": NEGATIVES, "negatives_over": data.modes.index(data.events_over)}
        size = settings["batch_size"]
        method = self.build(settings["rank"], len(data.shape), data.likelihood, size, **own)
        how = {"likelihood": data.likelihood, "batch_size": size, "seed": settings["seed"]}
        return method, how | {"scaled": self.scaled}


def spider(
    rank: int, n_modes: int, likelihood: Likelihood, batch_size: int, *, paper: bool = False, **settings: Any
) -> Method:
    """The method that an estimator builds from these settings; a classifier ignores regressor settings."""
    from spidertensor.estimator.parameters import model_of  # imported late: slow

    params = _params(rank, n_modes, likelihood, batch_size, paper, settings)
    return model_of(params, likelihood, n_modes).method


def spider_per_node(rank: int, *, paper: bool = False, **settings: Any) -> int:
    """How many numbers the model of these settings keeps of a node, as a mean and a variance each."""
    from spidertensor.estimator.parameters import model_of

    params = _params(rank, 2, GAUSSIAN, 1, paper, settings)
    return sum(
        2 * (member.network.factor_sizes[0] + (params | member.own)["node_noise"])
        for member in model_of(params, GAUSSIAN, 2, runs=False).members
    )


def _params(
    rank: int, n_modes: int, likelihood: Likelihood, batch_size: int, paper: bool, settings: dict[str, Any]
) -> dict[str, Any]:
    from spidertensor.estimator import SpiderClassifier, SpiderRegressor
    from spidertensor.estimator.groups import paths

    check(likelihood, OF_ENGINES, "SPIDER")
    kind = SpiderClassifier if likelihood.binary else SpiderRegressor
    known = kind._flat_names()
    settings = {name: value for name, value in settings.items() if name in known}
    estimator = (kind.paper if paper else kind)(rank=rank, batch_size=batch_size)
    estimator.set_params(**paths(settings))
    return estimator._resolved(estimator._flat_params(), None, n_modes)


def _continuous(rank: int, n_modes: int, likelihood: Likelihood, batch_size: int, **settings: Any) -> Method:
    method = spider(rank, n_modes, GAUSSIAN, batch_size, **settings)
    return between_half_ways(method, likelihood, scaled=True)


def _has_levels(likelihood: Likelihood) -> bool:
    """Whether its values are ordered levels; what is no likelihood is refused by the floors."""
    return isinstance(likelihood, Likelihood) and likelihood.ordinal


def _mean(rank: int, n_modes: int, likelihood: Likelihood, batch_size: int) -> Method:
    return frequencies(likelihood) if _has_levels(likelihood) else floors.mean(likelihood)


def _biases(rank: int, n_modes: int, likelihood: Likelihood, batch_size: int) -> Method:
    if _has_levels(likelihood):
        return between_half_ways(floors.biases(n_modes, GAUSSIAN), likelihood, scaled=False)
    return floors.biases(n_modes, likelihood)


def _static_biases(rank: int, n_modes: int, likelihood: Likelihood, batch_size: int) -> Method:
    if _has_levels(likelihood):
        return between_half_ways(floors.static_biases(n_modes, GAUSSIAN), likelihood, scaled=False)
    return floors.static_biases(n_modes, likelihood)


SPIDER_SETTINGS = ("activation", "engine")
DEFAULT_SETTINGS = (
    *SPIDER_SETTINGS, "hidden", "clip", "node_noise", "memory", "multilinear", "multilinear_var",
)  # fmt: skip

DEFAULT = Entry(
    spider,
    "spider",
    "spidertensor default",
    "the library's default: a committee of six models, four of them with the hybrid network",
    styles.BLACK,
    unit="entry",
    role="variant",
    counts=True,
    events=True,
    settings=(*DEFAULT_SETTINGS, "committee"),
    per_node=spider_per_node,
)
# The same for levels learned as plain numbers, to compare with.
CONTINUOUS = DEFAULT._replace(build=_continuous, name="continuous", label="continuous values")
FLOORS = (
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
        per_node=lambda rank, **_: 2,
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
        per_node=lambda rank, **_: 2,
    ),
    Entry(
        _mean,
        "mean",
        "mean",
        "floor: the mean so far, the rate of ones, or the frequencies of levels",
        styles.THIN_DOTTED,
        unit="entry",
        role="floor",
        counts=True,
        scaled=False,
        has_rank=False,
        has_batch_size=False,
        per_node=lambda rank, **_: 0,
    ),
)
METHODS: dict[str, Entry] = {entry.name: entry for entry in (DEFAULT, *FLOORS)}


class Catalogue(NamedTuple):
    """The methods and data sets that `evaluate` knows by name."""

    methods: Mapping[str, Entry]
    infos: Mapping[str, Info]
    load: Callable[[str], Dataset]
    described: Callable[[str, Schema], Dataset] | None = (
        None  # with attributes of its nodes, if they are known
    )

    @property
    def floors(self) -> list[str]:
        """Names of the floors, simplest first."""
        return [name for name, entry in reversed(list(self.methods.items())) if entry.role == "floor"]

    def describe(self, name: str) -> Info:
        if name in self.infos:
            return self.infos[name]
        raise DatasetError(f"unknown data set {name!r}; choose one of {', '.join(self.infos)}")
