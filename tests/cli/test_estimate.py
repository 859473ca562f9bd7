"""``inferplan estimate``: the contract for programs, and arithmetic that anyone can do by hand."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cases import for_each
from tests.cli.conftest import Run
from tests.conftest import fitted

README = ["estimate", "llama-3.1-8b", "--gpu", "h100-sxm", "--batch", "8", "--prompt", "1024", "--output", "256"]
WEIGHTS = 8_030_261_248 * 2
KV_PER_TOKEN = 131_072

CONTRACT: dict[str, Any] = {
    "schema_version": int,
    "memory": {
        "weights_bytes": float,
        "kv_bytes_per_token": float,
        "state_bytes_per_sequence": float,
        "kv_bytes": float,
        "activation_bytes": float,
        "reserve_bytes": float,
        "total_bytes": float,
        "usable_bytes": float,
        "fits": bool,
    },
    "prefill": {"flop": float, "bytes": float, "intensity_flop_per_byte": float, "time_s": float, "bound": str},
    "decode": {"flop": float, "bytes": float, "intensity_flop_per_byte": float, "time_s": float, "bound": str},
    "ridge_flop_per_byte": float,
    "ttft_s": float,
    "tpot_s": float,
    "e2el_s": float,
    "output_tokens_per_s": float,
    "max_batch": int,
    "max_context_tokens": int,
    "basis": str,
}


def missing(contract: dict[str, Any], record: dict[str, Any], path: str = "") -> list[str]:
    """Keys of the contract that are absent or of another type; a number may be an int or a float."""
    wrong = []
    for key, kind in contract.items():
        if key not in record:
            wrong.append(f"{path}{key} is missing")
        elif isinstance(kind, dict):
            wrong += missing(kind, record[key], f"{path}{key}.")
        elif not isinstance(record[key], (int, float) if kind is float else kind):
            wrong.append(f"{path}{key} is {record[key]!r}")
    return wrong


@pytest.fixture
def record(run: Run) -> dict[str, Any]:
    return run(*README, "--ideal", "--format", "json").json  # type: ignore[no-any-return]


def test_contract(record: dict[str, Any]) -> None:
    assert missing(CONTRACT, record) == []
    assert record["schema_version"] == 2


def test_native_formats_are_those_of_none(run: Run, record: dict[str, Any]) -> None:
    assert run(*README, "--ideal", "--quant", "native", "--format", "json").json == record


def test_every_option_that_changes_the_answer_is_in_the_record(run: Run) -> None:
    words = ["estimate", "deepseek-r1", "--gpu", "h200-sxm", "--engine", "sglang", "--dp", "8", "--ep", "8"]
    words += ["--batch", "64", "--two-batch-overlap", "--expert-skew", "0.5", "--redundant-experts", "32"]
    words += ["--gpu-memory-utilization", "0.85", "--max-num-seqs", "64", "--max-num-batched-tokens", "4096"]
    words += ["--block-size", "32", "--unfused-attention", "--all-logits"]
    record = run(*words, "--prefix-hit-rate", "0.5", "--chunk", "512", "--format", "json").json
    asked = {"two_batch_overlap": True, "expert_skew": 0.5, "gpu_memory_utilization": 0.85, "block_size": 32}
    asked |= {"max_num_seqs": 64, "max_num_batched_tokens": 4096, "unfused_attention": True}
    assert {name: record[name] for name in asked} == asked
    assert (record["parallel"]["redundant"], record["load"]["all_logits"]) == (32, True)
    assert (record["prefix_caching"]["hit_rate"], record["chunked_prefill"]["chunk_tokens"]) == (0.5, 512)


def test_users_come_before_the_batch_alone(run: Run) -> None:
    assert run(*README, "--concurrency", "64").out.startswith("Steady state of 64 users")


def test_numbers_by_hand(record: dict[str, Any]) -> None:
    """Llama-3.1-8B in bf16: 8,030,261,248 parameters, 32 x 8 x 128 x 2 x 2 bytes of KV; H100 989.4e12, 3.35e12."""
    memory = record["memory"]
    assert memory["weights_bytes"] == WEIGHTS
    assert memory["kv_bytes_per_token"] == KV_PER_TOKEN
    assert memory["kv_bytes"] == 8 * 1280 * KV_PER_TOKEN
    assert memory["usable_bytes"] == 85_020_639_232
    parts = ("weights_bytes", "kv_bytes", "activation_bytes", "reserve_bytes")
    assert memory["total_bytes"] == pytest.approx(sum(memory[part] for part in parts), rel=1e-12)
    assert record["ridge_flop_per_byte"] == pytest.approx(989.4e12 / 3.35e12)
    matrices = 8_030_261_248 - 2 * 128256 * 4096 - 65 * 4096
    pairs = 1024 * 1025 / 2
    flop = 8 * (2 * matrices * 1024 + 2 * 128256 * 4096 + 32 * 4 * pairs * 32 * 128)
    assert record["prefill"]["flop"] == pytest.approx(flop, rel=1e-12)
    keys = 1024 + 127 + 1  # the mean step of 255 has 1151 tokens behind it, and itself
    flop = 8 * (2 * matrices + 2 * 128256 * 4096 + 32 * 4 * keys * 32 * 128)
    assert record["decode"]["flop"] == pytest.approx(flop, rel=1e-12)


def test_relations(record: dict[str, Any]) -> None:
    assert record["e2el_s"] == pytest.approx(record["ttft_s"] + 255 * record["tpot_s"], rel=1e-12)
    assert record["output_tokens_per_s"] == pytest.approx(8 * 256 / record["e2el_s"], rel=1e-12)
    assert record["tpot_start_s"] <= record["tpot_s"] <= record["tpot_end_s"]
    for phase in ("prefill", "decode"):
        work = record[phase]
        assert work["intensity_flop_per_byte"] == pytest.approx(work["flop"] / work["bytes"])
        assert sum(work["operators_s"].values()) == pytest.approx(work["time_s"])
    assert record["prefill"]["bound"] == "compute"
    assert record["decode"]["bound"] == "memory"
    assert record["basis"] == "roofline"


def test_limits_are_where_it_stops_fitting(run: Run, record: dict[str, Any]) -> None:
    batch, context = record["max_batch"], record["max_context_tokens"]
    at = ["estimate", "llama-3.1-8b", "--gpu", "h100-sxm", "--ideal", "--output", "256"]
    assert run(*at, "--prompt", "1024", "--batch", str(batch)).code == 0
    assert run(*at, "--prompt", "1024", "--batch", str(batch + 1)).code == 3
    assert run(*at, "--batch", "8", "--prompt", str(context - 256)).code == 0
    assert context % 16 == 0  # whole pages of vLLM: one more does not fit
    assert run(*at, "--batch", "8", "--prompt", str(context - 256 + 16)).code in (2, 3)


def test_one_output_token_has_no_tpot(run: Run) -> None:
    record = run(*README[:-1], "1", "--format", "json").json
    assert record["tpot_s"] is None
    assert record["e2el_s"] == record["ttft_s"]
    assert record["decode"]["time_s"] > 0


def test_replicas_multiply_throughput_only(run: Run, record: dict[str, Any]) -> None:
    three = run(*README, "--ideal", "--replicas", "3", "--format", "json").json
    assert three["output_tokens_per_s"] == pytest.approx(3 * record["output_tokens_per_s"])
    assert three["ttft_s"] == record["ttft_s"]
    assert three["devices"] == 3


def test_tensor_parallelism_divides_memory(run: Run, record: dict[str, Any]) -> None:
    four = run(*README, "--ideal", "--tp", "4", "--format", "json").json
    assert four["memory"]["kv_bytes"] == record["memory"]["kv_bytes"] / 4
    norms = 65 * 4096 * 2
    assert four["memory"]["weights_bytes"] == (WEIGHTS - norms) / 4 + norms
    assert four["prefill"]["flop"] == pytest.approx(record["prefill"]["flop"], rel=1e-12)
    assert four["prefill"]["wire_bytes"] > 0 == record["prefill"]["wire_bytes"]


@for_each(
    ("quant", "weights", "kv"),
    [
        ("bf16", 2.0, 2.0),
        ("fp32", 4.0, 4.0),
        ("fp8", 1.0, 2.0),
        ("w8a8", 1.0, 2.0),
        ("int4", (4 + 20 / 128) / 8, 2.0),
        ("w4a16kv8", (4 + 20 / 128) / 8, 1.0),
        ("w8a8kv8", 1.0, 1.0),
        ("w16a16kv8", 2.0, 1.0),
    ],
)
def test_quant_sets_widths(run: Run, quant: str, weights: float, kv: float) -> None:
    """Linear layers in the narrow format; both vocabulary tables and the norms stay in 16 bits (32 with fp32)."""
    memory = run(*README, "--quant", quant, "--format", "json").json["memory"]
    wide = max(weights, 2.0)
    tables, norms = 2 * 128256 * 4096, 65 * 4096
    linear = 8_030_261_248 - tables - norms
    assert memory["weights_bytes"] == pytest.approx(linear * weights + (tables + norms) * wide, rel=1e-12)
    assert memory["kv_bytes_per_token"] == 32 * 8 * 128 * 2 * kv


def test_without_a_cache_each_token_pays_for_its_prefix(run: Run, record: dict[str, Any]) -> None:
    bare = run(*README, "--ideal", "--no-kv-cache", "--format", "json").json
    assert bare["memory"]["kv_bytes"] == 0
    assert bare["ttft_s"] == record["ttft_s"]
    assert bare["tpot_s"] > 10 * record["tpot_s"]
    assert bare["tpot_start_s"] > bare["ttft_s"]


@for_each("style", ["json", "jsonl", "csv", "markdown", "table"])
def test_every_format_parses(run: Run, tmp_path: Path, style: str) -> None:
    """On stdout and, the same, in a file named by its suffix."""
    ran = run(*README, "--format", style)
    assert ran.code == 0
    assert ran.err == ""
    if style in ("json", "jsonl"):
        assert json.loads(ran.out)["schema_version"] == 2
    elif style == "csv":
        rows = list(csv.DictReader(io.StringIO(ran.out)))
        assert float(rows[0]["memory.weights_bytes"]) == WEIGHTS
    elif style == "markdown":
        assert "| --- |" in ran.out
    suffix = {"markdown": "md", "table": "txt"}.get(style, style)
    path = tmp_path / f"report.{suffix}"
    written = run(*README, "-o", str(path))
    assert written.code == 0
    assert written.out == ""
    assert path.read_text(encoding="utf-8") == ran.out


def test_every_table_says_what_it_rests_on(run: Run) -> None:
    ran = run(*README, "--ideal")
    assert "basis: roofline" in ran.out
    assert "error:" in ran.out


@for_each("name", ["LLAMA-3.1-8B", "meta-llama/Meta-Llama-3.1-8B", "Llama-3.1-8B-Instruct"])
@for_each("suffix", ["", "-chat", "-base"])
def test_names_of_a_model(run: Run, name: str, suffix: str) -> None:
    record = run("estimate", name + suffix, "--gpu", "H100", "--format", "json").json
    assert (record["model"], record["gpu"]) == ("llama-3.1-8b", "h100-sxm")


def test_no_color(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """No escape sequence on a pipe, nor on a terminal with NO_COLOR."""
    assert "\x1b" not in run(*README).out
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "\x1b" not in run(*README).out


def test_path_instead_of_a_name(run: Run, tmp_path: Path) -> None:
    """A YAML anywhere: the catalogue's own file, copied."""
    root = Path(__file__).parents[2] / "configs"
    for kind, name in (("models", "llama-3.1-8b"), ("hardware", "h100-sxm")):
        (tmp_path / f"{name}.yaml").write_text((root / kind / f"{name}.yaml").read_text(encoding="utf-8"))
    ours = run(
        "estimate",
        str(tmp_path / "llama-3.1-8b.yaml"),
        "--gpu",
        str(tmp_path / "h100-sxm.yaml"),
        "--ideal",
        "--format",
        "json",
    )
    theirs = run("estimate", "llama-3.1-8b", "--gpu", "h100-sxm", "--ideal", "--format", "json")
    assert ours.json == theirs.json


