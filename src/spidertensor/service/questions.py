"""Questions about the model, to be answered by the owner's thread: predictions and recommendations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.forecast import Forecast
from spidertensor.estimator.inputs import Columns
from spidertensor.estimator.recommend import BEST, EXPLORE
from spidertensor.faults import EntryError
from spidertensor.learner.attributes import descriptions, recent_columns
from spidertensor.learner.learner import Learner
from spidertensor.learner.warned import warned
from spidertensor.service.attributes import bad_cells
from spidertensor.service.bodies import Entries
from spidertensor.service.errors import ServiceError, as_notes
from spidertensor.service.exact_json import exact
from spidertensor.service.replies import id_of
from spidertensor.spider.forecasts import CALIBRATIONS

Remember: TypeAlias = Callable[[Forecast, NDArray[np.float64]], list[str]]


class Interval(NamedTuple):
    """An interval to return: see predict_interval."""

    coverage: float
    calibration: str


def as_interval(text: Any, calibration: Any) -> Interval | None:
    if calibration is not None and calibration not in CALIBRATIONS:
        remedy = f"pass one of {', '.join(CALIBRATIONS)}"
        reason = "invalid calibration"
        raise ServiceError(400, "calibration", reason, value=str(calibration)[:100], remedy=remedy)
    if text is None:
        if calibration is not None:
            remedy = "pass interval=0.9, or leave out calibration"
            raise ServiceError(400, "calibration", "calibration without interval", remedy=remedy)
        return None
    try:
        coverage = float(text) if isinstance(text, str | float) else -1.0
    except ValueError:
        coverage = -1.0
    if not 0 < coverage < 1:
        remedy = "pass a probability between 0 and 1, such as 0.9"
        raise ServiceError(400, "interval", "invalid interval", value=str(text), remedy=remedy)
    return Interval(coverage, calibration or "auto")


def predicted(
    learner: Learner,
    found: Entries,
    interval: Interval | None,
    *,
    skip: bool,
    remember: Remember | None = None,
) -> tuple[dict[str, list[Any]], Entries, list[dict[str, Any]]]:
    """Predict in columns; also returns the entries without those that `skip` leaves out, and notes.

    remember: keeps the forecasts of these rows by model and floors, and returns an id for each
    """
    likelihood = learner.estimator.likelihood_
    if interval is not None and not (likelihood.intervals or likelihood.ordinal):
        reason = f"the model predicts a {likelihood.mean_name}, which has no interval"
        raise ServiceError(422, "interval", reason)
    if not len(found.rows):
        return {likelihood.mean_name: []}, found, []
    try:
        columns, notes = _predicted(learner, found, interval, remember)
    except EntryError as error:
        faults = bad_cells(learner, found, error)
        if not faults:
            raise
        if not skip:
            raise ServiceError(422, error.kind, error.reason, others=faults) from None
        return predicted(learner, found.without_rows(faults), interval, skip=skip, remember=remember)
    return columns, found, notes


def _predicted(
    learner: Learner, found: Entries, interval: Interval | None, remember: Remember | None
) -> tuple[dict[str, list[Any]], list[dict[str, Any]]]:
    estimator: Any = learner.estimator
    names = None if estimator._schema is None else tuple(learner.id_columns)
    ids, likelihood = Columns(found.columns, names, found.given), estimator.likelihood_
    with warned() as warnings:
        remembered = None if remember is None else learner.forecast(ids)
        forecast = None if remembered is None else remembered[0]
        if forecast is not None:
            columns = {likelihood.mean_name: forecast.mean}
            columns |= {"std": forecast.std} if likelihood.intervals or likelihood.ordinal else {}
        elif likelihood.intervals or likelihood.ordinal:
            mean, std = estimator.predict(ids, return_std=True)
            columns = {"mean": mean, "std": std}
        else:
            columns = {likelihood.mean_name: estimator.predict_proba(ids)[:, 1]}
        if interval is not None:
            asked = ids if forecast is None else forecast
            columns["low"], columns["high"] = estimator.predict_interval(asked, *interval)
        # last, so that nothing is kept if an error is raised
        tokens = {} if remember is None or remembered is None else {"forecast": remember(*remembered)}
    of_ids = estimator.seen(ids)[:, learner.with_ids].tolist()
    seen = [dict(zip(learner.id_columns, each, strict=True)) for each in of_ids]
    lists = {name: column.tolist() for name, column in columns.items()}
    return lists | {"seen": seen} | tokens, as_notes(warnings)


def wrong(column: str, reason: str, value: Any = None) -> ServiceError:
    return ServiceError(422, "input", f"{column} {reason}", column=column, value=value)


def asked_of(body: bytes, default: dict[str, Any]) -> dict[str, Any]:
    """Parse a question: a JSON object with some of the fields of `default`."""
    try:
        wanted = exact(body)
    except (ValueError, RecursionError) as error:
        raise ServiceError(400, "not json", f"the body is not JSON: {error}") from None
    if not isinstance(wanted, dict):
        raise ServiceError(400, "not an object", "the body is not a JSON object")
    if unknown := [name for name in wanted if name not in default]:
        raise wrong(unknown[0], f"is unknown; known: {', '.join(default)}")
    return default | wanted


def check_given(given: Any, learner: Learner, recent: Mapping[str, str] = MappingProxyType({})) -> None:
    """Refuse anything but an object of ids by mode and cells by attribute.

    recent: columns that are lists of ids, and the modes of these
    """
    modes, attributes = learner.id_columns, [*learner.attributes, *recent]
    if not isinstance(given, dict):
        raise wrong("given", "is not an object of ids by mode")
    if unknown := [name for name in given if name not in modes and name not in attributes]:
        what = "mode or attribute" if attributes else "mode"
        known = ", ".join([*modes, *attributes])
        raise wrong("given", f"has an unknown {what} {unknown[0]!r:.100}; known: {known}")
    for mode in modes:
        if mode in given:
            check_id(given[mode], "given", mode)
    for name, mode in recent.items():
        if given.get(name) is not None:
            check_ids(given[name], name, mode)


def check_id(raw: Any, column: str, mode: str) -> None:
    if not isinstance(raw, int | float | str):
        raise wrong(column, f"has no valid id for {mode}", str(raw))


def check_ids(ids: Any, column: str, mode: str) -> None:
    """Refuse anything but a list of ids of a mode, or none."""
    if ids is None:
        return
    if not isinstance(ids, list):
        raise wrong(column, f"is not a list of ids of {mode}")
    for raw in ids:
        check_id(raw, column, mode)


def check_n(n: Any, most: int) -> None:
    if type(n) is not int or not 1 <= n <= most:
        raise wrong("n", f"is not an integer from 1 to {most:,}", n)


def recommendation(body: bytes, learner: Learner, most: int) -> dict[str, Any]:
    """Parse and check a question for recommendations."""
    modes = learner.id_columns
    default = {"given": {}, "over": None, "n": 10, "explore": "mean", "best": "high", "seed": None}
    default |= {"interval": None, "calibration": None, "candidates": None, "exclude": None}
    asked = asked_of(body, default)
    given, over = asked["given"], asked["over"]
    if not isinstance(over, str) or over not in modes:
        raise wrong("over", f"is not one of the modes: {', '.join(modes)}", over)
    check_given(given, learner, recent_columns(learner.estimator))
    for mode in modes:
        instead = descriptions(learner.estimator, mode)
        if (mode in given) == (mode == over) and (mode == over or given.keys().isdisjoint(instead)):
            reason = f"must have an id for every mode except the one to rank over: check {mode}"
            if instead and mode != over:
                reason += f" (somebody who is not in the model is described by {' or '.join(instead)})"
            raise wrong("given", reason)
    check_n(asked["n"], most)
    if asked["explore"] not in EXPLORE:
        raise wrong("explore", f"is not one of {', '.join(EXPLORE)}", str(asked["explore"]))
    if asked["best"] not in BEST:
        raise wrong("best", f"is not one of {', '.join(BEST)}", str(asked["best"]))
    for name in ("candidates", "exclude"):
        check_ids(asked[name], name, over)
    if asked["seed"] is not None and (type(asked["seed"]) is not int or not 0 <= asked["seed"] < 2**63):
        raise wrong("seed", "is not a non-negative integer", asked["seed"])
    return asked | {"interval": as_interval(asked["interval"], asked["calibration"])}


def recommended(learner: Learner, wanted: dict[str, Any]) -> dict[str, Any]:
    """Answer such a question."""
    estimator, modes, with_ids = learner.estimator, learner.modes, learner.id_columns
    given = wanted["given"]
    numbers: dict[str | int, Any] = {
        modes.index(name) if name in with_ids else name: raw for name, raw in given.items()
    }
    over = modes.index(wanted["over"])
    how = {name: wanted[name] for name in ("n", "explore", "best", "seed", "candidates", "exclude")}
    if wanted["interval"] is not None:
        how |= wanted["interval"]._asdict()
    with warned() as found:
        nodes = estimator.recommend(numbers, over, **how)
    entry = numbers | {over: nodes[0].id if nodes else 0}
    seen = estimator.seen([[entry.get(mode, 0) for mode in learner.with_ids]])[0]
    mean, std = estimator.likelihood_.mean_name, estimator.likelihood_.std_name
    keys = ["id", mean, std, *([] if wanted["interval"] is None else ["low", "high"])]
    return {
        "nodes": [dict(zip(keys, (id_of(each.id), *each[1:]), strict=False)) for each in nodes],
        "seen": {mode: bool(seen[modes.index(mode)]) for mode in given if mode in with_ids},
        "notes": as_notes(found),
    }
