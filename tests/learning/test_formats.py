"""What each engine writes, line by line as its source prints it, and what is read of it: expected loads by hand."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import InputFileError
from inferplan.estimate.deployment import Deployment
from inferplan.learning.observed import Recorded, StepLoad
from inferplan.learning.records import read_records
from tests.cases import for_each


@cache
def deployed(engine: str = "vllm") -> Deployment:
    return assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", quant="bf16", engine=engine))


def read(path: Path, text: str, context: float | None = None, engine: str = "vllm") -> Recorded:
    path.write_text(text, encoding="utf-8")
    (found,) = read_records([str(path)], deployed(engine), context)
    return found


SGLANG = """\
[2026-03-14 04:59:01] server_args=ServerArgs(model_path='m', decode_log_interval=20, log_level='info')
[2026-03-14 04:59:02 TP0] Decode batch, #running-req: 20, #full token: 20000, full token usage: 0.14, mamba num: 20, \
mamba usage: 1.00, cuda graph: True, gen throughput (token/s): 900.00, #queue-req: 6,
[2026-03-14 04:59:02 TP0] Prefill batch, #new-seq: 2, #new-token: 3000, #cached-token: 64, full token usage: 0.00, \
mamba usage: 0.05, #running-req: 19, #queue-req: 0, cuda graph: False, input throughput (token/s): 7.34
[2026-03-14 04:59:03 TP0] Decode batch, #running-req: 20, #full token: 24000, full token usage: 0.14, mamba num: 20, \
mamba usage: 1.00, cuda graph: True, gen throughput (token/s): 1000.00, #queue-req: 6,
[2026-03-14 04:59:04 TP0] Decode batch, #running-req: 20, #full token: 24400, full token usage: 0.14, mamba num: 20, \
mamba usage: 1.00, cuda graph: False, gen throughput (token/s): 500.00, #queue-req: 6,
[2026-03-14 04:59:05 TP0] Prefill batch, #new-seq: 1, #new-token: 10, #cached-token: 0, full token usage: 0.00, \
mamba usage: 0.05, #running-req: 0, #queue-req: 0, cuda graph: False, input throughput (token/s): 7.34
[2026-03-14 04:59:06 TP0] Decode batch, #running-req: 1, #full token: 44, full token usage: 0.14, mamba num: 20, \
mamba usage: 1.00, cuda graph: True, gen throughput (token/s): 3.00, #queue-req: 6,
"""


def test_windows_of_sglang(tmp_path: Path) -> None:
    """20 sequences at 1,000 tokens/s: 20 ms a decode step, a twentieth of which the prompts' batch is."""
    found = read(tmp_path / "sglang.log", SGLANG, engine="sglang")
    (one,) = found.observed
    assert one.seconds == pytest.approx(0.020)
    assert one.steps == ((1.0, StepLoad(decodes=20.0, context=1100.0)), (0.05, StepLoad(2.0, 1500.0, 32.0)))
    assert one.where.endswith("sglang.log:4")
    assert sum(found.passed_over.values()) == 2
    with pytest.raises(InputFileError, match="drafts"):
        read(tmp_path / "drafts.log", SGLANG.replace("cuda graph", "accept len: 3.04, cuda graph"), engine="sglang")
    with pytest.raises(InputFileError, match="ranks"):
        read(tmp_path / "ranks.log", SGLANG + SGLANG.replace("TP0", "DP1 TP0").partition("\n")[2])


