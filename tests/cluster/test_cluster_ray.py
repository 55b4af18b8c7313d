"""Members in processes of a real Ray, started once for this file: the same model, whatever is killed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import streams
from spidertensor import SpiderClassifier, SpiderRegressor, cluster, load
from spidertensor.cli import main
from spidertensor.estimator import fitted_file

ray = pytest.importorskip("ray", reason="several workers need Ray: pip install 'spidertensor[ray]'")

from spidertensor.cluster import ray_cluster  # noqa: E402

pytestmark = pytest.mark.slow  # Ray alone takes seconds to start
entries = partial(streams.entries, nodes=50, noise=0.3)

SMALL = {"rank": 2, "hidden": (4,), "multilinear": 3, "batch_size": 64}


@pytest.fixture(scope="module", autouse=True)
def running():
    """On loopback only, with two workers."""
    with ray_cluster.started(None, 2):
        yield


def arrays(model):
    return fitted_file.to_arrays(model._learned)


def same(a, b) -> None:
    a, b = arrays(a), arrays(b)
    assert a.keys() == b.keys()
    for name, array in a.items():
        np.testing.assert_array_equal(array, b[name], err_msg=name)


def test_one_member_for_each_worker_is_the_same_model_bit_for_bit():
    X, y = entries(3000)
    model = cluster.fit(SpiderRegressor(committee=2, **SMALL), X, y, workers=2, address="auto")
    same(model, SpiderRegressor(committee=2, passes=1, **SMALL).fit(X, y))
    assert model._placed is None
    model.partial_fit(X[:100], y[:100])  # an ordinary model again


def test_values_may_change_and_new_nodes_come_and_a_save_inside_is_the_model(tmp_path):
    X, y = entries(4000)
    y[2500:] += 30  # one of the members follows by then, in its process
    model, more = SpiderRegressor(committee=2, **SMALL), [*X[:5].tolist(), [999, 3]]
    with cluster.on_workers(model, workers=2, address="auto"):
        model.partial_fit(X, y)
        predicted = model.predict(more)
        model.save(tmp_path / "inside.spider")
    assert sum(each.stream.followed.sum() for each in model._learned.state.members) == 1
    same(model, SpiderRegressor(committee=2, passes=1, **SMALL).fit(X, y))
    np.testing.assert_array_equal(predicted, model.predict(more))
    same(load(tmp_path / "inside.spider"), model)


def kill(actor) -> None:
    """Kill an actor and wait until it is dead: until then it may answer what comes next."""
    ray.kill(actor)
    with contextlib.suppress(ray.exceptions.RayActorError):
        while True:
            ray.get(actor.__ray_ready__.remote())


def test_a_dead_member_is_told_and_the_file_stays(tmp_path):
    X, y = entries(3000)
    model = SpiderRegressor(committee=1, **SMALL)
    path = tmp_path / "model.spider"

    def learn_and_lose() -> None:
        with cluster.on_workers(model, workers=1, address="auto") as placed:
            model.partial_fit(X[:2000], y[:2000])
            model.save(path)
            kill(placed._members[0].actor.actor)
            model.partial_fit(X[2000:], y[2000:])

    with pytest.raises(ray_cluster.Lost, match="load the model from its last file"):
        learn_and_lose()
    saved = path.read_bytes()
    with pytest.raises(Exception, match="has learned nothing yet"):  # its rows are gone
        model.save(path)
    assert path.read_bytes() == saved
    again = load(path)
    with cluster.on_workers(again, workers=1, address="auto"):
        again.partial_fit(X[2000:], y[2000:])
    same(again, SpiderRegressor(committee=1, passes=1, **SMALL).fit(X, y))


def test_a_killed_command_resumes_to_the_same_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, y = entries(8000)
    lines = [f"u{a},{b},{v:.4f}" for (a, b), v in zip(X.tolist(), y.tolist(), strict=True)]
    lines.insert(3000, "u1,,not a number")
    Path("a.csv").write_text("\n".join(["user,item,rating", *lines]) + "\n")
    fit = ["fit", "a.csv", "--modes", "user,item", "--value", "rating", "--committee", "1", "--rank", "2"]
    fit += ["--hidden", "4", "--workers", "1", "--on-bad", "skip", "-q"]
    head = ray.get_runtime_context().gcs_address
    often = ["--model", "b.spider", "--checkpoint-every", "0s", "--cluster", head]
    stopped = subprocess.Popen([sys.executable, "-m", "spidertensor", *fit, *often])
    deadline = time.monotonic() + 100
    while not Path("b.spider").exists() and time.monotonic() < deadline and stopped.poll() is None:
        time.sleep(0.01)
    stopped.kill()
    stopped.wait()
    again = ["--model", "b.spider", "--resume", "--cluster", "auto"]
    for more in (["--model", "a.spider"], again):  # the first one in threads
        with pytest.raises(SystemExit) as ended:
            main([*fit, *more])
        assert ended.value.code == 0
    a, b = load("a.spider"), load("b.spider")
    assert a.n_entries_ == 8000
    same(a, b)
    assert (a.position_["row"], a.position_["bad"]) == (b.position_["row"], b.position_["bad"])


def test_runs_of_a_grid():
    def double(x: int) -> int:
        if x == 3:
            os._exit(1)
        return 2 * x

    done = sorted(ray_cluster.run_all(range(5), double, lambda x: -x))
    assert done == [-3, 0, 2, 4, 8]


def test_what_cannot_be_learned_by_workers_is_refused():
    X, y = entries(100)
    for wrong, reason in (
        (SpiderRegressor(engine="vectorized"), "sequential engine"),
        (SpiderRegressor(max_nodes=10), "max_nodes"),
        (SpiderClassifier(negatives=2, negatives_over=1), "events"),
        (SpiderRegressor(committee=1), "a cluster has one worker per member: at most 1"),
    ):
        with pytest.raises(ValueError, match=reason):
            cluster.fit(wrong, X, y, workers=2, address="auto")
    with pytest.raises(ValueError, match="workers must be a whole number"):
        cluster.fit(SpiderRegressor(), X, y, workers=0)
