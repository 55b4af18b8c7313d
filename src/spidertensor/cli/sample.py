"""`spider sample`: a file of ratings to try the other commands with."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated

import typer

from spidertensor.cli import output
from spidertensor.cli.errors import CommandError


def sample(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The csv file to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write 4,000 made-up ratings of films to try things with.

    Columns: user, age, movie, genres, year, rating, time. The file is the same every time.

    \b
    spider sample ratings.csv
    spider fit ratings.csv --modes user,movie --value rating
    spider evaluate ratings.csv --modes user+age,movie+year --value rating
    """
    from spidertensor.demo.ratings import HEADER, ratings
    from spidertensor.writing import replacing

    if out.exists() and not force:
        raise CommandError(f"{out}: exists already; choose another name, or replace it with --force")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    rows = list(ratings())
    writer.writerows(rows)
    with replacing(out) as file:
        file.write(text.getvalue().encode())
    output.say(f"{out}: {output.counted(len(rows), 'made-up rating')}, columns {', '.join(HEADER)}")
