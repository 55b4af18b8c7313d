"""Models whose columns are full: new values take the rows of those longest unseen, at their prior."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from model_files import file_bytes
from spidertensor import Context, Cross, Many, Recent, SpiderClassifier, SpiderRegressor, Value, load
from spidertensor.estimator.columns import FittedColumns, many
from spidertensor.spider import posterior

SMALL = {"committee": 2, "hidden": (4,), "rank": 2, "multilinear": 3, "batch_size": 16, "random_state": 1}
MODES = {
    "user": [Value("city"), Many("tags"), Recent("movie", 3)],
    "movie": [],
    "when": Context(Value("hour"), Cross("user", "city", "movie")),
}


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Room for five values in each column."""
    monkeypatch.setitem(FittedColumns.__init__.__kwdefaults__, "max_values", 5)
    monkeypatch.setattr(many, "MOST_IN_CELL", 5)


def table(n: int, seed: int = 0) -> tuple[dict[str, list], np.ndarray]:
    rng = np.random.default_rng(seed)
    user, movie, city, hour = rng.integers((6, 4, 9, 12), size=(n, 4)).T.tolist()
    tags = [sorted(set(rng.integers(9, size=rng.integers(4)).tolist())) for _ in range(n)]
    there = rng.random((3, n)) > 0.4
    columns = {
        "user": user,
        "movie": movie,
        "city": [f"c{each}" if t else None for each, t in zip(city, there[0], strict=True)],
        "tags": [each if t else None for each, t in zip(tags, there[1], strict=True)],
        "hour": [each if t else None for each, t in zip(hour, there[2], strict=True)],
    }
    return columns, np.array(user) % 2 + 0.3 * rng.normal(size=n)


def part(columns: dict[str, list], start: int, stop: int) -> dict[str, list]:
    return {name: column[start:stop] for name, column in columns.items()}


