"""`max_nodes`: new ids take the place of those longest unseen, and however calls are cut, nothing changes."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spidertensor
from model_files import saved
from naive_ids import NaiveMode
from spidertensor import CheckpointError, EntryError, SpiderClassifier, SpiderRegressor, checkpoint
from spidertensor.estimator import eviction
from spidertensor.estimator import fitted as fitted_part
from spidertensor.estimator.eviction import BoundedIndex
from spidertensor.learner import floors as running_floors
from spidertensor.method import Batch
from spidertensor.spider.likelihoods import GAUSSIAN

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "stress"))
import endless_ids

pytestmark = pytest.mark.usefixtures("folder")

SMALL = {"rank": 2, "hidden": (4,), "multilinear": 2, "batch_size": 8, "committee": 2, "scaling": (0.0, 1.0)}


def parts(n: int, cuts: list[int]) -> list[slice]:
    at = sorted({0, n, *(cut % n for cut in cuts)})
    return [slice(a, b) for a, b in pairwise(at)]


def often_and_seldom(n: int, n_ids: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Some ids come often and some seldom, so that rows stay, go, and are wanted again."""
    rng = np.random.default_rng(seed)
    X = (n_ids * rng.random((n, 2)) ** 2).astype(int)
    return X, np.sin(X[:, 0]) + np.cos(X[:, 1]) + 0.1 * rng.normal(size=n)


def learned(model, X, y, pieces) -> np.ndarray:
    return np.concatenate([np.stack(model.learn(X[piece], y[piece])[:4], axis=1) for piece in pieces])


@given(
    ids=st.lists(
        st.one_of(st.integers(0, 9), st.sampled_from(["a", "b", 3.0, True])), min_size=1, max_size=60
    ),
    limit=st.integers(1, 6),
    cuts=st.lists(st.integers(0, 60), max_size=4),
)
def test_rows_are_those_of_the_rule(ids, limit, cuts):
    naive, index = NaiveMode(limit), BoundedIndex(limit)
    wanted = [naive.see(entry, raw) for entry, raw in enumerate(ids)]
    got = [index.find_or_add(ids[piece]) for piece in parts(len(ids), cuts)]
    assert np.concatenate(got).tolist() == wanted
    assert index.ids == sorted(naive.row_of, key=naive.row_of.__getitem__)
    assert index.evicted == naive.evicted
    assert index.find([*naive.row_of, "gone"]).tolist() == [*naive.row_of.values(), -1]
    again = BoundedIndex.restored(index.to_arrays(), limit)
    more = [f"new {n}" for n in range(limit)]
    assert again.find_or_add(more).tolist() == [naive.see(1000 + n, raw) for n, raw in enumerate(more)]


@settings(max_examples=12)
@given(
    seed=st.integers(0, 1000),
    limits=st.tuples(st.integers(1, 12), st.sampled_from([None, 1, 3, 40])),
    cuts=st.lists(st.integers(0, 50), max_size=5),
)
def test_cuts_change_nothing(tmp_path_factory, seed, limits, cuts):
    X, y = often_and_seldom(50, 15, seed)
    results = []
    for pieces in ([slice(0, 50)], [slice(n, n + 1) for n in range(50)], parts(50, cuts)):
        model = SpiderRegressor(**SMALL, max_nodes=limits)
        said = learned(model, X, y, pieces)
        results.append((said.tobytes(), model.n_evicted_, saved(model, tmp_path_factory.mktemp("cut"))))
    assert results[0] == results[1] == results[2]


