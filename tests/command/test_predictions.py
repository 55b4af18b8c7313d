"""`spider fit --predictions`: every learned row once, as it was predicted, whatever interrupts the run."""

from __future__ import annotations

import csv
import io
import json
import resource
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import spidertensor
from command_line import FIT, csv_text, eventually, started, table
from spidertensor.estimator import inputs

pytestmark = pytest.mark.usefixtures("folder", "warm_kernels")
WRITE = ("--model", "m.spider", "--quiet", "--predictions")


def test_what_learn_returns(ratings, spider):
    """The same numbers as in Python, beside the row, the ids and the value."""
    rows = table()
    update = spidertensor.SpiderRegressor(rank=2, hidden=(4,)).learn(
        inputs.Columns([np.array(column) for column in list(zip(*rows, strict=True))[:2]]),
        [r[2] for r in rows],
    )
    for name in ("p.csv", "p.tsv", "p.jsonl"):
        assert spider("fit", ratings, *FIT, *WRITE, name, "--force")[0] == 0
        lines = Path(name).read_text().splitlines()
        if name == "p.jsonl":
            found = [json.loads(line) for line in lines]
        else:
            found = list(csv.DictReader(lines, delimiter="\t" if name == "p.tsv" else ","))
        assert list(found[0]) == ["row", "user", "movie", "rating", "mean", "std", "below"]
        assert [int(each["row"]) for each in found] == list(range(2, 1202))
        assert [(int(e["user"]), e["movie"], float(e["rating"])) for e in found] == rows
        wanted = {"mean": update.mean, "std": np.sqrt(update.var + update.noise), "below": update.below}
        for column, numbers in wanted.items():
            np.testing.assert_allclose([float(each[column]) for each in found], numbers, rtol=1e-5, atol=1e-6)


def test_rows_that_are_not_learned_have_no_predictions(folder, spider):
    Path("a.csv").write_text("user,movie,rating\n1,a,3\n1,b,x\n2,a,4\n")
    spider("fit", "a.csv", *FIT, *WRITE, "p.jsonl", "--on-bad", "skip", "--scaling", "3,1")
    assert [json.loads(line)["row"] for line in Path("p.jsonl").read_text().splitlines()] == [2, 4]


def test_resume_goes_on_where_the_model_does(ratings, spider, fails):
    spider("fit", ratings, *FIT, *WRITE, "whole.csv")
    whole, rows = Path("whole.csv").read_bytes(), table()
    ratings.write_text(csv_text(rows[:700]))
    spider("fit", ratings, *FIT, "--model", "n.spider", "--quiet", "--predictions", "p.csv", "--keep", "1")
    ratings.write_text(csv_text(rows))
    more = ("fit", ratings, "--model", "n.spider", "--quiet", "--resume", "--keep", "1")
    with Path("p.csv").open("ab") as file:
        file.write(b"702,1,m1,3.2,3.1")  # a crash after the last checkpoint, in the middle of a row
    assert spider(*more, "--predictions", "p.csv")[0] == 0
    assert Path("p.csv").read_bytes() == whole
    spider("rollback", "n.spider")
    assert spider(*more, "--predictions", "p.csv")[0] == 0  # the rows behind the rollback come once more
    assert Path("p.csv").read_bytes() == whole
    Path("p.csv").write_bytes(whole[:-1])
    assert "p.csv: not the predictions file that this model continues" in fails(
        *more, "--predictions", "p.csv"
    )
    Path("p.csv").write_bytes(b"x" * len(whole))
    assert "not the predictions file" in fails(*more, "--predictions", "p.csv")
    Path("p.csv").unlink()
    assert "not the predictions file" in fails(*more, "--predictions", "p.csv")
    assert spider(*more)[0] == 0  # without predictions: from here on a file would have a gap
    Path("p.csv").write_bytes(whole)
    assert "p.csv exists and does not belong to this run" in fails(*more, "--predictions", "p.csv")
    assert Path("p.csv").read_bytes() == whole


def test_a_killed_run_goes_on_without_gaps_or_repeats(folder, spider, monkeypatch):
    text = csv_text(table(900)).encode()
    Path("whole.csv").write_bytes(text)
    spider("fit", "whole.csv", *FIT, *WRITE, "wanted.csv")
    Path("m.spider").unlink()
    options = ("fit", "-", *FIT, *WRITE, "p.csv", "--checkpoint-every", "0s")
    first = started(*options)
    assert first.stdin is not None
    first.stdin.write(text[: len(text) // 3])
    first.stdin.flush()
    eventually(Path("m.spider").exists)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert spider(*options, "--resume")[0] == 0
    assert Path("p.csv").read_bytes() == Path("wanted.csv").read_bytes()


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(ratings, spider, fails):
    spider("fit", ratings, *FIT, *WRITE, "p.csv")
    whole = Path("p.csv").read_bytes()
    Path("m.spider").unlink()
    assert spider("fit", ratings, *FIT, *WRITE, "p.csv", "--resume")[0] == 0
    assert Path("p.csv").read_bytes() == whole
    Path("m.spider").unlink()
    assert "p.csv exists" in fails("fit", ratings, *FIT, *WRITE, "p.csv")
    Path("mine.csv").write_text("row,user\n")
    for option in ("--force", "--resume"):
        assert "mine.csv: not a predictions file of this model" in fails(
            "fit", ratings, *FIT, *WRITE, "mine.csv", option
        )
    assert Path("mine.csv").read_text() == "row,user\n"


def test_files_that_cannot_be_appended_to_are_refused(ratings, fails, folder):
    for name in ("p.parquet", "p.csv.gz", "p.jsonl.zst"):
        assert "must be csv, tsv or jsonl" in fails("fit", ratings, *FIT, *WRITE, name)
    assert "unknown format" in fails("fit", ratings, *FIT, *WRITE, "p.txt")
    assert "are the same file" in fails("fit", ratings, *FIT, *WRITE, "ratings.csv")
    (folder / "mean.csv").write_text("user,mean,rating\n1,2,3\n")
    fit = ("fit", "mean.csv", "--modes", "user,mean", "--value", "rating")
    assert "two columns would be called 'mean'" in fails(*fit, *WRITE, "p.csv")


def test_a_model_is_not_saved_with_more_rows_than_its_predictions_have(ratings, spider):
    """A disk that is full when the predictions are written, as a limit on the size of files makes it."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        code, _, err = spider("fit", "ratings.csv", *FIT, *WRITE, "p.csv")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 2
    assert "spider: p.csv: " in err
    assert not Path("m.spider").exists()
