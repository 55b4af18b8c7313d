"""Memory of the sequential engine: addresses of the state's arrays, and working memory for one call.

Hidden weights are packed before the first entry, transposed to (input, output) and padded: the inner loops
run over outputs at full SIMD width, and an input that is 0 with slope 0 (a dead ReLU unit) drops its whole
row from the forward, backward and update passes, because its gradient is exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numba.extending
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numpy.typing import NDArray

from spidertensor.spider.compiled import HOT, PART, RARE, kernel
from spidertensor.spider.posterior import State
from spidertensor.spider.sequential_simd import LANES

carray: Callable[..., Any] = getattr(numba, "carray")  # noqa: B009 (not declared as exported)
intrinsic: Callable[..., Any] = numba.extending.intrinsic  # untyped: callers do not pass typingctx

# dtypes for `elements`
WHOLE, SINGLE, DOUBLE = np.empty(1, np.int64), np.empty(1, np.float32), np.empty(1, np.float64)


LINE_BYTES = 64  # of a processor's cache


class Settings(NamedTuple):
    likelihood: int
    activation: int
    curvature: bool
    slab_var: float
    rho0: float
    forgetting: float
    paper_noise: bool
    refine_every: int
    normal: bool  # Likelihood.normal_noise
    has_level: bool  # all entries share a level of f
    clip: float  # largest residual that is learned, in predictive standard deviations; inf: no clipping
    follows: bool  # follow the level and scale of the values
    node_noise: bool
    widening: float  # factor by which an entry widens a variance, 1 + 1/memory; 1 without memory
    log_noise_prior: float  # prior variance of log_noise, rounded to float32
    log_noise_widening: float
    bias: int
    multilinear: int
    product: bool
    ranks: NDArray[np.int64]  # (K,)
    has_id: NDArray[np.int64]  # (K,) 0 for a mode whose entries have attributes only
    table_modes: NDArray[np.int64]  # (tables,) mode of each table: own ids of every mode, then attributes
    table_scales: NDArray[np.float32]  # (tables,) share of prior_var
    inputs: NDArray[np.int64]  # (L+1,) inputs of each layer, without the constant
    n_elements: int  # number of elements that one entry moves
    prior_var: NDArray[np.float32]  # prior variances of a factor vector's elements


class Places(NamedTuple):
    """Addresses of the arrays of a state, one for each mode or layer.

    Tuples of arrays would be a new type for every number of modes and layers, and each type takes many
    seconds to compile. The caller keeps the arrays alive while a kernel runs.
    """

    factor_mean: NDArray[np.int64]  # (tables,) of (rows, size) arrays
    factor_var: NDArray[np.int64]
    log_noise_mean: NDArray[np.int64]  # (K,) of (rows,) arrays, or (0,)
    log_noise_var: NDArray[np.int64]
    weight_mean: NDArray[np.int64]  # (L+1,) of (outputs, inputs + 1) arrays, the output layer last
    weight_var: NDArray[np.int64]
    site_precision: NDArray[np.int64]
    site_precision_mean: NDArray[np.int64]
    site_log_odds: NDArray[np.int64]


class BagPlaces(NamedTuple):
    """Addresses of the arrays of method.Bags and of the weights of the entries of a call; start is 0 if these
    have no attributes, and entry_weight if each counts once."""

    start: int
    table: int
    row: int
    weight: int
    entry_weight: int


def places(state: State, shapes: Sequence[tuple[int, ...]]) -> Places:
    """Addresses of a state's arrays. Checks their shapes and dtypes, because kernels do not.

    shapes: of the weights; then of one factor row per table, and () per mode if there is log_noise
    """
    factors, weights, _, log_noise = state.posterior
    parts = (*weights, *factors, *log_noise)
    found = [(*weight.mean.shape,) for weight in weights]
    found += [part.mean.shape[1:] for part in (*factors, *log_noise)]
    dtype = weights[0].mean.dtype
    arrays = [array for part in (*parts, *state.sites) for array in part]
    if found != list(shapes) or not all(a.flags.c_contiguous and a.dtype == dtype for a in arrays):
        raise ValueError("this state does not belong to this method: it was made with other settings")
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


@intrinsic
def prefetch(typingctx, address):
    """Tell the processor to load the cache line at an address that will be read soon."""

    def codegen(context, builder, signature, args):
        number, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        near_and_data = number(3), number(1)
        builder.call(function, [builder.inttoptr(args[0], pointer), number(0), *near_and_data])
        return context.get_dummy_value()

    return types.none(types.int64), codegen


class Scratch(NamedTuple):
    """Working memory of one call, `mem` in kernels. Letters: mathematics.md section 3.

    "·" is a multiple of 64 lanes with room for every layer's inputs.
    """

    wide: NDArray[np.int64]  # (L,) outputs of each hidden layer, padded
    s: NDArray[np.floating]  # (L+1,)
    W: NDArray[np.floating]  # (L, ·, padded outputs) means of the hidden weights
    V: NDArray[np.floating]  # their variances
    w: NDArray[np.floating]  # (·) means of the output layer
    v: NDArray[np.floating]
    h: NDArray[np.floating]  # (L+1, ·)
    h2: NDArray[np.floating]  # (L+1, ·) h²
    slope: NDArray[np.floating]  # (L+1, ·) act' at the pre-activations of h, row 0 unused
    bend: NDArray[np.floating]  # (L+1, ·) act''
    live: NDArray[np.int64]  # (L+1, words) bits of the inputs whose rows take part, including the constant
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
    """Words of 64 inputs that fit every layer; padded outputs of the widest layer; length of the longest
    factor vector; and the numbers in a Scratch in all.

    Packed weights take 2L matrices (words * 64, outputs) and the two vectors of the output layer.
    """
    # loops, because each array method takes half a second to compile
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
    """An array aligned to a cache line, as a vector load that straddles two lines costs twice: at `address`,
    a multiple of 64, or newly allocated and uninitialised if that is 0."""
    if address:
        return carray(elements(address, like), (size,))
    raw = np.empty(size + 16, like.dtype)
    skip = (-raw.ctypes.data % 64) // like.itemsize
    return raw[skip : skip + size]


@kernel(**PART)
def scratch(settings, address, is_packed, like):
    """Working memory of the dtype of the array `like`, at `address`, or newly allocated if that is 0.

    is_packed: the memory was used before with the same settings and holds the packed weights. It needs no
               initialisation: an entry does not depend on what an earlier one left behind
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
    mem = Scratch(
        wide=wide, s=s, W=matrices[:L], V=matrices[L:], w=ends[0], v=ends[1], h=vectors[0],
        h2=vectors[1], slope=vectors[2], bend=vectors[3], live=np.zeros((L + 1, words), np.int64),
        p=vectors[4], delta=vectors[5], back=vectors[6], R_h=vectors[7], R_a=vectors[8],
        R_delta=vectors[9], R_back=vectors[10], delta2=vectors[11, 0], q=vectors[11, L],
        u=parts[0], u_var=parts[1], g=parts[2], Hd=parts[3], log_noise=np.zeros(K), log_noise_var=np.zeros(K),
    )  # fmt: skip
    for j in range(inputs[0] + 1):  # factors are never dead
        mem.live[0, j // 64] |= np.int64(1) << (j % 64)
    if not is_packed:
        for m in range(L + 1):
            mem.s[m] = 1 / math.sqrt(inputs[m] + 1)
            mem.h[m, inputs[m]] = 1
            mem.h2[m, inputs[m]] = 1
    return mem


@kernel(**PART)
def pack(places, settings, mem):
    """Copy the weights from the state into working memory, and set the padding."""
    mem.w[:], mem.v[:] = 0, 0
    for m in range(len(settings.inputs) - 1):
        for j in range(settings.inputs[m] + 1):
            for i in range(settings.inputs[m + 1], mem.wide[m]):
                mem.W[m, j, i], mem.V[m, j, i] = (
                    0,
                    1,
                )  # positive like all variances, or the guard would count them
    for m in range(len(settings.inputs)):
        mean, var = elements(places.weight_mean[m], mem.s), elements(places.weight_var[m], mem.s)
        columns = settings.inputs[m] + 1
        if m == len(settings.inputs) - 1:
            for j in range(columns):
                mem.w[j], mem.v[j] = mean[j], var[j]
        else:
            for i in range(settings.inputs[m + 1]):
                for j in range(columns):
                    mem.W[m, j, i], mem.V[m, j, i] = mean[i * columns + j], var[i * columns + j]


@kernel(**PART)
def unpack(places, settings, mem, one_entry):
    """Copy the weights from working memory back into the state.

    one_entry: only the last entry has changed them, and not those of dead ReLU units
    """
    for m in range(len(settings.inputs)):
        mean, var = elements(places.weight_mean[m], mem.s), elements(places.weight_var[m], mem.s)
        columns = settings.inputs[m] + 1
        if m == len(settings.inputs) - 1:
            for j in range(columns):
                mean[j], var[j] = mem.w[j], mem.v[j]
        else:
            for i in range(settings.inputs[m + 1]):
                if one_entry and mem.delta[m, i] == 0 and mem.R_delta[m, i] == 0:
                    continue
                for j in range(columns):
                    mean[i * columns + j], var[i * columns + j] = mem.W[m, j, i], mem.V[m, j, i]


@kernel(**HOT)
def prefetch_rows(places, nodes, index, n, settings, mem):
    """Have the rows of entry n loaded while the entry before it is learned: in a large model they are not in
    the cache."""
    for k in range(len(settings.ranks)):
        size, row = settings.bias + settings.multilinear + settings.ranks[k], index[n, k]
        if 0 <= row < nodes[k]:
            first, last = row * size * mem.s.itemsize, (row + 1) * size * mem.s.itemsize
            for at in range(first, last, LINE_BYTES):
                prefetch(places.factor_mean[k] + at)
                prefetch(places.factor_var[k] + at)


@kernel(**HOT)
def load(places, nodes, index, n, settings, widening, mem):
    """Load the factor vectors of entry n into u, u_var; an unseen node has the prior.

    Section 13: var = max(var, min(prior var, var * widening)).
    """
    deep = settings.bias + settings.multilinear
    for k in range(len(settings.ranks)):
        size, row = deep + settings.ranks[k], index[n, k]
        if 0 <= row < nodes[k]:
            mean, var = elements(places.factor_mean[k], mem.s), elements(places.factor_var[k], mem.s)
            for e in range(size):
                mem.u[k, e] = mean[row * size + e]
                v = var[row * size + e]
                mem.u_var[k, e] = max(v, min(settings.prior_var[e], v * widening))
        else:
            for e in range(size):
                mem.u[k, e] = 0
                mem.u_var[k, e] = settings.prior_var[e] * settings.has_id[k]


@kernel(**RARE)
def add_bag(places, nodes, bags, n, settings, widening, mem):
    """Section 19: add the attribute nodes of entry n to u, u_var: mean += w_j m_j, var += w_j² v_j."""
    real, K = mem.s.dtype.type, len(settings.ranks)
    starts = elements(bags.start, WHOLE)
    for j in range(starts[n], starts[n + 1]):
        t, row = K + elements(bags.table, WHOLE)[j], elements(bags.row, WHOLE)[j]
        w, scale, k = (
            real(elements(bags.weight, SINGLE)[j]),
            settings.table_scales[t],
            settings.table_modes[t],
        )
        size = settings.bias + settings.multilinear + settings.ranks[k]
        if 0 <= row < nodes[t]:
            mean, var = elements(places.factor_mean[t], mem.s), elements(places.factor_var[t], mem.s)
            for e in range(size):
                mem.u[k, e] += w * mean[row * size + e]
                v = var[row * size + e]
                mem.u_var[k, e] += w * w * max(v, min(scale * settings.prior_var[e], v * widening))
        else:
            for e in range(size):
                mem.u_var[k, e] += w * w * (scale * settings.prior_var[e])


@kernel(**HOT)
def set_inputs(settings, mem):
    """The deep parts of u become h[0], the input of the network."""
    deep, at = settings.bias + settings.multilinear, 0
    for k in range(len(settings.ranks)):
        for e in range(deep, deep + settings.ranks[k]):
            mem.h[0, at] = mem.u[k, e]
            mem.h2[0, at] = mem.u[k, e] * mem.u[k, e]
            at += 1
