import copy

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.special import log_ndtr
from scipy.stats import norm

from spidertensor import checkpoint
from spidertensor.evaluation import metrics, protocols
from spidertensor.method import Batch
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT
from spidertensor_study import datasets
from spidertensor_study.competitors import cp_wopt as module
from spidertensor_study.competitors.cp_wopt import cp_wopt

LIKELIHOODS = (GAUSSIAN, PROBIT)


def planted(shape=(15, 12, 10), rank=2, missing=0.9, noise=0.0, seed=0):
    """The observed entries of a CP tensor, those that are missing, and all factors."""
    rng = np.random.default_rng(seed)
    factors = [rng.normal(0, 1, (size, rank)) for size in shape]
    index = np.stack([rows.ravel() for rows in np.meshgrid(*map(np.arange, shape), indexing="ij")], axis=1)
    value = np.prod([factor[rows] for factor, rows in zip(factors, index.T, strict=True)], axis=0).sum(axis=1)
    value += rng.normal(0, noise, len(value))
    order = rng.permutation(len(value))
    cut = int(missing * len(value))
    return (
        Batch(index[order[cut:]], value[order[cut:]]),
        Batch(index[order[:cut]], value[order[:cut]]),
        factors,
    )


def entries(likelihood, n=300):
    observed, _, _ = planted(noise=0.3, missing=0.5)
    value = observed.value[:n]
    return Batch(observed.index[:n], value if likelihood is GAUSSIAN else (value > 0).astype(float))


def fitted(likelihood, seed=0, **settings):
    method = cp_wopt(3, likelihood, **{"rank": 2, "starts": 2} | settings)
    return method, *method.update(method.init(seed), entries(likelihood))


@pytest.mark.parametrize("n_modes", [1, 2, 3, 4])
def test_the_gradient_agrees_with_finite_differences(n_modes):
    rng = np.random.default_rng(0)
    sizes, rank, n = rng.integers(2, 6, n_modes), 3, 20
    first = np.concatenate([[0], np.cumsum(sizes)])
    nodes = np.stack([rng.integers(0, size, n) for size in sizes], axis=1) + first[:-1]
    value, A = rng.normal(size=n), rng.normal(size=(first[-1], rank))
    gradient = np.zeros_like(A)
    got = module.loss(nodes, value, A, gradient)
    assert got == pytest.approx(0.5 * np.sum((value - A[nodes].prod(axis=1).sum(axis=1)) ** 2))

    def loss(x):
        return module.loss(nodes, value, x.reshape(A.shape), np.zeros_like(A))

    numeric = approx_fprime(A.ravel(), loss, 1e-7).reshape(A.shape)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e9])
def test_a_planted_tensor_is_recovered_with_nine_tenths_missing(unit):
    observed, missing, _ = planted(shape=(20, 18, 16), rank=3)
    assert len(observed.value) == pytest.approx(len(missing.value) / 9, rel=0.01)
    method = cp_wopt(3, GAUSSIAN, rank=3, starts=5, max_iterations=1000)
    state, _ = method.update(method.init(0), Batch(observed.index, unit * observed.value))
    error = method.predict(state, missing.index).mean / unit - missing.value
    assert np.sqrt(np.mean(error**2)) < 1e-3 * missing.value.std()


@pytest.mark.parametrize(("modes", "nodes"), [(2, 100), (3, 60), (5, 20)])
def test_a_tensor_of_positive_factors_is_recovered(modes, nodes):
    """From starts of both signs alone the descent ends far from it."""
    rng = np.random.default_rng(0)
    factors = rng.uniform(0.5, 1.5, size=(modes, nodes, 2))
    index = rng.integers(nodes, size=(9_000, modes))
    value = np.prod([factors[k][index[:, k]] for k in range(modes)], axis=0).sum(axis=1)
    method = cp_wopt(modes, GAUSSIAN, rank=2, starts=4)
    state, _ = method.update(method.init(0), Batch(index[1000:], value[1000:]))
    error = method.predict(state, index[:1000]).mean - value[:1000]
    assert np.sqrt(np.mean(error**2)) < 0.02 * value.std()


def test_units_change_nothing_but_the_unit():
    """Also of the noise, which for a perfect fit is next to nothing."""
    observed, _, _ = planted(shape=(20, 18, 16), rank=3)
    for value in (observed.value, np.zeros_like(observed.value) + 1.0):
        noises = []
        for unit in (1.0, 1e-8, 1e8):
            method = cp_wopt(3, GAUSSIAN, rank=3)
            state, _ = method.update(method.init(0), Batch(observed.index, unit * value))
            noises.append(float(state.noise) / unit**2)
        np.testing.assert_allclose(noises, noises[0], rtol=1e-3)