SINGLE = ["estimate", "llama-3.1-8b", "--gpu", "h100-sxm", "--prompt", "1024", "--output", "256"]


def test_each_ttft_has_its_name(run: Run) -> None:
    """Alone and what the server adds are the TTFT at the server, which is that of one simulated user."""
    record = run(*SINGLE, "--concurrency", "1", "--format", "json").json
    parts = record["ttft_at_server_parts_s"]
    assert parts["latency_s"] == pytest.approx(fitted("vllm", "latency"))
    assert parts["front_end_s"] == pytest.approx(fitted("vllm", "front_request") + 1024 * fitted("vllm", "front_token"))
    assert parts["alone_s"] == record["ttft_s"]
    assert parts["seen_late_s"] == 0.0
    late = run(*SINGLE, "--engine", "sglang", "--format", "json").json
    assert late["ttft_at_server_parts_s"]["seen_late_s"] == pytest.approx(late["tpot_start_s"], rel=1e-9)
    assert sum(parts.values()) == pytest.approx(record["ttft_at_server_s"])
    assert record["steady_state"]["ttft_s"] == pytest.approx(record["ttft_at_server_s"], rel=1e-6)
    assert record["ttft_at_server_low_s"] < record["ttft_at_server_s"] < record["ttft_at_server_high_s"]
    shown = run(*SINGLE).out
    assert "TTFT of the batch alone" in shown and "TTFT at the server, idle" in shown
    assert "TTFT at the server = alone" in shown
    user = run("simulate", *SINGLE[1:], "--concurrency", "1", "--requests", "5", "--format", "json").json
    assert user["ttft_s"]["mean"] == pytest.approx(record["ttft_at_server_s"], rel=0.02)


