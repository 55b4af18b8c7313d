"""`spider evaluate FILE`: a user's own file, in its order, in time order, or held out."""

from __future__ import annotations

import gzip
import json
import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from spidertensor import Inference, SpiderRegressor, cli

pytestmark = pytest.mark.usefixtures("warm_kernels")
COLUMNS = ("--modes", "user,movie", "--value", "rating")
FAST = ("--method", "biases")
START = datetime(2024, 3, 30, tzinfo=UTC)


@pytest.fixture
def spider(folder, capsys):
    """Run `spider evaluate` in an empty folder: exit code, standard output, standard error."""

    def run(*arguments):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["evaluate", *map(str, arguments)])
        out, err = capsys.readouterr()
        return stopped.value.code, out, err

    return run


def table(n=600, seed=0) -> dict[str, list]:
    """Ratings that grow with the hour, so that the order of the rows matters."""
    rng = np.random.default_rng(seed)
    users, movies = rng.integers(20, size=n), rng.integers(15, size=n)
    ratings = np.round(np.sin(users) + np.cos(movies) + np.linspace(0, 3, n) + 0.2 * rng.normal(size=n), 3)
    return {"user": users.tolist(), "movie": [f"m{m}" for m in movies], "rating": ratings.tolist()}


def csv_text(columns: dict[str, list]) -> str:
    lines = zip(*columns.values(), strict=True)
    return ",".join(columns) + "\n" + "".join(",".join(map(str, line)) + "\n" for line in lines)


def shuffled(columns: dict[str, list], seed=1) -> dict[str, list]:
    order = np.random.default_rng(seed).permutation(len(columns["user"]))
    return {name: [column[i] for i in order] for name, column in columns.items()}


def record_of(done) -> dict:
    code, out, err = done
    assert code == 0, err
    return json.loads(out)


def test_a_file_is_scored_in_its_order_as_learn_predicts_it(spider, tmp_path):
    columns = table()
    (tmp_path / "r.csv").write_text(csv_text(columns))
    record = record_of(spider("r.csv", *COLUMNS, "--json"))
    update = SpiderRegressor(random_state=0).learn(
        list(zip(columns["user"], columns["movie"], strict=True)), columns["rating"]
    )
    error = np.array(columns["rating"]) - update.mean
    assert record["score"] == pytest.approx(np.sqrt(np.mean(error[60:] ** 2)), rel=1e-5)
    assert (record["protocol"], record["skipped"], record["entries"]) == ("prequential", 60, 600)
    assert record["nodes"] == {"user": 20, "movie": 15}
    assert set(record["floors"]) == {"mean", "biases"}
    inside = np.abs(update.below[60:] - 0.5) <= 0.45
    assert record["calibrated_90"] == pytest.approx(inside.mean())
    code, out, _ = spider("r.csv", *COLUMNS)
    assert code == 0
    assert f"{record['score']:.4f}" in out
    assert "600 entries, 20 of user, 15 of movie" in " ".join(out.split())


