"""What the service tells about itself: once a second for /v1/events, and whenever /v1/model or /metrics ask.

The owner's thread takes snapshots, everybody else reads the last one.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any, Protocol

import orjson

from spidertensor.estimator.loading import Estimator
from spidertensor.learner.floors import COVERAGE
from spidertensor.learner.scores import Scores
from spidertensor.service.served import Served

EVERY = 1.0  # seconds between two snapshots
KEPT = 1800  # points of the history
CURVES = ("time", "entries", "rate", "error", "floor_mean", "floor_biases", "coverage", "clipped", "noise")

# When to raise an alarm
ENOUGH = 1000  # entries, before which running numbers say little
OFF = 0.05  # of the coverage
CLIPPED = 0.05  # share of entries
WORSE = 1.01  # times a floor: level with it is no alarm
SILENCE = 60.0  # seconds without an entry


class StreamReader(Protocol):
    """Whoever reads a stream (consumer.Consumer): how it is doing, and an alarm if there is one."""

    told: dict[str, Any]
    trouble: str | None


class Snapshots:
    def __init__(self, served: Served) -> None:
        self._served = served
        self.stream: StreamReader | None = None
        self.latest: dict[str, Any] = {}
        self.number = 0  # of the latest
        self.encoded = b""  # the latest, as JSON
        self._history: deque[tuple[Any, ...]] = deque(maxlen=KEPT)
        self._taken = -math.inf  # by the monotonic clock, which never goes backwards
        self._entries: int | None = None
        self._moved = time.monotonic()  # when there were new entries
        self._since: dict[str, float] = {}  # alarm -> when it began

    def due(self) -> bool:
        return time.monotonic() - self._taken >= EVERY

    def take(self, waiting: int, ready: bool) -> None:
        now = time.monotonic()
        told = known(self._served)
        entries = told["entries"]
        passed = now - self._taken
        before = entries if self._entries is None else self._entries
        if entries != before:
            self._moved = now
        told["rate"] = (entries - before) / passed if math.isfinite(passed) and passed > 0 else 0.0
        told["queue"] = waiting
        told["stream"] = self.of_stream()
        told["ready"] = ready or not self.number
        told["alarms"] = self._alarms(told, now)
        self._taken, self._entries = now, entries
        weights, nodes = [each["weight"] for each in told["members"]], told["nodes"]
        self._history.append((*(told[name] for name in CURVES), weights, nodes))
        self.latest, self.encoded = told, orjson.dumps(told)
        self.number += 1

    def of_stream(self) -> dict[str, Any] | None:
        if self.stream is None:
            return None
        return self.stream.told | {"bad": self._served.learner.position.get("bad", 0)}

    def history(self) -> bytes:
        """The latest points in columns. Called by other threads: a copy of the points first."""
        points = list(self._history)
        names = (*CURVES, "weights", "nodes")
        return orjson.dumps({name: [point[n] for point in points] for n, name in enumerate(names)})

    def _alarms(self, told: dict[str, Any], now: float) -> list[dict[str, Any]]:
        texts = dict(_problems(told, now - self._moved))
        texts |= self._served.trouble
        if self.stream is not None and self.stream.trouble is not None:
            texts["stream"] = self.stream.trouble
        here: float = told["time"]
        self._since = {kind: self._since.get(kind, here) for kind in texts}
        return [{"kind": kind, "text": text, "since": self._since[kind]} for kind, text in texts.items()]


def _problems(told: dict[str, Any], silence: float) -> list[tuple[str, str]]:
    found = []
    if not told["read_only"] and told["entries"] and silence > SILENCE:
        found.append(("no data", f"nothing was learned for {silence:.0f} seconds"))
    if (told["scored"] or 0) < ENOUGH:
        return found
    for floor, words in (("floor_mean", "the mean so far"), ("floor_biases", "one bias per node")):
        if told["error"] is not None and told[floor] is not None and told["error"] > WORSE * told[floor]:
            text = f"the error {told['error']:.4g} is above the {told[floor]:.4g} of {words}"
            found.append(("floor", text))
    if told["clipped"] is not None and told["clipped"] > CLIPPED:
        found.append(("clipped", f"{told['clipped']:.1%} of the entries are clipped"))
    if told["coverage"] is not None and abs(told["coverage"] - COVERAGE) > OFF:
        found.append(("coverage", f"90 % intervals cover {told['coverage']:.1%}"))
    return found


def running(scores: Scores) -> dict[str, Any]:
    """Errors, coverage and share of clipped entries; None as long as there is nothing to tell."""
    return {
        "error": scores.score,
        **{f"floor_{name}": floor for name, floor in scores.floors.items()},
        "coverage": scores.coverage,
        "clipped": scores.clipped,
        "scored": scores.entries,
    }


def known(served: Served) -> dict[str, Any]:
    """What is known of a model, at this moment."""
    learner = served.learner
    estimator, scores = learner.estimator, running(learner.scores)
    fitted = not learner.is_new
    noise = getattr(estimator, "noise_", None) if fitted else None
    saved = served.saved_at
    return {
        "time": time.time(),
        "model": learner.path.name,
        "kind": type(estimator).__name__,
        "read_only": served.read_only,
        "modes": learner.modes,
        "value": learner.value,
        "metric": learner.scores.metric,
        "entries": learner.entries,
        **(dict.fromkeys(scores) if served.read_only else scores),
        "noise": noise**0.5 if noise is not None and estimator.likelihood_.normal else None,
        "members": _members(estimator) if fitted else [],
        "nodes": list(estimator.n_nodes_) if fitted else [0] * len(learner.modes),
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
    """For /v1/model: everything but the live parts, and what only the model's file has besides."""
    told, estimator = known(served), served.learner.estimator
    for live in ("time", "surprises"):
        del told[live]
    told["nodes"] = dict(zip(told["modes"], told["nodes"], strict=True))
    fitted = estimator.__sklearn_is_fitted__()
    kinds = estimator.id_kinds_ if fitted else [()] * len(told["modes"])
    told["id_kinds"] = dict(zip(told["modes"], kinds, strict=True))
    told["log_evidence"] = estimator.log_evidence_ if fitted else None
    told["settings"] = estimator.settings_ if fitted else None
    told["position"] = served.learned
    told["saved_position"] = served.checkpointed
    counts = {"rejected": "n_rejected_", "refused": "n_refused_", "clipped_entries": "n_clipped_"}
    for name, attribute in (counts | {"followed": "followed_"}).items():
        told[name] = getattr(estimator, attribute, None) if fitted else None
    return told
