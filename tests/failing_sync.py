"""A disk that fails: in this process, every sync of a file returns an error from now on.

Linux does it, by a filter of system calls (seccomp), so that nothing above the system is replaced.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

SYNCS = {"x86_64": (74, 75), "aarch64": (82, 83)}  # the numbers of fsync and fdatasync
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000 | errno.EIO


class _Program(ctypes.Structure):
    _fields_ = [("n", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


def fail_syncs() -> bool:
    """Whether it worked: not on other systems, and not where filters are forbidden."""
    numbers = SYNCS.get(platform.machine())
    if platform.system() != "Linux" or numbers is None:
        return False
    steps = [(_LOAD, 0, 0, 0), (_JUMP_IF_EQUAL, 1, 0, numbers[0]), (_JUMP_IF_EQUAL, 0, 1, numbers[1])]
    steps += [(_RETURN, 0, 0, _FAIL), (_RETURN, 0, 0, _ALLOW)]
    program = _Program(len(steps), b"".join(struct.pack("HBBI", *step) for step in steps))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0 and prctl(_SECCOMP, _FILTER, ctypes.byref(program)) == 0
