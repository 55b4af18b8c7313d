"""Handling of rows that cannot be used: stop, skip them, or write them to a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spidertensor.cli.errors import CommandError
from spidertensor.writing import naming, replacing

if TYPE_CHECKING:
    from spidertensor.sources import BadRow, Chunk, Source, Stream
    from spidertensor.sources.stream import Sender


class OnBad(StrEnum):
    RAISE = "raise"
    SKIP = "skip"
    FILE = "file"


OnBadOption = Annotated[
    OnBad,
    typer.Option(
        metavar="raise|skip|file",
        help="On a bad row: stop, skip it, or skip it and write it to --rejects.",
    ),
]
Rejects = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File for bad rows, as JSON lines. Defaults to a file next to the output.",
    ),
]


SKIP = " (to skip bad rows, use --on-bad skip or file)"


def remedy(bad: Sequence[BadRow], ids: Sequence[str]) -> str:
    """What to do about the first bad row. ids: the columns of ids"""
    if bad and any(bad[0].reason == f"{name} is missing" for name in ids):
        return (
            " (to skip rows without an id, use --missing-id skip; to learn all of them as one id, "
            "--missing-id own)"
        )
    return SKIP


def remedy_of_chunk(
    chunk: Chunk,
    bad: Sequence[BadRow],
    ids: Sequence[str],
    value: str | None,
    *,
    binary: bool,
    labels: tuple[str, str] | None,
) -> str:
    """What to do about the first bad row of a chunk, and about all of them if they are alike.

    binary: whether values are 0 and 1, or these labels
    """
    from spidertensor.sources.columns import NO_NUMBER  # imported late: slow

    found, first = remedy(bad, ids), bad[0].reason if bad else ""
    if binary and value is not None:
        return found if labels else f"{found}; for labels other than 0 and 1, use --labels no,yes"
    texts = {each.reason for each in bad if each.reason.endswith(NO_NUMBER)}
    if len(chunk.rows) or not first.endswith(NO_NUMBER) or len(texts) > 2:
        return found
    words = [each.removeprefix(f"{value} ").removesuffix(NO_NUMBER).strip("'") for each in texts]
    named = ",".join(sorted(words)) if len(words) == 2 else "NO,YES"
    return f", nor is any other: for two labels, use --binary --labels {named} (the positive one last)"


class BadRows:
    """Applies the --on-bad policy. The rejects file stays untouched until the first chunk has been read."""

    def __init__(
        self,
        source: Source | Stream,
        policy: OnBad,
        path: Path,
        *,
        after: int | None = None,
        replace: bool = False,
        dead_letters: Stream | None = None,
    ) -> None:
        """Append to `path` if it exists.

        after:        on resume, remove rejects after this row, because these rows will be read again
        replace:      empty the file first
        dead_letters: also send bad rows to this stream; after a kill, rows read again are sent again
        """
        self._letters: Sender | None = None if dead_letters is None else dead_letters.sender()
        if self._letters is not None and policy == OnBad.RAISE:
            policy = OnBad.SKIP
        self.source, self.policy, self.path, self.after, self.replace = source, policy, path, after, replace
        self.count = 0
        self._ready = policy != OnBad.FILE
        if not self._ready:
            self._kept()  # fails if the file contains anything else

    def take(
        self, bad: Sequence[BadRow], place: Callable[[int], str | None] | None = None, remedy: str = SKIP
    ) -> None:
        """Handle the bad rows of a chunk.

        place:  maps a message number to its location in the broker
        remedy: what to do instead of stopping here
        """
        if not self._ready:
            self._prepare()
            self._ready = True
        if not bad:
            return
        if self.policy == OnBad.RAISE:
            refuse(self.source, bad, remedy)
        records = self.records(bad, place)
        if self._letters is not None:
            self._letters.send(records)
        self.count += len(bad)
        if self.policy == OnBad.FILE:
            with naming(self.path), self.path.open("ab") as file:
                # one write, so that lines of two appending processes do not mix
                file.write(b"".join(record + b"\n" for record in records))

    def records(self, bad: Sequence[BadRow], place: Callable[[int], str | None] | None) -> list[bytes]:
        """JSON lines for the file and for dead letters."""
        return [json.dumps(self._record(each, place), default=str).encode() for each in bad]

    def _record(self, bad: BadRow, place: Callable[[int], str | None] | None) -> dict[str, Any]:
        where = {} if place is None else {"place": place(bad.row)}
        return {"source": self.source.name, **bad._asdict(), **where}

    def close(self) -> None:
        if self._letters is not None:
            self._letters.close()

    def _prepare(self) -> None:
        if not self.path.is_file():
            return
        kept = self._kept()
        if kept == self.path.read_bytes():
            return
        with replacing(self.path) as file:
            file.write(kept)

    def _kept(self) -> bytes:
        """The lines to keep, without a last line that was cut off by a kill."""
        *lines, rest = self.path.read_bytes().split(b"\n") if self.path.is_file() else [b""]
        if _is_rejected(rest):
            lines.append(rest)
            rest = b""
        start = b'{"source": '
        if not (all(map(_is_rejected, lines)) and (rest.startswith(start) or start.startswith(rest))):
            raise CommandError(f"{self.path}: not a file of rejected rows; choose another one with --rejects")
        if self.replace:
            return b""
        while lines and self.after is not None and self._is_read_again(json.loads(lines[-1])):
            lines.pop()
        return b"".join(line + b"\n" for line in lines)

    def _is_read_again(self, record: dict[str, Any]) -> bool:
        assert self.after is not None
        return Path(record["source"]).name == Path(self.source.name).name and record["row"] > self.after


def refuse(source: Source | Stream, bad: Sequence[BadRow], remedy: str = "") -> None:
    """Raise an error for the first bad row, if any."""
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
