"""The estimators: scikit-learn's etiquette, what bad input gets, units, frames; a call is all or nothing."""

from __future__ import annotations

import copy
import math
import pickle
import tempfile
import threading
import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from spidertensor import (
    CustomNetwork,
    EntryError,
    Inference,
    Prior,
    SpiderClassifier,
    SpiderRegressor,
    SpiderWarning,
    checkpoint,
)
from spidertensor.estimator.groups import paths
from spidertensor.estimator.ids import NodeIndex
from spidertensor.estimator.inputs import Columns
from spidertensor.spider import posterior

SMALL = {"rank": 2, "hidden": (4,), "batch_size": 8}
SCALED = {**SMALL, "scaling": (3.0, 2.0)}
BOTH = pytest.mark.parametrize("kind", [SpiderRegressor, SpiderClassifier])


def file_bytes(model) -> bytes:
    """All that a model knows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        model.save(path)
        return path.read_bytes()


def config_of(model) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        return checkpoint.load(Path(folder) / "model").sections["model"]


def interacting(n=60, binary=False, seed=0):
    """The nodes of two modes act together; values are in units of their own."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.integers(0, 9, n), rng.integers(100, 105, n)])
    f = np.sin(X[:, 0]) + np.cos(X[:, 1]) * X[:, 0] / 4
    y = f + 0.2 * rng.standard_normal(n)
    return X, (y > 0).astype(int) if binary else 3 + 2 * y


def fresh(kind, **changes):
    return kind(**(SCALED if kind is SpiderRegressor else SMALL)).set_params(**paths(changes))


def fitted(kind, n=60, **changes):
    return fresh(kind, **changes).fit(*interacting(n, binary=kind is SpiderClassifier))


# --- scikit-learn's etiquette ---


with warnings.catch_warnings():
    # It prefers its own ancestors to methods of the same names, but checks the latter just as well.
    warnings.filterwarnings("ignore", "Estimator Spider.* does not inherit from", UserWarning)
    scikit_learn_checks = parametrize_with_checks(
        [SpiderRegressor(rank=2, hidden=(4,)), SpiderClassifier(rank=2, hidden=(4,))],
        expected_failed_checks=lambda _: {
            "check_sample_weight_equivalence_on_dense_data": "equal only in the limit",
            "check_classifiers_one_label_sample_weights": "predicts ids that were never learned",
        },
    )


@scikit_learn_checks
@pytest.mark.filterwarnings("ignore:the first 1 values do not vary")
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_kinds_and_tags():
    assert is_regressor(SpiderRegressor())
    assert is_classifier(SpiderClassifier())
    tags = SpiderClassifier().__sklearn_tags__()
    assert not tags.classifier_tags.multi_class
    assert tags.input_tags.string
    assert tags.input_tags.categorical
    assert not tags.input_tags.allow_nan
    assert not tags.input_tags.sparse


@BOTH
def test_params(kind):
    model = fresh(kind, rank=(2, 3), random_state=5)
    twin = clone(fitted(kind, rank=(2, 3), random_state=5))
    assert twin.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        _ = twin.n_entries_
    model.set_params(prior__rho0=0.3, hidden=(7,))
    assert (model.prior, model.hidden) == (Prior(rho0=0.3), (7,))
    with pytest.raises(ValueError, match="Invalid parameter"):
        model.set_params(learning_rate=0.1)


def test_defaults():
    wanted = {
        "rank": 8, "hidden": (50, 50), "activation": "relu", "curvature": False, "rho0": 0.9, "slab_var": 1.0,
        "noise_memory": 10_000, "scaling": None, "batch_size": 256, "random_state": 0, "network": None,
        "clip": 4.0, "node_noise": True, "memory": None,
    }  # fmt: skip
    assert paths(wanted).items() <= SpiderRegressor().get_params().items()
    for name in ("noise_memory", "scaling", "clip", "node_noise"):
        del wanted[name]
    assert paths(wanted).items() <= SpiderClassifier().get_params().items()


def test_paper():
    paper = paths({"curvature": True, "rho0": 0.5, "batch_size": 256})
    assert (paper | {"inference__noise_memory": None}).items() <= SpiderRegressor.paper().get_params().items()
    assert paper.items() <= SpiderClassifier.paper().get_params().items()
    assert SpiderRegressor.paper(rank=3, prior=Prior(rho0=0.7)).get_params()["prior__rho0"] == 0.7
    assert type(SpiderClassifier.paper()) is SpiderClassifier
    with pytest.raises(TypeError):
        SpiderClassifier.paper(noise_memory=None)


