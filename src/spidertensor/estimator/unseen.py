"""Warn about unseen ids in a prediction whose learned ids have another form, such as "7" for 7.

If a file is read with other types than the one learned, all ids are unseen: every prediction is that of the
prior, and nothing fails. So unseen ids are also looked up in the forms that spreadsheets, data frames and CSV
files commonly turn ids into.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator import number_ids
from spidertensor.estimator.ids import NodeIndex
from spidertensor.estimator.inputs import Column
from spidertensor.estimator.parameters import plain
from spidertensor.faults import SpiderWarning

MANY_IDS = 10  # distinct unseen ids that are reported without a known reason: fewer may just be new
SAMPLE_ROWS = 1_000  # of a mode, to look at
MOST_DIGITS = 20  # to which leading zeros are added

ZEROS = "their leading zeros differ from those in the model"
DECIMALS = "they are written with other decimals than in the model"
SPACES = "the spaces around them differ from those in the model"
CASE = "their case differs from that in the model"

_DIGITS = re.compile(r"[+-]?[0-9]{1,18}")
_DECIMALS = re.compile(r"-?[0-9]{1,15}\.0+")
_NAMES = {int: "integers", float: "floats", str: "text", bytes: "bytes"}


def note(
    nodes: Sequence[NodeIndex],
    columns: Mapping[int, Column],
    numbers: Mapping[int, NDArray[np.int64]],
    names: Sequence[str] | None,
    described: Collection[int] = (),
) -> SpiderWarning | None:
    """A warning if most ids of a mode are unseen and that is no coincidence, else None.

    columns, numbers: by mode, the ids of a prediction and their nodes, -1 for unseen ids
    described: modes with attributes, where many new ids may be meant: they are predicted from these
    """
    rows = {mode: np.flatnonzero(number < 0) for mode, number in numbers.items()}
    unseen = {
        mode: _sample(columns[mode], each)
        for mode, each in rows.items()
        if 2 * len(each) > len(numbers[mode])
    }
    reasons = {mode: _another_mode(mode, nodes, unseen, names) for mode in unseen}
    reasons = {mode: reason or _another_form(unseen[mode], nodes[mode]) for mode, reason in reasons.items()}
    for mode in sorted(unseen, key=lambda mode: not reasons[mode]):  # modes with a known reason first
        if reasons[mode] or (len(unseen[mode]) >= MANY_IDS and mode not in described):
            share = len(rows[mode]) / len(numbers[mode])
            column = mode if names is None else names[mode]
            reason = f"{share:.0%} of the ids were never learned"
            if not reasons[mode] and (kind := number_ids.kind_of(unseen[mode], 1.0, 0)):
                found = number_ids.warning(kind, unseen[mode][0], column)
                return found.but(reason=f"{reason}; {found.reason}")
            return SpiderWarning(
                f"{reason}, and are predicted from the prior",
                kind="unseen",
                remedy=reasons[mode] or "unless they are new, check their type, and the order of the columns",
                column=column,
            )
    return None


def _sample(column: Column, rows: NDArray[np.int64]) -> list[Any]:
    """Distinct ids in a sample of these rows."""
    rows = rows[:: len(rows) // SAMPLE_ROWS + 1]
    ids = column[rows].tolist() if isinstance(column, np.ndarray) else [plain(column[row]) for row in rows]
    return list(dict.fromkeys(each for each in ids if isinstance(each, tuple(_NAMES))))


def _another_mode(
    mode: int, nodes: Sequence[NodeIndex], unseen: Mapping[int, list[Any]], names: Sequence[str] | None
) -> str:
    """The reason if this mode and another have each other's ids, else "".

    Few numbers are no proof, since two modes of integers share ids anyway.
    """

    def are_of(ids: list[Any], other: int) -> bool:
        enough = len(ids) >= MANY_IDS or not all(isinstance(each, int | float) for each in ids)
        return enough and _most(int((nodes[other].find(ids) >= 0).sum()), ids)

    for other in unseen:
        if other != mode and are_of(unseen[mode], other) and are_of(unseen[other], mode):
            name = f"mode {other}" if names is None else names[other]
            return f"they are ids of {name}: check the order of the columns"
    return ""


def _another_form(unseen: list[Any], known: NodeIndex) -> str:
    """How most of the unseen ids differ from known ones, with an example; "" if they do not match."""
    found: dict[Any, tuple[str, Any]] = {}
    for raw in unseen:
        forms = list(_forms(raw))
        numbers = known.find([form for _, form in forms]) if forms else np.empty(0)
        if (numbers >= 0).any():
            found[raw] = forms[int(np.argmax(numbers >= 0))]
    if not found:
        return ""
    ((what, times),) = Counter(what for what, _ in found.values()).most_common(1)
    if not _most(times, unseen):
        return ""
    raw, form = next((raw, form) for raw, (what_of_raw, form) in found.items() if what_of_raw == what)
    return f"{what} ({raw!r:.60} and {form!r:.60})"


def _most(n: int, ids: list[Any]) -> bool:
    return 2 * n > len(ids)


def _forms(raw: Any) -> Iterator[tuple[str, Any]]:
    """Other forms of the same id, each with a description of the difference."""
    if isinstance(raw, bool) or (isinstance(raw, int) and raw.bit_length() > 64):
        return
    if isinstance(raw, int):
        yield from _typed(raw, str(raw), str(raw).encode())
        yield from _filled(str(raw))
        yield DECIMALS, f"{raw}.0"
    elif isinstance(raw, float):
        yield from _typed(raw, str(raw))
        if raw.is_integer():
            yield DECIMALS, str(int(raw))
            yield from _filled(str(int(raw)))
    elif isinstance(raw, bytes):
        text = raw.decode(errors="replace")
        yield from _typed(raw, text)
        if _DIGITS.fullmatch(text):
            yield from _typed(raw, int(text))
    else:
        yield from _forms_of_text(raw)


def _forms_of_text(raw: str) -> Iterator[tuple[str, Any]]:
    if _DIGITS.fullmatch(raw):
        number = int(raw)
        if str(number) == raw:
            yield from _typed(raw, number)
        else:
            yield from ((ZEROS, number), (ZEROS, str(number)))
        yield from _filled(raw)
    if _DECIMALS.fullmatch(raw):
        whole = raw.partition(".")[0]
        yield from ((DECIMALS, int(whole)), (DECIMALS, whole))
    yield from _typed(raw, raw.encode(errors="replace"))
    bare = raw.strip()
    if _DIGITS.fullmatch(bare):
        yield SPACES, int(bare)
    yield from ((SPACES, each) for each in (bare, f" {bare}", f"{bare} "))
    cases = (raw.lower(), raw.upper(), raw.title(), raw.capitalize(), raw.swapcase())
    yield from ((CASE, each) for each in cases)


def _typed(raw: Any, *forms: Any) -> Iterator[tuple[str, Any]]:
    for form in forms:
        yield f"they are {_NAMES[type(raw)]} here, and {_NAMES[type(form)]} in the model", form


def _filled(digits: str) -> Iterator[tuple[str, str]]:
    yield from ((ZEROS, digits.zfill(length)) for length in range(len(digits) + 1, MOST_DIGITS + 1))
