"""Scores of ordered levels: honest cut points, frequencies, and continuous values between half-way points."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from spidertensor.evaluation import floors
from spidertensor.evaluation.clock import Clock, honest_clock
from spidertensor.evaluation.levels import between_half_ways, frequencies
from spidertensor.evaluation.methods import METHODS, spider
from spidertensor.evaluation.protocols import held_out, prequential
from spidertensor.method import Batch, Prediction
from spidertensor.scaling import Scaling
from spidertensor.spider.likelihoods import GAUSSIAN
from spidertensor.spider.likelihoods.ordinal import Ordinal, ordinal

LEVELS = (1.0, 2.0, 4.0)
LIKELIHOOD = ordinal(LEVELS)
N, SIZE = 600, 50


@pytest.fixture(scope="module")
def stream():
    """The highest level is twice as frequent in the second half."""
    rng = np.random.default_rng(0)
    index = rng.integers((9, 7), size=(N, 2))
    f = (index[:, 0] % 3 - index[:, 1] % 2) + rng.normal(size=N) + (np.arange(N) > N / 2)
    return Batch(index, np.array(LEVELS)[np.digitize(f, [0, 1.5])])


def test_frequencies_are_those_so_far(stream):
    counts, wanted = dict.fromkeys(LEVELS, 1), []
    for value in stream.value:
        wanted.append(np.log(counts[value] / sum(counts.values())))
        counts[value] += 1
    method = frequencies(LIKELIHOOD)
    state, update = method.init(0), []
    for rows in (slice(0, 1), slice(1, 1), slice(1, 400), slice(400, N)):  # cuts change nothing
        state, part = method.update(state, Batch(stream.index[rows], stream.value[rows]))
        update.extend(part.log_evidence)
    np.testing.assert_allclose(update, wanted, rtol=1e-12)
    chance = method.likelihood(state).probabilities(*method.predict(state, stream.index[:2]))
    np.testing.assert_allclose(chance, [np.array(list(counts.values())) / (N + 3)] * 2, rtol=1e-9)
    _, refused = method.update(state, Batch(stream.index[:2], np.array([3.0, 4.0])))
    assert (refused.refused, np.isnan(refused.log_evidence).tolist()) == (1, [True, False])


def test_continuous_values_give_a_level_what_lies_half_way(stream):
    method = floors.biases(2, GAUSSIAN)
    _, plain = method.update(method.init(0), stream)
    ends = {1.0: (-np.inf, 1.5), 2.0: (1.5, 3.0), 4.0: (3.0, np.inf)}
    low, high = np.array([ends[value] for value in stream.value]).T
    std = np.sqrt(plain.var + plain.noise)
    wanted = np.log(norm.cdf(high, plain.mean, std) - norm.cdf(low, plain.mean, std))
    row, *_ = prequential(METHODS["biases"].build(0, 2, LIKELIHOOD, SIZE), stream, likelihood=LIKELIHOOD)
    assert row["log_density"] == pytest.approx(wanted[N // 10 :].mean(), rel=1e-12)
    own = between_half_ways(method, LIKELIHOOD, scaled=False)
    state, _ = own.update(own.init(0), stream)
    learned, _ = method.update(method.init(0), stream)
    np.testing.assert_array_equal(own.predict(state, stream.index), method.predict(learned, stream.index))


def test_what_needs_scaled_values_has_the_scale_of_the_first_call(stream):
    inner, scaling = spider(0, 2, GAUSSIAN, SIZE, committee=1), Scaling.of(stream.value[:SIZE])
    own = between_half_ways(inner, LIKELIHOOD, scaled=True)
    state, other = own.init(0), inner.init(0)
    for rows in (slice(0, SIZE), slice(SIZE, N)):
        batch = Batch(stream.index[rows], stream.value[rows])
        state, update = own.update(state, batch)
        other, plain = inner.update(other, Batch(batch.index, scaling.scaled(batch.value)))
        np.testing.assert_array_equal(update.mean, scaling.shift + scaling.scale * plain.mean)
    predicted, _ = own.forecast(state, stream.index)
    np.testing.assert_array_equal(predicted, own.predict(state, stream.index))


def test_a_prediction_has_the_cut_points_of_its_time(stream):
    """The log score is exact; the mean, the most probable level and the intervals are as of each batch."""
    method = spider(0, 2, LIKELIHOOD, SIZE, committee=2)
    state = method.init(0)
    row, *_ = prequential(method, stream, likelihood=LIKELIHOOD, batch_size=SIZE)
    evidence, mean, most, inside = [], [], [], []
    for at in range(0, N, SIZE):
        before = Ordinal(LEVELS, np.array([1.0 + (stream.value[:at] == level).sum() for level in LEVELS]))
        value = stream.value[at : at + SIZE]
        state, update = method.update(state, Batch(stream.index[at : at + SIZE], value))
        evidence.extend(update.log_evidence)
        chance = before.probabilities(*update[:3])
        mean.extend(chance @ LEVELS)
        most.extend(np.array(LEVELS)[chance.argmax(axis=1)])
        low, high = before.interval(Prediction(*update[:3]), 0.8)
        inside.extend((low <= value) & (value <= high))
    value, scored = stream.value, slice(N // 10, None)
    assert row["log_density"] == pytest.approx(np.mean(evidence[scored]), rel=1e-12)
    assert row["score"] == pytest.approx(np.sqrt(np.mean((value - mean)[scored] ** 2)), rel=1e-12)
    assert row["accuracy"] == np.mean((most == value)[scored])
    assert row["coverage_80"] == np.mean(inside[scored])
    assert row["calibrated_80"] is None


def test_the_clock_scores_what_was_known_when_asked(stream):
    clock = Clock(np.arange(N), np.arange(N) + 100, "entries", tick=10.0)
    row, *_ = honest_clock(frequencies(LIKELIHOOD), stream, clock, likelihood=LIKELIHOOD, batch_size=SIZE)
    counts, wanted = dict.fromkeys(LEVELS, 1), {}
    for learned, asked in clock.ticks(SIZE):
        for value in stream.value[learned]:
            counts[value] += 1
        for entry in range(*asked.indices(N)):
            wanted[entry] = np.log(counts[stream.value[entry]] / sum(counts.values()))
    scored = [wanted[entry] for entry in range(row["skipped"], N)]
    assert row["log_density"] == pytest.approx(np.mean(scored), rel=1e-9)
    assert row["n_scored"] == len(scored)


def test_held_out_levels_have_the_cut_points_of_the_end(stream):
    train, test = Batch(stream.index[:500], stream.value[:500]), Batch(stream.index[500:], stream.value[500:])
    row, *_ = held_out(frequencies(LIKELIHOOD), train, test, likelihood=LIKELIHOOD, batch_size=SIZE)
    share = np.array([(train.value == level).sum() + 1 for level in LEVELS]) / 503
    wanted = np.log(share[np.searchsorted(LEVELS, test.value)]).mean()
    assert row["log_density"] == pytest.approx(wanted, rel=1e-9)
    assert row["accuracy"] == np.mean(test.value == LEVELS[share.argmax()])
