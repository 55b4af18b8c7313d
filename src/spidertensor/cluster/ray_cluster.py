"""Workers and shards on Ray. This is the only file that imports it.

Workers keep nothing: if one dies, Ray restarts it, here or elsewhere, and repeats its part with the same
result. Shards, and members that are learned whole, hold what was learned since the last save. If one of them
dies, that is lost: `Lost` is raised, and learning can resume from the last file.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import ray
from numpy.typing import NDArray
from ray._private import worker as ray_worker
from ray.exceptions import RayError, RayTaskError

from spidertensor.cluster import shards
from spidertensor.cluster.merge import copied
from spidertensor.cluster.parts import Recipe, WorkerResult, learn_part
from spidertensor.cluster.shards import Numbers, OutOfStep, Rows, Shard, Touched
from spidertensor.cluster.whole import WholeMember
from spidertensor.faults import Fault
from spidertensor.method import Batch
from spidertensor.spider.posterior import State

T = TypeVar("T")


class Lost(Fault, RuntimeError):
    """A process that held a part of the model died; fields: see Fault. The last file is unchanged."""


@contextmanager
def started(address: str | None, cores: int) -> Iterator[None]:
    """Inside, Ray runs: the cluster at this address, or a local one with this many cores.

    If the program has started Ray itself, that is used and kept.
    """
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
    # The default of a future version; without it Ray warns of the change.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    handler = signal.getsignal(signal.SIGTERM)
    how: dict[str, Any] = {"address": address}
    if address is None:
        # "local": not the cluster that RAY_ADDRESS may name
        how = {"address": "local", "num_cpus": cores, "include_dashboard": False}
    try:
        ray.init(**how, configure_logging=False, log_to_driver=False)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        reason = f"no Ray cluster at {address}: {error}" if address else f"Ray failed to start: {error}"
        raise Lost(reason, kind="no cluster") from error
    # Ray reports dead workers on standard output whatever the options, and results go there. A worker is
    # restarted automatically; `Lost` reports a dead shard.
    ray_worker._worker_logs_enabled = False
    try:
        if handler is not None and signal.getsignal(signal.SIGTERM) is not handler:
            signal.signal(signal.SIGTERM, handler)  # Ray's own would end the process without saving
        yield
    finally:
        ray.shutdown()
        ray_worker._worker_logs_enabled = True


def machines_in_cluster() -> int:
    return sum(bool(node["Alive"]) for node in ray.nodes())


def get(references: list[Any]) -> list[Any]:
    """The referenced objects; raises Lost if a process that held them or their source died."""
    try:
        return ray.get(references)
    except RayTaskError as error:
        if isinstance(error.cause, Lost):  # a worker did not find its shard
            raise error.cause from None
        if not isinstance(error.cause, RayError | OutOfStep):  # OutOfStep: the shard went on without it
            raise
        raise _lost(error.cause) from None
    except RayError as error:
        raise _lost(error) from None


def _lost(error: BaseException) -> Lost:
    first = str(error).strip().splitlines()[0]
    reason = f"a process died with what its part of the model learned since the last save ({first})"
    return Lost(reason, kind="lost", remedy="load the model from its last file and continue from there")


class _Worker:
    """Learns parts of rounds, and keeps nothing."""

    def learn(
        self, of: tuple[list[Any], int, Recipe], batch: Batch, start: int, end: int, shared: State
    ) -> tuple[Any, ...]:
        shards, member, recipe = of

        def fetch(rows: list[Numbers]) -> list[Rows]:
            return _fetch(shards, member, int(shared.counts.entries), shared.counts.nodes, rows)

        part = Batch(batch.index[start:end], batch.value[start:end])
        learned, touched = learn_part(recipe, shared, part, len(shards), fetch)
        return learned, *touched


def _fetch(
    shards: list[Any], member: int, at: int, nodes: NDArray[np.int64], rows: list[Numbers]
) -> list[Rows]:
    asked = zip(shards, rows, strict=True)
    return get([shard.fetch.remote(member, at, nodes, some) for shard, some in asked])


class _Shards:
    """One shard of every member."""

    def __init__(self) -> None:
        self.shards: dict[int, Shard] = {}

    def open(self, member: int, recipe: Recipe, seed: int, rows: Rows, **place: Any) -> None:
        rows = copied(rows)  # objects passed by Ray are read-only
        self.shards[member] = Shard(recipe.network, recipe.prior, seed, rows, **place)

    def fetch(self, member: int, at: int, nodes: NDArray[np.int64], rows: Numbers) -> Rows:
        return self.shards[member].fetch(nodes, rows, at)

    def merge(self, member: int, about: dict[str, Any], *touched: Touched) -> int:
        return self.shards[member].merge(touched, **about)

    def all_rows(self, member: int, nodes: NDArray[np.int64], at: int) -> Rows:
        return self.shards[member].all_rows(nodes, at)

    def nbytes(self) -> int:
        return sum(shard.nbytes for shard in self.shards.values())

    def resident(self) -> int:
        """Resident memory of this process in bytes."""
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def process(self) -> int:
        return os.getpid()


class ShardActors:
    """The n processes that hold the rows of all members."""

    def __init__(self, n: int) -> None:
        actor: Any = ray.remote(num_cpus=0)(_Shards)  # mostly waiting
        self.actors: list[Any] = [actor.options(scheduling_strategy="SPREAD").remote() for _ in range(n)]

    def open(self, member: int, recipe: Recipe, state: State, workers: int) -> OnRay:
        """Spread the rows of a state over the shards."""
        of, at, seed = len(self.actors), int(state.counts.entries), int(state.seed)
        opened = []
        for number, actor in enumerate(self.actors):
            rows = shards.cut(state, number, of)
            opened.append(actor.open.remote(member, recipe, seed, rows, number=number, of=of, at=at))
        get(opened)
        return OnRay(self.actors, member, recipe, workers)


class OnRay:
    """`rounds.Machines` with actors for the shards and workers of one member.

    Workers exchange rows with the shards directly; this process sees only weights and predictions.
    """

    def __init__(self, actors: list[Any], member: int, recipe: Recipe, workers: int) -> None:
        self.actors, self.member, self.n_shards = actors, member, len(actors)
        self.of = ray.put((actors, member, recipe))
        # Unlimited retries: a part always has the same result, and a machine that kills every process is for
        # the user to fix. An actor needs a core only when it starts, so there may be more workers than cores.
        actor: Any = ray.remote(max_restarts=-1, max_task_retries=-1)(_Worker)
        self.workers = [actor.options(scheduling_strategy="SPREAD").remote() for _ in range(workers)]

    def put(self, batch: Batch) -> Any:
        return ray.put(batch)

    def learn(
        self, batch: Any, ends: NDArray[np.int64], shared: State
    ) -> tuple[list[WorkerResult], list[list[Any]]]:
        there, parts = ray.put(shared), pairwise(ends.tolist())
        sent = [
            worker.learn.options(num_returns=1 + self.n_shards).remote(self.of, batch, start, end, there)
            for worker, (start, end) in zip(self.workers, parts, strict=False)
        ]
        return get([learned for learned, *_ in sent]), [touched for _, *touched in sent]

    def merge(self, touched: list[list[Any]], about: dict[str, Any]) -> int:
        asked = zip(self.actors, zip(*touched, strict=True), strict=True)
        return sum(get([actor.merge.remote(self.member, about, *own) for actor, own in asked]))

    def fetch(self, at: int, nodes: NDArray[np.int64], rows: list[Numbers]) -> list[Rows]:
        return _fetch(self.actors, self.member, at, nodes, rows)

    def all_rows(self, nodes: NDArray[np.int64], at: int) -> list[Rows]:
        return get([actor.all_rows.remote(self.member, nodes, at) for actor in self.actors])


class MemberActor:
    """A member that is learned whole, in its own process."""

    def __init__(self, recipe: Recipe, state: State) -> None:
        actor = ray.remote(num_cpus=1)(WholeMember)
        self.actor = actor.options(scheduling_strategy="SPREAD").remote(recipe, state)

    def call(self, name: str, *args: Any) -> Any:
        return get([getattr(self.actor, name).remote(*args)])[0]


def run_all(
    runs: Iterable[Any], run: Callable[[Any], T], died: Callable[[Any], T], at_once: int | None = None
) -> Iterator[T]:
    """Yield run(each) as they finish, or died(each) if its process died.

    at_once: most runs at a time; None: as many as the cluster has cores
    """
    waiting, flying = deque(runs), {}
    limit = at_once or max(int(ray.cluster_resources().get("CPU", 1)), 1)
    task = ray.remote(num_cpus=1, max_retries=0)(run)
    try:
        while waiting or flying:
            while waiting and len(flying) < limit:
                flying[task.remote(waiting[0])] = waiting[0]
                waiting.popleft()
            for reference in ray.wait(list(flying))[0]:
                try:
                    result = ray.get(reference)
                except RayTaskError:
                    raise
                except RayError:
                    result = died(flying[reference])
                del flying[reference]
                yield result
    finally:
        for reference in flying:
            ray.cancel(reference, force=True)
