"""One estimator, many threads: everybody sees a whole state, and nothing is lost."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import spidertensor
from spidertensor import SpiderClassifier, SpiderRegressor
from spidertensor.estimator.groups import GROUP_OF
from spidertensor.estimator.old_names import OldMethods
from spidertensor.spider.quick_means import one_blas_thread

SMALL = {"rank": 2, "hidden": (4,), "batch_size": 16, "multilinear": 2, "committee": 2}
BOTH = pytest.mark.parametrize("kind", [SpiderRegressor, SpiderClassifier])


def growing(kind, n=6_000):
    """New ids all the way, so that the arrays grow and move."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, np.arange(8, n + 8)[:, None] // [2, 8], (n, 2))
    y = np.sin(X).sum(axis=1) + 0.1 * rng.standard_normal(n)
    return X, (y > 0).astype(int) if kind is SpiderClassifier else y


def readers(model, X) -> dict:
    """A call of every method and attribute that reads what was learned."""
    methods = {
        "predict": (X[:50],), "predict_parts": (X[:50],), "predict_one": (X[0],), "seen": (X[:50],),
        "forecast": (X[:50],),
        "recommend": ({0: 3}, 1), "recommend_many": ({0: [3, 4]}, 1), "similar": (0, 3), "explain": (X[0],),
        "_parse_ids": (0, ["3"]), "inclusion": (0,), "weights": (0,), "factors": (0,),
        "attribute_factors": (0,), "nodes": (0,),
        "score": (X[:4], [0, 1] * 2),
    }  # fmt: skip
    own = {"predict_proba": (X[:50],)} if hasattr(model, "predict_proba") else {"predict_interval": (X[:50],)}

    def suppressed(read) -> Callable[[], None]:
        def call() -> None:
            with contextlib.suppress(ValueError):  # it is no model of events, or of levels
                read()

        return call

    calls: dict[str, Callable[[], Any]] = {
        name: lambda name=name, args=args: getattr(model, name)(*args)
        for name, args in (methods | own).items()
    }
    of_parameters = ("likelihood", "likelihood_", "learns_events")  # they read nothing learned
    apart = {*of_parameters, *GROUP_OF, *vars(OldMethods)}  # old names lead to the new ones
    public = [name for name in dir(type(model)) if not name.startswith("_") and name not in apart]
    attributes = [name for name in public if isinstance(getattr(type(model), name), property)]
    calls |= {name: lambda name=name: getattr(model, name) for name in attributes}
    if hasattr(model, "predict_rate"):
        calls["predict_rate"] = suppressed(lambda: model.predict_rate(X[:50]))
    else:
        calls["predict_levels"] = suppressed(lambda: model.predict_levels(X[:50]))
        calls["levels_"] = suppressed(lambda: model.levels_)
    left = {name for name in public if "request" not in name} - calls.keys() - set(vars(clone(model)))
    assert left == {
        "fit", "partial_fit", "learn", "learn_one", "forget", "save", "load", "paper", "set_attributes",
        "add_columns", "get_params", "set_params", "get_metadata_routing", "position_",
        *(["classes_"] if "classes_" in left else []),
    }  # fmt: skip
    return calls | {"pickle": lambda: pickle.dumps(model), "copy": lambda: copy.copy(model)}


@BOTH
def test_nobody_looks_while_another_thread_is_inside(kind, tmp_path):
    X, y = growing(kind, 200)
    model = kind(**SMALL).fit(X, y)
    calls = readers(model, X) | {
        "fit": lambda: model.fit(X, y),
        "partial_fit": lambda: model.partial_fit(X[:90], y[:90]),
        "learn": lambda: model.learn(X[:80], y[:80]),
        "forget": lambda: model.forget(0, [3]),
        "_learn_numbered": lambda: model._learn_numbered(X, y),
        "learn_one": lambda: model.learn_one(X[0], y[0]),
        "_warn_at_end": model._warn_at_end,
        "save": lambda: model.save(tmp_path / "model"),
    }
    done = []
    threads = [
        threading.Thread(target=lambda name=name, call=call: (call(), done.append(name)))
        for name, call in calls.items()
    ]
    with model._lock:
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        assert done == []
    for thread in threads:
        thread.join(60)
    assert set(done) == set(calls)


