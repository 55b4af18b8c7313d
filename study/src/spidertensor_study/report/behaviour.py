"""Claims about how a method behaves: its running curves, its weights, its cost."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from statistics import fmean

from spidertensor.evaluation.metrics import METRICS
from spidertensor_study.registry import METHODS
from spidertensor_study.report import costs
from spidertensor_study.report import runs as r
from spidertensor_study.report.costs import microseconds
from spidertensor_study.report.paired import Paired, paired
from spidertensor_study.report.runs import Run
from spidertensor_study.report.verdicts import Check, Claim, Duel, against, decided, effect, judge

# Weights with a lower inclusion probability are pruned. The limit is not 1/2, the paper's prior, where the
# weights of a unit that never fires stay.
PRUNED = 0.25
UNTOUCHED = 0.05  # distance from the prior below which a weight counts as untouched
PRUNED_SHARE = 0.1  # share of the weights that must be pruned for the claim to hold
LINEAR = 1.1  # largest exponent of the batch size that counts as linear
CONSTANT = 1.2  # how many times as much an entry may cost in the second half of a stream as in the first
START = 0.1  # share of a running curve left out of its roughness: the start, where every method improves fast
# Streaming competitors that learn a batch by gradient steps, SS-GPTF among them.
GRADIENT_STEPS = tuple(
    name for name in r.COMPETITORS if name not in r.STATIC and "learning_rate" in METHODS[name].settings
)


# --- running curves


def roughness(scores: Sequence[float]) -> float:
    """Mean absolute second difference: 0 for a straight line, large for a curve that goes up and down."""
    seconds = [abs(a - 2 * b + c) for a, b, c in zip(scores, scores[1:], scores[2:], strict=False)]
    return sum(seconds) / len(seconds) if seconds else math.nan


def _curves(found: Sequence[Run], methods: Sequence[str], data: str, rank: int) -> dict[str, list[Run]]:
    """The runs with a running curve at the usual batch size, by name."""
    grid = [run for run in r.paper_grid(found) if len(run.curve) > 1 and run.method not in r.STATIC]
    chosen = {name: r.at(grid, name, data, rank, r.BATCH_SIZE) for name in r.names(grid, methods)}
    return {name: group for name, group in chosen.items() if group}


def smooth(found: Sequence[Run], methods: Sequence[str], whose: str) -> Claim:
    duels = []
    for data, rank in _curve_settings(found):
        rough = {
            name: {run.seed: _roughness(run) for run in group}
            for name, group in _curves(found, [*methods, *GRADIENT_STEPS], data, rank).items()
        }
        for ours, theirs in _pairs(found, methods, GRADIENT_STEPS, rough):
            # roughness at different spacings cannot be compared
            if len({n for name in (ours, theirs) for _, n in rough[name].values()}) == 1:
                mine, other = ({seed: x for seed, (x, _) in rough[name].items()} for name in (ours, theirs))
                test = _of_numbers(mine, other)
                shared = mine.keys() & other.keys() or mine.keys() | other.keys()
                mine, other = ({s: x for s, x in each.items() if s in shared} for each in (mine, other))
                numbers = f"{_mean(mine):.2g} against {_mean(other):.2g} ({effect(test, ours)})"
                where = f"{data}, rank {rank}, {ours} against {theirs}"
                duels.append(Duel(data, where, ours, theirs, test, numbers))
    judged = (
        "roughness of the running score: mean absolute second difference between neighbouring points, "
        f"first {START:.0%} of the points left out; 0 is a straight line"
    )
    text = f"Running curves of {whose} are smoother than those of {r.listed(GRADIENT_STEPS)}"
    return _of_curves(found, text, judged, duels, ("smoother", "rougher"))


def _pairs(
    found: Sequence[Run], ours: Iterable[str], theirs: Iterable[str], known: Container[str]
) -> list[tuple[str, str]]:
    grid = r.paper_grid(found)
    first, second = ([name for name in r.names(grid, methods) if name in known] for methods in (ours, theirs))
    return [(a, b) for a in first for b in second]


def _of_numbers(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Paired:
    """Compare numbers by seed; lower is better, and NaN is the worst."""
    return paired(*({seed: r.loss(x, "") for seed, x in each.items()} for each in (ours, theirs)))


def _mean(by_seed: Mapping[int, float]) -> float:
    return fmean(by_seed.values())


def _of_curves(
    found: Sequence[Run], text: str, judged: str, duels: Sequence[Duel], words: tuple[str, str]
) -> Claim:
    cost = costs.summary(found, [name for duel in duels for name in (duel.ours, duel.theirs)])
    checks = judge(duels)
    return Claim(text, judged, checks, "running", notes=against(checks), costs=cost, words=words)


def _roughness(run: Run) -> tuple[float, int]:
    """Roughness of a run's curve, and the number of its points."""
    scores = [r.number_of(point.get("paper")) for point in run.curve]
    return roughness(scores[int(START * len(scores)) :]), len(scores)


