"""The labels of a model of binary values as the texts of a source and of --labels."""

from __future__ import annotations

from typing import Any

from spidertensor.cli import options
from spidertensor.cli.errors import CommandError
from spidertensor.estimator import SpiderClassifier
from spidertensor.estimator.labels import ZERO_ONE, Classes, Label, are_classes, are_zero_one


def named(text: str | None) -> Classes | None:
    """What --labels names: "no,yes", "1,2" or "false,true"; the second is the positive one."""
    if text is None:
        return None
    words = options.words(text)
    labels: list[Any] = words
    if set(words) == {"false", "true"}:
        labels = [word == "true" for word in words]
    elif all(word.removeprefix("-").isdecimal() and str(int(word)) == word for word in words):
        labels = [int(word) for word in words]
    if not are_classes(labels):
        raise CommandError(
            f"--labels takes two different labels, the positive one last: no,yes; not {text!r}"
        )
    return labels[0], labels[1]


def of(estimator: Any) -> Classes | None:
    """Of a model whose labels are not 0 and 1; None of any other."""
    if not isinstance(estimator, SpiderClassifier):
        return None
    positive = estimator.positive_
    negative = next(each for each in estimator.classes_.tolist() if each != positive)
    return None if are_zero_one((negative, positive)) else (negative, positive)


def text(label: Label) -> str:
    """As it stands in a source."""
    return str(label).lower() if isinstance(label, bool) else str(label)


def in_words(classes: Classes | None) -> str:
    return ",".join(map(text, classes or ZERO_ONE))
