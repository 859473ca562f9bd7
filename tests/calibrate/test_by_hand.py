"""Values of the calibrator computed by hand: the robust loss, what counts as measured, transfer, bands, the check."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

from calibrate.device import timing
from calibrate.device.device import ceilings_of
from calibrate.device.timing import Laps, wall_laps
from calibrate.fit import Measurement, Stack, _solve, _Unknowns, fit_all, join, ratio_errors, split, stack
from calibrate.samples import Sample, key_of
from calibrate.session.check import _row
from calibrate.session.fitting import measurements
from calibrate.session.raw_file import Session
from calibrate.session.report import disturbances
from calibrate.shapes import operand_bytes
from inferplan.catalog.files import load_hardware
from inferplan.devices.constants import Fit
from inferplan.devices.hardware import HardwareSpec
from inferplan.work.formats import find_format
from inferplan.work.ops import Copy, GroupedMatmul, Matmul
from tools.fitting.tables.calibrations import with_fallbacks
from tools.fitting.tables.choose import DeviceTables, gather
from tools.fitting.tables.read import _dealt, routed
from tools.fitting.tables.row import Row
from tools.fitting.tables.transfer import banded, carried, carried_terms, lagging

BF16 = find_format("bf16")
H200 = load_hardware("h200-sxm")
"""4.8 TB/s and 989 TFLOP/s bf16 by its data sheet."""
BYTES_S, FLOP_S = 4.8e12, 989e12


def copies(efficiency: float) -> list[Measurement]:
    """Copies of 10 to 90 million elements (read 2 bytes, written 2) at a share of the data sheet's bandwidth."""
    sizes = [1e7 * i for i in range(1, 10)]
    return [
        Measurement(op=Copy(name="c", elements=n, source=BF16, target=BF16), seconds=4 * n / BYTES_S / efficiency)
        for n in sizes
    ]


def stacked(efficiency: float) -> Stack:
    return stack(copies(efficiency), H200, ())


def matmul(m: float, k: int = 1024, n: int = 1024) -> Matmul:
    return Matmul(name="m", m=m, k=k, n=n, weight=BF16, input=BF16, output=BF16)


# The fit


def test_one_wild_row_moves_the_fit_by_the_robust_loss_only() -> None:
    """Nine rows agree, one is ten times slower. With x the fit's move in the logarithm, soft-L1 with scale C = 0.1 has
    slope x/sqrt(1 + (x/C)^2) for each of the nine and C for the far one, so 9 x = C sqrt(1 + (x/C)^2): x = C/sqrt(80) =
    0.01118. Squares would move it by ln(10)/10 = 0.23.
    """
    wild = Measurement(op=copies(0.5)[4].op, seconds=10 * copies(0.5)[4].seconds)
    only = _Unknowns(names=("memory",), fixed={"overhead": 0.0, "sharpness": 1.0})
    fit, _ = _solve(stack([*copies(0.5), wild], H200, ()), only, {})
    assert fit.memory == pytest.approx(0.5 * np.exp(-0.01118), rel=2e-3)


def test_errors_are_those_of_the_shapes_held_out() -> None:
    """The held-out fifth takes exactly twice as long as the constants of the others say: predicted/measured = 1/2."""
    measured = [
        Measurement(op=Copy(name="c", elements=1e7 * i, source=BF16, target=BF16), seconds=8e7 * i / BYTES_S)
        for i in range(1, 51)
    ]
    held = {m.op for m in split(measured, 0.2)[1]}
    spoiled = [replace(m, seconds=2 * m.seconds) if m.op in held else m for m in measured]
    constants, held_out, _ = fit_all(spoiled, H200)
    assert constants["copy"]["any"].memory == pytest.approx(0.5, rel=1e-3)
    figures = held_out["copy"]["any"]
    assert (figures["n"], figures["median"]) == (10, pytest.approx(0.5, rel=1e-3))
    assert figures["bias"] == pytest.approx(-0.5, rel=1e-3)


