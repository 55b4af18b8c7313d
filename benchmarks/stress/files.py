"""What files can do to a reader: model files with valid checksums whose content was changed at random.

    python benchmarks/stress/files.py [how many files, by default 10000] [first seed] > rows.jsonl

Small models, a regressor and a classifier, of one member and of four, are saved; each file is one of them
after one to three changes: of values in the header, of bytes, numbers, shapes, types and names of arrays, of
the list of arrays. It must be refused with a CheckpointError, or be a model whose predictions, intervals and
recommendations are finite numbers with positive variances, before and after it has learned more, in memory of
a small multiple of the file. One JSON line per file that does neither; at the end one with counts.
"""

from __future__ import annotations

import copy
import hashlib
import json
import struct
import sys
import tempfile
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

import spidertensor
from spidertensor import CheckpointError, EntryError, SpiderClassifier, SpiderRegressor, checkpoint

Rng = np.random.Generator
LARGEST_FACTOR, SPARE = 40, 2e6  # memory of a load: so many times the file, and so many bytes
NUMBERS = (
    0.0, -0.0, 1.0, -1.0, 1e-45, 1e-30, -1e-30, 1e-9, 0.5, 5.9, 100.0, 1e6, -1e6, 1e12, 1e17, -1e17, 1e19,
    1e30, 1e38, -1e38, 1e-300, 1e300, -1e300, np.inf, -np.inf, np.nan,
)  # fmt: skip
VALUES = (
    None, True, False, 0, 1, -1, 2, 2.0, 3, 7, 0.5, -0.5, 1e-300, 1e300, 10**6, 10**18, 10**30, -(10**30),
    1e-12, 1e12, "", "2", "relu", "tanh", "softplus", "x" * 200, [], [[]], [1], [1, 2], [2, 1, 1], [0.0, 1.0],
    {}, {"rank": 1}, [{}], [{}, {}], [{}, {"memory": 10}], [{"node_noise": False}], float("nan"),
)  # fmt: skip


class Content(NamedTuple):
    """A file, taken apart."""

    arrays: dict[str, np.ndarray]
    sections: dict[str, Any]


def entries(n: int, seed: int) -> tuple[list[tuple[Any, ...]], np.ndarray]:
    """Three modes, whose ids are stored in the three ways there are."""
    rng = np.random.default_rng(seed)
    a, b, c = rng.integers((6, 5, 4), size=(n, 3)).T
    y = np.sin(a) + np.cos(2 * b) + 0.3 * c + 0.2 * rng.normal(size=n)
    X = [((int(i), "é") if i % 2 else float(i), f"b{j}", int(k)) for i, j, k in zip(a, b, c, strict=True)]
    return X, y


def values_for(model: Any, y: np.ndarray) -> np.ndarray:
    """Values that the model takes, from any."""
    if model.learns_events:
        return np.ones(len(y))
    if isinstance(model, SpiderClassifier):
        return (y > y.mean()).astype(float)
    return np.round(np.exp(y)) if model.likelihood == "count" else y


def saved_models() -> list[Content]:
    """A regressor and a classifier, of one member and of four; regressors also as the paper has them, and of
    counts; classifiers also of events."""
    small = {"rank": 2, "hidden": (4, 3), "multilinear": 2, "batch_size": 16}
    models = [
        SpiderRegressor(**small, committee=4),
        SpiderRegressor(**small, committee=1, memory=20.0, activation="gelu"),
        SpiderRegressor.paper(rank=2, hidden=(4,), batch_size=16),
        SpiderClassifier(**small, committee=4),
        SpiderClassifier(**small, committee=1, activation="tanh"),
        SpiderRegressor(**small, committee=2, likelihood="count"),
        SpiderClassifier(**small, committee=1, negatives=3, negatives_over=1, remember_seen=0),
        SpiderClassifier(**small, committee=2, negatives=2, negatives_over=(2, 0), negatives_power=0.5),
    ]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        for model in models:
            X, y = entries(80, 0)
            model.fit(X, values_for(model, y))
            model.save(path, {"row": 80, "source": "a.csv"})
            file = checkpoint.load(path)
            found.append(Content(file.arrays, file.sections))
    return found


# --- changes ---


def _pick(rng: Rng, choices: Any) -> Any:
    choices = list(choices)
    return choices[int(rng.integers(len(choices)))]


def _values_of(value: Any) -> list[tuple[Any, Any]]:
    """All places of a JSON value: a list or an object, and a key of it."""
    if not isinstance(value, dict | list):
        return []
    keys = list(value) if isinstance(value, dict) else range(len(value))
    return [(value, key) for key in keys] + [place for key in keys for place in _values_of(value[key])]


