"""What states promise: repeatable, apart from each other, saved and restored, of constant size."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from typing import Any

import numpy as np

from spidertensor import checkpoint
from spidertensor.method import Batch, Method
from spidertensor.testing.case import Case, require, require_equal
from spidertensor.testing.states import members_of, with_members


def same_seed_gives_the_same_state(case: Case) -> None:
    """Two methods built apart, same seed, same stream: same bits."""
    (first, a), (second, b) = case.learned(seed=4), case.learned(seed=4)
    require(case.bits(first.init(4)) == case.bits(second.init(4)), "Their fresh states differ.")
    require(case.bits(a) == case.bits(b), "Their learned states differ.")


def another_seed_gives_another_state(case: Case) -> None:
    """States of two seeds differ in what they drew, not only in the seed they keep."""
    (_, a), (_, b) = case.learned(seed=4), case.learned(seed=5)
    require(case.bits(_without_seed(a)) != case.bits(_without_seed(b)), "They are equal.")


def _without_seed(state: Any) -> Any:
    if members_of(state):
        return with_members(
            state, [each._replace(seed=np.zeros_like(each.seed)) for each in members_of(state)]
        )
    return state._replace(seed=np.zeros_like(state.seed)) if hasattr(state, "seed") else state


def two_states_of_one_method_do_not_touch(case: Case) -> None:
    """A Method holds no state of its own: two models from one Method, fed in turn, are two models."""
    method, batch = case.build(), case.stream()
    alone, _ = method.update(method.init(1), batch)
    wanted = case.bits(alone)
    a, b = method.init(1), method.init(2)
    b, _ = method.update(b, case.stream(33, seed=8))
    a, _ = method.update(a, batch)
    if case.unit != "all":
        b, _ = method.update(b, batch)
    require(case.bits(a) == wanted, "One has changed the other.")


def a_restored_state_goes_on_as_if_never_stopped(case: Case) -> None:
    """Every array of a state, restored into a method built anew: it predicts and learns the same bits."""
    method, state = case.learned()
    arrays = {name: leaf.copy() for name, leaf in checkpoint.flatten(state).items()}
    again = case.build()
    restored = checkpoint.restore(again.init(5), arrays)
    require(case.bits(restored) == case.bits(state), "The restored state differs.")
    index = case.everything()
    require_equal(again.predict(restored, index), method.predict(state, index), "predictions")
    if case.unit != "all":
        more = case.stream(40, seed=9)
        (a, update), (b, update_again) = method.update(state, more), again.update(restored, more)
        require(case.bits(a) == case.bits(b), "The states differ after more entries.")
        require_equal(update_again[:4], update[:4], "updates")


def memory_is_constant_on_a_long_stream(case: Case) -> None:
    """Many more calls over the same nodes leave at most a tenth of the entries' size behind, or 100 kB.

    Numba remembers the types of its arguments, and Python keeps freed tuples for later.
    """
    method, state = case.learned()
    calls = case.traits.calls
    batches = [case.stream(256 if calls < 100 else 512, seed) for seed in range(4)]

    def feed(state: Any, calls: int) -> Any:
        for i in range(calls):
            state, _ = method.update(state, batches[i % 4])
            method.predict(state, batches[i % 4].index)
        gc.collect()
        return state

    one_batch = batches[0].index.nbytes + batches[0].value.nbytes
    most = max(calls * one_batch / 10, 100_000)
    tracemalloc.start()
    try:
        state, left = feed(state, calls // 4), 0
        for _ in range(2):  # what a library caches once is gone from the second stretch, a leak is not
            early = tracemalloc.get_traced_memory()[0]
            state = feed(state, calls)
            left = tracemalloc.get_traced_memory()[0] - early
            if left < most:
                break
    finally:
        tracemalloc.stop()
    require(left < most, f"{calls} calls leave {left:,} bytes behind.")


def a_second_batch_does_not_recompile(case: Case) -> None:
    """Neither another number of entries, nor more nodes, nor other values compile a function again."""
    method, state = case.learned()
    method.predict(state, case.everything())
    before = compilations(method)
    for n in (1, 7, 100):
        state, _ = method.update(state, case.stream(n, seed=n))
        method.predict(state, case.everything()[:n])
    far = 10 * np.arange(2, case.n_modes + 2)[None]
    state, _ = method.update(state, Batch(far, np.array([0.0])))
    more = compilations(method) - before
    require(more == 0, f"{more} functions were compiled again.")


def compilations(method: Method) -> int:
    """Specialisations of the functions that numba or JAX compiles, here and in the package of the method."""
    packages = ("spidertensor", getattr(method.update, "__module__", "spidertensor").split(".")[0])
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(packages)]
    values = {id(value): value for module in modules for value in vars(module).values()}.values()
    by_numba = sum(len(each.signatures) for each in values if hasattr(each, "nopython_signatures"))
    return by_numba + sum(each._cache_size() for each in values if hasattr(each, "_cache_size"))
