"""SpiderRegressor: continuous values and counts."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.base import CHANGES, PAPER, Spider
from spidertensor.estimator.fitted import checked_coverage, followed, intervals
from spidertensor.estimator.groups import Inference, Prior
from spidertensor.estimator.inputs import refuse
from spidertensor.estimator.old_names import takes_old_names
from spidertensor.estimator.one_entry import EntryPrediction
from spidertensor.estimator.parameters import check_rule
from spidertensor.estimator.scikit_learn import ScikitLearnRegressor
from spidertensor.estimator.threads import locked
from spidertensor.faults import SpiderWarning
from spidertensor.scaling import Scaling, spread, too_large
from spidertensor.spider.likelihoods import Likelihood, likelihood_by_name
from spidertensor.spider.posterior import State


@takes_old_names
@dataclass(eq=False, repr=False, kw_only=True)
class SpiderRegressor(ScikitLearnRegressor, Spider):
    """Streaming Bayesian deep tensor factorization of continuous values or counts.

    Each row of X holds one id per mode (any int, str, bytes, float, bool, or tuple of these); y is the value.
    Entries are learned once, in their order; unseen ids become new nodes. A value more than 1e12 times the
    scale away from the shift is refused; without clipping, a million times.

    rank:         length of the part of a node's factors that enters the network; one number, or one per mode
    hidden:       widths of the hidden layers
    activation:   "relu", "tanh", "sigmoid", "softplus" or "gelu"
    bias:         add a bias per node to the network
    multilinear:  add so many sums of products over pairs of modes; 0 and bias=False give the paper's network
    memory:       forget: entries of its own after which a node counts what it has learned 1/e; the network
                  forgets over as many refinements. None: never
    max_nodes:    nodes that a mode may have, so that endless new ids need no endless memory; one number, or
                  one per mode, None for no limit. A new id takes the place of the node that was longest
                  unseen in the entries learned, which is forgotten
    committee:    how many models learn side by side, each with other prior variances or a memory. They
                  predict together, weighted by how well each has predicted so far: nothing needs tuning. A
                  list of dicts gives the members' own parameters, those of a prior or an inference among
                  them, such as [{}, {"memory": 1000, "bias_var": 0.2}]; what a member does not name it has
                  from this estimator. 1: one model, four times as fast
    prior:        a Prior, what is assumed before the first entry; None: Prior()
    inference:    an Inference, how an entry is learned; None: Inference()
    batch_size:   entries between two refinements of the prior, wherever a call ends
    engine:       "sequential": entry by entry, compiled; "vectorized": a batch at once, with JAX (extra jax),
                  for wide networks and GPUs. Both have the same state and write the same files
    network:      a CustomNetwork in place of hidden and activation, for the vectorized engine
    random_state: seed of the starting weights; for None or a RandomState a seed is drawn and kept
    likelihood:   "gaussian": continuous values; "count": whole numbers from 0 on, negative binomial, whose
                  logarithm of the rate is learned. Predictions are then rates, intervals whole numbers; there
                  is nothing to scale, node_noise has no meaning, and clip bounds counts from above
    scaling:      (shift, scale) of the values; by default mean and standard deviation of the first
                  `batch_size` values of the first call, so that call should have more than a few entries

    Threads may share a model: calls take turns, so each sees all of what an earlier one learned, or nothing.
    """

    scaling: tuple[float, float] | None = None
    likelihood: str = "gaussian"

    _inside: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "prior": Prior.names(),
        "inference": Inference.names(),
    }
    _stored_as = "SpiderRegressor"

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The paper's settings, except for how the prior sites start: the paper's start makes the first
        refinement divide out the random starting weights (mathematics.md trap 1)."""
        inference = Inference(clip=None, node_noise=False, noise_memory=None, curvature=True)
        settings: dict[str, Any] = {**PAPER, "inference": inference, **changes}
        return cls(**settings)

    @property
    def _likelihood(self) -> Likelihood:
        if self._learned is not None:
            return self._learned.model.likelihood
        check_rule("likelihood", self.likelihood)
        return likelihood_by_name(self.likelihood)

    @locked
    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Mean of an observation at each row of X, and with return_std its standard deviation."""
        predicted, likelihood = self._predict(X), self._likelihood
        mean = likelihood.expected(predicted.mean, predicted.var)
        return (mean, likelihood.std(*predicted)) if return_std else mean

    @locked
    def predict_one(self, ids: Any) -> EntryPrediction:
        """Mean and standard deviation of an observation, for one entry: what `predict` says, several times as
        fast. ids: see learn_one; an id that was never learned is predicted from the prior."""
        mean, var, noise = self._predict_one(ids)
        likelihood = self._likelihood
        if likelihood.normal:  # the same, in a tenth of the time
            return EntryPrediction(mean, math.sqrt(var + noise))
        return EntryPrediction(float(likelihood.expected(mean, var)), float(likelihood.std(mean, var, noise)))

    @locked
    def predict_interval(
        self, X: Any, coverage: float = 0.9
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Low and high end of an interval at each row of X that holds an observation with this probability.

        The ends are calibrated by how far the latest entries lay from what was predicted for them, so they
        need not be at equal distances from the mean. Of counts they are whole numbers and belong to the
        interval, which therefore holds at least this share.
        """
        coverage = checked_coverage(coverage)
        return intervals(self._fitted(), self._predict(X), coverage)

    @property
    @locked
    def noise_(self) -> float:
        """Variance that an observation has around the mean of its entry; with node_noise, of an entry whose
        nodes have the mean noise of their modes. Of counts, the d of their variance mean + d mean²."""
        fitted = self._fitted()
        return (
            sum(
                weight * _noise(member)
                for weight, member in zip(fitted.state.weights.tolist(), fitted.state.members, strict=True)
            )
            * fitted.scaling.scale**2
        )

    @property
    @locked
    def n_clipped_(self) -> int:
        """How many entries had a value that the committee's own prediction would clip: further than `clip`
        standard deviations from the mean; of counts, above the largest that is learned in full."""
        return int(self._fitted().state.counts.clipped)

    @property
    @locked
    def followed_(self) -> dict[str, int]:
        """How often the values changed for good, as the leading member saw it: their level, their scale, or
        so that all that was learned was of no use ("afresh")."""
        fitted = self._fitted()
        return dict(zip(CHANGES, followed(fitted, fitted.leading).tolist(), strict=True))

    def _first_scaling(self, value: NDArray[np.float64]) -> Scaling:
        if not self._likelihood.scaled:
            return Scaling()
        if self.scaling is not None:
            shift, scale = map(float, self.scaling)
            return Scaling(shift, scale)
        large = too_large(value, self.batch_size)
        refuse(value, large, "is too large", kind="too large", remedy="measure it in a larger unit")
        first = value[: self.batch_size]
        if not spread(first):
            how_many = "value does" if len(first) == 1 else f"{len(first)} values do"
            warning = SpiderWarning(
                f"the first {how_many} not vary, so their scale is taken as 1",
                kind="no scale",
                remedy="if that is wrong, pass scaling=(shift, scale) or make the first call larger",
            )
            warnings.warn(warning, stacklevel=6)  # the caller of fit, partial_fit or learn
        return Scaling.of(first)


def _noise(member: State) -> float:
    """Of an entry whose nodes have the mean noise of their modes."""
    post, stream = member.posterior, member.stream
    of_nodes = math.exp(stream.log_noise.sum()) if post.log_noise else 1.0
    return float(post.noise.rate / post.noise.shape * of_nodes * stream.scale**2)
