"""How the golden files were made, once, when format 1 was new: `python tests/golden/make.py` from the root.

They are what users have on their disks. They are never made again: a later version of the package that
cannot read them, or predicts other numbers from them, is wrong. A new format gets new files beside them.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from spidertensor import SpiderClassifier, SpiderRegressor

FOLDER = Path(__file__).parent
RNG = np.random.default_rng(2021)


def regressor():
    """Three modes with int, str and tuple ids, named columns, a bias and a multilinear part."""
    n = 800
    users, items = RNG.integers(40, 47, n), RNG.integers(0, 5, n)
    frame = pd.DataFrame(
        {
            "user": users,
            "item": [f"item {i} é" for i in items],
            "place": [("hall", int(i) % 3, 0.5) for i in users + items],
        }
    )
    y = 20 + 3 * np.sin(users) + 2 * np.cos(items) + 0.3 * RNG.standard_normal(n)
    settings = {"rank": (2, 1, 2), "hidden": (3,), "bias": True, "multilinear": 1, "batch_size": 32}
    model = SpiderRegressor(**settings, activation="tanh", random_state=11).fit(frame, y)
    asked = list(frame[:12].itertuples(index=False, name=None))
    asked += [(-1, "nobody", ()), (41, "nobody", ("hall", 0, 0.5))]
    mean, std = model.predict(asked, return_std=True)
    facts = {"mean": mean, "std": std, "noise": model.noise_}
    return model, asked, y[:12], facts


def classifier():
    """Two modes with float, bool, bytes and huge int ids, the paper's preset."""
    n = 600
    kinds = [1.5, True, b"\x00\xff", -(2**70), "text"]
    X = [(kinds[i], int(j)) for i, j in zip(RNG.integers(0, 5, n), RNG.integers(0, 6, n), strict=True)]
    y = np.array([kinds.index(a) > b - 1 for a, b in X]).astype(int)
    model = SpiderClassifier.paper(rank=2, hidden=(3,), batch_size=16, random_state=5).fit(X, y)
    asked = [*X[:12], ("nobody", -1)]
    facts = {"probability": model.predict_proba(asked)[:, 1]}
    return model, asked, y[:12], facts


def main() -> None:
    for name, build in (("regressor", regressor), ("classifier", classifier)):
        path = FOLDER / f"version-1-{name}.golden"
        if path.exists():
            raise SystemExit(f"{path} is there, and stays")
        model, asked, value, facts = build()
        facts |= {
            "n_nodes": model.n_nodes_,
            "n_entries": model.n_entries_,
            "log_evidence": model.log_evidence_,
        }
        model.save(path, position={"row": model.n_entries_, "source": "make.py"})
        facts["value"] = value  # of the first that are asked
        plain = {key: np.asarray(fact).tolist() for key, fact in facts.items()}
        # ids as Python writes them: JSON knows neither tuples nor bytes
        plain["asked"] = repr(asked)
        text = json.dumps(plain, indent=1, ensure_ascii=False)
        path.with_suffix(".json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
