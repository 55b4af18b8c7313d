"""What happens inside one entry: the passes over the network that the sequential engine is made of.

Names: L hidden layers; `h[m]` is the input of hidden layer m with the constant 1 behind it, `h[L]` that of
the output layer; `delta[m]` belongs to the outputs of hidden layer m; `s[m]` is 1/sqrt(inputs + 1). `R_`
marks the R-operator's directional derivatives (curvature). mathematics.md section 3, in its order.

Whether a variance can turn negative is decided once per entry where that is possible, not per element.
"""

from __future__ import annotations

import math

from spidertensor.spider.compiled import HOT, kernel
from spidertensor.spider.robust import LARGEST_LOG_NOISE, LARGEST_SQUARE, LOG_NOISE_RUNNING
from spidertensor.spider.sequential_memory import elements
from spidertensor.spider.sequential_simd import (
    bend_rows,
    live_rows,
    narrow_rows,
    row_products,
    weighted_sum,
    weighted_sums,
)

_RELU, _TANH, _SIGMOID, _SOFTPLUS, _GELU = range(5)  # positions in ACTIVATIONS


@kernel(**HOT)
def _activate(kind, n, h, slope, bend):
    """h holds the pre-activations and becomes act(a); slope and bend are act' and act''."""
    if kind == _RELU:
        for i in range(n):
            positive = h[i] > 0
            h[i] = h[i] if positive else 0
            slope[i] = 1 if positive else 0  # and bend stays 0
    elif kind == _TANH:
        for i in range(n):
            y = math.tanh(h[i])
            h[i], slope[i], bend[i] = y, 1 - y * y, -2 * y * (1 - y * y)
    elif kind == _SIGMOID:
        for i in range(n):
            y = 0.5 + 0.5 * math.tanh(0.5 * h[i])
            h[i], slope[i], bend[i] = y, y * (1 - y), y * (1 - y) * (1 - 2 * y)
    elif kind == _SOFTPLUS:
        for i in range(n):
            a = h[i]
            y = 0.5 + 0.5 * math.tanh(0.5 * a)
            h[i] = max(a, 0.0) + math.log1p(math.exp(-abs(a)))
            slope[i], bend[i] = y, y * (1 - y)
    else:  # gelu, the exact one: a Phi(a)
        for i in range(n):
            a = h[i]
            cdf = 0.5 * math.erfc(-a * math.sqrt(0.5))
            pdf = math.exp(-0.5 * a * a) / math.sqrt(2 * math.pi)
            h[i], slope[i], bend[i] = a * cdf, cdf + a * pdf, pdf * (2 - a * a)


@kernel(**HOT)
def _forward(settings, c):
    """f of the deep part, and p of every layer (p of the output layer is returned)."""
    L = c.W.shape[0]
    for m in range(L):
        h, h2, outputs, s = c.h[m + 1], c.h2[m + 1], settings.inputs[m + 1], c.s[m]
        weighted_sums(c.W[m], c.h[m], h, s, c.V[m], c.h2[m], c.p[m], s * s, c.live[m], c.wide[m])
        _activate(settings.activation, outputs, h, c.slope[m + 1], c.bend[m + 1])
        h[outputs] = 1  # the padding of the sums ran over it
        for i in range(outputs):
            h2[i] = h[i] * h[i]
        live_rows(h, c.slope[m + 1], c.live[m + 1])
    f, p = c.s.dtype.type(0), c.s.dtype.type(0)
    h, h2 = c.h[L], c.h2[L]
    for j in range(h.size):
        f += c.w[j] * h[j]
        p += c.v[j] * h2[j]
    return c.s[L] * f, c.s[L] * c.s[L] * p


@kernel(**HOT)
def _backward(settings, c):
    """delta of every layer, back[0] = df/dx, and what the hidden weights add to beta."""
    L = c.W.shape[0]
    beta, back = c.s.dtype.type(0), c.back[L]
    for j in range(back.size):
        back[j] = c.w[j] * c.s[L]
    for m in range(L - 1, -1, -1):
        delta, p, slope = c.delta[m], c.p[m], c.slope[m + 1]
        for i in range(delta.size):  # beyond the last unit slope is 0, and so is delta
            delta[i] = back[i] * slope[i]
            beta += delta[i] * delta[i] * p[i]
        back = c.back[m]
        for j in range(back.size):
            back[j] = 0
        row_products(c.W[m], delta, c.live[m], c.wide[m], c.s[m], back)
    return beta


