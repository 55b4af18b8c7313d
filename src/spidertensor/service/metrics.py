"""For Prometheus: requests by route, and the latest snapshot as gauges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from spidertensor.service.served import Served

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
GAUGES = {  # field of a snapshot -> name and help
    "error": ("spider_running_error", "running error (RMSE, or log loss for 0/1 values)"),
    "coverage": ("spider_running_coverage", "running share of values inside their 90 % intervals"),
    "clipped": ("spider_running_clipped_ratio", "running share of entries that were clipped"),
    "noise": ("spider_noise", "standard deviation of an observation"),
    "queue": ("spider_queue_requests", "requests that wait"),
    "journal_bytes": ("spider_journal_bytes", "size of the journal"),
    "checkpoint_age": ("spider_checkpoint_age_seconds", "seconds since the last checkpoint"),
}


class Metrics:
    """paths: those that have numbers of their own; any other is "other", so clients cannot invent series."""

    def __init__(self, paths: list[str], served: Served, latest: Callable[[], dict[str, Any]]) -> None:
        self._paths, self._served, self._latest = set(paths), served, latest
        self._registry = CollectorRegistry()
        self._requests = Counter("spider_requests", "requests", ["path", "status"], registry=self._registry)
        self._seconds = Histogram(
            "spider_request_seconds", "time to answer", ["path"], registry=self._registry, buckets=BUCKETS
        )
        self.bad_rows = Counter(
            "spider_bad_rows", "rows of requests that could not be used", registry=self._registry
        )
        self._registry.register(self)  # pyright: ignore[reportArgumentType] (it has `collect`)

    def observe(self, method: str, path: str, status: int, seconds: float) -> None:
        path = path if path in self._paths else "other"
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Any]:
        told = self._latest()
        if not told:
            return
        yield CounterMetricFamily("spider_entries", "entries learned", value=told["entries"])
        for field, (name, about) in GAUGES.items():
            if told[field] is not None:
                yield GaugeMetricFamily(name, about, value=told[field])
        if not self._served.read_only:
            clipped = int(self._served.learner.scores.sums.n_clipped)
            yield CounterMetricFamily("spider_clipped_entries", "entries that were clipped", value=clipped)
        if told["stream"] is not None:
            yield from _of_stream(told["stream"])
        floors = {name: told[f"floor_{name}"] for name in ("mean", "biases")}
        yield _each("spider_floor_error", "running error of a floor", "floor", floors)
        nodes = dict(zip(told["modes"], told["nodes"], strict=True))
        yield _each("spider_nodes", "nodes of a mode", "mode", nodes)
        weights = {str(n): member["weight"] for n, member in enumerate(told["members"])}
        yield _each("spider_member_weight", "weight of a member of the committee", "member", weights)
        yield _each("spider_alarm", "an alarm", "kind", {each["kind"]: 1 for each in told["alarms"]})


def _of_stream(told: dict[str, Any]) -> Iterator[Any]:
    if told["lag"] is not None:
        about = "messages of the stream that are still to be read"
        yield GaugeMetricFamily("spider_stream_lag", about, value=told["lag"])
    about = "whether the broker of the stream can be reached"
    yield GaugeMetricFamily("spider_stream_connected", about, value=int(told["connected"]))
    about = "connections to the broker that were made again"
    yield CounterMetricFamily("spider_stream_reconnects", about, value=told["reconnects"])
    about = "messages of the stream that could not be learned"
    yield CounterMetricFamily("spider_stream_bad_messages", about, value=told["bad"])


def _each(name: str, about: str, label: str, values: dict[str, Any]) -> Any:
    family = GaugeMetricFamily(name, about, labels=[label])
    for each, value in values.items():
        if value is not None:
            family.add_metric([each], value)
    return family
