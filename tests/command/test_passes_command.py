"""`spider fit` learns a file in several passes, and everything else once."""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import spidertensor
from command_line import FIT, csv_text, started, table
from spidertensor import Context, SpiderRegressor
from spidertensor.cli import progress
from spidertensor.cli.progress import Progress
from spidertensor.cli.run import Run
from spidertensor.estimator import arranged, collected, known_later
from spidertensor.sources import lines
from spidertensor.spider import site_store

pytestmark = pytest.mark.usefixtures("folder", "warm_kernels")

N = 1500
ONE = (*FIT, "--committee", "1")  # for speed
PROBE = [(user, f"m{movie}") for user in range(30) for movie in range(20)]
SHOWN = """
import sys
from spidertensor import cli
from spidertensor import Context, SpiderRegressor
from spidertensor.cli import progress
progress.LINE_EVERY_S = 0.0
cli.main(sys.argv[1:])
"""


@pytest.fixture
def source(folder) -> Path:
    (folder / "a.csv").write_text(csv_text(table(N)))
    return folder / "a.csv"


@pytest.fixture
def fit(spider):
    """Call `spider fit`, which must succeed: its summary as JSON."""

    def call(*arguments) -> dict:
        code, out, err = spider("fit", *arguments, "--model", "m.spider", "--quiet", "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return call


def timed(rows) -> str:
    """A file with a time for each row, which is the place of the row among `rows`."""
    return "user,movie,rating,when\n" + "".join(f"{u},{m},{r},{when}\n" for when, (u, m, r) in rows)


def passes(path="m.spider") -> list[float]:
    """The error after each pass."""
    history = spidertensor.load(path).history_
    assert history is not None
    return history["errors"]


def predicted(path="m.spider") -> np.ndarray:
    return spidertensor.load(path).predict(PROBE)


def truth() -> np.ndarray:
    """What `table` draws its values around."""
    return np.array([3 + np.sin(user) + np.cos(int(movie[1:])) for user, movie in PROBE])


def error(path="m.spider") -> float:
    return float(np.sqrt(np.mean((predicted(path) - truth()) ** 2)))


# --- how often


def test_a_file_is_learned_in_several_passes(source, fit, spider):
    summary = fit(source, *ONE)
    history = summary["history"]
    assert len(history["errors"]) > 1
    assert 1 <= history["chosen"] <= len(history["errors"]) <= 20
    assert 0 < history["judged"] < N / 2
    assert history["judge"] == "random"
    assert summary["once"] is None
    # each row counts once, and the score is of all of them
    assert (summary["entries"], summary["entries_now"], summary["row"]) == (N, N, N + 1)
    assert spidertensor.load("m.spider").n_entries_ == N
    assert json.loads(spider("info", "m.spider", "--json")[1])["history"] == history
    error = f"RMSE {history['errors'][history['chosen'] - 1]:.4f}"
    floors = (
        f"the running mean {history['floors']['mean']:.4f}, online biases {history['floors']['biases']:.4f}"
    )
    for command in (("fit", source, *ONE, "--force"), ("info", "m.spider")):  # the file keeps what was shown
        said = " ".join(spider(*command)[1].split())
        assert f"passes {len(history['errors'])}: {history['stopped']}" in said
        assert f"each pass RMSE {', '.join(f'{each:.4f}' for each in history['errors'])}" in said
        assert f"at rest {error} on random {history['judged']} entries held back; {floors}" in said
        assert f"sites {history['sites']}" in said
    # entries held back: noise of 0.3 around an additive truth, which varies by 1
    assert 0.27 < min(history["errors"]) < history["floors"]["biases"] < 0.5 < history["floors"]["mean"] < 1.5


def test_a_long_run_tells_the_end_of_each_pass(source, fit, spider, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    errors = fit(source, *ONE, "--passes", "3")["history"]["errors"]
    lines = spider("fit", source, *ONE, "--passes", "3", "--force")[2].splitlines()
    ends = [line for line in lines if "on rows held back" in line and "after pass" not in line]
    assert len(ends) == 3
    for number, (error, line) in enumerate(zip(errors, ends, strict=True), 1):
        assert f"pass {number}: RMSE {error:.4f} on rows held back" in line
    assert "(sites of " in ends[0]


def test_the_model_is_that_of_the_estimators_fit(source, fit):
    fit(source, *ONE)
    model = spidertensor.SpiderRegressor(rank=2, hidden=(4,), committee=1)
    model.fit([row[:2] for row in table(N)], [row[2] for row in table(N)])
    np.testing.assert_array_equal(predicted(), model.predict(PROBE))
    assert spidertensor.load("m.spider").get_params() == model.get_params()


def test_so_many_passes(source, fit):
    history = fit(source, *ONE, "--passes", "3")["history"]
    assert len(history["errors"]) == 3
    assert history["stopped"] == "passes is 3"
    assert len(fit(source, *FIT, "--paper", "--passes", "2", "--force")["history"]["errors"]) == 2
    summary = fit(source, *ONE, "--passes", "1", "--force")
    assert summary["history"] is None
    assert summary["once"] == "rows are learned once, in order, because passes is 1"
    model = spidertensor.SpiderRegressor(rank=2, hidden=(4,), committee=1)
    model.partial_fit([row[:2] for row in table(N)], [row[2] for row in table(N)])
    np.testing.assert_array_equal(predicted(), model.predict(PROBE))


def test_few_rows_are_learned_once(folder, fit):
    (folder / "few.csv").write_text(csv_text(table(999)))
    assert fit("few.csv", *ONE)["history"] is None
    auto = predicted()
    fit("few.csv", *ONE, "--passes", "1", "--force")
    np.testing.assert_array_equal(predicted(), auto)


@pytest.mark.parametrize("number", ["0", "x", "-1", "1.5", "²", ""])
def test_no_number_of_passes(source, fails, number):
    assert f"--passes takes a whole number from 1 on, or auto, not {number!r}" in fails(
        "fit", source, *FIT, f"--passes={number}"
    )
    assert not Path("a.spider").exists()


# --- the order


def test_random_order(source, fit, fails):
    summary = fit(source, *ONE, "--shuffle")
    assert summary["history"] is None
    assert summary["entries"] == N
    shuffled = predicted()
    fit(source, *ONE, "--passes", "1", "--force")
    assert (predicted() != shuffled).all()
    for other in (("--passes", "2"), ("--passes", "1"), ("--time", "rating")):
        assert "--shuffle is one pass in random order" in fails("fit", source, *FIT, "--shuffle", *other)


@pytest.mark.parametrize("in_memory", [0, 2**26], ids=["in a file", "in memory"])
@pytest.mark.parametrize("once", [("--passes", "1"), ()])
def test_the_order_of_time(folder, fit, once, in_memory, monkeypatch):
    """However the rows stand in the file, bit for bit; and the latest of them are the judge."""
    monkeypatch.setattr(collected, "IN_MEMORY", in_memory)
    rows = list(enumerate(table(N)))
    (folder / "sorted.csv").write_text(timed(rows))
    (folder / "mixed.csv").write_text(timed(mixed(rows)))
    first = fit("sorted.csv", *ONE, "--time", "when", *once)
    by_time, nodes = predicted(), spidertensor.load("m.spider").factors_
    second = fit("mixed.csv", *ONE, "--time", "when", *once, "--force")
    np.testing.assert_array_equal(predicted(), by_time)
    for one, other in zip(nodes, spidertensor.load("m.spider").factors_, strict=True):
        assert one.ids == other.ids
    assert (first["history"] is None) == bool(once)
    if not once:
        assert first["history"]["judge"] == "latest"
        assert first["history"] == second["history"]
    fit("mixed.csv", *ONE, *once, "--force")
    assert (predicted() != by_time).any()


def mixed(rows: list) -> list:
    return [rows[place] for place in np.random.default_rng(1).permutation(len(rows))]


def test_a_time_is_needed_only_to_fit(folder, fit, spider):
    rows = list(enumerate(table(N)))
    (folder / "a.csv").write_text(timed(rows))
    fit("a.csv", *ONE, "--time", "when")
    (folder / "pairs.csv").write_text("user,movie\n1,m1\n")
    code, out, _ = spider("predict", "m.spider", "pairs.csv")
    assert (code, out.count("\n")) == (0, 2)
    (folder / "more.csv").write_text(csv_text(table(20, seed=1)))
    assert fit("more.csv", "--add")["entries"] == N + 20


def test_wrong_times(source, folder, fails):
    for column in ("user", "rating"):
        said = fails("fit", source, *FIT, "--time", column)
        assert f"--time {column}: name a column that is neither a mode nor the value" in said
    assert "no column 'when' (there are: user, movie, rating)" in fails("fit", source, *FIT, "--time", "when")
    rows = timed(enumerate(table(N))).splitlines(keepends=True)
    rows[700] = "1,m1,2.5,\n"
    (folder / "gap.csv").write_text("".join(rows))
    said = fails("fit", "gap.csv", *FIT, "--time", "when")
    assert "gap.csv line 701" in said
    assert "time is missing" in said
    assert not list(folder.glob("*.spider"))


def test_a_file_sorted_by_a_mode_is_learned_like_a_shuffled_one(folder, fit):
    (folder / "sorted.csv").write_text(csv_text(sorted(table(N))))
    (folder / "mixed.csv").write_text(csv_text(table(N)))
    for name in ("sorted", "mixed"):
        fit(f"{name}.csv", *ONE)
        Path("m.spider").rename(f"{name}.spider")
    assert error("sorted.spider") < 1.5 * error("mixed.spider") < 0.5 * truth().std()


# --- a file larger than memory


def test_a_file_larger_than_memory(source, folder, fit, spider, monkeypatch):
    """It is learned as well, and no file but the model is left."""
    fit(source, *ONE, "--passes", "4")
    in_memory = error()
    monkeypatch.setattr(collected, "IN_MEMORY", 0)
    monkeypatch.setattr(arranged, "BUCKET_BYTES", 4_000)
    monkeypatch.setattr(site_store, "IN_MEMORY", 0)
    summary = fit(source, *ONE, "--passes", "4", "--force")
    assert error() == pytest.approx(in_memory, rel=0.3)
    assert summary["entries"] == N
    assert "in a file" in summary["history"]["sites"]
    assert {path.name for path in folder.iterdir()} <= {"a.csv", "m.spider", "m.spider.lock"}
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    _, _, err = spider("fit", source, *ONE, "--passes", "2", "--model", "m.spider", "--force")
    assert "on rows held back (sites of " in err


# --- what is learned once


def test_a_pipe_is_learned_once(source, spider, monkeypatch):
    with source.open() as file, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", file)
        code, out, _ = spider("fit", "-", *ONE, "--model", "m.spider")
    assert code == 0
    assert "passes 1: a pipe is learned once, in order" in " ".join(out.split())
    piped = predicted()
    assert spider("fit", source, *ONE, "--passes", "1", "--model", "m.spider", "--force")[0] == 0
    np.testing.assert_array_equal(predicted(), piped)


def test_more_rows_of_a_known_model_are_learned_once(source, folder, fit, spider, fails):
    history = fit(source, *ONE)["history"]
    model, more = spidertensor.load("m.spider"), table(1200, seed=1)
    with source.open("a") as file:
        file.write(csv_text(more, header=""))
    summary = fit(source, *ONE, "--resume")
    assert (summary["entries"], summary["entries_now"]) == (N + 1200, 1200)
    assert summary["once"] == "what a known model gets is learned once, in order"
    assert summary["history"] == history  # of the first rows
    model.partial_fit([row[:2] for row in more], [row[2] for row in more])
    np.testing.assert_array_equal(predicted(), model.predict(PROBE))
    (folder / "b.csv").write_text(csv_text(table(1100, seed=2)))
    assert fit("b.csv", "--add")["once"] == "what a known model gets is learned once, in order"
    for option in (("--passes", "2"), ("--passes", "auto"), ("--time", "when"), ("--shuffle",)):
        said = fails("fit", source, "--model", "m.spider", "--add", "--again", *option)
        assert f"{option[0]}: what a known model gets is learned once, in order" in said


def test_rows_with_predictions_are_learned_once(source, fit, fails):
    summary = fit(source, *ONE, "--predictions", "p.csv")
    assert summary["once"] == "a file with --predictions is learned once, in order"
    assert Path("p.csv").read_text().count("\n") == N + 1
    assert "--passes: a file with --predictions" in fails(
        "fit", source, *ONE, "--predictions", "q.csv", "--passes", "2"
    )


def test_models_that_learn_once(source, fit, fails):
    how, limit = ONE, ("--max-nodes", "25")
    assert fit(source, *how, *limit)["once"].startswith("rows are learned once, in order, because ")
    for option in (
        ("--passes", "2"),
        ("--time", "when"),
        ("--passes", "1", "--time", "when"),
        ("--shuffle",),
    ):
        said = fails("fit", source, *how, *limit, *option)
        assert said.startswith(
            f"spider: {option[-2] if len(option) > 1 else option[0]}: rows are learned once"
        )


# --- stopping


def test_a_signal_in_a_later_pass_ends_with_a_sound_model(source, spider):
    with started(
        "fit", source, *ONE, "--model", "m.spider", "--passes", "2000", program=SHOWN, text=True
    ) as running:
        for line in running.stderr:
            if "pass 3" in line:
                break
        running.send_signal(signal.SIGINT)
        said = running.stderr.read()
        assert running.wait(60) == 128 + signal.SIGINT
    done = len(passes())
    assert 2 <= done < 2000
    assert f"stopped by SIGINT after line 1,501 of {source}: saved m.spider after {done} passes" in said
    facts = json.loads(spider("info", "m.spider", "--json")[1])
    assert (facts["entries"], facts["position"]["row"]) == (N, N + 1)
    assert facts["history"]["stopped"] == "stopped"
    assert error() < 0.5 * truth().std()
    code, out, _ = spider("fit", source, *ONE, "--model", "m.spider", "--resume")
    assert code == 0
    assert "nothing new to learn" in out


def test_a_signal_in_the_first_pass_waits_for_its_end(source, spider, monkeypatch):
    show, calls = Progress.show_pass, []

    def stopping(self, number, over):
        if not calls:
            os.kill(os.getpid(), signal.SIGTERM)
        calls.append(number)
        show(self, number, over)

    monkeypatch.setattr(Progress, "show_pass", stopping)
    code, _, err = spider("fit", source, *ONE, "--model", "m.spider", "--batch-size", "64")
    assert code == 128 + signal.SIGTERM
    assert "finishing the first pass" in err
    assert "saved m.spider after 1 pass\n" in err
    assert (spidertensor.load("m.spider").n_entries_, len(passes())) == (N, 1)
    assert error() < 0.5 * truth().std()


def test_a_signal_while_reading_saves_nothing(source, spider, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 3000)
    learn, calls = Run.learn, []

    def stopping(self, chunk, rejected):
        learn(self, chunk, rejected)
        calls.append(chunk)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Run, "learn", stopping)
    code, _, err = spider("fit", source, *ONE, "--model", "m.spider", "--checkpoint-every", "0s")
    assert code == 128 + signal.SIGINT
    assert "nothing learned yet" in err
    assert not Path("m.spider").exists()


@pytest.mark.parametrize("at", [1, 12])
def test_an_error_in_a_pass_saves_nothing(source, spider, monkeypatch, at):
    """A file that holds some of the rows would say that it holds all."""
    show, calls = Progress.show_pass, []

    def broken(self, number, over):
        calls.append(number)
        if len(calls) == at:
            raise OSError(28, "No space left")
        show(self, number, over)

    monkeypatch.setattr(Progress, "show_pass", broken)
    code, out, err = spider("fit", source, *ONE, "--model", "m.spider")
    assert (code, out) == (2, "")
    assert "No space left" in err
    assert "saved" not in err
    assert not Path("m.spider").exists()


# --- values far off


def test_a_value_far_off_is_refused_wherever_it_stands(folder, fit):
    """Also where most values are equal, so that it would stand out little from the scale it makes."""
    rows = [(u, m, 1.0 + (n % 4 == 0)) for n, (u, m, _) in enumerate(table(N))]
    rows[1300] = (*rows[1300][:2], 1e30)
    (folder / "far.csv").write_text(csv_text(rows))
    for how in ((), ("--passes", "1")):
        assert fit("far.csv", *ONE, "--on-bad", "skip", "--force", *how)["bad_rows"] == 1
        assert np.abs(predicted()).max() < 10


def test_a_scaling_that_is_given_counts(folder, spider):
    rows = table(N)
    rows[1300] = (*rows[1300][:2], 1e30)
    (folder / "far.csv").write_text(csv_text(rows))
    code, out, _ = spider("fit", "far.csv", *ONE, "--scaling", "0,1e25", "--json")
    assert (code, json.loads(out)["entries"], json.loads(out)["bad_rows"]) == (0, N, 0)


# --- values that are known later


def late(rows, as_time=str, delay=30.0) -> str:
    """A file with when each row is asked for, and when its value is known."""
    lines = [
        f"{u},{m},{r},{as_time(60 * n)},{as_time(60 * (n + (delay if n % 2 else 2 * delay)))}\n"
        for n, (u, m, r) in rows
    ]
    return "user,movie,rating,asked,known\n" + "".join(lines)


def iso(seconds: float, zone: int = 0) -> str:
    return datetime.fromtimestamp(seconds, timezone(timedelta(hours=zone))).isoformat()


LATE = (*ONE, "--time", "asked", "--known-at", "known")


def test_values_are_learned_when_they_are_known(folder, fit, spider):
    rows = list(enumerate(table(N)))
    (folder / "a.csv").write_text(late(rows))
    summary = fit("a.csv", *LATE)
    assert summary["case"] == "values known after 2,700 (median); floors know them at once"
    assert summary["once"] == "rows are learned when known says that their values are known"
    assert (summary["entries"], summary["history"]) == (N, None)
    users, movies, ratings = zip(*table(N), strict=True)
    times = {"asked": [60 * n for n in range(N)]}
    times["known"] = [60 * (n + (30 if n % 2 else 60)) for n in range(N)]
    model = spidertensor.SpiderRegressor(
        rank=2, hidden=(4,), committee=1, time="asked", known_at="known"
    ).fit(pa.table({"user": users, "movie": movies} | times), ratings)
    np.testing.assert_array_equal(predicted(), model.predict(PROBE))
    assert "(values known after 2,700 (median);" in " ".join(
        spider("fit", "a.csv", *LATE, "--force")[1].split()
    )


def test_the_order_and_the_spelling_of_times_do_not_matter(folder, fit):
    """Also where the clock on the wall goes back: asked for at 02:50+02:00, known at 02:10+01:00."""
    rows = list(enumerate(table(N)))
    spellings = {
        "numbers": late(rows),
        "mixed": late(mixed(rows)),
        "iso": late(rows, lambda seconds: iso(seconds)[:19]),
        "zones": late(rows, lambda seconds: iso(seconds, zone=int(seconds) // 60 % 3)),
    }
    found = {}
    for name, text in spellings.items():
        (folder / f"{name}.csv").write_text(text)
        summary = fit(f"{name}.csv", *LATE, "--force")
        assert summary["entries"] == N
        found[name] = predicted()
    assert summary["case"].startswith("values known after 45 minutes (median)")
    for name in spellings:
        np.testing.assert_array_equal(found[name], found["numbers"], name)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ("1,m1,2.5,70,60", "line 1502: column known: the value is known before asked, when it is predicted"),
        ("1,m1,2.5,70,", "line 1502: column known: a time is missing"),
        ("1,m1,2.5,70,noon", "line 1502: column known: the time 'noon' is neither a number nor"),
        ("1,m1,2.5,70,inf", "line 1502: column known: the time inf is not finite"),
        ("1,m1,2.5,70,2026-01-01", "line 1502: column known: this time is unlike the others"),
    ],
)
def test_wrong_times_of_values(folder, fit, fails, rows, reason):
    (folder / "a.csv").write_text(late(enumerate(table(N))) + rows + "\n")
    assert reason in fails("fit", "a.csv", *LATE)
    summary = fit("a.csv", *LATE, "--on-bad", "skip")
    assert (summary["entries"], summary["bad_rows"]) == (N, 1)


def test_options_that_do_not_go_with_known_at(folder, fails):
    (folder / "a.csv").write_text(late(enumerate(table(9))))
    for options, reason in (
        (("--known-at", "known"), "--known-at needs --time"),
        ((*LATE[len(ONE) :], "--passes", "2"), "no --passes"),
        (("--time", "asked", "--known-at", "rating"), "neither a mode nor the value"),
        ((*LATE[len(ONE) :], "--max-nodes", "5"), "max_nodes"),
    ):
        assert reason in fails("fit", "a.csv", *ONE, *options)


def test_a_signal_leaves_no_row_out(folder, spider, monkeypatch):
    """What is asked for and not yet known would be lost: the pass is finished, and more rows learned once."""
    (folder / "a.csv").write_text(late(enumerate(table(N))))
    show, calls = Progress.show_pass, []

    def stopping(self, number, over):
        if not calls:
            os.kill(os.getpid(), signal.SIGINT)
        calls.append(number)
        show(self, number, over)

    monkeypatch.setattr(known_later, "STEP_ENTRIES", 100)
    monkeypatch.setattr(Progress, "show_pass", stopping)
    code, _, err = spider("fit", "a.csv", *LATE, "--model", "m.spider")
    assert code == 128 + signal.SIGINT
    assert "finishing the first pass" in err
    assert len(calls) > 5
    assert spidertensor.load("m.spider").n_entries_ == N
    with (folder / "a.csv").open("a") as file:
        file.write("1,m1,2.5,1,2\n")
    code, out, _ = spider("fit", "a.csv", *ONE, "--model", "m.spider", "--resume", "--json")
    assert (code, json.loads(out)["entries_now"]) == (0, 1)
    assert json.loads(out)["case"].startswith("next entry")


def test_attributes_of_a_file_do_not_depend_on_the_order_of_its_rows(folder, fit):
    """A file sorted by a number, whose first rows have few different rooms, and all of them whole prices."""
    rng = np.random.default_rng(0)
    price = np.sort(rng.lognormal(1, 0.7, size=N)).round(2)
    price[:300] = price[:300].round()
    day = rng.integers(300, size=N)
    sold = np.datetime64("2024-01-01") + day
    rows = [
        f"u{each % 30},m{each % 20},{value},{each // 30},{sold[each]},"
        f"{np.log(value + 1) + 0.1 * rng.normal():.3f}\n"
        for each, value in enumerate(price.tolist())
    ]
    options = ("--modes", "user,movie,offer=price+rooms+sold", "--value", "y", "--committee", "1")
    columns, errors = [], []
    for order in (np.arange(N), rng.permutation(N)):
        text = "user,movie,price,rooms,sold,y\n" + "".join(rows[each] for each in order)
        (folder / "a.csv").write_text(text)
        fit("a.csv", *options, "--force")
        model = spidertensor.load("m.spider")
        assert model.n_entries_ == N
        errors.append(model.history_["errors"][-1])
        arrays = model._learned.columns.to_arrays()
        knots = [arrays[name].tolist() for name in ("0/grid", "1/grid", "2/trend")]
        columns.append((model._learned.columns.kinds, knots))
    assert columns[0] == columns[1]
    assert columns[0][0] == {"price": "number", "rooms": "number", "sold": "calendar"}
    assert columns[0][1][0][0] == np.median(price)
    assert max(errors) < 1.3 * min(errors)
    frame = pd.read_csv(folder / "a.csv")
    modes = {"user": [], "movie": [], "offer": Context("price", "rooms", "sold")}
    whole = SpiderRegressor(modes=modes, committee=1).fit(frame, frame.y)
    np.testing.assert_array_equal(model.predict(frame), whole.predict(frame))


def test_few_rows_with_attributes_are_those_of_one_call(folder, fit):
    """Their first batch decides, as of any rows that are learned once."""
    rows = "".join(f"u{each % 9},m{each % 7},{each / 8},{each % 5}\n" for each in range(600))
    (folder / "a.csv").write_text("user,movie,price,y\n" + rows)
    fit("a.csv", "--modes", "user,movie,offer=price", "--value", "y", "--committee", "1")
    model = spidertensor.load("m.spider")
    assert model._learned.columns.to_arrays()["0/grid"][0] == np.median(np.arange(256) / 8)
