"""Random numbers that depend only on a key and counters, by the 64-bit hash splitmix64: mathematics.md
section 16. The same place in a stream gets the same number, however the stream is cut, on either engine."""

from __future__ import annotations

import numpy as np

from spidertensor.spider.compiled import COMPILE, PART, kernel

_STEP, _FIRST, _SECOND = map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_30, _27, _31, _11 = map(np.uint64, (30, 27, 31, 11))


@kernel(**PART)
def _hashed(word):
    word = (word ^ (word >> _30)) * _FIRST
    word = (word ^ (word >> _27)) * _SECOND
    return word ^ (word >> _31)


@kernel(**PART)
def uniform(key, number, draw):
    """Draw number `draw` at place `number` of the stream with this key, in [0, 1)."""
    word = _hashed(np.uint64(key) + _STEP)
    word = _hashed(word + np.uint64(number) * _STEP + _STEP)
    word = _hashed(word + np.uint64(draw) * _STEP + _STEP)
    return np.float64(word >> _11) * 2.0**-53


@kernel(**COMPILE)
def uniforms(key, first, out):
    """Fill out (n,) with draw 0 of `uniform` at the places from `first` on."""
    for i in range(len(out)):
        out[i] = uniform(key, first + i, 0)
