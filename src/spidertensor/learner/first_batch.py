"""The first batch of a new model, which sets the scale of its values.

The scale must not depend on how many rows happen to arrive at once. So the first rows of a source are joined
into one full batch, and the first request to a server is learned on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from spidertensor.estimator.loading import Estimator
from spidertensor.learner.chunks import joined
from spidertensor.sources import Chunk
from spidertensor.sources.bins import MAX_QUIET_CHUNKS

Request = TypeVar("Request")


def entries_needed(estimator: Estimator) -> int:
    """The minimum number of entries for the next call."""
    return 1 if estimator.__sklearn_is_fitted__() else estimator.batch_size


def joined_first(chunks: Iterator[Chunk], n: int, on_first: Callable[[int, bool], None]) -> Iterator[Chunk]:
    """Join chunks until the first has n entries.

    A pipe may deliver fewer at once. After MAX_QUIET_CHUNKS quiet chunks in a row, whatever has arrived is
    the first chunk, so that no row waits forever.

    on_first: called before the first chunk is yielded, with its number of rows and whether the pipe going
              quiet cut it short
    """
    first, left = None, MAX_QUIET_CHUNKS
    for chunk in chunks:
        left = left - 1 if chunk.quiet else MAX_QUIET_CHUNKS
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
    """Group waiting requests, each group for one call; the first request of a new model is alone."""
    return [requests[:1], requests[1:]] if is_new and requests[1:] else [requests]
