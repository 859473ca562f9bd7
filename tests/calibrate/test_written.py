"""What of a run becomes constants: nothing from a disturbed one, no kernel that is far off, and no file cut short."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrate.cli import Options, execute
from calibrate.files import require_writable, write_calibration, write_text
from calibrate.fit import Measurement, errors, mean_factor, truth_band
from calibrate.samples import WARM, Sample, key_of
from calibrate.session.fitting import (
    FittedGroup,
    Outcome,
    describe,
    fit,
    held_to,
    pooled_errors,
    stated_band,
    strange_errors,
)
from calibrate.session.raw_file import Session
from calibrate.session.report import notes
from calibrate.session.settings import Settings
from inferplan.catalog.files import load_hardware
from inferplan.devices.constants import Calibration, Fit
from inferplan.errors import InferplanError, InputFileError, ToleranceError
from inferplan.estimate.roofline import price
from inferplan.work.formats import find_format
from inferplan.work.ops import Attention, Collective, Mask, Matmul, Op
from tests.calibrate.synthetic import DESIGN, TRUTH, SyntheticMeasurer
from tests.cases import for_each

H200 = load_hardware("h200-sxm")
BF16 = find_format("bf16")
MATMULS = [
    Matmul(name="m", m=float(m), k=k, n=4096, weight=BF16, input=BF16, output=BF16)
    for m in (1, 8, 64, 512, 4096)
    for k in (2048, 4096, 16384)
]
DECODES = [
    Attention(
        name="a",
        batch=float(batch),
        new=1.0,
        past=past - 1.0,
        heads=32,
        kv_heads=8,
        key_dim=128,
        value_dim=128,
        mask=Mask(),
        base=BF16,
        kv=BF16,
    )
    for batch in (1, 8, 64)
    for past in (256.0, 1024.0, 4096.0, 16384.0)
]


def true_seconds(op: Op) -> float:
    return float(price(op, H200, TRUTH).time)


def session(ops: Iterable[Op], seconds: Callable[[Op], float] = true_seconds, **sample: Any) -> Session:
    """A raw file in memory: two visits to each operator."""
    made = Session()
    device = SyntheticMeasurer().device.record()
    made.provenance.append({"device": device, "date": "d", "inferplan": "0", "budget": 60.0, "seed": 0})
    for op in ops:
        made.shapes[key_of(op)] = op
        made.samples[key_of(op)] += [Sample(**{"seconds": seconds(op), **sample}) for _ in range(2)]
    return made


def fitted(made: Session, **settings: Any) -> Outcome:
    return fit(made, SyntheticMeasurer().device, Settings(budget=60.0, design=DESIGN, **settings))


def scattered(op: Op) -> float:
    """A tenth of the true time or ten times it, by the operator's key: nothing can be fitted to that."""
    return true_seconds(op) * (10.0 if int(key_of(op), 16) % 2 else 0.1)


def test_a_kernel_that_is_far_off_on_held_out_shapes_is_not_written() -> None:
    """Scattered attention beside true matmuls: the one is left out with its reason, the other is what it was."""
    made = session([*MATMULS, *DECODES], lambda op: scattered(op) if op in DECODES else true_seconds(op))
    outcome = fitted(made)
    found, facts = outcome.calibration, outcome.calibration.provenance
    assert list(found.constants) == list(found.held_out) == list(found.range) == ["matmul"]
    assert found.constants["matmul"]["bf16"].memory == pytest.approx(0.8, rel=0.02)
    (why,) = facts["not_written"].values()
    assert list(facts["not_written"]) == ["attention.decode bf16"]
    assert why.startswith("a factor of ") and "off over 12 held-out shapes (mean), more than 1.5; " in why
    assert {row.op.kernel for row in [*outcome.train, *outcome.test]} == {"matmul"}
    assert f"Not written: attention.decode bf16: {why}." in notes(outcome)
    counts = {kind: (pooled.shapes, pooled.unwritten) for kind, pooled in pooled_errors(outcome).items()}
    assert counts == {"matmul": (15, 0), "attention": (12, 12)}, "the headline counts what is not written"
    assert any("12 of them of constants that are not written" in line for line in notes(outcome))
    assert "attention.decode" in fitted(made, written=100.0).calibration.constants


def test_one_good_shape_of_three_is_no_good_fit() -> None:
    """Errors of a run on a busy machine: 30 %, 30 % and a factor of 250. The median is 30 %, but the mean factor is
    (1.3 + 1.3 + 250)/3 = 84.2; too short by 100 counts as much as too long."""
    assert mean_factor(np.array([1 / 1.3, 1.3, 1 / 250])) == pytest.approx(252.6 / 3, rel=1e-3)
    assert mean_factor(np.array([100.0])) == mean_factor(np.array([0.01])) == pytest.approx(100.0)


