"""Streams whose values change their level or scale on the way."""

from __future__ import annotations

from functools import cache

import numpy as np

import naive
from cases import Case, nodes_of, stream, to_oracle
from naive import as_float64
from spidertensor.method import Batch
from spidertensor.spider import posterior
from spidertensor.spider.follow import WINDOW_ENTRIES
from spidertensor.spider.posterior import Prior

# Slab only: refining is the identity then, and its float32 logarithm is not in the way.
PRIOR = Prior(
    slab_var=0.5, rho0=1.0, factor_var=0.875, bias_var=0.0625, multilinear_var=0.125, multilinear_start=0.25
)
CASE = Case((3, 2), (5,), "relu", "gaussian", False, True, 3, 1e4, False, 4.0, True, nodes=(90, 80, 70))
CASES = {
    "hybrid": CASE,
    "three modes": CASE._replace(ranks=(2, 3, 2)),
    "product": CASE._replace(ranks=(2, 3, 2), product=True),
    "linear, one noise": CASE._replace(hidden=(), node_noise=False, bias=False),
    "memory": CASE._replace(memory=50.0),
}
CHANGES = {
    "level": lambda value, at: value + 1000 * (np.arange(len(value)) >= at),
    "scale": lambda value, at: value * np.where(np.arange(len(value)) >= at, 1000, 1),
    "smaller, elsewhere": lambda value, at: np.where(np.arange(len(value)) >= at, 900 + value / 500, value),
    "unrelated": lambda value, at: np.where(np.arange(len(value)) >= at, 300 * np.roll(value, 7), value),
    "first equal": lambda value, at: np.where(np.arange(len(value)) >= at, value, 0.25),
}


def begin(case: Case, change: str = "") -> posterior.State:
    """A state that is sure of its noise, as late in a stream: an unsure one just takes in the change."""
    state = as_float64(posterior.init(case.network, PRIOR, 3, node_noise=case.node_noise))
    noise = 1e-6 if change == "first equal" else 0.1
    state.posterior.noise.shape[()], state.posterior.noise.rate[()] = 5000.0, 5000.0 * noise
    return state


def case_of(name: str, change: str) -> Case:
    """What is constant is soon known where there are few nodes."""
    return CASES[name]._replace(nodes=(6, 5)) if change == "first equal" else CASES[name]


def changed(case: Case, change: str, n: int = 900, at: int = 260) -> Batch:
    batch = stream(case, n)
    return Batch(batch.index, CHANGES[change](batch.value, at))


def grown(case: Case, state: posterior.State) -> posterior.State:
    """With rows for all nodes."""
    return posterior.grow(state, case.network, PRIOR, nodes_of(case))


@cache
def by_the_oracle(name: str, change: str) -> tuple[dict, np.ndarray]:
    """The state after the changed stream, and what was said on the way; both engines are compared with it."""
    case = case_of(name, change)
    batch, fresh = changed(case, change), posterior.init(case.network, PRIOR, 3, node_noise=case.node_noise)
    oracle = to_oracle(grown(case, begin(case, change)))
    oracle |= {"fresh": to_oracle(grown(case, as_float64(fresh)))}
    return naive.learn(case.oracle(WINDOW_ENTRIES, PRIOR), oracle, batch.index, batch.value)