def test_shapes_are_held_out_whatever_they_are_called() -> None:
    """Ten shapes measured four times under other names, counts and ranks: a fifth is two shapes, eight rows."""
    rows = [
        Measurement(op=replace(matmul(float(m)), name=f"{i}", count=float(i + 1), ranks=i + 1), seconds=1e-5)
        for m in range(1, 11)
        for i in range(4)
    ]
    train, held = split(rows, 0.2)
    assert (len(train), len(held)) == (32, 8)
    assert len({m.op.m for m in held if isinstance(m.op, Matmul)}) == 2, "all four rows of a shape are on one side"


def test_the_band_holds_eight_tenths_of_further_rows() -> None:
    """Of nine ratios, the i-th is the i/(9 + 1) quantile (Weibull, 1939): 10 % is the first and 90 % the last."""
    figures = ratio_errors(np.arange(1.0, 10.0))
    assert (figures["low"], figures["high"]) == (1.0, 9.0)
    assert figures["median"] == pytest.approx(0.8), "|1/5 - 1| of the middle one"
    assert figures["bias"] == pytest.approx(2.82897 / 9 - 1, abs=1e-4), "1 + 1/2 + ... + 1/9 = 2.82897"


# Transfer to devices without measurements


def test_a_device_left_out_gets_the_constants_of_the_others() -> None:
    own = {"a": stacked(0.5), "b": stacked(0.8)}
    moved = carried(own, {})
    assert {name: pytest.approx(fit.memory, rel=1e-3) for name, (_, fit) in moved.items()} == {"a": 0.8, "b": 0.5}
    assert carried({"a": own["a"]}, {"b": own["b"]})["a"][1].memory == pytest.approx(0.8, rel=1e-3)
    assert carried({"a": own["a"]}, {}) == {}


def test_a_kernel_far_behind_the_other_libraries_of_its_device_is_not_carried() -> None:
    """A third and a half of a neighbour's bandwidth: 3 and 2 times as long; only the first is over twice."""
    own = {"a": stacked(0.2), "b": stacked(0.3), "c": stacked(0.1)}
    assert lagging(own, [{"a": stacked(0.6), "b": stacked(0.6)}]) == {"a"}
    assert lagging({"a": stacked(0.2)}, [{"a": stacked(0.6)}, {"a": stacked(0.2)}, {"a": stacked(0.3)}]) == set()


def test_transferred_constants_carry_the_errors_of_the_devices_left_out() -> None:
    """Rows at 0.5 of the bandwidth predicted at 0.8 take 1.6 times as long as predicted; at 0.8 by 0.5, 0.625 times."""
    moved = carried({"a": stacked(0.5), "b": stacked(0.8)}, {})
    fit = banded(Fit(memory=0.6), moved.values())
    assert (fit.basis, fit.memory) == ("transferred", 0.6)
    assert (fit.error["low"], fit.error["high"]) == (pytest.approx(0.625, rel=1e-3), pytest.approx(1.6, rel=1e-3))
    alone = banded(Fit(memory=0.6), [])
    assert (alone.basis, alone.error) == ("transferred", {})


def test_padding_is_not_carried_from_a_single_device() -> None:
    assert carried_terms("matmul", 1) == ("depth", "rows", "spread")
    assert carried_terms("matmul", 2) == ("depth", "rows", "spread", "padding")
    assert carried_terms("mla.decode", 1) == ("padding", "merges", "items", "depth")


def test_an_all_reduce_priced_by_the_all_gather_says_so() -> None:
    """What was timed together stays calibrated; the all-reduce was not in that table: its constants are another's."""
    filled = with_fallbacks(
        {
            "collective.all_gather": {"any": Fit(memory=0.7)},
            "collective.all_reduce": {"any": Fit(memory=0.1), "bf16": Fit(memory=0.5)},
        }
    )
    spare = filled["collective.all_reduce"]["any"]
    assert (spare.memory, spare.basis, spare.source) == (0.7, "transferred", "all-gather, twice the bytes")
    own = filled["collective.all_reduce"]["bf16"]
    assert (own.memory, own.basis) == (0.5, "calibrated")
    assert filled["collective.reduce_scatter"]["any"].basis == "calibrated"


# Tables


def tabled(op: Matmul | GroupedMatmul, seconds: list[float], kernel: str = "k") -> list[Row]:
    return [Row("h200-sxm", "vllm", kernel, Measurement(op=op, seconds=s)) for s in seconds]


def gathered(rows: list[Row]) -> DeviceTables:
    (device,) = gather(rows, lambda name: H200)
    return device