@pytest.mark.usefixtures("main_constants")
@for_each("shapes, spoilt", [(12, 5), (27, 20)])
def test_one_shape_at_250_times_fails_a_fit_however_many_are_right(shapes: int, spoilt: int) -> None:
    """Of 27 shapes the mean of |ln| says exp(ln 250 / 27) = 1.23 and the median 1.0; the mean factor is 10.2 at the
    least. Without that shape the same fit is written."""
    ops = [replace(op, batch=op.batch * times) for times in (1.0, 3.0, 5.0) for op in DECODES][:shapes]
    for slow, written in ((250.0, False), (1.0, True)):
        made = session([*MATMULS, *ops], lambda op: true_seconds(op) * (slow if op == ops[spoilt] else 1.0))  # noqa: B023
        found = fitted(made).calibration
        assert ("attention.decode" in found.constants) == written
        if not written:
            why = found.provenance["not_written"]["attention.decode bf16"]
            assert f"over {shapes} held-out shapes (mean), more than 1.5; " in why and describe(ops[spoilt]) in why


def group_of_factors(ratios: list[float]) -> FittedGroup:
    rows = [Measurement(op=replace(MATMULS[0], m=float(i + 1)), seconds=1.0) for i in range(len(ratios))]
    return FittedGroup(fit=Fit(), train=rows, held=rows, ratios=np.array(ratios))


def test_a_tenth_that_is_far_off_fails_a_fit_that_is_right_on_average() -> None:
    """Twenty shapes, two of them four times as long: the mean factor is (18 + 8)/20 = 1.3, the 90th percentile lies at
    0.9 x 21 = 18.9, between the 18th (1) and the 19th (4): 3.7, more than 1.5^ln(10) = 2.54. Twice as long are 1.9."""
    why = group_of_factors([1.0] * 18 + [4.0, 0.25]).refusal(Settings(budget=60.0))
    assert why.startswith(
        "a factor of 3.7 off over 20 held-out shapes (90th percentile), more than 2.54; the worst: 4 on "
    )
    assert describe(replace(MATMULS[0], m=19.0)) in why
    assert group_of_factors([1.0] * 18 + [2.0, 0.5]).refusal(Settings(budget=60.0)) == ""
    assert group_of_factors([1.0] * 18 + [4.0, 0.25]).refusal(Settings(budget=60.0, written=1.0)) == ""


def test_a_band_reaches_down_to_the_visits_that_may_have_been_undisturbed() -> None:
    """Nine shapes fitted at 1 s that are predicted at 1 s. Where all visits agree the band is 1 to 1. Where each had a
    visit of 0.5 s and one of 3 s beside two of 1 s, three values are possible for each, 0.5, 1 and 1: a third of the
    weight lies at 0.5 and so does the low end; the 3 s are a disturbance, and the high end stays at 1."""
    agree, apart = Session(), Session()
    rows = [Measurement(op=op, seconds=1.0, source=key_of(op)) for op in MATMULS[:9]]
    for row in rows:
        agree.samples[row.source] = [Sample(seconds=1.0)] * 4
        apart.samples[row.source] = [Sample(seconds=s) for s in (1.0, 3.0, 0.5, 1.0)]
    group = FittedGroup(fit=Fit(), train=rows, held=rows, ratios=np.ones(9))
    assert stated_band(agree, group) == (1.0, 1.0)
    assert stated_band(apart, group) == (0.5, 1.0)
    for visits in apart.samples.values():
        visits[2] = replace(visits[2], disturbed=WARM)
    assert stated_band(apart, group) == (1.0, 1.0), "a warm cache is no undisturbed visit"


def test_a_shape_counts_once_in_a_band_however_many_values_it_may_have() -> None:
    """Nine shapes of one value are numpy's median-unbiased quantiles. Each value twice hardly changes that: the places
    are then (i + 1/4 + 1/6) and (i + 3/4 + 1/6) over 9 1/3 for the i-th shape from 0, so that 0.1 lies a thirtieth of
    the way from the second 1 to the first 2, and 0.9 as far before the first 9."""
    ratios = np.arange(1.0, 10.0)
    low, high = np.exp(np.quantile(np.log(ratios), (0.1, 0.9), method="median_unbiased"))
    assert truth_band([np.array([r]) for r in ratios]) == pytest.approx((low, high), abs=1e-3)
    twice = (2 ** (1 / 30), 9 * (8 / 9) ** (1 / 30))
    assert truth_band([np.array([r, r]) for r in ratios]) == pytest.approx(twice, abs=1e-3)


