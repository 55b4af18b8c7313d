"""The one thread that has the model, and the queue before it.

Nobody else touches the model, so readers see whole updates and nothing in the kernels needs a lock. In each
round all waiting questions are answered first, then waiting requests to learn are taken together: one sync
of the disk and one call serve them all. A question therefore waits for one group at most; it sees everything
that was acknowledged before it was asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from spidertensor.service.errors import ServiceError
from spidertensor.service.requests import Outcome, Request
from spidertensor.service.served import Served
from spidertensor.service.snapshots import Snapshots

GROUP = 2000  # rows that are learned together, unless one request has more
TICK = 0.25  # seconds between two looks at what is due

Question = Callable[[], Any]
What = TypeVar("What", Request, Question)


class _Waiting(Generic[What]):
    """Something to do, and the future of whoever waits for it."""

    __slots__ = ("future", "what")

    def __init__(self, what: What, future: asyncio.Future[Any] | Future[Any]) -> None:
        self.what, self.future = what, future


class Owner(threading.Thread):
    def __init__(
        self,
        served: Served,
        *,
        max_queue: int,
        every_seconds: float,
        every_entries: float,
        max_journal: int,
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(name="owner of the model")
        self.served = served
        self.snapshots = Snapshots(served)
        self.failed: BaseException | None = None  # what ended this thread before its time
        self.ready = False
        self._max_queue, self._max_journal = max_queue, max_journal
        self._every_seconds, self._every_entries = every_seconds, every_entries
        self._on_end = on_end
        self._questions: deque[_Waiting[Question]] = deque()
        self._requests: deque[_Waiting[Request]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._next_save = time.monotonic() + every_seconds

    @property
    def waiting(self) -> int:
        return len(self._questions) + len(self._requests)

    async def ask(self, what: Request | Question, timeout: float) -> Any:
        """The outcome of a request to learn, or the result of a function that this thread calls."""
        if not self.ready:
            raise ServiceError(503, "starting", "the model is being loaded", retry=1)
        if self.waiting >= self._max_queue:
            raise ServiceError(429, "queue", f"{self.waiting} requests are waiting", retry=1)
        future = asyncio.get_running_loop().create_future()
        self._put(what, future)
        try:
            return await asyncio.wait_for(future, timeout)
        except TimeoutError:  # the future is cancelled: it is left out if its turn has not come yet
            remedy = "repeat it with the same Idempotency-Key: it may have been learned"
            raise ServiceError(503, "time", f"no answer in {timeout:g} s", retry=5, remedy=remedy) from None

    def learn(self, request: Request) -> Outcome:
        """For a thread that waits: the outcome, however long it takes."""
        future: Future[Outcome] = Future()
        try:
            self._put(request, future)
            return future.result()
        except ServiceError as error:
            return error

    def _put(self, what: Request | Question, future: asyncio.Future[Any] | Future[Any]) -> None:
        with self._changed:
            if self._stopping or self.failed:
                raise ServiceError(503, "stopping", "the server is stopping", retry=5)
            if isinstance(what, Request):
                self._requests.append(_Waiting(what, future))
            else:
                self._questions.append(_Waiting(what, future))
            self._changed.notify()

    def stop(self) -> None:
        """Do what is waiting, save, and end."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def run(self) -> None:
        try:
            self.served.warm_up()
            self.served.replay()
            self.snapshots.take(self.waiting, self.ready)
            self.ready = True
            while self._round():
                pass
            self.served.close()
        except BaseException as error:
            self.failed = error
            self._refuse_all()
        finally:
            self.ready = False
            self._on_end()

    def _round(self) -> bool:
        with self._changed:
            if not (self.waiting or self._stopping):
                self._changed.wait(TICK)
            questions = [self._questions.popleft() for _ in range(len(self._questions))]
            group = self._group()
            if self._stopping and not (questions or group):
                return False
        self._deliver([(each, _called(each.what)) for each in questions if not each.future.cancelled()])
        group = [each for each in group if not each.future.cancelled()]
        if group:
            try:
                self._deliver(list(zip(group, self.served.learn([each.what for each in group]), strict=True)))
            except BaseException:
                self._deliver([(each, _broken()) for each in group])
                raise
        self.served.tick()
        self._checkpoint_if_due()
        if self.snapshots.due():
            self.snapshots.take(self.waiting, self.ready)
        return True

    def _group(self) -> list[_Waiting[Request]]:
        group: list[_Waiting[Request]] = []
        rows = 0
        while self._requests:
            n = len(self._requests[0].what.entries.rows)
            if group and rows + n > GROUP:
                break
            group.append(self._requests.popleft())
            rows += n
        return group

    def _checkpoint_if_due(self) -> None:
        served = self.served
        if served.read_only or served.learned == served.checkpointed:
            self._next_save = time.monotonic() + self._every_seconds
            return
        full = served.learner.entries - served.saved_entries >= self._every_entries
        full = full or served.journal_bytes >= self._max_journal
        if time.monotonic() >= self._next_save or (full and "checkpoint" not in served.trouble):
            self._next_save = time.monotonic() + self._every_seconds
            # an alarm tells it; the journal keeps what the file lacks
            with contextlib.suppress(ServiceError):
                served.checkpoint()

    def _deliver(self, answers: list[tuple[_Waiting[Any], Any]]) -> None:
        """All at once: waking the loop costs more than an answer."""
        _give([each for each in answers if isinstance(each[0].future, Future)])
        loops = [each[0].future.get_loop() for each in answers if not isinstance(each[0].future, Future)]
        if loops:
            rest = [each for each in answers if not isinstance(each[0].future, Future)]
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it everybody who waited
                loops[0].call_soon_threadsafe(_give, rest)

    def _refuse_all(self) -> None:
        with self._changed:
            left = [*self._questions, *self._requests]
            self._questions.clear()
            self._requests.clear()
        self._deliver([(each, _broken()) for each in left])


def _called(function: Question) -> Any:
    try:
        return function()
    except Exception as error:
        return error


def _give(answers: list[tuple[_Waiting[Any], Any]]) -> None:
    for waiting, answer in answers:
        if not waiting.future.done():
            if isinstance(answer, Exception):
                waiting.future.set_exception(answer)
            else:
                waiting.future.set_result(answer)


def _broken() -> ServiceError:
    remedy = "repeat it with the same Idempotency-Key when the server is back"
    return ServiceError(503, "broken", "the server has failed and stops", retry=10, remedy=remedy)
