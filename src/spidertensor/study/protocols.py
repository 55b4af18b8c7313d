"""Two protocols for any Method, as generators of rows; printing, plotting and saving consume rows.

    held_out     one pass over the training entries in the order given, then the test set is scored
    prequential  one pass over a stream; an entry is scored by what its update predicted before learning it

A row is a dict of plain numbers in the user's units, the same keys in every row of both protocols:

    test                    which of several test sets; None if there is but one
    metric, score           "rmse" or, for binary values, "auc"
    mae, coverage_50, coverage_90                  None for binary values
    log_loss, calibration_error                    None for continuous values
    log_density             mean log predictive density of a value
    window_score, window_log_density               prequential: of the entries since the row before; else None
    n_entries, n_scored     entries learned so far, and entries that the scores are over
    skipped                 entries at the start of a stream that are not scored: a tenth
    seconds                 spent in `update` so far; compiling is not in it, nor is scoring
    entries_per_second, rejected
    calibration             last row only, else None: pairs of nominal level and covered share, or for binary
                            values of mean probability and share of ones

`at` asks for so many rows, evenly spaced over the pass, at most one after each batch. The last is the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Batch, Method, Prediction, Update
from spidertensor.scaling import Scaling
from spidertensor.study import metrics

Row = dict[str, Any]

SKIPPED_SHARE = 0.1  # of a stream: what every method gets wrong at the start says little about it


def held_out(
    method: Method,
    train: Batch,
    test: Batch | Mapping[str, Batch],
    *,
    binary: bool,
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
    scaling = _scaling(train, batch_size, wanted=scaled and not binary)
    rejected = 0
    for step in _pass(method, _scaled(train, scaling), batch_size, seed, at):
        rejected += step.update.rejected
        if not step.wants_row:
            continue
        for name, (index, value) in tests.items():
            prediction = scaling.user_units(*method.predict(step.state, index))
            scores = _scores(binary, value, prediction) | {"test": name}
            if step.last:
                scores["calibration"] = _calibration(binary, value, prediction)
            yield scores | _progress(step, rejected, n_scored=len(value), skipped=0)


def prequential(
    method: Method,
    stream: Batch,
    *,
    binary: bool,
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
    if not method.streaming:
        raise ValueError("a static method predicts nothing on the way: it has no prequential score")
    scaling = _scaling(stream, batch_size, wanted=scaled and not binary)
    n = len(stream.value)
    skipped = int(SKIPPED_SHARE * n)
    predicted = Prediction(*np.empty((3, n)))
    log_density = np.empty(n)
    learned = window_start = rejected = 0
    for step in _pass(method, _scaled(stream, scaling), batch_size, seed, at):
        new = slice(learned, step.n_entries)
        for kept, part in zip(predicted, scaling.user_units(*step.update[:3]), strict=True):
            kept[new] = part
        log_density[new] = scaling.log_density(step.update.log_evidence)
        learned, rejected = step.n_entries, rejected + step.update.rejected
        if step.wants_row:
            scored, window = slice(min(skipped, learned), learned), slice(window_start, learned)
            scores = _scores(binary, stream.value[scored], _cut(predicted, scored), log_density[scored])
            scores["window_score"] = _score(binary, stream.value[window], _cut(predicted, window))
            scores["window_log_density"] = float(log_density[window].mean())
            if step.last:
                scores["calibration"] = _calibration(binary, stream.value[scored], _cut(predicted, scored))
            yield scores | _progress(step, rejected, n_scored=scored.stop - scored.start, skipped=skipped)
            window_start = learned


class _Step(NamedTuple):
    """Where a pass stands after one update."""

    state: Any
    update: Update
    n_entries: int
    seconds: float
    wants_row: bool
    last: bool


def _pass(method: Method, entries: Batch, batch_size: int, seed: int, at: int) -> Iterator[_Step]:
    n = len(entries.value)
    if not n or batch_size < 1 or at < 1:
        raise ValueError(f"nothing to do with {n} entries, batch_size {batch_size} and {at} rows")
    size = batch_size if method.streaming else n
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
        yield _Step(state, update, learned, seconds, number in rows_after, number == n_batches)


def _slice(entries: Batch, start: int, stop: int) -> Batch:
    return Batch(entries.index[start:stop], entries.value[start:stop])


def _cut(prediction: Prediction, part: slice) -> Prediction:
    return Prediction(*(array[part] for array in prediction))


def _scaling(entries: Batch, batch_size: int, *, wanted: bool) -> Scaling:
    """From the first batch alone: later entries are the future."""
    return Scaling.of(entries.value[:batch_size]) if wanted else Scaling()


def _scaled(entries: Batch, scaling: Scaling) -> Batch:
    return Batch(entries.index, scaling.scaled(entries.value))


def _score(binary: bool, value: NDArray[np.float64], prediction: Prediction) -> float:
    if binary:  # ranked before Phi, which makes ties of everything beyond 8
        return metrics.auc(value, prediction.mean / np.sqrt(1 + prediction.var))
    return metrics.rmse(value, prediction.mean)


def _scores(
    binary: bool,
    value: NDArray[np.float64],
    prediction: Prediction,
    log_density: NDArray[np.float64] | None = None,
) -> Row:
    """`log_density` of each entry if the method has told it already."""
    mean, var, noise = prediction
    row: Row = {"metric": "auc" if binary else "rmse", "score": _score(binary, value, prediction)}
    row |= dict.fromkeys(
        ("mae", "log_density", "coverage_50", "coverage_90", "log_loss", "calibration_error")
    )
    if binary:
        probability = metrics.probit_probability(mean, var)
        row["log_density"] = metrics.bernoulli_log_density(value, mean, var)
        row["log_loss"] = metrics.log_loss(value, probability)
        row["calibration_error"] = metrics.calibration_error(value, probability)
    else:
        row["mae"] = metrics.mae(value, mean)
        row["log_density"] = metrics.gaussian_log_density(value, mean, var + noise)
        row["coverage_50"] = metrics.coverage(value, mean, var + noise, 0.5)
        row["coverage_90"] = metrics.coverage(value, mean, var + noise, 0.9)
    if log_density is not None:
        row["log_density"] = float(log_density.mean()) if len(log_density) else math.nan
    return row | dict.fromkeys(("test", "window_score", "window_log_density", "calibration"))


def _calibration(binary: bool, value: NDArray[np.float64], prediction: Prediction) -> list[list[float]]:
    mean, var, noise = prediction
    if binary:
        nominal, observed, _ = metrics.reliability_curve(value, metrics.probit_probability(mean, var))
    else:
        nominal, observed = metrics.calibration_curve(value, mean, var + noise)
    return np.stack([nominal, observed], axis=1).tolist()


def _progress(step: _Step, rejected: int, *, n_scored: int, skipped: int) -> Row:
    return {
        "n_entries": step.n_entries,
        "n_scored": n_scored,
        "skipped": skipped,
        "seconds": step.seconds,
        "entries_per_second": step.n_entries / max(step.seconds, 1e-9),
        "rejected": rejected,
    }
