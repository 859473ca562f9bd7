"""Parts of an answer in processes of their own: the same answer, objects that stay the same, errors that are raised."""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from inferplan import mapped
from inferplan.catalog.assemble import assemble
from inferplan.cli import cli
from inferplan.errors import UsageError
from inferplan.planning import processes
from inferplan.planning.day import DayAsked, DayDesign, PolicyDay, simulate_days
from inferplan.planning.plan import complete, plan
from inferplan.planning.processes import Progress, StoppedError, run_beside
from inferplan.reports.plan_record import plan_record
from inferplan.serving.cold_start import ColdStart
from inferplan.table import plain
from tests.cases import for_each
from tests.planning.test_confidence import asked
from tests.planning.test_day import PEAKS, REQUEST, question

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

FLEET = """fleet llama-3.1-8b --prices aws-us-east-1 --rate 40 --prompt 1024 --output 256 --ttft 1s --tpot 50ms
    --own a100-80gb-sxm=2 --rent l40s --designs 1"""
MONTHS = """
begin: 2027-01
months: 3
scenarios: {low: {chance: 0.5}, high: {chance: 0.5}}
kinds: {a: {gpus: 1}}
models: {chat: {replicas: {a: {rate: 10}}}}
demand: [{model: chat, region: eu, rate: 25, growth: {low: 0, high: 0.5}}]
offers:
  - {kind: a, region: eu, term: on-demand, per_hour: 10}
  - {kind: a, region: eu, term: reserved, months: 3, per_hour: 6}
"""


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_TURN", 0.01)


def shared(count: int) -> memoryview:
    """Numbers that forked processes see too."""
    return memoryview(mmap.mmap(-1, 8 * count)).cast("q")


def test_tasks_run_beside_each_other_and_give_what_they_would_here() -> None:
    """Three tasks, each in a process of its own, one with the object it was given; all here with one job."""
    kept = object()
    found = run_beside([os.getpid, os.getpid, lambda: (os.getpid(), [kept])], 2, [kept])
    assert len({os.getpid(), *found[:2], found[2][0]}) == 4
    assert found[2][1][0] is kept
    assert run_beside([os.getpid, os.getpid], 1) == [os.getpid()] * 2
    assert run_beside([os.getpid], 2) == [os.getpid()]


def test_the_next_task_begins_when_one_is_done() -> None:
    """Of two processes one has a task that waits until the other five are done."""
    done, doing = os.pipe()

    def waits() -> bytes:
        return os.read(done, 1)

    def last() -> int:
        return os.write(doing, b"x")

    assert run_beside([int, waits, int, int, int, int, last], 2) == [0, b"x", 0, 0, 0, 0, 1]


def worked(pieces: int, progress: Progress, place: int) -> tuple[int, list[tuple[float, float]]]:
    """A task of so many pieces that each take half a turn: the process, and when it worked, as it saw that."""
    say, stretches = progress.of(place), []
    for done in range(pieces):
        start = time.monotonic()
        time.sleep(0.005)
        stretches.append((start, time.monotonic()))
        say(done + 1)
    return os.getpid(), stretches


def most_at_once(found: list[tuple[int, list[tuple[float, float]]]]) -> int:
    """How many worked at the same moment."""
    starts = [(start, 1) for _, each in found for start, _ in each]
    ends = [(end, -1) for _, each in found for _, end in each]
    return int(max(np.cumsum([change for _, change in sorted(starts + ends)])))


def test_more_tasks_than_processors_take_turns() -> None:
    """Every one has begun before any is done, and no more than may work at once."""
    progress = Progress(3)
    found = run_beside([partial(worked, 20, progress, place) for place in range(3)], 2, progress=progress)
    assert len({process for process, _ in found} | {os.getpid()}) == 4
    assert most_at_once(found) == 2
    assert max(each[0][0] for _, each in found) < min(each[-1][1] for _, each in found)


