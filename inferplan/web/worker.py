"""The processes that answer: each reads questions from a pipe, works in the server's folder, and ends with it."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from inferplan.errors import InferplanError, UsageError
from inferplan.web.commands import Commands, Progress
from inferplan.web.confine import confine
from inferplan.web.limits import Limits
from inferplan.web.tasks import Desk, ProcessReply, error_reply

_BETWEEN_NEWS = 0.1
"""Seconds between what a job says of its progress, at least."""
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, kw_only=True)
class WorkerSetting:
    """What a process is started with: the folder that it works in, and the command line."""

    folder: Path
    commands: Commands
    limits: Limits


class WorkerProcess:
    """One process of the server and the pipe to it."""

    def __init__(self, setting: WorkerSetting) -> None:
        self.pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(theirs, setting), daemon=True)
        self._process.start()
        theirs.close()
        self._ready, self._starts = False, setting.limits.start_seconds

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def ask(
        self, question: str, body: Mapping[str, Any], seconds: float, told: Callable[[dict[str, Any]], None]
    ) -> tuple[int, str, bytes]:
        """Status, kind and content of an answer. told: what hears of its progress.

        Raises ``TimeoutError`` when it takes longer, ``EOFError`` when the process has ended; end it then.
        """
        self.await_start()
        self.pipe.send((question, body))
        end = time.monotonic() + seconds
        while True:
            found = self._heard(max(end - time.monotonic(), 0.0))
            if found[0] != "progress":
                answer: tuple[int, str, bytes] = found
                return answer
            told(found[1])

    def await_start(self) -> None:
        """Wait until it answers. Raises as :meth:`ask`."""
        if not self._ready:
            self._heard(self._starts)
            self._ready = True

    def _heard(self, seconds: float) -> Any:
        if not self.pipe.poll(seconds):
            raise TimeoutError
        return self.pipe.recv()

    def end(self) -> None:
        """End it at once, with whatever it has started; one that has ended is left, for its number may be another's."""
        if not self._process.is_alive():
            return
        if self._process.pid is not None and hasattr(os, "killpg"):
            try:
                if os.getpgid(self._process.pid) == self._process.pid:
                    os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._process.kill()
        self._process.join()  # the pipe is left open: whoever reads it hears that it has ended


def _serve(pipe: Connection, setting: WorkerSetting) -> None:
    """The body of a process: answers questions until the pipe is closed."""
    _prepare(setting)
    pipe.send("ready")
    desk = Desk(commands=setting.commands, limits=setting.limits, progress=_saying(pipe))
    while True:
        try:
            question, body = pipe.recv()
        except (EOFError, OSError):
            return
        if question == "job":
            pipe.send(("end", _job(desk, body)))
            return
        reply = _answer(desk, question, body)
        content = reply.content if isinstance(reply.content, str) else json.dumps(reply.content, allow_nan=False)
        pipe.send((reply.status, reply.kind, content.encode("utf-8")))


def _answer(desk: Desk, question: str, body: Mapping[str, Any]) -> ProcessReply:
    try:
        return desk.answer(question, body)
    except Exception as error:
        return error_reply(_bug(error))


def _saying(pipe: Connection) -> Progress:
    """What tells the server, now and then, how far a command is."""
    said = 0.0

    def progress(done: int, total: int | None, text: str) -> None:
        nonlocal said
        if time.monotonic() - said >= _BETWEEN_NEWS or done == total:  # the end is always said
            said = time.monotonic()
            pipe.send(("progress", {"done": done, "total": total, "text": text}))

    return progress


def _job(desk: Desk, body: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return desk.job(body["kind"], body["options"])
    except Exception as error:
        found: dict[str, Any] = error_reply(_bug(error)).content
        return found


def _bug(error: Exception) -> InferplanError:
    if isinstance(error, MemoryError):
        return UsageError("this needs more memory than the server gives to a request")
    found = InferplanError(f"a bug in inferplan: {type(error).__name__}: {error}")
    found.exit_code = 1
    return found


def _prepare(setting: WorkerSetting) -> None:
    """Go to the folder; no network, no further processes, no more memory than allowed; end when the server has."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the server ends its processes itself
    os.environ["HF_HUB_OFFLINE"], sys.dont_write_bytecode = "1", True
    os.environ["INFERPLAN_CACHE"] = ""  # specs that were read are not kept: nothing is written, and no pickle is read
    setting.commands.prepare()
    setting.commands.schema("estimate")  # imports what the first answer needs
    os.chdir(setting.folder)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (setting.limits.memory, setting.limits.memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):
        pass  # where the system has no such limit, that of time is left
    confine(setting.folder)


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
