"""What the two Gaussian-process baselines share: the model, its expectations, and everything around a batch.

mathematics.md section 8. x is the concatenation of an entry's factors, f = g(x) with g ~ GP(0, k) and

    k(x, z) = s² exp(-½ sum_d (x_d - z_d)² / l_d²)                                               ARD-RBF
    u = g(Z) at M inducing inputs Z, kept whitened: u = L v with L L^T = k(Z, Z) + jitter, so v ~ N(0, I)
    q(v) = N(m, S):   f | x ~ N(a^T m, s² - a^T a + a^T S a),   a = L^-1 k(Z, x)
    q(factor element) = N(mean, var), before any entry N(0, 1)

Inducing inputs, s, l and the noise of a gaussian are point estimates, learned with the rest.

The unit is the batch: the entries of a call are cut into batches of `batch_size`, each learned by `epochs`
steps of Adam. How a stream is cut into calls matters, unless it is cut at multiples of `batch_size`. What an
update returns for an entry is the prediction before its batch. Random numbers are keyed by the seed and the
number of the batch. A batch after which any number is not finite is rejected whole: the posterior stays as it
was and its entries are counted.

Predictions take the uncertainty of the factors in full: mean and variance of f under q(x) q(v) are exact,
since the expectations of k(Z, x) and k(Z, x) k(x, Z) over a Gaussian x are known.

All in float64: in float32 a kernel matrix of 128 inputs needs a jitter so large that it shows in the
predictions. Shapes depend on the settings alone, a batch is padded to them: nothing compiles twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import log_ndtr
from numpy.typing import NDArray

from spidertensor.method import Batch, Method, Prediction, Update, check_batch, check_index
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT, Likelihood, check
from spidertensor.spider.posterior import Counts, Gaussian, with_room

try:
    from jax import enable_x64
except ImportError:  # an older jax
    from jax.experimental import enable_x64  # pyright: ignore[reportAttributeAccessIssue]

HANDLED = (GAUSSIAN, PROBIT)
JITTER = 1e-6  # on the diagonal of k(Z, Z), in units of s²: the Cholesky of equal inputs still exists
MIN_NOISE = 1e-4  # of a gaussian, added to what is learned: values without noise do not drive it to 0
TINY_VAR = 1e-9  # variances are positive, rounding or not
LIMIT = 1e6  # on a value: they are scaled, and one beyond would be all that is known from then on
# Where the ascent of a node begins that has no entry yet; its prior stays N(0, 1). With all means at 0 no
# node differs from another and g has no slope, and x drawn with variance 1 hides that for very many batches.
START_STD = 0.03  # of the mean, at random
START_VAR = 0.01
QUADRATURE = 20  # Gauss-Hermite points of the probit
PLACES = 1024  # entries in one call of the compiled prediction


class Settings(NamedTuple):
    """Hashable: what a compiled function depends on."""

    n_modes: int
    likelihood: Likelihood
    rank: int
    inducing: int
    epochs: int
    batch_size: int
    jitter: float = JITTER


class Hyper(NamedTuple):
    log_var: Any  # log s²
    log_lengths: Any  # log l, one per element of x
    log_noise: Any  # gaussian only


class Nodes(NamedTuple):
    """q of the factors of a batch's nodes, `batch_size` rows for each mode."""

    mean: Any
    log_var: Any


class Entries(NamedTuple):
    """A batch as arrays of one size: `here` is 1 for an entry, 0 for an empty place."""

    node: Any  # (batch_size, K), rows of the Nodes
    value: Any
    here: Any
    fresh: Any  # (rows of the Nodes, 1): whether that is a node without any entry so far


class Learned(NamedTuple):
    process: Any
    nodes: Nodes
    bound: Any  # of the whole batch, in each epoch


class Algorithm(NamedTuple):
    """`process`, a NamedTuple of arrays, is what is known of g; `inputs` and `hyper` are two of them."""

    start: Callable[[Settings, NDArray[np.float64]], Any]  # the process, from the first inducing inputs
    learn: Callable[..., Learned]  # settings, learning_rate, process, nodes, entries, key
    posterior: Callable[[Settings, Any], tuple[Any, Any]]  # m and S


class State(NamedTuple):
    factors: tuple[Gaussian, ...]  # one per mode, with spare rows that hold the prior
    process: Any
    counts: Counts  # rejected: entries of the batches that were rejected
    batches: NDArray[np.int64]  # so far
    bound: NDArray[np.float64]  # per entry, in the first and the last epoch of the last batch
    seed: NDArray[np.int64]


# --- the model ------------------------------------------------------------------------------------