VLLM = """\
(EngineCore_DP0 pid=9) INFO 07-09 03:15:01 [kv_cache_utils.py:1307] GPU KV cache size: 400,000 tokens
(EngineCore_DP0 pid=9) INFO 07-09 03:15:05 [v1/engine/core.py:359] Iteration(15): 2 context requests, 7986 context \
tokens, 14 generation requests, 14 generation tokens, iteration elapsed time: 1115.64 ms, GPU KV cache usage: 8.0%
(EngineCore_DP0 pid=9) INFO 07-09 03:15:06 [v1/engine/core.py:359] Iteration(16): 0 context requests, 0 context \
tokens, 16 generation requests, 16 generation tokens, iteration elapsed time: 20.00 ms, GPU KV cache usage: 8.0%
(EngineCore_DP0 pid=9) INFO 07-09 03:15:06 [v1/engine/core.py:359] Iteration(17): 0 context requests, 0 context \
tokens, 16 generation requests, 48 generation tokens, iteration elapsed time: 30.00 ms, GPU KV cache usage: 8.0%
"""


def test_iterations_of_vllm(tmp_path: Path) -> None:
    """8 % of a cache of 400,000 tokens are 2,000 for each of 16 requests."""
    found = read(tmp_path / "vllm.log", VLLM + "(APIServer pid=7) INFO 07-09 [loggers.py:127] Engine 000: Avg prompt\n")
    assert [one.seconds for one in found.observed] == pytest.approx([1.11564, 0.02])
    assert found.observed[0].steps == ((1.0, StepLoad(2.0, 3993.0, 0.0, 14.0, 2000.0)),)
    assert found.observed[1].steps == ((1.0, StepLoad(0.0, 0.0, 0.0, 16.0, 2000.0)),)
    assert found.passed_over == {"steps with drafts: more tokens than sequences that decode": 1}
    dummy = VLLM.splitlines()[2].replace("ms, GPU", "ms (dummy), GPU")
    assert read(tmp_path / "dummy.log", f"{VLLM}{dummy}\n").passed_over["steps without requests"] == 1
    with pytest.raises(InputFileError, match="several engines"):
        read(tmp_path / "two.log", VLLM + VLLM.replace("DP0", "DP1"))
    bare = VLLM.replace(", GPU KV cache usage: 8.0%", "")
    with pytest.raises(InputFileError, match="--context"):
        read(tmp_path / "bare.log", bare)
    assert read(tmp_path / "bare.log", bare, 1500.0).observed[1].steps[0][1].context == 1500.0


VLLM_ON_A_CPU = """\
(EngineCore pid=20799) INFO 11-30 13:59:45 [kv_cache_utils.py:2327] CPU KV cache size: 65,536 tokens, Maximum \
concurrency for 2,048 tokens per request: 32.00x
(APIServer pid=20748) INFO 11-30 14:06:31 [loggers.py:199] Engine 000: Iteration(1944): 2 context requests, 384 \
context tokens, 1 generation requests, 1 generation tokens, iteration elapsed time: 758.81 ms, CPU KV cache usage: 1.2%
(APIServer pid=20748) INFO 11-30 14:06:32 [loggers.py:199] Engine 000: Iteration(1946): 0 context requests, 0 \
context tokens, 3 generation requests, 3 generation tokens, iteration elapsed time: 28.70 ms, CPU KV cache usage: 1.2%
"""


def test_a_line_without_its_context_has_that_of_the_nearest(tmp_path: Path) -> None:
    """Of 160,000 tokens 8 % over 16 sequences are 800 each, 16 % 1,600. A line of 16 sequences between takes that of
    the nearest of about as many, the earlier of two; one of 40 has no such line, and is as --context says."""
    pool = VLLM.splitlines()[0].replace("400,000", "160,000")
    assert "160,000 tokens" in pool

    def line(sequences: int, used: str) -> str:
        said = f", GPU KV cache usage: {used}%" if used else ""
        return (
            f"INFO Iteration(1): 0 context requests, 0 context tokens, {sequences} generation requests, {sequences} "
            f"generation tokens, iteration elapsed time: 20.00 ms{said}\n"
        )

    text = f"{pool}\n" + "".join(
        line(*one) for one in [(16, "8.0"), (16, ""), (17, ""), (16, "16.0"), (16, ""), (40, "")]
    )
    contexts = [one.steps[0][1].context for one in read(tmp_path / "own.log", text, 300.0).observed]
    assert contexts == [800.0, 800.0, 1600.0, 1600.0, 1600.0, 300.0]
    with pytest.raises(InputFileError, match=r"own\.log:7: .* does not state the context"):
        read(tmp_path / "own.log", text)


