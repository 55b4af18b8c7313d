"""`fit`: learn all of a history, as often as a judge finds it worth, nothing counted twice.

Entries are collected first, with their ids already numbered. A slice of them, the judge, is held back; the
others are learned in passes (spider/passes.py) until the judge is not predicted better any more. Then the
weights, the noise and the calibration are set from the judge, and it is learned too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor import checkpoint
from spidertensor.estimator.fitted import Fitted
from spidertensor.scaling import Scaling
from spidertensor.method import Bags, Batch, Update
from spidertensor.spider.bags import concatenated, taken
from spidertensor.spider.committee import CommitteeState
from spidertensor.spider.judge import Verdict, calibrated, judged
from spidertensor.spider.passes import History, Model, Passes
from spidertensor.spider.stacking import update_of_members

FEWEST = 1_000  # entries, below which there is no judge
MOST_PASSES = 20
JUDGE_SHARE, MOST_JUDGED = 0.05, 50_000
GAIN = 2e-4  # of the judge's mean log score; less does not count as better
PATIENCE = 4  # passes without a gain; pairs need some before they show


class Collected:
    """Numbered entries, in the order in which they came.

    time: of each entry, if the history has one
    """

    def __init__(self) -> None:
        self._index: list[NDArray[np.int32]] = []
        self._value: list[NDArray[np.float64]] = []
        self._bags: list[Bags] = []
        self._time: list[NDArray[Any]] = []
        self.n_entries = 0

    def add(
        self, index: NDArray[np.int64], value: NDArray[np.float64], bags: Bags | None, time: Any = None
    ) -> None:
        self._index.append(index.astype(np.int32))
        self._value.append(value)
        if bags is not None:
            self._bags.append(bags)
        if time is not None:
            self._time.append(time)
        self.n_entries += len(value)

    def values(self) -> NDArray[np.float64]:
        self._value = [np.concatenate(self._value)]
        return self._value[0]

    def entries(self, scaling: Scaling) -> Batch:
        """All of them, with scaled values."""
        bags = concatenated(self._bags) if self._bags else None
        return Batch(np.concatenate(self._index), scaling.scaled(self.values()), bags)  # pyright: ignore[reportArgumentType]

    def order(self, seed: int) -> NDArray[np.int64]:
        """The order to learn in: that of time, or random."""
        if self._time:
            return np.argsort(np.concatenate(self._time), kind="stable")
        return np.random.default_rng(seed).permutation(self.n_entries)


class Pass(NamedTuple):
    """One pass, in the words of its judge."""

    number: int
    log_score: float
    error: float  # root mean squared error in user units; for other values than numbers, minus the log score


class Learned(NamedTuple):
    """What was learned of a block of entries in the first pass: `rows` of the collected entries."""

    rows: NDArray[np.int64]
    update: Update


def learn(
    fitted: Fitted, collected: Collected, passes: int | str, folder: str | None = None
) -> Iterator[tuple[Fitted, Learned | Pass | None]]:
    """Learn a history. After each step yields the model, and what has been done: a block of the first pass,
    a block of a later one (None), or a whole pass that the judge has seen."""
    seed, size = fitted.params["random_state"], fitted.params["batch_size"]
    entries, order = collected.entries(fitted.scaling), collected.order(seed)
    n_judged = min(int(JUDGE_SHARE * len(order)), MOST_JUDGED) if len(order) >= FEWEST else 0
    order, judge = order[: len(order) - n_judged], _taken(entries, order[len(order) - n_judged :])
    most = MOST_PASSES if passes == "auto" else int(passes)
    if passes == "auto" and not n_judged:
        most = 1
    models = [
        Model(member.network, member.prior, member.method, _forgets(fitted, member.own))
        for member in fitted.model.members
    ]
    walk = Passes(models, History(entries, order, size), seed, folder)
    found: list[Pass] = []
    best, since = None, 0
    for number in range(1, most + 1):
        at = 0
        for members, updates in walk.next(fitted.state.members):
            fitted = fitted._replace(state=fitted.state._replace(members=tuple(members)))
            if number > 1:
                yield fitted, None
                continue
            n = len(updates[0].mean)
            rows = order[at : at + n]
            at += n
            yield fitted, Learned(rows, _mixed(fitted, entries.value[rows], updates))
        if not n_judged:
            continue
        verdict = _verdict(fitted, judge)
        found.append(Pass(number, verdict.log_score, _error(fitted, judge, verdict)))
        if best is None or verdict.log_score > best[0] + GAIN:
            best, since = (verdict.log_score, number, _copied(fitted.state)), 0
        else:
            since += 1
        yield fitted, found[-1]
        if passes == "auto" and since == PATIENCE:
            break
    if best is not None:
        if passes == "auto":
            fitted = fitted._replace(state=best[2])
        fitted = _concluded(fitted, judge)
        yield fitted, None


def _forgets(fitted: Fitted, own: dict[str, Any]) -> bool:
    return (fitted.params | own)["memory"] is not None


def _taken(entries: Batch, rows: NDArray[np.int64]) -> Batch:
    index, value, bags = entries
    return Batch(index[rows].astype(np.int64), value[rows], None if bags is None else taken(bags, rows))


def _copied(state: CommitteeState) -> CommitteeState:
    return checkpoint.restore(state, checkpoint.flatten(state))


def _mixed(fitted: Fitted, value: NDArray[np.float64], updates: list[Update]) -> Update:
    """What the committee says of entries that all members have learned for the first time."""
    parts = np.array([update[:4] for update in updates])
    clip = fitted.params.get("clip")
    rejected = sum(update.rejected for update in updates)
    return update_of_members(
        fitted.state, fitted.model.likelihood, np.inf if clip is None else clip, value, parts, rejected
    )


def _verdict(fitted: Fitted, judge: Batch) -> Verdict:
    predictions = [
        member.method.predict(state, judge.index, judge.bags)
        for member, state in zip(fitted.model.members, fitted.state.members, strict=True)
    ]
    return judged(fitted.model.likelihood, predictions, judge.value)


def _error(fitted: Fitted, judge: Batch, verdict: Verdict) -> float:
    likelihood = fitted.model.likelihood
    if likelihood.metric != "rmse":
        return -verdict.log_score
    expected = likelihood.expected(verdict.mixture.mean, verdict.mixture.var)
    return float(np.sqrt(np.mean((judge.value - expected) ** 2))) * fitted.scaling.scale


def _concluded(fitted: Fitted, judge: Batch) -> Fitted:
    """The model after the judge has had its say and was learned too."""
    verdict, likelihood = _verdict(fitted, judge), fitted.model.likelihood
    for member, factor in zip(fitted.state.members, verdict.noise, strict=True):
        member.posterior.noise.rate[()] *= factor
    state, _ = fitted.model.method.update(fitted.state, judge)
    state.weights[:] = verdict.weights
    if state.residuals:
        state.residuals[0][:] = calibrated(likelihood, verdict.mixture, judge.value).mass
    return fitted._replace(state=state)
