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
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import HUGE, Batch, Method, Prediction, Update
from spidertensor.spider import calibration, together
from spidertensor.spider.calibration import Histogram, note
from spidertensor.spider.compiled import COMPILE, kernel
from spidertensor.spider.events import Draws
from spidertensor.spider.likelihoods import Likelihood
from spidertensor.spider.likelihoods.mixture import moments
from spidertensor.spider.sequential import LAYOUT
from spidertensor.spider.together import Together

RATE, FIRST_RATE = 0.02, 0.1  # eta, how fast the weights follow: first quickly, from one to the other
SLOWING = 1000  # entries over which it begins to fall
LEAST = 0.001  # of a weight, or a hair less after normalising, so that a member can come back
ENOUGH = 512  # entries of a call from which on threads pay for being started
BLOCK = 2**16  # entries predicted at once, which bounds what all members' predictions take
# those that Python programs handle by raising something
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGALRM") if hasattr(signal, name)]
_NEXT = 0x9E3779B97F4A7C15  # between two members' seeds: far from the small numbers that people choose

OUT_OF_STEP = (
    "an error stopped an earlier call while some members had learned its entries and others had not: "
    "load the model from its last file"
)

_NO_HISTOGRAM = np.empty(0)

T = TypeVar("T")


class CommitteeCounts(NamedTuple):
    entries: NDArray[np.int64]
    refused: NDArray[np.int64]  # entries that no member could learn
    clipped: NDArray[np.int64]  # entries further from the committee's prediction than its clip
    log_evidence: NDArray[np.float64]  # sum over all entries


class CommitteeState(NamedTuple):
    members: tuple[Any, ...]  # their states
    weights: NDArray[np.float64]  # (M,), of sum 1
    counts: CommitteeCounts
    residuals: Histogram | tuple[()]  # for intervals; () where the likelihood has none
    draws: Draws | tuple[()] = ()  # of the negatives of a model of events


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


def rejections(state: CommitteeState) -> int:
    """Elements whose update was not made, of all members so far."""
    return sum(int(each.counts.rejected) for each in state.members)


def committee(
    members: Sequence[Method],
    likelihood: Likelihood,
    *,
    clip: float | None = None,
    threads: int | None = None,
) -> Method:
    """The mixture of `members`, which have the same likelihood, as a Method.

    clip:    predictive standard deviations from which on an entry counts as clipped
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
            before, parts = rejections(state), np.empty((len(members), 4, len(batch.value)))
            # An interrupt takes effect when a compiled call has ended: never between two members, but
            # perhaps between them and the committee. (To make it wait takes longer than an entry.)
            try:
                if together.learn(ready, batch, entries, parts):
                    return state, concluded(state, batch, parts, rejections(state) - before)
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
        mass = state.residuals[0] if state.residuals else _NO_HISTOGRAM
        refused, clipped = conclude(
            state.weights, state.counts, mass, parts, batch.value, clip, weights, told
        )
        mean, var, noise, log_evidence, below, _ = told
        if not state.residuals:
            below, (mean, var, noise) = None, mixed(weights, parts)
        return Update(mean, var, noise, log_evidence, rejected, refused, clipped, below)

    known: Any = (), None  # states of members, and the same for compiled calls: see `together`

    def prepared(state: CommitteeState) -> Together | None:
        nonlocal known
        of, ready = known
        if not (of and all(map(is_, of, state.members))):
            ready = together.together(members, state.members)
            known = state.members, ready
        return ready

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
    return Method(init, update, predict, unit, quantile if likelihood.intervals else None)


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


# Not fastmath: the order in which members are added up would depend on how many entries a call has.
@kernel(**COMPILE | {"fastmath": False})
def stack(weights, counts, log_p, before, log_evidence, good):
    """The entries of a call, in order: w <- (1 - eta) w + eta w p / sum(w p), then w >= LEAST, of sum 1.

    weights and counts are changed in place. log_p (M, n): what each member thought of each entry. To fill:
    before (M, n), the weights before each entry; log_evidence (n,), of the mixture; good (n,), whether any
    member could learn the entry. A member that could not keeps its weight.
    """
    members, n = log_p.shape
    for i in range(n):
        rate = max(RATE, FIRST_RATE / math.sqrt(1 + counts.entries[()] / SLOWING))
        counts.entries[()] += 1
        best = -np.inf
        for m in range(members):
            before[m, i] = weights[m]
            if abs(log_p[m, i]) < HUGE:
                best = max(best, log_p[m, i])
        good[i] = best > -np.inf
        if not good[i]:
            log_evidence[i] = log_p[0, i]
            counts.refused[()] += 1
            continue
        able, total = 0.0, 0.0
        for m in range(members):
            if abs(log_p[m, i]) < HUGE:
                able += weights[m]
                total += weights[m] * math.exp(log_p[m, i] - best)
        log_evidence[i] = best + math.log(total / able)
        counts.log_evidence[()] += log_evidence[i]
        new_sum = 0.0
        for m in range(members):
            if abs(log_p[m, i]) < HUGE:
                ratio = able * math.exp(log_p[m, i] - best) / total
                weights[m] = max(LEAST, weights[m] * (1 - rate + rate * ratio))
            new_sum += weights[m]
        for m in range(members):
            weights[m] /= new_sum


@kernel(**COMPILE | {"fastmath": False})
def conclude(weights, counts, mass, parts, value, clip, before, told):
    """What the committee makes of the entries of a call after its members have learned them.

    parts (M, 4, n): mean, var, noise and log evidence, as each member reports them. To fill: before (M, n),
    see `stack`; told (6, n): mean, var, noise and log evidence of the mixture, how much of its calibrated
    distribution lay below the value, and the residual. Without a histogram (mass is empty) only the log
    evidence. Returns how many entries were refused, and how many clipped.
    """
    n = len(value)
    good, clipped = np.empty(n, np.bool_), 0
    stack(weights, counts, parts[:, 3], before, told[3], good)
    refused = n
    for i in range(n):
        refused -= good[i]
    if len(mass):
        moments(before, parts, told)
        for i in range(n):
            residual = (value[i] - told[0, i]) / math.sqrt(told[1, i] + told[2, i])
            clipped += good[i] and abs(residual) > clip
            told[5, i] = residual
        note(mass, told[5], good, told[4])
        counts.clipped[()] += clipped
    return refused, clipped


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
