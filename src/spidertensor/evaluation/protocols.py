"""Two protocols for any Method, as generators of rows; printing, plotting and saving consume rows.

    held_out     one pass over the training entries in the order given, then the test set is scored
    prequential  one pass over a stream; an entry is scored by what its update predicted before learning it

A row is a dict of plain numbers in the user's units, the same keys in every row of both protocols:

    test                    which of several test sets; None if there is only one
    metric, score           "rmse" or, for binary values, "auc": the metric of the likelihood
    mae, log_density, log_loss, calibration_error
                            the other metrics; None if they are not among those of the likelihood
    coverage_50, coverage_80, coverage_90, coverage_95, coverage_99
                            share of values inside intervals of so many percent whose ends are quantiles of
                            the normal distribution; None for binary values
    calibrated_50, calibrated_80, calibrated_90, calibrated_95, calibrated_99
                            the same of the method's calibrated intervals; None of a method that has none
    coverage_90_lowest, coverage_90_highest, calibrated_90_lowest, calibrated_90_highest
                            prequential: the coverage of 90 % in the worst windows, the least and the greatest
                            over all windows of 5,000 scored entries in a row; else, or of fewer, None
    window_score, window_log_density               prequential: of the entries since the row before; else None
    n_entries, n_scored     entries learned so far, and entries that the scores are over
    skipped                 entries at the start of a stream that are not scored: a tenth
    seconds                 spent in `update` so far; compiling is not in it, nor is scoring
    entries_per_second
    rejected, refused, clipped
                            elements and entries that were not learned so far, or not in full: see `Update`
    members                 weights of the models of a committee after `n_entries`; None of other methods
    calibration             last row only, else None: the pairs of the calibration curve (metrics.CURVES)
    calibrated              last row only, else None: those of the calibrated intervals, if there are any

Held out, calibrated intervals are made of what the method knows after the entries it has learned. In time
order an entry is in its interval or not by what was known before it was learned, as everything else there.

`at` asks for so many rows, evenly spaced over the pass, at most one after each batch. The last is the result.
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

SKIPPED_SHARE = 0.1  # of a stream: every method is wrong at the start, which says little about it
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
    """Learn `train` in batches, one pass, and score `test`; a static method sees all of it in one update.

    test:   one test set, or several by name: then there is a row for each of them
    scaled: the method wants values shifted and scaled, by mean and standard deviation of the first batch
    at:     at how many evenly spaced batches to score the test set, the last one always being one of them
    """
    tests = {None: test} if isinstance(test, Batch) else test
    scaling = _scaling(train, batch_size, wanted=scaled and likelihood.scaled)
    lost = Lost()
    for step in one_pass(method, _scaled(train, scaling), batch_size, seed, at):
        lost = lost.and_of(step.update)
        if not step.wants_row:
            continue
        for name, (index, value) in tests.items():
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
    """Learn `stream` in batches, each entry scored by what `update` says it predicted before learning it.

    The scores of a row are over all entries so far but the first tenth of the stream, NaN while there are
    none; its window scores are over the entries since the row before, the first tenth included. A method may
    predict a whole batch before learning it: then the batch size matters. `scaled`, `at`: see `held_out`.
    """
    if method.unit == "all":
        raise ValueError("a static method predicts nothing on the way: it has no prequential score")
    scaling = _scaling(stream, batch_size, wanted=scaled and likelihood.scaled)
    n = len(stream.value)
    skipped = int(SKIPPED_SHARE * n)
    predicted = Prediction(*np.empty((3, n)))
    log_density, below = np.empty((2, n))
    lost, learned, window_start = Lost(), 0, 0
    for step in one_pass(method, _scaled(stream, scaling), batch_size, seed, at):
        new = slice(learned, step.n_entries)
        for kept, part in zip(predicted, scaling.user_units(*step.update[:3]), strict=True):
            kept[new] = part
        log_density[new] = scaling.log_density(step.update.log_evidence)
        calibrates = step.update.below is not None
        below[new] = step.update.below if calibrates else math.nan
        learned, lost = step.n_entries, lost.and_of(step.update)
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


class Lost(NamedTuple):
    """What was not learned so far, or not in full."""

    rejected: int = 0
    refused: int = 0
    clipped: int = 0

    def and_of(self, update: Update) -> Lost:
        here = update.rejected, update.refused, update.clipped
        return Lost(*(before + more for before, more in zip(self, here, strict=True)))


class Step(NamedTuple):
    """Where a pass stands after one update."""

    state: Any
    update: Update
    n_entries: int
    seconds: float
    wants_row: bool
    last: bool


def one_pass(method: Method, entries: Batch, batch_size: int, seed: int, at: int) -> Iterator[Step]:
    n = len(entries.value)
    if not n or batch_size < 1 or at < 1:
        raise ValueError(f"nothing to do with {n} entries, batch_size {batch_size} and {at} rows")
    size = n if method.unit == "all" else batch_size
    n_batches = -(-n // size)
    rows_after = {round(n_batches * row / at) for row in range(1, at + 1)}
    method.update(method.init(seed), _slice(entries, 0, batch_size))  # compiles; that state is thrown away
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
    """From the first batch alone: later entries are the future."""
    return Scaling.of(entries.value[:batch_size]) if wanted else Scaling()


def _scaled(entries: Batch, scaling: Scaling) -> Batch:
    return Batch(entries.index, scaling.scaled(entries.value))


def _scores(
    likelihood: Likelihood,
    value: NDArray[np.float64],
    prediction: Prediction,
    log_density: NDArray[np.float64] | None = None,
) -> Row:
    """`log_density` of each entry, if the method has reported it already."""
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
    """Of the state as it is: for entries that it has not learned."""
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


def progress(step: Step, lost: Lost, *, n_scored: int, skipped: int) -> Row:
    return {
        "n_entries": step.n_entries,
        "n_scored": n_scored,
        "skipped": skipped,
        "seconds": step.seconds,
        "entries_per_second": step.n_entries / max(step.seconds, 1e-9),
        **lost._asdict(),
        "members": step.state.weights.tolist() if isinstance(step.state, CommitteeState) else None,
    }
