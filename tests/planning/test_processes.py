"""Parts of a plan in processes of their own: the same answer, objects that stay the same, errors that are raised."""

from __future__ import annotations

import os

import pytest

from inferplan.planning.plan import complete, plan
from inferplan.planning.processes import run_beside
from inferplan.reports.plan_record import plan_record
from inferplan.table import plain
from tests.planning.test_confidence import asked

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def test_tasks_run_beside_each_other_and_give_what_they_would_here() -> None:
    """Three tasks in two processes: the first and the third here, the second there, with the object it was given."""
    shared = object()
    first, second, third = run_beside([os.getpid, lambda: (os.getpid(), [shared]), os.getpid], 2, [shared])
    assert first == third == os.getpid() != second[0]
    assert second[1][0] is shared
    assert run_beside([os.getpid, os.getpid], 1) == [os.getpid()] * 2


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
