"""Which real counts are noted as varying less than random ones (spidertensor.estimator.steady_counts)."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from counts import acc, flights

from spidertensor import SpiderRegressor, SpiderWarning
from spidertensor_study import datasets


def kinds(index, value) -> list[str]:
    """The kinds of the warnings while a small model learns these counts."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        SpiderRegressor(rank=2, hidden=(4,), committee=1, likelihood="count").fit(index, value)
    return [each.message.kind for each in caught if isinstance(each.message, SpiderWarning)]


def test_real_flights_are_noted_and_accesses_are_not():
    for data, told in ((flights, ["steady"]), (acc, [])):
        try:
            index, value, *_ = data(30_000)
        except datasets.DatasetError:
            pytest.skip("the data are not here")
        assert kinds(index, value) == told
