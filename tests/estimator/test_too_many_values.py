"""Histories whose columns have more values than a model keeps: the rarest are left out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from model_files import file_bytes
from spidertensor import Context, Cross, Many, SpiderClassifier, SpiderRegressor, SpiderWarning, Value, load
from spidertensor.estimator import arranged, collected
from spidertensor.estimator.columns import Schema, many

pytestmark = pytest.mark.filterwarnings("ignore:more different values")

SMALL = {"rank": 2, "hidden": (4,), "multilinear": 2, "batch_size": 64, "committee": 2, "random_state": 1}
N, MOST = 1_200, 8
MODES = {
    "user": [],
    "movie": [],
    "when": Context(Value("city", most=MOST), Many("tags", most=MOST), Cross("user", "movie", most=40)),
}


@pytest.fixture(autouse=True)
def short_cells(monkeypatch):
    monkeypatch.setattr(many, "MOST_IN_CELL", 3)


def table() -> tuple[dict[str, list], np.ndarray]:
    rng = np.random.default_rng(0)
    user, movie = rng.zipf(1.6, size=(2, N)) % 15
    city, tag = rng.zipf(1.5, size=(2, N)) % 40
    columns = {
        "user": user.tolist(),
        "movie": movie.tolist(),
        "city": [f"c{each}" for each in city],
        "tags": [[f"t{each}"] for each in tag],
        "both": [f"{u} {m}" for u, m in zip(user, movie, strict=True)],
    }
    return columns, np.sin(city) + 0.2 * rng.normal(size=N)


def frequent(cells: list, most: int) -> set:
    """The most frequent values; of those as frequent the first."""
    counts = Counter(cells)
    order = {value: place for place, value in reversed(list(enumerate(cells)))}
    return set(sorted(counts, key=lambda value: (-counts[value], order[value]))[:most])


def without_rare(columns: dict[str, list]) -> dict[str, list]:
    """What the model should make of it: cells without the values that are left out."""
    cities = frequent(columns["city"], MOST)
    tags = frequent([tag for cell in columns["tags"] for tag in cell], MOST)
    both = frequent(columns["both"], 40)
    return columns | {
        "city": [each if each in cities else None for each in columns["city"]],
        "tags": [[tag for tag in cell if tag in tags] for cell in columns["tags"]],
        "both": [each if each in both else None for each in columns["both"]],
    }


def learned_arrays(model: Any) -> list[np.ndarray]:
    state = model._learned.state
    return [each for member in state.members for part in member.posterior.factors for each in part]


@pytest.mark.parametrize("settings", [{}, {"time": "row"}], ids=["at random", "in time"])
def test_a_history_is_learned_as_if_the_rarest_values_were_missing(settings):
    columns, y = table()
    columns["row"] = list(range(N))
    with pytest.warns(SpiderWarning, match="the rarest are left out") as given:
        model = SpiderRegressor(modes=MODES, passes=2, **SMALL, **settings).fit(columns, y)
    (note,) = [each.message for each in given if each.message.kind == "left out"]
    plain = MODES | {"when": Context(Value("city"), Many("tags"), Value("both"))}
    wanted = SpiderRegressor(modes=plain, passes=2, **SMALL, **settings).fit(without_rare(columns), y)
    for a, b in zip(learned_arrays(model), learned_arrays(wanted), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(model.predict(columns), wanted.predict(without_rare(columns)))
    fitted = model._learned.columns
    assert fitted.n_rows.tolist() == [MOST, MOST, 40]
    n_tags = len({tag for cell in columns["tags"] for tag in cell})
    n_city, n_both = len(set(columns["city"])), len(set(columns["both"]))
    assert fitted.n_evicted.tolist() == [n_city - MOST, n_tags - MOST, n_both - 40]
    assert f"{n_city - MOST} of city" in str(note)


def test_in_a_file_or_in_parts_as_in_memory(monkeypatch, tmp_path):
    columns, y = table()
    columns["row"] = list(range(N))
    model = SpiderRegressor(modes=MODES, passes=2, time="row", **SMALL)
    whole = file_bytes(model.fit(columns, y))
    model.save(tmp_path / "m.spider")
    assert file_bytes(load(tmp_path / "m.spider")) == whole
    for name, value in (("IN_MEMORY", 0), ("CHUNK_ENTRIES", 200)):
        monkeypatch.setattr(collected, name, value)
    monkeypatch.setattr(arranged, "BUCKET_BYTES", 9_000)
    assert file_bytes(SpiderRegressor(modes=MODES, passes=2, time="row", **SMALL).fit(columns, y)) == whole


def test_nodes_lose_the_values_that_are_left_out(tmp_path):
    """Values of a node and of a cross; what stays is found under its old name."""
    columns, y = table()
    columns["city"] = [f"c{each % 13}" for each in columns["user"]]
    cells = columns["city"]
    modes = {
        "user": [Value("city", most=5), Many("tags", most=MOST), Cross("city", "movie", most=20)],
        "movie": [],
    }
    model = SpiderRegressor(modes=modes, passes=2, **SMALL).fit(columns, y)
    kept = frequent(cells, 5)
    factors = model.attribute_factors()
    assert set(factors["user", "city"].ids) == kept
    pairs = list(zip(cells, columns["movie"], strict=True))
    assert set(factors["user", "city*movie"].ids) == frequent(pairs, 20)
    values = model._learned.columns.columns[0].holder
    for number, user in enumerate(model._learned.nodes[0].ids):
        row = int(values.memory.codes[number])
        city = f"c{user % 13}"
        assert (values.state.values.row_of(city) == row) if city in kept else row < 0
    model.save(tmp_path / "m.spider")
    again = load(tmp_path / "m.spider")
    asked = {name: columns[name][:100] for name in ("user", "movie", "city", "tags")}
    np.testing.assert_array_equal(again.predict(asked), model.predict(asked))
    for each in (model, again):  # from here on new values make room, as in a stream
        each.partial_fit(columns, y)
    assert file_bytes(model) == file_bytes(again)
    assert model._learned.columns.n_rows.tolist() == [5, MOST, 20]


def test_values_that_only_a_table_has_are_the_first_to_go():
    columns, y = table()
    model = SpiderRegressor(modes={"user": [Value("home", most=15)], "movie": []}, passes=2, **SMALL)
    model.set_attributes("user", {"user": [99], "home": ["nowhere"]})
    model.fit(columns | {"home": [f"h{each}" for each in columns["user"]]}, y)
    assert set(model.attribute_factors()["user", "home"].ids) == {f"h{each}" for each in columns["user"]}


def test_events_learn_with_full_columns():
    columns, _ = table()
    modes = {"user": [Value("city", most=MOST)], "movie": []}
    settings = {"negatives": 2, "negatives_over": "movie", "passes": 2}
    events = SpiderClassifier(modes=modes, **settings, **SMALL).fit(columns)
    assert events._learned.columns.n_rows.tolist() == [MOST]
    assert np.isfinite(events.predict_proba(columns)).all()


@pytest.mark.parametrize("most", [0, -1, 2.5, True, "5", 2**31])
@pytest.mark.parametrize("kind", [Value, Many, lambda name, most: Cross(name, "b", most=most)])
def test_no_such_number_of_values(kind, most):
    with pytest.raises(ValueError, match=r"most of .* is a whole number"):
        kind("a", most=most)


def test_the_number_is_stored_with_the_column():
    schema = Schema.parse(MODES)
    assert Schema.from_json(schema.to_json()) == schema
    assert "most" not in str(Schema.parse({"user": [Value("city"), Many("tags")]}).to_json())
