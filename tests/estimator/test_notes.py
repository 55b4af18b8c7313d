"""Notes: what is well-formed but hardly meant is said, once, with its reason; what is fine is not."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from functools import partial

import numpy as np
import pytest

import streams
from spidertensor import SpiderClassifier, SpiderRegressor, SpiderWarning, cli
from spidertensor.estimator.eviction import Numbered
from spidertensor.evaluation import floors
from spidertensor.learner.last_part import LastPart
from spidertensor.learner.scores import Scores
from spidertensor.method import Batch, Update
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT

entries = partial(streams.entries, first=(0, 200), nodes=(200, 300))  # users and movies share no number

SMALL = {"rank": 2, "hidden": (4,), "committee": 1}
FIT = ("--modes", "user,movie", "--value", "rating", "--rank", "2", "--hidden", "4", "--committee", "1")


def noted(call) -> list[SpiderWarning]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert all(each.filename == __file__ for each in caught)  # the line of the user's call
    return [each.message for each in caught if isinstance(each.message, SpiderWarning)]


def kinds(call) -> list[str]:
    return [each.kind for each in noted(call)]


# --- values


@pytest.mark.parametrize(("label", "other"), [(1, "0 for what did not happen"), (0, "1 for what did happen")])
def test_equal_labels_are_noted_with_the_way_out(label, other):
    X, _ = entries(30)
    (note,) = noted(lambda: SpiderClassifier(**SMALL).fit(X, np.full(30, label)))
    assert note.kind == "one value"
    assert f"all 30 values are {label}" in note.reason
    assert other in note.remedy
    assert ("events" in note.remedy) == (label == 1)


def test_equal_values_of_a_stream_are_noted_once_after_a_thousand():
    X, _ = entries(3_000)
    ones = np.ones(3_000)
    model = SpiderClassifier(**SMALL)
    told = [
        kinds(lambda at=at: model.learn(X[at : at + 100], ones[at : at + 100])) for at in range(0, 3000, 100)
    ]
    assert [at for at, each in enumerate(told) if each] == [9]
    assert kinds(lambda: model.fit(X, ones)) == ["one value"]  # a new model


def test_values_that_differ_at_last_or_are_few_are_no_note():
    X, _ = entries(1_200)
    rare = np.zeros(1_200)
    rare[900] = 1
    model = SpiderClassifier(**SMALL)
    assert kinds(lambda: model.learn(X[:950], rare[:950]).mean) == []
    assert kinds(lambda: model.learn(X[950:], rare[950:])) == []
    assert kinds(lambda: SpiderClassifier(**SMALL).fit(X[:29], np.ones(29))) == []


def test_a_loaded_model_is_not_judged_by_the_rest_of_its_stream(tmp_path):
    """It has learned both labels, and that is not known any more."""
    X, y = entries(1_500)
    SpiderClassifier(**SMALL).fit(X, y > 0).save(tmp_path / "model")
    model = SpiderClassifier.load(tmp_path / "model")
    assert kinds(lambda: (model.partial_fit(X, np.ones(1_500)), model._warn_at_end())) == []


def test_a_failed_fit_leaves_the_notes_as_they_were():
    X, y = entries(100)
    model = SpiderClassifier(**SMALL).fit(X, y > 0)
    with pytest.raises(ValueError, match="all labels are 2"):
        model.fit(X, np.full(100, 2))
    assert kinds(lambda: [model.partial_fit(X[:90], np.ones(90)) for _ in range(12)]) == []


def test_placeholders_are_noted_and_a_jump_is_not():
    X, y = entries(1_500)
    missing = np.where(np.random.default_rng(1).random(len(y)) < 0.05, -9999.0, y)
    assert "far" in kinds(lambda: SpiderRegressor(**SMALL).fit(X, missing))
    assert "far" not in kinds(
        lambda: SpiderRegressor(passes=1, **SMALL).fit(X, np.where(np.arange(len(y)) < 1_200, y, y + 1e3))
    )
    assert kinds(lambda: SpiderRegressor(**SMALL).fit(X, y)) == []


def test_many_clipped_values_are_noted_with_their_share():
    X, _ = entries(3_000)
    y = np.where(np.random.default_rng(1).random(3_000) < 0.03, 100.0, 0.0)  # most are equal: nothing is wild
    model = SpiderRegressor(**SMALL)
    model.partial_fit(X, y)
    (note,) = noted(model._warn_at_end)
    assert note.kind == "clipped"
    assert note.reason.startswith(f"{model.n_clipped_ / 3_000:.1%} of 3,000 values")
    assert noted(model._warn_at_end) == []


def test_a_stream_is_judged_without_its_end():
    X, _ = entries(12_000)
    y = np.where(np.random.default_rng(1).random(12_000) < 0.03, 100.0, 0.0)
    model = SpiderRegressor(**SMALL)
    told = [
        kinds(lambda at=at: model.learn(X[at : at + 2_000], y[at : at + 2_000]))
        for at in range(0, 12_000, 2_000)
    ]
    assert told == [[], [], [], [], ["clipped"], []]


def test_a_far_value_is_noted_where_nothing_clips_it():
    X, y = entries(300)
    y[200] = 1e4
    (note,) = noted(lambda: SpiderRegressor.paper(rank=2, hidden=(4,)).fit(X, y))
    assert note.kind == "unclipped"
    assert "value 10000 is more than 100 times the scale" in note.reason
    assert kinds(lambda: SpiderRegressor(**SMALL).fit(X, y)) == []


# --- ids that were never learned


@pytest.fixture(scope="module")
def texts():
    """A model of text ids such as ("00170", "Film 221"), and these."""
    X, y = entries(400)
    ids = [(f"{user:05d}", f"Film {movie}") for user, movie in X.tolist()]
    return SpiderRegressor(**SMALL).fit(ids, y), ids[:20]


@pytest.mark.parametrize(
    ("mode", "change", "words"),
    [
        (0, lambda user, film: (int(user), film), "their leading zeros differ"),
        (0, lambda user, film: (user.lstrip("0"), film), "their leading zeros differ"),
        (0, lambda user, film: (user.encode(), film), "they are bytes here, and text in the model"),
        (0, lambda user, film: (f" {user}", film), "the spaces around them differ"),
        (1, lambda user, film: (user, film.upper()), "their case differs"),
        (1, lambda user, film: (user, film.lower()), "their case differs"),
        (0, lambda user, film: (film, user), "they are ids of mode 1: check the order of the columns"),
        (1, lambda user, film: (user, film + "!"), "check their type, and the order of the columns"),
    ],
)  # fmt: skip
def test_ids_in_another_form_are_noted_with_the_reason(texts, mode, change, words):
    model, ids = copy.copy(texts[0]), texts[1]
    asked = [change(*each) for each in ids]
    (note,) = noted(lambda: model.predict(asked))
    assert (note.kind, note.column) == ("unseen", mode)
    assert words in note.remedy
    assert noted(lambda: model.predict(asked)) == []  # once


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (str, "they are text here, and integers in the model ('7' and 7)"),
        (lambda user: f"{user:03d}", "their leading zeros differ from those in the model ('007' and 7)"),
        (lambda user: f"{user}.0", "they are written with other decimals than in the model ('7.0' and 7)"),
        (lambda user: f"{user} ", "the spaces around them differ from those in the model ('7 ' and 7)"),
    ],
)
def test_one_id_is_enough_where_the_reason_is_known(change, words):
    X, y = entries(400)
    model = SpiderRegressor(**SMALL).fit(X, y)
    for call in (
        lambda twin: twin.predict([(change(7), 250)]),
        lambda twin: twin.predict_interval([(change(7), 250)]),
        lambda twin: twin.recommend({0: change(7)}, over=1),
    ):
        (note,) = noted(lambda call=call: call(copy.copy(model)))
        assert note.remedy == words


def test_new_ids_are_no_note_until_they_are_many():
    X, y = entries(400)
    model = SpiderRegressor(**SMALL).fit(X, y)
    assert noted(lambda: model.predict([(1_000, movie) for movie in range(200, 300)])) == []  # one new user
    assert noted(lambda: model.predict([(user, 250) for user in range(1_000, 1_009)])) == []
    half = [(user + 1_000 * (row % 2), 250) for row, user in enumerate(X[:40, 0].tolist())]
    assert noted(lambda: model.predict(half)) == []
    (note,) = noted(lambda: model.predict([(user, 250) for user in range(1_000, 1_010)]))
    assert note.remedy == "unless they are new, check their type, and the order of the columns"


def test_integers_that_another_mode_knows_may_well_be_new():
    """Users 0 to 99 and movies 0 to 999: user 500 is not a movie because there is a movie 500."""
    rng = np.random.default_rng(0)
    X = np.column_stack([np.arange(1_000) % 100, np.arange(1_000)])
    model = SpiderRegressor(**SMALL).fit(X, rng.normal(size=1_000))
    (note,) = noted(lambda: model.predict([(user, 7) for user in range(500, 520)]))
    assert "ids of" not in note.remedy


def test_asking_and_notes_change_nothing_that_is_kept(texts, tmp_path):
    model, ids = copy.copy(texts[0]), texts[1]
    model.save(tmp_path / "before")
    noted(lambda: model.predict([(int(user), film) for user, film in ids]))
    model.save(tmp_path / "after")
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()
    twin = pickle.loads(pickle.dumps(model))
    assert kinds(lambda: twin.predict([(int(user), film) for user, film in ids])) == ["unseen"]


# --- the command


@pytest.fixture
def spider(tmp_path, monkeypatch, capsys, warm_kernels):
    monkeypatch.chdir(tmp_path)

    def call(*arguments) -> tuple[str, str]:
        with pytest.raises(SystemExit) as stop:
            cli.main([str(each) for each in arguments])
        assert not stop.value.code
        return capsys.readouterr()

    return call


def written(path, X, y, form="{},{},{}\n"):
    path.write_text(
        "user,movie,rating\n" + "".join(form.format(*ids, value) for ids, value in zip(X, y, strict=True))
    )
    return path


def test_fit_shows_both_floors_over_the_run_and_its_last_part(spider, tmp_path):
    X, y = entries(1_500)
    out, err = spider(
        *("fit", written(tmp_path / "a.csv", X.tolist(), y.tolist())),
        *(*FIT, "--model", "a", "--json", "--passes", "1"),
    )
    record = json.loads(out)
    assert (record["notes"], err) == ([], "")
    update = SpiderRegressor(**SMALL).learn(X, y)
    method = floors.biases(2, GAUSSIAN)
    number = [np.unique(column, return_inverse=True)[1] for column in X.T]
    _, biases = method.update(method.init(0), Batch(np.column_stack(number), y))
    biases.mean[0] = y[:256].mean()  # before the first entry it knows what the model knows
    for part, scored in ((slice(None), record), (slice(-750, None), record["last_part"])):
        rmse = [float(np.sqrt(np.mean((y - each.mean)[part] ** 2))) for each in (update, biases)]
        assert [scored["score"], scored["floors"]["biases"]] == pytest.approx(rmse, rel=1e-9)
    assert record["last_part"]["entries"] == 750
    out, _ = spider("fit", "a.csv", *FIT, "--model", "b")
    assert "the running mean" in out
    assert "online biases" in out


def test_fit_notes_labels_that_are_all_1(spider, tmp_path):
    X, _ = entries(60)
    written(tmp_path / "clicks.csv", X.tolist(), [1] * 60)
    out, err = spider("fit", "clicks.csv", *FIT, "--binary", "--json")
    (note,) = json.loads(out)["notes"]
    assert note["kind"] == "one value"
    assert "0 for what did not happen" in note["remedy"]
    assert err == f"note: {note['text']}\n"


def test_fit_notes_many_bad_rows_in_the_words_of_the_command(spider, tmp_path):
    X, y = entries(300)
    written(
        tmp_path / "bad.csv",
        X.tolist(),
        ["?" if row % 10 == 0 else value for row, value in enumerate(y.tolist())],
    )
    out, err = spider("fit", "bad.csv", *FIT, "--on-bad", "skip", "--json")
    assert [note["kind"] for note in json.loads(out)["notes"]] == ["bad rows"]
    assert "note: 10% of 300 rows were bad" in err


def test_fit_notes_a_model_that_is_worse_than_the_floors(spider, tmp_path):
    """The paper's model does not follow values that a wrong shift has moved far away."""
    X, y = entries(1_500)
    written(tmp_path / "a.csv", X.tolist(), y.tolist())
    out, err = spider("fit", "a.csv", *FIT[:-2], "--paper", "--scaling", "1000,1", "--json")
    record = json.loads(out)
    last = record["last_part"]
    assert last["score"] > last["floors"]["mean"] > last["floors"]["biases"]
    assert [note["kind"] for note in record["notes"]] == ["unclipped", "worse than mean", "worse than biases"]
    assert "pass a suitable --scaling SHIFT,SCALE" in err
    assert "in the last 750 entries the model was worse than the running mean" in err
    X, y = entries(3_000)
    written(tmp_path / "b.csv", X.tolist(), y.tolist())
    out, err = spider("fit", "b.csv", *FIT[:-2], "--paper", "--scaling", "1000,1", "--passes", "2")
    assert "on the 500 entries held back, which it learned after its passes, the model was worse" in err
    assert "just before it was learned, in the first pass" in " ".join(out.split())
    assert "last part" not in out


