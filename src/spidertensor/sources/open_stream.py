"""Read a stream as chunks with positions, reconnecting when the connection breaks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from time import monotonic, sleep
from typing import Any

import numpy as np

from spidertensor.sources.bins import Bins, binned
from spidertensor.sources.source import Chunk, Parsed, SourceError, Wanted
from spidertensor.sources.stream import Connection, Disconnected, Messages, Position, Stream

FIRST_DELAY_S, LONGEST_DELAY_S = 0.5, 30.0  # between attempts to connect; doubles each time
_log = logging.getLogger("spidertensor.sources")


class OpenStream:
    """An open stream, as returned by `spidertensor.sources.open`: iterate over it, or call `poll`.

    position:   after the last chunk returned
    lag:        messages still to be read, or None if not known
    reconnects: how often the connection was re-established
    connected:  False while the broker cannot be reached

    Not thread-safe.
    """

    def __init__(
        self,
        stream: Stream,
        wanted: Wanted,
        position: Position | None,
        to_chunk: Callable[[Parsed], Chunk],
        bins: Sequence[Bins | None] | None = None,
    ) -> None:
        """Connect. SourceError if the broker cannot be reached now; later failures are retried."""
        self.stream, self.position, self.reconnects = stream, position, 0
        self._bins = bins if bins and wanted.numbers else None
        self._cut, self._to_chunk = stream.format.cutter(wanted, stream.names), to_chunk
        self._connection: Connection | None = None
        self._lost_at = self._retry_at = self._delay = 0.0
        try:
            self._connection = stream.connect(position)
        except Disconnected as error:
            raise SourceError(f"{stream.name}: {error}") from None

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def lag(self) -> int | None:
        return None if self._connection is None else self._connection.lag

    @property
    def at_end(self) -> bool:
        """Whether everything up to the end at the time of (re)connecting has been read."""
        return self._connection is not None and self._connection.at_end

    def poll(self, timeout: float = 0.0) -> Chunk | None:
        """Return the messages that have arrived; None if nothing arrives within `timeout` seconds.

        An attempt to reconnect may take some seconds longer.
        """
        messages = self._messages(timeout)
        if messages is None:
            return None
        start = messages.position["messages"] - len(messages.contents)

        def place(row: int) -> str:
            return messages.place(row - start - 1)

        chunk = self._to_chunk(self._cut(messages.contents, start))
        self.position = messages.position
        return chunk._replace(position=messages.position, place=place)

    def chunks(self, quiet: float | None = None) -> Iterator[Chunk]:
        """Yield chunks as they arrive, forever or until the end; see `read` for `quiet`."""
        chunks = self._chunks(quiet)
        return binned(chunks, self._bins) if self._bins else chunks

    def _chunks(self, quiet: float | None) -> Iterator[Chunk]:
        while True:
            if self.stream.until_end and self.at_end:
                return
            chunk = self.poll(quiet or 1.0)
            if chunk is not None:
                yield chunk
            elif quiet is not None and not (self.stream.until_end and self.at_end):
                end = self.position["messages"] if self.position else 0
                yield Chunk([], None, np.empty(0, np.int64), [], end, None, quiet=True)

    def __iter__(self) -> Iterator[Chunk]:
        return self.chunks()

    def commit(self, position: Position) -> None:
        """Report the saved model's position to the broker's monitoring; reading is not affected."""
        if self._connection is not None:
            self._connection.commit(position)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> OpenStream:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # --- reconnecting

    def _messages(self, timeout: float) -> Messages | None:
        if self._connection is None and not self._connect_again(timeout):
            return None
        assert self._connection is not None
        try:
            return self._connection.poll(timeout)
        except Disconnected as error:
            self.close()
            self._lost_at = monotonic()
            self._try_later(error, FIRST_DELAY_S)
        return None

    def _connect_again(self, timeout: float) -> bool:
        wait = self._retry_at - monotonic()
        if wait > timeout:
            sleep(timeout)
            return False
        sleep(max(wait, 0.0))
        try:
            # from the last chunk returned: what the old connection had read ahead is read again
            self._connection = self.stream.connect(self.position)
        except Disconnected as error:
            self._try_later(error, min(2 * self._delay, LONGEST_DELAY_S))
            return False
        self.reconnects += 1
        _log.warning("%s: reconnected after %.0f s", self.stream.name, monotonic() - self._lost_at)
        return True

    def _try_later(self, error: Disconnected, delay: float) -> None:
        self._delay, self._retry_at = delay, monotonic() + delay
        _log.warning("%s: not connected (%s); trying again in %g s", self.stream.name, error, delay)
