"""The fit: it recovers the constants of synthetic devices, reports wrong ones, and reads tables as what they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("scipy")

from calibrate.files import write_calibration
from calibrate.fit import TERMS_OF, Measurement, errors, fit_all, fit_kernel, split
from inferplan.catalog.files import load_hardware, read_yaml, validate
from inferplan.devices.constants import Calibration, Fit
from inferplan.errors import InputFileError, UsageError
from inferplan.estimate.roofline import TERMS, price
from inferplan.work.formats import find_format
from inferplan.work.ops import Attention, Collective, Copy, GroupedMatmul, Mask, Matmul, Op
from tests.cases import for_each
from tools.fitting.tables.calibrations import calibrate_device, vector_constants, with_fallbacks
from tools.fitting.tables.choose import EAGER, gather
from tools.fitting.tables.read import LARGE_MESSAGE, read_tables, routed
from tools.fitting.tables.transfer import calibrate_unmeasured
from tools.fitting.unknowns import Unknown, pulled_step

BF16, FP8 = find_format("bf16"), find_format("fp8")
H200 = load_hardware("h200-sxm")
TRUTH = Fit(math=0.75, memory=0.82, overhead=3e-6, sharpness=2.0)


def matmuls(count: int = 300, seed: int = 0) -> list[Op]:
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.uniform(np.log([1, 512, 512]), np.log([16384, 16384, 32768]), (count, 3))).round()
    return [Matmul(name="x", m=float(m), k=int(k), n=int(n), weight=BF16, input=BF16, output=BF16) for m, k, n in sizes]


def decodes(count: int = 300) -> list[Op]:
    rng = np.random.default_rng(1)
    found: list[Op] = []
    for batch, past, kv, group in zip(
        2 ** rng.integers(0, 9, count),
        2 ** rng.integers(4, 16, count),
        2 ** rng.integers(0, 4, count),
        2 ** rng.integers(1, 4, count),  # multi-head decodes have a label of their own
    ):
        heads = {"heads": int(kv * group), "kv_heads": int(kv), "key_dim": 128, "value_dim": 128}
        found.append(
            Attention(name="a", batch=float(batch), new=1.0, past=float(past), mask=Mask(), base=BF16, kv=BF16, **heads)
        )
    return found


def timed(ops: list[Op], truth: Fit, noise: float = 0.0) -> list[Measurement]:
    """What a device with these constants would show."""
    rng = np.random.default_rng(2)
    found = []
    for op in ops:
        constants = Calibration(name="truth", constants={op.kernel: {"any": truth}})
        seconds = float(price(op, H200, constants).time) * float(np.exp(noise * rng.standard_normal()))
        found.append(Measurement(op=op, seconds=seconds))
    return found


def distance(fit: Fit, truth: Fit) -> float:
    pairs = [(fit.math, truth.math), (fit.memory, truth.memory), (fit.overhead, truth.overhead)]
    pairs += [(fit.terms.get(name, 0.0), value) for name, value in truth.terms.items()]
    return max(abs(found / true - 1.0) for found, true in pairs)


def test_fit_recovers_the_constants_of_a_device() -> None:
    fit = fit_kernel(timed(matmuls(), TRUTH), H200)
    assert distance(fit, TRUTH) < 0.005
    assert fit.sharpness == TRUTH.sharpness
    assert fit.n == 300


def test_noise_of_five_percent_moves_no_constant_by_more() -> None:
    fit = fit_kernel(timed(matmuls(600), TRUTH, noise=0.05), H200)
    assert distance(fit, TRUTH) < 0.05


def test_a_tenth_of_spoiled_rows_hardly_matters() -> None:
    measured = timed(matmuls(), TRUTH, noise=0.02)
    spoiled = [
        Measurement(op=m.op, seconds=m.seconds * (10.0 if index % 10 == 0 else 1.0)) for index, m in enumerate(measured)
    ]
    assert distance(fit_kernel(spoiled, H200), TRUTH) < 0.05


def test_a_step_follows_most_rows_and_not_the_one_that_is_far_off() -> None:
    """Three rows want the constant as it is, one wants it 20 times as large. Soft L1 at 0.15: the slopes 3x and 3 - x
    over sqrt(1 + (./0.15)^2) balance near 3u/sqrt(1 + u^2) = 1, u = x/0.15: x = 0.15/sqrt(8). Squares would take 3/4.
    """
    unknown = Unknown(1.0, 0.01, 100.0, "by hand")
    (found,) = pulled_step([unknown], [1.0], np.array([0.0, 0.0, 0.0, -3.0]), np.ones((4, 1)), 0.0, 10.0)
    assert np.log(found) == pytest.approx(0.15 / 8**0.5, rel=0.01)


def test_terms_are_recovered_too() -> None:
    truth = Fit(memory=0.9, overhead=8e-6, sharpness=4.0, terms={"merges": 6e-7, "items": 2.5e-6})
    fit = fit_kernel(timed(decodes(), truth), H200, ("merges", "items"))
    assert abs(fit.memory / truth.memory - 1) < 0.01
    assert {name: pytest.approx(value, rel=0.02) for name, value in truth.terms.items()} == fit.terms


def test_terms_that_nothing_counts_are_left_out() -> None:
    fit = fit_kernel(timed(matmuls(60), TRUTH), H200, ("rows", "depth"))
    assert "rows" not in fit.terms


def test_wrong_constants_are_reported() -> None:
    measured = timed(matmuls(), TRUTH)
    wrong = errors(measured, H200, TRUTH.model_copy(update={"memory": 0.41, "math": 0.375}))
    assert wrong["median"] > 0.5 and wrong["bias"] > 0.5 and wrong["high"] < 1.0
    right = errors(measured, H200, TRUTH)
    assert right["worst"] < 1e-3 and right["low"] == pytest.approx(1.0) == right["high"]


def test_constants_stay_inside_physics() -> None:
    """A benchmark that reads its weights from cache looks faster than the memory: the fit stops at the datasheet."""
    fast = [Measurement(op=m.op, seconds=m.seconds * 0.6) for m in timed(matmuls(), TRUTH)]
    fit = fit_kernel(fast, H200)
    assert fit.memory <= 1.0 and fit.math <= 1.0 and fit.sharpness >= 1.0


def test_split_is_by_shape_and_repeatable() -> None:
    ops = matmuls(100)
    twice = timed(ops + matmuls(100), TRUTH)
    train, held = split(twice, 0.2)
    assert (len(train), len(held)) == (160, 40)
    shapes = [{(m.op.m, m.op.k, m.op.n) for m in part if isinstance(m.op, Matmul)} for part in (train, held)]
    assert not shapes[0] & shapes[1]
    assert [m.seconds for m in split(twice, 0.2)[1]] == [m.seconds for m in held]


def test_fit_all_keys_by_kernel_and_label() -> None:
    measured = timed(matmuls(80), TRUTH, 0.03) + timed(decodes(80), TRUTH, 0.03)
    constants, held_out, ranges = fit_all(measured, H200)
    assert {kernel: set(formats) for kernel, formats in constants.items()} == {
        "matmul": {"bf16"},
        "attention.decode": {"bf16"},
    }
    fit = constants["matmul"]["bf16"]
    assert fit.n == 64 and held_out["matmul"]["bf16"]["n"] == 16
    assert fit.error["median"] == held_out["matmul"]["bf16"]["median"] < 0.1
    assert ranges["matmul"]["bf16"]["flop"] == fit.flop_range
    assert fit.band is not None and fit.band[0] < 1.0 < fit.band[1]


def test_too_few_shapes_are_not_fitted() -> None:
    assert fit_all(timed(matmuls(4), TRUTH), H200) == ({}, {}, {})


def test_rest_of_a_measurement_is_priced_and_not_fitted() -> None:
    """A table that times the quantisation with the matmul: the matmul's constants do not absorb it."""
    copy = Fit(memory=0.5, overhead=2e-6)
    rest = Calibration(name="rest", constants={"copy": {"any": copy}})
    measured = []
    for m in timed(matmuls(), TRUTH):
        assert isinstance(m.op, Matmul)
        extra = Copy(name="q", elements=m.op.m * m.op.k, source=BF16, target=FP8)
        total = m.seconds + float(price(extra, H200, rest).time)
        measured.append(Measurement(op=m.op, rest=(extra,), seconds=total))
    assert distance(fit_kernel(measured, H200, rest=rest), TRUTH) < 0.005


