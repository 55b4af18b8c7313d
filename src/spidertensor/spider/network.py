"""Sizes of f, the network over the concatenated factors of an entry's nodes. No arithmetic.

mathematics.md sections 1 (the paper's network), 9 (the hybrid network) and 10 (pairs). A node has the factor
vector [bias | multilinear | deep]; the paper's network has only the deep part.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import NamedTuple

ACTIVATIONS = ("relu", "tanh", "sigmoid", "softplus", "gelu")


class Table(NamedTuple):
    """A table of attribute nodes (mathematics.md section 19): the mode they belong to, and their prior
    variance as a share of an own id's."""

    mode: int
    scale: float


@dataclass(frozen=True)
class Network:
    """Sizes of f.

    ranks:       length of the deep part of a factor vector, one per mode. 0 in all modes: no network, only a
                 constant in its place
    hidden:      widths of the hidden layers; () makes f linear in the factors
    activation:  one of `ACTIVATIONS`, for every hidden layer
    bias:        give every node an additive bias
    multilinear: length of the part that enters as a sum of products over pairs of modes (0: none)
    product:     the multilinear part is a product over all modes instead, as in models made before 0.2
    tables:      tables of attribute nodes, beside one table of own ids per mode
    without_id:  modes whose entries have attributes only
    """

    ranks: tuple[int, ...]
    hidden: tuple[int, ...] = (50, 50)
    activation: str = "relu"
    bias: bool = False
    multilinear: int = 0
    product: bool = False
    tables: tuple[Table, ...] = ()
    without_id: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.ranks:
            raise ValueError("a network needs at least one mode")
        for name in ("ranks", "hidden"):
            sizes = getattr(self, name)
            if not all(isinstance(size, Integral) and not isinstance(size, bool) for size in sizes):
                raise ValueError(f"{name} must be whole numbers, got {sizes}")
        if not isinstance(self.multilinear, Integral):
            raise ValueError(f"multilinear must be a whole number, got {self.multilinear}")
        if any(rank < 1 for rank in self.ranks) and any(self.ranks):
            raise ValueError(f"rank must be at least 1 in every mode, or 0 for no network, got {self.ranks}")
        if not any(self.ranks) and self.hidden:
            raise ValueError(f"rank 0 means no network, so hidden must be (), got {self.hidden}")
        if any(width < 1 for width in self.hidden):
            raise ValueError(f"every hidden layer needs at least one unit, got {self.hidden}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"unknown activation {self.activation!r}: choose one of {', '.join(ACTIVATIONS)}"
            )
        if self.multilinear < 0:
            raise ValueError(f"multilinear must not be negative, got {self.multilinear}")

        for table in self.tables:
            if not (0 <= table.mode < len(self.ranks) and 0 < table.scale <= 1):
                raise ValueError(f"a table belongs to a mode and has a scale up to 1, got {table}")

    @property
    def n_modes(self) -> int:
        return len(self.ranks)

    @property
    def has_deep(self) -> bool:
        """Whether f has a network."""
        return any(self.ranks)

    @property
    def deep_start(self) -> int:
        """Where the deep part of a factor vector starts."""
        return int(self.bias) + self.multilinear

    @property
    def factor_sizes(self) -> tuple[int, ...]:
        """Length of a whole factor vector, one per mode."""
        return tuple(self.deep_start + rank for rank in self.ranks)

    @property
    def table_modes(self) -> tuple[int, ...]:
        """The mode of each table of a state: own ids, one table per mode, then attributes."""
        return (*range(self.n_modes), *(table.mode for table in self.tables))

    @property
    def table_scales(self) -> tuple[float, ...]:
        """Prior variance in each table of a state, as a share of an own id's."""
        return (*[1.0] * self.n_modes, *(table.scale for table in self.tables))

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """Shape of each W_m: (V_m, V_{m-1} + 1), the last column being the bias."""
        widths = (sum(self.ranks), *self.hidden, 1)
        return tuple((outputs, inputs + 1) for inputs, outputs in pairwise(widths))

    @property
    def n_weights(self) -> int:
        return sum(outputs * inputs for outputs, inputs in self.layers)
