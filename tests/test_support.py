"""No error band where fewer than three measured systems stand behind the device, the form or the kind of model."""

from __future__ import annotations

import gc
import pickle
import re
import weakref
from dataclasses import replace
from statistics import median

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.calibrations import measured_bands, relatives
from inferplan.catalog.files import config_root
from inferplan.devices.constants import Calibration, Fit, MeasuredBands, MeasuredCell
from inferplan.estimate.bands import TRANSFERRED_SLOW_END, latency_band, latency_bands, serving_bands
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.memory import single
from inferplan.estimate.phase import run_step
from inferplan.estimate.run import estimate_unchecked
from inferplan.estimate.support import DRAFTS, POOLS, lacking, too_few
from inferplan.planning.confidence import slowness
from inferplan.reports.estimate import band_note
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import Lengths, OpenLoop, Slo, Traffic
from inferplan.work.parallel import Parallelism
from inferplan.work.step import decode
from tests.builders import chip, dense, deploy
from tests.cases import for_each

ACCURACY = (config_root().parent / "docs" / "accuracy.md").read_text(encoding="utf-8")

UNMEASURED = [
    ("falcon-mamba-7b", "h100-sxm", {}, "mamba1"),
    ("nemotron-3-nano", "h100-sxm", {}, "mamba2"),
    ("qwen3-next-80b-a3b", "h100-sxm", {"tp": 4}, "gated delta net"),
    ("llama-3.1-70b", "h100-sxm", {"pp": 4}, "vllm on h100-sxm with pipeline parallelism"),
    ("deepseek-r1", "h100-sxm", {"tp": 16, "ep": 16}, "vllm on h100-sxm with expert parallelism and several nodes"),
    ("deepseek-r1", "h200-sxm", {"dp": 8, "ep": 8}, "with expert parallelism and attention data parallelism"),
    ("llama-3.1-8b", "rtx-4090", {}, "vllm on rtx-4090"),
    ("deepseek-r1", "mi355x", {"tp": 8}, "vllm on mi355x"),
    ("deepseek-r1", "mi325x", {"tp": 8}, "vllm on mi325x"),
]
"""Cases in which a band was printed on rows of other devices, forms and families, and what nobody had measured."""


def test_no_band_of_what_was_not_measured() -> None:
    wrong = []
    for model, gpu, degrees, missing in UNMEASURED:
        deployment = assemble(Request(model=model, gpu=gpu, parallel=Parallelism(**degrees)))
        estimate = estimate_unchecked(deployment, StaticLoad(batch=1.0, prompt=512.0, output=64.0))
        bands, line = [estimate.band(metric) for metric in ("ttft", "tpot", "e2el")], band_note(estimate)
        told = line.startswith("error: unknown; a band needs 3 measured systems or models of each") and missing in line
        wrong += [] if told and bands == [None] * 3 else [(model, gpu, degrees, bands, line)]
    assert not wrong


def test_a_run_of_pools_apart_has_no_band() -> None:
    """The same GPUs: two replicas that do both have bands, one that computes prompts and one that decodes have none."""
    one, two = (
        assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", parallel=Parallelism(replicas=replicas)))
        for replicas in (1, 2)
    )
    load = Traffic(arrivals=OpenLoop(rate=5.0), prompt=Lengths(mean=256), output=Lengths(mean=8), requests_count=20)
    both = simulate(two, load)
    apart = simulate(one, load, options=Options(fleet=Fleet(prefill=1, decode=1)))
    assert set(both.bands) == {"ttft", "tpot"} and not apart.bands


def test_what_was_measured_keeps_its_band() -> None:
    """Llama-3.1-70B in fp8 on four H100 and MiniMax-M2.5 on four B200 are in the rows; of expert parallelism there
    vLLM served two models."""
    dense70 = assemble(Request(model="llama-3.1-70b", gpu="h100-sxm", quant="fp8", parallel=Parallelism(tp=4)))
    experts = Request(model="minimax-m2.5", gpu="b200-hgx", parallel=Parallelism(tp=4))
    sliced, whole = assemble(experts), assemble(replace(experts, parallel=Parallelism(tp=4, ep=4)))
    assert lacking(dense70) == lacking(sliced) == {}
    assert set(serving_bands(dense70, 1024.0)) == set(serving_bands(sliced, 1024.0)) == {"ttft", "tpot"}
    assert lacking(whole) == {"vllm on b200-hgx with expert parallelism": 2} and not serving_bands(whole, 1024.0)


