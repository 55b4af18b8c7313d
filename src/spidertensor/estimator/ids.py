"""The nodes of a mode: raw ids are numbered 0, 1, 2, ... in order of first appearance.

An id is an int, str, bytes, float or bool, or a tuple of these; NumPy scalars and subclasses become the plain
Python object. Anything else is an error, since it could not be saved without pickle. Ids compare as in
Python: 1, 1.0 and True are one node, which keeps the id that came first.

The number of a node is its row in the arrays of a state. In errors, "row" means a row of the input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, pairwise, repeat
from math import isfinite, isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.inputs import Column, Columns, no_id, wrong_width
from spidertensor.faults import EntryError

TABLE_LIMIT = 2**22  # only ids below it are in the lookup table: at most 16 MiB per mode
SLOTS_PER_NODE = 8  # at most; otherwise a single large id in a file would allocate megabytes
FEWEST_SLOTS = 64
BLOCK = 2**16  # ids mapped at once: bounds temporary memory, and later blocks find new ids in the table
MAX_DEPTH = 32  # nesting of tuples

_PLAIN = frozenset({int, str, bytes, bool})  # exactly these types need no conversion and no check
_ROWS = frozenset({tuple, list})  # accepted containers for the ids of one entry
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


class _Wide:
    """The key of an id whose hash anyone can compute and make collide: an integer beyond 64 bits or a tuple.

    Python hashes numbers modulo 2**61 - 1, so a thousand chosen integers can share one hash and a dict of
    them takes quadratic time. Hashes of texts have a secret that is drawn anew in every process.
    """

    __slots__ = ("_hash", "raw")

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self._hash = hash(_text(raw))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Wide) and self.raw == other.raw

    def __reduce__(self) -> tuple[type[_Wide], tuple[Any]]:  # another process has another secret
        return _Wide, (self.raw,)


def _text(raw: Any) -> str:
    """A text that is the same for equal ids, as 1, 1.0 and True are."""
    if type(raw) is tuple:
        return f"({','.join(map(_text, raw))})"
    if type(raw) is bool or (type(raw) is float and raw.is_integer()):
        raw = int(raw)
    return hex(raw) if type(raw) is int else repr(raw)


_HASHED_WELL = frozenset({str, bytes, bool})


def key_of(raw: Any) -> Any:
    """What stands for a checked id in a dict."""
    if type(raw) is tuple or (type(raw) in (int, float) and not -(2**63) <= raw < 2**63):
        return _Wide(raw)
    return raw


def keys_of(ids: Sequence[Any]) -> Sequence[Any]:
    return ids if _HASHED_WELL.issuperset(map(type, ids)) else list(map(key_of, ids))


def id_of_key(key: Any) -> Any:
    return key.raw if type(key) is _Wide else key


class _Numbers(dict[Any, int]):
    """Number by key. Subscripting adds an unseen key and runs in C for a known one; `get` never adds."""

    def __missing__(self, raw: Any) -> int:
        self[raw] = number = len(self)
        return number


class NodeIndex:
    """The nodes of one mode: raw ids -> numbers 0, 1, 2, ... in order of first appearance.

    The dict holds all ids. The table is a much faster copy for small non-negative ints: `table[id]` is the
    number, or -1 for "ask the dict". Its last slot is always -1 and stands for every int outside the table.
    Its size is limited by the number of nodes, so a large id among few is only in the dict.
    """

    evicted = 0  # number of evicted nodes (eviction.py)

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = _Numbers()
        self._table = np.full(1, -1, dtype=np.int32)
        self._last = np.uint64(0)  # index of the last slot of the table

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def ids(self) -> list[Any]:
        """The raw ids in order of their numbers."""
        return list(map(id_of_key, self._numbers))

    def ids_at(self, numbers: NDArray[np.int64]) -> list[Any]:
        """The raw ids of some nodes, without making a list of all."""
        chosen = np.zeros(len(self), np.uint8)
        chosen[numbers] = 1
        found = map(id_of_key, compress(self._numbers, chosen.tobytes()))
        raw_of = dict(zip(np.flatnonzero(chosen).tolist(), found, strict=True))
        return [raw_of[number] for number in numbers.tolist()]

    @property
    def kinds(self) -> tuple[str, ...]:
        """Sorted type names of the ids: bool, bytes, float, int, str, tuple."""
        return tuple(sorted(kind.__name__ for kind in set(map(type, self.ids))))

    def find(self, ids: Column) -> NDArray[np.int64]:
        """The number of each id, -1 for unseen ids. Adds nothing."""
        return self._map(checked_ids(ids), add=False)

    def find_or_add(self, ids: Column) -> NDArray[np.int64]:
        """The number of each id; unseen ids are added. On error nothing is added."""
        return self._map(checked_ids(ids), add=True)

    def numbers(self, checked: Column, *, add: bool) -> NDArray[np.int64]:
        """The number of each id that has passed `checked_ids`; -1 for unseen ids unless `add`."""
        return self._map(checked, add=add)

    def number_of(self, checked: Any) -> int:
        """The number of one id that has passed `checked_ids`; -1 if it is unseen."""
        return self._numbers.get(key_of(checked), -1)

    def truncate(self, n: int) -> None:
        """Remove all nodes but the first n: undoes `find_or_add` when a later step fails."""
        while len(self._numbers) > n:
            self._numbers.popitem()
        self._table[self._table >= n] = -1

    def without(self, numbers: set[int]) -> NodeIndex:
        """A copy without the nodes with these numbers; the others are renumbered in the same order."""
        twin = NodeIndex()
        twin.find_or_add([raw for number, raw in enumerate(self.ids) if number not in numbers])
        return twin

    def reordered(self, order: NDArray[np.int64]) -> NodeIndex:
        """A copy whose number n is number order[n] of this one."""
        twin, ids = NodeIndex(), self.ids
        twin.find_or_add([ids[number] for number in order.tolist()])
        return twin

    def parse(self, texts: Sequence[str]) -> list[Any]:
        """Parse texts from a command line as known ids; a text that matches none is returned unchanged.

        Tries the types of this mode's ids: int, float, bool, str, bytes, then tuple (as Python prints it).
        """
        kinds = self.kinds
        return [self._parse(text, kinds) for text in texts]

    def _parse(self, text: str, kinds: Sequence[str]) -> Any:
        for kind, read in _READ.items():
            if kind in kinds:
                try:
                    raw = read(text)
                except (ValueError, KeyError):
                    continue
                if self.number_of(raw) >= 0:
                    return raw
        tuples = (raw for raw in self.ids if type(raw) is tuple) if "tuple" in kinds else ()
        return next((raw for raw in tuples if str(raw) == text), text)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The ids with their types as arrays that need no pickle; `from_arrays` restores them exactly."""
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
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> NodeIndex:
        """The inverse of `to_arrays`. ValueError for anything it does not write."""
        index = cls()
        try:
            found = 0
            for ids in _ids_from(arrays):
                index._map(ids, add=True)
                found += len(ids)
            if len(index) != found:
                raise ValueError(f"{found - len(index)} of {found} ids are duplicates")
        except (ValueError, OverflowError, RecursionError) as error:  # huge float, deep nesting
            raise ValueError(f"cannot read node ids: {error}") from error
        return index

    def _map(self, ids: Column, *, add: bool) -> NDArray[np.int64]:
        """The numbers of ids that have passed `checked_ids`."""
        if not isinstance(ids, np.ndarray):
            return self._ask_dict(keys_of(ids), add=add)
        if len(ids) <= BLOCK:
            return self._map_ints(ids, add=add)
        blocks = (ids[start : start + BLOCK] for start in range(0, len(ids), BLOCK))
        return np.concatenate([self._map_ints(block, add=add) for block in blocks])

    def _map_ints(self, ids: NDArray[np.int64], *, add: bool) -> NDArray[np.int64]:
        # As unsigned, a negative id is huge, so one minimum maps every id outside the table to the last slot.
        slots = np.minimum(ids.view(np.uint64), self._last).view(np.int64)
        numbers = self._table[slots].astype(np.int64)
        unknown = (numbers < 0).nonzero()[0]
        if unknown.size:
            asked = ids[unknown]
            numbers[unknown] = answer = self._ask_dict(asked.tolist(), add=add)
            if add:
                self._tabulate(asked, answer)
        return numbers

    def _ask_dict(self, keys: Sequence[Any], *, add: bool) -> NDArray[np.int64]:
        numbers = map(self._numbers.__getitem__, keys) if add else map(self._numbers.get, keys, repeat(-1))
        return np.fromiter(numbers, np.int64, len(keys))

    def _tabulate(self, ids: NDArray[np.int64], numbers: NDArray[np.int64]) -> None:
        slots = max(FEWEST_SLOTS, SLOTS_PER_NODE * len(self._numbers))
        small = ids.view(np.uint64) < min(slots, TABLE_LIMIT)
        if not small.any():
            return
        ids, numbers = ids[small], numbers[small]
        top = int(ids.max())
        if top >= self._last:
            grown = np.full(2 ** top.bit_length() + 1, -1, dtype=np.int32)
            grown[: len(self._table)] = self._table
            self._table, self._last = grown, np.uint64(len(grown) - 1)
        self._table[ids] = numbers


