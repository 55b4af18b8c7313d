"""The oracle: mathematics.md sections 3 to 5, 9 to 15, 17, 19, 20, 26 and 27 in plain float64 NumPy.

A line per formula. Slow on purpose, and it knows nothing of the package. A model is a dict

    ranks, bias, multilinear, activation     what f is
    product                                  the multilinear part: a product over all modes, not pairs of them
    likelihood, curvature                    how an entry is learned
    noise_memory                             None: the noise never forgets
    clip, node_noise, memory                 sections 11 to 13; None, False, None: without
    slab_var, rho0, refine_every             the prior of the weights
    prior_var                                {"bias", "multilinear", "deep"}: of the factors of an unseen node
    tables, without_id                       section 19: [(mode, scale of prior_var), ...] of attributes;
                                             modes without ids, whose row is -1

and a state is a dict

    factors   [[mean, var], ...]  one per mode, then one per table: (nodes, length of a factor vector)
    weights   [[mean, var], ...]  one per layer, (V_m, V_{m-1} + 1)
    sites     [{"precision", "precision_mean", "log_odds"}, ...]  one per layer
    a, b      of the noise
    log_noise [[mean, var], ...]  one per mode, (nodes,)
    squares   {"n", "mean"}     of residuals in units of their noise, a running mean
    level_noise [mean, var]       of the nine knots
    shift, scale                  the model sees (value - shift) / scale
    values    {"n", "mean", "var"}  running moments of the values, as the model sees them; of counts, mean and
                                    variance of the level
    levels    {level: times seen + 1} of ordinal values
    window    entries since the last window ended, [(y, f, z2), ...];  watching
    fresh     the state before any entry, with rows for all nodes
    entries, rejected, refused, clipped, log_evidence, followed

The parameters of an entry are {"weights": [W_1, ..., W_M], "factors": [u^1, ..., u^K]}; gradients, variances
and directions have the same shape.
"""

from __future__ import annotations

import copy
import math
from itertools import combinations, pairwise

import numpy as np
from scipy.integrate import quad_vec
from scipy.special import erfcx, expit, gammaln, log_ndtr, logit, ndtr, ndtri, psi
from scipy.stats import norm

# --- activations: act, act', act'' ----------------------------------------------------------------


def act(kind, a):
    return {
        "relu": lambda: np.maximum(a, 0),
        "tanh": lambda: np.tanh(a),
        "sigmoid": lambda: expit(a),
        "softplus": lambda: np.logaddexp(0, a),
        "gelu": lambda: a * ndtr(a),
    }[kind]()


def act1(kind, a):
    return {
        "relu": lambda: np.where(a > 0, 1.0, 0.0),
        "tanh": lambda: 1 - np.tanh(a) ** 2,
        "sigmoid": lambda: expit(a) * (1 - expit(a)),
        "softplus": lambda: expit(a),
        "gelu": lambda: ndtr(a) + a * norm.pdf(a),
    }[kind]()


def act2(kind, a):
    return {
        "relu": lambda: np.zeros_like(a),
        "tanh": lambda: -2 * np.tanh(a) * (1 - np.tanh(a) ** 2),
        "sigmoid": lambda: expit(a) * (1 - expit(a)) * (1 - 2 * expit(a)),
        "softplus": lambda: expit(a) * (1 - expit(a)),
        "gelu": lambda: norm.pdf(a) * (2 - a**2),
    }[kind]()


# --- section 1 and 9: f, and its gradient ---------------------------------------------------------


def split(model, u):
    """A factor vector is [bias | multilinear | deep]."""
    start = int(model["bias"])
    stop = start + model["multilinear"]
    return u[:start], u[start:stop], u[stop:]


def join(model, biases, multilinears, x):
    """The inverse of `split` over all modes; x is the concatenation of the deep parts."""
    deeps = np.split(x, np.cumsum(model["ranks"])[:-1])
    return [np.concatenate(parts) for parts in zip(biases, multilinears, deeps, strict=True)]


def forward(model, params):
    """x = [deep parts]; h_0 = x, a_m = W_m [h_{m-1}; 1] / sqrt(V_{m-1} + 1), h_m = act(a_m); f = a_M."""
    x = np.concatenate([split(model, u)[2] for u in params["factors"]])
    h, a, s = [x], [None], [None]  # counted from 0, 1 and 1 as in mathematics.md
    for W in params["weights"]:
        s.append(1 / np.sqrt(len(h[-1]) + 1))
        a.append(W @ np.append(h[-1], 1) * s[-1])
        h.append(act(model["activation"], a[-1]))
    return h, a, s


def f(model, params):
    """f = sum_k bias^k + sum_c sum_{k<l} m^k_c m^l_c + network(deep parts), or prod_k m^k_c in the middle"""
    biases, multilinears, _ = zip(*[split(model, u) for u in params["factors"]], strict=True)
    _, a, _ = forward(model, params)
    middle = sum((np.sum(m * n) for m, n in combinations(multilinears, 2)), 0.0)
    if model["product"]:
        middle = np.sum(np.prod(multilinears, axis=0))
    return np.sum(biases) + middle + a[-1][0]


def backward(model, params):
    """delta_M = 1, delta_{m-1} = (W_m[:, :-1]^T delta_m) s_m * act'(a_{m-1})"""
    _, a, s = forward(model, params)
    W = [None, *params["weights"]]
    M = len(params["weights"])
    delta = [None] * (M + 1)
    delta[M] = np.ones(1)
    for m in range(M, 1, -1):
        delta[m - 1] = (W[m][:, :-1].T @ delta[m]) * s[m] * act1(model["activation"], a[m - 1])
    return delta


