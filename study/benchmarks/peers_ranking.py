"""Rankings beside other libraries: one run, the same splits and candidates for all, a JSON line per data set.

    pip install 'spidertensor[peers]'
    SPIDER_DATA=folder OPENBLAS_NUM_THREADS=1 python benchmarks/peers_ranking.py [data sets] > peers.json

Protocol last-out (study/last_out.py): the last event of each user is held out, its node ranked among all
nodes that the user has not had (full), and among 99 of them (sampled, which flatters).

    ours         the classifier's default, nothing tuned here, one pass, in time order and shuffled
    popularity   the number of events of a node
    implicit     alternating least squares and BPR, many epochs. One setting at a time is tuned on the
                 training part alone: held out is then the second-last event of each user; NDCG@10, full
    River        has no model of events alone: its factorization gets 8 uniform negatives with the value 0
                 per event, as ours draws them, one shuffled pass; its learning rate is tuned in the same
                 way. On movielens-100k alone: 9 million entries would take it minutes a run

`cpu_seconds` is the time of learning with the settings shown, over all threads, so that what else the machine
does counts little; `tuning_cpu_seconds` that of choosing them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from time import process_time
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from spidertensor.evaluation import ranking_metrics
from spidertensor.evaluation.last_out import LastOut, Scorer, last_out, rank_held, split_last
from spidertensor.method import Batch
from spidertensor_study import datasets
from spidertensor_study.datasets import Dataset
from spidertensor_study.grid import machine, method_of

DATA = ("movielens-100k-events", "movielens-1m-events")
OVER = 1  # users in mode 0, what is ranked in mode 1
NEGATIVES = 8  # of River: as many as ours
CALL = 8192  # events at once: how they are cut changes nothing
OURS = {"spidertensor default": "spider", "spidertensor single": "spider-single"}

Fit = Callable[..., Scorer]  # training events, shape, **settings


class Peer(NamedTuple):
    """start: its settings; axes: what is tried for each of them, in turn; data: where it is run."""

    fit: Fit
    start: dict[str, Any]
    axes: dict[str, tuple[Any, ...]]
    data: tuple[str, ...] = DATA


def popularity(train: Batch, shape: tuple[int, ...]) -> Scorer:
    counts = np.bincount(train.index[:, OVER], minlength=shape[OVER]).astype(float)
    return lambda held: np.tile(counts, (len(held), 1))


def of_factors(users: Any, nodes: Any, bias: Any = 0.0) -> Scorer:
    return lambda held: np.asarray(users)[held[:, 0]].astype(float) @ np.asarray(nodes).T + bias


def als(train: Batch, shape: tuple[int, ...], **settings: Any) -> Scorer:
    from implicit.als import AlternatingLeastSquares

    model = AlternatingLeastSquares(random_state=0, **settings)
    model.fit(_matrix(train, shape), show_progress=False)
    return of_factors(model.user_factors, model.item_factors)


def bpr(train: Batch, shape: tuple[int, ...], **settings: Any) -> Scorer:
    from implicit.bpr import BayesianPersonalizedRanking

    model = BayesianPersonalizedRanking(random_state=0, **settings)
    model.fit(_matrix(train, shape), show_progress=False)
    return of_factors(model.user_factors, model.item_factors)  # the bias of a node is its last factor


def _matrix(train: Batch, shape: tuple[int, ...]) -> csr_matrix:
    return csr_matrix((train.value.astype(np.float32), tuple(train.index.T)), shape=shape)


def river(train: Batch, shape: tuple[int, ...], *, rate: float, n_factors: int) -> Scorer:
    from river import optim, reco

    model = reco.BiasedMF(
        n_factors=n_factors, bias_optimizer=optim.SGD(rate), latent_optimizer=optim.SGD(rate), seed=0
    )
    rng = np.random.default_rng(0)
    seen: list[int] = []
    known: set[int] = set()
    for user, node in rng.permutation(train.index).tolist():  # the order that suits it better
        if node not in known:
            known.add(node)
            seen.append(node)
        model.learn_one(user=user, item=node, y=1.0)
        for place in rng.integers(len(seen), size=NEGATIVES):
            model.learn_one(user=user, item=seen[place], y=0.0)
    users, nodes = np.zeros((shape[0], n_factors)), np.zeros((shape[1], n_factors))
    bias = np.zeros(shape[1])
    for table, latents in ((users, model.u_latents), (nodes, model.i_latents)):
        for number, factors in latents.items():
            table[number] = factors
    for number, value in model.i_biases.items():
        bias[number] = value
    return of_factors(users, nodes, bias)  # the bias of the user and the mean are the same for all nodes


PEERS = {
    "popularity": Peer(popularity, {}, {}),
    "implicit ALS": Peer(
        als,
        {"factors": 64, "regularization": 0.1, "alpha": 1.0, "iterations": 15},
        {
            "factors": (16, 32, 64, 128),
            "regularization": (0.01, 0.1, 1.0, 10.0),
            "alpha": (0.3, 1.0, 3.0, 10.0),
            "iterations": (15, 50),
        },
    ),
    "implicit BPR": Peer(
        bpr,
        {"factors": 64, "learning_rate": 0.01, "regularization": 0.01, "iterations": 100},
        {
            "learning_rate": (0.003, 0.01, 0.03),
            "regularization": (0.001, 0.01, 0.03),
            "factors": (32, 64, 128),
            "iterations": (50, 100, 200),
        },
    ),
    "River BiasedMF": Peer(
        river, {"rate": 0.03, "n_factors": 10}, {"rate": (0.03, 0.1, 0.2)}, ("movielens-100k-events",)
    ),
}


def tuned(peer: Peer, split: LastOut, shape: tuple[int, ...]) -> dict[str, Any]:
    """Choose the best value of each setting in turn on the second-last events, keeping earlier choices."""
    inner, found = split_last(split.train, OVER), dict(peer.start)
    scores: dict[str, float] = {}

    def score(settings: dict[str, Any]) -> float:
        which = json.dumps(settings)
        if which not in scores:
            scorer = peer.fit(inner.train, shape, **settings)
            try:
                ranks = rank_held(scorer, inner, OVER, shape[OVER]).full
            except ValueError:  # a rate so large that factors are not finite
                ranks = np.full(len(inner.held), np.inf)
            scores[which] = ranking_metrics.ndcg(ranks, ranking_metrics.HITS_TOP)
            print(which, round(scores[which], 4), file=sys.stderr, flush=True)
        return scores[which]

    for name, values in peer.axes.items():
        found[name] = max(values, key=lambda value: score(found | {name: value}))
    return found


def measured(scorer: Scorer, split: LastOut, n_nodes: int) -> dict[str, Any]:
    ranked = rank_held(scorer, split, OVER, n_nodes)
    full = ranking_metrics.scores_of(ranked.full) | {"coverage_10": ranked.coverage}
    return {"full": _short(full), "sampled (flatters)": _short(ranking_metrics.scores_of(ranked.sampled))}


def _short(scores: dict[str, float]) -> dict[str, float]:
    return {name: round(score, 4) for name, score in scores.items()}


def ours(data: Dataset, events: Batch, name: str, *, shuffled: bool) -> dict[str, Any]:
    method, _ = method_of(data, {"method": name, "rank": 8, "batch_size": 256, "seed": 0})
    seconds: list[float] = []

    def update(state: Any, batch: Batch) -> Any:
        began = process_time()
        after = method.update(state, batch)
        seconds.append(process_time() - began)
        return after

    how: dict[str, Any] = {"over": OVER, "n_nodes": data.shape[OVER], "shuffled": shuffled}
    full, sampled = last_out(replace(method, update=update), events, batch_size=CALL, **how)
    names = ranking_metrics.scores_of([])
    return {
        "cpu_seconds": round(sum(seconds[1:]), 2),  # the first call is made twice, because it compiles
        "full": _short({name: full[name] for name in (*names, "coverage_10")}),
        "sampled (flatters)": _short({name: sampled[name] for name in names}),
    }


def beside(label: str, data: Dataset, split: LastOut) -> dict[str, Any]:
    peer, began = PEERS[label], process_time()
    settings = tuned(peer, split, data.shape)
    ready = process_time()
    scorer = peer.fit(split.train, data.shape, **settings)
    times = {"cpu_seconds": process_time() - ready, "tuning_cpu_seconds": ready - began}
    return {"settings": settings} | _short(times) | measured(scorer, split, data.shape[OVER])


def main(names: list[str]) -> None:
    for name in names:
        data = datasets.load(name)
        events = data.in_time_order()
        split = split_last(events, OVER)
        found: dict[str, Any] = {"events": len(split.train.value), "ranked": len(split.held)}
        for label, peer in PEERS.items():
            if name in peer.data:
                found[label] = beside(label, data, split)
        for order in ("in time order", "shuffled"):
            for label, method in OURS.items():
                found[f"{label}, {order}"] = ours(data, events, method, shuffled=order == "shuffled")
        about = {"data": name, "machine": machine(), "load": os.getloadavg()}
        print(json.dumps(about | {"methods": found}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(DATA))
