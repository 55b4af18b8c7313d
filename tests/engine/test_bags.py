"""Section 19: attributes beside ids. The oracle first, then exact special cases."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import naive
from cases import (
    BAG_CASES,
    NEVER,
    PRIOR,
    TABLE_ROWS,
    Case,
    assert_same_state,
    bags_of,
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
from spidertensor.method import Bags, Batch
from spidertensor.spider import posterior
from spidertensor.spider.bags import concatenated, plain, taken
from spidertensor.spider.committee import committee
from spidertensor.spider.likelihoods import GAUSSIAN, likelihood_by_name
from spidertensor.spider.network import Network, Table
from spidertensor.spider.sequential import sequential
from spidertensor.testing.states import bits


@pytest.mark.parametrize(("refine_every", "tolerance"), [(NEVER, 1e-9), (16, 1e-6)])
@pytest.mark.parametrize("case", BAG_CASES, ids=name)
def test_sequential_equals_the_oracle(case, refine_every, tolerance):
    """With refinement the float32 logarithm of each is left."""
    model, batch = case.oracle(refine_every), stream(case, 80)
    wanted, wanted_update = naive.learn(
        model, oracle_start(case, start(case)), batch.index, batch.value, listed(batch.bags)
    )
    tolerance = 1e-4 if case.likelihood == "count" else tolerance  # quadrature
    close = {"rtol": tolerance, "atol": tolerance}
    state, got, rejected = learn_in_pieces(case.method(refine_every), start(case), batch)
    np.testing.assert_allclose(got, wanted_update, **close)
    assert_same_state(case, state, wanted, **close)
    assert rejected == int(state.counts.rejected) == wanted["rejected"]
    asked = questions(case)
    bags = random_bags(case, len(asked), np.random.default_rng(5))
    bags.row[::5], bags.row[1::7] = -1, 10**6  # unseen nodes
    bags = plain(bags)  # two unseen nodes of an entry may be the same row
    np.testing.assert_allclose(
        np.array(case.method().predict(state, asked, bags)),
        naive.predict(model, wanted, asked, nodes_of(case), listed(bags)),
        **close,
    )


@pytest.mark.parametrize("case", BAG_CASES, ids=name)
def test_cuts_change_nothing(case):
    batch = stream(case, 60)
    whole, one, _ = learn_in_pieces(case.method(16), start(case, np.float32), batch, (0,))
    cut, many, _ = learn_in_pieces(case.method(16), start(case, np.float32), batch, range(0, 60, 7))
    np.testing.assert_array_equal(one, many)
    assert bits(posterior.trim(whole)) == bits(posterior.trim(cut))


PLAIN = Case((3, 2), (7,), "relu", "gaussian", bias=True, multilinear=3, noise_memory=50.0)


def test_empty_bags_give_the_bits_of_ids_alone():
    batch, state = stream(PLAIN, 60), start(PLAIN, np.float32)
    with_tables = PLAIN._replace(tables=(Table(0, 0.3),))
    wanted, said = PLAIN.method(16).update(copy.deepcopy(state), batch)
    wide = posterior.init(with_tables.network, PRIOR, 3)
    factors = (*copy.deepcopy(state.posterior.factors), wide.posterior.factors[2])
    counts = state.counts._replace(nodes=np.append(state.counts.nodes, 0))
    state = copy.deepcopy(state._replace(posterior=state.posterior._replace(factors=factors), counts=counts))
    none = Bags(np.zeros(61, np.int64), *np.zeros((2, 0), np.int64), np.zeros(0, np.float32))
    got, update = with_tables.method(16).update(state, batch._replace(bags=none))
    assert bits(tuple(update[:4])) == bits(tuple(said[:4]))
    assert bits(got.posterior.weights) == bits(wanted.posterior.weights)
    assert bits(posterior.trim(got).posterior.factors[:2]) == bits(posterior.trim(wanted).posterior.factors)


@pytest.mark.parametrize("likelihood", ["gaussian", "probit"])
def test_a_bag_of_one_node_is_that_node(likelihood):
    """A mode without ids, whose entries each have one attribute of weight 1 and the prior of an id."""
    ids = Case((3, 2), (7,), "relu", likelihood, bias=True, multilinear=3, noise_memory=50.0)
    bags = ids._replace(tables=(Table(0, 1.0),), without_id=(0,))
    batch = stream(ids, 60)
    index = batch.index.copy()
    elements = [[(0, int(row), 1.0)] for row in index[:, 0]]
    index[:, 0] = -1
    before = posterior.grow(posterior.init(ids.network, PRIOR, 3), ids.network, PRIOR, nodes_of(ids))
    first, second = before.posterior.factors
    empty = posterior.init(bags.network, PRIOR, 3).posterior.factors[0]
    moved = before._replace(
        posterior=before.posterior._replace(factors=(empty, second, first)),
        counts=before.counts._replace(nodes=np.array([0, len(second.mean), len(first.mean)])),
    )
    wanted, said = ids.method(16).update(copy.deepcopy(before), batch)
    got, update = bags.method(16).update(copy.deepcopy(moved), Batch(index, batch.value, bags_of(elements)))
    np.testing.assert_array_equal(np.array(update[:4]), np.array(said[:4]))
    assert bits(got.posterior.factors[2]) == bits(wanted.posterior.factors[0])


def test_nodes_that_come_twice_are_one_node_with_both_weights():
    case = PLAIN._replace(tables=(Table(0, 0.3), Table(1, 0.3)))
    batch = stream(case, 40)
    assert batch.bags is not None
    elements = listed(batch.bags)
    assert elements is not None
    halves = [[(t, row, w / 2) for t, row, w in bag for _ in range(2)] + [(0, 1, 0.0)] for bag in elements]
    once, said = case.method(16).update(start(case), batch)
    twice, again = case.method(16).update(start(case), batch._replace(bags=bags_of(halves)))
    np.testing.assert_array_equal(np.array(said[:4]), np.array(again[:4]))
    assert bits(once.posterior) == bits(twice.posterior)


def test_merging_keeps_order_and_drops_zeros():
    bags = bags_of([[(0, 1, 1.0), (1, 1, 2.0), (0, 1, 0.5)], [(0, 2, 1.0), (0, 2, -1.0)], [(0, 3, 0.0)]])
    assert listed(plain(bags)) == [[(0, 1, 1.5), (1, 1, 2.0)], [], []]
    clean = plain(bags)
    assert all(a is b for a, b in zip(plain(clean), clean, strict=True))


def test_parts_of_bags():
    case = PLAIN._replace(tables=(Table(0, 0.3), Table(1, 0.3)))
    bags = random_bags(case, 9, np.random.default_rng(0))
    lists = listed(bags)
    assert lists is not None
    assert listed(bags.part(2, 7)) == lists[2:7]
    assert listed(concatenated([bags.part(0, 4), bags.part(4, 4), bags.part(4, 9)])) == lists
    order = np.array([3, 3, 0, 8])
    assert listed(taken(bags, order)) == [lists[i] for i in order]


def test_attributes_alone_are_bayesian_linear_regression():
    """Biases only, known noise: the mean of the bag's weights is learned exactly, entry by entry."""
    network = Network((1,), (), bias=True, tables=(Table(0, 0.5),), without_id=(0,))
    rng = np.random.default_rng(2)
    n, noise = 30, 0.3
    design = rng.normal(size=(n, TABLE_ROWS)).astype(np.float32)
    truth = rng.normal(size=TABLE_ROWS)
    value = design @ truth + np.sqrt(noise) * rng.normal(size=n)
    bags = bags_of([[(0, row, float(w)) for row, w in enumerate(each)] for each in design])
    method = sequential(network, GAUSSIAN, PRIOR, refine_every=NEVER)
    state = posterior.grow(method.init(0), network, PRIOR, np.array([0, TABLE_ROWS]))
    state = naive.as_float64(state)
    for part in (*state.posterior.weights, Gaussian_of_deep(state)):
        part.mean[...] = 0
        part.var[...] = 1e-30
    state.posterior.noise.shape[()], state.posterior.noise.rate[()] = 1e14, 1e14 * noise
    one = state
    for i in range(1):  # the first entry is exact: a filter with a diagonal covariance
        one, _ = method.update(one, Batch(np.full((1, 1), -1), value[i : i + 1], bags.part(i, i + 1)))
    prior_var = 0.5 * PRIOR.bias_var
    gain = prior_var * design[0] / (noise + prior_var * np.sum(design[0] ** 2))
    np.testing.assert_allclose(one.posterior.factors[1].mean[:, 0], gain * value[0], rtol=1e-6)
    np.testing.assert_allclose(
        one.posterior.factors[1].var[:, 0], prior_var * (1 - gain * design[0]), rtol=1e-6
    )