@pytest.mark.filterwarnings("ignore:.*never learned:spidertensor.SpiderWarning")
@pytest.mark.parametrize("kind", [SpiderRegressor, SpiderClassifier])
def test_a_node_that_goes_is_as_if_it_had_been_forgotten(kind):
    """An independent way to the same model: no limit, and before each entry the node that the rule names is
    forgotten. (multilinear=0: no part of a node's start depends on its row.)"""
    X, y = often_and_seldom(150, 30)
    y = y if kind is SpiderRegressor else (y > 0).astype(int)
    common = {name: SMALL[name] for name in SMALL if kind is SpiderRegressor or name != "scaling"}
    common |= {"multilinear": 0}
    model, free = kind(**common, max_nodes=(7, 5)), kind(**common)
    modes = [NaiveMode(7), NaiveMode(5)]
    said, wanted = model.learn(X, y), []
    for entry, (row, value) in enumerate(zip(X.tolist(), y, strict=True)):
        for number, (mode, raw) in enumerate(zip(modes, row, strict=True)):
            assert all(free.forget(number, [old]) == 1 for old in mode.longest_unseen(raw))
            mode.see(entry, raw)
        wanted.append(free.learn([tuple(row)], [value]))
    assert min(model.n_evicted_) > 20
    assert model.n_evicted_ == tuple(mode.evicted for mode in modes)
    for name in ("mean", "var", "noise", "log_evidence"):
        one_by_one = [getattr(each, name)[0] for each in wanted]
        np.testing.assert_array_equal(getattr(said, name), one_by_one)
    pairs = [(a, b) for a in range(30) for b in range(30)]
    assert np.array_equal(model.seen(pairs), free.seen(pairs))
    assert np.array_equal(model.predict(pairs), free.predict(pairs))


def test_a_node_that_went_is_unknown():
    model = SpiderRegressor(**SMALL, max_nodes=(3, None))
    model.learn([("ann", 1), ("ben", 1), ("cem", 2), ("ann", 2)], [1.0, 2.0, 3.0, 1.0])
    model.learn([("dea", 1)], [2.0])  # in place of ben: ann came again
    model.learn([("ben", 3), ("cem", 3)], [2.0, 3.0])  # in place of cem, who comes back in place of ann
    assert model.seen([("ann", 1), ("ben", 2), ("cem", 3), ("dea", 4)]).tolist() == [
        [False, True], [True, True], [True, True], [True, False]
    ]  # fmt: skip
    assert [factors.ids for factors in model.factors_] == [["cem", "dea", "ben"], [1, 2, 3]]
    assert model.n_nodes_ == (3, 3)
    assert model.n_evicted_ == (3, 0)
    assert model.predict([("ann", 1)]) == model.predict([("never there", 1)]) != model.predict([("ben", 1)])


def noisy_id(model) -> tuple[list[tuple[int, int]], np.ndarray]:
    """The model learns 5 x 4 ids, of which 0 has ten times the noise; returns all pairs, and their std."""
    rng = np.random.default_rng(0)
    X = rng.integers((5, 4), size=(3000, 2))
    model.partial_fit(X, np.where(X[:, 0] == 0, 3.0, 0.3) * rng.normal(size=3000))
    pairs = [(a, b) for a in range(5) for b in range(4)]
    _, std = model.predict(pairs, return_std=True)
    assert std[:4].min() > 2 * std[4:].max()
    return pairs, std


def test_a_forgotten_node_takes_its_noise_along_and_no_other():
    model = SpiderRegressor(**SMALL)
    pairs, before = noisy_id(model)
    model.forget(0, [0])
    _, after = model.predict(pairs, return_std=True)
    _, never = model.predict([("never", b) for b in range(4)], return_std=True)
    np.testing.assert_array_equal(after[4:], before[4:])
    np.testing.assert_array_equal(after[:4], never)


def test_who_takes_the_place_of_a_noisy_node_has_no_part_in_its_noise():
    model = SpiderRegressor(**SMALL, max_nodes=(5, None))
    noisy_id(model)
    model.partial_fit([(a, 0) for a in (1, 2, 3, 4)], [0.0] * 4)  # 0 is longest unseen
    free = copy.deepcopy(model)
    said = model.learn([("new", 1)], [0.1])
    assert model.n_evicted_ == (1, 0)
    wanted = free.learn([(1, 1)], [0.1])
    noise_of_new, noise_of_old = (float(each.noise[0]) for each in (said, wanted))
    assert 0.3 < noise_of_new / noise_of_old < 3  # that of 0 was a hundred times as large


