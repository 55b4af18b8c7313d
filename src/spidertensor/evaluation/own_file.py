"""A user's file as a data set, in the order of its rows or of a time column.

Held in memory: a node number per mode and a value for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spidertensor import sources
from spidertensor.estimator.columns import FittedColumns, Schema
from spidertensor.estimator.columns.bad_cells import without_refused
from spidertensor.estimator.ids import NodeIndex, to_index
from spidertensor.estimator.inputs import Columns
from spidertensor.estimator.times import NUMBER, UNZONED, ZONED, instant
from spidertensor.evaluation.dataset import Dataset, DatasetError, as_batch
from spidertensor.evaluation.with_attributes import FIRST_ROWS, decided
from spidertensor.sources import BadRow, Bins, Chunk, Source
from spidertensor.sources.attributes import typed, with_types
from spidertensor.spider.likelihoods import Likelihood

MIN_ROWS = 50  # a tenth of fewer rows is too few to measure anything


def load_file(
    source: Source,
    modes: Sequence[str],
    value: str | None,
    likelihood: Likelihood,
    *,
    events_over: str | None = None,
    time: str | None = None,
    known_at: str | None = None,
    on_bad: Callable[[Chunk, list[BadRow]], None],
    progress: Callable[[float | None], None] = lambda share: None,
    missing: str = "error",
    bins: Sequence[Bins | None] | None = None,
    labels: tuple[str, str] | None = None,
    schema: Schema | None = None,
    described: Collection[str] = (),
) -> Dataset:
    """Load the good rows of a source; DatasetError if they are too few or all equal.

    value:    None for events, which are ranked over the mode `events_over`
    time:     a column of numbers or ISO timestamps to order the entries by; equal times keep the
              row order
    known_at: a column like `time`: when the value of an entry became known
    on_bad:   called with each chunk and its bad rows; may raise
    progress: called with the share of the file read so far
    missing, bins, labels: see sources.read
    schema:   of a model with attributes; `modes` are those with ids. The last column of the index is then the
              row of the `table` (with_attributes.py)
    described: attributes that the source need not have
    """
    nodes, clock = [NodeIndex() for _ in modes], _Clock(source.name, time, known_at)
    index, values, times, known = [], [], [], []
    attributes = [] if schema is None else [name for name in schema.inputs if name not in modes]
    table: dict[str, list[NDArray[Any]]] = {}
    chunks = sources.read(
        source, modes, value, likelihood=likelihood, keep=time is not None, missing=missing, bins=bins,
        labels=labels, attributes=attributes, needed=[name for name in attributes if name not in described],
    )  # fmt: skip
    for chunk in chunks:
        if schema is not None:
            kinds = FittedColumns(schema).kinds
            if not table and len(chunk.rows):  # the first rows decide
                first = {name: column[:FIRST_ROWS] for name, column in chunk.attributes.items()}
                schema = decided(schema, typed(first, kinds, source)[0])
                kinds = FittedColumns(schema).kinds
            chunk = with_types(chunk, kinds, source, list(modes))
            chunk = without_refused(chunk, FittedColumns(schema), list(modes))
        found_values = np.ones(len(chunk.rows)) if chunk.values is None else chunk.values  # events have none
        found, later, good, wrong = clock.read(chunk)
        on_bad(chunk, sorted([*chunk.bad, *wrong], key=lambda each: each.row))
        index.append(to_index(nodes, Columns([column[good] for column in chunk.columns]), add=True))
        values.append(found_values[good])
        if schema is not None:
            for name, column in [*zip(modes, chunk.columns, strict=True), *chunk.attributes.items()]:
                table.setdefault(name, []).append(column[good])
        times.append(found)
        known.append(later)
        progress(chunk.share)
    _check(source.name, value, np.concatenate([np.empty(0), *values]))
    entries = np.concatenate(index)
    if schema is not None:
        entries = np.column_stack([entries, np.arange(len(entries))])
    train = as_batch(entries, np.concatenate(values))
    asked = np.concatenate(times)
    order = np.argsort(asked, kind="stable")
    return Dataset(
        name=source.name, about="", modes=tuple(modes), value_name=value or "", likelihood=likelihood,
        licence="", source=source.name, shape=tuple(map(len, nodes)), train=train, time_order=order,
        events_over=events_over, table={name: _joined(parts) for name, parts in table.items()},
        schema=schema, times=asked, known=None if known_at is None else np.concatenate(known),
        time_unit=clock.unit,
    )  # fmt: skip


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    same = len({part.dtype for part in parts}) == 1
    return np.concatenate(parts if same else [part.astype(object) for part in parts])


def _check(name: str, column: str | None, value: NDArray[np.float64]) -> None:
    if len(value) < MIN_ROWS:
        rows = "1 good row" if len(value) == 1 else f"{len(value)} good rows"
        raise DatasetError(f"{name}: {rows}, too few to measure anything; at least {MIN_ROWS} are needed")
    if column is not None and (value == value[0]).all():
        raise DatasetError(
            f"{name}: {column} is {value[0]:g} in all {len(value):,} rows, so there is nothing to predict: "
            "if only what happened is recorded, use --events --over MODE, or add rows with 0 for what did not"
        )


class _Clock:
    """Reads times as numbers. All times must be of the kind of the first one (numbers, local or zoned times),
    because different kinds cannot be ordered."""

    def __init__(self, file: str, column: str | None, known_at: str | None = None) -> None:
        self.file, self.columns, self.kind = file, (column, known_at), ""

    @property
    def unit(self) -> str:
        """The unit of the times: see Clock.unit."""
        if self.columns[0] is None:
            return "entries"
        return "" if self.kind == NUMBER else "seconds"

    def read(self, chunk: Chunk) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_], list[BadRow]]:
        """When the good rows were asked for and when their values were known, a mask of the good rows, and
        the bad rows.

        Without a time column, the time is the row number.
        """
        (asked, good, bad), (known, fine, wrong) = (self._times(name, chunk) for name in self.columns)
        bad = [*bad, *(each for each in wrong if good[chunk.rows == each.row].all())]
        good, name = good & fine, self.columns[1]
        if name is not None:
            early = good & (known < asked)
            for place in np.flatnonzero(early):
                reason = f"{name} is earlier than {self.columns[0]}, when the entry is predicted"
                bad.append(BadRow(int(chunk.rows[place]), reason, {name: known[place].item()}))
            good &= ~early
        return asked[good], known[good], good, bad

    def _times(self, name: str | None, chunk: Chunk) -> tuple[NDArray[Any], NDArray[np.bool_], list[BadRow]]:
        """A time for each row, a mask of those that have one, and the bad rows."""
        if name is None:
            return chunk.rows, np.ones(len(chunk.rows), bool), []
        raw = self._column(name, chunk.records)
        fast = self._all_at_once(raw) if isinstance(raw, pa.Array) else None
        if fast is not None:
            return fast, np.ones(len(fast), bool), []
        found, good, bad = [], np.ones(len(chunk.rows), bool), []
        for place, each in enumerate(raw.to_pylist() if isinstance(raw, pa.Array) else raw):
            try:
                found.append(self._one(each))
            except ValueError as error:
                found.append(0)
                good[place] = False
                bad.append(BadRow(int(chunk.rows[place]), f"{name} {error}", {name: each}))
        whole = all(type(each) is int and abs(each) < 2**63 for each in found)
        return np.array(found, np.int64 if whole else np.float64), good, bad

    def _column(self, column: str, records: Any) -> Any:
        """The time column as an Arrow array or a list; JSON rows may lack it."""
        table = not isinstance(records, list)
        names = (
            records.column_names if table else list(dict.fromkeys(name for each in records for name in each))
        )
        if len(records) and column not in names:
            raise DatasetError(f"{self.file}: no column {column!r} (there are: {', '.join(names)})")
        if not len(records):
            return []
        return records[column].combine_chunks() if table else [each.get(column) for each in records]

    def _all_at_once(self, raw: pa.Array) -> NDArray[Any] | None:
        """Convert all times at once; None if they must be parsed one by one."""
        kind = NUMBER
        if pa.types.is_timestamp(raw.type) or pa.types.is_date(raw.type):
            zone = getattr(raw.type, "tz", None)
            raw = raw.cast(pa.timestamp("us", zone), safe=False)
            kind = UNZONED if zone is None else ZONED
        if raw.null_count or pa.types.is_boolean(raw.type) or self.kind not in ("", kind):
            return None
        for number in (pa.int64(), pa.float64()):  # int64 first: nanoseconds exceed the precision of float64
            try:
                found = raw.cast(number).to_numpy(zero_copy_only=False)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                continue
            if np.isfinite(found).all():
                self.kind = kind
                return found if kind == NUMBER else found / 1e6  # seconds, as in `instant`
        return None

    def _one(self, raw: Any) -> int | float:
        if raw is None or raw == "":
            raise ValueError("is missing")
        found, kind = instant(raw)
        self.kind = self.kind or kind
        if kind != self.kind:
            raise ValueError(f"{raw!s:.40} is {kind}, but other rows have {self.kind}")
        return found
