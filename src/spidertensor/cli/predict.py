"""`spider predict`: the rows of a source with predictions beside them."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spidertensor.cli import bad_rows, files, options, output, writers
from spidertensor.cli.bad_rows import BadRows, OnBad
from spidertensor.cli.errors import CommandError
from spidertensor.cli.notes import Notes

if TYPE_CHECKING:
    from spidertensor.estimator.inputs import Columns

Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Output file: csv, tsv, jsonl (each also .gz or .zst) or parquet. By default csv to standard "
        "output.",
    ),
]
Modes = Annotated[
    str | None,
    typer.Option(metavar="NAMES", help="The id columns, if SOURCE names them differently: user,movie."),
]


def predict(
    model: options.ModelFile,
    source: options.SourceName,
    out: Out = None,
    modes: Modes = None,
    interval: options.Interval = None,
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

    The new columns are mean and std, or probability for a model of binary values (probability_of_yes if its
    labels are not 0 and 1). mean is the expected value,
    std the standard deviation of an observation around it. --interval adds low and high: calibrated by how
    far the latest entries lay from what was predicted for them, so not at equal distances from the mean. An
    id that the model has not seen is predicted from the prior; how many rows have one is printed at the end.
    If most ids of a column were never seen, a note says why, where that is known: text here and integers in
    the model, other leading zeros, case or spaces, columns in another order.
    Bins of numbers are those of the model. Rows that lack an id are left out only with --missing-id skip.

    \b
    spider predict ratings.spider pairs.csv --out predicted.parquet
    spider predict ratings.spider pairs.csv --interval 0.9
    cat pairs.jsonl | spider predict ratings.spider - --format jsonl > out.csv
    """
    from spidertensor import sources
    from spidertensor.estimator.inputs import Columns
    from spidertensor.learner import position

    estimator = files.load_model(model, network)
    options.check_interval(interval, model, estimator.likelihood_)
    names = estimator.mode_names_ if modes is None else options.words(modes)
    if len(names) != len(estimator.mode_names_):
        raise CommandError(f"{model} has {len(estimator.mode_names_)} modes, --modes names {len(names)}")
    opened = options.source(source, format, columns, delimiter, encoding, decimal)
    out = None if out == Path("-") else out  # - is standard output, as it is standard input for SOURCE
    rejects = rejects or (out or Path("predict")).with_suffix(".rejects.jsonl")
    targets = {"--out": out, "--rejects": rejects if on_bad == OnBad.FILE else None}
    files.check_apart({"MODEL": model, "SOURCE": opened.path, **targets})
    for each in filter(None, targets.values()):
        files.check_writable(each)
    rejected = BadRows(opened, on_bad, rejects)
    chunks = sources.read(
        opened, names, all_text=position.all_text(estimator), keep=True,
        missing=missing_id or files.missing_id(estimator), bins=position.bins(estimator),
    )  # fmt: skip
    n, unseen, skipped, notes = 0, 0, 0, Notes()
    records = None
    with (
        output.working(f"predicting {opened.name}") if out else nullcontext(),
        writers.written(out, spreadsheet_safe=spreadsheet_safe) as write,
    ):
        for chunk in chunks:
            records = chunk.records
            rejected.take(chunk.bad)
            skipped += chunk.skipped
            if len(chunk.rows):
                ids = Columns(chunk.columns)
                with notes.of_warnings():
                    predicted = _predictions(estimator, ids, interval)
                write(chunk.records, predicted)
                n += len(chunk.rows)
                unseen += int((~estimator.seen(ids)).any(axis=1).sum())
        if not n:
            if rejected.count:
                raise CommandError(f"{opened.name}: no good rows to predict")
            none = Columns([[] for _ in names])
            write(writers.no_rows(records, names), _predictions(estimator, none, interval))
    output.note(_summary(n, unseen, skipped, rejected))


def _predictions(estimator: Any, ids: Columns, interval: float | None) -> dict[str, Any]:
    from spidertensor.learner import labels

    if hasattr(estimator, "predict_proba"):
        classes = labels.own_labels(estimator)
        name = f"probability_of_{labels.label_text(classes[1])}" if classes else "probability"
        place = estimator.classes_.tolist().index(estimator.positive_)
        return {name: estimator.predict_proba(ids)[:, place]}
    mean, std = estimator.predict(ids, return_std=True)
    columns = {"mean": mean, "std": std}
    if interval is not None:
        columns["low"], columns["high"] = estimator.predict_interval(ids, interval)
    return columns


def _summary(n: int, unseen: int, skipped: int, rejected: BadRows) -> str:
    text = f"{output.counted(n, 'row')} predicted, {unseen:,} of them with an id that the model has not seen"
    if skipped:
        text += f", {output.counted(skipped, 'row')} without an id left out"
    if rejected.count:
        text += f", {output.counted(rejected.count, 'bad row')} left out"
        text += f" and written to {rejected.path}" if rejected.policy == OnBad.FILE else ""
    return text