def test_iterations_of_vllm_on_a_cpu(tmp_path: Path) -> None:
    """As 0.32 printed them: 1.2 % of 65,536 tokens are 786, of three requests 262 each."""
    found = read(tmp_path / "vllm.log", VLLM_ON_A_CPU)
    assert [one.seconds for one in found.observed] == pytest.approx([0.75881, 0.0287])
    assert found.observed[0].steps[0][1][:4] == (2.0, 192.0, 0.0, 1.0)
    assert found.observed[1].steps[0][1].context == pytest.approx(0.012 * 65536 / 3)


def test_means_of_vllm_where_the_same_sequences_decode(tmp_path: Path) -> None:
    """32 sequences at 1,600 tokens/s: 20 ms a step. A line after another batch, and one with prompts, say nothing."""
    line = (
        "INFO 08-25 17:09:16 [loggers.py:127] Engine 000: Avg prompt throughput: {} tokens/s, Avg generation "
        "throughput: 1600.0 tokens/s, Running: {} reqs, Waiting: 0 reqs, GPU KV cache usage: "
        "16.0%, Prefix cache hit rate: 0.0%\n"
    )
    text = (
        VLLM.splitlines()[0] + "\n" + "".join(line.format(*one) for one in ((0.0, 31), (0.0, 32), (0.0, 32), (9.5, 32)))
    )
    found = read(tmp_path / "vllm.log", text)
    assert [(one.seconds, one.steps) for one in found.observed] == [
        (0.02, ((1.0, StepLoad(decodes=32.0, context=2000.0)),))
    ]


TRTLLM = (
    "[TRT-LLM] [I] [_torch][RANK 0] iter = {}, global_rank = 0, rank = 0, {}currank_total_requests = 0/1, "
    "host_step_time = {}ms, prev_device_step_time = 9.0ms, timestamp = 2026-08-23 01:02:03, {}states = "
    "{{'num_ctx_requests': {}, 'num_ctx_tokens': {}, 'num_generation_tokens': {}{}}}\n"
)


def test_iterations_of_tensorrt_llm(tmp_path: Path) -> None:
    new = TRTLLM.format(2, "num_scheduled_requests = 244, ", 12.5, "", 0, 0, 244, ", 'cached_kv_tokens': 61000")
    old = TRTLLM.format(3, "", 40.0, "num_scheduled_requests: 9, ", 1, 2000, 8, "")
    found = read(tmp_path / "trtllm.log", new + old, 100.0, "trtllm")
    assert [(one.seconds, one.steps[0][1]) for one in found.observed] == [
        (0.0125, StepLoad(decodes=244.0, context=250.0)),
        (0.04, StepLoad(1.0, 2000.0, 0.0, 8.0, 100.0)),
    ]


def test_statistics_of_tensorrt_llm(tmp_path: Path) -> None:
    """40 blocks of 32 tokens for four requests: 320 each, of which half of the last block is empty on average."""
    entry = {
        "iter": 154,
        "iterLatencyMS": 7.0,
        "kvCacheStats": {"tokensPerBlock": 32, "usedNumBlocks": 40},
        "inflightBatchingStats": {"numContextRequests": 0, "numGenRequests": 4},
    }
    prompts = {**entry, "inflightBatchingStats": {"numContextRequests": 1, "numGenRequests": 4}}
    found = read(tmp_path / "metrics.json", json.dumps([entry, prompts]), engine="trtllm")
    assert [(one.seconds, one.steps) for one in found.observed] == [
        (0.007, ((1.0, StepLoad(decodes=4.0, context=304.0)),))
    ]


