"""Adapters for River (the package `river`): SPIDER in its pipelines and evaluations.

Entries are dicts, as River's streams have them; all keys are modes, unless the estimator's `modes` says which
keys it reads.

    model = Regressor(SpiderRegressor(modes={"user": [], "movie": []}, scaling=(3.5, 1.1)))
    river.evaluate.progressive_val_score(ratings, model, river.metrics.MAE(), moment="at", delay=week)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    from river import base
except ModuleNotFoundError as error:
    remedy = "spidertensor.river needs River: pip install 'spidertensor[river]'"
    raise ModuleNotFoundError(remedy, name=error.name) from None

from spidertensor.estimator import SpiderClassifier, SpiderRegressor
from spidertensor.estimator.labels import Label
from spidertensor.estimator.one_entry import as_rows

__all__ = ["Classifier", "Regressor"]


class Regressor(base.Regressor):
    """A SpiderRegressor as a River model.

    estimator: its parameters are used; it learns nothing itself. Pass `scaling` to it, the usual value and
               spread of the values, because the first entry alone does not tell them

    `model` is the estimator that learns, for its intervals, recommendations and files.
    """

    def __init__(self, estimator: SpiderRegressor) -> None:
        self.estimator = estimator
        self.model = _fresh(estimator)

    def learn_one(self, x: dict[Any, Any], y: float) -> None:
        self.model.learn_one(x, y)

    def predict_one(self, x: dict[Any, Any]) -> float:
        return self.model.predict_one(x).mean


class Classifier(base.Classifier):
    """A SpiderClassifier as a River model.

    estimator: its parameters are used; it learns nothing itself
    classes:   both labels, unless they are 0 and 1 or False and True

    `model` is the estimator that learns, for its recommendations and files.
    """

    def __init__(self, estimator: SpiderClassifier, classes: Sequence[Label] | None = None) -> None:
        if estimator.negatives is not None:
            raise ValueError("events have no labels to predict: leave out negatives")
        self.estimator, self.classes = estimator, classes
        self.model = _fresh(estimator)

    def learn_one(self, x: dict[Any, Any], y: Label) -> None:
        if self.model.__sklearn_is_fitted__():
            self.model.learn_one(x, y)
        else:
            self.model.partial_fit(as_rows(x), [y], classes=self.classes)

    def predict_proba_one(self, x: dict[Any, Any], **_: Any) -> dict[Label, float]:
        """The probability of each label; none before the first entry, which may say what they are."""
        label, probability = self.model.predict_one(x)
        if label is None:
            return {}
        chances = {True: probability, False: 1 - probability}
        return {each: chances[each == self.model.positive_] for each in self.model.classes_.tolist()}


def _fresh(estimator: Any) -> Any:
    """A copy of an estimator that has learned nothing, with the same parameters."""
    return type(estimator)(**estimator.get_params(deep=False))
