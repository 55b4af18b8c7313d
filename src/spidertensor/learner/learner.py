"""The learner: a model with its position and scores, shared by `spider fit`, `spider serve` and streams."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator import SpiderClassifier
from spidertensor.estimator.eviction import Numbered
from spidertensor.estimator.forecast import Forecast
from spidertensor.estimator.history import Pass
from spidertensor.estimator.inputs import Columns
from spidertensor.estimator.labels import Classes, Label
from spidertensor.estimator.loading import Estimator
from spidertensor.estimator.times import NEXT_ENTRY
from spidertensor.faults import EntryError
from spidertensor.learner.attributes import attribute_columns, kinds, modes_with_ids, refused
from spidertensor.learner.errors import LearnerError
from spidertensor.learner.forecasts import Remembered
from spidertensor.learner.position import Position
from spidertensor.learner.scores import Scores
from spidertensor.learner.warned import warned
from spidertensor.sources import Bins
from spidertensor.spider.events import Rule


class Refuse(Protocol):
    """Called with entries that the model refuses (`error.rows`), such as values far off its scale.

    Return to leave them out; raise to learn nothing at all.
    """

    def __call__(self, error: EntryError) -> None: ...


class Learned(NamedTuple):
    """The entries that one call learned. kept: their places among the entries given"""

    ids: Sequence[NDArray[Any]]
    values: NDArray[np.float64]
    kept: NDArray[np.int64]
    numbered: Numbered
    warnings: list[Warning]
    remembered: Remembered | None = None  # forecasts of these entries, if some have one


@dataclass
class Learner:
    """A model with its position and its scores.

    value:    the column of the values; None for events, which have none
    position: how far each source has been learned (position.py); saved with the model. The caller advances it
              after `learn`, before anything else can fail.
    bins:     per mode, the bins for its numbers; by default none
    classes:  the labels, if they are not 0 and 1
    memory:   in entries, how far back the scores look; math.inf for a run
    case:     which error the scores are: see times.case
    replayed: which error those of forecasts are, if a stream is replayed faster than it came
    """

    estimator: Estimator
    path: Path
    modes: list[str]
    value: str | None
    position: Position = field(default_factory=dict)
    bins: list[Bins | None] = field(default_factory=list)
    classes: Classes | None = None
    memory: float = math.inf
    case: str = NEXT_ENTRY
    replayed: str | None = None
    rule: Rule | None = field(init=False)
    scores: Scores = field(init=False)
    _stamp: tuple[int, ...] | None = field(init=False)  # of the file when it was opened or last saved

    def __post_init__(self) -> None:
        try:
            self.rule = self.estimator._rule_of(self.modes)
        except ValueError as error:
            raise LearnerError(str(error)) from None
        self.bins = self.bins or [None] * len(self.modes)
        self.scores = self.new_scores()
        self._stamp = _stamp(self.path)

    def new_scores(self) -> Scores:
        return Scores(self.estimator.likelihood_, len(self.modes), self.rule, self.memory, self.with_ids)

    @property
    def is_new(self) -> bool:
        """Whether nothing has been learned yet."""
        return not self.estimator.__sklearn_is_fitted__()

    @property
    def entries(self) -> int:
        return 0 if self.is_new else self.estimator.n_entries_

    @property
    def columns(self) -> list[str]:
        """The columns of ids, then of the value if there is one."""
        return [*self.id_columns, *([] if self.value is None else [self.value])]

    @property
    def with_ids(self) -> list[int]:
        """The numbers of the modes that have ids: all, unless the model has attributes of entries."""
        return modes_with_ids(self.estimator, len(self.modes))

    @property
    def id_columns(self) -> list[str]:
        return [self.modes[mode] for mode in self.with_ids]

    @property
    def attributes(self) -> list[str]:
        """The columns beside the ids that the model uses."""
        return attribute_columns(self.estimator)

    @property
    def kinds(self) -> dict[str, str]:
        """What each of these columns is, as far as it is decided."""
        return kinds(self.estimator)

    def collect(
        self,
        ids: Sequence[NDArray[Any]],
        values: NDArray[np.float64],
        refuse: Refuse,
        given: Mapping[str, NDArray[Any]],
    ) -> list[Warning]:
        """Like `learn`, but the entries are only kept, to be learned by `learn_collected`."""
        return self._each(self._collected, ids, values, refuse, given).warnings

    def look_ahead(self, given: Mapping[str, NDArray[Any]]) -> None:
        """Let attributes of a history be what these of its entries say; for `collect`, before the first."""
        n = len(next(iter(given.values())))
        while bad := list(refused(self.estimator, given, n)):  # entries that decide nothing
            given, n = {name: np.delete(column, bad) for name, column in given.items()}, n - len(bad)
        self.estimator._sample = given

    def learn_collected(self, stop: Callable[[], bool]) -> Iterator[Learned | Pass | None]:
        """Learn what was collected, in several passes. Yields what has been done: entries learned for the
        first time, a pass, or None for other work. stop: see LearnsHistory._learn_collected"""
        self.case, steps = self.estimator._case, self.estimator._learn_collected(stop)
        while True:
            with warned() as warnings:
                step = next(steps, self)
            if step is self:
                return
            if isinstance(step, tuple) and not isinstance(step, Pass):
                values, numbered = step
                step = Learned([], values, np.empty(0, np.int64), numbered, warnings)
            yield step  # pyright: ignore[reportReturnType]

    def learn(
        self,
        ids: Sequence[NDArray[Any]],
        values: NDArray[np.float64],
        refuse: Refuse,
        given: Mapping[str, NDArray[Any]] | None = None,
        remembered: Remembered | None = None,
    ) -> Learned:
        """Learn all entries except those that `refuse` leaves out; on an error nothing is learned.

        ids:        a column for each mode that has ids
        given:      columns of attributes, by name
        remembered: forecasts of the entries, where there are any
        """
        learned = self._each(partial(self._learned, remembered), ids, values, refuse, given or {})
        return learned if remembered is None else learned._replace(remembered=remembered.at(learned.kept))

    def forecast(self, ids: Columns) -> tuple[Forecast, NDArray[np.float64]]:
        """What the model and the floors predict now of these entries, to be scored when they are learned.

        The floors' part: see RunningFloors.forecast
        """
        forecast = self.estimator.forecast(ids)
        nodes = self.estimator._index(ids)
        return forecast, self.scores.floors_forecast(nodes, self.estimator.shift_)

    def _each(
        self,
        learn: Callable[..., Any],
        ids: Sequence[NDArray[Any]],
        values: NDArray[np.float64],
        refuse: Refuse,
        given: Mapping[str, NDArray[Any]],
    ) -> Learned:
        kept = np.arange(len(values))
        while True:
            try:
                with warned() as warnings:
                    numbered = learn(ids, values, given, kept)
                return Learned(ids, values, kept, numbered, warnings)
            except EntryError as error:
                rows = list(error.rows) or ([] if error.row is None else [error.row])
                if not rows:
                    raise
                cells = refused(self.estimator, given, len(values)) if error.column in given else {}
                for row, each in cells.items():  # all that have a cell like this
                    refuse(each.but(rows=(int(kept[row]),)))
                if cells:
                    rows = list(cells)
                else:
                    refuse(error.but(rows=tuple(kept[rows].tolist())))
                kept = np.delete(kept, rows)
                ids, values = [np.delete(column, rows) for column in ids], np.delete(values, rows)
                given = {name: np.delete(column, rows) for name, column in given.items()}

    def _learned(
        self,
        remembered: Remembered | None,
        ids: Sequence[NDArray[Any]],
        values: NDArray[np.float64],
        given: Mapping[str, NDArray[Any]],
        kept: NDArray[np.int64],
    ) -> Numbered:
        columns = self._columns(ids, given)
        how: dict[str, Any] = {} if remembered is None else {"forecast": remembered.forecast[kept]}
        if self.classes is None or not isinstance(self.estimator, SpiderClassifier):
            return self.estimator._learn_numbered(columns, values, **how)
        return self.estimator._learn_numbered(columns, self.labels(values), classes=self.classes, **how)

    def _collected(
        self,
        ids: Sequence[NDArray[Any]],
        values: NDArray[np.float64],
        given: Mapping[str, NDArray[Any]],
        kept: NDArray[np.int64],
    ) -> None:
        when, columns = self.estimator._when(dict(given)), self._columns(ids, given)
        y, folder = values if self.classes is None else self.labels(values), str(self.path.parent)
        self.estimator._collect(columns, y, when, classes=self.classes, folder=folder, in_parts=True)

    def _columns(self, ids: Sequence[NDArray[Any]], given: Mapping[str, NDArray[Any]]) -> Columns:
        if self.estimator._schema is not None:
            return Columns(list(ids), tuple(self.id_columns), given)
        # Names only for a new model: one saved without names learns its columns by position.
        return Columns(list(ids), tuple(self.modes) if self.is_new else None)

    def labels(self, values: NDArray[np.float64]) -> list[Label]:
        """Map values 0 and 1 to labels."""
        assert self.classes is not None
        return [self.classes[int(value)] for value in values]

    def score(self, learned: Learned) -> NDArray[np.float64]:
        """Add entries to the scores; returns their (1 + floors, n) losses."""
        if not len(learned.values):
            return np.empty((len(self.scores.sums.losses), 0))
        now = self.estimator.shift_, learned.remembered, self.estimator.likelihood_
        return self.scores.add(learned.values, learned.numbered, *now)

    @property
    def is_saved(self) -> bool:
        """Whether the file is the one opened, or saved last."""
        return self._stamp is not None and _stamp(self.path) == self._stamp

    def save(self) -> None:
        """Save to the file. LearnerError if another process has written it, although it is locked.

        Other threads may predict meanwhile; nobody may learn.
        """
        now = _stamp(self.path)
        if now is not None and now != self._stamp:
            reason = f"{self.path}: was written by another process meanwhile, and is left as it is"
            remedy = "stop the other process and this one, and keep one of the models"
            raise LearnerError(reason, kind="overwritten", remedy=remedy)
        self.estimator._write(self.path, self.position)
        self._stamp = _stamp(self.path)


def _stamp(path: Path) -> tuple[int, ...] | None:
    """What changes if a file is written; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
