"""One writer of a model file at a time, over all processes of a machine.

The lock is on a file of its own beside the model, `.NAME.lock`, because every save replaces the model. The
system releases it when its process ends, however that ends; a lock file that a killed process has left is
taken over. It is advisory: only those who ask for it keep away.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from spidertensor.faults import Fault

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_SHOWN = 300  # bytes of the text that says who holds a lock


class LockedError(Fault, RuntimeError):
    """Another process is writing this file. Parts: see Fault."""


@contextmanager
def held(path: str | os.PathLike[str]) -> Iterator[str | None]:
    """Hold the lock of the file `path`, which need not exist yet; LockedError, at once, if another has it.

    Gives None; or, where there can be no lock (a folder that is read-only, a file system without locks), the
    reason, and the block runs without one.
    """
    folder, name = os.path.split(os.path.realpath(path))
    lock = os.path.join(folder, f".{name}.lock")
    descriptor, impossible = None, None
    try:
        descriptor = _locked(lock)
    except BlockingIOError as error:
        reason = f"{os.fspath(path)}: is being written by {error.strerror}"
        raise LockedError(reason, remedy="wait until that has ended, or stop it") from None
    except OSError as error:
        impossible = error.strerror or str(error)
    try:
        yield impossible
    finally:
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.unlink(lock)  # while it is still held: nobody else can have it
            os.close(descriptor)


def _locked(lock: str) -> int:
    """The descriptor of a lock file that is locked; BlockingIOError, about its holder, if another has it."""
    if fcntl is None:
        raise OSError(None, "this system has no such locks")
    while True:
        descriptor = _opened(lock)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BlockingIOError(error.errno, _holder(descriptor)) from None
            if _is(descriptor, lock):
                with contextlib.suppress(OSError):  # another user's file, or a full disk: locked all the same
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, _who(), 0)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder has removed it since it was opened: once more


def _opened(lock: str) -> int:
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(lock, flags | os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError as error:
        try:
            return os.open(lock, flags | os.O_RDONLY)  # made by another user: it can be locked
        except FileNotFoundError:
            raise error from None


def _is(descriptor: int, lock: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(lock, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _who() -> bytes:
    program = os.path.basename(sys.argv[0]) if sys.argv else "python"
    program = "spider" if program == "__main__.py" else program
    command = shlex.join([program, *sys.argv[1:]])
    return f"process {os.getpid()} on {socket.gethostname()}: {command}".encode(errors="replace")[:_SHOWN]


def _holder(descriptor: int) -> str:
    with contextlib.suppress(OSError):
        text = os.pread(descriptor, _SHOWN, 0).decode(errors="replace")
        text = "".join(each if each.isprintable() else "?" for each in text)
        return text or "another process"
    return "another process"
