"""Notes about ids that are rather numbers or times; none about ordinary ids."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

from spidertensor import Context, SpiderRegressor
from spidertensor.estimator.ids import NodeIndex
from spidertensor.estimator.number_ids import note
from spidertensor.faults import SpiderWarning

RNG = np.random.default_rng(0)
N = 2000
START = np.datetime64("2024-01-01T00:00:00")
PRICES = RNG.lognormal(3, 1, N).round(2)
SECONDS = 1_600_000_000 + RNG.integers(10**7, size=N)
SMALL = {"rank": 2, "hidden": (4,), "committee": 1}


def found(ids: Any, entries: int | None = None) -> str | None:
    """The kind of the note about a mode with these ids, beside a mode of few."""
    nodes = [NodeIndex(), NodeIndex()]
    nodes[0].find_or_add([1, 2, 3])
    nodes[1].find_or_add(ids)
    warning = note(nodes, len(ids) if entries is None else entries, ("user", "second"))
    if warning is None:
        return None
    assert warning.column == "second"
    return warning.kind


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        (PRICES, "number"),
        (PRICES.astype(str).tolist(), "number"),  # as in a csv, where 19.90 is written 19.9
        (RNG.normal(size=N).astype(str).tolist(), "number"),
        (RNG.integers(-300, 300, size=N), "number"),  # delays
        (RNG.lognormal(12, 3.5, N).astype(np.int64), "number"),  # bytes
        (SECONDS, "time"),
        (np.datetime_as_string(START + np.arange(N) * 97).tolist(), "time"),
        ([f"{START + 60 * n}"[:16].replace("T", " ") for n in range(N)], "time"),
    ],
)
def test_numbers_and_times_are_found(ids, kind):
    assert found(ids) == f"{kind} as id"


@pytest.mark.parametrize(
    "ids",
    [
        np.arange(N),
        RNG.permutation(N) + 10**6,
        RNG.integers(10**10, size=N),
        RNG.integers(-(2**62), 2**62, size=N),  # hashes
        RNG.integers(2**31, size=N),
        (RNG.pareto(1.0, size=N) * 100).astype(np.int64),  # popular ids are small
        np.arange(1_600_000_000, 1_600_000_000 + N),  # order numbers
        np.array([-1, *range(N)]),  # a placeholder among ids
        np.arange(N).astype(float),
        RNG.choice([0.5, 1.0, 1.5, 2.0], size=N),
        [f"{n:05}" for n in range(N)],
        [f"u{n}" for n in range(N)],
        [f"{n // 10}.{n % 10}" for n in range(N)],  # diagnoses such as 401.9
        [f"10.0.{n // 256}.{n % 256}" for n in range(N)],
        [f"{START + 86_400 * n}"[:10] for n in range(N)],  # days, each of which may have much in common
        [(n, 0.5) for n in range(N)],
        [True, False],
    ],
    ids=repr,
)
def test_ordinary_ids_are_not(ids):
    assert found(ids) is None


def test_times_that_come_again_may_be_ids():
    """Such as the hour of the weather, which all flights of an airport share."""
    hours = np.datetime_as_string(START + 3600 * np.arange(200)).tolist()
    assert found(hours, entries=200) == "time as id"
    assert found(hours, entries=1000) is None
    assert found(SECONDS[:100], entries=100) is None  # too few whole numbers to be sure


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("movielens-100k", ("indices", "labels0", "labels1")),
        ("movielens-1m", ("indices", "labels0", "labels1")),
        ("anime", ("indices", "labels0", "labels1")),
        ("acc", ("train_indices",)),
        ("dblp", ("train_indices",)),
    ],
)
def test_the_ids_of_data_sets_get_no_note(data_folder, name, keys):
    path = data_folder / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"no {path.name}")
    data = np.load(path)
    for key in keys:
        for column in np.atleast_2d(data[key].T):
            for order in (column, np.random.default_rng(0).permutation(column)):
                for n in (1_000, 10_000, 100_000):
                    assert found(order[:n]) is None


# --- through the library


def prices(n: int = N) -> tuple[pd.DataFrame, np.ndarray]:
    return pd.DataFrame({"shop": np.arange(n) % 7, "price": PRICES[:n]}), np.log(PRICES[:n])


def notes_of(call: Any) -> list[SpiderWarning]:
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        call()
    return [each.message for each in given if isinstance(each.message, SpiderWarning)]


def test_a_model_says_it_once():
    X, y = prices()
    model = SpiderRegressor(**SMALL)
    (first,) = notes_of(lambda: model.fit(X, y))
    assert (first.kind, first.column) == ("number as id", "price")
    assert 'Context(Number("price"))' in str(first)
    assert notes_of(lambda: model.partial_fit(X[::-1], y[::-1])) == []
    assert len(notes_of(lambda: model.fit(X, y))) == 1  # a new model


@pytest.mark.parametrize("size", [1, 300, 999])
def test_it_comes_with_the_thousandth_entry_of_a_stream(size):
    X, y = prices()
    model = SpiderRegressor(scaling=(0.0, 1.0), **SMALL)
    for start in range(0, 1200, size):
        part = X[start : start + size]
        given = notes_of(lambda part=part, start=start: model.learn(part, y[start : start + size]))
        assert bool(given) == (start < 1000 <= start + size), start


def test_a_fit_with_few_entries_says_it_at_its_end():
    (given,) = notes_of(lambda: SpiderRegressor(**SMALL).fit(*prices(100)))
    assert given.kind == "number as id"


def test_a_mode_without_names_has_a_number():
    X, y = prices(100)
    (given,) = notes_of(lambda: SpiderRegressor(**SMALL).fit(X.to_numpy(), y))
    assert str(given).startswith("mode 1: ")


def test_with_attributes_the_column_is_named():
    X, y = prices(100)
    modes = {"when": Context("shop"), "price": []}
    model = SpiderRegressor(modes=modes, **SMALL)
    (given,) = notes_of(lambda: model.fit(X, y))
    assert given.column == "price"


def test_the_command_says_what_to_write(folder, spider):
    X, y = prices()
    rows = zip(X["shop"], X["price"], y, strict=True)
    (folder / "p.csv").write_text("\n".join(["shop,price,y", *(f"{a},{b},{c}" for a, b, c in rows)]))
    fit = ("fit", "p.csv", "--modes", "shop,price", "--value", "y", "--committee", "1", "--hidden", "4")
    code, out, err = spider(*fit, "--json", "-q")
    assert code == 0
    kinds = {each["kind"]: each["remedy"] for each in json.loads(out)["notes"]}
    assert "--kind price=number" in kinds["number as id"]
    assert "column price: the ids are numbers such as" in " ".join(err.split())
