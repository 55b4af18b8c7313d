"""entries: raw ids to rows against a plain dict, every input and every error, and hostile saved ids."""

import copy
import datetime as dt
import enum
import json
import pickle
import subprocess
import sys
from collections import namedtuple
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import DataConversionWarning

from spidertensor import entries
from spidertensor.entries import Batch, EntryError, NodeIndex, columns, rows, values

settings.register_profile("entries", derandomize=True, deadline=None, max_examples=150, database=None)
reproducible = settings.get_profile("entries")

# Small pools of each kind, so that ids repeat and 1, 1.0 and True meet.
numbers = st.one_of(
    st.integers(-3, 40),
    st.sampled_from([2**16, 2**22 - 1, 2**22, 10**12, -(2**63), 2**63 - 1, 2**63, 2**64, -(10**30)]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, 2.5]),
    st.booleans(),
)
texts = st.one_of(
    st.text(max_size=3), st.binary(max_size=3), st.sampled_from(["", "1", "\ud800", "\ud83d\ude00"])
)
raw_ids = st.recursive(
    st.one_of(numbers, texts), lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4
)
int_arrays = st.builds(
    lambda ids, dtype: np.array(ids, dtype=dtype),
    st.lists(st.one_of(st.integers(0, 30), st.integers(0, 127)), max_size=20),
    st.sampled_from(["i1", "u1", "i2", "u4", "i4", "i8", "u8", ">i4", ">i8"]),
)
wide_arrays = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2**23), max_size=20).map(
    lambda ids: np.array(ids, dtype=np.int64)
)
calls = st.lists(st.one_of(st.lists(raw_ids, max_size=12), int_arrays, wide_arrays), max_size=6)


def oracle(known: dict, ids) -> list[int]:
    return [known.setdefault(raw, len(known)) for raw in (ids.tolist() if hasattr(ids, "tolist") else ids)]


def typed(raw):
    """What must survive a round trip: the type at every level, and every bit."""
    if isinstance(raw, tuple):
        return tuple, [typed(part) for part in raw]
    return type(raw), repr(raw)


def index_of(ids) -> NodeIndex:
    index = NodeIndex()
    index.find_or_add(ids)
    return index


# --- rows against the dict ---


@reproducible
@given(calls)
def test_rows_equal_the_dict(calls):
    index, known = NodeIndex(), {}
    for ids in calls:
        before = len(index)
        expected = [known.get(raw, -1) for raw in (ids.tolist() if hasattr(ids, "tolist") else ids)]
        np.testing.assert_array_equal(index.find(ids), expected)
        assert len(index) == before
        np.testing.assert_array_equal(index.find_or_add(ids), oracle(known, ids))
        assert index.find(ids).dtype == np.int64
    assert len(index) == len(known)
    assert [typed(raw) for raw in index.ids] == [typed(raw) for raw in known]


@reproducible
@given(st.lists(raw_ids, max_size=30), st.lists(st.integers(0, 30), max_size=4))
def test_how_calls_are_cut_does_not_matter(ids, cuts):
    whole, cut = NodeIndex(), NodeIndex()
    expected = whole.find_or_add(ids)
    edges = [0, *sorted(min(c, len(ids)) for c in cuts), len(ids)]
    got = [cut.find_or_add(ids[a:b]) for a, b in pairwise(edges)]
    np.testing.assert_array_equal(np.concatenate(got), expected)
    assert list(map(typed, cut.ids)) == list(map(typed, whole.ids))


@reproducible
@given(calls)
def test_saved_ids_come_back_exactly(calls):
    index = NodeIndex()
    for ids in calls:
        index.find_or_add(ids)
    arrays = index.to_arrays()
    assert all(array.dtype in (np.int64, np.uint8) and array.ndim == 1 for array in arrays.values())
    back = NodeIndex.from_arrays(arrays)
    assert list(map(typed, back.ids)) == list(map(typed, index.ids))
    assert back.kinds == index.kinds
    for ids in calls:
        np.testing.assert_array_equal(back.find(ids), index.find(ids))


