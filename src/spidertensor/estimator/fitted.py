"""What an estimator has learned: the state with what makes sense of it, ids, scale and parameters; its file.

Everything in a file is checked against everything else, for a kernel trusts what it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor import checkpoint
from spidertensor.checkpoint import CheckpointError
from spidertensor.estimator import inputs
from spidertensor.estimator.ids import NodeIndex, rows
from spidertensor.estimator.inputs import EntryError
from spidertensor.estimator.parameters import (
    Model,
    is_list,
    is_scaling,
    is_whole,
    left_out,
    model_of,
    network_of,
)
from spidertensor.method import Prediction
from spidertensor.spider import posterior
from spidertensor.spider.custom_network import CustomNetwork
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import State

FARTHEST = 1e6  # scales from the shift: the kernel is float32, and a value beyond would wreck what is learned


class Learned(NamedTuple):
    """Everything that learning changes, so that a reset or a load is one assignment."""

    params: dict[str, Any]  # as they were when learning began
    model: Model
    state: State
    nodes: list[NodeIndex]
    shift: float
    scale: float


def scaled(value: NDArray[np.float64], learned: Learned) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        in_scales = (value - learned.shift) / learned.scale
    far = np.abs(in_scales) > FARTHEST
    if far.any():
        row = int(far.argmax())
        raise EntryError(
            f"value {value[row]:g} is more than a million times the scale {learned.scale:g} away from "
            f"{learned.shift:g}: leave it out, clip it, or pass a fitting scaling=(shift, scale)",
            row,
        )
    return in_scales


def user_units(prediction: Prediction, learned: Learned) -> Prediction:
    mean, var, noise = prediction
    square = learned.scale**2
    return Prediction(learned.shift + learned.scale * mean, square * var, square * noise)


def with_room(
    learned: Learned, columns: list[inputs.Column], names: Sequence[str] | None
) -> tuple[Learned, NDArray[np.int64]]:
    """The same with room for every id, and the rows of the ids; whatever fails, nothing was added."""
    state, nodes, known = learned.state, learned.nodes, [len(each) for each in learned.nodes]
    try:
        index = rows(nodes, columns, add=True, names=names)
        wanted = np.array([len(each) for each in nodes])
        state = posterior.grow(state, learned.model.network, learned.model.prior, wanted)
    except BaseException:  # bad ids have added nothing; out of memory or Ctrl-C may have
        for each, n in zip(nodes, known, strict=True):
            each.truncate(n)
        raise
    return learned._replace(state=state), index


def to_params(learned: Learned) -> dict[str, Any]:
    """The parameters as a checkpoint stores them: of a network name and shapes, for a file holds no code."""
    network = learned.params["network"]
    return learned.params | {"network": network and {"name": network.name, "shapes": network.shapes}}


def network_of_file(said: Any, given: CustomNetwork | None, *, runs: bool) -> CustomNetwork | None:
    """The network that a file describes: the one `given`, which must fit, or None where it is a built-in one.

    runs: False if none has to be given, for a model to look at
    """
    if said is None:
        check(given is None, "has a built-in network: leave out network= (--network)")
        return None
    known = isinstance(said, dict) and said.keys() == {"name", "shapes"}
    check(known, "the network is not a name and shapes")
    name, shapes = said["name"], said["shapes"]
    check(isinstance(name, str) and name, "the name of the network is not a text")
    check(is_list(shapes, lambda shape: is_list(shape, is_whole)), "the shapes of the network are not sizes")
    stored = CustomNetwork(left_out, shapes, name)
    described = f"a network of its own, {name!r:.80}, with weights of shapes {stored.shapes!s:.400}"
    check(
        given is not None or not runs,
        f"has {described}, and a file holds no code: pass it as network= (--network module:name)",
    )
    check(given is None or given.shapes == stored.shapes, f"has {described}, not {given!r:.500}")
    return given or stored


def to_arrays(learned: Learned) -> dict[str, NDArray[Any]]:
    """State and ids, as a checkpoint stores them."""
    arrays = checkpoint.flatten(posterior.trim(learned.state), "state")
    for mode, nodes in enumerate(learned.nodes):
        arrays |= {f"nodes/{mode}/{name}": array for name, array in nodes.to_arrays().items()}
    return arrays


def from_file(
    arrays: dict[str, NDArray[Any]], config: dict[str, Any], likelihood: str, *, runs: bool
) -> Learned:
    """What `to_arrays` and the config of an estimator say, whose params are checked; or CheckpointError.

    runs: as model_of takes it
    """
    params, shift, scale = config["params"], config["shift"], config["scale"]
    nodes = _nodes(arrays)
    check(config["modes"] == len(nodes), f"{config['modes']} modes, but nodes of {len(nodes)}")
    possible = is_scaling([shift, scale]) and (likelihood == "gaussian" or (shift, scale) == (0, 1))
    check(possible, f"scaling ({shift}, {scale}) is not possible")
    if (names := config["names"]) is not None:
        good = is_list(names, lambda name: isinstance(name, str)) and len(set(names)) == len(names)
        check(good and len(names) == len(nodes), "the names are not one for each mode")
    n_nodes = [len(each) for each in nodes]
    _check_sizes(arrays, network_of(params, len(nodes)), n_nodes)
    model = model_of(params, likelihood, len(nodes), runs=runs)
    state = _state(arrays, model, params["random_state"], n_nodes)
    return Learned(params, model, state, nodes, float(shift), float(scale))


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
    """Before anything is allocated for them: they must be those of arrays that are in the file."""
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
