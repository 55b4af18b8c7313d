"""Find the best nodes of a mode: by expected value, by upper bound, or by a draw from the posterior.

Candidates are scored in blocks, to bound memory, keeping the best so far. Candidates with equal scores stay
in order, as if all were ranked at once.

If there are many, fast bounds first rule out most of them (quick_scores.py); the rest is ranked by `predict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.candidates import Candidates
from spidertensor.estimator.event_rule import seen_modes
from spidertensor.estimator.fitted import Fitted, intervals
from spidertensor.estimator.quick_scores import Bounds, quick_bounds
from spidertensor.estimator.strangers import described_modes, descriptions, stated_recent
from spidertensor.method import Bags, Prediction
from spidertensor.spider import posterior
from spidertensor.spider.custom_network import CustomSizes
from spidertensor.spider.quick_means import one_blas_thread, quick_means

EXPLORE = ("mean", "ucb", "thompson")
BEST = ("high", "low")
BLOCK = 2**13  # candidates scored at once: their hidden layers fit the processor's cache

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_NO_NODE = np.array([-1])  # in a mode without ids


class Recommendation(NamedTuple):
    """A recommended node.

    mean:      expected value; for a classifier the probability of the positive label
    std:       standard deviation of the mean, without observation noise; for labels and counts, of f
    low, high: prediction interval, if `coverage` was passed
    """

    id: Any
    mean: float
    std: float
    low: float | None = None
    high: float | None = None


def check_modes(
    fitted: Fitted,
    given: Mapping[int, Any],
    situation: Mapping[str, Any],
    candidates: Candidates,
    names: Sequence[str],
) -> None:
    """ValueError unless `given` and the candidates together have every mode once.

    A mode that the situation describes needs no id.
    """
    every = sorted([*given, *candidates.numbers])
    with_id = range(len(fitted.nodes))
    if fitted.columns is not None:
        described = described_modes(fitted.columns, situation) - set(every)
        modes = enumerate(fitted.columns.schema.modes)
        with_id = [mode for mode, each in modes if each.has_id and mode not in described]
    if every != list(with_id):
        missing = [_missing(fitted, mode, names) for mode in with_id if mode not in every]
        extra = [repr(names[mode]) for mode in given if mode in candidates.numbers or mode not in with_id]
        wrong = [f"{', '.join(missing)} missing"] if missing else []
        wrong += [f"{', '.join(extra)} not to be given"] if extra else []
        raise ValueError(f"given must name every mode except the ranked one, each once: {'; '.join(wrong)}")


def _missing(fitted: Fitted, mode: int, names: Sequence[str]) -> str:
    instead = descriptions(fitted.columns, mode)
    return repr(names[mode]) + (f" (or {' or '.join(map(repr, instead))})" if instead else "")


def best_nodes(
    fitted: Fitted,
    candidates: Candidates,
    given: Mapping[int, Any],
    excluded: Ints,
    *,
    situation: Mapping[str, Any],
    n: int,
    explore: str,
    best: str,
    rng: np.random.Generator,
    interval: tuple[float, str] | None,
) -> list[Recommendation]:
    """The n best candidates, best first, for the ids `given` in all other modes.

    excluded:  sorted positions among the candidates
    situation: attribute columns that are the same for all candidates, by name
    explore, best: see SpiderRegressor.recommend
    interval:  coverage and calibration of the intervals to return, if any
    """
    if explore not in EXPLORE:
        raise ValueError(f'explore must be "mean", "ucb" or "thompson", got {explore!r}')
    if best not in BEST:
        raise ValueError(f'best must be "high" or "low", got {best!r}')
    sign = 1 if best == "high" else -1
    numbers = [
        candidates.numbers[mode]
        if mode in candidates.numbers
        else (nodes.find([given[mode]]) if mode in given else _no_node(fitted, mode))
        for mode, nodes in enumerate(fitted.nodes)
    ]
    bags = _Bags(fitted, candidates, given, situation)
    allowed = np.delete(np.arange(len(candidates)), excluded)
    found, many = _Best(n), len(allowed) > BLOCK
    with one_blas_thread() if many else nullcontext():
        if explore == "thompson":
            for places, score in _drawn_scores(fitted, candidates.over, numbers, bags, allowed, rng):
                found.add(places, sign * score)
        else:
            bounds = quick_bounds(fitted, explore, best) if many and n > 0 and not bags.any else None
            if bounds is not None:
                allowed = _shortlist(fitted, numbers, allowed, n, bounds)
            for places in _blocks(allowed):
                now = _of(numbers, places)
                found.add(places, _scores(fitted, _index(now), bags.of(places, now), explore, sign))
    return _recommendations(fitted, candidates, numbers, bags, found.places, interval)


class _Bags:
    """The attributes of candidates: stated ones, those that the model remembers, and the situation."""

    def __init__(
        self, fitted: Fitted, candidates: Candidates, given: Mapping[int, Any], situation: Mapping[str, Any]
    ) -> None:
        self._columns = None
        self.any = fitted.columns is not None and len(fitted.columns.tables) > 0
        if fitted.columns is not None and fitted.columns.tables:
            self._columns = fitted.columns
            self._recent = stated_recent(fitted, situation)
            names = fitted.columns.schema.names
            read = {holder.spec.name for column in fitted.columns.columns for holder in column.holders}
            same = dict(situation) | {names[mode]: raw for mode, raw in given.items()}
            self._same = {name: raw for name, raw in same.items() if name in read}
            of_candidates = candidates.given | {names[candidates.over]: candidates.ids}
            self._own = {name: column for name, column in of_candidates.items() if name in read}

    def of(self, places: Ints, numbers: list[Ints]) -> Bags | None:
        """numbers: per mode, the nodes of the candidates at these places"""
        if self._columns is None:
            return None
        n = len(places)
        table: dict[str, Any] = {name: [value] * n for name, value in self._same.items()}
        for name, column in self._own.items():
            table[name] = [column[place] for place in places.tolist()]
        index = np.stack(np.broadcast_arrays(*numbers, places)[:-1], axis=1)
        return self._columns.bags(self._columns.check(table, n), index, learn=False, recent=self._recent)


def _no_node(fitted: Fitted, mode: int) -> Ints:
    """The node of a mode without ids, or of somebody who is described without one."""
    has_id = fitted.columns is None or fitted.columns.schema.modes[mode].has_id
    return np.array([-1]) if has_id else _NO_NODE


def seen_with(fitted: Fitted, over: int, given: Mapping[int, Any]) -> Ints:
    """The nodes of mode `over` already seen with the given ids, if the model remembers seen pairs."""
    modes, none = seen_modes(fitted.params, fitted.model.rule), np.empty(0, np.int64)
    if fitted.pairs is None or modes is None or over not in modes:
        return none
    other = modes[over == modes[0]]
    number = int(fitted.nodes[other].find([given[other]])[0]) if other in given else -1
    if number < 0:
        return none
    return fitted.pairs.with_first(number) if other == modes[0] else fitted.pairs.with_second(number)


class _Best:
    """Positions of the n best scores so far, best first; ties go to the earlier position."""

    def __init__(self, n: int) -> None:
        self.n = max(n, 0)
        self.places, self.score = np.empty(0, np.int64), np.empty(0)

    def add(self, places: Ints, score: Floats) -> None:
        """Add the scores of later positions."""
        if len(self.places) == self.n:
            new = score > self.score.min(initial=np.inf)  # strictly: ties go to the earlier position
            places, score = places[new], score[new]
        score = np.concatenate([self.score, score])
        order = np.argsort(-score, kind="stable")[: self.n]
        self.places, self.score = np.concatenate([self.places, places])[order], score[order]


def _shortlist(fitted: Fitted, numbers: list[Ints], allowed: Ints, n: int, bounds: Bounds) -> Ints:
    """All positions, in order, that may be among the n best."""
    places, low, high, least = np.empty(0, np.int64), np.empty(0), np.empty(0), -np.inf
    for block in _blocks(allowed):
        block_low, block_high = bounds(fitted, _of(numbers, block))
        new = block_high >= least
        places = np.concatenate([places, block[new]])
        low, high = np.concatenate([low, block_low[new]]), np.concatenate([high, block_high[new]])
        if len(places) > n:
            least = np.partition(low, -n)[-n]
            kept = high >= least
            places, low, high = places[kept], low[kept], high[kept]
    return places


def _scores(fitted: Fitted, index: Ints, bags: Bags | None, explore: str, sign: int) -> Floats:
    """What candidates are ranked by. sign: -1 if low ones are best"""
    prediction = fitted.model.method.predict(fitted.state, index, bags)
    if explore == "ucb":
        return sign * prediction.mean + 2 * np.sqrt(prediction.var)
    in_units = fitted.scaling.user_units(*prediction)
    # without bounds, at which candidates would be equal
    return sign * fitted.likelihood.expected(*in_units)


def _drawn_scores(
    fitted: Fitted, over: int, numbers: list[Ints], bags: _Bags, allowed: Ints, rng: np.random.Generator
) -> Iterator[tuple[Ints, Floats]]:
    """f under one joint draw of all weights and factors, from a member drawn by its weight.

    Candidates may share nodes in the other modes, so these are drawn first. The nodes of `over` differ and
    are drawn a block at a time.
    """
    weights = fitted.state.weights
    m = int(rng.choice(len(weights), p=weights)) if len(weights) > 1 else 0
    member, state = fitted.model.members[m], fitted.state.members[m]
    none = np.empty(0, np.int64)
    rows, own = list(numbers), list(numbers)
    for mode, number in enumerate(numbers):
        if mode == over or number is _NO_NODE:
            rows[mode], own[mode] = none, none if mode == over else number
        else:
            rows[mode], own[mode] = np.unique(number, return_inverse=True)
    tables = [np.arange(n) for n in state.counts.nodes[len(numbers) :].tolist()]  # attributes are shared
    drawn = posterior.sample(state, member.network, member.prior, [*rows, *tables], rng)
    for places in _blocks(allowed):
        rows[over] = _of(numbers, places)[over]
        block = posterior.with_drawn(drawn, state, member.network, member.prior, over, rows[over], rng)
        now = _of(own, places)
        now[over] = np.arange(len(places))
        if (of := bags.of(places, _of(numbers, places))) is not None:
            f = member.method.predict(block, _index(now), of).mean
        elif not isinstance(member.network, CustomSizes):
            f = quick_means(block, member.network, now).astype(np.float64)
        else:
            f = member.method.predict(block, _index(now)).mean
        yield places, f


def _recommendations(
    fitted: Fitted,
    candidates: Candidates,
    numbers: list[Ints],
    bags: _Bags,
    best: Ints,
    interval: tuple[float, str] | None,
) -> list[Recommendation]:
    index = np.stack(np.broadcast_arrays(*_of(numbers, best), best)[:-1], axis=1)
    predicted = fitted.model.method.predict(fitted.state, index, bags.of(best, _of(numbers, best)))
    in_units = fitted.scaling.user_units(*predicted)
    columns = [fitted.shown.expected(*in_units), np.sqrt(in_units.var)]
    if interval is not None:
        columns += intervals(fitted, Prediction(*in_units), *interval)
    rows = zip(candidates.ids_at(best), *(column.tolist() for column in columns), strict=True)
    return [Recommendation(*row) for row in rows]


def _blocks(places: Ints) -> Iterator[Ints]:
    for start in range(0, len(places), BLOCK):
        yield places[start : start + BLOCK]


def _of(numbers: list[Ints], places: Ints) -> list[Ints]:
    """The nodes of some candidates; a given mode has one node for all of them."""
    return [number[places] if len(number) > 1 else number for number in numbers]


def _index(numbers: list[Ints]) -> Ints:
    """(n, K) the nodes of n candidates."""
    return np.stack(np.broadcast_arrays(*numbers), axis=1)
