"""The learner of a server: journal, learn, answer, checkpoint, and replay after a crash.

Only one thread calls it (owner.py), except for checkpoints. The effect of a request depends only on the model
and on earlier requests, in the cuts of the journal, so a replay restores the same state.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from spidertensor.estimator.bounds import Bounded
from spidertensor.estimator.forecast import no_forecast
from spidertensor.faults import EntryError, Fault
from spidertensor.learner.errors import LearnerError
from spidertensor.learner.forecasts import joined as joined_forecasts
from spidertensor.learner.learner import Learned, Learner
from spidertensor.learner.position import Position
from spidertensor.learner.warned import warned
from spidertensor.method import Prediction
from spidertensor.service import attributes
from spidertensor.service.answers import Answer, Answers
from spidertensor.service.bodies import FORECAST, Entries
from spidertensor.service.errors import ServiceError, as_notes, is_full
from spidertensor.service.forecasts import Forecasts
from spidertensor.service.from_stream import MESSAGES, JournaledMessages, Rejects, place_of
from spidertensor.service.journal import NOT_WRITTEN, Journal, JournalError
from spidertensor.service.requests import (
    Outcome,
    Request,
    answer,
    in_cuts,
    joined,
    journaled,
    skipped,
    to_journal,
    unrepeated,
    with_forecasts,
    without_forecasts,
)
from spidertensor.service.served import wanted_to_learn
from spidertensor.service.surprises import Surprises

REFUSED_BYTES = 1 << 20  # of requests that have no effect, to be kept
DESCRIBED_BYTES = 256 << 20  # of descriptions of a model that has learned nothing
RECENT_ROWS = 1000  # of which at most half may be refused without an alarm
MIN_ROWS = 20  # fewer say little
LETTERS_WAIT_S = 1.0  # how long a checkpoint, and with it learning, waits for dead letters


class JournaledLearner:
    """A learner that journals requests before learning them. Fields: see served.Served"""

    read_only = False

    def __init__(self, learner: Learner, journal: Journal, sequence: int, *, named: bool = True) -> None:
        """sequence: the last request that the model file has. named: whether the file names the journal"""
        self.learner, self.journal = learner, journal
        span = journal.span()
        self.sequence = span[1] if span else sequence  # of the last request in the journal
        self.named, self._noted = named, False
        self.trouble: dict[str, str] = {}
        if journal.lacking:
            self.trouble["journal"] = journal.lacking
        identity = journal.about["id"]
        self.answers = Answers(learner.path.with_name(f"{learner.path.name}.answers"), identity, sequence)
        self.forecasts = Forecasts(learner.path.with_name(f"{learner.path.name}.forecasts"), identity)
        state = None
        if self._is_open(
            "answers", self.answers, "move it away; then repeats of earlier requests are learned"
        ):
            state = self.answers.scores(sequence)
            self.answers.forget_journal(after=span[1] if span else 0)
        self._is_open("forecasts", self.forecasts, "move it away to continue without the forecasts in it")
        self.surprises = Surprises()
        self.learned = self.checkpointed = sequence
        self.saved_at: float | None = None
        self._tidied_at: float | None = None
        self.saved_entries = learner.entries
        self.saved_stream: Any = None
        self.rejects: Rejects | None = None
        self._described_any = False
        self._recent = self._refused = 0.0  # rows to learn lately
        if state is not None:
            try:
                learner.scores.restore(state, learner.estimator)
            except ValueError:  # from another version: start new ones
                learner.scores = learner.new_scores()

    def _is_open(self, kind: str, file: Answers | Forecasts, remedy: str) -> bool:
        """Open a file beside the model. If the disk is full it is an alarm, and tried again when needed."""
        try:
            file.open()
        except (sqlite3.Error, OSError) as error:
            if not is_full(error):
                raise JournalError(f"{file.path}: {error}", kind=kind, remedy=remedy) from None
            self.trouble.setdefault("journal" if kind == "answers" else kind, f"{file.path}: {error}")
            return False
        return True

    @property
    def journal_bytes(self) -> int:
        return self.journal.bytes

    def warm_up(self) -> None:
        """Compile the kernels by using a copy; also finds invalid settings."""
        learner = self.learner
        copy = type(learner.estimator)(**learner.estimator.get_params(deep=False))
        twin = Learner(copy, learner.path, learner.modes, learner.value)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ids = [np.zeros(1, np.int64)] * len(learner.with_ids)
            likelihood = copy.likelihood_
            low = likelihood.low if isinstance(likelihood, Bounded) else 0.0
            value = next(iter(likelihood.levels), float(copy.learns_events) or low)
            learned = twin.learn(ids, np.full(1, value), _raised)
            copy.predict([[0] * len(learner.with_ids)])
            twin.score(learned)
            Surprises().add(learned, 1, copy.likelihood_)

    # --- learning

    def learn(self, requests: Sequence[Request]) -> list[Outcome]:
        """Learn or describe, and return the outcome of each. All are on disk before the first is learned."""
        outcomes: list[Outcome] = []
        for group in unrepeated(requests):
            found = [self._repeated(request) for request in group]
            fresh = [request for request, known in zip(group, found, strict=True) if known is None]
            new = iter(self._learn_new(fresh))
            outcomes += [next(new) if known is None else known for known in found]
        return outcomes

    def _repeated(self, request: Request) -> Outcome | None:
        """The earlier outcome for this request's key; None if there is none."""
        try:
            known = self.answers.find(request.key) if request.key is not None else None
        except (sqlite3.Error, OSError) as error:
            return ServiceError(503, "journal", f"{self.answers.path}: {error}", retry=5, remedy=NOT_WRITTEN)
        if known is None:
            return None
        if known.digest != request.digest:
            remedy = "use a new key for each new request"
            reason = "this Idempotency-Key was used for a different request"
            return ServiceError(422, "key", reason, remedy=remedy)
        return orjson.dumps(orjson.loads(known.body) | {"repeated": True})

    def _learn_new(self, requests: list[Request]) -> list[Outcome]:
        if not requests:
            return []
        if not self.named:  # only the model of a journal that it names can learn its requests after a crash
            try:
                self.checkpoint()
            except ServiceError as error:
                failed = ServiceError(503, error.kind, error.reason, retry=5, remedy=NOT_WRITTEN)
                return [failed] * len(requests)
        full = self.learner.is_new and self.journal.bytes > DESCRIBED_BYTES  # and cannot be saved
        if full and any(each.mode is not None for each in requests):
            reason = (
                f"{self.journal.path}: is full of descriptions, and nothing was learned that could be saved"
            )
            remedy = "send rows to learn first, or fit a model and serve it"
            failed = ServiceError(503, "journal", reason, retry=30, remedy=remedy)
            return [failed if each.mode is not None else self._learn_new([each])[0] for each in requests]
        requests = [self._with_forecasts(request) for request in requests]
        cuts = in_cuts(requests, is_new=self.learner.is_new)
        rows, sequence = [], self.sequence
        for cut in cuts:
            first = sequence + 1
            for each in cut:
                sequence += 1
                rows.append(to_journal(each, sequence, first))
        try:
            self.journal.append(rows)
        except JournalError as error:
            self.trouble["journal"] = error.reason
            failed = ServiceError(503, "journal", error.reason, retry=5, remedy=error.remedy)
            return [failed] * len(requests)
        self.trouble.pop("journal", None)
        self.sequence = sequence
        if not self._noted:  # once for each journal; not vital, so a full disk refuses nothing
            with contextlib.suppress(sqlite3.Error, OSError):
                self.answers.note_journal(sequence)
                self._noted = True
        return [outcome for cut in cuts for outcome in self._learn_cut(cut)]

    def _with_forecasts(self, request: Request) -> Request:
        """Look up the forecasts that the rows of a request name. The journal keeps what is found."""
        ids, estimator = request.entries.given.get(FORECAST), self.learner.estimator
        if ids is None or request.mode is not None:
            return request
        found = None
        if not self.learner.is_new:
            try:
                found = self.forecasts.find(ids, no_forecast(estimator._fitted()))
                self.trouble.pop("forecasts", None)
            except (sqlite3.Error, OSError, EntryError) as error:
                self.trouble["forecasts"] = f"{self.forecasts.path}: {error}"
        return with_forecasts(request, found)

    def _learn_cut(self, cut: Sequence[Request]) -> list[Outcome]:
        """Learn requests in one call. The effect depends only on them and on the model."""
        cut = [self._with_types(request) for request in cut]
        before = self.learner.entries
        if cut[0].mode is None:
            outcomes = self._learned_together(cut)
            self._note_refused(cut, outcomes, self.learner.entries - before)
        else:
            outcomes = [self._described(cut[0])]
        first, self.learned = self.learned + 1, self.learned + len(cut)
        for sequence, (request, outcome) in enumerate(zip(cut, outcomes, strict=True), first):
            if request.key is not None and isinstance(outcome, bytes):
                self.answers.add(request.key, Answer(sequence, request.digest, outcome))
            if request.messages is not None:
                self._has_read(request.messages, request.entries, outcome)
        return outcomes

    def _note_refused(self, cut: Sequence[Request], outcomes: list[Outcome], learned: int) -> None:
        """Raise an alarm if most of the recent rows were refused. Who sends them may not read the answers."""
        rows = sum(each.entries.n_rows for each in cut)
        rows += sum(len(each.messages.bad) for each in cut if each.messages is not None)
        self._recent += rows
        self._refused += rows - learned
        if self._recent >= MIN_ROWS and 2 * self._refused > self._recent:
            errors = [each.body()["error"]["message"] for each in outcomes if isinstance(each, ServiceError)]
            share = f"{self._refused / self._recent:.0%} of the latest rows to learn were refused"
            self.trouble["refused"] = ": ".join([share, *errors[:1]])
        else:
            self.trouble.pop("refused", None)
        if self._recent > RECENT_ROWS:
            self._recent, self._refused = self._recent / 2, self._refused / 2

    def _with_types(self, request: Request) -> Request:
        """Only now is it certain what the columns are: a request before may have decided it."""
        if request.messages is None or not request.messages.texts:
            return request
        return request._replace(entries=attributes.with_types(self.learner, request.entries))

    def _has_read(self, messages: JournaledMessages, found: Entries, outcome: Outcome) -> None:
        """Advance the position in the stream together with the model."""
        rejected = messages.rejected(found, outcome)
        position = self.learner.position | messages.place
        position["bad"] = position.get("bad", 0) + len(rejected)
        self.learner.position = position
        if self.rejects is not None:
            self.rejects.add(messages, rejected, position["source"])

    def _learned_together(self, cut: Sequence[Request]) -> list[Outcome]:
        left_out: list[int] = []
        faults: list[Fault] = []

        def refuse(error: EntryError) -> None:
            if len(cut) > 1 or not cut[0].skip or error.column in given:
                raise error
            left_out.extend(error.rows)
            faults.extend(self._faults(cut[0].entries, error))

        parts = [without_forecasts(request) for request in cut]
        before, (ids, values, given) = self.learner.entries, joined([found for found, _ in parts])
        try:
            remembered = joined_forecasts([each for _, each in parts])
            learned = self.learner.learn(ids, values, refuse, given, remembered)
        except EntryError as error:  # nothing was learned
            if len(cut) > 1:
                return [self._learned_together([request])[0] for request in cut]
            found = cut[0].entries
            if error.column in given:
                others = attributes.bad_cells(self.learner, found, error)
                if others and cut[0].skip:
                    return self._learned_together([cut[0]._replace(entries=found.without_rows(others))])
            else:
                others = self._faults(found, error)
            others = others or [error]
            return [ServiceError(422, error.kind, error.reason, others=others)]
        self.learner.scores.forecasts.unknown[()] += sum(request.unknown for request in cut)
        if len(learned.values):
            self.learner.score(learned)
            likelihood = self.learner.estimator.likelihood_
            self.surprises.add(learned, self.learner.scores.entries, likelihood)
        if left_out:
            cut = [cut[0]._replace(entries=cut[0].entries.without(left_out, faults))]
        return self._answers(cut, learned, before)

    def _described(self, request: Request) -> Outcome:
        """Set attributes of nodes. The effect depends only on the request and on the model."""
        found, mode = request.entries, request.mode
        assert mode is not None
        notes: list[Warning] = []
        if len(found.rows):
            try:
                with warned() as notes:
                    self.learner.estimator.set_attributes(mode, {mode: found.columns[0], **found.given})
                self._described_any = True
            except EntryError as error:  # nothing was changed
                others = attributes.bad_cells(self.learner, found, error) or [error]
                return ServiceError(422, error.kind, error.reason, others=others)
        return orjson.dumps({"described": len(found.rows), "notes": as_notes(notes)})

    def _faults(self, found: Entries, error: EntryError) -> list[Fault]:
        """One fault for each entry that the model refused."""
        return [
            error.but(row=int(found.rows[place]), column=self.learner.value, value=float(found.values[place]))
            for place in error.rows
        ]

    def _answers(self, cut: Sequence[Request], learned: Learned, before: int) -> list[Outcome]:
        notes, likelihood = as_notes(learned.warnings), self.learner.estimator.likelihood_
        outcomes: list[Outcome] = []
        at = 0
        for request in cut:
            end = at + len(request.entries.rows)
            if request.messages is None:
                update = learned.numbered.update
                predicted = Prediction(*(each[at:end] for each in update[:3]))
                outcomes.append(answer(request, predicted, likelihood, before + end, notes))
            else:  # a stream does not use predictions
                outcomes.append(orjson.dumps({"skipped": skipped(request.entries)}))
            at = end
        return outcomes

    # --- files

    def replay(self) -> int:
        """Learn the requests in the journal after the model's position; returns how many."""
        wanted = wanted_to_learn(self.learner)
        n = 0
        for rows in self.journal.cuts(self.learned):
            try:
                requests = [journaled(row, wanted, self.learner) for row in rows]
            except ServiceError as error:
                reason = f"{self.journal.path}: request {rows[0].sequence} cannot be read: {error.reason}"
                raise JournalError(reason, kind="journal") from None
            self._learn_cut(requests)
            n += len(rows)
        return n

    def position_after_replay(self) -> Position:
        """The position that a replay will reach, needed to open a stream before replaying."""
        position = self.learner.position | {"value": self.learner.value}
        for rows in self.journal.cuts(self.learned):
            for row in rows:
                position |= place_of(row.body) if row.media_type == MESSAGES else {}
        return position

    def checkpoint(self) -> None:
        """Save the model with its position, unless the file has it; then start an empty journal."""
        learner = self.learner
        if learner.is_new:
            raise ServiceError(409, "nothing learned", "nothing learned yet, so there is nothing to save")
        if self.named and self.learned == self.checkpointed and learner.is_saved:
            return
        service = {"journal": self.journal.about["id"], "sequence": self.learned}
        learner.position = learner.position | {"value": learner.value, "service": service}
        try:
            self.answers.write()  # first: the journal, their other copy, is removed below
            if self.rejects is not None:
                self._write_rejects(self.rejects)
            learner.save()
            self.named = True
            if self.learned > self.checkpointed or self.journal.bytes:
                self.journal.start_empty()
            self._noted = False
            self.answers.write_scores(self.learned, learner.scores.state(learner.estimator))
        except (OSError, sqlite3.Error, JournalError, LearnerError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            own = isinstance(error, LearnerError)  # its reason names the file
            where = "" if own else f"{getattr(error, 'filename', None) or learner.path}: "
            self.trouble["checkpoint"] = f"{where}{reason}"
            raise ServiceError(503, "checkpoint", self.trouble["checkpoint"], retry=30) from error
        self.trouble.pop("checkpoint", None)
        self.checkpointed, self.saved_at, self.saved_entries = self.learned, time.monotonic(), learner.entries
        self.saved_stream = learner.position.get("stream")

    def _write_rejects(self, rejects: Rejects) -> None:
        """Write rejected messages before saving, since a saved model continues after them."""
        rejects.write()
        if rejects.letters is not None and not rejects.letters.are_sent(LETTERS_WAIT_S):
            raise OSError("cannot save before dead letters are sent; the journal has everything meanwhile")

    def tick(self) -> None:
        """Tidy up: after each checkpoint, and where all requests so far were refused."""
        if self.saved_at != self._tidied_at:
            self._drop_expired()
        # The model has learned and described nothing.
        if self.learner.is_new and not self._described_any and self.journal.bytes > REFUSED_BYTES:
            with contextlib.suppress(JournalError, sqlite3.Error, OSError):  # the next request says so
                self.answers.forget_journal()
                self.journal.start_empty()
            self.sequence, self.learned, self._noted = 0, 0, False

    def _drop_expired(self) -> None:
        """Drop forecasts whose time is over. Not by the writer of a checkpoint: questions add forecasts."""
        self._tidied_at = self.saved_at
        try:
            self.forecasts.drop_expired()
        except (sqlite3.Error, OSError) as error:
            self.trouble["forecasts"] = f"{self.forecasts.path}: {error}"

    def close(self) -> None:
        """Save, and remove the journal if nothing is left to replay."""
        try:
            if self.learned > self.checkpointed and not self.learner.is_new:
                self.checkpoint()
            self._drop_expired()
            if self.checkpointed >= self.sequence:  # else the file lacks requests
                self.journal.remove()
        finally:
            self.journal.close()
            self.answers.close()
            self.forecasts.close()


def _raised(error: EntryError) -> None:
    raise error
