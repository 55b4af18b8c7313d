"""`spider` in processes of its own that start at once: forked from one that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import threading
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        *("spidertensor.cli.fit_loop", "spidertensor.cli.run_start", "spidertensor.service.server"),
        *("confluent_kafka", "redis", "nats"),
    ]
)


def start(*arguments: str, most: int = 8192, kill: tuple[int, float] | None = None) -> Any:
    """A process that runs `spider`, in this folder; what it prints is in output.txt.

    most: messages of a stream that it reads at once
    kill: (n, seconds): it gets a SIGKILL so long after it has saved n times
    """
    process = _context.Process(target=_run, args=(arguments, os.getcwd(), most, kill))
    process.start()
    return process


def _run(arguments: tuple[str, ...], folder: str, most: int, kill: tuple[int, float] | None) -> None:
    from spidertensor import cli
    from spidertensor.sources import kafka_topic, nats_stream, redis_stream

    os.chdir(folder)
    output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    kafka_topic.MAX_MESSAGES = nats_stream.MAX_MESSAGES = redis_stream.MAX_MESSAGES = most
    kafka_topic.ROUND_MESSAGES = min(most, kafka_topic.ROUND_MESSAGES)
    if kill is not None:
        _kill_after(*kill, served=arguments[0] == "serve")
    cli.main(arguments)


def _kill_after(saves: int, seconds: float, served: bool) -> None:
    """By a timer of its own: another process may be held up until the run is over."""
    from spidertensor.cli.run import Run

    kind: Any = Run
    if served:
        from spidertensor.service.journaled import JournaledLearner as kind
    name = "checkpoint" if served else "save"
    save, times = getattr(kind, name), 0

    def counted(learner: Any) -> None:
        nonlocal times
        save(learner)
        times += 1
        if times == saves:
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()

    setattr(kind, name, counted)


def finish(process: Any) -> int:
    process.join(300)
    return process.exitcode


def killed(*arguments: str, model: str, kills: int, seed: int, most: int = 128) -> int:
    """Run the command so many times, each killed at a random moment after it has saved; how many were."""
    rng, done = random.Random(seed), 0
    resume = (
        ("--checkpoint-every", "300") if arguments[0] == "serve" else ("--resume", "--checkpoint-every", "0s")
    )
    for _ in range(kills):
        moment = rng.randint(1, 6), rng.random() * 0.02
        how = (*resume, "--model", model)
        done += finish(start(*arguments, *how, most=most, kill=moment)) == -signal.SIGKILL
    return done
