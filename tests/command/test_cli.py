"""The command, end to end: each one as a process of its own, their variants by calling `main`."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import spidertensor
from command_line import FIT, ONCE, csv_text, eventually, forked, process, started, table
from spidertensor import checkpoint, cli, sources
from spidertensor.cli import fit_loop, options, output, run
from spidertensor.cli.errors import CommandError
from spidertensor.cli.run import Run
from spidertensor.cli.signals import Signals, Stopped
from spidertensor.estimator.eviction import Numbered
from spidertensor.estimator.known import Known
from spidertensor.estimator.parameters import MEMBERS
from spidertensor.learner.scores import Scores
from spidertensor.method import Update
from spidertensor.sources import lines, parquet_file
from spidertensor.spider.likelihoods import GAUSSIAN

pytestmark = pytest.mark.usefixtures("folder", "warm_kernels")

# --- the whole way, as a user goes it


@pytest.mark.slow
def test_fit_info_predict_as_processes(ratings, folder):
    fit = process("fit", "ratings.csv", *FIT, "--model", "m.spider", "--quiet")
    assert (fit.returncode, fit.stderr) == (0, "")
    for expected in ("1,200", "nodes of user   30", "nodes of movie  20", "bad rows        0", "RMSE"):
        assert expected in fit.stdout
    info = process("info", "m.spider", "--json")
    facts = json.loads(info.stdout)
    assert (facts["kind"], facts["entries"], facts["modes"]) == (
        "SpiderRegressor", 1200, {"user": 30, "movie": 20},
    )  # fmt: skip
    (leading,) = (member for member in facts["members"] if member["leading"])
    assert len(facts["inclusion"]) == (0 if "rank" in leading["own"] else 2)  # layers, if it has a network
    assert facts["position"]["row"] == 1201
    assert facts["settings"]["hidden"] == [4]
    predicted = process("predict", "m.spider", "-", input=csv_text(table(50)))
    rows = list(csv.DictReader(io.StringIO(predicted.stdout)))
    assert predicted.stderr == "50 rows predicted, 0 of them with an unseen id\n"
    model = spidertensor.SpiderRegressor.load("m.spider")
    mean, std = model.predict([row[:2] for row in table(50)], return_std=True)
    np.testing.assert_allclose([float(row["mean"]) for row in rows], mean, rtol=1e-6)
    np.testing.assert_allclose([float(row["std"]) for row in rows], std, rtol=1e-6)
    assert [row["rating"] for row in rows] == [str(r) for _, _, r in table(50)]


def test_the_model_is_the_estimators(ratings, spider):
    """The command adds nothing of its own: same settings and entries, same model as in Python."""
    code, out, _ = spider("fit", ratings, *ONCE, "--model", "m.spider", "--json")
    summary = json.loads(out)
    rows = table()
    model = spidertensor.SpiderRegressor(rank=2, hidden=(4,), passes=1)
    value = np.array([row[2] for row in rows])
    update = model.learn([row[:2] for row in rows], value)
    loaded = spidertensor.load("m.spider")
    probe = [(3, "m4"), (5, "m1")]
    np.testing.assert_array_equal(loaded.predict(probe), model.predict(probe))
    assert summary["score"] == pytest.approx(np.sqrt(np.mean((value - update.mean) ** 2)))
    assert summary["log_evidence"] == pytest.approx(update.log_evidence.mean())
    assert summary["noise"] == pytest.approx(model.noise_)
    shift = value[: model.batch_size].mean()  # before the first entry the floor knows what the model knows
    before = np.array([shift, *(np.cumsum(value)[:-1] / np.arange(1, len(value)))])
    assert summary["floors"]["mean"] == pytest.approx(np.sqrt(np.mean((value - before) ** 2)))
    assert summary["nodes"] == {"user": 30, "movie": 20}
    assert (code, summary["entries"], summary["bad_rows"]) == (0, 1200, 0)


def test_binary(folder, spider):
    rows = [(u, m, int(r > 3)) for u, m, r in table()]
    (folder / "a.csv").write_text(csv_text(rows))
    assert spider("fit", "a.csv", *FIT, "--binary", "--model", "m.spider", "--json")[0] == 0
    code, out, _ = spider("predict", "m.spider", "a.csv")
    assert code == 0
    probability = np.array([float(row["probability"]) for row in csv.DictReader(io.StringIO(out))])
    model = spidertensor.SpiderClassifier.load("m.spider")
    np.testing.assert_allclose(probability, model.predict_proba([r[:2] for r in rows])[:, 1], rtol=1e-6)
    assert "noise" not in spider("info", "m.spider")[1]
    given = ("recommend", "m.spider", "--given", "user=3", "--over", "movie", "-n", "1")
    (best,) = json.loads(spider(*given, "--json")[1])["nodes"]
    assert best["probability"] == pytest.approx(model.predict_proba([(3, best["id"])])[0, 1])
    assert best["std_of_f"] > 0
    assert spider(*given)[1].splitlines()[1].split() == ["movie", "probability", "std", "of", "f"]
    ranked = json.loads(spider(*given[:-1], "20", "--json")[1])["nodes"]
    told = [each["probability"] for each in ranked]
    assert told == sorted(told, reverse=True)


def test_a_probability_has_no_interval(folder, spider, fails):
    (folder / "a.csv").write_text(csv_text([(u, m, int(r > 3)) for u, m, r in table(300)]))
    code, out, _ = spider("fit", "a.csv", *FIT, "--binary", "--model", "m.spider", "--json")
    assert (code, json.loads(out)["coverage_90"]) == (0, None)
    for command in (
        ("predict", "m.spider", "a.csv", "--out", "p.csv"),
        ("recommend", "m.spider", "--given", "user=3", "--over", "movie"),
    ):
        assert "m.spider predicts a probability, which has no interval" in fails(*command, "--interval", ".9")
    assert not (folder / "p.csv").exists()


# --- the committee, and intervals


def test_the_size_of_the_committee(ratings, spider):
    for more, settings in [
        (("--committee", "2"), {"committee": 2}),
        (("--committee", "1", "--clip", "none"), {"committee": 1, "inference__clip": None}),
        (("--clip", "2.5"), {"inference__clip": 2.5}),
    ]:
        assert spider("fit", ratings, *ONCE, *more, "--model", "m.spider", "--force")[0] == 0
        model, rows = (
            spidertensor.SpiderRegressor(rank=2, hidden=(4,), passes=1).set_params(**settings),
            table(),
        )
        model.learn([row[:2] for row in rows], [row[2] for row in rows])
        loaded = spidertensor.load("m.spider")
        assert loaded.get_params() == model.get_params()
        assert loaded.members_ == model.members_


def test_members(ratings, spider):
    """The first member is the model that would be there alone, and its evidence is that model's."""
    fit = ("fit", ratings, *ONCE)
    _, shown, _ = spider(*fit, "--model", "m.spider")
    members = json.loads(spider("info", "m.spider", "--json")[1])["members"]
    assert len(members) == 6
    assert members[0]["own"] == {}
    assert [member["own"] for member in members] == list(MEMBERS[:6])
    assert sum(member["weight"] for member in members) == pytest.approx(1)
    (leading,) = (number for number, member in enumerate(members) if member["leading"])
    assert members[leading]["weight"] == max(member["weight"] for member in members)
    alone = json.loads(spider(*fit, "--model", "one.spider", "--committee", "1", "--json")[1])
    assert members[0]["log_evidence"] == pytest.approx(alone["log_evidence"], rel=1e-12)
    assert [member["weight"] for member in alone["members"]] == [1]

    assert f"member {leading + 1} of 6" in shown
    assert f"leads with weight {members[leading]['weight']:.3f}" in " ".join(shown.split())
    lines_of = spider("info", "m.spider")[1].partition("\nmembers\n")[2].splitlines()[1:]
    assert [line.rstrip().endswith("leads") for line in lines_of] == [each["leading"] for each in members]
    for line, member in zip(lines_of, members, strict=True):
        assert all(f"{name}={value}" in line for name, value in member["own"].items())
        assert f" {member['weight']:.3f} " in line
        assert f" {member['log_evidence']:.4f}" in line
    assert "members" not in spider("info", "one.spider")[1]
    assert "leads" not in spider(*fit, "--model", "one.spider", "--force", "--committee", "1")[1]


