"""`spider` in processes of its own that start at once: forked from one that has imported everything."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import sys
import threading
import warnings
from multiprocessing import forkserver
from pathlib import Path
from subprocess import TimeoutExpired
from typing import IO, Any, NamedTuple

import pytest

import spidertensor

HERE, SRC = Path(__file__).resolve().parent, Path(spidertensor.__file__).resolve().parents[1]
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["warmed"])


def start(*arguments: str, most: int = 8192, kill: tuple[int, float] | None = None) -> Any:
    """A process that runs `spider`, in this folder; what it prints is in output.txt.

    most: messages of a stream that it reads at once
    kill: (n, seconds): it gets a SIGKILL so long after it has saved n times
    """
    return _begin(_run, arguments, os.getcwd(), most, kill)


def context() -> Any:
    """A context of multiprocessing whose processes start at once.

    The first time, this starts the process that all others are forked from.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(SRC)]))
        forkserver.ensure_running()
    return _context


def _begin(target: Any, *arguments: Any) -> Any:
    process = context().Process(target=target, args=arguments)
    process.start()
    return process


class Orders(NamedTuple):
    arguments: tuple[str, ...]
    folder: str
    environment: dict[str, str]
    program: str
    strict: bool
    quiet: float | None


class Spider:
    """`spider` with these arguments, as subprocess.Popen would run it: pipes for its input and output.

    text: the pipes are of text, not of bytes
    program: Python to run in place of the command, with the arguments in sys.argv
    strict: a warning is an error
    quiet: seconds after which a pipe that it reads is quiet
    """

    def __init__(
        self, *arguments: Any, folder: Any = ".", text: bool = False, program: str = "", strict: bool = False,
        quiet: float | None = None,
    ) -> None:  # fmt: skip
        ends = [_context.Pipe(duplex=False) for _ in range(3)]
        (child_in, self_in), (self_out, child_out), (self_err, child_err) = ends
        words, standard = tuple(map(str, arguments)), (child_in, child_out, child_err)
        orders = Orders(words, os.path.abspath(folder), dict(os.environ), program, strict, quiet)
        self._process = _begin(_obey, standard, orders)
        self.pid = self._process.pid
        for connection in standard:
            connection.close()
        mode = "" if text else "b"
        self.stdin: IO[Any] = os.fdopen(os.dup(self_in.fileno()), f"w{mode}")
        self.stdout: IO[Any] = os.fdopen(os.dup(self_out.fileno()), f"r{mode}")
        self.stderr: IO[Any] = os.fdopen(os.dup(self_err.fileno()), f"r{mode}")
        for connection in (self_in, self_out, self_err):
            connection.close()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise TimeoutExpired("spider", timeout or 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, given: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        said: dict[str, Any] = {}
        readers = [
            threading.Thread(target=lambda name=name: said.update({name: getattr(self, name).read()}))
            for name in ("stdout", "stderr")
        ]
        for reader in readers:
            reader.start()
        with contextlib.suppress(BrokenPipeError):
            if given:
                self.stdin.write(given)
            self.stdin.close()
        self.wait(timeout)
        for reader in readers:
            reader.join()
        self.close()
        return said["stdout"], said["stderr"]

    def close(self) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def __enter__(self) -> Spider:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self.wait()


def _obey(standard: Any, orders: Orders) -> None:
    from spidertensor import cli
    from spidertensor.cli import run

    os.chdir(orders.folder)
    os.environ.clear()
    os.environ.update(orders.environment)
    for number, connection in enumerate(standard):
        os.dup2(connection.fileno(), number)
        connection.close()
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", 1)
    sys.argv = ["spider", *orders.arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if orders.strict:
        warnings.simplefilter("error")
    run.QUIET_S = run.QUIET_S if orders.quiet is None else orders.quiet
    if orders.program:
        exec(orders.program, {"__name__": "__main__"})
    else:
        cli.main(list(orders.arguments))


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
