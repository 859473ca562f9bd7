"""The roofline: its formula by hand, its terms, and which constants an operator gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferplan.catalog.calibrations import load_calibration, load_kernels
from inferplan.catalog.files import config_root, load_hardware, read_yaml, validate
from inferplan.devices.constants import IDEAL, Calibration, Fit, StepConstants
from inferplan.devices.hardware import HardwareSpec, Link
from inferplan.errors import MissingFactError
from inferplan.estimate.phase import Phase
from inferplan.estimate.roofline import TERMS, IdealTime, OpCost, fitted_time, ideal_time, price, soft_maximum
from inferplan.work.formats import find_format
from inferplan.work.ops import Attention, Collective, Copy, GroupedMatmul, Mask, Matmul, Op
from inferplan.work.step import decode
from tests.builders import chip, dense, deploy
from tests.cases import for_each

BF16, FP8 = find_format("bf16"), find_format("fp8")
MEASURED = ("a100-80gb-sxm", "b200-hgx", "h100-sxm", "h200-sxm", "l40s")


def device(units: int | None = 100) -> HardwareSpec:
    found = chip(1e12, {"bf16": 1e14, "fp8": 2e14}, link=[Link(name="wire", bandwidth="100 GB/s", domain=8)])
    return found.model_copy(update={"units": units})


def matmul(m: float = 256.0, k: int = 1024, n: int = 512) -> Matmul:
    return Matmul(name="x", m=m, k=k, n=n, weight=BF16, input=BF16, output=BF16)


def attention(
    new: float = 1.0, past: float = 1023.0, mask: Mask | None = None, dim: int = 128, kv_heads: int = 8
) -> Attention:
    sizes = {"heads": 32, "kv_heads": kv_heads, "key_dim": dim, "value_dim": dim}
    return Attention(name="a", batch=4.0, new=new, past=past, mask=mask or Mask(), base=BF16, kv=BF16, **sizes)


def with_fit(op: Op, fit: Fit, label: str = "any") -> Calibration:
    return Calibration(name="test", constants={op.kernel: {label: fit}})


def seconds(op: Op, fit: Fit, hardware: HardwareSpec | None = None) -> float:
    return float(price(op, hardware or device(), with_fit(op, fit)).time)


def test_ideal_is_the_larger_of_math_and_memory() -> None:
    op = matmul()
    flop = 2 * 256 * 1024 * 512
    moved = 2 * (256 * 1024 + 1024 * 512 + 256 * 512)
    assert seconds(op, Fit()) == pytest.approx(max(flop / 1e14, moved / 1e12))
    assert price(op, device(), IDEAL).basis == "roofline"


def test_calibrated_is_the_formula() -> None:
    op, fit = matmul(), Fit(math=0.5, memory=0.8, overhead=3e-6, sharpness=2.0)
    math, memory = 2 * 256 * 1024 * 512 / (0.5 * 1e14), 2 * (256 * 1024 + 1024 * 512 + 256 * 512) / (0.8 * 1e12)
    assert seconds(op, fit) == pytest.approx(3e-6 + (math**2 + memory**2) ** 0.5)


@for_each("p", [1.0, 1.5, 2.0, 3.3, 4.0, float("inf")])
def test_soft_maximum_is_the_p_norm(p: float) -> None:
    a, b = np.array([1e-9, 3.0, 0.0]), np.array([2e-3, 4.0, 5.0])
    expected = np.maximum(a, b) if np.isinf(p) else (a**p + b**p) ** (1 / p)
    assert np.allclose(soft_maximum(a, b, p), expected)


@for_each(
    ("op", "term", "count"),
    [
        (matmul(m=64.0, k=1000, n=512), "depth", 8),
        (matmul(m=64.0, n=512), "spread", 100 / 4),
        (matmul(m=192.0, n=512), "padding", 256 / 192 - 1),
        (matmul(), "rows", 0),
        (attention(), "merges", np.log2(1 + 1024 / 128)),
        (attention(), "items", 4 * 8 / 100),
        (attention(kv_heads=1), "items", 4 * 2 / 100),  # 32 query heads of one KV head are two tiles of 16 rows
        (attention(kv_heads=32), "items", 4 * 32 / 100),
        (attention(), "windowed", 0),
        (attention(mask=Mask(kind="window", size=128)), "windowed", 4 * 32 / 100),
        (attention(mask=Mask(kind="window", size=128)), "merges", 1.0),
        (attention(new=300.0, past=0.0), "blocks", 4 * 32 * 3 / 100),
        (attention(new=512.0, past=0.0), "spread", 100 / (4 * 32 * 4)),
        (attention(new=128.0, past=0.0), "padding", 128 * 128 / (128 * 129 / 2) - 1),
    ],
)
def test_terms_count_what_they_say(op: Op, term: str, count: float) -> None:
    assert ideal_time(op, op.work(), device(), [term]).counts[term] == pytest.approx(count)


@for_each(("rows", "share"), [(1.0, 0.0), (2.0, 0.0), (4.0, 0.5), (8.0, 1.0), (512.0, 1.0)])
def test_a_processor_without_thread_blocks_copies_weights_for_several_rows(rows: float, share: float) -> None:
    """fp32 on a Xeon, 67 MB of weights: 4.8, 5.1, 9.9, 15.3 ms at 1, 2, 4, 8 rows, 14.7 at 16 (22 November 2026)."""
    op = matmul(m=rows, k=1000, n=512)
    blockless = device().model_copy(update={"thread_blocks": False})
    assert ideal_time(op, op.work(), blockless, ["packing"]).counts["packing"] == pytest.approx(share * 1000 * 512 * 2)
    assert ideal_time(op, op.work(), device(), ["packing"]).counts["packing"] == 0.0
    nobody_knows = device().model_copy(update={"units": None})  # a GPU still, that copies none
    assert ideal_time(op, op.work(), nobody_knows, ["packing"]).counts["packing"] == 0.0


def test_quantised_rows_and_experts_are_counted() -> None:
    narrow = Matmul(name="x", m=300.0, k=64, n=64, weight=FP8, input=FP8, output=BF16)
    assert ideal_time(narrow, narrow.work(), device(), ["rows"]).counts["rows"] == pytest.approx(3.0)
    sizes = {"k": 64, "n": 256, "experts": 8}
    moe = GroupedMatmul(name="x", m=32.0, touched=6.5, weight=BF16, input=BF16, output=BF16, **sizes)
    counts = ideal_time(moe, moe.work(), device(), ["experts", "spread"]).counts
    assert counts["experts"] == 6.5
    assert counts["spread"] == pytest.approx(100 / (6.5 * 2))


def test_rows_that_are_sorted_take_seconds_on_the_side_that_other_operators_keep() -> None:
    """By hand, 100 SMs: 300 rows of 7,168 come in, 21,504 numbers of an SM; 300 rows of 7,168 go out. Rows that other
    ranks have sorted, and those that a kernel reads through an index, take none.
    """
    sizes = {"m": 300.0, "experts": 8, "touched": 8.0, "weight": FP8, "input": FP8, "output": BF16}
    way_in = GroupedMatmul(name="in", k=7168, n=512, reordered="input", **sizes)
    way_out = GroupedMatmul(name="out", k=256, n=7168, reordered="output", **sizes)
    plain = GroupedMatmul(name="x", k=7168, n=512, **sizes)
    fit = Fit(overhead=4e-6, terms={"sorting": 4e-10})
    assert seconds(way_in, fit) - seconds(plain, fit) == pytest.approx(8.6016e-6)
    assert ideal_time(way_out, way_out.work(), device(), ["sorting"]).counts["sorting"] == pytest.approx(21_504)
    assert ideal_time(plain, plain.work(), device(), ["sorting"]).counts["sorting"] == 0.0
    unknown = device().model_copy(update={"units": None})
    assert ideal_time(way_out, way_out.work(), unknown, ["sorting"]).counts["sorting"] == 0.0


def test_collective_terms_are_hops_and_pipeline() -> None:
    op = Collective(name="c", pattern="all_gather", elements=1e6, group=4, format=BF16, span=4)
    wire = 0.75 * 2e6 / 100e9
    counts = ideal_time(op, op.work(), device(), ["hops", "ramp"]).counts
    assert counts == {"hops": 2.0, "ramp": pytest.approx(wire**0.5)}
    fit = Fit(memory=0.5, overhead=4e-6, terms={"hops": 1e-6, "ramp": 1e-3})
    assert seconds(op, fit) == pytest.approx(4e-6 + 2e-6 + 1e-3 * wire**0.5 + wire / 0.5)


@for_each(
    ("elements", "group", "wire"),
    [
        (1e4, 8, 7 * 2e4 / 100e9 / 0.5),  # 2.8 us for the messages of seven others
        (1e6, 8, 1.75 * 2e6 / 100e9 / 0.5 + 1e-5 + 1e-3 * (1.75 * 2e6 / 100e9) ** 0.5),  # 85.9 us; in one stage 280
        (1e6, 2, 2e6 / 100e9 / 0.5),  # of two ranks one reads what it would receive in two stages
    ],
)
def test_an_all_reduce_is_one_stage_or_two_whichever_is_faster(elements: float, group: int, wire: float) -> None:
    """One stage reads (n - 1) M and waits for nobody; two move 2 (n - 1)/n M, and the second waits for the first."""
    op = Collective(name="c", pattern="all_reduce", elements=elements, group=group, format=BF16, span=group)
    fit = Fit(memory=0.5, overhead=4e-6, terms={"second": 1e-5, "pieces": 1e-3})
    assert seconds(op, fit) == pytest.approx(4e-6 + wire)


def test_over_several_domains_an_all_reduce_has_two_stages() -> None:
    """Of 16 ranks in two domains of 8 none reads the messages of all others at once."""
    links = [Link(name="wire", bandwidth="100 GB/s", domain=8), Link(name="net", bandwidth="100 GB/s")]
    hardware = chip(1e12, {"bf16": 1e14}, link=links)
    op = Collective(name="c", pattern="all_reduce", elements=1e4, group=16, format=BF16, span=16)
    plain = seconds(op, Fit(), hardware)
    assert seconds(op, Fit(terms={"second": 1e-5}), hardware) == pytest.approx(plain + 1e-5)


@for_each(
    ("gpu", "engine", "ranks", "elements", "microseconds"),
    [
        ("h200-sxm", "trtllm", 2, 2**20, 9.2),
        ("h200-sxm", "trtllm", 4, 2**18, 7.7),
        ("h200-sxm", "trtllm", 8, 2**18, 17.8),
        ("h200-sxm", "trtllm", 8, 2**20, 30.5),
        ("h100-sxm", "trtllm", 8, 2**19, 26.0),
        ("h100-sxm", "vllm", 8, 2**17, 10.8),
        ("h100-sxm", "vllm", 8, 2**20, 19.4),
        ("b200-hgx", "trtllm", 8, 2**20, 30.4),
        ("b200-hgx", "sglang", 2, 2**20, 8.7),
    ],
)
def test_all_reduces_take_what_the_tables_timed(
    gpu: str, engine: str, ranks: int, elements: int, microseconds: float
) -> None:
    """Messages of a decode step, bf16, in graphs: the tables of aiconfigurator (TensorRT-LLM 1.3.0rc20, vLLM 0.24,
    SGLang 0.5.14). With one law of the message for all group sizes 8 ranks came out twice as fast."""
    op = Collective(name="c", pattern="all_reduce", elements=float(elements), group=ranks, format=BF16, span=ranks)
    hardware = load_hardware(gpu)
    found = float(price(op, hardware, load_kernels(hardware, None, engine)).time)
    assert found * 1e6 == pytest.approx(microseconds, rel=0.16)


@for_each(("tokens", "times"), [(1023.0, 0.0), (1024.0, 0.0), (1025.0, 1.0)])
def test_large_all_reduces_fall_back_to_the_library(tokens: float, times: float) -> None:
    """1,024 tokens of 4,096 channels in 16 bits are 8 MiB, which vLLM's own kernel still takes."""
    op = Collective(name="c", pattern="all_reduce", elements=tokens * 4096, group=8, format=BF16, span=8)
    assert ideal_time(op, op.work(), device(), ["fallback"]).counts["fallback"] == times


