"""What every Method promises (see spidertensor.method), checked on all of them in the same way.

All methods of the registry are checked, with every likelihood: a new one needs no line here. The stream has
three modes. What a method does not promise is said in its case, and only the tests of that promise skip.
test_vectorized.py holds the vectorized engine to the same tests, bit for bit or but for rounding.
"""

from __future__ import annotations

import copy
import gc
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naive import as_float64
from spidertensor import checkpoint
from spidertensor.evaluation import floors
from spidertensor.method import Batch, Method, Unit
from spidertensor.spider import posterior
from spidertensor.spider.committee import CommitteeState
from spidertensor.spider.likelihoods import COUNT, GAUSSIAN, LIKELIHOODS, PROBIT, Likelihood
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Gaussian, Prior, State
from spidertensor.spider.sequential import sequential
from spidertensor_study import registry

pytestmark = pytest.mark.usefixtures("unoptimised")

NODES = (6, 5, 4)
PLAIN = Network((2, 3, 4), (7, 5))
HYBRID = Network((2, 3, 4), (7, 5), "tanh", bias=True, multilinear=3)


BATCH = 16  # entries of a batch, where a method has batches

# What methods are told so that they are quick here; what else is not in the registry stands below, and a
# method that is not named there is held to every promise.
QUICK: dict[str, dict[str, Any]] = {
    "svb-dtf": {"epochs": 3},
    "svb-dtf-tanh": {"epochs": 3},
    "svb-gptf": {"inducing": 8, "epochs": 3},
    "ss-gptf": {"inducing": 8, "epochs": 3},
    "costco": {"channels": 4, "epochs": 2},
    "gptf": {"inducing": 8, "epochs": 3},
}
NODES_START_AT_RANDOM = ("spider", "spider-single", "post", "cp-wopt", "cp-wopt-early", "costco")
FORGETS = ("spider",)
# as another method, with one setting changed
SAME_CODE = ("cp-wopt-1000", "svb-dtf-tanh", "spider-paper-tanh")
DRAWS_NOTHING = ("mean", "biases", "static-biases")
LOOKS_AT_NO_NODE = ("mean",)
SLOW = ("pbp",)


class Case(NamedTuple):
    build: Callable[[], Method]
    likelihood: Likelihood
    unit: Unit = "entry"
    equal_starts: bool = True  # all nodes of a mode start with the same values
    random: bool = True  # init draws something: another seed is another state
    one_number: bool = False  # the same answer for every entry
    forgets: bool = False  # an entry widens its nodes before it is learned: a little more than predict said
    calls: int = 100  # of a long stream; fewer where each is slow


def methods() -> dict[str, Case]:
    """Every method of the registry, and the sequential engine with all it can do in a small network."""
    cases = {}
    for likelihood in LIKELIHOODS.values():
        for name, entry in registry.METHODS.items():
            if name in SAME_CODE or (likelihood is COUNT and not entry.counts):
                continue
            cases[f"{name}-{likelihood.name}"] = Case(
                partial(entry.build, 2, 3, likelihood, BATCH, **QUICK.get(name, {})),
                likelihood,
                entry.unit,
                equal_starts=name not in NODES_START_AT_RANDOM,
                random=name not in DRAWS_NOTHING,
                one_number=name in LOOKS_AT_NO_NODE,
                forgets=name in FORGETS,
                calls=20 if entry.needs or name in SLOW else 100,
            )
        build = partial(sequential, HYBRID, likelihood, curvature=True, refine_every=BATCH)
        cases[f"sequential-{likelihood.name}"] = Case(build, likelihood, equal_starts=False)
    return cases


METHODS = methods()


@pytest.fixture(params=METHODS)
def case(request) -> Case:
    return METHODS[request.param]


# --- streams and states ---------------------------------------------------------------------------