def plain_numbers(nodes: Sequence[NodeIndex], ids: Any) -> list[int] | None:
    """The numbers of one entry's ids, -1 for unseen ids. None if anything needs conversion, checking or a key
    of its own, which `to_index` does."""
    if type(ids) not in _ROWS or len(ids) != len(nodes):
        return None
    numbers = []
    for mode, raw in zip(nodes, ids):  # noqa: B905 (equal lengths; strict is slower)
        if type(raw) not in _PLAIN:
            return None
        number = mode._numbers.get(raw, -1)
        if number < 0 and key_of(raw) is not raw:
            return None
        numbers.append(number)
    return numbers


def to_index(nodes: Sequence[NodeIndex], columns: Columns, *, add: bool) -> NDArray[np.int64]:
    """(n, K) the node number of each id, -1 for unseen ids unless `add`.

    All ids of all modes are checked before the first is added.
    """
    if not columns.ids:  # an empty list of entries has no number of modes
        return np.empty((0, len(nodes)), dtype=np.int64)
    if len(columns.ids) != len(nodes):
        raise wrong_width(len(nodes), len(columns.ids))
    checked = []
    for mode, column in enumerate(columns.ids):
        if column is None:  # a mode without ids
            checked.append(None)
            continue
        try:
            checked.append(checked_ids(column))
        except EntryError as error:
            raise error.but(column=mode if columns.names is None else columns.names[mode]) from None
    index = np.empty((columns.n_entries, len(nodes)), dtype=np.int64)
    for mode, ids in enumerate(checked):
        index[:, mode] = -1 if ids is None else nodes[mode]._map(ids, add=add)
    return index


