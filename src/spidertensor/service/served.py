"""The interface of a served model: one that learns (journaled.py) or follows a file (following.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from spidertensor.learner.labels import label_texts
from spidertensor.learner.learner import Learner
from spidertensor.service.bodies import BodyFields
from spidertensor.service.forecasts import Forecasts
from spidertensor.service.from_stream import Rejects
from spidertensor.service.requests import Outcome, Request
from spidertensor.service.surprises import Surprises

UNLIMITED = 2**62  # rows


class Served(Protocol):
    """A model behind the service.

    learned:      the last request that the model has learned; None if read-only
    checkpointed: the last request that its file has; None if read-only
    saved_at:     when the file was written, on the monotonic clock
    saved_stream: the position in a stream at the last checkpoint
    trouble:      "journal" or "checkpoint" -> why it cannot be written or read; "refused": rows to learn
    rejects:      where messages of a stream that cannot be learned are recorded
    surprises:    None if read-only, since there are no scores
    forecasts:    those that clients asked to remember; None if read-only
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
    @property
    def forecasts(self) -> Forecasts | None: ...

    def warm_up(self) -> None: ...
    def replay(self) -> int: ...
    def learn(self, requests: Sequence[Request]) -> list[Outcome]: ...
    def checkpoint(self) -> None:
        """Save, by any thread while nobody learns; other threads may predict."""
        ...

    def tick(self) -> None: ...
    def close(self) -> None: ...


def wanted_to_learn(learner: Learner, max_rows: int = UNLIMITED) -> BodyFields:
    """What the body of a request to learn must have."""
    estimator = learner.estimator
    return BodyFields(
        learner.id_columns,
        learner.value,
        estimator.likelihood_,
        max_rows,
        estimator.learns_events,
        learner.attributes,
        forecasts=True,
        labels=label_texts(learner.classes),
    )
