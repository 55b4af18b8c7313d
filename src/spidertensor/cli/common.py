"""What several commands share: errors, words on the command line, bad rows, printing."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spidertensor import SpiderClassifier, SpiderRegressor
    from spidertensor.sources import BadRow, Chunk, Source

SourceName = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A file: csv, tsv, jsonl (each also .gz or .zst) or parquet; - is standard input.",
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="Of SOURCE if its name does not tell: csv.gz. Standard input is csv.",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(metavar="NAMES", help="Names of the columns, with commas, if a csv or tsv has no header."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


class OnBad(StrEnum):
    RAISE = "raise"
    SKIP = "skip"
    FILE = "file"


OnBadOption = Annotated[
    OnBad,
    typer.Option(
        metavar="raise|skip|file",
        help="A bad row stops the command, is left out, or is left out and written to --rejects.",
    ),
]
Rejects = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Where --on-bad file writes bad rows as JSON lines, by default beside what is written.",
    ),
]


class CommandError(Exception):
    """What the user has to know, in one line; exit code 2."""


def words(text: str) -> list[str]:
    """ "user, movie" -> ["user", "movie"]"""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(option: str, text: str, kind: type = int) -> list[Any]:
    try:
        return [kind(word) for word in words(text)]
    except ValueError:
        raise CommandError(f"{option} takes numbers with commas between them, not {text!r}") from None


def seconds(text: str) -> float:
    """ "30s", "5m", "1h" or "never" """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h|)", text.strip())
    if text.strip() == "never":
        return math.inf
    if not match:
        raise CommandError(f"a time is given like 30s, 5m, 1h or never, not {text!r}")
    return float(match[1]) * {"s": 1, "": 1, "m": 60, "h": 3600}[match[2]]


def load_model(path: Path) -> SpiderRegressor | SpiderClassifier:
    from spidertensor.estimator import load

    return load(path)


def mode_names(model: Any) -> list[str]:
    """The columns a model was fitted with; numbers from 0 if they had no names."""
    names = getattr(model, "feature_names_in_", None)
    return [str(mode) for mode in range(model.n_features_in_)] if names is None else [str(n) for n in names]


def all_text(model: Any) -> list[bool]:
    """Per mode, whether "42" on a line means the text: as the model was fitted, else by the ids it knows."""
    position = getattr(model, "position_", None)
    if isinstance(position, dict) and isinstance(position.get("all_text"), list):
        return [bool(each) for each in position["all_text"]]
    return [all(isinstance(raw, str) for raw in factors.ids) for factors in model.factors_]


def entries_of(chunk: Chunk) -> NDArray[Any]:
    """The ids of a chunk as the estimators take them: (n, K)."""
    import numpy as np

    if all(column.dtype == np.int64 for column in chunk.columns):
        return np.stack(chunk.columns, axis=1)
    entries = np.empty((len(chunk.rows), len(chunk.columns)), object)
    for mode, column in enumerate(chunk.columns):
        entries[:, mode] = column
    return entries


class BadRows:
    """Bad rows by policy: raise, skip, or into a file."""

    def __init__(self, source: Source, policy: OnBad, path: Path, *, after: int | None = None) -> None:
        """after: on a resume, rows beyond this one come again, and are taken out of the file first."""
        self.source, self.policy, self.path = source, policy, path
        self.count = 0
        if policy == OnBad.FILE:
            path.write_text("".join(self._known(after)), encoding="utf-8")

    def take(self, bad: Sequence[BadRow]) -> None:
        if not bad:
            return
        if self.policy == OnBad.RAISE:
            place = f"{self.source.name} {self.source.unit} {bad[0].row}"
            raise CommandError(f"{place}: {bad[0].reason} (--on-bad skip or file goes on without such rows)")
        self.count += len(bad)
        if self.policy == OnBad.FILE:
            with self.path.open("a", encoding="utf-8") as file:
                for each in bad:
                    record = {"source": self.source.name, **each._asdict()}
                    file.write(json.dumps(record, default=str) + "\n")

    def _known(self, after: int | None) -> list[str]:
        """What stays in a file of an earlier run; a file of anything else is not touched."""
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
            records = [json.loads(line) for line in lines]
            return [
                line
                for line, record in zip(lines, records, strict=True)
                if (record["source"] != self.source.name or record["row"] <= (after or 0))
                and after is not None
            ]
        except FileNotFoundError:
            return []
        except (ValueError, LookupError, TypeError):
            raise CommandError(f"{self.path}: not a file of rejected rows, name another --rejects") from None


def plain(value: Any) -> Any:
    """For JSON: NumPy's numbers as Python's, and None for what is not finite."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_json(record: Any) -> None:
    print(json.dumps(plain(record), default=str))


def print_pairs(title: str, pairs: Sequence[tuple[str, str]]) -> None:
    """A name and a text on each line."""
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for pair in pairs:
        table.add_row(*pair)
    _print(title, table)


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The first column is text, the others are numbers."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for place, name in enumerate(header):
        table.add_column(name, justify="right" if place else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    _print(title, table)


def _print(title: str, table: Any) -> None:
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    if title:
        console.print(title, style="bold", soft_wrap=True)
    console.print(table)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
