"""plan, report, emit, sweep, compare, recipe, cost and plot as a user types them."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from inferplan.cli import cli
from inferplan.errors import InferplanError, ToleranceError, UsageError
from inferplan.reports.plan_against import CostChange, cost_change, read_earlier
from tests.cases import for_each
from tests.cli.conftest import Run

QUESTION = ["--rate", "20", "--prompt", "1024", "--output", "200", "--ttft", "800ms", "--tpot", "50ms"]
SMALL = ["--gpu", "h100-sxm,l40s", "--most", "2", "--aggregated"]
CHROMIUM = next(
    (p for n in ("chromium", "chromium-browser", "google-chrome", "chrome") if (p := shutil.which(n))), None
)


APART = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
"""Before click 8.2 what went to stderr stood in stdout too, unless one asked."""


def run(*words: str) -> str:
    """stdout of a command that must succeed."""
    result = CliRunner(**APART).invoke(cli, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*words: str) -> InferplanError:
    result = CliRunner().invoke(cli, list(words))
    assert isinstance(result.exception, InferplanError), result.output
    assert not result.stdout
    return result.exception


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    run("plan", "llama-3.1-8b", *QUESTION, *SMALL, "-o", str(path))
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "plan.html"
    run("report", "llama-3.1-8b", *QUESTION, *SMALL, "-o", str(path))
    return path


@pytest.mark.slow
def test_a_plan_says_how_far_it_is_where_somebody_looks(tmp_path: Path) -> None:
    """On stderr of a terminal; nothing of it on stdout, and nothing where stderr is a pipe (other tests see that)."""
    ours, theirs = pty.openpty()
    words = ["plan", "llama-3.1-8b", *QUESTION, "--gpu", "h100-sxm", "--most", "1", "--format", "json"]
    seen: list[bytes] = []

    def read() -> (
        None
    ):  # while it is written: a terminal that nobody reads holds a few kilobytes and then stops its writer
        with contextlib.suppress(OSError):  # Linux ends a terminal so
            while part := os.read(ours, 65_536):
                seen.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "inferplan", *words], stderr=theirs, stdout=subprocess.PIPE, check=True, timeout=600
        )
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    assert b"100%" in b"".join(seen)
    assert json.loads(done.stdout)["plan"]


def test_a_plan_says_what_to_buy_and_what_it_rests_on(planned: Path) -> None:
    record: dict[str, Any] = json.loads(planned.read_text())
    assert record["schema_version"] == 2
    assert record["plan"]["ttft_s"] <= 0.8
    assert record["plan"]["tpot_s"] <= 0.05
    assert record["cost"]["price_source"] == "runpod-secure"
    assert record["cost"]["list_price_source"] == "aws-us-east-1"
    assert record["cost"]["price_date"].startswith("2026-")
    terms = {one["term"]: one["per_hour"] for one in record["terms"]}
    assert terms["on-demand"] == pytest.approx(record["cost"]["per_hour"])
    each = {one["term"]: one["per_gpu_hour"] for one in record["terms"]}
    assert each["reserved, 3 years"] == pytest.approx(23.777 / 8)  # of aws-us-east-1, which lets 8 at a time
    assert record["rejected"]
    text = run("plan", "llama-3.1-8b", *QUESTION, *SMALL)
    for word in ("bottleneck", "candidates", "basis:", "to buy: ", "start each replica: vllm serve"):
        assert word in text


@for_each("target", ["vllm", "k8s"])
def test_a_plan_is_emitted(planned: Path, target: str) -> None:
    text = run("emit", target, str(planned))
    record = json.loads(planned.read_text())["plan"]
    if target == "vllm":
        assert text.count("\n") == 1
        assert text.strip() == record["launch"]
    else:
        workload, service = yaml.safe_load_all(text)
        assert workload["spec"]["replicas"] == record["replicas"]
        assert service["kind"] == "Service"


def test_emit_needs_a_deployment_and_its_engine(planned: Path, tmp_path: Path) -> None:
    assert "--gpu is missing" in refused("emit", "vllm", "llama-3.1-8b").what
    assert refused("emit", "sglang", str(planned)).exit_code == 2
    assert refused("emit", "vllm", str(tmp_path / "none.json")).exit_code == 4
    line = run("emit", "sglang", "llama-3.1-8b", "--gpu", "h100-sxm", "--context", "8192", "--max-num-seqs", "64")
    assert "--max-running-requests 64" in line
    assert "no checkpoint is named" in refused("emit", "vllm", "llama-3.1-8b", "--gpu", "h100-sxm", "--quantised").what


ALONE = {"tp": 1, "pp": 1, "ep": 1, "dp": 1, "cp": 1, "replicas": 1}


def rewritten(planned: Path, path: Path, **changes: Any) -> str:
    """A plan's file with fields of its deployment changed."""
    record = json.loads(planned.read_text())
    record["plan"]["deployment"] |= changes
    path.write_text(json.dumps(record))
    return str(path)


