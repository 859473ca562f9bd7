"""Limits of time and memory, with room for a busy machine; the figures are in docs/performance.md."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.bench_simulate import TRACE, measure


def test_a_real_trace_takes_seconds_and_little_memory(shared: Path) -> None:
    result = measure("azure", shared / TRACE)
    assert result["requests"] == 19366
    assert result["cpu"] < 2.5
    assert result["mb"] < 300
