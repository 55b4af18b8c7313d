"""Claims about other approximations in the inference, each against the first order of the paper."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from spidertensor.evaluation.metrics import METRICS
from spidertensor_study.report import costs
from spidertensor_study.report import runs as r
from spidertensor_study.report.paired import paired
from spidertensor_study.report.runs import Run
from spidertensor_study.report.verdicts import Claim, Duel, effect, judge, means

_KEYS = {"score": "score", "log_density": "log density"}  # key in a row, and its name in text


class Trial(NamedTuple):
    """Runs of the first-order approximation and of another one, on one data set with one activation."""

    data: str
    activation: str
    where: str
    metric: str
    first: Sequence[Run]
    other: Sequence[Run]
    crashed: tuple[int, int]  # runs of the first order, and of the other

    def by_seed(self, key: str) -> tuple[dict[int, float], dict[int, float]]:
        """The values for both approximations; empty if the rows lack this number."""
        first, other = (
            r.by_seed([run for run in group if key in run.scores["paper"]], "paper", key)
            for group in (self.first, self.other)
        )
        return first, other


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


def _no_better(found: Sequence[Run], text: str, trials: Sequence[Trial], other: str) -> Claim:
    """Holds if the other approximation is worse, by score and by log density, each on its own.

    If it is merely not shown to be better, the claim is undecided.
    """
    duels, notes = [], []
    for key, words in _KEYS.items():
        better: dict[str, list[bool]] = {}  # by activation, one for each seed
        for trial in trials:
            first, second = trial.by_seed(key)
            if not first or not second:
                continue
            metric = trial.metric if key == "score" else key
            ours, theirs = ({seed: r.loss(x, metric) for seed, x in each.items()} for each in (first, second))
            test = paired(ours, theirs)
            sign = -1 if METRICS[metric].higher_is_better else 1
            numbers = f"{means({'first-order': first, other: second})}: {effect(test, 'first-order', sign)}"
            where = f"{trial.where}: {words}"
            duels.append(Duel(trial.data, where, other, "first-order", test, numbers))
            shared = ours.keys() & theirs.keys()
            better.setdefault(trial.activation, []).extend(theirs[seed] < ours[seed] for seed in shared)
        notes += [
            f"{activation}, by {words}: better in {sum(each)} of {len(each)} pairs of runs with the same seed"
            for activation, each in better.items()
        ]
    judged = "score and log density, each on its own; undecided is neither better nor worse"
    cost = costs.summary(tried(found), ["first-order", other]) if duels else ""
    words = ("worse", "better")
    return Claim(text, judged, judge(duels), "approximations", notes=notes, costs=cost, words=words)


def _unstable(found: Sequence[Run], trials: Sequence[Trial], other: str) -> Claim:
    duels = []
    for trial in trials:
        first, second = trial.by_seed("rejected")
        test = paired(first, second)
        broken = sum(not math.isfinite(x) for x in trial.by_seed("score")[1].values())
        crashed = max(trial.crashed[1] - trial.crashed[0], 0)
        if broken or crashed:
            test = test._replace(difference=-math.inf, p=0.0)  # once is enough
        numbers = f"rejected updates: first order {_count(first)}, this one {_count(second)}"
        numbers += f"; scores that are not finite: {broken}; runs that crashed: {trial.crashed[1]}"
        duels.append(Duel(trial.data, trial.where, other, "first-order", test, numbers))
    judged = (
        "more rejected updates than with the first order, a score that is not finite, or a run that crashed; "
        "as many in every run, mostly none, is undecided: such runs cannot tell"
    )
    cost = costs.summary(tried(found), ["first-order", other]) if duels else ""
    words = ("less stable", "no less stable")
    text = "A second-order expansion is unstable"
    return Claim(text, judged, judge(duels), "approximations", costs=cost, words=words)


def _count(by_seed: Mapping[int, float]) -> str:
    cell = r.average(by_seed.values())
    if not cell:
        return "none"
    deviation = f" ± {cell.sd:,.0f}" if cell.seeds > 1 else ""
    return f"{cell.mean:,.0f}{deviation} ({cell.seeds} seed{'s' * (cell.seeds > 1)})"


def second_order(found: Sequence[Run], failed: Sequence[Run]) -> list[Claim]:
    trials = list(_trials(found, failed, "second-order"))
    text = "A second-order expansion is no better"
    return [
        _unstable(found, trials, "second-order"),
        _no_better(found, text, trials, "second-order"),
    ]


def quadrature(found: Sequence[Run], failed: Sequence[Run]) -> Claim:
    trials = list(_trials(found, failed, "noise-quadrature"))
    text = "A better approximation for the noise (quadrature) is no better"
    return _no_better(found, text, trials, "noise-quadrature")
