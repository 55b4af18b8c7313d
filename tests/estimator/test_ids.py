"""ids: raw ids to numbers against a plain dict, ids that are refused, and hostile saved ids."""

import contextlib
import copy
import datetime as dt
import enum
import json
import pickle
import subprocess
import sys
import tracemalloc
from collections import namedtuple
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spidertensor.estimator import ids as module
from spidertensor.estimator.eviction import BoundedIndex
from spidertensor.estimator.ids import NodeIndex, to_index
from spidertensor.estimator.inputs import Columns, columns
from spidertensor.faults import EntryError
from spidertensor.method import Batch

settings.register_profile("ids", derandomize=True, deadline=None, max_examples=150, database=None)
reproducible = settings.get_profile("ids")

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


# --- numbers against the dict ---


@reproducible
@given(calls)
def test_numbers_equal_the_dict(calls):
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
    monkeypatch.setattr(module, "BLOCK", 64)
    ids = np.random.default_rng(0).integers(0, top, 1000)[np.random.default_rng(1).integers(0, 1000, 3000)]
    ids = ids.astype(dtype)
    index, known = NodeIndex(), {}
    np.testing.assert_array_equal(index.find_or_add(ids), oracle(known, ids))
    np.testing.assert_array_equal(index.find(ids[::-1]), index.find_or_add(ids[::-1]))
    assert index.ids == list(known)


