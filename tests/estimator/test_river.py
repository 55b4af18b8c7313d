"""Answers before the first entry, and the adapters for River."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from spidertensor import Context, SpiderClassifier, SpiderRegressor

SMALL: dict[str, Any] = {"rank": 2, "hidden": (6,), "committee": 2, "batch_size": 16}


@pytest.mark.parametrize("seed", [0, np.random.RandomState(3)])
def test_the_first_answer_is_what_the_first_entry_is_predicted_as(seed):
    """Without pairs, whose start is random, a new node is predicted as an unseen one."""
    model = SpiderRegressor(scaling=(3.0, 2.0), random_state=seed, multilinear=0, **SMALL)
    before = repr(model)
    first = model.predict_one({"user": "anna", "film": "Alien"})
    assert first == model.predict_one(("anna", "Alien"))
    with pytest.raises(NotFittedError):
        model.predict([("anna", "Alien")])
    assert repr(model) == before
    update = model.learn_one({"user": "anna", "film": "Alien"}, 5.0)
    assert (update.mean, update.std) == pytest.approx(first)


def test_attributes_set_before_are_in_the_first_answer():
    """An attribute adds its prior variance to the answer."""
    modes: dict[str, Any] = {"user": ["age"], "film": [], "when": Context("hour")}
    entry = {"user": "anna", "film": "Alien", "hour": "h3", "age": None}
    one, other = (SpiderRegressor(scaling=(3.0, 1.0), modes=modes, **SMALL) for _ in range(2))
    other.set_attributes("user", {"user": ["anna"], "age": ["old"]})
    assert one.predict_one(entry).std < other.predict_one(entry).std
    assert one.predict_one(entry | {"age": "old"}) == other.predict_one(entry)


def test_labels_are_not_known_before_the_first():
    model = SpiderClassifier(**SMALL)
    assert model.predict_one(("anna", "Alien")).label is None
    assert 0.4 < model.predict_one(("anna", "Alien")).probability < 0.6


def ratings(n: int = 300) -> list[tuple[dict[str, Any], float]]:
    """Entries of users and films, one a minute."""
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 8, (n, 2)).tolist()
    start = dt.datetime(2024, 1, 1)
    x = [{"user": u, "film": f, "at": start + dt.timedelta(minutes=i)} for i, (u, f) in enumerate(ids)]
    return [(each, 3.0 + np.sin(u) + np.cos(f)) for each, (u, f) in zip(x, ids, strict=True)]


def test_river_evaluates_a_regressor_also_with_a_delay():
    """An entry is predicted by those whose delay has passed: here by hand, in River with a queue."""
    from river import evaluate, metrics

    from spidertensor.river import Regressor

    modes: dict[str, Any] = {"user": [], "film": []}
    settings: dict[str, Any] = {"modes": modes, "scaling": (3.0, 1.0)} | SMALL
    adapter, entries, late = Regressor(SpiderRegressor(**settings)), ratings(), 10
    delay = dt.timedelta(minutes=late)
    found = evaluate.progressive_val_score(entries, adapter, metrics.MAE(), moment="at", delay=delay)

    model, errors = SpiderRegressor(**settings), []
    for i, (x, y) in enumerate(entries):
        if i >= late:
            model.learn_one(*entries[i - late])
        errors.append(abs(y - model.predict_one(x).mean))
    assert found.get() == pytest.approx(np.mean(errors))
    assert adapter.model.n_entries_ == len(entries)
    assert adapter.clone().model.predict_one(entries[0][0]) == SpiderRegressor(**settings).predict_one(
        entries[0][0]
    )


def test_river_evaluates_a_classifier_of_texts():
    from river import evaluate, metrics

    from spidertensor.river import Classifier

    entries = [({"user": x["user"], "film": x["film"]}, "yes" if y > 3 else "no") for x, y in ratings()]
    adapter = Classifier(SpiderClassifier(**SMALL), classes=("no", "yes"))
    assert adapter.predict_proba_one(entries[0][0]) == {}
    found = evaluate.progressive_val_score(entries, adapter, metrics.Accuracy(), delay=5)
    assert found.get() > 0.75
    chances = adapter.predict_proba_one(entries[0][0])
    assert sum(chances.values()) == pytest.approx(1)
    assert set(chances) == {"no", "yes"}
    with pytest.raises(ValueError, match="leave out negatives"):
        Classifier(SpiderClassifier(negatives=4))