@pytest.mark.slow
@BOTH
def test_learn_predict_save_and_load_at_once(kind, tmp_path):
    """Without the lock, most files cannot be loaded, ids and arrays differ in length, or it crashes."""
    X, y = growing(kind)
    model, alone = (kind(**SMALL).partial_fit(X[:50], y[:50]) for _ in range(2))
    calls = readers(model, X)
    path, stop, errors, counts = tmp_path / "model", threading.Event(), [], {}

    def repeat(name, work):
        def loop():
            counts[name] = 0
            while not stop.is_set():
                try:
                    work()
                except BaseException as error:
                    errors.append((name, error))
                    return
                counts[name] += 1

        return threading.Thread(target=loop)

    def saved():
        model.save(path)
        back = spidertensor.load(path)
        assert back.n_entries_ % 50 == 0  # all of a call, or nothing
        back.predict(X[:10])

    def copied():
        for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), copy.copy(model)):
            assert twin.n_entries_ % 50 == 0
            assert [len(each.ids) for each in twin.factors_] == list(twin.n_nodes_)
            twin.partial_fit(X[:50], y[:50])

    def read():
        for call in calls.values():
            call()
        for each in model.factors_:
            assert len(each.ids) == len(each.mean) == len(each.var)

    model.save(path)
    threads = [
        repeat(work.__name__, work) for work in (saved, copied, read, calls["predict"], calls["recommend"])
    ]
    for thread in threads:
        thread.start()
    for start in range(50, len(X), 50):
        model.partial_fit(X[start : start + 50], y[start : start + 50])
        alone.partial_fit(X[start : start + 50], y[start : start + 50])
    stop.set()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert min(counts.values()) > 0
    model.save(path)
    alone.save(tmp_path / "alone")
    assert path.read_bytes() == (tmp_path / "alone").read_bytes()


def test_two_threads_that_learn_lose_nothing():
    X, y = growing(SpiderRegressor, 4000)
    model = SpiderRegressor(**SMALL).partial_fit(X[:100], y[:100])

    def learn(part):
        for start in range(0, 1000, 20):
            model.learn(X[part][start : start + 20], y[part][start : start + 20])

    threads = [threading.Thread(target=learn, args=(slice(n, n + 1000),)) for n in (0, 1000, 2000, 3000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert model.n_entries_ == 4100
    assert [len(each.ids) for each in model.factors_] == [len(np.unique(column)) for column in X.T]


@BOTH
def test_every_copy_has_a_lock_of_its_own(kind):
    model = kind(**SMALL).fit(*growing(kind, 100))
    twins = [pickle.loads(pickle.dumps(model)), copy.copy(model), copy.deepcopy(model), clone(model), kind()]
    locks = {id(each._lock) for each in (model, *twins)}
    assert len(locks) == len(twins) + 1

    class Mine(kind):
        def __init__(self):
            pass  # does not call the one above

    assert Mine()._lock is not model._lock


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_never_waits_for_a_thread_of_its_parent():
    """The model that a thread was in says what is wrong, another one works."""
    X, y = growing(SpiderRegressor, 50)
    busy, free = (SpiderRegressor(**SMALL).fit(X, y) for _ in range(2))
    expected, inside, leave = free.recommend({0: 3}, 1), threading.Event(), threading.Event()

    def hold() -> None:
        with busy._lock, one_blas_thread():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(60)
    reading, writing = os.pipe()
    if not (child := os.fork()):
        signal.alarm(30)  # ends a child that hangs
        try:
            said = "nothing"
            try:
                busy.predict(X)
            except RuntimeError as error:
                said = str(error)
            os.write(writing, f"{free.recommend({0: 3}, 1) == expected} {said}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    told = os.read(reading, 1000).decode()
    os.close(reading)
    leave.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert told.startswith("True this process was forked while another thread")
    busy.predict(X)
