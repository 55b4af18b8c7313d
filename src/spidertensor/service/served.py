"""What a server has: a model that learns (journaled.py), or one that follows another (following.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from spidertensor.learner.learner import Learner
from spidertensor.service.bodies import Wanted
from spidertensor.service.from_stream import Rejects
from spidertensor.service.requests import Outcome, Request
from spidertensor.service.surprises import Surprises

UNLIMITED = 2**62  # rows


class Served(Protocol):
    """learned, checkpointed: the last request that the model, and its file, have learned; None if read-only

    saved_at:     when the file was written, by the monotonic clock
    saved_stream: how far a stream was read, at the last checkpoint
    trouble:      what cannot be written or read, "journal" or "checkpoint", and why
    rejects:      where messages of a stream go that cannot be learned
    surprises:    None if read-only, as there are no scores then
    """

    @property
    def read_only(self) -> bool: ...
    @property
    def learner(self) -> Learner: ...
    @property
    def learned(self) -> int | None: ...
    @property
    def checkpointed(self) -> int | None: ...
    @property
    def saved_entries(self) -> int: ...
    @property
    def saved_at(self) -> float | None: ...
    @property
    def saved_stream(self) -> Any: ...
    @property
    def journal_bytes(self) -> int: ...
    @property
    def trouble(self) -> dict[str, str]: ...
    @property
    def rejects(self) -> Rejects | None: ...
    @property
    def surprises(self) -> Surprises | None: ...

    def warm_up(self) -> None: ...
    def replay(self) -> int: ...
    def learn(self, requests: Sequence[Request]) -> list[Outcome]: ...
    def checkpoint(self) -> None: ...
    def snapshot_file(self) -> int: ...
    def tick(self) -> None: ...
    def close(self) -> None: ...


def wanted_to_learn(learner: Learner, max_rows: int = UNLIMITED) -> Wanted:
    """What a request to learn must have."""
    estimator = learner.estimator
    return Wanted(learner.modes, learner.value, estimator.likelihood_, max_rows, estimator.learns_events)
