"""`spider predict`: add predictions to the rows of a source."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spidertensor.cli import bad_rows, files, options, output, writers
from spidertensor.cli.bad_rows import BadRows, OnBad, remedy
from spidertensor.cli.errors import CommandError
from spidertensor.cli.notes import PrintedNotes

if TYPE_CHECKING:
    from spidertensor.estimator.inputs import Columns

Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Output file: csv, tsv, jsonl (optionally .gz or .zst) or parquet. By default, csv to standard "
        "output.",
    ),
]
Modes = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES", help="The id columns, such as user,movie, if SOURCE names them differently."
    ),
]


def predict(
    model: options.ModelFile,
    source: options.SourceName,
    out: Out = None,
    modes: Modes = None,
    attributes: options.AttributeFiles = None,
    interval: options.Interval = None,
    calibration: options.CalibrationName = options.Calibration.AUTO,
    network: options.NetworkName = None,
    on_bad: bad_rows.OnBadOption = OnBad.RAISE,
    rejects: bad_rows.Rejects = None,
    format: options.Format = None,  # noqa: A002
    columns: options.Columns = None,
    delimiter: options.Delimiter = None,
    encoding: options.Encoding = None,
    decimal: options.Decimal = None,
    missing_id: options.MissingIds = None,
    spreadsheet_safe: writers.SpreadsheetSafe = False,
) -> None:
    """Add predictions to the rows of a source.

    The new columns are mean and std (of an observation), or probability for binary values
    (probability_of_yes for labels other than 0 and 1). --interval adds low and high, calibrated on the
    errors of recent predictions. Ids that the model has not seen are predicted from the prior; the number
    of such rows is printed at the end. Rows without an id are skipped only with --missing-id skip.

    Attributes that SOURCE does not have are those that the model knows of each id. --attributes describes
    ids for this call; the model file stays as it is.

    \b
    spider predict ratings.spider pairs.csv --out predicted.parquet
    spider predict ratings.spider pairs.csv --interval 0.9
    cat pairs.jsonl | spider predict ratings.spider - --format jsonl > out.csv
    """
    from spidertensor import sources
    from spidertensor.cli import attribute_files
    from spidertensor.estimator.columns.bad_cells import without_refused
    from spidertensor.estimator.inputs import Columns
    from spidertensor.learner import position
    from spidertensor.learner.attributes import attribute_columns, kinds, modes_with_ids
    from spidertensor.sources.attributes import with_types

    estimator = files.load_model(model, network)
    options.check_interval(interval, calibration, model, estimator.likelihood_)
    with_ids = modes_with_ids(estimator, len(estimator.mode_names_))
    own = [estimator.mode_names_[mode] for mode in with_ids]
    names = own if modes is None else options.words(modes)
    if len(names) != len(own):
        raise CommandError(f"{model} has {len(own)} modes, but --modes names {len(names)}")
    attribute_files.set_all(estimator, attributes)
    wanted, decided = attribute_columns(estimator), kinds(estimator)
    opened = options.source(source, format, columns, delimiter, encoding, decimal)
    out = None if out == Path("-") else out  # - is standard output
    rejects = rejects or (out or Path("predict")).with_suffix(".rejects.jsonl")
    targets = {"--out": out, "--rejects": rejects if on_bad == OnBad.FILE else None}
    files.check_apart({"MODEL": model, "SOURCE": opened.path, **targets})
    for each in filter(None, targets.values()):
        files.check_writable(each)
    rejected = BadRows(opened, on_bad, rejects)
    texts, bins = position.all_text(estimator), position.bins(estimator)
    chunks = sources.read(
        opened, names, all_text=[texts[mode] for mode in with_ids], keep=True,
        missing=missing_id or files.missing_id(estimator), bins=[bins[mode] for mode in with_ids],
        attributes=wanted,
    )  # fmt: skip
    n, unseen, skipped, notes = 0, 0, 0, PrintedNotes()
    records = None
    with (
        output.working(f"predicting {opened.name}") if out else nullcontext(),
        writers.written(out, spreadsheet_safe=spreadsheet_safe) as write,
    ):
        for chunk in chunks:
            chunk = with_types(chunk, decided, opened, names)
            if (known := estimator._fitted().columns) is not None:
                chunk = without_refused(chunk, known, names)
            records = chunk.records
            rejected.take(chunk.bad, remedy=remedy(chunk.bad, names))
            skipped += chunk.skipped
            if len(chunk.rows):
                ids = Columns(chunk.columns, tuple(own) if wanted else None, chunk.attributes)
                with notes.of_warnings():
                    predicted = _predictions(estimator, ids, interval, calibration)
                write(chunk.records, predicted)
                n += len(chunk.rows)
                unseen += int((~estimator.seen(ids)[:, with_ids]).any(axis=1).sum())
        if not n:
            if rejected.count:
                raise CommandError(f"{opened.name}: no good rows to predict")
            none = Columns([[] for _ in names])
            write(writers.no_rows(records, names), _predictions(estimator, none, interval, calibration))
    output.note(_summary(n, unseen, skipped, rejected))


def _predictions(
    estimator: Any, ids: Columns, interval: float | None, calibration: options.Calibration
) -> dict[str, Any]:
    from spidertensor.learner import labels

    if hasattr(estimator, "predict_proba"):
        classes = labels.own_labels(estimator)
        name = f"probability_of_{labels.label_text(classes[1])}" if classes else "probability"
        place = estimator.classes_.tolist().index(estimator.positive_)
        return {name: estimator.predict_proba(ids)[:, place]}
    mean, std = estimator.predict(ids, return_std=True)
    columns = {"mean": mean, "std": std}
    if estimator.likelihood_.ordinal:
        chances = zip(estimator.levels_.tolist(), estimator.predict_levels(ids).T, strict=True)
        columns |= {f"probability_of_{level:g}": chance for level, chance in chances}
    if interval is not None:
        columns["low"], columns["high"] = estimator.predict_interval(ids, interval, calibration.value)
    return columns


def _summary(n: int, unseen: int, skipped: int, rejected: BadRows) -> str:
    text = f"{output.counted(n, 'row')} predicted, {unseen:,} of them with an unseen id"
    if skipped:
        text += f", {output.counted(skipped, 'row')} without an id skipped"
    if rejected.count:
        text += f", {output.counted(rejected.count, 'bad row')} skipped"
        text += f" and written to {rejected.path}" if rejected.policy == OnBad.FILE else ""
    return text
