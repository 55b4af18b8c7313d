"""`--levels`: ordered levels on the command line."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import spidertensor
from spidertensor.cli import app

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


@pytest.mark.parametrize("also", [("--binary",), ("--counts",), ("--scaling", "0,1")])
def test_levels_go_with_nothing_else(file, also):
    refused = spider("fit", file, *OPTIONS, "--levels", "1,2,3", *also)
    assert "--levels" in str(refused.exception)
