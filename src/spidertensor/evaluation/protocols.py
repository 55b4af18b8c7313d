"""Two protocols for any Method, as generators of rows for printing, plotting and saving.

    held_out     one pass over the training entries in the given order, then score the test set
    prequential  one pass over a stream; score the prediction made for each entry before learning it

A row is a dict of plain numbers in the user's units, with the same keys in both protocols:

    test                    name of the test set; None if there is only one
    metric, score           "rmse" or, for binary values, "auc": the metric of the likelihood
    accuracy, mae, log_density, log_loss, calibration_error
                            other metrics; None if the likelihood does not have them. The log density of a
                            level is the log of its probability, its accuracy the share of entries whose most
                            probable level it was
    coverage_50, coverage_80, coverage_90, coverage_95, coverage_99
                            share of values inside plain intervals of so many percent, whose ends are
                            normal quantiles; None for binary values
    calibrated_50, calibrated_80, calibrated_90, calibrated_95, calibrated_99
                            the same for calibrated intervals; None if the method has none
    coverage_90_lowest, coverage_90_highest, calibrated_90_lowest, calibrated_90_highest
                            prequential: lowest and highest coverage of 90 % intervals over all windows
                            of 5,000 consecutive scored entries; None if there are fewer, or held out
    quarters                prequential: coverage of 90 % intervals (calibrated, if there are any) in the four
                            quarters of the expected value, lowest first; None for binary values, or held out
    window_score, window_log_density
                            prequential: scores of the entries since the previous row; else None
    case                    which error it is: "next entry", "at rest", or how late values were known
    n_entries, n_scored     entries learned so far, and entries scored
    skipped                 entries at the start of a stream that are not scored: a tenth
    seconds                 spent in `update` so far, without compiling and scoring
    entries_per_second
    rejected, refused, clipped
                            elements and entries not learned, or not in full, so far: see `Update`
    members                 weights of committee members after `n_entries`; None for other methods
    calibration             last row only, else None: points of the calibration curve (metrics.CURVES)
    calibrated              last row only, else None: the same for calibrated intervals, if there are any

Calibrated intervals of held-out entries use the final state; prequential ones use what was known before
the entry was learned.

`at` is the number of rows, evenly spaced over the pass, at most one per batch. The last row is the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.times import NEXT_ENTRY
from spidertensor.evaluation import metrics
from spidertensor.evaluation.metrics import CURVES, METRICS, PERCENTS, Inside
from spidertensor.method import Batch, Method, Prediction, Update
from spidertensor.scaling import Scaling
from spidertensor.spider.committee import CommitteeState
from spidertensor.spider.likelihoods import LIKELIHOODS, Likelihood
from spidertensor.spider.likelihoods.ordinal import Ordinal

Row = dict[str, Any]

CALL_ENTRIES = 2**14  # learned at once, where the cuts of a stream change nothing
SKIPPED_SHARE = 0.1  # of a stream: every method is poor at the start
_SCORES = {each.metric for each in LIKELIHOODS.values()}
OTHER_METRICS = tuple(name for name in METRICS if name not in _SCORES)
WORST_WINDOWS = tuple(
    f"{kind}_90_{end}" for kind in ("coverage", "calibrated") for end in ("lowest", "highest")
)
_CURVES = ("calibration", "calibrated")
AT_REST = "at rest"


def held_out(
    method: Method,
    train: Batch,
    test: Batch | Mapping[str, Batch],
    *,
    likelihood: Likelihood,
    batch_size: int = 256,
    seed: int = 0,
    scaled: bool = False,
    at: int = 1,
) -> Iterator[Row]:
    """Learn `train` in one pass and score `test`. A static method learns everything in one update.

    test:   a test set, or several by name, each with its own rows
    scaled: whether the method needs values scaled by mean and standard deviation of the first batch
    at:     number of evenly spaced batches after which to score the test set, including the last
    """
    tests = {None: test} if isinstance(test, Batch) else test
    scaling = _scaling(train, batch_size, wanted=scaled and likelihood.scaled)
    lost = NotLearned()
    for step in one_pass(method, _scaled(train, scaling), batch_size, seed, at):
        lost = lost.plus(step.update)
        if not step.wants_row:
            continue
        for name, (index, value, *_) in tests.items():
            prediction = scaling.user_units(*method.predict(step.state, index))
            likelihood = known(method, step.state, likelihood)
            calibrated = _calibrated_intervals(method, step.state, value, prediction, likelihood)
            scores = _scores(likelihood, value, prediction) | _calibrated_scores(calibrated) | {"test": name}
            if step.last:
                scores |= _curves(likelihood, value, prediction, calibrated)
            yield scores | progress(step, lost, n_scored=len(value), skipped=0) | {"case": AT_REST}


def prequential(
    method: Method,
    stream: Batch,
    *,
    likelihood: Likelihood,
    batch_size: int = 256,
    seed: int = 0,
    scaled: bool = False,
    at: int = 1,
) -> Iterator[Row]:
    """Learn `stream` in batches and score each entry's prediction made before learning it.

    Scores of a row cover all entries so far except the first tenth of the stream (NaN if there are
    none); window scores cover the entries since the previous row, including the first tenth. For methods that
    predict a whole batch before learning it, the batch size matters. `scaled`, `at`: see `held_out`.
    """
    if method.unit == "all":
        raise ValueError("a static method has no prequential score, because it needs all entries at once")
    scaling = _scaling(stream, batch_size, wanted=scaled and likelihood.scaled)
    scores = StreamScores(stream.value, likelihood)
    lost, learned = NotLearned(), 0
    for step in one_pass(method, _scaled(stream, scaling), batch_size, seed, at):
        update = step.update
        prediction = scaling.user_units(*update[:3])
        log_density = scaling.log_density(update.log_evidence)
        scores.add(slice(learned, step.n_entries), prediction, log_density, update.below, step.likelihood)
        learned, lost = step.n_entries, lost.plus(update)
        if step.wants_row:
            row = scores.row(learned, last=step.last)
            row |= progress(step, lost, n_scored=scores.n_scored(learned), skipped=scores.skipped)
            yield row | {"case": NEXT_ENTRY}


def known(method: Method, state: Any, likelihood: Likelihood) -> Likelihood:
    """The likelihood with what the state has learned about it."""
    return likelihood if method.likelihood is None else method.likelihood(state)


class StreamScores:
    """Predictions of a stream, as they are made, and their scores.

    predicted, below: of every entry, in the user's units; NaN where there is none
    skipped:          entries at the start that are not scored, a tenth or more
    """

    def __init__(self, value: NDArray[np.float64], likelihood: Likelihood) -> None:
        n = len(value)
        self._value, self._likelihood = value, likelihood
        self._parts: list[tuple[Ordinal, int]] = []  # cut points of levels, and up to which entry
        self.predicted = Prediction(*np.full((3, n), math.nan))
        self._log_density, self.below = np.full((2, n), math.nan)
        self._calibrates, self._window_start = False, 0
        self.skipped = int(SKIPPED_SHARE * n)

    def add(
        self,
        rows: slice,
        prediction: Prediction,
        log_density: NDArray[np.float64],
        below: NDArray[np.float64] | None,
        likelihood: Likelihood | None = None,
    ) -> None:
        """Predictions of these entries, in the user's units; entries come in order.

        below: see Update; likelihood: of these predictions
        """
        if isinstance(likelihood, Ordinal):
            self._parts.append((likelihood, rows.stop))
        for kept, part in zip(self.predicted, prediction, strict=True):
            kept[rows] = part
        self._log_density[rows] = log_density
        self._calibrates = below is not None
        self.below[rows] = math.nan if below is None else below

    def n_scored(self, until: int) -> int:
        return until - min(self.skipped, until)

    def row(self, until: int, *, last: bool) -> Row:
        """Scores of the entries before `until`; its window begins where that of the row before ended."""
        scored, window = slice(min(self.skipped, until), until), slice(self._window_start, until)
        value, prediction, likelihood = self._value[scored], _cut(self.predicted, scored), self._of(scored)
        calibrated = partial(metrics.inside_by_below, self.below[scored]) if self._calibrates else None
        plain = _plain_intervals(likelihood, value, prediction)
        row = _scores(likelihood, value, prediction, self._log_density[scored])
        row |= _calibrated_scores(calibrated)
        row |= _worst_windows("coverage", plain) | _worst_windows("calibrated", calibrated)
        row["quarters"] = _by_quarter(likelihood, prediction, calibrated or plain)
        metric = METRICS[likelihood.metric]
        in_window = self._value[window], _cut(self.predicted, window)
        row["window_score"] = metric.of(*in_window, self._of(window))
        row["window_log_density"] = float(self._log_density[window].mean())
        self._window_start = until
        if last:
            row |= _curves(likelihood, value, prediction, calibrated)
        return row

    def _of(self, entries: slice) -> Likelihood:
        """The likelihood of the predictions of these entries."""
        inside, start = [], entries.start
        for each, stop in self._parts:
            if (n := min(stop, entries.stop) - start) > 0:
                inside.append((each, n))
                start += n
        return Ordinal.of_entries(inside) if inside else self._likelihood


class NotLearned(NamedTuple):
    """Counts of what was not learned, or not in full, so far."""

    rejected: int = 0
    refused: int = 0
    clipped: int = 0

    def plus(self, update: Update) -> NotLearned:
        here = update.rejected, update.refused, update.clipped
        return NotLearned(*(before + more for before, more in zip(self, here, strict=True)))


class Step(NamedTuple):
    """A pass after one update. likelihood: before it, with what was learned about it; None if nothing is"""

    state: Any
    update: Update
    n_entries: int
    seconds: float
    wants_row: bool
    last: bool
    likelihood: Likelihood | None = None


def one_pass(method: Method, entries: Batch, batch_size: int, seed: int, at: int) -> Iterator[Step]:
    n = len(entries.value)
    if not n or batch_size < 1 or at < 1:
        raise ValueError(f"entries, batch_size and at must be positive, not {n}, {batch_size} and {at}")
    size = n if method.unit == "all" else batch_size
    n_batches = -(-n // size)
    rows_after = {round(n_batches * row / at) for row in range(1, at + 1)}
    any_cut = method.unit == "entry" and method.likelihood is None  # then several batches are one call
    together = max(CALL_ENTRIES // size, 1) if any_cut else 1
    method.update(method.init(seed), _slice(entries, 0, batch_size))  # compile; the state is discarded
    state = method.init(seed)
    seconds = 0.0
    ends = sorted({*range(together, n_batches, together), *rows_after, n_batches} - {0})
    for begin, number in pairwise((0, *ends)):
        batch = _slice(entries, begin * size, number * size)
        before = None if method.likelihood is None else method.likelihood(state)
        began = perf_counter()
        state, update = method.update(state, batch)
        seconds += perf_counter() - began
        learned = min(number * size, n)
        yield Step(state, update, learned, seconds, number in rows_after, number == n_batches, before)


def _slice(entries: Batch, start: int, stop: int) -> Batch:
    return Batch(entries.index[start:stop], entries.value[start:stop])


def _cut(prediction: Prediction, part: slice) -> Prediction:
    return Prediction(*(array[part] for array in prediction))


def _scaling(entries: Batch, batch_size: int, *, wanted: bool) -> Scaling:
    """The scaling of the first batch, because later entries are the future."""
    return Scaling.of(entries.value[:batch_size]) if wanted else Scaling()


def _scaled(entries: Batch, scaling: Scaling) -> Batch:
    return Batch(entries.index, scaling.scaled(entries.value))


def _scores(
    likelihood: Likelihood,
    value: NDArray[np.float64],
    prediction: Prediction,
    log_density: NDArray[np.float64] | None = None,
) -> Row:
    """Scores of plain predictions. log_density: per entry, if the method reported it"""
    metric = likelihood.metric
    row: Row = {"metric": metric, "score": METRICS[metric].of(value, prediction, likelihood)}
    row |= dict.fromkeys(OTHER_METRICS)
    row |= {name: METRICS[name].of(value, prediction, likelihood) for name in likelihood.metrics}
    if log_density is not None:
        row["log_density"] = float(log_density.mean()) if len(log_density) else math.nan
    of_streams = ("window_score", "window_log_density", "quarters", *WORST_WINDOWS)
    return row | dict.fromkeys(("test", *of_streams, *_CURVES))


def _plain_intervals(
    likelihood: Likelihood, value: NDArray[np.float64], prediction: Prediction
) -> Inside | None:
    if not (likelihood.intervals or likelihood.ordinal):
        return None
    return metrics.plain_intervals(value, prediction, likelihood)


def _calibrated_intervals(
    method: Method, state: Any, value: NDArray[np.float64], prediction: Prediction, likelihood: Likelihood
) -> Inside | None:
    """Calibrated intervals by the current state, for entries it has not learned."""
    if method.quantile is None:
        return None
    quantile = partial(method.quantile, state)
    return metrics.plain_intervals(value, prediction, likelihood, quantile)


def _calibrated_scores(calibrated: Inside | None) -> Row:
    if calibrated is None:
        return {f"calibrated_{percent}": None for percent in PERCENTS}
    levels = np.array(PERCENTS) / 100
    shares = metrics.calibration_curve(calibrated, levels)[1].tolist()
    return {f"calibrated_{percent}": share for percent, share in zip(PERCENTS, shares, strict=True)}


def _worst_windows(kind: str, intervals: Inside | None) -> Row:
    worst = metrics.lowest_and_highest(intervals(0.9)) if intervals else None
    return {f"{kind}_90_lowest": worst[0], f"{kind}_90_highest": worst[1]} if worst else {}


def _by_quarter(
    likelihood: Likelihood, prediction: Prediction, intervals: Inside | None
) -> list[float] | None:
    if intervals is None or len(prediction.mean) < 4:
        return None
    order = np.argsort(likelihood.expected(*prediction), kind="stable")
    inside = intervals(0.9)
    return [float(inside[quarter].mean()) for quarter in np.array_split(order, 4)]


def _curves(
    likelihood: Likelihood, value: NDArray[np.float64], prediction: Prediction, calibrated: Inside | None
) -> Row:
    curve = CURVES[likelihood.metric].of(value, prediction, likelihood)
    row: Row = {"calibration": np.stack(curve, axis=1).tolist()}
    if calibrated:
        row["calibrated"] = np.stack(metrics.calibration_curve(calibrated), axis=1).tolist()
    return row


def progress(step: Step, lost: NotLearned, *, n_scored: int, skipped: int) -> Row:
    return {
        "n_entries": step.n_entries,
        "n_scored": n_scored,
        "skipped": skipped,
        "seconds": step.seconds,
        "entries_per_second": step.n_entries / max(step.seconds, 1e-9),
        **lost._asdict(),
        "members": _weights(step.state),
    }


def _weights(state: Any) -> list[float] | None:
    """The weights of committee members; an estimator is a state too (with_attributes.py)."""
    if isinstance(state, CommitteeState):
        return state.weights.tolist()
    return [member.weight for member in state.members_] if hasattr(state, "members_") else None
