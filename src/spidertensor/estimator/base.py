"""SpiderRegressor and SpiderClassifier: the only stateful classes, thin, with scikit-learn's etiquette.

They own what a Method does not want to know: raw ids, names of columns, the scale of the values, files.
A call checks all of its input before it changes anything.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state

from spidertensor import checkpoint
from spidertensor.checkpoint import Checkpoint, CheckpointError
from spidertensor.estimator import inputs
from spidertensor.estimator.fitted import (
    Learned,
    check,
    from_file,
    network_of_file,
    scaled,
    to_arrays,
    to_params,
    user_units,
    with_room,
)
from spidertensor.estimator.ids import NodeIndex, rows
from spidertensor.estimator.inputs import EntryError
from spidertensor.estimator.parameters import LARGEST, check_alone, checked, is_whole, model_of
from spidertensor.estimator.recommend import Recommendation, best_nodes
from spidertensor.method import Batch, Prediction, Update
from spidertensor.spider import posterior
from spidertensor.spider.custom_network import CustomNetwork
from spidertensor.spider.posterior import Gaussian
from spidertensor.spider.spike_slab import inclusion

# What a file that was written before a parameter existed means by its absence.
ADDED: dict[str, Any] = {"engine": "sequential", "network": None}
PAPER: dict[str, Any] = {
    "bias": False,
    "multilinear": 0,
    "curvature": True,
    "rho0": 0.5,
    "batch_size": 256,
}


class Factors(NamedTuple):
    """Posterior of the factors of one mode: row i of mean and var belongs to ids[i]."""

    ids: list[Any]
    mean: NDArray[np.floating]
    var: NDArray[np.floating]


class _Spider(BaseEstimator):
    _likelihood: str
    _learned: Learned | None = None
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
        bias: bool = True,
        bias_var: float = 0.02,
        multilinear: int = 32,
        multilinear_var: float = 0.08,
        multilinear_start: float = 0.03,
        batch_size: int = 256,
        engine: str = "sequential",
        network: CustomNetwork | None = None,
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
        self.engine = engine
        self.network = network
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Forget everything, then learn the entries in one pass, in their order."""
        names = ("_learned", "n_features_in_", "feature_names_in_", "position_")
        before = {name: vars(self).pop(name) for name in names if name in vars(self)}
        try:
            self._advance(X, y)
            if self._learned is None:
                raise EntryError("fit needs at least one entry")
        except BaseException:
            for name in names:
                vars(self).pop(name, None)
            vars(self).update(before)
            raise
        return self

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Learn the entries, in their order, on top of what is known. Changed parameters wait for `fit`."""
        self._advance(X, y)
        return self

    def learn(self, X: Any, y: Any) -> Update:
        """As partial_fit, but returns what was predicted for each entry just before it was learned."""
        return self._advance(X, y)

    def recommend(
        self,
        given: Mapping[str | int, Any],
        over: str | int,
        n: int = 10,
        explore: str = "mean",
        seed: int | None = None,
    ) -> list[Recommendation]:
        """The n best nodes of mode `over`, best first, for the ids `given` in all other modes.

        A mode is its column name, or its number. explore: "mean" ranks by what is expected; "ucb" by that
        plus two standard deviations; "thompson" by one joint draw of all weights and factors, from `seed`.
        """
        learned, place = self._fitted(), self._mode(over)
        ids = {self._mode(mode): raw for mode, raw in given.items()}
        return best_nodes(learned, place, ids, self._expected, n=n, explore=explore, seed=seed)

    def parse_id(self, mode: str | int, text: str) -> Any:
        """The id of a mode that a text from a command line means: `42` finds the integer 42 where ids are."""
        return self._fitted().nodes[self._mode(mode)].parse(text)

    def save(self, path: str | os.PathLike[str], position: Any = None) -> None:
        """Everything into one file (docs/file-format.md), atomically. `position` is any JSON of yours."""
        learned = self._fitted()
        names = getattr(self, "feature_names_in_", None)
        config = {
            "estimator": next(name for name, kind in _KINDS.items() if isinstance(self, kind)),
            "params": to_params(learned),
            "modes": len(learned.nodes),
            "names": None if names is None else list(names),
            "shift": learned.shift,
            "scale": learned.scale,
        }
        checkpoint.save(path, to_arrays(learned), config, position)

    @classmethod
    def load(cls, path: str | os.PathLike[str], network: CustomNetwork | None = None) -> Self:
        """The estimator as it was saved; its `position_` is what `save` was given.

        network: that of the model if it had one of its own, for a file holds no code
        """
        return _load(path, cls, network)

    @property
    def n_nodes_(self) -> tuple[int, ...]:
        """How many ids each mode has seen."""
        return tuple(len(nodes) for nodes in self._fitted().nodes)

    @property
    def n_entries_(self) -> int:
        """How many entries were learned."""
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
    def weights_(self) -> list[Gaussian]:
        """Per layer, mean and var of its weights."""
        weights = self._fitted().state.posterior.weights
        return [Gaussian(weight.mean.copy(), weight.var.copy()) for weight in weights]

    @property
    def factors_(self) -> list[Factors]:
        """Per mode, the ids of the nodes and the posterior of their factors: [bias | multilinear | rank]."""
        learned = self._fitted()
        modes = zip(learned.nodes, posterior.trim(learned.state).posterior.factors, strict=True)
        return [Factors(nodes.ids, factor.mean.copy(), factor.var.copy()) for nodes, factor in modes]

    def _fitted(self) -> Learned:
        if self._learned is None:
            raise NotFittedError(
                f"this {type(self).__name__} has learned nothing yet: call fit, partial_fit or learn first"
            )
        return self._learned

    def _mode(self, mode: str | int) -> int:
        """Number of a mode that is named by its column or by that number."""
        names = list(getattr(self, "feature_names_in_", ()))
        if mode in names:
            return names.index(mode)
        if is_whole(mode) and 0 <= int(mode) < len(self._fitted().nodes):
            return int(mode)
        raise ValueError(f"no mode {mode!r}: there are {', '.join(names) or len(self._fitted().nodes)}")

    def _expected(self, prediction: Prediction) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return prediction.mean, np.sqrt(prediction.var)

    def _columns(self, X: Any) -> tuple[list[inputs.Column], tuple[str, ...] | None]:
        width = None if self._learned is None else len(self._learned.nodes)
        return inputs.columns(X, getattr(self, "feature_names_in_", None), width)

    def _advance(self, X: Any, y: Any) -> Update:
        columns, names = self._columns(X)
        n = len(columns[0]) if columns else 0
        value = inputs.values(y, n, binary=self._likelihood == "probit")
        if not n:
            return Update(*np.empty((4, 0)), rejected=0)
        learned = self._learned or self._start(len(columns), value)
        batch_value = scaled(value, learned)
        learned, index = with_room(learned, columns, names)
        # Nothing below can fail on account of the input. Kept before it is learned: the update works in these
        # very arrays, so that ids and state agree even if Ctrl-C cuts in.
        first, self._learned = self._learned is None, learned
        try:
            state, update = learned.model.method.update(learned.state, Batch(index, batch_value))
        except BaseException:
            if first and not learned.state.counts.entries:  # Ctrl-C while it compiled: nothing was learned
                self._learned = None
            raise
        self.n_features_in_ = len(columns)
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        self._learned = learned._replace(state=state)
        prediction = user_units(Prediction(update.mean, update.var, update.noise), learned)
        return Update(*prediction, update.log_evidence - math.log(learned.scale), update.rejected)

    def _start(self, n_modes: int, value: NDArray[np.float64]) -> Learned:
        params = checked(self.get_params(deep=False))
        model = model_of(params, self._likelihood, n_modes)
        check_alone(params)
        shift, scale = self._first_scaling(value)
        if not is_whole(params["random_state"]):
            params["random_state"] = int(check_random_state(self.random_state).randint(2**31 - 1))
        state = model.method.init(params["random_state"])
        return Learned(params, model, state, [NodeIndex() for _ in range(n_modes)], shift, scale)

    def _first_scaling(self, value: NDArray[np.float64]) -> tuple[float, float]:
        return 0.0, 1.0

    def _predict(self, X: Any) -> Prediction:
        learned = self._fitted()
        columns, names = self._columns(X)
        index = rows(learned.nodes, columns, add=False, names=names)
        return user_units(learned.model.method.predict(learned.state, index), learned)

    def __getstate__(self) -> dict[str, Any]:
        # A Method is made of closures: it is built again from the parameters.
        state: Any = super().__getstate__()
        state = dict(state)
        if self._learned is not None:
            state["_learned"] = self._learned._replace(model=None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if (learned := self._learned) is not None:
            model = model_of(learned.params, self._likelihood, len(learned.nodes))
            self._learned = learned._replace(model=model)

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
    Entries are learned once, in their order; ids never seen before become new nodes. A value more than a
    million times the scale away from the shift is refused.

    rank:         elements of a node's factor vector for the network; one number, or one per mode. Before
                  them the vector has its bias, if there is one, and `multilinear` elements
    hidden:       widths of the hidden layers
    activation:   "relu", "tanh", "sigmoid", "softplus" or "gelu"
    curvature:    the paper's update; without it, cheaper and mostly better
    rho0:         prior probability that a weight is in the network
    slab_var:     prior variance of a weight that is
    factor_var:   prior variance of a factor element
    bias:         add a bias per node to the network (prior variance bias_var)
    multilinear:  add a sum of so many products over the modes (prior variance multilinear_var, started with
                  standard deviation multilinear_start); 0 and bias=False leave the paper's network
    noise_memory: entries after which old errors have faded from the noise by 1/e; None: the paper's noise
    scaling:      (shift, scale) of the values; None takes mean and standard deviation of the first
                  `batch_size` values of the first call, so do not make that call a single entry
    batch_size:   entries between two refinements of the prior, however the calls are cut
    engine:       "sequential": entry by entry, compiled; "vectorized": a batch at once, by JAX (extra jax),
                  for wide networks and GPUs. Both keep the same state and write the same files
    network:      a CustomNetwork in place of hidden and activation, for the vectorized engine
    random_state: seed of the starting weights; if None or a RandomState, a number is drawn and kept
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
        bias: bool = True,
        bias_var: float = 0.02,
        multilinear: int = 32,
        multilinear_var: float = 0.08,
        multilinear_start: float = 0.03,
        noise_memory: float | None = 10_000,
        scaling: tuple[float, float] | None = None,
        batch_size: int = 256,
        engine: str = "sequential",
        network: CustomNetwork | None = None,
        random_state: Any = 0,
    ) -> None:
        super().__init__(
            rank, hidden, activation, curvature, rho0, slab_var, factor_var, bias, bias_var,
            multilinear, multilinear_var, multilinear_start, batch_size, engine, network, random_state,
        )  # fmt: skip
        self.noise_memory = noise_memory
        self.scaling = scaling

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The paper's settings, but for the start of the prior sites: with the paper's own, the first
        refinement divides the random starting weights out again (mathematics.md trap 1)."""
        settings: dict[str, Any] = {**PAPER, "noise_memory": None, **changes}
        return cls(**settings)

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
            return shift, scale
        first = value[: self.batch_size]
        size = np.abs(first)
        if size.max() > LARGEST:
            row = int(size.argmax())
            raise EntryError(f"value {value[row]:g} is too large: measure it in a larger unit", row)
        shift, scale = inputs.shift_and_scale(first)
        if not scale > 1 / LARGEST:
            warnings.warn(
                f"the first {len(first)} values do not vary, so their scale is taken as 1; if it is not, "
                "pass scaling=(shift, scale) or make the first call larger",
                stacklevel=5,
            )
            scale = 1.0
        return shift, scale

    def __sklearn_tags__(self):
        tags: Any = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # an id that was never learned says nothing
        return tags


