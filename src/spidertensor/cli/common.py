"""What several commands share: errors, words on the command line, bad rows, printing."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spidertensor import CustomNetwork, SpiderClassifier, SpiderRegressor
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
NetworkName = Annotated[
    str | None,
    typer.Option(
        "--network",
        metavar="MODULE:NAME",
        help="A CustomNetwork of yours, NAME in MODULE, which is looked for in this folder first. It is run.",
    ),
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


def load_model(path: Path, network: str | None) -> SpiderRegressor | SpiderClassifier:
    from spidertensor.estimator import load

    try:
        return load(path, None if network is None else named_network(network))
    except ModuleNotFoundError as error:  # of JAX
        raise CommandError(str(error)) from None


def named_network(text: str) -> CustomNetwork:
    """What --network names. Only the user's own words get here, never what a file says: a module is code."""
    from spidertensor import CustomNetwork

    module, _, name = text.partition(":")
    if not (module and name):
        raise CommandError(f"--network takes MODULE:NAME, such as networks:costco, not {text!r}")
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        imported = import_module(module)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) and error.name else ""
        reason = f"{type(error).__name__}: {error}"
        if missing == "jax":
            reason = "needs jax: pip install 'spidertensor[jax]'"
        elif missing and f"{module}.".startswith(f"{missing}."):
            reason = f"no module {missing!r}, neither in this folder nor installed"
        raise CommandError(f"--network {text}: {reason}") from None
    finally:
        sys.path.remove(folder)
    found = getattr(imported, name, None)
    if found is None:
        raise CommandError(f"--network {text}: {module} has no {name!r}")
    if not isinstance(found, CustomNetwork):
        raise CommandError(f"--network {text}: a {type(found).__name__}, not a CustomNetwork")
    return found


def mode_names(model: Any) -> list[str]:
    """The columns a model was fitted with; numbers from 0 if they had no names."""
    names = getattr(model, "feature_names_in_", None)
    return [str(mode) for mode in range(model.n_features_in_)] if names is None else [str(n) for n in names]


def all_text(model: Any) -> list[bool]:
    """Per mode, whether "42" on a line means the text: as the model was fitted, else by the ids it knows."""
    position = getattr(model, "position_", None)
    if isinstance(position, dict) and isinstance(position.get("all_text"), list):
        return [bool(each) for each in position["all_text"]]
    return [nodes.kinds == ("str",) for nodes in model._fitted().nodes]


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
    """Bad rows by policy: raise, skip, or into a file, which is not touched before a chunk is read."""

    def __init__(
        self, source: Source, policy: OnBad, path: Path, *, after: int | None = None, replace: bool = False
    ) -> None:
        """What an existing file holds stays, but for

        after:   on a resume, the rows beyond this one at its end: they come again
        replace: everything
        """
        self.source, self.policy, self.path, self.after, self.replace = source, policy, path, after, replace
        self.count = 0
        self._ready = policy != OnBad.FILE
        if not self._ready:
            self._kept()  # a file of anything else is found before anything is done

    def take(self, bad: Sequence[BadRow]) -> None:
        if not self._ready:
            self._prepare()
            self._ready = True
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

    def _prepare(self) -> None:
        if not self.path.is_file():
            return
        kept = self._kept()
        if kept == self.path.read_bytes():
            return
        target = Path(os.path.realpath(self.path))
        part = target.with_name(f".{target.name}.part")
        try:
            part.write_bytes(kept)
            shutil.copymode(target, part)
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)

    def _kept(self) -> bytes:
        """What stays of a file of rejected rows, in whole lines: a kill may have torn the last one."""
        *lines, rest = self.path.read_bytes().split(b"\n") if self.path.is_file() else [b""]
        if _is_rejected(rest):
            lines.append(rest)
            rest = b""
        start = b'{"source": '
        if not (all(map(_is_rejected, lines)) and (rest.startswith(start) or start.startswith(rest))):
            raise CommandError(f"{self.path}: not a file of rejected rows, name another --rejects")
        if self.replace:
            return b""
        while lines and self.after is not None and self._comes_again(json.loads(lines[-1])):
            lines.pop()
        return b"".join(line + b"\n" for line in lines)

    def _comes_again(self, record: dict[str, Any]) -> bool:
        assert self.after is not None
        return Path(record["source"]).name == Path(self.source.name).name and record["row"] > self.after


def _is_rejected(line: bytes) -> bool:
    try:
        match json.loads(line):
            case {"source": str(), "row": int(), "reason": str()}:
                return True
    except (ValueError, RecursionError):
        pass
    return False


def check_apart(files: dict[str, Path | str | None]) -> None:
    """No two of the files of a command are the same, under whatever names."""
    there = [(name, Path(path)) for name, path in files.items() if path is not None]
    for (name, path), (other, beside) in combinations(there, 2):
        both = path.exists() and beside.exists()
        if path.samefile(beside) if both else path.resolve() == beside.resolve():
            raise CommandError(f"{beside}: {name} and {other} are the same file")


def check_writable(path: Path) -> None:
    """Found now and not after hours of learning: a folder that is not there, or not ours."""
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise CommandError(f"{path}: No such file or directory: its folder must be there")
    if path.is_dir():
        raise CommandError(f"{path}: is a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CommandError(f"{path}: its folder is not writable")


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


def working(text: str) -> AbstractContextManager[Any]:
    """Something that moves on a terminal while a command has nothing to say yet."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.status(text) if console.is_terminal else nullcontext()


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
