"""Steps out of what a Prometheus server kept, by hand: each server by itself, its restarts passed over."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import InputFileError
from inferplan.estimate.deployment import Deployment
from inferplan.learning.observed import Recorded, StepLoad
from inferplan.learning.records import read_records
from tests.measuring.kept import answer, series

INFO = {"num_gpu_blocks": "10000", "block_size": "16"}


@cache
def deployed() -> Deployment:
    return assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", quant="bf16", engine="vllm"))


def server(name: str, steps: list[int], tokens: list[int], seconds: list[float], running: str) -> list[dict[str, Any]]:
    """Scrapes each 15 s of a vLLM that only decodes: counters of steps, tokens and the seconds between them."""
    labels = {"instance": name, "job": "vllm", "model_name": "m", "engine": "0"}
    at = [1000.0 + 15 * index for index in range(len(steps))]

    def of(metric: str, values: list[Any]) -> dict[str, Any]:
        return series(f"vllm:{metric}", [(when, str(value)) for when, value in zip(at, values)], **labels)

    same = len(steps)
    return [
        of("iteration_tokens_total_count", steps),
        of("inter_token_latency_seconds_count", tokens),
        of("inter_token_latency_seconds_sum", seconds),
        of("num_requests_running", [running] * same),
        of("time_to_first_token_seconds_count", [5] * same),
        of("prompt_tokens_total", [5000] * same),
        of("kv_cache_usage_perc", ["0.1"] * same),
        {"metric": {"__name__": "vllm:cache_config_info", **INFO, **labels}, "values": [[when, "1"] for when in at]},
    ]


def read(folder: Path, *texts: str) -> Recorded:
    paths = [folder / f"{number}.json" for number in range(len(texts))]
    for path, text in zip(paths, texts):
        path.write_text(text, encoding="utf-8")
    (found,) = read_records([str(path) for path in paths], deployed())
    return found


def test_windows_of_two_replicas_with_a_restart(tmp_path: Path) -> None:
    """a: 1,000 steps of 8 sequences, whose 8,000 gaps take 96 s: 12 ms each; a tenth of 160,000 tokens over 8 is 2,000.
    b: 500 steps of 4 with gaps of 10 ms; it then starts anew, counts 100 steps, and 600 more with gaps of 11 ms.
    """
    found = read(
        tmp_path,
        answer(
            server("a:8000", [2000, 3000], [16_000, 24_000], [200.0, 296.0], "8")
            + server("b:8000", [700, 1200, 100, 700], [2800, 4800, 400, 2800], [28.0, 48.0, 4.4, 30.8], "4")
        ),
    )
    assert [round(one.seconds, 9) for one in found.observed] == [0.012, 0.010, 0.011]
    assert [one.steps for one in found.observed] == [
        ((1.0, StepLoad(decodes=8.0, context=2000.0)),),
        ((1.0, StepLoad(decodes=4.0, context=4000.0)),),
        ((1.0, StepLoad(decodes=4.0, context=4000.0)),),
    ]
    assert [count for why, count in found.passed_over.items() if "restarted" in why] == [1]
    assert found.observed[1].where.endswith("b:8000, 1970-01-01 00:16:55")


def test_a_file_for_each_metric_is_the_same_as_one_for_all(tmp_path: Path) -> None:
    every = server("a:8000", [2000, 3000, 4000], [16_000, 24_000, 32_000], [200.0, 296.0, 392.0], "8")
    apart = read(tmp_path, *(answer([one]) for one in every))
    whole = read(tmp_path, answer(every))
    assert [one.seconds for one in apart.observed] == [one.seconds for one in whole.observed] == [0.012] * 2


@pytest.mark.parametrize("metric", ["iteration_tokens_total_count", "inter_token_latency_seconds_sum"])
def test_a_metric_that_is_missing_is_named(metric: str, tmp_path: Path) -> None:
    every = server("a:8000", [2000, 3000], [16_000, 24_000], [200.0, 296.0], "8")
    left = [one for one in every if one["metric"]["__name__"] != f"vllm:{metric}"]
    with pytest.raises(InputFileError) as refused:
        read(tmp_path, answer(left))
    assert f"vllm:{metric}" in refused.value.render()


def test_one_moment_of_two_servers_is_no_window(tmp_path: Path) -> None:
    """Their counters are not those of one server at two times."""
    every = server("a:8000", [2000], [16_000], [200.0], "8") + server("b:8000", [3000], [24_000], [296.0], "8")
    with pytest.raises(InputFileError) as refused:
        read(tmp_path, answer(every))
    assert "1 scrape" in refused.value.render()
