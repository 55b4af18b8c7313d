from itertools import pairwise

import numpy as np
import pytest
from scipy import optimize
from scipy.special import log_ndtr
from sklearn.linear_model import Ridge
from sklearn.preprocessing import OneHotEncoder

from spidertensor.evaluation import floors, metrics
from spidertensor.method import Batch
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT

LIKELIHOODS = (GAUSSIAN, PROBIT)
SHAPE = (12, 9, 7)


def made(likelihood, n=600, seed=0):
    """Entries of an additive model with an offset, and the noise-free f of each."""
    rng = np.random.default_rng(seed)
    index = np.stack([rng.integers(0, size, n) for size in SHAPE], axis=1)
    f = 0.5 + sum(rng.normal(0, 0.7, size)[index[:, k]] for k, size in enumerate(SHAPE))
    noisy = f + rng.normal(0, 1, n)
    return Batch(index, noisy if likelihood is GAUSSIAN else (noisy > 0).astype(float)), f


def every_floor():
    for likelihood in LIKELIHOODS:
        yield pytest.param(floors.mean(likelihood), likelihood, id=f"mean-{likelihood}")
        yield pytest.param(floors.biases(3, likelihood), likelihood, id=f"biases-{likelihood}")
        yield pytest.param(floors.static_biases(3, likelihood), likelihood, id=f"static-{likelihood}")


def leaves(state):
    if isinstance(state, tuple):
        return [leaf for part in state for leaf in leaves(part)]
    return [state]


def cut(batch, *at):
    edges = [0, *at, len(batch.value)]
    return [Batch(batch.index[a:b], batch.value[a:b]) for a, b in pairwise(edges)]


@pytest.mark.parametrize(("method", "likelihood"), [*every_floor()])
class TestContract:
    def test_state_is_all_arrays(self, method, likelihood):
        state, _ = method.update(method.init(0), made(likelihood)[0])
        assert all(isinstance(leaf, np.ndarray) for leaf in leaves(state))

    def test_an_empty_batch_changes_nothing(self, method, likelihood):
        batch, _ = made(likelihood)
        state, _ = method.update(method.init(0), batch)
        before = [leaf.copy() for leaf in leaves(state)]
        state, update = method.update(state, Batch(batch.index[:0], batch.value[:0]))
        assert all(np.array_equal(a, b) for a, b in zip(before, leaves(state), strict=True))
        assert [len(part) for part in update[:4]] == [0, 0, 0, 0]
        assert update.rejected == 0

    def test_predict_is_pure_and_variances_are_positive(self, method, likelihood):
        batch, _ = made(likelihood)
        state = method.init(0)
        for some in (batch.index[:0], batch.index[:5]):
            assert len(method.predict(state, some).mean) == len(some)
        state, update = method.update(state, batch)
        before = [leaf.copy() for leaf in leaves(state)]
        index = np.array([[0, 0, 0], [-1, 2, 3], [10**9, -1, 5], [-1, -1, -1]])
        first, second = method.predict(state, index), method.predict(state, index)
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
        assert all(np.array_equal(a, b) for a, b in zip(before, leaves(state), strict=True))
        for made_by in (first, update):
            assert np.isfinite(made_by.mean).all()
            assert ((made_by.var > 0) & np.isfinite(made_by.var)).all()
            assert (made_by.noise > 0).all() if likelihood is GAUSSIAN else (made_by.noise == 0).all()

    def test_the_update_holds_the_prediction_made_before_the_entry(self, method, likelihood):
        batch, _ = made(likelihood, n=40)
        state = method.init(0)
        for one in cut(batch, *range(1, 40)) if method.unit != "all" else [batch]:
            before = method.predict(state, one.index)
            state, update = method.update(state, one)
            for a, b in zip(before, update[:3], strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12)
            density = metrics.log_density(one.value, before, likelihood)
            assert update.log_evidence.mean() == pytest.approx(density)

    def test_how_calls_are_cut_does_not_matter(self, method, likelihood):
        if method.unit == "all":
            pytest.skip("sees all entries in one update")
        batch, _ = made(likelihood)
        whole, update = method.update(method.init(0), batch)
        state, means = method.init(0), []
        for part in cut(batch, 1, 2, 100, 450):
            state, got = method.update(state, part)
            means.append(got.mean)
        assert np.array_equal(np.concatenate(means), update.mean)
        predictions = method.predict(whole, batch.index), method.predict(state, batch.index)
        assert all(np.array_equal(a, b) for a, b in zip(*predictions, strict=True))


@pytest.mark.parametrize("make", [floors.biases, floors.static_biases])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_biases_recover_an_additive_truth(make, likelihood):
    batch, f = made(likelihood, n=3000)
    train, test = cut(batch, 2700)
    method = make(3, likelihood)
    state, _ = method.update(method.init(0), train)
    assert np.corrcoef(method.predict(state, test.index).mean, f[2700:])[0, 1] > 0.95


def test_mean_is_the_running_mean_and_variance():
    value = 1e9 + np.random.default_rng(0).normal(0, 3, 500)  # far from 0: sums of squares would be noise
    method = floors.mean(GAUSSIAN)
    _, update = method.update(method.init(0), Batch(np.zeros((500, 2), np.int64), value))
    assert update.mean[0] == 0  # the first value must not show in its own prediction
    for n in (1, 7, 499):
        assert update.mean[n] == pytest.approx(value[:n].mean(), rel=1e-15)
        assert update.noise[n] == pytest.approx((n * value[:n].var() + 1) / (n + 1), rel=1e-6)