def test_intervals_beside_predictions(ratings, folder, spider):
    spider("fit", ratings, *FIT, "--model", "m.spider")
    model = spidertensor.load("m.spider")
    asked = [row[:2] for row in table()]
    for name, coverage in (("p.csv", 0.9), ("p.jsonl.gz", 0.9), ("p.parquet", 0.5), ("p.tsv", 0.99)):
        command = ("predict", "m.spider", ratings, "--interval", coverage, "--out", name)
        assert spider(*command)[0] == 0
        found = sources.read(sources.source_by_name(name), ["user", "movie"], keep=True)
        records = [row for chunk in found for row in rows_of(chunk.records)]
        assert list(records[0]) == ["user", "movie", "rating", "mean", "std", "low", "high"]
        low, high = model.predict_interval(asked, coverage)
        for column, wanted in (("low", low), ("high", high), ("mean", model.predict(asked))):
            np.testing.assert_allclose([float(row[column]) for row in records], wanted, rtol=1e-6)
    out = spider("predict", "m.spider", ratings, "--interval", "0.9")[1]
    assert out == (folder / "p.csv").read_text()


def test_intervals_are_as_wide_as_the_calibration_asked_for(ratings, spider, fails):
    spider("fit", ratings, *FIT, "--passes", "2", "--model", "m.spider")
    model, asked = spidertensor.load("m.spider"), [row[:2] for row in table()]
    model.partial_fit(asked, [row[2] + user % 3 for user, row in enumerate(table())])  # larger errors
    model.save("m.spider")
    command = ("predict", "m.spider", ratings, "--interval", "0.9")
    recommend = ("recommend", "m.spider", "--given", "user=3", "--over", "movie", "--json")
    recommend = (*recommend, "--interval", "0.9")
    found = {}
    for calibration in ("next", "rest"):
        lines = spider(*command, "--calibration", calibration)[1].splitlines()
        low, high = model.predict_interval(asked, 0.9, calibration)
        found[calibration] = [line.split(",")[-2:] for line in lines[1:]]
        ends = np.array(found[calibration], float)
        np.testing.assert_allclose(ends, np.column_stack([low, high]), rtol=1e-6)
        (best, *_) = json.loads(spider(*recommend, "--calibration", calibration)[1])["nodes"]
        low, high = model.predict_interval([(3, best["id"])], 0.9, calibration)
        assert (best["low"], best["high"]) == pytest.approx((low[0], high[0]))
    assert found["next"] != found["rest"]
    for each in (command, recommend):
        told = fails(*each, "--calibration", "forecast")
        assert "the model has scored no forecast: leave out --calibration" in told
    assert "--calibration is for --interval" in fails("predict", "m.spider", ratings, "--calibration", "rest")


def rows_of(records) -> list[dict[str, Any]]:
    return records if isinstance(records, list) else records.to_pylist()


def test_intervals_of_recommendations(ratings, spider):
    spider("fit", ratings, *FIT, "--model", "m.spider")
    command = ("recommend", "m.spider", "--given", "user=3", "--over", "movie", "-n", "4")
    nodes = json.loads(spider(*command, "--interval", "0.8", "--json")[1])["nodes"]
    low, high = spidertensor.load("m.spider").predict_interval([(3, node["id"]) for node in nodes], 0.8)
    np.testing.assert_allclose([node["low"] for node in nodes], low)
    np.testing.assert_allclose([node["high"] for node in nodes], high)
    assert json.loads(spider(*command, "--json")[1])["nodes"] == [
        {name: node[name] for name in ("id", "mean", "std")} for node in nodes
    ]
    _, header, *shown = spider(*command, "--interval", "0.8")[1].splitlines()
    assert header.split() == ["movie", "mean", "std", "low", "high"]
    assert [line.split()[-2:] for line in shown] == [
        [f"{node['low']:.4g}", f"{node['high']:.4g}"] for node in nodes
    ]


def test_what_the_intervals_held(folder, spider):
    """Counted by asking for the interval of each entry just before it is learned."""
    rows = table(400)
    (folder / "a.csv").write_text(csv_text(rows))
    out = spider("fit", "a.csv", *FIT, "--scaling", "3,1", "--json", "--model", "m.spider")[1]
    model = spidertensor.SpiderRegressor(rank=2, hidden=(4,), scaling=(3.0, 1.0))
    model.learn([rows[0][:2]], [rows[0][2]])
    held = 0
    for user, movie, value in rows[1:]:
        (low,), (high,) = model.predict_interval([(user, movie)], 0.9)
        held += low <= value <= high
        model.learn([(user, movie)], [value])
    share = json.loads(out)["coverage_90"]
    assert share * 400 == pytest.approx(held, abs=1.001)  # the first one was not asked for
    assert 300 < held < 395
    assert (
        json.loads(spider("fit", "a.csv", "--resume", "--json", "--model", "m.spider")[1])["coverage_90"]
        is None
    )
    shown = spider("fit", "a.csv", *FIT, "--scaling", "3,1", "--force", "--model", "m.spider")[1]
    assert f"90% intervals contained {share:.1%} of the values" in shown


def test_refused_entries_have_no_interval():
    counted = Scores(GAUSSIAN, 1)
    value, below = np.zeros(6), np.array([0.04, 0.06, 0.5, 0.94, 0.96, np.nan])
    update = Update(value, value + 1, value + 1, value, rejected=0, refused=1, below=below)
    assert counted.coverage is None
    counted.add(value, Numbered(update, np.zeros((6, 1), np.int64)), 0.0)
    assert counted.coverage == 3 / 5


def test_advice_is_in_the_words_of_the_command(folder, spider, fails):
    """The estimators say scaling=(shift, scale); a command has an option for it."""
    (folder / "equal.csv").write_text(csv_text([(1, 2, 3), (2, 2, 3)]))
    _, _, err = spider("fit", "equal.csv", *FIT)
    assert "pass --scaling SHIFT,SCALE" in err
    assert "scaling=(" not in err
    (folder / "far.csv").write_text(csv_text([*table(), (1, "m1", 1e60)]))
    err = fails("fit", "far.csv", *FIT)
    assert "pass a suitable --scaling SHIFT,SCALE" in err
    assert "scaling=(" not in err


def test_the_floor_starts_where_the_model_does(folder, spider):
    """Values far from 0: a mean that is 0 before the first entry would make any model look good."""
    rng = np.random.default_rng(0)
    rows = [
        (int(u), int(m), 1000 + v)
        for u, m, v in zip(*rng.integers(9, size=(2, 300)), rng.normal(size=300), strict=True)
    ]
    (folder / "far.csv").write_text(csv_text(rows))
    summary = json.loads(spider("fit", "far.csv", *FIT, "--json")[1])
    assert summary["floors"]["mean"] == pytest.approx(1.0, abs=0.1)
    assert summary["score"] == pytest.approx(1.0, abs=0.15)


# --- files


@pytest.mark.parametrize("name", ["a.csv.gz", "a.tsv.zst", "a.jsonl", "a.parquet", "headless.csv"])
def test_every_format_gives_the_same_model(ratings, folder, spider, name):
    columns = dict(zip(("user", "movie", "rating"), zip(*table(), strict=True), strict=True))
    arrow = pa.table({key: list(column) for key, column in columns.items()})
    extra: tuple[str, ...] = ()
    if name == "a.csv.gz":
        (folder / name).write_bytes(gzip.compress(csv_text(table()).encode()))
    elif name == "a.tsv.zst":
        with pa.output_stream(folder / name, compression="zstd") as file:
            file.write(csv_text(table()).replace(",", "\t").encode())
    elif name == "a.jsonl":
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in arrow.to_pylist()))
    elif name == "a.parquet":
        parquet.write_table(arrow, folder / name)
    else:
        (folder / name).write_text(csv_text(table(), header=""))
        extra = ("--columns", "user,movie,rating")
    assert spider("fit", ratings, *FIT, "--model", "one.spider")[0] == 0
    assert spider("fit", name, *FIT, *extra, "--model", "two.spider")[0] == 0
    same = [
        spidertensor.load(path).predict([(1, "m1"), (2, "m2")]).tolist()
        for path in ("one.spider", "two.spider")
    ]
    assert same[0] == same[1]
    if name == "headless.csv":
        assert spider("predict", "two.spider", name, *extra)[1].startswith(
            "user,movie,rating,mean,std\n25,m12,4.036,"
        )


