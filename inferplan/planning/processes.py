"""Parts of an answer that know nothing of each other, each in a process of its own: the same answer, sooner."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
from collections.abc import Callable, Sequence
from typing import Any

Task = Callable[[], Any]


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


def run_beside(tasks: Sequence[Task], jobs: int, kept: Sequence[object] = ()) -> list[Any]:
    """What each task gives, in order; in up to ``jobs`` processes, of which this is one that does the first task.

    kept: objects that results may hold and that stay the same objects here. Processes are forked, which needs no start
    of Python; where the system has no fork (Windows) all tasks run here. A task that fails there is done here again, so
    that what it raises is raised here.
    """
    count = min(jobs, len(tasks))
    if count < 2 or not hasattr(os, "fork"):
        return [task() for task in tasks]
    shares = [[*range(share, len(tasks), count)] for share in range(count)]
    others: list[tuple[int, int]] = []
    found: dict[int, Any] = {}
    try:
        for share in shares[1:]:
            others.append(_forked([tasks[index] for index in share], kept))
        found |= {index: tasks[index]() for index in shares[0]}
        for share, (_, pipe) in zip(shares[1:], others):
            with os.fdopen(os.dup(pipe), "rb") as file:
                data = file.read()
            made = _Unpickler(io.BytesIO(data), kept).load() if data else [None] * len(share)
            for index, one in zip(share, made):
                found[index] = tasks[index]() if one is None else one[0]
    finally:
        for process, pipe in others:
            os.close(pipe)
            _end(process)
    return [found[index] for index in range(len(tasks))]


def _forked(tasks: Sequence[Task], kept: Sequence[object]) -> tuple[int, int]:
    """Another process that does some tasks: its number, and the pipe from which its results are read."""
    out, into = os.pipe()
    process = os.fork()
    if process:
        os.close(into)
        return process, out
    try:  # from here on the other process: it must not come back to what called it
        os.close(out)
        results = [_tried(task) for task in tasks]
        file = io.BytesIO()
        _Pickler(file, kept).dump(results)
        with os.fdopen(into, "wb") as pipe:
            pipe.write(file.getbuffer())
    finally:
        os._exit(0)


def _tried(task: Task) -> tuple[Any] | None:
    """What a task gives; ``None`` where it raises."""
    try:
        return (task(),)
    except Exception:
        return None


def _end(process: int) -> None:
    """A process that has nothing more to say ends."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)
    os.waitpid(process, 0)
