"""The part of an estimator that learns a whole history, for `fit`: see history.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator import history, known_later, times, weights
from spidertensor.estimator.arranged import KnownLater, RandomLast
from spidertensor.estimator.collected import Collected
from spidertensor.estimator.eviction import Numbered
from spidertensor.estimator.fitted import Fitted, fitted_anew, scaled_values, with_room, with_rows
from spidertensor.estimator.history import Pass
from spidertensor.estimator.inputs import Columns
from spidertensor.estimator.times import Times
from spidertensor.spider.interrupts import deferred_interrupts


class LearnsHistory:
    """Mixin of `Spider`."""

    _collected: Collected | None = None

    @property
    def _case(self) -> str:
        """Which error it is that `_learn_collected` reports of entries: see times.case."""
        return times.NEXT_ENTRY if self._collected is None else self._collected.case

    def _learn_all_collected(self: Any) -> None:
        for _ in self._learn_collected():
            pass

    def _in_time(
        self: Any, as_they_come: bool, columns: Columns, y: Any, when: Times, sample_weight: Any
    ) -> None:
        """Learn or, unless `as_they_come`, collect entries in the order of their times."""
        order = np.argsort(when.asked, kind="stable")
        self._values(y, columns.n_entries, None)  # so that there are as many as entries
        weight = self._weights(sample_weight, columns.n_entries)
        weight = None if weight is None else weight[order]
        with weights.rows_as_given(order):
            columns, y = weights.columns_at(columns, order), None if y is None else times.in_order(y, order)
            if as_they_come:
                self._advance(columns, y, sample_weight=weight)
            else:
                self._collect(columns, y, when.at(order), sample_weight=weight)

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
        if self.known_at is not None:
            return "known_at says when their values are known"
        if self.max_nodes is not None:
            return "max_nodes lets nodes go"
        return None if self._placed is None else "several workers learn them"

    def _collect(
        self: Any,
        X: Any,
        y: Any,
        when: Times | None = None,
        classes: Any = None,
        folder: str | None = None,
        *,
        in_parts: bool = False,
        sample_weight: Any = None,
    ) -> None:
        """Check entries and number their ids; `_learn_collected` learns them.

        when:     their times, if they are to be learned in that order
        folder:   for files of what does not fit into memory
        in_parts: others follow, so these alone do not decide what attributes are (`_sample`)
        """
        columns = self._columns(X)
        value, classes = self._values(y, columns.n_entries, classes)
        weight = self._weights(sample_weight, len(value))
        rows = weights.rows_to_learn(weight)
        if rows is None or weight is None:
            self._collect_checked(columns, value, when, classes, folder, weight, in_parts=in_parts)
            return
        when = None if when is None else when.at(rows)
        with weights.rows_as_given(rows):
            some = weights.columns_at(columns, rows), value[rows], when, classes, folder, weight[rows]
            self._collect_checked(*some, in_parts=in_parts)

    def _collect_checked(
        self: Any,
        columns: Columns,
        value: NDArray[np.float64],
        when: Times | None,
        classes: Any,
        folder: str | None,
        weight: NDArray[np.float64] | None,
        *,
        in_parts: bool,
    ) -> None:
        """Collect entries of positive weight, whose values are checked."""
        if not len(value):
            return
        fitted = self._learned
        if fitted is None:
            # until all values decide: it refuses what is too far off, as it does for rows learned once
            as_a_stream = in_parts or (when is not None and when.known is not None)
            fitted = self._start(columns, value, provisional=True, history=not as_a_stream)
            fitted = fitted._replace(classes=classes)
        self._collected = self._collected or Collected(folder)
        if when is not None and fitted.columns is not None and fitted.columns.keeps_recent:
            self._collected.check_sorted(when.asked, self.time)
        with deferred_interrupts():
            scaled_values(value, fitted)  # refuses what is too far off
            if fitted.columns is not None:
                fitted.columns.collect()
            fitted, (index, bags, _) = with_room(fitted, columns, grows=False)
            self._keep_learned(fitted, columns)
            self._collected.add(index, value, bags, when, weight)
            self._notes.remember_call(index, value)

    def _keep_floors(self: Any, errors: dict[str, float]) -> None:
        """Keep in `history_` the errors of floors on the entries held back, if any were."""
        if self._learned.history is not None:
            self._learned = self._learned._replace(history=self._learned.history | {"floors": errors})

    def _made_room(self: Any, collected: Collected) -> tuple[Fitted, list[NDArray[np.int64] | None] | None]:
        """The model with room for what was collected, without the values that its columns cannot keep; and
        where the others are now (FittedColumns.bound)."""
        fitted, rows = self._learned, None
        if (columns := fitted.columns) is not None:
            before = columns.n_evicted
            rows = columns.bound(lambda: (each.bags for each in collected.chunks() if each.bags is not None))
            names = [column.spec.name for column in columns.columns]
            left_out = zip(names, (columns.n_evicted - before).tolist(), strict=True)
            self._notes.left_out({name: n for name, n in left_out if n})
        return with_rows(fitted), rows

    def _learn_collected(
        self: Any, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[NDArray[np.float64], Numbered] | Pass | None]:
        """Learn what was collected. Yields what has been done: for a block of the first pass, the values and
        what was predicted for them; a Pass; None for other work.

        stop: asked between blocks of later passes whether these are enough
        """
        collected, self._collected, self._sample = self._collected, None, None
        if collected is None or not collected.n_entries:
            return
        self._learned, rows = self._made_room(collected)
        n, folder, in_time = collected.n_entries, collected.folder, collected.has_time
        few = self.passes == "auto" and n < history.FEWEST and not in_time  # learned once, as they came
        started: Fitted = self._learned
        if not in_time:  # nodes are counted as their entries came, not in random order
            first = 0
            for chunk in collected.chunks():
                started.tally.add_nodes(chunk.index, first)
                first += len(chunk.index)
        entries = collected.arranged(started.params["random_state"], shuffled=not few)
        if in_time and started.columns is None:
            # in the order of time, so that the order of rows in a file is no matter
            orders = entries.renumber([len(each) for each in started.nodes])
            nodes = [each.reordered(order) for each, order in zip(started.nodes, orders, strict=True)]
            started = started._replace(nodes=nodes)
        entries.keep_values(rows)
        first = self.batch_size if few or isinstance(entries, KnownLater) else n
        scaling = entries.scaling = self._first_scaling(entries.sample(), first)
        started = started._replace(scaling=scaling)
        judge = "latest" if in_time else "random"
        if in_time and started.model.rule is not None and not isinstance(entries, KnownLater):
            # The latest events are mostly of the newest users, whom no pass helps: passes would end too soon.
            n_judged = history.held_back(self.passes, n)
            entries, judge = RandomLast(entries, n_judged, started.params["random_state"]), "random"
        steps = (
            known_later.learn(started, entries)
            if isinstance(entries, KnownLater)
            else history.learn(started, entries, self.passes, judge, folder, stop)
        )
        for fitted, step in steps:
            self._learned = fitted
            if isinstance(step, history.LearnedPart):
                own, update = step.value, step.update
                self._notes.learned(fitted, own, update, followed=False)
                log_evidence = scaling.log_density(update.log_evidence)
                mean, var, noise = scaling.user_units(update.mean, update.var, update.noise)
                update = update._replace(mean=mean, var=var, noise=noise, log_evidence=log_evidence)
                learned = Numbered(update, step.nodes)
                fitted.tally.add(own, learned, nodes=in_time)
                yield own, learned
            else:
                yield step
        # else it is what the same entries make of it in one call
        if self._learned.history is not None or isinstance(entries, KnownLater):
            self._learned = fitted_anew(self._learned)
