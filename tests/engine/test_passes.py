"""Section 20: several passes over a history. The oracle first, then exact special cases."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import naive
from cases import (
    BAG_CASES,
    PRIOR,
    Case,
    assert_same_state,
    listed,
    name,
    nodes_of,
    start,
    stream,
    to_oracle,
)
from spidertensor.method import Batch
from spidertensor.spider import passes, posterior
from spidertensor.spider.passes import History, Model, Passes
from spidertensor.spider.posterior import State

PART, ENTRIES = 16, 72  # the last part is half as large as the others


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(passes, "PART_ENTRIES", PART)
    monkeypatch.setattr(passes, "BLOCK_PARTS", 2)


class Noted(History):
    """A history that remembers which of its parts were asked for."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.asked: list[int] = []

    def part(self, number: int) -> Batch:
        self.asked.append(int(number))
        return super().part(number)


def history_of(batch: Batch, batch_size: int = PART) -> Noted:
    return Noted(batch, np.arange(len(batch.value)), batch_size)


def passed(walk: Passes, state: State) -> State:
    """The only member after one more pass."""
    for states, _ in walk.next([state]):
        (state,) = states
    return state


def whole(case: Case, state: State) -> State:
    """With rows for all nodes, as a history needs them."""
    return naive.as_float64(posterior.grow(state, case.network, PRIOR, nodes_of(case)))


def learned(case: Case, method, batch: Batch, n: int, state: State) -> tuple[list[State], list[list[int]]]:
    """The state after each of n passes, and the parts that each of them visited."""
    history = history_of(batch)
    walk = Passes([Model(case.network, PRIOR, method, False)], history, 5)
    states, orders = [], []
    for _ in range(n):
        history.asked.clear()
        state = passed(walk, state)
        states.append(copy.deepcopy(state))
        orders.append(list(history.asked))
    return states, orders


def by_the_oracle(case: Case, refine_every: int, batch: Batch, orders, state: State) -> list[dict]:
    parts = [
        (part.index, part.value, listed(part.bags))
        for part in map(history_of(batch).part, range(-(-ENTRIES // PART)))
    ]
    fresh = [
        posterior.start_rows(case.network, PRIOR, int(state.seed), table, 0, n)
        for table, n in enumerate(nodes_of(case))
    ]
    return naive.learn_passes(case.oracle(refine_every), to_oracle(state), parts, orders, fresh)


SMALL = {"bias": True, "multilinear": 3}
EQUAL = [
    Case((3, 2), (7,), "tanh", "gaussian", noise_memory=50.0, **SMALL),
    Case((3, 2), (7,), "relu", "gaussian", noise_memory=50.0, clip=0.7, node_noise=True, **SMALL),
    Case((3, 2), (7,), "relu", "probit", **SMALL),
    BAG_CASES[0],
    BAG_CASES[2],
    BAG_CASES[5],
]


@pytest.mark.parametrize(("refine_every", "tolerance"), [(10**9, 1e-9), (8, 2e-3)])
@pytest.mark.parametrize("case", EQUAL, ids=name)
def test_three_passes_equal_the_oracle(case, refine_every, tolerance):
    """Without refinement to the bit that is stored; the float32 logarithm of a refinement, and quadrature,
    send a site to the other neighbour among 16 bits now and then."""
    batch, state = stream(case, ENTRIES), whole(case, start(case))
    wanted_state = copy.deepcopy(state)
    got, orders = learned(case, case.method(refine_every), batch, 3, state)
    wanted = by_the_oracle(case, refine_every, batch, orders, wanted_state)
    tolerance = 5e-3 if case.likelihood == "count" else tolerance
    for mine, theirs in zip(got, wanted, strict=True):
        assert_same_state(case, mine, theirs, rtol=tolerance, atol=tolerance)