def stream(likelihood: Likelihood, n: int = 60, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    index = np.stack([rng.integers(d, size=n) for d in NODES], axis=1)
    effects = [rng.normal(size=d) for d in NODES]
    value = sum(effect[rows] for effect, rows in zip(effects, index.T, strict=True)) + 0.3 * rng.normal(
        size=n
    )
    if likelihood is COUNT:
        return Batch(index, rng.poisson(np.exp(value)).astype(float))
    return Batch(index, (value > 0).astype(float) if likelihood is PROBIT else value)


def part(batch: Batch, rows: slice) -> Batch:
    return Batch(np.ascontiguousarray(batch.index[rows]), np.ascontiguousarray(batch.value[rows]))


def everything() -> np.ndarray:
    """Every entry the tensor can have."""
    return np.stack([rows.ravel() for rows in np.meshgrid(*map(np.arange, NODES), indexing="ij")], axis=1)


def leaves(tree: Any) -> list[np.ndarray]:
    if isinstance(tree, tuple | list):
        return [leaf for branch in tree for leaf in leaves(branch)]
    return [np.asarray(tree)]


def of_members(state: Any) -> list[State]:
    """The states of SPIDER in a state of any method."""
    if isinstance(state, CommitteeState):
        return list(state.members)
    return [state] if isinstance(state, State) else []


def with_members(state: Any, members: list[State]) -> Any:
    return state._replace(members=tuple(members)) if isinstance(state, CommitteeState) else members[0]


def bits(state: Any) -> list[tuple[str, tuple[int, ...], bytes]]:
    """All a state holds, spare rows aside."""
    if of_members(state):
        state = with_members(state, [posterior.trim(each) for each in of_members(state)])
    elif isinstance(state, floors.BiasesState):
        used = zip(state.nodes, state.counts.nodes, strict=True)
        state = state._replace(nodes=tuple(Gaussian(node.mean[:n], node.var[:n]) for node, n in used))
    return [(leaf.dtype.str, leaf.shape, leaf.tobytes()) for leaf in leaves(state)]


def learned(case: Case, n: int = 60, seed: int = 0) -> tuple[Method, Any]:
    method = case.build()
    state, _ = method.update(method.init(seed), stream(case.likelihood, n))
    return method, state


def skip_if_static(case: Case) -> None:
    if case.unit == "all":
        pytest.skip("this method is static: it sees all entries in one update")


def assert_equal(got, wanted) -> None:
    """Two predictions or two updates, number for number."""
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a, b)  # None, too


# --- the contract ---------------------------------------------------------------------------------


def test_a_method_says_what_its_unit_is(case):
    assert case.build().unit == case.unit


def test_empty_batch_is_a_no_op(case):
    method, state = learned(case)
    before = bits(state)
    state, update = method.update(state, part(stream(case.likelihood), slice(0, 0)))
    assert bits(state) == before
    assert update.rejected == 0
    assert [array.shape for array in update[:4]] == [(0,)] * 4

    fresh = method.init(0)
    before = bits(fresh)
    fresh, _ = method.update(fresh, part(stream(case.likelihood), slice(0, 0)))
    assert bits(fresh) == before


def test_predict_is_pure(case):
    """Not one bit of the state moves, unseen nodes are not added, and asking twice gets one answer."""
    method, state = learned(case)
    questions = np.array([[0, 0, 0], [-1, 2, 1], [5, 99, 3], [-1, -1, -1], [10**9, 0, 0]])
    before, spare = bits(state), [leaf.tobytes() for leaf in leaves(state)]
    kept = questions.copy()
    first = method.predict(state, questions)
    second = method.predict(state, questions)
    assert bits(state) == before
    assert [leaf.tobytes() for leaf in leaves(state)] == spare
    np.testing.assert_array_equal(questions, kept)
    assert_equal(first, second)
    for member in of_members(state):
        assert member.counts.nodes.tolist() == list(NODES)


def test_predict_takes_any_number_of_entries(case):
    method, state = learned(case)
    all_of_them = method.predict(state, everything())
    assert [array.shape for array in all_of_them] == [(120,)] * 3
    assert [array.shape for array in method.predict(state, everything()[:0])] == [(0,)] * 3
    assert_equal(method.predict(state, everything()[40:41]), [array[40:41] for array in all_of_them])
    small = everything().astype(np.int32)[::-1]
    assert_equal(method.predict(state, small), [array[::-1] for array in all_of_them])


def test_variances_are_positive_and_finite(case):
    method, state = learned(case, 300)
    prediction = method.predict(state, everything())
    assert np.isfinite(np.array(prediction)).all()
    assert (prediction.var > 0).all()
    assert (prediction.noise == 0).all() if case.likelihood is PROBIT else (prediction.noise > 0).all()
    for leaf in leaves(state):
        assert np.isfinite(leaf).all()
    for member in of_members(state):
        for gaussian in member.posterior.factors + member.posterior.weights:
            assert (gaussian.var > 0).all()


