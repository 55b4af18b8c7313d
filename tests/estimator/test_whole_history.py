"""`fit` learns a history as often as it takes: better than once, deterministic, and nothing counts twice."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from sklearn.base import clone

import spidertensor
from model_files import file_bytes
from spidertensor import SpiderClassifier, SpiderRegressor
from spidertensor.estimator import history
from spidertensor.spider import passes

SMALL = {"rank": 2, "hidden": (4,), "multilinear": 4, "batch_size": 64, "committee": [{}, {"bias_var": 0.2}]}
N = 5_000


def ratings(seed: int = 2, sizes: tuple[int, int] = (60, 40), n: int = N + 2_000):
    """Users and movies with biases and two pairs; noise of 0.4."""
    rng = np.random.default_rng(seed)
    (users, movies), biases = [rng.normal(size=(d, 2)) for d in sizes], [rng.normal(size=d) for d in sizes]
    X = np.stack([rng.integers(d, size=n) for d in sizes], axis=1)
    pairs = (users[X[:, 0]] * movies[X[:, 1]]).sum(axis=1)
    f = 0.5 * (biases[0][X[:, 0]] + biases[1][X[:, 1]] + pairs)
    return X, 3 + f + 0.4 * rng.normal(size=n)


X_ALL, Y_ALL = ratings()
X, Y, X_TEST, Y_TEST = X_ALL[:N], Y_ALL[:N], X_ALL[N:], Y_ALL[N:]


def error(model, X=X_TEST, y=Y_TEST) -> float:
    return float(np.sqrt(np.mean((model.predict(X) - y) ** 2)))


@pytest.fixture(scope="module")
def fitted() -> SpiderRegressor:
    """Read by the tests, changed by none."""
    return SpiderRegressor(**SMALL).fit(X, Y)


# --- how good -------------------------------------------------------------------------------------


def test_fit_is_better_than_one_pass_and_near_the_noise(fitted):
    once = error(SpiderRegressor(**SMALL, passes=1).fit(X, Y))
    assert 0.4 < error(fitted) < 0.43
    assert error(fitted) < once - 0.003


def test_intervals_of_what_was_never_learned_hold(fitted):
    low, high = fitted.predict_interval(X_TEST, 0.9)
    assert 0.85 < np.mean((low <= Y_TEST) & (high >= Y_TEST)) < 0.95


@pytest.mark.parametrize("mode", [0, 1])
def test_a_sorted_file_is_learned_like_a_shuffled_one(mode, fitted):
    order = np.argsort(X[:, mode], kind="stable")
    assert error(SpiderRegressor(**SMALL).fit(X[order], Y[order])) == pytest.approx(error(fitted), rel=0.04)


def test_a_stream_goes_on_where_a_history_ends(fitted):
    """The last tenth learned once, after the rest: about as good as all of it, and each entry counts once."""
    model = SpiderRegressor(**SMALL).fit(X[:4500], Y[:4500])
    assert model.n_entries_ == 4500
    model.partial_fit(X[4500:], Y[4500:])
    assert model.n_entries_ == N
    assert error(model) == pytest.approx(error(fitted), rel=0.03)


@pytest.mark.parametrize("seed", [0, 2])
def test_fit_does_not_stop_where_nothing_moves_for_a_while(seed):
    """33 entries of a user: the first passes know biases alone, and only then pairs begin to show. Meanwhile
    the member with a memory, which learns once, leads the mixture."""
    X, y = ratings(seed, (150, 80))
    once, often = (
        SpiderRegressor(**SMALL | {"committee": 2}, passes=number).fit(X[:N], y[:N]) for number in (1, "auto")
    )
    assert error(often, X[N:], y[N:]) < 0.9 * error(once, X[N:], y[N:])


@pytest.mark.parametrize("random_state", [0, 1])
def test_labels_are_learned_better_too(random_state):
    labels = np.where(Y_ALL > 3, "good", "bad")
    models = [
        SpiderClassifier(**SMALL, passes=number, random_state=random_state).fit(X, labels[:N])
        for number in ("auto", 1)
    ]
    accuracy = [np.mean(model.predict(X_TEST) == labels[N:]) for model in models]
    assert accuracy[0] > 0.78
    assert accuracy[0] > accuracy[1] - 0.005
    log_loss = [
        -np.log(model.predict_proba(X_TEST)[np.arange(2000), (labels[N:] == "good").astype(int)]).mean()
        for model in models
    ]
    assert log_loss[0] < log_loss[1]
    assert models[0].classes_.tolist() == ["bad", "good"]


def test_counts_are_learned_in_passes():
    rng = np.random.default_rng(0)
    level = 0.5 * (Y_ALL - 3)
    y = rng.poisson(3 * np.exp(level))
    settings = SMALL | {"committee": 1}
    model = SpiderRegressor(likelihood="count", passes=3, **settings).fit(X[:2000], y[:2000])
    assert model.n_entries_ == 2000
    said = model.predict(X_TEST)
    assert np.corrcoef(np.log(said), level[N:])[0, 1] > 0.65
    assert (said > 0).all()


# --- the same again -------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_seed_decides_everything(fitted, monkeypatch):
    assert file_bytes(SpiderRegressor(**SMALL).fit(X, Y)) == file_bytes(fitted)
    monkeypatch.setattr(passes, "cores", lambda: 1)
    assert file_bytes(SpiderRegressor(**SMALL).fit(X, Y)) == file_bytes(fitted)
    assert file_bytes(SpiderRegressor(**SMALL, random_state=1).fit(X, Y)) != file_bytes(fitted)


def test_saved_loaded_and_pickled_models_are_the_same(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    for other in (
        SpiderRegressor.load(tmp_path / "model"),
        spidertensor.load(tmp_path / "model"),
        pickle.loads(pickle.dumps(fitted)),
        copy.deepcopy(fitted),
    ):
        np.testing.assert_array_equal(other.predict(X_TEST), fitted.predict(X_TEST))
        assert (other.passes, other.time) == ("auto", None)
        assert other.n_entries_ == N
        assert other.log_evidence_ == fitted.log_evidence_
        other.partial_fit(X_TEST[:100], Y_TEST[:100])
        assert other.n_entries_ == N + 100


def test_a_history_may_say_nothing_of_its_sites(fitted, tmp_path):
    """As in files of earlier versions."""
    model = copy.deepcopy(fitted)
    assert " parts, " in model.history_["sites"]
    record = model.history_
    del record["sites"]
    model._learned = model._learned._replace(history=record)
    model.save(tmp_path / "model")
    assert SpiderRegressor.load(tmp_path / "model").history_ == record


def bits_learned_once(X, y, **settings) -> bytes:
    return file_bytes(SpiderRegressor(**SMALL, **settings).partial_fit(X, y))


def test_passes_1_is_partial_fit_bit_for_bit():
    model = SpiderRegressor(**SMALL, passes=1)
    assert file_bytes(model.fit(X, Y)) == bits_learned_once(X, Y, passes=1)


def test_few_entries_are_learned_once():
    few = history.FEWEST - 1
    assert file_bytes(SpiderRegressor(**SMALL).fit(X[:few], Y[:few])) == bits_learned_once(X[:few], Y[:few])
    more = X[: few + 1], Y[: few + 1]
    assert file_bytes(SpiderRegressor(**SMALL).fit(*more)) != bits_learned_once(*more)


def test_so_many_passes_as_asked_for(monkeypatch):
    """Also of few entries, which have no judge; the members' counts are those of one pass."""
    done = []
    ended = passes.Passes.one_more

    def counted(self, states):
        yield from ended(self, states)
        done.append(self.done)

    monkeypatch.setattr(passes.Passes, "one_more", counted)
    for n in (500, 1500):
        done.clear()
        model = SpiderRegressor(**SMALL, passes=4).fit(X[:n], Y[:n])
        assert done == [1, 2, 3, 4]
        assert model.n_entries_ == n
        assert {int(member.counts.entries) for member in model._learned.state.members} == {n}


