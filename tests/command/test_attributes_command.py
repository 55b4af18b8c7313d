"""Attributes on the command line: what is learned, shown and refused."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import spidertensor
from spidertensor import SpiderRegressor
from spidertensor.estimator.columns import Calendar, Context, Many, Number, Value

N, FIRST = 700, 256  # rows, and those that decide what a column is: one batch
MODES = "user+age+gender,movie+genres,when=hour+time"
SMALL = ("--rank", "2", "--hidden", "4", "--committee", "1")
FIT = ("--modes", MODES, "--kind", "genres=many:|", "--value", "rating", *SMALL)
GENRES = ("drama", "drama|war", "comedy")


def rows(n=N, seed=0) -> list[dict]:
    """Ratings that depend on the genre, the gender and the hour."""
    rng, start = np.random.default_rng(seed), datetime(2024, 1, 1)
    found = []
    for place in range(n):
        user, movie, hour = (int(rng.integers(size)) for size in (30, 20, 24))
        value = user % 2 + (movie % 3 == 1) + 0.05 * hour + 0.2 * rng.normal()
        found.append(
            {
                "user": user, "movie": f"m{movie}", "age": 20.5 + user, "gender": "fm"[user % 2],
                "genres": GENRES[movie % 3], "hour": hour,
                "time": (start + timedelta(hours=7 * place)).isoformat(), "rating": round(value, 3),
            }
        )  # fmt: skip
    return found


def csv_of(table, names=None) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, names or list(table[0]), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def written(path, table) -> None:
    if path.suffix == ".csv":
        path.write_text(csv_of(table))
    elif path.suffix == ".jsonl":
        lists = [row | {"genres": row["genres"].split("|")} for row in table]
        path.write_text("".join(json.dumps(row) + "\n" for row in lists))
    else:
        times = [row | {"time": datetime.fromisoformat(row["time"])} for row in table]
        parquet.write_table(pa.Table.from_pylist(times), path)


def columns(table) -> dict[str, list]:
    found = {name: [row[name] for row in table] for name in table[0]}
    if "time" in found:
        found["time"] = [datetime.fromisoformat(each) for each in found["time"]]
    return found


def in_python(*parts) -> SpiderRegressor:
    """The model that the same calls in Python make, each kind stated."""
    modes = {
        "user": [Number("age"), Value("gender")],
        "movie": [Many("genres", sep="|")],
        "when": Context(Value("hour"), Calendar("time")),
    }
    model = SpiderRegressor(modes=modes, rank=2, hidden=(4,), committee=1)
    for part in parts:
        model.partial_fit(columns(part), [row["rating"] for row in part])
    return model


@pytest.fixture
def source(folder):
    written(folder / "r.csv", rows())
    return folder / "r.csv"


@pytest.fixture
def model(source, spider):
    assert spider("fit", source, *FIT)[0] == 0
    return source.with_suffix(".spider")


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_every_format_learns_what_python_learns(folder, spider, ending):
    table = rows()
    written(folder / f"r.{ending}", table)
    assert spider("fit", f"r.{ending}", *FIT)[0] == 0
    model, twin = spidertensor.load("r.spider"), in_python(table[:FIRST], table[FIRST:])
    asked = columns(rows(50, seed=3))
    np.testing.assert_array_equal(model.predict(asked), twin.predict(asked))
    assert model.mode_names_ == ["user", "movie", "when"]


def test_a_resumed_model_continues_bit_for_bit(folder, source, spider):
    table = rows()
    written(source, table[:400])
    assert spider("fit", source, *FIT)[0] == 0
    written(source, table)
    assert spider("fit", source, "--resume")[0] == 0
    twin = in_python(table[:FIRST], table[FIRST:400], table[400:])
    asked = columns(rows(50, seed=3))
    np.testing.assert_array_equal(spidertensor.load("r.spider").predict(asked), twin.predict(asked))
    assert spider("fit", source, "--resume", *FIT)[0] == 0  # the same options again
    assert spider("fit", source, "--resume", "--modes", MODES)[0] == 0  # kinds are known
    written(folder / "more.jsonl", rows(60, seed=8))
    assert spider("fit", "more.jsonl", "--add", "--model", "r.spider", "--keep", "1")[0] == 0
    assert spidertensor.load("r.spider").n_entries_ == N + 60
    assert spider("rollback", "r.spider")[0] == 0
    assert spidertensor.load("r.spider").n_entries_ == N


def test_other_modes_than_those_of_the_model_are_refused(model, source, fails):
    before = model.read_bytes()
    assert "leave it out" in fails("fit", source, "--resume", "--modes", "user,movie,when")
    assert "has modes" in fails("fit", source, "--resume", "--modes", "user+age,movie")
    assert "stay as they are" in fails("fit", source, "--resume", "--modes", MODES.replace("when=", "when+"))
    fewer = MODES.replace("+gender", "")
    assert "can only add" in fails("fit", source, "--resume", "--modes", fewer)
    kind = ("--kind", "genres=value")
    assert "can only add" in fails("fit", source, "--resume", "--modes", MODES, *kind)
    assert "no column 'weather'" in fails("fit", source, "--resume", "--modes", MODES + "+weather")
    assert model.read_bytes() == before


@pytest.mark.parametrize("first", ["user,movie", "user,movie+genres"])
def test_columns_can_be_added_to_a_model_that_has_learned(folder, source, spider, first):
    """Nothing else changes: without the new columns, predictions stay as they are."""
    table, kind = rows(), ("--kind", "genres=many:|") if "genres" in first else ()
    (folder / "first.csv").write_text(csv_of(table[:400]))
    (folder / "rest.csv").write_text(csv_of(table[400:]))
    named = ("--value", "rating", *SMALL, "--model", "m.spider")
    assert spider("fit", "first.csv", "--modes", first, *kind, *named)[0] == 0
    before, asked = spidertensor.load("m.spider"), {"user": [1, 2, 99], "movie": ["m1", "m2", "m3"]}
    ids = list(zip(*asked.values(), strict=True))
    wanted = before.predict(ids)
    more = first.replace("user", "user+gender+age")
    assert spider("fit", "first.csv", "--resume", "--model", "m.spider", "--modes", more)[0] == 0
    twin = spidertensor.load("m.spider")
    assert twin.n_entries_ == 400
    np.testing.assert_array_equal(twin.predict(ids), wanted)
    assert spider("fit", "rest.csv", "--add", "--model", "m.spider")[0] == 0
    twin.partial_fit(columns(table[400:]), [row["rating"] for row in table[400:]])
    model = spidertensor.load("m.spider")
    np.testing.assert_array_equal(model.predict(asked), twin.predict(asked))
    women, men = (model.predict({"user": ["new"], "movie": ["m1"], "gender": [each]})[0] for each in "fm")
    assert men > women + 0.2


def test_predictions_use_what_is_given_and_what_is_known(folder, model, spider):
    asked = rows(40, seed=5)
    names = ["user", "movie", "hour", "time"]
    written(folder / "all.csv", asked)
    (folder / "ids.csv").write_text(csv_of(asked, names))
    wanted = spidertensor.load(model).predict(columns(asked))
    for name in ("all.csv", "ids.csv"):
        code, out, err = spider("predict", model, name)
        found = [float(row["mean"]) for row in csv.DictReader(io.StringIO(out))]
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
        assert code == 0
        assert "40 rows predicted, 0 of them with an unseen id" in err
    code, out, _ = spider("predict", model, "ids.csv", "--modes", "user,movie", "--interval", "0.9")
    assert out.splitlines()[0] == "user,movie,hour,time,mean,std,low,high"


def test_a_file_describes_nodes(folder, source, spider):
    (folder / "short.csv").write_text(csv_of(rows(), ["user", "movie", "rating"]))
    films = "".join(f"m{each},{GENRES[each % 3]}\n" for each in range(20))
    (folder / "movies.csv").write_text("movie,genres,title\n" + films.replace("\n", ",x\n"))
    named = ("--modes", "user,movie+genres", "--kind", "genres=many:|", "--value", "rating", *SMALL)
    code, _, err = spider("fit", "short.csv", *named, "--attributes", "movie=movies.csv")
    assert code == 0, err
    (folder / "new.jsonl").write_text('{"movie": "new", "genres": ["drama", "war"]}\n')
    before = (folder / "short.spider").read_bytes()
    known = spider("recommend", "short.spider", "--given", "user=1", "--over", "movie", "-n", "30", "--json")
    ids = [each["id"] for each in json.loads(known[1])["nodes"]]
    assert sorted(ids) == sorted(f"m{each}" for each in range(20))
    more = ("--attributes", "movie=new.jsonl", "--json")
    found = spider("recommend", "short.spider", "--given", "user=1", "--over", "movie", "-n", "30", *more)
    ranked = [each["id"] for each in json.loads(found[1])["nodes"]]
    assert ranked.index("new") < 10  # it is a war film, which are liked most
    (folder / "ask.csv").write_text("user,movie\n1,new\n")
    plain, described = (
        float(spider("predict", "short.spider", "ask.csv", *each)[1].splitlines()[1].split(",")[2])
        for each in ((), ("--attributes", "movie=new.jsonl"))
    )
    assert described > plain
    assert (folder / "short.spider").read_bytes() == before
    code, out, _ = spider("evaluate", "short.csv", *named[:6], "--attributes", "movie=movies.csv", "--json")
    assert json.loads(out)["attributes"] == {"genres": "many"}


def test_recommendations_take_the_situation(folder, model, spider):
    fitted = spidertensor.load(model)
    _, out, _ = spider(
        "recommend", model, "--given", "user=1", "--given", "hour=8", "--given", "time=2024-02-01T08:00",
        "--over", "movie", "--json",
    )  # fmt: skip
    given: dict[str | int, Any] = {"user": 1, "hour": 8, "time": datetime(2024, 2, 1, 8)}
    wanted = fitted.recommend(given, over="movie")
    found = json.loads(out)["nodes"]
    assert [each["id"] for each in found] == [each.id for each in wanted]
    assert [each["mean"] for each in found] == pytest.approx([each.mean for each in wanted], rel=1e-6)
    (folder / "users.csv").write_text("user,hour\n1,8\n2,\n")
    _, out, _ = spider("recommend", model, "--given-file", "users.csv", "--over", "movie", "-n", "1")
    lines = list(csv.DictReader(io.StringIO(out)))
    asked: list[dict[str | int, Any]] = [{"user": 1, "hour": 8}, {"user": 2}]
    best = [fitted.recommend(each, over="movie", n=1)[0].id for each in asked]
    assert [line["movie"] for line in lines] == best


def test_candidates_have_attributes_of_their_own(folder, model, spider, fails):
    (folder / "new.csv").write_text("movie,genres,title\nm1,comedy,a\nnew,drama|war,b\nother,,c\n")
    ask = ("recommend", model, "--given", "user=1", "--over", "movie", "--candidates", "new.csv")
    code, out, _ = spider(*ask, "--json")
    assert code == 0
    candidates = {"movie": ["m1", "new", "other"], "genres": ["comedy", "drama|war", None]}
    wanted = spidertensor.load(model).recommend({"user": 1}, "movie", candidates=candidates)
    found = json.loads(out)["nodes"]
    assert [each["id"] for each in found] == [each.id for each in wanted]
    assert [each["mean"] for each in found] == pytest.approx([each.mean for each in wanted], rel=1e-6)
    (folder / "hours.csv").write_text("movie,hour\nm1,3\n")
    ask = ("recommend", model, "--given", "user=1", "--given", "hour=4", "--over", "movie")
    assert "hour is in --candidates and in --given" in fails(*ask, "--candidates", "hours.csv")


def test_recommendations_refuse_strange_situations(model, fails):
    assert "no mode 'color'" in fails("recommend", model, "--given", "color=1", "--over", "movie")
    assert "no mode 'hour', only: user, movie" in fails(
        "recommend", model, "--given", "user=1", "--over", "hour"
    )
    assert "'old' is not a number" in fails(
        "recommend", model, "--given", "user=1", "--given", "age=old", "--over", "movie"
    )


def test_info_shows_the_columns(model, spider):
    record = json.loads(spider("info", model, "--json")[1])
    assert record["modes"] == {"user": 30, "movie": 20}
    shown = {each["column"]: (each["mode"], each["kind"], each["described"]) for each in record["attributes"]}
    assert shown == {
        "age": ("user", "number", 30), "gender": ("user", "value", 30), "genres": ("movie", "many", 20),
        "hour": ("when", "value", None), "time": ("when", "calendar", None),
    }  # fmt: skip
    values = {each["column"]: each["values"] for each in record["attributes"]}
    assert (values["gender"], values["genres"], values["hour"]) == (2, 3, 24)
    text = spider("info", model)[1]
    assert "calendar" in text
    assert "nodes of when" not in text


def test_forgetting_a_node_forgets_its_attributes(folder, model, spider, fails):
    assert "forgot 1 node" in spider("forget", model, "--mode", "user", "1")[1]
    record = json.loads(spider("info", model, "--json")[1])
    assert {each["described"] for each in record["attributes"] if each["mode"] == "user"} == {29}
    assert "--mode must be one of: user, movie" in fails("forget", model, "--mode", "when", "1")


def test_evaluating_with_attributes_predicts_better_than_with_ids(source, spider):
    scores = []
    for modes in (("--modes", "user,movie"), FIT[:4]):
        for test in ((), ("--test", "0.2")):
            code, out, err = spider(
                "evaluate", source, *modes, "--value", "rating", "--rank", "2", *test, "--json"
            )
            assert code == 0, err
            scores.append(json.loads(out))
    assert scores[2]["score"] < 0.8 * scores[0]["score"]
    assert scores[3]["score"] < 0.8 * scores[1]["score"]
    for ids, both in ((0, 2), (1, 3)):  # the floors learn from ids alone
        assert scores[both]["floors"] == scores[ids]["floors"]
    assert len(scores[2]["members"]) == 6


def test_floors_learn_from_ids_alone(folder, source, spider):
    """They are the same beside a model of ids."""
    plain = ("--modes", "user,movie", "--value", "rating", "--model", "ids.spider", *SMALL, "--json")
    ids = json.loads(spider("fit", source, *plain)[1])
    both = json.loads(spider("fit", source, *FIT, "--json")[1])
    assert both["nodes"] == ids["nodes"]
    assert both["floors"]["mean"] == pytest.approx(ids["floors"]["mean"])
    assert both["floors"]["biases"] == pytest.approx(ids["floors"]["biases"])


def test_predictions_before_learning_are_written(folder, source, spider):
    assert spider("fit", source, *FIT, "--predictions", "p.csv")[0] == 0
    lines = (folder / "p.csv").read_text().splitlines()
    assert lines[0] == "row,user,movie,rating,mean,std,below"
    assert len(lines) == N + 1


def test_bins_work_beside_attributes(folder, spider, fails):
    written(folder / "r.csv", rows())
    named = ("--modes", "user,hour,movie+genres", "--kind", "genres=many:|", "--value", "rating", *SMALL)
    assert spider("fit", "r.csv", *named, "--bin", "hour=width:6")[0] == 0
    assert spidertensor.load("r.spider").n_nodes_ == (30, 4, 20)
    assert spider("predict", "r.spider", "r.csv")[0] == 0
    assert "bins need a mode" in fails(
        "fit", "r.csv", *FIT, "--force", "--bin", "when=width:6", "--model", "other.spider"
    )


def test_crosses_and_recent_nodes_are_learned_and_resumed(folder, spider):
    table = rows()
    written(folder / "r.csv", table[:400])
    modes = "user+recent(movie,3),movie,pair=user*movie+gender*genres"
    assert spider("fit", "r.csv", "--modes", modes, "--value", "rating", *SMALL)[0] == 0
    twin = spidertensor.load("r.spider")
    written(folder / "r.csv", table)
    assert spider("fit", "r.csv", "--modes", modes, "--resume")[0] == 0
    twin.partial_fit(columns(table[400:]), [row["rating"] for row in table[400:]])
    asked = columns(rows(50, seed=3))
    np.testing.assert_array_equal(spidertensor.load("r.spider").predict(asked), twin.predict(asked))
    shown = {
        each["column"]: each["kind"]
        for each in json.loads(spider("info", "r.spider", "--json")[1])["attributes"]
    }
    assert shown == {"recent(movie)": "recent", "user*movie": "cross", "gender*genres": "cross"}


def test_events_have_attributes(folder, source, spider):
    events = ("--modes", "user+gender,movie+genres,when=hour", "--kind", "genres=many:|", "--events")
    assert spider("fit", source, *events, "--over", "movie", *SMALL)[0] == 0
    _, out, _ = spider("recommend", "r.spider", "--given", "user=1", "--over", "movie", "-n", "3", "--json")
    assert len(json.loads(out)["nodes"]) == 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"age": "old"}, "age 'old' is not a number"),
        ({"age": "inf"}, "age is infinite"),
        ({"genres": "|".join(map(str, range(2000)))}, "genres"),
        ({"time": "yesterday"}, "time 'yesterday' is not a time"),
    ],
)
def test_a_bad_cell_is_a_bad_row(folder, source, spider, fails, change, reason):
    table = rows()
    table[500] |= change
    written(source, table)
    code, _, err = spider("fit", source, *FIT)
    assert code == 2
    assert "r.csv line 502" in err
    assert reason in err
    assert spider("fit", source, *FIT, "--force", "--on-bad", "file")[0] == 0
    assert spidertensor.load("r.spider").n_entries_ == N - 1
    (reject,) = map(json.loads, (folder / "r.rejects.jsonl").read_text().splitlines())
    assert reject["row"] == 502
    assert reason in reject["reason"]
    assert reject["raw"]["user"] == table[500]["user"]
    for command in (("predict", "r.spider", source), ("evaluate", source, *FIT[:6])):
        _, _, err = spider(*command)
        assert "r.csv line 502" in err
        assert reason in err
        assert spider(*command, "--on-bad", "skip")[0] == 0


@pytest.mark.parametrize(("cell", "reason"), [("old", "'old' is not a number"), (1e999, "is infinite")])
def test_a_bad_cell_of_json_is_a_bad_row(folder, spider, cell, reason):
    table = rows()
    table[500]["age"] = table[600]["age"] = cell
    written(folder / "r.jsonl", table)
    assert spider("fit", "r.jsonl", *FIT, "--on-bad", "file")[0] == 0
    rejects = [json.loads(line) for line in (folder / "r.rejects.jsonl").read_text().splitlines()]
    assert [each["row"] for each in rejects] == [501, 601]
    assert all(reason in each["reason"] for each in rejects)


def test_a_missing_column_is_named(folder, source, spider, fails):
    err = fails("fit", source, "--modes", "user+agee,movie", "--value", "rating")
    assert "no column 'agee'" in err
    assert not (folder / "r.spider").exists()
    assert "no column 'agee'" in fails("evaluate", source, "--modes", "user+agee,movie", "--value", "rating")
    written(folder / "r.jsonl", rows())
    code, _, err = spider("fit", "r.jsonl", "--modes", "user+agee,movie", "--value", "rating", *SMALL)
    assert code == 0
    assert "have no agee" in err


def test_missing_cells_are_no_error(folder, spider):
    table = rows()
    for place, row in enumerate(table):
        for name in ("age", "gender", "genres", "hour", "time"):
            row[name] = "" if (place + len(name)) % 3 == 0 else row[name]
    written(folder / "r.csv", table)
    assert spider("fit", "r.csv", *FIT)[0] == 0
    assert spidertensor.load("r.spider").n_entries_ == N


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("movie,genres\nm1,war\nm2,war\nm1,drama\n", "movies.csv line 4: a second row for the same movie"),
        ("movie,genres\n,war\n", "movies.csv line 2: movie is missing"),
        ("movie,title\nm1,Alien\n", "none of the columns genres"),
        ("film,genres\nm1,war\n", "no column 'movie'"),
        ("movie,genres\n", "no rows"),
        ("movie,genres\nm1," + "|".join(map(str, range(2000))) + "\n", "movies.csv line 2: column genres"),
    ],
)
def test_bad_files_of_attributes_change_nothing(folder, model, fails, text, reason):
    (folder / "movies.csv").write_text(text)
    before = model.read_bytes()
    assert reason in fails("fit", "r.csv", "--resume", "--attributes", "movie=movies.csv")
    assert model.read_bytes() == before
    new = ("--model", "new.spider", "--attributes", "movie=movies.csv")
    assert reason in fails("fit", "r.csv", *FIT, *new)
    assert not (folder / "new.spider").exists()


def test_wrong_options_are_refused(folder, source, fails, spider):
    (folder / "movies.csv").write_text("movie,genres\nm1,war\n")
    value = ("--value", "rating")
    assert "--kind is for attributes" in fails(
        "fit", source, "--modes", "user,movie", "--kind", "a=value", *value
    )
    assert "unknown kind" in fails("fit", source, "--modes", "user+age,movie", "--kind", "age=text", *value)
    assert "COLUMN=KIND" in fails("fit", source, "--modes", "user+age,movie", "--kind", "age", *value)
    assert "cannot read the mode" in fails("fit", source, "--modes", "user+,movie", *value)
    assert "MODE=FILE" in fails("fit", source, *FIT, "--attributes", "movies.csv")
    assert "no mode 'when' with ids" in fails("fit", source, *FIT, "--attributes", "when=movies.csv")
    plain = ("--modes", "user,movie", *value)
    assert "needs a model with attributes" in fails("fit", source, *plain, "--attributes", "movie=movies.csv")
    assert "one worker per member: at most 1" in fails("fit", source, *FIT, "--workers", "2")
    on_ray = ("--workers", "1", "--cluster", "local")
    assert "attributes do not work on a cluster" in fails("fit", source, *FIT, *on_ray)
    assert "named twice" in fails("fit", source, "--modes", "user+rating,movie", *value)
