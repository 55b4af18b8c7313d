"""What happens inside one entry: the passes over the network that the sequential engine is made of.

Names: L hidden layers; `h[m]` is the input of hidden layer m with the constant 1 behind it, `h[L]` that of
the output layer; `delta[m]` belongs to the outputs of hidden layer m; `s[m]` is 1/sqrt(inputs + 1). `R_`
marks the R-operator's directional derivatives (curvature). mathematics.md section 3, in its order.

What makes it fast:

- Hidden weights are packed before the first entry, transposed to (input, output) and padded: the inner loops
  run over outputs at full SIMD width, and an input that is 0 with slope 0 (a dead ReLU unit) drops its whole
  row from the forward, backward and update pass alike: its gradient is exactly 0.
- Whether a variance can turn negative is decided once per entry where that is possible, not per element.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numba.extending
import numpy as np
from numba.core import types
from numpy.typing import NDArray

from spidertensor.spider.compiled import HOT, PART, kernel
from spidertensor.spider.posterior import State
from spidertensor.spider.robust import LARGEST_LOG_NOISE, LARGEST_SQUARE, LOG_NOISE_RUNNING
from spidertensor.spider.sequential_simd import (
    LANES,
    bend_rows,
    live_rows,
    narrow_rows,
    row_products,
    weighted_sum,
    weighted_sums,
)

intrinsic: Callable[..., Any] = numba.extending.intrinsic  # untyped: callers do not pass typingctx

_RELU, _TANH, _SIGMOID, _SOFTPLUS, _GELU = range(5)  # positions in ACTIVATIONS


class Settings(NamedTuple):
    likelihood: int
    activation: int
    curvature: bool
    slab_var: float
    rho0: float
    forgetting: float
    paper_noise: bool
    refine_every: int
    clip: float  # largest residual that is learned from, in predictive standard deviations; inf without
    node_noise: bool
    widening: float  # of a variance by an entry, 1 + 1/memory; 1 without
    log_noise_prior: float  # its prior variance, as the state's dtype has it
    log_noise_widening: float
    bias: int
    multilinear: int
    product: bool
    ranks: NDArray[np.int64]  # (K,)
    inputs: NDArray[np.int64]  # (L+1,) inputs of each layer, the constant not counted
    n_elements: int  # that one entry moves
    prior_var: NDArray[np.float32]  # of the elements of an unseen node's factor vector


class Places(NamedTuple):
    """Addresses of the arrays of a state, one for each mode or layer.

    A tuple of arrays would be a type of its own for every number of modes and of layers, and each type is
    compiled anew, for many seconds. Whoever makes these keeps the arrays alive while a kernel runs.
    """

    factor_mean: NDArray[np.int64]  # (K,) of (rows, size) arrays
    factor_var: NDArray[np.int64]
    log_noise_mean: NDArray[np.int64]  # (K,) of (rows,) arrays, or (0,)
    log_noise_var: NDArray[np.int64]
    weight_mean: NDArray[np.int64]  # (L+1,) of (outputs, inputs + 1) arrays, the output layer last
    weight_var: NDArray[np.int64]
    site_precision: NDArray[np.int64]
    site_precision_mean: NDArray[np.int64]
    site_log_odds: NDArray[np.int64]


def places(state: State) -> Places:
    """Where the arrays of a state are, all of one dtype and C-contiguous."""
    factors, weights, _, log_noise = state.posterior
    return Places(
        *(
            np.array([part[field].ctypes.data for part in parts], np.int64)
            for parts, fields in ((factors, 2), (log_noise, 2), (weights, 2), (state.sites, 3))
            for field in range(fields)
        )
    )


@intrinsic
def elements(typingctx, address, like):
    """The numbers at an address, of the dtype of the array `like`: elements(address, like)[i]."""
    pointer = types.CPointer(like.dtype)

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(pointer))

    return pointer(types.int64, like), codegen


class Scratch(NamedTuple):
    """Working memory of one call. "·" is a whole number of 64 lanes with room for every layer's inputs."""

    wide: NDArray[np.int64]  # (L,) outputs of each hidden layer, padded
    s: NDArray[np.floating]  # (L+1,)
    W: NDArray[np.floating]  # (L, ·, padded outputs) means of the hidden weights
    V: NDArray[np.floating]  # their variances
    w: NDArray[np.floating]  # (·) means of the output layer
    v: NDArray[np.floating]
    h: NDArray[np.floating]  # (L+1, ·)
    h2: NDArray[np.floating]  # (L+1, ·) h²
    slope: NDArray[np.floating]  # (L+1, ·) act' where h came from, row 0 unused
    bend: NDArray[np.floating]  # (L+1, ·) act''
    live: NDArray[np.int64]  # (L+1, words) bits of the inputs whose rows take part, the constant among them
    p: NDArray[np.floating]  # (L, ·) s² sum_j V[i,j] h[j]²
    delta: NDArray[np.floating]  # (L, ·)
    back: NDArray[np.floating]  # (L+1, ·) s W^T delta, before the slope
    R_h: NDArray[np.floating]  # (L+1, ·)
    R_a: NDArray[np.floating]  # (L, ·)
    R_delta: NDArray[np.floating]  # (L, ·)
    R_back: NDArray[np.floating]  # (L+1, ·)
    delta2: NDArray[np.floating]  # (·) delta²
    q: NDArray[np.floating]  # (·) s² sum_i V[i,j] delta[i]²
    u: NDArray[np.floating]  # (K, ·) factor vectors of the entry: mean
    u_var: NDArray[np.floating]
    g: NDArray[np.floating]  # (K, ·) df/du
    Hd: NDArray[np.floating]  # (K, ·) half of dbeta/du
    log_noise: NDArray[np.float64]  # (K,) of the entry's nodes
    log_noise_var: NDArray[np.float64]


