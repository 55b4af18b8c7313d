"""Evidence against scipy, quadrature and continued fractions; its derivatives against differences."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import erfcx, log_ndtr, ndtr
from scipy.stats import norm

from poisson import Poisson
from spidertensor.spider import likelihoods
from spidertensor.spider.likelihoods import LIKELIHOODS, check, likelihood_by_name
from spidertensor.spider.likelihoods.gaussian import forgetting, misfit
from spidertensor.spider.likelihoods.kernel import GAUSSIAN, PROBIT, evidence
from spidertensor.spider.likelihoods.probit import mills

TAILS = np.concatenate(
    [-np.geomspace(1e4, 1e-6, 300), [0.0], np.geomspace(1e-6, 1e4, 300), -30 + np.linspace(-0.1, 0.1, 21)]
)
# (y, alpha, beta, noise) of ordinary and of extreme entries
ENTRIES = [
    (1.0, 0.3, 0.5, 0.2),
    (0.0, 0.3, 0.5, 0.2),
    (1.0, -2.0, 4.0, 1.0),
    (0.0, 5.0, 0.01, 0.1),
    (1.0, 3.0, 20.0, 3.0),
    (0.0, 0.0, 1.0, 1.0),
]


def continued_fraction(x: float) -> float:
    """1 / (x + 2 / (x + 3 / (x + ...))) = phi(x) / Phi(-x) - x for x > 0, without any cancellation."""
    rest = x
    for k in range(2000, 1, -1):
        rest = x + k / rest
    return 1 / rest


# --- mills ----------------------------------------------------------------------------------------


def test_log_cdf_in_both_tails():
    got = np.array([mills(t)[0] for t in TAILS])
    np.testing.assert_allclose(got, log_ndtr(TAILS), rtol=1e-10, atol=0)


def test_ratio_in_both_tails():
    got = np.array([mills(t)[1] for t in TAILS])
    with np.errstate(over="ignore"):
        wanted = math.sqrt(2 / math.pi) / erfcx(-TAILS / math.sqrt(2))
    np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-300)


def test_ratio_plus_t_does_not_cancel():
    """R + t is 1/|t| far to the left while R and t are |t|: a sum of the two would have nothing left."""
    left = TAILS[TAILS < -2]
    got = np.array([mills(t)[2] for t in left])
    np.testing.assert_allclose(got, [continued_fraction(-t) for t in left], rtol=1e-9)
    right = TAILS[TAILS >= -2]
    with np.errstate(over="ignore"):
        wanted = math.sqrt(2 / math.pi) / erfcx(-right / math.sqrt(2)) + right
    np.testing.assert_allclose([mills(t)[2] for t in right], wanted, rtol=1e-10)


def test_no_step_where_the_series_takes_over():
    below, above = mills(np.nextafter(-30.0, -31.0)), mills(-30.0)
    np.testing.assert_allclose(below, above, rtol=1e-9)


def test_mills_is_monotone_and_finite():
    t = np.sort(TAILS)
    values = np.array([mills(x) for x in t])
    assert np.isfinite(values).all()
    assert (np.diff(values[:, 0]) >= 0).all()
    assert (np.diff(values[:, 1]) <= 0).all()
    assert (values[:, 2] > 0).all()


# --- evidence -------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ENTRIES)
def test_gaussian_evidence(entry):
    y, alpha, beta, noise = entry
    log_z, _, _, c = evidence(GAUSSIAN, y, alpha, beta, noise)
    assert log_z == pytest.approx(norm.logpdf(y, alpha, math.sqrt(beta + noise)), rel=1e-12)
    assert c == pytest.approx(1 / (beta + noise), rel=1e-12)


@pytest.mark.parametrize("entry", ENTRIES)
def test_probit_evidence(entry):
    """Z = ∫ Phi((2y-1) f) N(f | alpha, beta) df; the noise is no part of it."""
    y, alpha, beta, _ = entry
    sd, z = math.sqrt(beta), 2 * y - 1
    wanted, _ = quad(
        lambda f: ndtr(z * f) * norm.pdf(f, alpha, sd), alpha - 12 * sd, alpha + 12 * sd, epsabs=1e-14
    )
    assert evidence(PROBIT, y, alpha, beta, 0.0)[0] == pytest.approx(math.log(wanted), rel=1e-9)
    assert evidence(PROBIT, y, alpha, beta, 0.0) == evidence(PROBIT, y, alpha, beta, 7.0)


@pytest.mark.parametrize("likelihood", [GAUSSIAN, PROBIT])
@pytest.mark.parametrize("entry", ENTRIES)
def test_derivatives(likelihood, entry):
    y, alpha, beta, noise = entry
    log_z = lambda a, b: evidence(likelihood, y, a, b, noise)[0]  # noqa: E731
    _, da, db, c = evidence(likelihood, y, alpha, beta, noise)
    step = 1e-5
    da_difference = (log_z(alpha + step, beta) - log_z(alpha - step, beta)) / (2 * step)
    step *= beta
    db_difference = (log_z(alpha, beta + step) - log_z(alpha, beta - step)) / (2 * step)
    assert da == pytest.approx(da_difference, rel=1e-6, abs=1e-9)
    assert db == pytest.approx(db_difference, rel=1e-6, abs=1e-8)
    assert c == pytest.approx(da**2 - 2 * db, rel=1e-9)


@pytest.mark.parametrize("likelihood", [GAUSSIAN, PROBIT])
@pytest.mark.parametrize("y", [0.0, 1.0])
def test_an_entry_narrows_and_never_inverts(likelihood, y):
    """0 < c and c beta < 1 are why variances stay positive without curvature."""
    for alpha in (-1e4, -100.0, -30.0, -3.0, 0.0, 3.0, 30.0, 100.0, 1e4):
        for beta in (1e-8, 1e-3, 1.0, 50.0, 1e6):
            log_z, da, db, c = evidence(likelihood, y, alpha, beta, 0.25)
            assert np.isfinite([log_z, da, db, c]).all()
            assert c * beta < 1
            certain = likelihood == PROBIT and (2 * y - 1) * alpha / math.sqrt(1 + beta) > 35
            assert c >= 0 if certain else c > 0  # phi(t) is below the smallest float there


@pytest.mark.parametrize("y", [0.0, 1.0])
@pytest.mark.parametrize("alpha", [-1e4, -50.0, -31.0, -29.0, -1.0, 2.0, 40.0])
def test_probit_is_symmetric(y, alpha):
    log_z, da, db, c = evidence(PROBIT, y, alpha, 0.7, 0.0)
    assert evidence(PROBIT, 1 - y, -alpha, 0.7, 0.0) == (log_z, -da, db, c)


# --- small things ---------------------------------------------------------------------------------


def test_names():
    assert list(LIKELIHOODS) == ["gaussian", "probit", "count"]
    assert (likelihood_by_name("gaussian").code, likelihood_by_name("probit").code) == (GAUSSIAN, PROBIT)
    for wrong in ("poisson", likelihoods.GAUSSIAN, None, ["gaussian"]):
        with pytest.raises(ValueError, match="gaussian, probit"):
            likelihood_by_name(wrong)


def test_every_likelihood_has_its_own_name_code_and_object():
    """A copy, or one from another process, is still the one object that everything compares with."""
    assert len({each.code for each in LIKELIHOODS.values()}) == len(LIKELIHOODS)
    for name, each in LIKELIHOODS.items():
        assert each.name == name
        assert copy.deepcopy(each) is each
        assert pickle.loads(pickle.dumps(each)) is each


def test_another_likelihood_is_refused():
    """By the compiled kernel, which has no branch for its code, and by whoever asks with `check`."""
    other = Poisson()
    with pytest.raises(ValueError, match="without a branch"):
        evidence(other.code, 1.0, 0.0, 1.0, 1.0)
    assert check(likelihoods.PROBIT, LIKELIHOODS.values(), "this") is likelihoods.PROBIT
    with pytest.raises(ValueError, match="poisson likelihood, only gaussian and probit and count"):
        check(other, LIKELIHOODS.values(), "this")
    for wrong in ("gaussian", 0, None):
        with pytest.raises(ValueError, match="this needs a likelihood object"):
            check(wrong, LIKELIHOODS.values(), "this")


def test_forgetting():
    assert forgetting(None) == 1.0
    assert forgetting(4) == 0.75
    for wrong in (1, 0, -5, math.nan):
        with pytest.raises(ValueError, match="noise_memory"):
            forgetting(wrong)


def test_noise_var():
    shape, rate = np.array(4.0), np.array(2.0)
    assert likelihoods.GAUSSIAN.noise_var(shape, rate) == 0.5
    assert likelihoods.PROBIT.noise_var(shape, rate) == 0.0


@pytest.mark.parametrize(("beta", "noise"), [(0.01, 1.0), (1.0, 1.0), (5.0, 0.2)])
def test_noise_is_unbiased_where_the_model_is_right(beta, noise):
    """With y ~ N(alpha, beta + noise) an entry must add `noise` on average: integrate misfit over y.

    The paper's update (alpha and beta from before the entry) adds noise + 2 beta.
    """
    spread = math.sqrt(beta + noise)

    def average(paper):
        def integrand(y):
            density = math.exp(-0.5 * (y / spread) ** 2) / (spread * math.sqrt(2 * math.pi))
            return density * misfit(y, 0.0, beta, noise, paper)

        return quad(integrand, -12 * spread, 12 * spread)[0]

    assert average(False) == pytest.approx(noise, rel=1e-8)
    assert average(True) == pytest.approx(noise + 2 * beta, rel=1e-8)
