"""The state: how it starts, how it grows, and that a node's start depends on nothing but who it is."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from scipy.stats import kstest, norm, truncnorm

from spidertensor.spider.network import Network
from spidertensor.spider.posterior import GROWTH, Prior, State, factor_prior_var, grow, init, trim

PRIOR = Prior()
PLAIN = Network((2, 3), (7, 5))
HYBRID = Network((2, 3), (7,), bias=True, multilinear=6)


def arrays(tree) -> list[np.ndarray]:
    return [tree] if isinstance(tree, np.ndarray) else [leaf for part in tree for leaf in arrays(part)]


def assert_identical(a: State, b: State) -> None:
    for x, y in zip(arrays(a), arrays(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def grown(network: Network, *steps, seed: int = 0, prior: Prior = PRIOR) -> State:
    state = init(network, prior, seed)
    for step in steps:
        state = grow(state, network, prior, np.array(step))
    return state


# --- start ----------------------------------------------------------------------------------------


def test_shapes_and_types():
    state = init(HYBRID, Prior(), 0)
    assert [w.mean.shape for w in state.posterior.weights] == list(HYBRID.layers)
    assert [s.precision.shape for s in state.sites] == list(HYBRID.layers)
    assert [f.mean.shape for f in state.posterior.factors] == [(0, 9), (0, 10)]
    for leaf in arrays((state.posterior.factors, state.posterior.weights, state.sites)):
        assert leaf.dtype == np.float32
    assert state.posterior.noise.shape.dtype == np.float64
    assert state.posterior.noise.rate.dtype == np.float64
    assert state.counts.log_evidence.dtype == np.float64
    assert state.counts.nodes.tolist() == [0, 0]
    for number in (state.counts.entries, state.counts.rejected, state.counts.log_evidence):
        assert number == 0


@pytest.mark.parametrize("slab_var", [1.0, 0.3, 4.0])
def test_weights_start_as_a_truncated_normal(slab_var):
    """N(0, 1) between -sigma0 and sigma0; the spread of the posterior is the slab's."""
    state = init(Network((8, 8), (200, 100)), Prior(slab_var=slab_var), 1)
    slab = np.sqrt(slab_var)
    wanted = truncnorm(-slab, slab)
    means = np.concatenate([w.mean.ravel() for w in state.posterior.weights])
    assert np.abs(means).max() <= np.float32(slab)
    n = len(means)
    assert abs(means.mean()) < 4 * wanted.std() / np.sqrt(n)
    assert means.std() == pytest.approx(wanted.std(), rel=0.03)
    assert kstest(means, wanted.cdf).pvalue > 1e-3
    for weights in state.posterior.weights:
        np.testing.assert_array_equal(weights.var, np.float32(slab_var))


@pytest.mark.parametrize("slab_var", [1.0, 0.3])
def test_sites_start_at_the_slab_without_the_random_mean(slab_var):
    """Trap 1: with the random mean in the site, the first refinement would divide it out."""
    state = init(PLAIN, Prior(slab_var=slab_var), 1)
    for weights, site in zip(state.posterior.weights, state.sites, strict=True):
        assert np.ptp(weights.mean) > 0
        np.testing.assert_array_equal(site.precision, np.float32(1 / slab_var))
        np.testing.assert_array_equal(site.precision_mean, 0)
        np.testing.assert_array_equal(site.log_odds, 0)


def test_noise_starts_at_its_prior():
    noise = init(PLAIN, Prior(noise_shape=3, noise_rate=0.5), 0).posterior.noise
    assert (noise.shape, noise.rate) == (3.0, 0.5)


def test_factor_means_start_at_zero():
    """Trap 2. Only the multilinear part starts at random: a product of zeros has no gradient."""
    for mean, var in grown(PLAIN, (4, 5)).posterior.factors:
        np.testing.assert_array_equal(mean, 0)
        np.testing.assert_array_equal(var, 1)
    for mean, _ in grown(HYBRID, (4, 5)).posterior.factors:
        np.testing.assert_array_equal(mean[:, 0], 0)
        np.testing.assert_array_equal(mean[:, 7:], 0)
        assert (mean[:, 1:7] != 0).all()


def test_multilinear_start_is_normal_and_independent():
    network = Network((2, 2), (), multilinear=5)
    factors = grown(network, (2000, 2000), prior=Prior(multilinear_start=0.3)).posterior.factors
    draws = np.stack([factor.mean[:, :5] for factor in factors])
    assert len(np.unique(draws)) > 0.999 * draws.size  # no draw twice: modes and rows have their own
    assert kstest(draws.ravel() / 0.3, norm.cdf).pvalue > 1e-3
    correlation = np.corrcoef(draws.transpose(0, 2, 1).reshape(10, -1)) - np.eye(10)
    assert np.abs(correlation).max() < 5 / np.sqrt(2000)
    still = grown(network, (3, 3), prior=Prior(multilinear_start=0)).posterior.factors
    assert all((factor.mean == 0).all() for factor in still)


def test_the_multilinear_start_is_scaled_as_its_variance():
    """Both are meant for two modes: with more, the sum has K (K - 1) / 2 pairs."""
    spread, var = {}, {}
    for modes in (2, 12):
        factor = grown(Network((1,) * modes, (2,), multilinear=4), (500,) * modes).posterior.factors[0]
        spread[modes], var[modes] = factor.mean[:, :4].std(), factor.var[0, 0]
    assert spread[12] / spread[2] == pytest.approx(var[12] / var[2])
    assert var[12] / var[2] == pytest.approx(1 / np.sqrt(66))