def test_an_unknown_server_is_said(run: Run) -> None:
    record = run(*SINGLE, "--engine", "llama.cpp", "--format", "json").json
    assert record["ttft_at_server_s"] is None and record["ttft_at_server_parts_s"] is None
    assert "on file for --engine llama.cpp" in run(*SINGLE, "--engine", "llama.cpp").out
    ideal = run(*SINGLE, "--ideal", "--format", "json").json
    assert ideal["ttft_at_server_s"] == ideal["ttft_s"]


DRAFT = ["--draft-model", "llama-3.2-1b", "--draft-tokens", "4"]


@for_each(
    ("options", "moved"),
    [
        ([*DRAFT, "--acceptance", "0.7"], {"ttft_s": 1, "tpot_s": -1, "max_batch": -1, "output_tokens_per_s": 1}),
        (["--prefix-hit-rate", "0.5"], {"ttft_s": -1, "tpot_s": 0, "max_batch": 0, "output_tokens_per_s": 1}),
        (["--chunk", "256"], {"ttft_s": 1, "tpot_s": 0, "max_batch": 0, "output_tokens_per_s": -1}),
    ],
)
def test_techniques_reach_the_headline(run: Run, options: list[str], moved: dict[str, int]) -> None:
    """Which way each figure goes, from the run without; that run's figures stand under ``without``."""
    plainly = run(*SINGLE, "--format", "json").json
    record = run(*SINGLE, *options, "--format", "json").json
    for key, way in moved.items():
        change = record[key] - plainly[key]
        assert (change > 0) - (change < 0) == way, key
        assert record["without"][key] == plainly[key]
    assert record["ttft_at_server_s"] != plainly["ttft_at_server_s"] == record["without"]["ttft_at_server_s"]
    assert record["e2el_s"] == pytest.approx(record["ttft_s"] + 255 * record["tpot_s"])
    shown = run(*SINGLE, *options).out
    assert "without" in shown.splitlines()[1]