@pytest.mark.parametrize("top", [100, 2**22 + 50, 2**62])
@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_many_blocks(top, dtype, monkeypatch):
    monkeypatch.setattr(entries, "BLOCK", 64)
    ids = np.random.default_rng(0).integers(0, top, 1000)[np.random.default_rng(1).integers(0, 1000, 3000)]
    ids = ids.astype(dtype)
    index, known = NodeIndex(), {}
    np.testing.assert_array_equal(index.find_or_add(ids), oracle(known, ids))
    np.testing.assert_array_equal(index.find(ids[::-1]), index.find_or_add(ids[::-1]))
    assert index.ids == list(known)


def test_a_large_id_allocates_no_table():
    index = index_of(np.array([10**12, -1, 5]))
    assert len(index._table) < 100
    index.find_or_add(np.array([entries.TABLE_LIMIT, 2**63 - 1]))
    assert len(index._table) < 100
    index.find_or_add(np.array([entries.TABLE_LIMIT - 1]))
    assert len(index._table) == entries.TABLE_LIMIT + 1
    assert index.find(np.array([-1, entries.TABLE_LIMIT, entries.TABLE_LIMIT - 1, 7])).tolist() == [
        1,
        3,
        5,
        -1,
    ]


def test_ids_compare_as_python_compares_them():
    index = NodeIndex()
    assert index.find_or_add([True, 2.0, "2", b"2", (1,)]).tolist() == [0, 1, 2, 3, 4]
    assert index.find_or_add([1, 2, "2", b"2", (1.0,)]).tolist() == [0, 1, 2, 3, 4]
    assert index.find(np.array([1, 2])).tolist() == [0, 1]
    assert index.find(np.array([1.0, 2.0])).tolist() == [0, 1]
    assert list(map(typed, index.ids)) == list(map(typed, [True, 2.0, "2", b"2", (1,)]))
    assert index.kinds == ("bool", "bytes", "float", "str", "tuple")


class Colour(str, enum.Enum):  # noqa: UP042 (str(Colour.RED) is not its value, unlike a StrEnum)
    RED = "red"


class Level(enum.IntEnum):
    LOW = 3


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        (np.str_("a"), "a"),
        (np.bytes_(b"a"), b"a"),
        (np.int8(3), 3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.float32(0.5), 0.5),
        (np.float64(0.1), 0.1),
        (np.bool_(True), True),
        (Colour.RED, "red"),
        (Level.LOW, 3),
        (Point(np.int64(1), ("a", np.str_("b"))), (1, ("a", "b"))),
        ((), ()),
    ],
)
def test_scalars_and_subclasses_become_plain(raw, plain):
    assert typed(index_of([raw, "other"]).ids[0]) == typed(plain)
    assert typed(index_of([raw]).ids[0]) == typed(plain)


def test_nodes_can_be_forgotten_again():
    index = index_of([5, "a", 70000, 9, (1,)])
    index.truncate(7)
    assert len(index) == 5
    index.truncate(2)
    assert index.ids == [5, "a"]
    assert index.find(np.array([9, 70000, 5])).tolist() == [-1, -1, 0]
    assert index.find_or_add(np.array([9, 5, 70000])).tolist() == [2, 0, 3]
    index.truncate(0)
    assert index.find([5, "a", 9]).tolist() == [-1, -1, -1]


def test_the_index_can_be_copied():
    index = index_of([5, "a", 70000])
    for twin in (copy.deepcopy(index), pickle.loads(pickle.dumps(index))):
        assert twin.find_or_add([70000, 9, "a"]).tolist() == [2, 3, 1]
    assert len(index) == 3


# --- ids that are refused ---


def nested(depth: int) -> tuple:
    raw: tuple = ()
    for _ in range(depth):
        raw = (raw,)
    return raw


