"""Check of model options against an existing model."""

from __future__ import annotations

from typing import Any

from spidertensor.cli import event_options
from spidertensor.cli.errors import CommandError
from spidertensor.estimator import SpiderClassifier, SpiderRegressor
from spidertensor.estimator.columns import Mode, Schema
from spidertensor.estimator.columns.specs import Undecided
from spidertensor.estimator.groups import flat, paths
from spidertensor.estimator.labels import Classes
from spidertensor.learner import labels
from spidertensor.learner.learner import Learner


def check_same(
    learner: Learner,
    modes: list[str] | None,
    value: str | None,
    *,
    binary: bool,
    paper: bool,
    classes: Classes | None = None,
    rules: dict[str, str] | None = None,
    schema: Schema | None = None,
    **settings: Any,
) -> None:
    """Raise an error if a given option differs from the model."""
    estimator = learner.estimator
    _check_attributes(learner, modes, schema)
    facts = {
        **_flat(estimator),
        "modes": learner.modes,
        "value": learner.value,
        "binary": isinstance(estimator, SpiderClassifier),
        "labels": labels.joined_labels(learner.classes),
        "bin": {name: each.rule for name, each in zip(learner.modes, learner.bins, strict=True) if each},
    }
    given = settings
    if paper:
        settings = _flat(type(estimator).paper().set_params(**paths(settings)))
        settings.pop("modes")
    options = {
        "modes": modes, "value": value, "binary": binary or None,
        "labels": classes and labels.joined_labels(classes), "bin": rules,
    }  # fmt: skip
    seen = facts.get("remember_seen", False)
    if isinstance(seen, tuple) and isinstance(settings.get("remember_seen"), int):
        facts["remember_seen"] = seen[0]  # of two modes, naming one names the other
    for name, wanted in {**options, **settings}.items():
        if (wanted is not None or name in given) and _listed(facts.get(name)) != _listed(wanted):
            has = event_options.with_mode_names({name: facts.get(name)}, learner.modes)[name]
            wanted = event_options.with_mode_names({name: wanted}, learner.modes)[name]
            raise CommandError(f"{learner.path} has {name} {has!r}, the command says {wanted!r}")


def _check_attributes(learner: Learner, modes: list[str] | None, schema: Schema | None) -> None:
    if modes is not None and schema is None and learner.attributes:
        raise CommandError(
            f"{learner.path} has the attributes {', '.join(learner.attributes)}, which --modes cannot take "
            "away: leave it out"
        )


def add_columns(learner: Learner, schema: Schema | None) -> list[str]:
    """Add attributes of --modes that an existing model does not have yet; returns their columns."""
    if schema is None:
        return []
    before = learner.attributes
    schema = _as_stored(schema, learner.estimator._schema)
    if schema != learner.estimator._schema:
        try:
            learner.estimator.add_columns(schema)
        except ValueError as error:
            raise CommandError(f"{learner.path}: {error}; --modes can only add columns") from None
    return [name for name in learner.attributes if name not in before]


def check_no_new_columns(learner: Learner, schema: Schema | None) -> None:
    """Raise an error if --modes has attributes that an existing model does not have, or of another kind."""
    known = learner.estimator._schema
    if schema is None or _as_stored(schema, known) == known:
        return
    raise CommandError(
        f"{learner.path} has other attributes than --modes and --kind say; leave both out, or add attributes "
        "with spider fit --add"
    )


def _as_stored(schema: Schema, known: Schema | None) -> Schema:
    """The schema with columns as the model has them, where --kind says nothing else."""
    modes = () if known is None else known.modes
    stored = {(mode.name, spec.name): spec for mode in modes for spec in mode.columns}

    def as_stored(mode: Mode) -> Mode:
        specs = (
            stored.get((mode.name, spec.name), spec) if isinstance(spec, Undecided) else spec
            for spec in mode.columns
        )
        return Mode(mode.name, mode.has_id, tuple(specs))

    return Schema(tuple(map(as_stored, schema.modes)))


def _flat(estimator: SpiderRegressor | SpiderClassifier) -> dict[str, Any]:
    return flat(estimator.get_params(deep=False), estimator._inside)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
