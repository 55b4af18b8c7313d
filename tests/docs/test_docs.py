"""README and docs/ are true: code blocks run, links lead somewhere, figures are those of results/.

How a page is read:

    ```python   is run; all Python blocks of a page share their names, top to bottom
    ```text     right after a Python block: exactly what that block prints
    ```sh       the `spider` commands in it are run in bash, in the same folder; other lines are only read
    <!-- not run: REASON -->   before a block: Python is only compiled, and the options of `spider` commands
                               are only parsed
    <!-- file: NAME -->        before a block: written to that file, not run
"""

from __future__ import annotations

import contextlib
import doctest
import glob
import io
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import numpy as np
import pytest
import typer

import spidertensor
from spidertensor import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
GENERATED = {"command.md", "claims.md"}  # made from the commands and from results/, and tested there
NEEDS_JAX = {"engines.md", "competitors.md"}
FENCE = re.compile(r"(?:^<!-- (not run|file): ([^>]*?) -->\n+)?^```(\w*)\n(.*?)^```$", re.S | re.M)


class Block(NamedTuple):
    language: str
    text: str
    marker: str
    about: str  # what stands behind the marker: a reason, or the name of a file
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(found[3], found[4], found[1] or "", found[2] or "", text.count("\n", 0, found.start(4)) + 1)
        for found in FENCE.finditer(text)
    ]


def prose(page: Path) -> str:
    """The page without its code blocks and comments."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def page_name(page: Path) -> str:
    return page.name


# Code


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


OWN_TEST = {"streams.md"}  # needs a server: tests/test_streams_page.py
WRITTEN = [page for page in PAGES if page.name not in GENERATED | OWN_TEST]


@pytest.mark.parametrize("page", WRITTEN, ids=page_name)
def test_code_runs_and_prints_what_the_page_says(page, folder):
    if page.name in NEEDS_JAX:
        pytest.importorskip("jax")
    if page.name == "cluster.md":
        pytest.importorskip("ray", reason="several workers need Ray: pip install 'spidertensor[ray]'")
    shown = play(page, folder)
    if page.name == "engines.md":
        info = " ".join(shown["spider info visits.spider"].split())
        assert "'shapes': ((16, 3), (16, 16, 8), (16,))" in info
        assert (folder / "predicted.csv").read_text().startswith("user,place,hour,minutes,mean,std\n")


def play(page: Path, folder: Path) -> dict[str, str]:
    """Run a page from top to bottom; what its shell commands printed, by command."""
    names: dict = {"__name__": "page"}
    printed, shown = None, {}
    for block in blocks(page):
        where = f"{page.name}, line {block.line}"
        if block.language == "text":
            assert printed is not None, f"{where}: output that follows no Python block"
            assert printed.rstrip() == block.text.rstrip(), where
        printed = None
        if block.marker == "file":
            (folder / block.about).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            code = compile(block.text, where, "exec")
            if not block.marker:
                printed = output(code, names)
        elif block.language == "sh" and block.marker:
            for command in spider_commands(block.text):
                parse(command, where)
        elif block.language == "sh":
            for line in block.text.splitlines():
                if line.startswith("spider "):
                    shown[line] = run(line, where)
    return shown


def output(code: CodeType, names: dict) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, names)
    return out.getvalue()


def run(line: str, where: str) -> str:
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", line], capture_output=True, text=True)
    assert done.returncode == 0, f"{where}: {line}\n{done.stdout}{done.stderr}"
    return done.stdout


def spider_commands(text: str) -> list[list[str]]:
    """The words behind `spider` in each command of a block; file patterns are those of the repository."""
    commands = []
    for line in text.splitlines():
        for part in re.split(r"\||&&", line):
            words = shlex.split(part, comments=True)
            if words[:1] == ["spider"]:
                commands.append(
                    [each for word in words[1:] for each in sorted(glob.glob(word, root_dir=ROOT)) or [word]]
                )
    return commands


def parse(command: list[str], where: str) -> None:
    """Whether there is such a command with such options, without running it."""
    found, context = typer.main.get_command(cli.app), None
    words = command
    while hasattr(found, "commands"):
        assert set(words[:1]) <= set(found.commands), f"{where}: no command spider {' '.join(command)}"
        context = found.make_context(found.name, words, parent=context)
        found, words = found.commands[words[0]], words[1:]
    found.make_context(found.name, list(words), parent=context)


def test_a_wrong_option_on_a_page_would_be_found():
    with pytest.raises(Exception, match="no-such"):
        parse(["evaluate", "acc", "--no-such"], "here")
    with pytest.raises(AssertionError, match="no command"):
        parse(["evolve", "acc"], "here")


def test_docstring_examples(folder):
    package = Path(spidertensor.__file__).parent
    attempted = 0
    for path in [
        path for path in sorted(package.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")
    ]:
        parts = path.relative_to(package.parent).with_suffix("").parts
        module = import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
        found = doctest.testmod(module)
        assert found.failed == 0, path
        attempted += found.attempted
    assert attempted


# Links and words


def links(page: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    return re.findall(r"\]\(([^)\s]+)\)", text)


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_somewhere(page):
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert target.is_relative_to(ROOT), f"{page.name}: {link} leaves the repository"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


def test_every_page_and_image_is_reachable_from_the_readme():
    seen, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        seen.add(page)
        if page.suffix != ".md":
            continue
        paths = [link.partition("#")[0] for link in links(page) if ":" not in link]
        targets = {(page.parent / path).resolve() for path in paths if path}
        ahead += [target for target in targets if target not in seen and target.is_file()]
    images = sorted((ROOT / "docs" / "images").glob("*.png"))
    lost = [each.name for each in [*PAGES, *images] if each not in seen and each.name != "index.md"]
    assert not lost


def test_the_readme_is_short_and_names_how_to_try_it():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(prose(ROOT / "README.md").split()) < 600
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = set(re.findall(r"\bmake ([a-z]+)\b", text))
    assert {"demo", "test"} <= named <= set(targets)


def test_the_files_on_the_map_exist():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "spidertensor"
    for path in re.findall(r"`([\w/.]+(?:\.py|\.toml|/))`", text):
        if "NAME" not in path:
            assert (package / path).exists() or (ROOT / path).exists(), path
    for path, functions in re.findall(r"\| `([\w/]+\.py)`: ((?:`[\w.]+`(?:, )?)+) \|", text):
        source = (package / path).read_text(encoding="utf-8")
        for function in re.findall(r"(\w+)`", functions):
            assert f"def {function}(" in source, f"{path}: {function}"
