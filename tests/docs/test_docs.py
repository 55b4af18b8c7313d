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

import doctest
import glob
import gzip
import json
import re
import shlex
import statistics
import subprocess
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
import typer

import spidertensor
from pages import FENCE, ROOT, blocks, number, output, table
from spidertensor import cli
from spidertensor_study import registry

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
GENERATED = {"command.md", "claims.md"}  # made from the commands and from results/, and tested there
NEEDS_JAX = {"engines.md", "competitors.md"}


def prose(page: Path) -> str:
    """The page without its code blocks and comments."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def page_name(page: Path) -> str:
    return page.name


# Code


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


# Figures


METHODS = {entry.label: name for name, entry in registry.METHODS.items()}
COLUMNS = [
    ("movielens-1m", "paper"),
    ("acc", "paper", "clean"),
    ("anime", "paper"),
    ("dblp", "paper", "clean"),
    ("flights", "stream"),
]


Scores = dict[tuple[str, str, str], list[float]]


def result_rows(*names: str) -> Iterator[dict]:
    for name in names:
        with gzip.open(ROOT / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def scores_of(rows: Iterable[dict], metric: str = "score") -> Scores:
    """(method, data, test set) -> score of each seed, at rank 8 and batches of 256, all entries."""
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in rows:
        how = row["settings"]
        if row["error"] or (how["rank"], how["batch_size"], how["entries"]) != (8, 256, None):
            continue
        for test, score in row["scores"].items():
            found.setdefault((how["method"], how["data"], test), {})[how["seed"]] = score[metric]
    return {key: list(seeds.values()) for key, seeds in found.items()}


AGAINST = {
    "movielens-1m, RMSE": ("movielens-1m", "paper"),
    "acc, published test, RMSE": ("acc", "paper"),
    "acc, clean test, RMSE": ("acc", "clean"),
    "anime, AUC": ("anime", "paper"),
    "dblp, published test, AUC": ("dblp", "paper"),
    "dblp, clean test, AUC": ("dblp", "clean"),
    "flights, RMSE": ("flights", "stream"),
}


@pytest.mark.parametrize("name", ["README.md", "docs/benchmarks.md"])
def test_the_accuracy_tables_are_what_the_result_rows_say(name):
    scores = scores_of(result_rows("results/grid", "results/svb", "results/prequential"))
    shown = table(ROOT / name, "| **spidertensor default** |")
    assert "spidertensor default" in shown
    for label, cells in shown.items():
        for (data, *tests), cell in zip(COLUMNS, cells, strict=True):
            where = f"{label} on {data}: {cell!r}"
            numbers = [scores[key] for test in tests if (key := (METHODS[label], data, test)) in scores]
            assert bool(cell) == bool(numbers), where
            digits = 1 if data == "flights" else 3
            for text, seeds in zip(cell.split(" / ") if cell else [], numbers, strict=False):
                assert abs(float(text) - statistics.mean(seeds)) <= 0.51 * 10**-digits, where


def test_committee_and_one_model_are_what_the_result_rows_say():
    rows = list(result_rows("results/grid", "results/prequential"))
    scores, densities = scores_of(rows), scores_of(rows, "log_density")
    shown = table(ROOT / "docs" / "benchmarks.md", "| score: committee |")
    assert set(shown) == set(AGAINST)
    for label, (committee, one, _, density, density_of_one, _) in shown.items():
        for cell, seeds, method in (
            (committee, scores, "spider"),
            (one, scores, "spider-single"),
            (density, densities, "spider"),
            (density_of_one, densities, "spider-single"),
        ):
            found = seeds[method, *AGAINST[label]]
            digits = len(cell.partition(".")[2])
            assert abs(number(cell) - statistics.mean(found)) <= 0.51 * 10**-digits, (label, cell)


def test_what_memory_is_worth_is_what_the_result_rows_say():
    rows = [row for row in result_rows("benchmarks/choose_defaults") if row["data"] == "flights"]
    halves = {
        row["setting"].get("memory"): [f"{row[name]:.2f}" for name in ("score", "score_second_half")]
        for row in rows
        if row["sweep"] in ("default", "memory")
    }
    text = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    assert all(each in text for each in halves[1000] + halves[None])


def test_the_speed_table_is_what_the_result_rows_say():
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"^\| spidertensor default \| SPIDER-ReLU \|.*\n.*\n.*", text, re.M)
    names, _, times = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines.split("\n"))
    shown = {METHODS[name]: number for name, number in zip(names, times, strict=True)}
    for row in result_rows("results/time"):
        how = row["settings"]
        if (how["data"], how["rank"], how["batch_size"]) == ("movielens-1m", 8, 256):
            entries = next(iter(row["scores"].values()))["n_entries"]
            shown_time = shown.pop(how["method"], None)  # the other floors are not shown
            if shown_time is not None:
                microseconds = 1e6 * row["seconds"] / entries
                assert float(shown_time.replace(",", "")) == pytest.approx(microseconds, rel=0.03)
    assert not shown


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