def test_half_a_draft_is_refused(run: Run) -> None:
    for options, words in (
        (["--draft-tokens", "4", "--acceptance", "0.7"], "--draft free"),
        ([*DRAFT], "--acceptance-length"),
        ([*DRAFT, "--acceptance", "0.7", "--acceptance-length", "2"], "leave one out"),
        ([*DRAFT, "--acceptance-length", "6"], "1 to 5 tokens"),
        (["--draft-model", "qwen3-0.6b", *DRAFT[2:], "--acceptance", "0.7"], "vocabularies differ"),
        (["--draft-model", "mtp", *DRAFT[2:], "--acceptance", "0.7"], "no prediction module"),
        (["--kv-offload", "100GB", "--offload-bandwidth", "64GB/s"], "--prefix-hit-rate"),
    ):
        ran = run(*SINGLE, *options)
        assert ran.code == 2 and words in ran.err, options
    free = run(
        *SINGLE, "--draft-model", "free", "--draft-tokens", "4", "--acceptance-length", "2.7731", "--format", "json"
    )
    assert free.json["speculation"]["acceptance"] == pytest.approx(0.7, abs=1e-5)
    assert free.json["memory"]["draft_weights_bytes"] == 0


def test_a_batch_that_the_engine_rejects_is_said(run: Run) -> None:
    """TensorRT-LLM 1.0 cuts no prompts: 20,000 tokens never fit its step of 8,192."""
    long = ["estimate", "llama-3.1-8b", "--gpu", "h100-sxm", "--engine", "trtllm", "--prompt", "20000"]
    assert "warning: trtllm 1.0 rejects these prompts" in run(*long).out
    record = run(*long, "--format", "json").json
    assert "max_num_batched_tokens 8,192" in record["rejected_because"] and record["ttft_at_server_s"] is None
    wider = run(*long, "--max-num-batched-tokens", "20000", "--format", "json").json
    assert wider["rejected_because"] is None and wider["ttft_at_server_s"] > wider["ttft_s"]


