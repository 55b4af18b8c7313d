"""The part of an estimator that learns a whole history, for `fit`: see history.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator import history, times
from spidertensor.estimator.eviction import Numbered
from spidertensor.estimator.fitted import Fitted, scaled_values, with_room
from spidertensor.estimator.history import Collected, Pass
from spidertensor.estimator.inputs import Columns
from spidertensor.faults import EntryError
from spidertensor.spider.committee import deferred_interrupts


class LearnsHistory:
    """Mixin of `Spider`."""

    _collected: Collected | None = None

    def _learn_all_collected(self: Any) -> None:
        for _ in self._learn_collected():
            pass

    def _learn_in_time(self: Any, columns: Columns, y: Any, order: NDArray[np.int64]) -> None:
        """Learn entries once, in this order."""
        self._values(y, columns.n_entries, None)  # so that there are as many as entries
        ids = [None if each is None else times.in_order(each, order) for each in columns.ids]
        given = {name: times.in_order(each, order) for name, each in columns.given.items()}
        try:
            y = None if y is None else times.in_order(y, order)
            self._advance(replace(columns, ids=ids, given=given), y)
        except EntryError as error:  # about a row as the caller has it
            row, rows = (None if error.row is None else int(order[error.row])), order[list(error.rows)]
            raise error.but(row=row, rows=tuple(rows.tolist())) from None

    def _once(self: Any, n_entries: int | None = None) -> str | None:
        """Why `fit` learns entries only once; None if it learns them several times.

        n_entries: if known
        """
        if self.passes == 1:
            return "passes is 1"
        reason = self._only_once()
        if self.passes != "auto":
            if reason is not None:
                raise ValueError(
                    f"entries are learned only once if {reason}: passes={self.passes} is too many"
                )
            return None
        few = n_entries is not None and n_entries < history.FEWEST
        return reason or (f"there are fewer than {history.FEWEST:,}" if few else None)

    def _only_once(self: Any) -> str | None:
        """Why this model can learn entries only once, whatever `passes` is."""
        if self.max_nodes is not None:
            return "max_nodes lets nodes go"
        if self.learns_events:
            return "they are events"
        return None if self._placed is None else "several workers learn them"

    def _collect(self: Any, X: Any, y: Any, when: NDArray[Any] | None = None, classes: Any = None) -> None:
        """Check entries and number their ids; `_learn_collected` learns them.

        when: their times, if they are to be learned in that order
        """
        columns = self._columns(X)
        value, classes = self._values(y, columns.n_entries, classes)
        if not len(value):
            return
        fitted = self._learned
        if fitted is None:
            # until all values decide: it refuses what is too far off, as it does for rows learned once
            fitted = self._start(columns, value, provisional=True)._replace(classes=classes)
        self._collected = self._collected or Collected()
        if when is not None and fitted.columns is not None and fitted.columns.keeps_recent:
            self._collected.check_sorted(when, self.time)
        with deferred_interrupts():
            scaled_values(value, fitted)  # refuses what is too far off
            fitted, (index, bags, segments) = with_room(fitted, columns)
            if segments:
                raise EntryError(
                    "a column of attributes has more values than the model keeps",
                    kind="passes",
                    remedy="pass passes=1, with which the values longest unseen make room",
                )
            self._keep_learned(fitted, columns)
            self._collected.add(index, value, bags, when)

    def _learn_collected(
        self: Any, folder: str | None = None, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[NDArray[np.float64], Numbered] | Pass | None]:
        """Learn what was collected. Yields what has been done: for a block of the first pass, the values and
        what was predicted for them; a Pass; None for other work.

        folder: for files of what does not fit into memory
        stop:   asked between blocks of later passes whether these are enough
        """
        collected, self._collected = self._collected, None
        if collected is None or not collected.n_entries:
            return
        value = collected.values()
        n = self.batch_size if collected.are_few(self.passes) else len(value)
        scaling = self._first_scaling(value, n)
        started: Fitted = self._learned._replace(scaling=scaling)
        for fitted, step in history.learn(started, collected, self.passes, folder, stop):
            self._learned = fitted
            if isinstance(step, history.Learned):
                own, update = value[step.rows], step.update
                self._notes.learned(fitted, own, update, followed=False)
                log_evidence = scaling.log_density(update.log_evidence)
                mean, var, noise = scaling.user_units(update.mean, update.var, update.noise)
                update = update._replace(mean=mean, var=var, noise=noise, log_evidence=log_evidence)
                yield own, Numbered(update, step.nodes)
            else:
                yield step
