"""`fit` on a history of events, by the number of passes and of negatives: a JSON line for each run.

    export SPIDER_DATA=folder
    python benchmarks/event_passes.py movielens-100k-events --negatives 8 16 32 --validation
    python benchmarks/event_passes.py movielens-100k-events movielens-1m-events --negatives 32 --workers 4

Protocol last-out (evaluation/last_out.py): the last event of each user is held out and ranked. With
--validation the last events are left out altogether, and the second-last are held out: what is chosen is
chosen there. `errors` are those of the slice that the judge held back, after each pass. Rows go to standard
output; those of the defaults are in event_passes.jsonl. Each run takes as many cores as a committee has
members, if there are as many.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from typing import Any, NamedTuple

from spidertensor import SpiderClassifier
from spidertensor.evaluation.fitted_events import in_passes
from spidertensor.evaluation.last_out import last_out, split_last
from spidertensor.evaluation.ranking_metrics import scores_of
from spidertensor.method import Batch, Method
from spidertensor_study import datasets
from spidertensor_study.grid import machine


class Run(NamedTuple):
    data: str
    negatives: int
    passes: int | str
    seed: int
    in_time: bool
    validation: bool
    committee: int | list[dict[str, Any]]


def result(run: Run) -> dict[str, Any]:
    data = datasets.load(run.data)
    events, over = data.in_time_order(), data.modes.index(str(data.events_over))
    if run.validation:
        events = split_last(events, over).train
    settings = {"negatives": run.negatives, "passes": run.passes, "committee": run.committee}
    method, noted = _noting(in_passes(over, settings, in_time=run.in_time))
    full, sampled = last_out(method, events, over=over, n_nodes=data.shape[over], seed=run.seed)
    names = (*scores_of([]), "coverage_10")
    return {
        **run._asdict(),
        "full": {name: full[name] for name in names},
        "sampled": {name: sampled[name] for name in names},
        "seconds": round(full["seconds"], 1),
        "ranking_seconds": round(full["ranking_seconds"], 1),
        "weights": full["members"],
        "history": noted[-1].history_,
        "machine": machine(),
    }


def _noting(method: Method) -> tuple[Method, list[SpiderClassifier]]:
    """The method, and the estimators that it makes."""
    made: list[SpiderClassifier] = []

    def init(seed: int) -> SpiderClassifier:
        made.append(method.init(seed))
        return made[-1]

    def update(state: SpiderClassifier, batch: Batch) -> Any:
        return method.update(state, batch)

    return Method(init, update, method.predict, method.unit), made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--negatives", nargs="+", type=int, default=[32])
    parser.add_argument("--passes", nargs="+", default=["auto"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument(
        "--committee",
        nargs="+",
        type=json.loads,
        default=[SpiderClassifier().committee],
        help="a number, or a list such as '[{}, {}]'",
    )
    parser.add_argument("--in-time", action="store_true", help="the judge has the latest events")
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    asked = parser.parse_args()
    runs = [
        Run(data, n, passes if passes == "auto" else int(passes), seed, asked.in_time, asked.validation, own)
        for data, n, passes, seed, own in product(
            asked.data, asked.negatives, asked.passes, asked.seeds, asked.committee
        )
    ]  # fmt: skip
    with ProcessPoolExecutor(asked.workers, get_context("spawn")) as pool:
        for done in as_completed([pool.submit(result, run) for run in runs]):
            print(json.dumps(done.result()), flush=True)


if __name__ == "__main__":
    main()
