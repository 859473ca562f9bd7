"""What benches timed beside their operator: taken off a row's time by hand, and the same that a step adds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("pandas")

import pandas as pd

from calibrate.fit import stack
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load_hardware
from inferplan.devices.constants import Fit
from inferplan.estimate.graph import build
from inferplan.work.ops import Conv, Copy, Elementwise, Norm, Op
from inferplan.work.parallel import Parallelism
from inferplan.work.step import decode
from tools.fitting.tables.calibrations import rest_calibration
from tools.fitting.tables.read import measurement_of, read_table, refusal


def latent(
    engine: str, version: str, kernel: str = "default", cache: str = "bfloat16", **columns: object
) -> SimpleNamespace:
    """A row of latent attention: 4 sequences of 1,023 cached tokens, 16 heads of a rank."""
    row = {"num_heads": 16, "batch_size": 4, "isl": 1, "step": 1023, "latency_ms": 0.012, "kv_cache_dtype": cache}
    return SimpleNamespace(framework=engine, version=version, kernel_source=kernel, **row | columns)


def beside(row: SimpleNamespace) -> tuple[Op, ...]:
    return measurement_of("mla_decode", row).rest


def test_tensorrt_llms_latent_attention_turns_and_writes() -> None:
    """Four tokens write 576 elements each; 16 query heads and one key of 64 are turned. A prompt of 100 does so."""
    write, rotary = beside(latent("TRTLLM", "1.3.0rc20", cache="fp8"))
    assert isinstance(write, Copy) and isinstance(rotary, Elementwise)
    assert (write.elements, write.source.name, write.target.name) == (4 * 576, "bf16", "fp8")
    assert (rotary.tokens, rotary.width) == (4, 17 * 64)
    write, rotary = beside(latent("TRTLLM", "1.0.0", isl=100, step=0))
    assert isinstance(write, Copy) and isinstance(rotary, Elementwise)
    assert (write.elements, write.target.name, rotary.tokens) == (4 * 100 * 576, "bf16", 400)


def test_sglangs_latent_attention_writes_and_turns_where_it_quantises() -> None:
    """Its script has one head's key, 128 + 64, for the latent of a prompt."""
    for kernel, cache, names in (
        ("flash_attention", "fp8", ["kv_write"]),
        ("trtllm_mla", "bfloat16", ["kv_write"]),
        ("trtllm_mla", "fp8", ["kv_write", "rotary"]),
    ):
        assert [op.name for op in beside(latent("SGLang", "0.5.14", kernel, cache))] == names
    (write,) = beside(latent("SGLang", "0.5.14", "trtllm_mla", "fp8", isl=100, step=0))
    assert isinstance(write, Copy) and (write.elements, write.target.name) == (4 * 100 * 192, "fp8")


def test_a_row_by_hand_is_its_latency_less_what_was_timed_beside() -> None:
    """12 us of TensorRT-LLM's decode on an H200 (4,800 GB/s), the rest at half the bandwidth and 2 us a kernel: a write
    of 4 x 576 elements moves 2 + 1 bytes each, the rotary embedding of 4 x 17 x 64 moves 2 + 2."""
    rest = rest_calibration(Fit(math=1.0, memory=0.5, overhead=2e-6))
    stacked = stack(
        [measurement_of("mla_decode", latent("TRTLLM", "1.3.0rc20", cache="fp8"))], load_hardware("h200-sxm"), (), rest
    )
    write, rotary = (2e-6 + moved / 2.4e12 for moved in (4 * 576 * 3, 4 * 17 * 64 * 4))
    assert stacked.seconds - stacked.other == pytest.approx(12e-6 - write - rotary, rel=1e-6)


def test_what_is_taken_off_latent_attention_is_what_a_step_adds() -> None:
    """DeepSeek-V3 on 8 devices has 16 heads a rank: its step writes and turns what the calls hold."""
    deployment = assemble(
        Request(
            model="deepseek-v3", gpu="h200-sxm", engine="trtllm", parallel=Parallelism(tp=8), roles=(("kv", "fp8"),)
        )
    )
    added = {op.name: op for stage in build(deployment, decode(4.0, 1023.0)) for op in stage.ops}
    for held in beside(latent("TRTLLM", "1.3.0rc20", cache="fp8")):
        work, other = held.work(), added[f"attn.{held.name}"].work()
        assert (work.flop, work.read, work.write) == (other.flop, other.read, other.write)


def test_a_cache_that_its_script_refuses_is_no_measurement() -> None:
    """TensorRT-LLM's script before 1.1 asserts a bf16 cache, whatever its rows say."""
    assert refusal("mla_decode", latent("TRTLLM", "1.0.0", cache="fp8")) == ""
    assert refusal("mla_decode", latent("TRTLLM", "1.0.0")) is None
    assert refusal("mla_decode", latent("TRTLLM", "1.2.0rc5", cache="fp8")) is None
    assert refusal("mla_decode", latent("SGLang", "0.5.14", cache="fp8")) is None


def scan(engine: str, kernel: str, phase: str = "generation") -> SimpleNamespace:
    """A row of a gated delta net: 2 sequences, 16 key heads and 32 value heads of 128."""
    sizes = {"num_k_heads": 16, "head_k_dim": 128, "num_v_heads": 32, "head_v_dim": 128, "d_conv": 4}
    rows = {"batch_size": 2, "seq_len": 300 if phase == "context" else 1, "phase": phase, "latency_ms": 0.01}
    return SimpleNamespace(framework=engine, version="1", kernel_source=kernel, **sizes | rows)


def test_scans_hold_the_norm_of_queries_and_keys_where_the_kernel_does_it() -> None:
    """2 tokens of 16 query and 16 key heads of 128 each are 64 rows; 2 x 300 tokens are 19,200."""
    packed, chunks = "fused_recurrent_gated_delta_rule_packed_decode", "chunk_gated_delta_rule"
    for engine in ("SGLang", "vLLM"):
        (norm,) = measurement_of("gated_delta_net", scan(engine, packed)).rest
        assert isinstance(norm, Norm) and (norm.tokens, norm.width) == (64, 128)
    (norm,) = measurement_of("gated_delta_net", scan("SGLang", chunks, "context")).rest
    assert isinstance(norm, Norm) and norm.tokens == 19200
    for row in (
        scan("vLLM", f"{chunks}_flashinfer", "context"),
        scan("TRTLLM", chunks, "context"),
        scan("TRTLLM", "fused_recurrent_gated_delta_rule"),
    ):
        assert measurement_of("gated_delta_net", row).rest == ()


def test_tensorrt_llms_convolution_was_timed_over_the_keys() -> None:
    for engine, channels in (("TRTLLM", 2048), ("vLLM", 2 * 2048 + 4096), ("SGLang", 2 * 2048 + 4096)):
        op = measurement_of("gated_delta_net", scan(engine, "causal_conv1d_update")).op
        assert isinstance(op, Conv) and op.channels == channels


def test_the_smoothquant_plugin_was_timed_without_its_quantisation(tmp_path: Path) -> None:
    row = {"gpu": "h200-sxm", "framework": "TRTLLM", "version": "1", "kernel_source": "k", "latency_ms": 0.5}
    pd.DataFrame([row | {"gemm_dtype": dtype, "m": 3, "n": 64, "k": 128} for dtype in ("sq", "int8_wo")]).to_csv(
        tmp_path / "gemm.csv", index=False
    )
    assert [found.measurement.rest for found in read_table(tmp_path, "gemm")] == [(), ()]
