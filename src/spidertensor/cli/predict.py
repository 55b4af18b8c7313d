"""`spider predict`: the rows of a source with two columns more, or one."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from spidertensor.cli import common
from spidertensor.cli.common import CommandError, OnBad

Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A csv, tsv, jsonl (each also .gz or .zst) or parquet file. By default csv to standard output.",
    ),
]
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="A model that spider fit has written.")]
Modes = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES", help="The columns that hold ids, if SOURCE names them otherwise than the model."
    ),
]


def predict(
    model: ModelFile,
    source: common.SourceName,
    out: Out = None,
    modes: Modes = None,
    network: common.NetworkName = None,
    on_bad: common.OnBadOption = OnBad.RAISE,
    rejects: common.Rejects = None,
    format: common.Format = None,  # noqa: A002
    columns: common.Columns = None,
) -> None:
    """Add the columns mean and std to the rows of SOURCE, or probability for a model of binary values.

    \b
    spider predict ratings.spider pairs.csv --out predicted.parquet
    cat pairs.jsonl | spider predict ratings.spider - --format jsonl > predicted.csv

    mean is what to expect, std the standard deviation of an observation around it. An id that the model has
    never seen is answered from the prior. How many such rows there were is told at the end.
    """
    from spidertensor.sources import Source, read

    estimator = common.load_model(model, network)
    names = common.mode_names(estimator) if modes is None else common.words(modes)
    if len(names) != estimator.n_features_in_:
        raise CommandError(f"{model} has {estimator.n_features_in_} modes, --modes names {len(names)}")
    opened = Source.named(source, format, None if columns is None else common.words(columns))
    out = None if out == Path("-") else out  # as SOURCE: - is the standard one
    rejects = rejects or (out or Path("predict")).with_suffix(".rejects.jsonl")
    written = {"--out": out, "--rejects": rejects if on_bad == OnBad.FILE else None}
    common.check_apart({"MODEL": model, "SOURCE": opened.path, **written})
    for each in filter(None, written.values()):
        common.check_writable(each)
    rejected = common.BadRows(opened, on_bad, rejects)
    chunks = read(opened, names, all_text=common.all_text(estimator), keep=True)
    n = unseen = 0
    with common.working(f"predicting {opened.name}") if out else nullcontext(), _written(out) as write:
        for chunk in chunks:
            rejected.take(chunk.bad)
            if len(chunk.rows):
                write(chunk.records, _predictions(estimator, common.entries_of(chunk)))
                n += len(chunk.rows)
                unseen += _unseen(estimator, chunk.columns)
        if not n:
            raise CommandError(f"{opened.name}: no good rows to predict")
    bad = f", {rejected.count:,} bad rows left out" if rejected.count else ""
    bad += f" and written to {rejects}" if bad and on_bad == OnBad.FILE else ""
    common.note(f"{n:,} rows predicted, {unseen:,} of them with an id that the model has not seen{bad}")


def _predictions(estimator: Any, entries: Any) -> dict[str, Any]:
    if hasattr(estimator, "predict_proba"):
        return {"probability": estimator.predict_proba(entries)[:, 1]}
    mean, std = estimator.predict(entries, return_std=True)
    return {"mean": mean, "std": std}


def _unseen(estimator: Any, columns: list[Any]) -> int:
    rows = [nodes.find(ids) for nodes, ids in zip(estimator._fitted().nodes, columns, strict=True)]
    return sum(min(row) < 0 for row in zip(*(each.tolist() for each in rows), strict=True))


# --- writers: records as sources keeps them (a Table or a list of dicts), and the predicted columns


@contextmanager
def _written(out: Path | None) -> Iterator[Any]:
    """A function that writes records; the file appears under its name only when it is whole."""
    import pyarrow as pa

    from spidertensor.sources import Source

    if out is None:
        yield _csv_writer(sys.stdout, ",")
        return
    kind = Source.named(str(out)).format
    part = out.with_name(f".{out.name}.part")
    try:
        if kind == "parquet":
            with _parquet_writer(part) as write:
                yield write
        else:
            compression = {".gz": "gzip", ".zst": "zstd"}.get(out.suffix.lower())
            with (
                pa.output_stream(part, compression=compression) as stream,
                io.TextIOWrapper(stream, encoding="utf-8", newline="") as file,
            ):
                delimiter = "\t" if kind == "tsv" else ","
                yield _json_writer(file) if kind == "jsonl" else _csv_writer(file, delimiter)
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)


def _names(records: Any, extra: dict[str, Any]) -> list[str]:
    names = list(records[0]) if isinstance(records, list) else list(records.column_names)
    for name in extra:
        if name in names:
            raise CommandError(f"SOURCE has a column {name!r} already: rename or drop it first")
    return names


def _checked(records: Any, names: list[str]) -> None:
    """A table has the columns of its first row: what is in none of them must not get lost."""
    if isinstance(records, list):
        known = set(names)
        for record in records:
            if more := record.keys() - known:
                raise CommandError(f"a row has {min(more)!r}, which the first has not: write jsonl instead")


def _csv_writer(file: Any, delimiter: str) -> Any:
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    names: list[str] = []

    def write(records: Any, extra: dict[str, Any]) -> None:
        if not names:
            names.extend(_names(records, extra))
            writer.writerow([*names, *extra])
        _checked(records, names)
        if isinstance(records, list):
            columns = [[record.get(name) for record in records] for name in names]
        else:
            columns = [column.to_pylist() for column in records.columns]
        added = [[f"{number:.7g}" for number in column.tolist()] for column in extra.values()]
        writer.writerows(zip(*columns, *added, strict=True))

    return write


def _json_writer(file: Any) -> Any:
    def write(records: Any, extra: dict[str, Any]) -> None:
        _names(records, extra)
        rows = records if isinstance(records, list) else records.to_pylist()
        added = zip(*(column.tolist() for column in extra.values()), strict=True)
        for row, numbers in zip(rows, added, strict=True):
            row |= dict(zip(extra, numbers, strict=True))
            file.write(json.dumps(row, default=str, ensure_ascii=False) + "\n")

    return write


@contextmanager
def _parquet_writer(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import parquet

    writers: list[parquet.ParquetWriter] = []
    names: list[str] = []

    def write(records: Any, extra: dict[str, Any]) -> None:
        found = _names(records, extra)
        names.extend([] if names else found)
        _checked(records, names)
        try:
            table = records
            if isinstance(records, list):
                table = pa.table({name: [record.get(name) for record in records] for name in names})
            for name, column in extra.items():
                table = table.append_column(name, pa.array(column))
            if not writers:
                writers.append(parquet.ParquetWriter(path, table.schema))
            writers[0].write_table(table.select(writers[0].schema.names).cast(writers[0].schema))
        except (pa.ArrowException, KeyError) as error:
            raise CommandError(
                f"the rows differ in their types ({str(error).splitlines()[0]}): write jsonl instead"
            ) from None

    try:
        yield write
    finally:
        for writer in writers:
            writer.close()
