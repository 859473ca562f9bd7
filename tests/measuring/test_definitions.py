"""Latencies as other clients define them: two replies by hand, of 3 and of 9 tokens.

The first takes 100 ms to its first token and 20 ms to each further one; the second 200 and 40.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferplan.measuring.client import Reply
from inferplan.measuring.definitions import DEFINITIONS, Tool, statistics
from tests.measuring.stand_in import StandIn
from tests.measuring.wire import served

SHORT = Reply(sent=1.0, ended=1.15, times=(1.1, 1.12, 1.14), prompt=8, output=3)
LONG = Reply(sent=2.0, ended=2.53, times=tuple(2.2 + 0.04 * n for n in range(9)), prompt=8, output=9)
REPLIES = [LONG, SHORT]


def of(tool: Tool, name: str) -> dict[str, float]:
    (one,) = [one for one in DEFINITIONS[tool] if one.name == name]
    return statistics(tool, one.values(REPLIES))


def test_means_by_hand() -> None:
    """GuideLLM's TPOT: (140 + 520)/(3 + 9) = 55 ms, its ITL (2 x 20 + 8 x 40)/10 = 36 ms; others weight both alike."""
    expected: list[tuple[Tool, str, float]] = [
        ("vllm", "ttft", 0.150),
        ("vllm", "tpot", 0.030),
        ("vllm", "itl", 0.036),  # two gaps of 20 ms and eight of 40
        ("vllm", "e2el", 0.330),
        ("guidellm", "time_to_first_token", 0.150),
        ("guidellm", "time_per_output_token", 0.055),
        ("guidellm", "inter_token_latency", 0.036),
        ("guidellm", "request_latency", 0.340),  # to the end of the stream: 150 and 530 ms
        ("aiperf", "time_to_first_token", 0.150),
        ("aiperf", "time_to_second_token", 0.030),
        ("aiperf", "inter_token_latency", 0.030),
        ("aiperf", "inter_chunk_latency", 0.036),
        ("aiperf", "request_latency", 0.330),
        ("genai-perf", "time_to_first_token", 0.150),
        ("genai-perf", "inter_token_latency", 0.030),
        ("genai-perf", "request_latency", 0.330),
    ]
    assert [(tool, name) for tool, name, _ in expected] == [
        (tool, one.name) for tool, found in DEFINITIONS.items() for one in found
    ]
    for tool, name, mean in expected:
        assert of(tool, name)["mean"] == pytest.approx(mean), (tool, name)


def test_percentiles_by_hand() -> None:
    """Of 20 and 40 ms: the middle is 30 on a straight line; by weights of 2 and 8 the half is reached at 40."""
    assert of("vllm", "tpot")["median"] == pytest.approx(0.030)
    assert of("vllm", "tpot")["p90"] == pytest.approx(0.038)
    assert of("guidellm", "inter_token_latency")["median"] == pytest.approx(0.040)
    assert of("guidellm", "time_to_first_token")["median"] == pytest.approx(0.100)  # half of the replies
    assert of("guidellm", "time_to_first_token")["p90"] == pytest.approx(0.200)
    many = [(float(value), 1.0) for value in range(1, 9)]
    assert [statistics("guidellm", many)[name] for name in ("median", "p90")] == [4.0, 8.0]
    assert [statistics("aiperf", many)[name] for name in ("median", "p90")] == pytest.approx([4.5, 7.3])
    assert statistics("vllm", []) == {}


def test_replies_that_no_definition_takes() -> None:
    one = Reply(sent=0.0, ended=0.2, times=(0.1,), prompt=8, output=1)
    values = {name: found for name, _, found in DEFINITIONS["vllm"]}
    assert values["tpot"]([one]) == values["itl"]([one]) == []
    assert values["ttft"]([one]) == [(0.1, 1.0)]


def test_the_report_of_a_run_has_them(call: Callable[..., Any]) -> None:
    """What vLLM's definitions say of replies of one token a piece is what the row says."""
    small = ("--lengths", "64", "--concurrency", "1", "--prompt", "64", "--output", "4", "--definition")
    with served(StandIn(first=0.02)) as server:
        code, out, err = call(server.url, *small, "vllm", "--out", "own.csv", "--format", "json")
    assert code == 0, err
    found = json.loads(out)["defined_by"]
    (row,) = csv.DictReader(io.StringIO(Path("own.csv").read_text("utf-8")))
    assert found["client"] == "vllm"
    assert [one["name"] for one in found["rows"]] == ["ttft", "tpot", "itl", "e2el"]
    for one in found["rows"][:2]:
        assert one["mean_s"] * 1e3 == pytest.approx(float(row[f"{one['name']}_mean_ms"]), rel=1e-4)
        assert one["median_s"] * 1e3 == pytest.approx(float(row[f"{one['name']}_median_ms"]), rel=1e-4)
    with served(StandIn(fast=True)) as server:
        code, out, err = call(server.url, *small, "guidellm")
    assert "the same replies by the definitions of guidellm" in out and "(tn - s)/n, weight n" in out
    Path("plan.json").write_text("{}", encoding="utf-8")
    code, _, err = call("plan.json", "--url", "http://localhost:9", "--definition", "vllm")
    assert code == 2 and "--definition" in err


def test_percentiles_of_many_values() -> None:
    """1, 2, 3 ... 1,024: half of them are reached at the 512th by weight, between that and the next on a line."""
    values = [(float(number), 1.0) for number in range(1024, 0, -1)]
    weighed, plain = statistics("guidellm", values), statistics("vllm", values)
    assert (weighed["mean"], weighed["median"], weighed["p90"], weighed["p99"]) == (512.5, 512.0, 922.0, 1014.0)
    assert (plain["median"], plain["p90"]) == (512.5, pytest.approx(1 + 0.9 * 1023))
    assert statistics("guidellm", [(7.0, 3.0)])["p99"] == 7.0 and statistics("vllm", []) == {}
