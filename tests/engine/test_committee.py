"""Several models side by side: the weights against the oracle, the mixture against exact sums, and that a
committee of one is the model itself."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import norm

import naive
import streams
from spidertensor import SpiderClassifier, SpiderRegressor, checkpoint
from spidertensor.estimator.parameters import MEMBERS
from spidertensor.method import Bags, Batch, Method, Prediction, Update
from spidertensor.spider import committee as committees
from spidertensor.spider import few_entries, posterior
from spidertensor.spider.committee import committee, member_seed, start
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Prior
from spidertensor.spider.sequential import sequential
from spidertensor.spider.stacking import LEAST_WEIGHT, mixing_of, stack

entries = partial(streams.entries, nodes=(20, 15), noise=0.3)

NETWORK = Network((3, 3), (6,), bias=True, multilinear=4)
PRIORS = [Prior(), Prior(multilinear_var=0.6), Prior(bias_var=0.3)]
BOTH = pytest.mark.parametrize("kind", [SpiderRegressor, SpiderClassifier])


def members(likelihood=GAUSSIAN, **inference: Any) -> list[Method]:
    return [sequential(NETWORK, likelihood, prior, refine_every=64, **inference) for prior in PRIORS]


def fixed(mean: float, var: float) -> Method:
    """Always the same prediction, whatever it is shown: an exact special case of a member."""

    def update(state: tuple, batch: Batch) -> tuple[tuple, Update]:
        predicted = predict(state, batch.index)
        return state, Update(*predicted, GAUSSIAN.log_evidence(batch.value, *predicted), 0)

    def predict(state: tuple, index: np.ndarray, bags: Bags | None = None) -> Prediction:
        n = len(index)
        return Prediction(np.full(n, mean), np.full(n, var), np.zeros(n))

    return Method(lambda seed: (), update, predict)


def learn(method: Method, value: np.ndarray, seed: int = 0) -> tuple[Any, Update]:
    return method.update(method.init(seed), Batch(np.zeros((len(value), 2), np.int64), value))


# --- weights ---


@pytest.mark.parametrize("kept", [0.0, 0.2])
def test_weights_are_the_oracle(kept):
    """Through entries that some members, or all, cannot learn. kept: least weight of two members"""
    rng = np.random.default_rng(0)
    least = mixing_of(4).least
    least[:, [0, 2]] += [[kept], [2 * kept]]
    log_p = rng.normal(0, 2, (4, 500)) - 40 * (rng.random((4, 500)) < 0.05)
    log_p[rng.random((4, 500)) < 0.1] = np.nan
    log_p[1, 7], log_p[2, 8], log_p[:, 9] = np.inf, -np.inf, -1e300
    log_p[:, 10:400] += np.arange(4)[:, None] * 9  # one member is far ahead: the others fall to LEAST_WEIGHT
    weights, counts = np.full(4, 0.25), start((None,) * 4, GAUSSIAN).counts
    before, log_evidence, good = np.empty((4, 500)), np.empty(500), np.empty(500, bool)
    stack(weights, least, counts, log_p, np.empty((4, 0)), before, log_evidence, good)
    w, evidences = [0.25] * 4, []
    for i in range(500):
        np.testing.assert_allclose(before[:, i], w, rtol=1e-9)
        w, evidence = naive.stacked(
            w, [each if abs(each) < 1e30 else None for each in log_p[:, i]], i, *least
        )
        assert good[i] == (evidence is not None)
        if evidence is not None:
            assert log_evidence[i] == pytest.approx(evidence, rel=1e-9, abs=1e-9)
            evidences.append(evidence)
    np.testing.assert_allclose(weights, w, rtol=1e-9)
    assert counts.log_evidence == pytest.approx(sum(evidences), rel=1e-9)
    assert (counts.entries, counts.refused) == (500, (~good).sum())
    assert before.min() < 1.2 * LEAST_WEIGHT
    np.testing.assert_allclose(before.sum(axis=0), 1, rtol=1e-12)


def test_weights_find_the_mixture_that_values_come_from():
    """Values from 0.7 N(-2, 1) + 0.3 N(2, 1): those weights have the highest log score."""
    rng = np.random.default_rng(1)
    values = np.where(rng.random(20_000) < 0.7, -2.0, 2.0) + rng.normal(size=20_000)
    _, update = learn(committee([fixed(-2, 1), fixed(2, 1)], GAUSSIAN), values)
    weight = (update.mean[2000:] + 2) / 4  # of the second, before each entry
    assert weight.mean() == pytest.approx(0.3, abs=0.02)
    assert weight.std() < 0.1
    exact = np.log(0.7 * norm.pdf(values, -2, 1) + 0.3 * norm.pdf(values, 2, 1))
    assert update.log_evidence[2000:].mean() == pytest.approx(exact[2000:].mean(), abs=0.02)


def test_a_member_comes_back():
    values = np.concatenate([np.full(5000, 5.0), np.full(2000, -5.0)])
    method = committee([fixed(5, 1), fixed(-5, 1)], GAUSSIAN)
    state, update = learn(method, values)
    assert state.weights[1] > 0.99
    error = np.abs(update.mean - values)
    assert error[4900:5000].max() < 0.05
    assert error[-1000:].max() < 0.1


# --- the mixture ---


def members_of(parts: Prediction) -> list[Prediction]:
    """(M, n) arrays as M predictions."""
    return [Prediction(*each) for each in zip(*parts, strict=True)]


def test_moments_of_a_gaussian_mixture():
    rng = np.random.default_rng(2)
    weights, parts = rng.dirichlet(np.ones(3), 7).T, Prediction(*rng.uniform(0.1, 2, (3, 3, 7)))
    mixed = GAUSSIAN.mixture(weights, members_of(parts))
    for i in range(7):
        x = np.linspace(-30, 30, 200_001)
        density = sum(
            weights[m, i] * norm.pdf(x, parts.mean[m, i], math.sqrt(parts.var[m, i])) for m in range(3)
        )
        mean = np.trapezoid(x * density, x)
        assert mixed.mean[i] == pytest.approx(mean, abs=1e-9)
        assert mixed.var[i] == pytest.approx(np.trapezoid((x - mean) ** 2 * density, x), rel=1e-8)
        assert mixed.noise[i] == pytest.approx(weights[:, i] @ parts.noise[:, i])


def test_probability_of_a_probit_mixture_is_the_mixture_of_probabilities():
    """Also far out, where one of the two probabilities is below what a number near 1 can show."""
    mean = np.array([[0.3, -2.0, 30.0, -30.0, 90.0, -90.0], [-1.0, 4.0, 28.0, -29.0, 95.0, -95.0]])
    parts = Prediction(mean, np.array([[0.5], [2.0]]) + 0 * mean, 0 * mean)
    weights = np.array([[0.3], [0.7]]) + 0 * mean
    mixed = PROBIT.mixture(weights, members_of(parts))
    t = parts.mean / np.sqrt(1 + parts.var)
    for sign in (1, -1):
        exact = (weights * ndtr(sign * t)).sum(axis=0)
        got = ndtr(sign * mixed.mean / np.sqrt(1 + mixed.var))
        np.testing.assert_allclose(got, exact, rtol=1e-9, atol=1e-280)
    assert np.isfinite(mixed.mean).all()


@pytest.mark.parametrize("likelihood", [GAUSSIAN, PROBIT])
def test_a_committee_is_its_members_one_by_one(likelihood):
    """Entry by entry: the mixture of what each member predicts, with the oracle's weights."""
    X, y = entries(150, binary=likelihood is PROBIT)
    method = committee(members(likelihood), likelihood)
    _, update = method.update(method.init(3), Batch(X, y))
    alone = [
        each.update(each.init(member_seed(3, m)), Batch(X, y))[1]
        for m, each in enumerate(members(likelihood))
    ]
    w = [1 / 3] * 3
    for i in range(150):
        parts = [Prediction(*(part[i : i + 1] for part in each[:3])) for each in alone]
        mixed = likelihood.mixture(np.array(w)[:, None], parts)
        for got, wanted in zip(update[:3], mixed, strict=True):
            assert got[i] == pytest.approx(wanted[0], rel=1e-9, abs=1e-12)
        w, evidence = naive.stacked(w, [each.log_evidence[i] for each in alone], i)
        assert update.log_evidence[i] == pytest.approx(evidence, rel=1e-9)
        if likelihood is PROBIT:  # the prediction has that very probability
            assert likelihood.log_evidence(y[i], *mixed) == pytest.approx(evidence, rel=1e-7)