@BOTH
def test_grid_search_with_numpy_numbers(kind, tmp_path):
    X, y = interacting(120, binary=kind is SpiderClassifier)
    grid = paths(
        {"rank": np.array([1, 2]), "rho0": np.linspace(0.5, 0.9, 2), "curvature": np.array([False, True])}
    )
    search = GridSearchCV(fresh(kind, committee=1), grid, cv=KFold(3), error_score="raise").fit(X, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert len(set(search.cv_results_["mean_test_score"])) > 4
    best = search.best_estimator_
    best.save(tmp_path / "best")
    np.testing.assert_array_equal(kind.load(tmp_path / "best").predict(X), search.predict(X))


@BOTH
def test_pipeline_and_cross_validation(kind):
    X, y = interacting(1500, binary=kind is SpiderClassifier)
    model = make_pipeline(FunctionTransformer(lambda X: X.astype(str)), fresh(kind, rank=4, hidden=(30,)))
    scores = cross_val_score(model, X, y, cv=3, error_score="raise")
    assert scores.shape == (3,)
    assert scores.min() > (0.9 if kind is SpiderRegressor else 0.85)  # R² 0, accuracy 0.57 without learning
    assert {type(raw) for raw in model.fit(X, y)[-1].factors_[0].ids} == {str}


def test_score_is_r2_or_accuracy():
    X, y = interacting(200)
    model = fresh(SpiderRegressor).fit(X, y)
    assert model.score(X, y) == pytest.approx(1 - np.mean((y - model.predict(X)) ** 2) / y.var())
    X, y = interacting(200, binary=True)
    model = fresh(SpiderClassifier).fit(X, y)
    assert model.score(X, y) == np.mean(model.predict(X) == y)
    assert model.score(X, y.astype(bool)) == model.score(X, y)


@BOTH
def test_pickle_and_deepcopy(kind):
    X, y = interacting(30, binary=kind is SpiderClassifier, seed=1)
    model = fitted(kind)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert file_bytes(twin) == file_bytes(model)
        before = file_bytes(model)
        twin.partial_fit(X, y)
        assert file_bytes(model) == before
    twin = pickle.loads(pickle.dumps(model)).partial_fit(X, y)
    assert file_bytes(twin) == file_bytes(model.partial_fit(X, y))
    pickle.loads(pickle.dumps(fresh(kind))).fit(X, y)


# --- predictions ---


def test_probabilities():
    X, _ = interacting(40)
    model = fitted(SpiderClassifier)
    p = model.predict_proba(X)
    assert p.shape == (40, 2)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-12)
    assert ((p > 0) & (p < 1)).all()
    np.testing.assert_array_equal(model.predict(X), p[:, 1] > 0.5)
    assert model.predict(X).dtype.kind == "i"
    assert model.classes_.tolist() == [0, 1]


@BOTH
def test_nothing_is_known_before_learning(kind):
    model = fresh(kind)
    names = ["n_nodes_", "n_entries_", "log_evidence_", "inclusion_", "weights_", "factors_", "n_rejected_"]
    for name in [*names, "noise_" if kind is SpiderRegressor else "classes_"]:
        assert not hasattr(model, name)
    for act in (model.predict, getattr(model, "predict_proba", model.predict)):
        with pytest.raises(NotFittedError, match="has learned nothing yet"):
            act([(1, 2)])
    with pytest.raises(NotFittedError):
        model.save("never-written")
    assert not Path("never-written").exists()
    assert model.position_ is None


@BOTH
def test_unseen_ids_are_answered_from_the_prior_and_not_added(kind):
    model = fitted(kind)
    before, nodes = file_bytes(model), model.n_nodes_
    answer = (
        model.predict_proba if kind is SpiderClassifier else lambda X: model.predict(X, return_std=True)[1]
    )
    unseen = answer([(999, "never"), (-5, b"x"), (1.5, (2, 3))])
    assert np.isfinite(unseen).all()
    assert (unseen == unseen[0]).all()  # every unseen node is the same prior
    answer([(0, "never")])
    assert file_bytes(model) == before
    assert model.n_nodes_ == nodes


def test_what_is_learned():
    X, y = interacting(300)
    model = fresh(SpiderRegressor, rank=(2, 3), hidden=(4,), multilinear=1).fit(X, y)
    assert model.n_nodes_ == (9, 5)
    assert model.n_entries_ == 300
    assert model.n_rejected_ == 0
    assert model.n_features_in_ == 2
    assert model.noise_ > 0
    assert [layer.shape for layer in model.inclusion_] == [(4, 6), (1, 5)]
    assert [layer.mean.shape for layer in model.weights_] == [(4, 6), (1, 5)]
    assert all((layer.var > 0).all() for layer in model.weights_)
    for layer in model.inclusion_:
        assert ((layer >= 0) & (layer <= 1)).all()
    assert any((layer != 0.9).any() for layer in model.inclusion_)  # refined
    users, items = model.factors_
    assert users.ids == list(dict.fromkeys(X[:, 0].tolist()))
    assert items.ids == list(dict.fromkeys(X[:, 1].tolist()))
    assert users.mean.shape == users.var.shape == (9, 1 + 1 + 2)  # bias, multilinear, deep
    assert items.mean.shape == items.var.shape == (5, 1 + 1 + 3)
    assert (users.var > 0).all()
    before = file_bytes(model)
    users.mean[:] = 0  # a copy
    assert file_bytes(model) == before
    assert model.mode_names_ == ["0", "1"]
    assert model.id_kinds_ == [("int",), ("int",)]
    config = config_of(model)
    assert (model.shift_, model.scale_, model.settings_) == (
        config["shift"], config["scale"], config["params"],
    )  # fmt: skip
    assert model.seen([(X[0, 0], X[0, 1]), (X[0, 0], -5), (-5, -5)]).tolist() == [
        [True, True], [True, False], [False, False],
    ]  # fmt: skip
    assert model.n_nodes_ == (9, 5)


