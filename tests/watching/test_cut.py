"""Weeks of minutes in a file that a machine without power, or a full disk, left with cut lines; loads beyond reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inferplan.errors import InputFileError
from inferplan.reports.plan_measured import PlanFile
from inferplan.reports.watching import held_to
from inferplan.watching.counters import Histogram, Span
from inferplan.watching.record import append_span, read_spans, span_line
from inferplan.watching.twin import Load
from tests.watching.planned import plan_file

FIRST = Histogram(count=1200.0, total=60.0, within={0.1: 1100.0, float("inf"): 1200.0})
SPAN = Span(seconds=60.0, servers=2, ttft=FIRST, done=1198.0, prompts=1200.0, prompt=1.2e6, output=2.4e5, cached=6e5)


def test_a_minute_that_was_cut_costs_itself_and_the_one_behind_it_nothing(tmp_path: Path) -> None:
    """The run that comes after a cut line begins a line of its own; a version before this one wrote on behind it."""
    file, told = tmp_path / "minutes.jsonl", list[str]()
    for minute in range(3):
        append_span(file, span_line(replace(SPAN, done=float(minute)), 60.0 * minute, 0))
    whole = file.read_text()
    file.write_text(whole + whole.splitlines()[0][:70])
    append_span(file, span_line(SPAN, 300.0, 1))
    assert [at for _, at, _ in read_spans(file, told.append)] == [0.0, 60.0, 120.0, 300.0]
    assert told == [f"{file}, line 4"]
    first, *_, last = whole.splitlines(keepends=True)
    file.write_text(first[:70] + whole + last)
    assert [span.done for span, _, _ in read_spans(file, told.append)] == [1.0, 2.0, 2.0]
    assert next(read_spans(tmp_path / file.name))[0].ttft == SPAN.ttft
    file.write_text('{"seconds": 60\n' + whole)
    with pytest.raises(InputFileError, match="line 1 is not a minute"):
        list(read_spans(file))


def test_a_load_beyond_reason_is_refused_and_watching_goes_on(tmp_path: Path) -> None:
    """A counter that jumped: 10^13 requests a second are no reason to end weeks of watching."""
    twin, _ = held_to(PlanFile(str(plan_file(tmp_path))), 2)
    found = twin.predict(Load(rate=1e13, prompt=1000.0, output=200.0, servers=2))
    assert found.overloaded and "too large" in found.refused
