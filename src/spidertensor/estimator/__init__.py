"""The estimators, the only stateful classes: raw ids, names of columns, the scale of the values, files."""

from spidertensor.estimator.base import SpiderClassifier, SpiderRegressor, load, look

__all__ = ["SpiderClassifier", "SpiderRegressor", "load", "look"]
