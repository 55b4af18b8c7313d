"""`--levels`: ordered levels on the command line."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import spidertensor
from spidertensor.cli import app, main

OPTIONS = ("--modes", "user,movie", "--value", "stars", "--committee", "1", "--passes", "1")


def spider(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture
def file(tmp_path):
    rng = np.random.default_rng(0)
    lines = [f"u{a},m{b},{1 + (a + b) % 5}" for a, b in rng.integers((8, 6), size=(300, 2)).tolist()]
    path = tmp_path / "stars.csv"
    path.write_text("\n".join(["user,movie,stars", *lines, "u1,m1,2.5", ""]))
    return path


@pytest.fixture
def run(capsys):
    """A whole command: its output, or its message if it ends with another code than 0."""

    def call(*arguments, code=0):
        with pytest.raises(SystemExit) as stopped:
            main([str(each) for each in arguments])
        out, err = capsys.readouterr()
        assert (stopped.value.code or 0) == code, err
        return err if code else out

    return call


def test_fit_resume_and_predict(file):
    model, out = file.with_name("stars.spider"), file.with_name("out.csv")
    fitted = spider("fit", file, *OPTIONS, "--levels", "5,4,3,2,1", "--on-bad", "file", "--model", model)
    assert fitted.exit_code == 0, fitted.output
    rejected = [json.loads(line) for line in file.with_name("stars.rejects.jsonl").read_text().splitlines()]
    assert [each["reason"] for each in rejected] == ["stars 2.5 is not one of the levels 1, 2, 3, 4, 5"]
    again = spider("fit", file, *OPTIONS[:4], "--resume", "--levels", "1,2,3,4,5", "--model", model)
    assert again.exit_code == 0, again.output
    asked = spider("predict", model, file, "--interval", "0.8", "--out", out, "--on-bad", "skip")
    assert asked.exit_code == 0, asked.output
    with out.open() as written:
        row = next(csv.DictReader(written))
    one = spidertensor.load(model)
    ids = [(row["user"], row["movie"])]
    chance = [float(row[f"probability_of_{level}"]) for level in range(1, 6)]
    np.testing.assert_allclose(chance, one.predict_levels(ids)[0], rtol=1e-6)
    assert float(row["mean"]) == pytest.approx(one.predict(ids)[0])
    assert (float(row["low"]), float(row["high"])) == tuple(np.ravel(one.predict_interval(ids, 0.8)))
    # floors and model are compared by the error of the mean
    assert "RMSE" in fitted.output


@pytest.mark.parametrize(
    "also",
    [
        ("--test", "0.2"),
        ("--delay", "20"),
        ("--protocol", "prequential"),
        ("--rest", "0.1", "--passes", "1"),
        ("--test", "0.2", "--passes", "2"),
    ],
)
def test_evaluate_scores_levels_by_every_protocol(file, run, also):
    how = ("evaluate", file, *OPTIONS[:6], "--levels", "1,2,3,4,5", "--on-bad", "skip", *also)
    record = json.loads(run(*how, "--json"))
    assert (record["metric"], record["bad_rows"]) == ("rmse", 1)
    once = record["passes"] == 1
    assert {"mean", "biases"} <= record["floors"].keys()
    assert ("continuous" in record["floors"]) == once
    # the level is a function of the ids
    assert record["floors"]["mean"]["log_density"] == pytest.approx(np.log(0.2), abs=0.1)
    assert record["log_density"] > record["floors"]["mean"]["log_density"]
    assert 0.2 < record["accuracy"] <= 1
    assert record["coverage_90"] >= 0.8


def test_the_table_of_levels(file, run):
    shown = run("evaluate", file, *OPTIONS[:6], "--levels", "1,2,3,4,5", "--on-bad", "skip")
    assert "log score  accuracy  RMSE of the mean" in shown
    for row in ("floor: frequencies", "floor: biases", "as continuous values"):
        assert row in shown


def test_tune_tries_settings_of_levels_and_prints_the_command(file, run):
    how = ("--levels", "5,4,3,2,1", "--on-bad", "skip", "--passes", "1")
    record = json.loads(run("tune", file, *OPTIONS[:4], *how, "--json"))
    assert "--levels 5,4,3,2,1" in record["command"]
    assert not any("clip" in trial["change"] for trial in record["trials"])
    assert all(-3 < trial["log_density"] < 0 for trial in record["trials"])


@pytest.mark.parametrize("also", [("--binary",), ("--counts",), ("--scaling", "0,1")])
def test_levels_go_with_nothing_else(file, also):
    refused = spider("fit", file, *OPTIONS, "--levels", "1,2,3", *also)
    assert "--levels" in str(refused.exception)


@pytest.mark.parametrize(
    ("command", "also", "message"),
    [
        ("evaluate", ("--levels", "1,2", "--counts"), "only one of --binary, --counts and --levels"),
        ("evaluate", ("--levels", "1,1"), "--levels takes 2 to 100 different numbers"),
        ("evaluate", ("--levels", "1,2", "--clip", "3"), "--clip is for continuous values"),
        ("evaluate", ("--levels", "1,2,3,4,5"), "2.5 is not one of the levels"),
        ("tune", ("--levels", "low,high"), "--levels takes numbers"),
        ("tune", ("--levels", "1,2", "--binary"), "only one of"),
    ],
)
def test_impossible_levels_are_refused(file, run, command, also, message):
    assert message in run(command, file, *OPTIONS[:4], *also, code=2)
