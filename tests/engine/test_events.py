"""Models of events: the negatives that are drawn, what is learned from them, and what is remembered."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

import naive
from model_files import same
from spidertensor import CheckpointError, EntryError, SpiderClassifier, SpiderWarning, checkpoint
from spidertensor.estimator.inputs import Columns
from spidertensor.estimator.seen_pairs import SeenPairs
from spidertensor.method import Batch
from spidertensor.spider import events, popularity, posterior
from spidertensor.spider.committee import committee
from spidertensor.spider.events import Rule
from spidertensor.spider.likelihoods import PROBIT
from spidertensor.spider.network import Network
from spidertensor.spider.sequential import sequential

SMALL = {"rank": 2, "hidden": (4,), "multilinear": 3, "batch_size": 32, "committee": 2, "random_state": 7}


def numbered_events(n: int, modes: int = 2, seed: int = 0) -> list[tuple[int, ...]]:
    """Events whose nodes are numbered in the order in which they come, as an estimator numbers them."""
    rng = np.random.default_rng(seed)
    raw = np.minimum(rng.geometric(0.15, (n, modes)), 30).tolist()
    numbers: list[dict] = [{} for _ in range(modes)]
    return [tuple(of.setdefault(each, len(of)) for of, each in zip(numbers, row, strict=True)) for row in raw]


def method(rule: Rule, modes: int = 2):
    network = Network((2,) * modes, (4,), bias=True, multilinear=2)
    members = [sequential(network, PROBIT, refine_every=32, memory=memory) for memory in (None, 300)]
    return committee(members, PROBIT), rule


def arrays_of(estimator: SpiderClassifier, path) -> dict[str, np.ndarray]:
    estimator.save(path)
    return checkpoint.load(path).arrays


RULES = {
    "alike": {"negatives": 3, "negatives_over": 1},
    "by popularity": {"negatives": 3, "negatives_over": 1, "negatives_power": 0.75},
    "two modes": {"negatives": 3, "negatives_over": (1, 0)},
    "two by popularity": {"negatives": 4, "negatives_over": (0, 1), "negatives_power": 1.0},
}


@pytest.fixture(params=RULES, name="rule")
def _rule(request) -> dict:
    return RULES[request.param]


def test_it_learns_the_entries_of_the_oracle_bit_for_bit(rule, tmp_path):
    over = rule["negatives_over"]
    X = numbered_events(150)
    each = naive.with_negatives(
        X, over if isinstance(over, tuple) else (over,), rule["negatives"],
        rule.get("negatives_power", 0.0), SMALL["random_state"],
    )  # fmt: skip
    made = list(chain(*each))
    alone = SpiderClassifier(**SMALL, **rule).fit(X)
    told = SpiderClassifier(**SMALL)
    update = told.learn([entry for entry, _ in made], [value for _, value in made])
    one, other = arrays_of(alone, tmp_path / "a"), arrays_of(told, tmp_path / "b")
    # a tally counts events here, entries there
    learned = [name for name in other if not name.startswith("tally/")]
    assert same({name: one[name] for name in learned}, {name: other[name] for name in learned})
    assert alone.n_entries_ == len(X)
    assert alone.log_evidence_ == pytest.approx(update.log_evidence.sum())


@pytest.mark.parametrize("more", [{}, {"max_nodes": 8}, {"max_nodes": (None, 5)}], ids=str)
def test_cuts_and_a_saved_model_change_nothing(rule, more, tmp_path):
    X = numbered_events(400)
    whole = SpiderClassifier(**SMALL, **rule, **more)
    told = whole.learn(X)
    parts, log_evidence = SpiderClassifier(**SMALL, **rule, **more), []
    for start in (0, 1, 2, 50, 51, 333):
        end = {0: 1, 1: 2, 2: 50, 50: 51, 51: 333, 333: 400}[start]
        log_evidence.append(parts.learn(X[start:end]).log_evidence)
        parts.save(tmp_path / "model")
        parts = SpiderClassifier.load(tmp_path / "model")
    assert np.array_equal(np.concatenate(log_evidence), told.log_evidence)
    assert same(arrays_of(whole, tmp_path / "a"), arrays_of(parts, tmp_path / "b"))


def test_one_event_at_a_time(rule, tmp_path):
    X = numbered_events(200)
    many, single = SpiderClassifier(**SMALL, **rule), SpiderClassifier(**SMALL, **rule)
    update = many.learn(X)
    told = [single.learn_one(ids) for ids in X]
    assert [each.mean for each in told] == update.mean.tolist()
    assert [each.log_evidence for each in told] == update.log_evidence.tolist()
    assert same(arrays_of(many, tmp_path / "a"), arrays_of(single, tmp_path / "b"))


def test_blocks_do_not_show(monkeypatch):
    base, rule = method(Rule(4, (1,)))
    X = np.array(numbered_events(300))
    learned = events.events(base, rule)
    batch = Batch(X, np.ones(len(X)))
    one, whole = learned.update(learned.init(0), batch)
    monkeypatch.setattr(events, "BLOCK_ENTRIES", 7)
    other, parts = learned.update(learned.init(0), batch)
    one, other = (each._replace(members=tuple(map(posterior.trim, each.members))) for each in (one, other))
    assert same(checkpoint.flatten(one), checkpoint.flatten(other))
    assert np.array_equal(whole.mean, parts.mean)
    assert (whole.rejected, whole.refused) == (parts.rejected, parts.refused)


@pytest.mark.slow
def test_the_vectorized_engine_learns_the_same_entries():
    pytest.importorskip("jax")
    X = numbered_events(100)
    settings = {**SMALL, "engine": "vectorized", "committee": 1, "random_state": 7}
    alone = SpiderClassifier(**settings, negatives=3, negatives_over=1).fit(X)
    made = list(chain(*naive.with_negatives(X, (1,), 3, 0.0, 7)))
    told = SpiderClassifier(**settings).fit([entry for entry, _ in made], [value for _, value in made])
    for one, other in zip(alone.factors_, told.factors_, strict=True):
        assert np.array_equal(one.mean, other.mean)


def test_draws_are_spread_as_they_should_be():
    """40 nodes, 20,000 draws; each node within 5 standard errors of its share."""
    nodes = np.concatenate([np.arange(40), np.full(5000, 3)])
    drawn = np.empty((len(nodes), 4), np.int64)
    events.draw_alike(11, 0, nodes, 0, np.ones(drawn.shape, bool), drawn, 0)
    counts = np.bincount(drawn[40:].ravel(), minlength=40)
    assert counts[3] == 0  # never the event itself
    expected = 20_000 / 39
    assert np.abs(np.delete(counts, 3) - expected).max() < 5 * expected**0.5
    for i in range(40):  # only what was seen, and nothing before the second node
        assert drawn[i].max() < max(i, 1)
    assert (drawn[0] == -1).all()


def test_popular_nodes_are_drawn_more_often():
    times = np.array([1, 4, 9, 0, 100])
    of = popularity.from_times(times, 0.5)
    drawn = np.empty((5000, 4), np.int64)
    is_on = np.ones(drawn.shape, bool)
    events.draw_by_popularity(5, 0, np.zeros(5000, np.int64), *of, 0.5, is_on, drawn, 0)
    assert np.array_equal(of.times, times)  # they count when they are learned
    counts = np.bincount(drawn.ravel(), minlength=5)
    shares = np.array([0, 2, 3, 0, 10]) / 15
    assert np.abs(counts - 20_000 * shares).max() < 5 * 100
    assert counts[0] == counts[3] == 0


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=60),
    st.sampled_from([0.3, 0.75, 1.0]),
    st.integers(0, 5),
)
def test_the_tree_has_the_sums(nodes, power, spare):
    of = popularity.empty()
    for node in nodes:
        of = popularity.grown(of, max(node + 1, len(of.times)))
        popularity.count_in(*of, np.array([node]), power)
    of = popularity.grown(of, len(of.times) + spare)
    weights = [int(2**20 * nodes.count(node) ** power) * (node in nodes) for node in range(len(of.times))]
    sums = [sum(weights[:node]) for node in range(len(weights) + 1)]
    assert [popularity.before(of.tree, node) for node in range(len(weights) + 1)] == sums
    assert np.array_equal(of.tree, popularity.from_times(of.times, power).tree)
    for node, weight in enumerate(weights):
        if weight:
            assert popularity.node_at(of.tree, sums[node]) == node
            assert popularity.node_at(of.tree, sums[node] + weight - 1) == node


@pytest.mark.parametrize("learned_first", [False, True])
def test_an_interrupt_leaves_draws_and_entries_in_step(learned_first):
    """Before the entries are learned, or when they are, as committee.update has it."""
    base, rule = method(Rule(3, (1,), 0.5))

    def interrupted(state, batch):
        if learned_first:
            base.update(state, batch)
        raise KeyboardInterrupt

    X = np.array(numbered_events(60))
    learned = events.events(base, rule)
    state, _ = learned.update(learned.init(0), Batch(X[:40], np.ones(40)))
    wanted = X.max(axis=0) + 1
    network = Network((2, 2), (4,), bias=True, multilinear=2)
    grown = tuple(posterior.grow(each, network, posterior.Prior(), wanted) for each in state.members)
    state = state._replace(members=grown, draws=events.with_room(state.draws, rule, wanted))
    with pytest.raises(KeyboardInterrupt):
        events.events(replace(base, update=interrupted), rule).update(state, Batch(X[40:], np.ones(20)))
    assert int(state.draws.events) == (60 if learned_first else 40)
    if not learned_first:
        state, _ = learned.update(state, Batch(X[40:], np.ones(20)))
    whole, _ = learned.update(learned.init(0), Batch(X, np.ones(60)))
    one, other = (checkpoint.flatten(each.draws) for each in (state, whole))
    assert all(np.array_equal(a[: len(b)] if a.ndim else a, b[: len(a)] if b.ndim else b)
               for a, b in zip(one.values(), other.values(), strict=True))  # fmt: skip


def test_an_interrupted_model_can_be_saved_and_go_on(tmp_path, monkeypatch):
    """Its ids are added before the first event of a call is learned."""
    X = numbered_events(3000)
    model = SpiderClassifier(**SMALL, negatives=3, negatives_over=1, negatives_power=0.5).fit(X[:10])
    update = model._fitted().model.method.update

    def interrupted(state, batch):
        update(state, Batch(batch.index[:20], batch.value[:20]))
        raise KeyboardInterrupt

    fitted = model._fitted()
    monkeypatch.setattr(
        model,
        "_learned",
        fitted._replace(model=fitted.model._replace(method=replace(fitted.model.method, update=interrupted))),
    )
    with pytest.raises(KeyboardInterrupt):
        model.learn(X[10:])
    model.save(tmp_path / "model")
    again = SpiderClassifier.load(tmp_path / "model")
    assert again.n_entries_ == 30
    again.learn(X[30:])
    assert again.n_entries_ == 3000


def test_one_node_is_nothing_to_compare_with():
    with pytest.warns(SpiderWarning, match="the same node in the mode that is drawn"):
        SpiderClassifier(**SMALL, negatives=2, negatives_over=1).fit([(i % 7, 0) for i in range(100)])


# --- what it learns ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shops() -> tuple[SpiderClassifier, np.ndarray, np.ndarray]:
    """A hundred users of four kinds, each with its own twenty of 80 products; some are more popular."""
    rng = np.random.default_rng(3)
    shares = np.zeros((4, 80))
    for kind in range(4):
        shares[kind, kind * 20 : kind * 20 + 20] = 1 / np.arange(1, 21)
    shares = 0.9 * shares / shares.sum(axis=1, keepdims=True) + 0.1 / 80
    user = rng.integers(0, 100, 12_000)
    product = np.array([rng.choice(80, p=shares[each % 4]) for each in user])
    model = SpiderClassifier(committee=1, negatives=8, negatives_over=1)
    return model.fit(np.column_stack([user, product])), user, shares


def test_what_a_user_would_take_comes_first(shops):
    model, *_ = shops
    for user in range(0, 100, 7):
        best = [each.id for each in model.recommend({0: user}, 1, n=5)]
        assert sum(product // 20 == user % 4 for product in best) >= 4


def test_rates_are_shares_of_the_events(shops):
    model, _, shares = shops
    grid = [(user, product) for user in range(100) for product in range(80)]
    rates = model.predict_rate(grid).reshape(100, 80)
    assert abs(rates.sum(axis=1).mean() - 1) < 0.2
    true = shares[np.arange(100) % 4]
    error, of_none = np.abs(rates - true).sum(axis=1).mean(), np.abs(1 / 80 - true).sum(axis=1).mean()
    assert error < 0.4 * of_none


@pytest.mark.filterwarnings("ignore:8 negatives are drawn")  # of two or three nodes, on purpose
def test_a_rate_of_two_nodes():
    """With two nodes, the one left out of the draws is half of all: without that, .8 would become 1."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 5, 8000), rng.random(8000) < 0.2]).astype(int)
    model = SpiderClassifier(committee=1, negatives=8, negatives_over=1).fit(X)
    rate = model.predict_rate([(0, 0), (0, 1)])
    assert abs(rate - [0.8, 0.2]).max() < 0.1


