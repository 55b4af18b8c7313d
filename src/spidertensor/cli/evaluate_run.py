"""How `spider evaluate` scores a method: the protocol, and its rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from spidertensor.cli import options, output
from spidertensor.cli.errors import CommandError

if TYPE_CHECKING:
    from spidertensor.evaluation.clock import Delay
    from spidertensor.evaluation.dataset import Dataset
    from spidertensor.evaluation.methods import Entry
    from spidertensor.method import Batch, Method

# per curve of the plot; each held-out point is a full test
POINTS = {"prequential": 60, "clock": 60, "held-out": 20, "rest": 1}
REST = 0.1  # default share
LARGEST_REST = 0.25  # three such parts are predicted, and the model needs something to learn first
POINT_BATCHES = 4  # minimum per point, so that a short last batch does not stand out


class Protocol(StrEnum):
    HELD_OUT = "held-out"
    PREQUENTIAL = "prequential"
    CLOCK = "clock"
    REST = "rest"
    LAST_OUT = "last-out"


class Plan(NamedTuple):
    """How to evaluate.

    test:    name of a published test set
    share:   otherwise, the share of entries to test: drawn at random or, if in_time, the last ones; for
             `rest`, the share that each of three models predicts
    delay:   for `clock`, if the data do not tell when values are known
    points:  maximum number of curve points; 1 if nothing is drawn
    settings: flat parameters of the estimator, or of another method
    """

    protocol: Protocol
    test: str
    share: float | None
    in_time: bool
    delay: Delay | None
    points: int
    settings: dict[str, Any]
    seed: int

    @property
    def passes(self) -> int | str:
        """How often entries are learned: as `spider fit` does by default where a model rests."""
        return self.settings.get("passes", "auto" if self.protocol == Protocol.REST else 1)

    @property
    def shown(self) -> dict[str, Any]:
        """The settings for the record."""
        hidden = ("engine", "passes")
        found = {name: value for name, value in self.settings.items() if name not in hidden}
        return {**found, "seed": self.seed, "passes": self.passes}

    def checked(self, method: str) -> Plan:
        """The same plan; CommandError if it cannot be carried out with this method."""
        if self.passes != 1 and "passes" in self.settings:
            if method != "spider":
                raise CommandError(f"--passes: {method} learns its entries once")
            if self.protocol not in (Protocol.HELD_OUT, Protocol.REST):
                raise CommandError(
                    f"--passes: --protocol {self.protocol} is one pass; --test and --rest fit a model first"
                )
            if self.points > 1:
                raise CommandError("--passes: a curve (--plot) has its points within one pass")
        return self


class Timing(NamedTuple):
    """The options that say when values are known, and which models rest."""

    time: str | None
    known_at: str | None
    delay: str | None
    rest: float | None

    @property
    def protocol(self) -> Protocol | None:
        """The protocol that these options imply."""
        if self.rest is not None:
            return Protocol.REST
        return None if self.known_at is None and self.delay is None else Protocol.CLOCK

    def check(self, protocol: Protocol | None, test: str | None) -> None:
        implied = {"--known-at": self.known_at, "--delay": self.delay, "--rest": self.rest, "--test": test}
        given = [name for name, value in implied.items() if value is not None]
        if len(given) > 1:
            raise CommandError(f"use only one of {' and '.join(given)}")
        if self.protocol not in (None, protocol) and protocol is not None:
            raise CommandError(f"{given[0]} is for --protocol {self.protocol}, not {protocol}")
        if self.known_at is not None and self.time is None:
            raise CommandError("--known-at needs --time, the column that says when each row is predicted")
        if self.rest is not None and not 0 < self.rest <= LARGEST_REST:
            raise CommandError(f"--rest takes a share up to {LARGEST_REST}, such as 0.1, not {self.rest:g}")


def plan_of(
    protocol: Protocol | None,
    test: str | None,
    timing: Timing,
    *,
    own: bool,
    drawn: bool,
    settings: dict[str, Any],
    seed: int,
) -> Plan:
    timing.check(protocol, test)
    share, in_time = timing.rest, timing.time is not None
    protocol = timing.protocol or protocol
    if test not in (None, "paper", "clean"):
        try:
            share = float(test)
        except ValueError:
            share = 0.0
        if not 0 < share < 1:
            raise CommandError(
                f"--test takes a share between 0 and 1, such as 0.1, or paper or clean, not {test!r}"
            )
    if protocol == Protocol.REST and share is None:
        share = REST
    if protocol == Protocol.LAST_OUT:
        raise CommandError(
            "--protocol last-out is for events: --events, or a data set whose name ends in -events"
        )
    if protocol is None:
        protocol = Protocol.PREQUENTIAL if own and test is None else Protocol.HELD_OUT
    if test is not None and protocol != Protocol.HELD_OUT:
        raise CommandError(f"--test is for --protocol held-out; with {protocol}, every entry is a test")
    points = POINTS[protocol.value] if drawn else 1
    named = "paper" if share or not test else test
    return Plan(protocol, named, share, in_time, _delay(timing.delay), points, settings, seed)


def rows_of(
    dataset: Dataset,
    entry: Entry,
    plan: Plan,
    describe: Callable[[Any], Any] | None = None,
) -> list[dict[str, Any]]:
    """describe: sets attributes of an estimator, which then learns those of the data set"""
    from spidertensor.evaluation import at_rest, clock, protocols
    from spidertensor.spider.likelihoods import GAUSSIAN

    name = entry.name
    settings = plan.settings
    try:
        method, how = entry.for_run(dataset, entry.tuned(dataset.name) | settings | {"seed": plan.seed})
    except ModuleNotFoundError as error:
        raise CommandError(f"{name} needs {error.name}: pip install 'spidertensor[jax]'") from None
    if dataset.schema is not None:
        from spidertensor.evaluation.levels import between_half_ways
        from spidertensor.evaluation.with_attributes import of_estimator, of_ids

        as_levels = name == "continuous"
        likelihood = GAUSSIAN if as_levels else dataset.likelihood
        if describe is None:
            method = of_ids(method)
        else:
            method = of_estimator(dataset.table, dataset.schema, likelihood, describe, settings)
            method = between_half_ways(method, dataset.likelihood, scaled=True) if as_levels else method
    with output.bar(f"{name} learns {dataset.name}") as progress:
        if plan.protocol == Protocol.HELD_OUT:
            train, test = _split(dataset, plan)
            if name == "spider" and plan.passes != 1:
                method = at_rest.fitted(dataset, describe, settings, in_time=plan.in_time)
            method = _watched(method, len(train.value), progress)
            return list(protocols.held_out(method, train, test, at=_points(plan, train), **how))
        if plan.protocol == Protocol.REST:
            stream = dataset.in_time_order()
            if name == "spider":
                method = at_rest.fitted(dataset, describe, settings, in_time=True)
            assert plan.share is not None
            return [at_rest.at_rest(method, stream, plan.share, progress, **how)]
        if method.unit == "all":
            raise CommandError(f"{name} needs all entries at once, so it has no {plan.protocol} score")
        stream = dataset.in_time_order()
        method = _watched(method, len(stream.value), progress)
        if plan.protocol == Protocol.CLOCK:
            times = clock.clock_of(dataset, plan.delay)
            return list(clock.honest_clock(method, stream, times, at=_points(plan, stream), **how))
        return list(protocols.prequential(method, stream, at=_points(plan, stream), **how))


def _delay(text: str | None) -> Delay | None:
    """ "1000" entries, or "30m", "3h", "2d" """
    from spidertensor.evaluation.clock import Delay

    if text is None:
        return None
    if text.strip().isdigit():
        length, unit = float(text), "entries"
    else:
        try:
            length, unit = options.seconds(text), "seconds"
        except CommandError:
            length, unit = math.inf, ""
    if not 0 < length < math.inf:
        raise CommandError(
            f"--delay takes a number of entries, such as 1000, or a time, such as 30m, 3h or 2d, not {text!r}"
        )
    return Delay(length, unit)


def _points(plan: Plan, entries: Batch) -> int:
    return max(min(plan.points, len(entries.value) // (POINT_BATCHES * plan.settings["batch_size"])), 1)


def _split(dataset: Dataset, plan: Plan) -> Any:
    if plan.share and dataset.tests:
        raise CommandError(f"{dataset.name} has published tests; --test takes {' or '.join(dataset.tests)}")
    share = {} if plan.share is None else {"share": plan.share}
    if plan.in_time:
        train, test = dataset.split_in_time(**share)
    else:
        train, test = dataset.split(plan.seed, plan.test, **share)
    if not len(test.value) or not len(train.value):
        raise CommandError(f"--test {plan.share:g} of {dataset.name} leaves nothing to test or to learn")
    return train, test


def _watched(method: Method, n_entries: int, progress: Any) -> Method:
    """The same method, reporting the share of entries learned so far."""
    learned = 0

    def update(state: Any, batch: Any) -> Any:
        nonlocal learned
        after = method.update(state, batch)
        learned += len(batch.value)
        progress(learned / n_entries)
        return after

    return replace(method, update=update)
