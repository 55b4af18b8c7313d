"""`spider recommend`: what it refuses before it writes, what it shows, how it cuts a long list of rows."""
# ruff: noqa: F811 (fixtures of another file)

from __future__ import annotations

import csv

import pytest
from test_recommend_many import model, spider  # noqa: F401

import spidertensor
from spidertensor.cli import recommend as command

ONE = ("--given", "user=u1", "--given", "category=c1")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((*ONE, "--interval", "2"), "--interval"),
        ((*ONE, "--json", "--out", "out.jsonl"), "--json is for one ranking"),
        ((*ONE, "--exclude", "seen.csv", "--out", "seen.csv"), "the same file"),
        ((*ONE, "--out", "nowhere/out.csv"), "nowhere"),
        ((*ONE, "--given-file", "gone.csv", "--out", "nowhere/out.csv"), "nowhere"),
    ],
)
def test_what_is_refused_before_anything_is_written(spider, tmp_path, arguments, reason):
    (tmp_path / "seen.csv").write_text("product\n1\n")
    code, out, err = spider(*arguments)
    assert (code, out) == (2, "")
    assert reason in err.splitlines()[-1]
    assert (tmp_path / "seen.csv").read_text() == "product\n1\n"
    assert sorted(path.name for path in tmp_path.glob("out*")) == []


def test_a_table_says_for_whom_and_by_what_it_ranks(spider):
    code, out, err = spider(*ONE)
    assert (code, err) == (0, "")
    title, *rest = [line.strip() for line in out.splitlines() if line.strip()]
    assert title == "user=u1, category=c1; ranked by mean"
    assert rest[0].split() == ["product", "mean", "std"]
    best = model().recommend({"user": "u1", "category": "c1"}, "product")
    rows = [line.split() for line in rest if line.split()[0].isdigit()]
    assert rows == [[str(each.id), f"{each.mean:.4g}", f"{each.std:.4g}"] for each in best]
    assert len(rows) == 10


def test_without_anything_given_only_the_order_is_told(spider, tmp_path):
    (tmp_path / "all.csv").write_text("product,user,category\n3,u1,c1\n4,u2,c2\n")
    code, out, _ = spider("--candidates", "all.csv", "--explore", "ucb")
    assert code == 0
    assert out.split("\n")[0].strip() == "ranked by the mean of f plus two std"
    code, out, err = spider("--candidates", "all.csv", "--out", "out.csv", "--spreadsheet-safe")
    assert (code, out, err) == (0, "", "2 recommendations for 1 row\n")


def test_an_unseen_id_is_noted(spider):
    assert "user=nobody was never seen" in spider("--given", "user=nobody", "--given", "category=c1")[2]


def test_rows_are_ranked_in_parts_with_what_is_given_for_all(spider, tmp_path, monkeypatch):
    (tmp_path / "five.csv").write_text("user\n" + "".join(f"u{n}\n" for n in range(5)))
    whole = spider("--given-file", "five.csv", "--given", "category=c1", "-n", 2)
    rows = list(csv.DictReader(whole[1].splitlines()))
    assert [(row["user"], row["category"], row["rank"]) for row in rows] == [
        (f"u{n}", "c1", rank) for n in range(5) for rank in "12"
    ]
    monkeypatch.setattr(command, "AT_ONCE", 2)
    assert spider("--given-file", "five.csv", "--given", "category=c1", "-n", 2) == whole


def test_a_mode_without_nodes_has_nothing_to_recommend(spider, tmp_path):
    fitted = spidertensor.load(tmp_path / "m.spider")
    fitted.forget("product", list(range(40)))
    fitted.save(tmp_path / "m.spider")
    code, _, err = spider(*ONE)
    assert code == 2
    assert "m.spider knows no product: all were forgotten" in err
