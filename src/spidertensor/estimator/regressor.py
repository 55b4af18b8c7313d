"""SpiderRegressor: continuous values, counts and ordered levels."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.base import CHANGES, PAPER, Spider
from spidertensor.estimator.bounds import within
from spidertensor.estimator.fitted import checked_coverage, followed, intervals
from spidertensor.estimator.forecast import Forecast, check_made_by
from spidertensor.estimator.groups import Inference, Prior
from spidertensor.estimator.inputs import refuse
from spidertensor.estimator.old_names import takes_old_names
from spidertensor.estimator.one_entry import EntryPrediction
from spidertensor.estimator.parameters import check_rule, plain
from spidertensor.estimator.scikit_learn import ScikitLearnRegressor
from spidertensor.estimator.threads import locked
from spidertensor.faults import SpiderWarning
from spidertensor.scaling import Scaling, spread, too_large
from spidertensor.spider.likelihoods import GAUSSIAN, Likelihood, likelihood_by_name
from spidertensor.spider.likelihoods.ordinal import Ordinal, ordinal
from spidertensor.spider.posterior import State
from spidertensor.spider.robust import KNOT_STEP, LOWEST_KNOT

# parameters that files lack where they have these values: such models keep their bytes and their generation
UNSTORED = {"remember_seen": False, "bounds": None}


@takes_old_names
@dataclass(eq=False, repr=False, kw_only=True)
class SpiderRegressor(ScikitLearnRegressor, Spider):
    """Streaming Bayesian deep tensor factorization of continuous values, counts or ordered levels.

    Each row of X has one id per mode (int, str, bytes, float, bool, or a tuple of these); y is the value.
    `partial_fit`, `learn` and `learn_one` learn each entry once, in order; `fit` learns a whole history as
    often as `passes` says. Unseen ids become new nodes. A value further than 1e12 scales from the shift is
    refused (1e6 scales without clipping).

    rank:         number of factors per node that enter the network: one, or one per mode; 0: no network
    hidden:       widths of the hidden layers
    activation:   "relu", "tanh", "sigmoid", "softplus" or "gelu"
    bias:         add a bias per node to the output of the network
    multilinear:  number of multilinear terms to add to the output, each a sum of products over pairs of
                  modes; 0 with bias=False is the paper's network
    memory:       entries of a node after which its old entries count only 1/e; the network forgets over
                  as many refinements. None: never forget
    max_nodes:    maximum number of nodes of a mode, which bounds memory in an endless stream; one number, or
                  one per mode, None for no limit. In a full mode a new id replaces the node least recently
                  learned, which is forgotten
    committee:    number of models that learn side by side with different prior variances or memory. Their
                  predictions are averaged, weighted by how well each has predicted so far, so nothing needs
                  tuning. Or a list of dicts, one per member, of parameters that differ from this estimator's,
                  including those of prior and inference: [{}, {"memory": 1000, "bias_var": 0.2}].
                  1: a single model, four times faster
    prior:        a Prior: what is assumed before the first entry; None: Prior()
    inference:    an Inference: how an entry is learned; None: Inference()
    batch_size:   number of entries between refinements of the prior, however they are split into calls
    engine:       "sequential": entry by entry, compiled; "vectorized": a batch at a time with JAX (extra
                  "jax"), for wide networks and GPUs. Both use the same state and file format
    network:      a CustomNetwork to use instead of hidden and activation; needs the vectorized engine
    random_state: seed of the initial weights; with None or a RandomState a seed is drawn once and kept
    modes:        what is known beside the ids: {"user": ["age", "gender"], "movie": [Many("genres")],
                  "when": Context("hour", Calendar("time"))}. A key is a mode and its id column; its list has
                  columns that describe the node. A Context has columns that describe the entry, and no id. X
                  is then a data frame or a dict of columns; other columns are ignored. See Value, Number,
                  Many, Calendar, Cross and Recent. None: every column of X is a mode
    passes:       how often `fit` learns the entries, in random order; what they said before is taken back
                  first, so each counts once. "auto": until a slice that is held back is not predicted better
                  any more, at most 20 times; once, as they come, if there are fewer than 1,000 entries
    time:         name of a column of X with the time of each entry, for `fit`: the first pass is in this
                  order, and the slice is the latest (of events a random one). It is not a mode
    known_at:     with time: name of a column that says when the value of an entry is known, for `fit`: each
                  entry is predicted at its time and learned, once, when its value is known. So weights and
                  intervals are right for predictions made as early as these
    likelihood:   "gaussian" for continuous values; "count" for non-negative whole numbers, with a negative
                  binomial whose log rate is learned. With counts, predictions are rates, intervals have
                  whole ends, scaling must be None, node_noise has no effect, and clip limits large counts.
                  "ordinal" for levels such as stars, grades and survey answers: `predict` is their mean,
                  `predict_levels` the probability of each, and intervals have levels as ends. Like counts,
                  and clip has no effect
    levels:       of ordinal values: all that there are, such as (1, 2, 3, 4, 5). None: those in the first
                  call that learns
    scaling:      (shift, scale) of the values; by default the mean and standard deviation of all values of
                  `fit`, or of the first `batch_size` values of the first other call, which should therefore
                  have more than a few entries
    bounds:       (lowest, highest) of the values, such as (1, 5): predicted means and ends of intervals stay
                  within, and other values are refused. "seen": the lowest and highest value learned so far.
                  What is learned, and its log scores, are the same as without. For continuous values
    remember_seen: do not recommend a node again to those it was learned with. True with two modes, else two
                  names, ("user", "movie"). Takes 8 bytes per pair

    Threads may share a model: calls run one at a time, so no call sees a half-finished one.
    """

    scaling: tuple[float, float] | None = None
    likelihood: str = "gaussian"
    levels: tuple[float, ...] | None = None
    bounds: tuple[float, float] | str | None = None
    remember_seen: bool | str | int | tuple[str | int, str | int] = False

    _inside: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "prior": Prior.names(),
        "inference": Inference.names(),
    }
    _stored_as = "SpiderRegressor"

    def _flat_params(self) -> dict[str, Any]:
        params = super()._flat_params()
        for name, default in UNSTORED.items():
            if params[name] is default:
                del params[name]
        return params

    @classmethod
    def _flat_names(cls) -> set[str]:
        return super()._flat_names() - UNSTORED.keys()

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """An estimator with the paper's settings, except for the initial prior sites.

        With the paper's initial sites the first refinement would cancel the random initial weights
        (mathematics.md trap 1).
        """
        inference = Inference(clip=None, node_noise=False, noise_memory=None, curvature=True)
        settings: dict[str, Any] = {**PAPER, "inference": inference, **changes}
        return cls(**settings)

    @property
    def _likelihood(self) -> Likelihood:
        if self._learned is not None:
            return self._learned.likelihood
        check_rule("likelihood", self.likelihood)
        if self.likelihood == "ordinal":
            levels = plain(() if self.levels is None else self.levels)
            check_rule("levels", levels or None)
            return ordinal(tuple(sorted(map(float, levels))))
        return likelihood_by_name(self.likelihood)

    @property
    def _shown(self) -> Likelihood:
        if self._learned is not None:
            return self._learned.shown
        bounds = plain(self.bounds)
        check_rule("bounds", bounds)
        return within(self._likelihood, bounds)

    @locked
    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predicted mean of the value at each row of X; with return_std also its standard deviation."""
        predicted, likelihood = self._predict(X), self._shown
        mean = likelihood.expected(*predicted)
        return (mean, likelihood.std(*predicted)) if return_std else mean

    @locked
    def predict_one(self, ids: Any) -> EntryPrediction:
        """Predicted mean and standard deviation for one entry. Same as `predict`, but several times faster.

        Before the first entry it answers from the prior: about 0, or the shift of `scaling`.

        ids: see learn_one; unseen ids are predicted from the prior
        """
        mean, var, noise = self._predict_one(ids)
        likelihood = self._shown
        if likelihood is GAUSSIAN:  # same result, ten times faster
            return EntryPrediction(mean, math.sqrt(var + noise))
        return EntryPrediction(
            float(likelihood.expected(mean, var, noise)), float(likelihood.std(mean, var, noise))
        )

    @property
    @locked
    def levels_(self) -> NDArray[np.float64]:
        """All levels of ordinal values, ascending."""
        return np.array(self._ordinal().levels)

    @locked
    def predict_levels(self, X: Any) -> NDArray[np.float64]:
        """(n, levels) probability of each of `levels_`, for ordinal values. X: rows, or a Forecast of them"""
        likelihood = self._ordinal()
        if not isinstance(X, Forecast):
            return likelihood.probabilities(*self._predict(X))
        check_made_by(self._fitted(), X)
        then = X.by_likelihood
        assert isinstance(then, Ordinal)
        return then.probabilities(*X.prediction)

    def _ordinal(self) -> Ordinal:
        likelihood = self._fitted().likelihood
        if not isinstance(likelihood, Ordinal):
            raise ValueError(f"a {likelihood.name} model has no levels: fit with likelihood='ordinal'")
        return likelihood

    @locked
    def predict_interval(
        self, X: Any, coverage: float = 0.9, calibration: str = "auto"
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Low and high ends of the prediction interval at each row of X.

        An observation falls inside with probability `coverage`. The ends are calibrated on the prediction
        errors of recent entries, so the interval need not be symmetric around the mean. For counts the ends
        are whole numbers inside the interval, so the coverage is at least the one asked for. For ordinal
        values it is the levels from low to high, by their probabilities: it is not calibrated.

        X:           also a Forecast
        calibration: on which errors: of predictions just before an entry was learned ("next"), of forecasts
                     ("forecast"), or of the slice that `fit` held back ("rest"). "auto": forecasts if most
                     recent entries came with one; at rest for 1,000 entries after `fit`; else next
        """
        coverage = checked_coverage(coverage)
        if isinstance(X, Forecast):
            check_made_by(self._fitted(), X)
            return intervals(self._fitted(), X.prediction, coverage, calibration, X.by_likelihood)
        return intervals(self._fitted(), self._predict(X), coverage, calibration)

    @property
    @locked
    def noise_(self) -> float:
        """Noise variance of an observation whose nodes are new.

        With node_noise that of known nodes is often far smaller: the shared part starts large, and as errors
        fall the nodes take most of that as their own. `predict_parts(X).noise` has it for each row of X. For
        counts, the dispersion d in the variance mean + d mean².
        """
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
        """Number of entries further than `clip` standard deviations from the committee's prediction.

        For counts, the number above the largest count that is learned in full.
        """
        return int(self._fitted().state.counts.clipped)

    @property
    @locked
    def followed_(self) -> dict[str, int]:
        """How often the leading member found a lasting change of the values, by kind.

        "level" and "scale": of their level or scale; "afresh": the model had to start afresh.
        """
        fitted = self._fitted()
        return dict(zip(CHANGES, followed(fitted, fitted.leading).tolist(), strict=True))

    def _first_scaling(self, value: NDArray[np.float64], n: int, *, warns: bool = True) -> Scaling:
        if not self._likelihood.scaled:
            return Scaling()
        if self.scaling is not None:
            shift, scale = map(float, self.scaling)
            return Scaling(shift, scale)
        large = too_large(value, n)
        refuse(value, large, "is too large", kind="too large", remedy="measure it in a larger unit")
        first = value[:n]
        if warns and not spread(first):
            how_many = "value does" if len(first) == 1 else f"{len(first)} values do"
            warning = SpiderWarning(
                f"the first {how_many} not vary; using scale 1",
                kind="no scale",
                remedy="if that is wrong, pass scaling=(shift, scale) or make the first call larger",
            )
            warnings.warn(warning, stacklevel=7)  # the caller of fit, partial_fit or learn
        return Scaling.of(first)


def _noise(member: State) -> float:
    """Noise variance of an entry whose nodes are new, at the mean of the values."""
    noise, stream = member.posterior.noise, member.stream
    knots = LOWEST_KNOT + KNOT_STEP * np.arange(len(stream.level_noise))
    by_level = math.exp(np.interp(float(stream.mean), knots, stream.level_noise))
    return float(noise.rate / noise.shape * by_level * stream.scale**2)
