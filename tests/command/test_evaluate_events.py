"""`spider evaluate` of events: nodes are ranked, beside popularity."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

from spidertensor import Many, SpiderClassifier, cli
from spidertensor.cli import ranked_events
from spidertensor.cli.ranked_events import HEADER
from spidertensor.estimator import event_rule
from spidertensor.estimator.columns import Context, Schema, Value
from spidertensor.evaluation.last_out import last_out, split_last
from spidertensor.evaluation.with_attributes import of_events
from spidertensor.method import Batch

pytestmark = pytest.mark.usefixtures("warm_kernels")
PREQUENTIAL = ("--protocol", "prequential")


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
    once = ("--on-bad", "skip", "--passes", "1")
    code, out, err = spider(*file, *once, "--time", "when", "--json")
    assert code == 0, err
    record = json.loads(out)
    assert (record["protocol"], record["over"], record["passes"]) == ("last-out", "song", 1)
    assert record["n_entries"] + record["n_scored"] == 3000
    own, floor = (record["ranks"][name]["full"] for name in ("spider", "popularity"))
    assert own["mrr"] > 1.2 * floor["mrr"]
    by_rows = json.loads(spider(*file, *once, "--json")[1])
    assert by_rows["ranks"]["popularity"] != record["ranks"]["popularity"]  # other events are the last
    ranked = spider(*file, "--on-bad", "skip", "--protocol", "prequential")[1]
    assert "first tenth" in " ".join(ranked.split())
    assert "song is missing" in " ".join(spider(*file)[2].split())


@pytest.mark.parametrize("time", [(), ("--time", "when")])
def test_events_are_ranked_after_several_passes(spider, plays, time, monkeypatch):
    """As `spider fit` learns them, but for the last event of each user."""
    monkeypatch.setattr(event_rule, "FIT_NEGATIVES", 4)
    file = (plays, "--modes", "user,song", "--events", "--over", "song", "--on-bad", "skip", *time)
    code, out, err = spider(*file, "--passes", "2", "--rank", "2", "--json")
    assert code == 0, err
    record = json.loads(out)
    assert record["passes"] == 2
    assert record["n_entries"] + record["n_scored"] == 3000
    own, floor = (record["ranks"][name]["full"] for name in ("spider", "popularity"))
    assert own["mrr"] > 1.2 * floor["mrr"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ("--modes", "user,song", "--events", "--over", "song", "--passes", "x"),
            "--passes takes a whole number",
        ),
        (
            (
                "--modes",
                "user,song",
                "--events",
                "--over",
                "song",
                "--protocol",
                "prequential",
                "--passes",
                "3",
            ),
            "--passes: --protocol prequential is one pass",
        ),
        (
            ("--modes", "user,song", "--value", "when", "--passes", "3"),
            "--passes: --protocol prequential is one pass",
        ),
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


def test_a_note_where_a_floor_is_ahead(spider, tmp_path):
    """Everyone likes the same songs, so there is nothing else to learn."""
    rng = np.random.default_rng(0)
    songs = np.minimum(rng.geometric(0.05, 2000), 60)
    rows = [f"u{user},s{song}" for user, song in zip(rng.integers(100, size=2000), songs, strict=True)]
    (tmp_path / "plays.csv").write_text("\n".join(["user,song", *rows]))
    record = json.loads(
        spider(
            str(tmp_path / "plays.csv"), "--modes", "user,song", "--events", "--over", "song",
            "--passes", "1", "--committee", "1", "--rank", "2", "--json",
        )[1]
    )  # fmt: skip
    own = record["ranks"]["spider"]["full"]
    for name in ("popularity", "item cosine"):
        floor = record["ranks"][name]["full"]
        ahead = [metric for metric, key in HEADER.items() if floor[key] > own[key]]
        note = f"{name} ranks these events better than spider, by {' and '.join(ahead)}"
        assert (note in record["notes"]) == bool(ahead)
    assert any("popularity ranks" in note for note in record["notes"])
    ranked = record["ranks"] | {"spider": {"full": own | dict.fromkeys(HEADER.values(), 1.0)}}
    assert ranked_events._behind("spider", ranked) == []


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


# --- with attributes

SMALL = {"rank": 2, "hidden": (4,), "committee": 1}
HAD = ("user", "taste", "song", "genres", "hour")


def log(n: int, users: int, songs: int) -> dict[str, np.ndarray]:
    """What users played: each hears songs of one of three genres, and each song once in a while."""
    rng = np.random.default_rng(0)
    user, song = rng.integers(users, size=n), rng.integers(songs // 3, size=n)
    song = 3 * song + user % 3
    names = np.array(["rock|loud", "jazz", "folk|quiet"], object)
    columns = {"user": np.array([f"u{each}" for each in user], object)}
    columns |= {"taste": np.array(["a", "b", "c"], object)[user % 3]}
    columns |= {"song": np.array([f"s{each}" for each in song], object)}
    return columns | {"genres": names[song % 3], "hour": rng.integers(24, size=n)}


def test_attributes_rank_as_recommend_does():
    """Nodes in place of an event's own have attributes of their own; the context is the event's."""
    table = log(700, users=60, songs=120)
    schema = Schema.parse(
        {"user": ["taste"], "song": [Many("genres", sep="|")], "when": Context(Value("hour"))}
    )
    users, songs = (np.unique(table[name], return_inverse=True) for name in ("user", "song"))
    events = Batch(np.stack([users[1], songs[1], np.arange(700)], axis=1), np.ones(700))
    method = of_events(table, schema, "song", lambda estimator: None, SMALL)
    about = {"over": 1, "n_nodes": len(songs[0]), "n_modes": 2}
    full, _ = last_out(method, events, batch_size=100, seed=3, **about)

    split = split_last(events, 1, n_modes=2)
    model = SpiderClassifier(modes=schema, negatives=8, negatives_over="song", random_state=3)
    model.set_params(**SMALL)
    ranks = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for start in range(0, len(split.train.value), 100):
            rows = split.train.index[start : start + 100, 2]
            model.partial_fit({name: table[name][rows] for name in HAD})
        for user, song, row in split.held.tolist():
            had = set(table["song"][split.train.index[split.train.index[:, 0] == user, 2]])
            given = {"user": table["user"][row], "hour": table["hour"][row]}
            listed = model.recommend(given, "song", n=1000, exclude=list(had))
            order = [each.id for each in listed]
            ranks.append(order.index(songs[0][song]) + 1 if songs[0][song] in order else np.inf)
    assert full["n_scored"] == len(ranks) > 20
    assert full["mrr"] == pytest.approx(np.mean(1 / np.array(ranks)))
    assert full["hr_10"] == np.mean(np.array(ranks) <= 10)


@pytest.mark.slow
def test_attributes_of_songs_help_to_rank_them(spider, tmp_path):
    """Popularity learns from ids alone, and so is what it is without attributes."""
    table = log(1600, users=400, songs=600)
    lines = [",".join(map(str, row)) for row in zip(*(table[name] for name in HAD), strict=True)]
    (tmp_path / "plays.csv").write_text("\n".join([",".join(HAD), *lines]))
    found = {}
    described = ("user+taste,song+genres,when=hour", "--kind", "genres=many:|")
    for name, modes in {"ids": ("user,song",), "attributes": described}.items():
        file = (str(tmp_path / "plays.csv"), "--modes", *modes, "--events", "--over", "song", "--json")
        code, out, err = spider(*file, "--passes", "1")
        assert code == 0, err
        found[name] = json.loads(out)
    own = {name: record["ranks"]["spider"]["full"]["mrr"] for name, record in found.items()}
    assert own["attributes"] > 1.3 * own["ids"]
    assert found["ids"]["ranks"]["popularity"] == found["attributes"]["ranks"]["popularity"]
    assert found["attributes"]["attributes"] == {"taste": "value", "genres": "many", "hour": "value"}
    ranked = spider(*file, "--protocol", "prequential")[1]
    assert json.loads(ranked)["ranks"]["spider"]["full"]["mrr"] > 0


@pytest.mark.slow
def test_attributes_of_a_file_are_those_of_the_ranked_nodes(spider, tmp_path):
    table = log(1600, users=400, songs=600)
    rows = zip(table["user"], table["taste"], table["song"], strict=True)
    (tmp_path / "plays.csv").write_text("\n".join(["user,taste,song", *(",".join(row) for row in rows)]))
    genres = dict(zip(table["song"], table["genres"], strict=True))
    listed = ["song,genres", *(f"{song},{genre}" for song, genre in genres.items())]
    (tmp_path / "songs.csv").write_text("\n".join(listed))
    file = (str(tmp_path / "plays.csv"), "--events", "--over", "song", "--json", "--modes")
    own = []
    of_file = ("--kind", "genres=many:|", "--attributes", f"song={tmp_path / 'songs.csv'}")
    for modes in (("user,song",), ("user+taste,song+genres", *of_file)):
        code, out, err = spider(*file, *modes, "--passes", "1")
        assert code == 0, err
        own.append(json.loads(out)["ranks"]["spider"]["full"]["mrr"])
    assert own[1] > 1.3 * own[0]


def test_what_events_do_not_allow_is_an_error(spider, plays):
    file = (plays, "--events", "--over", "song", "--on-bad", "skip")
    code, _, err = spider(*file, "--modes", "user,song+recent(user,3)")
    assert code != 0
    assert "'recent(user)' is kept for nodes that are drawn" in " ".join(err.split())


@pytest.mark.slow
def test_attributes_of_events_are_learned_in_passes(spider, tmp_path, monkeypatch):
    monkeypatch.setattr(event_rule, "FIT_NEGATIVES", 4)
    table = log(2000, users=200, songs=300)
    lines = [",".join(map(str, row)) for row in zip(*(table[name] for name in HAD), strict=True)]
    (tmp_path / "plays.csv").write_text("\n".join([",".join(HAD), *lines]))
    modes = ("--modes", "user+taste,song+genres,when=hour", "--kind", "genres=many:|")
    file = (str(tmp_path / "plays.csv"), *modes, "--events", "--over", "song", "--json", "--rank", "2")
    code, out, err = spider(*file, "--passes", "2")
    assert code == 0, err
    ranks = json.loads(out)["ranks"]
    assert ranks["spider"]["full"]["mrr"] > 1.2 * ranks["popularity"]["full"]["mrr"]
