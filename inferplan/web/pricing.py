"""Processes that stay and price what the page asks: so many at once, a queue before them, a time limit on each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from inferplan.errors import UsageError
from inferplan.web.tasks import error_record
from inferplan.web.worker import WorkerProcess, WorkerSetting

Answer = tuple[int, str, bytes | dict[str, Any]]
"""Status, kind, content."""


NO_ANSWER = 504
"""Status of a question that takes longer than its limit."""


def too_busy(what: str, status: int = 503) -> Answer:
    """A refusal that says what there is too much of."""
    return status, "application/json", error_record(UsageError(what, hint="ask again in a moment"))


class PricingProcesses:
    """The processes that stay. ``start`` and ``stop`` belong to the server's life."""

    def __init__(self, setting: WorkerSetting) -> None:
        self.setting = setting
        self._threads = ThreadPoolExecutor(setting.limits.pricing + 1, "pricing")
        self._free: asyncio.Queue[WorkerProcess | None] = asyncio.Queue()
        self._all: set[WorkerProcess] = set()
        self._waiting: Counter[str] = Counter()

    async def start(self) -> None:
        """Start the processes; they are ready when the first answers come."""
        for _ in range(self.setting.limits.pricing):
            self._free.put_nowait(self._fresh())

    def stop(self) -> None:
        """End every process."""
        for process in list(self._all):
            self._end(process)
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def pids(self) -> list[int]:
        """The processes that there are."""
        return [process.pid for process in self._all if process.pid is not None]

    async def ask(
        self,
        question: str,
        body: Mapping[str, Any],
        seconds: float | None = None,
        told: Callable[[dict[str, Any]], None] = lambda _: None,
        person: str = "",
    ) -> Answer:
        """The answer of the next process that is free, within its time limit or one of its own.

        told: what hears of its progress, in a thread of its own. person: whose question it is, "" for nobody's in
        particular. Who is cancelled while waiting ends the process.
        """
        limits = self.setting.limits
        if (number := self._waiting.total()) >= limits.waiting:
            return too_busy(f"{number} requests are waiting already")
        if person and self._waiting[person] >= limits.waiting_each:
            return too_busy(f"{self._waiting[person]} requests of {person} are waiting already", 429)
        self._waiting[person] += 1
        try:
            process = await self._free.get()
        finally:
            self._waiting[person] -= 1
        process = process or self._fresh()
        loop, limit = asyncio.get_running_loop(), seconds or self.setting.limits.seconds
        asked = loop.run_in_executor(self._threads, self._ask, process, question, body, limit, told)
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            self._end(process)
            raise
        finally:
            asked.add_done_callback(lambda _: self._free.put_nowait(process if process in self._all else None))

    def _ask(
        self,
        process: WorkerProcess,
        question: str,
        body: Mapping[str, Any],
        seconds: float,
        told: Callable[[dict[str, Any]], None],
    ) -> Answer:
        try:
            return process.ask(question, body, seconds, told)
        except TimeoutError:
            self._end(process)
            return too_busy(f"no answer within {seconds:g} s", NO_ANSWER)
        except (EOFError, OSError):
            self._end(process)
            return too_busy("this needs more than the server gives to a request")

    def _fresh(self) -> WorkerProcess:
        process = WorkerProcess(self.setting)
        self._all.add(process)
        return process

    def _end(self, process: WorkerProcess) -> None:
        self._all.discard(process)
        process.end()
