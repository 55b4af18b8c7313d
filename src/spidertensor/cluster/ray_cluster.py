"""Whole members in processes of a Ray cluster. This is the only file that imports it.

A process holds what its member has learned since the last save. If it dies, that is lost: `Lost` is raised,
and learning can resume from the last file.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import ray
from ray._private import worker as ray_worker
from ray.exceptions import RayError, RayTaskError

from spidertensor.cluster.parts import Recipe
from spidertensor.cluster.whole import OutOfStep, WholeMember
from spidertensor.faults import Fault
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
    # Ray reports dead processes on standard output whatever the options, and results go there. `Lost` reports
    # them here.
    ray_worker._worker_logs_enabled = False
    try:
        if handler is not None and signal.getsignal(signal.SIGTERM) is not handler:
            signal.signal(signal.SIGTERM, handler)  # Ray's own would end the process without saving
        yield
    finally:
        ray.shutdown()
        ray_worker._worker_logs_enabled = True


def get(references: list[Any]) -> list[Any]:
    """The referenced objects; raises Lost if a process that held them or their source died."""
    try:
        return ray.get(references)
    except RayTaskError as error:
        if not isinstance(error.cause, RayError | OutOfStep):  # OutOfStep: the member went on without it
            raise
        raise _lost(error.cause) from None
    except RayError as error:
        raise _lost(error) from None


def _lost(error: BaseException) -> Lost:
    first = str(error).strip().splitlines()[0]
    reason = f"a process died with what its part of the model learned since the last save ({first})"
    return Lost(reason, kind="lost", remedy="load the model from its last file and continue from there")


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
