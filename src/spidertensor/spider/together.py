"""The members of a committee in one compiled call, for calls of few entries.

What Python does around a call of each member takes longer than a few entries do, and so does preparing
working memory and packing the weights into it. So it stays from call to call, beside the weights in the
state, which are always up to date. They are packed anew when the state has learned elsewhere, which its count
of entries tells.

Only the sequential engine can be run so (`Method.record`).
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Batch, Method
from spidertensor.spider.sequential import run_models
from spidertensor.spider.sequential_record import RECORD

_NO_VALUES = np.empty(0)


class Together(NamedTuple):
    """States of several models, ready to be run."""

    records: NDArray[Any]  # (M,) of RECORD
    like: NDArray[np.floating]  # an array of the dtype of the states
    n_modes: int
    refine_every: int
    writable: bool
    busy: Lock  # the working memory is for one call at a time
    kept: Any  # what the records have addresses of


def together(members: Sequence[Method], states: Sequence[Any]) -> Together | None:
    """None if these members cannot be run so."""
    functions = [member.record for member in members if member.record is not None]
    if len(functions) < len(members):
        return None
    found = [record(state) for record, state in zip(functions, states, strict=True)]
    # Not np.concatenate: its dtype is equal, but not the same object, and numba compares it field by field in
    # every call, for 2 us.
    records = np.empty(len(found), RECORD)
    for m, each in enumerate(found):
        records[m] = each.record[0]
    periods = set(records["settings_refine_every"].tolist())
    if len(periods) > 1 or len({each.like.dtype for each in found}) > 1:
        return None
    writable, like = all(each.writable for each in found), found[0].like
    scratch = [np.empty(each.scratch_size + 16, like.dtype) for each in found]
    records["packed_at"] = -1  # nothing is there yet
    records["scratch"] = [-(-array.ctypes.data // 64) * 64 for array in scratch]
    n_modes, refine_every = int(records["modes"][0]), periods.pop()
    return Together(records, like, n_modes, refine_every, writable, Lock(), (found, scratch))


def learn(ready: Together, batch: Batch, entries: int, out: NDArray[np.float64]) -> int | None:
    """How many elements were rejected; None if nothing was learned, because that takes more than the loop:
    where the prior is refined a model may have to follow a change (`follow.py`), and new nodes need room.

    entries: that were learned before
    out:     (M, 4, n), to fill: mean, var, noise and log evidence of each entry
    """
    index, value = batch
    n = len(value)
    if (
        entries % ready.refine_every + n >= ready.refine_every
        or not ready.writable
        or not _plain(index, np.int64, (n, ready.n_modes))
        or not _plain(value, np.float64, (n,))
    ):
        return None
    with ready.busy:
        stopped, rejected = run_models(True, 0, index, value, ready.records, ready.like, out)
    return None if stopped < 0 else rejected


def predict(ready: Together, index: NDArray[np.integer]) -> NDArray[np.float64] | None:
    """(M, 4, n): mean, var and noise at each row. None if the rows are not as the loop wants them."""
    if not _plain(index, np.int64, (len(index), ready.n_modes)):
        return None
    out = np.empty((len(ready.records), 4, len(index)))
    with ready.busy:
        run_models(False, 0, index, _NO_VALUES, ready.records, ready.like, out)
    return out


def _plain(array: NDArray[Any], dtype: type, shape: tuple[int, ...]) -> bool:
    """Kernels do not check, and an array of another layout is another type to compile for."""
    return array.dtype == dtype and array.shape == shape and array.flags.carray
