"""Events in the command and in the service: rows without a value."""

from __future__ import annotations

import json
import signal

import numpy as np
import pytest

import spidertensor
from model_files import same
from spidertensor import SpiderClassifier

pytestmark = pytest.mark.usefixtures("folder")

OF_MODEL = ("--committee", "2", "--rank", "2", "--hidden", "4", "--batch-size", "32", "--seed", "7")
SMALL = (*OF_MODEL, "--negatives", "8")
EVENTS = ("--modes", "user,song", "--events", "--over", "song")


def plays(n: int = 400, seed: int = 0) -> list[tuple[str, str]]:
    """Users of two kinds, who hear the songs of their kind."""
    rng = np.random.default_rng(seed)
    user, song = rng.integers(0, 20, n), np.minimum(rng.geometric(0.2, n), 10)
    return [(f"u{u}", f"s{u % 2}-{s}") for u, s in zip(user.tolist(), song.tolist(), strict=True)]


def many_songs(n: int) -> list[tuple[str, str]]:
    return [(user, f"{song}-{place % 3}") for place, (user, song) in enumerate(plays(n))]


def written(path, rows):
    path.write_text("user,song\n" + "".join(f"{user},{song}\n" for user, song in rows))
    return str(path)


def arrays(path):
    return spidertensor.checkpoint.load(path).arrays


def python(rows, **params) -> SpiderClassifier:
    how = {"committee": 2, "rank": 2, "hidden": (4,), "batch_size": 32, "random_state": 7}
    return SpiderClassifier(**how, negatives=8, negatives_over=1, **params).fit(rows)


def test_the_model_is_the_estimators(folder, spider):
    written(folder / "plays.csv", plays())
    told = json.loads(spider("fit", "plays.csv", *EVENTS, *SMALL, "--json")[1])
    assert told["entries"] == 400
    python(plays()).save(folder / "own.spider")
    assert same(arrays(folder / "plays.spider"), arrays(folder / "own.spider"))


def test_floors_learn_the_same_events(folder, spider):
    """Popularity alone is a floor of events, a constant rate is another, and neither is a loss of 0."""
    written(folder / "plays.csv", plays(3000))
    how = ("--json", "--committee", "1", "--negatives", "8", "--passes", "2")
    told = json.loads(spider("fit", "plays.csv", *EVENTS, *how)[1])
    rate = 1 / 9
    constant = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    assert told["metric"] == "log_loss"
    assert told["floors"]["mean"] == pytest.approx(constant, abs=0.02)
    assert told["score"] < told["floors"]["biases"] < told["floors"]["mean"]
    assert told["notes"] == []


def test_a_file_is_learned_in_several_passes(folder, spider):
    """With more negatives than a stream, unless their number is given. What comes later is learned once."""
    rows = many_songs(1600)
    path = written(folder / "plays.csv", rows[:1500])
    how = (*EVENTS, *OF_MODEL, "--passes", "3", "--json")
    told = json.loads(spider("fit", path, *how)[1])
    assert len(told["history"]["errors"]) == 3
    assert told["entries"] == 1500
    model = spidertensor.load(folder / "plays.spider")
    assert model.get_params()["negatives"] == 32
    own = {"committee": 2, "rank": 2, "hidden": (4,), "batch_size": 32, "random_state": 7, "passes": 3}
    SpiderClassifier(**own, negatives=32, negatives_over=1).fit(rows[:1500]).save(folder / "own.spider")
    assert same(arrays(folder / "plays.spider"), arrays(folder / "own.spider"))
    written(folder / "plays.csv", rows)
    spider("fit", path, "--resume")
    assert spidertensor.load(folder / "plays.spider").n_entries_ == 1600
    spider("fit", path, *how, "--negatives", "5", "--force")
    assert spidertensor.load(folder / "plays.spider").get_params()["negatives"] == 5
    once = json.loads(spider("fit", path, *EVENTS, *OF_MODEL, "--passes", "1", "--json", "--force")[1])
    assert once["once"] == "rows are learned once, in order, because passes is 1"
    assert spidertensor.load(folder / "plays.spider").get_params()["negatives"] == 8


def test_resume_and_add_need_no_options(folder, spider, fails):
    rows = plays()
    path = written(folder / "plays.csv", rows[:150])
    spider("fit", path, *EVENTS, *SMALL, "--remember-seen", "user")
    written(folder / "plays.csv", rows[:300])
    spider("fit", path, "--resume")
    more = written(folder / "more.csv", rows[300:])
    spider("fit", more, "--model", "plays.spider", "--add", "--events", "--over", "song")
    python(rows, remember_seen=True).save(folder / "own.spider")
    assert same(arrays(folder / "plays.spider"), arrays(folder / "own.spider"))
    assert "negatives_over" in fails("fit", path, "--resume", "--events", "--over", "user")
    assert "no mode 'shop'" in fails("fit", path, "--resume", "--events", "--over", "shop")