REFUSED = [
    (None, "missing"),
    (float("nan"), "missing"),
    (np.float32("nan"), "missing"),
    (pd.NA, "missing"),
    (pd.NaT, "missing"),
    (("a", None), "missing"),
    (("a", (float("nan"),)), "missing"),
    (float("inf"), "infinite"),
    (-np.inf, "infinite"),
    ([1, 2], "list"),
    ({1}, "set"),
    ({"a": 1}, "dict"),
    (1j, "complex"),
    (Decimal(1), "Decimal"),
    (dt.date(2020, 1, 1), "date"),
    (pd.Timestamp("2020-01-01"), "Timestamp"),
    (np.datetime64("2020-01-01", "ns"), "datetime64"),
    (np.timedelta64(5, "ns"), "timedelta64"),
    (np.longdouble(1.5), "longdouble"),
    (np.array([1]), "ndarray"),
    (object(), "object"),
    (nested(entries.MAX_DEPTH + 1), "deep"),
    (nested(500), "deep"),
]


@pytest.mark.parametrize(("bad", "word"), REFUSED, ids=lambda case: str(case)[:20])
def test_refused_ids_name_row_and_mode_and_add_nothing(bad, word):
    nodes = [index_of([1]), index_of(["a"])]
    good, poor = ["x", 7, 2.5], ["b", "c", bad]
    for act in (nodes[1].find, nodes[1].find_or_add):
        with pytest.raises(EntryError, match=word) as caught:
            act(poor)
        assert caught.value.row == 2
    with pytest.raises(EntryError, match=rf"row 2: mode 1: .*{word}") as caught:
        rows(nodes, [good, poor], add=True)
    assert caught.value.row == 2
    assert (nodes[0].ids, nodes[1].ids) == ([1], ["a"])


@pytest.mark.parametrize("dtype", ["M8[ns]", "M8[D]", "m8[s]", "c16", "V4"])
def test_refused_arrays(dtype):
    X = np.zeros((2, 2), dtype=dtype)
    with pytest.raises(EntryError, match=r"mode 0: .*convert to str or int first"):
        rows([NodeIndex(), NodeIndex()], columns(X)[0], add=True)


def test_deepest_allowed_tuple_is_saved():
    index = index_of([nested(entries.MAX_DEPTH - 1), "a"])
    assert NodeIndex.from_arrays(index.to_arrays()).ids == index.ids


def test_error_text_and_pickle():
    assert str(EntryError("bad")) == "bad"
    assert str(EntryError("bad", 0)) == "row 0: bad"
    twin = pickle.loads(pickle.dumps(EntryError("bad", 3)))
    assert (twin.reason, twin.row, str(twin)) == ("bad", 3, "row 3: bad")
    assert isinstance(twin, ValueError)


# --- several modes at once ---


def test_rows_of_all_modes():
    nodes = [NodeIndex(), NodeIndex()]
    X = [("a", 10), ("b", 10), ("a", 20)]
    index = rows(nodes, columns(X)[0], add=True)
    assert index.tolist() == [[0, 0], [1, 0], [0, 1]]
    assert index.dtype == np.int64
    assert index.flags.c_contiguous
    assert rows(nodes, columns([("a", 30), ("z", 20)])[0], add=False).tolist() == [[0, -1], [-1, 1]]
    assert [len(mode) for mode in nodes] == [2, 2]
    assert Batch(index, np.zeros(3)).index is index


def test_rows_of_nothing():
    nodes = [NodeIndex(), NodeIndex()]
    for X in ([], (), np.empty((0, 2)), np.empty((0, 2), dtype=np.int64), pd.DataFrame({"a": [], "b": []})):
        for add in (True, False):
            assert rows(nodes, columns(X)[0], add=add).shape == (0, 2)
    assert [len(mode) for mode in nodes] == [0, 0]