def Gaussian_of_deep(state):
    """Views of the deep column of the attribute table."""
    mean, var = state.posterior.factors[1]
    return posterior.Gaussian(mean[:, 1:], var[:, 1:])


def test_a_committee_learns_bags_in_every_way_alike():
    """Many entries, few entries and one by one, bit for bit."""
    case = BAG_CASES[1]
    likelihood = likelihood_by_name(case.likelihood)
    methods = [case.method(64), case._replace(memory=None).method(64)]
    batch = stream(case, 700)
    states = []
    for cuts in ((0,), range(0, 700, 50), range(700)):
        method = committee(methods, likelihood, clip=case.clip)
        state, _, _ = learn_in_pieces(method, method.init(0), batch, cuts)
        states.append((state, method))
    (first, method), *others = states
    assert batch.bags is not None
    few = method.predict(first, batch.index[:20], batch.bags.part(0, 20))
    many = method.predict(first, batch.index, batch.bags)
    np.testing.assert_array_equal(np.array(few), np.array(many)[:, :20])
    for state, _ in others:
        for a, b in zip(first.members, state.members, strict=True):
            assert bits(posterior.trim(a)) == bits(posterior.trim(b))


def test_ids_after_attributes_do_not_see_them():
    """The attributes of one call must not leak into the next, which has none."""
    case = BAG_CASES[0]
    method = committee([case.method(64)], GAUSSIAN)
    batch = stream(case, 30)
    state, _ = method.update(method.init(0), batch)
    fresh = committee([case.method(64)], GAUSSIAN)
    wanted = fresh.predict(copy.deepcopy(state), batch.index)
    method.predict(state, batch.index, batch.bags)
    np.testing.assert_array_equal(np.array(method.predict(state, batch.index)), np.array(wanted))
    many = stream(case, 600)
    state, _ = method.update(state, many)  # too many for the path of few entries
    wanted = committee([case.method(64)], GAUSSIAN).predict(copy.deepcopy(state), batch.index)
    np.testing.assert_array_equal(np.array(method.predict(state, batch.index)), np.array(wanted))


