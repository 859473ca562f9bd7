"""A calibration that was asked for lies over the constants on file: it adds, and never takes away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from inferplan.answers.explain import Explainer
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.calibrations import load_calibration, load_kernels
from inferplan.catalog.files import config_root, load_hardware, names
from inferplan.devices.constants import Calibration, Constants, Fit
from inferplan.errors import SpecError
from inferplan.estimate.bands import latency_bands, serving_bands
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.phase import run_step
from inferplan.estimate.roofline import OpCost
from inferplan.estimate.support import lacking
from inferplan.reports.estimate import band_note, basis_note, estimate_record
from inferplan.reports.overlay import overlay_note
from inferplan.work.step import Segment, Step
from tests.cases import for_each

HALF = {"math": 0.5, "memory": 0.5, "sharpness": 1.0}
KNOWN = {"error": {"low": 0.3, "high": 3.0}}

LAPTOP = {
    "name": "laptop",
    "vendor": "x",
    "product": "x",
    "unit": "x",
    "source": "x",
    "confidence": "low",
    "units": 1,
    "memory": {"label": "DDR5", "bandwidth": "10 GB/s", "usable": "8 GB"},
    "peak": {"bf16": "1 TFLOP/s"},
}
"""A device of one's own."""


def calibration(tmp_path: Path, constants: dict[str, Any], name: str = "h200-sxm", **more: Any) -> str:
    """A file of constants that was measured on a device."""
    path = tmp_path / "own.yaml"
    path.write_text(json.dumps({"name": name, "constants": constants, **more}), encoding="utf-8")
    return str(path)


def deployment(file: str | None = None, gpu: str = "h200-sxm", engine: str = "vllm") -> Deployment:
    """Llama-3.1-8B with a cache in fp8."""
    return assemble(Request(model="llama-3.1-8b", gpu=gpu, roles=(("kv", "fp8"),), engine=engine, calibration=file))


def decode(deployed: Deployment) -> dict[str, OpCost]:
    """The operators of a step of 128 sequences at 4,096 tokens, by name."""
    step = Step(segments=(Segment(batch=128.0, new=1.0, past=4095.0),))
    return {cost.op.name: cost for cost in run_step(deployed, step).costs}


def test_what_was_not_measured_keeps_the_constants_on_file(tmp_path: Path) -> None:
    """The file has the matmul alone. ``ffn.down``, 14,336 to 4,096 at 128 rows, by hand from the datasheet's 989.4
    TFLOP/s and 4.8 TB/s at half of each, one after the other; attention over the fp8 cache as without the file."""
    file = calibration(tmp_path, {"matmul": {"bf16": HALF | {"library": "cublas"}}})
    shipped, merged = decode(deployment()), decode(deployment(file))
    flop, moved = 2 * 128 * 14336 * 4096, 2 * (14336 * 4096 + 128 * 14336 + 128 * 4096)
    assert float(merged["ffn.down"].time) == pytest.approx(flop / (0.5 * 989.4e12) + moved / (0.5 * 4.8e12), rel=1e-3)
    assert merged["ffn.down"].basis == "calibrated"
    before, after = shipped["attn.core"], merged["attn.core"]
    assert (float(after.time), after.band, after.basis) == (float(before.time), before.band, before.basis)
    assert before.band is not None and float(after.time) > 1.2 * float(after.op.work().bytes) / 4.8e12
    assert float(merged["norm"].time) == float(shipped["norm"].time)
    assert deployment(file).calibration.step == deployment().calibration.step


@for_each("engine", ["vllm", "sglang", "trtllm", "llama.cpp", "none"])
def test_a_file_without_constants_changes_nothing(engine: str, tmp_path: Path) -> None:
    """On every device of the catalogue, measured or not."""
    for gpu in (
        names("hardware") if engine == "vllm" else ("h200-sxm", "h20", "mi325x", "m3-max", "rtx-4090", "tpu-v5e")
    ):
        hardware = load_hardware(gpu)
        file = calibration(tmp_path, {}, name=gpu)
        own, shipped = load_calibration(hardware, file, False, engine), load_calibration(hardware, None, False, engine)
        assert own.overlay is not None
        assert own.model_copy(update={"overlay": None}) == shipped, gpu


