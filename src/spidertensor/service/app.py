"""The routes: parse a request, ask the owner's thread, format the answer."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from functools import partial
from importlib import resources
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from spidertensor.estimator.forecast import Forecast
from spidertensor.faults import EntryError
from spidertensor.learner.remedies import for_service
from spidertensor.service import attributes, openapi, requests
from spidertensor.service.bodies import JSON, MEDIA_TYPES, Entries, entries
from spidertensor.service.errors import ServiceError, record
from spidertensor.service.insights import alike, entry_of, explained, likeness
from spidertensor.service.metrics import Metrics
from spidertensor.service.owner import Owner, Save
from spidertensor.service.questions import Remember, as_interval, predicted, recommendation, recommended
from spidertensor.service.replies import in_rows, refusal, reply
from spidertensor.service.served import wanted_to_learn
from spidertensor.service.snapshots import described

MEDIA = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
    "png": "image/png",
}
LARGE_BODY_BYTES = 1 << 18  # larger bodies are parsed outside the event loop
MAX_KEY_CHARS = 255
CHUNK_BYTES = 1 << 18


class Limits(NamedTuple):
    body: int = 8 << 20  # bytes
    rows: int = 10_000
    queue: int = 1000  # requests
    bodies: int = 64 << 20  # bytes of all bodies being read or waiting; twice that with many small ones
    body_seconds: float = 30.0  # for a body to arrive
    answer_seconds: float = 30.0  # for the model to answer
    events: int = 50  # listeners to /v1/events
    connections: int = 500


class Service:
    def __init__(self, owner: Owner, limits: Limits, metrics: Metrics, stopping: Callable[[], bool]) -> None:
        self.owner, self.limits, self.metrics, self.stopping = owner, limits, metrics, stopping
        self.held = 0  # bytes of bodies in memory
        self.reading = 0  # bodies that are arriving
        self.listeners = 0

    def routes(self) -> list[Route]:
        return [
            Route("/v1/learn", self.learn, methods=["POST"]),
            Route("/v1/attributes/{mode}", self.describe, methods=["POST"]),
            Route("/v1/predict", self.predict, methods=["POST"]),
            Route("/v1/recommend", self.recommend, methods=["POST"]),
            Route("/v1/similar", self.similar, methods=["POST"]),
            Route("/v1/explain", self.explain, methods=["POST"]),
            Route("/v1/checkpoint", self.checkpoint, methods=["POST"]),
            Route("/v1/model", self.model, methods=["GET"]),
            Route("/v1/model/file", self.model_file, methods=["GET"]),
            Route("/v1/events", self.events, methods=["GET"]),
            Route("/health/live", self.live, methods=["GET"]),
            Route("/health/ready", self.is_ready, methods=["GET"]),
            Route("/metrics", self.prometheus, methods=["GET"]),
            Route("/openapi.json", self.description, methods=["GET"]),
        ]

    # --- learning and predicting

    async def learn(self, request: Request) -> Response:
        key, skip = _key(request), _skips(request)
        await self._check_writable()
        media_type, body, found = await self._entries(request, learned=True)
        try:
            self._check(found, skip)
            return await self._learned(requests.Request(found, body, media_type, skip, key))
        finally:
            self.held -= len(body)

    async def describe(self, request: Request) -> Response:
        key, mode = _key(request), request.path_params["mode"]
        await self._check_writable()
        learner = self.owner.served.learner
        attributes.check_mode(learner, mode)
        media_type, body = await self._body(request)
        try:
            parsed = partial(attributes.table, body, media_type, learner, mode, self.limits.rows)
            found = await run_in_threadpool(parsed) if len(body) > LARGE_BODY_BYTES else parsed()
            whole = attributes.packed(body, media_type, mode)
            asked = requests.Request(found, whole, attributes.ATTRIBUTES, key=key, mode=mode)
            return await self._learned(asked)
        finally:
            self.held -= len(body)

    async def _check_writable(self) -> None:
        served = self.owner.served
        if served.read_only:
            await self.owner.ask(Save(), self.limits.answer_seconds)  # raises the reason

    async def _learned(self, asked: requests.Request) -> Response:
        outcome = await self.owner.ask(asked, self.limits.answer_seconds)
        if isinstance(outcome, ServiceError):
            raise outcome
        return reply(outcome)

    async def predict(self, request: Request) -> Response:
        query, skip = request.query_params, _skips(request)
        interval = as_interval(query.get("interval"), query.get("calibration"))
        remember = await self._remember(query.get("remember"))
        _, body, found = await self._entries(request, learned=False)
        try:
            self._check(found, skip)
            how: dict[str, Any] = {"skip": skip, "remember": remember}
            question = partial(predicted, self.owner.served.learner, found, interval, **how)
            columns, found, notes = await self._asked(question)
        finally:
            self.held -= len(body)
        skipped = [record(each) for each in found.bad]
        return reply({"predictions": in_rows(columns, found), "skipped": skipped, "notes": notes})

    async def _remember(self, text: str | None) -> Remember | None:
        """How the forecasts of a request are kept. text: for how long; None: not at all"""
        if text is None:
            return None
        await self._check_writable()
        forecasts = self.owner.served.forecasts
        assert forecasts is not None
        seconds = forecasts.keeping.seconds_of(text)

        def remember(forecast: Forecast, floors: NDArray[np.float64]) -> list[str]:
            try:
                return forecasts.remember(forecast, floors, seconds)
            except (sqlite3.Error, OSError) as error:
                raise ServiceError(503, "forecasts", f"{forecasts.path}: {error}", retry=5) from None

        return remember

    async def recommend(self, request: Request) -> Response:
        body = await self._question(request)
        learner = self.owner.served.learner
        wanted = recommendation(body, learner, self.limits.rows)
        return reply(await self._asked(lambda: recommended(learner, wanted)))

    async def similar(self, request: Request) -> Response:
        body = await self._question(request)
        learner = self.owner.served.learner
        wanted = likeness(body, learner, self.limits.rows)
        return reply(await self._asked(lambda: alike(learner, wanted)))

    async def explain(self, request: Request) -> Response:
        body = await self._question(request)
        learner = self.owner.served.learner
        given = entry_of(body, learner)
        return reply(await self._asked(lambda: explained(learner, given)))

    async def _question(self, request: Request) -> bytes:
        """The body of a question, which is JSON."""
        media_type, body = await self._body(request)
        self.held -= len(body)
        if media_type != JSON:
            raise ServiceError(415, "media type", "the Content-Type must be application/json")
        return body

    async def _asked(self, question: Callable[[], Any]) -> Any:
        """Ask the owner's thread; errors of the model become ServiceErrors."""
        try:
            return await self.owner.ask(question, self.limits.answer_seconds)
        except EntryError as error:
            column = error.column if isinstance(error.column, str) else None
            parts = {"row": error.row, "column": column, "value": error.value}
            kind, remedy = error.kind or "input", for_service(error)
            raise ServiceError(422, kind, error.reason, remedy=remedy, **parts) from None
        except ValueError as error:
            if self.owner.served.learner.is_new:
                remedy = "learn some entries first"
                raise ServiceError(409, "nothing learned", "nothing learned yet", remedy=remedy) from None
            raise ServiceError(422, "input", str(error)) from None

    # --- about the model

    async def model(self, request: Request) -> Response:
        description = await self._asked(lambda: described(self.owner.served))
        snapshots = self.owner.snapshots
        more = {"stream": snapshots.stream_status(), "alarms": snapshots.latest.get("alarms", [])}
        return reply(description | more)

    async def model_file(self, request: Request) -> Response:
        served = self.owner.served
        if not served.read_only:
            await self.owner.ask(Save(), self.limits.answer_seconds)
        try:
            descriptor = os.open(served.learner.path, os.O_RDONLY)  # unaffected by later checkpoints
        except OSError as error:
            raise ServiceError(503, "checkpoint", str(error), retry=5) from None
        headers = {
            "Content-Length": str(os.fstat(descriptor).st_size),
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(served.learner.path.name)}",
        }
        return StreamingResponse(_chunks(descriptor), media_type="application/octet-stream", headers=headers)

    async def checkpoint(self, request: Request) -> Response:
        position, entries = await self.owner.ask(Save(), self.limits.answer_seconds)
        return reply({"position": position, "entries": entries})

    async def events(self, request: Request) -> Response:
        if self.listeners >= self.limits.events:
            raise ServiceError(429, "listeners", f"already {self.listeners} listeners", retry=10)
        return StreamingResponse(self._events(), media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[bytes]:
        snapshots, number = self.owner.snapshots, 0
        self.listeners += 1
        try:
            yield b"retry: 1000\nevent: history\ndata: " + snapshots.history() + b"\n\n"
            while not self.stopping():
                if snapshots.number != number:
                    number = snapshots.number
                    yield b"event: snapshot\ndata: " + snapshots.encoded + b"\n\n"
                await asyncio.sleep(0.2)
        finally:
            self.listeners -= 1

    async def live(self, request: Request) -> Response:
        return reply({"live": True})

    async def is_ready(self, request: Request) -> Response:
        ready = self.owner.ready and not self.stopping()
        return reply({"ready": ready}, 200 if ready else 503)

    async def prometheus(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def description(self, request: Request) -> Response:
        return reply(openapi.DESCRIPTION)

    # --- bodies

    async def _entries(self, request: Request, *, learned: bool) -> tuple[str, bytes, Entries]:
        learner = self.owner.served.learner
        media_type, body = await self._body(request)
        if learned:
            wanted = wanted_to_learn(learner, self.limits.rows)
        else:
            wanted = wanted_to_learn(learner, self.limits.rows)
            wanted = wanted._replace(value=None, events=False, forecasts=False)
        try:
            if len(body) > LARGE_BODY_BYTES:
                return media_type, body, await run_in_threadpool(entries, body, media_type, wanted)
            return media_type, body, entries(body, media_type, wanted)
        except BaseException:
            self.held -= len(body)
            raise

    async def _body(self, request: Request) -> tuple[str, bytes]:
        """The media type and the body; the caller must subtract its length from `held` when done."""
        media_type = MEDIA_TYPES.get(
            request.headers.get("content-type", "").partition(";")[0].strip().lower()
        )
        if media_type is None:
            remedy = f"send one of {', '.join(sorted(MEDIA_TYPES))}"
            raise ServiceError(415, "media type", "unknown Content-Type", remedy=remedy)
        if request.headers.get("content-encoding", "identity") != "identity":
            reason = "compressed bodies are not supported"
            raise ServiceError(415, "compressed", reason, remedy="send it uncompressed")
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > self.limits.body:
            raise self._too_large()
        parts, size = [], 0
        self.reading += 1
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                async for part in request.stream():
                    size += len(part)
                    self.held += len(part)
                    parts.append(part)
                    if size > self.limits.body:
                        raise self._too_large()
                    # Over the limit, large bodies make room for small ones: a few stalled ones stop nobody.
                    if self.held > self.limits.bodies and size * self.reading > self.limits.bodies:
                        raise ServiceError(429, "memory", "too many large requests at once", retry=1)
        except BaseException as error:
            self.held -= size
            if isinstance(error, TimeoutError):
                reason = f"the body did not arrive within {self.limits.body_seconds:g} s"
                raise ServiceError(408, "time", reason) from None
            if isinstance(error, ClientDisconnect):
                raise ServiceError(400, "disconnected", "the client disconnected") from None
            raise
        finally:
            self.reading -= 1
        return media_type, b"".join(parts)

    def _too_large(self) -> ServiceError:
        limit = f"{self.limits.body:,} bytes"
        return ServiceError(413, "too large", f"the body is larger than {limit}", remedy="send fewer rows")

    def _check(self, found: Entries, skip: bool) -> None:
        if found.bad:
            self.metrics.bad_rows.inc(len(found.bad))
            if not skip:
                first = found.bad[0]
                raise ServiceError(422, first.kind, first.reason, others=found.bad)


def make_app(service: Service) -> ASGIApp:
    async def on_service_error(request: Request, error: Any) -> Response:
        return refusal(error)

    async def on_http_error(request: Request, error: Any) -> Response:
        return refusal(_from_http(error))

    async def on_internal_error(request: Request, error: Any) -> Response:
        return refusal(ServiceError(500, "internal", "internal error"))

    handlers: Any = {ServiceError: on_service_error, HTTPException: on_http_error, 500: on_internal_error}
    return Starlette(routes=[*service.routes(), *_pages()], exception_handlers=handlers)


def _from_http(error: HTTPException) -> ServiceError:
    kind = {404: "no such path", 405: "method"}.get(error.status_code, "http")
    remedy = "the paths and their methods are in /openapi.json" if error.status_code in (404, 405) else ""
    return ServiceError(error.status_code, kind, str(error.detail), remedy=remedy)


def _pages() -> list[Route]:
    """A fixed route for each file of the dashboard: no path is ever built from a request."""

    def page(body: bytes, media_type: str) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            return Response(body, media_type=media_type)

        return answer

    routes = []
    for file in resources.files("spidertensor.service").joinpath("dashboard").iterdir():
        media_type = MEDIA.get(file.name.rpartition(".")[2], "text/plain")
        path = "/" if file.name == "index.html" else f"/{file.name}"
        routes.append(Route(path, page(file.read_bytes(), media_type), methods=["GET"]))
    return routes


def _key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not (0 < len(key) <= MAX_KEY_CHARS and key.isascii() and key.isprintable()):
        reason = f"an Idempotency-Key has 1 to {MAX_KEY_CHARS} printable ASCII characters"
        raise ServiceError(400, "key", reason)
    return key


def _skips(request: Request) -> bool:
    policy = request.query_params.get("on_bad", "raise")
    if policy not in ("raise", "skip"):
        raise ServiceError(400, "on_bad", "on_bad must be raise or skip", value=policy)
    return policy == "skip"


async def _chunks(descriptor: int) -> AsyncIterator[bytes]:
    with os.fdopen(descriptor, "rb") as file:
        while chunk := await run_in_threadpool(file.read, CHUNK_BYTES):
            yield chunk
