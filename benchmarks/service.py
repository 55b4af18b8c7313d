"""How fast `spider serve` is, server and clients on this machine: entries per second in requests of 1 and of
1,000, the time of a prediction while it learns, and memory.

    python benchmarks/service.py [--seconds 10] [--memory-minutes 0] [--committee 4]

Clients are processes of their own, with several connections each, and speak HTTP over plain sockets: a client
library would need as much of the two cores as the server.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

USERS, MOVIES = 6000, 4000
SRC = str(Path(__file__).resolve().parents[1] / "src")


@contextlib.contextmanager
def server(folder: str, *options: str):
    command = [
        sys.executable,
        "-m",
        "spidertensor",
        "serve",
        "--model",
        f"{folder}/bench.spider",
        "--port",
        "0",
    ]
    made_of = ["--modes", "user,movie", "--value", "rating", *options]
    process = subprocess.Popen(
        [*command, *made_of], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": SRC}
    )
    assert process.stdout is not None
    port = int(process.stdout.readline().split(" (")[0].rsplit(":", 1)[1])
    while call(Connection(port), "GET", "/health/ready")[0] != 200:
        time.sleep(0.1)
    try:
        yield process, port
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


class Connection:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.left = b""


def call(at: Connection, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    at.socket.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    data = at.left
    while b"\r\n\r\n" not in data:
        data += at.socket.recv(1 << 16)
    head, _, rest = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    parts, n = [rest], len(rest)
    while n < length:
        parts.append(at.socket.recv(1 << 20))
        n += len(parts[-1])
    whole = b"".join(parts)
    at.left = whole[length:]
    return int(head.split(b" ")[1]), whole[:length]


def bodies(rows: int, seed: int, n: int) -> list[bytes]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        users, movies = rng.integers(USERS, size=rows), rng.integers(MOVIES, size=rows)
        ratings = 3 + np.sin(users) + np.cos(movies) + rng.normal(0, 0.3, rows)
        rows_ = zip(users.tolist(), movies.tolist(), ratings.round(2).tolist(), strict=True)
        made.append(json.dumps([{"user": u, "movie": m, "rating": r} for u, m, r in rows_]).encode())
    return made


def learn(port: int, rows: int, seed: int, seconds: float, rate: float, connections: int, out) -> None:
    """Learn for some seconds, at most `rate` entries per second; puts how many entries were learned."""
    ready = bodies(rows, seed, 200 if rows > 1 else 2000)
    learned = [0] * connections
    end = time.perf_counter() + seconds
    start = time.perf_counter()

    def one(number: int) -> None:
        at, k = Connection(port), number
        while (now := time.perf_counter()) < end:
            if learned[number] > rate / connections * (now - start):
                time.sleep(0.001)
                continue
            status, answer = call(at, "POST", "/v1/learn", ready[k % len(ready)])
            assert status == 200, answer
            learned[number] += rows
            k += connections

    threads = [threading.Thread(target=one, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    out.put(sum(learned))


def learned_per_second(port: int, rows: int, seconds: float, rate: float = np.inf, meanwhile=None) -> float:
    out = multiprocessing.Queue()
    connections = 32 if rows == 1 else 4
    client = multiprocessing.Process(target=learn, args=(port, rows, rows, seconds, rate, connections, out))
    client.start()
    if meanwhile:
        meanwhile()
    total = out.get()
    client.join()
    return total / seconds


def predict_times(port: int, seconds: float) -> np.ndarray:
    at, times = Connection(port), []
    rng = np.random.default_rng(1)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pair = {"user": int(rng.integers(USERS)), "movie": int(rng.integers(MOVIES))}
        body = json.dumps([pair]).encode()
        began = time.perf_counter()
        status, answer = call(at, "POST", "/v1/predict", body)
        times.append(time.perf_counter() - began)
        assert status == 200, answer
        time.sleep(0.005)
    return np.array(times) * 1e3


def cpu(process: subprocess.Popen) -> float:
    """Seconds of CPU time that the server has used: says more than the clock on a busy machine."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(process: subprocess.Popen) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--memory-minutes", type=float, default=0)
    parser.add_argument("--committee", default="4")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        server(folder, "--committee", options.committee) as (process, port),
    ):
        learned_per_second(port, 1000, 2)  # every id is known from here on
        for rows in (1, 1000):
            before = cpu(process)
            full = learned_per_second(port, rows, options.seconds)
            cost = (cpu(process) - before) / (full * options.seconds) * 1e6
            print(
                f"requests of {rows:,}: {full:,.0f} entries per second, {cost:.1f} us of CPU each", flush=True
            )
            times: list[np.ndarray] = []
            half = learned_per_second(
                port,
                rows,
                options.seconds,
                full / 2,
                lambda times=times: times.append(predict_times(port, options.seconds - 1)),
            )
            p50, p99 = np.percentile(times[0], [50, 99])
            print(f"  predict at {half:,.0f} per second: p50 {p50:.1f} ms, p99 {p99:.1f} ms", flush=True)
        for minute in range(int(options.memory_minutes)):
            learned_per_second(port, 1000, 60)
            print(f"memory after {minute + 1} minutes: {memory(process):,.0f} MB", flush=True)
        print(f"memory: {memory(process):,.0f} MB")


if __name__ == "__main__":
    main()
