"""How kernels are compiled by numba, and where the compiled code is kept on disk.

Every kernel of the package is made by `kernel` with one of the option sets below; no other file uses numba's
decorators or its private flags.

numba's own cache checks only the file a function is defined in, so it misses changes in other files that the
function calls. Here the names of the cache files contain a hash of all sources that a kernel can depend on
(`stamp`), so compiled code is never used with other sources. A kernel of another package depends on ours and
on the files next to it. numba chooses the folder: NUMBA_CACHE_DIR, else the `__pycache__` next to the source,
else the user's cache folder. If none is writable, every process compiles the kernels, after a warning.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import llvmlite
import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, NullCache

# For functions that Python calls. Not fastmath=True: nnan and ninf would delete the guards against NaN.
COMPILE: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"nsz", "arcp", "contract", "afn", "reassoc"},
}
# For functions that only other kernels call: no wrappers for Python and C, which take longer to compile than
# the function itself. Not cached: the compiled caller contains them.
PART: dict[str, Any] = COMPILE | {"cache": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
# For what runs once per entry or node: inlined, and without reference counting (numba's private flag `_nrt`),
# which would cost as much as the arithmetic.
HOT: dict[str, Any] = PART | {"_nrt": False, "forceinline": True}
RARE: dict[str, Any] = PART | {"_nrt": False}  # inside a hot loop, but not in every model: stays a call

# All files in these folders count as kernel sources: constants are compiled in.
KERNEL_FOLDERS = ("spider", "evaluation", "cluster")
_PACKAGE = Path(__file__).parents[1]
_log = logging.getLogger(__name__)
_kernels: list[Any] = []
LONG_S = 2.0  # of compiling, worth saying how long it took
_began: list[float] = []  # when each kernel that is being compiled began: one compiles those that it calls
_said: set[str] = set()


def kernel(*, cache: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """numba.njit with a disk cache that notices every change of the kernel sources: `@kernel(**COMPILE)`."""

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher: Any = numba.njit(**options)(function)
        if cache:
            dispatcher._cache = _cache_of(function)
            _kernels.append(dispatcher)
        return dispatcher

    return decorate


@cache
def stamp(folder: Path = _PACKAGE) -> str:
    """Hash of the compiler's versions and of all sources that a kernel in this folder can depend on."""
    folders = [_PACKAGE / name for name in KERNEL_FOLDERS]
    if not folder.is_relative_to(_PACKAGE):
        folders.append(folder)
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for each in folders:
        for path in sorted(each.rglob("*.py")):
            source = path.read_bytes()
            digest.update(f"\n{path.relative_to(each.parent).as_posix()} {len(source)}\n".encode() + source)
    return digest.hexdigest()[:16]


def cache_folder() -> str | None:
    """Where SPIDER's compiled kernels are kept; None if no folder is writable."""
    return _cache_of(cache_folder).cache_path


def compilations() -> dict[str, int]:
    """How often each kernel was compiled in this process because it was not cached on disk."""
    found = ((each, sum(each.stats.cache_misses.values())) for each in _kernels)
    return {f"{each.__module__.split('.')[-1]}.{each.__name__}": count for each, count in found if count}


def _cache_of(function: Callable[..., Any]) -> Any:
    try:
        return _KernelCache(function)
    except RuntimeError:  # numba found no writable folder
        _warn_not_saved("no writable folder")
        return _NoCache()


def _warn_not_saved(reason: str | None) -> None:
    _log_once(
        logging.WARNING,
        f"compiled kernels are not saved ({reason}), so every process compiles them again (about 15 s): "
        "set NUMBA_CACHE_DIR to a writable folder",
    )


@cache
def _log_once(level: int, message: str) -> None:
    _log.log(level, message)


def _compiling() -> None:
    """A kernel is missing from the cache: compiling it begins, perhaps for the sake of another one."""
    _began.append(perf_counter())
    _say_once("begin", "compiling kernels, once per installation, about 15 s")


def _compiled() -> None:
    took_s = perf_counter() - _began.pop() if _began else 0.0
    if not _began and took_s > LONG_S:
        _say_once("end", f"compiled in {took_s:.0f} s")


def _say_once(what: str, message: str) -> None:
    """Log a message; without logs, show it to someone who waits at a terminal or in a notebook."""
    if what in _said:
        return
    _said.add(what)
    _log.info(message)
    stderr: Any = sys.stderr
    if not _log.hasHandlers() and stderr and (stderr.isatty() or "ipykernel" in sys.modules):
        stderr.write(f"spidertensor: {message}\n")
        stderr.flush()


def _or_warmed(locator: Any) -> Any:
    """A numba locator that also accepts a read-only folder if it holds our compiled kernels.

    A container may run with read-only files and must use the kernels compiled when its image was built.
    """

    class OrWarmed(locator):
        def ensure_cache_path(self) -> None:
            try:
                super().ensure_cache_path()
            except OSError:
                # each source folder has its own cache, and some may have had nothing to compile
                if not any(Path(self.get_cache_path()).parent.rglob(f"{_prefix(self._py_file)}*.nbi")):
                    raise

    return OrWarmed


def _prefix(source: str) -> str:
    """Prefix of the cache files for this source file."""
    folder = Path(source).parent
    return f"spidertensor-{stamp(_PACKAGE if folder.is_relative_to(_PACKAGE) else folder)}-"


class _Files(CompileResultCacheImpl):
    """Names the cache files `spidertensor-<stamp>-<module>.<function>.py311`."""

    _locator_classes = [_or_warmed(each) for each in CompileResultCacheImpl._locator_classes]  # noqa: RUF012

    def get_filename_base(self, fullname: str, abiflags: str) -> str:
        return f"{_prefix(self.locator._py_file)}{fullname}.{_python(abiflags)}"


def _python(abiflags: str = getattr(sys, "abiflags", "")) -> str:
    return f"py{sys.version_info[0]}{sys.version_info[1]}{abiflags}"


class _KernelCache(FunctionCache):
    _impl_class = _Files

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = super().load_overload(sig, target_context)
        if found is None:
            _compiling()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:  # read-only after all, or disk full: the kernel still runs
            _warn_not_saved(error.strerror)
        else:
            _remove_stale(Path(self.cache_path), _prefix(self._impl.locator._py_file))
        _compiled()


class _NoCache(NullCache):
    def load_overload(self, sig: Any, target_context: Any) -> None:
        _compiling()

    def save_overload(self, sig: Any, cres: Any) -> None:
        _compiled()


@cache
def _remove_stale(folder: Path, prefix: str) -> None:
    """Delete kernels compiled from other sources for this Python, once per process and folder.

    Another process may be using these files: numba treats a deleted file as a cache miss.
    """
    for path in folder.glob(f"spidertensor-*.{_python()}.*nb[ic]"):
        if not path.name.startswith(prefix):
            with suppress(OSError):  # already deleted, or open in another process on Windows
                path.unlink()