def test_rows_want_one_column_per_mode_of_one_length():
    nodes = [NodeIndex(), NodeIndex()]
    with pytest.raises(EntryError, match=r"X has 3 features, but SPIDER is expecting 2"):
        rows(nodes, columns(np.zeros((4, 3), dtype=int))[0], add=True)
    with pytest.raises(EntryError, match=r"length: \[1, 2\]"):
        rows(nodes, [[1], [1, 2]], add=True)
    with pytest.raises(EntryError, match="1-D"):
        nodes[0].find_or_add(np.zeros((2, 2), dtype=int))
    assert [len(mode) for mode in nodes] == [0, 0]


# --- inputs ---


def ids_in(X, names=None):
    """Every entry of X as a row of plain ids, through the public functions."""
    found, seen = columns(X, names)
    nodes = [NodeIndex() for _ in found]
    index = rows(nodes, found, add=True)
    return [tuple(mode.ids[row] for mode, row in zip(nodes, entry, strict=True)) for entry in index], seen


@pytest.mark.parametrize(
    "X",
    [
        np.array([[1, 2], [3, 4]], dtype=np.uint8),
        np.array([[1, 2], [3, 4]], dtype=np.uint32).T.copy().T,
        np.array([[1, -2], [2**62, 4]]),
        np.array([[1, 2], [2**64 - 1, 2**63]], dtype=np.uint64),
        np.array([[1, 2], [3, 4]], dtype=">i8"),
        np.array([[1.5, 2.0], [3.0, -0.5]]),
        np.array([[0.1, 2.0]], dtype=np.float32),
        np.array([["a", "b"], ["ccc", "d"]]),
        np.array([[b"a", b"b"]]),
        np.array([[True, False]]),
        np.array([["a", 1], [(1, 2), 2.5]], dtype=object),
        np.zeros((2, 1), dtype=int),
        np.ma.masked_array([[1, 2], [3, 4]], mask=False),
    ],
    ids=lambda X: f"{X.dtype}{X.shape}",
)
def test_arrays(X):
    got, names = ids_in(X)
    assert names is None
    expected = [tuple(entry) for entry in X.tolist()]
    assert [list(map(typed, entry)) for entry in got] == [list(map(typed, entry)) for entry in expected]


@pytest.mark.parametrize("X", [[(1, "a"), (2, "b")], [[1, "a"], [2, "b"]], ((1, "a"), [2, "b"])])
def test_lists(X):
    assert ids_in(X) == ([(1, "a"), (2, "b")], None)
    assert ids_in(X, ["u", "v"]) == ([(1, "a"), (2, "b")], None)


def test_list_of_array_rows():
    assert ids_in([np.array([1, 2]), np.array([3, 4])])[0] == [(1, 2), (3, 4)]


def test_a_masked_id_is_missing():
    X = np.ma.masked_array([[1, 2], [3, 4]], mask=[[0, 0], [0, 1]])
    with pytest.raises(EntryError, match="row 1: mode 1: missing"):
        ids_in(X)


@pytest.mark.parametrize("X", [np.arange(3), [1, 2], ["ab", "cd"], (1,), np.array(5), np.zeros((1, 1, 1))])
def test_input_that_is_not_2d(X):
    with pytest.raises(EntryError, match="2-D input with one column per mode"):
        columns(X)


@pytest.mark.parametrize(
    "X", [None, 5, "ab", {1: 2}, iter([]), pd.Series([1]), pl.Series([1]), pl.LazyFrame({"a": [1]})]
)
def test_input_that_is_no_table(X):
    with pytest.raises(EntryError, match="2-D input with one column per mode") as caught:
        columns(X)
    assert type(X).__name__ in caught.value.reason


def test_entries_without_ids():
    for X in (np.empty((3, 0)), [(), (), ()], pd.DataFrame(index=range(3))):
        with pytest.raises(EntryError, match=r"0 feature\(s\) \(shape=\(3, 0\)\) while a minimum of 1"):
            columns(X)


