"""Constants from published kernels and serving rows: figures by hand, and what ships against what was published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibrate.fit import stack
from inferplan.catalog.calibrations import class_file, load_kernels
from inferplan.catalog.files import config_root, load_hardware, read_yaml, validate
from inferplan.devices.constants import Calibration, Fit
from inferplan.estimate.roofline import price
from inferplan.validation.importers import read_file
from inferplan.validation.rows import row_of
from inferplan.validation.run import price_rows
from tests.cases import for_each
from tools.accuracy.data_centre import one_factor
from tools.accuracy.published_rows import serving_rows
from tools.accuracy.scores import pairs_of
from tools.fitting.published.command import SINCE, served
from tools.fitting.published.kernels import all_reduces, attentions, figures, matmuls, shares
from tools.fitting.published.serving import UNKNOWNS, Device, _step, expected

NODE = {
    "model": "DeepSeek-R1",
    "gpu": "mi355x",
    "engine": "sglang",
    "weights": "fp8-block",
    "experts": "fp8-block",
    "kv": "fp8",
    "tp": "8",
    "ep": "1",
    "decode_ranks": "8",
    "workers": "1",
    "disaggregated": "0",
    "dp_attention": "0",
    "length_ratio_min": "0.8",
    "memory_fraction": "0.8",
    "campaign": "inferencex",
}


def test_published_rates_in_seconds() -> None:
    """2*8192^3 FLOP at 1222.9 TFLOP/s; 2*7/8 of 1 MiB at 22.41 GB/s (nccl-tests' bus bandwidth); causal attention."""
    found = figures()
    product = next(m for _, fmt, m in matmuls(found) if fmt == "fp8" and m.op.m == 8192)  # type: ignore[attr-defined]
    assert product.seconds == pytest.approx(0.8991e-3, rel=1e-3)
    reduce = next(m for m in all_reduces(found) if m.op.elements == 2**19)  # type: ignore[attr-defined]
    assert reduce.seconds == pytest.approx(81.9e-6, rel=1e-3)
    ((_, _, attention),) = attentions(found)
    assert attention.seconds == pytest.approx(4 * 32 * 8192**2 / 2 * 64 * 2 / 328.6e12, rel=1e-3)


@pytest.fixture(scope="module")
def carried() -> Calibration:
    file = class_file(load_hardware("mi300x"))
    return validate(file, read_yaml(file), Calibration)


def test_no_kernel_reads_faster_than_the_fastest_stream(carried: Calibration) -> None:
    found = shares(carried.for_engine("sglang"))
    assert found.stream == pytest.approx(4.28 / 5.3)
    assert found.copy == pytest.approx((4.15 + 4.28 + 4.13 + 4.1 + 4.0) / 5 / 5.3)
    assert found.matmul["fp8"] < 0.9 and found.matmul["bf16"] < 0.9 and found.attention < 0.8
    made = Device(name="mi300x", carried=carried, shares=dict.fromkeys(carried.libraries, found)).calibration(
        expected()
    )
    for library in made.libraries.values():
        for kernel, formats in library.items():
            if not kernel.startswith("collective"):
                assert all(fit.memory <= 4.28 / 5.3 + 1e-4 for fit in formats.values())


def test_unknowns_reach_only_their_kernels(carried: Calibration) -> None:
    found = shares(carried.for_engine("sglang"))
    device = Device(name="mi300x", carried=carried, shares=dict.fromkeys(carried.libraries, found))
    base = device.calibration(expected()).libraries["sglang"]
    changed = device.calibration(expected() | {"experts": 0.4, "latents": 0.3}).libraries["sglang"]
    moved = {kernel for kernel in base if base[kernel] != changed[kernel]}
    assert moved == {"grouped_matmul", "grouped_matmul.exchanged", "mla.decode"}
    assert changed["mla.decode"]["bf16"].memory == 0.3 and not changed["mla.decode"]["bf16"].terms  # nothing is padded
    slow = device.calibration(expected() | {"fixed": 2.0}).libraries["sglang"]
    assert slow["matmul"]["fp8"].overhead == pytest.approx(2 * base["matmul"]["fp8"].overhead, rel=1e-3)


def test_one_step_finds_the_constant_that_is_off() -> None:
    """Everything 20 % slow and proportional to it: 0.8/1.2, but for the pull of 0.3 against 40 rows of two figures."""
    error, slopes = np.full((40, 2), np.log(1.2)), np.ones((1, 40, 2))
    assert _step({"experts": 0.8}, error, slopes)["experts"] == pytest.approx(0.8 / 1.2, rel=2e-3)
    assert _step({"latents": 0.8}, -error, slopes)["latents"] == pytest.approx(UNKNOWNS["latents"].high)  # in bounds


@for_each("engine", ["vllm", "sglang"])
def test_large_published_matmuls_on_mi300x_are_within_a_fifth(engine: str) -> None:
    constants, device = load_kernels(load_hardware("mi300x"), None, engine), load_hardware("mi300x")
    for gpu, _, measurement in matmuls(figures()):
        if gpu == "mi300x" and min(measurement.op.m, measurement.op.n) >= 4096:  # type: ignore[attr-defined]
            assert float(price(measurement.op, device, constants).total) == pytest.approx(measurement.seconds, rel=0.25)


def test_rccl_on_mi300x_is_within_an_eighth_but_for_latency() -> None:
    """44.8 us at 1 KiB to 47 ms at 8 GiB; engines have kernels of their own, so it is what all share."""
    file = config_root() / "calibration" / "mi300x.yaml"
    fit: Fit = validate(file, read_yaml(file), Calibration).constants["collective.all_reduce"]["any"]
    for measurement in all_reduces(figures()):
        stacked = stack([measurement], load_hardware("mi300x"), tuple(fit.terms))
        off = 0.22 if measurement.seconds < 1e-4 else 0.125
        assert float(stacked.predict(fit)[0]) == pytest.approx(measurement.seconds, rel=off)


@for_each(
    ("change", "tpot", "ttft"),
    [
        ({"isl": "1024", "osl": "8192", "concurrency": "64"}, 21.746, 122.3),  # ix1136
        ({"isl": "8192", "osl": "1024", "concurrency": "16"}, 17.682, 295.6),  # ix1161
        ({"weights": "mxfp4", "experts": "mxfp4", "isl": "1024", "osl": "8192", "concurrency": "32"}, 14.334, 104.8),
        ({"gpu": "mi300x", "isl": "1024", "osl": "1024", "concurrency": "32"}, 28.008, 163.3),  # ix0791
    ],
)
def test_deepseek_r1_as_it_was_measured(change: dict[str, str], tpot: float, ttft: float) -> None:
    """InferenceX, February to May 2026; the third row is of a format that no constant was fitted to (ix1245)."""
    users = int(change["concurrency"])
    run = {"requests": str(10 * users), "warmup_requests": str(2 * users), "poll_interval_steps": "4"}
    row = row_of("row", NODE | run | change | {"tpot_median_ms": str(tpot), "ttft_median_ms": str(ttft)}, {})
    (found,) = price_rows([row])
    assert found.prediction is not None
    assert found.prediction.at("tpot", "median") == pytest.approx(tpot * 1e-3, rel=0.15)
    assert found.prediction.at("ttft", "median") == pytest.approx(ttft * 1e-3, rel=0.25)


@for_each("name", sorted(SINCE))
def test_files_say_how_far_off_they_are_on_the_other_gpu(name: str) -> None:
    file = config_root() / "calibration" / f"{name}.yaml"
    held = validate(file, read_yaml(file), Calibration).held_out["serving"]
    (other,) = set(SINCE) - {name}
    assert held[f"constants of {other}"]["tpot"]["mape"] > held["own rows, fitted"]["tpot"]["mape"]


HEADING = "id,source,model,hardware,gpus,tp,pp,engine,weights,kv,batch,concurrency,isl,osl,quantity,value,unit,notes\n"


def test_lines_of_one_run_are_one_row(tmp_path: Path) -> None:
    """8 users of three prompts each: mean TTFT and mean ITL of one run; the kernel's line is none."""
    file = tmp_path / "rows.csv"
    run = '"sgl (3 prompts a user)",Qwen3-8B,TPU v6e,4,4,,sglang (TPU),bf16,,,8,1024,1024'
    kernel = "c,somebody,,MI300X,1,,,,fp8,,,,,,hipBLASLt GEMM 1024x1024x1024,278.2,TFLOP/s,\n"
    file.write_text(f"{HEADING}a,{run},mean TTFT,117.55,ms,\nb,{run},mean ITL,5.99,ms,\n{kernel}")
    (row,) = serving_rows(file)
    assert row.run is not None
    assert (row.run.model, row.run.gpu, row.run.engine, row.run.tp) == ("qwen3-8b", "tpu-v6e", "sglang", 4)
    assert (row.run.concurrency, row.run.requests) == (8, 24)
    assert row.measured.at("ttft", "mean") == pytest.approx(0.11755)
    assert row.measured.at("tpot", "mean") == pytest.approx(5.99e-3)


def test_a_batch_is_told_as_tokens_a_second(tmp_path: Path) -> None:
    """4 x 2,048 tokens in 129.32 s are 63.3 a second; a loop over static batches has no engine."""
    file = tmp_path / "rows.csv"
    served = "a,Azure AI-benchmarking-guide,Llama-3.1-8B,MI300X,1,1,,vllm,fp8,,max,,128,128"
    batch = 'b,x,Llama-3.1-405B,MI300X,8,8.0,,vllm ~0.6.4,fp8,fp8,4,,32784.0,2048.0,batch latency,129.3197857,s,""'
    static = "c,intel.com,Mistral 7b,Gaudi 3,1,1,,Optimum Habana (static batch),fp8,fp8,44,,2048,2048"
    served += ',"output throughput, 1000 requests",18149,tok/s,'
    static += ",output throughput,4970,tok/s,"
    file.write_text(f"{HEADING}{served}\n{batch}\n{static}\n")
    azure, dstack, gaudi = (row.run for row in serving_rows(file))
    assert azure and dstack and gaudi
    assert (azure.concurrency, azure.requests, azure.slots, azure.kv) == (1000, 1000, 3000, "fp8")
    assert (dstack.engine_version, dstack.concurrency, dstack.batch) == ("0.6.4", 4, None)
    assert serving_rows(file)[1].measured.at("rate", "mean") == pytest.approx(63.347, rel=1e-4)
    assert (gaudi.engine, gaudi.batch, gaudi.model) == ("none", 44, "mistral-7b-v0.3")


@for_each(
    ("name", "every", "metric", "limit"),
    [("gaudi3.csv", 1, "rate", 0.2), ("tpu_v6e.csv", 6, "tpot", 0.2), ("tpu_v6e.csv", 6, "ttft", 0.2)],
)
def test_devices_without_any_fit_are_within_a_fifth(
    shared: Path, name: str, every: int, metric: str, limit: float
) -> None:
    """Median error of Intel's table of static batches, and of SGL-JAX's of Qwen3 on four TPU v6e."""
    rows = [row for row in serving_rows(shared / "measured" / "published" / name) if row.measured.at(metric, "mean")]
    scored = price_rows(rows[::every])
    off = [abs(ours / theirs - 1.0) for ours, theirs in pairs_of(scored, metric, "mean")]
    assert len(off) >= 5 and float(np.median(off)) < limit


def test_one_factor_comes_from_the_other_models() -> None:
    """Twice and four times too fast: times 4 and 2, the second model's factor first. One model alone tells nothing."""
    made = {(("d", "e"), "TPOT", "a"): [(1.0, 2.0)], (("d", "e"), "TPOT", "b"): [(1.0, 4.0)]}
    lines = one_factor(made | {(("x", "y"), "TPOT", "a"): [(1.0, 1.0)]})
    assert [line[:2] for line in lines] == [["d, e: TPOT", "2"]]
    assert lines[0][-1] == "+25.0"  # 4/2 - 1 = 100 % and 2/4 - 1 = -50 %


def test_constants_of_sglang_are_fitted_to_its_rows_alone(shared: Path) -> None:
    """Of the rows since the first day of their software those of ATOM are left out: 15 are said in the file."""
    rows = read_file(shared / "measured" / "serving_inferencex.csv", {})[1]
    found = served("mi355x", rows)
    assert {row.run.engine for row in (*found.rows, *found.others["drafts"]) if row.run} == {"sglang"}
    assert len(found.rows) == read_yaml(config_root() / "calibration" / "mi355x.yaml")["provenance"]["rows"] == 15