def test_clipped_and_refused_entries_are_counted():
    X, y = entries(400)
    y[300], y[310] = 1e3, np.nan
    method = committee(members(clip=4.0), GAUSSIAN, clip=4.0)
    state, update = method.update(method.init(0), Batch(X, y))
    assert (update.refused, int(state.counts.refused)) == (1, 1)
    z = np.abs(y - update.mean) / np.sqrt(update.var + update.noise)
    assert update.clipped == state.counts.clipped == (z > 4).sum() >= 1
    assert update.below is not None
    assert np.flatnonzero(np.isnan(update.below)).tolist() == [310]
    assert update.rejected == sum(int(each.counts.rejected) for each in state.members)
    assert state.counts.log_evidence == pytest.approx(np.nansum(update.log_evidence))


def test_seeds_of_members():
    """The first has that of the model; the others differ from it, from one another, and from the next
    model's."""
    assert [member_seed(seed, 0) for seed in (0, 7, 2**63 - 1)] == [0, 7, 2**63 - 1]
    seeds = [member_seed(seed, member) for seed in range(50) for member in range(7)]
    assert len(set(seeds)) == len(seeds)
    assert all(type(seed) is int and 0 <= seed < 2**63 for seed in seeds)


def test_cores_are_those_of_this_process(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0: {3, 5, 6}}[pid], raising=False)
    assert committees.cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    for known, expected in ((5, 5), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda known=known: known)
        assert committees.cores() == expected


