"""Facts of every tool's record, and scores of rows: written down by hand from the records and the figures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferplan.errors import InferplanError, InputFileError
from inferplan.validation.as_planned import AsPlanned, all_as_planned
from inferplan.validation.clients import LoadGenerator, Script, TokenBudget, _alike, _among
from inferplan.validation.files import facts as stated_facts
from inferplan.validation.importers import (
    _objects,
    aiperf,
    guidellm,
    inferencex,
    llama_bench,
    mlperf,
    plain,
    vllm_bench,
)
from inferplan.validation.importers import sglang_bench as sglang
from inferplan.validation.importers.record import Malformed, Record, show_value
from inferplan.validation.names import resolve_names
from inferplan.validation.rows import PromptWorkers, Run, Unusable, interpret, number, text_of, truth, whole_number
from inferplan.validation.score import Score, Scored, by, score, statistics
from tests.cases import for_each
from tests.validate.test_importers import AIPERF, GUIDELLM, INFERENCEX, LEAST, LLAMA_BENCH, MLPERF, SGLANG, VLLM


def facts(tool: Any, record: dict[str, Any]) -> dict[str, str]:
    (found,) = tool.read(Record(record))
    return {name: value for name, value in found.items() if value != ""}


def test_vllm() -> None:
    """163,840 and 117,120 tokens over 160 requests."""
    found = {
        "isl": "1024", "osl": "732", "requests": "160", "concurrency": "16", "date": "20260314-193625",
        "ttft_ms": "498.1", "tpot_ms": "80.94", "output_tokens_per_s": "186.48", "engine": "vllm",
        "model": "meta-llama/Llama-3.1-70B-Instruct",
    }  # fmt: skip
    assert facts(vllm_bench, VLLM) == found
    labels = {
        "tensor_parallel_size": "4",
        "gpu_type": "h100",
        "quantization": "fp8",
        "unknown": "x",
        "isl": "9",
        "pp": [1],
    }
    assert facts(vllm_bench, VLLM | labels) == found | {"tp": "4", "gpu": "h100", "precision": "fp8"}
    open_loop = VLLM | {"max_concurrency": None, "request_rate": 2.5, "num_prompts": None, "mean_e2el_ms": 900.0}
    assert facts(vllm_bench, open_loop) == {
        **{name: value for name, value in found.items() if name != "concurrency"},
        "rate_per_s": "2.5", "duration_s": "627.47", "e2el_ms": "900",
    }  # fmt: skip
    for rate in (None, "Infinity", "inf"):
        assert facts(vllm_bench, VLLM | {"max_concurrency": None, "request_rate": rate})["concurrency"] == "160"
    nothing = facts(vllm_bench, VLLM | {"completed": 0, "total_output_tokens": 0})
    assert "isl" not in nothing and "osl" not in nothing
    assert "osl" not in facts(vllm_bench, VLLM | {"total_output_tokens": 0})
    old = facts(vllm_bench, {**VLLM, "backend": None, "endpoint_type": "tensorrt-llm", "mean_e2e_latency_ms": 7.0})
    assert (old["engine"], old["e2el_ms"]) == ("trtllm", "7")
    assert facts(vllm_bench, VLLM | {"engine": "own"})["engine"] == "own"
    assert "engine" not in facts(vllm_bench, VLLM | {"backend": "openai"})
    assert vllm_bench.matches(VLLM) and not vllm_bench.matches({"mean_ttft_ms": 1}) and not vllm_bench.matches({})


def test_sglang() -> None:
    """A chunk of -1 tokens is none; ranks of attention are those of the tensor parallelism that they share."""
    found = {
        "engine": "sglang", "model": "Qwen/Qwen3-32B", "tp": "2", "memory_fraction": "0.85", "kv": "fp8", "isl": "1024",
        "osl": "512", "requests": "400", "rate_per_s": "4", "duration_s": "100", "ttft_ms": "38.2", "tpot_ms": "12.1",
        "e2el_ms": "2564.8", "output_tokens_per_s": "2048",
    }  # fmt: skip
    assert facts(sglang, SGLANG) == found
    server = {**SGLANG["server_info"], "chunked_prefill_size": 2048, "dp_size": 2, "enable_dp_attention": True}
    ranks = facts(sglang, SGLANG | {"server_info": server})
    assert (ranks["max_num_batched_tokens"], ranks["tp"], ranks["dp"]) == ("2048", "1", "2")
    for other in ({"attn_dp_size": 4}, {"enable_dp_attention": False}, {"dp_size": 0}):
        assert facts(sglang, SGLANG | {"server_info": server | other})["tp"] == "2"
    assert facts(sglang, SGLANG | {"server_info": server | {"attn_dp_size": 4}})["dp"] == "4"
    assert facts(sglang, SGLANG | {"server_info": {"dp_size": 3, "enable_dp_attention": True}})["tp"] == "0"
    for cache, kv in (("auto", None), (None, None), ("bf16", "bf16"), ("fp8_e5m2", "fp8")):
        assert facts(sglang, SGLANG | {"server_info": {"kv_cache_dtype": cache}}).get("kv") == kv
    assert facts(sglang, SGLANG | {"server_info": {}, "model_id": "a", "model": "b"})["model"] == "a"
    assert facts(sglang, SGLANG | {"server_info": {"quantization": ""}, "model": "b"}).get("precision") is None
    assert sglang.matches(SGLANG) and sglang.matches({"mean_ttft_ms": 1, "random_input_len": 2})
    assert sglang.matches({"mean_ttft_ms": 1, "mean_e2e_latency_ms": 2}) and not sglang.matches(VLLM)


def guide(config: dict[str, Any], **more: Any) -> dict[str, str]:
    run = GUIDELLM["benchmarks"][0]  # type: ignore[index]
    return facts(guidellm, {"benchmarks": [{**run, "config": config, **more}], "args": {"model": "args"}})  # type: ignore[dict-item]


def test_guidellm() -> None:
    """The status successful alone; the latency is in seconds."""
    found = {
        "isl": "1000", "osl": "128", "ttft_ms": "61", "tpot_ms": "14.4", "e2el_ms": "1900",
        "output_tokens_per_s": "1024", "requests": "480", "model": "meta-llama/Llama-3.1-8B", "concurrency": "16",
    }  # fmt: skip
    assert facts(guidellm, GUIDELLM) == found
    assert guide({"strategy": {"type_": "synchronous"}})["concurrency"] == "1"
    assert guide({"strategy": {"type_": "concurrent", "max_concurrency": 9}})["concurrency"] == "9"
    assert "concurrency" not in guide({"strategy": {"type_": "throughput"}})
    rate = guide({"strategy": {"type_": "poisson", "rate": 2.5}, "backend": "vllm"}, duration=60.0)
    assert (rate["rate_per_s"], rate["duration_s"], rate["model"]) == ("2.5", "60", "args")
    assert "concurrency" not in rate
    assert guide({}, args={"strategy": {"type_": "concurrent", "streams": 3}})["concurrency"] == "3"
    assert guide({"strategy": {"type_": "synchronous"}, "backend": {}})["model"] == "args"
    mean = {"successful": {"mean": 7.5}}
    metrics = GUIDELLM["benchmarks"][0]["metrics"] | {"request_concurrency": mean}  # type: ignore[index]
    assert guide({"strategy": {"type_": "throughput"}}, metrics=metrics)["concurrency"] == "7.5"
    assert guidellm.matches(GUIDELLM) and not guidellm.matches({"benchmarks": [{}, 3]})
    assert guidellm.matches({"benchmarks": [3, {"metrics": {}}]}) and not guidellm.matches({"benchmarks": {}})


def test_aiperf() -> None:
    found = {
        "isl": "1000", "osl": "128", "requests": "160", "output_tokens_per_s": "1024", "ttft_ms": "61",
        "tpot_ms": "14.4", "e2el_ms": "1900", "model": "meta-llama/Llama-3.1-8B", "concurrency": "16",
    }  # fmt: skip
    assert facts(aiperf, AIPERF) == found
    rate = {"loadgen": {"request_rate": 2.5}, "models": ["m", "n"]}
    seconds = {"benchmark_duration": {"unit": "sec", "avg": 60.0}}
    open_loop = facts(aiperf, AIPERF | {"input_config": rate} | seconds)
    assert (open_loop["rate_per_s"], open_loop["duration_s"], open_loop["model"]) == ("2.5", "60", "m")
    assert "concurrency" not in open_loop
    both = facts(aiperf, AIPERF | {"input_config": {"stimulus": {"concurrency": 3}, "loadgen": {"request_rate": 2.5}}})
    assert both["concurrency"] == "3" and "rate_per_s" not in both and "model" not in both
    perf = {"perf_analyzer": {"stimulus": {"request_rate": 4}}, "models": [{"name": "m"}]}
    other = facts(aiperf, AIPERF | {"input_config": perf})
    assert other["rate_per_s"] == "4" and "model" not in other
    for unit, ms in (("s", "61"), ("us", "0.000061"), ("ns", "6.1e-08"), ("MS", "0.061"), ("seconds", "61")):
        metric = {"time_to_first_token": {"unit": unit, "avg": 0.061}}
        assert float(facts(aiperf, AIPERF | metric)["ttft_ms"]) == pytest.approx(float(ms))
    assert facts(aiperf, AIPERF | {"time_to_first_token": {"avg": 0.5}})["ttft_ms"] == "0.5 without a unit"
    assert aiperf.matches(AIPERF) and aiperf.matches({"input_config": {}, "request_throughput": {}})
    assert not aiperf.matches({"input_config": {}, "request_latency": 3}) and not aiperf.matches(
        {"request_latency": {}}
    )


def test_inferencex() -> None:
    """Seconds; ten requests a user after two."""
    found = {
        "model": "meta-llama/Llama-3.1-70B", "gpu": "b200", "precision": "fp8", "isl": "8192", "osl": "1024",
        "concurrency": "4", "engine": "trtllm", "requests": "40", "length_ratio_min": "0.8", "warmup_requests": "8",
        "campaign": "inferencex", "tp": "2", "pp": "1", "ep": "1", "decode_ranks": "2", "dp_attention": "0",
        "disaggregated": "0", "ttft_mean_ms": "100", "tpot_mean_ms": "20",
    }  # fmt: skip
    assert facts(inferencex, INFERENCEX) == found
    more = {"image": "rocm/atom:rocm7.2.4_x_atom0.1.3", "framework": "Dynamo-SGLang", "dp_attention": True}
    other = facts(inferencex, INFERENCEX | more)
    assert (other["engine"], other["engine_version"], other["dp_attention"]) == ("sglang", "0.1.3", "1")
    power = {"avg_power_w": 650.5, "joules_per_output_token": 3, "tput_per_gpu": 9, "output_tput_per_gpu": 4}
    measured = facts(inferencex, INFERENCEX | power | {"p99_e2el": 1.5, "median_itl": 0.0125, "spec_decoding": "MTP"})
    assert {name: measured[name] for name in measured.keys() - found.keys()} == {
        "power_w": "650.5", "joules_per_output_token": "3", "tokens_per_s_per_gpu": "9",
        "output_tokens_per_s_per_gpu": "4", "e2el_p99_ms": "1500", "itl_median_ms": "12.5", "speculation": "mtp",
    }  # fmt: skip
    for none in ("none", "", "False"):
        assert "speculation" not in facts(inferencex, INFERENCEX | {"spec_decoding": none})
    with pytest.raises(Malformed):
        inferencex.read(Record({**INFERENCEX, "conc": None}))
    assert inferencex.matches(INFERENCEX) and not inferencex.matches({"conc": 1, "hw": "x"})


def test_inferencex_over_several_nodes() -> None:
    pools = {
        "disagg": True, "decode_tp": 8, "decode_ep": 4, "decode_dp_attention": "true", "decode_num_workers": 3,
        "prefill_tp": 2, "prefill_ep": 1, "prefill_dp_attention": False, "prefill_num_workers": 5,
    }  # fmt: skip
    found = facts(inferencex, INFERENCEX | pools)
    both = {
        "disaggregated": "1", "tp": "8", "ep": "4", "pp": "1", "decode_ranks": "8", "dp_attention": "1",
        "workers": "3", "prefill_tp": "2", "prefill_ep": "1", "prefill_ranks": "2", "prefill_dp_attention": "0",
        "prefill_workers": "5",
    }  # fmt: skip
    assert {name: found[name] for name in both} == both
    nodes = facts(inferencex, INFERENCEX | {"is_multinode": "1", "tp": 16, "dp_attention": "True"})
    alone = {"disaggregated": "0", "tp": "16", "ep": "1", "decode_ranks": "16", "dp_attention": "1"}
    assert {name: nodes[name] for name in alone} == alone and "prefill_tp" not in nodes


@for_each(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.19.0", "0.19.0"), ("a/b", ""), ("", ""), ("a/b:latest", ""), ("nvcr.io/dynamo:0.8", ""),
        ("host:5000/x:0.5.1", "0.5.1"), ("rocm:7.1_atom0.1.3_x", "0.1.3"),
    ],
)  # fmt: skip
def test_the_version_of_an_image(image: str, version: str) -> None:
    assert inferencex.version_of(image) == version


def test_llama_bench() -> None:
    """1,076,767,880 ns over 128 tokens; n_gen steps make one token more than the first."""
    found = {
        "model": "Qwen2.5-7B", "gpu": "NVIDIA GeForce RTX 4080", "engine": "llama.cpp", "weights": "q4_k_m",
        "kv": "fp16", "tp": "1", "batch": "1", "max_num_batched_tokens": "512", "isl": "1", "osl": "129",
    }  # fmt: skip
    decode = facts(llama_bench, LLAMA_BENCH)
    assert float(decode.pop("tpot_ms")) == pytest.approx(1076.76788 / 128) and decode == found
    deep = facts(llama_bench, LLAMA_BENCH | {"n_depth": 4096})
    assert (deep["isl"], deep["osl"]) == ("4096", "129")
    both = facts(llama_bench, LLAMA_BENCH | {"n_prompt": 512, "n_depth": 100})
    assert (both["isl"], both["osl"], float(both["e2el_ms"])) == ("612", "128", pytest.approx(1076.76788))
    behind = facts(llama_bench, LLAMA_BENCH | {"n_prompt": 512, "n_gen": 0, "n_depth": 100})
    assert behind["suspect"] == "a prefill behind a filled cache" and "isl" not in behind
    two = facts(llama_bench, LLAMA_BENCH | {"gpu_info": "A, A", "type_k": "f32", "model_type": "qwen2 7B F16"})
    assert (two["gpu"], two["pp"], two["kv"], two["weights"]) == ("A", "2", "fp32", "fp16")
    mixed = facts(llama_bench, LLAMA_BENCH | {"gpu_info": "A,B", "model_type": "x", "model_filename": "m-IQ2_XXS.gguf"})
    assert "gpu" not in mixed and mixed["pp"] == "2" and "weights" not in mixed and mixed["model"] == "m"
    for kind, weights in (("a Q4_K - Small", "q4_k_s"), ("IQ2_XXS - 2.06 bpw", "iq2_xxs"), ("7B BF16", "bf16")):
        assert facts(llama_bench, LLAMA_BENCH | {"model_type": kind})["weights"] == weights
    with pytest.raises(Malformed):
        llama_bench.read(Record({**LLAMA_BENCH, "avg_ns": None}))
    assert llama_bench.matches(LLAMA_BENCH) and not llama_bench.matches({"n_gen": 1})


def test_mlperf() -> None:
    found = {
        "statistic": "p99", "output_tokens_per_s": "8840.42", "rate_per_s": "29.41", "duration_s": "600",
        "ttft_ms": "435.9761", "tpot_ms": "39.507635",
    }  # fmt: skip
    read = mlperf.read(MLPERF)
    assert {name: read[name] for name in found if "ms" not in name} == {
        name: value for name, value in found.items() if "ms" not in name
    }
    assert [float(read[name]) for name in ("ttft_ms", "tpot_ms")] == pytest.approx([435.9761, 39.507635])
    assert "suspect" not in read
    invalid = mlperf.read(MLPERF.replace("VALID", "INVALID"))
    assert invalid["suspect"] == "invalid"
    offline = mlperf.read(MLPERF.replace("Server", "Offline"))
    assert "rate_per_s" not in offline
    target = mlperf.read(MLPERF.replace("Completed samples per second", "x"))
    assert target["rate_per_s"] == "29.5"
    assert "rate_per_s" not in mlperf.read("Scenario : Server\nResult is : VALID\n")
    assert mlperf.read("99.00 percentile first token latency (ns) : soon")["ttft_ms"] == "soon"
    assert (
        mlperf.matches(MLPERF) and mlperf.matches("SUT name : x\nScenario : y") and not mlperf.matches("SUT name : x")
    )


def test_cells_of_a_table() -> None:
    """Seconds are milliseconds of ours; what a file says of its campaign is kept."""
    read = plain._facts
    assert read({"prompt_tokens_mean": "9", "rate": "2", "concurrency": "", "refused": "x", "ttft_mean_s": "0.25"}) == {
        "isl": "9", "rate_per_s": "2", "ttft_mean_s": "0.25", "ttft_ms": "250.0"
    }  # fmt: skip
    assert read({"ttft_mean_s": "0.25", "ttft_ms": "7"})["ttft_ms"] == "7"
    assert read({"tpot_mean_s": "soon"})["tpot_ms"] == "soon"
    campaign = {"framework": "x", "image": "", "decode_ranks": "1"}
    assert read(campaign)["campaign"] == "inferencex"
    assert read({**campaign, "campaign": "own"})["campaign"] == "own"
    assert read({**campaign, "isl": "9"})["campaign"] == "inferencex"
    assert "campaign" not in read({"framework": "x", "image": ""})
    stages = read({"arrival": "poisson"})
    assert (stages["precision"], stages["campaign"]) == ("native", "open-loop")
    assert read({"arrival": "poisson", "weights": "fp8", "campaign": "own"}) == {
        "arrival": "poisson", "weights": "fp8", "campaign": "own"
    }  # fmt: skip
    assert "precision" not in read({"weights": "fp8"}) and "concurrency" in read({"concurrency": "3", "rate": "2"})


def test_values_of_a_record() -> None:
    held = Record(
        {"a": {"b": [1]}, "n": 3.0, "big": 10**40, "list": [{"x": 1}, 2], "t": True, "inf": float("inf")}, "at"
    )
    assert held.object("a").where == "at.a" and held.object("none") == {}
    assert Record({}).object("x").where == "x"
    assert (held.number("n"), held.count("n"), held.number("none"), held.number("inf")) == (3.0, 3, None, None)
    assert Record({"n": 0}).number("n") == 0 and Record({"n": 1e15}).number("n") == 1e15
    for name, said in (
        ("t", "at.t is True, not a number"),
        ("big", "at.big is a number that large, not"),
        ("a", "at.a"),
    ):
        with pytest.raises(Malformed, match=said):
            held.number(name)
    with pytest.raises(Malformed, match=r"at\.n is -1, not a number of 0 or more"):
        Record({"n": -1}, "at").number("n")
    with pytest.raises(Malformed, match=r"n is 2\.5, not a whole number"):
        Record({"n": 2.5}).count("n")
    with pytest.raises(Malformed, match=r"at\.n is 3\.0, not an object"):
        held.object("n")
    with pytest.raises(Malformed, match=r"at.list\[1\] is 2, not an object"):
        held.objects("list")
    with pytest.raises(Malformed, match=r"at\.a is .*, not a list"):
        held.objects("a")
    assert Record({"l": [{"x": 1}]}).objects("l")[0].where == "l[0]"
    assert show_value(None) == "nothing" and show_value("x" * 99) == "'" + "x" * 39 and show_value(-(10**40)) != "-1"


def test_objects_of_a_file() -> None:
    path = Path("x")
    assert _objects(path, '{"a": 1}\n {"b": 2},\r\n[{"c": 3}]\t') == [{"a": 1}, {"b": 2}, {"c": 3}]
    for text in ("[]", "[{}, 3]", " \n"):
        with pytest.raises(InputFileError):
            _objects(path, text)


LATE = {"name": "ttft", "planned": 0.2, "limit": 0.5, "band": (0.16, 0.24)}


@for_each(
    ("measured", "changes", "words", "good"),
    [
        (0.2, {}, "as planned", True),
        (0.16, {}, "as planned", True),
        (0.24, {}, "as planned", True),
        (0.15, {}, "faster than the band", False),
        (0.25, {}, "slower than the band", False),
        (0.5, {}, "slower than the band", False),
        (0.6, {}, "over the limit, slower than the band", False),
        (0.6, {"band": None}, "over the limit", False),
        (0.5, {"band": None}, "within the limit; no band is known", True),
        (9.0, {"band": None, "limit": None}, "within the limit; no band is known", True),
        (0.2, {"limit": 0.1}, "over the limit", False),
    ],
)
def test_as_planned(measured: float, changes: dict[str, Any], words: str, good: bool) -> None:
    one = AsPlanned(measured=measured, **LATE | changes)  # type: ignore[arg-type]
    assert (one.words, one.good, one.ratio) == (words, good, measured / 0.2)
    assert one.inside is (None if one.band is None else 0.16 <= measured <= 0.24)
    assert all_as_planned([one]) is good and all_as_planned([])


def test_a_budget_of_a_run_script() -> None:
    """(3 x places + prompt + 127)/64 whole, times 64: 3 x 16 + 1,000 + 127 = 1,175 is 18 times 64 and more."""
    row = {"concurrency": "64", "isl": "1000.0", "tp": "4", "decode_ranks": ""}
    assert TokenBudget(each=3, per_rank=True).sets(row) == {"max_num_batched_tokens": "1152"}
    assert TokenBudget(each=3).sets(row) == {"max_num_batched_tokens": str((3 * 64 + 1000 + 127) // 64 * 64)}
    assert TokenBudget(each=3, per_rank=True).sets({**row, "decode_ranks": "64"}) == {"max_num_batched_tokens": "1088"}
    few = TokenBudget(each=100, per_rank=True).sets({**row, "concurrency": "1"})
    assert few == {"max_num_batched_tokens": str((100 + 1000 + 127) // 64 * 64)}
    assert TokenBudget(each=3).sets({"isl": "9"}) == TokenBudget(each=3).sets({**row, "isl": "x"}) == {}
    script = Script(source="s", when={}, sets={"a": "1"}, budget=TokenBudget(each=3))
    assert script.flags(row) == {"a": "1", "max_num_batched_tokens": "1280"}
    assert Script(source="s", when={}, sets={"a": "1"}).flags(row) == {"a": "1"}
    assert LoadGenerator(source="x").start == "burst"


def test_facts_that_say_the_same() -> None:
    assert _alike("8.0", "8") and _alike(None, "0") and _alike(" FP8 ", "fp8") and _alike("", "0")
    assert not _alike("8", "9") and not _alike("x", "0") and not _alike(None, "fp8")
    assert _among("b", ["a", "B"]) and _among("a", "a") and not _among("c", ["a", "b"]) and not _among("b", "abc")


@for_each(
    ("decode", "degrees", "noted"),
    [
        ({"decode_ranks": "8", "tp": "8", "ep": "4"}, (8, 1, 4), False),
        ({"decode_ranks": "8", "tp": "8", "ep": "4", "dp_attention": "1"}, (1, 8, 4), False),
        ({"decode_ranks": "8", "tp": "1", "ep": "4", "dp_attention": "true"}, (1, 8, 8), True),
        ({"decode_ranks": "8", "tp": "2", "ep": "4"}, (8, 1, 1), True),
    ],
)
def test_the_division_of_ranks(decode: dict[str, str], degrees: tuple[int, int, int], noted: bool) -> None:
    run, notes = interpret({**LEAST, **decode, "pp": "3"})
    assert (run.tp, run.dp, run.ep, run.pp) == (*degrees, 3)
    said = "decode ep not labelled: experts over all ranks of attention-DP, else sliced"
    assert (said in notes) is noted


def test_pools_of_a_row() -> None:
    apart = {
        "disaggregated": "1", "workers": "3", "prefill_workers": "2", "prefill_ranks": "4", "prefill_tp": "2",
        "prefill_dp_attention": "1", "prefill_redundant_experts": "16", "prefill_max_num_batched_tokens": "4096",
        "prefill_max_num_seqs": "7", "prefill_memory_fraction": "0.7", "prefill_dispatch_format": "fp8",
        "decode_ranks": "8", "tp": "8", "pp": "1",
    }  # fmt: skip
    run, notes = interpret({**LEAST, **apart})
    assert run.prefill == PromptWorkers(
        workers=2, tp=1, dp=4, ep=4, expert_slots=16, token_budget=4096, slots=7, memory_fraction=0.7, dispatch="fp8"
    )
    assert "prefill ep not labelled: experts over all ranks of attention-DP, else sliced" in notes
    assert (run.devices, run.decoding_devices, run.form) == (3 * 8 + 2 * 4, 24, "disaggregated")
    least = interpret({**LEAST, **apart, "prefill_tp": "4", "prefill_max_num_seqs": "0", "prefill_dp_attention": ""})[0]
    assert least.prefill is not None
    assert (least.prefill.tp, least.prefill.dp, least.prefill.ep, least.prefill.slots) == (4, 1, 1, None)


def test_facts_as_values() -> None:
    assert [text_of({"a": text}, "a") for text in (" x ", "NaN", "n/a", "-", "", "None")] == ["x"] + [None] * 5
    assert text_of({}, "a") is None
    assert number({"a": "2.5"}, "a") == 2.5 and number({"a": ""}, "a") is None and number({"a": "1"}, "a", 1.0) == 1.0
    assert number({"a": "1e15"}, "a") == 1e15
    for text, said in (("0.9", "a is 0.9, must be 1 to 1e+"), ("1e16", "must be"), ("x", "a is 'x', not a number")):
        with pytest.raises(Unusable, match=said.replace("+", r"\+")):
            number({"a": text}, "a", 1.0)
    assert whole_number({"a": "3.0"}, "a") == 3 and whole_number({"a": ""}, "a") is None
    assert [truth({"a": text}, "a") for text in ("1", "TRUE", "1.0", "0", "false", "0.0", "")] == [True] * 3 + [
        False
    ] * 4


RUN: dict[str, Any] = dict.fromkeys(("engine_version", "precision", "weights", "experts", "kv", "activations"))
RUN |= {"model": "m", "gpu": "g", "engine": "e", "prompt": 9.0, "output": 3.0}


def test_what_a_run_is_called() -> None:
    assert Run(**RUN).label == "native" and Run(**{**RUN, "precision": "fp8"}).label == "fp8"
    assert Run(**{**RUN, "weights": "int4", "precision": "fp8"}).label == "int4"
    assert Run(**{**RUN, "weights": "int4", "experts": "int4"}).label == "int4"
    assert Run(**{**RUN, "weights": "int4", "experts": "fp4"}).label == "int4, experts fp4"
    full = Run(**RUN, dp=2, draft="mtp", kernels="x@1", concurrency=3, tp=4, pp=3, workers=5)
    assert (full.form, full.library, full.closed) == ("aggregated, attention-DP, MTP", "x@1", True)
    assert (full.devices, Run(**RUN).library, Run(**RUN).closed, Run(**RUN).form) == (120, "e", False, "aggregated")
    assert full.pair == ("m", "g")


def scored(measured: dict[Any, float], predicted: dict[Any, float], **more: Any) -> Any:
    """A row with figures by (metric, statistic), and its prediction whose band is +-10 %."""

    def at(figures: dict[Any, float], own: str) -> Any:
        return lambda metric, statistic=None: figures.get((metric, statistic or own))

    def band(metric: str, other: str | None) -> Any:
        value = predicted.get((metric, other or "mean"))
        return None if value is None else (0.9 * value, 1.1 * value)

    row = SimpleNamespace(
        measured=SimpleNamespace(
            at=at(measured, "mean"), statistic="mean", ttft=measured.get(("ttft", "mean")), tpot=None, figures=measured
        ), cells={}, run=Run(**{**RUN, **more})
    )  # fmt: skip
    return Scored(row=row, prediction=SimpleNamespace(at=at(predicted, "mean"), band=band))  # type: ignore[arg-type]


ROWS = [
    scored({("ttft", "mean"): 1.0, ("ttft", "p99"): 4.0}, {("ttft", "mean"): 1.2, ("ttft", "p99"): 4.0}),
    scored({("ttft", "mean"): 1.0}, {("ttft", "mean"): 0.95}, model="n"),
    scored({("ttft", "mean"): 0.0}, {("ttft", "mean"): 2.0}),
    scored({}, {("ttft", "mean"): 2.0}),
    scored({("ttft", "mean"): 2.0}, {}),
]


def test_scores_by_hand() -> None:
    """20 % above and 5 % below: 12.5 % on average, 7.5 % of bias; one of two within the band. What is 0, or missing,
    has no error."""
    found = score(ROWS, "ttft")
    assert found is not None and found.n == 2
    assert (found.mape, found.median, found.p90) == pytest.approx((0.125, 0.125, 0.185))
    assert (found.bias, found.coverage) == pytest.approx((0.075, 0.5))
    assert found.text == "12.5% / 12.5% / 18.5%"
    assert found.record() == {
        "n": 2, "mape": found.mape, "median": found.median, "p90": found.p90, "bias": found.bias, "coverage": 0.5
    }  # fmt: skip
    assert score(ROWS, "tpot") is None and score([], "ttft") is None
    assert score([Scored(row=ROWS[0].row, prediction=None)], "ttft") is None
    assert score(ROWS, "ttft", "p99") == Score(n=1, mape=0.0, median=0.0, p90=0.0, bias=0.0, coverage=1.0)
    assert Score.of(np.array([-0.5])).bias == -0.5 and Score.of(np.array([-0.5])).coverage is None
    assert [name for name, _ in statistics(ROWS, "ttft")] == ["mean", "p99"] and statistics(ROWS, "rate") == []
    groups = by(ROWS, lambda one: one.row.run.model, "ttft")
    assert {name: one.n for name, one in groups.items()} == {"m": 1, "n": 1}


def test_doubts_about_a_row() -> None:
    assert not ROWS[0].suspect and scored({}, {}, suspect="cold").suspect
    bare = SimpleNamespace(run=None, cells={"suspect": "cold"})
    assert Scored(row=bare, prediction=None).suspect  # type: ignore[arg-type]
    assert Scored(row=bare, prediction=None).impossible == Scored(row=bare, prediction=None).above_uncertain == ()  # type: ignore[arg-type]


def test_names_of_the_catalogue() -> None:
    """Weights come from a label where nothing states them; what is unknown stays as it is."""
    row = {"model": "meta-llama/Llama-3.1-8B", "gpu": "H100-SXM", "precision": "FP8"}
    found = resolve_names(row)
    assert found == row | {"model": "llama-3.1-8b", "gpu": "h100-sxm", "weights": "fp8"}
    assert resolve_names(row | {"weights": "int4"})["weights"] == "int4"
    assert "weights" not in resolve_names({"model": "llama-3.1-8b", "gpu": "h100-sxm"})
    unknown = resolve_names({"model": "nobody/knows", "gpu": "nope", "precision": "fp8"})
    assert unknown == {"model": "nobody/knows", "gpu": "nope", "precision": "fp8", "weights": ""}


def test_facts_of_the_command_line() -> None:
    assert stated_facts({"quant": "fp8", "engine": "vllm@0.19", "gpu": "h100-sxm", "tp": "2", "isl": "9"}) == {
        "precision": "fp8", "engine": "vllm", "engine_version": "0.19", "gpu": "h100-sxm", "tp": "2", "isl": "9"
    }  # fmt: skip
    assert stated_facts({"memory_fraction": "0", "length_ratio_min": "1", "concurrency": "1", "tp": "0"})


@for_each(
    ("name", "value", "said"),
    [
        ("quant", "é", "--quant"),
        ("gpu", "nope", "--gpu"),
        ("engine", "nope@7", "--engine"),
        ("weights", "nope", "--weights"),
        ("isl", "0.5", "--isl is 0.5, must be 1"),
        ("concurrency", "0", "--concurrency is 0, must be 1"),
        ("concurrency", "1;2", "--concurrency is '1;2'"),
        ("tp", "1.5", "--tp is 1.5, not a whole number"),
        ("memory_fraction", "2", "--memory-fraction is 2"),
        ("length_ratio_min", "0", "--length-ratio-min is 0"),
        ("max_num_seqs", "-1", "--max-num-seqs is -1"),
        ("osl", "x", "--osl is 'x'"),
        ("requests", "0", "--requests is 0"),
    ],
)
def test_facts_that_no_row_could_take(name: str, value: str, said: str) -> None:
    with pytest.raises(InferplanError) as refused:
        stated_facts({name: value})
    assert refused.value.what.startswith(said)
