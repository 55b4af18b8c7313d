"""Save and go on: equal to never stopping, bit for bit, also after SIGKILL. Wrong files. Golden files."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spidertensor
from spidertensor import CheckpointError, SpiderClassifier, SpiderRegressor, checkpoint

GOLDEN = Path(__file__).parent / "golden"
SMALL = {"rank": (2, 1), "hidden": (4,), "batch_size": 8, "multilinear": 2, "bias": True}
BOTH = pytest.mark.parametrize("kind", [SpiderRegressor, SpiderClassifier])


def stream(n=90, binary=False):
    """Ids of several kinds, new ones all the way."""
    rng = np.random.default_rng(0)
    row = np.arange(n)
    users = [f"user {i}" if i % 3 else int(i) for i in rng.integers(0, 3 + row // 4)]
    X = list(zip(users, [f"é{i}" for i in rng.integers(0, 2 + row // 9)], strict=True))
    y = rng.standard_normal(n).cumsum()
    return X, (y > y.mean()).astype(int) if binary else y


def model_of(kind, n=90):
    return kind(**SMALL).fit(*(part[:n] for part in stream(binary=kind is SpiderClassifier)))


def file_bytes(model, position=None) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        model.save(path, position)
        return path.read_bytes()


# --- save, load, go on ---


@pytest.mark.parametrize("kind", [SpiderRegressor, SpiderClassifier])
@pytest.mark.parametrize("preset", ["plain", "paper"])
@settings(max_examples=20)
@given(cuts=st.lists(st.integers(1, 90), max_size=6))
def test_going_on_equals_never_stopping(kind, preset, cuts):
    X, y = stream(binary=kind is SpiderClassifier)
    make = {**SMALL, **({"scaling": (0.0, 3.0)} if kind is SpiderRegressor else {})}
    build = kind.paper if preset == "paper" else kind
    whole = build(**make).fit(X, y)
    edges = [0, *sorted(cuts), 90]
    model = build(**make)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        for start, end in pairwise(edges):
            model.partial_fit(X[start:end], y[start:end])
            model.save(path, position={"row": end})
            model = spidertensor.load(path)
            assert model.position_ == {"row": end}
    assert type(model) is kind
    assert file_bytes(model) == file_bytes(whole)
    np.testing.assert_array_equal(model.predict(X), whole.predict(X))
    assert model.get_params() == whole.get_params()


@BOTH
def test_everything_comes_back(kind, tmp_path):
    X, y = stream(binary=kind is SpiderClassifier)
    model = kind(**SMALL, random_state=4).fit(pd.DataFrame(X, columns=["user", "item"]), y)
    model.save(tmp_path / "model", position=["anything", 1, None])
    for back in (kind.load(tmp_path / "model"), spidertensor.load(str(tmp_path / "model"))):
        assert type(back) is kind
        assert back.get_params() == model.get_params()
        assert back.position_ == ["anything", 1, None]
        assert back.feature_names_in_.tolist() == ["user", "item"]
        assert back.n_features_in_ == 2
        for name in ("n_nodes_", "n_entries_", "log_evidence_", "n_rejected_"):
            assert getattr(back, name) == getattr(model, name)
        for one, other in zip(back.factors_, model.factors_, strict=True):
            assert one.ids == other.ids
            np.testing.assert_array_equal(one.mean, other.mean)
        for one, other in zip(back.inclusion_, model.inclusion_, strict=True):
            np.testing.assert_array_equal(one, other)
    if kind is SpiderRegressor:
        assert back.noise_ == model.noise_


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

    model = Mine(**SMALL).fit(*stream())
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

path, every, batch, n = Path(sys.argv[1]), 3, 7, int(sys.argv[2])
if path.exists():
    model = spidertensor.load(path)
else:
    model = spidertensor.SpiderRegressor(rank=2, hidden=(4,), batch_size=16, scaling=(0.0, 1.0))
row = model.position_["row"] if model.position_ else 0
print("from", row, flush=True)
number = 0
while row < n:
    rows = np.arange(row, min(row + batch, n))  # a source that can be read from any position
    X = [(f"user {i * i % (5 + i // 20)}", int(i * 7 % (3 + i // 50))) for i in rows]
    row += len(rows)
    model.partial_fit(X, np.sin(rows * 0.7) + rows % 3)
    number += 1
    if number % every == 0 or row == n:
        model.save(path, position={"row": row})
        print(row, flush=True)
"""