def test_kernels_that_the_host_launched_each_time_are_left_out() -> None:
    """2.1 MB take 0.44 us; a library whose fastest row takes 41 us timed its launches, one of 39 us did not."""
    slow = [41e-6] + [50e-6] * 39
    assert gathered(tabled(matmul(8.0), slow)).libraries == {}
    one_fast = gathered(tabled(matmul(8.0), [39e-6, *slow[1:]]))
    assert [len(rows) for pool in one_fast.libraries.values() for rows in pool.values()] == [40]


def test_experts_may_take_longer_than_a_launch() -> None:
    experts = GroupedMatmul(
        name="e", m=8.0, k=1024, n=1024, experts=8, touched=8.0, weight=BF16, input=BF16, output=BF16
    )
    assert list(gathered(tabled(experts, [50e-6] * 40)).libraries["vllm"]) == [("grouped_matmul", "bf16")]


def test_rows_faster_than_the_data_sheet_are_left_out() -> None:
    """2*4096^3 FLOP at 989 TFLOP/s take 139 us: rows of 138 us are impossible, those of 140 us are not."""
    op = matmul(4096.0, 4096, 4096)
    light = 2 * 4096.0**3 / FLOP_S
    assert light == pytest.approx(139e-6, abs=0.1e-6)
    seconds = [0.99 * light] * 5 + [1.01 * light] * 40
    small = [20e-6]  # a fast shape, so that the kernel is not taken for one that the host launched
    device = gathered([*tabled(op, seconds), *tabled(matmul(8.0), small)])
    assert (device.rows, device.impossible) == (46, 5)
    assert len(device.libraries["vllm"]["matmul", "bf16"]) == 41


def test_the_kernel_nearest_to_the_roofline_counts() -> None:
    """20 us and 30 us for the same shape, and 39 rows of a third kernel that is faster but too rare."""
    rows = [*tabled(matmul(8.0), [30e-6] * 50, "a"), *tabled(matmul(8.0), [20e-6] * 40, "b")]
    device = gathered([*rows, *tabled(matmul(8.0), [10e-6] * 39, "c")])
    assert device.sources == {"vllm": {"matmul/bf16": "b"}}


def test_experts_are_divided_between_ranks() -> None:
    """64 tokens of 4 experts each over 32 experts on 4 ranks: 256 rows and 32 experts, a quarter on each."""
    assert routed(64, 4, 32, 4, 0.0) == (64.0, 8.0)
    assert routed(2, 4, 32, 4, 0.0) == (2.0, 2.0)


def test_rows_are_dealt_to_the_largest_remainders_within_the_cap() -> None:
    """0.6, 0.6 and 1.8 of three rows: 0, 0 and 1, then the remainders 0.8 and 0.6 (under a cap of one, 0.6 twice)."""
    load = np.array([0.6, 0.6, 1.8])
    assert _dealt(load, 2, 3).tolist() == [1.0, 0.0, 2.0]
    assert _dealt(load, 1, 3).tolist() == [1.0, 1.0, 1.0]


# What counts as measured


def visits(*pairs: tuple[float, float]) -> list[Sample]:
    return [Sample(seconds=seconds, waited=waited) for seconds, waited in pairs]


def session(shapes: int, disturbed: int) -> Session:
    """Matmuls of 1 us each visited twice in peace, and some that another program disturbed both times."""
    made = Session()
    for m in range(shapes + disturbed):
        op = matmul(float(m + 1))
        made.shapes[key_of(op)] = op
        made.samples[key_of(op)] = visits((1e-6, 0.0), (1e-6, 0.0)) if m < shapes else visits((5e-6, 0.9), (5e-6, 0.9))
    return made


def test_a_shape_is_the_median_of_its_undisturbed_visits() -> None:
    made = Session()
    made.samples["calm"] = visits((1.0, 0.0), (1.2, 0.05), (9.0, 0.06), (8.0, 0.7))
    made.samples["disturbed"] = visits((9.0, 0.9), (5.0, 0.5), (6.0, 0.6))
    assert made.seconds("calm") == pytest.approx(1.1), "five hundredths of waiting are quiet, six are not"
    assert made.seconds("disturbed") == pytest.approx(5.5), "the calmer half of three: two"