def gradient(model, params):
    """df/dW_m[i,j] = delta_m[i] h_{m-1}[j] s_m,  g_x = W_1[:, :-1]^T delta_1 s_1,
    df/dbias = 1,  df/dm^k_c = sum of m^l_c over the other modes (of a product: their product)"""
    h, _, s = forward(model, params)
    delta = backward(model, params)
    weights = [
        np.outer(delta[m], np.append(h[m - 1], 1)) * s[m] for m in range(1, len(params["weights"]) + 1)
    ]
    g_x = params["weights"][0][:, :-1].T @ delta[1] * s[1]
    biases, multilinears, _ = zip(*[split(model, u) for u in params["factors"]], strict=True)
    g_bias = [np.ones_like(bias) for bias in biases]
    combined = np.prod if model["product"] else np.sum
    g_multilinear = [
        combined(np.delete(np.array(multilinears), k, axis=0), axis=0) for k in range(len(multilinears))
    ]
    return {"weights": weights, "factors": join(model, g_bias, g_multilinear, g_x)}


def pairs(*trees):
    """The arrays of several parameter trees side by side."""
    for part in ("weights", "factors"):
        yield from zip(*(tree[part] for tree in trees), strict=True)


def beta(model, params, var):
    """beta = sum_params g^2 var"""
    return sum(np.sum(g**2 * v) for g, v in pairs(gradient(model, params), var))


# --- section 3: the curvature term ----------------------------------------------------------------


def hessian_times_var_g(model, params, var):
    """H (var * g): the R-operator as mathematics.md writes it, for the network and for the hybrid parts."""
    h, a, s = forward(model, params)
    delta, g = backward(model, params), gradient(model, params)
    W, V = [None, *params["weights"]], [None, *var["weights"]]
    kind, M = model["activation"], len(params["weights"])
    one = lambda v: np.append(v, 1)  # noqa: E731

    p = [None] + [V[m] @ one(h[m - 1]) ** 2 for m in range(1, M + 1)]  # p_m[i] = sum_j V_m[i,j] h_{m-1}[j]^2
    q = [None] + [V[m].T @ delta[m] ** 2 for m in range(1, M + 1)]  # q_m[j] = sum_i V_m[i,j] delta_m[i]^2

    # R{x} = var_x g_x,  R{a_m} = s_m W_m[:, :-1] R{h_{m-1}} + s_m^2 p_m * delta_m,  R{h_m} = act'(a_m) R{a_m}
    direction = [v * gu for v, gu in zip(var["factors"], g["factors"], strict=True)]
    R_h = [np.concatenate([split(model, d)[2] for d in direction])]
    R_a = [None]
    for m in range(1, M + 1):
        R_a.append(s[m] * W[m][:, :-1] @ R_h[m - 1] + s[m] ** 2 * p[m] * delta[m])
        R_h.append(act1(kind, a[m]) * R_a[m])

    # R{delta_{m-1}} = (s_m W_m[:, :-1]^T R{delta_m} + s_m^2 q_m * h_{m-1}) act'(a_{m-1})
    #                  + (s_m W_m[:, :-1]^T delta_m) act''(a_{m-1}) R{a_{m-1}},   R{delta_M} = 0
    R_delta = [None] * M + [np.zeros(1)]
    for m in range(M, 1, -1):
        R_delta[m - 1] = (s[m] * W[m][:, :-1].T @ R_delta[m] + s[m] ** 2 * q[m][:-1] * h[m - 1]) * act1(
            kind, a[m - 1]
        ) + (s[m] * W[m][:, :-1].T @ delta[m]) * act2(kind, a[m - 1]) * R_a[m - 1]

    # H d for W_m[i,j] = s_m (R{delta_m}[i] h_{m-1}[j] + delta_m[i] R{h_{m-1}}[j]); the constant does not move
    Hd_weights = [
        s[m] * (np.outer(R_delta[m], one(h[m - 1])) + np.outer(delta[m], np.append(R_h[m - 1], 0)))
        for m in range(1, M + 1)
    ]
    # H d for x = s_1 W_1^T R{delta_1} + s_1^2 q_1 * x
    Hd_x = s[1] * W[1][:, :-1].T @ R_delta[1] + s[1] ** 2 * q[1][:-1] * h[0]

    # Hybrid: bias is linear; d²f / dm^k_c dm^l_c = 1, or the product over the modes other than k and l
    K = len(params["factors"])
    m_parts = [split(model, u)[1] for u in params["factors"]]
    d_parts = [split(model, d)[1] for d in direction]
    Hd_bias = [np.zeros(int(model["bias"])) for _ in range(K)]
    Hd_multilinear = []
    for k in range(K):
        total = np.zeros(model["multilinear"])
        for other in set(range(K)) - {k}:
            rest = np.ones(model["multilinear"])
            for third in set(range(K)) - {k, other} if model["product"] else ():
                rest = rest * m_parts[third]
            total = total + rest * d_parts[other]
        Hd_multilinear.append(total)
    return {"weights": Hd_weights, "factors": join(model, Hd_bias, Hd_multilinear, Hd_x)}


# --- section 3: evidence and its derivatives ------------------------------------------------------