@for_each("gpu", ["h200-sxm", "a100-80gb-sxm", "l40s", "h20", "mi300x", "rtx-4090"])
@for_each("engine", ["vllm", "sglang", "none"])
def test_a_file_with_all_constants_is_the_file(gpu: str, engine: str, tmp_path: Path) -> None:
    """Every kernel and format on file, each with a constant of its own that no file has."""
    hardware = load_hardware(gpu)
    shipped = load_kernels(hardware, None, engine)
    count, own = 0, {}
    for kernel, formats in shipped.constants.items():
        own[kernel] = {}
        for label in formats:
            count += 1
            own[kernel][label] = {"memory": round(0.3 + count / 1000, 4), "overhead": count * 1e-7}
    found = load_kernels(hardware, calibration(tmp_path, own, name=gpu), engine)
    expected: Constants = {k: {label: Fit(**fit) for label, fit in fits.items()} for k, fits in own.items()}
    assert found.constants == expected
    assert found.basis == "calibrated"


def asked(tmp_path: Path, kernel: str, label: str, library: str, **where: str) -> Calibration:
    """The constants where a file has one kernel of a library, 40 % of everything, within 10 %."""
    fit = {"math": 0.4, "memory": 0.4, "library": library, "error": {"median": 0.05, "low": 0.9, "high": 1.1}}
    gpu = where.get("gpu", "h200-sxm")
    file = calibration(tmp_path, {kernel: {label: fit}}, name=gpu)
    return load_kernels(load_hardware(gpu), file, where.get("engine", "vllm"))


OWN, STAND_IN, ON_FILE = "own", "stand-in", "on file"
CASES = [
    ("matmul", "bf16", "cublas", "h200-sxm", "vllm", OWN),
    ("matmul", "bf16", "cublas+torch", "h200-sxm", "vllm", ON_FILE),
    ("matmul", "fp8", "cublas", "h200-sxm", "vllm", ON_FILE),
    ("attention.decode", "bf16", "torch", "h200-sxm", "vllm", ON_FILE),
    ("attention.decode", "bf16", "flash-attention-2", "h200-sxm", "vllm", ON_FILE),
    ("attention.decode", "bf16-d64", "flash-attention-3", "h200-sxm", "vllm", OWN),
    ("attention.decode", "bf16", "flash-attention-2", "a100-80gb-sxm", "vllm", OWN),
    ("attention.decode", "bf16", "flash-attention-2", "a100-80gb-sxm", "sglang", ON_FILE),
    ("attention.decode", "bf16-d80", "torch", "h200-sxm", "vllm", ON_FILE),  # priced by all heads of the own kernel
    ("attention.decode", "bf16", "flashinfer", "b200-hgx", "vllm", ON_FILE),  # TensorRT-LLM's kernel, inside it
    ("attention.decode", "bf16-kv-fp8-d64", "flashinfer", "l40s", "vllm", OWN),
    ("attention.decode", "bf16", "flashinfer", "l40s", "sglang", OWN),
    ("gather", "any", "torch", "h200-sxm", "vllm", OWN),
    ("matmul", "bf16", "hipblaslt", "mi300x", "vllm", OWN),
    ("attention.prefill", "bf16", "aotriton", "mi300x", "vllm", STAND_IN),
    ("mla.decode", "bf16", "torch", "h200-sxm", "vllm", ON_FILE),  # SGLang's, timed on this device
    ("mla.decode", "bf16", "flashmla", "h200-sxm", "vllm", OWN),
    ("norm", "any", "torch", "h200-sxm", "vllm", STAND_IN),  # on file: short convolutions of all devices
    ("matmul", "int8", "torch", "h200-sxm", "vllm", STAND_IN),  # on file: the kernel of another format
    ("attention.decode", "bf16", "torch", "h20", "vllm", STAND_IN),  # on file: a relative's
    ("attention.decode", "bf16", "torch", "rtx-4090", "vllm", STAND_IN),  # on file: its class's
    ("collective.all_reduce", "any", "nccl", "h200-sxm", "vllm", ON_FILE),  # the engine has its own
    ("collective.all_gather", "any", "nccl", "h200-sxm", "vllm", OWN),
    ("attention.decode", "bf16", "torch", "h200-sxm", "none", OWN),
    ("norm", "any", "torch", "h200-sxm", "none", OWN),
]


