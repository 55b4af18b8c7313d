"""The whole state of a model: independent Gaussians, a Gamma, one prior site per weight, and counts.

mathematics.md section 2. Everything is an array, scalars included, so that a kernel can update the state in
place and a checkpoint can store it without knowing what it means. Factor arrays may have more rows than there
are nodes (room to grow); the spare rows already hold a new node's starting values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from spidertensor.method import Batch
from spidertensor.spider.network import Network

T = TypeVar("T", bound=tuple[Any, ...])

NODE_NOISE_VAR = 0.1  # prior variance of log_noise with up to NODE_NOISE_MODES modes: see `node_noise_var`
NODE_NOISE_MODES = 3
LEVEL_NOISE_VAR = 0.1  # prior variance of the part of the log noise that depends on the predicted mean
LEVEL_KNOTS = 9
SQUARES_AT_FIRST = (100.0, 1.0)  # entries, and their mean square, that `StreamState.squares` starts with
GAP_ROWS = 16  # rows to restart that are at most this far apart share a generator; those between are dropped
ATTRIBUTE_STREAMS = 2**32  # random streams of attribute tables begin here, behind those of modes and layers
GROWTH = 1.5  # factor by which a mode's arrays grow: amortised O(1) copies per node


class Gaussian(NamedTuple):
    mean: NDArray[np.floating]
    var: NDArray[np.floating]


class Gamma(NamedTuple):
    """Posterior of the noise precision tau; rate / shape stands for E[1/tau].

    For counts rate / shape is 1/r, and shape the precision of its logarithm (likelihoods/count.py).
    """

    shape: NDArray[np.float64]
    rate: NDArray[np.float64]


class Site(NamedTuple):
    """Approximate prior of one layer's weights: natural parameters, and the log-odds of the slab."""

    precision: NDArray[np.floating]
    precision_mean: NDArray[np.floating]
    log_odds: NDArray[np.floating]


class Posterior(NamedTuple):
    factors: tuple[Gaussian, ...]  # one per table, (rows, length of a factor vector): Network.table_modes
    weights: tuple[Gaussian, ...]  # one per layer, (V_m, V_{m-1} + 1)
    noise: Gamma
    log_noise: tuple[Gaussian, ...]  # one per mode, (rows,): log of each node's noise factor; () if unused


class Counts(NamedTuple):
    nodes: NDArray[np.int64]  # per table
    entries: NDArray[np.int64]
    rejected: NDArray[np.int64]  # elements whose update was rejected
    refused: NDArray[np.int64]  # entries not learned because their evidence is not finite
    clipped: NDArray[np.int64]  # entries whose residual was clipped
    log_evidence: NDArray[np.float64]  # sum over all entries


class StreamState(NamedTuple):
    """Statistics of the values. The model works in its own units, (value - shift) / scale.

    For counts `mean` and `var` are those of the level of f, a Gaussian that all entries share; the other
    fields keep their starting values.
    """

    shift: NDArray[np.float64]
    scale: NDArray[np.float64]
    entries: NDArray[np.float64]  # number of entries in the running moments
    mean: NDArray[np.float64]  # of the values, in the model's units
    var: NDArray[np.float64]
    squares: NDArray[np.float64]  # (2,) entries and running mean of squared residuals in predictive variances
    level_noise: NDArray[np.float64]  # (LEVEL_KNOTS,) log of the noise factor by predicted mean: section 23
    level_noise_var: NDArray[np.float64]
    window: NDArray[np.float64]  # (7,) entries, sum of squares, moments of y and f (follow.py)
    watching: NDArray[np.int64]  # 0 no, 1 yes, 2 the window is full: decide
    followed: NDArray[np.int64]  # (3,) times the level moved, the scale changed, the model started afresh
    levels: NDArray[np.float64] = np.empty(0)  # of ordinal values (likelihoods/ordinal.py), ascending
    level_counts: NDArray[np.float64] = np.empty(0)  # how often each was seen, plus 1


class State(NamedTuple):
    posterior: Posterior
    sites: tuple[Site, ...]
    counts: Counts
    stream: StreamState
    seed: NDArray[np.int64]


