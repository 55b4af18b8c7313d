"""The passes over the network for one entry, in the order of mathematics.md section 3, with its letters.

K modes, L hidden layers. `h[m]` is the input of hidden layer m followed by the constant 1, `h[L]` that of the
output layer; `delta[m]` belongs to the outputs of hidden layer m; `s[m]` is 1/sqrt(inputs + 1). `R_` marks
the R-operator's directional derivatives (curvature). `mem` is the working memory (Scratch).

Where possible, whether a variance can turn negative is decided once per entry, not per element.
"""

from __future__ import annotations

import math

from spidertensor.spider.compiled import HOT, RARE, kernel
from spidertensor.spider.posterior import LEVEL_KNOTS, LEVEL_NOISE_VAR
from spidertensor.spider.robust import (
    KNOT_STEP,
    LARGEST_LEVEL_NOISE,
    LARGEST_LOG_NOISE,
    LARGEST_SQUARE,
    LARGEST_STEP,
    LEAST_SQUARE,
    LEVEL_MEMORY,
    LOWEST_KNOT,
    SQUARES_RUNNING,
)
from spidertensor.spider.sequential_memory import SINGLE, WHOLE, elements
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
    """h holds the pre-activations a and becomes act(a); slope and bend become act' and act''."""
    if kind == _RELU:
        for i in range(n):
            positive = h[i] > 0
            h[i] = h[i] if positive else 0
            slope[i] = 1 if positive else 0  # bend stays 0
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
    else:  # exact gelu: a Phi(a)
        for i in range(n):
            a = h[i]
            cdf = 0.5 * math.erfc(-a * math.sqrt(0.5))
            pdf = math.exp(-0.5 * a * a) / math.sqrt(2 * math.pi)
            h[i], slope[i], bend[i] = a * cdf, cdf + a * pdf, pdf * (2 - a * a)


@kernel(**HOT)
def _forward(settings, mem):
    """f of the deep part, and p of the output layer; p of the hidden layers is left in memory."""
    L = mem.W.shape[0]
    for m in range(L):
        h, h2, outputs, s = mem.h[m + 1], mem.h2[m + 1], settings.inputs[m + 1], mem.s[m]
        weighted_sums(
            mem.W[m], mem.h[m], h, s, mem.V[m], mem.h2[m], mem.p[m], s * s, mem.live[m], mem.wide[m]
        )
        _activate(settings.activation, outputs, h, mem.slope[m + 1], mem.bend[m + 1])
        h[outputs] = 1  # the padded sums overwrote it
        for i in range(outputs):
            h2[i] = h[i] * h[i]
        live_rows(h, mem.slope[m + 1], mem.live[m + 1])
    f, p = mem.s.dtype.type(0), mem.s.dtype.type(0)
    h, h2 = mem.h[L], mem.h2[L]
    for j in range(h.size):
        f += mem.w[j] * h[j]
        p += mem.v[j] * h2[j]
    return mem.s[L] * f, mem.s[L] * mem.s[L] * p


@kernel(**HOT)
def _backward(settings, mem):
    """delta of every layer and back[0] = df/dx; returns what the hidden weights add to beta."""
    L = mem.W.shape[0]
    beta, back = mem.s.dtype.type(0), mem.back[L]
    for j in range(back.size):
        back[j] = mem.w[j] * mem.s[L]
    for m in range(L - 1, -1, -1):
        delta, p, slope = mem.delta[m], mem.p[m], mem.slope[m + 1]
        for i in range(delta.size):  # slope, and so delta, is 0 beyond the last unit
            delta[i] = back[i] * slope[i]
            beta += delta[i] * delta[i] * p[i]
        back = mem.back[m]
        for j in range(back.size):
            back[j] = 0
        row_products(mem.W[m], delta, mem.live[m], mem.wide[m], mem.s[m], back)
    return beta


@kernel(**HOT)
def _factor_gradients(settings, mem):
    """g = df/du; returns what bias and multilinear add to f, and what all factors add to beta."""
    K, bias, deep = mem.u.shape[0], settings.bias, settings.bias + settings.multilinear
    f, beta, at = 0.0, 0.0, 0
    for k in range(K):
        if bias:
            f += mem.u[k, 0]
            mem.g[k, 0] = 1
        for e in range(settings.ranks[k]):
            mem.g[k, deep + e] = mem.back[0, at + e]
        at += settings.ranks[k]
    f += _products(settings, mem) if settings.product else _pairs(settings, mem)
    for k in range(K):
        for e in range(deep + settings.ranks[k]):
            beta += mem.g[k, e] * mem.g[k, e] * mem.u_var[k, e]
    return f, beta


