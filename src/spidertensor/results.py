"""Rows of experiments in files: JSON lines, appended and never changed, and read back.

A row says which run it is by its `experiment` and all of its `settings`; KEYS are what every row has.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

try:
    import fcntl
except ImportError:  # Windows: two experiments that write to one file go unnoticed there
    fcntl = None

Settings = dict[str, Any]
Row = dict[str, Any]

KEYS = {
    "experiment", "settings", "scores", "curve", "weights", "seconds", "error",
    "version", "commit", "machine", "jobs", "finished", "wall_seconds",
}  # fmt: skip


class ExperimentError(ValueError):
    """An experiment file that cannot be run; the message says where and why."""


class ResultsError(ValueError):
    """A file of results that cannot be read; the message names file and line."""


def identity(settings: Settings) -> str:
    return json.dumps(settings, sort_keys=True)


class Results(NamedTuple):
    """A file of rows, open to this process alone."""

    rows: list[Row]
    file: IO[str]

    def missing(self, runs: Sequence[Settings], *, retry: bool = False) -> list[Settings]:
        """The runs without a row; with `retry` those that failed as well."""
        latest = {identity(row["settings"]): row for row in self.rows}
        done = {which for which, row in latest.items() if not (retry and row["error"])}
        return [settings for settings in runs if identity(settings) not in done]

    def append(self, row: Row) -> None:
        self.file.write(json.dumps(_short(row), separators=(",", ":"), allow_nan=False) + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())
        self.rows.append(row)


@contextmanager
def opened(path: Path) -> Iterator[Results]:
    """Open a file of rows to add to it, made if need be; what a killed run left of a row is cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as raw:
        try:
            if fcntl:
                fcntl.flock(raw, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResultsError(f"{path} is being written by another spider experiment") from None
        raw.seek(0)
        raw.truncate(raw.read().rfind(b"\n") + 1)
        with path.open("a", encoding="utf-8") as file:
            yield Results(_rows_of(path), file)


def read(paths: Iterable[Path]) -> list[Row]:
    """The rows of files, or of all files in folders; of a run that is there twice the last."""
    files: list[Path] = []
    for path in paths:
        found = sorted([*path.glob("*.jsonl"), *path.glob("*.jsonl.gz")]) if path.is_dir() else [path]
        if not found:
            raise ResultsError(f"{path} has no .jsonl or .jsonl.gz file in it")
        files += found
    latest = {(row["experiment"], identity(row["settings"])): row for file in files for row in _rows_of(file)}
    if not latest:
        raise ResultsError(f"no rows in {', '.join(map(str, files))}")
    return list(latest.values())


def _rows_of(path: Path) -> list[Row]:
    open_ = gzip.open if path.suffix == ".gz" else open
    rows = []
    try:
        with open_(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith("\n"):
                    break  # being written, or what a killed run left
                row = json.loads(line)
                if (
                    not isinstance(row, dict)
                    or not isinstance(row.get("settings"), dict)
                    or KEYS - row.keys()
                ):
                    raise ResultsError(f"{path}, line {number}: not a row of spider experiment")
                rows.append(row)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ResultsError(f"{path}, line {len(rows) + 1}: not JSON: {error}") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ResultsError(f"{path}: not a whole gzip file: {error}") from error
    return rows


def _short(value: Any) -> Any:
    """Six digits are enough of a result; what is not a number is null in JSON."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    return [_short(each) for each in value] if isinstance(value, list | tuple) else value
