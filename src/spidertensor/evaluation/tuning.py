"""Try other settings: a change is kept if entries held back are predicted better, by more than chance.

Greedy: one setting after the other, each from small to large changes, on top of what was kept so far. All
predict the same entries, so they are compared in pairs: with d the difference of their log densities,

    gain = mean(d),  error = std(d) / sqrt(n),  kept if gain > 2 error
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.evaluation.dataset import take
from spidertensor.evaluation.metrics import METRICS
from spidertensor.evaluation.protocols import known
from spidertensor.method import Batch, Method
from spidertensor.spider.likelihoods import Likelihood

Settings = Mapping[str, Any]
ERRORS = 2.0  # how many standard errors a gain must have
COMPILED_ENTRIES = 256  # that are learned once before the first trial, so that no trial compiles

# A setting and values further and further from its default. What is first costs least to learn.
LADDERS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("rank", (4, 2)),
    ("rank", (16, 32)),
    ("memory", (1000.0, 300.0)),
    ("hidden", ((100, 100),)),
    ("clip", (None,)),
)
MOST_TRIALS = 1 + sum(len(values) for _, values in LADDERS)


class Trial(NamedTuple):
    """Settings that were tried.

    change:      what differs from the best so far
    score:       of the entries held back, by the likelihood's metric
    log_density: of these entries, mean
    gain, error: in log density per entry over the best so far, and its standard error; None for the first
    """

    change: dict[str, Any]
    score: float
    log_density: float
    gain: float | None
    error: float | None
    kept: bool
    seconds: float


def trials(
    method_of: Callable[[Settings], Method], train: Batch, test: Batch, likelihood: Likelihood, seed: int
) -> Iterator[Trial]:
    """The defaults, then each change as it is tried. method_of: the method with these settings"""
    defaults, settings = method_of({}), {}
    few = take(train, np.arange(min(len(train.value), COMPILED_ENTRIES)))
    defaults.update(defaults.init(seed), few)  # compile; the state is discarded
    best = _log_densities(defaults, train, test, likelihood, seed)
    yield Trial({}, best.score, float(best.each.mean()), None, None, True, best.seconds)
    for name, values in LADDERS:
        if name in settings or (name == "clip" and not likelihood.scaled):
            continue
        for value in values:
            found = _log_densities(method_of({**settings, name: value}), train, test, likelihood, seed)
            gain = found.each - best.each
            error = float(gain.std(ddof=1)) / math.sqrt(len(gain))
            kept = bool(gain.mean() > ERRORS * error)
            mean = float(found.each.mean())
            yield Trial({name: value}, found.score, mean, float(gain.mean()), error, kept, found.seconds)
            if not kept:
                break
            best, settings = found, {**settings, name: value}


class _Found(NamedTuple):
    each: NDArray[np.float64]  # log density of each entry
    score: float
    seconds: float


def _log_densities(method: Method, train: Batch, test: Batch, likelihood: Likelihood, seed: int) -> _Found:
    started = time.perf_counter()
    state, _ = method.update(method.init(seed), train)
    prediction, likelihood = method.predict(state, test.index), known(method, state, likelihood)
    each = likelihood.log_evidence(test.value, prediction.mean, prediction.var, prediction.noise)
    score = METRICS[likelihood.metric].of(test.value, prediction, likelihood)
    return _Found(each, score, time.perf_counter() - started)
