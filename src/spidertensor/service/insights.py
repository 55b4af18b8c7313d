"""Questions about what the model has learned, for people: what is alike, and what a prediction is made of."""

from __future__ import annotations

from typing import Any

from spidertensor.learner.learner import Learner
from spidertensor.learner.warned import warned
from spidertensor.service.errors import as_notes
from spidertensor.service.questions import asked_of, check_given, check_id, check_n, wrong
from spidertensor.service.replies import id_of


def likeness(body: bytes, learner: Learner, most: int) -> dict[str, Any]:
    """Parse and check a question for similar nodes."""
    asked = asked_of(body, {"mode": None, "id": None, "n": 10})
    mode, modes = asked["mode"], learner.id_columns
    if not isinstance(mode, str) or mode not in modes:
        raise wrong("mode", f"is not one of the modes: {', '.join(modes)}", mode)
    check_id(asked["id"], "id", mode)
    check_n(asked["n"], most)
    return asked


def alike(learner: Learner, asked: dict[str, Any]) -> dict[str, Any]:
    """Answer such a question."""
    number = learner.modes.index(asked["mode"])
    found = learner.estimator.similar(number, asked["id"], asked["n"])
    return {"nodes": [each._asdict() | {"id": id_of(each.id)} for each in found]}


def entry_of(body: bytes, learner: Learner) -> dict[str, Any]:
    """Parse and check a question for the parts of a prediction."""
    given = asked_of(body, {"given": {}})["given"]
    check_given(given, learner)
    if missing := [mode for mode in learner.id_columns if mode not in given]:
        raise wrong("given", f"has no id for {missing[0]}")
    return given


def explained(learner: Learner, given: dict[str, Any]) -> dict[str, Any]:
    """Answer such a question."""
    estimator: Any = learner.estimator
    named = estimator._schema is not None or getattr(estimator, "feature_names_in_", None) is not None
    entry = given if named else tuple(given[mode] for mode in learner.id_columns)
    with warned() as found:
        explanation = estimator.explain(entry)
    parts = [part._asdict() for part in explanation.parts]
    return explanation._asdict() | {"parts": parts, "notes": as_notes(found)}