@dataclass(frozen=True)
class Prior:
    """slab_var, rho0: spike-and-slab prior of a weight
    factor_var, bias_var, multilinear_var: prior variances of the parts of a factor vector
    multilinear_start: standard deviation of the multilinear part's starting means
    noise_shape, noise_rate: Gamma prior of the noise precision
    """

    slab_var: float = 1.0
    rho0: float = 0.9
    factor_var: float = 1.0
    bias_var: float = 0.02
    multilinear_var: float = 0.08
    multilinear_start: float = 0.03
    noise_shape: float = 1.0
    noise_rate: float = 1.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "multilinear_start" and not 0 < value < np.inf:
                raise ValueError(f"{name} must be positive and finite, got {value}")
        if self.rho0 > 1:
            raise ValueError(f"rho0 is a probability, got {self.rho0}")
        if not 0 <= self.multilinear_start < np.inf:
            raise ValueError(
                f"multilinear_start must be finite and not negative, got {self.multilinear_start}"
            )


def init(
    network: Network,
    prior: Prior,
    seed: int,
    *,
    node_noise: bool = False,
    level_var: float = 0.0,
    levels: tuple[float, ...] = (),
) -> State:
    """The state before any entry: no nodes yet, weights at random means, sites at the slab (trap 1).

    level_var, levels: those of the Likelihood
    """
    weights, sites = [], []
    slab = np.sqrt(prior.slab_var)
    for layer, shape in enumerate(network.layers):
        # N(0, 1) truncated to [-slab, slab], by inverse transform
        uniform = np.random.Generator(_bits(seed, network.n_modes + layer)).random(shape)
        mean = ndtri(ndtr(-slab) + uniform * (ndtr(slab) - ndtr(-slab)))
        mean *= network.has_deep  # a constant alone has no symmetry to break
        weights.append(Gaussian(_f32(mean), np.full(shape, prior.slab_var, np.float32)))
        # Trap 1: the random mean does not go into the site, or the first refinement divides it out.
        sites.append(
            Site(
                np.full(shape, 1 / prior.slab_var, np.float32),
                np.zeros(shape, np.float32),
                np.zeros(shape, np.float32),
            )
        )
    return State(
        Posterior(
            tuple(
                Gaussian(*np.zeros((2, 0, network.factor_sizes[mode]), np.float32))
                for mode in network.table_modes
            ),
            tuple(weights),
            Gamma(np.array(float(prior.noise_shape)), np.array(float(prior.noise_rate))),
            tuple(
                start_log_noise(network, mode, 0, 0) for mode in range(network.n_modes if node_noise else 0)
            ),
        ),
        tuple(sites),
        Counts(
            nodes=np.zeros(len(network.table_modes), np.int64),
            entries=np.zeros((), np.int64),
            rejected=np.zeros((), np.int64),
            refused=np.zeros((), np.int64),
            clipped=np.zeros((), np.int64),
            log_evidence=np.zeros(()),
        ),
        StreamState(
            shift=np.zeros(()),
            scale=np.ones(()),
            entries=np.zeros(()),
            mean=np.zeros(()),
            var=np.array(level_var),
            squares=np.array(SQUARES_AT_FIRST),
            level_noise=np.zeros(LEVEL_KNOTS),
            level_noise_var=np.full(LEVEL_KNOTS, LEVEL_NOISE_VAR),
            window=np.zeros(7),
            watching=np.zeros((), np.int64),
            followed=np.zeros(3, np.int64),
            levels=np.array(levels, np.float64),
            level_counts=np.ones(len(levels)),
        ),
        np.array(seed, np.int64),
    )


def grow(state: State, network: Network, prior: Prior, n_nodes: NDArray[np.int64]) -> State:
    """The state with at least `n_nodes` nodes per table; the same object if it already has them."""
    if (n_nodes <= state.counts.nodes).all():
        return state
    state = state._replace(counts=state.counts._replace(nodes=np.maximum(state.counts.nodes, n_nodes)))
    factors, log_noise = state.posterior.factors, state.posterior.log_noise
    if all(n <= len(factor.mean) for n, factor in zip(n_nodes, factors, strict=True)):
        return state  # spare rows are left
    factors = with_room(factors, n_nodes, partial(start_rows, network, prior, int(state.seed)))
    if log_noise:
        log_noise = with_room(log_noise, n_nodes[: network.n_modes], partial(start_log_noise, network))
    return state._replace(posterior=state.posterior._replace(factors=factors, log_noise=log_noise))


def with_room(
    modes: tuple[T, ...], n_nodes: NDArray[np.int64], start: Callable[[int, int, int], T]
) -> tuple[T, ...]:
    """Extend the arrays of each table, one row per node, to at least `n_nodes` rows.

    start: (table, first, last) -> starting values of rows first..last
    """
    grown = []
    for mode, (arrays, n) in enumerate(zip(modes, n_nodes, strict=True)):
        have = len(arrays[0])
        if n > have:
            rows = start(mode, have, max(int(n), int(GROWTH * have)))
            arrays = type(arrays)(*(np.concatenate(pair) for pair in zip(arrays, rows, strict=True)))
        grown.append(arrays)
    return tuple(grown)


