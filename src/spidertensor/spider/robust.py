"""Checks and constants that both engines share: mathematics.md sections 12 and 13."""

from __future__ import annotations

import math
from typing import Any

# Guards of section 12: without any one of them some streams break a model.
LARGEST_SQUARE = 16.0  # bound of a squared residual in predictive variances, as a multiple of their mean
LEAST_SQUARE = 1e-6  # bound of that mean
LARGEST_LOG_NOISE = 6.0  # bound of |log_noise|
LARGEST_STEP = 1.0  # of a log noise in a batch or a weighted entry; a single entry always moves it by less
SQUARES_RUNNING = 10_000.0  # entries over which the mean of the squares runs
LARGEST_LEVEL_NOISE = 1.0  # bound of the part that depends on the predicted mean
LEVEL_MEMORY = 10_000.0  # entries of a knot over which noise by level forgets
# Section 23: the knots of noise by level, in the model's units
LOWEST_KNOT, KNOT_STEP = -3.0, 0.75
LEAST_LOG_NOISE_MEMORY = 1000  # entries; with fewer the noise jitters between half and twice the truth


def check_robust(clip: Any, node_noise: bool, memory: Any, noise_memory: Any) -> None:
    if clip is not None and not 0 < clip < math.inf:
        raise ValueError(f"clip must be a positive number of standard deviations, or None, got {clip}")
    if memory is not None and not 1 <= memory < 1e6:  # beyond, 1 + 1/memory would round to 1 in float32
        raise ValueError(f"memory must be from 1 to a million entries, or None, got {memory}")
    if node_noise and noise_memory is None:
        raise ValueError("node_noise needs a noise that forgets: set noise_memory, or node_noise=False")


def widening(memory: float | None) -> float:
    """Factor by which an entry widens a variance (section 13)."""
    return 1.0 if memory is None else 1.0 + 1.0 / memory


def log_noise_widening(memory: float | None) -> float:
    return widening(None if memory is None else max(memory, LEAST_LOG_NOISE_MEMORY))
