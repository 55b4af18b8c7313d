"""Check that a state from a file cannot produce predictions that are not finite, now or after more learning.

Kernels do not validate.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor import checkpoint
from spidertensor.checkpoint import CheckpointError
from spidertensor.estimator.parameters import Member, Model
from spidertensor.estimator.reach import Reach, reach
from spidertensor.scaling import Scaling
from spidertensor.spider import posterior
from spidertensor.spider.committee import CommitteeState, member_seed
from spidertensor.spider.custom_network import CustomSizes
from spidertensor.spider.events import Rule
from spidertensor.spider.follow import DECIDE, WATCH
from spidertensor.spider.likelihoods import COUNT
from spidertensor.spider.likelihoods.negative_binomial import LARGEST_NOISE, LEAST_NOISE
from spidertensor.spider.network import Network
from spidertensor.spider.popularity import UNIT, from_times
from spidertensor.spider.posterior import State, StreamState
from spidertensor.spider.robust import LARGEST_LEVEL_NOISE, LARGEST_LOG_NOISE

MOST_ENTRIES = 2**53  # leaves room to count more
LARGEST = 1e18  # mean or variance, or root mean square of the values; its square fits float32
LARGEST_VAR = 1e34  # variance of f: leaves room for the products of a prediction in float32
LARGEST_LOG = math.log(1e300)  # log of a variance or shift in user units
LARGEST_LEVEL = 1e3  # |f| for counts, where f is a log rate
LARGEST_SUM = 2.0**62  # sum of popularities
LARGEST_VAR_RATIO = 1e6  # of a variance to its prior; with curvature, wild values can widen it


def check(condition: Any, reason: str) -> None:
    if not condition:
        raise CheckpointError(reason)


def check_sizes(arrays: dict[str, NDArray[Any]], member: int, network: Network, n_nodes: list[int]) -> None:
    """Check the shapes of the arrays in the file before anything of that size is allocated.

    n_nodes: rows of each table: nodes of each mode, then attribute values
    """
    check(n_nodes, "there are no modes")
    for part, shapes in (
        ("weights", network.layers),
        (
            "factors",
            [(n, network.factor_sizes[mode]) for n, mode in zip(n_nodes, network.table_modes, strict=True)],
        ),
    ):
        for number, shape in enumerate(shapes):
            name = f"committee/members/{member}/posterior/{part}/{number}/mean"
            check(name in arrays and arrays[name].shape == shape, f"array {name!r} is not of shape {shape}")


def check_learned(
    state: CommitteeState, model: Model, params: dict[str, Any], n_nodes: list[int], scaling: Scaling
) -> None:
    """CheckpointError if this model, with these numbers of nodes, could not have learned the state."""
    follows = params.get("clip") is not None and not model.likelihood.ordinal
    for m, member in enumerate(state.members):
        _check_state(member, member_seed(params["random_state"], m), n_nodes)
        _check_stream(member.stream, follows=follows)
        if model.likelihood.counts:
            _check_counts(member)
        _check_reach(member, model.members[m], scaling)
    _check_committee(state)
    if model.rule:
        _check_draws(state, model.rule, n_nodes)


def _check_state(state: State, seed: int, n_nodes: list[int]) -> None:
    """Check a member's posterior and counts: finite, positive where needed, not too large."""
    for name, leaf in checkpoint.flatten(state, "state").items():
        check(np.isfinite(leaf).all(), f"array {name!r} is not finite")
    post, counts = state.posterior, state.counts
    gaussians = (*post.factors, *post.weights, *post.log_noise)
    same = all(each.mean.shape == each.var.shape for each in gaussians)
    same = same and all(len(each.mean) == n for each, n in zip(post.log_noise, n_nodes, strict=False))
    check(same and counts.nodes.tolist() == n_nodes, "numbers of nodes differ")
    positive = (*(each.var for each in gaussians), *post.noise, counts.entries)
    check(all((array > 0).all() for array in positive), "a variance or a count is not positive")
    # initial=0 because a mode has no nodes if all were forgotten
    largest = max(max(np.abs(each.mean).max(initial=0), each.var.max(initial=0)) for each in gaussians)
    possible = largest <= LARGEST and float(post.noise.rate) / float(post.noise.shape) < math.inf
    check(possible, "a mean or a variance is too large")
    certain = all((each.var <= posterior.NODE_NOISE_VAR).all() for each in post.log_noise)
    small = all((np.abs(each.mean) <= LARGEST_LOG_NOISE).all() for each in post.log_noise)
    check(certain and small, "the noise of a node is out of range")
    level, level_var = state.stream.level_noise, state.stream.level_noise_var
    possible = (np.abs(level) <= LARGEST_LEVEL_NOISE).all()
    possible = possible and ((level_var > 0) & (level_var <= posterior.LEVEL_NOISE_VAR)).all()
    check(possible, "the noise of a level is out of range")
    whole = (counts.rejected, counts.refused, counts.clipped, *state.stream.followed)
    check(min(whole) >= 0 and state.seed == seed, "a count is negative, or the seed is wrong")


