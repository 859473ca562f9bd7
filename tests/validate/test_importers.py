"""Benchmark files of every tool: the traps of each, and that nothing is guessed."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from inferplan.catalog.offload import OffloadAsked
from inferplan.errors import InputFileError
from inferplan.validation.importers import aiperf, llama_bench, plain, read_file
from inferplan.validation.importers.record import Record
from inferplan.validation.importers.vllm_bench import _engine
from inferplan.validation.parts import Parts
from inferplan.validation.rows import Row, Run, Shared, Spread, Unusable, Waits, _alike, fact_of, interpret
from inferplan.work.adapters import LoraAsked
from tests.cases import for_each

SUPPLIED = {"gpu": "h100-sxm", "tp": "2", "precision": "fp8", "engine": "vllm", "model": "llama-3.1-70b"}
VLLM = {
    "date": "20260314-193625",
    "backend": "vllm",
    "model_id": "meta-llama/Llama-3.1-70B-Instruct",
    "num_prompts": 160,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 16,
    "duration": 627.47,
    "completed": 160,
    "total_input_tokens": 163840,
    "total_output_tokens": 117120,
    "request_goodput:": None,
    "output_throughput": 186.48,
    "mean_ttft_ms": 498.1,
    "mean_tpot_ms": 80.94,
    "p99_ttft_ms": 1611.2,
}
SGLANG = {
    "backend": "sglang",
    "dataset_name": "random",
    "request_rate": 4.0,
    "max_concurrency": None,
    "random_input_len": 1024,
    "random_output_len": 512,
    "server_info": {
        "model_path": "Qwen/Qwen3-32B",
        "tp_size": 2,
        "mem_fraction_static": 0.85,
        "chunked_prefill_size": -1,
        "kv_cache_dtype": "fp8_e4m3",
    },
    "duration": 100.0,
    "completed": 400,
    "total_input_tokens": 409600,
    "total_output_tokens": 204800,
    "mean_e2e_latency_ms": 2564.8,
    "mean_ttft_ms": 38.2,
    "mean_tpot_ms": 12.1,
    "output_throughput": 2048.0,
}
GUIDELLM = {
    "metadata": {"version": 2, "guidellm_version": "0.8.1"},
    "config": {},
    "benchmarks": [
        {
            "type_": "generative_benchmark",
            "config": {
                "strategy": {"type_": "concurrent", "streams": 16},
                "backend": {"model": "meta-llama/Llama-3.1-8B"},
            },
            "metrics": {
                "request_totals": {"successful": 480, "errored": 0, "incomplete": 16, "total": 496},
                "prompt_token_count": {"successful": {"mean": 1000.0}, "total": {"mean": 7.0}},
                "output_token_count": {"successful": {"mean": 128.0}},
                "output_tokens_per_second": {"successful": {"mean": 1024.0}},
                "request_latency": {"successful": {"mean": 1.9}},
                "time_to_first_token_ms": {"successful": {"mean": 61.0}},
                "time_per_output_token_ms": {"successful": {"mean": 99.0}},
                "inter_token_latency_ms": {"successful": {"mean": 14.4}},
            },
        }
    ],
}
AIPERF = {
    "schema_version": "1.4",
    "aiperf_version": "0.13.0",
    "request_throughput": {"unit": "requests/sec", "avg": 4.0},
    "time_to_first_token": {"unit": "s", "avg": 0.061},
    "inter_token_latency": {"unit": "ms", "avg": 14.4},
    "request_latency": {"unit": "ms", "avg": 1900.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 1024.0},
    "request_count": {"unit": "requests", "avg": 160.0},
    "input_sequence_length": {"unit": "tokens", "avg": 1000.0},
    "output_sequence_length": {"unit": "tokens", "avg": 128.0},
    "input_config": {"endpoint": {"model_names": ["meta-llama/Llama-3.1-8B"]}, "loadgen": {"concurrency": 16}},
}
GENAI_PERF = {
    **{name: value for name, value in AIPERF.items() if name not in ("schema_version", "aiperf_version")},
    "input_config": {
        "model_names": ["meta-llama/Llama-3.1-8B"],
        "perf_analyzer": {"stimulus": {"concurrency": 8}},
    },
}
INFERENCEX = {
    "hw": "b200",
    "conc": 4,
    "model": "meta-llama/Llama-3.1-70B",
    "framework": "trt",
    "precision": "fp8",
    "spec_decoding": "none",
    "disagg": False,
    "isl": 8192,
    "osl": 1024,
    "is_multinode": False,
    "tp": 2,
    "pp": 1,
    "ep": 1,
    "dp_attention": "false",
    "mean_ttft": 0.1,
    "mean_tpot": 0.02,
    "median_intvty": 50.0,
}
LLAMA_BENCH = {
    "build_commit": "8cf427ff",
    "gpu_info": "NVIDIA GeForce RTX 4080",
    "backends": "CUDA",
    "model_filename": "models/Qwen2.5-7B-Q4_K_M.gguf",
    "model_type": "qwen2 7B Q4_K - Medium",
    "n_ubatch": 512,
    "type_k": "f16",
    "n_prompt": 0,
    "n_gen": 128,
    "n_depth": 0,
    "avg_ns": 1_076_767_880,
}
MLPERF = """================================================
MLPerf Results Summary
================================================
SUT name : PySUT
Scenario : Server
Mode     : PerformanceOnly
Completed samples per second    : 29.41
Completed tokens per second: 8840.42
Result is : VALID
99.00 percentile first token latency (ns)   : 435976100
99.00 percentile time to output token (ns)   : 39507635
target_qps : 29.5
"""


def read(tmp_path: Path, content: Any, supplied: dict[str, str] | None = None) -> list[Row]:
    path = tmp_path / "file"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return read_file(path, SUPPLIED if supplied is None else supplied)[1]


def test_vllm_lengths_are_totals_over_what_finished(tmp_path: Path) -> None:
    run = (row := read(tmp_path, VLLM)[0]).run
    assert run is not None
    assert (run.prompt, run.output, run.concurrency, run.requests) == (1024, 732, 16, 160)
    assert run.model == "meta-llama/Llama-3.1-70B-Instruct"
    assert row.measured.ttft == pytest.approx(0.4981)
    assert row.measured.tpot == pytest.approx(0.08094)


def test_vllm_without_hardware_is_refused_not_guessed(tmp_path: Path) -> None:
    row = read(tmp_path, VLLM, {})[0]
    assert row.run is None
    for word in ("gpu", "tp", "weights"):
        assert word in row.refused


def test_names_and_formats_that_files_leave_open() -> None:
    """An empty list of models names none; a cache in a format of GGUF keeps its name, f16 is the catalogue's fp16; an
    image says the version of its engine where no cell does; numbers are written as people do."""
    assert "model" not in aiperf.read(Record({"input_config": {"model_names": []}}))[0]
    assert aiperf.read(Record({"input_config": {"model_names": ["org/m"]}}))[0]["model"] == "org/m"
    bench = {"n_prompt": 512, "n_gen": 0, "avg_ns": 2e6, "model_filename": "m-q4_k_m.gguf", "gpu_info": "g"}
    for kind, kv in (("q8_0", "q8_0"), ("f16", "fp16"), (None, "")):
        (facts,) = llama_bench.read(Record({**bench, "type_k": kind}))
        assert (facts["kv"], facts["ttft_ms"], facts["isl"]) == (kv, "2", "512")
    image = "vllm/vllm-openai:v0.19.0"
    assert plain._facts({"image": image})["engine_version"] == "0.19.0"
    assert plain._facts({"image": image, "engine_version": "0.18"})["engine_version"] == "0.18"
    assert [fact_of(value) for value in (8.0, 0.5, 3, 1e16, None)] == ["8", "0.5", "3", "1e+16", ""]


def test_a_release_is_the_same_by_any_of_its_names() -> None:
    assert _alike("engine_version", "0.19", "v0.19.0") and not _alike("engine_version", "0.19", "0.20")
    assert _alike("tp", "2", "2.0") and not _alike("tp", "2", "3") and _alike("suspect", " Cold", "cold")


@for_each(
    ("backend", "engine"),
    [("vllm", "vllm"), ("openai", None), ("sglang-oai", "sglang"), ("tensorrt-llm", "trtllm"), ("vllm-chat", None)],
)
def test_a_client_of_an_engine_says_which(backend: str, engine: str | None) -> None:
    """`--backend` of vLLM's client: its own name alone says that the server is vLLM; many have the API of OpenAI."""
    found = _engine(Record({"backend": backend, "model_id": "org/model"}))
    assert found == ({"model": "org/model"} | ({"engine": engine} if engine else {}))


