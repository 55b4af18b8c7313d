"""Work in several threads of this process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")


class Crew:
    """Threads that stay until the end of the block, and this one, which works with them.

    Plain threads: a pool refuses work at interpreter shutdown, when a user's thread may still be learning.
    """

    def __init__(self, threads: int) -> None:
        self._wanted, self._others = threads - 1, []
        self._given: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._ended = threading.Semaphore(0)

    def __enter__(self) -> Self:
        for _ in range(self._wanted):
            # daemon: those that wait after an interrupt right here must not keep the process from ending
            thread = threading.Thread(target=self._wait, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # interpreter shutdown, or too many threads: the others do the work
                break
            self._others.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        for _ in self._others:
            self._given.put(None)
        for thread in self._others:
            thread.join()

    def _wait(self) -> None:
        while (work := self._given.get()) is not None:
            work()
            self._ended.release()

    def run(self, work: Callable[[int], T], n: int) -> list[T]:
        """Results of work(0) to work(n - 1)."""
        results: list[Any] = [None] * n
        failed: list[BaseException] = []
        waiting = deque(range(n))

        def worker() -> None:
            while waiting and not failed:
                with suppress(IndexError):  # another thread took the last one
                    m = waiting.popleft()
                    try:
                        results[m] = work(m)
                    except BaseException as error:
                        failed.append(error)

        for _ in self._others:
            self._given.put(worker)
        worker()
        for _ in self._others:
            self._ended.acquire()
        if failed:
            raise failed[0]
        return results


def in_threads(work: Callable[[int], T], n: int, threads: int) -> list[T]:
    """Results of work(0) to work(n - 1), by `threads` threads including this one."""
    with Crew(threads) as crew:
        return crew.run(work, n)


class Aside(Generic[T]):
    """Work that a thread of its own does meanwhile."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._done: list[T] = []
        self._failed: list[BaseException] = []
        self._work = work
        self._thread = threading.Thread(target=self._run)
        try:
            self._thread.start()
        except RuntimeError:  # see Crew
            self._thread = None
            self._run()

    def _run(self) -> None:
        try:
            self._done.append(self._work())
        except BaseException as error:
            self._failed.append(error)

    def result(self) -> T:
        if self._thread is not None:
            self._thread.join()
        if self._failed:
            raise self._failed[0]
        return self._done[0]
