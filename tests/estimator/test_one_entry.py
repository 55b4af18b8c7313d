"""One entry at a time: `learn_one` and `predict_one` are `learn` and `predict`, bit for bit."""

from __future__ import annotations

import pickle
import signal
import threading
import warnings
from typing import Any

import numpy as np
import pytest

from spidertensor import EntryError, Inference, SpiderClassifier, SpiderRegressor, SpiderWarning, checkpoint
from spidertensor.estimator import one_entry
from spidertensor.spider.posterior import trim

SMALL: dict[str, Any] = {"rank": 2, "hidden": (6,), "multilinear": 2, "batch_size": 16}
BOTH = pytest.mark.parametrize("kind", [SpiderRegressor, SpiderClassifier])


def jumping(kind: type, n: int = 900) -> list[tuple[tuple[Any, ...], float]]:
    """Nodes arrive over time; an outlier now and then; in the middle all values jump, for good."""
    rng = np.random.default_rng(5)
    rows = rng.integers(0, 4 + np.arange(n) // 20, (2, n)).T
    value = np.sin(rows).sum(axis=1) + 0.1 * rng.normal(size=n)
    if kind is SpiderClassifier:
        value = (value > 0).astype(float)
    else:
        value[50::90] += 1e4
        value[250:] = 40 * value[250:] + 900
    users = [f"user {user}" if user % 3 else int(user) for user in rows[:, 0].tolist()]
    return list(zip(zip(users, rows[:, 1].tolist(), strict=True), value.tolist(), strict=True))


def arrays(model: Any) -> dict[str, np.ndarray]:
    state = model._learned.state
    return checkpoint.flatten(state._replace(members=tuple(map(trim, state.members))))


def assert_same_model(one: Any, other: Any) -> None:
    assert [nodes.ids for nodes in one._learned.nodes] == [nodes.ids for nodes in other._learned.nodes]
    first, second = arrays(one), arrays(other)
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)


def numbers(update: Any) -> list[Any]:
    return [each.item() if isinstance(each, np.ndarray) else each for each in update]