def test_predictions_and_bad_input_do_not_count_as_seen(tmp_path):
    model = SpiderRegressor(**SMALL, max_nodes=2)
    model.learn([("a", "x"), ("b", "y")], [1.0, 2.0])
    before = saved(model, tmp_path)
    model.predict([("a", "x")])
    model.recommend({0: "a"}, 1)
    for X, y in (
        ([("a", "x"), ("c", None)], [1.0, 2.0]),
        ([("a", "x"), ("c", "z")], [1.0, np.nan]),
        ([("a", "x"), ("c", "z")], [1.0, 1e100]),
    ):
        with pytest.raises(EntryError):
            model.learn(X, y)
    assert saved(model, tmp_path) == before
    model.learn([("c", "z")], [3.0])
    assert model.seen([("a", "x"), ("b", "y"), ("c", "z")])[:, 0].tolist() == [False, True, True]


def test_when_memory_runs_out_nothing_was_added(monkeypatch):
    """The state cannot grow: the ids are as before, those that had to make room among them."""
    X, y = often_and_seldom(60, 12)
    model = SpiderRegressor(**SMALL, max_nodes=(5, None)).fit(X, y)
    before, probe = (model.n_evicted_, model.factors_[0].ids), [(raw, raw) for raw in range(12)]
    seen = model.seen(probe)

    def full(*_):
        raise MemoryError

    monkeypatch.setattr("spidertensor.spider.posterior.grow", full)
    with pytest.raises(MemoryError):
        model.learn([(100 + n, 100 + n) for n in range(9)], np.ones(9))
    assert (model.n_evicted_, model.factors_[0].ids) == before
    assert np.array_equal(model.seen(probe), seen)


def test_after_an_error_no_id_has_the_factors_of_another():
    """The engine fails in the second segment of a call: the ids of later ones start at the prior."""
    X, y = often_and_seldom(40, 8)
    model = SpiderRegressor(**SMALL | {"multilinear": 0}, max_nodes=2).fit(X, y)
    fitted = model._fitted()
    calls = []

    def update(state, batch):
        calls.append(len(batch.value))
        if len(calls) == 2:
            raise MemoryError
        return fitted.model.method.update(state, batch)

    ids = np.repeat(np.arange(100, 106), 2)
    index = np.stack([each.find_or_add(ids) for each in fitted.nodes], axis=1)
    pieces = eviction.segments(fitted.nodes, index, 40, 8)
    broken = fitted.model._replace(method=replace(fitted.model.method, update=update))
    with pytest.raises(MemoryError):
        eviction.learn(broken, fitted.state, Batch(index, np.ones(len(ids))), pieces)
    assert calls == [4, 4]  # two ids fit at a time
    prior = model.predict_parts([(999, 999)])
    for raw in (104, 105):
        assert model.seen([(raw, raw)]).all()
        assert model.predict_parts([(raw, raw)]).var == prior.var


def test_a_resumed_model_goes_on_bit_for_bit(tmp_path):
    X, y = often_and_seldom(400, 60)
    settings = SMALL | {"max_nodes": (20, 9)}
    straight = SpiderRegressor(**settings).fit(X, y)
    half = SpiderRegressor(**settings).fit(X[:201], y[:201])
    half.save(tmp_path / "half")
    for again in (
        spidertensor.load(tmp_path / "half"), pickle.loads(pickle.dumps(half)), copy.copy(half), half
    ):  # fmt: skip
        again.partial_fit(X[201:], y[201:])
        assert saved(again, tmp_path) == saved(straight, tmp_path)
    assert min(straight.n_evicted_) > 50


def test_the_limits_are_checked():
    X, y = [("a", "x", 1)], [1.0]
    for wrong in (0, -1, 1.5, True, "5", (), (5, 0), (5, "none")):
        with pytest.raises(ValueError, match="max_nodes must be how many nodes a mode may have"):
            SpiderRegressor(**SMALL, max_nodes=wrong).fit(X, y)
    with pytest.raises(ValueError, match="max_nodes has 2 limits, but the entries have 3 modes"):
        SpiderRegressor(**SMALL, max_nodes=(5, None)).fit(X, y)
    assert SpiderRegressor(**SMALL, max_nodes=np.int64(5)).fit(X, y).n_evicted_ == (0, 0, 0)


