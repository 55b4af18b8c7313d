"""The thread that owns the model, and its queue.

No other thread changes the model, so readers see only whole updates and kernels need no locks. Each round
first answers all waiting questions, then takes waiting requests to learn together: one disk sync and one call
serve them all. So a question waits for at most one group, and sees everything acknowledged before it was
asked.

A checkpoint is written by another thread, from the arrays of the model themselves. Until it has ended nothing
is learned, but questions are answered: saving a large model delays no prediction and takes no second copy.
Everyone who asks for a checkpoint meanwhile is served by that one.
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

from spidertensor.service.background import Background
from spidertensor.service.errors import ServiceError
from spidertensor.service.requests import Outcome, Request
from spidertensor.service.served import Served
from spidertensor.service.snapshots import Snapshots

GROUP_ROWS = 2000  # learned together, unless one request has more
TICK_S = 0.25  # between two checks for periodic work


class Save:
    """A wish for a checkpoint. Its outcome is the position and the number of entries that were saved."""


Question = Callable[[], Any]
Work = TypeVar("Work", Request, Question, Save)


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
        self._saves: deque[_Waiting[Save]] = deque()
        self._writer: Background | None = None  # of a checkpoint
        self._changed = threading.Condition()
        self._stopping = False
        self._next_save = time.monotonic() + every_seconds

    @property
    def waiting(self) -> int:
        return len(self._questions) + len(self._requests)

    async def ask(self, work: Request | Question | Save, timeout: float) -> Any:
        """Queue a request to learn or save, or a function for this thread to call; wait for the outcome."""
        if not self.ready:
            remedy = "wait until GET /health/ready answers 200"
            raise ServiceError(503, "starting", "the model is being loaded", retry=1, remedy=remedy)
        waiting = len(self._queue(work))
        if waiting >= self._max_queue:
            raise ServiceError(429, "queue", f"{waiting} requests are waiting", retry=1)
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

    def _queue(self, work: Any) -> deque[_Waiting[Any]]:
        if isinstance(work, Request):
            return self._requests
        return self._saves if isinstance(work, Save) else self._questions

    def _put(self, work: Request | Question | Save, future: asyncio.Future[Any] | Future[Any]) -> None:
        with self._changed:
            if self._stopping or self.failed:
                raise ServiceError(503, "stopping", "the server is stopping", retry=5)
            self._queue(work).append(_Waiting[Any](work, future))
            self._changed.notify()

    def _wake(self) -> None:
        with self._changed:
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
            if not self._has_work():
                self._changed.wait(TICK_S)
        self._end_checkpoint()  # first, so that a group is learned before the next one begins
        with self._changed:
            questions = [self._questions.popleft() for _ in range(len(self._questions))]
            group = self._group() if self._writer is None else []
            if self._stopping and not (questions or group or self._saves or self._writer):
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
        if self._writer is None and (self._saves or self._checkpoint_is_due()):
            self._begin_checkpoint()
        if self.snapshots.due():
            self.snapshots.take(self.waiting, self.ready)
        return True

    def _has_work(self) -> bool:
        if self._writer is not None:
            return bool(self._questions) or self._writer.has_ended
        return bool(self.waiting or self._saves or self._stopping)

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

    def _checkpoint_is_due(self) -> bool:
        served = self.served
        if served.read_only or served.learned == served.checkpointed:
            self._next_save = time.monotonic() + self._every_seconds
            return False
        full = served.learner.entries - served.saved_entries >= self._every_entries
        full = full or served.journal_bytes >= self._max_journal
        return time.monotonic() >= self._next_save or (full and "checkpoint" not in served.trouble)

    def _begin_checkpoint(self) -> None:
        self._next_save = time.monotonic() + self._every_seconds
        self._writer = Background("writer of the model", self.served.checkpoint, self._wake)

    def _end_checkpoint(self) -> None:
        """Answer those who wait for a checkpoint once it is written: nothing was learned since they asked."""
        if self._writer is None or not self._writer.has_ended:
            return
        error, self._writer = self._writer.outcome, None
        with self._changed:
            saves, self._saves = self._saves, deque()
        outcome = error or (self.served.checkpointed, self.served.saved_entries)
        self._deliver([(each, outcome) for each in saves])
        # a ServiceError has raised an alarm, and the journal keeps what the file lacks
        if error is not None and not saves and not isinstance(error, ServiceError):
            raise error

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
            queues: list[deque[_Waiting[Any]]] = [self._questions, self._requests, self._saves]
            left = [each for queue in queues for each in queue]
            for queue in queues:
                queue.clear()
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
