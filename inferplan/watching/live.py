"""Servers that run, scraped for as long as somebody watches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack

from inferplan.errors import InputFileError, NetworkError
from inferplan.measuring.address import Address, Key
from inferplan.measuring.client import Client
from inferplan.watching.counters import Counters, Span, read_counters
from inferplan.watching.minutes import Scrapes

_TIMEOUT = 5.0
"""Seconds without a byte after which a scrape is given up."""
Said = Callable[[str], None]


async def spans(
    addresses: Sequence[Address], key: Key, every: float, scrapes: Scrapes, until: float, said: Said
) -> AsyncIterator[tuple[Span, float, int]]:
    """The minutes of some servers, as :class:`Scrapes` cuts them, with their ends in seconds since 1970.

    every: seconds between scrapes. until: seconds after which watching ends. said: told of a server whose scrapes
    cannot be read. Raises ``NetworkError`` where none answers at first, ``InputFileError`` where one has no metrics
    that can be watched, and where servers run different engines.
    """
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(one, key, _TIMEOUT)) for one in addresses]
        began = due = time.monotonic()
        first = True
        while True:
            found = dict(await asyncio.gather(*(_scrape(client, first, said) for client in clients)))
            if first:
                _require_one(found, clients)
            first = False
            ended = scrapes.add(time.monotonic() - began, found)
            if ended is not None:
                yield ended[0], time.time(), ended[1]
            due += every
            now = time.monotonic()
            due = max(due, now)  # a machine that slept scrapes once, not for all it missed
            if due - began > until + every / 2:
                return
            await asyncio.sleep(due - now)


async def _scrape(client: Client, first: bool, said: Said) -> tuple[str, Counters | None]:
    """One server's counters; ``None`` where it does not answer."""
    where = client.address.root
    answer = await client.get(f"{where}/metrics")
    if answer.status != 200:
        if first:
            said(f"{where}/metrics: {answer.error or answer.status}")
        return where, None
    try:
        return where, read_counters(answer.text, f"{where}/metrics")
    except InputFileError as error:
        if first:
            raise
        said(error.render())
        return where, None


def _require_one(found: dict[str, Counters | None], clients: Sequence[Client]) -> None:
    there = {name: one for name, one in found.items() if one is not None}
    if not there:
        raise NetworkError(
            f"no metrics at {clients[0].address.root}/metrics",
            because="no server answered the first scrape",
            hint="the addresses of the servers themselves, not of a router",
        )
    engines = {one.engine for one in there.values()}
    if len(engines) > 1:
        raise InputFileError(
            "servers with different engines are not one service", because=", ".join(sorted(engines)), hint="watch each"
        )
