"""Following the level and the scale of the values, when the first of them did not speak for the rest.

mathematics.md section 11. Clipping makes single wild values harmless, but a change that lasts would be
clipped for long. So entries are counted in windows of at least WINDOW, which end where the prior is refined.
If the typical residual of a window lies beyond the clip, or the running spread of the values is far from the
scale, then the next window is watched: its entries are predicted but not learned. (The window before it
straddles the change.) At its end, unless the change has not lasted,

    predictions still follow the values    their level or scale has changed: the units move with them. The
                                           means of the model are kept; variances, sites and noise start anew
    else                                   start afresh, but for the ids, in new units

A Method's values stay in the units it was given: `Stream.shift` and `Stream.scale` lie between these and the
units that the model works in.
"""

from __future__ import annotations

import math

import numpy as np

from spidertensor.spider import posterior
from spidertensor.spider.compiled import COMPILE, PART, kernel
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Prior, State

WINDOW = 256  # entries
FAR = 2.5  # clips: a residual counts as no larger than this in a window's mean
SAME_SCALE = 3.0  # a spread within this factor of 1 is the old one
WILD = 20.0  # a value of this size is an outlier, and counts for neither the noise nor the spread
STILL_FAR = 4.0  # mean square of a watched window: below this the change has not lasted
SMALLEST = 1e-13  # of the size of the values: a smaller spread is rounding
LARGEST = 1e100  # of a scale: its square, a variance, must still be a number
FOLLOWS = 0.06  # share of the variance of the values that predictions explain, and no chance over a window
RUNNING = 10_000  # entries over which the moments of the values run
EQUIVALENT = 10.0  # a = 10: the worth of 20 entries that a new noise starts with
LEAST_NOISE = 1e-6  # of the running variance of the values
WATCH, DECIDE = 1, 2


@kernel(**PART)
def note_value(stream, y, f, total_var, clip):
    """One entry. An outlier must not change the running moments of the values either."""
    _note_in_window(stream.window, y, f, total_var, clip)
    y = min(max(y, -WILD), WILD)
    if stream.watching[()] != WATCH:
        n = min(stream.entries[()] + 1, RUNNING)
        stream.entries[()] = n
        off = y - stream.mean[()]
        stream.mean[()] += off / n
        stream.var[()] += (off * (y - stream.mean[()]) - stream.var[()]) / n


@kernel(**PART)
def _note_in_window(window, y_true, f, total_var, clip):
    window[0] += 1
    window[1] += min((y_true - f) ** 2 / total_var, (FAR * clip) ** 2)
    off_y, off_f = y_true - window[2], f - window[3]
    window[2] += off_y / window[0]
    window[3] += off_f / window[0]
    window[4] += (off_y * (y_true - window[2]) - window[4]) / window[0]
    window[5] += (off_f * (f - window[3]) - window[5]) / window[0]
    window[6] += (off_y * (f - window[3]) - window[6]) / window[0]


@kernel(**COMPILE)
def note_in_window(window, y_true, f, total_var, clip):
    """Many entries, one after the other: all of `note_value` but the running moments."""
    for i in range(len(y_true)):
        _note_in_window(window, y_true[i], f[i], total_var[i], clip)


@kernel(**PART)
def full_window(stream, clip):
    """At a refinement: end a window that is long enough; True if `follow` has to decide now."""
    window, var = stream.window, stream.var[()]
    if window[0] < WINDOW:
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
    """Decide what the watched window says, and change the state in place."""
    stream = state.stream
    n, squares, mean, f_mean, var, f_var, cov = stream.window.tolist()
    spread = math.sqrt(var)
    same_scale = 1 / SAME_SCALE < spread < SAME_SCALE
    stream.watching[()] = 0
    stream.window[:] = 0
    stream.entries[()], stream.mean[()], stream.var[()] = n, mean, var
    if same_scale and squares < STILL_FAR * n:
        return  # it has not lasted
    scale = float(stream.scale) * spread
    if (
        scale <= SMALLEST * abs(float(stream.shift + stream.scale * mean))
        or not 1 / LARGEST < scale < LARGEST
    ):
        return  # nothing varies, or beyond all numbers
    unit = 1.0 if same_scale else spread
    left = var / unit**2 + f_var - 2 * cov / unit  # of the variance, in the new units
    if left < (1 - FOLLOWS) * var / unit**2:
        _move_units(state, mean - unit * f_mean, unit)  # now the mean of the values is f_mean
        _start_afresh(state, network, prior, keep_means=True)
        _restart_noise(state, left)
        stream.followed[0 if same_scale else 1] += 1
    else:
        _move_units(state, mean, spread)
        _start_afresh(state, network, prior)
        stream.followed[2] += 1


def _move_units(state: State, shift: float, scale: float) -> None:
    """y becomes (y - shift) / scale."""
    stream = state.stream
    stream.shift[()] += stream.scale * shift
    stream.scale[()] *= scale
    stream.mean[()] = (stream.mean - shift) / scale
    stream.var[()] /= scale * scale


def _restart_noise(state: State, var: float) -> None:
    state.posterior.noise.shape[()] = EQUIVALENT
    state.posterior.noise.rate[()] = EQUIVALENT * max(var, LEAST_NOISE * float(state.stream.var))


def _start_afresh(state: State, network: Network, prior: Prior, *, keep_means: bool = False) -> None:
    """Everything as before any entry, but for the means if these are kept: the entries that straddled the
    change have moved them, so they are not as certain as they were."""
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
    state.stream.log_noise[:] = 0


def _copy(source: tuple, target: tuple) -> None:
    """The arrays of one tree of tuples into those of another."""
    for new, old in zip(source, target, strict=True):
        if isinstance(new, tuple):
            _copy(new, old)
        else:
            old[...] = new
