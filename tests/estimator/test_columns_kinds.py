"""Kinds of columns: which one a column is, and what numbers, times and lists become, in exact cases."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from fractions import Fraction
from math import asinh, sqrt

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spidertensor.estimator.columns import Calendar, Context, FittedColumns, Many, Number, Schema, Value
from spidertensor.estimator.columns.deciding import decide
from spidertensor.estimator.columns.many_cells import _Reader, read_cell
from spidertensor.estimator.columns.memory import latest_stated

ENTRY = np.array([[-1]])


def bag_of(fitted: FittedColumns, cell, *, learn: bool = False) -> dict[int, float]:
    """row -> weight of one cell in the first table."""
    bags = fitted.bags(fitted.check({"x": [cell]}, 1), ENTRY, learn=learn)
    return dict(zip(bags.row.tolist(), bags.weight.tolist(), strict=True))


def learned(spec, cells) -> FittedColumns:
    fitted = FittedColumns(Schema.parse({"c": Context(spec)}))
    n = len(cells)
    fitted.bags(fitted.check({"x": cells}, n), np.full((n, 1), -1), learn=True)
    return fitted


# --- which kind a column is ---

MANY_INTS = list(range(33))


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["a", None], Value),
        ([b"a"], Value),
        ([True, False], Value),
        (np.array([True]), Value),
        (np.array(["a"]), Value),
        ([1, 2, 3], Value),
        (list(range(32)) * 9, Value),
        (MANY_INTS, Number),
        (np.array(MANY_INTS, np.int8), Number),
        ([*MANY_INTS, None], Number),
        ([1, None, 2], Value),
        (np.array([1.0, np.nan, 2.0]), Value),
        (np.array([*MANY_INTS, np.nan]), Number),
        (np.array([1.0, 2.0]), Number),
        ([1.5, None], Number),
        ([1, 2.5], Number),
        ([Decimal("1.5")], Number),
        ([1.5, 10**400], Number),
        ([1, "a"], Value),
        ([["a"], None], Many),
        ([("a", "b")], Many),
        ([{"a"}], Many),
        ([{"a": 2.0}], Many),
        ([np.array([1, 2])], Many),
        ([dt.date(2020, 1, 1)], Calendar),
        ([dt.datetime(2020, 1, 1), None], Calendar),
        ([pd.Timestamp("2020-01-01"), pd.NaT], Calendar),
        (np.array(["2020-01-01", "NaT"], "M8[s]"), Calendar),
    ],
)
def test_the_first_values_decide_what_a_column_is(cells, kind):
    assert decide("x", cells) == kind("x")


@pytest.mark.parametrize("cells", [[], [None, float("nan"), pd.NA, pd.NaT], np.array([np.nan])])
def test_a_column_without_values_stays_undecided(cells):
    assert decide("x", cells) is None
    fitted = learned("x", cells)
    assert fitted.n_rows.tolist() == [0]
    fitted.bags(fitted.check({"x": ["a"]}, 1), ENTRY, learn=True)
    assert fitted.columns[0].spec == Value("x")


def test_a_decision_is_kept():
    fitted = learned("x", ["a", "b"])
    assert bag_of(fitted, 1.5) == {-1: 1}
    assert bag_of(fitted, 1.5, learn=True) == {2: 1}


# --- numbers ---


def test_knots_come_from_median_and_quartiles():
    numbers = np.arange(101.0)  # median 50, quartiles 25 and 75
    fitted = learned(Number("x"), numbers)
    z = asinh(2 * (60 - 50) / 50)
    place = (z + 4) * 11 / 8
    low = int(place)
    assert bag_of(fitted, 60) == pytest.approx({low: 1 - (place - low), low + 1: place - low}, rel=1e-5)
    assert bag_of(fitted, 50) == {5: 0.5, 6: 0.5}
    assert bag_of(fitted, 1e300) == {11: 1}
    assert bag_of(fitted, -1e300) == {0: 1}
    assert bag_of(fitted, None) == bag_of(fitted, "") == bag_of(fitted, np.nan) == {12: 1}
    assert bag_of(fitted, Fraction(60)) == bag_of(fitted, Decimal(60)) == bag_of(fitted, 60)
    assert fitted.n_rows.tolist() == [13]


def test_a_spread_of_zero_falls_back_to_the_deviation_then_to_one():
    rain = np.array([0.0] * 90 + [10.0] * 10)
    deviation = rain.std()
    for numbers, spread in ((rain, deviation), (np.full(40, 7.0), 1.0)):
        fitted, centre = learned(Number("x"), numbers), np.median(numbers)
        place = (asinh(2 * 0.3 / spread) + 4) * 11 / 8
        share = place - int(place)
        expected = {int(place): 1 - share, int(place) + 1: share}
        assert bag_of(fitted, centre + 0.3) == pytest.approx(expected, rel=1e-4)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=32, max_size=40), st.floats())
def test_weights_of_a_number_are_hats(first, number):
    fitted = learned(Number("x"), first)
    if np.isinf(number):
        return
    bag = bag_of(fitted, number)
    assert sum(bag.values()) == pytest.approx(1, abs=1e-6)
    assert all(weight > 0 for weight in bag.values())
    rows = sorted(bag)
    assert rows == list(range(rows[0], rows[-1] + 1))
    assert len(rows) <= 2


def test_few_first_numbers_count_as_missing_until_256_came():
    fitted = FittedColumns(Schema.parse({"c": Context(Number("x"))}))
    numbers = np.arange(300.0)
    bags = []
    for start, stop in ((0, 31), (31, 200), (200, 300)):
        given = {"x": numbers[start:stop]}
        part = fitted.bags(fitted.check(given, stop - start), np.full((stop - start, 1), -1), learn=True)
        bags += np.split(part.row, part.start[1:-1])
    assert all(row.tolist() == [12] for row in bags[:255])
    assert all(12 not in row for row in bags[255:])
    expected = learned(Number("x"), numbers[:256])
    assert fitted.columns[0].holders[0].state.grid == expected.columns[0].holders[0].state.grid


def test_nodes_keep_their_number_while_it_counts_as_missing():
    fitted = FittedColumns(Schema.parse({"user": [Number("x")]}))
    fitted.bags(fitted.check({"x": [5.0]}, 1), np.array([[0]]), learn=True)
    assert fitted.of_nodes(0, np.array([0])).row.tolist() == [12]
    fitted.bags(fitted.check({"x": np.full(255, 5.0)}, 255), np.ones((255, 1), np.int64), learn=True)
    assert fitted.of_nodes(0, np.array([0])).row.tolist() == [5, 6]


# --- several values ---


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (["a", "b"], {"a": 1 / sqrt(2), "b": 1 / sqrt(2)}),
        (("a",), {"a": 1}),
        ({"b", "a"}, {"a": 1 / sqrt(2), "b": 1 / sqrt(2)}),
        (np.array(["a", "b"]), {"a": 1 / sqrt(2), "b": 1 / sqrt(2)}),
        ("a| b |", {"a": 1 / sqrt(2), "b": 1 / sqrt(2)}),
        (["a", "a", "b"], {"a": 2 / sqrt(3), "b": 1 / sqrt(3)}),
        ([1, 1.0, True], {1: 3 / sqrt(3)}),
        (["a", None, float("nan")], {"a": 1}),
        ({"a": 3, "b": -4, "c": 0}, {"a": 0.6, "b": -0.8}),
        ({"a": 1e300, "b": 1e300}, {"a": 1 / sqrt(2), "b": 1 / sqrt(2)}),
        ({"a": 0.0}, {}),
        ([], {}),
        ("", {}),
        (" ", {}),
        (None, {}),
    ],
)
def test_weights_of_several_values(cell, expected):
    fitted = FittedColumns(Schema.parse({"c": Context(Many("x", sep="|"))}))
    bag = bag_of(fitted, cell, learn=True)
    values = fitted.columns[0].holders[0].state.values.index.ids
    assert {values[row]: weight for row, weight in bag.items()} == pytest.approx(expected)


def test_an_empty_list_is_stated_and_an_empty_text_is_not():
    fitted = FittedColumns(Schema.parse({"user": [Many("x", sep=",")]}))
    index = np.zeros((4, 1), np.int64)
    bags = fitted.bags(fitted.check({"x": ["a", "", [], None]}, 4), index, learn=True)
    assert np.diff(bags.start).tolist() == [1, 1, 0, 0]


class Counted(int):
    """A number with the hash of all others; counts how often two are compared."""

    times = 0

    def __eq__(self, other):
        Counted.times += 1
        return int(self) == int(other)

    def __hash__(self):
        return 0


def test_chosen_values_in_lists_are_not_compared_each_with_each():
    wide = [k * 8 * (2**61 - 1) for k in range(1, 1001)]
    reader = _Reader(None)
    lists = [[first, 2] for first in wide]
    assert [reader.number_of(cell) for cell in [*lists, *lists[::-1]]] == [*range(1000), *range(1000)[::-1]]
    assert len(set(map(hash, reader._seen))) == 1000
    assert len(set(map(hash, map(tuple, lists)))) == 1  # what they would be compared by
    cell = [(Counted(n),) for n in range(1000)]
    for each, n in ((cell, 1000), (cell[1:] + cell[1:2], 999)):
        Counted.times = 0
        assert len(read_cell(each, None)[0]) == n
        assert Counted.times < 10
    model = learned(Many("x"), [wide])
    restored = FittedColumns.from_file(model.to_json(), model.to_arrays())
    assert len(set(map(hash, restored.columns[0].holders[0].state.values.index._numbers))) == 1000


# --- times ---

THURSDAY = dt.datetime(1970, 1, 1)


def test_parts_of_a_time():
    fitted = learned(Calendar("x"), [dt.datetime(2023, 1, 1)])  # a Sunday; the trend begins here
    assert bag_of(fitted, dt.datetime(2023, 1, 1)) == {0: 1, 30: 1, 31: 1, 43: 1}
    # a Tuesday at 23:45, after 30 days and 23:45: between hours 23 and 0, in day 31 of 365
    late = bag_of(fitted, dt.datetime(2023, 1, 31, 23, 45), learn=True)
    day = (30 + 0.75 / 24 + 23 / 24) * 12 / 365 - 1  # past the second of twelve nodes
    trend = (30 + 0.75 / 24 + 23 / 24) / 30 - 1
    expected = {23: 0.25, 0: 0.75, 25: 1, 32: 1 - day, 33: day, 44: 1 - trend, 45: trend}
    assert late == pytest.approx(expected, rel=1e-4)
    assert fitted.n_rows.tolist() == [46]
    # the last day of the year is between its last node and its first
    last = bag_of(fitted, dt.date(2021, 12, 31))
    share = 364 * 12 / 365 - 11
    assert last == pytest.approx({28: 1, 42: 1 - share, 31: share, 43: 1}, rel=1e-4)


def test_a_date_has_no_hour_and_times_before_the_first_use_the_first_knot():
    fitted = learned(Calendar("x"), ["2023-01-01"])
    bag = bag_of(fitted, np.datetime64("1923-01-01"))
    assert min(bag) >= 24
    assert bag[43] == 1


def test_knots_of_the_future_are_unseen_and_their_number_is_limited():
    fitted = learned(Calendar("x"), [dt.datetime(2023, 1, 1)])
    assert bag_of(fitted, dt.datetime(2023, 3, 2))[-1] == 1  # 60 days later: the third knot
    bag_of(fitted, dt.datetime(9999, 12, 31), learn=True)
    assert fitted.n_rows.tolist() == [43 + 1200]


@pytest.mark.parametrize(
    "same",
    [
        "2024-05-31T18:30:00",
        "2024-05-31 18:30",
        "2024-05-31T18:30:00Z",
        "2024-05-31T18:30:00+02:00",
        np.datetime64("2024-05-31T18:30"),
        np.datetime64("2024-05-31T18:30:00.000000000"),
        pd.Timestamp("2024-05-31 18:30"),
        pd.Timestamp("2024-05-31 18:30", tz="Asia/Tokyo"),
        dt.datetime(2024, 5, 31, 18, 30, tzinfo=dt.UTC),
        1717180200,
        1717180200.0,
        np.int64(1717180200),
    ],
)
def test_every_form_of_a_time_means_the_wall_clock(same):
    time = dt.datetime(2024, 5, 31, 18, 30)
    fitted = learned(Calendar("x"), [time])
    assert bag_of(fitted, same) == bag_of(fitted, time) == pytest.approx(bag_of(fitted, time))
    arrays = (
        fitted.check({"x": np.array([time], "M8[ns]")}, 1),
        fitted.check({"x": np.array([1717180200])}, 1),
    )
    for checked in arrays:
        np.testing.assert_array_equal(
            fitted.bags(checked, ENTRY, learn=False).row, list(bag_of(fitted, time))
        )


@given(st.lists(st.datetimes(), min_size=1, max_size=20))
def test_a_list_of_times_and_an_array_of_them_are_the_same(times):
    fitted = learned(Calendar("x"), [THURSDAY])
    columns = (times, np.array(times, "M8[us]"), [time.isoformat(sep=" ") for time in times])
    codes = [fitted.check({"x": column}, len(times)).cells[0]["x"].cells.codes for column in columns]
    np.testing.assert_array_equal(codes[0], codes[1])
    np.testing.assert_array_equal(codes[0], codes[2])
    bag = bag_of(fitted, times[0], learn=True)
    assert sum(bag.values()) == pytest.approx(4, abs=1e-5)
    assert 24 + times[0].weekday() in bag


# --- the latest statement about a node ---


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=30))
def test_latest_stated(rows):
    nodes = np.array([node for node, _ in rows], np.int64)
    stated = np.array([there for _, there in rows], bool)
    last: dict[int, int] = {}
    expected = []
    for place, (node, there) in enumerate(rows):
        if there:
            last[node] = place
        expected.append(last.get(node, -1))
    assert latest_stated(nodes, stated).tolist() == expected