def test_vllm_metadata_stands_at_the_top(tmp_path: Path) -> None:
    run = read(tmp_path, {**VLLM, "tp": "4", "gpu": "h200-sxm"})[0].run
    assert run is not None
    assert (run.tp, run.gpu) == (4, "h200-sxm")


def test_vllm_appended_objects(tmp_path: Path) -> None:
    rows = read(tmp_path, "\n".join(json.dumps({**VLLM, "max_concurrency": c}) for c in (1, 2, 4)))
    assert [row.run.concurrency for row in rows if row.run] == [1, 2, 4]


def test_infinite_rate_without_a_limit_sends_all_at_once(tmp_path: Path) -> None:
    run = read(tmp_path, {**VLLM, "max_concurrency": None})[0].run
    assert run is not None
    assert (run.concurrency, run.rate) == (160, None)


def test_sglang_reads_the_server_and_a_bare_infinity(tmp_path: Path) -> None:
    text = json.dumps({**SGLANG, "request_rate": float("inf"), "max_concurrency": 8})
    assert "Infinity" in text
    run = read(tmp_path, text + "\n" + json.dumps(SGLANG))[0].run
    assert run is not None
    assert (run.engine, run.model, run.tp, run.kv, run.memory_fraction) == ("sglang", "Qwen/Qwen3-32B", 2, "fp8", 0.85)
    assert run.token_budget is None  # -1: prompts are not cut
    assert run.concurrency == 8


