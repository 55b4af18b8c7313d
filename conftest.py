"""What all tests share: rooms, examples of hypothesis, what JAX has compiled, where data sets lie."""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent
ROOMS = {
    **{
        name: ROOT / "tests" / name
        for name in ("unit", "engine", "estimator", "command", "service", "brokers", "cluster", "docs")
    },
    "study": ROOT / "study",
}

# A shell starts jobs in the background with Ctrl-C ignored, and children inherit that; some tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

# Threads of OpenBLAS wait by spinning, and every core has a test process. Read when NumPy is imported, so
# nothing above may import it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A hundred processes that tests start would compile the package's sources to bytecode, each for itself.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Test processes, and commands that tests start, compile the same programs: JAX finds what another has done.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / "build" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

# Tests compile hundreds of small programs and run each for milliseconds. These settings halve what JAX costs:
# no optimisations, and the older emitters of XLA, which compile twice as fast. What users compile is checked
# in processes without them (`as_users_compile`). XLA ends a process whose flags it does not know, so an older
# one gets none.
QUICK_TO_COMPILE = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
with suppress(PackageNotFoundError):
    if tuple(map(int, version("jaxlib").split(".")[:2])) >= (0, 6):
        QUICK_TO_COMPILE["XLA_FLAGS"] = (
            "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
        )
for _name, _value in QUICK_TO_COMPILE.items():
    os.environ.setdefault(_name, _value)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder in $SPIDER_DATA, or ../shared/data beside the repository; skips where there is neither."""
    named = os.environ.get("SPIDER_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no data sets: {folder} is not a folder (set SPIDER_DATA to the folder that has them)")
    return folder


@pytest.fixture(scope="session")
def as_users_compile() -> dict[str, str]:
    """The environment of a process, a test process too, in which JAX compiles as it does for users."""
    return os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": ""}


@pytest.fixture(scope="session")
def warm_kernels() -> None:
    """For tests of what the command prints: the line about compiling does not come in between."""
    from spidertensor.cli.warmup import warmup

    warmup()


def pytest_sessionstart() -> None:
    """Test processes would begin by compiling the same kernels. The first compiles them for float32, the
    second for float64, which tests of the formulas need; no test begins before both are ready."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker in ("gw0", "gw1"):
        import numpy as np

        from naive import as_float64
        from spidertensor.method import Batch
        from spidertensor.spider.likelihoods import GAUSSIAN
        from spidertensor.spider.network import Network
        from spidertensor.spider.sequential import sequential

        method = sequential(Network((1, 1)), GAUSSIAN)
        state = as_float64(method.init(0)) if worker == "gw1" else method.init(0)
        method.update(state, Batch(np.zeros((1, 2), np.int64), np.ones(1)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each test is marked with its room: `pytest -m service`."""
    for item in items:
        for room in rooms_of(item.path.parent):
            item.add_marker(room)


@cache
def rooms_of(folder: Path) -> list[str]:
    return [room for room, place in ROOMS.items() if folder.is_relative_to(place)]


def pytest_collection_finish() -> None:
    """What was imported and collected stays: the garbage collector need not look at it after every test."""
    gc.collect()
    gc.freeze()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are named by their argument, not written out: gzip puts the second it ran into them, and test
    processes that collect in different seconds would disagree about the tests there are. A likelihood is
    called by its name."""
    from spidertensor.spider.likelihoods import Likelihood

    if isinstance(val, Likelihood):
        return val.name
    return argname if isinstance(val, bytes) else None
