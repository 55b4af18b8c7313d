"""Read the columns of an untrusted Arrow stream.

A body of bounded size must not take unbounded memory, so anything that Arrow would expand is refused:
compressed buffers, and dictionaries of long texts.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from spidertensor.service.errors import ServiceError
from spidertensor.sources.columns import is_text

_PLAIN = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, is_text, pa.types.is_binary)
# Without views, and in lists without booleans and nulls: those of a small body can fill the memory.
_IN_LISTS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_string, pa.types.is_large_string)
_CELLS = (*_IN_LISTS, pa.types.is_boolean, pa.types.is_null, pa.types.is_timestamp, pa.types.is_date)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_DICTIONARY, _RECORDS = 2, 3  # message kinds in Arrow's Message.fbs


def read_arrow(
    body: bytes, names: Sequence[str], attributes: Sequence[str], max_rows: int, longest: int
) -> tuple[list[Any], dict[str, Any], int]:
    """The named columns as arrays, the attributes that are there by name, and the number of rows."""
    try:
        if _compressed(body):
            raise ServiceError(
                415, "compressed", "Arrow buffers are compressed", remedy="write them uncompressed"
            )
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            for name in names:
                _check_type(reader.schema, name)
            attributes = [name for name in attributes if name in reader.schema.names]
            for name in attributes:
                _check_type(reader.schema, name, attribute=True)
            wanted = list(dict.fromkeys([*names, *attributes]))
            batches, n = [], 0
            for batch in reader:
                n += batch.num_rows
                if n > max_rows:
                    remedy = f"send at most {max_rows:,} rows per request"
                    raise ServiceError(413, "too many rows", f"at least {n:,} rows", remedy=remedy)
                batches.append(batch.select(wanted))
            table = pa.Table.from_batches(batches, pa.schema([reader.schema.field(name) for name in wanted]))
        table.validate(full=True)
        arrays = {name: _plain(table.column(name), longest) for name in wanted}
        return [arrays[name] for name in names], {name: arrays[name] for name in attributes}, n
    except (pa.ArrowException, OSError, ValueError, LookupError, struct.error, OverflowError) as error:
        reason = f"the body is not an Arrow stream: {str(error).splitlines()[0]:.200}"
        raise ServiceError(400, "not arrow", reason) from None


def _check_type(schema: pa.Schema, name: str, *, attribute: bool = False) -> None:
    found = schema.get_all_field_indices(name)
    if len(found) != 1:
        how = "no column" if not found else "more than one column"
        raise ServiceError(422, "column", f"{how} {name!r}", column=name)
    kind = schema.field(found[0]).type
    allowed = _CELLS if attribute else (*_PLAIN, pa.types.is_null)
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    elif attribute and any(is_kind(kind) for is_kind in _LISTS):
        kind, allowed = kind.value_type, _IN_LISTS
    if not any(is_kind(kind) for is_kind in allowed):
        remedy = "convert it to text or numbers"
        raise ServiceError(422, "type", f"{name} has the unsupported type {kind}", column=name, remedy=remedy)


def _plain(column: pa.ChunkedArray, longest: int) -> Any:
    kind = column.type
    if pa.types.is_dictionary(kind):
        for chunk in column.chunks:
            texts = chunk.dictionary
            if not pa.types.is_integer(texts.type) and any(len(str(each)) > longest for each in texts):
                raise ServiceError(422, "id", f"a text of more than {longest} characters in a dictionary")
        column = column.cast(kind.value_type)
    array = column.combine_chunks()
    # Nulls are left to the caller, which reports bad rows by their place.
    return array.to_pylist() if pa.types.is_null(array.type) else array


def _compressed(body: bytes) -> bool:
    """Whether any message has compressed buffers, which Arrow would unpack before we can check.

    A message is a continuation mark, the length of its metadata, the metadata (a flatbuffer), and a body
    whose length is in the metadata.
    """
    at = 0
    while at + 8 <= len(body):
        mark, length = struct.unpack_from("<Ii", body, at)
        at += 8
        if mark != 0xFFFFFFFF:  # Arrow before 0.15 has no mark
            at, length = at - 4, struct.unpack_from("<i", body, at - 8)[0]
        if length <= 0:
            break
        message = _Table(body, at + struct.unpack_from("<I", body, at)[0])
        kind = message.number(1, "<B")
        if kind in (_DICTIONARY, _RECORDS):
            header = message.table(2)
            records = header.table(1) if kind == _DICTIONARY and header else header
            if records and records.place(3):
                return True
        at += length + message.number(3, "<q")
    return False


class _Table:
    """A minimal reader for a flatbuffer table: fields by their numbers."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at
        self.fields = at - struct.unpack_from("<i", data, at)[0]
        if self.fields < 0:
            raise ValueError("a broken message")

    def place(self, field: int) -> int:
        """The offset of the field; 0 if it is absent."""
        size = struct.unpack_from("<H", self.data, self.fields)[0]
        if 4 + 2 * field >= size:
            return 0
        offset = struct.unpack_from("<H", self.data, self.fields + 4 + 2 * field)[0]
        return self.at + offset if offset else 0

    def number(self, field: int, form: str) -> int:
        place = self.place(field)
        found = struct.unpack_from(form, self.data, place)[0] if place else 0
        if found < 0:
            raise ValueError("a broken message")
        return found

    def table(self, field: int) -> _Table | None:
        place = self.place(field)
        return _Table(self.data, place + struct.unpack_from("<I", self.data, place)[0]) if place else None