@pytest.mark.parametrize(
    "when",
    [
        lambda i: i - 300,
        lambda i: i / 7,
        lambda i: 1_700_000_000_000_000_000 + i,
        lambda i: (START + timedelta(minutes=7 * i)).isoformat(),
        lambda i: (START + timedelta(hours=i)).strftime("%Y-%m-%d %H:%M:%S"),
        # later and later, in zones of their own: as texts they are in no order
        lambda i: (
            (START + timedelta(minutes=i)).isoformat()[:-6] + "+00:00"
            if i % 2
            else (START + timedelta(minutes=i + 120)).isoformat()[:-6] + "+02:00"
        ),
    ],
    ids=["int", "float", "nanoseconds", "iso", "local", "zones"],
)
def test_time_orders_the_rows(spider, tmp_path, when):
    columns = table()
    columns["when"] = [when(i) for i in range(600)]
    (tmp_path / "sorted.csv").write_text(csv_text(columns))
    (tmp_path / "mixed.csv").write_text(csv_text(shuffled(columns)))
    in_order = record_of(spider("sorted.csv", *COLUMNS, *FAST, "--json"))
    by_time = record_of(spider("mixed.csv", *COLUMNS, *FAST, "--time", "when", "--json"))
    as_is = record_of(spider("mixed.csv", *COLUMNS, *FAST, "--json"))
    assert by_time["score"] == pytest.approx(in_order["score"], rel=1e-9)
    assert as_is["score"] != pytest.approx(in_order["score"], rel=1e-3)


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.timestamp("s", "UTC"), pa.date32(), pa.int32()])
def test_times_of_parquet_and_json(spider, tmp_path, kind):
    columns = table()
    days = [(START.replace(tzinfo=None) + timedelta(days=i)) for i in range(600)]
    columns["when"] = list(range(600)) if pa.types.is_integer(kind) else days
    in_order = csv_text({name: column for name, column in columns.items() if name != "when"})
    (tmp_path / "sorted.csv").write_text(in_order)
    mixed = shuffled(columns)
    arrays = {name: pa.array(column, kind if name == "when" else None) for name, column in mixed.items()}
    parquet.write_table(pa.table(arrays), tmp_path / "mixed.parquet")
    lines = "".join(
        json.dumps(dict(zip(mixed, map(str if kind != pa.int32() else lambda each: each, row), strict=True))
                   | {"rating": row[2]}) + "\n"
        for row in zip(*mixed.values(), strict=True)
    )  # fmt: skip
    (tmp_path / "mixed.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    wanted = record_of(spider("sorted.csv", *COLUMNS, *FAST, "--json"))["score"]
    for name in ("mixed.parquet", "mixed.jsonl.gz"):
        found = record_of(spider(name, *COLUMNS, *FAST, "--time", "when", "--json"))
        assert found["score"] == pytest.approx(wanted, rel=1e-9)


def test_held_out_tests_a_random_share_or_the_last_in_time(spider, tmp_path):
    columns = table() | {"when": list(range(600))}
    (tmp_path / "r.csv").write_text(csv_text(shuffled(columns)))
    drawn = record_of(spider("r.csv", *COLUMNS, *FAST, "--test", "0.2", "--json"))
    assert (drawn["protocol"], drawn["n_scored"], drawn["n_entries"]) == ("held-out", 120, 480)
    assert set(drawn["floors"]) == {"mean", "biases", "static-biases"}
    tenth = record_of(spider("r.csv", *COLUMNS, *FAST, "--protocol", "held-out", "--json"))
    assert tenth["n_scored"] == 60
    future = record_of(spider("r.csv", *COLUMNS, *FAST, "--test", "0.2", "--time", "when", "--json"))
    assert future["n_scored"] == 120
    last, before = np.array(columns["rating"][480:]), np.array(columns["rating"][:480])
    error = np.sqrt(np.mean((last - before.mean()) ** 2))  # of the mean: the ratings have grown since
    assert future["floors"]["mean"]["score"] == pytest.approx(error, rel=1e-6)
    assert drawn["floors"]["mean"]["score"] < 0.8 * error


def test_binary_values(spider, tmp_path):
    rng = np.random.default_rng(0)
    columns = {"user": rng.integers(5, size=300).tolist(), "movie": rng.integers(300, size=300).tolist()}
    columns["rating"] = [int(user > 2) for user in columns["user"]]
    (tmp_path / "r.csv").write_text(csv_text(columns))
    record = record_of(spider("r.csv", *COLUMNS, "--binary", *FAST, "--json"))
    assert (record["metric"], record["coverage_90"]) == ("auc", None)
    assert record["score"] > 0.9
    code, _, err = spider("r.csv", "--modes", "user,rating", "--value", "movie", "--binary")
    assert code == 2
    assert "is not 0 or 1" in err


def test_texts_are_labels(spider, tmp_path):
    columns = table()
    columns["rating"] = [int(each > 1.5) for each in columns["rating"]]
    (tmp_path / "r.csv").write_text(csv_text(columns))
    columns["rating"] = ["liked" if each else "meh" for each in columns["rating"]]
    (tmp_path / "t.csv").write_text(csv_text(columns))
    plain = record_of(spider("r.csv", *COLUMNS, "--binary", "--json"))
    named = record_of(spider("t.csv", *COLUMNS, "--binary", "--labels", "meh,liked", "--json"))
    other = record_of(spider("t.csv", *COLUMNS, "--binary", "--labels", "liked,meh", "--json"))
    assert (named["score"], named["log_density"]) == (plain["score"], plain["log_density"])
    assert other["score"] == pytest.approx(named["score"], abs=0.02)  # AUC, the other way round
    (tmp_path / "r2.csv").write_text((tmp_path / "r.csv").read_text())
    assert (
        record_of(spider("r2.csv", *COLUMNS, "--binary", "--labels", "0,1", "--json"))["score"]
        == (plain["score"])
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "not a number, nor is any other: for two labels, use --binary --labels no,yes"),
        (("--binary",), "for labels other than 0 and 1, use --labels no,yes"),
        (("--labels", "no,yes"), "--labels is for --binary"),
        (("--binary", "--labels", "no,maybe"), "rating 'yes' is not 'no' or 'maybe'"),
    ],
)  # fmt: skip
def test_what_to_do_about_texts(spider, tmp_path, arguments, reason):
    columns = table(60)
    columns["rating"] = ["yes" if number % 3 else "no" for number in range(60)]
    (tmp_path / "r.csv").write_text(csv_text(columns))
    code, out, err = spider("r.csv", *COLUMNS, *arguments)
    assert (code, out) == (2, "")
    assert reason in err


