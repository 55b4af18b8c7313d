"""A checkpoint delays no prediction: what is answered while the file is written, and while a follower reads
it.

The disk of these servers takes as long as a test says: a sync of the model's file does not return while the
file `hold` is there.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

pytest.importorskip("starlette")


from serving import PATIENCE, RATINGS, Server, assert_same, rows, serving
from spidertensor import SpiderRegressor, checkpoint, load
from spidertensor.estimator.tally import Tally
from spidertensor.service.following import Following

pytestmark = pytest.mark.usefixtures("warm_kernels")
MODEL = ("--model", "m.spider", *RATINGS)
SLOW_DISK = """
import os, time
sync = os.fsync
def slow_sync(descriptor):
    if f"/.m.spider.{os.getpid()}." in os.readlink(f"/proc/self/fd/{descriptor}"):
        with open("synced", "a") as file:
            file.write("x")
        while os.path.exists("hold"):
            time.sleep(0.01)
    sync(descriptor)
os.fsync = slow_sync
"""


def eventually(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def disk(tmp_path):
    """A server whose disk is slow, that has learned 200 rows; and its folder."""
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs the names of open files in /proc")
    (tmp_path / "sitecustomize.py").write_text(SLOW_DISK)
    server = Server(tmp_path, *MODEL, path=str(tmp_path)).until_ready()
    server.learn(rows(200))
    yield server, tmp_path
    if server.process.poll() is None:
        server.stop(signal.SIGKILL)


def writes(folder: Path) -> int:
    return len((folder / "synced").read_text()) if (folder / "synced").exists() else 0


@pytest.mark.slow
def test_predictions_are_answered_while_a_checkpoint_is_written_and_learning_waits(disk):
    server, folder = disk
    asked = rows(5, seed=3)
    before = server.predict(asked)
    (folder / "hold").touch()
    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(server.http.post, "/v1/checkpoint")
        eventually(lambda: writes(folder) == 1)
        learned = pool.submit(server.learn, rows(10, seed=1), idempotency_key="a")
        more = [pool.submit(server.http.post, "/v1/checkpoint") for _ in range(10)]
        whole = pool.submit(server.http.get, "/v1/model/file")
        assert server.predict(asked) == before
        assert server.http.post("/v1/recommend", json={"given": {"user": 1}, "over": "movie"}).is_success
        assert server.get("/v1/model")["entries"] == 200
        assert server.get("/health/ready")["ready"]
        assert not any(each.done() for each in (first, learned, whole, *more))
        assert not (folder / "m.spider").exists()
        (folder / "hold").unlink()
        assert learned.result()["entries"] == 210
        assert [each.result().json()["entries"] for each in (first, *more)] == [200] * 11
        assert writes(folder) == 1  # one for all
        (folder / "whole.spider").write_bytes(whole.result().content)
    assert checkpoint.load(folder / "whole.spider").sections["position"]["service"]["sequence"] == 1
    assert server.predict(asked) != before
    for _ in range(5):  # only the first has something to save
        assert server.http.post("/v1/checkpoint").json() == {"position": 2, "entries": 210}
        assert server.http.get("/v1/model/file").content == (folder / "m.spider").read_bytes()
    assert writes(folder) == 2
    (folder / "m.spider").unlink()
    assert server.http.post("/v1/checkpoint").is_success
    assert (folder / "m.spider").exists()
    assert server.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_is_ended_while_it_saves_loses_nothing(disk, number):
    server, folder = disk
    server.http.post("/v1/checkpoint")
    old = (folder / "m.spider").read_bytes()
    server.learn(rows(50, seed=1))
    (folder / "hold").touch()
    with ThreadPoolExecutor(2) as pool:
        saved = pool.submit(server.http.post, "/v1/checkpoint")
        eventually(lambda: writes(folder) == 2)
        server.process.send_signal(number)
        if number == signal.SIGTERM:
            (folder / "hold").unlink()
            assert saved.result().json()["entries"] == 250
            assert server.stop() == 0
        else:
            assert saved.exception() is not None
            assert server.stop(number) != 0
            assert (folder / "m.spider").read_bytes() == old
            (folder / "hold").unlink()
    with serving(folder, "--model", "m.spider") as again:
        assert again.entries() == 250
        assert again.stop() == 0
    model = SpiderRegressor(random_state=1, committee=2)
    for part in (rows(200), rows(50, seed=1)):
        model.partial_fit([(row["user"], row["movie"]) for row in part], [row["rating"] for row in part])
    assert_same(folder / "m.spider", model)


def test_a_follower_answers_while_it_reads_the_next_file(tmp_path, monkeypatch):
    reading, free = threading.Event(), threading.Event()

    def slow_open(*arguments):
        reading.set()
        free.wait(20)  # a follower that reads in `tick` has read it by then
        return open(*arguments)

    path, X = tmp_path / "m.spider", [(n % 4, n % 3) for n in range(20)]
    model = SpiderRegressor(rank=2, random_state=1, scaling=(0, 1)).partial_fit(X, [1.0] * 20)
    model.save(path)
    follower = Following(path)
    before = follower.learner
    model.partial_fit(X, [2.0] * 20)
    model.save(path)
    monkeypatch.setattr(checkpoint, "open", slow_open, raising=False)
    follower.tick()
    assert reading.wait(PATIENCE)
    for _ in range(3):
        follower.tick()
        assert follower.learner is before
        assert before.estimator.predict(X[:1]) != model.predict(X[:1])
    free.set()

    def has_next() -> bool:
        follower.tick()
        return follower.learner is not before

    eventually(has_next)
    assert follower.learner.estimator.predict(X[:1]) == model.predict(X[:1])
    assert not follower.trouble


@pytest.mark.parametrize("ask", [lambda model: model.predict([(0, 0)]), lambda model: model.likelihood_])
def test_a_checkpoint_waits_for_a_question_that_counts_the_latest_entries(tmp_path, monkeypatch, ask):
    counting, free, count = threading.Event(), threading.Event(), Tally._count

    def slow_count(*arguments):
        counting.set()
        free.wait(20)
        count(*arguments)

    model = SpiderRegressor(rank=2, random_state=1, committee=1, scaling=(0, 1), bounds="seen")
    model.partial_fit([(n % 4, n % 3) for n in range(20)], [1.0] * 20)
    monkeypatch.setattr(Tally, "_count", slow_count)
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(ask, model)
        assert counting.wait(PATIENCE)
        written = pool.submit(model._write, tmp_path / "m.spider")
        wait([written], 0.3)  # a checkpoint that does not wait has ended by then
        free.set()
        asked.result(), written.result()
    found = load(tmp_path / "m.spider").learning_curve_
    assert found.entries[-1:].tolist() == [20]