@pytest.mark.usefixtures("main_constants")
def test_a_disturbed_run_states_wider_bands() -> None:
    """Every shape has two visits. In peace they are equal; disturbed, the second is a third to 90 % longer, unnoticed.
    What is predicted is longer than the truth then, and the band reaches down to it."""
    calm = fitted(session([*MATMULS, *DECODES])).calibration.constants
    made = session([*MATMULS, *DECODES])
    for place, visits in enumerate(made.samples.values()):
        visits[1] = replace(visits[1], seconds=visits[1].seconds * (1.3 + 0.1 * (place % 7)))
    busy = fitted(made).calibration
    for kernel in ("matmul", "attention.decode"):
        (low, high), (wide_low, wide_high) = calm[kernel]["bf16"].band, busy.constants[kernel]["bf16"].band
        assert np.log(wide_high / wide_low) > 2 * np.log(high / low), kernel
        for op in (op for op in (*MATMULS, *DECODES) if op.kernel == kernel):
            true = true_seconds(op) / float(price(op, H200, busy).time)
            assert true < 0.95, "the fit sees the middle of both visits"
    inside = [
        busy.constants[op.kernel]["bf16"].band[0] <= true_seconds(op) / float(price(op, H200, busy).time)
        for op in (*MATMULS, *DECODES)
    ]
    assert np.mean(inside) >= 0.75


def test_a_shape_that_is_held_out_has_no_part_in_its_fit() -> None:
    """Eight matmuls of one row, which memory bounds, and one of 8192 rows at a tenth of the peak: fitted to all, that
    one is as predicted; from the others nobody can tell that arithmetic is slow, and it takes three times as long.
    """
    few = [replace(MATMULS[0], n=n) for n in (2048, 4096, 6144, 8192, 12288, 16384, 24576, 32768)]
    large = replace(MATMULS[0], m=8192.0)
    rows = [Measurement(op=op, seconds=true_seconds(op)) for op in few]
    rows.append(Measurement(op=large, seconds=10 * float(large.work().flop) / H200.peak["bf16"]))
    found = held_to("matmul", rows, H200, Settings(budget=30.0))
    assert errors(rows, H200, found.fit)["worst"] < 0.05
    assert found.ratios[-1] > 3.0 and np.max(np.abs(found.ratios[:-1] - 1)) < 0.1
    assert found.held_out["worst_shape"] == describe(large)


def test_from_30_shapes_on_a_quarter_is_held_out_once() -> None:
    """A quarter of 30 is 7.5, rounded 8; of 29 it is 7, and each of the 29 is held out in turn."""
    ops = [replace(op, n=n) for op in MATMULS for n in (4096, 6144)]
    rows = [Measurement(op=op, seconds=true_seconds(op)) for op in ops]
    for shapes, fitted_to, held in ((29, 29, 29), (30, 22, 8)):
        found = held_to("matmul", rows[:shapes], H200, Settings(budget=30.0))
        assert (found.fit.n, len(found.held), len(found.ratios)) == (fitted_to, held, held)


def test_five_shapes_are_too_few_and_six_are_enough() -> None:
    """Each of six is held out in turn, from five for four constants; all six are fitted."""
    enough = fitted(session([*MATMULS, *DECODES[:6]])).calibration
    assert enough.constants["attention.decode"]["bf16"].n == 6
    assert enough.held_out["attention.decode"]["bf16"]["n"] == 6
    few = fitted(session([*MATMULS, *DECODES[:5]])).calibration
    assert few.provenance["not_written"] == {"attention.decode bf16": "5 shapes; a fit needs 6"}


def test_collectives_of_hardware_without_a_link_are_not_written_and_it_is_said() -> None:
    reduces = [
        Collective(name="c", pattern="all_reduce", elements=2.0**power, group=2, span=2, format=BF16)
        for power in range(10, 24, 2)
    ]
    made = session([*MATMULS, *reduces], lambda op: 1e-5 if op in reduces else true_seconds(op))
    facts = fitted(made, gpu="gh200-96gb").calibration.provenance
    said = "gh200-96gb states no link between devices to compare with"
    assert facts["not_written"] == {"collective.all_reduce any": said}


def test_without_a_matmul_and_an_attention_nothing_is_written() -> None:
    with pytest.raises(ToleranceError, match="so that none are written") as caught:
        fitted(session(MATMULS, scattered))
    assert caught.value.exit_code == 6
    assert caught.value.because.startswith("matmul bf16: ")
    with pytest.raises(ToleranceError, match="so that none are written"):
        fitted(session([]))


