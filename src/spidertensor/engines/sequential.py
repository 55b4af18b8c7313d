"""SPIDER, entry by entry: assumed-density filtering in a compiled loop. method.md sections 3 to 5.

Names inside the kernels: L hidden layers; `h[l]` is the input of hidden layer l with the constant 1 behind
it, `h[L]` that of the output layer; `delta[l]` belongs to the outputs of hidden layer l; `s` is
1/sqrt(V_{m-1} + 1). `R_` marks the R-operator's directional derivatives (curvature).

What makes it fast:

- Hidden weights are packed before the loop, transposed to (input, output) and padded: the inner loops run
  over outputs at full SIMD width, and an input that is 0 with slope 0 (a dead ReLU unit) drops its whole
  row from the forward, backward and update pass alike: its gradient is exactly 0.
- Whether a variance can turn negative is decided once per entry where that is possible, not per element.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from spidertensor import likelihoods, posterior
from spidertensor.entries import Batch
from spidertensor.likelihoods import GAUSSIAN, evidence
from spidertensor.method import Method, Prediction, Update
from spidertensor.network import ACTIVATIONS, Network
from spidertensor.posterior import Prior, State
from spidertensor.spike_slab import refine_layer

# Not fastmath=True: nnan and ninf would delete the guards (trap 6).
_COMPILE = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"nsz", "arcp", "contract", "afn", "reassoc"},
}
_LANES = 16  # float32 in the widest vector register
_RELU, _TANH, _SIGMOID, _SOFTPLUS, _GELU = range(5)  # positions in ACTIVATIONS


class _Settings(NamedTuple):
    likelihood: int
    activation: int
    curvature: bool
    slab_var: float
    rho0: float
    forgetting: float
    refine_every: int
    bias: int
    multilinear: int


class _Scratch(NamedTuple):
    inputs: NDArray[np.int64]  # (L+1,) inputs of each layer, the constant not counted
    wide: NDArray[np.int64]  # (L,) outputs of each hidden layer, padded
    W: NDArray[np.floating]  # (L, inputs + 1, padded outputs) means of the hidden weights
    V: NDArray[np.floating]  # their variances
    w: NDArray[np.floating]  # (padded inputs + 1) means of the output layer
    v: NDArray[np.floating]
    h: NDArray[np.floating]  # (L+1, ·)
    slope: NDArray[np.floating]  # (L+1, ·) act' where h came from, row 0 unused
    bend: NDArray[np.floating]  # (L+1, ·) act''
    active: NDArray[np.int64]  # (L+1, ·) inputs whose rows take part, the constant last
    n_active: NDArray[np.int64]  # (L+1,)
    p: NDArray[np.floating]  # (L, ·) sum_j V[i,j] h[j]²
    delta: NDArray[np.floating]  # (L, ·)
    back: NDArray[np.floating]  # (L+1, ·) W^T delta s, before the slope
    R_h: NDArray[np.floating]  # (L+1, ·)
    R_a: NDArray[np.floating]  # (L, ·)
    R_delta: NDArray[np.floating]  # (L, ·)
    R_back: NDArray[np.floating]  # (L+1, ·)
    u: NDArray[np.floating]  # (K, ·) factor vectors of the entry: mean
    u_var: NDArray[np.floating]
    g: NDArray[np.floating]  # (K, ·) df/du
    Hd: NDArray[np.floating]  # (K, ·) half of dbeta/du


def _scratch(network: Network, dtype: np.dtype) -> _Scratch:
    def zeros(*shape: int) -> NDArray[np.floating]:
        # numpy aligns to 16 bytes; a vector load that straddles two cache lines costs twice
        size = math.prod(shape)
        raw = np.zeros(size + 64 // dtype.itemsize, dtype)
        skip = (-raw.ctypes.data % 64) // dtype.itemsize
        return raw[skip : skip + size].reshape(shape)

    def pad(n: int) -> int:
        return -(-n // _LANES) * _LANES

    inputs = np.array([columns - 1 for _, columns in network.layers], np.int64)
    hidden, L, K = network.hidden, len(network.hidden), network.n_modes
    widest = pad(int(inputs.max()) + 1)
    outputs = max(map(pad, hidden), default=0)
    rows, factor = (L, widest), (K, max(network.factor_sizes))
    return _Scratch(
        inputs=inputs,
        wide=np.array([pad(width) for width in hidden], np.int64),
        W=zeros(L, widest, outputs),
        V=zeros(L, widest, outputs),
        w=zeros(pad(int(inputs[-1]) + 1)),
        v=zeros(pad(int(inputs[-1]) + 1)),
        h=zeros(L + 1, widest),
        slope=zeros(L + 1, widest),
        bend=zeros(L + 1, widest),
        active=np.zeros((L + 1, widest), np.int64),
        n_active=np.zeros(L + 1, np.int64),
        p=zeros(*rows),
        delta=zeros(*rows),
        back=zeros(L + 1, widest),
        R_h=zeros(L + 1, widest),
        R_a=zeros(*rows),
        R_delta=zeros(*rows),
        R_back=zeros(L + 1, widest),
        u=zeros(*factor),
        u_var=zeros(*factor),
        g=zeros(*factor),
        Hd=zeros(*factor),
    )


@njit(**_COMPILE)
def _pack(weights, c):
    for l in range(len(weights) - 1):
        mean, var = weights[l]
        for i in range(mean.shape[0]):
            for j in range(mean.shape[1]):
                c.W[l, j, i] = mean[i, j]
                c.V[l, j, i] = var[i, j]
    mean, var = weights[len(weights) - 1]
    for j in range(mean.shape[1]):
        c.w[j] = mean[0, j]
        c.v[j] = var[0, j]


@njit(**_COMPILE)
def _unpack(weights, c):
    for l in range(len(weights) - 1):
        mean, var = weights[l]
        for i in range(mean.shape[0]):
            for j in range(mean.shape[1]):
                mean[i, j] = c.W[l, j, i]
                var[i, j] = c.V[l, j, i]
    mean, var = weights[len(weights) - 1]
    for j in range(mean.shape[1]):
        mean[0, j] = c.w[j]
        var[0, j] = c.v[j]


@njit(**_COMPILE)
def _activate(kind, n, h, slope, bend):
    """h holds the pre-activations and becomes act(a); slope and bend are act' and act''."""
    if kind == _RELU:
        for i in range(n):
            positive = h[i] > 0
            h[i] = h[i] if positive else 0
            slope[i] = 1 if positive else 0
            bend[i] = 0
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


