"""The learner that `fit`, `serve` and streams drive: what it leaves out, scores and remembers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from spidertensor import Forecast, Number, SpiderClassifier, SpiderRegressor
from spidertensor.estimator.eviction import Numbered
from spidertensor.faults import EntryError, SpiderWarning
from spidertensor.learner import sample
from spidertensor.learner.chunks import joined
from spidertensor.learner.first_batch import first_alone, joined_first
from spidertensor.learner.floors import FLOORS
from spidertensor.learner.forecasts import Remembered
from spidertensor.learner.learner import Learner
from spidertensor.learner.opening import reopened, standing
from spidertensor.learner.remedies import for_command, for_service
from spidertensor.learner.scores import Scores
from spidertensor.method import Update
from spidertensor.sources import Chunk, source_by_name
from spidertensor.sources.bins import MAX_QUIET_CHUNKS
from spidertensor.spider.likelihoods import GAUSSIAN

pytestmark = pytest.mark.usefixtures("warm_kernels")

SMALL = {"rank": 2, "hidden": (4,), "committee": 1, "random_state": 0}
IDS = [np.arange(6), np.zeros(6, np.int64)]
VALUES = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])


class Picky(SpiderRegressor):
    """Refuses odd values, then those above 5: rows are counted in what is left at that time."""

    def _learn_numbered(self, X, y):
        for wrong in (y % 2 == 1, y > 5):
            if wrong.any():
                raise EntryError("is not liked", kind="odd", rows=tuple(np.flatnonzero(wrong).tolist()))
        return super()._learn_numbered(X, y)


def test_refused_entries_are_named_by_their_place_in_the_call_and_left_out():
    learner = Learner(Picky(**SMALL), Path("m"), ["user", "film"], "stars")
    refused = []
    learned = learner.learn(IDS, VALUES, lambda error: refused.append(error.rows))
    assert refused == [(0, 2, 4), (5,)]
    assert learned.kept.tolist() == [1, 3]
    assert learned.values.tolist() == [2.0, 4.0]
    assert [column.tolist() for column in learned.ids] == [[1, 3], [0, 0]]
    assert learner.entries == 2
    assert learner.estimator.mode_names_ == ["user", "film"]


def test_cells_that_a_column_cannot_have_are_refused_one_by_one():
    model = SpiderRegressor(modes={"user": [Number("age")], "film": []}, scaling=(0.0, 1.0), **SMALL)
    learner = Learner(model, Path("m"), ["user", "film"], "stars")
    refused = []
    ages = np.fromiter([31, "old", None, np.inf, 4, "x"], object, 6)
    learned = learner.learn(
        IDS, VALUES, lambda error: refused.append((error.rows, error.column)), {"age": ages}
    )
    assert refused == [((1,), "age"), ((3,), "age"), ((5,), "age")]
    assert learned.kept.tolist() == [0, 2, 4]


def test_nothing_is_learned_if_entries_must_not_be_left_out():
    learner = Learner(Picky(**SMALL), Path("m"), ["user", "film"], "stars")

    def refuse(error: EntryError) -> None:
        raise error

    with pytest.raises(EntryError) as caught:
        learner.learn(IDS, VALUES, refuse)
    assert caught.value.rows == (0, 2, 4)
    assert learner.is_new
    assert learner.scores.entries == 0


def scored(memory: float, cut: int) -> Scores:
    scores, errors = Scores(GAUSSIAN, 1, memory=memory), np.repeat([3.0, 1.0], 400)
    zeros = np.zeros(800)
    for at in range(0, 800, cut):
        part = slice(at, at + cut)
        update = Update(errors[part], zeros[part], zeros[part], zeros[part], 0)
        scores.add(zeros[part], Numbered(update, np.zeros((len(errors[part]), 1), np.int64)), 0.0)
    return scores


@pytest.mark.parametrize("cut", [1, 7, 800])
def test_a_run_counts_all_entries_alike_and_a_server_forgets(cut):
    assert scored(math.inf, cut).score == pytest.approx(math.sqrt((9 + 1) / 2))
    weights = np.exp(-np.arange(800)[::-1] / 100)
    expected = math.sqrt(np.average(np.repeat([9.0, 1.0], 400), weights=weights))
    assert scored(100, cut).score == pytest.approx(expected)
    assert scored(100, cut).score < 1.1


def test_what_is_no_longer_scored_has_no_score():
    """A server whose entries all come with a forecast must not show the error of its first hour for ever."""
    scores, zeros = Scores(GAUSSIAN, 1, memory=100), np.zeros(50)
    said = Numbered(Update(zeros, zeros, zeros, zeros, 0, below=zeros + 0.5), np.zeros((50, 1), np.int64))
    scores.add(zeros, said, 0.0)
    assert (scores.score, scores.coverage, scores.forecast_error) == (0, 1, None)
    forecast = Forecast(np.tile([[0.0], [1.0], [1.0], [1.0]], (50, 1, 1)), 0, "gaussian")
    remembered = Remembered(forecast, np.ones((50, len(FLOORS), 3)), zeros + 60)
    for _ in range(20):
        scores.add(zeros, said, 0.0, remembered)
    assert (scores.score, scores.coverage, *scores.floors.values()) == (None,) * 4
    assert (scores.forecast_error, scores.forecasts.coverage) == (0, 1)
    assert list(scores.forecast_floors.values()) == pytest.approx([1, 1])


def chunk(rows: int, *, quiet: bool = False) -> Chunk:
    at = np.arange(rows)
    return Chunk([at], np.ones(rows), at, [], rows, None, quiet=quiet)


def first_of(chunks: list[Chunk], n: int) -> tuple[list[int], list[tuple[int, bool]]]:
    noted: list[tuple[int, bool]] = []
    given = joined_first(iter(chunks), n, lambda *first: noted.append(first))
    return [len(each.rows) for each in given if not each.quiet], noted


def test_the_first_batch_is_whole_however_its_rows_arrive():
    assert first_of([chunk(3)] * 5, 8) == ([9, 3, 3], [(9, False)])
    assert first_of([chunk(3), chunk(2)], 8) == ([5], [(5, False)])
    quiet = [chunk(0, quiet=True)] * MAX_QUIET_CHUNKS
    assert first_of([chunk(3), *quiet, chunk(9)], 8) == ([3, 9], [(3, True)])
    assert first_of([chunk(3), *quiet[1:], chunk(9)], 8) == ([12], [(12, False)])
    assert len(joined(chunk(3), chunk(2)).rows) == 5


def test_the_first_request_of_a_new_model_is_learned_alone():
    assert first_alone([1, 2, 3], is_new=True) == [[1], [2, 3]]
    assert first_alone([1], is_new=True) == [[1]]
    assert first_alone([1, 2, 3], is_new=False) == [[1, 2, 3]]


def test_a_model_of_events_has_no_value_column_whatever_is_asked_for():
    model = SpiderClassifier(**SMALL, negatives=2, negatives_over=1)
    model.partial_fit([[1, 2], [2, 3], [3, 4]])
    assert reopened(model, Path("m"), "stars").value is None


def test_a_source_that_is_new_to_a_model(tmp_path):
    (tmp_path / "a.csv").write_text("user,film,stars\n1,2,3\n")
    model = SpiderRegressor(**SMALL).fit([["1", 2], ["3", 4]], [1.0, 2.0])
    found = standing(reopened(model, Path("m"), "stars"), source_by_name(str(tmp_path / "a.csv")))
    assert (found.stored, found.place, found.is_latest, found.before) == (None, None, False, [])
    assert found.all_text == [True, False]  # by the ids that it has


def test_a_remedy_is_in_the_words_of_whoever_shows_it():
    fault = SpiderWarning("far off", kind="no scale", remedy="pass scaling=(shift, scale)")
    assert "pass --scaling" in for_command(fault)
    assert "start the model with --scaling" in for_service(fault)
    unknown = SpiderWarning("far off", kind="of another kind", remedy="as in Python")
    assert for_command(unknown) == for_service(unknown) == "as in Python"


def test_a_sample_has_all_rows_or_some_at_random_however_they_are_cut(monkeypatch):
    monkeypatch.setattr(sample, "MOST_ROWS", 64)
    price, city = np.arange(1000.0), np.array(["a", "b"] * 500, object)
    found = []
    for n_rows, size in ((64, 10), (1000, 1000), (1000, 7), (1000, 300)):
        made = sample.Sample(seed=3)
        for start in range(0, n_rows, size):
            here = slice(start, min(start + size, n_rows))
            made.add({"price": price[here], "city": city[here]}, here.stop - here.start)
        assert made.n_rows == n_rows
        found.append(made.columns())
    np.testing.assert_array_equal(found[0]["price"], np.arange(64))
    for one in found[1:]:
        rows = one["price"].astype(int)
        assert 20 <= len(rows) <= 64
        assert rows.min() < 100
        assert rows.max() > 900
        np.testing.assert_array_equal(one["city"], city[rows])
        np.testing.assert_array_equal(rows, found[1]["price"])


def test_cells_that_are_refused_decide_nothing_about_a_history():
    model = SpiderRegressor(modes={"user": ["age"], "film": []}, **SMALL)
    learner = Learner(model, Path("m"), ["user", "film"], "stars")
    learner.look_ahead({"age": np.array([*np.arange(40.0) / 4, np.inf])})
    assert learner.kinds == {"age": "number"}
    assert len(model._sample["age"]) == 40
