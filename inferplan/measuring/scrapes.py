"""What a server says of itself while it runs: ``/metrics``, read again and again for a while. Nothing is sent to it."""

from __future__ import annotations

import asyncio
from asyncio import sleep
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from math import ceil
from time import monotonic

from inferplan.errors import NetworkError, UsageError
from inferplan.fields import Quantity, ask
from inferplan.measuring.address import Address, Key
from inferplan.measuring.client import Client
from inferplan.measuring.server import require_answer

_TIMEOUT = 5.0
"""Seconds without a byte after which a scrape is given up."""
_MOST = 2_000
"""Scrapes that are kept, each of some 100 kB."""
_GONE = 3
"""Scrapes in a row without an answer after which a server is taken to be gone."""
Check = Callable[[str, str], object]
Watch = Callable[[str, int, int], None]
"""Told of each round of scrapes: what is being done, seconds that it took so far, seconds in all."""


@dataclass(frozen=True, kw_only=True)
class ScrapesAsked:
    """How long servers are read. every: seconds between scrapes. lasting: seconds in all."""

    every: float = ask("--every", Quantity("seconds", above=True), "With a URL: time between two scrapes [10s].", 10.0,
                       metavar="TIME")  # fmt: skip
    lasting: float = ask("--for", Quantity("seconds", above=True), "With a URL: how long to read it [10min].", 600.0,
                         metavar="TIME")  # fmt: skip

    def __post_init__(self) -> None:
        if self.lasting > _MOST * self.every:
            raise UsageError(
                f"{self.lasting / self.every:,.0f} scrapes are more than are kept",
                because=f"{_MOST:,} are the most",
                hint=f"--every {ceil(10 * self.lasting / _MOST) / 10:g}s, or a shorter time",
            )


@dataclass(kw_only=True)
class Scraped:
    """One server's scrapes. at: seconds since the first, of each of ``texts``. missed: how often it did not answer;
    gone: why it was not read to the end, empty where it was."""

    address: Address
    texts: list[str] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    missed: int = 0
    gone: str = ""
    _silent: int = 0

    def add(self, at: float, text: str, error: str) -> None:
        """A scrape at a time; ``error`` says why there is none."""
        if not error:
            self._silent = 0
            self.texts.append(text)
            self.at.append(at)
            return
        self.missed += 1
        self._silent += 1
        if self._silent >= _GONE:
            self.gone = f"it stopped answering after {self.at[-1]:.0f} s: {error}"


async def scrape(
    found: Sequence[Scraped], key: Key, asked: ScrapesAsked, watch: Watch, check: Check = lambda text, where: None
) -> None:
    """Read servers, all at the same times, until the time is over or none of them answers any more. check: is told the
    first text of each and its address, and raises where nothing can be made of it.

    ``found`` has what there is whenever it ends. Raises ``NetworkError`` for a server that does not answer at first,
    has no metrics, or refuses the key.
    """
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(one.address, key, _TIMEOUT)) for one in found]
        began = due = monotonic()
        while True:
            there = [(client, one) for client, one in zip(clients, found) if not one.gone]
            at = monotonic() - began
            watch("reading /metrics", round(at), round(asked.lasting))
            answers = await asyncio.gather(*(client.get(f"{client.address.root}/metrics") for client, _ in there))
            for (client, one), answer in zip(there, answers):
                if not one.texts:
                    require_answer(client, answer)
                    if answer.status != 200:
                        raise NetworkError(
                            f"no metrics at {client.address.root}/metrics",
                            because=answer.error or f"HTTP {answer.status}",
                            hint="the address of the server itself; SGLang takes --enable-metrics, llama.cpp --metrics",
                        )
                    check(answer.text, f"{client.address.root}/metrics")
                why = "" if answer.status == 200 else answer.error or f"HTTP {answer.status}"
                one.add(at, answer.text, why)
            due, now = due + asked.every, monotonic()
            if due <= now:  # a machine that slept reads once, not for all it missed
                due = now + asked.every
            if due - began > asked.lasting + asked.every / 2 or all(one.gone for one in found):
                return
            await sleep(due - monotonic())
