"""Peers of benchmarks/late_values.py as Methods, for the honest clock.

    River FM   a factorization machine that learns one by one; attributes become features, numbers by tenths
    LightGBM   walk-forward: fitted anew every four weeks to all that is known by then, predicting in between

LightGBM has the mean value (out of fold) and number of entries of each id, and the attributes. The last tenth
of what is known decides how many trees; then it is fitted to all. With `recent` it also has the mean of what
became known in the last hours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from described_static import PATIENCE, TREES
from numpy.typing import NDArray
from peer_models import factorization_machine

from spidertensor.demo import described_flights, flights
from spidertensor.evaluation.clock import Clock, clock_of
from spidertensor.evaluation.protocols import SKIPPED_SHARE
from spidertensor.method import Batch, Method, Prediction, Update
from spidertensor_study import datasets
from spidertensor_study.datasets import Dataset

REFIT_S, FIRST_FIT = 28 * 86_400, 1000  # FIRST_FIT: entries known before the first fit
TENTHS = np.arange(0.1, 1, 0.1)
RECENT_S = 3 * 3600
NUMBERS = ("distance", "plane_year", "plane_seats", *flights.WEATHER)
TEXTS = ("plane_manufacturer", "plane_model", "plane_engine")
RECENT = ("origin", "carrier", "dest")

Table = dict[str, NDArray[Any]]
Times = NDArray[np.int64]


class Flights(NamedTuple):
    """The stream, its rows in the last column of the index; its clock; what is known of each flight."""

    data: Dataset
    stream: Batch
    clock: Clock
    table: dict[str, NDArray[Any]]

    @classmethod
    def load(cls, tick_s: float) -> Flights:
        data, table = datasets.load(flights.INFO.name), described_flights()
        whole = data.in_time_order()
        stream = Batch(np.column_stack([whole.index, np.arange(len(whole.value))]), whole.value)
        known = {name: column for name, column in table.items() if name not in ("landed", "delay")}
        return cls(data, stream, clock_of(data)._replace(tick=tick_s), known)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Attributes as columns of numbers and texts."""
        asked = self.clock.asked.astype(np.int64)
        return of_clock(asked) | {name: self.table[name] for name in (*NUMBERS, *TEXTS)}

    def first(self) -> tuple[Batch, Clock]:
        """The tenth that is not scored."""
        n = int(SKIPPED_SHARE * len(self.stream.value))
        clock = self.clock._replace(asked=self.clock.asked[:n], known=self.clock.known[:n])
        return Batch(self.stream.index[:n], self.stream.value[:n]), clock


