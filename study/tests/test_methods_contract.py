"""What every Method promises (spidertensor.testing), checked on every competitor of the registry.

All are checked with every likelihood they have: a new one needs no line here. What a method does not promise
is said below. The library's own methods, and the variants of SPIDER here, have the same checks in its tests.
"""

from __future__ import annotations

from functools import partial

import pytest

from quick_settings import QUICK
from spidertensor.evaluation import methods
from spidertensor.spider.likelihoods import COUNT, LIKELIHOODS
from spidertensor.testing import Case, Traits, checks_of
from spidertensor_study.registry import METHODS

BATCH = 16
NODES_START_AT_RANDOM = ("post", "cp-wopt", "cp-wopt-early", "costco")
# as another method, with one setting changed
SAME_CODE = ("cp-wopt-1000", "svb-dtf-tanh")
# the settings of each, checked in tests/engine/test_contract.py
OF_SPIDER = {
    "spider-paper": {"paper": True},
    "spider-paper-tanh": {"paper": True, "activation": "tanh"},
    "spider-single": {"committee": 1},
    "spider-plain": {"bias": False, "multilinear": 0, "clip": None, "node_noise": False, "committee": 1},
}
SLOW = ("pbp", "post")


def cases() -> dict[str, Case]:
    found = {}
    for likelihood in LIKELIHOODS.values():
        for name, entry in METHODS.items():
            if name in (*methods.METHODS, *SAME_CODE, *OF_SPIDER) or (
                likelihood is COUNT and not entry.counts
            ):
                continue
            found[f"{name}-{likelihood.name}"] = Case(
                partial(entry.build, 2, 3, likelihood, BATCH, **QUICK.get(name, {})),
                likelihood,
                unit=entry.unit,
                traits=Traits(
                    equal_starts=name not in NODES_START_AT_RANDOM,
                    calls=20 if entry.needs or name in SLOW else 100,
                ),
            )
    return found


CHECKS = {
    f"{name}-{promise}": check for name, case in cases().items() for promise, check in checks_of(case).items()
}


def test_variants_of_spider_are_settings_of_it():
    for name, settings in OF_SPIDER.items():
        build = METHODS[name].build
        assert isinstance(build, partial)
        assert (build.func, build.args, build.keywords) == (methods.spider, (), settings)


@pytest.mark.parametrize("name", CHECKS)
def test_contract(name):
    CHECKS[name]()
