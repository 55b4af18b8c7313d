"""The loop of `spider fit`: read a chunk, learn it, save now and then, stop at a signal."""

from __future__ import annotations

import signal
from time import monotonic, perf_counter

from spidertensor.cli import output
from spidertensor.cli.bad_rows import BadRows
from spidertensor.cli.errors import CommandError
from spidertensor.cli.learner import Learner
from spidertensor.cli.progress import Progress, summary
from spidertensor.cli.signals import Signals, Stopped
from spidertensor.sources import Chunk


def run(learner: Learner, rejected: BadRows, *, every: float, quiet: bool, as_json: bool) -> int:
    """Learn up to the end or a signal, save, print a summary; returns the exit code."""
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
            good = "good rows" if rejected.count or learner.skipped else "rows"
            raise CommandError(f"{learner.source.name}: no {good} to learn")
    if signals.caught:
        name = signal.Signals(signals.caught).name
        done = f"saved {learner.path}, continue with --resume"
        saved = done if learner.tally.entries else "nothing learned yet"
        output.note(f"stopped by {name} after {learner.place}: {saved}")
        return 128 + signals.caught
    learner.note_the_end()
    summary(learner, perf_counter() - began, as_json=as_json)
    return 0


def _save_on_the_way_out(learner: Learner) -> None:
    """A failure here is only noted: the user has to see the error that came first."""
    try:
        learner.save()
    except Exception as error:
        output.note(f"could not save {learner.path} ({error})")
    else:
        output.note(f"saved {learner.path} after {learner.place}; continue with --resume")


def _learn_all(
    learner: Learner, rejected: BadRows, every: float, signals: Signals, progress: Progress
) -> None:
    chunks = learner.chunks()
    saved, saved_row = monotonic(), learner.row
    while True:
        began = perf_counter()
        chunk = signals.next(chunks)
        if chunk is None:
            return
        if not chunk.quiet:
            _learn(learner, chunk, rejected, reading=perf_counter() - began)
            progress.show(chunk.share)
        if signals.caught:
            raise Stopped
        if monotonic() - saved >= every and learner.row > saved_row and learner.tally.entries:
            learner.save()
            saved, saved_row = monotonic(), learner.row


def _learn(learner: Learner, chunk: Chunk, rejected: BadRows, *, reading: float) -> None:
    """Learn a chunk and note the time that it took."""
    tally, began = learner.tally, perf_counter()
    before = tally.entries
    learner.learn(chunk, rejected)
    tally.reading += reading
    if before:
        tally.learning += perf_counter() - began
        tally.timed += tally.entries - before
    else:
        tally.starting += perf_counter() - began
