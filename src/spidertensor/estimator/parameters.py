"""The parameters of an estimator: plain, checked, and what they build."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import numpy as np

from spidertensor.method import Method
from spidertensor.spider.custom_network import CustomNetwork, CustomSizes
from spidertensor.spider.engine import ENGINES, build
from spidertensor.spider.likelihoods import named
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Prior

OF_LAYERS = ("hidden", "activation")  # what is said about the network, unless it is one's own
LARGEST = 1e100  # of what a value is measured by: its square, a variance, must still be a float64
LARGEST_VAR = 1e12  # of a prior: with its inverse far inside float32


class Model(NamedTuple):
    """What the parameters say."""

    network: Network
    prior: Prior
    method: Method


def checked(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters as JSON knows them, so that a NumPy number from a grid search can be saved."""
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
# What Network, Prior and the engine would not refuse by themselves with a clear ValueError.
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
    "noise_memory": (lambda x: x is None or is_number(x), "a finite number of entries, or None"),
    "scaling": (lambda x: x is None or is_scaling(x), "(shift, positive scale), both finite, or None"),
    "random_state": (lambda x: not is_whole(x) or 0 <= x < 2**63, "a seed that is not negative"),
}


def network_of(params: dict[str, Any], n_modes: int) -> Network:
    rank = params["rank"]
    ranks = tuple(rank) if isinstance(rank, list) else (rank,) * n_modes
    if len(ranks) != n_modes:
        raise ValueError(f"rank names {len(ranks)} modes, the entries have {n_modes}")
    around = {"bias": params["bias"], "multilinear": params["multilinear"]}
    if params["network"] is not None:
        return CustomSizes(ranks, custom=params["network"], **around)
    return Network(ranks, tuple(params["hidden"]), params["activation"], **around)


def model_of(params: dict[str, Any], likelihood: str, n_modes: int, *, runs: bool = True) -> Model:
    """`runs` False: a model to look at, without its engine and what that needs."""
    if params["network"] is not None and params["engine"] != "vectorized":
        raise ValueError(f'a network of your own needs engine="vectorized", got {params["engine"]!r}')
    names = ("slab_var", "rho0", "factor_var", "bias_var", "multilinear_var", "multilinear_start")
    network = network_of(params, n_modes)
    prior = Prior(**{name: params[name] for name in names})
    if not runs:
        return Model(network, prior, Method(left_out, left_out, left_out))
    settings = {"curvature": params["curvature"], "noise_memory": params.get("noise_memory")}
    method = build(
        params["engine"], network, named(likelihood), prior, batch_size=params["batch_size"], **settings
    )
    return Model(network, prior, method)


def check_alone(params: dict[str, Any]) -> None:
    """Beside a network of one's own, what is said about the built-in one must not be lost without a word."""
    for name in OF_LAYERS:
        if params["network"] is not None and params[name] != plain(getattr(Network, name)):
            raise ValueError(f"{name} is not for a network of your own, which takes its place")


def left_out(*_: Any) -> NoReturn:
    raise RuntimeError("this model was opened to look at it, not to run it")
