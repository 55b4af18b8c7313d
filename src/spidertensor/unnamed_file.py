"""Room beyond memory: a private file without a name, which the system takes back when the process ends."""

from __future__ import annotations

import errno
import shutil
import tempfile
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray


class UnnamedFile:
    """Arrays on disk, written and read at positions in bytes. One thread uses it at a time.

    On Linux it never has a name, on other Unix systems it loses it at once, and Windows deletes it with its
    last handle. So a process that is killed leaves nothing behind. Only its owner may read it (mode 0600).

    folder: where it lies; None: the folder for temporary files
    wanted: bytes that it will grow to, if known. OSError if the disk has no room for them
    """

    def __init__(self, folder: str | None, wanted: int = 0) -> None:
        self._place = folder or tempfile.gettempdir()
        if wanted > shutil.disk_usage(self._place).free:
            reason = f"several passes need {wanted / 2**30:.1f} GiB in {self._place}, or passes=1"
            raise OSError(errno.ENOSPC, reason)
        self._file: Any = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (lives as long as this object)
        self.close = weakref.finalize(self, self._file.close)
        self.size = 0

    def append(self, array: NDArray[Any]) -> int:
        """Write an array behind all others; returns its position."""
        at = self.reserve(array.nbytes)
        self.write(at, array)
        return at

    def reserve(self, n_bytes: int) -> int:
        """Leave room behind all others; returns its position."""
        at = self.size
        self.size += n_bytes
        return at

    def write(self, at: int, array: NDArray[Any]) -> None:
        try:
            self._file.seek(at)
            self._file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
            self._file.flush()
        except OSError as error:
            reason = f"several passes need more room in {self._place}, or passes=1: {error.strerror}"
            raise OSError(error.errno, reason) from None
        self.size = max(self.size, at + array.nbytes)

    def read(self, at: int, n: int, dtype: Any) -> NDArray[Any]:
        """n elements from a position on, as a new array."""
        array = np.empty(n, dtype)
        self._file.seek(at)
        self._file.readinto(array.view(np.uint8))
        return array