@pytest.mark.filterwarnings("ignore:8 negatives are drawn")  # of two or three nodes, on purpose
@pytest.mark.parametrize("power", [0.5, 1.0])
def test_a_rate_by_popularity(power):
    """Everybody has the same taste, so the rates are the shares of the events."""
    rng, shares = np.random.default_rng(1), [0.7, 0.2, 0.1]
    X = np.column_stack([rng.integers(0, 5, 8000), rng.choice(3, 8000, p=shares)])
    model = SpiderClassifier(committee=1, negatives=8, negatives_over=1, negatives_power=power).fit(X)
    assert abs(model.predict_rate([(0, 0), (0, 1), (0, 2)]) - shares).max() < 0.12


def test_rates_by_popularity_sum_to_one_too(shops):
    _, user, shares = shops
    rng = np.random.default_rng(4)
    product = np.array([rng.choice(80, p=shares[each % 4]) for each in user])
    X = np.column_stack([user, product])
    other = SpiderClassifier(committee=1, negatives=8, negatives_over=1, negatives_power=0.5).fit(X)
    rates = other.predict_rate([(user, product) for user in range(20) for product in range(80)])
    assert abs(rates.reshape(20, 80).sum(axis=1).mean() - 1) < 0.15


def test_a_rate_needs_a_model_of_events():
    with pytest.raises(ValueError, match="a rate needs a model of events"):
        SpiderClassifier(**SMALL).fit([(0, 0), (1, 1)], [0, 1]).predict_rate([(0, 0)])


