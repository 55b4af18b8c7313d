"""Two protocols for any Method, as generators of rows for printing, plotting and saving.

    held_out     one pass over the training entries in the given order, then score the test set
    prequential  one pass over a stream; score the prediction made for each entry before learning it

A row is a dict of plain numbers in the user's units, with the same keys in both protocols:

    test                    name of the test set; None if there is only one
    metric, score           "rmse" or, for binary values, "auc": the metric of the likelihood
    mae, log_density, log_loss, calibration_error
                            other metrics; None if the likelihood does not have them
    coverage_50, coverage_80, coverage_90, coverage_95, coverage_99
                            share of values inside plain intervals of so many percent, whose ends are
                            normal quantiles; None for binary values
    calibrated_50, calibrated_80, calibrated_90, calibrated_95, calibrated_99
                            the same for calibrated intervals; None if the method has none
    coverage_90_lowest, coverage_90_highest, calibrated_90_lowest, calibrated_90_highest
                            prequential: lowest and highest coverage of 90 % intervals over all windows
                            of 5,000 consecutive scored entries; None if there are fewer, or held out
    window_score, window_log_density
                            prequential: scores of the entries since the previous row; else None
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
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.evaluation import metrics
from spidertensor.evaluation.metrics import CURVES, METRICS, PERCENTS, Inside
from spidertensor.method import Batch, Method, Prediction, Update
from spidertensor.scaling import Scaling
from spidertensor.spider.committee import CommitteeState
from spidertensor.spider.likelihoods import LIKELIHOODS, Likelihood

Row = dict[str, Any]

SKIPPED_SHARE = 0.1  # of a stream: every method is poor at the start
_SCORES = {each.metric for each in LIKELIHOODS.values()}
OTHER_METRICS = tuple(name for name in METRICS if name not in _SCORES)
WORST_WINDOWS = tuple(
    f"{kind}_90_{end}" for kind in ("coverage", "calibrated") for end in ("lowest", "highest")
)
_CURVES = ("calibration", "calibrated")


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
        for name, (index, value, _) in tests.items():
            prediction = scaling.user_units(*method.predict(step.state, index))
            calibrated = _calibrated_intervals(method, step.state, value, prediction, likelihood)
            scores = _scores(likelihood, value, prediction) | _calibrated_scores(calibrated) | {"test": name}
            if step.last:
                scores |= _curves(likelihood, value, prediction, calibrated)
            yield scores | progress(step, lost, n_scored=len(value), skipped=0)


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
    n = len(stream.value)
    skipped = int(SKIPPED_SHARE * n)
    predicted = Prediction(*np.empty((3, n)))
    log_density, below = np.empty((2, n))
    lost, learned, window_start = NotLearned(), 0, 0
    for step in one_pass(method, _scaled(stream, scaling), batch_size, seed, at):
        new = slice(learned, step.n_entries)
        for kept, part in zip(predicted, scaling.user_units(*step.update[:3]), strict=True):
            kept[new] = part
        log_density[new] = scaling.log_density(step.update.log_evidence)
        calibrates = step.update.below is not None
        below[new] = step.update.below if calibrates else math.nan
        learned, lost = step.n_entries, lost.plus(step.update)
        if step.wants_row:
            scored, window = slice(min(skipped, learned), learned), slice(window_start, learned)
            value, prediction = stream.value[scored], _cut(predicted, scored)
            calibrated = partial(metrics.inside_by_below, below[scored]) if calibrates else None
            scores = _scores(likelihood, value, prediction, log_density[scored])
            scores |= _calibrated_scores(calibrated)
            scores |= _worst_windows("coverage", _plain_intervals(likelihood, value, prediction))
            scores |= _worst_windows("calibrated", calibrated)
            scores["window_score"] = METRICS[likelihood.metric].of(
                stream.value[window], _cut(predicted, window), likelihood
            )
            scores["window_log_density"] = float(log_density[window].mean())
            if step.last:
                scores |= _curves(likelihood, value, prediction, calibrated)
            yield scores | progress(step, lost, n_scored=len(value), skipped=skipped)
            window_start = learned


class NotLearned(NamedTuple):
    """Counts of what was not learned, or not in full, so far."""

    rejected: int = 0
    refused: int = 0
    clipped: int = 0

    def plus(self, update: Update) -> NotLearned:
        here = update.rejected, update.refused, update.clipped
        return NotLearned(*(before + more for before, more in zip(self, here, strict=True)))


class Step(NamedTuple):
    """A pass after one update."""

    state: Any
    update: Update
    n_entries: int
    seconds: float
    wants_row: bool
    last: bool


def one_pass(method: Method, entries: Batch, batch_size: int, seed: int, at: int) -> Iterator[Step]:
    n = len(entries.value)
    if not n or batch_size < 1 or at < 1:
        raise ValueError(f"entries, batch_size and at must be positive, not {n}, {batch_size} and {at}")
    size = n if method.unit == "all" else batch_size
    n_batches = -(-n // size)
    rows_after = {round(n_batches * row / at) for row in range(1, at + 1)}
    method.update(method.init(seed), _slice(entries, 0, batch_size))  # compile; the state is discarded
    state = method.init(seed)
    seconds = 0.0
    for number in range(1, n_batches + 1):
        batch = _slice(entries, (number - 1) * size, number * size)
        began = perf_counter()
        state, update = method.update(state, batch)
        seconds += perf_counter() - began
        learned = min(number * size, n)
        yield Step(state, update, learned, seconds, number in rows_after, number == n_batches)


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
    return row | dict.fromkeys(("test", "window_score", "window_log_density", *WORST_WINDOWS, *_CURVES))


def _plain_intervals(
    likelihood: Likelihood, value: NDArray[np.float64], prediction: Prediction
) -> Inside | None:
    if not likelihood.intervals:
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
