"""Write tables: rows of a source (a pyarrow Table or a list of dicts) with new columns."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from spidertensor.cli import output
from spidertensor.cli.errors import CommandError
from spidertensor.writing import replacing

SpreadsheetSafe = Annotated[
    bool,
    typer.Option(
        "--spreadsheet-safe",
        help="Write ' before text that a spreadsheet would run as a formula (=, +, -, @ ...). Changes the "
        "data.",
    ),
]
DELIMITERS = {"csv": ",", "tsv": "\t"}
# Text that a spreadsheet may take for a formula, also in full-width characters; plain numbers excepted.
_FORMULA = re.compile(r"[=@\t\r\n\uff1d\uff20\uff0b\uff0d]|[+\-](?!\d+(\.\d+)?([eE][+-]?\d+)?\Z)")


@contextmanager
def written(out: Path | None, *, spreadsheet_safe: bool = False) -> Iterator[Any]:
    """Yield a function that writes rows with new columns; the file appears under its name when complete.

    spreadsheet_safe: in csv and tsv, write ' before text that looks like a formula
    """
    import pyarrow as pa

    from spidertensor.sources import source_by_name

    if out is None:
        yield _csv_writer(output.Terminal(), DELIMITERS["csv"], spreadsheet_safe)
        return
    if out.suffix.lower() == ".zip":
        raise CommandError(f"{out}: zip files can only be read; use .gz or .zst")
    target = source_by_name(str(out))
    kind = target.format.name
    if spreadsheet_safe and kind not in DELIMITERS:
        raise CommandError(f"--spreadsheet-safe is for csv and tsv, not for {kind}")
    with replacing(out) as handle:
        if kind == "parquet":
            with _parquet_writer(handle) as write:
                yield write
            return
        stream: Any = handle
        if target.compression is not None:
            stream = pa.CompressedOutputStream(pa.PythonFile(handle, "w"), target.compression)
        with stream, io.TextIOWrapper(stream, encoding="utf-8", newline="") as file:
            if kind == "jsonl":
                yield _json_writer(file)
            else:
                yield _csv_writer(file, DELIMITERS[kind], spreadsheet_safe)


def rows_writer(file: Any, kind: str, *, header: bool = True, names: Sequence[str] = ()) -> Any:
    """A function that writes rows with new columns as csv, tsv or jsonl to an open text file.

    header: False if the file already has one; names: of the columns, if there may be no rows
    """
    return (
        _json_writer(file) if kind == "jsonl" else _csv_writer(file, DELIMITERS[kind], False, header, names)
    )


def no_rows(records: Any, names: list[str]) -> Any:
    """A table without rows, with all columns of `records` if known, else `names`."""
    import pyarrow as pa

    if isinstance(records, pa.Table):
        return records.slice(0, 0)
    return pa.table({name: pa.array([], pa.string()) for name in names})


def _names(records: Any, extra: dict[str, Any]) -> list[str]:
    names = list(records[0]) if isinstance(records, list) else list(records.column_names)
    for name in extra:
        if name in names:
            raise CommandError(f"SOURCE already has a column {name!r}; rename or drop it first")
    return names


def _checked(records: Any, names: list[str]) -> None:
    """Refuse columns that the first row lacks, because they would be lost."""
    if isinstance(records, list):
        known = set(names)
        for record in records:
            if more := record.keys() - known:
                raise CommandError(f"a row has {min(more)!r}, which the first row lacks; write jsonl instead")


class _Lines:
    """Replaces \\r\\n at line ends by \\n.

    csv.writer quotes a lone \\r, which would otherwise start a new row, only if its lines end in \\r\\n.
    """

    def __init__(self, file: Any) -> None:
        self.file = file

    def write(self, row: str) -> None:
        self.file.write(row.removesuffix("\r\n") + "\n")


def _no_formula(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


def _csv_writer(
    file: Any, delimiter: str, spreadsheet_safe: bool, header: bool = True, given: Sequence[str] = ()
) -> Any:
    writer = csv.writer(_Lines(file), delimiter=delimiter, lineterminator="\r\n")
    names: list[str] = []

    def write(records: Any, extra: dict[str, Any]) -> None:
        if not names:
            names.extend(given or _names(records, extra))
            if header:
                writer.writerow([*(map(_no_formula, names) if spreadsheet_safe else names), *extra])
        _checked(records, names)
        if isinstance(records, list):
            columns = [[record.get(name) for record in records] for name in names]
        else:
            columns = [column.to_pylist() for column in records.columns]
        if spreadsheet_safe:
            columns = [list(map(_no_formula, column)) for column in columns]
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
def _parquet_writer(handle: BinaryIO) -> Iterator[Any]:
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
                writers.append(parquet.ParquetWriter(handle, table.schema))
            writers[0].write_table(table.select(writers[0].schema.names).cast(writers[0].schema))
        except (pa.ArrowException, KeyError) as error:
            raise CommandError(
                f"rows have different types ({str(error).splitlines()[0]}); write jsonl instead"
            ) from None

    try:
        yield write
    finally:
        for writer in writers:
            writer.close()
