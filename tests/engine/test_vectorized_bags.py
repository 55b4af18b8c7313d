"""Section 19 in the vectorised engine: attributes beside ids. The oracle first, then exact special cases."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

jax = pytest.importorskip("jax", reason="needs the extra: pip install spidertensor[jax]")

import naive  # noqa: E402
from cases import (  # noqa: E402
    BAG_CASES,
    PRIOR,
    TABLE_ROWS,
    Case,
    assert_same_state,
    bags_of,
    fix,
    fixed_noise,
    learn_in_pieces,
    listed,
    name,
    nodes_of,
    oracle_start,
    questions,
    random_bags,
    start,
    stream,
)
from exact import algorithm, regression  # noqa: E402
from naive import as_float64  # noqa: E402
from spidertensor.method import Bags, Batch  # noqa: E402
from spidertensor.spider import posterior  # noqa: E402
from spidertensor.spider.bags import plain  # noqa: E402
from spidertensor.spider.likelihoods import GAUSSIAN  # noqa: E402
from spidertensor.spider.network import Table  # noqa: E402
from spidertensor.spider.vectorized import vectorized  # noqa: E402
from spidertensor.spider.vectorized_table import slots_of  # noqa: E402
from spidertensor.spider.vectorized_updates import learn  # noqa: E402
from spidertensor.testing.states import bits, leaves  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As in test_vectorized.py."""
    with threadpool_limits(1):
        yield


def build(case: Case, refine_every: int = 16, **settings):
    own = {field: getattr(case, field) for field in ("noise_memory", "clip", "node_noise", "memory")}
    settings = own | {"curvature": case.curvature, "refine_every": refine_every} | settings
    return vectorized(case.network, case.its_likelihood, PRIOR, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("case", BAG_CASES, ids=name)
def test_entry_by_entry_equals_the_oracle(case):
    model, batch = case.oracle(16), stream(case, 80)
    asked = questions(case)
    bags = random_bags(case, len(asked), np.random.default_rng(5))
    bags.row[::5], bags.row[1::7] = -1, 10**6  # unseen nodes
    bags = plain(bags)  # two unseen nodes of an entry may be the same row
    with algorithm():
        method, state = build(case, batch_size=1), start(case)
        wanted, said = naive.learn(
            model, oracle_start(case, state), batch.index, batch.value, listed(batch.bags)
        )
        # eight entries at once; in the first case single ones too, another program to compile
        cuts = (0, 7, 8, 40) if case is BAG_CASES[0] else (0, 8, 16, 40)
        state, got, rejected = learn_in_pieces(method, state, batch, cuts)
        predicted = np.array(method.predict(state, asked, bags))
    tolerance = 1e-4 if case.likelihood == "count" else 1e-9  # quadrature
    close = {"rtol": tolerance, "atol": tolerance}
    np.testing.assert_allclose(got, said, **close)
    assert_same_state(case, state, wanted, **close)
    assert rejected == int(state.counts.rejected) == wanted["rejected"]
    expected = naive.predict(model, wanted, asked, nodes_of(case), listed(bags))
    np.testing.assert_allclose(predicted, expected, **close)


LINEAR = Case(
    (3, 5), (), "tanh", "gaussian", noise_memory=50.0, tables=(Table(0, 0.25), Table(0, 0.125), Table(1, 0.5))
)


@pytest.mark.parametrize("memory", [None, 4.0])
@pytest.mark.parametrize("without_id", [(), (1,)])
def test_a_batch_is_bayesian_linear_regression(without_id, memory):
    """Forty entries that share attribute nodes with different weights; the weights of the network are known.

    With a memory a node is widened once for each of its entries, up to its table's share of the prior.
    """
    case = LINEAR._replace(without_id=without_id, memory=memory)
    with algorithm():
        state = posterior.grow(start(case), case.network, PRIOR, nodes_of(case))
        state, batch = as_float64(fixed_noise(state, 0.3)), stream(case, 40)
        factors, weights = state.posterior.factors, state.posterior.weights[0]
        fix(weights)
        W = weights.mean[0] / 3  # sqrt(3 + 5 + 1)
        G, widened = design(case, batch, (W[:3], W[3:8]), factors)
        mean = np.concatenate([factor.mean.ravel() for factor in factors])
        y = batch.value - W[8]
        wanted, cov = regression(mean, np.diag(widened), G, y, 0.3)
        state, update = build(case, 64).update(state, batch)
    got = [
        np.concatenate([part.ravel() for part in each]) for each in zip(*state.posterior.factors, strict=True)
    ]
    np.testing.assert_allclose(got[0], wanted, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(got[1], np.diag(cov), rtol=1e-9)
    # the innovations, entry by entry
    cov = np.diag(widened)
    for g, value, said_mean, said_var in zip(G, y, *update[:2], strict=True):
        np.testing.assert_allclose(
            [said_mean - W[8], said_var], [g @ mean, g @ cov @ g], rtol=1e-8, atol=1e-10
        )
        mean, cov = regression(mean, cov, g[None], np.array([value]), 0.3)


def design(case: Case, batch: Batch, parts, factors) -> tuple[np.ndarray, np.ndarray]:
    """df of every entry by every element of every table, and the variances before the batch."""
    G = [np.zeros((len(batch.value), *factor.mean.shape)) for factor in factors]
    K, elements = len(case.ranks), listed(batch.bags)
    assert elements is not None
    for n, (rows, bag) in enumerate(zip(batch.index, elements, strict=True)):
        for k, row in enumerate(rows):
            if row >= 0:
                G[k][n, row] = parts[k]
        for table, row, w in bag:
            G[K + table][n, row] = w * parts[case.tables[table].mode]
    wide = []
    for g, factor, scale in zip(G, factors, case.network.table_scales, strict=True):
        times = np.count_nonzero(g.any(axis=2), axis=0)[:, None]  # entries of each node
        by = 1 if case.memory is None else (1 + 1 / case.memory) ** times
        wide.append(np.maximum(factor.var, np.minimum(scale * PRIOR.factor_var, factor.var * by)).ravel())
    return np.concatenate([g.reshape(len(g), -1) for g in G], axis=1), np.concatenate(wide)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 16])
