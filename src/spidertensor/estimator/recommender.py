"""Mixin of the estimators that recommends the best nodes of a mode, given ids in all other modes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from spidertensor.estimator.candidates import (
    Candidates,
    Excluded,
    candidates_of,
    given_columns,
    is_sequence,
)
from spidertensor.estimator.event_rule import seen_modes
from spidertensor.estimator.inputs import by_name
from spidertensor.estimator.known import Known
from spidertensor.estimator.notes import Noting
from spidertensor.estimator.recommend import Recommendation, best_nodes, check_modes, seen_with
from spidertensor.estimator.strangers import recent_columns, stated_recent
from spidertensor.estimator.threads import locked
from spidertensor.faults import EntryError


class Recommender(Known, Noting):
    """Ranks the nodes of a mode by their predictions."""

    @locked
    def recommend(
        self,
        given: Mapping[str | int, Any],
        over: str | int,
        n: int = 10,
        explore: str = "mean",
        seed: int | None = None,
        coverage: float | None = None,
        candidates: Any = None,
        exclude: Any = None,
        calibration: str = "auto",
        best: str = "high",
    ) -> list[Recommendation]:
        """The n best nodes of mode `over`, best first, for the ids `given` in all other modes.

        Modes are given by column name or number. Somebody who is not in the model is described by attributes,
        and in a mode with a Recent by what they had, the latest last: {"recent(movie)": ["Alien", "Heat"]}.

        explore:    "mean" ranks by expected value; "ucb" by the mean of f plus two standard deviations, minus
                    two with best="low"; "thompson" by one joint draw of all weights and factors, from a
                    member drawn by weight
        seed:       of that draw
        coverage:   also return a prediction interval with this coverage, as predict_interval does
        candidates: the ids to rank; by default all learned ones. If other modes depend on the candidate, a
                    dict of columns or a data frame: {"product": [...], "category": [...]}; leave these modes
                    out of `given`. Attributes of the candidates may stand beside them. Unseen ids are
                    predicted from their attributes and the prior
        exclude:    ids not to recommend; or a dict of columns or a data frame, such as
                    {"user": [...], "movie": [...]}, which excludes each movie for its user only
        calibration: of the interval; see predict_interval
        best:       "low" ranks the lowest first: delays, prices
        """
        rows = {mode: [raw] for mode, raw in given.items()}
        how: dict[str, Any] = {"coverage": coverage, "calibration": calibration, "best": best}
        how |= {"candidates": candidates, "exclude": exclude}
        return self.recommend_many(rows, over, n, explore, seed, **how)[0]

    @locked
    def recommend_many(
        self,
        given: Any,
        over: str | int,
        n: int = 10,
        explore: str = "mean",
        seed: int | np.random.Generator | None = None,
        coverage: float | None = None,
        candidates: Any = None,
        exclude: Any = None,
        calibration: str = "auto",
        best: str = "high",
    ) -> list[list[Recommendation]]:
        """Recommend for each row of a table; returns one list per row, in order.

        given: a dict of columns of ids or a data frame: {"user": [1, 2], "hour": [8, 17]}, with attribute
               columns beside them if the model has any. All other parameters are as in `recommend`; with
               "thompson" each row gets its own draw
        """
        fitted, mode = self._fitted(), self._mode(over)
        given, situations = self._apart(given, "given")
        columns = given_columns(given, self._mode)
        ranked = self._candidates(candidates, mode)
        if twice := ranked.given.keys() & situations.keys():
            raise ValueError(f"{min(twice)!r:.80} is given and among the candidates: leave one of them out")
        seen = seen_modes(fitted.params, fitted.model.rule)
        if seen is not None and set(seen) - {mode} <= ranked.numbers.keys():
            reason = "the mode of remember_seen must be given, not among the candidates"
            raise ValueError(reason)
        excluded = Excluded(exclude, mode, columns, fitted.nodes, self._mode)
        check_modes(fitted, columns, situations, ranked, self.mode_names_)
        rng = np.random.default_rng(seed)
        interval = None if coverage is None else (coverage, calibration)
        options: dict[str, Any] = {"n": n, "explore": explore, "best": best, "rng": rng}
        options["interval"] = interval
        rows = [dict(zip(columns, ids, strict=True)) for ids in zip(*columns.values(), strict=True)]
        if not columns:  # the candidates cover all modes, or the situations describe the others
            rows = [{} for _ in next(iter(situations.values()), [None])]
        found, had_by, recents = [], [], recent_columns(fitted.columns)
        for number, ids in enumerate(rows):
            situation = {name: column[number] for name, column in situations.items()}
            stated = stated_recent(fitted, situation)
            had_by.append(stated)
            had = [nodes for name, nodes in stated.items() if recents[name] == mode]
            had = np.concatenate([seen_with(fitted, mode, ids), *had])
            left_out = ranked.places(excluded.of(ids), had)
            found.append(best_nodes(fitted, ranked, ids, left_out, situation=situation, **options))
        numbers = {mode: fitted.nodes[mode].find(column) for mode, column in columns.items()}
        self._notes.predicted(fitted, columns, numbers, getattr(self, "feature_names_in_", None))
        self._notes.stated(had_by)
        return found

    def _candidates(self, table: Any, over: int) -> Candidates:
        """The candidates, with their attributes checked."""
        fitted, attributes = self._fitted(), {}
        if not (table is None or is_sequence(table)):
            table, attributes = self._apart(table, "candidates")
        ranked = candidates_of(table, over, fitted.nodes, self._mode, attributes)
        if ranked.given and fitted.columns is not None:
            try:
                fitted.columns.check(ranked.given, len(ranked))
            except EntryError as error:
                raise error.but(reason=f"candidates: {error.reason}") from None
        return ranked

    def _apart(self, table: Any, what: str) -> tuple[Any, dict[str, Any]]:
        """Split a table into ids by mode and attribute columns by name. what: for error messages"""
        columns = self._fitted().columns
        if columns is None:
            return table, {}
        with_id = {mode.name for mode in columns.schema.modes if mode.has_id}
        attributes = [name for name in columns.schema.inputs if name not in with_id]
        attributes += recent_columns(columns) if what == "given" else ()
        named = by_name(table, what, attributes)
        own = {name: column for name, column in named.items() if name in with_id or not isinstance(name, str)}
        rest = {name: list(column) for name, column in named.items() if name not in own}
        if strange := [name for name in rest if name not in attributes]:
            known = ", ".join(dict.fromkeys([*columns.schema.names, *attributes]))
            reason = f"{what} names {strange[0]!r:.80}, which is neither a mode nor an attribute"
            raise ValueError(f"{reason}: there are {known}")
        if len(lengths := {len(column) for column in named.values()}) > 1:
            raise EntryError(f"columns of {what} differ in length: {sorted(lengths)}")
        return own, rest