def test_rate_is_the_running_rate():
    value = (np.random.default_rng(0).random(300) < 0.2).astype(float)
    method = floors.mean(PROBIT)
    _, update = method.update(method.init(0), Batch(np.zeros((300, 2), np.int64), value))
    probability = PROBIT.expected(update.mean, update.var)
    expected = [(value[:n].sum() + 1) / (n + 2) for n in range(300)]
    np.testing.assert_allclose(probability, expected, rtol=1e-9)


def test_online_biases_are_exact_where_the_model_is_one_gaussian():
    """One node per entry, seen once: then nothing but the offset is shared, and the filter is conjugate."""
    value = np.array([3.0, 5.0, 4.0])
    method = floors.biases(1, GAUSSIAN)
    state, _ = method.update(method.init(0), Batch(np.arange(3)[:, None], value[:3]))
    m, v, rate, shape = 0.0, floors.OFFSET_VAR, 1.0, 1.0
    for y in value:
        total = v + 1 / floors.RIDGE + 1
        rate, shape = rate + 0.5 * (y - m) ** 2 / total, shape + 0.5
        m, v = m + v / total * (y - m), v - v * v / total
    assert float(state.offset.mean) == pytest.approx(m)
    assert float(state.offset.var) == pytest.approx(v)
    assert float(state.noise.rate / state.noise.shape) == pytest.approx(rate / shape)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_the_scale_and_shift_of_the_values_do_not_matter_to_biases(scale):
    batch, f = made(GAUSSIAN, n=3000)
    method = floors.biases(3, GAUSSIAN)
    state, _ = method.update(method.init(0), Batch(batch.index, 7 * scale + scale * batch.value))
    prediction = method.predict(state, batch.index)
    error = (prediction.mean / scale - 7) - f
    assert np.sqrt(np.mean(error**2)) < 0.2
    assert np.sqrt(prediction.noise[0]) / scale == pytest.approx(1, rel=0.1 if scale >= 1 else 30)


def test_static_biases_agree_with_ridge_regression():
    batch, _ = made(GAUSSIAN, n=2000)
    method = floors.static_biases(3, GAUSSIAN)
    state, _ = method.update(method.init(0), batch)
    one_hot = OneHotEncoder().fit(batch.index)
    ridge = Ridge(alpha=floors.RIDGE, solver="cholesky").fit(
        one_hot.transform(batch.index).toarray(), batch.value
    )
    index = made(GAUSSIAN, n=200, seed=1)[0].index
    expected = ridge.predict(one_hot.transform(index).toarray())
    np.testing.assert_allclose(
        method.predict(state, index).mean, expected, atol=5e-4
    )  # 1 more of RIDGE: 4e-3


def test_static_probit_biases_are_at_the_optimum_of_the_penalised_likelihood():
    batch, _ = made(PROBIT, n=2000)
    sign = 2 * batch.value - 1
    starts = np.cumsum([1, *SHAPE[:-1]])

    def f(b):
        return b[0] + b[batch.index + starts].sum(axis=1)

    def loss(b):
        return floors.RIDGE * np.sum(b[1:] ** 2) / 2 - log_ndtr(sign * f(b)).sum()

    best = optimize.minimize(loss, np.zeros(1 + sum(SHAPE)), method="L-BFGS-B").x
    method = floors.static_biases(3, PROBIT)
    state, _ = method.update(method.init(0), batch)
    np.testing.assert_allclose(method.predict(state, batch.index).mean, f(best), atol=0.02)


def test_a_second_update_of_a_static_floor_starts_over():
    first, second = made(GAUSSIAN)[0], made(GAUSSIAN, seed=5)[0]
    method = floors.static_biases(3, GAUSSIAN)
    state, _ = method.update(method.update(method.init(0), first)[0], second)
    alone, _ = method.update(method.init(0), second)
    assert np.array_equal(method.predict(state, first.index).mean, method.predict(alone, first.index).mean)


def test_an_unseen_node_has_the_prior():
    batch, _ = made(GAUSSIAN)
    for make in (floors.biases, floors.static_biases):
        method = make(3, GAUSSIAN)
        state, _ = method.update(method.init(0), batch)
        prediction = method.predict(state, np.array([[-1, 10**6, -1]]))
        assert prediction.mean[0] == pytest.approx(float(state.offset.mean))
        assert prediction.var[0] == pytest.approx(
            prediction.noise[0] * (float(state.offset.var) + 3 / floors.RIDGE)
        )


@pytest.mark.parametrize("absurd", [1e200, np.nan])
@pytest.mark.parametrize(
    "method", [floors.mean(GAUSSIAN), floors.biases(2, GAUSSIAN), floors.static_biases(2, GAUSSIAN)]
)
def test_an_absurd_value_is_refused_and_counted(method, absurd):
    index = np.zeros((4, 2), np.int64)
    state, update = method.update(method.init(0), Batch(index, np.array([1.0, absurd, 2.0, 1.5])))
    assert update.refused == 1
    assert update.rejected == (1 if isinstance(state, floors.MeanState) else 3)  # the mean, or three biases
    prediction = method.predict(state, index)
    assert 1 < prediction.mean[0] < 2
    assert np.isfinite(prediction.var).all()


def test_new_nodes_leave_the_others_alone():
    method = floors.biases(1, GAUSSIAN)
    state, _ = method.update(method.init(0), Batch(np.array([[0], [1], [0]]), np.array([1.0, 2.0, 3.0])))
    before = [float(state.nodes[0].mean[row]) for row in (0, 1)]
    state, _ = method.update(state, Batch(np.array([[57]]), np.array([2.0])))
    assert [float(state.nodes[0].mean[row]) for row in (0, 1)] == before
    assert state.counts.nodes.tolist() == [58]


def test_unknown_likelihoods_are_refused():
    for make in (
        floors.mean,
        lambda name: floors.biases(2, name),
        lambda name: floors.static_biases(2, name),
    ):
        with pytest.raises(ValueError, match="poisson"):
            make("poisson")