def evidence(model, y, alpha, beta, noise, weight=1):
    """log Z, dlogZ/dalpha, dlogZ/dbeta; with a weight those of p(y | f)^weight"""
    if model["likelihood"] == "gaussian":
        noise = noise / weight
        s, r = beta + noise, y - alpha
        log_z = -np.log(2 * np.pi * s) / 2 - r**2 / (2 * s)
        return log_z, r / s, -1 / (2 * s) + r**2 / (2 * s**2)
    if model["likelihood"] == "count" or weight != 1:
        log_z, mean, var, _ = tilted(model, y, alpha, beta, noise, weight)
        da = (mean - alpha) / beta
        return log_z, da, (da**2 - (beta - var) / beta**2) / 2
    if model["likelihood"] == "ordinal":
        log_z, mean, var = truncated(y, alpha, np.sqrt(beta + noise))
        da = (mean - alpha) / (beta + noise)
        return log_z, da, (da**2 - (beta + noise - var) / (beta + noise) ** 2) / 2
    z = 2 * y - 1
    t = z * alpha / np.sqrt(1 + beta)
    R = np.sqrt(2 / np.pi) / erfcx(-t / np.sqrt(2))  # phi(t) / Phi(t)
    return log_ndtr(t), z * R / np.sqrt(1 + beta), -R * t / (2 * (1 + beta))


def truncated(cuts, mean, sd):
    """Section 26: log chance, mean and variance of N(mean, sd²) between two cut points"""
    low, high = (np.array(cuts) - mean) / sd
    sign = 1 if low + high <= 0 else -1  # the left tail has digits
    low, high = (low, high) if sign > 0 else (-high, -low)
    log_chance = log_ndtr(high) + np.log1p(-np.exp(log_ndtr(low) - log_ndtr(high)))
    ends = [(-1, low), (1, high)] if np.isfinite([low, high]).all() else [(1, high)]
    first, second = (
        sum(side * at**power * np.exp(norm.logpdf(at) - log_chance) for side, at in ends) for power in (0, 1)
    )
    return log_chance, mean - sign * sd * first, sd**2 * (1 - second - first**2)


def cut_points(state, value):
    """Section 26: those around a level, from how often each level was seen, plus 1"""
    levels, times = zip(*sorted(state["levels"].items()), strict=True)
    below, above = sum(times[: levels.index(value)]), sum(times[levels.index(value) + 1 :])
    total = sum(times)
    return ndtri(below / total), -ndtri(above / total)


def count_density(y, f, noise):
    """Section 17: log p(y | f), and its derivative by log noise"""
    r, mu = 1 / noise, np.exp(f)
    log_gammas = gammaln(y + r) - gammaln(r) - gammaln(y + 1)
    d_r = psi(y + r) - psi(r) + np.log(r / (r + mu)) + (mu - y) / (r + mu)
    return log_gammas + r * np.log(r / (r + mu)) + y * np.log(mu / (r + mu)), -r * d_r


def tilted(model, y, alpha, beta, noise, weight=1):
    """Section 17, by p(y | f)^weight N(f | alpha, beta): log Z, mean and var of f, E[dlog p / dlog noise]"""

    def integrand(f):
        count = model["likelihood"] == "count"
        log_p, slope = count_density(y, f, noise) if count else (log_ndtr((2 * y - 1) * f), 0.0)
        p = np.exp(weight * log_p - (f - alpha) ** 2 / (2 * beta)) / np.sqrt(2 * np.pi * beta)
        return p * np.array([1, f, f**2, slope])

    sd = np.sqrt(beta)
    Z, first, second, score = quad_vec(integrand, alpha - 14 * sd, alpha + 14 * sd, epsabs=0, epsrel=1e-11)[0]
    return np.log(Z), first / Z, second / Z - (first / Z) ** 2, score / Z


def log_z(model, params, var, y, noise):
    """log Z of one entry as a function of all means and variances: what the update differentiates."""
    return evidence(model, y, f(model, params), beta(model, params, var), noise)[0]


def far_below(model, y, alpha, level):
    """Section 17: a zero whose f is far below the level, learned as if f = level - 8 had been seen"""
    return model["likelihood"] == "count" and y == 0 and alpha < level[0] - 8


def dlog_z(model, params, var, y, noise, level=(0, 0), weight=1):
    """dlogZ/dmu = da * g + db * dbeta/dmu with dbeta/dmu = 2 H (var * g),  dlogZ/dv = db * g^2"""
    g = gradient(model, params)
    alpha, beta_ = f(model, params) + level[0], beta(model, params, var) + level[1]
    _, da, db = evidence(model, y, alpha, beta_, noise, weight)
    if far_below(model, y, alpha, level):
        _, da, db = evidence(model | {"likelihood": "gaussian"}, level[0] - 8, alpha, beta_, 1.0, weight)
    Hd = hessian_times_var_g(model, params, var)
    through_beta = 1 if model["curvature"] else 0  # curvature=False: drop dbeta/dmu
    dmu = {part: [] for part in ("weights", "factors")}
    dv = {part: [] for part in ("weights", "factors")}
    for part in ("weights", "factors"):
        for g_, Hd_ in zip(g[part], Hd[part], strict=True):
            dmu[part].append(da * g_ + through_beta * db * 2 * Hd_)
            dv[part].append(db * g_**2)
    return dmu, dv


# --- section 3: one entry -------------------------------------------------------------------------


