"""Thirty questions as somebody types them who has read README, docs/index.md and ``--help``: the command that comes
first, its exit code, and what the answer has to hold. Figures are by hand: arithmetic that stands beside them.

Three are asked back for what no program knows (exit code 2, and the whole line in the hint): how often drafts are
accepted, how long an embedding may take, and on which host experts lie.
"""

from __future__ import annotations

import json
import random
import re
import shlex
from pathlib import Path

import pytest

from tests.cases import for_each
from tests.cli.conftest import Run

QUICK = [
    # 141.1 GB in bf16 on two of 48 GB: no; 4 bits: 20 GB on each
    ("70B on two A6000", "fit llama-3.1-70b --gpu 2x-a6000", 0, ["w4a16", "native: the weights do not fit"]),
    ("which format", "ask format --model llama-3.1-70b --have 2x-h100", 0, ["native", "fp8", "int8", "w4a16"]),
    # 13.96 USD/h x 730 h / (1024 x 0.59 + 256 x 0.79 millionths) = 12,637,401
    ("an API", "cost llama-3.1-70b --gpu 4x-h100 --price h100=$3.49/h --api-price $0.59/$0.79", 0, ["12,637,401"]),
    # 3.35 TB/s over 2.0 TB/s (data sheets)
    ("is NVLink worth it", "compare llama-3.1-70b --gpu h100-pcie,h100-nvl,h100-sxm --tp 4", 0, ["bandwidth x 1.68"]),
    # 70.55e9 x 2 bytes
    ("a Mac Studio", "fit llama-3.1-70b --gpu 'Mac Studio M3 Ultra'", 0, ["141.1 GB", "--memory"]),
    ("gpt-oss on a Mac", "estimate gpt-oss-120b --gpu 'Mac Studio M3 Ultra'", 0, ["gpt-oss-120b in experts mxfp4"]),
    # vLLM issue 26191: 0.74 of first drafts are accepted
    ("drafts", "estimate llama-3.1-8b --gpu h100 --draft eagle3", 0, ["1.740 (acceptance 0.74)", "without"]),
    (
        "drafts of a 405B",
        "estimate llama-3.1-405b --gpu 8x-h200 --draft eagle3",
        2,
        ["--draft-tokens 3 --acceptance 0.7"],
    ),
    # num_nextn_predict_layers of its config is 1
    ("MTP", "estimate deepseek-v3 --gpu 8x-h200 --draft mtp", 0, ["mtp, 1 token per step", "without"]),
    # 16.06 GB of weights and 128,000 x 131 kB = 16.8 GB of cache: more than 24 GB
    ("128k on a 4090", "fit llama-3.1-8b --gpu 4090 --context 128k", 0, ["on 2 x rtx-4090 (tp 2)"]),
    # 480.2e9 x 2 bytes / 8
    ("480B on eight B200", "fit qwen3-coder-480b-a35b --gpu 8x-b200", 0, ["native", "120.1 GB"]),
    ("four 4090", "compare llama-3.1-70b --gpu 4x-4090,4x-a6000 --quant int4", 0, ["TPOT", "bandwidth x 0.762"]),
    # half of a token's 327,680 bytes lies on each card: 3,438 of them are the 0.563 GB that int4 weights leave
    (
        "70B on two 3090",
        "fit llama-3.1-70b --gpu 2x-3090 --quant int4",
        3,
        ["shorter requests, in int4", "--context 3424"],
    ),
    (
        "embeddings",
        "plan bge-m3 --rate 500 --prompt 512",
        2,
        ["hint: inferplan plan bge-m3 --rate 500 --prompt 512 --e2e 200ms"],
    ),
    # a token has 2 x 32 layers x 8 heads x 128 x 2 bytes = 131,072 of 55.84 GB
    ("what will vLLM log", "fit llama-3.1-8b --gpu h100", 0, ["GPU KV cache size: 426,048 tokens"]),
    (
        "what will it log on one",
        "fit llama-3.1-8b --gpu 1x-h100 --quant native",
        0,
        ["GPU KV cache size: 426,048 tokens"],
    ),
    ("the same under load", "simulate llama-3.1-8b --gpu h100 --rate 2 --requests 50", 0, ["of 426,051 tokens"]),
    # 4.25 bits of 70.55e9 parameters: 37.5 GB
    ("I have 48 GB", "fit --have 48GB", 0, ["llama-3.1-70b", "rtx-a6000"]),
    (
        "two 3090 at home",
        "estimate qwen3-32b --gpu 2x-3090 --quant q4",
        0,
        ["qwen3-32b in weights int4 on 2 x rtx-3090"],
    ),
    ("the same on a Mac", "estimate qwen3-32b --gpu m3-max --quant q4", 0, ["weights q4_k"]),
    (
        "eight bits",
        "estimate qwen3-32b --gpu h100 --quant q8",
        2,
        ["q8 is q8_0 where", "cannot read"],
    ),
    ("weights alone", "estimate qwen3-32b --gpu h100 --weights q4", 0, ["note: q4 is int4, or q4_k", "weights int4"]),
    # 70.55e9 x 2 bytes
    ("cold start", "estimate llama-3.1-70b --gpu 4x-h100 --cold-start", 0, ["a new replica reads 141.1 GB of weights"]),
    (
        "experts in RAM",
        "estimate gpt-oss-120b --gpu 4090 --ram 128GB",
        2,
        ["--cpu-moe-layers 36", "--host-memory 128GB"],
    ),
    ("why that long", "explain tpot llama-3.1-8b --gpu h100", 0, ["formula", "docs/concepts/two-phases.md"]),
]


