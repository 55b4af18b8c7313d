"""Options that describe a model, shared by the commands that make one, and the parameters they stand for."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from spidertensor.cli import options
from spidertensor.cli.errors import CommandError
from spidertensor.cli.options import Engine

Value = Annotated[str | None, typer.Option(metavar="NAME", help="The value column.")]
Binary = Annotated[bool, typer.Option("--binary", help="Values are 0 or 1; predict probabilities.")]
Counts = Annotated[
    bool, typer.Option("--counts", help="Values are counts (0, 1, ...); predict rates, never below 0.")
]
Levels = Annotated[
    str | None,
    typer.Option(
        metavar="N,N,...",
        help="Values are ordered levels, such as 1,2,3,4,5; predict the probability of each.",
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(
        metavar="NO,YES", help="With --binary: the two labels, positive last, if they are not 0 and 1."
    ),
]
Rank = Annotated[
    str | None,
    typer.Option(metavar="N", help="Number of factors per node: 8, or per mode: 8,4."),
]
Hidden = Annotated[
    str | None, typer.Option(metavar="N,N", help="Widths of the hidden layers, such as 50,50.")
]
Activation = Annotated[
    str | None, typer.Option(metavar="NAME", help="relu, tanh, sigmoid, softplus or gelu.")
]
Clip = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Learn outliers as if they were at most N standard deviations from their prediction. "
        "Default: 4; none turns it off.",
    ),
]
BatchSize = Annotated[int | None, typer.Option(metavar="N", help="Entries between refinements of the prior.")]
Passes = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="How often to learn the rows of a file; auto (default): until rows held back are not predicted "
        "better any more.",
    ),
]


def settings(
    *,
    rank: str | None = None,
    hidden: str | None = None,
    activation: str | None = None,
    engine: Engine | None = None,
    scaling: str | None = None,
    bounds: str | None = None,
    memory: float | None = None,
    committee: int | None = None,
    clip: str | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """The given options as flat parameters of an estimator."""
    ranks = None if rank is None else options.numbers("--rank", rank)
    found = {
        "rank": ranks[0] if ranks and len(ranks) == 1 else ranks and tuple(ranks),
        "hidden": None if hidden is None else tuple(options.numbers("--hidden", hidden)),
        "activation": activation,
        "engine": engine and engine.value,
        "scaling": options.scaling(scaling),
        "bounds": options.bounds(bounds),
        "memory": memory,
        "committee": committee,
        "batch_size": batch_size,
        "random_state": seed,
    }
    found = {name: setting for name, setting in found.items() if setting is not None}
    return found if clip is None else found | {"clip": _clip(clip)}


def levels(text: str | None) -> list[float] | None:
    """The text of --levels as the parameter `levels`."""
    if text is None:
        return None
    from spidertensor.estimator.parameters import is_levels  # imported late: slow

    found = sorted(options.numbers("--levels", text, float))
    if not is_levels(found):
        raise CommandError(f"--levels takes 2 to 100 different numbers, such as 1,2,3,4,5, not {text!r:.200}")
    return found


def check_kinds(**kinds: bool) -> None:
    """CommandError for values of two kinds."""
    if sum(kinds.values()) > 1:
        *most, last = (f"--{name}" for name in kinds)
        raise CommandError(f"use only one of {', '.join(most)} and {last}")


def check_of_values(settings: dict[str, Any], kind: str) -> None:
    """CommandError for settings of continuous values beside --binary or --events. kind: which of these"""
    for name in ("scaling", "bounds", "clip"):
        if name in settings:
            raise CommandError(f"--{name} is for continuous values, not with --{kind}")


def _clip(text: str) -> float | None:
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise CommandError(f"--clip takes a number of standard deviations or none, not {text!r}") from None
