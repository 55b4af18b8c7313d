"""Sizes, and what is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import naive
from spidertensor.spider import posterior
from spidertensor.spider.likelihoods import GAUSSIAN
from spidertensor.spider.network import ACTIVATIONS, Network
from spidertensor.spider.sequential import sequential


def test_the_network_of_the_paper():
    network = Network((8, 8, 8))
    assert network.n_modes == 3
    assert network.layers == ((50, 25), (50, 51), (1, 51))
    assert network.n_weights == 50 * 25 + 50 * 51 + 51
    assert network.factor_sizes == (8, 8, 8)
    assert network.deep_start == 0
    assert network.activation == "relu"


@pytest.mark.parametrize("hidden", [(), (7,), (3, 9), (4, 1, 6, 2)])
def test_layers_fit_together(hidden):
    network = Network((2, 3, 5), hidden)
    assert len(network.layers) == len(hidden) + 1
    inputs = [columns - 1 for _, columns in network.layers]
    outputs = [rows for rows, _ in network.layers]
    assert inputs == [10, *hidden]
    assert outputs == [*hidden, 1]
    assert network.n_weights == sum(rows * columns for rows, columns in network.layers)


@pytest.mark.parametrize(
    ("bias", "multilinear", "deep_start"), [(False, 0, 0), (True, 0, 1), (False, 4, 4), (True, 4, 5)]
)
def test_hybrid_sizes(bias, multilinear, deep_start):
    """The hybrid parts are in front of the deep part and do not enter the layers."""
    network = Network((2, 3), (7,), bias=bias, multilinear=multilinear)
    assert network.deep_start == deep_start
    assert network.factor_sizes == (2 + deep_start, 3 + deep_start)
    assert network.layers == Network((2, 3), (7,)).layers


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": ()}, "at least one mode"),
        ({"ranks": (2, 0)}, "rank"),
        ({"ranks": (-1,)}, "rank"),
        ({"hidden": (50, 0)}, "hidden layer"),
        ({"hidden": (-3,)}, "hidden layer"),
        ({"activation": "step"}, "relu, tanh, sigmoid, softplus, gelu"),
        ({"multilinear": -1}, "multilinear"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Network(**{"ranks": (2, 3)} | arguments)


def test_it_is_a_value():
    assert Network((2, 3)) == Network((2, 3))
    assert hash(Network((2, 3))) == hash(Network((2, 3)))
    assert Network((2, 3)) != Network((2, 3), bias=True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Network((2, 3)).ranks = (1,)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("where", [-40.0, -5.0, -0.7, 0.0, 0.7, 5.0, 40.0])
def test_activations(activation, where):
    """One hidden unit whose pre-activation is set by hand: f and df/dx by the definition, tails too."""
    network = Network((1, 1, 1, 1), (1,), activation)
    method = sequential(network, GAUSSIAN)
    state = posterior.grow(method.init(0), network, posterior.Prior(), np.ones(4, np.int64))
    state = naive.as_float64(state)
    (first, out), factors = state.posterior.weights, state.posterior.factors
    for gaussian in (*state.posterior.weights, *factors):
        gaussian.mean[...] = 0
        gaussian.var[...] = 0
    first.mean[0, 0], first.mean[0, -1] = np.sqrt(5), where * np.sqrt(5)  # a = x_1 + where
    out.mean[0, 0] = np.sqrt(2)  # f = act(a)
    factors[0].var[0, 0] = 1  # beta = act'(a)²
    prediction = method.predict(state, np.zeros((1, 4), np.int64))
    a = np.array([where])
    np.testing.assert_allclose(prediction.mean, naive.act(activation, a), rtol=1e-12, atol=1e-16)
    np.testing.assert_allclose(prediction.var, naive.act1(activation, a) ** 2, rtol=1e-11, atol=1e-16)