@pytest.mark.filterwarnings("ignore::spidertensor.SpiderWarning")
def test_rejections_are_counted():
    X, y = interacting(400)
    model = SpiderRegressor.paper(**SMALL | {"batch_size": 256}, scaling=(0.0, 0.01))
    rejected = sum(model.learn(X[i : i + 50], y[i : i + 50]).rejected for i in range(0, 400, 50))
    assert rejected == model.n_rejected_ > 0


# --- units ---


@settings(max_examples=25)
@given(
    a=st.floats(1e-3, 1e3), b=st.floats(-1e3, 1e3), shift=st.floats(-5, 5), scale=st.floats(0.3, 3)
)  # fmt: skip
def test_units(a, b, shift, scale):
    X, y = interacting(40)
    plain = SpiderRegressor(**SMALL, scaling=(shift, scale))
    moved = SpiderRegressor(**SMALL, scaling=(a * shift + b, a * scale))
    first, second = plain.learn(X, y), moved.learn(X, a * y + b)
    np.testing.assert_allclose(second.mean, a * first.mean + b, rtol=1e-4, atol=1e-4 * (a + abs(b)))
    np.testing.assert_allclose(second.var, a**2 * first.var, rtol=1e-3)
    np.testing.assert_allclose(second.noise, a**2 * first.noise, rtol=1e-3)
    np.testing.assert_allclose(second.log_evidence, first.log_evidence - math.log(a), rtol=1e-3, atol=1e-3)
    assert moved.noise_ == pytest.approx(a**2 * plain.noise_, rel=1e-3)
    assert moved.log_evidence_ == pytest.approx(plain.log_evidence_ - 40 * math.log(a), abs=0.02)
    (m1, s1), (m2, s2) = plain.predict(X, return_std=True), moved.predict(X, return_std=True)
    np.testing.assert_allclose(m2, a * m1 + b, rtol=1e-4, atol=1e-4 * (a + abs(b)))
    np.testing.assert_allclose(s2, a * s1, rtol=1e-3)


def test_log_evidence_is_the_log_density_of_the_predictions():
    """For one model, whose predictions are Gaussian; test_committee.py has the mixture."""
    X, y = interacting(50)
    model = fresh(SpiderRegressor, committee=1)
    update = model.learn(X, y)
    var = update.var + update.noise
    density = -0.5 * (np.log(2 * np.pi * var) + (y - update.mean) ** 2 / var)
    np.testing.assert_allclose(update.log_evidence, density, rtol=1e-5, atol=1e-6)
    assert model.log_evidence_ == pytest.approx(update.log_evidence.sum(), rel=1e-9)


@BOTH
def test_learn_returns_what_predict_said_just_before(kind):
    X, y = interacting(80, binary=kind is SpiderClassifier)
    model = fresh(kind).fit(X[:40], y[:40])
    start = model.log_evidence_
    total = 0.0
    for row in range(40, 80):
        entry = X[row : row + 1]
        if kind is SpiderRegressor:
            mean, std = model.predict(entry, return_std=True)
        else:
            p = model.predict_proba(entry)[0, y[row]]
        update = model.learn(entry, y[row : row + 1])
        assert len(update.mean) == 1
        if kind is SpiderRegressor:
            np.testing.assert_allclose(update.mean, mean, rtol=1e-5, atol=1e-5)
            # a member with a memory of 1000 entries forgets a thousandth when an entry arrives
            np.testing.assert_allclose(update.var + update.noise, std**2, rtol=1e-3)
        else:
            assert math.exp(update.log_evidence[0]) == pytest.approx(p, rel=1e-4)
            assert update.noise[0] == 0
        total += update.log_evidence.sum()
    assert model.log_evidence_ - start == pytest.approx(total, rel=1e-6)
    assert model.n_entries_ == 80


def test_scale_is_taken_from_the_first_batch_only():
    X, y = interacting(60)
    future = y.copy()
    future[8:] = future[8:] * 50 - 7
    one, other = (SpiderRegressor(**SMALL).fit(X, values) for values in (y, future))
    for model in (
        one,
        other,
        SpiderRegressor(**SMALL).partial_fit(X[:8], y[:8]).partial_fit(X[8:], future[8:]),
    ):
        config = config_of(model)
        assert config["shift"] == pytest.approx(y[:8].mean())
        assert config["scale"] == pytest.approx(y[:8].std())
    # what was predicted for the first entries cannot know the later ones
    first, second = SpiderRegressor(**SMALL).learn(X, y), SpiderRegressor(**SMALL).learn(X, future)
    np.testing.assert_array_equal(first.mean[:9], second.mean[:9])


