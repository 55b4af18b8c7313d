"""SpiderClassifier: binary labels, and events."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_ndtr, ndtr

from spidertensor.estimator import event_rule, inputs, labels
from spidertensor.estimator.base import PAPER, Spider
from spidertensor.estimator.eviction import Numbered
from spidertensor.estimator.inputs import refuse
from spidertensor.estimator.labels import Classes
from spidertensor.estimator.old_names import takes_old_names
from spidertensor.estimator.one_entry import EntryProbability
from spidertensor.estimator.scikit_learn import ScikitLearnClassifier
from spidertensor.estimator.threads import locked
from spidertensor.faults import EntryError
from spidertensor.method import Update
from spidertensor.spider.events import Rule
from spidertensor.spider.likelihoods import PROBIT
from spidertensor.spider.popularity import draw_shares


@takes_old_names
@dataclass(eq=False, repr=False, kw_only=True)
class SpiderClassifier(ScikitLearnClassifier, Spider):
    """Streaming Bayesian deep tensor factorization of binary labels, with a probit likelihood.

    The labels are two bools, integers or strings; `classes_` has them sorted, as in scikit-learn. The first
    call that learns determines them, so it must contain both or pass `classes`, unless they are 0 and 1 or
    False and True. After that, any other label raises an EntryError.

    Parameters are those of SpiderRegressor, except `likelihood`, `scaling` and, in `inference`, all but
    `curvature`. With `negatives` it learns from events alone (clicks, purchases, plays): there is no y, and
    entries may repeat.

    negatives:       number of negatives to learn after each event: the event with another node in one mode
    negatives_over:  name or number of that mode, such as the product; with a list, the modes take turns
    negatives_power: draw a node with probability proportional to its number of events to this power;
                     0: uniformly
    remember_seen:   do not recommend a node again to those it was seen with. True with two modes, else the
                     name or number of the mode recommended to, such as the user. Takes 8 bytes per pair.
                     For labels see SpiderRegressor
    """

    negatives: int | None = None
    negatives_over: str | int | tuple[str | int, ...] | None = None
    negatives_power: float = 0.0
    remember_seen: bool | str | int | tuple[str | int, str | int] = False

    _likelihood = PROBIT
    _stored_as = "SpiderClassifier"

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """An estimator with the paper's settings; see SpiderRegressor.paper for the one exception."""
        return cls(**(PAPER | changes))

    @locked
    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        classes: Any = None,
        *,
        sample_weight: Any = None,
        forecast: Any = None,
    ) -> Self:
        """Learn more entries, in order. Events need no y.

        classes:  both labels, for the first call. The second is the positive label, by whose probability
                  `recommend` ranks; by default it is the second in sorted order
        sample_weight: see `fit`; negatives have the weight of their event
        forecast: see SpiderRegressor.learn
        """
        self._advance(X, y, classes, forecast=forecast, sample_weight=sample_weight)
        return self

    @locked
    def learn(
        self,
        X: Any,
        y: Any = None,
        classes: Any = None,
        *,
        sample_weight: Any = None,
        forecast: Any = None,
    ) -> Update:
        """Like partial_fit, but return the prediction made for each entry just before it was learned.

        Mean and variance are those of the latent f, whose probit is the probability of the positive label.
        The log evidence of an event includes its negatives.
        """
        return self._advance(X, y, classes, forecast=forecast, sample_weight=sample_weight)[0]

    @locked
    def _learn_numbered(
        self, X: Any, y: Any = None, classes: Any = None, *, forecast: Any = None
    ) -> Numbered:
        """Like learn, but also return the (n, K) node numbers of the entries: see Spider._learn_numbered."""
        return self._advance(X, y, classes, forecast=forecast)

    @property
    def learns_events(self) -> bool:
        """Whether the entries are events, which have no values."""
        if self._learned is None:
            return self.negatives is not None
        return self._learned.model.rule is not None

    def _rule_of(self, names: Sequence[str]) -> Rule | None:
        """How negatives are drawn, for modes with these names; None if the entries are not events."""
        return event_rule.rule_of(self._resolved(self._flat_params(), names, len(names)))

    @property
    @locked
    def classes_(self) -> NDArray[Any]:
        """Both labels, sorted."""
        return np.array(labels.in_order(self._classes()))

    @property
    @locked
    def positive_(self) -> labels.Label:
        """The label by whose probability `recommend` ranks."""
        return self._classes()[1]

    @locked
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """(n, 2) probability of each label at each row of X, in the order of classes_."""
        mean, var, _ = self._predict(X)
        t = mean / np.sqrt(1 + var)
        sides = (-t, t) if labels.in_order(self._classes())[1] == self.positive_ else (t, -t)
        return np.column_stack([ndtr(side) for side in sides])

    @locked
    def predict(self, X: Any) -> NDArray[Any]:
        """The more probable label at each row of X."""
        return self.classes_[(self.predict_proba(X)[:, 1] > 0.5).astype(np.intp)]

    @locked
    def predict_rate(self, X: Any) -> NDArray[np.float64]:
        """Share of events that have the row's node in mode `negatives_over`, given its nodes in other modes.

        For events, predict_proba separates events from drawn negatives: it depends on how many are drawn, so
        it is good for ranking only. This corrects for that (mathematics.md section 16). With negatives_power,
        an unseen id has rate 0.

        The rates of all nodes sum to about 1 for a well-known user. For an unseen one they may sum to more:
        uncertainty moves each probability towards 1/2. For shares, divide them by their sum.
        """
        fitted = self._fitted()
        rule, draws = fitted.model.rule, fitted.state.draws
        if rule is None or not draws or len(rule.over) != 1:
            raise ValueError("a rate needs a model of events whose negatives are drawn over one mode")
        mean, var, _ = self._predict(X)
        t, mode = mean / np.sqrt(1 + var), rule.over[0]
        share = np.full(len(t), 1 / max(int(draws.seen[0]) - 1, 1))  # of each node among the draws
        for popularity in draws.popularity:
            share = draw_shares(popularity.times[: int(draws.seen[0])], rule.power)[self._index(X)[:, mode]]
        with np.errstate(divide="ignore"):
            return expit(log_ndtr(t) - log_ndtr(-t) + np.log(rule.negatives * share))

    def _classes(self) -> Classes:
        return self._fitted().classes or labels.ZERO_ONE

    def _values(self, y: Any, n: int, classes: Any) -> tuple[NDArray[np.float64], Classes]:
        if self.learns_events:
            if classes is not None:
                raise EntryError(
                    "events have no labels, so no classes", kind="classes", remedy="leave them out"
                )
            return _ones(y, n), labels.ZERO_ONE
        known = None if self._learned is None else self._classes()
        return labels.encoded(y, n, labels.agreed(known, classes))

    @locked
    def predict_one(self, ids: Any) -> EntryProbability:
        """The more probable label and the probability of the positive one, for one entry.

        Same as `predict` and `predict_proba`, but several times faster. Before the first entry it answers
        from the prior, with None as the label. ids: see learn_one
        """
        mean, var, _ = self._predict_one(ids)
        t = mean / math.sqrt(1 + var)
        if self._learned is None:  # which labels there are is not known yet
            return EntryProbability(None, float(ndtr(t)))
        both = labels.in_order(self._classes())
        second_probability = float(ndtr(t if both[1] == self.positive_ else -t))
        return EntryProbability(both[second_probability > 0.5], float(ndtr(t)))


def _ones(y: Any, n: int) -> NDArray[np.float64]:
    """The values of n events, all 1; EntryError if y has anything else."""
    value = np.ones(n) if y is None else inputs.values(y, n, PROBIT)
    refuse(
        value,
        value != 1,
        "is not an event: this model learns only what happened, and draws negatives by itself",
        kind="value",
        remedy="leave it out, or learn 0 and 1 without negatives",
    )
    return value
