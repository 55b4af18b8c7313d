"""A likelihood that nothing in the packages knows, to see it refused."""

from __future__ import annotations

import numpy as np

from spidertensor.spider.likelihoods import Likelihood


class Poisson(Likelihood):
    name, code = "poisson", 7
    allowed, scaled = "a whole number that is not negative", False
    metric, metrics = "rmse", ()

    def allows(self, value):
        return (value >= 0) & (value == np.floor(value))

    def log_evidence(self, value, mean, var, noise):
        raise NotImplementedError

    def noise_var(self, shape, rate):
        return 0.0

    def expected(self, mean, var):
        return np.exp(mean)

    def from_moments(self, n, total, squares, origin):
        raise NotImplementedError

    def jax_evidence(self, y, alpha, beta, noise, level):
        raise NotImplementedError

    def jax_noise_var(self, shape, rate):
        raise NotImplementedError
