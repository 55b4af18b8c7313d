"""Counts that vary less than random ones, such as the flights of a timetable.

The variance of a Poisson is its mean, and that of a negative binomial is larger, so a count model takes what
is nearly certain for chance. If counts are random, then of predictions m made before them, however wrong,

    E (y - m)² >= variance of y >= E y

because an error of m adds to the left. Both sides are summed with weights 1 / (1 + m), so that large counts
do not drown the others. Of a Poisson whose m is right, the ratio of the sums is 1, with a standard error of
at most sqrt(2 / right sum). A new model is often far off, which hides steady counts; so only the latter half
of the entries is looked at. Rows that are sorted by value, or come again and again, are not random given
those before them, and look the same.

The note asks to compare, and not to change: continuous values had the better log score for rounded means of
1.5 and 4, plus or minus 1, but the worse for those of 30 and 220. Values of 0 and 1 alone are no counts at
all: those have a model of their own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spidertensor.faults import SpiderWarning

STEADY = 0.5  # of the variance of a Poisson; 0s and 1s of a rate p have 1 - p
FEWEST = 1_000  # entries that are judged, half of them looked at
LEAST = 200.0  # weighted sum of the counts, from which on STEADY is five standard errors below 1


def note(
    value: NDArray[np.float64], predicted: NDArray[np.float64], *, zeros_and_ones: bool = False
) -> SpiderWarning | None:
    """
    predicted:      the mean of each count, as it was before the count was learned
    zeros_and_ones: the model has learned these, and no other values
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
