"""Several workers against one: accuracy for any number of them, throughput, and what shards cost.

    SPIDER_DATA=folder python benchmarks/cluster.py accuracy [--quick] [--processes N] [--seeds 0 1]
    python benchmarks/cluster.py throughput [--entries 10000000] [--workers 2] [--on threads local]
    python benchmarks/cluster.py phases [--entries 3000000] [--workers 2]
    python benchmarks/cluster.py shards [--nodes 5000000] [--shards 4]

Each prints JSON lines as it goes. `accuracy` needs no Ray, and of other packages numpy, scipy, numba and
pyarrow: any number of workers learns in one process as it would on many machines, bit for bit. `throughput
--on local` and `shards` start Ray on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import lru_cache
from importlib.util import find_spec
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, thread_time
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
    """One process, threads and Ray by turns, a million entries at a time: what others do on the machine
    meets all alike. The best million of each counts."""
    from spidertensor import SpiderRegressor
    from spidertensor.cluster import on_workers

    def model() -> SpiderRegressor:
        return SpiderRegressor(committee=1, hidden=tuple(options.hidden))

    workers = options.workers_now
    models, found = {("one process", 0): model()}, {}
    with ExitStack() as stack:
        for address, part in product(options.on, options.parts):
            how = {"workers": workers, "part": part, "address": None if address == "threads" else address}
            models[address, part] = model()
            stack.enter_context(on_workers(models[address, part], **how))
        for number, (index, value, *_) in enumerate(stream(options.entries, options.nodes)):
            for each, own in models.items():
                began, before = perf_counter(), processors()
                own.partial_fit(index, value)
                seconds, after = perf_counter() - began, processors()
                if number:  # the first million starts processes and compiles
                    used = {kind: after[kind] - before.get(kind, 0) for kind in after}
                    found.setdefault(each, []).append((seconds / len(value), used, len(value)))
                say(million=number, on=each[0], part=each[1], per_second=len(value) / seconds)
    alone = min(found["one process", 0])[0]
    for (on, part), times in found.items():
        best, n = min(times)[0], sum(n for _, _, n in times)
        used = {kind: 1e6 * sum(used.get(kind, 0) for _, used, _ in times) / n for kind in times[-1][1]}
        say(
            what="best", on=on, part=part, workers=workers if part else 1, per_second=1 / best,
            times_one_process=alone / best, processor_us_per_entry={k: round(v, 2) for k, v in used.items()},
            bytes_per_entry=bytes_sent(part, options.nodes) if part and on != "threads" else 0,
        )  # fmt: skip


def processors() -> dict[str, float]:
    """Seconds of processor time of this process and of those below it, by what they are."""
    parents, known, found = {}, {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(") ")[2].split()
            name = (folder / "cmdline").read_text().split("\0")[0]
        except OSError:  # it has just ended
            continue
        parents[int(folder.name)] = int(fields[1])
        known[int(folder.name)] = name, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    for process, (name, seconds) in known.items():
        above = process
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid():
            kind = "this process" if process == above else "Ray itself"
            kind = "workers" if "_Worker" in name else "shards" if "_Shards" in name else kind
            found[kind] = found.get(kind, 0.0) + seconds
    return found


def bytes_sent(part: int, nodes: int) -> float:
    """Per entry, by counting: what a worker gets and sends back for a part of the stream."""
    from spidertensor import SpiderRegressor
    from spidertensor.estimator.parameters import model_of
    from spidertensor.spider.likelihoods import GAUSSIAN

    params = SpiderRegressor(committee=1)._flat_params()
    (recipe,) = recipes_of(params, model_of(params, GAUSSIAN, 2))
    weights = 2 * 4 * recipe.network.n_weights
    row = [2 * 4 * (size + 1) for size in recipe.network.factor_sizes]  # and its log_noise
    index = next(stream(10**6, nodes)).index
    numbers = 3 * 8  # of a row: asked for, and sent back with how often it was used
    rows = sum(len(np.unique(index[:part, mode])) * (2 * row[mode] + numbers) for mode in range(2))
    entries = part * (2 * 8 + 8 + 4 * 8)  # index and value there, four numbers back
    return round((rows + 2 * weights + entries) / part, 1)


def phases(options: argparse.Namespace) -> None:
    """Processor time of each phase of a round, in one thread: what threads and processes have in common."""
    from spidertensor import SpiderRegressor
    from spidertensor.cluster import parts, shards
    from spidertensor.estimator.parameters import model_of
    from spidertensor.spider import sequential
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
        (sequential, "run_models", "learning"), (parts, "plan", "plan"), (shards.Shard, "fetch", "fetch"),
        (shards.Shard, "merge", "merge of rows"), (rounds, "merge_shared", "merge of weights"),
        (rounds, "_refined", "refine"), (rounds, "one_round", "all"),
    ):  # fmt: skip
        timed(where, name, shown)
    for part in options.parts:
        method = split(recipe, Rounds(options.workers_now, part))
        state = method.init(0)
        for number, batch in enumerate(stream(options.entries, options.nodes)):
            if number == 1:
                seconds.clear()
            state, _ = method.update(state, Batch(batch.index, Scaling.of(batch.value).scaled(batch.value)))
        n = options.entries - 10**6
        say(part=part, us_per_entry={name: round(1e6 * each / n, 3) for name, each in seconds.items()})


# --- shards ---


def shards(options: argparse.Namespace) -> None:
    """A model of many nodes: what its rows take in the shards, what the ids take, and saving and loading."""
    from spidertensor import SpiderRegressor
    from spidertensor.cluster import on_workers

    n = options.nodes
    model = SpiderRegressor(committee=1)
    rng = np.random.default_rng(0)
    folder = Path(tempfile.mkdtemp())
    with on_workers(model, workers=2, part=4096, n_shards=options.shards, address="local") as placed:
        began, before = perf_counter(), memory()
        for start in range(0, n, 10**6):
            users = np.arange(start, min(start + 10**6, n))
            index = np.stack([users, rng.integers(1000, size=len(users))], axis=1)
            model.partial_fit(index, rng.normal(size=len(users)))
            say(what="learned", nodes=start + len(users), seconds=perf_counter() - began)
        actors = placed._members[0].machines.actors
        held = placed.ray.get([actor.nbytes.remote() for actor in actors])
        resident = placed.ray.get([actor.resident.remote() for actor in actors])
        say(
            what="memory", nodes=n, shards=options.shards, rows_per_node=sum(held) / n,
            resident_per_node=sum(resident) / n, driver_per_node=(memory() - before) / n,
        )  # fmt: skip
        began = perf_counter()
        model.save(folder / "model.spider")
        size = (folder / "model.spider").stat().st_size
        say(what="saved", seconds=perf_counter() - began, bytes_per_node=size / n)
    del model
    began = perf_counter()
    model = SpiderRegressor.load(folder / "model.spider")
    say(what="loaded", seconds=perf_counter() - began)
    with on_workers(model, workers=2, n_shards=options.shards, address="local"):
        say(what="in shards again", seconds=perf_counter() - began)


def memory() -> int:
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["accuracy", "throughput", "phases", "shards"])
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
    parser.add_argument("--nodes", type=int, help="throughput: 20,000 per mode; shards: five million")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--hidden", nargs="*", type=int, default=[50, 50], help="throughput: of the network")
    parser.add_argument(
        "--on", nargs="+", default=["threads"], help="throughput: threads, or addresses of Ray such as local"
    )
    options = parser.parse_args(arguments)
    options.workers_now = options.workers[0] if options.workers != list(WORKERS) else 2
    if options.what in ("throughput", "phases"):
        options.entries, options.nodes = options.entries or 10**7, options.nodes or 20_000
    elif options.what == "shards":
        options.nodes = options.nodes or 5 * 10**6
    run = {"accuracy": accuracy, "throughput": throughput, "phases": phases, "shards": shards}
    run[options.what](options)


if __name__ == "__main__":
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # processes beside each other
        os.environ.setdefault(name, "1")
    main(sys.argv[1:])