def test_update_reports_every_entry(case):
    method = case.build()
    batch = stream(case.likelihood)
    kept = copy.deepcopy(batch)
    _, update = method.update(method.init(0), batch)
    assert [array.shape for array in update[:4]] == [(60,)] * 4
    assert np.isfinite(np.array(update[:4])).all()
    assert (update.var > 0).all()
    assert (update.noise == 0).all() if case.likelihood is PROBIT else (update.noise > 0).all()
    assert isinstance(update.rejected, int)
    assert_equal(batch, kept)  # what the caller owns is not written to


def test_same_seed_same_state(case):
    """Two methods built apart, same settings, same seed, same stream: same bits."""
    (first, a), (second, b) = learned(case, seed=4), learned(case, seed=4)
    assert bits(first.init(4)) == bits(second.init(4))
    assert bits(a) == bits(b)


def test_another_seed_another_state(case):
    if not case.random:
        pytest.skip("this method draws nothing")
    _, a = learned(case, seed=4)
    _, b = learned(case, seed=5)
    if of_members(a):  # what they drew, not the seed itself
        a, b = (
            with_members(state, [each._replace(seed=np.zeros_like(each.seed)) for each in of_members(state)])
            for state in (a, b)
        )
    else:
        a, b = (state._replace(seed=np.zeros_like(state.seed)) for state in (a, b))
    assert bits(a) != bits(b)


def test_two_states_of_one_method_do_not_touch(case):
    """A Method holds no state of its own: two models from one Method, fed in turn, are two models."""
    method = case.build()
    batch = stream(case.likelihood)
    alone, _ = method.update(method.init(1), batch)
    wanted = bits(alone)
    a, b = method.init(1), method.init(2)
    b, _ = method.update(b, stream(case.likelihood, 33, seed=8))
    a, _ = method.update(a, batch)
    if case.unit != "all":
        b, _ = method.update(b, batch)
    assert bits(a) == wanted


def test_only_the_nodes_of_the_batch_move(case):
    method, state = learned(case)
    if not of_members(state):
        pytest.skip("the factors of this state are its own business")
    before = copy.deepcopy([posterior.trim(each) for each in of_members(state)])
    batch = Batch(np.array([[1, 2, 3], [4, 2, 0]]), np.array([1.0, 0.0]))
    state, _ = method.update(state, batch)
    for now, then in zip(of_members(state), before, strict=True):
        for mode, (new, old) in enumerate(
            zip(posterior.trim(now).posterior.factors, then.posterior.factors, strict=True)
        ):
            moved = np.zeros(NODES[mode], bool)
            moved[batch.index[:, mode]] = True
            for a, b in zip(new, old, strict=True):
                np.testing.assert_array_equal(a[~moved], b[~moved])
            assert (new.mean[moved] != old.mean[moved]).any(axis=1).all()


def test_unseen_node_is_answered_from_the_prior(case):
    """-1, the next row and a far one are the same unseen node; in a fresh state there is no other kind."""
    method, state = learned(case)
    for mode, d in enumerate(NODES):
        index = np.tile([1, 2, 3], (4, 1))
        index[:, mode] = [-1, d, d + 7, 10**9]
        for array in method.predict(state, index):
            assert np.ptp(array) == 0
            assert np.isfinite(array).all()
    fresh = method.predict(method.init(0), everything())
    assert all(np.ptp(array) == 0 for array in fresh)
    assert (fresh.var > 0).all()


def test_node_that_no_entry_has_touched_is_unseen(case):
    """A row that exists because a later one does still is at its prior."""
    if not case.equal_starts:
        pytest.skip("a row of this method starts at random as soon as it exists")
    method, batch = case.build(), stream(case.likelihood)
    batch = Batch(np.vstack([batch.index, [9, 0, 0]]), np.append(batch.value, 1.0))
    state, _ = method.update(method.init(0), batch)
    untouched = method.predict(state, np.array([[7, 2, 1], [8, 0, 3]]))
    assert_equal(untouched, method.predict(state, np.array([[-1, 2, 1], [-1, 0, 3]])))