def nodes_of(model, index, bag):
    """[(mode, table, row, weight, scale), ...]: the own ids, then the bag, [(table, row, weight), ...]"""
    K = len(model["ranks"])
    own = [(k, k, row, 1.0, 1.0) for k, row in enumerate(index) if k not in model["without_id"]]
    tables = model["tables"]
    return own + [(tables[t][0], K + t, row, w, tables[t][1]) for t, row, w in bag]


def at(model, state, index, bag, counts, memory=None):
    """The entry's means and variances. Section 19: x^k = sum_j w_j u_j, so its variance is sum_j w_j² v_j"""
    params = {"weights": [mean for mean, _ in state["weights"]], "factors": []}
    var = {"weights": [v for _, v in state["weights"]], "factors": []}
    for k in range(len(model["ranks"])):
        x, x_var = np.zeros(len(factor_prior_var(model, k))), np.zeros(len(factor_prior_var(model, k)))
        for _, table, row, w, scale in (node for node in nodes_of(model, index, bag) if node[0] == k):
            prior_var, (mean, v) = scale * factor_prior_var(model, k), state["factors"][table]
            seen = 0 <= row < counts[table]  # an unseen node has the prior
            x = x + w * (mean[row] if seen else 0)
            x_var = x_var + w**2 * (widened(v[row], prior_var, memory) if seen else prior_var)
        params["factors"].append(x)
        var["factors"].append(x_var)
    return params, var


def log_noise_var(model):
    """h0, the prior variance of a node's log noise; its prior mean is 0"""
    return np.float64(np.float32(0.1 if len(model["ranks"]) < 3 else 0.3 / len(model["ranks"])))


def log_noise_of(state, index, nodes):
    """l^k of the entry's nodes; 0 of an unseen one"""
    places = zip(state["log_noise"], index, nodes, strict=False)
    return [mean[row] if 0 <= row < n else 0.0 for (mean, _), row, n in places]


def noise_var(model, state, index, nodes):
    """b/a exp(sum_k l^k), at least 1e-6 of the running variance of the values"""
    if model["likelihood"] == "probit":
        return 0.0
    noise = state["b"] / state["a"]
    if model["likelihood"] == "count":
        return np.clip(noise, 1e-4, 1e2)
    if model["node_noise"]:
        noise = noise * np.exp(sum(log_noise_of(state, index, nodes)))
    return (
        noise
        if model["clip"] is None or model["likelihood"] == "ordinal"
        else max(noise, 1e-6 * state["values"]["var"])
    )


def hats(alpha):
    """Section 23: {knot: weight}: nine knots from -3 to 3, and alpha between two of them"""
    place = np.clip((alpha + 3) / 0.75, 0, 8)
    return {j: 1 - abs(place - j) for j in range(9) if abs(place - j) < 1}


def level_factor(model, state, alpha):
    """Section 23: the factor of the noise for values of this level; 1 without node_noise"""
    if not model["node_noise"] or model["likelihood"] not in ("gaussian", "ordinal"):
        return 1.0
    return np.exp(sum(w * state["level_noise"][0][j] for j, w in hats(alpha).items()))


def reported_noise(model, state, noise, alpha):
    """The noise that is reported and learned from; `noise` is that of the step of the mean"""
    reported = noise * level_factor(model, state, alpha)
    robust = model["likelihood"] == "gaussian" and model["clip"] is not None
    return max(reported, 1e-6 * state["values"]["var"]) if robust else reported


def widened(var, prior_var, memory):
    """Section 13: var = max(var, min(prior var, var (1 + 1/M)))"""
    return var if memory is None else np.maximum(var, np.minimum(prior_var, var * (1 + 1 / memory)))


def factor_prior_var(model, k):
    return np.repeat(
        [model["prior_var"][part] for part in ("bias", "multilinear", "deep")],
        [int(model["bias"]), model["multilinear"], model["ranks"][k]],
    )