def trim(state: State) -> State:
    """The state without spare rows, as checkpoints store it and tests compare it."""
    factors, log_noise = (
        tuple(Gaussian(mean[:n], var[:n]) for (mean, var), n in zip(modes, state.counts.nodes, strict=False))
        for modes in (state.posterior.factors, state.posterior.log_noise)
    )
    return state._replace(posterior=state.posterior._replace(factors=factors, log_noise=log_noise))


def rows_of(network: Network, batch: Batch) -> NDArray[np.int64]:
    """Number of rows that each table needs for the nodes of a batch."""
    if not network.tables:
        return batch.index.max(axis=0, initial=-1) + 1
    needed = np.zeros(len(network.table_modes), np.int64)
    needed[: network.n_modes] = batch.index.max(axis=0, initial=-1) + 1
    if batch.bags is not None:
        np.maximum.at(needed, network.n_modes + batch.bags.table, batch.bags.row + 1)
    return needed


def restart(state: State, network: Network, prior: Prior, mode: int, rows: NDArray[np.int64]) -> None:
    """Reset some rows of a table to their starting values, in place."""
    rows = np.sort(rows)
    for run in np.split(rows, np.flatnonzero(np.diff(rows) > GAP_ROWS) + 1):
        first, last = int(run[0]), int(run[-1]) + 1
        fresh = [(state.posterior.factors, start_rows(network, prior, int(state.seed), mode, first, last))]
        if mode < len(state.posterior.log_noise):
            fresh.append((state.posterior.log_noise, start_log_noise(network, mode, first, last)))
        for modes, start in fresh:
            for part, new in zip(modes[mode], start, strict=True):
                part[run] = new[run - first]


def keep_rows(state: State, mode: int, keep: NDArray[np.bool_]) -> State:
    """The state with only the nodes of a mode where `keep` is true, in their order."""
    trimmed = trim(state).posterior

    def kept(new: tuple[Gaussian, ...], modes: tuple[Gaussian, ...]) -> tuple[Gaussian, ...]:
        """`modes` with this mode replaced by the kept rows of `new`, which has no spare rows."""
        return tuple(
            Gaussian(*(part[keep] for part in new[m])) if m == mode else each for m, each in enumerate(modes)
        )

    nodes = state.counts.nodes.copy()
    nodes[mode] = np.count_nonzero(keep)
    factors = kept(trimmed.factors, state.posterior.factors)
    log_noise = kept(trimmed.log_noise, state.posterior.log_noise)
    return state._replace(
        posterior=state.posterior._replace(factors=factors, log_noise=log_noise),
        counts=state.counts._replace(nodes=nodes),
    )


def sample(
    state: State, network: Network, prior: Prior, rows: list[NDArray[np.int64]], rng: np.random.Generator
) -> State:
    """Draw the weights and some nodes' factors from the posterior, as a state with variances near 0.

    rows: per table, the nodes of the new state; -1 is an unseen node, drawn from the prior
    """
    factors = tuple(_draw_factors(state, network, prior, mode, row, rng) for mode, row in enumerate(rows))
    weights = tuple(_draw(*weight, rng) for weight in state.posterior.weights)
    log_noise = tuple(map(_log_noise_at, state.posterior.log_noise, rows))
    return state._replace(
        posterior=Posterior(factors, weights, state.posterior.noise, log_noise),
        counts=state.counts._replace(nodes=np.array([len(row) for row in rows])),
    )


def with_drawn(
    drawn: State,
    state: State,
    network: Network,
    prior: Prior,
    mode: int,
    row: NDArray[np.int64],
    rng: np.random.Generator,
) -> State:
    """The sample `drawn` of `state`, with one mode's nodes replaced by a new draw of other nodes."""
    factors, log_noise = list(drawn.posterior.factors), list(drawn.posterior.log_noise)
    factors[mode] = _draw_factors(state, network, prior, mode, row, rng)
    if log_noise:
        log_noise[mode] = _log_noise_at(state.posterior.log_noise[mode], row)
    nodes = drawn.counts.nodes.copy()
    nodes[mode] = len(row)
    return drawn._replace(
        posterior=drawn.posterior._replace(factors=tuple(factors), log_noise=tuple(log_noise)),
        counts=drawn.counts._replace(nodes=nodes),
    )


