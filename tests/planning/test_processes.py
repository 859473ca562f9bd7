"""Parts of a plan in processes of their own: the same answer, objects that stay the same, errors that are raised."""

from __future__ import annotations

import os
import pickle
import signal
import time
from functools import partial

import pytest

from inferplan.planning.plan import complete, plan
from inferplan.planning.processes import Progress, StoppedError, _said, run_beside
from inferplan.reports.plan_record import plan_record
from inferplan.table import plain
from tests.planning.test_confidence import asked

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def test_tasks_run_beside_each_other_and_give_what_they_would_here() -> None:
    """Three tasks in two processes: the first here, the second there, with the object it was given, the third in one
    of them."""
    shared = object()
    first, second, third = run_beside([os.getpid, lambda: (os.getpid(), [shared]), os.getpid], 2, [shared])
    assert first == os.getpid() != second[0]
    assert third in (first, second[0])
    assert second[1][0] is shared
    assert run_beside([os.getpid, os.getpid], 1) == [os.getpid()] * 2


def test_who_has_done_a_task_takes_another() -> None:
    """Of two processes one has a task that waits until the other has done the five that are left."""
    done, doing = os.pipe()

    def waits() -> bytes:
        return os.read(done, 1)

    def last() -> int:
        return os.write(doing, b"x")

    found = run_beside([os.getpid, waits, os.getpid, os.getpid, os.getpid, os.getpid, last], 2)
    assert found == [os.getpid(), b"x", *[os.getpid()] * 4, 1]


def test_the_tasks_of_a_process_that_is_killed_are_done_here() -> None:
    home = os.getpid()

    def dies() -> int:
        if os.getpid() != home:
            os.kill(os.getpid(), signal.SIGKILL)
        return 7

    assert run_beside([int, dies, int], 2) == [0, 7, 0]


def test_half_a_message_of_a_process_that_is_killed_says_nothing() -> None:
    """Killed while it wrote, wherever it was: after every number of bytes but all."""
    whole = pickle.dumps({0: list(range(100)), 1: "done"})
    found = []
    for size in range(len(whole) + 1):
        out, into = os.pipe()
        os.write(into, whole[:size])
        os.close(into)
        found.append(_said(out, (), None))
        os.close(out)
    assert found == [{}] * len(whole) + [{0: list(range(100)), 1: "done"}]


def test_ctrl_c_keeps_what_is_done() -> None:
    """The first task here is interrupted; one there is done, the next one waits for ever."""
    gone, going = os.pipe()

    def interrupted() -> None:
        os.read(gone, 1)
        raise KeyboardInterrupt

    def waits() -> None:
        os.write(going, b"x")
        time.sleep(60)

    with pytest.raises(StoppedError) as stopped:
        run_beside([interrupted, lambda: "done", waits], 2)
    assert stopped.value.found == {1: "done"}
    with pytest.raises(StoppedError) as stopped:
        run_beside([lambda: "here", interrupted_at_once], 1)
    assert stopped.value.found == {0: "here"}


def interrupted_at_once() -> None:
    raise KeyboardInterrupt


def test_progress_is_the_sum_of_all_processes() -> None:
    """Three tasks of 10 in two processes: in the end 30, whoever did them."""
    heard: list[int] = []
    progress = Progress(3, heard.append)

    def task(place: int) -> None:
        say = progress.of(place)
        for done in range(1, 11):
            say(done)

    run_beside([partial(task, place) for place in range(3)], 2, progress=progress)
    progress.tell()
    assert heard[-1] == 30 and heard == sorted(heard)


def test_an_error_of_another_process_is_raised_here() -> None:
    def fails() -> None:
        raise ZeroDivisionError(os.getpid())

    with pytest.raises(ZeroDivisionError, match=str(os.getpid())):
        run_beside([int, fails], 2)
    with pytest.raises(ZeroDivisionError):
        run_beside([fails, int], 2)


def test_a_plan_is_the_same_in_any_number_of_processes() -> None:
    """With the plan at the other confidence, what costs less and the other loads, which are worked out elsewhere."""
    found = [plan(asked()) for _ in (1, 2)]
    for one, jobs in zip(found, (1, 2)):
        complete(one, jobs)
        assert one.other is not None and one.capacity is not None
    assert plain(plan_record(found[0])) == plain(plan_record(found[1]))