@for_each(("question", "line", "code", "pieces"), QUICK)
def test_a_question_is_answered_at_the_first_try(
    question: str, line: str, code: int, pieces: list[str], run: Run
) -> None:
    said = run(*(one.strip("'") for one in re.findall(r"'[^']*'|\S+", line)))
    assert said.code == code, (question, said.err)
    assert [one for one in pieces if one not in said.out + said.err] == [], question


def test_a_slow_server(run: Run, tmp_path: Path) -> None:
    """36.4 ms a token, where 16 GB at 3.35 TB/s take 4.8 ms."""
    bench = tmp_path / "bench.json"
    measured = {"mean_ttft_ms": 310.2, "mean_tpot_ms": 36.4, "output_throughput": 424.9, "request_throughput": 1.66}
    load = {"num_prompts": 200, "completed": 200, "total_input_tokens": 204800, "total_output_tokens": 51200}
    more = {"backend": "vllm", "request_rate": "inf", "max_concurrency": 16, "duration": 120.5}
    names = {"model_id": "meta-llama/Llama-3.1-8B-Instruct", "date": "20261120-101010"}
    bench.write_text(json.dumps({**names, **load, **more, **measured}))
    said = run("ask", "slow", "--model", "llama-3.1-8b", "--have", "h100", "--server", str(bench))
    assert said.code == 0, said.err
    times = re.search(r"TPOT ([\d.]+) times", said.out)
    assert times is not None and 3 < float(times[1]) < 36.4 / 4.8 and "much slower than predicted" in said.out


PLANS = [
    (
        "disaggregation",
        "plan llama-3.1-8b --gpu h100 --workload chat --rate 20 --quant fp8 --disaggregated",
        "separate pools",
    ),
    ("a coding agent", "plan qwen3-coder-30b-a3b --gpu h100 --sessions coding-agent --people 200", "TTFT p95 < 500 ms"),
    # nobody in two conversations at a time: 2,000 / (60 s + an answer of 2.5 s)
    ("2,000 people", "plan llama-3.1-8b --gpu h100 --workload chat --people 2000", "2,000 people = 32 requests/s"),
    (
        "tenants",
        "plan llama-3.1-8b --gpu h100 --workload chat --rate 20 --loras 50",
        "50 adapters, all asked for alike",
    ),
    (
        "one is lost",
        "plan llama-3.1-8b --gpu h100 --workload chat --people 1000 --survive 1",
        "1 of 2 replicas (1 GPU), for good",
    ),
]


@for_each(("question", "line", "piece"), PLANS)
def test_a_plan_is_made_at_the_first_try(question: str, line: str, piece: str, run: Run) -> None:
    said = run(*line.split())
    assert said.code == 0 and piece in said.out, (question, said.err)


