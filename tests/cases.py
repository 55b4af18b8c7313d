"""Networks, streams and states of every kind, and what the oracle (naive.py) needs to know of them."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from naive import as_float64
from spidertensor.method import Bags, Batch
from spidertensor.spider import likelihoods, posterior
from spidertensor.spider.network import Network, Table
from spidertensor.spider.posterior import Gamma, Gaussian, Prior
from spidertensor.spider.sequential import sequential

# Variances that float32 holds exactly: what is compared is the arithmetic.
PRIOR = Prior(
    slab_var=0.75, rho0=0.9, factor_var=0.875, bias_var=0.0625, multilinear_var=0.125, multilinear_start=0.25
)
TABLE_ROWS = 4  # of every attribute table
NEVER = 10**9  # refine_every of a stream without refinement


class Case(NamedTuple):
    ranks: tuple[int, ...]
    hidden: tuple[int, ...]
    activation: str
    likelihood: str
    curvature: bool = False
    bias: bool = False
    multilinear: int = 0
    noise_memory: float | None = None
    product: bool = False
    clip: float | None = None
    node_noise: bool = False
    memory: float | None = None
    nodes: tuple[int, ...] = (6, 5, 4, 3)
    tables: tuple[Table, ...] = ()
    without_id: tuple[int, ...] = ()

    @property
    def network(self) -> Network:
        return Network(
            *(self.ranks, self.hidden, self.activation, self.bias, self.multilinear, self.product),
            *(self.tables, self.without_id),
        )

    @property
    def its_likelihood(self) -> likelihoods.Likelihood:
        return getattr(likelihoods, self.likelihood.upper())

    @property
    def pair_scale(self) -> float:
        K = len(self.ranks)
        return np.sqrt(2 / (K * (K - 1))) if K > 2 and not self.product else 1.0

    def method(self, refine_every: int = NEVER, prior: Prior = PRIOR):
        return sequential(
            self.network,
            self.its_likelihood,
            prior,
            curvature=self.curvature,
            noise_memory=self.noise_memory,
            refine_every=refine_every,
            clip=self.clip,
            node_noise=self.node_noise,
            memory=self.memory,
        )

    def oracle(self, refine_every: int = NEVER, prior: Prior = PRIOR) -> dict:
        return {
            "ranks": self.ranks,
            "bias": self.bias,
            "multilinear": self.multilinear,
            "activation": self.activation,
            "likelihood": self.likelihood,
            "curvature": self.curvature,
            "noise_memory": self.noise_memory,
            "product": self.product,
            "clip": self.clip,
            "node_noise": self.node_noise,
            "memory": self.memory,
            "slab_var": prior.slab_var,
            "rho0": prior.rho0,
            "tables": self.tables,
            "without_id": self.without_id,
            "refine_every": refine_every,
            "prior_var": {
                "bias": prior.bias_var,
                # for two modes as it is, for more scaled by the number of pairs (section 10)
                "multilinear": float(np.float32(prior.multilinear_var * self.pair_scale)),
                "deep": prior.factor_var,
            },
        }


# Four pairs (modes, layers), each compiled once per dtype, and in them every option at least twice.
CASES = [
    Case((2, 3, 4), (7, 16), "relu", "gaussian"),
    Case((3, 2, 5), (50, 33), "tanh", "probit", curvature=True, bias=True, multilinear=3),
    Case((4, 1, 2), (16, 7), "softplus", "gaussian", curvature=True, multilinear=5, noise_memory=50.0),
    Case((2, 2, 2), (33, 50), "gelu", "probit", bias=True),
    Case((8, 3, 6), (70, 130), "relu", "gaussian", curvature=True, noise_memory=50.0),
    # rows of the first layer in two words, whole words, the constant alone in a word
    Case((40, 20, 20), (64, 128), "relu", "gaussian", curvature=True),
    Case((31, 16, 16), (63, 65), "relu", "probit"),
    Case((32, 16, 16), (128, 64), "tanh", "gaussian"),
    Case((5, 2, 2), (7, 33), "relu", "probit", curvature=True),
    Case((3, 5), (), "tanh", "gaussian", curvature=True, bias=True, multilinear=2),
    Case((20, 2), (), "relu", "probit"),
    Case((3, 3), (), "gelu", "gaussian", multilinear=17, noise_memory=20.0),
    Case((3, 4), (50, 33, 7), "sigmoid", "gaussian", curvature=True, noise_memory=50.0),
    Case((2, 5), (7, 16, 50), "relu", "probit", bias=True, multilinear=2),
    Case((6, 1), (16, 5, 33), "gelu", "gaussian", curvature=True, bias=True, multilinear=4),
    # no network: a constant, biases and pairs
    Case((0, 0), (), "relu", "gaussian", bias=True, noise_memory=50.0, clip=0.7, node_noise=True),
    Case((0, 0, 0), (), "relu", "gaussian", True, True, 3, 50.0, False, 0.7, True, 20.0),
    Case((0, 0), (), "relu", "probit", bias=True, multilinear=3),
    Case((2, 3, 1, 4), (33,), "tanh", "gaussian", bias=True, multilinear=2, noise_memory=50.0),
    Case((1, 2, 3, 1), (7,), "relu", "probit", curvature=True, multilinear=3),
    Case((2, 1, 2, 3), (50,), "sigmoid", "probit", curvature=True),
    Case((3, 1, 1, 2), (1,), "softplus", "gaussian", bias=True),
    # sections 9 (the product), 11 (clip), 12 (noise per node) and 13 (memory), alone and together
    Case((3, 2, 5), (7, 16), "tanh", "gaussian", True, True, 3, product=True),
    Case((3, 2), (7,), "relu", "probit", bias=True, multilinear=3, product=True),
    Case((3, 2, 5), (7, 16), "relu", "gaussian", bias=True, multilinear=3, noise_memory=50.0, clip=0.5),
    Case((3, 2), (7,), "tanh", "gaussian", True, noise_memory=50.0, clip=0.5),
    Case((3, 2, 2), (7,), "relu", "gaussian", multilinear=3, noise_memory=50.0, node_noise=True),
    Case((3, 2), (7, 7), "relu", "gaussian", bias=True, multilinear=3, memory=5.0),
    Case((3, 2), (7,), "relu", "probit", bias=True, multilinear=3, memory=5.0, clip=0.5),
    Case((3, 2), (7,), "relu", "gaussian", False, True, 3, 50.0, False, 0.7, True, 20.0),
    Case((3, 2, 4), (7,), "tanh", "gaussian", True, True, 3, 50.0, False, 0.7, True, 20.0),
]


# Section 19: attributes beside ids and alone, with every option
_TABLES = (Table(0, 0.25), Table(0, 0.125), Table(1, 0.5))
BAG_CASES = [
    Case((3, 2), (7,), "relu", "gaussian", bias=True, multilinear=3, noise_memory=50.0, tables=_TABLES),
    Case((3, 2), (7,), "tanh", "gaussian", True, True, 3, 50.0, False, 0.7, True, 20.0, tables=_TABLES),
    Case((3, 2), (7,), "tanh", "probit", True, multilinear=3, product=True, tables=_TABLES[1:]),
    Case((3, 2, 4), (7, 16), "relu", "gaussian", False, True, 3, 50.0, False, 0.7, True, 20.0,
         tables=(*_TABLES, Table(2, 0.375)), without_id=(2,)),
    Case((3, 2), (7,), "relu", "probit", False, True, 3, memory=5.0, tables=_TABLES, without_id=(0,)),
    Case((2, 3), (), "tanh", "count", bias=True, multilinear=2, noise_memory=50.0, tables=_TABLES),
    Case((2, 3), (), "tanh", "ordinal", bias=True, multilinear=2, noise_memory=50.0, tables=_TABLES),
]  # fmt: skip


def name(case: Case) -> str:
    parts = f"b{case.bias:d}m{case.multilinear}"
    parts += f"-tables{len(case.tables)}" if case.tables else ""
    parts += "".join(field for field in ("product", "clip", "node_noise", "memory") if getattr(case, field))
    curved = "curved" if case.curvature else "flat"
    return f"{case.ranks}-{case.hidden}-{case.activation}-{case.likelihood}-{curved}-{parts}".replace(" ", "")


def nodes_of(case: Case) -> np.ndarray:
    """Number of nodes of each mode, then rows of each attribute table."""
    own = [0 if k in case.without_id else case.nodes[k] for k in range(len(case.ranks))]
    return np.array(own + [TABLE_ROWS] * len(case.tables))


def stream(case: Case, n: int, seed: int = 1) -> Batch:
    """Values that depend on the nodes, so that there is something to learn."""
    rng = np.random.default_rng(seed)
    sizes = nodes_of(case)[: len(case.ranks)]
    index = np.stack([rng.integers(d, size=n) if d else np.full(n, -1) for d in sizes], axis=1)
    effects = [rng.normal(size=max(d, 1)) for d in sizes]
    signal = sum(effect[rows] for effect, rows in zip(effects, index.T, strict=True))
    value = signal / np.sqrt(len(effects)) + 0.3 * rng.normal(size=n)
    bags = None
    if case.tables:
        bags = random_bags(case, n, rng)
        effects = rng.normal(size=(len(case.tables), TABLE_ROWS))
        np.add.at(
            value, np.repeat(np.arange(n), np.diff(bags.start)), bags.weight * effects[bags.table, bags.row]
        )
    if case.likelihood == "count":
        return Batch(index, rng.poisson(2 * np.exp(value)).astype(float), bags)
    if case.likelihood == "ordinal":
        return Batch(index, np.clip(np.round(3 + value), 1, 5), bags)
    return Batch(index, (value > 0).astype(float) if case.likelihood == "probit" else value, bags)


def random_bags(case: Case, n: int, rng: np.random.Generator) -> Bags:
    """Up to three nodes of every table in an entry, some entries without any."""
    elements = [
        [
            (t, row, rng.choice([1.0, 0.5, -0.25]))
            for t in range(len(case.tables))
            for row in rng.permutation(TABLE_ROWS)[: rng.integers(4)]
        ]
        for _ in range(n)
    ]
    return bags_of(elements)


def bags_of(elements: list[list[tuple[int, int, float]]]) -> Bags:
    """Bags of a list of (table, row, weight) for each entry."""
    table, row, weight = zip(*(element for each in elements for element in each), strict=True)
    start = np.cumsum([0, *map(len, elements)])
    return Bags(start, np.array(table), np.array(row), np.array(weight, np.float32))


def listed(bags: Bags | None) -> list[list[tuple[int, int, float]]] | None:
    """The inverse of `bags_of`, as the oracle takes it."""
    if bags is None:
        return None
    elements = list(zip(*(each.tolist() for each in bags[1:]), strict=True))
    return [elements[a:b] for a, b in pairwise(bags.start.tolist())]


def start(case: Case, dtype=np.float64, seed: int = 3) -> posterior.State:
    """A state somewhere in the middle of learning, with half of the nodes it is going to have."""
    rng = np.random.default_rng(seed)
    own = {"level_var": case.its_likelihood.level_var, "levels": case.its_likelihood.levels}
    state = posterior.init(case.network, PRIOR, seed, node_noise=case.node_noise, **own)
    state = posterior.grow(state, case.network, PRIOR, nodes_of(case) // 2)
    for mean, _ in state.posterior.factors:
        mean += (0.5 * rng.normal(size=mean.shape)).astype(np.float32)
    for _, var in state.posterior.factors + state.posterior.weights:
        var *= rng.uniform(0.3, 0.9, size=var.shape).astype(np.float32)
    return as_float64(state) if dtype is np.float64 else copy.deepcopy(state)


def to_oracle(state: posterior.State) -> dict:
    state = as_float64(state)
    return {
        "factors": [list(factor) for factor in state.posterior.factors],
        "weights": [list(weights) for weights in state.posterior.weights],
        "sites": [site._asdict() for site in state.sites],
        "a": float(state.posterior.noise.shape),
        "b": float(state.posterior.noise.rate),
        "entries": int(state.counts.entries),
        "rejected": int(state.counts.rejected),
        "log_evidence": float(state.counts.log_evidence),
        "refused": int(state.counts.refused),
        "clipped": int(state.counts.clipped),
        "log_noise": [list(parts) for parts in state.posterior.log_noise],
        "squares": dict(zip(("n", "mean"), state.stream.squares.tolist(), strict=True)),
        "level_noise": [state.stream.level_noise, state.stream.level_noise_var],
        "shift": float(state.stream.shift),
        "scale": float(state.stream.scale),
        "values": {
            "n": float(state.stream.entries),
            "mean": float(state.stream.mean),
            "var": float(state.stream.var),
        },
        "levels": dict(zip(state.stream.levels.tolist(), state.stream.level_counts.tolist(), strict=True)),
        "window": [],
        "watching": bool(state.stream.watching),
        "followed": state.stream.followed.tolist(),
    }


def oracle_start(case: Case, state: posterior.State) -> dict:
    """The same state with rows for all nodes: when a row is added is not the oracle's business."""
    return to_oracle(posterior.grow(copy.deepcopy(state), case.network, PRIOR, nodes_of(case)))


