"""Files with valid checksums and changed content: refused, or a model that predicts finite numbers."""

from __future__ import annotations

import copy
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import spidertensor
from spidertensor import CheckpointError, SpiderClassifier, SpiderRegressor, checkpoint
from spidertensor.estimator.groups import paths
from spidertensor.estimator.reach import after_refinement, reach
from spidertensor.spider import posterior
from spidertensor.spider.likelihoods import GAUSSIAN
from spidertensor.spider.network import ACTIVATIONS, Network
from spidertensor.spider.posterior import Prior
from spidertensor.spider.sequential import sequential
from spidertensor.spider.spike_slab import refine_layer

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "stress"))
import files

pytestmark = [
    pytest.mark.filterwarnings("ignore::spidertensor.SpiderWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.fixture(scope="module")
def models() -> list[files.Content]:
    return files.saved_models()


def test_the_originals_are_good(models, tmp_path):
    for original in models:
        records, payload = files.laid_out(original.arrays)
        header = {"arrays": records, "optional": [], "sections": original.sections}
        (tmp_path / "model").write_bytes(files.packed(header, payload))
        assert files.outcome(tmp_path / "model") == "good"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_changed_files_are_refused_or_good(models, tmp_path, part):
    """A few hundred; benchmarks/stress/files.py has as many as are asked for."""
    path, found = tmp_path / "model", Counter()
    for seed in range(100_000 + 100 * part, 100_000 + 100 * (part + 1)):
        content, changes = files.mutated(seed, models)
        path.write_bytes(content)
        outcome = files.outcome(path)
        assert outcome in ("refused", "good"), (seed, changes)
        found[outcome] += 1
    assert min(found["refused"], found["good"]) >= 15


def member(name: str) -> str:
    return f"committee/members/0/{name}"


def large(*names: str, factor: float):
    """All numbers of some arrays of the first member, larger."""

    def change(arrays, sections):
        for name in names:
            arrays[member(name)] = arrays[member(name)] * np.asarray(factor, arrays[member(name)].dtype)

    return change


def one(name: str, value: float):
    def change(arrays, sections):
        arrays[member(name)] = arrays[member(name)].copy()
        arrays[member(name)].flat[0] = value

    return change


def params(**values):
    return lambda arrays, sections: sections["model"]["params"].update(values)


def units(scale: float, followed: float):
    def change(arrays, sections):
        sections["model"]["scale"] = scale
        arrays[member("stream/scale")] = np.array(followed)

    return change


LAYERS = [f"posterior/weights/{layer}" for layer in range(3)]
OVERFLOWS = {
    "means of three layers": large(*(f"{layer}/mean" for layer in LAYERS), factor=1e13),
    "variances of three layers": large(*(f"{layer}/var" for layer in LAYERS), factor=1e13),
    "means of factors": large(*(f"posterior/factors/{mode}/mean" for mode in range(3)), factor=1e17),
    "a variance far above its prior's": one("posterior/factors/2/var", 1e8),
    "a variance of a weight far above its prior's": one("posterior/weights/1/var", 1e8),
    "a site that makes a weight huge": one("sites/1/precision_mean", 1e21),
    "nodes that start far away": params(multilinear_start=3e24),
    "two large scales": units(1e90, 1e90),
    "two small scales": units(1e-90, 1e-90),
    "members that are numbers": params(committee=[1, 2, 3, 4]),
    "noise of the largest and the smallest number": one("posterior/noise/shape", 1e-300),
}  # fmt: skip


@pytest.mark.parametrize("case", OVERFLOWS)
def test_numbers_whose_products_overflow(models, tmp_path, case):
    arrays, sections = dict(models[0].arrays), copy.deepcopy(models[0].sections)
    checkpoint.save(tmp_path / "model", arrays, sections)
    spidertensor.load(tmp_path / "model")
    OVERFLOWS[case](arrays, sections)
    checkpoint.save(tmp_path / "model", arrays, sections)
    with pytest.raises(CheckpointError):
        spidertensor.load(tmp_path / "model")


# --- the bound behind that ---


def wild_state(network: Network, prior: Prior, seed: int) -> posterior.State:
    """Random numbers of many sizes in all arrays."""
    rng = np.random.default_rng(seed)
    state = posterior.init(network, prior, seed)
    state = posterior.grow(state, network, prior, np.array([4] * network.n_modes))
    for part in (*state.posterior.factors, *state.posterior.weights):
        part.mean[:] = rng.normal(size=part.mean.shape) * 10.0 ** rng.uniform(-2, 2)
        part.var[:] = rng.uniform(0.1, 1, part.var.shape) * 10.0 ** rng.uniform(-3, 2)
    return state


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("product", [False, True])
def test_no_prediction_is_beyond_its_reach(activation, product):
    """Holds for all combinations of known and new nodes; and the bound is not vacuous."""
    tightest = 0.0
    for seed, hidden in enumerate([(), (1,), (3,), (5, 2), (4, 4, 4)] * 3):
        network = Network(
            (2, 1, 3), hidden, activation, bias=bool(seed % 2), multilinear=seed % 3, product=product
        )
        prior = Prior(multilinear_start=2.0)
        method, state = sequential(network, GAUSSIAN, prior), wild_state(network, prior, seed)
        far = reach(state, network, prior)
        index = np.stack(np.meshgrid(*[np.arange(-1, 4)] * 3), axis=-1).reshape(-1, 3)
        mean, var, _ = method.predict(state, index)
        assert np.abs(mean).max() <= far.f * 1.00001
        assert var.max() <= far.var * 1.00001
        tightest = max(tightest, np.abs(mean).max() / far.f, var.max() / far.var)
        new = posterior.grow(state, network, prior, np.array([60] * 3))  # and of nodes that come later
        mean, var, _ = method.predict(new, np.random.default_rng(seed).integers(60, size=(500, 3)))
        assert np.abs(mean).max() <= far.f * 1.00001
        assert var.max() <= far.var * 1.00001
    assert tightest > 0.3


def test_no_refinement_is_beyond_its_reach():
    network, prior = Network((2, 2), (5, 4)), Prior(slab_var=2.0)
    moved = 0
    for seed in range(20):
        state, rng = wild_state(network, prior, seed), np.random.default_rng(seed)
        for site in state.sites:
            site.precision[:] = rng.uniform(-2, 2, site.precision.shape)
            site.precision_mean[:] = rng.normal(size=site.precision.shape) * 10.0 ** rng.uniform(0, 6)
        far = reach(state, network, prior)
        for weight, site in zip(state.posterior.weights, state.sites, strict=True):
            bound, before = (
                np.maximum(np.abs(after_refinement(weight, site, prior)), np.abs(weight.mean)),
                weight.mean.copy(),
            )
            refine_layer(weight, site, prior.slab_var, prior.rho0)
            assert (np.abs(weight.mean) <= bound * 1.00001).all()
            moved += int((np.abs(weight.mean) > np.abs(before)).sum())
        mean, var, _ = sequential(network, GAUSSIAN, prior).predict(
            state, np.array([[0, 0], [1, 3], [-1, -1]])
        )
        assert np.abs(mean).max() <= far.f * 1.00001
        assert var.max() <= far.var * 1.00001
    assert moved > 100


@pytest.mark.slow
def test_many_wide_layers_are_not_refused(tmp_path):
    """Products of sums of squares would say that they overflow."""
    network = Network((2, 2), (700,) * 14, "tanh")
    state = posterior.grow(posterior.init(network, Prior(), 0), network, Prior(), np.array([3, 3]))
    assert reach(state, network, Prior()).var < 1e30


@pytest.mark.parametrize("kind", [SpiderRegressor, SpiderClassifier])
@pytest.mark.parametrize("settings", [
    {"curvature": True}, {"hidden": (60,) * 6}, {"slab_var": 100.0, "factor_var": 1e4}, {"bias_var": 1e6},
    {"multilinear_start": 10.0}, {"activation": "softplus"},
], ids=str)  # fmt: skip
def test_a_model_of_wild_values_comes_back(kind, settings, tmp_path):
    """Whatever a stream leads to is not what a stranger made up."""
    rng = np.random.default_rng(0)
    X = rng.integers((20, 15), size=(1500, 2))
    y = np.sin(X).sum(axis=1) + rng.normal(size=1500)
    y[rng.random(1500) < 0.02] *= 1e4
    model = kind(committee=1).set_params(**paths(settings)).fit(X, (y > 0) if kind is SpiderClassifier else y)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(
        spidertensor.load(tmp_path / "model").predict(X[:50]), model.predict(X[:50])
    )
