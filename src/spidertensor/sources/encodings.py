"""Convert text in any encoding to a stream of UTF-8, the only encoding that line readers see.

Lines are counted and compared afterwards, so a position in a file does not depend on its encoding.
"""

from __future__ import annotations

import codecs
from typing import Any

from spidertensor.sources.source import SourceError

_BAD = "spidertensor-bad-bytes"


def _bad_bytes(error: UnicodeError) -> tuple[str, int]:
    """Replace undecodable bytes by byte 255, invalid in UTF-8: then their row is bad, not the whole file."""
    assert isinstance(error, UnicodeDecodeError)
    return "\udcff", error.end


codecs.register_error(_BAD, _bad_bytes)


def checked(name: str, encoding: str) -> str:
    """The canonical name of an encoding. name: of the source, for the error"""
    try:
        "".encode(encoding)  # LookupError also for codecs that are not for text, such as base64
        codecs.getincrementaldecoder(encoding)
        return codecs.lookup(encoding).name
    except (LookupError, ValueError):
        raise SourceError(
            f"{name}: unknown encoding {encoding!r}: use latin-1, cp1252, utf-16 or another that Python knows"
        ) from None


class Transcoded:
    """A stream of bytes in `encoding`, read as UTF-8."""

    def __init__(self, stream: Any, encoding: str) -> None:
        self.stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)(_BAD)
        self._ended = False

    def fileno(self) -> int:
        return self.stream.fileno()  # for select on a pipe

    def read(self, n: int) -> bytes | None:
        """Read up to n bytes and convert them; None if they are no whole character yet; b"" at the end."""
        data = self.stream.read(n)
        if data is None or self._ended:
            return data
        self._ended = not data
        text = self._decoder.decode(data, final=self._ended)
        return text.encode("utf-8", "surrogateescape") or (b"" if self._ended else None)
