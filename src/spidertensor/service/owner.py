"""The thread that owns the model, and its queue.

No other thread touches the model, so readers see only whole updates and kernels need no locks. Each round
first answers all waiting questions, then takes waiting requests to learn together: one disk sync and one call
serve them all. So a question waits for at most one group, and sees everything acknowledged before it was
asked.
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

GROUP_ROWS = 2000  # learned together, unless one request has more
TICK_S = 0.25  # between two checks for periodic work

Question = Callable[[], Any]
Work = TypeVar("Work", Request, Question)


class _Waiting(Generic[Work]):
    """A request or question, and the future for its outcome."""

    __slots__ = ("future", "work")

    def __init__(self, work: Work, future: asyncio.Future[Any] | Future[Any]) -> None:
        self.work, self.future = work, future


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
        self.failed: BaseException | None = None  # the exception that ended this thread
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

    async def ask(self, work: Request | Question, timeout: float) -> Any:
        """Queue a request to learn, or a function for this thread to call, and wait for the outcome."""
        if not self.ready:
            remedy = "wait until GET /health/ready answers 200"
            raise ServiceError(503, "starting", "the model is being loaded", retry=1, remedy=remedy)
        if self.waiting >= self._max_queue:
            raise ServiceError(429, "queue", f"{self.waiting} requests are waiting", retry=1)
        future = asyncio.get_running_loop().create_future()
        self._put(work, future)
        try:
            return await asyncio.wait_for(future, timeout)
        except TimeoutError:  # the future is cancelled, so the request is dropped if still waiting
            remedy = "repeat it with the same Idempotency-Key: it may have been learned"
            reason = f"no answer within {timeout:g} s"
            raise ServiceError(503, "time", reason, retry=5, remedy=remedy) from None

    def learn(self, request: Request) -> Outcome:
        """Queue a request from another thread and wait for the outcome, however long it takes."""
        future: Future[Outcome] = Future()
        try:
            self._put(request, future)
            return future.result()
        except ServiceError as error:
            return error

    def _put(self, work: Request | Question, future: asyncio.Future[Any] | Future[Any]) -> None:
        with self._changed:
            if self._stopping or self.failed:
                raise ServiceError(503, "stopping", "the server is stopping", retry=5)
            if isinstance(work, Request):
                self._requests.append(_Waiting(work, future))
            else:
                self._questions.append(_Waiting(work, future))
            self._changed.notify()

    def stop(self) -> None:
        """Finish what is waiting, save, and end the thread."""
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
                self._changed.wait(TICK_S)
            questions = [self._questions.popleft() for _ in range(len(self._questions))]
            group = self._group()
            if self._stopping and not (questions or group):
                return False
        self._deliver([(each, _called(each.work)) for each in questions if not each.future.cancelled()])
        group = [each for each in group if not each.future.cancelled()]
        if group:
            try:
                self._deliver(list(zip(group, self.served.learn([each.work for each in group]), strict=True)))
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
            n = len(self._requests[0].work.entries.rows)
            if group and rows + n > GROUP_ROWS:
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
            # a failure raises an alarm; the journal keeps what the file lacks
            with contextlib.suppress(ServiceError):
                served.checkpoint()

    def _deliver(self, answers: list[tuple[_Waiting[Any], Any]]) -> None:
        """Deliver answers, waking the event loop only once, since that costs more than an answer."""
        _give([each for each in answers if isinstance(each[0].future, Future)])
        loops = [each[0].future.get_loop() for each in answers if not isinstance(each[0].future, Future)]
        if loops:
            rest = [each for each in answers if not isinstance(each[0].future, Future)]
            with contextlib.suppress(RuntimeError):  # the loop has ended, so nobody waits
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
    return ServiceError(503, "broken", "the server has failed and is stopping", retry=10, remedy=remedy)
