"""Rows that cannot be used: stop, leave them out, or write them to a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spidertensor.cli.errors import CommandError
from spidertensor.writing import naming, replacing

if TYPE_CHECKING:
    from spidertensor.sources import BadRow, Source


class OnBad(StrEnum):
    RAISE = "raise"
    SKIP = "skip"
    FILE = "file"


OnBadOption = Annotated[
    OnBad,
    typer.Option(
        metavar="raise|skip|file",
        help="What to do with a bad row: stop, skip it, or skip it and write it to --rejects.",
    ),
]
Rejects = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File for bad rows as JSON lines. By default next to the output.",
    ),
]


class BadRows:
    """What happens to bad rows. A file of them is not changed before the first chunk has been read."""

    def __init__(
        self, source: Source, policy: OnBad, path: Path, *, after: int | None = None, replace: bool = False
    ) -> None:
        """An existing file is appended to.

        after:   on a resume, rows after this one are removed from its end, because they are read again
        replace: it is emptied first
        """
        self.source, self.policy, self.path, self.after, self.replace = source, policy, path, after, replace
        self.count = 0
        self._ready = policy != OnBad.FILE
        if not self._ready:
            self._kept()  # fails now if the file holds anything else

    def take(self, bad: Sequence[BadRow]) -> None:
        if not self._ready:
            self._prepare()
            self._ready = True
        if not bad:
            return
        if self.policy == OnBad.RAISE:
            refuse(self.source, bad, " (to go on without bad rows: --on-bad skip or file)")
        self.count += len(bad)
        if self.policy == OnBad.FILE:
            records = ({"source": self.source.name, **each._asdict()} for each in bad)
            lines = "".join(json.dumps(record, default=str) + "\n" for record in records)
            with naming(self.path), self.path.open("ab") as file:
                file.write(lines.encode())  # in one piece: two processes that append do not mix their lines

    def _prepare(self) -> None:
        if not self.path.is_file():
            return
        kept = self._kept()
        if kept == self.path.read_bytes():
            return
        with replacing(self.path) as file:
            file.write(kept)

    def _kept(self) -> bytes:
        """The lines of the file that stay. A kill may have cut the last line: that one is removed."""
        *lines, rest = self.path.read_bytes().split(b"\n") if self.path.is_file() else [b""]
        if _is_rejected(rest):
            lines.append(rest)
            rest = b""
        start = b'{"source": '
        if not (all(map(_is_rejected, lines)) and (rest.startswith(start) or start.startswith(rest))):
            raise CommandError(f"{self.path}: not a file of rejected rows: name another with --rejects")
        if self.replace:
            return b""
        while lines and self.after is not None and self._is_read_again(json.loads(lines[-1])):
            lines.pop()
        return b"".join(line + b"\n" for line in lines)

    def _is_read_again(self, record: dict[str, Any]) -> bool:
        assert self.after is not None
        return Path(record["source"]).name == Path(self.source.name).name and record["row"] > self.after


def refuse(source: Source, bad: Sequence[BadRow], remedy: str = "") -> None:
    """The first of some bad rows as an error, if there are any."""
    if bad:
        raise CommandError(f"{source.name} {source.format.unit} {bad[0].row}: {bad[0].reason}{remedy}")


def _is_rejected(line: bytes) -> bool:
    try:
        match json.loads(line):
            case {"source": str(), "row": int(), "reason": str()}:
                return True
    except (ValueError, RecursionError):
        pass
    return False
