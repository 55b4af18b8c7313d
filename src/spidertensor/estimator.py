"""SpiderRegressor and SpiderClassifier: the only stateful classes, thin, with scikit-learn's etiquette.

They own what a Method does not want to know: raw ids, names of columns, the scale of the values, files.
A call checks all of its input before it changes anything.
"""

from __future__ import annotations

import math
import os
import warnings
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state

from spidertensor import checkpoint, entries, posterior
from spidertensor.checkpoint import CheckpointError
from spidertensor.engines.sequential import sequential
from spidertensor.entries import Batch, EntryError, NodeIndex
from spidertensor.method import Method, Prediction, Update
from spidertensor.network import Network
from spidertensor.posterior import Prior, State
from spidertensor.spike_slab import inclusion


class Factors(NamedTuple):
    """Posterior of the factors of one mode: row i of mean and var belongs to ids[i]."""

    ids: list[Any]
    mean: NDArray[np.floating]
    var: NDArray[np.floating]


class _Learned(NamedTuple):
    """Everything that learning changes, so that a reset or a load is one assignment."""

    method: Method
    state: State
    nodes: list[NodeIndex]
    params: dict[str, Any]  # as they were when learning began
    shift: float = 0.0
    scale: float = 1.0


class _Spider(BaseEstimator):
    _likelihood: str
    _learned: _Learned | None = None
    position_: Any = None

    def __init__(
        self,
        rank: int | tuple[int, ...] = 8,
        hidden: tuple[int, ...] = (50, 50),
        activation: str = "relu",
        curvature: bool = False,
        rho0: float = 0.9,
        slab_var: float = 1.0,
        factor_var: float = 1.0,
        bias: bool = False,
        bias_var: float = 0.02,
        multilinear: int = 0,
        multilinear_var: float = 0.1,
        multilinear_start: float = 0.03,
        batch_size: int = 256,
        random_state: Any = 0,
    ) -> None:
        self.rank = rank
        self.hidden = hidden
        self.activation = activation
        self.curvature = curvature
        self.rho0 = rho0
        self.slab_var = slab_var
        self.factor_var = factor_var
        self.bias = bias
        self.bias_var = bias_var
        self.multilinear = multilinear
        self.multilinear_var = multilinear_var
        self.multilinear_start = multilinear_start
        self.batch_size = batch_size
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Forget everything, then learn the entries in one pass, in their order."""
        before = self._learned, vars(self).pop("feature_names_in_", None)
        self._learned = None
        try:
            if not len(entries.values(y, None, binary=False)):
                raise EntryError("fit needs at least one entry")
            return self.partial_fit(X, y)
        except BaseException:
            self._learned, names = before
            if names is not None:
                self.feature_names_in_ = names
            raise

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Learn the entries, in their order, on top of what is known."""
        self.learn(X, y)
        return self

    def learn(self, X: Any, y: Any) -> Update:
        """As partial_fit, but returns what was predicted for each entry just before it was learned."""
        names = getattr(self, "feature_names_in_", None)
        columns, found = entries.columns(X, names)
        n = len(columns[0]) if columns else 0
        value = entries.values(y, n, binary=self._likelihood == "probit")
        if not n:
            return Update(*np.empty((4, 0)), rejected=0)
        learned = self._learned or self._start(len(columns), value)
        batch_value = self._checked_scaling(value, learned)
        index = entries.rows(learned.nodes, columns, add=True)
        # Nothing below can fail on account of the input.
        state, update = learned.method.update(learned.state, Batch(index, batch_value))
        self._learned = learned._replace(state=state)
        self.n_features_in_ = len(columns)
        if found is not None:
            self.feature_names_in_ = np.array(found, dtype=object)
        mean, var, noise = self._user_units(Prediction(update.mean, update.var, update.noise))
        return Update(mean, var, noise, update.log_evidence - math.log(learned.scale), update.rejected)

    def save(self, path: str | os.PathLike[str], position: Any = None) -> None:
        """Everything into one file (docs/file-format.md), atomically. `position` is any JSON of yours."""
        learned = self._fitted()
        arrays = checkpoint.flatten(posterior.trim(learned.state), "state")
        for mode, nodes in enumerate(learned.nodes):
            arrays |= {f"nodes/{mode}/{name}": array for name, array in nodes.to_arrays().items()}
        names = getattr(self, "feature_names_in_", None)
        config = {
            "estimator": type(self).__name__,
            "params": learned.params,
            "modes": len(learned.nodes),
            "names": None if names is None else list(names),
            "shift": learned.shift,
            "scale": learned.scale,
        }
        checkpoint.save(path, arrays, config, position)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The estimator as it was saved; its `position_` is what `save` was given."""
        estimator = load(path)
        if not isinstance(estimator, cls):
            raise CheckpointError(
                f"{os.fspath(path)}: holds a {type(estimator).__name__}, not a {cls.__name__}"
            )
        return estimator

    @property
    def n_nodes_(self) -> tuple[int, ...]:
        return tuple(len(nodes) for nodes in self._fitted().nodes)

    @property
    def n_entries_(self) -> int:
        return int(self._fitted().state.counts.entries)

    @property
    def n_rejected_(self) -> int:
        """Elements of weights and factors whose update was rejected to keep a variance positive."""
        return int(self._fitted().state.counts.rejected)

    @property
    def log_evidence_(self) -> float:
        """Sum over all entries of the log density that was predicted for them, in user units."""
        learned = self._fitted()
        return float(learned.state.counts.log_evidence) - self.n_entries_ * math.log(learned.scale)

    @property
    def inclusion_(self) -> list[NDArray[np.float64]]:
        """Per layer, the probability that each weight is in the network (last column: biases)."""
        learned = self._fitted()
        return [inclusion(site, learned.params["rho0"]) for site in learned.state.sites]

    @property
    def factors_(self) -> list[Factors]:
        """Per mode, the ids of the nodes and the posterior of their factors."""
        learned = self._fitted()
        modes = zip(learned.nodes, posterior.trim(learned.state).posterior.factors, strict=True)
        return [Factors(nodes.ids, factor.mean.copy(), factor.var.copy()) for nodes, factor in modes]

    def _fitted(self) -> _Learned:
        if self._learned is None:
            raise NotFittedError(
                f"this {type(self).__name__} has learned nothing yet: call fit, partial_fit or learn first"
            )
        return self._learned

    def _start(self, n_modes: int, value: NDArray[np.float64]) -> _Learned:
        params = self._plain_params()
        method = _method(params, self._likelihood, n_modes)
        seed = params["random_state"]
        if not isinstance(seed, int):
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            params["random_state"] = seed
        shift, scale = self._first_scaling(value)
        return _Learned(
            method, method.init(seed), [NodeIndex() for _ in range(n_modes)], params, shift, scale
        )

    def _plain_params(self) -> dict[str, Any]:
        """The parameters as JSON knows them, so that a NumPy number from a grid search can be saved."""

        def plain(value: Any) -> Any:
            if isinstance(value, np.generic):
                return value.item()
            if isinstance(value, tuple | list | np.ndarray):
                return [plain(each) for each in value]
            return value

        return {name: plain(value) for name, value in self.get_params(deep=False).items()}

    def _first_scaling(self, value: NDArray[np.float64]) -> tuple[float, float]:
        return 0.0, 1.0

    def _checked_scaling(self, value: NDArray[np.float64], learned: _Learned) -> NDArray[np.float64]:
        with np.errstate(over="ignore"):
            scaled = (value - learned.shift) / learned.scale
        # float32 inside: beyond this the network could not follow, and would be lost with the attempt
        far = np.abs(scaled) > 1e6
        if far.any():
            row = int(far.argmax())
            raise EntryError(
                f"value {value[row]:g} is more than a million times the scale {learned.scale:g}", row
            )
        return scaled

    def _user_units(self, prediction: Prediction) -> Prediction:
        learned = self._fitted()
        square = learned.scale**2
        return Prediction(
            learned.shift + learned.scale * prediction.mean,
            square * prediction.var,
            square * prediction.noise,
        )

    def _predict(self, X: Any) -> Prediction:
        learned = self._fitted()
        columns, _ = entries.columns(X, getattr(self, "feature_names_in_", None))
        index = entries.rows(learned.nodes, columns, add=False)
        return self._user_units(learned.method.predict(learned.state, index))

    def __getstate__(self) -> dict[str, Any]:
        # A Method is made of closures: it is built again from the parameters.
        state: Any = super().__getstate__()
        state = dict(state)
        if self._learned is not None:
            state["_learned"] = self._learned._replace(method=None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._learned is not None:
            method = _method(self._learned.params, self._likelihood, len(self._learned.nodes))
            self._learned = self._learned._replace(method=method)

    def __sklearn_is_fitted__(self) -> bool:
        return self._learned is not None

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags


class SpiderRegressor(RegressorMixin, _Spider):
    """Streaming Bayesian deep tensor factorization of continuous values.

    Each row of X holds one id per mode (any int, str, bytes, float, bool, or tuple of these); y is the value.
    Entries are learned once, in their order; ids never seen before become new nodes.

    rank:         length of a node's factor vector; one number, or one per mode
    hidden:       widths of the hidden layers
    activation:   "relu", "tanh", "sigmoid", "softplus" or "gelu"
    curvature:    the paper's update; without it, cheaper and mostly better
    rho0:         prior probability that a weight is in the network
    slab_var:     prior variance of a weight that is
    factor_var:   prior variance of a factor element
    bias:         add a bias per node to the network (prior variance bias_var)
    multilinear:  add a sum of so many products over the modes (multilinear_var, multilinear_start)
    noise_memory: entries after which old errors have faded from the noise by 1/e; None: never (the paper)
    scaling:      (shift, scale) of the values; None takes mean and standard deviation of the first
                  `batch_size` values of the first call, so do not make that call a single entry
    batch_size:   entries between two refinements of the prior, however the calls are cut
    random_state: seed of the starting weights
    """

    _likelihood = "gaussian"

    def __init__(
        self,
        rank: int | tuple[int, ...] = 8,
        hidden: tuple[int, ...] = (50, 50),
        activation: str = "relu",
        curvature: bool = False,
        rho0: float = 0.9,
        slab_var: float = 1.0,
        factor_var: float = 1.0,
        bias: bool = False,
        bias_var: float = 0.02,
        multilinear: int = 0,
        multilinear_var: float = 0.1,
        multilinear_start: float = 0.03,
        noise_memory: float | None = 10_000,
        scaling: tuple[float, float] | None = None,
        batch_size: int = 256,
        random_state: Any = 0,
    ) -> None:
        super().__init__(
            rank, hidden, activation, curvature, rho0, slab_var, factor_var, bias, bias_var,
            multilinear, multilinear_var, multilinear_start, batch_size, random_state,
        )  # fmt: skip
        self.noise_memory = noise_memory
        self.scaling = scaling

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The paper's settings, but for the start of the prior sites: with the paper's own, the first
        refinement divides the random starting weights out again (method.md trap 1)."""
        return cls(**({"curvature": True, "rho0": 0.5, "noise_memory": None, "batch_size": 256} | changes))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Mean of an observation at each row of X, and with return_std its standard deviation."""
        mean, var, noise = self._predict(X)
        return (mean, np.sqrt(var + noise)) if return_std else mean

    @property
    def noise_(self) -> float:
        """Variance that an observation has around the mean of its entry."""
        learned = self._fitted()
        noise = learned.state.posterior.noise
        return float(noise.rate / noise.shape) * learned.scale**2

    def _first_scaling(self, value: NDArray[np.float64]) -> tuple[float, float]:
        if self.scaling is not None:
            shift, scale = map(float, self.scaling)
            if not (math.isfinite(shift) and 0 < scale < math.inf):
                raise ValueError(f"scaling must be (finite shift, positive scale), got {self.scaling}")
            return shift, scale
        first = value[: self.batch_size]
        scale = float(first.std())
        if not 0 < scale < math.inf:
            warnings.warn(
                f"the first {len(first)} values do not vary, so their scale is taken as 1; if it is not, "
                "pass scaling=(shift, scale) or make the first call larger",
                stacklevel=5,
            )
            scale = 1.0
        return float(first.mean()), scale


class SpiderClassifier(ClassifierMixin, _Spider):
    """Streaming Bayesian deep tensor factorization of binary values, 0 or 1, with a probit likelihood.

    Parameters as for SpiderRegressor; there is no noise and no scaling.
    """

    _likelihood = "probit"

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The paper's settings, but for the start of the prior sites (see SpiderRegressor.paper)."""
        return cls(**({"curvature": True, "rho0": 0.5, "batch_size": 256} | changes))

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn the entries, in their order; `classes` is scikit-learn's custom, here always 0 and 1."""
        return super().partial_fit(X, y)

    @property
    def classes_(self) -> NDArray[np.int64]:
        self._fitted()
        return np.array([0, 1])

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities of 0 and of 1 at each row of X."""
        mean, var, _ = self._predict(X)
        t = mean / np.sqrt(1 + var)
        return np.column_stack([ndtr(-t), ndtr(t)])

    def predict(self, X: Any) -> NDArray[np.int64]:
        """The more probable label at each row of X."""
        return (self.predict_proba(X)[:, 1] > 0.5).astype(np.int64)


def load(path: str | os.PathLike[str]) -> SpiderRegressor | SpiderClassifier:
    """The estimator in a file that `save` wrote, whichever kind it is."""
    file = checkpoint.load(path)
    try:
        return _from_file(file)
    except CheckpointError as error:
        raise CheckpointError(f"{os.fspath(path)}: {error}") from None
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(
            f"{os.fspath(path)}: not a model that this version can read ({error!r})"
        ) from error


def _from_file(file: checkpoint.Checkpoint) -> SpiderRegressor | SpiderClassifier:
    """Everything in the file is checked against everything else: a kernel trusts the shapes it is given."""
    config, arrays = file.config, file.arrays
    classes = {cls.__name__: cls for cls in (SpiderRegressor, SpiderClassifier)}
    estimator = classes[config["estimator"]](**config["params"])
    n_modes, shift, scale = int(config["modes"]), float(config["shift"]), float(config["scale"])
    if not (math.isfinite(shift) and 0 < scale < math.inf):
        raise CheckpointError(f"scaling ({shift}, {scale}) is not possible")
    stored = {name.split("/")[1] for name in arrays if name.startswith("nodes/")}
    if stored != {str(mode) for mode in range(n_modes)}:
        raise CheckpointError(f"{n_modes} modes, but nodes of {len(stored)}")
    nodes = []
    for mode in range(n_modes):
        prefix = f"nodes/{mode}/"
        of_mode = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
        nodes.append(NodeIndex.from_arrays(of_mode))
    # Before anything is allocated for it: the network must be the one whose weights are in the file.
    for layer, shape in enumerate(_network(config["params"], n_modes).layers):
        if arrays[f"state/posterior/weights/{layer}/mean"].shape != shape:
            raise CheckpointError(f"layer {layer} is not of shape {shape}")
    method = _method(config["params"], estimator._likelihood, n_modes)
    state = checkpoint.restore(method.init(0), arrays, "state")
    for mode, (factor, known) in enumerate(zip(state.posterior.factors, nodes, strict=True)):
        rows = {len(known), int(state.counts.nodes[mode]), len(factor.mean), len(factor.var)}
        if len(rows) != 1:
            raise CheckpointError(f"mode {mode} has different numbers of nodes: {sorted(rows)}")
    if any(not (leaf.var > 0).all() for leaf in (*state.posterior.factors, *state.posterior.weights)):
        raise CheckpointError("a variance is not positive")
    estimator._learned = _Learned(method, state, nodes, dict(config["params"]), shift, scale)
    estimator.n_features_in_ = n_modes
    if config["names"] is not None:
        estimator.feature_names_in_ = np.array([str(name) for name in config["names"]], dtype=object)
    estimator.position_ = file.position
    return estimator


def _network(params: dict[str, Any], n_modes: int) -> Network:
    rank = params["rank"]
    ranks = tuple(rank) if isinstance(rank, tuple | list) else (rank,) * n_modes
    if len(ranks) != n_modes:
        raise ValueError(f"rank names {len(ranks)} modes, the entries have {n_modes}")
    return Network(
        ranks, tuple(params["hidden"]), params["activation"], bool(params["bias"]), params["multilinear"]
    )


def _method(params: dict[str, Any], likelihood: str, n_modes: int) -> Method:
    names = ("slab_var", "rho0", "factor_var", "bias_var", "multilinear_var", "multilinear_start")
    return sequential(
        _network(params, n_modes),
        likelihood,
        Prior(**{name: params[name] for name in names}),
        curvature=params["curvature"],
        noise_memory=params.get("noise_memory"),
        refine_every=params["batch_size"],
    )