class SpiderClassifier(ClassifierMixin, _Spider):
    """Streaming Bayesian deep tensor factorization of binary values, 0 or 1, with a probit likelihood.

    Parameters as for SpiderRegressor; there is no noise and no scaling.
    """

    _likelihood = "probit"

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The paper's settings, but for the start of the prior sites (see SpiderRegressor.paper)."""
        return cls(**(PAPER | changes))

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn the entries, in their order; `classes` is scikit-learn's custom, here always 0 and 1."""
        if classes is not None and not set(classes) <= {0, 1}:
            raise ValueError(f"the classes are 0 and 1, got {classes}")
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

    def _expected(self, prediction: Prediction) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return ndtr(prediction.mean / np.sqrt(1 + prediction.var)), np.sqrt(prediction.var)

    def predict(self, X: Any) -> NDArray[np.int64]:
        """The more probable label at each row of X."""
        return (self.predict_proba(X)[:, 1] > 0.5).astype(np.int64)

    def __sklearn_tags__(self):
        tags: Any = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.poor_score = True  # an id that was never learned says nothing
        return tags


_KINDS: dict[str, type[_Spider]] = {"SpiderRegressor": SpiderRegressor, "SpiderClassifier": SpiderClassifier}


def load(
    path: str | os.PathLike[str], network: CustomNetwork | None = None
) -> SpiderRegressor | SpiderClassifier:
    """The estimator in a file that `save` wrote, whichever kind it is; `network` as SpiderRegressor.load."""
    return _load(path, _Spider, network)


