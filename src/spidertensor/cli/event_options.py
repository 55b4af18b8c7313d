"""The options of a model of events: rows that say what happened, without a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from spidertensor.cli import options
from spidertensor.cli.errors import CommandError

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
            raise CommandError("--over, --negatives and --remember-seen are for --events")
        return {}
    if new and over is None:
        raise CommandError("--events needs --over, the mode whose nodes are drawn: --over product")
    from spidertensor.estimator.event_rule import NEGATIVES  # imported late: slow

    return ({"negatives": NEGATIVES} if new else {}) | given


def numbered(settings: dict[str, Any], modes: Sequence[str]) -> dict[str, Any]:
    """The same with modes by their numbers, as a model file has them."""
    named = {name: settings[name] for name in ("negatives_over", "remember_seen") if name in settings}
    for name, value in named.items():
        words = value if isinstance(value, tuple) else (value,)
        if unknown := [word for word in words if word not in modes]:
            raise CommandError(f"no mode {unknown[0]!r}: the model has {', '.join(modes)}")
        numbers = tuple(modes.index(word) for word in words)
        named[name] = numbers if isinstance(value, tuple) else numbers[0]
    return settings | named
