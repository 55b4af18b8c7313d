"""Section 20: several passes over a history. The oracle first, then exact special cases."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import naive
from cases import (
    BAG_CASES,
    NEVER,
    PRIOR,
    Case,
    assert_healthy,
    assert_same_state,
    fix,
    fixed_noise,
    listed,
    name,
    nodes_of,
    start,
    stream,
    to_oracle,
)
from exact import algorithm
from spidertensor.method import Batch
from spidertensor.spider import parts, passes, posterior, site_plan, site_store
from spidertensor.spider.likelihoods import COUNT, GAUSSIAN, likelihood_by_name
from spidertensor.spider.network import Network
from spidertensor.spider.parts import History, Part, entries_at
from spidertensor.spider.passes import Passes
from spidertensor.spider.posterior import Prior, State
from spidertensor.spider.sequential import sequential
from spidertensor.spider.visitor import MemberModel
from spidertensor.testing.states import bits

PART = 16


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(parts, "PART_ENTRIES", PART)
    monkeypatch.setattr(passes, "BLOCK_PARTS", 2)


class Noted(History):
    """A history that remembers which of its parts were asked for."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.asked: list[int] = []

    def part(self, number: int, visit: int = 0) -> Part:
        self.asked.append(int(number))
        return super().part(number, visit)


def history_of(batch: Batch, batch_size: int = PART) -> Noted:
    n_tables = batch.index.shape[1] + (0 if batch.bags is None else int(batch.bags.table.max(initial=-1)) + 1)

    def read(first: int, last: int) -> Batch:
        return entries_at(batch, np.arange(first, last))

    return Noted(read, len(batch.value), batch_size, n_tables)


def passed(walk: Passes, state: State) -> State:
    """The only member after one more pass."""
    for states, _, _ in walk.one_more([state]):
        (state,) = states
    return state


def whole(case: Case, state: State) -> State:
    """With rows for all nodes, as a history needs them."""
    return naive.as_float64(posterior.grow(state, case.network, PRIOR, nodes_of(case)))


def learned(case: Case, method, batch: Batch, n: int, state: State) -> tuple[list[State], list[list[int]]]:
    """The state after each of n passes, and the parts that each of them visited."""
    history = history_of(batch)
    level_var = likelihood_by_name(case.likelihood).level_var
    walk = Passes([MemberModel(case.network, PRIOR, method, False, level_var)], history, 5)
    states, orders = [], []
    for _ in range(n):
        history.asked.clear()
        state = passed(walk, state)
        states.append(copy.deepcopy(state))
        orders.append(list(history.asked))
    return states, orders


def by_the_oracle(case: Case, refine_every: int, batch: Batch, orders, state: State) -> list[dict]:
    history = history_of(batch)
    batches = [history.part(number).batch for number in range(history.n_parts)]
    parts = [(each.index, each.value, listed(each.bags)) for each in batches]
    if batch.weight is not None:
        parts = [(*part, each.weight) for part, each in zip(parts, batches, strict=True)]
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
]


NEVER_AND_OFTEN = [(case, *how) for case in EQUAL for how in ((NEVER, 1e-9), (8, 2e-3))]


