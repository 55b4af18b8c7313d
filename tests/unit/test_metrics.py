from functools import partial

import numpy as np
import pytest
from scipy import stats
from sklearn import calibration
from sklearn import metrics as reference

from spidertensor.evaluation import metrics
from spidertensor.method import Prediction
from spidertensor.spider.calibration import EDGES, Histogram, quantile
from spidertensor.spider.likelihoods import GAUSSIAN, LIKELIHOODS, PROBIT


@pytest.fixture
def continuous():
    rng = np.random.default_rng(1)
    mean, var = rng.normal(3, 2, 500), rng.gamma(2, 1, 500)
    return rng.normal(mean, 1.3 * np.sqrt(var)), mean, var


@pytest.fixture
def binary():
    rng = np.random.default_rng(2)
    probability = rng.beta(0.5, 1, 500).round(2)  # rounded: many ties, zeros and ones among them
    return (rng.random(500) < probability**0.7).astype(float), probability


def test_rmse_and_mae_agree_with_scikit_learn(continuous):
    value, mean, _ = continuous
    assert metrics.rmse(value, mean) == pytest.approx(reference.root_mean_squared_error(value, mean))
    assert metrics.mae(value, mean) == pytest.approx(reference.mean_absolute_error(value, mean))


def test_auc_with_ties_agrees_with_scikit_learn_and_with_all_pairs(binary):
    value, score = binary
    assert metrics.auc(value, score) == pytest.approx(reference.roc_auc_score(value, score))
    gaps = score[value == 1][:, None] - score[value == 0][None, :]
    assert metrics.auc(value, score) == pytest.approx(np.mean((gaps > 0) + 0.5 * (gaps == 0)))


@pytest.mark.parametrize(
    ("value", "score", "expected"),
    [([0, 1], [5, 5], 0.5), ([0, 0, 1], [1, 2, 3], 1), ([1, 1, 0], [1, 2, 3], 0)],
)
def test_auc_by_hand(value, score, expected):
    assert metrics.auc(value, score) == expected


@pytest.mark.parametrize("value", [[], [1, 1], [0]])
def test_auc_is_nan_with_one_class(value):
    assert np.isnan(metrics.auc(value, np.zeros(len(value))))


def test_log_loss_agrees_with_scikit_learn_even_where_it_is_sure_and_wrong(binary):
    value, probability = binary
    assert metrics.log_loss(value, probability) == pytest.approx(reference.log_loss(value, probability))
    for sure_and_wrong in ([1], [0.0]), ([0], [1.0]):
        expected = reference.log_loss(*sure_and_wrong, labels=[0, 1])
        assert metrics.log_loss(*sure_and_wrong) == pytest.approx(expected)


def test_gaussian_log_density_agrees_with_scipy(continuous):
    value, mean, var = continuous
    expected = stats.norm(mean, np.sqrt(var)).logpdf(value).mean()
    for noise in (0.0, 0.3):
        prediction = Prediction(mean, var * (1 - noise), var * noise)
        assert metrics.log_density(value, prediction, GAUSSIAN) == pytest.approx(expected)


def test_bernoulli_log_density_agrees_with_sampling_the_latent():
    value, mean, var = np.array([1.0, 0.0]), np.array([0.4, -1.1]), np.array([0.5, 2.0])
    f = np.random.default_rng(3).normal(mean, np.sqrt(var), (400_000, 2))
    sampled = np.mean(np.where(value == 1, stats.norm.cdf(f), stats.norm.cdf(-f)), axis=0)
    density = metrics.log_density(value, Prediction(mean, var, np.zeros(2)), PROBIT)
    assert density == pytest.approx(np.log(sampled).mean(), abs=3e-3)


def test_bernoulli_log_density_is_minus_the_log_loss_of_the_probability_and_exact_in_the_tail():
    value, mean, var = np.array([1, 0, 0]), np.array([0.3, 2, -1]), np.array([0.1, 1, 3])
    loss = metrics.log_loss(value, PROBIT.expected(mean, var))
    none = np.zeros(3)
    assert metrics.log_density(value, Prediction(mean, var, none), PROBIT) == pytest.approx(-loss)
    far = Prediction(np.array([-100.0]), np.zeros(1), np.zeros(1))
    assert metrics.log_density([1], far, PROBIT) == pytest.approx(stats.norm.logcdf(-100))


