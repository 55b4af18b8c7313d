"""Several workers on a real Ray, started once for this file: the same results, whatever is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import streams
from spidertensor import SpiderClassifier, SpiderRegressor, SpiderWarning, cluster, load
from spidertensor.cli import main
from spidertensor.cluster.fit import rounds_for
from spidertensor.cluster.parts import recipes_of
from spidertensor.cluster.rounds import Rounds, split
from spidertensor.estimator import fitted_file
from spidertensor.spider.committee import committee

ray = pytest.importorskip("ray", reason="several workers need Ray: pip install 'spidertensor[ray]'")

from spidertensor.cluster import ray_cluster  # noqa: E402

pytestmark = pytest.mark.slow  # Ray alone takes seconds to start
entries = partial(streams.entries, nodes=50, noise=0.3)

SMALL = {"rank": 2, "hidden": (4,), "multilinear": 3, "batch_size": 64}
PART = 128


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


def in_this_process(model, X, y, how: Rounds):
    """What `split` makes of the same entries, without Ray."""
    model = type(model)(**model.get_params(deep=False))

    class Placed:
        def start(self, fitted):
            members = [split(recipe, how) for recipe in recipes_of(fitted.params, fitted.model)]
            method = committee(members, fitted.model.likelihood, clip=fitted.params.get("clip"))
            return fitted._replace(model=fitted.model._replace(method=method))

        def whole(self, fitted):
            return fitted

    model._placed = Placed()
    return model.fit(X, y)


def test_one_member_for_each_worker_is_the_same_model_bit_for_bit():
    X, y = entries(3000)
    model = cluster.fit(SpiderRegressor(committee=2, **SMALL), X, y, workers=2, address="auto")
    same(model, SpiderRegressor(committee=2, passes=1, **SMALL).fit(X, y))
    assert model._placed is None
    model.partial_fit(X[:100], y[:100])  # an ordinary model again


def test_rounds_on_ray_are_those_of_one_process(tmp_path):
    X, y = entries(4000)
    y[2500:] += 30  # followed, in all shards
    model, more = SpiderRegressor(committee=2, **SMALL), [*X[:5].tolist(), [999, 3]]
    assert rounds_for(model, 5, PART) == Rounds(2, PART)
    with cluster.on_workers(model, workers=5, part=PART, n_shards=2, address="auto"):
        with pytest.warns(SpiderWarning):
            model.partial_fit(X, y)
        predicted = model.predict(more)
        model.save(tmp_path / "inside.spider")
    with pytest.warns(SpiderWarning):
        same(model, in_this_process(model, X, y, Rounds(2, PART)))
    np.testing.assert_array_equal(predicted, model.predict(more))
    same(load(tmp_path / "inside.spider"), model)


def workers_of_ray() -> list[int]:
    """Processes that run parts now."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes().split(b"\0")[0]
        except OSError:
            continue
        if title.startswith(b"ray::") and b"_Worker" in title:
            found.append(int(folder.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds processes in /proc")
def test_workers_that_are_killed_change_nothing(capsys):
    X, y = entries(6000)
    model, killed, done = SpiderRegressor(committee=1, **SMALL), [], threading.Event()

    def kill() -> None:
        rng = np.random.default_rng()
        while not done.is_set() and len(killed) < 2:
            time.sleep(rng.uniform(0.02, 0.1))
            for process in workers_of_ray()[:1]:
                os.kill(process, signal.SIGKILL)
                killed.append(process)
                time.sleep(0.5)

    killer = threading.Thread(target=kill)
    with cluster.on_workers(model, workers=2, part=PART, address="auto"):
        killer.start()
        try:
            while not killed:
                model.fit(X, y)
        finally:
            done.set()
            killer.join()
    assert killed
    assert capsys.readouterr().out == ""  # where results go, Ray tells nothing
    same(model, in_this_process(model, X, y, Rounds(2, PART)))


def kill(actor) -> None:
    """Kill an actor and wait until it is dead: until then it may answer what comes next."""
    ray.kill(actor)
    with contextlib.suppress(ray.exceptions.RayActorError):
        while True:
            ray.get(actor.__ray_ready__.remote())


@pytest.mark.parametrize("workers", [1, 2])
def test_a_dead_shard_or_member_is_told_and_the_file_stays(workers, tmp_path):
    X, y = entries(3000)
    model, end = SpiderRegressor(committee=1, **SMALL), Rounds(2, PART).whole(0, 2000)
    path = tmp_path / "model.spider"

    def learn_and_lose() -> None:
        with cluster.on_workers(model, workers=workers, part=PART, address="auto") as placed:
            model.partial_fit(X[:end], y[:end])
            model.save(path)
            member = placed._members[0]
            kill(member.actor.actor if workers == 1 else member.machines.actors[0])
            model.partial_fit(X[end:], y[end:])

    with pytest.raises(ray_cluster.Lost, match="load the model from its last file"):
        learn_and_lose()
    saved = path.read_bytes()
    with pytest.raises(Exception, match="has learned nothing yet"):  # its rows are gone
        model.save(path)
    assert path.read_bytes() == saved
    again = load(path)
    with cluster.on_workers(again, workers=workers, part=PART, address="auto"):
        again.partial_fit(X[end:], y[end:])
    same(again, in_this_process(model, X, y, Rounds(workers, PART)))


def test_a_killed_command_resumes_to_the_same_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, y = entries(8000)
    lines = [f"u{a},{b},{v:.4f}" for (a, b), v in zip(X.tolist(), y.tolist(), strict=True)]
    lines.insert(3000, "u1,,not a number")
    Path("a.csv").write_text("\n".join(["user,item,rating", *lines]) + "\n")
    fit = ["fit", "a.csv", "--modes", "user,item", "--value", "rating", "--committee", "1", "--rank", "2"]
    fit += ["--hidden", "4", "--workers", "2", "--part", "256", "--on-bad", "skip", "-q"]
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
        (SpiderRegressor(likelihood="count", committee=1), "at most 1"),
    ):
        with pytest.raises(ValueError, match=reason):
            cluster.fit(wrong, X, y, workers=2, address="auto")
    with pytest.raises(ValueError, match="workers must be a whole number"):
        cluster.fit(SpiderRegressor(), X, y, workers=0)
