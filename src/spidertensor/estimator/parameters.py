"""The parameters of the estimators: their defaults, their checks, and the model they build."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np

from spidertensor.estimator import event_rule
from spidertensor.estimator.bounds import SEEN, within
from spidertensor.estimator.groups import Inference, Prior
from spidertensor.method import Method
from spidertensor.scaling import LARGEST
from spidertensor.spider import posterior
from spidertensor.spider.committee import CommitteeMethod, committee
from spidertensor.spider.custom_network import CustomNetwork, CustomSizes
from spidertensor.spider.engine import ENGINES, build
from spidertensor.spider.event_bags import AttributesOfNodes, EventBags
from spidertensor.spider.events import Rule, events
from spidertensor.spider.likelihoods import Likelihood
from spidertensor.spider.likelihoods.ordinal import MOST_LEVELS
from spidertensor.spider.network import Network, Table
from spidertensor.spider.stacking import mixing_of

OF_LAYERS = ("hidden", "activation")  # parameters of the built-in network
OF_ENGINE = ("memory", *Inference.names())  # parameters passed on to the engine
MOST_NEGATIVES = 10_000
LARGEST_VAR = 1e12  # of a prior; it and its inverse are well within float32
# Parameters that may differ between the members of a committee
OF_MEMBERS = (
    "rank", "hidden", "activation", "bias", "multilinear", *Prior.names(), "curvature", "memory",
    "noise_memory", "node_noise",
)  # fmt: skip
# `committee=n` uses the first n: the estimator's own parameters, with these changes. Chosen on training
# streams (docs/history.md). The two without a network do not chase the level of the last hours; the one
# without pairs is what simple or small data need. It has one noise for all nodes: with more, it leads in log
# density where its means are poor (acc).
MEMBERS: tuple[dict[str, Any], ...] = (
    {},
    {"bias_var": 0.2, "multilinear_var": 0.2, "memory": 500},
    {"bias_var": 0.2, "multilinear_var": 0.6},
    {"bias_var": 0.02, "multilinear_var": 0.03},
    {"rank": 0, "bias_var": 0.1, "multilinear_var": 0.2},  # pairs without a network
    {"rank": 0, "bias_var": 0.1, "multilinear": 0, "node_noise": False},  # biases only
    {"bias_var": 0.1, "multilinear_var": 0.1, "memory": 100},
    {"bias_var": 0.1, "multilinear_var": 0.3},
    {"bias_var": 0.3, "multilinear_var": 0.01},
)


@dataclass(eq=False, repr=False)
class Parameters:
    """The parameters common to all estimators; SpiderRegressor describes them.

    scikit-learn reads parameters from the signature of __init__, which the dataclass generates; subclasses
    add fields.
    """

    rank: int | tuple[int, ...] = 8
    hidden: tuple[int, ...] = Network.hidden
    activation: str = Network.activation
    _: KW_ONLY
    bias: bool = True
    multilinear: int = 32
    memory: float | None = None
    max_nodes: int | tuple[int | None, ...] | None = None
    committee: int | list[dict[str, Any]] = 6
    prior: Prior | None = None
    inference: Inference | None = None
    batch_size: int = 256
    engine: str = "sequential"
    network: CustomNetwork | None = None
    random_state: Any = 0
    modes: Mapping[str, Any] | None = None
    passes: int | str = "auto"
    time: str | None = None
    known_at: str | None = None

    _inside: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "prior": Prior.names(),
        "inference": ("curvature",),  # the others are about the noise of values
    }


class Member(NamedTuple):
    """One model of a committee: its own parameters, and what is built from them."""

    own: dict[str, Any]
    network: Network
    prior: posterior.Prior
    method: Method


class Model(NamedTuple):
    """What is built from the parameters of an estimator."""

    members: tuple[Member, ...]
    likelihood: Likelihood
    method: CommitteeMethod
    shown: Likelihood  # the likelihood for values in user units, which may have `bounds`
    rule: Rule | None = None  # for events


def checked(params: dict[str, Any]) -> dict[str, Any]:
    """Check flat parameters and convert them to plain Python objects, since JSON has no NumPy numbers."""
    params = {name: plain(value) for name, value in params.items()}
    for name, value in params.items():
        check_rule(name, value)
    if params.get("likelihood") == "count" and params["scaling"] is not None:
        raise ValueError("counts are not scaled: leave out scaling with likelihood='count'")
    if params.get("likelihood") == "ordinal" and params["scaling"] is not None:
        raise ValueError("levels are not scaled: leave out scaling with likelihood='ordinal'")
    if params.get("bounds") is not None and params.get("likelihood") != "gaussian":
        raise ValueError("counts and levels have bounds of their own: leave out bounds, which is for values")
    if params.get("levels") is not None and params.get("likelihood") != "ordinal":
        raise ValueError("levels are those of ordinal values: pass likelihood='ordinal' with them")
    if params["known_at"] is not None and params["time"] in (None, params["known_at"]):
        raise ValueError("known_at needs time, another column, which says when an entry is predicted")
    if isinstance(params["committee"], list):
        params["committee"] = [_checked_member(own, params) for own in params["committee"]]
    return params


def check_rule(name: str, value: Any) -> None:
    good, wanted = RULES.get(name, (None, ""))
    if good is not None and not good(value):
        raise ValueError(f"{name} must be {wanted}, got {value!r}")


def _checked_member(own: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    for name in own:
        if name not in OF_MEMBERS or name not in params:
            known = ", ".join(each for each in OF_MEMBERS if each in params)
            raise ValueError(f"a member of a committee cannot have its own {name!r}, only {known}")
        if params["network"] is not None and name in OF_LAYERS:
            raise ValueError(f"{name} describes the built-in network: leave it out beside a custom one")
    return {name: value for name, value in checked(params | own | {"committee": 1}).items() if name in own}


def plain(value: Any) -> Any:
    """NumPy values and tuples as plain Python objects and lists."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return value


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def is_var(value: Any) -> bool:
    return is_number(value) and 1 / LARGEST_VAR <= value <= LARGEST_VAR