def test_lines_of_a_trace_of_forward_pass_metrics(tmp_path: Path) -> None:
    """The record that Dynamo's reference of ``dynamo.fpm.trace.v1`` shows: 2 prompts of 128 tokens behind 32, and 3
    sequences with 1,024 tokens."""
    scheduled = {
        "num_prefill_requests": 2,
        "sum_prefill_tokens": 256,
        "sum_prefill_kv_tokens": 64,
        "num_decode_requests": 3,
        "sum_decode_kv_tokens": 1024,
    }
    fpm = {"version": 1, "worker_id": "4192", "dp_rank": 0, "wall_time": 0.025, "scheduled_requests": scheduled}
    line = {"timestamp": 1250, "event": {"schema": "dynamo.fpm.trace.v1", "capture_mode": "sampled", "fpm": fpm}}
    (one,) = read(tmp_path / "fpm.jsonl", json.dumps(line) + "\n").observed
    assert one.seconds == 0.025
    assert one.steps == ((1.0, StepLoad(2.0, 128.0, 32.0, 3.0, 1024 / 3)),)


LLAMA_CPP = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total {}
llamacpp:tokens_predicted_total {}
llamacpp:tokens_predicted_seconds_total {}
llamacpp:n_decode_total {}
llamacpp:n_busy_slots_per_decode {}
"""


def test_scrapes_of_llama_cpp(tmp_path: Path) -> None:
    """100 steps of two slots in 4 s of each slot's time: 20 ms a token."""
    scrapes = [(500, 200, 1.0, 100, 1.0), (500, 400, 5.0, 200, 1.5)]
    found = read(tmp_path / "llama.txt", "".join(LLAMA_CPP.format(*one) for one in scrapes), 700.0, "llama.cpp")
    (one,) = found.observed
    assert one.seconds == pytest.approx(0.020)
    assert one.steps == ((1.0, StepLoad(decodes=2.0, context=700.0)),)


TGI = """\
tgi_batch_inference_duration_sum{{method="prefill"}} {}
tgi_batch_inference_duration_count{{method="prefill"}} {}
tgi_batch_inference_duration_sum{{method="decode"}} {}
tgi_batch_inference_duration_count{{method="decode"}} {}
tgi_batch_inference_duration_bucket{{method="decode",le="+Inf"}} 12
tgi_batch_current_size {}
tgi_request_input_length_sum {}
tgi_request_input_length_count {}
"""


LLAMA_LOG = """\
0.08.013.040 I slot get_availabl: id  3 | task -1 | selected slot by LRU, t_last = -1
0.08.013.147 I slot launch_slot_: id  3 | task 0 | processing task, is_child = 0
0.08.831.843 I slot print_timing: id  3 | task 0 | prompt eval time =     570.72 ms /    41 tokens
0.08.831.853 I slot print_timing: id  3 | task 0 |        eval time =     247.80 ms /     8 tokens
0.08.831.854 I slot print_timing: id  3 | task 0 |       total time =     818.52 ms /    49 tokens
0.08.831.876 I slot      release: id  3 | task 0 | stop processing: n_tokens = 148, truncated = 0
1.00.000.000 I slot launch_slot_: id  2 | task 9 | processing task, is_child = 0
1.00.100.000 I slot launch_slot_: id  1 | task 10 | processing task, is_child = 0
1.00.831.843 I slot print_timing: id  2 | task 9 | prompt eval time =     570.72 ms /    41 tokens
1.00.831.853 I slot print_timing: id  2 | task 9 |        eval time =     247.80 ms /     8 tokens
1.00.831.876 I slot      release: id  2 | task 9 | stop processing: n_tokens = 48, truncated = 0
1.00.931.843 I slot print_timing: id  1 | task 10 | prompt eval time =     570.72 ms /    41 tokens
1.00.931.853 I slot print_timing: id  1 | task 10 |        eval time =     247.80 ms /     8 tokens
1.00.931.876 I slot      release: id  1 | task 10 | stop processing: n_tokens = 48, truncated = 0
1.01.000.000 I slot launch_slot_: id  1 | task 30 | processing task, is_child = 0
1.01.831.843 I slot print_timing: id  1 | task 30 | prompt eval time =        nan ms /    41 tokens
1.01.831.853 I slot print_timing: id  1 | task 30 |        eval time =     247.80 ms /     8 tokens
1.01.831.876 I slot      release: id  1 | task 30 | stop processing: n_tokens = 48, truncated = 0
"""
"""Of a server of October 2026, in which the first request found 100 tokens in its slot."""


