"""Convert a column of a block (texts, numbers or JSON values) to ids or values, and find what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spidertensor.missing import MISSING_ID
from spidertensor.spider.likelihoods import GAUSSIAN, Likelihood

Wrong = dict[int, str]  # place in the column -> reason

MISSING = "is missing"
NO_NUMBER = " is not a number"  # how a reason ends

_NAN = "nan is not finite"
_PLAIN_INT = re.compile("0|-?[1-9][0-9]{0,18}")
_FIRST_OF_INT = frozenset("-0123456789")


def to_ids(column: Any, *, find_ints: bool, empty_is_missing: bool) -> tuple[NDArray[Any], Wrong]:
    """Ids as int64 if all are, else as objects; those at the wrong places are arbitrary."""
    if isinstance(column, list):
        return _object_ids(column)
    if pa.types.is_dictionary(column.type):
        known, is_short = column.dictionary, len(column.dictionary) <= len(column)
        if is_text(known.type) and is_short and not known.null_count and not find_ints:
            return _text_ids(column, find_ints, empty_is_missing)
        column = column.dictionary_decode()
    if is_text(column.type):
        return _text_ids(column, find_ints, empty_is_missing)
    if pa.types.is_integer(column.type) and not column.null_count:
        return column.to_numpy(zero_copy_only=False), {}
    return _object_ids(column.to_pylist())


def _text_ids(column: pa.Array, find_ints: bool, empty_is_missing: bool) -> tuple[NDArray[Any], Wrong]:
    # Look at the first text before casting: arrow is slow to find out that a column is not of ints.
    if find_ints and len(column) and isinstance(plain_id(column[0].as_py()), int):
        try:
            ints = column.cast(pa.int64())
            if column.equals(ints.cast(pa.string())):  # arrow also reads "042" and "0x2a" as 42
                return ints.to_numpy(), {}
        except pa.ArrowInvalid:
            pass
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    ids: list[Any] = coded.dictionary.to_pylist()
    if find_ints:
        ids = [plain_id(text) for text in ids]
    codes = coded.indices.fill_null(-1).to_numpy()
    missing = [-1] if codes.min(initial=0) < 0 else []
    if empty_is_missing and "" in ids:
        missing.append(ids.index(""))
        ids[missing[-1]] = 0
    all_int = find_ints and set(map(type, ids)) == {int}
    known = np.array(ids, np.int64) if all_int else _objects([*ids, None])  # None: the id of code -1
    places = np.flatnonzero(np.isin(codes, missing)).tolist() if missing else []
    return known[codes], dict.fromkeys(places, MISSING)


def plain_id(text: str) -> int | str:
    if text[:1] not in _FIRST_OF_INT:  # five times as fast as the pattern
        return text
    if _PLAIN_INT.fullmatch(text) and -(2**63) <= int(text) < 2**63:
        return int(text)
    return text


def _object_ids(column: list[Any]) -> tuple[NDArray[Any], Wrong]:
    wrong = {}
    for place, raw in enumerate(column):
        if raw is None or raw != raw:  # NaN
            wrong[place] = MISSING
        elif not isinstance(raw, int | str | float | bytes):
            wrong[place] = f"is a {type(raw).__name__}, which cannot be an id"
        elif isinstance(raw, float) and not isfinite(raw):
            wrong[place] = "is infinite"
    return _objects(column), wrong


def _objects(column: list[Any]) -> NDArray[Any]:
    return np.fromiter(column, object, len(column))  # np.array would split a list


def to_cells(column: Any, *, empty_is_missing: bool) -> NDArray[Any]:
    """The cells of an attribute, which may have any type: None, NaN or NaT where missing."""
    if isinstance(column, list):
        return _objects(column)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    types, kind = pa.types, column.type
    whole = (types.is_integer(kind) or types.is_boolean(kind)) and not column.null_count
    if whole or types.is_floating(kind) or (types.is_timestamp(kind) and kind.tz is None):
        return column.to_numpy(zero_copy_only=False)
    cells = column.to_pylist()
    return _objects([each or None for each in cells] if empty_is_missing else cells)


def with_missing(ids: NDArray[Any], places: list[int]) -> NDArray[Any]:
    """Set the ids at `places` to MISSING_ID."""
    ids = ids.astype(object)
    for place in places:
        ids[place] = MISSING_ID
    return ids


def to_bin_numbers(column: Any, decimal: str) -> tuple[NDArray[np.float64], Wrong]:
    """Numbers to be binned; NaN where something is wrong. A NaN in the column counts as missing."""
    found, wrong = to_numbers(column, GAUSSIAN, decimal)
    found = np.where(np.isfinite(found), found, np.nan)
    return found, {place: MISSING if reason == _NAN else reason for place, reason in wrong.items()}


def to_numbers(column: Any, likelihood: Likelihood, decimal: str = ".") -> tuple[NDArray[np.float64], Wrong]:
    """Values that the likelihood allows; those at the wrong places are arbitrary."""
    if isinstance(column, list):
        found, wrong = _one_by_one(column, _json_number)
    elif is_text(column.type) and decimal == ",":
        found, wrong = _one_by_one(column.to_pylist(), _comma_number)
    elif is_text(column.type):
        try:
            found, wrong = column.cast(pa.float64()).to_numpy(zero_copy_only=False), {}
        except pa.ArrowInvalid:
            found, wrong = _one_by_one(column.to_pylist(), _text_number)
    else:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        missing = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)) if column.null_count else []
        wrong = dict.fromkeys(map(int, missing), MISSING)
        found = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    for place in np.flatnonzero(~likelihood.allows(found)).tolist():
        wrong.setdefault(place, f"{found[place]:g} {likelihood.refusal(found[place])[0]}")
    return found, wrong


def to_labels(column: Any, labels: tuple[str, str]) -> tuple[NDArray[np.float64], Wrong]:
    """Map the first label to 0 and the second to 1, by their texts: 1 and true count as "1" and "true"."""
    if not isinstance(column, list):
        column = column.to_pylist()
    found, wrong, number = np.zeros(len(column)), {}, {labels[0]: 0.0, labels[1]: 1.0}
    for place, raw in enumerate(column):
        value = number.get(raw if isinstance(raw, str) else _label_text(raw))
        if value is not None:
            found[place] = value
        elif raw is None or raw == "":
            wrong[place] = "is missing"
        else:
            wrong[place] = f"{raw!r:.40} is not {labels[0]!r:.40} or {labels[1]!r:.40}"
    return found, wrong


def _label_text(raw: Any) -> str:
    if isinstance(raw, bool):
        return "true" if raw else "false"
    if isinstance(raw, float) and raw.is_integer():
        raw = int(raw)
    return str(raw)


def _one_by_one(column: list[Any], number: Callable[[Any], float]) -> tuple[NDArray[np.float64], Wrong]:
    found, wrong = np.full(len(column), np.nan), {}
    for place, raw in enumerate(column):
        if raw is None or raw == "":
            wrong[place] = MISSING
            continue
        try:
            found[place] = number(raw)
        except (ValueError, TypeError, OverflowError):
            wrong[place] = f"{raw!r:.40}{NO_NUMBER}" + _hint(raw, number)
    return found, wrong


_WITH_COMMA = re.compile(r"\s*[-+]?\d*,\d+\s*", re.ASCII)


def _hint(raw: Any, number: Callable[[Any], float]) -> str:
    if number is _comma_number and isinstance(raw, str) and "." in raw:
        return " with a decimal comma; thousands separators are not supported"
    if number is _text_number and isinstance(raw, str) and _WITH_COMMA.fullmatch(raw):
        return ": for a decimal comma pass --decimal ,"
    return ""


def _comma_number(text: str) -> float:
    if "." in text:
        raise ValueError
    return _text_number(text.replace(",", "."))


def _text_number(text: str) -> float:
    if "_" in text or not text.isascii():  # float() accepts 1_0 and non-ASCII digits
        raise ValueError
    return float(text)


def _json_number(raw: Any) -> float:
    if not isinstance(raw, int | float):  # float() would parse a text
        raise TypeError
    return float(raw)


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
