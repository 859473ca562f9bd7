"""Requests to one server, timed. The only module that knows the HTTP library.

Redirects are never followed: neither the key nor a prompt goes to a host that the user did not name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from time import perf_counter
from types import TracebackType
from typing import Any, Literal, Self

from inferplan.errors import NetworkError, UsageError
from inferplan.extras import require
from inferplan.measuring.address import Address, Key
from inferplan.measuring.stream import EventLines, StreamError, Transcript, error_text, parse_json

Failure = Literal["connection", "timeout", "status", "stream"]
TOO_MANY, UNAVAILABLE = 429, 503
_AT_ONCE, _SURELY, _MOST_AT_ONCE = 0.1, 0.00025, 0.002
"""Pieces of a reply came at once whose gap is less than this share of the mean gap of the reply; or less than so many
seconds, in which no server makes a token and this client takes in a piece; and never with more than so many seconds
between, for one long gap makes the mean long."""
_CONNECT = 10.0
"""Seconds for a connection to open."""
_SHOWN = 300
"""Characters of a server's own words that are repeated."""
_DOCUMENT = 1 << 24
"""Bytes after which an answer is no document."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a plain GET brought: ``status`` 0 where nothing came back, and why not."""

    status: int
    text: str = ""
    error: str = ""

    @property
    def json(self) -> Any:
        """The body, ``None`` where it is not JSON or the request failed."""
        return _parsed(self.text) if self.status == 200 else None


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One request and its streamed reply. Seconds of ``time.perf_counter``; tokens as the server counts them.

    sent: when the last byte of the request was written; times: of the pieces of text; ended: when the stream was over.
    status: of HTTP, 0 where there was none. failure, error: why it has no figures; ``None`` and empty where it has.
    """

    sent: float
    ended: float
    times: tuple[float, ...] = ()
    prompt: int | None = None
    output: int | None = None
    cached: int | None = None
    finish: str | None = None
    status: int = 200
    failure: Failure | None = None
    error: str = ""
    wait: float | None = None
    """Seconds after which the server would be asked again (``Retry-After``); ``None`` where it does not say."""
    refused: int = 0
    """How often the request was refused before this reply came."""

    @property
    def ok(self) -> bool:
        return self.failure is None

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.times[0] - self.sent

    @property
    def tpot(self) -> float | None:
        """Seconds of a further token, (last - first) / (tokens - 1), however many tokens a piece held.

        ``None`` where all tokens came at once, or there was but one.
        """
        spread = self.times[-1] - self.times[0]
        return spread / (self.output - 1) if self.output and self.output > 1 and spread > 0 else None

    @property
    def e2el(self) -> float:
        """Seconds from end to end: to the last token."""
        return self.times[-1] - self.sent

    @property
    def unserved(self) -> bool:
        """Whether it was turned away before any work was done: too many requests, or no connection. A server that is
        not available is meant where it says when it will be."""
        if self.failure == "connection":
            return True
        return self.status == TOO_MANY or (self.status == UNAVAILABLE and self.wait is not None)

    @property
    def arrivals(self) -> int:
        """How often something came: pieces that follow each other at once came together."""
        if len(self.times) < 2:
            return len(self.times)
        mean = (self.times[-1] - self.times[0]) / (len(self.times) - 1)
        apart = min(max(_AT_ONCE * mean, _SURELY), _MOST_AT_ONCE)
        return 1 + sum(gap > apart for gap in self.gaps)

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces of text that follow each other."""
        return [later - earlier for earlier, later in zip(self.times, self.times[1:])]


class _Departure:
    """When a request left: when its last byte was written, until then when it was handed over.

    Where many users begin at once the library writes their requests one after another, and no server can answer what
    it was not sent.
    """

    def __init__(self) -> None:
        self.at = perf_counter()

    async def note(self, event: str, _: Any) -> None:
        """Told by the HTTP library of each thing that it does."""
        if event.endswith("send_request_body.complete"):
            self.at = perf_counter()


