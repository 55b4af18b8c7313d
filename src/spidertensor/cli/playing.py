"""The client of `spider serve --demo`: a year of flights, as they would come.

Each hour the flights of that hour are predicted, and remembered; a flight is learned when it has landed, with
its forecast (demo/__init__.py has the clock).
"""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.cli import output
from spidertensor.demo import clock, described_flights, flights, load
from spidertensor.estimator.columns import Schema
from spidertensor.evaluation.dataset import Dataset, DatasetError
from spidertensor.service.opening import NewModel

ENTRIES_PER_S = 2500  # a year takes two minutes
FIRST_ENTRIES = 256  # learned first, before any prediction
REMEMBER = "1h"  # by the clock of the server


class DemoStream(NamedTuple):
    """table: columns of ids and attributes, in the order of time; schema: None for ids alone"""

    dataset: Dataset
    table: Mapping[str, NDArray[Any]]
    schema: Schema | None = None


def stream() -> DemoStream:
    """The flights, or a synthetic stream if they are not installed."""
    try:
        dataset, table = load(flights.INFO.name), described_flights()
    except DatasetError:
        output.note("note: using synthetic data; for flights, pip install 'spidertensor[demo]'")
        dataset = load("synthetic")
        return DemoStream(dataset, dict(zip(dataset.modes, dataset.in_time_order().index.T, strict=True)))
    known = {name: column for name, column in table.items() if name not in ("landed", "delay")}
    return DemoStream(dataset, known, Schema.parse(flights.ATTRIBUTES))


def new_model(played: DemoStream, settings: dict[str, Any]) -> NewModel:
    schema, value = played.schema, played.dataset.value_name
    if schema is None:
        return NewModel("SpiderRegressor", list(played.dataset.modes), value, settings)
    return NewModel("SpiderRegressor", list(schema.names), value, settings, schema.to_json())


def start(url: str, played: DemoStream) -> None:
    """Send the entries from a daemon thread."""
    threading.Thread(target=play, args=(url, played), daemon=True).start()


def play(url: str, played: DemoStream) -> None:
    """Returns when all entries were sent, or when the server has stopped."""
    value, tokens = played.dataset.in_time_order().value, {}
    began, learned = time.monotonic(), 0
    try:
        for number, (known, asked) in enumerate(clock(played.dataset).ticks(FIRST_ENTRIES)):
            if len(known):
                rows = _rows(played.table, known)
                for row, at in zip(rows, known.tolist(), strict=True):
                    row[played.dataset.value_name] = float(value[at])
                    row |= {"_forecast": tokens.pop(at)} if at in tokens else {}
                _posted(f"{url}/v1/learn", rows, {"Idempotency-Key": f"demo-{number}"})
                learned += len(known)
                time.sleep(max(0.0, began + learned / ENTRIES_PER_S - time.monotonic()))
            if learned:
                rows = _rows(played.table, np.arange(asked.start, asked.stop))
                answers = _posted(f"{url}/v1/predict?remember={REMEMBER}", rows)["predictions"]
                tokens |= {asked.start + at: each["forecast"] for at, each in enumerate(answers)}
    except urllib.error.HTTPError as error:
        output.note(f"note: the demo stopped: {error.read().decode()}")
        return
    except OSError:  # the server has stopped
        return
    output.note("note: all flights were sent; the server keeps answering")


def _posted(url: str, rows: list[dict[str, Any]], headers: Mapping[str, str] = {}) -> Any:
    """The answer; waits while the server is busy."""
    body = json.dumps(rows).encode()
    while True:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
        try:
            with urllib.request.urlopen(request) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code not in (429, 503):
                raise
            time.sleep(0.2)


def _rows(table: Mapping[str, NDArray[Any]], at: NDArray[np.integer]) -> list[dict[str, Any]]:
    """The entries at these places, as a client sends them; without what is missing."""
    columns = {}
    for name, column in table.items():
        cells = column[at]
        missing = np.isnan(cells) if cells.dtype.kind == "f" else np.zeros(len(at), bool)
        cells = cells.astype(str if cells.dtype.kind == "M" else object)
        cells[missing] = None
        columns[name] = cells.tolist()
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return [{name: cell for name, cell in row.items() if cell is not None} for row in rows]