def learn_in_pieces(method, state, batch: Batch, cuts=(0, 7, 8, 40)):
    """Several calls, so that modes grow on the way. The Update of the whole stream, as a (4, n) array."""
    updates, rejected = [], 0
    for first, last in zip(cuts, (*cuts[1:], len(batch.value)), strict=True):
        state, update = method.update(state, batch.part(first, last))
        updates.append(update[:4])
        rejected += update.rejected
    return state, np.concatenate(updates, axis=1), rejected


def assert_same_state(case: Case, state: posterior.State, wanted: dict, rtol: float, atol: float) -> None:
    got = to_oracle(posterior.trim(state))
    close = {"rtol": rtol, "atol": atol}
    for mode, (pair, expected) in enumerate(zip(got["factors"], wanted["factors"], strict=True)):
        n = state.counts.nodes[mode]
        assert n == nodes_of(case)[mode]
        np.testing.assert_allclose(pair[0], expected[0][:n], err_msg=f"factor mean, mode {mode}", **close)
        np.testing.assert_allclose(pair[1], expected[1][:n], err_msg=f"factor var, mode {mode}", **close)
    for layer, (pair, expected) in enumerate(zip(got["weights"], wanted["weights"], strict=True)):
        np.testing.assert_allclose(pair[0], expected[0], err_msg=f"weight mean, layer {layer}", **close)
        np.testing.assert_allclose(pair[1], expected[1], err_msg=f"weight var, layer {layer}", **close)
    for layer, (site, expected) in enumerate(zip(got["sites"], wanted["sites"], strict=True)):
        for field, array in site.items():
            np.testing.assert_allclose(
                array, expected[field], err_msg=f"site {field}, layer {layer}", rtol=10 * rtol, atol=10 * atol
            )
    for mode, (pair, expected) in enumerate(zip(got["log_noise"], wanted["log_noise"], strict=True)):
        np.testing.assert_allclose(pair, expected, err_msg=f"log_noise, mode {mode}", **close)
    numbers = (
        "a",
        "b",
        "level_noise",
        "shift",
        "scale",
        *(f"values {each}" for each in ("n", "mean", "var")),
        *(f"squares {each}" for each in ("n", "mean")),
    )
    for name_ in numbers:
        head, _, tail = name_.partition(" ")
        pair = [each[head][tail] if tail else each[head] for each in (got, wanted)]
        np.testing.assert_allclose(*pair, err_msg=name_, **close)
    for count in ("refused", "clipped", "followed", "levels"):
        assert got[count] == wanted[count], count
    np.testing.assert_allclose(got["log_evidence"], wanted["log_evidence"], rtol=rtol, atol=atol)
    assert got["entries"] == wanted["entries"]