@njit(**_COMPILE)
def _load(factors, nodes, index, n, bias, multilinear, prior_var, c):
    """Factor vectors of entry n into u, u_var; an unseen node has the prior's. Deep parts become h[0]."""
    deep = bias + multilinear
    at = 0
    for k in range(len(factors)):
        mean, var = factors[k]
        row = index[n, k]
        if 0 <= row < nodes[k]:
            for e in range(mean.shape[1]):
                c.u[k, e] = mean[row, e]
                c.u_var[k, e] = var[row, e]
        else:
            for e in range(mean.shape[1]):
                c.u[k, e] = 0
                c.u_var[k, e] = prior_var[e]
        for e in range(deep, mean.shape[1]):
            c.h[0, at] = c.u[k, e]
            c.active[0, at] = at
            at += 1
    c.h[0, at] = 1
    c.active[0, at] = at
    c.n_active[0] = at + 1


@njit(**_COMPILE)
def _forward(activation, c):
    """f of the deep part, and p of every layer (p of the output layer is returned)."""
    L = c.W.shape[0]
    for l in range(L):
        W, V, a, p = c.W[l], c.V[l], c.h[l + 1], c.p[l]
        inputs, wide = c.inputs[l], c.wide[l]
        for i in range(wide):
            a[i] = 0
            p[i] = 0
        n = c.n_active[l]
        for r in range(0, n - 3, 4):  # four rows at a time: a quarter of the traffic on a and p
            j0, j1, j2, j3 = c.active[l, r], c.active[l, r + 1], c.active[l, r + 2], c.active[l, r + 3]
            h0, h1, h2, h3 = c.h[l, j0], c.h[l, j1], c.h[l, j2], c.h[l, j3]
            for i in range(wide):
                a[i] += (W[j0, i] * h0 + W[j1, i] * h1) + (W[j2, i] * h2 + W[j3, i] * h3)
            h0, h1, h2, h3 = h0 * h0, h1 * h1, h2 * h2, h3 * h3
            for i in range(wide):
                p[i] += (V[j0, i] * h0 + V[j1, i] * h1) + (V[j2, i] * h2 + V[j3, i] * h3)
        for r in range(n - n % 4, n):
            j = c.active[l, r]
            h = c.h[l, j]
            for i in range(wide):
                a[i] += W[j, i] * h
                p[i] += V[j, i] * (h * h)
        s = a.dtype.type(1 / math.sqrt(inputs + 1))
        outputs = c.inputs[l + 1]
        for i in range(wide):
            a[i] *= s
        _activate(activation, outputs, a, c.slope[l + 1], c.bend[l + 1])
        n = 0
        for i in range(outputs):
            c.active[l + 1, n] = i
            n += (a[i] != 0) | (c.slope[l + 1, i] != 0)
        a[outputs] = 1
        c.active[l + 1, n] = outputs
        c.n_active[l + 1] = n + 1
    h, w, v = c.h[L], c.w, c.v
    f = h.dtype.type(0)
    p_out = h.dtype.type(0)
    for j in range(w.shape[0]):
        f += w[j] * h[j]
        p_out += v[j] * (h[j] * h[j])
    return f / math.sqrt(c.inputs[L] + 1), p_out


