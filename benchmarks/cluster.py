"""Several threads that learn one member against one: accuracy, throughput, and where the time goes.

    SPIDER_DATA=folder python benchmarks/cluster.py accuracy [--quick] [--processes N] [--seeds 0 1]
    python benchmarks/cluster.py throughput [--entries 10000000] [--workers 2 4 8 16] [--parts 16384]
    python benchmarks/cluster.py phases [--entries 3000000] [--workers 2]

Each prints JSON lines as it goes. Of other packages they need numpy, scipy, numba, scikit-learn and pyarrow.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import lru_cache
from importlib.util import find_spec
from itertools import product
from multiprocessing import get_context
from time import perf_counter, process_time, thread_time
from types import SimpleNamespace
from typing import Any

import numpy as np

if find_spec("threadpoolctl") is None:  # a bare machine; it is needed for recommendations only
    sys.modules["threadpoolctl"] = SimpleNamespace(ThreadpoolController=None)  # type: ignore

from spidertensor.cluster import rounds
from spidertensor.cluster.parts import recipes_of
from spidertensor.cluster.rounds import Rounds, split
from spidertensor.evaluation import metrics
from spidertensor.method import Batch
from spidertensor.scaling import Scaling
from spidertensor.spider.committee import committee
from spidertensor.spider.likelihoods import PROBIT
from spidertensor_study import datasets

DATA = ("movielens-1m", "acc", "anime", "dblp", "flights")
WORKERS = (1, 2, 4, 8, 16)
PARTS = (256, 1024, 4096)
BATCH = 256  # entries of the first batch, which gives the scale


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


# --- accuracy ---


def accuracy(options: argparse.Namespace) -> None:
    names = options.data or (("acc", "dblp") if options.quick else DATA)
    workers, parts = ((1, 8), (1024,)) if options.quick else (options.workers, options.parts)
    grid = [(1, BATCH), *product([n for n in workers if n > 1], parts)]
    cells = [
        {"data": name, "workers": t, "part": b, "seed": seed, "committee": size, "entries": options.entries}
        | {"growth": options.growth}
        for name, seed, size, (t, b) in product(names, options.seeds, options.committee, grid)
    ]
    if options.processes == 1:
        for cell in cells:
            say(**one_cell(cell))
        return
    with get_context("spawn").Pool(options.processes) as pool:
        for line in pool.imap_unordered(one_cell, cells):
            say(**line)


@lru_cache(maxsize=2)
def entries_of(name: str, seed: int) -> tuple[Any, Batch, Batch]:
    data = datasets.load(name)
    test = next(iter(data.tests), "paper") if data.tests else "paper"
    train, held = data.split(seed, test)
    return data, train, held


def one_cell(cell: dict[str, Any]) -> dict[str, Any]:
    """One pass over the training entries: the score of the test entries, and the prequential one."""
    from spidertensor.estimator import SpiderClassifier, SpiderRegressor
    from spidertensor.estimator.parameters import model_of

    data, train, held = entries_of(cell["data"], cell["seed"])
    train = Batch(train.index[: cell["entries"]], train.value[: cell["entries"]])
    kind = SpiderClassifier if data.likelihood is PROBIT else SpiderRegressor
    params = kind(committee=cell["committee"])._flat_params()
    model = model_of(params, data.likelihood, len(data.shape))
    if cell["growth"]:
        rounds.GROWTH = cell["growth"]
    how = Rounds(cell["workers"], cell["part"])
    members = [split(recipe, how) for recipe in recipes_of(params, model)]
    method = committee(members, data.likelihood, clip=params.get("clip"), threads=1)
    scaling = Scaling.of(train.value[:BATCH]) if data.likelihood.scaled else Scaling()
    began = perf_counter()
    state, update = method.update(method.init(cell["seed"]), Batch(train.index, scaling.scaled(train.value)))
    seconds = perf_counter() - began
    predicted = scaling.user_units(*method.predict(state, held.index))
    metric = data.likelihood.metric
    rest = slice(len(train.value) // 10, None)  # as the prequential protocol: all but the first tenth
    told = scaling.user_units(*(part[rest] for part in update[:3]))
    return cell | {
        "metric": metric,
        "score": metrics.METRICS[metric].of(held.value, predicted, data.likelihood),
        "prequential": metrics.METRICS[metric].of(train.value[rest], told, data.likelihood),
        "log_evidence": float(scaling.log_density(update.log_evidence[rest]).mean()),
        "rejected": update.rejected,
        "seconds": round(seconds, 1),
    }


# --- throughput ---


def stream(n: int, nodes: int, seed: int = 0) -> Iterator[Batch]:
    """Entries of a synthetic stream, a million at a time: popular nodes come often."""
    rng = np.random.default_rng(seed)
    for start in range(0, n, 10**6):
        size = min(10**6, n - start)
        index = (nodes * rng.random((size, 2)) ** 2).astype(np.int64)
        value = np.sin(index[:, 0]) + np.cos(index[:, 1]) + 0.3 * rng.normal(size=size)
        yield Batch(index, value)


def throughput(options: argparse.Namespace) -> None:
    """One process and any number of threads by turns, a million entries at a time: what others do on the
    machine meets all alike. The best million of each counts."""
    from spidertensor import SpiderRegressor
    from spidertensor.cluster import on_workers

    models, found = {}, {}
    with ExitStack() as stack:
        for workers, part in [(1, 0), *product(options.workers, options.parts)]:
            own = models[workers, part] = SpiderRegressor(
                committee=options.committee[0], hidden=tuple(options.hidden)
            )
            if workers > 1:
                stack.enter_context(on_workers(own, workers=workers, part=part))
        for number, (index, value, *_) in enumerate(stream(options.entries, options.nodes)):
            for each, own in models.items():
                began, before = perf_counter(), process_time()
                own.partial_fit(index, value)
                seconds, used = perf_counter() - began, process_time() - before
                if number:  # the first million compiles
                    found.setdefault(each, []).append((seconds / len(value), used / len(value)))
    alone = min(found[1, 0])[0]
    for (workers, part), times in found.items():
        best, mean = min(times)[0], np.mean(times, axis=0)
        say(
            workers=workers, part=part, per_second=round(1 / best), times_one_process=round(alone / best, 2),
            on_average=round(float(np.mean(found[1, 0], axis=0)[0] / mean[0]), 2),
            processor_us_per_entry=round(1e6 * float(mean[1]), 2),
        )  # fmt: skip


def phases(options: argparse.Namespace) -> None:
    """Processor time of each phase of a round, in one thread."""
    from spidertensor import SpiderRegressor
    from spidertensor.cluster import merge_rows, parts
    from spidertensor.estimator.parameters import model_of
    from spidertensor.spider.likelihoods import GAUSSIAN

    params = SpiderRegressor(committee=1, hidden=tuple(options.hidden))._flat_params()
    (recipe,) = recipes_of(params, model_of(params, GAUSSIAN, 2))
    seconds: dict[str, float] = {}

    def timed(where: Any, name: str, shown: str) -> None:
        function = getattr(where, name)

        def run(*args: Any, **named: Any) -> Any:
            began = thread_time()
            result = function(*args, **named)
            seconds[shown] = seconds.get(shown, 0.0) + thread_time() - began
            return result

        setattr(where, name, run)

    for where, name, shown in (
        (parts, "run_models", "learning"), (parts, "_numbered", "numbering"),
        (parts.Worker, "learn", "learning, with rows"), (merge_rows, "_merge", "merge of rows"),
        (rounds, "merge_shared", "merge of weights"), (rounds, "_refined", "refine"),
        (rounds, "one_round", "all"),
    ):  # fmt: skip
        timed(where, name, shown)
    for part in options.parts:
        method = split(recipe, Rounds(options.workers[0], part))
        state = method.init(0)
        for number, batch in enumerate(stream(options.entries, options.nodes)):
            if number == 1:
                seconds.clear()
            state, _ = method.update(state, Batch(batch.index, Scaling.of(batch.value).scaled(batch.value)))
        n = options.entries - 10**6
        say(part=part, us_per_entry={name: round(1e6 * each / n, 3) for name, each in seconds.items()})


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["accuracy", "throughput", "phases"])
    parser.add_argument("--quick", action="store_true", help="two data sets, one and eight workers")
    parser.add_argument("--data", nargs="+", choices=DATA)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--workers", nargs="+", type=int, default=list(WORKERS))
    parser.add_argument("--parts", nargs="+", type=int, default=list(PARTS))
    parser.add_argument(
        "--committee", nargs="+", type=int, default=[1], help="members: 1, or 4 for the default"
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--entries", type=int, help="of the stream; accuracy: all, throughput: ten million")
    parser.add_argument("--growth", type=int, help="in place of rounds.GROWTH; 1: rounds are long at once")
    parser.add_argument("--nodes", type=int, default=20_000, help="of each mode of the stream")
    parser.add_argument("--hidden", nargs="*", type=int, default=[50, 50], help="throughput: of the network")
    options = parser.parse_args(arguments)
    if options.what != "accuracy":
        options.entries = options.entries or 10**7
        options.workers = [workers for workers in options.workers if workers > 1]
    {"accuracy": accuracy, "throughput": throughput, "phases": phases}[options.what](options)


if __name__ == "__main__":
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # processes beside each other
        os.environ.setdefault(name, "1")
    main(sys.argv[1:])
