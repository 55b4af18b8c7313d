"""`spider recommend`: what it refuses before it writes, what it shows, how it cuts a long list of rows."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from pyarrow import parquet

import spidertensor
from products import CATEGORIES, SMALL, TABLE, model
from spidertensor import Recent, SpiderRegressor, cli
from spidertensor.cli import recommend as command

ONE = ("--given", "user=u1", "--given", "category=c1")


@pytest.fixture
def spider(folder, capsys):
    """Run `spider recommend` beside a model and files of products and users."""
    model().save("m.spider")
    (folder / "products.csv").write_text(
        "price,category,product\n"
        + "".join(f"1,{category},{product}\n" for product, category in CATEGORIES.items())
    )
    (folder / "users.csv").write_text("age,user\n30,u1\n40,u2\n")

    def run(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main(["recommend", "m.spider", "--over", "product", *map(str, arguments)])
        return stopped.value.code, *capsys.readouterr()

    return run


def wanted(users, n=3, **how):
    many = model().recommend_many({"user": users}, "product", n, candidates=TABLE, **how)
    return [
        (user, rank, *each[:3])
        for user, best in zip(users, many, strict=True)
        for rank, each in enumerate(best, 1)
    ]


@pytest.mark.parametrize("name", ["out.csv", "out.parquet", "out.jsonl.gz"])
def test_a_file_of_users(spider, tmp_path, name):
    code, out, err = spider(
        "--given-file", "users.csv", "--candidates", "products.csv", "-n", 3, "--out", name
    )
    assert (code, out) == (0, "")
    assert err == "6 recommendations for 2 rows\n"
    if name.endswith("parquet"):
        found = [tuple(row.values()) for row in parquet.read_table(tmp_path / name).to_pylist()]
    else:
        from spidertensor import sources

        chunks = list(
            sources.read(sources.source_by_name(str(tmp_path / name)), ["user", "rank", "product"], "mean")
        )
        found = list(zip(*chunks[0].columns, chunks[0].values, strict=True))
    expected = wanted(["u1", "u2"])
    assert [tuple(row[:3]) for row in found] == [row[:3] for row in expected]
    np.testing.assert_allclose([row[3] for row in found], [row[3] for row in expected], rtol=1e-6)


def test_several_modes_from_a_file_and_csv_to_standard_output(spider, tmp_path):
    (tmp_path / "both.csv").write_text("category,user\nc1,u1\nc2,nobody\n")
    code, out, err = spider("--given-file", "both.csv", "-n", 2, "--interval", 0.9)
    assert code == 0
    rows = list(csv.DictReader(out.splitlines()))
    assert list(rows[0]) == ["user", "category", "rank", "product", "mean", "std", "low", "high"]
    many = model().recommend_many({"user": ["u1", "nobody"], "category": ["c1", "c2"]}, "product", 2)
    assert [row["product"] for row in rows] == [str(each.id) for best in many for each in best]
    assert all(float(row["low"]) < float(row["mean"]) < float(row["high"]) for row in rows)
    assert "note: 1 of 2 rows with an unseen id: predicted from the prior" in err
    part = spider("--given-file", "both.csv", "--given", "category=c1", "-n", 2)[1]
    assert {row["category"] for row in csv.DictReader(part.splitlines())} == {"c1"}


def test_candidates_and_exclusions_from_files(spider, tmp_path):
    (tmp_path / "some.csv").write_text("product\n3\n5\n7\n999\n")
    code, out, err = spider(
        "--given", "user=u1", "--given", "category=c3", "--candidates", "some.csv", "--json"
    )
    assert code == 0
    assert {each["id"] for each in json.loads(out)["nodes"]} == {3, 5, 7, 999}
    assert "note: 1 of 4 candidates with an unseen id" in err
    best = wanted(["u1", "u2"], 2)
    (tmp_path / "seen.csv").write_text(f"when,product,user\n1,{best[0][2]},u1\n2,{best[2][2]},u1\n")
    arguments = ("--given-file", "users.csv", "--candidates", "products.csv", "-n", 2)
    rows = list(csv.DictReader(spider(*arguments, "--exclude", "seen.csv")[1].splitlines()))
    exclude = {"user": ["u1", "u1"], "product": [best[0][2], best[2][2]]}
    expected = wanted(["u1", "u2"], 2, exclude=exclude)
    assert [(row["user"], row["product"]) for row in rows] == [(row[0], str(row[2])) for row in expected]
    (tmp_path / "all.csv").write_text("product\n" + "".join(f"{product}\n" for product in CATEGORIES))
    code, out, err = spider("--given", "user=u1", "--candidates", "products.csv", "--exclude", "all.csv")
    assert code == 0
    assert "all candidates are excluded" in err


def test_thompson_for_a_file_of_users(spider):
    arguments = ("--given-file", "users.csv", "--candidates", "products.csv", "--explore", "thompson")
    first = spider(*arguments, "--seed", 1)[1]
    assert first == spider(*arguments, "--seed", 1)[1]
    assert first != spider(*arguments, "--seed", 2)[1]


def test_one_user_to_a_file_that_a_spreadsheet_can_open(spider, tmp_path):
    fitted = SpiderRegressor(**SMALL).fit([("=x", p) for p in ["=1+1", "b"]] * 5, np.arange(10.0))
    fitted.save(tmp_path / "m.spider")
    for safe, start in (((), "=1+1"), (("--spreadsheet-safe",), "'=1+1")):
        with pytest.raises(SystemExit):
            cli.main(["recommend", "m.spider", "--given", "0==x", "--over", "1", "--out", "o.csv", *safe])
        rows = list(csv.reader((tmp_path / "o.csv").read_text().splitlines()))
        assert start in {row[2] for row in rows}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--given", "user=u1"), "--given is missing for: category"),
        (("--given-file", "users.csv"), "no column 'category'"),
        (("--given-file", "none.csv", "--candidates", "products.csv"), "none.csv: No such file"),
        (("--given-file", "-", "--candidates", "products.csv"), "a file, not standard input"),
        (("--given-file", "users.csv", "--candidates", "users.csv"), "no column 'product'"),
        (
            ("--given-file", "users.csv", "--given", "user=u1", "--candidates", "products.csv"),
            "--given-file is not needed",
        ),
        (
            ("--given-file", "users.csv", "--candidates", "products.csv", "--json"),
            "--json is for one ranking",
        ),
        (("--given-file", "gap.csv", "--candidates", "products.csv"), "gap.csv line 3: user is missing"),
        (("--given-file", "empty.csv", "--candidates", "products.csv"), "nothing to recommend"),
        (
            ("--given-file", "users.csv", "--candidates", "products.csv", "--out", "users.csv"),
            "the same file",
        ),
        (("--given", "user=u1", "--candidates", "products.csv", "--spreadsheet-safe"), "is for --out"),
    ],
)
def test_command_errors(spider, tmp_path, arguments, reason):
    (tmp_path / "gap.csv").write_text("user,x\nu1,1\n,2\n")
    (tmp_path / "empty.csv").write_text("user\n")
    code, _, err = spider(*arguments)
    assert code == 2
    assert reason in err.splitlines()[-1]
    assert (tmp_path / "users.csv").read_text().startswith("age,user")


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
    monkeypatch.setattr(command, "BLOCK_ROWS", 2)
    assert spider("--given-file", "five.csv", "--given", "category=c1", "-n", 2) == whole


def test_a_mode_without_nodes_has_nothing_to_recommend(spider, tmp_path):
    fitted = spidertensor.load(tmp_path / "m.spider")
    fitted.forget("product", list(range(40)))
    fitted.save(tmp_path / "m.spider")
    code, _, err = spider(*ONE)
    assert code == 2
    assert "m.spider has no product left: all were forgotten" in err


@pytest.fixture
def strangers(folder, capsys):
    """Run `spider recommend` beside a model whose users have an age and the last movies."""
    rng = np.random.default_rng(0)
    user, movie = rng.integers((20, len(TITLES)), size=(600, 2)).T
    table = {"user": user, "age": 20 + user, "movie": [TITLES[each] for each in movie]}
    modes = {"user": ["age", Recent("movie", n=3)], "movie": []}
    made = SpiderRegressor(modes=modes, **SMALL).partial_fit(table, (user + movie) % 2 * 4.0)
    made.save("s.spider")

    def run(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main(["recommend", "s.spider", "--over", "movie", "-n", "2", *map(str, arguments)])
        return made, stopped.value.code, *capsys.readouterr()

    return run


TITLES = ["Alien", "Heat", "Up, and away", "Fargo", "Ran", "Jaws"]
HAD = ("--given", "recent(movie)=Up, and away", "--given", "recent(movie)=Alien")


def test_somebody_who_is_not_in_the_model(strangers):
    made, code, out, err = strangers("--given", "age=31", *HAD, "--json")
    wanted = made.recommend({"age": 31, "recent(movie)": ["Up, and away", "Alien"]}, "movie", n=2)
    assert (code, err) == (0, "")
    assert [(each["id"], each["mean"]) for each in json.loads(out)["nodes"]] == [each[:2] for each in wanted]
    _, code, out, err = strangers(*HAD, "--given", "recent(movie)=never heard of")
    assert code == 0
    assert "Alien" not in out.split("std")[1]
    assert "recent(movie): 1 of 3 ids were never learned, and are left out" in err


def test_a_file_of_people_who_are_not_in_the_model(strangers, tmp_path):
    rows = [{"age": 31, "recent(movie)": ["Heat", "Alien"]}, {"age": 25, "recent(movie)": None}]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made, code, _, _ = strangers("--given-file", "new.jsonl", "--out", "out.jsonl")
    many = made.recommend_many({name: [row[name] for row in rows] for name in rows[0]}, "movie", n=2)
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert code == 0
    assert [(each["rank"], each["movie"], each["mean"]) for each in found] == [
        (rank, *each[:2]) for best in many for rank, each in enumerate(best, 1)
    ]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ((), "--given is missing for: user (or age or recent(movie))"),
        (("--given", "age=3", "--given", "age=4"), "--given names age twice: write it once"),
        (("--given", "recent(film)=Alien"), "no mode 'recent(film)', only: user, movie, age, recent(movie)"),
        (("--given-file", "other.csv"), "other.csv: no column user (or age or recent(movie))"),
        (("--given-file", "text.csv"), "column recent(movie): 'Alien' is not a list of ids: write a list"),
    ],
)
def test_what_does_not_describe_anybody(strangers, tmp_path, arguments, part):
    (tmp_path / "other.csv").write_text("name\nAnna\n")
    (tmp_path / "text.csv").write_text("recent(movie)\nAlien\n")
    _, code, _, err = strangers(*arguments)
    assert code != 0
    assert part in " ".join(err.split())
