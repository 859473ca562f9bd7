"""Where a server is, and the key that it asks for: read once, shown nowhere."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from inferplan.errors import UsageError

_EXAMPLE = "http://localhost:8000, or https://host/v1"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HIDDEN = "***"
_SECRET = 8
"""Characters from which a key is one. Shorter ones are fillers for servers that check none (``EMPTY``, ``x``, ``1``):
hiding them would spoil every name and number that holds them."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """A server. api: the address under which ``/completions`` is; root: that of ``/version`` and ``/metrics``."""

    root: str
    api: str
    host: str
    port: int
    encrypted: bool

    @property
    def loopback(self) -> bool:
        """Whether it is this machine."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def address_of(url: str) -> Address:
    """The server at ``http://host:8000``, with or without ``/v1``. Raises ``UsageError``.

    A user, a password or a query in the address are refused without being repeated: they are where keys leak. Nor is
    an address with an ``@`` repeated that cannot be read otherwise (``user:password@host`` has no scheme).
    """
    parts = _split(url)
    shown = "the URL" if "@" in url else url
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(
            "the URL holds more than an address",
            because="a user, a password, a query or a fragment in it would be written to logs and files",
            hint="put the key into the environment and name it with --api-key-env NAME",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{shown} is not the address of a server", hint=_EXAMPLE)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise UsageError(f"{shown} has no port number", hint=_EXAMPLE) from None
    path = parts.path.rstrip("/").removesuffix("/completions").removesuffix("/chat")
    path = path.removesuffix("/v1")
    root = f"{parts.scheme}://{parts.netloc}{path}"
    return Address(root=root, api=f"{root}/v1", host=parts.hostname, port=port, encrypted=parts.scheme == "https")


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url.strip())
    except ValueError:
        raise UsageError("the URL cannot be read", hint=_EXAMPLE) from None


class Key:
    """An API key, or none. Its text leaves this object in the header of a request alone."""

    def __init__(self, text: str = "") -> None:
        self._text = text

    def __repr__(self) -> str:
        return f"Key({_HIDDEN if self._text else ''})"

    def __bool__(self) -> bool:
        return bool(self._text)

    def headers(self) -> dict[str, str]:
        """The header that carries it."""
        return {"Authorization": f"Bearer {self._text}"} if self._text else {}

    def hidden(self, text: str) -> str:
        """A text from elsewhere without the key: servers repeat a wrong one in what they answer."""
        return text.replace(self._text, _HIDDEN) if len(self._text) >= _SECRET else text


def key_of(variable: str, environ: Mapping[str, str], named: bool) -> Key:
    """The key in an environment variable; none where it is not set, unless the user ``named`` it.

    Raises ``UsageError``, which does not repeat ``variable``: somebody may have put the key itself there.
    """
    if not _VARIABLE.fullmatch(variable):
        raise UsageError(
            "--api-key-env takes the name of an environment variable",
            because="the given text is not such a name; it is not repeated here, in case it is the key",
            hint="export MY_KEY=..., then --api-key-env MY_KEY",
        )
    text = environ.get(variable, "").strip()
    if not text and named:
        raise UsageError(
            "the environment variable of --api-key-env is not set, or empty", hint="export it, or leave the option out"
        )
    if not text.isascii() or not text.isprintable() or any(mark.isspace() for mark in text):
        raise UsageError(
            "the key in the environment cannot be sent", because="a header holds printable ASCII without blanks"
        )
    return Key(text)
