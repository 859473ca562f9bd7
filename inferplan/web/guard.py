"""What stands before every route: who may ask, how much may be sent and how slowly; and the headers of every answer."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from urllib.parse import parse_qsl, urlencode

from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inferplan.errors import UsageError
from inferplan.web.keys import Keys
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


DOOR = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>inferplan: token</title>
<link rel="stylesheet" href="/static/style.css">
</head>
<body>
<main class="door">
<h1>inferplan</h1>
<p>{what}: {hint}.</p>
<form action="/">
<label>Token <input name="token" type="password" autocomplete="current-password" required></label>
<button>Open</button>
</form>
</main>
</body>
</html>
"""
"""The page of whoever comes without a token."""


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


def require_own(scope: Scope, headers: Mapping[str, str], own: Iterable[str], front: str = "") -> None:
    """Raise :class:`RefusedRequest` for a request that another site's page has made, other than a link to the page.

    own: names of this server. front: the origin of a proxy that stands before it.
    """
    host = headers.get("host", "")
    if not known_host(host, own):
        raise RefusedRequest(
            status=403, what=f"{host[:80]!r} is no name of this server", hint="inferplan web --public-url https://NAME/"
        )
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in (f"{scope['scheme']}://{host}".lower(), front):
        raise RefusedRequest(status=403, what="this server answers its own page only", hint="no other site may ask it")
    followed = scope["method"] == "GET" and scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate"
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not followed:
        raise RefusedRequest(
            status=403, what="this server answers its own page only", hint="open its address by itself"
        )


class Guard:
    """Middleware: refuses what :func:`require_own`, the keys and the limits refuse, reads bodies, sets headers.

    Routes find whose token it was as ``request.state.person``.
    """

    def __init__(self, app: ASGIApp, limits: Limits, own: Iterable[str], keys: Keys, front: str = "") -> None:
        self.app, self.limits, self.own, self.keys, self.front = app, limits, frozenset(own), keys, front

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
            require_own(scope, headers, self.own, self.front)
            if await self._let_in(scope, answer):
                return
            person = self._person(scope, headers)
            body = await self._body(scope["method"], headers, receive)
        except RefusedRequest as refusal:
            await _refuse(refusal, answer, page=refusal.status == 401 and scope["path"] == "/")
            return
        scope = {**scope, "state": {**scope.get("state", {}), "person": person}}
        given = False

        async def once() -> Message:
            nonlocal given
            if given:
                return await receive()  # that the client has gone
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, once, answer)

    async def _let_in(self, scope: Scope, answer: Send) -> bool:
        """Answer a link with a token: a cookie that holds it, and the way on to the address without it."""
        asked = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=None)
        token = dict(asked).get("token")
        if scope["method"] != "GET" or scope["path"] != "/" or token is None or self.keys.token is None:
            return False
        if self.keys.holder(token) is None:
            raise _unknown()
        rest = urlencode([(name, value) for name, value in asked if name != "token"])
        secure = "; Secure" if scope["scheme"] == "https" else ""
        cookie = f"{_cookie(scope)}={token}; Path=/; HttpOnly; SameSite=Lax{secure}"
        headers = [(b"location", b"/?" + rest.encode() if rest else b"/"), (b"set-cookie", cookie.encode("latin-1"))]
        await answer({"type": "http.response.start", "status": 303, "headers": headers})
        await answer({"type": "http.response.body", "body": b""})
        return True

    def _person(self, scope: Scope, headers: Mapping[str, str]) -> str:
        """Whose token came with a request. Raises :class:`RefusedRequest` where it needs one and none is right."""
        if self.keys.token is None or scope["path"].startswith("/static/"):
            return ""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            # pages on other ports leave theirs, behind a broken one of which http.cookies would read nothing
            token = cookie_parser(headers.get("cookie", "")).get(_cookie(scope), "")
        person = self.keys.holder(token.strip())
        if person is None:
            raise _unknown()
        return person

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


def _cookie(scope: Scope) -> str:
    """The name of the cookie: servers on other ports of this machine have their own."""
    return f"inferplan-{(scope.get('server') or ('', 0))[1]}"


def _unknown() -> RefusedRequest:
    return RefusedRequest(
        status=401,
        what="this server asks for its token",
        hint="open the address that inferplan web printed, or send Authorization: Bearer TOKEN",
    )


async def _refuse(refusal: RefusedRequest, send: Send, page: bool = False) -> None:
    """Answer with the error; where a page was asked for, with one that says it and takes a token."""
    body = json.dumps(error_record(UsageError(refusal.what, hint=refusal.hint))).encode()
    headers = [(b"content-type", b"application/json")]
    if page:
        body = DOOR.format(what=escape(refusal.what), hint=escape(refusal.hint)).encode()
        headers = [(b"content-type", b"text/html; charset=utf-8")]
        headers += [(b"content-security-policy", POLICY.replace("form-action 'none'", "form-action 'self'").encode())]
    headers += [(b"content-length", str(len(body)).encode())]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if refusal.status in (401, 408, 413):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