# --- what it remembers ------------------------------------------------------------------------------


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=9), max_size=9))
def test_pairs_are_a_set(calls):
    known, pairs = set(), SeenPairs()
    for call in calls:
        first, second = np.array(call, np.int64).reshape(-1, 2).T
        pairs.add(first, second)
        known |= set(call)
        for node in range(10):
            assert pairs.with_first(node).tolist() == sorted(b for a, b in known if a == node)
    keep = np.arange(10) % 3 > 0
    moved = np.cumsum(keep) - 1
    for of_first in (True, False):
        left = {(moved[a] if of_first else a, b if of_first else moved[b])
                for a, b in known if keep[a if of_first else b]}  # fmt: skip
        stored = pairs.without(keep, of_first=of_first).pairs()
        assert [(int(each) >> 32, int(each) & 0xFFFFFFFF) for each in stored] == sorted(left)


def test_pairs_take_eight_bytes_and_are_merged_now_and_then():
    pairs, rng = SeenPairs(), np.random.default_rng(0)
    for _ in range(300):
        pairs.add(*rng.integers(0, 1000, (2, 256)))
    assert pairs._waiting <= len(pairs._known[0]) // 8 + 4096
    assert pairs.pairs().nbytes == 8 * len(set(pairs.pairs().tolist()))