def questions(case: Case) -> np.ndarray:
    """Seen nodes, -1, the first row that is not there, and rows far beyond."""
    rng = np.random.default_rng(9)
    d = np.maximum(nodes_of(case)[: len(case.ranks)], 1)
    index = np.stack([rng.integers(n, size=8) for n in d], axis=1)
    index[1, 0] = -1
    index[2, -1] = d[-1]
    index[3] = -1
    index[4, 0] = 10**6
    return index


def fixed_noise(state: posterior.State, noise: float) -> posterior.State:
    """Certain of the noise: b/a is `noise`, and one entry does not move it."""
    gamma = Gamma(np.array(1e14), np.array(1e14 * noise))
    return state._replace(posterior=state.posterior._replace(noise=gamma))


def fix(gaussian: Gaussian) -> None:
    gaussian.var[...] = 1e-14


def assert_healthy(state: posterior.State) -> None:
    state = posterior.trim(state)
    for mean, var in state.posterior.factors + state.posterior.weights:
        assert np.isfinite(mean).all()
        assert np.isfinite(var).all()
        assert (var > 0).all()
    for site in state.sites:
        for array in site:
            assert np.isfinite(array).all()
    for number in (*state.posterior.noise, state.counts.log_evidence):
        assert np.isfinite(number)
