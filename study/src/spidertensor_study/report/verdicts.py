"""A claim and its verdict, from checks: one for each comparison that was run.

A check that compares two methods is a paired t test over their shared seeds, and the tests of a claim are
corrected together. No method is picked for being the best of several before it is tested.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from spidertensor_study.report.paired import FEWEST_SEEDS, LEVEL, Paired, holm
from spidertensor_study.report.runs import average, number

Outcome = Literal["win", "undecided", "loss", "not judged"]
RULE = (
    "Two methods are compared over the seeds that both were run with (same split, same order), by a "
    "two-sided paired t test for each pair of methods at each rank and batch size. Nobody is picked for "
    "being the best of several beforehand. Where one of the two does not see the batch size, or the rank, "
    "its runs are compared once and not at every setting. Holm's correction goes over all comparisons of a "
    f"claim; a difference counts where the corrected p is below {LEVEL}, and is undecided else. Comparisons "
    f"with fewer than {FEWEST_SEEDS} shared seeds are not judged. A method with a score that is not a number "
    "loses. A claim about every setting does not hold if it fails in one. Every comparison has the mean "
    "difference with its 95 % interval, not corrected, and in how many of the seeds the first of the two is "
    "ahead: what is undecided is not equal."
)
_MOST_PAIRS = 3  # most pairs of methods whose data sets a sentence names


class Check(NamedTuple):
    """Whether the claim holds in one comparison (a win) or not (a loss), and its numbers."""

    data: str
    where: str
    outcome: Outcome
    numbers: str
    ours: str = ""  # the method the claim is about
    theirs: str = ""  # the method it is compared with
    test: Paired | None = None  # where two methods are compared


class Duel(NamedTuple):
    """A check before the correction. The test has a difference below 0 where the claim holds."""

    data: str
    where: str
    ours: str
    theirs: str
    test: Paired
    numbers: str


def judge(duels: Sequence[Duel]) -> list[Check]:
    """All comparisons of one claim."""
    checks = []
    for duel, p in zip(duels, holm([duel.test.p for duel in duels]), strict=True):
        outcome: Outcome = "undecided"
        if math.isnan(p):
            outcome = "not judged"
        elif p < LEVEL:
            outcome = "win" if duel.test.difference < 0 else "loss"
        p_value = "" if math.isnan(p) or math.isinf(duel.test.difference) else f", p {_p_text(p)}"
        numbers = f"{duel.numbers}{p_value}"
        checks.append(Check(duel.data, duel.where, outcome, numbers, duel.ours, duel.theirs, duel.test))
    return checks


def _p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3g}"


def means(values_by_name: Mapping[str, Mapping[int, float]]) -> str:
    """The means of two methods over their shared seeds, or over all if there are none, as text."""
    shared = set.intersection(*(set(values) for values in values_by_name.values()))
    parts = []
    for name, values in values_by_name.items():
        cell = average(value for seed, value in values.items() if seed in shared or not shared)
        parts.append(f"{name} {number(cell.mean) if cell else 'not run'}")
    return ", ".join(parts)


def effect(test: Paired, name: str, sign: int = 1) -> str:
    """How large a difference is, and how steady, as text.

    name: the first of the two methods; sign: -1 where the numbers that were compared are losses of scores of
    which higher is better
    """
    seeds = f"{test.seeds} shared seed{'s' * (test.seeds != 1)}"
    if not math.isfinite(test.difference):
        return seeds
    ahead = f"{name} ahead in {test.better} of {seeds}"
    if math.isnan(test.error):
        return ahead
    middle = sign * test.difference
    low, high = (_signed(end) for end in (middle - test.error, middle + test.error))
    return f"difference {_signed(middle)} ({low} to {high}), {ahead}"


def _signed(value: float) -> str:
    return f"{value:+.2g}".replace("-", "\N{MINUS SIGN}")


def decided(holds: bool) -> Outcome:
    """The outcome of a check that needs no test."""
    return "win" if holds else "loss"


def counted(outcomes: Iterable[Outcome]) -> str:
    """The numbers of outcomes as text."""
    n = Counter(outcomes)
    wins = f"{n['win']} win{'s' * (n['win'] != 1)}"
    losses = f"{n['loss']} loss{'es' * (n['loss'] != 1)}"
    rest = f", {n['not judged']} not judged" if n["not judged"] else ""
    return f"{wins}, {n['undecided']} undecided, {losses}{rest}"


def against(checks: Sequence[Check]) -> list[str]:
    """The outcomes for each pair of methods, as text."""
    met: dict[tuple[str, str], list[Check]] = {}
    for check in checks:
        met.setdefault((check.ours, check.theirs), []).append(check)
    lines = []
    for (ours, theirs), each in met.items():
        tests = [check.test for check in each if check.test]
        better, runs = sum(test.better for test in tests), sum(test.seeds for test in tests)
        outcomes = counted(check.outcome for check in each)
        lines.append(
            f"{ours} against {theirs}: {outcomes}; for the claim in {better} of {runs} pairs of runs"
        )
    return lines


class Claim(NamedTuple):
    text: str
    judged: str  # how
    checks: Sequence[Check]
    section: str  # section of the page with the figure
    needed: float = 1.0  # share of the checks that must hold
    every: bool = True  # whether missing that share refutes the claim; otherwise it may hold in part
    notes: Sequence[str] = ()
    costs: str = ""
    words: tuple[str, str] | None = None  # "better", "worse": a win and a loss, where methods are compared
    figures: str = ""  # a sentence of its own, where counting checks says too little

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes of the checks that were judged."""
        return [check.outcome for check in self.checks if check.outcome != "not judged"]

    @property
    def status(self) -> str:
        outcomes = self.outcomes
        if not outcomes:
            return "not judged" if self.checks else "not run"
        wins, losses, enough = outcomes.count("win"), outcomes.count("loss"), self.needed * len(outcomes)
        if wins >= enough:
            return "holds" if len(outcomes) == len(self.checks) or not self.every else "holds where judged"
        out_of_reach = len(outcomes) - losses < enough
        if out_of_reach and (self.every or not wins):
            return "does not hold"
        return "holds in part" if wins else "undecided"

    @property
    def sentence(self) -> str:
        """The verdict as a sentence."""
        if not self.outcomes:
            too_few = f"No comparison has {FEWEST_SEEDS} shared seeds."
            return too_few if self.checks else "Nothing was run for it."
        outcomes, n = self.outcomes, len(self.outcomes)
        wins, losses, open_ones = (outcomes.count(each) for each in ("win", "loss", "undecided"))
        all_or_some = f"all {n}" if wins == n > 1 else f"{wins or 'none'} of {n}"
        if self.words:
            parts = [f"{self.words[0]} in {all_or_some} comparison{'s' * (n > 1)}"]
            parts += [f"{self.words[1]} in {losses}"] if losses else []
            parts += [f"undecided in {open_ones}{self._leanings()}"] if open_ones else []
        else:
            parts = [f"it holds in {all_or_some} check{'s' * (n > 1)}"]
        missing = len(self.checks) - n
        parts += [f"{missing} not judged"] if missing else []
        counts = ", ".join(parts)
        counts = f"{counts[0].upper()}{counts[1:]}."
        parts = [f"{self._failures()}."] * bool(losses) + [counts] + [self.figures] * bool(self.figures)
        return " ".join(parts)

    def _leanings(self) -> str:
        """How many of the undecided comparisons have the same sign in every seed."""
        tests = [check.test for check in self.checks if check.outcome == "undecided" and check.test]
        assert self.words
        better, worse = sum(t.always_better for t in tests), sum(t.always_worse for t in tests)
        each = [f"{n} {word}" for n, word in zip((better, worse), self.words, strict=True) if n]
        return f" (in every seed: {', '.join(each)})" if each else ""

    def _failures(self) -> str:
        """Which methods lose against which, and on which data, unless there are too many to name."""
        pairs: dict[tuple[str, str], list[str]] = {}
        for check in self.checks:
            if check.outcome == "loss":
                pairs.setdefault((check.ours, check.theirs), []).append(check.data)
        if not self.words:
            each = (f"not {f'{ours} ' * bool(ours)}on {_listed(data)}" for (ours, _), data in pairs.items())
            return "N" + "; ".join(each)[1:]
        verb = f"is {self.words[1]} than"
        if len(pairs) <= _MOST_PAIRS:
            each = (f"{ours} {verb} {theirs} on {_listed(data)}" for (ours, theirs), data in pairs.items())
            return "; ".join(each)
        ours, theirs = (list(dict.fromkeys(names)) for names in zip(*pairs, strict=True))
        if len(theirs) == 1:
            return f"{_listed(ours)} are {self.words[1]} than {theirs[0]}, each on some data"
        return "; ".join(
            f"{name} {verb} {_listed(theirs for ours, theirs in pairs if ours == name)}, each on some data"
            for name in ours
        )

    @property
    def verdict(self) -> str:
        """Status and counts as text."""
        outcomes: list[Outcome] = [check.outcome for check in self.checks]
        if not outcomes:
            return "not run"
        if self.words:
            return f"{self.status}: {counted(outcomes)}"
        return f"{self.status}: {self.outcomes.count('win')} of {len(self.outcomes)} checks"


def _listed(names: Iterable[str]) -> str:
    """The distinct texts as a list: "A, B and C"."""
    *most, last = dict.fromkeys(names)
    return f"{', '.join(most)} and {last}" if most else last
