"""The command `spider-study`: the paper's experiments, its competitors and data sets.

`evaluate` is the command of `spider`, with the methods and data sets of the study.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer

from spidertensor.cli import program
from spidertensor.cli.output import say

COMMANDS = ("methods", "data", "experiment", "report")

app = program.empty_app("spider-study")
program.register(app, "spidertensor.cli", "evaluate", shown="method")
program.register(app, "spidertensor.cli", "docs")
for _name in COMMANDS:
    program.register(app, __name__, _name)


@app.callback(invoke_without_command=True)
def spider_study(context: typer.Context) -> None:
    """The experiments of the SPIDER paper: competitors, data sets, grids of runs, the report.

    \b
    spider-study evaluate movielens-1m --method post --rank 8
    spider-study evaluate movielens-100k-events --protocol last-out
    spider-study experiment study/experiments/grid.toml --quick
    spider-study report study/results --out report
    """
    if context.invoked_subcommand is None:
        say(*context.get_help().split("\n"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its code. An error prints one line and exits with 2."""
    from spidertensor_study.rows import ExperimentError, ResultsError

    given = sys.argv[1:] if arguments is None else arguments
    call = program.Call(given, _catalogue, forward=None)
    program.run(app, "spider-study", call, known_errors=(ExperimentError, ResultsError))


def _catalogue() -> Any:
    from spidertensor.evaluation.methods import Catalogue
    from spidertensor_study import datasets
    from spidertensor_study.registry import METHODS

    return Catalogue(METHODS, datasets.INFOS, datasets.load, datasets.described)
