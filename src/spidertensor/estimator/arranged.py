"""The entries of a history in the order of the first pass, in memory or, sorted or shuffled there, in a file.

What does not fit into memory is first dealt out to buckets that do: by time, or at random. Then each bucket
is sorted or shuffled. Entries with equal times stay in the order in which they came. A random order is as
random as one in memory, every order being equally likely, but it is another draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Bags, Batch
from spidertensor.scaling import Scaling
from spidertensor.spider.bags import concatenated, moved, taken
from spidertensor.spider.parts import entries_at
from spidertensor.unnamed_file import UnnamedFile

BUCKET_BYTES = 2**25  # about so many at once in memory; more only if very many entries have one time
SAMPLE = 2**20  # values that decide about the scale of a history in a file
TIMES = 10_000  # looked at to deal them out evenly
READ_ENTRIES = 2**16
ELEMENT = np.dtype([("table", "<i2"), ("row", "<i4"), ("weight", "<f4")])


class HistoryChunk(NamedTuple):
    """Some entries as they came. time: None if the history has none; weight: None if each counts once"""

    index: NDArray[np.int32]  # pyright: ignore[reportIncompatibleMethodOverride] (hides tuple.index)
    value: NDArray[np.float64]
    bags: Bags | None
    time: NDArray[Any] | None
    weight: NDArray[np.float64] | None = None

    def arrays(self) -> list[NDArray[Any]]:
        bags = () if self.bags is None else self.bags
        last = [each for each in (self.weight, self.time) if each is not None]
        return [self.index, self.value, *bags, *last]


class Arranged:
    """Entries in the order of the first pass."""

    n_entries: int
    scaling = Scaling()
    _numbers: list[NDArray[np.int64]] | None = None
    _rows: list[NDArray[np.int64] | None] | None = None

    def raw(self, first: int, last: int) -> Batch:
        """Entries as they were collected."""
        raise NotImplementedError

    def sample(self) -> NDArray[np.float64]:
        """The values that decide about their scale: all, or of a file so many that it makes no difference."""
        raise NotImplementedError

    def batch(self, first: int, last: int) -> Batch:
        """Entries to learn."""
        return self._to_learn(self.raw(first, last))

    def _to_learn(self, raw: Batch) -> Batch:
        index, value, bags, weight = raw
        if self._numbers is not None:
            index = np.stack([number[index[:, k]] for k, number in enumerate(self._numbers)], axis=1)
        if self._rows is not None and bags is not None:
            bags = moved(bags, self._rows)
        return Batch(index, self.scaling.scaled(value), bags, weight)

    def keep_values(self, rows: list[NDArray[np.int64] | None] | None) -> None:
        """Learn without the values that their columns have left out: see FittedColumns.bound."""
        self._rows = rows

    def renumber(self, n_nodes: list[int]) -> list[NDArray[np.int64]]:
        """Number the nodes of each mode in the order in which they come here. Returns the old numbers in that
        order; nodes that do not come are the last."""
        numbers, orders = [np.full(n, -1) for n in n_nodes], [[] for _ in n_nodes]
        for first in range(0, self.n_entries, READ_ENTRIES):
            index = self.raw(first, min(first + READ_ENTRIES, self.n_entries)).index
            for k, number in enumerate(numbers):
                unseen = index[number[index[:, k]] < 0, k]
                different, at = np.unique(unseen, return_index=True)
                found = different[np.argsort(at)]
                number[found] = len(orders[k]) + np.arange(len(found))
                orders[k].extend(found.tolist())
        for number, order in zip(numbers, orders, strict=True):
            missing = np.flatnonzero(number < 0)
            number[missing] = len(order) + np.arange(len(missing))
            order.extend(missing.tolist())
        self._numbers = numbers
        return [np.array(order, np.int64) for order in orders]


class InMemory(Arranged):
    """entries: as they came;  order: to learn them in, that of time if `in_time`"""

    def __init__(self, entries: Batch, order: NDArray[np.int64], *, in_time: bool) -> None:
        self._entries, self._order, self.n_entries = entries, order, len(order)
        self._in_time = in_time

    def raw(self, first: int, last: int) -> Batch:
        return entries_at(self._entries, self._order[first:last])

    def sample(self) -> NDArray[np.float64]:
        return self._entries.value[self._order] if self._in_time else self._entries.value


class KnownLater(InMemory):
    """asked, known: when each entry, in the order of time, is predicted, and when its value is known"""

    def __init__(self, entries: Batch, asked: NDArray[Any], known: NDArray[Any]) -> None:
        order = np.argsort(asked, kind="stable")
        super().__init__(entries, order, in_time=True)
        self.asked, self.known = asked[order], known[order]

    def raw_at(self, rows: NDArray[np.int64]) -> Batch:
        return entries_at(self._entries, self._order[rows])

    def batch_at(self, rows: NDArray[np.int64]) -> Batch:
        return self._to_learn(self.raw_at(rows))


class RandomLast(Arranged):
    """Other entries in their order, but for some random ones, which come last, in their order, too."""

    def __init__(self, entries: Arranged, n_last: int, seed: int) -> None:
        self._entries, self.n_entries = entries, entries.n_entries
        self._last = np.sort(np.random.default_rng([seed, 2]).choice(self.n_entries, n_last, replace=False))

    def raw(self, first: int, last: int) -> Batch:
        n_first = self.n_entries - len(self._last)
        rows = np.arange(first, min(last, n_first))
        rows += np.searchsorted(self._last - np.arange(len(self._last)), rows, side="right")
        rows = np.concatenate([rows, self._last[max(first - n_first, 0) : max(last - n_first, 0)]])
        parts = []
        for some in np.split(rows, np.flatnonzero(np.diff(rows // READ_ENTRIES)) + 1):
            start, end = (int(some.min()), int(some.max()) + 1) if len(some) else (0, 0)
            parts.append(entries_at(self._entries.raw(start, end), some - start))
        return parts[0] if len(parts) == 1 else _joined(parts)

    def batch(self, first: int, last: int) -> Batch:
        return self._entries._to_learn(self.raw(first, last))

    def sample(self) -> NDArray[np.float64]:
        return self._entries.sample()


def _joined(parts: list[Batch]) -> Batch:
    index, value, bags, weight = zip(*parts, strict=True)
    return Batch(
        np.concatenate(index),
        np.concatenate(value),
        None if bags[0] is None else concatenated(list(bags)),
        None if weight[0] is None else np.concatenate(weight),
    )


class InFile(Arranged):
    """record: type of an entry (`_record_type`). The elements of bags lie in a file of their own."""

    def __init__(self, n_entries: int, record: np.dtype[Any], folder: str | None) -> None:
        self.n_entries, self._record = n_entries, record
        self._has_bags, self._has_weight = (name in (record.names or ()) for name in ("length", "weight"))
        self._records, self._elements = UnnamedFile(folder), UnnamedFile(folder)

    def raw(self, first: int, last: int) -> Batch:
        records = self._read(first, last - first)
        bags = self._bags_of(records) if self._has_bags else None
        weight = records["weight"].copy() if self._has_weight else None
        return Batch(records["index"].astype(np.int64), records["value"].copy(), bags, weight)

    def sample(self) -> NDArray[np.float64]:
        step = -(-self.n_entries // SAMPLE)
        blocks = range(0, self.n_entries, READ_ENTRIES)
        values = (self._read(at, min(READ_ENTRIES, self.n_entries - at))["value"] for at in blocks)
        return np.concatenate([each[-at % step :: step] for at, each in zip(blocks, values, strict=True)])

    def put(self, at: int, chunk: HistoryChunk, rows: NDArray[np.int64], element: int) -> int:
        """Write some entries of a chunk, with their bags from place `element` on; returns where these end."""
        records = np.empty(len(rows), self._record)
        records["index"], records["value"] = chunk.index[rows], chunk.value[rows]
        if chunk.time is not None:
            records["time"] = chunk.time[rows]
        if chunk.weight is not None:
            records["weight"] = chunk.weight[rows]
        return self._write(at, records, None if chunk.bags is None else taken(chunk.bags, rows), element)

    def sort(self, at: int, n: int, order_of: Callable[[NDArray[Any]], NDArray[np.int64]]) -> None:
        """Put n entries in order. order_of: their records -> the order"""
        records = self._read(at, n)
        order, bags = order_of(records), self._bags_of(records) if self._has_bags else None
        element = int(records["start"][0]) if self._has_bags else 0
        self._write(at, records[order], None if bags is None else taken(bags, order), element)

    def _write(self, at: int, records: NDArray[Any], bags: Bags | None, element: int) -> int:
        if bags is not None:
            records["start"], records["length"] = element + bags.start[:-1], np.diff(bags.start)
            elements = np.empty(len(bags.row), ELEMENT)
            elements["table"], elements["row"], elements["weight"] = bags.table, bags.row, bags.weight
            self._elements.write(element * ELEMENT.itemsize, elements)
            element += len(elements)
        self._records.write(at * self._record.itemsize, records)
        return element

    def _read(self, at: int, n: int) -> NDArray[Any]:
        return self._records.read(at * self._record.itemsize, n, self._record)

    def _bags_of(self, records: NDArray[Any]) -> Bags:
        """The bags of consecutive entries."""
        start = np.concatenate([[0], np.cumsum(records["length"], dtype=np.int64)])
        elements = self._elements.read(int(records["start"][0]) * ELEMENT.itemsize, int(start[-1]), ELEMENT)
        table, row = (elements[name].astype(np.int64) for name in ("table", "row"))
        return Bags(start, table, row, elements["weight"].copy())


class Shape(NamedTuple):
    """What has to be known of entries before they are dealt out. time: type of all times, if there are any"""

    n_entries: int
    n_bytes: int
    n_modes: int
    has_bags: bool
    has_weight: bool
    time: np.dtype[Any] | None


def in_file(
    chunks: Callable[[], Iterator[HistoryChunk]], shape: Shape, seed: int, folder: str | None
) -> InFile:
    """All entries in the order of time, or without times in random order, by seed."""
    n = -(-shape.n_bytes // BUCKET_BYTES)
    splits = None if shape.time is None else _splits(chunks, n, -(-shape.n_entries // TIMES), shape.time)
    counts = np.zeros((2, n), np.int64)  # entries and elements of each bucket
    for chunk, bucket in _dealt(chunks, n, seed, splits):
        counts[0] += np.bincount(bucket, minlength=n)
        if chunk.bags is not None:
            counts[1] += np.bincount(bucket, np.diff(chunk.bags.start), minlength=n).astype(np.int64)
    found = InFile(shape.n_entries, _record_type(shape), folder)
    starts = np.cumsum(counts, axis=1) - counts
    (at, element), sizes = starts.tolist(), counts[0].tolist()
    for chunk, bucket in _dealt(chunks, n, seed, splits):
        order = np.argsort(bucket, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(bucket[order])) + 1):
            to = int(bucket[rows[0]])
            element[to] = found.put(at[to], chunk, rows, element[to])
            at[to] += len(rows)

    def order_of(records: NDArray[Any]) -> NDArray[np.int64]:
        return rng.permutation(len(records)) if splits is None else np.argsort(records["time"], kind="stable")

    rng = np.random.default_rng([seed, 1])
    for first, size in zip(starts[0].tolist(), sizes, strict=True):
        if size:
            found.sort(first, size, order_of)
    return found


def _splits(
    chunks: Callable[[], Iterator[HistoryChunk]], n: int, step: int, time: np.dtype[Any]
) -> NDArray[Any]:
    """Times between which about an n-th of all entries lie."""
    some, row = [], 0
    for chunk in chunks():
        assert chunk.time is not None
        some.append(chunk.time[-row % step :: step].astype(time))
        row += len(chunk.time)
    times = np.sort(np.concatenate(some))
    return times[np.arange(1, n) * len(times) // n]


def _dealt(
    chunks: Callable[[], Iterator[HistoryChunk]], n: int, seed: int, splits: NDArray[Any] | None
) -> Iterator[tuple[HistoryChunk, NDArray[np.int64]]]:
    """Each chunk with the buckets of its entries; however entries are cut into chunks."""
    rng = np.random.default_rng([seed, 0])
    for chunk in chunks():
        if splits is None:
            yield chunk, (rng.random(len(chunk.value)) * n).astype(np.int64)
        else:
            assert chunk.time is not None
            yield chunk, np.searchsorted(splits, chunk.time.astype(splits.dtype), side="right")


def _record_type(shape: Shape) -> np.dtype[Any]:
    fields: list[Any] = [("index", "<i4", (shape.n_modes,)), ("value", "<f8")]
    fields += [("start", "<i8"), ("length", "<i4")] if shape.has_bags else []
    fields += [("weight", "<f8")] if shape.has_weight else []
    return np.dtype(fields + ([] if shape.time is None else [("time", shape.time)]))