def test_scale_stays_until_the_next_fit():
    X, y = interacting(40)
    model = SpiderRegressor(**SMALL).fit(X, y)
    config = config_of(model)
    assert config_of(model.partial_fit(X, y * 10)) == config
    assert config_of(model.fit(X, y * 16))["scale"] == pytest.approx(16 * config["scale"])


@pytest.mark.parametrize("value", [0.0, 0.1, 1e9 / 3, -7, 1e-80])
@pytest.mark.parametrize("n", [1, 3, 8, 20])
def test_values_that_do_not_vary(value, n):
    """0.1 eight times has a standard deviation of 1e-17, which is no scale."""
    X, _ = interacting(n)
    y = np.append(np.full(min(n, 8), value), value + np.arange(n - min(n, 8)))
    model = SpiderRegressor(**SMALL)
    words = "the first value does not vary" if n == 1 else f"the first {min(n, 8)} values do not vary"
    with pytest.warns(SpiderWarning, match=words) as caught:
        model.fit(X, y)
    assert caught[0].filename == __file__
    warning = caught[0].message
    assert isinstance(warning, UserWarning)
    assert (warning.kind, "scaling=(shift, scale)" in warning.remedy) == ("no scale", True)
    assert config_of(model)["scale"] == 1
    assert config_of(model)["shift"] == pytest.approx(value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(X, y)


@pytest.mark.parametrize("unit", [1e-90, 1e-12, 1e12, 1e90])
def test_any_unit(unit):
    X, y = interacting(60)
    model = SpiderRegressor(**SMALL).fit(X, y * unit)
    same = SpiderRegressor(**SMALL).fit(X, y)
    np.testing.assert_allclose(model.predict(X) / unit, same.predict(X), rtol=1e-3, atol=1e-3)
    assert model.noise_ / unit / unit == pytest.approx(same.noise_, rel=1e-3)
    assert math.isfinite(model.log_evidence_)


def test_values_too_large_to_square():
    X, y = interacting(20)
    y[3] = -1e120
    with pytest.raises(EntryError, match=r"row 3: value -1e.120 is too large"):
        SpiderRegressor(**SMALL).fit(X, y)


@pytest.mark.filterwarnings("ignore::spidertensor.SpiderWarning")
@pytest.mark.parametrize(("clip", "limit"), [(None, 1e6), (4.0, 1e12)])
def test_far_values_are_refused_and_less_far_ones_survived(clip, limit):
    """Without clipping float32 must hold the square of a square; a model that clips takes far more."""
    X, y = interacting(60)
    for paper in (False, True):
        model = SpiderRegressor(**SCALED, inference=Inference(curvature=paper, clip=clip)).fit(X, y)
        before = file_bytes(model)
        for bad in (3 + 2.1 * limit, 3 - 2.1 * limit, 1e300, -1.7e308):
            with pytest.raises(
                EntryError,
                match=rf"row 1: value .* more than {limit:g} times the scale 2".replace("+", r"\+"),
            ) as caught:
                model.partial_fit(X[:2], [3.0, bad])
            error = caught.value
            assert (error.kind, error.row, error.rows, error.value) == ("too far", 1, (1,), bad)
        with pytest.raises(EntryError, match="row 1: ") as caught:
            model.partial_fit(X[:4], [3.0, 1e3 * limit, 3.0, -1e3 * limit])
        assert caught.value.rows == (1, 3)
        assert file_bytes(model) == before
        extreme = np.where(np.arange(60) % 2, 3 + 1.99 * limit, 3 - 1.99 * limit)
        update = model.learn(X, extreme)
        assert np.isfinite(update[:4]).all()
        for leaf in checkpoint.flatten(model._learned.state).values():
            assert np.isfinite(leaf).all()
        mean, std = model.predict([*X.tolist(), (-1, -1)], return_std=True)
        assert np.isfinite(mean).all()
        assert (std > 0).all()


# --- same stream, same bytes ---


@pytest.mark.parametrize("kind", [SpiderRegressor, SpiderClassifier])
@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, 60), max_size=8))
def test_how_calls_are_cut_does_not_matter(kind, cuts):
    X, y = interacting(60, binary=kind is SpiderClassifier)
    whole = fresh(kind, multilinear=2, bias=True)
    at_once = whole.learn(X, y)
    model = fresh(kind, multilinear=2, bias=True)
    edges = [0, *sorted(cuts), 60]
    updates = [model.learn(X[a:b], y[a:b]) for a, b in pairwise(edges)]
    assert file_bytes(model) == file_bytes(whole)
    for field in ("mean", "var", "noise", "log_evidence"):
        cut = np.concatenate([getattr(update, field) for update in updates])
        np.testing.assert_array_equal(cut, getattr(at_once, field))
    assert sum(update.rejected for update in updates) == at_once.rejected


