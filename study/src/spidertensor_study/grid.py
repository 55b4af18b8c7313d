"""Grids of runs: reads a TOML file, writes one JSON line per run, which `report` draws.

    [[grid]]                            every combination of these is a run
    method = ["spider", "post"]         names of `registry.METHODS`
    data = ["acc", "dblp"]              names of `datasets.NAMES`
    rank = [3, 8]                       8 if not given
    batch_size = 256                    256
    seed = [0, 1, 2]                    0: seeds the split, the order and the starting weights
    protocol = "held-out"               or "prequential", "weights": see PROTOCOLS
    at = 100                            1: points of the running curve
    entries = 20_000                    learn only the first 20,000 entries; all by default
    learning_rate = 0.001               or any other of the method's `settings`

    [quick]                             settings that --quick replaces in every grid
    entries = 2_000

The settings in a row identify its run; settings of the method that are not in it have their defaults. Rows
are appended as runs end, by this process alone, and never changed. So after a kill the next start runs only
what is missing. A run that fails leaves a row with its error.
"""

from __future__ import annotations

import itertools
import math
import os
import platform
import signal
import subprocess
import sys
import tomllib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache, lru_cache, partial
from importlib.util import find_spec
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import Any

from spidertensor import __version__
from spidertensor.evaluation import protocols
from spidertensor.method import Batch, Method
from spidertensor.spider.engine import ENGINES
from spidertensor.spider.network import ACTIVATIONS
from spidertensor_study import datasets
from spidertensor_study.datasets import Dataset
from spidertensor_study.registry import METHODS
from spidertensor_study.rows import ExperimentError, Row, Settings, identity

DEFAULTS: Settings = {
    "rank": 8,
    "batch_size": 256,
    "seed": 0,
    "protocol": "held-out",
    "at": 1,
    "entries": None,
}


# --- what to run ---


