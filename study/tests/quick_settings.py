"""Settings with which slow methods are quick enough for tests, by name in the registry."""

from __future__ import annotations

from typing import Any

QUICK: dict[str, dict[str, Any]] = {
    "svb-dtf": {"epochs": 3},
    "svb-dtf-tanh": {"epochs": 3},
    "svb-gptf": {"inducing": 8, "epochs": 3},
    "ss-gptf": {"inducing": 8, "epochs": 3},
    "costco": {"channels": 4, "epochs": 2},
    "gptf": {"inducing": 8, "epochs": 3},
}
