"""What an estimator has learned, as the sections of a file (docs/file-format.md).

The section "model" is about the model itself: its JSON (here called `config`), the ids of its nodes and, if
it remembers these, the pairs of nodes that were seen. The section "committee" has what its members have
learned, and what the draws of a model of events depend on. The section "classes" has the labels of a
classifier that are not 0 and 1. The section "position" is the caller's.

Kernels do not validate: everything in a file is checked here, part against part, before it is used.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor import checkpoint
from spidertensor.checkpoint import Checkpoint, CheckpointError
from spidertensor.estimator import event_rule, labels
from spidertensor.estimator.eviction import BoundedIndex, limits_of
from spidertensor.estimator.fitted import Fitted
from spidertensor.estimator.ids import NodeIndex
from spidertensor.estimator.labels import Classes
from spidertensor.estimator.parameters import (
    OF_MEMBERS,
    Member,
    Model,
    checked,
    is_list,
    is_scaling,
    is_settings,
    is_whole,
    left_out,
    model_of,
    network_of,
)
from spidertensor.estimator.reach import Reach, reach
from spidertensor.estimator.seen_pairs import SeenPairs
from spidertensor.scaling import Scaling
from spidertensor.spider import committee, events, posterior
from spidertensor.spider.committee import CommitteeCounts, CommitteeState, member_seed
from spidertensor.spider.custom_network import CustomNetwork, CustomSizes
from spidertensor.spider.events import Rule
from spidertensor.spider.follow import DECIDE, WATCH
from spidertensor.spider.likelihoods import COUNT, Likelihood
from spidertensor.spider.likelihoods.negative_binomial import LARGEST_NOISE, LEAST_NOISE
from spidertensor.spider.network import Network
from spidertensor.spider.popularity import UNIT, of_times
from spidertensor.spider.posterior import State, Stream
from spidertensor.spider.robust import LARGEST_LOG_NOISE

KEYS = {"estimator", "params", "modes", "names", "shift", "scale", "product"}
# What files of version 1 do not say: the values of parameters that they may lack. They have no "product"
# either (it was always meant) and none of the arrays that `_added_to_version_1` lists.
VERSION_1: dict[str, Any] = {
    "engine": "sequential",
    "network": None,
    "memory": None,
    "clip": None,
    "node_noise": False,
}
# What files of version 2 may lack, because it came later
ADDED: dict[str, Any] = {
    "max_nodes": None,
    "likelihood": "gaussian",
    "negatives": None,
    "negatives_over": None,
    "negatives_power": 0.0,
    "remember_seen": False,
}
# Files without a section "committee" are those of one model, whose state is in the section "model".
ALONE: dict[str, Any] = {"committee": 1}
MOST_ENTRIES = 2**53  # so that more can be counted
MOST_PARAMS = 1000  # values in the params of a file, and more for each array
LARGEST = 1e18  # of a mean or a variance; what priors allow is far smaller, and this squared fits float32
LARGEST_VAR = 1e34  # of f: what a prediction multiplies it with still fits float32
LARGEST_LOG = math.log(1e300)  # of a variance or a shift in the units of the values
LARGEST_LEVEL = 1e3  # of f for counts, whose logarithms it is
LARGEST_SUM = 2.0**62  # of popularity
WIDER = 1e6  # times its prior a variance may be: wild values with curvature were seen to widen one 500 times


@contextmanager
def one_error(path: str | os.PathLike[str]) -> Iterator[None]:
    """Whatever is wrong with a file becomes one CheckpointError that names the file."""
    try:
        yield
    except CheckpointError as error:
        raise error.but(reason=f"{os.fspath(path)}: {error.reason}") from None
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"{os.fspath(path)}: not a model that this version can read ({error!r:.500})"
        ) from error


def config_of(file: Checkpoint) -> dict[str, Any]:
    """The JSON of a file's model, as version 2 has it; the params may still lack what version 1 does."""
    config = file.sections.get("model")
    if not isinstance(config, dict):
        raise CheckpointError("holds no model")
    keys = KEYS - {"product"} if file.version == 1 else KEYS
    check(config.keys() == keys, "the model has missing or unknown keys")
    return config | {"product": True} if file.version == 1 else config


def check_config(config: dict[str, Any], estimator: str, shown: str) -> None:
    """Whether a config belongs to an estimator; `shown` is the name of its class."""
    check(config["estimator"] == estimator, f"holds a {config['estimator']!s:.80}, not a {shown}")
    check(isinstance(config["params"], dict), "the params are not an object")
    check(isinstance(config["product"], bool), "product is neither true nor false")


