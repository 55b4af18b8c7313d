"""Values beside the libraries people use: one run, the same splits for all, a JSON line per model and split.

    pip install 'spidertensor[peers]'
    export SPIDER_DATA=folder OPENBLAS_NUM_THREADS=1
    python benchmarks/peers.py movielens-100k --seeds 0 1 2
    python benchmarks/peers.py

Rows are appended to peers.jsonl as they end, and what has a row is not run again. Every model learns the
training part of `data.split(seed)`, and study/metrics.py scores what it predicts for the test part. flights
is predicted in time order, each entry before it is learned, by the models that can do that; the first tenth
is not scored.

    ours       nothing tuned here, one pass, rank 8, batches of 256
    ... fit    `fit` as it is, in as many passes as it takes; not in time order
    River      one pass, as a streaming method; values are scaled by the first 256, as ours are
    Surprise   many passes over two modes
    myFM       Bayesian factorization machine, Gibbs sampling, nothing tuned
    LightGBM   trees over the mean value (out of fold) and the number of entries of each node

Settings are tuned on training data alone, one at a time: fitted to nine tenths of the training part, scored
by the last tenth: all of it, because River's best rates for a shorter stream are other ones. On flights it
is tuned by predicting the tenth that is not scored.

`cpu_seconds` is the time of learning with the settings shown, over all threads, `tuning_cpu_seconds` that of
choosing them. `bytes` is the size of the pickled model. `log_density` is there if the model has a predictive
distribution: of binary values a probability, of others a variance.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from described_streams import Streaming
from peer_models import BATCH, PEERS, Can, Floats, Peer, Predicted, predicted_in_time

from spidertensor import SpiderClassifier, SpiderRegressor, __version__
from spidertensor.evaluation import metrics, protocols
from spidertensor.method import Batch, Prediction
from spidertensor.spider.likelihoods import PROBIT, Likelihood
from spidertensor_study import datasets
from spidertensor_study.datasets import Dataset
from spidertensor_study.grid import machine, method_of

DATA = ("movielens-100k", "movielens-1m", "acc", "anime", "dblp", "flights")
IN_TIME = ("flights",)
ROWS = Path(__file__).with_suffix(".jsonl")

FIT = "spidertensor fit"
OURS = {
    FIT: "spider",
    "spidertensor default": "spider",
    "spidertensor single": "spider-single",
    "online biases": "biases",
}
OURS_CAN = Can(True, True, True, True, True, True)
DISTRIBUTIONS = {"surprise": "scikit-surprise"}  # what pip calls a package, where it is not the same

Row = dict[str, Any]


def scores_of(likelihood: Likelihood, value: Floats, predicted: Predicted) -> Row:
    """The score of the likelihood, NaN if a rate was so large that predictions are not finite."""
    mean, var = predicted
    scores: Row = {"metric": likelihood.metric, "score": float("nan"), "log_density": None}
    if not np.isfinite(mean).all():
        return scores
    if likelihood is PROBIT:
        scores["score"] = metrics.auc(value, mean)
        if var is not None:
            scores["log_density"] = -metrics.log_loss(value, mean)
        return scores
    scores["score"] = metrics.rmse(value, mean)
    if var is not None:
        prediction = Prediction(mean, var, np.zeros(len(mean)))
        scores["log_density"] = metrics.log_density(value, prediction, likelihood)
    return scores


def tuned(
    peer: Peer | Streaming, score: Callable[[dict[str, Any]], float], likelihood: Likelihood
) -> dict[str, Any]:
    """Choose the best value of each setting in turn by the score, keeping the values chosen so far."""
    loss_of, found, losses = metrics.METRICS[likelihood.metric].loss, dict(peer.start), {}

    def loss(settings: dict[str, Any]) -> float:
        which = json.dumps(settings)
        if which not in losses:
            lost = loss_of(score(settings))
            losses[which] = lost if np.isfinite(lost) else np.inf
            print(" ", which, round(losses[which], 4), file=sys.stderr, flush=True)
        return losses[which]

    for name, values in peer.axes.items():
        found[name] = min(values, key=lambda value: loss(found | {name: value}))
    return found


def beside(label: str, data: Dataset, train: Batch, tests: dict[str, Batch]) -> Row:
    """A peer, held out."""
    peer, began = PEERS[label], process_time()
    cut = int(0.9 * len(train.value))
    inner, held = _cut(train, 0, cut), _cut(train, cut, None)

    def score(settings: dict[str, Any]) -> float:
        predicted = peer.fit(inner, data, **settings).predict(held.index)
        return scores_of(data.likelihood, held.value, predicted)["score"]

    settings = tuned(peer, score, data.likelihood)
    ready = process_time()
    fitted = peer.fit(train, data, **settings)
    ended = process_time()
    size = pickled_size(fitted.model)  # before predicting: River adds the ids that it is asked about
    scores = {
        name: scores_of(data.likelihood, test.value, fitted.predict(test.index))
        for name, test in tests.items()
    }
    return _row(scores, settings, ended - ready, ready - began, peer.passes(settings), size)


def beside_in_time(label: str, data: Dataset, stream: Batch) -> Row:
    """A peer in time order, tuned on the tenth that is not scored."""
    peer, began = PEERS[label], process_time()
    make, skipped = peer.one_by_one, int(protocols.SKIPPED_SHARE * len(stream.value))
    assert make is not None
    first = _cut(stream, 0, skipped)

    def score(settings: dict[str, Any]) -> float:
        return metrics.rmse(first.value, predicted_in_time(make(data, **settings), first))

    settings = tuned(peer, score, data.likelihood)
    ready = process_time()
    river = make(data, **settings)
    mean = predicted_in_time(river, stream)
    ended = process_time()
    scores = scores_of(data.likelihood, stream.value[skipped:], Predicted(mean[skipped:]))
    size = pickled_size(river.model)
    return _row({"stream": scores}, settings, ended - ready, ready - began, 1, size)


def ours(label: str, data: Dataset, seed: int, train: Batch, tests: dict[str, Batch] | None) -> Row:
    """tests: None in time order."""
    method, how = method_of(data, {"method": OURS[label], "rank": 8, "batch_size": BATCH, "seed": seed})
    seconds: list[float] = []
    last: list[Any] = [None]

    def update(state: Any, batch: Batch) -> Any:
        began = process_time()
        after = method.update(state, batch)
        seconds.append(process_time() - began)
        last[0] = after[0]
        return after

    timed = replace(method, update=update)
    if tests is None:
        *_, row = protocols.prequential(timed, train, **how)
        rows = {"stream": row}
    else:
        rows = {row["test"]: row for row in protocols.held_out(timed, train, tests, **how)}
    scores = {
        name: {key: row[key] for key in ("metric", "score", "log_density")} for name, row in rows.items()
    }
    time = sum(seconds[1:])  # the first call is made twice, because it compiles
    return _row(scores, {}, time, 0.0, 1, pickled_size(last[0]))


def ours_in_passes(data: Dataset, seed: int, train: Batch, tests: dict[str, Batch]) -> Row:
    """The whole history, several times."""
    kind = SpiderClassifier if data.likelihood.binary else SpiderRegressor
    kind(passes=2).fit(train.index[:2000], train.value[:2000])  # compiles
    began = process_time()
    model = kind(random_state=seed).fit(train.index, train.value)
    seconds = process_time() - began
    scores = {}
    for name, test in tests.items():
        if isinstance(model, SpiderClassifier):
            predicted = Predicted(model.predict_proba(test.index)[:, 1], np.zeros(0))
        else:
            mean, var, noise = model.predict_parts(test.index)
            predicted = Predicted(mean, var + noise)
        scores[name] = scores_of(data.likelihood, test.value, predicted)
    passes = 1 if model.history_ is None else len(model.history_["errors"])
    return _row(scores, {}, seconds, 0.0, passes, pickled_size(model._learned.state))  # pyright: ignore[reportOptionalMemberAccess]


def _row(scores: Row, settings: Row, seconds: float, tuning: float, passes: int, size: int) -> Row:
    short = {name: {key: _short(found) for key, found in score.items()} for name, score in scores.items()}
    times = {"cpu_seconds": round(seconds, 2), "tuning_cpu_seconds": round(tuning, 2)}
    return {"scores": short, "settings": settings, **times, "passes": passes, "bytes": size}


def _short(found: Any) -> Any:
    """Five digits; None if it is not finite."""
    if not isinstance(found, float):
        return found
    return round(found, 5) if np.isfinite(found) else None


def pickled_size(model: Any) -> int:
    """Without the pickle itself, which for myFM takes hundreds of megabytes."""

    class Counter:
        size = 0

        def write(self, content: Any) -> None:
            self.size += memoryview(content).nbytes

    counter = Counter()
    pickle.dump(model, counter)  # pyright: ignore[reportArgumentType]
    return counter.size


def _cut(entries: Batch, start: int | None, stop: int | None) -> Batch:
    return Batch(entries.index[start:stop], entries.value[start:stop])


def why_not(label: str, data: Dataset) -> str:
    """Why a model is not run on a data set; empty if it is."""
    if label == FIT and data.name in IN_TIME:
        return "cannot: reads all first"
    if label in OURS:
        return ""
    peer = PEERS[label]
    if find_spec(peer.package) is None:
        return f"not installed: pip install {DISTRIBUTIONS.get(peer.package, peer.package)}"
    if len(data.shape) > 2 and not peer.can.many_modes:
        return "cannot: two modes only"
    if data.name in IN_TIME and peer.one_by_one is None:
        return "cannot: does not learn while it predicts"
    return ""


def can(label: str) -> Can:
    return OURS_CAN if label in OURS else PEERS[label].can


def run(label: str, data: Dataset, seed: int) -> Row:
    about: Row = {"peer": label, "data": data.name, "seed": seed}
    if reason := why_not(label, data):
        return about | {"not_run": reason}
    version = __version__
    if label in PEERS:
        package = PEERS[label].package
        version = metadata.version(DISTRIBUTIONS.get(package, package))
    about |= {"version": version, "machine": machine(), "load": round(os.getloadavg()[0], 1)}
    if data.name in IN_TIME:
        stream = data.in_time_order()
        if label in OURS:
            return about | ours(label, data, seed, stream, None)
        return about | beside_in_time(label, data, stream)
    train, test = data.split(seed)
    tests = dict(data.tests) or {"paper": test}
    if label == FIT:
        return about | ours_in_passes(data, seed, train, tests)
    if label in OURS:
        return about | ours(label, data, seed, train, tests)
    return about | beside(label, data, train, tests)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Values beside the libraries people use.")
    parser.add_argument("data", nargs="*", default=list(DATA))
    parser.add_argument("--peers", nargs="+", default=[*OURS, *PEERS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--rows", type=Path, default=ROWS, help="the file that rows are added to")
    asked = parser.parse_args(arguments)
    lines = asked.rows.read_text(encoding="utf-8").splitlines() if asked.rows.exists() else []
    done = {(row["peer"], row["data"], row["seed"]) for row in map(json.loads, lines)}
    for name in asked.data:
        data = datasets.load(name)
        for seed in asked.seeds:
            for label in asked.peers:
                if (label, name, seed) in done:
                    continue
                line = json.dumps(run(label, data, seed))
                print(line, flush=True)
                if "not installed" not in line:  # to be run when it is
                    with asked.rows.open("a", encoding="utf-8") as file:
                        file.write(line + "\n")


if __name__ == "__main__":
    main()