def is_list(value: Any, good: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(good, value))


def is_levels(x: Any) -> bool:
    return is_list(x, is_number) and 1 < len(set(x)) == len(x) <= MOST_LEVELS


def is_scaling(value: Any) -> bool:
    if not (is_list(value, is_number) and len(value) == 2):
        return False
    return abs(value[0]) <= LARGEST and 1 / LARGEST <= value[1] <= LARGEST


def is_bounds(value: Any) -> bool:
    return is_list(value, is_number) and len(value) == 2 and value[0] < value[1]


def is_limit(value: Any) -> bool:
    return value is None or (is_whole(value) and value >= 1)


def is_mode(value: Any) -> bool:
    return isinstance(value, str) or (is_whole(value) and value >= 0)


def is_settings(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(name, str) for name in value)


_VAR = (is_var, f"a number from {1 / LARGEST_VAR:g} to {LARGEST_VAR:g}")
# Only what Network, Prior and the engine do not reject with a clear ValueError themselves.
RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "rank": (lambda x: is_whole(x) or is_list(x, is_whole), "a whole number, or one for each mode"),
    "hidden": (lambda x: is_list(x, is_whole), "the widths of the hidden layers, such as (50, 50)"),
    "engine": (lambda x: x in ENGINES, " or ".join(f'"{name}"' for name in ENGINES)),
    "network": (lambda x: x is None or isinstance(x, CustomNetwork), "a CustomNetwork, or None"),
    "curvature": (lambda x: isinstance(x, bool), "True or False"),
    "bias": (lambda x: isinstance(x, bool), "True or False"),
    "rho0": (is_number, "a probability"),
    "slab_var": _VAR,
    "factor_var": _VAR,
    "bias_var": _VAR,
    "multilinear_var": _VAR,
    "multilinear_start": (is_number, "a number"),
    "multilinear": (is_whole, "a whole number"),
    "committee": (
        lambda x: 1 <= x <= len(MEMBERS) if is_whole(x) else is_list(x, is_settings) and len(x) > 0,
        f"a number of members from 1 to {len(MEMBERS)}, or a list with a dict of parameters for each",
    ),
    "batch_size": (lambda x: is_whole(x) and 0 < x < 2**63, "a whole number of entries, at least 1"),
    "passes": (lambda x: x == "auto" or (is_whole(x) and x >= 1), 'a whole number, at least 1, or "auto"'),
    "time": (lambda x: x is None or isinstance(x, str), "the name of a column, or None"),
    "known_at": (lambda x: x is None or isinstance(x, str), "the name of a column, or None"),
    "memory": (lambda x: x is None or is_number(x), "a number of entries, or None"),
    "max_nodes": (
        lambda x: is_limit(x) or (is_list(x, is_limit) and len(x) > 0),
        "how many nodes a mode may have, at least 1, or None; or one of these for each mode",
    ),
    "clip": (lambda x: x is None or is_number(x), "a number of standard deviations, or None"),
    "node_noise": (lambda x: isinstance(x, bool), "True or False"),
    "noise_memory": (lambda x: x is None or is_number(x), "a finite number of entries, or None"),
    "likelihood": (lambda x: x in ("gaussian", "count", "ordinal"), '"gaussian", "count" or "ordinal"'),
    "levels": (
        lambda x: x is None or is_levels(x),
        f"2 to {MOST_LEVELS} different numbers, or None",
    ),
    "scaling": (lambda x: x is None or is_scaling(x), "(shift, positive scale), both finite, or None"),
    "bounds": (
        lambda x: x is None or x == SEEN or is_bounds(x),
        '(lowest, highest), two finite numbers in this order, "seen", or None',
    ),
    "negatives": (
        lambda x: x is None or (is_whole(x) and 1 <= x <= MOST_NEGATIVES),
        f"a whole number from 1 to {MOST_NEGATIVES}, or None",
    ),
    "negatives_over": (
        lambda x: x is None or is_mode(x) or (is_list(x, is_mode) and len(x) > 0),
        "the name or the number of a mode, or a list of these",
    ),
    "negatives_power": (lambda x: is_number(x) and 0 <= x <= 1, "a number from 0 to 1"),
    "remember_seen": (
        lambda x: isinstance(x, bool) or is_mode(x) or (is_list(x, is_mode) and len(x) == 2),
        "True, False, or the names or numbers of one or two modes",
    ),
    "random_state": (lambda x: not is_whole(x) or 0 <= x < 2**63, "a seed that is not negative"),
}