def test_sglang_open_loop(tmp_path: Path) -> None:
    row = read(tmp_path, SGLANG)[0]
    assert row.run is not None
    assert (row.run.rate, row.run.concurrency) == (4.0, None)
    assert row.measured.e2el == pytest.approx(2.5648)


def test_guidellm_tpot_is_the_inter_token_latency_of_what_succeeded(tmp_path: Path) -> None:
    row = read(tmp_path, GUIDELLM)[0]
    assert row.run is not None
    assert (row.run.prompt, row.run.concurrency, row.run.requests) == (1000, 16, 480)
    assert row.measured.tpot == pytest.approx(0.0144)
    assert row.measured.e2el == pytest.approx(1.9)


def test_aiperf_converts_by_the_unit_in_the_file(tmp_path: Path) -> None:
    row = read(tmp_path, AIPERF)[0]
    assert row.run is not None
    assert row.measured.ttft == pytest.approx(0.061)
    assert row.measured.tpot == pytest.approx(0.0144)
    assert row.run.concurrency == 16
    odd = read(tmp_path, {**AIPERF, "time_to_first_token": {"unit": "fortnights", "avg": 1.0}})[0]
    assert odd.run is None
    assert "fortnights" in odd.refused


def test_genai_perf_has_the_same_shape(tmp_path: Path) -> None:
    run = read(tmp_path, GENAI_PERF)[0].run
    assert run is not None
    assert (run.concurrency, run.model) == (8, "meta-llama/Llama-3.1-8B")


def test_inferencex_is_in_seconds(tmp_path: Path) -> None:
    row = read(tmp_path, [INFERENCEX], {})[0]
    assert row.run is not None
    assert (row.run.engine, row.run.tp, row.run.requests, row.run.ratio_min) == ("trtllm", 2, 40, 0.8)
    assert row.measured.ttft == pytest.approx(0.1)
    speculative = read(tmp_path, [{**INFERENCEX, "spec_decoding": "mtp"}], {})[0]
    assert speculative.run is not None
    assert (speculative.run.draft, speculative.run.draft_tokens, speculative.run.suspect) == ("mtp", 3, "")


