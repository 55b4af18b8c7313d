"""A member of a committee that is learned whole, in its own process.

Members are independent, so results are the same as on one machine: each runs the sequential engine, and the
committee stacks their predictions in the order of the entries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.cluster.merge import copied
from spidertensor.cluster.parts import Recipe, whole_engine
from spidertensor.method import Batch, Prediction, Update
from spidertensor.spider.posterior import Gaussian, State


class OutOfStep(RuntimeError):
    """A request does not match the entries learned so far. No call is lost or counted twice."""


class WholeMember:
    """A member's state and its engine."""

    def __init__(self, recipe: Recipe, state: State) -> None:
        self.method, self.whole = whole_engine(recipe), copied(state)
        self.last: Any = None

    def update(self, start: int, batch: Batch) -> tuple[State, Update]:
        """Learn the entries after the first `start`, once: repeating the call returns the same answer.

        Returns the state without its rows, and the Update.
        """
        at = int(self.whole.counts.entries)
        if self.last is not None and at == start + len(batch.value):
            return self.last
        if at != start:
            raise OutOfStep(f"a member that has learned {at} entries received those after {start}")
        self.whole, update = self.method.update(self.whole, batch)
        self.last = copied(without_rows(self.whole)), update
        return self.last

    def predict(self, index: NDArray[np.integer]) -> Prediction:
        return self.method.predict(self.whole, index)

    def state(self, at: int) -> State:
        """The member's state. at: number of entries it must have learned."""
        if int(self.whole.counts.entries) != at:
            known = int(self.whole.counts.entries)
            raise OutOfStep(f"a member has learned {known} entries, but the rest of the model {at}")
        return self.whole


def without_rows(state: State) -> State:
    """The state without the rows of its nodes."""
    factors, log_noise = (
        tuple(Gaussian(*(part[:0].copy() for part in each)) for each in modes)
        for modes in (state.posterior.factors, state.posterior.log_noise)
    )
    return state._replace(posterior=state.posterior._replace(factors=factors, log_noise=log_noise))
