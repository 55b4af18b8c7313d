"""Random numbers that depend on nothing but a key and counters: however a stream is cut or resumed, and
whichever engine asks, the same place gets the same number. splitmix64, which is a hash of 64 bits."""

from __future__ import annotations

import numpy as np

from spidertensor.spider.compiled import COMPILE, PART, kernel

_STEP, _FIRST, _SECOND = map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_30, _27, _31, _11 = map(np.uint64, (30, 27, 31, 11))


@kernel(**PART)
def _mixed(word):
    word = (word ^ (word >> _30)) * _FIRST
    word = (word ^ (word >> _27)) * _SECOND
    return word ^ (word >> _31)


@kernel(**PART)
def uniform(key, number, draw):
    """In [0, 1): of draw number `draw` at place `number` of a stream with this key."""
    word = _mixed(np.uint64(key) + _STEP)
    word = _mixed(word + np.uint64(number) * _STEP + _STEP)
    word = _mixed(word + np.uint64(draw) * _STEP + _STEP)
    return np.float64(word >> _11) * 2.0**-53


@kernel(**COMPILE)
def uniforms(key, first, out):
    """`uniform` at the places from `first` on, draw 0, into out (n,)."""
    for i in range(len(out)):
        out[i] = uniform(key, first + i, 0)
