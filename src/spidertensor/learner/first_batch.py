"""The first batch of a new model decides the scale of its values.

So how much happened to arrive at once must not change it. A source gives its first rows together, as many as
the model takes in one batch. A request to a server is a batch as its client made it: the first one is learned
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from spidertensor.estimator.loading import Estimator
from spidertensor.learner.chunks import joined
from spidertensor.sources import Chunk
from spidertensor.sources.bins import PATIENCE

Request = TypeVar("Request")


def entries_needed(estimator: Estimator) -> int:
    """How many entries the next call has to learn at least."""
    return 1 if estimator.__sklearn_is_fitted__() else estimator.batch_size


def joined_first(chunks: Iterator[Chunk], n: int, on_first: Callable[[int, bool], None]) -> Iterator[Chunk]:
    """Chunks of a new model, joined until the first has n entries.

    A pipe may give fewer at once. But rows of a pipe that stays quiet must not wait for ever, so after
    PATIENCE quiet chunks it is as large as it is.

    on_first: called before it is yielded, with the number of its rows and whether patience has cut it short
    """
    first, left = None, PATIENCE
    for chunk in chunks:
        left = left - 1 if chunk.quiet else PATIENCE
        if not chunk.quiet:
            first = chunk if first is None else joined(first, chunk)
        if first is not None and (len(first.rows) >= n or (left <= 0 and len(first.rows))):
            break
        if chunk.quiet:
            yield chunk
    if first is not None:
        on_first(len(first.rows), left <= 0 and len(first.rows) < n)
        yield first
    yield from chunks


def first_alone(requests: Sequence[Request], *, is_new: bool) -> list[Sequence[Request]]:
    """The cuts in which waiting requests are learned, each in one call."""
    return [requests[:1], requests[1:]] if is_new and requests[1:] else [requests]