def test_renaming_nodes_commutes(case):
    """Rows are names: nodes that start equal can be swapped, and nothing else changes, bit for bit."""
    if not case.equal_starts:
        pytest.skip("what a node of this method starts with depends on its row; see the next test")
    rng = np.random.default_rng(3)
    names = [rng.permutation(d) for d in NODES]
    rename = lambda index: np.stack([n[rows] for n, rows in zip(names, index.T, strict=True)], axis=1)  # noqa: E731
    batch = stream(case.likelihood)
    method, state = learned(case)
    other, update = method.update(method.init(0), Batch(rename(batch.index), batch.value))
    assert_equal(update, method.update(method.init(0), batch)[1])
    assert_equal(method.predict(other, rename(everything())), method.predict(state, everything()))


def test_renaming_nodes_commutes_with_their_starts(case):
    """Where a row starts at random, its start is renamed with it."""
    method = case.build()
    batch = stream(case.likelihood)
    state, _ = method.update(method.init(0), Batch(np.array([[d - 1 for d in NODES]]), np.array([1.0])))
    if not of_members(state):
        pytest.skip("the factors of this state are its own business")
    rng = np.random.default_rng(3)
    names = [rng.permutation(d) for d in NODES]

    def renamed(modes):
        """Rows of each mode under their new names; modes is () where a method has nothing of the kind."""
        found = []
        for factor, new in zip(modes, names, strict=False):
            found.append(Gaussian(np.empty_like(factor.mean), np.empty_like(factor.var)))
            for have, want in zip(factor, found[-1], strict=True):
                want[new] = have
        return tuple(found)

    def with_renamed(member: State) -> State:
        post = member.posterior
        post = post._replace(factors=renamed(post.factors), log_noise=renamed(post.log_noise))
        return member._replace(posterior=post)

    trimmed = [posterior.trim(each) for each in of_members(state)]
    state = with_members(state, trimmed)
    other = copy.deepcopy(with_members(state, [with_renamed(each) for each in trimmed]))
    rename = lambda index: np.stack([n[rows] for n, rows in zip(names, index.T, strict=True)], axis=1)  # noqa: E731
    state, update = method.update(state, batch)
    other, other_update = method.update(other, Batch(rename(batch.index), batch.value))
    assert_equal(other_update, update)
    assert_equal(method.predict(other, rename(everything())), method.predict(state, everything()))


@pytest.mark.parametrize("name", [name for name, case in METHODS.items() if case.unit == "entry"])
@settings(max_examples=15)
@given(cuts=st.lists(st.integers(0, 60), max_size=12))
def test_how_calls_are_cut_does_not_matter(name, cuts):
    """Calls of one entry, of none, of any size: same bits, same updates."""
    case = METHODS[name]
    method, batch = case.build(), stream(case.likelihood)
    whole, update = method.update(method.init(0), batch)
    state, said, rejected = fed(method, batch, [0, *sorted(cuts), 60])
    assert bits(state) == bits(whole)
    assert_equal(said, np.array(update[:4]))
    assert rejected == update.rejected


def test_entry_by_entry_is_one_call(case):
    """The finest cut of all; and each update says what predict said just before, for nodes it could know."""
    if case.unit != "entry":
        pytest.skip("this method does not learn entry by entry")
    method, batch = case.build(), stream(case.likelihood)
    whole, _ = method.update(method.init(0), batch)
    state, seen = method.init(0), [set() for _ in NODES]
    for i in range(60):
        entry = part(batch, slice(i, i + 1))
        said = method.predict(state, entry.index)
        state, update = method.update(state, entry)
        known = all(row in rows for row, rows in zip(entry.index[0], seen, strict=True))
        if (known or case.equal_starts) and not case.forgets:
            assert_equal(update[:3], said)
        elif known:
            np.testing.assert_allclose(update.var, said.var, rtol=3e-3)
        for row, rows in zip(entry.index[0], seen, strict=True):
            rows.update(range(row + 1))
    assert bits(state) == bits(whole)


def fed(method: Method, batch: Batch, edges: list[int]) -> tuple[Any, np.ndarray, int]:
    """The state after a stream cut at these places, the arrays of its updates, and what was rejected."""
    state, pieces, rejected = method.init(0), [], 0
    for first, last in pairwise(edges):
        state, update = method.update(state, part(batch, slice(first, last)))
        pieces.append(update[:4])
        rejected += update.rejected
    return state, np.concatenate(pieces, axis=1), rejected


