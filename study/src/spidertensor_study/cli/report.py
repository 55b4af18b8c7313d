"""`spider-study report`: the results of experiments as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spidertensor.cli import output
from spidertensor.cli.errors import CommandError
from spidertensor.writing import naming


def report(
    results: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULTS", help="Results of experiments: .jsonl or .jsonl.gz files, or folders."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the page and its figures.")] = Path(
        "report"
    ),
) -> None:
    """Make an HTML page from the results of experiments.

    Also writes the claims in Markdown and a PNG of every figure, and prints the paths.

    \b
    spider-study report results --out report
    spider-study report grid.jsonl time.jsonl.gz --out /tmp/report
    """
    from spidertensor_study.report import write
    from spidertensor_study.rows import read

    rows = read(results)
    try:
        with naming(out):
            paths = write(rows, out)
    except ModuleNotFoundError as error:
        raise CommandError(f"the report needs {error.name}: pip install 'spidertensor[plot]'") from None
    for path in paths:
        output.say(str(path))
