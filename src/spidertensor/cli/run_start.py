"""Start of a run of `spider fit`, with a new or an existing model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spidertensor.cli import event_options, files, output
from spidertensor.cli.errors import CommandError
from spidertensor.cli.run import Run
from spidertensor.estimator import SpiderClassifier, SpiderRegressor
from spidertensor.estimator.columns import Schema
from spidertensor.estimator.groups import paths
from spidertensor.estimator.labels import Classes, are_zero_one
from spidertensor.faults import SpiderWarning
from spidertensor.learner import position
from spidertensor.learner.learner import Learner
from spidertensor.learner.opening import check_value, reopened, standing
from spidertensor.sources import Bins, Source, Stream


def start(
    path: Path,
    source: Source | Stream,
    modes: list[str] | None,
    value: str | None,
    *,
    binary: bool,
    paper: bool,
    classes: Classes | None = None,
    rules: dict[str, str] | None = None,
    schema: Schema | None = None,
    **settings: Any,
) -> Run:
    """A run with a new model. rules: of bins, by mode name; schema: of a model with attributes"""
    events = "negatives" in settings
    if modes is None or (value is None and not events):
        raise CommandError("a new model needs --modes and --value, or --events for rows without a value")
    kind = SpiderClassifier if binary or events else SpiderRegressor
    for name in ("scaling", "bounds", "clip"):
        if kind is SpiderClassifier and name in settings:
            raise CommandError(
                f"--{name} is for continuous values, not with --{'events' if events else 'binary'}"
            )
    estimator = (kind.paper() if paper else kind()).set_params(**paths(settings), modes=schema)
    own = None if classes is None or are_zero_one(classes) else classes
    rules = rules or {}
    with_ids = modes if schema is None else [mode.name for mode in schema.modes if mode.has_id]
    if unknown := [name for name in rules if name not in with_ids]:
        raise CommandError(f"--bin {unknown[0]}: bins need a mode; name it in --modes as well")
    bins = [Bins(rules[name]) if name in rules else None for name in modes]
    learner = Learner(estimator, path, modes, value, bins=bins, classes=own)
    learner.position = position.at_start(source, value, standing(learner, source).all_text, [])
    run = Run(learner, source)
    for name in rules:
        reason = f"the numbers of {name} become ids of bins, and close ones share nothing"
        remedy = f"as an attribute they do: --modes user,movie,offer={name} --kind {name}=number"
        run.notes.tell(SpiderWarning(reason, kind="bins", column=name, remedy=remedy))
    if (
        events
        and isinstance(source, Source)
        and (note := event_options.unlearned_labels(source, learner.id_columns, learner.attributes))
    ):
        run.notes.tell(note)
    return run


def resume(
    path: Path, source: Source | Stream, value: str | None, *, add: bool, again: bool, network: str | None
) -> Run:
    """A run that continues an existing model with `source`.

    add:   learn the source from its start
    again: even if the model has already learned it
    """
    estimator = files.load_model(path, network)
    if not add and position.checked(estimator.position_, len(estimator.mode_names_)) is None:
        raise CommandError(f"{path}: not made by spider fit; use --add to learn a source on top of it")
    learner = reopened(estimator, path, value)
    check_value(learner)
    found = standing(learner, source)
    if add and not again:
        position.check_new(found.place, path, source)
    if not add and found.place is None:
        raise CommandError(
            f"{path}: has learned another source ({found.known[0]['source']}); "
            f"use --add to learn {source.name} on top of it"
        )
    known, missing = learner.position, position.missing_id(found.stored)
    learner.position = position.at_start(source, learner.value, found.all_text, found.before, missing)
    if "service" in known:
        learner.position["service"] = known["service"]  # a server needs it to find its journal and answers
    run = Run(learner, source, new=False, missing=missing)
    if not add and found.place is not None:
        learner.position |= {name: found.place[name] for name in ("row", "bad", "last", "stream")}
        if (name := found.other_name(source)) is not None:
            output.note(f"note: {path} was learned from {name} and continues with {source.name}")
        if found.stored is not None and found.is_latest:
            run.predicted = position.predicted(found.stored)
    return run
