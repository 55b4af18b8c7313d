"""What an estimator has learned, as a file (docs/file-format.md).

Kernels do not validate: everything in a file is checked here, part against part, before it is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor import checkpoint
from spidertensor.checkpoint import CheckpointError
from spidertensor.estimator.fitted import Fitted
from spidertensor.estimator.ids import NodeIndex
from spidertensor.estimator.parameters import (
    Model,
    is_list,
    is_scaling,
    is_whole,
    left_out,
    model_of,
    network_of,
)
from spidertensor.scaling import Scaling
from spidertensor.spider import posterior
from spidertensor.spider.custom_network import CustomNetwork
from spidertensor.spider.likelihoods import Likelihood
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import State

# The values of parameters that did not exist yet when a file was written.
ADDED: dict[str, Any] = {"engine": "sequential", "network": None}
KEYS = {"estimator", "params", "modes", "names", "shift", "scale"}


@contextmanager
def one_error(path: str | os.PathLike[str]) -> Iterator[None]:
    """Whatever is wrong with a file becomes one CheckpointError that names the file."""
    try:
        yield
    except CheckpointError as error:
        raise error.but(reason=f"{os.fspath(path)}: {error.reason}") from None
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(
            f"{os.fspath(path)}: not a model that this version can read ({error!r})"
        ) from error


def estimator_in(config: dict[str, Any]) -> Any:
    """The name of the estimator that wrote a config."""
    check(config.keys() == KEYS, "the config has missing or unknown keys")
    return config["estimator"]


def check_config(config: dict[str, Any], estimator: str, shown: str) -> None:
    """Whether a config belongs to an estimator; `shown` is the name of its class."""
    check(estimator_in(config) == estimator, f"holds a {config['estimator']}, not a {shown}")
    check(isinstance(config["params"], dict), "the params are not an object")


def to_config(fitted: Fitted, estimator: str, names: Sequence[str] | None) -> dict[str, Any]:
    return {
        "estimator": estimator,
        "params": to_params(fitted),
        "modes": len(fitted.nodes),
        "names": None if names is None else list(names),
        "shift": fitted.scaling.shift,
        "scale": fitted.scaling.scale,
    }


def to_params(fitted: Fitted) -> dict[str, Any]:
    """The parameters as JSON. A file holds no code: of a custom network it has the name and the shapes."""
    network = fitted.params["network"]
    return fitted.params | {"network": network and {"name": network.name, "shapes": network.shapes}}


def network_of_file(stored: Any, given: CustomNetwork | None, *, runs: bool) -> CustomNetwork | None:
    """The network that a file describes: the one `given`, which must fit, or None if it is the built-in one.

    runs: False for a model to look at, which needs no network
    """
    if stored is None:
        if given is not None:
            raise CheckpointError("has a built-in network", kind="network given", remedy="leave out network=")
        return None
    known = isinstance(stored, dict) and stored.keys() == {"name", "shapes"}
    check(known, "the network is not a name and shapes")
    name, shapes = stored["name"], stored["shapes"]
    check(isinstance(name, str) and name, "the name of the network is not a text")
    check(is_list(shapes, lambda shape: is_list(shape, is_whole)), "the shapes of the network are not sizes")
    described = CustomNetwork(left_out, shapes, name)
    shown = f"a custom network, {name!r:.80}, with weights of shapes {described.shapes!s:.400}"
    if given is None and runs:
        reason = f"has {shown}, and a file holds no code"
        raise CheckpointError(reason, kind="network missing", remedy="pass it as network=")
    check(given is None or given.shapes == described.shapes, f"has {shown}, not {given!r:.500}")
    return given or described


def to_arrays(fitted: Fitted) -> dict[str, NDArray[Any]]:
    """State and ids, as a checkpoint stores them."""
    arrays = checkpoint.flatten(posterior.trim(fitted.state), "state")
    for mode, nodes in enumerate(fitted.nodes):
        arrays |= {f"nodes/{mode}/{name}": array for name, array in nodes.to_arrays().items()}
    return arrays


def from_file(
    arrays: dict[str, NDArray[Any]], config: dict[str, Any], likelihood: Likelihood, *, runs: bool
) -> Fitted:
    """The inverse of `to_arrays` and `to_config`, for a config whose params were checked.

    runs: see model_of
    """
    params, shift, scale = config["params"], config["shift"], config["scale"]
    nodes = _nodes(arrays)
    check(config["modes"] == len(nodes), f"{config['modes']} modes, but nodes of {len(nodes)}")
    possible = is_scaling([shift, scale]) and (likelihood.scaled or (shift, scale) == Scaling())
    check(possible, f"scaling ({shift}, {scale}) is not possible")
    if (names := config["names"]) is not None:
        good = is_list(names, lambda name: isinstance(name, str)) and len(set(names)) == len(names)
        check(good and len(names) == len(nodes), "the names are not one for each mode")
    n_nodes = [len(each) for each in nodes]
    _check_sizes(arrays, network_of(params, len(nodes)), n_nodes)
    model = model_of(params, likelihood, len(nodes), runs=runs)
    state = _state(arrays, model, params["random_state"], n_nodes)
    return Fitted(params, model, state, nodes, Scaling(float(shift), float(scale)))


def check(condition: Any, reason: str) -> None:
    if not condition:
        raise CheckpointError(reason)


def _nodes(arrays: dict[str, NDArray[Any]]) -> list[NodeIndex]:
    modes: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        match name.split("/"):
            case ["nodes", mode, part]:
                modes.setdefault(mode, {})[part] = array
            case ["state", _, *_]:
                pass
            case _:
                raise CheckpointError(f"unknown array {name!r}")
    check(modes.keys() == {str(mode) for mode in range(len(modes))}, "the modes are not numbered from 0")
    return [NodeIndex.from_arrays(modes[str(mode)]) for mode in range(len(modes))]


def _check_sizes(arrays: dict[str, NDArray[Any]], network: Network, n_nodes: list[int]) -> None:
    """Before anything is allocated: the sizes must be those of arrays that are in the file."""
    check(n_nodes and min(n_nodes) > 0, "a mode has no nodes")
    for part, shapes in (
        ("weights", network.layers),
        ("factors", list(zip(n_nodes, network.factor_sizes, strict=True))),
    ):
        for number, shape in enumerate(shapes):
            name = f"state/posterior/{part}/{number}/mean"
            check(name in arrays and arrays[name].shape == shape, f"array {name!r} is not of shape {shape}")


def _state(arrays: dict[str, NDArray[Any]], model: Model, seed: int, n_nodes: list[int]) -> State:
    state = checkpoint.restore(posterior.init(model.network, model.prior, 0), arrays, "state")
    for name, leaf in checkpoint.flatten(state, "state").items():
        check(np.isfinite(leaf).all(), f"array {name!r} is not finite")
    gaussians = (*state.posterior.factors, *state.posterior.weights)
    same = all(each.mean.shape == each.var.shape for each in gaussians)
    check(same and state.counts.nodes.tolist() == n_nodes, "numbers of nodes differ")
    positive = (*(each.var for each in gaussians), *state.posterior.noise, state.counts.entries)
    check(all((array > 0).all() for array in positive), "a variance or a count is not positive")
    check(state.counts.rejected >= 0 and state.seed == seed, "count or seed impossible")
    return state
