"""A soak of `spider serve`: learn, predict, recommend, checkpoints and kills, as JSON lines.

    python benchmarks/stress/soak.py [--minutes 60] [--every 60] [--seed 0] > rows.jsonl

Two clients send requests of 1 to 30 rows, each with a key, until it is acknowledged; one predicts, one asks
for recommendations, one for a checkpoint every 5 seconds, and the server saves every 10 by itself. It is
killed every 1 to 2 minutes. Users come and go: of 40 rows one has a user never seen before, and the model
keeps 5,000 (`--max-nodes`), so memory must stay flat.

A row for each `every` seconds: how long answers took (milliseconds), how many requests were refused or got no
answer (kills), the memory of the server and the size of its files (MB), and the load of the machine, without
which times say little. The last row compares the first fifth of the rows with the last, and has the check:
every acknowledged row was learned exactly once.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from service_kills import Server, call

COMMAND = [
    sys.executable, "-m", "spidertensor", "serve", "--model", "m.spider", "--modes", "user,movie",
    "--value", "rating", "--seed", "1", "--committee", "2", "--checkpoint-every", "10s",
    "--max-nodes", "5000", "--port", "0",
]  # fmt: skip
ROWS_PER_USER, USERS, MOVIES = 40, 4000, 1000
PAUSE_S = {"learn": 0.02, "predict": 0.01, "recommend": 0.1, "checkpoint": 5.0}


class Load:
    """What clients have sent so far, and how it went since the last row."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server, self.seed, self.enough = server, seed, threading.Event()
        self.ms: defaultdict[str, list[float]] = defaultdict(list)
        self.failed: Counter[str] = Counter()
        self.acknowledged = 0
        self.lock = threading.Lock()
        self.threads: list[threading.Thread] = []

    def start(self, what: str, path: str, made: Callable[[np.random.Generator], Any], *, keys: bool) -> None:
        rng = np.random.default_rng([self.seed, len(self.threads)])
        name = f"{len(self.threads)}" if keys else ""
        thread = threading.Thread(target=self._run, args=(what, path, made, rng, name), daemon=True)
        self.threads.append(thread)
        thread.start()

    def _run(
        self, what: str, path: str, made: Callable[..., Any], rng: np.random.Generator, name: str
    ) -> None:
        number, port, at = 0, -1, http.client.HTTPConnection("127.0.0.1")
        while not self.enough.wait(PAUSE_S[what]):
            body, number, status = made(rng), number + 1, 0
            while status != 200:
                if port != self.server.port:
                    port = self.server.port
                    at = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                began = time.perf_counter()
                status, answer = call(at, "POST", path, body, f"{name}-{number}" if name else "")
                took = (time.perf_counter() - began) * 1e3
                assert status in (0, 200, 409, 429, 503), answer
                with self.lock:
                    if status == 200:
                        self.ms[what].append(took)
                        self.acknowledged += len(body) if what == "learn" else 0
                    else:
                        self.failed[f"{what} {status}"] += 1
                if status != 200:
                    time.sleep(0.05)
                    if not name:  # not worth repeating
                        break

    def row(self) -> dict[str, Any]:
        with self.lock:
            ms, failed = dict(self.ms), dict(self.failed)
            self.ms.clear()
            self.failed.clear()
            total = self.acknowledged
        took = {what: shown(ms[what]) for what in sorted(ms)}
        return {"acknowledged": total, **took, "failed": failed}


def shown(ms: list[float]) -> dict[str, float]:
    p50, p99, worst = np.percentile(ms, [50, 99, 100]).round(2).tolist()
    return {"n": len(ms), "p50": p50, "p99": p99, "worst": worst}


class Ratings:
    """Rows about users of whom some are always new."""

    def __init__(self) -> None:
        self.made = 0

    def rows(self, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
        self.made += n
        newest = USERS + self.made // ROWS_PER_USER
        users, movies = rng.integers(newest - USERS, newest, size=n), rng.integers(MOVIES, size=n)
        ratings = (3 + np.sin(users) + np.cos(movies) + rng.normal(0, 0.3, n)).round(2)
        return [
            {"user": f"u{user}", "movie": movie, "rating": rating}
            for user, movie, rating in zip(users.tolist(), movies.tolist(), ratings.tolist(), strict=True)
        ]


def of_the_machine(server: Server) -> dict[str, float]:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    files = sum(path.stat().st_size for path in Path(server.folder).iterdir() if path.is_file())
    memory = int(status.split("VmRSS:")[1].split()[0]) / 1024
    return {"memory": round(memory, 1), "files": round(files / 2**20, 1), "load": os.getloadavg()[0]}


def compared(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians of the first and the last fifth of the rows, and the worst of all."""
    part = max(1, len(rows) // 5)
    ends, found = (rows[:part], rows[-part:]), {}
    for what in ("memory", "files", "load"):
        found[what] = [float(np.median([row[what] for row in end])) for end in ends]
    for what in PAUSE_S:
        for number in ("p50", "p99"):
            of = [[row[what][number] for row in end if what in row] for end in ends]
            found[f"{what} {number}"] = [round(float(np.median(each)), 2) if each else None for each in of]
        found[f"{what} worst"] = max((row[what]["worst"] for row in rows if what in row), default=None)
    return found


def main(minutes: float, every: float, seed: int) -> None:
    rng, ratings, rows, kills = np.random.default_rng(seed), Ratings(), [], 0
    with tempfile.TemporaryDirectory() as folder:
        server = Server(folder, COMMAND)
        while not server.ready():
            time.sleep(0.1)
        load = Load(server, seed)
        for _ in range(2):
            load.start("learn", "/v1/learn", lambda r: ratings.rows(r, int(r.integers(1, 31))), keys=True)
        load.start("predict", "/v1/predict", lambda r: ratings.rows(r, 10), keys=False)
        given = lambda r: {"given": {"movie": int(r.integers(MOVIES))}, "over": "user", "n": 10}  # noqa: E731
        load.start("recommend", "/v1/recommend", given, keys=False)
        load.start("checkpoint", "/v1/checkpoint", lambda r: None, keys=False)
        began = time.monotonic()
        shown_at, killed_at = began + every, began + float(rng.uniform(60, 120))
        while time.monotonic() < began + 60 * minutes:
            time.sleep(0.5)
            if time.monotonic() >= killed_at:
                server.stop(signal.SIGKILL)
                server.start()
                kills, killed_at = kills + 1, time.monotonic() + float(rng.uniform(60, 120))
            if time.monotonic() >= shown_at:
                shown_at += every
                row = {"second": round(time.monotonic() - began), "kills": kills}
                rows.append(row | load.row() | of_the_machine(server))
                print(json.dumps(rows[-1]), flush=True)
        load.enough.set()
        for thread in load.threads:
            thread.join()
        learned = call(http.client.HTTPConnection("127.0.0.1", server.port), "GET", "/v1/model")[1]["entries"]
        code, total = server.stop(signal.SIGTERM), load.acknowledged
    record = {"minutes": minutes, "kills": kills, "acknowledged": total, "learned": learned, "exit": code}
    print(json.dumps(record | compared(rows)), flush=True)
    assert learned == total
    assert code == 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--every", type=float, default=60, help="seconds from row to row")
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
