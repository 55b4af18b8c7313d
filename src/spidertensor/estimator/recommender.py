"""The part of an estimator that recommends: the best nodes of a mode for the ids in all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from spidertensor.estimator.candidates import Excluded, candidates_of, given_columns
from spidertensor.estimator.known import Known
from spidertensor.estimator.notes import Noting
from spidertensor.estimator.recommend import Recommendation, best_nodes, check_modes, seen_with
from spidertensor.estimator.threads import locked


class Recommender(Known, Noting):
    """Ranks nodes by what was learned."""

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
    ) -> list[Recommendation]:
        """The n best nodes of mode `over`, best first, for the ids `given` in all other modes.

        A mode is named by its column or its number.

        explore: "mean" ranks by the expected value; "ucb" by the mean of f plus two standard deviations;
                 "thompson" by one joint draw of all weights and factors, of a member drawn by its weight
        seed:    of that draw
        coverage: add the interval that holds an observation with this probability, as predict_interval does
        candidates: the ids to rank; by default all that were learned. Where other modes depend on the
                 candidate, a dict of columns or a frame: {"product": [...], "category": [...]}; `given` then
                 leaves these modes out. An id that was never learned is predicted from the prior
        exclude: ids not to recommend; or a dict of columns or a frame, such as {"user": [...], "movie":
                 [...]}: a movie is left out for its user only
        """
        rows = {mode: [raw] for mode, raw in given.items()}
        return self.recommend_many(rows, over, n, explore, seed, coverage, candidates, exclude)[0]

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
    ) -> list[list[Recommendation]]:
        """`recommend` for each row of a table: one list for each row, in their order.

        given: a dict of columns of ids, or a frame: {"user": [1, 2], "hour": [8, 17]}. All else is as in
               recommend; with "thompson" each row has a draw of its own
        """
        fitted, mode = self._fitted(), self._mode(over)
        columns = given_columns(given, self._mode)
        ranked = candidates_of(candidates, mode, fitted.nodes, self._mode)
        if fitted.pairs is not None and fitted.params["remember_seen"] in ranked.numbers:
            reason = "the mode of remember_seen must be given, not in the candidates: what it had is left out"
            raise ValueError(reason)
        excluded = Excluded(exclude, mode, columns, fitted.nodes, self._mode)
        check_modes(fitted, columns, ranked)
        rng = np.random.default_rng(seed)
        how: dict[str, Any] = {"n": n, "explore": explore, "rng": rng, "coverage": coverage}
        rows = [dict(zip(columns, ids, strict=True)) for ids in zip(*columns.values(), strict=True)]
        rows = rows if columns else [{}]  # the candidates name all modes
        best = []
        for ids in rows:
            left_out = [*excluded.of(ids), *seen_with(fitted, mode, ids)]
            best.append(best_nodes(fitted, ranked, ids, ranked.places(left_out), **how))
        numbers = {mode: fitted.nodes[mode].find(column) for mode, column in columns.items()}
        self._notes.predicted(fitted, columns, numbers, getattr(self, "feature_names_in_", None))
        return best
