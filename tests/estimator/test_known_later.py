"""`fit` with `known_at`: entries are predicted at their time and learned when their values are known."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from spidertensor import EntryError, Forecast, Recent, SpiderClassifier, SpiderRegressor

N, DELAY = 1500, 100.0
BIASES = [{"rank": 0, "multilinear": 0}]  # has no random start, so the numbers of nodes do not matter


def history(seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(seed)
    user, film = rng.integers(40, size=N), rng.integers(20, size=N)
    asked = np.sort(rng.uniform(0, 1000, N))
    known = asked + rng.exponential(DELAY, N)
    value = np.sin(user) + np.cos(film) + asked / 500 + 0.3 * rng.normal(size=N)
    return {"user": user, "film": film, "asked": asked, "known": known}, value


def ids_of(columns, n=N):
    return np.stack([columns["user"], columns["film"]], axis=1)[:n]


def model(**params):
    return SpiderRegressor(time="asked", known_at="known", scaling=(0.0, 1.0), **params)


def by_hand(columns, value):
    """The same with `forecast` and `learn`, tick by tick."""
    found = SpiderRegressor(committee=BIASES, scaling=(0.0, 1.0))
    rows = ids_of(columns)
    asked, known = columns["asked"] - columns["asked"][0], columns["known"] - columns["asked"][0]
    tick = np.median(known - asked) / 10
    waiting, said = list(np.argsort(known)), [None] * N
    for now in range(int(asked[-1] // tick) + 1):
        learn = [row for row in waiting if known[row] // tick < now]
        if found.__sklearn_is_fitted__() or len(learn) >= found.batch_size:
            if learn:
                found.learn(rows[learn], value[learn], forecast=[said[row] for row in learn])
                waiting = waiting[len(learn) :]
            here = np.flatnonzero(asked // tick == now)
            if len(here):
                forecast = found.forecast(rows[here])
                for place, row in enumerate(here):
                    said[row] = forecast[[place]]
    found.learn(rows[waiting], value[waiting], forecast=[said[row] for row in waiting])
    return found


def test_it_is_what_forecasts_by_hand_come_to():
    columns, value = history()
    got, wanted = model(committee=BIASES).fit(pa.table(columns), value), by_hand(columns, value)
    asked = ids_of(columns, 200)
    assert got.n_entries_ == N
    np.testing.assert_allclose(got.predict(asked), wanted.predict(asked), rtol=1e-6)
    for calibration in ("forecast", "auto"):
        np.testing.assert_allclose(
            got.predict_interval(asked, 0.9, calibration=calibration),
            wanted.predict_interval(asked, 0.9, calibration=calibration),
            rtol=1e-6,
        )


def test_the_order_of_the_rows_does_not_matter_and_values_of_the_end_are_learned():
    columns, value = history()
    columns["known"][-5:] = 1e6
    mixed = np.random.default_rng(1).permutation(N)
    one = model().fit(pa.table(columns), value)
    other = model().fit(pa.table({name: column[mixed] for name, column in columns.items()}), value[mixed])
    np.testing.assert_array_equal(one.predict(ids_of(columns)), other.predict(ids_of(columns)))
    assert one.n_entries_ == N


def test_the_order_of_the_rows_does_not_matter_with_attributes():
    """Also of those that keep recent nodes."""
    columns, value = history()
    modes = {"user": [Recent("film", 3)], "film": ["colour"]}
    columns["colour"] = np.array(list("rgb"))[columns["film"] % 3]
    mixed = np.random.default_rng(1).permutation(N)
    one = model(modes=modes).fit(pa.table(columns), value)
    other = model(modes=modes).fit({name: column[mixed] for name, column in columns.items()}, value[mixed])
    np.testing.assert_array_equal(one.predict(columns), other.predict(columns))


def test_the_clock_is_not_that_on_the_wall():
    """In the night when summer time ends, what is known 20 minutes later has an earlier hour."""
    columns, value = history()
    start = dt.datetime(2026, 10, 25, tzinfo=dt.UTC)
    zones = [ZoneInfo("Europe/Berlin"), dt.UTC]
    dated = columns | {
        name: [
            (start + dt.timedelta(seconds=float(each) * 20)).astimezone(zones[row % 2])
            for row, each in enumerate(columns[name])
        ]
        for name in ("asked", "known")
    }
    plain = columns | {name: columns[name] * 20 for name in ("asked", "known")}
    one, other = model().fit(pd.DataFrame(dated), value), model().fit(pd.DataFrame(plain), value)
    np.testing.assert_allclose(one.predict(ids_of(columns)), other.predict(ids_of(columns)), rtol=1e-6)
    in_order, as_numbers = (
        SpiderRegressor(time="asked").fit(pd.DataFrame(each).drop(columns="known"), value)
        for each in (dated, plain)
    )
    np.testing.assert_array_equal(in_order.predict(ids_of(columns)), as_numbers.predict(ids_of(columns)))


def test_a_model_fitted_anew_is_another_generation():
    """Also if the first values are the same."""
    columns, value = history()
    found = model().fit(pa.table(columns), value)
    forecast = found.forecast(ids_of(columns, 1))
    found.fit(pa.table(columns).slice(0, 1000), value[:1000])
    with pytest.raises(EntryError, match="fitted anew"):
        found.learn(ids_of(columns, 1), value[:1], forecast=forecast)


def test_weights_are_those_of_predictions_made_as_early():
    """The level follows a walk: known at once, the members that chase it lead; known late, they are wrong."""
    rng = np.random.default_rng(0)
    n = 4000
    level = np.cumsum(rng.normal(size=n)) * 0.15
    level -= np.linspace(0, level[-1], n)
    columns = {"user": rng.integers(40, size=n), "film": rng.integers(20, size=n), "asked": np.arange(n)}
    value = level + np.sin(columns["user"]) + 0.2 * rng.normal(size=n)
    weights = {}
    for delay in (1, 2000):
        columns["known"] = columns["asked"] + delay
        found = model(committee=[{"memory": 20, "bias_var": 0.5}, *BIASES]).fit(pa.table(columns), value)
        weights[delay] = found.members_[0].weight
    assert weights[1] > 0.9
    assert weights[2000] < weights[1] - 0.1


@pytest.mark.parametrize(
    "kind", [lambda seconds: seconds.astype("M8[s]"), lambda seconds: seconds.astype("M8[s]").astype(str)]
)
def test_dates_are_times_too(kind):
    columns, value = history()
    columns |= {name: np.floor(columns[name] * 60) for name in ("asked", "known")}
    dated = columns | {name: kind(columns[name]) for name in ("asked", "known")}
    one, other = model().fit(pa.table(columns), value), model().fit(pa.table(dated), value)
    np.testing.assert_array_equal(one.predict(ids_of(columns)), other.predict(ids_of(columns)))


def test_labels_are_learned_late_as_well():
    columns, value = history()
    found = SpiderClassifier(time="asked", known_at="known").fit(pa.table(columns), value > 1)
    assert found.n_entries_ == N
    assert isinstance(found.forecast(ids_of(columns)), Forecast)


def test_a_model_goes_on_after_its_file_was_read(tmp_path):
    columns, value = history()
    found = model().fit(pa.table(columns), value)
    found.save(tmp_path / "m.spider")
    again = SpiderRegressor.load(tmp_path / "m.spider")
    assert again.known_at == "known"
    ids = ids_of(columns)
    for each in (found, again):
        each.partial_fit(ids[::-1], value[::-1])
    np.testing.assert_array_equal(found.predict_interval(ids), again.predict_interval(ids))


def test_bad_times_are_one_clear_error_and_change_nothing():
    columns, value = history()
    found = model().fit(pa.table(columns), value)
    before = found.predict(ids_of(columns))
    early = columns | {"known": columns["known"].copy()}
    early["known"][7] = early["asked"][7] - 1
    for bad, words in (
        (early, "row 7.*known"),
        (columns | {"known": columns["known"].astype("M8[s]")}, "both"),
        ({name: each for name, each in columns.items() if name != "known"}, "known"),
    ):
        with pytest.raises(EntryError, match=words):
            found.fit(pa.table(bad), value)
    for params in ({"time": None, "known_at": "known"}, {"time": "asked", "known_at": "asked"}):
        with pytest.raises(ValueError, match="known_at"):
            SpiderRegressor(**params).fit(pa.table(columns), value)
    for more in ("passes", "max_nodes"):
        with pytest.raises(ValueError, match=more):
            model(**{more: 3}).fit(pa.table(columns), value)
    with pytest.raises(ValueError, match="events"):
        SpiderClassifier(time="asked", known_at="known", negatives=2).fit(pa.table(columns))
    np.testing.assert_array_equal(found.predict(ids_of(columns)), before)
