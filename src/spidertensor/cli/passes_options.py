"""Whether `spider fit` reads all rows first and learns them several times, or learns them as they come."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spidertensor.cli import options
from spidertensor.cli.errors import CommandError
from spidertensor.cli.run import Run
from spidertensor.sources import Stream


def choose(run: Run, asked: Mapping[str, Any], limits: Mapping[str, Any]) -> None:
    """Set the estimator's `passes`, `time` and `known_at`, and whether the run collects rows; CommandError
    if the options contradict each other.

    asked:  --passes, --time, --known-at and --shuffle as given
    limits: other options with which rows are learned once
    """
    estimator, (given, time, known_at, shuffle) = run.learner.estimator, asked.values()
    if shuffle and (given is not None or time is not None):
        raise CommandError("--shuffle is one pass in random order: leave out --passes and --time")
    if known_at is not None and (time in (None, known_at) or given is not None):
        raise CommandError("--known-at needs --time, another column, and no --passes: rows are learned once")
    for name, column in (("--time", time), ("--known-at", known_at)):
        if column in run.learner.columns:
            raise CommandError(f"{name} {column}: name a column that is neither a mode nor the value")
    passes = None if given is None else options.passes(given)
    once = _once(run, limits)
    used = [name for name, value in asked.items() if value is not None]
    if once is not None and used and not (used == ["--passes"] and passes == 1):
        raise CommandError(f"{used[-1]}: {once}")
    if passes is not None:
        estimator.passes = passes
    if shuffle:
        estimator.passes = 1
    if time is not None:
        estimator.time, estimator.known_at = time, known_at
    if once is None and estimator.passes == 1 and time is None and not shuffle:
        once = "rows are learned once, in order, because passes is 1"
    run.once, run.collects = once, once is None
    if known_at is not None:
        run.once = f"rows are learned when {known_at} says that their values are known"


def _once(run: Run, limits: Mapping[str, Any]) -> str | None:
    """What is learned once, in order, whatever `passes` is; None if that depends."""
    if (what := _reason(run, limits)) is not None:
        return f"{what} is learned once, in order"
    why = run.learner.estimator._only_once()
    return None if why is None else f"rows are learned once, in order, because {why}"


def _reason(run: Run, limits: Mapping[str, Any]) -> str | None:
    """What it is that the model learns once, but for its own settings."""
    if not run.new:
        return "what a known model gets"
    if isinstance(run.source, Stream):
        return "a stream"
    if run.source.path is None or not Path(run.source.path).is_file():
        return "a pipe"
    return next((f"a file with {name}" for name, value in limits.items() if value), None)
