"""Parameters that travel together: `prior=Prior(...)` and `inference=Inference(...)`.

Files and the dicts of a committee name these parameters one by one, flat: `flat` and `grouped` translate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from spidertensor.spider import posterior


class Group:
    """A value that never changes: estimators may share one. `set_params(prior__bias_var=0.2)` of an estimator
    gives it a new one."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))  # pyright: ignore[reportArgumentType]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name, as scikit-learn asks for them."""
        return {name: getattr(self, name) for name in self.names()}

    def changed(self) -> dict[str, Any]:
        """The parameters that differ from their defaults."""
        own = self.get_params()
        return {name: value for name, value in own.items() if repr(value) != repr(getattr(type(self), name))}

    def __repr__(self) -> str:
        changed = ", ".join(f"{name}={value!r}" for name, value in self.changed().items())
        return f"{type(self).__name__}({changed})"


@dataclass(frozen=True, repr=False)
class Prior(Group):
    """What a model assumes before its first entry: `SpiderRegressor(prior=Prior(bias_var=0.2))`.

    multilinear_var:   variance of a factor of the multilinear part, for two modes; for more it is scaled down
    multilinear_start: standard deviation with which these factors start
    bias_var:          variance of the bias of a node
    factor_var:        variance of an element of the factors that enter the network
    rho0:              probability that a weight is in the network
    slab_var:          variance of a weight that is in the network

    The values are those of scaled entries (see `scaling` of SpiderRegressor), and are checked when a model
    learns. Search over them with `prior__bias_var` and its like.
    """

    multilinear_var: float = posterior.Prior.multilinear_var
    multilinear_start: float = posterior.Prior.multilinear_start
    bias_var: float = posterior.Prior.bias_var
    factor_var: float = posterior.Prior.factor_var
    rho0: float = posterior.Prior.rho0
    slab_var: float = posterior.Prior.slab_var


@dataclass(frozen=True, repr=False)
class Inference(Group):
    """How a model learns from an entry: `SpiderRegressor(inference=Inference(clip=None))`.

    clip:         learn from a residual as if it were no larger than so many predictive standard deviations,
                  and follow lasting changes of the level and scale of the values; None: no clipping
    node_noise:   every node has its own part of the noise
    noise_memory: entries after which an old error counts 1/e in the noise; None: the paper's noise, which
                  forgets nothing
    curvature:    use the paper's update; the update without it is cheaper and mostly better

    A classifier has curvature only. The values are checked when a model learns. Search over them with
    `inference__clip` and its like.
    """

    clip: float | None = 4.0
    node_noise: bool = True
    noise_memory: float | None = 10_000
    curvature: bool = False


GROUPS: dict[str, type[Group]] = {"prior": Prior, "inference": Inference}
GROUP_OF = {name: group for group, kind in GROUPS.items() for name in kind.names()}


def path_of(name: str) -> str:
    """What set_params calls a parameter that files name `name`: "bias_var" is "prior__bias_var"."""
    return f"{GROUP_OF[name]}__{name}" if name in GROUP_OF else name


def paths(params: Mapping[str, Any]) -> dict[str, Any]:
    """Flat parameters as set_params takes them."""
    return {path_of(name): value for name, value in params.items()}


def group_of(name: str, value: Any) -> Group:
    """The group that a parameter `prior` or `inference` of this value means."""
    kind = GROUPS[name]
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise ValueError(
            f"{name} must be {kind.__name__}(...) with the parameters {', '.join(kind.names())}, or None, "
            f"got {value!r:.200}"
        )
    return value


def flat(params: Mapping[str, Any], inside: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """The parameters one by one, in alphabetical order; `inside`: those that the estimator has in a group."""
    single = {name: value for name, value in params.items() if name not in inside}
    for group, names in inside.items():
        given = group_of(group, params[group])
        if unused := [name for name in given.changed() if name not in names]:
            raise ValueError(f"{unused[0]} has no meaning for this estimator: leave it out of {group}")
        single |= {name: getattr(given, name) for name in names}
    return dict(sorted(single.items()))


def grouped(params: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flat`; a group without changes is None."""
    found = {name: value for name, value in params.items() if name not in GROUP_OF}
    for group, kind in GROUPS.items():
        own = {name: params[name] for name in kind.names() if name in params}
        if own:
            given = kind(**own)
            found[group] = given if given.changed() else None
    return found
