"""The option --labels."""

from __future__ import annotations

from typing import Any

from spidertensor.cli import options
from spidertensor.cli.errors import CommandError
from spidertensor.estimator.labels import Classes, are_classes


def parsed(text: str | None) -> Classes | None:
    """Parse --labels, such as "no,yes", "1,2" or "false,true"; the second label is positive."""
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
            f"--labels takes two different labels, positive last, such as no,yes, not {text!r}"
        )
    return labels[0], labels[1]