# --- threads ---


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_change_nothing(threads, monkeypatch):
    X, y = entries(3 * committees.MANY_ENTRIES)
    used, real = [], committees.in_threads
    monkeypatch.setattr(committees, "in_threads", lambda *args: (used.append(args[2]), real(*args))[1])
    one, many = (committee(members(), GAUSSIAN, threads=n) for n in (1, threads))
    (state, update), (other, same) = (each.update(each.init(1), Batch(X, y)) for each in (one, many))
    for a, b in zip(update, same, strict=True):
        np.testing.assert_array_equal(a, b)
    for name, leaf in checkpoint.flatten(state).items():
        np.testing.assert_array_equal(leaf, checkpoint.flatten(other)[name])
    for a, b in zip(one.predict(state, X), many.predict(other, X), strict=True):
        np.testing.assert_array_equal(a, b)
    assert used == [1, min(threads, 3)] * 2  # update, predict
    many.update(other, Batch(X[: committees.MANY_ENTRIES - 1], y[: committees.MANY_ENTRIES - 1]))
    assert set(used[4:]) <= {1}  # too short to pay


def test_short_calls_learn_the_same_bits_as_a_long_one():
    """They keep packed weights from call to call, across refinements, new nodes, and members that follow a
    change of the values in the middle of a call, one sooner than the other."""
    n, rng = 2600, np.random.default_rng(2)
    X = np.minimum(rng.integers(0, 40, (n, 2)), np.arange(n)[:, None] // 20)  # new nodes come for 800 entries
    y = np.sin(X.sum(axis=1)) + 0.3 * rng.normal(size=n)
    y[1200:] = 60 + 8 * y[1200:]
    inner = [
        sequential(NETWORK, GAUSSIAN, prior, refine_every=64, clip=clip, node_noise=True)
        for prior, clip in zip(PRIORS, (4.0, 3.0, 6.0), strict=True)
    ]
    method = committee(inner, GAUSSIAN, clip=4.0)
    whole, of_whole = method.update(method.init(0), Batch(X, y))
    state, updates, start = method.init(0), [], 0
    while start < n:
        end = start + int(rng.choice([1, 7, 64, 150, 300]))
        state, update = method.update(state, Batch(X[start:end], y[start:end]))
        updates, start = [*updates, update], end
    assert all(member.stream.followed.any() for member in whole.members)
    long, short = (
        checkpoint.flatten(each._replace(members=tuple(map(posterior.trim, each.members))))
        for each in (whole, state)
    )
    assert long.keys() == short.keys()
    for name, leaf in long.items():
        np.testing.assert_array_equal(leaf, short[name], name)
    for name in ("mean", "var", "noise", "log_evidence", "below"):
        found = np.concatenate([getattr(each, name) for each in updates])
        np.testing.assert_array_equal(found, getattr(of_whole, name))
    for name in ("rejected", "refused", "clipped"):
        assert sum(getattr(each, name) for each in updates) == getattr(of_whole, name)


def test_members_work_in_threads_at_the_same_time():
    """Three that wait for each other."""
    together = threading.Barrier(3, timeout=20)
    assert committees.in_threads(lambda m: (together.wait(), m)[1], 3, 3) == [0, 1, 2]
    assert committees.in_threads(lambda m: m * m, 5, 2) == [0, 1, 4, 9, 16]


def test_threads_that_wait_do_not_keep_a_program_from_ending():
    """An interrupt may come between their start and the block that ends them."""
    program = "from spidertensor.spider.crew import Crew; Crew(3).__enter__(); print('end')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "end\n"), ended.stderr


def test_an_interrupted_call_leaves_no_weights_for_the_next(monkeypatch):
    (X, y), method = entries(20), committee(members(), GAUSSIAN)
    (state, _), (twin, _) = (method.update(method.init(1), Batch(X, y)) for _ in range(2))
    real = few_entries.point_to

    def interrupted(*arguments):
        real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(few_entries, "point_to", interrupted)
    with pytest.raises(KeyboardInterrupt):
        method.update(state, Batch(X, y, weight=np.full(20, 0.01)))
    monkeypatch.setattr(few_entries, "point_to", real)
    (_, update), (_, same) = (method.update(each, Batch(X, y)) for each in (state, twin))
    np.testing.assert_array_equal(update.mean, same.mean)


def test_nine_members_do_not_depend_on_cuts():
    """NumPy adds eight or more numbers in another order than rows of numbers."""
    X, y = entries(60)
    nine = [sequential(NETWORK, GAUSSIAN, Prior(bias_var=0.02 * (m + 1)), refine_every=64) for m in range(9)]
    method = committee(nine, GAUSSIAN)
    _, whole = method.update(method.init(0), Batch(X, y))
    state, parts = method.init(0), []
    for i in range(60):
        state, update = method.update(state, Batch(X[i : i + 1], y[i : i + 1]))
        parts.append(update)
    for name in ("mean", "var", "noise", "log_evidence", "below"):
        np.testing.assert_array_equal(
            np.concatenate([getattr(each, name) for each in parts]), getattr(whole, name)
        )
    one_by_one = [method.predict(state, X[i : i + 1]).mean for i in range(60)]
    np.testing.assert_array_equal(np.concatenate(one_by_one), method.predict(state, X).mean)


@pytest.mark.parametrize(("size", "threads"), [(3, 1), (1, 4), (3, 7)])
def test_long_predictions_are_made_in_blocks(size, threads, monkeypatch):
    X, y = entries(300)
    method = committee(members()[:size], GAUSSIAN, threads=threads)
    state, _ = method.update(method.init(0), Batch(X, y))
    whole = method.predict(state, X)
    monkeypatch.setattr(committees, "BLOCK_ENTRIES", 64)
    for a, b in zip(method.predict(state, X), whole, strict=True):
        np.testing.assert_array_equal(a, b)


def test_members_out_of_step_are_refused():
    """After an error that no signal handler can put off, such as too little memory."""
    X, y = entries(50)
    inner = members()

    def fails(state: Any, batch: Batch) -> tuple[Any, Update]:
        raise MemoryError

    failing = Method(inner[1].init, fails, inner[1].predict)
    method = committee([inner[0], failing, inner[2]], GAUSSIAN)
    state = method.init(0)
    grown = [
        posterior.grow(each, NETWORK, prior, np.array([20, 15]))
        for each, prior in zip(state.members, PRIORS, strict=True)
    ]
    state = state._replace(members=tuple(grown))
    with pytest.raises(MemoryError):
        method.update(state, Batch(X, y))
    with pytest.raises(RuntimeError, match="load the model from its last file"):
        committee(inner, GAUSSIAN).update(state, Batch(X, y))


def test_a_committee_learns_in_batches_if_one_of_its_members_does():
    batches = replace(members()[1], unit="batch")
    assert committee([members()[0], batches], GAUSSIAN).unit == "batch"


def test_an_error_of_a_member_is_raised():
    X, y = entries(committees.MANY_ENTRIES)
    for threads in (1, 2):
        method = committee(members(), GAUSSIAN, threads=threads)
        with pytest.raises(ValueError, match="2 modes"):
            method.update(method.init(0), Batch(X[:, :1], y))


@pytest.mark.parametrize("n", [100, committees.MANY_ENTRIES])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_waits_until_all_members_have_learned(n, number):
    """Else some of them would know entries that others do not."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(number, stop)
    X, y = entries(n)
    inner = members()

    def interrupted(state: Any, batch: Batch) -> tuple[Any, Update]:
        os.kill(os.getpid(), number)
        return inner[1].update(state, batch)

    stopped = Method(inner[1].init, interrupted, inner[1].predict)
    method = committee([inner[0], stopped, inner[2]], GAUSSIAN)
    state = method.init(0)
    grown = tuple(
        posterior.grow(each, NETWORK, prior, np.array([20, 15]))
        for each, prior in zip(state.members, PRIORS, strict=True)
    )
    state = state._replace(members=grown)
    try:
        with pytest.raises(KeyboardInterrupt):
            method.update(state, Batch(X, y))
        assert signal.getsignal(number) is stop
    finally:
        signal.signal(number, before)
    assert [int(each.counts.entries) for each in state.members] == [n] * 3
    assert state.counts.entries == n


# --- in the estimators ---


@BOTH
def test_the_first_member_is_the_model_alone(kind):
    X, y = entries(700, binary=kind is SpiderClassifier)
    four, one = (kind(rank=3, hidden=(8,), committee=n, random_state=4).fit(X, y) for n in (4, 1))
    state = four._fitted().state
    mine, alone = (checkpoint.flatten(each) for each in (state.members[0], one._fitted().state.members[0]))
    for name, leaf in mine.items():
        np.testing.assert_array_equal(leaf, alone[name])
    assert len({int(member.seed) for member in state.members}) == 4
    assert not np.array_equal(four.predict_parts(X).mean, one.predict_parts(X).mean)


@BOTH
def test_members(kind):
    X, y = entries(2000, binary=kind is SpiderClassifier)
    model = kind(rank=2, hidden=(8,)).fit(X, y)
    wanted = [dict(own) for own in MEMBERS[:6]]
    if kind is SpiderClassifier:
        del wanted[5]["node_noise"]  # labels have no noise of nodes
    assert [member.own for member in model.members_] == wanted
    assert sum(member.weight for member in model.members_) == pytest.approx(1)
    leading = int(np.argmax([member.weight for member in model.members_]))
    for named, own in ((model.weights, model.weights_), (model.factors, model.factors_)):
        for mine, leader in zip(named(leading), own, strict=True):
            np.testing.assert_array_equal(mine.mean, leader.mean)
        other = named((leading + 1) % 6)
        assert not np.array_equal(other[0].mean, own[0].mean)
    for mine, leader in zip(model.inclusion(leading), model.inclusion_, strict=True):
        np.testing.assert_array_equal(mine, leader)
    # the mixture goes on better than they do on average: not as well as the best, to which weights go slowly
    before = np.array([model.log_evidence_, *(member.log_evidence for member in model.members_)])
    model.partial_fit(*entries(2000, seed=1, binary=kind is SpiderClassifier))
    gained = np.array([model.log_evidence_, *(member.log_evidence for member in model.members_)]) - before
    assert gained[0] > gained[1:].mean() + 5
    for member in (6, -1, 1.0, "0"):
        with pytest.raises(ValueError, match="the committee has 6, numbered from 0"):
            model.weights(member)


@BOTH
def test_members_of_one_s_own(kind):
    X, y = entries(600, binary=kind is SpiderClassifier)
    own = [{}, {"memory": 50}, {"hidden": (), "rank": 1}, {"multilinear": 3, "rho0": np.float64(0.5)}]
    model = kind(rank=2, hidden=(8,), committee=own).fit(X, y)
    assert len(model.members_) == 4
    assert model.members_[2].own == {"hidden": [], "rank": 1}
    assert model.factors(2)[0].mean.shape[1] == 1 + 32 + 1
    assert model.factors(3)[0].mean.shape[1] == 1 + 3 + 2
    assert model.settings_["committee"][1] == {"memory": 50}
    assert len(model.weights(2)) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (0, "from 1 to"),
        (len(MEMBERS) + 1, "from 1 to"),
        (2.0, "from 1 to"),
        (True, "from 1 to"),
        ([], "from 1 to"),
        (None, "from 1 to"),
        ("4", "from 1 to"),
        ([{}, 3], "from 1 to"),
        ([{1: 2}], "from 1 to"),
        ([{"ranks": 3}], "cannot have its own 'ranks'"),
        ([{}, {"batch_size": 3}], "cannot have its own 'batch_size'"),
        ([{"committee": 2}], "cannot have its own 'committee'"),
        ([{"clip": 3.0}], "cannot have its own 'clip'"),
        ([{}, {"memory": "long"}], "memory must be"),
        ([{}, {"memory": 0}], "memory must be"),
        ([{"bias_var": -1}], "bias_var must be"),
        ([{"noise_memory": None}], "node_noise needs"),
    ],
)
def test_impossible_committees(wrong, message):
    X, y = entries(50)
    model = SpiderRegressor(committee=wrong)
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)
    assert not model.__sklearn_is_fitted__()
    good = SpiderRegressor(committee=2).fit(X, y)
    assert len(good.members_) == 2


def test_what_only_a_regressor_has_is_nobody_s_own():
    X, y = entries(50, binary=True)
    with pytest.raises(ValueError, match="cannot have its own 'node_noise', only"):
        SpiderClassifier(committee=[{"node_noise": False}]).fit(X, y)


def test_every_member_of_the_list_learns():
    X, y = entries(2500)
    model = SpiderRegressor(rank=2, hidden=(8,), committee=len(MEMBERS)).fit(X, y)
    assert len(model.members_) == len(MEMBERS)
    assert model.score(X, y) > 0.8
    assert len({member.log_evidence for member in model.members_}) == len(MEMBERS)


def test_follows_a_change_faster_than_a_model_that_never_forgets():
    """Half of the nodes of one mode take on other factors."""
    rng = np.random.default_rng(5)
    X = rng.integers((40, 30), size=(60_000, 2))
    u, v = rng.normal(size=(2, 40, 3)), rng.normal(size=(30, 3))
    late = np.arange(60_000) >= 40_000
    f = np.einsum("nr,nr->n", u[(late & (X[:, 0] < 20)).astype(int), X[:, 0]], v[X[:, 1]])
    y = f + 0.3 * rng.normal(size=60_000)
    error = {}
    for n in (1, 4):
        update = SpiderRegressor(rank=3, committee=n).learn(X, y)
        assert np.sqrt(np.mean((update.mean - f)[30_000:40_000] ** 2)) < 0.2
        error[n] = np.sqrt(np.mean((update.mean - f)[40_000:50_000] ** 2))  # just after the change
    assert error[4] < 0.9 * error[1]
