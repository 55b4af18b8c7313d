"""Warn about ids that are rather numbers or times: each is learned by itself, and most are new.

Ordinary ids must never be taken for numbers, so whole numbers are judged by what ids hardly have: signs, a
spread over many powers of ten, or the range of times in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.ids import NodeIndex
from spidertensor.faults import SpiderWarning

FEWEST_DIFFERENT = 33  # numbers or times: as in columns/deciding.py, fewer may well be values
FEWEST_ENTRIES = 1_000  # to judge whole numbers
SAMPLE = 10_000  # nodes of a mode, to look at
MOST = 0.95  # share of ids that are alike
ONE_BY_ONE = 0.9  # nodes per entry, from which on hardly any id comes again
OFTEN_NEW = 0.5  # the same for texts that are times
LARGEST_AMOUNT = 10**6  # numbers with a sign beyond it may be hashes
SPREAD = 1_000  # between a tenth and nine tenths of the ids; it is 9 for ids drawn evenly from 1 to n
FIRST_SECOND, LAST_SECOND = 631_152_000, 2_051_222_400  # the years 1990 to 2034, since 1970
DAY_SECONDS = 86_400

_DECIMALS = re.compile(r"[-+]?[0-9]+[.]([0-9]+)")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}")


def note(nodes: Sequence[NodeIndex], entries: int, names: Sequence[str] | None) -> SpiderWarning | None:
    """A warning about the first mode whose ids are numbers or times, else None. entries: learned so far"""
    for mode, own in enumerate(nodes):
        ids = own.ids[:SAMPLE]
        kind = kind_of(ids, len(own) / max(entries, 1), entries) if len(ids) >= FEWEST_DIFFERENT else None
        if kind is not None:
            column = mode if names is None else names[mode]
            return warning(kind, ids[len(ids) // 2], column)
    return None


def kind_of(ids: list[Any], share_new: float, entries: int) -> str | None:
    """ "number" or "time" if the ids are rather that; None if not, or if the entries are too few to say."""
    kinds = set(map(type, ids))
    if kinds <= {int, float}:
        broken = np.mean([not float(each).is_integer() for each in ids])
        if broken > 0.5:
            return "number"
        if not broken and entries >= FEWEST_ENTRIES and max(map(abs, ids)) < 2**62:
            return _kind_of_whole(np.array(ids, np.int64), share_new)
        return None
    if kinds != {str}:
        return None
    if share_new >= OFTEN_NEW and np.mean([_TIME.match(each) is not None for each in ids]) >= MOST:
        return "time"
    decimals = [match and len(match[1]) for match in map(_DECIMALS.fullmatch, ids)]
    precise = [n is not None and n >= 2 for n in decimals]  # codes such as 401.9 have one, or none
    return (
        "number" if np.mean([n is not None for n in decimals]) >= MOST and np.mean(precise) >= 0.8 else None
    )


def _kind_of_whole(ids: NDArray[np.int64], share_new: float) -> str | None:
    low, high = ids.min(), ids.max()
    if high <= LARGEST_AMOUNT and low >= -LARGEST_AMOUNT and (ids < 0).mean() > 1 - MOST:
        return "number"
    if share_new < ONE_BY_ONE:
        return None
    if low >= FIRST_SECOND and high < LAST_SECOND and high - low > DAY_SECONDS:
        return "time"
    tenth, most = np.quantile(ids, (0.1, 0.9))
    return "number" if low >= 0 and most > SPREAD * max(tenth, 1) else None


def warning(kind: str, example: Any, column: str | int) -> SpiderWarning:
    name = f'"{column}"' if isinstance(column, str) else '"price"' if kind == "number" else '"time"'
    written = f"Number({name})" if kind == "number" else f"Calendar({name})"
    shared = "close numbers share" if kind == "number" else "hours and weekdays share"
    return SpiderWarning(
        f"the ids are {kind}s such as {example}, each learned by itself",
        kind=f"{kind} as id",
        column=column,
        remedy=f'so that {shared} what is learned, write modes={{..., "of": Context({written})}}',
    )
