"""Load a model file, whichever estimator saved it."""

from __future__ import annotations

import os

from spidertensor import checkpoint
from spidertensor.checkpoint import CheckpointError
from spidertensor.estimator import fitted_file
from spidertensor.estimator.classifier import SpiderClassifier
from spidertensor.estimator.regressor import SpiderRegressor
from spidertensor.spider.custom_network import CustomNetwork

Estimator = SpiderRegressor | SpiderClassifier
ESTIMATORS = {each._stored_as: each for each in (SpiderRegressor, SpiderClassifier)}


def load(path: str | os.PathLike[str], network: CustomNetwork | None = None) -> Estimator:
    """Load an estimator of either class from a file written by `save`. network: see SpiderRegressor.load"""
    return _open(path, network, runs=True)


def look(path: str | os.PathLike[str]) -> Estimator:
    """Load a model for inspection only: needs neither its custom network nor JAX; cannot learn or predict."""
    return _open(path, None, runs=False)


def _open(path: str | os.PathLike[str], network: CustomNetwork | None, *, runs: bool) -> Estimator:
    file = checkpoint.load(path)
    with fitted_file.as_checkpoint_error(path):
        name = fitted_file.config_of(file)["estimator"]
        if name not in ESTIMATORS:
            raise CheckpointError(f"unknown estimator {name!r:.80}")
        kind = ESTIMATORS[name]
    return kind._from_file(path, file, network, runs=runs)