def checked_ids(ids: Column, noun: str = "id") -> Column:
    """The ids as an int64 array or a sequence of plain Python objects; EntryError if one is not allowed.

    noun: what errors call them, if they are the values of an attribute
    """
    if isinstance(ids, np.ndarray):
        if ids.ndim != 1:
            raise EntryError(f"the ids of one mode must be 1-D, got shape {ids.shape}")
        if ids.dtype == np.int64:
            return ids
        kind = ids.dtype.kind
        if kind == "c":
            raise no_id(f"Complex data not supported: {ids.dtype}", noun=noun)
        if kind == "i" or (kind == "u" and ids.max(initial=0) < 2**63):
            return ids.astype(np.int64)
        if kind in "mMV":  # before tolist, which turns nanoseconds into ints
            raise no_id(str(ids.dtype), noun=noun)
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
            plain.append(_plain(raw, noun))
        except EntryError as error:
            raise error.but(row=row) from None
    return plain


def _of_missing(noun: str) -> str:
    return 'leave the row out, or write an id of your own such as "unknown"' if noun == "id" else ""


def _plain(raw: Any, noun: str = "id", depth: int = 0) -> Any:
    """The id as a plain Python object; EntryError if it cannot be one."""
    if type(raw) in _PLAIN:
        return raw
    if isinstance(raw, np.generic) and raw.dtype.kind in "biufSU":
        raw = raw.item()
    if isinstance(raw, float) and not isfinite(raw):
        reason = f"missing {noun} (NaN)" if isnan(raw) else f"infinite {noun}"
        raise EntryError(reason, kind="id", value=raw, remedy=_of_missing(noun) if isnan(raw) else "")
    for kind, exact in _EXACT.items():
        if isinstance(raw, kind):
            return exact(raw)
    if isinstance(raw, tuple):
        if depth == MAX_DEPTH:
            raise EntryError(f"{noun} nested more than {MAX_DEPTH} tuples deep", kind="id", value=raw)
        return tuple(_plain(part, noun, depth + 1) for part in raw)
    if raw is None or type(raw).__name__ in ("NAType", "NaTType"):  # from pandas, without importing it
        raise EntryError(f"missing {noun} ({raw})", kind="id", value=raw, remedy=_of_missing(noun))
    raise no_id(type(raw).__name__, raw, noun)


def _encode(text: str) -> bytes:
    # surrogatepass: a str may contain a lone surrogate (from a file name or damaged input)
    return text.encode("utf-8", "surrogatepass")


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


