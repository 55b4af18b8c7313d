"""Options for models of events: rows that say what happened, without a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spidertensor.cli import options
from spidertensor.cli.errors import CommandError

if TYPE_CHECKING:
    from spidertensor.faults import SpiderWarning
    from spidertensor.sources import Source

MODES = frozenset({"negatives_over", "remember_seen"})  # settings whose values are modes

Events = Annotated[
    bool,
    typer.Option("--events", help="Rows are events without a value; negatives are drawn at random."),
]
Over = Annotated[
    str | None,
    typer.Option(
        metavar="MODE",
        help="With --events: the mode to draw and rank, such as song; or several, which take turns.",
    ),
]
Negatives = Annotated[
    int | None,
    typer.Option(metavar="N", help="With --events: draws per event. [default: 8; 32 in several passes]"),
]
RememberSeen = Annotated[
    str | None,
    typer.Option(
        metavar="MODE",
        help="Never recommend what a node of this mode (such as user) already had; "
        "user,movie if there are more modes than two.",
    ),
]


def settings(
    events: bool, over: str | None, negatives: int | None, remember_seen: str | None, *, new: bool
) -> dict[str, Any]:
    """Options as parameters of the estimator. new: whether the model does not exist yet"""
    seen = None if remember_seen is None else tuple(options.words(remember_seen))
    given = {
        "negatives": negatives,
        "negatives_over": None if over is None else tuple(options.words(over)),
        "remember_seen": seen[0] if seen is not None and len(seen) == 1 else seen,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if not events:
        if given.keys() - {"remember_seen"}:
            raise CommandError("--over and --negatives need --events")
        return given
    if new and over is None:
        raise CommandError("--events needs --over, the mode to draw nodes from, such as --over product")
    from spidertensor.estimator.event_rule import NEGATIVES  # imported late: slow

    return ({"negatives": NEGATIVES} if new else {}) | given


def for_passes() -> int:
    """How many negatives are drawn in several passes, unless their number is given."""
    from spidertensor.estimator.event_rule import FIT_NEGATIVES  # imported late: slow

    return FIT_NEGATIVES


def unlearned_labels(
    source: Source, modes: Sequence[str], attributes: Sequence[str] = ()
) -> SpiderWarning | None:
    """Warn if a column looks like labels, because --events would learn its zeros as events."""
    from spidertensor import sources
    from spidertensor.faults import SpiderWarning

    if source.path is None:  # a pipe is read only once
        return None
    first = next(iter(sources.read(source, modes, keep=True)), None)
    rows = [] if first is None else first.records
    rows = rows if isinstance(rows, list) else rows.to_pylist()
    for name in dict.fromkeys(name for row in rows for name in row if name not in (*modes, *attributes)):
        if {str(row.get(name)) for row in rows} in ({"0", "1"}, {"False", "True"}):
            reason = f"column {name} has 0 and 1, but --events ignores it: every row is an event"
            remedy = f"if 0 means that it did not happen, use --value {name} --binary"
            return SpiderWarning(reason, kind="labels", remedy=remedy)
    return None


def with_mode_names(settings: dict[str, Any], modes: Sequence[str]) -> dict[str, Any]:
    """Settings with modes as names, for display."""
    found = dict(settings)
    for name in MODES.intersection(found):
        value = found[name]
        if isinstance(value, list | tuple):
            found[name] = [modes[mode] for mode in value]
        elif value is not None and not isinstance(value, bool):
            found[name] = modes[value]
    return found


def with_mode_numbers(settings: dict[str, Any], modes: Sequence[str]) -> dict[str, Any]:
    """Settings with modes as numbers, as in a model file."""
    found = {name: settings[name] for name in MODES.intersection(settings)}
    for name, value in found.items():
        words = value if isinstance(value, tuple) else (value,)
        if unknown := [word for word in words if word not in modes]:
            raise CommandError(f"no mode {unknown[0]!r}: the model has {', '.join(modes)}")
        numbers = tuple(modes.index(word) for word in words)
        found[name] = numbers if isinstance(value, tuple) else numbers[0]
    return settings | found
