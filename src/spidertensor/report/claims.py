"""What the paper claims, and whether our runs say so. Pure functions of runs: no drawing, no opinion.

A claim is judged by checks, one for each setting that was run; a check knows its numbers. A claim about which
nothing was run says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from spidertensor.report import behaviour
from spidertensor.report import runs as r
from spidertensor.report.runs import Cell, Run
from spidertensor.report.verdicts import Check, Claim

NEAR_CHANCE = 0.05  # of AUC 0.5


def claims(found: Sequence[Run]) -> list[Claim]:
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
        behaviour.second_order(found),
        behaviour.quadrature(found),
        _floors(found),
        _beats_all(
            found, ("spider",), "Not in the paper: spidertensor's default is better than every competitor"
        ),
    ]


class Setting(NamedTuple):
    """One place of the grid on the published test set, and the cells of some methods there."""

    data: str
    where: str
    metric: str
    cells: dict[str, Cell]

    def loss(self, name: str) -> float:
        return r.loss(self.cells[name].mean, self.metric)

    def best(self, names: Iterable[str]) -> str:
        return min(names, key=self.loss)

    def says(self, *names: str) -> str:
        return ", ".join(f"{name} {self.cells[name]}" for name in names)


def _settings(found: Sequence[Run]) -> Iterator[Setting]:
    grid = r.grid(found)
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
    grid = r.grid(found)
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
        holds = setting.loss(first) < setting.loss(second)
        checks.append(Check(setting.data, setting.where, holds, setting.says(first, second)))
    return checks


def _beaten_by(found: Sequence[Run], ours: Sequence[str], theirs: Sequence[str]) -> list[str]:
    """For each of them, in how many settings it is better than the best of ours."""
    met: dict[str, list[bool]] = {}
    for setting, we, they in _duels(found, ours, theirs):
        ours_best = setting.loss(setting.best(we))
        for name in they:
            met.setdefault(name, []).append(setting.loss(name) < ours_best)
    return [f"{name} is better in {sum(better)} of {len(better)} settings" for name, better in met.items()]


def _beats_all(found: Sequence[Run], ours: Sequence[str], text: str) -> Claim:
    judged = "means over the seeds on the published test sets, against the best competitor of each setting"
    checks = _best_against_best(found, ours, r.COMPETITORS)
    return Claim(text, judged, checks, "grid", notes=_beaten_by(found, ours, r.COMPETITORS))


def _relu(found: Sequence[Run]) -> Claim:
    checks = _best_against_best(found, r.PAPER[:1], r.PAPER[1:])
    return Claim("ReLU is better than tanh", "means over the seeds, published test sets", checks, "grid")


def _chance(found: Sequence[Run]) -> Claim:
    names = r.names(r.grid(found), ["svb-dtf"])
    checks = [
        Check(
            setting.data, setting.where, abs(setting.cells[name].mean - 0.5) < NEAR_CHANCE, setting.says(name)
        )
        for setting in _settings(found)
        if setting.data == "anime"
        for name in names
        if name in setting.cells
    ]
    judged = f"AUC within {NEAR_CHANCE} of 0.5"
    return Claim("SVB-DTF is near AUC 0.5 on anime", judged, checks, "grid")


def _static(found: Sequence[Run]) -> Claim:
    wanted = [run for run in found if run.data in ("acc", "movielens-1m")]
    checks = _best_against_best(wanted, ["post"], ["cp-wopt"])
    judged = "means over the seeds, published test sets"
    return Claim("CP-WOPT is worse than POST on acc and movielens-1m", judged, checks, "grid")


def _gp(found: Sequence[Run]) -> Claim:
    checks = [
        Check(
            setting.data,
            f"{setting.where}, {gp}",
            setting.loss(post) < setting.loss(gp),
            setting.says(gp, post),
        )
        for setting, posts, gps in _duels(found, ["post"], ["svb-gptf", "ss-gptf"])
        for post in posts
        for gp in gps
    ]
    judged = "often: in at least half of the settings"
    return Claim("The GP methods are often worse than POST", judged, checks, "grid", needed=0.5)


def _floors(found: Sequence[Run]) -> Claim:
    checks = _best_against_best(found, r.PAPER, r.FLOORS)
    text = "Not in the paper: SPIDER (ReLU or tanh) clears every floor"
    judged = "means over the seeds on the published test sets, against the best floor"
    return Claim(text, judged, checks, "grid", notes=_beaten_by(found, r.PAPER, r.FLOORS))
