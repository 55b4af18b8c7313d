"""Workers and shards on Ray. This is the only file that imports it.

Workers keep nothing: if one dies, Ray starts it again, here or elsewhere, and repeats its part, with the same
result. Shards, and members that are learned whole, have what was learned since the last save. If one of them
dies that is gone, and `Lost` says so; whoever learns goes on from the last file.
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
from spidertensor.cluster.parts import Learned, Recipe, learn_part
from spidertensor.cluster.shards import Numbers, OutOfStep, Rows, Shard, Touched
from spidertensor.cluster.whole import WholeMember
from spidertensor.faults import Fault
from spidertensor.method import Batch
from spidertensor.spider.posterior import State

T = TypeVar("T")


class Lost(Fault, RuntimeError):
    """A process with a part of the model died; see Fault for its parts. The last file is as it was."""


@contextmanager
def started(address: str | None, cores: int) -> Iterator[None]:
    """Inside, Ray runs: the cluster at this address, or one of this process with so many cores.

    A program that has started Ray itself keeps it.
    """
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anybody
    # Otherwise Ray warns that a future version will leave this variable alone, as is done here.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    handler = signal.getsignal(signal.SIGTERM)
    how: dict[str, Any] = {"address": address}
    if address is None:
        # "local": not the cluster that RAY_ADDRESS may name
        how = {"address": "local", "num_cpus": cores, "include_dashboard": False}
    try:
        ray.init(**how, configure_logging=False, log_to_driver=False)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        reason = f"no Ray cluster at {address}: {error}" if address else f"Ray does not start: {error}"
        raise Lost(reason, kind="no cluster") from error
    # Ray tells of dead workers on standard output, whatever it is asked, and that is where results go. A
    # worker is started again without anybody's help; of a shard, `Lost` tells.
    ray_worker._worker_logs_enabled = False
    try:
        if handler is not None and signal.getsignal(signal.SIGTERM) is not handler:
            signal.signal(signal.SIGTERM, handler)  # Ray's own would end the process without a save
        yield
    finally:
        ray.shutdown()
        ray_worker._worker_logs_enabled = True


def machines_in_cluster() -> int:
    return sum(bool(node["Alive"]) for node in ray.nodes())


def get(references: list[Any]) -> list[Any]:
    """The things themselves; Lost if a process that had them, or their source, died."""
    try:
        return ray.get(references)
    except RayTaskError as error:
        if isinstance(error.cause, Lost):  # a worker has not found its shard
            raise error.cause from None
        if not isinstance(error.cause, RayError | OutOfStep):  # or found that it has gone on without it
            raise
        raise _lost(error.cause) from None
    except RayError as error:
        raise _lost(error) from None


def _lost(error: BaseException) -> Lost:
    first = str(error).strip().splitlines()[0]
    reason = f"a process that has a part of the model died, and what it learned since the last save ({first})"
    return Lost(reason, kind="lost", remedy="load the model from its last file and learn on from there")


class _Worker:
    """Learns parts of rounds, and keeps nothing of them."""

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
        rows = copied(rows)  # what came by Ray is read-only
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
        """Bytes of this process that are in memory."""
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def process(self) -> int:
        return os.getpid()


class ShardActors:
    """So many processes with the rows of all members."""

    def __init__(self, n: int) -> None:
        actor: Any = ray.remote(num_cpus=0)(_Shards)  # they wait most of the time
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
    """`rounds.Machines`: the shards and the workers of one member are actors.

    A worker gets rows from the shards and sends them back there, past this process, which sees weights and
    what was predicted.
    """

    def __init__(self, actors: list[Any], member: int, recipe: Recipe, workers: int) -> None:
        self.actors, self.member, self.n_shards = actors, member, len(actors)
        self.of = ray.put((actors, member, recipe))
        # Repeated without end: a part always has the same result, and a machine that kills every process is
        # the user's to mend. A core is asked for only when one starts, so there may be more than cores.
        actor: Any = ray.remote(max_restarts=-1, max_task_retries=-1)(_Worker)
        self.workers = [actor.options(scheduling_strategy="SPREAD").remote() for _ in range(workers)]

    def put(self, batch: Batch) -> Any:
        return ray.put(batch)

    def learn(
        self, batch: Any, ends: NDArray[np.int64], shared: State
    ) -> tuple[list[Learned], list[list[Any]]]:
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
    """A member that is learned whole, by a process of its own."""

    def __init__(self, recipe: Recipe, state: State) -> None:
        actor = ray.remote(num_cpus=1)(WholeMember)
        self.actor = actor.options(scheduling_strategy="SPREAD").remote(recipe, state)

    def call(self, name: str, *args: Any) -> Any:
        return get([getattr(self.actor, name).remote(*args)])[0]


def run_all(
    runs: Iterable[Any], run: Callable[[Any], T], died: Callable[[Any], T], at_once: int | None = None
) -> Iterator[T]:
    """run(each), as they end; died(each) where the process of one died.

    at_once: at most so many; None: as many as the cluster has cores
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