def test_every_term_counts_nothing_where_the_units_are_unknown() -> None:
    hardware = device(units=None)
    for name in ("spread", "items", "blocks", "windowed", "rows"):
        for op in (matmul(), attention(), attention(new=100.0)):
            assert ideal_time(op, op.work(), hardware, [name]).counts[name] == 0.0


def test_terms_stretch_math_or_add_seconds() -> None:
    counts: dict[str, float] = {"spread": 2.0, "depth": 3.0}
    asked = IdealTime(math=1.0, memory=0.5, wire=0.0, counts=counts)  # type: ignore[arg-type]
    spent = fitted_time(asked, Fit(sharpness=1.0, terms={"spread": 0.25, "depth": 0.1}))
    assert (spent.math, spent.overhead, spent.total) == pytest.approx((1.5, 0.3, 0.3 + 1.5 + 0.5))
    assert all(term.scale > 0 and term.limit > 0 for term in TERMS.values())


def test_no_peak_is_refused() -> None:
    op = Matmul(name="x", m=1.0, k=8, n=8, weight=find_format("nvfp4"), input=find_format("nvfp4"), output=BF16)
    with pytest.raises(MissingFactError, match="no fp4 arithmetic"):
        price(op, device(), IDEAL)


def test_negative_terms_are_refused() -> None:
    with pytest.raises(ValueError, match="zero or more"):
        Fit(terms={"depth": -1.0})


