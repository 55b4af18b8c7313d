"""A real `spider serve` in a process of its own, for the tests of the service."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa

import spidertensor
from forked import Spider
from spidertensor import SpiderRegressor, checkpoint

RATINGS = ("--modes", "user,movie", "--value", "rating", "--seed", "1", "--committee", "2")
ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
SRC = str(Path(spidertensor.__file__).parents[1])
PATIENCE = 120.0  # seconds; a slow machine must not fail a test


def fresh(*arguments: str, folder: Path, path: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "spidertensor", *arguments],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": f"{path}{os.pathsep}{SRC}"},
    )  # fmt: skip


class Server:
    """
    path: in front of all else that Python imports from; such a server is a process started from nothing
    """

    def __init__(self, folder: Path, *options: str, path: str = "") -> None:
        self.folder = folder
        arguments = ("serve", "--port", "0", *options)
        self.process: Any = (
            fresh(*arguments, folder=folder, path=path)
            if path
            else Spider(*arguments, folder=folder, text=True)
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert " at http://" in line, self.errors()
        self.url = line.split(" at ")[1].split()[0]
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE)

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def until_ready(self) -> Server:
        end = time.monotonic() + PATIENCE
        while self.http.get("/health/ready").status_code != 200:
            assert time.monotonic() < end, "not ready"
            assert self.process.poll() is None, self.errors()
            time.sleep(0.02)
        return self

    def learn(self, rows: Any, expect: int = 200, path: str = "/v1/learn", **headers: str) -> Any:
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        return self._answer(self.http.post(path, json=rows, headers=named), expect)

    def predict(self, rows: Any, expect: int = 200, query: str = "") -> Any:
        return self._answer(self.http.post(f"/v1/predict{query}", json=rows), expect)

    def get(self, path: str, expect: int = 200) -> Any:
        return self._answer(self.http.get(path), expect)

    def entries(self) -> int:
        return self.get("/v1/model")["entries"]

    @staticmethod
    def _answer(response: httpx.Response, expect: int) -> Any:
        assert response.status_code == expect, response.text[:500]
        return response.json()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.http.close()
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self.said = self.process.stderr.read()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        return code


@contextlib.contextmanager
def serving(folder: Path, *options: str) -> Iterator[Server]:
    server = Server(folder, *options)
    try:
        yield server.until_ready()
    finally:
        if server.process.poll() is None:
            server.stop(signal.SIGKILL)


def rows(n: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    users, movies = rng.integers(20, size=n).tolist(), rng.integers(15, size=n).tolist()
    values = (3 + np.sin(users) + np.cos(movies) + rng.normal(0, 0.2, n)).round(2).tolist()
    return [
        {"user": user, "movie": f"m{movie}", "rating": value}
        for user, movie, value in zip(users, movies, values, strict=True)
    ]


def lines(rows: list[dict[str, Any]]) -> bytes:
    return b"\n".join(json.dumps(row).encode() for row in rows)


def until(server: Server, **wanted) -> dict:
    """The answer of /v1/model once its part about the stream, or `entries`, is as wanted."""
    end = time.monotonic() + PATIENCE
    while True:
        told = server.get("/v1/model")
        if all({**told, **told["stream"]}[name] == value for name, value in wanted.items()):
            return told
        assert time.monotonic() < end, (told["stream"], told["entries"], told["alarms"])
        time.sleep(0.02)


def assert_same(path: Path, model: SpiderRegressor) -> None:
    """Bit for bit, but for the position and the names of the columns."""
    model.save(path.with_name("expected.spider"))
    found, expected = checkpoint.load(path), checkpoint.load(path.with_name("expected.spider"))
    assert found.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        assert np.array_equal(found.arrays[name], array), name
    differing = {"names"}
    assert {name: each for name, each in found.sections["model"].items() if name not in differing} == {
        name: each for name, each in expected.sections["model"].items() if name not in differing
    }


def arrow(table: pa.Table, **options) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def rejected(path: Path) -> list[tuple]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [(each["row"], each["reason"]) for each in found]


def as_learned(stream: list, requests: list[tuple[int, list]]) -> list:
    """The rows of a stream and of requests in the order in which a server learned them.

    requests: the number of entries after each of them, and its rows
    """
    order: list = [None] * (len(stream) + sum(len(sent) for _, sent in requests))
    for end, sent in requests:
        order[end - len(sent) : end] = sent
    messages = iter(stream)
    return [next(messages) if row is None else row for row in order]
