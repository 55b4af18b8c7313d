"""The options of a model of events: rows that say what happened, without a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spidertensor.cli import options
from spidertensor.cli.errors import CommandError

if TYPE_CHECKING:
    from spidertensor.faults import SpiderWarning
    from spidertensor.sources import Source

MODES = frozenset({"negatives_over", "remember_seen"})  # settings that are modes

Events = Annotated[
    bool, typer.Option("--events", help="Rows are events, without a value; what did not happen is drawn.")
]
Over = Annotated[
    str | None,
    typer.Option(
        metavar="MODE",
        help="With --events: the mode that is drawn and ranked: song; or several, which take turns.",
    ),
]
Negatives = Annotated[
    int | None,
    typer.Option(metavar="N", help="With --events: how many are drawn after each. [default: 8]"),
]
RememberSeen = Annotated[
    str | None,
    typer.Option(
        metavar="MODE",
        help="With --events: never recommend to a node of this mode, such as the user, what it had.",
    ),
]


def settings(
    events: bool, over: str | None, negatives: int | None, remember_seen: str | None, *, new: bool
) -> dict[str, Any]:
    """The options as parameters of SpiderClassifier. new: the model does not exist yet"""
    given = {
        "negatives": negatives,
        "negatives_over": None if over is None else tuple(options.words(over)),
        "remember_seen": remember_seen,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if not events:
        if given:
            raise CommandError("--over, --negatives and --remember-seen need --events beside them")
        return {}
    if new and over is None:
        raise CommandError("--events needs --over, the mode whose nodes are drawn: --over product")
    from spidertensor.estimator.event_rule import NEGATIVES  # imported late: slow

    return ({"negatives": NEGATIVES} if new else {}) | given


def unlearned_labels(source: Source, modes: Sequence[str]) -> SpiderWarning | None:
    """A note, if a file has a column that looks like labels: --events would take its zeros for events."""
    from spidertensor import sources
    from spidertensor.faults import SpiderWarning

    if source.path is None:  # a pipe is read only once
        return None
    first = next(iter(sources.read(source, modes, keep=True)), None)
    rows = [] if first is None else first.records
    rows = rows if isinstance(rows, list) else rows.to_pylist()
    for name in dict.fromkeys(name for row in rows for name in row if name not in modes):
        if {str(row.get(name)) for row in rows} in ({"0", "1"}, {"False", "True"}):
            reason = f"column {name} has 0 and 1, and --events does not look at it: every row is an event"
            remedy = f"if a 0 did not happen, learn it with --value {name} --binary"
            return SpiderWarning(reason, kind="labels", remedy=remedy)
    return None


def named(settings: dict[str, Any], modes: Sequence[str]) -> dict[str, Any]:
    """The settings of a model with modes by their names, for those who read them."""
    found = dict(settings)
    for name in MODES.intersection(found):
        value = found[name]
        if isinstance(value, list | tuple):
            found[name] = [modes[mode] for mode in value]
        elif value is not None and not isinstance(value, bool):
            found[name] = modes[value]
    return found


def numbered(settings: dict[str, Any], modes: Sequence[str]) -> dict[str, Any]:
    """The same with modes by their numbers, as a model file has them."""
    named = {name: settings[name] for name in MODES.intersection(settings)}
    for name, value in named.items():
        words = value if isinstance(value, tuple) else (value,)
        if unknown := [word for word in words if word not in modes]:
            raise CommandError(f"no mode {unknown[0]!r}: the model has {', '.join(modes)}")
        numbers = tuple(modes.index(word) for word in words)
        named[name] = numbers if isinstance(value, tuple) else numbers[0]
    return settings | named
