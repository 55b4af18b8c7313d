"""The honest clock: no prediction knows a value before it was known, and every value is learned in time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spidertensor.demo.synthetic import synthetic
from spidertensor.estimator.known_later import TICKS
from spidertensor.evaluation import floors
from spidertensor.evaluation.clock import Clock, Delay, clock_of, honest_clock
from spidertensor.evaluation.dataset import DatasetError
from spidertensor.evaluation.methods import METHODS
from spidertensor.evaluation.protocols import prequential
from spidertensor.method import Batch, Method, Prediction, Update
from spidertensor.spider.likelihoods import GAUSSIAN


class Learned(NamedTuple):
    rows: list[int]


def witness(asked_with: dict[int, set[int]]) -> Method:
    """A method whose index is the number of the row: notes which rows were learned when one was asked for."""

    def update(state, batch):
        state.rows.extend(batch.index[:, 0].tolist())
        return state, Update(*np.zeros((4, len(batch.value))), rejected=0)

    def predict(state, index, bags=None):
        for row in index[:, 0].tolist():
            asked_with[row] = set(state.rows)
        return Prediction(*np.ones((3, len(index))))

    return Method(lambda seed: Learned([]), update, predict)


def numbered(n: int) -> Batch:
    return Batch(np.arange(n)[:, None], np.random.default_rng(0).normal(size=n))


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 200)), min_size=12, max_size=60))
def test_what_is_known_is_learned_and_nothing_else(times):
    asked = np.sort([time for time, _ in times])
    known = asked + [delay for _, delay in times]
    clock, asked_with = Clock(asked, known, "seconds"), {}
    try:
        method, stream = witness(asked_with), numbered(len(asked))
        list(honest_clock(method, stream, clock, likelihood=GAUSSIAN, batch_size=1))
    except DatasetError:  # nothing is known in time, or everything at once
        return
    tick = (clock.median or (known - asked).mean()) / TICKS
    for row, learned in asked_with.items():
        assert all(known[other] <= asked[row] for other in learned)
        assert {other for other in range(len(asked)) if known[other] < asked[row] - tick} <= learned


def test_values_are_learned_in_the_order_in_which_they_become_known():
    asked, known = np.arange(40), np.arange(40) + np.tile([30, 3], 20)
    order = []

    def update(state, batch):
        order.extend(batch.index[:, 0].tolist())
        return state, Update(*np.zeros((4, len(batch.value))), rejected=0)

    method = Method(
        lambda seed: (), update, lambda state, index, bags=None: Prediction(*np.ones((3, len(index))))
    )
    clock = Clock(asked, known, "entries")
    list(honest_clock(method, numbered(40), clock, likelihood=GAUSSIAN, batch_size=4))
    assert (np.diff(known[order]) >= 0).all()
    assert len(set(order)) == len(order)


def test_scores_are_those_of_a_loop_written_out():
    """Delay 20 entries, tick 2: entries 2i and 2i + 1 are predicted with those before 2i - 20."""
    data = synthetic(n_entries=400)
    stream = data.in_time_order()
    clock = clock_of(data, Delay(20, "entries"))
    (row,) = honest_clock(floors.biases(3, GAUSSIAN), stream, clock, likelihood=GAUSSIAN, batch_size=2)
    method, errors = floors.biases(3, GAUSSIAN), []
    state = method.init(0)
    for i in range(20, 400, 2):
        if i >= 22:
            learned = slice(i - 22, i - 20)
            state, _ = method.update(state, Batch(stream.index[learned], stream.value[learned]))
            predicted = method.predict(state, stream.index[i : i + 2])
            errors.extend(stream.value[i : i + 2] - predicted.mean)
    n_scored = 400 - 40
    assert row["n_scored"] == n_scored
    np.testing.assert_allclose(row["score"], np.sqrt(np.mean(np.square(errors[-n_scored:]))))
    assert row["case"] == "values known after 20 entries (median)"


def test_later_values_make_a_worse_score_and_intervals_still_hold():
    """A stream that drifts: what was known 2,000 entries ago is stale."""
    data = synthetic(n_entries=12_000, drift="slow")
    entry = METHODS["spider"]
    method, how = entry.for_run(data, {"rank": 3, "batch_size": 256, "seed": 0})
    (next_entry,) = prequential(method, data.in_time_order(), **how)
    (late,) = honest_clock(method, data.in_time_order(), clock_of(data, Delay(2000, "entries")), **how)
    assert late["score"] > 1.02 * next_entry["score"]
    assert abs(late["calibrated_90"] - 0.9) < 0.03
    assert len(late["quarters"]) == 4


def test_the_case_is_in_words_a_person_uses():
    asked = np.arange(10)
    assert Clock(asked, asked + 9600, "seconds").case == "values known after 160 minutes (median)"
    assert Clock(asked, asked + 3 * 86_400, "seconds").case == "values known after 3 days (median)"
    assert Clock(asked, asked + 5, "").case == "values known after 5 (median)"
    assert Clock(asked, asked + 6560.4, "").case == "values known after 6,560 (median)"
    assert Clock(asked, asked + 1000, "entries").case == "values known after 1,000 entries (median)"


@pytest.mark.parametrize(("delay", "part"), [(0, "known at once"), (10_000, "known before the last entry")])
def test_a_clock_that_cannot_be_scored_says_why(delay, part):
    asked = np.arange(50)
    clock = Clock(asked, asked + delay, "entries")
    with pytest.raises(DatasetError, match=part):
        list(honest_clock(witness({}), numbered(50), clock, likelihood=GAUSSIAN))


def test_a_data_set_that_does_not_tell_when_values_are_known_says_what_to_do():
    with pytest.raises(DatasetError, match="--known-at"):
        clock_of(synthetic(n_entries=100), None)