def test_coverage_agrees_with_scipy_intervals(continuous):
    value, mean, var = continuous
    for level in (0.5, 0.8, 0.9, 0.95, 0.99):
        low, high = stats.norm(mean, np.sqrt(var)).interval(level)
        assert metrics.coverage(value, mean, var, level) == np.mean((low <= value) & (value <= high))
        named = metrics.METRICS[f"coverage_{100 * level:.0f}"]
        assert named.of(value, Prediction(mean, 0.3 * var, 0.7 * var), GAUSSIAN) == pytest.approx(
            np.mean((low <= value) & (value <= high))
        )
        assert named.target == level


def test_coverage_of_a_right_prediction_is_its_level():
    rng = np.random.default_rng(4)
    mean, var = rng.normal(size=100_000), rng.gamma(2, 1, 100_000)
    value = rng.normal(mean, np.sqrt(var))
    levels, covered = metrics.calibration_curve(partial(metrics.inside, value, mean, var))
    np.testing.assert_allclose(covered, levels, atol=0.006)


@pytest.mark.parametrize("level", [0, 1, -1, np.nan])
def test_coverage_wants_a_level(level):
    with pytest.raises(ValueError, match="level"):
        metrics.coverage([1], [1], [1], level)
    with pytest.raises(ValueError, match="level"):
        metrics.inside_by_below([0.5], level)


def test_calibrated_intervals_need_not_be_symmetric():
    value, mean, var = np.array([0.9, 1.1, 6.9, 7.1]), np.full(4, 3.0), np.full(4, 4.0)
    ends = {0.25: -1.0, 0.75: 2.0}  # of the residual in standard deviations, which are 2: from 1 to 7
    assert metrics.inside(value, mean, var, 0.5, ends.__getitem__).tolist() == [False, True, True, False]
    assert metrics.coverage(value, mean, var, 0.5, ends.__getitem__) == 0.5


def test_quantiles_of_a_histogram_with_an_even_mass_cover_their_level_of_even_residuals():
    evenly = Histogram(np.where((EDGES[:-1] > -1.01) & (EDGES[1:] < 1.01), 3.0, 0.0))  # from -1 to 1
    residual = np.linspace(-1, 1, 2_001)
    for level in (0.5, 0.8, 0.9, 0.95, 0.99):
        covered = metrics.coverage(
            5 + 2 * residual, np.full(2_001, 5), np.full(2_001, 4), level, partial(quantile, evenly)
        )
        assert covered == pytest.approx(level, abs=2 / 2_001)


@pytest.mark.parametrize("law", [stats.t(2.5, loc=0.3), stats.expon(-1), stats.norm(0.2, 3)])
def test_what_lay_below_says_the_same_as_the_quantiles(law):
    residual = law.rvs(3_000, random_state=np.random.default_rng(5))
    none, one = np.zeros(3_000), np.ones(3_000)
    for level in (0.1, 0.5, 0.9, 0.99):
        by_quantile = metrics.inside(residual, none, one, level, law.ppf)
        by_below = metrics.inside_by_below(law.cdf(residual), level)
        np.testing.assert_array_equal(by_below, by_quantile)
        assert by_below.mean() == pytest.approx(level, abs=0.03)


def test_a_value_that_was_refused_is_outside():
    assert metrics.inside_by_below([np.nan, 0.5], 0.99).tolist() == [False, True]


def test_the_worst_windows_are_those_of_all_windows():
    covered = np.random.default_rng(6).random(300) < 0.9
    shares = [covered[start : start + 50].mean() for start in range(251)]
    assert metrics.lowest_and_highest(covered, 50) == pytest.approx((min(shares), max(shares)))
    assert metrics.lowest_and_highest(covered, 300) == pytest.approx((covered.mean(), covered.mean()))
    assert metrics.lowest_and_highest(covered, 301) is None


