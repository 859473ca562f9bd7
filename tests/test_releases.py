"""Kernels by engine release: which release stands in, and that its constants give what was measured of it."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from inferplan.catalog.assemble import Request, assemble, load_engine
from inferplan.catalog.calibrations import device_releases, load_calibration, load_kernels, release_dates
from inferplan.catalog.drafts import draft_alone
from inferplan.catalog.files import config_root, load_hardware, read_yaml, validate
from inferplan.devices.constants import Calibration, Fit, StepConstants
from inferplan.devices.engine import EngineFlags
from inferplan.devices.releases import (
    KERNEL_ROLES,
    REDUCED,
    OnFile,
    Release,
    ReleaseDates,
    Releases,
    release_order,
    role_of,
)
from inferplan.errors import UnknownNameError, UsageError
from inferplan.estimate.anchoring import fingerprint
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.roofline import price
from inferplan.validation.deploy import deployment_of
from inferplan.validation.releases import release_of
from inferplan.validation.rows import row_of
from inferplan.validation.run import Pricing, price_row
from inferplan.work.formats import find_format
from inferplan.work.ops import GroupedMatmul, Matmul, Op
from inferplan.work.parallel import Parallelism
from tests.cases import for_each

H100 = load_hardware("h100-sxm")
USUAL = {"model": "gpt-oss-120b", "gpu": "h100-sxm"}
FILE = config_root() / "calibration" / "h100-sxm.yaml"
BF16, FP8 = find_format("bf16"), find_format("fp8")
DATES = ReleaseDates(
    source="made up", released={"0.1": date(2026, 1, 1), "0.2": date(2026, 1, 20), "0.3": "2026-03-01"}
)
NEW, OLD, TRITON = Fit(memory=0.9), Fit(memory=0.5), Fit(memory=0.4)
ON_FILE = Calibration(name="h100-sxm", libraries={"vllm": {"matmul": {"bf16": NEW, "fp8": NEW}}})
TABLES = Releases(
    name="h100-sxm",
    share=0.05,
    newest={"vllm": "0.3"},
    engines={
        "vllm": {
            "0.1": Release(
                kernels={"matmul": {"fp8": {"default": OLD, "triton_mm": TRITON}}}, same={"matmul": ["bf16"]}
            ),
        }
    },
)


def test_candidates_and_later_builds_of_a_release_are_in_the_order_of_pep_440() -> None:
    ordered = ["1.0.0", "1.2.0rc5", "1.2.0rc6", "1.2.0rc6.post2", "1.2.0", "1.2.0.post1", "1.3.0rc0", "1.10"]
    shuffled = ordered[::-1]
    assert sorted(shuffled, key=lambda name: release_order(name) or ((), 0, 0)) == ordered
    assert release_order("0.19") == release_order("v0.19.0")
    assert release_order("nightly") is None


@for_each(
    ("engine", "day", "release"),
    [("vllm", date(2026, 4, 10), "0.19.0"), ("sglang", date(2026, 3, 25), "0.5.9"), ("vllm", date(2025, 1, 1), None)],
)
def test_a_day_has_the_newest_release_before_it(engine: str, day: date, release: str | None) -> None:
    """vLLM 0.19.0 is of 3 April and 0.19.1 of 18 April 2026, SGLang 0.5.9 of 23 February (pypi.org)."""
    assert release_dates()[engine].before(day) == release


@for_each(("version", "fits"), [("0.1", OLD), ("0.2", OLD), ("0.3", NEW), ("0.4", NEW)])
def test_the_nearest_release_by_its_day_stands_in(version: str, fits: Fit) -> None:
    """0.2 is 19 days after 0.1 and 40 before 0.3; what comes after the last one on file counts as of its day."""
    chosen = TABLES.chosen(ON_FILE, "vllm", version, DATES, tuple(KERNEL_ROLES))
    found = chosen.calibration.libraries["vllm"]["matmul"]
    assert found["fp8"].memory == fits.memory
    assert found["bf16"] == NEW, "bf16 took the same in 0.1"


def test_a_line_of_releases_is_its_last_one() -> None:
    """0.5 is no release of SGLang but a line, as in its defaults on file; 0.19 of vLLM is 0.19.0."""
    dates = release_dates()
    assert dates["sglang"].day("0.5") == dates["sglang"].day("0.5.23")
    assert dates["vllm"].day("0.19") == date(2026, 4, 3).toordinal()


def test_the_note_says_whose_kernels_price() -> None:
    roles = tuple(KERNEL_ROLES)
    assert TABLES.chosen(ON_FILE, "vllm", "0.1", DATES, roles).note == "vllm 0.1: its own kernels for linear"
    stands_in = TABLES.chosen(ON_FILE, "vllm", "0.2", DATES, roles).note
    assert stands_in == "vllm 0.2: kernels of 0.1 (linear), the nearest that were timed"
    assert TABLES.chosen(ON_FILE, "vllm", "0.1", DATES, ("experts",)).calibration == ON_FILE


def test_another_kernel_of_a_release_does_not_stand_in_for_its_usual_one() -> None:
    """The usual one takes what the newest takes; the other was timed beside it, for a flag."""
    beside = Release(kernels={"matmul": {"bf16": {"triton_mm": TRITON}}}, same={"matmul": ["bf16"]})
    tables = TABLES.model_copy(update={"engines": {"vllm": {"0.1": beside}}})
    found = tables.chosen(ON_FILE, "vllm", "0.1", DATES, tuple(KERNEL_ROLES))
    assert found.calibration.libraries["vllm"]["matmul"]["bf16"] == NEW
    assert load_kernels(load_hardware("l40s"), None, "trtllm@1.0.0").constants["grouped_matmul"]["bf16"].source == ""


def test_a_release_whose_kernels_were_refused_names_the_one_that_stands_in() -> None:
    """Experts of vLLM 0.24 in fp8 are off their fast path on Hopper: 0.19's price on H100, 0.22's on H200."""
    for gpu, release in (("h100-sxm", "0.19.0"), ("h200-sxm", "0.22.0")):
        note = load_kernels(load_hardware(gpu), None, "vllm@0.24").note
        assert any(part.startswith(release) and "experts" in part for part in re.findall(r"[\d.]+ \([^)]*\)", note)), (
            note
        )


def test_a_backend_is_the_kernel_whose_source_names_it() -> None:
    found = TABLES.backend("vllm", "0.3", "linear", "triton", OnFile(DATES, {}, {}))
    assert found["matmul"]["fp8"].memory == TRITON.memory
    for name in ("marlin", "tri", "riton", "n", ".", "triton_"):
        with pytest.raises(UnknownNameError, match=f"no kernel {re.escape(repr(name))}"):
            TABLES.backend("vllm", "0.3", "linear", name, OnFile(DATES, {}, {}))
    with pytest.raises(UsageError, match="sampler"):
        TABLES.backend("vllm", "0.3", "sampler", "triton", OnFile(DATES, {}, {}))


def test_marlin_prices_four_bit_weights_of_another_format_than_it_was_timed_in() -> None:
    """vLLM 0.24 on H100, experts in mxfp4 by Marlin, 896 of 3584 x 3072, 16 a token, 4,096 tokens alike: 28.94 ms
    (kernel table; that model's own activation, timed as SiLU). The usual kernel of mxfp4 would take half of it.

    Its int4 rows price it: both matmuls are all but the activation and the combination, some 5 %.
    """
    experts = GroupedMatmul(
        name="experts",
        m=4096.0 * 16,
        k=3584,
        n=3 * 3072,
        experts=896,
        touched=896.0,
        weight=find_format("mxfp4"),
        input=BF16,
        output=BF16,
    )
    asked = Request(model="gpt-oss-120b", gpu="h100-sxm", flags=EngineFlags(backends=(("experts", "marlin"),)))
    marlin, usual = (price(experts, H100, assemble(request).calibration) for request in (asked, Request(**USUAL)))
    assert float(marlin.total) == pytest.approx(28.94e-3, rel=0.25)
    assert float(usual.total) < 0.65 * 28.94e-3
    own = OnFile(DATES, {"grouped_matmul/int4xbf16": "marlin"}, {"grouped_matmul": {"int4xbf16": NEW}})
    found = TABLES.backend("vllm", "0.3", "experts", "marlin", own)["grouped_matmul"]
    assert {label: fit.basis for label, fit in found.items()} == {
        "int4xbf16": "calibrated",
        "mxfp4xbf16": "transferred",
    }


def test_a_backend_of_another_engine_is_none_of_this_one() -> None:
    """Matmuls in fp8 on file are of the fastest library: TensorRT-LLM's torch_flow is no choice of vLLM's."""
    with pytest.raises(UnknownNameError, match="torch_flow"):
        chosen(("linear", "torch_flow"))
    assert "timed in fp8; matmul in bf16 as usual" in chosen(("linear", "cutlass")).calibration.note
    with pytest.raises(UnknownNameError, match="CutlassFP8ScaledMMLinearKernel"):
        chosen(("linear", "cut"))


def chosen(*backends: tuple[str, str], **changes: Any) -> Deployment:
    """Llama-3.1-8B in fp8 on one H100 under vLLM, with kernels that flags choose."""
    asked: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "quant": "fp8"}
    return assemble(Request(**{**asked, **changes}, flags=EngineFlags(backends=backends)))


def test_a_backend_that_would_do_nothing_is_refused_with_the_formats_that_it_has() -> None:
    """Cutlass was timed in fp8: bf16 weights run another kernel. One device adds nothing up. An ideal one, and one with
    constants of the user's own, runs no kernel that was timed elsewhere."""
    with pytest.raises(UsageError, match="linear=cutlass would do nothing: timed in fp8 on h100-sxm"):
        chosen(("linear", "cutlass"), quant="bf16")
    with pytest.raises(UsageError, match="all-reduce=vllm would do nothing"):
        chosen((REDUCED, "vllm"))
    assert f"{REDUCED} by vllm" in chosen((REDUCED, "vllm"), parallel=Parallelism(tp=2)).calibration.note
    with pytest.raises(UsageError, match="would replace constants of"):
        chosen(("linear", "cutlass"), calibration=str(config_root() / "calibration" / "h100-sxm.yaml"))
    with pytest.raises(UsageError, match="would do nothing"):
        chosen(("linear", "cutlass"), ideal=True)


def test_a_draft_without_what_the_choice_is_of_keeps_its_usual_kernels() -> None:
    """The choice is the served model's: a dense model has no experts to run by Triton."""
    flags = EngineFlags(backends=(("experts", "triton"),))
    asked = Request(model="qwen3-30b-a3b", gpu="b200-hgx", quant="bf16", engine="sglang", flags=flags)
    assert "experts by triton" in assemble(asked).calibration.note
    assert "experts by" not in draft_alone(asked, "qwen3-0.6b").whole.calibration.note


def test_kernels_of_a_release_are_taken_by_name() -> None:
    """Those that no serving row speaks for are asked for: GEMM in fp8 of vLLM 0.19 on H100 took half of 0.14's."""
    narrow = Matmul(name="gemm", m=512.0, k=8192, n=8192, weight=FP8, input=FP8, output=BF16)
    new, old = (price(narrow, H100, chosen(("linear", f"@{one}")).calibration).total for one in ("0.19", "0.14"))
    assert new / old == pytest.approx(0.5, rel=0.1)
    for missing in ("0.0.1", "9"):
        with pytest.raises(UnknownNameError, match=f"no release '{re.escape(missing)}'"):
            chosen(("linear", f"@{missing}"))


def test_whoever_asks_gets_the_kernels_that_own_lists() -> None:
    """A deployment and a measured row of one release have one price: SGLang's takes attention from it and no more."""
    asked = assemble(Request(model="qwen3-32b", gpu="h100-sxm", engine="sglang@0.5.6", parallel=Parallelism(tp=2)))
    facts = {"model": "qwen3-32b", "gpu": "h100-sxm", "precision": "bf16", "isl": "128", "osl": "64", "tp": "2"}
    facts |= {"concurrency": "1", "ttft_ms": "30", "tpot_ms": "12"}
    for stated in ({"engine": "sglang", "engine_version": "0.5.6"}, {"engine": "sglang", "kernels": "sglang@0.5.6"}):
        run = row_of("row", facts | stated, {}).run
        assert run is not None
        assert fingerprint(deployment_of(run)[0]) == fingerprint(asked)
    newest = load_calibration(H100, None, False, "sglang").constants
    differs = {kernel for kernel, fits in asked.calibration.constants.items() if fits != newest[kernel]}
    assert {role_of(kernel) for kernel in differs} == {"attention"}


def test_experts_are_chosen_where_there_are_some() -> None:
    with pytest.raises(UsageError, match="no routed experts"):
        assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", flags=EngineFlags(backends=(("experts", "triton"),))))


def seconds(op: Op, engine: str) -> float:
    """Priced with all kernels of a release, those that no serving row speaks for too."""
    name, _, version = engine.partition("@")
    constants = load_kernels(H100, None, name)
    if version:
        tables, raw = device_releases("h100-sxm"), validate(FILE, read_yaml(FILE), Calibration)
        assert tables is not None
        constants = tables.chosen(raw, name, version, release_dates()[name], tuple(KERNEL_ROLES)).calibration
    return float(price(op, H100, constants.for_engine(name)).total)


def test_what_a_release_changed_is_what_was_measured() -> None:
    """Kernel tables of vLLM on H100, 0.14 -> 0.19, median over shapes: experts in per-tensor fp8 x 0.72, GEMM x 0.50;
    bf16 GEMM 0.19 -> 0.24 x 0.99. The experts of 0.24 took 3.47 times as long: refused, those of 0.19 stand in."""
    shape = {"experts": 128, "touched": 120.0, "weight": FP8, "input": FP8, "output": BF16}
    experts = GroupedMatmul(name="gate_up", m=4096.0, k=2048, n=1536, **shape)
    assert seconds(experts, "vllm@0.19") / seconds(experts, "vllm@0.14") == pytest.approx(0.72, rel=0.1)
    assert seconds(experts, "vllm") == seconds(experts, "vllm@0.19")
    narrow = Matmul(name="gemm", m=512.0, k=8192, n=8192, weight=FP8, input=FP8, output=BF16)
    assert seconds(narrow, "vllm@0.19") / seconds(narrow, "vllm@0.14") == pytest.approx(0.5, rel=0.1)
    dense = Matmul(name="gemm", m=64.0, k=8192, n=8192, weight=BF16, input=BF16, output=BF16)
    assert seconds(dense, "vllm") / seconds(dense, "vllm@0.19") == pytest.approx(1.0, rel=0.05)


def test_a_release_of_matmuls_whose_search_for_a_scale_is_taken_off() -> None:
    """Kernel tables of TensorRT-LLM in fp8 on H100, less the scale timed alone: 8192 rows, 7168 to 12288, take 1.119 ms
    under 1.2.0rc5 and 0.993 under 1.3.0rc20; 1.3.0rc10 takes what the newest does."""
    long = Matmul(name="gemm", m=8192.0, k=7168, n=12288, weight=FP8, input=FP8, output=BF16)
    assert seconds(long, "trtllm@1.2.0rc5") / seconds(long, "trtllm") == pytest.approx(1.119 / 0.993, rel=0.1)
    assert seconds(long, "trtllm@1.2.0rc5") == pytest.approx(1.119e-3, rel=0.1)
    assert seconds(long, "trtllm@1.3.0rc10") == seconds(long, "trtllm")


def test_a_release_after_the_defaults_on_file_is_priced_with_the_newest_of_them() -> None:
    """TensorRT-LLM 1.2.0rc5 is of December 2025 and was timed; the only defaults on file are those of 1.0."""
    engine = load_engine("trtllm@1.2.0rc5")
    assert engine.defaults.version == "1.0" and "defaults of 1.0, the newest on file" in engine.note
    assert "1.2.0rc5 (attention, linear)" in load_kernels(H100, None, "trtllm@1.2.0rc5").note
    with pytest.raises(UnknownNameError, match="newer than every version"):
        load_engine("trtllm@9.9")


def test_a_release_before_the_defaults_on_file_is_priced_with_the_oldest_of_them() -> None:
    """vLLM 0.14 is timed (January 2026); the oldest defaults on file are those of 0.18. Nothing is known of 0.0.1."""
    engine = load_engine("vllm@0.14")
    assert engine.defaults.version == "0.18" and "defaults of 0.18, the oldest on file" in engine.note
    assert load_kernels(H100, None, "vllm@0.14").note.startswith("vllm 0.14: ")
    with pytest.raises(UnknownNameError, match="older than every version"):
        load_engine("vllm@0.0.1")


def test_a_device_without_releases_keeps_its_constants() -> None:
    hardware = load_hardware("mi300x")
    assert load_kernels(hardware, None, "vllm@0.19") == load_kernels(hardware, None, "vllm")


def test_a_row_without_a_version_is_of_the_newest_release_of_its_day() -> None:
    """SGLang 0.5.8.post1 is of 5 February 2026, 0.5.9 of the 23rd; a stated version needs no day."""
    assert release_of("sglang", {"engine_version": "nightly-dev-20260216-d3bae71e"})[0] == "0.5.8.post1"
    assert release_of("sglang", {"date": "2026-02-24"})[0] == "0.5.9"
    assert release_of("sglang", {"engine_version": "0.5.12-cu130", "date": "2026-02-24"}) == ("0.5.12", ())
    assert release_of("trtllm", {"engine_version": "1.2.0rc6.post2"}) == ("1.2.0rc6.post2", ())
    assert release_of("vllm", {}) == release_of("vllm", {"date": "2020-01-01"}) == (None, ())
    assert release_of("llama.cpp", {"date": "2026-02-24"}) == (None, ())


def test_the_note_of_a_row_says_which_release_priced_it() -> None:
    """Attention of SGLang 0.5.6 took 17.3 us at least on H100 where 0.5.14 takes 9.0 (kernel tables): a longer step."""
    facts = {
        "model": "qwen3-32b",
        "gpu": "h100-sxm",
        "engine": "sglang",
        "precision": "bf16",
        "isl": "128",
        "osl": "64",
    }
    facts |= {"concurrency": "1", "tp": "2", "ttft_ms": "30", "tpot_ms": "12"}
    old, new = (row_of("row", facts, {"engine_version": version}) for version in ("0.5.6.post2", "0.5.14"))
    scored = [price_row(row, Pricing()) for row in (old, new)]
    first, second = (one.prediction for one in scored)
    assert first is not None and second is not None
    assert any("0.5.6.post2 (attention)" in note for note in first.notes)
    extra = (17.3e-6 - 9.0e-6) * 64
    assert first.tpot - second.tpot == pytest.approx(extra, rel=0.5)  # type: ignore[operator]


def test_a_flag_chooses_the_kernel_that_was_timed() -> None:
    """Experts of SGLang 0.5.14 on B200 in bf16, 512 rows over 128 experts of 2048 x 768: kernel tables, by backend.

    The usual one is FlashInfer's of TensorRT-LLM; Triton's took 1.5 to 3 times as long at such shapes.
    """
    b200 = load_hardware("b200-hgx")
    shape = {"experts": 128, "touched": 125.0, "weight": BF16, "input": BF16, "output": BF16}
    experts = GroupedMatmul(name="gate_up", m=512.0, k=2048, n=1536, **shape)

    def taken(*backends: tuple[str, str], engine: str = "sglang") -> float:
        deployment = chosen(*backends, model="qwen3-30b-a3b", gpu="b200-hgx", quant="bf16", engine=engine)
        return float(price(experts, b200, deployment.calibration).total)

    assert 1.3 < taken(("experts", "triton")) / taken() < 3.5
    assert taken(("experts", "flashinfer_trtllm")) == taken()
    assert taken(("experts", "flashinfer_trtllm"), engine="sglang@0.5.9") == taken()
    with pytest.raises(UnknownNameError, match="marlin2"):
        taken(("experts", "marlin2"))


def test_versions_before_a_rewrite_have_a_host_of_their_own() -> None:
    """vLLM's first engine ends where the second is the default (0.8). What lies between it and the oldest on file of
    the second takes the second's defaults, and not the first's host; from 0.14 on it schedules ahead."""
    old, first, second, newest = (load_engine(f"vllm{at}") for at in ("@0.5", "@0.6.3", "@0.9.1", ""))
    before, after = load_engine("vllm@0.13.0"), load_engine("vllm@0.14.0")
    assert old.step is not None
    assert old.note == ""
    assert (first.defaults.version, first.step) == ("0.5", old.step)
    assert "0.5, the newest on file that is not newer" in first.note
    assert (second.defaults.version, second.step, second.serving) == ("0.12", before.step, newest.serving)
    assert "0.12, the oldest on file that is not older" in second.note
    assert before.step is not None and before.step.host is not None and old.step.host is not None
    assert old.step.host > before.step.host > 1e-3  # seconds of a step
    assert (after.defaults.version, after.step) == ("0.18", load_engine("vllm").step)
    assert after.step is not None and after.step.host is None
    assert (old.serving.latency, old.serving.eager_layer, old.serving.overlapped) == (0.0, 0.78e-3, False)
    assert (old.batching.mixed, newest.batching.mixed) == (False, True)
    assert load_engine("trtllm@0.20.0").serving.eager_layer == 0.0
    assert load_engine("trtllm").serving.eager_layer > 0.0


def test_an_engine_whose_host_was_measured_takes_it() -> None:
    """Not on an ideal device, nor where the constants bring a step of their own."""
    usual = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", engine="sglang"))
    own = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", engine="vllm@0.5"))
    assert own.engine.step is not None
    assert (own.step.host, own.step.sequence) == (own.engine.step.host, own.engine.step.sequence)
    assert own.step.launch == usual.step.launch == usual.calibration.step.launch
    assert usual.step == usual.calibration.step
    assert assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", engine="vllm@0.5", ideal=True)).step.sequence == 0.0
    measured = own.calibration.model_copy(update={"step": StepConstants(host=1e-3), "shares_step": False})
    assert replace(own, calibration=measured).step == StepConstants(host=1e-3)


def test_releases_before_all_known_days_take_the_newest_kernels() -> None:
    note = load_kernels(H100, None, "trtllm@0.17").note
    assert note.startswith("trtllm 0.17: kernels of the newest, ")
    assert load_kernels(H100, None, "trtllm@0.17").constants == load_kernels(H100, None, "trtllm").constants
