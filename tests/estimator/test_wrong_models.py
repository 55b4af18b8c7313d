"""Model files whose bytes are fine and whose content is not: each check of fitted_file.py by its reason, and
what lies just inside it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import spidertensor
from spidertensor import Inference, SpiderClassifier, SpiderRegressor, checkpoint
from spidertensor.checkpoint import Checkpoint, CheckpointError
from spidertensor.spider import posterior
from spidertensor.spider.follow import DECIDE, WATCH
from spidertensor.spider.robust import LARGEST_LOG_NOISE

SMALL = {"rank": 2, "hidden": (3,), "random_state": 0}
M = "committee/members/0/"


@cache
def original(kind: type, clip: bool) -> Checkpoint:
    index = np.random.default_rng(0).integers(0, 4, (300, 2))
    values = index.sum(axis=1) > 3 if kind is SpiderClassifier else np.sin(index.sum(axis=1))
    options = {} if clip else {"inference": Inference(clip=None)}
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        kind(**SMALL, committee=2, **options).fit(index, values).save(f"{folder}/m")
        return checkpoint.load(f"{folder}/m")


@pytest.fixture
def load(tmp_path):
    """Loads the file of a model after a change of its sections and arrays."""

    def load(change: Callable[[dict, dict], Any], kind: type = SpiderRegressor, *, clip: bool = True) -> Any:
        file = original(kind, clip)
        sections = copy.deepcopy(file.sections)
        arrays = {name: array.copy() for name, array in file.arrays.items()}
        change(sections, arrays)
        checkpoint.save(tmp_path / "m", arrays, sections)
        return spidertensor.load(tmp_path / "m")

    return load


def model(**changes: Any) -> Callable[[dict, dict], Any]:
    return lambda sections, arrays: sections["model"].update(changes)


def params(**changes: Any) -> Callable[[dict, dict], Any]:
    return lambda sections, arrays: sections["model"]["params"].update(changes)


def members(*each: Any) -> Callable[[dict, dict], Any]:
    return lambda sections, arrays: sections["committee"].update(members=list(each))


def array(name: str, value: Any, at: Any = ...) -> Callable[[dict, dict], Any]:
    def change(sections: dict, arrays: dict) -> None:
        arrays[name][at] = value

    return change


def moved(old: str, new: str) -> Callable[[dict, dict], Any]:
    return lambda sections, arrays: arrays.update({new: arrays.pop(old)})


def without(section: str) -> Callable[[dict, dict], Any]:
    def change(sections: dict, arrays: dict) -> None:
        del sections[section]
        for name in [name for name in arrays if name.startswith(f"{section}/")]:
            del arrays[name]

    return change


def no_nodes(sections: dict, arrays: dict) -> None:
    sections["model"].update(modes=0)
    for name in [name for name in arrays if name.startswith("model/nodes/")]:
        del arrays[name]


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("kind", [SpiderRegressor, SpiderClassifier])
def test_the_originals_load(load, kind, clip):
    if clip or kind is SpiderRegressor:
        assert load(lambda sections, arrays: None, kind, clip=clip).n_entries_ == 300


WRONG = {
    "no model": (without("model"), "holds no model|in no section"),
    "a model that is a list": (lambda s, a: s.update(model=[]), "holds no model"),
    "one key more": (model(colour=1), "missing or unknown keys"),
    "one key less": (lambda s, a: s["model"].pop("scale"), "missing or unknown keys"),
    "params of a list": (model(params=[]), "the params are not an object"),
    "a product of 1": (model(product=1), "product is neither true nor false"),
    "too many params": (params(hidden=[3] * 4000), "too many values"),
    "params too deep": (params(hidden=[[{"a": [3] * 1000}] * 4]), "too many values"),
    "a network of a list": (params(network=["name", "shapes"]), "not a name and shapes"),
    "a network with more": (params(network={"name": "n", "shapes": [], "code": ""}), "not a name and shapes"),
    "a network without a name": (params(network={"name": "", "shapes": [[1]]}), "is not a text"),
    "a network called 3": (params(network={"name": 3, "shapes": [[1]]}), "is not a text"),
    "shapes of texts": (params(network={"name": "n", "shapes": [["1"]]}), "are not sizes"),
    "a network, and none given": (params(network={"name": "n", "shapes": [[1, 2]]}), "a file holds no code"),
    "three modes": (model(modes=3), "3 modes, but nodes for 2"),
    "modes of 2.0": (model(modes=2.0), "2.0 modes, but nodes for 2"),
    "a scale of 0": (model(scale=0.0), "scaling .* is invalid"),
    "a shift of text": (model(shift="0"), "scaling .* is invalid"),
    "one name": (model(names=["a"]), "not one name for each mode"),
    "names that are equal": (model(names=["a", "a"]), "not one name for each mode"),
    "names that are numbers": (model(names=[1, 2]), "not one name for each mode"),
    "classes of a regressor": (lambda s, a: s.update(classes=["a", "b"]), "only a classifier has"),
    "modes 0 and 2": (moved("model/nodes/1/int", "model/nodes/2/int"), "not numbered from 0"),
    "no modes": (no_nodes, "at least one mode"),
    "an array of no use": (moved("model/nodes/1/int", "model/other"), "unknown array 'model/other'"),
    "no committee": (without("committee"), "holds no committee"),
    "a committee of a list": (lambda s, a: s.update(committee=[]), "only the key members"),
    "a committee with more": (lambda s, a: s["committee"].update(leader=0), "only the key members"),
    "no members": (members(), "not a list of parameters"),
    "members of numbers": (members(1, 2), "not a list of parameters"),
    "one member of two": (members({}), "not those of the params"),
    "other members": (params(committee=[{}, {"bias_var": 0.3}]), "not those of the params"),
    "a member with a strange option": (members({}, {"memory": -5}), "memory|invalid"),
    "factors of another rank": (params(rank=3), "is not of shape"),
    "weights of two members of 1": (array("committee/weights", [0.5, 0.6]), "weights are not shares"),
    "a weight of 0": (array("committee/weights", [0.0, 1.0]), "weights are not shares"),
    "a weight above 1": (array("committee/weights", [1.5, -0.5]), "weights are not shares"),
    "clipped entries below 0": (array("committee/counts/clipped", -1), "a count is negative"),
    "a member that knows less": (array(M + "counts/entries", 299), "different numbers of entries"),
    "evidence that is no number": (array("committee/counts/log_evidence", np.nan), "not finite"),
    "a negative residual": (array("committee/residuals/mass", -1.0, 0), "the histogram"),
    "no residuals": (array("committee/residuals/mass", 0.0), "the histogram"),
    "infinite residuals": (array("committee/residuals/mass", 2e18, 0), "the histogram"),
    "a mean that is no number": (array(M + "posterior/factors/0/mean", np.nan, (0, 0)), "is not finite"),
    "three nodes": (array(M + "counts/nodes", [3, 4]), "numbers of nodes differ"),
    "a variance of 0": (array(M + "posterior/weights/0/var", 0, (0, 0)), "is not positive"),
    "a variance below 0": (array(M + "posterior/factors/1/var", -1, (0, 0)), "is not positive"),
    "a noise of 0": (array(M + "posterior/noise/rate", 0.0), "is not positive"),
    "a huge mean": (array(M + "posterior/factors/0/mean", 2e18, (0, 0)), "is too large"),
    "a huge noise": (array(M + "posterior/noise/shape", 1e-310), "is too large|overflow"),
    "a node's noise that is huge": (
        array(M + "posterior/log_noise/0/mean", 1.01 * LARGEST_LOG_NOISE, 0), "the noise of a node",
    ),
    "a node's noise that is tiny": (
        array(M + "posterior/log_noise/1/mean", -1.01 * LARGEST_LOG_NOISE, 0), "the noise of a node",
    ),
    "a node's noise that is uncertain": (
        array(M + "posterior/log_noise/0/var", 1.01 * posterior.NODE_NOISE_VAR, 0), "the noise of a node",
    ),
    "an average noise that is huge": (
        array(M + "stream/log_noise", 1.01 * LARGEST_LOG_NOISE, 1), "the noise of a node",
    ),
    "noise by level that is huge": (array("noise/0/level_noise", 1.01, 3), "the noise of a level"),
    "noise by level that is uncertain": (array("noise/0/level_noise_var", 0.11, 3), "the noise of a level"),
    "squares below 0": (array("noise/0/squares", -1.0, 1), "is negative"),
    "rejected below 0": (array(M + "counts/rejected", -1), "a count is negative, or the seed"),
    "refused below 0": (array(M + "counts/refused", -1), "a count is negative, or the seed"),
    "clipped below 0": (array(M + "counts/clipped", -1), "a count is negative, or the seed"),
    "followed below 0": (array(M + "stream/followed", -1, 2), "a count is negative, or the seed"),
    "another seed": (array(M + "seed", 1), "a count is negative, or the seed"),
    "a variance far above its prior": (array(M + "posterior/factors/0/var", 2e6, (0, 0)), "above its prior"),
    "a weight far above its prior": (array(M + "posterior/weights/0/var", 1.1e6, (0, 0)), "above its prior"),
    "values far from 0": (model(shift=1e301), "overflow|is invalid"),
    "a scale of the values that is huge": (array(M + "stream/scale", 1e200), "overflow"),
    "a scale of the values that is tiny": (array(M + "stream/scale", 1e-200), "overflow"),
    "a level far away": (array(M + "stream/shift", 1e301), "overflow"),
    "a scale of the values below 0": (array(M + "stream/scale", -1.0), "of the values is negative"),
    "a scale of the values of 0": (array(M + "stream/scale", 0.0), "of the values is negative"),
    "entries of the values below 0": (array(M + "stream/entries", -1.0), "of the values is negative"),
    "a variance of the values below 0": (array(M + "stream/var", -1.0), "of the values is negative"),
    "a window below 0": (array(M + "stream/window", -1.0, 0), "of the values is negative"),
    "a mean of the values that is huge": (array(M + "stream/mean", 1e200), "of the values is too large"),
    "a variance of the values that is huge": (array(M + "stream/var", 1.1e36), "of the values is too large"),
    "entries of the values that never were": (array(M + "stream/entries", 2.0**53), "values is too large"),
    "a window that is huge": (array(M + "stream/window", 2.0**53, 0), "of the values is too large"),
    "misfits in the window that are huge": (array(M + "stream/window", 1.1e36, 1), "values is too large"),
    "a mean in the window that is huge": (array(M + "stream/window", -1.1e18, 2), "values is too large"),
    "a prediction in the window that is huge": (array(M + "stream/window", 1.1e18, 3), "values is too large"),
    "a variance in the window that is huge": (array(M + "stream/window", 1.1e36, 4), "values is too large"),
    "predictions in the window that are huge": (array(M + "stream/window", 1.1e36, 5), "values is too large"),
    "a covariance in the window that is huge": (array(M + "stream/window", -2e36, 6), "values is too large"),
    "squares that are huge": (array("noise/0/squares", 1.1e36, 1), "of the values is too large"),
    "watching something": (array(M + "stream/watching", 7), "watched window"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_models_are_refused_with_the_reason(load, tmp_path, name):
    change, reason = WRONG[name]
    with pytest.raises(CheckpointError, match=reason) as caught:
        load(change)
    assert str(tmp_path / "m") in str(caught.value)


WRONG_CLASSES = {
    "a scale": (model(scale=2.0), "scaling .* is invalid"),
    "a shift": (model(shift=1.0), "scaling .* is invalid"),
    "three classes": (lambda s, a: s.update(classes=["a", "b", "c"]), "not two labels"),
    "classes of an object": (lambda s, a: s.update(classes={"a": 1}), "not two labels"),
    "classes that are equal": (lambda s, a: s.update(classes=["a", "a"]), "not two labels"),
    "classes of two types": (lambda s, a: s.update(classes=["a", 1]), "two types|two labels"),
}


@pytest.mark.parametrize("name", WRONG_CLASSES)
def test_wrong_classifiers_are_refused_with_the_reason(load, name):
    change, reason = WRONG_CLASSES[name]
    with pytest.raises(CheckpointError, match=reason):
        load(change, SpiderClassifier)


def test_a_regressor_is_no_classifier(load, tmp_path):
    load(lambda sections, arrays: None)
    with pytest.raises(CheckpointError, match="holds a SpiderRegressor, not a SpiderClassifier"):
        SpiderClassifier.load(tmp_path / "m")


@pytest.mark.parametrize("name", ["stream/shift", "stream/scale", "stream/watching"])
def test_a_model_that_does_not_follow_its_values_stays_where_it_is(load, name):
    change = array(M + name, WATCH if name.endswith("watching") else 0.5)
    with pytest.raises(CheckpointError, match="has followed a change of the values"):
        load(change, clip=False)
    assert load(change).n_entries_ == 300


def test_a_decision_needs_a_window(load):
    def change(n: float) -> Callable[[dict, dict], Any]:
        def set_both(sections: dict, arrays: dict) -> None:
            arrays[M + "stream/watching"][...] = DECIDE
            arrays[M + "stream/window"][0] = n

        return set_both

    assert load(change(5.0)).n_entries_ == 300
    with pytest.raises(CheckpointError, match="the watched window is invalid"):
        load(change(0.0))


GOOD = {
    "names": model(names=["a", "b"]),
    "a mean of the largest size": array(M + "posterior/log_noise/0/mean", LARGEST_LOG_NOISE, 0),
    "noise of a node as uncertain as a new one's": array(
        M + "posterior/log_noise/0/var", posterior.NODE_NOISE_VAR, 0
    ),
    "no clipped entries, no refused ones": array("committee/counts/refused", 0),
    "a residual as large as can be": array("committee/residuals/mass", 1e18, 0),
    "a window of nothing": array(M + "stream/window", 0.0),
    "a variance a million times its prior's": array(
        M + "posterior/weights/0/var", math.nextafter(1e6, 0), (0, 0)
    ),
    "values far away": array(M + "stream/mean", 0.99e18),
    "values far apart": array(M + "stream/var", 0.99e36),
    "values in the window far away": array(M + "stream/window", -0.99e18, 2),
    "values in the window far apart": array(M + "stream/window", 0.99e36, 4),
    "a covariance as large as can be": array(M + "stream/window", 1e36, 6),
    "squares as large as can be": array("noise/0/squares", 1e36, 1),
    "texts as classes": None,
}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_just_possible_is_loaded(load, name):
    change = GOOD[name]
    if change is None:
        found = load(lambda s, a: s.update(classes=["no", "yes"]), SpiderClassifier)
        assert found.classes_.tolist() == ["no", "yes"]
    else:
        assert np.isfinite(load(change).predict([(0, 0), (9, 9)])).all()


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", GOOD)
def test_what_is_loaded_can_learn_and_be_saved_and_loaded_again(load, tmp_path, name, engine):
    change = GOOD[name]
    if change is None:
        return
    found = load(lambda s, a: (change(s, a), s["model"]["params"].update(engine=engine)))
    index = np.random.default_rng(1).integers(0, 4, (700, 2))
    for part in (index[:3], index[3:]):
        found.partial_fit(part, np.sin(part.sum(axis=1)))
        prediction = found.predict([(0, 0), (9, 9)], return_std=True)
        assert np.isfinite(prediction).all()
        found.save(tmp_path / "again")
        assert np.array_equal(
            spidertensor.load(tmp_path / "again").predict([(0, 0), (9, 9)], return_std=True), prediction
        )
