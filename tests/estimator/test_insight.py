"""`similar` and `explain`: what a model has learned, for people."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spidertensor import EntryError, Many, Number, SpiderClassifier, SpiderRegressor

SIZES = {"rank": 2, "hidden": (8,), "multilinear": 4, "committee": 3}


def tastes(n: int = 6000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Films 0, 1, 2, ... are liked by the users of their group, film % 3; even ones are better."""
    rng = np.random.default_rng(seed)
    user, film = rng.integers(30, size=n), rng.integers(12, size=n)
    value = 2.0 * (user % 3 == film % 3) + (film % 2) + 0.2 * rng.normal(size=n)
    return np.stack([user, film], axis=1), value


def test_alike_is_who_is_liked_by_the_same_users_not_who_is_as_good():
    X, y = tastes()
    model = SpiderRegressor(**SIZES).partial_fit(X, y)
    for film in (0, 7):
        found = model.similar(1, film, 11)
        assert {each.id % 3 for each in found[:3]} == {film % 3}
        assert {each.id for each in found} == set(range(12)) - {film}
        scores = [each.score for each in found]
        assert scores == sorted(scores, reverse=True)
        assert scores[2] > 0.9 > 0.2 > scores[3]
    assert [each.id for each in model.similar(1, 0, 2)] == [each.id for each in model.similar(1, 0)][:2]


def test_a_twin_is_as_like_as_can_be_and_an_opposite_as_unlike():
    X, y = tastes()
    model = SpiderRegressor(**{**SIZES, "committee": [{"rank": 0}]}).partial_fit(X, y)
    (member,) = model._fitted().state.members
    mean = member.posterior.factors[1].mean
    mean[1], mean[2, 1:], mean[2, 0] = mean[0], -mean[0, 1:], 5.0
    mean[3:, 1:] = 0  # so that others do not move the mean over nodes
    ids = model.factors()[1].ids
    first, *_, last = model.similar(1, ids[0], 11)
    assert [first.id, last.id] == ids[1:3]
    assert first.score == pytest.approx(1, abs=1e-6)
    assert first.distance == pytest.approx(0, abs=1e-6)
    assert last.score < -0.7
    assert last.distance > 4


def test_a_node_that_was_only_described_is_compared_by_its_attributes():
    X, y = tastes()
    model = SpiderRegressor(**SIZES, modes={"user": [], "film": [Many("genre")]})
    genres = [[f"genre {film % 3}"] for film in X[:, 1]]
    model.partial_fit(pa.table({"user": X[:, 0], "film": X[:, 1], "genre": genres}), y)
    model.set_attributes("film", {"film": [100], "genre": [["genre 1"]]})
    found = model.similar("film", 100, 4)
    assert {each.id % 3 for each in found} == {1}


def std_of_pairs(model, member, entry):
    """Standard deviation of the pairs of one member: the root of the sum of g^2 v."""
    state, index = model._fitted().state.members[member], model._index([entry])[0]
    parts = [state.posterior.factors[mode] for mode in range(2)]
    total = 0.0
    for mode in range(2):
        other = parts[1 - mode].mean[index[1 - mode], 1:5].astype(float)
        total += float(other**2 @ parts[mode].var[index[mode], 1:5])
    return total**0.5


def test_parts_add_up_and_are_what_the_state_says():
    X, y = tastes()
    model = SpiderRegressor(**SIZES, scaling=(1.0, 2.0)).partial_fit(X, y)
    entry = (4, 7)
    found = model.explain(entry)
    mean, var, _ = model.predict_parts([entry])
    assert found.mean == mean[0]
    assert found.latent == pytest.approx(mean[0])
    assert found.std == pytest.approx(var[0] ** 0.5)
    assert sum(part.effect for part in found.parts) == pytest.approx(mean[0], rel=1e-6)
    assert [part.name for part in found.parts] == ["level", "0 4", "1 7", "0 x 1", "network"]
    weights = [member.weight for member in model.members_]
    of_film = [model.factors(m)[1].mean[model.factors(m)[1].ids.index(7), 0] for m in range(3)]
    assert found.parts[2].effect == pytest.approx(2 * np.dot(weights, of_film), rel=1e-5)
    alone = SpiderRegressor(**{**SIZES, "committee": 1}, scaling=(1.0, 2.0)).partial_fit(X, y)
    parts = {part.kind: part for part in alone.explain(entry).parts}
    assert parts["pair"].std == pytest.approx(2 * std_of_pairs(alone, 0, entry), rel=1e-5)
    total = sum(part.std**2 for part in alone.explain(entry).parts)
    assert total == pytest.approx(alone.predict_parts([entry]).var[0], rel=1e-4)


@pytest.mark.parametrize("kind", ["labels", "counts", "several modes"])
def test_parts_add_up_to_f_for_other_values_too(kind):
    X, y = tastes(2000)
    X = np.column_stack([X, X[:, 0] % 4, X[:, 1] % 5])
    if kind == "labels":
        model, entry = SpiderClassifier(**SIZES).partial_fit(X, (y > 1).astype(int)), (4, 7, 0, 2)
    elif kind == "counts":
        model = SpiderRegressor(**SIZES, likelihood="count").partial_fit(X, np.round(np.maximum(y, 0)))
        entry = (4, 7, 0, 2)
    else:
        model, entry = SpiderRegressor(**SIZES).partial_fit(X, y), (4, "never seen", 0, 2)
    found = model.explain(entry)
    assert sum(part.effect for part in found.parts) == pytest.approx(found.latent, rel=1e-5, abs=1e-5)
    assert [part.kind for part in found.parts].count("pair") == 6
    expected = model.predict_proba([entry])[0, 1] if kind == "labels" else model.predict([entry])[0]
    assert found.mean == pytest.approx(expected)
    if kind == "several modes":
        assert found.latent == pytest.approx(expected)