def test_how_many_people_a_gpu_and_a_budget_serve(run: Run) -> None:
    """By Little's law people over requests/s are think time and answer: 60 s and some seconds. A bill of 20 USD/h
    pays for five H100 of 3.49 USD/h, so for five times as many, give or take the rounding of settings."""
    found = []
    for words in (["--gpu", "1x-h100"], ["--gpu", "h100", "--max-cost", "20USD/h"]):
        said = run("plan", "llama-3.1-8b", "--workload", "chat", "--people", "most", "--quant", "fp8", *words)
        assert said.code == 0, said.err
        people, rate = re.search(r"([\d,]+) people = ([\d.]+) requests/s", said.out).groups()  # type: ignore[union-attr]
        found.append(float(people.replace(",", "")))
        assert 60 <= found[-1] / float(rate) <= 66
    assert found[1] / found[0] == pytest.approx(5.0, rel=0.1)


PRINTED = [
    (
        "the stranger's",
        "llama-3.3-70b --gpu h100 --rate 4 --prompt 8000 --output 500 --ttft 2s --tpot 40ms",
        ("8000", "4"),
        (2.0, 0.04),
    ),
    (
        "of a workload",
        "llama-3.3-70b --gpu h100 --workload rag --rate 20 --ttft 1s --quant fp8",
        ("4096", "20"),
        (1.0, 0.035),
    ),
]


@for_each(("question", "line", "load", "limits"), PRINTED)
def test_the_pools_that_a_plan_names_keep_the_limits_in_its_line(
    question: str, line: str, load: tuple[str, str], limits: tuple[float, float], run: Run
) -> None:
    """With the lengths that were asked for, or of the workload (configs/workloads: 4,096 and 512), the rate, the
    replicas that are named and the limits, which the run keeps; the bill is what its machines cost, and what one pool
    costs more is so by the plan that the prediction alone asks for."""
    said = run("plan", *line.split())
    found = re.search(
        r"separate pools: ([\d.]+) USD/h .*for (\d+) prefill.* \+ (\d+) decode.*prediction: ([\d.]+) USD/h.*"
        r", ([\d.]+) more; to buy: (.*); simulate them: inferplan (.*)",
        said.out,
    )
    assert found is not None, (question, said.out, said.err)
    assert float(found[5]) == pytest.approx(float(found[4]) - float(found[1]), abs=0.01)
    alone = run("plan", *line.split(), "--aggregated", "--confidence", "0.5", "--format", "json").json
    assert float(found[4]) == pytest.approx(alone["plan"]["cost"], abs=0.01)
    bought = re.findall(r"(\d+) x [^(]*\([^)]*\) at ([\d.]+) USD/h", found[6])
    assert sum(int(count) * float(price) for count, price in bought) == pytest.approx(float(found[1]), abs=0.01)
    words = shlex.split(found[7])
    ran = run(*words, "--format", "json").json
    assert (words[words.index("--prompt") + 1], words[words.index("--rate") + 1]) == load
    assert f"--prefill-replicas {found[2]} --decode-replicas {found[3]}" in " ".join(words)
    ttft, tpot = limits
    assert ran["slo"] == {"ttft_s": ttft, "tpot_s": tpot}
    assert ran["ttft_s"]["p95"] <= ttft and ran["tpot_s"]["p95"] <= tpot and ran["slo_attained"] >= 0.9


def test_a_workloads_limit_for_shorter_prompts_is_said_first(run: Run) -> None:
    """2 s for 16,384 tokens are 500 ms for 4,096: the plan costs as much as where that is typed, and less than with
    500 ms; prompts that are not much longer, and a limit that is stated, have no such line."""
    line = ["plan", "llama-3.1-8b", "--gpu", "h100", "--workload", "rag", "--rate", "1", "--aggregated"]
    first = run(*line, "--prompt", "16384").out.splitlines()[0]
    found = re.search(r"with --ttft 2s, a plan costs ([\d.]+) USD/h or less, not ([\d.]+) USD/h", first)
    assert found is not None and first.startswith("the TTFT limit of 500 ms is that of workload rag"), first
    stated = run(*line, "--prompt", "16384", "--ttft", "2s").out
    assert "that of workload" not in stated and f" {found[1]} USD/h" in stated
    assert float(found[1]) < float(found[2])
    assert "that of workload" not in run(*line, "--prompt", "8192").out