@BOTH
def test_same_seed_same_bytes(kind):
    assert file_bytes(fitted(kind, random_state=3)) == file_bytes(fitted(kind, random_state=3))
    assert file_bytes(fitted(kind, random_state=3)) != file_bytes(fitted(kind, random_state=4))
    model = fitted(kind)
    assert file_bytes(model.fit(*interacting(60, kind is SpiderClassifier))) == file_bytes(
        fitted(kind)
    )  # forgets
    numbers = fitted(
        kind, random_state=np.int64(3), rank=np.int8(2), rho0=np.float64(0.9), hidden=np.array([4])
    )
    assert file_bytes(numbers) == file_bytes(fitted(kind, random_state=3))


@pytest.mark.parametrize("random_state", [None, np.random.RandomState(7), 2**63 - 1])
def test_random_states(random_state, tmp_path):
    X, y = interacting(20)
    model = fresh(SpiderRegressor, random_state=random_state).fit(X[:10], y[:10])
    model.save(tmp_path / "model")
    back = SpiderRegressor.load(tmp_path / "model")
    assert isinstance(back.random_state, int)
    assert file_bytes(back.partial_fit(X[10:], y[10:])) == file_bytes(model.partial_fit(X[10:], y[10:]))
    assert file_bytes(back.fit(X, y)) == file_bytes(
        fresh(SpiderRegressor, random_state=back.random_state).fit(X, y)
    )


def test_a_random_state_draws_again_for_each_fit():
    X, y = interacting(20)
    model = fresh(SpiderRegressor, random_state=np.random.RandomState(7))
    first, second = file_bytes(model.fit(X, y)), file_bytes(model.fit(X, y))
    assert first != second
    again = fresh(SpiderRegressor, random_state=np.random.RandomState(7))
    assert file_bytes(again.fit(X, y)) == first


# --- what bad input gets ---

GOOD = [(1, 100), (2, 101), (3, 102)]
BAD_INPUT = {
    "nan value": (GOOD, [1, float("nan"), 1], 1, "not finite"),
    "infinite value": (GOOD, [1, 0, float("-inf")], 2, "not finite"),
    "no value": (GOOD, [None, 1, 0], 0, "without a value"),
    "text as value": (GOOD, [1, "1", 0], 1, "str|label '1'"),
    "too few values": (GOOD, [1, 0], None, "3 entries but 2 values"),
    "too many values": (GOOD, [1, 0, 1, 0], None, "3 entries but 4 values"),
    "two columns of values": (GOOD, [[1, 0]] * 3, None, "1-D"),
    "no y": (GOOD, None, None, "y is None"),
    "one mode less": ([(1,), (2,), (3,)], [1, 0, 1], 0, "expected 2 ids, one per mode, got 1"),
    "one mode more": (np.ones((3, 3), int), [1, 0, 1], None, "X has 3 features.*expecting 2"),
    "ragged": ([(1, 100), (2, 101, 3), (3, 102)], [1, 0, 1], 1, "expected 2 ids, one per mode, got 3"),
    "1-D": (np.arange(3), [1, 0, 1], None, "Reshape your data"),
    "id None": ([(1, 100), (2, None), (99, 102)], [1, 0, 1], 1, "mode 1: missing id"),
    "id NaN": ([(1, 100), (77, 101), (np.nan, 102)], [1, 0, 1], 2, "mode 0: missing id"),
    "id inf": (np.array([[1, 100], [np.inf, 3], [78, 102]]), [1, 0, 1], 1, "mode 0: infinite id"),
    "id of another type": ([(1, 100), (2, {3}), (99, 102)], [1, 0, 1], 1, "mode 1: set cannot be an id"),
    "dates": (np.full((3, 2), "2020-01-01", "M8[D]"), [1, 0, 1], None, "cannot be an id"),
}
BAD_LABELS = {
    "label 2": (GOOD, [1, 0, 2], 2, "label 2 is not 0 or 1"),
    "label -1": (GOOD, [-1, 1, 0], 0, "label -1"),
    "share": (GOOD, [1, 0.5, 1], 1, "continuous value 0.5"),
}
CASES = [(kind, name) for kind in (SpiderRegressor, SpiderClassifier) for name in BAD_INPUT]
CASES += [(SpiderClassifier, name) for name in BAD_LABELS]