def test_predict_writes_every_format(ratings, folder, spider):
    spider("fit", ratings, *FIT, "--model", "m.spider")
    (folder / "a.csv").write_text('user,movie,note\n1,m1,"a, b"\n99,m2,007\n')
    code, _, err = spider("predict", "m.spider", "a.csv", "--out", "p.csv")
    assert (code, err) == (0, "2 rows predicted, 1 of them with an unseen id\n")
    assert (folder / "p.csv").read_text().startswith('user,movie,note,mean,std\n1,m1,"a, b",')
    for name in ("p.jsonl", "p.parquet", "p.tsv", "p.csv.gz", "p.jsonl.zst"):
        assert spider("predict", "m.spider", "a.csv", "--out", name)[0] == 0
    records = [json.loads(line) for line in (folder / "p.jsonl").read_text().splitlines()]
    assert records == parquet.read_table("p.parquet").to_pylist()
    assert records[0] | {"mean": 0, "std": 0} == {
        "user": "1",
        "movie": "m1",
        "note": "a, b",
        "mean": 0,
        "std": 0,
    }
    assert gzip.decompress((folder / "p.csv.gz").read_bytes()) == (folder / "p.csv").read_bytes()
    with (folder / "p.csv").open() as one, (folder / "p.tsv").open() as two:
        assert list(csv.reader(one)) == list(csv.reader(two, delimiter="\t"))
    assert records[1]["std"] > records[0]["std"]  # 99 was never seen
    assert spider("predict", "m.spider", "p.jsonl", "--out", "q.csv")[0] == 2  # has the columns already
    (folder / "b.jsonl").write_text('{"user": 1, "movie": "m1", "x": [1]}\n{"movie": "m2", "user": 2}\n')
    for name in ("q.csv", "q.parquet", "q.jsonl"):
        assert spider("predict", "m.spider", "b.jsonl", "--out", name)[0] == 0
    assert json.loads((folder / "q.jsonl").read_text().splitlines()[0])["x"] == [1]
    (folder / "c.jsonl").write_text('{"user": 1, "movie": "m1"}\n{"user": 2, "movie": "m2", "x": 1}\n')
    for name in ("r.csv", "r.parquet"):
        code, _, err = spider("predict", "m.spider", "c.jsonl", "--out", name)
        assert (code, err) == (
            2,
            "spider: a row has 'x', which the first row lacks; write jsonl instead\n",
        )
        assert not (folder / name).exists()
    assert spider("predict", "m.spider", "c.jsonl", "--out", "r.jsonl")[0] == 0
    assert not list(folder.glob(".*"))


def test_ids_are_looked_up_without_copying_the_factors(ratings, folder, spider, monkeypatch):
    spider("fit", ratings, *FIT, "--model", "m.spider")
    model = spidertensor.load("m.spider")
    model.save("p.spider")  # without a position: its ids tell which of them are text
    monkeypatch.delattr(Known, "factors_")
    (folder / "a.csv").write_text("user,movie\n1,m1\n99,m1\n99,x\n")
    for name in ("m.spider", "p.spider"):
        code, _, err = spider("predict", name, "a.csv")
        assert (code, err) == (0, "3 rows predicted, 2 of them with an unseen id\n")


# --- bad rows

BAD = "user,movie,rating\n" + "1,m1,2\n1,m2,3\n" * 150 + "1,m1,\n1,m1\n" + "2,m2,3\n" * 300 + "2,m2,1e30\n"


def test_bad_rows_by_policy(folder, spider, fails, monkeypatch):
    (folder / "bad.csv").write_text(BAD)
    assert fails("fit", "bad.csv", *FIT) == (
        "spider: bad.csv line 302: rating is missing (to skip bad rows, use --on-bad skip or file)\n"
    )
    assert not (folder / "bad.spider").exists()
    code, out, _ = spider("fit", "bad.csv", *FIT, "--on-bad", "skip", "--json")
    assert code == 0
    assert (json.loads(out)["entries"], json.loads(out)["bad_rows"]) == (600, 3)
    code, out, _ = spider("fit", "bad.csv", *FIT, "--on-bad", "file", "--force", "--json")
    records = [json.loads(line) for line in (folder / "bad.rejects.jsonl").read_text().splitlines()]
    assert [(each["row"], each["raw"]) for each in records] == [
        (302, "1,m1,"), (303, "1,m1"), (604, {"user": 2, "movie": "m2", "rating": 1e30}),
    ]  # fmt: skip
    assert records[1]["reason"] == "2 fields instead of 3"
    assert json.loads(out)["bad_rows"] == 3
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1000)  # now the first chunks are good
    code, _, err = spider("fit", "bad.csv", *ONCE, "--force")
    assert code == 2
    assert "saved bad.spider after line" in err
    assert spidertensor.load("bad.spider").n_entries_ < 300
    (folder / "pairs.csv").write_text("user,movie\n1,m1\n,m1\n")
    assert "pairs.csv line 3: user is missing" in fails(
        "predict", "bad.spider", "pairs.csv", "--out", "p.csv"
    )
    assert not (folder / "p.csv").exists()
    code, out, err = spider("predict", "bad.spider", "pairs.csv", "--on-bad", "file")
    assert (code, out.count("\n")) == (0, 2)
    assert "1 bad row skipped" in err


def rejected_rows(name="bad.rejects.jsonl") -> list[int]:
    return [json.loads(line)["row"] for line in Path(name).read_text().splitlines()]


def test_rejects_are_kept_unless_forced(folder, spider, fails):
    (folder / "bad.csv").write_text(BAD)
    command = ("fit", "bad.csv", *FIT, "--on-bad", "file")
    old = '{"source": "other.csv", "row": 900, "reason": "old", "raw": ""}\n'
    rejects = folder / "bad.rejects.jsonl"
    rejects.write_text(old)
    assert "bad.rejects.jsonl exists: use --resume" in fails(*command)
    assert "no column" in fails("fit", "bad.csv", "--modes", "a", "--value", "b", *command[-2:], "--force")
    assert rejects.read_text() == old
    assert spider(*command, "--force")[0] == 0
    assert rejected_rows() == [302, 303, 604]
    assert spider(*command, "--add", "--again")[0] == 0
    assert rejected_rows() == [302, 303, 604] * 2
    (folder / "pairs.csv").write_text("user,movie\n1,m1\n,m1\n")
    predict = ("predict", "bad.spider", "pairs.csv", "--on-bad", "file", "--rejects", rejects)
    code, _, err = spider(*predict)
    assert code == 0
    assert f"1 bad row skipped and written to {rejects}" in err
    assert rejected_rows() == [302, 303, 604, 302, 303, 604, 3]
    (folder / "bad.csv").write_text("user,movie,rating\n1,m1,2\n1,m2,3\n")
    assert spider(*command, "--force")[0] == 0
    assert rejected_rows() == []
    rejects.unlink()
    assert spider(*command, "--force")[0] == 0
    assert not rejects.exists()
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_line_of_the_rejects_comes_again(folder, spider, fails, monkeypatch, cut):
    (folder / "bad.csv").write_text(BAD)
    command = ("fit", "bad.csv", *FIT, "--on-bad", "file", "--resume")
    assert spider(*command)[0] == 0
    (folder / "bad.spider").unlink()  # the kill came before it was saved
    rejects = folder / "bad.rejects.jsonl"
    whole = rejects.read_bytes()
    kept = b'{"source": "other.csv", "row": 9, "reason": "old", "raw": ""}\n'
    rejects.write_bytes(kept + whole[:-cut])
    assert spider(*command)[0] == 0
    assert rejects.read_bytes() == kept + whole
    for foreign in (b"{}\n" + whole, b"text", b"\n" + whole, b"text\n" + whole[:-cut]):
        rejects.write_bytes(foreign)
        assert "not a file of rejected rows" in fails(*command)
        assert rejects.read_bytes() == foreign


def test_no_file_is_written_over_another(ratings, folder, fails):
    (folder / "link.csv").hardlink_to(ratings)
    before = ratings.read_bytes()
    reject = ("--on-bad", "file", "--rejects")
    for arguments in [
        ("--model", "ratings.csv"), ("--model", "link.csv"), ("--model", "m.spider", *reject, "link.csv"),
        ("--model", "m.spider", *reject, "m.spider"), ("--model", "m.spider", *reject, "./m.spider"),
    ]:  # fmt: skip
        for how in ((), ("--force",), ("--resume",)):
            assert "are the same file" in fails("fit", ratings, *FIT, *arguments, *how)
    assert ratings.read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["link.csv", "ratings.csv"]


def test_a_model_that_cannot_be_written_is_found_first(ratings, folder, fails, monkeypatch):
    monkeypatch.setattr(fit_loop, "learn_source", None)
    assert "No such file" in fails("fit", ratings, *FIT, "--model", "none/m.spider")
    assert "No such file" in fails("fit", ratings, *FIT, "--on-bad", "file", "--rejects", "none/r.jsonl")
    assert "is a folder" in fails("fit", ratings, *FIT, "--model", folder, "--force")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    assert "not writable" in fails("fit", ratings, *FIT, "--model", "m.spider")


