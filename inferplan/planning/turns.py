"""Long tasks in processes that take turns, so that all cores have work to the end.

Of three equal tasks on two cores the third would begin when the others are done, beside an idle core: half as fast
again as one core. Here each has a process of its own, ``jobs`` of them compute at a time, and whoever has done least
goes on when a turn is over: twice as fast (McNaughton, Management Science 6, 1959: no order of tasks that may be
interrupted ends sooner; the rule is the level algorithm of Muntz and Coffman, IEEE Trans. Computers C-18, 1969). What a
task computes does not change: it only waits in between.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from inferplan.planning.processes import (
    LOOK,
    Progress,
    StoppedError,
    Task,
    answer,
    end_process,
    run_beside,
    tried,
    understood,
)

_TURN = 0.25
"""Seconds of a turn: some hundred times those that it takes to change."""
_OVER, _ANSWER = b"t", b"a"
"""What a process says: its turn is over; its answer follows."""


@dataclass
class _Worker:
    """A process that does one task. said: the pipe on which it speaks. go: that on which it is told to."""

    process: int
    said: int
    go: int
    computes: bool = True


def run_in_turns(tasks: Sequence[Task], jobs: int, kept: Sequence[object], progress: Progress) -> list[Any]:
    """:func:`inferplan.planning.processes.run_beside`, where there are more tasks than ``jobs``, and each says by and
    by how much of it is done, of as much in all as the others: when it does its turn may end.

    No more than ``2*jobs - 1`` tasks are begun and not done: so many may have to be divided.
    """
    if not 1 < jobs < len(tasks) or not hasattr(os, "fork"):
        return run_beside(tasks, jobs, kept, progress)
    crew = _Crew(tasks, jobs, kept, progress)
    try:
        crew.run()
        for place in range(len(tasks)):
            if place not in crew.found:  # so that what it raises is raised here
                crew.found[place] = tasks[place]()
    except KeyboardInterrupt:
        crew.stop()
        raise StoppedError(crew.found) from None
    finally:
        crew.end()
    return [crew.found[place] for place in range(len(tasks))]


class _Crew:
    """The processes that do the tasks, and what they have found, by place."""

    def __init__(self, tasks: Sequence[Task], jobs: int, kept: Sequence[object], progress: Progress) -> None:
        self.tasks, self.jobs, self.kept, self.progress = tasks, jobs, kept, progress
        self.found: dict[int, Any] = {}
        self.left = list(range(len(tasks)))
        self.there: dict[int, _Worker] = {}
        self._killed: set[int] = set()
        """Tasks whose process was killed once: they are begun again."""

    def run(self) -> None:
        """Every task is done, or has failed."""
        while self.left or self.there:
            self._let_compute()
            places = {worker.said: place for place, worker in self.there.items()}
            for said in select.select(list(places), [], [], LOOK)[0]:
                self._hear(places[said])
            self.progress.tell()

    def _let_compute(self) -> None:
        """As many compute as may: those that have done least."""
        while sum(worker.computes for worker in self.there.values()) < self.jobs:
            begun = len(self.there)
            if self.left and (begun < self.jobs or begun + len(self.left) < 2 * self.jobs):
                self._begin(self.left.pop(0))
                continue
            waiting = [place for place, worker in self.there.items() if not worker.computes]
            if not waiting:
                return
            worker = self.there[min(waiting, key=self.progress.done)]
            worker.computes = True
            with contextlib.suppress(BrokenPipeError):  # it was killed while it waited
                os.write(worker.go, _OVER)

    def _begin(self, place: int) -> None:
        """Another process begins a task."""
        (out, into), (wait, go) = os.pipe(), os.pipe()
        process = os.fork()
        if process:
            os.close(into)
            os.close(wait)
            self.there[place] = _Worker(process, out, go)
            return
        try:  # from here on the other process: it must not come back to what called it
            for worker in self.there.values():
                os.close(worker.said)
                os.close(worker.go)
            os.close(out)
            os.close(go)
            self.progress.pause = _turn(into, wait)
            answer(lambda found: found.update({place: tried(self.tasks[place])}), into, self.kept, _ANSWER)
        finally:
            os._exit(0)

    def _hear(self, place: int) -> None:
        """A process says something, or was killed."""
        worker = self.there[place]
        said = os.read(worker.said, 1)
        if said == _OVER:
            worker.computes = False
            return
        if said:
            self.found |= understood(worker.said, self.kept)
        elif place not in self._killed:
            self._killed.add(place)
            self.left.insert(0, place)
        self._end(place)

    def _end(self, place: int) -> None:
        worker = self.there.pop(place)
        os.close(worker.said)
        os.close(worker.go)
        end_process(worker.process)

    def stop(self) -> None:
        """Whoever is not done need not be; what others have just done is kept."""
        for worker in self.there.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.process, signal.SIGINT)
            while (said := os.read(worker.said, 1)) == _OVER:
                pass
            if said:
                self.found |= understood(worker.said, self.kept)

    def end(self) -> None:
        """Nobody is left."""
        for place in list(self.there):
            self._end(place)


def _turn(said: int, wait: int) -> Callable[[], None]:
    """What a process does where it may pause: when its turn is over, until it is told to go on."""
    ends = [monotonic() + _TURN]
    over = partial(os.write, said, _OVER)

    def pause() -> None:
        if monotonic() < ends[0]:
            return
        over()
        if not os.read(wait, 1):  # nobody is there who could tell it
            raise KeyboardInterrupt
        ends[0] = monotonic() + _TURN

    return pause