def test_one_fit_is_of_one_kernel() -> None:
    with pytest.raises(UsageError, match="one kernel"):
        fit_kernel(timed(matmuls(5) + decodes(5), TRUTH), H200)


def test_every_kernel_uses_terms_that_exist() -> None:
    assert {name for terms in TERMS_OF.values() for name in terms} <= set(TERMS)


# Tables ---------------------------------------------------------------------------------------------------------------


def table(folder: Path, name: str, rows: list[dict[str, object]]) -> None:
    pd.DataFrame(rows).to_csv(folder / f"{name}.csv", index=False)


WHERE: dict[str, object] = {"gpu": "h200-sxm", "framework": "VLLM", "version": "1", "kernel_source": "k"}


def test_a_gemm_row_is_a_matmul_and_its_quantisation(tmp_path: Path) -> None:
    table(tmp_path, "gemm", [WHERE | {"gemm_dtype": "fp8", "m": 3, "n": 64, "k": 128, "latency_ms": 0.5}])
    (row,) = read_tables(tmp_path)
    op, (extra,) = row.measurement.op, row.measurement.rest
    assert (row.gpu, row.library, row.measurement.seconds) == ("h200-sxm", "vllm", 5e-4)
    assert isinstance(op, Matmul) and (op.m, op.k, op.n, op.label) == (3.0, 128, 64, "fp8")
    assert isinstance(extra, Copy) and extra.elements == 3 * 128


