"""Claims as a table of Markdown, short: where a claim fails and by how much. The page has every number."""

from __future__ import annotations

from collections.abc import Iterable

from spidertensor.study.report.verdicts import Claim

FEW = 4  # settings in a cell


def claims(title: str, text: str, warnings: Iterable[str], found: Iterable[Claim]) -> str:
    rows = "\n".join(
        f"| {_cell(claim.text)} | {_cell(claim.verdict)} | {_evidence(claim)} |" for claim in found
    )
    return (
        f"# {title}\n\n"
        + "".join(f"**{_cell(warning)}**\n\n" for warning in warnings)
        + f"Made by `spider report`. {text}\n\n"
        f"| claim of the paper | what we found | numbers |\n|---|---|---|\n{rows}\n"
    )


def _evidence(claim: Claim) -> str:
    """Some of the settings, those first where the claim fails, then where it is a tie; then the notes."""
    shown = sorted(claim.checks, key=lambda check: ("loss", "tie", "win").index(check.outcome))
    parts = [f"{_cell(check.where)}: {_cell(check.numbers)}" for check in shown[:FEW]]
    if len(shown) > FEW:
        parts.append(f"and {len(shown) - FEW} more")
    return "<br>".join([*parts, *map(_cell, claim.notes), f"judged by {_cell(claim.judged)}"])


def _cell(text: str) -> str:
    """Nothing in a name or a number may end the cell or begin a tag."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
