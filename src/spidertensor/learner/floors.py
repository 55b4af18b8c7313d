"""The floors learn beside a model, from the same entries, so that its running error can be judged by theirs.

A floor knows a node by its row in the model. Rows change
their nodes: a node that is evicted leaves its row to another (eviction.py), and behind one that was forgotten
all rows move up. So that no floor takes the bias of one node for that of another, all of it is done here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.eviction import Numbered, in_segments
from spidertensor.estimator.loading import Estimator
from spidertensor.evaluation import floors
from spidertensor.evaluation.floors import BiasesState, MeanState
from spidertensor.method import Batch, Update
from spidertensor.spider.events import Around, Rule, around, restart, start
from spidertensor.spider.likelihoods import Likelihood

COVERAGE = 0.9  # of the intervals that are counted
FLOORS = {"mean": "the running mean", "biases": "online biases"}  # as they are called in a sentence


class FloorsState(NamedTuple):
    """model: (1 + K,) entries and nodes of the model at that time"""

    model: NDArray[np.int64]
    mean: MeanState | Around
    biases: BiasesState | Around


class RunningFloors:
    """The floors, and the losses of all entries; each entry is scored by what was predicted before it was
    learned.

    The loss is the squared error where the RMSE is the metric of the likelihood, else -log evidence, which
    for binary values is the log loss. Of events it is the mean over the event and its negatives, and the
    floors learn negatives of their own: the mean is then a constant rate, and biases are popularity.
    """

    def __init__(self, likelihood: Likelihood, n_modes: int, rule: Rule | None = None) -> None:
        """rule: of a model of events"""
        self._likelihood, self.by_squares = likelihood, likelihood.metric == "rmse"
        self._rule, self._per_event = rule, 1 if rule is None else 1 + rule.negatives
        both = floors.mean(likelihood), floors.biases(n_modes, likelihood)
        self._mean, self._biases = both if rule is None else (around(each, rule) for each in both)
        self._of_mean, self._of_biases = self._mean.init(0), self._biases.init(0)

    def learn(self, value: NDArray[np.float64], learned: Numbered, first: float) -> NDArray[np.float64]:
        """(1 + floors, n) the losses of the model and of the floors at entries that the model has learned.

        first: what the floors predict before their first entry, when they know nothing of the values
        """
        batch, is_new = Batch(learned.nodes, value), not _inner(self._of_biases).counts.entries
        self._of_mean, of_mean = self._mean.update(self._of_mean, batch)
        if learned.parts:
            self._of_biases, of_biases = in_segments(
                self._biases.update, self._start_afresh, self._of_biases, batch, learned.parts
            )
        else:
            self._of_biases, of_biases = self._biases.update(self._of_biases, batch)
        if is_new and len(value):
            of_mean.mean[0] = of_biases.mean[0] = first
        return np.array([self._losses(value, each) for each in (learned.update, of_mean, of_biases)])

    def _losses(self, value: NDArray[np.float64], update: Update) -> NDArray[np.float64]:
        if not self.by_squares:
            return -update.log_evidence / self._per_event
        return (value - self._likelihood.expected(update.mean, update.var)) ** 2

    def state(self, model: Estimator) -> FloorsState:
        """What `restore` needs. model: the estimator that they run beside"""
        counts = np.array([model.n_entries_, *model.n_nodes_], np.int64)
        return FloorsState(counts, self._of_mean, self._of_biases)

    def restore(self, state: FloorsState, model: Estimator) -> None:
        """As they were; but without their nodes if the rows of the model may have others now.

        Forgetting removes nodes and learning adds entries: if the model has as many of both as it had,
        neither has happened.
        """
        self._of_mean, same = state.mean, np.array_equal(state.model, self.state(model).model)
        self._of_biases = state.biases if same else self._without_nodes(state.biases)

    def _start_afresh(self, state: Any, reused: list[list[int]]) -> None:
        floors.reset_nodes(_inner(state), reused)
        if self._rule is not None:
            for mode, rows in enumerate(reused):
                restart(state.draws, self._rule, mode, np.array(rows, np.int64))

    def _without_nodes(self, state: Any) -> Any:
        if self._rule is None:
            return floors.without_nodes(state)
        return state._replace(state=floors.without_nodes(state.state), draws=start(self._rule))


def _inner(state: Any) -> Any:
    """The state of a floor, which may be one that learns events."""
    return state.state if isinstance(state, Around) else state


def in_intervals(update: Update) -> NDArray[np.bool_]:
    """(2, n) whether each entry had a calibrated interval, and whether it was in it."""
    if update.below is None:
        return np.zeros((2, len(update.mean)), bool)
    # NaN: the entry was refused
    return np.array([np.isfinite(update.below), np.abs(update.below - 0.5) <= COVERAGE / 2])
