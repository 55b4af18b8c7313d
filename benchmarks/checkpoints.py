"""Predictions while a large model is saved, and while a follower loads it, as JSON: how long they take, and
how much memory the servers need.

    python benchmarks/checkpoints.py [--nodes 1000000] [--model FILE] [--rounds 3]

One client predicts all the time, one sends a row to learn now and then. Compare `quiet`, in which nothing is
saved, with the others: `checkpoints`, one after the other; `empty`, 100 requests to save what is saved;
`follower`, a server of its own that loads every file. Times are in milliseconds, memory in MB: before, and at
its peak.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from service import SRC, Connection, call
from spidertensor import SpiderRegressor

QUIET_S, GAP_S, EMPTY, CHUNK = 10.0, 0.005, 100, 100_000


def make_model(nodes: int, path: str) -> None:
    """A model of 60 % users, whose ids are texts, and 40 % movies, whose ids are numbers."""
    rng, model = np.random.default_rng(0), SpiderRegressor(random_state=0)
    users, movies = nodes * 6 // 10, nodes * 4 // 10
    for first in range(0, users, CHUNK):
        user = np.arange(first, min(first + CHUNK, users))
        X = {"user": [f"user-{each:08d}" for each in user.tolist()], "movie": user % movies}
        model.partial_fit(X, 3 + np.sin(user) + rng.normal(0, 0.3, len(user)))
    model.save(path, {"value": "rating"})


class Server:
    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "spidertensor", "serve", *options, "--port", "0"]
        env = os.environ | {"PYTHONPATH": SRC}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().split(" (")[0].rsplit(":", 1)[1])
        while call(Connection(self.port), "GET", "/health/ready")[0] != 200:
            time.sleep(0.1)

    def megabytes(self, field: str) -> int:
        """field: VmRSS, the memory now, or VmHWM, the most since `forget_peak`"""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split(f"{field}:")[1].split()[0]) // 1024

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(120) == 0


def row(k: int) -> dict[str, object]:
    return {"user": f"user-{k:08d}", "movie": k}


class Client(threading.Thread):
    """Sends bodies to a path, one after the other, and notes how long the answers took."""

    def __init__(self, port: int, path: str, bodies: list[bytes], gap_s: float) -> None:
        super().__init__(daemon=True)
        self._at, self._path, self._bodies, self._gap_s = Connection(port), path, bodies, gap_s
        self._enough = threading.Event()
        self.ms: list[float] = []
        self.refused = 0

    def run(self) -> None:
        while not self._enough.wait(self._gap_s):
            began = time.perf_counter()
            status, _ = call(self._at, "POST", self._path, self._bodies[len(self.ms) % 100])
            self.refused += status != 200
            self.ms.append((time.perf_counter() - began) * 1e3)

    def stopped(self) -> dict[str, float]:
        self._enough.set()
        self.join()
        p50, p99, worst = np.percentile(self.ms, [50, 99, 100]).round(1).tolist()
        return {"n": len(self.ms), "refused": self.refused, "p50": p50, "p99": p99, "worst": worst}


def measured(name: str, server: Server, work: Callable[[], None], learns_at: int | None) -> None:
    """learns_at: port of the server to send rows to meanwhile"""
    learned = [json.dumps([row(k) | {"rating": 3 + k % 2}]).encode() for k in range(100)]
    clients = [Client(server.port, "/v1/predict", [json.dumps([row(k)]).encode() for k in range(100)], GAP_S)]
    if learns_at is not None:
        clients.append(Client(learns_at, "/v1/learn", learned, 20 * GAP_S))
    server.forget_peak()
    before, began = server.megabytes("VmRSS"), time.perf_counter()
    for client in clients:
        client.start()
    work()
    seconds = time.perf_counter() - began
    took = dict(zip(("predict", "learn"), [client.stopped() for client in clients], strict=False))
    record = {"what": name, "seconds": round(seconds, 1), **took}
    print(json.dumps(record | {"memory": [before, server.megabytes("VmHWM")]}), flush=True)


def saves(port: int, n: int, *, together: bool = False) -> None:
    def save() -> None:
        call(Connection(port), "POST", "/v1/checkpoint")

    threads = [threading.Thread(target=save) for _ in range(n)]
    for thread in threads:
        thread.start()
        if not together:
            thread.join()
            time.sleep(0.5)
    for thread in threads:
        thread.join()


def main(nodes: int, model: str | None, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/m.spider"
        if model is None:
            make_model(nodes, path)
        else:
            shutil.copy(model, path)
        print(json.dumps({"nodes": nodes, "file": Path(path).stat().st_size >> 20}), flush=True)
        server = Server("--model", path, "--checkpoint-every", "1h")
        measured("quiet", server, lambda: time.sleep(QUIET_S), server.port)
        measured("checkpoints", server, lambda: saves(server.port, rounds), server.port)
        measured("empty", server, lambda: saves(server.port, EMPTY, together=True), None)
        follower = Server("--follow", path)
        measured("quiet follower", follower, lambda: time.sleep(QUIET_S), None)

        def followed() -> None:
            for number in range(rounds):
                k = json.dumps([row(number) | {"rating": 3}]).encode()
                assert call(Connection(server.port), "POST", "/v1/learn", k)[0] == 200
                entries = json.loads(call(Connection(server.port), "POST", "/v1/checkpoint")[1])["entries"]
                while (
                    entries != json.loads(call(Connection(follower.port), "GET", "/v1/model")[1])["entries"]
                ):
                    time.sleep(0.5)

        measured("follower", follower, followed, None)
        follower.stop()
        server.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--model", help="a file made before, of as many nodes")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    main(options.nodes, options.model, options.rounds)
