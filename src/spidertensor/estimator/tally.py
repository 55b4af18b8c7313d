"""What is counted while a model learns: entries of each node, errors over time, the range of the values.

Nothing of it changes what is learned. In a file it is the section "tally", which a reader may ignore.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from math import nan
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.bounds import SEEN
from spidertensor.estimator.eviction import Numbered, Segment
from spidertensor.estimator.parameters import Model
from spidertensor.spider.learning_curve import (
    ENTRIES,
    ERROR,
    FLOOR,
    INSIDE,
    LABELS,
    SCORES,
    SQUARES,
    WITH_INTERVAL,
    Curve,
    is_possible,
    note,
    start,
)
from spidertensor.spider.likelihoods import Likelihood

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SECTION = "tally"
WAITING = 512  # entries of short calls that wait to be counted together, which is quicker
NUMBERS = 5  # of such an entry, before its nodes: value, mean, variance, log evidence, below
UNKNOWN = -(2**62)  # entries of a node that a file does not tell: still negative after any number of more


class LearningCurve(NamedTuple):
    """Errors of predictions, each made just before its entry was learned, in blocks of entries.

    entries:  (n,) number of the last entry of each block
    error:    (n,) over the block: root mean squared, or mean log loss
    floor:    (n,) the same of the running mean, or for labels of their share so far; NaN if there is none
    coverage: (n,) share of values inside their calibrated 90 % intervals; NaN without intervals
    metric:   "rmse" or "log_loss"
    """

    entries: NDArray[np.int64]
    error: NDArray[np.float64]
    floor: NDArray[np.float64]
    coverage: NDArray[np.float64]
    metric: str

    def __repr__(self) -> str:
        blocks = f"{len(self.entries)} blocks"
        if not len(self.entries):
            return f"LearningCurve({blocks})"
        latest = f"{self.metric} {self.error[-1]:.4g} in the last"
        return f"LearningCurve({blocks} of {self.entries[-1]:,} entries, {latest})"

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw error and floor; needs matplotlib.

        axes: to draw into; by default those of a new figure, `axes.figure`
        """
        if axes is None:
            from matplotlib.figure import Figure

            axes = Figure(figsize=(6, 3), layout="constrained").subplots()
        axes.plot(self.entries, self.error, color="tab:blue", label="model")
        if not np.isnan(self.floor).all():
            axes.plot(self.entries, self.floor, color="0.6", label="mean so far")
            axes.legend(frameon=False)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("entries learned")
        axes.set_ylabel("RMSE" if self.metric == "rmse" else "log loss")
        axes.spines[["top", "right"]].set_visible(False)
        return axes


def tally_of(model: Model, params: Mapping[str, Any], n_nodes: Sequence[int], n: int = 0) -> Tally:
    """The tally of a model. n: entries that were learned before"""
    per_event = 1 if model.rule is None else 1 + model.rule.negatives
    return Tally(n_nodes, model.shown, per_event, n, seen=params.get("bounds") == SEEN)