def test_ragged_and_wrong_width():
    with pytest.raises(EntryError, match=r"expected 2 ids.*got 3") as caught:
        columns([(1, 2), (1, 2), (1, 2, 3)])
    assert caught.value.row == 2
    for names, width in ((["a", "b", "c"], None), (None, 3)):
        with pytest.raises(EntryError, match=r"expected 3 ids.*got 2") as caught:
            columns([(1, 2, 3), (1, 2)], names, width)
        assert caught.value.row == 1
        with pytest.raises(EntryError, match=r"X has 2 features, but SPIDER is expecting 3") as caught:
            columns(np.zeros((5, 2)), names, width)
        assert caught.value.row is None
    with pytest.raises(EntryError, match=r"expected 2 ids.*got 3") as caught:
        columns([(1, 2, 3), (1, 2)], None, 2)
    assert caught.value.row == 0
    with pytest.raises(EntryError, match=r"X has 1 features, but SPIDER is expecting 2"):
        columns(pl.DataFrame({"a": [1]}), None, 2)


class ArrayLike:
    def __init__(self, array):
        self.array = np.asarray(array)

    def __array__(self, dtype=None, copy=None):
        return self.array


def test_what_becomes_an_array():
    assert ids_in(ArrayLike([[1, 2], [3, 4]])) == ([(1, 2), (3, 4)], None)
    with pytest.raises(EntryError, match=r"Reshape your data.*ArrayLike of shape \(2,\)"):
        columns(ArrayLike([1, 2]))


@pytest.mark.parametrize("build", [scipy.sparse.csr_array, scipy.sparse.coo_matrix])
def test_sparse_input(build):
    with pytest.raises(EntryError, match="sparse input is not supported"):
        columns(build(np.eye(2)))


def test_empty_input_has_as_many_columns_as_known():
    assert columns([]) == ([], None)
    assert columns([], ["a", "b"]) == ([[], []], None)
    assert len(columns(np.empty((0, 3)))[0]) == 3
    assert columns(pl.DataFrame({"a": [], "b": []}))[1] == ("a", "b")


FRAMES = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}


@pytest.mark.parametrize("library", FRAMES)
def test_frames(library):
    frame = FRAMES[library]({"user": [7, 8, 7], "item": ["x", "y", "y"], "ok": [True, False, True]})
    assert ids_in(frame) == ([(7, "x", True), (8, "y", False), (7, "y", True)], ("user", "item", "ok"))
    got, names = ids_in(frame, ("ok", "user", "item"))
    assert got == [(True, 7, "x"), (False, 8, "y"), (True, 7, "y")]
    assert names == ("ok", "user", "item")


@pytest.mark.parametrize("library", FRAMES)
def test_frames_with_other_columns(library):
    frame = FRAMES[library]({"user": [7], "item": ["x"]})
    with pytest.raises(EntryError, match="missing columns: place"):
        columns(frame, ("user", "item", "place"))
    with pytest.raises(EntryError, match="unexpected columns: item"):
        columns(frame, ("user",))
    when = FRAMES[library]({"user": [7], "when": [dt.datetime(2020, 1, 1)]})
    with pytest.raises(EntryError, match=r"column when: .*convert to str or int first"):
        columns(when)


