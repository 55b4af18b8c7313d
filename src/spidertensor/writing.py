"""Files that are written whole or not at all, and errors that say which file they are about."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` at the end of the block, or vanishes after an error.

    A kill at any instant leaves either the old file or the new one. If `path` is a symbolic link, its target
    is replaced. A file that is replaced keeps its permissions. What is not a regular file is not replaced.
    """
    target = os.path.realpath(path)
    mode = _mode(path)
    folder, name = os.path.split(target)
    # Random: two writers, or a file left by a killed process with the same id, must not collide.
    temporary = os.path.join(folder, f".{name[:40]}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    # The file that it replaces may be private, so it is private from its first byte. O_EXCL: whatever has
    # that name, such as a link that leads elsewhere, is not written to.
    created = 0o666 if mode is None else 0o600
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with naming(path, also=temporary):
        descriptor = os.open(temporary, flags, created)
        try:
            try:
                if mode is not None:
                    os.chmod(temporary, mode)
                with open(descriptor, "wb", closefd=False) as handle:  # a caller may close it
                    yield handle
                os.fsync(descriptor)  # before the rename: a power cut must not leave a name without content
            finally:
                os.close(descriptor)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _sync_folder(folder)


@contextmanager
def naming(path: str | os.PathLike[str], also: str | None = None) -> Iterator[None]:
    """An OSError of the block that names no file, or only the file `also`, names `path`.

    That a disk is full is known when a file is written, and such an error names no file by itself.
    """
    try:
        yield
    except OSError as error:
        if error.filename in (None, also):
            error.filename, error.filename2 = os.fspath(path), None
        raise


def _mode(path: str | os.PathLike[str]) -> int | None:
    """Permissions of the file to be replaced; None if there is no such file."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):  # a rename would replace a device or a pipe by a file
        raise FileExistsError(errno.EEXIST, "exists and is not a regular file", os.fspath(path))
    return mode & 0o777


def _sync_folder(folder: str) -> None:
    """Make the rename survive a power cut, where folders can be opened (not on Windows)."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
