"""Files of columns: an exact round trip, and ValueError for whatever else is in them."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest

from spidertensor.estimator.columns import (
    Calendar,
    Context,
    Cross,
    FittedColumns,
    Many,
    Number,
    Recent,
    Schema,
    Value,
)

MODES = {
    "user": [Value("city"), Many("tags"), Cross("user", "city"), Recent("movie", 2), "never"],
    "movie": [Number("year"), Number("few"), Calendar("released")],
    "when": Context("hour", Many("words", sep=" ")),
}
N_NODES = [3, 4, 0]


def learned() -> FittedColumns:
    n = 60
    rng = np.random.default_rng(1)
    fitted = FittedColumns(Schema.parse(MODES), max_values=5)
    index = np.stack([np.arange(n) % 3, np.arange(n) % 4, np.full(n, -1)], axis=1)
    given = {
        "city": [["x", "y", None][i % 3] for i in range(n)],
        "tags": [["a"], ["b", "a"], None, []] * (n // 4),
        "year": rng.normal(size=n),
        "few": [float(i) if i < 20 else None for i in range(n)],
        "released": np.datetime64("2020-01-01") + np.arange(n),
        "hour": [i % 7 for i in range(n)],
        "words": ["sun rain", "wind"] * (n // 2),
    }
    fitted.bags(fitted.check(given, n), index, learn=True)
    return fitted


def stored(fitted: FittedColumns) -> tuple[Any, dict[str, np.ndarray]]:
    return json.loads(json.dumps(fitted.to_json())), fitted.to_arrays()


def test_a_round_trip_is_exact_and_learning_goes_on_alike():
    fitted = learned()
    again = FittedColumns.from_file(*stored(fitted), N_NODES)
    for step in range(3):
        one, other = stored(fitted), stored(again)
        assert one[0] == other[0], step
        assert one[1].keys() == other[1].keys()
        for name, array in one[1].items():
            assert array.dtype == other[1][name].dtype
            np.testing.assert_array_equal(array, other[1][name], err_msg=name)
        given = {"city": ["z", "x"], "few": np.arange(2.0), "tags": [None, ["c"]], "never": [1.5, 2.5]}
        index = np.array([[0, 3, -1], [1, 0, -1]])
        bags = [each.bags(each.check(given, 2), index, learn=True) for each in (fitted, again)]
        for a, b in zip(*bags, strict=True):
            np.testing.assert_array_equal(a, b)


def test_an_empty_one_makes_the_round_trip():
    fitted = FittedColumns(Schema.parse(MODES))
    assert stored(FittedColumns.from_file(*stored(fitted)))[0] == fitted.to_json()


def test_copies_are_independent():
    fitted = learned()
    before = {name: array.copy() for name, array in fitted.to_arrays().items()}
    twin = copy.deepcopy(fitted)
    given = {"city": ["new"], "tags": [["new"]], "released": ["2031-01-01"]}
    twin.bags(twin.check(given, 1), np.array([[0, 0, -1]]), learn=True)
    for name, array in fitted.to_arrays().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def test_written_arrays_do_not_change_with_the_model():
    fitted = learned()
    arrays = fitted.to_arrays()
    before = copy.deepcopy(arrays)
    given = {"city": ["y"], "tags": [["b"]], "released": ["2031-01-01"], "few": [9.0]}
    for _ in range(300):
        fitted.bags(fitted.check(given, 1), np.array([[0, 0, -1]]), learn=True)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


@pytest.mark.parametrize(
    "change",
    [
        lambda doc: doc.pop("tables"),
        lambda doc: doc.update(more=1),
        lambda doc: doc.update(max_values=0),
        lambda doc: doc.update(max_values=True),
        lambda doc: doc.update(modes={}),
        lambda doc: doc["modes"].append(doc["modes"][0]),
        lambda doc: doc["modes"][0].update(id=1),
        lambda doc: doc["modes"][0]["columns"].append({"kind": "recent", "mode": "nobody", "n": 3}),
        lambda doc: doc["modes"][0]["columns"].append({"kind": "recent", "mode": "movie", "n": 10**9}),
        lambda doc: doc["modes"][0]["columns"].append({"kind": "value", "column": "a", "b": 1}),
        lambda doc: doc["modes"][0]["columns"].append("city"),
        lambda doc: doc["tables"].pop(),
        lambda doc: doc["tables"].append(doc["tables"][0]),
        lambda doc: doc["tables"].__setitem__(1, doc["tables"][0]),
        lambda doc: doc["tables"][0].update(mode=1),
        lambda doc: doc["tables"][0].update(mode=[]),
        lambda doc: doc["tables"][0].update(scale=float("nan")),
        lambda doc: doc["tables"][0].update(scale=0),
        lambda doc: doc["tables"][0].update(owners={"city": None}),
        lambda doc: doc["tables"][2].update(owners={"city": 2}),
        lambda doc: doc["tables"][2].update(owners=[]),
        lambda doc: doc["tables"][0].update(spec={"kind": "number", "column": "city"}),
        lambda doc: doc["tables"][0].update(spec=None),
    ],
)
def test_a_wrong_description_is_refused(change):
    document, arrays = stored(learned())
    change(document)
    with pytest.raises(ValueError, match=r"."):
        FittedColumns.from_file(document, arrays, N_NODES)


def is_possible(name: str, wrong: np.ndarray | None) -> bool:
    """A count of 99 may be true, and so may a time shortly before or after 1970."""
    if wrong is None or wrong.ndim > 1 or wrong.dtype != np.int64:
        return False
    return (name.endswith("next") and wrong.ndim == 0 and wrong > 0) or name == "7/memory"


def changes_of(array: np.ndarray) -> list[np.ndarray | None]:
    """None for an array that is missing, then arrays of a wrong type, shape or content."""
    wrong = [None, np.zeros(array.shape, np.float16), array[None]]
    if array.dtype.kind in "iu" and array.dtype != np.uint8:
        wrong.append(np.full_like(array, 99))
        wrong.append(np.full_like(array, -99))
    if array.dtype.kind == "f" and array.size:
        wrong.append(np.full_like(array, np.inf))
    return wrong


def test_wrong_arrays_are_refused():
    document, arrays = stored(learned())
    for name, array in arrays.items():
        for wrong in changes_of(array):
            changed = {key: value for key, value in arrays.items() if key != name}
            if wrong is not None:
                changed[name] = wrong
            if not is_possible(name, wrong):
                with pytest.raises(ValueError, match=r"."):
                    FittedColumns.from_file(document, changed, N_NODES)
    for name in ("more", "99/memory", "0/more", "4/memory", "-1/memory", "01/memory"):
        with pytest.raises(ValueError, match=r"."):
            FittedColumns.from_file(document, arrays | {name: np.zeros(1)}, N_NODES)


def test_attributes_of_nodes_that_are_not_there_are_refused():
    document, arrays = stored(learned())
    for n_nodes in ([2, 4, 0], [3, 3, 0]):
        with pytest.raises(ValueError, match="which has"):
            FittedColumns.from_file(document, arrays, n_nodes)
