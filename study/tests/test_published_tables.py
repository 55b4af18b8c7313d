"""The tables of README.md and of the study's pages say what the result rows say."""

from __future__ import annotations

import gzip
import json
import re
import statistics
from collections.abc import Iterable, Iterator

import pytest

from pages import BENCHMARKS, ROOT, STUDY, number, table
from spidertensor_study import registry

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
        with gzip.open(STUDY / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
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


@pytest.mark.parametrize("page", [ROOT / "README.md", BENCHMARKS], ids=lambda page: page.name)
def test_the_accuracy_tables_are_what_the_result_rows_say(page):
    scores = scores_of(result_rows("results/grid", "results/svb", "results/prequential"))
    shown = table(page, "| **spidertensor default** |")
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
    shown = table(BENCHMARKS, "| score: committee |")
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
    text = BENCHMARKS.read_text(encoding="utf-8")
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


def test_the_table_of_rankings_is_what_was_measured():
    rows = map(json.loads, (STUDY / "benchmarks/peers_ranking.jsonl").read_text().splitlines())
    measured = {row["data"]: row["methods"] for row in rows}
    page = BENCHMARKS.read_text(encoding="utf-8")
    section = page.split("## Rankings of events")[1].split("\n## ")[0]
    tables = [part.split("\n\n")[0] for part in section.split("\n| | HR@10")[1:]]
    for name, shown in zip(("movielens-1m-events", "movielens-100k-events"), tables, strict=True):
        lines = [line.strip("| ").split(" | ") for line in shown.splitlines() if line.startswith("| ")]
        _is_what_was_measured({label.split(" (")[0]: cells for label, *cells in lines}, measured[name])


def _is_what_was_measured(shown: dict, measured: dict) -> None:
    assert shown.keys() == measured.keys() - {"events", "ranked"}
    for name, cells in shown.items():
        full, sampled = measured[name]["full"], measured[name]["sampled (flatters)"]
        wanted = [full[key] for key in ("hr_10", "ndcg_10", "recall_20", "mrr")]
        wanted += [sampled["hr_10"], sampled["ndcg_10"]]
        told = [*cells[:4], *cells[5].split(" / ")]
        assert [float(text) for text in told] == pytest.approx(wanted, abs=0.00051), name
