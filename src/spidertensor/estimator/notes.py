"""Notes: warnings about input that is well-formed and yet cannot be meant. Each kind once per model.

    one value   all values are equal
    far         many values are far from the others
    unclipped   one is far from the others, and nothing clips it
    clipped     many values are far from their predictions
    refused     many values could not be learned
    steady      counts vary less than random ones (steady_counts.py)
    0 or 1      they do, and all of them are 0 or 1
    one node    events have one node only in the mode that is drawn
    few nodes   there are fewer to draw than are drawn after each event
    unseen      most ids of a prediction were never learned (unseen.py)

Nothing of this changes what is learned, or stands in a file: a model that was loaded begins anew, and is not
judged by entries that it learned before.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from spidertensor.estimator import steady_counts, unseen
from spidertensor.estimator.fitted import Fitted, units
from spidertensor.estimator.inputs import Column
from spidertensor.faults import SpiderWarning
from spidertensor.method import Update
from spidertensor.scaling import WILD, wild

Floats = NDArray[np.float64]

FEWEST_EQUAL = 30  # values of a whole data set that are no coincidence any more
MANY_EQUAL = 1_000  # the same of a stream, where rare values may just not have come yet
PART = 10_000  # entries of a stream that are judged together
SHORTEST_PART = 500  # entries that can be judged at all
BLOCK = 100  # entries among which a value may be wild: all others of a part may have another level
MANY = 0.01  # share of a part that is too much to be chance
# The same of clipped values. Of ratings 0.06 % are clipped, of flight delays 0.9 %, of Cauchy noise 1 to 2 %.
MANY_CLIPPED = 0.02
WRECKING = 100.0  # scales from the shift: without clipping, one such value spoils what was learned


class Noting:
    """An object with notes of its own; a copy, a clone or a pickle begins anew."""

    _notes: Notes

    def __new__(cls, *_: Any, **__: Any) -> Self:
        self = super().__new__(cls)
        self._notes = Notes()
        return self


@dataclass
class Notes:
    """What was learned since the model was made or loaded, as far as notes need it, and which were given."""

    _given: set[str] = field(default_factory=set)
    _entries: int = 0
    _first: float = 0.0  # value
    _vary: bool = False
    _above_one: bool = False  # some count was
    _values: list[Sequence[float] | Floats] = field(
        default_factory=list
    )  # of the part that is not yet judged
    # of the same part, if these are counts: (2, n) mean and variance of f before each was learned
    _predicted: list[Any] = field(default_factory=list)
    _in_part: int = 0
    _clipped: int = 0
    _refused: int = 0

    def learned(self, fitted: Fitted, value: NDArray[np.float64], update: Update, *, followed: bool) -> None:
        """followed: the values have changed for good, and were clipped until the model had noticed"""
        if not self._vary:
            self._first = self._first if self._entries else float(value[0])
            self._vary = bool((value != self._first).any())
        if fitted.model.likelihood.scaled and fitted.params.get("clip") is None:
            self._judge_unclipped(fitted, value)
        clipped = 0 if followed else update.clipped
        if fitted.model.likelihood.counts:
            self._predicted.append(np.stack([update.mean[-PART:], update.var[-PART:]]))
            self._above_one |= bool(value.max() > 1)
        self._count(fitted, value[-PART:].copy(), len(value), clipped, update.refused)

    def learned_one(
        self, fitted: Fitted, value: float, mean: float, var: float, *, clipped: int, refused: int
    ) -> None:
        """`learned` of one entry, of which mean and var of f were predicted."""
        if not self._vary:
            self._first = self._first if self._entries else value
            self._vary = value != self._first
        if fitted.model.likelihood.scaled and fitted.params.get("clip") is None:
            self._judge_unclipped(fitted, np.array([value]))
        if fitted.model.likelihood.counts:
            self._predicted.append(((mean,), (var,)))
            self._above_one |= value > 1
        self._count(fitted, (value,), 1, clipped, refused)

    def _count(
        self, fitted: Fitted, value: Sequence[float] | Floats, n: int, clipped: int, refused: int
    ) -> None:
        self._entries += n
        if not self._vary and self._entries >= MANY_EQUAL:
            self._judge_variety(fitted)
        if not fitted.model.likelihood.intervals:
            return
        self._values.append(value)
        self._in_part += n
        self._clipped += clipped
        self._refused += refused
        if self._in_part >= PART:
            self._judge_part(fitted)

    def at_end(self, fitted: Fitted) -> None:
        """No more entries will come, so fewer of them say enough."""
        if self._entries >= FEWEST_EQUAL:
            self._judge_variety(fitted)
        if self._in_part >= SHORTEST_PART:
            self._judge_part(fitted)
        if self._entries >= FEWEST_EQUAL:
            self._judge_negatives(fitted)

    def predicted(
        self,
        fitted: Fitted,
        columns: Mapping[int, Column],
        numbers: Mapping[int, NDArray[np.int64]],
        names: Sequence[str] | None,
    ) -> None:
        """Parameters as for unseen.note."""
        if "unseen" not in self._given:
            warning = unseen.note(fitted.nodes, columns, numbers, names)
            if warning is not None:
                self._give(warning)

    def _judge_variety(self, fitted: Fitted) -> None:
        if fitted.model.rule:
            self._judge_draws(fitted)
            return
        if self._vary or self._entries != int(fitted.state.counts.entries):  # some were learned before a load
            return
        remedies = {
            0.0: "add entries of other values, such as 1 for what did happen",
            1.0: "add entries of other values, such as 0 for what did not happen",
        }
        reason = f"all {self._entries:,} values are {self._first:g}, so there is nothing to learn from them"
        remedy = remedies.get(self._first, "add entries of other values")
        self._give(SpiderWarning(reason, kind="one value", remedy=remedy))

    def _judge_draws(self, fitted: Fitted) -> None:
        """Events are all alike. What the model draws is another node, if there is any."""
        if fitted.state.draws and fitted.state.draws.seen.max() <= 1:
            reason = "all events have the same node in the mode that is drawn, so there is nothing to learn"
            self._give(SpiderWarning(reason, kind="one node", remedy="name another mode as negatives_over"))

    def _judge_negatives(self, fitted: Fitted) -> None:
        rule, draws = fitted.model.rule, fitted.state.draws
        if rule is None or not draws:
            return
        n, fewest = rule.negatives, int(draws.seen.min())
        if 1 < fewest <= n:
            reason = f"{n} are drawn after each event, of only {fewest} nodes: the same again and again"
            self._give(SpiderWarning(reason, kind="few nodes", remedy="pass a smaller number of negatives"))

    def _judge_unclipped(self, fitted: Fitted, value: NDArray[np.float64]) -> None:
        shift, scale = units(fitted)
        far = np.abs(value - shift) > WRECKING * scale
        if far.any():
            reason = (
                f"value {value[far][0]:g} is more than {WRECKING:g} times the scale {scale:g} away from "
                f"{shift:g}, and nothing clips it"
            )
            remedy = "leave it out, clip it, or pass a fitting scaling=(shift, scale)"
            self._give(SpiderWarning(reason, kind="unclipped", remedy=remedy))

    def _judge_part(self, fitted: Fitted) -> None:
        n, value = self._in_part, np.concatenate(self._values)
        clipped, refused = self._clipped / n, self._refused / n
        self._values, self._in_part, self._clipped, self._refused = [], 0, 0, 0
        if fitted.model.likelihood.counts:
            mean, var = np.concatenate(self._predicted, axis=1)
            self._predicted = []
            if not self._vary:  # there is a note of that
                return
            since_made = self._entries == int(fitted.state.counts.entries)  # none were learned before a load
            binary = since_made and not self._above_one
            predicted = fitted.model.likelihood.expected(mean, var)
            steady = steady_counts.note(value, predicted, zeros_and_ones=binary)
            if steady is not None:
                self._give(steady)
            return
        blocks = value[: len(value) // BLOCK * BLOCK].reshape(-1, BLOCK)
        far = float(np.median(wild(blocks).mean(axis=1)))
        if far > MANY:
            warning = SpiderWarning(
                f"about {far:.0%} of the values are over {WILD:g} standard deviations away from the others",
                kind="far",
                remedy="leave out placeholders such as -9999; if the tails are long, learn the logarithms",
            )
        elif clipped > MANY_CLIPPED + 2 * _beyond(fitted.params.get("clip")):
            warning = SpiderWarning(
                f"{clipped:.1%} of {n:,} values were too far from their predictions to be learned in full",
                kind="clipped",
                remedy="look at the values; if they are as they should be, pass a larger Inference(clip=...)",
            )
        elif refused > MANY:
            warning = SpiderWarning(
                f"{refused:.1%} of {n:,} values were too far from their predictions to be learned",
                kind="refused",
                remedy="look at the values, or pass a fitting scaling=(shift, scale)",
            )
        else:
            return
        self._give(warning)

    def _give(self, warning: SpiderWarning) -> None:
        if warning.kind not in self._given:
            self._given.add(warning.kind)
            warnings.warn(warning, stacklevel=_level_of_the_caller() - 1)


def _beyond(clip: float | None) -> float:
    """The share of normal residuals that a clip affects."""
    return 0.0 if clip is None else 2 * float(ndtr(-clip))


def _level_of_the_caller() -> int:
    """How many frames the first one outside the package is away."""
    package, level, frame = __name__.partition(".")[0], 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        level, frame = level + 1, frame.f_back
    return level