@pytest.mark.parametrize(("kind", "name"), CASES, ids=lambda each: getattr(each, "__name__", each))
def test_bad_input_names_the_row_and_changes_nothing(kind, name):
    X, y, row, words = {**BAD_INPUT, **BAD_LABELS}[name]
    model = fitted(kind)
    before, nodes = file_bytes(model), model.n_nodes_
    known = {key: value for key, value in vars(model).items() if key != "_learned"}
    for act in (model.learn, model.partial_fit, model.fit):
        if act == model.fit and name in ("one mode less", "one mode more"):
            continue  # a fit decides anew how many modes there are
        if act == model.fit and name == "label -1":
            row, words = 2, "label 0 is not -1 or 1"  # and which labels there are
        with pytest.raises(EntryError, match=words) as caught:
            act(X, y)
        assert caught.value.row == row
        assert file_bytes(model) == before
    assert model.n_nodes_ == nodes
    assert {key: value for key, value in vars(model).items() if key != "_learned"} == known
    # and it goes on as if nothing had happened
    good = interacting(20, kind is SpiderClassifier, seed=2)
    assert file_bytes(model.partial_fit(*good)) == file_bytes(fitted(kind).partial_fit(*good))
    unborn = fresh(kind)
    if name not in ("one mode less", "one mode more"):
        with pytest.raises(EntryError):
            unborn.fit(X, y)
        assert vars(unborn) | {"_lock": None} == vars(fresh(kind)) | {"_lock": None}


@BOTH
@pytest.mark.parametrize(
    "X", [[], (), np.empty((0, 2)), np.empty((0, 2), int), pd.DataFrame({"a": [], "b": []})]
)
def test_an_empty_batch_is_a_no_op(kind, X):
    unborn = fresh(kind)
    assert unborn.learn(X, []).mean.shape == (0,)
    assert vars(unborn) | {"_lock": None} == vars(fresh(kind)) | {"_lock": None}
    model = fitted(kind)
    before = file_bytes(model)
    update = model.learn(X, np.array([]))
    assert [len(part) for part in update[:4]] == [0, 0, 0, 0]
    assert update.rejected == 0
    assert model.partial_fit(X, ()) is model
    assert model.predict(X).shape == (0,)
    assert file_bytes(model) == before
    with pytest.raises(EntryError, match="fit needs at least one entry"):
        model.fit(X, [])
    assert file_bytes(model) == before
    with pytest.raises(EntryError, match="0 entries but 2 values"):
        model.partial_fit(X, [1, 0])


BAD_PARAMS = [
    ("rank", -2, "rank must be at least 1"),
    ("rank", (), "rank has 0 numbers"),
    ("rank", (2, 2, 2), "rank has 3 numbers, but the entries have 2 modes"),
    ("rank", (2, 0), "rank must be at least 1"),
    ("rank", 2.5, "rank must be a whole number"),
    ("rank", True, "rank must be a whole number"),
    ("rank", None, "rank must be a whole number"),
    ("rank", "8", "rank must be a whole number"),
    ("hidden", 50, "hidden must be the widths"),
    ("hidden", None, "hidden must be the widths"),
    ("hidden", (50, 0), "at least one unit"),
    ("hidden", (4, 2.0), "hidden must be the widths"),
    ("hidden", "ab", "hidden must be the widths"),
    ("activation", "Relu", "unknown activation 'Relu'"),
    ("activation", None, "unknown activation"),
    ("activation", ["relu"], "unknown activation"),
    ("curvature", "no", "curvature must be True or False"),
    ("curvature", 1, "curvature must be True or False"),
    ("bias", "yes", "bias must be True or False"),
    ("rho0", 0, "rho0 must be positive"),
    ("rho0", 1.5, "rho0 is a probability"),
    ("rho0", float("nan"), "rho0 must be a probability"),
    ("rho0", "0.5", "rho0 must be a probability"),
    ("slab_var", 0, "slab_var must be a number from 1e-12"),
    ("slab_var", -1, "slab_var must be a number"),
    ("slab_var", 1e-60, "slab_var must be a number"),
    ("factor_var", float("inf"), "factor_var must be a number"),
    ("bias_var", None, "bias_var must be a number"),
    ("multilinear", 1.5, "multilinear must be a whole number"),
    ("multilinear", -1, "multilinear must not be negative"),
    ("multilinear_start", -1.0, "multilinear_start must be finite and not negative"),
    ("batch_size", 0, "batch_size must be a whole number of entries"),
    ("batch_size", 2.5, "batch_size must be a whole number of entries"),
    ("batch_size", None, "batch_size must be a whole number of entries"),
    ("batch_size", 2**63, "batch_size must be a whole number of entries"),
    ("network", "mlp", "network must be a CustomNetwork"),
    ("network", CustomNetwork(len, ((2, 2),)), "a custom network needs the vectorized engine"),
    ("random_state", -1, "random_state must be a seed"),
    ("random_state", 2**63, "random_state must be a seed"),
    ("random_state", "zero", "cannot be used to seed"),
    ("noise_memory", 1, "noise_memory"),
    ("noise_memory", float("inf"), "noise_memory must be a finite number"),
    ("noise_memory", "never", "noise_memory must be a finite number"),
    ("scaling", (0, 0), "scaling must be"),
    ("scaling", (0, -1), "scaling must be"),
    ("scaling", (float("nan"), 1), "scaling must be"),
    ("scaling", (0, float("inf")), "scaling must be"),
    ("scaling", (0, 1e-200), "scaling must be"),
    ("scaling", (0, 1, 2), "scaling must be"),
    ("scaling", (0, 10**400), "scaling must be"),
    ("scaling", 5, "scaling must be"),
    ("scaling", "ab", "scaling must be"),
]


