"""What `spider serve` has acknowledged is not lost and not learned twice: kills, full disks, broken files."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import sqlite3
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest

from serving import assert_same

pytest.importorskip("starlette")


import spidertensor
from serving import PATIENCE, RATINGS, Server, rows, serving
from spidertensor import SpiderRegressor
from spidertensor.service.following import Following

pytestmark = pytest.mark.usefixtures("warm_kernels")
MODEL = ("--model", "m.spider", *RATINGS)


def learned(parts: list[list[dict[str, Any]]]) -> SpiderRegressor:
    """What a model that never stopped has learned."""
    model = SpiderRegressor(random_state=1, committee=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the scale of one value
        for part in parts:
            model.partial_fit([(row["user"], row["movie"]) for row in part], [row["rating"] for row in part])
    return model


class Client(threading.Thread):
    """Sends its requests one after the other, each until it is acknowledged, whatever the server does."""

    def __init__(self, number: int, requests: list[Any], server: dict[str, Server]) -> None:
        super().__init__(daemon=True)  # an interrupted test must not wait for it
        self.number, self.requests, self.server = number, requests, server
        self.answers: list[Any] = []
        self.wrong: list[str] = []

    def run(self) -> None:
        with httpx.Client(timeout=PATIENCE) as http:
            self.send(http)

    def send(self, http: httpx.Client) -> None:
        for n, request in enumerate(self.requests):
            key = {"Idempotency-Key": f"{self.number}-{n}"}
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    answer = http.post(f"{self.server['now'].url}/v1/learn", json=request, headers=key)
                    if answer.status_code == 200:
                        self.answers.append(answer.json())
                        break
                    if answer.status_code not in (429, 503):
                        self.wrong.append(answer.text)
                        return
                time.sleep(0.02)


def in_order(clients: list[Client]) -> list[list[dict[str, Any]]]:
    """All requests in the order in which they were learned, which their answers tell."""
    pairs = [pair for client in clients for pair in zip(client.answers, client.requests, strict=True)]
    pairs.sort(key=lambda pair: pair[0]["entries"])
    ends = np.cumsum([len(request) for _, request in pairs])
    assert [answer["entries"] for answer, _ in pairs] == ends.tolist()  # each exactly once
    return [request for _, request in pairs]


@pytest.mark.slow
def test_kills_under_load_lose_nothing_and_repeat_nothing(tmp_path):
    rng = np.random.default_rng(0)
    options = (*MODEL, "--checkpoint-every", "150")
    server = {"now": Server(tmp_path, *options).until_ready()}
    clients = [
        Client(number, [rows(int(rng.integers(1, 12)), seed=1000 * number + n) for n in range(70)], server)
        for number in range(4)
    ]
    for client in clients:
        client.start()
    for kill in range(5):
        goal = 50 * (kill + 1)
        while sum(len(client.answers) for client in clients) < goal:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.05))
        server["now"].stop(signal.SIGKILL)
        server["now"] = Server(tmp_path, *options).until_ready()
    for client in clients:
        client.join()
    assert [client.wrong for client in clients] == [[], [], [], []]
    for client in clients:  # keys are known for longer than the journal
        again = server["now"].learn(client.requests[0], idempotency_key=f"{client.number}-0")
        assert again["entries"] == client.answers[0]["entries"]
    assert server["now"].stop() == 0
    assert_same(tmp_path / "m.spider", learned(in_order(clients)))


@pytest.mark.slow
def test_a_new_model_that_was_never_saved_comes_back_from_its_journal(tmp_path):
    parts = [rows(1), rows(3, seed=1), rows(40, seed=2)]
    with serving(tmp_path, *MODEL) as server:
        for part in parts:
            server.learn(part)
        server.stop(signal.SIGKILL)
    assert not (tmp_path / "m.spider").exists()
    assert (tmp_path / "m.spider.journal").stat().st_mode & 0o777 == 0o600
    with serving(tmp_path, "--model", "m.spider") as server:  # the journal knows what it is made of
        assert server.get("/v1/model")["entries"] == 44
        assert server.stop() == 0
    assert_same(tmp_path / "m.spider", learned(parts))


@pytest.mark.slow
def test_sigterm_finishes_what_is_waiting_and_saves(tmp_path):
    server = {"now": Server(tmp_path, *MODEL, "--checkpoint-every", "never").until_ready()}
    clients = [Client(n, [rows(20, seed=100 * n + k) for k in range(10_000)], server) for n in range(3)]
    for client in clients:
        client.start()
    while sum(len(client.answers) for client in clients) < 30:
        time.sleep(0.01)
    stopped = server["now"]
    assert stopped.stop() == 0
    time.sleep(0.2)
    answers = [answer for client in clients for answer in client.answers]
    for client in clients:
        client.requests.clear()  # its thread ends when it fails next; it is a daemon
    assert spidertensor.load(tmp_path / "m.spider").n_entries_ >= max(each["entries"] for each in answers)
    assert {path.name for path in tmp_path.iterdir()} == {"m.spider", "m.spider.answers"}


@pytest.mark.slow
def test_a_model_of_spider_fit_is_served_and_survives_a_kill(tmp_path):
    first, second = rows(60), rows(30, seed=1)
    model = learned([first])
    model.save(tmp_path / "m.spider", {"value": "rating"})
    with serving(tmp_path, "--model", "m.spider", "--modes", "0,1", "--value", "rating") as server:
        server.learn([{"0": row["user"], "1": row["movie"], "rating": row["rating"]} for row in second])
        server.stop(signal.SIGKILL)
    with serving(tmp_path, "--model", "m.spider") as server:
        assert server.stop() == 0
    assert_same(tmp_path / "m.spider", learned([first, second]))


@pytest.mark.slow
def test_after_a_checkpoint_nothing_that_was_sent_is_on_the_disk_and_scores_go_on(tmp_path):
    with serving(tmp_path, *MODEL) as server:
        secret = [row | {"note": "not-an-id-4711"} for row in rows(500)]
        server.learn(secret, idempotency_key="key-0815")
        found = [path.name for path in tmp_path.iterdir() if b"4711" in path.read_bytes()]
        assert any("journal" in name for name in found)
        assert server.http.post("/v1/checkpoint").status_code == 200
        assert not [path for path in tmp_path.iterdir() if b"4711" in path.read_bytes()]
        before = server.get("/v1/model")
        server.stop()
    with contextlib.closing(sqlite3.connect(tmp_path / "m.spider.answers")) as answers:
        assert answers.execute("select key, number from answers").fetchall() == [("key-0815", 1)]
    with serving(tmp_path, *MODEL) as server:
        after = server.get("/v1/model")
    for name in ("error", "floor_mean", "floor_biases", "coverage", "scored"):
        assert after[name] == before[name]


# --- another process


@pytest.mark.slow
def test_a_follower_answers_from_the_checkpoints_of_another(tmp_path):
    with serving(tmp_path, *MODEL) as server:
        server.learn(rows(200))
        server.http.post("/v1/checkpoint")
        with serving(tmp_path, "--follow", "m.spider") as follower:
            asked = rows(5, seed=3)
            assert follower.predict(asked) == server.predict(asked)
            refused = follower.learn(rows(1), expect=405)
            assert refused["error"]["kind"] == "read only"
            assert follower.http.post("/v1/checkpoint").status_code == 405
            assert follower.http.get("/v1/model/file").content == (tmp_path / "m.spider").read_bytes()
            server.learn(rows(100, seed=1))
            server.http.post("/v1/checkpoint")
            end = time.monotonic() + PATIENCE
            while follower.get("/v1/model")["entries"] != 300:
                assert time.monotonic() < end
                time.sleep(0.05)
            assert follower.predict(asked) == server.predict(asked)
            (tmp_path / "m.spider").write_bytes(b"nonsense")  # it goes on with what it has
            while not follower.get("/v1/model")["alarms"]:
                assert time.monotonic() < end
                time.sleep(0.05)
            follower.predict(asked)
            assert follower.stop() == 0


def has_read(follower: Following) -> None:
    """Wait until the follower has read the file that is there now."""
    follower.tick()
    assert follower.reader is not None
    follower.reader.join()
    follower.tick()


def test_an_alarm_about_a_followed_file_stays_until_a_good_one_is_there(tmp_path):
    path = tmp_path / "m.spider"
    mine, other = (
        pd.DataFrame({"user": [1, 2], "movie": [3, 4]}),
        pd.DataFrame({"plane": [1, 2], "hour": [3, 4]}),
    )
    for table, to in [(mine, path), (other, tmp_path / "other")]:
        SpiderRegressor(rank=2, passes=1).fit(table, [1.0, 2.0]).save(to)
    good = path.read_bytes()
    follower = Following(path)
    model = follower.learner
    for wrong, told in [((tmp_path / "other").read_bytes(), "other columns: plane, hour"), (b"no", "not a")]:
        path.write_bytes(wrong)
        has_read(follower)
        for _ in range(3):
            follower.tick()
            assert told in follower.trouble["checkpoint"]
            assert follower.learner is model
        path.write_bytes(good)
        has_read(follower)
        assert not follower.trouble
        assert follower.learner is not model
        model = follower.learner
    path.rename(tmp_path / "away")
    follower.tick()
    assert "No such file" in follower.trouble["checkpoint"]
    (tmp_path / "away").rename(path)
    follower.tick()
    assert not follower.trouble
    assert follower.learner is model


def test_a_second_server_is_refused(tmp_path, fails, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path, *MODEL) as server:
        server.learn(rows(10))
        told = fails("serve", *MODEL)
        assert f"is being written by process {server.process.pid}" in told
        server.learn(rows(10))
        assert server.stop() == 0


@pytest.mark.slow
def test_a_lock_file_deleted_by_hand_lets_nobody_in(tmp_path, fails, monkeypatch):
    monkeypatch.chdir(tmp_path)
    learned([rows(30)]).save(tmp_path / "m.spider", {"value": "rating"})
    own = ("--model", "m.spider", "--modes", "0,1", "--value", "rating")
    with serving(tmp_path, *own) as server:  # has not learned yet
        (tmp_path / ".m.spider.lock").unlink()
        for more in ((), ("--accept-loss",)):
            assert "m.spider.journal: is used by another process" in fails("serve", *own, *more)
        server.learn([{"0": 1, "1": "m1", "rating": 3.0}])
        server.stop(signal.SIGKILL)
    with serving(tmp_path, *own) as server:
        assert server.get("/v1/model")["entries"] == 31


@pytest.mark.slow
def test_a_file_that_another_process_has_written_is_not_saved_over(tmp_path):
    with serving(tmp_path, *MODEL) as server:
        server.learn(rows(30))
        assert server.http.post("/v1/checkpoint").status_code == 200
        server.learn(rows(5))
        learned([rows(10)]).save(tmp_path / "m.spider", {"value": "rating"})
        other = (tmp_path / "m.spider").read_bytes()
        refused = server.http.post("/v1/checkpoint")
        assert refused.status_code == 503
        assert "m.spider: was written by another process meanwhile" in refused.json()["error"]["message"]
        server.learn(rows(5))
        assert server.stop() != 0
    assert (tmp_path / "m.spider").read_bytes() == other
    assert (tmp_path / "m.spider.journal").exists()


# --- broken files


@pytest.fixture
def killed(tmp_path, monkeypatch):
    """A folder with a model at request 1 and a journal of requests 2 and 3."""
    with serving(tmp_path, *MODEL) as server:
        server.learn(rows(300))
        server.http.post("/v1/checkpoint")
        shutil.copy(tmp_path / "m.spider", tmp_path / "older.spider")
        for seed in (1, 2):
            server.learn(rows(300, seed))
        server.stop(signal.SIGKILL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def damage(path: Path) -> None:
    """In the middle of every page but the first."""
    data = bytearray(path.read_bytes())
    for at in range(4096 + 100, len(data), 4096):
        data[at : at + 200] = b"\xff" * 200
    path.write_bytes(bytes(data))


@pytest.mark.slow
def test_a_broken_journal_is_told_and_left_alone(killed, fails):
    journal = killed / "m.spider.journal"
    file = sqlite3.connect(journal)  # brings everything into the one file
    file.execute("pragma wal_checkpoint(truncate)")
    file.close()
    good = journal.read_bytes()
    for content in (b"", b"nonsense" * 1000, good[: len(good) // 2]):
        journal.write_bytes(content)
        told = fails("serve", "--model", "m.spider")
        assert "m.spider.journal: cannot be used" in told
        assert "--accept-loss" in told
        assert journal.read_bytes() == content
    journal.write_bytes(good)
    damage(journal)
    assert "m.spider.journal: cannot be used" in fails("serve", "--model", "m.spider")
    journal.write_bytes(good)
    file = sqlite3.connect(journal)
    file.execute("delete from requests where sequence = 2")
    file.execute("insert into requests select 9, cut, key, media_type, skip, body, checksum from requests")
    file.commit()
    file.close()
    assert "request 3 is damaged" in fails("serve", "--model", "m.spider")
    with serving(killed, "--model", "m.spider", "--accept-loss") as server:  # the remedy
        assert server.get("/v1/model")["entries"] == 300


GONE = {  # endings of deleted files -> what is said, and the entries that are left
    ("", "-wal", "-end"): ("is gone, but all up to request 2 were acknowledged", 300),
    ("-wal", "-end"): ("has no requests, but all up to request 2 were acknowledged", 300),
    ("-end",): ("has requests up to 3, but m.spider.journal-end, which says how far it went, is gone", 900),
}


@pytest.mark.slow
@pytest.mark.parametrize("gone", GONE)
def test_a_journal_deleted_with_its_end_is_noticed(killed, fails, gone):
    said, entries = GONE[gone]
    for ending in gone:
        (killed / f"m.spider.journal{ending}").unlink()
    assert f"m.spider.journal: {said}" in fails("serve", "--model", "m.spider")
    with serving(killed, "--model", "m.spider", "--accept-loss") as server:
        assert server.entries() == entries
        assert server.stop() == 0
    with serving(killed, "--model", "m.spider") as server:  # nothing is missing from then on
        server.learn(rows(10, 3))
        server.http.post("/v1/checkpoint")
        assert server.stop(signal.SIGKILL) != 0
    for path in killed.glob("m.spider.journal*"):
        path.unlink()
    with serving(killed, "--model", "m.spider") as server:
        assert server.entries() == entries + 10
        assert server.stop() == 0


@pytest.mark.slow
def test_the_journal_of_a_model_that_was_never_saved_is_missed_too(tmp_path, fails, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path, *MODEL) as server:
        server.learn(rows(10))
        server.stop(signal.SIGKILL)
    for path in tmp_path.glob("m.spider.journal*"):
        path.unlink()
    assert "is gone, but all up to request 1 were acknowledged" in fails("serve", *MODEL)
    with serving(tmp_path, *MODEL, "--accept-loss") as server:
        assert server.entries() == 0
        assert server.stop() == 0
    with serving(tmp_path, *MODEL) as server:
        assert server.stop() == 0


@pytest.mark.slow
def test_a_log_that_lost_its_end_is_refused_until_the_loss_is_accepted(killed, fails):
    log = killed / "m.spider.journal-wal"
    log.write_bytes(log.read_bytes()[:-20_000])  # within request 3
    told = fails("serve", "--model", "m.spider")
    assert "m.spider.journal: ends at request 2, but all up to request 3 were acknowledged" in told
    with serving(killed, "--model", "m.spider", "--accept-loss") as server:
        assert server.get("/v1/model")["entries"] == 600
        assert server.stop() == 0
        assert "renamed to m.spider.journal.lost" in server.said
    assert_same(killed / "m.spider", learned([rows(300), rows(300, 1)]))
    with serving(killed, "--model", "m.spider") as server:
        assert server.stop() == 0


@pytest.mark.slow
def test_a_journal_of_another_model_is_not_replayed(killed, fails):
    model = learned([rows(10)])
    model.save(killed / "m.spider", {"value": "rating"})
    assert "has 2 requests that m.spider" in fails("serve", "--model", "m.spider")
    with serving(killed, "--model", "m.spider", "--accept-loss") as server:
        assert server.get("/v1/model")["entries"] == 10


@pytest.mark.slow
def test_a_model_that_is_older_than_its_journal_is_refused(killed, fails):
    with serving(killed, "--model", "m.spider") as server:
        server.http.post("/v1/checkpoint")
        server.learn(rows(5))
        server.stop(signal.SIGKILL)
    shutil.copy(killed / "older.spider", killed / "m.spider")
    assert "starts after request 3, but m.spider is at request 1" in fails("serve", "--model", "m.spider")


@pytest.mark.slow
def test_a_kill_between_saving_and_removing_the_journal_repeats_nothing(killed):
    for name in ("m.spider.journal", "m.spider.journal-wal"):
        shutil.copy(killed / name, killed / f"kept{name}")
    with serving(killed, "--model", "m.spider") as server:
        assert server.stop() == 0
    for name in ("m.spider.journal", "m.spider.journal-wal"):
        shutil.copy(killed / f"kept{name}", killed / name)
    with serving(killed, "--model", "m.spider") as server:
        assert server.get("/v1/model")["entries"] == 900
        assert server.stop() == 0
    assert_same(killed / "m.spider", learned([rows(300), rows(300, 1), rows(300, 2)]))


# --- disks and clocks


@pytest.mark.slow
def test_a_full_disk_refuses_to_learn_loses_nothing_and_goes_on_when_there_is_room(tmp_path):
    with serving(tmp_path, *MODEL) as server:
        server.learn(rows(50))
        unlimited = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        size = max(path.stat().st_size for path in tmp_path.glob("m.spider.journal*"))
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size + 20_000, unlimited[1]))
        acknowledged = [rows(50)]
        refused = None
        for seed in range(1, 30):
            answer = server.http.post("/v1/learn", json=rows(200, seed))
            if answer.status_code != 200:
                refused = answer
                break
            acknowledged.append(rows(200, seed))
        assert refused is not None
        assert (refused.status_code, refused.json()["error"]["kind"]) == (503, "journal")
        assert refused.headers["retry-after"]
        assert "nothing was learned" in refused.json()["error"]["remedy"]
        n = sum(map(len, acknowledged))
        assert server.get("/v1/model")["entries"] == n
        assert server.predict(rows(1))["predictions"]
        saved = server.http.post("/v1/checkpoint")
        assert (saved.status_code, saved.json()["error"]["kind"]) == (503, "checkpoint")
        assert not (tmp_path / "m.spider").exists()
        end = time.monotonic() + PATIENCE
        while {alarm["kind"] for alarm in server.get("/v1/model")["alarms"]} != {"journal", "checkpoint"}:
            assert time.monotonic() < end
            time.sleep(0.1)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, unlimited)
        server.learn(rows(10, seed=99))
        assert server.stop() == 0
    assert_same(tmp_path / "m.spider", learned([*acknowledged, rows(10, seed=99)]))


FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))"


@contextlib.contextmanager
def serving_on_a_full_disk(folder: Path, *options: str) -> Iterator[Server]:
    """Nothing can be written until `make_room`."""
    (folder / "full").mkdir(exist_ok=True)
    (folder / "full" / "sitecustomize.py").write_text(FULL)
    server = Server(folder, *options, path=str(folder / "full"))
    try:
        yield server.until_ready()
    finally:
        if server.process.poll() is None:
            server.stop(signal.SIGKILL)


def make_room(server: Server) -> None:
    free = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, free)


def refuses_to_learn(server: Server) -> None:
    for key in ({}, {"idempotency_key": "a"}):
        refused = server.learn(rows(5), expect=503, **key)["error"]
        assert "nothing was learned" in refused["remedy"]
    assert server.predict(rows(1))["predictions"]
    assert {alarm["kind"] for alarm in server.get("/v1/model")["alarms"]} & {"journal", "checkpoint"}


@pytest.mark.slow
def test_a_full_disk_at_the_start_refuses_to_learn_and_has_what_a_kill_left(killed):
    with serving_on_a_full_disk(killed, "--model", "m.spider") as server:
        assert server.get("/v1/model")["entries"] == 900
        refuses_to_learn(server)
        make_room(server)
        assert server.learn(rows(10, seed=3), idempotency_key="a")["entries"] == 910
        assert server.learn(rows(10, seed=3), idempotency_key="a")["repeated"]
        assert server.stop() == 0
    assert_same(killed / "m.spider", learned([rows(300), rows(300, 1), rows(300, 2), rows(10, 3)]))


@pytest.mark.slow
@pytest.mark.parametrize("new", [True, False])
def test_a_full_disk_at_the_first_start(tmp_path, new):
    if not new:
        learned([rows(60)]).save(tmp_path / "m.spider", {"value": "rating"})
    options = MODEL if new else ("--model", "m.spider", "--modes", "0,1", "--value", "rating")
    names = {"user": "user" if new else "0", "movie": "movie" if new else "1", "rating": "rating"}

    def named(part: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{names[name]: each for name, each in row.items()} for row in part]

    with serving_on_a_full_disk(tmp_path, *options) as server:
        refused = server.learn(named(rows(5)), expect=503)["error"]
        assert "nothing was learned" in refused["remedy"]
        assert server.get("/v1/model")["alarms"]
        make_room(server)
        server.learn(named(rows(10, seed=3)))
        server.stop(signal.SIGKILL)
    with serving(tmp_path, "--model", "m.spider") as server:
        assert server.stop() == 0
    assert_same(tmp_path / "m.spider", learned([*([] if new else [rows(60)]), rows(10, 3)]))


@pytest.mark.slow
def test_requests_after_a_backup_are_learned_again_when_it_is_restored(tmp_path):
    parts = [rows(10, seed) for seed in range(4)]
    with serving(tmp_path, *MODEL) as server:
        for n in (0, 1):
            server.learn(parts[n], idempotency_key=f"{n}")
        assert server.http.post("/v1/checkpoint").status_code == 200
        backup = (tmp_path / "m.spider").read_bytes()
        server.learn(parts[2], idempotency_key="2")
        server.stop()
    (tmp_path / "m.spider").write_bytes(backup)
    with serving(tmp_path, "--model", "m.spider") as server:
        assert server.learn(parts[1], idempotency_key="1") | {"predictions": []} == {
            "learned": 10, "entries": 20, "predictions": [], "skipped": [], "notes": [], "repeated": True,
        }  # fmt: skip
        again = server.learn(parts[2], idempotency_key="2")
        assert ("repeated" in again, again["entries"]) == (False, 30)
        assert server.learn(parts[2], idempotency_key="2")["repeated"]
        server.stop(signal.SIGKILL)
    with serving(tmp_path, "--model", "m.spider") as server:  # from the journal
        assert server.learn(parts[2], idempotency_key="2")["repeated"]
        assert server.stop() == 0
    assert_same(tmp_path / "m.spider", learned(parts[:3]))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(tmp_path, fails, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o500)
    monkeypatch.chdir(folder)
    assert "its folder is not writable" in fails("serve", *MODEL)


@pytest.mark.slow
def test_a_clock_that_goes_backwards_changes_nothing(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import time\n"
        "real, start = time.time, time.time()\n"
        "time.time = lambda: start - 1000 * (real() - start)\n"
    )
    server = Server(tmp_path, *MODEL, "--checkpoint-every", "0.2s", path=str(tmp_path)).until_ready()
    parts = [rows(20, seed) for seed in range(20)]
    for n, part in enumerate(parts):
        server.learn(part, idempotency_key=f"{n}")
        assert server.learn(part, idempotency_key=f"{n}")["repeated"]
        time.sleep(0.03)
    assert server.get("/v1/model")["checkpoint_age"] >= 0
    assert server.stop() == 0
    assert_same(tmp_path / "m.spider", learned(parts))