@kernel(**HOT)
def _pairs(settings, mem):
    """Section 10: sum over pairs of modes k < l of m^k m^l; gradient: the sum over the other modes."""
    K, f = mem.u.shape[0], mem.s.dtype.type(0)
    for e in range(settings.bias, settings.bias + settings.multilinear):
        total = mem.s.dtype.type(0)
        for k in range(K):  # sums over the modes before k, then after it: no cancellation
            mem.g[k, e] = total
            f += total * mem.u[k, e]
            total += mem.u[k, e]
        total = mem.s.dtype.type(0)
        for k in range(K - 1, -1, -1):
            mem.g[k, e] += total
            total += mem.u[k, e]
    return f


@kernel(**HOT)
def _products(settings, mem):
    """Section 9: the product over all modes; gradient: the product over the other modes."""
    K, f = mem.u.shape[0], mem.s.dtype.type(0)
    for e in range(settings.bias, settings.bias + settings.multilinear):
        product = mem.s.dtype.type(1)
        for k in range(K):  # products over the modes before k, then after it
            mem.g[k, e] = product
            product *= mem.u[k, e]
        f += product
        product = mem.s.dtype.type(1)
        for k in range(K - 1, -1, -1):
            mem.g[k, e] *= product
            product *= mem.u[k, e]
    return f


@kernel(**HOT)
def evaluate(settings, mem):
    """alpha and beta of the loaded entry; every gradient is left in memory."""
    f, beta_out = _forward(settings, mem)
    beta_hidden = _backward(settings, mem)
    f_factors, beta_factors = _factor_gradients(settings, mem)
    return f + f_factors, beta_out + beta_hidden + beta_factors


@kernel(**HOT)
def curvature_pass(settings, mem):
    """H (var * g), half of dbeta/dmu: in Hd for the factors, by R_h and R_delta for the weights."""
    L, K = mem.W.shape[0], mem.u.shape[0]
    deep, at = settings.bias + settings.multilinear, 0
    for k in range(K):
        for e in range(settings.ranks[k]):
            mem.R_h[0, at + e] = mem.u_var[k, deep + e] * mem.g[k, deep + e]
        at += settings.ranks[k]
    for m in range(L):
        R_a, p, delta, R_h, slope = mem.R_a[m], mem.p[m], mem.delta[m], mem.R_h[m + 1], mem.slope[m + 1]
        weighted_sum(mem.W[m], mem.R_h[m], mem.live[m], mem.wide[m], mem.s[m], R_a)
        for i in range(R_a.size):
            R_a[i] += p[i] * delta[i]
            R_h[i] = slope[i] * R_a[i]
    # backward: R{delta} of the output is 0, and q of the output layer is v
    R_back, s = mem.R_back[L], mem.s[L]
    for j in range(settings.inputs[L]):
        R_back[j] = s * s * mem.v[j] * mem.h[L, j]
    for m in range(L - 1, -1, -1):
        R_delta, delta, s = mem.R_delta[m], mem.delta[m], mem.s[m]
        slope, bend, back, R_a = mem.slope[m + 1], mem.bend[m + 1], mem.back[m + 1], mem.R_a[m]
        for i in range(R_delta.size):
            R_delta[i] = R_back[i] * slope[i] + back[i] * bend[i] * R_a[i]
            mem.delta2[i] = delta[i] * delta[i]
        R_back = mem.R_back[m]
        for j in range(R_back.size):
            R_back[j] = 0
            mem.q[j] = 0
        row_products(mem.W[m], R_delta, mem.live[m], mem.wide[m], s, R_back)
        row_products(mem.V[m], mem.delta2, mem.live[m], mem.wide[m], s * s, mem.q)
        for j in range(settings.inputs[m]):
            R_back[j] += mem.q[j] * mem.h[m, j]
    _curvature_of_factors(settings, mem)


@kernel(**HOT)
def _curvature_of_factors(settings, mem):
    K, bias, deep = mem.u.shape[0], settings.bias, settings.bias + settings.multilinear
    at = 0
    for k in range(K):
        for e in range(deep):
            mem.Hd[k, e] = 0
        for e in range(settings.ranks[k]):
            mem.Hd[k, deep + e] = mem.R_back[0, at + e]
        at += settings.ranks[k]
        for other in range(K):
            if other != k:
                for e in range(bias, deep):
                    # d²f / du^k du^other: 1 for pairs; for a product, the product over the remaining modes
                    product = mem.u_var[other, e] * mem.g[other, e]
                    if settings.product:
                        for rest in range(K):
                            if rest != k and rest != other:
                                product *= mem.u[rest, e]
                    mem.Hd[k, e] += product


