"""Pictures of values that are written down here: where lines, bars, words and limits have to lie."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import matplotlib.colors as colours
import numpy as np
import pytest
from matplotlib.figure import Figure

from inferplan.errors import UsageError
from inferplan.reports import plots
from inferplan.reports.plots import COLOURS, INK, MARKERS, Curve
from tests.cases import for_each

BLUE, ORANGE, RED, SKY = COLOURS[0], COLOURS[1], COLOURS[3], COLOURS[4]


def points(line: Any) -> list[tuple[float, float]]:
    return [(round(float(x), 9), round(float(y), 9)) for x, y in zip(*line.get_data())]


def lines(figure: Figure, panel: int = 0) -> list[tuple[str, list[tuple[float, float]]]]:
    """Label and points of each line; no label where matplotlib made one up."""
    found = figure.axes[panel].lines
    return [("" if (name := str(one.get_label())).startswith("_") else name, points(one)) for one in found]


def words(figure: Figure, panel: int = 0) -> list[tuple[str, tuple[float, float]]]:
    """The words beside points."""
    return [(one.get_text(), tuple(map(float, one.xy))) for one in figure.axes[panel].texts]  # type: ignore[attr-defined]


def boxes(figure: Figure, panel: int = 0) -> list[tuple[float, float, float, float]]:
    """Left, bottom, width and height of each bar."""
    found = [one.get_bbox().bounds for one in figure.axes[panel].patches]  # type: ignore[attr-defined]
    return [tuple(round(float(part), 9) for part in one) for one in found]  # type: ignore[misc]


def named(figure: Figure, panel: int = 0) -> tuple[str, str, str]:
    axes = figure.axes[panel]
    return axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()


def legend(figure: Figure, panel: int = 0) -> list[str]:
    found = figure.axes[panel].get_legend()
    return [] if found is None else [one.get_text() for one in found.get_texts()]


def ticks(axis: Any) -> list[str]:
    return [one.get_text() for one in axis.get_ticklabels()]


def limits(figure: Figure, panel: int = 0) -> tuple[float, ...]:
    axes = figure.axes[panel]
    return tuple(round(float(one), 9) for one in (*axes.get_xlim(), *axes.get_ylim()))


def size(figure: Figure) -> tuple[float, float]:
    return tuple(round(float(one), 6) for one in figure.get_size_inches())  # type: ignore[return-value]


CURVES = [
    Curve(label="a", x=[1, 2, 4], y=[0.01, 0.02, 0.05], notes=["n1", "n2"]),
    Curve(label="b", x=[3], y=[0.03]),
]


def test_latency_over_throughput() -> None:
    """In milliseconds; a limit of 40 ms lies across."""
    figure = plots.tradeoff(CURVES, "title", 0.04)
    assert lines(figure)[:2] == [("a", [(1, 10), (2, 20), (4, 50)]), ("b", [(3, 30)])]
    assert lines(figure)[2] == ("SLO 40.00 ms", [(0, 40), (1, 40)])
    assert words(figure) == [("n1", (1, 10)), ("n2", (2, 20))]
    assert named(figure) == ("title", "output tokens per second per device", "time per output token [ms]")
    assert legend(figure) == ["a", "b", "SLO 40.00 ms"]
    assert figure.axes[0].get_ylim()[0] == 0
    assert len(plots.tradeoff(CURVES, "title").axes[0].lines) == 2
    styles = [(one.get_color(), one.get_marker(), one.get_linestyle()) for one in figure.axes[0].lines]
    assert styles == [(BLUE, "o", "-"), (ORANGE, "^", "--"), (RED, "None", "--")]


def test_the_seventh_series_begins_again_with_the_colours() -> None:
    figure = plots.tradeoff([Curve(label=str(n), x=np.arange(30.0), y=np.arange(30.0)) for n in range(7)], "t")
    drawn = figure.axes[0].lines
    assert [one.get_color() for one in drawn] == [*COLOURS, COLOURS[0]]
    assert [one.get_marker() for one in drawn] == [*MARKERS, MARKERS[0]]
    assert [one.get_linestyle() for one in drawn] == ["-", "--", "-.", ":", "-", "--", "-."]
    assert {one.get_markevery() for one in drawn} == {2}  # of 30 points each other one: 12 markers would do
    figure = plots.frontier_figure(
        [Curve(label=str(n), x=np.arange(30.0), y=np.arange(30.0)) for n in range(7)], None, "t"
    )
    drawn = figure.axes[0].lines
    assert [one.get_color() for one in drawn] == [*COLOURS, COLOURS[0]]
    assert [one.get_marker() for one in drawn] == [*MARKERS, MARKERS[0]]
    assert [one.get_linestyle() for one in drawn] == ["-", "--", "-.", ":", "-", "--", "-."]
    assert {one.get_markevery() for one in drawn} == {2}


def test_first_tokens_over_the_rate() -> None:
    figure = plots.against_rate(CURVES, "title", 0.5)
    assert lines(figure)[:2] == [("a", [(1, 10), (2, 20), (4, 50)]), ("b", [(3, 30)])]
    assert lines(figure)[2] == ("SLO 500.0 ms", [(0, 500), (1, 500)])
    assert named(figure) == ("title", "requests per second", "time to first token [ms]")
    assert figure.axes[0].get_yscale() == "log" and figure.axes[0].lines[2].get_color() == RED
    assert plots.against_rate(CURVES, "title").axes[0].lines[-1].get_label() == "b"


@for_each("top, between", [(300.0, [2, 3, 5, 7]), (9000.0, [2, 5])])
def test_numbers_of_an_axis_are_plain(top: float, between: list[int]) -> None:
    """From 10 ms on: each single step is named where the axis spans less than two decades."""
    figure = plots.against_rate([Curve(label="a", x=[1, 2], y=[0.01, top / 1e3])], "t")
    axis = figure.axes[0].yaxis
    assert axis.get_major_formatter()(1000.0, 0) == "1,000"
    assert axis.get_minor_formatter()(300.0, 0) == "300"
    assert list(axis.get_minor_locator()._subs) == between  # type: ignore[attr-defined]


@for_each("top, between", [(99.0, (2, 3, 5, 7)), (100.0, (2, 5))])
def test_two_decades_are_many(top: float, between: tuple[int, ...]) -> None:
    found: list[Any] = []
    axis = SimpleNamespace(
        get_view_interval=lambda: (1.0, top), set_minor_locator=found.append,
        set_major_formatter=lambda text: None, set_minor_formatter=lambda text: None,
    )  # fmt: skip
    plots._plain_numbers(axis)
    assert tuple(found[0]._subs) == between


def test_latencies_at_some_loads() -> None:
    """250 ms is the largest, and the limit is above it: the axis ends at 1.18 x 300."""
    figure = plots.against_load(Curve(label="TTFT", x=[1, 2], y=[0.1, 0.25]), 0.3, ("requests/s", "TTFT p95"))
    assert lines(figure) == [("TTFT", [(1, 100), (2, 250)]), ("limit 300 ms", [(0, 300), (1, 300)])]
    assert words(figure) == [("100 ms", (1, 100)), ("250 ms", (2, 250))]
    assert named(figure) == ("", "requests/s", "TTFT p95 [ms]")
    assert limits(figure)[2:] == (0, 354)
    assert limits(plots.against_load(Curve(label="", x=[1], y=[0.5]), 0.3, ("", "")))[3] == 590


def test_a_count_that_grows_by_steps() -> None:
    figure = plots.steps(([0, 10, 20], [1, 2, 4]), [(0.0, 1.0), (20.0, 4.0)], 2.0, ("requests/s", "GPUs"))
    assert lines(figure) == [
        ("", [(0, 1), (10, 2), (20, 4)]), ("", [(0, 1), (20, 4)]), ("the plan: 2", [(0, 2), (1, 2)])
    ]  # fmt: skip
    assert words(figure) == [("1", (0, 1)), ("4", (20, 4))]
    assert named(figure) == ("", "requests/s", "GPUs") and legend(figure) == ["the plan: 2"]
    assert limits(figure)[2:] == (0, 5)  # 1.25 x 4
    assert limits(plots.steps(([0], [1]), [(0.0, 1.0)], 8.0, ("", "")))[3] == 10
    assert figure.axes[0].lines[0].get_drawstyle() == "steps-post" and size(figure) == (7.2, 2.8)


def test_bars_with_their_figures() -> None:
    figure = plots.bars([("one", 1200.0), ("two", 800.0), ("three", 100.0)], "USD", first=1)
    assert boxes(figure) == [(0, -0.31, 1200, 0.62), (0, 0.69, 800, 0.62), (0, 1.69, 100, 0.62)]
    assert words(figure) == [("1,200", (1200, 0)), ("800", (800, 1)), ("100", (100, 2))]
    assert ticks(figure.axes[0].yaxis) == ["one ", "two ", "three "]
    assert limits(figure)[:2] == (0, 1416)
    assert named(figure) == ("", "USD", "")
    faces = [colours.to_hex(one.get_facecolor()).upper() for one in figure.axes[0].patches]
    assert faces == [SKY, BLUE, SKY]
    assert size(figure) == (7.2, 2.16)  # 0.9 and 0.42 for each
    bottom, top = figure.axes[0].get_ylim()
    assert bottom > top  # the first one is above
    assert figure.axes[0].xaxis.get_major_formatter()(1234.0, 0) == "1,234"


def test_the_frontier_and_the_plan_on_it() -> None:
    figure = plots.frontier_figure(CURVES, (2.0, 0.02), "title")
    assert lines(figure) == [
        ("a", [(1, 0.01), (2, 0.02), (4, 0.05)]), ("b", [(3, 0.03)]), ("the plan", [(2, 0.02)])
    ]  # fmt: skip
    assert named(figure) == ("title", "output tokens/s per user", "output tokens/s per device")
    assert legend(figure) == ["a", "b", "the plan"] and figure.axes[0].get_ylim()[0] == 0
    assert legend(plots.frontier_figure(CURVES, None, "title")) == ["a", "b"]
    assert figure.axes[0].lines[2].get_markersize() == 14  # around a marker of 5


def test_a_waterfall_on_one_scale() -> None:
    """100, then twice, then three quarters of that: bars from 0 to 100, 100 to 200, 150 to 200."""
    figure = plots.waterfall([("base", 100.0), ("fp8", 200.0), ("draft", 150.0)], "title", "tokens/s")
    assert boxes(figure) == [(0, -0.275, 100, 0.55), (100, 0.725, 100, 0.55), (150, 1.725, 50, 0.55)]
    assert words(figure) == [("x 2", (200, 1)), ("x 0.75", (200, 2))]
    assert lines(figure) == [("", [(100, -0.28), (100, 1.28)]), ("", [(200, 0.72), (200, 2.28)])]
    assert ticks(figure.axes[0].yaxis) == ["base", "fp8", "draft"]
    assert limits(figure)[:2] == (0, 230) and figure.axes[0].get_xscale() == "linear"
    assert named(figure) == ("title", "tokens/s", "") and size(figure) == (7.2, 2.66)
    faces = [colours.to_hex(one.get_facecolor()).upper() for one in figure.axes[0].patches]
    assert faces == [INK.upper(), BLUE, RED]


def test_a_waterfall_over_more_than_a_decade() -> None:
    """300 is more than 20 times 10: a log axis from 10/1.5 to 600. What changes nothing has a bar that is seen."""
    figure = plots.waterfall([("base", 10.0), ("same", 10.0), ("all", 300.0)], "t", "tokens/s")
    assert figure.axes[0].get_xscale() == "log"
    assert limits(figure)[:2] == (round(10 / 1.5, 9), 600)
    assert [one[2] for one in boxes(figure)] == [10, 1e-8, 290]
    assert plots.waterfall([("a", 10.0), ("b", 200.0)], "t", "").axes[0].get_xscale() == "linear"


def test_tracks_over_the_time_of_a_run() -> None:
    figure = plots.timeline({"queue": ([0, 1, 2], [0, 3, 1]), "KV": ([0, 2], [0.1, 0.9])}, "title")
    assert size(figure) == (7.2, 3.3)  # 0.8 and 1.25 for each
    assert [named(figure, panel) for panel in (0, 1)] == [("title", "", "queue"), ("", "seconds", "KV")]
    assert lines(figure, 0) == [("", [(0, 0), (1, 3), (2, 1)])] and lines(figure, 1) == [("", [(0, 0.1), (2, 0.9)])]
    assert [panel.lines[0].get_color() for panel in figure.axes] == [BLUE, ORANGE]
    for panel in figure.axes:
        assert panel.get_ylim()[0] == 0
        assert [side for side, spine in panel.spines.items() if spine.get_visible()] == ["left", "bottom"]
        assert len(panel.collections) == 1


def test_machines_by_month() -> None:
    """Two GPUs and then a third upon one of another kind; bills around what is expected, seven months named in twos."""
    months = [f"m{number}" for number in range(7)]
    figure = plots.steps_of_months(
        months, {"a": [2] * 7, "b": [0, 1, 1, 1, 1, 1, 1]}, ([1.0] * 7, [2.0] * 7, [4.0] * 7), "EUR"
    )
    found = boxes(figure, 0)
    assert found[0] == (-0.45, 0, 0.9, 2) and found[7] == (-0.45, 2, 0.9, 0) and found[8] == (0.55, 2, 0.9, 1)
    assert legend(figure, 0) == ["a", "b"]
    assert lines(figure, 1) == [("expected", [(place, 2.0) for place in range(7)])]
    assert ticks(figure.axes[1].xaxis) == ["m0", "m2", "m4", "m6"]
    assert [axes.get_ylabel() for axes in figure.axes] == ["machines", "bill per month, EUR"]
    corners = figure.axes[1].collections[0].get_paths()[0].vertices
    assert (float(np.min(corners[:, 1])), float(np.max(corners[:, 1]))) == (1.0, 4.0)
    six = plots.steps_of_months(months[:6], {"a": [1] * 6}, ([1.0] * 6, [2.0] * 6, [4.0] * 6), "EUR")
    assert ticks(six.axes[1].xaxis) == months[:6]
    many = plots.steps_of_months(["m"], {str(n): [1] for n in range(13)}, ([1.0], [2.0], [4.0]), "EUR")
    assert [bar.get_hatch() or "" for bar in many.axes[0].patches] == [""] * 6 + ["//"] * 6 + [".."]
    assert boxes(many, 0)[12] == (-0.45, 12, 0.9, 1)


def operator(name: str, flop: float, intensity: float, time: float, total: float, math: str = "bf16") -> Any:
    return SimpleNamespace(
        op=SimpleNamespace(name=name, math=math),
        work=SimpleNamespace(flop=flop),
        intensity=intensity,
        time=time,
        total=total,
    )


def phase(*costs: Any) -> Any:
    """On a device of 1e12 FLOP/s (half as many in fp32) and 1e11 B/s: the roof bends at 10 FLOP/B."""
    peaks = {"bf16": 1e12, "fp32": 5e11}
    hardware = SimpleNamespace(peak_of=peaks.__getitem__, memory=SimpleNamespace(bandwidth=1e11))
    totals = {one.op.name: one.total for one in costs}
    return SimpleNamespace(
        costs=costs, deployment=SimpleNamespace(hardware=hardware), by_operator=lambda: totals
    )  # fmt: skip


def result(prefill: Any, decode: Any) -> Any:
    return SimpleNamespace(
        deployment=SimpleNamespace(hardware=prefill.deployment.hardware, describe=lambda: "a model on a device"),
        load=SimpleNamespace(batch=np.array([1.0, 8.0])),
        prefill=prefill,
        decode=decode,
    )


def test_operators_under_the_roof() -> None:
    """qkv achieves half of the roof at 100 FLOP/B; a decode at 2 FLOP/B could have 2e11 FLOP/s and has 1e11. What takes
    less than 1 % of its phase, or has no FLOP, is not drawn."""
    prefill = phase(
        operator("qkv", 1e9, 100.0, 2e-3, 2e-3),
        operator("tiny", 1e6, 50.0, 1e-5, 1e-5),
        operator("copy", 0.0, 0.0, 1e-3, 1e-3, ""),
    )
    decode = phase(
        operator("qkv.core", 1e8, 2.0, 1e-3, 1e-3), operator("up", 1e8, 2.5, 1e-3, 1e-3),
        operator("down", 1e8, 2.2, 1e-3, 1e-3), operator("o", 1e8, 2.1, 1e-3, 1e-3, "fp32"),
    )  # fmt: skip
    figure = plots.roofline_figure(result(prefill, decode))
    found = lines(figure)
    roofs = {name: ends for name, ends in found if name.startswith("roof")}
    assert list(roofs) == ["roof, bf16", "roof, fp32"]
    assert roofs["roof, bf16"][0] == (0.5, 5e10)  # half of the least, which is 1 where all are above
    assert roofs["roof, bf16"][-1] == pytest.approx((400.0, 1e12))  # four times the largest
    assert roofs["roof, fp32"][-1][1] == 5e11
    drawn = [ends for name, ends in found if not name.startswith(("roof", "hollow"))]
    assert drawn[:3] == [[(100, 5e11), (100, 1e12)], [(100, 1e12)], [(100, 5e11)]]
    assert drawn[3:6] == [[(2, 1e11), (2, 2e11)], [(2, 2e11)], [(2, 1e11)]]
    assert drawn[6][1] == (2.5, 2.5e11) and len(drawn) == 3 * 5
    assert legend(figure) == ["roof, bf16", "roof, fp32", "prefill", "decode", "hollow: attainable, filled: achieved"]
    assert words(figure) == [("qkv", (100, 5e11)), ("qkv, up, down, ...", (2, 1e11))]
    title = "a model on a device: batch 8, one device"
    assert named(figure) == (title, "arithmetic intensity [FLOP/B]", "performance of one device")
    assert (figure.axes[0].get_xscale(), figure.axes[0].get_yscale()) == ("log", "log")


def test_operators_far_from_each_other_are_named_apart() -> None:
    """A factor of e^1.2 along, or e^0.5 up, is near; what has one name is named once; three stand without dots."""
    decode = phase(
        operator("a", 1e8, 2.0, 1e-3, 1e-3), operator("b", 1e8, 2.0 * 3.2, 1e-3, 1e-3),
        operator("c", 1e8, 2.0 * 3.5, 1e-3, 1e-3), operator("d", 1.7e8, 2.0, 1e-3, 1e-3),
        operator("a", 1e8, 2.0, 1e-3, 1e-3), operator("e", 1.6e8, 2.0, 1e-3, 1e-3),
    )  # fmt: skip
    figure = plots.roofline_figure(result(phase(operator("far", 1e9, 900.0, 1e-3, 1e-3)), decode))
    assert words(figure) == [
        ("far", (900, 1e12)), ("a, b, e", (2, 1e11)), ("c", (7, 1e11)), ("d", (2, 1.7e11))
    ]  # fmt: skip


def test_a_device_that_bends_beyond_all_operators_is_drawn_whole() -> None:
    """Four times 10 FLOP/B, where the roof bends; from half of 0.4 FLOP/B on."""
    figure = plots.roofline_figure(result(phase(operator("a", 1e8, 0.4, 1e-2, 1e-2)), phase()))
    roof = dict(lines(figure))["roof, bf16"]
    assert roof[0] == (0.2, 2e10) and roof[-1] == pytest.approx((40.0, 1e12))


def test_time_by_operator() -> None:
    """6, 3 and 1 of 10 ms of a prefill; 1 and 3 of 4 ms of a decode, which also has an operator of 0.4 %."""
    prefill = phase(*(operator(name, 1.0, 1.0, 1.0, total) for name, total in (("a", 6e-3), ("b", 3e-3), ("c", 1e-3))))
    decode = phase(
        *(operator(name, 1.0, 1.0, 1.0, total) for name, total in (("b", 1e-3), ("d", 2.984e-3), ("e", 0.016e-3)))
    )
    figure = plots.time_by_operator(result(prefill, decode))
    assert ticks(figure.axes[0].yaxis) == ["d", "a", "b", "c"]
    assert legend(figure) == ["prefill, 10.00 ms", "decode step, 4.000 ms"]
    assert boxes(figure) == [
        (0, -0.38, 0, 0.38), (0, 0.62, 60, 0.38), (0, 1.62, 30, 0.38), (0, 2.62, 10, 0.38),
        (0, 0, 74.6, 0.38), (0, 1, 0, 0.38), (0, 2, 25, 0.38), (0, 3, 0, 0.38),
    ]  # fmt: skip
    assert named(figure) == ("a model on a device: time by operator", "share of the step [%]", "")
    assert size(figure) == (7.2, 2.76)
    assert [bar.get_hatch() or "" for bar in figure.axes[0].patches] == [""] * 4 + ["///"] * 4
    assert {bar.get_linewidth() for bar in figure.axes[0].patches} == {0.4}
    few = plots.time_by_operator(result(prefill, decode), most=2)
    assert ticks(few.axes[0].yaxis) == ["d", "a"]
    bottom, top = figure.axes[0].get_ylim()
    assert bottom > top


def test_where_the_memory_goes() -> None:
    """40 + 20 (the larger of two states) + 3 + 2 GB of 72 GB that can be used, in the order of the deployments."""
    one = SimpleNamespace(weights=40e9, state=np.array([10e9, 20e9]), activations=3e9, reserve=2e9, usable=72e9)
    two = SimpleNamespace(weights=80e9, state=0.0, activations=1e9, reserve=2e9, usable=76e9)
    figure = plots.memory_stack({"one": one, "two": two})  # type: ignore[dict-item]
    found = boxes(figure)
    assert found == [
        (0, -0.3, 40, 0.6), (0, 0.7, 80, 0.6), (40, -0.3, 20, 0.6), (80, 0.7, 0, 0.6),
        (60, -0.3, 3, 0.6), (80, 0.7, 1, 0.6), (63, -0.3, 2, 0.6), (81, 0.7, 2, 0.6),
    ]  # fmt: skip
    assert lines(figure) == [("", [(72, -0.38), (72, 0.38)]), ("", [(76, 0.62), (76, 1.38)])]
    assert words(figure) == [("72.00 GB usable", (72, -0.38)), ("76.00 GB usable", (76, 0.62))]
    assert limits(figure)[:2] == (0, round(83 * 1.05, 9))
    assert legend(figure) == ["weights", "KV cache and state", "activations", "runtime reserve"]
    assert named(figure) == ("memory of one device", "GB", "") and size(figure) == (7.2, 2.5)
    assert limits(plots.memory_stack({"one": one}))[1] == round(72 * 1.05, 9)  # type: ignore[dict-item]
    bottom, top = figure.axes[0].get_ylim()
    assert bottom > top


def model(name: str, most: int | None, *caches: Any) -> Any:
    return SimpleNamespace(name=name, max_context=most, caches=lambda: caches)


def cache(per_token: float, window: float = np.inf, state: float = 0.0, bits: int | None = None) -> Any:
    """Bytes of a token at one byte an element, as many tokens as fit a window; elements of a state."""
    return SimpleNamespace(
        token_bytes=lambda width: per_token * width,
        mask=SimpleNamespace(cached=lambda tokens: np.minimum(tokens, window)),
        state=state,
        state_bits=bits,
    )


def test_what_a_sequence_keeps() -> None:
    """Two layers of 100 B a token at 2 B an element, and three of a state of 50 at 32 bits: 400 x 1,000 + 600 B."""
    models = [
        model("a", 1000, (cache(100.0), 2), (cache(0.0, state=50.0, bits=32), 3)), model("b", None, (cache(10.0), 1)),
        model("c", 64, (cache(10.0, state=7.0), 1)),
    ]  # fmt: skip
    figure = plots.kv_context(models)
    drawn = dict(lines(figure))
    assert drawn["a"][0] == (128, 400 * 128 + 600) and drawn["a"][-1] == (1000, 400 * 1000 + 600)
    assert drawn["b"][-1] == (131072, 20 * 131072)
    assert drawn["c"] == [(64, 20 * 64 + 14)]
    assert named(figure) == (
        "KV cache and state of one sequence (2 B per element)", "context [tokens]", "bytes per sequence"
    )  # fmt: skip
    assert (figure.axes[0].get_xscale(), figure.axes[0].get_yscale()) == ("log", "log")
    assert figure.axes[0].xaxis.get_major_formatter()(4096.0, 0) == "4,096"
    shorter = dict(lines(plots.kv_context(models, width=1.0, longest=500)))
    assert shorter["a"][-1] == (500, 200 * 500 + 600) and shorter["b"][-1] == (500, 10 * 500)
    many = plots.kv_context([model(str(n), 256, (cache(1.0), 1)) for n in range(8)])
    assert [one.get_linestyle() for one in many.axes[0].lines] == ["-", "--", "-.", ":", "-", "--", ":", "-"]
    assert [one.get_color() for one in many.axes[0].lines][6:] == [*COLOURS[:2]]


def test_a_picture_is_of_a_known_form() -> None:
    assert plots.require_picture("a/b.SVG") == "svg" and plots.require_picture("b.png") == "png"
    for wrong in ("picture", "a.svg.gif", ""):
        with pytest.raises(UsageError):
            plots.require_picture(wrong)


def test_the_same_picture_is_drawn_alike() -> None:
    """Each part is told: another point, word or bar is another picture."""
    first, again = (plots.drawn(plots.tradeoff(CURVES, "t", 0.04)) for _ in range(2))
    assert first == again
    assert first != plots.drawn(plots.tradeoff(CURVES, "t", 0.05)) != plots.drawn(plots.tradeoff(CURVES, "u", 0.05))
    bars = [plots.drawn(plots.bars([("a", size)], "x")) for size in (1.0, 2.0)]
    assert bars[0] != bars[1]
    months = [plots.drawn(plots.steps_of_months(["m"], {"a": [1]}, ([1.0], [2.0], [top]), "EUR")) for top in (4.0, 5.0)]
    assert [part for part in months[0] if part[0] == "areas"] != [part for part in months[1] if part[0] == "areas"]
    assert {part[0] for part in first} == {"text", "line", "area"}


def test_long_titles_are_cut_into_lines() -> None:
    figure = plots.tradeoff(CURVES, "word " * 20)
    title = figure.axes[0].get_title(loc="left")
    assert [len(line) for line in title.splitlines()] == [84, 14]


def test_axes_have_no_frame_above_and_at_the_right() -> None:
    axes = plots.tradeoff(CURVES, "t").axes[0]
    assert [side for side, spine in axes.spines.items() if spine.get_visible()] == ["left", "bottom"]
    assert axes.patch.get_alpha() == 0.0
    assert {one.get_color() for one in (axes.xaxis.label, axes.yaxis.label)} == {INK}
