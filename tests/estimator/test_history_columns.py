"""`fit` of a history with a column `time`, and with attributes."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import polars as pl
import pytest

from model_files import file_bytes
from spidertensor import EntryError, SpiderClassifier, SpiderRegressor
from spidertensor.estimator import history, times
from spidertensor.estimator.columns import Calendar, Context, Number, Recent, Value
from spidertensor.estimator.times import NUMBER, Times
from spidertensor.spider.parts import History

SMALL = {"rank": 2, "hidden": (4,), "multilinear": 2, "batch_size": 64, "committee": 1}
N = 1_500


def table(n: int = N, seed: int = 0) -> dict[str, list]:
    """Ratings with a time, in no order."""
    rng = np.random.default_rng(seed)
    user, movie = rng.integers(30, size=n), rng.integers(20, size=n)
    rating = np.sin(user) + np.cos(movie) + 0.2 * rng.normal(size=n)
    return {
        "user": [f"u{each}" for each in user],
        "movie": [f"m{each}" for each in movie],
        "when": rng.permutation(n).tolist(),
        "rating": rating.tolist(),
    }


def parts(data: dict[str, list], *names: str) -> pd.DataFrame:
    return pd.DataFrame({name: data[name] for name in names})


TABLE = table()
Y = np.array(TABLE["rating"])
FRAME = parts(TABLE, "user", "movie", "when")
IN_TIME = np.argsort(TABLE["when"])


@pytest.fixture
def orders(monkeypatch) -> list[np.ndarray]:
    """The rows of Y in the order of the first pass, of every history that is learned from here on. For
    models with scaling=(0, 1), whose values are Y."""
    found, start, row_of = [], History.__init__, {value: row for row, value in enumerate(Y)}

    def noted(self, read, n_entries, *others):
        found.append(np.array([row_of[value] for value in read(0, n_entries).value]))
        start(self, read, n_entries, *others)

    monkeypatch.setattr(History, "__init__", noted)
    return found


PLAIN = SMALL | {"scaling": (0.0, 1.0), "passes": 2}


# --- the column time ------------------------------------------------------------------------------


def test_entries_are_learned_in_time_and_judged_by_the_latest(orders):
    model = SpiderRegressor(**PLAIN, time="when").fit(FRAME, Y)
    judged = model.history_["judged"]
    assert 0.05 * N <= judged <= 0.2 * N
    np.testing.assert_array_equal(orders[0], IN_TIME[: N - judged])
    assert model.n_entries_ == N
    assert model.n_nodes_ == (30, 20)
    assert model.feature_names_in_.tolist() == ["user", "movie"]


def test_without_a_time_the_order_is_random_and_by_seed(orders):
    X = FRAME[["user", "movie"]]
    for seed in (0, 0, 1):
        SpiderRegressor(**PLAIN, random_state=seed).fit(X, Y)
    np.testing.assert_array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], orders[2])
    assert not np.array_equal(orders[0], np.sort(orders[0]))


def kinds() -> dict:
    return {
        "pandas": FRAME,
        "polars": pl.DataFrame(FRAME.to_dict("list")),
        "dates": FRAME.assign(when=[dt.date(2020, 1, 1) + dt.timedelta(days=each) for each in FRAME.when]),
        "timestamps": FRAME.assign(when=pd.to_datetime(FRAME.when, unit="h")),
        "zoned": FRAME.assign(when=pd.to_datetime(FRAME.when, unit="h", utc=True)),
        "numbers as text": FRAME.assign(when=FRAME.when.astype(str)),
        "text": FRAME.assign(when=[f"{each:06}" for each in FRAME.when]),
        "first": FRAME[["when", "user", "movie"]],
    }


@pytest.fixture(scope="module")
def by_number() -> SpiderRegressor:
    return SpiderRegressor(**SMALL, time="when").fit(FRAME, Y)


@pytest.mark.parametrize("kind", [name for name in kinds() if name != "pandas"])
def test_times_of_any_kind_order_alike(kind, by_number):
    assert file_bytes(SpiderRegressor(**SMALL, time="when").fit(kinds()[kind], Y)) == file_bytes(by_number)


def test_questions_and_streams_may_have_the_column_or_not(by_number, tmp_path):
    X = FRAME[["user", "movie"]]
    np.testing.assert_array_equal(by_number.predict(FRAME), by_number.predict(X))
    by_number.save(tmp_path / "model")
    back = SpiderRegressor.load(tmp_path / "model")
    assert back.time == "when"
    assert file_bytes(back.partial_fit(FRAME[:50], Y[:50])) == file_bytes(
        SpiderRegressor.load(tmp_path / "model").partial_fit(X[:50], Y[:50])
    )


def test_few_entries_are_learned_once_in_time():
    """As partial_fit of the sorted file, but for the scale, which here is given."""
    settings = SMALL | {"scaling": (0.0, 1.0), "time": "when"}
    few = FRAME[:400]
    order = np.argsort(few.when.to_numpy())
    once = SpiderRegressor(**settings).partial_fit(few.iloc[order], Y[:400][order])
    got = SpiderRegressor(**settings).fit(few, Y[:400])
    np.testing.assert_allclose(got.predict(few), once.predict(few), rtol=1e-2, atol=1e-2)
    assert got.n_entries_ == 400


MISSING = FRAME.assign(when=[None if row == 7 else float(each) for row, each in enumerate(FRAME.when)])
NOT_KNOWN = FRAME.assign(when=pd.array(MISSING.when, "Int64"))
DATE_AMONG = FRAME.assign(when=[dt.date(2020, 1, 1), *FRAME.when[1:]])
MIXED = FRAME.assign(when=[("x" if row == 7 else each) for row, each in enumerate(FRAME.when)])


@pytest.mark.parametrize(
    ("X", "says"),
    [
        (FRAME[["user", "movie"]], "no column 'when'"),
        (FRAME[["user", "movie"]].to_numpy(), "no column 'when'"),
        (MISSING, "time is missing"),
        (NOT_KNOWN, "time is missing"),
        (MIXED, "times must be"),
        (DATE_AMONG, "times must be"),
    ],
    ids=["no column", "no names", "a missing time", "pandas NA", "text and numbers", "dates and numbers"],
)
def test_impossible_times_change_nothing(X, says):
    model = SpiderRegressor(**SMALL, time="when")
    with pytest.raises(EntryError, match=says):
        model.fit(X, Y)
    assert not model.__sklearn_is_fitted__()
    model.fit(FRAME, Y)
    before = file_bytes(model)
    with pytest.raises(EntryError, match=says) as found:
        model.fit(X, Y)
    assert file_bytes(model) == before
    if "missing" in says:
        assert (found.value.row, found.value.column) == (7, "when")


@pytest.mark.parametrize("settings", [{"max_nodes": 10}, {"passes": 1}], ids=["bounded", "one pass"])
def test_who_learns_once_learns_in_time(settings):
    """What partial_fit of the sorted table gives."""
    settings = SMALL | settings | {"time": "when"}
    got = SpiderRegressor(**settings).fit(FRAME, Y)
    once = SpiderRegressor(**settings).partial_fit(FRAME.iloc[IN_TIME], Y[IN_TIME])
    assert file_bytes(got) == file_bytes(once)


@pytest.mark.parametrize("column", ["user", "rating"])
def test_an_error_names_the_row_of_the_caller(column):
    """Although the entries are learned in another order."""
    model = SpiderRegressor(**SMALL, max_nodes=10, time="when")
    data = FRAME.assign(rating=Y).astype(object)
    data.loc[7, column] = None
    with pytest.raises(EntryError) as found:
        model.fit(data[["user", "movie", "when"]], data.rating)
    assert found.value.row == 7
    assert not model.__sklearn_is_fitted__()


def test_as_many_values_as_entries():
    with pytest.raises(EntryError):
        SpiderRegressor(**SMALL, passes=1, time="when").fit(FRAME, Y[:-1])


def test_events_are_learned_once_in_time():
    settings = SMALL | {"negatives": 2, "negatives_over": "movie", "time": "when", "passes": 1}
    got = SpiderClassifier(**settings).fit(FRAME)
    once = SpiderClassifier(**settings).partial_fit(FRAME.iloc[IN_TIME])
    assert file_bytes(got) == file_bytes(once)


# --- attributes -----------------------------------------------------------------------------------

GROUPS = pd.DataFrame(
    {"user": [f"u{each}" for each in range(30)], "group": [f"g{each % 3}" for each in range(30)]}
)
MODES = {"user": ["group"], "movie": []}


def with_groups(data: dict[str, list]) -> pd.DataFrame:
    return parts(data, "user", "movie").merge(GROUPS, on="user", how="left")


def grouped_values(frame: pd.DataFrame, seed: int = 1) -> np.ndarray:
    effect = frame.group.map({"g0": -1.5, "g1": 0.0, "g2": 1.5}).to_numpy()
    noise = 0.3 * np.random.default_rng(seed).normal(size=len(frame))
    return effect + np.cos(frame.movie.str[1:].astype(int)).to_numpy() + noise


def test_attributes_are_learned_in_passes():
    """An unknown user of a known group is predicted by the group."""
    X = with_groups(TABLE)
    model = SpiderRegressor(**SMALL, modes=MODES).fit(X, grouped_values(X))
    assert model.n_entries_ == N
    new = with_groups(table(300, seed=5)).assign(user="a stranger")
    rest = grouped_values(new, seed=6) - model.predict(new)
    assert np.sqrt(np.mean(rest**2)) < 0.5
    again = SpiderRegressor(**SMALL, modes=MODES).fit(X, grouped_values(X))
    assert file_bytes(again) == file_bytes(model)


def test_a_time_may_be_an_attribute_too(orders):
    modes = {"user": [], "movie": [], "day": Context(Value("when"))}
    data = FRAME.assign(when=FRAME.when % 7)
    model = SpiderRegressor(**PLAIN, modes=modes, time="when").fit(data, Y)
    assert model.n_entries_ == N
    np.testing.assert_array_equal(orders[0], np.argsort(FRAME.when % 7, kind="stable")[: len(orders[0])])
    assert np.isfinite(model.predict(FRAME.assign(when=3))).all()


def test_recent_nodes_are_those_of_the_first_pass(monkeypatch):
    """Every pass shows each entry the movies that its user had rated before it, in the order of the table."""
    seen, taken = [], history.Passes.one_more

    def noted(self, states):
        learned = [self._history.part(number) for number in range(self._history.n_parts)]
        seen.append([(part.batch.index, part.batch.bags) for part in learned])
        yield from taken(self, states)

    monkeypatch.setattr(history.Passes, "one_more", noted)
    modes = {"user": [Recent("movie", 3)], "movie": []}
    X = parts(TABLE, "user", "movie")
    model = SpiderRegressor(**SMALL, modes=modes, passes=3).fit(X, Y)
    assert len(seen) == 3
    for later in seen[1:]:
        for (index, bags), (again, replayed) in zip(seen[0], later, strict=True):
            np.testing.assert_array_equal(index, again)
            for a, b in zip(bags, replayed, strict=True):
                np.testing.assert_array_equal(a, b)
    # the ring of a user in the table, entry by entry
    order = np.random.default_rng(0).permutation(N)
    rings, wanted = {}, []
    for user, movie in zip(X.user, X.movie, strict=True):
        ring = rings.setdefault(user, [])
        wanted.append(sorted(set(ring[-3:])))
        ring.append(movie)
    ids = model.factors_[1].ids
    at = 0
    for index, bags in seen[0]:
        for i in range(len(index)):
            rows = bags.row[bags.start[i] : bags.start[i + 1]]
            assert sorted(ids[row] for row in rows) == wanted[order[at]]
            at += 1
    assert model.n_entries_ == N


def test_described_ids_that_never_come_are_no_matter():
    X = with_groups(TABLE)
    model = SpiderRegressor(**SMALL, modes=MODES)
    model.set_attributes("user", pd.concat([GROUPS, pd.DataFrame({"user": ["later"], "group": ["g2"]})]))
    model.fit(X[["user", "movie"]], grouped_values(X))
    said = model.predict({"user": ["later", "a stranger"], "movie": ["m1", "m1"]})
    assert said[0] > said[1] + 0.5


RECENT = {"user": [Recent("movie", 5)], "movie": ["kind"]}


@pytest.mark.parametrize("modes", [None, RECENT], ids=["ids", "attributes and recent nodes"])
@pytest.mark.parametrize("passes", [1, 2])
def test_the_order_of_the_rows_is_no_matter_if_they_have_a_time(modes, passes):
    """Bit for bit; rows with the same time keep their order."""
    data = FRAME.assign(when=FRAME.when // 3)
    if modes is not None:
        data = data.assign(kind=[f"k{int(movie[1:]) % 4}" for movie in FRAME.movie])
    settings = SMALL | {"passes": passes, "modes": modes, "time": "when"}
    order = np.argsort(data.when.to_numpy(), kind="stable")
    as_they_are = SpiderRegressor(**settings).fit(data, Y)
    in_time = SpiderRegressor(**settings).fit(data.iloc[order], Y[order])
    assert file_bytes(as_they_are) == file_bytes(in_time)


def test_late_rows_are_all_named_before_anything_is_kept():
    """A history that comes in chunks cannot be sorted before recent nodes are read off."""
    when = np.arange(N)
    when[[700, 1100]] = 3
    modes = {"user": [Recent("movie", 5)], "movie": []}
    model = SpiderRegressor(**SMALL, modes=modes, time="when")
    with pytest.raises(EntryError, match="earlier than a row before") as caught:
        model._collect(FRAME, Y, Times(when, NUMBER))
    assert caught.value.rows == (700, 1100)
    assert model._collected.n_entries == 0
    with pytest.raises(EntryError, match=f"{N} entries but 5 times"):
        model.fit({name: FRAME[name] for name in ("user", "movie")} | {"when": np.arange(5)}, Y)


@pytest.mark.parametrize("cells", [["5", "10", "n/a", "7"], ["5", "", "7"], [1, 2, "x"], ["1", "nan", "3"]])
def test_a_time_unlike_the_others_is_named(cells):
    with pytest.raises(EntryError, match="unlike the others") as caught:
        times.sortable(cells, "when")
    (row,) = caught.value.rows
    assert cells[row] in ("n/a", "", "x", "nan")


# --- kinds and knots ------------------------------------------------------------------------------

SORTED = {"user": [], "movie": [], "offer": Context("price", "rooms", Calendar("sold"))}


def offers(n: int = 3_000) -> tuple[pd.DataFrame, np.ndarray]:
    """Sorted by the price; more than 32 different numbers of rooms, but few among the cheap."""
    rng = np.random.default_rng(0)
    data = table(n, seed=2)
    price = np.sort(rng.lognormal(1, 0.7, size=n).round(3))
    frame = parts(data, "user", "movie").assign(
        price=price,
        rooms=np.arange(n) // 60,
        sold=np.datetime64("2024-01-01") + rng.integers(300, size=n).astype("m8[D]"),
    )
    return frame, np.log(price) + 0.1 * rng.normal(size=n)


def decided(model: SpiderRegressor) -> tuple[dict, dict]:
    """Kinds, and knots with the beginning of the calendar."""
    columns = model._learned.columns
    arrays = columns.to_arrays()
    knots = {name: arrays[name].tolist() for name in arrays if name.split("/")[1] in ("grid", "trend")}
    return columns.kinds, knots


def test_sorted_and_shuffled_histories_have_the_same_kinds_and_knots():
    frame, y = offers()
    order = np.random.default_rng(1).permutation(len(y))
    settings = SMALL | {"modes": SORTED, "passes": 2}
    first = SpiderRegressor(**settings).fit(frame, y)
    second = SpiderRegressor(**settings).fit(frame.iloc[order], y[order])
    assert decided(first) == decided(second)
    assert decided(first)[0] == {"price": "number", "rooms": "number", "sold": "calendar"}
    centre, half_width = decided(first)[1]["0/grid"]
    assert centre == np.median(frame.price)
    assert half_width == pytest.approx(np.subtract(*np.percentile(frame.price, (75, 25))) / 2)


def test_a_number_by_which_the_rows_are_sorted_is_learned_as_well_as_any():
    frame, y = offers()
    modes = {"user": [], "movie": [], "offer": Context(Number("price"))}
    errors = []
    for order in (np.arange(len(y)), np.random.default_rng(1).permutation(len(y))):
        model = SpiderRegressor(**SMALL, modes=modes, passes=4).fit(frame.iloc[order], y[order])
        errors.append(np.sqrt(np.mean((model.predict(frame) - np.log(frame.price)) ** 2)))
    assert max(errors) < 0.15
    assert max(errors) < 1.5 * min(errors)


def test_a_history_in_parts_is_judged_by_its_sample():
    frame, y = offers()
    whole = SpiderRegressor(**SMALL, modes=SORTED, passes=2).fit(frame, y)
    model = SpiderRegressor(**SMALL, modes=SORTED, passes=2)
    model._sample = {name: frame[name].to_numpy() for name in ("price", "rooms", "sold")}
    for start in range(0, len(y), 700):
        model._collect(frame[start : start + 700], y[start : start + 700], in_parts=True)
    model._learn_all_collected()
    assert decided(model) == decided(whole)
    assert file_bytes(model) == file_bytes(whole)


def test_one_pass_decides_by_its_first_batch():
    frame, y = offers()
    model = SpiderRegressor(**SMALL, modes=SORTED, passes=1).fit(frame, y)
    assert decided(model)[0]["rooms"] == "value"
    streamed = SpiderRegressor(**SMALL, modes=SORTED).partial_fit(frame, y)
    assert decided(streamed) == decided(model)
    assert decided(model)[1]["0/grid"][0] == np.median(frame.price[:64])