def test_a_file_of_before_has_no_limits(tmp_path):
    model = SpiderRegressor(**SMALL).fit(*often_and_seldom(50, 10))
    model.save(tmp_path / "model")
    arrays, sections = (copy.deepcopy(dict(part)) for part in checkpoint.load(tmp_path / "model")[:2])
    del sections["model"]["params"]["max_nodes"]
    assert not [name for name in arrays if name.endswith(("order", "evicted"))]
    checkpoint.save(tmp_path / "old", arrays, sections)
    again = spidertensor.load(tmp_path / "old")
    assert again.get_params() == model.get_params()
    assert saved(again, tmp_path) == saved(model, tmp_path)


ORDER, EVICTED = "model/nodes/0/order", "model/nodes/0/evicted"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({ORDER: np.array([0, 1, 1, 3])}, "does not have each of them once"),
        ({ORDER: np.array([0, 1, 2, 4])}, "does not have each of them once"),
        ({ORDER: np.array([0, 1, 2, -1])}, "does not have each of them once"),
        ({ORDER: np.array([0, 1, 2])}, "does not have each of them once"),
        ({ORDER: np.array([[0, 1], [2, 3]])}, "does not have each of them once"),
        ({ORDER: np.arange(4.0)}, "does not have each of them once"),
        ({ORDER: None}, "does not say in which order"),
        ({EVICTED: None}, "does not say in which order"),
        ({EVICTED: np.array(-1)}, "not a count"),
        ({EVICTED: np.array([1])}, "not a count"),
        ({EVICTED: np.array(1.5)}, "not a count"),
        ({"model/nodes/1/order": np.arange(10)}, "unknown arrays"),  # of a mode without a limit
    ],
)
def test_files_with_another_order_are_refused(tmp_path, change, reason):
    SpiderRegressor(**SMALL, max_nodes=(4, None)).fit(*often_and_seldom(100, 10)).save(tmp_path / "model")
    arrays, sections = (dict(part) for part in checkpoint.load(tmp_path / "model")[:2])
    arrays = {name: array for name, array in (arrays | change).items() if array is not None}
    checkpoint.save(tmp_path / "changed", arrays, sections)
    with pytest.raises(CheckpointError, match=reason):
        spidertensor.load(tmp_path / "changed")


def test_files_with_other_limits_are_refused(tmp_path):
    SpiderRegressor(**SMALL, max_nodes=(4, None)).fit(*often_and_seldom(100, 10)).save(tmp_path / "model")
    for wrong, reason in (
        ([3, None], "4 nodes, but room for 3"),
        ([4], "has 1 limits"),
        (0, "max_nodes must"),
    ):
        arrays, sections = (copy.deepcopy(dict(part)) for part in checkpoint.load(tmp_path / "model")[:2])
        sections["model"]["params"]["max_nodes"] = wrong
        checkpoint.save(tmp_path / "changed", arrays, sections)
        with pytest.raises(CheckpointError, match=reason):
            spidertensor.load(tmp_path / "changed")


@pytest.mark.slow
def test_the_vectorized_engine_finds_the_same_batches(tmp_path):
    """One call, or one for each batch. The ids are those of the other engine."""
    jnp = pytest.importorskip("jax.numpy", reason="needs the extra: pip install spidertensor[jax]")

    def network(weights, x):
        return weights[0][0] * jnp.sum(jnp.tanh(jnp.concatenate(x)))

    how = {name: SMALL[name] for name in SMALL if name != "hidden"}
    how |= {"max_nodes": (5, 11), "engine": "vectorized", "committee": 1}
    how |= {"network": spidertensor.CustomNetwork(network, ((1,),))}
    X, y = often_and_seldom(96, 40)
    results = []
    for size in (96, 8):
        model = SpiderRegressor(**how)
        said = learned(model, X, y, [slice(n, n + size) for n in range(0, 96, size)])
        results.append((said.tobytes(), saved(model, tmp_path)))
    assert results[0] == results[1]
    other = SpiderRegressor(**SMALL, max_nodes=(5, 11)).fit(X, y)
    assert model.n_evicted_ == other.n_evicted_
    assert [each.ids for each in model.factors_] == [each.ids for each in other.factors_]


