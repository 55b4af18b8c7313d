"""Where the numbers of one call lie: the arrays of the state, and working memory for the sequential engine.

Hidden weights are packed before the first entry, transposed to (input, output) and padded: the inner loops
run over outputs at full SIMD width, and an input that is 0 with slope 0 (a dead ReLU unit) drops its whole
row from the forward, backward and update pass alike, because its gradient is exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numba.extending
import numpy as np
from numba.core import types
from numpy.typing import NDArray

from spidertensor.spider.compiled import HOT, PART, kernel
from spidertensor.spider.posterior import State
from spidertensor.spider.sequential_simd import LANES

carray: Callable[..., Any] = getattr(numba, "carray")  # noqa: B009 (not declared as exported)
intrinsic: Callable[..., Any] = numba.extending.intrinsic  # untyped: callers do not pass typingctx


class Settings(NamedTuple):
    likelihood: int
    activation: int
    curvature: bool
    slab_var: float
    rho0: float
    forgetting: float
    paper_noise: bool
    refine_every: int
    normal: bool  # values are f plus normal noise
    has_level: bool  # of f, that all entries share
    clip: float  # largest residual that is learned from, in predictive standard deviations; inf without
    follows: bool  # the level and the scale of the values
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


def places(state: State, shapes: Sequence[tuple[int, ...]]) -> Places:
    """Where the arrays of a state are. Kernels do not check what they are given, so it is checked here.

    shapes: of the weights; then of a row of the factors of each mode, and () for each mode's log_noise if
            there is any
    """
    factors, weights, _, log_noise = state.posterior
    parts = (*weights, *factors, *log_noise)
    found = [(*weight.mean.shape,) for weight in weights]
    found += [part.mean.shape[1:] for part in (*factors, *log_noise)]
    dtype = weights[0].mean.dtype
    arrays = [array for part in (*parts, *state.sites) for array in part]
    if found != list(shapes) or not all(a.flags.c_contiguous and a.dtype == dtype for a in arrays):
        raise ValueError("this state is not one of this method: it was made with other settings")
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
def sizes(inputs, ranks, deep_start):
    """Words of 64 inputs that every layer has room for; the outputs of the widest layer, padded; the longest
    factor vector; and how many numbers a Scratch takes in all.

    Packed weights take 2L matrices (words * 64, outputs) and the two vectors of the output layer.
    """
    # loops, because the methods of arrays take half a second each to compile
    outputs, most, rank = np.int64(0), np.int64(0), np.int64(0)  # a literal is a type of its own
    K, layers = len(ranks), len(inputs)
    for m in range(layers):
        most = max(most, inputs[m])
        if m:
            outputs = max(outputs, -(-inputs[m] // LANES) * LANES)
    for k in range(K):
        rank = max(rank, ranks[k])
    words, size = most // 64 + 1, deep_start + rank  # + 1: room for the constant
    weights = 2 * words * 64 * (1 + (layers - 1) * outputs)
    rest = 12 * layers * words * 64 + 4 * K * size + layers
    return words, outputs, size, weights + rest


@kernel(**PART)
def _memory(size, address, like):
    """An array that starts on a cache line: a vector load that straddles two lines costs twice. At an address
    that is a multiple of 64, or fresh and with anything in it if that is 0."""
    if address:
        return carray(elements(address, like), (size,))
    raw = np.empty(size + 16, like.dtype)
    skip = (-raw.ctypes.data % 64) // like.itemsize
    return raw[skip : skip + size]


@kernel(**PART)
def scratch(settings, address, is_packed, like):
    """Working memory of the dtype of the array `like`: at an address, or fresh if that is 0.

    is_packed: it was used before with the same settings, and has the packed weights. Then nothing has to be
               set: an entry does not depend on what an earlier one has left behind
    """
    inputs, K, L = settings.inputs, len(settings.ranks), len(settings.inputs) - 1
    words, outputs, size, total = sizes(inputs, settings.ranks, settings.bias + settings.multilinear)
    memory = _memory(total, address, like)
    if not is_packed:
        memory[:] = 0
    n, vector = 2 * L * words * 64 * outputs, words * 64
    matrices = memory[:n].reshape(2 * L, vector, outputs)
    ends = memory[n : n + 2 * vector].reshape(2, vector)
    n += 2 * vector
    vectors = memory[n : n + 12 * (L + 1) * vector].reshape(12, L + 1, vector)
    n += 12 * (L + 1) * vector
    parts, s = memory[n : n + 4 * K * size].reshape(4, K, size), memory[n + 4 * K * size :]
    wide = np.empty(L, np.int64)
    for m in range(L):
        wide[m] = -(-inputs[m + 1] // LANES) * LANES
    c = Scratch(
        wide=wide, s=s, W=matrices[:L], V=matrices[L:], w=ends[0], v=ends[1], h=vectors[0],
        h2=vectors[1], slope=vectors[2], bend=vectors[3], live=np.zeros((L + 1, words), np.int64),
        p=vectors[4], delta=vectors[5], back=vectors[6], R_h=vectors[7], R_a=vectors[8],
        R_delta=vectors[9], R_back=vectors[10], delta2=vectors[11, 0], q=vectors[11, L],
        u=parts[0], u_var=parts[1], g=parts[2], Hd=parts[3], log_noise=np.zeros(K), log_noise_var=np.zeros(K),
    )  # fmt: skip
    for j in range(inputs[0] + 1):  # factors are never dead
        c.live[0, j // 64] |= np.int64(1) << (j % 64)
    if not is_packed:
        for m in range(L + 1):
            c.s[m] = 1 / math.sqrt(inputs[m] + 1)
            c.h[m, inputs[m]] = 1
            c.h2[m, inputs[m]] = 1
    return c


@kernel(**PART)
def pack(places, settings, c):
    """Weights from the state into the scratch, and the padding around them."""
    c.w[:], c.v[:] = 0, 0
    for m in range(len(settings.inputs) - 1):
        for j in range(settings.inputs[m] + 1):
            for i in range(settings.inputs[m + 1], c.wide[m]):
                c.W[m, j, i], c.V[m, j, i] = (
                    0,
                    1,
                )  # positive like all variances, or the guard would count them
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
def unpack(places, settings, c, one_entry):
    """Weights from the scratch back into the state.

    one_entry: they differ by the last entry only, which has not moved the weights of dead ReLU units
    """
    for m in range(len(settings.inputs)):
        mean, var = elements(places.weight_mean[m], c.s), elements(places.weight_var[m], c.s)
        columns = settings.inputs[m] + 1
        if m == len(settings.inputs) - 1:
            for j in range(columns):
                mean[j], var[j] = c.w[j], c.v[j]
        else:
            for i in range(settings.inputs[m + 1]):
                if one_entry and c.delta[m, i] == 0 and c.R_delta[m, i] == 0:
                    continue
                for j in range(columns):
                    mean[i * columns + j], var[i * columns + j] = c.W[m, j, i], c.V[m, j, i]


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
