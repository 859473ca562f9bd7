"""What a reader sees first of a calibration: whole models, measured and predicted, by values computed by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")
pytest.importorskip("matplotlib")

from calibrate.cli import check_report
from calibrate.designs import THIN
from calibrate.samples import Sample, StepSample
from calibrate.session import report
from calibrate.session.check import Checked, CheckRow, Repeats
from calibrate.session.figures import png, whole_models
from calibrate.session.fitting import Outcome
from calibrate.session.glue import with_glue
from calibrate.session.hardware import reached
from calibrate.session.raw_file import Session
from calibrate.session.report import drawn_rows, headline, legend, markdown, opening, webpage, whole_table
from calibrate.session.settings import Settings
from calibrate.session.steps import (
    Predictions,
    StepRow,
    bare_kernels,
    errors_of,
    predict,
    price_step,
    step_rows,
    unpriced,
)
from inferplan.catalog.files import load_hardware
from inferplan.devices.constants import Calibration, Fit
from inferplan.work.formats import find_format
from inferplan.work.ops import Matmul, Norm
from tests.calibrate.synthetic import SyntheticMeasurer

BF16 = find_format("bf16")
STEP = StepSample(model="llama-3.1-8b", layers=32, mode="eager", batch=1, new=512, past=0, format="bf16", seconds=0.0)


def row(measured: float, predicted: float, new: int = 512, disturbed: bool = False, batch: int = 1) -> StepRow:
    step = replace(STEP, new=new, past=0 if new > 1 else 255, batch=batch)
    return StepRow(step=step, measured=measured, predicted=predicted, uncalibrated=0.0, disturbed=disturbed)


def test_steps_whose_work_has_no_constants_are_lower_bounds_and_told_apart() -> None:
    """+20 and -10 %: 15; with one of -60 % whose attention the ceilings price: 30 in all."""
    rows = [row(1.0, 1.2), row(1.0, 0.9, new=1), replace(row(1.0, 0.4, new=1), bare=("mla.decode",))]
    said = headline(rows)
    assert "3 steps" in said and "mean error 30.0 %" in said
    assert (
        "1 of them are lower bounds (>)" in said and "mla.decode; the other 2: mean error 15.0 %, bias +5.0 %" in said
    )
    assert [cells[6][0] for cells in whole_table(rows).rows] == ["1", "9", ">"]


def test_kernels_of_a_steps_work_without_constants_are_named() -> None:
    """A calibration of matmuls alone: attention is bare, norms and copies are no work of a step."""
    known = Calibration(name="partly", constants={"matmul": {"bf16": Fit(math=0.5, memory=0.5)}})
    hardware = load_hardware("h200-sxm")
    assert bare_kernels(price_step(STEP, hardware, known)) == ("attention.prefill",)
    assert bare_kernels(price_step(STEP, hardware, Calibration(name="none", basis="roofline"))) == (
        "attention.prefill",
        "matmul",
    )


def outcome(session: Session, hardware: str) -> Outcome:
    facts = {
        "date": "2026-01-01",
        "device": {"name": "a device", "software": {"torch": "2"}},
        "shapes": 0,
        "samples": 0,
        "visits_disturbed": 0,
        "shapes_disturbed_left_out": 0,
        "not_written": {},
        "shapes_disturbed_used": 0,
        "refused": {},
        "failed": {},
    }
    calibration = Calibration(name="none", basis="roofline", provenance=facts)
    return Outcome(
        calibration=calibration,
        hardware=load_hardware(hardware),
        new_hardware=None,
        train=[],
        test=[],
        session=session,
    )


def test_the_headline_has_every_step_and_the_undisturbed_ones_apart() -> None:
    """+20 % and -10 %: a mean of 15 and a bias of 5; with a disturbed -60 %: 30 and -16.7."""
    rows = [row(1.0, 1.2), row(1.0, 0.9, new=1), row(1.0, 0.4, new=1, disturbed=True)]
    said = headline(rows)
    assert "3 steps" in said and "mean error 30.0 %, bias -16.7 %" in said
    assert "2 of 3 that nothing disturbed: mean error 15.0 %, bias +5.0 %" in said
    assert "TTFT 20.0 %, TPOT 35.0 %" in said
    assert "none was disturbed" in headline(rows[:2])
    assert ">" not in said
    assert headline(rows[2:]).startswith("Disturbed:") and "60.0 %" in headline(rows[2:])
    assert errors_of([]) is None


def test_a_disturbed_step_is_in_the_table_and_marked() -> None:
    table = whole_table([row(1.0, 1.2), row(1.0, 0.4, new=1, disturbed=True)])
    cells = [dict(zip(table.columns, line)) for line in table.rows]
    assert [(c["figure"], c["batch"], c["length"], c["mode"], c["error"]) for c in cells] == [
        ("TTFT", "1", "512", "eager", "+20.0 %"),
        ("TPOT", "1", "256", "eager", "-60.0 % *"),
    ]
    assert "1 of 2 steps" in table.title


def test_the_picture_in_characters() -> None:
    """From 1 to 1000 s over 40 characters a factor of ten is 13 of them."""
    heading, lines = drawn_rows([row(1.0, 1.0), row(10.0, 1.0), row(1000.0, 1000.0)])
    assert lines == ["@" + 39 * ".", "|" + 12 * "-" + "o" + 26 * ".", 39 * "." + "@"]
    assert heading.startswith("1.0 s") and heading.endswith("s")


def test_the_figure_has_points_where_it_was_measured_and_lines_where_it_was_predicted() -> None:
    rows = [row(2.0, 1.0, new=100), row(4.0, 2.0, new=200, disturbed=True), row(0.5, 0.25, new=1, batch=8)]
    figure = whole_models(rows, lambda step: step.new * step.batch * 0.01)
    ttft, tpot = figure.axes
    line, points, crosses = ttft.lines
    assert np.allclose(line.get_ydata(), 0.01 * np.asarray(line.get_xdata()))
    assert line.get_xdata()[0] == 100 and line.get_xdata()[-1] == 200
    assert list(points.get_xdata()) == [100, 200] and list(points.get_ydata()) == [2.0, 4.0]
    assert list(crosses.get_xdata()) == [200]
    assert [list(drawn.get_ydata()) for drawn in tpot.lines] == [[0.5]]
    assert (ttft.get_xlabel(), tpot.get_xlabel()) == ("prompt length [tokens]", "batch [sequences]")
    assert png(figure).startswith(b"\x89PNG")


def test_a_device_without_the_steps_format_keeps_its_report() -> None:
    """A T4 has no bf16 arithmetic: what was timed all the same is named, not priced."""
    session = Session()
    session.steps[STEP.key] = [replace(STEP, seconds=1.0)]
    without = outcome(session, "t4")
    assert step_rows(without) == []
    assert "no bf16 arithmetic" in unpriced(without)["llama-3.1-8b"]
    assert "were timed and have no price" in markdown(without)
    assert len(step_rows(outcome(session, "l4"))) == 1


def test_a_report_begins_with_the_whole_models() -> None:
    session = Session()
    session.steps[STEP.key] = [replace(STEP, seconds=1.0, waited=0.5), replace(STEP, seconds=0.5)]
    text = markdown(outcome(session, "l4"), "l4.png")
    assert text.index("Whole models, 1 steps") < text.index("l4.png") < text.index("TTFT | 1 | 512 | eager | 500")
    assert text.index("TTFT | 1 | 512") < text.index("### Ceilings")


def test_ceilings_stand_beside_a_data_sheet_only_where_there_is_one() -> None:
    """An L4 has 300 GB/s on its data sheet: 240 GB/s are 80 % of it. A CPU has no data sheet."""
    session = Session()
    session.ceilings["copy"] = 240e9
    listed = outcome(session, "l4")
    assert "| ceiling | measured | stated | reached |" in markdown(listed)
    assert "| copy | 240.0 GB/s | 300.0 GB/s | 80.0 % |" in markdown(listed)
    own = markdown(replace(listed, new_hardware={"name": "a CPU"}))
    assert "| ceiling | measured | peak that is used |" in own and "reached" not in own


def test_a_report_without_whole_models_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "kernel_figures", lambda outcome: [])
    none = outcome(Session(), "l4")
    assert opening(none, []).startswith("No step of a whole model was measured. A --budget under a minute")
    assert opening(none, []) in markdown(none) and opening(none, []) in webpage(none)
    session = Session()
    session.steps[STEP.key] = [replace(STEP, seconds=1.0)]
    assert opening(outcome(session, "t4"), []) == "", "some were measured, and have no price"


def test_the_share_without_constants_is_explained_where_it_is_a_column() -> None:
    some = [replace(row(1.0, 1.2), uncalibrated=0.037)]
    assert whole_table(some).columns[-1] == "without constants" and whole_table(some).rows[0][-1] == "3.7 %"
    assert len(legend(some)) == 1 and legend(some)[0].startswith("Without constants: the share of a predicted time")
    assert legend([row(1.0, 1.2)]) == [] and "without constants" not in whole_table([row(1.0, 1.2)]).columns


def test_the_picture_says_on_what_and_when(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "kernel_figures", lambda outcome: [])
    figure = whole_models([row(2.0, 1.0)], lambda step: 1.0, "a device, 2026-01-01")
    assert figure.get_suptitle().startswith("a device, 2026-01-01\nLines: predicted.")
    session = Session()
    session.steps[STEP.key] = [replace(STEP, seconds=1.0)]
    page = webpage(outcome(session, "l4"))
    assert page.count("Lines: predicted. Points: measured") == 1 and "a device, 2026-01-01" in page


def test_what_the_thin_model_takes_beside_its_kernels_is_the_glue() -> None:
    """30 us a step and 20 us a layer on top of the kernels' prices are found again, and change predictions by them."""
    session = Session()
    bare = outcome(session, "l4")
    whole = float(predict(replace(STEP, format="bf16"), bare).time)
    for layers in (2, 18):
        step = replace(STEP, model=THIN, layers=layers, new=1, past=15)
        seconds = float(predict(step, bare).time) + 30e-6 + 20e-6 * layers
        session.steps[step.key] = [replace(step, seconds=seconds), replace(step, seconds=9.0, waited=0.5)]
    found = with_glue(bare)
    assert found.calibration.step.layer == pytest.approx(20e-6, rel=1e-3)
    assert found.calibration.step.host == pytest.approx(30e-6, rel=1e-3)
    assert float(predict(STEP, found).time) - whole == pytest.approx(30e-6 + 32 * 20e-6, rel=1e-3)
    assert "each layer 20.0 us" in markdown(found)
    assert step_rows(found) == [], "the thin model is no model to report"
    del session.steps[step.key]
    assert with_glue(bare) is bare, "one number of layers tells nothing"


