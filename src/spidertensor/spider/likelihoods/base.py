"""What a likelihood is to everything that is not a kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spidertensor.method import Prediction
from spidertensor.spider.likelihoods.mixture import moments


class Likelihood(ABC):
    """How a value comes from the latent f of its entry. There is one object of each, compared by identity.

    name:    what files, rows and the command call it; its object is a global of that name in capitals
    code:    what compiled kernels branch on (`kernel.evidence`)
    allowed: the values it takes, in words that follow "is not": "finite", "0 or 1"
    scaled:  values are shifted and scaled before they are learned
    intervals: a prediction is a distribution of values, with intervals to calibrate, not a probability
    ranked_by_mean: a greater mean of f is a greater mean of an observation, whatever the variances
    metric:  the score of a row, by its name in study.metrics; `metrics`: the others it is scored by
    mean_name, std_name: what the mean of an observation is called, and the spread beside it
    mix:     a kernel (weights, parts, out), see `mixture.moments`
    """

    name: ClassVar[str]
    code: ClassVar[int]
    allowed: ClassVar[str]
    scaled: ClassVar[bool]
    intervals: ClassVar[bool]
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

    def __repr__(self) -> str:
        return f"<likelihood {self.name}>"

    def __reduce__(self) -> str:
        """The name of the object in its file, so that a copy or an unpickled one is the same object."""
        return self.name.upper()
