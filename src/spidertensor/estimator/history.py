"""`fit`: learn all of a history, as often as a judge finds it worth, nothing counted twice.

Entries are collected first, with their ids already numbered. A slice of them, the judge, is held back; the
others are learned in passes (spider/passes.py) until the judge is not predicted better any more. Then the
weights, the noise and the calibration are set from the judge, and it is learned too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.fitted import Fitted, copied
from spidertensor.faults import EntryError
from spidertensor.method import Bags, Batch, Update
from spidertensor.scaling import Scaling
from spidertensor.spider.bags import concatenated
from spidertensor.spider.committee import CommitteeState
from spidertensor.spider.judge import Verdict, calibrated, judged
from spidertensor.spider.passes import History, Model, Passes, entries_at
from spidertensor.spider.stacking import update_of_members

FEWEST = 1_000  # entries, below which there is no judge
MOST_PASSES = 20
JUDGE_SHARE, MOST_JUDGED = 0.05, 50_000
ENOUGH_JUDGED, LARGEST_SHARE = 500, 0.2  # a smaller history gives a larger share
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

    def check_sorted(self, when: NDArray[Any], time: str) -> None:
        """EntryError if entries with these times would not come in the order of time."""
        before = self._time[-1][-1:] if self._time else when[:1]
        all_times = np.concatenate([before, when])
        latest, order = 0, []
        for row in range(1, len(all_times)):
            if all_times[row] < all_times[latest]:
                order.append(row - 1)
            else:
                latest = row
        if order:
            reason = "earlier than a row before, and Recent keeps the last nodes in the order of the rows"
            remedy = "sort the rows by time"
            raise EntryError(reason, order[0], column=time, kind="time", remedy=remedy, rows=tuple(order))

    def values(self) -> NDArray[np.float64]:
        self._value = [np.concatenate(self._value)]
        return self._value[0]

    def entries(self, scaling: Scaling) -> Batch:
        """All of them, with scaled values."""
        bags = concatenated(self._bags) if self._bags else None
        return Batch(np.concatenate(self._index), scaling.scaled(self.values()), bags)  # pyright: ignore[reportArgumentType]

    @property
    def has_time(self) -> bool:
        return bool(self._time)

    def are_few(self, passes: int | str) -> bool:
        """Whether there are too few entries for a judge, so that they are learned once, as they came."""
        return passes == "auto" and self.n_entries < FEWEST and not self._time

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


class _Best(NamedTuple):
    number: int
    log_score: float
    state: CommitteeState


class Learned(NamedTuple):
    """Entries learned in the first pass, and what was predicted for them just before."""

    rows: NDArray[np.int64]  # among the collected entries
    nodes: NDArray[np.int64]  # (n, K)
    update: Update


def learn(
    fitted: Fitted,
    collected: Collected,
    passes: int | str,
    folder: str | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Fitted, Learned | Pass | None]]:
    """Learn a history. After each step yields the model, and what has been done: a block of the first pass,
    a block of a later one (None), or a whole pass, in the words of its judge.

    folder, stop: see LearnsHistory._learn_collected
    """
    seed, auto = fitted.params["random_state"], passes == "auto"
    entries = collected.entries(fitted.scaling)
    order = np.arange(len(entries.value)) if collected.are_few(passes) else collected.order(seed)
    share = max(JUDGE_SHARE, min(LARGEST_SHARE, ENOUGH_JUDGED / max(len(order), 1)))
    n_judged = 0 if passes == 1 or len(order) < FEWEST else min(int(share * len(order)), MOST_JUDGED)
    most = (MOST_PASSES if n_judged else 1) if auto else int(passes)
    order, held = np.split(order, [len(order) - n_judged])
    judge = entries_at(entries, held)
    models = _models(fitted, once=most == 1)
    most = 1 if all(model.once for model in models) else most
    walk = Passes(models, History(entries, order, fitted.params["batch_size"]), seed, folder)
    found, best = [], None
    why = f"{most} passes are the most" if auto else f"passes is {passes}"
    for number in range(1, most + 1):
        at = 0
        for members, updates in walk.one_more(fitted.state.members):
            fitted = fitted._replace(state=fitted.state._replace(members=tuple(members)))
            step = None
            if number == 1:
                rows = order[at : at + len(updates[0].mean)]
                at += len(rows)
                step = _learned(fitted, entries, rows, updates)
            yield fitted, step
            if best is not None and stop():
                why = "stopped"
                break
        if why == "stopped":
            break
        if not n_judged:
            continue
        verdict = _verdict(fitted, judge)
        found.append(Pass(number, verdict.log_score, _error(fitted, judge, verdict)))
        if best is None or verdict.log_score > best.log_score + GAIN:
            best = _Best(number, verdict.log_score, copied(fitted.state))
        yield fitted, found[-1]
        if auto and number - best.number == PATIENCE:
            why = f"no better for {PATIENCE} passes"
            break
    if best is not None:
        record = {
            "errors": [each.error for each in found],
            "chosen": best.number,
            "judged": n_judged,
            "judge": "latest" if collected.has_time else "random",
            "stopped": why,
        }
        fitted, update = _concluded(fitted._replace(state=best.state, history=record), judge)
        yield fitted, Learned(held, judge.index, update)


def _models(fitted: Fitted, *, once: bool) -> list[Model]:
    return [
        Model(network, prior, method, once=once or (fitted.params | own)["memory"] is not None)
        for own, network, prior, method in fitted.model.members
    ]


def _learned(fitted: Fitted, entries: Batch, rows: NDArray[np.int64], updates: list[Update]) -> Learned:
    """What the committee says of entries that all members have just learned for the first time."""
    parts = np.array([update[:4] for update in updates])
    clip, rejected = fitted.params.get("clip"), sum(update.rejected for update in updates)
    update = update_of_members(
        fitted.state,
        fitted.model.likelihood,
        np.inf if clip is None else clip,
        entries.value[rows],
        parts,
        rejected,
    )
    return Learned(rows, entries.index[rows].astype(np.int64), update)


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


def _concluded(fitted: Fitted, judge: Batch) -> tuple[Fitted, Update]:
    """The model after the judge has had its say, and was learned too."""
    verdict, likelihood = _verdict(fitted, judge), fitted.model.likelihood
    for member, factor in zip(fitted.state.members, verdict.noise, strict=True):
        member.posterior.noise.rate[()] *= factor
    state, update = fitted.model.method.update(fitted.state, judge)
    state.weights[:] = verdict.weights
    if state.residuals:
        state.residuals[0][:] = calibrated(likelihood, verdict.mixture, judge.value).mass
    return fitted._replace(state=state), update