def test_every_entry_counts_once(fitted):
    state = fitted._learned.state
    assert fitted.n_entries_ == N == int(state.counts.entries)
    assert [int(member.counts.entries) for member in state.members] == [N, N]
    assert state.weights.sum() == pytest.approx(1)


def test_a_member_with_a_memory_learns_once():
    """It alone: as if the entries had come once, in the order of the history."""
    settings = SMALL | {"committee": [{}, {"memory": 300}]}
    asked = SpiderRegressor(**settings, passes=4).fit(X[:2000], Y[:2000])
    once = SpiderRegressor(**settings, passes=2).fit(X[:2000], Y[:2000])
    members = [model._learned.state.members for model in (asked, once)]
    steady, forgetting = ([each[m].posterior.factors[0].mean for each in members] for m in range(2))
    np.testing.assert_array_equal(*forgetting)
    assert np.abs(steady[0] - steady[1]).max() > 1e-3


def test_fit_forgets_what_was_before(fitted):
    model = SpiderRegressor(**SMALL).fit(X_TEST, Y_TEST)
    model.partial_fit([(1000, 1000)], [3.0])
    assert file_bytes(model.fit(X, Y)) == file_bytes(fitted)


# --- parameters and interruptions -----------------------------------------------------------------


def test_parameters_are_those_of_scikit_learn():
    model = SpiderRegressor(passes=3, time="when", **SMALL)
    assert model.get_params()["passes"] == 3
    assert clone(model).get_params() == model.get_params()
    assert clone(model.set_params(passes="auto", time=None)).passes == "auto"


