"""Open the model of a server: from a file, new, or from what a killed process left behind."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path
from typing import Any, NamedTuple

from spidertensor.estimator import SpiderClassifier, SpiderRegressor, load
from spidertensor.estimator.columns import Schema
from spidertensor.estimator.labels import ZERO_ONE
from spidertensor.estimator.loading import Estimator
from spidertensor.learner.errors import LearnerError
from spidertensor.learner.learner import Learner
from spidertensor.learner.opening import check_value, reopened
from spidertensor.service.errors import ServiceError
from spidertensor.service.exact_json import sendable
from spidertensor.service.journal import Journal, JournalError
from spidertensor.service.journaled import JournaledLearner

MEMORY_ENTRIES = 5000  # how far back the scores of a server look

KINDS = {kind.__name__: kind for kind in (SpiderRegressor, SpiderClassifier)}


class NewModel(NamedTuple):
    """The settings of a new model, in JSON; the journal keeps them until the first checkpoint."""

    kind: str
    modes: list[str]
    value: str | None  # None for events
    settings: dict[str, Any]
    schema: list[dict[str, Any]] | None = None  # Schema.to_json, if it has attributes
    labels: list[bool | int | str] | None = None  # the positive one last, if they are not 0 and 1

    def made(self, path: Path) -> Learner:
        settings: dict[str, Any] = {
            name: tuple(each) if isinstance(each, list) else each for name, each in self.settings.items()
        }
        if self.schema is not None:
            settings["modes"] = Schema.from_json(self.schema)
        classes = None if self.labels is None else (self.labels[0], self.labels[1])
        estimator = KINDS[self.kind](**settings)
        learner = Learner(estimator, path, self.modes, self.value, classes=classes, memory=MEMORY_ENTRIES)
        _check_names(learner)
        return learner


def opened(path: Path, new: NewModel | None, value: str | None = None) -> JournaledLearner:
    """Open the model in a file, or make a new one, with any journal left by a killed process.

    value: the name of the value column, if the model file does not have it
    """
    place = path.with_name(f"{path.name}.journal")
    left = Journal.opened(place) if place.exists() else None
    span = left.span() if left else None
    if path.exists():
        learner = served_learner(load(path), path, value)
        check_value(learner)
        identity, sequence = _place(learner.position.get("service"))
    else:
        if left is not None and span is not None:
            new = NewModel(**{name: left.about[name] for name in NewModel._fields if name in left.about})
            identity = left.about["id"]
        elif new is not None:
            seed = new.settings.get("random_state", secrets.randbits(31))
            new, identity = new._replace(settings=new.settings | {"random_state": seed}), None
        else:
            raise JournalError(f"{path}: no such model", kind="no model")
        learner, sequence = new.made(path), 0
    if left is not None and span is None:
        left.remove()
        left = None
    if left is not None and span is not None:
        _check_fits(left, span, identity, sequence, path)
        if span[1] > sequence:
            return JournaledLearner(learner, left, sequence)
        left.remove()  # killed after the model was saved, before its journal was removed
    made_of = new or NewModel(type(learner.estimator).__name__, learner.modes, learner.value, {})
    about = made_of._asdict() | {"id": identity or secrets.token_hex(16)}
    named = identity is not None or not path.exists()
    served = JournaledLearner(learner, Journal(place, about), sequence, named=named)
    if not named:
        with contextlib.suppress(ServiceError):  # an alarm; it is tried again before anything is learned
            served.checkpoint()
    return served


def served_learner(estimator: Estimator, path: Path, value: str | None = None) -> Learner:
    """The learner for a loaded model; LearnerError if its names, ids or values cannot be sent in requests."""
    if isinstance(estimator.position_, dict) and estimator.position_.get("bins"):
        remedy = "fit a model with bin names as ids, and bin the numbers before sending them"
        raise LearnerError(f"{path}: has binned modes, which cannot be served", kind="bins", remedy=remedy)
    learner = reopened(estimator, path, value, memory=MEMORY_ENTRIES)
    _check_names(learner)
    if learner.classes == ZERO_ONE:  # False and True are the numbers 0 and 1
        learner.classes = None
    return learner


def _check_names(learner: Learner) -> None:
    for name in (*learner.id_columns, *learner.attributes, learner.value or ""):
        if sendable(name) != name:
            reason = (
                f"{learner.path}: the name {name!r:.100} is not valid text and cannot be sent in requests"
            )
            raise LearnerError(reason, kind="names", remedy="use other names")


def _place(stored: Any) -> tuple[str | None, int]:
    """The journal's id and the last request, from an untrusted position; None and 0 if there is none."""
    match stored:
        case {"journal": str(identity), "sequence": int(sequence)} if sequence >= 0:
            return identity, sequence
    return None, 0


def _check_fits(journal: Journal, span: tuple[int, int], identity: Any, sequence: int, path: Path) -> None:
    first, last = span
    if journal.about["id"] != identity:
        problem = f"has {last - first + 1} requests that {path}, written by another process, does not have"
    elif first > sequence + 1:
        problem = f"starts after request {first - 1}, but {path} is at request {sequence}: an older file?"
    else:
        return
    remedy = "restore the model that belongs to it, or move the journal away to continue without its requests"
    raise JournalError(f"{journal.path}: {problem}", kind="journal", remedy=remedy)