@for_each(("kernel", "label", "library", "gpu", "engine", "price"), CASES)
def test_the_constant_nearest_to_the_engines_kernel_prices(
    kernel: str, label: str, library: str, gpu: str, engine: str, price: str, tmp_path: Path
) -> None:
    """Measured here of a library that the engine calls; on file for the device, of its own kernel; a stand-in measured
    here; carried from elsewhere. A stand-in is transferred, with the error of one library's constants on another's."""
    found = asked(tmp_path, kernel, label, library, gpu=gpu, engine=engine)
    fit, shipped = found.fit(kernel, label), load_kernels(load_hardware(gpu), None, engine).fit(kernel, label)
    assert fit is not None and found.overlay is not None
    assert found.of_file(kernel, label) is (price != ON_FILE)
    if price == ON_FILE:
        assert fit == shipped
        assert list(found.overlay.unused) == [kernel]
        return
    assert fit.memory == 0.4
    if price == OWN:
        assert (fit.basis, fit.band) == ("calibrated", (0.9, 1.1))
        return
    known = yaml.safe_load((config_root() / "libraries.yaml").read_text(encoding="utf-8"))["errors"]
    error = known[kernel].get(label) if load_hardware(gpu).vendor == "NVIDIA" else None
    assert fit.basis == "transferred" and fit.source == f"{library}'s kernel"
    assert fit.band == (None if error is None else (error["low"], error["high"]))


def test_a_stand_in_that_nobody_compared_has_no_known_error(tmp_path: Path) -> None:
    fit = asked(tmp_path, "long_conv.decode", "bf16", "torch").fit("long_conv.decode", "bf16")
    assert fit is not None and fit.basis == "transferred" and fit.band is None


def test_a_measured_kernel_makes_no_measured_system(tmp_path: Path) -> None:
    """H20's constants are H100's, one kernel of it measured or none; what was served was served on others."""
    file = calibration(tmp_path, {"matmul": {"bf16": HALF}}, name="h20")
    mixed = load_calibration(load_hardware("h20"), file, False)
    assert mixed.measured is not None and "h20" not in {cell.device for cell in mixed.measured.cells}
    assert [mixed.fit("matmul", "bf16").basis, mixed.fit("attention.decode", "bf16").basis] == [  # type: ignore[union-attr]
        "calibrated",
        "transferred",
    ]


def test_a_band_of_serving_is_of_the_constants_that_it_was_measured_with(tmp_path: Path) -> None:
    """Of serving on H200 more than three systems are on file. Predictions of matmuls at half the speed were compared
    with none of them, and a file that prices nothing changes nothing."""
    shipped = deployment()
    own = deployment(calibration(tmp_path, {"matmul": {"bf16": HALF | KNOWN}}))
    of_another = deployment(calibration(tmp_path, {"matmul": {"bf16": HALF | KNOWN}}, name="a100-80gb-sxm"))
    assert set(serving_bands(shipped, 512.0)) == set(serving_bands(of_another, 512.0)) == {"ttft", "tpot"}
    assert serving_bands(own, 512.0) == {}
    assert lacking(own) == {f"vllm on h200-sxm by the constants of {tmp_path / 'own.yaml'}": 0}
    step = run_step(own, Step(segments=(Segment(batch=np.array([1.0, 8.0]), new=1.0, past=511.0),)))
    assert all(np.isnan(end).all() for end in latency_bands(own, "tpot", step))
    said = band_note(Estimate(deployment=own, load=StaticLoad(batch=1, prompt=512, output=16)))
    assert said.startswith("error: unknown") and "own.yaml" in said


