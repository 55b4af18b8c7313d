"""Grids of runs: what is planned, what a run says, and that a killed grid loses and repeats nothing."""

from __future__ import annotations

import contextlib
import gzip
import json
import multiprocessing
import os
import re
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import forked
import spidertensor
from spidertensor import SpiderRegressor
from spidertensor.evaluation import protocols
from spidertensor.spider.likelihoods import GAUSSIAN
from spidertensor_study import cli, datasets, grid, rows
from spidertensor_study.registry import METHODS
from spidertensor_study.rows import ExperimentError, ResultsError, identity

ROOT = Path(__file__).parents[1]
TINY = """
[[grid]]
method = ["mean", "biases"]
data = "synthetic"
seed = [0, 1]
at = 3
entries = 600
"""


@pytest.fixture
def file(tmp_path):
    def write(text: str, name: str = "tiny.toml") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- plans


def test_a_grid_is_every_combination_once(file):
    runs = grid.plan(file(TINY + '[[grid]]\nmethod = "mean"\ndata = "synthetic"\nat = 3\nentries = 600\n'))
    assert sorted((run["method"], run["seed"]) for run in runs) == [
        ("biases", 0), ("biases", 1), ("mean", 0), ("mean", 1),
    ]  # fmt: skip
    assert all(
        run["rank"] == 8 and run["batch_size"] == 256 and run["protocol"] == "held-out" for run in runs
    )


def test_seeds_and_quick_take_the_place_of_what_the_file_says(file):
    path = file(TINY + "[quick]\nentries = 50\nat = 1\n")
    assert {run["seed"] for run in grid.plan(path, seeds=3)} == {0, 1, 2}
    assert {(run["entries"], run["at"]) for run in grid.plan(path, quick=True)} == {(50, 1)}
    assert {run["entries"] for run in grid.plan(path)} == {600}


def test_runs_of_one_data_set_come_together(file):
    text = '[[grid]]\nmethod = ["mean", "biases"]\ndata = ["synthetic", "acc"]\n'
    assert [run["data"] for run in grid.plan(file(text))] == ["acc", "acc", "synthetic", "synthetic"]