def params_of(file: Checkpoint, config: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    """The stored parameters; of an old file, complete with those of the `known` ones that it lacks."""
    # Every list of the params counts something that has arrays. Checked before the params are copied.
    possible = _n_values(config["params"]) <= MOST_PARAMS + len(file.arrays) * len(OF_MEMBERS)
    check(possible, "the params have too many values")
    meant = ADDED | (VERSION_1 if file.version == 1 else {})
    if "committee" not in file.sections:
        meant = meant | ALONE
    return {name: value for name, value in meant.items() if name in known} | config["params"]


def _n_values(value: Any) -> int:
    """How many values a JSON value consists of."""
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
    sections = {"model": to_config(fitted, estimator, names), "committee": {"members": members}}
    if fitted.classes is not None and not labels.are_zero_one(fitted.classes):
        sections["classes"] = list(fitted.classes)
    return sections


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
    state = fitted.state._replace(members=tuple(map(posterior.trim, fitted.state.members)))
    if state.draws and fitted.model.rule:
        nodes = [len(each) for each in fitted.nodes]
        state = state._replace(draws=events.trimmed(state.draws, fitted.model.rule, nodes))
    arrays = checkpoint.flatten(state, "committee")
    if fitted.pairs is not None:
        arrays["model/seen_pairs"] = fitted.pairs.pairs()
    for mode, nodes in enumerate(fitted.nodes):
        arrays |= {f"model/nodes/{mode}/{name}": array for name, array in nodes.to_arrays().items()}
    return arrays


def from_file(file: Checkpoint, config: dict[str, Any], likelihood: Likelihood, *, runs: bool) -> Fitted:
    """The inverse of `to_arrays` and `to_sections`, for a config whose params were checked.

    runs: see model_of
    """
    params, shift, scale = config["params"], config["shift"], config["scale"]
    nodes = _nodes(file.arrays, params["max_nodes"], alone="committee" not in file.sections)
    modes = config["modes"]
    check(is_whole(modes) and modes == len(nodes), f"{modes!r:.80} modes, but nodes of {len(nodes)}")
    possible = is_scaling([shift, scale]) and (likelihood.scaled or (shift, scale) == Scaling())
    check(possible, f"scaling ({shift!r:.80}, {scale!r:.80}) is not possible")
    if (names := config["names"]) is not None:
        good = is_list(names, lambda name: isinstance(name, str)) and len(set(names)) == len(names)
        check(good and len(names) == len(nodes), "the names are not one for each mode")
    if "negatives" in params:
        whole = params["remember_seen"] is False or is_whole(params["remember_seen"])
        same = event_rule.resolved(params, names, modes) == params
        check(whole and same, "the modes of the events are not numbers")
    n_nodes, product, members = [len(each) for each in nodes], config["product"], _members(file, params)
    arrays = file.arrays if "committee" in file.sections else _alone(file.arrays)
    for m, own in enumerate(members):
        _check_sizes(arrays, m, network_of(params | own, len(nodes), product=product), n_nodes)
    model = model_of(params, likelihood, len(nodes), members=members, product=product, runs=runs)
    state = _state(file, arrays, model, params)
    scaling = Scaling(float(shift), float(scale))
    for m, member in enumerate(state.members):
        _check_state(member, member_seed(params["random_state"], m), n_nodes)
        _check_stream(member.stream, follows=params.get("clip") is not None)
        if likelihood.counts:
            _check_counts(member)
        _check_reach(member, model.members[m], scaling)
    _check_committee(state)
    if model.rule:
        _check_draws(state, model.rule, n_nodes)
    pairs = _pairs(file.arrays, params, model.rule, n_nodes)
    return Fitted(params, model, state, nodes, scaling, _classes(file, likelihood), pairs)


def check(condition: Any, reason: str) -> None:
    if not condition:
        raise CheckpointError(reason)


def _classes(file: Checkpoint, likelihood: Likelihood) -> Classes | None:
    """The labels of a classifier; a file that does not tell is about 0 and 1."""
    stored = file.sections.get("classes", list(labels.ZERO_ONE))
    if not likelihood.binary:
        check("classes" not in file.sections, "has classes, which only a classifier has")
        return None
    check(isinstance(stored, list) and labels.are_classes(stored), "the classes are not two labels")
    check(type(stored[0]) is type(stored[1]), "the classes are of two types")
    return stored[0], stored[1]


def _nodes(arrays: dict[str, NDArray[Any]], max_nodes: Any, *, alone: bool) -> list[NodeIndex]:
    """`alone`: the file is of one model, without a section "committee"."""
    modes: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        match name.split("/"):
            case ["model", "nodes", mode, part]:
                modes.setdefault(mode, {})[part] = array
            case ["model", "state", _, *_] if alone:
                pass
            case ["committee", _, *_] | ["model", "seen_pairs"]:
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
    """What each member has of its own. It stands in the file: a number of members says less, for the list
    that it counts in may change."""
    if "committee" not in file.sections:
        check(params["committee"] == 1, "holds no committee")
        return [{}]
    section = file.sections["committee"]
    check(isinstance(section, dict) and section.keys() == {"members"}, "the committee is not its members")
    members, wanted = section["members"], params["committee"]
    check(is_list(members, is_settings) and members, "the members are not a list of parameters")
    same = members == wanted if isinstance(wanted, list) else len(members) == wanted
    check(same, "the members are not those of the params")
    check(checked(params | {"committee": members})["committee"] == members, "a member is impossible")
    return members


def _alone(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays of a model of before committees, as those of a committee of one."""
    old, new = "model/state/", "committee/members/0/"
    return {name.replace(old, new) if name.startswith(old) else name: a for name, a in arrays.items()}


def _check_sizes(arrays: dict[str, NDArray[Any]], member: int, network: Network, n_nodes: list[int]) -> None:
    """Before anything is allocated: the sizes must be those of arrays that are in the file."""
    check(n_nodes, "there are no modes")
    for part, shapes in (
        ("weights", network.layers),
        ("factors", list(zip(n_nodes, network.factor_sizes, strict=True))),
    ):
        for number, shape in enumerate(shapes):
            name = f"committee/members/{member}/posterior/{part}/{number}/mean"
            check(name in arrays and arrays[name].shape == shape, f"array {name!r} is not of shape {shape}")


def _state(
    file: Checkpoint, arrays: dict[str, NDArray[Any]], model: Model, params: dict[str, Any]
) -> CommitteeState:
    members = tuple(
        posterior.init(
            member.network,
            member.prior,
            0,
            node_noise=model.likelihood.normal and (params | member.own).get("node_noise", False),
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
    if "committee" not in file.sections:  # its one member has learned all that there is to know
        counts = {name: arrays[f"committee/members/0/counts/{name}"] for name in CommitteeCounts._fields}
        empty = empty._replace(counts=CommitteeCounts(**counts))
        arrays = checkpoint.flatten(empty._replace(members=()), "committee") | arrays
    inside = {name: array for name, array in arrays.items() if name.startswith("committee/")}
    return checkpoint.restore(empty, inside, "committee")


def _added_to_version_1(start: State) -> dict[str, NDArray[Any]]:
    """The arrays that a state of version 1 does not have, as they are in a model that uses none of them."""
    member = "committee/members/0"
    counts = {f"{member}/counts/{name}": getattr(start.counts, name) for name in ("refused", "clipped")}
    return counts | checkpoint.flatten(start.stream, f"{member}/stream")


def _check_committee(state: CommitteeState) -> None:
    counts, weights, residuals = state.counts, state.weights, state.residuals
    shares = ((weights > 0) & (weights <= 1)).all() and abs(weights.sum() - 1) < 1e-9
    check(shares, "the members' weights are impossible")
    check(min(counts[:3]) >= 0 and counts.entries < MOST_ENTRIES, "a count is impossible")
    check(all(each.counts.entries == counts.entries for each in state.members), "its members are out of step")
    check(np.isfinite(counts.log_evidence), "the log evidence is not finite")
    if residuals:
        possible = ((residuals.mass >= 0) & (residuals.mass <= LARGEST)).all()
        check(possible and residuals.mass.sum() > 0, "the histogram of the residuals is impossible")


def _check_draws(state: CommitteeState, rule: Rule, n_nodes: list[int]) -> None:
    draws = state.draws
    assert draws
    check(0 < draws.events <= state.counts.entries, "the number of events is impossible")
    for place, mode in enumerate(rule.over):
        # fewer if a call was interrupted, before which its nodes are added
        check(0 <= draws.seen[place] <= n_nodes[mode], "the nodes of the events are not those of the model")
        if draws.popularity:
            of = draws.popularity[place]
            good = of.times.shape == (n_nodes[mode],) and ((of.times >= 0) & (of.times <= draws.events)).all()
            good = good and float((of.times.astype(float) ** rule.power).sum()) * UNIT < LARGEST_SUM
            check(good and of.tree.shape == of.times.shape, "the popularity of nodes is impossible")
            same = np.array_equal(of.tree, of_times(of.times, rule.power).tree)
            check(same, "the sums of the popularity are wrong")


def _pairs(
    arrays: dict[str, NDArray[Any]], params: dict[str, Any], rule: Rule | None, n_nodes: list[int]
) -> SeenPairs | None:
    stored, whose = arrays.get("model/seen_pairs"), params.get("remember_seen", False)
    check((stored is None) == (whose is False), "remembers pairs, or does not, against its parameters")
    if stored is None or rule is None:
        return None
    good = stored.dtype == np.uint64 and stored.ndim == 1 and (stored[1:] > stored[:-1]).all()
    check(good, "the pairs are not sorted numbers")
    first, second = stored >> np.uint64(32), stored & np.uint64(2**32 - 1)
    known = first.max(initial=0) < n_nodes[whose] and second.max(initial=0) < n_nodes[rule.over[0]]
    check(known or not len(stored), "a pair has a node that is not known")
    return SeenPairs(stored)


def _check_state(state: State, seed: int, n_nodes: list[int]) -> None:
    """Whatever could make a prediction that is not a number, now or after learning more."""
    for name, leaf in checkpoint.flatten(state, "state").items():
        check(np.isfinite(leaf).all(), f"array {name!r} is not finite")
    post, counts = state.posterior, state.counts
    gaussians = (*post.factors, *post.weights, *post.log_noise)
    same = all(each.mean.shape == each.var.shape for each in gaussians)
    same = same and all(len(each.mean) == n for each, n in zip(post.log_noise, n_nodes, strict=False))
    check(same and counts.nodes.tolist() == n_nodes, "numbers of nodes differ")
    positive = (*(each.var for each in gaussians), *post.noise, counts.entries)
    check(all((array > 0).all() for array in positive), "a variance or a count is not positive")
    # initial: a mode has no nodes if all were forgotten
    largest = max(max(np.abs(each.mean).max(initial=0), each.var.max(initial=0)) for each in gaussians)
    possible = largest <= LARGEST and float(post.noise.rate) / float(post.noise.shape) < math.inf
    check(possible, "a mean or a variance is too large")
    certain = all((each.var <= posterior.NODE_NOISE_VAR).all() for each in post.log_noise)
    small = all((np.abs(each.mean) <= LARGEST_LOG_NOISE).all() for each in post.log_noise)
    small = small and (np.abs(state.stream.log_noise) <= LARGEST_LOG_NOISE).all()
    check(certain and small, "the noise of a node is impossible")
    whole = (counts.rejected, counts.refused, counts.clipped, *state.stream.followed)
    check(min(whole) >= 0 and state.seed == seed, "count or seed impossible")


def _check_reach(state: State, member: Member, scaling: Scaling) -> None:
    """That no product of the numbers of a state overflows."""
    network, prior, post = member.network, member.prior, state.posterior
    allowed = [
        *(posterior.factor_prior_var(network, prior, mode).max() for mode in range(network.n_modes)),
        *(prior.slab_var for _ in post.weights),
    ]
    parts = zip((*post.factors, *post.weights), allowed, strict=True)
    check(
        all(part.var.max(initial=0) <= WIDER * var for part, var in parts),
        "a variance is far above its prior's",
    )
    far = Reach(0.0, 0.0)  # of a custom network nothing is known
    if not isinstance(network, CustomSizes):
        far = reach(state, network, prior)
    check(far.f < LARGEST and far.var < LARGEST_VAR, "predictions could overflow")
    log_noise = math.log(float(post.noise.rate)) - math.log(float(post.noise.shape))
    log_noise += sum(np.abs(each.mean).max(initial=0) for each in post.log_noise)
    log_scale = math.log(float(state.stream.scale)) + math.log(scaling.scale)
    log_var = max(log_noise, math.log(LARGEST_VAR)) + 2 * log_scale
    shift = scaling.shift + scaling.scale * float(state.stream.shift)
    possible = log_var < LARGEST_LOG and min(log_scale, log_noise / 2) > -LARGEST_LOG / 4
    check(possible and abs(shift) < math.exp(LARGEST_LOG), "predictions in the units of the values overflow")


def _check_counts(state: State) -> None:
    """The level and the noise of counts (likelihoods/count.py)."""
    stream, noise = state.stream, state.posterior.noise
    still = (stream.shift, stream.scale, stream.watching) == (0, 1, 0)
    level = 0 < stream.var <= COUNT.level_var and abs(stream.mean) <= LARGEST_LEVEL
    check(still and level, "the level of the counts is impossible")
    noise_var = float(noise.rate) / float(noise.shape)
    possible = LEAST_NOISE / 2 <= noise_var <= 2 * LARGEST_NOISE  # rounding
    check(possible, "the noise of the counts is impossible")


def _check_stream(stream: Stream, *, follows: bool) -> None:
    """`follows`: the model follows the level and the scale of its values (follow.py)."""
    n, squares, _, _, var, f_var, _ = stream.window
    positive = min(n, squares, var, f_var, stream.entries, stream.var) >= 0
    check(positive and stream.scale > 0, "a scale, a variance or a count of the values is negative")
    check(stream.watching in ((0, WATCH, DECIDE) if n else (0, WATCH)), "what is watched is impossible")
    still = (stream.shift, stream.scale, stream.watching) == (0, 1, 0)
    check(follows or still, "follows the values, which this model does not")
