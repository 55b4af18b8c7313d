"""The position: how far a model has learned its sources. Saved in the model's file, so both always agree.

    source, head    the file's name, and a digest that identifies it if it is moved (None: standard input)
    row, bad        the last row learned or left out, and how many were left out so far
    last            the digest of that row's line, which must not change; None if the source has no lines
    value           the column of the values; null for events, which have none
    all_text        per mode, whether "42" is a text; None as long as every source had types
    stream          for a stream, the broker's position (sources/stream.py); None for files
    missing_id      how a missing id is handled: error, skip or own; absent in older files
    bins            per mode, null or the bins for its numbers: rule, edges; null if no mode has bins
    predictions     the size in bytes of the --predictions file up to `row`; absent without that option
    before          the files learned before this source, latest first: source, head, row, bad, last
    version         of this format: 2; absent in files from before streams

The first five and `stream` form a place: how far one source was learned. The head of a stream is its name;
its rows are messages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spidertensor.estimator.loading import Estimator
from spidertensor.learner.errors import LearnerError
from spidertensor.sources import Bins, Source, SourceError, Stream
from spidertensor.sources.bins import from_json
from spidertensor.sources.source import HEAD_BYTES

VERSION = 2
MAX_PLACES = 1000  # earlier files remembered; each takes some 300 bytes of the model file

PLACE_KEYS = ("source", "head", "row", "bad", "last", "stream")
Place = dict[str, Any]
Position = dict[str, Any]


def at_start(
    source: Source | Stream,
    value: str | None,
    all_text: list[bool] | None,
    before: list[Place],
    missing_id: str = "error",
) -> Position:
    """The position before the first row of a source. before: the places of sources learned earlier"""
    return {
        "source": source.name if source.path is None else Path(source.path).name,
        "head": source.head(),
        "row": 0,
        "bad": 0,
        "last": None,
        "stream": None,
        "version": VERSION,
        "value": value,
        "all_text": all_text,
        "before": before,
        "missing_id": missing_id,
    }


def checked(stored: Any, n_modes: int) -> Position | None:
    """Validate the position in a model file, which is untrusted; None if it has no place."""
    match stored:
        case {"value": str() | None, "all_text": None | list() as texts} if _is_place(stored):
            if stored.get("version", 1) not in (1, VERSION):
                raise LearnerError("the position was written by a newer version of spidertensor")
            if texts is None or [type(each) for each in texts] == [bool] * n_modes:
                return stored
    return None


def places(position: Position | None) -> list[Place]:
    """The place of each source, the latest first."""
    if position is None:
        return []
    before = position.get("before")
    known = [place for place in before if _is_place(place)] if isinstance(before, list) else []
    return [{name: place.get(name) for name in PLACE_KEYS} for place in (position, *known)]


def value_column(stored: Any) -> str | None:
    """The column of the values, if the file names it; a server may save it without a place."""
    column = stored.get("value") if isinstance(stored, dict) else None
    return column if isinstance(column, str) and column else None


def missing_id(position: Position | None) -> str:
    choice = (position or {}).get("missing_id")
    return choice if choice in ("error", "skip", "own") else "error"


def all_text(model: Estimator) -> list[bool]:
    """Per mode, whether "42" in a text file is a text: as stored, else judged by the known ids."""
    kinds_of = model.id_kinds_
    match model.position_:
        case {"all_text": list(texts)} if [type(each) for each in texts] == [bool] * len(kinds_of):
            return texts
    return [set(kinds) - {"tuple"} == {"str"} for kinds in kinds_of]  # a tuple never comes from a text


def bins(model: Estimator) -> list[Bins | None]:
    """Per mode, the bins for its numbers, or None."""
    n_modes = len(model.mode_names_)
    match model.position_:
        case {"bins": list(stored)}:
            try:
                if len(stored) == n_modes:
                    return [from_json(each) for each in stored]
            except SourceError:
                pass
            raise LearnerError("the bins in the model file are damaged")
    return [None] * n_modes


def _is_place(place: Any) -> bool:
    match place:
        case {"source": str(), "head": {"stream": str()}, "stream": dict(), "row": int(row), "bad": int(bad)}:
            return 0 <= bad <= row < 2**63
        case {"source": str(), "head": None | {"bytes": int(), "sha256": str()}, "row": int(), "bad": int()}:
            size = (place["head"] or {"bytes": 0})["bytes"]
            counts = (place["row"], place["bad"], size)
            possible = all(type(n) is int and 0 <= n < 2**63 for n in counts) and size <= HEAD_BYTES
            return possible and isinstance(place.get("last"), str | None)
    return False


def predicted(position: Position) -> int | None:
    """The size in bytes of the predictions file, if there was one."""
    size = position.get("predictions")
    return size if type(size) is int and 0 <= size < 2**63 else None


def find(known: list[Place], source: Source | Stream) -> Place | None:
    """The place of this source. A pipe is taken for the pipe learned last, if the latest source was one."""
    return next((place for place in known if source.has_head(place["head"])), None)


def others(known: list[Place], place: Place | None) -> list[Place]:
    """The places to remember besides `place`."""
    files = [each for each in known if each is not place and each["head"] is not None and each["row"]]
    return files[:MAX_PLACES]


def check_new(place: Place | None, path: Path, source: Source | Stream) -> None:
    """LearnerError if rows of the source would be learned twice. place: that of the source"""
    if place is not None and place["head"] is not None and place["row"]:
        reason = f"{path}: already learned {source.name} up to {source.format.unit} {place['row']:,}"
        raise LearnerError(reason, kind="learned already")
