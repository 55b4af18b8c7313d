"""Single entries with attributes take a fast path: it gives what many entries give, and leaves the same."""

from __future__ import annotations

import copy
import datetime as dt
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from spidertensor import EntryError, SpiderClassifier, SpiderRegressor
from spidertensor.estimator import fitted_file, one_entry
from spidertensor.estimator.columns import Calendar, Context, Cross, Many, Number, Recent, Value
from spidertensor.estimator.columns.fitted_columns import FittedColumns
from spidertensor.spider import posterior

SMALL = {"committee": 2, "hidden": (8,), "rank": 3, "multilinear": 4, "batch_size": 32}
MODES = {
    "user": [Value("gender"), Number("age"), Recent("movie", 5), Calendar("born"), Many("tags")],
    "movie": [Value("studio"), Many("genres", sep="|")],
    "when": Context(Calendar("time"), "device", Number("age")),
    "pair": Context(Cross("user", "movie", "device"), Cross("gender", "device")),
}
FIRST, N = 250, 400


def entries() -> tuple[dict[str, list], np.ndarray]:
    """Entries with cells of every kind, a third of them missing."""
    rng = np.random.default_rng(0)

    def cells(make: Any) -> list:
        return [None if rng.random() < 1 / 3 else make() for _ in range(N)]

    def one_of(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    columns = {
        "user": rng.integers(8, size=N).tolist(),
        "movie": [f"m{each}" for each in rng.integers(6, size=N)],
        "gender": cells(lambda: one_of("f", "m")),
        "age": cells(lambda: float(rng.integers(60))),
        "born": cells(lambda: dt.date(1960, 1, 1) + dt.timedelta(days=int(rng.integers(5000)))),
        "tags": cells(lambda: one_of(["a", "b"], ["a"], [], ["b", "b", "c"], {"a": 2.0, "c": -1.0})),
        "studio": cells(lambda: int(rng.integers(5))),
        "genres": cells(lambda: one_of("x|y", "x", "", " y | z ")),
        "time": cells(lambda: dt.datetime(2024, 1, 1) + dt.timedelta(minutes=int(rng.integers(500_000)))),
        "device": cells(lambda: one_of("phone", "tv")),
    }
    return columns, rng.normal(size=N)


def part(columns: dict[str, list], start: int, stop: int | None = None) -> dict[str, list]:
    return {name: column[start:stop] for name, column in columns.items()}


def same(model: Any, other: Any) -> None:
    found, expected = (fitted_file.to_arrays(each._learned) for each in (model, other))
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.fixture(scope="module")
def learned() -> SpiderRegressor:
    columns, y = entries()
    return SpiderRegressor(modes=MODES, **SMALL).partial_fit(part(columns, 0, FIRST), y[:FIRST])


@pytest.mark.parametrize("likelihood", ["gaussian", "count"])
def test_single_entries_of_all_kinds_are_learned_as_many_are(learned, likelihood, monkeypatch):
    columns, y = entries()
    model = copy.deepcopy(learned)
    if likelihood == "count":
        y = np.floor(np.exp(y))
        model = SpiderRegressor(modes=MODES, likelihood="count", **SMALL)
        model.partial_fit(part(columns, 0, FIRST), y[:FIRST])
    twin = copy.deepcopy(model)
    whole = twin.learn(part(columns, FIRST), y[FIRST:])
    single, found = FittedColumns.single, []
    monkeypatch.setattr(
        FittedColumns, "single", lambda *args, **how: found.append(single(*args, **how)) or found[-1]
    )
    for row in range(FIRST, N):
        entry = {name: column[row] for name, column in columns.items()}
        if row % 2:
            entry = {name: cell for name, cell in entry.items() if cell is not None}
        asked = part(columns, row, row + 1)
        predicted = model.predict_parts([entry])
        assert [each.item() for each in predicted] == [each.item() for each in model.predict_parts(asked)]
        update = model.learn_one(entry, float(y[row]))
        assert (update.mean, update.var) == (whole.mean[row - FIRST], whole.var[row - FIRST])
    same(model, twin)
    assert sum(each is not None for each in found) > len(found) / 2


def test_labels_too():
    columns, y = entries()
    model = SpiderClassifier(modes=MODES, **SMALL).partial_fit(part(columns, 0, FIRST), y[:FIRST] > 0)
    twin = copy.deepcopy(model)
    twin.partial_fit(part(columns, FIRST), y[FIRST:] > 0)
    for row in range(FIRST, N):
        model.learn_one({name: column[row] for name, column in columns.items()}, bool(y[row] > 0))
    same(model, twin)


def test_a_batch_between_single_entries_does_not_see_their_attributes(learned):
    columns, y = entries()
    model, twin = copy.deepcopy(learned), copy.deepcopy(learned)
    ids = [(columns["user"][0], columns["movie"][0])]
    for row in range(FIRST, FIRST + 5):
        entry = {name: column[row] for name, column in columns.items()}
        model.learn_one(entry, y[row])
        model.partial_fit({"user": [ids[0][0]] * 2, "movie": [ids[0][1]] * 2}, y[:2])
        twin.partial_fit(part(columns, row, row + 1), y[row : row + 1])
        twin.partial_fit({"user": [ids[0][0]] * 2, "movie": [ids[0][1]] * 2}, y[:2])
    same(model, twin)


@pytest.mark.parametrize(
    "change",
    [{"age": float("inf")}, {"age": "old"}, {"tags": list(range(2000))}, {"born": "soon"}, {"gender": []}],
)
def test_bad_cells_of_single_entries_are_refused_and_change_nothing(learned, change):
    model = copy.deepcopy(learned)
    entry = {"user": 1, "movie": "m1", "gender": "f"} | change
    with pytest.raises(EntryError):
        model.learn_one(entry, 1.0)
    with pytest.raises(EntryError):
        model.predict_one(entry)
    same(model, learned)


def test_known_values_need_no_arrays(learned, monkeypatch):
    """The general path would call `with_room`."""
    model = copy.deepcopy(learned)
    entry = {"user": 1, "movie": "m1", "gender": "f", "age": 31, "studio": 3, "device": "tv"}
    model.learn_one(entry, 1.0)
    monkeypatch.setattr("spidertensor.estimator.base.with_room", None)
    model.learn_one(entry, 1.0)
    assert one_entry.predict_fast(model._learned, entry) is not None
    numpy = {"user": np.int64(1), "movie": np.str_("m1"), "age": np.float32(31.5), "studio": np.int32(3)}
    twin = copy.deepcopy(model)
    update = model.learn_one(entry | numpy, 1.0)
    assert update == twin.learn_one(entry | {"age": 31.5}, 1.0)
    same(model, twin)


@pytest.mark.parametrize("first", [True, False])
def test_a_call_that_runs_out_of_memory_changes_nothing(learned, first, monkeypatch):
    columns, y = entries()
    model = SpiderRegressor(modes=MODES, **SMALL) if first else copy.deepcopy(learned)
    more = {name: [*column[FIRST : FIRST + 30]] for name, column in columns.items()}
    more["movie"][3], more["gender"][4], more["tags"][5], more["device"][6] = "new", "new", ["new"], "new"
    more["genres"][7], more["time"][8] = "x|new", dt.datetime(2030, 1, 1)
    grow, calls = posterior.grow, []

    def fails(state, network, prior, wanted):
        calls.append(wanted)
        if len(calls) == 3:  # the first member of two, for the new values
            raise MemoryError
        return grow(state, network, prior, wanted)

    with monkeypatch.context() as patch:
        patch.setattr(posterior, "grow", fails)
        with pytest.raises(MemoryError):
            model.partial_fit(more, y[:30])
    if first:
        assert not model.__sklearn_is_fitted__()
        return
    same(model, learned)
    twin = copy.deepcopy(learned)
    for each in (model, twin):
        each.partial_fit(more, y[:30])
    same(model, twin)


def test_tables_set_before_the_first_entry_are_there_after_every_fit_but_not_in_a_clone():
    columns, y = entries()
    columns = {name: columns[name] for name in ("user", "movie")}
    model = SpiderRegressor(modes={"user": [], "movie": [Value("studio")]}, **SMALL)
    model.set_attributes("movie", {"movie": ["m1", "only described"], "studio": ["a", "b"]})
    for _ in range(2):
        model.fit(columns, y)
        assert model.seen([(1, "only described")]).tolist() == [[True, True]]
        model.set_attributes("movie", {"movie": ["later"], "studio": ["a"]})
        assert model.seen([(1, "later")]).all()
    assert not model.fit(columns, y).seen([(1, "later")]).all()
    assert not clone(model).fit(columns, y).seen([(1, "only described")]).all()
