"""Prometheus metrics: requests by route, and the latest snapshot as gauges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from spidertensor.learner.floors import FLOORS
from spidertensor.service.served import Served

ATTRIBUTES_PATH = "/v1/attributes/"  # and a mode
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
GAUGES = {  # field of a snapshot -> name and help
    "error": ("spider_running_error", "running error of the next entry (RMSE, or log loss for 0/1 values)"),
    "coverage": ("spider_running_coverage", "running share of values inside their 90 % intervals"),
    "forecast_error": ("spider_forecast_error", "running error of remembered forecasts"),
    "forecast_coverage": (
        "spider_forecast_coverage",
        "running share of values inside the 90 % intervals of their forecasts",
    ),
    "late_median": ("spider_late_seconds_median", "median time from a forecast to its value"),
    "late_90": ("spider_late_seconds_90", "time from a forecast to its value that 90 % do not exceed"),
    "clipped": ("spider_running_clipped_ratio", "running share of entries that were clipped"),
    "noise": ("spider_noise", "standard deviation of an observation"),
    "queue": ("spider_queue_requests", "requests waiting"),
    "journal_bytes": ("spider_journal_bytes", "size of the journal"),
    "checkpoint_age": ("spider_checkpoint_age_seconds", "seconds since the last checkpoint"),
}


class Metrics:
    """paths: counted by name; any other path is "other", so that clients cannot create series"""

    def __init__(self, paths: list[str], served: Served, latest: Callable[[], dict[str, Any]]) -> None:
        self._paths, self._served, self._latest = set(paths), served, latest
        self._registry = CollectorRegistry()
        self._requests = Counter("spider_requests", "requests", ["path", "status"], registry=self._registry)
        self._seconds = Histogram(
            "spider_request_seconds", "time to answer", ["path"], registry=self._registry, buckets=BUCKETS
        )
        self.bad_rows = Counter(
            "spider_bad_rows", "rows in requests that could not be used", registry=self._registry
        )
        self._registry.register(self)  # pyright: ignore[reportArgumentType] (it has `collect`)

    def observe(self, method: str, path: str, status: int, seconds: float) -> None:
        if path.startswith(ATTRIBUTES_PATH):
            path = f"{ATTRIBUTES_PATH}{{mode}}"
        path = path if path in self._paths else "other"
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Any]:
        snapshot = self._latest()
        if not snapshot:
            return
        yield CounterMetricFamily("spider_entries", "entries learned", value=snapshot["entries"])
        for field, (name, about) in GAUGES.items():
            if snapshot[field] is not None:
                yield GaugeMetricFamily(name, about, value=snapshot[field])
        if not self._served.read_only:
            clipped = int(self._served.learner.scores.sums.n_clipped)
            yield CounterMetricFamily("spider_clipped_entries", "entries that were clipped", value=clipped)
            counted = {"spider_forecasts": "forecasts", "spider_unknown_forecasts": "unknown_forecasts"}
            abouts = ("remembered forecasts scored", "rows learned with a forecast that is not known")
            for (name, field), about in zip(counted.items(), abouts, strict=True):
                yield CounterMetricFamily(name, about, value=snapshot[field])
        if snapshot["stream"] is not None:
            yield from _stream_metrics(snapshot["stream"])
        for prefix, which in (("", "a floor"), ("forecast_", "a floor that forecast at the same time")):
            floors = {name: snapshot[f"{prefix}floor_{name}"] for name in FLOORS}
            about = f"running error of {which}"
            yield _labelled(f"spider_{prefix}floor_error", about, "floor", floors)
        nodes = dict(zip(snapshot["modes"], snapshot["nodes"], strict=True))
        yield _labelled("spider_nodes", "nodes of a mode", "mode", nodes)
        weights = {str(n): member["weight"] for n, member in enumerate(snapshot["members"])}
        yield _labelled("spider_member_weight", "weight of a member of the committee", "member", weights)
        alarms = {each["kind"]: 1 for each in snapshot["alarms"]}
        yield _labelled("spider_alarm", "active alarms", "kind", alarms)


def _stream_metrics(status: dict[str, Any]) -> Iterator[Any]:
    if status["lag"] is not None:
        about = "messages in the stream still to be read"
        yield GaugeMetricFamily("spider_stream_lag", about, value=status["lag"])
    about = "whether the broker of the stream can be reached"
    yield GaugeMetricFamily("spider_stream_connected", about, value=int(status["connected"]))
    about = "reconnections to the broker"
    yield CounterMetricFamily("spider_stream_reconnects", about, value=status["reconnects"])
    about = "messages in the stream that could not be learned"
    yield CounterMetricFamily("spider_stream_bad_messages", about, value=status["bad"])


def _labelled(name: str, about: str, label: str, values: dict[str, Any]) -> Any:
    family = GaugeMetricFamily(name, about, labels=[label])
    for each, value in values.items():
        if value is not None:
            family.add_metric([each], value)
    return family
