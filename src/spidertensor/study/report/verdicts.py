"""A claim and its verdict: counted from checks, one for each setting that was run.

A comparison of two means that differ by no more than they vary over the seeds is a tie.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from spidertensor.study.report.runs import Cell, loss

Outcome = Literal["win", "tie", "loss"]
TIE = (
    "A tie is a difference of no more than the larger of the two standard deviations over the seeds (the one "
    "there is, where the other has one seed), unless all runs of one are better than all runs of the other."
)


def compare(ours: Cell, theirs: Cell, metric: str) -> Outcome:
    """Of two means; one that is not a number loses.

    A method that fails varies a lot: that alone must not make a tie of it, so runs have to overlap too.
    """
    difference = loss(ours.mean, metric) - loss(theirs.mean, metric)
    overlap = ours.low <= theirs.high and theirs.low <= ours.high
    if math.isnan(difference) or (overlap and abs(difference) <= spread(ours, theirs)):
        return "tie"  # NaN: neither is a number
    return "win" if difference < 0 else "loss"


def spread(first: Cell, second: Cell) -> float:
    """The larger of the two deviations over the seeds that is known; 0 if both have a single seed."""
    return max((sd for sd in (first.sd, second.sd) if math.isfinite(sd)), default=0.0)


def counted(outcomes: Iterable[Outcome]) -> str:
    """In words."""
    n = Counter(outcomes)
    parts = ((n["win"], "win", "wins"), (n["tie"], "tie", "ties"), (n["loss"], "loss", "losses"))
    return ", ".join(f"{count} {one if count == 1 else many}" for count, one, many in parts)


class Check(NamedTuple):
    """One setting: does the claim hold there (a win) or not (a loss), and by which numbers."""

    data: str
    where: str
    outcome: Outcome
    numbers: str


def decided(holds: bool) -> Outcome:
    """Of a check that knows no ties."""
    return "win" if holds else "loss"


class Claim(NamedTuple):
    text: str
    judged: str  # how
    checks: Sequence[Check]
    section: str  # of the page, where the figure is
    needed: float = 1.0  # share of the checks
    notes: Sequence[str] = ()
    compares: bool = False  # two means in each check, so that there can be ties

    @property
    def status(self) -> str:
        outcomes = [check.outcome for check in self.checks]
        if not outcomes:
            return "not run"
        if outcomes.count("win") >= self.needed * len(outcomes):
            return "holds"
        if "win" in outcomes:
            return "holds in part"
        return "does not hold" if "loss" in outcomes else "undecided"

    @property
    def verdict(self) -> str:
        """In words: how often, and on which data sets not."""
        if not self.checks:
            return "not run"
        outcomes: list[Outcome] = [check.outcome for check in self.checks]
        n, plural = len(outcomes), "s" * (len(outcomes) > 1)
        if self.compares:
            count = f"{counted(outcomes)} in {n} setting{plural}"
        else:
            count = f"{outcomes.count('win')} of {n} check{plural}"
        failed = []
        for data in dict.fromkeys(check.data for check in self.checks):
            here = [check.outcome for check in self.checks if check.data == data]
            if "loss" in here:
                failed.append(f"{data} ({here.count('loss')} of {len(here)})")
        where = f"; not on {', '.join(failed)}" if failed and "win" in outcomes else ""
        return f"{self.status}: {count}{where}"