def learn_entry(model, state, index, value, bag=(), weight=1):
    """Changes the state; returns mean, var, noise, log evidence from before, in the units of the value.

    weight: section 27: as many observations of the value"""
    shift, scale = state["shift"], state["scale"]
    nodes = [len(mean) for mean, _ in state["factors"]]
    params, var = at(model, state, index, bag, nodes, model["memory"])
    y = (value - shift) / scale
    alpha, beta_, noise = f(model, params), beta(model, params, var), noise_var(model, state, index, nodes)
    level = (0, 0)
    if model["likelihood"] == "count":
        level = state["values"]["mean"], state["values"]["var"]
        alpha, beta_ = alpha + level[0], beta_ + level[1]
    reported = reported_noise(model, state, noise, alpha)
    if model["likelihood"] == "ordinal":
        y, noise = cut_points(state, value), reported
        state["levels"][value] += 1
    with np.errstate(invalid="ignore", over="ignore"):
        log_z_, da, db = evidence(model, y, alpha, beta_, reported)
    out = shift + scale * alpha, scale**2 * beta_, scale**2 * reported, log_z_ - np.log(scale)
    if not np.isfinite([log_z_, da, db]).all():
        state["refused"] += 1
        state["rejected"] += sum(np.size(v) for v in var["weights"])
        state["rejected"] += sum(len(var["factors"][k]) for k, *_ in nodes_of(model, index, bag))
        return out

    # Section 11: everything but log Z with the clipped residual
    robust = model["clip"] is not None and model["likelihood"] == "gaussian"
    bound = model["clip"] * np.sqrt(beta_ + noise) if robust else np.inf
    y_c = alpha + np.clip(y - alpha, -bound, bound) if robust and abs(y - alpha) > bound else y

    if model["likelihood"] == "count" and model["clip"] is not None:
        M = np.exp(alpha + min(beta_, 4) / 2)
        y_c = min(y, (M + 1) * np.exp(model["clip"] * np.sqrt(beta_ + noise + 1 / (M + 1))))
        state["clipped"] += y_c < y

    state["log_evidence"] += out[3]
    if robust:
        note_value(state, y, y_c != y, alpha, beta_ + reported, model["clip"])
    if state["watching"]:
        return out  # looked at, not learned

    dmu, dv = dlog_z(model, params, var, y_c, noise, level, weight)
    for (mean, v), dmu_, dv_ in zip(state["weights"], dmu["weights"], dv["weights"], strict=True):
        move(state, mean, v, dmu_, dv_)
    for k, table, row, w, scale_ in nodes_of(model, index, bag):  # dx/dm_j = w_j, dx_var/dv_j = w_j²
        mean, v = (part[row] for part in state["factors"][table])
        v[...] = widened(v, scale_ * factor_prior_var(model, k), model["memory"])
        move(state, mean, v, w * dmu["factors"][k], w**2 * dv["factors"][k])

    if model["likelihood"] == "gaussian":
        y_noise = y_c if robust and abs(y) >= 20 else y
        learn_noise(model, state, index, nodes, y_noise, alpha, beta_, reported, weight)
    if model["likelihood"] == "count":
        learn_level_and_dispersion(model, state, y_c, alpha, beta_, noise, weight)
    if model["likelihood"] == "ordinal":
        _, mean, var = truncated(y, alpha, np.sqrt(beta_ + reported))
        off = np.sqrt((mean - alpha) ** 2 + var)  # as far as z = f + noise is from alpha, given its level
        learn_noise(model, state, index, nodes, alpha + off, alpha, beta_, reported, weight)
    return out


def move(state, mean, v, dmu_, dv_):
    """Moves views of the state's arrays, in place."""
    new_mean = mean + v * dmu_
    new_var = v - v**2 * (dmu_**2 - 2 * dv_)
    good = (new_var > 0) & np.isfinite(new_mean)
    state["rejected"] += np.count_nonzero(~good)
    mean[...] = np.where(good, new_mean, mean)
    v[...] = np.where(good, new_var, v)


def learn_level_and_dispersion(model, state, y, alpha, beta_, noise, weight):
    """Section 17: one more element of gradient 1; log noise ~ N(log(b / a), 1 / a)"""
    values = state["values"]
    _, da, db = evidence(model, y, alpha, beta_, noise, weight)
    score = tilted(model, y, alpha, beta_, noise, weight)[3]
    mean, v = values["mean"], values["var"]
    if far_below(model, y, alpha, (mean, v)):
        seen = model | {"likelihood": "gaussian"}, mean - 8, alpha, beta_, 1.0, weight
        score, (_, da, db) = 0, evidence(*seen)
    values["mean"], values["var"] = mean + v * da, min(4, (v - v**2 * (da**2 - 2 * db)) * 1.0001)
    lam = 1 if model["noise_memory"] is None else 1 - 1 / model["noise_memory"]
    score = np.clip(score, -3, 3)
    state["a"] = max(lam * state["a"], min(state["a"], 1)) + weight * score**2
    state["b"] = state["a"] * noise * np.exp(np.clip(weight * score / state["a"], -0.5, 0.5))


def learn_noise(model, state, index, nodes, y, alpha, beta_, noise, weight):
    lam = 1 if model["noise_memory"] is None else 1 - 1 / model["noise_memory"]
    s = beta_ + noise
    after_mean, after_var = alpha + beta_ / s * (y - alpha), beta_ - beta_**2 / s  # of f, once y is known
    if model["noise_memory"] is None:  # the paper: alpha and beta from before the entry
        after_mean, after_var = alpha, beta_
    misfit = (y - after_mean) ** 2 + after_var
    log_noise = log_noise_of(state, index, nodes) if model["node_noise"] else []
    own = np.exp(sum(log_noise)) * level_factor(model, state, alpha)
    state["a"] = lam * state["a"] + weight / 2
    state["b"] = lam * state["b"] + weight * misfit / own / 2

    if not model["node_noise"]:
        return
    # Section 12: z2 = min(r²/s, 16 zbar) moves its running mean zbar, then every node:
    # v = 1 / (1/var + k²/2),  l += v k (z2 / zbar - 1) / 2,  k = noise / (beta + noise)
    k_, squares = noise / s, state["squares"]
    squares["n"] = min(squares["n"] + weight, 10_000)
    z2 = min((y - alpha) ** 2 / s, 16 * squares["mean"])
    step = min(weight / squares["n"], 1) * k_ * (z2 - squares["mean"])
    squares["mean"] = max(squares["mean"] + step, 1e-6)
    information, score = weight * k_**2 / 2, weight * k_ * (z2 / squares["mean"] - 1) / 2
    memory = None if model["memory"] is None else max(model["memory"], 1000)
    for k, (before, row) in enumerate(zip(log_noise, index, strict=False)):
        if k in model["without_id"]:
            continue
        mean, var = state["log_noise"][k]
        var[row] = 1 / (1 / widened(var[row], log_noise_var(model), memory) + information)
        mean[row] = np.clip(before + np.clip(var[row] * score, -1, 1), -6, 6)
    mean, var = state["level_noise"]
    for j, w in hats(alpha).items():
        var[j] = 1 / (1 / widened(var[j], 0.1, 10_000) + w**2 * information)
        mean[j] = np.clip(mean[j] + np.clip(var[j] * w * score, -1, 1), -1, 1)