def change_value(rng: Rng, content: Content) -> None:
    """A value of the header: replaced, scaled, removed, or one more."""
    at, key = _pick(rng, _values_of(content.sections))
    how = rng.random()
    if how < 0.1:
        del at[key]
    elif how < 0.2 and isinstance(at, dict):
        at[_pick(rng, ("code", "", "rank", "memory", "product"))] = copy.deepcopy(_pick(rng, VALUES))
    elif how < 0.5 and isinstance(at[key], int | float):
        at[key] = at[key] * 10.0 ** int(rng.integers(-30, 30)) * _pick(rng, (1, -1))
    else:
        at[key] = copy.deepcopy(_pick(rng, VALUES))


def _float_name(rng: Rng, content: Content) -> str:
    """Mostly of numbers that are not whole: there is more to get wrong."""
    names = [name for name, array in content.arrays.items() if array.dtype.kind == "f"]
    return _pick(rng, names if names and rng.random() < 0.8 else content.arrays)


def change_numbers(rng: Rng, content: Content) -> None:
    """Some or all numbers of an array: special ones, or the same on another scale."""
    name = _float_name(rng, content)
    array = content.arrays[name] = content.arrays[name].copy()
    if not array.size:
        return
    where = rng.random(array.shape) < _pick(rng, (0.05, 0.5, 2.0))
    where.flat[int(rng.integers(array.size))] = True
    with np.errstate(all="ignore"):
        if rng.random() < 0.5:
            factor = 10.0 ** float(rng.uniform(-30, 30)) * _pick(rng, (1, 1, 1, -1))
            array[where] = (array[where] * factor).astype(array.dtype)
        else:
            array[where] = np.float64(_pick(rng, NUMBERS)).astype(array.dtype)


def change_together(rng: Rng, content: Content) -> None:
    """All numbers of a kind on another scale, of one member or of all: each may still be possible alone."""
    part = _pick(rng, ("factors", "weights", "sites", "noise", "stream", ""))
    field = _pick(rng, ("mean", "var", ""))
    member, factor = _pick(rng, ("members/", "members/0/")), 10.0 ** float(rng.uniform(-18, 18))
    for name, array in content.arrays.items():
        if member in name and part in name and name.endswith(field) and array.dtype.kind == "f":
            with np.errstate(all="ignore"):
                content.arrays[name] = np.asarray(array * factor, array.dtype)


def change_bytes(rng: Rng, content: Content) -> None:
    name = _pick(rng, content.arrays)
    array = content.arrays[name] = np.array(content.arrays[name], order="C")
    raw = array.reshape(-1).view(np.uint8)
    if raw.size:
        for _ in range(_pick(rng, (1, 1, 8))):
            raw[int(rng.integers(raw.size))] ^= np.uint8(1 << int(rng.integers(8)))


def change_shape(rng: Rng, content: Content) -> None:
    name = _pick(rng, content.arrays)
    array = content.arrays[name]
    changes: list[Callable[[], np.ndarray]] = [
        lambda: array[:-1], lambda: np.concatenate([array, array[-1:]]), lambda: array.T, lambda: array[None],
        lambda: array.reshape(-1), lambda: array[:0], lambda: np.zeros((0, 2**30), array.dtype),
        lambda: array[..., :-1], lambda: array[::-1], lambda: np.roll(array, 1),
    ]  # fmt: skip
    try:
        content.arrays[name] = _pick(rng, changes)()
    except (IndexError, ValueError):  # a single number has no rows
        content.arrays[name] = np.array([array, array])


def change_type(rng: Rng, content: Content) -> None:
    name = _pick(rng, content.arrays)
    with np.errstate(all="ignore"):
        content.arrays[name] = content.arrays[name].astype(_pick(rng, checkpoint.DTYPES))


def change_name(rng: Rng, content: Content) -> None:
    """An array under another name, missing, twice, or with the numbers of another."""
    name, other = _pick(rng, content.arrays), _pick(rng, content.arrays)
    how, array = rng.random(), content.arrays[name]
    if how < 0.4:
        content.arrays[other] = array
    elif how < 0.6:
        content.arrays[name], content.arrays[other] = content.arrays[other], array
    else:
        new = _pick(rng, (f"{name}/x", f"{name}x", name.replace("0", "1"), "model/nodes/3/int", "x", ""))
        content.arrays[new] = array
        if how < 0.9:
            del content.arrays[name]


CHANGES = (
    change_value, change_value, change_numbers, change_numbers, change_together, change_together,
    change_bytes, change_shape, change_type, change_name,
)  # fmt: skip