def test_cuts_between_two_batches_change_nothing(case):
    """And cuts inside a batch do: else the unit would be the entry."""
    if case.unit != "batch":
        pytest.skip("this method has no batches")
    method, batch = case.build(), stream(case.likelihood)
    whole, said, rejected = fed(method, batch, [0, 60])
    for edges in ([0, BATCH, 60], [0, 2 * BATCH, 3 * BATCH, 60]):
        state, said_again, rejected_again = fed(method, batch, edges)
        assert bits(state) == bits(whole)
        np.testing.assert_array_equal(said_again, said)
        assert rejected_again == rejected
    assert bits(fed(method, batch, [0, BATCH // 2, 60])[0]) != bits(whole)


def test_a_static_method_learns_in_one_call(case):
    """Another call is an error, or starts over: it never adds to what was learned."""
    if case.unit != "all":
        pytest.skip("this method is not static")
    method, state = learned(case)
    more = stream(case.likelihood, 40, seed=9)
    alone, _ = method.update(method.init(0), more)
    try:
        state, _ = method.update(state, more)
    except ValueError as error:
        assert "static" in str(error)  # noqa: PT017 (it may also not raise)
    else:
        assert_equal(method.predict(state, everything()), method.predict(alone, everything()))


def test_no_entry_is_predicted_from_its_own_value_or_a_later_one(case):
    method, batch = case.build(), stream(case.likelihood)
    _, update = method.update(method.init(0), batch)
    for first in (BATCH, 59):  # from the start of a batch on, and the last one alone
        other = Batch(batch.index, batch.value.copy())
        other.value[first:] = 1 - other.value[first:]
        if case.likelihood is COUNT:
            other.value[:] = np.abs(other.value)
        _, again = method.update(method.init(0), other)
        for a, b in zip(update[:3], again[:3], strict=True):
            np.testing.assert_array_equal(a[: first + 1], b[: first + 1])


def test_absurd_values_are_refused_and_counted(case):
    """Entries are counted as refused, elements as rejected; what was learned stays finite."""
    method, batch = case.build(), stream(case.likelihood)
    assert method.update(method.init(0), batch)[1].refused == 0
    batch.value[[5, 50]] = np.nan
    with np.errstate(all="ignore"):
        state, update = method.update(method.init(0), batch)
    assert isinstance(update.refused, int)
    wanted = {"entry": 2, "all": 2, "batch": 28}[case.unit]  # a batch may be refused as a whole
    assert 2 <= update.refused <= wanted
    assert update.rejected >= update.refused
    assert np.isfinite(np.array(method.predict(state, everything()))).all()


def test_memory_is_constant_on_a_long_stream(case):
    """Many more calls over the same nodes leave behind a tenth of what keeping their entries would, at most.

    Or 100 kB: numba remembers the types of its arguments, and Python keeps freed tuples for later.
    """
    skip_if_static(case)
    method, state = learned(case)
    batches = [stream(case.likelihood, 256 if case.calls < 100 else 512, seed) for seed in range(4)]

    def feed(state, calls):
        for i in range(calls):
            state, _ = method.update(state, batches[i % 4])
            method.predict(state, batches[i % 4].index)
        gc.collect()
        return state

    tracemalloc.start()
    try:
        state = feed(state, case.calls // 4)
        early = tracemalloc.get_traced_memory()[0]
        state = feed(state, case.calls)
        late = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    one_batch = batches[0].index.nbytes + batches[0].value.nbytes
    assert late - early < max(case.calls * one_batch / 10, 100_000)


def test_a_batch_that_cannot_be_is_refused_and_changes_nothing(case):
    if case.one_number:
        pytest.skip("it looks at no node")
    method, state = case.build(), None
    state = method.init(0)
    if case.unit != "all":
        state, _ = method.update(state, stream(case.likelihood))
    before, told = bits(state), method.predict(state, everything())
    good = stream(case.likelihood, 40)
    negative = good.index.copy()
    negative[7, 1] = -1
    for bad, words in (
        (Batch(good.index[:, :2], good.value), "3 modes, but an index of shape"),
        (
            Batch(np.column_stack([good.index, good.index[:, 0]]), good.value),
            "3 modes, but an index of shape",
        ),
        (Batch(good.index[:, 0], good.value), "3 modes, but an index of shape"),
        (Batch(good.index, good.value[:35]), "values of shape"),
        (Batch(good.index, np.empty(0)), "values of shape"),
        (Batch(negative, good.value), "negative row"),
    ):
        with pytest.raises(ValueError, match=words):
            method.update(state, bad)
        assert bits(state) == before
    for index in (everything()[:, :2], everything()[:, [0, 1, 2, 0]], everything()[:, 0]):
        with pytest.raises(ValueError, match="3 modes, but an index of shape"):
            method.predict(state, index)
    assert_equal(method.predict(state, everything()), told)


def test_saved_and_restored_it_goes_on_as_if_never_stopped(case):
    """Every leaf as an array in a file, back into a state of a method built anew: bit for bit the same."""
    method, state = learned(case)
    arrays = {name: leaf.copy() for name, leaf in checkpoint.flatten(state).items()}
    again = case.build()
    restored = checkpoint.restore(again.init(5), arrays)
    assert bits(restored) == bits(state)
    assert_equal(again.predict(restored, everything()), method.predict(state, everything()))
    if case.unit != "all":
        more = stream(case.likelihood, 40, seed=9)
        (a, said), (b, said_again) = method.update(state, more), again.update(restored, more)
        assert bits(a) == bits(b)
        assert_equal(said[:4], said_again[:4])


def compiled() -> int:
    """Specialisations of all functions of the package that numba or JAX compiles."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("spidertensor")]
    values = {id(value): value for module in modules for value in vars(module).values()}.values()
    by_numba = sum(len(each.signatures) for each in values if hasattr(each, "nopython_signatures"))
    return by_numba + sum(each._cache_size() for each in values if hasattr(each, "_cache_size"))


def test_a_second_batch_does_not_recompile(case):
    """Neither another number of entries, nor more nodes, nor other values."""
    skip_if_static(case)
    method, state = learned(case)
    method.predict(state, everything())
    before = compiled()
    assert before > 0
    for n in (1, 7, 100):
        state, _ = method.update(state, stream(case.likelihood, n, seed=n))
        method.predict(state, everything()[:n])
    state, _ = method.update(state, Batch(np.array([[20, 30, 40]]), np.array([0.0])))
    assert compiled() == before


# --- the network of the paper treats modes alike --------------------------------------------------


@pytest.mark.parametrize("curvature", [False, True])
@pytest.mark.parametrize("likelihood", [GAUSSIAN, PROBIT])
@pytest.mark.parametrize("order", [(1, 2, 0), (2, 1, 0)])
def test_permuting_modes_with_the_columns_of_the_first_layer(order, likelihood, curvature):
    """Only the order of sums changes. In float64, so that a difference would be one of the algorithm."""

    def build(network: Network) -> Method:
        return sequential(network, likelihood, Prior(), curvature=curvature, refine_every=16)

    ranks = PLAIN.ranks
    method = build(PLAIN)
    permuted = build(Network(tuple(ranks[k] for k in order), PLAIN.hidden))
    state = as_float64(method.init(0))

    starts = np.cumsum((0, *ranks))
    columns = [np.arange(starts[k], starts[k + 1]) for k in order] + [[sum(ranks)]]
    columns = np.concatenate(columns).astype(int)
    swap = lambda arrays: type(arrays)(*(np.ascontiguousarray(a[:, columns]) for a in arrays))  # noqa: E731
    other = as_float64(permuted.init(0))
    weights = (swap(state.posterior.weights[0]), *as_float64(state.posterior.weights[1:]))
    other = other._replace(posterior=other.posterior._replace(weights=weights))

    batch = stream(likelihood)
    state, update = method.update(state, batch)
    other, other_update = permuted.update(
        other, Batch(np.ascontiguousarray(batch.index[:, order]), batch.value)
    )
    close = {"rtol": 1e-6, "atol": 1e-7}  # the refinement rounds its logarithm to float32
    np.testing.assert_allclose(np.array(other_update[:4]), np.array(update[:4]), **close)
    for k, mode in enumerate(order):
        for a, b in zip(other.posterior.factors[k], state.posterior.factors[mode], strict=True):
            np.testing.assert_allclose(a, b, **close)
    np.testing.assert_allclose(
        other.posterior.weights[0].mean, state.posterior.weights[0].mean[:, columns], **close
    )
    np.testing.assert_allclose(
        np.array(permuted.predict(other, everything()[:, order])),
        np.array(method.predict(state, everything())),
        **close,
    )
