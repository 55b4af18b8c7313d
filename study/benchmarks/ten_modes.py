"""Ten modes with strong interactions: who learns pairs and triples of ids? A JSON line for each model.

    python benchmarks/ten_modes.py
    python benchmarks/ten_modes.py --models "spidertensor cross"

The stream and its truth: spidertensor_study.datasets.ten_modes. Rows are appended to ten_modes.jsonl, and a
table of all rows comes last.

    prequential  predicted, then learned, in one pass; the first tenth is not scored
    held out     after `passes` passes, for the 10,000 entries after the end of the stream
    to truth     the same predictions against the truth, without the noise

Settings are chosen by predicting the first tenth of the stream.
"""

from __future__ import annotations

import argparse
import os
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from attributes import Row, add_row, read_rows, tuned_at_start
from described_data import IDS, Described, Floats, Index, without_attributes
from described_static import STATIC
from described_streams import FIRST, STREAMING, Stream, Streaming, vowpal_wabbit

from spidertensor import __version__
from spidertensor.evaluation.metrics import rmse
from spidertensor_study.datasets.ten_modes import NOISE, SHARES, ten_modes
from spidertensor_study.grid import machine

ROWS = Path(__file__).with_suffix(".jsonl")
PASSES = (1, 5)


def ours_with_crosses(described: Described, columns: str, first: Floats, **settings: Any) -> Stream:
    """The default estimator with user x app and the small triple as situations of their own."""
    import pyarrow as pa

    from spidertensor import Context, Cross, SpiderRegressor  # pyright: ignore[reportAttributeAccessIssue]

    modes: dict[str, Any] = {mode: [] for mode in described.data.modes}
    modes["user and app"] = Context(Cross("user", "app"))
    modes["situation"] = Context(Cross("daytime", "weather", "place"))
    model = SpiderRegressor(modes=modes, **settings)

    def table(index: Index) -> pa.Table:
        return pa.table(described.frame(index, columns))

    return Stream(
        lambda index, value: np.asarray(model.learn(table(index), value).mean),
        lambda index: np.asarray(model.predict(table(index))),
    )


_RATES = (0.02, 0.05, 0.1, 0.2, 0.5)
_START = {"rate": 0.1, "power": 0.5}
_AXES = {"rate": _RATES, "power": (0.5, 0.3)}


def _wabbit(interactions: str) -> Streaming:
    start, axes = _START | {"interactions": interactions}, _AXES | {"interactions": (interactions,)}
    return Streaming("vowpalwabbit", vowpal_wabbit, start, axes)


MODELS = {
    **{label: STREAMING[label] for label in ("online biases", "spidertensor", "River FM")},
    "spidertensor cross": Streaming("spidertensor", ours_with_crosses, {}, {}, seeded=True),
    "Vowpal Wabbit": _wabbit(""),
    "Vowpal Wabbit pairs": _wabbit("-q ::"),
    "Vowpal Wabbit triples": _wabbit("-q :: --cubic :::"),
}


def streamed(model: Streaming, described: Described, seed: int) -> Row:
    train, test = described.data.train, described.data.tests["paper"]
    settings, skipped = tuned_at_start(model, described, IDS, train)
    more = {"random_state": seed} if model.seeded else {}
    began = process_time()
    stream = model.make(described, IDS, train.value[:FIRST], **settings, **more)
    row: Row = {"settings": settings, "held out": {}, "to truth": {}}
    for done in range(1, max(PASSES) + 1):
        mean = stream.learn(*train[:2])
        if done == 1:
            row["prequential"] = round(rmse(train.value[skipped:], mean[skipped:]), 4)
            row["cpu_seconds"] = round(process_time() - began, 1)
        if done in PASSES:
            predicted = stream.predict(test.index)
            row["held out"][str(done)] = round(rmse(test.value, predicted), 4)
            row["to truth"][str(done)] = round(rmse(described.data.truth["test"], predicted), 4)
        if model.package == "spidertensor":  # learning an entry twice would count it twice
            break
    return row


def fitted(label: str, described: Described, seed: int) -> Row:
    test, began = described.data.tests["paper"], process_time()
    model = STATIC[label].fit(described, IDS, described.data.split(seed)[0], seed)
    seconds, predicted = process_time() - began, model.predict(test.index)
    return {
        "settings": model.settings,
        "held out": {"static": round(rmse(test.value, predicted), 4)},
        "to truth": {"static": round(rmse(described.data.truth["test"], predicted), 4)},
        "cpu_seconds": round(seconds, 1),
    }


def run(label: str, described: Described, seed: int) -> Row:
    package = (MODELS | STATIC)[label].package
    row: Row = {"model": label, "data": described.data.name, "seed": seed}
    row["version"] = __version__ if package == "spidertensor" else metadata.version(package)
    row |= {"machine": machine(), "load": round(os.getloadavg()[0], 1)}
    if label in STATIC:
        return row | fitted(label, described, seed)
    return row | streamed(MODELS[label], described, seed)


def print_table(rows: list[Row]) -> None:
    print(f"the mean {(1 + NOISE**2) ** 0.5:.3f}, perfect {NOISE:.3f}, without one part:", end=" ")
    print(", ".join(f"{part} {(share + NOISE**2) ** 0.5:.3f}" for part, share in SHARES.items()))
    for row in sorted(rows, key=lambda row: min(row["held out"].values())):
        scores = {name: row.get(name) for name in ("prequential", "held out", "to truth")}
        print(f"{row['model']:22} {scores}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Ten modes with strong interactions.")
    parser.add_argument("--models", nargs="+", default=[*MODELS, *STATIC])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=Path, default=ROWS, help="the file that rows are added to")
    asked = parser.parse_args(arguments)
    rows, described = read_rows(asked.rows), without_attributes(ten_modes(seed=asked.seed))
    done = {(row["model"], row["seed"]) for row in rows}
    for label in asked.models:
        if (label, asked.seed) not in done and find_spec((MODELS | STATIC)[label].package):
            rows.append(run(label, described, asked.seed))
            add_row(asked.rows, rows[-1])
    print_table(rows)


if __name__ == "__main__":
    main()
