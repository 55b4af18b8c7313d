"""A learner of a model that exists, and where it stands with a source."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from spidertensor.estimator.loading import Estimator
from spidertensor.learner import position
from spidertensor.learner.errors import LearnerError
from spidertensor.learner.labels import own_labels
from spidertensor.learner.learner import Learner
from spidertensor.learner.position import Place, Position
from spidertensor.sources import Source, Stream


def reopened(
    estimator: Estimator, path: Path, value: str | None = None, *, memory: float = math.inf
) -> Learner:
    """The learner of a model from a file. value: the column of the values, if the file does not say it"""
    stored = estimator.position_ if isinstance(estimator.position_, dict) else {}
    column = None if estimator.learns_events else position.value(stored) or value
    return Learner(
        estimator, path, estimator.mode_names_, column, stored,
        bins=position.bins(estimator), classes=own_labels(estimator), memory=memory,
    )  # fmt: skip


def check_value(learner: Learner) -> None:
    """A learner has to know the column of the values, unless it learns events."""
    if learner.value is None and not learner.estimator.learns_events:
        reason = f"{learner.path}: does not say which column has the value"
        raise LearnerError(reason, kind="no value column")


class Standing(NamedTuple):
    """Where a learner stands with a source.

    stored:   its position, if that has a place
    known:    where it left each source, the latest first
    place:    where it left this one; None if the source is new to it
    all_text: per mode, whether "42" in this source is a text; None if the source has types
    """

    stored: Position | None
    known: list[Place]
    place: Place | None
    all_text: list[bool] | None

    @property
    def is_latest(self) -> bool:
        """Whether the source is the one that was learned last."""
        return self.place is not None and self.place is self.known[0]

    @property
    def before(self) -> list[Place]:
        """The places of other sources, to remember."""
        return position.others(self.known, self.place)

    def other_name(self, source: Source | Stream) -> str | None:
        """The name that a stream had when it was learned, if it has another one now."""
        if self.place is None or self.place["stream"] is None or self.place["source"] == source.name:
            return None
        return self.place["source"]


def standing(learner: Learner, source: Source | Stream, at: Position | None = None) -> Standing:
    """at: the position, if it is not that of the learner yet"""
    stored = position.checked(learner.position if at is None else at, len(learner.modes))
    known = position.places(stored)
    texts = stored["all_text"] if stored else None
    if texts is None and not source.format.typed:
        texts = [False] * len(learner.modes) if learner.is_new else position.all_text(learner.estimator)
    return Standing(stored, known, position.find(known, source), texts)