@BOTH
@pytest.mark.parametrize("committee", [1, 4])
def test_one_by_one_is_the_whole_stream(kind, committee):
    """Against one call with all entries, which never takes the short way: new nodes, outliers, refinements
    and a change that is followed included."""
    entries = jumping(kind)
    first, rest = entries[:40], entries[40:]
    one, whole = (kind(committee=committee, **SMALL) for _ in range(2))
    for model in (one, whole):
        model.learn(*map(list, zip(*first, strict=True)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the change that is followed
        wanted = whole.learn(*map(list, zip(*rest, strict=True)))
        got = [one.learn_one(ids, value) for ids, value in rest]
    fields = ["mean", "var", "noise", "log_evidence"] + ["below"] * (kind is SpiderRegressor)
    for field in fields:
        np.testing.assert_array_equal([getattr(each, field) for each in got], getattr(wanted, field), field)
    for field in ("rejected", "refused", "clipped"):
        assert sum(getattr(each, field) for each in got) == getattr(wanted, field)
    assert_same_model(one, whole)
    if kind is SpiderRegressor:
        assert sum(one.followed_.values()) >= 1
        assert one.n_clipped_ > 10


@pytest.mark.parametrize(
    "settings", [{"inference": Inference(curvature=True)}, {"activation": "tanh"}, {"hidden": ()}]
)
def test_other_networks_one_by_one(settings):
    """What an entry does not move is not written back, so this must be nothing else."""
    entries = jumping(SpiderRegressor, 200)
    settings = SMALL | {"batch_size": 1000, "scaling": (0, 1)} | settings
    one, whole = SpiderRegressor(**settings), SpiderRegressor(**settings)
    one.fit(*map(list, zip(*entries[:150], strict=True)))
    for ids, value in entries[150:]:
        one.learn_one(ids, value)
    assert_same_model(one, whole.fit(*map(list, zip(*entries, strict=True))))


@pytest.mark.parametrize("member", [0, 2])
def test_members_out_of_step_are_an_error(member):
    entries = jumping(SpiderRegressor, 200)
    model = SpiderRegressor(**SMALL).fit(*map(list, zip(*entries, strict=True)))
    ids, value = entries[0]
    model.learn_one(ids, value)
    model._fitted().state.members[member].counts.entries[()] += 1
    with pytest.raises(RuntimeError, match="some members had learned"):
        model.learn_one(ids, value)


@BOTH
def test_most_entries_take_the_short_way(kind, monkeypatch):
    """Else the tests above would compare the general way with itself."""
    model, taken = kind(**SMALL), []
    entries = jumping(kind, 200)
    model.learn(*map(list, zip(*entries, strict=True)))
    short = one_entry._learned
    monkeypatch.setattr(one_entry, "_learned", lambda *args: taken.append(short(*args)) or taken[-1])
    for ids, value in entries[:64]:
        model.learn_one(ids, value)
        model.learn([ids], [value])
    assert sum(each is not None for each in taken) == 120  # all but those where the prior is refined
    ids = ("never seen", *entries[0][0][1:])
    model.learn_one(ids, 1.0)
    assert taken[-1] is None


@BOTH
@pytest.mark.filterwarnings("ignore::spidertensor.SpiderWarning")  # about ids that were never seen
def test_predict_one_is_predict(kind):
    entries = jumping(kind, 200)
    model = kind(**SMALL).fit(*map(list, zip(*entries, strict=True)))
    rows = [ids for ids, _ in entries[:50]] + [
        ("nobody", 1),
        (1.5, 3),
        (("a", 2), True),
        (np.int64(4), np.str_("x")),
    ]
    parts = model.predict_parts(rows)
    for i, row in enumerate(rows):
        one = model.predict_one(row)
        assert numbers(model.predict_parts([row])) == [part[i] for part in parts]
        if kind is SpiderRegressor:
            mean, std = model.predict(rows, return_std=True)
            assert one == (one.mean, one.std) == (mean[i], std[i])
        else:
            assert one.probability == model.predict_proba(rows)[i, 1]
            assert one.label == model.predict(rows)[i]
        assert one == model.predict_one(list(row))


def test_ids_by_name():
    """In any order; before anything was learned the names become the columns'."""
    first, second = SpiderRegressor(scaling=(0, 1), **SMALL), SpiderRegressor(scaling=(0, 1), **SMALL)
    for user, film, value in [("anna", 1, 1.0), ("ben", 1, 2.0), ("anna", 2, 0.5), ("anna", 1, 1.5)]:
        first.learn_one({"user": user, "film": film}, value)
        second.learn_one((user, film), value)
    assert_same_model(first, second)
    assert first.mode_names_ == ["user", "film"]
    assert first.predict_one({"film": 2, "user": "ben"}) == second.predict_one(("ben", 2))
    with pytest.raises(EntryError, match="missing columns: film"):
        first.predict_one({"user": "ben", "movie": 2})
    with pytest.raises(EntryError, match="unexpected columns: hour"):
        first.learn_one({"user": "ben", "film": 2, "hour": 3}, 1.0)


BAD = [
    (("anna",), 1.0, "expected 2 ids"),
    ("an", 1.0, "2-D input"),
    (("anna", None), 1.0, r"missing id \(None\): leave the row out, or write an id"),
    (("anna", float("nan")), 1.0, "missing id"),
    (("anna", 1 + 2j), 1.0, "cannot be an id"),
    (("anna", 1), float("nan"), "not finite"),
    (("anna", 1), "1.0", "'1.0' of type str is not a finite number: convert numbers with float; two labels"),
    (("anna", 1), None, "without a value: only events"),
    (("anna", 1), 10**400, "not a finite number"),
    (("anna", 1), 1e300, "times the scale"),
]


@pytest.mark.parametrize(("ids", "value", "reason"), BAD)
def test_bad_input_is_the_error_of_learn_and_changes_nothing(ids, value, reason):
    model = SpiderRegressor(**SMALL).fit([("anna", 1), ("ben", 1)] * 10, np.arange(20.0))
    before = pickle.loads(pickle.dumps(model))
    with pytest.raises(EntryError, match=reason) as one:
        model.learn_one(ids, value)
    with pytest.raises(EntryError) as many:
        model.learn([ids], [value])
    assert (str(one.value), one.value.row) == (str(many.value), many.value.row)
    assert_same_model(model, before)


@pytest.mark.parametrize("kind", [SpiderRegressor, SpiderClassifier])
def test_an_entry_without_a_value_is_no_event(kind):
    model = kind(committee=1)
    with pytest.raises(EntryError, match="without a value: only events have none: pass what was observed"):
        model.learn_one((1, 2))
    assert not model.__sklearn_is_fitted__()


def test_bad_labels():
    model = SpiderClassifier(**SMALL).fit([("anna", 1), ("ben", 1)], [0, 1])
    with pytest.raises(EntryError, match="label 2 is not 0 or 1"):
        model.learn_one(("anna", 1), 2)
    assert model.n_entries_ == 2


@pytest.mark.parametrize("classes", [("no", "yes"), ("yes", "no"), (1, 2), (2, 1), (False, True)])
def test_labels_of_any_kind(classes):
    """The second is the positive one."""
    X = [("a", 1), ("b", 1)]
    one, many = (SpiderClassifier(**SMALL).partial_fit(X, classes, classes=classes) for _ in range(2))
    for i in range(20):
        ids, label = X[i % 2], classes[i % 2]
        assert one.learn_one(ids, label) == tuple(numbers(many.learn(np.array([ids], object), [label])))
    assert_same_model(one, many)
    for ids, label in zip(X, classes, strict=True):
        predicted = one.predict_one(ids)
        assert predicted.label == label == many.predict([ids])[0]
        assert predicted.probability == many.predict_proba([ids])[0, list(many.classes_).index(classes[1])]
    with pytest.raises(EntryError, match="label 'maybe' is not"):
        one.learn_one(X[0], "maybe")


def test_a_node_that_is_learned_is_the_last_to_be_evicted():
    """With max_nodes the order in which nodes were seen counts, and the short way does not keep it."""
    models = [SpiderRegressor(max_nodes=2, scaling=(0, 1), **SMALL) for _ in range(2)]
    for ids, value in [(("a", 1), 1.0), (("b", 1), 2.0), (("a", 1), 1.0), (("c", 1), 0.5), (("a", 2), 1.0)]:
        models[0].learn_one(ids, value)
        models[1].learn(np.array([ids], object), [value])
    assert_same_model(*models)
    assert models[0].seen([("a", 1), ("b", 1)])[:, 0].tolist() == [True, False]


def test_notes_are_given_one_by_one_too():
    model = SpiderClassifier(**SMALL)
    for _ in range(999):
        model.learn_one(("anna", "Alien"), 1)
    with pytest.warns(SpiderWarning, match="all 1,000 values are 1"):
        model.learn_one(("anna", "Alien"), 1)


def test_numbers_of_any_plain_type():
    values = [1, True, 2.5, np.float32(0.1), np.int64(3), np.float64(2.25), np.int8(4), 2**70 / 2**70]
    one, many = (SpiderRegressor(scaling=(1, 2), **SMALL).fit([("a", 1)] * 2, [0, 1]) for _ in range(2))
    for value in values:
        assert one.learn_one(("a", 1), value) == tuple(
            numbers(many.learn(np.array([["a", 1]], object), [value]))
        )
    assert_same_model(one, many)


@pytest.mark.slow
def test_the_vectorized_engine_takes_them_too():
    pytest.importorskip("jax")
    entries = jumping(SpiderRegressor, 60)
    one, many = (SpiderRegressor(engine="vectorized", committee=1, **SMALL) for _ in range(2))
    for model in (one, many):
        model.learn(*map(list, zip(*entries[:30], strict=True)))
    for ids, value in entries[30:40]:
        assert one.learn_one(ids, value) == tuple(numbers(many.learn([ids], [value])))
        assert one.predict_one(ids).mean == many.predict([ids])[0]
    assert_same_model(one, many)


def test_weights_that_were_learned_in_between_are_used():
    """The short way keeps packed weights: learning by long calls, a file and a pickle must renew them."""
    entries = jumping(SpiderRegressor, 400)
    X, y = map(list, zip(*entries, strict=True))
    one, plain = (SpiderRegressor(**SMALL | {"batch_size": 1000}).fit(X[:200], y[:200]) for _ in range(2))
    for start in range(200, 400, 20):
        part = slice(start, start + 10)
        one.learn(X[part], y[part])  # new nodes among them
        for i in range(start + 10, start + 20):
            one.learn_one(X[i], y[i])
            one.predict_one(X[i])
        plain.learn(np.array(X[start : start + 20], object), y[start : start + 20])
        one = pickle.loads(pickle.dumps(one)) if start % 60 == 20 else one
        assert one.predict_one(X[0]).mean == plain.predict(np.array(X[:1], object))[0]
    assert_same_model(one, plain)


def test_the_first_short_call_after_a_long_one():
    """A long call runs the members one by one, without packed weights that stay."""
    X, y = map(list, zip(*jumping(SpiderClassifier, 800), strict=True))
    one, whole = (SpiderClassifier(**SMALL | {"batch_size": 1000}) for _ in range(2))
    assert one.fit(X[:700], y[:700]).predict_one(X[0]).probability == one.predict_proba(X[:600])[0, 1]
    one.fit(X[:700], y[:700])
    for ids, value in zip(X[700:], y[700:], strict=True):
        one.learn_one(ids, value)
    assert_same_model(one, whole.fit(X, y))


def test_threads_may_share_a_model():
    entries = jumping(SpiderRegressor, 300)
    model = SpiderRegressor(**SMALL).fit(*map(list, zip(*entries, strict=True)))
    ids = entries[0][0]

    def work() -> None:
        for _ in range(200):
            model.learn_one(ids, 1.0)
            assert np.isfinite(model.predict_one(ids)).all()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert model.n_entries_ == 300 + 3 * 200
    assert {int(member.counts.entries) for member in model._learned.state.members} == {900}


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that interrupts")
def test_an_interrupt_leaves_members_and_committee_in_step():
    """At any moment of a call: the entry was learned by all of them, weights included, or by none."""
    entries = jumping(SpiderRegressor, 200)
    model = SpiderRegressor(**SMALL | {"batch_size": 10_000}).fit(*map(list, zip(*entries, strict=True)))
    ids, rng, interrupted = entries[0][0], np.random.default_rng(0), 0

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(1500):
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 1e-4))
                for _ in range(1000):
                    model.learn_one(ids, 0.5)
            except KeyboardInterrupt:
                interrupted += 1
            state = model._learned.state
            counts = {int(each.counts.entries) for each in (state, *state.members)}
            assert len(counts) == 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted == 1500


def test_labels_of_ones_own_beside_bounded_nodes():
    rows = [((u, m), "yes" if (u + m) % 3 else "no") for u in range(8) for m in range(6)] * 2
    one, many = (SpiderClassifier(committee=2, rank=2, hidden=(4,), max_nodes=(5, None)) for _ in range(2))
    one.partial_fit([rows[0][0]], [rows[0][1]], classes=["no", "yes"])
    many.partial_fit([rows[0][0]], [rows[0][1]], classes=["no", "yes"])
    for ids, label in rows[1:]:
        assert one.learn_one(ids, label).mean == many.learn([ids], [label]).mean[0]
        label_found, probability = one.predict_one(ids)
        assert label_found == many.predict([ids])[0]
        assert probability == many.predict_proba([ids])[0, 1]
    assert one.n_evicted_ == many.n_evicted_ != (0, 0)
    with pytest.raises(EntryError, match="perhaps"):
        one.learn_one(rows[0][0], "perhaps")
