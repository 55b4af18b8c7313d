"""A server's model at its start: of a file, new, or as a killed process has left it and its journal."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any, NamedTuple

from spidertensor.estimator import SpiderClassifier, SpiderRegressor, load
from spidertensor.service.journal import Journal, JournalError
from spidertensor.service.learning import Estimator, Learning

KINDS = {kind.__name__: kind for kind in (SpiderRegressor, SpiderClassifier)}


class NewModel(NamedTuple):
    """What a model is made of, in JSON: the journal keeps it until the first checkpoint."""

    kind: str
    modes: list[str]
    value: str | None  # None of events
    settings: dict[str, Any]

    def made(self) -> Estimator:
        settings: dict[str, Any] = {
            name: tuple(each) if isinstance(each, list) else each for name, each in self.settings.items()
        }
        return KINDS[self.kind](**settings)


def opened(path: Path, new: NewModel | None, value: str | None = None) -> Learning:
    """The model of a file, or a new one, with the journal that a killed process may have left.

    value: the name of the value column, for a model whose file does not tell it
    """
    place = path.with_name(f"{path.name}.journal")
    left = Journal.opened(place) if place.exists() else None
    span = left.span() if left else None
    if path.exists():
        estimator = load(path)
        position = position_of(estimator, path)
        identity, sequence = _place(position.get("service"))
        modes, value = estimator.mode_names_, position.get("value") or value
        if value is None and not estimator.learns_events:
            raise JournalError(f"{path}: does not say which column has the value", kind="value")
    else:
        if left is not None and span is not None:
            new = NewModel(*(left.about[name] for name in NewModel._fields))
            identity = left.about["id"]
        elif new is not None:
            seed = new.settings.get("random_state", secrets.randbits(31))
            new, identity = new._replace(settings=new.settings | {"random_state": seed}), None
        else:
            raise JournalError(f"{path}: no such model", kind="no model")
        estimator, modes, value, sequence = new.made(), new.modes, new.value, 0
    if left is not None and span is None:
        left.remove()
        left = None
    if left is not None and span is not None:
        _check_fits(left, span, identity, sequence, path)
        if span[1] > sequence:
            return Learning(path, estimator, modes, value, left, sequence)
        left.remove()  # killed after the model was saved, before its journal was removed
    made_of = new or NewModel(type(estimator).__name__, modes, value, {})
    about = made_of._asdict() | {"id": identity or secrets.token_hex(16)}
    learning = Learning(path, estimator, modes, value, Journal(place, about), sequence)
    if identity is None and path.exists():
        learning.checkpoint()  # from now on the model knows its journal
    return learning


def position_of(estimator: Estimator, path: Path) -> dict[str, Any]:
    """What `spider fit` or a server has noted in the file."""
    position = estimator.position_ if isinstance(estimator.position_, dict) else {}
    if position.get("bins"):
        remedy = "make the bins before the entries are sent, and fit the model with them as ids"
        raise JournalError(f"{path}: has modes of bins, which are not served", kind="bins", remedy=remedy)
    numbers = not isinstance(estimator, SpiderClassifier) or (
        estimator.classes_.tolist() == [0, 1] and estimator.positive_ == 1
    )
    if not numbers:
        remedy = "fit a model with the labels 0 and 1"
        raise JournalError(
            f"{path}: has labels of its own, which are not served", kind="labels", remedy=remedy
        )
    return position


def _place(stored: Any) -> tuple[str | None, int]:
    """Of the position that a model file has: whose journal goes on after which request. Files lie."""
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