def look(path: str | os.PathLike[str]) -> SpiderRegressor | SpiderClassifier:
    """As `load`, but only to see what was learned: needs neither the network nor JAX, and does not run."""
    return _load(path, _Spider, None, runs=False)


def _load(
    path: str | os.PathLike[str], wanted: type[_Spider], network: CustomNetwork | None, *, runs: bool = True
) -> Any:
    if not isinstance(network, CustomNetwork | None):
        raise TypeError(f"network must be a CustomNetwork, got {network!r}")
    file = checkpoint.load(path)
    try:
        return _estimator(file, wanted, network, runs=runs)
    except CheckpointError as error:
        raise CheckpointError(f"{os.fspath(path)}: {error}") from None
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(
            f"{os.fspath(path)}: not a model that this version can read ({error!r})"
        ) from error


def _estimator(
    file: Checkpoint, wanted: type[_Spider], network: CustomNetwork | None, *, runs: bool
) -> _Spider:
    config = file.config
    known = {"estimator", "params", "modes", "names", "shift", "scale"}
    check(config.keys() == known, "the config has missing or unknown keys")
    kind = _KINDS.get(config["estimator"])
    if kind is None:
        raise CheckpointError(f"unknown estimator {config['estimator']!r}")
    mine = issubclass(wanted, kind)  # a user's subclass, or the very class
    check(mine or issubclass(kind, wanted), f"holds a {config['estimator']}, not a {wanted.__name__}")
    check(isinstance(config["params"], dict), "the params are not an object")
    params = config["params"] = ADDED | config["params"]
    params["network"] = network_of_file(params["network"], network, runs=runs)
    as_given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in params.items()
    }
    estimator = (wanted if mine else kind)(**as_given)
    complete = checked(estimator.get_params(deep=False)) == params
    check(complete, "the params have missing or impossible values")
    estimator._learned = from_file(file.arrays, config, kind._likelihood, runs=runs)
    estimator.n_features_in_ = config["modes"]
    estimator.position_ = file.position
    if config["names"] is not None:
        estimator.feature_names_in_ = np.array(config["names"], dtype=object)
    return estimator
