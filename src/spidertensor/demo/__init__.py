"""Demo streams: a year of flights, and a synthetic one."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from spidertensor.demo import flights, synthetic
from spidertensor.evaluation.clock import Clock, Delay, clock_of
from spidertensor.evaluation.dataset import Dataset, DatasetError, Info, installed_file, read_dataset

TICK_SECONDS = 3600  # the flights of an hour are predicted together, at its beginning
SYNTHETIC_DELAY = Delay(100, "entries")

INFOS: dict[str, Info] = {info.name: info for info in (flights.INFO, synthetic.INFO)}


def load(name: str) -> Dataset:
    """Load a stream by its name in INFOS."""
    if name == synthetic.INFO.name:
        return synthetic.synthetic()
    path = installed_file(flights.INFO)
    if path is None:
        raise DatasetError(f"{name} is not installed. Get it from {flights.INFO.source}.")
    return read_dataset(flights.INFO, path, flights.read)


def clock(dataset: Dataset) -> Clock:
    """When the entries of a demo stream, in the order of time, are asked for and known."""
    if dataset.known is None:
        return clock_of(dataset, SYNTHETIC_DELAY)
    return clock_of(dataset)._replace(tick=TICK_SECONDS)


def described_flights() -> dict[str, NDArray[Any]]:
    """The flights of `load("flights")` with what is known of each: see flights.described."""
    path = installed_file(flights.INFO)
    return {} if path is None else flights.described(path)
