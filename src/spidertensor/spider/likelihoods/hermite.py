"""Nodes and weights of the Gauss-Hermite quadrature of section 17 of mathematics.md."""

from __future__ import annotations

import math

import numpy as np

N_NODES = 20
NODES, _weights = np.polynomial.hermite_e.hermegauss(N_NODES)
LOG_WEIGHTS = np.log(_weights) + 0.5 * NODES**2 - 0.5 * math.log(2 * math.pi)
