"""The loop of `spider fit`: read a chunk, learn it, save periodically, stop on a signal."""

from __future__ import annotations

import signal
from time import monotonic, perf_counter

from spidertensor.cli import output
from spidertensor.cli.bad_rows import BadRows
from spidertensor.cli.errors import CommandError
from spidertensor.cli.progress import Progress, summary
from spidertensor.cli.run import Run
from spidertensor.cli.signals import Signals, Stopped
from spidertensor.sources import Chunk


def learn_source(run: Run, rejected: BadRows, *, every: float, quiet: bool, as_json: bool) -> int:
    """Learn until the end or a signal, save, and print a summary. Returns the exit code."""
    try:
        return _run(run, rejected, every=every, quiet=quiet, as_json=as_json)
    finally:
        rejected.close()
        run.close()


def _run(run: Run, rejected: BadRows, *, every: float, quiet: bool, as_json: bool) -> int:
    began = perf_counter()
    with Signals() as signals:
        try:
            with Progress(run, shown=not quiet) as progress:
                _learn_all(run, rejected, every, signals, progress)
                if run.collects:
                    _learn_collected(run, signals, progress)
        except Stopped:
            pass
        except Exception:
            if run.entries and not run.collects:  # of a pass that is not over, nothing could be resumed
                _save_on_the_way_out(run)
            raise
        if run.entries or not run.new:
            run.save()
        elif not signals.caught:
            good = "good rows" if rejected.count or run.skipped else "rows"
            raise CommandError(f"{run.source.name}: no {good} to learn")
    if signals.caught:
        name = signal.Signals(signals.caught).name
        done = f"saved {run.learner.path}, continue with --resume"
        if run.collects and run.entries:
            passes = len((run.learner.estimator.history_ or {"errors": [0]})["errors"])
            done = f"saved {run.learner.path} after {output.counted(passes, 'pass', 'passes')}"
        saved = done if run.entries else "nothing learned yet"
        output.note(f"stopped by {name} after {run.place}: {saved}")
        return 128 + signals.caught
    run.note_the_end()
    summary(run, perf_counter() - began, as_json=as_json)
    return 0


def _save_on_the_way_out(run: Run) -> None:
    """Save after an error. If that fails too, only print a note, so that the first error is reported."""
    try:
        run.save()
    except Exception as error:
        output.note(f"could not save {run.learner.path}: {error}")
    else:
        output.note(f"saved {run.learner.path} after {run.place}; continue with --resume")


def _learn_all(run: Run, rejected: BadRows, every: float, signals: Signals, progress: Progress) -> None:
    ahead = run.looking_ahead()
    while signals.next(ahead) is not None:
        pass
    chunks = run.chunks()
    saved, saved_row = monotonic(), run.row
    while True:
        began = perf_counter()
        chunk = signals.next(chunks)
        if chunk is None:
            return
        if not chunk.quiet:
            _learn(run, chunk, rejected, reading=perf_counter() - began)
            progress.show(chunk.share)
        if signals.caught:
            raise Stopped
        if monotonic() - saved >= every and run.row > saved_row and run.entries:
            run.save()
            saved, saved_row = monotonic(), run.row


def _learn_collected(run: Run, signals: Signals, progress: Progress) -> None:
    """Learn the rows that were read, in several passes. A signal ends them after the first."""
    times = run.times
    times.reading, times.starting = times.reading + times.starting + times.learning, 0.0
    began, number, announced = perf_counter(), 1, False
    for step in run.learn_collected(lambda: signals.caught is not None):
        if signals.caught and number == 1 and not announced:
            output.note("finishing the first pass, without which there is no model; again to stop at once")
            announced = True
        progress.show_pass(number, step)
        number += step is not None
    times.learning, times.timed = perf_counter() - began, run.entries


def _learn(run: Run, chunk: Chunk, rejected: BadRows, *, reading: float) -> None:
    """Learn a chunk and record the time it took."""
    times, before, began = run.times, run.entries, perf_counter()
    run.learn(chunk, rejected)
    times.reading += reading
    if before:
        times.learning += perf_counter() - began
        times.timed += run.entries - before
    else:
        times.starting += perf_counter() - began
