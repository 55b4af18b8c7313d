"""The labels of a classifier: any two, as in scikit-learn, in Python and in files; and no sample_weight."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning

from spidertensor import CheckpointError, EntryError, SpiderClassifier, SpiderRegressor, checkpoint, load
from spidertensor.estimator import labels

X = [("anna", "Alien"), ("ben", "Alien"), ("anna", "Brazil"), ("ben", "Brazil")] * 10
ONES = np.array([1, 0] * 20)
TWO = [["no", "yes"], [False, True], [1, 2], [-1, 1], [2**53, 2**53 + 1], ["", "yes"]]


def fresh(**settings: Any) -> SpiderClassifier:
    return SpiderClassifier(**({"rank": 2, "hidden": (4,), "committee": 1, "random_state": 0} | settings))


def named(classes: list[Any], ones: Any = ONES) -> list[Any]:
    return [classes[one] for one in ones]


def state(model: SpiderClassifier) -> bytes:
    return b"".join(array.tobytes() for array in checkpoint.flatten(model._fitted().state).values())


@pytest.mark.parametrize("two", TWO, ids=str)
def test_any_two_labels_are_learned_as_0_and_1(two, tmp_path):
    plain = fresh().fit(X, ONES)
    assert (plain.classes_.tolist(), plain.classes_.dtype.kind, plain.positive_) == ([0, 1], "i", 1)
    probabilities = plain.predict_proba(X)
    assert set(plain.predict(X)) == {0, 1}  # or the rest proves little
    given = named(two)
    for y in (given, np.array(given), np.array(given, object), pd.Series(given), pl.Series(given)):
        model = fresh().fit(X, y)
        assert state(model) == state(plain)
        assert model.classes_.tolist() == two
        assert type(model.classes_.tolist()[0]) is type(two[0])
        assert model.positive_ == two[1]
        assert (model.predict_proba(X) == probabilities).all()
        assert model.predict(X).tolist() == named(two, plain.predict(X))
        assert model.predict(X).dtype == model.classes_.dtype
        assert model.score(X, given) == plain.score(X, ONES)
        model.save(tmp_path / "m")
        for twin in (load(tmp_path / "m"), pickle.loads(pickle.dumps(model))):
            assert twin.classes_.tolist() == two
            assert twin.predict(X).tolist() == model.predict(X).tolist()
            assert state(twin.partial_fit(X, y)) == state(fresh().fit(X, ONES).partial_fit(X, ONES))


def test_floats_without_decimals_are_whole_numbers(tmp_path):
    fresh().fit(X, ONES).save(tmp_path / "wanted")
    for y in (ONES.astype(float), ONES.astype(object), ONES.astype(np.uint8), ONES.astype(float).tolist()):
        fresh().fit(X, y).save(tmp_path / "got")
        assert (tmp_path / "got").read_bytes() == (tmp_path / "wanted").read_bytes()


@pytest.mark.parametrize(
    "y", [pd.Series(named(["no", "yes"]), dtype=kind) for kind in ("string", "category")]
    + [pa.chunked_array([named(["no", "yes"])]), pd.Series(named(["no", "yes"]), dtype="category").array],
    ids=lambda y: str(getattr(y, "dtype", "arrow")),
)  # fmt: skip
def test_labels_of_other_libraries(y):
    assert fresh().fit(X, y).classes_.tolist() == ["no", "yes"]


def test_a_column_of_labels_is_taken_with_a_warning_that_points_to_the_caller():
    for model in (fresh(), SpiderRegressor(rank=2, hidden=(4,), committee=1)):
        for act in (model.fit, model.partial_fit, model.learn):
            with pytest.warns(DataConversionWarning) as caught:
                act(X, ONES[:, None])
            assert caught[0].filename == __file__
    assert state(fresh().fit(X, ONES)) == state(model_of_column())


@pytest.mark.filterwarnings("ignore:A column-vector")
def model_of_column() -> SpiderClassifier:
    with pytest.warns(DataConversionWarning):
        return fresh().fit(X, np.array(named(["a", "b"]))[:, None])


def test_the_first_call_decides():
    """Both labels, or both named; 0 and 1 or False and True need not be."""
    assert fresh().partial_fit(X[:1], [1]).classes_.tolist() == [0, 1]
    assert fresh().partial_fit(X[:1], [0.0]).classes_.tolist() == [0, 1]
    only = fresh().partial_fit(X[:1], [True]).classes_
    assert (only.tolist(), only.dtype.kind) == ([False, True], "b")
    for y, shown in ((["yes"] * 40, "'yes'"), ([2] * 40, "2"), (["1"] * 40, "'1'")):
        model = fresh()
        for act in (model.fit, model.partial_fit, model.learn):
            with pytest.raises(EntryError, match=f"all labels are {shown}, so the other class") as caught:
                act(X, y)
            assert f"partial_fit(X, y, classes=[..., {shown}])" in caught.value.remedy
        assert vars(model).keys() == vars(fresh()).keys()
    model = fresh().partial_fit(X[:1], ["yes"], classes=["no", "yes"])
    assert model.classes_.tolist() == ["no", "yes"]
    model.partial_fit(X, named(["no", "yes"])).learn(X, ["no"] * 40)
    assert model.fit(X, named(["a", "b"])).classes_.tolist() == ["a", "b"]  # forgets
    assert clone(model).partial_fit(X, ONES).classes_.tolist() == [0, 1]
    assert fresh().learn(X[:1], ["yes"], classes=["no", "yes"]).mean.shape == (1,)
    assert fresh().partial_fit([], [], classes=["a", "b"]).partial_fit(X, ONES).n_entries_ == 40


def test_classes_that_are_given():
    for classes in ([0, 1], np.array([0.0, 1.0]), [False, True], (1, 0), None):
        model = fresh().partial_fit(X, ONES)
        model.partial_fit(X, ONES, classes=classes)
    model = fresh().partial_fit(X, ONES)
    before = state(model)
    with pytest.raises(EntryError, match=r"the classes are 0 and 1, got classes=\[-1, 1\]"):
        model.partial_fit(X, ONES, classes=[-1, 1])
    assert state(model) == before
    for wrong in (["yes"], ["a", "b", "c"], ["a", "a"], [1, "1"], [], [0.5, 1], "ab", [None, 1], [True, 1]):
        with pytest.raises(EntryError):
            fresh().partial_fit(X, ONES, classes=wrong)
    assert fresh().partial_fit(X[:1], [2], classes=[True, 2]).classes_.tolist() == [1, 2]


def test_the_second_class_is_the_positive_one(tmp_path):
    """What `recommend` ranks by; columns of probabilities are sorted all the same."""
    y = named(["stays", "churned"])
    model = fresh().partial_fit(X, y, classes=["stays", "churned"])
    plain = fresh().fit(X, ONES)
    assert state(model) == state(plain)
    model.save(tmp_path / "m")
    for each in (model, load(tmp_path / "m")):
        assert isinstance(each, SpiderClassifier)
        assert (each.positive_, each.classes_.tolist()) == ("churned", ["churned", "stays"])
        assert (each.predict_proba(X) == plain.predict_proba(X)[:, ::-1]).all()
        assert each.predict(X).tolist() == named(["stays", "churned"], plain.predict(X))
        assert each.recommend({0: "anna"}, over=1) == plain.recommend({0: "anna"}, over=1)


BAD = {
    "third text": (["no", "yes", "maybe"], 2, "label 'maybe' is not 'no' or 'yes'"),
    "number": (["no", 1, "yes"], 1, "label 1 is not 'no' or 'yes'"),
    "all numbers": ([1, 0, 1], 0, "label 1 is not 'no' or 'yes'"),
    "missing": (["no", None, "yes"], 1, "without a value"),
    "nan": (["no", float("nan"), "yes"], 1, "not finite"),
    "bytes": (["no", b"yes", "yes"], 1, "bytes"),
    "share": ([1, 0.5, 1], 1, "continuous value 0.5"),
    "long": (["no", "y" * 1001, "yes"], 1, "longer than 1,000"),
    "large": ([1, 2**64, 1], 1, "64 bits"),
    "large float": ([1.0, 1e19, 1.0], 1, "64 bits"),
    "complex": ([1j, 0, 1], None, "Complex"),
    "short": (["no", "yes"], None, "3 entries but 2 values"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_label_names_its_row_and_changes_nothing(name):
    y, row, words = BAD[name]
    model = fresh().fit(X, named(["no", "yes"]))
    before, nodes = state(model), model.n_nodes_
    for act in (model.learn, model.partial_fit, model.fit):
        if act == model.fit and name in ("number", "all numbers"):
            continue
        with pytest.raises(EntryError, match=words) as caught:
            act([("new", "new")] * 3, y)
        assert caught.value.row == row
    assert (state(model), model.n_nodes_, model.classes_.tolist()) == (before, nodes, ["no", "yes"])


def test_texts_and_numbers_do_not_mix():
    for y, row in ((["no", 1, "no"], 1), ([0, 0, "yes"], 2)):
        with pytest.raises(EntryError, match="all text or all numbers") as caught:
            fresh().fit(X[:3], y)
        assert caught.value.row == row


# --- files


def changed(folder: Any, classes: Any, kind: type = SpiderClassifier) -> Any:
    path = folder / "changed"
    kind(rank=2, hidden=(4,), committee=1).fit(X, ONES).save(path)
    file = checkpoint.load(path)
    checkpoint.save(path, file.arrays, file.sections | {"classes": classes})
    return path


def test_a_file_says_nothing_about_0_and_1(tmp_path):
    """So such files are those of before labels, which stay 0 and 1."""
    for y, wanted in ((ONES, None), (ONES == 1, [False, True]), (named(["no", "yes"]), ["no", "yes"])):
        fresh().fit(X, y).save(tmp_path / "m")
        assert checkpoint.load(tmp_path / "m").sections.get("classes") == wanted


@pytest.mark.parametrize(
    "classes",
    [None, {}, "no", [], ["a"], ["a", "a"], ["a", 1], [True, 2], [0.0, 1.0], [[], []], ["a", "b", "c"],
     ["a", "b" * 1001], [0, 2**63], [None, None], {"0": "a", "1": "b"}],
    ids=str,
)  # fmt: skip
def test_impossible_classes_in_a_file(classes, tmp_path):
    with pytest.raises(CheckpointError, match="classes"):
        load(changed(tmp_path, classes))


def test_a_regressor_has_no_classes(tmp_path):
    with pytest.raises(CheckpointError, match="only a classifier"):
        load(changed(tmp_path, ["no", "yes"], SpiderRegressor))


def test_labels_of_any_characters_come_back(tmp_path):
    for two in (["ä\n", "\udcff"], ["a" * 1000, "b" * 1000]):
        fresh().fit(X, named(two)).save(tmp_path / "m")
        found = load(tmp_path / "m")
        assert isinstance(found, SpiderClassifier)
        assert found.classes_.tolist() == sorted(two)


def test_labels_shown_in_messages_are_short():
    assert len(labels.shown(("a" * 900, "b" * 900))) < 200
