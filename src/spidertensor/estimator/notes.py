"""Notes: warnings about input that is valid but probably a mistake. Each kind is given once per model.

    one value   all values are equal
    far         many values are far from the others
    unclipped   one value is far from the others, and clipping is off
    clipped     many values are far from their predictions
    refused     many values could not be learned
    steady      counts vary less than random ones (steady_counts.py)
    0 or 1      the same, and all counts are 0 or 1
    one node    all events have the same node in the mode of the negatives
    few nodes   that mode has no more nodes than negatives are drawn per event
    number as id, time as id
                ids that are rather numbers or times (number_ids.py)
    unseen      most ids of a prediction were never learned (unseen.py)
    again       a call learned the same entries as the one before
    absent      an attribute that a history lacks, beside columns that nothing uses
    left out    attributes of a history have more values than their columns keep
    grouped     entries that are learned once are sorted by a mode

Notes do not affect what is learned and are not saved: a loaded model starts over, counting only new entries.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from spidertensor.estimator import number_ids, steady_counts, unseen
from spidertensor.estimator.fitted import Fitted, units
from spidertensor.estimator.inputs import Column
from spidertensor.faults import SpiderWarning
from spidertensor.method import Update
from spidertensor.scaling import WILD, wild

Floats = NDArray[np.float64]

FEWEST_EQUAL = 30  # equal values in a whole data set that cannot be a coincidence
MANY_EQUAL = 1_000  # the same for a stream, where rare values may still come
PART_ENTRIES = 10_000  # of a stream, judged together
SHORTEST_PART_ENTRIES = 500  # too few to judge below this
BLOCK_ENTRIES = 100  # a value is compared with others of its block, since the level may differ elsewhere
MANY = 0.01  # share of a part that cannot be chance
# The same for clipped values, of which ratings have 0.06 %, flight delays 0.9 %, Cauchy noise 1 to 2 %
MANY_CLIPPED = 0.02
WRECKING = 100.0  # scales from the shift; without clipping, one such value ruins what was learned


FEWEST_AGAIN = 100  # entries of a call that cannot be the same as those before by chance
FEWEST_GROUPED = 1_000  # entries of a call
FEWEST_GROUPS, SHORTEST_GROUPS = 10, 5.0  # groups of a sorted call, and their mean number of entries


class Noting:
    """An object with its own Notes; copies, clones and pickles start with empty ones."""

    _notes: Notes

    def __new__(cls, *_: Any, **__: Any) -> Self:
        self = super().__new__(cls)
        self._notes = Notes()
        return self


@dataclass
class Notes:
    """Statistics of what was learned since the model was created or loaded, and the kinds of notes given."""

    names: Sequence[str] | None = None  # of the modes, if they are known
    _given: set[str] = field(default_factory=set)
    _entries: int = 0
    _ids_judged: bool = False
    _first: float = 0.0  # the first value
    _vary: bool = False
    _above_one: bool = False  # whether a count was above 1
    # values of the current part, and for counts (2, n) mean and variance of f before each was learned
    _values: list[Sequence[float] | Floats] = field(default_factory=list)
    _predicted: list[Any] = field(default_factory=list)
    _in_part: int = 0
    _clipped: int = 0
    _refused: int = 0
    _latest: tuple[int, bytes] | None = None  # number of entries of the latest call, and its first ones

    def learned(self, fitted: Fitted, value: NDArray[np.float64], update: Update, *, followed: bool) -> None:
        """Record learned entries. followed: a lasting change was found, so clipping before it was no fault"""
        if not self._vary:
            self._first = self._first if self._entries else float(value[0])
            self._vary = bool((value != self._first).any())
        if fitted.model.likelihood.scaled and fitted.params.get("clip") is None:
            self._judge_unclipped(fitted, value)
        clipped = 0 if followed else update.clipped
        if fitted.model.likelihood.counts:
            self._predicted.append(np.stack([update.mean[-PART_ENTRIES:], update.var[-PART_ENTRIES:]]))
            self._above_one |= bool(value.max() > 1)
        self._count(fitted, value[-PART_ENTRIES:].copy(), len(value), clipped, update.refused)

    def learned_one(
        self, fitted: Fitted, value: float, mean: float, var: float, *, clipped: int, refused: int
    ) -> None:
        """Like `learned`, for one entry; mean and var are those predicted for f."""
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
        if not self._ids_judged and self._entries >= number_ids.FEWEST_ENTRIES:
            self._judge_ids(fitted)
        if not fitted.model.likelihood.intervals:
            return
        self._values.append(value)
        self._in_part += n
        self._clipped += clipped
        self._refused += refused
        if self._in_part >= PART_ENTRIES:
            self._judge_part(fitted)

    def came(self, index: NDArray[np.int64], value: Floats, names: Sequence[str]) -> None:
        """Judge the order of the entries of one call. names: of the modes"""
        n, before = len(value), self._latest
        self.remember_call(index, value)
        if n >= FEWEST_AGAIN and before == self._latest:
            reason = "the same entries as in the call before: they count twice now"
            remedy = "to learn entries several times and count them once, pass all of them to fit (passes)"
            self._give(SpiderWarning(reason, kind="again", remedy=remedy))
        if n < FEWEST_GROUPED or "grouped" in self._given:
            return
        for mode, name in enumerate(names):
            groups = 1 + int(np.count_nonzero(np.diff(index[:, mode])))
            few = groups < FEWEST_GROUPS or n < SHORTEST_GROUPS * groups
            if not few and len(np.unique(index[:, mode])) == groups:
                reason = f"the entries come sorted by {name}, and are learned once, in this order"
                remedy = "if it is not that of time, pass all to fit or shuffle them (spider fit --shuffle)"
                self._give(SpiderWarning(reason, kind="grouped", remedy=remedy))

    def remember_call(self, index: NDArray[np.int64], value: Floats) -> None:
        """Remember the entries of a call, to recognise them in the next."""
        self._latest = len(value), index[:FEWEST_AGAIN].tobytes() + value[:FEWEST_AGAIN].tobytes()

    def at_end(self, fitted: Fitted) -> None:
        """Judge what there is: no more entries will come, so fewer of them are enough."""
        if self._entries >= FEWEST_EQUAL:
            self._judge_variety(fitted)
        if not self._ids_judged:
            self._judge_ids(fitted)
        if self._in_part >= SHORTEST_PART_ENTRIES:
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
        """Warn if most ids of a prediction are unseen; parameters as in unseen.note."""
        if "unseen" not in self._given:
            described = {each.mode for each in fitted.columns.columns} if fitted.columns else ()
            warning = unseen.note(fitted.nodes, columns, numbers, names, described)
            if warning is not None:
                self._give(warning)

    def absent(self, fitted: Fitted, given: Collection[str], unused: Sequence[str]) -> None:
        """Name attributes that a history lacks, and no node was described with; perhaps a misspelt name.

        given, unused: the columns that it has
        """
        if unused and fitted.columns is not None and (names := fitted.columns.never_given(given)):
            reason = (
                f"no such column: {', '.join(names)}, which counts as missing (not used: {', '.join(unused)})"
            )
            remedy = "name it in `modes` as it is named in X, or describe nodes with set_attributes"
            self._give(SpiderWarning(reason, kind="absent", remedy=remedy))

    def stated(self, stated: Sequence[Mapping[str, NDArray[np.int64]]]) -> None:
        """Say, each time, how many of the nodes that strangers had are unknown (strangers.py)."""
        for name in sorted({name for each in stated for name in each}):
            nodes = np.concatenate([each[name] for each in stated if name in each])
            if unknown := int((nodes < 0).sum()):
                reason = f"{unknown:,} of {len(nodes):,} ids were never learned, and are left out"
                note = SpiderWarning(reason, kind="unseen", column=name)
                warnings.warn(note, stacklevel=_caller_level() - 1)

    def left_out(self, numbers: Mapping[str, int]) -> None:
        """Say how many values of each column a history had too many."""
        if numbers:
            shown = ", ".join(f"{n:,} of {name}" for name, n in numbers.items())
            reason = f"more different values than their columns keep: the rarest are left out ({shown})"
            remedy = 'to keep more, declare them with most=, as in Value("city", most=2_000_000)'
            self._give(SpiderWarning(reason, kind="left out", remedy=remedy))

    def _judge_variety(self, fitted: Fitted) -> None:
        if fitted.model.rule:
            self._judge_draws(fitted)
            return
        if self._vary or self._entries != int(fitted.state.counts.entries):  # some came before loading
            return
        remedies = {
            0.0: "add entries of other values, such as 1 for what did happen",
            1.0: "if they are events, learn them without values (SpiderClassifier(negatives=8), spider fit "
            "--events), which draws what did not happen; or add entries of other values, such as "
            "0 for what did not happen",
        }
        reason = f"all {self._entries:,} values are {self._first:g}, so there is nothing to learn from them"
        remedy = remedies.get(self._first, "add entries of other values")
        self._give(SpiderWarning(reason, kind="one value", remedy=remedy))

    def _judge_ids(self, fitted: Fitted) -> None:
        self._ids_judged = True
        if self._entries == int(fitted.state.counts.entries):  # none came before loading
            warning = number_ids.note(fitted.nodes, self._entries, self.names)
            if warning is not None:
                self._give(warning)

    def _judge_draws(self, fitted: Fitted) -> None:
        """Events all have the value 1, so variety is in the nodes: there must be another one to draw."""
        if fitted.state.draws and fitted.state.draws.seen.max() <= 1:
            reason = "all events have the same node in the mode that is drawn, so there is nothing to learn"
            self._give(SpiderWarning(reason, kind="one node", remedy="name another mode as negatives_over"))

    def _judge_negatives(self, fitted: Fitted) -> None:
        rule, draws = fitted.model.rule, fitted.state.draws
        if rule is None or not draws:
            return
        n, fewest = rule.negatives, int(draws.seen.min())
        if 1 < fewest <= n:
            reason = f"{n} negatives are drawn after each event from only {fewest} nodes, so they repeat"
            self._give(SpiderWarning(reason, kind="few nodes", remedy="pass fewer negatives"))

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
            if not self._vary:  # has its own note
                return
            since_made = self._entries == int(fitted.state.counts.entries)  # none came before loading
            binary = since_made and not self._above_one
            predicted = fitted.model.likelihood.expected(mean, var)
            steady = steady_counts.note(value, predicted, zeros_and_ones=binary)
            if steady is not None:
                self._give(steady)
            return
        blocks = value[: len(value) // BLOCK_ENTRIES * BLOCK_ENTRIES].reshape(-1, BLOCK_ENTRIES)
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
                remedy="check the values; if they are correct, pass a larger Inference(clip=...)",
            )
        elif refused > MANY:
            warning = SpiderWarning(
                f"{refused:.1%} of {n:,} values were too far from their predictions to be learned",
                kind="refused",
                remedy="check the values, or pass a fitting scaling=(shift, scale)",
            )
        else:
            return
        self._give(warning)

    def _give(self, warning: SpiderWarning) -> None:
        if warning.kind not in self._given:
            self._given.add(warning.kind)
            warnings.warn(warning, stacklevel=_caller_level() - 1)


def _beyond(clip: float | None) -> float:
    """Share of normally distributed residuals beyond `clip`."""
    return 0.0 if clip is None else 2 * float(ndtr(-clip))


def _caller_level() -> int:
    """Number of frames up to the first one outside this package."""
    package, level, frame = __name__.partition(".")[0], 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        level, frame = level + 1, frame.f_back
    return level