@for_each(("tasks", "jobs", "early"), [(3, 2, 1), (5, 3, 2), (5, 4, 1), (7, 4, 3)])
def test_who_goes_on_when_a_turn_is_over(tasks: int, jobs: int, early: int) -> None:
    """Equal tasks of 100 turns end after ``100*tasks/jobs`` turns at the least (McNaughton, 1959). Those that keep
    their core, ``tasks - jobs`` of them, end after 100, but for the turn in which the others begin."""
    progress = Progress(tasks)
    crew = processes._Crew([int] * tasks, jobs, (), progress)
    crew.left, crew.there = [], {place: processes._Worker(0, 0, 0, computes=False) for place in range(tasks)}
    ends: list[int] = []
    for turn in range(1, 100 * tasks):
        for _ in range(jobs):
            place = crew._next()
            if place is not None:
                crew.there[place].computes = True
        for place, worker in list(crew.there.items()):
            progress.of(place)(progress.done(place) + worker.computes)
            worker.computes = False
            if progress.done(place) == 100:
                ends.append(turn)
                del crew.there[place]
    assert ends[-1] <= 100 * tasks / jobs + 2
    assert ends[early - 1] <= 102 < ends[early]


def test_a_task_whose_process_is_killed_is_begun_again_and_then_done_here() -> None:
    """Killed once: another process does it. Killed twice: it is done here."""
    tries, home, progress = shared(3), os.getpid(), Progress(3)

    def task(place: int) -> int:
        tries[place] += 1
        if tries[place] <= place and os.getpid() != home:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    for told in (None, progress):
        tries[:] = shared(3)
        found = run_beside([partial(task, place) for place in range(3)], 2, progress=told)
        assert list(tries) == [1, 2, 3]
        assert [process == home for process in found] == [False, False, True]


def test_half_a_message_of_a_process_that_is_killed_says_nothing() -> None:
    """Killed while it wrote, wherever it was: after every number of bytes but all."""
    whole = pickle.dumps({0: list(range(100)), 1: "done"})
    found = []
    for size in range(len(whole) + 1):
        out, into = os.pipe()
        os.write(into, whole[:size])
        os.close(into)
        found.append(processes._understood(out, ()))
        os.close(out)
    assert found == [{}] * len(whole) + [{0: list(range(100)), 1: "done"}]


def test_ctrl_c_keeps_what_is_done() -> None:
    """Of three tasks one is done at once; the others would take for ever, one of them while it waits for its turn."""
    done = shared(1)

    def told(_: int) -> None:
        if time.monotonic() - begin > 0.5:
            raise KeyboardInterrupt

    def forever(say: Callable[[int], None]) -> None:
        while True:
            time.sleep(0.005)
            done[0] += 1
            say(int(done[0]))

    begin, progress = time.monotonic(), Progress(3, told)
    with pytest.raises(StoppedError) as stopped:
        run_beside([lambda: "done", *(partial(forever, progress.of(place)) for place in (1, 2))], 2, progress=progress)
    assert stopped.value.found == {0: "done"}
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
    assert heard[-1] == 30 and heard == sorted(heard)


@for_each("progress", [None, Progress(2)])
def test_an_error_of_another_process_is_raised_here(progress: Progress | None) -> None:
    def fails() -> None:
        raise ZeroDivisionError(os.getpid())

    for tasks in ([int, fails], [fails, int]):
        with pytest.raises(ZeroDivisionError, match=str(os.getpid())):
            run_beside(tasks, 2, progress=progress)


def test_a_plan_is_the_same_in_any_number_of_processes() -> None:
    """With the plan at the other confidence, what costs less and the other loads, which are worked out elsewhere."""
    found = [plan(asked()) for _ in (1, 2)]
    for one, jobs in zip(found, (1, 2)):
        complete(one, jobs)
        assert one.other is not None and one.capacity is not None
    assert plain(plan_record(found[0])) == plain(plan_record(found[1]))


