"""Cold start: how wrong are the first predictions for users, and for movies, never seen before?

    export SPIDER_DATA=folder OPENBLAS_NUM_THREADS=1
    python benchmarks/cold_start.py movielens-100k
    python benchmarks/cold_start.py movielens-1m --models "online biases" "Vowpal Wabbit"

Ratings come in time order; each is predicted and then learned. Nodes whose first rating is in the first tenth
are left out, because every model is poor there. "user 5" is the error of the first five ratings of all other
users together (fewer if a user has fewer), "user later" that of the ratings after the first 20. A JSON line
for each model is appended to cold_start.jsonl, and a table of all rows comes last. Settings are chosen by
predicting the first tenth.
"""

from __future__ import annotations

import argparse
import os
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from attributes import DATA, Row, add_row, read_rows, tuned_at_start
from described_data import Described, Floats, movielens
from described_streams import FIRST, STREAMING
from numpy.typing import NDArray

from spidertensor import __version__
from spidertensor_study.grid import machine

FIRST_RATINGS = (1, 2, 5, 10, 20)
ROWS = Path(__file__).with_suffix(".jsonl")


def seen_before(nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) the number of earlier entries of the same node."""
    order = np.argsort(nodes, kind="stable")
    start = np.r_[True, np.diff(nodes[order]) > 0]
    group = np.flatnonzero(start)[np.cumsum(start) - 1]
    before = np.empty(len(nodes), np.int64)
    before[order] = np.arange(len(nodes)) - group
    return before


def curve(nodes: NDArray[np.int64], squares: Floats, skipped: int) -> tuple[dict[str, float], int]:
    """Errors of the first ratings of nodes that are new after `skipped` entries, and the number of nodes."""
    before = seen_before(nodes)
    new = ~np.isin(nodes, nodes[:skipped])
    parts = {str(n): new & (before < n) for n in FIRST_RATINGS}
    parts["later"] = new & (before >= FIRST_RATINGS[-1])
    found = {
        name: round(float(np.sqrt(squares[part].mean())), 4) for name, part in parts.items() if part.any()
    }
    return found, int((new & (before == 0)).sum())


def run(label: str, described: Described, columns: str, seed: int) -> Row:
    model, stream = STREAMING[label], described.data.in_time_order()
    settings, skipped = tuned_at_start(model, described, columns, stream)
    more = {"random_state": seed} if model.seeded else {}
    mean = model.make(described, columns, stream.value[:FIRST], **settings, **more).learn(*stream[:2])
    squares = (mean - stream.value) ** 2
    row: Row = {"model": label, "data": described.data.name, "columns": columns, "seed": seed}
    row["version"] = __version__ if model.package == "spidertensor" else metadata.version(model.package)
    row |= {"machine": machine(), "load": round(os.getloadavg()[0], 1), "settings": settings}
    row["all"] = round(float(np.sqrt(squares[skipped:].mean())), 4)
    for mode, nodes in zip(described.data.modes, stream.index.T, strict=True):
        row[mode], row[f"new {mode}s"] = curve(nodes, squares, skipped)
    return row


def print_table(rows: list[Row]) -> None:
    for mode in ("user", "movie"):
        for row in sorted(rows, key=lambda row: (row["data"], row["columns"], row["model"])):
            errors = "  ".join(f"{name} {error:.3f}" for name, error in row[mode].items())
            print(f"{mode:6}{row['data']:15} {row['columns']:11} {row['model']:14} {errors}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Errors of the first predictions for new users and movies.")
    parser.add_argument("data", nargs="*", default=list(DATA))
    parser.add_argument("--models", nargs="+", default=list(STREAMING))
    parser.add_argument("--columns", nargs="+", default=["ids", "attributes"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--rows", type=Path, default=ROWS, help="the file that rows are added to")
    asked = parser.parse_args(arguments)
    rows = read_rows(asked.rows)
    done = {(row["data"], row["model"], row["columns"], row["seed"]) for row in rows}
    for name in asked.data:
        described = movielens(name)
        for label in asked.models:
            model = STREAMING[label]
            seeds = asked.seeds if model.seeded else asked.seeds[:1]
            for columns, seed in ((columns, seed) for columns in asked.columns for seed in seeds):
                if (name, label, columns, seed) in done or columns not in model.columns:
                    continue
                if find_spec(model.package) is not None:
                    rows.append(run(label, described, columns, seed))
                    add_row(asked.rows, rows[-1])
    print_table(rows)


if __name__ == "__main__":
    main()
