"""Save and go on: equal to never stopping, bit for bit, also after SIGKILL. Wrong files. Golden files."""

from __future__ import annotations

import ast
import contextlib
import copy
import hashlib
import json
import pickle
import signal
import struct
import subprocess
import sys
import tempfile
import time
import tracemalloc
from functools import cache
from itertools import pairwise
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spidertensor
from forked import Spider
from model_files import SPECIAL, file_bytes
from spidertensor import (
    CheckpointError,
    EntryError,
    Inference,
    SpiderClassifier,
    SpiderRegressor,
    SpiderWarning,
    checkpoint,
)
from spidertensor.spider.robust import LARGEST_LOG_NOISE

GOLDEN = Path(__file__).parents[1] / "golden"
SMALL = {"rank": (2, 1), "hidden": (4,), "batch_size": 8, "multilinear": 2, "bias": True}
OWN = [{}, {"rank": (1, 3), "hidden": (3, 2), "memory": 30.0}, {"bias": False, "multilinear": 0}]
BOTH = pytest.mark.parametrize("kind", [SpiderRegressor, SpiderClassifier])


def mixed_ids(n=90, binary=False):
    """Ids of several kinds, new ones all the way."""
    rng = np.random.default_rng(0)
    row = np.arange(n)
    users = [f"user {i}" if i % 3 else int(i) for i in rng.integers(0, 3 + row // 4)]
    X = list(zip(users, [f"é{i}" for i in rng.integers(0, 2 + row // 9)], strict=True))
    y = rng.standard_normal(n).cumsum()
    return X, (y > y.mean()).astype(int) if binary else y


def model_of(kind, n=90):
    X, y = (part[:n] for part in mixed_ids(binary=kind is SpiderClassifier))
    return kind(**SMALL, committee=4).fit(X, y)


# --- save, load, go on ---


def preset_model(kind, preset):
    make = {**SMALL, **({"scaling": (0.0, 3.0)} if kind is SpiderRegressor else {})}
    make |= {"memory": 20.0} if preset == "memory" else {}
    make |= {"committee": OWN} if preset == "members" else {}
    return (kind.paper if preset == "paper" else kind)(**make)


@cache
def never_stopped(kind, preset):
    X, y = mixed_ids(binary=kind is SpiderClassifier)
    whole = preset_model(kind, preset).fit(X, y)
    return whole, file_bytes(whole), whole.predict(X)


@pytest.mark.parametrize("kind", [SpiderRegressor, SpiderClassifier])
@pytest.mark.parametrize("preset", ["plain", "paper", "memory", "members"])
@settings(max_examples=10)
@given(cuts=st.lists(st.integers(1, 90), max_size=6))
def test_going_on_equals_never_stopping(kind, preset, cuts):
    X, y = mixed_ids(binary=kind is SpiderClassifier)
    whole, content, predicted = never_stopped(kind, preset)
    edges = [0, *sorted(cuts), 90]
    model = preset_model(kind, preset)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        for start, end in pairwise(edges):
            model.partial_fit(X[start:end], y[start:end])
            model.save(path, position={"row": end})
            model = spidertensor.load(path)
            assert model.position_ == {"row": end}
    assert type(model) is kind
    assert len(model.members_) == {"paper": 1, "members": 3}.get(preset, 6)
    assert model.members_ == whole.members_
    assert file_bytes(model) == content
    np.testing.assert_array_equal(model.predict(X), predicted)
    assert model.get_params() == whole.get_params()


def jumping(n=1400, jump=500):
    """Three modes; the values jump by 1000 in mid-stream, which a model watches before it follows."""
    rng = np.random.default_rng(4)
    index = rng.integers(0, (9, 6, 4), (n, 3))
    y = np.sin(index).sum(axis=1) + 0.1 * rng.standard_normal(n)
    y[100] = 1e5
    y[jump:] += 1000
    return index, y


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::spidertensor.SpiderWarning")
@pytest.mark.parametrize(
    "changes", [{}, {"inference": Inference(node_noise=False)}, {"memory": 200}], ids=str
)
def test_going_on_in_a_watched_window(changes):
    """Saved and loaded, or pickled, at every entry where the window or what is watched changes."""
    X, y = jumping()
    model = SpiderRegressor(rank=2, hidden=(4,), multilinear=2, batch_size=16, **changes)
    model.partial_fit(X[:20], y[:20])
    facts = []
    for n in range(20, len(y)):
        now = model._learned.state.members[0].stream
        facts.append((n, int(now.watching), now.followed.tolist(), now.window[0] > 1, n == 500))
        model.partial_fit(X[n : n + 1], y[n : n + 1])
    changed = [later[0] for before, later in pairwise(facts) if before[1:] != later[1:]]
    watched = [n for n, watching, *_ in facts if watching]
    assert len(watched) >= 256
    assert sum(facts[-1][2]) >= 1
    wanted = file_bytes(model)
    cuts = {max(n + off, 20) for n in [*changed, watched[len(watched) // 2]] for off in (-1, 0, 1)}
    model = SpiderRegressor(**model.get_params(deep=False)).partial_fit(X[:20], y[:20])
    at = 20
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        for n in sorted(cuts):
            model.partial_fit(X[at:n], y[at:n])
            at = n
            model.save(path)
            first, second = SpiderRegressor.load(path), pickle.loads(pickle.dumps(model))
            assert file_bytes(first) == file_bytes(second) == path.read_bytes()
            model = first if n % 2 else second
            other = second if n % 2 else first
            assert file_bytes(other.partial_fit(X[n:], y[n:])) == wanted
    assert file_bytes(model.partial_fit(X[at:], y[at:])) == wanted


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::spidertensor.SpiderWarning")
def test_going_on_in_a_watched_window_of_the_vectorized_engine():
    """A joint batch ends with its call, so the calls are those of the model that is never saved."""
    pytest.importorskip("jax")
    X, y = jumping(n=1120)
    settings = {"rank": 2, "hidden": (4,), "multilinear": 2, "batch_size": 32, "engine": "vectorized"}
    settings |= {"committee": 2}
    whole, broken = SpiderRegressor(**settings, memory=300), SpiderRegressor(**settings, memory=300)
    watched = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        for start in range(0, len(y), 80):
            part = slice(start, start + 80)
            whole.partial_fit(X[part], y[part])
            broken.partial_fit(X[part], y[part]).save(path)
            broken = pickle.loads(pickle.dumps(broken)) if start % 160 else SpiderRegressor.load(path)
            watched += int(broken._learned.state.members[0].stream.watching)
            assert file_bytes(broken) == file_bytes(whole)
    assert watched >= 3
    assert sum(broken.followed_.values()) >= 1


@BOTH
def test_a_pickle_mapped_into_memory_goes_on(kind, tmp_path):
    """It is read-only, and learning writes in place."""
    X, y = mixed_ids(binary=kind is SpiderClassifier)
    model = model_of(kind, 50)
    joblib.dump(model, tmp_path / "model")
    mapped = joblib.load(tmp_path / "model", mmap_mode="r")
    for each in (model, mapped):
        each.partial_fit(X[50:], y[50:])
    assert file_bytes(mapped) == file_bytes(model)


@BOTH
def test_everything_comes_back(kind, tmp_path):
    X, y = mixed_ids(binary=kind is SpiderClassifier)
    model = kind(**SMALL, random_state=4).fit(pd.DataFrame(X, columns=["user", "item"]), y)
    model.save(tmp_path / "model", position=["anything", 1, None])
    for back in (kind.load(tmp_path / "model"), spidertensor.load(str(tmp_path / "model"))):
        assert type(back) is kind
        assert back.get_params() == model.get_params()
        assert back.position_ == ["anything", 1, None]
        assert back.feature_names_in_.tolist() == ["user", "item"]
        assert back.n_features_in_ == 2
        for name in ("n_nodes_", "n_entries_", "log_evidence_", "n_rejected_", "n_refused_", "members_"):
            assert getattr(back, name) == getattr(model, name)
        for one, other in zip(back.factors_, model.factors_, strict=True):
            assert one.ids == other.ids
            np.testing.assert_array_equal(one.mean, other.mean)
        for one, other in zip(back.inclusion_, model.inclusion_, strict=True):
            np.testing.assert_array_equal(one, other)
    assert model.members_[0].weight != model.members_[1].weight
    if kind is SpiderRegressor:
        for name in ("noise_", "n_clipped_", "followed_"):
            assert getattr(back, name) == getattr(model, name)
        fresh = kind(**SMALL, scaling=(0.0, 3.0)).fit(X[:1], y[:1])
        for coverage in (0.5, 0.9):  # the histogram of the residuals
            np.testing.assert_array_equal(
                back.predict_interval(X, coverage), model.predict_interval(X, coverage)
            )
            widths = [np.subtract(*each.predict_interval(X[:1], coverage)) for each in (model, fresh)]
            stds = [each.predict(X[:1], return_std=True)[1] for each in (model, fresh)]
            assert widths[0] / stds[0] != pytest.approx(widths[1] / stds[1], rel=1e-3)


def test_saving_again_forgets_the_position(tmp_path):
    model = model_of(SpiderRegressor)
    model.save(tmp_path / "model", position=1)
    spidertensor.load(tmp_path / "model").save(tmp_path / "model")
    assert spidertensor.load(tmp_path / "model").position_ is None


def test_params_changed_after_learning_are_not_saved(tmp_path):
    model = model_of(SpiderRegressor)
    before = file_bytes(model)
    model.set_params(rank=5, hidden=(7, 7))
    assert file_bytes(model) == before


def test_a_subclass(tmp_path):
    class Mine(SpiderRegressor):
        pass

    model = Mine(**SMALL).fit(*mixed_ids())
    model.save(tmp_path / "model")
    assert type(Mine.load(tmp_path / "model")) is Mine
    assert type(spidertensor.load(tmp_path / "model")) is SpiderRegressor


@BOTH
def test_the_other_kind_is_an_error(kind, tmp_path):
    other = SpiderClassifier if kind is SpiderRegressor else SpiderRegressor
    model_of(kind).save(tmp_path / "model")
    with pytest.raises(CheckpointError, match=f"model: holds a {kind.__name__}, not a {other.__name__}"):
        other.load(tmp_path / "model")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        spidertensor.load(tmp_path / "nothing")


# --- killed at any moment ---

WORKER = """
import sys
from pathlib import Path
import numpy as np
import spidertensor

path, every, batch, n, kind = Path(sys.argv[1]), 3, 7, int(sys.argv[2]), sys.argv[3]
regression = kind == "SpiderRegressor"
if path.exists():
    model = spidertensor.load(path)
else:
    more = {"scaling": (0.0, 1.0)} if regression else {}
    model = getattr(spidertensor, kind)(rank=2, hidden=(4,), batch_size=16, **more)
row = model.position_["row"] if model.position_ else 0
print("from", row, flush=True)
number = 0
while row < n:
    rows = np.arange(row, min(row + batch, n))  # a source that can be read from any position
    X = [(f"user {i * i % (5 + i // 20)}", int(i * 7 % (3 + i // 50))) for i in rows]
    row += len(rows)
    value = np.sin(rows * 0.7) + rows % 3
    model.partial_fit(X, value if regression else value > 1)
    number += 1
    if number % every == 0 or row == n:
        model.save(path, position={"row": row})
        print(row, flush=True)
"""


def run_worker(path, n, kind):
    return Spider(path, n, kind.__name__, program=WORKER, text=True)


@pytest.mark.slow
@BOTH
def test_killed_at_random_moments_and_resumed(kind, tmp_path):
    """A worker prints after each save; some saves and some milliseconds later it is killed."""
    n, rng = 4_000, np.random.default_rng(3)
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    calm = run_worker(unbroken, n, kind)
    starts = []
    for kill in range(8):
        with run_worker(broken, n, kind) as worker:
            starts.append(int(worker.stdout.readline().split()[1]))
            for _ in range(0 if kill == 0 else rng.integers(1, 40)):
                worker.stdout.readline()
            time.sleep(rng.uniform(0, 0.01))
            worker.send_signal(signal.SIGKILL)
        assert worker.returncode == -signal.SIGKILL
    assert starts[0] == 0
    assert sorted(starts) == starts
    assert 0 < starts[-1] < n
    assert len(set(starts)) > 5
    for worker in (run_worker(broken, n, kind), calm):
        worker.communicate()
        assert worker.returncode == 0
    assert broken.read_bytes() == unbroken.read_bytes()
    model = spidertensor.load(broken)
    assert (type(model), model.n_entries_, len(model.members_)) == (kind, n, 6)


# --- files that are wrong ---


def refused(path, words=None):
    for act in (spidertensor.load, SpiderRegressor.load):
        with pytest.raises(CheckpointError, match=words) as caught:
            act(path)
        assert str(path) in str(caught.value)


def test_truncated_files(tmp_path):
    whole = file_bytes(model_of(SpiderRegressor))
    path = tmp_path / "model"
    for length in [*range(80), *range(80, len(whole), 97), *range(len(whole) - 40, len(whole))]:
        path.write_bytes(whole[:length])
        refused(path)
    path.write_bytes(whole + b"\0")
    refused(path)


def test_flipped_bits(tmp_path):
    whole = file_bytes(model_of(SpiderRegressor))
    path, rng = tmp_path / "model", np.random.default_rng(0)
    for at in [*range(20), *rng.integers(20, len(whole), 150)]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        refused(path)


def test_foreign_files(tmp_path):
    path, rng = tmp_path / "model", np.random.default_rng(0)
    for content in (b"", b"hello", b"PK\x03\x04" + bytes(100), *(rng.bytes(n) for n in (10, 1000, 100_000))):
        path.write_bytes(content)
        refused(path)
    checkpoint.save(path, {"model/weights": np.zeros(3)}, {"model": {"estimator": "SpiderRegressor"}})
    refused(path, "missing or unknown keys")
    for sections in ({}, {"position": 1}, {"model": None}, {"model": [1]}):
        checkpoint.save(path, {}, sections)
        refused(path, "holds no model")
    refused(tmp_path, "not a regular file")


def put(*keys, value, section="model"):
    """Sets sections[section][keys...] = value; without keys, the section itself."""

    def change(arrays, sections):
        at = sections
        keys_there = (section, *keys)
        for key in keys_there[:-1]:
            at = at[key]
        at[keys_there[-1]] = value

    return change


def drop(*keys, section="model"):
    def change(arrays, sections):
        at = sections[section]
        for key in keys[:-1]:
            at = at[key]
        del at[keys[-1]]

    return change


def members(*own, wanted=None):
    """Another list of members; `wanted`: what the params say, if not the same list."""
    own = list(own)
    listed = put("params", "committee", value=own if wanted is None else wanted)
    return both(listed, put("members", value=own, section="committee"))


def without_committee(arrays, sections):
    del sections["committee"]
    for name in [name for name in arrays if name.startswith("committee/")]:
        del arrays[name]


def weights(*values):
    return array("committee/weights", lambda a: np.array(values))


def array(name, edit):
    """Replaces an array by edit(array), or removes it if that is None."""

    def change(arrays, sections):
        new = edit(arrays.pop(name))
        if new is not None:
            arrays[name] = new

    return change


def add(name, value=(1.0,)):
    return lambda arrays, sections: arrays.update({name: np.array(value)})


def filled(value):
    def edit(a):
        a = a.copy()
        a.flat[-1] = value
        return a

    return edit


def number(name, *at, value):
    """Sets one number of an array of the second member."""

    def edit(a):
        a = a.copy()
        a[at] = value
        return a

    return array(f"{S}/{name}", edit)


def both(*changes):
    def change(arrays, sections):
        for each in changes:
            each(arrays, sections)

    return change


S = "committee/members/1"
P = f"{S}/posterior"
SECOND, THIRD = {"bias_var": 0.1, "multilinear_var": 0.1, "memory": 1000}, {"bias_var": 0.2}
W, F, N, L = f"{P}/weights/0", f"{P}/factors/1", f"{P}/noise", f"{P}/log_noise/1"
INCONSISTENT = {
    # estimator and params
    "unknown estimator": put("estimator", value="Pickle"),
    "estimator of a wrong type": put("estimator", value=["SpiderRegressor"]),
    "estimator missing": drop("estimator"),
    "product missing": drop("product"),
    "product a number": put("product", value=1),
    "product null": put("product", value=None),
    "clip missing": drop("params", "clip"),
    "node_noise missing": drop("params", "node_noise"),
    "memory missing": drop("params", "memory"),
    "engine missing": drop("params", "engine"),
    "clip negative": put("params", "clip", value=-1),
    "clip a text": put("params", "clip", value="4"),
    "memory 0": put("params", "memory", value=0),
    "node_noise without noise that forgets": put("params", "noise_memory", value=None),
    "node_noise that is there is denied": put("params", "node_noise", value=False),
    "a key too much": put("code", value="import os"),
    "params missing": drop("params"),
    "params of a wrong type": put("params", value=[1]),
    "params empty": put("params", value={}),
    "param missing": drop("params", "rho0"),
    "noise_memory missing": drop("params", "noise_memory"),
    "param unknown": put("params", "learning_rate", value=0.1),
    "rank of a wrong type": put("params", "rank", value="8"),
    "rank negative": put("params", "rank", value=-1),
    "rank other": put("params", "rank", value=[1, 2]),
    "rank of one mode only": put("params", "rank", value=[3]),
    "hidden of a wrong type": put("params", "hidden", value=4),
    "hidden other": put("params", "hidden", value=[5]),
    "hidden longer": put("params", "hidden", value=[4, 1]),
    "hidden none": put("params", "hidden", value=[]),
    "activation unknown": put("params", "activation", value="exec"),
    "rho0 null": put("params", "rho0", value=None),
    "rho0 too large": put("params", "rho0", value=1.01),
    "slab_var negative": put("params", "slab_var", value=-1.0),
    "curvature a number": put("params", "curvature", value=1),
    "noise_memory negative": put("params", "noise_memory", value=-1),
    "batch_size 0": put("params", "batch_size", value=0),
    "random_state null": put("params", "random_state", value=None),
    "random_state other": put("params", "random_state", value=1),
    "random_state negative": put("params", "random_state", value=-1),
    "scaling impossible": put("params", "scaling", value=[0, 0]),
    "bias other": put("params", "bias", value=False),
    "network a text": put("params", "network", value="os:system"),
    "network that nobody gives": put("params", "network", value={"name": "x", "shapes": [[4, 7], [1, 5]]}),
    # sizes that nobody has
    "hidden huge": put("params", "hidden", value=[10**9, 10**9]),
    "rank huge": put("params", "rank", value=10**12),
    "multilinear huge": put("params", "multilinear", value=10**12),
    "modes huge": put("modes", value=10**12),
    "modes many and rank huge": put("modes", value=10**18),
    # the rest of the config
    "modes missing": drop("modes"),
    "modes of a wrong type": put("modes", value="2"),
    "modes fewer": put("modes", value=1),
    "modes a float": put("modes", value=2.0),
    "modes true": put("modes", value=True),
    "modes negative": put("modes", value=-2),
    "names too few": put("names", value=["a"]),
    "names equal": put("names", value=["a", "a"]),
    "names a text": put("names", value="ab"),
    "names numbers": put("names", value=[1, 2]),
    "scale 0": put("scale", value=0.0),
    "scale negative": put("scale", value=-1.0),
    "scale too small": put("scale", value=1e-300),
    "scale a text": put("scale", value="1"),
    "scale null": put("scale", value=None),
    "shift a list": put("shift", value=[0.0]),
    # arrays of the state
    "layer missing": array(f"{W}/mean", lambda a: None),
    "weights other shape": array(f"{W}/mean", lambda a: a[:, :-1]),
    "weight variances other shape": array(f"{W}/var", lambda a: a[:-1]),
    "weights other type": array(f"{W}/mean", lambda a: a.astype(np.float64)),
    "a weight NaN": array(f"{W}/mean", filled(np.nan)),
    "variance negative": array(f"{W}/var", filled(-1.0)),
    "variance 0": array(f"{F}/var", filled(0.0)),
    "variance NaN": array(f"{F}/var", filled(np.nan)),
    "variance infinite": array(f"{F}/var", filled(np.inf)),
    "factors fewer rows": array(f"{F}/mean", lambda a: a[:-1]),
    "factor variances fewer rows": array(f"{F}/var", lambda a: a[:-1]),
    "factors without rows": array(f"{F}/mean", lambda a: a[:0]),
    "factors 1-D": array(f"{F}/mean", lambda a: a.ravel()),
    "site NaN": array(f"{S}/sites/0/precision", filled(np.nan)),
    "noise negative": array(f"{N}/rate", lambda a: -a),
    "noise shape 0": array(f"{N}/shape", lambda a: a * 0),
    "noise an array": array(f"{N}/rate", lambda a: np.array([1.0, 2.0])),
    "more nodes counted": array(f"{S}/counts/nodes", filled(10**6)),
    "fewer nodes counted": array(f"{S}/counts/nodes", filled(1)),
    "negative nodes": array(f"{S}/counts/nodes", filled(-1)),
    "three modes counted": array(f"{S}/counts/nodes", lambda a: np.append(a, 1)),
    "negative entries": array(f"{S}/counts/entries", lambda a: a * 0 - 1),
    "negative rejections": array(f"{S}/counts/rejected", lambda a: a * 0 - 1),
    "evidence NaN": array(f"{S}/counts/log_evidence", lambda a: a * np.nan),
    "negative refusals": number("counts/refused", value=-1),
    "negative clipped": number("counts/clipped", value=-1),
    "counts missing": array(f"{S}/counts/clipped", lambda a: None),
    "noise too small to divide by": both(
        number("posterior/noise/shape", value=1e-300), number("posterior/noise/rate", value=1e300)
    ),
    "mean beyond squares": array(f"{W}/mean", filled(1e30)),
    "variance beyond squares": array(f"{F}/var", filled(1e30)),
    # noise of nodes
    "log_noise missing": array(f"{L}/mean", lambda a: None),
    "log_noise fewer rows": both(array(f"{L}/mean", lambda a: a[:-1]), array(f"{L}/var", lambda a: a[:-1])),
    "log_noise fewer means": array(f"{L}/mean", lambda a: a[:-1]),
    "log_noise NaN": array(f"{L}/mean", filled(np.nan)),
    "log_noise too large": array(f"{L}/mean", filled(6.1)),
    "log_noise too small": array(f"{L}/mean", filled(-100)),
    "log_noise variance 0": array(f"{L}/var", filled(0)),
    "log_noise variance negative": array(f"{L}/var", filled(-0.01)),
    "log_noise variance above the prior's": array(f"{L}/var", filled(0.11)),
    "log_noise of one mode too much": add(f"{S}/posterior/log_noise/2/mean"),
    # the stream
    "stream missing": array(f"{S}/stream/scale", lambda a: None),
    "stream shift infinite": number("stream/shift", value=-np.inf),
    "stream scale 0": number("stream/scale", value=0),
    "stream scale negative": number("stream/scale", value=-1),
    "stream scale NaN": number("stream/scale", value=np.nan),
    "stream entries negative": number("stream/entries", value=-1),
    "stream mean NaN": number("stream/mean", value=np.nan),
    "stream variance negative": number("stream/var", value=-1e-9),
    "stream log_noise too large": number("stream/log_noise", 1, value=7),
    "no squares": array("noise/1/squares", lambda a: None),
    "squares negative": array("noise/1/squares", filled(-1)),
    "squares NaN": array("noise/1/squares", filled(np.nan)),
    "three squares": array("noise/1/squares", lambda a: np.ones(3)),
    "squares of a member too many": add("noise/9/squares", (1.0, 1.0)),
    "window NaN": number("stream/window", 6, value=np.nan),
    "window shorter": array(f"{S}/stream/window", lambda a: a[:-1]),
    "window entries negative": number("stream/window", 0, value=-1),
    "window squares negative": number("stream/window", 1, value=-1),
    "window variance negative": number("stream/window", 4, value=-1),
    "window variance of f negative": number("stream/window", 5, value=-1),
    "watching 3": number("stream/watching", value=3),
    "watching -1": number("stream/watching", value=-1),
    "decide on nothing": both(number("stream/window", 0, value=0), number("stream/watching", value=2)),
    "followed negative": number("stream/followed", 2, value=-1),
    "follows without clipping": both(
        put("params", "clip", value=None), number("stream/scale", value=2.0)
    ),
    "watches without clipping": both(
        put("params", "clip", value=None), number("stream/watching", value=1)
    ),
    "seed other": array(f"{S}/seed", lambda a: a + 1),
    "an array too much": add(f"{S}/posterior/weights/2/mean"),
    "an array of another tree": add("model/extra/thing"),
    "state itself": add("model/state"),
    "a second state": add("model/state/seed", 0),
    "the state of a fifth member": add("committee/members/4/seed", 0),
    "a member itself": add(S),
    # the committee
    "no committee": without_committee,
    "no committee, and no state": both(put("params", "committee", value=1), without_committee),
    "committee null": put(section="committee", value=None),
    "committee a list": put(section="committee", value=[{}] * 4),
    "committee knows more": put("rate", section="committee", value=0.5),
    "members missing": drop("members", section="committee"),
    "members a number": put("members", section="committee", value=4),
    "members empty": members(wanted=4),
    "members empty, as the params want": members(),
    "members of a wrong type": members({}, [], {}, {}, wanted=4),
    "a member's name of a setting is no setting": members({}, {"engine": "vectorized"}, {}, {}),
    "a member with a committee": members({}, {"committee": 2}, {}, {}),
    "a member with a scaling": members({}, {"scaling": [0, 1]}, {}, {}),
    "a member with an unknown setting": members({}, {"code": "import os"}, {}, {}, wanted=4),
    "a member with an impossible variance": members({}, SECOND | {"bias_var": -1}, THIRD, {}, wanted=4),
    "a member with a text as memory": members({}, SECOND | {"memory": "1"}, THIRD, {}, wanted=4),
    "a member with memory 0": members({}, SECOND | {"memory": 0}, THIRD, {}, wanted=4),
    "a member with an unknown activation": members({}, {"activation": "exec"}, THIRD, {}, wanted=4),
    "a member with rho0 2": members({}, {"rho0": 2}, THIRD, {}, wanted=4),
    "a member with another rank": members({}, {"rank": 3}, THIRD, {}, wanted=4),
    "a member of another width": members({}, {"hidden": [5]}, THIRD, {}, wanted=4),
    "a member of no memory for its noise": members({}, {"noise_memory": None}, THIRD, {}, wanted=4),
    "a member that denies its node_noise": members({}, {"node_noise": False}, THIRD, {}, wanted=4),
    "a huge member": members({}, {"hidden": [10**9, 10**9]}, THIRD, {}, wanted=4),
    "fewer members than params": members({}, SECOND, THIRD, wanted=4),
    "more members than params": members({}, SECOND, THIRD, {}, {}, wanted=4),
    "fewer members than states": members({}, SECOND, THIRD),
    "more members than states": members({}, SECOND, THIRD, {}, {}),
    "members other than those of the params": members({}, SECOND, THIRD, {}, wanted=[{}, THIRD, SECOND, {}]),
    "params with more members": put("params", "committee", value=5),
    "params with no member": put("params", "committee", value=0),
    "params with half a member": put("params", "committee", value=3.5),
    "params with a text": put("params", "committee", value="4"),
    "params without a committee": drop("params", "committee"),
    # its weights
    "weights missing": array("committee/weights", lambda a: None),
    "weights negative": weights(0.5, 0.5, 0.5, -0.5),
    "weight 0": weights(0.5, 0.5, 0.0, 0.0),
    "weights of sum 2": weights(0.5, 0.5, 0.5, 0.5),
    "weights of sum 0.9": weights(0.25, 0.25, 0.25, 0.15),
    "weights of a sum a little off": weights(0.25, 0.25, 0.25, 0.25 + 1e-7),
    "weights NaN": weights(0.5, 0.25, 0.25, np.nan),
    "weights infinite": weights(np.inf, 0.25, 0.25, 0.25),
    "fewer weights": weights(0.5, 0.25, 0.25),
    "more weights": weights(0.2, 0.2, 0.2, 0.2, 0.2),
    "weights of less precision": array("committee/weights", lambda a: a.astype(np.float32)),
    # its counts, and the histogram of the residuals
    "committee's refusals negative": array("committee/counts/refused", lambda a: a * 0 - 1),
    "committee's clipped negative": array("committee/counts/clipped", lambda a: a * 0 - 1),
    "committee's evidence infinite": array("committee/counts/log_evidence", lambda a: a * 0 - np.inf),
    "committee's counts missing": array("committee/counts/refused", lambda a: None),
    "histogram missing": array("committee/residuals/mass", lambda a: None),
    "histogram negative": array("committee/residuals/mass", filled(-1e-9)),
    "histogram infinite": array("committee/residuals/mass", filled(np.inf)),
    "histogram NaN": array("committee/residuals/mass", filled(np.nan)),
    "histogram of an infinite sum": array("committee/residuals/mass", lambda a: a * 0 + 1e308),
    "histogram empty": array("committee/residuals/mass", lambda a: a * 0),
    "histogram of fewer bins": array("committee/residuals/mass", lambda a: a[1:]),
    # ids
    "ids missing": array("model/nodes/1/utf8", lambda a: None),
    "offsets cut short": array("model/nodes/1/offsets", lambda a: a[:-1]),
    "ids too many": array("model/nodes/1/offsets", lambda a: np.append(a, a[-1])),
    "ids damaged": array("model/nodes/1/utf8", filled(255)),
    "ids in two ways": add("model/nodes/1/int", [1, 2]),
    "mode too much": add("model/nodes/2/int", [1]),
    "mode without number": add("model/nodes/x/int", [1]),
    "mode misspelled": add("model/nodes/01/int", [1]),
    "ids too deep": add("model/nodes/1/utf8/0", [1]),
    "nodes itself": add("model/nodes", [1]),
    "nodes slash": add("model/nodes/", [1]),
}  # fmt: skip


@pytest.fixture(scope="module")
def content():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        model_of(SpiderRegressor).save(path)
        content = checkpoint.load(path)
        sections = copy.deepcopy(content.sections)
        del sections["position"]
        checkpoint.save(path, content.arrays, sections)
        assert spidertensor.load(path).position_ is None  # it is good, a position or not
        return content


@pytest.mark.slow
@pytest.mark.parametrize("case", INCONSISTENT)
def test_whole_files_with_content_that_does_not_fit_together(case, content, tmp_path):
    arrays, sections = dict(content.arrays), copy.deepcopy(content.sections)
    del sections["position"]
    path = tmp_path / "model"
    INCONSISTENT[case](arrays, sections)
    checkpoint.save(path, arrays, sections)
    tracemalloc.start()
    try:
        refused(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5e6


@pytest.mark.parametrize("value", [0, -1, -1e-30])
@pytest.mark.parametrize(
    "name", [f"{W}/var", f"{F}/var", f"{L}/var", f"{N}/shape", f"{N}/rate", f"{S}/counts/entries"]
)
def test_what_is_not_positive_is_named(name, value, content, tmp_path):
    """By this check, whatever later ones would say of it."""
    arrays, dtype = dict(content.arrays), content.arrays[name].dtype
    arrays[name] = arrays[name].copy()
    arrays[name].flat[-1] = value
    if dtype.kind == "i" and value > -1:
        arrays[name][()] = 0
    checkpoint.save(tmp_path / "model", arrays, content.sections)
    refused(tmp_path / "model", "a variance or a count is not positive")


@pytest.mark.parametrize("name", [f"{L}/mean", f"{S}/stream/log_noise"])
@pytest.mark.parametrize("value", [LARGEST_LOG_NOISE, -LARGEST_LOG_NOISE])
def test_the_largest_noise_of_a_node_is_allowed(name, value, content, tmp_path):
    """Learning stops there, so a model can have it."""
    arrays = content.arrays | {name: filled(value)(content.arrays[name])}
    checkpoint.save(tmp_path / "model", arrays, content.sections)
    model = spidertensor.load(tmp_path / "model")
    assert np.isfinite(model.predict(mixed_ids()[0], return_std=True)).all()


def test_a_mode_without_nodes_is_one_whose_nodes_were_all_forgotten(content, tmp_path):
    arrays = dict(content.arrays)
    for name in content.arrays:
        if any(
            part in name for part in ("/factors/1/", "/log_noise/1/", "tally/entries/1", "tally/latest/1")
        ):
            arrays[name] = arrays[name][:0]
        if name.endswith("counts/nodes"):
            arrays[name] = filled(0)(arrays[name])
    arrays |= {"model/nodes/1/utf8": np.zeros(0, np.uint8), "model/nodes/1/offsets": np.zeros(1, np.int64)}
    checkpoint.save(tmp_path / "model", arrays, content.sections)
    model = spidertensor.load(tmp_path / "model")
    assert model.n_nodes_[1] == 0
    with pytest.warns(SpiderWarning, match="never learned"):
        mean, std = model.predict([[f"new {n}", f"new {n}"] for n in range(20)], return_std=True)
    assert np.isfinite([mean, std]).all()


def many_modes(arrays, sections):
    """Ids just below the limit of a direct table, in each of 60 modes."""
    model = SpiderRegressor(rank=1, hidden=(1,), multilinear=0, committee=1, scaling=(0, 1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        model.fit(np.full((1, 60), 2**22 - 1), [1.0]).save(path)
        file = checkpoint.load(path)
    arrays.clear()
    arrays.update(file.arrays)
    sections.update(file.sections)


def tagged(*ids):
    """The ids of the first mode as JSON."""

    def change(arrays, sections):
        del arrays["model/nodes/0/json"]
        arrays["model/nodes/0/json"] = np.frombuffer(json.dumps(ids).encode(), np.uint8)

    return change


BOMBS = {
    "many modes": many_modes,
    "one id of many tuples": tagged(["tuple", [["tuple", []]] * 30_000]),
    "ids that are none": tagged(*[[]] * 100_000),
    "many members in the params": put("params", "committee", value=[{}] * 50_000),
    "many members": put("members", value=[{}] * 50_000, section="committee"),
    "many members in both": members(*[{}] * 50_000),
    "a long rank": put("params", "rank", value=[[]] * 50_000),
    "a long hidden": put("params", "hidden", value=[[[]]] * 50_000),
    "a long scaling": put("params", "scaling", value=[{"a": 0}] * 30_000),
    "a member's long rank": put("params", "committee", value=[{"rank": [1] * 100_000}]),
    "an object of many values": put("params", "rank", value={str(i): [] for i in range(30_000)}),
    "many names": put("names", value=["a"] * 50_000),
}


@pytest.mark.parametrize("case", BOMBS)
def test_memory_is_a_small_multiple_of_the_file(case, content, tmp_path):
    arrays, sections = dict(content.arrays), copy.deepcopy(content.sections)
    BOMBS[case](arrays, sections)
    path = tmp_path / "model"
    checkpoint.save(path, arrays, sections)
    tracemalloc.start()
    try:
        with contextlib.suppress(CheckpointError):
            spidertensor.load(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 36 * path.stat().st_size


def test_saving_and_loading_take_no_second_copy_of_the_state(tmp_path):
    path, n = tmp_path / "model", 20_000
    model = SpiderRegressor(committee=3, random_state=0, scaling=(0, 1))
    model.partial_fit(np.stack([np.arange(n)] * 2, axis=1), np.sin(np.arange(n)))
    tracemalloc.start()
    try:
        model.save(path)
        assert tracemalloc.get_traced_memory()[1] < 0.1 * path.stat().st_size
        tracemalloc.reset_peak()
        spidertensor.load(path)
        assert tracemalloc.get_traced_memory()[1] < 1.6 * path.stat().st_size  # it has 20,000 ids, too
    finally:
        tracemalloc.stop()


def test_no_two_arrays_of_a_loaded_model_share_memory(tmp_path):
    """They are updated in place, and in a file one array may stand for several members."""
    levels = SpiderRegressor(likelihood="ordinal", committee=2, random_state=0, **SMALL)
    levels.partial_fit([(n % 5, n % 3) for n in range(40)], [1 + n % 4 for n in range(40)]).save(
        tmp_path / "m"
    )
    for path in (tmp_path / "m", *GOLDEN.glob("*.golden")):
        arrays = checkpoint.flatten(spidertensor.load(path)._learned.state)
        owners = [id(array if array.base is None else array.base) for array in arrays.values()]
        assert len(set(owners)) == len(arrays)
        assert all(array.flags.carray for array in arrays.values())


def test_errors_about_large_values_are_short(content, tmp_path):
    """They go to a terminal or a log. A name or a value may be megabytes long."""
    path, long, deep = tmp_path / "model", "x" * 100_000, []
    for _ in range(600):
        deep = [deep]
    for change in (
        put("estimator", value=long), put("estimator", value=[long]), put("modes", value=long),
        put("params", "activation", value=long), put("params", "rank", value=long), put("shift", value=long),
        put("params", long, value=1), put(long, value=1), add(f"model/{long}"), add(f"model/nodes/0/{long}"),
        add(f"model/nodes/{long}/int"), add(f"committee/{long}"), put("params", "hidden", value=deep),
        put("params", "network", value={"name": long, "shapes": [[1]] * 900}),
        members({}, {long: 1}, {}, {}), put("product", value=long), put("names", value=[long]),
    ):  # fmt: skip
        arrays, sections = dict(content.arrays), copy.deepcopy(content.sections)
        change(arrays, sections)
        checkpoint.save(path, arrays, sections)
        with pytest.raises(CheckpointError) as caught:
            spidertensor.load(path)
        assert len(str(caught.value)) < 1000


def test_the_members_are_those_that_a_file_lists(content, tmp_path):
    """Not the first so many of a list in the package, which may be another by then."""
    arrays, sections = dict(content.arrays), copy.deepcopy(content.sections)
    members({}, SECOND, THIRD, {}, wanted=4)(arrays, sections)
    path = tmp_path / "model"
    checkpoint.save(path, arrays, sections, {"calibration", "noise", "tally"})
    model = spidertensor.load(path)
    for each in (model, pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert [member.own for member in each.members_] == [{}, SECOND, THIRD, {}]
        assert each.get_params()["committee"] == 4
        assert file_bytes(each) == path.read_bytes()


def test_a_classifier_has_no_scale(tmp_path):
    path = tmp_path / "model"
    model_of(SpiderClassifier).save(path)
    file = checkpoint.load(path)
    for change in ({"scale": 2.0}, {"shift": 1.0}):
        sections = file.sections | {"model": file.sections["model"] | change}
        checkpoint.save(path, file.arrays, sections)
        refused(path, "holds a SpiderClassifier|scaling .* is invalid")
    for name in ("shift", "scale"):
        arrays = file.arrays | {f"{S}/stream/{name}": np.array(2.0)}
        checkpoint.save(path, arrays, file.sections)
        refused(path, "holds a SpiderClassifier|followed a change of the values")


@pytest.mark.slow
@BOTH
@pytest.mark.filterwarnings("ignore::spidertensor.SpiderWarning")
def test_a_number_that_was_changed_never_makes_a_nan(kind, tmp_path):
    """Each array of numbers that are not whole, with one of them changed: refused, or it predicts numbers."""
    path, rng = tmp_path / "model", np.random.default_rng(0)
    X, y = mixed_ids(binary=kind is SpiderClassifier)
    kind(**SMALL, committee=2).fit(X, y).save(path)
    file = checkpoint.load(path)
    names = [name for name, array in file.arrays.items() if array.dtype.kind == "f"]
    names = [name for name in names if not name.startswith("committee/members/0/")]  # as those of member 1
    assert [name for name in names if name.startswith("committee/members/1/")]
    loaded = 0
    with np.errstate(over="ignore"):
        for name in names:
            for value in SPECIAL:
                damaged = file.arrays[name].copy()
                damaged.flat[rng.integers(damaged.size)] = value
                checkpoint.save(path, file.arrays | {name: damaged}, file.sections)
                try:
                    model = kind.load(path)
                except CheckpointError:
                    continue
                loaded += 1
                for _ in range(2):
                    ends = model.predict_interval(X, 0.99) if kind is SpiderRegressor else ()
                    for told in (*model._predict(X), *ends):
                        assert not np.isnan(told).any(), (name, value)
                    with contextlib.suppress(EntryError):  # values may be too far for a tiny scale
                        model.partial_fit(X, y)
    assert len(names) * len(SPECIAL) / 4 < loaded < len(names) * len(SPECIAL) * 3 / 4


# --- files of all versions ---


def facts_of(model, asked):
    """What the golden files say of a model."""
    facts = {"n_nodes": list(model.n_nodes_), "n_entries": model.n_entries_}
    facts["log_evidence"] = model.log_evidence_
    if isinstance(model, SpiderClassifier):
        return facts | {"probability": model.predict_proba(asked)[:, 1].tolist()}
    mean, std = model.predict(asked, return_std=True)
    return facts | {"mean": mean.tolist(), "std": std.tolist(), "noise": model.noise_}


def golden(version, name):
    path = GOLDEN / f"version-{version}-{name}.golden"
    wanted = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    return path, wanted, ast.literal_eval(wanted.pop("asked")), np.array(wanted.pop("value"))


def assert_facts(model, asked, wanted):
    """Where the files were made all digits agree; other processors may round sums otherwise."""
    found = facts_of(model, asked)
    assert found.keys() == wanted.keys()
    for key, value in found.items():
        rtol = 1e-12 if key in ("n_nodes", "n_entries", "log_evidence", "noise") else 1e-5
        np.testing.assert_allclose(value, wanted[key], rtol=rtol, atol=0, err_msg=key)


VERSIONS = pytest.mark.parametrize("version", [1, 2])
NAMES = pytest.mark.parametrize("name", ["regressor", "classifier"])


@VERSIONS
@NAMES
@pytest.mark.filterwarnings("ignore::spidertensor.SpiderWarning")
def test_golden_files_load_for_ever(version, name):
    path, wanted, asked, y = golden(version, name)
    model = spidertensor.load(path)
    then = wanted.pop("then")  # after the values were learned 40 times
    assert path.stat().st_size < 20_000
    assert checkpoint.load(path).version == version
    assert model.position_ == {"row": wanted["n_entries"], "source": "make.py"}
    if name == "regressor":
        assert model.feature_names_in_.tolist() == ["user", "item", "place"]
    assert_facts(model, asked, wanted)
    assert model.get_params()["committee"] == 1
    assert model.members_ == [({}, 1.0, model.log_evidence_)]
    if name == "regressor":  # it has no residuals yet: the intervals are those of a normal distribution
        mean, std = model.predict(asked, return_std=True)
        low, high = model.predict_interval(asked, 0.9)
        np.testing.assert_allclose(high - mean, 1.6449 * std, rtol=2e-3)
        np.testing.assert_allclose(low - mean, -1.6449 * std, rtol=2e-3)
    # and goes on learning: the same few entries, again and again, are soon known better
    X = asked[: len(y)]
    before, first = model.log_evidence_, model.learn(X, y).log_evidence.sum()
    assert model.log_evidence_ == pytest.approx(before + first)
    for _ in range(39):
        last = model.learn(X, y).log_evidence.sum()
    assert last > first
    found = facts_of(model, asked)
    assert found.keys() == then.keys()
    # Models with noise per node learn that otherwise now, so what they learn differs: their means by little.
    learns_otherwise = (version, name) == (2, "regressor")
    for key, value in found.items():
        if not (learns_otherwise and key in ("std", "noise", "log_evidence")):
            rtol = 0.005 if learns_otherwise else 1e-5
            np.testing.assert_allclose(value, then[key], rtol=rtol, err_msg=key)
    assert model.n_entries_ == wanted["n_entries"] + 40 * len(y)
    assert model.n_nodes_ == tuple(wanted["n_nodes"])
    ((_, weight, log_evidence),) = model.members_
    assert (weight, log_evidence) == (1, pytest.approx(model.log_evidence_, rel=1e-12))
    model.partial_fit([("new", *asked[0][1:])], y[:1])
    assert model.n_nodes_ == (wanted["n_nodes"][0] + 1, *wanted["n_nodes"][1:])


@pytest.mark.filterwarnings("ignore::spidertensor.SpiderWarning")
def test_the_golden_file_with_attributes_loads_for_ever(tmp_path):
    path, wanted, asked, y = golden(3, "attributes")
    model, then = spidertensor.load(path), wanted.pop("then")
    assert path.stat().st_size < 50_000
    assert checkpoint.load(path).version == 3
    assert_facts(model, asked, wanted)
    columns = model._learned.columns
    specs = [column.spec.kind for column in columns.columns]
    assert specs == ["value", "recent", "number", "many", "value", "calendar", "cross"]
    assert [column.spec.most for column in columns.columns if column.spec.kind == "cross"] == [20]
    assert (columns.n_evicted > 0).tolist() == [True, False, False, False, False, False, True]
    assert len(model.history_["errors"]) == 2
    known = model.attribute_factors()
    assert "town 3" in known["user", "city"].ids
    assert set(known["item", "tags"].ids) == {"new", "red", "old", "blue"}
    assert model.seen([{"user": 7, "item": "item 9"}]).tolist() == [[False, True, False]]
    model.save(tmp_path / "again")  # unchanged, but for what later versions may add
    again, before = checkpoint.load(tmp_path / "again").arrays, checkpoint.load(path).arrays
    for name, array in before.items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)
    for _ in range(40):
        model.partial_fit(asked[: len(y)], y)
    found = facts_of(model, asked)
    assert found.keys() == then.keys()
    for key, value in found.items():
        np.testing.assert_allclose(value, then[key], rtol=1e-4, err_msg=key)


def test_the_golden_file_of_version_2_is_in_a_watched_window():
    model = spidertensor.load(GOLDEN / "version-2-regressor.golden")
    state = model._learned.state
    (member,) = state.members
    assert member.stream.watching == 1
    assert member.posterior.log_noise
    assert model.n_clipped_ > 0
    assert model.get_params()["memory"] == 500


@NAMES
def test_a_model_of_version_1_stays_what_it_was(name, tmp_path):
    """Saved again it has the new format, but its multilinear part is still the product over all modes."""
    path, _, asked, y = golden(1, name)
    model = spidertensor.load(path)
    settings = model.get_params()
    assert settings["memory"] is None
    assert settings["engine"] == "sequential"
    if name == "regressor":
        assert (settings["inference__clip"], settings["inference__node_noise"]) == (None, False)
    model.save(tmp_path / "again")
    file = checkpoint.load(tmp_path / "again")
    assert file.version == 2
    assert file.sections["model"]["product"] is True
    assert file.sections["model"]["params"]["committee"] == 1
    assert file.sections["committee"] == {"members": [{}]}
    assert not [each for each in file.arrays if each.startswith("model/state/")]
    again = spidertensor.load(tmp_path / "again")
    twins = (again, pickle.loads(pickle.dumps(model)), copy.deepcopy(again), spidertensor.load(path))
    assert {facts_text(each, asked) for each in (model, *twins)} == {facts_text(model, asked)}
    for each in (model, *twins):
        for _ in range(5):
            each.partial_fit(asked[: len(y)], y)
        assert each._learned.model.members[0].network.product
    assert {file_bytes(each) for each in twins} == {file_bytes(model)}
    # a product is not a sum over pairs, where there are three modes
    file.sections["model"]["product"] = False
    checkpoint.save(tmp_path / "pairs", file.arrays, file.sections)
    pairs = spidertensor.load(tmp_path / "pairs")
    assert not pairs._learned.model.members[0].network.product
    same = facts_text(pairs, asked) == facts_text(spidertensor.load(path), asked)
    assert same == (name == "classifier")  # two modes, and no multilinear part


def facts_text(model, asked) -> str:
    return json.dumps(facts_of(model, asked))


def test_new_models_have_pairs(tmp_path):
    model_of(SpiderRegressor).save(tmp_path / "model")
    assert checkpoint.load(tmp_path / "model").sections["model"]["product"] is False


def changed_version_1(change, more=b""):
    """The golden regressor's bytes with another header and more bytes behind its arrays."""
    content = (GOLDEN / "version-1-regressor.golden").read_bytes()
    magic, version, length = struct.unpack_from("<8sIQ", content)
    header, payload = json.loads(content[20 : 20 + length]), content[20 + length : -32]
    change(header, len(payload))
    text = json.dumps(header).encode()
    text = text.ljust(-(-(len(text) + 20) // 64) * 64 - 20)
    body = struct.pack("<8sIQ", magic, version, len(text)) + text + payload + more
    return body + hashlib.sha256(body).digest()


def test_version_1_does_not_say_what_it_did_not_know(tmp_path):
    path = tmp_path / "model"
    path.write_bytes(changed_version_1(lambda header, end: None))
    spidertensor.load(path)
    for change, words in (
        (lambda header, end: header["config"].update(product=False), "unknown keys"),
        (lambda header, end: header["config"]["params"].pop("rho0"), "missing or invalid"),
        (lambda header, end: header["config"]["params"].update(node_noise=True), "log_noise"),
    ):
        path.write_bytes(changed_version_1(change))
        refused(path, words)

    def with_stream(header, end):
        at = -(-end // 64) * 64
        new = {"name": "state/stream/shift", "dtype": "<f8", "shape": [], "offset": at, "nbytes": 8}
        header["arrays"].append(new)
        padding.append(at - end)

    padding: list[int] = []
    changed_version_1(with_stream)
    path.write_bytes(changed_version_1(with_stream, bytes(padding[0] + 8)))
    refused(path, "format 1 does not know")


def test_looking_at_a_model_needs_no_engine(tmp_path):
    """Files of any version and engine load without JAX."""
    model = model_of(SpiderRegressor)
    model.save(tmp_path / "model")
    file = checkpoint.load(tmp_path / "model")
    file.sections["model"]["params"]["engine"] = "vectorized"
    checkpoint.save(tmp_path / "vectorized", file.arrays, file.sections)
    paths = [tmp_path / "model", tmp_path / "vectorized", *sorted(GOLDEN.glob("*.golden"))]
    code = (
        "import sys; sys.modules['jax'] = None\n"
        "from spidertensor.estimator.loading import look\n"
        "for path in sys.argv[1:]: print(look(path).n_entries_)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, paths)], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.split() == ["90", "90", "600", "800", "600", "700", "1184"]