class Client:
    """A server, its key, and the connections to it. ``timeout``: seconds without a byte after which it is given up."""

    def __init__(self, address: Address, key: Key, timeout: float) -> None:
        require("measure", "a live server")
        import httpx2

        self.address, self._key, self._timeout = address, key, timeout
        self._errors: Any = httpx2
        try:
            self._http = httpx2.AsyncClient(
                headers={"Accept-Encoding": "identity", "User-Agent": "inferplan", **key.headers()},
                timeout=httpx2.Timeout(timeout, connect=_CONNECT, pool=None),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=60.0),
                follow_redirects=False,
                trust_env=not address.loopback,  # proxies of the environment are for what is elsewhere
            )
        except (ImportError, ValueError, OSError, httpx2.InvalidURL) as error:
            raise UsageError(
                "a proxy or certificates that the environment names cannot be used",
                because=str(error),
                hint="HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR",
            ) from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None,
                        /) -> None:  # fmt: skip
        await self._http.aclose()

    async def get(self, url: str) -> Answer:
        """A small document; what went wrong is in the answer."""
        return await self._document("GET", url)

    async def post(self, url: str, body: dict[str, Any]) -> Answer:
        """A small question and its answer, not streamed."""
        return await self._document("POST", url, body)

    async def _document(self, method: str, url: str, body: Any = None) -> Answer:
        """What a server says at once, as long as it ends: within the time and the size of a document."""
        limit = _CONNECT + self._timeout
        try:
            async with asyncio.timeout(limit), self._http.stream(method, url, json=body) as response:
                text = await _text(response)
                why = "" if response.status_code == 200 else self._refusal(response, text)
                return Answer(status=response.status_code, text=text, error=why)
        except TimeoutError:
            return Answer(status=0, error=f"an answer did not end within {limit:g} s")
        except StreamError as wrong:
            return Answer(status=0, error=str(wrong))
        except (self._errors.HTTPError, self._errors.InvalidURL, OSError) as error:
            return Answer(status=0, error=self._words(error))

    async def open_connections(self, count: int) -> None:
        """Have so many connections open, so that none is opened while requests are timed."""
        await asyncio.gather(*(self.get(f"{self.address.api}/models") for _ in range(count)))

    async def stream(self, path: str, body: bytes, asked: int) -> Reply:
        """Send a request whose reply is streamed, and time what comes back. Never raises for what a server does.

        ``asked``: tokens that the body asks for; a reply of more than twice as many pieces is given up.
        """
        left = _Departure()
        request = self._http.build_request(
            "POST",
            f"{self.address.api}{path}",
            content=body,
            headers={"Content-Type": "application/json"},
            extensions={"trace": left.note},
        )
        script, status, error, wait = Transcript(most=2 * asked + 64), 0, "", None
        failure: Failure | None = None
        try:
            response = await self._http.send(request, stream=True)
            try:
                status = response.status_code
                if status != 200:
                    wait = _wait(response.headers.get("Retry-After", ""))
                    failure, error = "status", self._refusal(response, await _text(response))
                else:
                    await self._read(response, script)
            finally:
                await response.aclose()
        except StreamError as wrong:
            failure, error = ("stream" if status == 200 else "status"), self.shown(str(wrong))
        except self._errors.TimeoutException as late:
            failure, error = "timeout", self._words(late)
        except (self._errors.HTTPError, OSError) as broken:
            failure, error = ("stream" if status else "connection"), self._words(broken)
        failure, error = (failure, error) if failure else _incomplete(script)
        return Reply(
            sent=left.at, ended=perf_counter(), times=script.token_times, prompt=script.prompt, output=script.output,
            cached=script.cached, finish=script.finish, status=status, failure=failure, error=error, wait=wait,
        )  # fmt: skip

    async def _read(self, response: Any, script: Transcript) -> None:
        kind = response.headers.get("Content-Type", "")
        if "application/json" in kind:
            raise StreamError(f"the reply is not streamed: {error_text(_parsed(await _text(response))) or kind}")
        if "html" in kind:
            raise StreamError(f"a page ({kind}) came, not a stream of events")
        packed = response.headers.get("Content-Encoding", "identity")
        if packed != "identity":
            raise StreamError(f"the reply is compressed ({packed}), which it was asked not to be: a proxy's doing?")
        lines = EventLines()
        async for data in response.aiter_raw():
            now = perf_counter()
            for payload in lines.feed(data):
                script.add(payload, now)
        for payload in lines.end():
            script.add(payload, perf_counter())

    def _refusal(self, response: Any, body: str) -> str:
        """What a status other than 200 means, in words."""
        status = response.status_code
        if 300 <= status < 400:
            return f"HTTP {status}: the server sends elsewhere, which is not followed; give the address that it means"
        words = error_text(_parsed(body)) or (body.strip() if "<" not in body else "")
        return self.shown(f"HTTP {status}{f': {words}' if words else ''}")

    def _words(self, error: Exception) -> str:
        """A failure of the network in words that hold no key."""
        text = str(error) or type(error).__name__
        kinds = self._errors
        if isinstance(error, kinds.ConnectTimeout):
            text = f"no connection within {_CONNECT:g} s"
        elif isinstance(error, kinds.TimeoutException):
            text = f"nothing came for {self._timeout:g} s"
        return self.shown(text)

    def shown(self, text: str, most: int = _SHOWN) -> str:
        """A server's words as they may be repeated: in one line, without the key and without what a terminal obeys."""
        line = "".join(mark for mark in " ".join(text.split()) if mark.isprintable())
        line = self._key.hidden(line)
        return line if len(line) <= most else f"{line[:most]}..."


