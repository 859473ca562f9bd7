"""Parts of an answer that know nothing of each other, each in a process of its own: the same answer, sooner."""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import pickle
import select
import signal
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

Task = Callable[[], Any]
LOOK = 0.2
"""Seconds between two looks at what the others have done, when this process has nothing to do."""
_PLACE = 4
"""Bytes in which the place of a task travels."""


class StoppedError(KeyboardInterrupt):
    """Ctrl-C before all tasks were done. found: what those gave that were, by their place."""

    def __init__(self, found: dict[int, Any]) -> None:
        super().__init__()
        self.found = found


class Progress:
    """How much of each task is done, in whatever process: ``told`` hears the sum in the process that made this, if
    anybody wants to."""

    def __init__(self, tasks: int, told: Callable[[int], None] | None) -> None:
        self._told, self._home = told, os.getpid()
        self._done = memoryview(mmap.mmap(-1, 8 * max(tasks, 1))).cast("q")  # forked processes share it
        self.pause: Callable[[], None] | None = None
        """What another process does where a task says how much is done."""

    def done(self, place: int) -> int:
        """How much of a task is done."""
        return self._done[place]

    def of(self, place: int) -> Callable[[int], None]:
        """Who is to be told how much of a task is done."""

        def say(done: int) -> None:
            self._done[place] = done
            if self.pause is not None:
                self.pause()
            elif os.getpid() == self._home:
                self.tell()

        return say

    def tell(self) -> None:
        """Say what all of them have done."""
        if self._told is not None:
            self._told(sum(self._done))


class _Pickler(pickle.Pickler):
    """Objects that both processes have, since before they parted, travel as their place among ``kept``."""

    def __init__(self, file: io.BytesIO, kept: Sequence[object]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._places = {id(one): place for place, one in enumerate(kept)}

    def persistent_id(self, one: object) -> int | None:
        return self._places.get(id(one))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, kept: Sequence[object]) -> None:
        super().__init__(file)
        self._kept = kept

    def persistent_load(self, place: int) -> object:
        return self._kept[place]


def run_beside(
    tasks: Sequence[Task], jobs: int, kept: Sequence[object] = (), progress: Progress | None = None
) -> list[Any]:
    """What each task gives, in order; in up to ``jobs`` processes, of which this is one that does the first task. Each
    takes another task when it has done one.

    kept: objects that results may hold and that stay the same objects here. progress: told what the others do.
    Processes are forked, which needs no start of Python; where the system has no fork (Windows) all tasks run here. A
    task that fails there, or whose process was killed, is done here again, so that what it raises is raised here.

    Raises :class:`StoppedError` on Ctrl-C, with what is done by then.
    """
    count, found = min(jobs, len(tasks)), dict[int, Any]()
    if count < 2 or not hasattr(os, "fork"):
        count = 1
    left, others = _places(range(count, len(tasks))), dict[int, int]()
    try:
        for place in range(1, count):
            process, pipe = _forked(tasks, place, left, kept)
            others[process] = pipe
        _work(tasks, 0, left, found, lambda task: task())
        for pipe in list(others.values()):
            found |= _said(pipe, kept, progress)
        for place in range(len(tasks)):
            if place not in found:
                found[place] = tasks[place]()
    except KeyboardInterrupt:
        while os.read(left, 1024):  # nobody takes another
            pass
        for process, pipe in others.items():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGINT)
            found |= _said(pipe, kept, None)
        raise StoppedError(found) from None
    finally:
        os.close(left)
        for process, pipe in others.items():
            os.close(pipe)
            end_process(process)
    return [found[place] for place in range(len(tasks))]


def _places(which: Sequence[int]) -> int:
    """A pipe that gives each of some places to whoever asks first, and then nothing."""
    out, into = os.pipe()
    with os.fdopen(into, "wb") as file:
        file.write(b"".join(place.to_bytes(_PLACE, "little") for place in which))
    return out


def _work(tasks: Sequence[Task], place: int, left: int, found: dict[int, Any], do: Callable[[Task], Any]) -> None:
    """Do a task, and then others as long as any are left; what each gives goes into ``found``."""
    found[place] = do(tasks[place])
    while said := os.read(left, _PLACE):
        place = int.from_bytes(said, "little")
        found[place] = do(tasks[place])


def _forked(tasks: Sequence[Task], place: int, left: int, kept: Sequence[object]) -> tuple[int, int]:
    """Another process that does a task, and others: its number, and the pipe from which its results are read."""
    out, into = os.pipe()
    process = os.fork()
    if process:
        os.close(into)
        return process, out
    try:  # from here on the other process: it must not come back to what called it
        os.close(out)
        answer(lambda results: _work(tasks, place, left, results, tried), into, kept)
    finally:
        os._exit(0)


def answer(
    work: Callable[[dict[int, tuple[Any] | None]], object], into: int, kept: Sequence[object], head: bytes = b""
) -> None:
    """The work of another process, until it is done or Ctrl-C: what it finds is written, after ``head``."""
    signal.signal(signal.SIGINT, _stop)
    results: dict[int, tuple[Any] | None] = {}
    with contextlib.suppress(KeyboardInterrupt):
        work(results)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    file = io.BytesIO()
    _Pickler(file, kept).dump({place: one[0] for place, one in results.items() if one is not None})
    with os.fdopen(into, "wb") as pipe:
        pipe.write(head)
        pipe.write(file.getbuffer())


def _stop(*_: object) -> NoReturn:
    """Ctrl-C, which a terminal and the process that waits may both say: once is enough."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _said(pipe: int, kept: Sequence[object], progress: Progress | None) -> dict[int, Any]:
    """What another process has found, by place; nothing of one that was killed, or that was being read before."""
    while progress is not None and not select.select([pipe], [], [], LOOK)[0]:
        progress.tell()
    found = understood(pipe, kept)
    if progress is not None:
        progress.tell()
    return found


def understood(pipe: int, kept: Sequence[object]) -> dict[int, Any]:
    """What is written to a pipe until its end, by place; nothing where that is missing."""
    with os.fdopen(os.dup(pipe), "rb") as file:
        data = file.read()
    found: dict[int, Any] = {}
    with contextlib.suppress(EOFError, pickle.UnpicklingError):
        found = _Unpickler(io.BytesIO(data), kept).load()
    return found


def tried(task: Task) -> tuple[Any] | None:
    """What a task gives; ``None`` where it raises."""
    try:
        return (task(),)
    except Exception:
        return None


def end_process(process: int) -> None:
    """A process that has nothing more to say ends."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)
    os.waitpid(process, 0)