def of_clock(time: Times) -> Table:
    """What a calendar has of times, in seconds since 1970: minute of the day, weekday, day of the year."""
    days = time // 86_400
    year = time.astype("datetime64[s]").astype("datetime64[Y]").astype("datetime64[D]").astype(np.int64)
    return {"minute": time // 60 % 1440, "weekday": days % 7, "day": days - year}


def codes(ids: NDArray[np.int64], table: Table, n_first: int) -> NDArray[np.int64]:
    """All columns as categories: ids, texts, tenths of numbers by their first `n_first`; -1 is missing."""
    found = list(ids.T)
    for column in table.values():
        if column.dtype == object:
            found.append(np.unique(column.astype(str), return_inverse=True)[1])
        else:
            number = column.astype(np.float64)
            edges = np.unique(np.nanquantile(number[:n_first], TENTHS))
            found.append(np.where(np.isnan(number), -1, np.searchsorted(edges, number, side="right")))
    return np.column_stack(found)


def river_fm(data: Dataset, features: NDArray[np.int64], **settings: Any) -> Method:
    """features: a row of categories for each entry, whose number is the last column of the index"""

    def update(state: Any, batch: Batch) -> tuple[Any, Update]:
        rows = features[batch.index[:, -1]].tolist()
        for row, value in zip(rows, batch.value.tolist(), strict=True):
            state.learn(row, value)
        return state, _no_update(batch)

    def predict(state: Any, index: NDArray[np.integer], bags: Any = None) -> Prediction:
        return _certain(np.array([state.predict(row) for row in features[index[:, -1]].tolist()]))

    return Method(lambda seed: factorization_machine(data, **settings), update, predict, "entry")


@dataclass
class _Walk:
    """What is known so far, and the model of the last fit."""

    rows: list[NDArray[np.int64]] = field(default_factory=list)
    values: list[NDArray[np.float64]] = field(default_factory=list)
    next_fit: float = 0.0
    fitted: Any = None
    trees: list[int] = field(default_factory=list)


def lightgbm(ids: NDArray[np.int64], table: Table, known: Times, trees: list[int]) -> Method:
    """known: when the value of each entry is. trees: gets the number of each fit"""

    def update(state: _Walk, batch: Batch) -> tuple[_Walk, Update]:
        rows = batch.index[:, -1]
        state.rows.append(rows)
        state.values.append(batch.value)
        now = known[rows].max()
        if now >= state.next_fit and sum(map(len, state.rows)) >= FIRST_FIT:
            state.fitted = _fit(ids, table, np.concatenate(state.rows), np.concatenate(state.values), trees)
            state.next_fit = now + REFIT_S
        return state, _no_update(batch)

    def predict(state: _Walk, index: NDArray[np.integer], bags: Any = None) -> Prediction:
        rows = index[:, -1]
        if state.fitted is None:
            return _certain(np.full(len(rows), np.mean(np.concatenate(state.values))))
        return _certain(state.fitted(rows))

    return Method(lambda seed: _Walk(), update, predict, "entry")


def _fit(ids: Any, table: Table, rows: Any, value: Any, trees: list[int]) -> Any:
    from lightgbm import LGBMRegressor, early_stopping
    from sklearn.model_selection import KFold
    from sklearn.preprocessing import TargetEncoder

    numbers = [each.astype(np.float64) for each in table.values() if each.dtype != object]
    texts = [
        np.unique(each.astype(str), return_inverse=True)[1] for each in table.values() if each.dtype == object
    ]

    def fit(part: slice, n_trees: int, judge: slice | None) -> tuple[Any, Any]:
        own, counts = ids[rows[part]], []
        for nodes, every in zip(own.T, ids.T, strict=True):
            counts.append(np.bincount(nodes, minlength=every.max() + 1)[every])
        encoder = TargetEncoder(target_type="continuous", cv=KFold(5, shuffle=True, random_state=0))

        def features(at: Any, means: Any = None) -> NDArray[np.float64]:
            means = encoder.transform(ids[at]) if means is None else means
            return np.column_stack([means, *(each[at] for each in (*counts, *numbers, *texts))])

        own = features(rows[part], encoder.fit_transform(own, value[part]))
        model = LGBMRegressor(
            n_estimators=n_trees, num_leaves=63, learning_rate=0.05, random_state=0, n_jobs=1, verbose=-1
        )
        how: dict[str, Any] = {"categorical_feature": list(range(own.shape[1] - len(texts), own.shape[1]))}
        if judge is not None:
            how |= {"eval_X": features(rows[judge]), "eval_y": value[judge]}
            how |= {"callbacks": [early_stopping(PATIENCE, verbose=False)]}
        model.fit(own, value[part], **how)
        return model, features

    cut = int(0.9 * len(rows))
    trees.append(int(fit(slice(cut), TREES, slice(cut, None))[0].best_iteration_))
    model, features = fit(slice(None), trees[-1], None)
    return lambda at: model.predict(features(at))


def recent(groups: Table, value: NDArray[np.float64], asked: Times, known: Times, tick: float) -> Table:
    """Mean and number of the values that became known in the last hours before each entry's tick began: of
    all entries, and of those of its own group."""
    now, order = (asked - asked[0]) // tick * tick + asked[0], np.argsort(known, kind="stable")
    found: Table = {}
    for name, group in ({"all": np.zeros(len(asked), np.int64)} | groups).items():
        mean, number = np.full(len(asked), np.nan), np.zeros(len(asked))
        for one in np.unique(group):
            own, at = order[group[order] == one], np.flatnonzero(group == one)
            total = np.concatenate([[0.0], np.cumsum(value[own])])
            first, last = (np.searchsorted(known[own], now[at] - before) for before in (RECENT_S, 0))
            number[at] = last - first
            some = last > first
            mean[at[some]] = (total[last] - total[first])[some] / number[at[some]]
        found |= {f"recent mean, {name}": mean, f"recent number, {name}": number}
    return found


def _no_update(batch: Batch) -> Update:
    return Update(*np.zeros((4, len(batch.value))), rejected=0)


def _certain(mean: NDArray[np.float64]) -> Prediction:
    """A prediction without a variance; 1 stands for it, because a Prediction needs one."""
    return Prediction(mean, np.zeros(len(mean)), np.ones(len(mean)))
