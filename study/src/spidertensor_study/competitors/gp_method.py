"""A Gaussian-process competitor as a Method: everything except learning a batch.

The unit is the batch: the entries of a call are cut into batches of `batch_size`, the last one shorter, each
learned by `epochs` steps of Adam. What an update reports for an entry is the prediction before its batch.
Random numbers are keyed by the seed and the number of the batch. A batch with an absurd value, or after which
any number is not finite, is refused as a whole and leaves the posterior as it was.

Predictions include the uncertainty of the factors: mean and variance of f under q(x) q(v) are exact, since
the expectations of k(Z, x) and k(Z, x) k(x, Z) over a Gaussian x are known.

Batches are padded so that shapes depend only on the settings, and nothing compiles twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular
from numpy.typing import NDArray

from spidertensor.evaluation.counts import Counts, no_counts
from spidertensor.method import HUGE_SCALED, Bags, Batch, Method, Prediction, Update, check_batch, check_index
from spidertensor.spider.likelihoods import Likelihood, check
from spidertensor.spider.posterior import Gaussian, with_room
from spidertensor_study.competitors.gp import (
    HANDLED,
    MIN_NOISE,
    TINY_VAR,
    Algorithm,
    Entries,
    GPLearned,
    GPSettings,
    Hyper,
    Nodes,
    expected_kernels,
    inducing_cov,
)

try:
    from jax import enable_x64
except ImportError:  # an older jax
    from jax.experimental import enable_x64  # pyright: ignore[reportAttributeAccessIssue]

PLACES = 1024  # entries in one call of the compiled prediction


class GPState(NamedTuple):
    factors: tuple[Gaussian, ...]  # one per mode, with spare rows that hold the prior
    process: Any
    counts: Counts
    batches: NDArray[np.int64]  # so far
    bound: NDArray[np.float64]  # per entry, in the first and the last epoch of the last batch
    seed: NDArray[np.int64]


def build(
    algorithm: Algorithm,
    n_modes: int,
    likelihood: Likelihood,
    *,
    rank: int = 8,
    inducing: int = 128,
    learning_rate: float = 1e-3,
    epochs: int = 100,
    batch_size: int = 256,
) -> Method:
    """A Gaussian-process competitor as a Method, for scaled values.

    inducing: number of inducing inputs
    epochs:   steps of Adam for each batch, of size `learning_rate`
    """
    settings = GPSettings(n_modes, likelihood, rank, inducing, epochs, batch_size)
    return method_of(settings, learning_rate, algorithm)


def method_of(settings: GPSettings, learning_rate: float, algorithm: Algorithm) -> Method:
    check(settings.likelihood, HANDLED, "the Gaussian process")
    for name in ("n_modes", "rank", "inducing", "epochs", "batch_size"):
        if getattr(settings, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(settings, name)}")
    if not 0 < learning_rate < np.inf:
        raise ValueError(f"learning_rate must be positive and finite, got {learning_rate}")
    learn = partial(algorithm.learn, settings, learning_rate)
    readout = partial(_readout, settings, algorithm.posterior)

    def init(seed: int) -> GPState:
        K = settings.n_modes
        inputs = np.random.default_rng([seed, 0]).normal(size=(settings.inducing, K * settings.rank))
        return GPState(
            tuple(Gaussian(*np.zeros((2, 0, settings.rank))) for _ in range(K)),
            algorithm.start(settings, inputs),
            no_counts(K),
            np.array(0),
            np.zeros(2),
            np.array(seed, np.int64),
        )

    def update(state: GPState, batch: Batch) -> tuple[GPState, Update]:
        check_batch(batch, settings.n_modes)
        out = np.empty((4, len(batch.value)))
        before_call = int(state.counts.rejected), int(state.counts.refused)
        for part, piece in _pieces(settings, batch):
            before = predict(state, piece.index)
            out[:, part] = *before, settings.likelihood.log_evidence(piece.value, *before)
            state, rows, known = _gathered(settings, state, piece)
            with enable_x64(True):
                new = learn(state.process, *known)
                new, weights = jax.tree.map(np.array, (new, readout(new.process)))
            state = _kept(settings, state, rows, new, weights, piece.value, out[3, part])
        rejected = int(state.counts.rejected) - before_call[0]
        refused = int(state.counts.refused) - before_call[1]
        return state, Update(*out, rejected=rejected, refused=refused)

    def predict(state: GPState, index: NDArray[np.integer], bags: Bags | None = None) -> Prediction:
        check_index(index, settings.n_modes, bags)
        normal = settings.likelihood.normal
        noise = MIN_NOISE + float(np.exp(state.process.hyper.log_noise)) if normal else 0.0
        mean, var = _moments(readout, state, index)
        return Prediction(mean, var, np.full(len(index), noise))

    return Method(init, update, predict, unit="batch")


def side_by_side(
    settings: GPSettings, algorithm: Algorithm, batch: Batch, learning_rates: Sequence[float], seed: int = 0
) -> list[Update]:
    """Learn a stream from its start with every learning rate side by side, to tune the rate."""
    check_batch(batch, settings.n_modes)
    methods = [method_of(settings, rate, algorithm) for rate in learning_rates]
    states = [method.init(seed) for method in methods]
    out = np.empty((len(methods), 4, len(batch.value)))
    rates = np.array(learning_rates, np.float64)
    learn, readout = _side_by_side(settings, algorithm)
    for part, piece in _pieces(settings, batch):
        for method, state, each in zip(methods, states, out, strict=True):
            before = method.predict(state, piece.index)
            each[:, part] = *before, settings.likelihood.log_evidence(piece.value, *before)
        states, rows, known = zip(*(_gathered(settings, state, piece) for state in states), strict=True)
        processes = [state.process for state in states]
        together = jax.tree.map(lambda *each: np.stack(each), *zip(processes, known, strict=True))
        with enable_x64(True):
            new = learn(rates, together[0], *together[1])
            new, weights = jax.tree.map(np.array, (new, readout(new.process)))
        each = [jax.tree.map(itemgetter(i), (new, weights)) for i in range(len(methods))]
        states = [
            _kept(settings, state, its_rows, *its_own, piece.value, evidence)
            for state, its_rows, its_own, evidence in zip(states, rows, each, out[:, 3, part], strict=True)
        ]
    return [
        Update(*each, rejected=int(state.counts.rejected), refused=int(state.counts.refused))
        for each, state in zip(out, states, strict=True)
    ]


@cache
def _side_by_side(
    settings: GPSettings, algorithm: Algorithm
) -> tuple[Callable[..., GPLearned], Callable[..., Any]]:
    return (
        jax.jit(jax.vmap(partial(algorithm.learn, settings))),
        jax.jit(jax.vmap(partial(_readout, settings, algorithm.posterior))),
    )


def _pieces(settings: GPSettings, batch: Batch) -> Iterator[tuple[slice, Batch]]:
    for start in range(0, len(batch.value), settings.batch_size):
        part = slice(start, start + settings.batch_size)
        yield part, Batch(batch.index[part], np.asarray(batch.value[part], np.float64))


def _kept(
    settings: GPSettings, state: GPState, rows, new: GPLearned, weights, value, log_evidence
) -> GPState:
    """The state after a batch; the batch is refused if a value is absurd or a result is not finite."""
    n = len(value)
    with np.errstate(over="ignore"):
        moved = Gaussian(new.nodes.mean, np.exp(new.nodes.log_var))
    good = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((new, weights, moved)))
    good &= bool((moved.var > 0).all() and (np.abs(value) < HUGE_SCALED).all())
    if good:
        for k, (factor, row) in enumerate(zip(state.factors, rows, strict=True)):
            part = slice(k * settings.batch_size, k * settings.batch_size + len(row))
            factor.mean[row], factor.var[row] = moved.mean[part], moved.var[part]
        state = state._replace(process=new.process, bound=new.bound[[0, -1]] / n)
        state.counts.log_evidence[()] += log_evidence.sum()
    state.counts.entries[()] += n
    if not good:
        state.counts.refused[()] += n
        state.counts.rejected[()] += settings.inducing + settings.rank * sum(map(len, rows))
    return state._replace(batches=state.batches + 1)


def _gathered(
    settings: GPSettings, state: GPState, batch: Batch
) -> tuple[GPState, list[Any], tuple[Any, ...]]:
    """The state with room for the batch, the rows of its nodes per mode, and the inputs of `learn`."""
    state = grown(state, batch.index.max(axis=0) + 1)
    n, places, K = len(batch.value), settings.batch_size, settings.n_modes
    nodes = Nodes(*np.zeros((2, K * places, settings.rank)))
    value, here = np.zeros((2, places))
    entries = Entries(np.zeros((places, K), np.int32), value, here, np.zeros((K * places, 1)))
    entries.value[:n], entries.here[:n] = batch.value, 1.0
    rows = []
    for k, (column, factor) in enumerate(zip(batch.index.T, state.factors, strict=True)):
        row, number = by_appearance(column)
        entries.node[:n, k] = k * places + number
        part = slice(k * places, k * places + len(row))
        nodes.mean[part], nodes.log_var[part] = factor.mean[row], np.log(factor.var[row])
        entries.fresh[part, 0] = ((factor.mean[row] == 0) & (factor.var[row] == 1)).all(axis=1)
        rows.append(row)
    number = int(state.batches) + 1  # 0: the first inducing inputs
    key = np.random.SeedSequence([int(state.seed), number]).generate_state(2)
    return state, rows, (nodes, entries, key)


def by_appearance(column: NDArray[np.integer]) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """The nodes in order of first appearance, and which of them each entry has.

    This order makes results independent of node numbers.
    """
    _, first, inverse = np.unique(column, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return column[first[order]], np.argsort(order)[inverse]


def grown(state: GPState, n_nodes: NDArray[np.int64]) -> GPState:
    rank = state.factors[0].mean.shape[1]

    def start(mode: int, first: int, last: int) -> Gaussian:
        return Gaussian(np.zeros((last - first, rank)), np.ones((last - first, rank)))

    factors = with_room(state.factors, n_nodes, start)
    return state._replace(factors=factors, counts=state.counts.with_nodes(n_nodes))


# --- prediction -----------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=(0, 1))
def _readout(settings: GPSettings, posterior, process) -> tuple[jax.Array, jax.Array]:
    """w = L^-T m and W = L^-T (S - I + m m^T) L^-1: with k = k(Z, x) E[f] = w^T k, E[f²] = s² + k^T W k."""
    mean, cov = posterior(settings, process)
    L = jnp.linalg.cholesky(inducing_cov(settings, process.hyper, process.inputs))
    back = partial(solve_triangular, L, lower=True, trans=1)
    return back(mean), back(back(cov - jnp.eye(len(mean)) + jnp.outer(mean, mean)).T)


@cache
def _at_a_time() -> int:
    """Number of entries predicted side by side; each needs M² numbers."""
    return 16 if jax.default_backend() == "cpu" else 256


@jax.jit
def _evaluate(hyper: Hyper, inputs, weights, x, count) -> jax.Array:
    """Mean and variance of f for the first `count` times `_at_a_time` of the x."""
    at_a_time = _at_a_time()

    def entry(mean, var):
        first, second = expected_kernels(hyper, inputs, mean, var)
        f = first @ weights[0]
        return f, jnp.maximum(jnp.exp(hyper.log_var) + jnp.sum(second * weights[1]) - f * f, TINY_VAR)

    def some(i, out):
        part = lax.dynamic_slice_in_dim(x, i * at_a_time, at_a_time, axis=1)
        return lax.dynamic_update_slice(out, jnp.stack(jax.vmap(entry)(*part)), (0 * i, i * at_a_time))

    return lax.fori_loop(0, count, some, jnp.zeros(x.shape[:2]))


def _moments(readout, state: GPState, index: NDArray[np.integer]) -> NDArray[np.float64]:
    n, rank = len(index), state.factors[0].mean.shape[1]
    x = np.zeros((2, n, len(state.factors), rank))
    x[1] = 1.0  # the prior, for unseen nodes
    for k, factor in enumerate(state.factors):
        known = np.flatnonzero((index[:, k] >= 0) & (index[:, k] < state.counts.nodes[k]))
        for part, have in zip(x, factor, strict=True):
            part[known, k] = have[index[known, k]]
    x = x.reshape(2, n, len(state.factors) * rank)
    out = np.empty((2, n))
    with enable_x64(True):
        weights = readout(state.process)
        for start in range(0, n, PLACES):
            piece = x[:, start : start + PLACES]
            size = piece.shape[1]
            padded = np.zeros((2, PLACES, x.shape[2]))
            padded[:, :size] = piece
            moments = _evaluate(
                state.process.hyper, state.process.inputs, weights, padded, np.int32(-(-size // _at_a_time()))
            )
            out[:, start : start + size] = np.asarray(moments)[:, :size]
    return out