def test_a_plan_in_another_format_says_the_line_that_starts_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five people on one B200: in nvfp4, of whose checkpoint the line has the name."""
    monkeypatch.chdir(tmp_path)
    said = run("plan", "llama-3.1-70b", "--gpu", "b200", "--workload", "chat", "--people", "5")
    (line,) = re.findall(r"start it: (.*) \(it must hold", said.out)
    saved = ""
    for command in line.split(" && "):
        done = run(*shlex.split(command)[1:])
        assert done.code == 0, done.err
        saved += done.err
    assert done.out.startswith("vllm serve RedHatAI/Llama-3.1-70B-Instruct-NVFP4")
    assert "inferplan emit vllm plan.json --checkpoint RedHatAI/Llama-3.1-70B-Instruct-NVFP4" in saved


ALONE = [
    "llama-3.1-8b --gpu h100 --people 5",
    "llama-3.1-8b --gpu h100 --loras 50",
    "llama-3.1-8b --gpu h100 --survive 1",
    "llama-3.1-8b --gpu h100 --reserved 3y",
    "deepseek-v3 --gpu h200 --draft mtp",
]


@for_each("words", ALONE)
def test_an_option_alone_is_answered_with_the_line_that_works(words: str, run: Run) -> None:
    asked = run("plan", *words.split())
    assert asked.code == 2
    (line,) = re.findall(r"hint: inferplan (.*)", asked.err)
    assert line.startswith(f"plan {words}") and "--workload chat" in line
    assert run(*shlex.split(line)).code == 0


def test_agents_of_two_files_say_of_each_other(run: Run) -> None:
    """All 200 people of the workload work all through the hour; 200 x 25 x 0.15 / 3600 sessions begin each second."""
    words = ("plan", "llama-3.1-8b", "--gpu", "h100", "--people", "200", "--quant", "fp8", "--tp", "1")
    mean, grown = run(*words, "--workload", "agent"), run(*words, "--sessions", "coding-agent")
    assert "another answer: --sessions coding-agent" in mean.out and "all of them" in mean.out
    assert "another answer: --workload agent" in grown.out and "0.208 sessions begin per second" in grown.out


def test_an_old_log_and_the_command_that_starts_its_plan(run: Run, tmp_path: Path) -> None:
    """Four requests a second, drawn here."""
    draw, second, lines = random.Random(1), 0.0, ["timestamp,prompt_tokens,completion_tokens"]
    for _ in range(2000):
        second += draw.expovariate(4)
        at = f"2026-11-16T08:{int(second // 60) % 60:02d}:{second % 60:09.6f}"
        lines.append(f"{at},{int(draw.lognormvariate(6.5, 0.7)) + 1},{int(draw.lognormvariate(5, 0.7)) + 1}")
    (tmp_path / "log.csv").write_text("\n".join(lines))
    kept = str(tmp_path / "plan.json")
    said = run(
        "plan", "llama-3.1-8b", "--gpu", "h100", "--trace", str(tmp_path / "log.csv"), "--ttft", "1s", "-o", kept
    )
    assert said.code == 0, said.err
    rate = json.loads(Path(kept).read_text())["question"]["load"]["requests_per_s"]
    assert rate == pytest.approx(4.0, rel=0.05)
    started = run("emit", "vllm", kept)
    assert started.code == 0 and started.out.startswith("vllm serve meta-llama/Llama-3.1-8B")


def test_an_api_beside_own_gpus(run: Run) -> None:
    """1,155 tokens in and 211 out of each of N/(60 s + R) requests, at 0.59 and 0.79 USD per million, in 730 hours."""
    said = run(
        "plan", "llama-3.1-8b", "--gpu", "h100", "--workload", "chat", "--people", "500", "--api-price", "0.59/0.79"
    )
    charged = re.search(r"an API at 0.59/0.79 for this load, all month\s+([\d,]+) USD", said.out)
    assert charged is not None
    most = 500 / 60 * 730 * 3600 * (1155 * 0.59 + 211 * 0.79) / 1e6
    assert 0.93 * most <= float(charged[1].replace(",", "")) <= most


def test_engines_are_not_ranked_within_their_errors(run: Run) -> None:
    """docs/accuracy-plans.md has no pair of engines, and vLLM alone is measured on three systems of dense layers."""
    said = run("compare", "llama-3.1-8b", "--gpu", "h100", "--engine", "vllm", "--vs", "engine=sglang").out
    assert re.search(r"^error of vllm: 80 % of held-out measurements lie within .*TPOT", said, re.M)
    assert re.search(r"^error of sglang: unknown;", said, re.M)
    assert "no ranking of vllm 0.33, sglang 0.5 within these errors" in said
    assert "no ranking" not in run("compare", "llama-3.1-8b", "--gpu", "h100,l40s").out
