"""The part of an estimator that learns a whole history, for `fit`: see history.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator import history, inputs, times
from spidertensor.estimator.fitted import Fitted, scaled_values, with_room
from spidertensor.estimator.history import Collected, Learned, Pass
from spidertensor.estimator.inputs import Columns
from spidertensor.estimator.threads import locked
from spidertensor.faults import EntryError
from spidertensor.spider.committee import deferred_interrupts


class LearnsHistory:
    """Mixin of `Spider`."""

    _collected: Collected | None = None

    def _learn_all(self: Any, X: Any, y: Any) -> None:
        """Learn all entries, in several passes unless `_once` says why not."""
        when, n = None, 0
        if self.time is not None:
            _, column = times.apart(X, self.time)
            when = times.sortable(column, self.time)
        columns = self._columns(X)
        if self._once(columns.n_entries) is not None and when is None:
            self._advance(X, y)
            return
        self._collect(columns, y, when)
        for _ in self._learn_collected():
            pass

    def _once(self: Any, n_entries: int | None = None) -> str | None:
        """Why the entries of `fit` are learned only once; None if they are learned several times.

        n_entries: if known
        """
        reason = None
        if self.max_nodes is not None:
            reason = "max_nodes lets nodes go"
        elif self.learns_events:
            reason = "events are learned with new negatives"
        elif self._placed is not None:
            reason = "several workers"
        if self.passes == 1:
            return "passes is 1"
        if self.passes != "auto" and reason is not None:
            raise ValueError(f'passes must be 1 or "auto" here, got {self.passes}: {reason}')
        if self.passes == "auto" and n_entries is not None and n_entries < history.FEWEST:
            return f"fewer than {history.FEWEST:,} entries"
        return reason

    @locked
    def _collect(self: Any, X: Any, y: Any, when: NDArray[Any] | None = None, classes: Any = None) -> None:
        """Check entries and number their ids; they are learned by `_learn_collected`.

        when: their times, if that is the order to learn them in
        """
        columns = self._columns(X)
        value, classes = self._values(y, columns.n_entries, classes)
        if not len(value):
            return
        fitted = self._learned or self._start(columns, value, n=len(value))._replace(classes=classes)
        with deferred_interrupts():
            scaled_values(value, fitted)  # refuses those that are too far off
            fitted, (index, bags, _) = with_room(fitted, columns)
            self._keep_learned(fitted, columns)
            if self._collected is None:
                self._collected = Collected()
            self._collected.add(index, value, bags, when)

    @locked
    def _learn_collected(self: Any, folder: str | None = None) -> Iterator[Learned | Pass | None]:
        """Learn what was collected; yields what has been done: see history.learn."""
        collected, self._collected = self._collected, None
        if collected is None:
            return
        fitted: Fitted = self._learned
        value = collected.values()
        for fitted, step in history.learn(fitted, collected, self.passes, folder):
            self._learned = fitted
            if isinstance(step, Learned):
                self._notes.learned(fitted, value[step.rows], step.update, followed=False)
            yield step