@njit(**_COMPILE)
def _backward(p_out, c):
    """delta of every layer, back[0] = df/dx, and the part of beta that the network's weights have."""
    L = c.W.shape[0]
    inputs = c.inputs[L]
    s = c.h.dtype.type(1 / math.sqrt(inputs + 1))
    beta = float(p_out) / (inputs + 1)
    for j in range(inputs):
        c.back[L, j] = c.w[j] * s
    for l in range(L - 1, -1, -1):
        W, delta, p = c.W[l], c.delta[l], c.p[l]
        wide, inputs = c.wide[l], c.inputs[l]
        spread = delta.dtype.type(0)
        for i in range(wide):  # behind the last unit slope is 0, and so is delta
            delta[i] = c.back[l + 1, i] * c.slope[l + 1, i]
            spread += delta[i] * delta[i] * p[i]
        beta += float(spread) / (inputs + 1)
        s = delta.dtype.type(1 / math.sqrt(inputs + 1))
        for j in range(inputs):
            c.back[l, j] = 0
        for r in range(c.n_active[l] - 1):
            j = c.active[l, r]
            t = delta.dtype.type(0)
            for i in range(wide):
                t += W[j, i] * delta[i]
            c.back[l, j] = t * s
    return beta


@njit(**_COMPILE)
def _factor_gradients(K, ranks, bias, multilinear, c):
    """g = df/du of all parts; returns what bias and multilinear add to f, and what all factors add to beta."""
    f = 0.0
    at = 0
    for k in range(K):
        if bias:
            f += c.u[k, 0]
            c.g[k, 0] = 1
        for e in range(ranks[k]):
            c.g[k, bias + multilinear + e] = c.back[0, at]
            at += 1
    for e in range(bias, bias + multilinear):
        product = c.u.dtype.type(1)
        for k in range(K):  # products of those before k, then of those behind it
            c.g[k, e] = product
            product *= c.u[k, e]
        f += product
        product = c.u.dtype.type(1)
        for k in range(K - 1, -1, -1):
            c.g[k, e] *= product
            product *= c.u[k, e]
    beta = 0.0
    for k in range(K):
        for e in range(bias + multilinear + ranks[k]):
            beta += c.g[k, e] * c.g[k, e] * c.u_var[k, e]
    return f, beta


