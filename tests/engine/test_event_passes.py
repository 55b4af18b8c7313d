"""Section 20 for events: several passes, with other negatives in each. The oracle first."""

from __future__ import annotations

import copy
from itertools import chain

import numpy as np
import pytest

import naive
from cases import BAG_CASES, NEVER, PRIOR, Case, assert_same_state, bags_of, listed, nodes_of, to_oracle
from exact import algorithm
from spidertensor.method import Bags, Batch
from spidertensor.spider import events, parts, passes, posterior, site_store
from spidertensor.spider.bags import taken
from spidertensor.spider.event_bags import EventBags
from spidertensor.spider.event_passes import EventHistory, EventVisitor, Negatives
from spidertensor.spider.events import Rule
from spidertensor.spider.likelihoods import PROBIT
from spidertensor.spider.parts import Part, entries_at
from spidertensor.spider.passes import Passes
from spidertensor.spider.posterior import State
from spidertensor.spider.visitor import MemberModel
from spidertensor.testing.states import bits

PART, N, KEY = 16, 72, 9
PAIRS = Case((3, 2), (7,), "relu", "probit", bias=True, multilinear=3)
# the mode of every table of BAG_CASES[2], whose nodes have the bags below
WITH_BAGS = BAG_CASES[2]
OF_NODES = [bags_of([[(0, n % 4, 1.0)] for n in range(6)]), bags_of([[(1, n % 4, 0.5)] for n in range(5)])]
RULES = {
    "alike": Rule(3, (1,)),
    "by popularity": Rule(3, (1,), 0.75),
    "two modes": Rule(3, (1, 0)),
    "two by popularity": Rule(4, (0, 1), 1.0),
}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(parts, "PART_ENTRIES", PART)
    monkeypatch.setattr(passes, "BLOCK_PARTS", 2)


def some_events(case: Case, seed: int = 1, n: int = N) -> np.ndarray:
    """Some nodes come often; the last of each mode never."""
    rng = np.random.default_rng(seed)
    return np.stack([rng.binomial(size - 2, 0.4, n) for size in case.nodes[:2]], axis=1)


def of_nodes(mode: int, nodes: np.ndarray, events: np.ndarray | None = None) -> Bags:
    return taken(OF_NODES[mode], nodes)


def bags_of_events(index: np.ndarray) -> Bags:
    both = [listed(of_nodes(mode, index[:, mode])) for mode in range(2)]
    return bags_of([[*a, *b] for a, b in zip(*both, strict=True)])


class Walk:
    """One member on its way through a history of events, with what it is given to learn.

    parts: of each pass, each part as the oracle takes it. orders: which parts a pass visited
    """

    def __init__(self, case: Case, rule: Rule, method, index: np.ndarray) -> None:
        bags, attributes = None, None
        if case.tables:
            bags, attributes = (
                bags_of_events(index),
                EventBags([table.mode for table in case.tables], of_nodes),
            )
        self.draws = events.with_room(events.start(rule), rule, nodes_of(case))
        entries = Batch(index, np.ones(len(index)), bags)

        def read(first: int, last: int) -> Batch:
            return entries_at(entries, np.arange(first, last))

        negatives = Negatives(rule, self.draws, KEY, attributes)
        self.history = EventHistory(read, len(index), PART, 2 + len(case.tables), negatives)
        self.parts, self.orders, part = [], [], self.history.part

        def noted(number: int, visit: int = 0) -> Part:
            found = part(number, visit)
            index, value, bags, _ = found.batch
            self.parts[-1][number] = index.copy(), value.copy(), listed(bags)
            self.orders[-1].append(number)
            return found

        self.history.part = noted
        self.passes = Passes([MemberModel(case.network, PRIOR, method, False)], self.history, 5)

    def one_more(self, state: State) -> State:
        self.parts.append({})
        self.orders.append([])
        for states, _, _ in self.passes.one_more([state]):
            (state,) = states
        return state


