"""What every Method promises (spidertensor.testing), checked on every method of the library.

test_vectorized.py holds the vectorized engine to the same checks, bit for bit or but for rounding; the
study's tests its competitors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from naive import as_float64
from spidertensor.evaluation.methods import METHODS, spider
from spidertensor.evaluation.popularity import popularity
from spidertensor.method import Batch, Method
from spidertensor.spider.likelihoods import COUNT, GAUSSIAN, LIKELIHOODS, ORDINAL, PROBIT
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Prior
from spidertensor.spider.sequential import sequential
from spidertensor.testing import Case, Traits, checks_of
from spidertensor.testing.case import everything, stream

PLAIN = Network((2, 3, 4), (7, 5))
HYBRID = Network((2, 3, 4), (7, 5), "tanh", bias=True, multilinear=3)
BATCH = 16  # entries of a batch, where a method has batches
TRAITS = {
    "spider": Traits(equal_starts=False, forgets=True),
    "mean": Traits(random=False, one_number=True),
    "biases": Traits(random=False),
    "static-biases": Traits(random=False),
}
VARIANTS: dict[str, Callable[..., Method]] = {
    "paper": partial(spider, paper=True),
    "single": partial(spider, committee=1),
    "plain": partial(spider, bias=False, multilinear=0, clip=None, node_noise=False, committee=1),
}


def cases() -> dict[str, Case]:
    """Every method that has a name, variants of the default, and the sequential engine with all it can do."""
    found = {}
    for likelihood in LIKELIHOODS.values():
        for name, entry in METHODS.items():
            if likelihood is not COUNT or entry.counts:
                build = partial(entry.build, 2, 3, likelihood, BATCH)
                found[f"{name}-{likelihood.name}"] = Case(
                    build, likelihood, unit=entry.unit, traits=TRAITS[name]
                )
        for name, variant in VARIANTS.items():
            found[f"{name}-{likelihood.name}"] = Case(
                partial(variant, 2, 3, likelihood, BATCH),
                likelihood,
                traits=Traits(equal_starts=name != "single"),
            )
        build = partial(sequential, HYBRID, likelihood, curvature=True, refine_every=BATCH)
        found[f"sequential-{likelihood.name}"] = Case(build, likelihood, traits=Traits(equal_starts=False))
    build = partial(spider, 2, 3, ORDINAL, BATCH)
    found["spider-ordinal"] = Case(build, ORDINAL, traits=TRAITS["spider"])
    build = partial(sequential, HYBRID, ORDINAL, curvature=True, refine_every=BATCH)
    found["sequential-ordinal"] = Case(build, ORDINAL, traits=Traits(equal_starts=False))
    found["popularity"] = Case(partial(popularity, 3), PROBIT, unit="batch", traits=Traits(random=False))
    return found


CHECKS = {
    f"{name}-{promise}": check for name, case in cases().items() for promise, check in checks_of(case).items()
}
# its batch is the call, of any size: a cut changes what is predicted inside it, and what is learned never
del CHECKS["popularity-cuts_between_two_batches_change_nothing"]


LONG = "memory_is_constant_on_a_long_stream"
QUICK = f"spider-gaussian-{LONG}"  # the one long stream of `make quick`


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name.endswith(LONG) and name != QUICK else name
        for name in CHECKS
    ],
)
def test_contract(name):
    CHECKS[name]()


# --- the network of the paper treats modes alike --------------------------------------------------


@pytest.mark.parametrize("curvature", [False, True])
@pytest.mark.parametrize("likelihood", [GAUSSIAN, PROBIT])
@pytest.mark.parametrize("order", [(1, 2, 0), (2, 1, 0)])
def test_permuting_modes_with_the_columns_of_the_first_layer(order, likelihood, curvature):
    """Only the order of sums changes. In float64, so that a difference would be one of the algorithm."""

    def build(network: Network) -> Method:
        return sequential(network, likelihood, Prior(), curvature=curvature, refine_every=16)

    ranks = PLAIN.ranks
    method = build(PLAIN)
    permuted = build(Network(tuple(ranks[k] for k in order), PLAIN.hidden))
    state = as_float64(method.init(0))

    starts = np.cumsum((0, *ranks))
    columns = [np.arange(starts[k], starts[k + 1]) for k in order] + [[sum(ranks)]]
    columns = np.concatenate(columns).astype(int)
    swap = lambda arrays: type(arrays)(*(np.ascontiguousarray(a[:, columns]) for a in arrays))  # noqa: E731
    other = as_float64(permuted.init(0))
    weights = (swap(state.posterior.weights[0]), *as_float64(state.posterior.weights[1:]))
    other = other._replace(posterior=other.posterior._replace(weights=weights))

    batch = stream(likelihood)
    state, update = method.update(state, batch)
    other, other_update = permuted.update(
        other, Batch(np.ascontiguousarray(batch.index[:, order]), batch.value)
    )
    close = {"rtol": 1e-6, "atol": 1e-7}  # the refinement rounds its logarithm to float32
    np.testing.assert_allclose(np.array(other_update[:4]), np.array(update[:4]), **close)
    for k, mode in enumerate(order):
        for a, b in zip(other.posterior.factors[k], state.posterior.factors[mode], strict=True):
            np.testing.assert_allclose(a, b, **close)
    np.testing.assert_allclose(
        other.posterior.weights[0].mean, state.posterior.weights[0].mean[:, columns], **close
    )
    np.testing.assert_allclose(
        np.array(permuted.predict(other, everything()[:, order])),
        np.array(method.predict(state, everything())),
        **close,
    )
