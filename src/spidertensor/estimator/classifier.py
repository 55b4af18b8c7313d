"""SpiderClassifier: binary values."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from sklearn.base import ClassifierMixin

from spidertensor.estimator.base import PAPER, Spider
from spidertensor.estimator.threads import locked
from spidertensor.spider.likelihoods import PROBIT


class SpiderClassifier(ClassifierMixin, Spider):
    """Streaming Bayesian deep tensor factorization of binary values, 0 or 1, with a probit likelihood.

    Parameters as for SpiderRegressor; noise_memory and scaling do not exist here.
    """

    _likelihood = PROBIT
    _stored_as = "SpiderClassifier"

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The paper's settings, except for how the prior sites start (see SpiderRegressor.paper)."""
        return cls(**(PAPER | changes))

    @locked
    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn the entries, in their order. `classes`, which scikit-learn passes, can only be 0 and 1."""
        if classes is not None and not set(classes) <= {0, 1}:
            raise ValueError(f"the classes are 0 and 1, got {classes}")
        return super().partial_fit(X, y)

    @property
    @locked
    def classes_(self) -> NDArray[np.int64]:
        self._fitted()
        return np.array([0, 1])

    @locked
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities of 0 and of 1 at each row of X."""
        mean, var, _ = self._predict(X)
        t = mean / np.sqrt(1 + var)
        return np.column_stack([ndtr(-t), ndtr(t)])

    @locked
    def predict(self, X: Any) -> NDArray[np.int64]:
        """The more probable label at each row of X."""
        return (self.predict_proba(X)[:, 1] > 0.5).astype(np.int64)

    def __sklearn_tags__(self):
        tags: Any = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.poor_score = True  # scikit-learn's tests predict ids that were never learned
        return tags
