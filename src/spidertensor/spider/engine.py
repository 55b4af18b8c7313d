"""Build SPIDER on the engine of a given name."""

from __future__ import annotations

from typing import Any

from spidertensor.method import Method
from spidertensor.spider.likelihoods import Likelihood
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Prior
from spidertensor.spider.sequential import sequential

ENGINES = ("sequential", "vectorized")


def build(
    name: str,
    network: Network,
    likelihood: Likelihood,
    prior: Prior,
    *,
    batch_size: int,
    curvature: bool = False,
    **inference: Any,
) -> Method:
    """SPIDER on one of ENGINES; `inference` holds further options of the engine.

    The prior is refined every `batch_size` entries. JAX is imported only for the vectorized engine.
    """
    if name == "sequential":
        return sequential(
            network, likelihood, prior, refine_every=batch_size, curvature=curvature, **inference
        )
    if name != "vectorized":
        raise ValueError(f"unknown engine {name!r}: choose one of {', '.join(ENGINES)}")
    try:
        from spidertensor.spider.vectorized import vectorized
    except ModuleNotFoundError as error:
        needed = f"the vectorized engine needs {error.name}: pip install 'spidertensor[jax]'"
        raise ModuleNotFoundError(needed, name=error.name) from None
    return vectorized(
        network,
        likelihood,
        prior,
        refine_every=batch_size,
        batch_size=batch_size,
        curvature=curvature,
        **inference,
    )
