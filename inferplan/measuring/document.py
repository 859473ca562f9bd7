"""A small text from the web: by https alone, bounded in time and size, without redirects."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from inferplan.errors import NetworkError, UsageError
from inferplan.measuring.address import Key, address_of
from inferplan.measuring.client import Client

_TIMEOUT = 20.0
"""Seconds without a byte after which a server is given up."""


def is_url(text: str) -> bool:
    """Whether a text names a place of the web, and no file."""
    return "://" in text


def fetch_document(url: str, most: int) -> str:
    """The text at an address of https, of at most so many bytes.

    Raises ``UsageError`` for another scheme, ``NetworkError`` where the server does not answer with such a text,
    ``MissingExtraError`` without httpx2.
    """
    if urlsplit(url).scheme != "https":
        raise UsageError(
            f"{url.rsplit('@', maxsplit=1)[-1]} is not fetched", because="only https is", hint="download it: FILE"
        )

    async def get() -> tuple[str, str]:
        async with Client(address_of(url), Key(), _TIMEOUT) as client:
            found = await client.get(url)
            return found.text, found.error

    text, wrong = asyncio.run(get())
    if not wrong and len(text.encode()) > most:
        wrong = f"it has more than {most:,} bytes"
    if wrong:
        raise NetworkError(f"cannot fetch {url}", because=wrong, hint="download it, and give the file")
    return text