@kernel(**HOT)
def narrow_weights(mem, da, narrowing):
    """Update the weights where no variance can turn negative: mean += da var g, var -= c (var g)²."""
    L = mem.W.shape[0]
    for m in range(L):
        s = mem.s[m]
        narrow_rows(
            mem.W[m], mem.V[m], mem.h[m], mem.delta[m], mem.live[m], mem.wide[m], da * s, narrowing * s * s
        )
    h, s = mem.h[L], mem.s[L]
    for j in range(h.size):
        vg = mem.v[j] * (h[j] * s)
        mem.w[j] += da * vg
        mem.v[j] -= narrowing * (vg * vg)


@kernel(**HOT)
def bend_weights(settings, mem, da, db2, narrowing):
    """Update the weights with curvature (db2 = 2 db; 0 without) and a guard per element.

    Returns how many elements were rejected.
    """
    L, rejected = mem.W.shape[0], 0
    for m in range(L):
        s = mem.s[m]
        rejected += bend_rows(
            mem.W[m], mem.V[m], mem.h[m], mem.R_h[m], mem.delta[m], mem.R_delta[m], mem.live[m], mem.wide[m],
            da * s, db2 * s, narrowing * s * s,
        )  # fmt: skip
    s = mem.s[L]
    for j in range(settings.inputs[L] + 1):
        bend = db2 * s * mem.R_h[L, j]
        mem.w[j], mem.v[j], bad = _moved(mem.w[j], mem.v[j], s * mem.h[L, j], bend, da, narrowing)
        rejected += bad
    return rejected


@kernel(**HOT)
def move_factors(places, index, n, settings, mem, da, db2, narrowing):
    rejected = 0
    for k in range(len(settings.ranks)):
        mean, var = elements(places.factor_mean[k], mem.s), elements(places.factor_var[k], mem.s)
        size = settings.bias + settings.multilinear + settings.ranks[k]
        first = index[n, k] * size
        for e in range(size if first >= 0 else 0):  # a mode without ids has row -1
            mean[first + e], var[first + e], bad = _moved(
                mem.u[k, e], mem.u_var[k, e], mem.g[k, e], db2 * mem.Hd[k, e], da, narrowing
            )
            rejected += bad
    return rejected


@kernel(**RARE)
def move_bag(places, index, bags, n, settings, mem, da, db2, narrowing, widening):
    """Section 19: move_factors for an entry with attributes. Own ids are nodes of weight 1."""
    rejected, K = 0, len(settings.ranks)
    for k in range(K):
        if index[n, k] >= 0:
            rejected += _move_row(
                places, k, index[n, k], mem.s.dtype.type(1), settings, mem, da, db2, narrowing, widening
            )
    starts = elements(bags.start, WHOLE)
    for j in range(starts[n], starts[n + 1]):
        table, row = K + elements(bags.table, WHOLE)[j], elements(bags.row, WHOLE)[j]
        w = mem.s.dtype.type(elements(bags.weight, SINGLE)[j])
        rejected += _move_row(places, table, row, w, settings, mem, da, db2, narrowing, widening)
    return rejected


@kernel(**RARE)
def _move_row(places, table, row, w, settings, mem, da, db2, narrowing, widening):
    """m += da v (w g),  v -= c (v w g)²; with curvature Hd is w Hd. The variance is widened first."""
    k, scale = settings.table_modes[table], settings.table_scales[table]
    mean, var = elements(places.factor_mean[table], mem.s), elements(places.factor_var[table], mem.s)
    size = settings.bias + settings.multilinear + settings.ranks[k]
    first, rejected = row * size, 0
    for e in range(size):
        v = var[first + e]
        v = max(v, min(scale * settings.prior_var[e], v * widening))
        mean[first + e], var[first + e], bad = _moved(
            mean[first + e], v, w * mem.g[k, e], w * (db2 * mem.Hd[k, e]), da, narrowing
        )
        rejected += bad
    return rejected


@kernel(**RARE)
def n_elements(settings, index, bags, n):
    """Number of elements that entry n moves."""
    total, K = settings.n_elements, len(settings.ranks)
    for k in range(K):
        if index[n, k] < 0:
            total -= settings.bias + settings.multilinear + settings.ranks[k]
    if bags.start:
        starts = elements(bags.start, WHOLE)
        for j in range(starts[n], starts[n + 1]):
            k = settings.table_modes[K + elements(bags.table, WHOLE)[j]]
            total += settings.bias + settings.multilinear + settings.ranks[k]
    return total


