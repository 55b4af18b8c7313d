"""Counts that vary less than random ones, such as the flights of a timetable.

The variance of a Poisson is its mean, and that of a negative binomial is larger, so a count model is too
uncertain about counts that hardly vary. For random counts y and earlier predictions m, however wrong,

    E (y - m)² >= variance of y >= E y

because errors of m add to the left side. Both sides are summed with weights 1 / (1 + m), so that large counts
do not dominate. For a Poisson with correct m the ratio of the sums is 1, with a standard error of at most
sqrt(2 / right sum). A new model is often far off, which hides steady counts, so only the second half of the
entries is used. Rows that are sorted by value or repeated look steady too.

The note suggests comparing with continuous values because these have a better log score for some steady
counts only, mostly small ones. Values that are all 0 or 1 are for a classifier.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spidertensor.faults import SpiderWarning

STEADY = 0.5  # share of the variance of a Poisson; 0s and 1s with rate p have 1 - p
FEWEST = 1_000  # entries needed, half of which are used
LEAST = 200.0  # weighted sum of the counts at which STEADY is five standard errors below 1


def note(
    value: NDArray[np.float64], predicted: NDArray[np.float64], *, zeros_and_ones: bool = False
) -> SpiderWarning | None:
    """A warning if the counts vary less than random ones, else None.

    predicted:      mean predicted for each count before it was learned
    zeros_and_ones: the model has learned no other values
    """
    if len(value) < FEWEST:
        return None
    value, predicted = value[len(value) // 2 :], predicted[len(value) // 2 :]
    squares = float(np.sum((value - predicted) ** 2 / (1 + predicted)))
    random = float(np.sum(value / (1 + predicted)))
    if random < LEAST or not squares < STEADY * random:
        return None
    if zeros_and_ones:
        return SpiderWarning(
            "all values are 0 or 1, and vary less than random counts do, so the predicted std is too large",
            kind="0 or 1",
            remedy="learn them with SpiderClassifier",
        )
    return SpiderWarning(
        f"the values vary less than random counts do, with {squares / random:.2g} of their variance: "
        "the predicted std is too large, unless rows are sorted by value or repeated",
        kind="steady",
        remedy='compare with continuous values, without likelihood="count"',
    )