def disturb(made: Session, visits: int, **why: Any) -> None:
    """Mark so many visits, the first of each shape first."""
    places = [(key, index) for index in range(2) for key in made.samples]
    for key, index in places[:visits]:
        made.samples[key][index] = replace(made.samples[key][index], **why)


@for_each("why", [{"waited": 0.5}, {"disturbed": "another process"}])
def test_a_run_of_which_most_was_disturbed_is_refused(why: dict[str, Any]) -> None:
    """Fifteen shapes, thirty visits: with fifteen disturbed it is fitted, with sixteen it is not, unless asked for."""
    half = session(MATMULS)
    disturb(half, 15, **why)
    assert fitted(half).calibration.provenance["visits_disturbed"] == 15
    most = session(MATMULS)
    disturb(most, 16, **why)
    with pytest.raises(ToleranceError, match="16 of 30 visits were disturbed") as caught:
        fitted(most)
    assert "disturbed" in why or "threads waited for a core (16)" in caught.value.because
    assert "waited" in why or "another process (16)" in caught.value.because
    assert ("OMP_NUM_THREADS=1" in caught.value.hint) == ("waited" in why), "fewer threads cure no shared accelerator"
    kept = fitted(most, keep_disturbed=True)
    assert kept.calibration.provenance["visits_disturbed"] == 16
    assert "16 of 30 visits were disturbed." in notes(kept)


def test_disturbed_shapes_are_counted_whether_they_are_used_or_not() -> None:
    """Of 15 matmuls two were disturbed in both visits: left out. Of 7 attentions one: used, for lack of others."""
    made = session([*MATMULS, *DECODES[:7]])
    for op in (*MATMULS[:2], DECODES[0]):
        made.samples[key_of(op)] = [replace(s, waited=0.9) for s in made.samples[key_of(op)]]
    facts = fitted(made).calibration.provenance
    names = ("visits_disturbed", "shapes_disturbed", "shapes_disturbed_left_out", "shapes_disturbed_used")
    assert [facts[name] for name in names] == [6, 3, 2, 1]


def test_a_constant_says_whose_kernels_were_timed() -> None:
    made = session(MATMULS, library="cublas")
    assert fitted(made).calibration.constants["matmul"]["bf16"].library == "cublas"
    other = made.samples[key_of(MATMULS[0])]
    other[1] = replace(other[1], library="torch")
    assert fitted(made).calibration.constants["matmul"]["bf16"].library == "cublas+torch"
    assert fitted(session(MATMULS)).calibration.constants["matmul"]["bf16"].library == ""


def test_no_shape_of_the_model_that_is_held_out_is_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five matmuls of a stranger take 1.25 times what the others say: |1/1.25 - 1| = 20 % off, and the fit is as
    true as without them."""
    strangers = MATMULS[::3]
    own = frozenset(map(key_of, strangers))
    monkeypatch.setattr("calibrate.session.fitting.held_out_shapes", lambda design, hardware: own)
    made = session(MATMULS, lambda op: true_seconds(op) * (1.25 if op in strangers else 1.0))
    held = replace(DESIGN, held_out=("qwen2.5-7b",))
    outcome = fit(made, SyntheticMeasurer().device, Settings(budget=60.0, design=held))
    assert not {key_of(row.op) for row in [*outcome.train, *outcome.test]} & own
    found = outcome.calibration.provenance["held_out_model"]
    assert (found["model"], found["shapes"]) == ("qwen2.5-7b", 5)
    assert found["mape"] == pytest.approx(0.2, abs=0.01)
    assert found["kernels"]["matmul"]["bf16"]["n"] == 5
    assert (found["unwritten"], found["unfitted"]) == (0, 0)
    assert outcome.calibration.held_out["matmul"]["bf16"]["mape"] < 0.02
    assert any(said.startswith("Shapes of qwen2.5-7b, of which none was fitted: median 20.") for said in notes(outcome))


def test_errors_on_a_strange_model_are_of_every_kernel_that_was_fitted() -> None:
    """By hand: one matmul of 1.6 times the price is 37.5 % off, written or not; attention, which has no constants, has
    no error and is counted apart."""
    group = FittedGroup(fit=TRUTH.constants["matmul"]["bf16"], train=[], held=[], ratios=np.ones(0))
    rows = [Measurement(op=op, seconds=1.6 * true_seconds(op)) for op in (MATMULS[0], DECODES[0])]
    for written, unwritten in ([("matmul", "bf16")], 0), ([], 1):
        found = strange_errors(rows, {("matmul", "bf16"): group}, written, H200)
        assert (found["shapes"], found["mape"]) == (1, 0.375)
        assert (found["unwritten"], found["unfitted"]) == (unwritten, 1)
    assert strange_errors([], {}, [], H200) == {"shapes": 0, "unwritten": 0, "unfitted": 0, "kernels": {}}


def test_the_check_on_a_strange_model_is_never_empty_because_a_fit_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention is scattered and not written: its four shapes of the stranger count all the same, and it is said."""
    own = frozenset(map(key_of, DECODES[::3]))
    monkeypatch.setattr("calibrate.session.fitting.held_out_shapes", lambda design, hardware: own)
    made = session([*MATMULS, *DECODES], lambda op: scattered(op) if op in DECODES else true_seconds(op))
    held = replace(DESIGN, held_out=("qwen2.5-7b",))
    outcome = fit(made, SyntheticMeasurer().device, Settings(budget=60.0, design=held))
    found = outcome.calibration.provenance["held_out_model"]
    assert (found["shapes"], found["unwritten"]) == (4, 4)
    assert any("over 4, 4 of them of constants that are not written." in said for said in notes(outcome))


