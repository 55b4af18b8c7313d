"""What it costs to read a stream, beside reading a file and learning, in one run; as one JSON object.

    python benchmarks/brokers.py [messages, by default 200000] [redis|nats|kafka ...] [--memory]

The same ratings as a file of JSON lines, a Redis stream (fields, and JSON in one field), a NATS stream and a
Kafka topic of four partitions, from servers on this machine. `cpu_us` is the CPU time of the reading process
per message, servers not counted; `wall_us` the time that passes. `learning` is the default committee.

--memory: how many MiB each reader has grown by after each fifth of 5 million messages. Kafka's mock cluster
keeps 100,000 messages of a partition, so it has at most 400,000.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import numpy as np

import servers
from spidertensor import SpiderRegressor, sources

OPEN = (["user", "movie"], "rating")


def records(n: int) -> list[dict[str, float | str]]:
    rng = np.random.default_rng(0)
    users, movies = rng.integers(3000, size=n), rng.integers(2000, size=n)
    ratings = (3 + np.sin(users) + np.cos(movies) + 0.3 * rng.normal(size=n)).round(2)
    rows = zip(users.tolist(), movies.tolist(), ratings.tolist(), strict=True)
    return [{"user": user, "movie": f"m{movie}", "rating": rating} for user, movie, rating in rows]


def timed(name: str, n: int) -> dict[str, float]:
    """Read all of a source, in this process; name: a URL, or a file."""
    if sources.is_url(name):  # the client is imported before the clock starts
        sources.open(name.partition("#")[0], *OPEN).close()
    cpu, wall, seen = process_time(), perf_counter(), 0
    if sources.is_url(name):
        url, _, kind = name.partition("#")
        with sources.open(url, *OPEN, format=kind or None, until_end=True) as stream:
            for chunk in stream:
                seen += len(chunk.rows)
    else:
        for chunk in sources.read(sources.source_by_name(name), *OPEN):
            seen += len(chunk.rows)
    assert seen == n, (name, seen)
    return {"cpu_us": 1e6 * (process_time() - cpu) / n, "wall_us": 1e6 * (perf_counter() - wall) / n}


def learning(rows: list[dict[str, float | str]]) -> dict[str, float]:
    X = [(row["user"], row["movie"]) for row in rows]
    y = [float(row["rating"]) for row in rows]
    columns = [np.array(column, object) for column in zip(*X, strict=True)]
    from spidertensor.estimator.inputs import Columns

    model = SpiderRegressor()
    model.learn(Columns([column[:1000] for column in columns], None), y[:1000])
    cpu, wall = process_time(), perf_counter()
    for at in range(1000, len(y), 8192):
        model.learn(Columns([column[at : at + 8192] for column in columns], None), y[at : at + 8192])
    n = len(y) - 1000
    return {"cpu_us": 1e6 * (process_time() - cpu) / n, "wall_us": 1e6 * (perf_counter() - wall) / n}


def growth(name: str, n: int) -> list[float]:
    """MiB of this process after each fifth of n messages, less what it had after the first 100 thousand."""
    url, _, kind = name.partition("#")
    seen, base, found = 0, 0.0, []
    with sources.open(url, *OPEN, format=kind or None, until_end=True) as stream:
        for chunk in stream:
            seen += len(chunk.rows)
            used = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
            base = base or (used if seen >= 100_000 else 0.0)
            if seen >= (len(found) + 1) * n / 5:
                found.append(round(used - base, 1))
    return found


def in_process(function: str, name: str, n: int) -> object:
    """In a process of its own, so that neither servers nor other readers are counted."""
    code = f"import brokers, json; print(json.dumps(brokers.{function}({name!r}, {n})))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def fill(server: servers.Redis | servers.Nats | servers.Kafka, n: int, *, also_json: bool) -> list[str]:
    """The URLs of its streams with n messages; of Redis, fields and with also_json JSON."""
    also_json = also_json and server.name == "redis"
    step = 200_000
    for at in range(0, n, step):
        rows = records(min(step, n - at))
        server.put("ratings", rows)
        if also_json:
            server.put("json", [json.dumps(row).encode() for row in rows])
    return [server.url("ratings"), *([f"{server.url('json')}#json"] if also_json else [])]


def main() -> None:
    memory = "--memory" in sys.argv
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    n = numbers[0] if numbers else 5_000_000 if memory else 200_000
    record: dict[str, object] = {"messages": n, "machine": platform.machine(), "cpus": os.cpu_count()}
    with tempfile.TemporaryDirectory() as folder:
        if not memory:
            path = Path(folder) / "ratings.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in records(n)))
            record |= {"file": in_process("timed", str(path), n), "learning": learning(records(n))}
        makers = {
            "redis": servers.Redis,
            "nats": servers.Nats,
            "kafka": lambda: servers.Kafka(partitions=4),
        }
        wanted = [name for name in makers if name in sys.argv] or (["redis", "nats"] if memory else makers)
        for each in wanted:
            server = makers[each]()
            try:
                for url in fill(server, n, also_json=not memory):
                    name = server.name + (" json" if url.endswith("#json") else "")
                    record[name] = in_process("growth" if memory else "timed", url, n)
            finally:
                server.close()
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