def test_requests_of_llama_cpp(tmp_path: Path) -> None:
    """148 tokens are 100 of the cache, 41 new ones and 7 of the answer's 8; 247.8 ms are 7 steps of 35.4 ms."""
    found = read(tmp_path / "log", LLAMA_LOG, engine="llama.cpp")
    assert [one.steps for one in found.observed] == [
        ((1.0, StepLoad(1.0, 41.0, 100.0)),),
        ((1.0, StepLoad(decodes=1.0, context=145.0)),),
    ]
    assert [one.seconds for one in found.observed] == pytest.approx([0.57072, 0.0354])
    assert sorted(found.passed_over.values()) == [1, 2]


def test_scrapes_of_tgi(tmp_path: Path) -> None:
    """100 decode steps in 2.5 s; 10 batches with 20 prompts of 300 tokens in 1 s."""
    text = TGI.format(1.0, 5, 1.0, 50, 16, 1000, 4) + TGI.format(2.0, 15, 3.5, 150, 16, 7000, 24)
    found = read(tmp_path / "tgi.txt", text, 400.0, "none")
    assert [(one.seconds, one.steps[0][1]) for one in found.observed] == [
        (pytest.approx(0.025), StepLoad(decodes=16.0, context=400.0)),
        (pytest.approx(0.1), StepLoad(2.0, 300.0, 0.0)),
    ]


def test_records_that_are_broken_and_records_without_work(tmp_path: Path) -> None:
    names = ("num_prefill_requests", "sum_prefill_tokens", "sum_prefill_kv_tokens", "num_decode_requests")
    entry = {**dict.fromkeys(names, 0), "sum_decode_kv_tokens": 0, "duration_ms": 25.0}
    busy = {**entry, "num_decode_requests": 4, "sum_decode_kv_tokens": 2000}
    prompt = {**entry, "num_prefill_requests": 1, "sum_prefill_tokens": 300}
    timeless = {**busy, "duration_ms": 0.0}
    found = read(tmp_path / "own.jsonl", "\n".join(json.dumps(one) for one in (entry, busy, prompt, timeless)))
    assert [(one.seconds, one.steps) for one in found.observed] == [
        (0.025, ((1.0, StepLoad(decodes=4.0, context=500.0)),)),
        (0.025, ((1.0, StepLoad(1.0, 300.0)),)),
    ]
    assert list(found.passed_over.values()) == [1, 1]
    for wrong in (-1, True, "4", float("inf"), 10**400, 1e300, 1e-320, 0.5, [0]):
        with pytest.raises(InputFileError, match="record 2: num_decode_requests"):
            read(tmp_path / "own.jsonl", json.dumps([busy, {**busy, "num_decode_requests": wrong}]))
    with pytest.raises(InputFileError, match="record 1: dp_rank"):
        read(tmp_path / "own.jsonl", json.dumps({**busy, "dp_rank": [0]}))
    with pytest.raises(InputFileError, match="record 1: duration_ms"):
        read(tmp_path / "own.jsonl", json.dumps({**busy, "duration_ms": float("nan")}))
    half = json.dumps(busy)[:60]
    found = read(tmp_path / "own.jsonl", f"{json.dumps(busy)}\n{half}\n")
    assert (len(found.observed), found.passed_over) == (1, {"records that end before their end": 1})
    with pytest.raises(InputFileError, match=r"own\.jsonl:1: not JSON"):
        read(tmp_path / "own.jsonl", f"{half}\n{json.dumps(busy)}\n")
    with pytest.raises(InputFileError, match="not an object"):
        read(tmp_path / "own.jsonl", f"{json.dumps(busy)} 7")


