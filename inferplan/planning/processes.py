"""Parts of an answer that know nothing of each other, each in a process of its own: the same answer, sooner.

Of three equal tasks on two cores the third would begin when the others are done, beside an idle core: half as fast
again as one core. So tasks that say how much of them is done take turns: ``jobs`` of them compute at a time. Of fewer
than twice as many those beyond ``jobs`` that have done most keep a core; the others share the rest, whoever has done
least first. Equal tasks then end as soon as in any order (McNaughton, Management Science 6, 1959), twice as fast, and
one of three is done after two thirds of the time. Those that share do so by the level algorithm (Muntz and Coffman,
IEEE Trans. Computers C-18, 1969). What a task computes does not change: it only waits in between.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import pickle
import select
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, NoReturn
from uuid import uuid4

from inferplan import __version__
from inferplan.cluster import client_of
from inferplan.errors import UsageError

Task = Callable[[], Any]
_LOOK = 0.2
"""Seconds between two looks at how much is done."""
_TURN = 0.25
"""Seconds of a turn: some hundred times those that it takes to change."""
_TOPIC = "inferplan"
"""Under which workers of a cluster say how much is done."""
_SENT = 3
"""How often a task is sent to a cluster that loses what its workers had."""
_OVER, _ANSWER = b"t", b"a"
"""What a process says: its turn is over; its answer follows."""


class StoppedError(KeyboardInterrupt):
    """Ctrl-C before all tasks were done. found: what those gave that were, by their place."""

    def __init__(self, found: dict[int, Any]) -> None:
        super().__init__()
        self.found = found


class Progress:
    """How much of each task is done, in whatever process: ``told`` hears the sum in the process that made this, if
    anybody wants to."""

    def __init__(self, tasks: int, told: Callable[[int], None] | None = None) -> None:
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

    def at(self, place: int, done: int) -> None:
        """So much of a task is done, by somebody who does not see this memory."""
        self._done[place] = done
        self.tell()

    def __reduce__(self) -> tuple[Any, ...]:
        """Another machine tells what it does of a task to whoever gave it the task."""
        return Progress, (len(self._done), _Report())

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


Jobs = int | str
"""Who does the tasks: so many processes here, or the workers of the Dask cluster whose scheduler has this address."""


def run_beside(
    tasks: Sequence[Task], jobs: Jobs, kept: Sequence[object] = (), progress: Progress | None = None
) -> list[Any]:
    """What each task gives, in order; each in a process of its own, of which up to ``jobs`` compute at a time.

    kept: objects that results may hold and that stay the same objects here. progress: told how much of each task is
    done, of as much in all as of the others; then its turn may end. No more than ``2*jobs - 1`` tasks are begun and not
    done: so many may have to be divided. Processes are forked, which needs no start of Python; where the system has no
    fork (Windows), and for one job, all tasks run here. A task whose process was killed is begun again; one that fails
    there, or is killed twice, is done here, so that what it raises is raised here. So it is on a cluster, to which the
    tasks travel: each worker has the code of this very release.

    Raises :class:`StoppedError` on Ctrl-C, with what is done by then, ``UsageError`` for a cluster that cannot do it.
    """
    progress = progress or Progress(len(tasks))
    crew: _Crew | _Cluster
    if isinstance(jobs, str):
        crew = _Cluster(tasks, jobs, kept, progress)
    else:
        crew = _Crew(tasks, min(jobs, len(tasks)), kept, progress)
    try:
        crew.run()
        for place in range(len(tasks)):
            if place not in crew.found:
                crew.found[place] = tasks[place]()
    except KeyboardInterrupt:
        crew.stop()
        raise StoppedError(crew.found) from None
    finally:
        crew.end()
    return [crew.found[place] for place in range(len(tasks))]


@dataclass
class _Worker:
    """A process that does one task. said: the pipe on which it speaks. go: that on which it is told to."""

    process: int
    said: int
    go: int
    computes: bool = True


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
        """Every task is done, or has failed; none for one job, or where nothing can be forked."""
        if self.jobs < 2 or not hasattr(os, "fork"):
            return
        while self.left or self.there:
            self._let_compute()
            places = {worker.said: place for place, worker in self.there.items()}
            for said in select.select(list(places), [], [], _LOOK)[0]:
                self._hear(places[said])
            self.progress.tell()

    def _let_compute(self) -> None:
        """As many compute as may."""
        while sum(worker.computes for worker in self.there.values()) < self.jobs:
            begun = len(self.there)
            if self.left and (begun < self.jobs or begun + len(self.left) < 2 * self.jobs):
                self._begin(self.left.pop(0))
                continue
            place = self._next()
            if place is None:
                return
            worker = self.there[place]
            worker.computes = True
            with contextlib.suppress(BrokenPipeError):  # it was killed while it waited
                os.write(worker.go, _OVER)

    def _next(self) -> int | None:
        """Who goes on, of those that wait."""
        rising = sorted(self.there, key=self.progress.done)
        most = rising[self.jobs :] if not self.left else []
        return next((place for place in [*most, *rising] if not self.there[place].computes), None)

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
            _answer(self.tasks[place], place, into, self.kept)
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
            self.found |= _understood(worker.said, self.kept)
        elif place not in self._killed:
            self._killed.add(place)
            self.left.insert(0, place)
        self._end(place)

    def _end(self, place: int) -> None:
        """A process has nothing more to say."""
        worker = self.there.pop(place)
        os.close(worker.said)
        os.close(worker.go)
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.process, signal.SIGTERM)
        os.waitpid(worker.process, 0)

    def stop(self) -> None:
        """Whoever is not done need not be; what others have just done is kept."""
        for worker in self.there.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.process, signal.SIGINT)
            while (said := os.read(worker.said, 1)) == _OVER:
                pass
            if said:
                self.found |= _understood(worker.said, self.kept)

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


def _answer(task: Task, place: int, into: int, kept: Sequence[object]) -> None:
    """The work of another process, until it is done or Ctrl-C: what it gives is written, if that is anything."""
    signal.signal(signal.SIGINT, _stop)
    found: dict[int, Any] = {}
    with contextlib.suppress(KeyboardInterrupt, Exception):
        found[place] = task()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    data = _packed(found, kept)
    with os.fdopen(into, "wb") as pipe:
        pipe.write(_ANSWER)
        pipe.write(data)


def _packed(found: dict[int, Any], kept: Sequence[object]) -> bytes:
    file = io.BytesIO()
    _Pickler(file, kept).dump(found)
    return file.getvalue()


def _stop(*_: object) -> NoReturn:
    """Ctrl-C, which a terminal and the process that waits may both say: once is enough."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _understood(pipe: int, kept: Sequence[object]) -> dict[int, Any]:
    """What is written to a pipe until its end, by place; nothing where that is missing."""
    with os.fdopen(os.dup(pipe), "rb") as file:
        data = file.read()
    with contextlib.suppress(EOFError, pickle.UnpicklingError):
        return _unpacked(data, kept)
    return {}