def test_predict_and_recommend_note_ids_in_another_form(spider, tmp_path):
    X, y = entries(400)
    spider("fit", written(tmp_path / "a.csv", X.tolist(), y.tolist()), *FIT, "--model", "a")
    written(tmp_path / "zeros.csv", X.tolist(), y.tolist(), form="{:05d},{},{}\n")
    _, err = spider("predict", "a", "zeros.csv", "--out", "out.csv")
    assert err.count("note: column user: 100% of the ids were never learned") == 1
    assert "their leading zeros differ" in err
    spider("fit", "zeros.csv", *FIT, "--model", "z")
    out, err = spider("recommend", "z", "--given", "user=7", "--over", "movie", "--json")
    assert [note["kind"] for note in json.loads(out)["notes"]] == ["unseen user", "unseen"]
    assert "('7' and '00007')" in err


# --- what counts as worse


def tally(likelihood, value, mean, log_evidence=None) -> LastPart:
    """The notes of a model with such predictions, learned in pieces."""
    scores = Scores(likelihood, 1)
    found = LastPart(scores)
    index = np.zeros((len(value), 1), np.int64)
    zeros = np.zeros(len(value))
    for at in range(0, len(value), 700):
        part = slice(at, at + 700)
        losses = zeros[part] if log_evidence is None else log_evidence[part]
        update = Update(mean[part], zeros[part], zeros[part], losses, 0)
        found.add(scores.add(value[part], Numbered(update, index[part]), 0.0))
    return found


