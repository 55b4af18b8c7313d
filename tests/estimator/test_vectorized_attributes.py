"""Attributes in the other engine, and in networks of one's own."""

from __future__ import annotations

import numpy as np
import pytest

import spidertensor
from spidertensor import CustomNetwork, SpiderRegressor
from spidertensor.estimator.columns import Calendar, Context, Cross, Many, Number, Recent, Value

jnp = pytest.importorskip("jax.numpy", reason="needs the extra: pip install spidertensor[jax]")

SMALL = {"rank": 2, "multilinear": 2, "committee": 1, "random_state": 0, "scaling": (0.0, 1.0)}
MODES = {
    "user": [Value("city"), Recent("movie", 3)],
    "movie": [Many("genres", sep="|"), Number("year")],
    "when": Context(Value("hour"), Calendar("day"), Cross("user", "hour")),
}


def table(n: int, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Wars and comedies, mornings and evenings; what is left is noise."""
    rng = np.random.default_rng(seed)
    user, movie, hour = rng.integers((12, 9, 4), size=(n, 3)).T
    columns = {
        "user": user,
        "movie": movie,
        "city": np.array(["Bonn", "Ulm", "Trier"])[user % 3],
        "genres": np.array(["drama", "drama|war", "comedy"])[movie % 3],
        "year": 1990.0 + rng.integers(30, size=n),
        "hour": np.array(["morning", "noon", "evening", "night"])[hour],
        "day": np.datetime64("2024-01-01") + rng.integers(90, size=n),
    }
    y = 1.5 * (movie % 3 == 1) - 1.0 * (hour == 0) + 0.5 * (user % 3 == 2) + 0.2 * rng.normal(size=n)
    return columns, y


def test_entry_by_entry_both_engines_learn_the_same():
    columns, y = table(60)
    how = SMALL | {"modes": MODES, "hidden": (3,), "batch_size": 1}
    one, other = (SpiderRegressor(**how, engine=engine) for engine in ("sequential", "vectorized"))
    said = [model.learn(columns, y) for model in (one, other)]
    for a, b in zip(said[0][:4], said[1][:4], strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3)
    asked = table(20, seed=1)[0] | {"movie": np.full(20, "new")}
    np.testing.assert_allclose(one.predict(asked), other.predict(asked), rtol=0, atol=2e-3)
    for name, of_one in one.attribute_factors().items():
        of_other = other.attribute_factors()[name]
        assert of_one.ids == of_other.ids
        np.testing.assert_allclose(of_one.mean, of_other.mean, rtol=0, atol=5e-3)


def product(weights, x):
    """A network of one's own: x holds the part of each mode, of its id and its attributes together."""
    first, second = weights
    return second @ jnp.tanh(first @ jnp.concatenate(x))


@pytest.mark.slow
def test_a_network_of_ones_own_learns_attributes_and_recommends(tmp_path):
    network = CustomNetwork(product, [(4, 6), (4,)])
    columns, y = table(800)
    settings = SMALL | {"batch_size": 32, "engine": "vectorized"}
    model = SpiderRegressor(**settings, network=network, modes=MODES).partial_fit(columns, y)
    asked, truth = table(200, seed=1)
    rest = np.sqrt(np.mean((model.predict(asked) - truth) ** 2))
    assert rest < 0.5 < np.std(truth)
    model.set_attributes("movie", {"movie": ["new war", "new comedy"], "genres": ["war|drama", "comedy"]})
    found = model.recommend({"user": 1, "hour": "noon", "day": "2024-02-01"}, over="movie", n=11)
    assert {each.id for each in found} == {*range(9), "new war", "new comedy"}
    n = len(found)
    again = {"user": [1] * n, "movie": [each.id for each in found], "hour": ["noon"] * n}
    said = model.predict(again | {"day": ["2024-02-01"] * n})
    np.testing.assert_allclose([each.mean for each in found], said, rtol=1e-5)
    assert (np.diff(said) <= 1e-6).all()
    places = [each.id for each in found]
    assert places.index("new war") < places.index("new comedy")
    model.save(tmp_path / "m.spider")
    loaded = spidertensor.load(tmp_path / "m.spider", network=network)
    np.testing.assert_array_equal(loaded.predict(asked), model.predict(asked))
    for each in (model, loaded):
        each.partial_fit(*table(32, seed=2))
    np.testing.assert_array_equal(loaded.predict(asked), model.predict(asked))