def test_rows_are_learned_in_pieces_that_do_not_show(folder, spider, monkeypatch):
    """A signal waits for the end of a piece, and each event is several entries."""
    lines = [f"{user},{song}" for user, song in plays()]
    lines[100:100] = ["u1", ""]
    (folder / "plays.csv").write_text("\n".join(["user,song", *lines]) + "\n")
    how = (*EVENTS, *SMALL, "--on-bad", "skip", "--json")
    whole = json.loads(spider("fit", "plays.csv", *how, "--model", "whole.spider")[1])
    monkeypatch.setattr("spidertensor.cli.run.BLOCK_ENTRIES", 300)
    parts = json.loads(spider("fit", "plays.csv", *how, "--model", "parts.spider")[1])
    assert whole["bad_rows"] == parts["bad_rows"] == 1
    assert whole["row"] == parts["row"]
    assert same(arrays(folder / "whole.spider"), arrays(folder / "parts.spider"))


def test_a_user_who_had_everything(folder, spider):
    written(folder / "plays.csv", [("a", "x"), ("a", "y"), ("b", "x")] * 20)
    spider("fit", "plays.csv", *EVENTS, *SMALL, "--remember-seen", "user")
    code, out, _ = spider("recommend", "plays.spider", "--given", "user=a", "--over", "song", "--json")
    assert (code, json.loads(out)["nodes"]) == (0, [])
    assert json.loads(out)["notes"][0]["kind"] == "none left"


def test_bad_rows_of_events_and_counts_do_not_speak_of_labels(folder, fails):
    (folder / "a.csv").write_text("user,song,n\nu,s,1.5\nu\n")
    for options in (("--value", "n", "--counts"), ("--events", "--over", "song")):
        assert "labels" not in fails("fit", "a.csv", "--modes", "user,song", *options)


def test_recommend_leaves_out_what_was_had(folder, spider):
    written(folder / "plays.csv", plays())
    spider("fit", "plays.csv", *EVENTS, *SMALL, "--remember-seen", "user")
    out = spider("recommend", "plays.spider", "--given", "user=u4", "--over", "song", "-n", "50", "--json")[1]
    had = {song for user, song in plays() if user == "u4"}
    found = {each["id"] for each in json.loads(out)["nodes"]}
    assert found == {song for _, song in plays()} - had


def test_predictions_have_no_value(folder, spider):
    written(folder / "plays.csv", plays(50))
    spider("fit", "plays.csv", *EVENTS, *SMALL, "--predictions", "p.csv")
    lines = (folder / "p.csv").read_text().splitlines()
    assert lines[0] == "row,user,song,probability"
    assert len(lines) == 51


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--modes", "user,song", "--events"), "--events needs --over"),
        (("--modes", "user,song", "--over", "song", "--value", "song"), "need --events"),
        ((*EVENTS, "--value", "x"), "omit --value"),
        ((*EVENTS, "--binary"), "omit --value, --binary and --counts"),
        ((*EVENTS, "--scaling", "0,1"), "not with --events"),
        (("--modes", "user,song", "--events", "--over", "shop"), "no mode 'shop'"),
        ((*EVENTS, "--negatives", "0"), "negatives must be a whole number"),
        (("--modes", "user,song"), "or --events for rows without a value"),
    ],
)
def test_options_that_do_not_fit(folder, fails, options, reason):
    written(folder / "plays.csv", plays(20))
    assert reason in fails("fit", "plays.csv", *options)
    assert not (folder / "plays.spider").exists()


def test_a_model_of_values_takes_no_events(folder, spider, fails):
    (folder / "a.csv").write_text("user,song,n\n" + "".join(f"{i % 5},{i % 7},{i % 3}\n" for i in range(50)))
    spider("fit", "a.csv", "--modes", "user,song", "--value", "n", *SMALL[:2])
    assert "learns values, so --events" in fails("fit", "a.csv", "--resume", "--events")


