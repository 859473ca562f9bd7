"""Starts the server, and stops it with everything that it has started."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from inferplan.errors import InputFileError, UsageError
from inferplan.web.app import make_app
from inferplan.web.commands import Commands
from inferplan.web.guard import host_name
from inferplan.web.keys import Keys
from inferplan.web.limits import LIMITS, Limits
from inferplan.web.worker import WorkerSetting


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the server listens, who may ask, and whose files it reads; without a folder nobody's. ``port`` 0 takes a
    free one. url: by which others reach it through a proxy."""

    host: str = "127.0.0.1"
    port: int = 8765
    url: str | None = None
    folder: str | None = None
    limits: Limits = field(default=LIMITS)
    keys: Keys = field(default_factory=Keys)

    @property
    def front(self) -> str:
        """The origin of the proxy, as browsers send it; empty without one."""
        return "" if self.url is None else self.url.rstrip("/").lower()

    @property
    def names(self) -> list[str]:
        """What requests may call this server."""
        return [self.host.lower(), *([host_name(self.front.partition("://")[2])] if self.url else [])]


def impatient(seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol, which ends a connection on which no request has come for so long.

    uvicorn waits for the headers of a request without end; bodies have a limit of their own (guard.py).
    """

    class Impatient(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.loop.call_later(seconds, self.look, None)

        def look(self, last: object) -> None:
            """Close it when it waits for a request and none was read since the last look."""
            if self.transport.is_closing():
                return
            waits = self.cycle is None or self.cycle.response_complete
            if waits and self.cycle is last:
                self.transport.close()
            else:
                self.loop.call_later(seconds, self.look, self.cycle)

    return Impatient


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises ``UsageError`` where it cannot."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(128)
    except OSError as error:
        because = error.strerror or str(error)
        raise UsageError(f"cannot listen on {host}:{port}", because=because, hint="another --port") from None
    return found


def serve(place: Place, commands: Commands, ready: Callable[[str], None]) -> None:
    """Serve until interrupted. ``ready`` is told the address once the server listens.

    Raises ``InputFileError`` for a folder that is none, ``UsageError`` for an address that is taken, or a URL that is
    none.
    """
    if place.url is not None and not re.fullmatch(r"https?://[A-Za-z0-9.-]+(:\d{1,5})?/", place.url):
        raise UsageError(f"--public-url {place.url!r} cannot be used", hint="--public-url https://plan.example.org/")
    if place.folder is not None and not Path(place.folder).is_dir():
        raise InputFileError(f"cannot read {place.folder}", because="it is no folder")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of the processes that price: one core each
    signal.signal(signal.SIGTERM, _leave)
    with tempfile.TemporaryDirectory(prefix="inferplan-web-") if place.folder is None else nullcontext() as nothing:
        folder = Path(place.folder or nothing or "").resolve()
        setting = WorkerSetting(folder=folder, commands=commands, limits=place.limits)
        with listening(place.host, place.port) as door:
            name = f"[{place.host}]" if ":" in place.host else place.host
            ready(f"http://{name}:{door.getsockname()[1]}/")
            _server(setting, place).run(sockets=[door])


def _server(setting: WorkerSetting, place: Place) -> uvicorn.Server:
    settings = uvicorn.Config(
        make_app(setting, place.keys, own=place.names, front=place.front),
        log_level="warning",
        access_log=False,
        server_header=False,
        http=impatient(setting.limits.body_seconds),
        ws="none",
        timeout_keep_alive=5,
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(settings)


def _leave(*_: object) -> None:
    """End as other errors do, so that what was made for the time is removed; uvicorn has stopped the server by then."""
    sys.exit(128 + signal.SIGTERM)