def test_the_best_of_several_starts_is_kept():
    """More starts never have a higher loss, and where the first ended in a local minimum a lower one."""
    observed, _, _ = planted(shape=(20, 18, 16), rank=3)
    lower = []
    for seed in range(4):
        noises = []
        for starts in (1, 2, 5):
            method = cp_wopt(3, GAUSSIAN, rank=3, starts=starts)
            noises.append(float(method.update(method.init(seed), observed)[0].noise))
        assert noises == sorted(noises, reverse=True)
        lower.append(noises[-1] < 0.5 * noises[0])
    assert any(lower)


def test_noise_is_the_mean_squared_residual():
    method, state, _ = fitted(GAUSSIAN)
    batch = entries(GAUSSIAN)
    prediction = method.predict(state, batch.index)
    assert prediction.noise[0] == pytest.approx(np.mean((batch.value - prediction.mean) ** 2))
    assert (prediction.var < 1e-9 * prediction.noise).all()


def test_binary_values_are_fitted_by_least_squares_too():
    """The latent f is the fit in standard deviations of its residuals from 1/2."""
    batch = entries(PROBIT)
    method, state, _ = fitted(PROBIT)
    plain = cp_wopt(3, GAUSSIAN, rank=2, starts=2)
    same, _ = plain.update(plain.init(0), batch)
    fit = plain.predict(same, batch.index)
    prediction = method.predict(state, batch.index)
    np.testing.assert_allclose(prediction.mean, (fit.mean - 0.5) / np.sqrt(fit.noise))
    assert (prediction.noise == 0).all()
    assert metrics.auc(batch.value, prediction.mean) > 0.8


def test_an_unseen_node_is_the_average_of_the_seen_ones():
    method, state, _ = fitted(GAUSSIAN)
    batch = entries(GAUSSIAN)
    same_others = np.array([[row, 3, 4] for row in batch.index[:, 0]])
    average = method.predict(state, same_others).mean.mean()
    unseen = method.predict(state, np.array([[-1, 3, 4], [15, 3, 4], [10**9, 3, 4]]))
    np.testing.assert_allclose(unseen.mean, average)


def test_a_row_without_entries_is_an_unseen_node():
    batch = entries(GAUSSIAN)
    gap = batch.index.copy()
    gap[:, 1] += gap[:, 1] >= 5  # row 5 of the second mode has no entry
    method = cp_wopt(3, GAUSSIAN, rank=2)
    state, _ = method.update(method.init(0), Batch(gap, batch.value))
    known, unseen = method.predict(state, np.array([[1, 5, 2], [1, -1, 2]])).mean
    assert known == pytest.approx(unseen)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
class TestContract:
    def test_it_is_static_and_has_one_update(self, likelihood):
        method, state, _ = fitted(likelihood)
        assert method.unit == "all"
        with pytest.raises(ValueError, match="static"):
            method.update(state, entries(likelihood))

    def test_an_empty_batch_changes_nothing(self, likelihood):
        method, state, _ = fitted(likelihood)
        nothing = Batch(np.empty((0, 3), np.int64), np.empty(0))
        for some in (state, method.init(0)):
            before = copy.deepcopy(checkpoint.flatten(some))
            after, update = method.update(some, nothing)
            assert [len(part) for part in update[:4]] == [0, 0, 0, 0]
            for name, leaf in checkpoint.flatten(after).items():
                np.testing.assert_array_equal(leaf, before[name])

    def test_predict_is_pure_and_finite(self, likelihood):
        method, state, update = fitted(likelihood)
        index = np.array([[0, 0, 0], [-1, 2, 3], [10**9, -1, 5], [-1, -1, -1]])
        for some in (state, method.init(0)):
            before = copy.deepcopy(checkpoint.flatten(some))
            first, second = method.predict(some, index), method.predict(some, index.astype(np.int32))
            for a, b in zip(first, second, strict=True):
                np.testing.assert_array_equal(a, b)
            for name, leaf in checkpoint.flatten(some).items():
                np.testing.assert_array_equal(leaf, before[name])
        for made_by in (first, update):
            assert np.isfinite(np.array(made_by[:3])).all()
            assert (made_by.var > 0).all()
            assert (made_by.noise > 0).all() if likelihood is GAUSSIAN else (made_by.noise == 0).all()

    def test_the_update_reports_what_was_known_before(self, likelihood):
        """Nothing: f = 0, with a noise of 1 or a probability of 1/2."""
        _, state, update = fitted(likelihood)
        assert (update.mean == 0).all()
        value = entries(likelihood).value
        density = norm.logpdf(value) if likelihood is GAUSSIAN else np.full(300, log_ndtr(0))
        np.testing.assert_allclose(update.log_evidence, density)
        assert state.counts.log_evidence == pytest.approx(density.sum())
        assert state.counts.nodes.tolist() == [15, 12, 10]

    def test_seeds_and_saving(self, likelihood):
        method, state, _ = fitted(likelihood)
        index = entries(likelihood).index
        restored = checkpoint.restore(method.init(0), copy.deepcopy(checkpoint.flatten(state)))
        for other in (restored, fitted(likelihood)[1]):
            for a, b in zip(method.predict(other, index), method.predict(state, index), strict=True):
                np.testing.assert_array_equal(a, b)
        other = fitted(likelihood, seed=1)[1]
        assert not np.array_equal(other.factors[0], state.factors[0])

    def test_what_it_does_not_have_is_refused(self, likelihood):
        with pytest.raises(ValueError, match="poisson"):
            cp_wopt(2, "poisson")
        with pytest.raises(ValueError, match="starts=0"):
            cp_wopt(2, likelihood, starts=0)


