"""inputs: every kind of input and every error."""

import datetime as dt
import pickle
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
from sklearn.exceptions import DataConversionWarning

from spidertensor.estimator import inputs
from spidertensor.estimator.ids import NodeIndex, to_index
from spidertensor.estimator.inputs import Columns, columns, values
from spidertensor.faults import EntryError
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT


def test_error_text_and_pickle():
    assert str(EntryError("bad")) == "bad"
    assert str(EntryError("bad", 0)) == "row 0: bad"
    twin = pickle.loads(pickle.dumps(EntryError("bad", 3)))
    assert (twin.reason, twin.row, str(twin)) == ("bad", 3, "row 3: bad")
    assert isinstance(twin, ValueError)


# --- inputs ---


def typed(raw):
    return type(raw), repr(raw)


def ids_in(X, names=None):
    """Every entry of X as a row of plain ids, through the public functions."""
    found = columns(X, names)
    nodes = [NodeIndex() for _ in found.ids]
    index = to_index(nodes, found, add=True)
    ids = [tuple(mode.ids[number] for mode, number in zip(nodes, entry, strict=True)) for entry in index]
    return ids, found.names


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
    assert columns([]) == Columns([])
    assert columns([], ["a", "b"]) == Columns([[], []])
    assert len(columns(np.empty((0, 3))).ids) == 3
    assert columns(pl.DataFrame({"a": [], "b": []})).names == ("a", "b")


def test_columns_are_taken_as_they_are():
    """What has columns already: by position without names, else by name, and with nothing copied."""
    users, items = np.array([7, 8, 7]), ["x", "y", "y"]
    plain = columns(Columns([users, items]), ("user", "item"))
    assert plain.ids[0] is users
    assert plain.ids[1] is items
    turned = columns(Columns([items, users], ("item", "user")), ("user", "item"))
    assert (turned.ids[0] is users, turned.names) == (True, ("user", "item"))
    assert ids_in(turned)[0] == [(7, "x"), (8, "y"), (7, "y")]
    for wrong, words in [
        (Columns([users]), "X has 1 features, but SPIDER is expecting 2"),
        (Columns([users, items[:2]]), r"columns differ in length: \[3, 2\]"),
        (Columns([users, items], ("user", "film")), "missing columns: item"),
    ]:
        with pytest.raises(EntryError, match=words):
            columns(wrong, ("user", "item"))


def test_a_fault_has_parts():
    """So that whoever shows it can word it; `rows` has all rows with the same fault."""
    with pytest.raises(EntryError) as caught:
        ids_in(pl.DataFrame({"user": [1, 2], "item": ["a", None]}))
    error = caught.value
    assert (error.kind, error.row, error.column, error.value) == ("id", 1, "item", None)
    with pytest.raises(EntryError) as caught:
        values([0, 1, 2], 3, PROBIT)
    error = caught.value
    assert (error.kind, error.row, error.value) == ("value", 2, 2.0)
    assert error.text("say it otherwise") == "row 2: value 2 is not 0 or 1: say it otherwise"
    twin = pickle.loads(pickle.dumps(error))
    assert (str(twin), vars(twin)) == (str(error), vars(error))


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
    with pytest.raises(EntryError, match="row 1: column item: missing"):
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
    with pytest.raises(EntryError, match="row 0: column a: time"):
        ids_in(pl.DataFrame({"a": [dt.time(1)]}))
    with pytest.raises(EntryError, match="row 0: column a: list"):
        ids_in(pl.DataFrame({"a": [[1]]}))
    with pytest.raises(EntryError, match="column a: missing"):
        ids_in(pl.DataFrame({"a": [None]}))
    assert columns(pd.DataFrame(np.eye(2, dtype=int))).names == ("0", "1")


def test_importing_inputs_loads_no_frame_library():
    """The module by itself: scikit-learn, which the rest of its package needs, may load some."""
    code = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("alone", {inputs.__file__!r})
sys.modules["alone"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
assert module.columns([(1, 2)]).n_entries == 1
print({{'narwhals', 'pandas', 'polars'}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")


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
    for likelihood in (PROBIT, GAUSSIAN):
        got = values(y, 3, likelihood)
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
        assert values(y, 2, PROBIT).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("y", "row", "word"),
    [
        ([1.0, float("nan"), 2], 1, "finite"),
        ([1.0, 2, -np.inf], 2, "finite"),
        ([1, None], 1, "without a value"),
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
        (np.ma.masked_array([1.0, 2.0], mask=[0, 1]), 1, "without a value"),
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
        values(y, n, GAUSSIAN)
    assert caught.value.row == row
