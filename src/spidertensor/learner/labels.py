"""The labels of a binary model, and how they are written in a source."""

from __future__ import annotations

from spidertensor.estimator import SpiderClassifier
from spidertensor.estimator.labels import ZERO_ONE, Classes, Label, are_zero_one
from spidertensor.estimator.loading import Estimator


def own_labels(estimator: Estimator) -> Classes | None:
    """The labels of a fitted binary model, the positive one last; None if they are 0 and 1."""
    if not isinstance(estimator, SpiderClassifier):
        return None
    positive = estimator.positive_
    negative = next(each for each in estimator.classes_.tolist() if each != positive)
    return None if are_zero_one((negative, positive)) else (negative, positive)


def label_text(label: Label) -> str:
    """The label as written in a source."""
    return str(label).lower() if isinstance(label, bool) else str(label)


def label_texts(classes: Classes | None) -> tuple[str, str] | None:
    """How the labels are written in a source; None if they are 0 and 1, which are numbers."""
    return None if classes is None else (label_text(classes[0]), label_text(classes[1]))


def joined_labels(classes: Classes | None) -> str:
    return ",".join(map(label_text, classes or ZERO_ONE))
