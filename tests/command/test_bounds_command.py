"""`--bounds`: predictions that stay on the scale, in the commands and behind the service."""

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
    ids = rng.integers((8, 6), size=(800, 2)).tolist()
    f = np.array([3 + 3 * (a % 3 - 1) + 1.5 * (b % 3 - 1) for a, b in ids])
    values = np.clip(f + rng.normal(size=800) / 3, 1, 5).tolist()
    lines = [f"u{a},m{b},{value:.3f}" for (a, b), value in zip(ids, values, strict=True)]
    path = tmp_path / "stars.csv"
    path.write_text("\n".join(["user,movie,stars", *lines, "u1,m1,55", ""]))
    return path


def test_fit_resume_and_predict(file):
    model, out = file.with_name("stars.spider"), file.with_name("out.csv")
    refused = spider("fit", file, *OPTIONS, "--bounds", "1,5", "--model", model)
    assert "line 802: stars 55 is not between the bounds 1 and 5" in str(refused.exception)
    said = file.with_name("said.csv")
    how = ("--bounds", "1,5", "--on-bad", "file", "--predictions", said, "--force")
    fitted = spider("fit", file, *OPTIONS, *how, "--model", model)
    assert fitted.exit_code == 0, fitted.output
    (rejected,) = file.with_name("stars.rejects.jsonl").read_text().splitlines()
    assert json.loads(rejected)["reason"] == "stars 55 is not between the bounds 1 and 5"
    again = spider("fit", file, *OPTIONS[:4], "--resume", "--bounds", "0,5", "--model", model)
    assert "has bounds (1.0, 5.0)" in str(again.exception)
    asked = spider("predict", model, file, "--interval", "0.9", "--out", out, "--on-bad", "skip")
    assert asked.exit_code == 0, asked.output
    for written, columns in ((said, ["mean"]), (out, ["mean", "low", "high"])):
        with written.open() as rows:
            found = [[float(row[name]) for name in columns] for row in csv.DictReader(rows)]
        assert (np.min(found), np.max(found)) == (1, 5)
    assert spidertensor.load(model).settings_["bounds"] == [1, 5]


def test_values_seen(file):
    ids = np.random.default_rng(0).integers((9, 9), size=(900, 2)).tolist()
    sums = [(a, b, a % 3 + b % 3) for a, b in ids]
    file.write_text("\n".join(["user,movie,stars", *(f"{a},{b},{f}" for a, b, f in sums if f not in (0, 4))]))
    for name, bounds in (("free", ()), ("seen", ("--bounds", "seen"))):
        fitted = spider("fit", file, *OPTIONS, *bounds, "--model", file.with_name(name))
        assert fitted.exit_code == 0, fitted.output
    asked = [(a, b) for a in range(9) for b in range(9)]
    free, seen = (spidertensor.load(file.with_name(name)).predict(asked) for name in ("free", "seen"))
    assert free.min() < 1 < 3 < free.max()
    assert np.array_equal(seen, free.clip(1, 3))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--bounds", "5,1"), "--bounds takes the lowest and the highest value"),
        (("--bounds", "1,5", "--counts"), "--bounds is for continuous values"),
        (("--bounds", "1,5", "--levels", "1,2,3"), "--bounds is for continuous values"),
        (("--bounds", "1,5", "--binary"), "--bounds is for continuous values"),
    ],
)
def test_bounds_that_make_no_sense(file, given, words):
    assert words in str(spider("fit", file, *OPTIONS, *given).exception)
