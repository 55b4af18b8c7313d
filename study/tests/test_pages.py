"""The pages of the study are true: code runs, and figures are those of the result rows."""

from __future__ import annotations

import gzip
import json
import re
import statistics
from collections.abc import Iterable, Iterator

import pytest

from pages import ROOT, number, page_name, play, prepare, table
from spidertensor import cli
from spidertensor_study import registry
from spidertensor_study.cli import app

STUDY = ROOT / "study"
GENERATED = {"command.md", "claims.md"}  # made from the commands and from results/, and tested there
WRITTEN = [page for page in sorted((STUDY / "docs").glob("*.md")) if page.name not in GENERATED]


@pytest.mark.parametrize("page", [STUDY / "README.md", *WRITTEN], ids=page_name)
def test_code_runs_and_prints_what_the_page_says(page, tmp_path, monkeypatch):
    play(page, prepare(tmp_path, monkeypatch), {"spider": cli.app, "spider-study": app})


METHODS = {entry.label: name for name, entry in registry.METHODS.items()} | {"spidertensor fit": "fit"}
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


def scores_of_passes() -> Scores:
    """The same for the default of today, ids only: in one pass ("spider"), and `fit` in several."""
    found: Scores = {}
    text = (STUDY / "benchmarks" / "passes.jsonl").read_text(encoding="utf-8")
    for row in map(json.loads, text.splitlines()):
        if row["columns"] == "ids":
            method = "fit" if row["passes"] == "auto" else "spider"
            found.setdefault((method, row["data"], "paper"), []).append(row["score"])
    return found


AGAINST = {
    "movielens-1m, RMSE": ("movielens-1m", "paper"),
    "acc, published test, RMSE": ("acc", "paper"),
    "acc, clean test, RMSE": ("acc", "clean"),
    "anime, AUC": ("anime", "paper"),
    "dblp, published test, AUC": ("dblp", "paper"),
    "dblp, clean test, AUC": ("dblp", "clean"),
    "flights, RMSE": ("flights", "stream"),
}


@pytest.mark.parametrize("name", ["README.md", "study/docs/benchmarks.md"])
def test_the_accuracy_tables_are_what_the_result_rows_say(name):
    scores = scores_of(result_rows("study/results/grid", "study/results/svb", "study/results/prequential"))
    of_study = name != "README.md"  # its table has the default of version 0.2, and flights known at once
    scores |= {} if of_study else scores_of_passes()
    shown = table(ROOT / name, "| **spidertensor default** |")
    assert "spidertensor default" in shown
    for label, (size, *cells) in shown.items():
        method = METHODS[label]
        assert int(size) == registry.METHODS["spider" if method == "fit" else method].per_node(8), label
        for (data, *tests), cell in zip(COLUMNS if of_study else COLUMNS[:-1], cells, strict=True):
            where = f"{label} on {data}: {cell!r}"
            numbers = [scores[key] for test in tests if (key := (method, data, test)) in scores]
            assert bool(cell) == bool(numbers), where
            digits = 1 if data == "flights" else 3
            for text, seeds in zip(cell.split(" / ") if cell else [], numbers, strict=False):
                assert abs(float(text) - statistics.mean(seeds)) <= 0.51 * 10**-digits, where


def test_committee_and_one_model_are_what_the_result_rows_say():
    rows = list(result_rows("study/results/grid", "study/results/prequential"))
    scores, densities = scores_of(rows), scores_of(rows, "log_density")
    shown = table(STUDY / "docs" / "benchmarks.md", "| score: committee |")
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
    rows = [row for row in result_rows("study/benchmarks/choose_defaults") if row["data"] == "flights"]
    halves = {
        row["setting"].get("memory"): [f"{row[name]:.2f}" for name in ("score", "score_second_half")]
        for row in rows
        if row["sweep"] in ("default", "memory")
    }
    text = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    assert all(each in text for each in halves[1000] + halves[None])


def test_the_speed_table_is_what_the_result_rows_say():
    text = (STUDY / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"^\| spidertensor default \| SPIDER-ReLU \|.*\n.*\n.*", text, re.M)
    names, _, times = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines.split("\n"))
    shown = {METHODS[name]: number for name, number in zip(names, times, strict=True)}
    for row in result_rows("study/results/time"):
        how = row["settings"]
        if (how["data"], how["rank"], how["batch_size"]) == ("movielens-1m", 8, 256):
            entries = next(iter(row["scores"].values()))["n_entries"]
            shown_time = shown.pop(how["method"], None)  # the other floors are not shown
            if shown_time is not None:
                microseconds = 1e6 * row["seconds"] / entries
                assert float(shown_time.replace(",", "")) == pytest.approx(microseconds, rel=0.03)
    assert not shown
