"""The package as a whole: importing it does nothing, its names are there, and it says which version it is."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import spidertensor

HEAVY = {
    "jax", "matplotlib", "narwhals", "numba", "numpy", "pandas", "polars", "pyarrow", "rich", "scipy",
    "sklearn", "typer",
}  # fmt: skip


def run(code: str, *options: str, cwd: Path | None = None) -> str:
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd).stdout


def test_import_loads_nothing_heavy():
    code = "import sys, spidertensor; print(*{name.split('.')[0] for name in sys.modules})"
    assert set(run(code).split()).isdisjoint(HEAVY)
    assert (
        "numba" in run("import spidertensor.estimator, sys; print(*sys.modules)").split()
    )  # or this proves nothing


AUDIT = """
import sys
seen = []

def audit(event, arguments):
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        seen.append(f"{event} {arguments[0]}")
    elif event.split(".")[0] in ("socket", "subprocess", "urllib", "shutil", "tempfile"):
        seen.append(event)
    elif event in ("os.system", "os.mkdir", "os.rename", "os.remove", "os.exec", "os.fork", "os.putenv"):
        seen.append(event)

sys.addaudithook(audit)
import spidertensor
print(seen)
"""


def test_import_writes_nothing_and_asks_no_network(tmp_path):
    assert run(AUDIT, "-B", cwd=tmp_path).strip() == "[]"
    assert list(tmp_path.iterdir()) == []
    caught = run(AUDIT.replace("import spidertensor", "open('made', 'w')"), "-B", cwd=tmp_path)
    assert "open made" in caught  # the hook does see


def test_import_is_silent_and_changes_no_settings():
    code = """
import logging, random, warnings
before = random.getstate(), list(warnings.filters), list(logging.getLogger().handlers)
import spidertensor
assert (random.getstate(), list(warnings.filters), list(logging.getLogger().handlers)) == before
"""
    assert run(code) == ""


def test_every_public_name_resolves():
    for name in spidertensor.__all__:
        assert getattr(spidertensor, name).__module__.startswith("spidertensor.")
    assert set(spidertensor.__all__) <= set(dir(spidertensor))
    assert spidertensor.__all__ == sorted(spidertensor.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = spidertensor.nothing
    names: dict = {}
    exec("from spidertensor import *", names)
    assert set(spidertensor.__all__) <= names.keys()


def test_what_editors_are_told_is_what_there_is():
    """The imports under TYPE_CHECKING name the same things, from the same modules."""
    tree = ast.parse(Path(spidertensor.__file__).read_text(encoding="utf-8"))
    told = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told == {name: f"spidertensor.{home}" for name, home in spidertensor._HOME.items()}
    assert told.keys() == set(spidertensor.__all__)


def test_types_are_shipped():
    assert (Path(spidertensor.__file__).parent / "py.typed").is_file()


def test_version():
    assert spidertensor.__version__ == importlib.metadata.version("spidertensor")
