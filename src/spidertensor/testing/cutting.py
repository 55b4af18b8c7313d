"""How a stream may be cut into calls of `update`: what each `Method.unit` promises."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Batch, Method
from spidertensor.testing.case import ENTRIES, Case, part, require, require_equal

CUTS = 15  # ways to cut the stream at random


def how_calls_are_cut_does_not_matter(case: Case) -> None:
    """Calls of any size, empty ones too, lead to the same state and report the same."""
    method, batch = case.build(), case.stream()
    whole, update = method.update(method.init(0), batch)
    rng = np.random.default_rng(0)
    for i in range(CUTS):
        places = sorted(rng.integers(0, ENTRIES + 1, size=rng.integers(13)).tolist())
        edges = [0, *places, *([places[-1]] if i % 2 and places else []), ENTRIES]  # twice: an empty call
        state, reported, rejected = _fed(method, batch, edges)
        require(case.bits(state) == case.bits(whole), f"The state differs when cut at {edges}.")
        require_equal(reported, np.array(update[:4]), f"updates, cut at {edges}")
        require(rejected == update.rejected, f"Update.rejected differs when cut at {edges}.")


def entry_by_entry_is_one_call(case: Case) -> None:
    """Learned one by one, entries lead to the same state, and update reports what predict said before.

    Only for nodes that predict could know, unless all nodes start equal.
    """
    method, batch = case.build(), case.stream()
    whole, _ = method.update(method.init(0), batch)
    state, rows_so_far = method.init(0), np.zeros(case.n_modes, np.int64)
    for i in range(ENTRIES):
        entry = part(batch, slice(i, i + 1))
        predicted = method.predict(state, entry.index)
        state, update = method.update(state, entry)
        known = (entry.index[0] < rows_so_far).all()
        if (known or case.traits.equal_starts) and not case.traits.forgets:
            require_equal(update[:3], predicted, f"update and predict of entry {i}")
        elif known:
            np.testing.assert_allclose(update.var, predicted.var, rtol=3e-3)
        rows_so_far = np.maximum(rows_so_far, entry.index[0] + 1)
    require(case.bits(state) == case.bits(whole), "The state differs.")


def cuts_between_two_batches_change_nothing(case: Case) -> None:
    """Cuts between two batches lead to the same state; a cut inside one does not."""
    size = case.batch_size
    method, batch = case.build(), case.stream()
    whole, reported, rejected = _fed(method, batch, [0, ENTRIES])
    for edges in ([0, size, ENTRIES], [0, 2 * size, 3 * size, ENTRIES]):
        state, reported_again, rejected_again = _fed(method, batch, edges)
        require(case.bits(state) == case.bits(whole), f"The state differs when cut at {edges}.")
        np.testing.assert_array_equal(reported_again, reported)
        require(rejected_again == rejected, f"Update.rejected differs when cut at {edges}.")
    inside, _, _ = _fed(method, batch, [0, size // 2, ENTRIES])
    require(
        case.bits(inside) != case.bits(whole),
        "A cut inside a batch changes nothing: the unit should be 'entry'.",
    )


def a_static_method_learns_in_one_call(case: Case) -> None:
    """Another update is a ValueError about a static method, or starts over: it never adds to the first."""
    method, state = case.learned()
    more = case.stream(40, seed=9)
    alone, _ = method.update(method.init(0), more)
    wanted = method.predict(alone, case.everything())
    try:
        state, _ = method.update(state, more)
    except ValueError as error:
        require("static" in str(error), f"The ValueError does not say that the method is static: {error}")
    else:
        require_equal(method.predict(state, case.everything()), wanted, "predictions of the second call")


def _fed(method: Method, batch: Batch, edges: list[int]) -> tuple[Any, NDArray[np.float64], int]:
    """The state after a stream cut at these places, the arrays of its updates, and how much was rejected."""
    state, pieces, rejected = method.init(0), [], 0
    for first, last in pairwise(edges):
        state, update = method.update(state, part(batch, slice(first, last)))
        pieces.append(update[:4])
        rejected += update.rejected
    return state, np.concatenate(pieces, axis=1), rejected