@for_each("command", ["estimate", "simulate --rate 1 --requests 10", "cost"])
def test_a_dense_model_has_no_format_of_experts(run: Run, command: str) -> None:
    words, asked = command.split(), ("--gpu", "h100-sxm", "--quant", "fp8", "--tp", "2")
    dense, sparse = (run(words[0], model, *asked, *words[1:]).out for model in ("llama-3.1-8b", "mixtral-8x7b-v0.1"))
    assert "llama-3.1-8b in weights fp8, activations fp8 on 2 x h100-sxm" in dense
    assert "mixtral-8x7b-v0.1 in weights fp8, activations fp8, experts fp8 on 2 x h100-sxm" in sparse


@for_each("command", ["estimate", "simulate", "fit", "sweep", "cost", "compare", "explain ttft"])
def test_versions_of_engines(run: Run, command: str) -> None:
    """vLLM 0.18, 0.20 and 0.33 are on file: 0.25 is said to have the defaults of 0.20, 99 is refused."""
    words = [*command.split(), "llama-3.1-8b", "--gpu", "h100-sxm"]
    words += {"simulate": ["--rate", "1", "--requests", "5"], "sweep": ["--batch", "1", "--executor", "serial"]}.get(
        command, []
    )
    newer = run(*words, "--engine", "vllm@99")
    assert newer.code == 2 and "newer than every version on file" in newer.err and "0.33" in newer.err
    between = run(*words, "--engine", "vllm@0.25")
    assert between.code == 0 and "vllm 0.25: defaults of 0.20" in between.err
    assert "defaults of" not in run(*words, "--engine", "vllm@0.33.1").err


@for_each(
    "words",
    [
        ("estimate", "llama-3.1-8b"),
        ("compare", "llama-3.1-8b"),
        ("fit", "llama-3.1-8b"),
        ("simulate", "llama-3.1-8b", "--rate", "1", "--prompt", "100", "--output", "10", "--requests", "50"),
    ],
)
def test_announced_figures_are_said_wherever_they_are_priced(run: Run, words: tuple[str, ...]) -> None:
    """NVIDIA marks the specifications of Vera Rubin as preliminary and subject to change."""
    shown = run(*words, "--gpu", "vr200", "--memory", "280GB")
    assert shown.code == 0 and "vr200-preliminary" in shown.out + shown.err


def test_compare_counts_what_the_token_budget_costs(run: Run) -> None:
    """A prompt of 4,000 tokens goes in 63 steps of 64 tokens or in one of 8,192: each candidate has the TTFT at the
    server that an estimate of it says, and every step more launches its kernels again."""
    words = ("llama-3.1-8b", "--prompt", "4000", "--batch", "64")
    for budget in ((), ("--max-num-batched-tokens", "64")):
        found = run("compare", *words, *budget, "--gpu", "h100-sxm,h200-sxm", "--format", "json").json["candidates"]
        for gpu, one in zip(("h100-sxm", "h200-sxm"), found):
            alone = run("estimate", *words, *budget, "--gpu", gpu, "--format", "json").json
            assert one["ttft_at_server_s"] == alone["ttft_at_server_s"]
        assert (found[0]["ttft_at_server_s"] > 0.3) is bool(budget)
    assert "TTFT at the server, one request, idle" in run("compare", *words, "--gpu", "h100-sxm,h200-sxm").out
    assert "only the activation memory" in run("cost", *words, *budget, "--gpu", "h100-sxm").out


