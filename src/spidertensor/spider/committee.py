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
from operator import is_
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import HUGE, Batch, Method, Prediction, Update
from spidertensor.spider import calibration, together
from spidertensor.spider.calibration import Histogram, note
from spidertensor.spider.likelihoods import Likelihood
from spidertensor.spider.sequential import LAYOUT
from spidertensor.spider.single import Single
from spidertensor.spider.stacking import CommitteeCounts, CommitteeState, conclude, mass_of
from spidertensor.spider.together import Together

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
) -> Method:
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
        if len(batch.value) < ENOUGH and (ready := prepared(state)) is not None:
            parts = np.empty((len(members), 4, len(batch.value)))
            # An interrupt takes effect when a compiled call has ended: never between two members, but
            # perhaps between them and the committee. (To make it wait takes longer than an entry.)
            try:
                rejected = together.learn(ready, batch, entries, parts)
                if rejected is not None:
                    return state, concluded(state, batch, parts, rejected)
            except BaseException:
                if int(state.members[0].counts.entries) != int(state.counts.entries):
                    concluded(state, batch, parts, 0)
                raise
        with interrupts_wait():  # no member may learn less than the others
            return learn(state, batch)

    def learn(state: CommitteeState, batch: Batch) -> tuple[CommitteeState, Update]:
        results = run(lambda m: members[m].update(state.members[m], batch), len(batch.value))
        state = state._replace(members=tuple(after for after, _ in results))
        parts = np.array([update[:4] for _, update in results])
        batch = batch._replace(value=np.require(batch.value, np.float64, LAYOUT))
        return state, concluded(state, batch, parts, sum(update.rejected for _, update in results))

    def concluded(state: CommitteeState, batch: Batch, parts: NDArray[np.float64], rejected: int) -> Update:
        """The Update of entries that all members have learned. parts (M, 4, n): what they reported."""
        n = len(batch.value)
        told, weights = np.empty((6, n)), np.empty((len(parts), n))
        first = int(state.counts.entries)
        refused, clipped = conclude(
            state.weights,
            tuple(state.counts),
            mass_of(state, likelihood),
            parts,
            batch.value,
            clip,
            weights,
            told,
        )
        mean, var, noise, log_evidence, below, _ = told
        if not state.residuals:
            below, (mean, var, noise) = None, mixed(weights, parts)
        elif not likelihood.normal:
            predicted = mixed(weights, parts)
            mean, var, noise = predicted
            good = (np.abs(parts[:, 3]) < HUGE).any(axis=0)
            residual = likelihood.residual(batch.value, predicted, first)
            note(state.residuals[0], residual, good, below)
            clipped = int(np.count_nonzero(good & likelihood.clipped(batch.value, predicted, residual, clip)))
            state.counts.clipped[()] += clipped
        return Update(mean, var, noise, log_evidence, rejected, refused, clipped, below)

    known: Any = (), None  # states of members, and the same for compiled calls: see `together`

    def prepared(state: CommitteeState) -> Together | None:
        nonlocal known
        of, ready = known
        if not (of and all(map(is_, of, state.members))):
            ready = together.together(members, state.members)
            known = state.members, ready
        return ready

    known_single: Any = None, None

    def single(state: CommitteeState) -> Single | None:
        nonlocal known_single
        of, found = known_single
        if of is not state:
            ready = prepared(state)
            found = Single(state, ready, likelihood, clip) if ready is not None and ready.writable else None
            known_single = state, found
        return found

    def predict(state: CommitteeState, index: NDArray[np.integer]) -> Prediction:
        if len(index) < ENOUGH and (ready := prepared(state)) is not None:
            parts = together.predict(ready, index)
            if parts is not None:
                return mixed(state.weights[:, None], parts)
        predicted = []
        for start in range(0, max(len(index), 1), BLOCK):
            rows = index[start : start + BLOCK]
            parts = run(lambda m, rows=rows: members[m].predict(state.members[m], rows), len(rows))
            predicted.append(mixed(state.weights[:, None], parts))
        return Prediction(*map(np.concatenate, zip(*predicted, strict=True)))

    def quantile(state: CommitteeState, probability: float) -> float:
        return calibration.quantile(Histogram(*state.residuals), probability)

    def run(work: Callable[[int], T], n_entries: int) -> list[T]:
        n = min(threads or cores(), len(members)) if n_entries >= ENOUGH else 1
        return in_threads(work, len(members), n)

    def mixed(weights: NDArray[np.float64], parts: Sequence[Prediction] | NDArray[np.float64]) -> Prediction:
        return Prediction(*parts[0][:3]) if len(parts) == 1 else likelihood.mixture(weights, parts)

    unit = "batch" if any(member.unit == "batch" for member in members) else members[0].unit
    compiled = likelihood.normal or not likelihood.intervals  # `conclude` does all that an entry needs
    calibrated = quantile if likelihood.intervals else None
    return Method(init, update, predict, unit, calibrated, single=single if compiled else None)


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
