"""The client of `spider serve --demo`: sends a year of flights to the server."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from spidertensor.cli import output
from spidertensor.demo import load
from spidertensor.evaluation.dataset import Dataset, DatasetError

REQUEST_ROWS = 100
ENTRIES_PER_S = 2500  # a year takes two minutes


def stream() -> Dataset:
    """The flights, or a synthetic stream if they are not installed."""
    try:
        return load("flights")
    except DatasetError:
        output.note("note: using synthetic data; for flights, pip install 'spidertensor[demo]'")
        return load("synthetic")


def start(url: str, dataset: Dataset) -> None:
    """Send the entries from a daemon thread."""
    threading.Thread(target=_play, args=(url, dataset), daemon=True).start()


def _play(url: str, dataset: Dataset) -> None:
    began, sent = time.monotonic(), 0
    for number, body in enumerate(_bodies(dataset)):
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"demo-{number}"}
        request = urllib.request.Request(f"{url}/v1/learn", body, headers)
        while True:
            try:
                with urllib.request.urlopen(request) as answer:
                    answer.read()
                break
            except urllib.error.HTTPError as error:
                if error.code not in (429, 503):
                    output.note(f"note: the demo stopped: {error.read().decode()}")
                    return
                time.sleep(0.2)
            except OSError:  # the server has stopped
                return
        sent += REQUEST_ROWS
        time.sleep(max(0.0, began + sent / ENTRIES_PER_S - time.monotonic()))
    output.note("note: all flights were sent; the server keeps answering")


def _bodies(dataset: Dataset) -> Iterator[bytes]:
    entries = dataset.in_time_order() if dataset.time_order is not None else dataset.train
    names = [*dataset.modes, dataset.value_name]
    for start in range(0, len(entries.value), REQUEST_ROWS):
        index, value = (
            entries.index[start : start + REQUEST_ROWS],
            entries.value[start : start + REQUEST_ROWS],
        )
        columns: list[list[Any]] = [
            dataset.labels[mode][index[:, mode]].tolist() if dataset.labels else index[:, mode].tolist()
            for mode in range(index.shape[1])
        ]
        rows = zip(*columns, value.tolist(), strict=True)
        yield json.dumps([dict(zip(names, row, strict=True)) for row in rows]).encode()
