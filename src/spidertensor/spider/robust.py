"""What both engines share of mathematics.md sections 12 and 13: the settings' checks, and the constants."""

from __future__ import annotations

import math
from typing import Any

# Guards of section 12, each found by breaking a model without it.
LARGEST_SQUARE = 16.0  # of a squared residual in units of its noise, however the residual was clipped
LARGEST_LOG_NOISE = 6.0
LOG_NOISE_RUNNING = 1000.0  # entries over which a mode's mean of log_noise runs
LEAST_LOG_NOISE_MEMORY = 1000  # with a shorter one the noise jitters between half and twice the truth


def check_robust(clip: Any, node_noise: bool, memory: Any, noise_memory: Any) -> None:
    if clip is not None and not 0 < clip < math.inf:
        raise ValueError(f"clip must be a positive number of standard deviations, or None, got {clip}")
    if memory is not None and not 1 <= memory < 1e6:  # beyond, 1 + 1/memory would round to 1 in float32
        raise ValueError(f"memory counts entries, from 1 to a million, or None, got {memory}")
    if node_noise and noise_memory is None:
        raise ValueError("node_noise needs a noise that forgets: give noise_memory, or node_noise=False")


def widening(memory: float | None) -> float:
    """By what an entry widens a variance (section 13)."""
    return 1.0 if memory is None else 1.0 + 1.0 / memory


def log_noise_widening(memory: float | None) -> float:
    return widening(None if memory is None else max(memory, LEAST_LOG_NOISE_MEMORY))
