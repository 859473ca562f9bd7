"""The host as an input: given in seconds, and read from runs of one user."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inferplan.answers.explain.explainer import Explainer
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.host_times import HostTimes
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.phase import decode_cycle
from inferplan.serving.launches import eager_floors
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import ClosedLoop, Lengths, Traffic
from inferplan.validation.host import MOST_TIMES, host_of
from inferplan.validation.importers import read_file
from inferplan.validation.run import Pricing, price_rows
from inferplan.work.parallel import Parallelism
from tests.cases import for_each

EIGHT = Request(model="llama-3.1-8b", gpu="h100-sxm")
HEAD = "model,gpu,engine,engine_version,weights,tp,isl,osl,concurrency,requests,ttft_ms,tpot_ms\n"


def on_host(times: HostTimes, request: Request = EIGHT) -> Deployment:
    return assemble(replace(request, host=times))


def first_token(deployment: Deployment, prompt: float) -> float:
    """Of one user, mean over six requests."""
    load = Traffic(
        arrivals=ClosedLoop(concurrency=1), prompt=Lengths(mean=prompt), output=Lengths(mean=4), requests_count=6
    )
    return float(simulate(deployment, load).ttft.mean())


def test_a_request_waits_for_its_client_and_server() -> None:
    """Two requests that differ in nothing else differ by the seconds that were said."""
    fast, slow = on_host(HostTimes(request=5e-3)), on_host(HostTimes(request=25e-3))
    assert first_token(slow, 256) - first_token(fast, 256) == pytest.approx(20e-3, rel=1e-9)


def test_a_step_takes_its_host() -> None:
    usual, slow = assemble(EIGHT), on_host(HostTimes(step=3e-3))
    added = 3e-3 - usual.step.host
    assert float(decode_cycle(slow, 8.0, 512.0).time - decode_cycle(usual, 8.0, 512.0).time) == pytest.approx(added)
    assert slow.step.sequence == usual.step.sequence


@for_each(("model", "layers"), [("llama-3.1-8b", 32), ("deepseek-v2-lite", 27)])
def test_a_layer_is_launched_in_the_seconds_said(model: str, layers: int) -> None:
    """Latent attention has no factor beside a layer that was measured, whose kernels were all in it."""
    for stages in (1, 2):
        request = Request(model=model, gpu="h100-sxm", engine="sglang", parallel=Parallelism(pp=stages))
        floors = eager_floors(on_host(HostTimes(layer=1e-3), request))
        assert len(floors) == stages and sum(floors) == pytest.approx(layers * 1e-3)


def test_where_no_host_is_counted_it_is_refused() -> None:
    with pytest.raises(UsageError, match="--host-layer would change nothing"):
        on_host(HostTimes(layer=1e-3), replace(EIGHT, ideal=True))


def test_constants_with_a_step_of_their_own_take_no_other() -> None:
    request = Request(model="llama-3.1-8b", gpu="rtx-4090", quant="q4_k_m", engine="llama.cpp")
    with pytest.raises(UsageError, match="--host-step would change nothing"):
        on_host(HostTimes(step=1e-3), request)
    assert on_host(HostTimes(request=1e-3), request).engine.serving.latency == 1e-3


def test_explain_says_where_the_seconds_are_from() -> None:
    request = replace(EIGHT, host=HostTimes(step=1e-3, layer=1e-3, request=1e-3))
    explained = Explainer(request=request, load=StaticLoad(batch=1.0, prompt=1024.0, output=8.0))
    places = {entry.origin for name in ("tpot", "ttft_at_server") for entry in explained.explain(name).inputs}
    assert {"--host-request", "--host-layer"} <= places
    assert "--host-step" in {entry.origin for entry in explained.explain("decode.host").inputs}


def rows(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "one.csv"
    path.write_text(HEAD + "\n".join(lines) + "\n")
    return path


def line(prompt: int, seconds: float, users: int = 1, model: str = "llama-3.1-8b") -> str:
    return f"{model},h100-sxm,vllm,0.33.0,bf16,1,{prompt},4,{users},6,{seconds * 1e3!r},7"


def found(path: Path):  # type: ignore[no-untyped-def]
    return host_of(price_rows(read_file(path, {})[1], Pricing()))


def test_runs_of_one_user_tell_the_host_that_they_ran_on(tmp_path: Path) -> None:
    """First tokens of a host that takes 0.4 times what the one on file takes, of two prompts; a run of more users has
    no part in it."""
    usual = assemble(EIGHT)
    serving = usual.engine.serving
    fast = on_host(
        HostTimes(step=0.4 * usual.step.host, layer=0.4 * serving.eager_layer, request=0.4 * serving.latency)
    )
    lines = [line(prompt, first_token(fast, prompt)) for prompt in (256, 1024)]
    one = found(rows(tmp_path, *lines, line(256, 9.0, users=4)))
    assert one.times == pytest.approx(0.4, rel=2e-3)
    assert one.host.request == pytest.approx(0.4 * serving.latency, rel=5e-3)
    assert [run.predicted for run in one.runs] == pytest.approx([run.measured for run in one.runs], rel=1e-3)
    assert [reason for _, reason in one.left_out] == ["not of one user (concurrency 1)"]


def test_two_runs_that_disagree_are_met_in_the_middle(tmp_path: Path) -> None:
    """Of equal prompts, measured 20 and 45 ms: predicted at the root of both, by a host of three digits: with two parts
    of it rounded by up to 0.5 % one way and one the other, some 0.1 % beside it."""
    one = found(rows(tmp_path, line(256, 20e-3), line(256, 45e-3)))
    assert [run.predicted for run in one.runs] == pytest.approx([30e-3] * 2, rel=2e-3)


@for_each(
    ("lines", "said"),
    [
        ([line(256, 30e-3, users=4)], "no run shows the times of the host"),
        ([line(256, 30e-3), line(256, 30e-3, model="qwen3-8b")], "one deployment, not 2"),
        ([line(256, 12.0)], "no host explains"),
        ([line(8192, 0.2)], "no host explains"),
    ],
)
def test_what_says_nothing_of_a_host_is_refused(tmp_path: Path, lines: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        found(rows(tmp_path, *lines))
    assert MOST_TIMES == 16.0