def test_basis_says_calibrated_transferred_extrapolated() -> None:
    op = matmul()
    work = op.work()
    inside = Fit(flop_range=(1.0, 1e15), bytes_range=(1.0, 1e15))
    assert price(op, device(), with_fit(op, inside)).basis == "calibrated"
    assert price(op, device(), with_fit(op, Fit(basis="transferred"))).basis == "transferred"
    outside = Fit(flop_range=(1.0, float(work.flop) / 2))
    assert price(op, device(), with_fit(op, outside)).basis == "extrapolated"


def test_head_sizes_are_kernels_of_their_own_and_fall_back() -> None:
    small, usual, large = (attention(dim=dim).label for dim in (64, 128, 256))
    assert (small, usual, large) == ("bf16-d64", "bf16", "bf16-d256")
    table = {"attention.decode": {"bf16": Fit(math=0.5), "any": Fit(math=0.1), "bf16-d256": Fit(math=0.9)}}
    constants = Calibration(name="test", constants=table)
    found = [constants.fit("attention.decode", label) for label in (small, usual, large, "bf16-kv-fp8-d64")]
    assert [fit.math for fit in found if fit] == [0.5, 0.5, 0.9, 0.1]
    assert constants.fit("norm", "any") is None


def engines() -> Calibration:
    return Calibration(
        name="test",
        constants={"copy": {"any": Fit(overhead=1e-6)}},
        libraries={
            "trtllm": {"matmul": {"bf16": Fit(math=0.7), "int8": Fit(math=0.6)}},
            "vllm": {"matmul": {"bf16": Fit(math=0.8), "fp8": Fit(math=0.5)}},
        },
    )