def test_llama_bench_decode_is_nanoseconds_over_the_tokens(tmp_path: Path) -> None:
    row = read(tmp_path, [LLAMA_BENCH], {"gpu": "rtx-4090"})[0]
    assert row.run is not None
    assert (row.run.model, row.run.weights, row.run.kv, row.run.batch) == ("Qwen2.5-7B", "q4_k_m", "fp16", 1)
    assert row.run.gpu == "NVIDIA GeForce RTX 4080"
    assert row.measured.tpot == pytest.approx(1.07676788 / 128)


def test_llama_bench_prefill(tmp_path: Path) -> None:
    row = read(tmp_path, [{**LLAMA_BENCH, "n_prompt": 512, "n_gen": 0}], {})[0]
    assert row.measured.ttft == pytest.approx(1.07676788)
    assert row.measured.tpot is None


@for_each("label", ["time to output token", "Time per Output Token"])
def test_mlperf_is_in_nanoseconds_under_both_labels(tmp_path: Path, label: str) -> None:
    text = MLPERF.replace("time to output token", label)
    row = read(tmp_path, text, {**SUPPLIED, "isl": "300", "osl": "300"})[0]
    assert row.run is not None
    assert row.run.rate == 29.41
    assert row.measured.ttft == pytest.approx(0.4359761)
    assert row.measured.tpot == pytest.approx(0.039507635)
    assert row.measured.statistic == "p99"


def test_mlperf_names_no_hardware(tmp_path: Path) -> None:
    assert read(tmp_path, MLPERF, {})[0].run is None


HEAD = "gpu,model,engine,weights,isl,osl,concurrency,tp,ep,ttft_ms,tpot_ms,comment"


def table(*lines: str) -> str:
    return "\n".join([HEAD, *lines]) + "\n"


WHOLE: dict[str, Any] = (
    {"model": "m", "gpu": "g", "engine": "VLLM", "engine_version": "0.19", "precision": "fp8", "weights": "int4"}
    | {"experts": "fp4", "kv": "fp8", "activations": "bf16", "isl": "512", "osl": "64", "concurrency": "4"}
    | {"tp": "2", "pp": "3", "ep": "6", "dp": "5", "requests": "11", "length_ratio_min": "0.5"}
    | {"warmup_requests": "7", "max_num_batched_tokens": "2048", "max_num_seqs": "33", "memory_fraction": "0.8"}
    | {"max_model_len": "4096", "poll_interval_steps": "9", "batch_wait_steps": "10", "batch_wait_fill": "0.25"}
    | {"suspect": "cold", "campaign": "own", "attention_dp_balance_steps": "12", "prefill_schedule_interval": "13"}
    | {"prefill_decode_interval": "14", "enable_prefill_delayer": "1", "prefill_delayer_max_delay_passes": "15"}
    | {"shared_system_prompt_tokens": "16", "distinct_system_prompts": "17", "users_per_system_prompt": "18"}
    | {"timeout_s": "19.5", "workers": "20", "redundant_experts": "21", "speculation": "MTP", "draft_tokens": "3"}
    | {"expert_copies_in_order": "true", "dispatch_format": "fp8", "exchange": "gather", "kernels": "vllm@0.20"}
    | {"backends": "experts=triton, attention=fa3", "batch": "22"}
    | {"lora_rank": "23", "max_loras": "25", "active_loras": "24", "gpu_layers": "26", "cpu_moe_layers": "27"}
    | {"host": "h", "host_memory": "28GB", "host_link": "29GB/s", "sampling": "top-p", "power_cap_w": "30"}
)
"""A row that states everything that goes with one pool, each a number of its own."""
READ: dict[str, Any] = (
    {"model": "m", "gpu": "g", "engine": "vllm", "engine_version": "0.19", "precision": "fp8", "weights": "int4"}
    | {"experts": "fp4", "kv": "fp8", "activations": "bf16", "prompt": 512.0, "output": 64.0, "concurrency": 4}
    | {"rate": None, "duration": None, "batch": 22, "tp": 2, "pp": 3, "ep": 6, "dp": 5, "requests": 11}
    | {"ratio_min": 0.5, "warmup": 7, "token_budget": 2048, "slots": 33, "memory_fraction": 0.8, "context": 4096}
    | {"waits": Waits(poll=9, batch=10, fill=0.25, balance=12, schedule=13, rounds=14, delayer=True, passes=15)}
    | {"suspect": "cold", "campaign": "own", "shared": Shared(system_prompt=16, system_prompts=17, users=18)}
    | {"timeout": 19.5, "workers": 20, "prefill": None, "kernels": "vllm@0.20", "draft": "mtp", "draft_tokens": 3}
    | {"spread": Spread(slots=21, in_order=True, dispatch="fp8", exchange="gather")}
    | {"backends": (("experts", "triton"), ("attention", "fa3"))}
    | {
        "parts": Parts(
            lora=LoraAsked(rank=23, slots=25, active=24),
            offload=OffloadAsked(gpu_layers=26, cpu_moe_layers=27, host="h", host_memory="28GB", host_link="29GB/s"),
            sampling="top-p",
            power_cap=30.0,
        )
    }
)
LEAST: dict[str, Any] = {
    "model": "m",
    "gpu": "g",
    "engine": "sglang",
    "weights": "bf16",
    "isl": "1",
    "osl": "2",
    "tp": "0",
} | {"rate_per_s": "0.5"}


