"""Streaming Bayesian deep tensor factorization (SPIDER).

Importing the package is fast: each name is loaded on first use.

>>> from spidertensor import SpiderRegressor
>>> model = SpiderRegressor(scaling=(3.0, 1.0))
>>> update = model.learn([("anna", "Alien"), ("ben", "Alien"), ("anna", "Brazil")], [5.0, 4.0, 2.0])
>>> mean, std = model.predict([("ben", "Brazil"), ("carl", "Alien")], return_std=True)
>>> model.n_entries_, model.n_nodes_, mean.shape
(3, (2, 2), (2,))
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spidertensor.checkpoint import CheckpointError
    from spidertensor.estimator import Inference, Prior, SpiderClassifier, SpiderRegressor, load
    from spidertensor.estimator.columns import Calendar, Context, Cross, Many, Number, Recent, Value
    from spidertensor.estimator.explain import Explanation
    from spidertensor.estimator.forecast import Forecast
    from spidertensor.estimator.similar import Similar
    from spidertensor.faults import EntryError, SpiderWarning
    from spidertensor.method import Batch, Method, Prediction, Update
    from spidertensor.spider.custom_network import CustomNetwork

# Log messages appear only if the application configures logging (docs/your-data.md).
logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = "0.3.0"
__all__ = [
    "Batch",
    "Calendar",
    "CheckpointError",
    "Context",
    "Cross",
    "CustomNetwork",
    "EntryError",
    "Explanation",
    "Forecast",
    "Inference",
    "Many",
    "Method",
    "Number",
    "Prediction",
    "Prior",
    "Recent",
    "Similar",
    "SpiderClassifier",
    "SpiderRegressor",
    "SpiderWarning",
    "Update",
    "Value",
    "load",
]

_HOME = {
    "Batch": "method",
    "Calendar": "estimator.columns",
    "CheckpointError": "checkpoint",
    "Context": "estimator.columns",
    "Cross": "estimator.columns",
    "CustomNetwork": "spider.custom_network",
    "EntryError": "faults",
    "Explanation": "estimator.explain",
    "Forecast": "estimator.forecast",
    "Inference": "estimator",
    "Many": "estimator.columns",
    "Method": "method",
    "Number": "estimator.columns",
    "Prediction": "method",
    "Prior": "estimator",
    "Recent": "estimator.columns",
    "Similar": "estimator.similar",
    "SpiderClassifier": "estimator",
    "SpiderRegressor": "estimator",
    "SpiderWarning": "faults",
    "Update": "method",
    "Value": "estimator.columns",
    "load": "estimator",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"spidertensor.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
