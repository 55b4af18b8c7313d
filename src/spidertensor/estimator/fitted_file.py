"""Convert what an estimator has learned to and from the sections of a file (docs/file-format.md).

"model":     the model's JSON (here called `config`), the ids of its nodes, and the seen pairs, if remembered
"committee": what its members have learned, and for events what the draws depend on
"classes":   the labels of a classifier, unless they are 0 and 1
"columns":   the attributes beside the ids, if the model has any: a file of format 3
"calibration": the model's generation, and residuals of forecasts and at rest, if there are any
"position":  the caller's

Kernels do not validate, so everything in a file is checked before use: the description of the model here, the
learned state in file_checks.py.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor import checkpoint
from spidertensor.checkpoint import Checkpoint, CheckpointError
from spidertensor.estimator import event_rule, labels, levels_file, noise_file, tally
from spidertensor.estimator.columns import FittedColumns
from spidertensor.estimator.eviction import BoundedIndex, limits_of
from spidertensor.estimator.file_checks import check, check_learned, check_sizes
from spidertensor.estimator.fitted import Fitted, attributes_of, generation_of
from spidertensor.estimator.ids import NodeIndex
from spidertensor.estimator.labels import Classes
from spidertensor.estimator.parameters import (
    OF_MEMBERS,
    Model,
    checked,
    is_list,
    is_number,
    is_scaling,
    is_settings,
    is_whole,
    left_out,
    model_of,
    network_of,
)
from spidertensor.estimator.seen_pairs import SeenPairs
from spidertensor.estimator.tally import Tally, tally_of
from spidertensor.scaling import Scaling
from spidertensor.spider import committee, events, posterior
from spidertensor.spider.calibration import start_at_rest, start_of_forecasts
from spidertensor.spider.committee import CommitteeCounts, CommitteeState
from spidertensor.spider.custom_network import CustomNetwork
from spidertensor.spider.events import Rule
from spidertensor.spider.likelihoods import Likelihood
from spidertensor.spider.posterior import State

KEYS = {"estimator", "params", "modes", "names", "shift", "scale", "product"}
# Values of the parameters that files of version 1 may lack. They also lack "product", which is true, and the
# arrays in `_added_to_version_1`.
VERSION_1: dict[str, Any] = {
    "engine": "sequential",
    "network": None,
    "memory": None,
    "clip": None,
    "node_noise": False,
}
# Values of the parameters that files of version 2 may lack
ADDED: dict[str, Any] = {
    "max_nodes": None,
    "likelihood": "gaussian",
    "negatives": None,
    "negatives_over": None,
    "negatives_power": 0.0,
    "remember_seen": False,
    "passes": "auto",
    "time": None,
    "known_at": None,
}
HISTORY = {"errors": list, "chosen": int, "judged": int, "judge": str, "stopped": str}
LATER = {"sites": str, "floors": dict}  # fields of a history that files may lack
# sections that a reader may ignore: how a model came to be, is calibrated, and goes on learning its noise
OPTIONAL = {"history", "calibration", noise_file.SECTION, tally.SECTION}
# Files without a section "committee" hold a single model, whose state is in the section "model".
ALONE: dict[str, Any] = {"committee": 1}
MOST_PARAMS = 1000  # values in the params of a file, plus some for each array


@contextmanager
def as_checkpoint_error(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn any error about the contents of a file into a CheckpointError that names the file."""
    try:
        yield
    except CheckpointError as error:
        raise error.but(reason=f"{os.fspath(path)}: {error.reason}") from None
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"{os.fspath(path)}: not a model that this version can read ({error!r:.500})"
        ) from error


def config_of(file: Checkpoint) -> dict[str, Any]:
    """The model JSON of a file, in the form of version 2, except that old files may lack some params."""
    config = file.sections.get("model")
    if not isinstance(config, dict):
        raise CheckpointError("holds no model")
    keys = KEYS - {"product"} if file.version == 1 else KEYS
    check(config.keys() == keys, "the model has missing or unknown keys")
    return config | {"product": True} if file.version == 1 else config


def check_config(config: dict[str, Any], estimator: str, shown: str) -> None:
    """Check that a config is for this estimator; `shown` is the class name for messages."""
    check(config["estimator"] == estimator, f"holds a {config['estimator']!s:.80}, not a {shown}")
    check(isinstance(config["params"], dict), "the params are not an object")
    check(isinstance(config["product"], bool), "product is neither true nor false")