def test_a_headline_counts_shapes_of_formats_with_too_few_for_a_fit() -> None:
    """Fifteen matmuls in bf16, five in fp32, of which a fit needs six."""
    fp32 = find_format("fp32")
    few = [replace(op, weight=fp32, input=fp32, output=fp32) for op in MATMULS[:5]]
    outcome = fitted(session([*MATMULS, *few], lambda op: 1e-3 if op in few else true_seconds(op)))
    pooled = pooled_errors(outcome)["matmul"]
    assert (pooled.shapes, pooled.unwritten, pooled.unfitted) == (15, 0, 5)
    assert pooled.describe().endswith("over 15 held-out shapes; 5 more have no constants")


@contextmanager
def ten_bytes() -> Iterator[None]:
    """Within it no file of this process gets larger than ten bytes: what a full disk does."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    out = tmp_path / "own.yaml"
    write_calibration(Calibration(name="old", constants={"norm": {"any": Fit(memory=0.5)}}), out)
    before = out.read_bytes()

    with pytest.raises(InputFileError, match=r"cannot write .*own.yaml") as caught, ten_bytes():
        write_calibration(Calibration(name="new"), out)
    assert (caught.value.exit_code, caught.value.because) == (4, "File too large")
    assert out.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["own.yaml"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has /dev/full")
def test_a_device_without_room(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="cannot write /dev/full") as caught:
        write_text(Path("/dev/full"), "text" * 10000)
    assert caught.value.because == "No space left on device"
    measurer = SyntheticMeasurer()
    with pytest.raises(InputFileError, match="cannot write /dev/full"):
        execute(Options(budget=60.0, out=tmp_path / "unused.yaml", raw=Path("/dev/full")), measurer)
    assert measurer.visits == 0


def test_what_cannot_be_written_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "folder").mkdir()
    measurer = SyntheticMeasurer()
    for out in (tmp_path / "file" / "own.yaml", tmp_path / "folder"):
        with pytest.raises(InferplanError, match="cannot write") as caught:
            execute(Options(budget=60.0, out=out), measurer)
        assert caught.value.exit_code == 4
    assert measurer.visits == 0
    require_writable(tmp_path / "new" / "deeper" / "own.yaml")
    assert not (tmp_path / "new").exists()


def test_what_is_refused_is_kept_in_the_raw_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run whose every visit was disturbed: exit 6 and no files; asked for, all of them from the same raw file."""
    monkeypatch.setattr("calibrate.cli._measured", lambda path, *_: path.touch() or busy)
    monkeypatch.setattr("calibrate.cli.read", lambda path: busy)
    busy = session([*MATMULS, *DECODES], disturbed="SM clock 1,200 of 1,980 MHz")
    out = tmp_path / "own.yaml"
    with pytest.raises(ToleranceError, match="54 of 54 visits were disturbed"):
        execute(Options(budget=60.0, out=out), SyntheticMeasurer())
    assert [path.name for path in tmp_path.iterdir()] == ["own.jsonl"]
    assert f"every measurement is kept in {tmp_path / 'own.jsonl'}" in capsys.readouterr().err
    execute(Options(budget=60.0, out=out, only_fit=True, keep_disturbed=True), SyntheticMeasurer())
    assert "54 of 54 visits were disturbed" in out.with_suffix(".md").read_text(encoding="utf-8")
