"""Random numbers without a state: each is a hash of a key and of a number, such as that of an entry.

So it does not matter how a stream is cut into calls, or whether it was stopped and resumed in between.
"""

from __future__ import annotations

import numpy as np

from spidertensor.spider.compiled import COMPILE, kernel

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _11 = (np.uint64(bits) for bits in (30, 27, 31, 11))


@kernel(cache=True)
def _mixed(x):
    """The last step of splitmix64."""
    x = (x ^ (x >> _30)) * _FIRST
    x = (x ^ (x >> _27)) * _SECOND
    return x ^ (x >> _31)


@kernel(cache=True)
def uniform(key, n):
    """In [0, 1), by a key and a number."""
    x = _mixed(_mixed(np.uint64(key) * _GAMMA) + (np.uint64(n) + np.uint64(1)) * _GAMMA)
    return np.float64(x >> _11) * 2.0**-53


@kernel(**COMPILE)
def uniforms(key, first, out):
    """Of the numbers from `first` on, into out (n,)."""
    for i in range(len(out)):
        out[i] = uniform(key, first + i)
