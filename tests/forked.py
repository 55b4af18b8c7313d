"""`spider` in processes of its own that start at once: forked from one that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["spidertensor.cli.learning", "spidertensor.cli.learner", "confluent_kafka", "redis", "nats"]
)


def start(*arguments: str, most: int = 8192) -> Any:
    """A process that runs `spider`, in this folder; what it prints is in output.txt.

    most: messages of a stream that it reads at once
    """
    process = _context.Process(target=_run, args=(arguments, os.getcwd(), most))
    process.start()
    return process


def _run(arguments: tuple[str, ...], folder: str, most: int) -> None:
    from spidertensor import cli
    from spidertensor.sources import kafka_topic, nats_stream, redis_stream

    os.chdir(folder)
    output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    kafka_topic.MOST = nats_stream.MOST = redis_stream.MOST = most
    kafka_topic.ROUND = min(most, kafka_topic.ROUND)
    cli.main(arguments)


def finish(process: Any) -> int:
    process.join(300)
    return process.exitcode


def killed(*arguments: str, model: str, kills: int, seed: int, most: int = 128) -> int:
    """Run the command so many times, each killed at a random moment after it has saved; how many were."""
    rng, path, done = random.Random(seed), Path(model), 0
    for _ in range(kills):
        before = os.stat(path).st_ino if path.exists() else None
        process = start(*arguments, "--resume", "--checkpoint-every", "0s", "--model", model, most=most)
        while process.is_alive() and not (path.exists() and os.stat(path).st_ino != before):
            time.sleep(0.002)
        time.sleep(rng.random() * 0.05)
        process.kill()
        done += finish(process) < 0
    return done