@pytest.mark.parametrize("far", [1e30, 1e200])
def test_many_values_beyond_the_scale_are_left_out_at_once(folder, spider, monkeypatch, far):
    """Wherever they stand: among the first values, after them, in a later chunk; and the others count."""
    rows = table()
    places = [*range(300, 340), *range(900, 950)]  # 1e30 among the first would only be a large scale
    if far > 1e100:
        places = [*range(1, 50), *places]
    mixed = [(u, m, -far * (1 + i / 100) if i in places else r) for i, (u, m, r) in enumerate(rows)]
    (folder / "a.csv").write_text(csv_text(mixed))
    (folder / "good.csv").write_text(csv_text([row for i, row in enumerate(rows) if i not in places]))
    calls = []
    learn = spidertensor.SpiderRegressor._learn_numbered
    monkeypatch.setattr(
        spidertensor.SpiderRegressor,
        "_learn_numbered",
        lambda *arguments: (calls.append(1), learn(*arguments))[1],
    )
    for block, most in ((1 << 20, 3), (9000, 8)):
        monkeypatch.setattr(lines, "BLOCK_BYTES", block)
        calls.clear()
        assert spider("fit", "a.csv", *FIT, "--on-bad", "file", "--force")[0] == 0
        assert len(calls) <= most
        records = [json.loads(line) for line in (folder / "a.rejects.jsonl").read_text().splitlines()]
        assert [each["row"] for each in records] == [place + 2 for place in places]
        for record, place in zip(records, places, strict=True):
            value = mixed[place][2]
            assert record["reason"].startswith(f"value {value:g} is ")
            assert list(record["raw"].values()) == [*mixed[place][:2], value]
    assert spider("fit", "good.csv", *FIT)[0] == 0
    probe = [(1, "m1"), (2, "m2")]
    one, two = (spidertensor.load(name).predict(probe) for name in ("a.spider", "good.spider"))
    np.testing.assert_array_equal(one, two)


def test_nothing_but_bad_rows_is_an_error(folder, fails):
    (folder / "a.csv").write_text("user,movie,rating\n1,2,x\n")
    assert "no good rows" in fails("fit", "a.csv", *FIT, "--on-bad", "skip")
    assert not (folder / "a.spider").exists()


def test_values_that_do_not_vary_are_noted(folder, spider):
    (folder / "a.csv").write_text("user,movie,rating\n" + "1,2,5\n" * 10)
    code, _, err = spider("fit", "a.csv", *FIT)
    assert code == 0
    assert err.startswith("note: the first")


# --- stopping and going on


@pytest.fixture
def piped(spider, monkeypatch, folder):
    """Call the command with a text on standard input."""

    def call(text, *arguments) -> tuple[int, str, str]:
        (folder / "stdin").write_text(text)
        with (folder / "stdin").open() as file, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", file)
            return spider(*arguments)

    return call


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_pipe_stopped_by_a_signal_goes_on_as_if_it_had_never_stopped(piped, number):
    """The process waits for more input when the signal comes; after SIGKILL the last save counts."""
    text = csv_text(table(3000))
    cut = text.index("\n", len(text) // 2) - 3  # within a line
    with started("fit", "-", *FIT, "--model", "m.spider", "--checkpoint-every", "0s") as running:
        assert running.stdin is not None
        running.stdin.write(text[:cut].encode())
        running.stdin.flush()
        eventually(Path("m.spider").exists)
        running.send_signal(number)
        running.wait(60)
        message = running.stderr.read().decode() if running.stderr else ""
    if number == signal.SIGKILL:
        assert running.returncode == -number
    else:
        assert running.returncode == 128 + number
        assert f"stopped by {number.name} after line" in message
        assert "saved m.spider, continue with --resume" in message
    stopped = spidertensor.load("m.spider")
    assert 256 <= stopped.n_entries_ < 3000
    assert len(stopped.members_) == 6  # the default, with weights that have moved
    assert {member.weight for member in stopped.members_} != {1 / 6}
    assert piped(text, "fit", "-", *FIT, "--model", "m.spider", "--resume")[0] == 0
    assert piped(text, "fit", "-", *FIT, "--model", "whole.spider")[0] == 0
    assert Path("m.spider").read_bytes() == Path("whole.spider").read_bytes()


def test_a_crash_after_unsaved_rows(folder, spider, monkeypatch):
    """What was learned after the last save is learned again, once; its bad rows are rejected again, once."""
    (folder / "a.csv").write_text(csv_text(table()).replace("m7", ""))
    command = ("fit", "a.csv", *ONCE, "--on-bad", "file", "--model", "m.spider", "--checkpoint-every", "0s")
    monkeypatch.setattr(lines, "BLOCK_BYTES", 900)
    assert spider(*command)[0] == 0
    whole = [(folder / name).read_bytes() for name in ("m.spider", "m.rejects.jsonl")]
    saves = []
    save = Run.save

    def broken(self):
        saves.append(self.row)
        if len(saves) < 5:
            save(self)
        elif len(saves) == 8:
            raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(Run, "save", broken)
        with pytest.raises(ZeroDivisionError):
            cli.main([*command, "--force"])
    assert spidertensor.load("m.spider").position_["row"] == saves[3]
    assert spider(*command, "--resume")[0] == 0
    assert [(folder / name).read_bytes() for name in ("m.spider", "m.rejects.jsonl")] == whole


@pytest.mark.parametrize("error", [OSError(28, "No space left"), MemoryError(), ZeroDivisionError()])
def test_any_error_saves_what_was_learned(ratings, spider, monkeypatch, capsys, error):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 3000)
    assert spider("fit", ratings, *ONCE, "--model", "whole.spider")[0] == 0
    command = ["fit", str(ratings), *ONCE, "--model", "m.spider"]
    add = Scores.add
    learn = spidertensor.SpiderRegressor._learn_numbered
    calls = []

    def broken(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise error
        return (learn if before else add)(*arguments)

    for before in (True, False):  # the chunk at hand is learned wholly or not at all
        calls.clear()
        with monkeypatch.context() as patch:
            where = (spidertensor.SpiderRegressor, "_learn_numbered") if before else (Scores, "add")
            patch.setattr(*where, broken)
            with pytest.raises((SystemExit, type(error))):
                cli.main(command)
            assert "saved m.spider after line" in capsys.readouterr().err
        assert 256 <= spidertensor.load("m.spider").n_entries_ < 1200
        assert spider(*command, "--resume")[0] == 0
        assert Path("m.spider").read_bytes() == Path("whole.spider").read_bytes()
        Path("m.spider").unlink()


def test_a_save_that_fails_on_the_way_out_does_not_hide_the_error(ratings, spider, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 3000)
    ratings.write_text(ratings.read_text() + "1,2\n")

    def full(self):
        raise OSError(28, "No space left")

    monkeypatch.setattr(Run, "save", full)
    code, _, err = spider("fit", ratings, *ONCE, "--checkpoint-every", "never")
    assert code == 2
    assert "could not save ratings.spider: [Errno 28] No space left" in err
    assert "line 1202: 2 fields instead of 3" in err


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "-"])
def test_a_last_line_that_was_not_whole(folder, spider, piped, name):
    whole = ""

    def fit_with(more, *how) -> tuple[int, str, str]:
        nonlocal whole
        whole += more
        command = ("fit", name, *FIT, "--model", "m.spider", *how)
        if name == "-":
            return piped(whole, *command)
        with (folder / name).open("ab") as file:
            file.write(gzip.compress(more.encode()) if name.endswith("gz") else more.encode())
        return spider(*command)

    assert fit_with(csv_text(table(400)).removesuffix("\n"))[0] == 0
    assert fit_with("\n1,m1,2.5\n", "--resume")[0] == 0  # nothing but its end was missing
    assert spidertensor.load("m.spider").n_entries_ == 401
    assert fit_with("1,m2,3", "--resume")[0] == 0
    before = Path("m.spider").read_bytes()
    code, _, err = fit_with(".5\n1,m1,4\n", "--resume")
    assert (code, err.count("\n")) == (2, 1)
    assert "line 403, the last one learned, has changed since" in err
    assert Path("m.spider").read_bytes() == before