def test_scrapes_of_sglang(tmp_path: Path) -> None:
    """8 sequences, 1,600 gaps of 25 ms in 200 steps, 20 requests of 500 tokens of which 100 were cached."""
    text = "".join(
        f'sglang:num_running_reqs{{model_name="m"}} 8.0\nsglang:num_used_tokens{{model_name="m"}} 8000.0\n'
        f'sglang:inter_token_latency_seconds_count{{model_name="m"}} {gaps}\n'
        f'sglang:inter_token_latency_seconds_sum{{model_name="m"}} {gaps * 0.025}\n'
        f'sglang:num_requests_total{{model_name="m"}} {requests}\n'
        f'sglang:prompt_tokens_total{{model_name="m"}} {requests * 500}\n'
        f'sglang:cached_tokens_total{{model_name="m"}} {requests * 100}\n'
        for gaps, requests in ((0.0, 0.0), (1600.0, 20.0))
    )
    (one,) = read(tmp_path / "sglang.txt", text, engine="sglang").observed
    assert one.seconds == pytest.approx(0.025)
    share = 1 - 2.718281828459045**-0.1  # a tenth of a request each step: with one or more in so many of them
    (_, decodes), (times, prompts) = one.steps
    assert decodes == StepLoad(decodes=8.0, context=1000.0)
    assert prompts == StepLoad(pytest.approx(0.1 / share), 400.0, 100.0)
    assert times == pytest.approx(share * (1 - 0.1 / share / 8))


def test_runs_of_a_benchmark(tmp_path: Path) -> None:
    """8 users at 100 tokens an answer: 0.08 prompts a step, of 500 tokens; the gap is that of the sequences that wait.
    Runs of other loads are counted with their reason; every fifth run is put last."""
    head = "model,gpu,engine,tp,weights,isl,osl,concurrency,rate_per_s,duration_s,tpot_mean_ms,suspect\n"
    line = "llama-3.1-8b,h100-sxm,vllm,{tp},bf16,500,100,{users},{rate},{time},{tpot},{why}\n"
    usual = {"tp": 1, "users": 8, "rate": "", "time": "", "tpot": 20.0, "why": ""}
    rows = [usual, {**usual, "tp": 2}, {**usual, "users": "", "rate": 3, "time": 60}, {**usual, "why": "busy"}]
    rows += [{**usual, "users": 9999}, *({**usual, "tpot": tpot} for tpot in (21.0, 22.0, 23.0, 24.0))]
    found = read(tmp_path / "own.csv", head + "".join(line.format(**row) for row in rows))
    assert [one.seconds for one in found.observed] == pytest.approx([0.020, 0.021, 0.023, 0.024, 0.022])
    share = 1 - 2.718281828459045**-0.08
    (alone, decodes), (beside, mixed) = found.observed[0].steps
    assert alone == pytest.approx((1 - share) * 8 / 7.92)
    assert decodes == StepLoad(decodes=8.0, context=550.0)
    assert beside == pytest.approx(share * (8 - 0.08 / share) / 7.92)
    assert mixed == StepLoad(pytest.approx(0.08 / share), 500.0, 0.0, pytest.approx(8 - 0.08 / share), 550.0)
    assert list(found.passed_over.values()) == [1, 1, 1, 1]


