"""The end of a journal in a second place: the file MODEL.journal-end.

SQLite takes a damaged write-ahead log for one that was never finished, and cuts it short in silence. So the
last acknowledged request is written here too, after it is in the journal and before it is answered. A kill
between the two leaves the journal longer than its end here, never shorter.

It is written in place, into two slots by turns, so that a torn write leaves the end before. Then it survives
any kill; but it is synced at most once a second, since a second sync for each request would halve their
number, and a disk that loses what was synced to the journal would lose this too.
"""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path
from typing import NamedTuple

import orjson

from spidertensor.writing import replacing

_SLOT_BYTES = 4096  # a page, so that a power cut tears at most one
_SYNC_EVERY_S = 1.0
_sync = getattr(os, "fdatasync", os.fsync)


class End(NamedTuple):
    """journal: its id. sequence: of the last acknowledged request; 0 before the first. digest: journal.py"""

    journal: str
    sequence: int
    digest: int


class EndFile:
    """The file, which exists while acknowledged requests are in the journal only."""

    def __init__(self, journal: Path) -> None:
        self.path = journal.with_name(f"{journal.name}-end")
        self._descriptor: int | None = None
        self._slot = 0  # the next to be written
        self._synced = 0.0

    def read(self) -> End | None:
        """The latest end; None if there is no file. ValueError if neither slot can be read."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        ends = [_unpacked(content[at : at + _SLOT_BYTES]) for at in (0, _SLOT_BYTES)]
        found = [(end.sequence, slot) for slot, end in enumerate(ends) if end is not None]
        if not found:
            raise ValueError("it is damaged")
        _, latest = max(found)
        self._slot = 1 - latest
        return ends[latest]

    def begin(self, journal: str) -> None:
        """Create the file, unless it is there; later writes need no more room on the disk."""
        if self._descriptor is not None:
            return
        if not self.path.exists():
            with replacing(self.path) as file:
                file.write(_packed(End(journal, 0, 0)) + bytes(_SLOT_BYTES))
            self._slot = 1
        self._descriptor = os.open(self.path, os.O_RDWR | getattr(os, "O_BINARY", 0))

    def write(self, end: End) -> None:
        assert self._descriptor is not None  # begun
        os.lseek(self._descriptor, self._slot * _SLOT_BYTES, os.SEEK_SET)
        os.write(self._descriptor, _packed(end))
        if time.monotonic() > self._synced + _SYNC_EVERY_S:
            _sync(self._descriptor)
            self._synced = time.monotonic()
        self._slot = 1 - self._slot

    def remove(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None


def _packed(end: End) -> bytes:
    text = orjson.dumps(end._asdict())
    return b"%08x %s" % (zlib.crc32(text), text) + bytes(_SLOT_BYTES - len(text) - 9)


def _unpacked(slot: bytes) -> End | None:
    """What a slot says; None if it is damaged, or was never written."""
    checksum, _, text = slot.rstrip(b"\0").partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    try:
        return End(**orjson.loads(text))
    except (ValueError, TypeError):
        return None
