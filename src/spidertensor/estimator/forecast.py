"""Forecasts: predictions of each member of a model, kept until the values are known.

mathematics.md section 21.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.bounds import Bounded, within
from spidertensor.estimator.fitted import Fitted
from spidertensor.estimator.parameters import is_bounds
from spidertensor.faults import EntryError
from spidertensor.method import Prediction
from spidertensor.scaling import Scaling
from spidertensor.spider.forecasts import MemberForecasts
from spidertensor.spider.likelihoods import LIKELIHOODS, Likelihood
from spidertensor.spider.likelihoods.ordinal import Ordinal, from_name
from spidertensor.spider.stacking import mixed

FIELDS = {"rows", "members", "generation", "likelihood", "shift", "scale"}  # of a forecast as JSON


@dataclass(frozen=True, eq=False, repr=False)
class Forecast:
    """Predictions of each member of a model for n entries, to be scored later. Made by `model.forecast(X)`.

    Pass it, or the rows of it whose values have become known, to `model.learn(X, y, forecast=forecast)`. A
    list of forecasts is accepted too, with None for entries without one; `join` makes it one forecast.

    As an array it is `mean`. `members` and `weights` have what each member predicted.

    numbers:    (n, 4, M) mean, var and noise of f, and weight, of each member, NaN in rows without a
                forecast; in units of the model: value = shift + scale * (value in units of the model). Of
                ordered levels (n, 4 + levels, M), with how often each level was seen then, plus 1
    generation: of the model: a number that changes when it is fitted anew
    likelihood: "gaussian", "count", "probit", or "ordinal:" with the levels
    bounds:     which `mean` keeps to, if the model has any; of joined forecasts the widest
    """

    numbers: NDArray[np.float64]
    generation: int
    likelihood: str
    shift: float = 0.0
    scale: float = 1.0
    bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        numbers = np.asarray(self.numbers, np.float64)
        object.__setattr__(self, "numbers", numbers)
        if not isinstance(self.likelihood, str) or (likelihood := _likelihood_of(self.likelihood)) is None:
            raise _error(f"unknown likelihood {self.likelihood!r:.80}")
        size = 4 + len(likelihood.levels)
        if numbers.ndim != 3 or numbers.shape[1] != size or not numbers.shape[2]:
            raise _error(f"the numbers of a forecast have shape (n, {size}, members), not {numbers.shape}")
        if not (np.isfinite([self.shift, self.scale]).all() and self.scale > 0):
            raise _error("the shift or the scale of a forecast is impossible")
        if self.bounds is not None and not is_bounds(list(self.bounds)):
            raise _error("the bounds of a forecast are impossible")
        made = numbers[self.made]
        _, var, noise, weights = made[:, :4].swapaxes(0, 1)
        possible = np.isfinite(made).all(axis=(1, 2)) & (var > 0).all(axis=1) & (noise >= 0).all(axis=1)
        possible &= (weights > 0).all(axis=1) & (np.abs(weights.sum(axis=1) - 1) < 1e-6)
        possible &= (made[:, 4:] >= 1).all(axis=(1, 2))
        if not possible.all():
            row = int(np.flatnonzero(self.made)[~possible][0])
            raise _error("the numbers of a forecast are impossible", row)

    def __len__(self) -> int:
        return len(self.numbers)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The predicted means, so that a forecast can be compared with values and drawn."""
        if copy is False:
            raise ValueError("a forecast becomes an array by a copy")
        return np.array(self.mean, dtype)

    def __repr__(self) -> str:
        n, _, members = self.numbers.shape
        return f"<forecast of {n} entries by {members} members of model {self.generation}>"

    def __getitem__(self, rows: Any) -> Self:
        """The forecast of some rows: a number, a slice, a mask, or an array of numbers."""
        rows = [rows] if np.ndim(rows) == 0 and not isinstance(rows, slice) else rows
        rows = np.asarray(rows) if not isinstance(rows, slice) else rows
        if isinstance(rows, np.ndarray) and not rows.size:
            rows = rows.astype(np.intp)
        return self.with_numbers(self.numbers[rows])

    @classmethod
    def join(cls, forecasts: Sequence[Forecast | None]) -> Forecast:
        """One forecast of the rows of several, made at any times by the same model. None: a row without."""
        forecasts = list(forecasts)
        if others := [each for each in forecasts if not isinstance(each, Forecast | None)]:
            raise _error(f"a {type(others[0]).__name__} is no forecast", remedy="join forecasts and None")
        known = [each for each in forecasts if each is not None]
        if not known:
            raise _error("there is no forecast to join")
        for each in known[1:]:
            if (each.model, each.numbers.shape[2]) != (known[0].model, known[0].numbers.shape[2]):
                raise _error(
                    "the forecasts to join are of different models", remedy="join those of each model"
                )
        nothing = np.full((1, *known[0].numbers.shape[1:]), np.nan)
        parts = [nothing if each is None else each.numbers for each in forecasts]
        ends = [each.bounds for each in known if each.bounds is not None]  # those of values seen grow
        widest = (min(low for low, _ in ends), max(high for _, high in ends)) if ends else None
        bounds = widest if len(ends) == len(known) else None
        return replace(known[0], numbers=np.concatenate(parts), bounds=bounds)

    @property
    def model(self) -> tuple[Any, ...]:
        """What forecasts of the same model share: generation, likelihood, shift and scale."""
        return self.generation, self.likelihood, self.shift, self.scale

    def with_numbers(self, numbers: NDArray[np.float64]) -> Self:
        """A forecast by the same model with other numbers."""
        return replace(self, numbers=numbers)

    @property
    def made(self) -> NDArray[np.bool_]:
        """(n,) which rows have a forecast."""
        return np.asarray(~np.isnan(self.numbers).all(axis=(1, 2)))

    @property
    def weights(self) -> NDArray[np.float64]:
        """(M, n) weights of the members when the forecast was made."""
        return self.numbers[:, 3].T

    @property
    def members(self) -> Prediction:
        """(M, n) mean, var and noise of each member's prediction, in user units."""
        return Scaling(self.shift, self.scale).user_units(*self.numbers[:, :3].transpose(1, 2, 0))

    @property
    def prediction(self) -> Prediction:
        """(n,) mean, var and noise, as `predict_parts` gives them."""
        forecasts = self.by_member
        predicted = mixed(self.by_likelihood, forecasts.weights, forecasts.parts[:, :3])
        return Scaling(self.shift, self.scale).user_units(*predicted)

    @property
    def mean(self) -> NDArray[np.float64]:
        """(n,) predicted mean of the value; for a classifier, probability of the positive label."""
        return self.by_likelihood.expected(*self.prediction)

    @property
    def std(self) -> NDArray[np.float64]:
        """(n,) standard deviation of the value; for a classifier, that of f."""
        return self.by_likelihood.std(*self.prediction)

    def to_dict(self) -> dict[str, Any]:
        """The forecast as JSON: a list of its numbers for each row, or null, beside the other fields."""
        flat = self.numbers.reshape(len(self), math.prod(self.numbers.shape[1:])).tolist()
        rows = [row if made else None for row, made in zip(flat, self.made.tolist(), strict=True)]
        return {
            "rows": rows,
            "members": self.numbers.shape[2],
            "generation": self.generation,
            "likelihood": self.likelihood,
            "shift": self.shift,
            "scale": self.scale,
            **({} if self.bounds is None else {"bounds": list(self.bounds)}),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        if not isinstance(stored, Mapping) or stored.keys() - {"bounds"} != FIELDS:
            raise _error(f"a forecast has the fields {', '.join(sorted(FIELDS))}")
        try:
            members, likelihood = index(stored["members"]), _likelihood_of(str(stored["likelihood"]))
            size = 4 + (0 if likelihood is None else len(likelihood.levels))
            rows = [[np.nan] * size * members if row is None else row for row in stored["rows"]]
            numbers = np.array(rows, np.float64).reshape(len(rows), size, members)
            about = index(stored["generation"]), stored["likelihood"]
            scaling = float(stored["shift"]), float(stored["scale"])
            bounds = stored.get("bounds")
            if bounds is not None:
                low, high = bounds
                bounds = float(low), float(high)
        except (TypeError, ValueError, OverflowError) as error:
            raise _error(f"the fields of a forecast are damaged: {error}") from None
        return cls(numbers, *about, *scaling, bounds=bounds)

    @property
    def by_likelihood(self) -> Likelihood:
        """The likelihood when each row was predicted."""
        found = _likelihood_of(self.likelihood)
        assert found is not None
        if not isinstance(found, Ordinal):
            return within(found, self.bounds)
        return found.with_counts(np.where(self.made[:, None], self.numbers[:, 4:, 0], 1.0))

    @property
    def by_member(self) -> MemberForecasts:
        """The forecasts as a Method takes them."""
        parts = np.ascontiguousarray(self.numbers.transpose(2, 1, 0))
        return MemberForecasts(np.delete(parts, 3, axis=1), parts[:, 3])


def _likelihood_of(name: str) -> Likelihood | None:
    return LIKELIHOODS.get(name) or from_name(name)


def forecast_by(fitted: Fitted, forecasts: MemberForecasts) -> Forecast:
    """The Forecast with these forecasts by members, in units of the model."""
    parts = forecasts.parts[:, :3], forecasts.weights[:, None], forecasts.parts[:, 3:]
    numbers = np.concatenate(parts, axis=1).transpose(2, 1, 0)
    shown = fitted.shown
    bounds = (shown.low, shown.high) if isinstance(shown, Bounded) else None
    return Forecast(np.ascontiguousarray(numbers), *_model_of(fitted), bounds=bounds)


def no_forecast(fitted: Fitted) -> Forecast:
    """A forecast of no entries by this model."""
    members, size = len(fitted.state.members), 3 + len(fitted.model.likelihood.levels)
    return forecast_by(fitted, MemberForecasts(np.empty((members, size, 0)), np.empty((members, 0))))


def forecasts_to_score(fitted: Fitted | None, forecast: Any, n: int) -> MemberForecasts | None:
    """A forecast of n entries that this model is to learn, by member; EntryError if it cannot be scored.

    None if it has none of them.
    """
    if isinstance(forecast, list | tuple) and all(isinstance(each, Forecast | None) for each in forecast):
        if len(forecast) == n and all(each is None for each in forecast):
            return None
        forecast = Forecast.join(forecast)
    if not isinstance(forecast, Forecast):
        reason = f"forecast must be a Forecast, or a list of Forecast and None, not {type(forecast).__name__}"
        raise _error(reason, remedy="pass what model.forecast(X) returned")
    if len(forecast) != n:
        raise _error(f"{n} entries but {len(forecast)} forecasts", remedy="pass forecast[rows]")
    if fitted is None:
        raise _error("the forecast is of another model: this one has learned nothing")
    check_made_by(fitted, forecast)
    return forecast.by_member if forecast.made.any() else None


def check_made_by(fitted: Fitted, forecast: Forecast) -> None:
    """EntryError if another model made the forecast."""
    members = len(fitted.state.members)
    if forecast.numbers.shape[2] != members:
        reason = f"the forecast is by {forecast.numbers.shape[2]} members, and the model has {members}"
        raise _error(reason)
    if forecast.model != _model_of(fitted):
        reason = "the forecast is of another model, or was made before this one was fitted anew"
        raise _error(reason, remedy="leave it out")


def _model_of(fitted: Fitted) -> tuple[Any, ...]:
    likelihood = fitted.model.likelihood
    name = likelihood.name_with_levels if isinstance(likelihood, Ordinal) else likelihood.name
    return fitted.generation, name, *fitted.scaling


def _error(reason: str, row: int | None = None, remedy: str = "") -> EntryError:
    return EntryError(reason, row, kind="forecast", remedy=remedy)
