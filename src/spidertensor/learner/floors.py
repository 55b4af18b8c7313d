"""Floors (running mean, online biases) that learn the same entries as a model, to compare its error with.

A floor knows a node by its row in the model, and rows change nodes: eviction gives a row to another node
(eviction.py), and forgetting moves later rows up. This module keeps the floors in step with both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.eviction import Numbered, Segment, in_segments
from spidertensor.estimator.loading import Estimator
from spidertensor.evaluation import floors
from spidertensor.evaluation.floors import BiasesState, MeanState
from spidertensor.method import Batch, Update
from spidertensor.spider.events import Around, Rule, around, restart, start
from spidertensor.spider.likelihoods import Likelihood

COVERAGE = 0.9  # of the intervals whose hits are counted
FLOORS = {"mean": "the running mean", "biases": "online biases"}  # key -> name in a sentence


class FloorsState(NamedTuple):
    """model: (1 + n_modes,) number of entries, and of nodes per mode, of the model when this was saved"""

    model: NDArray[np.int64]
    mean: MeanState | Around
    biases: BiasesState | Around


class RunningFloors:
    """The floors, and the losses of model and floors; each entry is predicted before it is learned.

    The loss is the squared error if the metric of the likelihood is the RMSE, else -log evidence, which for
    binary values is the log loss. For events it is the mean over the event and its negatives. Floors draw
    their own negatives: the mean is then a constant rate, and the biases are popularity.
    """

    def __init__(
        self,
        likelihood: Likelihood,
        n_modes: int,
        rule: Rule | None = None,
        with_ids: Sequence[int] | None = None,
    ) -> None:
        """Floors learn from ids only.

        rule:     how negatives are drawn, if the model learns events
        with_ids: numbers of the modes that have ids; None for all
        """
        self._modes = list(range(n_modes) if with_ids is None else with_ids)
        if rule is not None:
            rule = rule._replace(over=tuple(self._modes.index(mode) for mode in rule.over))
        self.by_squares = likelihood.metric == "rmse"
        likelihood = self._likelihood = likelihood.of_floors
        self._rule, self._per_event = rule, 1 if rule is None else 1 + rule.negatives
        both = floors.mean(likelihood), floors.biases(len(self._modes), likelihood)
        self._mean, self._biases = both if rule is None else (around(each, rule) for each in both)
        self._of_mean, self._of_biases = self._mean.init(0), self._biases.init(0)

    def learn(
        self,
        value: NDArray[np.float64],
        learned: Numbered,
        first: float,
        likelihood: Likelihood | None = None,
    ) -> NDArray[np.float64]:
        """Learn entries that the model has learned; returns the (1 + floors, n) losses of model and floors.

        first:      what the floors predict before their very first entry
        likelihood: the model's, with what it has learned about it; None: as at the start
        """
        index = np.ascontiguousarray(learned.nodes[:, self._modes])
        batch, is_new = Batch(index, value), not _inner(self._of_biases).counts.entries
        self._of_mean, of_mean = self._mean.update(self._of_mean, batch)
        if learned.parts:
            # rows of attribute tables follow those of the modes
            parts = [
                Segment(start, [reused[mode] for mode in self._modes]) for start, reused in learned.parts
            ]
            self._of_biases, of_biases = in_segments(
                self._biases.update, self._start_afresh, self._of_biases, batch, parts
            )
        else:
            self._of_biases, of_biases = self._biases.update(self._of_biases, batch)
        if is_new and len(value):
            of_mean.mean[0] = of_biases.mean[0] = first
        of_model = self._losses(value, learned.update, likelihood)
        return np.array([of_model, *(self._losses(value, each) for each in (of_mean, of_biases))])

    def forecast(self, nodes: NDArray[np.int64], first: float) -> NDArray[np.float64]:
        """(n, floors, 3) mean, var and noise of what the floors predict now.

        nodes: (n, K) rows of the model, -1 for unseen ids; first: see learn
        """
        index = np.ascontiguousarray(nodes[:, self._modes])
        made = [self._mean.predict(self._of_mean, index), self._biases.predict(self._of_biases, index)]
        if not _inner(self._of_biases).counts.entries:
            made = [each._replace(mean=np.full(len(index), first)) for each in made]
        return np.stack(made).transpose(2, 0, 1)

    def forecast_losses(
        self, value: NDArray[np.float64], forecast: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """(floors, n) losses of such a forecast."""
        if self.by_squares:
            mean, var, _ = forecast.transpose(2, 1, 0)
            return (value - self._likelihood.expected(mean, var)) ** 2
        return -self._likelihood.log_evidence(value, *forecast.transpose(2, 1, 0))

    def _losses(
        self, value: NDArray[np.float64], update: Update, likelihood: Likelihood | None = None
    ) -> NDArray[np.float64]:
        if not self.by_squares:
            return -update.log_evidence / self._per_event
        return (value - (likelihood or self._likelihood).expected(*update[:3])) ** 2

    def state(self, model: Estimator) -> FloorsState:
        """The state for `restore`. model: the estimator that the floors accompany"""
        counts = np.array([model.n_entries_, *model.n_nodes_], np.int64)
        return FloorsState(counts, self._of_mean, self._of_biases)

    def restore(self, state: FloorsState, model: Estimator) -> None:
        """Restore the floors; their nodes are dropped if the model's rows may hold other nodes now.

        Forgetting removes nodes and learning adds entries, so equal counts mean that neither has happened.
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
    """The state of the floor itself, without the wrapper for events."""
    return state.state if isinstance(state, Around) else state


def in_intervals(update: Update) -> NDArray[np.bool_]:
    """(2, n) whether each entry had a calibrated interval, and whether its value was inside."""
    if update.below is None:
        return np.zeros((2, len(update.mean)), bool)
    # NaN: the entry was refused
    return np.array([np.isfinite(update.below), np.abs(update.below - 0.5) <= COVERAGE / 2])