def test_one_set_of_constants_for_all_formats_prices_all(tmp_path: Path) -> None:
    found = load_kernels(load_hardware("h200-sxm"), calibration(tmp_path, {"matmul": {"any": HALF}}), "vllm")
    assert {found.fit("matmul", label).math for label in ("bf16", "fp8", "int8")} == {0.5}  # type: ignore[union-attr]


@for_each("name", ["a100-80gb-sxm", "a100-sxm"])
@for_each(("gpu", "why"), [("h200-sxm", "has its own constants"), ("rtx-4090", "nearest relative")])
def test_a_file_of_another_device_prices_nothing(gpu: str, why: str, name: str, tmp_path: Path) -> None:
    """So that a list of devices can be asked with the file of one of them, or by its alias; a note says it."""
    file = calibration(tmp_path, {"matmul": {"bf16": HALF}}, name=name)
    found, shipped = (load_kernels(load_hardware(gpu), path, "vllm") for path in (file, None))
    assert found.constants == shipped.constants and found.basis == shipped.basis
    assert f"{file} is not used here: it was measured on a100-80gb-sxm, and {gpu}" in found.note
    assert why in found.note and found.described == shipped.name


@for_each("gpu", ["h200-sxm", "m3-max"])
def test_a_cpu_that_was_calibrated_prices_no_device_of_the_catalogue(gpu: str, tmp_path: Path) -> None:
    """It is in no catalogue itself; under the hardware YAML written with it, renamed or not, its constants hold."""
    run = {"source": "inferplan calibrate: kernels that torch reaches, on this device"}
    file = calibration(tmp_path, {"norm": {"any": HALF}}, name="cpu-some-processor", provenance=run)
    found, shipped = (load_kernels(load_hardware(gpu), path, "vllm") for path in (file, None))
    assert found.constants == shipped.constants and "it was measured on cpu-some-processor" in found.note
    for name in ("cpu-some-processor", "laptop"):
        own = tmp_path / f"{name}.yaml"
        own.write_text(yaml.safe_dump(LAPTOP | {"name": name}), encoding="utf-8")
        fit = load_kernels(load_hardware(str(own)), file, "none").fit("norm", "any")
        assert fit is not None and fit.math == 0.5


def test_a_file_of_the_nearest_relative_is_carried(tmp_path: Path) -> None:
    """With the errors that vLLM's kernels had between chips of neighbouring generations (configs/relatives.yaml)."""
    file = calibration(tmp_path, {"matmul": {"bf16": HALF | {"library": "cublas"}}}, name="h100-sxm")
    found, shipped = (load_kernels(load_hardware("h20"), path, "vllm") for path in (file, None))
    fit = found.fit("matmul", "bf16")
    known = yaml.safe_load((config_root() / "relatives.yaml").read_text(encoding="utf-8"))
    error = known["other_chip"]["vllm"]["matmul"]["bf16"]
    assert fit is not None and (fit.math, fit.basis, fit.band) == (0.5, "transferred", (error["low"], error["high"]))
    assert found.fit("attention.decode", "bf16") == shipped.fit("attention.decode", "bf16")
    assert found.basis == "transferred"


def test_a_stand_in_of_another_device_is_farther_than_what_is_on_file(tmp_path: Path) -> None:
    file = calibration(tmp_path, {"attention.decode": {"bf16": HALF | {"library": "torch"}}}, name="h100-sxm")
    found, shipped = (load_kernels(load_hardware("h20"), path, "vllm") for path in (file, None))
    assert found.fit("attention.decode", "bf16") == shipped.fit("attention.decode", "bf16")


def test_a_stand_in_of_another_device_is_nearer_than_the_datasheet(tmp_path: Path) -> None:
    """Nobody has timed long convolutions: nothing on file stands before a relative's."""
    own = {"long_conv.decode": {"bf16": HALF | {"library": "torch"}}}
    found = load_kernels(load_hardware("h20"), calibration(tmp_path, own, name="h100-sxm"), "vllm")
    assert load_kernels(load_hardware("h20"), None, "vllm").fit("long_conv.decode", "bf16") is None
    fit = found.fit("long_conv.decode", "bf16")
    assert fit is not None and (fit.math, fit.basis, fit.band) == (0.5, "transferred", None)


