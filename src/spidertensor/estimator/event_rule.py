"""Check the parameters of models of events and of what was seen, and build the Rule of events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.spider.events import Rule
from spidertensor.spider.network import Network
from spidertensor.spider.stacking import LEAST_WEIGHT

NEGATIVES = 8  # of a stream: default of the command and the study; chosen by benchmarks/choose_events.py
# least weight of all members without a network: before any entry, and after very many (study/docs/choices.md)
SIMPLE_AT_FIRST, SIMPLE = 1.0, 0.4
FIT_NEGATIVES = 32  # the same for a file that is learned several times: benchmarks/event_passes.py


def resolved(
    params: dict[str, Any], names: Sequence[str] | None, n_modes: int, with_id: Sequence[int]
) -> dict[str, Any]:
    """The parameters with modes given by number. ValueError if they contradict each other or the entries.

    with_id: the modes that have ids
    """
    if params.get("negatives") is None:
        for name in ("negatives_over", "negatives_power"):
            if params.get(name) not in (None, False):
                raise ValueError(
                    f"{name} is for a model of events: pass the number of negatives, such as negatives=8"
                )
        if params.get("remember_seen", False) is False:
            return params
        _check_all_kept(params)
        return params | {"remember_seen": _both(params["remember_seen"], names, n_modes, with_id)}
    over = params["negatives_over"]
    if over is None:
        raise ValueError("negatives_over must name the mode whose nodes are drawn, such as the product")
    over = [_number(mode, names, n_modes) for mode in (over if isinstance(over, list) else [over])]
    if len(set(over)) < len(over):
        raise ValueError("negatives_over names a mode twice")
    whose = params["remember_seen"]
    if whose is not False:
        whose = _whose(whose, over, names, n_modes)
        _check_all_kept(params)
    return params | {"negatives_over": over, "remember_seen": whose}


def seen_modes(params: dict[str, Any], rule: Rule | None) -> tuple[int, int] | None:
    """The modes whose pairs of nodes are remembered, by resolved parameters: who has seen, and what."""
    seen = params.get("remember_seen", False)
    if seen is False:
        return None
    return (seen, rule.over[0]) if rule is not None else (seen[0], seen[1])


def rule_of(params: dict[str, Any]) -> Rule | None:
    """The Rule for resolved parameters; None if the model does not learn from events."""
    if params.get("negatives") is None:
        return None
    return Rule(params["negatives"], tuple(params["negatives_over"]), params["negatives_power"])


def least_weights(networks: Sequence[Network]) -> NDArray[np.float64] | None:
    """The weights that members of a model of events keep, whatever they predict: see Mixing.

    Weights go by the next event, which is often that of a newcomer and like the last ones. Members with a
    network learn that, but where events are few they rank for everybody else worse than popularity. Members
    without one do not, so together they keep a share.
    """
    simple = np.array([not any(each.ranks) for each in networks])
    if simple.all() or not simple.any():
        return None
    kept = np.array([[SIMPLE], [SIMPLE_AT_FIRST - SIMPLE]]) * simple / simple.sum()
    return np.maximum(kept, [[LEAST_WEIGHT], [0.0]])


def _number(mode: Any, names: Sequence[str] | None, n_modes: int) -> int:
    names = list(names or ())
    if mode in names:
        return names.index(mode)
    if isinstance(mode, int) and 0 <= mode < n_modes:
        return mode
    raise ValueError(f"no mode {mode!r}: there are {', '.join(names or map(str, range(n_modes)))}")


def _check_all_kept(params: dict[str, Any]) -> None:
    if params["max_nodes"] is not None:
        raise ValueError("remember_seen needs all nodes, but max_nodes evicts some: leave one of them out")


def _both(seen: Any, names: Sequence[str] | None, n_modes: int, with_id: Sequence[int]) -> list[int]:
    """The numbers of both modes whose pairs are remembered, in a model that is not of events."""
    if not isinstance(seen, list) and len(with_id) == 2:
        first = with_id[0] if seen is True else _number(seen, names, n_modes)
        seen = [first, *(mode for mode in with_id if mode != first)]
    if not isinstance(seen, list):
        raise ValueError(
            f"with {len(with_id)} modes of ids remember_seen must name two: who has seen and what, such as "
            '("user", "movie")'
        )
    both = [_number(mode, names, n_modes) for mode in seen]
    if len(set(both)) != 2 or len(both) != 2 or not set(both) <= set(with_id):
        raise ValueError(f"remember_seen must name two modes that have ids, got {seen!r:.80}")
    return both


def _whose(whose: Any, over: list[int], names: Sequence[str] | None, n_modes: int) -> int:
    """The number of the mode recommended to, whose pairs are remembered, in a model of events."""
    if isinstance(whose, list):
        raise ValueError("for events remember_seen names one mode: negatives_over says what is seen")
    if len(over) > 1:
        raise ValueError("remember_seen needs one mode in negatives_over, which names several")
    if whose is not True:
        whose = _number(whose, names, n_modes)
        if whose in over:
            raise ValueError("remember_seen must name another mode than negatives_over")
        return whose
    if n_modes != 2:
        raise ValueError(
            f"with {n_modes} modes remember_seen must name the one that is recommended to, such as the user"
        )
    return 1 - over[0]