def test_attention_rows_are_decode_and_prefill(tmp_path: Path) -> None:
    row = WHERE | {"batch_size": 2, "num_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "latency_ms": 1.0}
    row |= {"attn_dtype": "bfloat16", "kv_cache_dtype": "fp8", "window_size": 128.0}
    table(tmp_path, "attention_decode", [row | {"isl": 1, "step": 511}])
    table(tmp_path, "attention_prefill", [row | {"isl": 512, "step": 0}, row | {"isl": 16, "step": 0}])
    decode, prefill = (found.measurement.op for found in read_tables(tmp_path))
    assert isinstance(decode, Attention) and isinstance(prefill, Attention)
    assert (decode.new, decode.past, decode.mask.size, decode.label) == (1.0, 511.0, 128, "bf16-kv-fp8-d64")
    assert (prefill.new, prefill.past, prefill.kernel) == (512.0, 0.0, "attention.prefill")


@for_each(
    ("kernel", "dtype", "sides"),
    [
        ("moe_torch_flow_cutlass", "fp8_block", ["input", "output"]),
        ("moe_torch_flow", "bfloat16", ["input", "output"]),
        ("moe_torch_flow", "w4a16_mxfp4", ["", ""]),
        ("sglang_fused_moe_triton", "fp8_block", ["", ""]),
    ],
)
def test_rows_of_experts_are_sorted_apart_where_the_matmul_needs_it(
    tmp_path: Path, kernel: str, dtype: str, sides: list[str]
) -> None:
    """TensorRT-LLM's CUTLASS kernels take the rows one expert after the other, Triton's read them through an index."""
    row = WHERE | {"kernel_source": kernel, "moe_dtype": dtype, "num_tokens": 4096, "hidden_size": 7168, "topk": 8}
    row |= {"inter_size": 2048, "num_experts": 256, "moe_tp_size": 8, "moe_ep_size": 1, "distribution": "balanced"}
    table(tmp_path, "moe", [row | {"latency_ms": 1.0}])
    (found,) = read_tables(tmp_path)
    experts = [op for op in (found.measurement.op, *found.measurement.rest) if isinstance(op, GroupedMatmul)]
    assert [op.reordered for op in experts] == sides
    assert [(op.m, op.k, op.n) for op in experts] == [(32768.0, 7168, 512), (32768.0, 256, 7168)]


def test_collective_messages_are_in_elements(tmp_path: Path) -> None:
    row = WHERE | {"allreduce_dtype": "bfloat16", "num_gpus": 4, "message_size": 1000, "latency_ms": 1.0}
    table(tmp_path, "allreduce_custom", [row])
    (found,) = read_tables(tmp_path)
    assert isinstance(found.measurement.op, Collective)
    assert float(found.measurement.op.work().wire) == 2 * 0.75 * 2000


def test_unlabelled_collectives_lose_the_slowest_only_where_the_wire_decides(tmp_path: Path) -> None:
    row = WHERE | {"nccl_dtype": "half", "num_gpus": 2}
    sizes = (1024, LARGE_MESSAGE)
    table(
        tmp_path, "collective_nccl", [row | {"message_size": s, "latency_ms": float(i)} for s in sizes for i in (1, 2)]
    )
    assert len(read_tables(tmp_path)) == 3


def test_a_folder_without_tables_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="no kernel table"):
        read_tables(tmp_path)