def plan(path: Path, *, seeds: int | None = None, quick: bool = False) -> list[Settings]:
    """The runs of an experiment file without duplicates, grouped by data set.

    seeds: use this many seeds, 0, 1, ..., instead of those in the file
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path} is not TOML: {error}") from error
    unknown = content.keys() - {"grid", "quick"}
    grids, changed = content.get("grid"), content.get("quick", {})
    if unknown or not isinstance(grids, list) or not grids or not isinstance(changed, dict):
        found = f"unknown {min(unknown)!r}" if unknown else "nothing to run"
        raise ExperimentError(f"{path}: {found}; a file has [[grid]] tables and at most one [quick] table")
    runs: dict[str, Settings] = {}
    for number, grid in enumerate(grids, 1):
        if not isinstance(grid, dict):
            raise ExperimentError(f"{path}: grid {number} is not a table")
        grid = grid | (changed if quick else {}) | ({"seed": list(range(seeds))} if seeds else {})
        try:
            for settings in _combinations(grid):
                runs[identity(settings)] = settings
        except ExperimentError as error:
            raise ExperimentError(f"{path}, grid {number}: {error}") from None
    return sorted(runs.values(), key=lambda settings: datasets.NAMES.index(settings["data"]))


def _combinations(grid: Settings) -> Iterator[Settings]:
    axes = DEFAULTS | grid
    for name in ("method", "data"):
        if name not in axes:
            raise ExperimentError(f"no {name}")
    lists = [values if isinstance(values, list) else [values] for values in axes.values()]
    for name, values in zip(axes, lists, strict=True):
        if not values:
            raise ExperimentError(f"{name} has no values")
    for values in itertools.product(*lists):
        settings = dict(zip(axes, values, strict=True))
        _check(settings)
        yield METHODS[settings["method"]].tuned(settings["data"]) | settings


def _check(settings: Settings) -> None:
    for name, known in (("method", METHODS), ("data", datasets.NAMES), ("protocol", PROTOCOLS)):
        if not isinstance(settings[name], str) or settings[name] not in known:
            raise ExperimentError(f"unknown {name} {settings[name]!r}: choose from {', '.join(known)}")
    if datasets.describe(settings["data"]).events_over:
        raise ExperimentError(f"{settings['data']} has events and no values: use spider-study evaluate")
    own = METHODS[settings["method"]].settings
    known = ("method", "data", *DEFAULTS, *own)
    for name in settings:
        if name not in known:
            raise ExperimentError(f"{settings['method']} has no setting {name!r}, only: {', '.join(known)}")
    for name, (good, wanted) in RULES.items():
        if name in settings and not good(settings[name]):
            raise ExperimentError(f"{name} must be {wanted}, got {settings[name]!r}")
    needed = METHODS[settings["method"]].needs + (("jax",) if settings.get("engine") == "vectorized" else ())
    for package in needed:  # checked now, not after hours of other runs
        if find_spec(package) is None:
            needs = f"{settings['method']} needs {package}"
            raise ExperimentError(f"{needs}: pip install 'spidertensor[jax]', or take it out of the grid")


def _whole(least: int) -> tuple[Callable[[Any], bool], str]:
    return lambda x: type(x) is int and x >= least, f"a whole number from {least} on"


def _positive() -> tuple[Callable[[Any], bool], str]:
    return lambda x: type(x) in (int, float) and 0 < x < math.inf, "a positive number"


RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "rank": _whole(1),
    "batch_size": _whole(1),
    "seed": _whole(0),
    "at": _whole(1),
    "entries": (lambda x: x is None or (type(x) is int and x >= 1), "a whole number from 1 on"),
    "epochs": _whole(1),
    "learning_rate": _positive(),
    "multilinear": _whole(0),
    "multilinear_var": _positive(),
    "clip": _positive(),
    "memory": _positive(),
    "committee": _whole(1),
    "starts": _whole(1),
    "channels": _whole(1),
    "node_noise": (lambda x: isinstance(x, bool), "true or false"),
    "activation": (lambda x: x in ACTIVATIONS, f"one of {', '.join(ACTIVATIONS)}"),
    "engine": (lambda x: x in ENGINES, f"one of {', '.join(ENGINES)}"),
}


# --- one run ---


def run_one(settings: Settings) -> Row:
    """The row of a run; if it failed, with its `error`."""
    began = perf_counter()
    try:
        row = row_of(settings, **PROTOCOLS[settings["protocol"]](_load(settings["data"]), settings))
    except Exception as error:  # whatever goes wrong in a run, the other runs of the grid go on
        row = row_of(settings, error=f"{type(error).__name__}: {error}"[:500])
    return row | {"wall_seconds": perf_counter() - began}


def row_of(settings: Settings, **results: Any) -> Row:
    """A row with these results, None for all others, and where and when the run ended."""
    names = ("scores", "curve", "weights", "seconds", "wall_seconds", "error")
    about = {"version": __version__, "commit": commit(), "machine": machine()}
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    return {"settings": settings} | dict.fromkeys(names) | results | about | {"finished": finished}


@lru_cache(maxsize=1)  # runs of one data set come one after the other
def _load(name: str) -> Dataset:
    return datasets.load(name)


def method_of(data: Dataset, settings: Settings) -> tuple[Method, dict[str, Any]]:
    """The method of a run, and how to evaluate it."""
    return METHODS[settings["method"]].for_run(data, settings)


def _first(entries: Batch, n: int | None) -> Batch:
    return Batch(entries.index[:n], entries.value[:n])


def _held_out(data: Dataset, settings: Settings) -> Row:
    """One pass over the training entries; every test set is scored at each point."""
    method, how = method_of(data, settings)
    train, test = data.split(settings["seed"])
    tests, train = data.tests or {"paper": test}, _first(train, settings["entries"])
    scores, curve = {}, []
    for row in protocols.held_out(method, train, tests, at=settings["at"], **how):
        if not curve or curve[-1]["n_entries"] != row["n_entries"]:
            curve.append({"n_entries": row["n_entries"], "seconds": row["seconds"]})
        curve[-1][row["test"]] = row["score"]
        scores[row["test"]] = row
    return {"scores": scores, "curve": curve, "seconds": curve[-1]["seconds"]}


def _prequential(data: Dataset, settings: Settings) -> Row:
    """Each entry predicted, then learned, in time order."""
    method, how = method_of(data, settings)
    stream = _first(data.in_time_order(), settings["entries"])
    rows = list(protocols.prequential(method, stream, at=settings["at"], **how))
    curve = [
        {"n_entries": row["n_entries"], "seconds": row["seconds"], "stream": row["score"]}
        | {"window": row["window_score"], "members": row["members"]}
        for row in rows
    ]
    return {"scores": {"stream": rows[-1]}, "curve": curve, "seconds": curve[-1]["seconds"]}


def _weights(data: Dataset, settings: Settings) -> Row:
    """One pass; then the means and inclusion probabilities of the network's weights."""
    from spidertensor.estimator import SpiderClassifier, SpiderRegressor

    kind = SpiderClassifier if data.likelihood.binary else SpiderRegressor
    kinds = {
        "spider": kind,
        "spider-single": partial(kind, committee=1),
        "spider-paper": kind.paper,
        "spider-paper-tanh": partial(kind.paper, activation="tanh"),
    }
    if settings["method"] not in kinds:
        raise ExperimentError(f"weights are shown for {', '.join(kinds)}, not for {settings['method']}")
    train = _first(data.split(settings["seed"])[0], settings["entries"])
    own = {name: settings[name] for name in METHODS[settings["method"]].settings if name in settings}
    model = kinds[settings["method"]](
        rank=settings["rank"], batch_size=settings["batch_size"], random_state=settings["seed"], **own
    )
    began = perf_counter()
    model.fit(train.index, train.value)
    layers = zip(model.weights_, model.inclusion_, strict=True)
    weights = [{"mean": weight.mean.tolist(), "inclusion": within.tolist()} for weight, within in layers]
    return {"weights": weights, "seconds": perf_counter() - began}