def test_engine_brings_its_library_and_borrows_the_rest() -> None:
    chosen = engines().for_engine("vllm")
    own, borrowed = chosen.fit("matmul", "bf16"), chosen.fit("matmul", "int8")
    assert own is not None and (own.math, own.basis) == (0.8, "calibrated")
    assert borrowed is not None and (borrowed.math, borrowed.basis, borrowed.source) == (
        0.6,
        "transferred",
        "trtllm's kernel",
    )
    assert chosen.fit("copy", "any") == Fit(overhead=1e-6)


def test_engine_without_rows_borrows_in_the_order_of_the_file() -> None:
    chosen = engines().for_engine("llama.cpp")
    fits = [chosen.fit("matmul", label) for label in ("bf16", "fp8")]
    assert [(fit.math, fit.basis) for fit in fits if fit] == [(0.7, "transferred"), (0.5, "transferred")]


def test_errors_are_unknown_on_devices_of_other_makers() -> None:
    fit = Fit(error={"low": 0.9, "high": 1.2})
    constants = Calibration(name="t", vendors=["NVIDIA"], constants={"copy": {"any": fit}}, step=StepConstants())
    assert constants.for_vendor("NVIDIA").band("copy", "any") == (0.9, 1.2)
    assert constants.for_vendor("AMD").band("copy", "any") is None
    assert constants.band("matmul", "bf16") is None


