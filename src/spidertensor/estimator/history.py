"""`fit`: learn all of a history, as often as a judge finds it worth, nothing counted twice.

Entries are collected first, with their ids already numbered (collected.py). A slice of them, the judge, is
held back; the others are learned in passes (spider/passes.py) until the judge is not predicted better any
more. Then the weights, the noise and the calibration are set from the judge, and it is learned too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.arranged import Arranged
from spidertensor.estimator.fitted import Fitted, attributes_of, copied, remember
from spidertensor.method import Batch, Update
from spidertensor.spider.calibration import RestScores
from spidertensor.spider.committee import CommitteeState
from spidertensor.spider.event_passes import EventHistory, Negatives
from spidertensor.spider.events import made, update_of_events
from spidertensor.spider.judge import Verdict, calibrated, judged, judged_events
from spidertensor.spider.parts import History
from spidertensor.spider.passes import Passes
from spidertensor.spider.stacking import update_of_members
from spidertensor.spider.visitor import MemberModel

FEWEST = 1_000  # entries, below which there is no judge
MOST_PASSES = 20
JUDGE_SHARE, MOST_JUDGED = 0.05, 50_000
ENOUGH_JUDGED, LARGEST_SHARE = 500, 0.2  # a smaller history gives a larger share
GAIN = 2e-4  # of the mean log score of an entry or event; less does not count as better
PATIENCE = 4  # passes without a gain; pairs need some before they show


class Pass(NamedTuple):
    """One pass, in the words of its judge."""

    number: int
    log_score: float
    error: float  # root mean squared error in user units; for other values than numbers, minus the log score
    sites: str  # what becomes of what entries said: Passes.how


class _Best(NamedTuple):
    number: int
    log_score: float
    state: CommitteeState


class LearnedPart(NamedTuple):
    """Entries learned in the first pass, and what was predicted for them just before."""

    value: NDArray[np.float64]  # as collected
    nodes: NDArray[np.int64]  # (n, K)
    update: Update


def learn(
    fitted: Fitted,
    entries: Arranged,
    passes: int | str,
    judge_is: str,
    folder: str | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Fitted, LearnedPart | Pass | None]]:
    """Learn a history. After each step yields the model, and what has been done: a block of the first pass,
    a block of a later one (None), or a whole pass, in the words of its judge.

    judge_is:     which entries come last
    folder:       for files of what does not fit into memory
    stop:         see LearnsHistory._learn_collected
    """
    seed, auto, n = fitted.params["random_state"], passes == "auto", entries.n_entries
    n_judged = held_back(passes, n)
    most = (MOST_PASSES if n_judged else 1) if auto else int(passes)
    judge = entries.batch(n - n_judged, n)
    models = _models(fitted, once=most == 1)
    most = 1 if all(model.once for model in models) else most
    walk = Passes(models, _history(fitted, entries, n - n_judged), seed, folder)
    found, best, asked = [], None, judge
    why = f"{most} passes are the most" if auto else f"passes is {passes}"
    for number in range(1, most + 1):
        at = 0
        for members, updates, values in walk.one_more(fitted.state.members):
            fitted = fitted._replace(state=fitted.state._replace(members=tuple(members)))
            step = None
            if number == 1:
                update = _reported(fitted, values, updates)
                first, at = at, at + len(update.mean)
                step = LearnedPart(entries.raw(first, at).value, entries.batch(first, at).index, update)
                remember(fitted, step.nodes)
            yield fitted, step
            if best is not None and stop():
                why = "stopped"
                break
        if why == "stopped":
            break
        if not n_judged:
            continue
        if number == 1:
            asked = _asked(fitted, judge)
        verdict = _verdict(fitted, asked)
        found.append(Pass(number, verdict.log_score, _error(fitted, asked, verdict), walk.how()))
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
            "judge": judge_is,
            "stopped": why,
            "sites": walk.how(),
        }
        fitted, update = _concluded(fitted._replace(state=best.state, history=record), judge, asked)
        yield fitted, LearnedPart(entries.raw(n - n_judged, n).value, judge.index, update)


def held_back(passes: int | str, n_entries: int) -> int:
    """How many entries the judge has: the last ones."""
    share = max(JUDGE_SHARE, min(LARGEST_SHARE, ENOUGH_JUDGED / max(n_entries, 1)))
    return 0 if passes == 1 or n_entries < FEWEST else min(int(share * n_entries), MOST_JUDGED)


def _models(fitted: Fitted, *, once: bool) -> list[MemberModel]:
    return [
        MemberModel(
            network,
            prior,
            method,
            once=once or (fitted.params | own)["memory"] is not None,
            level_var=fitted.model.likelihood.level_var,
        )
        for own, network, prior, method in fitted.model.members
    ]


def _history(fitted: Fitted, entries: Arranged, n: int) -> History:
    """The first n entries."""
    rule, draws = fitted.model.rule, fitted.state.draws
    of = entries.batch, n, fitted.params["batch_size"], len(fitted.model.members[0].network.table_modes)
    if rule is None or not draws:
        return History(*of)
    if fitted.columns is not None:
        fitted.columns.forget_changes()  # drawn nodes have the attributes of the end of the history
    attributes = attributes_of(fitted.columns).of_events
    return EventHistory(*of, Negatives(rule, draws, _key(fitted), attributes))


def _key(fitted: Fitted) -> int:
    return int(fitted.state.members[0].seed)


def _reported(fitted: Fitted, values: NDArray[np.float64], updates: list[Update]) -> Update:
    """What the committee says of entries that all members have just learned for the first time."""
    parts = np.array([update[:4] for update in updates])
    rejected = sum(update.rejected for update in updates)
    update = update_of_members(
        fitted.state, fitted.model.likelihood, fitted.model.method.mixing, values, parts, rejected
    )
    return update if fitted.model.rule is None else update_of_events(update, values)


def _asked(fitted: Fitted, judge: Batch) -> Batch:
    """What members are asked to predict after each pass. Events have the negatives with which they are
    learned in the end."""
    rule, draws = fitted.model.rule, fitted.state.draws
    if rule is None or not draws:
        return judge
    return made(draws, rule, _key(fitted), judge.index).like(judge, attributes_of(fitted.columns).of_events)


def _verdict(fitted: Fitted, judge: Batch) -> Verdict:
    predictions = [
        member.method.predict(state, judge.index, judge.bags)
        for member, state in zip(fitted.model.members, fitted.state.members, strict=True)
    ]
    by = judged if fitted.model.rule is None else judged_events
    return by(fitted.likelihood, predictions, judge.value)


def _error(fitted: Fitted, judge: Batch, verdict: Verdict) -> float:
    likelihood = fitted.likelihood
    if fitted.model.rule is not None:  # the log loss of events and negatives, as the score of the first pass
        return -float(likelihood.log_evidence(judge.value, *verdict.mixture).mean())
    if likelihood.metric != "rmse":
        return -verdict.log_score
    expected = likelihood.expected(*verdict.mixture)
    return float(np.sqrt(np.mean((judge.value - expected) ** 2))) * fitted.scaling.scale


def _concluded(fitted: Fitted, judge: Batch, asked: Batch) -> tuple[Fitted, Update]:
    """The model after the judge has had its say, and was learned too. asked: see `_asked`"""
    verdict, likelihood = _verdict(fitted, asked), fitted.likelihood
    for member, factor in zip(fitted.state.members, verdict.noise, strict=True):
        member.posterior.noise.rate[()] *= factor
    state, update = fitted.model.method.update(fitted.state, judge)
    remember(fitted, judge.index)
    state.weights[:] = verdict.weights
    if state.residuals:
        mass = calibrated(likelihood, verdict.mixture, asked.value).mass
        state.residuals[0][:] = mass
        scored = np.array(len(asked.value)), state.counts.entries.copy()
        state = state._replace(rest=RestScores(mass, *scored))
    return fitted._replace(state=state), update