def test_a_learning_rate_that_was_tuned_is_part_of_the_run(file):
    (run,) = grid.plan(file('[[grid]]\nmethod = "svb-dtf"\ndata = "acc"\n'))
    assert run["learning_rate"] == METHODS["svb-dtf"].learning_rates["acc"]
    (run,) = grid.plan(file('[[grid]]\nmethod = "svb-dtf"\ndata = "acc"\nlearning_rate = 0.5\n'))
    assert run["learning_rate"] == 0.5


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "nothing to run"),
        ("[grid", "not TOML"),
        ("[grids]\n", "unknown 'grids'"),
        ("[[grid]]\nmethod = 'mean'\n", "grid 1: no data"),
        (TINY + "[[grid]]\ndata = 'acc'\n", "grid 2: no method"),
        ("grid = [1]\n", "grid 1 is not a table"),
        ("[[grid]]\nmethod = [['mean']]\ndata = 'acc'\n", "unknown method ['mean']"),
        ("[[grid]]\nmethod = 'mean'\ndata = {a = 1}\n", "unknown data {'a': 1}"),
        ("[[grid]]\nmethod = 'mean'\ndata = 'acc'\nseed = []\n", "seed has no values"),
        ("[[grid]]\nmethod = 'svb-dtf'\ndata = 'acc'\nlearning_rate = nan\n", "must be a positive number"),
        ("[[grid]]\nmethod = 'svb-dtf'\ndata = 'acc'\nlearning_rate = 1979-05-27\n", "a positive number"),
        ("[[grid]]\nmethod = 'svb-dtf'\ndata = 'acc'\nepochs = -3\n", "epochs must be a whole number"),
        (
            "[[grid]]\nmethod = 'spider'\ndata = 'acc'\nactivation = 'nope'\n",
            "activation must be one of relu",
        ),
        ("[[grid]]\nmethod = 'spider'\ndata = 'acc'\nengine = 'steam'\n", "engine must be one of sequential"),
        ("[[grid]]\nmethod = 'spider'\ndata = 'acc'\ncommittee = 0\n", "committee must be a whole number"),
        ("[[grid]]\nmethod = 'meen'\ndata = 'acc'\n", "unknown method 'meen'"),
        ("[[grid]]\nmethod = 'mean'\ndata = 'ack'\n", "unknown data 'ack'"),
        ("[[grid]]\nmethod = 'mean'\ndata = 'acc'\nprotocol = 'x'\n", "unknown protocol 'x'"),
        (
            "[[grid]]\nmethod = 'mean'\ndata = 'acc'\nrank = 0\n",
            "rank must be a whole number from 1 on, got 0",
        ),
        (
            "[[grid]]\nmethod = 'mean'\ndata = 'acc'\nseed = 1.5\n",
            "seed must be a whole number from 0 on, got 1.5",
        ),
        ("[[grid]]\nmethod = 'mean'\ndata = 'acc'\nat = true\n", "at must be a whole number"),
        (
            "[[grid]]\nmethod = 'post'\ndata = 'acc'\nactivation = 'tanh'\n",
            "post has no setting 'activation'",
        ),
    ],
)
def test_a_file_that_cannot_be_run_says_why(file, text, reason):
    with pytest.raises(ExperimentError, match=r"tiny\.toml") as error:
        grid.plan(file(text))
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("line", "needs"),
    [
        ("method = ['mean', 'svb-dtf']", "svb-dtf needs jax"),
        ("method = 'spider'\nengine = 'vectorized'", "spider needs jax"),
    ],
)
def test_a_missing_package_is_told_before_anything_runs(file, monkeypatch, line, needs):
    path = file(f"[[grid]]\n{line}\ndata = 'acc'\n")
    assert grid.plan(path)
    monkeypatch.setattr(grid, "find_spec", lambda name: None)
    with pytest.raises(ExperimentError, match=needs):
        grid.plan(path)


def test_the_grid_in_the_docs_can_be_planned(file):
    text = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    block = re.search(r"```toml\n(\[\[grid\]\].*?)```", text, flags=re.DOTALL)
    assert block
    path = file(block[1])
    assert len(grid.plan(path)) == 2 * 2 * 2 * 3
    assert {run["entries"] for run in grid.plan(path, quick=True)} == {2_000}


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.toml")), ids=lambda path: path.stem)
def test_the_experiments_of_the_paper_can_be_planned(path):
    whole, quick = grid.plan(path), grid.plan(path, quick=True)
    assert quick
    assert all(run["entries"] for run in quick)
    assert len(quick) <= len(whole)


def test_the_grid_has_all_that_figure_1_needs():
    runs = grid.plan(ROOT / "experiments" / "grid.toml")
    have = {tuple(run[name] for name in ("method", "data", "rank", "batch_size", "seed")) for run in runs}
    for data in ("movielens-1m", "acc", "anime", "dblp"):
        for seed in range(5):
            for method in ("spider", "spider-paper", "spider-paper-tanh", "post"):
                assert all((method, data, rank, 256, seed) in have for rank in (3, 5, 8, 10))
                assert all((method, data, 8, size, seed) in have for size in (64, 128, 256, 512))
            assert all(("cp-wopt", data, rank, 256, seed) in have for rank in (3, 5, 8, 10))
    assert all(run["at"] == 100 for run in runs if run["rank"] == 3 and run["method"] == "post")