def _unpacked(data: bytes, kept: Sequence[object]) -> dict[int, Any]:
    found: dict[int, Any] = _Unpickler(io.BytesIO(data), kept).load()
    return found


class _Cluster:
    """The workers of a Dask cluster that do the tasks, and what they have found, by place."""

    def __init__(self, tasks: Sequence[Task], scheduler: str, kept: Sequence[object], progress: Progress) -> None:
        self.tasks, self.scheduler, self.kept, self.progress = tasks, scheduler, kept, progress
        self.found: dict[int, Any] = {}

    def run(self) -> None:
        """Every task is done, or has failed."""
        if not self.tasks:
            return
        with client_of(self.scheduler) as client:
            self._require_same(client)
            client.subscribe_topic(_TOPIC, self._hear)
            for _ in range(_SENT):
                if left := [place for place in range(len(self.tasks)) if place not in self.found]:
                    self._begin(client, left)

    def _require_same(self, client: Any) -> None:
        """Raise ``UsageError`` unless there are workers, and each has this release."""
        if not client.scheduler_info()["workers"]:
            raise UsageError(f"the cluster at {self.scheduler} has no workers", hint=f"dask worker {self.scheduler}")
        for worker, release in client.run(_release).items():
            if release != __version__:
                raise UsageError(
                    f"the worker {worker} has inferplan {release}, and this is {__version__}",
                    because="other releases have other figures",
                    hint="the same release on every worker",
                )

    def _begin(self, client: Any, left: Sequence[int]) -> None:
        """Each of these tasks is done, has failed, or is lost with the worker that had it."""
        from dask.distributed import as_completed

        name = uuid4().hex
        client.run(_keep_there, name, _sendable((self.tasks, self.kept, self.progress)), on_error="ignore")
        try:
            sent = {client.submit(_done_there, name, place, key=f"{name}-{place}"): place for place in left}
            for future in as_completed(sent):
                if future.status == "finished":
                    data, done = future.result()
                    self.found |= _unpacked(data, self.kept)
                    self.progress.at(sent[future], done)
        finally:
            client.run(_forget_there, name, on_error="ignore")

    def _hear(self, event: tuple[Any, tuple[str, int]]) -> None:
        """A worker says how much of a task is done."""
        _, (key, done) = event
        self.progress.at(int(key.rpartition("-")[2]), done)

    def stop(self) -> None:
        """What is not done need not be: workers forget the tasks with the client, which see that (:class:`_Report`)."""

    def end(self) -> None:
        """Nobody is left."""


def _release() -> str:
    """On another machine: which release it has."""
    return __version__


def _sendable(value: object) -> bytes:
    """As bytes, functions that have no name too."""
    import cloudpickle

    found: bytes = cloudpickle.dumps(value)
    return found


_kept_there: dict[str, bytes] = {}
"""On another machine: tasks, by the name under which they were sent. They are no data of Dask's: what it scatters to
all workers it fetched back and forth between them without end once, on a loaded machine (distributed 2026.8)."""


def _keep_there(name: str, whole: bytes) -> None:
    _kept_there[name] = whole


def _forget_there(name: str) -> None:
    _kept_there.pop(name, None)


def _done_there(name: str, place: int) -> tuple[bytes, int]:
    """On another machine: what a task gives, by place, and how much that is; nothing where it fails, or where a worker
    began after the tasks were sent."""
    if name not in _kept_there:
        return _packed({}, ()), 0
    tasks, kept, progress = pickle.loads(_kept_there[name])
    found = dict[int, Any]()
    with contextlib.suppress(Exception):
        found[place] = tasks[place]()
    return _packed(found, kept), progress.done(place)


class _Report:
    """On another machine: says how much of the task in progress is done now and then, and ends one nobody wants."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, done: int) -> None:
        if monotonic() < self._next:
            return
        from dask.distributed import get_worker

        self._next, worker = monotonic() + _LOOK, get_worker()
        key = worker.get_current_task()
        if key not in worker.state.tasks or worker.state.tasks[key].state == "cancelled":
            raise RuntimeError("who asked for it is gone")
        worker.log_event(_TOPIC, (str(key), done))
