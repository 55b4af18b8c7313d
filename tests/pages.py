"""The pages of the documentation as tests read them: blocks of code, tables."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from types import CodeType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"(?:^<!-- (not run|file): ([^>]*?) -->\n+)?^```(\w*)\n(.*?)^```$", re.S | re.M)


class Block(NamedTuple):
    language: str
    text: str
    marker: str
    about: str  # what stands behind the marker: a reason, or the name of a file
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(found[3], found[4], found[1] or "", found[2] or "", text.count("\n", 0, found.start(4)) + 1)
        for found in FENCE.finditer(text)
    ]


def output(code: CodeType, names: dict) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, names)
    return out.getvalue()


def table(page: Path, first_column: str) -> dict[str, list[str]]:
    """The table with this line: cells by the name in the first column, without a note in brackets."""
    text = page.read_text(encoding="utf-8")
    found = next(each for each in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE) if first_column in each)
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in found.splitlines()[2:]]
    return {re.sub(r"\*|\(.*\)", "", name).strip(): cells for name, *cells in rows}


def number(cell: str) -> float:
    return float(cell.replace("−", "-"))