def stop_after(monkeypatch, chunks: int, number: int) -> None:
    """The signal arrives while that chunk is being learned."""
    learn = Run.learn
    calls = []

    def counted(self, chunk, rejected):
        calls.append(chunk)
        learn(self, chunk, rejected)
        if len(calls) == chunks:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Run, "learn", counted)


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.jsonl.zst", "a.parquet"])
def test_a_file_stopped_while_learning(folder, spider, monkeypatch, name):
    rows: list[dict[str, Any]]
    rows = [dict(zip(("user", "movie", "rating"), row, strict=True)) for row in table()]
    rows[500]["rating"] = rows[1100]["user"] = None
    if name == "a.parquet":
        parquet.write_table(pa.Table.from_pylist(rows), name)
    else:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        if "csv" in name:
            text = csv_text([tuple("" if x is None else x for x in row.values()) for row in rows])
        compression = sources.source_by_name(name).compression
        with pa.output_stream(name, compression=compression) as file:
            file.write(text.encode())
    monkeypatch.setattr(lines, "BLOCK_BYTES", 900)  # less than 256 rows: the first chunk is made of several
    monkeypatch.setattr(parquet_file, "BATCH_ROWS", 70)
    command = ("fit", name, *ONCE, "--on-bad", "file", "--model", "m.spider")
    assert spider(*command)[0] == 0
    model, rejects = (folder / "m.spider").read_bytes(), (folder / "m.rejects.jsonl").read_bytes()
    assert rejects.count(b"\n") == 2
    for chunks, number in ((1, signal.SIGTERM), (5, signal.SIGINT)):
        with monkeypatch.context() as patch:
            (folder / "m.spider").unlink()
            stop_after(patch, chunks, number)
            code, _, err = spider(*command, "--resume")  # there is nothing to resume: starts
            assert code == 128 + number
            assert "continue with --resume" in err
        assert spidertensor.load("m.spider").n_entries_ < 1100
        monkeypatch.setattr(lines, "BLOCK_BYTES", 1100)  # blocks that end elsewhere change nothing
        monkeypatch.setattr(parquet_file, "BATCH_ROWS", 111)
        assert spider(*command, "--resume")[0] == 0
        assert (folder / "m.spider").read_bytes() == model
        assert (folder / "m.rejects.jsonl").read_bytes() == rejects
    assert "nothing new to learn" in spider(*command, "--resume")[1]
    assert (folder / "m.spider").read_bytes() == model


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_a_save_is_not_forgotten(number):
    """A pipe may be silent for ever after, so the next wait must not begin."""
    asked = []
    with Signals() as signals:
        os.kill(os.getpid(), number)
        with pytest.raises(Stopped):
            signals.next(iter(lambda: asked.append(1), 0))
    assert (signals.caught, asked) == (number, [])


def test_a_signal_before_anything_was_learned(spider, ratings, monkeypatch):
    monkeypatch.setattr(run, "read", lambda *_, **__: iter(lambda: os.kill(os.getpid(), signal.SIGTERM), 0))
    code, _, err = spider("fit", ratings, *FIT)
    assert code == 143
    assert "nothing learned yet" in err
    assert not Path("ratings.spider").exists()


def test_appended_rows_and_another_file(ratings, folder, spider, fails):
    whole = csv_text(table(2000))
    (folder / "whole.csv").write_text(whole)
    spider("fit", "whole.csv", *ONCE, "--model", "whole.spider")
    cut = whole.index("\n", 5000) + 1
    grows = folder / "grows.csv"
    grows.write_text(whole[:cut])
    spider("fit", grows, *ONCE, "--model", "m.spider")
    with grows.open("a") as file:
        file.write(whole[cut:])
    code, out, _ = spider("fit", grows, "--model", "m.spider", "--resume", "--json")
    assert (code, json.loads(out)["entries"]) == (0, 2000)
    probe = [(1, "m1"), (4, "m5")]
    model = spidertensor.load("m.spider")
    np.testing.assert_array_equal(model.predict(probe), spidertensor.load("whole.spider").predict(probe))
    assert "has learned another source (grows.csv)" in fails(
        "fit", ratings, "--model", "m.spider", "--resume"
    )
    code, out, _ = spider("fit", ratings, "--model", "m.spider", "--add", "--json")
    assert (json.loads(out)["entries"], json.loads(out)["entries_now"]) == (3200, 1200)
    grows.write_text(whole[:3000])
    assert "has learned another source" in fails("fit", grows, "--model", "m.spider", "--resume")


def test_a_model_is_not_replaced_by_accident(ratings, folder, spider, fails):
    assert spider("fit", ratings, *FIT)[0] == 0
    model = (folder / "ratings.spider").read_bytes()
    assert "exists: use --resume" in fails("fit", ratings, *FIT)
    for other, reason in [
        (("--rank", "3"), "has rank 2, the command says 3"), (("--value", "user"), "has value 'rating'"),
        (("--modes", "movie,user"), "has modes"), (("--binary",), "has binary False"),
        (("--paper",), "has bias True"), (("--seed", "7"), "has random_state 0"),
        (("--hidden", "4,4"), "has hidden"), (("--force",), "use only one of"),
        (("--committee", "3"), "has committee 6, the command says 3"),
        (("--clip", "3"), "has clip 4.0, the command says 3.0"),
        (("--clip", "none"), "has clip 4.0, the command says None"),
    ]:  # fmt: skip
        assert reason in fails("fit", ratings, "--resume", *other)
    assert (folder / "ratings.spider").read_bytes() == model
    assert spider("fit", ratings, *FIT, "--force", "--seed", "7", "--paper")[0] == 0
    paper = spidertensor.load("ratings.spider").get_params()
    assert (paper["inference__curvature"], paper["committee"]) == (True, 1)
    assert spider("fit", ratings, *FIT, "--resume", "--seed", "7", "--paper", "--clip", "none")[0] == 0
    assert "has committee 1" in fails("fit", ratings, "--resume", "--committee", "4")


def test_a_model_from_python(ratings, folder, spider, fails):
    """Its ids are all text, so 42 on a line means the text."""
    rows = [(str(u), m) for u, m, _ in table()]
    model = spidertensor.SpiderRegressor(rank=2, hidden=(4,))
    model.learn(rows, [r for _, _, r in table()])
    model.save("m.spider")
    (folder / "pairs.csv").write_text("user,movie\n1,m1\n2,m2\n")
    assert "names 2" not in fails("predict", "m.spider", "pairs.csv")  # no column '0'
    _, _, err = spider("predict", "m.spider", "pairs.csv", "--modes", "user,movie")
    assert "0 of them with an unseen id" in err
    assert "not made by spider fit" in fails("fit", ratings, "--model", "m.spider", "--resume")
    assert "--value" in fails("fit", ratings, "--model", "m.spider", "--add")
    assert "has 2 modes" in fails("predict", "m.spider", "pairs.csv", "--modes", "user")


# --- files and data of strangers

EVIL = "\x1b]0;owned\x07\x1b[2Jm\x9b31m\u202e\r\n\x08"
SHOWN = "\\x1b]0;owned\\x07\\x1b[2Jm\\x9b31m\\u202e\\r\\n\\x08"


def is_plain(text: str) -> bool:
    """Nothing that a terminal obeys, but for the line ends of the command itself."""
    return not output._UNSAFE.search(text.replace("\n", ""))


def rewritten(path, change) -> None:
    """The same model file after `change(arrays, sections)`, with a valid checksum."""
    file = checkpoint.load(path)
    change(file.arrays, file.sections)
    checkpoint.save(path, file.arrays, file.sections)


def test_safe_texts():
    assert output.safe(EVIL) == SHOWN
    assert output.safe("\0\t\x7f\x85\u2028\u2066\ud800") == r"\x00\t\x7f\x85\u2028\u2066\ud800"
    for good in ("é", "日本", "👩‍🚀", "\\x1b", "a b", ""):
        assert output.safe(good) == good


def test_every_print_is_in_one_file():
    """So that nothing reaches a terminal around `output.safe`."""
    for path in Path(cli.__file__).parent.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        printing = re.search(r"(?<![\w.])print\(|\becho\(|sys\.std(out|err)\.write", text)
        assert path.name == "output.py" or not printing, path


@pytest.fixture
def evil(folder, spider) -> Path:
    """A model whose ids, modes, value column and source have control characters in their names."""
    names = [f"user{EVIL}", f"movie{EVIL}", f"rating{EVIL}"]
    rows = [dict(zip(names, (u, f"{m}{EVIL}", r), strict=True)) for u, m, r in table(300)]
    path = folder / f"a{EVIL}.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    options = ("--modes", ",".join(names[:2]), "--value", names[2], "--committee", "2", *FIT[4:])
    code, out, err = spider("fit", path, *options, "--model", "evil.spider")
    assert code == 0
    assert is_plain(out + err)
    assert SHOWN in out.replace("\n", "").replace(" ", "")
    return path


