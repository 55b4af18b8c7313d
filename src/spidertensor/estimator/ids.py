"""The nodes of a mode: raw ids become rows 0, 1, 2, ... in order of first appearance.

An id is an int, str, bytes, float or bool, or a tuple of these; NumPy scalars and subclasses become the plain
Python object. Anything else could not be saved without pickle, so it is an error. Ids compare as Python
compares them: 1, 1.0 and True are one node, which keeps the id that came first.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise, repeat
from math import isfinite, isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.inputs import Column, EntryError, no_id, wrong_width

TABLE_LIMIT = 2**22  # ids below it may have a slot in a direct table: at most 16 MiB per mode
BLOCK = 2**16  # ints mapped at once: bounds temporary memory, and a block finds what the one before it added
MAX_DEPTH = 32  # of nested tuples

_PLAIN = frozenset({int, str, bytes, bool})  # exactly these types: nothing to convert, nothing to check
_EXACT = {  # a subclass may redefine str(x) but not str.__str__(x); bool first, since a bool is an int
    bool: bool,
    int: int.__int__,
    str: str.__str__,
    bytes: bytes.__bytes__,
    float: float.__float__,
}
_BOOLS = {"True": True, "true": True, "False": False, "false": False}
_READ = {"int": int, "float": float, "bool": _BOOLS.__getitem__, "str": str, "bytes": str.encode}
_WRITE = {int: hex, float: float.hex, bytes: bytes.hex}  # str and bool are JSON already


class _Rows(dict[Any, int]):
    """id -> row. Subscripting adds an unseen id, and stays in C for a known one; `get` never adds."""

    def __missing__(self, raw: Any) -> int:
        self[raw] = row = len(self)
        return row


class NodeIndex:
    """The nodes of one mode: raw ids -> rows 0, 1, 2, ... in order of first appearance.

    The dict is the truth. The table repeats it for small non-negative ints, many times faster: `table[id]` is
    the row, or -1 for "ask the dict". Its last slot stays -1 and stands for every int outside the table.
    """

    def __init__(self) -> None:
        self._rows = _Rows()
        self._table = np.full(1, -1, dtype=np.int32)
        self._last = np.uint64(0)  # slot of the table

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def ids(self) -> list[Any]:
        """The raw ids in row order."""
        return list(self._rows)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of id this mode has, sorted; of: bool, bytes, float, int, str, tuple."""
        return tuple(sorted(kind.__name__ for kind in set(map(type, self._rows))))

    def find(self, ids: Column) -> NDArray[np.int64]:
        """The row of each id, -1 for one never seen. Adds nothing."""
        return self._map(_checked(ids), add=False)

    def find_or_add(self, ids: Column) -> NDArray[np.int64]:
        """The row of each id, a new one for each id never seen. After an error nothing was added."""
        return self._map(_checked(ids), add=True)

    def truncate(self, n: int) -> None:
        """Forget the nodes from row n on: undoes a `find_or_add` that something later came to nothing."""
        while len(self._rows) > n:
            self._rows.popitem()
        self._table[self._table >= n] = -1

    def parse(self, text: str) -> Any:
        """The id of this mode that a text from a command line means; the text itself if it means none.

        Read as the kinds this mode has: int, float, bool, str, bytes, then tuple (as Python prints it).
        """
        kinds = self.kinds
        for kind, read in _READ.items():
            if kind in kinds:
                try:
                    raw = read(text)
                except (ValueError, KeyError):
                    continue
                if raw in self._rows:
                    return raw
        return next((raw for raw in self._rows if type(raw) is tuple and str(raw) == text), text)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The ids, types included, as arrays that need no pickle; `from_arrays` gives them back exactly."""
        ids, kinds = self.ids, self.kinds
        if kinds in ((), ("int",)) and all(-(2**63) <= raw < 2**63 for raw in ids):
            return {"int": np.array(ids, dtype=np.int64)}
        if kinds == ("str",):
            texts = [_encode(raw) for raw in ids]
            offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
            return {"utf8": np.frombuffer(b"".join(texts), dtype=np.uint8), "offsets": offsets}
        text = json.dumps([_tag(raw) for raw in ids], ensure_ascii=False, separators=(",", ":"))
        return {"json": np.frombuffer(_encode(text), dtype=np.uint8)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "NodeIndex":
        """The inverse of `to_arrays`. Trusts nothing: ValueError for what `to_arrays` does not write."""
        index = cls()
        try:
            ids = _ids_from(arrays)
            index.find_or_add(ids)
            if len(index) != len(ids):
                raise ValueError(f"{len(ids) - len(index)} of {len(ids)} ids are duplicates")
        except (ValueError, OverflowError, RecursionError) as error:  # huge float, deep nesting
            raise ValueError(f"cannot read node ids: {error}") from error
        return index

    def _map(self, ids: Column, *, add: bool) -> NDArray[np.int64]:
        """Rows of ids that `_checked` has passed."""
        if not isinstance(ids, np.ndarray):
            return self._ask_dict(ids, add=add)
        if len(ids) <= BLOCK:
            return self._map_ints(ids, add=add)
        blocks = (ids[start : start + BLOCK] for start in range(0, len(ids), BLOCK))
        return np.concatenate([self._map_ints(block, add=add) for block in blocks])

    def _map_ints(self, ids: NDArray[np.int64], *, add: bool) -> NDArray[np.int64]:
        # As unsigned a negative id is huge, so one minimum sends every id outside the table to the last slot.
        slots = np.minimum(ids.view(np.uint64), self._last).view(np.int64)
        rows = self._table[slots].astype(np.int64)
        unknown = (rows < 0).nonzero()[0]
        if unknown.size:
            asked = ids[unknown]
            rows[unknown] = answer = self._ask_dict(asked.tolist(), add=add)
            if add:
                self._tabulate(asked, answer)
        return rows

    def _ask_dict(self, ids: Sequence[Any], *, add: bool) -> NDArray[np.int64]:
        rows = map(self._rows.__getitem__, ids) if add else map(self._rows.get, ids, repeat(-1))
        return np.fromiter(rows, np.int64, len(ids))

    def _tabulate(self, ids: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        small = ids.view(np.uint64) < TABLE_LIMIT
        if not small.any():
            return
        ids, rows = ids[small], rows[small]
        top = int(ids.max())
        if top >= self._last:
            grown = np.full(2 ** top.bit_length() + 1, -1, dtype=np.int32)
            grown[: len(self._table)] = self._table
            self._table, self._last = grown, np.uint64(len(grown) - 1)
        self._table[ids] = rows


def rows(
    nodes: Sequence[NodeIndex], columns: Sequence[Column], *, add: bool, names: Sequence[str] | None = None
) -> NDArray[np.int64]:
    """Each column of ids through the nodes of its mode: (n, K) rows, -1 for an unseen id unless `add`.

    All or nothing: every id of every mode is checked before the first is added. names: of the columns
    """
    if not columns:  # an empty list of entries does not say how many modes it has
        return np.empty((0, len(nodes)), dtype=np.int64)
    if len(columns) != len(nodes):
        raise EntryError(wrong_width(len(nodes), len(columns)))
    lengths = [len(column) for column in columns]
    if lengths.count(lengths[0]) != len(lengths):
        raise EntryError(f"columns differ in length: {lengths}")
    checked = []
    for mode, column in enumerate(columns):
        try:
            checked.append(_checked(column))
        except EntryError as error:
            where = f"mode {mode}" if names is None else f"column {names[mode]}"
            raise EntryError(f"{where}: {error.reason}", error.row) from None
    index = np.empty((lengths[0], len(nodes)), dtype=np.int64)
    for mode, ids in enumerate(checked):
        index[:, mode] = nodes[mode]._map(ids, add=add)
    return index


def _checked(ids: Column) -> Column:
    """The same ids, all allowed: an int64 array, or a sequence of plain Python objects."""
    if isinstance(ids, np.ndarray):
        if ids.ndim != 1:
            raise EntryError(f"the ids of one mode must be 1-D, got shape {ids.shape}")
        if ids.dtype == np.int64:
            return ids
        kind = ids.dtype.kind
        if kind == "c":
            raise EntryError(f"Complex data not supported: {no_id(str(ids.dtype))}")
        if kind == "i" or (kind == "u" and ids.max(initial=0) < 2**63):
            return ids.astype(np.int64)
        if kind in "mMV":  # before tolist, which turns nanoseconds into ints
            raise EntryError(no_id(str(ids.dtype)))
        ids = ids.tolist()
    kinds = set(map(type, ids))
    if kinds == {int}:
        try:
            return np.array(ids, dtype=np.int64)
        except OverflowError:
            return ids
    if kinds <= _PLAIN or (kinds == {float} and all(map(isfinite, ids))):
        return ids
    plain = []
    for row, raw in enumerate(ids):
        try:
            plain.append(_plain(raw))
        except EntryError as error:
            raise EntryError(error.reason, row) from None
    return plain


def _plain(raw: Any, depth: int = 0) -> Any:
    """The id as a plain Python object; EntryError if it cannot be one."""
    if type(raw) in _PLAIN:
        return raw
    if isinstance(raw, np.generic) and raw.dtype.kind in "biufSU":
        raw = raw.item()
    if isinstance(raw, float) and not isfinite(raw):
        raise EntryError("missing id (NaN)" if isnan(raw) else "infinite id")
    for kind, exact in _EXACT.items():
        if isinstance(raw, kind):
            return exact(raw)
    if isinstance(raw, tuple):
        if depth == MAX_DEPTH:
            raise EntryError(f"id nested more than {MAX_DEPTH} tuples deep")
        return tuple(_plain(part, depth + 1) for part in raw)
    if raw is None or type(raw).__name__ in ("NAType", "NaTType"):  # pandas' own, without importing pandas
        raise EntryError(f"missing id ({raw})")
    raise EntryError(no_id(type(raw).__name__))


def _encode(text: str) -> bytes:
    # surrogatepass: a lone surrogate (a file name, a broken source) is a legal str and must come back
    return text.encode("utf-8", "surrogatepass")


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _tag(raw: Any) -> list[Any]:
    """An id for JSON: its kind and its value, in hexadecimal where JSON would lose or refuse digits."""
    kind = type(raw)
    if kind is tuple:
        return ["tuple", [_tag(part) for part in raw]]
    return [kind.__name__, _WRITE[kind](raw) if kind in _WRITE else raw]


def _untag(tagged: Any) -> Any:
    match tagged:
        case ["int", str(text)]:
            return int(text, 16)
        case ["float", str(text)]:
            return float.fromhex(text)
        case ["bytes", str(text)]:
            return bytes.fromhex(text)
        case ["str", str(raw)] | ["bool", bool(raw)]:
            return raw
        case ["tuple", list(parts)]:
            return tuple(map(_untag, parts))
    raise ValueError(f"not a tagged id: {str(tagged)[:60]}")


def _ids_from(arrays: Mapping[str, NDArray[Any]]) -> Column:
    """The ids in the arrays of `to_arrays`, not yet checked one by one."""
    arrays = dict(arrays)  # once: an .npz reads its file at every access
    dtypes = {name: (array.dtype, array.ndim) for name, array in arrays.items()}
    int64, uint8 = (np.dtype(np.int64), 1), (np.dtype(np.uint8), 1)
    if dtypes == {"int": int64}:
        return arrays["int"]
    if dtypes == {"json": uint8}:
        tagged = json.loads(_decode(arrays["json"].tobytes()))
        if not isinstance(tagged, list):
            raise ValueError("not a list")
        return [_untag(each) for each in tagged]
    if dtypes != {"utf8": uint8, "offsets": int64}:
        raise ValueError(f"unknown arrays {dtypes}")
    data, cuts = arrays["utf8"].tobytes(), arrays["offsets"].tolist()
    if not cuts or cuts[0] != 0 or cuts[-1] != len(data) or any(a > b for a, b in pairwise(cuts)):
        raise ValueError("offsets do not cut the text")
    return [_decode(data[a:b]) for a, b in pairwise(cuts)]
