"""A user's file as the data set of `spider evaluate` and `spider tune`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spidertensor.cli import options, output
from spidertensor.cli.bad_rows import BadRows, remedy_of_chunk
from spidertensor.cli.errors import CommandError
from spidertensor.cli.evaluate_run import Timing

if TYPE_CHECKING:
    from spidertensor.estimator.columns import Schema
    from spidertensor.estimator.labels import Classes
    from spidertensor.evaluation.dataset import Dataset
    from spidertensor.sources import BadRow, Chunk, Source


def load(
    source: Source,
    rejected: BadRows,
    names: list[str] | None,
    value: str | None,
    timing: Timing,
    over: str | None,
    *,
    schema: Schema | None,
    attributes: list[str] | None,
    binary: bool,
    counts: bool,
    levels: list[float] | None = None,
    classes: Classes | None = None,
    missing: str = "error",
    rules: list[str] | None = None,
) -> tuple[Dataset, dict[str, Any]]:
    """Load a file as a data set, with its facts for the record.

    attributes: files of --attributes
    classes:    the labels of binary values, the positive one last; None for 0 and 1
    rules:      of --bin
    """
    from spidertensor.cli import attribute_files
    from spidertensor.estimator import SpiderRegressor
    from spidertensor.estimator.columns import FittedColumns
    from spidertensor.evaluation.own_file import load_file
    from spidertensor.learner.labels import label_texts
    from spidertensor.sources import Bins
    from spidertensor.spider.likelihoods import COUNT, GAUSSIAN, PROBIT
    from spidertensor.spider.likelihoods.ordinal import ordinal

    if names is None or (value is None and over is None):
        needed = "--modes" if over else "--modes and --value"
        raise CommandError(f"{source.name}: a file needs {needed} to name its columns")
    of_mode, described = options.bin_rules(rules) or {}, frozenset()
    if schema is not None:
        names = [mode.name for mode in schema.modes if mode.has_id]
        described = attribute_files.set_all(SpiderRegressor(modes=schema), attributes)  # pyright: ignore[reportArgumentType]
    if over is not None and over not in names:
        raise CommandError(f"--over {over}: choose one of the modes {', '.join(names)}")
    if unknown := [name for name in of_mode if name not in names]:
        raise CommandError(f"--bin {unknown[0]}: bins need a mode; name it in --modes as well")
    if over is not None and len(names) < 2:
        raise CommandError("ranking needs two modes: one that has events, and one to rank")
    bins = [Bins(of_mode[name]) if name in of_mode else None for name in names]
    likelihood = PROBIT if binary else COUNT if counts else ordinal(tuple(levels)) if levels else GAUSSIAN
    labels = label_texts(classes)

    def reject(chunk: Chunk, bad: list[BadRow]) -> None:
        rejected.take(bad, remedy=remedy_of_chunk(chunk, bad, names, value, binary=binary, labels=labels))

    with output.bar(f"reading {source.name}") as progress:
        loaded = load_file(
            source, names, value, likelihood, time=timing.time, known_at=timing.known_at,
            on_bad=reject, labels=labels,
            progress=progress, missing=missing, bins=bins, events_over=over,
            schema=schema, described=described,
        )  # fmt: skip
    return loaded, {
        "modes": names,
        "value": value,
        "time": timing.time,
        "entries": len(loaded.train.value),
        "bad_rows": rejected.count,
        "nodes": dict(zip(names, loaded.shape, strict=True)),
        **({} if loaded.schema is None else {"attributes": FittedColumns(loaded.schema).kinds}),
    }