def test_a_day_is_the_same_in_turns_in_files_and_in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every time and outcome of every request of every policy, to the last bit."""
    of_day = DayAsked(profile=PEAKS, span=1800.0, cold_start=ColdStart(rest=60.0))
    design = DayDesign(request=REQUEST, deployment=assemble(REQUEST), question=question(), asked=of_day)
    (alone,) = simulate_days([design])
    monkeypatch.setattr(mapped, "FEWEST", 1)
    for jobs in (1, 2):
        (other,) = simulate_days([design], jobs=jobs)
        for one, two in zip(alone.policies, other.policies):
            assert two.result.records.spool is not None
            require_same(one, two)


def require_same(one: PolicyDay, two: PolicyDay) -> None:
    for name in ("arrival", "prompt", "output", "admitted", "first", "finish", "status"):
        first, second = (np.asarray(getattr(of.result.records, name)) for of in (one, two))
        np.testing.assert_array_equal(first, second)
    assert one.lives == two.lives and one.percentile("ttft", 95.0) == two.percentile("ttft", 95.0)
    assert np.array_equal(one.late, two.late)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers of one thread each."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as found:
        yield found


class Kept:
    """What both machines have, and can be told from another one like it."""


def test_workers_of_a_cluster_do_what_processes_do(cluster: Any) -> None:
    """Three tasks of six pieces on two workers, none of them here; what they were given is still that object."""
    kept, heard = Kept(), list[int]()
    progress = Progress(3, heard.append)

    def task(place: int) -> tuple[int, Kept, int]:
        for done in range(1, 7):
            progress.of(place)(done)
        return place, kept, os.getpid()

    found = run_beside([partial(task, place) for place in range(3)], cluster.scheduler_address, [kept], progress)
    assert [place for place, _, _ in found] == [0, 1, 2]
    assert all(one is kept for _, one, _ in found)
    assert os.getpid() not in {process for _, _, process in found}
    assert heard[-1] == 18


def test_a_worker_of_a_cluster_that_is_killed_loses_nothing(cluster: Any, tmp_path: Path) -> None:
    """Each worker is killed while it does a task for the first time: another one, or this process, does it again."""

    def task(place: int) -> int:
        begun = tmp_path / str(place)
        if place < 2 and not begun.exists():
            begun.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return place * place

    found = run_beside([partial(task, place) for place in range(4)], cluster.scheduler_address)
    assert found == [0, 1, 4, 9]
    assert len(list(tmp_path.iterdir())) == 2


def test_what_a_worker_of_a_cluster_raises_is_raised_here(cluster: Any) -> None:
    def fails() -> None:
        raise ZeroDivisionError(os.getpid())

    with pytest.raises(ZeroDivisionError, match=str(os.getpid())):
        run_beside([int, fails], cluster.scheduler_address)


def test_ctrl_c_keeps_what_a_cluster_has_done(cluster: Any, tmp_path: Path) -> None:
    """The second task would go on for a minute, and ends soon after somebody stops it."""

    def told(done: int) -> None:
        if done > 10:
            os.kill(os.getpid(), signal.SIGINT)

    progress, marks = Progress(2, told), tmp_path / "marks"

    def forever() -> None:
        for done in range(600):
            time.sleep(0.1)
            marks.write_text(str(done))
            progress.of(1)(done)

    with pytest.raises(StoppedError) as stopped:
        run_beside([lambda: "done", forever], cluster.scheduler_address, progress=progress)
    assert stopped.value.found == {0: "done"}
    assert progress.done(1) > 10
    time.sleep(2.0)
    ended = marks.read_text()
    time.sleep(1.0)
    assert marks.read_text() == ended


def test_a_cluster_without_workers_or_of_another_release_is_refused(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "__version__", "0.0.1")
    with pytest.raises(UsageError, match=r"0\.0\.1"):
        run_beside([int, int], cluster.scheduler_address)
    nobody = pytest.importorskip("distributed").LocalCluster(n_workers=0, dashboard_address=":0")
    with nobody, pytest.raises(UsageError, match="no workers"):
        run_beside([int, int], nobody.scheduler_address)


@for_each("command", ["horizon months.yaml", FLEET])
def test_a_cluster_gives_the_answer_of_one_process(
    command: str, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole reports, to the last digit."""
    monkeypatch.chdir(tmp_path)
    Path("months.yaml").write_text(MONTHS)
    here, there = (
        CliRunner().invoke(cli, [*command.split(), "--format", "json", *who], catch_exceptions=False).stdout
        for who in (["--jobs", "1"], ["--scheduler", cluster.scheduler_address])
    )
    assert len(here) > 1000 and here == there


def test_a_cluster_serves_a_day_as_one_process_does(cluster: Any) -> None:
    """Every time and outcome of every request of every policy, to the last bit."""
    of_day = DayAsked(profile=PEAKS, span=600.0, cold_start=ColdStart(rest=60.0))
    design = DayDesign(request=REQUEST, deployment=assemble(REQUEST), question=question(), asked=of_day)
    (here,), (there,) = (simulate_days([design], jobs=jobs) for jobs in (1, cluster.scheduler_address))
    for one, two in zip(here.policies, there.policies, strict=True):
        require_same(one, two)
