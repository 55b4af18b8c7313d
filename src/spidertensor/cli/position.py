"""How far a model has come with its sources: the position, which its file stores so that both always agree.

    source, head    the file's name, and what recognises the file if it is moved (None: standard input)
    row, bad        the last row that was learned or left out, and how many were left out so far
    last            the digest of that row's line, which must not change; None if the source has no lines
    value           the column of the values; null of events, which have none
    all_text        per mode, whether "42" is a text; None as long as every source had types
    stream          in a stream, the position that its broker understands (sources/stream.py); None for files
    missing_id      what a missing id is: error, skip or own; not in files of before there was a choice
    bins            per mode, null or the bins of its numbers: rule, edges; null if no mode has any
    predictions     how many bytes of --predictions the rows up to `row` take; not there without that option
    before          the files that were learned before this source, latest first: source, head, row, bad, last
    version         of this format: 2; positions without it are from before there were streams

The first five and `stream` are a place: how far one source was learned. The head of a stream is its name, and
its rows are messages.
"""

from __future__ import annotations

from typing import Any

from spidertensor.cli.errors import CommandError
from spidertensor.sources import Source, Stream
from spidertensor.sources.source import HEAD

VERSION = 2
REMEMBERED = 1000  # files; a place takes some 300 bytes of every model file

PLACE = ("source", "head", "row", "bad", "last", "stream")
Place = dict[str, Any]


def of(stored: Any, n_modes: int) -> dict[str, Any] | None:
    """The position that a model file has, if `spider fit` has written it: a file may come from anybody."""
    match stored:
        case {"value": str() | None, "all_text": None | list() as texts} if _is_place(stored):
            if stored.get("version", 1) not in (1, VERSION):
                raise CommandError("the position is from a newer version of spidertensor")
            if texts is None or [type(each) for each in texts] == [bool] * n_modes:
                return stored
    return None


def places(position: dict[str, Any] | None) -> list[Place]:
    """Where each source was left, the latest first."""
    if position is None:
        return []
    before = position.get("before")
    known = [place for place in before if _is_place(place)] if isinstance(before, list) else []
    return [{name: place.get(name) for name in PLACE} for place in (position, *known)]


def value(stored: Any) -> str | None:
    """The column of the values, if the file tells it; a server also writes it, without any place."""
    column = stored.get("value") if isinstance(stored, dict) else None
    return column if isinstance(column, str) and column else None


def missing_id(position: dict[str, Any] | None) -> str:
    choice = (position or {}).get("missing_id")
    return choice if choice in ("error", "skip", "own") else "error"


def _is_place(place: Any) -> bool:
    match place:
        case {"source": str(), "head": {"stream": str()}, "stream": dict(), "row": int(row), "bad": int(bad)}:
            return 0 <= bad <= row < 2**63
        case {"source": str(), "head": None | {"bytes": int(), "sha256": str()}, "row": int(), "bad": int()}:
            size = (place["head"] or {"bytes": 0})["bytes"]
            counts = (place["row"], place["bad"], size)
            possible = all(type(n) is int and 0 <= n < 2**63 for n in counts) and size <= HEAD
            return possible and isinstance(place.get("last"), str | None)
    return False


def predicted(position: dict[str, Any]) -> int | None:
    """Bytes of the file of predictions, if there was one."""
    size = position.get("predictions")
    return size if type(size) is int and 0 <= size < 2**63 else None


def find(known: list[Place], source: Source | Stream) -> Place | None:
    """Where this source was left. A pipe is taken for the one that was learned last, if that was a pipe."""
    return next((place for place in known if source.has_head(place["head"])), None)


def others(known: list[Place], place: Place | None) -> list[Place]:
    """What to remember of the files but the one at `place`."""
    files = [each for each in known if each is not place and each["head"] is not None and each["row"]]
    return files[:REMEMBERED]


def check_new(place: Place | None, path: Any, source: Source | Stream) -> None:
    """Whether a source may be added, of which `place` is known."""
    if place is not None and place["head"] is not None and place["row"]:
        raise CommandError(
            f"{path}: has learned {source.name} already, up to {source.format.unit} {place['row']:,}: use "
            "--resume to go on after it, or --add --again to learn it once more"
        )