def test_learning_rates_are_those_that_came_out_best():
    """`methods` says what the rows of the tuning say."""
    best: dict[tuple[str, str], tuple[float, float]] = {}
    for tuned in rows.read([ROOT / "results" / "tuning.jsonl.gz"]):
        run, said = tuned["settings"], tuned["scores"]["stream"]
        gain = -said["score"] if said["metric"] == "rmse" else said["score"]
        pair = run["method"], run["data"]
        best[pair] = max(best.get(pair, (-np.inf, 0.0)), (gain, run["learning_rate"]))
    for line in (ROOT / "benchmarks" / "static_settings.jsonl").read_text().splitlines():
        tuned = json.loads(line)
        if tuned.get("channels", 64) != 64:  # the default of CoSTCo
            continue
        pair = tuned["method"], tuned["data"]
        best[pair] = max(best.get(pair, (-np.inf, 0.0)), (-tuned["loss"], tuned["learning_rate"]))
    recorded = {
        (name, data): rate for name, named in METHODS.items() for data, rate in named.learning_rates.items()
    }
    default = {("costco", "acc"): 1e-3, ("costco", "anime"): 1e-3}  # the registry has what is not the default
    assert {pair: rate for pair, (_, rate) in best.items()} == recorded | default


# --- one run


def settings(**changed) -> rows.Settings:
    return grid.DEFAULTS | {"method": "mean", "data": "synthetic", "entries": 700} | changed


def test_a_held_out_run_says_what_evaluate_says():
    row = grid.run_one(settings(method="biases", at=3))
    data = datasets.load("synthetic")
    train, test = data.split(0)
    named = METHODS["biases"].build(8, 3, GAUSSIAN, 256)
    rows = list(protocols.held_out(named, grid._first(train, 700), test, likelihood=GAUSSIAN, at=3))
    assert row["error"] is None
    assert row["scores"]["paper"]["score"] == rows[-1]["score"]
    assert [(point["n_entries"], point["paper"]) for point in row["curve"]] == [
        (each["n_entries"], each["score"]) for each in rows
    ]
    assert row["version"] == spidertensor.__version__
    assert "cores" in row["machine"]
    assert row["seconds"] == row["curve"][-1]["seconds"] > 0