@pytest.mark.parametrize("library", FRAMES)
@pytest.mark.parametrize("values", [[1, None], ["a", None], [1.5, None], [True, None], [b"a", None]])
def test_nulls_in_frames_are_missing(library, values):
    frame = FRAMES[library]({"user": [7, 8], "item": values})
    with pytest.raises(EntryError, match="row 1: mode 1: missing"):
        ids_in(frame)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pd.Categorical(["a", "b", "a"]), ["a", "b", "a"]),
        (pd.Categorical([5, 6, 5]), [5, 6, 5]),
        (pd.array([1, 2, 1], dtype="Int64"), [1, 2, 1]),
        (pd.array([1, 2, 1], dtype="UInt8"), [1, 2, 1]),
        (pd.array([1, 2, 1], dtype="int64[pyarrow]"), [1, 2, 1]),
        (pd.array(["a", "b", "a"], dtype="string"), ["a", "b", "a"]),
        (pd.Series(["a", 1, (2, "b")], dtype=object), ["a", 1, (2, "b")]),
        (pl.Series(["a", "b"], dtype=pl.Categorical), ["a", "b"]),
        (pl.Series(["a", "b"], dtype=pl.Enum(["b", "a"])), ["a", "b"]),
        (pl.Series([1, 2], dtype=pl.UInt16), [1, 2]),
        (pl.Series([1, 2**63], dtype=pl.UInt64), [1, 2**63]),
        (pl.Series([1, 2**100], dtype=pl.Int128), [1, 2**100]),
        (pl.Series([(1, 2), "a"], dtype=pl.Object), [(1, 2), "a"]),
        (pa.chunked_array([[1], [2]]), [1, 2]),
        (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
        (pa.array([b"a", b"b"]), [b"a", b"b"]),
    ],
    ids=lambda case: f"{type(case).__name__}-{getattr(case, 'dtype', getattr(case, 'type', ''))}",
)
def test_column_types(column, expected):
    build = {"polars": pl.DataFrame, "pyarrow": pa.table}.get(
        type(column).__module__.split(".")[0], pd.DataFrame
    )
    got, _ = ids_in(build({"a": column}))
    assert list(map(typed, (entry[0] for entry in got))) == list(map(typed, expected))


def test_frame_refusals():
    with pytest.raises(EntryError, match="same name"):
        columns(pd.DataFrame([[1, 2]], columns=["a", "a"]))
    with pytest.raises(EntryError, match="row 0: mode 0: time"):
        ids_in(pl.DataFrame({"a": [dt.time(1)]}))
    with pytest.raises(EntryError, match="row 0: mode 0: list"):
        ids_in(pl.DataFrame({"a": [[1]]}))
    with pytest.raises(EntryError, match="mode 0: missing"):
        ids_in(pl.DataFrame({"a": [None]}))
    assert columns(pd.DataFrame(np.eye(2, dtype=int)))[1] == ("0", "1")


def test_importing_entries_loads_no_frame_library():
    code = "import sys, spidertensor.entries; print({'narwhals', 'pandas', 'polars'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


# --- values ---


