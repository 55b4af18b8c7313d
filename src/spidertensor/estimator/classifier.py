"""SpiderClassifier: values of two kinds."""

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
from spidertensor.estimator.unweighted import learns
from spidertensor.faults import EntryError
from spidertensor.method import Update
from spidertensor.spider.events import Rule
from spidertensor.spider.likelihoods import PROBIT
from spidertensor.spider.popularity import draw_shares


@takes_old_names
@dataclass(eq=False, repr=False, kw_only=True)
class SpiderClassifier(ScikitLearnClassifier, Spider):
    """Streaming Bayesian deep tensor factorization of values of two kinds, with a probit likelihood.

    Labels are 0 and 1, or any two bools, whole numbers or texts, as in scikit-learn: `classes_` has them
    sorted. The first call that learns decides which they are, so it must have both, or name both with
    `classes`, unless they are 0 and 1 or False and True. Any other label is an EntryError from then on.

    Parameters as for SpiderRegressor, but for those of continuous values: of `inference`, it has `curvature`
    only. With `negatives` it learns from
    events alone: clicks, purchases, plays. There is no y, and entries may repeat.

    negatives:       after each event learn so many that did not happen: the event with another node in a mode
    negatives_over:  that mode, such as the product, by its name or number; a list: they take turns
    negatives_power: draw a node in proportion to how often it was in events, to this power; 0: all alike
    remember_seen:   remember which nodes of that mode were seen with which of another, and do not recommend
                     them again: True with two modes, else the name or number of the other one, such as the
                     user. It takes 8 bytes a pair
    """

    negatives: int | None = None
    negatives_over: str | int | tuple[str | int, ...] | None = None
    negatives_power: float = 0.0
    remember_seen: bool | str | int = False

    _likelihood = PROBIT
    _stored_as = "SpiderClassifier"

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The paper's settings, except for how the prior sites start (see SpiderRegressor.paper)."""
        return cls(**(PAPER | changes))

    @learns
    def partial_fit(self, X: Any, y: Any = None, classes: Any = None) -> Self:
        """Learn the entries, in their order, on top of what is known. Events have no y.

        classes: both labels, for the first call. The second is the positive one, whose probability
                 `recommend` ranks by; by default that is the last in sorted order
        """
        self._advance(X, y, classes)
        return self

    @learns
    def learn(self, X: Any, y: Any = None, classes: Any = None) -> Update:
        """Like partial_fit, but returns what was predicted for each entry just before it was learned: mean
        and variance of the f behind the probability of the positive label. The log evidence of an event is
        that of it and its negatives."""
        return self._advance(X, y, classes)[0]

    @learns
    def _learn_numbered(self, X: Any, y: Any = None, classes: Any = None) -> Numbered:
        """Like learn, and the (n, K) nodes of the entries: as Spider._learn_numbered."""
        return self._advance(X, y, classes)

    @property
    def learns_events(self) -> bool:
        """Whether entries are events, which have no values."""
        if self._learned is None:
            return self.negatives is not None
        return self._learned.model.rule is not None

    def _rule_of(self, names: Sequence[str]) -> Rule | None:
        """How negatives are drawn, for modes of these names; None without events."""
        return event_rule.rule_of(event_rule.resolved(self._flat_params(), names, len(names)))

    @property
    @locked
    def classes_(self) -> NDArray[Any]:
        """Both labels, sorted."""
        return np.array(labels.in_order(self._classes()))

    @property
    @locked
    def positive_(self) -> labels.Label:
        """The label whose probability `recommend` ranks by."""
        return self._classes()[1]

    @locked
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities of both labels at each row of X, in the order of classes_."""
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
        """Of all events with the other nodes of a row of X, the share that has its node in `negatives_over`.

        predict_proba of a model of events tells an event from one that was drawn, so it depends on how many
        are drawn, and ranks only. This corrects it (mathematics.md section 16). With a power, an id
        that was never learned has the rate 0.
        """
        fitted = self._fitted()
        rule, draws = fitted.model.rule, fitted.state.draws
        if rule is None or not draws or len(rule.over) != 1:
            raise ValueError("a rate needs a model of events whose negatives are drawn over one mode")
        mean, var, _ = self._predict(X)
        t, mode = mean / np.sqrt(1 + var), rule.over[0]
        share = np.full(len(t), 1 / max(int(draws.seen[0]) - 1, 1))  # of the draws
        for of in draws.popularity:
            share = draw_shares(of.times[: int(draws.seen[0])], rule.power)[self._index(X)[:, mode]]
        with np.errstate(divide="ignore"):
            return expit(log_ndtr(t) - log_ndtr(-t) + np.log(rule.negatives * share))

    def _resolved(self, params: dict[str, Any], names: Sequence[str] | None, n_modes: int) -> dict[str, Any]:
        return event_rule.resolved(params, names, n_modes)

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
        """The more probable label and the probability of the positive one, for one entry: what `predict` and
        `predict_proba` say, several times as fast. ids: see learn_one."""
        mean, var, _ = self._predict_one(ids)
        t, both = mean / math.sqrt(1 + var), labels.in_order(self._classes())
        of_second = float(ndtr(t if both[1] == self.positive_ else -t))
        return EntryProbability(both[of_second > 0.5], float(ndtr(t)))


def _ones(y: Any, n: int) -> NDArray[np.float64]:
    """The values of events, which need not be given."""
    value = np.ones(n) if y is None else inputs.values(y, n, PROBIT)
    refuse(
        value,
        value != 1,
        "is not an event: this model learns what happened, and draws itself what did not",
        kind="value",
        remedy="leave it out, or learn 0 and 1 without negatives",
    )
    return value