class Attributes(NamedTuple):
    """What the model has to know of attribute columns: see Network.tables and without_id, and for events the
    attributes of drawn nodes."""

    tables: tuple[Table, ...] = ()
    without_id: tuple[int, ...] = ()
    of_nodes: AttributesOfNodes | None = None

    @property
    def of_events(self) -> EventBags | None:
        """What makes the bags of events and their negatives."""
        return self.of_nodes and EventBags([table.mode for table in self.tables], self.of_nodes)


NO_ATTRIBUTES = Attributes()


def network_of(
    params: dict[str, Any],
    n_modes: int,
    *,
    product: bool = False,
    attributes: Attributes = NO_ATTRIBUTES,
) -> Network:
    """The network for entries with n_modes modes; without hidden layers if the rank is 0.

    product: see Network.product, for models from before 0.2
    """
    rank = params["rank"]
    ranks = tuple(rank) if isinstance(rank, list) else (rank,) * n_modes
    if len(ranks) != n_modes:
        raise ValueError(f"rank has {len(ranks)} numbers, but the entries have {n_modes} modes")
    around: dict[str, Any] = {
        "bias": params["bias"],
        "multilinear": params["multilinear"],
        "product": product,
        "tables": attributes.tables,
        "without_id": attributes.without_id,
    }
    if not any(ranks):  # no network, whatever the other members have
        return Network(ranks, (), params["activation"], **around)
    if params["network"] is not None:
        return CustomSizes(ranks, custom=params["network"], **around)
    return Network(ranks, tuple(params["hidden"]), params["activation"], **around)


def members_of(params: dict[str, Any]) -> list[dict[str, Any]]:
    """Each member's own parameters, limited to those that the estimator has."""
    members = params["committee"]
    if isinstance(members, list):
        return members
    return [{name: value for name, value in own.items() if name in params} for own in MEMBERS[:members]]


def model_of(
    params: dict[str, Any],
    likelihood: Likelihood,
    n_modes: int,
    *,
    members: list[dict[str, Any]] | None = None,
    product: bool = False,
    runs: bool = True,
    attributes: Attributes = NO_ATTRIBUTES,
) -> Model:
    """Build the model for entries with n_modes modes.

    members: each member's own parameters, if already known from a file
    product: see Network.product, for models from before 0.2
    runs:    False to inspect the model only, without its engine and the packages it needs
    """
    if params["network"] is not None and params["engine"] != "vectorized":
        raise ValueError(f"a custom network needs the vectorized engine, got engine {params['engine']}")
    if params["network"] is not None and not np.any(params["rank"]):
        raise ValueError("rank 0 means no network: leave out network, or choose a rank")
    built = []
    for own in members_of(params) if members is None else members:
        settings = params | own
        network = network_of(settings, n_modes, product=product, attributes=attributes)
        prior = posterior.Prior(**{name: settings[name] for name in Prior.names()})
        method = LEFT_OUT
        if runs:
            inference = {name: settings[name] for name in OF_ENGINE if name in settings}
            size, engine = settings["batch_size"], settings["engine"]
            method = build(engine, network, likelihood, prior, batch_size=size, **inference)
        built.append(Member(own, network, prior, method))
    whole, rule = LEFT_OUT, event_rule.rule_of(params)
    if runs:
        networks = [member.network for member in built]
        least = event_rule.least_weights(networks) if rule is not None else None
        methods = [member.method for member in built]
        whole = committee(methods, likelihood, clip=params.get("clip"), least=least)
        if rule is not None:
            whole = events(whole, rule, attributes.of_events)
    return Model(tuple(built), likelihood, whole, within(likelihood, params.get("bounds")), rule)


def check_alone(params: dict[str, Any]) -> None:
    """ValueError if parameters of the built-in network are set beside a custom one, which ignores them."""
    for name in OF_LAYERS:
        if params["network"] is not None and params[name] != plain(getattr(Network, name)):
            raise ValueError(f"{name} describes the built-in network: leave it out beside a custom one")


def left_out(*_: Any) -> NoReturn:
    raise RuntimeError("this model was opened with `look`, without its engine: use `load` to run it")


LEFT_OUT = CommitteeMethod(
    left_out, left_out, left_out, forecast=left_out, update_by=left_out, ready=left_out, mixing=mixing_of(0)
)
