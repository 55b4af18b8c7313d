"""Read the only file in a zip as a stream: nothing goes to disk, and only one block at a time to memory."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from spidertensor.sources.source import SourceError

# For other methods Python unpacks a whole block at once, which a hostile file can make arbitrarily large.
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
SHOWN_NAMES = 5  # in an error


def only_member(path: str) -> str:
    """The name of the only file in a zip; SourceError if there is none, or more than one."""
    with open(path, "rb") as file, _as_source_errors(path):
        if not file.seekable():  # a zip has its list of files at the end
            raise SourceError(f"{path}: a zip cannot be read from a pipe")
        with zipfile.ZipFile(file) as archive:
            found = [each.filename for each in archive.infolist() if not _is_ignored(each)]
    if not found:
        raise SourceError(f"{path}: the zip has no file in it")
    if len(found) > 1:
        shown = ", ".join(found[:SHOWN_NAMES]) + (", ..." if len(found) > SHOWN_NAMES else "")
        raise SourceError(f"{path}: the zip has {len(found)} files ({shown}): unpack it and pass one of them")
    return found[0]


def _is_ignored(member: zipfile.ZipInfo) -> bool:
    """Whether it is a folder, or metadata added by macOS."""
    return member.is_dir() or member.filename.startswith("__MACOSX/") or ".DS_Store" in member.filename


class Unzipped:
    """A file in a zip as a stream."""

    def __init__(self, path: str, file: BinaryIO, member: str) -> None:
        self.path = path
        with _as_source_errors(path):
            archive = zipfile.ZipFile(file)
            if archive.getinfo(member).compress_type not in COMPRESSIONS:
                raise SourceError(f"{path}: unsupported zip compression: use deflate, or unpack it")
            self.stream: Any = archive.open(member)

    def read(self, n: int) -> bytes:
        with _as_source_errors(self.path):
            return self.stream.read(n)


@contextmanager
def _as_source_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError) as error:
        raise SourceError(f"{path}: not a complete zip ({error})") from error
    except RuntimeError as error:  # raised by zipfile if a password is needed
        raise SourceError(f"{path}: {error}") from error
