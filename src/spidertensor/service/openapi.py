"""The interface as OpenAPI 3.1. docs/service.md explains it; tests compare it with the routes."""
# ruff: noqa: E501 (a table)

from __future__ import annotations

from typing import Any

import spidertensor
from spidertensor.service.bodies import ARROW, JSON, NDJSON
from spidertensor.service.snapshots import CURVES
from spidertensor.spider.forecasts import CALIBRATIONS

_ANY_ID = {
    "description": 'An id keeps its type: 42 and "42" are different.',
    "type": ["integer", "string", "number", "boolean"],
}
_NUMBER, _TEXT, _WHOLE, _FLAG = (
    {"type": "number"},
    {"type": "string"},
    {"type": "integer"},
    {"type": "boolean"},
)


def _object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _or_null(kind: str) -> dict[str, Any]:
    return {"type": [kind, "null"]}


def _about(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return schema | {"description": description}


def _refer(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


_CALIBRATION = {"enum": list(CALIBRATIONS), "default": "auto"}
_ROW = {
    "type": "object",
    "description": "One field per mode by its name; for learning also the value. Attributes, if the model has any: what is left out, the model remembers. _forecast: for learning, the forecast that /v1/predict?remember= gave.",
    "additionalProperties": True,
}
_PREDICTION = _object(
    {"mean": _NUMBER, "std": _NUMBER, "probability": _NUMBER, "low": _NUMBER, "high": _NUMBER,
     "seen": {"type": "object", "additionalProperties": {"type": "boolean"}}, "forecast": _TEXT},
    description="mean and std of an observation, or the probability of a 1. null for a row that was skipped.",
)  # fmt: skip
_ERROR = _object(
    {"kind": _TEXT, "message": _TEXT, "row": _or_null("integer"), "column": {"type": ["string", "null"]}, "value": {}, "remedy": _TEXT},
    description="row is counted from 0 within the request.",
)  # fmt: skip
_MAYBE = _or_null("number")
_SNAPSHOT = {
    "time": _about(_NUMBER, "seconds since 1970"),
    "model": _about(_TEXT, "name of the model file, without its folder"),
    "kind": _about(_TEXT, "class of the model"),
    "read_only": _about(_FLAG, "a follower, which has neither rate, errors nor surprising entries"),
    "ready": _about(_FLAG, "false while the journal is replayed"),
    "modes": _about(_list(_TEXT), "columns of ids"),
    "value": _about(_TEXT, "column of the values"),
    "metric": _about({"enum": ["rmse", "log_loss"]}, "what `error` is: log_loss for 0/1 values, and for events over events and drawn negatives"),
    "entries": _about(_WHOLE, "learned by the model, ever"),
    "rate": _about(_NUMBER, "entries learned per second since the snapshot before"),
    "case": _about(_TEXT, "which error `error`, the floors and `coverage` are about: next entry, each predicted just before it was learned"),
    "error": _about(_MAYBE, "running error of these predictions; old entries count less"),
    "floor_mean": _about(_MAYBE, "the same for predicting the mean so far"),
    "floor_biases": _about(_MAYBE, "the same for one bias per node, learned online; starts anew if the file was changed while the server was down"),
    "coverage": _about(_MAYBE, "running share of values inside their 90 % intervals; null for 0/1 values"),
    "clipped": _about(_MAYBE, "running share of entries that were clipped"),
    "scored": _about(_or_null("integer"), "entries behind the running numbers"),
    "forecast_case": _about({"type": ["string", "null"]}, "which error the next four are about, such as: values known after 160 minutes (median)"),
    "forecast_error": _about(_MAYBE, "as `error`, for entries with a remembered forecast, which do not count there"),
    "forecast_floor_mean": _about(_MAYBE, "as `floor_mean`, for the same entries, forecast at the same time as by the model"),
    "forecast_floor_biases": _about(_MAYBE, "as `floor_biases`, likewise"),
    "forecast_coverage": _about(_MAYBE, "as `coverage`, for the same entries"),
    "forecasts": _about(_or_null("integer"), "forecasts that were scored"),
    "unknown_forecasts": _about(_or_null("integer"), "forecast ids that were not found"),
    "late_median": _about(_MAYBE, "running median of the seconds from a forecast to its value; null in the demo, which is faster than its flights"),
    "late_90": _about(_MAYBE, "90th percentile of the same"),
    "noise": _about(_MAYBE, "standard deviation of an observation; null for 0/1 values, events and counts"),
    "members": _about(_list(_object({"name": _TEXT, "weight": _NUMBER})), "the committee; a name lists the member's own settings"),
    "nodes": _about(_list(_WHOLE), "number of nodes, in the order of `modes`"),
    "queue": _about(_WHOLE, "requests that wait"),
    "journal_bytes": _about(_WHOLE, "size of the journal"),
    "stream": _about({"type": ["object", "null"]}, "of --from: url, lag (unread messages, or null), reconnects, connected, bad (messages left out)"),
    "checkpoint_age": _about(_MAYBE, "seconds since the last checkpoint"),
    "surprises": _about(
        _list(_object({"time": _NUMBER, "ids": _list(_ANY_ID), "value": _NUMBER, "mean": _NUMBER, "std": _MAYBE, "z": _NUMBER})),
        "the latest surprising entries, newest first, at most 20: z = (value - mean) / std. For 0/1 values mean is the probability of a 1",
    ),
    "alarms": _about(
        _list(_object({"kind": _TEXT, "text": _TEXT, "since": _NUMBER})),
        "kinds: floor and forecast floor (worse than a floor), clipped, coverage, forecasts (their coverage, or their file), no data, refused (most of the latest rows to learn), checkpoint, journal, stream",
    ),
}  # fmt: skip
_CURVES = {name: _list(_SNAPSHOT[name]) for name in CURVES}
_CURVES |= {
    "weights": _about(_list(_list(_NUMBER)), "for each point, of each member"),
    "nodes": _about(_list(_list(_WHOLE)), "for each point, of each mode"),
}
_SCHEMAS = {
    "Row": _ROW,
    "Prediction": _PREDICTION,
    "Error": _ERROR,
    "Refusal": _object({"error": _refer("Error"), "errors": _list(_refer("Error")), "count": _WHOLE}),
    "Note": _object({"kind": _TEXT, "message": _TEXT, "remedy": _TEXT}),
    "Learned": _object(
        {"learned": _WHOLE, "entries": _WHOLE, "predictions": _list(_refer("Prediction")), "repeated": {"type": "boolean"},
         "forecasts": _object({"scored": _WHOLE, "unknown": _WHOLE}), "skipped": _list(_refer("Error")), "notes": _list(_refer("Note"))}
    ),
    "Described": _object({"described": _WHOLE, "repeated": {"type": "boolean"}, "notes": _list(_refer("Note"))}),
    "Predicted": _object({"predictions": _list(_refer("Prediction")), "skipped": _list(_refer("Error")), "notes": _list(_refer("Note"))}),
    "Recommendation": _object(
        {"given": {"type": "object", "additionalProperties": True, "description": "ids by mode, attributes, and what somebody had: recent(movie)"}, "over": _TEXT,
         "n": {"type": "integer", "minimum": 1, "default": 10},
         "explore": {"enum": ["mean", "ucb", "thompson"], "default": "mean"}, "best": {"enum": ["high", "low"], "default": "high"},
         "candidates": _list(_ANY_ID), "exclude": _list(_ANY_ID),
         "seed": _or_null("integer"), "interval": _or_null("number"), "calibration": _CALIBRATION},
        required=["over"], additionalProperties=False,
    ),
    "Recommended": _object(
        {"nodes": _list(_object({"id": _ANY_ID, "mean": _NUMBER, "std": _NUMBER, "low": _NUMBER, "high": _NUMBER})),
         "seen": {"type": "object", "additionalProperties": {"type": "boolean"}}, "notes": _list(_refer("Note"))}
    ),
    "Likeness": _object(
        {"mode": _TEXT, "id": _ANY_ID, "n": {"type": "integer", "minimum": 1, "default": 10}},
        required=["mode", "id"], additionalProperties=False,
    ),
    "Alike": _object({"nodes": _list(_object({"id": _ANY_ID, "score": _NUMBER, "distance": _NUMBER}))}),
    "Asked": _object(
        {"given": {"type": "object", "additionalProperties": True, "description": "ids by mode, and attributes"}},
        required=["given"], additionalProperties=False,
    ),
    "Explained": _object(
        {"parts": _list(_object({"kind": {"enum": ["level", "bias", "pair", "network"]}, "name": _TEXT, "effect": _NUMBER, "std": _NUMBER})),
         "latent": _NUMBER, "std": _NUMBER, "mean": _NUMBER, "notes": _list(_refer("Note"))}
    ),
    "Model": {"type": "object", "additionalProperties": True},
    "Snapshot": _object(_SNAPSHOT, description="one event of /v1/events; null where a number does not exist (yet), also inside lists"),
    "History": _object(_CURVES, description="the latest points, at most 1800, one per snapshot, as columns of equal length"),
}  # fmt: skip

_ROWS = {
    JSON: {"schema": _list(_refer("Row"))},
    NDJSON: {"schema": {"type": "string", "description": "one object per line"}},
    ARROW: {"schema": {"type": "string", "format": "binary", "description": "an Arrow stream, uncompressed"}},
}
_STATUS = {
    "400": "malformed body or parameter", "401": "token missing or wrong", "403": "foreign Host or Origin",
    "404": "no such mode", "405": "a follower does not learn", "408": "the body arrived too slowly", "409": "nothing learned yet",
    "413": "too large, or too many rows", "415": "unknown Content-Type", "422": "bad rows; nothing was learned",
    "429": "too many requests are waiting: see Retry-After", "503": "not ready, or the disk cannot be written",
}  # fmt: skip


def _query(name: str, schema: dict[str, Any], about: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema, "description": about}


_ON_BAD = _query(
    "on_bad", {"enum": ["raise", "skip"], "default": "raise"}, "skip: leave bad rows out and list them"
)
_MODE = {"name": "mode", "in": "path", "required": True, "schema": _TEXT, "description": "a mode with ids"}
_KEY = {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        "description": "a repeated request with the same key is answered but not learned again"}  # fmt: skip


def _operation(
    summary: str,
    answer: dict[str, Any] | str,
    refusals: str = "401 403",
    body: Any = None,
    parameters: Any = (),
) -> dict[str, Any]:
    content = {answer: {}} if isinstance(answer, str) else {JSON: {"schema": answer}}
    refused = {JSON: {"schema": _refer("Refusal")}}
    responses = {"200": {"description": "done", "content": content}} | {
        status: {"description": _STATUS[status], "content": refused} for status in refusals.split()
    }
    operation = {"summary": summary, "responses": responses, "parameters": list(parameters)}
    return operation | ({} if body is None else {"requestBody": {"required": True, "content": body}})


_OF_ROWS = "400 401 403 405 408 409 413 415 422 429 503"
DESCRIPTION: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "spider serve", "version": spidertensor.__version__,
             "summary": "A model that learns from a stream and predicts with uncertainty."},
    "security": [{"bearer": []}, {"basic": []}, {}],
    "paths": {
        "/v1/learn": {"post": _operation("learn rows; returns the prediction made for each beforehand", _refer("Learned"), _OF_ROWS,
                                         _ROWS, [_ON_BAD, _KEY])},
        "/v1/attributes/{mode}": {"post": _operation("describe nodes, one per row: adds and replaces their attributes", _refer("Described"),
                                                    f"404 {_OF_ROWS}", _ROWS, [_MODE, _KEY])},
        "/v1/predict": {"post": _operation("predict rows", _refer("Predicted"), _OF_ROWS, _ROWS, [
            _ON_BAD, _query("interval", _NUMBER, "add low and high, the bounds of an interval with this coverage"),
            _query("calibration", _CALIBRATION, "of the interval: the errors it is calibrated on; by default those of the way the model was used last"),
            _query("remember", _TEXT, "keep what is said for this long (30m, 3h, 2d), to be scored when the row is learned: adds forecast, to be sent as _forecast")])},
        "/v1/recommend": {"post": _operation("the best nodes of a mode", _refer("Recommended"), _OF_ROWS,
                                             {JSON: {"schema": _refer("Recommendation")}})},
        "/v1/similar": {"post": _operation("nodes like one of a mode", _refer("Alike"), _OF_ROWS, {JSON: {"schema": _refer("Likeness")}})},
        "/v1/explain": {"post": _operation("what the prediction for an entry is made of", _refer("Explained"), _OF_ROWS,
                                           {JSON: {"schema": _refer("Asked")}})},
        "/v1/checkpoint": {"post": _operation("save the model now", _object({"position": _WHOLE, "entries": _WHOLE}),
                                              "401 403 405 409 429 503")},
        "/v1/model": {"get": _operation("the state of the model", _refer("Model"), "401 403 429 503")},
        "/v1/model/file": {"get": _operation("the model as a file", "application/octet-stream", "401 403 409 429 503")},
        "/v1/events": {"get": _operation("live events: one `history` (schema History), then a `snapshot` (schema Snapshot) about once a second", "text/event-stream", "401 403 429")},
        "/health/live": {"get": _operation("whether the process is alive", _object({"live": {"type": "boolean"}}), "403")},
        "/health/ready": {"get": _operation("whether the model is ready", _object({"ready": {"type": "boolean"}}), "403 503")},
        "/metrics": {"get": _operation("metrics for Prometheus", "text/plain")},
        "/openapi.json": {"get": _operation("this description", {"type": "object"})},
    },
    "components": {
        "schemas": _SCHEMAS,
        "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}, "basic": {"type": "http", "scheme": "basic"}},
    },
}  # fmt: skip