def test_attributes_have_biases_of_their_own():
    X, y = tastes(2000)
    model = SpiderRegressor(**SIZES, modes={"user": [Number("age")], "film": [Many("genre")]})
    table = {"user": X[:, 0], "film": X[:, 1], "age": X[:, 0] * 1.5}
    genres = [["long", f"genre {film % 3}"] for film in X[:, 1]]
    model.partial_fit(pa.table(table | {"genre": genres}), y)
    found = model.explain({"user": 4, "film": 7, "age": 6.0})
    names = ["level", "user 4", "film 7", "age", "genre", "user x film", "network"]
    assert [part.name for part in found.parts] == names
    assert sum(part.effect for part in found.parts) == pytest.approx(found.latent, rel=1e-5)


def test_never_seen_nodes_add_nothing_and_are_as_uncertain_as_the_prior():
    X, y = tastes(500)
    model = SpiderRegressor(**{**SIZES, "committee": [{"rank": 0, "bias_var": 0.09}]}, scaling=(0.0, 2.0))
    bias = model.partial_fit(X, y).explain((4, "new")).parts[2]
    assert (bias.name, bias.effect) == ("1 new (never learned)", 0)
    assert bias.std == pytest.approx(2 * 0.3)


def test_questions_about_unknown_ids_are_one_clear_error():
    X, y = tastes(500)
    model = SpiderRegressor(**SIZES).partial_fit(X, y)
    with pytest.raises(EntryError, match="'Alien' was never learned"):
        model.similar(1, "Alien")
    with pytest.raises(ValueError, match="no mode 'films'"):
        model.similar("films", 1)
    with pytest.raises(EntryError):
        model.explain((1, 2, 3))


def test_the_table_of_nodes_is_the_posterior_of_the_committee():
    X, y = tastes(2000)
    model = SpiderRegressor(**SIZES, scaling=(2.0, 3.0)).partial_fit(X, y)
    table = model.nodes(1)
    assert list(table) == ["id", "entries", "last", "bias", "std", "known", "noise"]
    assert list(table["id"]) == model.factors()[1].ids
    weights = [each.weight for each in model.members_]
    units = [3.0 * float(state.stream.scale) for state in model._fitted().state.members]
    biases = [unit * model.factors(m)[1].mean[:, 0] for m, unit in enumerate(units)]
    squares = [unit**2 * model.factors(m)[1].var[:, 0] + biases[m] ** 2 for m, unit in enumerate(units)]
    mean = np.average(biases, axis=0, weights=weights)
    assert table["bias"] == pytest.approx(mean, rel=1e-5)
    assert table["std"] ** 2 == pytest.approx(
        np.average(squares, axis=0, weights=weights) - mean**2, rel=1e-3
    )
    better = np.array([each % 2 for each in table["id"]], bool)
    assert table["bias"][better].min() > table["bias"][~better].max()


def test_a_node_that_was_only_described_is_not_known_and_noisy_ones_stand_out():
    X, y = tastes(8000)
    y = y + np.where(X[:, 1] == 4, 1.5, 0) * np.random.default_rng(1).normal(size=len(y))
    model = SpiderRegressor(**{**SIZES, "committee": 1}, modes={"user": [], "film": [Many("genre")]})
    genres = [[f"genre {film % 3}"] for film in X[:, 1]]
    model.partial_fit(pa.table({"user": X[:, 0], "film": X[:, 1], "genre": genres}), y)
    model.set_attributes("film", {"film": [100], "genre": [["genre 1"]]})
    table = model.nodes("film")
    known = dict(zip(table["id"], table["known"], strict=True))
    assert known.pop(100) == 0
    assert table["entries"][table["id"] == 100] == 0
    assert np.isnan(table["last"][table["id"] == 100])
    assert min(known.values()) > 0.5
    noise = dict(zip(table["id"], table["noise"], strict=True))
    assert max(noise, key=noise.__getitem__) == 4
    assert noise[4] > 2 * noise[5]


def test_the_noise_of_a_node_is_that_of_the_members_that_know_it():
    X, y = tastes(1000)
    both = [{}, {"node_noise": False}]
    model = SpiderRegressor(**{**SIZES, "committee": both}).partial_fit(X, y)
    first = model._fitted().state.members[0].posterior.log_noise[1].mean[:12]
    assert model.nodes(1)["noise"] == pytest.approx(np.exp(first / 2))


def test_no_noise_of_nodes_for_labels():
    X, y = tastes(500)
    model = SpiderClassifier(**SIZES).partial_fit(X, y > 1)
    assert list(model.nodes(0)) == ["id", "entries", "last", "bias", "std", "known"]


def test_a_notebook_shows_what_was_learned_and_names_as_text():
    assert SpiderRegressor(rank=3)._repr_html_() == "<code>SpiderRegressor(rank=3)</code>"
    X, y = tastes(1500)
    film = pa.table({"<user>": X[:, 0], "film": X[:, 1], "g": [f"g{film % 3}" for film in X[:, 1]]})
    modes = {"<user>": [], "film": ["g"]}
    model = SpiderRegressor(**SIZES, modes=modes, passes=2).fit(film, y)
    shown = model._repr_html_()
    assert "&lt;user&gt;" in shown
    assert "<user>" not in shown
    for text in ("1,500", "film: g (value)", "2 passes", "random entries held back"):
        assert text in shown