@pytest.mark.parametrize(
    "y",
    [
        [1, 0, 1],
        (1.0, 0.0, 1.0),
        [True, False, True],
        np.array([1, 0, 1], dtype=np.uint8),
        np.array([1, 0, 1], dtype=np.longdouble),
        np.array([1, False, np.float32(1)], dtype=object),
        [Decimal(1), 0, 1],
        np.array([1.0, 9, 0, 9, 1, 9])[::2],
        pd.Series([1, 0, 1]),
        pd.Series([1, 0, 1], dtype="Int64"),
        pd.Series([1.0, 0, 1], dtype="Float64"),
        pl.Series([1, 0, 1]),
        pa.chunked_array([[1, 0], [1]]),
    ],
    ids=lambda y: type(y).__name__,
)
def test_values(y):
    for binary in (True, False):
        got = values(y, 3, binary=binary)
        assert got.dtype == np.float64
        assert got.flags.c_contiguous
        assert got.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    "y",
    [
        np.array([[1.0], [0.0]]),
        [[1], [0]],
        [[True], [False]],
        pd.DataFrame({"y": [1, 0]}),
        pl.DataFrame({"y": [1, 0]}),
        np.array([[Decimal(1)], [0]], dtype=object),
    ],
    ids=lambda y: type(y).__name__,
)
def test_a_column_of_values_is_taken_with_a_warning(y):
    with pytest.warns(DataConversionWarning, match="column-vector y"):
        assert values(y, 2, binary=True).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("y", "row", "word"),
    [
        ([1.0, float("nan"), 2], 1, "finite"),
        ([1.0, 2, -np.inf], 2, "finite"),
        ([1, None], 1, "NoneType"),
        ([1, "2"], 1, "str"),
        ([b"1"], 0, "bytes"),
        (["a"], 0, "str"),
        (np.array(["1", "2"]), 0, "str"),
        ([1, [2, 3]], 1, "list"),
        ([1, 2j], None, "Complex data not supported"),
        ([1, 10**400], 1, "finite"),
        (np.array([1, np.finfo(np.longdouble).max]), 1, "finite"),
        (np.array(["2020-01-01"], dtype="M8[ns]"), None, "datetime64"),
        (pd.Series([1, None]), 1, "finite"),
        (pd.Series([1, None], dtype="Int64"), 1, "finite"),
        (pl.Series([1, None]), 1, "finite"),
        (pa.array([1, None]), 1, "finite"),
        (np.ma.masked_array([1.0, 2.0], mask=[0, 1]), 1, "NoneType"),
        (np.zeros((2, 2)), None, "1-D"),
        (np.zeros((2, 1, 1)), None, "1-D"),
        (3.0, None, "1-D"),
        (None, None, "y is None"),
        ([1, 2, 3, 4, 5], None, "4 entries but 5 values"),
    ],
    ids=lambda case: str(case)[:20],
)
def test_refused_values(y, row, word):
    n = 4 if word.startswith("4") else len(y) if hasattr(y, "__len__") else 1
    with pytest.raises(EntryError, match=word) as caught:
        values(y, n, binary=False)
    assert caught.value.row == row


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (2, "label 2 is neither 0 nor 1. Only binary classification is supported"),
        (-1, "label -1 is neither"),
        (0.5, "continuous value 0.5 is neither"),
        (float("nan"), "not finite"),
    ],
)
def test_binary_values(bad, words):
    with pytest.raises(EntryError, match=rf"row 1: .*{words}"):
        values([0, bad, 1], 3, binary=True)
    assert values([], 0, binary=True).shape == (0,)


# --- from a command line ---


@pytest.mark.parametrize(
    ("ids", "text", "expected"),
    [
        ([42, 7], "42", 42),
        ([42, "42"], "42", 42),
        (["42"], "42", "42"),
        ([42], "43", "43"),
        ([42], "forty", "forty"),
        ([2.5, "a"], "2.5", 2.5),
        ([2.5, "a"], "2.50", 2.5),
        ([2.5, "nan"], "nan", "nan"),
        ([True, "true!"], "true", True),
        ([False], "False", False),
        ([b"ab"], "ab", b"ab"),
        ([b"ab"], "\ud800", "\ud800"),
        ([(1, "a"), 5], "(1, 'a')", (1, "a")),
        ([(1, "a"), 5], "(2, 'a')", "(2, 'a')"),
        ([], "x", "x"),
        ([5], "9" * 5000, "9" * 5000),
    ],
)
def test_parse(ids, text, expected):
    assert typed(index_of(ids).parse(text)) == typed(expected)


# --- saved ids from anywhere ---


def test_saved_ids_are_compact():
    assert {name: array.dtype for name, array in index_of([3, -1]).to_arrays().items()} == {"int": np.int64}
    arrays = index_of(["a", "", "éé"]).to_arrays()
    assert arrays["offsets"].tolist() == [0, 1, 1, 5]
    assert arrays["utf8"].tobytes() == "aéé".encode()
    for ids in ([2**63], [1.5], [True], [b"a"], [("a",)], [1, "a"], [10**5000]):
        arrays = index_of(ids).to_arrays()
        assert set(arrays) == {"json"}
        assert NodeIndex.from_arrays(arrays).ids == ids
    assert len(NodeIndex.from_arrays(NodeIndex().to_arrays())) == 0


def blob(text) -> np.ndarray:
    data = text if isinstance(text, bytes) else (text if isinstance(text, str) else json.dumps(text)).encode()
    return np.frombuffer(data, dtype=np.uint8)