def params_of(file: Checkpoint, config: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    """The stored parameters, with defaults for those `known` parameters that an old file lacks."""
    # Every list in the params counts something that has arrays. Checked before the params are copied.
    possible = _n_values(config["params"]) <= MOST_PARAMS + len(file.arrays) * len(OF_MEMBERS)
    check(possible, "the params have too many values")
    defaults = ADDED | (VERSION_1 if file.version == 1 else {})
    if "committee" not in file.sections:
        defaults = defaults | ALONE
    return {name: value for name, value in defaults.items() if name in known} | config["params"]


def _n_values(value: Any) -> int:
    """Number of values in a JSON value, nested ones included."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return 1
    return 1 + sum(map(_n_values, value))


def to_config(fitted: Fitted, estimator: str, names: Sequence[str] | None) -> dict[str, Any]:
    return {
        "estimator": estimator,
        "params": to_params(fitted),
        "modes": len(fitted.nodes),
        "names": None if names is None else list(names),
        "shift": fitted.scaling.shift,
        "scale": fitted.scaling.scale,
        "product": fitted.model.members[0].network.product,
    }


def to_sections(fitted: Fitted, estimator: str, names: Sequence[str] | None) -> dict[str, Any]:
    members = [member.own for member in fitted.model.members]
    sections: dict[str, Any] = {
        "model": to_config(fitted, estimator, names),
        "committee": {"members": members},
    }
    sections[noise_file.SECTION] = {}
    if fitted.model.likelihood.levels:
        sections[levels_file.SECTION] = {}
    if fitted.classes is not None and not labels.are_zero_one(fitted.classes):
        sections["classes"] = list(fitted.classes)
    if fitted.columns is not None:
        sections["columns"] = fitted.columns.to_json()
    if fitted.history is not None:
        sections["history"] = fitted.history
    sections["calibration"] = {"generation": fitted.generation}
    fitted.tally.flush()
    sections[tally.SECTION] = {"entries": fitted.tally.n}
    return sections


def to_params(fitted: Fitted) -> dict[str, Any]:
    """The parameters as JSON. A custom network is stored as its name and shapes, without code."""
    network = fitted.params["network"]
    return fitted.params | {"network": network and {"name": network.name, "shapes": network.shapes}}


def network_of_file(stored: Any, given: CustomNetwork | None, *, runs: bool) -> CustomNetwork | None:
    """The custom network of a file: the one `given`, which must match; None for the built-in network.

    runs: False to inspect the model only, which needs no network
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
    """State, ids and pairs as named arrays."""
    state = fitted.state._replace(members=tuple(map(posterior.trim, fitted.state.members)))
    if state.draws and fitted.model.rule:
        nodes = [len(each) for each in fitted.nodes]
        state = state._replace(draws=events.trimmed(state.draws, fitted.model.rule, nodes))
    arrays = checkpoint.flatten(state._replace(forecasts=(), rest=()), "committee")
    arrays = noise_file.to_file(arrays, len(state.members), len(fitted.nodes))
    arrays = levels_file.to_file(arrays, len(state.members))
    for name, scores in (("forecasts", state.forecasts), ("rest", state.rest)):
        arrays |= checkpoint.flatten(scores, f"calibration/{name}")
    if fitted.pairs is not None:
        arrays["model/seen_pairs"] = fitted.pairs.pairs()
    if fitted.columns is not None:
        arrays |= {f"columns/{name}": array for name, array in fitted.columns.to_arrays().items()}
    arrays |= fitted.tally.to_arrays([len(each) for each in fitted.nodes])
    for mode, nodes in enumerate(fitted.nodes):
        arrays |= {f"model/nodes/{mode}/{name}": array for name, array in nodes.to_arrays().items()}
    return arrays


def from_file(file: Checkpoint, config: dict[str, Any], likelihood: Likelihood, *, runs: bool) -> Fitted:
    """The inverse of `to_arrays` and `to_sections`, for a config with checked params.

    runs: see model_of
    """
    params, shift, scale = config["params"], config["shift"], config["scale"]
    nodes = _nodes(file.arrays, params["max_nodes"], alone="committee" not in file.sections)
    modes = config["modes"]
    check(is_whole(modes) and modes == len(nodes), f"{modes!r:.80} modes, but nodes for {len(nodes)}")
    possible = is_scaling([shift, scale]) and (likelihood.scaled or (shift, scale) == Scaling())
    check(possible, f"scaling ({shift!r:.80}, {scale!r:.80}) is invalid")
    if (names := config["names"]) is not None:
        good = is_list(names, lambda name: isinstance(name, str)) and len(set(names)) == len(names)
        check(good and len(names) == len(nodes), "there is not one name for each mode")
    n_nodes, product, members = [len(each) for each in nodes], config["product"], _members(file, params)
    columns = _columns(file, names, n_nodes)
    rows = n_nodes if columns is None else [*n_nodes, *columns.n_rows.tolist()]
    with_id = [mode for mode in range(modes) if columns is None or columns.schema.modes[mode].has_id]
    same = event_rule.resolved(params, names, modes, with_id) == params
    seen = params.get("remember_seen", False)
    whole = seen is False or is_whole(seen) or is_list(seen, is_whole)
    check(whole and same, "the modes of events and pairs are not numbers")
    attributes = attributes_of(columns)
    arrays = file.arrays if "committee" in file.sections else _alone(file.arrays)
    for m, own in enumerate(members):
        network = network_of(params | own, len(nodes), product=product, attributes=attributes)
        check_sizes(arrays, m, network, rows)
    built: dict[str, Any] = {"members": members, "product": product, "runs": runs, "attributes": attributes}
    model = model_of(params, likelihood, len(nodes), **built)
    if columns is not None and model.rule is not None:
        columns.check_drawn(model.rule.over)
    state = _with_scores(file, _state(file, arrays, model, params))
    scaling = Scaling(float(shift), float(scale))
    check_learned(state, model, params, rows, scaling)
    pairs = _pairs(file.arrays, params, model.rule, n_nodes)
    classes, history = _classes(file, likelihood), _history(file)
    generation = _generation(file, params, scaling)
    counted = _tally(file, model, params, state, n_nodes)
    more = classes, pairs, columns, history, generation
    return Fitted(params, model, state, nodes, scaling, counted, *more)


def _tally(
    file: Checkpoint, model: Model, params: dict[str, Any], state: CommitteeState, n_nodes: list[int]
) -> Tally:
    """What was counted; nothing is known of entries that a file without it has learned."""
    entries = int(state.draws.events if state.draws else state.counts.entries)
    found = tally_of(model, params, n_nodes, entries)
    arrays = {name: array for name, array in file.arrays.items() if name.startswith(f"{tally.SECTION}/")}
    if tally.SECTION in file.sections or arrays:
        found.restore(file.sections.get(tally.SECTION), arrays)
    return found


def _generation(file: Checkpoint, params: dict[str, Any], scaling: Scaling) -> int:
    stored = file.sections.get("calibration")
    if stored is None:  # written before there were forecasts
        return generation_of(params, scaling)
    known = isinstance(stored, dict) and stored.keys() == {"generation"}
    possible = known and is_whole(stored["generation"]) and 0 <= stored["generation"] < 2**48
    check(possible, "the generation is not a whole number below 2^48")
    return stored["generation"]


def _with_scores(file: Checkpoint, state: CommitteeState) -> CommitteeState:
    """The state with the residuals of forecasts and at rest, where the file has them."""
    names = {name for name in file.arrays if name.startswith("calibration/")}
    check(state.residuals or not names, "has calibrations, but no residuals")
    empty = {"forecasts": start_of_forecasts(), "rest": start_at_rest()}
    for part, scores in empty.items():
        own = {name: file.arrays[name] for name in names if name.startswith(f"calibration/{part}/")}
        if own:
            state = state._replace(**{part: checkpoint.restore(scores, own, f"calibration/{part}")})
        names -= own.keys()
    check(not names, "unknown calibration")
    return state


def _history(file: Checkpoint) -> dict[str, Any] | None:
    """How `fit` learned the model in several passes."""
    stored = file.sections.get("history")
    if stored is not None:
        fields = HISTORY | LATER
        known = isinstance(stored, dict) and HISTORY.keys() <= stored.keys() <= fields.keys()
        check(known, "the history has other fields")
        check(all(isinstance(each, fields[name]) for name, each in stored.items()), "the history is damaged")
        check(is_list(stored["errors"], is_number), "the errors of the passes are not numbers")
        of_floors = list(stored.get("floors", {}).values())
        check(is_list(of_floors, is_number), "the errors of the floors are not numbers")
        check(0 < stored["chosen"] <= len(stored["errors"]), "the chosen pass is none of them")
    return stored


def _columns(file: Checkpoint, names: Any, n_nodes: list[int]) -> FittedColumns | None:
    stored = file.sections.get("columns")
    if stored is None:
        return None
    inside = {
        name.removeprefix("columns/"): a for name, a in file.arrays.items() if name.startswith("columns/")
    }
    columns = FittedColumns.from_file(stored, inside, n_nodes)
    check(names == list(columns.schema.names), "the columns are of other modes")
    check(all(column.scale is not None for column in columns.columns), "a table has no scale")
    empty = all(n == 0 for n, mode in zip(n_nodes, columns.schema.modes, strict=True) if not mode.has_id)
    check(empty, "a mode without ids has nodes")
    return columns


def _classes(file: Checkpoint, likelihood: Likelihood) -> Classes | None:
    """The labels of a classifier, 0 and 1 if not stored; None for a regressor."""
    stored = file.sections.get("classes", list(labels.ZERO_ONE))
    if not likelihood.binary:
        check("classes" not in file.sections, "has classes, which only a classifier has")
        return None
    check(isinstance(stored, list) and labels.are_classes(stored), "the classes are not two labels")
    check(type(stored[0]) is type(stored[1]), "the classes are of two types")
    return stored[0], stored[1]


def _nodes(arrays: dict[str, NDArray[Any]], max_nodes: Any, *, alone: bool) -> list[NodeIndex]:
    """The nodes of each mode. alone: the file holds a single model, without a section "committee" """
    modes: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        match name.split("/"):
            case ["model", "nodes", mode, part]:
                modes.setdefault(mode, {})[part] = array
            case ["model", "state", _, *_] if alone:
                pass
            case ["committee" | "columns" | "calibration" | noise_file.SECTION | tally.SECTION, _, *_]:
                pass
            case ["model", "seen_pairs"] | [levels_file.SECTION, _]:
                pass
            case _:
                raise CheckpointError(f"unknown array {name!r:.80}")
    check(modes.keys() == {str(mode) for mode in range(len(modes))}, "the modes are not numbered from 0")
    return [
        NodeIndex.from_arrays(modes[str(mode)])
        if limit is None
        else BoundedIndex.restored(modes[str(mode)], limit)
        for mode, limit in enumerate(limits_of(max_nodes, len(modes)))
    ]


def _members(file: Checkpoint, params: dict[str, Any]) -> list[dict[str, Any]]:
    """Each member's own parameters. Stored in the file even if the parameter `committee` is a number, because
    the list of default members may change."""
    if "committee" not in file.sections:
        check(params["committee"] == 1, "holds no committee")
        return [{}]
    section = file.sections["committee"]
    check(
        isinstance(section, dict) and section.keys() == {"members"},
        "the committee is not an object with only the key members",
    )
    members, wanted = section["members"], params["committee"]
    check(is_list(members, is_settings) and members, "the members are not a list of parameters")
    same = members == wanted if isinstance(wanted, list) else len(members) == wanted
    check(same, "the members are not those of the params")
    check(checked(params | {"committee": members})["committee"] == members, "a member has invalid parameters")
    return members


def _alone(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Rename the arrays of a file without a committee to those of a committee of one."""
    old, new = "model/state/", "committee/members/0/"
    return {name.replace(old, new) if name.startswith(old) else name: a for name, a in arrays.items()}


def _state(
    file: Checkpoint, arrays: dict[str, NDArray[Any]], model: Model, params: dict[str, Any]
) -> CommitteeState:
    members = tuple(
        posterior.init(
            member.network,
            member.prior,
            0,
            node_noise=model.likelihood.normal_noise and (params | member.own).get("node_noise", False),
        )
        for member in model.members
    )
    empty = committee.start(members, model.likelihood)
    if model.rule:
        empty = empty._replace(draws=events.start(model.rule))
    if file.version == 1:
        added = _added_to_version_1(members[0])
        check(not added.keys() & arrays.keys(), "has arrays that format 1 does not know")
        arrays = arrays | added
    else:
        arrays = noise_file.from_file(arrays, len(members), model.members[0].network.n_modes)
        levels = model.likelihood.levels
        check(list(levels) == (params.get("levels") or []), "the levels of the params are not ascending")
        arrays = levels_file.from_file(arrays, len(members), levels)
    if "committee" not in file.sections:  # its counts are those of its one member
        counts = {name: arrays[f"committee/members/0/counts/{name}"] for name in CommitteeCounts._fields}
        empty = empty._replace(counts=CommitteeCounts(**counts))
        arrays = checkpoint.flatten(empty._replace(members=()), "committee") | arrays
    inside = {name: array for name, array in arrays.items() if name.startswith("committee/")}
    return checkpoint.restore(empty, inside, "committee", takes_over=True)


def _added_to_version_1(start: State) -> dict[str, NDArray[Any]]:
    """The arrays that files of version 1 lack, with the values of a model that does not use them."""
    member = "committee/members/0"
    counts = {f"{member}/counts/{name}": getattr(start.counts, name) for name in ("refused", "clipped")}
    return counts | checkpoint.flatten(start.stream, f"{member}/stream")


def _pairs(
    arrays: dict[str, NDArray[Any]], params: dict[str, Any], rule: Rule | None, n_nodes: list[int]
) -> SeenPairs | None:
    stored, modes = arrays.get("model/seen_pairs"), event_rule.seen_modes(params, rule)
    check((stored is None) == (modes is None), "the seen pairs do not match remember_seen")
    if stored is None or modes is None:
        return None
    good = stored.dtype == np.uint64 and stored.ndim == 1 and (stored[1:] > stored[:-1]).all()
    check(good, "the seen pairs are not sorted 64-bit numbers")
    first, second = stored >> np.uint64(32), stored & np.uint64(2**32 - 1)
    known = first.max(initial=0) < n_nodes[modes[0]] and second.max(initial=0) < n_nodes[modes[1]]
    check(known or not len(stored), "a pair has a node that is not known")
    return SeenPairs(stored)
