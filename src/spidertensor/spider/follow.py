"""Follow lasting changes in the level and scale of the values: mathematics.md section 11.

Clipping makes single wild values harmless, but a lasting change would be clipped for long. So entries are
counted in windows of at least WINDOW_ENTRIES, which end where the prior is refined. If the typical residual
of a window lies beyond the clip, or the running spread of the values is far from the scale, the next window
is watched: its entries are predicted but not learned. (The window before it straddles the change.) At its
end, if the change has lasted,

    predictions still follow the values    their level or scale has changed: the units move with them. The
                                           model keeps its means; variances, sites and noise start anew
    else                                   start afresh in new units, keeping only the ids

A Method's values keep the caller's units: `StreamState.shift` and `scale` convert them to the model's.
"""

from __future__ import annotations

import math

import numpy as np

from spidertensor.spider import posterior
from spidertensor.spider.compiled import COMPILE, PART, kernel
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Prior, State

WINDOW_ENTRIES = 256  # least length of a window
FAR_CLIPS = 2.5  # bound of a residual in a window's mean, as a multiple of the clip
SAME_SCALE = 3.0  # a spread within this factor of 1 counts as unchanged
WILD = 20.0  # a value at least this large, in the model's units, is an outlier: cut in noise and spread
STILL_FAR = 4.0  # mean square of a watched window below which the change has not lasted
SMALLEST = 2e-9  # a spread below this share of the values' size, or of the first scale, is rounding
LARGEST = 1e100  # bound of a scale: its square, a variance, must stay finite
FOLLOWS = 0.06  # share of the values' variance that predictions must explain: more than chance in a window
RUNNING_ENTRIES = 10_000  # over which the moments of the values run
NEW_NOISE_SHAPE = 10.0  # of a restarted noise: worth 20 entries
LEAST_NOISE = 1e-6  # as a share of the running variance of the values
WATCH, DECIDE = 1, 2


@kernel(**PART)
def note_value(stream, y, f, total_var, clip):
    """Add one entry to the window and to the running moments, where outliers are cut to WILD."""
    _note_in_window(stream.window, y, f, total_var, clip)
    y = min(max(y, -WILD), WILD)
    if stream.watching[()] != WATCH:
        n = min(stream.entries[()] + 1, RUNNING_ENTRIES)
        stream.entries[()] = n
        off = y - stream.mean[()]
        stream.mean[()] += off / n
        stream.var[()] += (off * (y - stream.mean[()]) - stream.var[()]) / n


@kernel(**PART)
def _note_in_window(window, y_true, f, total_var, clip):
    window[0] += 1
    window[1] += min((y_true - f) ** 2 / total_var, (FAR_CLIPS * clip) ** 2)
    off_y, off_f = y_true - window[2], f - window[3]
    window[2] += off_y / window[0]
    window[3] += off_f / window[0]
    window[4] += (off_y * (y_true - window[2]) - window[4]) / window[0]
    window[5] += (off_f * (f - window[3]) - window[5]) / window[0]
    window[6] += (off_y * (f - window[3]) - window[6]) / window[0]


@kernel(**COMPILE)
def note_in_window(window, y_true, f, total_var, clip):
    """Add many entries to the window, one after the other; no running moments."""
    for i in range(len(y_true)):
        _note_in_window(window, y_true[i], f[i], total_var[i], clip)


@kernel(**PART)
def full_window(stream, clip):
    """At a refinement, end a window that is long enough; True if `follow` has to decide now."""
    window, var = stream.window, stream.var[()]
    if window[0] < WINDOW_ENTRIES:
        return False
    if stream.watching[()] == WATCH:
        stream.watching[()] = DECIDE
        return True
    far = window[1] > clip * clip * window[0]
    if far or var > SAME_SCALE**2 or 0 < var < SAME_SCALE**-2:
        stream.watching[()] = WATCH
    window[:] = 0
    return False


def follow(state: State, network: Network, prior: Prior) -> None:
    """Decide what to do after the watched window, and change the state in place."""
    stream = state.stream
    n, squares, mean, f_mean, var, f_var, cov = stream.window.tolist()
    spread = math.sqrt(var)
    same_scale = 1 / SAME_SCALE < spread < SAME_SCALE
    stream.watching[()] = 0
    stream.window[:] = 0
    stream.entries[()], stream.mean[()], stream.var[()] = n, mean, var
    if same_scale and squares < STILL_FAR * n:
        return  # the change has not lasted
    scale = float(stream.scale) * spread
    if not SMALLEST * max(1.0, abs(float(stream.shift + stream.scale * mean))) < scale < LARGEST:
        return  # the values are constant, or the scale is too large
    unit = 1.0 if same_scale else spread
    left = var / unit**2 + f_var - 2 * cov / unit  # unexplained variance, in the new units
    if left < (1 - FOLLOWS) * var / unit**2:
        _move_units(state, mean - unit * f_mean, unit)  # makes f_mean the mean of the values
        _start_afresh(state, network, prior, keep_means=True)
        _restart_noise(state, left)
        stream.followed[0 if same_scale else 1] += 1
    else:
        _move_units(state, mean, spread)
        _start_afresh(state, network, prior)
        stream.followed[2] += 1


def _move_units(state: State, shift: float, scale: float) -> None:
    """Change the model's units so that y becomes (y - shift) / scale."""
    stream = state.stream
    stream.shift[()] += stream.scale * shift
    stream.scale[()] *= scale
    stream.mean[()] = (stream.mean - shift) / scale
    stream.var[()] /= scale * scale


def _restart_noise(state: State, var: float) -> None:
    state.posterior.noise.shape[()] = NEW_NOISE_SHAPE
    state.posterior.noise.rate[()] = NEW_NOISE_SHAPE * max(var, LEAST_NOISE * float(state.stream.var))


def _start_afresh(state: State, network: Network, prior: Prior, *, keep_means: bool = False) -> None:
    """Reset the posterior and sites to their starting values, in place.

    keep_means: keep the means, but not their variances: entries that straddled the change moved them
    """
    node_noise = bool(state.posterior.log_noise)
    fresh = posterior.init(network, prior, int(state.seed), node_noise=node_noise)
    rows = np.array([len(factor.mean) for factor in state.posterior.factors])
    fresh = posterior.grow(fresh, network, prior, rows)
    parts = (*state.posterior.factors, *state.posterior.weights)
    means = [part.mean.copy() for part in parts]
    _copy(fresh.posterior, state.posterior)
    _copy(fresh.sites, state.sites)
    if keep_means:
        for part, mean in zip(parts, means, strict=True):
            part.mean[:] = mean
    state.stream.squares[:] = posterior.SQUARES_AT_FIRST
    state.stream.level_noise[:], state.stream.level_noise_var[:] = 0, posterior.LEVEL_NOISE_VAR


def _copy(source: tuple, target: tuple) -> None:
    """Copy the arrays of one nested tuple into those of another."""
    for new, old in zip(source, target, strict=True):
        if isinstance(new, tuple):
            _copy(new, old)
        else:
            old[...] = new