def mutated(seed: int, models: list[Content]) -> tuple[bytes, list[str]]:
    """A changed file with a valid checksum, and the names of the changes."""
    rng = np.random.default_rng(seed)
    original = models[seed % len(models)]
    content = Content(dict(original.arrays), copy.deepcopy(original.sections))
    changes = [_pick(rng, CHANGES) for _ in range(_pick(rng, (1, 1, 2, 2, 3)))]
    for change in changes:
        change(rng, content)
    records, payload = laid_out(content.arrays)
    if rng.random() < 0.05:
        record = _pick(rng, records)
        record[_pick(rng, record)] = _pick(rng, (*VALUES, 2**62, [2**40, 2**40], [-1]))
    return packed({"arrays": records, "optional": [], "sections": content.sections}, payload), [
        each.__name__ for each in changes
    ]


def laid_out(arrays: dict[str, np.ndarray]) -> tuple[list[dict[str, Any]], bytes]:
    """The records of the header and the payload, by docs/file-format.md."""
    records, payload = [], b""
    for name, array in sorted(arrays.items()):
        payload = payload.ljust(-(-len(payload) // 64) * 64, b"\0")
        raw, dtype = array.tobytes(), array.dtype.newbyteorder("<").str
        record = {"name": name, "dtype": dtype, "shape": list(array.shape)}
        records.append(record | {"offset": len(payload), "nbytes": len(raw)})
        payload += raw
    return records, payload


def packed(header: Any, payload: bytes) -> bytes:
    text = json.dumps(header).encode()
    text = text.ljust(-(-(len(text) + 20) // 64) * 64 - 20)
    body = struct.pack("<8sIQ", checkpoint.MAGIC, checkpoint.FORMAT_VERSION, len(text)) + text + payload
    return body + hashlib.sha256(body).digest()


# --- what a file must not do ---


def outcome(path: Path) -> str:
    """ "refused" or "good", else what is wrong with the model in a file."""
    tracemalloc.start()
    try:
        model = spidertensor.load(path)
    except CheckpointError:
        model = None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    if peak > LARGEST_FACTOR * path.stat().st_size + SPARE:
        return f"took {peak / 1e6:.0f} MB"
    return "refused" if model is None else behaviour(model)


def behaviour(model: Any) -> str:
    ids = [factors.ids[:3] for factors in model.factors()]
    X = [tuple(of_mode[n % len(of_mode)] for of_mode in ids) for n in range(4)]
    X += [tuple("never seen" for _ in ids), (*X[0][:-1], "never seen")]
    y = values_for(model, np.linspace(-1, 2, 40))
    for when in ("at once", "after learning", "after learning more"):
        if wrong := wrong_predictions(model, X):
            return f"{wrong} {when}"
        try:
            update = model.learn((X * 7)[:40], y)
        except EntryError:  # values may be too far from a shift, or for a tiny scale
            return "good"
        if not all(np.isfinite(part).all() for part in update[:3]):
            return f"an update that is not finite {when}"
        if not np.isfinite(model.log_evidence_):
            return f"evidence that is not finite {when}"
    return "good"


def wrong_predictions(model: Any, X: list[tuple[Any, ...]]) -> str:
    mean, var, noise = model.predict_parts(X)
    told = [mean, var, noise]
    if isinstance(model, SpiderRegressor):
        told += [*model.predict(X, return_std=True), *model.predict_interval(X, 0.99)]
    else:
        told += [model.predict_proba(X)]
    if not all(np.isfinite(part).all() for part in told):
        return "a prediction that is not finite"
    if not ((var > 0).all() and (noise >= 0).all() and ((var + noise) > 0).all()):
        return "a variance that is not positive"
    coverage = 0.9 if isinstance(model, SpiderRegressor) else None
    given: dict[str | int, Any] = dict(enumerate(X[0][:-1]))
    for explore in ("mean", "ucb", "thompson"):
        ranked = model.recommend(given, len(given), explore=explore, seed=0, coverage=coverage)
        numbers = [number for _, *numbers in ranked for number in numbers if number is not None]
        if not (ranked and np.isfinite(numbers).all()):
            return f"a recommendation by {explore} that is not finite"
    return ""


def main(n: int = 10_000, first: int = 0) -> None:
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    models, counts, slowest, began = saved_models(), Counter[str](), 0.0, perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        for seed in range(first, first + n):
            content, changes = mutated(seed, models)
            path.write_bytes(content)
            start = perf_counter()
            try:
                found = outcome(path)
            except Exception as error:
                found = f"{type(error).__name__}: {error}"[:300]
            slowest = max(slowest, perf_counter() - start)
            counts[found if found in ("refused", "good") else "wrong"] += 1
            if found not in ("refused", "good"):
                row = {"seed": seed, "model": seed % len(models), "changes": changes, "found": found}
                print(json.dumps(row), flush=True)
    whole = {"files": n, **counts, "slowest": slowest, "seconds": perf_counter() - began}
    print(json.dumps(whole))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
