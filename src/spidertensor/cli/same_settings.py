"""Check of model options against an existing model."""

from __future__ import annotations

from typing import Any

from spidertensor.cli import event_options
from spidertensor.cli.errors import CommandError
from spidertensor.estimator import SpiderClassifier, SpiderRegressor
from spidertensor.estimator.columns import FittedColumns, Mode, Schema
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
    _check_schema(learner, modes, schema)
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
    for name, wanted in {**options, **settings}.items():
        if (wanted is not None or name in given) and _listed(facts.get(name)) != _listed(wanted):
            has = event_options.with_mode_names({name: facts.get(name)}, learner.modes)[name]
            wanted = event_options.with_mode_names({name: wanted}, learner.modes)[name]
            raise CommandError(f"{learner.path} has {name} {has!r}, the command says {wanted!r}")


def _check_schema(learner: Learner, modes: list[str] | None, schema: Schema | None) -> None:
    """Attributes must be those of the model, or left out with --modes."""
    fitted = learner.estimator._learned
    columns = None if fitted is None else fitted.columns
    if modes is None or (schema is None and columns is None):
        return
    if columns is not None and schema is not None:
        try:
            same = len(columns.with_columns(_as_stored(schema, columns)).columns) == len(columns.columns)
        except ValueError as error:
            raise CommandError(f"{learner.path}: {error}; leave out --modes and --kind") from None
        if same:
            return
    has = "no attributes" if columns is None else f"the attributes {', '.join(learner.attributes)}"
    raise CommandError(
        f"{learner.path} has {has}, which --modes cannot change: leave it out, or start a new model"
    )


def _as_stored(schema: Schema, columns: FittedColumns) -> Schema:
    """The schema with columns as the model has them, where --kind says nothing else."""
    stored = {(mode.name, spec.name): spec for mode in columns.schema.modes for spec in mode.columns}

    def known(mode: Mode) -> Mode:
        specs = (
            stored.get((mode.name, spec.name), spec) if isinstance(spec, Undecided) else spec
            for spec in mode.columns
        )
        return Mode(mode.name, mode.has_id, tuple(specs))

    return Schema(tuple(map(known, schema.modes)))


def _flat(estimator: SpiderRegressor | SpiderClassifier) -> dict[str, Any]:
    return flat(estimator.get_params(deep=False), estimator._inside)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
