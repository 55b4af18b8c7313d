"""Kills while a stream is learned: the model must be the one of a run that nothing interrupted, bit for bit.

    python benchmarks/stress/broker_kills.py [kills, by default 100] [redis|nats|kafka ...] > rows.jsonl

A server of each kind is started, with a stream of ratings. `spider fit` learns it, saves after each read and
is killed (SIGKILL) at a random moment after a save, again and again; a last run goes to the end. One JSON
line per broker: how many kills came before the end, and whether the file is the same.

Then the server loses its latest messages after they were learned, once for ten kills, and gets others, fewer
or more. A second line per broker: how often that was an error, and how many entries were learned at the end,
with `--on-gap continue`, of how many.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import forked
import servers
import spidertensor

PER_KILL = 1500  # messages: some more than are learned between two kills
FIT = ("--modes", "user,movie", "--value", "rating", "--rank", "2", "--hidden", "4", "--until-end", "--quiet")


def records(n: int) -> list[dict[str, float]]:
    rng = np.random.default_rng(0)
    users, movies = rng.integers(300, size=n), rng.integers(200, size=n)
    ratings = 3 + np.sin(users) + np.cos(movies) + 0.3 * rng.normal(size=n)
    names = ("user", "movie", "rating")
    rows = zip(users.tolist(), movies.tolist(), ratings.tolist(), strict=True)
    return [dict(zip(names, row, strict=True)) for row in rows]


def content(path: str) -> bytes:
    spidertensor.load(path).save("content", None)
    return Path("content").read_bytes()


def row(name: str, kills: int) -> dict[str, object]:
    server = {"redis": servers.Redis, "nats": servers.Nats, "kafka": servers.Kafka}[name]()
    start = perf_counter()
    try:
        server.put("ratings", records(PER_KILL * kills))
        fit = ("fit", server.url("ratings"), *FIT)
        done = forked.killed(*fit, model="killed.spider", kills=kills, seed=0)
        for model in ("killed.spider", "whole.spider"):
            assert forked.finish(forked.start(*fit, "--resume", "--model", model, most=128)) == 0
    finally:
        server.close()
    return {
        "broker": name,
        "messages": PER_KILL * kills,
        "kills": kills,
        "kills_before_the_end": done,
        "entries": spidertensor.load("killed.spider").n_entries_,
        "identical": content("killed.spider") == content("whole.spider"),
        "seconds": round(perf_counter() - start, 1),
    }


def restored(name: str, times: int) -> dict[str, object]:
    server = {"redis": servers.Redis, "nats": servers.Nats, "kafka": servers.Kafka}[name]()
    rng, start, learned, noticed = np.random.default_rng(0), perf_counter(), 2000, 0
    fit = ("fit", server.url("ratings"), *FIT, "--resume", "--model", "restored.spider")
    try:
        server.put("ratings", records(learned))
        assert forked.finish(forked.start(*fit)) == 0
        for _ in range(times):
            copy, (lost, new) = server.backup("ratings"), rng.integers(1, 200, size=2).tolist()
            server.put("ratings", records(lost))
            assert forked.finish(forked.start(*fit)) == 0
            server.restore("ratings", copy)
            server.put("ratings", records(new))
            noticed += forked.finish(forked.start(*fit)) == 2
            assert forked.finish(forked.start(*fit, "--on-gap", "continue")) == 0
            learned += lost + new
    finally:
        server.close()
    return {
        "broker": name,
        "restored": times,
        "noticed": noticed,
        "entries": spidertensor.load("restored.spider").n_entries_,
        "of": learned,
        "seconds": round(perf_counter() - start, 1),
    }


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    for name in sys.argv[2:] or ("redis", "nats", "kafka"):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            print(json.dumps(row(name, kills)), flush=True)
            print(json.dumps(restored(name, max(kills // 10, 1))), flush=True)
            os.chdir("/")


if __name__ == "__main__":
    main()