def test_settings_are_those_of_the_model(spider, tmp_path):
    columns = table()
    (tmp_path / "r.csv").write_text(csv_text(columns))
    options = "--rank 3,2 --hidden 7 --activation tanh --committee 2 --memory 90 --clip none"
    record = record_of(spider("r.csv", *COLUMNS, *options.split(), "--json"))
    model = SpiderRegressor(
        rank=(3, 2), hidden=(7,), activation="tanh", committee=2, memory=90,
        inference=Inference(clip=None),
    )  # fmt: skip
    update = model.learn(list(zip(columns["user"], columns["movie"], strict=True)), columns["rating"])
    error = np.array(columns["rating"]) - update.mean
    assert record["score"] == pytest.approx(np.sqrt(np.mean(error[60:] ** 2)), rel=1e-5)
    assert (record["rank"], record["committee"], record["clip"]) == ([3, 2], 2, None)
    code, out, err = spider("r.csv", *COLUMNS, *FAST, "--committee", "2")
    assert (code, out) == (2, "")
    assert "biases has no setting --committee" in err


def test_held_out_after_several_passes(spider, tmp_path):
    """As `fit` learns the others."""
    columns = table(3000) | {"when": list(range(3000))}
    columns["rating"] = [round(math.sin(user) * math.cos(int(movie[1:])), 3) for user, movie in
                         zip(columns["user"], columns["movie"], strict=True)]  # fmt: skip
    (tmp_path / "r.csv").write_text(csv_text(columns))
    asked = ("r.csv", *COLUMNS, "--test", "0.2", "--committee", "1", "--json")
    once = record_of(spider(*asked))
    assert once["passes"] == 1
    several = record_of(spider(*asked, "--passes", "4"))
    assert several["passes"] == 4
    assert several["score"] != once["score"]
    first = pa.table({name: column[:2400] for name, column in columns.items() if name != "rating"})
    model = SpiderRegressor(passes=4, committee=1, time="when").fit(first, columns["rating"][:2400])
    last = list(zip(columns["user"][2400:], columns["movie"][2400:], strict=True))
    error = np.array(columns["rating"][2400:]) - model.predict(last)
    future = record_of(spider(*asked, "--passes", "4", "--time", "when"))
    assert future["score"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=0.02)  # but for how it is scaled
    for how in (("--delay", "9"), ("--protocol", "prequential"), ("--test", "0.1", "--plot", "p.svg")):
        code, _, err = spider("r.csv", *COLUMNS, *how, "--passes", "2")
        assert (code, "--passes: " in err) == (2, True)