@njit(**_COMPILE)
def _curvature(K, ranks, bias, multilinear, c):
    """Hd = H (var * g), the half of dbeta/dmu, for factors; R_h and R_delta hold it for the weights."""
    L = c.W.shape[0]
    deep = bias + multilinear
    at = 0
    for k in range(K):
        for e in range(ranks[k]):
            c.R_h[0, at] = c.u_var[k, deep + e] * c.g[k, deep + e]
            at += 1
    for l in range(L):
        W, R_a, p, delta = c.W[l], c.R_a[l], c.p[l], c.delta[l]
        wide, s2 = c.wide[l], 1 / (c.inputs[l] + 1)
        for i in range(wide):
            R_a[i] = 0
        for r in range(c.n_active[l] - 1):
            j = c.active[l, r]
            for i in range(wide):
                R_a[i] += W[j, i] * c.R_h[l, j]
        s, s2 = R_a.dtype.type(math.sqrt(s2)), R_a.dtype.type(s2)
        for i in range(wide):
            R_a[i] = s * R_a[i] + s2 * p[i] * delta[i]
            c.R_h[l + 1, i] = c.slope[l + 1, i] * R_a[i]
    # back down: R{delta} of the output is 0, and q of the output layer is v
    for j in range(c.inputs[L]):
        c.R_back[L, j] = c.v[j] * c.h[L, j] / (c.inputs[L] + 1)
    for l in range(L - 1, -1, -1):
        W, V, delta, R_delta = c.W[l], c.V[l], c.delta[l], c.R_delta[l]
        wide, s2 = c.wide[l], 1 / (c.inputs[l] + 1)
        s, s2 = W.dtype.type(math.sqrt(s2)), W.dtype.type(s2)
        for i in range(wide):
            R_delta[i] = c.R_back[l + 1, i] * c.slope[l + 1, i] + c.back[l + 1, i] * c.bend[l + 1, i] * c.R_a[l, i]
        for j in range(c.inputs[l]):
            c.R_back[l, j] = 0
        for r in range(c.n_active[l] - 1):
            j = c.active[l, r]
            t = W.dtype.type(0)
            q = W.dtype.type(0)
            for i in range(wide):
                t += W[j, i] * R_delta[i]
                q += V[j, i] * (delta[i] * delta[i])
            c.R_back[l, j] = s * t + s2 * q * c.h[l, j]
    at = 0
    for k in range(K):
        for e in range(deep):
            c.Hd[k, e] = 0
        for e in range(ranks[k]):
            c.Hd[k, deep + e] = c.R_back[0, at]
            at += 1
        for other in range(K):
            if other != k:
                for e in range(bias, deep):  # d²f / du^k du^other = product over the remaining modes
                    product = c.u_var[other, e] * c.g[other, e]
                    for rest in range(K):
                        if rest != k and rest != other:
                            product *= c.u[rest, e]
                    c.Hd[k, e] += product


@njit(**_COMPILE)
def _narrow(c, da, narrowing):
    """The update without curvature, where no variance can turn negative: mean += da var g, var -= c (var g)²."""
    L = c.W.shape[0]
    for l in range(L):
        W, V, delta, wide = c.W[l], c.V[l], c.delta[l], c.wide[l]
        s = W.dtype.type(1 / math.sqrt(c.inputs[l] + 1))
        for r in range(c.n_active[l]):
            j = c.active[l, r]
            k = s * c.h[l, j]
            for i in range(wide):
                vg = V[j, i] * (delta[i] * k)
                W[j, i] += da * vg
                V[j, i] -= narrowing * (vg * vg)
    s = c.w.dtype.type(1 / math.sqrt(c.inputs[L] + 1))
    for j in range(c.w.shape[0]):
        vg = c.v[j] * (c.h[L, j] * s)
        c.w[j] += da * vg
        c.v[j] -= narrowing * (vg * vg)


