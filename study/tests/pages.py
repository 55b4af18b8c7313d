"""Tables of Markdown pages, for tests that compare them with result rows."""

from __future__ import annotations

import re
from pathlib import Path

STUDY = Path(__file__).resolve().parents[1]
ROOT = STUDY.parent
BENCHMARKS = STUDY / "docs" / "benchmarks.md"


def table(page: Path, first_column: str) -> dict[str, list[str]]:
    """The table with this line: cells by the name in the first column, without a note in brackets."""
    text = page.read_text(encoding="utf-8")
    found = next(each for each in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE) if first_column in each)
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in found.splitlines()[2:]]
    return {re.sub(r"\*|\(.*\)", "", name).strip(): cells for name, *cells in rows}


def number(cell: str) -> float:
    return float(cell.replace("−", "-"))
