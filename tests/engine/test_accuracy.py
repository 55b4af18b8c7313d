"""Accuracy: how near to a known truth, how far from floors on real data, whether intervals are honest.

Measured when the bands were set, mean and standard deviation of ten seeds (the tests take three of them; of
the default, whose `fit` makes several passes, one: `make bench` takes five, on larger data):

                                              default             paper               floor
    synthetic: rmse to the truth              0.071 +- 0.007      0.096 +- 0.007      biases 0.86
    synthetic: noise found / noise            0.998 +- 0.007      1.71  +- 0.10
    synthetic: 90 % interval covers           0.903 +- 0.006      0.993 +- 0.003
    synthetic, binary: log loss / best        1.046 +- 0.017      1.039 +- 0.014      biases 2.27
    movielens-100k: rmse                      0.930 +- 0.007      0.940 +- 0.008      mean 1.127
    movielens-100k: better than biases by     0.0093 +- 0.0022   -0.0014 +- 0.0021    (seen all at once)
                                              0.0116 +- 0.0022    0.0009 +- 0.0019    (in one pass)
    movielens-100k: 90 % interval covers      0.908 +- 0.003      0.938 +- 0.003
    dblp, 100,000 entries: auc                0.8841 +- 0.0021    0.8800 +- 0.0016    biases 0.877
    dblp: better than biases by               0.0069 +- 0.0018    0.0028 +- 0.0014    (seen all at once)

Bands are about four standard deviations wide, fewer where the floor is near. At least one of them fails for
each of these faults, put in on purpose: factors that never move, half a step, half the narrowing, a gradient
without its slope, noise never learned, uncertainty counted twice in the default's noise, no step for zeros,
curvature with the wrong sign, traps 1 and 2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from scipy.special import ndtr

from spidertensor import Batch, SpiderClassifier, SpiderRegressor
from spidertensor.evaluation import floors, metrics
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT

SEEDS = (0, 1, 2)
NOISE = 0.3
PRESETS = pytest.mark.parametrize("preset", [pytest.param("default", marks=pytest.mark.slow), "paper"])


def seeds_of(preset: str) -> tuple[int, ...]:
    return SEEDS if preset == "paper" else SEEDS[:1]


def build(kind, preset, seed):
    return (kind.paper if preset == "paper" else kind)(random_state=seed)


def floor(method, train: Batch, index) -> np.ndarray:
    state, _ = method.update(method.init(0), train)
    return method.predict(state, index).mean


# --- a truth that is known: no additive model comes near it, the noise is all that should be left ---


class Truth(NamedTuple):
    train: Batch
    test: Batch
    f: np.ndarray  # of the test entries


def synthetic(seed: int, binary: bool) -> Truth:
    rng = np.random.default_rng(seed)
    n, shape = 65_000, (40, 30, 5)
    index = np.column_stack([rng.integers(0, size, n) for size in shape])
    a, b, c = (rng.uniform(-1, 1, size)[index[:, mode]] for mode, size in enumerate(shape))
    f = np.sin(3 * (a + b)) + 1.5 * np.abs(a - b * c) - a * c
    f -= f.mean()
    if binary:
        f *= 2
        y = (rng.random(n) < ndtr(f)).astype(float)
    else:
        y = f + NOISE * rng.standard_normal(n)
    train, test = slice(0, 60_000), slice(60_000, n)
    return Truth(Batch(index[train], y[train]), Batch(index[test], y[test]), f[test])


@PRESETS
def test_a_nonlinear_tensor_is_learned_down_to_its_noise(preset):
    paper = preset == "paper"
    for seed in seeds_of(preset):
        truth = synthetic(seed, binary=False)
        model = build(SpiderRegressor, preset, seed).fit(*truth.train[:2])
        mean, std = model.predict(truth.test.index, return_std=True)
        additive = floor(floors.static_biases(3, GAUSSIAN), truth.train, truth.test.index)
        assert metrics.rmse(truth.f, mean) < (0.125 if paper else 0.10)
        assert metrics.rmse(truth.f, additive) > 0.6
        assert metrics.rmse(truth.test.value, mean) < 1.11 * NOISE
        covered = metrics.coverage(truth.test.value, mean, std**2, 0.9)
        noise = np.sqrt(model.predict_parts(truth.test.index).noise.mean()) / NOISE
        if paper:  # its noise stays too large, by its own rule (docs/method.md, trap 9)
            assert covered > 0.97
            assert 1.3 < noise < 2.1
        else:
            assert 0.88 < covered < 0.93
            assert 0.95 < noise < 1.04  # as predicted, by nodes and level: the mean of these is a little low


@PRESETS
def test_a_nonlinear_binary_tensor_is_learned_nearly_to_its_entropy(preset):
    for seed in seeds_of(preset):
        truth = synthetic(seed, binary=True)
        p = build(SpiderClassifier, preset, seed).fit(*truth.train[:2]).predict_proba(truth.test.index)[:, 1]
        best = ndtr(truth.f)
        additive = ndtr(floor(floors.static_biases(3, PROBIT), truth.train, truth.test.index))
        loss, least, floor_loss = (metrics.log_loss(truth.test.value, q) for q in (p, best, additive))
        assert loss < 1.10 * least
        assert floor_loss > 1.5 * least
        assert metrics.auc(truth.test.value, p) > metrics.auc(truth.test.value, best) - 0.01
        assert metrics.calibration_error(truth.test.value, p) < 0.03


# --- real data, where it is ---


def arrays(data_folder, name):
    path = data_folder / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"no {name}: {path} is not there")
    return np.load(path)


@pytest.mark.slow
@PRESETS
def test_movielens_100k_held_out(preset, data_folder):
    """One pass over 90 % of it, against biases that take one pass too, and biases that see all at once.

    The default beats both. The paper's preset, with so few entries, only comes within 0.005 of the latter.
    """
    data = arrays(data_folder, "movielens-100k")
    index, value = data["indices"].astype(np.int64), data["values"].astype(float)
    gains, covered = [], []
    for seed in seeds_of(preset):
        order = np.random.default_rng(seed).permutation(len(value))
        learn, test = order[: len(value) * 9 // 10], order[len(value) * 9 // 10 :]
        train = Batch(index[learn], value[learn])
        model = build(SpiderRegressor, preset, seed).fit(*train[:2])
        mean = model.predict(index[test])
        low, high = model.predict_interval(index[test])
        rivals = [
            floor(each(2, GAUSSIAN), train, index[test]) for each in (floors.biases, floors.static_biases)
        ]
        rivals.append(np.full(len(test), train.value.mean()))
        rmse = metrics.rmse(value[test], mean)
        gains.append([metrics.rmse(value[test], rival) - rmse for rival in rivals])
        covered.append(np.mean((low <= value[test]) & (value[test] <= high)))
    over_online, over_static, over_mean = np.mean(gains, axis=0)
    assert over_mean > 0.175
    assert over_online > {"default": 0.007, "paper": -0.003}[preset]
    assert over_static > {"default": 0.005, "paper": -0.005}[preset]
    least, most = 0.875, 0.925  # calibrated by about a thousand entries
    assert min(covered) > least
    assert max(covered) < most


@pytest.mark.slow
@PRESETS
def test_dblp_100_000_entries(preset, data_folder):
    data = arrays(data_folder, "dblp")
    index, value = data["train_indices"].astype(np.int64), data["train_values"].astype(float)
    test = Batch(data["clean_test_indices"].astype(np.int64), data["clean_test_values"].astype(float))
    scores, gains = [], []
    for seed in seeds_of(preset):
        order = np.random.default_rng(seed).permutation(len(value))[:100_000]
        train = Batch(index[order], value[order])
        p = build(SpiderClassifier, preset, seed).fit(*train[:2]).predict_proba(test.index)[:, 1]
        scores.append(metrics.auc(test.value, p))
        rival = floor(floors.static_biases(3, PROBIT), train, test.index)
        gains.append(scores[-1] - metrics.auc(test.value, rival))
    assert np.mean(scores) > {"default": 0.880, "paper": 0.876}[preset]
    assert np.mean(gains) > {"default": 0.004, "paper": 0.0}[preset]