def test_price_carries_the_band() -> None:
    op = Copy(name="c", elements=1e6, source=BF16, target=BF16)
    fit = Fit(error={"low": 0.9, "high": 1.2})
    assert price(op, device(), with_fit(op, fit)).band == (0.9, 1.2)
    assert price(op, device(), IDEAL).band is None


def phase_of(*costs: OpCost) -> Phase:
    """A step of one stage that runs each of ``costs`` once."""
    stages = (costs,)
    deployment = deploy(dense(layers=1, d_model=64, heads=1, d_ff=64, vocab=64), device())
    return Phase(
        deployment=deployment,
        stages=stages,
        mean_stages=stages,
        layers=(1,),
        sequences=(1.0, 1.0),
        microbatches=1.0,
        flow="pass",
        mean_step=decode(1.0, 1.0),
    )


def lasting(seconds: float, band: tuple[float, float] | None) -> OpCost:
    """A kernel that takes ``seconds`` whatever its size; ``band``: its held-out error, if it is known."""
    op = Copy(name="c", elements=0.0, source=BF16, target=BF16)
    error = {} if band is None else {"low": band[0], "high": band[1]}
    return price(op, device(), with_fit(op, Fit(overhead=seconds, error=error)))


def test_band_of_a_step_is_that_of_its_kernels_all_off_together() -> None:
    """3 s between -10 % and +20 % and 1 s between -30 % and +40 %: (3*0.9 + 0.7)/4 = 0.85, (3*1.2 + 1.4)/4 = 1.25."""
    found = phase_of(lasting(3.0, (0.9, 1.2)), lasting(1.0, (0.7, 1.4))).band
    assert found == pytest.approx((0.85, 1.25), rel=1e-9)


@for_each(("unknown", "known"), [(0.0199, True), (0.0201, False), (0.1, False), (1.0, False)])
def test_band_is_unknown_where_a_fiftieth_of_the_time_is(unknown: float, known: bool) -> None:
    """docs/validate.md: kernels without a held-out error may take at most 2 % of the step."""
    found = phase_of(lasting(1.0 - unknown, (0.9, 1.2)), lasting(unknown, None)).band
    assert found == (pytest.approx((0.9, 1.2)) if known else None)


# What ships -----------------------------------------------------------------------------------------------------------


def shipped() -> list[Path]:
    return sorted((config_root() / "calibration").glob("*.yaml"))


