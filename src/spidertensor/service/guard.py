"""Access control, and the headers of every answer.

The token is sent as a Bearer token, or as the password of HTTP Basic authentication, for which browsers
prompt. Without a token the server is reachable from this machine only. Web pages open in a local browser must
not use it: their requests are refused by a foreign Origin, or by a foreign Host (DNS rebinding).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import time
from collections.abc import Callable, Collection
from functools import lru_cache
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spidertensor.faults import Fault
from spidertensor.service.errors import ServiceError
from spidertensor.service.replies import refusal

MIN_TOKEN_CHARS = 16
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_RAW_HEADERS = [(name.lower().encode(), text.encode()) for name, text in HEADERS.items()]


class TokenError(Fault, ValueError):
    """The token is missing or cannot be used."""


def read_token(path: Path) -> str:
    text = path.read_text(encoding="utf-8").strip()
    if len(text) < MIN_TOKEN_CHARS or not (text.isascii() and text.isprintable()) or " " in text:
        remedy = "make one with: python -c 'import secrets; print(secrets.token_urlsafe())'"
        reason = f"{path}: a token is one line of {MIN_TOKEN_CHARS} or more ASCII characters without spaces"
        raise TokenError(reason, remedy=remedy)
    return text


@lru_cache(100)
def is_loopback(host: str) -> bool:
    """Whether the host can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Guard:
    def __init__(
        self,
        app: ASGIApp,
        token: str | None,
        origins: Collection[str],
        observe: Callable[[str, str, int, float], None],
    ) -> None:
        self.app, self.origins, self.observe = app, origins, observe
        self.digest = None if token is None else _digest(token.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        began, status = time.perf_counter(), 500

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *_RAW_HEADERS]
            await send(message)

        try:
            error = self._refusal(scope["path"], Headers(scope=scope))
            answer = self.app if error is None else refusal(error)
            await answer(scope, receive, sent)
        finally:
            self.observe(scope["method"], scope["path"], status, time.perf_counter() - began)

    def _refusal(self, path: str, headers: Headers) -> ServiceError | None:
        origin, host = headers.get("origin"), headers.get("host", "")
        if origin is not None and origin not in self.origins and _parsed_url(origin).netloc != host:
            remedy = "start the server with --allow-origin"
            return ServiceError(
                403, "origin", f"pages from {origin[:100]} may not use this server", remedy=remedy
            )
        if path in ("/health/live", "/health/ready"):
            return None
        if self.digest is None:
            name = _parsed_url(f"//{host}").hostname or ""
            if not is_loopback(name):
                return ServiceError(403, "host", f"the Host {name[:100]!r} is not this machine")
        elif not hmac.compare_digest(self.digest, _digest(_sent_token(headers.get("authorization", "")))):
            remedy = "send the header Authorization: Bearer TOKEN"
            return ServiceError(401, "token", "the token is missing or wrong", remedy=remedy)
        return None


def _parsed_url(url: str) -> SplitResult:
    """Parse a header as a URL; empty if malformed."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _digest(token: bytes) -> bytes:
    """Hash to a fixed length, so that the time of a comparison does not reveal the token's length."""
    return hashlib.sha256(token).digest()


def _sent_token(authorization: str) -> bytes:
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip().encode()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest, validate=True).partition(b":")[2]
        except (ValueError, binascii.Error):
            pass
    return b""