def _wait(said: str) -> float | None:
    """Seconds of a ``Retry-After``: a number, or a date (RFC 9110, 10.2.3); ``None`` for neither."""
    if said.strip().isdecimal() and len(said) < 12:
        return float(said)
    try:
        at = parsedate_to_datetime(said)
        return max((at - datetime.now(UTC)).total_seconds(), 0.0) if at.tzinfo else None
    except (ValueError, TypeError):
        return None


async def _text(response: Any) -> str:
    """The whole body, as UTF-8 whatever it says it is. Raises ``StreamError`` for one without an end."""
    data = bytearray()
    async for piece in response.aiter_bytes():
        data += piece
        if len(data) > _DOCUMENT:
            raise StreamError(f"an answer of more than {_DOCUMENT} bytes")
    return data.decode("utf-8", errors="replace")


def _incomplete(script: Transcript) -> tuple[Failure | None, str]:
    """What is missing from a stream that ended without an error."""
    if not script.complete:
        return "stream", "the stream ended before the reply was complete"
    if not script.times:
        return "stream", "the reply holds no token"
    return None, ""


def _parsed(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return None


@contextmanager
def lateness(seen: list[float], every: float = 0.005) -> Iterator[None]:
    """Note in ``seen`` by how many seconds this process comes too late to what it waits for: so late may its time
    stamps be. Looks every ``every`` seconds."""

    async def look() -> None:
        while True:
            due = perf_counter() + every
            await asyncio.sleep(every)
            seen.append(max(perf_counter() - due, 0.0))

    task = asyncio.ensure_future(look())
    try:
        yield
    finally:
        task.cancel()


async def round_trip(address: Address, count: int = 5) -> float | None:
    """Seconds of the quickest of ``count`` TCP handshakes with the host: one round trip of the network, and no work of
    the server. ``None`` where none can be made, as behind a proxy."""
    took = []
    for _ in range(count):
        start = perf_counter()
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(address.host, address.port), _CONNECT)
        except (OSError, TimeoutError):
            continue
        took.append(perf_counter() - start)
        writer.close()
    return min(took, default=None)


def unreachable(address: Address, why: str) -> NetworkError:
    """The error for a server that does not answer."""
    return NetworkError(
        f"no answer from {address.root}", because=why, hint="is the server up, and is this its address and port?"
    )
