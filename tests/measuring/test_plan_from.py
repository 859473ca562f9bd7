"""A plan that begins from a running server, on servers of known times.

They take 1.3 times as long as is predicted for each load, so that the plan is that of a factor of 1.3 which was set by
hand: an anchor of one run and no doubt, whose mean error is ln 1.3 at every load.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from inferplan.validation.predict import predict_run
from inferplan.validation.deploy import deployment_of
from inferplan.validation.rows import row_of
from tests.cli.conftest import Run, run  # noqa: F401
from tests.measuring.reading import Read, clock
from tests.measuring.wire import served

FACTS = {"model": "llama-3.1-8b", "gpu": "l4", "engine": "vllm", "engine_version": "0.20.1", "precision": "native", "tp": "1"}
VLLM = {"id": "meta-llama/Llama-3.1-8B-Instruct", "owned_by": "vllm", "root": "meta-llama/Llama-3.1-8B-Instruct"}
LOAD = ("--gpu", "l4", "--tp", "1", "--quant", "native", "--prompt", "512", "--output", "128")
ASKED = ("plan", "llama-3.1-8b", *LOAD, "--rate", "12", "--ttft", "2s", "--tpot", "120ms", "--format", "json")


@cache
def predicted(rate: float, prompt: float, output: float) -> tuple[float, float]:
    """Mean TTFT and TPOT of an open loop, without an anchor."""
    row = row_of("own", {**FACTS, "isl": str(prompt), "osl": str(output), "rate_per_s": str(rate)}, {})
    assert row.run is not None, row.refused
    found = predict_run(row.run, deployment_of(row.run)[0])
    assert found.ttft and found.tpot
    return found.ttft, found.tpot


class Counted:
    """What a vLLM server counts at so many requests a second, each ``slow`` times as long as predicted."""

    def __init__(self, rates: list[float], slow: float = 1.3, every: float = 5.0) -> None:
        self.rates, self.slow, self.every = rates, slow, every

    def __call__(self, number: int) -> str:
        sums = dict.fromkeys(("requests", "ttft", "gaps", "gap", "prompt", "output"), 0.0)
        for scrape in range(number):
            rate = self.rates[min(scrape // 6, len(self.rates) - 1)]
            ttft, tpot = (self.slow * one for one in predicted(rate, 512, 128))
            requests = rate * self.every
            sums["requests"] += requests
            sums["ttft"] += requests * ttft
            sums["gaps"] += requests * 127
            sums["gap"] += requests * 127 * tpot
            sums["prompt"] += requests * 512
            sums["output"] += requests * 128
        series = {
            "vllm:num_requests_running": 3,
            "vllm:num_requests_waiting": 0,
            "vllm:time_to_first_token_seconds_count": sums["requests"],
            "vllm:time_to_first_token_seconds_sum": sums["ttft"],
            "vllm:inter_token_latency_seconds_count": sums["gaps"],
            "vllm:inter_token_latency_seconds_sum": sums["gap"],
            "vllm:request_success_total": sums["requests"],
            "vllm:prompt_tokens_total": sums["prompt"],
            "vllm:request_generation_tokens_sum": sums["output"],
        }
        return "".join(f'{name}{{engine="0"}} {value!r}\n' for name, value in series.items())


RATES = [0.8, 1.2, 1.6, 2.0, 1.0, 1.4]


def by_hand(folder: Path, own: Path, ratio: float) -> Path:
    """The anchor of the same system with a factor that is the same at all loads."""
    from math import log

    anchor = yaml.safe_load(own.read_text("utf-8"))
    for metric in ("ttft", "tpot"):
        anchor["process"][metric] |= {"shared": 10.0, "local": 0.0, "noise": 0.001}
    row = {"users": 8.0, "prompt": 512.0, "output": 128.0, "ttft_ln_ratio": log(ratio), "tpot_ln_ratio": log(ratio)}
    path = folder / f"{ratio}.yaml"
    path.write_text(yaml.safe_dump({**anchor, "rows": [row], "provenance": {}}), encoding="utf-8")
    return path


def test_try(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    clock(monkeypatch)
    with served(Read(Counted(RATES), models=(VLLM,), pages={"/version": {"version": "0.20.1"}})) as server:
        done = run(*ASKED, "--from", server.url, "--anchor-out", "own.yaml")
    print(done.err)
    plain = run(*ASKED, "--engine", "vllm@0.20.1", "--aggregated")
    hand = run(*ASKED, "--engine", "vllm@0.20.1", "--anchor", str(by_hand(tmp_path, Path("own.yaml"), 1.3)))
    one = run(*ASKED, "--engine", "vllm@0.20.1", "--anchor", str(by_hand(tmp_path, Path("own.yaml"), 1.0)))
    for x in (done, plain, hand, one):
        print(x.code, x.err[-500:])
        if x.code==0:
            print({k: x.json["plan"][k] for k in ("replicas","devices","ttft_s","tpot_s")}, x.json["anchor"])
    print(server.asked[:5], len(server.asked))
    print(Path("own.yaml").read_text())
    assert 0