WAITS = "runs whose engine keeps prompts out of steps, or waits for more of them"
BESIDE: dict[str, tuple[dict[str, object], str]] = {
    "as many users as slots": ({"max_num_seqs": 8}, ""),
    "more users than slots": ({"max_num_seqs": 7}, "runs of more users than the engine has slots"),
    "in another format": ({"weights": "fp8"}, "runs in another format"),
    "prompts that are shared": (
        {"shared_system_prompt_tokens": 64},
        "runs with drafts, shared prompts, several workers or pools apart",
    ),
    "a step with prompts in 64": ({"prefill_schedule_interval": 64}, WAITS),
    "prompts in any step": ({"prefill_schedule_interval": 1}, ""),
    "a look at the queue each tenth step": ({"poll_interval_steps": 10}, WAITS),
    "of another release": ({"engine_version": "0.18.0"}, "runs of another release of the engine"),
    "of the same release": ({"engine_version": "v0.12.3rc1"}, ""),
    "without TPOT": ({"tpot_mean_ms": ""}, "runs that are suspect, or state no mean TPOT"),
}


@for_each("name", BESIDE)
def test_runs_of_a_benchmark_by_what_they_state(name: str, tmp_path: Path) -> None:
    """Beside a static batch of four, with 1,000 tokens and half of 200 behind each; lengths drawn from 0.8 of 500 and
    of 100 have a mean of 450 and 90."""
    changes, why = BESIDE[name]
    usual: dict[str, object] = {
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "engine": "vllm",
        "tp": 1,
        "weights": "bf16",
    }
    drawn = {
        **usual,
        "isl": 500,
        "osl": 100,
        "concurrency": 8,
        "length_ratio_min": 0.8,
        "tpot_mean_ms": 20.0,
        **changes,
    }
    static = {**usual, "isl": 1000, "osl": 200, "batch": 4, "tpot_mean_ms": 10.0}
    head = list(dict.fromkeys([*drawn, *static, "max_num_seqs", "shared_system_prompt_tokens"]))
    lines = [",".join(str(row.get(column, "")) for column in head) for row in (static, drawn)]
    found = read(tmp_path / "own.csv", "\n".join([",".join(head), *lines]) + "\n", engine="vllm@0.12")
    assert list(found.passed_over) == ([why] if why else [])
    assert found.observed[0].steps == ((1.0, StepLoad(decodes=4.0, context=1100.0)),)
    if not why:
        (_, alone), (_, mixed) = found.observed[1].steps
        assert (alone.context, mixed.new) == pytest.approx((450 + 45, 450))
        share = 1 - 2.718281828459045 ** -(8 / 90)
        assert mixed.prompts == pytest.approx(8 / 90 / share)


def test_what_is_no_record_of_steps(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="nothing of a server's steps"):
        read(tmp_path / "own.txt", "INFO: started\n")
    with pytest.raises(InputFileError, match="holds 1 scrape"):
        read(tmp_path / "one.txt", LLAMA_CPP.format(1, 2, 3, 4, 5))
    with pytest.raises(InputFileError, match="time no step\nbecause: 1 windows of a scrape that lacks sglang:inter"):
        read(tmp_path / "less.txt", "sglang:num_running_reqs 1\nsglang:num_running_reqs 1\n", engine="sglang")
    with pytest.raises(InputFileError, match="several ranks"):
        lines = 'vllm:iteration_tokens_total_count{engine="0"} 1\nvllm:iteration_tokens_total_count{engine="1"} 1\n'
        read(tmp_path / "ranks.txt", lines * 2)


DECODE = (
    "[2026-03-14 04:59:0{n} TP0] Decode batch. #running-req: {running}, #token: {used}, token usage: 0.14, "
    "cuda graph: True, gen throughput (token/s): {rate}, #queue-req: 6, \n"
)
PREFILL = (
    "[2026-03-14 04:59:02 TP0] Prefill batch. #new-seq: {number}, #new-token: {new}, token usage: 0.00, "
    "#running-req: {running}, #queue-req: 0, \n"
)
WINDOWS: dict[str, tuple[dict[str, float], str]] = {
    "a tenth more": ({"running": 22}, ""),
    "more than a tenth": ({"running": 23}, "windows whose batch changed by more than a tenth"),
    "more than a tenth fewer": ({"running": 17}, "windows whose batch changed by more than a tenth"),
    "no rate": ({"rate": 0.0}, "lines without a rate or tokens in use"),
    "nothing in use": ({"used": 0}, "lines without a rate or tokens in use"),
    "one that is alone": ({"before": 1, "running": 1}, ""),
    "idle before the prompts": ({"beside": 0}, "windows in which nothing ran for a while"),
}


