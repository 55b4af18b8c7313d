"""The parameters of the estimators: their defaults, their checks, and the model they build."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from spidertensor.method import Method
from spidertensor.scaling import LARGEST
from spidertensor.spider.custom_network import CustomNetwork, CustomSizes
from spidertensor.spider.engine import ENGINES, build
from spidertensor.spider.likelihoods import Likelihood
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Prior

OF_LAYERS = ("hidden", "activation")  # parameters of the built-in network only
OF_PRIOR = ("slab_var", "rho0", "factor_var", "bias_var", "multilinear_var", "multilinear_start")
OF_INFERENCE = ("curvature", "memory", "noise_memory", "clip", "node_noise")
LARGEST_VAR = 1e12  # of a prior: it and its inverse are far inside float32


@dataclass(eq=False, repr=False)
class Parameters:
    """The parameters that all estimators have, described in SpiderRegressor.

    scikit-learn reads parameters from the signature of __init__, which a dataclass has: each one is written
    once, here, and a class that has more of them adds fields.
    """

    rank: int | tuple[int, ...] = 8
    hidden: tuple[int, ...] = Network.hidden
    activation: str = Network.activation
    curvature: bool = False
    rho0: float = Prior.rho0
    slab_var: float = Prior.slab_var
    factor_var: float = Prior.factor_var
    bias: bool = True
    bias_var: float = Prior.bias_var
    multilinear: int = 32
    multilinear_var: float = Prior.multilinear_var
    multilinear_start: float = Prior.multilinear_start
    memory: float | None = None
    batch_size: int = 256
    engine: str = "sequential"
    network: CustomNetwork | None = None
    random_state: Any = 0


class Model(NamedTuple):
    """What the parameters build."""

    network: Network
    prior: Prior
    likelihood: Likelihood
    method: Method


def checked(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters as plain Python objects: a NumPy number from a grid search cannot be saved as JSON."""
    params = {name: plain(value) for name, value in params.items()}
    for name, value in params.items():
        good, wanted = RULES.get(name, (None, ""))
        if good is not None and not good(value):
            raise ValueError(f"{name} must be {wanted}, got {value!r}")
    return params


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def is_var(value: Any) -> bool:
    return is_number(value) and 1 / LARGEST_VAR <= value <= LARGEST_VAR


def is_list(value: Any, good: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(good, value))


def is_scaling(value: Any) -> bool:
    if not (is_list(value, is_number) and len(value) == 2):
        return False
    return abs(value[0]) <= LARGEST and 1 / LARGEST <= value[1] <= LARGEST


_VAR = (is_var, f"a number from {1 / LARGEST_VAR:g} to {LARGEST_VAR:g}")
# Only what Network, Prior and the engine would not reject themselves with a clear ValueError.
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
    "batch_size": (lambda x: is_whole(x) and 0 < x < 2**63, "a whole number of entries, at least 1"),
    "memory": (lambda x: x is None or is_number(x), "a number of entries, or None"),
    "clip": (lambda x: x is None or is_number(x), "a number of standard deviations, or None"),
    "node_noise": (lambda x: isinstance(x, bool), "True or False"),
    "noise_memory": (lambda x: x is None or is_number(x), "a finite number of entries, or None"),
    "scaling": (lambda x: x is None or is_scaling(x), "(shift, positive scale), both finite, or None"),
    "random_state": (lambda x: not is_whole(x) or 0 <= x < 2**63, "a seed that is not negative"),
}


def network_of(params: dict[str, Any], n_modes: int, *, product: bool = False) -> Network:
    """`product`: what `Network.product` says, for a model of before pairs."""
    rank = params["rank"]
    ranks = tuple(rank) if isinstance(rank, list) else (rank,) * n_modes
    if len(ranks) != n_modes:
        raise ValueError(f"rank names {len(ranks)} modes, the entries have {n_modes}")
    around = {"bias": params["bias"], "multilinear": params["multilinear"], "product": product}
    if params["network"] is not None:
        return CustomSizes(ranks, custom=params["network"], **around)
    return Network(ranks, tuple(params["hidden"]), params["activation"], **around)


def model_of(
    params: dict[str, Any], likelihood: Likelihood, n_modes: int, *, product: bool = False, runs: bool = True
) -> Model:
    """`runs` False: a model to look at, without its engine and the packages that needs."""
    if params["network"] is not None and params["engine"] != "vectorized":
        raise ValueError(f"a custom network needs the vectorized engine, got engine {params['engine']}")
    network = network_of(params, n_modes, product=product)
    prior = Prior(**{name: params[name] for name in OF_PRIOR})
    if not runs:
        return Model(network, prior, likelihood, Method(left_out, left_out, left_out))
    inference = {name: params[name] for name in OF_INFERENCE if name in params}
    size = params["batch_size"]
    method = build(params["engine"], network, likelihood, prior, batch_size=size, **inference)
    return Model(network, prior, likelihood, method)


def check_alone(params: dict[str, Any]) -> None:
    """Parameters of the built-in network are rejected beside a custom one, which would ignore them."""
    for name in OF_LAYERS:
        if params["network"] is not None and params[name] != plain(getattr(Network, name)):
            raise ValueError(f"{name} describes the built-in network: leave it out beside a custom one")


def left_out(*_: Any) -> NoReturn:
    raise RuntimeError("this model was opened with `look`, without its engine: use `load` to run it")