def test_endless_ids_need_no_more_room(tmp_path):
    """The short form of the benchmark, and how large the model is on the way."""
    result = endless_ids.measured(20_000, max_nodes=600)
    assert result["nodes"] == (600, 600)
    assert result["evicted"][0] == 19_400
    assert result["curve"][-1]["rmse"] < 0.75  # the noise is 0.5, and that of a model without ids 0.87
    model, sizes = SpiderRegressor(**SMALL, max_nodes=50), []
    for first in range(0, 3_000, 1_000):
        model.learn(*endless_ids.entries(first, 1_000, np.random.default_rng(first)))
        rows = [len(part.mean) for part in model._fitted().state.members[0].posterior.factors]
        sizes.append((rows, len(saved(model, tmp_path))))
    assert sizes[0] == sizes[1] == sizes[2]
    assert max(sizes[0][0]) <= 75  # spare rows for growth: half as many again


def test_the_command_evicts_and_says_so(folder, spider, fails):
    X, y = often_and_seldom(500, 40)
    lines = [f"{a},{b},{value:.3f}\n" for (a, b), value in zip(X.tolist(), y, strict=True)]
    Path("all.csv").write_text("user,page,clicks\n" + "".join(lines))
    Path("grows.csv").write_text("user,page,clicks\n" + "".join(lines[:300]))
    fit = (
        "--modes",
        "user,page",
        "--value",
        "clicks",
        "--rank",
        2,
        "--hidden",
        4,
        "--max-nodes",
        "9,none",
        "-q",
    )
    code, out, _ = spider("fit", "all.csv", *fit, "--json")
    said = json.loads(out)
    assert (code, said["nodes"]["user"]) == (0, 9)
    assert said["evicted"]["user"] > 100
    assert said["evicted"]["page"] == 0
    assert spider("fit", "grows.csv", *fit)[0] == 0
    Path("grows.csv").write_text("user,page,clicks\n" + "".join(lines))
    assert spider("fit", "grows.csv", *fit, "--resume")[0] == 0
    arrays = [checkpoint.load(name).arrays for name in ("all.spider", "grows.spider")]
    assert arrays[0].keys() == arrays[1].keys()
    assert all(np.array_equal(arrays[0][name], arrays[1][name]) for name in arrays[0])
    assert (
        f"{said['evicted']['user']} nodes of user, to make room for new ids"
        in spider("info", "all.spider")[1]
    )
    assert "all.spider has max_nodes (9, None), the command says 7" in fails(
        "fit", "all.csv", "--max-nodes", 7, "--resume"
    )
    for wrong in ("many", "", "5,x"):
        assert "--max-nodes takes a number" in fails(
            "fit", "all.csv", *fit[:4], "--max-nodes", wrong, "--model", "new"
        )


def test_without_a_limit_nothing_of_eviction_runs(monkeypatch):
    """Neither learning nor predicting, in many entries or one by one, nor the floors beside a model."""

    def crossed(*_, **__):
        raise AssertionError("eviction ran without max_nodes")

    own = [
        name for name, each in vars(eviction).items() if getattr(each, "__module__", "") == eviction.__name__
    ]
    left = {"Segment", "Numbered"}  # plain tuples
    for name in set(own) - left:
        monkeypatch.setattr(eviction, name, crossed)
    for module in (fitted_part, running_floors):
        for name in (set(own) - left) & vars(module).keys():
            monkeypatch.setattr(module, name, crossed)
    X, y = often_and_seldom(60, 20)
    model = SpiderRegressor(**SMALL).fit(X[:40], y[:40])
    numbered = model._learn_numbered(X[40:50], y[40:50])
    running_floors.RunningFloors(GAUSSIAN, X.shape[1]).learn(y[40:50], numbered, 0.0)
    model.learn_one(tuple(X[50].tolist()), float(y[50]))
    model.partial_fit(X[50:], y[50:])
    assert np.isfinite(model.predict(X)).all()
    assert np.isfinite(model.predict_one(("new", X[0, 1]))).all()
    with pytest.raises(AssertionError, match="eviction ran"):  # the test can fail
        SpiderRegressor(**SMALL, max_nodes=5).fit(X, y)
