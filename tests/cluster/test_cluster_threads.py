"""Several workers as threads of one process: no Ray, and the same model as on any cluster."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import streams
from command_line import forked
from spidertensor import Context, Number, SpiderRegressor, Value, cluster, load
from spidertensor.cluster import rounds
from spidertensor.cluster.fit import elsewhere
from spidertensor.estimator import fitted_file

entries = partial(streams.entries, nodes=50, noise=0.3)

SMALL = {"rank": 2, "hidden": (4,), "multilinear": 3, "batch_size": 64}


def same(a, b) -> None:
    a, b = fitted_file.to_arrays(a._learned), fitted_file.to_arrays(b._learned)
    assert a.keys() == b.keys()
    for name, array in a.items():
        np.testing.assert_array_equal(array, b[name], err_msg=name)


def test_one_member_for_each_worker_is_the_same_model_bit_for_bit():
    X, y = entries(2000)
    model = cluster.fit(SpiderRegressor(committee=2, **SMALL), X, y, workers=3)
    same(model, SpiderRegressor(committee=2, passes=1, **SMALL).fit(X, y))


def test_attributes_are_learned_by_one_thread_per_member_bit_for_bit():
    X, y = entries(600)
    table = {"a": X[:, 0].tolist(), "b": X[:, 1].tolist(), "kind": (X[:, 0] % 3).tolist(), "at": y.tolist()}
    modes = {"a": [Value("kind")], "b": [], "when": Context(Number("at"))}
    settings = {"committee": 2, "modes": modes, **SMALL}
    model = cluster.fit(SpiderRegressor(**settings), table, y, workers=2)
    same(model, SpiderRegressor(passes=1, **settings).fit(table, y))
    with pytest.raises(ValueError, match="one worker per member: at most 2"):
        cluster.fit(SpiderRegressor(**settings), table, y, workers=4)
    with pytest.raises(ValueError, match="attributes do not work on a cluster"):
        cluster.fit(SpiderRegressor(**settings), table, y, workers=2, address="local")


def test_calls_that_end_where_rounds_do_and_a_save_between_them_change_nothing(tmp_path):
    X, y = entries(5000)
    whole = cluster.fit(SpiderRegressor(committee=2, **SMALL), X, y, workers=6, part=64)
    model = SpiderRegressor(committee=2, **SMALL)
    with cluster.on_workers(model, workers=6, part=64) as placed:
        assert placed.rounds.workers == 3
        end = placed.rounds.whole(0, 3000)
        model.partial_fit(X[:end], y[:end])
        predicted = model.predict(X[:5])
        model.save(tmp_path / "inside.spider")
    again = load(tmp_path / "inside.spider")
    np.testing.assert_array_equal(again.predict(X[:5]), predicted)
    with cluster.on_workers(again, workers=6, part=64):
        again.partial_fit(X[end:], y[end:])
    same(again, whole)
    assert not np.array_equal(
        whole.predict(X), SpiderRegressor(committee=2, passes=1, **SMALL).fit(X, y).predict(X)
    )
    again.partial_fit(X[:100], y[:100])  # an ordinary model again


def test_bad_input_is_refused_and_what_was_learned_stays():
    X, y = entries(500)
    model = SpiderRegressor(committee=1, **SMALL)

    def learn_and_fail() -> None:
        with cluster.on_workers(model, workers=2, part=64):
            model.partial_fit(X, y)
            model.partial_fit(X[:2], [1.0, np.nan])

    with pytest.raises(ValueError, match="value nan is not finite"):
        learn_and_fail()
    same(model, cluster.fit(SpiderRegressor(committee=1, **SMALL), X, y, workers=2, part=64))


def test_the_command_needs_no_ray_and_prints_json_alone(tmp_path):
    X, y = entries(3000)
    lines = [f"u{a},{b},{v}" for (a, b), v in zip(X.tolist(), y.tolist(), strict=True)]
    Path(tmp_path, "a.csv").write_text("\n".join(["user,item,rating", *lines]) + "\n")
    fit = ["fit", "a.csv", "--modes", "user,item", "--value", "rating", "--committee", "1", "--rank", "2"]
    fit += ["--hidden", "4", "--workers", "2", "--part", "64", "--model", "a.spider", "--json"]
    without = "import sys; sys.modules['ray'] = None; from spidertensor.cli import main; main(sys.argv[1:])"
    ended = forked(*fit, program=without, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert [json.loads(line) for line in ended.stdout.splitlines()]
    named = [(f"u{a}", b) for a, b in X.tolist()]
    model = SpiderRegressor(committee=1, rank=2, hidden=(4,))
    with cluster.on_workers(model, workers=2, part=64):
        model.partial_fit([(a, str(b)) for a, b in named], y)
    np.testing.assert_array_equal(
        load(tmp_path / "a.spider").predict([(a, b) for a, b in named[:9]]),
        model.predict([(a, str(b)) for a, b in named[:9]]),
    )


@pytest.mark.parametrize("caught_inside", [False, True])
def test_an_error_between_two_rounds_leaves_no_model_that_has_learned_half(monkeypatch, caught_inside):
    X, y = entries(2000)
    model = cluster.fit(SpiderRegressor(committee=1, **SMALL), X[:1000], y[:1000], workers=2, part=64)
    one_round, calls = rounds.one_round, iter(range(100))

    def fails_later(*arguments):
        if next(calls) == 3:
            raise MemoryError
        return one_round(*arguments)

    monkeypatch.setattr(rounds, "one_round", fails_later)

    def learn():
        with cluster.on_workers(model, workers=2, part=64):
            try:
                model.partial_fit(X[1000:], y[1000:])
            except MemoryError:
                if not caught_inside:
                    raise

    with pytest.raises(RuntimeError if caught_inside else MemoryError):
        learn()
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_what_threads_cannot_do_is_refused():
    model = SpiderRegressor(committee=2, likelihood="count", **{**SMALL, "multilinear": 3})
    for how, reason in (
        ({"workers": 3}, "at most 2"),
        ({"workers": 2, "part": 0}, "part must be"),
        ({"workers": 3, "address": "local"}, "one worker per member: at most 2"),
    ):
        with pytest.raises(ValueError, match=reason), cluster.on_workers(model, **how):
            pass


def test_rows_elsewhere_take_no_memory_and_are_no_numbers():
    model = SpiderRegressor(committee=1, **SMALL).fit(*entries(10))
    state = elsewhere(model._learned.state.members[0])
    assert len(state.posterior.factors[0].mean) > 10**9
    assert np.isnan(state.posterior.factors[0].mean[12345]).all()
