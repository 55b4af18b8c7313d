"""`fit` with `known_at`: each entry is predicted at its time, and learned once, when its value is known.

    for each tick of the clock
        learn the entries whose values became known before it
        predict the entries that are asked for in it

So no prediction knows a value too early; some miss values of up to one tick. The committee scores what its
members made when they were asked (mathematics.md section 21).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.arranged import KnownLater
from spidertensor.estimator.fitted import Fitted, remember
from spidertensor.estimator.history import LearnedPart
from spidertensor.method import joined
from spidertensor.spider.committee import updated
from spidertensor.spider.forecasts import PendingForecasts

TICKS = 10  # in the median delay
STEP_ENTRIES = 8192  # reported at once, at least

Times = NDArray[np.floating | np.integer]


def tick_of(asked: Times, known: Times) -> float:
    """A tenth of the median delay, or of the mean one if most values are known at once."""
    delay = known - asked
    return (float(np.median(delay)) or float(np.mean(delay))) / TICKS


def ticks(
    asked: Times, known: Times, tick: float, first_batch: int
) -> Iterator[tuple[NDArray[np.int64], slice]]:
    """The entries to learn, in the order in which they became known, and then those to predict.

    asked:       ascending
    first_batch: the least number of entries that are learned first
    """
    order = np.argsort(known, kind="stable")
    asked, known = ((times - asked[0]) // tick for times in (asked, known))
    starts = np.flatnonzero(np.diff(asked, prepend=-1))
    ends = np.append(starts[1:], len(asked))
    until = np.searchsorted(known[order], asked[starts])  # values known in an earlier tick
    learned = 0
    for start, end, now in zip(starts.tolist(), ends.tolist(), until.tolist(), strict=True):
        now = now if now >= first_batch else 0
        yield order[learned:now], slice(start, end)
        learned = now


def learn(fitted: Fitted, entries: KnownLater) -> Iterator[tuple[Fitted, LearnedPart]]:
    """Learn a history. Yields the model, and the entries learned since the last time.

    Values that become known after the last entry is asked for are learned in the end.
    """
    method, n, first_batch = fitted.model.method, entries.n_entries, fitted.params["batch_size"]
    pending, done, updates, learned = PendingForecasts(n), np.zeros(n, bool), [], []
    tick = tick_of(entries.asked, entries.known)
    clock = ticks(entries.asked, entries.known, tick, first_batch) if tick > 0 else iter(())

    def rest() -> Iterator[tuple[NDArray[np.int64], slice]]:
        order = np.argsort(entries.known, kind="stable")
        late = order[~done[order]]
        for first in range(0, len(late), STEP_ENTRIES):
            yield late[first : first + STEP_ENTRIES], slice(0)

    def step() -> LearnedPart:
        rows = np.concatenate(learned)
        return LearnedPart(entries.raw_at(rows).value, entries.batch_at(rows).index, joined(updates))

    for rows, asked in chain(clock, rest()):
        if len(rows):
            done[rows] = True
            batch = entries.batch_at(rows)
            state, update = updated(method, fitted.state, batch, pending.of_rows(rows))
            remember(fitted, batch.index)
            fitted = fitted._replace(state=state)
            updates.append(update)
            learned.append(rows)
        if done.any() and asked.stop:
            batch = entries.batch(asked.start, asked.stop)
            pending.keep(asked, method.forecast(fitted.state, batch.index, batch.bags)[1])
        if sum(map(len, learned)) >= STEP_ENTRIES:
            yield fitted, step()
            updates, learned = [], []
    if learned:
        yield fitted, step()
