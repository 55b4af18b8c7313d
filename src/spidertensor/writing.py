"""Atomic file replacement, and I/O errors that name their file."""

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
    """Yield a file that replaces `path` at the end of the block, or is deleted after an error.

    A kill at any time leaves either the old file or the new one. If `path` is a symbolic link, its target
    is replaced. Permissions of a replaced file are kept. Only regular files are replaced.
    """
    target = os.path.realpath(path)
    mode = _mode(path)
    folder, name = os.path.split(target)
    # Random, to avoid collisions with other writers and with files left by a killed process of the same id.
    temporary = os.path.join(folder, f".{name[:40]}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    # The replaced file may be private, so the new one is private from its first byte. O_EXCL: never write to
    # an existing file or link of that name.
    created = 0o666 if mode is None else 0o600
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with naming(path, also=temporary):
        descriptor = os.open(temporary, flags, created)
        try:
            try:
                if mode is not None:
                    os.chmod(temporary, mode)
                with open(descriptor, "wb", closefd=False) as handle:  # the caller may close it
                    yield handle
                os.fsync(descriptor)  # before the rename, so that a power cut cannot leave an empty file
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
    """Set `path` as the file name of an OSError that has none, or that names the file `also`.

    For example, a full disk is detected while writing, and that error has no file name.
    """
    try:
        yield
    except OSError as error:
        if error.filename in (None, also):
            error.filename, error.filename2 = os.fspath(path), None
        raise


def _mode(path: str | os.PathLike[str]) -> int | None:
    """Permissions of the file to replace; None if it does not exist."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):  # a rename would replace a device or a pipe with a file
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
