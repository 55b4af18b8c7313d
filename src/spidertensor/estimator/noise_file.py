"""The arrays of a file for noise that differs between entries: mathematics.md sections 12 and 23.

Once an untouched node had the noise of its mode's running mean, `stream/log_noise`. Now it has the noise that
all nodes share. The running means are still in a file, as 0, so that a reader of format 2 or 3 that knows
nothing of this predicts the same. What is new is in the section "noise", which such a reader ignores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.file_checks import check
from spidertensor.spider.posterior import LEVEL_KNOTS, LEVEL_NOISE_VAR, SQUARES_AT_FIRST, node_noise_var
from spidertensor.spider.robust import LARGEST_LOG_NOISE

SECTION = "noise"
# fields of StreamState that are in this section, and what they are in a file without it
FIELDS: dict[str, Any] = {
    "squares": SQUARES_AT_FIRST,
    "level_noise": [0.0] * LEVEL_KNOTS,
    "level_noise_var": [LEVEL_NOISE_VAR] * LEVEL_KNOTS,
}
Arrays = dict[str, NDArray[Any]]


def to_file(arrays: Arrays, n_members: int, n_modes: int) -> Arrays:
    """The arrays of a committee's state under their names in a file."""
    stored = dict(arrays)
    for m in range(n_members):
        stream = f"committee/members/{m}/stream"
        for field in FIELDS:
            stored[f"{SECTION}/{m}/{field}"] = stored.pop(f"{stream}/{field}")
        stored[f"{stream}/log_noise"] = np.zeros(n_modes)
    return stored


def from_file(arrays: Mapping[str, NDArray[Any]], n_members: int, n_modes: int) -> Arrays:
    """The inverse of `to_file`; also for a file without the section."""
    found = {name: array for name, array in arrays.items() if not name.startswith(f"{SECTION}/")}
    there = len(found) < len(arrays)
    check(not there or len(arrays) - len(found) == len(FIELDS) * n_members, "the noise has other arrays")
    for m in range(n_members):
        member = f"committee/members/{m}"
        running = found.pop(f"{member}/stream/log_noise", None)
        good = running is not None and running.shape == (n_modes,) and running.dtype == np.float64
        check(good, f"array '{member}/stream/log_noise' is not one number for each mode")
        assert running is not None
        check(np.isfinite(running).all(), f"array '{member}/stream/log_noise' is not finite")
        check((np.abs(running) <= LARGEST_LOG_NOISE).all(), "the noise of a node is out of range")
        found |= _without_running(found, f"{member}/posterior", running)
        for field, at_first in FIELDS.items():
            name = f"{SECTION}/{m}/{field}"
            check(not there or name in arrays, f"array {name!r} is missing")
            found[f"{member}/stream/{field}"] = arrays[name] if there else np.array(at_first)
    return found


def _without_running(arrays: Arrays, posterior: str, running: NDArray[np.float64]) -> Arrays:
    """Nodes lose the running means and the shared noise gains them, so that every prediction stays the same.
    A node that no entry had touched, by its variance, had the running mean."""
    names = [f"{posterior}/log_noise/{mode}" for mode in range(len(running))]
    whole = all(f"{name}/{part}" in arrays for name in names for part in ("mean", "var"))
    rate = arrays.get(f"{posterior}/noise/rate")
    if not running.any() or not whole or rate is None or rate.dtype != np.float64:
        return {}  # nothing to do, or not a state, which is found out later
    moved = {f"{posterior}/noise/rate": np.array(rate * np.exp(running.sum()))}
    for name, by in zip(names, running, strict=True):
        mean, touched = arrays[f"{name}/mean"], arrays[f"{name}/var"] < node_noise_var(len(running))
        if mean.shape == touched.shape:
            own = np.clip(mean - by, -LARGEST_LOG_NOISE, LARGEST_LOG_NOISE)
            moved[f"{name}/mean"] = np.where(touched, own, 0).astype(mean.dtype)
    return moved