@kernel(**HOT)
def _moved(mean, var, g, bend, da, c):
    """One element after the entry, and 0; unchanged, and 1, if its variance would not stay positive.

    bend = db dbeta/dmu, so dmu² - 2 dv = c g² + bend (2 da g + bend). This form avoids da² - 2 db, which
    cancels for an outlier.
    """
    dmu = da * g + bend
    new_var = var - var * var * (c * (g * g) + bend * (dmu + da * g))
    if new_var > 0:  # false for NaN
        return mean + var * dmu, new_var, 0
    return mean, var, 1


@kernel(**HOT)
def load_log_noise(places, nodes, index, n, settings, mem):
    """Section 12: load log_noise of the entry's nodes; returns their sum, the log of its noise factor."""
    total = 0.0
    for k in range(len(settings.ranks)):
        row = index[n, k]
        mem.log_noise[k], mem.log_noise_var[k] = 0, settings.log_noise_prior
        if 0 <= row < nodes[k]:
            mem.log_noise[k] = elements(places.log_noise_mean[k], mem.s)[row]
            mem.log_noise_var[k] = elements(places.log_noise_var[k], mem.s)[row]
        total += mem.log_noise[k]
    return total


@kernel(**HOT)
def level_place(alpha):
    """Section 23: the knot below a predicted mean, and how far it is from there to the next one."""
    place = min(max((alpha - LOWEST_KNOT) / KNOT_STEP, 0.0), LEVEL_KNOTS - 1.0)
    knot = min(int(place), LEVEL_KNOTS - 2)
    return knot, place - knot


@kernel(**HOT)
def log_noise_at(level_noise, alpha):
    """Section 23: the part of the log noise that depends on the predicted mean."""
    knot, t = level_place(alpha)
    return (1 - t) * level_noise[knot] + t * level_noise[knot + 1]


@kernel(**HOT)
def move_level_noise(level_noise, level_noise_var, alpha, square, kept, weight):
    """Section 23: as `move_log_noise`, for the two knots next to the predicted mean."""
    half = 0.5 * weight
    score, information = half * kept * (square - 1), half * kept * kept
    knot, t = level_place(alpha)
    for j in range(knot, knot + 2):
        w = t if j > knot else 1 - t
        if w > 0:
            v = min(LEVEL_NOISE_VAR, level_noise_var[j] * (1 + 1 / LEVEL_MEMORY))
            v = 1 / (1 / v + w * w * information)
            moved = level_noise[j] + v * w * score
            moved = min(max(moved, level_noise[j] - LARGEST_STEP), level_noise[j] + LARGEST_STEP)
            level_noise[j] = min(max(moved, -LARGEST_LEVEL_NOISE), LARGEST_LEVEL_NOISE)
            level_noise_var[j] = v


@kernel(**HOT)
def relative_square(squares, square, kept, weight):
    """Section 12: move the running mean of the squares, and return this one in units of it.

    square: the entry's squared residual in units of its predictive variance
    kept:   the noise's share of that variance, which is how much the square says about the noise
    weight: how often the entry counts
    """
    n, mean = min(squares[0] + weight, SQUARES_RUNNING), squares[1]
    square = min(square, LARGEST_SQUARE * mean)
    step = weight * kept * (square - mean) / max(n, weight)
    squares[0], squares[1] = n, max(mean + step, LEAST_SQUARE)
    return square / squares[1]


@kernel(**HOT)
def move_log_noise(places, index, n, settings, mem, square, kept, weight):
    """Section 12: update log_noise of the entry's nodes.

    square: `relative_square`
    kept:   the noise's share k of the predictive variance; the entry's information is k²/2
    weight: how often the entry counts. Counted once, it never reaches LARGEST_STEP
    """
    half = 0.5 * weight
    score, information = half * kept * (square - 1), half * kept * kept
    for k in range(len(settings.ranks)):
        row = index[n, k]
        if row < 0:  # a mode without ids
            continue
        v = mem.log_noise_var[k]
        v = max(v, min(settings.log_noise_prior, v * settings.log_noise_widening))
        v = 1 / (1 / v + information)
        moved = mem.log_noise[k] + v * score
        moved = min(max(moved, mem.log_noise[k] - LARGEST_STEP), mem.log_noise[k] + LARGEST_STEP)
        moved = min(max(moved, -LARGEST_LOG_NOISE), LARGEST_LOG_NOISE)
        elements(places.log_noise_mean[k], mem.s)[row] = moved
        elements(places.log_noise_var[k], mem.s)[row] = v