def test_a_note_where_a_baseline_is_better(spider, tmp_path):
    """Nothing can be learned from noise but its mean."""
    columns = table()
    columns["rating"] = np.random.default_rng(3).normal(size=600).tolist()
    (tmp_path / "noise.csv").write_text(csv_text(columns))
    record = record_of(spider("noise.csv", *COLUMNS, "--json"))
    assert record["floors"]["mean"]["score"] < record["score"] < record["floors"]["biases"]["score"]
    assert record["notes"][1:] == ["mean predicts these values better than spider"]
    assert len(record_of(spider("noise.csv", *COLUMNS, *FAST, "--json"))["notes"]) == 1  # itself a baseline


def test_bad_rows_stop_or_are_left_out(spider, tmp_path):
    columns = table(100) | {"when": list(range(100))}
    broken = csv_text(columns) + "1,m2,high,7\n1,m2,3,\n1,m2,3,2024-01-01\n1,m2,3,noon\n1,m2,3,nan\n"
    (tmp_path / "r.csv").write_text(broken)
    arguments = ("r.csv", *COLUMNS, *FAST, "--time", "when")
    code, _, err = spider(*arguments)
    assert code == 2
    assert "r.csv line 102: rating 'high' is not a number" in err
    record = record_of(spider(*arguments, "--on-bad", "file", "--json"))
    assert (record["entries"], record["bad_rows"]) == (100, 5)
    reasons = [json.loads(line)["reason"] for line in (tmp_path / "r.rejects.jsonl").read_text().splitlines()]
    assert reasons == [
        "rating 'high' is not a number",
        "when is missing",
        "when 2024-01-01 is a time without a zone, but other rows have a number",
        "when 'noon' is neither a number nor an ISO timestamp",
        "when nan is not finite",
    ]
    assert "bad rows, skipped" in spider(*arguments, "--on-bad", "skip")[1]


def equal(n, value="1"):
    return "user,movie,rating\n" + "".join(f"{i % 9},{i % 7},{value}\n" for i in range(n))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("few.csv", *COLUMNS), "few.csv: 49 good rows, too few to measure anything; at least 50"),
        (("header.csv", *COLUMNS), "header.csv: 0 good rows"),
        (
            ("equal.csv", *COLUMNS),
            "rating is 1 in all 60 rows, so there is nothing to predict: if only what happened",
        ),
        (("none.csv", *COLUMNS), "none.csv: No such file"),
        (("equal.csv",), "a file needs --modes and --value"),
        (("equal.csv", "--modes", "user"), "a file needs --modes and --value"),
        (("equal.csv", *COLUMNS, "--time", "when"), "no column 'when' (there are: user, movie, rating)"),
        (("equal.csv", *COLUMNS, "--test", "1.5"), "--test takes a share between 0 and 1"),
        (("equal.csv", *COLUMNS, "--test", "0.1", "--protocol", "prequential"), "every entry is a test"),
        (("equal.csv", *COLUMNS, "--plot", "out.txt"), "use one of the extensions .png"),
        (("equal.csv", *COLUMNS, "--plot", "nowhere/out.png"), "its folder must exist"),
        (("equal.png", *COLUMNS, "--plot", "equal.png"), "are the same file"),
        (("synthetic", "--time", "when"), "--time is for files"),
    ],
)  # fmt: skip
def test_what_cannot_be_evaluated(spider, tmp_path, arguments, reason):
    (tmp_path / "few.csv").write_text(csv_text(table(49)))
    (tmp_path / "header.csv").write_text("user,movie,rating\n")
    (tmp_path / "equal.csv").write_text(equal(60))
    (tmp_path / "equal.png").write_text(equal(60))
    code, out, err = spider(*arguments)
    assert (code, out) == (2, "")
    assert reason in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("how", [(), ("--test", "0.2"), ("--binary",)])
