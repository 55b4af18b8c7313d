"""Claims in Markdown: a sentence for each, and some of its numbers in a fold; the HTML page has all."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from spidertensor_study.report.verdicts import Claim

FEW = 6  # maximum number of comparisons in a fold
ORDER = ("loss", "undecided", "not judged", "win")  # comparisons against the claim first


def claims(title: str, text: str, warnings: Iterable[str], found: Iterable[Claim]) -> str:
    found = list(found)
    rows = "\n".join(
        f"| {_cell(claim.text)} | **{claim.status.capitalize()}.** {_cell(claim.sentence)} "
        f"| {_cell(claim.costs)} |"
        for claim in found
    )
    folds = "\n\n".join(_fold(claim) for claim in found if claim.checks)
    return (
        f"# {title}\n\n"
        + "".join(f"**{_cell(warning)}**\n\n" for warning in warnings)
        + "Made by `spider-study report`: every verdict is computed from the runs.\n\n"
        f"| claim of the paper | what we found | cost |\n|---|---|---|\n{rows}\n\n"
        f"## How it is judged\n\n{text}\n\n## The numbers\n\n{folds}\n"
    )


def _fold(claim: Claim) -> str:
    """A fold as HTML, which Markdown keeps: notes, then comparisons, those against the claim first."""
    shown = sorted(claim.checks, key=lambda check: ORDER.index(check.outcome))
    lines = [f"Judged by {claim.judged}.", *claim.notes]
    lines += [f"{check.outcome}: {check.where}: {check.numbers}" for check in shown[:FEW]]
    if len(shown) > FEW:
        lines.append(f"and {len(shown) - FEW} more, on the page that spider-study report makes")
    items = "\n".join(f"<li>{escape(line)}</li>" for line in lines)
    head = f"{escape(claim.text)}: {escape(claim.verdict)}"
    return f"<details><summary>{head}</summary>\n<ul>\n{items}\n</ul>\n</details>"


def _cell(text: str) -> str:
    """Escape what would end the cell or begin a tag."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
