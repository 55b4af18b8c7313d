"""Names from before 0.3, accepted with a FutureWarning that says what to write instead. Remove in 0.4.

`SpiderRegressor(bias_var=0.2)`, `set_params(bias_var=0.2)`, `model.bias_var`, and methods that are no longer
public.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

from spidertensor.estimator.groups import GROUP_OF, GROUPS, group_of, path_of

Kind = TypeVar("Kind", bound=type[Any])


def _warn(old: str, instead: str) -> None:
    """Warn at the caller of the function that calls this."""
    warnings.warn(f"{old} is accepted until spidertensor 0.4: {instead}", FutureWarning, stacklevel=3)


def takes_old_names(kind: Kind) -> Kind:
    """Class decorator: accept grouped parameters directly in __init__ and as attributes.

    Wraps __init__ because scikit-learn treats everything in its signature as a parameter.
    """
    old = [name for names in kind._inside.values() for name in names]
    init = kind.__init__

    @wraps(init)
    def __init__(self: Any, *args: Any, **params: Any) -> None:
        for name in old:
            if name in params:
                group, value = GROUP_OF[name], params.pop(name)
                _warn(f"{name}=...", f"write {group}={GROUPS[group].__name__}({name}={value!r:.80})")
                params[group] = _with(group, params.get(group), name, value)
        init(self, *args, **params)

    kind.__init__ = __init__
    for name in old:
        setattr(kind, name, _attribute(name))
    return kind


def new_paths(params: dict[str, Any], old: list[str]) -> dict[str, Any]:
    """The arguments of set_params, with `old` names replaced by paths such as `prior__bias_var`."""
    for name in old:
        if name in params:
            text = f"{name}=... is accepted until spidertensor 0.4: write {path_of(name)}=..."
            warnings.warn(text, FutureWarning, stacklevel=3)
    return {path_of(name) if name in old else name: value for name, value in params.items()}


def _with(group: str, given: Any, name: str, value: Any) -> Any:
    return replace(group_of(group, given), **{name: value})  # pyright: ignore[reportArgumentType]


def _attribute(name: str) -> property:
    group = GROUP_OF[name]

    def get(self: Any) -> Any:
        _warn(name, f"read get_params()[{path_of(name)!r}]")
        return getattr(group_of(group, getattr(self, group)), name)

    def put(self: Any, value: Any) -> None:
        _warn(name, f"write set_params({path_of(name)}=...)")
        setattr(self, group, _with(group, getattr(self, group), name, value))

    return property(get, put)


def _method(name: str, instead: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _warn(f"{name}()", instead)
        return getattr(self, f"_{name}")(*args, **kwargs)

    call.__name__, call.__doc__ = name, f"No longer public: {instead}."
    return call


class OldMethods:
    """Estimator methods that are no longer public."""

    learn_numbered = _method("learn_numbered", "use learn; node numbers are no longer public")
    rule_of = _method("rule_of", "there is no replacement")
    warn_at_end = _method("warn_at_end", "there is no replacement; fit warns by itself")
    parse_ids = _method("parse_ids", "pass ids as they were learned")
    parse_id = _method("parse_id", "pass ids as they were learned")

    def _parse_id(self: Any, mode: str | int, text: str) -> Any:
        return self._parse_ids(mode, [text])[0]