def test_picture(spider, tmp_path, how):
    columns = table(3000)
    if how == ("--binary",):
        columns["rating"] = [int(each > 1.5) for each in columns["rating"]]
    (tmp_path / "r.csv").write_text(csv_text(columns))
    arguments = ("r.csv", *COLUMNS, *how, "--batch-size", "100")
    code, out, err = spider(*arguments, "--plot", "out.svg")
    assert code == 0
    assert "picture: out.svg" in err
    assert "<svg" in (tmp_path / "out.svg").read_text()
    assert out.splitlines()[:5] == spider(*arguments)[1].splitlines()[:5]  # drawn or not, the same scores


def test_the_picture_has_a_curve_for_each_method():
    from spidertensor.demo.synthetic import synthetic
    from spidertensor.evaluation import protocols
    from spidertensor.evaluation.draw import overview
    from spidertensor.evaluation.methods import METHODS
    from spidertensor.spider.likelihoods import GAUSSIAN

    pytest.importorskip("matplotlib")
    train, test = synthetic((9, 8), 900).split(0)
    rows = {}
    for name in ("biases", "mean"):
        method = METHODS[name].build(2, 2, GAUSSIAN, 100)
        rows[name] = list(protocols.held_out(method, train, test, likelihood=GAUSSIAN, batch_size=100, at=4))
    curves = overview(rows).axes[0]
    for line, name in zip(curves.lines, rows, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), [row["score"] for row in rows[name]])
    assert curves.get_ylabel() == "RMSE of the test set"


def test_a_text_of_nanoseconds_beside_a_bad_one_keeps_its_order(spider, tmp_path):
    """One by one, as a block with a bad row is read: a float64 would make equal times of them."""
    columns = table() | {"when": [1_700_000_000_000_000_000 + i for i in range(600)]}
    (tmp_path / "sorted.csv").write_text(csv_text(columns))
    (tmp_path / "mixed.csv").write_text(csv_text(shuffled(columns)) + "1,m2,3,noon\n")
    wanted = record_of(spider("sorted.csv", *COLUMNS, *FAST, "--json"))["score"]
    found = record_of(spider("mixed.csv", *COLUMNS, *FAST, "--time", "when", "--on-bad", "skip", "--json"))
    assert found["score"] == pytest.approx(wanted, rel=1e-9)


def test_how_a_file_is_written_missing_ids_and_bins(spider, tmp_path):
    columns = table()
    plain = csv_text(columns)
    (tmp_path / "r.csv").write_text(plain)
    wanted = record_of(spider("r.csv", *COLUMNS, *FAST, "--json"))
    german = plain.replace(".", "_").replace(",", ";").replace("_", ",")
    (tmp_path / "d.csv").write_text(german, encoding="utf-16")
    how = ("--delimiter", ";", "--decimal", ",", "--encoding", "utf-16")
    assert record_of(spider("d.csv", *COLUMNS, *FAST, *how, "--json"))["score"] == wanted["score"]
    (tmp_path / "gap.csv").write_text(plain + ",m1,3\n")
    assert "user is missing" in spider("gap.csv", *COLUMNS, *FAST)[2]
    own = record_of(spider("gap.csv", *COLUMNS, *FAST, "--missing-id", "own", "--json"))
    assert (own["entries"], own["nodes"]["user"]) == (601, 21)
    skipped = record_of(spider("gap.csv", *COLUMNS, *FAST, "--missing-id", "skip", "--json"))
    assert skipped["score"] == wanted["score"]
    binned = record_of(spider("r.csv", *COLUMNS, *FAST, "--bin", "user=width:5", "--json"))
    assert binned["nodes"]["user"] == 4
    assert "bins need a mode" in spider("r.csv", *COLUMNS, "--bin", "rating=width:5")[2]


# --- the honest clock, and models that rest


def with_times(columns: dict[str, list], minutes_late: int) -> dict[str, list]:
    start = [START + timedelta(minutes=minute) for minute in range(len(columns["user"]))]
    end = [each + timedelta(minutes=minutes_late) for each in start]
    return columns | {
        "start": [each.isoformat() for each in start],
        "end": [each.isoformat() for each in end],
    }