# --- section 11: the level and the scale of the values -----------------------------------------------


def note_value(state, y, clipped, f_, total_var, clip):
    state["clipped"] += clipped
    state["window"].append((y, f_, min((y - f_) ** 2 / total_var, (2.5 * clip) ** 2)))
    if not state["watching"]:
        values = state["values"]
        values["n"] = min(values["n"] + 1, 10_000)
        y = np.clip(y, -20, 20)
        off = y - values["mean"]
        values["mean"] += off / values["n"]
        values["var"] += (off * (y - values["mean"]) - values["var"]) / values["n"]


def follow(model, state):
    """At a refinement, if 256 entries have come since the last window ended."""
    if model["clip"] is None or len(state["window"]) < 256:
        return
    y, f_, z2 = np.array(state["window"]).T
    values, state["window"] = state["values"], []
    if not state["watching"]:
        far = np.mean(z2) > model["clip"] ** 2
        state["watching"] = far or values["var"] > 9 or 0 < values["var"] < 1 / 9
        return
    state["watching"] = False
    values["n"], values["mean"], values["var"] = len(y), np.mean(y), np.var(y)
    unit = 1 if 1 / 3 < np.std(y) < 3 else np.std(y)
    if unit == 1 and np.mean(z2) < 4:
        return
    if np.var(y / unit - f_) < 0.94 * np.var(y / unit):
        move_units(state, np.mean(y) - unit * np.mean(f_), unit)
        start_afresh(state, keep_means=True)
        state["a"], state["b"] = 10, 10 * np.var(y / unit - f_)
        state["followed"][0 if unit == 1 else 1] += 1
    else:
        move_units(state, np.mean(y), np.std(y))
        start_afresh(state)
        state["followed"][2] += 1


def move_units(state, shift, scale):
    """y becomes (y - shift) / scale"""
    state["shift"] += state["scale"] * shift
    state["scale"] *= scale
    state["values"]["mean"] = (state["values"]["mean"] - shift) / scale
    state["values"]["var"] /= scale**2


def start_afresh(state, keep_means=False):
    """As before any entry; the means of factors and weights may be kept"""
    fresh = copy.deepcopy(state["fresh"])
    for part in ("factors", "weights") if keep_means else ():
        for new, old in zip(fresh[part], state[part], strict=True):
            new[0] = old[0]
    state |= {part: fresh[part] for part in ("factors", "weights", "sites", "a", "b", "log_noise")}
    state["squares"] = {"n": 100, "mean": 1.0}
    state["level_noise"] = [np.zeros(9), np.full(9, 0.1)]


# --- section 4: refine ----------------------------------------------------------------------------


def refine_element(m, v, precision, precision_mean, slab_var, rho0):
    """None if the cavity is improper or too wide, else the new (m, v, precision, precision_mean, rho)."""
    inv_v_c = 1 / v - precision
    if inv_v_c == 0 or not 0 < 1 / inv_v_c < 1e6:
        return None
    v_c = 1 / inv_v_c
    m_c = v_c * (m / v - precision_mean)
    log_n = lambda x, variance: -np.log(2 * np.pi * variance) / 2 - x**2 / (2 * variance)  # noqa: E731
    rho = log_n(m_c, v_c + slab_var) - log_n(m_c, v_c)
    with np.errstate(divide="ignore"):
        incl = expit(rho + logit(rho0))
    v_slab = 1 / (1 / v_c + 1 / slab_var)
    m_slab = v_slab * m_c / v_c
    new_m = incl * m_slab
    new_v = incl * (v_slab + (1 - incl) * m_slab**2)
    return new_m, new_v, 1 / new_v - 1 / v_c, new_m / new_v - m_c / v_c, rho


def refine(model, state):
    for (mean, var), site in zip(state["weights"], state["sites"], strict=True):
        var[...] = widened(var, model["slab_var"], model["memory"])
        for ij in np.ndindex(mean.shape):
            result = refine_element(
                mean[ij],
                var[ij],
                site["precision"][ij],
                site["precision_mean"][ij],
                model["slab_var"],
                model["rho0"],
            )
            if result is None:  # an improper cavity is not a rejection
                continue
            if not (np.isfinite(result).all() and result[1] > 0):
                state["rejected"] += 1
                continue
            mean[ij], var[ij], site["precision"][ij], site["precision_mean"][ij], site["log_odds"][ij] = (
                result
            )


# --- a stream, and predictions --------------------------------------------------------------------


def learn(model, state, index, value, bags=None, weights=None):
    """The state after the stream, and a (4, n) array: mean, var, noise, log evidence of each entry."""
    state = copy.deepcopy(state)
    out = []
    weights = np.ones(len(value)) if weights is None else weights
    for row, y, bag, weight in zip(index, value, bags or [()] * len(value), weights, strict=True):
        out.append(learn_entry(model, state, row, y, bag, weight))
        state["entries"] += 1
        if state["entries"] % model["refine_every"] == 0:
            refine(model, state)
            follow(model, state)
    return state, np.array(out).T


