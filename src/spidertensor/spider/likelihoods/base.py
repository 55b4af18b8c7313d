"""The interface of a likelihood for all code outside kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import isfinite
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spidertensor.method import Prediction
from spidertensor.spider.likelihoods.mixture import moments

Floats = NDArray[np.float64]
RATE_VAR = 1e-9  # variance of f in `from_moments`, which reports a mean as if it were known exactly


class Evidence(NamedTuple):
    """What one entry or, elementwise, many say about f, as JAX arrays: mathematics.md sections 3 and 7.

    With c = da² - 2 db an entry acts on f like an observation of alpha + res, res = da / c, with variance
    noise_n = 1/c - beta.
    """

    log_z: Any
    da: Any
    db: Any
    c: Any
    precision: Any  # 1 / noise_n
    root: Any  # res / sqrt(noise_n)
    score: Any = 0.0  # d log_z / dlog noise, if the noise learns from it


class Likelihood(ABC):
    """How a value arises from the latent f of its entry. Each is a singleton, compared by identity.

    name:    name in files, rows and the command; the object is a global of that name in capitals
    code:    what compiled kernels branch on (`kernel.evidence`)
    allowed: the allowed values, in words that follow "is not": "finite", "0 or 1"
    remedy:  what to do about other values, if anything
    scaled:  values are shifted and scaled before they are learned
    intervals: a prediction is a distribution of values with calibrated intervals, not a probability
    normal_noise: f plus normal noise makes the value; the noise can differ by node
    normal:  a value is f plus normal noise; its level and scale can be followed (follow.py)
    binary:  values are 0 or 1, learned by a classifier
    counts:  values are numbers of events
    clips:   values too far from their predictions can be clipped before they are learned
    level_var: prior variance of a level of f that all entries share (count.py); 0: no level
    ordinal: values are ordered levels (ordinal.py): `levels` are all that there are, once they are known
    weighted: an entry can count as any number of observations (section 27)
    ranked_by_mean: a greater mean of f always means a greater mean of an observation
    metric:  main score, by its name in evaluation.metrics; `metrics`: the other scores
    mean_name, std_name: column names for the mean of an observation and its spread
    mix:     a kernel (weights, parts, out), see `mixture.moments`
    """

    name: ClassVar[str]
    code: ClassVar[int]
    allowed: str
    remedy: ClassVar[str] = ""
    scaled: ClassVar[bool]
    intervals: ClassVar[bool]
    normal_noise: ClassVar[bool] = False
    normal: ClassVar[bool] = False
    binary: ClassVar[bool] = False
    counts: ClassVar[bool] = False
    clips: ClassVar[bool] = False
    level_var: ClassVar[float] = 0.0
    ordinal: ClassVar[bool] = False
    weighted: ClassVar[bool] = True
    levels: tuple[float, ...] = ()
    ranked_by_mean: ClassVar[bool] = False
    metric: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]
    mean_name: ClassVar[str] = "mean"
    std_name: ClassVar[str] = "std"
    mix: ClassVar[Any] = staticmethod(moments)

    def at(self, state: Any) -> Likelihood:
        """The likelihood with what a committee's state has learned about it."""
        return self

    def of_values(self, value: Floats) -> Likelihood:
        """The likelihood of a model whose first call has these values."""
        return self

    @property
    def of_floors(self) -> Likelihood:
        """The likelihood of floors to compare errors with."""
        return self

    @abstractmethod
    def allows(self, value: NDArray[np.float64]) -> NDArray[np.bool_]:
        """(n,) which values can be learned; NaN and infinity never can."""

    def allows_one(self, value: float) -> bool:
        """`allows` for one value."""
        return bool(self.allows(np.array(value)))

    def refusal(self, value: float) -> tuple[str, str]:
        """Why a value is not allowed, in words that follow the value, and the remedy."""
        return (f"is not {self.allowed}", self.remedy) if isfinite(value) else ("is not finite", "")

    @abstractmethod
    def log_evidence(
        self, value: ArrayLike, mean: ArrayLike, var: ArrayLike, noise: ArrayLike
    ) -> NDArray[np.float64]:
        """(n,) log ∫ p(value | f) N(f | mean, var) df; may be infinite or NaN for absurd values."""

    @abstractmethod
    def noise_var(self, shape: ArrayLike, rate: ArrayLike) -> float:
        """Noise of a Prediction, for a noise posterior Gamma(shape, rate)."""

    @abstractmethod
    def expected(self, mean: ArrayLike, var: ArrayLike, noise: ArrayLike = 0.0) -> NDArray[np.float64]:
        """(n,) mean of an observation for f ~ N(mean, var). Only that of levels depends on the noise."""

    def std(self, mean: ArrayLike, var: ArrayLike, noise: ArrayLike) -> NDArray[np.float64]:
        """(n,) standard deviation of an observation; for 0/1 values that of f."""
        return np.sqrt(np.asarray(var, np.float64) + np.asarray(noise, np.float64))

    def residual(self, value: ArrayLike, prediction: Prediction, first: int = 0) -> NDArray[np.float64]:
        """(n,) residuals of values, distributed as N(0, 1) if the predictions are right.

        first: number of the first entry, for likelihoods with random residuals (count.py)
        """
        return (np.asarray(value, np.float64) - prediction.mean) / self.std(*prediction)

    def at_residual(self, residual: float, prediction: Prediction) -> NDArray[np.float64]:
        """(n,) the values with this residual."""
        return prediction.mean + self.std(*prediction) * residual

    def clipped(
        self, value: NDArray[np.float64], prediction: Prediction, residual: NDArray[np.float64], clip: float
    ) -> NDArray[np.bool_]:
        """(n,) which values a model with these predictions would clip."""
        return np.abs(residual) > clip

    @abstractmethod
    def from_moments(self, n: Floats, total: Floats, squares: Floats, origin: Floats) -> Prediction:
        """Prediction from the number of earlier values and the sums of value - origin and of its square."""

    def noise_in_words(self, noise: float) -> tuple[str, str]:
        """Name of the noise parameter, and its value in words."""
        return "noise", f"standard deviation {noise**0.5:.4g}"

    def mixture(
        self, weights: NDArray[np.float64], parts: Sequence[Prediction] | NDArray[np.float64]
    ) -> Prediction:
        """(n,) moments of the mixture of M predictions, also given as an array (M, 3 or more, n).

        weights (M, n) or (M, 1)
        """
        parts = np.ascontiguousarray(parts)
        out = np.empty((3, parts.shape[2]))
        self.mix(np.ascontiguousarray(weights), parts, out)
        return Prediction(*out)

    # --- for the vectorized engine, on JAX arrays; JAX is imported when these are called ---

    @abstractmethod
    def jax_evidence(
        self, y: Any, alpha: Any, beta: Any, noise: Any, level: Any, weight: Any = None
    ) -> Evidence:
        """What the values y say about f.

        level:  mean of the level that all entries share, or counts of the `levels`
        weight: None, or the power of p(y | f), section 27; log_z is then of no use. Always None for a
                `normal` likelihood, where the noise is divided instead
        """

    @abstractmethod
    def jax_noise_var(self, shape: Any, rate: Any) -> Any:
        """`noise_var` in JAX."""

    def jax_clipped(self, value: Any, alpha: Any, beta: Any, noise: Any, clip: Any) -> Any:
        """Values after clipping (section 11)."""
        return value

    def jax_change(
        self,
        noise: Any,
        level: Any,
        log_forgetting: Any,
        good: Any,
        score: Any,
        sums: Any,
        weight: Any = None,
    ) -> Any:
        """(4,) what the `good` entries add to shape and rate of the noise, and to mean and variance of the
        level. None: nothing, or the likelihood is `normal`, whose noise the engine learns.

        score (n,): d log Z / dlog noise; sums: of S^-1 res and of all elements of S^-1 (section 7); weight:
        how often each entry counts, None: once
        """
        return None

    def __repr__(self) -> str:
        return f"<likelihood {self.name}>"

    def __reduce__(self) -> Any:
        """The object's global name: copying or unpickling gives the same object."""
        return self.name.upper()
