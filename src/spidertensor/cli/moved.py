"""Spellings of before 0.3 for what `spider-study` does now: forwarded for one version, and hidden.

The study is found as an installed program, never imported: the product does not depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points

import typer

from spidertensor.cli.errors import CommandError
from spidertensor.cli.output import note

COMMANDS = ("methods", "data", "experiment", "report")
_PROGRAM = "spider-study"


def forward(arguments: Sequence[str], unknown: str = "") -> None:
    """Run spider-study with these arguments.

    unknown: what `spider` does not know, where a misspelling may be meant; to be told if there is no study
    """
    found = entry_points(group="console_scripts", name=_PROGRAM)
    old, new = f"spider {arguments[0]}", f"{_PROGRAM} {arguments[0]}"
    if not found:
        where = "of the package spidertensor-study: in a clone of the repository, pip install ./study"
        raise CommandError(
            f"{unknown}; more are known to `{new}`, {where}" if unknown else f"this is now `{new}`, {where}"
        )
    note(f"note: `{old}` is now `{new}`; the old spelling goes with the next version")
    next(iter(found)).load()(arguments)


def register(app: typer.Typer, name: str) -> None:
    """Take all arguments of a moved command as they are, --help too."""

    @app.command(
        name,
        hidden=True,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def command(context: typer.Context) -> None:
        forward([name, *context.args])
