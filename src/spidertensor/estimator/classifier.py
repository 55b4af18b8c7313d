"""SpiderClassifier: values of two kinds."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from sklearn.base import ClassifierMixin

from spidertensor.estimator import labels
from spidertensor.estimator.base import PAPER, Spider
from spidertensor.estimator.labels import Classes
from spidertensor.estimator.one_entry import EntryProbability
from spidertensor.estimator.threads import locked
from spidertensor.estimator.unweighted import learns
from spidertensor.method import Update
from spidertensor.spider.likelihoods import PROBIT


class SpiderClassifier(ClassifierMixin, Spider):
    """Streaming Bayesian deep tensor factorization of values of two kinds, with a probit likelihood.

    Labels are 0 and 1, or any two bools, whole numbers or texts, as in scikit-learn: `classes_` has them
    sorted. The first call that learns decides which they are, so it must have both, or name both with
    `classes`, unless they are 0 and 1 or False and True. Any other label is an EntryError from then on.

    Parameters as for SpiderRegressor; noise_memory and scaling do not exist here.
    """

    _likelihood = PROBIT
    _stored_as = "SpiderClassifier"

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The paper's settings, except for how the prior sites start (see SpiderRegressor.paper)."""
        return cls(**(PAPER | changes))

    @learns
    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn the entries, in their order, on top of what is known.

        classes: both labels, for the first call. The second is the positive one, whose probability
                 `recommend` ranks by; by default that is the last in sorted order
        """
        self._advance(X, y, classes)
        return self

    @learns
    def learn(self, X: Any, y: Any, classes: Any = None) -> Update:
        """Like partial_fit, but returns what was predicted for each entry just before it was learned: mean
        and variance of the f behind the probability of the positive label."""
        return self._advance(X, y, classes)[0]

    @learns
    def learn_numbered(self, X: Any, y: Any, classes: Any = None) -> tuple[Update, NDArray[np.int64]]:
        """Like learn, and the (n, K) nodes of the entries, by their rows in `factors_`."""
        return self._advance(X, y, classes)

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

    def _classes(self) -> Classes:
        return self._fitted().classes or labels.ZERO_ONE

    def _values(self, y: Any, n: int, classes: Any) -> tuple[NDArray[np.float64], Classes]:
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

    def __sklearn_tags__(self):
        tags: Any = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.poor_score = True  # scikit-learn's tests predict ids that were never learned
        return tags