@pytest.mark.parametrize("whose", [True, 0, "user"])
def test_what_was_seen_is_not_recommended(whose, tmp_path):
    X = numbered_events(300)
    columns = Columns([list(each) for each in zip(*X, strict=True)], ("user", "product"))
    model = SpiderClassifier(**SMALL, negatives=2, negatives_over="product", remember_seen=whose).fit(columns)
    model.save(tmp_path / "model")
    for each in (model, SpiderClassifier.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        for user in range(5):
            had = {b for a, b in X if a == user}
            best = [found.id for found in each.recommend({"user": user}, "product", n=100)]
            assert sorted([*best, *had]) == list(range(len({b for _, b in X})))
        assert len(each.recommend({"user": "nobody"}, "product", n=100)) == len({b for _, b in X})


def test_forgotten_nodes_are_gone_from_pairs_and_draws(tmp_path):
    X = numbered_events(300)
    how = {**SMALL, "negatives": 3, "negatives_over": 1, "negatives_power": 0.5, "remember_seen": True}
    model = SpiderClassifier(**how).fit(X)
    gone = {1, 4}
    model.forget(1, list(gone))
    model.forget(0, [2])
    model.save(tmp_path / "model")
    again = SpiderClassifier.load(tmp_path / "model")
    for each in (model, again):
        best = [found.id for found in each.recommend({0: 0}, 1, n=100)]
        assert set(best) == {b for _, b in X} - gone - {b for a, b in X if a == 0}
    assert model._fitted().state.draws.popularity[0].times.sum() == sum(b not in gone for _, b in X)
    assert np.array_equal(model.learn([(0, 0)]).mean, again.learn([(0, 0)]).mean)


def test_whose_pairs_are_remembered_cannot_come_with_the_candidates():
    model = SpiderClassifier(**SMALL, negatives=2, negatives_over=1, remember_seen=True).fit(
        numbered_events(50)
    )
    with pytest.raises(ValueError, match="the mode of remember_seen must be given"):
        model.recommend({}, 1, candidates={0: [1, 1], 1: [0, 1]})


def test_parameters_that_are_set_later_do_not_change_what_was_fitted():
    model = SpiderClassifier(**SMALL, negatives=2, negatives_over=1).fit(numbered_events(50))
    model.set_params(negatives=None)
    model.learn_one((0, 0))
    model.learn([(0, "new")])
    assert model.n_entries_ == 52


def test_a_copy_does_not_share_pairs():
    model = SpiderClassifier(**SMALL, negatives=2, negatives_over=1, remember_seen=True).fit(
        numbered_events(50)
    )
    twin = pickle.loads(pickle.dumps(model))
    before = len(model._fitted().pairs.pairs())
    twin.learn([(0, 0), ("new", "new")])
    assert len(model._fitted().pairs.pairs()) == before


# --- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"negatives": 0, "negatives_over": 1}, "negatives must be a whole number"),
        ({"negatives": 2}, "negatives_over must name the mode"),
        ({"negatives_over": 1}, "negatives_over is for a model of events"),
        ({"negatives_power": 0.5}, "negatives_power is for a model of events"),
        ({"remember_seen": (0, 0)}, "must name two modes"),
        ({"remember_seen": 5}, "no mode 5"),
        ({"remember_seen": True, "max_nodes": 5}, "leave one of them"),
        ({"negatives": 2, "negatives_over": 1, "remember_seen": (0, 1)}, "names one mode"),
        ({"negatives": 2, "negatives_over": "shop"}, "no mode 'shop'"),
        ({"negatives": 2, "negatives_over": 2}, "no mode 2"),
        ({"negatives": 2, "negatives_over": (1, 1)}, "names a mode twice"),
        ({"negatives": 2, "negatives_over": 1, "negatives_power": 1.5}, "negatives_power must be"),
        ({"negatives": 2, "negatives_over": 1, "remember_seen": 1}, "another mode than negatives_over"),
        ({"negatives": 2, "negatives_over": (0, 1), "remember_seen": 0}, "names several"),
        ({"negatives": 2, "negatives_over": 1, "remember_seen": True, "max_nodes": 5}, "leave one of them"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit(params, reason):
    with pytest.raises(ValueError, match=reason):
        SpiderClassifier(**SMALL, **params).fit([(0, 0), (1, 1)], None if "negatives" in params else [0, 1])


def test_with_three_modes_somebody_is_named():
    params = {**SMALL, "negatives": 2, "negatives_over": 1}
    with pytest.raises(ValueError, match="must name the one that is recommended to"):
        SpiderClassifier(**params, remember_seen=True).fit(numbered_events(10, 3))
    assert SpiderClassifier(**params, remember_seen=0).fit(numbered_events(10, 3)).n_entries_ == 10


def test_a_value_that_is_no_event_changes_nothing(tmp_path):
    model = SpiderClassifier(**SMALL, negatives=2, negatives_over=1).fit(numbered_events(50), np.ones(50))
    before = arrays_of(model, tmp_path / "a")
    with pytest.raises(EntryError, match="is not an event") as error:
        model.learn([(0, 0), (9, 9)], [1, 0])
    assert error.value.row == 1
    with pytest.raises(EntryError, match="is not an event"):
        model.learn_one((0, 0), 0)
    assert same(before, arrays_of(model, tmp_path / "b"))


def test_a_classifier_without_negatives_still_needs_y():
    with pytest.raises(EntryError, match="requires y"):
        SpiderClassifier(**SMALL).fit(numbered_events(10))


def test_a_clone_is_of_events_too():
    model = SpiderClassifier(**SMALL, negatives=2, negatives_over="product", remember_seen=True)
    assert clone(model).get_params() == model.get_params()


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("committee/draws/seen", lambda a: a + 1, "nodes of the events"),
        ("committee/draws/popularity/0/times", lambda a: a * 0 + 2**50, "popularity of nodes"),
        ("committee/draws/events", lambda a: a * 0, "number of events"),
        ("committee/draws/events", lambda a: a * 100, "number of events"),
        ("committee/draws/popularity/0/times", lambda a: a - 100, "popularity of nodes"),
        ("committee/draws/popularity/0/tree", lambda a: a + 1, "sums of the popularity"),
        ("model/seen_pairs", lambda a: a[::-1].copy(), "not sorted"),
        ("model/seen_pairs", lambda a: a + np.uint64(1 << 40), "node that is not known"),
        ("model/seen_pairs", lambda a: a | np.uint64(0xFFFF), "not"),
    ],
)
def test_a_changed_file_is_refused(name, change, reason, tmp_path):
    model = SpiderClassifier(
        **SMALL, negatives=2, negatives_over=1, negatives_power=0.5, remember_seen=True
    ).fit(numbered_events(50))
    model.save(tmp_path / "model")
    file = checkpoint.load(tmp_path / "model")
    checkpoint.save(tmp_path / "model", file.arrays | {name: change(file.arrays[name])}, file.sections)
    with pytest.raises(CheckpointError, match=reason):
        SpiderClassifier.load(tmp_path / "model")
