"""What stands before every route: who may ask, how much may be sent and how slowly; and the headers of every answer."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inferplan.errors import UsageError
from inferplan.web.limits import Limits
from inferplan.web.tasks import error_record

POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""Content-Security-Policy of the page: nothing from elsewhere, no script in the text."""
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True, kw_only=True)
class RefusedRequest(Exception):
    """An answer in place of the route's: a status and why."""

    status: int
    what: str
    hint: str = ""


def host_name(text: str) -> str:
    """The name in a ``Host`` header, lower case, without its port."""
    if text.startswith("["):
        return text[1:].partition("]")[0].lower()
    return text.rpartition(":")[0].lower() if text.count(":") == 1 else text.lower()


def known_host(text: str, own: Iterable[str]) -> bool:
    """Whether a ``Host`` header names this server: an address, ``localhost`` or a name that it was started with.

    A page that points a name of its own at this machine (DNS rebinding) sends that name.
    """
    name = host_name(text)
    if name in {"localhost", *own}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def require_own(scope: Scope, headers: Mapping[str, str], own: Iterable[str]) -> None:
    """Raise :class:`RefusedRequest` for a request that another site's page has made, other than a link to the page."""
    host = headers.get("host", "")
    if not known_host(host, own):
        raise RefusedRequest(
            status=403, what=f"{host[:80]!r} is no name of this server", hint="inferplan web --host NAME"
        )
    origin = headers.get("origin")
    if origin is not None and origin.lower().partition("://")[2] != host.lower():
        raise RefusedRequest(status=403, what="this server answers its own page only", hint="no other site may ask it")
    followed = scope["method"] == "GET" and scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate"
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not followed:
        raise RefusedRequest(
            status=403, what="this server answers its own page only", hint="open its address by itself"
        )


class Guard:
    """Middleware: refuses what :func:`require_own` and the limits refuse, reads bodies, sets headers."""

    def __init__(self, app: ASGIApp, limits: Limits, own: Iterable[str]) -> None:
        self.app, self.limits, self.own = app, limits, frozenset(own)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # nothing here speaks websocket
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": self._with_headers(message.get("headers", []))}
            await send(message)

        try:
            require_own(scope, headers, self.own)
            body = await self._body(scope["method"], headers, receive)
        except RefusedRequest as refusal:
            await _refuse(refusal, answer)
            return
        given = False

        async def once() -> Message:
            nonlocal given
            if given:
                return await receive()  # that the client has gone
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, once, answer)

    async def _body(self, method: str, headers: Mapping[str, str], receive: Receive) -> bytes:
        """The whole body. Raises :class:`RefusedRequest` when it is too large, too slow, or not said to be JSON."""
        length = headers.get("content-length", "0")
        if length.isdecimal() and (len(length) > 18 or int(length) > self.limits.body):
            raise RefusedRequest(status=413, what=f"a body of {length} bytes", hint=f"{self.limits.body} at most")
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                body = await self._read(receive)
        except TimeoutError:
            raise RefusedRequest(
                status=408, what=f"the request took longer than {self.limits.body_seconds:g} s"
            ) from None
        if method == "POST" and headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RefusedRequest(
                status=415, what="a body that is not application/json", hint="Content-Type: application/json"
            )
        return body

    async def _read(self, receive: Receive) -> bytes:
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RefusedRequest(status=400, what="the request was cut off")
            body += bytes(message.get("body", b""))
            if len(body) > self.limits.body:
                raise RefusedRequest(status=413, what="the body is too large", hint=f"{self.limits.body} bytes at most")
            if not message.get("more_body"):
                return body

    def _with_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        found = {name.lower(): value for name, value in headers}
        found.setdefault(b"content-security-policy", POLICY.encode())
        found.setdefault(b"cache-control", b"no-store")
        return [*found.items(), *((name.encode(), value.encode()) for name, value in HEADERS.items())]


async def _refuse(refusal: RefusedRequest, send: Send) -> None:
    body = json.dumps(error_record(UsageError(refusal.what, hint=refusal.hint))).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refusal.status in (408, 413):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