def test_every_answer_says_what_the_file_prices(tmp_path: Path) -> None:
    """The matmuls of a decode step, by their own times, are the file's share of it."""
    file = calibration(tmp_path, {"matmul": {"bf16": HALF}, "mla.decode": {"bf16": HALF | {"library": "torch"}}})
    estimate = Estimate(deployment=deployment(file), load=StaticLoad(batch=8.0, prompt=512.0, output=64.0))
    record = estimate_record(estimate)
    assert record["calibration_file"]["file"] == file
    assert record["calibration_file"]["prices"] == {"matmul": ["bf16"]}
    assert list(record["calibration_file"]["does_not_price"]) == ["mla.decode"]
    costs = estimate.decode.costs
    matmuls = sum(float(np.sum(cost.total)) for cost in costs if cost.op.kernel == "matmul")
    share = matmuls / sum(float(np.sum(cost.total)) for cost in costs)
    assert record["calibration_file_shares"]["decode"] == pytest.approx(share)
    assert f"constants {file} over h200-sxm" in basis_note(estimate)
    assert f"{share:.0%} by {file}" in basis_note(estimate)
    said = overlay_note(estimate)
    assert said.startswith(f"kernels by {file}: matmul bf16; by the constants on file (h200-sxm): ")
    assert "attention.decode bf16-kv-fp8" in said and "mla" not in said


def test_without_a_file_nothing_is_said_of_one() -> None:
    estimate = Estimate(deployment=deployment(), load=StaticLoad(batch=8.0, prompt=512.0, output=64.0))
    assert overlay_note(estimate) == "" and estimate_record(estimate)["calibration_file"] is None


def test_explain_names_the_file_of_each_constant(tmp_path: Path) -> None:
    file = calibration(tmp_path, {"matmul": {"bf16": HALF}})
    request = Request(model="llama-3.1-8b", gpu="h200-sxm", roles=(("kv", "fp8"),), calibration=file)
    load = StaticLoad(batch=8.0, prompt=512.0, output=64.0)

    found = Explainer(request=request, load=load)
    own = [one.origin for one in found.explain("decode.ffn.down").inputs]
    kept = [one.origin for one in found.explain("decode.attn.core").inputs]
    assert f"{file}:1: constants.matmul.bf16.memory" in own
    shipped = [place for place in kept if place.startswith("configs/calibration/h200-sxm.yaml")]
    assert shipped and all("libraries.vllm.attention.decode.bf16-kv-fp8" in place for place in shipped)
    assert not any(file in place for place in kept)


