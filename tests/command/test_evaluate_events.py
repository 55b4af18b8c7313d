"""`spider evaluate` of events: nodes are ranked, beside popularity."""

from __future__ import annotations

import json

import numpy as np
import pytest

from spidertensor import cli

pytestmark = pytest.mark.usefixtures("warm_kernels")


@pytest.fixture
def spider(monkeypatch, capsys):
    """Run `spider evaluate`: exit code, standard output, standard error."""
    for name, value in {"NO_COLOR": "1", "COLUMNS": "120", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)

    def run(*arguments):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["evaluate", *arguments])
        out, err = capsys.readouterr()
        return stopped.value.code, out, err

    return run


@pytest.fixture
def plays(tmp_path):
    """A file of such events, with times that run backwards, and one row that is none."""
    rng = np.random.default_rng(1)
    user = rng.integers(40, size=3000)
    song = 2 * np.minimum(rng.geometric(0.1, 3000), 30) + user % 2
    rows = [f"u{u},s{s},{3000 - row}" for row, (u, s) in enumerate(zip(user, song, strict=True))]
    (tmp_path / "plays.csv").write_text("\n".join(["user,song,when", *rows, "u1,,1"]))
    return str(tmp_path / "plays.csv")


def test_events_of_a_file_are_ranked(spider, plays):
    file = (plays, "--modes", "user,song", "--events", "--over", "song")
    code, out, err = spider(*file, "--on-bad", "skip", "--time", "when", "--json")
    assert code == 0, err
    record = json.loads(out)
    assert (record["protocol"], record["over"]) == ("last-out", "song")
    assert record["n_entries"] + record["n_scored"] == 3000
    own, floor = (record["ranks"][name]["full"] for name in ("spider", "popularity"))
    assert own["mrr"] > 1.2 * floor["mrr"]
    by_rows = json.loads(spider(*file, "--on-bad", "skip", "--json")[1])
    assert by_rows["ranks"]["popularity"] != record["ranks"]["popularity"]  # other events are the last
    ranked = spider(*file, "--on-bad", "skip", "--protocol", "prequential")[1]
    assert "first tenth" in " ".join(ranked.split())
    assert "song is missing" in " ".join(spider(*file)[2].split())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--modes", "user,song", "--events"), "--events needs --over"),
        (("--modes", "user,song", "--value", "when", "--over", "song"), "--over needs --events"),
        (
            ("--modes", "user,song", "--events", "--over", "shop"),
            "--over shop: choose one of the modes user, song",
        ),
        (("--events", "--over", "song"), "a file needs --modes to name"),
        (("--modes", "user,song", "--events", "--over", "song", "--binary"), "omit --value, --binary"),
        (
            ("--modes", "user,song", "--events", "--over", "song", "--test", "0.1"),
            "--test does not apply to the events",
        ),
    ],
)
def test_options_of_a_file_that_do_not_fit(spider, plays, arguments, reason):
    code, out, err = spider(plays, *arguments)
    assert code != 0
    assert not out
    assert reason in " ".join(err.split())


def test_the_synthetic_stream_has_no_events(spider):
    code, out, err = spider("synthetic", "--protocol", "last-out")
    assert (code, out) == (2, "")
    assert "last-out is for events" in " ".join(err.split())


def test_bad_rows_of_a_file_of_events_are_counted(spider, tmp_path):
    rng = np.random.default_rng(1)
    rows = [f"{user},{song}" for user, song in rng.integers((9, 30), size=(200, 2))]
    (tmp_path / "plays.csv").write_text("\n".join(["user,song", *rows, *["3,"] * 7]) + "\n")
    file = (str(tmp_path / "plays.csv"), "--modes", "user,song", "--events", "--over", "song")
    how = ("--on-bad", "skip")
    code, out, err = spider(*file, *how, "--json")
    assert code == 0, err
    assert json.loads(out)["bad_rows"] == 7
    assert "bad rows, skipped" in spider(*file, *how)[1]


@pytest.mark.parametrize(
    ("modes", "reason"), [("user,song", "no event can be ranked"), ("song", "needs two modes")]
)
def test_events_that_cannot_be_ranked_are_refused(spider, tmp_path, modes, reason):
    """Each user has one event."""
    rows = ["user,song", *(f"{user},{user % 7}" for user in range(80))]
    (tmp_path / "plays.csv").write_text("\n".join(rows) + "\n")
    arguments = ("--modes", modes, "--events", "--over", "song")
    code, _, err = spider(str(tmp_path / "plays.csv"), *arguments)
    assert code == 2
    assert reason in " ".join(err.split())
