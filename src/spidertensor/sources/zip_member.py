"""The one file in a zip, as a stream: nothing is unpacked to disk, and never more than a block to memory."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from spidertensor.sources.source import SourceError

# Of other compressions Python unpacks a whole block at once, however large a hostile one becomes.
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
SHOWN = 5  # names in an error


def only_member(path: str) -> str:
    """The name of the file in a zip; SourceError if there is none, or more than one."""
    with open(path, "rb") as file, _one_error(path):
        if not file.seekable():  # its list of files is at its end
            raise SourceError(f"{path}: a zip cannot be read from a pipe")
        with zipfile.ZipFile(file) as archive:
            found = [each.filename for each in archive.infolist() if not _is_beside(each)]
    if not found:
        raise SourceError(f"{path}: a zip without a file in it")
    if len(found) > 1:
        shown = ", ".join(found[:SHOWN]) + (", ..." if len(found) > SHOWN else "")
        raise SourceError(f"{path}: a zip of {len(found)} files ({shown}): unpack it, and name one of them")
    return found[0]


def _is_beside(member: zipfile.ZipInfo) -> bool:
    """A folder, or what macOS packs beside the files."""
    return member.is_dir() or member.filename.startswith("__MACOSX/") or ".DS_Store" in member.filename


class Unzipped:
    """A member of a zip as a stream."""

    def __init__(self, path: str, file: BinaryIO, member: str) -> None:
        self.path = path
        with _one_error(path):
            archive = zipfile.ZipFile(file)
            if archive.getinfo(member).compress_type not in COMPRESSIONS:
                raise SourceError(f"{path}: packed in an unusual way: pack it with deflate, or unpack it")
            self.stream: Any = archive.open(member)

    def read(self, n: int) -> bytes:
        with _one_error(self.path):
            return self.stream.read(n)


@contextmanager
def _one_error(path: str) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError) as error:
        raise SourceError(f"{path}: not a whole zip ({error})") from error
    except RuntimeError as error:  # zipfile's way to say that a password is needed
        raise SourceError(f"{path}: {error}") from error