PROTOCOLS: dict[str, Callable[[Dataset, Settings], Row]] = {
    "held-out": _held_out,
    "prequential": _prequential,
    "weights": _weights,
}


@cache
def commit() -> str | None:
    """The commit of this source tree; $SPIDER_COMMIT for a copy without history."""
    root = Path(__file__).parents[3]
    described = ""
    if (root / ".git").exists():  # otherwise installed, perhaps inside another repository
        words = ["describe", "--always", "--abbrev=7", "--dirty=+changes", "--exclude=*"]
        with suppress(OSError):  # no git on this machine
            described = subprocess.run(
                ["git", "-C", str(root), *words], capture_output=True, text=True, check=False
            ).stdout.strip()
    return described or os.environ.get("SPIDER_COMMIT")


def machine() -> str:
    """The processor, and the accelerator if the run had one."""
    cpu = platform.processor() or platform.machine()
    if (known := Path("/proc/cpuinfo")).exists():
        names = (line.partition(":")[2] for line in known.read_text().splitlines() if "model name" in line)
        cpu = next(names, cpu).strip()
    parts = [cpu, f"{os.cpu_count()} cores"]
    if (jax := sys.modules.get("jax")) and jax.default_backend() != "cpu":
        parts.append(jax.devices()[0].device_kind)
    return ", ".join(parts)


# --- many runs ---


def run_all(runs: Iterable[Settings], jobs: int, run: Callable[[Settings], Row] = run_one) -> Iterator[Row]:
    """Yield the rows of the runs as they end; `jobs` run at a time, each in another process."""
    waiting = deque(runs)
    while waiting:
        flying: dict[Future[Row], Settings] = {}
        try:
            with _pool(jobs) as pool:
                while waiting or flying:
                    while waiting and len(flying) < jobs:
                        flying[pool.submit(run, waiting[0])] = waiting[0]
                        waiting.popleft()
                    for future in wait(flying, return_when=FIRST_COMPLETED).done:
                        row = future.result()
                        del flying[future]
                        yield row
        except BrokenProcessPool:  # a process died, which ends the runs of all others
            for settings in flying.values():
                yield _alone(settings, run)


def _alone(settings: Settings, run: Callable[[Settings], Row]) -> Row:
    try:
        with _pool(1) as pool:
            return pool.submit(run, settings).result()
    except BrokenProcessPool:
        return died(settings)


def died(settings: Settings) -> Row:
    return row_of(settings, error="the process died: killed, or out of memory", wall_seconds=0.0)


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """A pool whose processes are killed at the end, so Ctrl-C does not wait for their runs."""
    others = set(active_children())
    # Spawned: a forked copy of a process that has used JAX or threads can hang.
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _begin)
    try:
        yield pool
    finally:
        for process in set(active_children()) - others:
            process.kill()
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Start a process of the pool: ignore Ctrl-C, and end when the parent process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent:
        Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
