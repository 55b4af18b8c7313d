"""The pages of the documentation as tests read them: blocks of code, tables, links.

How a page is read:

    ```python   is run; all Python blocks of a page share their names, top to bottom
    ```text     right after a Python block: exactly what that block prints
    ```sh       the `spider` commands in it are run as in bash, in the same folder; other lines are only read
    <!-- not run: REASON -->   before a block: Python is only compiled, and the options of `spider` commands
                               are only parsed
    <!-- file: NAME -->        before a block: written to that file, not run
"""

from __future__ import annotations

import contextlib
import glob
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import typer

import spidertensor
from forked import Spider

ROOT = Path(__file__).resolve().parents[1]
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


def output(code: CodeType, names: dict) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, names)
    return out.getvalue()


def table(page: Path, first_column: str) -> dict[str, list[str]]:
    """The table with this line: cells by the name in the first column, without a note in brackets."""
    text = page.read_text(encoding="utf-8")
    text, first_column = (re.sub(r" *\| *", "|", each) for each in (text, first_column))
    found = next(each for each in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE) if first_column in each)
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in found.splitlines()[2:]]
    return {re.sub(r"\*|\(.*\)", "", name).strip(): cells for name, *cells in rows}


def number(cell: str) -> float:
    return float(cell.replace("−", "-"))


def prose(page: Path) -> str:
    """The page without its code blocks and comments."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def page_name(page: Path) -> str:
    return page.name


def play(page: Path, folder: Path, programs: Mapping[str, typer.Typer]) -> dict[str, str]:
    """Run a page from top to bottom; what its shell commands printed, by command.

    programs: the commands that pages show, by name
    """
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
            for program, *words in commands(block.text, programs):
                parse(programs[program], words, where)
        elif block.language == "sh":
            for line in block.text.splitlines():
                if line.partition(" ")[0] in programs:
                    shown[line] = run(line, where)
    return shown


def run(line: str, where: str) -> str:
    """A plain `spider` with its words needs no shell, and no Python that starts from nothing."""
    if re.fullmatch(r"spider [^|&;<>$*?`\\()]+", line):
        child = Spider(*shlex.split(line, comments=True)[1:], text=True)
        out, err = child.communicate()
        code = child.returncode
    else:
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", line], capture_output=True, text=True)
        out, err, code = done.stdout, done.stderr, done.returncode
    assert code == 0, f"{where}: {line}\n{out}{err}"
    return out


def commands(text: str, programs: Iterable[str]) -> list[list[str]]:
    """The words of each command of a block; file patterns are those of the repository."""
    found = []
    for line in text.splitlines():
        for part in re.split(r"\||&&", line):
            words = shlex.split(part, comments=True)
            if set(words[:1]) <= set(programs) and words:
                found.append(
                    [each for word in words for each in sorted(glob.glob(word, root_dir=ROOT)) or [word]]
                )
    return found


def parse(app: typer.Typer, command: list[str], where: str) -> None:
    """Whether there is such a command with such options, without running it."""
    found, context = typer.main.get_command(app), None
    words = command
    while hasattr(found, "commands"):
        assert set(words[:1]) <= set(found.commands), f"{where}: no command {' '.join(command)}"
        context = found.make_context(found.name, words, parent=context)
        found, words = found.commands[words[0]], words[1:]
    found.make_context(found.name, list(words), parent=context)


def links(page: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    return re.findall(r"\]\(([^)\s]+)\)", text)


def anchors(page: Path) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def prepare(tmp_path: Path, monkeypatch) -> Path:
    """Make an empty folder, and commands that are these packages: what a page needs, it makes."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, module in {"spider": "spidertensor", "spider-study": "spidertensor_study"}.items():
        (tools / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(spidertensor.__file__).parents[1]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path