def test_a_band_is_that_of_its_kind() -> None:
    """Engine, device and form make a kind: of two kinds each deployment has its own, whatever its kernels' errors."""
    kernels = counted()
    cells = [
        MeasuredCell(device="chip", engine="test", systems=3, rows=9, ttft=(0.8, 1.5), tpot=(0.9, 1.2)),
        MeasuredCell(device="chip", engine="test", forms=("drafts",), systems=2, rows=9),
    ]
    known = MeasuredBands(source="by hand", cells=tuple(cells), families=FAMILY)
    calibration = kernels.model_copy(update={"bands": {}, "measured": known})
    device = chip(1e18, 1e21).model_copy(update={"name": "chip"})
    deployment = deploy(dense(layers=1, d_model=64, heads=4, d_ff=64, vocab=64), device, calibration=calibration)
    deployment = replace(deployment, engine=deployment.engine.model_copy(update={"name": "test"}))
    assert serving_bands(deployment, 16.0) == {"ttft": (0.8, 1.5), "tpot": (0.9, 1.2)}
    step = run_step(deployment, decode(np.array([1.0, 2.0]), 16.0))
    assert [list(end) for end in latency_bands(deployment, "tpot", step)] == [[0.9, 0.9], [1.2, 1.2]]
    assert lacking(deployment, (DRAFTS,)) == {"test on chip with drafts": 2}
    assert lacking(deployment, (POOLS,)) == {"test on chip with pools apart": 0}
    assert serving_bands(deployment, 16.0, (DRAFTS,)) == serving_bands(deployment, 16.0, (POOLS,)) == {}


def test_the_kinds_on_file_are_served_on_devices_with_rows() -> None:
    """The GPUs of docs/accuracy.md, which is written from the rows one by one, among those with bands."""
    table = ACCURACY.split("| TPOT by GPU |")[1].split("\n\n")[0]
    assert {cell.device for cell in measured_bands().cells if cell.bands} == set(
        re.findall(r"(?m)^\| ([a-z0-9][a-z0-9-]*) \|", table)
    )


def counted(**systems: dict[str, int]) -> Calibration:
    """Constants with a known error and counts of systems behind it."""
    fit = Fit(overhead=1.0, error={"low": 0.9, "high": 1.1})
    kernels = ("matmul", "attention.decode", "elementwise", "copy", "gather")
    return Calibration(
        name="t",
        fused=True,
        constants={kernel: {"any": fit} for kernel in kernels},
        bands={"ttft": (1.0, 1.0), "tpot": (1.0, 1.0)},
        systems=systems,
    )


FAMILY = {"attention": 3, "mlp": 3}


@for_each(
    ("systems", "forms", "missing"),
    [
        ({"device": {"chip": 3}, "family": FAMILY}, (), {}),
        ({"device": {"chip": 2}, "family": FAMILY}, (), {"chip": 2}),
        ({"device": {"any": 3}, "family": FAMILY}, (), {}),
        ({"device": {"chip": 3}, "family": {"attention": 3}}, (), {"mlp": 0}),
        ({"device": {"chip": 3}, "family": FAMILY}, (DRAFTS,), {"drafts": 0}),
        ({"device": {"chip": 3}, "family": FAMILY, "form": {"drafts": 3}}, (DRAFTS,), {}),
        ({"device": {"chip": 3}, "family": FAMILY, "form": {"drafts": 3}}, (DRAFTS, POOLS), {"pools apart": 0}),
        ({}, (), {"chip": 0, "attention": 0, "mlp": 0}),
    ],
)
def test_three_systems_of_each(systems: dict[str, dict[str, int]], forms: tuple[str, ...], missing: object) -> None:
    """A band needs three of the device, of every form and of every kind of layer; two are one difference."""
    device = chip(1e18, 1e21).model_copy(update={"name": "chip"})
    model = dense(layers=1, d_model=64, heads=4, d_ff=64, vocab=64)
    deployment = deploy(model, device, calibration=counted(**systems))
    assert lacking(deployment, forms) == missing
    step = run_step(deployment, decode(1.0, 16.0))
    assert (latency_band(deployment, "tpot", step, forms) is None) == bool(missing)
    assert bool(np.isnan(latency_bands(deployment, "tpot", step, forms)[1])) == bool(missing)
    assert set(serving_bands(deployment, 16.0, forms)) == (set() if missing else {"ttft", "tpot"})


