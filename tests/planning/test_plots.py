"""Pictures are drawn, hold what they should, and are readable on white and on dark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load_model
from inferplan.errors import InputFileError, UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from inferplan.reports import plots
from tests.cases import for_each
from tests.command import exit_code


@pytest.fixture(scope="module")
def result() -> Estimate:
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", ideal=True))
    return estimate(deployment, StaticLoad(batch=8.0, prompt=512.0, output=32.0))


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_has_contrast_on_white_and_on_black() -> None:
    ink = luminance(plots.INK)
    assert 1.05 / (ink + 0.05) >= 4.5
    assert (ink + 0.05) / 0.05 >= 4.5


@for_each("colour", plots.COLOURS)
def test_colours_are_seen_on_white_and_on_black(colour: str) -> None:
    value = luminance(colour)
    assert 1.05 / (value + 0.05) >= 2.0
    assert (value + 0.05) / 0.05 >= 3.0


def curves() -> list[plots.Curve]:
    return [plots.Curve(label="a", x=[1, 2, 4], y=[0.01, 0.02, 0.05]), plots.Curve(label="b", x=[1, 3], y=[0.01, 0.03])]


FIGURES = {
    "roofline": plots.roofline_figure,
    "operators": plots.time_by_operator,
    "memory": lambda result: plots.memory_stack({"one": result.footprint, "two": result.footprint}),
    "kv": lambda _: plots.kv_context([load_model("llama-3.1-8b"), load_model("gemma-3-27b")]),
    "tradeoff": lambda _: plots.tradeoff(curves(), "t", 0.04),
    "rate": lambda _: plots.against_rate(curves(), "t", 0.5),
    "frontier": lambda _: plots.frontier_figure(curves(), (2, 0.02), "t"),
    "waterfall": lambda _: plots.waterfall([("base", 1.0), ("fp8", 1.6), ("draft", 1.2)], "t", "tokens/s"),
    "timeline": lambda _: plots.timeline({"queue": ([0, 1, 2], [0, 3, 1]), "KV": ([0, 2], [0.1, 0.9])}, "t"),
}


@for_each("name", FIGURES)
@for_each("suffix", plots.SUFFIXES)
def test_every_picture_is_drawn_in_every_format(name: str, suffix: str, tmp_path: Path, result: Estimate) -> None:
    figure = FIGURES[name](result)
    assert isinstance(figure, Figure)
    path = tmp_path / f"x{suffix}"
    plots.save(figure, str(path))
    magic = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(magic)
    assert path.stat().st_size > 2000


def test_an_svg_stands_inside_html(result: Estimate) -> None:
    text = plots.svg(plots.roofline_figure(result))
    assert text.startswith("<svg")
    assert "http://" not in text.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )


def test_no_point_is_above_the_roof(result: Estimate) -> None:
    hardware = result.deployment.hardware
    for phase in (result.prefill, result.decode):
        for cost in plots._matmuls(phase):
            x, y = plots._point(cost)
            assert y <= min(hardware.peak_of(cost.op.math or "bf16"), x * hardware.memory.bandwidth) * (1 + 1e-9)


def test_the_cache_of_a_window_bends() -> None:
    figure = plots.kv_context([load_model("gemma-3-27b")])
    x, y = figure.axes[0].lines[0].get_data()
    slope = np.diff(y) / np.diff(x)
    assert slope[-1] < slope[0] / 3


def test_other_suffixes_and_folders_are_refused(tmp_path: Path, result: Estimate) -> None:
    figure = plots.tradeoff(curves(), "t")
    with pytest.raises(UsageError, match="suffix"):
        plots.save(figure, "x.gif")
    with pytest.raises(InputFileError):
        plots.save(figure, str(tmp_path / "none" / "x.png"))


@for_each(
    ("asked", "vain"),
    [
        ("roofline --batch 8 --tp 2", ""),
        ("roofline --batch 8 --slo 40ms --max-num-seqs 64", "--max-num-seqs, --slo"),
        ("kv --gpu h100-sxm --prompt 900 --output 100", "--gpu, --prompt, --output"),
        ("tradeoff --batch 8 --slo 40ms", "--batch"),
        ("memory --batch 8 --quant bf16,fp8", ""),
    ],
)
def test_options_that_change_nothing_of_a_picture_are_noted(
    asked: str, vain: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A roofline has no line at a latency, a cache of a model needs no device and no batch, and a trade-off is over all
    batches."""
    gpu = [] if "--gpu" in asked else ["--gpu", "h100-sxm"]
    kind, *options = asked.split()
    target = tmp_path / "picture.svg"
    assert exit_code(monkeypatch, "plot", kind, "llama-3.1-8b", *gpu, *options, "-o", str(target)) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[1:] == ([f"note: a picture of {kind} is the same without {vain}"] if vain else [])
    assert target.stat().st_size > 1000