def test_disturbed_shapes_count_only_where_there_are_too_few_others() -> None:
    """Eight undisturbed shapes are enough for a fit; with seven, the disturbed one is kept."""
    enough, few = measurements(session(8, 1)), measurements(session(7, 1))
    assert (len(enough.rows), enough.left_out, enough.disturbed) == (8, 1, 0)
    assert (len(few.rows), few.left_out, few.disturbed) == (8, 0, 1)
    left_out = {"samples": 18, "visits_disturbed": 2, "shapes_disturbed_left_out": 1, "shapes_disturbed_used": 0}
    assert disturbances(left_out | {"shapes": 9}) == [
        "2 of 18 visits were disturbed.",
        "1 shape is left out: other programs disturbed all visits, or all but one.",
    ]
    used = {"samples": 16, "visits_disturbed": 2, "shapes_disturbed_left_out": 0, "shapes_disturbed_used": 1}
    said = disturbances(used | {"shapes": 8})[1]
    assert said.startswith("1 of 8 shapes count although other programs disturbed")


def test_a_lap_of_many_calls_is_divided_by_them() -> None:
    """Each call takes 0.1 ms of a clock of its own: ten calls make a lap of a millisecond."""
    now = [0.0]

    def call() -> None:
        now[0] += 1e-4

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing.time, "perf_counter", lambda: now[0])
        patch.setattr(timing, "waited", lambda: 0.0)
        laps = wall_laps(call, [()], 0.005, lambda: None)
    assert laps.calls == 10
    assert laps.seconds == pytest.approx([1e-4] * len(laps.seconds))
    assert len(laps.seconds) == 5, "laps until 5 ms are over"


def test_disturbed_laps_do_not_count() -> None:
    sample = Laps(seconds=[1.0, 1.1, 0.9, 5.0, 6.0], waiting=[0.0, 0.05, 0.0, 0.06, 0.9], calls=1).sample("x")
    assert (sample.seconds, sample.laps, sample.waited) == (1.0, 3, 0.0)


def test_the_ceiling_of_the_memory_is_the_faster_of_copy_and_read() -> None:
    found = ceilings_of({"copy": 2e10, "read": 1e10, "matmul.bf16": 1e12, "matmul.int8": 2e12, "link": 1e9})
    assert (found.bandwidth, found.peak, found.link) == (2e10, {"bf16": 1e12, "int8": 2e12}, 1e9)


def test_all_experts_of_a_rank_are_in_memory() -> None:
    """4 rows of 8 and three matrices of 8 x 16, 2 bytes each, though two are touched: 64 + 768 bytes."""
    op = GroupedMatmul(name="e", m=4.0, k=8, n=16, experts=3, touched=2.0, weight=BF16, input=BF16, output=BF16)
    assert operand_bytes(op) == 832


# The check and the serving bands


def test_a_check_is_of_the_median_size_of_errors() -> None:
    """-50, +10 and +30 %: the median of the sizes is 30 %, the mean of the errors -3.3 %."""
    row = _row(("matmul", "bf16"), [-0.5, 0.1, 0.3], 0.2)
    assert (row.median, row.within) == (0.3, False)
    assert row.bias == pytest.approx(-0.1 / 3)
    assert _row(("matmul", "bf16"), [-0.5, 0.1, 0.2], 0.2).within


def test_common_constants_are_fitted_to_the_rows_of_every_device() -> None:
    """Two devices, one twice as fast, both at half of their own bandwidth: one efficiency serves both."""
    data = H200.model_dump(mode="python")
    assert data["memory"]["bandwidth"] == BYTES_S
    faster: HardwareSpec = H200.model_copy(update={"memory": H200.memory.model_copy(update={"bandwidth": 2 * BYTES_S})})
    rows = [replace(m, seconds=m.seconds / 2) for m in copies(0.5)]
    both = join([stack(copies(0.5), H200, ()), stack(rows, faster, ())])
    only = _Unknowns(names=("memory",), fixed={"overhead": 0.0, "sharpness": 1.0})
    assert (len(both.seconds), both.moved) == (18, (4e7, 3.6e8))
    assert _solve(both, only, {})[0].memory == pytest.approx(0.5, rel=1e-4)
