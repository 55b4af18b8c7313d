"""What the paper claims, and whether our runs say so. Pure functions of runs: no drawing, no opinion.

A claim is judged by checks, one for each setting that was run; a check knows its numbers. A claim about which
nothing was run says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from spidertensor.study.registry import FLOORS
from spidertensor.study.report import approximations, behaviour
from spidertensor.study.report import runs as r
from spidertensor.study.report.runs import Cell, Run
from spidertensor.study.report.verdicts import Check, Claim, Outcome, compare, counted, decided

NEAR_CHANCE = 0.05  # of AUC 0.5
MEANS = "means over the seeds on the test sets of Figure 1"


def claims(found: Sequence[Run], failed: Sequence[Run] = ()) -> list[Claim]:
    """Those of the paper in its order, then two of our own that a reader should ask about."""
    return [
        _beats_all(found, r.PAPER, "SPIDER (ReLU or tanh) is better than every competitor in every setting"),
        _relu(found),
        behaviour.smooth(found),
        _chance(found),
        _static(found),
        behaviour.pruned(found),
        behaviour.cost(found),
        behaviour.on_the_fly(found),
        _gp(found),
        approximations.second_order(found, failed),
        approximations.quadrature(found, failed),
        _floors(found),
        _beats_all(
            found, ("spider",), "Not in the paper: spidertensor's default is better than every competitor"
        ),
    ]


class Setting(NamedTuple):
    """One place of the grid on the test set of Figure 1, and the cells of some methods there."""

    data: str
    where: str
    metric: str
    cells: dict[str, Cell]

    def best(self, names: Iterable[str]) -> str:
        return min(names, key=lambda name: r.loss(self.cells[name].mean, self.metric))

    def compare(self, ours: str, theirs: str) -> Outcome:
        return compare(self.cells[ours], self.cells[theirs], self.metric)

    def says(self, *names: str) -> str:
        return ", ".join(f"{name} {self.cells[name]}" for name in names)


def _settings(found: Sequence[Run]) -> Iterator[Setting]:
    grid = r.paper_grid(found)
    for data in r.data_sets(grid):
        of_data = [run for run in grid if run.data == data]
        for rank, batch_size in r.points(of_data):
            cells = {
                name: cell
                for name in r.names(of_data)
                if (cell := r.cell(r.at(of_data, name, data, rank, batch_size), "paper"))
            }
            where = f"{data}, rank {rank}, batch {batch_size}"
            if cells:
                yield Setting(data, where, r.metric(of_data, data), cells)


def _duels(
    found: Sequence[Run], ours: Iterable[str], theirs: Iterable[str]
) -> Iterator[tuple[Setting, list[str], list[str]]]:
    """The settings where both sides were run, and what was run of each."""
    grid = r.paper_grid(found)
    our_names, their_names = r.names(grid, ours), r.names(grid, theirs)
    for setting in _settings(found):
        we = [name for name in our_names if name in setting.cells]
        they = [name for name in their_names if name in setting.cells]
        if we and they:
            yield setting, we, they


def _best_against_best(found: Sequence[Run], ours: Iterable[str], theirs: Iterable[str]) -> list[Check]:
    checks = []
    for setting, we, they in _duels(found, ours, theirs):
        first, second = setting.best(we), setting.best(they)
        outcome = setting.compare(first, second)
        checks.append(Check(setting.data, setting.where, outcome, setting.says(first, second)))
    return checks


def _one_by_one(found: Sequence[Run], ours: Sequence[str], theirs: Sequence[str]) -> list[str]:
    """How the best of ours does against each of them."""
    met: dict[str, list[Outcome]] = {}
    for setting, we, they in _duels(found, ours, theirs):
        best = setting.best(we)
        for name in they:
            met.setdefault(name, []).append(setting.compare(best, name))
    return [f"against {name}: {counted(outcomes)}" for name, outcomes in met.items()]


def _beats_all(found: Sequence[Run], ours: Sequence[str], text: str) -> Claim:
    judged = f"{MEANS}, against the best competitor of each setting"
    checks = _best_against_best(found, ours, r.COMPETITORS)
    notes = _one_by_one(found, ours, r.COMPETITORS)
    return Claim(text, judged, checks, "grid", notes=notes, compares=True)


def _relu(found: Sequence[Run]) -> Claim:
    checks = _best_against_best(found, r.PAPER[:1], r.PAPER[1:])
    return Claim("ReLU is better than tanh", MEANS, checks, "grid", compares=True)


def _chance(found: Sequence[Run]) -> Claim:
    names = r.names(r.paper_grid(found), ["svb-dtf"])
    checks = [
        Check(setting.data, setting.where, decided(near), setting.says(name))
        for setting in _settings(found)
        if setting.data == "anime"
        for name in names
        if name in setting.cells
        for near in [abs(setting.cells[name].mean - 0.5) < NEAR_CHANCE]
    ]
    judged = f"AUC within {NEAR_CHANCE} of 0.5"
    return Claim("SVB-DTF is near AUC 0.5 on anime", judged, checks, "grid")


def _static(found: Sequence[Run]) -> Claim:
    wanted = [run for run in found if run.data in ("acc", "movielens-1m")]
    checks = _best_against_best(wanted, ["post"], ["cp-wopt"])
    text = "CP-WOPT is worse than POST on acc and movielens-1m"
    return Claim(text, MEANS, checks, "grid", compares=True)


def _gp(found: Sequence[Run]) -> Claim:
    checks = [
        Check(setting.data, f"{setting.where}, {gp}", setting.compare(post, gp), setting.says(gp, post))
        for setting, posts, gps in _duels(found, ["post"], ["svb-gptf", "ss-gptf"])
        for post in posts
        for gp in gps
    ]
    judged = f"{MEANS}; often: in at least half of the settings"
    text = "The GP methods are often worse than POST"
    return Claim(text, judged, checks, "grid", needed=0.5, compares=True)


def _floors(found: Sequence[Run]) -> Claim:
    checks = _best_against_best(found, r.PAPER, FLOORS)
    text = "Not in the paper: SPIDER (ReLU or tanh) clears every floor"
    judged = f"{MEANS}, against the best floor"
    notes = _one_by_one(found, r.PAPER, FLOORS)
    return Claim(text, judged, checks, "grid", notes=notes, compares=True)