def test_no_escape_sequence_reaches_a_terminal(evil, folder, spider):
    user, movie = f"user{EVIL}", f"movie{EVIL}"
    (folder / "other.jsonl").write_text("{}\n")
    good = {
        "info": ("info", "evil.spider"),
        "recommend": ("recommend", "evil.spider", "--given", f"{user}=1", "--over", movie),
        "an unseen id": ("recommend", "evil.spider", "--given", f"{movie}=new{EVIL}", "--over", user),
    }
    wrong = {
        "an unknown mode": ("recommend", "evil.spider", "--given", f"{EVIL}=1", "--over", movie),
        "unknown columns": ("predict", "evil.spider", evil, "--modes", f"a{EVIL},b"),
        "no such model": ("predict", f"{EVIL}.spider", evil),
        "another source": ("fit", "other.jsonl", "--model", "evil.spider", "--resume"),
        "other modes": ("fit", evil, "--model", "evil.spider", "--resume", "--modes", f"a{EVIL},b"),
    }
    for name, arguments in (good | wrong).items():
        code, out, err = spider(*arguments)
        assert code == (0 if name in good else 2), name
        assert is_plain(out + err), name
        assert "\\x1b]0;owned\\x07" in re.sub(r"\s", "", out + err), name
        assert name != "recommend" or len(out.splitlines()) == 2 + 10
    _, out, _ = spider("info", "evil.spider", "--json")
    assert is_plain(out)
    assert json.loads(out)["modes"] == {user: 30, movie: 20}


def test_a_bad_row_shows_no_escape_sequence(ratings, folder, spider):
    assert spider("fit", ratings, *FIT, "--model", "m.spider")[0] == 0
    (folder / f"{EVIL}.jsonl").write_text(json.dumps({"user": 1, "movie": "m", "rating": EVIL}) + "\n")
    (folder / f"{EVIL}.csv").write_text(f"user,movie,rating\n1,m,{EVIL[:-3]}\n")
    for kind in ("csv", "jsonl"):
        code, out, err = spider("fit", f"{EVIL}.{kind}", "--model", "m.spider", "--add")
        assert code == 2
        assert is_plain(out + err)
        assert "\\x1b[2J" in err


def test_rows_on_a_terminal_and_in_a_pipe(ratings, folder, spider, monkeypatch):
    """A pipe gets the data as they are."""
    assert spider("fit", ratings, *FIT, "--model", "m.spider")[0] == 0
    (folder / "pairs.jsonl").write_text(json.dumps({"user": 1, "movie": EVIL}) + "\n")
    _, out, _ = spider("predict", "m.spider", "pairs.jsonl")
    assert list(csv.reader(io.StringIO(out, newline="")))[1][1] == EVIL
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    _, out, _ = spider("predict", "m.spider", "pairs.jsonl")
    assert is_plain(out)
    assert SHOWN.partition("\\n")[0] in out


def test_ids_that_cannot_be_printed(folder, spider):
    """Half of a surrogate pair, and ints of more digits than Python writes out."""
    ids = ["\ud800", 10**5000, (10**5000,), "a"]
    model = spidertensor.SpiderRegressor(rank=1, hidden=(2,)).fit([(1, each) for each in ids], range(4))
    model.save("m.spider")
    for more in ((), ("--json",)):
        code, out, _ = spider("recommend", "m.spider", "--given", "0=1", "--over", "1", *more)
        assert code == 0
        assert hex(10**5000)[:50] in out
        assert "ud800" in out


FORMULAS = ["=1", "+a", "-a", "@A1", "\t1", "\r1", "\n1", "\uff1d1", "\uff0d1", "-1+1", "+1-2", "-", "-1e"]
NO_FORMULAS = [
    "a=1",
    "-1.5",
    "+3",
    "-2e-7",
    "m1",
    "'=1",
    "",
    " =1",
    "1-1",
    "a\r=1",
    "a\n=1",
    'a"=1',
    "a,\t=1",
]


@pytest.mark.parametrize("name", ["p.csv", "p.tsv", "-"])
def test_formulas_for_a_spreadsheet(ratings, folder, spider, name):
    assert spider("fit", ratings, *FIT, "--model", "m.spider")[0] == 0
    cells = [*FORMULAS, *NO_FORMULAS]
    rows = [{"user": 1, "movie": "m1", "=note": each, "n": -3} for each in cells]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    read = {}
    for more in ((), ("--spreadsheet-safe",)):
        _, out, _ = spider("predict", "m.spider", "pairs.jsonl", "--out", name, *more)
        text = out if name == "-" else (folder / name).read_bytes().decode()
        delimiter = "\t" if name == "p.tsv" else ","
        read[bool(more)] = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    assert [row[2] for row in read[False]] == ["=note", *cells]
    assert [row[2] for row in read[True]] == ["'=note", *(f"'{each}" for each in FORMULAS), *NO_FORMULAS]
    for column in (0, 1, 3, 4, 5):  # what was a number stays one
        assert [row[column] for row in read[True]] == [row[column] for row in read[False]]


def test_only_csv_can_be_made_safe_for_a_spreadsheet(ratings, folder, spider, fails):
    assert spider("fit", ratings, *FIT, "--model", "m.spider")[0] == 0
    for name in ("p.parquet", "p.jsonl"):
        assert "--spreadsheet-safe is for csv and tsv" in fails(
            "predict", "m.spider", ratings, "--out", name, "--spreadsheet-safe"
        )
        assert not (folder / name).exists()


