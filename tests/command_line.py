"""The command `spider` as tests run it: in processes of its own, with files of ratings."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import spidertensor
from forked import Spider

FIT = ("--modes", "user,movie", "--value", "rating", "--rank", "2", "--hidden", "4")
ONCE = (*FIT, "--passes", "1")  # as rows come: a run that is stopped has learned the first of them
ENVIRONMENT = {"NO_COLOR": "1", "COLUMNS": "100", "TERM": "dumb"}


def table(n=1200, seed=0) -> list[tuple[int, str, float]]:
    rng = np.random.default_rng(seed)
    users, movies = rng.integers(30, size=n).tolist(), rng.integers(20, size=n).tolist()
    return [(u, f"m{m}", round(3 + math.sin(u) + math.cos(m) + 0.3 * z, 3)) for u, m, z in
            zip(users, movies, rng.normal(size=n).tolist(), strict=True)]  # fmt: skip


def csv_text(rows, header="user,movie,rating\n") -> str:
    return header + "".join(f"{u},{m},{r}\n" for u, m, r in rows)


def process(*arguments, **how) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "spidertensor", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **how)


def forked(*arguments, **how) -> subprocess.CompletedProcess[str]:
    """As `process`, but for the seconds that Python takes to import everything."""
    with started(*arguments, text=True, **how) as child:
        out, err = child.communicate(timeout=300)
    return subprocess.CompletedProcess(arguments, child.returncode or 0, out, err)


def started(*arguments, **how) -> Spider:
    """A process that reads what the test writes."""
    return Spider(*arguments, strict=True, **how)


def n_entries(path) -> int:
    """How many entries a model has learned; none, where there is no file yet."""
    return spidertensor.load(path).n_entries_ if Path(path).exists() else 0


def eventually(condition) -> None:
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen within five minutes")
