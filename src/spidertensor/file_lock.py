"""Lock that allows one writer of a model file at a time, across the processes of a machine.

The lock is a separate file next to the model, `.NAME.lock`, because every save replaces the model. The
system releases it when its process ends for any reason; a lock file left by a killed process is
reused. The lock is advisory: it only affects processes that use it.
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

_HOLDER_BYTES = 300  # maximum length of the description of a lock's holder


class LockedError(Fault, RuntimeError):
    """Another process is writing this file. See Fault for the attributes."""


@contextmanager
def held(path: str | os.PathLike[str]) -> Iterator[str | None]:
    """Hold the lock of `path`, which need not exist yet; LockedError at once if another process has it.

    Yields None, or, if locking is impossible (read-only folder, file system without locks), the
    reason; the block then runs without a lock.
    """
    folder, name = os.path.split(os.path.realpath(path))
    lock = os.path.join(folder, f".{name}.lock")
    descriptor, impossible = None, None
    try:
        descriptor = _locked(lock)
    except BlockingIOError as error:
        reason = f"{os.fspath(path)}: is being written by {error.strerror}"
        raise LockedError(reason, remedy="wait until it has ended, or stop it") from None
    except OSError as error:
        impossible = error.strerror or str(error)
    try:
        yield impossible
    finally:
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.unlink(lock)  # while still held, so that nobody else can hold it
            os.close(descriptor)


def _locked(lock: str) -> int:
    """Lock and return a descriptor; BlockingIOError with a description of the holder if taken."""
    if fcntl is None:
        raise OSError(None, "not supported on this system")
    while True:
        descriptor = _opened(lock)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BlockingIOError(error.errno, _holder(descriptor)) from None
            if _is(descriptor, lock):
                with contextlib.suppress(OSError):  # another user's file, or a full disk: still locked
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, _who(), 0)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder removed it after we opened it: try again


def _opened(lock: str) -> int:
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(lock, flags | os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError as error:
        try:
            return os.open(lock, flags | os.O_RDONLY)  # created by another user, but can be locked
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
    return f"process {os.getpid()} on {socket.gethostname()}: {command}".encode(errors="replace")[
        :_HOLDER_BYTES
    ]


def _holder(descriptor: int) -> str:
    with contextlib.suppress(OSError):
        text = os.pread(descriptor, _HOLDER_BYTES, 0).decode(errors="replace")
        text = "".join(each if each.isprintable() else "?" for each in text)
        return text or "another process"
    return "another process"