def fresh(case: Case, method) -> State:
    return naive.as_float64(posterior.grow(method.init(KEY), case.network, PRIOR, nodes_of(case)))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_each_pass_has_the_negatives_of_the_oracle(rule):
    """The first those of a stream, later ones others, from all nodes that have events."""
    index = some_events(PAIRS)
    walk = Walk(PAIRS, rule, PAIRS.method(), index)
    state = fresh(PAIRS, PAIRS.method())
    for visit in range(3):
        state = walk.one_more(state)
        wanted = naive.with_negatives(index.tolist(), rule.over, rule.negatives, rule.power, KEY, visit)
        for number, (nodes, value, _) in walk.parts[visit].items():
            own = list(chain(*wanted[number * PART : (number + 1) * PART]))
            assert list(map(tuple, nodes.tolist())) == [entry for entry, _ in own]
            assert value.tolist() == [each for _, each in own]
        if visit:  # a node without events is never drawn
            assert set(np.concatenate([each[0][:, 1] for each in walk.parts[visit].values()])) == set(
                index[:, 1]
            )
    assert walk.parts[1][0][0].tolist() != walk.parts[2][0][0].tolist()


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_draws_count_each_event_once(rule):
    index, method = some_events(PAIRS), PAIRS.method()
    walk, state = Walk(PAIRS, rule, method, index), fresh(PAIRS, method)
    once = events.with_room(events.start(rule), rule, nodes_of(PAIRS))
    events.commit(once, rule, index)
    for _ in range(3):
        state = walk.one_more(state)
        assert bits(walk.draws) == bits(once)
        assert int(state.counts.entries) == sum(len(value) for _, value, _ in walk.parts[0].values())


EQUAL = [(PAIRS, NEVER, 1e-9), (PAIRS, 8, 2e-3), (WITH_BAGS, NEVER, 1e-9)]