def _check_stream(stream: StreamState, *, follows: bool) -> None:
    """Check the statistics of the values. follows: the model follows their level and scale (follow.py)"""
    n, squares, mean, f_mean, var, f_var, cov = stream.window
    positive = min(n, squares, var, f_var, stream.entries, stream.var) >= 0 and (stream.squares > 0).all()
    check(positive and stream.scale > 0, "a scale, a variance or a count of the values is negative")
    # Learning keeps a root mean square below this bound; it does not keep a variance below any.
    sizes = [math.hypot(each, math.sqrt(of)) for each, of in ((mean, var), (f_mean, f_var))]
    sizes += [math.hypot(stream.mean, math.sqrt(stream.var)), math.sqrt(abs(cov)), math.sqrt(squares)]
    possible = max(*sizes, *np.sqrt(stream.squares)) <= LARGEST and max(n, stream.entries) < MOST_ENTRIES
    check(possible, "a mean, a variance or a count of the values is too large")
    check(stream.watching in ((0, WATCH, DECIDE) if n else (0, WATCH)), "the watched window is invalid")
    still = (stream.shift, stream.scale, stream.watching) == (0, 1, 0)
    check(follows or still, "has followed a change of the values, which this model does not do")


def _check_counts(state: State) -> None:
    """Check the level and noise of a count model (likelihoods/count.py)."""
    stream, noise = state.stream, state.posterior.noise
    still = (stream.shift, stream.scale, stream.watching) == (0, 1, 0)
    level = 0 < stream.var <= COUNT.level_var and abs(stream.mean) <= LARGEST_LEVEL
    check(still and level, "the level of the counts is impossible")
    noise_var = float(noise.rate) / float(noise.shape)
    possible = LEAST_NOISE / 2 <= noise_var <= 2 * LARGEST_NOISE  # allows for rounding
    check(possible, "the noise of the counts is impossible")


def _check_reach(state: State, member: Member, scaling: Scaling) -> None:
    """Check that predictions cannot overflow, in the model's units or the user's."""
    network, prior, post = member.network, member.prior, state.posterior
    allowed = [
        *(
            posterior.factor_prior_var(network, prior, table).max()
            for table in range(len(network.table_modes))
        ),
        *(prior.slab_var for _ in post.weights),
    ]
    parts = zip((*post.factors, *post.weights), allowed, strict=True)
    check(
        all(part.var.max(initial=0) <= LARGEST_VAR_RATIO * var for part, var in parts),
        "a variance is far above its prior's",
    )
    far = Reach(0.0, 0.0)  # nothing is known about a custom network
    if not isinstance(network, CustomSizes):
        far = reach(state, network, prior)
    check(far.f < LARGEST and far.var < LARGEST_VAR, "predictions could overflow")
    log_noise = math.log(float(post.noise.rate)) - math.log(float(post.noise.shape))
    log_noise += LARGEST_LEVEL_NOISE + sum(np.abs(each.mean).max(initial=0) for each in post.log_noise)
    log_scale = math.log(float(state.stream.scale)) + math.log(scaling.scale)
    log_var = max(log_noise, math.log(LARGEST_VAR)) + 2 * log_scale
    shift = scaling.shift + scaling.scale * float(state.stream.shift)
    possible = log_var < LARGEST_LOG and min(log_scale, log_noise) > -LARGEST_LOG / 2
    check(possible and abs(shift) < math.exp(LARGEST_LOG), "predictions in user units could overflow")


def _check_committee(state: CommitteeState) -> None:
    counts, weights, residuals = state.counts, state.weights, state.residuals
    shares = ((weights > 0) & (weights <= 1)).all() and abs(weights.sum() - 1) < 1e-9
    check(shares, "the members' weights are not shares of 1")
    check(min(counts[:3]) >= 0 and counts.entries < MOST_ENTRIES, "a count is negative or too large")
    check(
        all(each.counts.entries == counts.entries for each in state.members),
        "its members have learned different numbers of entries",
    )
    check(np.isfinite(counts.log_evidence), "the log evidence is not finite")
    for scores in (residuals, state.forecasts, state.rest):
        if scores:
            possible = ((scores.mass >= 0) & (scores.mass <= LARGEST)).all()
            check(possible and scores.mass.sum() > 0, "the histogram of the residuals is invalid")
    if forecasts := state.forecasts:
        possible = 0 <= forecasts.entries <= counts.entries and 0 <= forecasts.latest < counts.entries
        check(possible and 0 <= forecasts.share <= 1, "the numbers of forecasts are impossible")
    if rest := state.rest:
        possible = 0 <= rest.entries <= rest.at <= counts.entries
        check(possible, "the numbers of entries at rest are impossible")


def _check_draws(state: CommitteeState, rule: Rule, n_nodes: list[int]) -> None:
    draws = state.draws
    assert draws
    check(0 < draws.events <= state.counts.entries, "the number of events is out of range")
    for place, mode in enumerate(rule.over):
        # fewer if a call was interrupted: its nodes are added first
        check(0 <= draws.seen[place] <= n_nodes[mode], "the nodes of the events are not those of the model")
        if draws.popularity:
            times, tree = draws.popularity[place].times, draws.popularity[place].tree
            good = times.shape == (n_nodes[mode],) and ((times >= 0) & (times <= draws.events)).all()
            good = good and float((times.astype(float) ** rule.power).sum()) * UNIT < LARGEST_SUM
            check(good and tree.shape == times.shape, "the popularity of nodes is invalid")
            same = np.array_equal(tree, from_times(times, rule.power).tree)
            check(same, "the sums of the popularity are wrong")