def predict(model, state, index, nodes, bags=None):
    """Section 5: (3, n) mean, var, noise. A row outside 0..nodes-1 is an unseen node: the prior."""
    out = []
    for rows, bag in zip(index, bags or [()] * len(index), strict=True):
        params, var = at(model, state, rows, bag, nodes)
        noise = noise_var(model, state, rows, nodes)
        mean, var = f(model, params), beta(model, params, var)
        noise = reported_noise(model, state, noise, mean)
        if model["likelihood"] == "count":
            mean, var = mean + state["values"]["mean"], var + state["values"]["var"]
        shift, scale = state["shift"], state["scale"]
        out.append((shift + scale * mean, scale**2 * var, scale**2 * noise))
    return np.array(out).T


# --- section 20: several passes over a history, nothing counted twice ------------------------------


def rounded(x):
    """To the nearest bfloat16, which has eight bits of mantissa; ties to even"""
    mantissa, exponent = np.frexp(np.float32(x).astype(np.float64))
    return np.ldexp(np.rint(256 * mantissa), exponent - 8)


def touched(model, state, index, bags):
    """{place: (mean, var, P, H)} of all that a part of the history touches, as views; P, H: the prior's"""
    found = {}
    for row, bag in zip(index, bags, strict=True):
        for k, table, node, _, scale in nodes_of(model, row, bag):
            mean, v = state["factors"][table]
            P = 1 / (scale * factor_prior_var(model, k))
            found[table, node] = mean[node], v[node], P, np.zeros_like(P)
    for layer, ((mean, v), site) in enumerate(zip(state["weights"], state["sites"], strict=True)):
        found["layer", layer] = mean, v, site["precision"], site["precision_mean"]
    if model["likelihood"] == "count":  # section 17: the level, whose prior variance is 4
        level = state["values"]
        level |= {name: np.array(float(level[name])) for name in ("mean", "var")}  # changed in place
        found["level"] = level["mean"], level["var"], np.array(1 / 4), np.array(0.0)
    return found


def take_back(mean, v, P, H, T, J):
    """To the cavity, in place; what `keep` has to know: t, h, who sits this visit out, and the old values"""
    t, h = 1 / v - P - T, mean / v - H - J  # what all others said
    sits = ~(P + t > np.maximum(P / 2, 1e-6))  # too little is left
    old = mean.copy(), v.copy(), T, J
    with np.errstate(divide="ignore"):
        v[...] = np.where(sits, v, 1 / (P + t))
    mean[...] = np.where(sits, mean, (H + h) * v)
    return t, h, sits, old


def keep(mean, v, P, H, t, h, sits, old):
    """To what was learned since, as it is stored, in place; the new T and J"""
    T, J = rounded(1 / v - P - t), rounded(mean / v - H - h)
    nothing = ~(P + t + T > np.maximum(P / 2, 1e-6))  # then it has learned nothing
    T, J = np.where(nothing, 0, T), np.where(nothing, 0, J)
    with np.errstate(divide="ignore"):
        v[...] = np.where(sits, old[1], 1 / (P + t + T))
    mean[...] = np.where(sits, old[0], (H + h + J) * v)
    return np.where(sits, old[2], T), np.where(sits, old[3], J)


def visit(model, state, sites, index, value, bags=None, weights=None, last=None):
    """Learn a part once more: the new state and the new sites {place: (T, J)}, None if it started afresh.

    last: index and bags of its last visit, if it had other negatives"""
    state, bags = copy.deepcopy(state), bags or [()] * len(value)
    before = {} if last is None else touched(model, state, last[0], last[1] or [()] * len(last[0]))
    cavities = {
        place: take_back(*views, *sites.get(place, np.zeros((2, *views[0].shape))))
        for place, views in (before | touched(model, state, index, bags)).items()
    }
    followed = list(state["followed"])
    state, _ = learn(model, state, index, value, bags, weights)
    if state["followed"] != followed:
        return state, None
    views = touched(model, state, index, bags)
    gone = {  # taken back for good, but for elements that sat this visit out
        place: (np.where(sits, old[2], 0), np.where(sits, old[3], 0))
        for place, (_, _, sits, old) in cavities.items()
        if place not in views
    }
    return state, gone | {place: keep(*views[place], *cavities[place]) for place in views}


def without_share_of_noise(model, state, part, all_parts):
    """Each node forgets the share of its log_noise that the part has, by weight, among all its entries."""

    def times(part, k, j):
        index, *_, weights = part if len(part) > 3 else (*part, np.ones(len(part[0])))
        return weights[index[:, k] == j].sum()

    state, v0 = copy.deepcopy(state), log_noise_var(model)
    for k, (mean, v) in enumerate(state["log_noise"]):
        for j in set(part[0][:, k].tolist()) - {-1}:
            kept = 1 - times(part, k, j) / sum(times(each, k, j) for each in all_parts)
            t, h = kept * (1 / v[j] - 1 / v0), kept * mean[j] / v[j]
            v[j] = 1 / (1 / v0 + t)
            mean[j] = v[j] * h
    return state


