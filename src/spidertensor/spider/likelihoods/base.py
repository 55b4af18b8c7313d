"""What a likelihood is to everything that is not a kernel."""

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
RATE_VAR = 1e-9  # of an f that is the mean of the values so far, and reported as if it were known exactly


class Evidence(NamedTuple):
    """What one entry or, elementwise, many say about f, as arrays of JAX. With c = da² - 2 db the entry is to
    f what an observation of variance noise_n = 1/c - beta at alpha + res is, res = da / c."""

    log_z: Any
    da: Any
    db: Any
    c: Any
    precision: Any  # 1 / noise_n
    root: Any  # res / sqrt(noise_n)
    score: Any = 0.0  # d log_z / dlog noise, where the noise learns from it


class Likelihood(ABC):
    """How a value comes from the latent f of its entry. There is one object of each, compared by identity.

    name:    what files, rows and the command call it; its object is a global of that name in capitals
    code:    what compiled kernels branch on (`kernel.evidence`)
    allowed: the values it takes, in words that follow "is not": "finite", "0 or 1"
    remedy:  what to do about other values, if anything can be
    scaled:  values are shifted and scaled before they are learned
    intervals: a prediction is a distribution of values, with intervals to calibrate, not a probability
    normal:  a value is f plus normal noise, of which nodes can have a part of their own, and whose level and
             scale can be followed (follow.py)
    binary:  values are 0 or 1, and a classifier learns them
    counts:  values are whole numbers of events
    clips:   values that are too far from their predictions can be learned as if they were nearer
    level_var: prior variance of a level of f that all entries share (count.py); 0: there is none
    ranked_by_mean: a greater mean of f is a greater mean of an observation, whatever the variances
    metric:  the score of a row, by its name in study.metrics; `metrics`: the others it is scored by
    mean_name, std_name: what the mean of an observation is called, and the spread beside it
    mix:     a kernel (weights, parts, out), see `mixture.moments`
    """

    name: ClassVar[str]
    code: ClassVar[int]
    allowed: ClassVar[str]
    remedy: ClassVar[str] = ""
    scaled: ClassVar[bool]
    intervals: ClassVar[bool]
    normal: ClassVar[bool] = False
    binary: ClassVar[bool] = False
    counts: ClassVar[bool] = False
    clips: ClassVar[bool] = False
    level_var: ClassVar[float] = 0.0
    ranked_by_mean: ClassVar[bool] = False
    metric: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]
    mean_name: ClassVar[str] = "mean"
    std_name: ClassVar[str] = "std"
    mix: ClassVar[Any] = staticmethod(moments)

    @abstractmethod
    def allows(self, value: NDArray[np.float64]) -> NDArray[np.bool_]:
        """(n,) which of the values can be learned; NaN and infinity never can."""

    def allows_one(self, value: float) -> bool:
        """`allows` of one value."""
        return bool(self.allows(np.array(value)))

    def refusal(self, value: float) -> tuple[str, str]:
        """Why a value is not allowed, in words that follow it, and what to do about that."""
        return (f"is not {self.allowed}", self.remedy) if isfinite(value) else ("is not finite", "")

    @abstractmethod
    def log_evidence(
        self, value: ArrayLike, mean: ArrayLike, var: ArrayLike, noise: ArrayLike
    ) -> NDArray[np.float64]:
        """(n,) log ∫ p(value | f) N(f | mean, var) df. Of an absurd value it may be infinite or NaN."""

    @abstractmethod
    def noise_var(self, shape: ArrayLike, rate: ArrayLike) -> float:
        """What an observation adds to the variance of f, for a noise precision Gamma(shape, rate)."""

    @abstractmethod
    def expected(self, mean: ArrayLike, var: ArrayLike) -> NDArray[np.float64]:
        """(n,) mean of an observation, for f ~ N(mean, var)."""

    def std(self, mean: ArrayLike, var: ArrayLike, noise: ArrayLike) -> NDArray[np.float64]:
        """(n,) standard deviation of an observation; of a 0/1 value, the one of f."""
        return np.sqrt(np.asarray(var, np.float64) + np.asarray(noise, np.float64))

    def residual(self, value: ArrayLike, prediction: Prediction, first: int = 0) -> NDArray[np.float64]:
        """(n,) how far values are from their predictions, as numbers that are N(0, 1) if these are right.

        first: number of the first entry, for likelihoods that draw (count.py)
        """
        return (np.asarray(value, np.float64) - prediction.mean) / self.std(*prediction)

    def at_residual(self, residual: float, prediction: Prediction) -> NDArray[np.float64]:
        """(n,) the values whose residuals are this."""
        return prediction.mean + self.std(*prediction) * residual

    def clipped(
        self, value: NDArray[np.float64], prediction: Prediction, residual: NDArray[np.float64], clip: float
    ) -> NDArray[np.bool_]:
        """(n,) which values a model with these predictions would not learn in full."""
        return np.abs(residual) > clip

    @abstractmethod
    def from_moments(self, n: Floats, total: Floats, squares: Floats, origin: Floats) -> Prediction:
        """The prediction of one who knows the values before it and no more: how many they are, and the sums
        of value - origin and of its square."""

    def noise_in_words(self, noise: float) -> tuple[str, str]:
        """What to call the noise of a model, and how to tell it."""
        return "noise", f"standard deviation {noise**0.5:.4g}"

    def mixture(
        self, weights: NDArray[np.float64], parts: Sequence[Prediction] | NDArray[np.float64]
    ) -> Prediction:
        """The (n,) moments of a mixture of M predictions, or of an array (M, 3 or more, n) with these.

        weights (M, n) or (M, 1)
        """
        parts = np.ascontiguousarray(parts)
        out = np.empty((3, parts.shape[2]))
        self.mix(np.ascontiguousarray(weights), parts, out)
        return Prediction(*out)

    # --- for the vectorized engine: of arrays of JAX, which is imported when they are called ---

    @abstractmethod
    def jax_evidence(self, y: Any, alpha: Any, beta: Any, noise: Any, level: Any) -> Evidence:
        """What the values y say about f; `level`: the mean of the level that all entries share."""

    @abstractmethod
    def jax_noise_var(self, shape: Any, rate: Any) -> Any:
        """`noise_var`."""

    def jax_clipped(self, value: Any, alpha: Any, beta: Any, noise: Any, clip: Any) -> Any:
        """Section 11: values as they are learned, where they are clipped."""
        return value

    def jax_change(
        self, noise: Any, level: Any, log_forgetting: Any, good: Any, score: Any, sums: Any
    ) -> Any:
        """(4,) what the entries that are `good` add to shape and rate of the noise, and to mean and variance
        of the level. None: nothing, or it is `normal`, whose noise the engine learns.

        score (n,) d log Z / dlog noise; sums: of S^-1 res and of all elements of S^-1 (section 7)
        """
        return None

    def __repr__(self) -> str:
        return f"<likelihood {self.name}>"

    def __reduce__(self) -> str:
        """The name of the object in its file, so that a copy or an unpickled one is the same object."""
        return self.name.upper()