@kernel(**HOT)
def _factor_gradients(settings, c):
    """g = df/du; returns what bias and multilinear add to f, and what all factors add to beta."""
    K, bias, deep = c.u.shape[0], settings.bias, settings.bias + settings.multilinear
    f, beta, at = 0.0, 0.0, 0
    for k in range(K):
        if bias:
            f += c.u[k, 0]
            c.g[k, 0] = 1
        for e in range(settings.ranks[k]):
            c.g[k, deep + e] = c.back[0, at + e]
        at += settings.ranks[k]
    f += _products(settings, c) if settings.product else _pairs(settings, c)
    for k in range(K):
        for e in range(deep + settings.ranks[k]):
            beta += c.g[k, e] * c.g[k, e] * c.u_var[k, e]
    return f, beta


@kernel(**HOT)
def _pairs(settings, c):
    """Section 10: sum over pairs of modes k < l of m^k m^l, and its gradient, the sum of the other modes."""
    K, f = c.u.shape[0], c.s.dtype.type(0)
    for e in range(settings.bias, settings.bias + settings.multilinear):
        total = c.s.dtype.type(0)
        for k in range(K):  # sums of the modes before k, then of those behind it: nothing cancels
            c.g[k, e] = total
            f += total * c.u[k, e]
            total += c.u[k, e]
        total = c.s.dtype.type(0)
        for k in range(K - 1, -1, -1):
            c.g[k, e] += total
            total += c.u[k, e]
    return f


@kernel(**HOT)
def _products(settings, c):
    """Section 9: the product over all modes, and its gradient, the product over the others."""
    K, f = c.u.shape[0], c.s.dtype.type(0)
    for e in range(settings.bias, settings.bias + settings.multilinear):
        product = c.s.dtype.type(1)
        for k in range(K):  # products of the modes before k, then of those behind it
            c.g[k, e] = product
            product *= c.u[k, e]
        f += product
        product = c.s.dtype.type(1)
        for k in range(K - 1, -1, -1):
            c.g[k, e] *= product
            product *= c.u[k, e]
    return f


@kernel(**HOT)
def evaluate(settings, c):
    """alpha and beta of the loaded entry, with every gradient left in the scratch."""
    f, beta_out = _forward(settings, c)
    beta_hidden = _backward(settings, c)
    f_factors, beta_factors = _factor_gradients(settings, c)
    return f + f_factors, beta_out + beta_hidden + beta_factors


@kernel(**HOT)
def curvature_pass(settings, c):
    """H (var * g), the half of dbeta/dmu: Hd for the factors, R_h and R_delta hold it for the weights."""
    L, K = c.W.shape[0], c.u.shape[0]
    deep, at = settings.bias + settings.multilinear, 0
    for k in range(K):
        for e in range(settings.ranks[k]):
            c.R_h[0, at + e] = c.u_var[k, deep + e] * c.g[k, deep + e]
        at += settings.ranks[k]
    for m in range(L):
        R_a, p, delta, R_h, slope = c.R_a[m], c.p[m], c.delta[m], c.R_h[m + 1], c.slope[m + 1]
        weighted_sum(c.W[m], c.R_h[m], c.live[m], c.wide[m], c.s[m], R_a)
        for i in range(R_a.size):
            R_a[i] += p[i] * delta[i]
            R_h[i] = slope[i] * R_a[i]
    # back down: R{delta} of the output is 0, and q of the output layer is v
    R_back, s = c.R_back[L], c.s[L]
    for j in range(settings.inputs[L]):
        R_back[j] = s * s * c.v[j] * c.h[L, j]
    for m in range(L - 1, -1, -1):
        R_delta, delta, s = c.R_delta[m], c.delta[m], c.s[m]
        slope, bend, back, R_a = c.slope[m + 1], c.bend[m + 1], c.back[m + 1], c.R_a[m]
        for i in range(R_delta.size):
            R_delta[i] = R_back[i] * slope[i] + back[i] * bend[i] * R_a[i]
            c.delta2[i] = delta[i] * delta[i]
        R_back = c.R_back[m]
        for j in range(R_back.size):
            R_back[j] = 0
            c.q[j] = 0
        row_products(c.W[m], R_delta, c.live[m], c.wide[m], s, R_back)
        row_products(c.V[m], c.delta2, c.live[m], c.wide[m], s * s, c.q)
        for j in range(settings.inputs[m]):
            R_back[j] += c.q[j] * c.h[m, j]
    _curvature_of_factors(settings, c)


@kernel(**HOT)
def _curvature_of_factors(settings, c):
    K, bias, deep = c.u.shape[0], settings.bias, settings.bias + settings.multilinear
    at = 0
    for k in range(K):
        for e in range(deep):
            c.Hd[k, e] = 0
        for e in range(settings.ranks[k]):
            c.Hd[k, deep + e] = c.R_back[0, at + e]
        at += settings.ranks[k]
        for other in range(K):
            if other != k:
                for e in range(bias, deep):
                    # d²f / du^k du^other: 1 of a pair; of a product, the product over the remaining modes
                    product = c.u_var[other, e] * c.g[other, e]
                    if settings.product:
                        for rest in range(K):
                            if rest != k and rest != other:
                                product *= c.u[rest, e]
                    c.Hd[k, e] += product