def test_several_test_sets_are_scored_in_one_pass():
    data = datasets.synthetic((6, 5), 300)
    train, test = data.split(0)
    half = test._replace(index=test.index[:10], value=test.value[:10])
    method = METHODS["biases"].build(8, 2, GAUSSIAN, 256)
    rows = list(protocols.held_out(method, train, {"all": test, "half": half}, likelihood=GAUSSIAN, at=2))
    assert [(row["test"], row["n_scored"]) for row in rows] == [("all", 30), ("half", 10)] * (len(rows) // 2)
    for name, tested in (("all", test), ("half", half)):
        (alone,) = protocols.held_out(method, train, tested, likelihood=GAUSSIAN)
        assert [row["score"] for row in rows if row["test"] == name][-1] == alone["score"]


def test_a_prequential_run():
    row = grid.run_one(settings(protocol="prequential", at=7))
    assert row["scores"]["stream"]["n_entries"] == 700
    assert row["scores"]["stream"]["skipped"] == 70
    assert row["curve"][-1]["stream"] == row["scores"]["stream"]["score"]
    assert all(point["window"] > 0 for point in row["curve"])
    assert {point["members"] for point in row["curve"]} == {None}


def test_a_prequential_run_of_a_committee_has_its_weights_and_calibrated_coverage():
    row = grid.run_one(settings(protocol="prequential", method="spider", rank=2, at=3))
    assert row["error"] is None
    assert [len(point["members"]) for point in row["curve"]] == [6] * 3
    assert all(sum(point["members"]) == pytest.approx(1) for point in row["curve"])
    assert row["scores"]["stream"]["members"] == row["curve"][-1]["members"]
    assert 0 < row["scores"]["stream"]["calibrated_90"] <= 1
    single = grid.run_one(settings(protocol="prequential", method="spider-single", rank=2))
    assert [point["members"] for point in single["curve"]] == [[1.0]]


def test_the_weights_of_a_run_are_those_of_the_estimator():
    row = grid.run_one(settings(protocol="weights", method="spider-paper", rank=2, seed=3))
    train, _ = datasets.load("synthetic").split(3)
    model = SpiderRegressor.paper(rank=2, random_state=3).fit(train.index[:700], train.value[:700])
    assert row["error"] is None
    for said, within, weight in zip(row["weights"], model.inclusion_, model.weights_, strict=True):
        np.testing.assert_array_equal(said["inclusion"], within)
        np.testing.assert_array_equal(said["mean"], weight.mean)


def test_the_settings_of_a_run_are_used_for_its_weights():
    relu, tanh = (
        grid.run_one(settings(protocol="weights", method="spider", rank=2, activation=name))["weights"]
        for name in ("relu", "tanh")
    )
    assert relu != tanh


def test_the_weights_of_a_single_model():
    row = grid.run_one(settings(protocol="weights", method="spider-single", rank=2))
    train, _ = datasets.load("synthetic").split(0)
    model = SpiderRegressor(rank=2, committee=1).fit(train.index[:700], train.value[:700])
    for said, weight in zip(row["weights"], model.weights_, strict=True):
        np.testing.assert_array_equal(said["mean"], weight.mean)


def test_the_weights_of_the_papers_method_with_tanh():
    row = grid.run_one(settings(protocol="weights", method="spider-paper-tanh", rank=2))
    train, _ = datasets.load("synthetic").split(0)
    model = SpiderRegressor.paper(rank=2, activation="tanh").fit(train.index[:700], train.value[:700])
    for said, weight in zip(row["weights"], model.weights_, strict=True):
        np.testing.assert_array_equal(said["mean"], weight.mean)


def test_a_row_has_the_commit_of_its_checkout():
    root = ROOT.parent
    if not (root / ".git").exists():
        pytest.skip("not a checkout")
    words = ["git", "-C", str(root), "rev-parse", "--short=7", "HEAD"]
    head = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    grid.commit.cache_clear()
    assert (grid.commit() or "").removesuffix("+changes") == head


def test_without_git_there_is_no_commit_and_no_error(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("SPIDER_COMMIT", raising=False)
    grid.commit.cache_clear()
    assert grid.run_one(settings())["commit"] is None
    monkeypatch.setenv("SPIDER_COMMIT", "abc1234")
    grid.commit.cache_clear()
    assert grid.commit() == "abc1234"
    grid.commit.cache_clear()


def test_a_run_that_fails_is_a_row_with_its_error():
    row = grid.run_one(settings(protocol="weights"))
    assert row["error"].startswith("ExperimentError: weights are shown for spider")
    assert row["scores"] is row["seconds"] is None
    assert row["wall_seconds"] >= 0


def test_the_activation_is_a_setting():
    same, relu = (grid.run_one(settings(method="spider-paper", activation=name, rank=2))
                  for name in ("tanh", "relu"))  # fmt: skip
    tanh = grid.run_one(settings(method="spider-paper-tanh", rank=2))
    assert same["scores"]["paper"]["score"] == tanh["scores"]["paper"]["score"]
    assert same["scores"]["paper"]["score"] != relu["scores"]["paper"]["score"]


# --- rows in files


def row(seed=0, **changed) -> rows.Row:
    said = {"experiment": "tiny", "settings": settings(seed=seed), "finished": "2026-01-01T00:00:00+00:00"}
    return dict.fromkeys(rows.KEYS) | said | changed


def test_rows_are_appended_with_six_digits_and_without_nan(tmp_path):
    path = tmp_path / "new" / "rows.jsonl"
    with rows.opened(path) as written:
        score = {"a": 1 / 3, "b": float("nan"), "c": [float("inf"), 1e-12 / 3, 7]}
        written.append(row(scores={"paper": score}))
    with rows.opened(path) as written:
        score = {"a": 0.333333, "b": None, "c": [None, 3.33333e-13, 7]}
        assert written.rows[0]["scores"] == {"paper": score}
        written.append(row(1))
    assert [each["settings"]["seed"] for each in rows.read([path])] == [0, 1]


LAYER = {"mean": [[0.5, 1]], "inclusion": [[0.1, 0.9]]}
NO_ROWS = {
    "a score is a text": {"scores": {"paper": {"metric": "rmse", "score": "0.4"}}},
    "a score is true": {"scores": {"paper": {"metric": "rmse", "score": True}}},
    "a score is not finite": {"scores": {"paper": {"metric": "rmse", "score": float("nan")}}},
    "a score is huge": {"scores": {"paper": {"metric": "rmse", "score": 10**400}}},
    "a metric is a number": {"scores": {"paper": {"metric": 1, "score": 0.4}}},
    "a test is a number": {"scores": {"paper": {"test": 1, "score": 0.4}}},
    "a score is a number alone": {"scores": {"paper": 0.4}},
    "scores are a text": {"scores": "0.4"},
    "scores are a list": {"scores": [{"score": 0.4}]},
    "a calibration has texts": {"scores": {"paper": {"calibration": [[0.1, "0.2"]]}}},
    "a point of the curve is a text": {"curve": ["0.4"]},
    "a point of the curve has a text": {"curve": [{"n_entries": "1000"}]},
    "a curve is an object": {"curve": {"n_entries": 1000}},
    "weights are a text": {"weights": "0.4"},
    "weights are texts": {"weights": [LAYER | {"mean": [["0.5", 1]]}]},
    "weights are null": {"weights": [LAYER | {"mean": [[None, 1]]}]},
    "weights of two shapes": {"weights": [LAYER | {"mean": [[0.5]]}]},
    "weights of no shape": {"weights": [{"mean": [[0.5], [1, 2]], "inclusion": [[0.5], [1, 2]]}]},
    "weights without inclusion": {"weights": [{"mean": [[0.5, 1]]}]},
    "weights are numbers": {"weights": [{"mean": 1, "inclusion": 1}]},
    "weights are lists": {"weights": [[[0.5]]]},
    "seconds are a text": {"seconds": "1"},
    "seconds of the run are a text": {"wall_seconds": "1"},
    "an error is a number": {"error": 1},
    "a version is a list": {"version": [1]},
    "jobs are a text": {"jobs": "2"},
    "a rank beyond numbers": {"settings": settings(rank=10**30)},
}


@pytest.mark.parametrize("case", NO_ROWS)
def test_rows_of_wrong_types_are_refused(case, tmp_path):
    path = tmp_path / "rows.jsonl"
    good = row(scores={"paper": {"metric": "rmse", "score": 0.4, "calibration": [[0.1, 0.2]], "none": None}})
    good |= {"curve": [{"n_entries": 1000, "window": None}], "weights": [LAYER], "jobs": 1, "error": "no"}
    path.write_text(json.dumps(good) + "\n")
    assert rows.read([path]) == [good]
    path.write_text(json.dumps(good) + "\n" + json.dumps(good | NO_ROWS[case]) + "\n")
    with pytest.raises(ResultsError, match="line 2: not a row written by spider-study experiment"):
        rows.read([path])


def test_settings_are_kept_to_the_last_digit(tmp_path):
    run = settings(learning_rate=0.00123456789)
    with rows.opened(tmp_path / "rows.jsonl") as written:
        written.append(row(settings=run))
    with rows.opened(tmp_path / "rows.jsonl") as written:
        assert written.missing([run]) == []


@pytest.mark.parametrize("name", ["notes.txt", "rows.jsonl.gz"])
def test_a_file_of_something_else_is_not_touched(tmp_path, name):
    content = gzip.compress(b"some\nthing") if name.endswith("gz") else b"some thing"
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ResultsError), rows.opened(tmp_path / name):
        pass
    assert (tmp_path / name).read_bytes() == content


def test_what_a_killed_run_left_of_a_row_is_cut_off(tmp_path):
    path = tmp_path / "rows.jsonl"
    with rows.opened(path) as written:
        written.append(row(0))
    with path.open("a") as handle:
        handle.write('{"experiment": "ti')
    assert len(rows.read([path])) == 1
    with rows.opened(path) as written:
        written.append(row(1))
    assert [each["settings"]["seed"] for each in lines(path)] == [0, 1]


def test_missing_runs_and_those_to_try_again(tmp_path):
    runs = [settings(seed=seed) for seed in range(3)]
    with rows.opened(tmp_path / "rows.jsonl") as written:
        written.append(row(0))
        written.append(row(1, error="ValueError: no"))
        assert written.missing(runs) == runs[2:]
        assert written.missing(runs, retry=True) == runs[1:]
        written.append(row(1))
        assert written.missing(runs, retry=True) == runs[2:]


def test_two_processes_do_not_write_to_one_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    with rows.opened(path), pytest.raises(ResultsError, match="written by another"), rows.opened(path):
        pass


def test_reading_takes_files_folders_and_gzip_and_the_last_of_a_run(tmp_path):
    for name, day in (("a.jsonl", "2026-03-01"), ("b.jsonl", "2026-02-01")):
        with rows.opened(tmp_path / name) as written:
            written.append(row(0, finished=day))
    with gzip.open(tmp_path / "c.jsonl.gz", "wt") as handle:
        handle.write(json.dumps(row(5)) + "\n")
    found = rows.read([tmp_path])
    assert {each["settings"]["seed"]: each["finished"][:7] for each in found} == {0: "2026-03", 5: "2026-01"}
    assert len(rows.read([tmp_path / "a.jsonl"])) == 1


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.jsonl", b"", "no rows"),
        ("a.jsonl", b"{}\n", "line 1: not a row"),
        ("a.jsonl", b"[1]\n", "line 1: not a row"),
        ("a.jsonl", json.dumps(row()).encode() + b"\nnonsense\n", "line 2: not JSON"),
        ("a.jsonl", json.dumps(row(experiment=[])).encode() + b"\n", "line 1: not a row"),
        ("a.jsonl", json.dumps(row(settings={})).encode() + b"\n", "line 1: not a row"),
        ("a.jsonl", b"9" * 5000 + b"\n", "not JSON"),
        ("a.jsonl", b"\xff\xfe\n", "not JSON"),
        ("a.jsonl.gz", gzip.compress(b" " * (rows.LONGEST + 1)), "line 1: not a row"),
        ("a.jsonl", b"[" * 100_000 + b"\n", "not JSON"),
        ("a.jsonl.gz", b"nonsense", "not a complete gzip file"),
        ("a.jsonl.gz", gzip.compress(b"x" * 5000)[:-9], "gzip"),
        ("a.txt", None, "has no .jsonl"),
    ],
)
def test_a_file_that_is_no_results_says_where(tmp_path, name, content, reason):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ResultsError, match=reason):
        rows.read([tmp_path if content is None else tmp_path / name])