@pytest.mark.parametrize(("name", "value", "words"), BAD_PARAMS)
def test_bad_params_are_a_clear_error_at_fit(name, value, words):
    for kind in (SpiderRegressor, SpiderClassifier):
        if name in ("noise_memory", "scaling") and kind is SpiderClassifier:
            continue
        binary = kind is SpiderClassifier
        model = fresh(kind, **{name: value})  # the constructor checks nothing: scikit-learn's etiquette
        with pytest.raises(ValueError, match=words):
            model.fit(*interacting(10, binary))
        assert vars(model).keys() == vars(fresh(kind)).keys()
        model = fitted(kind)
        before = file_bytes(model)
        model.set_params(**paths({name: value}))
        with pytest.raises(ValueError, match=words):
            model.fit(*interacting(10, binary))
        assert file_bytes(model) == before
        wanted = file_bytes(fitted(kind).partial_fit(*interacting(10, binary)))
        assert (
            file_bytes(model.partial_fit(*interacting(10, binary))) == wanted
        )  # with the params it began with


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rho0", 1),
        ("hidden", ()),
        ("hidden", [4]),
        ("rank", np.array([2, 3])),
        ("noise_memory", None),
        ("noise_memory", 1.5),
        ("scaling", np.array([1.0, 2.0])),
        ("curvature", np.bool_(True)),
        ("batch_size", 10**12),
        ("slab_var", 1e-12),
        ("slab_var", 1e12),
        ("factor_var", 1e-12),
        ("factor_var", 1e12),
    ],
)
def test_params_at_the_edge(name, value, tmp_path):
    X, y = interacting(60)
    node_noise = (name, value) != ("noise_memory", None)  # which would be refused
    model = fresh(SpiderRegressor, node_noise=node_noise, **{name: value}).fit(X, y)
    assert np.isfinite(model.predict(X, return_std=True)).all()
    for layer in model.inclusion_:
        assert ((layer >= 0) & (layer <= 1)).all()
    model.save(tmp_path / "model")
    assert file_bytes(SpiderRegressor.load(tmp_path / "model")) == file_bytes(model)


def test_a_fit_that_fails_restores_what_was_learned_and_its_names():
    frame = pd.DataFrame({"user": [1, 2, 3], "item": ["a", "b", "a"]})
    model = fresh(SpiderRegressor).fit(frame, [1, 2, 3])
    before = file_bytes(model)
    with pytest.raises(EntryError, match="row 2"):
        model.fit(np.array([[1, 2, 3]] * 3), [1, 2, float("nan")])
    assert file_bytes(model) == before
    assert model.feature_names_in_.tolist() == ["user", "item"]
    assert model.n_features_in_ == 2
    model.fit(np.array([[1, 2, 3]] * 3), [1, 2, 5])
    assert not hasattr(model, "feature_names_in_")
    assert model.n_features_in_ == 3


def test_fit_forgets_the_position_of_a_loaded_model(tmp_path):
    model = fitted(SpiderRegressor)
    model.save(tmp_path / "model", position={"row": 60})
    back = SpiderRegressor.load(tmp_path / "model")
    assert back.position_ == {"row": 60}
    assert back.partial_fit(*interacting(5)).position_ == {"row": 60}
    assert back.fit(*interacting(5)).position_ is None


@pytest.mark.filterwarnings("ignore::spidertensor.SpiderWarning")
@pytest.mark.parametrize("moment", ["ids", "growth", "before", "after"])
def test_ctrl_c_and_no_memory_leave_a_model_that_goes_on(moment, monkeypatch, tmp_path):
    """Ids and state stay together: neither is ahead of the other, whenever a call is cut off."""
    X, y = interacting(60)
    model = fresh(SpiderRegressor).fit(X[:10], y[:10])
    before, kernel = file_bytes(model), model._learned.model.method.update
    more = ([(row, f"item {row}") for row in range(200, 260)], np.arange(60.0))

    def stopped(*arguments, **keywords):
        if moment == "after":
            kernel(*arguments, **keywords)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if moment == "ids":
            mapped = NodeIndex._map
            calls = iter([mapped, stopped])  # the second mode fails
            patch.setattr(NodeIndex, "_map", lambda *a, **k: next(calls)(*a, **k))
        elif moment == "growth":
            patch.setattr(posterior, "start_rows", stopped)
        else:
            method = replace(model._learned.model.method, update=stopped)
            model._learned = model._learned._replace(model=model._learned.model._replace(method=method))
        with pytest.raises(KeyboardInterrupt):
            model.partial_fit(*more)
    if moment in ("ids", "growth"):
        assert file_bytes(model) == before
    assert np.isfinite(model.predict(more[0], return_std=True)).all()
    model.save(tmp_path / "model")
    back = SpiderRegressor.load(tmp_path / "model")  # which checks that everything fits together
    assert back.n_entries_ == (70 if moment == "after" else 10)
    back.partial_fit(*more)


