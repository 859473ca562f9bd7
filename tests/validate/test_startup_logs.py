"""Start-up logs: predicted memory against what the engine reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferplan.errors import InputFileError
from inferplan.validation.startup_logs import compare_with_log, is_startup_log, parse_log, read_startup_log
from tests.cases import for_each

VLLM = """INFO Initializing a V1 LLM engine (v0.19.1) with config: model='meta-llama/Llama-3.1-8B-Instruct', \
dtype=torch.bfloat16, max_seq_len=131072, tensor_parallel_size=1, pipeline_parallel_size=1, quantization=None, \
kv_cache_dtype=auto, max_num_seqs=256
INFO Model loading took 14.9889 GiB and 4.2 seconds
INFO Available KV cache memory: 54.93 GiB
INFO GPU KV cache size: 449,984 tokens
INFO Maximum concurrency for 131,072 tokens per request: 3.43x
"""
SGLANG = """[2026-01-01] server_args=ServerArgs(model_path='meta-llama/Llama-3.1-8B-Instruct', tp_size=1, \
mem_fraction_static=0.83, chunked_prefill_size=8192, kv_cache_dtype='auto', quantization=None)
Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=63.20 GB, mem usage=15.06 GB.
KV Cache is allocated. #tokens: 411552, K size: 25.12 GB, V size: 25.12 GB
max_total_num_tokens=411552, chunked_prefill_size=8192, max_running_requests=2048, context_len=131072
"""


def test_vllm_lines() -> None:
    found = parse_log(VLLM)
    assert found.engine == "vllm"
    assert found.facts["model"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert found.facts["engine_version"] == "0.19.1"
    assert found.facts["max_model_len"] == "131072"
    assert found.facts["kv"] == ""
    assert found.facts["max_num_seqs"] == "256"
    assert found.logged["kv_tokens"] == 449984
    assert found.logged["concurrency"] == 3.43


def test_sglang_lines() -> None:
    found = parse_log(SGLANG)
    assert found.engine == "sglang"
    assert found.facts["tp"] == "1"
    assert found.logged == {"weights": pytest.approx(15.06 * 2**30), "kv_tokens": 411552}


@for_each("text", [VLLM, SGLANG])
def test_predicted_memory_is_within_a_few_percent(tmp_path: Path, text: str) -> None:
    path = tmp_path / "server.log"
    path.write_text(text)
    assert is_startup_log(text)
    run, startup = read_startup_log(path, {"gpu": "h100-sxm"})
    lines = {line.name: line for line in compare_with_log(run, startup)}
    assert abs(lines["weights"].error) < 0.01
    assert abs(lines["kv_tokens"].error) < 0.06


def test_a_log_that_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("hello\n")
    with pytest.raises(InputFileError, match="cannot be checked"):
        read_startup_log(path, {})


def test_a_log_names_no_device(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(VLLM)
    with pytest.raises(InputFileError, match="gpu is empty"):
        read_startup_log(path, {})