@kernel(**HOT)
def narrow_weights(c, da, narrowing):
    """The weights, where no variance can turn negative: mean += da var g, var -= c (var g)²."""
    L = c.W.shape[0]
    for m in range(L):
        s = c.s[m]
        narrow_rows(c.W[m], c.V[m], c.h[m], c.delta[m], c.live[m], c.wide[m], da * s, narrowing * s * s)
    h, s = c.h[L], c.s[L]
    for j in range(h.size):
        vg = c.v[j] * (h[j] * s)
        c.w[j] += da * vg
        c.v[j] -= narrowing * (vg * vg)


@kernel(**HOT)
def bend_weights(settings, c, da, db2, narrowing):
    """The weights with curvature (db2 = 2 db; 0 without) and a guard per element; how many were rejected."""
    L, rejected = c.W.shape[0], 0
    for m in range(L):
        s = c.s[m]
        rejected += bend_rows(
            c.W[m], c.V[m], c.h[m], c.R_h[m], c.delta[m], c.R_delta[m], c.live[m], c.wide[m],
            da * s, db2 * s, narrowing * s * s,
        )  # fmt: skip
    s = c.s[L]
    for j in range(settings.inputs[L] + 1):
        bend = db2 * s * c.R_h[L, j]
        c.w[j], c.v[j], bad = _moved(c.w[j], c.v[j], s * c.h[L, j], bend, da, narrowing)
        rejected += bad
    return rejected


@kernel(**HOT)
def move_factors(places, index, n, settings, c, da, db2, narrowing):
    rejected = 0
    for k in range(len(settings.ranks)):
        mean, var = elements(places.factor_mean[k], c.s), elements(places.factor_var[k], c.s)
        size = settings.bias + settings.multilinear + settings.ranks[k]
        first = index[n, k] * size
        for e in range(size):
            mean[first + e], var[first + e], bad = _moved(
                c.u[k, e], c.u_var[k, e], c.g[k, e], db2 * c.Hd[k, e], da, narrowing
            )
            rejected += bad
    return rejected


@kernel(**HOT)
def _moved(mean, var, g, bend, da, c):
    """One element after the entry, and 0; as it was, and 1, if its variance would not stay positive.

    bend = db dbeta/dmu, so dmu² - 2 dv = c g² + bend (2 da g + bend): da² and 2 db, which cancel for an
    outlier, do not meet.
    """
    dmu = da * g + bend
    new_var = var - var * var * (c * (g * g) + bend * (dmu + da * g))
    if new_var > 0:  # a NaN fails too
        return mean + var * dmu, new_var, 0
    return mean, var, 1


@kernel(**HOT)
def load_log_noise(places, nodes, running, index, n, settings, c):
    """Section 12: log_noise of the entry's nodes into the scratch; returns their sum, the log of the factor
    by which the noise of this entry differs.

    A node that no entry has touched yet has its mode's running mean.
    """
    total = 0.0
    for k in range(len(settings.ranks)):
        row = index[n, k]
        c.log_noise[k], c.log_noise_var[k] = running[k], settings.log_noise_prior
        if 0 <= row < nodes[k]:
            v = elements(places.log_noise_var[k], c.s)[row]
            if v < settings.log_noise_prior:
                c.log_noise[k] = elements(places.log_noise_mean[k], c.s)[row]
                c.log_noise_var[k] = v
        total += c.log_noise[k]
    return total


@kernel(**HOT)
def move_log_noise(places, running, index, n, settings, c, square, kept):
    """The log_noise of the entry's nodes, and their modes' running means, after an entry whose misfit was
    `square` times its noise. What it tells of a log variance is 1/2 where the noise is all of the predictive
    variance, and less where f was uncertain: `kept` is the noise's share.

    Returns by how much the running means have moved, in sum: that is no node's own, and the caller takes it
    out of the noise that all nodes share.
    """
    score, information = 0.5 * (min(square, LARGEST_SQUARE) - 1), 0.5 * kept * kept
    shift = 0.0
    for k in range(len(settings.ranks)):
        v = c.log_noise_var[k]
        v = max(v, min(settings.log_noise_prior, v * settings.log_noise_widening))
        v = 1 / (1 / v + information)
        moved = min(max(c.log_noise[k] + v * score, -LARGEST_LOG_NOISE), LARGEST_LOG_NOISE)
        row = index[n, k]
        elements(places.log_noise_mean[k], c.s)[row] = moved
        elements(places.log_noise_var[k], c.s)[row] = v
        step = (moved - running[k]) / LOG_NOISE_RUNNING
        running[k] += step
        shift += step
    return shift
