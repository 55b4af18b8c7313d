"""`spider demo`: a year of flights, learned while you watch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the picture and the model.")] = Path(
        "demo-output"
    ),
    entries: Annotated[int | None, typer.Option(metavar="N", min=1, help="Stop after N entries.")] = None,
) -> None:
    """Learn a year of flights and watch delay predictions improve."""
    from rich.console import Console

    from spidertensor.demo import race

    race.run(Console(file=sys.stdout), out, entries)
