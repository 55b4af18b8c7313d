"""Printing: tables and JSON to standard output, notes and progress to standard error.

All output of a command goes through this file. Names and ids may come from untrusted files, so control
characters are printed as escapes (`\\x1b`) that a terminal does not interpret.
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

# Control characters, including ESC and line ends; marks that change the writing direction; and lone
# surrogates, which cannot be printed.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
METRICS = {"rmse": "RMSE", "auc": "AUC", "log_loss": "log loss"}


def counted(n: int, noun: str, plural: str = "") -> str:
    """ "1 row", "2,000 rows" """
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def plain(value: Any) -> Any:
    """Convert for JSON: NumPy numbers to Python numbers, NaN and infinity to None."""
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
    """Escape characters that a terminal would interpret, such as those that clear the screen."""
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text)


def shown(raw: Any) -> str:
    """An id as text; hex if it has too many digits for Python's str()."""
    try:
        return str(raw)
    except ValueError:
        return hex(raw) if isinstance(raw, int) else f"<{type(raw).__name__}>"


class Terminal:
    """Standard output as a file: unchanged text to a file or a pipe, `safe` text to a terminal."""

    def write(self, text: str) -> None:
        if sys.stdout.isatty():
            text = "\n".join(map(safe, text.split("\n")))
        sys.stdout.write(text)


def say(*lines: str) -> None:
    """Print lines to standard output at once: a reader may wait for the address of `spider serve`."""
    for line in lines:
        print(safe(line), flush=True)


def print_json(record: Any) -> None:
    print(json.dumps(plain(record), default=str))  # ASCII: JSON escapes the rest


def print_pairs(title: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Print a name and a text per line."""
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for pair in pairs:
        table.add_row(*map(safe, pair))
    _print(title, table)


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first column is text and the others numbers."""
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
    """Show a spinner while a command works, if on a terminal."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    return console.status(escape(safe(text))) if console.is_terminal else nullcontext()


@contextmanager
def bar(text: str) -> Iterator[Callable[[float | None], None]]:
    """Show a progress bar, if on a terminal. Call the yielded function with the share done, or None."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (BarColumn(20), TextColumn("{task.percentage:>3.0f}%"), TextColumn("{task.description}"))
    shown = 0.0

    def update(share: float | None) -> None:
        nonlocal shown
        if share is not None and perf_counter() - shown > 0.1:  # seconds; drawing takes longer than a batch
            shown = perf_counter()
            progress.update(task, total=1.0, completed=min(share, 1.0))

    if not console.is_terminal:
        yield lambda share: None
        return
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(escape(safe(text)), total=None)
        yield update


def note(text: str) -> None:
    print(safe(text), file=sys.stderr, flush=True)


def members_of(model: Any) -> list[dict[str, Any]]:
    """Committee members: their own settings, weight, and log evidence per entry."""
    members, entries = model.members_, max(model.n_entries_, 1)
    leading = max(members, key=lambda member: member.weight)
    return [
        {
            "own": dict(sorted(member.own.items())),  # in the order of a model file
            "weight": member.weight,
            "log_evidence": member.log_evidence / entries,
            "leading": member is leading,
        }
        for member in members
    ]


def settings_text(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={setting}" for name, setting in settings.items())


def evidence(per_entry: float, model: Any) -> str:
    """Log evidence as text; for events, it includes their draws."""
    each = "event and its draws" if model.learns_events else "entry"
    return f"{per_entry:.4f} per {each} (log density of the value, predicted before it; higher is better)"


def counts_of(model: Any) -> dict[str, Any]:
    """Counts of what was not learned, clipped or evicted. clipped, followed: None for binary values"""
    return {
        "rejected": model.n_rejected_,
        "refused": model.n_refused_,
        "clipped": getattr(model, "n_clipped_", None),
        "followed": getattr(model, "followed_", None),
        "evicted": dict(zip(model.mode_names_, model.n_evicted_, strict=True)),
    }


def pairs_of_counts(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Describe the counts that are not 0."""
    phrases = {
        "clipped": ("entry", "entries", "with a clipped residual"),
        "refused": ("entry", "entries", "whose values could not be learned"),
        "rejected": ("update", "updates", "of single elements, which would have made a variance negative"),
    }
    pairs = []
    for name, (one, many, what) in phrases.items():
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


def pairs_of_history(history: dict[str, Any] | None, metric: str) -> list[tuple[str, str]]:
    """What `fit` says of its passes over a history."""
    if history is None:
        return []
    from spidertensor.learner.floors import FLOORS  # imported late: slow

    errors, chosen = history["errors"], history["chosen"]
    kept = "" if chosen == len(errors) else f", the model is that of pass {chosen}"
    entries = counted(history["judged"], "entry", "entries")
    of_floors = history.get("floors", {})
    floors = [f"{words} {of_floors[name]:.4f}" for name, words in FLOORS.items() if name in of_floors]
    at_rest = f"{METRICS[metric]} {errors[chosen - 1]:.4f} on {history['judge']} {entries} held back"
    return [
        ("passes", f"{len(errors)}: {history['stopped']}{kept}"),
        ("each pass", f"{METRICS[metric]} {', '.join(f'{each:.4f}' for each in errors)}"),
        ("at rest", "; ".join([at_rest, *([", ".join(floors)] if floors else [])])),
        *([("sites", history["sites"])] if "sites" in history else []),
    ]
