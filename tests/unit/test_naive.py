"""The oracle is checked against nothing but the definition of f: finite differences in float64.

If this holds, `naive.py` is right about every derivative, and test_sequential.py says the same of the kernel.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import naive

SHAPES = {
    "no hidden layer": ((2, 3), ()),
    "one hidden layer, four modes": ((1, 2, 1, 2), (5,)),
    "two hidden layers": ((2, 1, 3), (4, 3)),
    "three hidden layers": ((2, 2), (4, 3, 5)),
}
PARTS = {
    "plain": (False, 0, False),
    "bias": (True, 0, False),
    "pairs": (False, 3, False),
    "products": (False, 3, True),
    "hybrid": (True, 2, False),
}


def example(shape, parts, activation="tanh", likelihood="gaussian"):
    """A model and one entry's means and variances at random, of ordinary size."""
    ranks, hidden = SHAPES[shape]
    bias, multilinear, product = PARTS[parts]
    model = {
        "ranks": ranks,
        "bias": bias,
        "multilinear": multilinear,
        "product": product,
        "activation": activation,
        "likelihood": likelihood,
        "curvature": True,
    }
    rng = np.random.default_rng(5)
    widths = (sum(ranks), *hidden, 1)
    weights = [(n, m + 1) for m, n in pairwise(widths)]
    factors = [(bias + multilinear + rank,) for rank in ranks]
    params = {
        "weights": [rng.normal(size=shape) for shape in weights],
        "factors": [rng.normal(size=shape) for shape in factors],
    }
    var = {
        "weights": [rng.uniform(0.1, 1, shape) for shape in weights],
        "factors": [rng.uniform(0.1, 1, shape) for shape in factors],
    }
    return model, params, var


def differences(function, tree, step=1e-5):
    """Central differences of function() in every element of a tree that it reads."""
    result = {part: [np.zeros_like(array) for array in tree[part]] for part in tree}
    for array, out in naive.pairs(tree, result):
        for ij in np.ndindex(array.shape):
            kept = array[ij]
            array[ij] = kept + step
            above = function()
            array[ij] = kept - step
            below = function()
            array[ij] = kept
            out[ij] = (above - below) / (2 * step)
    return result


def assert_close(got, wanted):
    for a, b in naive.pairs(got, wanted):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)


def away_from_kinks(model, params):
    """No difference quotient may step over the corner of a relu."""
    _, a, _ = naive.forward(model, params)
    assert min(np.abs(layer).min() for layer in a[1:-1]) > 1e-3


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "softplus", "gelu"])
def test_activation_derivatives(activation):
    a, step = np.array([-4.0, -1.3, -0.2, 0.3, 1.0, 5.0]), 1e-5
    slope = (naive.act(activation, a + step) - naive.act(activation, a - step)) / (2 * step)
    bend = (naive.act1(activation, a + step) - naive.act1(activation, a - step)) / (2 * step)
    np.testing.assert_allclose(naive.act1(activation, a), slope, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(naive.act2(activation, a), bend, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_and_curvature(shape, parts):
    """g = df/dmu and 2 H (var g) = dbeta/dmu, hybrid parts included."""
    model, params, var = example(shape, parts)
    assert_close(naive.gradient(model, params), differences(lambda: naive.f(model, params), params))
    curvature = differences(lambda: naive.beta(model, params, var) / 2, params)
    assert_close(naive.hessian_times_var_g(model, params, var), curvature)


@pytest.mark.parametrize("activation", ["relu", "sigmoid", "softplus", "gelu"])
def test_every_activation(activation):
    model, params, var = example("three hidden layers", "hybrid", activation)
    away_from_kinks(model, params)
    assert_close(naive.gradient(model, params), differences(lambda: naive.f(model, params), params))
    curvature = differences(lambda: naive.beta(model, params, var) / 2, params)
    assert_close(naive.hessian_times_var_g(model, params, var), curvature)


@pytest.mark.parametrize("likelihood", ["gaussian", "probit"])
@pytest.mark.parametrize("y", [0.0, 1.0])
def test_log_evidence(likelihood, y):
    """dlogZ/dmu and dlogZ/dv, through alpha and through beta."""
    model, params, var = example("two hidden layers", "hybrid", "gelu", likelihood)
    dmu, dv = naive.dlog_z(model, params, var, y, noise=0.3)
    assert_close(dmu, differences(lambda: naive.log_z(model, params, var, y, 0.3), params))
    assert_close(dv, differences(lambda: naive.log_z(model, params, var, y, 0.3), var))