@for_each("target", ["vllm", "k8s"])
def test_pools_of_a_plan_are_emitted(planned: Path, tmp_path: Path, target: str) -> None:
    text = run("emit", target, rewritten(planned, tmp_path / "apart.json", pools={"prefill": 2, "decode": 3}))
    slots = json.loads(planned.read_text())["plan"]["max_num_seqs"]
    if target == "vllm":
        assert text.count(f"--max-num-seqs {slots} ") == 2
        assert text.count("--prefill ") == 2
    else:
        sizes = {
            item["metadata"]["name"]: item["spec"]["replicas"]
            for item in yaml.safe_load_all(text)
            if item["kind"] == "StatefulSet"
        }
        assert (sizes["llama-3-1-8b-prefill"], sizes["llama-3-1-8b-decode"]) == (2, 3)


def test_pools_that_are_not_alike_are_emitted_each_as_it_is(planned: Path, tmp_path: Path) -> None:
    prompts = {"gpu": "h200-sxm", "quant": None, "parallel": ALONE | {"tp": 2}, "token_budget": 4096}
    pools, decodes = {"prefill": 2, "decode": 3}, {"gpu": "h100-sxm", "parallel": ALONE}
    path = rewritten(planned, tmp_path / "two.json", pools=pools, prefill=prompts, **decodes)
    first, second = (line for line in run("emit", "vllm", path).splitlines() if "vllm serve" in line)
    assert "--tensor-parallel-size 2" in first and "--max-num-batched-tokens 4096" in first and "producer" in first
    assert "--tensor-parallel-size" not in second and "consumer" in second
    objects = {
        item["metadata"]["name"]: item["spec"]["template"]["spec"]
        for item in yaml.safe_load_all(run("emit", "k8s", path))
        if item["kind"] == "StatefulSet"
    }
    for role, product, devices in (("prefill", "NVIDIA-H200", 2), ("decode", "NVIDIA-H100-80GB-HBM3", 1)):
        pod = objects[f"llama-3-1-8b-{role}"]
        assert pod["nodeSelector"] == {"nvidia.com/gpu.product": product}
        assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": devices}


def test_a_pool_of_prompts_has_options_of_its_own(planned: Path, tmp_path: Path) -> None:
    prompts = {"gpu": "h200-sxm", "quant": None, "parallel": ALONE, "token_budget": 4096}
    own = {"max_num_seqs": 16, "options": {"flags.block_size": 32}}
    path = rewritten(planned, tmp_path / "two.json", pools={"prefill": 1, "decode": 1}, prefill=prompts | own)
    first, second = (line for line in run("emit", "vllm", path).splitlines() if "vllm serve" in line)
    assert "--max-num-seqs 16 " in first and "--block-size 32" in first
    assert "--max-num-seqs 16 " not in second and "--block-size" not in second
    older = rewritten(planned, tmp_path / "old.json", pools={"prefill": 1, "decode": 1}, prefill=prompts)
    first, second = (line for line in run("emit", "vllm", older).splitlines() if "vllm serve" in line)
    slots = json.loads(planned.read_text())["plan"]["max_num_seqs"]
    assert f"--max-num-seqs {slots} " in first