def test_the_table_grows_with_the_nodes_and_not_with_their_ids():
    """A file of 8 bytes per id must not make 16 MiB of each of its modes."""
    top = module.TABLE_LIMIT
    index = index_of(np.array([10**12, -1, 5]))
    index.find_or_add(np.array([top, 2**63 - 1, top - 1, 1000]))
    assert len(index._table) < 100
    assert index.find(np.array([-1, top, top - 1, 1000, 5, 7])).tolist() == [1, 3, 5, 6, 2, -1]
    index.find_or_add(np.arange(2000))
    assert index._table[1000] == 6  # by then it has company
    assert len(index._table) < 2 * module.SLOTS_PER_NODE * 2000
    index = index_of(np.arange(0, top + 50, module.SLOTS_PER_NODE // 2))
    index.find_or_add(np.arange(top - 100, top + 50))
    assert len(index._table) == top + 1
    assert index.find(np.array([top - 1, top])).tolist() == [index.ids.index(top - 1), index.ids.index(top)]


COLLIDING = {
    "integers": [k * 8 * (2**61 - 1) for k in range(1, 3001)],
    "tuples": [tuple(-2 if n >> bit & 1 else -1 for bit in range(12)) for n in range(3000)],
}


@pytest.mark.parametrize("make", [NodeIndex, lambda: BoundedIndex(5000)], ids=["all", "bounded"])
@pytest.mark.parametrize("ids", COLLIDING.values(), ids=COLLIDING)
def test_chosen_ids_have_no_common_hash(ids, make):
    """With one hash for all, a dict compares each new id with all before it."""
    assert len(set(map(hash, ids))) == 1
    index = make()
    assert index.find_or_add(ids).tolist() == list(range(3000))
    assert len(set(map(hash, index._numbers))) == 3000
    assert list(map(typed, index.ids)) == list(map(typed, ids))
    assert index.find(ids[::-1]).tolist() == list(range(3000))[::-1]


def test_wide_ids_are_the_same_in_another_process():
    """Hashes have another secret there."""
    ids = [2**70, (1, "a"), (True, 2.0), -(2.0**64), "a"]
    code = (
        "import pickle, sys; index = pickle.load(sys.stdin.buffer);"
        "print(*index.find([2.0**70, (1.0, 'a'), (1, 2), -2**64, 'a', 2**71]))"
    )
    for index in (NodeIndex(), BoundedIndex(9)):
        index.find_or_add(ids)
        done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(index), capture_output=True)
        assert done.stdout.split() == [b"0", b"1", b"2", b"3", b"4", b"-1"], done.stderr


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
    (nested(module.MAX_DEPTH + 1), "deep"),
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
        to_index(nodes, Columns([good, poor]), add=True)
    assert caught.value.row == 2
    assert (nodes[0].ids, nodes[1].ids) == ([1], ["a"])


@pytest.mark.parametrize("dtype", ["M8[ns]", "M8[D]", "m8[s]", "c16", "V4"])
def test_refused_arrays(dtype):
    X = np.zeros((2, 2), dtype=dtype)
    with pytest.raises(EntryError, match=r"mode 0: .*convert to str or int first"):
        to_index([NodeIndex(), NodeIndex()], columns(X), add=True)


def test_deepest_allowed_tuple_is_saved():
    index = index_of([nested(module.MAX_DEPTH - 1), "a"])
    assert NodeIndex.from_arrays(index.to_arrays()).ids == index.ids


# --- several modes at once ---


def test_numbers_of_all_modes():
    nodes = [NodeIndex(), NodeIndex()]
    X = [("a", 10), ("b", 10), ("a", 20)]
    index = to_index(nodes, columns(X), add=True)
    assert index.tolist() == [[0, 0], [1, 0], [0, 1]]
    assert index.dtype == np.int64
    assert index.flags.c_contiguous
    assert to_index(nodes, columns([("a", 30), ("z", 20)]), add=False).tolist() == [[0, -1], [-1, 1]]
    assert [len(mode) for mode in nodes] == [2, 2]
    assert Batch(index, np.zeros(3)).index is index


def test_numbers_of_nothing():
    nodes = [NodeIndex(), NodeIndex()]
    for X in ([], (), np.empty((0, 2)), np.empty((0, 2), dtype=np.int64), pd.DataFrame({"a": [], "b": []})):
        for add in (True, False):
            assert to_index(nodes, columns(X), add=add).shape == (0, 2)
    assert [len(mode) for mode in nodes] == [0, 0]


def test_to_index_wants_one_column_per_mode_of_one_length():
    nodes = [NodeIndex(), NodeIndex()]
    with pytest.raises(EntryError, match=r"X has 3 features, but SPIDER is expecting 2"):
        to_index(nodes, columns(np.zeros((4, 3), dtype=int)), add=True)
    with pytest.raises(EntryError, match=r"length: \[1, 2\]"):
        to_index(nodes, columns(Columns([[1], [1, 2]])), add=True)
    with pytest.raises(EntryError, match="1-D"):
        nodes[0].find_or_add(np.zeros((2, 2), dtype=int))
    assert [len(mode) for mode in nodes] == [0, 0]


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
    assert typed(index_of(ids).parse([text])[0]) == typed(expected)


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
    "text behind the list": {"json": blob('[["int","0x1"]] 1')},
    "list not closed": {"json": blob('[["int","0x1"]')},
    "ids without a comma": {"json": blob('[["int","0x1"]["int","0x2"]]')},
    "a comma too much": {"json": blob('[["int","0x1"],]')},
    "a comma first": {"json": blob('[,["int","0x1"]]')},
    "parts without a comma": {"json": blob('[["tuple",[["int","0x1"]["int","0x2"]]]]')},
    "a comma behind the last part": {"json": blob('[["tuple",[["int","0x1"],]]]')},
    "tuple not closed": {"json": blob('[["tuple",[["int","0x1"]]')},
    "text not closed": {"json": blob('[["str","a')},
    "control character": {"json": blob('[["str","a\nb"]]')},
    "nan in a tuple": {"json": blob([["tuple", [["float", "nan"]]]])},
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


def test_json_may_have_spaces():
    """A writer in another language need not leave them out."""
    ids = [(1, ("é\n", b"x"), ()), "a", -1.5, True, 2**70]
    arrays = index_of(ids).to_arrays()
    spaced = json.dumps(json.loads(arrays["json"].tobytes()), indent=2)
    assert list(map(typed, NodeIndex.from_arrays({"json": blob(f" {spaced}\n")}).ids)) == list(
        map(typed, ids)
    )
    assert NodeIndex.from_arrays({"json": blob(" [ ] ")}).ids == []


def texts(n: int) -> dict:
    each = [chr(0x4E00 + i % 20_000) + chr(0x4E00 + i // 20_000) for i in range(n)]
    return strings("".join(each).encode(), np.arange(0, 6 * n + 1, 6))


LARGE = {
    "one tuple of empty tuples": {"json": blob([["tuple", [["tuple", []]] * 30_000]])},
    "one tuple of tuples": {"json": blob([["tuple", [["tuple", [["tuple", [["bool", True]]]]]] * 10_000]])},
    "no ids": {"json": blob([[]] * 100_000)},
    "ints in json": {"json": blob([["int", hex(i)] for i in range(20_000)])},
    "texts in json": {"json": blob([["str", chr(i)] for i in range(256, 20_000)])},
    "short texts": texts(30_000),
    "ints": {"int": np.arange(40_000)},
    "ints far apart": {"int": np.arange(40_000) * 997},
}


@pytest.mark.parametrize("case", LARGE)
def test_memory_is_a_small_multiple_of_the_arrays(case):
    arrays = LARGE[case]
    size = sum(array.nbytes for array in arrays.values())
    tracemalloc.start()
    try:
        with contextlib.suppress(ValueError):
            NodeIndex.from_arrays(arrays)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # an int of 8 bytes becomes a key and a number in a dict; JSON says more than that in text
    assert peak < (11 if "json" in arrays else 24) * size


@pytest.mark.slow
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


def test_some_ids_are_those_of_the_list_of_all():
    index, bounded = NodeIndex(), BoundedIndex(4)
    for each in (index, bounded):
        each.find_or_add(["a", 2**70, 3, 0.5, ("b", 1), "a", True])
        ids, numbers = each.ids, np.array([3, 0, 3, 1])
        assert each.ids_at(numbers) == [ids[number] for number in numbers]
        assert each.ids_at(np.arange(len(each))) == ids
        assert each.ids_at(numbers[:0]) == []