class Tally:
    """What was counted of the entries learned so far. Those of short calls wait to be counted together.

    entries, latest: per mode, how many entries each node had, and the number of the last one, counted from 1.
                     Negative entries are unknown, and so is a latest of 0, unless there was none
    """

    def __init__(
        self, n_nodes: Sequence[int], likelihood: Likelihood, per_event: int, n: int, *, seen: bool
    ) -> None:
        """likelihood: for values in user units
        per_event:  an event and its negatives, else 1
        n:          entries that were learned before, of which nothing is known
        seen:       predictions keep to the values seen before
        """
        self.n, self.curve = n, start()
        self.entries = [np.full(nodes, UNKNOWN if n else 0) for nodes in n_nodes]
        self.latest = [np.zeros(nodes, np.int64) for nodes in n_nodes]
        self.likelihood, self.per_event, self.seen = likelihood, per_event, seen
        # waiting to be counted: single entries, or short calls in bytes
        self._single = array("d")
        self._calls: list[tuple[Any, ...]] = []
        self._n_waiting = 0  # entries of these calls

    @property
    def kind(self) -> int:
        """What an error is. The cut points of levels move, so that an error of their mean would depend on
        how entries are cut into calls."""
        if self.likelihood.metric == "rmse" and not self.likelihood.ordinal:
            return SQUARES
        return LABELS if self.likelihood.binary and self.per_event == 1 else SCORES

    def add_one(
        self,
        nodes: Sequence[int],
        value: float,
        mean: float,
        var: float,
        log_evidence: float,
        below: float | None,
    ) -> None:
        """Add one entry, with what was predicted in user units."""
        if self._calls:
            self.flush()
        # one step, so that an interrupt leaves nothing half done
        below = nan if below is None else below
        self._single.extend((value, mean, var, log_evidence, below, *nodes))
        if len(self._single) >= WAITING * NUMBERS:
            self.flush()

    def add(
        self, value: NDArray[np.float64], learned: Numbered, total: int | None = None, *, nodes: bool = True
    ) -> None:
        """Add entries. learned: with the update in user units

        total: number of entries of the model, these included, if it may have learned some that were not
               counted, because it was interrupted
        nodes: False if they are counted by `add_nodes`
        """
        update, index, parts = learned
        n, below = len(value), np.full(len(value), nan) if update.below is None else update.below
        arrays = value, update.mean, update.var, update.log_evidence, below
        if self._single or n >= WAITING or parts or not nodes:
            self.flush()
        if total is not None and self.n + self._n_waiting + n != total:
            self.flush()
            self.n = total - n
        if n < WAITING and nodes and not parts:
            # copied: the caller has some of these arrays
            self._calls.append((index.tobytes(), *(each.tobytes() for each in arrays)))
            self._n_waiting += n
            if self._n_waiting >= WAITING:
                self.flush()
            return
        if nodes:
            self.add_nodes(index, self.n, parts)
        self._note(*arrays)

    def add_nodes(self, index: NDArray[np.integer], first: int, parts: Sequence[Segment] = ()) -> None:
        """Count the nodes of entries. first: number of the first one, counted from 0"""
        starts = [part.start for part in parts] or [0]
        for number, (begin, end) in enumerate(zip(starts, [*starts[1:], len(index)], strict=True)):
            if parts:
                self.restart(parts[number].reused)
            numbers = first + np.arange(begin + 1, end + 1)
            for mode, rows in enumerate(index[begin:end].T):
                if len(rows) and rows[0] >= 0:  # else a mode without ids
                    self._make_room(mode, int(rows.max()) + 1)
                    np.add.at(self.entries[mode], rows, 1)
                    self.latest[mode][rows] = numbers

    def flush(self) -> None:
        """Count what waits. An interrupt within may leave some of it uncounted."""
        single, self._single = self._single, array("d")
        calls, self._calls = self._calls, []
        self._n_waiting = 0
        if single:
            rows = np.array(single).reshape(-1, NUMBERS + len(self.entries))
            self._count(rows[:, NUMBERS:].astype(np.int64), *rows[:, :NUMBERS].T)
        if calls:
            # writable, because the kernel would be compiled again for arrays that are not
            nodes, *numbers = (bytearray().join(each) for each in zip(*calls, strict=True))
            numbers = [np.frombuffer(each) for each in numbers]
            self._count(np.frombuffer(nodes, np.int64).reshape(len(numbers[0]), -1), *numbers)

    def _count(self, nodes: NDArray[np.int64], *numbers: NDArray[np.float64]) -> None:
        self.add_nodes(nodes, self.n)
        self._note(*numbers)

    def _note(self, value: Any, mean: Any, var: Any, log_evidence: Any, below: Any) -> None:
        arrays = value, self._expected(mean, var), log_evidence / self.per_event, below
        # counted before, so that an interrupt leaves no block that begins after the last entry
        first, self.n = self.n, self.n + len(value)
        note(*self.curve, first, self.kind, self.seen, *map(np.ascontiguousarray, arrays))

    def _expected(self, mean: NDArray[np.float64], var: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.likelihood.expected(mean, var) if self.kind == SQUARES else mean

    def _make_room(self, mode: int, n: int) -> None:
        if n > len(self.entries[mode]):
            more = np.zeros(max(n, 2 * len(self.entries[mode])) - len(self.entries[mode]), np.int64)
            self.entries[mode] = np.concatenate([self.entries[mode], more])
            self.latest[mode] = np.concatenate([self.latest[mode], more])

    def restart(self, reused: Sequence[Sequence[int]]) -> None:
        """Rows, per mode, pass to other nodes."""
        for mode, rows in enumerate(reused[: len(self.entries)]):
            if rows:
                self._make_room(mode, max(rows) + 1)
                self.entries[mode][rows] = self.latest[mode][rows] = 0

    def keep(self, mode: int, kept: NDArray[np.bool_]) -> None:
        """Drop nodes of a mode; later ones move up."""
        self.flush()
        self._make_room(mode, len(kept))
        for counts in (self.entries, self.latest):
            counts[mode] = counts[mode][: len(kept)][kept]

    def of_nodes(self, mode: int, n: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """How many entries each of the n nodes had, and the number of the last; NaN where that is not known
        or where there was none."""
        self.flush()
        self._make_room(mode, n)
        entries, latest = self.entries[mode][:n].copy(), self.latest[mode][:n].copy()
        return _known(entries, entries >= 0), _known(latest, latest > 0)

    def entries_of(self, mode: int, row: int) -> int | None:
        """How many entries a node had; None if that is not known. row: -1 for one that was never seen"""
        self.flush()
        entries = int(self.entries[mode][row]) if 0 <= row < len(self.entries[mode]) else 0
        return entries if entries >= 0 else None

    def range(self) -> tuple[float, float] | None:
        """The lowest and the highest value."""
        self.flush()
        count, _, low, high = self.curve.values.tolist()
        return (low, high) if count else None

    def learning_curve(self) -> LearningCurve:
        self.flush()
        size, sums = int(self.curve.size[0]), self.curve.sums
        some = sums[:, ENTRIES] > 0
        ends = np.minimum(size * np.arange(1, len(sums) + 1), self.n)[some]
        sums = sums[some]
        error, floor = sums[:, [ERROR, FLOOR]].T / sums[:, ENTRIES]
        with np.errstate(invalid="ignore"):
            coverage = sums[:, INSIDE] / sums[:, WITH_INTERVAL]
        if self.kind == SQUARES:
            return LearningCurve(ends, np.sqrt(error), np.sqrt(floor), coverage, "rmse")
        floor = floor if self.kind == LABELS else np.full(len(error), nan)
        return LearningCurve(ends, error, floor, coverage, "log_loss")

    def to_arrays(self, n_nodes: Sequence[int]) -> dict[str, NDArray[Any]]:
        self.flush()
        found = {f"{SECTION}/curve/{name}": part for name, part in self.curve._asdict().items()}
        for mode, n in enumerate(n_nodes):
            self._make_room(mode, n)
            found[f"{SECTION}/entries/{mode}"] = self.entries[mode][:n]
            found[f"{SECTION}/latest/{mode}"] = self.latest[mode][:n]
        return found

    def restore(self, section: Any, arrays: Mapping[str, NDArray[Any]]) -> None:
        """The inverse, for a new tally of the same model. ValueError for anything that is not written."""
        wanted = self.to_arrays([len(each) for each in self.entries])
        if (
            not (isinstance(section, dict) and section.keys() == {"entries"})
            or arrays.keys() != wanted.keys()
        ):
            raise ValueError("the tally has other parts")
        for name, like in wanted.items():
            if arrays[name].dtype != like.dtype or arrays[name].shape != like.shape:
                raise ValueError(f"array {name!r} is of another shape or type")
        n = section["entries"]
        if type(n) is not int or not 0 <= n < 2**53:
            raise ValueError("the number of entries counted is impossible")
        curve = Curve(*(arrays[f"{SECTION}/curve/{name}"].copy() for name in Curve._fields))
        total = self.n
        if not is_possible(curve, self.kind, total):
            raise ValueError("the learning curve is impossible")
        # An interrupted call may have learned entries that were not counted, or counted nodes of entries that
        # were not learned.
        self.n, self.curve = min(max(n, int(curve.values[0])), total), curve
        for mode in range(len(self.entries)):
            entries, latest = (arrays[f"{SECTION}/{name}/{mode}"] for name in ("entries", "latest"))
            unknown = np.clip(entries, UNKNOWN, UNKNOWN + total)
            self.entries[mode] = np.where(entries < 0, unknown, np.minimum(entries, total))
            self.latest[mode] = np.clip(latest, 0, total)


def _known(numbers: NDArray[np.int64], known: NDArray[np.bool_]) -> NDArray[Any]:
    return numbers if known.all() else np.where(known, numbers, nan)