def start_hyper(settings: Settings) -> Hyper:
    """s = noise = 1. With l² the length of x, k between two draws from the prior of x is about 1/e."""
    size = settings.n_modes * settings.rank
    return Hyper(np.zeros(()), np.full(size, 0.5 * np.log(size)), np.zeros(()))


def noise_of(hyper: Hyper) -> Any:
    return MIN_NOISE + jnp.exp(hyper.log_noise)


def kernel(hyper: Hyper, x: jax.Array, z: jax.Array) -> jax.Array:
    x, z = x * jnp.exp(-hyper.log_lengths), z * jnp.exp(-hyper.log_lengths)
    square = jnp.sum(x * x, 1)[:, None] + jnp.sum(z * z, 1) - 2 * x @ z.T
    return jnp.exp(hyper.log_var - 0.5 * jnp.maximum(square, 0))


def inducing_cov(settings: Settings, hyper: Hyper, inputs: jax.Array) -> jax.Array:
    jitter = settings.jitter * jnp.exp(hyper.log_var)
    return kernel(hyper, inputs, inputs) + jitter * jnp.eye(len(inputs))


def expected_kernels(hyper: Hyper, inputs: jax.Array, mean, var) -> tuple[jax.Array, jax.Array]:
    """E[k(Z, x)] and E[k(Z, x) k(x, Z)] over one x ~ N(mean, diag v).

        s² prod_d (1 + v/l²)^-½ exp(-½ (z - x)² / (l² + v))
        s⁴ prod_d (1 + 2v/l²)^-½ exp(-(z - z')² / 4l² - (x - (z + z')/2)² / (l² + 2v))

    With d = z - x the second exponent is -(p + w)(d² + d'²) - 2 (w - p) d d', p = 1/4l², w = 1/4(l² + 2v).
    """
    square = jnp.exp(2 * hyper.log_lengths)
    d = inputs - mean
    log_peak = hyper.log_var - 0.5 * jnp.sum(jnp.log1p(var / square))
    first = jnp.exp(log_peak - 0.5 * (d * d) @ (1 / (square + var)))
    log_peak = 2 * hyper.log_var - 0.5 * jnp.sum(jnp.log1p(2 * var / square))
    p, w = 0.25 / square, 0.25 / (square + 2 * var)
    own = (d * d) @ (p + w)
    return first, jnp.exp(log_peak - own[:, None] - own - 2 * (d * (w - p)) @ d.T)


def expected_log_likelihood(likelihood: Likelihood, value, mean, var, noise) -> jax.Array:
    """E[log p(y | f)] over f ~ N(mean, var)."""
    if check(likelihood, HANDLED, "the Gaussian process") is GAUSSIAN:
        return -0.5 * (jnp.log(2 * jnp.pi * noise) + ((value - mean) ** 2 + var) / noise)
    points, weights = np.polynomial.hermite_e.hermegauss(QUADRATURE)
    f = mean[:, None] + jnp.sqrt(jnp.maximum(var, TINY_VAR))[:, None] * points
    return log_ndtr((2 * value - 1)[:, None] * f) @ jnp.asarray(weights / np.sqrt(2 * np.pi))


def kl_nodes(nodes: Nodes, before: Nodes) -> jax.Array:
    log_ratio = nodes.log_var - before.log_var
    away = (nodes.mean - before.mean) ** 2 * jnp.exp(-before.log_var)
    return 0.5 * jnp.sum(jnp.expm1(log_ratio) - log_ratio + away)


def split(key) -> tuple[Any, Any]:
    """Of the two words that a batch is given: the same draws whatever generator JAX is set to."""
    start, rest = jax.random.split(jax.random.wrap_key_data(key, impl="threefry2x32"))
    return start, rest


def start_nodes(nodes: Nodes, entries: Entries, key) -> Nodes:
    """Where the ascent begins: at the posterior before the batch, but for nodes that have none yet."""
    mean = START_STD * jax.random.normal(key, nodes.mean.shape)
    start = Nodes(mean, jnp.full_like(mean, np.log(START_VAR)))
    return jax.tree.map(partial(jnp.where, entries.fresh > 0), start, nodes)


def draw_inputs(nodes: Nodes, entries: Entries, key) -> jax.Array:
    """One x per entry, reparameterised. Each entry draws for itself: less noise than one draw per node."""
    mean, std = nodes.mean[entries.node], jnp.exp(0.5 * nodes.log_var)[entries.node]
    x = mean + std * jax.random.normal(key, mean.shape)
    return x.reshape(len(x), -1)


