"""A claim and its verdict: counted from checks, one for each setting that was run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Check(NamedTuple):
    """One setting: does the claim hold there, and by which numbers."""

    data: str
    where: str
    holds: bool
    numbers: str


class Claim(NamedTuple):
    text: str
    judged: str  # how
    checks: Sequence[Check]
    section: str  # of the page, where the figure is
    needed: float = 1.0  # share of the checks
    notes: Sequence[str] = ()

    @property
    def status(self) -> str:
        held = sum(check.holds for check in self.checks)
        if not self.checks:
            return "not run"
        if held >= self.needed * len(self.checks):
            return "holds"
        return "holds in part" if held else "does not hold"

    @property
    def verdict(self) -> str:
        """In words: how often, and on which data sets not."""
        if not self.checks:
            return "not run"
        held = sum(check.holds for check in self.checks)
        words = f"{self.status}: {held} of {len(self.checks)} settings"
        failed = []
        for data in dict.fromkeys(check.data for check in self.checks):
            here = [check.holds for check in self.checks if check.data == data]
            if not all(here):
                failed.append(f"{data} ({here.count(False)} of {len(here)})")
        return f"{words}; not on {', '.join(failed)}" if failed and held else words
