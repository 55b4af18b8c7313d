"""Groups of parameters: `prior=Prior(...)` and `inference=Inference(...)`.

Files and the dicts of a committee list these parameters flat; `flat` and `grouped` convert.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from spidertensor.spider import posterior


class ParameterGroup:
    """Base class of parameter groups. Immutable, so estimators may share one.

    `set_params(prior__bias_var=0.2)` gives the estimator a new one.
    """

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))  # pyright: ignore[reportArgumentType]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name, for scikit-learn."""
        return {name: getattr(self, name) for name in self.names()}

    def changed(self) -> dict[str, Any]:
        """The parameters that differ from their defaults."""
        own = self.get_params()
        return {name: value for name, value in own.items() if repr(value) != repr(getattr(type(self), name))}

    def __repr__(self) -> str:
        changed = ", ".join(f"{name}={value!r}" for name, value in self.changed().items())
        return f"{type(self).__name__}({changed})"


@dataclass(frozen=True, repr=False)
class Prior(ParameterGroup):
    """What a model assumes before its first entry: `SpiderRegressor(prior=Prior(bias_var=0.2))`.

    multilinear_var:   variance of a multilinear factor with two modes; scaled down for more modes
    multilinear_start: standard deviation of the initial values of these factors
    bias_var:          variance of a node's bias
    factor_var:        variance of each factor that enters the network
    rho0:              probability that a weight is in the network
    slab_var:          variance of a weight that is in the network

    Variances are in units of the scaled values (see `scaling` in SpiderRegressor). Checked when learning
    begins. In a grid search, use names such as `prior__bias_var`.
    """

    multilinear_var: float = posterior.Prior.multilinear_var
    multilinear_start: float = posterior.Prior.multilinear_start
    bias_var: float = posterior.Prior.bias_var
    factor_var: float = posterior.Prior.factor_var
    rho0: float = posterior.Prior.rho0
    slab_var: float = posterior.Prior.slab_var


@dataclass(frozen=True, repr=False)
class Inference(ParameterGroup):
    """How a model learns from an entry: `SpiderRegressor(inference=Inference(clip=None))`.

    clip:         limit residuals to this many predictive standard deviations, and follow lasting changes of
                  the level and scale of the values; None: neither
    node_noise:   learn a noise factor for each node
    noise_memory: entries after which an old error counts 1/e in the noise; None: the paper's noise, which
                  never forgets
    curvature:    use the paper's update; the default update is cheaper and usually better

    A classifier has `curvature` only. Checked when learning begins. In a grid search, use names such as
    `inference__clip`.
    """

    clip: float | None = 4.0
    node_noise: bool = True
    noise_memory: float | None = 10_000
    curvature: bool = False


GROUPS: dict[str, type[ParameterGroup]] = {"prior": Prior, "inference": Inference}
GROUP_OF = {name: group for group, kind in GROUPS.items() for name in kind.names()}


def path_of(name: str) -> str:
    """The set_params name of a flat parameter: "bias_var" is "prior__bias_var"."""
    return f"{GROUP_OF[name]}__{name}" if name in GROUP_OF else name


def paths(params: Mapping[str, Any]) -> dict[str, Any]:
    """Flat parameters under their set_params names."""
    return {path_of(name): value for name, value in params.items()}


def group_of(name: str, value: Any) -> ParameterGroup:
    """The group for a value of the parameter `prior` or `inference`; None means the defaults."""
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
    """Replace groups by their parameters, sorted by name; `inside`: the parameters used from each group."""
    single = {name: value for name, value in params.items() if name not in inside}
    for group, names in inside.items():
        given = group_of(group, params[group])
        if unused := [name for name in given.changed() if name not in names]:
            raise ValueError(f"{unused[0]} has no meaning for this estimator: leave it out of {group}")
        single |= {name: getattr(given, name) for name in names}
    return dict(sorted(single.items()))


def grouped(params: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flat`; a group with all defaults becomes None."""
    found = {name: value for name, value in params.items() if name not in GROUP_OF}
    for group, kind in GROUPS.items():
        own = {name: params[name] for name in kind.names() if name in params}
        if own:
            given = kind(**own)
            found[group] = given if given.changed() else None
    return found