def test_a_step_launched_by_a_host_takes_what_the_host_needs() -> None:
    """Norms launched in 4 us and nothing else known: 65 of them in 32 layers, 10 us of Python a layer, 5 us a step."""
    session = Session()
    norm = Norm(name="norm", tokens=1.0, width=4096, base=BF16)
    session.shapes["n"], session.samples["n"] = norm, [Sample(seconds=1e-6, host=4e-6)]
    behind = outcome(session, "h200-sxm")
    for layers in (2, 18):
        step = replace(STEP, model=THIN, layers=layers, new=1, past=15)
        session.steps[step.key] = [replace(step, seconds=4e-6 * (2 * layers + 1) + 5e-6 + 10e-6 * layers)]
    decode = replace(STEP, new=1, past=255)
    tiny = replace(decode, model="tiny-dense", layers=4)
    price = Predictions(behind)
    assert price.seconds(tiny) == pytest.approx(9 * 4e-6 + 5e-6 + 4 * 10e-6, rel=1e-3)
    assert price.seconds(replace(tiny, mode="graph")) == pytest.approx(float(price.phase(tiny).time))
    assert price.seconds(decode) == pytest.approx(float(price.phase(decode).time)), "the device is the slower one"
    assert with_glue(behind) is behind, "the host's time is no time of the device"


