"""Models fitted to all training entries at once, given the same columns: myFM, LightGBM, CatBoost.

Each is a function `fit(described, columns, train, seed)` that returns what it predicts for an index, and the
settings it used. The number of trees is chosen by the last tenth of the training entries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from described_data import ATTRIBUTES, Described, Floats, Index
from numpy.typing import NDArray

from spidertensor.method import Batch

TREES, PATIENCE = 2000, 50


class Fitted(NamedTuple):
    predict: Callable[[Index], Floats]
    settings: dict[str, Any]


class Static(NamedTuple):
    package: str
    fit: Callable[[Described, str, Batch, int], Fitted]
    columns: tuple[str, ...] = ("ids", "attributes")


def myfm(described: Described, columns: str, train: Batch, seed: int) -> Fitted:
    """Gibbs sampling; a block for each mode with one row for each node, a group for each column."""
    from myfm import MyFMGibbsRegressor, RelationBlock
    from scipy.sparse import csr_matrix

    settings = {"rank": 10, "n_iter": 200, "n_kept_samples": 180}
    blocks, groups = [], []
    for bags in described.bags(columns):
        names = sorted({name for bag in bags for name, _ in bag}, key=lambda name: name.split("=")[0])
        place = {name: at for at, name in enumerate(names)}
        cells = [(node, place[name], weight) for node, bag in enumerate(bags) for name, weight in bag]
        rows, at, weights = zip(*cells, strict=True)
        blocks.append(csr_matrix((weights, (rows, at)), shape=(len(bags), len(names))))
        kinds = [name.split("=")[0] for name in names]
        groups += [kinds.count(kind) for kind in dict.fromkeys(kinds)]

    def given(index: Index) -> list[RelationBlock]:
        return [RelationBlock(nodes.tolist(), block) for nodes, block in zip(index.T, blocks, strict=True)]

    def none(index: Index) -> Any:
        return csr_matrix((len(index), 0))

    model = MyFMGibbsRegressor(settings["rank"], random_seed=seed)
    kept = {name: settings[name] for name in ("n_iter", "n_kept_samples")}
    model.fit(none(train.index), train.value, X_rel=given(train.index), group_shapes=groups, **kept)
    return Fitted(lambda index: model.predict(none(index), given(index)), settings)


def _table(described: Described, columns: str, index: Index) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """Columns of numbers, with one of 0 and 1 for each genre, and columns of categories as numbers."""
    numbers, categories = [], []
    for table, nodes in zip(described.tables if columns == ATTRIBUTES else (), index.T, strict=False):
        for column in table.values():
            if column.dtype == object:
                names = sorted({each for values in column for each in values})
                has = np.array([[name in values for name in names] for values in column], np.float64)
                numbers += list(has[nodes].T)
            elif column.dtype.kind == "U":
                categories.append(np.unique(column, return_inverse=True)[1][nodes])
            else:
                numbers.append(column[nodes].astype(np.float64))
    return numbers, categories


def lightgbm(described: Described, columns: str, train: Batch, seed: int) -> Fitted:
    """Trees over the mean value (out of fold) and number of entries of each node, and its attributes."""
    from lightgbm import LGBMRegressor, early_stopping
    from sklearn.model_selection import KFold
    from sklearn.preprocessing import TargetEncoder

    def fit(part: Batch, n_trees: int, judge: Batch | None) -> tuple[Any, Callable[[Index], NDArray[Any]]]:
        counts = [
            np.bincount(nodes, minlength=size)
            for nodes, size in zip(part.index.T, described.data.shape, strict=True)
        ]
        encoder = TargetEncoder(target_type="continuous", cv=KFold(5, shuffle=True, random_state=seed))

        def features(index: Index, means: NDArray[Any] | None = None) -> NDArray[Any]:
            seen = [count[nodes] for count, nodes in zip(counts, index.T, strict=True)]
            numbers, categories = _table(described, columns, index)
            means = encoder.transform(index) if means is None else means
            return np.column_stack([means, *seen, *numbers, *categories])

        own = features(part.index, encoder.fit_transform(part.index, part.value))
        n_categories = len(_table(described, columns, part.index[:1])[1])
        model = LGBMRegressor(
            n_estimators=n_trees, num_leaves=63, learning_rate=0.05, random_state=seed, n_jobs=1, verbose=-1
        )
        judging = {}
        if judge:
            judging = {
                "eval_X": features(judge.index),
                "eval_y": judge.value,
                "callbacks": [early_stopping(PATIENCE, verbose=False)],
            }
        named = list(range(own.shape[1] - n_categories, own.shape[1]))
        model.fit(own, part.value, categorical_feature=named, **judging)
        return model, features

    inner, judge = _cut(train)
    n_trees = int(fit(inner, TREES, judge)[0].best_iteration_)
    model, features = fit(train, n_trees, None)
    return Fitted(lambda index: model.predict(features(index)), {"num_leaves": 63, "n_estimators": n_trees})


def catboost(described: Described, columns: str, train: Batch, seed: int) -> Fitted:
    """Trees with ids and attributes as categories, its own way."""
    from catboost import CatBoostRegressor, Pool

    def pool(index: Index, value: Floats | None = None) -> Pool:
        numbers, categories = _table(described, columns, index)
        named = [*index.T, *categories]
        table = np.empty((len(index), len(named) + len(numbers)), object)
        for at, column in enumerate([*named, *numbers]):
            table[:, at] = column
        return Pool(table, value, cat_features=list(range(len(named))))

    def fit(part: Batch, n_trees: int, judge: Batch | None) -> Any:
        model = CatBoostRegressor(
            iterations=n_trees, learning_rate=0.1, random_seed=seed, thread_count=1, verbose=False,
            allow_writing_files=False,
        )  # fmt: skip
        judging = {"eval_set": pool(*judge[:2]), "early_stopping_rounds": PATIENCE} if judge else {}
        return model.fit(pool(*part[:2]), **judging)

    inner, judge = _cut(train)
    n_trees = int(fit(inner, TREES // 2, judge).get_best_iteration()) + 1
    model = fit(train, n_trees, None)
    return Fitted(lambda index: model.predict(pool(index)), {"learning_rate": 0.1, "iterations": n_trees})


def _cut(train: Batch) -> tuple[Batch, Batch]:
    cut = int(0.9 * len(train.value))
    return Batch(train.index[:cut], train.value[:cut]), Batch(train.index[cut:], train.value[cut:])


STATIC = {
    "myFM": Static("myfm", myfm),
    "LightGBM": Static("lightgbm", lightgbm),
    "CatBoost": Static("catboost", catboost),
}