def test_absurd_values_are_refused_and_counted():
    batch = entries(GAUSSIAN)
    value = batch.value.copy()
    value[:3] = [np.nan, np.inf, 1e200]
    method = cp_wopt(3, GAUSSIAN, rank=2)
    state, update = method.update(method.init(0), Batch(batch.index, value))
    alone, _ = method.update(method.init(0), Batch(batch.index[3:], batch.value[3:]))
    assert update.refused == 3 == state.counts.refused
    assert update.rejected == 3 * 3 * 2 == state.counts.rejected
    for a, b in zip(method.predict(state, batch.index), method.predict(alone, batch.index), strict=True):
        np.testing.assert_array_equal(a, b)
    nothing, update = method.update(method.init(0), Batch(batch.index[:3], value[:3]))
    assert update.refused == 3
    assert (method.predict(nothing, batch.index).mean == 0).all()
    late, _ = method.update(nothing, Batch(batch.index[3:], batch.value[3:]))  # its one is still to come
    np.testing.assert_array_equal(
        method.predict(late, batch.index).mean, method.predict(alone, batch.index).mean
    )


@pytest.mark.parametrize("value", [0.0, 7.0])
def test_equal_values(value):
    batch = entries(GAUSSIAN)
    method = cp_wopt(3, GAUSSIAN, rank=2)
    state, _ = method.update(method.init(0), Batch(batch.index, np.full(300, value)))
    prediction = method.predict(state, batch.index)
    np.testing.assert_allclose(prediction.mean, value, atol=0.01)
    assert (prediction.noise > 0).all()


@pytest.mark.parametrize(("name", "starts", "figure"), [("movielens-100k", 2, 0.945), ("dblp", 1, 0.87)])
def test_figures(data_folder, monkeypatch, name, starts, figure):
    monkeypatch.setenv("SPIDER_DATA", str(data_folder))
    dataset = datasets.load(name)
    train, test = dataset.split(0)
    likelihood = dataset.likelihood
    method = cp_wopt(len(dataset.shape), likelihood, rank=3, starts=starts)
    (row,) = protocols.held_out(method, train, test, likelihood=dataset.likelihood)
    assert row["score"] > figure if dataset.likelihood is PROBIT else row["score"] < figure


def test_stopping_early_keeps_what_fits_entries_that_the_descent_has_not_seen():
    """Twice as many elements as entries: a descent to the end fits the noise."""
    observed, missing, _ = planted(shape=(30, 25, 20), noise=1.0, missing=0.97, seed=3)

    def error(**settings):
        method = cp_wopt(3, GAUSSIAN, rank=12, starts=1, max_iterations=1000, **settings)
        state, _ = method.update(method.init(0), observed)
        return np.mean((method.predict(state, missing.index).mean - missing.value) ** 2), state

    (to_the_end, overfitted), (early, stopped) = error(), error(stop_early=True)
    assert early < 0.75 * to_the_end
    # The noise is that of entries that were not learned, so it is the noise of other entries too.
    assert 0.7 < float(stopped.noise) / early < 1.3
    assert float(overfitted.noise) < 0.1 * to_the_end


def test_stopping_early_of_a_clean_tensor_goes_on_to_the_end():
    observed, missing, _ = planted(missing=0.6)
    method = cp_wopt(3, GAUSSIAN, rank=2, starts=3, max_iterations=1000, stop_early=True)
    state, _ = method.update(method.init(0), observed)
    assert np.abs(method.predict(state, missing.index).mean - missing.value).max() < 0.01


def test_stopping_early_of_a_single_entry_learns_it():
    method = cp_wopt(2, GAUSSIAN, rank=1, stop_early=True)
    state, _ = method.update(method.init(0), Batch(np.array([[0, 0]]), np.array([2.0])))
    assert method.predict(state, np.array([[0, 0]])).mean[0] == pytest.approx(2.0, abs=1e-3)
