"""`fit` learns events as often as it takes: it ranks better than one pass, and each event counts once."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from model_files import file_bytes
from spidertensor import SpiderClassifier
from spidertensor.estimator import arranged, collected
from spidertensor.spider import passes, site_plan, site_store
from spidertensor.testing.states import bits

N = 4_000
SMALL = {"rank": 2, "hidden": (4,), "multilinear": 4, "batch_size": 64, "committee": [{}, {"memory": 500}]}
EVENTS = {"negatives": 4, "negatives_over": "song"}
FEW = SMALL | EVENTS | {"committee": 1}


def plays(n: int = N + 1_000, seed: int = 0) -> pd.DataFrame:
    """Each user likes songs by three hidden tastes; some songs are popular with all."""
    rng = np.random.default_rng(seed)
    users, songs = rng.normal(size=(80, 3)), rng.normal(size=(50, 3))
    score = np.exp(1.2 * users @ songs.T + rng.normal(size=50))
    user = rng.integers(80, size=n)
    below = np.cumsum(score, axis=1) / score.sum(axis=1, keepdims=True)
    song = (rng.random(n)[:, None] > below[user]).sum(axis=1)
    return pd.DataFrame({"user": [f"u{u}" for u in user], "song": [f"s{s}" for s in song]})


ALL = plays()
X, LATER = ALL[:N], ALL[N:]
SONGS = sorted(X.song.unique())
LATER = LATER[LATER.song.isin(SONGS)]


def mean_rank(model: SpiderClassifier) -> float:
    """Where later events rank among all songs, on average."""
    users = sorted(LATER.user.unique())
    every = pd.DataFrame({"user": np.repeat(users, len(SONGS)), "song": SONGS * len(users)})
    score = model.predict_proba(every)[:, 1].reshape(len(users), -1)
    row, own = LATER.user.map(users.index), LATER.song.map(SONGS.index)
    return float((score[row] >= score[row, own][:, None]).sum(axis=1).mean())


@pytest.fixture(scope="module")
def fitted() -> SpiderClassifier:
    """Read by the tests, changed by none."""
    return SpiderClassifier(**SMALL, **EVENTS, remember_seen="user").fit(X)


@pytest.fixture(scope="module")
def once() -> SpiderClassifier:
    return SpiderClassifier(**SMALL, **EVENTS, remember_seen="user", passes=1).fit(X)


def test_fit_ranks_better_than_one_pass(fitted, once):
    assert mean_rank(fitted) < 0.95 * mean_rank(once)
    history = fitted.history_
    assert history is not None
    assert history["judge"] == "random"
    assert history["judged"] == 500
    assert history["chosen"] > 1
    assert history["errors"][history["chosen"] - 1] < history["errors"][0]


def test_each_event_counts_once(fitted, once):
    assert fitted.n_entries_ == once.n_entries_ == N
    assert fitted.n_nodes_ == once.n_nodes_
    assert bits(fitted._fitted().state.draws) == bits(once._fitted().state.draws)
    had = set(X.song[X.user == "u0"])
    assert {each.id for each in fitted.recommend({"user": "u0"}, "song", 50)} == set(SONGS) - had


def test_popularity_counts_once():
    models = [SpiderClassifier(**FEW, negatives_power=0.75, passes=n).fit(X[:1500]) for n in (1, 3)]
    times = [model._fitted().state.draws.popularity[0].times[: model.n_nodes_[1]] for model in models]
    assert times[0].tolist() == times[1].tolist()
    assert times[0].sum() == 1500


def test_a_single_pass_is_what_it_was():
    both = [SpiderClassifier(**FEW, passes=1) for _ in range(2)]
    assert file_bytes(both[0].fit(X[:1500])) == file_bytes(both[1].partial_fit(X[:1500]))
    few = SpiderClassifier(**FEW)
    few.fit(X[:500])
    assert few.history_ is None


def test_the_seed_decides_everything(fitted, monkeypatch):
    for where in ((passes, "cores", lambda: 1), (site_store, "IN_MEMORY", 10_000)):
        monkeypatch.setattr(*where)
        again = SpiderClassifier(**SMALL, **EVENTS, remember_seen="user").fit(X)
        assert bits(again._fitted().state) == bits(fitted._fitted().state)
    assert "in a file" in again.history_["sites"]


def test_a_stream_goes_on_where_a_history_ends(tmp_path):
    """A loaded model and the one that was saved stay the same, to the bit."""
    model = SpiderClassifier(**FEW, passes=3).fit(X)
    model.save(tmp_path / "model")
    loaded = SpiderClassifier.load(tmp_path / "model")
    before = mean_rank(model)
    for each in (model, loaded):
        each.partial_fit(LATER[:500])
    assert file_bytes(model) == file_bytes(loaded)
    assert model.n_entries_ == N + 500
    assert mean_rank(model) < before


def test_random_events_are_held_back_even_if_there_is_a_time():
    in_time = X.assign(when=np.arange(N))
    shuffled = in_time.sample(frac=1, random_state=3)
    model = SpiderClassifier(**FEW, time="when", passes=2).fit(shuffled)
    assert model.history_ is not None
    assert model.history_["judge"] == "random"
    assert model.n_entries_ == N


def test_the_order_of_the_rows_is_no_matter_if_events_have_a_time(monkeypatch):
    """Nor where they lie, bit for bit."""
    in_time = X[:1500].assign(when=np.arange(1500))
    settings = FEW | {"time": "when", "passes": 2, "remember_seen": "user"}
    wanted = file_bytes(SpiderClassifier(**settings).fit(in_time))
    shuffled = in_time.sample(frac=1, random_state=3)
    assert file_bytes(SpiderClassifier(**settings).fit(shuffled)) == wanted
    monkeypatch.setattr(collected, "IN_MEMORY", 0)
    monkeypatch.setattr(arranged, "BUCKET_BYTES", 7_000)
    assert file_bytes(SpiderClassifier(**settings).fit(shuffled)) == wanted


def test_shuffled_events_in_a_file_are_learned_as_well(once, monkeypatch):
    monkeypatch.setattr(collected, "IN_MEMORY", 0)
    monkeypatch.setattr(arranged, "BUCKET_BYTES", 7_000)
    model = SpiderClassifier(**FEW, remember_seen="user", passes=6).fit(X)
    assert bits(model._fitted().state.draws) == bits(once._fitted().state.draws)
    assert mean_rank(model) < 0.95 * mean_rank(once)


def test_events_without_sites_give_back_by_share(once, monkeypatch):
    monkeypatch.setattr(site_plan, "MOST_BYTES", 0)
    model = SpiderClassifier(**FEW, passes=6).fit(X)
    assert model.history_ is not None
    assert "nodes have none" in model.history_["sites"]
    assert model.n_entries_ == N
    assert mean_rank(model) < 0.97 * mean_rank(once)


def test_events_with_attributes_are_learned_in_passes():
    """A song that was never played is ranked by its taste."""
    rng = np.random.default_rng(1)
    user, song = rng.integers(40, size=3000), rng.integers(30, size=3000)
    song = np.where(rng.random(3000) < 0.9, song - song % 2 + user % 2, song)  # even users like even songs
    frame = pd.DataFrame({"user": user, "song": song, "taste": np.where(song % 2, "odd", "even")})
    model = SpiderClassifier(**FEW | {"modes": {"user": [], "song": ["taste"]}}, passes=3).fit(frame)
    assert model.n_entries_ == 3000
    new = pd.DataFrame({"user": np.repeat(np.arange(40), 2), "song": 99, "taste": ["even", "odd"] * 40})
    even, odd = model.predict_proba(new)[:, 1].reshape(40, 2).T
    assert ((odd > even) == np.arange(40) % 2).mean() > 0.9


def test_two_modes_take_turns_in_passes():
    model = SpiderClassifier(**FEW | {"negatives_over": ("song", "user")}, passes=2).fit(X[:1500])
    assert model.n_entries_ == 1500


@pytest.mark.slow
def test_the_vectorized_engine_learns_events_in_passes():
    pytest.importorskip("jax", reason="needs the extra: pip install spidertensor[jax]")
    model = SpiderClassifier(**FEW, engine="vectorized", passes=3).fit(X[:2000])
    assert model.n_entries_ == 2000
    assert mean_rank(model) < 0.5 * len(SONGS)
