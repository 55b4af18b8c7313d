"""The paper's claims, and whether our runs support them. Pure functions of runs, without drawing.

A claim is judged by checks, one for each comparison that was run; a check has its numbers. A claim without
runs says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from spidertensor.evaluation.metrics import METRICS
from spidertensor_study.registry import FLOORS
from spidertensor_study.report import approximations, behaviour, costs
from spidertensor_study.report import runs as r
from spidertensor_study.report.paired import FEWEST_SEEDS, paired
from spidertensor_study.report.runs import Run
from spidertensor_study.report.verdicts import Check, Claim, Duel, against, decided, effect, judge, means

NEAR_CHANCE = 0.05  # distance from AUC 0.5
MUCH_WORSE = 0.05  # share of an RMSE, or difference of AUC
SCORES = "scores on the test sets of Figure 1"
STATIC = tuple(name for name in r.COMPETITORS if name in r.STATIC)
STREAMING = tuple(name for name in r.COMPETITORS if name not in r.STATIC)
RELU, TANH = "spider-paper", "spider-paper-tanh"
CP_WOPT = tuple(name for name in r.COMPETITORS if name.startswith("cp-wopt"))  # whatever stops it
GP = ("svb-gptf", "ss-gptf")
SVB_DTF = tuple(name for name in r.COMPETITORS if name.startswith("svb-dtf"))  # with each activation


def claims(found: Sequence[Run], failed: Sequence[Run] = ()) -> list[Claim]:
    """The claims of the paper in its order, then some of our own."""
    every = "better than every {} competitor in every setting"
    not_svb_dtf = [name for name in (*r.PAPER, *r.COMPETITORS) if name not in SVB_DTF]
    start_of = {
        RELU: "SPIDER-ReLU is",
        TANH: "SPIDER-tanh is",
        "spider": "Not in the paper: spidertensor's default is",
    }
    both = {
        name: [
            _better(found, [name], STREAMING, f"{start} {every.format('streaming')}"),
            _better(found, [name], STATIC, f"{start} {every.format('static')}"),
        ]
        for name, start in start_of.items()
    }
    return [
        *both[RELU],
        *both[TANH],
        _better(found, [RELU], [TANH], "ReLU is better than tanh"),
        _much_worse(found, r.COMPETITORS, [RELU], "Competitors are much worse than SPIDER-ReLU, mostly", 0.5),
        _much_worse(found, SVB_DTF, not_svb_dtf, "SVB-DTF is much worse than all others"),
        _much_worse(found, GP, r.PAPER, "The streaming GP methods are far worse than SPIDER"),
        behaviour.smooth(found, r.PAPER, "SPIDER"),
        behaviour.smooth(found, ["post"], "POST"),
        _chance(found),
        _static(found),
        behaviour.pruned(found),
        behaviour.cost(found),
        behaviour.on_the_fly(found),
        _gp(found),
        *approximations.second_order(found, failed),
        approximations.quadrature(found, failed),
        _better(
            found, r.PAPER, FLOORS, "Not in the paper: SPIDER, with ReLU and with tanh, clears every floor"
        ),
        *both["spider"],
    ]


class Meeting(NamedTuple):
    """Two methods at one rank and batch size, on the test set of Figure 1: scores by seed."""

    data: str
    where: str
    metric: str
    ours: str
    theirs: str
    our_scores: dict[int, float]
    their_scores: dict[int, float]

    def duel(self) -> Duel:
        ours, theirs = (
            {seed: r.loss(score, self.metric) for seed, score in scores.items()}
            for scores in (self.our_scores, self.their_scores)
        )
        test = paired(ours, theirs)
        sign = -1 if METRICS[self.metric].higher_is_better else 1
        scores = means({self.ours: self.our_scores, self.theirs: self.their_scores})
        numbers = f"{scores}: {effect(test, self.ours, sign)}"
        return Duel(self.data, self.where, self.ours, self.theirs, test, numbers)


def _meetings(found: Sequence[Run], ours: Iterable[str], theirs: Iterable[str]) -> list[Meeting]:
    """Compare every pair of methods wherever both were run, but not the same runs twice.

    A method that does not see the batch size has the same runs at all of them, so it is compared at the usual
    one.
    """
    grid = [run for run in r.paper_grid(found) if "paper" in run.scores]
    our_names, their_names = r.names(grid, ours), r.names(grid, theirs)
    meetings = []
    for data in r.data_sets(grid):
        of_data = [run for run in grid if run.data == data]
        metric = r.metric(of_data, data)
        places = sorted(r.points(of_data), key=lambda place: (place[1] != r.BATCH_SIZE, place[0] != r.RANK))
        for our, their in ((a, b) for a in our_names for b in their_names if a != b):
            met: set[int] = set()  # runs, by identity
            for rank, batch_size in places:
                sides = [r.at(of_data, name, data, rank, batch_size) for name in (our, their)]
                here = {id(run) for side in sides for run in side}
                if all(sides) and not here & met:
                    met |= here
                    where = f"{data}, rank {rank}, batch {batch_size}"
                    scores = [r.by_seed(side, "paper") for side in sides]
                    meetings.append(Meeting(data, where, metric, our, their, *scores))
    return meetings


def _compared(
    found: Sequence[Run],
    text: str,
    judged: str,
    duels: Sequence[Duel],
    words: tuple[str, str],
    needed: float = 1.0,
) -> Claim:
    checks = judge(duels)
    names = [name for check in checks for name in (check.ours, check.theirs)]
    cost = costs.summary(found, names)
    return Claim(text, judged, checks, "grid", needed, notes=against(checks), costs=cost, words=words)


def _better(found: Sequence[Run], ours: Iterable[str], theirs: Iterable[str], text: str) -> Claim:
    duels = [meeting.duel() for meeting in _meetings(found, ours, theirs)]
    return _compared(found, text, SCORES, duels, ("better", "worse"))


def _worse(found: Sequence[Run], ours: Iterable[str], theirs: Iterable[str]) -> list[Duel]:
    """The opposite comparison: the claim is about ours, and holds where theirs is better."""
    duels = [meeting.duel() for meeting in _meetings(found, theirs, ours)]
    return [duel._replace(ours=duel.theirs, theirs=duel.ours) for duel in duels]


def _much_worse(
    found: Sequence[Run], worse: Iterable[str], better: Iterable[str], text: str, needed: float = 1.0
) -> Claim:
    """The comparison with the better ones made worse by a margin, so that a win is a difference beyond it."""
    duels = []
    for met in _meetings(found, worse, better):
        higher = METRICS[met.metric].higher_is_better
        made_worse = {
            seed: score - MUCH_WORSE if higher else score * (1 + MUCH_WORSE)
            for seed, score in met.their_scores.items()
        }
        swapped = met._replace(our_scores=made_worse, their_scores=met.our_scores)
        duels.append(met.duel()._replace(test=swapped.duel().test))
    margin = f"much: an RMSE more than {MUCH_WORSE:.0%} higher, an AUC more than {MUCH_WORSE} lower"
    mostly = "; mostly: in at least half of the comparisons" if needed < 1 else ""
    judged = f"{SCORES}; {margin}{mostly}"
    return _compared(found, text, judged, duels, ("much worse", "not much worse"), needed)


def _chance(found: Sequence[Run]) -> Claim:
    grid = [run for run in r.paper_grid(found) if run.method in SVB_DTF and run.data == "anime"]
    checks = []
    for name in r.names(grid):
        for rank, batch_size in r.points(grid):
            cell = r.cell(r.at(grid, name, "anime", rank, batch_size), "paper")
            if cell:
                near = decided(abs(cell.mean - 0.5) < NEAR_CHANCE)
                where = f"anime, rank {rank}, batch {batch_size}"
                outcome = near if cell.seeds >= FEWEST_SEEDS else "not judged"
                checks.append(Check("anime", where, outcome, f"{name} {cell}"))
    judged = f"mean AUC over the seeds within {NEAR_CHANCE} of 0.5"
    cost = costs.summary(found, r.names(grid))
    return Claim("SVB-DTF is near AUC 0.5 on anime", judged, checks, "grid", costs=cost)


def _static(found: Sequence[Run]) -> Claim:
    wanted = [run for run in found if run.data in ("acc", "movielens-1m")]
    text = "CP-WOPT is worse than POST on acc and movielens-1m"
    return _compared(found, text, SCORES, _worse(wanted, CP_WOPT, ["post"]), ("worse", "better"))


def _gp(found: Sequence[Run]) -> Claim:
    duels = _worse(found, GP, ["post"])
    judged = f"{SCORES}; often: in at least half of the comparisons"
    text = "The GP methods are often worse than POST"
    return _compared(found, text, judged, duels, ("worse", "better"), needed=0.5)
