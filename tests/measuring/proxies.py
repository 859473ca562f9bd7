"""Proxies between a server and the client: one of our own that holds replies back as nginx does, and nginx itself."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.measuring.wire import headers_of

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin")
LOCATIONS = {
    "buffered": "proxy_buffering on;",
    "unbuffered": "proxy_buffering off;",
    "HTTP/1.1": 'proxy_http_version 1.1; proxy_set_header Connection "";',
    "gzip": "proxy_buffering off; gzip on; gzip_types *; gzip_min_length 1; gzip_proxied any;",
}
"""What nginx is told, by name; it asks a server by HTTP/1.0 and buffers, unless it is told otherwise."""


@dataclass
class Proxy:
    """Asks the server by HTTP/1.0 and passes its reply on in chunks. holds: bytes that it gathers first, as nginx
    gathers one buffer (4,096, a page) with ``proxy_buffering on``; 0: what comes is passed on."""

    behind: int
    holds: int = 0
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await self._one(reader, writer)
        writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = headers_of(head).get("content-length", "0")
        body = await reader.readexactly(int(length))
        theirs, ours = await asyncio.open_connection("127.0.0.1", self.behind)
        ours.write(head.replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", 1) + body)
        answered = await theirs.readuntil(b"\r\n\r\n")
        if "content-length" in headers_of(answered):
            writer.write(answered + await theirs.readexactly(int(headers_of(answered)["content-length"])))
        else:
            writer.write(answered.replace(b"Connection: close", b"Transfer-Encoding: chunked"))
            held = b""
            while data := await theirs.read(65536):
                held += data
                while len(held) > self.holds:
                    part, held = held[: self.holds or None], held[self.holds :] if self.holds else b""
                    writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            if held:
                writer.write(b"%x\r\n%b\r\n" % (len(held), held))
            writer.write(b"0\r\n\r\n")
        ours.close()


@contextlib.contextmanager
def nginx(behind: int, folder: Path) -> Iterator[dict[str, str]]:
    """nginx before a server, without root and with everything in ``folder``; yields an address for each of
    :data:`LOCATIONS`."""
    assert NGINX is not None
    ports = dict(zip(LOCATIONS, free_ports(len(LOCATIONS))))
    paths = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))
    servers = "".join(
        f"server {{ listen 127.0.0.1:{ports[name]}; location / {{ proxy_pass http://127.0.0.1:{behind}; {said} }} }}\n"
        for name, said in LOCATIONS.items()
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log; events {{}}\n"
        f"http {{ access_log off; client_body_temp_path {folder}/body; {paths}\n{servers}}}\n",
        encoding="utf-8",
    )
    child = subprocess.Popen([NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf")], stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", ports["gzip"])) == 0:
                    break
            time.sleep(0.05)
        yield {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    finally:
        child.terminate()
        child.wait(10)


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on."""
    with contextlib.ExitStack() as open_ones:
        found = [open_ones.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]
