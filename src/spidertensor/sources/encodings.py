"""Text in another encoding, as a stream of UTF-8: what reads lines sees one encoding only.

Lines are counted and compared after this, so a position in a file does not depend on its encoding.
"""

from __future__ import annotations

import codecs
from typing import Any

from spidertensor.sources.source import SourceError

_BAD = "spidertensor-bad-bytes"


def _bad_bytes(error: UnicodeError) -> tuple[str, int]:
    """Bytes that are no text become a byte 255, which UTF-8 does not have: then their row is bad, not the
    whole file, as in a file that is UTF-8."""
    assert isinstance(error, UnicodeDecodeError)
    return "\udcff", error.end


codecs.register_error(_BAD, _bad_bytes)


def checked(name: str, encoding: str) -> str:
    """The usual name of an encoding; `name` is that of the source."""
    try:
        "".encode(encoding)  # LookupError also for what is no encoding of text, such as base64
        codecs.getincrementaldecoder(encoding)
        return codecs.lookup(encoding).name
    except (LookupError, ValueError):
        raise SourceError(
            f"{name}: unknown encoding {encoding!r}: use latin-1, cp1252, utf-16 or another that Python has"
        ) from None


class Transcoded:
    """A stream of bytes in `encoding`, read as UTF-8."""

    def __init__(self, stream: Any, encoding: str) -> None:
        self.stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)(_BAD)
        self._ended = False

    def fileno(self) -> int:
        return self.stream.fileno()  # so that a pipe can be asked whether something has come

    def read(self, n: int) -> bytes | None:
        """Up to n bytes of the stream; None if they do not make a whole character yet; b"" at the end."""
        data = self.stream.read(n)
        if data is None or self._ended:
            return data
        self._ended = not data
        text = self._decoder.decode(data, final=self._ended)
        return text.encode("utf-8", "surrogateescape") or (b"" if self._ended else None)