def test_a_bad_stretch_does_not_hide_across_the_border_of_two_windows():
    covered = np.ones(20_000, bool)
    covered[7_500:12_500] = False
    assert metrics.lowest_and_highest(covered) == (0, 1)


def test_reliability_curve_agrees_with_scikit_learn(binary):
    value, probability = binary
    probability = np.clip(probability + 1e-6, 0, 1)  # scikit-learn puts a probability on an edge below it
    predicted, observed, counts = metrics.reliability_curve(value, probability, bins=10)
    expected_observed, expected_predicted = calibration.calibration_curve(value, probability, n_bins=10)
    np.testing.assert_allclose(predicted, expected_predicted)
    np.testing.assert_allclose(observed, expected_observed)
    assert counts.sum() == len(value)


def test_a_probability_on_an_edge_belongs_to_the_bin_above_it():
    predicted, observed, counts = metrics.reliability_curve([0, 1, 1, 0], [0.0, 0.5, 1.0, 0.25], bins=2)
    assert predicted.tolist() == [0.125, 0.75]
    assert observed.tolist() == [0, 1]
    assert counts.tolist() == [2, 2]


def test_calibration_error_agrees_with_a_loop(binary):
    value, probability = binary
    expected = 0.0
    for b in range(15):
        inside = (probability >= b / 15) & ((probability < (b + 1) / 15) | (b == 14))
        expected += abs(np.sum(value[inside]) - np.sum(probability[inside])) / len(value)
    assert metrics.calibration_error(value, probability) == pytest.approx(expected)


def test_calibration_error_of_a_constant_does_not_depend_on_the_order():
    value = np.repeat([1.0, 0.0], 50)
    assert metrics.calibration_error(value, np.full(100, 0.5)) == pytest.approx(0)
    assert metrics.calibration_error(value, np.full(100, 0.8)) == pytest.approx(0.3)


def test_no_entries_no_score():
    none = np.zeros(0)
    scores = [
        metrics.rmse(none, none),
        metrics.mae(none, none),
        metrics.log_loss(none, none),
        *(metrics.log_density(none, Prediction(none, none, none), each) for each in LIKELIHOODS.values()),
        metrics.coverage(none, none, none, 0.5),
        metrics.calibration_error(none, none),
    ]
    assert np.isnan(scores).all()


@pytest.mark.parametrize("likelihood", LIKELIHOODS.values())
def test_a_likelihood_is_scored_by_metrics_and_a_curve_that_exist(likelihood):
    value, n = np.array([1.0, 0.0, 1.0, 0.0]), 4
    prediction = Prediction(np.array([0.8, -0.2, 0.1, 0.3]), np.full(n, 0.5), np.full(n, 0.1))
    for name in (likelihood.metric, *likelihood.metrics):
        assert np.isfinite(metrics.METRICS[name].of(value, prediction, likelihood))
    predicted, observed = metrics.CURVES[likelihood.metric].of(value, prediction, likelihood)
    assert predicted.shape == observed.shape


def test_the_loss_of_a_metric_is_lower_where_it_is_better():
    losses = {name: metric.loss for name, metric in metrics.METRICS.items()}
    assert losses["rmse"](1.0) < losses["rmse"](2.0)
    assert losses["auc"](0.9) < losses["auc"](0.6)
    assert losses["log_density"](-1.0) < losses["log_density"](-2.0)
    assert losses["coverage_50"](0.5) < losses["coverage_50"](0.45) < losses["coverage_50"](0.6)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="0 or 1"):
        metrics.auc([1, 2], [0, 1])
    with pytest.raises(ValueError, match="between 0 and 1"):
        metrics.log_loss([1], [np.nan])
    with pytest.raises(ValueError, match="predictions"):
        metrics.rmse([1, 2], [[1, 2]])


def test_float32_and_lists_are_scored_in_float64():
    value = np.full(1000, 1e4, np.float32)
    assert metrics.rmse(value, (value + np.float32(0.001)).tolist()) == pytest.approx(0.001, rel=0.05)
