"""The command `spider`: parse, call, print. Heavy packages are imported when a command runs.

To add a command, write its file and add its name to COMMANDS.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

import spidertensor
from spidertensor.cli import moved, program
from spidertensor.cli.output import say

if TYPE_CHECKING:
    from spidertensor.evaluation.methods import Catalogue

# One file each, in the order of `spider --help`.
COMMANDS = (
    "fit", "predict", "recommend", "similar", "explain", "rollback", "info", "serve", "forget", "evaluate",
    "tune", "sample", "demo", "warmup", "docs",
)  # fmt: skip

app = program.empty_app("spider")
for _name in COMMANDS:
    program.register(app, __name__, _name)
for _name in moved.COMMANDS:
    moved.register(app, _name)


@app.callback(invoke_without_command=True)
def spider(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Streaming Bayesian deep tensor factorization: learn from a stream of entries, predict with uncertainty.

    \b
    spider demo
    spider fit ratings.csv --modes user,movie --value rating
    spider recommend ratings.spider --given user=42 --over movie

    `spider COMMAND --help` has more examples.
    """
    if version:
        say(f"spider {spidertensor.__version__}")
    elif context.invoked_subcommand is None:
        say(*context.get_help().split("\n"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its code; errors print one line and exit with code 2."""
    given = sys.argv[1:] if arguments is None else arguments
    program.run(app, "spider", program.Call(given, _catalogue, moved.forward))


def _catalogue() -> Catalogue:
    from spidertensor import demo
    from spidertensor.evaluation.methods import METHODS, Catalogue

    return Catalogue(METHODS, demo.INFOS, demo.load)