def test_a_ceiling_is_at_least_what_operators_reached() -> None:
    """A matmul of 4096 x 4096 x 4096 in 1 ms is 137.4 TFLOP/s and 100.7 GB/s; twice is not enough, nor are three times
    of which other work disturbed one."""
    op = Matmul(name="m", m=4096.0, k=4096, n=4096, weight=BF16, input=BF16, output=BF16)
    session = Session(ceilings={"read": 50e9, "copy": 40e9, "matmul.bf16": 100e12}, shapes={"a": op})
    for visits in ([True, True], [True, True, False]):
        session.samples["a"] = [Sample(seconds=1e-3, waited=0.0 if calm else 0.5) for calm in visits]
        assert reached(session) == session.ceilings
    session.samples["a"] = [Sample(seconds=1e-3)] * 3
    found = reached(session)
    assert found["matmul.bf16"] == pytest.approx(2 * 4096**3 / 1e-3)
    assert found["read"] == pytest.approx(3 * 4096 * 4096 * 2 / 1e-3)
    assert found["copy"] == 40e9


def test_few_rows_say_nothing_of_the_peak() -> None:
    """12 rows of 896 x 896 in 1.06 ms are 18.2 GFLOP/s where large matmuls reach 2.56 (bf16 on AVX2): another kernel.
    256 rows count, 255 do not; as traffic all do, from 16 MB on."""
    ceilings = {"read": 1e9, "matmul.bf16": 2.56e9}
    for rows, width, seconds, peak, read in (
        (12, 896, 1.06e-3, 2.56e9, 1e9),
        (255, 896, 0.02, 2.56e9, 1e9),
        (256, 896, 0.02, 2 * 256 * 896**2 / 0.02, 1e9),
        (12, 4096, 0.02, 2.56e9, 2 * (4096**2 + 2 * 12 * 4096) / 0.02),
    ):
        op = Matmul(name="m", m=float(rows), k=width, n=width, weight=BF16, input=BF16, output=BF16)
        session = Session(ceilings=dict(ceilings), shapes={"a": op})
        session.samples["a"] = [Sample(seconds=seconds)] * 3
        assert reached(session) == pytest.approx({"read": read, "matmul.bf16": peak}), rows


