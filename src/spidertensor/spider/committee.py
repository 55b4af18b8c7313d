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
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import HUGE, Batch, Method, Prediction, Update
from spidertensor.spider import calibration
from spidertensor.spider.calibration import Histogram
from spidertensor.spider.compiled import COMPILE, kernel
from spidertensor.spider.likelihoods import Likelihood

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
        if any(
            each.counts.entries != state.counts.entries for each in state.members if hasattr(each, "counts")
        ):
            raise RuntimeError(OUT_OF_STEP)
        with interrupts_wait():  # no member may learn less than the others
            return learn(state, batch)

    def learn(state: CommitteeState, batch: Batch) -> tuple[CommitteeState, Update]:
        n = len(batch.value)
        results = run(lambda m: members[m].update(state.members[m], batch), n)
        state = state._replace(members=tuple(after for after, _ in results))
        updates = [update for _, update in results]
        log_p = np.stack([each.log_evidence for each in updates])
        weights, log_evidence, good = np.empty_like(log_p), np.empty(n), np.empty(n, np.bool_)
        stack(state.weights, state.counts, log_p, weights, log_evidence, good)
        predicted = mixed(weights, [Prediction(*each[:3]) for each in updates])
        refused, clipped, below = n - int(np.count_nonzero(good)), 0, None
        if state.residuals:
            residual = (batch.value - predicted.mean) / np.sqrt(predicted.var + predicted.noise)
            clipped = int(np.count_nonzero(np.abs(residual[good]) > clip))
            below = calibration.note(state.residuals, residual, good)
        state.counts.clipped[()] += clipped
        rejected = sum(each.rejected for each in updates)
        return state, Update(*predicted, log_evidence, rejected, refused, clipped, below)

    def predict(state: CommitteeState, index: NDArray[np.integer]) -> Prediction:
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

    def mixed(weights: NDArray[np.float64], parts: list[Prediction]) -> Prediction:
        return parts[0] if len(parts) == 1 else likelihood.mixture(weights, parts)

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
