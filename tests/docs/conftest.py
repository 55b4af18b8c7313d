"""What the tests of pages share."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

import spidertensor


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with the files that pages take for granted, and a `spider` that is this package."""
    rng = np.random.default_rng(0)
    ids = rng.integers((60, 30), size=(1500, 2))
    stars = (3 + np.sin(ids[:, 0]) + np.cos(ids[:, 1])).round(1)
    lines = [f"{user},{movie},{rating}" for (user, movie), rating in zip(ids.tolist(), stars, strict=True)]
    (tmp_path / "ratings.csv").write_text("\n".join(["user,movie,rating", *lines, "42,7,3.5\n"]))
    (tmp_path / "pairs.csv").write_text("user,movie\n42,7\n42,999\n")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "spider").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m spidertensor "$@"\n')
    (tools / "spider").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(spidertensor.__file__).parents[1]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path