def run_worker(path, n, **options):
    return subprocess.Popen([sys.executable, "-c", WORKER, str(path), str(n)], **options)


def test_killed_at_random_moments_and_resumed(tmp_path):
    """A worker prints after each save; some saves and some milliseconds later it is killed."""
    n, rng = 12_000, np.random.default_rng(3)
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    calm = run_worker(unbroken, n, stdout=subprocess.DEVNULL)
    starts = []
    for kill in range(8):
        with run_worker(broken, n, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
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
    with run_worker(broken, n, stdout=subprocess.DEVNULL) as last:
        assert last.wait() == 0
    assert calm.wait() == 0
    assert broken.read_bytes() == unbroken.read_bytes()
    assert spidertensor.load(broken).n_entries_ == n


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
    checkpoint.save(path, {"weights": np.zeros(3)}, {"estimator": "SpiderRegressor"})
    refused(path)
    checkpoint.save(path, {}, {})
    refused(path, "missing or unknown keys")
    refused(tmp_path, "not a regular file")


def put(*keys, value):
    """Sets config[keys...] = value."""

    def change(arrays, config):
        for key in keys[:-1]:
            config = config[key]
        config[keys[-1]] = value

    return change


def drop(*keys):
    def change(arrays, config):
        for key in keys[:-1]:
            config = config[key]
        del config[keys[-1]]

    return change


def array(name, edit):
    """Replaces an array by edit(array), or removes it if that is None."""

    def change(arrays, config):
        new = edit(arrays.pop(name))
        if new is not None:
            arrays[name] = new

    return change


def add(name, value=(1.0,)):
    return lambda arrays, config: arrays.update({name: np.array(value)})


def filled(value):
    def edit(a):
        a = a.copy()
        a.flat[-1] = value
        return a

    return edit


W, F, N = "state/posterior/weights/0", "state/posterior/factors/1", "state/posterior/noise"
INCONSISTENT = {
    # estimator and params
    "unknown estimator": put("estimator", value="Pickle"),
    "estimator of a wrong type": put("estimator", value=["SpiderRegressor"]),
    "estimator missing": drop("estimator"),
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
    "weights missing": array(f"{W}/mean", lambda a: None),
    "weights other shape": array(f"{W}/mean", lambda a: a[:, :-1]),
    "weight variances other shape": array(f"{W}/var", lambda a: a[:-1]),
    "weights other type": array(f"{W}/mean", lambda a: a.astype(np.float64)),
    "weights NaN": array(f"{W}/mean", filled(np.nan)),
    "variance negative": array(f"{W}/var", filled(-1.0)),
    "variance 0": array(f"{F}/var", filled(0.0)),
    "variance NaN": array(f"{F}/var", filled(np.nan)),
    "variance infinite": array(f"{F}/var", filled(np.inf)),
    "factors fewer rows": array(f"{F}/mean", lambda a: a[:-1]),
    "factor variances fewer rows": array(f"{F}/var", lambda a: a[:-1]),
    "factors without rows": array(f"{F}/mean", lambda a: a[:0]),
    "factors 1-D": array(f"{F}/mean", lambda a: a.ravel()),
    "site NaN": array("state/sites/0/precision", filled(np.nan)),
    "noise negative": array(f"{N}/rate", lambda a: -a),
    "noise shape 0": array(f"{N}/shape", lambda a: a * 0),
    "noise an array": array(f"{N}/rate", lambda a: np.array([1.0, 2.0])),
    "more nodes counted": array("state/counts/nodes", filled(10**6)),
    "fewer nodes counted": array("state/counts/nodes", filled(1)),
    "negative nodes": array("state/counts/nodes", filled(-1)),
    "three modes counted": array("state/counts/nodes", lambda a: np.append(a, 1)),
    "negative entries": array("state/counts/entries", lambda a: a * 0 - 1),
    "negative rejections": array("state/counts/rejected", lambda a: a * 0 - 1),
    "evidence NaN": array("state/counts/log_evidence", lambda a: a * np.nan),
    "seed other": array("state/seed", lambda a: a + 1),
    "an array too much": add("state/posterior/weights/2/mean"),
    "an array of another tree": add("extra/thing"),
    "state itself": add("state"),
    # ids
    "ids missing": array("nodes/1/utf8", lambda a: None),
    "offsets cut short": array("nodes/1/offsets", lambda a: a[:-1]),
    "ids too many": array("nodes/1/offsets", lambda a: np.append(a, a[-1])),
    "ids damaged": array("nodes/1/utf8", filled(255)),
    "ids in two ways": add("nodes/1/int", [1, 2]),
    "mode too much": add("nodes/2/int", [1]),
    "mode without number": add("nodes/x/int", [1]),
    "mode misspelled": add("nodes/01/int", [1]),
    "ids too deep": add("nodes/1/utf8/0", [1]),
    "nodes itself": add("nodes", [1]),
    "nodes slash": add("nodes/", [1]),
}  # fmt: skip


@pytest.fixture(scope="module")
def content():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        model_of(SpiderRegressor).save(path)
        return checkpoint.load(path)


@pytest.mark.parametrize("case", INCONSISTENT)
def test_whole_files_with_content_that_does_not_fit_together(case, content, tmp_path):
    arrays, config = dict(content.arrays), json.loads(json.dumps(content.config))
    path = tmp_path / "model"
    checkpoint.save(path, arrays, config)
    spidertensor.load(path)  # as it is, it is good
    INCONSISTENT[case](arrays, config)
    checkpoint.save(path, arrays, config)
    tracemalloc.start()
    refused(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6


def test_a_classifier_has_no_scale(tmp_path):
    path = tmp_path / "model"
    model_of(SpiderClassifier).save(path)
    file = checkpoint.load(path)
    for change in ({"scale": 2.0}, {"shift": 1.0}):
        checkpoint.save(path, file.arrays, file.config | change)
        refused(path, "holds a SpiderClassifier|scaling .* is not possible")


# --- files of earlier versions ---


@pytest.mark.parametrize("name", ["regressor", "classifier"])
def test_golden_files_load_for_ever(name):
    path = GOLDEN / f"version-1-{name}.golden"
    wanted = json.loads((GOLDEN / f"version-1-{name}.json").read_text(encoding="utf-8"))
    asked = ast.literal_eval(wanted["asked"])
    model = spidertensor.load(path)
    assert path.stat().st_size < 20_000
    assert model.position_ == {"row": wanted["n_entries"], "source": "make.py"}
    assert list(model.n_nodes_) == wanted["n_nodes"]
    assert model.n_entries_ == wanted["n_entries"]
    assert model.log_evidence_ == pytest.approx(wanted["log_evidence"], rel=1e-12)
    if name == "regressor":
        mean, std = model.predict(asked, return_std=True)
        np.testing.assert_allclose(mean, wanted["mean"], rtol=1e-5)
        np.testing.assert_allclose(std, wanted["std"], rtol=1e-5)
        assert model.noise_ == pytest.approx(wanted["noise"], rel=1e-12)
        assert model.feature_names_in_.tolist() == ["user", "item", "place"]
    else:
        np.testing.assert_allclose(model.predict_proba(asked)[:, 1], wanted["probability"], atol=1e-5)
    # and goes on learning: the same few entries, again and again, are soon known better
    X, y = asked[: len(wanted["value"])], np.array(wanted["value"])
    before, first = model.log_evidence_, model.learn(X, y).log_evidence.sum()
    assert model.log_evidence_ == pytest.approx(before + first)
    for _ in range(20):
        last = model.learn(X, y).log_evidence.sum()
    assert last > first
    assert model.n_entries_ == wanted["n_entries"] + 21 * len(y)
    assert model.n_nodes_ == tuple(wanted["n_nodes"])
    model.partial_fit([("new", *asked[0][1:])], y[:1])
    assert model.n_nodes_ == (wanted["n_nodes"][0] + 1, *wanted["n_nodes"][1:])
