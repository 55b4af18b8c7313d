"""The members of a committee in one compiled call, for calls of few entries.

What Python does around a call of each member takes longer than a few entries do, and so does packing the
weights: these stay packed from call to call, beside those in the state, which are always up to date. They are
packed anew when the state has learned elsewhere, which its count of entries tells.

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

_NO_VALUES = np.empty(0)


class Together(NamedTuple):
    """States of several models, ready to be run."""

    records: NDArray[Any]  # (M,) of RECORD
    like: NDArray[np.floating]  # an array of the dtype of the states
    n_modes: int
    refine_every: int
    writable: bool
    busy: Lock  # the memory for packed weights is for one call at a time
    kept: Any  # what the records have addresses of


def together(members: Sequence[Method], states: Sequence[Any]) -> Together | None:
    """None if these members cannot be run so."""
    functions = [member.record for member in members if member.record is not None]
    if len(functions) < len(members):
        return None
    found = [record(state) for record, state in zip(functions, states, strict=True)]
    records = np.concatenate([each.record for each in found])
    periods = set(records["settings_refine_every"].tolist())
    if len(periods) > 1 or len({each.like.dtype for each in found}) > 1:
        return None
    writable, like = all(each.writable for each in found), found[0].like
    packed = [np.empty(each.packed_size + 16, like.dtype) for each in found]
    records["packed_at"] = -1  # nothing is there yet
    records["packed"] = [-(-array.ctypes.data // 64) * 64 for array in packed]
    n_modes, refine_every = int(records["modes"][0]), periods.pop()
    return Together(records, like, n_modes, refine_every, writable, Lock(), (found, packed))


def learn(ready: Together, batch: Batch, entries: int, out: NDArray[np.float64]) -> bool:
    """Whether the members have learned the entries. Not if that takes more than the loop: where the prior is
    refined a model may have to follow a change (`follow.py`), and new nodes need room.

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
        return False
    with ready.busy:
        return run_models(True, 0, index, value, ready.records, ready.like, out) >= 0


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