def test_every_column_is_a_field_of_the_run() -> None:
    """As docs/validate.md lists them; 0, and an empty cell, leave the engine's default."""
    found = interpret(WHOLE)[0]
    assert {one.name: getattr(found, one.name) for one in fields(found)} == READ
    least, notes = interpret({**LEAST, **dict.fromkeys(("max_num_seqs", "memory_fraction", "max_model_len"), "0")})
    plain = {**READ, **{one.name: one.default for one in fields(Run) if one.default is not MISSING}}
    plain |= {"engine": "sglang", "weights": "bf16", "prompt": 1.0, "output": 2.0, "rate": 0.5}
    plain |= dict.fromkeys(("engine_version", "precision", "experts", "kv", "activations"))
    assert {one.name: getattr(least, one.name) for one in fields(least)} == plain
    assert notes == ()
    assert interpret({**LEAST, "rate_per_s": "", "batch": "4"})[0].batch == 4
    assert interpret({**LEAST, "decode_batch_per_rank": "6"})[0].slots == 6
    steady = interpret({**LEAST, "rate_per_s": "", "concurrency": "1"})[1]
    assert steady == ("number of requests not stated: steady state, without the first burst",)


@for_each(
    ("changes", "reason"),
    [
        ({"model": "", "osl": ""}, "model, osl are empty"),
        ({"weights": ""}, "weights (or precision) is empty"),
        ({"rate_per_s": ""}, "concurrency (or rate_per_s) is empty"),
        ({"tp": ""}, "tp is empty"),
        ({"isl": "0.5"}, "isl is 0.5, must be"),
        ({"osl": "nan"}, "osl is empty"),
        ({"concurrency": "1.5"}, "concurrency is 1.5, not a whole number"),
        ({"concurrency": "0"}, "concurrency is 0, must be"),
        ({"memory_fraction": "1.1"}, "memory_fraction is 1.1, must be in (0, 1]"),
        ({"length_ratio_min": "0"}, "length_ratio_min is 0, must be in (0, 1]"),
        ({"exchange": "carrier"}, "exchange is 'carrier', not one of"),
        ({"dp_attention": "yes", "decode_ranks": "8"}, "dp_attention is 'yes', not 0 or 1"),
        ({"backends": "experts"}, "backends 'experts' is not ROLE=NAME"),
        ({"speculation": "mtp"}, "draft_tokens is empty: the number of drafts per step of mtp"),
        ({"decode_ranks": "6", "tp": "6", "ep": "4"}, "ep 4 does not divide 6 ranks"),
        ({"experts": "fp8", "expert_tp": "2", "tp": "4", "ep": "4"}, "expert_tp 2 x ep 4 is not tp 4"),
        ({"disaggregated": "1", "workers": "1"}, "disaggregated, and the number of workers of a pool is not known"),
        ({"disaggregated": "1", "workers": "1", "prefill_workers": "1"}, "prefill_ranks is empty"),
    ],
)
def test_a_row_that_cannot_be_read_says_why(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(Unusable, match=re.escape(reason)):
        interpret({**LEAST, **changes})


def test_plain_rows_keep_their_cells_and_their_order(tmp_path: Path) -> None:
    rows = read(tmp_path, table("h100-sxm,llama-3.1-8b,vllm,bf16,1024,256,16,1,,50,8,hello"), {})
    assert list(rows[0].cells) == HEAD.split(",")
    assert rows[0].run is not None
    assert rows[0].run.ep == 1


@for_each("ep", ["", "0", "0.0", "1"])
def test_an_empty_or_zero_ep_is_one(tmp_path: Path, ep: str) -> None:
    run = read(tmp_path, table(f"h100-sxm,llama-3.1-8b,vllm,bf16,1024,256,16,1,{ep},50,8,"), {})[0].run
    assert run is not None
    assert run.ep == 1


@for_each(
    ("line", "reason"),
    [
        ("h100-sxm,llama-3.1-8b,vllm,bf16,,256,16,1,,50,8,", "isl is empty"),
        ("h100-sxm,llama-3.1-8b,vllm,bf16,1024,256,16,,,50,8,", "tp is empty"),
        (",llama-3.1-8b,vllm,,1024,256,16,1,,50,8,", "gpu, weights (or precision) are empty"),
        ("h100-sxm,llama-3.1-8b,vllm,bf16,1024,256,,1,,50,8,", "concurrency (or rate_per_s) is empty"),
        ("h100-sxm,llama-3.1-8b,vllm,bf16,many,256,16,1,,50,8,", "isl is 'many', not a number"),
        ("h100-sxm,llama-3.1-8b,vllm,bf16,1024,256,1.5,1,,50,8,", "concurrency is 1.5, not a whole number"),
        ("h100-sxm,llama-3.1-8b,vllm,bf16,1024,256,16,1,,0,8,", "ttft_ms is 0"),
        ("h100-sxm,llama-3.1-8b,vllm,bf16,1024,256,16,1,,50,8,x,y", "more cells than columns"),
    ],
)
def test_a_needed_cell_that_is_empty_or_odd_refuses_the_row(tmp_path: Path, line: str, reason: str) -> None:
    row = read(tmp_path, table(line), {})[0]
    assert row.run is None
    assert row.refused == reason


def test_flags_fill_what_is_empty_and_nothing_else(tmp_path: Path) -> None:
    lines = ("h200-sxm,llama-3.1-8b,vllm,bf16,1024,256,16,,,50,8,", ",llama-3.1-8b,vllm,bf16,1024,256,16,4,,50,8,")
    rows = read(tmp_path, table(*lines), {"gpu": "h100-sxm", "tp": "2"})
    assert [(row.run.gpu, row.run.tp) for row in rows if row.run] == [("h200-sxm", 2), ("h100-sxm", 4)]


@for_each(
    ("content", "words"),
    [
        ("", "is empty"),
        ("colour,taste\nred,sweet\n", "no table of measured rows"),
        (HEAD + "\n", "no rows"),
        ('{"a": 1}', "from no tool"),
        ('{"a": ', "not JSON"),
        ("[1, 2]", "no JSON objects"),
    ],
)
def test_files_that_are_no_measurements(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(InputFileError, match=words) as caught:
        read(tmp_path, content)
    assert caught.value.exit_code == 4


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="cannot read"):
        read_file(tmp_path / "none.json", {})


def test_every_row_of_the_reference_tables_is_understood(shared: Path) -> None:
    for name, count in (("serving.csv", 1706), ("serving_open_loop.csv", 13)):
        rows = read_file(shared / "measured" / name, {})[1]
        assert len(rows) == count
        assert [row.refused for row in rows if row.run is None] == []
