"""One entry through all members of a committee: numbers in, numbers out.

To make the arrays of a call takes longer than to learn an entry, so they are kept from entry to entry. The
kernels are those of `committee`, so everything is the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spidertensor.spider.likelihoods import Likelihood
from spidertensor.spider.sequential import run_models
from spidertensor.spider.stacking import CommitteeState, conclude, mass_of
from spidertensor.spider.together import Together


class Single:
    """Of one state, into which it learns in place."""

    def __init__(self, state: CommitteeState, ready: Together, likelihood: Likelihood, clip: float) -> None:
        members = len(state.members)
        self._ready, self._mix = ready, likelihood.mix
        self._entries, self._of_members = state.counts.entries, state.members[0].counts.entries
        self._index, self._value = np.zeros((1, ready.n_modes), np.int64), np.zeros(1)
        self._parts, self._before, self._told = np.zeros((members, 4, 1)), np.zeros((members, 1)), np.zeros(6)
        self._out = self._told[:, None]
        mass = mass_of(state, likelihood)
        self._calibrated, self._weights = len(mass) > 0, state.weights[:, None]
        self._concluding = (
            *(state.weights, tuple(state.counts), mass),
            *(self._parts, self._value, clip, self._before, self._out),
        )

    def learn(
        self, nodes: Sequence[int], value: float
    ) -> tuple[float, float, float, float, int, int, int, float | None] | None:
        """The numbers of an Update, in its order. None, and nothing was learned, where `together.learn` gives
        None or members are out of step: then `Method.update` knows what to do."""
        ready, entries = self._ready, self._entries.item()
        if (entries + 1) % ready.refine_every == 0 or self._of_members.item() != entries:
            return None
        with ready.busy:
            for mode, node in enumerate(nodes):
                self._index[0, mode] = node
            self._value[0] = value
            try:
                stopped, rejected = run_models(
                    True, 0, self._index, self._value, ready.records, ready.like, self._parts
                )
                if stopped < 0:
                    return None
                refused, clipped = conclude(*self._concluding)
            except BaseException:  # an interrupt between the two: see `committee`
                if self._of_members.item() != self._entries.item():
                    conclude(*self._concluding)
                raise
            if not self._calibrated:
                self._mix(self._before, self._parts, self._out)
            mean, var, noise, log_evidence, below, _ = self._told.tolist()
        return mean, var, noise, log_evidence, rejected, refused, clipped, below if self._calibrated else None

    def predict(self, nodes: Sequence[int]) -> tuple[float, float, float]:
        """mean, var and noise, as in a Prediction."""
        ready = self._ready
        with ready.busy:
            for mode, node in enumerate(nodes):
                self._index[0, mode] = node
            run_models(False, 0, self._index, self._value, ready.records, ready.like, self._parts)
            self._mix(self._weights, self._parts, self._out)
            mean, var, noise, *_ = self._told.tolist()
        return mean, var, noise