def learn_passes(model, state, parts, orders, start, redrawn=None):
    """The state after each pass. parts: [(index, value, bags), ...], or each with weights as well;
    orders: which parts a pass visits

    start: [[mean, var], ...] of the nodes before any entry, whose random means go after the first pass
    redrawn: of events the parts of each pass, with their negatives
    """
    sites, states, entries = [{} for _ in parts], [], state["entries"]
    last = [None] * len(parts)
    counted = ("entries", "rejected", "refused", "clipped", "log_evidence")
    for number, order in enumerate(orders):
        kept, state = {name: state[name] for name in counted}, state | {"entries": entries}
        for part in order:
            if number > 0:
                state = without_share_of_noise(model, state, parts[part], parts)
            now = parts[part] if redrawn is None else redrawn[number][part]
            state, new = visit(model, state, sites[part], *now, last=last[part])
            last[part] = now[0], now[2]
            sites = [{} for _ in parts] if new is None else [*sites[:part], new, *sites[part + 1 :]]
        if number > 0:
            state = state | kept  # each entry counts once
        else:
            for (mean, v), (m0, v0) in zip(state["factors"], start, strict=True):
                mean -= v * m0 / v0
        states.append(copy.deepcopy(state))
    return states


# --- a committee, its intervals and its forecasts: sections 14, 15 and 21 -------------------------


def stacked(weights, log_p, entries, least=(0.001,) * 9, fading=(0.0,) * 9):
    """(M,) weights after the entry that comes after so many others, and the log evidence of the mixture.

    log_p: None of a member that cannot learn the entry. The evidence is None if no member can."""
    rate = max(0.02, 0.1 / math.sqrt(1 + entries / 1000))
    able = [m for m, each in enumerate(log_p) if each is not None]
    if not able:
        return list(weights), None
    share = sum(weights[m] for m in able)
    largest = max(log_p[m] for m in able)
    p = {m: math.exp(log_p[m] - largest) for m in able}
    total = sum(weights[m] * p[m] for m in able) / share
    new = [w if m not in p else (1 - rate) * w + rate * w * p[m] / total for m, w in enumerate(weights)]
    floor = [low + more / (1 + (entries + 1) / 100_000) for low, more in zip(least, fading, strict=True)]
    new = [max(w, floor[m]) if m in p else w for m, w in enumerate(new)]
    return [w / sum(new) for w in new], largest + math.log(total)


def scored_forecast(weights, said, value, entries):
    """The weights after an entry that comes with a forecast, the log evidence of the mixture as it was said,
    and its residual.

    said: [(weight then, mean, var + noise), ...] of each member
    """
    log_p = [norm.logpdf(value, mean, math.sqrt(var)) for _, mean, var in said]
    new, _ = stacked(weights, log_p, entries)
    mixture = sum(weight * math.exp(each) for (weight, _, _), each in zip(said, log_p, strict=True))
    mean = sum(weight * mean for weight, mean, _ in said)
    var = sum(weight * (var + (own - mean) ** 2) for weight, own, var in said)
    return new, math.log(mixture), (value - mean) / math.sqrt(var)


def residual_histogram(edges, residuals, memory=1000, start=100):
    """The mass of every bin after these residuals."""
    mass = [start * (norm.cdf(b) - norm.cdf(a)) for a, b in pairwise(edges)]
    mass[0] += start * norm.cdf(edges[0])
    mass[-1] += start * norm.sf(edges[-1])
    for z in residuals:
        mass = [each * (1 - 1 / memory) for each in mass]
        inside = [b for b, (low, high) in enumerate(pairwise(edges)) if low <= z < high]
        mass[inside[0] if inside else (0 if z < 0 else -1)] += 1
    return mass


def as_float64(tree):
    """A copy of a nested tuple of arrays, float32 as float64: the kernel computes in what it is given."""
    if isinstance(tree, tuple):
        parts = [as_float64(part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return tree.astype(np.float64) if tree.dtype == np.float32 else tree.copy()


# --- section 16: the negatives of events ----------------------------------------------------------


def keyed_uniform(key, number, draw):
    """splitmix64 of a key and two counters, in Python's whole numbers."""
    mask, word = 2**64 - 1, 0
    for part in (key, number * 0x9E3779B97F4A7C15, draw * 0x9E3779B97F4A7C15):
        word = (word + part + 0x9E3779B97F4A7C15) & mask
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & mask
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
        word ^= word >> 31
    return (word >> 11) / 2**53


def drawn(u, others, counts, power):
    """The node that u in [0, 1) stands for. Weights are whole numbers, in units of 2**-20; all 1 without a
    power"""
    weights = [int(2**20 * counts[node] ** power) if power else 1 for node in others]
    place = int(u * sum(weights))
    return next(node for node, upto in zip(others, np.cumsum(weights), strict=True) if place < upto)


def with_negatives(events, over, negatives, power, key, visit=0):
    """[[(nodes, value), ...], ...]: each event and behind it its negatives. over: the modes, which take turns

    visit: how often the events were learned before. The first time each draws from the nodes up to the
    highest so far (with a power those that have events), later from all nodes of the events"""
    entries, times = [], [{} for _ in over]
    for event in events if visit else ():
        count(event, over, times)
    for number, event in enumerate(events):
        entries.append([(tuple(event), 1.0)])
        if not visit:
            count(event, over, times)
        for draw in range(negatives):
            turn = (number * negatives + draw) % len(over)
            mode, counts = over[turn], times[turn]
            known = sorted(counts) if visit or power else range(max(counts) + 1)
            others = [node for node in known if node != event[mode]]
            if not others:
                continue
            node = drawn(keyed_uniform(key, number, visit * negatives + draw), others, counts, power)
            entries[-1].append((tuple(node if k == mode else old for k, old in enumerate(event)), 0.0))
    return entries


def count(event, over, times):
    """One event more, in the counts of each mode"""
    for mode, counts in zip(over, times, strict=True):
        counts[event[mode]] = counts.get(event[mode], 0) + 1