def ascend(settings: Settings, learning_rate, params, extra, key, bound) -> tuple[Any, Any, jax.Array]:
    """All epochs of a batch: Adam uphill on bound(params, extra, key) -> (bound, extra of the next epoch)."""
    adam = optax.scale_by_adam()

    def epoch(carry, key):
        params, extra, memory = carry
        (value, extra), gradient = jax.value_and_grad(bound, has_aux=True)(params, extra, key)
        step, memory = adam.update(gradient, memory)
        params = jax.tree.map(lambda each, move: each + learning_rate * move, params, step)
        return (params, extra, memory), value

    params = jax.tree.map(jnp.asarray, params)
    keys = jax.random.split(key, settings.epochs)
    (params, extra, _), bounds = lax.scan(epoch, (params, extra, adam.init(params)), keys)
    return params, extra, bounds


# --- the Method -----------------------------------------------------------------------------------


def build(settings: Settings, learning_rate: float, algorithm: Algorithm) -> Method:
    check(settings.likelihood, HANDLED, "the Gaussian process")
    for name in ("n_modes", "rank", "inducing", "epochs", "batch_size"):
        if getattr(settings, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(settings, name)}")
    if not 0 < learning_rate < np.inf:
        raise ValueError(f"learning_rate must be positive and finite, got {learning_rate}")
    learn = partial(algorithm.learn, settings, learning_rate)
    readout = partial(_readout, settings, algorithm.posterior)

    def init(seed: int) -> State:
        K = settings.n_modes
        inputs = np.random.default_rng([seed, 0]).normal(size=(settings.inducing, K * settings.rank))
        return State(
            tuple(Gaussian(*np.zeros((2, 0, settings.rank))) for _ in range(K)),
            algorithm.start(settings, inputs),
            Counts(np.zeros(K, np.int64), np.array(0), np.array(0), np.array(0.0)),
            np.array(0),
            np.zeros(2),
            np.array(seed, np.int64),
        )

    def update(state: State, batch: Batch) -> tuple[State, Update]:
        check_batch(batch, settings.n_modes)
        out, rejected = np.empty((4, len(batch.value))), int(state.counts.rejected)
        for part, piece in _pieces(settings, batch):
            before = predict(state, piece.index)
            out[:, part] = *before, settings.likelihood.log_evidence(piece.value, *before)
            state, rows, known = _gathered(settings, state, piece)
            with enable_x64(True):
                new = learn(state.process, *known)
                new, weights = jax.tree.map(np.array, (new, readout(new.process)))
            state = _kept(settings, state, rows, new, weights, piece.value, out[3, part])
        return state, Update(*out, rejected=int(state.counts.rejected) - rejected)

    def predict(state: State, index: NDArray[np.integer]) -> Prediction:
        check_index(index, settings.n_modes)
        gaussian = settings.likelihood is GAUSSIAN
        noise = MIN_NOISE + float(np.exp(state.process.hyper.log_noise)) if gaussian else 0.0
        mean, var = _moments(readout, state, index)
        return Prediction(mean, var, np.full(len(index), noise))

    return Method(init, update, predict)


def side_by_side(
    settings: Settings, algorithm: Algorithm, batch: Batch, learning_rates: Sequence[float], seed: int = 0
) -> list[Update]:
    """A stream from its start with every learning rate, the rates of a batch in one call: to tune them by."""
    check_batch(batch, settings.n_modes)
    methods = [build(settings, rate, algorithm) for rate in learning_rates]
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
        Update(*each, rejected=int(state.counts.rejected)) for each, state in zip(out, states, strict=True)
    ]


@cache
def _side_by_side(
    settings: Settings, algorithm: Algorithm
) -> tuple[Callable[..., Learned], Callable[..., Any]]:
    return (
        jax.jit(jax.vmap(partial(algorithm.learn, settings))),
        jax.jit(jax.vmap(partial(_readout, settings, algorithm.posterior))),
    )


def _pieces(settings: Settings, batch: Batch) -> Iterator[tuple[slice, Batch]]:
    for start in range(0, len(batch.value), settings.batch_size):
        part = slice(start, start + settings.batch_size)
        yield part, Batch(batch.index[part], np.asarray(batch.value[part], np.float64))