@njit(**_COMPILE)
def _moved(mean, var, g, bend, da, c):
    """One element after the entry, and 0; as it was, and 1, if its variance would not stay positive.

    bend = db dbeta/dmu, so dmu² - 2 dv = c g² + bend (2 da g + bend): no cancellation of da² against db.
    """
    new_mean = mean + var * (da * g + bend)
    new_var = var - var * var * (c * (g * g) + bend * (2 * da * g + bend))
    if new_var > 0 and abs(new_mean) < 1e30:  # a NaN fails both
        return new_mean, new_var, 0
    return mean, var, 1


@njit(**_COMPILE)
def _move(c, da, db2, narrowing):
    """The update of the weights element by element, with its guard; returns how many were rejected."""
    L = c.W.shape[0]
    rejected = 0
    for l in range(L):
        W, V, delta, R_delta = c.W[l], c.V[l], c.delta[l], c.R_delta[l]
        s = W.dtype.type(1 / math.sqrt(c.inputs[l] + 1))
        for r in range(c.n_active[l]):
            j = c.active[l, r]
            h = s * c.h[l, j]
            bend_h, bend_R = db2 * h, db2 * s * c.R_h[l, j]
            for i in range(c.inputs[l + 1]):
                bend = R_delta[i] * bend_h + delta[i] * bend_R
                W[j, i], V[j, i], bad = _moved(W[j, i], V[j, i], delta[i] * h, bend, da, narrowing)
                rejected += bad
    s = c.w.dtype.type(1 / math.sqrt(c.inputs[L] + 1))
    for j in range(c.inputs[L] + 1):
        bend = db2 * s * c.R_h[L, j]
        c.w[j], c.v[j], bad = _moved(c.w[j], c.v[j], s * c.h[L, j], bend, da, narrowing)
        rejected += bad
    return rejected


@njit(**_COMPILE)
def _move_factors(factors, index, n, c, da, db2, narrowing):
    rejected = 0
    for k in range(len(factors)):
        mean, var = factors[k]
        row = index[n, k]
        for e in range(mean.shape[1]):
            mean[row, e], var[row, e], bad = _moved(
                c.u[k, e], c.u_var[k, e], c.g[k, e], db2 * c.Hd[k, e], da, narrowing
            )
            rejected += bad
    return rejected


@njit(**_COMPILE)
def _evaluate(K, ranks, settings, c):
    """alpha and beta of the loaded entry, with every gradient left in the scratch."""
    f, p_out = _forward(settings.activation, c)
    beta = _backward(p_out, c)
    more_f, more_beta = _factor_gradients(K, ranks, settings.bias, settings.multilinear, c)
    return f + more_f, beta + more_beta


@njit(**_COMPILE)
def _learn(index, value, posterior, sites, counts, settings, ranks, prior_var, c, out):
    """All entries of a batch, in order; refines the prior sites whenever `refine_every` entries are full."""
    factors, weights, noise = posterior
    K, real = len(factors), c.w.dtype.type
    n_elements = 0
    for k in range(K):
        n_elements += factors[k].mean.shape[1]
    for m in range(len(weights)):
        n_elements += weights[m].mean.size
    _pack(weights, c)
    for n in range(index.shape[0]):
        _load(factors, counts.nodes, index, n, settings.bias, settings.multilinear, prior_var, c)
        alpha, beta = _evaluate(K, ranks, settings, c)
        noise_var = noise.rate[()] / noise.shape[()] if settings.likelihood == GAUSSIAN else 0.0
        log_z, da, db, narrowing = evidence(settings.likelihood, value[n], alpha, beta, noise_var)
        out[0, n], out[1, n], out[2, n], out[3, n] = alpha, beta, noise_var, log_z
        if abs(log_z) < 1e30 and abs(da) < 1e30 and 0 <= narrowing < 1e30:  # a NaN fails too
            counts.log_evidence[()] += log_z
            if settings.curvature:
                _curvature(K, ranks, settings.bias, settings.multilinear, c)
            db2 = real(2 * db if settings.curvature else 0.0)
            # c g² var <= c beta for every element, so c beta < 1 keeps all variances positive
            if settings.curvature or narrowing * beta > 0.999:
                counts.rejected[()] += _move(c, real(da), db2, real(narrowing))
            else:
                _narrow(c, real(da), real(narrowing))
            counts.rejected[()] += _move_factors(factors, index, n, c, real(da), db2, real(narrowing))
            if settings.likelihood == GAUSSIAN:
                noise.shape[()] = settings.forgetting * noise.shape[()] + 0.5
                noise.rate[()] = settings.forgetting * noise.rate[()] + 0.5 * ((value[n] - alpha) ** 2 + beta)
        else:
            counts.rejected[()] += n_elements
        counts.entries[()] += 1
        if counts.entries[()] % settings.refine_every == 0:
            _unpack(weights, c)
            for m in range(len(weights)):
                mean, var = weights[m]
                precision, precision_mean, log_odds = sites[m]
                counts.rejected[()] += refine_layer(
                    mean, var, precision, precision_mean, log_odds, settings.slab_var, settings.rho0
                )
            _pack(weights, c)
    _unpack(weights, c)


