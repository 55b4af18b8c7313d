"""The libraries of benchmarks/peers.py: how each is fitted and asked, what is tuned, and what it can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Batch
from spidertensor.scaling import Scaling
from spidertensor.spider.likelihoods import PROBIT
from spidertensor_study.datasets import Dataset

BATCH = 256  # entries whose values give the scale of the others, as for ours

Floats = NDArray[np.float64]


class Predicted(NamedTuple):
    """mean: (n,), of binary values the probability of a 1, or a score that orders them.
    var: (n,), of a value around it; None of a model that has none."""

    mean: Floats
    var: Floats | None = None


class Fitted(NamedTuple):
    model: Any
    predict: Callable[[NDArray[np.int64]], Predicted]  # of an index (n, K)


class Can(NamedTuple):
    """What a library can do, read in its documentation and source.

    streams:     learns more entries after it was fitted
    new_ids:     takes ids that it was not told of, while it learns
    uncertainty: has a variance or an interval of a continuous value, from the one model that was fitted
    many_modes:  more than two
    binary:      has a probability of binary values
    counts:      has a likelihood of counts
    """

    streams: bool = False
    new_ids: bool = False
    uncertainty: bool = False
    many_modes: bool = True
    binary: bool = True
    counts: bool = False


class Peer(NamedTuple):
    """What is run.

    package:    that is imported
    fit:        training entries, data set, **settings -> Fitted
    start:      its settings; axes: what is tried for each of them, in turn
    passes:     settings -> how often the training entries are read
    one_by_one: data set, **settings -> OneByOne, of a model that learns entry by entry
    """

    package: str
    fit: Callable[..., Fitted]
    start: dict[str, Any]
    axes: dict[str, tuple[Any, ...]]
    passes: Callable[[dict[str, Any]], int]
    can: Can
    one_by_one: Callable[..., OneByOne] | None = None


# --- River


class OneByOne(NamedTuple):
    model: Any
    predict: Callable[[Sequence[int]], float]
    learn: Callable[[Sequence[int], float], object]


def biased_mf(data: Dataset, *, rate: float, latent_rate: float, n_factors: int) -> OneByOne:
    from river import optim, reco

    model = reco.BiasedMF(
        n_factors, bias_optimizer=optim.SGD(rate), latent_optimizer=optim.SGD(latent_rate), seed=0
    )
    return OneByOne(
        model,
        lambda nodes: model.predict_one(nodes[0], nodes[1]),
        lambda nodes, value: model.learn_one(nodes[0], nodes[1], value),
    )


def factorization_machine(data: Dataset, *, rate: float, latent_rate: float, n_factors: int) -> OneByOne:
    from river import facto, optim

    kind = facto.FMClassifier if data.likelihood is PROBIT else facto.FMRegressor
    model = kind(n_factors, weight_optimizer=optim.SGD(rate), latent_optimizer=optim.SGD(latent_rate), seed=0)

    def features(nodes: Sequence[int]) -> dict[tuple[int, int], int]:
        return dict.fromkeys(enumerate(nodes), 1)  # one-hot, as it encodes text itself, but faster

    if data.likelihood is PROBIT:
        return OneByOne(
            model,
            lambda nodes: model.predict_proba_one(features(nodes))[True],
            lambda nodes, value: model.learn_one(features(nodes), value == 1),
        )
    return OneByOne(
        model,
        lambda nodes: model.predict_one(features(nodes)),
        lambda nodes, value: model.learn_one(features(nodes), value),
    )


def one_pass(make: Callable[..., OneByOne], probability: bool) -> Callable[..., Fitted]:
    """A model that learns entry by entry, fitted in one pass. probability: it has one, of binary values."""

    def fit(train: Batch, data: Dataset, **settings: Any) -> Fitted:
        binary = data.likelihood is PROBIT
        scaling = Scaling() if binary else Scaling.of(train.value[:BATCH])
        river = make(data, **settings)
        for nodes, value in zip(train.index.tolist(), scaling.scaled(train.value).tolist(), strict=True):
            river.learn(nodes, value)

        def predict(index: NDArray[np.int64]) -> Predicted:
            mean = scaling.shift + scaling.scale * np.array(
                [river.predict(nodes) for nodes in index.tolist()]
            )
            return Predicted(mean, mean * (1 - mean) if binary and probability else None)

        return Fitted(river.model, predict)

    return fit


def predicted_in_time(river: OneByOne, stream: Batch) -> Floats:
    """What is predicted for each entry before it is learned."""
    scaling = Scaling.of(stream.value[:BATCH])
    predicted = []
    for nodes, value in zip(stream.index.tolist(), scaling.scaled(stream.value).tolist(), strict=True):
        predicted.append(river.predict(nodes))
        river.learn(nodes, value)
    return scaling.shift + scaling.scale * np.array(predicted)


# --- the others


def of_surprise(kind: str) -> Callable[..., Fitted]:
    def fit(train: Batch, data: Dataset, **settings: Any) -> Fitted:
        import surprise
        from pandas import DataFrame

        table = DataFrame({"user": train.index[:, 0], "item": train.index[:, 1], "value": train.value})
        reader = surprise.Reader(rating_scale=(train.value.min(), train.value.max()))
        seed = {"random_state": 0} if kind == "SVD" else {"verbose": False}
        model = getattr(surprise, kind)(**settings, **seed)
        model.fit(surprise.Dataset.load_from_df(table, reader).build_full_trainset())

        def predict(index: NDArray[np.int64]) -> Predicted:
            clip = data.likelihood is not PROBIT  # to the scale: of binary values this would make ties
            return Predicted(np.array([model.predict(*nodes, clip=clip).est for nodes in index.tolist()]))

        return Fitted(model, predict)

    return fit


def myfm(train: Batch, data: Dataset, *, rank: int, n_iter: int, n_kept_samples: int) -> Fitted:
    from myfm import MyFMGibbsClassifier, MyFMGibbsRegressor
    from scipy.sparse import csr_matrix

    binary, offsets = data.likelihood is PROBIT, np.cumsum([0, *data.shape])

    def one_hot(index: NDArray[np.int64]) -> csr_matrix:
        ends = np.arange(0, index.size + 1, index.shape[1])
        columns = (index + offsets[:-1]).ravel()
        return csr_matrix((np.ones(index.size), columns, ends), shape=(len(index), offsets[-1]))

    model = (MyFMGibbsClassifier if binary else MyFMGibbsRegressor)(rank, random_seed=0)
    features, value = one_hot(train.index), train.value
    kept = {"n_iter": n_iter, "n_kept_samples": n_kept_samples}
    model.fit(features, value, group_shapes=list(data.shape), **kept)

    def predict(index: NDArray[np.int64]) -> Predicted:
        if binary:
            mean = model.predict_proba(one_hot(index))
            return Predicted(mean, mean * (1 - mean))
        return _moments(model, index + offsets[:-1], n_kept_samples)

    return Fitted(model, predict)


def _moments(model: Any, columns: NDArray[np.int64], n_kept: int) -> Predicted:
    """Mean and variance of a value over the samples of the posterior; columns: (n, K), the ones of a row."""
    mean, square = np.zeros((2, len(columns)))
    samples = model.predictor_.samples
    for sample in samples:
        factors = sample.V[columns]  # (n, K, rank)
        pairs = (factors.sum(axis=1) ** 2 - (factors**2).sum(axis=1)).sum(axis=1) / 2
        f = sample.w0 + sample.w[columns].sum(axis=1) + pairs
        mean, square = mean + f / len(samples), square + f**2 / len(samples)
    noise = np.mean([1 / each.alpha for each in model.history_.hypers[-n_kept:]])
    return Predicted(mean, np.maximum(square - mean**2, 0) + noise)


def lightgbm(train: Batch, data: Dataset, *, n_estimators: int, num_leaves: int) -> Fitted:
    from lightgbm import LGBMClassifier, LGBMRegressor
    from sklearn.model_selection import KFold, StratifiedKFold
    from sklearn.preprocessing import TargetEncoder

    binary = data.likelihood is PROBIT
    counts = [
        np.bincount(nodes, minlength=size) for nodes, size in zip(train.index.T, data.shape, strict=True)
    ]

    def features(means: NDArray[Any], index: NDArray[np.int64]) -> NDArray[Any]:
        seen = [count[nodes] for count, nodes in zip(counts, index.T, strict=True)]
        return np.column_stack([means, *seen])

    folds = (StratifiedKFold if binary else KFold)(5, shuffle=True, random_state=0)
    encoder = TargetEncoder(target_type="binary" if binary else "continuous", cv=folds)
    means = encoder.fit_transform(train.index, train.value)  # out of fold
    model = (LGBMClassifier if binary else LGBMRegressor)(
        n_estimators=n_estimators, num_leaves=num_leaves, random_state=0, n_jobs=1, verbose=-1
    )
    model.fit(features(means, train.index), train.value)

    def predict(index: NDArray[np.int64]) -> Predicted:
        table = features(encoder.transform(index), index)
        if not binary:
            return Predicted(model.predict(table))
        mean = model.predict_proba(table)[:, 1]
        return Predicted(mean, mean * (1 - mean))

    return Fitted((encoder, counts, model), predict)


# the rate of the factors first: too large a one diverges with any other rate
_RATES = {"latent_rate": (0.003, 0.01, 0.02, 0.05, 0.1, 0.2), "rate": (0.005, 0.01, 0.02, 0.05, 0.1)}
_RIVER = {"rate": 0.01, "latent_rate": 0.05, "n_factors": 10}

PEERS = {
    "River BiasedMF": Peer(
        "river",
        one_pass(biased_mf, probability=False),
        _RIVER,
        _RATES,
        lambda _: 1,
        Can(streams=True, new_ids=True, many_modes=False, binary=False),
        biased_mf,
    ),
    "River FM": Peer(
        "river",
        one_pass(factorization_machine, probability=True),
        _RIVER,
        _RATES,
        lambda _: 1,
        Can(streams=True, new_ids=True),
        factorization_machine,
    ),
    "Surprise SVD": Peer(
        "surprise",
        of_surprise("SVD"),
        {"n_factors": 100, "n_epochs": 40, "lr_all": 0.005, "reg_all": 0.1},
        {"reg_all": (0.02, 0.05, 0.1), "n_epochs": (20, 40, 80)},
        lambda settings: settings["n_epochs"],
        Can(many_modes=False, binary=False),
    ),
    "Surprise BaselineOnly": Peer(
        "surprise", of_surprise("BaselineOnly"), {}, {}, lambda _: 10, Can(many_modes=False, binary=False)
    ),
    "myFM": Peer(
        "myfm",
        myfm,
        {"rank": 10, "n_iter": 200, "n_kept_samples": 180},
        {},
        lambda settings: settings["n_iter"],
        Can(uncertainty=True),
    ),
    "LightGBM": Peer(
        "lightgbm",
        lightgbm,
        {"n_estimators": 100, "num_leaves": 31},
        {"n_estimators": (30, 100, 300, 1000), "num_leaves": (31, 127)},
        lambda settings: settings["n_estimators"],
        Can(counts=True),
    ),
}