@for_each("skew", [0.0, 1.01, 1.2])
def test_routing_deals_every_token_out(skew: float) -> None:
    rows, reached = routed(64, 4, 32, 1, skew)
    assert rows == 64 * 4 and 1 <= reached <= 32
    busiest, _ = routed(64, 4, 32, 4, skew)
    assert busiest >= rows / 4


def written(folder: Path, latency_factor: float = 1.0, floor: float = 0.0) -> None:
    rows = []
    for measurement in timed(matmuls(120), TRUTH, 0.03):
        op = measurement.op
        assert isinstance(op, Matmul)
        seconds = max(measurement.seconds * latency_factor, floor)
        rows.append(
            WHERE | {"gemm_dtype": "bfloat16", "m": int(op.m), "n": op.n, "k": op.k, "latency_ms": seconds * 1e3}
        )
    table(folder, "gemm", rows)


def test_files_are_written_and_load_again(tmp_path: Path) -> None:
    written(tmp_path)
    devices = gather(read_tables(tmp_path), load_hardware)
    provenance = {"source": "a test", "licence": "none", "date": "2026-11-21", "command": "pytest"}
    write_calibration(calibrate_device(devices[0], vector_constants(devices), provenance), tmp_path / "out.yaml")
    found = validate(tmp_path / "out.yaml", read_yaml(tmp_path / "out.yaml"), Calibration)
    fit = found.for_engine("vllm").fit("matmul", "bf16")
    assert fit is not None and abs(fit.math / TRUTH.math - 1) < 0.1
    assert found.held_out["vllm"]["matmul"]["bf16"]["median"] < 0.06
    assert found.provenance["rows"] == 120 and found.provenance["source"] == "a test"
    other = calibrate_unmeasured(devices, "hbm", vector_constants(devices), provenance)
    carried = other.for_engine("vllm").fit("matmul", "bf16")
    assert carried is not None and carried.basis == "transferred" and carried.band is None


def test_rows_faster_than_light_and_kernels_timed_from_the_host_are_left_out(tmp_path: Path) -> None:
    written(tmp_path, latency_factor=0.5)
    (device,) = gather(read_tables(tmp_path), load_hardware)
    assert device.impossible > 0
    written(tmp_path, floor=2 * EAGER)
    (device,) = gather(read_tables(tmp_path), load_hardware)
    assert device.libraries == {}


def test_decode_attention_of_very_large_groups_is_another_kernel(tmp_path: Path) -> None:
    row = WHERE | {"batch_size": 2, "num_key_value_heads": 1, "head_dim": 128, "latency_ms": 1.0, "isl": 1, "step": 511}
    row |= {"attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "window_size": 0.0}
    table(tmp_path, "attention_decode", [row | {"num_heads": heads} for heads in (8, 32, 33, 64)])
    (device,) = gather(read_tables(tmp_path), load_hardware)
    assert (device.rows, device.fallbacks) == (4, 2)


def test_fallbacks_are_marked_as_transferred() -> None:
    filled = with_fallbacks({"matmul": {"fp8": Fit(math=0.5), "bf16": Fit(math=0.7)}})
    spare = filled["matmul"]["any"]
    assert (spare.math, spare.basis, spare.source) == (0.7, "transferred", "bf16 kernel")
    patterns = with_fallbacks({"collective.all_gather": {"any": Fit(memory=0.7)}})
    assert set(patterns) == {
        f"collective.{p}" for p in ("all_gather", "reduce_scatter", "all_to_all", "send", "all_reduce")
    }
