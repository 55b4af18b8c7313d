"""Claims about how a method behaves: its running curves, its weights, its cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spidertensor.study.report import runs as r
from spidertensor.study.report.runs import Cell, Run
from spidertensor.study.report.verdicts import Check, Claim, Outcome, compare, counted, decided

# A weight with a lower inclusion probability. Not 1/2, which is the paper's prior: the weights of a unit that
# never fires stay there or next to it, and nothing has been found out about them.
PRUNED = 0.25
UNTOUCHED = 0.05  # from the prior
PRUNED_SHARE = 0.1  # of the weights, from which on we say that redundant ones are pruned
LINEAR = 1.1  # the largest exponent of the batch size that we call linear
CONSTANT = 1.2  # how much dearer an entry may be in the second half of a stream than in the first
ON_THE_FLY = 0.95  # share of the points of a running curve that the best method has to lead
START = 0.1  # share of a running curve left out of its roughness: there every method drops


# Of running curves


def roughness(scores: Sequence[float]) -> float:
    """Mean absolute second difference: 0 on a straight line, large where a curve goes up and down."""
    seconds = [abs(a - 2 * b + c) for a, b, c in zip(scores, scores[1:], scores[2:], strict=False)]
    return sum(seconds) / len(seconds) if seconds else math.nan


def _curves(found: Sequence[Run], methods: Sequence[str], data: str, rank: int) -> dict[str, list[Run]]:
    """The runs with a running curve at the usual batch size, by name."""
    grid = [run for run in r.paper_grid(found) if len(run.curve) > 1 and run.method not in r.STATIC]
    chosen = {name: r.at(grid, name, data, rank, r.BATCH_SIZE) for name in r.names(grid, methods)}
    return {name: group for name, group in chosen.items() if group}


def smooth(found: Sequence[Run]) -> Claim:
    checks = []
    for data, rank in _curve_settings(found):
        rough = {
            name: _roughness(group)
            for name, group in _curves(found, [*r.PAPER, "svb-dtf", "svb-gptf"], data, rank).items()
        }
        grid = r.paper_grid(found)
        for ours in r.names(grid, r.PAPER):
            for theirs in r.names(grid, ["svb-dtf", "svb-gptf"]):
                if ours in rough and theirs in rough and rough[ours][1] == rough[theirs][1]:
                    (mine, _), (other, _) = rough[ours], rough[theirs]
                    where = f"{data}, rank {rank}, {ours} against {theirs}"
                    numbers = f"{mine.mean:.2g} against {other.mean:.2g}"
                    checks.append(Check(data, where, compare(mine, other, "roughness"), numbers))
    judged = (
        "roughness of the running score: mean absolute second difference between neighbouring points, mean "
        f"over the seeds, first {START:.0%} of the points left out; 0 is a straight line"
    )
    text = "Running curves are smoother than those of the SVB methods"
    return Claim(text, judged, checks, "running", compares=True)


def _roughness(group: Sequence[Run]) -> tuple[Cell, int]:
    """Mean over the runs, and at how many points: roughness at different spacings cannot be compared."""
    scores = [[r.number_of(point["paper"]) for point in run.curve] for run in group]
    n = min(map(len, scores))
    cell = r.average(roughness(each[int(START * n) :]) for each in scores)
    assert cell is not None  # a group has runs
    return cell, n


def _curve_settings(found: Sequence[Run]) -> list[tuple[str, int]]:
    grid = [run for run in r.paper_grid(found) if len(run.curve) > 1]
    ranks = sorted({run.rank for run in grid})
    return [(data, rank) for data in r.data_sets(grid) for rank in ranks]


def on_the_fly(found: Sequence[Run]) -> Claim:
    late = {("anime", r.RANK), ("movielens-1m", r.RANK)}
    checks = []
    for data, rank in _curve_settings(found):
        of_data = [run for run in found if run.data == data]
        ours = _best_curve(of_data, r.PAPER, data, rank)
        theirs = _best_curve(of_data, r.COMPETITORS, data, rank)
        shared = sorted(ours.keys() & theirs.keys())
        if shared:
            metric = r.metric(of_data, data)
            outcomes: list[Outcome] = [compare(ours[n], theirs[n], metric) for n in shared]
            half = len(outcomes) // 2
            judged_on = outcomes[half:] if (data, rank) in late else outcomes
            numbers = (
                f"at {len(outcomes)} points {counted(outcomes)} (first half {counted(outcomes[:half])}; "
                f"second half {counted(outcomes[half:])})"
            )
            where = f"{data}, rank {rank}" + (", second half" if (data, rank) in late else "")
            checks.append(Check(data, where, _leads(judged_on), numbers))
    judged = (
        f"the better of ReLU and tanh wins against the best streaming competitor at {ON_THE_FLY:.0%} of the "
        "points of the running score or more; a tie if it does so together with the points that are ties; "
        "for the two exceptions at those of the second half"
    )
    text = "Best on the fly, except early on anime and movielens-1m at rank 8"
    return Claim(text, judged, checks, "running", compares=True)


def _leads(outcomes: Sequence[Outcome]) -> Outcome:
    enough = ON_THE_FLY * len(outcomes)
    if outcomes.count("win") >= enough:
        return "win"
    return "tie" if len(outcomes) - outcomes.count("loss") >= enough else "loss"


def _best_curve(of_data: Sequence[Run], methods: Sequence[str], data: str, rank: int) -> dict[int, Cell]:
    """By entries learned, the best of these methods at that moment, where all have a point."""
    curves = [r.mean_curve(group, "paper") for group in _curves(of_data, methods, data, rank).values()]
    shared = set.intersection(*map(set, curves)) if curves else set()
    if not shared:
        return {}
    metric = r.metric(of_data, data)
    return {n: min((curve[n] for curve in curves), key=lambda c: r.loss(c.mean, metric)) for n in shared}


# Of weights and time


def pruned(found: Sequence[Run]) -> Claim:
    checks = []
    for run in found:
        if run.weights and run.method in r.PAPER:
            layers = [[p for unit in layer["inclusion"] for p in unit] for layer in run.weights]
            shares = [sum(p < PRUNED for p in layer) / len(layer) for layer in layers]
            everywhere = [p for layer in layers for p in layer]
            share = sum(p < PRUNED for p in everywhere) / len(everywhere)
            half, untouched = (
                sum(map(counts, everywhere)) / len(everywhere)
                for counts in (lambda p: p < 0.5, lambda p: abs(p - 0.5) < UNTOUCHED)
            )
            numbers = f"{share:.0%} pruned (by layer {', '.join(f'{s:.0%}' for s in shares)})"
            numbers += f"; {half:.0%} below 0.5; {untouched:.0%} within {UNTOUCHED} of 0.5, the prior"
            where = f"{run.data}, rank {run.rank}, {run.name}, seed {run.seed}"
            checks.append(Check(run.data, where, decided(share >= PRUNED_SHARE), numbers))
    judged = f"at least {PRUNED_SHARE:.0%} of the weights have an inclusion probability below {PRUNED}"
    return Claim("Redundant weights are pruned", judged, checks, "weights")


def microseconds(run: Run) -> float:
    """Per entry, spent in learning."""
    score = next(iter(run.scores.values()))
    return 1e6 * score["seconds"] / score["n_entries"]


def cost(found: Sequence[Run]) -> Claim:
    timed = [run for run in found if run.experiment == "time" and run.method in r.PAPER and run.scores]
    checks = []
    for data in r.data_sets(timed):
        for name in r.names(timed):
            chosen = [run for run in timed if run.name == name and run.data == data and run.rank == r.RANK]
            checks += _linear(data, name, chosen) + _constant(data, name, chosen)
    judged = (
        "experiment time. Linear at most: seconds per batch grow as batch size to a power of at most "
        f"{LINEAR}; what a batch costs whatever its size, refining the prior, makes it less than 1. Constant "
        f"in what was seen: an entry of the second half of the stream costs at most {CONSTANT} times one of "
        "the first half"
    )
    return Claim("Cost is linear in the batch at most, constant in what was seen", judged, checks, "time")


def _linear(data: str, name: str, chosen: Sequence[Run]) -> list[Check]:
    """The slope of log(seconds per batch) over log(batch size)."""
    cells = {
        size: cell
        for size in sorted({run.batch_size for run in chosen})
        if (cell := r.average(microseconds(run) for run in chosen if run.batch_size == size))
    }
    if len(cells) < 2:
        return []
    x = [math.log(size) for size in cells]
    y = [math.log(size * cell.mean) for size, cell in cells.items()]
    x0, y0 = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - x0) * (b - y0) for a, b in zip(x, y, strict=True)) / sum((a - x0) ** 2 for a in x)
    costs = ", ".join(f"{cell.mean:.3g} µs per entry at {size}" for size, cell in cells.items())
    where = f"{data}, {name}, over batch sizes"
    return [Check(data, where, decided(slope <= LINEAR), f"power {slope:.2f} ({costs})")]


def _constant(data: str, name: str, chosen: Sequence[Run]) -> list[Check]:
    ratios = [ratio for run in chosen if run.batch_size == r.BATCH_SIZE and (ratio := _second_half(run))]
    cell = r.average(ratios)
    if not cell:
        return []
    where = f"{data}, {name}, over the stream"
    numbers = f"second half {cell.mean:.2f} times the first half"
    return [Check(data, where, decided(cell.mean <= CONSTANT), numbers)]


def _second_half(run: Run) -> float | None:
    """Cost of an entry in the second half over that in the first; None without a curve."""
    if len(run.curve) < 2:
        return None
    last = run.curve[-1]
    middle = min(run.curve[:-1], key=lambda point: abs(point["n_entries"] - last["n_entries"] / 2))
    first = middle["seconds"] / middle["n_entries"]
    return (last["seconds"] - middle["seconds"]) / (last["n_entries"] - middle["n_entries"]) / first
