"""Several models side by side, stacked online by what each of them predicts: mathematics.md section 14.

Every member is a whole model with settings and a seed of its own, and learns every entry. The committee
predicts their mixture. Its weights maximise the log score of that mixture: several members stay in it where
that helps, and a member whose settings fit better from some day on takes over.

Members know nothing of each other, so they run in threads where there are cores; what one entry does to the
weights is computed afterwards, in the order of the entries. Results do not depend on the number of threads.
"""

from __future__ import annotations

import math
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import is_
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Batch, Method, Prediction, Update
from spidertensor.spider import calibration
from spidertensor.spider.calibration import Histogram
from spidertensor.spider.few_entries import ReadyCommittee, ready_committee
from spidertensor.spider.likelihoods import Likelihood
from spidertensor.spider.sequential import LAYOUT
from spidertensor.spider.stacking import CommitteeCounts, CommitteeState, mixed, update_of_members

ENOUGH = 512  # entries of a call from which on threads pay for being started
BLOCK = 2**16  # entries predicted at once, which bounds what all members' predictions take
# those that Python programs handle by raising something
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGALRM") if hasattr(signal, name)]
_NEXT = 0x9E3779B97F4A7C15  # between two members' seeds: far from the small numbers that people choose

OUT_OF_STEP = (
    "an error stopped an earlier call while some members had learned its entries and others had not: "
    "load the model from its last file"
)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class CommitteeMethod(Method):
    """A Method of CommitteeStates, which can be made ready for few entries: None if they cannot."""

    ready: Callable[[CommitteeState], ReadyCommittee | None]


def member_seed(seed: int, member: int) -> int:
    """The first member has the seed itself: it is the model that would be there alone."""
    return (seed + member * _NEXT) % 2**63


def start(members: tuple[Any, ...], likelihood: Likelihood) -> CommitteeState:
    """The state before any entry, around those of the members."""
    return CommitteeState(
        members,
        np.full(len(members), 1 / len(members)),
        CommitteeCounts(
            entries=np.zeros((), np.int64),
            refused=np.zeros((), np.int64),
            clipped=np.zeros((), np.int64),
            log_evidence=np.zeros(()),
        ),
        calibration.start() if likelihood.intervals else (),
    )


def committee(
    members: Sequence[Method],
    likelihood: Likelihood,
    *,
    clip: float | None = None,
    threads: int | None = None,
) -> CommitteeMethod:
    """The mixture of `members`, which have the same likelihood, as a Method.

    clip:    of its members; an entry counts as clipped if the mixture's own prediction would clip it
    threads: at most so many; None: as many as this process has cores
    """
    if not members:
        raise ValueError("a committee needs at least one member")
    clip = math.inf if clip is None else float(clip)

    def init(seed: int) -> CommitteeState:
        states = tuple(member.init(member_seed(seed, m)) for m, member in enumerate(members))
        return start(states, likelihood)

    def update(state: CommitteeState, batch: Batch) -> tuple[CommitteeState, Update]:
        entries = int(state.counts.entries)
        if any(int(each.counts.entries) != entries for each in state.members if hasattr(each, "counts")):
            raise RuntimeError(OUT_OF_STEP)
        if len(batch.value) < ENOUGH and (found := ready(state)) is not None:
            learned = found.learn(batch)
            if learned is not None:
                return state, learned
        with interrupts_wait():  # no member may learn less than the others
            return learn(state, batch)

    def learn(state: CommitteeState, batch: Batch) -> tuple[CommitteeState, Update]:
        results = run(lambda m: members[m].update(state.members[m], batch), len(batch.value))
        state = state._replace(members=tuple(after for after, _ in results))
        parts = np.array([update[:4] for _, update in results])
        rejected = sum(update.rejected for _, update in results)
        value = np.require(batch.value, np.float64, LAYOUT)
        return state, update_of_members(state, likelihood, clip, value, parts, rejected)

    known: Any = None, None  # a state, and the same ready for few entries

    def ready(state: CommitteeState) -> ReadyCommittee | None:
        nonlocal known
        of, found = known
        if of is not state:
            if of is None or not _same_arrays(of, state):
                found = ready_committee(members, state, likelihood, clip)
            known = state, found
        return found

    def predict(state: CommitteeState, index: NDArray[np.integer]) -> Prediction:
        if len(index) < ENOUGH and (found := ready(state)) is not None:
            prediction = found.predict(index)
            if prediction is not None:
                return prediction
        predicted = []
        for start in range(0, max(len(index), 1), BLOCK):
            rows = index[start : start + BLOCK]
            parts = run(lambda m, rows=rows: members[m].predict(state.members[m], rows), len(rows))
            predicted.append(mixed(likelihood, state.weights[:, None], parts))
        return Prediction(*map(np.concatenate, zip(*predicted, strict=True)))

    def quantile(state: CommitteeState, probability: float) -> float:
        return calibration.quantile(Histogram(*state.residuals), probability)

    def run(work: Callable[[int], T], n_entries: int) -> list[T]:
        n = min(threads or cores(), len(members)) if n_entries >= ENOUGH else 1
        return in_threads(work, len(members), n)

    unit = "batch" if any(member.unit == "batch" for member in members) else members[0].unit
    calibrated = quantile if likelihood.intervals else None
    return CommitteeMethod(init, update, predict, unit, calibrated, ready=ready)


def _same_arrays(a: CommitteeState, b: CommitteeState) -> bool:
    """Whether two states are of the same arrays, whatever their draws."""
    return all(map(is_, (*a.members, *a[1:4]), (*b.members, *b[1:4])))


def in_threads(work: Callable[[int], T], n: int, threads: int) -> list[T]:
    """work(0) to work(n - 1), by so many threads, this one among them.

    Plain threads: a pool refuses work when the interpreter ends, and a thread of the user's may still learn.
    """
    results: list[Any] = [None] * n
    failed: list[BaseException] = []
    waiting = deque(range(n))

    def worker() -> None:
        while waiting and not failed:
            with suppress(IndexError):  # another one was faster
                m = waiting.popleft()
                try:
                    results[m] = work(m)
                except BaseException as error:
                    failed.append(error)

    others = []
    for _ in range(threads - 1):
        thread = threading.Thread(target=worker)
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends, or there are too many: this one does the work
            break
        others.append(thread)
    worker()
    for thread in others:
        thread.join()
    if failed:
        raise failed[0]
    return results


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """A signal inside the block, such as Ctrl-C, takes effect at its end. Only the main thread gets any."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    if threading.current_thread() is not threading.main_thread() or not handlers:
        yield
        return
    came: list[Any] = []
    for number in handlers:
        signal.signal(number, lambda *args: came.append(args))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in came[:1]:
            handlers[number](number, frame)


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
