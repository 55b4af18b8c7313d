"""Models that predict each entry and then learn it: online biases, River, Vowpal Wabbit, ours.

Each is made by a function `make(described, columns, first, **settings)` that returns a Stream; `first` are
the values that give the scale of all others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from described_data import ATTRIBUTES, Bag, Described, Floats, Index

from spidertensor.evaluation import floors
from spidertensor.method import Batch
from spidertensor.scaling import Scaling

FIRST = 256  # entries whose values give the scale of the others
BITS = 24  # of Vowpal Wabbit's hash: few collisions among ten million pairs


class Stream(NamedTuple):
    """learn: predicts each entry, then learns it, and returns the predictions; predict: learns nothing."""

    learn: Callable[[Index, Floats], Floats]
    predict: Callable[[Index], Floats]


class Streaming(NamedTuple):
    """package: what is imported; start: settings; axes: what is tried for each of them, in turn.
    seeded: takes `random_state`; share: of the training entries by which settings are chosen, held out"""

    package: str
    make: Callable[..., Stream]
    start: dict[str, Any]
    axes: dict[str, tuple[Any, ...]]
    columns: tuple[str, ...] = ("ids", "attributes")
    seeded: bool = False
    share: float = 1.0


def biases(described: Described, columns: str, first: Floats) -> Stream:
    """Online biases of ids, the floor."""
    method = floors.biases(len(described.data.shape), described.data.likelihood)
    state = [method.init(0)]

    def learn(index: Index, value: Floats) -> Floats:
        state[0], update = method.update(state[0], Batch(index, value))
        return update.mean

    return Stream(learn, lambda index: method.predict(state[0], index).mean)


def river_fm(
    described: Described, columns: str, first: Floats, *, rate: float, latent_rate: float, n_factors: int
) -> Stream:
    from river import facto, optim

    scaling = Scaling.of(first)
    bags = [
        [{(mode, name): weight for name, weight in bag} for bag in bags]
        for mode, bags in enumerate(described.bags(columns))
    ]
    model = facto.FMRegressor(
        n_factors, weight_optimizer=optim.SGD(rate), latent_optimizer=optim.SGD(latent_rate), seed=0
    )

    def features(nodes: list[int]) -> dict[tuple[int, str], float]:
        return {name: weight for mode, node in enumerate(nodes) for name, weight in bags[mode][node].items()}

    def learn(index: Index, value: Floats) -> Floats:
        mean = []
        for nodes, scaled in zip(index.tolist(), scaling.scaled(value).tolist(), strict=True):
            found = features(nodes)
            mean.append(model.predict_one(found))
            model.learn_one(found, scaled)
        return scaling.shift + scaling.scale * np.array(mean, np.float64)

    def predict(index: Index) -> Floats:
        mean = [model.predict_one(features(nodes)) for nodes in index.tolist()]
        return scaling.shift + scaling.scale * np.array(mean, np.float64)

    return Stream(learn, predict)


def vowpal_wabbit(
    described: Described, columns: str, first: Floats, *, interactions: str, rate: float, power: float
) -> Stream:
    """One name space for each mode, a, b, c and so on."""
    from vowpalwabbit import Workspace

    scaling = Scaling.of(first)
    model = Workspace(f"--quiet -b {BITS} -l {rate} --power_t {power} {interactions}")
    texts = [
        [f"|{chr(ord('a') + mode)} {_text(bag)}" for bag in bags]
        for mode, bags in enumerate(described.bags(columns))
    ]

    def text(nodes: list[int]) -> str:
        return " ".join(texts[mode][node] for mode, node in enumerate(nodes))

    def learn(index: Index, value: Floats) -> Floats:
        mean = np.empty(len(value))
        for row, (nodes, scaled) in enumerate(
            zip(index.tolist(), scaling.scaled(value).tolist(), strict=True)
        ):
            example = model.example(f"{scaled} {text(nodes)}")
            mean[row] = model.predict(example)
            model.learn(example)
            model.finish_example(example)
        return scaling.shift + scaling.scale * mean

    def predict(index: Index) -> Floats:
        mean = np.array([model.predict(text(nodes)) for nodes in index.tolist()], np.float64)
        return scaling.shift + scaling.scale * mean

    return Stream(learn, predict)


def _text(bag: Bag) -> str:
    """Features in its text format; characters that mean something there are replaced."""
    plain = str.maketrans(" :|", "___")
    return " ".join(f"{name.translate(plain)}:{weight:g}" for name, weight in bag)


def ours(described: Described, columns: str, first: Floats, **settings: Any) -> Stream:
    """The default estimator; attributes by `modes`, as columns of one table."""
    import pyarrow as pa

    from spidertensor import SpiderRegressor

    if columns == ATTRIBUTES:
        tables = zip(described.data.modes, described.tables, strict=True)
        settings["modes"] = {mode: list(table) for mode, table in tables}
    model = SpiderRegressor(**settings)

    def learn(index: Index, value: Floats) -> Floats:
        return np.asarray(model.learn(pa.table(described.frame(index, columns)), value).mean)

    return Stream(learn, lambda index: np.asarray(model.predict(pa.table(described.frame(index, columns)))))


# the rate of the factors first: too large a one diverges with any other rate
_RIVER = {
    "latent_rate": (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2),
    "rate": (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2),
}
_PAIRS = ("", "-q ab", "--lrq ab10")
_RATES = (0.1, 0.2, 0.5, 1.0)

STREAMING = {
    "online biases": Streaming("spidertensor", biases, {}, {}, ("ids",)),
    "spidertensor": Streaming("spidertensor", ours, {}, {}, seeded=True),
    "River FM": Streaming(
        "river", river_fm, {"rate": 0.02, "latent_rate": 0.02, "n_factors": 10}, _RIVER, share=0.1
    ),
    "Vowpal Wabbit": Streaming(
        "vowpalwabbit",
        vowpal_wabbit,
        {"interactions": "-q ab", "rate": 0.5, "power": 0.5},
        {"interactions": _PAIRS, "rate": _RATES, "power": (0.5, 0.3)},
    ),
}