def _curve_settings(found: Sequence[Run]) -> list[tuple[str, int]]:
    grid = [run for run in r.paper_grid(found) if len(run.curve) > 1]
    ranks = sorted({run.rank for run in grid})
    return [(data, rank) for data in r.data_sets(grid) for rank in ranks]


def on_the_fly(found: Sequence[Run]) -> Claim:
    late = {("anime", r.RANK), ("movielens-1m", r.RANK)}
    relu, streaming = r.PAPER[:1], [name for name in r.COMPETITORS if name not in r.STATIC]
    duels = []
    for data, rank in _curve_settings(found):
        groups = _curves(found, [*relu, *streaming], data, rank)
        for ours, theirs in _pairs(found, relu, streaming, groups):
            metric, half = r.metric(groups[ours], data), (data, rank) in late
            curves = [{run.seed: _losses(run, metric) for run in groups[name]} for name in (ours, theirs)]
            means: tuple[dict[int, float], dict[int, float]] = {}, {}
            ahead = []
            for seed in curves[0].keys() & curves[1].keys():
                mine, other = curves[0][seed], curves[1][seed]
                points = sorted(mine.keys() & other.keys())
                points = points[len(points) // 2 :] if half else points
                if points:
                    means[0][seed], means[1][seed] = (
                        fmean(each[n] for n in points) for each in (mine, other)
                    )
                    ahead += [mine[n] < other[n] for n in points]
            if ahead:
                test = paired(*means)
                sign = -1 if METRICS[metric].higher_is_better else 1
                numbers = f"ahead at {sum(ahead) / len(ahead):.0%} of the points ({effect(test, ours, sign)})"
                where = f"{data}, rank {rank}{', second half' * half}, {ours} against {theirs}"
                duels.append(Duel(data, where, ours, theirs, test, numbers))
    judged = (
        "mean difference of the running scores over the points that both have, seed by seed; for the two "
        "exceptions over those of the second half"
    )
    text = "SPIDER-ReLU is best on the fly, except early on anime and movielens-1m at rank 8"
    return _of_curves(found, text, judged, duels, ("better", "worse"))


def _losses(run: Run, metric: str) -> dict[int, float]:
    """The losses of a running curve by entries learned."""
    return {point["n_entries"]: r.loss(r.number_of(point.get("paper")), metric) for point in run.curve}


# --- weights and time


def pruned(found: Sequence[Run]) -> Claim:
    checks, names, shares, untouched_shares = [], [], [], []
    for run in found:
        if run.weights and run.method in r.PAPER:
            layers = [[p for unit in layer["inclusion"] for p in unit] for layer in run.weights]
            by_layer = [sum(p < PRUNED for p in layer) / len(layer) for layer in layers]
            everywhere = [p for layer in layers for p in layer]
            share = sum(p < PRUNED for p in everywhere) / len(everywhere)
            half, untouched = (
                sum(map(counts, everywhere)) / len(everywhere)
                for counts in (lambda p: p < 0.5, lambda p: abs(p - 0.5) < UNTOUCHED)
            )
            numbers = f"{share:.0%} pruned (by layer {', '.join(f'{s:.0%}' for s in by_layer)})"
            numbers += f"; {half:.0%} below 0.5; {untouched:.0%} within {UNTOUCHED} of 0.5, the prior"
            where = f"{run.data}, rank {run.rank}, {run.name}, seed {run.seed}"
            checks.append(Check(run.data, where, decided(share >= PRUNED_SHARE), numbers, run.name))
            names.append(run.name)
            shares.append(share)
            untouched_shares.append(untouched)
    figures = (
        f"{_percents(shares)} of the weights are pruned, {_percents(untouched_shares)} stay within "
        f"{UNTOUCHED} of the prior."
        if shares
        else ""
    )
    judged = f"at least {PRUNED_SHARE:.0%} of the weights have an inclusion probability below {PRUNED}"
    cost = costs.summary(found, names)
    text = "Redundant weights are pruned"
    return Claim(text, judged, checks, "weights", every=False, costs=cost, figures=figures)


def _percents(shares: Sequence[float]) -> str:
    low, high = f"{min(shares):.0%}", f"{max(shares):.0%}"
    return low if low == high else f"{low} to {high}"


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
    text = "Cost is linear in the batch at most, constant in what was seen"
    return Claim(text, judged, checks, "time", costs=costs.summary(found, r.names(timed)))


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
    """Cost of an entry in the second half of the stream over that in the first; None without a curve."""
    if len(run.curve) < 2:
        return None
    last = run.curve[-1]
    middle = min(run.curve[:-1], key=lambda point: abs(point["n_entries"] - last["n_entries"] / 2))
    first = middle["seconds"] / middle["n_entries"]
    return (last["seconds"] - middle["seconds"]) / (last["n_entries"] - middle["n_entries"]) / first
