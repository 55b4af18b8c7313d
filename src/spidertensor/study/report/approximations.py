"""Claims about other approximations in the inference, each against the first order of the paper."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from spidertensor.study.report import runs as r
from spidertensor.study.report.runs import Cell, Run
from spidertensor.study.report.verdicts import Check, Claim, Outcome, compare, decided, spread

_SAID: dict[Outcome, str] = {"win": "better", "tie": "tied", "loss": "worse"}


class Trial(NamedTuple):
    """The first order and another approximation on one data set, with one activation."""

    data: str
    activation: str
    where: str
    metric: str
    first: Sequence[Run]
    other: Sequence[Run]
    crashed: tuple[int, int]  # runs of the first order and of the other one

    def cells(self, key: str) -> tuple[Cell | None, Cell | None]:
        return r.cell(self.first, "paper", key), r.cell(self.other, "paper", key)


def tried(found: Sequence[Run]) -> list[Run]:
    return [run for run in found if run.experiment.partition("-")[0] == "approximations"]


def activation(run: Run) -> str:
    return run.settings.get("activation") or "default activation"


def _trials(found: Sequence[Run], failed: Sequence[Run], other: str) -> Iterator[Trial]:
    def place(run: Run) -> tuple[str, str, int, int]:
        return run.data, activation(run), run.rank, run.batch_size

    good, bad = [run for run in tried(found) if "paper" in run.scores], tried(failed)
    for here in dict.fromkeys(map(place, [*good, *bad])):
        data, activated, rank, batch_size = here
        groups = [
            {run.seed: run for run in some if run.method == method and place(run) == here}
            for some in (good, bad)
            for method in ("first-order", other)
        ]
        first, second, *crashed = ([each[seed] for seed in sorted(each)] for each in groups)
        if first and (second or crashed[1]):
            where = f"{data}, {activated}, rank {rank}, batch {batch_size}"
            metric = r.metric(first, data)
            yield Trial(data, activated, where, metric, first, second, (len(crashed[0]), len(crashed[1])))


def _no_better(trials: Sequence[Trial], other: str) -> tuple[list[Check], list[str]]:
    """By score and by log density, each on its own; and notes on how the comparisons went."""
    checks, notes = [], []
    for key, words in (("score", "score"), ("log_density", "log density")):
        outcomes: dict[str, list[Outcome]] = {}  # by activation
        pairs: dict[str, list[Outcome]] = {}
        for trial in trials:
            first, second = trial.cells(key)
            if not first or not second:
                continue
            metric = trial.metric if key == "score" else key
            outcome, of_seeds = compare(second, first, metric), _pairs(trial, key, metric)
            outcomes.setdefault(trial.activation, []).append(outcome)
            pairs.setdefault(trial.activation, []).extend(of_seeds)
            numbers = f"first order {first}, {other} {second}: {_SAID[outcome]}; {_in_pairs(of_seeds)}"
            where = f"{trial.where}: no better {words}"
            checks.append(Check(trial.data, where, decided(outcome != "win"), numbers))
        for activation, each in outcomes.items():
            said = ", ".join(f"{word} in {each.count(outcome)}" for outcome, word in _SAID.items())
            notes.append(
                f"{activation}, by {words}: {said} of {len(each)} settings; {_in_pairs(pairs[activation])}"
            )
    return checks, notes


def _in_pairs(outcomes: Sequence[Outcome]) -> str:
    return f"better in {outcomes.count('win')} of {len(outcomes)} pairs of runs with the same seed"


def _pairs(trial: Trial, key: str, metric: str) -> list[Outcome]:
    second = {run.seed: run for run in trial.other}
    outcomes: list[Outcome] = []
    for run in trial.first:
        ours = r.cell([second[run.seed]], "paper", key) if run.seed in second else None
        theirs = r.cell([run], "paper", key)
        if ours and theirs:
            outcomes.append(compare(ours, theirs, metric))
    return outcomes


def _unstable(trials: Sequence[Trial]) -> list[Check]:
    checks = []
    for trial in trials:
        first, second = trial.cells("rejected")
        more = bool(
            first
            and second
            and min(first.seeds, second.seeds) > 1  # with one seed nothing is known about what is usual
            and second.mean > first.mean + spread(first, second)
        )
        broken = sum(not math.isfinite(r.number_of(run.scores["paper"]["score"])) for run in trial.other)
        crashed = max(trial.crashed[1] - trial.crashed[0], 0)
        numbers = f"rejected updates: first order {_count(first)}, this one {_count(second)}"
        numbers += f"; scores that are not finite: {broken}; runs that crashed: {trial.crashed[1]}"
        unstable = decided(more or broken > 0 or crashed > 0)
        checks.append(Check(trial.data, f"{trial.where}: unstable", unstable, numbers))
    return checks


def _count(cell: Cell | None) -> str:
    if not cell:
        return "none"
    deviation = f" ± {cell.sd:,.0f}" if cell.seeds > 1 else ""
    return f"{cell.mean:,.0f}{deviation} ({cell.seeds} seed{'s' * (cell.seeds > 1)})"


def second_order(found: Sequence[Run], failed: Sequence[Run]) -> Claim:
    judged = (
        "no better: worse or a tie, by score and by log density; unstable: more rejected updates "
        "than the first order by more than the larger standard deviation over the seeds, a score that is not "
        "finite, or a run that crashed"
    )
    trials = list(_trials(found, failed, "second-order"))
    checks, notes = _no_better(trials, "second-order")
    unstable = _unstable(trials)
    if unstable:
        seen = sum(check.outcome == "win" for check in unstable)
        notes.append(f"unstable in {seen} of {len(unstable)} settings")
    text = "A second-order expansion is unstable and no better"
    return Claim(text, judged, checks + unstable, "approximations", notes=notes)


def quadrature(found: Sequence[Run], failed: Sequence[Run]) -> Claim:
    checks, notes = _no_better(list(_trials(found, failed, "noise-quadrature")), "noise-quadrature")
    judged = "worse or a tie, by score and by log density"
    text = "A better approximation for the noise (quadrature) is no better"
    return Claim(text, judged, checks, "approximations", notes=notes)