def strings(data: bytes, offsets) -> dict:
    return {"utf8": blob(data), "offsets": np.array(offsets, dtype=np.int64)}


HOSTILE = {
    "nothing": {},
    "unknown name": {"pickle": blob("x")},
    "two formats": {"int": np.array([1]), "json": blob("[]")},
    "half": {"utf8": blob("a")},
    "int of wrong dtype": {"int": np.array([1], dtype=np.int32)},
    "int of objects": {"int": np.array([1, "a"], dtype=object)},
    "2-D": {"int": np.zeros((2, 2), dtype=np.int64)},
    "0-D": {"int": np.array(5)},
    "duplicate ints": {"int": np.array([1, 2, 1])},
    "duplicate texts": strings(b"aa", [0, 1, 2]),
    "no offsets": strings(b"", []),
    "offsets start late": strings(b"ab", [1, 2]),
    "offsets end early": strings(b"ab", [0, 1]),
    "offsets end late": strings(b"ab", [0, 3]),
    "offsets go back": strings(b"abc", [0, 2, 1, 3]),
    "negative offsets": strings(b"abc", [0, -1, 3]),
    "huge offsets": strings(b"abc", [0, 2**63 - 1, -(2**63), 3]),
    "bad utf-8": strings(b"\xff\xfe", [0, 2]),
    "cut inside a character": strings("é".encode(), [0, 1, 2]),
    "float offsets": {"utf8": blob("a"), "offsets": np.array([0.0, 1.0])},
    "not json": {"json": blob("nonsense(")},
    "json of wrong dtype": {"json": np.array([91, 93])},
    "json bad utf-8": {"json": blob(b'[["str","\xff"]]')},
    "not a list": {"json": blob({"a": 1})},
    "bare value": {"json": blob([1])},
    "unknown tag": {"json": blob([["object", "x"]])},
    "tag without value": {"json": blob([["int"]])},
    "tag with two values": {"json": blob([["int", "0x1", "0x2"]])},
    "int as number": {"json": blob([["int", 1]])},
    "int not hexadecimal": {"json": blob([["int", "zz"]])},
    "bool as number": {"json": blob([["bool", 1]])},
    "bytes not hexadecimal": {"json": blob([["bytes", "0g"]])},
    "float nan": {"json": blob([["float", "nan"]])},
    "float inf": {"json": blob([["float", "-inf"]])},
    "float overflow": {"json": blob([["float", "0x1p99999"]])},
    "nan literal": {"json": blob("[NaN]")},
    "null": {"json": blob([["str", None]])},
    "tuple of bare": {"json": blob([["tuple", ["a"]]])},
    "duplicates": {"json": blob([["int", "0x1"], ["float", "0x1p0"]])},
    "many digits": {"json": blob("[" + "9" * 6000 + "]")},
    "too deep": {"json": blob('[["tuple",' + '[["tuple",' * 40 + "[]" + "]]" * 40 + "]]")},
    "much too deep": {"json": blob('[["tuple",' + '[["tuple",' * 300 + "[]" + "]]" * 300 + "]]")},
    "bottomless": {"json": blob("[" * 200_000)},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_arrays(case):
    with pytest.raises(ValueError, match=r"cannot read node ids: .+"):
        NodeIndex.from_arrays(HOSTILE[case])


@reproducible
@given(st.data())
def test_damaged_arrays_load_or_raise_value_error(data):
    ids = data.draw(st.lists(raw_ids, max_size=6))
    arrays = {name: array.copy() for name, array in index_of(ids).to_arrays().items()}
    array = arrays[data.draw(st.sampled_from(sorted(arrays)))]
    if array.size:
        array[data.draw(st.integers(0, array.size - 1))] = data.draw(st.integers(0, 255))
    try:
        loaded = NodeIndex.from_arrays(arrays)
    except ValueError:
        return
    np.testing.assert_array_equal(loaded.find(loaded.ids), np.arange(len(loaded)))
