"""The entries of a history, as they came, with their ids numbered; in a file if there are many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator import times
from spidertensor.estimator.arranged import Arranged, HistoryChunk, InMemory, KnownLater, Shape, in_file
from spidertensor.estimator.times import Times
from spidertensor.faults import EntryError
from spidertensor.method import Bags, Batch
from spidertensor.spider.bags import concatenated
from spidertensor.unnamed_file import UnnamedFile

IN_MEMORY = 2**26  # bytes of entries; more of them go to a file
CHUNK_ENTRIES = 2**16  # in one piece of it


class _Stored(NamedTuple):
    """Where the arrays of a chunk lie in the file: position, shape and type of each."""

    arrays: list[tuple[int, tuple[int, ...], np.dtype[Any]]]
    has_weight: bool
    has_time: bool


class Collected:
    """Numbered entries, in the order in which they came.

    folder: where a file may lie; None: the folder for temporary files
    """

    def __init__(self, folder: str | None = None) -> None:
        self.folder, self.n_entries, self.n_bytes = folder, 0, 0
        self.time_types: list[np.dtype[Any]] = []
        self._chunks: list[HistoryChunk] = []
        self._file: UnnamedFile | None = None
        self._stored: list[_Stored] = []
        self._last: NDArray[Any] | None = None  # the time that came last
        self._kind = ""  # of the times
        self._known: list[NDArray[Any]] = []  # when values are known; such entries stay in memory
        self._delays: list[NDArray[Any]] = []  # how much later that is

    def add(
        self,
        index: NDArray[np.int64],
        value: NDArray[np.float64],
        bags: Bags | None,
        when: Times | None = None,
        weight: NDArray[np.float64] | None = None,
    ) -> None:
        """when: the times of the entries, if the history has some; EntryError if unlike those before"""
        time = None if when is None else when.asked
        if when is not None:
            self._check_kind(when)
            if when.known is not None:
                self._known.append(when.known)
                self._delays.append(when.known - when.asked)
        for first in range(0, len(value), CHUNK_ENTRIES):
            last = min(first + CHUNK_ENTRIES, len(value))
            here = slice(first, last)
            own = None if bags is None else bags.part(first, last)
            asked, weights = (None if each is None else each[here] for each in (time, weight))
            chunk = HistoryChunk(index[here].astype(np.int32), value[here], own, asked, weights)
            self._chunks.append(chunk)
            self.n_bytes += sum(each.nbytes for each in chunk.arrays())
        if time is not None and len(value):
            self.time_types.append(time.dtype)
            self._last = time[-1:]
        self.n_entries += len(value)
        if self._file is None and self.n_bytes > IN_MEMORY and not self.known_later:
            self._file = UnnamedFile(self.folder)
        if self._file is not None:
            self._stored += [self._put(self._file, chunk) for chunk in self._chunks]
            self._chunks = []

    def check_sorted(self, when: NDArray[Any], time: str) -> None:
        """EntryError if entries with these times would not come in the order of time."""
        before = when[:1] if self._last is None else self._last
        all_times = np.concatenate([before, when])
        latest, order = 0, []
        for row in range(1, len(all_times)):
            if all_times[row] < all_times[latest]:
                order.append(row - 1)
            else:
                latest = row
        if order:
            reason = "earlier than a row before, and Recent keeps the last nodes in the order of the rows"
            remedy = "sort the rows by time"
            raise EntryError(reason, order[0], column=time, kind="time", remedy=remedy, rows=tuple(order))

    def _check_kind(self, when: Times) -> None:
        if when.kind != (self._kind or when.kind):
            reason = f"this time is {when.kind}, but rows before have {self._kind}"
            rows = tuple(range(len(when.asked)))
            raise EntryError(reason, 0, kind="time", rows=rows, remedy="leave out the row")
        self._kind = when.kind

    @property
    def has_time(self) -> bool:
        return bool(self.time_types)

    @property
    def known_later(self) -> bool:
        return bool(self._known)

    @property
    def case(self) -> str:
        """Which error predictions have that are scored when their entries are learned."""
        if not self.known_later:
            return times.NEXT_ENTRY
        delay = float(np.median(np.concatenate(self._delays)))
        return times.case(delay, "" if self._kind == times.NUMBER else "seconds")

    def arranged(self, seed: int, *, shuffled: bool) -> Arranged:
        """All entries in the order to learn in: of time, or random if `shuffled`. Empties this object."""
        if self._file is not None and (shuffled or self.has_time):
            first = next(self.chunks())
            time = np.result_type(*self.time_types) if self.has_time else None
            has = first.bags is not None, first.weight is not None
            shape = Shape(self.n_entries, self.n_bytes, first.index.shape[1], *has, time)
            found = in_file(self.chunks, shape, seed, self.folder)
            self._file.close()
            return found
        chunks, self._chunks = list(self.chunks()), []
        bags = [each.bags for each in chunks if each.bags is not None]
        index = np.concatenate([each.index for each in chunks])
        value = np.concatenate([each.value for each in chunks])
        weights = [each.weight for each in chunks if each.weight is not None]
        weight = np.concatenate(weights) if weights else None
        entries = Batch(index, value, concatenated(bags) if bags else None, weight)  # pyright: ignore[reportArgumentType]
        asked = [each.time for each in chunks if each.time is not None]
        if self.known_later:
            return KnownLater(entries, np.concatenate(asked), np.concatenate(self._known))
        if self.has_time:
            order = np.argsort(np.concatenate(asked), kind="stable")
        elif shuffled:
            order = np.random.default_rng(seed).permutation(self.n_entries)
        else:
            order = np.arange(self.n_entries)
        return InMemory(entries, order, in_time=self.has_time)

    def chunks(self) -> Iterator[HistoryChunk]:
        """All entries as they came, piece by piece."""
        for stored in self._stored:
            assert self._file is not None
            parts = [
                self._file.read(at, int(np.prod(shape)), kind).reshape(shape)
                for at, shape, kind in stored.arrays
            ]
            time = parts.pop() if stored.has_time else None
            weight = parts.pop() if stored.has_weight else None
            yield HistoryChunk(parts[0], parts[1], Bags(*parts[2:]) if parts[2:] else None, time, weight)
        yield from self._chunks

    @staticmethod
    def _put(file: UnnamedFile, chunk: HistoryChunk) -> _Stored:
        places = [(file.append(each), each.shape, each.dtype) for each in chunk.arrays()]
        return _Stored(places, chunk.weight is not None, chunk.time is not None)
