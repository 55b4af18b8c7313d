"""How the golden files were made, once, when a format was new: `python tests/golden/make.py` from the root.

They are what users have on their disks. They are never made again: a later version of the package that
cannot read them, or predicts other numbers from them, is wrong. A new format gets new files beside them.
This is how those of formats 2 and 3 were made. Those of format 1 were made in the same way, by the last
version of the package that wrote it, from models without `clip`, `node_noise` and `memory`. Before version
0.2 was released the step of the noise per node changed: then `then`, what the model learns from there on,
was written again, and nothing else.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from spidertensor import (
    Calendar,
    Context,
    Cross,
    Many,
    Number,
    Recent,
    SpiderClassifier,
    SpiderRegressor,
    Value,
)

FOLDER = Path(__file__).parent
RNG = np.random.default_rng(2021)
LEARNED_AGAIN = 40


def regressor():
    """Three modes with int, str and tuple ids, named columns; clipping, noise per node, and a jump of the
    values so near the end that the window in which it is decided what to do is not full."""
    n = 700
    users, items = RNG.integers(40, 47, n), RNG.integers(0, 5, n)
    frame = pd.DataFrame(
        {
            "user": users,
            "item": [f"item {i} é" for i in items],
            "place": [("hall", int(i) % 3, 0.5) for i in users + items],
        }
    )
    y = 20 + 3 * np.sin(users) + 2 * np.cos(items) + 0.1 * (users - 39) * RNG.standard_normal(n)
    y[100] = 1e6
    y[400:] += 1000
    settings = {"rank": (2, 1, 2), "hidden": (3,), "bias": True, "multilinear": 2, "batch_size": 32}
    model = SpiderRegressor(**settings, activation="tanh", memory=500, random_state=11).fit(frame, y)
    asked = list(frame[:12].itertuples(index=False, name=None))
    asked += [(-1, "nobody", ()), (41, "nobody", ("hall", 0, 0.5))]
    return model, asked, 1000 + y[:12]


def classifier():
    """Two modes with float, bool, bytes and huge int ids, the paper's preset."""
    n = 600
    kinds = [1.5, True, b"\x00\xff", -(2**70), "text"]
    X = [(kinds[i], int(j)) for i, j in zip(RNG.integers(0, 5, n), RNG.integers(0, 6, n), strict=True)]
    y = np.array([kinds.index(a) > b - 1 for a, b in X]).astype(int)
    model = SpiderClassifier.paper(rank=2, hidden=(3,), batch_size=16, random_state=5).fit(X, y)
    return model, [*X[:12], ("nobody", -1)], y[:12]


def attributes():
    """Every kind of column, in two members, learned in passes; of a stream since then: values that made room
    for others, a described node that no entry has, an id that was forgotten."""
    rng, n = np.random.default_rng(2026), 1200
    user, item = rng.integers(0, 8, n), rng.integers(0, 6, n)
    time = np.datetime64("2025-11-03T06:30", "s") + rng.integers(0, 50 * 86_400, n)
    entries = {
        "user": user.tolist(),
        "city": [None if u == 3 else f"city {u % 5} é" for u in user],
        "item": [f"item {i}" for i in item],
        "price": [None if p > 60 else p for p in rng.lognormal(3, 0.6, n).round(2).tolist()],
        "tags": ["|".join(["new", "red", "old"][: 1 + i % 3]) for i in item],
        "floor": [bool(i % 2) for i in item],
        "time": time.astype(str).tolist(),
    }
    y = np.sin(user) + np.cos(item) + 0.3 * (time.astype(int) // 3600 % 24 > 12) + 0.1 * rng.normal(size=n)
    modes = {
        "user": [Value("city", most=6), Recent("item", 3)],
        "item": [Number("price"), Many("tags", sep="|"), "floor"],
        "when": Context(Calendar("time"), Cross("user", "item", most=20)),
    }
    small = {"rank": 2, "hidden": (3,), "multilinear": 2, "bias": True, "batch_size": 32}
    model = SpiderRegressor(modes=modes, committee=2, passes=2, random_state=11, **small)
    model.set_attributes("item", {"item": ["item 9"], "tags": ["red|blue"], "price": [12.5]})
    rows = [{name: column[at] for name, column in entries.items()} for at in range(n)]
    model.fit(rows[:1100], y[:1100]).partial_fit(rows[1100:1180], y[1100:1180])
    model.partial_fit([rows[0] | {"city": f"town {each}"} for each in range(4)], y[:4])
    model.forget("user", [7])
    asked = rows[1180:1192]
    asked += [
        {"user": 1, "item": "item 9"},
        {"user": "new", "city": "town 3", "item": 5, "time": "2026-02-01"},
    ]
    return model, asked, y[1180:1192]


def predictions(model, asked):
    if isinstance(model, SpiderClassifier):
        return {"probability": model.predict_proba(asked)[:, 1]}
    mean, std = model.predict(asked, return_std=True)
    return {"mean": mean, "std": std, "noise": model.noise_}


def facts_of(model, asked):
    counts = {"n_nodes": model.n_nodes_, "n_entries": model.n_entries_, "log_evidence": model.log_evidence_}
    facts = predictions(model, asked) | counts
    return {key: np.asarray(fact).tolist() for key, fact in facts.items()}


def main() -> None:
    files = {
        "version-2-regressor": regressor,
        "version-2-classifier": classifier,
        "version-3-attributes": attributes,
    }
    for name, build in files.items():
        path = FOLDER / f"{name}.golden"
        if path.exists():
            print(f"{path} is there, and stays")
            continue
        model, asked, value = build()
        model.save(path, position={"row": model.n_entries_, "source": "make.py"})
        facts = facts_of(model, asked)
        facts["value"] = value.tolist()  # of the first that are asked
        for _ in range(LEARNED_AGAIN):
            model.partial_fit(asked[: len(value)], value)
        facts["then"] = facts_of(model, asked)  # after these were learned so often
        # ids as Python writes them: JSON knows neither tuples nor bytes
        facts["asked"] = repr(asked)
        text = json.dumps(facts, indent=1, ensure_ascii=False)
        path.with_suffix(".json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
