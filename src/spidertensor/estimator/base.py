"""The base class of both estimators: learn, predict, recommend, save and load.

It holds everything a Method does not know: raw ids, column names, the scale of the values, files. Every call
checks all of its input before it changes anything.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from spidertensor import checkpoint
from spidertensor.checkpoint import Checkpoint
from spidertensor.estimator import event_rule, eviction, fitted_file, inputs, one_entry, times, weights
from spidertensor.estimator.attributes import HasAttributes
from spidertensor.estimator.eviction import Numbered
from spidertensor.estimator.fitted import (
    Fitted,
    attributes_of,
    bags_of,
    check_possible,
    copied,
    followed,
    generation_of,
    remembering,
    scaled_values,
    with_room,
    without,
)
from spidertensor.estimator.forecast import Forecast, forecast_by, forecasts_to_score
from spidertensor.estimator.groups import Inference, Prior, flat, grouped
from spidertensor.estimator.ids import NodeIndex, to_index
from spidertensor.estimator.inputs import Columns
from spidertensor.estimator.insight import Insight
from spidertensor.estimator.labels import Classes
from spidertensor.estimator.notes import Notes
from spidertensor.estimator.old_names import OldMethods
from spidertensor.estimator.one_entry import EntryUpdate
from spidertensor.estimator.parameters import (
    LEFT_OUT,
    Parameters,
    check_alone,
    checked,
    is_whole,
    model_of,
)
from spidertensor.estimator.recommender import Recommender
from spidertensor.estimator.scikit_learn import ScikitLearn
from spidertensor.estimator.seen_pairs import SeenPairs
from spidertensor.estimator.tally import tally_of
from spidertensor.estimator.threads import locked
from spidertensor.estimator.times import Times
from spidertensor.estimator.whole_history import LearnsHistory
from spidertensor.faults import EntryError, SpiderWarning
from spidertensor.method import Bags, Batch, Prediction, Update
from spidertensor.scaling import Scaling
from spidertensor.spider.committee import updated
from spidertensor.spider.custom_network import CustomNetwork
from spidertensor.spider.events import Rule
from spidertensor.spider.forecasts import MemberForecasts
from spidertensor.spider.interrupts import deferred_interrupts
from spidertensor.spider.likelihoods import Likelihood

PAPER: dict[str, Any] = {
    "bias": False,
    "multilinear": 0,
    "prior": Prior(rho0=0.5),
    "inference": Inference(curvature=True),
    "committee": 1,
    "batch_size": 256,
    "passes": 1,
}


CHANGES = {
    "level": "the level of the values has changed; the model has shifted with it",
    "scale": "the scale of the values has changed; the model has been rescaled",
    "afresh": "the values have nothing to do with those before; the model has started afresh",
}


def _as_given(params: dict[str, Any]) -> dict[str, Any]:
    """Turn stored parameters into what a user would pass: JSON lists become tuples, except the committee."""
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in params.items()}
    if isinstance(params.get("committee"), list):
        given["committee"] = [_as_given(own) if isinstance(own, dict) else own for own in params["committee"]]
    return given


def _warn_of_changes(counts: NDArray[np.int64]) -> None:
    """Warn once for each kind of change with a positive count; `counts` is in the order of CHANGES."""
    for (kind, reason), n in zip(CHANGES.items(), counts.tolist(), strict=True):
        if n:
            remedy = "no action needed; followed_ counts such changes"
            warnings.warn(SpiderWarning(reason, kind=kind, remedy=remedy), stacklevel=7)


class Spider(LearnsHistory, HasAttributes, Parameters, Recommender, Insight, OldMethods, ScikitLearn):
    """Base class of SpiderRegressor and SpiderClassifier.

    X has one row per entry and one id per mode: a 2-D array, a list of tuples, an eager data frame, or
    `inputs.Columns`.

    Threads may share an estimator: calls run one at a time, so no call sees a half-finished `learn`.
    """

    _likelihood: Any  # the Likelihood of the learned model, or of the model the parameters describe
    _stored_as: str  # name of the estimator in files; user-defined subclasses share it
    position_: Any = None
    _placed: Any = None  # where the members learn, if in other processes: cluster/fit.py

    @locked
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Forget everything, then learn all entries, as often as `passes` says. Only events need no y.

        sample_weight: how many observations each entry counts as; one of weight 0 is not learned. None: one
        """
        names = ("_learned", "n_features_in_", "feature_names_in_", "position_", "_notes", "_collected")
        before = {name: vars(self).pop(name) for name in names if name in vars(self)}
        self._notes = Notes()
        try:
            self._flat_params()  # refuses impossible ones
            when = self._when(X)
            columns = self._columns(X)
            if when is not None and len(when.asked) != columns.n_entries:
                raise EntryError(f"{columns.n_entries} entries but {len(when.asked)} times", column=self.time)
            once = self._once(columns.n_entries) is not None
            if when is not None:
                as_they_come = once and when.known is None
                self._in_time(as_they_come, columns, y, when, sample_weight)
            elif once:
                self._advance(X, y, sample_weight=sample_weight)
            else:
                self._collect(columns, y, sample_weight=sample_weight)
            self._learn_all_collected()
            if self._learned is None:
                with_weight = "" if sample_weight is None else ", and its weight must not be zero"
                raise EntryError(f"fit needs at least one entry{with_weight}")
            self._notes.at_end(self._learned)
            if (schema := self._schema) is not None:
                used = {*schema.inputs, self.time, self.known_at}
                unused = [name for name in inputs.names_of(X) if name not in used]
                self._notes.absent(self._learned, columns.given, unused)
        except BaseException:
            for name in names:
                vars(self).pop(name, None)
            vars(self).update(before)
            raise
        return self

    @locked
    def partial_fit(self, X: Any, y: Any, *, sample_weight: Any = None, forecast: Any = None) -> Self:
        """Learn more entries, in order.

        Parameters changed since learning began take effect at the next `fit`. sample_weight: see `fit`;
        forecast: see `learn`
        """
        self._advance(X, y, forecast=forecast, sample_weight=sample_weight)
        return self

    @locked
    def learn(self, X: Any, y: Any, *, sample_weight: Any = None, forecast: Any = None) -> Update:
        """Like partial_fit, but return the prediction made for each entry just before it was learned.

        sample_weight: see `fit`. For entries of weight 0 nothing is predicted: the Update has NaN
        forecast: the Forecast made for these entries earlier, or a list of forecasts with None for entries
                  without one. They are learned as always; the committee's weights, the calibration of
                  intervals and the Update score the forecast in place of the prediction just before
        """
        return self._advance(X, y, forecast=forecast, sample_weight=sample_weight)[0]

    @locked
    def _learn_numbered(self, X: Any, y: Any, *, forecast: Any = None) -> Numbered:
        """Like learn, but also return the (n, K) node numbers of the entries, which are rows of `factors_`.

        Another model can then learn the same entries without ids. With max_nodes a row may pass to another
        id within the call: `parts` says from which entry on.
        """
        return self._advance(X, y, forecast=forecast)

    @locked
    def learn_one(self, ids: Any, value: Any = None, forecast: Forecast | None = None) -> EntryUpdate:
        """Learn one entry. Same result as `learn([ids], [value])`, bit for bit, but several times faster.

        ids:      one per mode, as a tuple or list, or by column name: {"user": "anna", ...}
        value:    the observed value; leave it out for an event
        forecast: see `learn`

        Returns the prediction made just before, as numbers: mean, var, noise, std, log_evidence and others.
        """
        if type(ids) is not tuple and self._schema is None:
            names = getattr(self, "feature_names_in_", None)
            ids = one_entry.as_row(ids, names, learned=self._learned is not None)
        update = None
        if forecast is None:
            update = one_entry.learn_fast(self._learned, self._notes, ids, value)
        if update is None:
            y = None if value is None and self.learns_events else [value]
            arrays = self._advance(one_entry.as_rows(ids), y, forecast=forecast)[0]
            update = one_entry.numbers_of(arrays, self._likelihood)
        return update

    def _when(self, X: Any) -> Times | None:
        """When entries are predicted and their values known, if parameters name such columns."""
        if self.time is None:
            return None
        column = times.apart(X, self.time)[1]
        if self.known_at is None:
            return times.sortable(column, self.time)
        if self.learns_events:
            raise ValueError("known_at is for values that come late, and events have none: leave it out")
        if self.max_nodes is not None or self._placed is not None:
            raise ValueError("known_at needs all nodes in one process: leave out max_nodes and workers")
        return times.clock(column, times.apart(X, self.known_at)[1], self.time, self.known_at)

    @locked
    def _warn_at_end(self) -> None:
        """Give the warnings that `fit` gives at its end: all values equal, or many of them far off.

        For entries learned with `partial_fit` or `learn`; call it after the last one.
        """
        self._notes.at_end(self._fitted())

    @locked
    def predict_parts(self, X: Any) -> Prediction:
        """Mean and variance of the latent f at each row of X, and the noise variance of an observation."""
        return self._predict(X)

    @locked
    def forecast(self, X: Any) -> Forecast:
        """Predict each row of X with every member, to be scored when the row is learned."""
        fitted = self._fitted()
        if fitted.model.rule is not None:
            raise ValueError("events have no forecasts: their negatives are drawn when they are learned")
        return forecast_by(fitted, fitted.model.method.forecast(fitted.state, *self._asked(X))[1])

    @locked
    def seen(self, X: Any) -> NDArray[np.bool_]:
        """(n, K) whether each id of X has been learned; the others are predicted from the prior."""
        return self._index(X) >= 0

    @locked
    def forget(self, mode: str | int, ids: Any) -> int:
        """Remove nodes from a mode, for example for a deletion request. Return how many were known.

        Their ids and factors are deleted. What the weights and the factors of other nodes learned from their
        entries stays (docs/your-data.md#forgetting).

        mode: column name or number
        ids:  a list or array of ids; unknown ones are ignored
        """
        fitted, number = self._fitted(), self._mode(mode)
        if isinstance(ids, str | bytes) or not hasattr(ids, "__len__"):
            raise EntryError(
                f"the ids to forget must be a list or array, got {type(ids).__name__}", value=ids
            )
        ids = ids if isinstance(ids, np.ndarray) else list(ids)
        known = set(fitted.nodes[number].find(ids).tolist()) - {-1}
        if known:
            with deferred_interrupts():  # attributes are removed in place
                self._learned = without(fitted, number, known)
        return len(known)

    @locked
    def _parse_ids(self, mode: str | int, texts: Sequence[str]) -> list[Any]:
        """Parse texts as ids of a mode: "42" becomes the integer 42 if the ids of the mode are integers."""
        return self._fitted().nodes[self._mode(mode)].parse(texts)

    @locked
    def save(self, path: str | os.PathLike[str], position: Any = None) -> None:
        """Save the model to one file, atomically (docs/file-format.md).

        position: any JSON value to store with it; `load` returns it as `position_`
        """
        self._write(path, position)

    def _write(self, path: str | os.PathLike[str], position: Any = None) -> None:
        """`save` without the lock: other threads may predict meanwhile, but nobody may change the model."""
        with self._lock:  # predictions that keep to the values seen count what waits, too
            self._fitted().tally.flush()
        fitted, names = self._whole(self._fitted()), getattr(self, "feature_names_in_", None)
        sections = fitted_file.to_sections(fitted, self._stored_as, names) | {"position": position}
        checkpoint.save(path, fitted_file.to_arrays(fitted), sections, fitted_file.OPTIONAL & sections.keys())

    @classmethod
    def load(cls, path: str | os.PathLike[str], network: CustomNetwork | None = None) -> Self:
        """Load a saved estimator; its `position_` is what was passed to `save`.

        network: the model's custom network, if it has one, since files contain no code
        """
        return cls._from_file(path, checkpoint.load(path), network)

    @property
    @locked
    def likelihood_(self) -> Likelihood:
        """The distribution of a value given the latent f of its entry."""
        return self._shown

    @property
    def _shown(self) -> Likelihood:
        """The likelihood of values in user units."""
        return self._likelihood

    @property
    def learns_events(self) -> bool:
        """Whether the entries are events, which have no values."""
        return False

    def _rule_of(self, names: Sequence[str]) -> Rule | None:
        """How negatives are drawn, for modes with these names; None if the entries are not events."""
        return None

    def _columns(self, X: Any) -> Columns:
        for name in (self.time, self.known_at):
            if name is not None and (self._schema is None or name not in self._schema.inputs):
                X, _ = times.apart(X, name)
        if (schema := self._schema) is not None:
            modes = [(mode.name, mode.has_id) for mode in schema.modes]
            return inputs.named_columns(X, modes, schema.inputs)
        width = None if self._learned is None else len(self._learned.nodes)
        return inputs.columns(X, getattr(self, "feature_names_in_", None), width)

    def _index(self, X: Any) -> NDArray[np.int64]:
        return to_index(self._fitted().nodes, self._columns(X), add=False)

    def _values(self, y: Any, n: int, classes: Any) -> tuple[NDArray[np.float64], Classes | None]:
        """y as numbers, and the labels they stand for, if any. For `classes` see SpiderClassifier."""
        return inputs.values(y, n, self._shown), None

    def _weights(self, sample_weight: Any, n: int) -> NDArray[np.float64] | None:
        """The weights of n entries, some of them perhaps 0; None if each counts once."""
        at_once = self.engine == "vectorized"
        weight = weights.checked(sample_weight, n, weights.MOST_AT_ONCE if at_once else weights.MOST)
        if weight is not None and self._placed is not None:
            raise ValueError("several workers count every entry once: leave sample_weight out")
        if weight is not None and not self._likelihood.weighted:
            raise ValueError("ordered levels count every entry once: leave sample_weight out")
        return weight

    def _advance(
        self, X: Any, y: Any, classes: Any = None, *, forecast: Any = None, sample_weight: Any = None
    ) -> Numbered:
        if (
            classes is None
            and forecast is None
            and sample_weight is None
            and (learned := one_entry.learn_rows(self._learned, self._notes, X, y)) is not None
        ):
            return Numbered(*learned)
        columns = self._columns(X)
        value, classes = self._values(y, columns.n_entries, classes)
        forecasts = None if forecast is None else forecasts_to_score(self._learned, forecast, len(value))
        weight = self._weights(sample_weight, len(value))
        rows = weights.rows_to_learn(weight)
        if rows is None or weight is None:
            return self._learn_checked(columns, value, classes, forecasts, weight)
        forecasts = None if forecasts is None else forecasts.at(rows)
        with weights.rows_as_given(rows):
            some = weights.columns_at(columns, rows), value[rows], classes, forecasts, weight[rows]
            return weights.of_all(self._learn_checked(*some), rows, len(value))

    def _learn_checked(
        self,
        columns: Columns,
        value: NDArray[np.float64],
        classes: Classes | None,
        forecasts: MemberForecasts | None,
        weight: NDArray[np.float64] | None,
    ) -> Numbered:
        """Learn entries of positive weight, whose values are checked."""
        if not len(value):
            below = np.empty(0) if self._likelihood.intervals else None
            nothing = Update(*np.empty((4, 0)), rejected=0, below=below)
            return Numbered(nothing, np.empty((0, len(columns.ids)), np.int64))
        fitted = self._learned or self._start(columns, value)._replace(classes=classes)
        if not fitted.bounded and fitted.columns is None:  # an interrupt leaves at worst ids without entries
            return self._learn(fitted, columns, value, forecasts, weight)
        # An interrupt must not leave a new id with the row of an evicted one, or attributes without a node.
        with deferred_interrupts():
            return self._learn(fitted, columns, value, forecasts, weight)

    def _untaught(self, ids: Any) -> Self:
        """A copy of an estimator that has learned nothing, which predicts entries with the modes of this one
        from the prior."""
        copied = type(self)(**self.get_params(deep=False))
        copied._described, copied.random_state = copy.deepcopy((self._described, self.random_state))
        if copied.random_state is None:
            copied.random_state = 0  # predicting draws nothing from the global generator
        columns = copied._columns(one_entry.as_rows(ids))
        copied._keep_learned(copied._start(columns, np.zeros(1), provisional=True), columns)
        return copied

    def _learn(
        self,
        fitted: Fitted,
        columns: Columns,
        value: NDArray[np.float64],
        forecasts: MemberForecasts | None,
        weight: NDArray[np.float64] | None,
    ) -> Numbered:
        batch_value = scaled_values(value, fitted)
        fitted, (index, bags, segments) = with_room(fitted, columns)
        # The input is valid from here on. Stored before the update, which works in place on these arrays, so
        # that ids and state agree even if it is interrupted.
        first = self._learned is None
        self._keep_learned(fitted, columns)
        before = [followed(fitted, m) for m in range(len(fitted.state.members))]
        try:
            with remembering(fitted, index):
                batch = Batch(index, batch_value, bags, weight)
                if segments:
                    state, update = eviction.learn(fitted.model, fitted.state, batch, segments, forecasts)
                else:
                    state, update = updated(fitted.model.method, fitted.state, batch, forecasts)
        except BaseException:
            if first and not any(member.counts.entries for member in fitted.state.members):
                for name in ("_learned", "n_features_in_", "feature_names_in_"):  # nothing was learned
                    vars(self).pop(name, None)
            raise
        self._learned = fitted._replace(state=state)
        prediction = fitted.scaling.user_units(update.mean, update.var, update.noise)
        leading = self._learned.leading
        changes = followed(self._learned, leading) - before[leading]
        _warn_of_changes(changes)
        self._notes.learned(self._learned, value, update, followed=any(changes.tolist()))
        if not segments:
            self._notes.came(index, value, self.mode_names_)
        log_evidence = fitted.scaling.log_density(update.log_evidence)
        learned = Numbered(Update(*prediction, log_evidence, *update[4:]), index, segments)
        fitted.tally.add(value, learned, self.n_entries_)
        return learned

    def _keep_learned(self, fitted: Fitted, columns: Columns) -> None:
        """Store the model, and how its modes are called."""
        self._learned = fitted
        self.n_features_in_ = len(columns.ids)
        if columns.names is not None:
            self.feature_names_in_ = np.array(columns.names, dtype=object)
            self._notes.names = columns.names

    def _start(
        self,
        columns: Columns,
        value: NDArray[np.float64],
        *,
        provisional: bool = False,
        history: bool = False,
    ) -> Fitted:
        """The model before its first entry, which is of these.

        provisional: its scale is replaced later, so no note is given
        history:     see _start_columns
        """
        n_modes = len(columns.ids)
        params: dict[str, Any] = self._resolved(self._flat_params(), columns.names, n_modes)
        max_nodes, nodes = params["max_nodes"], [NodeIndex() for _ in range(n_modes)]
        nodes = nodes if max_nodes is None else eviction.empty_nodes(max_nodes, n_modes)
        attributes = self._start_columns(columns, nodes, history=history)
        likelihood = self._likelihood.of_values(value)
        if likelihood.levels:
            params = dict(sorted((params | {"levels": list(likelihood.levels)}).items()))
        model = model_of(params, likelihood, n_modes, attributes=attributes_of(attributes))
        check_alone(params)
        if attributes is not None:
            check_possible(attributes, params, model.rule)
        scaling = self._first_scaling(value, self.batch_size, warns=not provisional)
        if not is_whole(params["random_state"]):
            from sklearn.utils import check_random_state  # imported here: slow, and not needed for an int

            params["random_state"] = int(check_random_state(self.random_state).randint(2**31 - 1))
        state = model.method.init(params["random_state"])
        pairs = None if params.get("remember_seen", False) is False else SeenPairs()
        first = [str(each[0]) for each in columns.ids if each is not None]
        number = generation_of(params, scaling, first, float(value[0]))
        fitted = Fitted(
            params, model, state, nodes, scaling, tally_of(model, params, [0] * n_modes),
            pairs=pairs, columns=attributes, generation=number,
        )  # fmt: skip
        return fitted if self._placed is None else self._placed.start(fitted)

    def _flat_params(self) -> dict[str, Any]:
        """The parameters, checked and flat: what the model is built from and what its file stores.

        Without `modes`, which files store with what was learned about them.
        """
        groups = {group: getattr(self, group) for group in self._inside}
        params = flat(self.get_params(deep=False) | groups, self._inside)
        left_out = {"modes"} if params.get("levels") is not None else {"modes", "levels"}
        return checked({name: value for name, value in params.items() if name not in left_out})

    @classmethod
    def _flat_names(cls) -> set[str]:
        inside = [name for names in cls._inside.values() for name in names]
        return {*cls._get_param_names(), *inside} - cls._inside.keys() - {"modes"}

    def _whole(self, fitted: Fitted) -> Fitted:
        """The same with all members in this process."""
        return fitted if self._placed is None else self._placed.whole(fitted)

    def _resolved(self, params: dict[str, Any], names: Sequence[str] | None, n_modes: int) -> dict[str, Any]:
        """The parameters with modes given by number."""
        with_id = list(range(n_modes))
        if self._schema is not None:
            with_id = [number for number, mode in enumerate(self._schema.modes) if mode.has_id]
        return event_rule.resolved(params, names, n_modes, with_id)

    def _first_scaling(self, value: NDArray[np.float64], n: int, *, warns: bool = True) -> Scaling:
        """The scaling for the first n values to decide."""
        return Scaling()

    def _predict(self, X: Any) -> Prediction:
        fitted = self._fitted()
        if (prediction := one_entry.predict_rows(fitted, X)) is not None:
            return prediction
        return fitted.scaling.user_units(*fitted.model.method.predict(fitted.state, *self._asked(X)))

    def _asked(self, X: Any) -> tuple[NDArray[np.int64], Bags | None]:
        """The nodes and attributes of entries to predict."""
        fitted, columns = self._fitted(), self._columns(X)
        index = to_index(fitted.nodes, columns, add=False)
        bags = bags_of(fitted, columns, index)
        if index.min(initial=0) < 0:
            names = getattr(self, "feature_names_in_", None)
            ids = {mode: each for mode, each in enumerate(columns.ids) if each is not None}
            self._notes.predicted(fitted, ids, {mode: index[:, mode] for mode in ids}, names)
        return index, bags

    def _predict_one(self, ids: Any) -> tuple[float, float, float]:
        """mean, var and noise of one entry, as in predict_parts; before the first entry, from the prior."""
        if self._learned is None:
            return self._untaught(ids)._predict_one(ids)
        fitted = self._learned
        if type(ids) is not tuple and self._schema is None:
            names = getattr(self, "feature_names_in_", None)
            ids = one_entry.as_row(ids, names, learned=self._learned is not None)
        found = one_entry.predict_fast(fitted, ids)
        if found is None:
            mean, var, noise = self._predict(one_entry.as_rows(ids))
            found = mean.item(), var.item(), noise.item()
        return found

    @classmethod
    def _from_file(
        cls,
        path: str | os.PathLike[str],
        file: Checkpoint,
        network: CustomNetwork | None,
        *,
        runs: bool = True,
    ) -> Self:
        """Build the estimator from a loaded file.

        path: for error messages
        runs: False to inspect the model only, without its engine
        """
        if not isinstance(network, CustomNetwork | None):
            raise TypeError(f"network must be a CustomNetwork, got {network!r}")
        with fitted_file.as_checkpoint_error(path):
            config = fitted_file.config_of(file)
            fitted_file.check_config(config, cls._stored_as, cls.__name__)
            params = fitted_file.params_of(file, config, cls._flat_names())
            params["network"] = fitted_file.network_of_file(params["network"], network, runs=runs)
            estimator = cls(**grouped(_as_given(params)))
            complete = estimator._flat_params() == params
            fitted_file.check(complete, "the params have missing or invalid values")
            estimator._learned = fitted_file.from_file(
                file, config | {"params": params}, estimator._likelihood, runs=runs
            )
            estimator.modes = estimator._modes_learned()
            estimator.n_features_in_ = config["modes"]
            estimator.position_ = file.sections.get("position")
            if config["names"] is not None:
                estimator.feature_names_in_ = np.array(config["names"], dtype=object)
            return estimator

    @locked
    def __getstate__(self) -> dict[str, Any]:
        # A Method consists of closures, which cannot be pickled: __setstate__ rebuilds it.
        state = vars(self).copy()
        del state["_lock"], state["_notes"]
        state.pop("_placed", None)
        state["_described"] = copy.deepcopy(self._described)
        if (fitted := self._learned) is not None:
            fitted = self._whole(fitted)
            members = tuple(member._replace(method=LEFT_OUT) for member in fitted.model.members)
            model = fitted.model._replace(members=members, method=LEFT_OUT)
            # Copied because pickle reads it after this call, when another thread may be learning, and because
            # the result of copy.copy must share neither state nor ids.
            own = {name: getattr(fitted, name) for name in ("nodes", "pairs", "columns", "tally")}
            own = copy.deepcopy(own) | {"state": copied(fitted.state)}
            state["_learned"] = fitted._replace(model=model, **own)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(grouped(state))  # pickles from before 0.3 are flat
        if (fitted := self._learned) is not None:
            members = fitted.model.members
            model = model_of(
                fitted.params,
                self._likelihood,
                len(fitted.nodes),
                members=[member.own for member in members],
                product=members[0].network.product,
                attributes=attributes_of(fitted.columns),
            )
            # Copied because joblib may map a pickle read-only, and kernels write to the state.
            own = {"state": copied(fitted.state), "tally": copy.deepcopy(fitted.tally)}
            self._learned = fitted._replace(model=model, **own)

    @locked
    def __sklearn_is_fitted__(self) -> bool:
        return self._learned is not None