def test_kinds_of_layers_are_counted_by_models() -> None:
    """Of latent attention two models were served in the rows (DeepSeek-R1 and Kimi-K2.5, whatever their GPUs, engines
    and forms), of gated delta nets one (Qwen3.5-397B), of experts six: these three, Qwen3-235B, gpt-oss, MiniMax."""
    families = measured_bands().families
    assert (families["mla"], families["gated delta net"], families["moe"]) == (2, 1, 6)
    latent = assemble(Request(model="deepseek-r1", gpu="b200-hgx", parallel=Parallelism(tp=8)))
    assert lacking(latent) == {"mla models": 2} and not serving_bands(latent, 1024.0)


def test_the_counts_are_said() -> None:
    said = too_few({"rtx-4090": 0, "gated delta net models": 1})
    counts = "0 of rtx-4090, 1 of gated delta net models"
    assert said == f"a band needs 3 measured systems or models of each; there are {counts}"


def test_carried_constants_have_a_slow_end_of_their_own() -> None:
    """A kernel's band of x 1.1 is that of the device it was timed on; carried to another, a third more is usual."""
    device = chip(1e18, 1e21).model_copy(update={"name": "chip"})
    model = dense(layers=1, d_model=64, heads=4, d_ff=64, vocab=64)
    known = counted(device={"chip": 3}, family=FAMILY)
    fits = {
        kernel: {label: fit.model_copy(update={"basis": "transferred"}) for label, fit in formats.items()}
        for kernel, formats in known.constants.items()
    }
    ends = []
    for calibration in (known, known.model_copy(update={"basis": "transferred"}), replace_fits(known, fits)):
        deployment = deploy(model, device, calibration=calibration)
        band = latency_band(deployment, "tpot", run_step(deployment, decode(1.0, 16.0)))
        assert band is not None and band[0] == pytest.approx(0.9)
        ends.append(band[1])
    assert ends == [pytest.approx(1.1), 1.3, 1.3]


def replace_fits(calibration: Calibration, fits: dict[str, dict[str, Fit]]) -> Calibration:
    return calibration.model_copy(update={"constants": fits})


def test_the_least_slow_end_lies_where_carried_kernels_do() -> None:
    """Kernels timed on both devices: by the median, constants of the same chip are exceeded by less in 9 of 10 shapes,
    those of another chip by more."""
    ends = [
        median(error["high"] for kernels in part.values() for formats in kernels.values() for error in formats.values())
        for part in (relatives().same_chip, relatives().other_chip)
    ]
    assert ends[0] < TRANSFERRED_SLOW_END < ends[1]


def test_what_was_found_of_a_deployment_goes_with_it() -> None:
    """One footprint and one set of bands for each, none of which keeps it alive or travels to another process."""
    made = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    bare, seen = len(pickle.dumps(made)), weakref.ref(made)
    assert single(made) is single(made)
    assert slowness(made, 100.0, Slo(tpot=0.05), 0.9) is slowness(made, 100.0, Slo(tpot=0.05), 0.9)
    assert lacking(made) == lacking(made) and lacking(made, (DRAFTS,)) != lacking(made)
    assert len(pickle.dumps(made)) < 1.5 * bare
    del made
    gc.collect()
    assert seen() is None