@pytest.mark.parametrize(("case", "refine_every", "tolerance"), EQUAL, ids=["ids", "refined", "attributes"])
def test_three_passes_equal_the_oracle(case, refine_every, tolerance):
    method = case.method(refine_every)
    walk, state = Walk(case, RULES["alike"], method, some_events(case)), fresh(case, method)
    begun, got = to_oracle(copy.deepcopy(state)), []
    for _ in range(3):
        state = walk.one_more(state)
        got.append(copy.deepcopy(state))
    assert sorted(walk.orders[2]) == walk.orders[0]
    start = [
        posterior.start_rows(case.network, PRIOR, KEY, table, 0, n) for table, n in enumerate(nodes_of(case))
    ]
    first = [walk.parts[0][number] for number in walk.orders[0]]
    wanted = naive.learn_passes(case.oracle(refine_every), begun, first, walk.orders, start, walk.parts)
    for mine, theirs in zip(got, wanted, strict=True):
        assert_same_state(case, mine, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", [PAIRS, WITH_BAGS], ids=["ids", "attributes"])
@pytest.mark.parametrize("rule", ["alike", "by popularity", "two by popularity"])
def test_rows_come_as_often_as_expected(case, rule):
    """In the mean of 200 passes, in standard deviations of it, and what was rounded up."""
    walk = Walk(case, RULES[rule], case.method(), some_events(case))
    walk.parts, walk.orders = [{}], [[]]
    history, n = walk.history, 200
    sums = np.zeros((2, sum(map(len, history.counts))))
    for visit in range(n):
        came = [np.zeros(len(each)) for each in history.counts]
        for number in range(history.n_parts):
            for own, rows, times in zip(came, *history.part(number, visit + 1)[2:], strict=True):
                own[rows] += times
        each = np.concatenate(came)
        sums += each, each**2
    mean = sums[0] / n
    sd = np.sqrt((sums[1] / n - mean**2).clip(0) / n)
    off = np.concatenate(history.counts) - mean
    assert (off > -5 * sd - 1e-9).all()
    assert (off < 1 + 5 * sd + 1e-9).all()


def test_a_part_has_a_store_of_any_size(monkeypatch):
    monkeypatch.setattr(site_store, "IN_MEMORY", 0)
    in_file, in_memory = site_store.SiteStore(1, None), site_store.SiteStore(0, None)
    assert in_file.in_file
    assert not in_memory.in_file
    rng, last = np.random.default_rng(0), {}
    for _ in range(60):
        number, array = int(rng.integers(5)), rng.integers(2**16, size=rng.integers(90)).astype(np.uint16)
        last[number] = array
        for store in (in_file, in_memory):
            store.put(number, array)
            for each, wanted in last.items():
                np.testing.assert_array_equal(store.get(each), wanted)
    in_file.clear()
    assert in_file.get(0) is None


# --- what is taken back ---------------------------------------------------------------------------


def visited(n: int = N):
    """A visitor that has learned all parts, the state, and the parts."""
    method = PAIRS.method()
    walk, state = Walk(PAIRS, RULES["alike"], method, some_events(PAIRS, n=n)), fresh(PAIRS, method)
    walk.parts.append({})
    walk.orders.append([])
    model, plan = MemberModel(PAIRS.network, PRIOR, method, False), walk.passes.plan
    visitor = EventVisitor(model, walk.history, plan, None)
    parts = [walk.history.part(number) for number in range(walk.history.n_parts)]
    for part in parts:
        state, _ = visitor.visit(state, part, again=False)
    return visitor, state, parts


def kept(visitor: EventVisitor, number: int) -> list[dict[int, np.ndarray]]:
    """Per table, the sites of each row that a part has kept."""
    stored = visitor.sites.get(number)
    assert stored is not None
    tables, sites = visitor._unpacked(stored)
    found = []
    for rows, (mean, _) in zip(tables, visitor._priors, strict=True):
        own, sites = np.split(sites, [2 * len(rows) * mean.shape[1]])
        found.append(
            dict(zip(rows.tolist(), own.reshape(len(rows), 2 * mean.shape[1]).astype(int), strict=True))
        )
    return found


def test_the_same_draws_say_the_same_again():
    """The part that was learned last, once more: its sites and the posterior stay as they are."""
    visitor, state, parts = visited()
    last = len(parts) - 1
    before = kept(visitor, last)
    mean, var = (part.copy() for part in state.posterior.factors[1])
    for _ in range(3):
        state, _ = visitor.visit(state, parts[last], again=True)
        for now, old in zip(kept(visitor, last), before, strict=True):
            assert now.keys() == old.keys()
            assert all(np.abs(now[row] - old[row]).max() <= 1 for row in old)  # the last of 16 bits
    np.testing.assert_allclose(state.posterior.factors[1].mean, mean, rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(state.posterior.factors[1].var, var, rtol=1e-2)


def test_when_all_is_taken_back_the_prior_is_left():
    """Each part comes again without any entry: it takes back what it said, and says nothing."""
    visitor, state, parts = visited()
    begun = fresh(PAIRS, PAIRS.method())
    nothing, none = Batch(np.empty((0, 2), np.int64), np.empty(0)), [np.empty(0, np.int64)] * 2
    assert any(np.abs(f.var - g.var).max() > 0.01 for f, g in both_factors(state, begun))
    for number in range(len(parts)):
        state, _ = visitor.visit(state, Part(number, nothing, none, none), again=True)
        assert not any(kept(visitor, number))
    for factor, prior in both_factors(state, begun):
        np.testing.assert_allclose(factor.var, prior.var, rtol=1e-6)
        np.testing.assert_allclose(factor.mean, prior.mean, atol=1e-6)


def both_factors(one: State, other: State):
    return zip(one.posterior.factors, other.posterior.factors, strict=True)


def test_the_place_of_the_sites_does_not_matter(monkeypatch):
    def three_passes() -> State:
        method = PAIRS.method(16)
        walk, state = Walk(PAIRS, RULES["two modes"], method, some_events(PAIRS)), fresh(PAIRS, method)
        for _ in range(3):
            state = walk.one_more(state)
        return posterior.trim(state)

    wanted = bits(three_passes())
    monkeypatch.setattr(site_store, "IN_MEMORY", 0)
    assert bits(three_passes()) == wanted


def test_the_vectorized_engine_goes_the_same_way():
    pytest.importorskip("jax", reason="needs the extra: pip install spidertensor[jax]")
    from spidertensor.spider.vectorized import vectorized

    def three_passes(method) -> State:
        walk, state = Walk(PAIRS, RULES["alike"], method, some_events(PAIRS, n=32)), fresh(PAIRS, method)
        for _ in range(3):
            state = walk.one_more(state)
        return state

    wanted = three_passes(PAIRS.method(16))
    with algorithm():
        got = three_passes(vectorized(PAIRS.network, PROBIT, PRIOR, batch_size=1, refine_every=16))
    assert_same_state(PAIRS, got, to_oracle(posterior.trim(wanted)), rtol=5e-3, atol=5e-3)
