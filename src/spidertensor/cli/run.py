"""A run of `spider fit`: a learner, a source, and the fate of its rows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor import sources
from spidertensor.cli import kept, output
from spidertensor.cli.bad_rows import BadRows, remedy_of_chunk
from spidertensor.cli.errors import CommandError, worded
from spidertensor.cli.notes import PrintedNotes
from spidertensor.cli.predictions import Predictions
from spidertensor.cluster.rounds import Rounds
from spidertensor.estimator.history import FEWEST, Pass
from spidertensor.estimator.times import NEXT_ENTRY
from spidertensor.faults import EntryError, Fault, SpiderWarning
from spidertensor.learner import labels
from spidertensor.learner.attributes import depends_on_order
from spidertensor.learner.chunks import first_in_two, in_pieces, in_rounds
from spidertensor.learner.first_batch import entries_needed, joined_first
from spidertensor.learner.floors import FLOORS
from spidertensor.learner.last_part import LastPart
from spidertensor.learner.learner import Learned, Learner
from spidertensor.learner.sample import Sample
from spidertensor.sources import BadRow, Chunk, OpenStream, Source, Stream, read
from spidertensor.sources.attributes import typed, with_types
from spidertensor.sources.bins import QUANTILE_NUMBERS

MANY_BAD_SHARE = 0.05  # of the rows
BLOCK_ENTRIES = 65_536  # learned between checks for signals, if each row is several entries
QUIET_S = 1.0  # time without a row after which a pipe counts as quiet


@dataclass
class RunTimes:
    """Seconds spent. The first chunk, with compiling, counts as `starting`; if all rows are read first, it is
    read like the others, and compiling counts as `learning`."""

    reading: float = 0.0
    starting: float = 0.0
    learning: float = 0.0
    timed: int = 0  # entries learned in `learning`


@dataclass
class Run:
    """State of one run. new: whether this run created the model"""

    learner: Learner
    source: Source | Stream
    new: bool = True
    missing: str = "error"  # treatment of missing ids: see sources.read
    keep: int = 0  # versions of the model to keep: see kept.py
    predicted: int | None = None  # bytes of the predictions file at the checkpoint to resume from
    predictions: Predictions | None = None
    rounds: Rounds | None = None  # if there are several workers
    added: list[str] = field(default_factory=list)  # attributes that the model did not have before
    described: frozenset[str] = frozenset()  # attributes from files of their own: see attribute_files.py
    collects: bool = False  # rows are read first, then learned in several passes
    once: str | None = None  # or why they are learned once, as they come
    opened: OpenStream | None = field(init=False, default=None)
    skipped: int = field(init=False, default=0)  # rows without an id
    bad: int = field(init=False, default=0)  # bad rows of this run
    times: RunTimes = field(init=False, default_factory=RunTimes)
    notes: PrintedNotes = field(init=False, default_factory=PrintedNotes)
    last_part: LastPart = field(init=False)

    def __post_init__(self) -> None:
        self.last_part = LastPart(self.learner.scores)

    def draw(self, negatives: int) -> None:
        """Let a new model learn so many negatives after each event."""
        self.learner.estimator.set_params(negatives=negatives)
        self.learner.__post_init__()  # scores and floors depend on them
        self.__post_init__()

    @property
    def row(self) -> int:
        return self.learner.position["row"]

    @property
    def entries(self) -> int:
        """Entries learned in this run."""
        return self.learner.scores.entries

    @property
    def place(self) -> str:
        return f"{self.source.format.unit} {self.row:,} of {self.source.name}"

    def _how(self) -> dict[str, Any]:
        """How rows are read."""
        learner, classes, texts = self.learner, self.learner.classes, self.learner.position["all_text"]
        return {
            "likelihood": learner.estimator.likelihood_,
            "all_text": texts and [texts[mode] for mode in learner.with_ids],
            "missing": self.missing, "bins": [learner.bins[mode] for mode in learner.with_ids],
            "attributes": learner.attributes,
            "labels": labels.label_texts(classes),
        }  # fmt: skip

    def looking_ahead(self) -> Iterator[Chunk]:
        """Read the rows of a history once before it is learned, if it depends on all of them what attributes
        are. Yields what has been read."""
        learner, estimator = self.learner, self.learner.estimator
        as_a_stream = not (self.collects and self.new) or estimator.known_at is not None
        if as_a_stream or isinstance(self.source, Stream) or not depends_on_order(estimator):
            return
        how = self._how()
        how["bins"] = copy.deepcopy(how["bins"])  # they take quantiles from the first rows they see
        sample = Sample(estimator.random_state or 0)
        for chunk in read(self.source, learner.id_columns, learner.value, **how):
            sample.add(chunk.attributes, len(chunk.rows))
            yield chunk
        few = estimator.passes == "auto" and estimator.time is None and sample.n_rows < FEWEST
        if sample.n_rows and not few:
            given, wrong = typed(sample.columns(), learner.kinds, self.source)
            learner.look_ahead({name: np.delete(column, list(wrong)) for name, column in given.items()})

    def chunks(self) -> Iterator[Chunk]:
        learner, position, how = self.learner, self.learner.position, self._how()
        if isinstance(self.source, Stream):
            at = position["stream"]
            self.opened = sources.open(self.source, learner.id_columns, learner.value, position=at, **how)
            chunks = self.opened.chunks(QUIET_S)
        else:
            at = {"skip": position["row"], "last": position["last"]}
            needed = learner.attributes if self.new else self.added
            needed = [name for name in needed if name not in self.described]
            chunks = read(
                self.source, learner.id_columns, learner.value, quiet=QUIET_S, needed=needed, **at, **how
            )
        if learner.value is None:
            chunks = (chunk._replace(values=np.ones(len(chunk.rows))) for chunk in chunks)
        if self.new:
            chunks = joined_first(chunks, learner.estimator.batch_size, self._note_first)
            if learner.attributes and not isinstance(self.source, Stream):
                # what columns are must not depend on how many rows arrive at once
                chunks = first_in_two(chunks, learner.estimator.batch_size)
        # A stream's position is known only at the end of a chunk, so its chunks also end rounds.
        if self.rounds is not None and self.rounds.workers > 1 and not isinstance(self.source, Stream):
            return in_rounds(chunks, self._in_whole_rounds, lambda: entries_needed(learner.estimator))
        if learner.rule is not None and not isinstance(self.source, Stream):
            return in_pieces(chunks, max(1, BLOCK_ENTRIES // (1 + learner.rule.negatives)))
        return chunks

    def _in_whole_rounds(self, n: int) -> int:
        assert self.rounds is not None
        return self.rounds.whole(self.learner.entries, n)

    def _note_first(self, n: int, quiet: bool) -> None:
        """Note if the scale or quantiles come from few rows, because the pipe went quiet."""
        estimator = self.learner.estimator
        if quiet and estimator.likelihood_.scaled and estimator.get_params().get("scaling") is None:
            values = output.counted(n, "value")
            reason = f"{self.source.name} is quiet, so the scale is estimated from its first {values}"
            remedy = "if they are not representative, use --scaling SHIFT,SCALE"
            self.notes.tell(SpiderWarning(reason, kind="quiet", remedy=remedy))
        for name, each in zip(self.learner.modes, self.learner.bins, strict=True):
            if self.source.path is None and each and 0 < each.taken < QUANTILE_NUMBERS:
                reason = f"quantiles are based on only {output.counted(each.taken, 'number')}"
                self.notes.tell(SpiderWarning(reason, kind="few quantiles", column=name))

    def learn(self, chunk: Chunk, rejected: BadRows) -> None:
        """Learn a whole chunk or, if an error is raised, nothing of it."""
        learner, before, learned = self.learner, rejected.count, None
        if self.new and learner.is_new:
            self._note_absent(chunk)
        chunk = with_types(chunk, learner.kinds, self.source, learner.id_columns)
        self._reject(chunk, rejected)
        if len(chunk.rows):
            assert chunk.values is not None

            def refuse(error: EntryError) -> None:
                rejected.take(_bad_rows(chunk, error, learner.columns), chunk.place)

            try:
                if self.collects:
                    learner.collect(chunk.columns, chunk.values, refuse, chunk.attributes)
                else:
                    learned = learner.learn(chunk.columns, chunk.values, refuse, chunk.attributes)
            except (ValueError, ModuleNotFoundError) as error:  # an invalid setting, or no JAX
                if isinstance(error, Fault):
                    raise
                raise CommandError(str(error)) from None
        # first of all, because the chunk now counts as learned
        bad = rejected.count - before
        learner.position["bad"] += bad
        learner.position |= {"row": chunk.end, "last": chunk.last, "stream": chunk.position}
        self.skipped += chunk.skipped
        self.bad += bad
        if learned is not None:
            self._score(learned)
            if self.predictions is not None and len(learned.values):
                value = learned.values if learner.classes is None else learner.labels(learned.values)
                columns = [*learned.ids, *([] if learner.value is None else [value])]
                likelihood = learner.estimator.likelihood_
                self.predictions.add(chunk.rows[learned.kept], columns, learned.numbered.update, likelihood)

    def learn_collected(self, stop: Callable[[], bool]) -> Iterator[Pass | None]:
        """Learn the rows that were read; yields each pass when it is over, and None in between."""
        scores, latest = self.learner.scores, None
        for step in self.learner.learn_collected(stop):
            if isinstance(step, Learned):
                latest = self._score(step)
            yield step if isinstance(step, Pass) else None
        if latest is not None:  # which are those of the judge, if there is one
            self.learner.estimator._keep_floors(
                dict(zip(FLOORS, scores.in_units(latest[1:].mean(axis=1)), strict=True))
            )
            if self.learner.estimator.history_ is not None:
                self.last_part.judge(latest)

    def _score(self, learned: Learned) -> NDArray[np.float64]:
        """Returns the losses of the model and of the floors: Scores.add."""
        self.notes.tell_warnings(learned.warnings)
        losses = self.learner.score(learned)
        self.last_part.add(losses)
        return losses

    def _note_absent(self, chunk: Chunk) -> None:
        """Note if the first rows of a source without a header have nothing in a column: a wrong name?"""
        for name, column in chunk.attributes.items():
            if name not in self.described and all(each is None for each in column.tolist()):
                n = output.counted(len(chunk.rows), "row")
                reason = f"the first {n} of {self.source.name} have no {name}"
                remedy = "check the name in --modes"
                self.notes.tell(SpiderWarning(reason, kind=f"no {name}", remedy=remedy))

    def _reject(self, chunk: Chunk, rejected: BadRows) -> None:
        estimator, classes = self.learner.estimator, self.learner.classes
        binary = estimator.likelihood_.binary and not estimator.learns_events
        texts = labels.label_texts(classes)
        ids, value = self.learner.id_columns, self.learner.value
        found = remedy_of_chunk(chunk, chunk.bad, ids, value, binary=binary, labels=texts)
        rejected.take(chunk.bad, chunk.place, found)

    def note_the_end(self) -> None:
        """PrintedNotes that need all rows to be learned."""
        with self.notes.of_warnings():
            self.learner.estimator._warn_at_end()
        if self.learner.case == NEXT_ENTRY:  # else the floors know values earlier than the model
            for each in self.last_part.notes():
                self.notes.tell(each)
        rows = self.bad + self.entries
        if self.bad > MANY_BAD_SHARE * rows:
            reason = f"{self.bad / rows:.0%} of {output.counted(rows, 'row')} were bad and skipped"
            remedy = "--on-bad file writes them to a file with the reasons"
            self.notes.tell(SpiderWarning(reason, kind="bad rows", remedy=remedy))

    def open_predictions(self, path: Path, *, replace: bool) -> None:
        learner = self.learner
        self.predictions = Predictions(
            path, learner.columns, learner.estimator.likelihood_, size=self.predicted, replace=replace
        )

    def save(self) -> None:
        learner = self.learner
        bins = [each and each.to_json() for each in learner.bins] if any(learner.bins) else None
        learner.position |= {"missing_id": str(self.missing), "bins": bins}
        if self.predictions is not None:
            learner.position["predictions"] = self.predictions.flush()
        if self.keep and self.entries:
            kept.before_run(learner.path, self.keep)
            self.keep = 0  # the next save replaces a checkpoint of this run
        learner.save()
        if self.opened is not None and learner.position["stream"] is not None:
            self.opened.commit(learner.position["stream"])

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()


def _bad_rows(chunk: Chunk, error: EntryError, names: list[str]) -> list[BadRow]:
    """The rows of a chunk that the model refused."""
    assert chunk.values is not None
    bad = []
    for place in error.rows:
        value = float(chunk.values[place])
        raw = dict(zip(names, [*(column[place] for column in chunk.columns), value], strict=False))
        raw |= {name: column[place] for name, column in chunk.attributes.items()}
        reason = worded(error.but(row=None, value=value))
        bad.append(BadRow(int(chunk.rows[place]), reason, output.plain(raw)))
    return bad