_UNTAG = {"int": lambda text: int(text, 16), "float": float.fromhex, "bytes": bytes.fromhex, "str": str}


def _tag(raw: Any) -> list[Any]:
    """An id as JSON: its type and its value, in hexadecimal where JSON would lose digits."""
    kind = type(raw)
    if kind is tuple:
        return ["tuple", [_tag(part) for part in raw]]
    return [kind.__name__, _WRITE[kind](raw) if kind in _WRITE else raw]


# --- reading: takes no more memory than the ids themselves, since a file may be hostile ---

_SPACE = r"[ \t\n\r]*"
_OPEN, _COMMA, _CLOSE = (re.compile(_SPACE + mark + _SPACE) for mark in (r"\[", ",", r"\]"))
_KIND = re.compile(rf'\[{_SPACE}"(int|float|bytes|str|bool|tuple)"{_SPACE},{_SPACE}')
_BOOL = re.compile("true|false")
_JSON = json.JSONDecoder()


def _ids_from(arrays: Mapping[str, NDArray[Any]]) -> Iterator[Column]:
    """The ids in the arrays of `to_arrays`, in blocks, all checked."""
    arrays = dict(arrays)  # copied because an .npz reads its file at every access
    dtypes = {name: (array.dtype, array.ndim) for name, array in arrays.items()}
    int64, uint8 = (np.dtype(np.int64), 1), (np.dtype(np.uint8), 1)
    if dtypes == {"int": int64}:
        yield arrays["int"]
    elif dtypes == {"json": uint8}:
        yield from _ids_from_json(_decode(arrays["json"].tobytes()))
    elif dtypes == {"utf8": uint8, "offsets": int64}:
        yield from _ids_from_texts(arrays["utf8"].tobytes(), arrays["offsets"])
    else:
        raise ValueError(f"unknown arrays {str(dtypes)[:200]}")


def _ids_from_texts(data: bytes, cuts: NDArray[np.int64]) -> Iterator[list[str]]:
    whole = len(cuts) and cuts[0] == 0 and cuts[-1] == len(data)
    if not whole or (cuts[1:] < cuts[:-1]).any():
        raise ValueError("the offsets do not match the text")
    for start in range(0, len(cuts) - 1, BLOCK):
        yield [_decode(data[a:b]) for a, b in pairwise(cuts[start : start + BLOCK + 1].tolist())]


def _ids_from_json(text: str) -> Iterator[list[Any]]:
    """The inverse of `_tag`, id by id: a general JSON parser would first build lists 25 times as large."""
    at, block = _end(_OPEN, text, 0), []
    more = not _CLOSE.match(text, at)
    while more:
        raw, at = _untag(text, at)
        block.append(raw)
        if len(block) == BLOCK:
            yield block
            block = []
        more = not _CLOSE.match(text, at)
        at = _end(_COMMA, text, at) if more else at
    yield block
    if _end(_CLOSE, text, at) != len(text):
        raise ValueError("text after the list of ids")


def _untag(text: str, at: int, depth: int = 0) -> tuple[Any, int]:
    """The tagged id that begins at position `at`, and the position after it."""
    found = _KIND.match(text, at)
    if found is None:
        raise ValueError(f"not a tagged id: {text[at : at + 60]}")
    kind, at = found[1], found.end()
    if kind == "tuple":
        raw, at = _untag_parts(text, at, depth)
    elif kind == "bool":
        end = _end(_BOOL, text, at)
        raw, at = text[at:end] == "true", end
    else:
        if text[at : at + 1] != '"':
            raise ValueError(f"not a tagged id: {text[at : at + 60]}")
        value, at = _JSON.raw_decode(text, at)
        raw = _UNTAG[kind](value)
        if kind == "float" and not isfinite(raw):
            raise ValueError("a float that is not finite")
    return raw, _end(_CLOSE, text, at)


def _untag_parts(text: str, at: int, depth: int) -> tuple[tuple[Any, ...], int]:
    if depth == MAX_DEPTH:
        raise ValueError(f"id nested more than {MAX_DEPTH} tuples deep")
    parts: list[Any] = []
    at = _end(_OPEN, text, at)
    while not (closed := _CLOSE.match(text, at)):
        part, at = _untag(text, _end(_COMMA, text, at) if parts else at, depth + 1)
        parts.append(part)
    return tuple(parts), closed.end()


def _end(token: re.Pattern[str], text: str, at: int) -> int:
    found = token.match(text, at)
    if found is None:
        raise ValueError(f"not a list of tagged ids: {text[at : at + 60]}")
    return found.end()
