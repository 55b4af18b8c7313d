"""Several models side by side, stacked online by how well each predicts: mathematics.md section 14.

Every member is a complete model with its own settings and seed, and learns every entry. The committee
predicts their mixture. Its weights maximise the log score of that mixture: several members keep weight where
that helps, and a member whose settings begin to fit better takes over.

Members are independent, so they run in threads where there are cores; the weights are updated afterwards, in
the order of the entries. Results do not depend on the number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Bags, Batch, JointMethod, Method, Prediction, Update, joined
from spidertensor.spider import calibration
from spidertensor.spider.crew import Aside, in_threads
from spidertensor.spider.few_entries import ReadyCommittee, ready_committee
from spidertensor.spider.forecasts import MemberForecasts, histogram, update_of_forecasts
from spidertensor.spider.interrupts import deferred_interrupts
from spidertensor.spider.likelihoods import Likelihood
from spidertensor.spider.sequential import LAYOUT, SequentialMethod
from spidertensor.spider.stacking import (
    CommitteeCounts,
    CommitteeState,
    Mixing,
    mixed,
    mixing_of,
    update_of_members,
)

MANY_ENTRIES = 512  # from here on starting threads pays; below, few_entries.py is faster
BLOCK_ENTRIES = 2**16  # predicted at once: bounds the memory for all members' predictions
_SEED_STEP = 0x9E3779B97F4A7C15  # between members' seeds: far from the small numbers that people choose

OUT_OF_STEP = (
    "an earlier call failed after only some members had learned its entries: "
    "load the model from its last file"
)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ForecastingMethod(Method):
    """A Method of several members, that can make forecasts and score them later (section 21).

    forecast:  `predict`, and each member's prediction
    update_by: `update` that scores forecasts, where there are any, in place of predictions just before
    """

    forecast: Callable[[Any, NDArray[np.integer], Bags | None], tuple[Prediction, MemberForecasts]]
    update_by: Callable[[Any, Batch, MemberForecasts], tuple[Any, Update]]


@dataclass(frozen=True, kw_only=True)
class CommitteeMethod(ForecastingMethod):
    """The same with CommitteeStates, which can be prepared for calls with few entries.

    ready: prepares a state; None if the members do not support it
    """

    ready: Callable[[CommitteeState], ReadyCommittee | None]
    mixing: Mixing


def member_seed(seed: int, member: int) -> int:
    """Seed of a member; member 0 has the seed itself and equals the model without a committee."""
    return (seed + member * _SEED_STEP) % 2**63


def start(members: tuple[Any, ...], likelihood: Likelihood) -> CommitteeState:
    """The committee's state before any entry, from the members' states."""
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
    least: NDArray[np.float64] | None = None,
    threads: int | None = None,
    pieces: Callable[[int, Batch], Sequence[int]] | None = None,
) -> CommitteeMethod:
    """The mixture of `members` as a Method. All members have this likelihood.

    clip, least: see Mixing; without `least` each may lose nearly all its weight
    threads: upper limit; None: as many as this process has cores
    pieces:  where a batch that comes after so many entries may be cut, its end included. While a piece is
             learned, the one before it is mixed
    """
    if not members:
        raise ValueError("a committee needs at least one member")
    mixing = mixing_of(len(members), clip, least)

    def init(seed: int) -> CommitteeState:
        states = tuple(member.init(member_seed(seed, m)) for m, member in enumerate(members))
        return start(states, likelihood)

    def update(state: CommitteeState, batch: Batch) -> tuple[CommitteeState, Update]:
        check_in_step(state)
        if len(batch.value) < MANY_ENTRIES and (found := ready(state)) is not None:
            learned = found.learn(batch)
            if learned is not None:
                return state, learned
        with deferred_interrupts():  # all members must learn the same entries
            return learn(state, batch)

    def update_by(
        state: CommitteeState, batch: Batch, forecasts: MemberForecasts
    ) -> tuple[CommitteeState, Update]:
        check_in_step(state)
        if len(batch.value) < MANY_ENTRIES and (found := ready(state)) is not None:
            score = partial(update_of_forecasts, state, likelihood, mixing, forecasts)
            learned = found.learn_and_score(batch, score)
            if learned is not None:
                return learned
        with deferred_interrupts():
            return learn(state, batch, forecasts)

    def learn(
        state: CommitteeState, batch: Batch, forecasts: MemberForecasts | None = None
    ) -> tuple[CommitteeState, Update]:
        if pieces is not None and forecasts is None:
            return learn_in_pieces(state, batch, pieces(int(state.counts.entries), batch))
        state, parts, rejected = learned_by_members(state, batch)
        value = np.require(batch.value, np.float64, LAYOUT)
        if forecasts is not None:
            return update_of_forecasts(state, likelihood, mixing, forecasts, value, parts, rejected)
        return state, update_of_members(state, likelihood, mixing, value, parts, rejected)

    def learned_by_members(
        state: CommitteeState, batch: Batch
    ) -> tuple[CommitteeState, NDArray[np.float64], int]:
        """What `update_of_members` needs, which has yet to update the committee."""
        parts = np.empty((len(members), 4, len(batch.value)))

        groups = in_groups(members)

        def learn_group(g: int) -> list[tuple[Any, int]]:
            own, states = [members[m] for m in groups[g]], [state.members[m] for m in groups[g]]
            first = own[0]
            if len(own) > 1 and isinstance(first, JointMethod):
                found = first.update_all(own, states, batch)
            else:
                found = [first.update(states[0], batch)]
            for m, (_, update) in zip(groups[g], found, strict=True):
                for part, told in zip(parts[m], update[:4], strict=True):
                    part[:] = told
            return [(after, update.rejected) for after, update in found]

        found = run(learn_group, len(groups), len(batch.value))
        learned = dict(zip(chain(*groups), chain(*found), strict=True))
        after, rejected = zip(*(learned[m] for m in range(len(members))), strict=True)
        return state._replace(members=after), parts, sum(rejected)

    def learn_in_pieces(
        state: CommitteeState, batch: Batch, ends: Sequence[int]
    ) -> tuple[CommitteeState, Update]:
        updates: list[Update] = []
        aside: Aside[Update] | None = None
        try:
            for start, end in pairwise((0, *ends)):
                piece = batch.part(start, end)
                state, parts, rejected = learned_by_members(state, piece)
                if aside is not None:
                    updates.append(aside.result())
                value = np.require(piece.value, np.float64, LAYOUT)
                mix = partial(update_of_members, state, likelihood, mixing, value, parts, rejected)
                aside = Aside(mix)
        finally:
            if aside is not None:
                updates.append(aside.result())
        return state, joined(updates)

    known: Any = None, None  # the last state, and its ReadyCommittee

    def ready(state: CommitteeState) -> ReadyCommittee | None:
        nonlocal known
        of, found = known
        if of is not state:
            if found is None or not found.goes_on_with(state):
                found = ready_committee(members, state, likelihood, mixing)
            known = state, found
        return found

    def predict(state: CommitteeState, index: NDArray[np.integer], bags: Bags | None = None) -> Prediction:
        starts = range(0, max(len(index), 1), BLOCK_ENTRIES)

        def one(block: int) -> Prediction:
            start, end = starts[block], starts[block] + BLOCK_ENTRIES
            of = None if bags is None else bags.part(start, min(end, len(index)))
            return mixed(likelihood, state.weights[:, None], parts(state, index[start:end], of))

        if len(starts) == 1:
            return one(0)
        # each block takes a thread for each member; a few blocks at once keep all cores busy
        at_once = max(1, (threads or cores()) // len(members)) if all_sequential else 1
        return Prediction(*map(np.concatenate, zip(*in_threads(one, len(starts), at_once), strict=True)))

    def parts(
        state: CommitteeState, index: NDArray[np.integer], bags: Bags | None = None
    ) -> NDArray[np.float64]:
        """(M, 3, n) mean, var and noise of each member's prediction."""
        if len(index) < MANY_ENTRIES and (found := ready(state)) is not None:
            predicted = found.parts(index, bags)
            if predicted is not None:
                return predicted[:, :3]
        return np.array(
            run(lambda m: members[m].predict(state.members[m], index, bags), len(members), len(index))
        )

    def forecast(
        state: CommitteeState, index: NDArray[np.integer], bags: Bags | None = None
    ) -> tuple[Prediction, MemberForecasts]:
        made, weights = parts(state, index, bags), np.repeat(state.weights[:, None], len(index), axis=1)
        predicted = mixed(likelihood, weights, made)
        if likelihood.ordinal:  # what f says of levels depends on them
            seen = state.members[0].stream.level_counts[:, None]
            made = np.concatenate([made, np.broadcast_to(seen, (len(made), len(seen), len(index)))], axis=1)
        return predicted, MemberForecasts(made, weights)

    def quick(state: CommitteeState, numbers: Sequence[NDArray[np.int64]]) -> Prediction:
        parts = [
            each.quick(of, numbers) for each, of in zip(members, state.members, strict=True) if each.quick
        ]
        return mixed(likelihood, state.weights[:, None], np.array(parts))

    def quantile(state: CommitteeState, probability: Any) -> Any:
        residuals = histogram(state, "auto")
        assert residuals is not None  # there is a quantile only where there are intervals
        return calibration.quantile(residuals, probability)

    def run(work: Callable[[int], T], n: int, n_entries: int) -> list[T]:
        used = min(threads or cores(), n) if n_entries >= MANY_ENTRIES else 1
        return in_threads(work, n, used)

    all_sequential = all(isinstance(member, SequentialMethod) for member in members)
    unit = "batch" if any(member.unit == "batch" for member in members) else members[0].unit
    calibrated = quantile if likelihood.intervals else None
    are_quick = quick if all(member.quick for member in members) else None
    own: dict[str, Any] = {"quick": are_quick, "ready": ready, "forecast": forecast, "update_by": update_by}
    own["likelihood"] = likelihood.at if likelihood.ordinal else None
    own["mixing"] = mixing
    return CommitteeMethod(init, update, predict, unit, calibrated, **own)


def updated(
    method: ForecastingMethod, state: CommitteeState, batch: Batch, forecasts: MemberForecasts | None
) -> tuple[CommitteeState, Update]:
    """Update a model with entries, some of which come with a forecast."""
    return method.update(state, batch) if forecasts is None else method.update_by(state, batch, forecasts)


def in_groups(members: Sequence[Method]) -> list[list[int]]:
    """Numbers of members that learn together: those of one program. All others learn alone."""
    groups: dict[Any, list[int]] = {}
    for m, member in enumerate(members):
        program = member.program() if isinstance(member, JointMethod) else None
        groups.setdefault(m if program is None else program, []).append(m)
    return list(groups.values())


def check_in_step(state: CommitteeState) -> None:
    entries = int(state.counts.entries)
    if any(int(each.counts.entries) != entries for each in state.members if hasattr(each, "counts")):
        raise RuntimeError(OUT_OF_STEP)


def cores() -> int:
    """Number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