def worse(found: LastPart) -> list[str]:
    return [note.kind for note in found.notes()]


BOTH = ["worse than mean", "worse than biases"]


@pytest.mark.parametrize(
    ("n", "error", "told"),
    [(4_000, 1.0, BOTH), (4_000, 0.0, []), (999, 1.0, []), (1_000, 1.0, BOTH)],
)
def test_worse_is_worse_over_enough_entries(n, error, told):
    value = np.random.default_rng(0).normal(size=n)
    assert worse(tally(GAUSSIAN, value, np.full(n, error))) == told


def test_worse_by_chance_is_no_note():
    """The floors know the mean only nearly: a model that is 0.5 % worse, or worse in a few entries."""
    rng = np.random.default_rng(0)
    value = rng.normal(size=20_000)
    assert worse(tally(GAUSSIAN, value, np.full(20_000, 0.1))) == []
    mean = np.zeros(20_000)
    mean[-5:] = 30.0
    assert worse(tally(GAUSSIAN, value, mean)) == []


def test_only_the_last_part_counts():
    rng = np.random.default_rng(0)
    value = rng.normal(size=30_000)
    found = tally(GAUSSIAN, value, np.where(np.arange(30_000) < 20_000, 5.0, 0.0))
    assert worse(found) == []
    assert found.scores.score > 2 * found.scores.floors["mean"]
    assert found.record() == {
        "entries": 10_000,
        "score": pytest.approx(np.sqrt(np.mean(value[-10_000:] ** 2))),
        "floors": {name: pytest.approx(1.0, abs=0.02) for name in ("mean", "biases")},
    }
    assert worse(tally(GAUSSIAN, value, np.where(np.arange(30_000) < 20_000, 0.0, 5.0))) == BOTH


