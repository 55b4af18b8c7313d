"""Ranks of nodes and their scores, and the protocols for events."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from spidertensor.evaluation import floors, last_out, ranking_metrics
from spidertensor.evaluation.fitted_events import in_passes
from spidertensor.evaluation.item_cosine import item_cosine
from spidertensor.evaluation.last_out import numbers_by_arrival, prequential_ranks, rank_held, split_last
from spidertensor.evaluation.popularity import popularity
from spidertensor.method import Batch, Method, Prediction
from spidertensor.spider.likelihoods import PROBIT


def events(*index: tuple[int, ...]) -> Batch:
    return Batch(np.array(index, np.int64), np.ones(len(index)))


def random_events(n: int = 400, shape: tuple[int, ...] = (12, 30), seed: int = 0) -> Batch:
    """No event twice; some nodes are liked more than others."""
    rng = np.random.default_rng(seed)
    drawn = np.stack([(size * rng.random(4 * n) ** 1.5).astype(np.int64) for size in shape], axis=1)
    once = np.sort(np.unique(drawn, axis=0, return_index=True)[1])[:n]
    return Batch(drawn[once], np.ones(len(once)))


# --- metrics


def slow_rank(scores: list[float], wanted: int, candidates: set[int]) -> float:
    """The mean place of the wanted node over all orders that sort the scores."""
    greater = sum(scores[node] > scores[wanted] for node in candidates - {wanted})
    tied = [node for node in candidates | {wanted} if scores[node] == scores[wanted]]
    return sum(range(greater + 1, greater + len(tied) + 1)) / len(tied)


def test_ranks_are_those_of_a_slow_count():
    rng = np.random.default_rng(0)
    scores = rng.integers(5, size=(50, 9)).astype(float)
    candidates, wanted = rng.random((50, 9)) < 0.6, rng.integers(9, size=50)
    slow = [
        slow_rank(list(row), node, set(np.flatnonzero(taking_part)))
        for row, node, taking_part in zip(scores, wanted, candidates, strict=True)
    ]
    assert ranking_metrics.ranks(scores, wanted, candidates).tolist() == slow


def test_scores_of_ranks_are_those_of_a_list():
    ranks = [1.0, 2.0, 10.0, 10.5, 11.0, 20.0, 21.0, math.inf]
    scores = ranking_metrics.scores_of(ranks)
    assert scores["hr_10"] == 3 / 8
    assert scores["recall_20"] == 6 / 8
    assert scores["ndcg_10"] == pytest.approx((1 + 1 / math.log2(3) + 1 / math.log2(11)) / 8)
    assert scores["mrr"] == pytest.approx((1 + 1 / 2 + 1 / 10 + 1 / 10.5 + 1 / 11 + 1 / 20 + 1 / 21) / 8)
    assert all(math.isnan(score) for score in ranking_metrics.scores_of([]).values())
    with pytest.raises(ValueError, match="begin at 1"):
        ranking_metrics.mrr([0.5])


def test_one_score_for_all_is_no_hit():
    rank = ranking_metrics.ranks(np.zeros((1, 100)), [3], np.ones((1, 100)))
    assert rank == [50.5]


def test_a_score_that_is_not_a_number_has_no_rank():
    for broken in (0, 1):
        scores = np.array([[1.0, 2.0]])
        scores[0, broken] = math.nan
        with pytest.raises(ValueError, match="is NaN"):
            ranking_metrics.ranks(scores, [0], [[True, True]])
    assert ranking_metrics.ranks([[1.0, math.nan]], [0], [[True, False]]) == [1]  # takes no part


def test_the_best_are_candidates_and_never_more_than_there_are():
    scores = np.array([[5.0, 4.0, 3.0, 2.0], [1.0, 2.0, 3.0, 4.0]])
    candidates = np.array([[False, True, True, True], [True, False, False, False]])
    assert ranking_metrics.best(scores, candidates, 2).tolist() == [0, 1, 2]
    assert ranking_metrics.best(scores, np.zeros((2, 4), bool), 9).tolist() == []


# --- popularity


def test_popularity_ranks_by_events_in_every_mode():
    method = popularity(2)
    state, update = method.update(method.init(0), events((0, 2), (1, 2), (2, 2), (0, 1), (1, 1), (0, 0)))
    assert update.mean.tolist() == [0.0] * 6
    for mode in (0, 1):
        index = np.zeros((4, 2), np.int64)
        index[:, mode] = [0, 1, 2, 7]
        mean = method.predict(state, index).mean
        counts = [3, 2, 1, 0] if mode == 0 else [1, 2, 3, 0]
        assert np.argsort(mean).tolist() == np.argsort(counts).tolist()
    again, _ = method.update(method.init(0), events((0, 2), (1, 2), (2, 2)))
    again, _ = method.update(again, events((0, 1), (1, 1), (0, 0)))
    for one, other in zip(state.modes, again.modes, strict=True):
        n = min(len(one.so_far), len(other.so_far))
        assert np.array_equal(one.so_far[:n], other.so_far[:n])


def test_item_cosine_is_the_sum_of_cosines():
    """Against a loop over pairs of nodes; repeated events count once, unknown users and nodes score 0."""
    rng = np.random.default_rng(0)
    index = np.stack([rng.integers(9, size=60), rng.integers(7, size=60), rng.integers(3, size=60)], axis=1)
    method = item_cosine(3, 0, 1)
    state, _ = method.update(method.init(0), Batch(index, np.ones(60)))
    users = [set(index[index[:, 1] == node, 0].tolist()) for node in range(7)]

    def cosine(a: int, b: int) -> float:
        return len(users[a] & users[b]) / max((len(users[a]) * len(users[b])) ** 0.5, 1)

    asked = np.array([[user, node, 0] for user in range(-1, 10) for node in range(-1, 8)])
    known = {
        (user, node): {each for each in range(7) if user in users[each]} for user, node, _ in asked.tolist()
    }
    wanted = [
        sum(cosine(node, each) for each in known[user, node]) if 0 <= node < 7 else 0.0
        for user, node, _ in asked.tolist()
    ]
    np.testing.assert_allclose(method.predict(state, asked).mean, wanted, atol=1e-12)
    quick = method.quick(state, [np.array([4]), np.arange(7), np.array([0])]).mean
    np.testing.assert_allclose(quick, np.array(wanted).reshape(11, 9)[5, 1:8], atol=1e-12)


def test_popularity_of_no_events():
    method = popularity(3)
    state, update = method.update(method.init(0), Batch(np.empty((0, 3), np.int64), np.empty(0)))
    assert len(update.mean) == 0
    assert method.predict(state, np.array([[-1, 0, 5]])).mean == [0]


# --- the last event of each user


def test_the_last_event_of_each_user_is_held_out():
    stream = events((0, 5), (1, 5), (0, 6), (2, 1), (1, 7), (0, 7))
    split = split_last(stream, 1)
    assert sorted(split.held.tolist()) == [[0, 7], [1, 7]]  # user 2 has one event alone
    assert split.train.index.tolist() == [[0, 5], [1, 5], [0, 6], [2, 1]]
    before = split_last(split.train, 1)  # and the one before it, to choose settings by
    assert before.held.tolist() == [[0, 6]]


def test_a_last_event_that_repeats_an_earlier_one_is_learned():
    split = split_last(events((0, 5), (0, 6), (0, 5), (1, 5), (1, 6)), 1)
    assert split.held.tolist() == [[1, 6]]
    assert len(split.train.value) == 4


def test_shuffling_changes_the_order_and_not_what_is_held_out():
    stream = random_events()
    split, shuffled = split_last(stream, 1), split_last(stream, 1, shuffled_by=3)
    assert np.array_equal(split.held, shuffled.held)
    assert not np.array_equal(split.train.index, shuffled.train.index)
    assert sorted(split.train.index.tolist()) == sorted(shuffled.train.index.tolist())


def test_over_the_first_mode_the_user_is_in_the_second():
    stream = random_events()
    split = split_last(stream, 1)
    turned = split_last(Batch(stream.index[:, ::-1], stream.value), 0)
    assert np.array_equal(turned.held[:, ::-1], split.held)


@pytest.mark.parametrize("block", [1, 70, 2**20])
def test_ranks_of_held_out_events_are_those_of_a_slow_count(monkeypatch, block):
    monkeypatch.setattr(last_out, "BLOCK_PREDICTIONS", block)
    stream = random_events(shape=(6, 30, 4), n=300)
    table = np.random.default_rng(1).integers(8, size=(6, 30, 4)).astype(float)
    split = split_last(stream, 1)
    ranked = rank_held(lambda held: table[held[:, 0], :, held[:, 2]], split, 1, 30, others=5)
    learned = set(map(tuple, split.train.index.tolist()))
    slow, listed = [], set()
    for user, node, hour in split.held.tolist():
        candidates = {other for other in range(30) if (user, other, hour) not in learned}
        assert node in candidates
        scores = list(table[user, :, hour])
        slow.append(slow_rank(scores, node, candidates))
        listed |= {other for other in candidates if slow_rank(scores, other, candidates) <= 5}
    assert ranked.full.tolist() == slow
    assert set(split.train.index[:, 1]) == set(range(30))
    assert len(listed) / 30 <= ranked.coverage <= 1
    assert len(ranked.sampled) == len(slow)
    assert ranked.sampled.max() <= 6
    again = rank_held(lambda held: table[held[:, 0], :, held[:, 2]], split, 1, 30, others=5)
    assert np.array_equal(ranked.sampled, again.sampled)


def test_sampled_others_are_drawn_from_what_the_user_has_not_had():
    others = [(1, 3), (2, 4), (3, 5)]
    split = split_last(events(*others, (0, 0), (0, 1), (0, 2), (0, 3)), 1)  # held out: 3; left: 4 and 5
    scores = np.array([[9.0, 9, 9, 2, 1, 3, 9]])  # 6 was never learned
    ranked = rank_held(lambda held: scores, split, 1, 7)
    assert ranked.sampled == ranked.full == [2.0]
    assert ranked.coverage == 3 / 6


def test_a_node_that_was_never_learned_is_never_found():
    split = split_last(events((0, 0), (1, 1), (1, 0), (0, 2)), 1)
    scores = np.array([[1.0, 2.0, 9.0]])
    ranked = rank_held(lambda held: np.repeat(scores, len(held), axis=0), split, 1, 3)
    assert split.held.tolist() == [[1, 0], [0, 2]]
    assert ranked.full.tolist() == ranked.sampled.tolist() == [1.0, math.inf]


def oracle(truth: set[tuple[int, ...]]) -> Method:
    """Knows all events, future ones as well."""

    def predict(state, index, bags=None):
        f = np.array([1.0 if tuple(each) in truth else 0.0 for each in index.tolist()])
        return Prediction(f, np.full(len(f), 1e-9), np.zeros(len(f)))

    return replace(popularity(2), predict=predict)


def test_who_knows_the_future_finds_everything_and_a_constant_nothing():
    stream = random_events(300, (10, 60))
    split = split_last(stream, 1)
    numbers = numbers_by_arrival(split.train.index[:, 1], 60)
    knows = oracle({(user, int(numbers[node])) for user, node in stream.index.tolist()})
    full, sampled = last_out.last_out(knows, stream, over=1, n_nodes=60)
    assert (full["test"], sampled["test"]) == ("full", "sampled")
    assert full["hr_10"] == full["ndcg_10"] == full["mrr"] == sampled["mrr"] == 1.0
    assert full["n_scored"] == 10
    assert full["n_entries"] == 290
    wide = random_events(300, (30, 200))
    nothing, _ = last_out.last_out(floors.mean(PROBIT), wide, over=1, n_nodes=200)
    assert nothing["hr_10"] == 0
    assert nothing["mrr"] > 0


def test_last_out_scores_popularity_as_a_slow_count_does():
    stream = random_events()
    full, sampled = last_out.last_out(popularity(2), stream, over=1, n_nodes=30, shuffled=True)
    split = split_last(stream, 1)
    counts = np.bincount(split.train.index[:, 1], minlength=30)
    had = {user: set(split.train.index[split.train.index[:, 0] == user, 1]) for user in range(12)}
    assert (counts > 0).all()
    slow = [slow_rank(list(counts), node, set(range(30)) - had[user]) for user, node in split.held.tolist()]
    assert full["hr_10"] == np.mean([rank <= 10 for rank in slow])
    assert full["mrr"] == pytest.approx(np.mean([1 / rank for rank in slow]))
    assert full["mrr"] == sampled["mrr"]  # all candidates are fewer than 99
    assert full["members"] is None
    assert full.keys() == sampled.keys()


@pytest.mark.parametrize("settings", [{"passes": 1}, {"passes": 2}], ids=str)
def test_quick_predictions_give_the_same_ranks(settings):
    small = {"rank": 2, "hidden": (8,), "committee": 2, "negatives": 2}
    method = in_passes(1, small | settings, in_time=True)
    stream, methods = random_events(), (method, replace(method, quick=None))
    quick, slow = (list(last_out.last_out(each, stream, over=1, n_nodes=35)) for each in methods)
    for one, other in zip(quick, slow, strict=True):
        for name in ("hr_10", "ndcg_10", "recall_20", "mrr", "coverage_10"):
            assert one[name] == other[name]


def test_nodes_are_numbered_as_they_come():
    assert numbers_by_arrival(np.array([4, 1, 4, 0]), 6).tolist() == [2, 1, 3, 4, 0, 5]


# --- prequentially


def test_prequential_ranks_are_those_of_a_slow_count():
    stream = random_events(n=300)
    (row,) = prequential_ranks(popularity(2), stream, over=1, every=7)
    slow = []
    for number in range(7, 300, 7):
        if number < 30:  # the first tenth
            continue
        past, (user, node) = stream.index[:number], stream.index[number].tolist()
        had = set(past[past[:, 0] == user, 1].tolist())
        candidates = set(past[:, 1].tolist()) - had
        counts = np.bincount(past[:, 1], minlength=31)
        slow.append(slow_rank(list(counts), node, candidates) if node in candidates else math.inf)
    assert math.inf in slow  # a node that is new then
    assert row["n_scored"] == len(slow)
    assert row["recall_20"] == np.mean([rank <= 20 for rank in slow])
    assert row["mrr"] == pytest.approx(np.mean([1 / rank for rank in slow]))


def test_repeats_are_not_scored_in_time_order():
    once = random_events(n=200)
    twice = Batch(np.concatenate([once.index, once.index]), np.ones(400))
    (row,) = prequential_ranks(popularity(2), twice, over=1, every=10)
    assert row["n_scored"] == 16  # 40 to 190; from 200 on, everything has been there
    assert row["n_entries"] == 400


def test_static_methods_have_no_prequential_ranks():
    with pytest.raises(ValueError, match="static"):
        next(prequential_ranks(floors.static_biases(2, PROBIT), random_events(), over=1))
