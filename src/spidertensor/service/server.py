"""Run the server from startup to SIGTERM: a socket, uvicorn, and the owner's thread."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import uvicorn
from starlette.middleware.cors import CORSMiddleware

from spidertensor.service.app import Limits, Service, make_app
from spidertensor.service.consumer import ConsumedStream, Consumer
from spidertensor.service.guard import Guard
from spidertensor.service.metrics import Metrics
from spidertensor.service.owner import Owner
from spidertensor.service.served import Served

GRACE_S = 20  # for requests to finish after a signal


class ServerSettings(NamedTuple):
    host: str = "127.0.0.1"
    port: int = 8080
    token: str | None = None
    origins: Sequence[str] = ()
    every_seconds: float = 30.0
    every_entries: float = float("inf")
    max_journal: int = 256 << 20  # bytes that trigger a checkpoint at any time
    limits: Limits = Limits()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, started: Callable[[str], None], url: str) -> None:
        super().__init__(config)
        self._started, self._url = started, url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started(self._url)


def run(
    served: Served,
    settings: ServerSettings,
    started: Callable[[str], None],
    consumed: ConsumedStream | None = None,
) -> None:
    """Serve until a signal, then finish what is waiting and save. Raises the failure that ended it otherwise.

    started:  called with the URL as soon as clients can connect
    consumed: a stream to learn from besides requests
    """
    listening = _bound(settings.host, settings.port)
    host, port = listening.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    server: _Server

    def end() -> None:
        server.should_exit = True

    limits = settings.limits
    owner = Owner(
        served,
        max_queue=limits.queue,
        every_seconds=settings.every_seconds,
        every_entries=settings.every_entries,
        max_journal=settings.max_journal,
        on_end=end,
    )
    consumer = None if consumed is None else Consumer(owner, consumed)
    owner.snapshots.stream = consumer
    service = Service(owner, limits, None, lambda: server.should_exit)  # pyright: ignore[reportArgumentType]
    paths = [route.path for route in service.routes()]
    service.metrics = Metrics(paths, served, lambda: owner.snapshots.latest)
    app: Any = Guard(make_app(service), settings.token, settings.origins, service.metrics.observe)
    if settings.origins:
        app = CORSMiddleware(
            app,
            allow_origins=settings.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key"],
        )
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", server_header=False, ws="none",
        timeout_keep_alive=75, timeout_graceful_shutdown=GRACE_S, limit_concurrency=limits.connections,
    )  # fmt: skip
    server = _Server(config, started, url)
    # uvicorn re-raises the signals it received when it ends; these handlers make that harmless.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: end())
    owner.start()
    if consumer is not None:
        consumer.start()
    try:
        server.run(sockets=[listening])
    finally:
        if consumer is not None:  # first, so that the owner finishes its last chunk
            consumer.stop()
            consumer.join()
        owner.stop()
        owner.join()
    if owner.failed is not None:
        raise owner.failed


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        error.filename = f"{host}:{port}"
        raise
    return listening
