"""The loop behind `spider fit`: chunks in, a model with its position out, and signals in between.

A position is what `save` stores beside the model, so that both always agree:

    source, head    the file's name, and what it is recognised by if it is moved (None: standard input)
    row             up to which row everything has been learned or left out, and `bad`, how many were left out
    last            the digest of that row's line, which must not change; None: not a source of lines
    value           the column of the values
    all_text        per mode, whether "42" on a line is the text; None before a text source was read
"""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.cli import common
from spidertensor.cli.common import BadRows, CommandError
from spidertensor.cli.progress import Progress, Tally, summary
from spidertensor.cli.signals import Signals, Stopped
from spidertensor.estimator import SpiderClassifier, SpiderRegressor
from spidertensor.estimator.fitted import FARTHEST
from spidertensor.estimator.inputs import EntryError
from spidertensor.estimator.parameters import LARGEST
from spidertensor.sources import BadRow, Chunk, Source, read


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
        self.binary = isinstance(self.estimator, SpiderClassifier)
        self.tally = Tally(self.binary)
        self.head = self.source.head()

    @property
    def place(self) -> str:
        return f"{self.source.unit} {self.row:,} of {self.source.name}"

    def chunks(self) -> Iterator[Chunk]:
        chunks = read(
            self.source, self.modes, self.value, binary=self.binary, all_text=self.all_text,
            skip=self.row, last=self.last,
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
                    update = self.estimator.learn(common.entries_of(chunk), chunk.values)
            except EntryError as error:  # a value far beyond the scale: only the estimator knows it
                if error.row is None:
                    raise
                chunk, bad = _without(chunk, error, self)
                rejected.take(bad)
            except (ValueError, ModuleNotFoundError) as error:  # a setting that cannot be, here or at all
                raise CommandError(_as_options(str(error))) from None
            else:
                break
        # at once: from here on the chunk is learned, whatever fails
        self.row, self.last = chunk.end, chunk.last
        self.bad += rejected.count - before
        if update is not None:
            self.tally.add(chunk.values, update.mean, update.log_evidence, self.estimator._fitted().shift)

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
        raise CommandError("--modes and --value are needed to start a model")
    kind = SpiderClassifier if binary else SpiderRegressor
    if binary and "scaling" in settings:
        raise CommandError("--scaling is for continuous values, not with --binary")
    estimator = (kind.paper if paper else kind)(**settings)
    estimator.feature_names_in_ = np.array(modes, dtype=object)
    typed = source.format in ("jsonl", "parquet")
    return Learner(estimator, path, source, modes, value, None if typed else [False] * len(modes))


def reopen(path: Path, source: Source, value: str | None, *, add: bool, network: str | None) -> Learner:
    """The model of an earlier run; `add`: for another source, from its start."""
    estimator = common.load_model(path, network)
    position = _position(estimator)
    if position is None and not add:
        raise CommandError(f"{path}: was not made by spider fit, --add learns a source on top of it")
    value = position["value"] if position else value
    if value is None:
        raise CommandError(f"{path}: does not say which column has the value, use --value")
    texts = None
    if source.format in ("csv", "tsv") or (position and position["all_text"]):
        texts = common.all_text(estimator)
    learner = Learner(estimator, path, source, common.mode_names(estimator), value, texts, new=False)
    if position and not add:
        if not source.has_head(position["head"]):
            raise CommandError(
                f"{path}: stands in another source ({position['source']}), "
                f"--add learns {source.name} from its start on top of it"
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
        } as position:
            return position
    return None


def check_same(
    learner: Learner,
    modes: list[str] | None,
    value: str | None,
    *,
    binary: bool,
    paper: bool,
    **settings: Any,
) -> None:
    """What the command line says about a model that is there already must be what the model says."""
    estimator = learner.estimator
    facts = {
        "modes": learner.modes,
        "value": learner.value,
        "binary": learner.binary,
        **estimator.get_params(),
    }
    if paper:
        settings = type(estimator).paper(**settings).get_params()
    for name, wanted in {"modes": modes, "value": value, "binary": binary or None, **settings}.items():
        if wanted is not None and _listed(facts.get(name)) != _listed(wanted):
            raise CommandError(f"{learner.path} has {name} {facts.get(name)!r}, the command says {wanted!r}")


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _large_first(chunks: Iterator[Chunk], n: int) -> Iterator[Chunk]:
    """The first chunk made n entries long, if there are so many: the scale of the values comes from them.

    A pipe may give less at once, and how its reads fell must not change the model.
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
    """The chunk without the refused row and all that would be refused for the same reason."""
    assert error.row is not None
    assert chunk.values is not None
    refused = _refused(learner.estimator, chunk.values)
    if not refused[error.row]:
        refused = np.arange(len(chunk.rows)) == error.row
    names, shown = [*learner.modes, learner.value], f"value {chunk.values[error.row]:g} "
    bad = []
    for place in np.flatnonzero(refused).tolist():
        value = chunk.values[place]
        raw = dict(zip(names, [*(column[place] for column in chunk.columns), value], strict=True))
        reason = _as_options(error.reason.replace(shown, f"value {value:g} ", 1))
        bad.append(BadRow(int(chunk.rows[place]), reason, common.plain(raw)))
    rest = chunk._replace(
        columns=[column[~refused] for column in chunk.columns],
        values=chunk.values[~refused],
        rows=chunk.rows[~refused],
    )
    return rest, bad


def _refused(estimator: Any, value: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which values are too large to take the scale from or, if none is, too far beyond the scale."""
    if estimator.__sklearn_is_fitted__():
        shift, scale = estimator._fitted().shift, estimator._fitted().scale
    else:
        large = np.abs(value) > LARGEST
        large &= np.cumsum(~large) < estimator.batch_size  # the scale comes from the first others
        if large.any() and getattr(estimator, "scaling", None) is None:
            return large
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # told when it is learned
            shift, scale = estimator._first_scaling(value)
    with np.errstate(over="ignore"):
        return np.abs((value - shift) / scale) > FARTHEST


@contextmanager
def _warnings_noted() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for each in caught:
        common.note(f"note: {_as_options(str(each.message))}")


def _as_options(text: str) -> str:
    """What the estimators advise, in the words of the command."""
    text = text.replace(
        "pass scaling=(shift, scale) or make the first call larger", "pass --scaling SHIFT,SCALE"
    )
    text = text.replace("scaling=(shift, scale)", "--scaling SHIFT,SCALE")
    return text.replace('engine="vectorized"', "--engine vectorized")


def run(learner: Learner, rejected: BadRows, *, every: float, quiet: bool, as_json: bool) -> int:
    """Learn to the end or to a signal, save, and tell; the exit code."""
    began = perf_counter()
    with Signals() as signals:
        try:
            with Progress(learner, shown=not quiet) as progress:
                _learn_all(learner, rejected, every, signals, progress)
        except Stopped:
            pass
        except Exception:
            if learner.tally.entries:
                _save_on_the_way_out(learner)
            raise
        if learner.tally.entries or not learner.new:
            learner.save()
        elif not signals.caught:
            raise CommandError(f"{learner.source.name}: no good rows to learn")
    if signals.caught:
        name = signal.Signals(signals.caught).name
        saved = f"saved {learner.path}, --resume goes on" if learner.tally.entries else "nothing learned yet"
        common.note(f"stopped by {name} after {learner.place}: {saved}")
        return 128 + signals.caught
    summary(learner, perf_counter() - began, as_json=as_json)
    return 0


def _save_on_the_way_out(learner: Learner) -> None:
    """Guarded: what went wrong first is what the user has to know."""
    try:
        learner.save()
    except Exception as error:
        common.note(f"could not save {learner.path} ({error})")
    else:
        common.note(f"saved {learner.path} after {learner.place}; --resume goes on from there")


def _learn_all(
    learner: Learner, rejected: BadRows, every: float, signals: Signals, progress: Progress
) -> None:
    chunks = learner.chunks()
    saved = monotonic()
    while True:
        began = perf_counter()
        chunk = signals.next(chunks)
        if chunk is None:
            return
        read_at = perf_counter()
        before = learner.tally.entries
        learner.learn(chunk, rejected)
        learner.tally.reading += read_at - began
        if before:
            learner.tally.learning += perf_counter() - read_at
            learner.tally.timed += learner.tally.entries - before
        else:
            learner.tally.starting += perf_counter() - read_at
        progress.show(chunk.share)
        if signals.caught:
            raise Stopped
        if monotonic() - saved >= every and learner.tally.entries:
            learner.save()
            saved = monotonic()
