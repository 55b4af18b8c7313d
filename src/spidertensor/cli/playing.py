"""The stream of `spider serve --demo`: a year of flights, sent to the server as any client would."""

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

ROWS = 100  # of a request
PER_SECOND = 2500  # entries: a year takes two minutes


def stream() -> Dataset:
    """The flights, or a synthetic stream if they are not here."""
    try:
        return load("flights")
    except DatasetError:
        output.note("note: the flights are not here (pip install 'spidertensor[demo]'): a synthetic stream")
        return load("synthetic")


def start(url: str, dataset: Dataset) -> None:
    """Send the entries in a thread that ends with the process."""
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
                    output.note(f"note: the demo has stopped: {error.read().decode()}")
                    return
                time.sleep(0.2)
            except OSError:  # the server has stopped
                return
        sent += ROWS
        time.sleep(max(0.0, began + sent / PER_SECOND - time.monotonic()))
    output.note("note: the year is over; the server goes on answering")


def _bodies(dataset: Dataset) -> Iterator[bytes]:
    entries = dataset.in_time_order() if dataset.time_order is not None else dataset.train
    names = [*dataset.modes, dataset.value_name]
    for start in range(0, len(entries.value), ROWS):
        index, value = entries.index[start : start + ROWS], entries.value[start : start + ROWS]
        columns: list[list[Any]] = [
            dataset.labels[mode][index[:, mode]].tolist() if dataset.labels else index[:, mode].tolist()
            for mode in range(index.shape[1])
        ]
        rows = zip(*columns, value.tolist(), strict=True)
        yield json.dumps([dict(zip(names, row, strict=True)) for row in rows]).encode()