@pytest.mark.parametrize(
    ("case", "refine_every", "tolerance"),
    [*NEVER_AND_OFTEN, pytest.param(BAG_CASES[5], 8, 5e-3, marks=pytest.mark.slow)],
    ids=lambda each: name(each) if isinstance(each, Case) else None,
)
def test_three_passes_equal_the_oracle(case, refine_every, tolerance):
    """Without refinement to the bit that is stored; the float32 logarithm of a refinement, and quadrature,
    send a site to the other neighbour among 16 bits now and then."""
    batch, state = stream(case, 40 if case.likelihood == "count" else 72), whole(case, start(case))
    wanted_state = copy.deepcopy(state)
    got, orders = learned(case, case.method(refine_every), batch, 3, state)
    assert orders[0] == sorted(orders[1]) == sorted(orders[2]) == list(range(len(orders[0])))
    wanted = by_the_oracle(case, refine_every, batch, orders, wanted_state)
    for mine, theirs in zip(got, wanted, strict=True):
        assert_same_state(case, mine, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", [EQUAL[1], BAG_CASES[0]], ids=name)
def test_passes_over_weighted_entries_equal_the_oracle(case):
    batch, state = stream(case, 72), whole(case, start(case))
    batch = batch._replace(weight=np.exp(np.random.default_rng(0).uniform(-1, 1, 72)))
    got, orders = learned(case, case.method(), batch, 3, copy.deepcopy(state))
    wanted = by_the_oracle(case, NEVER, batch, orders, state)
    for mine, theirs in zip(got, wanted, strict=True):
        assert_same_state(case, mine, theirs, rtol=1e-9, atol=1e-9)


# --- exact special cases: biases only, noise known ------------------------------------------------

NOISE = 0.25


class Additive:
    """f is the sum of the biases of the nodes of an entry; the network says 0 and is certain of it."""

    def __init__(self, nodes: tuple[int, ...], part: int) -> None:
        self.network = Network((1,) * len(nodes), (), bias=True)
        self.prior = Prior(bias_var=0.5, factor_var=1e-12)
        self.method = sequential(self.network, GAUSSIAN, self.prior, noise_memory=None, refine_every=NEVER)
        self.nodes, self.part = np.array(nodes), part

    def start(self) -> State:
        state = posterior.grow(self.method.init(0), self.network, self.prior, self.nodes)
        state = fixed_noise(naive.as_float64(state), NOISE)
        for weights in state.posterior.weights:
            weights.mean[...] = 0
            fix(weights)
        return state

    def walk(self, batch: Batch, monkeypatch) -> Passes:
        monkeypatch.setattr(parts, "PART_ENTRIES", self.part)
        return Passes(
            [MemberModel(self.network, self.prior, self.method, False)], history_of(batch, self.part), 3
        )

    def design(self, index: np.ndarray) -> np.ndarray:
        """(n, nodes of all modes): which biases an entry has."""
        at = index + np.concatenate([[0], np.cumsum(self.nodes)[:-1]])
        return np.eye(self.nodes.sum())[at].sum(axis=1)


def biases(state: State) -> tuple[np.ndarray, np.ndarray]:
    parts = [np.concatenate([factor[i][:, 0] for factor in state.posterior.factors]) for i in range(2)]
    return parts[0], parts[1]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_passes", [1, 2, 5, 20])
def test_one_node_has_the_closed_form_posterior(n_passes, weighted, monkeypatch):
    """However often: y_1 ... y_n with known noise. Sites here are whole numbers that 16 bits hold."""
    model, value = Additive((1,), 8), np.random.default_rng(0).integers(-2, 3, size=40).astype(float)
    weight = 1.0 + np.arange(40) % 3 if weighted else np.ones(40)
    batch, state = Batch(np.zeros((40, 1), np.int64), value, weight=weight), model.start()
    walk = model.walk(batch, monkeypatch)
    for _ in range(n_passes):
        state = passed(walk, state)
    precision = 1 / 0.5 + weight.sum() / NOISE
    mean, var = biases(state)
    np.testing.assert_allclose(var, 1 / precision, rtol=1e-7)
    np.testing.assert_allclose(mean, (weight * value).sum() / NOISE / precision, rtol=1e-7)
    assert int(state.counts.entries) == 40


def additive(n: int = 300, seed: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    index = np.stack([rng.integers(12, size=n), rng.integers(8, size=n)], axis=1)
    effects = [rng.normal(size=each) for each in (12, 8)]
    return index, effects[0][index[:, 0]] + effects[1][index[:, 1]] + 0.5 * rng.normal(size=n)


EVERY = np.stack(np.meshgrid(np.arange(12), np.arange(8), indexing="ij"), axis=-1).reshape(-1, 2)


@pytest.mark.parametrize(("part", "far"), [(1, 0.05), (16, 0.15)])
def test_additive_values_reach_the_exact_means_in_five_passes(part, far, monkeypatch):
    """One pass is a standard deviation off. Means of fully factorised Gaussians are exact where passes come
    to rest; variances are never below those of mean field, however often the entries were seen."""
    model, (index, value) = Additive((12, 8), part), additive()
    state, walk = model.start(), model.walk(Batch(index, value), monkeypatch)
    design, pairs = model.design(index), model.design(EVERY)
    precision = np.eye(20) / 0.5 + design.T @ design / NOISE
    cov = np.linalg.inv(precision)
    exact, sd = cov @ design.T @ value / NOISE, np.sqrt(np.diag(pairs @ cov @ pairs.T))
    off, variances = [], []
    for _ in range(12):
        state = passed(walk, state)
        mean, var = biases(state)
        assert (var >= 0.995 / np.diag(precision)).all()
        off.append(np.abs(pairs @ (mean - exact) / sd).max())
        variances.append(var)
    assert off[0] > 0.5
    assert max(off[4:]) < far
    for var in variances[4:]:  # at rest: another pass adds nothing
        np.testing.assert_allclose(var, variances[3], rtol=2e-3)


def test_at_rest_another_pass_changes_next_to_nothing(monkeypatch):
    model, (index, value) = Additive((12, 8), 16), additive()
    state, walk = model.start(), model.walk(Batch(index, value), monkeypatch)
    means, pairs = [], model.design(EVERY)
    for _ in range(8):
        state = passed(walk, state)
        means.append(pairs @ biases(state)[0])
    moved = np.abs(np.diff(means, axis=0)).max(axis=1)
    assert moved[0] > 0.05
    assert (moved[4:] < 0.01).all()
    twice = model.start()
    for _ in range(2):
        twice, _ = model.method.update(twice, Batch(index, value))
    assert (biases(twice)[1] < 0.7 * biases(state)[1]).all()  # which counts all entries twice


def test_what_was_known_before_still_counts(monkeypatch):
    """Three nodes: 0 only before the history, 1 before and in it, 2 only in it. After twenty passes each has
    its closed form, and node 0 the bits it had."""
    model, rng = Additive((3,), 8), np.random.default_rng(4)
    before = Batch(np.repeat([0, 1], 16)[:, None], rng.integers(-2, 3, size=32).astype(float))
    history = Batch(np.repeat([1, 2], 16)[:, None], rng.integers(-2, 3, size=32).astype(float))
    state, _ = model.method.update(model.start(), before)
    mean, var = (part.copy() for part in biases(state))
    walk = model.walk(history, monkeypatch)
    for _ in range(20):
        state = passed(walk, state)
    after = biases(state)
    assert (after[0][0], after[1][0]) == (mean[0], var[0])
    for node, values in ((1, [before.value[16:], history.value[:16]]), (2, [history.value[16:]])):
        precision = 1 / 0.5 + 16 * len(values) / NOISE
        assert after[1][node] == pytest.approx(1 / precision, rel=1e-7)
        assert after[0][node] == pytest.approx(np.sum(values) / NOISE / precision, rel=1e-7)
    assert int(state.counts.entries) == 64


def test_the_level_of_counts_is_counted_once():
    """Nothing but the level, which all entries share. The first pass filters; however many come after it, the
    variance is at least that of the exact posterior, and the mean within a tenth of a standard deviation."""
    network, prior = Network((1,), (), bias=True), Prior(bias_var=1e-12, factor_var=1e-12)
    method = sequential(network, COUNT, prior, refine_every=NEVER)
    state = posterior.grow(method.init(0), network, prior, np.array([1]))
    state = fixed_noise(naive.as_float64(state), 0.5)
    for weights in state.posterior.weights:
        weights.mean[...] = 0
        fix(weights)
    value = np.random.default_rng(1).negative_binomial(2, 2 / (2 + 6), size=160).astype(float)
    history = history_of(Batch(np.zeros((160, 1), np.int64), value))
    walk = Passes([MemberModel(network, prior, method, False, COUNT.level_var)], history, 3)
    f = np.linspace(0, 4, 4001)
    log_p = -(f**2) / 2 / COUNT.level_var + COUNT.log_evidence(value[:, None], f, 1e-12, 0.5).sum(axis=0)
    p = np.exp(log_p - log_p.max())
    mean = (f * p).sum() / p.sum()
    var = ((f - mean) ** 2 * p).sum() / p.sum()
    state = passed(walk, state)
    for _ in range(15):
        state = passed(walk, state)
        assert 1 < float(state.stream.var) / var < 1.15
        assert abs(float(state.stream.mean) - mean) < 0.1 * np.sqrt(var)


# --- sites that are too many ----------------------------------------------------------------------


def test_parts_become_larger_before_nodes_store_nothing(monkeypatch):
    """And the sites that are expected are those that there are."""
    rng = np.random.default_rng(0)
    index = np.stack([rng.integers(2_000, size=40_000), rng.zipf(1.5, size=40_000) % 300], axis=1)
    counts = [np.bincount(index[:, mode]) for mode in range(2)]
    plans = []
    for size, often in ((64, site_plan.NEVER), (256, site_plan.NEVER), (1024, site_plan.NEVER), (1024, 100)):
        enough = site_plan._plan(counts, 40_000, size, often).n_bytes([5, 5], 0)
        monkeypatch.setattr(site_plan, "MOST_BYTES", enough)
        plans.append(site_plan.planned(counts, [5, 5], 0, 40_000, 64))
        assert (plans[-1].part_entries, plans[-1].often) == (size, often)
    monkeypatch.setattr(site_plan, "MOST_BYTES", 0)
    plans.append(site_plan.planned(counts, [5, 5], 0, 40_000, 64))
    assert plans[-1].all_by_share
    assert plans[-1].rows == (0, 0)
    for plan in plans[:3]:
        cuts = np.split(index, range(plan.part_entries, 40_000, plan.part_entries))
        for mode in range(2):
            there = sum(len(np.unique(cut[:, mode])) for cut in cuts)
            assert plan.rows[mode] == pytest.approx(there, rel=0.02)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_passes", [1, 2, 6])
def test_a_node_that_gives_back_by_share_has_the_closed_form_posterior(n_passes, weighted, monkeypatch):
    """One node with Gaussian values: each part says the same about the variance, and the last ones count a
    little more for the mean."""
    monkeypatch.setattr(site_plan, "MOST_BYTES", 0)
    model, value = Additive((1,), 8), np.random.default_rng(0).integers(-2, 3, size=400).astype(float)
    weight = 1.0 + np.arange(400) % 3 if weighted else np.ones(400)
    batch = Batch(np.zeros((400, 1), np.int64), value, weight=weight)
    state, walk = model.start(), model.walk(batch, monkeypatch)
    assert walk.plan.all_by_share
    for _ in range(n_passes):
        state = passed(walk, state)
    precision = 1 / 0.5 + weight.sum() / NOISE
    mean, var = biases(state)
    np.testing.assert_allclose(var, 1 / precision, rtol=1e-6)
    assert abs(mean - (weight * value).sum() / NOISE / precision) < 1.5 * np.sqrt(var)


def test_additive_values_by_share_are_better_than_one_pass(monkeypatch):
    monkeypatch.setattr(site_plan, "MOST_BYTES", 0)
    model, (index, value) = Additive((12, 8), 4), additive()
    state, walk = model.start(), model.walk(Batch(index, value), monkeypatch)
    design, pairs = model.design(index), model.design(EVERY)
    precision = np.eye(20) / 0.5 + design.T @ design / NOISE
    exact, off = np.linalg.inv(precision) @ design.T @ value / NOISE, []
    for _ in range(8):
        state = passed(walk, state)
        mean, var = biases(state)
        assert (var >= 0.98 / np.diag(precision)).all()
        off.append(np.sqrt(np.mean((pairs @ (mean - exact)) ** 2)))
    assert np.mean(off[3:]) < 0.7 * off[0]


# --- whole committees -----------------------------------------------------------------------------

PAIRS = EQUAL[0]


def test_the_random_start_goes_after_the_first_pass_of_a_new_model():
    """Nodes that a model had before the history keep theirs."""
    method, batch = PAIRS.method(16), stream(PAIRS, 64)
    inside = (batch.index < nodes_of(PAIRS)[:2] - 1).all(axis=1)
    batch = Batch(batch.index[inside], batch.value[inside])  # the last node of each mode is in no entry
    for learned_before in (False, True):
        state = posterior.grow(method.init(3), PAIRS.network, PRIOR, nodes_of(PAIRS))
        if learned_before:
            state, _ = method.update(state, batch)
        rest = [factor.mean[-1].copy() for factor in state.posterior.factors]
        assert all(np.abs(row[1:4]).min() > 0 for row in rest)
        state = passed(
            Passes([MemberModel(PAIRS.network, PRIOR, method, False)], history_of(batch), 5), state
        )
        for factor, row in zip(state.posterior.factors, rest, strict=True):
            np.testing.assert_array_equal(factor.mean[-1], row if learned_before else 0 * row)


def members(batch: Batch) -> tuple[Passes, list[State]]:
    """Three members, the last of which has a memory."""
    kinds = [PAIRS, PAIRS, PAIRS._replace(memory=20.0)]
    methods = [case.method(16) for case in kinds]
    models = [
        MemberModel(PAIRS.network, PRIOR, method, case.memory is not None)
        for case, method in zip(kinds, methods, strict=True)
    ]
    states = [
        posterior.grow(method.init(seed), PAIRS.network, PRIOR, nodes_of(PAIRS))
        for seed, method in enumerate(methods)
    ]
    return Passes(models, history_of(batch), 5), states


def three_passes(batch: Batch) -> list[State]:
    walk, states = members(batch)
    for _ in range(3):
        for found, _, _ in walk.one_more(states):
            states = found
    return states


def test_a_member_with_a_memory_learns_once_and_in_order():
    batch = stream(PAIRS, 100)
    walk, states = members(batch)
    alone = PAIRS._replace(memory=20.0).method(16)
    wanted, _ = alone.update(copy.deepcopy(states[2]), batch)
    reported = []
    for _ in range(3):
        entries = 0
        for found, updates, _ in walk.one_more(states):
            states = found
            entries += len(updates[0].mean)
            reported.append(len(updates))
        assert entries == 100
        assert bits(posterior.trim(states[2])) == bits(posterior.trim(wanted))
        assert [int(state.counts.entries) for state in states] == [100, 100, 100]
    assert reported[:4] == [3] * 4
    assert set(reported[4:]) == {2}


@pytest.mark.parametrize(
    ("module", "what", "changed"),
    [(passes, "cores", lambda: 1), (passes, "cores", lambda: 3), (site_store, "IN_MEMORY", 0)],
    ids=["one thread", "three threads", "a file"],
)
def test_neither_threads_nor_the_place_of_the_sites_matter(module, what, changed, monkeypatch):
    batch = stream(PAIRS, 100)
    wanted = [bits(posterior.trim(state)) for state in three_passes(batch)]
    monkeypatch.setattr(module, what, changed)
    assert [bits(posterior.trim(state)) for state in three_passes(batch)] == wanted


def test_values_that_change_altogether_start_the_passes_over():
    """A restart (section 11) in the middle of the history: what was said before it cannot be taken back."""
    case = PAIRS._replace(clip=4.0)
    batch = stream(case, 1600)
    value = batch.value.copy()
    value[800:] = 500 + 200 * value[800:]
    states, _ = learned(case, case.method(16), Batch(batch.index, value), 3, whole(case, start(case)))
    assert states[0].stream.followed.sum() > 0
    for state in states:
        assert_healthy(state)


# --- the other engine -----------------------------------------------------------------------------


def test_the_vectorized_engine_goes_the_same_way():
    pytest.importorskip("jax", reason="needs the extra: pip install spidertensor[jax]")
    from spidertensor.spider.vectorized import vectorized

    batch, settings = stream(PAIRS, 40), {"noise_memory": 50.0, "refine_every": 16}
    wanted, _ = learned(PAIRS, PAIRS.method(16), batch, 3, whole(PAIRS, start(PAIRS)))
    with algorithm():
        method = vectorized(PAIRS.network, GAUSSIAN, PRIOR, batch_size=1, **settings)
        got, _ = learned(PAIRS, method, batch, 3, whole(PAIRS, start(PAIRS)))
    for mine, theirs in zip(got, wanted, strict=True):
        assert_same_state(PAIRS, mine, to_oracle(posterior.trim(theirs)), rtol=5e-3, atol=5e-3)
