"""100 SIGKILLs of `spider serve` under load, with clients that repeat what was not acknowledged.

    python benchmarks/stress/service_kills.py [kills, by default 100] [seed] > rows.jsonl

Four clients send requests of 1 to 30 entries, one after the other, each with a key, until it is acknowledged.
The server is killed at random moments, also while it starts, replays or saves; it saves every 300 entries. At
the end every request must have been learned exactly once, and the model must be, bit for bit, that of one
process which learned the same requests in the same order. One JSON line per kill, and one at the end.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from spidertensor import SpiderRegressor, checkpoint

CLIENTS = 4
SRC = str(Path(__file__).resolve().parents[2] / "src")
COMMAND = [
    sys.executable, "-m", "spidertensor", "serve", "--model", "m.spider", "--modes", "user,movie",
    "--value", "rating", "--seed", "1", "--committee", "2", "--checkpoint-every", "300", "--port", "0",
]  # fmt: skip


class Server:
    """A server that is started again and again in one folder; `port` is that of the one that runs."""

    def __init__(self, folder: str, command: list[str] = COMMAND) -> None:
        self.folder, self.command, self.port = folder, command, 0
        self.start()

    def start(self) -> None:
        env = os.environ | {"PYTHONPATH": SRC}
        self.process = subprocess.Popen(
            self.command, cwd=self.folder, env=env, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert " at http://" in line, "the server did not start"
        self.port = int(line.split(" (")[0].rsplit(":", 1)[1])

    def ready(self) -> bool:
        return call(http.client.HTTPConnection("127.0.0.1", self.port), "GET", "/health/ready")[0] == 200

    def stop(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait()


def call(at: http.client.HTTPConnection, method: str, path: str, body: Any = None, key: str = "") -> Any:
    """Status and answer; 0 if there was none."""
    try:
        content = None if body is None else json.dumps(body)
        at.request(method, path, content, {"Content-Type": "application/json", "Idempotency-Key": key})
        answer = at.getresponse()
        return answer.status, json.loads(answer.read())
    except (OSError, http.client.HTTPException):
        at.close()
        return 0, None


class Client(threading.Thread):
    def __init__(self, number: int, server: Server, seed: int) -> None:
        super().__init__(daemon=True)
        self.number, self.server = number, server
        self.rng = np.random.default_rng([seed, number])
        self.requests: list[list[dict[str, Any]]] = []
        self.answers: list[dict[str, Any]] = []
        self.tries = 0
        self.enough = threading.Event()

    def run(self) -> None:
        while not self.enough.is_set():
            users, movies = self.rng.integers((50, 40), size=(int(self.rng.integers(1, 31)), 2)).T
            ratings = (3 + np.sin(users) + np.cos(movies)).round(3)
            rows = zip(users.tolist(), movies.tolist(), ratings.tolist(), strict=True)
            request = [{"user": user, "movie": f"m{movie}", "rating": rating} for user, movie, rating in rows]
            key, status, port = f"{self.number}-{len(self.requests)}", 0, -1
            while status != 200:
                if port != self.server.port:
                    port = self.server.port
                    at = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                status, answer = call(at, "POST", "/v1/learn", request, key)
                assert status in (0, 200, 429, 503), answer
                self.tries += 1
                if status != 200:
                    time.sleep(0.01)
            self.requests.append(request)
            self.answers.append(answer)


def expected(clients: list[Client], path: str) -> int:
    """Write the model that never stopped, and tell how many entries it has learned."""
    pairs = [pair for client in clients for pair in zip(client.answers, client.requests, strict=True)]
    pairs.sort(key=lambda pair: pair[0]["entries"])
    model = SpiderRegressor(random_state=1, committee=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for answer, request in pairs:
            ids = [(row["user"], row["movie"]) for row in request]
            update = model.learn(ids, [row["rating"] for row in request])
            assert model.n_entries_ == answer["entries"], "a request was lost or learned twice"
            assert update.mean.tolist() == [each["mean"] for each in answer["predictions"]]
    model.save(path)
    return model.n_entries_


def main(kills: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(folder)
        clients = [Client(number, server, seed) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        for kill in range(kills):
            if rng.random() < 0.8:
                while not server.ready():
                    time.sleep(0.02)
            time.sleep(float(rng.uniform(0, 1.0)))
            server.stop(signal.SIGKILL)
            server.start()
            done = sum(len(client.answers) for client in clients)
            print(json.dumps({"kill": kill + 1, "acknowledged": done}), flush=True)
        for client in clients:
            client.enough.set()
        for client in clients:
            client.join()
        code = server.stop(signal.SIGTERM)
        entries = expected(clients, f"{folder}/expected.spider")
        found, wanted = (checkpoint.load(f"{folder}/{name}.spider").arrays for name in ("m", "expected"))
        same = found.keys() == wanted.keys() and all(
            np.array_equal(found[name], wanted[name]) for name in wanted
        )
        record = {
            "kills": kills, "seed": seed, "requests": sum(len(client.requests) for client in clients),
            "tries": sum(client.tries for client in clients), "entries": entries, "exit": code,
            "bit_identical": same, "seconds": round(time.perf_counter() - began, 1),
        }  # fmt: skip
        print(json.dumps(record), flush=True)
        assert same
        assert code == 0


if __name__ == "__main__":
    main(*(int(each) for each in (*sys.argv[1:], *("100", "0")[len(sys.argv) - 1 :])))