def test_a_state_grows_once_for_new_ids_and_never_for_known_ones(monkeypatch):
    X, y = interacting(60)
    model = fresh(SpiderRegressor).fit(X, y)
    grown = []
    with_room = posterior.with_room
    monkeypatch.setattr(posterior, "with_room", lambda *args: (grown.append(args[1]), with_room(*args))[1])
    model.partial_fit(X, y)
    assert not grown
    model.partial_fit([(500, 3), (501, 4)], [1.0, 2.0])
    with_noise = sum(member.own.get("node_noise", True) for member in model.members_)
    times = len(model.members_) + with_noise  # what a node does to predictions, and its noise
    assert [each.tolist() for each in grown] == [list(model.n_nodes_)] * times


def test_columns_give_the_same_model():
    """Ids that come in columns go to the kernel as they are."""
    X, y = interacting(60)
    plain = fresh(SpiderRegressor).fit(X, y)
    assert file_bytes(
        fresh(SpiderRegressor).fit(Columns([X[:, 0].copy(), X[:, 1].tolist()]), y)
    ) == file_bytes(plain)
    named = fresh(SpiderRegressor).fit(Columns([X[:, 1], X[:, 0]], ("item", "user")), y)
    assert named.mode_names_ == ["item", "user"]
    turned = Columns([X[:, 0], X[:, 1]], ("user", "item"))
    np.testing.assert_array_equal(named.predict(turned), named.predict(X[:, ::-1]))
    assert named.seen(turned).all()


# --- frames ---

FRAMES = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}


def named(n=60, seed=0):
    X, y = interacting(n, seed=seed)
    return {"user": X[:, 0], "item": [f"item {raw}" for raw in X[:, 1]]}, y


@pytest.mark.parametrize("library", FRAMES)
def test_frames_give_the_same_model_as_tuples(library):
    table, y = named()
    tuples = list(zip(table["user"].tolist(), table["item"], strict=True))
    plain = fresh(SpiderRegressor).fit(tuples, y)
    model = fresh(SpiderRegressor).fit(FRAMES[library](table), FRAMES[library]({"y": y})["y"])
    assert model.feature_names_in_.tolist() == ["user", "item"]
    assert file_bytes(model) == file_bytes(fresh(SpiderRegressor).fit(pd.DataFrame(table), y))
    del model.feature_names_in_
    assert file_bytes(model) == file_bytes(plain)
    assert file_bytes(fresh(SpiderRegressor).fit(np.array(tuples, dtype=object), y)) == file_bytes(plain)
    np.testing.assert_array_equal(model.predict(FRAMES[library](table)), plain.predict(tuples))


@pytest.mark.parametrize("library", FRAMES)
def test_columns_are_matched_by_name(library):
    (table, y), (more, z) = named(), named(30, seed=1)
    turned = FRAMES[library]({"item": more["item"], "user": more["user"]})
    one = fresh(SpiderRegressor).fit(FRAMES[library](table), y)
    other = copy.deepcopy(one)
    np.testing.assert_array_equal(one.predict(turned), one.predict(FRAMES[library](more)))
    assert file_bytes(one.partial_fit(turned, z)) == file_bytes(other.partial_fit(FRAMES[library](more), z))
    assert one.feature_names_in_.tolist() == ["user", "item"]
    before = file_bytes(one)
    for wrong, words in (
        ({"user": [1]}, "missing columns: item"),
        ({"user": [1], "item": ["a"], "hour": [3]}, "unexpected columns: hour"),
        ({"user": [1], "Item": ["a"]}, "missing columns: item"),
    ):
        for act in (one.predict, lambda X: one.partial_fit(X, [1.0])):
            with pytest.raises(EntryError, match=words):
                act(FRAMES[library](wrong))
    assert file_bytes(one) == before
    one.predict([(1, "item 100")])  # without names: by position


def test_names_come_from_the_first_frame():
    table, y = named()
    tuples = list(zip(table["user"].tolist(), table["item"], strict=True))
    model = fresh(SpiderRegressor).fit(tuples, y)
    assert not hasattr(model, "feature_names_in_")
    model.partial_fit(pl.DataFrame(table), y)
    assert model.feature_names_in_.tolist() == ["user", "item"]
    turned = pl.DataFrame(table).select("item", "user")
    np.testing.assert_array_equal(model.predict(turned), model.predict(tuples))
    with pytest.raises(EntryError, match="expecting 2 features"):
        fresh(SpiderRegressor).fit(tuples, y).predict(pl.DataFrame({"user": [1]}))


def test_two_models_in_two_threads_do_not_meet():
    X, y = interacting(300)
    wanted = file_bytes(fresh(SpiderRegressor).fit(X, y))
    models = [fresh(SpiderRegressor) for _ in range(2)]
    threads = [threading.Thread(target=model.fit, args=(X, y)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [file_bytes(model) == wanted for model in models] == [True, True]
