"""What looks like ids or values and is not, refused wherever it stands; columns that look alike; one mode."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from spidertensor import EntryError, SpiderClassifier, SpiderRegressor

X = [("a", 1), ("b", 2)]
SMALL = {"rank": 2, "hidden": (4,), "committee": 1}
STRANGE = {
    "complex": 1j,
    "numpy complex": np.complex128(1),
    "datetime": datetime(2020, 1, 1),
    "date": date(2020, 1, 1),
    "time": time(1),
    "timedelta": timedelta(1),
    "numpy datetime": np.datetime64(5, "ns"),
    "numpy timedelta": np.timedelta64(5, "ns"),
    "timestamp": pd.Timestamp(0),
}


def objects(*values) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", STRANGE)
def test_complex_numbers_and_times_are_neither_ids_nor_values(name):
    strange = STRANGE[name]
    model = SpiderRegressor(**SMALL).fit(X, [1.0, 2.0])
    table = np.stack([objects("a", "b"), objects(1, strange)], axis=1)
    for ids in (
        [("a", 1), ("b", strange)],
        [("a", 1), ("b", (1, strange))],
        table,
        pd.DataFrame(table, columns=["user", "day"]),
        pd.DataFrame({"user": ["a", "b"], "day": [strange, strange]}),
        np.array([[strange, strange]]),
    ):
        with pytest.raises(EntryError, match=r"cannot be an id|Complex data"):
            model.predict(ids)
    with pytest.raises(EntryError, match="cannot be an id"):
        model.recommend({0: strange}, 1)
    for values in (
        [1.0, strange], [strange, strange], objects(1.0, strange), np.array([strange, strange]),
        pd.Series([strange, strange]), pd.Series(objects(1.0, strange)),
    ):  # fmt: skip
        for each in (model, SpiderClassifier(**SMALL)):
            with pytest.raises(EntryError, match="number"):
                each.partial_fit(X, values)
    assert model.n_entries_ == 2


@pytest.mark.parametrize("frame", [pl.DataFrame, pa.table])
@pytest.mark.parametrize("day", [datetime(2020, 1, 1), date(2020, 1, 1), time(1), timedelta(1)])
def test_columns_of_times_in_other_frames_too(frame, day):
    with pytest.raises(EntryError, match=r"column day: .* cannot be an id"):
        SpiderRegressor(**SMALL).fit(frame({"user": ["a", "b"], "day": [day, day]}), [1.0, 2.0])
    column = frame({"day": [day, day]})["day"]
    with pytest.raises(EntryError, match="number"):
        SpiderRegressor(**SMALL).fit(X, column)


def test_columns_1_and_text_1_are_not_one_column():
    frame = pd.DataFrame([[1, 2], [3, 4]], columns=[1, "1"])
    model = SpiderRegressor(**SMALL)
    with pytest.raises(EntryError, match=r"two columns have the same name as text \(1, '1'\): rename one"):
        model.fit(frame, [1.0, 2.0])
    assert model.fit(frame.set_axis([1, 2], axis=1), [1.0, 2.0]).mode_names_ == ["1", "2"]
    with pytest.raises(EntryError, match="same name as text"):
        model.predict(frame)


def test_one_mode_is_a_mean_of_each_id():
    rng = np.random.default_rng(0)
    means = 3 * rng.normal(size=20)
    ids = rng.integers(20, size=3000)
    model = SpiderRegressor().fit(ids[:, None], means[ids] + rng.normal(size=3000))
    mean = model.predict(np.arange(20)[:, None])
    assert np.abs(mean - means).max() < 0.5
    best = model.recommend({}, 0, n=3)
    assert [each.id for each in best] == np.argsort(-means)[:3].tolist()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda model: model.predict([("a", datetime(2020, 1, 1))]), 'Context(Calendar("time"))'),
        (
            lambda model: model.predict(pd.DataFrame({"user": ["a"], "day": [date(2020, 1, 1)]})),
            "convert to str",
        ),
        (lambda model: model.predict([("a", timedelta(1))]), "cannot be an id: convert to str"),
        (lambda model: model.fit(X, "stars"), "y=X['stars']"),
        (lambda model: model.recommend({}, over=1), "each once: '0' missing"),
        (lambda model: model.recommend({0: "a", 1: 2}, over=1), "each once: '1' not to be given"),
    ],
)
def test_a_refusal_says_what_to_write_instead(call, words):
    model = SpiderRegressor(scaling=(0.0, 1.0), **SMALL)
    model.partial_fit(X, [1.0, 2.0])
    with pytest.raises(ValueError, match=re.escape(words)):
        call(model)
