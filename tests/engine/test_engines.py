"""The choice of an engine where a user makes it: estimator, method names, command."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

from spidertensor import (
    CheckpointError,
    CustomNetwork,
    Inference,
    SpiderClassifier,
    SpiderRegressor,
    checkpoint,
    load,
)
from spidertensor.estimator import look
from spidertensor.evaluation.methods import spider as build
from spidertensor.method import Batch
from spidertensor.spider.engine import ENGINES
from spidertensor.spider.likelihoods import GAUSSIAN
from streams import entries

jnp = pytest.importorskip("jax.numpy", reason="the vectorized engine needs the extra jax")

# JAX compiles each kind of network, of which the default committee has three.
SMALL = {"rank": 2, "hidden": (4,), "multilinear": 2, "batch_size": 32, "committee": 2}


@pytest.mark.slow
def test_curvature_goes_entry_by_entry_and_equals_the_sequential_engine():
    X, y = entries(400)
    both = [
        SpiderRegressor(engine=e, inference=Inference(curvature=True), **SMALL).fit(X, y)
        for e in ("sequential", "vectorized")
    ]
    np.testing.assert_allclose(both[0].predict(X), both[1].predict(X), rtol=2e-3, atol=2e-3)
    assert both[0].log_evidence_ == pytest.approx(both[1].log_evidence_, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SpiderRegressor, SpiderClassifier])
def test_joint_learns_saves_and_goes_on(kind, tmp_path):
    X, y = entries(400)
    y = (y > 0).astype(int) if kind is SpiderClassifier else y
    whole = kind(engine="vectorized", **SMALL).partial_fit(X[:320], y[:320])
    whole.save(tmp_path / "half.spider")
    resumed = load(tmp_path / "half.spider")
    assert resumed.engine == "vectorized"
    whole.partial_fit(X[320:], y[320:]).save(tmp_path / "whole.spider")
    resumed.partial_fit(X[320:], y[320:]).save(tmp_path / "resumed.spider")
    assert (tmp_path / "whole.spider").read_bytes() == (tmp_path / "resumed.spider").read_bytes()
    assert whole.score(X, y) > 0.5


def test_an_unknown_engine_is_refused():
    with pytest.raises(ValueError, match="engine must be"):
        SpiderRegressor(engine="steam").fit([(1, 2)], [1.0])


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"paper": True}], ids=["default", "paper"])
def test_what_evaluate_builds_runs_on_both_engines(settings):
    """And learns: nearly the same, exactly so but for rounding where both go entry by entry."""
    index, value = entries(640)
    means = []
    for engine in ENGINES:
        method = build(2, 2, GAUSSIAN, 32, engine=engine, **settings)
        assert method.unit == ("batch" if engine == "vectorized" and not settings else "entry")
        state, _ = method.update(method.init(0), Batch(index, value))
        means.append(method.predict(state, index).mean)
        assert np.mean((means[-1] - value) ** 2) < np.var(value)
    close = 2e-3 if settings else 0.5
    np.testing.assert_allclose(means[0], means[1], rtol=0, atol=close)


@pytest.mark.usefixtures("warm_kernels")
def test_the_command_takes_an_engine(folder, spider, fails):
    rng = np.random.default_rng(0)
    factors, index = rng.normal(size=(2, 8)), rng.integers(8, size=(640, 2))
    products = factors[0, index[:, 0]] * factors[1, index[:, 1]]  # of which biases cannot know anything
    rows = [f"{user},{movie},{value}" for (user, movie), value in zip(index, products, strict=True)]
    (folder / "products.csv").write_text("\n".join(["user,movie,rating", *rows]))
    how = ("evaluate", "products.csv", "--modes", "user,movie", "--value", "rating", "--engine", "vectorized")

    code, out, err = spider(*how, "--rank", "2", "--batch-size", "32", "--json")
    assert code == 0, err
    row = json.loads(out)
    assert row["engine"] == "vectorized"
    assert row["score"] < row["floors"]["biases"]["score"]
    assert "has no engines" in fails(*how, "--method", "biases")


# --- a network of one's own -----------------------------------------------------------------------


def tiny(weights, x):
    first, second = weights
    return second @ jnp.tanh(first @ jnp.concatenate(x) / 2) / 2


TINY = CustomNetwork(tiny, [(5, np.int64(4)), (5,)])
OWN = {"rank": 2, "multilinear": 2, "batch_size": 32, "committee": 2, "engine": "vectorized", "network": TINY}


def saved(model, path) -> bytes:
    model.save(path)
    return path.read_bytes()


def test_what_describes_a_network():
    assert TINY.shapes == ((5, 4), (5,))
    assert repr(TINY) == "CustomNetwork(shapes=((5, 4), (5,)), name='tiny')"
    assert CustomNetwork(partial(tiny), ((5, 4), (5,)), "mine").name == "mine"
    for shapes in ((), ((),), ((0, 2),), (5, 4), ((5.0,),), None):
        with pytest.raises(ValueError, match="shapes must be"):
            CustomNetwork(tiny, shapes)
    with pytest.raises(ValueError, match="function"):
        CustomNetwork("tiny", ((5,),))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="name"):
        CustomNetwork(tiny, ((5,),), 3)  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SpiderRegressor, SpiderClassifier])
def test_a_network_of_ones_own_learns_saves_and_goes_on(kind, tmp_path):
    X, y = entries(640)
    y = (y > 0).astype(int) if kind is SpiderClassifier else y
    whole = kind(**OWN).partial_fit(X[:320], y[:320])
    assert [layer.shape for layer in whole.inclusion_] == [(5, 4), (5,)]
    half = saved(whole, tmp_path / "half.spider")
    resumed = [load(tmp_path / "half.spider", network=TINY), copy.deepcopy(whole)]
    resumed += [kind.load(tmp_path / "half.spider", TINY), pickle.loads(pickle.dumps(whole))]
    assert resumed[0].network is TINY
    assert saved(resumed[0], tmp_path / "again.spider") == half
    wanted = saved(whole.partial_fit(X[320:], y[320:]), tmp_path / "whole.spider")
    for model in resumed:
        assert saved(model.partial_fit(X[320:], y[320:]), tmp_path / "resumed.spider") == wanted
    assert whole.score(X, y) > 0.8
    assert checkpoint.load(tmp_path / "whole.spider").sections["model"]["params"]["network"] == {
        "name": "tiny", "shapes": [[5, 4], [5]],
    }  # fmt: skip
    best = whole.recommend({0: 3}, over=1, n=2, explore="thompson", seed=0)
    assert best == resumed[0].recommend({0: 3}, over=1, n=2, explore="thompson", seed=0)


def test_etiquette_of_scikit_learn_with_a_network():
    model = SpiderRegressor(**OWN)
    assert model.get_params()["network"] is TINY
    assert clone(model).network == TINY
    assert "network=CustomNetwork(shapes=((5, 4), (5,)), name='tiny')" in " ".join(repr(model).split())
    assert model.set_params(network=None).network is None


@pytest.mark.slow
def test_curvature_with_a_network_of_ones_own():
    """Entry by entry; the built-in network written as a function is the built-in network."""

    def mlp(weights, x):
        h = jnp.tanh(weights[0] @ jnp.append(jnp.concatenate(x), 1) / jnp.sqrt(5))
        return (weights[1] @ jnp.append(h, 1))[0] / jnp.sqrt(5)

    X, y = entries(100)
    alone = {"committee": 1}
    own = SpiderRegressor.paper(**OWN | alone | {"network": CustomNetwork(mlp, ((4, 5), (1, 5)))}).fit(X, y)
    built_in = SpiderRegressor.paper(**SMALL | alone, activation="tanh").fit(X, y)
    np.testing.assert_allclose(own.predict(X), built_in.predict(X), rtol=2e-3, atol=2e-3)


def norm(weights, x):
    return weights[0][0] * jnp.sqrt(jnp.sum(jnp.concatenate(x) ** 2))


def whole(weights, x):
    return jnp.argmax(weights[0])


def vector(weights, x):
    return weights[0] * jnp.concatenate(x)


def test_combinations_that_cannot_be():
    for changes, words in (
        ({"engine": "sequential"}, "a custom network needs the vectorized engine"),
        ({"network": tiny}, "network must be a CustomNetwork, or None"),
        ({"hidden": (8,)}, "hidden describes the built-in network"),
        ({"activation": "tanh"}, "activation describes the built-in network"),
        ({"rank": 3}, "'tiny' fails on weights of shapes"),
        ({"network": CustomNetwork(norm, ((1,),))}, "gradient of 'norm' is not finite"),
        ({"network": CustomNetwork(whole, ((4,),))}, "'whole' fails on weights of shapes"),
        ({"network": CustomNetwork(vector, ((4,),))}, r"must return one number, 'vector' gives \(4,\) for"),
        ({"batch_size": 10**9}, "at most 16384 entries"),
    ):
        model = SpiderRegressor(**OWN | changes)
        with pytest.raises(ValueError, match=words):
            model.fit([(1, 2), (2, 3)], [1.0, 2.0])
        assert not hasattr(model, "n_features_in_")


@pytest.fixture(scope="module")
def own_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "own.spider"
    SpiderRegressor(**OWN).partial_fit(*entries(64)).save(path)
    return path


def test_a_file_holds_no_code(own_file, tmp_path):
    """Who loads it gives the network again, and none where there was none."""
    words = r"own.spider: .*'tiny', with weights of shapes \(\(5, 4\), \(5,\)\), .* holds no code: pass it as"
    for act in (load, SpiderRegressor.load):
        with pytest.raises(CheckpointError, match=words):
            act(own_file)
        with pytest.raises(CheckpointError, match=r"'tiny', with .*, not CustomNetwork\(shapes=\(\(4, 5\)"):
            act(own_file, network=CustomNetwork(tiny, ((4, 5), (5,))))
        with pytest.raises(TypeError, match="CustomNetwork"):
            act(own_file, network=tiny)
    assert b"def tiny" not in own_file.read_bytes()
    SpiderRegressor(**SMALL).partial_fit(*entries(64)).save(tmp_path / "built-in.spider")
    with pytest.raises(CheckpointError, match="has a built-in network"):
        load(tmp_path / "built-in.spider", network=TINY)


HOSTILE = {
    "a text": "tiny",
    "a list": [["tiny", [[5, 4], [5]]]],
    "nothing": {},
    "null when there are weights": None,
    "no name": {"shapes": [[5, 4], [5]]},
    "name empty": {"name": "", "shapes": [[5, 4], [5]]},
    "name a number": {"name": 1, "shapes": [[5, 4], [5]]},
    "code too": {"name": "tiny", "shapes": [[5, 4], [5]], "code": "import os"},
    "shapes a text": {"name": "tiny", "shapes": "((5, 4), (5,))"},
    "shapes fewer": {"name": "tiny", "shapes": [[5, 4]]},
    "shapes more": {"name": "tiny", "shapes": [[5, 4], [5], [1]]},
    "shapes other": {"name": "tiny", "shapes": [[4, 5], [5]]},
    "shapes flat": {"name": "tiny", "shapes": [20, 5]},
    "shapes none": {"name": "tiny", "shapes": []},
    "a shape without sizes": {"name": "tiny", "shapes": [[5, 4], []]},
    "a size negative": {"name": "tiny", "shapes": [[5, 4], [-5]]},
    "a size 0": {"name": "tiny", "shapes": [[5, 4], [0]]},
    "a size a truth value": {"name": "tiny", "shapes": [[5, 4], [True]]},
    "a size not whole": {"name": "tiny", "shapes": [[5, 4], [5.0]]},
    "sizes huge": {"name": "tiny", "shapes": [[10**18, 10**18], [5]]},
    "many and long": {"name": "n" * 10**5, "shapes": [[1] * 10] * 10**4},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_files_with_another_network(case, own_file, tmp_path):
    file, path = checkpoint.load(own_file), tmp_path / "model"
    file.sections["model"]["params"]["network"] = HOSTILE[case]
    checkpoint.save(path, file.arrays, file.sections)
    for act in (look, load, partial(load, network=TINY)):
        with pytest.raises(CheckpointError) as caught:
            act(path)
        assert str(path) in str(caught.value)
        assert len(str(caught.value)) < 2000


def test_files_of_a_network_with_another_engine_or_batch(own_file, tmp_path):
    for name, value in (("engine", "sequential"), ("batch_size", 10**9)):
        file, path = checkpoint.load(own_file), tmp_path / "model"
        file.sections["model"]["params"][name] = value
        checkpoint.save(path, file.arrays, file.sections)
        with pytest.raises(CheckpointError, match=str(path)):
            load(path, network=TINY)


@pytest.mark.slow
def test_without_jax(own_file, tmp_path):
    """A network can be described and its model looked at; to run it, one line says what is missing."""
    Path(tmp_path / "own.py").write_text(
        "import spidertensor\nnet = spidertensor.CustomNetwork(lambda weights, x: 0.0, ((5, 4), (5,)))\n"
    )
    Path(tmp_path / "needs.py").write_text("import jax\n")

    def spider(*words: str) -> subprocess.CompletedProcess[str]:
        code = "import sys; sys.modules['jax'] = None; from spidertensor import cli; cli.main(sys.argv[1:])"
        command = [sys.executable, "-W", "error", "-c", code, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    facts = json.loads(spider("info", str(own_file), "--json").stdout)
    assert facts["settings"]["network"] == {"name": "tiny", "shapes": [[5, 4], [5]]}
    assert facts["entries"] == 64
    for module in ("own", "needs"):
        done = spider("info", str(own_file), "--network", f"{module}:net")
        assert done.returncode == 2
        assert "needs jax: pip install 'spidertensor[jax]'" in done.stderr
        assert done.stderr.count("\n") == 1
