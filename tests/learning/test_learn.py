"""Factors learned from records of a server of known constants, in each form in which engines write them.

The server's steps take what the simulator's tables say (:mod:`inferplan.serving.step_times`) with other constants, and
noise; the fit prices them by the roofline's own rounds. What comes back has to be the constants that went in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import InfeasibleError, InputFileError, ToleranceError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.learning.document import learned_yaml
from inferplan.learning.factors import Kernels
from inferplan.learning.fit import Learned, learn
from inferplan.learning.records import read_records
from inferplan.work.parallel import Parallelism
from tests.learning.recorded import Recorded, Users, forward_pass_metrics, served, sglang_log, tables, vllm_metrics

DENSE = ("host", "sequence", "prompt", "cache")
TRUE = {"host": 0.002, "sequence": 3e-5, "prompt": 1.2, "cache": 1.3}
LOADS = [
    Users(1, 500, 200),
    Users(64, 1500, 200),
    Users(8, 3000, 100),
    Users(128, 400, 150),
    Users(24, 6000, 100),
    Users(32, 200, 300),
    Users(48, 3000, 150),
    Users(4, 6000, 300),
    Users(96, 100, 150),
    Users(16, 5000, 150),
]


@cache
def deployed(engine: str = "vllm", model: str = "llama-3.1-8b", gpu: str = "h100-sxm") -> Deployment:
    return assemble(Request(model=model, gpu=gpu, quant="bf16", engine=engine))


def recorded(
    deployment: Deployment, true: Mapping[str, float], steps: int, turns: int = 2, noise: float = 0.03
) -> list[Recorded]:
    """All loads in turn, so that the last fifth holds some of them, too."""
    times, mixed = tables(Kernels(deployment).deployed(true)), deployment.engine.batching.mixed
    loads = LOADS * turns
    return [one for n, users in enumerate(loads) for one in served(times, users, steps // len(loads), mixed, n, noise)]


def learned(path: Path, text: str, deployment: Deployment, names: tuple[str, ...] = DENSE) -> Learned:
    path.write_text(text, encoding="utf-8")
    return learn(deployment, [one.observed for one in read_records([str(path)], deployment)], names)


FORMS: list[tuple[str, int, Callable[[list[Recorded]], str]]] = [
    ("vllm", 4000, forward_pass_metrics),
    ("sglang", 16_000, sglang_log),
    ("vllm", 24_000, lambda steps: vllm_metrics(steps, 150)),
]


@pytest.mark.parametrize("engine, steps, written", FORMS, ids=["records", "sglang log", "vllm metrics"])
def test_a_server_of_known_factors_is_learned_within_three_percent(
    engine: str, steps: int, written: Callable[[list[Recorded]], str], tmp_path: Path
) -> None:
    deployment = deployed(engine)
    found = learned(tmp_path / "own.txt", written(recorded(deployment, TRUE, steps)), deployment)
    assert {name: value / TRUE[name] for name, value in found.values.items()} == pytest.approx(
        dict.fromkeys(TRUE, 1.0), abs=0.03
    )
    assert found.held_out[1].mean < 0.03  # of noise
    assert found.held_out[0].mean > 0.1


def test_experts_of_a_model_that_has_them(tmp_path: Path) -> None:
    deployment, true = deployed(model="qwen3-30b-a3b"), {**TRUE, "experts": 1.4}
    text = forward_pass_metrics(recorded(deployment, true, 4000))
    found = learned(tmp_path / "own.txt", text, deployment, (*DENSE, "experts"))
    assert {name: value / true[name] for name, value in found.values.items()} == pytest.approx(
        dict.fromkeys(true, 1.0), abs=0.03
    )
    dense = learned(tmp_path / "own.txt", forward_pass_metrics(recorded(deployed(), TRUE, 2000)), deployed(),
                    (*DENSE, "experts"))  # fmt: skip
    assert dense.absent == ("experts",)


def test_the_file_prices_steps_as_the_server_took_them(tmp_path: Path) -> None:
    """``--calibration`` of the file is what was fitted, to the digits that it holds, and no other engine takes it."""
    deployment = deployed()
    found = learned(tmp_path / "own.txt", forward_pass_metrics(recorded(deployment, TRUE, 2000)), deployment)
    file = tmp_path / "own.yaml"
    file.write_text(learned_yaml(found, ["own.txt"]), encoding="utf-8")
    asked = Request(model="llama-3.1-8b", gpu="h100-sxm", quant="bf16", engine="vllm", calibration=str(file))
    times, fitted = tables(assemble(asked)), tables(found.kernels.deployed(found.values))
    true = tables(Kernels(deployment).deployed(TRUE))
    for batch, context in ((1, 100.0), (64, 3000.0), (128, 8000.0)):
        assert times.decode(batch, context) == pytest.approx(fitted.decode(batch, context), rel=1e-9)
        assert times.decode(batch, context) == pytest.approx(true.decode(batch, context), rel=0.02)
    with pytest.raises(UsageError, match="sglang"):
        assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", engine="sglang", calibration=str(file)))


def test_a_record_of_one_load_is_refused_by_the_factors_that_it_does_not_tell(tmp_path: Path) -> None:
    """64 sequences that decode in every step: a constant second is the host's as well as that of 64 sequences."""
    deployment = deployed()
    steps = list(served(tables(deployment), Users(64, 1500, 4000), 1500, True, 1, 0.03))
    alone = [one for one in steps if not one.prompts]
    with pytest.raises(InfeasibleError) as refused:
        learned(tmp_path / "own.txt", forward_pass_metrics(alone), deployment)
    assert "host" in refused.value.what and "sequence" in refused.value.what
    assert "no prompts" in refused.value.because and "--factors" in refused.value.hint
    assert refused.value.exit_code == 3