def test_after_passes_only_entries_held_back_count():
    """What was learned in the first pass says little about a model that has seen it again."""
    value = np.random.default_rng(0).normal(size=8_000)
    losses = np.ones((3, 600))
    for error, floor, notes in ((5.0, 1.0, []), (0.0, 0.5, BOTH)):
        found = tally(GAUSSIAN, value, np.full(8_000, error))
        losses[1:] = floor + 0.01 * value[:600]
        found.judge(losses)
        assert worse(found) == notes
    (note, _) = found.notes()
    assert "on the 600 entries held back" in str(note)


def test_labels_are_judged_by_their_log_loss():
    value = (np.random.default_rng(0).random(4_000) < 0.5).astype(float)
    zeros = np.zeros(4_000)
    assert worse(tally(PROBIT, value, zeros, np.full(4_000, np.log(0.4)))) == BOTH
    assert worse(tally(PROBIT, value, zeros, np.full(4_000, np.log(0.6)))) == []


def test_the_same_entries_again_are_noted():
    X, y = entries(400)
    model = SpiderRegressor(**SMALL).fit(X, y)
    assert kinds(lambda: model.partial_fit(X, y)) == ["again"]
    assert kinds(lambda: model.partial_fit(X, y)) == []  # once
    other = SpiderRegressor(**SMALL).fit(X, y)
    assert kinds(lambda: other.partial_fit(X, y + 1)) == []
    assert kinds(lambda: other.partial_fit(X[::-1], y[::-1] + 1)) == []


