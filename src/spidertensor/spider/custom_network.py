"""User-defined networks: a function in jax.numpy and the shapes of its weights. Does not import JAX."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import index
from typing import Any

from spidertensor.spider.network import Network


@dataclass(frozen=True)
class CustomNetwork:
    """The deep part of f as a function of your own, in place of the hidden layers and their activation.

    function: f(weights, x) -> scalar, in jax.numpy. weights: a tuple of arrays of the given shapes; x: a
              tuple with one vector per mode, of the mode's rank
    shapes:   shapes of the weights, each with at least one dimension
    name:     identifies the network in files, which hold no code; by default the function's name

    A weight has the prior N(0, slab_var) and starts below sqrt(slab_var) in size: divide a sum over n inputs
    by sqrt(n), as the built-in network does. Factors start at 0: the gradient must be finite there. Define
    the function once: the engine compiles for each function object.
    """

    function: Callable[..., Any] = field(repr=False)
    shapes: tuple[tuple[int, ...], ...]
    name: str = ""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ValueError(f"a network must be a function f(weights, x), got {self.function!r}")
        try:
            shapes = tuple(tuple(map(index, shape)) for shape in self.shapes)
        except TypeError:
            shapes = ()
        if not shapes or not all(shape and min(shape) > 0 for shape in shapes):
            raise ValueError(f"shapes must be like ((16, 3), (16,)), one per weight, got {self.shapes!r}")
        name = self.name or getattr(self.function, "__name__", type(self.function).__name__)
        if not isinstance(name, str):
            raise ValueError(f"the name of a network must be a string, got {name!r}")
        object.__setattr__(self, "shapes", shapes)  # hashable, even if given as lists
        object.__setattr__(self, "name", name)


@dataclass(frozen=True)
class CustomSizes(Network):
    """Sizes of f with a CustomNetwork as its deep part; bias and multilinear part as in any Network."""

    custom: CustomNetwork = field(kw_only=True)
    hidden: tuple[int, ...] = field(default=(), init=False)
    activation: str = field(default="relu", init=False)

    @property
    def layers(self) -> tuple[tuple[int, ...], ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.custom.shapes  # any number of dimensions; the paper's network has matrices

    @property
    def n_weights(self) -> int:
        return sum(map(math.prod, self.layers))

    @property
    def has_deep(self) -> bool:
        return True