def test_compare_prices_bridges_between_cards_that_are_counted(run: Run) -> None:
    """NVIDIA GA102 white paper: an NVLink bridge of two RTX 3090 has 56.25 GB/s in each direction; PCIe 4.0 x16 has 31.
    Two cards send all of each sum: two of 1,024 x 4,096 x 2 bytes per layer of 32, and one behind the embedding. An RTX
    4090 has no NVLink."""
    words = ("compare", "llama-3.1-8b", "--ideal", "--gpu", "2x-rtx-3090,2x-rtx-4090", "--nvlink-bridge")
    shown = run(*words, "--vs", "nvlink-bridge=off", "--vs", "gpu=2x-rtx-4090")
    fitted, none, bare, other = run(
        *words, "--vs", "nvlink-bridge=off", "--vs", "gpu=2x-rtx-4090", "--format", "json"
    ).json["candidates"]
    sums = 65 * 1024 * 4096 * 2 * (1 / 31e9 - 1 / 56.25e9)
    assert bare["ttft_s"] - fitted["ttft_s"] == pytest.approx(sums, rel=2e-3)
    assert other["ttft_s"] == none["ttft_s"]
    assert "rtx-3090 nvlink-bridge: network: with NVLink bridges (56.2" in shown.out
    assert "rtx-3090: network: PCIe 4.0 x16; with NVLink bridges" in shown.out and "rtx-4090: network" not in shown.out
    on = run(
        "compare", "llama-3.1-8b", "--ideal", "--gpu", "2x-rtx-3090", "--vs", "nvlink-bridge=on", "--format", "json"
    )
    assert [one["ttft_s"] for one in on.json["candidates"]] == [bare["ttft_s"], fitted["ttft_s"]]
    assert run("compare", "llama-3.1-8b", "--gpu", "2x-rtx-3090", "--vs", "nvlink-bridge=yes").code == 2


SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
SHOWN = r"([\d.,]+) (us|ms|s)"


def seconds_in(text: str, pattern: str) -> list[float]:
    """The times that a line of the report shows, in order."""
    found = re.search(pattern.replace("TIME", SHOWN), text, re.MULTILINE)
    assert found is not None, (pattern, text)
    parts = found.groups()
    return [float(number.replace(",", "")) * SECONDS[unit] for number, unit in zip(parts[::2], parts[1::2])]


def drawn_loads(count: int) -> list[list[str]]:
    """Loads on systems with an error band, from a seed that is written down."""
    rng = np.random.default_rng(20261130)
    systems = [["llama-3.1-8b", "--gpu", "h100-sxm"], ["llama-3.1-8b", "--gpu", "h200"]]
    systems += [["llama-3.1-70b", "--gpu", "h100-sxm", "--tp", "4"], ["qwen3-8b", "--gpu", "h100-sxm"]]
    techniques = [[], ["--prefix-hit-rate", "0.5"], ["--batch", "8"]]
    return [
        [
            *systems[rng.integers(len(systems))],
            *("--prompt", str(rng.integers(64, 8192)), "--output", str(rng.integers(2, 1024))),
            *("--in-flight", str(rng.integers(1, 400))),
            *techniques[rng.integers(len(techniques))],
        ]
        for _ in range(count)
    ]


def test_a_band_is_that_of_the_figure_that_is_shown(run: Run) -> None:
    """The steady state of so many requests has one, the batch alone another: each holds its own figure. On an H100 the
    band of one request ends below the TPOT of 32."""
    ends, known = "TIME to TIME, TPOT TIME to TIME", 0
    for load in [["llama-3.1-8b", "--gpu", "h100-sxm", "--in-flight", "32"], *drawn_loads(7)]:
        shown = run("estimate", *load).out
        if "error of the steady state: unknown" in shown:
            continue
        known += 1
        steady, alone = shown.split("in bf16 on", 1)
        figures = seconds_in(steady, r"^TTFT at the server, mean +TIME$") + seconds_in(steady, r"^TPOT +TIME$")
        band = seconds_in(alone, f"error of the steady state: .* TTFT at the server, mean {ends}")
        assert band[0] <= figures[0] <= band[1] and band[2] <= figures[1] <= band[3], load
        of_batch = seconds_in(alone, r"^TTFT at the server, .*idle +TIME") + seconds_in(alone, r"\(TPOT\), mean +TIME")
        own = seconds_in(alone, f"error of the batch alone: .* TTFT at the server {ends}")
        assert own[0] <= of_batch[0] <= own[1] and own[2] <= of_batch[1] <= own[3], load
        record = run("estimate", *load, "--format", "json").json["steady_state"]
        kept = [record[f"{name}_{end}_s"] for name in ("ttft", "tpot") for end in ("low", "high")]
        assert kept == pytest.approx(band, rel=1e-3)
        if load[-1] == "32":
            assert own[3] < figures[1]
    assert known >= 4


