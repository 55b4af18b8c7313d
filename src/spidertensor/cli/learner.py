"""A model that learns a source, and how far it has come: its position.

The position is stored in the model file, so that both always agree:

    source, head    the file's name, and what recognises the file if it is moved (None: standard input)
    row, bad        the last row that was learned or left out, and how many were left out so far
    last            the digest of that row's line, which must not change; None if the source has no lines
    value           the column of the values
    all_text        per mode, whether "42" is a text; None as long as every source had types
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from spidertensor.cli import files, output
from spidertensor.cli.bad_rows import BadRows
from spidertensor.cli.errors import CommandError, told
from spidertensor.cli.tally import Tally
from spidertensor.estimator import SpiderClassifier, SpiderRegressor
from spidertensor.estimator.inputs import Columns
from spidertensor.faults import EntryError, Fault
from spidertensor.sources import BadRow, Chunk, Source, read
from spidertensor.sources.source import HEAD


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
            all_text=self.all_text, skip=self.row, last=self.last,
        )  # fmt: skip
        return _large_first(chunks, self.estimator.batch_size) if self.new else chunks

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
        position = {
            "source": self.source.name if self.source.path is None else Path(self.source.path).name,
            "head": self.head,
            "row": self.row,
            "bad": self.bad,
            "last": self.last,
            "value": self.value,
            "all_text": self.all_text,
        }
        self.estimator.save(self.path, position)


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


def reopen(path: Path, source: Source, value: str | None, *, add: bool, network: str | None) -> Learner:
    """The model of an earlier run. add: it learns `source` from the start, whatever it learned before."""
    estimator = files.load_model(path, network)
    position = _position(estimator)
    if position is None and not add:
        raise CommandError(f"{path}: was not made by spider fit: use --add to learn a source on top of it")
    value = position["value"] if position else value
    if value is None:
        raise CommandError(f"{path}: does not say which column has the value: use --value")
    texts = None
    if not source.format.typed or (position and position["all_text"]):
        texts = files.all_text(estimator)
    learner = Learner(estimator, path, source, estimator.mode_names_, value, texts, new=False)
    if position and not add:
        if not source.has_head(position["head"]):
            raise CommandError(
                f"{path}: has learned another source ({position['source']}): "
                f"use --add to learn {source.name} on top of it"
            )
        learner.row, learner.bad, learner.last = position["row"], position["bad"], position.get("last")
    return learner


def _position(estimator: Any) -> dict[str, Any] | None:
    """The position in a model file, if `save` has written it."""
    match estimator.position_:
        case {
            "source": str(),
            "head": None | {"bytes": int(), "sha256": str()},
            "row": int(),
            "bad": int(),
            "value": str(),
            "all_text": None | list(),
        } as position if _possible(position, len(estimator.mode_names_)):
            return position
    return None


def _possible(position: dict[str, Any], n_modes: int) -> bool:
    """Whether its numbers can be those of a source: a file may come from anybody."""
    head, texts = position["head"] or {"bytes": 0}, position["all_text"]
    counts = (position["row"], position["bad"], head["bytes"])
    return (
        all(type(n) is int and 0 <= n < 2**63 for n in counts)
        and head["bytes"] <= HEAD
        and isinstance(position.get("last"), str | None)
        and (texts is None or [type(each) for each in texts] == [bool] * n_modes)
    )


def check_same(
    learner: Learner,
    modes: list[str] | None,
    value: str | None,
    *,
    binary: bool,
    paper: bool,
    **settings: Any,
) -> None:
    """Options that describe a model must agree with the model that exists."""
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


def _large_first(chunks: Iterator[Chunk], n: int) -> Iterator[Chunk]:
    """Chunks joined until the first has n entries, from which the scale of the values is taken.

    A pipe may give fewer at once, and how much arrived at once must not change the model.
    """
    first: Chunk | None = None
    for chunk in chunks:
        first = chunk if first is None else _joined(first, chunk)
        if len(first.rows) >= n:
            yield first
            first = None
            break
    if first is not None:
        yield first
    yield from chunks


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