def test_a_bag_of_one_node_is_that_node(batch_size):
    """A mode without ids, whose entries each have one attribute of weight 1 and the prior of an id."""
    ids = Case((3, 2), (7,), "relu", "gaussian", bias=True, multilinear=3, noise_memory=50.0)
    case = ids._replace(tables=(Table(0, 1.0),), without_id=(0,))
    batch = stream(ids, 60)
    index = batch.index.copy()
    bags = bags_of([[(0, int(row), 1.0)] for row in index[:, 0]])
    index[:, 0] = -1
    with algorithm():
        before = posterior.grow(posterior.init(ids.network, PRIOR, 3), ids.network, PRIOR, nodes_of(ids))
        before = as_float64(before)
        first, second = before.posterior.factors
        empty = as_float64(posterior.init(case.network, PRIOR, 3)).posterior.factors[0]
        moved = before._replace(
            posterior=before.posterior._replace(factors=(empty, second, first)),
            counts=before.counts._replace(nodes=np.array([0, len(second.mean), len(first.mean)])),
        )
        moved = copy.deepcopy(moved)
        wanted, said = build(ids, batch_size=batch_size).update(before, batch)
        got, update = build(case, batch_size=batch_size).update(moved, Batch(index, batch.value, bags))
    np.testing.assert_allclose(np.array(update[:4]), np.array(said[:4]), rtol=1e-10, atol=1e-12)
    for a, b in zip(got.posterior.factors[2], wanted.posterior.factors[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("case", [BAG_CASES[0], BAG_CASES[3]], ids=name)
def test_float32_equals_the_sequential_engine(case):
    batch = stream(case, 60)
    wanted, said, _ = learn_in_pieces(case.method(16), start(case, np.float32), batch, (0, 20))
    state, got, _ = learn_in_pieces(build(case, batch_size=1), start(case, np.float32), batch, (0, 20))
    np.testing.assert_allclose(got, said, rtol=2e-3, atol=2e-4)
    for a, b in zip(leaves(state.posterior), leaves(wanted.posterior), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)


def test_order_inside_a_batch_does_not_matter():
    case = BAG_CASES[0]._replace(noise_memory=None)
    batch, order = stream(case, 16), np.random.default_rng(0).permutation(16)
    elements = listed(batch.bags)
    assert elements is not None
    shuffled = bags_of([elements[i][::-1] for i in order])
    states = []
    with algorithm():
        for entries in (batch, Batch(batch.index[order], batch.value[order], shuffled)):
            state, update = build(case).update(start(case), entries)
            states.append((*state.posterior, update.log_evidence.sum()))
    for a, b in zip(*map(leaves, states), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
def test_a_refused_entry_changes_nothing():
    """Not the nodes that only it has, nor the noise; its elements count as rejected."""
    case = BAG_CASES[3]
    batch = stream(case, 20)
    elements = listed(batch.bags)
    assert elements is not None
    alone = [(0, TABLE_ROWS, 1.0), (3, TABLE_ROWS, 0.5)]  # rows that no other entry has
    with_bad = Batch(
        np.insert(batch.index, 9, batch.index[0], axis=0),
        np.insert(batch.value, 9, np.nan),
        bags_of([*elements[:9], alone, *elements[9:]]),
    )
    results, nodes = [], np.add(nodes_of(case), [0, 0, 0, 1, 0, 0, 1])
    with algorithm():
        for entries in (batch, with_bad):
            state = posterior.grow(start(case), case.network, PRIOR, nodes)
            results.append(build(case, 32).update(as_float64(state), entries))
    (good, said), (state, update) = results
    sizes = case.network.factor_sizes
    assert (update.refused, update.rejected - said.rejected) == (
        1,
        case.network.n_weights + sizes[0] + sizes[1] + sizes[0] + sizes[2],
    )
    for a, b in zip(leaves(state.posterior), leaves(good.posterior), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
def test_few_compilations():
    """Bags of any size: slots double when they must and stay; and a function without attributes."""
    case = Case((2, 3), (), "tanh", "gaussian", tables=(Table(0, 0.3), Table(1, 0.3)))
    method, rng = build(case, 32, batch_size=32), np.random.default_rng(0)
    state, before = method.init(0), learn._cache_size()
    for largest in ((1, 1), (1, 2), (4, 1), (3, 3), (2, 1), (1, 4), (0, 1), (8, 1), (5, 4), (1, 2)):
        bag = [(table, row, 1.0) for table, most in enumerate(largest) for row in range(most)]
        bags = bags_of([bag[: rng.integers(len(bag) + 1)] for _ in range(31)] + [bag])
        index = rng.integers(9, size=(32, 2))
        state, _ = method.update(state, Batch(index, rng.normal(size=32), bags))
        state, _ = method.update(state, Batch(index, rng.normal(size=32)))
    assert learn._cache_size() - before == 5 + 1  # slots (1, 1), (1, 2), (4, 2), (4, 4), (8, 4)


def test_slots_are_a_power_of_two_that_fits():
    case = LINEAR
    bags = bags_of([[(0, 0, 1.0)], [], [(2, row, 1.0) for row in range(3)] + [(0, 1, 1.0)]])
    assert slots_of(case.network, bags) == [1, 1, 4]


@pytest.mark.parametrize(
    "bags",
    [
        bags_of([[(3, 0, 1.0)], []]),  # no such table
        bags_of([[(0, -1, 1.0)], []]),  # an unseen node cannot be learned
        bags_of([[(0, row, 1.0) for row in range(100)], []]),  # too many for a batch of so many entries
    ],
)
def test_impossible_bags_are_refused(bags):
    method, state = build(BAG_CASES[0], 2**14, batch_size=2**10), start(BAG_CASES[0])
    before = bits(state)
    with pytest.raises(ValueError, match=r"bags|negative row|batch_size of at most 128"):
        method.update(state, Batch(np.zeros((2, 2), np.int64), np.zeros(2), bags))
    assert bits(state) == before


@pytest.mark.slow
def test_ids_alone_are_empty_bags():
    """A model with attribute tables, asked or taught without any."""
    case, plain_case = LINEAR, LINEAR._replace(tables=())
    batch = stream(plain_case, 20)
    none = Bags(np.zeros(21, np.int64), *np.zeros((2, 0), np.int64), np.zeros(0, np.float32))
    with algorithm():
        method = vectorized(case.network, GAUSSIAN, PRIOR, refine_every=16)
        (a, said), (b, again) = (
            method.update(as_float64(method.init(0)), batch._replace(bags=bags)) for bags in (None, none)
        )
        asked = [np.array(method.predict(a, batch.index, bags)) for bags in (None, none)]
    np.testing.assert_allclose(np.array(said[:4]), np.array(again[:4]), rtol=1e-12)
    np.testing.assert_array_equal(*asked)
    for one, other in zip(leaves(a.posterior), leaves(b.posterior), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