def test_the_steady_state_has_the_band_of_a_simulation_of_it(run: Run) -> None:
    """The same factors, about its own mean."""
    load = ("llama-3.1-8b", "--gpu", "h100-sxm", "--prompt", "300", "--output", "40", "--in-flight", "9")
    state = run("estimate", *load, "--format", "json").json["steady_state"]
    ran = run("simulate", *load, "--requests", "60", "--format", "json").json
    for name in ("ttft", "tpot"):
        for end in ("low", "high"):
            factor = ran[f"{name}_{end}_s"] / ran[f"{name}_s"]["mean"]
            assert state[f"{name}_{end}_s"] / state[f"{name}_s"] == pytest.approx(factor, rel=1e-9)


def test_the_steady_state_stands_beside_that_without_drafts(run: Run) -> None:
    """The second column is that of the same question without a draft."""
    asked = ["estimate", "llama-3.1-8b", "--gpu", "h100-sxm", "--in-flight", "64"]
    drafted = run(*asked, "--draft", "eagle3", "--draft-tokens", "3", "--format", "json").json
    assert drafted["steady_state_without"]["tpot_s"] == run(*asked, "--format", "json").json["steady_state"]["tpot_s"]
    assert "without drafts" in run(*asked, "--draft", "eagle3").out and "without drafts" not in run(*asked).out


def test_the_fewest_layers_of_experts_on_the_host(run: Run) -> None:
    """gpt-oss-120b on an RTX 4090 with a Core i9-14900K: 12 layers fewer there are 12 x 4 experts x 3 x 2,880 x 2,880
    weights in 4.25 bits, 634.5 MB, at 0.51 of 89.6 GB/s 13.9 ms less, on the card at 0.9 of 1,008 GB/s 0.7 ms more."""
    asked = "estimate gpt-oss-120b --gpu rtx-4090 --engine llama.cpp --host core-i9-14900k --host-memory 192GB"
    tpot = {}
    for layers in (36, 24):
        found = run(*asked.split(), "--cpu-moe-layers", str(layers), "--format", "json").json
        tpot[layers] = found["tpot_s"]
    weights = 12 * 4 * 3 * 2880 * 2880 * 4.25 / 8
    saved = weights / (0.51 * 89.6e9) - weights / (0.9 * 1008e9)
    assert tpot[36] - tpot[24] == pytest.approx(saved, rel=0.02)
    said = run(*asked.split(), "--cpu-moe-layers", "36").out
    assert f"--cpu-moe-layers 24 fits, with a TPOT of {1e3 * tpot[24]:.2f} ms" in said
    assert run(*asked.split(), "--cpu-moe-layers", "23").code == 3  # one fewer does not fit
    assert "has room" not in run(*asked.split(), "--cpu-moe-layers", "24").out


def test_a_full_cache_is_said_with_what_fits(run: Run) -> None:
    """By hand: the tokens that the engine logs over a prompt and half an output. The simulator follows each request."""
    asked = ("llama-3.1-8b", "--gpu", "rtx-4090", "--prompt", "4000", "--output", "400", "--in-flight")
    shown, record = run("estimate", *asked, "64"), run("estimate", *asked, "64", "--format", "json").json
    tokens = run("simulate", *asked, "64", "--format", "json").json
    fits = tokens["kv"]["capacity_tokens"] / (4000 + 400 / 2)
    said = re.search(r"warning: the KV cache holds (\d+) requests of these 64: (\d+) wait", shown.out)
    assert said is not None and int(said[1]) == round(fits) and int(said[2]) == round(64 - fits)
    assert record["steady_state"]["ttft_s"] == pytest.approx(tokens["ttft_s"]["mean"], rel=0.14)
    assert tokens["queue"]["wait_mean_s"] == pytest.approx(record["steady_state"]["wait_s"], rel=0.14)
    assert "warning" not in run("estimate", *asked, str(int(fits * 0.8))).out