def test_values_known_later_are_learned_later(spider, tmp_path):
    (tmp_path / "r.csv").write_text(csv_text(shuffled(with_times(table(), 60))))
    clock = ("--time", "start", "--known-at", "end")
    late = record_of(spider("r.csv", *COLUMNS, *FAST, *clock, "--json"))
    assert late["case"] == "values known after 60 minutes (median)"
    assert late["protocol"] == "clock"
    same = record_of(spider("r.csv", *COLUMNS, *FAST, "--time", "start", "--delay", "1h", "--json"))
    assert same["score"] == late["score"]
    entries = record_of(spider("r.csv", *COLUMNS, *FAST, "--time", "start", "--delay", "60", "--json"))
    np.testing.assert_allclose(entries["score"], late["score"])  # one row a minute
    at_once = record_of(spider("r.csv", *COLUMNS, *FAST, "--time", "start", "--json"))
    assert at_once["case"] == "next entry"
    assert late["score"] > at_once["score"]


def test_a_value_known_before_it_is_asked_for_makes_a_bad_row(spider, tmp_path):
    columns = with_times(table(), 60)
    columns["end"][7] = (START - timedelta(days=1)).isoformat()
    (tmp_path / "r.csv").write_text(csv_text(columns))
    clock = ("--time", "start", "--known-at", "end")
    code, _, err = spider("r.csv", *COLUMNS, *FAST, *clock)
    assert code == 2
    assert "line 9" in err
    assert "earlier than start" in err
    record = record_of(spider("r.csv", *COLUMNS, *FAST, *clock, "--on-bad", "skip", "--json"))
    assert record["bad_rows"] == 1


def test_a_model_that_rests_is_fitted_three_times(spider, tmp_path):
    (tmp_path / "r.csv").write_text(csv_text(with_times(table(1500), 60)))
    record = record_of(spider("r.csv", *COLUMNS, "--time", "start", "--rest", "0.1", "--json"))
    assert (record["protocol"], record["case"], record["n_scored"]) == ("rest", "at rest", 450)
    assert set(record["floors"]) == {"mean", "biases", "static-biases"}
    assert record["score"] < record["floors"]["mean"]["score"]  # values grow, so neither is good


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--known-at", "end"), "--known-at needs --time"),
        (("--time", "start", "--known-at", "end", "--delay", "1h"), "only one of --known-at and --delay"),
        (("--delay", "soon"), "30m, 3h or 2d"),
        (("--delay", "1h"), "--time"),
        (("--rest", "0.5"), "a share up to 0.25"),
        (("--rest", "0.1", "--protocol", "prequential"), "--rest is for --protocol rest"),
        (("--protocol", "clock"), "--known-at, or a --delay"),
    ],
)
def test_options_of_time_that_do_not_fit_are_one_clear_line(spider, tmp_path, arguments, part):
    (tmp_path / "r.csv").write_text(csv_text(with_times(table(), 60)))
    code, out, err = spider("r.csv", *COLUMNS, *FAST, *arguments)
    assert (code, out) == (2, "")
    assert part in err
    assert err.count("\n") == 1


def test_the_resting_error_needs_only_its_protocol(spider, tmp_path):
    (tmp_path / "r.csv").write_text(csv_text(table() | {"when": list(range(600))}))
    asked = ("r.csv", *COLUMNS, *FAST, "--time", "when", "--json")
    record = record_of(spider(*asked, "--protocol", "rest"))
    assert record["case"] == "at rest"
    assert record["score"] == record_of(spider(*asked, "--rest", "0.1"))["score"]
    code, _, err = spider(*asked, "--rest", "0.001")
    assert (code, "leaves nothing to predict" in err) == (2, True)


def test_the_clock_says_what_it_does_not_score(spider, tmp_path):
    (tmp_path / "r.csv").write_text(csv_text(table()))
    record = record_of(spider("r.csv", *COLUMNS, *FAST, "--delay", "200", "--batch-size", "16", "--json"))
    assert record["case"] == "values known after 200 entries (median)"
    assert record["skipped"] > 200
    assert (
        f"the first {record['skipped']} entries of the stream are learned but not scored" in record["notes"]
    )
