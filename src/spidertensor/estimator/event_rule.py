"""Check the parameters of a classifier that learns from events, and build its Rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spidertensor.spider.events import Rule

NEGATIVES = 8  # of a stream: default of the command and the study; chosen by benchmarks/choose_events.py
FIT_NEGATIVES = 32  # the same for a file that is learned several times: benchmarks/event_passes.py


def resolved(params: dict[str, Any], names: Sequence[str] | None, n_modes: int) -> dict[str, Any]:
    """The parameters with modes given by number. ValueError if they contradict each other or the entries."""
    over = params["negatives_over"]
    if params["negatives"] is None:
        for name in ("negatives_over", "negatives_power", "remember_seen"):
            if params[name] not in (None, False) or (name == "remember_seen" and params[name] is not False):
                raise ValueError(
                    f"{name} is for a model of events: pass the number of negatives, such as negatives=8"
                )
        return params
    if over is None:
        raise ValueError("negatives_over must name the mode whose nodes are drawn, such as the product")
    over = [_number(mode, names, n_modes) for mode in (over if isinstance(over, list) else [over])]
    if len(set(over)) < len(over):
        raise ValueError("negatives_over names a mode twice")
    whose = params["remember_seen"]
    if whose is not False:
        whose = _whose(whose, over, names, n_modes)
        if params["max_nodes"] is not None:
            raise ValueError(
                "remember_seen needs all nodes, but max_nodes evicts some: leave one of them out"
            )
    return params | {"negatives_over": over, "remember_seen": whose}


def rule_of(params: dict[str, Any]) -> Rule | None:
    """The Rule for resolved parameters; None if the model does not learn from events."""
    if params.get("negatives") is None:
        return None
    return Rule(params["negatives"], tuple(params["negatives_over"]), params["negatives_power"])


def _number(mode: Any, names: Sequence[str] | None, n_modes: int) -> int:
    names = list(names or ())
    if mode in names:
        return names.index(mode)
    if isinstance(mode, int) and 0 <= mode < n_modes:
        return mode
    raise ValueError(f"no mode {mode!r}: there are {', '.join(names) or n_modes}")


def _whose(whose: Any, over: list[int], names: Sequence[str] | None, n_modes: int) -> int:
    """The number of the mode recommended to, whose pairs are remembered."""
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