@njit(**_COMPILE)
def _predict(index, posterior, nodes, settings, ranks, prior_var, c, out):
    K = len(posterior.factors)
    _pack(posterior.weights, c)
    for n in range(index.shape[0]):
        _load(posterior.factors, nodes, index, n, settings.bias, settings.multilinear, prior_var, c)
        out[0, n], out[1, n] = _evaluate(K, ranks, settings, c)


def sequential(
    network: Network,
    likelihood: str,
    prior: Prior = Prior(),
    *,
    curvature: bool = False,
    noise_memory: float | None = 10_000,
    refine_every: int = 256,
) -> Method:
    """SPIDER as a Method.

    curvature:    differentiate log Z through beta as well (the paper); without it, cheaper and mostly better
    noise_memory: entries after which an error has faded from the noise by 1/e; None remembers all (the paper)
    refine_every: entries between two refinements of the prior, however the calls are cut
    """
    if refine_every < 1:
        raise ValueError(f"refine_every must be at least 1 entry, got {refine_every}")
    settings = _Settings(
        likelihood=likelihoods.code(likelihood),
        activation=ACTIVATIONS.index(network.activation),
        curvature=bool(curvature),
        slab_var=float(prior.slab_var),
        rho0=float(prior.rho0),
        forgetting=likelihoods.forgetting(noise_memory),
        refine_every=int(refine_every),
        bias=int(network.bias),
        multilinear=network.multilinear,
    )
    ranks = np.array(network.ranks, np.int64)
    # the prior variance of an element depends on its part, not on the mode: the longest vector serves all
    prior_var = posterior.factor_prior_var(network, prior, int(np.argmax(ranks)))

    def init(seed: int) -> State:
        return posterior.init(network, prior, seed)

    def update(state: State, batch: Batch) -> tuple[State, Update]:
        out = np.empty((4, len(batch.value)))
        if not len(batch.value):
            return state, Update(*out, rejected=0)
        state = posterior.grow(state, network, prior, batch.index.max(axis=0) + 1)
        before = int(state.counts.rejected)
        scratch = _scratch(network, state.posterior.weights[0].mean.dtype)
        _learn(
            batch.index, batch.value, state.posterior, state.sites, state.counts,
            settings, ranks, prior_var, scratch, out,
        )  # fmt: skip
        return state, Update(*out, rejected=int(state.counts.rejected) - before)

    def predict(state: State, index: NDArray[np.integer]) -> Prediction:
        index = np.ascontiguousarray(index, np.int64)
        out = np.empty((3, len(index)))
        scratch = _scratch(network, state.posterior.weights[0].mean.dtype)
        _predict(index, state.posterior, state.counts.nodes, settings, ranks, prior_var, scratch, out)
        out[2] = likelihoods.noise_var(likelihood, *state.posterior.noise)
        return Prediction(*out)

    return Method(init, update, predict)