@pytest.mark.parametrize("when", [None, "when"])
def test_the_same_entries_again_are_noted_after_several_passes(when):
    X, y = entries(1_200)
    frame = {"user": X[:, 0], "movie": X[:, 1], "when": np.arange(1_200)}
    model = SpiderRegressor(**SMALL, passes=2, time=when, modes={"user": [], "movie": []}).fit(frame, y)
    assert kinds(lambda: copy.copy(model).partial_fit(frame, y + 1)) == []
    assert kinds(lambda: model.partial_fit(frame, y)) == ["again"]


@pytest.mark.parametrize("mode", [0, 1])
def test_entries_that_come_sorted_by_a_mode_are_noted_if_they_are_learned_once(mode):
    X, y = entries(2_000)
    order = np.argsort(X[:, mode], kind="stable")
    (note,) = noted(lambda: SpiderRegressor(passes=1, **SMALL).fit(X[order], y[order]))
    assert note.kind == "grouped"
    assert str(mode) in note.reason
    assert kinds(lambda: SpiderRegressor(**SMALL).fit(X[order], y[order])) == []  # shuffled
    assert kinds(lambda: SpiderRegressor(passes=1, **SMALL).fit(X, y)) == []
    hours = np.column_stack([X[:, 0], np.arange(2_000) // 10 % 20])  # groups that come again
    assert kinds(lambda: SpiderRegressor(passes=1, **SMALL).fit(hours, y)) == []


def test_new_ids_that_are_described_are_meant_and_numbers_as_ids_are_not(tmp_path):
    rng = np.random.default_rng(0)
    ages = {"user": [f"u{n}" for n in range(60)], "age": rng.integers(18, 60, 60).tolist()}
    films = [f"f{n}" for n in rng.integers(9, size=60)]
    model = SpiderRegressor(modes={"user": ["age"], "film": []}, scaling=(0.0, 1.0), passes=1, **SMALL)
    model.fit({**ages, "film": films}, rng.normal(size=60))
    cold = {"user": [f"new{n}" for n in range(20)], "age": [30] * 20, "film": films[:20]}
    assert noted(lambda: model.predict(cold)) == []
    (note,) = noted(lambda: model.predict({**cold, "film": [0.5 + n / 7 for n in range(20)]}))
    assert "never learned" in note.reason
    assert 'Number("film")' in note.remedy


def test_a_misspelt_attribute_is_noted_and_one_that_comes_later_is_not():
    X, y = entries(60)
    table = {"user": [user for user, _ in X], "movie": [movie for _, movie in X], "age": [30] * 60}

    def model(column):
        return SpiderRegressor(modes={"user": [column], "movie": []}, scaling=(0.0, 1.0), **SMALL)

    (note,) = noted(lambda: model("agee").fit(table, y))
    assert note.kind == "absent"
    assert "agee" in note.reason
    assert "(not used: age)" in note.reason
    assert noted(lambda: model("age").fit(table, y)) == []
    assert noted(lambda: model("age").fit({name: table[name] for name in ("user", "movie")}, y)) == []
    described = model("agee").set_attributes("user", {"user": [1], "agee": [3]})
    assert noted(lambda: described.fit(table, y)) == []
