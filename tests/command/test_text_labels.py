"""Labels on the command line: text, numbers or truth values in a file, two of which are named by --labels."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import spidertensor
from command_line import FIT, csv_text, table

pytestmark = pytest.mark.usefixtures("folder", "warm_kernels")
BINARY = (*FIT, "--committee", "1", "--binary", "--quiet")
ROWS = [(user, movie, int(rating > 3)) for user, movie, rating in table(300)]


def named(labels: list, rows: list = ROWS) -> list:
    return [(user, movie, labels[one]) for user, movie, one in rows]


@pytest.fixture
def plain(spider, folder) -> spidertensor.SpiderClassifier:
    Path("plain.csv").write_text(csv_text(ROWS))
    spider("fit", "plain.csv", *BINARY)
    return spidertensor.SpiderClassifier.load("plain.spider")


@pytest.mark.parametrize(
    "two", [["no", "yes"], [1, 2], [-1, 1], ["stays", "churned"], ["False", "True"]], ids=str
)
def test_two_labels_are_learned_as_0_and_1(two, plain, spider):
    Path("a.csv").write_text(csv_text(named(two)))
    option = f"--labels={two[0]},{two[1]}"
    code, out, _ = spider("fit", "a.csv", *BINARY, option, "--json", "--predictions", "p.csv")
    assert (code, json.loads(out)["entries"]) == (0, 300)
    model = spidertensor.SpiderClassifier.load("a.spider")
    assert model.classes_.tolist() == sorted(two)
    assert model.positive_ == two[1]
    pairs = [row[:2] for row in ROWS]
    wanted = plain.predict_proba(pairs)[:, 1]
    np.testing.assert_array_equal(model.predict_proba(pairs)[:, sorted(two).index(two[1])], wanted)
    predicted = list(csv.DictReader(io.StringIO(spider("predict", "a.spider", "a.csv")[1])))
    np.testing.assert_allclose(
        [float(row[f"probability_of_{two[1]}"]) for row in predicted], wanted, rtol=1e-6
    )
    before = list(csv.DictReader(Path("p.csv").read_text().splitlines()))
    assert [row["rating"] for row in before] == [str(row[2]) for row in named(two)]
    assert json.loads(spider("info", "a.spider", "--json")[1])["labels"] == two
    assert f"{two[1]!r} (positive)" in spider("info", "a.spider")[1]


def test_json_and_parquet_have_types(plain, spider):
    probe = [row[:2] for row in ROWS]
    for labels, option in (([False, True], "false,true"), ([1, 2], "1,2"), ([1.0, 2.0], "1,2")):
        rows = named(labels)
        records = [dict(zip(("user", "movie", "rating"), row, strict=True)) for row in rows]
        Path("a.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
        parquet.write_table(pa.Table.from_pylist(records), "a.parquet")
        for name in ("a.jsonl", "a.parquet"):
            spider("fit", name, *BINARY, "--labels", option, "--model", "a.spider", "--force")
            model = spidertensor.SpiderClassifier.load("a.spider")
            assert model.classes_.tolist() == labels
            np.testing.assert_array_equal(model.predict_proba(probe), plain.predict_proba(probe))


def test_any_other_label_is_a_bad_row(spider, fails):
    Path("a.csv").write_text("user,movie,rating\n1,a,yes\n1,b,Yes\n2,a,\n2,b,no\n3,b,0\n")
    text = fails("fit", "a.csv", *BINARY, "--labels", "no,yes")
    assert "a.csv line 3: rating 'Yes' is not 'no' or 'yes' (" in text
    code, out, _ = spider("fit", "a.csv", *BINARY, "--labels", "no,yes", "--on-bad", "file", "--json")
    assert (code, json.loads(out)["entries"], json.loads(out)["bad_rows"]) == (0, 2, 3)
    reasons = [json.loads(line)["reason"] for line in Path("a.rejects.jsonl").read_text().splitlines()]
    assert reasons == [
        "rating 'Yes' is not 'no' or 'yes'", "rating is missing", "rating '0' is not 'no' or 'yes'",
    ]  # fmt: skip


def test_a_model_knows_its_labels(spider, fails):
    """--resume and --add need no --labels; others than those of the model are refused."""
    rows = named(["no", "yes"])
    Path("a.csv").write_text(csv_text(rows[:6]))
    spider("fit", "a.csv", *BINARY, "--labels", "no,yes")
    Path("a.csv").write_text(csv_text(rows))
    assert "has labels 'no,yes', the command says 'yes,no'" in fails(
        "fit", "a.csv", "--resume", "--binary", "--labels", "yes,no"
    )
    assert "has labels 'no,yes', the command says '0,1'" in fails(
        "fit", "a.csv", "--resume", "--binary", "--labels", "0,1"
    )
    assert spider("fit", "a.csv", "--resume", "--quiet")[0] == 0
    assert spidertensor.load("a.spider").n_entries_ == 300
    Path("b.csv").write_text(csv_text(rows[::-1]))
    assert spider("fit", "b.csv", "--add", "--model", "a.spider", "--quiet")[0] == 0
    assert spidertensor.load("a.spider").n_entries_ == 600


def test_a_file_with_one_of_the_labels_only(spider):
    Path("a.csv").write_text("user,movie,rating\n1,a,yes\n1,b,yes\n")
    assert spider("fit", "a.csv", *BINARY, "--labels", "no,yes")[0] == 0


def test_what_to_do_about_text_labels_is_said(fails, spider):
    Path("a.csv").write_text(csv_text(named(["no", "yes"])))
    assert "for labels other than 0 and 1, use --labels no,yes" in fails("fit", "a.csv", *BINARY)
    assert "use --binary --labels no,yes (the positive one last)" in fails("fit", "a.csv", *FIT)
    assert "--labels is for --binary" in fails("fit", "a.csv", *FIT, "--labels", "no,yes")
    for wrong in ("yes", "no,yes,maybe", "yes,yes", ""):
        assert "--labels takes two different labels" in fails("fit", "a.csv", *BINARY, "--labels", wrong)
    Path("b.csv").write_text(csv_text(ROWS))
    assert spider("fit", "b.csv", *BINARY, "--labels", "0,1")[0] == 0
    assert spidertensor.SpiderClassifier.load("b.spider").classes_.tolist() == [0, 1]