@kernel(**PART)
def _zeros(first, second, third, like):
    """An array that starts on a cache line: a vector load that straddles two lines costs twice."""
    size = first * second * third
    raw = np.zeros(size + 16, like.dtype)
    skip = (-raw.ctypes.data % 64) // like.itemsize
    return raw[skip : skip + size].reshape(first, second, third)


@kernel(**PART)
def scratch(places, settings, like):
    """Fresh working memory of the dtype of the array `like`, with the weights packed into it."""
    inputs, K, L = settings.inputs, len(settings.ranks), len(settings.inputs) - 1
    wide = np.zeros(L, np.int64)
    outputs = 0
    for m in range(L):
        wide[m] = -(-inputs[m + 1] // LANES) * LANES
        outputs = max(outputs, wide[m])
    words = inputs.max() // 64 + 1  # + 1: room for the constant
    vectors = _zeros(14, L + 1, words * 64, like)
    matrices = _zeros(2 * L, words * 64, outputs, like)
    matrices[L:] = 1  # variances of the padding: positive like all others, or the guard would count them
    parts = _zeros(4, K, settings.bias + settings.multilinear + settings.ranks.max(), like)
    s = np.empty(L + 1, like.dtype)
    for m in range(L + 1):
        s[m] = 1 / math.sqrt(inputs[m] + 1)
    c = Scratch(
        wide=wide, s=s, W=matrices[:L], V=matrices[L:], w=vectors[0, 0], v=vectors[1, 0], h=vectors[2],
        h2=vectors[3], slope=vectors[4], bend=vectors[5], live=np.zeros((L + 1, words), np.int64),
        p=vectors[6], delta=vectors[7], back=vectors[8], R_h=vectors[9], R_a=vectors[10],
        R_delta=vectors[11], R_back=vectors[12], delta2=vectors[13, 0], q=vectors[13, L],
        u=parts[0], u_var=parts[1], g=parts[2], Hd=parts[3], log_noise=np.zeros(K), log_noise_var=np.zeros(K),
    )  # fmt: skip
    for m in range(L + 1):
        c.h[m, inputs[m]] = 1
        c.h2[m, inputs[m]] = 1
    for j in range(inputs[0] + 1):  # factors are never dead
        c.live[0, j // 64] |= np.int64(1) << (j % 64)
    pack(places, settings, c)
    return c


@kernel(**PART)
def pack(places, settings, c):
    """Weights from the state into the scratch."""
    for m in range(len(settings.inputs)):
        mean, var = elements(places.weight_mean[m], c.s), elements(places.weight_var[m], c.s)
        columns = settings.inputs[m] + 1
        if m == len(settings.inputs) - 1:
            for j in range(columns):
                c.w[j], c.v[j] = mean[j], var[j]
        else:
            for i in range(settings.inputs[m + 1]):
                for j in range(columns):
                    c.W[m, j, i], c.V[m, j, i] = mean[i * columns + j], var[i * columns + j]


@kernel(**PART)
def unpack(places, settings, c):
    """Weights from the scratch back into the state."""
    for m in range(len(settings.inputs)):
        mean, var = elements(places.weight_mean[m], c.s), elements(places.weight_var[m], c.s)
        columns = settings.inputs[m] + 1
        if m == len(settings.inputs) - 1:
            for j in range(columns):
                mean[j], var[j] = c.w[j], c.v[j]
        else:
            for i in range(settings.inputs[m + 1]):
                for j in range(columns):
                    mean[i * columns + j], var[i * columns + j] = c.W[m, j, i], c.V[m, j, i]


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
def load(places, nodes, index, n, settings, widening, c):
    """Factor vectors of entry n into u, u_var; an unseen node has the prior's. Deep parts become h[0].

    Section 13: var = max(var, min(prior var, var * widening)).
    """
    deep, at = settings.bias + settings.multilinear, 0
    for k in range(len(settings.ranks)):
        size, row = deep + settings.ranks[k], index[n, k]
        if 0 <= row < nodes[k]:
            mean, var = elements(places.factor_mean[k], c.s), elements(places.factor_var[k], c.s)
            for e in range(size):
                c.u[k, e] = mean[row * size + e]
                v = var[row * size + e]
                c.u_var[k, e] = max(v, min(settings.prior_var[e], v * widening))
        else:
            for e in range(size):
                c.u[k, e] = 0
                c.u_var[k, e] = settings.prior_var[e]
        for e in range(deep, size):
            c.h[0, at] = c.u[k, e]
            c.h2[0, at] = c.u[k, e] * c.u[k, e]
            at += 1


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
    variance, and less where f was uncertain: `kept` is the noise's share."""
    score, information = 0.5 * (min(square, LARGEST_SQUARE) - 1), 0.5 * kept * kept
    for k in range(len(settings.ranks)):
        v = c.log_noise_var[k]
        v = max(v, min(settings.log_noise_prior, v * settings.log_noise_widening))
        v = 1 / (1 / v + information)
        moved = min(max(c.log_noise[k] + v * score, -LARGEST_LOG_NOISE), LARGEST_LOG_NOISE)
        row = index[n, k]
        elements(places.log_noise_mean[k], c.s)[row] = moved
        elements(places.log_noise_var[k], c.s)[row] = v
        running[k] += (moved - running[k]) / LOG_NOISE_RUNNING