@pytest.mark.parametrize(
    "bags",
    [
        bags_of([[(0, 0, 1.0)]]),  # too few entries
        bags_of([[(3, 0, 1.0)], []]),  # no such table
        bags_of([[(-1, 0, 1.0)], []]),
        bags_of([[(0, 0, np.nan)], []]),
        bags_of([[(0, -1, 1.0)], []]),  # an unseen node cannot be learned
    ],
)
def test_impossible_bags_are_refused(bags):
    case = BAG_CASES[0]
    method, state = case.method(), start(case)
    before = bits(state)
    with pytest.raises(ValueError, match=r"bags|in a negative row|attributes"):
        method.update(state, Batch(np.zeros((2, 2), np.int64), np.zeros(2), bags))
    assert bits(state) == before


def test_a_model_without_tables_refuses_attributes():
    with pytest.raises(ValueError, match="ids only"):
        PLAIN.method().update(
            start(PLAIN), Batch(np.zeros((1, 2), np.int64), np.zeros(1), bags_of([[(0, 0, 1.0)]]))
        )


def test_attribute_rows_start_with_their_share_of_the_prior():
    network = Network((3,), (), bias=True, multilinear=2, tables=(Table(0, 0.25),))
    own, attribute = (posterior.start_rows(network, PRIOR, 1, table, 0, 4000) for table in (0, 1))
    np.testing.assert_allclose(attribute.var, 0.25 * own.var)
    spread = [part.mean[:, 1:3].std() for part in (own, attribute)]
    assert spread[1] == pytest.approx(0.5 * spread[0], rel=0.05)
    assert not np.array_equal(0.5 * own.mean, attribute.mean)
