"""A server's model at its start: from a file, new, or as a killed process has left it and its journal."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any, NamedTuple

from spidertensor.estimator import SpiderClassifier, SpiderRegressor, load
from spidertensor.estimator.labels import ZERO_ONE
from spidertensor.estimator.loading import Estimator
from spidertensor.learner.errors import LearnerError
from spidertensor.learner.learner import Learner
from spidertensor.learner.opening import check_value, reopened
from spidertensor.service.journal import Journal, JournalError
from spidertensor.service.journaled import JournaledLearner

MEMORY = 5000  # entries after which the scores of a server forget

KINDS = {kind.__name__: kind for kind in (SpiderRegressor, SpiderClassifier)}


class NewModel(NamedTuple):
    """What a model is made of, in JSON: the journal keeps it until the first checkpoint."""

    kind: str
    modes: list[str]
    value: str | None  # None for events
    settings: dict[str, Any]

    def made(self, path: Path) -> Learner:
        settings: dict[str, Any] = {
            name: tuple(each) if isinstance(each, list) else each for name, each in self.settings.items()
        }
        return Learner(KINDS[self.kind](**settings), path, self.modes, self.value, memory=MEMORY)


def opened(path: Path, new: NewModel | None, value: str | None = None) -> JournaledLearner:
    """The model of a file, or a new one, with the journal that a killed process may have left.

    value: the name of the value column, for a model whose file does not tell it
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
            new = NewModel(*(left.about[name] for name in NewModel._fields))
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
    served = JournaledLearner(learner, Journal(place, about), sequence)
    if identity is None and path.exists():
        served.checkpoint()  # from now on the model knows its journal
    return served


def served_learner(estimator: Estimator, path: Path, value: str | None = None) -> Learner:
    """The learner of a model from a file, if requests can tell its ids and values."""
    if isinstance(estimator.position_, dict) and estimator.position_.get("bins"):
        remedy = "make the bins before the entries are sent, and fit the model with them as ids"
        raise LearnerError(f"{path}: has modes of bins, which are not served", kind="bins", remedy=remedy)
    learner = reopened(estimator, path, value, memory=MEMORY)
    if learner.classes not in (None, ZERO_ONE):
        remedy = "fit a model with the labels 0 and 1"
        reason = f"{path}: has labels of its own, which are not served"
        raise LearnerError(reason, kind="own labels", remedy=remedy)
    learner.classes = None  # False and True are the numbers 0 and 1
    return learner


def _place(stored: Any) -> tuple[str | None, int]:
    """Whose journal goes on after which request, by a position; a file may say anything."""
    match stored:
        case {"journal": str(identity), "sequence": int(sequence)} if sequence >= 0:
            return identity, sequence
    return None, 0


def _check_fits(journal: Journal, span: tuple[int, int], identity: Any, sequence: int, path: Path) -> None:
    first, last = span
    if journal.about["id"] != identity:
        problem = (
            f"has {last - first + 1} requests that {path} does not know, which has been written by others"
        )
    elif first > sequence + 1:
        problem = f"goes on after request {first - 1}, but {path} is at request {sequence}: an older file?"
    else:
        return
    remedy = "restore the model that belongs to it, or move the journal away to go on without its requests"
    raise JournalError(f"{journal.path}: {problem}", kind="journal", remedy=remedy)