def _draw_factors(
    state: State, network: Network, prior: Prior, mode: int, row: NDArray[np.int64], rng: np.random.Generator
) -> Gaussian:
    factor, seen = state.posterior.factors[mode], (row >= 0)[:, None]
    mean = np.where(seen, _taken(factor.mean, row), 0).astype(factor.mean.dtype)
    return _draw(mean, np.where(seen, _taken(factor.var, row), factor_prior_var(network, prior, mode)), rng)


def _log_noise_at(log_noise: Gaussian, row: NDArray[np.int64]) -> Gaussian:
    mean = np.where(row >= 0, _taken(log_noise.mean, row), 0).astype(log_noise.mean.dtype)
    return Gaussian(mean, _taken(log_noise.var, row))


def _taken(part: NDArray[np.floating], row: NDArray[np.int64]) -> NDArray[np.floating]:
    """part[row]; rows of unseen nodes (-1) hold arbitrary values. The mode may have no nodes."""
    return part[row] if len(part) else np.zeros((len(row), *part.shape[1:]), part.dtype)


def _draw(mean: NDArray[np.floating], var: NDArray[np.floating], rng: np.random.Generator) -> Gaussian:
    drawn = mean + np.sqrt(var) * rng.standard_normal(mean.shape, mean.dtype)
    return Gaussian(drawn, np.full_like(var, 1e-20))


def factor_prior_var(network: Network, prior: Prior, table: int) -> NDArray[np.float32]:
    """Prior variance of each element of a factor vector of this table."""
    multilinear_var = _pair_scale(network) * prior.multilinear_var
    var = np.concatenate(
        [
            np.full(int(network.bias), prior.bias_var, np.float32),
            np.full(network.multilinear, multilinear_var, np.float32),
            np.full(network.ranks[network.table_modes[table]], prior.factor_var, np.float32),
        ]
    )
    return var * np.float32(network.table_scales[table])


def _pair_scale(network: Network) -> float:
    """Factor applied to `multilinear_var` and `multilinear_start` (mathematics.md section 10).

    A sum over pairs grows with their number K (K - 1) / 2, so both are given for K = 2 modes and scaled down
    for more.
    """
    modes = network.n_modes
    return math.sqrt(2 / (modes * (modes - 1))) if modes > 2 and not network.product else 1.0


def node_noise_var(n_modes: int) -> float:
    """Prior variance of log_noise, rounded to float32 (mathematics.md section 12).

    An entry's log noise is a sum over modes; the prior variance of that sum stops growing at three modes.
    """
    return float(np.float32(NODE_NOISE_VAR * min(1.0, NODE_NOISE_MODES / n_modes)))


def start_rows(network: Network, prior: Prior, seed: int, table: int, first: int, last: int) -> Gaussian:
    """Starting values of rows first..last of a table.

    Means are 0 (trap 2) except in the multilinear part: a product of zeros would never move. Its draw for a
    row depends only on (seed, table, row), not on when the node arrives.
    """
    var = np.tile(factor_prior_var(network, prior, table), (last - first, 1))
    mean = np.zeros_like(var)
    if network.multilinear:
        stream = table if table < network.n_modes else ATTRIBUTE_STREAMS + table - network.n_modes
        uniform = uniforms(seed, stream, network.multilinear, first, last) + 2.0**-54  # neither 0 nor 1
        columns = slice(int(network.bias), network.deep_start)
        spread = math.sqrt(network.table_scales[table]) * _pair_scale(network) * prior.multilinear_start
        mean[:, columns] = spread * ndtri(uniform)
    return Gaussian(mean, var)


def start_log_noise(network: Network, mode: int, first: int, last: int) -> Gaussian:
    """Log_noise before the first entry: that of the prior, whatever other nodes have learned."""
    var = np.full(last - first, node_noise_var(network.n_modes), np.float32)
    return Gaussian(np.zeros_like(var), var)


def uniforms(seed: int, mode: int, width: int, first: int, last: int) -> NDArray[np.float64]:
    """Uniform draws on [0, 1) for rows first..last; a row's draw depends only on (seed, mode, row)."""
    blocks = -(-width // 4)  # Philox draws four words per step of its counter
    bits = _bits(seed, mode).advance(first * blocks)
    words = bits.random_raw((last - first) * blocks * 4).reshape(last - first, blocks * 4)
    return (words[:, :width] >> 11).astype(np.float64) * 2.0**-53


def _bits(seed: int, stream: int) -> np.random.Philox:
    return np.random.Philox(key=np.array([seed, stream], np.uint64))


def _f32(array: NDArray[np.float64]) -> NDArray[np.float32]:
    return array.astype(np.float32)
