"""The thread of `spider serve --from`: it reads a stream and has the owner's thread learn what comes.

It waits until a chunk is learned before it reads the next one, so a stream that is faster than the model
waits in the broker.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from spidertensor.service.errors import ServiceError
from spidertensor.service.from_stream import MESSAGES, packed, unpacked
from spidertensor.service.owner import Owner
from spidertensor.service.requests import Request
from spidertensor.service.served import wanted_to_learn
from spidertensor.sources import Chunk, OpenStream, SourceError

PATIENCE = 0.5  # seconds that one look at the stream waits; a stop waits as long
RETRY = 1.0  # seconds until a chunk that could not be written to the journal, or letters, are tried again


class From(NamedTuple):
    """A stream to consume, and what a position says of it besides how far it was read."""

    stream: OpenStream
    place: dict[str, Any]


class Consumer(threading.Thread):
    def __init__(self, owner: Owner, opened: From) -> None:
        super().__init__(name="reader of the stream")
        self._owner, self._stream, self._place = owner, opened.stream, opened.place
        served = owner.served
        self._wanted = wanted_to_learn(served.learner)
        self._letters = None if served.rejects is None else served.rejects.letters
        self._stopped = threading.Event()
        self._committed: Any = None
        self.trouble: str | None = None  # an alarm
        self._look()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                if not self._owner.ready:
                    self._stopped.wait(0.05)
                    continue
                self._send_letters()
                chunk = self._stream.poll(PATIENCE)
                self._look()
                if chunk is not None:
                    self._learn(chunk)
                self._commit()
            self._send_letters()
        except SourceError as error:  # such as messages that were deleted while the broker was away
            self.trouble = f"{error.text('')}; no more is read until the server is started again"
        except Exception as error:
            self.trouble = f"{self._stream.stream.name}: {type(error).__name__}: {error}; no more is read"
            raise
        finally:
            self._stream.close()
            if self._letters is not None:
                self._letters.close()
            self.told = self.told | {"connected": False, "lag": None}

    def _look(self) -> None:
        """What snapshots tell. Other threads read it, so it is replaced and never changed."""
        stream = self._stream
        self.told = {
            "url": stream.stream.name,
            "lag": stream.lag,
            "reconnects": stream.reconnects,
            "connected": stream.connected,
        }
        name = stream.stream.name
        self.trouble = None if stream.connected else f"{name}: not connected; it is tried again"

    def _learn(self, chunk: Chunk) -> None:
        place = self._place | {"row": chunk.end, "stream": chunk.position}
        body = packed(chunk, self._wanted.columns, place)
        found, messages = unpacked(body, self._wanted)
        request = Request(found, body, MESSAGES, skip=True, messages=messages._replace(where=chunk.place))
        while not self._stopped.is_set():
            outcome = self._owner.learn(request)
            if not (isinstance(outcome, ServiceError) and outcome.status == 503):
                self._place = {}  # once is enough: the model knows it now
                return
            self._stopped.wait(RETRY)  # a full disk: an alarm of the journal tells it

    def _send_letters(self) -> None:
        """About messages that were rejected. Before they are sent no more is read."""
        letters = self._letters
        while letters is not None:
            try:
                letters.send()
                letters = None
            except SourceError as error:
                self.trouble = f"dead letters wait: {error.text('')}; it is tried again"
                if self._stopped.wait(RETRY):
                    return  # the journal has their messages

    def _commit(self) -> None:
        """For the broker's own tools, once it is saved."""
        saved = self._owner.served.saved_stream
        if saved is not None and saved is not self._committed:
            self._stream.commit(saved)
            self._committed = saved
