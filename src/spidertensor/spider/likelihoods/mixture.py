"""Moments of a mixture, compiled: mathematics.md section 14."""

from __future__ import annotations

from spidertensor.spider.compiled import COMPILE, kernel


# Not fastmath: the order of summation over members would depend on the number of entries in a call.
@kernel(**COMPILE | {"fastmath": False})
def moments(weights, parts, out):
    """Write mean, var and noise of the mixture into out (3 or more, n).

    weights (M, n), or (M, 1) if all entries share them; parts (M, 3 or more, n): mean, var, noise
    """
    members, n = parts.shape[0], parts.shape[2]
    for i in range(n):
        w = min(i, weights.shape[1] - 1)
        mean, noise, var = 0.0, 0.0, 0.0
        for m in range(members):
            mean += weights[m, w] * parts[m, 0, i]
            noise += weights[m, w] * parts[m, 2, i]
        for m in range(members):
            off = parts[m, 0, i] - mean
            var += weights[m, w] * (parts[m, 1, i] + off * off)
        if members == 1:  # unchanged, even if NaN
            mean, var, noise = parts[0, 0, i], parts[0, 1, i], parts[0, 2, i]
        out[0, i], out[1, i], out[2, i] = mean, var, noise