def test_a_record_of_another_deployment_is_refused(tmp_path: Path) -> None:
    """Four ranks do their part of a step in a quarter of the time: faster than the one that is stated can be."""
    four = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", quant="bf16", parallel=Parallelism(tp=4)))
    text = forward_pass_metrics(recorded(four, {}, 600))
    with pytest.raises(InfeasibleError, match="does not fit this deployment: prompt"):
        learned(tmp_path / "own.txt", text, deployed())


def test_peaks_that_were_measured_are_not_the_fastest(tmp_path: Path) -> None:
    """Prompts a fifth faster than the peaks on file: of a datasheet nothing is, of measured ones an engine may be."""
    base = deployed()
    least = Kernels(base).least("prompt")
    text = forward_pass_metrics(recorded(base, {"prompt": 0.8 * least, "host": 0.002}, 2000))
    with pytest.raises(InfeasibleError, match="does not fit this deployment: prompt"):
        learned(tmp_path / "own.txt", text, base)
    timed = replace(base, hardware=base.hardware.model_copy(update={"measured": True}))
    found = learned(tmp_path / "own.txt", text, timed)
    assert found.values["prompt"] == pytest.approx(least)
    assert found.values["host"] == pytest.approx(0.002, rel=0.1)


def test_kernels_faster_than_on_file_are_not_the_host(tmp_path: Path) -> None:
    """Weights are read in half of the time on file, as other kernels may: no host explains it."""
    base = deployed()
    timed = replace(base, hardware=base.hardware.model_copy(update={"measured": True}))
    text = forward_pass_metrics(recorded(base, {"weights": 0.5}, 2000))
    with pytest.raises(ToleranceError) as refused:
        learned(tmp_path / "own.txt", text, timed, ("host",))
    assert "--factors weights,prompt" in refused.value.hint


def test_steps_beside_which_the_machine_did_something_else_count_less(tmp_path: Path) -> None:
    """One step in thirty takes five times as long."""
    deployment = deployed()
    steps = recorded(deployment, TRUE, 4000)
    steps = [one._replace(seconds=one.seconds * (5.0 if n % 30 == 7 else 1.0)) for n, one in enumerate(steps)]
    found = learned(tmp_path / "own.txt", forward_pass_metrics(steps), deployment)
    assert {name: value / TRUE[name] for name, value in found.values.items()} == pytest.approx(
        dict.fromkeys(TRUE, 1.0), abs=0.05
    )


def test_too_few_steps_and_ranks_beside_each_other(tmp_path: Path) -> None:
    deployment = deployed()
    steps = recorded(deployment, TRUE, 10, turns=1)
    with pytest.raises(InfeasibleError, match="10 measurements"):
        learned(tmp_path / "few.txt", forward_pass_metrics(steps), deployment)
    lines = forward_pass_metrics(steps).splitlines()
    other = [line.replace('"dp_rank": 0', '"dp_rank": 1') for line in lines]
    (tmp_path / "ranks.txt").write_text("\n".join(lines + other), encoding="utf-8")
    with pytest.raises(InputFileError, match="2 ranks"):
        read_records([str(tmp_path / "ranks.txt")], deployment)
    with pytest.raises(InputFileError, match="record 1: sum_decode_kv_tokens"):
        broken = json.loads(lines[0])
        del broken["scheduled_requests"]["sum_decode_kv_tokens"]
        (tmp_path / "broken.txt").write_text(json.dumps(broken), encoding="utf-8")
        read_records([str(tmp_path / "broken.txt")], deployment)
