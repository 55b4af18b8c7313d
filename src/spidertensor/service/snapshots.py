"""Snapshots of the service for /v1/events, once a second, and for /v1/model and /metrics.

The owner's thread takes snapshots; other threads read the latest.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any, Protocol

import orjson

from spidertensor.estimator.loading import Estimator
from spidertensor.estimator.times import NEXT_ENTRY, case
from spidertensor.learner.floors import COVERAGE
from spidertensor.learner.scores import Scores
from spidertensor.service.exact_json import sendable
from spidertensor.service.served import Served

EVERY_S = 1.0  # between two snapshots
HISTORY_POINTS = 1800
CURVES = (
    "time", "entries", "rate", "error", "floor_mean", "floor_biases", "coverage", "clipped", "noise",
    "forecast_error", "forecast_floor_mean", "forecast_floor_biases", "forecast_coverage",
)  # fmt: skip

# Thresholds of alarms
MIN_ENTRIES = 1000  # fewer say little
COVERAGE_OFF = 0.05  # difference to the nominal coverage
CLIPPED = 0.05  # share of entries
WORSE = 1.01  # times the error of a floor
SILENCE_S = 60.0  # without an entry


class StreamReader(Protocol):
    """The reader of a stream (consumer.Consumer). trouble: the text of an alarm, if there is one"""

    status: dict[str, Any]
    trouble: str | None


class Snapshots:
    def __init__(self, served: Served) -> None:
        self._served = served
        self.stream: StreamReader | None = None
        self.latest: dict[str, Any] = {}
        self.number = 0  # of the latest
        self.encoded = b""  # the latest, as JSON
        self._history: deque[tuple[Any, ...]] = deque(maxlen=HISTORY_POINTS)
        self._taken = -math.inf  # when, on the monotonic clock
        self._entries: int | None = None
        self._moved = time.monotonic()  # when entries were last learned
        self._since: dict[str, float] = {}  # alarm -> when it started

    def due(self) -> bool:
        return time.monotonic() - self._taken >= EVERY_S

    def take(self, waiting: int, ready: bool) -> None:
        now = time.monotonic()
        snapshot = current(self._served)
        entries = snapshot["entries"]
        passed = now - self._taken
        before = entries if self._entries is None else self._entries
        if entries != before:
            self._moved = now
        snapshot["rate"] = (entries - before) / passed if math.isfinite(passed) and passed > 0 else 0.0
        snapshot["queue"] = waiting
        snapshot["stream"] = self.stream_status()
        snapshot["ready"] = ready or not self.number
        snapshot["alarms"] = self._alarms(snapshot, now)
        self._taken, self._entries = now, entries
        weights, nodes = [each["weight"] for each in snapshot["members"]], snapshot["nodes"]
        self._history.append((*(snapshot[name] for name in CURVES), weights, nodes))
        self.latest = sendable(snapshot)
        self.encoded = orjson.dumps(self.latest)
        self.number += 1

    def stream_status(self) -> dict[str, Any] | None:
        if self.stream is None:
            return None
        return self.stream.status | {"bad": self._served.learner.position.get("bad", 0)}

    def history(self) -> bytes:
        """The latest points in columns, as JSON. Called by other threads, so it copies the points first."""
        points = list(self._history)
        names = (*CURVES, "weights", "nodes")
        return orjson.dumps({name: [point[n] for point in points] for n, name in enumerate(names)})

    def _alarms(self, snapshot: dict[str, Any], now: float) -> list[dict[str, Any]]:
        texts = dict(_problems(snapshot, now - self._moved))
        texts |= self._served.trouble
        if self.stream is not None and self.stream.trouble is not None:
            texts["stream"] = self.stream.trouble
        taken: float = snapshot["time"]
        self._since = {kind: self._since.get(kind, taken) for kind in texts}
        return [{"kind": kind, "text": text, "since": self._since[kind]} for kind, text in texts.items()]


def _problems(snapshot: dict[str, Any], silence: float) -> list[tuple[str, str]]:
    found = []
    if not snapshot["read_only"] and snapshot["entries"] and silence > SILENCE_S:
        found.append(("no data", f"nothing learned for {silence:.0f} seconds"))
    forecasts = snapshot["forecasts"] or 0
    if forecasts >= MIN_ENTRIES:
        covered = snapshot["forecast_coverage"]
        if covered is not None and abs(covered - COVERAGE) > COVERAGE_OFF:
            found.append(("forecasts", f"90 % intervals of forecasts cover {covered:.1%}"))
        found += _behind(snapshot, "forecast_", "forecast floor", "the error of forecasts")
    if (snapshot["scored"] or 0) - forecasts < MIN_ENTRIES:  # of the next entry
        return found
    found += _behind(snapshot, "", "floor", "the error")
    if snapshot["clipped"] is not None and snapshot["clipped"] > CLIPPED:
        found.append(("clipped", f"{snapshot['clipped']:.1%} of the entries are clipped"))
    if snapshot["coverage"] is not None and abs(snapshot["coverage"] - COVERAGE) > COVERAGE_OFF:
        found.append(("coverage", f"90 % intervals cover {snapshot['coverage']:.1%}"))
    return found


def _behind(snapshot: dict[str, Any], prefix: str, kind: str, words: str) -> list[tuple[str, str]]:
    """Alarms for the floors that are better. prefix: of the fields to compare"""
    error, found = snapshot[f"{prefix}error"], []
    for floor, name in (("mean", "the mean so far"), ("biases", "one bias per node")):
        least = snapshot[f"{prefix}floor_{floor}"]
        if error is not None and least is not None and error > WORSE * least:
            found.append((kind, f"{words} {error:.4g} is above {least:.4g}, that of {name}"))
    return found


def running(scores: Scores, replayed: str | None = None) -> dict[str, Any]:
    """The running scores; None where there is none yet. replayed: see Learner"""
    late = [None if replayed else scores.forecasts.late_quantile(share) for share in (0.5, 0.9)]
    return {
        "case": NEXT_ENTRY,
        "forecast_case": replayed if late[0] is None else case(late[0], "seconds"),
        "error": scores.score,
        **{f"floor_{name}": floor for name, floor in scores.floors.items()},
        "coverage": scores.coverage,
        "clipped": scores.clipped,
        "scored": scores.entries,
        "forecast_error": scores.forecast_error,
        **{f"forecast_floor_{name}": floor for name, floor in scores.forecast_floors.items()},
        "forecast_coverage": scores.forecasts.coverage,
        "forecasts": int(scores.forecasts.entries),
        "unknown_forecasts": int(scores.forecasts.unknown),
        "late_median": late[0],
        "late_90": late[1],
    }


def current(served: Served) -> dict[str, Any]:
    """The current state of a model."""
    learner = served.learner
    estimator, scores = learner.estimator, running(learner.scores, learner.replayed)
    fitted = not learner.is_new
    noise = getattr(estimator, "noise_", None) if fitted else None
    saved = served.saved_at
    return {
        "time": time.time(),
        "model": learner.path.name,
        "kind": type(estimator).__name__,
        "read_only": served.read_only,
        "modes": learner.id_columns,
        "value": learner.value,
        "metric": learner.scores.metric,
        "entries": learner.entries,
        **(dict.fromkeys(scores) if served.read_only else scores),
        "noise": noise**0.5 if noise is not None and estimator.likelihood_.normal else None,
        "members": _members(estimator) if fitted else [],
        "nodes": [estimator.n_nodes_[mode] if fitted else 0 for mode in learner.with_ids],
        "journal_bytes": served.journal_bytes,
        "checkpoint_age": None if saved is None else max(0.0, time.monotonic() - saved),
        "surprises": [] if served.surprises is None else list(served.surprises.latest),
    }


def _members(estimator: Estimator) -> list[dict[str, Any]]:
    return [
        {"name": ", ".join(f"{name} {each}" for name, each in member.own.items()) or "as set",
         "weight": member.weight}
        for member in estimator.members_
    ]  # fmt: skip


def described(served: Served) -> dict[str, Any]:
    """The content of /v1/model: the current state without its live parts, and details of the model."""
    snapshot, estimator = current(served), served.learner.estimator
    for live in ("time", "surprises"):
        del snapshot[live]
    snapshot["nodes"] = dict(zip(snapshot["modes"], snapshot["nodes"], strict=True))
    fitted = estimator.__sklearn_is_fitted__()
    kinds = [estimator.id_kinds_[mode] if fitted else () for mode in served.learner.with_ids]
    snapshot["id_kinds"] = dict(zip(snapshot["modes"], kinds, strict=True))
    snapshot["attributes"] = served.learner.kinds
    snapshot["labels"] = served.learner.classes
    snapshot["log_evidence"] = estimator.log_evidence_ if fitted else None
    snapshot["settings"] = estimator.settings_ if fitted else None
    snapshot["position"] = served.learned
    snapshot["saved_position"] = served.checkpointed
    counts = {"rejected": "n_rejected_", "refused": "n_refused_", "clipped_entries": "n_clipped_"}
    for name, attribute in (counts | {"followed": "followed_"}).items():
        snapshot[name] = getattr(estimator, attribute, None) if fitted else None
    return snapshot