POSITIONS = {
    "row huge": {"row": 10**30}, "row negative": {"row": -1}, "row a float": {"row": 2.0},
    "row true": {"row": True}, "row a text": {"row": "7"}, "bad huge": {"bad": 10**30},
    "bad negative": {"bad": -1}, "bad a text": {"bad": "1"}, "source a list": {"source": ["a.csv"]},
    "head huge": {"head": {"bytes": 10**30, "sha256": "0"}},
    "head larger than any": {"head": {"bytes": 10**9, "sha256": "0"}},
    "head negative": {"head": {"bytes": -1, "sha256": "0"}}, "head a text": {"head": "x"},
    "head without bytes": {"head": {"sha256": "0"}}, "last a number": {"last": 5},
    "value a number": {"value": 3}, "all_text of one mode": {"all_text": [True]},
    "all_text of three modes": {"all_text": [True, True, True]}, "all_text of numbers": {"all_text": [1, 0]},
    "all_text a number": {"all_text": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def small_model(tmp_path_factory) -> bytes:
    """The file of a model that `spider fit` has learned from ratings.csv."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "ratings.csv").write_text(csv_text(table()))
    with pytest.raises(SystemExit) as stop:
        cli.main(["fit", f"{folder}/ratings.csv", *FIT, "--model", f"{folder}/m.spider", "--quiet"])
    assert not stop.value.code
    return (folder / "m.spider").read_bytes()


@pytest.mark.parametrize("case", POSITIONS)
def test_positions_that_no_fit_has_written(small_model, folder, ratings, spider, fails, case):
    (folder / "m.spider").write_bytes(small_model)
    rewritten("m.spider", lambda arrays, sections: sections["position"].update(POSITIONS[case]))
    assert "not made by spider fit" in fails("fit", ratings, "--model", "m.spider", "--resume")
    assert spider("info", "m.spider")[0] == 0
    assert spider("info", "m.spider", "--json")[0] == 0
    assert spider("predict", "m.spider", ratings)[0] == 0
    assert spider("fit", ratings, "--model", "m.spider", "--add", "--value", "rating")[0] == 0


@pytest.mark.parametrize(
    "position", [7, "x", [1, 2], {"row": 1}, {"bad": [], "row": "x", "source": 1}], ids=str
)
def test_any_position_can_be_shown(small_model, folder, spider, position):
    (folder / "m.spider").write_bytes(small_model)
    rewritten("m.spider", lambda arrays, sections: sections.update(position=position))
    code, out, _ = spider("info", "m.spider")
    assert code == 0
    assert str(position) in out


# --- a network of one's own

NETWORKS = """
import jax.numpy as jnp
from spidertensor import CustomNetwork

def tiny(weights, x):
    return weights[1] @ jnp.tanh(weights[0] @ jnp.concatenate(x) / 2) / 2

net = CustomNetwork(tiny, ((3, 4), (3,)))
other = CustomNetwork(tiny, ((4, 4), (4,)))
"""


@pytest.mark.slow
def test_a_network_of_ones_own(ratings, folder, spider, fails):
    pytest.importorskip("jax", reason="the vectorized engine needs the extra jax")
    (folder / "my_networks.py").write_text(NETWORKS)
    (folder / "broken.py").write_text("import my_networks\nx = 1 / 0\n")
    (folder / "lost.py").write_text("import no_such_thing\n")
    fit = (*FIT[:6], "--batch-size", "64", "--committee", "2", "--quiet")
    network = ("--network", "my_networks:net")
    path = list(sys.path)
    several = json.loads(spider("fit", ratings, *fit, *network, "--model", "whole.spider", "--json")[1])
    assert len(several["history"]["errors"]) > 1
    assert sys.path == path
    # 641 lines are 640 rows, ten whole batches: the cut of a call elsewhere would cut a batch
    fit = (*fit, "--passes", "1")
    assert spider("fit", ratings, *fit, *network, "--model", "whole.spider", "--force")[0] == 0
    (folder / "part.csv").write_text("".join(ratings.read_text().splitlines(keepends=True)[:641]))
    spider("fit", "part.csv", *fit, *network, "--model", "part.spider")
    os.replace(ratings, "part.csv")
    resume = ("fit", "part.csv", *fit, *network, "--model", "part.spider", "--resume")
    assert "the command says 'sequential'" in fails(*resume, "--engine", "sequential")
    assert spider(*resume)[0] == 0
    whole, part = (spidertensor.checkpoint.load(name) for name in ("whole.spider", "part.spider"))
    assert part.sections["model"] == whole.sections["model"]
    for name, array in whole.arrays.items():
        np.testing.assert_allclose(part.arrays[name], array, rtol=1e-3, atol=1e-4)

    assert "1,200 rows" in spider("predict", "whole.spider", "part.csv", *network, "--out", "p.csv")[2]
    done = spider("recommend", "whole.spider", "--given", "user=3", "--over", "movie", "-n", "2", *network)
    assert done[0] == 0
    facts = json.loads(spider("info", "whole.spider", "--json")[1])
    assert facts["settings"]["network"] == {"name": "tiny", "shapes": [[3, 4], [3]]}
    assert facts["settings"]["engine"] == "vectorized"
    assert not {"hidden", "activation"} & facts["settings"].keys()
    assert spider("info", "whole.spider", *network)[0] == 0

    predict, fresh = ("predict", "whole.spider", "part.csv"), ("fit", "part.csv", *fit, "--model", "x.spider")
    for arguments, reason in [
        (predict, "'tiny', with weights of shapes ((3, 4), (3,)), and a file holds no code"),
        ((*predict, "--network", "my_networks:other"), "not CustomNetwork(shapes=((4, 4), (4,))"),
        ((*predict, "--network", "my_networks"), "takes MODULE:NAME"),
        ((*predict, "--network", "my_networks:none"), "my_networks has no 'none'"),
        ((*predict, "--network", "my_networks:tiny"), "a function, not a CustomNetwork"),
        ((*predict, "--network", "no_such_thing:net"), "no module 'no_such_thing'"),
        ((*predict, "--network", "lost:net"), "ModuleNotFoundError: No module named 'no_such_thing'"),
        ((*predict, "--network", "broken:net"), "ZeroDivisionError: division by zero"),
        (("info", "whole.spider", "--network", "my_networks:other"), "not CustomNetwork"),
        ((*fresh, *network, "--engine", "sequential"), "a custom network needs the vectorized engine"),
        ((*fresh, *network, "--hidden", "4"), "--network replaces --hidden"),
        ((*fresh, "--engine", "steam"), "steam"),
        ((*fresh, *network, "--rank", "3"), "fails on weights of shapes"),
        (("fit", "part.csv", "--model", "whole.spider", "--add"), "a file holds no code"),
    ]:  # fmt: skip
        assert reason in fails(*arguments), arguments


def test_a_file_imports_nothing(ratings, folder, spider, fails):
    """The name in a model file is only shown, whatever it looks like."""
    spider("fit", ratings, *FIT, "--model", "m.spider")
    file = spidertensor.checkpoint.load("m.spider")
    network = {"name": "evil:net", "shapes": [[4, 5], [1, 5]]}
    file.sections["model"]["params"] |= {"engine": "vectorized", "network": network, "hidden": [50, 50]}
    spidertensor.checkpoint.save("m.spider", file.arrays, file.sections)
    (folder / "evil.py").write_text("open('ran', 'w')\n")
    assert "'evil:net'" in fails("predict", "m.spider", ratings)
    assert "evil:net" in spider("info", "m.spider")[1]
    assert not Path("ran").exists()


# --- mistakes


def test_mistakes_are_one_line(ratings, folder, spider, fails):
    (folder / "broken.spider").write_bytes(b"nothing")
    spider("fit", ratings, *FIT, "--model", "m.spider")
    damaged = bytearray((folder / "m.spider").read_bytes())
    damaged[-100] ^= 1
    (folder / "damaged.spider").write_bytes(damaged)
    (folder / "text.txt").write_text("no line end")
    (folder / "semicolons.csv").write_text("user;movie;rating\n1;2;3\n")
    (folder / "headless.csv").write_text("1,2,3\n")
    (folder / "tabs.csv").write_text("user\tmovie\trating\n1\t2\t3\n")
    (folder / "twice.csv").write_text("user,movie,mean\n1,2,3\n")
    (folder / "low.csv").write_text("user,movie,low\n1,2,3\n")
    assert spider("predict", "m.spider", "low.csv")[0] == 0
    ranked = ("recommend", "m.spider", "--given", "user=1", "--over", "movie")
    for arguments, reason in [
        (("fit", "none.csv", *FIT), "none.csv: No such file or directory"),
        (("fit", "semicolons.csv", *FIT), "the columns are separated by ';': name it with --delimiter"),
        (("fit", "tabs.csv", *FIT), "separated by '\\t': use --format tsv"),
        (("fit", "headless.csv", *FIT, "--columns", "a,b,c"), "no column 'user' (there are: a, b, c)"),
        (("fit", "headless.csv", *FIT), "if the first line is not a header, name the columns with --columns"),
        (("fit", ratings, *FIT, "--model", "typo.spider", "--add"), "typo.spider: no such model to add to"),
        (("predict", "m.spider", "twice.csv"), "already has a column 'mean'; rename or drop it first"),
        (("predict", "m.spider", ratings, "--out", "no/p.csv"), "its folder must exist"),
        (("fit", ".", *FIT), "unknown format"),
        (("fit", ratings, "--value", "rating"), "a new model needs --modes and --value"),
        (("fit", ratings, "--modes", "user,film", "--value", "rating"), "no column 'film' (there are: user"),
        (("fit", ratings, *FIT, "--activation", "cubic"), "cubic"),
        (("fit", ratings, *FIT, "--rank", "0,8"), "rank"),
        (("fit", ratings, *FIT, "--rank", "1,2,3"), "rank"),
        (("fit", ratings, *FIT, "--rank", "two"), "--rank takes numbers"),
        (("fit", ratings, *FIT, "--checkpoint-every", "soon"), "a time looks like 30s"),
        (("fit", ratings, *FIT, "--binary"), "is not 0 or 1"),
        (("fit", ratings, *FIT, "--binary", "--scaling", "1,2"), "--scaling is for continuous values"),
        (("fit", ratings, *FIT, "--scaling", "0,0"), "two numbers, a shift and a positive scale"),
        (("fit", ratings, *FIT, "--scaling", "nan,1"), "--scaling takes two numbers"),
        (("fit", ratings, *FIT, "--scaling", "3"), "--scaling takes two numbers"),
        (("fit", ratings, *FIT, "--binary", "--clip", "3"), "--clip is for continuous values"),
        (("fit", ratings, *FIT, "--clip", "-3"), "clip must be a positive number"),
        (("fit", ratings, *FIT, "--clip", "few"), "--clip takes a number of standard deviations or none"),
        (("fit", ratings, *FIT, "--committee", "0"), "committee must be a number of members from 1"),
        (("fit", ratings, *FIT, "--committee", "99"), "committee must be a number of members from 1"),
        (("fit", ratings, *FIT, "--committee", "all"), "--committee"),
        (("fit", ratings, *FIT, "--model", "no/such/folder.spider"), "No such file or directory"),
        (("fit", ratings, "--on-bad", "ignore"), "--on-bad"),
        (("fit",), "SOURCE"),
        (("fly",), "fly"),
        (("info", "none.spider"), "none.spider: No such file or directory"),
        (("info", "broken.spider"), "broken.spider: not a spidertensor checkpoint"),
        (("predict", "damaged.spider", ratings), "the checksum does not match"),
        (("predict", "m.spider", ratings, "--out", ratings), "SOURCE and --out are the same file"),
        (("predict", "m.spider", ratings, "--out", "p.txt"), "unknown format"),
        (("predict", "m.spider", ratings, "--on-bad", "file", "--rejects", ratings), "are the same file"),
        (("predict", "m.spider", ratings, "--on-bad", "file", "--rejects", "text.txt"), "not a file of"),
        (("predict", "m.spider", ratings, "--on-bad", "file", "--rejects", "m.spider"), "are the same file"),
        (("predict", "m.spider", "low.csv", "--interval", "0.9"), "already has a column 'low'"),
        (("predict", "m.spider", ratings, "--interval", "0"), "a probability between 0 and 1"),
        (("predict", "m.spider", ratings, "--interval", "90"), "a probability between 0 and 1"),
        (("predict", "m.spider", ratings, "--interval", "nan"), "a probability between 0 and 1"),
        (("predict", "m.spider", ratings, "--interval", "wide"), "--interval"),
        ((*ranked, "--interval", "1"), "a probability between 0 and 1"),
        (("recommend", "m.spider", "--given", "user", "--over", "movie"), "takes mode=id"),
        (("recommend", "m.spider", "--given", "who=1", "--over", "movie"), "has no mode 'who'"),
        (("recommend", "m.spider", "--given", "user=1", "--over", "user"), "cannot be both given and ranked"),
        (("evaluate", "synthetic", "--method", "static-biases", "--protocol", "prequential"), "no prequ"),
        (("evaluate", "synthetic", "--test", "clean"), "has no test 'clean'"),
    ]:  # fmt: skip
        assert reason in fails(*arguments), arguments
    assert spidertensor.load("m.spider").n_entries_ == 1200


def in_bash(command: str) -> subprocess.CompletedProcess[str]:
    command = command.replace("spider", f"{sys.executable} -W error -m spidertensor", 1)
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_pipes_of_the_shell(ratings, spider):
    """A pipe with a name, of which nothing may be lost by looking; and a reader that stops reading."""
    done = in_bash(f"spider fit <(cat ratings.csv) --format csv {' '.join(FIT)} --model m.spider --json -q")
    assert json.loads(done.stdout)["entries"] == 1200
    Path("many.csv").write_text(csv_text(table() * 20))
    done = in_bash("spider predict m.spider many.csv | head -n 2")
    assert done.stdout.startswith("user,movie,rating,mean,std\n")
    assert done.stderr == ""


# --- the other commands


def test_recommend(ratings, spider):
    spider("fit", ratings, *FIT, "--model", "m.spider")
    done = forked("recommend", "m.spider", "--given", "user=3", "--over", "movie", "-n", "4", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    model = spidertensor.load("m.spider")
    movies = sorted((f"m{m}" for m in range(20)), key=lambda m: -model.predict([(3, m)])[0])
    assert [each["id"] for each in answer["nodes"]] == movies[:4]
    assert done.stderr == ""
    code, _, err = spider("recommend", "m.spider", "--given", "user=999", "--over", "movie")
    assert (code, err) == (0, "note: user=999 was never seen: predicted from the prior\n")
    for explore in ("ucb", "thompson"):
        arguments = ("--given", "user=3", "--over", "movie", "-n", "3", "--explore", explore, "--seed", "1")
        code, out, _ = spider("recommend", "m.spider", *arguments)
        title, header, *nodes = out.splitlines()
        assert (code, header.split()) == (0, ["movie", "mean", "std"])
        assert title.startswith("user=3; ranked by ")
        ranked = model.recommend({"user": 3}, "movie", n=3, explore=explore, seed=1)
        assert [line.split()[0] for line in nodes] == [each.id for each in ranked]


def test_predict_to_a_dash_is_standard_output(spider, ratings, folder):
    assert spider("fit", ratings, *FIT, "--model", "m.spider")[0] == 0
    code, out, _ = spider("predict", "m.spider", ratings, "--out", "-")
    assert code == 0
    assert out == spider("predict", "m.spider", ratings)[1]
    assert not (folder / "-").exists()


@pytest.mark.slow
def test_evaluate(spider):
    done = forked("evaluate", "synthetic", "--rank", "3", "--json")
    record = json.loads(done.stdout)
    wanted = ["dataset", "method", "rank", "batch_size", "seed", "protocol", "metric", "score", "log_density"]
    wanted += ["coverage_50", "coverage_90", "seconds", "entries_per_second", "rejected", "floors"]
    assert set(wanted) <= record.keys()
    assert [record[key] for key in wanted[:7]] == ["synthetic", "spider", 3, 256, 0, "held-out", "rmse"]
    assert (record["test"], record["engine"], record["learning_rate"]) == ("paper", "sequential", None)
    shares = [f"{kind}_{percent}" for kind in ("coverage", "calibrated") for percent in (50, 80, 90, 95, 99)]
    assert all(0 < record[key] < 1 for key in shares)
    assert len(record["members"]) == 6
    assert record["score"] < record["floors"]["biases"]["score"] < record["floors"]["mean"]["score"] * 1.1
    assert set(record["floors"]) == {"mean", "biases", "static-biases"}
    code, out, _ = spider("evaluate", "synthetic", "--protocol", "prequential", "--method", "biases")
    assert code == 0
    assert "the first tenth of the stream, 3,000 entries, is learned but not scored" in " ".join(out.split())
    assert "floor: mean" in out
    assert "static" not in out
    again = json.loads(spider("evaluate", "synthetic", "--method", "mean", "--json")[1])
    assert again["score"] == record["floors"]["mean"]["score"]
    assert again["score"] == again["floors"]["mean"]["score"]


def test_evaluate_shows_calibrated_coverage_beside_the_plain_one(spider, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ("evaluate", "synthetic", "--protocol", "prequential")
    record, (code, out, _) = json.loads(spider(*arguments, "--json")[1]), spider(*arguments)
    assert code == 0
    for percent in (50, 90):
        both = f"{record[f'coverage_{percent}']:.1%}, calibrated {record[f'calibrated_{percent}']:.1%}"
        assert f"coverage of {percent} % intervals {both}" in " ".join(out.split())
    ends = [f"{record[f'calibrated_90_{end}']:.1%}" for end in ("lowest", "highest")]
    assert f"calibrated {ends[0]} to {ends[1]}" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    out = spider("evaluate", "synthetic", "--method", "biases")[1]
    assert "coverage of 90 % intervals" in out
    assert "calibrated" not in out
    assert "worst windows" not in out


@pytest.mark.slow
def test_demo():
    done = forked("demo", "--entries", "2000", "--out", "shown")
    assert done.returncode == 0, done.stderr
    assert list(Path("shown").glob("*.spider"))


def test_help_version_and_no_arguments(spider):
    done = process("--version")
    assert done.stdout == f"spider {spidertensor.__version__}\n"
    code, out, _ = spider()
    assert code == 0
    assert "spider fit ratings.csv" in out
    for command in ("fit", "predict", "recommend", "info", "evaluate"):
        code, out, _ = spider(command, "--help")
        assert code == 0
        assert f" spider {command} " in out.partition("Options")[0].partition("Usage")[2].partition("\n")[2]


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_fits_a_terminal_and_names_no_types(spider, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = spider(*command.split(), "--help")
    assert code == 0
    assert "<bool>" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_every_command_is_listed_with_a_whole_sentence(spider, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    listed = spider("--help")[1].partition("Commands:")[2]
    for command in cli.COMMANDS:
        assert (f"\n  {command} " in listed) == (command != "docs")
    assert "..." not in listed


def test_counted():
    assert [output.counted(n, "row") for n in (0, 1, 2000)] == ["0 rows", "1 row", "2,000 rows"]


def test_the_command_starts_quickly():
    """Parsing the command line loads none of the heavy libraries."""
    heavy = "numpy numba scipy sklearn pyarrow pandas matplotlib jax"
    code = f"import sys, spidertensor.cli; print([m for m in {heavy.split()} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_reference_is_up_to_date(spider):
    """If this fails: spider docs > docs/command.md"""
    page = Path(__file__).resolve().parents[2] / "docs" / "command.md"
    assert spider("docs")[1] == page.read_text()


def test_words():
    assert options.words(" a, b c ,,d") == ["a", "b c", "d"]
    assert [options.seconds(text) for text in ("30s", "5m", "1.5h", "7", "never")] == [
        30,
        300,
        5400,
        7,
        math.inf,
    ]
    with pytest.raises(CommandError):
        options.seconds("-1s")
    assert output.plain({"a": [np.float64("nan"), np.int64(3), "x"]}) == {"a": [None, 3, "x"]}