def test_modes_are_told_by_their_names(folder, spider, fails):
    written(folder / "plays.csv", plays())
    spider("fit", "plays.csv", *EVENTS, *SMALL, "--remember-seen", "user")
    shown = " ".join(spider("info", "plays.spider")[1].split())
    assert "negatives_over=['song']" in shown
    assert "remember_seen=user" in shown
    assert "per event and its draws" in shown
    said = fails("fit", "plays.csv", "--model", "plays.spider", "--resume", "--events", "--over", "user")
    assert "has negatives_over ['song'], the command says ['user']" in said
    said = fails("fit", "plays.csv", "--model", "plays.spider", "--add", "--negatives", "4")
    assert "--over and --negatives need --events" in said


def test_what_the_scores_of_events_are_means_of(folder, spider):
    written(folder / "plays.csv", plays())
    said = " ".join(spider("fit", "plays.csv", *EVENTS, *SMALL)[1].split())
    assert "per event and its draws" in said
    assert "each event or draw predicted just before it was learned" in said


def test_a_column_of_labels_beside_events_is_noted(folder, spider):
    rows = [(f"{user},{song}", n % 3 == 0, n % 24) for n, (user, song) in enumerate(plays())]
    for labels, noted in ((("1", "0"), True), (("1", "1"), False)):
        lines = [f"{ids},{labels[0] if clicked else labels[1]},{hour}" for ids, clicked, hour in rows]
        (folder / "plays.csv").write_text("\n".join(["user,song,clicked,hour", *lines]))
        told = json.loads(spider("fit", "plays.csv", *EVENTS, *SMALL, "--force", "--json")[1])
        assert [note["kind"] for note in told["notes"]] == (["labels"] if noted else [])
        if noted:
            assert "--value clicked --binary" in told["notes"][0]["remedy"]
            assert told["entries"] == 400


def test_more_negatives_than_nodes_are_noted(folder, spider):
    written(folder / "plays.csv", plays())  # 20 songs
    for negatives, kinds in ((19, []), (20, ["few nodes"])):
        options = ("--negatives", str(negatives), "--force", "--json")
        told = json.loads(spider("fit", "plays.csv", *EVENTS, *SMALL, *options)[1])
        assert [note["kind"] for note in told["notes"]] == kinds
        assert all("smaller --negatives" in note["remedy"] for note in told["notes"])


@pytest.mark.slow
def test_a_server_learns_events(tmp_path, warm_kernels):
    pytest.importorskip("starlette")
    from serving import serving

    rows = [{"user": user, "song": song} for user, song in plays()]
    how = ("--model", "m.spider", *EVENTS, "--committee", "2", "--seed", "7", "--remember-seen", "user")
    with serving(tmp_path, *how) as server:
        answer = server.learn(rows[:100])
        assert answer["learned"] == 100
        assert set(answer["predictions"][0]) == {"probability"}
        assert server.learn([{"user": "u1"}], expect=422)["errors"][0]["column"] == "song"
        server.learn(rows[100:200])
        server.stop(signal.SIGKILL)
    with serving(tmp_path, "--model", "m.spider") as server:  # from its journal
        server.learn(rows[200:])
        body = {"given": {"user": "u4"}, "over": "song", "n": 50}
        found = server.http.post("/v1/recommend", json=body).json()
        told = server.get("/v1/model")
        assert told["value"] is None
        assert told["floor_biases"] > 0.05  # of the same entries, not of ones alone
        server.stop()
    had = {song for user, song in plays() if user == "u4"}
    assert {each["id"] for each in found["nodes"]} == {song for _, song in plays()} - had
    own = SpiderClassifier(
        negatives=8, negatives_over=1, committee=2, random_state=7, remember_seen=True
    ).fit(plays())
    own.save(tmp_path / "own.spider")
    assert same(arrays(tmp_path / "m.spider"), arrays(tmp_path / "own.spider"))


def test_what_was_rated_is_left_out_of_recommendations(folder, spider):
    rated = {user: [(user + k) % 7 for k in range(3)] for user in range(5)}
    rows = [f"{user},{song},{song / 7}" for user, songs in rated.items() for song in songs]
    (folder / "stars.csv").write_text("user,song,stars\n" + "\n".join(rows) + "\n")
    spider(
        "fit", "stars.csv", "--modes", "user,song", "--value", "stars", "--remember-seen", "user", *OF_MODEL
    )
    (folder / "more.csv").write_text("user,song,stars\n3,1,1\n")
    spider("fit", "more.csv", "--model", "stars.spider", "--add", "--remember-seen", "user")
    shown = spider("recommend", "stars.spider", "--given", "user=3", "--over", "song", "-n", "9", "--json")[1]
    left = sorted(set(range(7)) - {1, *rated[3]})
    assert sorted(each["id"] for each in json.loads(shown)["nodes"]) == left