def _kept(settings: Settings, state: State, rows, new: Learned, weights, value, log_evidence) -> State:
    """The state after a batch: its nodes put back, or not if a value is absurd or anything is not finite."""
    n = len(value)
    with np.errstate(over="ignore"):
        moved = Gaussian(new.nodes.mean, np.exp(new.nodes.log_var))
    good = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((new, weights, moved)))
    good &= bool((moved.var > 0).all() and (np.abs(value) < LIMIT).all())
    if good:
        for k, (factor, row) in enumerate(zip(state.factors, rows, strict=True)):
            part = slice(k * settings.batch_size, k * settings.batch_size + len(row))
            factor.mean[row], factor.var[row] = moved.mean[part], moved.var[part]
        state = state._replace(process=new.process, bound=new.bound[[0, -1]] / n)
        state.counts.log_evidence[()] += log_evidence.sum()
    state.counts.entries[()] += n
    state.counts.rejected[()] += 0 if good else n
    return state._replace(batches=state.batches + 1)


def _gathered(settings: Settings, state: State, batch: Batch) -> tuple[State, list[Any], tuple[Any, ...]]:
    """The state with room, the rows of the batch's nodes per mode, and what `learn` wants to know of them.

    Nodes are in order of first appearance: what they are called decides nothing.
    """
    state = _grown(state, batch.index.max(axis=0) + 1)
    n, places, K = len(batch.value), settings.batch_size, settings.n_modes
    nodes = Nodes(*np.zeros((2, K * places, settings.rank)))
    value, here = np.zeros((2, places))
    entries = Entries(np.zeros((places, K), np.int32), value, here, np.zeros((K * places, 1)))
    entries.value[:n], entries.here[:n] = batch.value, 1.0
    rows = []
    for k, (column, factor) in enumerate(zip(batch.index.T, state.factors, strict=True)):
        _, first, inverse = np.unique(column, return_index=True, return_inverse=True)
        order = np.argsort(first)
        row = column[first[order]]
        entries.node[:n, k] = k * places + np.argsort(order)[inverse]
        part = slice(k * places, k * places + len(row))
        nodes.mean[part], nodes.log_var[part] = factor.mean[row], np.log(factor.var[row])
        entries.fresh[part, 0] = ((factor.mean[row] == 0) & (factor.var[row] == 1)).all(axis=1)
        rows.append(row)
    number = int(state.batches) + 1  # 0: the first inducing inputs
    key = np.random.SeedSequence([int(state.seed), number]).generate_state(2)
    return state, rows, (nodes, entries, key)


def _grown(state: State, n_nodes: NDArray[np.int64]) -> State:
    rank = state.factors[0].mean.shape[1]

    def start(mode: int, first: int, last: int) -> Gaussian:
        return Gaussian(np.zeros((last - first, rank)), np.ones((last - first, rank)))

    counts = state.counts._replace(nodes=np.maximum(state.counts.nodes, n_nodes))
    return state._replace(factors=with_room(state.factors, n_nodes, start), counts=counts)


# --- prediction -----------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=(0, 1))
def _readout(settings: Settings, posterior, process) -> tuple[jax.Array, jax.Array]:
    """w = L^-T m and W = L^-T (S - I + m m^T) L^-1: with k = k(Z, x) E[f] = w^T k, E[f²] = s² + k^T W k."""
    mean, cov = posterior(settings, process)
    L = jnp.linalg.cholesky(inducing_cov(settings, process.hyper, process.inputs))
    back = partial(solve_triangular, L, lower=True, trans=1)
    return back(mean), back(back(cov - jnp.eye(len(mean)) + jnp.outer(mean, mean)).T)


@cache
def _together() -> int:
    """How many entries are predicted side by side, M² numbers each."""
    return 16 if jax.default_backend() == "cpu" else 256


@jax.jit
def _evaluate(hyper: Hyper, inputs, weights, x, count) -> jax.Array:
    """Mean and variance of f for the first `count` times `_together` of the x."""
    together = _together()

    def entry(mean, var):
        first, second = expected_kernels(hyper, inputs, mean, var)
        f = first @ weights[0]
        return f, jnp.maximum(jnp.exp(hyper.log_var) + jnp.sum(second * weights[1]) - f * f, TINY_VAR)

    def some(i, out):
        part = lax.dynamic_slice_in_dim(x, i * together, together, axis=1)
        return lax.dynamic_update_slice(out, jnp.stack(jax.vmap(entry)(*part)), (0 * i, i * together))

    return lax.fori_loop(0, count, some, jnp.zeros(x.shape[:2]))


def _moments(readout, state: State, index: NDArray[np.integer]) -> NDArray[np.float64]:
    n, rank = len(index), state.factors[0].mean.shape[1]
    x = np.zeros((2, n, len(state.factors), rank))
    x[1] = 1.0  # the prior, of a node that is not known
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
            told = _evaluate(
                state.process.hyper, state.process.inputs, weights, padded, np.int32(-(-size // _together()))
            )
            out[:, start : start + size] = np.asarray(told)[:, :size]
    return out