@for_each(
    ("changes", "message"),
    [
        ({"prefill": {"gpu": "h100-sxm"}}, "plan.deployment.prefill.quant: Field required"),
        ({"model": 3}, "plan.deployment.model: Input should be a valid string, not 3"),
        ({"concurrency": "abc"}, "plan.deployment.concurrency: Input should be a valid integer, not 'abc'"),
        ({"token_budget": None}, "plan.deployment.token_budget"),
        ({"token_budget": 0}, "plan.deployment.token_budget: Input should be greater than or equal to 1"),
        ({"parallel": {}}, "plan.deployment.parallel.tp: Field required"),
        ({"parallel": ALONE | {"tp": "x"}}, "plan.deployment.parallel.tp: Input should be a valid integer, not 'x'"),
        ({"parallel": ALONE | {"tp": True}}, "plan.deployment.parallel.tp: true is not a number"),
        ({"parallel": ALONE | {"xp": 2}}, "plan.deployment.parallel.xp"),
        ({"parallel": ALONE | {"tp": 0}}, "plan.deployment.parallel.tp: Input should be greater than or equal to 1"),
        ({"parallel": ALONE | {"dp": 10**400}}, "dp: more than anything here can count"),
        ({"parallel": ALONE | {"replicas": 10**7}}, "plan.deployment.parallel.replicas: Input should be less than"),
        ({"pools": {"prefill": 10**400, "decode": 1}}, "prefill: more than anything here can count"),
        ({"concurrency": 10**400}, "concurrency: more than anything here can count"),
        ({"options": {"flags.block_size": 10**400}}, "block_size"),
        ({"options": {"flags.memory_fraction": 2.0}}, "plan.deployment.options.flags.memory_fraction"),
        ({"options": {"parallel": "x"}}, "planned with parallel, which is not known"),
        ({"options": {"memory": 8}}, "plan.deployment.options.memory cannot be 8"),
        ({"options": {"generation.steps": 10**400}}, "plan.deployment.options.generation.steps cannot be a number"),
        ({"pools": {"prefill": 1}}, "plan.deployment.pools.decode"),
        ({"pools": {"prefill": 0, "decode": 1}}, "plan.deployment.pools.prefill"),
        ({"speculation": {"model": "llama-3.2-1b"}}, "plan.deployment.speculation.length"),
        ({"more": 1}, "plan.deployment.more"),
        ({"options": {"kv_offload": 8}}, "planned with kv_offload, which is not known"),
        ({"engine": "vllm x"}, "vllm"),
        ({"gpu": "nope"}, "nope"),
        ({"context_tokens": 10**9}, "llama-3.1-8b has no context of 1,000,000,000 tokens"),
    ],
)
def test_a_broken_plan_file_is_one_error(planned: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    error = refused("emit", "vllm", rewritten(planned, tmp_path / "x.json", **changes))
    assert message in error.what
    assert error.exit_code == (3 if "context_tokens" in changes else 2)


def test_what_a_plan_says_is_not_said_again(planned: Path) -> None:
    """An option of the deployment beside the file of a plan would be dropped: it is refused, a site's own are taken."""
    for option in (
        ("--tp", "1"),
        ("--kv", "fp8"),
        ("--quant", "bf16"),
        ("--engine", "vllm"),
        ("--max-num-seqs", "32"),
        ("--gpu-memory-utilization", "0.5"),
    ):
        error = refused("emit", "vllm", str(planned), "--checkpoint", "org/own", *option)
        assert f"plan.json already states {option[0]}" in error.what
        assert error.exit_code == 2
    both = refused("emit", "vllm", str(planned), "--max-num-seqs", "32", "--tp", "2")
    assert "already states --tp, --max-num-seqs" in both.what
    line = run("emit", "vllm", str(planned), "--checkpoint", "org/own", "--context", "2048", "--quantised")
    assert line.startswith("vllm serve org/own ")
    assert "--max-model-len 2048" in line
    run("emit", "k8s", str(planned), "--image", "org/vllm:1", "--cache-claim", "weights", "--gpus-per-node", "4")


@for_each("text", ["{}", "[]", '"plan"', '{"plan": 3}', '{"plan": {"deployment": []}}', "{", "[" * 99_999])
def test_what_is_no_plan_is_said_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    error = refused("emit", "vllm", str(tmp_path / "x.json"))
    assert " not " in error.what
    assert error.exit_code == 2


@for_each("version", [1, 99])
def test_a_plan_of_another_version_is_refused(planned: Path, tmp_path: Path, version: int) -> None:
    (tmp_path / "x.json").write_text(json.dumps(json.loads(planned.read_text()) | {"schema_version": version}))
    error = refused("emit", "vllm", str(tmp_path / "x.json"))
    assert f"is of version {version}, and this reads version 2" in error.what
    assert error.hint.startswith("make the plan again: inferplan plan ")
    assert error.exit_code == 2


def test_keys_that_left_with_version_1_are_gone(planned: Path) -> None:
    record = json.loads(planned.read_text())
    assert record["schema_version"] == 2
    assert "meets_at_the_slow_end" not in record
    assert "capacity_requests_per_s" not in record["plan"]
    assert {"screened_capacity_requests_per_s", "capacity"} <= record["plan"].keys()
    assert "at_the_other_confidence" in record


def test_a_plan_of_a_base_model_says_so_on_every_face(planned: Path, page: Path) -> None:
    """Nobody said what is asked of it: the base checkpoint is started, and the one for chat is named beside it."""
    plan = json.loads(planned.read_text())["plan"]
    assert plan["deployment"]["chat"] is False
    assert "meta-llama/Llama-3.1-8B-Instruct is tuned and of its shape" in plan["launch_note"]
    assert plan["launch_note"] in page.read_text()
    assert plan["launch_note"] in CliRunner(**APART).invoke(cli, ["emit", "vllm", str(planned)]).stderr
    manifest = run("emit", "k8s", str(planned))
    assert f"# {plan['launch_note']}" in manifest


def test_a_plan_for_chat_starts_what_was_tuned_for_it(tmp_path: Path) -> None:
    path, tuned = tmp_path / "plan.json", "meta-llama/Llama-3.2-1B-Instruct"
    asked = ("--rate", "1", "--workload", "chat", "--gpu", "h100-sxm", "--tp", "1", "--aggregated", "--quant", "native")
    run("plan", "llama-3.2-1b", *asked, "-o", str(path))
    plan = json.loads(path.read_text())["plan"]
    assert plan["launch"].startswith(f"vllm serve {tuned} ")
    assert plan["launch_note"].startswith(f"{tuned} is meta-llama/Llama-3.2-1B tuned")
    assert run("emit", "vllm", str(path)).startswith(f"vllm serve {tuned} ")
    base = run("emit", "vllm", str(path), "--checkpoint", "meta-llama/Llama-3.2-1B")
    assert base.startswith("vllm serve meta-llama/Llama-3.2-1B ")


@pytest.mark.slow
def test_a_plan_names_the_checkpoint_that_was_typed(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    run("plan", "meta-llama/Llama-3.1-8B-Instruct", *QUESTION, *SMALL, "-o", str(path))
    line = run("emit", "vllm", str(path))
    assert line.startswith("vllm serve meta-llama/Llama-3.1-8B-Instruct ")
    assert line.strip() == json.loads(path.read_text())["plan"]["launch"]


@pytest.mark.slow
def test_a_plan_in_a_format_that_nobody_makes_says_what_its_checkpoint_must_hold(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    run("plan", "llama-3.1-8b", *QUESTION, *SMALL, "--quant", "w4a16", "-o", str(path))
    assert json.loads(path.read_text())["plan"]["launch"] is None
    assert "the checkpoint must hold weights in int4" in refused("emit", "vllm", str(path)).what
    assert run("emit", "vllm", str(path), "--checkpoint", "org/awq").startswith("vllm serve org/awq ")
    text = run("plan", "llama-3.1-8b", *QUESTION, *SMALL, "--quant", "w4a16")
    known = "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16"  # its model card
    assert f"--checkpoint {known} (it must hold weights in int4 (AWQ or GPTQ), inputs in bf16)" in " ".join(
        text.split()
    )


def test_no_plan_is_exit_three_with_the_relaxation() -> None:
    words = ("plan", "llama-3.1-8b", "--rate", "5", "--prompt", "1k", "--output", "100", "--tpot", "100us", *SMALL)
    error = refused(*words)
    assert error.exit_code == 3
    assert error.hint.startswith("relax to --tpot")


@for_each(
    ("words", "message"),
    [
        (["--rate", "5", "--prompt", "1k", "--output", "100"], "limit on latency"),
        (["--rate", "5", "--ttft", "1s"], "lengths"),
        (["--rate", "5", "--workload", "mlperf-llama2-70b"], "has only limits"),
        (["--rate", "5", "--workload", "rl-rollout"], "limit on latency"),
        (["--rate", "5", "--workload", "chat", "--slo", "rl-rollout"], "states no limits"),
        (["--rate", "5", "--workload", "colour"], "no workload named"),
        (["--workload", "chat"], "one kind of demand"),
        (["--rate", "5", "--workload", "chat", "--engine", "nope"], "no engine"),
        (["--rate", "5", "--workload", "chat", "--quant", "nope"], "nope"),
        (
            ["--rate", "5", "--workload", "chat", "--draft-tokens", "3"],
            "--draft-tokens belongs to speculative decoding",
        ),
        (["--rate", "5", "--workload", "chat", "--acceptance", "0.7"], "--acceptance belongs to speculative decoding"),
        (["--rate", "5", "--workload", "chat", "--draft", "free", "--acceptance", "0.7"], "needs --draft-tokens"),
        (
            ["--rate", "5", "--workload", "chat", "--draft-model", "free", "--draft-tokens", "3", "--acceptance", "2"],
            "acceptance",
        ),
        (
            ["--rate", "5", "--workload", "chat", "--draft-tokens", "3", "--acceptance", "0.7"],
            "--draft-tokens belongs to speculative decoding",
        ),
        (["--rate", "5", "--workload", "chat", "--engine", "vllm@99"], "newer than every version"),
        (["--rate", "5", "--workload", "chat", "--arrivals", "gamma", "--burstiness", "0"], "--burstiness"),
        (["--prompt", "1k", "--output", "100", "--ttft", "1s"], "one kind of demand"),
        (["--rate", "5", "--prompt", "1k", "--output", "100", "--ttft", "1"], "--ttft"),
        (["--rate", "5", "--prompt", "1k", "--output", "100", "--ttft", "1s", "--utilisation", "2"], "--utilisation"),
    ],
)
def test_a_question_that_is_none(words: list[str], message: str) -> None:
    assert message in refused("plan", "llama-3.1-8b", *words).what


def asked(*words: str) -> dict[str, Any]:
    """The question that a plan answered."""
    text = run("plan", "llama-3.1-8b", *words, "--gpu", "h100-sxm", "--most", "1", "--aggregated", "--format", "json")
    record: dict[str, Any] = json.loads(text)
    return record["question"]


@pytest.mark.slow
def test_a_workload_brings_lengths_and_limits() -> None:
    question = asked("--workload", "chat", "--rate", "5")
    assert (question["prompt_tokens"], question["output_tokens"]) == (1155, 211)
    assert question["slo"] == {"ttft_s": 0.3, "tpot_s": 0.03}
    assert question["percentile"] == 95
    words = ("--workload", "chat", "--rate", "5", "--slo", "mlperf:llama2-70b-interactive", "--tpot", "35ms")
    question = asked(*words)
    assert question["slo"] == {"ttft_s": 0.45, "tpot_s": 0.035}
    assert question["percentile"] == 99
    assert asked(*words, "--percentile", "90", "--prompt", "512")["percentile"] == 90
    shared = asked("--workload", "evaluation", "--rate", "5", "--tpot", "40ms")
    assert shared["prompt_tokens"] == 550
    assert "191 of them cached" in shared["demand"]
    offline = asked("--workload", "rl-rollout", "--requests", "10k", "--deadline", "1h")
    assert offline["slo"] == {}


def test_hints_name_options_that_exist() -> None:
    words = ("--rate", "5", "--prompt", "1k", "--output", "100", "--e2e", "1ms", *SMALL)
    assert "--e2e " in refused("plan", "llama-3.1-8b", *words).hint
    error = refused("plan", "llama-3.1-8b", "--workload", "chat", "--trace", "t.csv", *SMALL)
    assert "--workload" in error.what
    assert "--slo chat" in error.hint


def test_what_stands_in_the_way_is_named() -> None:
    words = ("plan", "llama-3.1-8b", "--rate", "5", "--workload", "chat", "--most", "1", "--aggregated")
    unpriced = refused(*words, "--gpu", "rtx-4090", "--prices", "aws-us-east-1")
    assert "no price of rtx-4090 is known" in unpriced.because
    assert unpriced.hint.startswith("--price rtx-4090=")
    counted = refused(*words, "--gpu", "1x-rtx-4090", "--prices", "aws-us-east-1")  # not that there are too few
    assert "no price of rtx-4090 is known" in counted.because
    words = (*words[:-3], "--most", "3", "--aggregated")
    assert "such as: " in refused(*words, "--gpu", "h100-sxm", "--tp", "3").because


@pytest.mark.slow
def test_a_plan_for_a_device_of_ones_own_file(tmp_path: Path) -> None:
    """Announced figures lack the memory that a program sees; a copy of the file brings it, under any name."""
    words = ("plan", "llama-3.1-8b", *QUESTION, "--most", "1", "--aggregated", "--quant", "fp8")
    missing = refused(*words, "--gpu", "vr200", "--price", "vr200=9")
    assert "a program sees on vr200-preliminary is not on file" in missing.because
    assert "--gpu FILE.yaml" in missing.hint
    shipped = Path(__file__).parents[2] / "configs" / "hardware" / "vr200-preliminary.yaml"
    fields = yaml.safe_load(shipped.read_text("utf-8"))
    fields["memory"]["usable"] = "280 GB"
    fields["aliases"] = []
    for name, preliminary, suffix in (
        ("vr200-preliminary", True, "yaml"),
        ("my-card", False, "yaml"),
        ("x", False, "json"),
    ):
        path = tmp_path / f"{name}.{suffix}"
        path.write_text(yaml.safe_dump(fields | {"name": name, "preliminary": preliminary}))
        text = run(*words, "--gpu", str(path), "--price", f"{name}=9")
        assert re.search(rf"deployment +1 x {name}", text), text
        assert f"to buy: 1 x {name} at 9.00 USD/h (stated, --price)" in text


@pytest.mark.slow
def test_drafts_are_planned_and_emitted(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    draft = ("--draft-model", "llama-3.2-1b", "--draft-tokens", "3", "--acceptance", "0.8", "--confidence", "0.5")
    run("plan", "llama-3.1-70b", "--rate", "2", "--prompt", "1k", "--output", "200", "--tpot", "16ms",
        "--gpu", "h200-sxm", "--quant", "fp8", "--most", "2", "--aggregated", *draft, "-o", str(path))  # fmt: skip
    record = json.loads(path.read_text())
    assert record["speculation"]["helps"] is True
    assert record["speculation"]["break_even_batch"] > 1
    line = run("emit", "vllm", str(path))
    assert json.loads(shlex.split(line)[-1]) == {
        "method": "draft_model",
        "model": "meta-llama/Llama-3.2-1B",
        "num_speculative_tokens": 3,
        "draft_tensor_parallel_size": 1,
        "quantization": "fp8_per_tensor",
    }
    assert line.strip() == record["plan"]["launch"]


def test_pools_make_the_same_drafts(planned: Path, tmp_path: Path) -> None:
    """vLLM's NixlConnector: "P and D instances must" speculate alike."""
    drafts = {"model": "llama-3.2-1b", "length": 3, "acceptance": 0.7, "branches": 1, "basis": "given"}
    quant = json.loads(planned.read_text())["plan"]["deployment"]["quant"]
    prompts = {"gpu": "h200-sxm", "quant": quant, "parallel": ALONE | {"tp": 2}, "token_budget": 4096}
    pools = {"prefill": 1, "decode": 1}
    path = rewritten(planned, tmp_path / "two.json", pools=pools, prefill=prompts, speculation=drafts)
    found = [line for line in run("emit", "vllm", path).splitlines() if "vllm serve" in line]
    first, second = (json.loads(words[words.index("--speculative-config") + 1]) for words in map(shlex.split, found))
    assert first.pop("draft_tensor_parallel_size", None) in (None, 2)
    second.pop("draft_tensor_parallel_size", None)
    assert first == second and first["num_speculative_tokens"] == 3


def test_a_trace_is_a_demand(tmp_path: Path) -> None:
    lines = [
        json.dumps({"timestamp": i * 40, "input_length": 600 + i % 50, "output_length": 60, "hash_ids": [i]})
        for i in range(800)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines) + "\n")
    record = json.loads(
        run("plan", "llama-3.1-8b", "--trace", str(path), "--ttft", "1s", "--tpot", "60ms", *SMALL, "--format", "json")
    )
    assert record["question"]["requests_per_s"] == pytest.approx(25, rel=0.01)
    for option, value in (
        ("--rate", "50"),
        ("--arrivals", "constant"),
        ("--burstiness", "2"),
        ("--cached-prefix", "9"),
    ):
        error = refused("plan", "llama-3.1-8b", "--trace", str(path), option, value, "--ttft", "1s", *SMALL)
        assert (type(error), error.exit_code) == (UsageError, 2)
        assert option in error.what
    for option, value in (("--arrivals", "constant"), ("--burstiness", "2")):
        error = refused("simulate", "llama-3.1-8b", "--gpu", "l4", "--trace", str(path), option, value)
        assert option in error.what


@for_each("load", [("--users", "20"), ("--requests", "1k", "--deadline", "1h")])
def test_nothing_arrives_by_itself_where_users_wait_or_a_job_is_there(load: tuple[str, ...]) -> None:
    for option, value in (("--arrivals", "constant"), ("--burstiness", "2")):
        words = ("--prompt", "1k", "--output", "100", "--e2e", "9s", *SMALL)
        error = refused("plan", "llama-3.1-8b", *load, option, value, *words)
        assert (type(error), error.exit_code) == (UsageError, 2)
        assert option in error.what


def test_a_plan_for_sessions_names_no_load_that_it_refuses() -> None:
    assert "--concurrency" not in refused("plan", "llama-3.1-8b", "--sessions", "coding-agent", "--ttft", "1s").hint


def test_the_report_holds_everything_and_loads_nothing(page: Path, tmp_path: Path) -> None:
    text = tmp_path / "plan.md"
    assert "bottleneck" in run("plan", "llama-3.1-8b", *QUESTION, *SMALL, "--report", str(text))
    html = page.read_text()
    for word in ("The question", "Cost of safety", "Pictures", "Formulas", "Made by", "rest on", "<svg", "inferplan"):
        assert word in html
    for link in re.findall(r"""(?:src|href)=["']([^"']+)""", html):
        assert link.startswith("#"), "a self-contained page links to its own parts only"
    markdown = text.read_text()
    assert markdown.startswith("# Capacity plan")
    assert "data:image/svg+xml;base64," in markdown
    assert refused("report", "llama-3.1-8b", *QUESTION, *SMALL, "-o", "plan.doc").exit_code == 2


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_report_opens_in_a_browser(page: Path, tmp_path: Path) -> None:
    picture = tmp_path / "plan.png"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path}/u"]
    assert CHROMIUM is not None
    shot = [CHROMIUM, *flags, "--window-size=1000,3000", f"--screenshot={picture}", page.as_uri()]
    subprocess.run(shot, check=True, capture_output=True, timeout=90)
    assert picture.stat().st_size > 50_000
    dumped = subprocess.run(
        [CHROMIUM, *flags, "--dump-dom", page.as_uri()], check=True, capture_output=True, text=True, timeout=90
    ).stdout
    assert 'id="answer"' in dumped
    assert dumped.count("<svg") >= 5


@pytest.mark.slow
def test_kernels_of_a_flag_are_asked_for_alike_everywhere(tmp_path: Path) -> None:
    """Cutlass of vLLM was timed in fp8 on H100: other formats are ruled out with that reason, by a plan and a sweep."""
    backend = ["--gpu", "h100-sxm", "--backend", "linear=cutlass"]
    load = ["--workload", "chat", "--rate", "1", "--price", "h100-sxm=2", "--most", "1"]
    none = refused("plan", "llama-3.1-8b", *load, *backend, "--quant", "bf16")
    assert "linear=cutlass would do nothing: timed in fp8 on h100-sxm" in none.because
    path = tmp_path / "plan.json"
    run("plan", "llama-3.1-8b", *load, *backend, "--quant", "fp8", "-o", str(path))
    assert "linear by cutlass" in path.read_text()
    assert "has no flag for this: linear" in str(refused("emit", "vllm", str(path)))
    grid = ["sweep", "llama-3.1-8b", *backend, "--quant", "bf16,fp8", "--batch", "1", "--format", "json"]
    points = run(*grid, "--executor", "serial")
    said = run(*grid[:-1], "table", "--executor", "serial")
    assert "linear kernels are those timed by cutlass (--backend)" in said
    assert "linear=cutlass would do nothing" in points and '"ok"' in points
    old = CliRunner(**APART).invoke(cli, [*grid, "--backend", "serial"])
    assert old.stdout == points
    assert "--backend serial is now --executor serial" in old.stderr


def test_a_sweep_without_points_says_why() -> None:
    nope = refused("sweep", "llama-3.1-8b", "--gpu", "h100-sxm,nope", "--batch", "1")
    assert "no GPU named 'nope'" in nope.what
    for words in (["--tp", "3"], ["--tp", "3", "-o", "grid.parquet"], ["--tp", "3", "--format", "csv"]):
        nothing = refused("sweep", "llama-3.1-8b", "--gpu", "h100-sxm", *words, "--jobs", "1")
        assert nothing.exit_code == 2
        assert nothing.what == "no point of this grid can exist"
        assert nothing.because.startswith("--tp 3 does not divide")
    endless = refused("sweep", "llama-3.1-8b", "--gpu", "h100-sxm", "--batch", "1-1000000000")
    assert "1,000,000,000 counts" in endless.what


def test_sweep_compare_recipe_cost_and_plot(tmp_path: Path) -> None:
    table = run("sweep", "llama-3.1-8b", "--gpu", "h100-sxm,t4", "--quant", "fp8", "--batch", "1-4*2", "--jobs", "1")
    assert "3 points" in table
    assert "cannot exist" in table
    frame = tmp_path / "grid.csv"
    run("sweep", "llama-3.1-8b", "--gpu", "h100-sxm", "--batch", "1,8", "--jobs", "1", "-o", str(frame))
    assert len(frame.read_text().splitlines()) == 3
    printed = ["sweep", "llama-3.1-8b", "--gpu", "h100-sxm", "--batch", "1,8,500", "--jobs", "1", "--format"]
    points = json.loads(run(*printed, "json"))["points"]
    assert [point["status"] for point in points] == ["ok", "ok", "does not fit"]
    assert [json.loads(line) for line in run(*printed, "jsonl").splitlines()] == [
        {"schema_version": 2, **point} for point in points
    ]
    assert run(*printed, "markdown").splitlines()[-3].split("|")[1:3] == [" 500 ", " - "]
    assert "bandwidth x 1.43" in run("compare", "llama-3.1-8b", "--gpu", "h100-sxm,h200-sxm", "--batch", "4")
    changed = run("compare", "llama-3.1-8b", "--gpu", "h100-sxm", "--vs", "quant=fp8,tp=2", "--format", "csv")
    assert len(changed.splitlines()) == 3
    assert refused("compare", "llama-3.1-8b", "--gpu", "h100-sxm", "--vs", "colour=red").exit_code == 2
    assert "all together" in run("recipe", "llama-3.1-8b", "--gpu", "h100-sxm", "--with", "continuous-batching,fp8")
    priced = json.loads(
        run("cost", "llama-3.1-8b", "--gpu", "h100-sxm", "--price", "h100=2", "--api-price", "1/2", "--format", "json")
    )
    assert priced["cost"]["per_hour"] == 2
    assert "break_even_requests_per_month" in priced["cost"]
    assert "h100-sxm" in run("prices", "h100")
    for kind in ("roofline", "operators", "memory", "tradeoff", "rate", "timeline"):
        path = tmp_path / f"{kind}.svg"
        run("plot", kind, "llama-3.1-8b", "--gpu", "h100-sxm", "-o", str(path))
        assert path.stat().st_size > 5000
    run("plot", "kv", "llama-3.1-8b,gemma-3-27b", "-o", str(tmp_path / "kv.png"))
    assert "--gpu is missing" in refused("plot", "roofline", "llama-3.1-8b", "-o", "x.png").what


def test_emit_divides_a_replica_over_nodes_of_the_stated_size() -> None:
    asked = ("llama-3.1-70b", "--gpu", "a100-80gb-pcie", "--tp", "8", "--pp", "2")
    assert refused("emit", "sglang", *asked).hint.startswith("state it: --gpus-per-node N")
    assert run("emit", "sglang", *asked, "--gpus-per-node", "4").count("--nnodes 4 ") == 4
    objects = run("emit", "k8s", "llama-3.1-70b", "--gpu", "l40s", "--tp", "4")
    assert "# one node is taken to hold 4 x l40s" in objects
    stated = run("emit", "k8s", "llama-3.1-70b", "--gpu", "l40s", "--tp", "4", "--gpus-per-node", "8")
    assert "taken to hold" not in stated


def test_quantised_weights_are_not_served_beside_fp32() -> None:
    """vLLM's Fp8Config takes activations in bf16 and fp16 alone; the released reranker is in fp32, narrowed by vLLM."""
    fp8 = ["--weights", "fp8", "--activations", "fp8"]
    error = refused("emit", "vllm", "bge-reranker-v2-m3", "--gpu", "l4", "--quant", "fp32", *fp8)
    assert error.exit_code == 2 and "fp32" in error.because and "--quant fp16" in error.hint
    assert "--dtype float16" in run("emit", "vllm", "bge-reranker-v2-m3", "--gpu", "l4", "--quant", "fp16")
    assert "--dtype float16" in run("emit", "vllm", "bge-reranker-v2-m3", "--gpu", "l4")
    assert "--dtype float32" in run("emit", "vllm", "bge-reranker-v2-m3", "--gpu", "l4", "--quant", "fp32")


TALKS = ["--gpu", "l4", "--rate", "3", "--turns", "4", "--prompt", "100", "--output", "10", "--ttft", "1s"]
OFFLINE = ["--requests", "1k", "--deadline", "1h", "--prompt", "100", "--output", "10"]
HOST = ["--cache-tier", "host:10GB:25GB/s"]


@for_each(
    ("words", "said"),
    [
        ([*QUESTION, "--cache-tier", "host:10GB:25GB/s"], "these share none"),
        ([*TALKS, "--cache-tier", "host:0:25GB/s"], "every size of the cache tiers is 0"),
        ([*TALKS, "--cache-tier", "host:1GB,20:25GB/s"], "'20' has no unit"),
        ([*TALKS, "--cache-tier", "host:1GB:25GB/s:3EUR/GB-month"], "is in EUR and those of GPUs are in USD"),
        ([*TALKS, "--distinct-prefixes", "3"], "--distinct-prefixes is of texts"),
        ([*TALKS, "--cached-prefix", "32"], "--cached-prefix with prompts that share text"),
        ([*QUESTION, "--think-time", "3s"], "needs users, or turns that follow an answer"),
        ([*OFFLINE, "--think-time", "3s"], "no user waits for the answers"),
        ([*QUESTION, "--routing", "sticky"], "sticky routing needs conversations"),
        ([*TALKS, *HOST, "--report", "plan.md"], "such a page is not drawn yet"),
    ],
)
def test_a_plan_refuses_tiers_and_text_that_it_would_not_heed(words: list[str], said: str) -> None:
    result = CliRunner(**APART).invoke(cli, ["plan", "llama-3.1-8b", *words])
    assert isinstance(result.exception, (SystemExit, InferplanError))
    assert said in result.stderr + str(result.exception)


def test_several_sizes_are_for_a_plan() -> None:
    words = ["simulate", "llama-3.1-8b", "--gpu", "l4", "--rate", "3", "--turns", "4", "--cache-tier"]
    result = CliRunner(**APART).invoke(cli, [*words, "host:1GB,2GB:25GB/s"])
    assert "has several sizes" in result.stderr + str(result.exception)


def test_a_plan_is_held_to_the_cost_of_an_earlier_one(planned: Path, tmp_path: Path) -> None:
    data = json.loads(planned.read_text("utf-8"))
    cost, earlier = data["plan"]["cost"], tmp_path / "earlier.json"
    data["plan"]["cost"] = cost / 1.25
    earlier.write_text(json.dumps(data), encoding="utf-8")
    words = ["plan", "llama-3.1-8b", *QUESTION, *SMALL, "--against", str(earlier), "--format", "json"]
    result = CliRunner(**APART).invoke(cli, [*words, "--max-rise", "20%"])
    assert isinstance(result.exception, InferplanError) and result.exception.exit_code == 6
    assert "25.0% more" in result.exception.what
    said = json.loads(result.stdout)  # the report is written all the same
    assert said["plan"]["cost"] == cost
    rise = said["against"].pop("rise")
    assert said["against"] == {"file": str(earlier), "cost": cost / 1.25, "currency": "USD"}
    assert rise == pytest.approx(0.25, rel=1e-12)


def test_a_rise_is_the_new_cost_over_the_old(planned: Path) -> None:
    earlier = replace(read_earlier(str(planned)), cost=4.0, currency="USD", demand="a load")
    dearer = CostChange(earlier=earlier, now=5.0, demand="a load")
    assert dearer.rise == 0.25
    assert dearer.said == f"the cost is 5.00 USD/h, 25.0% more than the 4.00 USD/h of {planned}"
    dearer.require_at_most(0.25)
    with pytest.raises(ToleranceError):
        dearer.require_at_most(0.2499)
    cheaper = CostChange(earlier=earlier, now=3.0, demand="another")
    assert cheaper.rise == -0.25 and "25.0% less" in cheaper.said and cheaper.said.endswith("whose load is a load")
    cheaper.require_at_most(0.0)


def test_costs_of_two_kinds_are_not_compared(planned: Path) -> None:
    earlier = read_earlier(str(planned))
    paid = {"cost": 5.0, "tariff": SimpleNamespace(currency="USD"), "hours": None}
    demand = SimpleNamespace(describe=lambda: "a load")
    for other, change in ((earlier, {"hours": 2.0}), (replace(earlier, currency="EUR"), {}), (earlier, {"cost": None})):
        plan: Any = SimpleNamespace(
            option=SimpleNamespace(**{**paid, **change}), question=SimpleNamespace(demand=demand)
        )
        with pytest.raises(UsageError):
            cost_change(plan, other)


def test_a_named_gpu_that_is_in_no_answer_is_said_to_be_left_out(run: Run) -> None:
    """15.0 GB of matrices at 300 GB/s (data sheet of the L4) are 50 ms a token."""
    asked = [
        "plan",
        "llama-3.1-8b",
        "--rate",
        "2",
        "--prompt",
        "1024",
        "--output",
        "64",
        "--ttft",
        "1s",
        "--aggregated",
    ]
    said = run(*asked, "--gpu", "l4,h100-sxm", "--quant", "native", "--tpot", "20ms", "--tp", "1").out
    found = re.search(r"^l4 is left out: its TPOT is ([\d.]+) ms at least, over the limit of 20.0 ms", said, re.M)
    assert found is not None and 50 < float(found[1]) < 75
    assert "left out" not in run(*asked, "--gpu", "h100-sxm", "--tp", "1").out


def test_the_gpus_that_a_refusal_names_are_enough(run: Run) -> None:
    """Ten A100 would do in closed form, and are refused when they are there. What is named is planned for in each."""
    asked = "plan llama-3.1-70b --rate 6 --prompt 1500 --output 300 --ttft 1s --tpot 50ms --quant int8 --aggregated"
    named = set()
    for owned in (2, 10):
        refused = run(*asked.split(), "--gpu", f"{owned}x-a100-80gb-sxm")
        hint = re.search(r"--gpu (\d+)x-a100-80gb-sxm, or", refused.err)
        assert refused.code == 3 and hint is not None and int(hint[1]) > 10
        named.add(hint[1])
    assert len(named) == 1
    found = run(*asked.split(), "--gpu", f"{named.pop()}x-a100-80gb-sxm", "--format", "json")
    assert found.code == 0 and found.json["plan"]["verdict"] == "stable"
