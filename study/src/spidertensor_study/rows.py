"""Files of result rows: JSON lines, appended and never changed.

A run is identified by the `experiment` and all `settings` of its row; every row has the KEYS.
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

from spidertensor.writing import naming

try:
    import fcntl
except ImportError:  # Windows, where two experiments that write to one file are not detected
    fcntl = None

Settings = dict[str, Any]
Row = dict[str, Any]

KEYS = {
    "experiment", "settings", "scores", "curve", "weights", "seconds", "error",
    "version", "commit", "machine", "jobs", "finished", "wall_seconds",
}  # fmt: skip
TEXTS, NUMBERS = ("method", "data", "protocol"), ("rank", "batch_size", "seed", "at")  # in all settings
NAMES = ("metric", "test", "case")  # in a score
WHOLE = range(-(2**63), 2**63)
LARGEST = 1e300  # of a number
LONGEST = 2**24  # characters in a line: a longer one is not a row, and would fill the memory


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
        """The runs without a row; with `retry` also those that failed."""
        latest = {identity(row["settings"]): row for row in self.rows}
        done = {which for which, row in latest.items() if not (retry and row["error"])}
        return [settings for settings in runs if identity(settings) not in done]

    def append(self, row: Row) -> None:
        short = _short(row) | {"settings": row["settings"]}  # these identify the run, so they keep all digits
        with naming(self.file.name):
            self.file.write(json.dumps(short, separators=(",", ":"), allow_nan=False) + "\n")
            self.file.flush()
            os.fsync(self.file.fileno())
        self.rows.append(row)


@contextmanager
def opened(path: Path) -> Iterator[Results]:
    """Open or create a file of rows to append to; an incomplete last row is cut off."""
    if path.suffix == ".gz":
        raise ResultsError(f"{path}: rows are added to a .jsonl file, not to a compressed one")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as raw:
        try:
            if fcntl:
                fcntl.flock(raw, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResultsError(f"{path} is being written by another spider-study experiment") from None
        rows = _rows_of(path)
        raw.seek(0)
        content = raw.read()
        end = content.rfind(b"\n") + 1
        if end < len(content) and content[end : end + 1] != b"{":
            raise ResultsError(f"{path}: its last line was not written by spider-study experiment")
        raw.truncate(end)
        with path.open("a", encoding="utf-8") as file:
            yield Results(rows, file)


def read(paths: Iterable[Path]) -> list[Row]:
    """The rows in files, or in all files in folders; only the last row of each run."""
    files: list[Path] = []
    for path in paths:
        found = sorted([*path.glob("*.jsonl"), *path.glob("*.jsonl.gz")]) if path.is_dir() else [path]
        if not found:
            raise ResultsError(f"{path} has no .jsonl or .jsonl.gz file in it")
        files += found
    rows = sorted((row for file in files for row in _rows_of(file)), key=lambda row: row["finished"])
    latest = {(row["experiment"], identity(row["settings"])): row for row in rows}
    if not latest:
        raise ResultsError(f"no rows in {', '.join(map(str, files))}")
    return list(latest.values())


def _rows_of(path: Path) -> list[Row]:
    open_ = gzip.open if path.suffix == ".gz" else open
    rows: list[Row] = []
    try:
        with open_(path, "rt", encoding="utf-8") as file:
            while line := file.readline(LONGEST):
                if not line.endswith("\n"):
                    _check(len(line) < LONGEST, path, len(rows) + 1)
                    break  # still being written, or cut off by a kill
                row = json.loads(line)
                _check(_is_row(row), path, len(rows) + 1)
                rows.append(row)
    except ResultsError:
        raise
    except (ValueError, RecursionError) as error:
        raise ResultsError(f"{path}, line {len(rows) + 1}: not JSON: {error}"[:300]) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ResultsError(f"{path}: not a complete gzip file: {error}") from error
    return rows


def _check(good: bool, path: Path, line: int) -> None:
    if not good:
        raise ResultsError(f"{path}, line {line}: not a row written by spider-study experiment")


def _is_row(row: Any) -> bool:
    if not isinstance(row, dict) or KEYS - row.keys() or not isinstance(row["settings"], dict):
        return False
    texts = [row["experiment"], row["finished"], *(row["settings"].get(name) for name in TEXTS)]
    numbers = [row["settings"].get(name) for name in NUMBERS]
    may_lack = (row[name] for name in ("error", "version", "commit", "machine"))
    return (
        all(isinstance(text, str) for text in texts)
        and all(type(number) is int and number in WHOLE for number in numbers)
        and all(isinstance(text, str | None) for text in may_lack)
        and type(row["jobs"]) in (int, type(None))
        and _is_result(row["seconds"])
        and _is_result(row["wall_seconds"])
        and all(isinstance(score, dict) and _is_result(score) for score in _values(row["scores"], dict))
        and all(isinstance(point, dict) and _is_result(point) for point in _values(row["curve"], list))
        and all(map(_is_layer, _values(row["weights"], list)))
    )


def _values(value: Any, kind: type) -> list[Any]:
    """The values in a list or an object; [] for None; for another type, one value that is not a result."""
    if value is None:
        return []
    if not isinstance(value, kind):
        return [False]
    return list(value.values() if isinstance(value, dict) else value)


def _is_result(value: Any) -> bool:
    """Whether this is a finite number, None, or lists and objects of these; NAMES are texts or None."""
    if isinstance(value, dict):
        names = (each for key, each in value.items() if key in NAMES)
        numbers = (each for key, each in value.items() if key not in NAMES)
        return all(isinstance(name, str | None) for name in names) and all(map(_is_result, numbers))
    if isinstance(value, list):
        return all(map(_is_result, value))
    return value is None or (type(value) in (int, float) and abs(value) <= LARGEST)


def _is_layer(value: Any) -> bool:
    """Whether these are two matrices of the same shape."""
    if not isinstance(value, dict) or value.keys() != {"mean", "inclusion"}:
        return False
    shapes = []
    for matrix in value.values():
        if not (isinstance(matrix, list) and all(isinstance(each, list) for each in matrix)):
            return False
        if not all(type(number) in (int, float) and _is_result(number) for each in matrix for number in each):
            return False
        shapes.append([len(each) for each in matrix])
    return shapes[0] == shapes[1] and len(set(shapes[0])) == 1


def _short(value: Any) -> Any:
    """Round results to six digits; what is not finite becomes null in JSON."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    return [_short(each) for each in value] if isinstance(value, list | tuple) else value