@pytest.mark.parametrize("bad", [0, -1, 1.5, "many", None, True])
def test_impossible_passes_are_refused(bad):
    with pytest.raises(ValueError, match="passes must be"):
        SpiderRegressor(passes=bad).fit(X[:20], Y[:20])


@pytest.mark.parametrize("bad", [3, ["when"], True])
def test_an_impossible_time_is_refused(bad):
    with pytest.raises(ValueError, match="time must be"):
        SpiderRegressor(time=bad).fit(X[:20], Y[:20])


def test_bounded_models_learn_once():
    settings = {"max_nodes": 30}
    with pytest.raises(ValueError, match="learned only once"):
        SpiderRegressor(**SMALL, **settings, passes=3).fit(X[:1500], Y[:1500])
    once = SpiderRegressor(**SMALL, **settings).fit(X[:1500], Y[:1500])
    assert file_bytes(once) == bits_learned_once(X[:1500], Y[:1500], **settings)


@pytest.mark.parametrize("after", [1, 2, 5])
def test_ctrl_c_leaves_the_model_as_it_was(after, monkeypatch):
    """In the first pass, between passes and in a later one; also one that knew nothing."""
    models = [SpiderRegressor(**SMALL).fit(X_TEST[:1500], Y_TEST[:1500]), SpiderRegressor(**SMALL)]
    before = file_bytes(models[0])
    visit = passes.Visitor.visit
    calls = iter(range(10**6))

    def stopped(self, *args, **how):
        if next(calls) >= 10 * after:
            raise KeyboardInterrupt
        return visit(self, *args, **how)

    for model in models:
        with monkeypatch.context() as patch:
            calls = iter(range(10**6))
            patch.setattr(passes.Visitor, "visit", stopped)
            with pytest.raises(KeyboardInterrupt):
                model.fit(X, Y)
    assert file_bytes(models[0]) == before
    assert not models[1].__sklearn_is_fitted__()
    assert not hasattr(models[1], "n_features_in_")
    np.testing.assert_array_equal(models[0].fit(X, Y).predict(X_TEST), models[1].fit(X, Y).predict(X_TEST))