# --- many runs, and the command


@pytest.fixture
def forked_pool(monkeypatch):
    """Processes of a pool start at once; `test_the_command_runs_a_grid` starts them as users do."""
    monkeypatch.setattr(grid, "get_context", lambda _: forked.context())


@pytest.mark.usefixtures("forked_pool")
def test_a_run_whose_process_dies_is_a_row_and_the_others_go_on():
    runs = [settings(seed=seed) for seed in range(3)] + [settings(data="deadly")]
    rows = list(grid.run_all([*runs[:1], runs[3], *runs[1:3]], jobs=2, run=_deadly))
    assert sorted((each["settings"]["data"], each["settings"]["seed"], each["error"]) for each in rows) == [
        ("deadly", 0, "the process died: killed, or out of memory"),
        *(("synthetic", seed, None) for seed in range(3)),
    ]


@pytest.mark.usefixtures("forked_pool")
def test_a_process_that_dies_between_two_runs_ends_nothing():
    running = grid.run_all([settings(seed=seed) for seed in range(4)], jobs=2)
    rows = [next(running)]
    for process in multiprocessing.active_children():
        process.kill()
    rows += running
    assert sorted((each["settings"]["seed"], each["error"]) for each in rows) == [(n, None) for n in range(4)]


@pytest.mark.usefixtures("forked_pool")
def test_processes_of_others_are_left_alone():
    other = forked.context().Process(target=time.sleep, args=(60,))
    other.start()
    assert list(grid.run_all([settings()], 1))
    assert other.is_alive()
    other.kill()
    other.join()


