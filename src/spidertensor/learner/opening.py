"""Reopen a saved model as a learner, and find how far it has learned a source."""

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
    """The learner for a loaded model. value: the column of the values, if the file does not name it"""
    stored = estimator.position_ if isinstance(estimator.position_, dict) else {}
    column = None if estimator.learns_events else position.value_column(stored) or value
    return Learner(
        estimator, path, estimator.mode_names_, column, stored,
        bins=position.bins(estimator), classes=own_labels(estimator), memory=memory,
    )  # fmt: skip


def check_value(learner: Learner) -> None:
    """LearnerError if the column of the values is not known; events need none."""
    if learner.value is None and not learner.estimator.learns_events:
        reason = f"{learner.path}: does not name the value column"
        raise LearnerError(reason, kind="no value column")


class Standing(NamedTuple):
    """How far a learner has learned a source.

    stored:   the learner's position, if it is a valid one
    known:    the place of each known source, the latest first
    place:    the place of this source; None if the source is new
    all_text: per mode, whether "42" in this source is a text; None if the source has types
    """

    stored: Position | None
    known: list[Place]
    place: Place | None
    all_text: list[bool] | None

    @property
    def is_latest(self) -> bool:
        """Whether this source was the last one learned."""
        return self.place is not None and self.place is self.known[0]

    @property
    def before(self) -> list[Place]:
        """The places of the other sources, to be remembered."""
        return position.others(self.known, self.place)

    def other_name(self, source: Source | Stream) -> str | None:
        """The name under which a stream was learned, if it differs from the current one."""
        if self.place is None or self.place["stream"] is None or self.place["source"] == source.name:
            return None
        return self.place["source"]


def standing(learner: Learner, source: Source | Stream, at: Position | None = None) -> Standing:
    """at: the position to use instead of the learner's"""
    stored = position.checked(learner.position if at is None else at, len(learner.modes))
    known = position.places(stored)
    texts = stored["all_text"] if stored else None
    if texts is None and not source.format.typed:
        texts = [False] * len(learner.modes) if learner.is_new else position.all_text(learner.estimator)
    return Standing(stored, known, position.find(known, source), texts)
