"""A network of one's own: a function in jax.numpy and the shapes of its weights. JAX is not imported."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import index
from typing import Any

from spidertensor.spider.network import Network


@dataclass(frozen=True)
class CustomNetwork:
    """The deep part of f as a function of yours, in place of the hidden layers and their activation.

    function: f(weights, x) -> one number, in jax.numpy. weights: a tuple of arrays of the given shapes; x: a
              tuple with one vector per mode, as long as the mode's rank
    shapes:   of the weights, one or more dimensions each
    name:     what a file calls the network, for a file holds no code; by default the function's name

    A weight has the prior N(0, slab_var) and starts below sqrt(slab_var) in size: divide a sum over n inputs
    by sqrt(n), as the built-in network does. Factors start at 0: the gradient must be finite there. Define
    the function once: the engine compiles for each object.
    """

    function: Callable[..., Any] = field(repr=False)
    shapes: tuple[tuple[int, ...], ...]
    name: str = ""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ValueError(f"a network is a function f(weights, x), got {self.function!r}")
        try:
            shapes = tuple(tuple(map(index, shape)) for shape in self.shapes)
        except TypeError:
            shapes = ()
        if not shapes or not all(shape and min(shape) > 0 for shape in shapes):
            raise ValueError(f"shapes of the weights are like ((16, 3), (16,)), got {self.shapes!r}")
        name = self.name or getattr(self.function, "__name__", type(self.function).__name__)
        if not isinstance(name, str):
            raise ValueError(f"the name of a network is a text, got {name!r}")
        object.__setattr__(self, "shapes", shapes)  # hashable, whatever it was given as
        object.__setattr__(self, "name", name)


@dataclass(frozen=True)
class CustomSizes(Network):
    """Sizes of f with a CustomNetwork as its deep part; bias and multilinear part as in any Network."""

    custom: CustomNetwork = field(kw_only=True)
    hidden: tuple[int, ...] = field(default=(), init=False)
    activation: str = field(default="relu", init=False)

    @property
    def layers(self) -> tuple[tuple[int, ...], ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.custom.shapes  # of any number of dimensions, where the paper's network has matrices

    @property
    def n_weights(self) -> int:
        return sum(map(math.prod, self.layers))
