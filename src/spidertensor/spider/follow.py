"""Following the level and the scale of the values, when the first of them did not speak for the rest.

mathematics.md section 11. Clipping makes single wild values harmless, but a change that lasts would be
clipped for long. So the entries are counted in windows of at least WINDOW, ended where the prior is refined.
If too many of a window were clipped, the next window is watched (the one before straddles the change). Then:

    the values hardly varied before   start afresh but for the ids: weights are pruned, factors stand at 0
    their spread is what it was       the mean residual goes into the shift, the noise starts anew
    else                              the model is rescaled, exactly

A Method's values stay in the units it was given: `Stream.shift` and `Stream.scale` lie between these and the
units that the model works in.
"""

from __future__ import annotations

import math

import numpy as np

from spidertensor.spider import posterior
from spidertensor.spider.compiled import PART, kernel
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Prior, State

WINDOW = 256  # entries
SHARE = 0.3  # of clipped entries in a window; streams that do not change stay far below
SAME_SCALE = 3.0  # a spread within this factor of 1 is the old one
NO_SPREAD = 0.01  # of a variance: below this the values did not vary before
RUNNING = 10_000  # entries over which the moments of the values run
EQUIVALENT = 10.0  # entries' worth of noise that a new noise starts with
DECIDE = 2


@kernel(**PART)
def note_value(stream, y, y_true, alpha):
    """One learned entry, y being clipped: an outlier must not change the running moments either."""
    n = min(stream.entries[()] + 1, RUNNING)
    stream.entries[()] = n
    before = y - stream.mean[()]
    stream.mean[()] += before / n
    stream.var[()] += (before * (y - stream.mean[()]) - stream.var[()]) / n
    window = stream.window
    window[0] += 1
    window[1] += y != y_true
    if stream.watching[()]:
        for first, x in ((2, y_true), (4, y_true - alpha)):
            before = x - window[first]
            window[first] += before / window[0]
            window[first + 1] += (before * (x - window[first]) - window[first + 1]) / window[0]


@kernel(**PART)
def full_window(stream):
    """At a refinement: end a window that is long enough; True if `follow` has to decide now."""
    window = stream.window
    if window[0] < WINDOW:
        return False
    if stream.watching[()]:
        stream.watching[()] = DECIDE
        return True
    stream.watching[()] = window[1] > SHARE * window[0]
    if not stream.watching[()]:
        stream.var_before[()] = stream.var[()]
    window[:] = 0
    return False


def follow(state: State, network: Network, prior: Prior) -> None:
    """Decide what the watched window says, and change the state in place."""
    stream = state.stream
    _, _, mean, var, r_mean, r_var = stream.window.tolist()
    spread = math.sqrt(var)
    before = float(stream.var_before)
    stream.watching[()] = 0
    stream.window[:] = 0
    if before < NO_SPREAD * min(1.0, var):
        _start_afresh(state, network, prior)
        _move_units(state, mean, spread)
        stream.followed[2] += 1
    elif 1 / SAME_SCALE < spread < SAME_SCALE:
        _move_units(state, r_mean, 1.0)
        _restart_noise(state, r_var)
        stream.followed[0] += 1
    elif spread > 0:
        _rescale(state, network, prior, spread)
        _move_units(state, r_mean, spread)
        stream.followed[1] += 1


def _move_units(state: State, shift: float, scale: float) -> None:
    """y becomes (y - shift) / scale."""
    stream = state.stream
    stream.shift[()] += stream.scale * shift
    stream.scale[()] *= scale
    stream.mean[()] = (stream.mean - shift) / scale
    stream.var[()] /= scale * scale
    stream.var_before[()] = stream.var


def _restart_noise(state: State, var: float) -> None:
    state.posterior.noise.shape[()] = EQUIVALENT
    state.posterior.noise.rate[()] = EQUIVALENT * var


def _start_afresh(state: State, network: Network, prior: Prior) -> None:
    node_noise = bool(state.posterior.log_noise)
    fresh = posterior.init(network, prior, int(state.seed), node_noise=node_noise)
    capacity = np.array([len(factor.mean) for factor in state.posterior.factors])
    fresh = posterior.grow(fresh, network, prior, capacity)
    _copy(fresh.posterior, state.posterior)
    _copy(fresh.sites, state.sites)
    state.stream.log_noise[:] = 0


def _rescale(state: State, network: Network, prior: Prior, scale: float) -> None:
    """f -> f / scale: f is linear in the biases and the last layer and quadratic in the pairs. The means are
    kept, and all that was known of their precision was known at another scale."""
    fresh = posterior.init(network, prior, int(state.seed), node_noise=bool(state.posterior.log_noise))
    biases, pairs = slice(0, int(network.bias)), slice(int(network.bias), network.deep_start)
    degree = network.n_modes if network.product else 2
    for mode, (mean, var) in enumerate(state.posterior.factors):
        mean[:, biases] /= scale
        mean[:, pairs] /= scale ** (1 / degree)
        var[:] = posterior.factor_prior_var(network, prior, mode)
    state.posterior.weights[-1].mean[:] /= scale
    for weight in state.posterior.weights:
        weight.var[:] = prior.slab_var
    _copy(fresh.sites, state.sites)
    _restart_noise(state, 1.0)
    for mean, var in state.posterior.log_noise:
        mean[:], var[:] = 0, posterior.NODE_NOISE_VAR
    state.stream.log_noise[:] = 0


def _copy(source: tuple, target: tuple) -> None:
    """Arrays of one tree into those of another, however deep they are nested."""
    for new, old in zip(source, target, strict=True):
        if isinstance(new, tuple):
            _copy(new, old)
        else:
            old[...] = new
