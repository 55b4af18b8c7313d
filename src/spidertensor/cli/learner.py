"""A model that learns a source, and how far it has come (position.py)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from spidertensor.cli import files, output, position
from spidertensor.cli.bad_rows import BadRows
from spidertensor.cli.errors import CommandError, told
from spidertensor.cli.tally import Tally
from spidertensor.estimator import SpiderClassifier, SpiderRegressor
from spidertensor.estimator.inputs import Columns
from spidertensor.faults import EntryError, Fault
from spidertensor.sources import BadRow, Chunk, Source, read

QUIET = 1.0  # seconds without a row, after which a pipe is quiet
PATIENCE = 5  # times that it is quiet before fewer first rows than `batch_size` are learned


@dataclass
class Learner:
    """A model, and how far it has come with a source."""

    estimator: SpiderRegressor | SpiderClassifier
    path: Path
    source: Source
    modes: list[str]
    value: str
    all_text: list[bool] | None
    row: int = 0
    bad: int = 0
    last: str | None = None
    before: list[position.Place] = field(default_factory=list)  # files that the model learned earlier
    new: bool = True
    tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        self.tally = Tally(self.estimator.likelihood)
        self.head = self.source.head()

    @property
    def place(self) -> str:
        return f"{self.source.format.unit} {self.row:,} of {self.source.name}"

    def chunks(self) -> Iterator[Chunk]:
        chunks = read(
            self.source, self.modes, self.value, likelihood=self.estimator.likelihood,
            all_text=self.all_text, skip=self.row, last=self.last, quiet=QUIET,
        )  # fmt: skip
        return self._large_first(chunks) if self.new else chunks

    def _large_first(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """Chunks joined until the first has `batch_size` entries, from which the scale is taken.

        A pipe may give fewer at once, and how much arrived at once must not change the model; but rows of a
        pipe that stays quiet must not wait for ever.
        """
        first, n, left = None, self.estimator.batch_size, PATIENCE
        for chunk in chunks:
            left = left - 1 if chunk.quiet else PATIENCE
            if not chunk.quiet:
                first = chunk if first is None else _joined(first, chunk)
            if first is not None and (len(first.rows) >= n or (left <= 0 and len(first.rows))):
                break
            if chunk.quiet:
                yield chunk
        if first is not None:
            if left <= 0 and len(first.rows) < n:
                self._note_few(len(first.rows))
            yield first
        yield from chunks

    def _note_few(self, n: int) -> None:
        if self.estimator.likelihood.scaled and self.estimator.get_params().get("scaling") is None:
            values = output.counted(n, "value")
            output.note(
                f"note: {self.source.name} is quiet, so the scale is that of its first {values}: if they may "
                "mislead, pass --scaling SHIFT,SCALE"
            )

    def learn(self, chunk: Chunk, rejected: BadRows) -> None:
        """All of a chunk or, after an error, nothing of it."""
        before, update = rejected.count, None
        rejected.take(chunk.bad)
        while len(chunk.rows):
            assert chunk.values is not None
            try:
                with _warnings_noted():
                    update = self.estimator.learn(self._ids(chunk), chunk.values)
            except EntryError as error:  # values that only the estimator can judge, by their scale
                if not error.rows:
                    raise
                chunk, bad = _without(chunk, error, self)
                rejected.take(bad)
            except (ValueError, ModuleNotFoundError) as error:  # an impossible setting, or no JAX
                raise CommandError(str(error)) from None
            else:
                break
        # before anything else can fail: from here on the chunk counts as learned
        self.row, self.last = chunk.end, chunk.last
        self.bad += rejected.count - before
        if update is not None:
            self.tally.add(chunk.values, update, self.estimator.shift_)

    def _ids(self, chunk: Chunk) -> Columns:
        # Names only for a new model: one that was saved without names learns its columns by position.
        return Columns(chunk.columns, tuple(self.modes) if self.new else None)

    def save(self) -> None:
        where = {
            "source": self.source.name if self.source.path is None else Path(self.source.path).name,
            "head": self.head,
            "row": self.row,
            "bad": self.bad,
            "last": self.last,
            "value": self.value,
            "all_text": self.all_text,
            "before": self.before,
        }
        self.estimator.save(self.path, where)


def start(
    path: Path,
    source: Source,
    modes: list[str] | None,
    value: str | None,
    *,
    binary: bool,
    paper: bool,
    **settings: Any,
) -> Learner:
    if modes is None or value is None:
        raise CommandError("a new model needs --modes and --value")
    kind = SpiderClassifier if binary else SpiderRegressor
    for name in ("scaling", "clip"):
        if binary and name in settings:
            raise CommandError(f"--{name} is for continuous values, not with --binary")
    estimator = (kind.paper if paper else kind)(**settings)
    texts = None if source.format.typed else [False] * len(modes)
    return Learner(estimator, path, source, modes, value, texts)


def reopen(
    path: Path, source: Source, value: str | None, *, add: bool, again: bool, network: str | None
) -> Learner:
    """The model of an earlier run, to go on with `source`.

    add: learn the source from its start; again: even if the model knows it
    """
    estimator = files.load_model(path, network)
    stored = position.of(estimator.position_, len(estimator.mode_names_))
    if stored is None and not add:
        raise CommandError(f"{path}: was not made by spider fit: use --add to learn a source on top of it")
    value = stored["value"] if stored else value
    if value is None:
        raise CommandError(f"{path}: does not say which column has the value: use --value")
    texts = None
    if not source.format.typed or (stored and stored["all_text"]):
        texts = files.all_text(estimator)
    known = position.places(stored)
    place = position.find(known, source)
    before = position.others(known, place)
    learner = Learner(estimator, path, source, estimator.mode_names_, value, texts, before=before, new=False)
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
    return learner


def check_same(
    learner: Any,
    modes: list[str] | None,
    value: str | None,
    *,
    binary: bool,
    paper: bool,
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
        **estimator.get_params(),
    }
    given = settings
    if paper:
        settings = type(estimator).paper(**settings).get_params()
    for name, wanted in {"modes": modes, "value": value, "binary": binary or None, **settings}.items():
        if (wanted is not None or name in given) and _listed(facts.get(name)) != _listed(wanted):
            raise CommandError(f"{learner.path} has {name} {facts.get(name)!r}, the command says {wanted!r}")


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _joined(a: Chunk, b: Chunk) -> Chunk:
    assert a.values is not None
    assert b.values is not None
    return b._replace(
        columns=[_concatenated(*pair) for pair in zip(a.columns, b.columns, strict=True)],
        values=np.concatenate([a.values, b.values]),
        rows=np.concatenate([a.rows, b.rows]),
        bad=[*a.bad, *b.bad],
    )


def _concatenated(a: Any, b: Any) -> Any:
    return np.concatenate([a, b] if a.dtype == b.dtype else [a.astype(object), b.astype(object)])


def _without(chunk: Chunk, error: EntryError, learner: Learner) -> tuple[Chunk, list[BadRow]]:
    """The chunk without the rows of the error, and these as bad rows."""
    assert chunk.values is not None
    names = [*learner.modes, learner.value]
    bad = []
    for place in error.rows:
        value = float(chunk.values[place])
        raw = dict(zip(names, [*(column[place] for column in chunk.columns), value], strict=True))
        reason = told(error.but(row=None, value=value))
        bad.append(BadRow(int(chunk.rows[place]), reason, output.plain(raw)))
    good = np.ones(len(chunk.rows), bool)
    good[list(error.rows)] = False
    rest = chunk._replace(
        columns=[column[good] for column in chunk.columns], values=chunk.values[good], rows=chunk.rows[good]
    )
    return rest, bad


@contextmanager
def _warnings_noted() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for each in caught:
        text = told(each.message) if isinstance(each.message, Fault) else str(each.message)
        output.note(f"note: {text}")
