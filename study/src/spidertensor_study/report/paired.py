"""Compare two methods over their shared seeds: a paired t test, and Holm's correction for many tests.

A seed decides the split, the order of the stream and the starting weights. Runs of the same seed are paired,
so a hard split does not add to the difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

FEWEST_SEEDS = 3  # fewer are not judged
ROUNDING = 1e-12  # share of a loss that counts as no difference
LEVEL = 0.05  # a difference counts if its corrected p is below this


class Paired(NamedTuple):
    """A paired comparison of the losses of two methods.

    difference:    mean of ours minus theirs, below 0 where ours is better; infinite where one of both failed
    p:             two-sided; NaN where nothing can be judged
    error:         half of the 95 % interval of the difference, not corrected; NaN where there is none
    better, worse: in how many seeds ours has the lower loss, and the higher one
    """

    seeds: int
    difference: float
    p: float
    error: float = math.nan
    better: int = 0
    worse: int = 0

    @property
    def always_better(self) -> bool:
        return self.better == self.seeds

    @property
    def always_worse(self) -> bool:
        return self.worse == self.seeds


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Paired:
    """Compare losses by seed, which are infinite where a run has no score.

    Three cases need no t test. Too few shared seeds: not judged. A method that failed with a shared seed
    loses against one that never did; if both failed, they are not judged. Differences that are all equal are
    certain: 0 is no difference, and anything else is one.
    """
    seeds = sorted(ours.keys() & theirs.keys())
    failed = [any(not math.isfinite(each[seed]) for seed in seeds) for each in (ours, theirs)]
    if any(failed):
        difference = math.nan if all(failed) else math.inf if failed[0] else -math.inf
    else:
        difference = fmean(ours[seed] - theirs[seed] for seed in seeds) if seeds else math.nan
    test = Paired(
        len(seeds),
        difference,
        math.nan,
        better=sum(ours[seed] < theirs[seed] for seed in seeds),
        worse=sum(ours[seed] > theirs[seed] for seed in seeds),
    )
    if len(seeds) < FEWEST_SEEDS or math.isnan(difference):
        return test
    if math.isinf(difference):
        return test._replace(p=0.0)
    spread = stdev(ours[seed] - theirs[seed] for seed in seeds)
    if spread == 0:
        rounding = ROUNDING * max(abs(each[seed]) for each in (ours, theirs) for seed in seeds)
        return test._replace(p=0.0 if abs(difference) > rounding else 1.0, error=0.0)
    from scipy.special import stdtr, stdtrit

    freedom, standard_error = len(seeds) - 1, spread / math.sqrt(len(seeds))
    p = 2 * float(stdtr(freedom, -abs(difference / standard_error)))
    return test._replace(p=p, error=standard_error * float(stdtrit(freedom, 0.975)))


def holm(ps: Sequence[float]) -> list[float]:
    """Correct p values so that the chance of any false finding is at most LEVEL.

    NaN, for what was not judged, stays NaN and is not counted.
    """
    places = sorted((n for n, p in enumerate(ps) if not math.isnan(p)), key=lambda n: ps[n])
    corrected, largest = [math.nan] * len(ps), 0.0
    for done, place in enumerate(places):
        largest = max(largest, min((len(places) - done) * ps[place], 1.0))
        corrected[place] = largest
    return corrected
