"""More tasks than processors: each begins before any is done, and none is lost."""

from __future__ import annotations

import mmap
import os
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from inferplan import mapped
from inferplan.catalog.assemble import assemble
from inferplan.planning import turns
from inferplan.planning.day import DayAsked, DayDesign, simulate_days
from inferplan.planning.processes import Progress, StoppedError
from inferplan.planning.turns import run_in_turns
from inferplan.serving.cold_start import ColdStart
from tests.planning.test_day import PEAKS, REQUEST, question

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_TURN", 0.01)


def shared(count: int) -> memoryview:
    """Numbers that forked processes see too."""
    return memoryview(mmap.mmap(-1, 8 * count)).cast("q")


def test_all_tasks_begin_before_one_is_done_and_no_more_compute_than_may() -> None:
    """Three tasks of twenty pieces that each take half a turn, on two processors: who has done least goes on, so the
    third has begun when the first is done. Their stretches of work, as they saw them, overlap by two at the most.
    """
    begun, progress = shared(3), Progress(3, None)

    def task(place: int) -> tuple[int, list[int], list[tuple[float, float]]]:
        begun[place] = 1
        say, stretches = progress.of(place), []
        for done in range(20):
            start = time.monotonic()
            time.sleep(0.005)
            stretches.append((start, time.monotonic()))
            say(done + 1)
        return os.getpid(), list(begun), stretches

    found = run_in_turns([partial(task, place) for place in range(3)], 2, (), progress)
    assert len({process for process, _, _ in found} | {os.getpid()}) == 4
    assert all(there == [1, 1, 1] for _, there, _ in found)
    moments = sorted(
        [(start, 1) for *_, each in found for start, _ in each] + [(end, -1) for *_, each in found for _, end in each]
    )
    assert max(np.cumsum([change for _, change in moments])) == 2


def test_a_task_whose_process_is_killed_is_begun_again_and_then_done_here() -> None:
    """Killed once: another process does it. Killed twice: it is done here."""
    tries, home, progress = shared(3), os.getpid(), Progress(3, None)

    def task(place: int) -> int:
        tries[place] += 1
        if tries[place] <= place and os.getpid() != home:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    found = run_in_turns([partial(task, place) for place in range(3)], 2, (), progress)
    assert list(tries) == [1, 2, 3]
    assert [process == home for process in found] == [False, False, True]


def test_an_error_is_raised_here() -> None:
    def fails() -> None:
        raise ZeroDivisionError(os.getpid())

    with pytest.raises(ZeroDivisionError, match=str(os.getpid())):
        run_in_turns([int, fails, int], 2, (), Progress(3, None))


def test_ctrl_c_keeps_what_is_done() -> None:
    """Of three tasks one is done at once; the others would take for ever, one of them while it waits for its turn."""
    done = shared(1)

    def told(_: int) -> None:
        if time.monotonic() - begin > 0.5:
            raise KeyboardInterrupt

    def forever(place: int) -> None:
        say = progress.of(place)
        while True:
            time.sleep(0.005)
            done[0] += 1
            say(int(done[0]))

    begin, progress = time.monotonic(), Progress(3, told)
    with pytest.raises(StoppedError) as stopped:
        run_in_turns([lambda: "done", partial(forever, 1), partial(forever, 2)], 2, (), progress)
    assert stopped.value.found == {0: "done"}


def test_a_day_is_the_same_in_turns_in_files_and_in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every time and outcome of every request of every policy, to the last bit."""
    asked = DayAsked(profile=PEAKS, span=1800.0, cold_start=ColdStart(rest=60.0))
    design = DayDesign(request=REQUEST, deployment=assemble(REQUEST), question=question(), asked=asked)
    (alone,) = simulate_days([design])
    monkeypatch.setattr(mapped, "FEWEST", 1)
    for jobs in (1, 2):
        (other,) = simulate_days([design], jobs=jobs)
        for one, two in zip(alone.policies, other.policies):
            assert two.result.records.spool is not None
            for name in ("arrival", "prompt", "output", "admitted", "first", "finish", "status"):
                first, second = (np.asarray(getattr(of.result.records, name)) for of in (one, two))
                np.testing.assert_array_equal(first, second)
            assert one.lives == two.lives and one.percentile("ttft", 95.0) == two.percentile("ttft", 95.0)
            assert np.array_equal(one.late, two.late)