@for_each("name", WINDOWS)
def test_windows_of_sglang_that_tell_and_that_do_not(name: str, tmp_path: Path) -> None:
    """Forty steps where the log does not say, as in releases that state no cached tokens."""
    changes, why = WINDOWS[name]
    facts = {"before": 20, "running": 20, "used": 22_000, "rate": 1000.0, **changes}
    prompts = PREFILL.format(number=1, new=800, running=facts.get("beside", facts["before"]))
    first = DECODE.format(n=1, running=facts["before"], used=1000 * facts["before"], rate=900.0)
    text = first + prompts + PREFILL.format(number=0, new=0, running=facts["before"])
    text += DECODE.format(n=3, running=facts["running"], used=facts["used"], rate=facts["rate"])
    text += "".join(DECODE.format(n=n, running=1, used=500, rate=50.0) for n in (4, 5))
    found = read(tmp_path / "sglang.log", text, engine="sglang")
    alone = facts["running"] == 1  # the second window but one goes from the batch to one sequence
    assert len(found.observed) == (1 if why else 2) + alone
    assert not why or why in found.passed_over
    assert found.observed[-1].steps == ((1.0, StepLoad(decodes=1.0, context=500.0)),)
    if not why:
        one, mean = found.observed[0], (facts["before"] + facts["running"]) / 2
        assert one.seconds == pytest.approx(mean / 1000.0)
        context = (1000.0 + facts["used"] / facts["running"]) / 2
        assert one.steps == (
            (1.0, StepLoad(decodes=mean, context=pytest.approx(context))),
            (1 / 40, StepLoad(1.0, 800.0, 0.0)),
        )


def test_lines_that_say_nothing_of_a_step(tmp_path: Path) -> None:
    """Empty steps, states that are missing, means beside iterations, a cache of unknown size."""
    empty = VLLM.replace("16 generation requests, 16 generation tokens", "0 generation requests, 0 generation tokens")
    mean = (
        "INFO 08-25 17:09:16 [loggers.py:127] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation "
        "throughput: {} tokens/s, Running: {} reqs, Waiting: {} reqs, GPU KV cache usage: 16.0%, Prefix cache hit\n"
    )
    found = read(tmp_path / "vllm.log", empty + mean.format(1600.0, 32, 0) * 2)
    assert len(found.observed) == 1
    assert found.passed_over["steps without requests"] == 1
    lines = (
        mean.format(1600.0, 32, 0) + mean.format(0.0, 32, 0) + mean.format(900.0, 32, 5) + mean.format(1600.0, 32, 0)
    )
    (one,) = read(tmp_path / "means.log", lines, 700.0).observed
    assert one.steps == ((1.0, StepLoad(decodes=32.0, context=700.0)),)
    usual = "num_scheduled_requests: {}, "
    alone = TRTLLM.format(1, "", 30.0, usual.format(2), 2, 512, 0, "")
    nothing = TRTLLM.format(2, "", 30.0, usual.format(0), 0, 0, 0, "")
    drafts = TRTLLM.format(3, "", 30.0, usual.format(4), 0, 0, 12, "")
    without = TRTLLM.format(4, "", 30.0, "", 0, 0, 4, "")
    found = read(tmp_path / "trtllm.log", alone + nothing + drafts + without, engine="trtllm")
    assert [one.steps for one in found.observed] == [((1.0, StepLoad(2.0, 256.0)),)]
    assert list(found.passed_over.values()) == [2, 1]
