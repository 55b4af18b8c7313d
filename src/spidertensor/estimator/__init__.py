"""The estimators, the only stateful classes: raw ids, column names, the scale of the values, files."""

from spidertensor.estimator.classifier import SpiderClassifier
from spidertensor.estimator.groups import Inference, Prior
from spidertensor.estimator.loading import load, look
from spidertensor.estimator.regressor import SpiderRegressor

__all__ = ["Inference", "Prior", "SpiderClassifier", "SpiderRegressor", "load", "look"]