def _deadly(settings: rows.Settings) -> rows.Row:
    if settings["data"] == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    return grid.run_one(settings)


@pytest.fixture
def spider(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            cli.main([str(word) for word in words])
        return int(stop.value.code or 0), *capsys.readouterr()

    return call


def test_the_command_runs_a_grid_goes_on_and_reports(spider, file, tmp_path):
    path = file(TINY)
    code, out, err = spider("experiment", path, "--seeds", "1", "--jobs", "2")
    assert (code, "2 of 2 runs done, 2 of them now" in out) == (0, True), err
    first = (tmp_path / "runs" / "tiny.jsonl").read_text()
    code, out, _ = spider("experiment", path)
    assert (code, "4 of 4 runs done, 2 of them now" in out) == (0, True)
    assert (tmp_path / "runs" / "tiny.jsonl").read_text().startswith(first)
    rows = lines(tmp_path / "runs" / "tiny.jsonl")
    assert len({identity(each["settings"]) for each in rows}) == len(rows) == 4
    assert {each["experiment"] for each in rows} == {"tiny"}
    assert all(each["error"] is None for each in rows)
    code, out, err = spider("report", "runs", "--out", "page")
    assert code == 0, err
    assert "online biases" in (tmp_path / "page" / "report.html").read_text()


@pytest.mark.usefixtures("forked_pool")
def test_failures_are_counted_and_tried_again_on_request(spider, file, tmp_path):
    path = file('[[grid]]\nmethod = "mean"\ndata = "synthetic"\nprotocol = "weights"\n')
    code, out, err = spider("experiment", path)
    assert (code, "0 of 1 runs done, 0 of them now, 1 failed" in out) == (2, True)
    assert "mean: ExperimentError: weights are shown for spider" in err
    code, out, _ = spider("experiment", path)
    assert (code, "0 of 1 runs done, 0 of them now, 1 failed" in out) == (0, True)
    assert "0 of 1 runs done, 0 of them now, 1 failed" in spider("experiment", path, "--retry")[1]
    assert len(lines(tmp_path / "runs" / "tiny.jsonl")) == 2


def test_errors_of_the_command_are_one_line(spider, file, tmp_path):
    (tmp_path / "other").mkdir()
    for words, reason in (
        (["nowhere.toml"], "nowhere.toml: No such file"),
        ([file("[[grid]]\n", "empty.toml")], "grid 1: no method"),
        ([file(TINY), file(TINY, "other/tiny.toml")], "two files have the same name"),
    ):
        code, out, err = spider("experiment", *words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert reason in err


# Forked from a process that has imported everything, and so are the processes of its pool.
COMMAND = """
import multiprocessing, sys
from spidertensor_study import cli, grid
grid.get_context = lambda _: multiprocessing.get_context("fork")
cli.main(sys.argv[1:])
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_stopped_at_any_moment_it_loses_nothing_and_repeats_nothing(file, tmp_path, how):
    path = file(TINY.replace("[0, 1]", str(list(range(30)))))
    out = tmp_path / "runs" / "tiny.jsonl"
    command = partial(
        forked.Spider, "experiment", path, "--out", out.parent, "--jobs", 2, program=COMMAND, text=True
    )
    process = command()
    while process.poll() is None and (not out.exists() or out.read_text().count("\n") < 2):
        time.sleep(0.02)
    process.send_signal(how)
    _, said = process.communicate()
    assert process.returncode == (130 if how == signal.SIGINT else -how)
    assert how == signal.SIGKILL or "the same command continues" in said
    kept = lines(out)
    assert 2 <= len(kept) < 60
    again = command()
    _, said = again.communicate()
    assert again.returncode == 0, said
    rows = lines(out)
    assert rows[: len(kept)] == kept
    assert len({identity(each["settings"]) for each in rows}) == len(rows) == 60, said


def test_results_of_an_experiment_that_cannot_be_written_are_named():
    full = open("/dev/full", "a", encoding="utf-8")  # noqa: SIM115 (closing it fails, too)
    with pytest.raises(OSError, match="No space") as caught:
        rows.Results([], full).append({"settings": {}})
    with contextlib.suppress(OSError):
        full.close()
    assert caught.value.filename == "/dev/full"
