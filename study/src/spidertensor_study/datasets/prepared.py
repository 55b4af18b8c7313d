"""Readers that the data sets of the study share: the prepared layout, and entries with values as events."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from spidertensor.evaluation.dataset import Info, Parts, as_batch, open_zip
from spidertensor.method import Batch
from spidertensor.spider.likelihoods import PROBIT


def read_npz(info: Info, path: Path) -> Parts:
    """The prepared layout: indices, values, shape; time_order, labelsK if known; train_*, test_* if split."""
    with open_zip(path), np.load(path, allow_pickle=False) as arrays:
        parts: Parts = {"shape": tuple(arrays["shape"].tolist())}
        published = {"paper": "test_", "clean": "clean_test_"} if "train_indices" in arrays else {}
        tests = {test: (arrays[f"{p}indices"], arrays[f"{p}values"]) for test, p in published.items()}
        start = "train_" if published else ""
        index, value = arrays[f"{start}indices"], arrays[f"{start}values"]
        if info.ones_from is not None:
            value = value >= info.ones_from
        if "time_order" in arrays:
            parts["time_order"] = arrays["time_order"].astype(np.int64)
        labels = [arrays[key] for key in (f"labels{mode}" for mode in range(index.shape[1])) if key in arrays]
    return parts | {
        "train": as_batch(index, value),
        "tests": {test: as_batch(*entries) for test, entries in tests.items()},
        "labels": tuple(labels),
    }


def events_of(info: Info, over: str, about: str) -> Info:
    """The same files as events over a mode: every entry that is not 0 is an event."""
    return replace(
        info, name=f"{info.name}-events", about=about, value_name="event", likelihood=PROBIT,
        files=(*info.files, f"{info.name}.npz"), events_over=over,
    )  # fmt: skip


def as_events(parts: Parts) -> Parts:
    """The data without zeros, values and published tests, which have zeros."""
    happened = parts["train"].value != 0
    kept = Batch(parts["train"].index[happened], np.ones(int(happened.sum())))
    order = parts.get("time_order")
    if order is not None:
        number = np.cumsum(happened) - 1  # position of a kept entry among those kept
        order = number[order[happened[order]]]
    return parts | {"train": kept, "tests": {}, "time_order": order}
