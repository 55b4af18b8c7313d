"""How the defaults of a model of events are chosen: ranks on training streams alone.

    SPIDER_DATA=folder python benchmarks/choose_events.py [sweeps] [data sets] > rows.jsonl

The last event of each user, which reported figures are about, is thrown away unseen. Of what is left the last
event of each user is held out, the rest learned in one pass, and its node ranked (study/last_out.py): HR@10
and NDCG@10 by full ranking, and by 99 sampled others. Streams: every third user of movielens-1m in time
order; movielens-100k in time order and shuffled, and its prequential ranks, every 25th event.
One JSON line per stream and setting. Log scores could not choose how many negatives are drawn, nor how: both
change what is predicted.

What was chosen, before any of the last events had been looked at (rows in benchmarks/choose_events.jsonl.gz).
NDCG@10, full, of movielens-100k in time order, shuffled, prequentially, and of the third of movielens-1m:

    one model, 8 negatives            0.047  0.050  0.065  0.032
    4 negatives                       0.034  0.043  0.050  0.025
    16 negatives                      0.058  0.041  0.070  0.033
    multilinear_var 0.3               0.058  0.050  0.077  0.040
    both                              0.055  0.047  0.086  0.046
    negatives_power 0.5               0.038  0.027  0.055
    committee, 8 negatives            0.058  0.054         0.049
    committee, multilinear_var 0.3    0.058  0.051
    committee, 16 negatives           0.064  0.048

    negatives        8. 16 rank better in time order and worse shuffled, and are nearly twice the entries
    negatives_power  0. By popularity is worse on movielens-100k, where alone it was run
    the committee    with its own variances, which have a wide member: as good as one model that is tuned, or
                     better. One model alone gains by multilinear_var 0.3; 64 products or another bias_var
                     change little

Two rows came after the last events of movielens-100k had been scored, and changed nothing: the committee with
16 negatives shuffled, and the committee on movielens-1m.
About 0.005 is one standard error of movielens-100k's 943 users. Not every setting was run on every stream;
rows of movielens-1m shuffled are of an earlier plan. negatives_power was run with an earlier version of the
draws by popularity.
"""

from __future__ import annotations

import json
import sys
from time import perf_counter
from typing import Any

from spidertensor.estimator import SpiderClassifier
from spidertensor.estimator.groups import paths
from spidertensor.estimator.parameters import model_of
from spidertensor.evaluation.last_out import last_out, prequential_ranks, split_last
from spidertensor.method import Batch, Method
from spidertensor.spider.likelihoods import PROBIT
from spidertensor_study import datasets

OVER = 1
BASE: dict[str, Any] = {"negatives": 8, "committee": 1}
SWEEPS: dict[str, list[dict[str, Any]]] = {
    "base": [{}],
    "negatives": [{"negatives": n} for n in (4, 16)],
    "multilinear_var": [{"multilinear_var": var} for var in (0.03, 0.15, 0.3)],
    "bias_var": [{"bias_var": var} for var in (0.1, 0.2)],
    "multilinear": [{"multilinear": 64}, {"multilinear": 64, "multilinear_var": 0.15, "bias_var": 0.2}],
    "power": [{"negatives_power": 0.5}],
    "committee": [{"committee": 4}],
    "combined": [
        {"negatives": 16, "multilinear_var": 0.3},
        {"multilinear_var": 0.6},
        {"negatives": 16, "multilinear_var": 0.3, "committee": 4},
    ],
}
SCORES = ("hr_10", "ndcg_10", "recall_20", "mrr")


def streams() -> dict[str, tuple[Batch, int]]:
    """Training events in time order, and how many nodes can be ranked."""
    found = {}
    for name, third in (("movielens-100k-events", False), ("movielens-1m-events", True)):
        data = datasets.load(name)
        events = split_last(data.in_time_order(), OVER).train
        if third:
            own = events.index[:, 0] % 3 == 0
            events = Batch(events.index[own], events.value[own])
        found[name] = events, data.shape[OVER]
    return found


def method_of(settings: dict[str, Any]) -> Method:
    estimator = SpiderClassifier(negatives_over=OVER).set_params(**paths(BASE | settings))
    params = estimator._resolved(estimator._flat_params(), None, 2)
    return model_of(params, PROBIT, 2).method


def rows_of(name: str, events: Batch, n_nodes: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    method, rows = method_of(settings), []
    small = name == "movielens-100k-events"
    for order in ("time", "shuffled") if small else ("time",):
        how = {"over": OVER, "n_nodes": n_nodes, "shuffled": order == "shuffled", "batch_size": 8192}
        rows += [{"order": order} | row for row in last_out(method, events, **how)]
    if small:
        found = prequential_ranks(method, events, over=OVER, every=25)
        rows += [{"order": "time", **row, "test": "prequential"} for row in found]
    return rows


def main(asked: list[str]) -> None:
    """asked: names of sweeps and of data sets; all of a kind if none is named"""
    found = streams()
    sweeps = [name for name in asked if name in SWEEPS] or list(SWEEPS)
    for name in [name for name in asked if name in found] or list(found):
        events, n_nodes = found[name]
        for sweep in sweeps:
            for settings in SWEEPS[sweep]:
                began = perf_counter()
                for row in rows_of(name, events, n_nodes, settings):
                    scores = {each: round(row[each], 5) for each in SCORES}
                    which = {"data": name, "sweep": sweep, "setting": settings}
                    which |= {"order": row["order"], "test": row["test"]}
                    print(json.dumps(which | scores | {"seconds": round(row["seconds"], 1)}), flush=True)
                print(f"{name} {settings}: {perf_counter() - began:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
