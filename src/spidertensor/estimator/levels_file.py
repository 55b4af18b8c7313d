"""The arrays of a file for ordinal levels (mathematics.md section 26), which all members share.

They are in the section "levels", with format 3. A file of any other model is without it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.file_checks import MOST_ENTRIES, check

SECTION = "levels"
FIELDS = ("levels", "level_counts")  # of StreamState
Arrays = dict[str, NDArray[Any]]


def to_file(arrays: Arrays, n_members: int) -> Arrays:
    """The arrays of a committee's state under their names in a file."""
    stored = dict(arrays)
    for m in range(n_members):
        for field in FIELDS:
            array = stored.pop(f"committee/members/{m}/stream/{field}")
            if array.size:
                stored[f"{SECTION}/{field}"] = array
    return stored


def from_file(arrays: Arrays, n_members: int, levels: tuple[float, ...]) -> Arrays:
    """The inverse of `to_file`. levels: of the model, () for other likelihoods"""
    found = {name: array for name, array in arrays.items() if not name.startswith(f"{SECTION}/")}
    names = {f"{SECTION}/{field}" for field in FIELDS} if levels else set()
    check(arrays.keys() - found.keys() == names, "the levels have other arrays")
    stored = [arrays[f"{SECTION}/{field}"] if levels else np.empty(0) for field in FIELDS]
    good = all(each.dtype == np.float64 and each.shape == (len(levels),) for each in stored)
    check(good and tuple(stored[0].tolist()) == levels, "the levels are not those of the params")
    counts = stored[1]
    whole = ((counts >= 1) & (counts < MOST_ENTRIES) & (counts == np.floor(counts))).all()
    check(whole, "how often a level was seen is impossible")
    for m in range(n_members):
        for field, array in zip(FIELDS, stored, strict=True):
            found[f"committee/members/{m}/stream/{field}"] = array
    return found
