"""The thread of `spider serve --from`: read a stream and have the owner's thread learn it.

Each chunk is learned before the next is read, so a stream faster than the model waits in the broker.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from spidertensor.learner.remedies import for_command
from spidertensor.service.errors import ServiceError
from spidertensor.service.from_stream import MESSAGES, packed, unpacked
from spidertensor.service.owner import Owner
from spidertensor.service.requests import Request
from spidertensor.service.served import wanted_to_learn
from spidertensor.sources import Chunk, OpenStream, SourceError

POLL_S = 0.5  # longest wait for messages, and so for a stop
RETRY_S = 1.0  # between attempts to journal a chunk, or to send dead letters


class ConsumedStream(NamedTuple):
    """A stream to consume. place: the fixed part of its place in the model's position"""

    stream: OpenStream
    place: dict[str, Any]


class Consumer(threading.Thread):
    def __init__(self, owner: Owner, opened: ConsumedStream) -> None:
        super().__init__(name="reader of the stream")
        self._owner, self._stream, self._place = owner, opened.stream, opened.place
        served = owner.served
        self._wanted = wanted_to_learn(served.learner)
        self._letters = None if served.rejects is None else served.rejects.letters
        self._stopped = threading.Event()
        self._committed: Any = None
        self.trouble: str | None = None  # an alarm
        self._update_status()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                if not self._owner.ready:
                    self._stopped.wait(0.05)
                    continue
                self._send_letters()
                chunk = self._stream.poll(POLL_S)
                self._update_status()
                if chunk is not None:
                    self._learn(chunk)
                self._commit()
            self._send_letters()
        except SourceError as error:  # such as messages deleted while the broker was away
            self.trouble = f"{error.text(for_command(error))}; reading has stopped until a restart"
        except Exception as error:
            self.trouble = f"{self._stream.stream.name}: {type(error).__name__}: {error}; reading has stopped"
            raise
        finally:
            self._stream.close()
            if self._letters is not None:
                self._letters.close()
            self.status = self.status | {"connected": False, "lag": None}

    def _update_status(self) -> None:
        """Update the status for snapshots. Other threads read it, so it is replaced, never modified."""
        stream = self._stream
        self.status = {
            "url": stream.stream.name,
            "lag": stream.lag,
            "reconnects": stream.reconnects,
            "connected": stream.connected,
        }
        name = stream.stream.name
        self.trouble = None if stream.connected else f"{name}: not connected; retrying"

    def _learn(self, chunk: Chunk) -> None:
        place = self._place | {"row": chunk.end, "stream": chunk.position}
        body = packed(chunk, self._wanted.columns, place, texts=not self._stream.stream.format.typed)
        found, messages = unpacked(body, self._wanted)
        request = Request(found, body, MESSAGES, skip=True, messages=messages)
        while not self._stopped.is_set():
            outcome = self._owner.learn(request)
            if not (isinstance(outcome, ServiceError) and outcome.status == 503):
                self._place = {}  # only needed once: it is in the model's position now
                return
            self._stopped.wait(RETRY_S)  # a full disk, reported by the journal's alarm

    def _send_letters(self) -> None:
        """Send letters about rejected messages; retries until they are sent, before reading on."""
        letters = self._letters
        while letters is not None:
            try:
                letters.send()
                letters = None
            except SourceError as error:
                self.trouble = f"dead letters not sent: {error.text('')}; retrying"
                if self._stopped.wait(RETRY_S):
                    return  # the journal has their messages

    def _commit(self) -> None:
        """Report the saved position to the broker's own tools."""
        saved = self._owner.served.saved_stream
        if saved is not None and saved is not self._committed:
            self._stream.commit(saved)
            self._committed = saved
