"""The model of a server: learn, journal, checkpoint, and replay after a crash.

Everything here is called by one thread (owner.py). What a request does to the model is a function of the
model and of the requests before it, in the cuts that the journal has, so a replay ends in the same state.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from spidertensor.estimator import SpiderClassifier, SpiderRegressor
from spidertensor.estimator.inputs import Columns
from spidertensor.faults import EntryError
from spidertensor.method import Update
from spidertensor.service.answers import Answer, Answers
from spidertensor.service.bodies import Entries, Wanted, entries
from spidertensor.service.errors import ServiceError, noted, record
from spidertensor.service.from_stream import MESSAGES, Messages, Rejects, place_of, unpacked
from spidertensor.service.journal import Journal, JournalError, Row
from spidertensor.service.scores import Scores

UNLIMITED = 2**62
PATIENCE = 1.0  # seconds that a checkpoint, and everybody else, waits for dead letters to be sent

Estimator = SpiderRegressor | SpiderClassifier
Outcome = bytes | ServiceError


class Request(NamedTuple):
    """A request to learn, which was checked as far as that is possible without the model."""

    entries: Entries
    body: bytes
    media_type: str
    skip: bool = False
    key: str | None = None
    messages: Messages | None = None  # if it came from a stream

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(b"%d %s\n" % (self.skip, self.media_type.encode()) + self.body).digest()


def wanted_of(served: Any, max_rows: int = UNLIMITED) -> Wanted:
    """What a request to learn must have."""
    estimator = served.estimator
    return Wanted(served.modes, served.value, estimator.likelihood_, max_rows, estimator.learns_events)


class Learning:
    read_only = False

    def __init__(
        self,
        path: Path,
        estimator: Estimator,
        modes: list[str],
        value: str | None,
        journal: Journal,
        sequence: int,
    ) -> None:
        self.path, self.estimator, self.modes, self.value = path, estimator, modes, value
        self.bins, self.classes = [None] * len(modes), None  # the service has neither bins nor labels
        self.journal = journal
        span = journal.span()
        self.sequence = span[1] if span else sequence  # of the last request in the journal
        place = path.with_name(f"{path.name}.answers")
        try:
            self.answers = Answers(place, journal.about["id"])
        except sqlite3.OperationalError as error:
            raise JournalError(f"{place}: {error}", kind="answers") from None
        self.scores = self._new_scores()
        self.learned = self.checkpointed = sequence  # positions: of the model, and of its file
        self.saved_at: float | None = None  # by the monotonic clock
        self.saved_entries = self.entries
        self.trouble: dict[str, str] = {}  # what could not be written: "journal" or "checkpoint" -> why
        self.position: dict[str, Any] = estimator.position_ if isinstance(estimator.position_, dict) else {}
        self.saved_stream: Any = None  # how far a stream was read, at the last checkpoint
        self.rejects: Rejects | None = None  # for messages of a stream
        if (state := self.answers.scores(sequence)) is not None:
            try:
                self.scores.restore(state, estimator)
            except ValueError:  # of another version: they begin anew
                self.scores = self._new_scores()

    def _new_scores(self) -> Scores:
        estimator = self.estimator
        return Scores(estimator.likelihood_, len(self.modes), estimator._rule_of(self.modes))

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever learned."""
        return not self.estimator.__sklearn_is_fitted__()

    @property
    def entries(self) -> int:
        return 0 if self.is_new else self.estimator.n_entries_

    def warm_up(self) -> None:
        """Compile what learning and predicting need, with a copy; also finds impossible settings."""
        copy: Any = type(self.estimator)(**self.estimator.get_params(deep=False))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one = [[0] * len(self.modes)]
            value = np.full(1, float(copy.learns_events))
            learned = copy._learn_numbered(one, value)
            copy.predict(one)
            self._new_scores().add([np.zeros(1)], value, learned)

    # --- learning

    def learn(self, requests: Sequence[Request]) -> list[Outcome]:
        """What each request is answered. All of them are on the disk before the first is learned."""
        outcomes: list[Outcome] = []
        for group in _unrepeated(requests):
            found = [self._repeated(request) for request in group]
            fresh = [request for request, known in zip(group, found, strict=True) if known is None]
            new = iter(self._learn_new(fresh))
            outcomes += [next(new) if known is None else known for known in found]
        return outcomes

    def _repeated(self, request: Request) -> Outcome | None:
        """What a request with this key was answered before; None if there was none."""
        try:
            known = self.answers.find(request.key) if request.key is not None else None
        except sqlite3.Error as error:
            return ServiceError(503, "journal", f"{self.answers.path}: {error}", retry=5)
        if known is None:
            return None
        if known.digest != request.digest:
            remedy = "use another key for another request"
            return ServiceError(422, "key", "this Idempotency-Key had another request", remedy=remedy)
        return orjson.dumps(orjson.loads(known.body) | {"repeated": True})

    def _learn_new(self, requests: list[Request]) -> list[Outcome]:
        if not requests:
            return []
        # A first call sets the scale of the values, so it must not depend on what else was waiting.
        cuts = [requests[:1], requests[1:]] if self.is_new and requests[1:] else [requests]
        rows, sequence = [], self.sequence
        for cut in cuts:
            first = sequence + 1
            for each in cut:
                sequence += 1
                rows.append(Row(sequence, first, each.key, each.media_type, each.skip, each.body))
        try:
            self.journal.append(rows)
        except JournalError as error:
            self.trouble["journal"] = error.reason
            remedy = "nothing of this request was learned: make room on the server's disk and repeat it"
            failed = ServiceError(503, "journal", error.reason, retry=5, remedy=remedy)
            return [failed] * len(requests)
        self.trouble.pop("journal", None)
        self.sequence = sequence
        return [outcome for cut in cuts for outcome in self._learn_cut(cut)]

    def _learn_cut(self, cut: list[Request]) -> list[Outcome]:
        """Requests that are learned in one call. What follows depends only on them and on the model."""
        outcomes = self._learned_together(cut)
        self.learned += len(cut)
        for request, outcome in zip(cut, outcomes, strict=True):
            if request.key is not None and isinstance(outcome, bytes):
                self.answers.add(request.key, Answer(request.digest, outcome))
            if request.messages is not None:
                self._has_read(request.messages, request.entries, outcome)
        return outcomes

    def _has_read(self, messages: Messages, found: Entries, outcome: Outcome) -> None:
        """The position goes on together with the model."""
        rejected = messages.rejected(found, outcome)
        self.position = self.position | messages.place
        self.position["bad"] = self.position.get("bad", 0) + len(rejected)
        if self.rejects is not None:
            self.rejects.add(messages, rejected, self.position["source"])

    def _learned_together(self, cut: list[Request]) -> list[Outcome]:
        columns, values = _joined([request.entries for request in cut])
        before = self.entries
        try:
            update, notes = self._advanced(columns, values)
        except (
            EntryError
        ) as error:  # a value that only the model can judge, by its scale: nothing was learned
            if len(cut) > 1:
                return [self._learned_together([request])[0] for request in cut]
            return [self._without_bad(cut[0], error)]
        outcomes, at = [], 0
        for request in cut:
            end = at + len(request.entries.rows)
            if request.messages is None:
                outcomes.append(self._answer(request.entries, update, slice(at, end), before + end, notes))
            else:  # nobody looks at predictions
                outcomes.append(orjson.dumps({"skipped": _skipped(request.entries)}))
            at = end
        return outcomes

    def _without_bad(self, request: Request, error: EntryError) -> Outcome:
        found = request.entries
        places = error.rows or (() if error.row is None else (error.row,))
        faults = [
            error.but(row=int(found.rows[place]), column=self.value, value=float(found.values[place]))
            for place in places
        ] or [error]
        if not (request.skip and places):
            return ServiceError(422, error.kind, error.reason, others=faults)
        rest = found.without(places, faults)
        return self._learned_together([request._replace(entries=rest)])[0]

    def _advanced(self, ids: list[NDArray[Any]], values: NDArray[np.float64]) -> tuple[Update, list[Any]]:
        # Names only for a new model: one that was saved without names learns its columns by position.
        columns = Columns(ids, tuple(self.modes) if self.is_new else None)
        with noted() as notes:
            learned = self.estimator._learn_numbered(columns, values)
        if len(values):
            self.scores.add(ids, values, learned)
        return learned.update, notes

    def _answer(
        self, found: Entries, update: Update, part: slice, total: int, notes: list[dict[str, Any]]
    ) -> bytes:
        likelihood = self.estimator.likelihood_
        columns = {likelihood.mean_name: likelihood.expected(update.mean[part], update.var[part]).tolist()}
        if likelihood.intervals:
            columns["std"] = likelihood.std(*(each[part] for each in update[:3])).tolist()
        predictions: list[Any] = _records(columns)
        if found.bad:
            every: list[Any] = [None] * found.n_rows
            for row, each in zip(found.rows.tolist(), predictions, strict=True):
                every[row] = each
            predictions = every
        answer = {"learned": len(found.rows), "entries": total, "predictions": predictions}
        return orjson.dumps(answer | {"skipped": _skipped(found), "notes": notes})

    # --- files

    def replay(self) -> int:
        """Learn what the journal has behind the model's position; how many requests that were."""
        wanted = wanted_of(self)
        n = 0
        for rows in self.journal.cuts(self.learned):
            try:
                requests = [_journaled(row, wanted) for row in rows]
            except ServiceError as error:
                reason = f"{self.journal.path}: request {rows[0].sequence} cannot be read: {error.reason}"
                raise JournalError(reason, kind="journal") from None
            self._learn_cut(requests)
            n += len(rows)
        return n

    def position_after_replay(self) -> dict[str, Any]:
        """Where a stream has to be opened, which is needed before the journal is replayed."""
        position = self.position | {"value": self.value}
        for rows in self.journal.cuts(self.learned):
            for row in rows:
                position |= place_of(row.body) if row.media_type == MESSAGES else {}
        return position

    def checkpoint(self) -> None:
        """Write the model with its position; from then on the journal is superfluous and removed."""
        if self.is_new:
            raise ServiceError(409, "nothing learned", "nothing was learned yet, so there is nothing to save")
        where = {
            "value": self.value,
            "service": {"journal": self.journal.about["id"], "sequence": self.learned},
        }
        try:
            self.answers.write()  # first: once the model is saved, nothing else has them
            if self.rejects is not None:
                self._write_rejects(self.rejects)
            self.estimator.save(self.path, self.position | where)
            if self.learned > self.checkpointed or self.journal.bytes:
                self.journal.begin_anew()
            self.answers.write_scores(self.learned, self.scores.state(self.estimator))
        except (OSError, sqlite3.Error, JournalError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.trouble["checkpoint"] = f"{getattr(error, 'filename', None) or self.path}: {reason}"
            raise ServiceError(503, "checkpoint", self.trouble["checkpoint"], retry=30) from error
        self.trouble.pop("checkpoint", None)
        self.checkpointed, self.saved_at, self.saved_entries = self.learned, time.monotonic(), self.entries
        self.saved_stream = self.position.get("stream")

    def _write_rejects(self, rejects: Rejects) -> None:
        """First, too: a saved model goes on behind these messages."""
        rejects.write()
        if rejects.letters is not None and not rejects.letters.are_sent(PATIENCE):
            raise OSError(
                "dead letters wait to be sent before the model is saved; its journal has everything"
            )

    def snapshot_file(self) -> int:
        """A descriptor of a file with the model as it is now, which later checkpoints do not change."""
        if self.learned > self.checkpointed or not self.path.exists():
            self.checkpoint()
        return os.open(self.path, os.O_RDONLY)

    def tick(self) -> None:
        """There is nothing that this model does by itself."""

    def close(self) -> None:
        """Save, and leave nothing to replay."""
        try:
            if self.learned > self.checkpointed and not self.is_new:
                self.checkpoint()
            if self.checkpointed >= self.sequence:  # else it has what the file has not
                self.journal.remove()
        finally:
            self.journal.close()
            self.answers.close()


def _unrepeated(requests: Sequence[Request]) -> Iterator[list[Request]]:
    """Cut where a key comes again: its first request has to be answered before."""
    group: list[Request] = []
    keys: set[str] = set()
    for request in requests:
        if request.key is not None and request.key in keys:
            yield group
            group, keys = [], set()
        group.append(request)
        keys |= set() if request.key is None else {request.key}
    yield group


def _journaled(row: Row, wanted: Wanted) -> Request:
    if row.media_type == MESSAGES:
        found, messages = unpacked(row.body, wanted)
        return Request(found, row.body, row.media_type, row.skip, row.key, messages)
    found = entries(row.body, row.media_type, wanted)
    return Request(found, row.body, row.media_type, row.skip, row.key)


def _skipped(found: Entries) -> list[dict[str, Any]]:
    """Without the values of bad rows: an answer may be kept with its key."""
    return [record(each) | {"value": None} for each in found.bad]


def _joined(parts: Sequence[Entries]) -> tuple[list[NDArray[Any]], NDArray[np.float64]]:
    if len(parts) == 1:
        return parts[0].columns, parts[0].values
    columns = []
    for column in zip(*(part.columns for part in parts), strict=True):
        same = len({each.dtype for each in column}) == 1
        columns.append(np.concatenate(column if same else [each.astype(object) for each in column]))
    return columns, np.concatenate([part.values for part in parts])


def _records(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    names = list(columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