def learn_in(model: Any, size: int, n: int, *, saving: Any = None) -> Any:
    columns, y = table(n)
    for start in range(0, n, size):
        model.partial_fit(part(columns, start, min(start + size, n)), y[start : start + size])
        if saving is not None and (start // size) % 3 == 2:
            model.save(saving)
            model = load(saving)
    return model


@pytest.mark.parametrize("more", [{}, {"max_nodes": [4, None, None]}], ids=["", "ids evicted, too"])
def test_calls_may_be_cut_and_saved_anywhere(tmp_path, more):
    model = SpiderRegressor(modes=MODES, scaling=(0.0, 1.0), **SMALL, **more)
    whole = file_bytes(learn_in(copy.deepcopy(model), 200, 200))
    for size in (1, 7, 60):
        assert file_bytes(learn_in(copy.deepcopy(model), size, 200, saving=tmp_path / "m.spider")) == whole
    evicted = load_bytes(whole, tmp_path)._learned.columns.n_evicted
    assert (evicted[[0, 1, 3, 4]] > 20).all()


def load_bytes(content: bytes, folder: Any) -> SpiderRegressor:
    (folder / "x.spider").write_bytes(content)
    model = load(folder / "x.spider")
    assert isinstance(model, SpiderRegressor)
    return model


def test_a_new_value_starts_at_its_prior():
    modes = {"user": [], "when": Context(Value("hour"))}
    n = 200
    columns = {"user": [each % 7 for each in range(n)], "hour": [each % 5 for each in range(n)]}
    model = SpiderRegressor(modes=modes, **SMALL).fit(columns, np.arange(n) % 5)
    before = model.attribute_factors()["when", "hour"]
    assert before.ids == [0, 1, 2, 3, 4]
    model.partial_fit({"user": [1], "hour": ["new"]}, [2.0])
    after = model.attribute_factors()["when", "hour"]
    assert after.ids == ["new", 1, 2, 3, 4]  # 0 was longest unseen
    np.testing.assert_array_equal(after.mean[2:], before.mean[2:])  # what the entry does not name


def test_a_described_value_starts_at_its_prior():
    columns, y = table(150)
    model = SpiderRegressor(modes=MODES, **SMALL).fit(columns, y)

    def rows_of_city() -> list[tuple[np.ndarray, np.ndarray]]:
        """The row of the value longest unseen in each member, and how it started."""
        found = []
        for member, own in zip(model._learned.model.members, model._learned.state.members, strict=True):
            start = posterior.start_rows(member.network, member.prior, int(own.seed), 3, row, row + 1)
            found.append((own.posterior.factors[3].mean[row].copy(), start[0][0]))
        return found

    values = model._learned.columns.columns[0].holder.state.values
    row = int(values.row[values._seen[values.row].argmin()])
    assert not any(np.array_equal(mean, start) for mean, start in rows_of_city())
    model.set_attributes("user", {"user": ["x"], "city": ["new"]})
    assert model.attribute_factors()["user", "city"].ids[row] == "new"
    assert all(np.array_equal(mean, start) for mean, start in rows_of_city())


def test_who_had_an_evicted_value_has_none():
    columns, y = table(150)
    model = SpiderRegressor(modes=MODES, **SMALL).fit(columns, y)
    known = set(model.attribute_factors()["user", "city"].ids)
    gone = next(f"c{each}" for each in range(9) if f"c{each}" not in known)
    model.set_attributes("user", {"user": ["x"], "city": [gone]})
    assert gone in model.attribute_factors()["user", "city"].ids
    for each in range(5):  # all that the model had before give way
        model.set_attributes("user", {"user": [f"y{each}"], "city": [f"new {each}"]})
    asked = {"user": ["x", "?"], "movie": [0, 0]}
    same = model.predict(asked)
    assert same[0] == pytest.approx(same[1], abs=0.05)
    state = model._learned.columns.columns[0].holder
    assert set(state.memory.codes.tolist()) <= {-2, *range(5)}
    model.partial_fit(columns, y)


def test_forgetting_moves_rows_together(tmp_path):
    columns, y = table(150)
    model = SpiderRegressor(modes=MODES, **SMALL).fit(columns, y)
    pairs = model.attribute_factors()["when", "user*city*movie"]
    assert model.forget("user", [columns["user"][-1]]) == 1
    left = model.attribute_factors()["when", "user*city*movie"]
    kept = [each for each in pairs.ids if each is not None and each[0] not in (None, columns["user"][-1])]
    assert sorted(left.ids) == sorted(kept)
    for each in kept:
        np.testing.assert_array_equal(left.mean[left.ids.index(each)], pairs.mean[pairs.ids.index(each)])
    again = load_bytes(file_bytes(model), tmp_path)
    for each in (model, again):
        each.partial_fit(columns, y)
    np.testing.assert_array_equal(model.predict(columns), again.predict(columns))


def test_events_and_batches_learn_with_full_columns():
    columns, _ = table(150)
    modes = {"user": [Value("city")], "movie": [Value("hour")]}
    events = SpiderClassifier(modes=modes, negatives=2, negatives_over="movie", **SMALL).fit(columns)
    assert (events._learned.columns.n_evicted > 0).all()
    assert np.isfinite(events.predict_proba(columns)).all()


@pytest.mark.slow
def test_the_other_engine_is_cut_anywhere():
    pytest.importorskip("jax")
    model = SpiderRegressor(modes=MODES, scaling=(0.0, 1.0), engine="vectorized", **SMALL)
    columns, y = table(96)
    whole, parts = copy.deepcopy(model), copy.deepcopy(model)
    whole.partial_fit(columns, y)
    for start in range(0, 96, 32):  # whole batches, as it learns batch by batch
        parts.partial_fit(part(columns, start, start + 32), y[start : start + 32])
    np.testing.assert_allclose(parts.predict(columns), whole.predict(columns), rtol=1e-5, atol=1e-6)
