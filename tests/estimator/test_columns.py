"""FittedColumns: bags against the obvious version, cuts of a stream, remembered attributes, files."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naive_columns import NaiveColumns
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
    cross,
    holder,
    many,
)
from spidertensor.estimator.columns.cross import NodeCodes
from spidertensor.faults import EntryError

NAIVE = {
    "user": [Value("city"), Many("tags"), Cross("user", "city"), Recent("movie", 3)],
    "movie": [],
    "when": Context(Value("hour"), Cross("user", "movie", "hour")),
}
ALL = {
    "user": ["age", Value("city"), Many("tags"), Cross("user", "city"), Recent("movie", 4)],
    "movie": [Number("year"), Calendar("released")],
    "when": Context("hour", Calendar("time"), Many("words", sep=" "), Cross("city", "weather", "movie")),
}

LONGEST = 3  # list of tags
maybe = st.none()
entries = st.lists(
    st.fixed_dictionaries(
        {
            "user": st.integers(0, 3),
            "movie": st.integers(0, 4),
            "city": maybe | st.sampled_from(["x", "y", "z", 1, 1.0, True, ("x", 2)]),
            "tags": maybe | st.lists(st.sampled_from(["a", "b", "c", "d", "e", 0]), max_size=LONGEST),
            "hour": maybe | st.integers(0, 5),
        }
    ),
    min_size=1,
    max_size=40,
)


def columns_of(rows: list[dict]) -> dict:
    return {name: [row[name] for row in rows] for name in rows[0]}


def index_of(rows: list[dict]) -> np.ndarray:
    return np.array([[row["user"], row["movie"], -1] for row in rows])


def as_dicts(bags) -> list[dict]:
    """The elements of each entry: (table, row) -> weight."""
    elements = list(zip(bags.table.tolist(), bags.row.tolist(), bags.weight.tolist(), strict=True))
    found = []
    for start, end in zip(bags.start[:-1], bags.start[1:], strict=True):
        one: dict = {}
        for table, row, weight in elements[start:end]:
            one[table, row] = one.get((table, row), 0) + weight
        found.append(one)
    return found


def assert_bags(bags, expected: list[dict]) -> None:
    assert len(bags.start) == len(expected) + 1
    for found, wanted in zip(as_dicts(bags), expected, strict=True):
        assert found == pytest.approx(wanted, rel=1e-6)


def learn(fitted: FittedColumns, given: dict, index: np.ndarray):
    return fitted.bags(fitted.check(given, len(index)), index, learn=True)


def predict(fitted: FittedColumns, given: dict, index: np.ndarray):
    return fitted.bags(fitted.check(given, len(index)), index, learn=False)


def saved(fitted: FittedColumns) -> tuple[str, dict[str, np.ndarray]]:
    return json.dumps(fitted.to_json()), fitted.to_arrays()


def assert_same_state(one: FittedColumns, other: FittedColumns) -> None:
    (text, arrays), (other_text, other_arrays) = saved(one), saved(other)
    assert text == other_text
    assert arrays.keys() == other_arrays.keys()
    for name, array in arrays.items():
        assert array.dtype == other_arrays[name].dtype
        np.testing.assert_array_equal(array, other_arrays[name], err_msg=name)


def stream(n: int, seed: int = 0) -> tuple[dict, np.ndarray]:
    """Columns of all kinds, a third of the cells missing."""
    rng = np.random.default_rng(seed)
    index = np.stack([rng.integers(0, 9, n), rng.integers(0, 7, n), np.full(n, -1)], axis=1)
    there = rng.random((9, n)) > 0.3
    words = np.array(["sun", "rain", "wind", "snow"])
    hours = np.cumsum(rng.integers(0, 200, n)).astype("m8[h]")
    given = {
        "age": np.where(there[0], rng.integers(0, 90, n).astype(float), np.nan),
        "city": [f"city {c}" if t else None for c, t in zip(rng.integers(0, 5, n), there[1], strict=True)],
        "tags": [
            words[: 1 + k].tolist() if t else None
            for k, t in zip(rng.integers(0, 4, n), there[2], strict=True)
        ],
        "year": np.where(there[3], rng.normal(2000, 9, n), np.nan),
        "released": np.where(there[4], np.datetime64("2001-01-01", "D") + np.arange(n), np.datetime64("NaT")),
        "hour": [int(h) if t else None for h, t in zip(rng.integers(0, 24, n), there[5], strict=True)],
        "time": np.where(there[6], np.datetime64("2020-01-01T00", "h") + hours, np.datetime64("NaT")),
        "words": [
            " ".join(words[k:]) if t else "" for k, t in zip(rng.integers(0, 4, n), there[7], strict=True)
        ],
        "weather": [
            str(words[k]) if t else None for k, t in zip(rng.integers(0, 4, n), there[8], strict=True)
        ],
    }
    return given, index


def part(given: dict, start: int, stop: int) -> dict:
    return {name: column[start:stop] for name, column in given.items()}


# --- against the obvious version ---


@settings(max_examples=100)
@given(entries, st.integers(1, 12), st.integers(1, 4), st.data())
def test_equal_to_the_obvious_version_however_cut(rows, limit, recent, data):
    schema = Schema.parse(NAIVE | {"user": [*NAIVE["user"][:3], Recent("movie", recent)]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(many, "MOST_IN_CELL", LONGEST)
        patch.setattr(holder, "TRIED_ENTRIES", 5)
        patch.setattr(cross, "TRIED_ENTRIES", 3)
        fitted = FittedColumns(schema, max_values=limit)
        _compare(fitted, NaiveColumns(limit, recent, LONGEST), rows, data)


def _compare(fitted: FittedColumns, naive: NaiveColumns, rows: list[dict], data: st.DataObject) -> None:
    start = 0
    while start < len(rows):
        stop = data.draw(st.integers(start + 1, len(rows)))
        chunk = rows[start:stop]
        asked = predict(fitted, columns_of(chunk), index_of(chunk))
        assert_bags(asked, [naive.entry(row, learn=False) for row in chunk])
        bags = learn(fitted, columns_of(chunk), index_of(chunk))
        assert_bags(bags, [naive.entry(row, learn=True) for row in chunk])
        assert (bags.row >= 0).all()
        assert (bags.row < fitted.n_rows[bags.table]).all()
        start = stop
        if data.draw(st.booleans()):
            fitted = FittedColumns.from_file(fitted.to_json(), fitted.to_arrays())
    for table in (0, 1, 2, 4, 5):
        assert fitted.n_rows[table] == naive.rows[table].n_rows
        assert fitted.n_evicted[table] == naive.rows[table].n_evicted


@pytest.mark.parametrize("size", [1, 7, 64, 500])
def test_cuts_change_nothing(size):
    given, index = stream(500)
    whole, cut = FittedColumns(Schema.parse(ALL)), FittedColumns(Schema.parse(ALL))
    first = 200  # kinds and knots come from the first call
    bags = [learn(each, part(given, 0, first), index[:first]) for each in (whole, cut)]
    np.testing.assert_array_equal(bags[0].row, bags[1].row)
    expected = learn(whole, part(given, first, 500), index[first:])
    found = [
        learn(cut, part(given, start, min(start + size, 500)), index[start : start + size])
        for start in range(first, 500, size)
    ]
    for field in ("table", "row", "weight"):
        joined = np.concatenate([getattr(each, field) for each in found])
        np.testing.assert_array_equal(joined, getattr(expected, field))
    assert_same_state(whole, cut)


def test_a_checked_call_may_be_learned_in_parts_from_the_first_entry_on():
    given, index = stream(300)
    whole, cut = FittedColumns(Schema.parse(ALL)), FittedColumns(Schema.parse(ALL))
    expected = learn(whole, given, index)
    checked = cut.check(given, 300)
    found = [cut.bags(checked.cut(s, s + 43), index[s : s + 43], learn=True) for s in range(0, 300, 43)]
    for field in ("table", "row", "weight"):
        joined = np.concatenate([getattr(each, field) for each in found])
        np.testing.assert_array_equal(joined, getattr(expected, field))
    assert_same_state(whole, cut)


def test_checking_and_predicting_change_nothing():
    given, index = stream(300)
    fitted = FittedColumns(Schema.parse(ALL))
    empty = copy.deepcopy(fitted)
    predict(fitted, given, index)
    assert_same_state(fitted, empty)
    learn(fitted, part(given, 0, 100), index[:100])
    before = copy.deepcopy(fitted)
    bags = predict(fitted, part(given, 100, 300), index[100:])
    assert (bags.row == -1).any()
    fitted.of_nodes(0, np.arange(-1, 20))
    assert_same_state(fitted, before)


# --- what nodes remember ---


def test_a_missing_attribute_is_the_one_known_at_that_entry():
    fitted = FittedColumns(Schema.parse({"user": [Value("city")], "movie": []}))
    index = np.array([[0, 0], [0, 0], [1, 0], [0, 0], [0, 0]])
    bags = learn(fitted, {"city": [None, "x", None, None, "y"]}, index)
    assert as_dicts(bags) == [{}, {(0, 0): 1}, {}, {(0, 0): 1}, {(0, 1): 1}]
    assert as_dicts(fitted.of_nodes(0, np.array([0, 1, 7, -1]))) == [{(0, 1): 1}, {}, {}, {}]
    assert as_dicts(predict(fitted, {}, index[:1])) == [{(0, 1): 1}]
    assert as_dicts(predict(fitted, {"city": ["w"]}, index[:1])) == [{(0, -1): 1}]


def test_columns_of_a_context_belong_to_the_entry():
    fitted = FittedColumns(Schema.parse({"user": [], "when": Context(Value("hour"))}))
    index = np.array([[0, -1], [0, -1]])
    assert as_dicts(learn(fitted, {"hour": [3, None]}, index)) == [{(0, 0): 1}, {}]
    with pytest.raises(ValueError, match="Context"):
        fitted.of_nodes(1, np.array([0]))


def test_describe_adds_and_replaces_what_is_stated():
    fitted = FittedColumns(Schema.parse({"user": [], "movie": [Many("genres"), Value("maker")]}))
    given = {"genres": [["a", "b"], ["a"], None], "maker": ["m", None, "n"]}
    fitted.describe(1, np.array([5, 0, 2]), fitted.check(given, 3, mode=1))
    half = 1 / np.sqrt(2)
    expected = [{(0, 0): half, (0, 1): half, (1, 0): 1}, {(0, 0): 1}, {(1, 1): 1}]
    assert_bags(fitted.of_nodes(1, np.array([5, 0, 2])), expected)
    fitted.describe(1, np.array([5]), fitted.check({"genres": [["b"]]}, 1, mode=1))
    assert_bags(fitted.of_nodes(1, np.array([5])), [{(0, 1): 1, (1, 0): 1}])
    assert_bags(predict(fitted, {}, np.array([[0, 5]])), [{(0, 1): 1, (1, 0): 1}])


def test_describe_refuses_two_rows_for_one_node():
    fitted = FittedColumns(Schema.parse({"movie": [Value("maker")]}))
    before = copy.deepcopy(fitted)
    with pytest.raises(EntryError, match="second row for the same movie") as caught:
        fitted.describe(0, np.array([4, 1, 4]), fitted.check({"maker": ["a", "b", "c"]}, 3))
    assert caught.value.row == 2
    assert_same_state(fitted, before)


def test_describe_touches_only_its_mode():
    fitted = FittedColumns(Schema.parse({"user": [Value("city")], "shop": [Value("city")]}))
    fitted.describe(1, np.array([0]), fitted.check({"city": ["x"]}, 1, mode=1))
    assert fitted.n_rows.tolist() == [0, 1]
    assert as_dicts(fitted.of_nodes(0, np.array([0]))) == [{}]


def test_many_keeps_bags_apart_while_it_tidies_up():
    fitted = FittedColumns(Schema.parse({"user": [Many("tags")]}))
    rng, expected = np.random.default_rng(0), {}
    for _ in range(40):
        nodes = rng.permutation(300)
        tags = [rng.choice(50, size=rng.integers(0, 5), replace=False).tolist() for _ in nodes]
        learn(fitted, {"tags": tags}, nodes[:, None])
        expected |= dict(zip(nodes.tolist(), tags, strict=True))
    state = fitted.columns[0].holders[0].state
    assert state.pool.n_bags < 3000  # of 12,000
    rows = {value: row for row, value in enumerate(state.values.index.ids)}
    bags = [
        {(0, rows[tag]): 1 / np.sqrt(len(tags)) for tag in tags} for tags in map(expected.get, range(300))
    ]
    assert_bags(fitted.of_nodes(0, np.arange(300)), bags)


# --- crosses and recent nodes ---


def test_a_cross_uses_remembered_attributes_and_plain_columns():
    schema = Schema.parse({"user": ["city"], "movie": [], "p": Context(Cross("city", "weather"))})
    fitted = FittedColumns(schema)
    index = np.array([[0, 0, -1]] * 4)
    given = {"city": ["x", None, None, "y"], "weather": ["sun", "sun", None, "sun"]}
    bags = learn(fitted, given, index)
    crosses = bags.row[bags.table == 1]
    assert crosses.tolist() == [0, 0, 1]
    # an attribute of a user is no attribute of the situation
    found = predict(fitted, {"weather": ["sun", "hail"]}, index[:2])
    assert found.row[found.table == 1].tolist() == [1, -1]


def test_a_cross_of_two_remembered_attributes():
    fitted = FittedColumns(Schema.parse({"user": ["city", "job", Cross("city", "job")]}))
    given = {"city": ["x", "y", "x", None], "job": [None, "a", "a", None]}
    bags = learn(fitted, given, np.array([[0], [1], [2], [1]]))
    assert bags.row[bags.table == 2].tolist() == [0, 1, 0]
    found = fitted.of_nodes(0, np.array([2, 0, 1]))
    assert found.row[found.table == 2].tolist() == [1, 0]
    again = learn(fitted, {}, np.array([[1], [2]]))
    assert again.row[again.table == 2].tolist() == [0, 1]


def test_recent_comes_before_the_entry_and_merges_duplicates():
    fitted = FittedColumns(Schema.parse({"user": [Recent("movie", 2)], "movie": []}))
    index = np.array([[0, 5], [0, 5], [0, 3], [0, 1], [1, 1]])
    one_by_one = FittedColumns(fitted.schema)
    root = 1 / np.sqrt(2)
    expected = [{}, {(0, 5): 1}, {(0, 5): 2 * root}, {(0, 5): root, (0, 3): root}, {}]
    assert_bags(learn(fitted, {}, index), expected)
    for entry, bag in zip(index, expected, strict=True):
        assert_bags(learn(one_by_one, {}, entry[None]), [bag])
    assert_bags(fitted.of_nodes(0, np.array([0, 1, 9])), [{(0, 3): root, (0, 1): root}, {(0, 1): 1}, {}])
    assert fitted.n_rows.tolist() == [6]


# --- nodes that go ---


def test_keep_renumbers_and_says_which_rows_stay():
    schema = {"user": [Value("city"), Recent("movie", 2)], "movie": [Value("maker"), Cross("user", "movie")]}
    fitted = FittedColumns(Schema.parse(schema))
    index = np.array([[0, 0], [1, 1], [1, 2], [0, 2]])
    learn(fitted, {"city": ["x", "y", None, None], "maker": ["a", "b", "c", None]}, index)
    rows = fitted.keep(1, np.array([True, False, True]))
    assert {table: mask.tolist() for table, mask in rows.items()} == {
        1: [True, False, True],
        3: [True, False, True, True],
    }
    assert fitted.n_rows.tolist() == [2, 2, 3, 3]
    root = 1 / np.sqrt(2)
    assert_bags(
        fitted.of_nodes(0, np.array([0, 1])),
        [{(0, 0): 1, (1, 0): root, (1, 1): root}, {(0, 1): 1, (1, 1): 1}],
    )
    known = predict(fitted, {}, np.array([[0, 0], [1, 1], [0, 1], [1, 0]]))
    assert known.row[known.table == 3].tolist() == [0, 1, 2, -1]
    assert known.row[known.table == 2].tolist() == [0, 2, 2, 0]
    assert set(fitted.keep(0, np.array([False, True]))) == {3}
    assert_bags(fitted.of_nodes(0, np.array([0, 1])), [{(0, 1): 1, (1, 1): 1}, {}])
    assert fitted.n_rows.tolist() == [2, 2, 3, 1]


def test_clear_forgets_and_says_which_rows_start_afresh():
    schema = {"user": [Value("city"), Recent("movie", 3)], "movie": [Value("maker"), Cross("user", "movie")]}
    fitted = FittedColumns(Schema.parse(schema))
    index = np.array([[0, 0], [0, 1], [0, 1], [1, 0]])
    learn(fitted, {"city": ["x"] * 4, "maker": ["a", "b", "b", "a"]}, index)
    afresh = fitted.clear(1, np.array([1]))
    assert {table: rows.tolist() for table, rows in afresh.items()} == {1: [1]}
    assert_bags(fitted.of_nodes(0, np.array([0])), [{(0, 0): 1, (1, 0): 1}])
    assert as_dicts(fitted.of_nodes(1, np.array([1]))) == [{}]
    assert fitted.clear(0, np.array([0, 77])) == {}
    assert as_dicts(fitted.of_nodes(0, np.array([0]))) == [{}]
    bags = learn(fitted, {}, np.array([[0, 0], [1, 0], [0, 1]]))
    assert bags.row[bags.table == 3].tolist() == [3, 2, 4]  # the old crosses belong to other ids


def test_rings_whose_nodes_are_all_gone_are_empty():
    fitted = FittedColumns(Schema.parse({"user": [Recent("movie", 3)], "movie": []}))
    learn(fitted, {}, np.array([[0, 0], [0, 1]]))
    assert fitted.keep(1, np.zeros(2, bool))[0].tolist() == [False, False]
    again = FittedColumns.from_file(fitted.to_json(), fitted.to_arrays(), [1, 0])
    for each in (fitted, again):
        assert each.n_rows.tolist() == [0]
        assert_bags(learn(each, {}, np.array([[0, 0], [0, 0]])), [{}, {(0, 0): 1}])


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from("lllce"), st.booleans())))
def test_rings_with_evicted_nodes_equal_the_obvious_version(steps):
    fitted = FittedColumns(Schema.parse({"user": [Recent("movie", 3)], "movie": []}))
    rings: dict[int, list[int]] = {user: [] for user in range(3)}
    for user, movie, action, often in steps:
        if action == "l":
            learn(fitted, {}, np.array([[user, movie]]))
            rings[user] = [*rings[user], movie][-3:]
        elif action == "c":
            for _ in range(300 if often else 1):  # more often than a byte can count
                fitted.clear(1, np.array([movie]))
            rings = {u: [-1 if m == movie else m for m in ring] for u, ring in rings.items()}
        else:
            fitted.clear(0, np.array([user]))
            rings[user] = []
        if often:
            fitted = FittedColumns.from_file(fitted.to_json(), fitted.to_arrays())
    for user, ring in rings.items():
        there = [m for m in ring if m >= 0]
        expected = {(0, m): there.count(m) / np.sqrt(len(there)) for m in there}
        assert_bags(fitted.of_nodes(0, np.array([user])), [expected])


# --- bounds, scales, later columns ---


def test_in_a_full_column_a_new_value_takes_the_row_of_the_one_longest_unseen():
    fitted = FittedColumns(Schema.parse({"user": [Value("city")]}), max_values=2)
    index = np.array([[0], [1], [0], [2], [1], [3]])
    bags = learn(fitted, {"city": ["a", "b", None, "c", None, "b"]}, index)
    # a was seen in the third entry, as user 0 has it, so b gives way to c; then user 1 has none; a gives way
    assert as_dicts(bags) == [{(0, 0): 1}, {(0, 1): 1}, {(0, 0): 1}, {(0, 1): 1}, {}, {(0, 0): 1}]
    assert [(entry, table, rows.tolist()) for entry, table, rows in fitted.restarts] == [
        (3, 0, [1]),
        (5, 0, [0]),
    ]
    assert (fitted.n_rows.tolist(), fitted.n_evicted.tolist()) == ([2], [2])
    assert as_dicts(fitted.of_nodes(0, np.arange(4))) == [{}, {}, {(0, 1): 1}, {(0, 0): 1}]


def test_a_sixteenth_of_the_values_gives_way_at_once():
    fitted = FittedColumns(Schema.parse({"user": [], "when": Context(Value("code"))}), max_values=64)
    codes = np.arange(70)
    learn(fitted, {"code": codes}, np.stack([codes, np.full(70, -1)], axis=1))
    found = [(entry, rows.tolist()) for entry, _, rows in fitted.restarts]
    assert found == [(64, [0, 1, 2, 3]), (68, [4, 5, 6, 7])]
    again = learn(fitted, {"code": [69, 8, 0]}, np.array([[0, -1]] * 3))
    assert again.row.tolist() == [5, 8, 6]  # 0 is new, and takes the next free row
    assert fitted.n_evicted.tolist() == [8]


def test_described_values_take_rows_as_well():
    fitted = FittedColumns(Schema.parse({"user": [Value("city")]}), max_values=2)
    learn(fitted, {"city": ["a", "b"]}, np.array([[0], [1]]))
    fitted.describe(0, np.array([2]), fitted.check({"city": ["c"]}, 1, 0))
    assert [(table, rows.tolist()) for _, table, rows in fitted.restarts] == [(0, [0])]
    assert as_dicts(fitted.of_nodes(0, np.arange(3))) == [{}, {(0, 1): 1}, {(0, 0): 1}]


def test_ids_of_a_cross_are_told_apart_to_the_end():
    codes = NodeCodes()
    codes.next = 2**31 - 2
    assert codes.read(np.array([0, 1]), add=True).tolist() == [2**31 - 2, 2**31 - 1]
    with pytest.raises(ValueError, match="cannot tell more apart: make a new model"):
        codes.read(np.array([2]), add=True)
    with pytest.raises(ValueError, match="cannot tell more apart"):
        codes.clear(np.array([0]))
    assert codes.codes.tolist() == [2**31 - 2, 2**31 - 1]


def test_the_prior_variance_is_shared_out_among_the_columns_of_a_mode():
    fitted = FittedColumns(Schema.parse({"a": ["x", "y", "z"], "b": Context("t"), "c": []}))
    given = {"x": ["v"] * 3, "y": [None] * 3, "z": [1.5] * 3, "t": np.array(["2020-01-01"] * 3, "M8[s]")}
    learn(fitted, given, np.array([[0, -1, 0]] * 3))
    assert [table.mode for table in fitted.tables] == [0, 0, 0, 1]
    assert [table.scale for table in fitted.tables] == pytest.approx([0.1, 0.1, 0.1, 0.3 / 4])
    learn(fitted, {"y": np.array(["2020-01-01"], "M8[s]")}, np.array([[0, -1, 0]]))
    # a column that is decided late changes nothing for the others
    assert [table.scale for table in fitted.tables] == pytest.approx([0.1, 0.3 / 6, 0.1, 0.3 / 4])


def test_columns_may_be_added_and_table_numbers_stay():
    fitted = FittedColumns(Schema.parse({"user": ["city"], "movie": [Value("maker")]}))
    index = np.array([[0, 0], [1, 1]])
    learn(fitted, {"city": ["x", "y"], "maker": ["a", "b"]}, index)
    added = {"user": [Number("age"), "city"], "movie": [Value("land"), Value("maker")]}
    more = fitted.with_columns(Schema.parse(added))
    assert [column.spec.name for column in more.columns] == ["city", "maker", "age", "land"]
    assert [table.mode for table in more.tables] == [0, 1, 0, 1]
    bags = learn(more, {"land": ["l", "l"], "age": [1.0, 2.0]}, index)
    assert_bags(
        bags, [{(0, 0): 1, (1, 0): 1, (2, 12): 1, (3, 0): 1}, {(0, 1): 1, (1, 1): 1, (2, 12): 1, (3, 0): 1}]
    )
    again = FittedColumns.from_file(more.to_json(), more.to_arrays(), [2, 2])
    assert_same_state(again, more)


@pytest.mark.parametrize(
    "modes",
    [
        {"user": ["city"]},
        {"user": ["city"], "film": []},
        {"user": ["city"], "movie": Context("maker")},
        {"user": [Number("city")], "movie": ["maker"]},
        {"user": [], "movie": ["maker"]},
    ],
)
def test_columns_and_modes_cannot_be_taken_away_or_changed(modes):
    fitted = FittedColumns(Schema.parse({"user": ["city"], "movie": ["maker"]}))
    learn(fitted, {"city": ["x"], "maker": ["y"]}, np.array([[0, 0]]))
    with pytest.raises(ValueError, match="stay"):
        fitted.with_columns(Schema.parse(modes))


# --- inputs that are refused ---


@pytest.mark.parametrize(
    ("given", "row", "column", "reason"),
    [
        ({"city": ["x", object(), "y"]}, 1, "city", "object cannot be a value"),
        ({"city": [None, "x", float("inf")]}, 2, "city", "infinite value"),
        ({"year": [1.0, None, "late"]}, 2, "year", "'late' is not a number"),
        ({"year": [1.0, float("inf"), 2]}, 1, "year", "infinite number"),
        ({"year": [1, 10**400, 2]}, 1, "year", "infinite number"),
        ({"tags": [["a"], "a|b", None]}, 1, "tags", "is a text"),
        ({"tags": [None, ["a"], list(range(1001))]}, 2, "tags", "1001 values in one cell"),
        ({"tags": [["a"], None, ["b", [1]]]}, 2, "tags", "cannot be used"),
        ({"tags": [["a"], None, ["b", 1j]]}, 2, "tags", "complex cannot be a value"),
        ({"tags": [{"a": 1}, {"a": float("nan")}, None]}, 1, "tags", "not a finite number"),
        ({"tags": [["a"], 7, None]}, 1, "tags", "not a list"),
        ({"released": ["2020-01-01", "soon", None]}, 1, "released", "'soon' is not a time"),
        ({"released": [None, 1e30, 0]}, 1, "released", "is not a time"),
        ({"released": [True, None, None]}, 0, "released", "True is not a time"),
        ({"city": ["x", "y"]}, None, "city", "2 cells, but 3 entries"),
    ],
)
def test_a_bad_cell_is_one_clear_error_and_changes_nothing(given, row, column, reason):
    fitted = FittedColumns(Schema.parse(ALL))
    before = copy.deepcopy(fitted)
    with pytest.raises(EntryError, match=reason) as caught:
        fitted.check({"hour": [1, 2, 3]} | given, 3)
    assert (caught.value.row, caught.value.column) == (row, column)
    assert_same_state(fitted, before)


def test_an_index_that_does_not_fit_is_refused():
    fitted = FittedColumns(Schema.parse(NAIVE))
    with pytest.raises(ValueError, match="3 modes"):
        fitted.bags(fitted.check({}, 2), np.zeros((2, 2), np.int64), learn=False)
    with pytest.raises(ValueError, match="not known"):
        fitted.bags(fitted.check({}, 1), np.array([[-1, 0, -1]]), learn=True)


def test_no_entries_give_no_bags():
    fitted = FittedColumns(Schema.parse(ALL))
    for learned in (False, True):
        bags = fitted.bags(
            fitted.check({"city": [], "age": []}, 0), np.empty((0, 3), np.int64), learn=learned
        )
        assert bags.start.tolist() == [0]


def test_a_cross_of_lists_is_refused_as_soon_as_it_is_known():
    with pytest.raises(ValueError, match=r"'user\*tags' has the column 'tags' of several values"):
        Schema.parse({"user": [Many("tags")], "pair": Context(Cross("user", "tags"))})
    Schema.parse({"user": [Many("tags", sep="|")], "pair": Context(Cross("user", "tags"))})  # of texts
    fitted = FittedColumns(Schema.parse({"user": ["tags"], "pair": Context(Cross("user", "tags"))}))
    with pytest.raises(EntryError, match=r"column tags: list cannot be a value: .* no Cross") as caught:
        fitted.check({"tags": [None, ["a"]]}, 2)
    assert (caught.value.row, caught.value.kind) == (1, "attribute")


def test_all_refused_cells_are_found_at_once():
    fitted = FittedColumns(Schema.parse({"user": [Number("age"), Many("tags")], "when": Context("hour")}))
    long = list(range(1001))
    given = {"age": [1, "old", 3, np.inf], "tags": [long, None, ["a"], long], "hour": [1, 2, None, 4]}
    found = fitted.refused(given, 4)
    assert [(row, each.row, each.column) for row, each in found.items()] == [
        (0, 0, "tags"),
        (1, 1, "age"),
        (3, 3, "age"),
    ]
    assert fitted.refused({"age": [1, None], "hour": ["x", "y"]}, 2) == {}