OWN = {"llama.cpp-apple", "llama.cpp-geforce", "llama.cpp-hbm", "llama.cpp-professional"}
"""Constants of the kernels of one engine, for a class of devices (docs/devices-at-home.md)."""


def test_measured_devices_have_their_own_constants() -> None:
    assert {file.stem for file in shipped()} >= {*MEASURED, "_transferred-hbm", "_transferred-other"}


@for_each("file", shipped(), ids=lambda file: file.stem)
def test_shipped_constants_load_with_their_provenance(file: Path) -> None:
    found = validate(file, read_yaml(file), Calibration)
    assert {"source", "licence", "date", "command"} <= set(found.provenance)
    if file.stem == "llama.cpp-processors":  # without bands: its note has the range of the rows that were kept aside
        assert not found.held_out and "0.45 to 1.8 times" in found.note
        return
    own = file.stem in OWN
    assert found.held_out and set(found.libraries) == (set() if own else {"vllm", "sglang", "trtllm"})
    measured = ("matmul", "attention.decode", "attention.prefill", "grouped_matmul", "collective.all_reduce")
    for library in found.libraries or ("llama.cpp",):
        for kernel in measured[:3] if own else measured:
            fit = found.for_engine(library).fit(kernel, "bf16")
            assert fit is not None and fit.band is not None and fit.error["median"] > 0


@for_each("name", MEASURED)
def test_a_measured_device_is_priced_with_its_own_constants(name: str) -> None:
    constants = load_calibration(load_hardware(name), None, False, "vllm@0.10")
    fit = constants.fit("matmul", "bf16")
    assert (constants.name, constants.basis) == (name, "calibrated")
    assert fit is not None and fit.basis == "calibrated"
    assert 0.4 < fit.math <= 1.0 and 0.5 < fit.memory <= 1.0 and 1e-6 < fit.overhead < 1e-5


@for_each(
    ("name", "known"), [("gh200-96gb", True), ("rtx-4090", True), ("mi300x", True), ("mi325x", True), ("mi210", False)]
)
def test_other_devices_get_transferred_constants(name: str, known: bool) -> None:
    constants = load_calibration(load_hardware(name), None, False)
    cost = price(matmul(), load_hardware(name), constants)
    assert cost.basis == "transferred"
    assert (cost.band is not None) == known


def test_decodes_without_shared_keys_have_constants_of_their_own_where_they_were_measured() -> None:
    """Kernel tables of TensorRT-LLM on H200 with an fp8 cache: multi-head decodes reach 1.8 TB/s (median of large
    ones), grouped ones 3.5 to 4.3; before they were fitted apart one fit stood between them."""
    shape: dict[str, Any] = {
        "name": "attn",
        "batch": 64.0,
        "past": 2048.0,
        "key_dim": 128,
        "value_dim": 128,
        "mask": Mask(),
    }
    shape |= {"base": find_format("bf16"), "kv": find_format("fp8")}
    own, grouped = (Attention(**shape, new=1.0, heads=32, kv_heads=kv_heads).label for kv_heads in (32, 8))
    assert (own, grouped) == ("bf16-kv-fp8-multi-head", "bf16-kv-fp8")
    assert Attention(**shape, new=512.0, heads=32, kv_heads=32).label == "bf16-kv-fp8"
    usual, slow = Fit(memory=0.9, overhead=1e-6), Fit(memory=0.4, overhead=1e-6)
    joint = Calibration(name="x", constants={"attention.decode": {"bf16-kv-fp8": usual}})
    apart = Calibration(name="x", constants={"attention.decode": {"bf16-kv-fp8": usual, own: slow}})
    assert joint.fit("attention.decode", own) == joint.fit("attention.decode", grouped) == usual
    alone = Calibration(name="x", constants={"attention.decode": {own: slow}})
    assert alone.fit("attention.decode", grouped) == slow
    assert (apart.fit("attention.decode", own), apart.fit("attention.decode", grouped)) == (slow, usual)
