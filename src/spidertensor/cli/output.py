"""Printing: tables and JSON to standard output, notes and progress to standard error.

Everything that a command prints goes through this file. Names and ids come from files and data of anybody, so
control characters are shown as escapes (`\\x1b`): a terminal must not obey them.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import Any

# Control characters, among them ESC and the line ends; marks that turn the direction of writing; and halves
# of surrogate pairs, which cannot be printed at all.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
METRICS = {"rmse": "RMSE", "auc": "AUC", "log_loss": "log loss"}


def counted(n: int, noun: str, plural: str = "") -> str:
    """ "1 row", "2,000 rows" """
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def plain(value: Any) -> Any:
    """For JSON: Python's numbers for NumPy's, and None for NaN and infinity."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and value.bit_length() > 1024:
        return shown(value)
    return value


def safe(text: str) -> str:
    """A text that a terminal shows and does not obey: "\\x1b[2J" for the characters that clear a screen."""
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text)


def shown(raw: Any) -> str:
    """An id as text. Python refuses to write out an int of thousands of digits."""
    try:
        return str(raw)
    except ValueError:
        return hex(raw) if isinstance(raw, int) else f"<{type(raw).__name__}>"


class Terminal:
    """Standard output as a file for rows of data: as they are for a file or a pipe, `safe` for a terminal."""

    def write(self, text: str) -> None:
        if sys.stdout.isatty():
            text = "\n".join(map(safe, text.split("\n")))
        sys.stdout.write(text)


def say(*lines: str) -> None:
    """To standard output, at once: where `spider serve` listens is read from a file or a pipe too."""
    for line in lines:
        print(safe(line), flush=True)


def print_json(record: Any) -> None:
    print(json.dumps(plain(record), default=str))  # ASCII, with escapes of its own


def print_pairs(title: str, pairs: Sequence[tuple[str, str]]) -> None:
    """A name and a text on each line."""
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for pair in pairs:
        table.add_row(*map(safe, pair))
    _print(title, table)


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The first column is text, the others are numbers."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for place, name in enumerate(header):
        table.add_column(safe(name), justify="right" if place else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(safe, row))
    _print(title, table)


def _print(title: str, table: Any) -> None:
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    if title:
        console.print(safe(title), style="bold", soft_wrap=True)
    console.print(table)


def working(text: str) -> AbstractContextManager[Any]:
    """A moving line on a terminal while a command works."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    return console.status(escape(safe(text))) if console.is_terminal else nullcontext()


@contextmanager
def bar(text: str) -> Iterator[Callable[[float | None], None]]:
    """A bar on a terminal while a command works: call what it gives with the share that is done, if known."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (BarColumn(20), TextColumn("{task.percentage:>3.0f}%"), TextColumn("{task.description}"))
    shown = 0.0

    def tell(share: float | None) -> None:
        nonlocal shown
        if share is not None and perf_counter() - shown > 0.1:  # seconds: showing it is slower than a batch
            shown = perf_counter()
            progress.update(task, total=1.0, completed=min(share, 1.0))

    if not console.is_terminal:
        yield lambda share: None
        return
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(escape(safe(text)), total=None)
        yield tell


def note(text: str) -> None:
    print(safe(text), file=sys.stderr, flush=True)


def members_of(model: Any) -> list[dict[str, Any]]:
    """The models of the committee: what each has of its own, its weight, and its evidence per entry."""
    members, entries = model.members_, max(model.n_entries_, 1)
    leading = max(members, key=lambda member: member.weight)
    return [
        {
            "own": dict(sorted(member.own.items())),  # as a file has them
            "weight": member.weight,
            "log_evidence": member.log_evidence / entries,
            "leading": member is leading,
        }
        for member in members
    ]


def named(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={setting}" for name, setting in settings.items())


def evidence(per_entry: float, model: Any) -> str:
    """Of an event it is that of the event and of all that was drawn after it."""
    return f"{per_entry:.4f} per {'event and its draws' if model.learns_events else 'entry'}"


def counts_of(model: Any) -> dict[str, Any]:
    """What a model did not learn, not in full, or gave up; clipped and followed: None for binary values."""
    return {
        "rejected": model.n_rejected_,
        "refused": model.n_refused_,
        "clipped": getattr(model, "n_clipped_", None),
        "followed": getattr(model, "followed_", None),
        "evicted": dict(zip(model.mode_names_, model.n_evicted_, strict=True)),
    }


def pairs_of_counts(record: dict[str, Any]) -> list[tuple[str, str]]:
    """The counts that are not 0, in words."""
    said = {
        "clipped": ("entry", "entries", "with a residual that was clipped"),
        "refused": ("entry", "entries", "whose values could not be learned"),
        "rejected": ("update", "updates", "of single elements"),
    }
    pairs = []
    for name, (one, many, what) in said.items():
        if record[name]:
            pairs.append((name, f"{counted(record[name], one, many)} {what}"))
    times = {name: n for name, n in (record["followed"] or {}).items() if n}
    if times:
        changes = ", ".join(f"{name} {counted(n, 'time')}" for name, n in times.items())
        pairs.append(("followed", f"changes of the values: {changes}"))
    evicted = [f"{counted(n, 'node')} of {mode}" for mode, n in record["evicted"].items() if n]
    if evicted:
        pairs.append(("evicted", f"{', '.join(evicted)}, to make room for new ids"))
    return pairs
