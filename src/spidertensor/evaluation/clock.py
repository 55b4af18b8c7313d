"""The honest clock: each entry is predicted at its time, and learned when its value is known.

    for each tick of the clock
        learn the entries whose values became known before it
        predict the entries that are asked for in it

So no prediction knows a value too early; some miss values of up to one tick, by default a tenth of the median
delay. Nothing is learned before a whole batch is known, because the first batch decides the scale. The
committee scores the forecasts that its members made when they were asked (mathematics.md section 21).
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.known_later import tick_of, ticks
from spidertensor.estimator.times import case
from spidertensor.evaluation.dataset import Dataset, DatasetError
from spidertensor.evaluation.protocols import NotLearned, Row, Step, StreamScores, known, progress
from spidertensor.method import Batch, Method, Prediction, Update
from spidertensor.scaling import Scaling
from spidertensor.spider.committee import ForecastingMethod
from spidertensor.spider.forecasts import MemberForecasts, PendingForecasts
from spidertensor.spider.likelihoods import Likelihood

SHARES = np.linspace(0, 1, 1001)  # of a calibrated distribution: precise to a tenth of a percent


class Clock(NamedTuple):
    """When entries are asked for, and when their values are known.

    asked: (n,) ascending, in seconds or numbers of entries
    known: (n,) not before `asked`
    unit:  "entries", "seconds", or "" for numbers of which nothing is known
    tick:  in this unit; None for a tenth of the median delay
    """

    asked: NDArray[np.floating | np.integer]
    known: NDArray[np.floating | np.integer]
    unit: str
    tick: float | None = None

    @property
    def case(self) -> str:
        """Which error the clock leads to, in words."""
        return case(self.median, self.unit)

    @property
    def median(self) -> float:
        return float(np.median(self.known - self.asked))

    def ticks(self, first_batch: int) -> Iterator[tuple[NDArray[np.int64], slice]]:
        """The entries to learn, in the order in which they became known, and then those to predict.

        first_batch: the least number of entries that are learned first
        """
        tick = self.tick or tick_of(self.asked, self.known)
        if tick <= 0:
            raise DatasetError("all values are known at once: use the protocol prequential")
        return ticks(self.asked, self.known, tick, first_batch)


class Delay(NamedTuple):
    """How late every value is known. unit: see Clock"""

    length: float
    unit: str


def clock_of(dataset: Dataset, delay: Delay | None = None) -> Clock:
    """When the entries of a data set, in their order of time, are asked for and known.

    delay: if values are known so much later than asked for; None if the data set tells when
    """
    order = dataset.time_order
    if order is None:
        raise DatasetError(f"the entries of {dataset.name} have no times")
    if delay is not None and delay.unit == "entries":
        asked = np.arange(len(order))
        return Clock(asked, asked + int(delay.length), "entries")
    if delay is None and dataset.known is None:
        raise DatasetError(
            f"{dataset.name} does not tell when values are known: name a column with --known-at, or a --delay"
        )
    if dataset.times is None or dataset.time_unit == "entries":
        raise DatasetError(f"{dataset.name}: a delay in time needs times: name their column with --time")
    asked = dataset.times[order]
    if delay is not None:  # numbers of which nothing is known count as seconds
        return Clock(asked, asked + delay.length, "seconds")
    assert dataset.known is not None
    return Clock(asked, dataset.known[order], dataset.time_unit)


def honest_clock(
    method: Method,
    stream: Batch,
    clock: Clock,
    *,
    likelihood: Likelihood,
    batch_size: int = 256,
    seed: int = 0,
    scaled: bool = False,
    at: int = 1,
    scores: StreamScores | None = None,
) -> Iterator[Row]:
    """Score predictions of the entries of `stream`, which come in the order of `clock.asked`.

    Rows are those of `protocols.prequential`. What is asked for before anything is known is not scored.
    scores: keeps all predictions, for a caller that wants more than rows
    """
    if method.unit == "all":
        raise ValueError("a static method cannot learn entry by entry: it needs all entries at once")
    ticks = list(clock.ticks(batch_size))
    first = next((asked.start for learned, asked in ticks if len(learned)), None)
    if first is None:
        raise DatasetError(
            f"fewer than {batch_size} values are known before the last entry is asked for: nothing to score"
        )
    earliest = np.argsort(clock.known, kind="stable")[:batch_size]
    scaling = Scaling.of(stream.value[earliest]) if scaled and likelihood.scaled else Scaling()
    values, scores = scaling.scaled(stream.value), scores or StreamScores(stream.value, likelihood)
    scores.skipped = max(scores.skipped, first)
    rows_after = {round(len(ticks) * row / at) for row in range(1, at + 1)}
    run, pending = _Run(method, seed, batch_size), PendingForecasts(len(values))
    for number, (rows, asked) in enumerate(ticks, 1):
        run.learn(Batch(stream.index[rows], values[rows]), pending.of_rows(rows))
        if asked.start >= first:
            index = stream.index[asked]
            prediction = run.predict(index, pending, asked)
            by = run.likelihood(likelihood)
            below = run.below(by, values[asked], prediction)
            log_density = scaling.log_density(by.log_evidence(values[asked], *prediction))
            scores.add(asked, scaling.user_units(*prediction), log_density, below, by)
        if number in rows_after and asked.start >= first:
            row = scores.row(asked.stop, last=number == len(ticks))
            row |= progress(
                run.step(), run.lost, n_scored=scores.n_scored(asked.stop), skipped=scores.skipped
            )
            yield row | {"case": clock.case}


class _Run:
    """A method on its way through the ticks. Large numbers of entries are learned in batches."""

    def __init__(self, method: Method, seed: int, batch_size: int) -> None:
        self._method, self._state, self._size = method, method.init(seed), batch_size
        self.lost, self._learned, self._seconds = NotLearned(), 0, 0.0
        self._update = Update(*np.empty((4, 0)), rejected=0)

    def learn(self, batch: Batch, forecasts: MemberForecasts | None) -> None:
        for first in range(0, len(batch.value), self._size):
            part = slice(first, first + self._size)
            own = Batch(np.ascontiguousarray(batch.index[part]), np.ascontiguousarray(batch.value[part]))
            began = perf_counter()
            if isinstance(self._method, ForecastingMethod) and forecasts is not None:
                of_part = forecasts.part(first, first + self._size)
                self._state, update = self._method.update_by(self._state, own, of_part)
            else:
                self._state, update = self._method.update(self._state, own)
            self._seconds += perf_counter() - began
            self._learned += len(own.value)
            self._update, self.lost = update, self.lost.plus(update)

    def predict(self, index: NDArray[np.int64], pending: PendingForecasts, at: slice) -> Prediction:
        if isinstance(self._method, ForecastingMethod):
            prediction, own = self._method.forecast(self._state, index, None)
            pending.keep(at, own)
            return prediction
        return self._method.predict(self._state, index)

    def likelihood(self, likelihood: Likelihood) -> Likelihood:
        return known(self._method, self._state, likelihood)

    def below(
        self, likelihood: Likelihood, value: NDArray[np.float64], prediction: Prediction
    ) -> NDArray[np.float64] | None:
        """The share of each calibrated distribution below the value, as known when it was asked for."""
        if self._method.quantile is None:
            return None
        quantiles = self._method.quantile(self._state, SHARES)
        return np.interp(likelihood.residual(value, prediction, self._learned), quantiles, SHARES)

    def step(self) -> Step:
        return Step(self._state, self._update, self._learned, self._seconds, wants_row=True, last=False)