@for_each("gpu", ["rtx-4090", "h20"])
def test_a_run_that_was_written_beside_the_shipped_files_lies_over_them(
    gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``inferplan calibrate`` writes to ``configs/calibration`` under the device's name by default. Without an option
    it prices as with ``--calibration``."""
    shipped = load_kernels(load_hardware(gpu), None, "vllm")
    for source in config_root().iterdir():
        if source.name != "calibration":
            (tmp_path / source.name).symlink_to(source)
    (tmp_path / "calibration").mkdir()
    for source in (config_root() / "calibration").iterdir():
        (tmp_path / "calibration" / source.name).symlink_to(source)
    run = {"source": "inferplan calibrate: kernels that torch reaches, on this device"}
    fits = {"matmul": {"bf16": HALF | {"library": "cublas"}}}
    made = {"name": gpu, "provenance": run, "constants": fits}
    (tmp_path / "calibration" / f"{gpu}.yaml").write_text(json.dumps(made), encoding="utf-8")
    for module in ("calibrations", "files", "overlay"):
        monkeypatch.setattr(f"inferplan.catalog.{module}.config_root", lambda: tmp_path)
    found = load_kernels(load_hardware(gpu), None, "vllm")
    assert found.overlay is not None and found.overlay.used == {"matmul": ["bf16"]}
    fit = found.fit("matmul", "bf16")
    assert fit is not None and (fit.math, fit.basis) == (0.5, "calibrated")
    assert found.fit("attention.decode", "bf16") == shipped.fit("attention.decode", "bf16")


def test_the_step_of_a_run_is_torchs_own_loop_and_no_engines(tmp_path: Path) -> None:
    run = {"source": "inferplan calibrate: kernels that torch reaches, on this device"}
    fits = {"matmul": {"bf16": HALF | {"library": "cublas"}}}
    file = calibration(tmp_path, fits, step={"host": 1e-4, "layer": 3e-5}, provenance=run)
    hardware = load_hardware("h200-sxm")
    for engine in ("vllm", "none"):
        found, shipped = (load_calibration(hardware, path, False, engine) for path in (file, None))
        assert found.fit("matmul", "bf16").math == 0.5  # type: ignore[union-attr]
        assert (found.step.layer, found.step == shipped.step) == ((0.0, True) if engine == "vllm" else (3e-5, False))


def test_a_step_of_its_own_holds_for_every_kernel(tmp_path: Path) -> None:
    step = {"host": 1e-3, "launch": 0.5}
    file = calibration(tmp_path, {"matmul": {"bf16": HALF | {"overhead": 4e-6}}}, step=step)
    found = load_calibration(load_hardware("h200-sxm"), file, False)
    assert found.step.host == 1e-3 and not found.shares_step
    assert {found.fit(*place).launch for place in (("matmul", "bf16"), ("norm", "any"))} == {0.5}  # type: ignore[union-attr]


def test_an_unknown_error_names_its_kernels_and_what_a_step_adds(tmp_path: Path) -> None:
    """With errors of matmuls alone the other kernels are named; with errors of all, that of the step is missing."""
    known = HALF | {"library": "blas", "error": {"low": 0.8, "high": 1.25}}
    kernels = ("attention.decode", "attention.prefill", "copy", "elementwise", "gather", "norm")
    for others, told in (
        (HALF | {"library": "blas"}, "the error of"),
        (known, "kernels of decode x 0.80 to x 1.25"),
    ):
        fits = {"matmul": {"any": known}, **{name: {"any": others} for name in kernels}}
        file = calibration(tmp_path, fits, name="laptop", step={"layer": 1e-5})
        own = tmp_path / "laptop.yaml"
        own.write_text(yaml.safe_dump(LAPTOP), encoding="utf-8")
        deployed = assemble(Request(model="qwen2.5-0.5b", gpu=str(own), engine="none", calibration=file))
        said = band_note(Estimate(deployment=deployed, load=StaticLoad(batch=1, prompt=512, output=16)))
        assert said.startswith("error: unknown; ") and told in said
        assert "matmul" not in said


@for_each(
    ("fit", "words"),
    [
        ({"overhead": float("inf")}, "overhead: Input should be less than or equal to 10"),
        ({"terms": {"hops": float("nan")}}, "terms must be numbers of zero or more"),
        ({"terms": {"bogus": 1e-6}}, "have a term 'bogus'"),
        ({"error": {"low": 1.2, "high": 0.8}}, "a band must go from low to high"),
        ({"error": {"low": -1.0, "high": 0.8}}, "a band must go from low to high"),
        ({"error": {"median": float("nan")}}, "errors must be numbers"),
    ],
)
def test_constants_that_no_kernel_has_are_refused(fit: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = calibration(tmp_path, {"matmul": {"bf16": HALF | fit | {"library": "cublas"}}})
    with pytest.raises(SpecError) as refused:
        decode(deployment(file))
    assert words in refused.value.render()


def test_a_step_without_end_is_refused(tmp_path: Path) -> None:
    file = calibration(tmp_path, {}, step={"host": float("inf")})
    with pytest.raises(SpecError, match="valid Calibration"):
        deployment(file)


@for_each("text", ["[" * 50_000, "x: " + '{"a":' * 50_000, "- " * 50_000, '{"a":' * 50_000])
def test_nesting_without_end_is_an_error_and_not_the_end_of_the_process(text: str, tmp_path: Path) -> None:
    path = tmp_path / "deep.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError, match="not YAML"):
        deployment(str(path))