def test_variances_of_the_parts():
    prior = Prior(factor_var=0.5, bias_var=0.25, multilinear_var=0.125)
    wanted = [0.25] + 6 * [0.125] + 3 * [0.5]
    np.testing.assert_array_equal(factor_prior_var(HYBRID, prior, 1), np.float32(wanted))
    factor = grown(HYBRID, (1, 2), prior=prior).posterior.factors[1]
    np.testing.assert_array_equal(factor.var[1], np.float32(wanted))
    np.testing.assert_array_equal(factor_prior_var(PLAIN, prior, 0), np.float32([0.5, 0.5]))


# --- seeds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", [PLAIN, HYBRID], ids=["plain", "hybrid"])
def test_same_seed_same_state(network):
    assert_identical(grown(network, (5, 6), seed=11), grown(network, (5, 6), seed=11))


@pytest.mark.parametrize("network", [PLAIN, HYBRID], ids=["plain", "hybrid"])
def test_another_seed_another_state(network):
    a, b = grown(network, (5, 6), seed=11), grown(network, (5, 6), seed=12)
    for x, y in zip(a.posterior.weights, b.posterior.weights, strict=True):
        assert not np.isclose(x.mean, y.mean).any()
    if network.multilinear:
        for x, y in zip(a.posterior.factors, b.posterior.factors, strict=True):
            assert not np.isclose(x.mean[:, 1:7], y.mean[:, 1:7]).any()


def test_nothing_global_is_drawn_from():
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    grown(HYBRID, (3, 3))
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


# --- growth ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("multilinear", [1, 3, 4, 5, 8])
def test_a_row_starts_the_same_whenever_it_arrives(multilinear):
    """All at once, one by one, in jumps, or as a spare row first: same values."""
    network = Network((2, 3), (7,), bias=True, multilinear=multilinear)
    at_once = trim(grown(network, (20, 30)))
    one_by_one = trim(grown(network, *[(min(i, 20), i) for i in range(1, 31)]))
    in_jumps = trim(grown(network, (7, 0), (7, 29), (20, 30)))
    assert_identical(at_once, one_by_one)
    assert_identical(at_once, in_jumps)


def test_growth_keeps_what_was_learned():
    state = grown(HYBRID, (3, 4))
    for mean, var in state.posterior.factors:
        mean += 1
        var *= 0.5
    learned = copy.deepcopy(trim(state))
    state = grow(state, HYBRID, Prior(), np.array([50, 4]))
    for new, old in zip(state.posterior.factors, learned.posterior.factors, strict=True):
        np.testing.assert_array_equal(new.mean[: len(old.mean)], old.mean)
        np.testing.assert_array_equal(new.var[: len(old.var)], old.var)
    assert state.counts.nodes.tolist() == [50, 4]


def test_never_shrinks():
    state = grown(PLAIN, (5, 6), (2, 1))
    assert state.counts.nodes.tolist() == [5, 6]
    assert len(trim(state).posterior.factors[0].mean) == 5


def test_spare_rows_make_growth_cheap():
    """10,000 nodes one at a time: as many copies as there are powers of GROWTH, not 10,000."""
    state = grown(PLAIN, (1, 1))
    copies = 0
    for n in range(2, 10_001):
        before = state.posterior.factors[0].mean
        state = grow(state, PLAIN, Prior(), np.array([n, 1]))
        copies += state.posterior.factors[0].mean is not before
    assert copies < 3 + np.log(10_000) / np.log(GROWTH)
    assert len(state.posterior.factors[0].mean) <= GROWTH * 10_000
    assert len(state.posterior.factors[1].mean) == 1  # the other mode did not grow


def test_spare_rows_hold_what_a_new_node_starts_with():
    state = grown(HYBRID, (10, 10), (11, 11))
    spare = len(state.posterior.factors[0].mean)
    assert spare > 11
    wanted = grown(HYBRID, (spare, spare))
    for have, want in zip(state.posterior.factors, wanted.posterior.factors, strict=True):
        np.testing.assert_array_equal(have.mean, want.mean)
        np.testing.assert_array_equal(have.var, want.var)


def test_trim():
    state = grown(PLAIN, (10, 10), (11, 11))
    trimmed = trim(state)
    assert [len(f.mean) for f in trimmed.posterior.factors] == [11, 11]
    assert [len(f.var) for f in trimmed.posterior.factors] == [11, 11]
    assert_identical(trimmed, trim(trimmed))
    assert len(state.posterior.factors[0].mean) > 11  # the state itself keeps its room


# --- refused --------------------------------------------------------------------------------------

POSITIVE = ("slab_var", "rho0", "factor_var", "bias_var", "multilinear_var", "noise_shape", "noise_rate")


@pytest.mark.parametrize("name", POSITIVE)
@pytest.mark.parametrize("value", [0.0, -1.0, np.inf, np.nan])
def test_not_positive_or_not_finite(name, value):
    with pytest.raises(ValueError, match=name):
        Prior(**{name: value})


@pytest.mark.parametrize("value", [-0.1, np.inf, np.nan])
def test_multilinear_start_refused(value):
    with pytest.raises(ValueError, match="multilinear_start"):
        Prior(multilinear_start=value)


def test_rho0_is_a_probability():
    with pytest.raises(ValueError, match="rho0"):
        Prior(rho0=1.5)
    assert Prior(rho0=1.0).rho0 == 1.0
    assert Prior(multilinear_start=0.0).multilinear_start == 0
