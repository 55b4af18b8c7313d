"""A model that learns a source, and how far it has come (position.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from spidertensor import sources
from spidertensor.cli import event_options, files, kept, output, position, text_labels
from spidertensor.cli.bad_rows import BadRows
from spidertensor.cli.chunks import in_pieces, in_rounds, joined
from spidertensor.cli.errors import CommandError, told
from spidertensor.cli.notes import Notes
from spidertensor.cli.predictions import Predictions
from spidertensor.cli.tally import Tally
from spidertensor.cluster.rounds import Rounds
from spidertensor.estimator import SpiderClassifier, SpiderRegressor
from spidertensor.estimator.eviction import Numbered
from spidertensor.estimator.inputs import Columns
from spidertensor.estimator.labels import Classes, Label, are_zero_one
from spidertensor.faults import EntryError, SpiderWarning
from spidertensor.sources import BadRow, Bins, Chunk, OpenStream, Source, Stream, read
from spidertensor.sources.bins import PATIENCE, SAMPLE

MANY_BAD = 0.05  # share of the rows
AT_ONCE = 65_536  # entries learned between two looks at signals, where each row is several
QUIET = 1.0  # seconds without a row, after which a pipe is quiet


@dataclass
class Learner:
    """A model, and how far it has come with a source."""

    estimator: SpiderRegressor | SpiderClassifier
    path: Path
    source: Source | Stream
    modes: list[str]
    value: str | None  # None of events
    all_text: list[bool] | None
    row: int = 0
    bad: int = 0
    last: str | None = None
    stream: dict[str, Any] | None = None  # the position in a stream; None for a file
    opened: OpenStream | None = field(init=False, default=None)
    before: list[position.Place] = field(default_factory=list)  # files that the model learned earlier
    new: bool = True
    missing: str = "error"  # what a missing id is: sources.read
    bins: list[Bins | None] = field(default_factory=list)
    skipped: int = 0  # rows that were left out because an id is missing
    bad_now: int = 0  # bad rows of this run
    classes: Classes | None = None  # labels that are not 0 and 1
    keep: int = 0  # versions to keep of the model: see kept.py
    predicted: int | None = None  # bytes of the file of predictions at the checkpoint that it goes on from
    predictions: Predictions | None = None
    rounds: Rounds | None = None  # of several workers
    tally: Tally = field(init=False)
    notes: Notes = field(init=False, default_factory=Notes)

    def __post_init__(self) -> None:
        try:
            self.rule = self.estimator.rule_of(self.modes)
        except ValueError as error:
            raise CommandError(str(error)) from None
        self.tally = Tally(self.estimator.likelihood_, len(self.modes), self.rule)
        self.head = self.source.head()

    @property
    def place(self) -> str:
        return f"{self.source.format.unit} {self.row:,} of {self.source.name}"

    def chunks(self) -> Iterator[Chunk]:
        how = {
            "likelihood": self.estimator.likelihood_, "all_text": self.all_text, "missing": self.missing,
            "bins": self.bins, "labels": self._label_texts(),
        }  # fmt: skip
        if isinstance(self.source, Stream):
            self.opened = sources.open(self.source, self.modes, self.value, position=self.stream, **how)
            chunks = self.opened.chunks(QUIET)
        else:
            place = {"skip": self.row, "last": self.last}
            chunks = read(self.source, self.modes, self.value, quiet=QUIET, **place, **how)
        if self.value is None:
            chunks = (chunk._replace(values=np.ones(len(chunk.rows))) for chunk in chunks)
        chunks = self._large_first(chunks) if self.new else chunks
        # The position in a stream is known where its chunks end, so these also end rounds.
        if self.rounds is not None and self.rounds.workers > 1 and not isinstance(self.source, Stream):
            return in_rounds(chunks, self._in_whole_rounds, self._least)
        if self.rule is not None and not isinstance(self.source, Stream):
            return in_pieces(chunks, max(1, AT_ONCE // (1 + self.rule.negatives)))
        return chunks

    def _in_whole_rounds(self, n: int) -> int:
        assert self.rounds is not None
        known = self.estimator.__sklearn_is_fitted__()
        return self.rounds.whole(self.estimator.n_entries_ if known else 0, n)

    def _least(self) -> int:
        """Rows of the next chunk: the scale is taken from a first one."""
        return 1 if self.estimator.__sklearn_is_fitted__() else self.estimator.batch_size

    @property
    def columns(self) -> list[str]:
        """The names of the modes and of the value, if there is one."""
        return [*self.modes, *([] if self.value is None else [self.value])]

    def _large_first(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """Chunks joined until the first has `batch_size` entries, from which the scale is taken.

        A pipe may give fewer at once, and how much arrived at once must not change the model; but rows of a
        pipe that stays quiet must not wait for ever.
        """
        first, n, left = None, self.estimator.batch_size, PATIENCE
        for chunk in chunks:
            left = left - 1 if chunk.quiet else PATIENCE
            if not chunk.quiet:
                first = chunk if first is None else joined(first, chunk)
            if first is not None and (len(first.rows) >= n or (left <= 0 and len(first.rows))):
                break
            if chunk.quiet:
                yield chunk
        if first is not None:
            if left <= 0 and len(first.rows) < n:
                self._note_few(len(first.rows))
            self._note_bins()
            yield first
        yield from chunks

    def _note_bins(self) -> None:
        """A pipe that is quiet gives fewer numbers than there would be without a pause."""
        for name, each in zip(self.modes, self.bins, strict=True):
            if self.source.path is None and each and 0 < each.taken < SAMPLE:
                reason = f"the quantiles are those of the first {output.counted(each.taken, 'number')}"
                self.notes.tell(SpiderWarning(reason, kind="few quantiles", column=name))

    def _note_few(self, n: int) -> None:
        if self.estimator.likelihood_.scaled and self.estimator.get_params().get("scaling") is None:
            values = output.counted(n, "value")
            reason = f"{self.source.name} is quiet, so the scale is that of its first {values}"
            remedy = "if they may mislead, pass --scaling SHIFT,SCALE"
            self.notes.tell(SpiderWarning(reason, kind="quiet", remedy=remedy))

    def _label_texts(self) -> tuple[str, str] | None:
        return self.classes and (text_labels.text(self.classes[0]), text_labels.text(self.classes[1]))

    def _learned(self, chunk: Chunk) -> Numbered:
        if self.classes is None or isinstance(self.estimator, SpiderRegressor):
            return self.estimator.learn_numbered(self._ids(chunk), chunk.values)
        return self.estimator.learn_numbered(self._ids(chunk), self._labels(chunk), classes=self.classes)

    def _labels(self, chunk: Chunk) -> list[Label]:
        assert chunk.values is not None
        assert self.classes is not None
        return [self.classes[int(value)] for value in chunk.values]

    def _take(self, chunk: Chunk, rejected: BadRows) -> None:
        try:
            rejected.take(chunk.bad, chunk.place)
        except CommandError as error:
            labels = self.estimator.likelihood_.binary and not self.estimator.learns_events
            if not labels or self.classes is not None:
                raise
            raise CommandError(f"{error}; labels other than 0 and 1 are named with --labels no,yes") from None

    def learn(self, chunk: Chunk, rejected: BadRows) -> None:
        """All of a chunk or, after an error, nothing of it."""
        before, learned = rejected.count, None
        self._take(chunk, rejected)
        while len(chunk.rows):
            assert chunk.values is not None
            try:
                with self.notes.of_warnings():
                    learned = self._learned(chunk)
            except EntryError as error:  # values that only the estimator can judge, by their scale
                if not error.rows:
                    raise
                chunk, bad = _without(chunk, error, self)
                rejected.take(bad, chunk.place)
            except (ValueError, ModuleNotFoundError) as error:  # an impossible setting, or no JAX
                raise CommandError(str(error)) from None
            else:
                break
        # before anything else can fail: from here on the chunk counts as learned
        self.row, self.last, self.stream = chunk.end, chunk.last, chunk.position
        self.bad += rejected.count - before
        self.skipped += chunk.skipped
        self.bad_now += rejected.count - before
        if learned is not None:
            self.tally.add(chunk.values, learned, self.estimator.shift_)
            if self.predictions is not None:
                value = chunk.values if self.classes is None else self._labels(chunk)
                columns = [*chunk.columns, *([] if self.value is None else [value])]
                self.predictions.add(chunk.rows, columns, learned.update)

    def note_the_end(self) -> None:
        """What can only be said, or is only sure, when all rows are learned."""
        with self.notes.of_warnings():
            self.estimator.warn_at_end()
        for each in self.tally.notes():
            self.notes.tell(each)
        rows = self.bad_now + self.tally.entries
        if self.bad_now > MANY_BAD * rows:
            reason = f"{self.bad_now / rows:.0%} of {output.counted(rows, 'row')} were bad and left out"
            remedy = "--on-bad file writes them to a file, each with the reason"
            self.notes.tell(SpiderWarning(reason, kind="bad rows", remedy=remedy))

    def _ids(self, chunk: Chunk) -> Columns:
        # Names only for a new model: one that was saved without names learns its columns by position.
        return Columns(chunk.columns, tuple(self.modes) if self.new else None)

    def open_predictions(self, path: Path, *, replace: bool) -> None:
        likelihood = self.estimator.likelihood_
        self.predictions = Predictions(path, self.columns, likelihood, size=self.predicted, replace=replace)

    def save(self) -> None:
        where = {
            "source": self.source.name if self.source.path is None else Path(self.source.path).name,
            "head": self.head,
            "row": self.row,
            "bad": self.bad,
            "last": self.last,
            "stream": self.stream,
            "version": position.VERSION,
            "value": self.value,
            "all_text": self.all_text,
            "before": self.before,
            "missing_id": str(self.missing),
            "bins": [each and each.to_json() for each in self.bins] if any(self.bins) else None,
        }
        if isinstance(known := self.estimator.position_, dict) and "service" in known:
            where["service"] = known["service"]  # a server finds its journal and its answers by it
        if self.predictions is not None:
            where["predictions"] = self.predictions.flush()
        if self.keep and self.tally.entries:
            kept.before_run(self.path, self.keep)
            self.keep = 0  # the next save replaces a checkpoint of this run
        self.estimator.save(self.path, where)
        if self.opened is not None and self.stream is not None:
            self.opened.commit(self.stream)

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()


def start(
    path: Path,
    source: Source | Stream,
    modes: list[str] | None,
    value: str | None,
    *,
    binary: bool,
    paper: bool,
    classes: Classes | None = None,
    rules: dict[str, str] | None = None,
    **settings: Any,
) -> Learner:
    """rules: of bins, by the names of modes"""
    events = "negatives" in settings
    if modes is None or (value is None and not events):
        raise CommandError("a new model needs --modes and --value, or --events for rows without a value")
    kind = SpiderClassifier if binary or events else SpiderRegressor
    for name in ("scaling", "clip"):
        if kind is SpiderClassifier and name in settings:
            raise CommandError(
                f"--{name} is for continuous values, not with --{'events' if events else 'binary'}"
            )
    estimator = (kind.paper if paper else kind)(**settings)
    texts = None if source.format.typed else [False] * len(modes)
    own = None if classes is None or are_zero_one(classes) else classes
    rules = rules or {}
    if unknown := [name for name in rules if name not in modes]:
        raise CommandError(f"--bin {unknown[0]}: bins are for a mode: name it in --modes, too")
    bins = [Bins(rules[name]) if name in rules else None for name in modes]
    learner = Learner(estimator, path, source, modes, value, texts, bins=bins, classes=own)
    if events and isinstance(source, Source) and (note := event_options.unlearned_labels(source, modes)):
        learner.notes.tell(note)
    return learner


def reopen(
    path: Path, source: Source | Stream, value: str | None, *, add: bool, again: bool, network: str | None
) -> Learner:
    """The model of an earlier run, to go on with `source`.

    add: learn the source from its start; again: even if the model knows it
    """
    estimator = files.load_model(path, network)
    stored = position.of(estimator.position_, len(estimator.mode_names_))
    if stored is None and not add:
        raise CommandError(f"{path}: was not made by spider fit: use --add to learn a source on top of it")
    value = stored["value"] if stored else position.value(estimator.position_) or value
    if value is None and not estimator.learns_events:
        raise CommandError(f"{path}: does not say which column has the value: use --value")
    texts = None
    if not source.format.typed or (stored and stored["all_text"]):
        texts = files.all_text(estimator)
    known = position.places(stored)
    place = position.find(known, source)
    before = position.others(known, place)
    learner = Learner(
        estimator, path, source, estimator.mode_names_, value, texts, before=before, new=False,
        missing=position.missing_id(stored), bins=files.bins(estimator), classes=text_labels.of(estimator),
    )  # fmt: skip
    if add:
        if not again:
            position.check_new(place, path, source)
    elif place is None:
        raise CommandError(
            f"{path}: has learned another source ({known[0]['source']}): "
            f"use --add to learn {source.name} on top of it"
        )
    else:
        learner.row, learner.bad, learner.last = place["row"], place["bad"], place["last"]
        learner.stream = place["stream"]
        if learner.stream is not None and place["source"] != source.name:
            output.note(f"note: {path} was learned from {place['source']}, and goes on with {source.name}")
        if stored is not None and place is known[0]:
            learner.predicted = position.predicted(stored)
    return learner


def check_same(
    learner: Any,
    modes: list[str] | None,
    value: str | None,
    *,
    binary: bool,
    paper: bool,
    classes: Classes | None = None,
    rules: dict[str, str] | None = None,
    **settings: Any,
) -> None:
    """Options that describe a model must agree with the model that exists.

    learner: a Learner, or the model of a server
    """
    estimator = learner.estimator
    facts = {
        "modes": learner.modes,
        "value": learner.value,
        "binary": isinstance(estimator, SpiderClassifier),
        "labels": text_labels.in_words(learner.classes),
        "bin": {name: each.rule for name, each in zip(learner.modes, learner.bins, strict=True) if each},
        **estimator.get_params(),
    }
    given = settings
    labels = classes and text_labels.in_words(classes)
    if paper:
        settings = type(estimator).paper(**settings).get_params()
    said = {
        "modes": modes, "value": value, "binary": binary or None, "labels": labels, "bin": rules,
    }  # fmt: skip
    for name, wanted in {**said, **settings}.items():
        if (wanted is not None or name in given) and _listed(facts.get(name)) != _listed(wanted):
            has = event_options.named({name: facts.get(name)}, learner.modes)[name]
            wanted = event_options.named({name: wanted}, learner.modes)[name]
            raise CommandError(f"{learner.path} has {name} {has!r}, the command says {wanted!r}")


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _without(chunk: Chunk, error: EntryError, learner: Learner) -> tuple[Chunk, list[BadRow]]:
    """The chunk without the rows of the error, and these as bad rows."""
    assert chunk.values is not None
    bad = []
    for place in error.rows:
        value = float(chunk.values[place])
        fields = [*(column[place] for column in chunk.columns), value]
        raw = dict(zip(learner.columns, fields, strict=False))  # an event has no value
        reason = told(error.but(row=None, value=value))
        bad.append(BadRow(int(chunk.rows[place]), reason, output.plain(raw)))
    good = np.ones(len(chunk.rows), bool)
    good[list(error.rows)] = False
    rest = chunk._replace(
        columns=[column[good] for column in chunk.columns], values=chunk.values[good], rows=chunk.rows[good]
    )
    return rest, bad