def test_a_check_says_how_many_kernels_hold_and_shows_the_others_first() -> None:
    rows = [
        CheckRow(kernel="copy", label="any", shapes=3, median=0.05, bias=0.05, within=True),
        CheckRow(kernel="norm", label="any", shapes=2, median=0.5, bias=-0.5, within=False, disturbed=1),
    ]
    report = check_report(Checked(rows=rows, unchecked={}), Path("c.yaml"), 0.2)
    assert [line[0] for line in report.tables[0].rows] == ["norm", "copy"]
    assert next(iter(report.tables[0].rows))[2:] == ["2 *", "50.0 %", "-50.0 %", "NO"]
    assert report.headline.startswith("1 of 2 kernels are within 20.0 %")
    assert "1 of 5" in report.notes[1]


def test_a_calm_repeat_takes_the_place_of_a_disturbed_one() -> None:
    repeats = Repeats(SyntheticMeasurer(), Settings(budget=10.0), lambda *said: None)
    repeats._keep("a", Sample(seconds=9.0, waited=0.9))
    repeats._keep("a", Sample(seconds=8.0, waited=0.9))
    assert (repeats.seconds["a"], repeats.disturbed) == ([9.0], {"a"})
    for seconds in (1.0, 2.0):
        repeats._keep("a", Sample(seconds=seconds))
    repeats._keep("a", Sample(seconds=7.0, waited=0.9))
    assert (repeats.seconds["a"], repeats.disturbed) == ([1.0, 2.0], set())
