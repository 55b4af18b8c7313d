"""Open the model of a server: from a file, new, or from what a killed process left behind."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from spidertensor.estimator import SpiderClassifier, SpiderRegressor, load
from spidertensor.estimator.columns import Schema
from spidertensor.estimator.labels import ZERO_ONE
from spidertensor.estimator.loading import Estimator
from spidertensor.learner.errors import LearnerError
from spidertensor.learner.learner import Learner
from spidertensor.learner.opening import check_value, reopened
from spidertensor.service.answers import noted_journal
from spidertensor.service.errors import ServiceError
from spidertensor.service.exact_json import sendable
from spidertensor.service.journal import RESTORE, Journal, JournalError, acknowledged_end, set_aside
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


def opened(
    path: Path,
    new: NewModel | None,
    value: str | None = None,
    on_loss: Callable[[str], None] | None = None,
) -> JournaledLearner:
    """Open the model in a file, or make a new one, with any journal left by a killed process.

    value:   the name of the value column, if the model file does not have it
    on_loss: called with what is wrong with the journal, to go on without the requests that are lost; without
             it that is an error
    """
    place = path.with_name(f"{path.name}.journal")
    left = Journal.opened(place, on_loss) if place.exists() else None
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
            if on_loss is None and (short := _missing(place, left, None, 0)):
                raise _unusable(place, short)
            raise JournalError(f"{path}: no such model", kind="no model")
        learner, sequence = new.made(path), 0
    problem = "" if left is None or span is None else _misfit(left, span, identity, sequence, path)
    short = "" if problem else _missing(place, left, identity, sequence)
    if problem or short:
        if on_loss is None:
            if left is not None:
                left.close_unchanged()
            raise _unusable(place, problem or short)
        on_loss(f"{place}: {problem or short}")
        if left is not None and span is not None and short:
            left.salvage()
        else:
            set_aside(place, left)
            left = None
    if left is not None and span is not None and span[1] > sequence:
        return JournaledLearner(learner, left, sequence)
    if left is not None:
        left.remove()  # empty, or killed after the model was saved, before its journal was removed
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


def _unusable(place: Path, reason: str) -> JournalError:
    return JournalError(f"{place}: {reason}", kind="journal", remedy=RESTORE)


def _misfit(journal: Journal, span: tuple[int, int], identity: str | None, sequence: int, path: Path) -> str:
    """Why the requests of a journal cannot follow those of the model file; empty if they can."""
    first, last = span
    if journal.about["id"] != identity:
        return f"has {last - first + 1} requests that {path}, written by another process, does not have"
    if first > sequence + 1:
        return f"starts after request {first - 1}, but {path} is at request {sequence}: an older file?"
    return ""


def _missing(place: Path, left: Journal | None, identity: str | None, sequence: int) -> str:
    """What was acknowledged, and is neither in the journal nor in the model; empty if nothing.

    left: the journal, if it is there
    """
    span = left.span() if left else None
    try:
        end = acknowledged_end(place)
    except JournalError as error:
        return error.reason
    if left is not None and span is not None and span[1] > sequence and left.lacks_end:
        return f"has requests up to {span[1]}, but {place.name}-end, which says how far it went, is gone"
    for known in (end and end[:2], noted_journal(place.with_suffix(".answers"))):
        if known and not (known[0] == identity and known[1] <= max(sequence, span[1] if span else 0)):
            where = f"ends at request {span[1]}" if span else "has no requests" if left else "is gone"
            return f"{where}, but all up to request {known[1]} were acknowledged"
    return ""
