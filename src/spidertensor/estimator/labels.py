"""The two labels of a classifier, found in y or given, and their encoding as 0 and 1.

A label is a bool, an integer or a string; a float without decimals counts as an integer. Labels compare as in
Python: True equals 1, "1" does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator import inputs
from spidertensor.faults import EntryError

Label = bool | int | str
Classes = tuple[Label, Label]  # the labels encoded as 0 and as 1

ZERO_ONE: Classes = (0, 1)
LONGEST = 1000  # characters of a label: the header of a file, which holds the labels, is small
_LARGEST = np.iinfo(np.int64).max
# the wording of scikit-learn, which its users know and its checks match
_ONLY_TWO = "Only binary classification is supported."


def encoded(y: Any, n: int, classes: Classes | None) -> tuple[NDArray[np.float64], Classes]:
    """y as n zeros and ones, and the labels they stand for: `classes`, or those found in y if None."""
    labels = _labels(y, n)
    if classes is None:
        classes = _found(labels)
    if isinstance(labels, list):
        number = {classes[0]: 0.0, classes[1]: 1.0}
        value = np.array([number.get(label, math.nan) for label in labels], np.float64)
    elif isinstance(classes[0], str):
        value = np.full(len(labels), np.nan)
    else:
        value = np.where(labels == classes[1], 1.0, np.where(labels == classes[0], 0.0, np.nan))
    if np.isnan(value).any():
        row = int(np.isnan(value).argmax())
        label = labels[row] if isinstance(labels, list) else labels[row].item()
        reason = f"label {label!r:.80} is not {shown(classes, 'or')}"
        numbers = not isinstance(classes[0], str)
        remedy = _ONLY_TWO + (" Numbers and ordered levels are for SpiderRegressor." if numbers else "")
        raise EntryError(reason, row, kind="value", value=label, remedy=remedy)
    return value, classes


def agreed(known: Classes | None, given: Any) -> Classes | None:
    """The classes `known` from earlier calls, else those `given`. EntryError if they differ."""
    if given is None:
        return known
    labels = [_label(each, None) for each in np.asarray(given, object).ravel()]
    if known is not None:
        if set(labels) != set(known):
            raise EntryError(f"the classes are {shown(known)}, got classes={labels!r:.200}", kind="classes")
        return known
    if len(labels) != 2 or not are_classes(labels):
        reason = f"classes must be two different labels, both text or both numbers, got {labels!r:.200}"
        raise EntryError(reason, kind="classes", remedy=_ONLY_TWO)
    return _of_one_type(labels)


def are_classes(labels: Any) -> bool:
    """Whether this is two different labels of one type; accepts anything, so usable on file contents."""
    match labels:
        case [str(one), str(other)]:
            return one != other and max(len(one), len(other)) <= LONGEST
        case [int(one), int(other)]:
            return one != other and max(abs(one), abs(other)) <= _LARGEST
    return False


def in_order(classes: Classes) -> list[Label]:
    """The labels sorted, as in scikit-learn."""
    return sorted(classes)  # pyright: ignore[reportArgumentType] (they are of one type)


def are_zero_one(classes: Classes) -> bool:
    """Whether the labels are the integers 0 and 1 (not bools), which files do not store."""
    return classes == ZERO_ONE and not any(isinstance(each, bool) for each in classes)


def shown(classes: Classes, word: str = "and") -> str:
    return f"{classes[0]!r:.80} {word} {classes[1]!r:.80}"


def _labels(y: Any, n: int) -> NDArray[Any] | list[Label]:
    """The labels in y: an array of bools or integers, or a list."""
    column = inputs.one_column(y, n)
    if column.dtype.kind == "O":
        return [_label(each, row) for row, each in enumerate(column)]
    if column.dtype.kind in "fu":
        good = (np.abs(column) < _LARGEST) & (column == np.floor(column))  # False for NaN
        if not good.all():
            row = int(good.argmin())
            _label(column[row].item(), row)
        column = column.astype(np.int64)
    return column


def _label(raw: Any, row: int | None) -> Label:
    if isinstance(raw, str):
        if len(raw) > LONGEST:
            reason = f"label {raw!r:.80}... is longer than {LONGEST:,} characters"
            raise EntryError(reason, row, kind="value", value=raw)
        return str(raw)
    if isinstance(raw, bool | np.bool_):
        return bool(raw)
    number = raw if isinstance(raw, int) else inputs.number(raw, row)
    if not math.isfinite(number):
        raise EntryError(f"value {number:g} is not finite", row, kind="value", value=number)
    if number != int(number):
        reason = f"continuous value {number:g} is not a label"
        raise EntryError(reason, row, kind="value", value=number, remedy=_ONLY_TWO)
    if abs(number) > _LARGEST:
        raise EntryError("label does not fit 64 bits", row, kind="value", value=number)
    return int(number)


def _found(labels: NDArray[Any] | list[Label]) -> Classes:
    """The first two labels that occur, sorted. `encoded` reports a third."""
    if isinstance(labels, list):
        distinct = list(dict.fromkeys(labels))
    else:
        values, places = np.unique(labels, return_index=True)
        distinct = values[np.argsort(places)].tolist()
    if len(distinct) < 2:
        return _with_one(distinct)
    if not are_classes(distinct[:2]):
        reason = f"label {distinct[1]!r:.80} beside {distinct[0]!r:.80}: labels are all text or all numbers"
        raise EntryError(reason, list(labels).index(distinct[1]), kind="value", value=distinct[1])
    negative, positive = sorted(distinct[:2])
    return _of_one_type([negative, positive])


def _with_one(distinct: list[Any]) -> Classes:
    match distinct:
        case []:
            return ZERO_ONE
        case [bool()]:
            return False, True
        case [0 | 1]:
            return ZERO_ONE
    raise EntryError(
        f"all labels are {distinct[0]!r:.80}, so the other class is not known",
        kind="classes",
        remedy=f"name both in the first call: partial_fit(X, y, classes=[..., {distinct[0]!r:.80}])",
    )


def _of_one_type(labels: Iterable[Any]) -> Classes:
    """The two labels with one type: a bool next to an integer becomes an integer."""
    negative, positive = labels
    if isinstance(negative, str) or isinstance(negative, bool) == isinstance(positive, bool):
        return negative, positive
    return int(negative), int(positive)
