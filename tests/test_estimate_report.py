"""The screen and the JSON of an estimate, of figures that are written down here: cells and sentences by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferplan.estimate.load import StaticLoad
from inferplan.figures import labelled_texts, record
from inferplan.reports import estimate as report


class Served(SimpleNamespace):
    """An estimate with techniques."""


class Diffused(SimpleNamespace):
    """An estimate of blocks."""


@pytest.fixture(autouse=True)
def written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "ServedEstimate", Served)
    monkeypatch.setattr(report, "DiffusionEstimate", Diffused)
    monkeypatch.setattr(report, "server_of", lambda estimate: estimate.server)
    monkeypatch.setattr(report, "by_place", lambda phase: phase.places)
    monkeypatch.setattr(report, "file_shares", lambda estimate: None)
    monkeypatch.setattr(report, "file_share", lambda phase: 0.25)
    monkeypatch.setattr(report, "overlay_note", lambda estimate: "")
    monkeypatch.setattr(report, "overlay_record", lambda calibration: None)
    monkeypatch.setattr(report, "outside_band", lambda rests: "")
    monkeypatch.setattr(report, "start_line", lambda deployment: "")
    monkeypatch.setattr(report, "refusal", lambda deployment, load, width: "" if width == 1 else f"width {width}")
    monkeypatch.setattr(report, "lacking", lambda deployment, forms: [])


def test_experts_on_the_host_of_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who decodes nothing has no time per token that could be shorter."""
    monkeypatch.setattr(report, "fewest_experts", lambda held: SimpleNamespace(offload=None))
    monkeypatch.setattr(report, "replace", lambda one, deployment: SimpleNamespace(tpot=0.02))
    one: Any = SimpleNamespace(footprint=None, load=SimpleNamespace(output=1.0))
    assert report._fewer_note(one) == ""
    one.load.output = 2.0
    assert report._fewer_note(one).endswith("a TPOT of 20.00 ms")


def footprint(**more: Any) -> Any:
    """16 GB of weights and 4 of cache of 32 that may be used."""
    found: dict[str, Any] = {
        "weights": 16e9, "adapters": 0.0, "draft_weights": 0.0, "kv_per_token": 131072.0, "state_per_sequence": 0.0,
        "state": 4e9, "state_allocated": 5e9, "activations": 2e9, "reserve": 1e9, "total": 23e9, "usable": 32e9,
        "fits_here": True, "host": None, "streamed": 0.0, "max_batch": lambda: 1234.0, "max_context": lambda: 65536.0,
        "deployment": SimpleNamespace(
            model=SimpleNamespace(encodes=False), hardware=SimpleNamespace(name="a host"), offload=None
        ),
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def cost(name: str, total: float, band: Any = None, bound: str = "memory") -> Any:
    return SimpleNamespace(op=SimpleNamespace(name=name, kernel=f"{name} kernel"), total=total, band=band, bound=bound)


def phase(**more: Any) -> Any:
    """10 ms: 6 of attention, 4 of a matrix product."""
    found: dict[str, Any] = {
        "deployment": SimpleNamespace(math="bf16", ridge=295.25, offload=None), "flop": 2e12, "bytes": 1e10,
        "wire": 0.0, "intensity": 200.0, "time": 0.01, "bound": "memory", "mfu": 0.25, "mbu": 0.5, "band": None,
        "costs": [cost("attention", 0.006), cost("matmul", 0.004, bound="math")],
        "by_operator": lambda: {"attention": 0.006, "matmul": 0.004}, "places": {"GPU": 0.006, "host": 0.002},
        "by_basis": lambda: {"measured": 0.75, "carried": 0.25},
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def first(**more: Any) -> Any:
    """100 ms: 80 alone, 15 of the front end, and 5 of which 4 are seen late and 1 is a launch."""
    found = {
        "at_server": 0.1, "alone": 0.08, "latency": 0.0, "front_end": 0.015, "launches": 0.001, "seen_late": 0.004,
        "server": 0.02, "parts": lambda: "parts",
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def deployment(encodes: bool = False, replicas: int = 1, **more: Any) -> Any:
    constants = {
        "name": "h100",
        "constants": {"a": 1},
        "described": "h100",
        "overlay": None,
        "anchor": None,
        "note": "",
        "fused": False,
    }
    model = {"encodes": encodes, "name": "m", "sequence": (), "parameters": {"total": 8e9}}
    found: dict[str, Any] = {
        "model": SimpleNamespace(**model),
        "parallel": SimpleNamespace(replicas=replicas, ep=1, redundant=0, ranks=2), "describe": lambda: "m on h100",
        "engine": SimpleNamespace(
            name="vllm", describe=lambda: "vllm 0.33", serving=SimpleNamespace(source=""),
            defaults=SimpleNamespace(serving=None),
        ),
        "calibration": SimpleNamespace(**constants | more.pop("calibration", {})),
        "hardware": SimpleNamespace(name="h100", confidence="high", size_lines=["a size"]), "streamed": None,
        "offload": None, "media": None, "lora": None, "model_lines": ["counted"], "ridge": 295.25,
        "routing": SimpleNamespace(skew_of=lambda skew: 0.5 if skew is None else skew, usual=True, asked=None),
    }  # fmt: skip
    return SimpleNamespace(**found | more)


LOAD: dict[str, Any] = {"batch": 8.0, "prompt": 1000.0, "output": 101.0}


def estimate(kind: Any = SimpleNamespace, load: dict[str, Any] | None = None, **more: Any) -> Any:
    """TTFT 200 ms, TPOT 20 ms: 2.2 s. The band of TTFT is a fifth down and half up."""
    bands = more.pop("bands", {"ttft": (0.8, 1.5), "tpot": None, "e2el": (0.5, 2.0)})
    found: dict[str, Any] = {
        "load": StaticLoad(**LOAD | (load or {})), "deployment": deployment(), "ttft": 0.2, "tpot": 0.02, "e2el": 2.2,
        "tpot_start": 0.019, "tpot_end": 0.021, "request_rate": 3.625, "output_rate": 1234.56, "total_rate": 4321.0,
        "answer_ttft": 0.5, "footprint": footprint(), "server": first(), "prefill": phase(), "decode": phase(),
        "basis": "measured", "rests_on": {}, "forms": None, "band": bands.get,
    }  # fmt: skip
    return kind(**found | more)


def rows(of: Any) -> dict[str, str]:
    return dict(map(tuple, labelled_texts(report._latency_figures(of))))  # type: ignore[arg-type]


def test_latencies_as_people_see_them() -> None:
    """A user has 1/0.02 = 50 tokens/s."""
    assert rows(estimate()) == {
        "TTFT of the batch alone (prefill)": "200.0 ms", "TTFT at the server, one request, idle": "100.0 ms",
        "time per output token (TPOT), mean": "20.00 ms", "  first step, last step": "19.00 ms, 21.00 ms",
        "total latency, TTFT + (output - 1) TPOT": "2.200 s", "output tokens per second": "1,234.6",
        "input and output tokens per second": "4,321.0",
        "output tokens per second per user, after the first": "50.0",
    }  # fmt: skip
    alone = rows(estimate(load={"batch": 1.0}, server=None))
    assert not any("at the server" in label for label in alone)
    assert "TTFT at the server, idle" in rows(estimate(load={"batch": 1.0}))
    single = rows(estimate(load={"output": 1.0}))
    assert not {"time per output token (TPOT), mean", "  first step, last step"} & single.keys()
    assert single["output tokens per second per user, after the first"] == "-"
    assert rows(estimate(load={"output": 2.0}))["time per output token (TPOT), mean"] == "20.00 ms"
    assert "output tokens per second, all samples" in rows(estimate(load={"samples": 2.0}))
    several = rows(estimate(load={"samples": 4.0}))
    assert (several["output tokens per second, all samples"], several["requests per second"]) == ("1,234.6", "3.62")
    assert several["output tokens per second per sample, after the first"] == "50.0"
    thought = rows(estimate(load={"before": 1500.0, "output": 2000.0}))
    assert thought["TTFT of the answer alone, after 1,500 tokens"] == "500.0 ms"


def test_latencies_of_a_pass() -> None:
    of = estimate(deployment=deployment(encodes=True))
    assert rows(of) == {
        "latency of the batch alone (one pass)": "200.0 ms", "latency at the server, one request, idle": "100.0 ms",
        "requests per second": "3.6", "tokens read per second": "4,321.0",
    }  # fmt: skip
    assert record(report._latency_figures(of))["output_tokens_per_s"] is None


def test_latencies_for_programs() -> None:
    found = report._latency_record(estimate())
    assert found == {
        "ttft_s": 0.2, "ttft_low_s": pytest.approx(0.16), "ttft_high_s": pytest.approx(0.3), "ttft_at_server_s": 0.1,
        "ttft_at_server_low_s": pytest.approx(0.08), "ttft_at_server_high_s": pytest.approx(0.15),
        "ttft_at_server_parts_s": "parts", "tpot_s": 0.02, "tpot_low_s": None, "tpot_high_s": None,
        "tpot_start_s": 0.019, "tpot_end_s": 0.021, "e2el_s": 2.2, "e2el_low_s": 1.1, "e2el_high_s": 4.4,
        "answer_ttft_s": None, "output_tokens_per_s": 1234.56, "total_tokens_per_s": 4321.0, "requests_per_s": 3.625,
        "max_batch": 1234, "max_context_tokens": 65536.0,
    }  # fmt: skip
    single = report._latency_record(estimate(load={"output": 1.0}, bands={"tpot": (0.5, 2.0)}, server=None))
    assert single["tpot_s"] is single["tpot_start_s"] is single["tpot_low_s"] is single["ttft_low_s"] is None
    assert single["ttft_at_server_s"] is single["ttft_at_server_low_s"] is single["ttft_at_server_parts_s"] is None
    bare = report.server_record(estimate(bands={}))
    assert (bare["ttft_at_server_s"], bare["ttft_at_server_low_s"]) == (0.1, None)


def served(length: int = 3) -> Any:
    """Without its drafts it takes 40 ms a token; 99 of it fit."""
    speculation = SimpleNamespace(length=length, width=length + 1)
    plain = footprint(max_batch=lambda: 99.0, max_context=lambda: 1024.0)
    return estimate(
        Served, techniques=SimpleNamespace(speculation=speculation, describe=lambda: "3 drafts"),
        without=estimate(tpot=0.04, footprint=plain),
    )  # fmt: skip


def test_what_techniques_change_stands_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    of = served()
    table = report._latency(of)
    assert table.title == "m on h100: batch 8, 1000 tokens in, 101 out; 3 drafts"
    assert list(table.columns) == ["latency and throughput", "value", "without"]
    assert ["time per output token (TPOT), mean", "20.00 ms", "40.00 ms"] in table.rows
    assert list(report._memory(of).rows)[-2:] == [
        ["largest batch at this context", "1,234", "without: 99"],
        ["longest context at this batch", "65,536 tokens", "without: 1,024"],
    ]
    assert report._without(of)["tpot_s"] == 0.04 and set(report._without(of)) == set(report._HEADLINE)
    assert "one verification, without the drafts, at the mean context" in report._roofline(of).title
    assert "decode: one step at the mean context" in report._roofline(served(length=0)).title
    assert report._refusal(of) == "width 4" and report._refusal(estimate()) == ""
    assert report._notes(of)[0] == "warning: width 4"
    monkeypatch.setattr(report, "deployment_record", lambda deployment: {"model": "m"})
    whole = report.estimate_record(of)
    assert (whole["rejected_because"], whole["without"]["max_batch"]) == ("width 4", 99)


def test_titles_of_a_screen() -> None:
    assert report._latency(estimate()).title == "m on h100: batch 8, 1000 tokens in, 101 out"
    assert list(report._latency(estimate()).columns) == ["latency and throughput", "value"]
    many = estimate(deployment=deployment(replicas=2), load={"kv_cache": False})
    assert report._latency(many).title == "m on h100: batch 8, 2 replicas, 1000 tokens in, 101 out, no KV cache"
    passes = estimate(deployment=deployment(encodes=True))
    assert report._latency(passes).title == "m on h100: batch 8, 1000 tokens in"
    assert report._roofline(passes).title == "roofline (the pass of the whole batch)"
    assert list(report._roofline(passes).columns) == ["", "prefill"]
    assert report._memory(estimate()).title == "memory of one device (vllm 0.33 defaults)"
    assert list(report._memory(estimate(load={"samples": 2.0})).rows)[-2][0] == (
        "largest batch at this context, in requests"
    )


def test_memory_of_a_device() -> None:
    of = footprint(adapters=1e9, draft_weights=2e9)
    assert report._memory_rows(of) == [
        ["weights", "16.00 GB", "50.0%"], ["slots of LoRA adapters", "1.000 GB", "3.1%"],
        ["the draft's weights", "2.000 GB", "6.2%"], ["KV cache and state", "4.000 GB", "12.5%"],
        ["activations", "2.000 GB", "6.2%"], ["runtime reserve", "1.000 GB", "3.1%"], ["total", "23.00 GB", "71.9%"],
        ["usable", "32.00 GB", "100.0%"],
    ]  # fmt: skip
    plain = [row[0] for row in report._memory_rows(footprint())]
    assert not {"slots of LoRA adapters", "the draft's weights"} & set(plain)
    encoder = footprint(deployment=SimpleNamespace(model=SimpleNamespace(encodes=True)))
    assert "KV cache and state" not in [row[0] for row in report._memory_rows(encoder)]
    assert report.memory_record(estimate())["fits"] is True and "host" not in report.memory_record(estimate())


def test_memory_of_a_host() -> None:
    """Weights that are streamed fit where they are no more than may be used."""
    for held, fits in ((64e9, True), (64.1e9, False)):
        streamed = SimpleNamespace(host=SimpleNamespace(usable=64e9, name="a host"))
        of = estimate(deployment=deployment(streamed=streamed), footprint=footprint(streamed=held))
        host = report.memory_record(of)["host"]
        assert host == {"weights_bytes": held, "usable_bytes": 64e9, "fits": fits}
    (table,) = report._host(of)
    assert table.title == "memory of the host, a host"
    assert list(table.rows) == [["weights of all devices", "64.10 GB"], ["usable", "64.00 GB"]]
    beside = estimate(footprint=footprint(host=footprint(weights=8e9)))
    assert report.memory_record(beside)["host"]["weights_bytes"] == 8e9
    memory, places = report._host(beside)
    assert next(iter(memory.rows)) == ["weights", "8.000 GB", "25.0%"]
    assert list(places.rows) == [
        ["GPU", "6.000 ms", "75.0%", "6.000 ms", "75.0%"], ["host", "2.000 ms", "25.0%", "2.000 ms", "25.0%"]
    ]  # fmt: skip
    assert report._host(estimate()) == []


def test_a_step_under_its_roof() -> None:
    assert list(report._roofline(estimate(decode=phase(mfu=0.01))).rows) == [
        ["FLOP", "2.000 TFLOP", "2.000 TFLOP"], ["bytes moved", "10.00 GB", "10.00 GB"],
        ["arithmetic intensity", "200.0 FLOP/B", "200.0 FLOP/B"],
        ["ridge point (bf16)", "295.2 FLOP/B", "295.2 FLOP/B"],
        ["bound by", report.BOUND_NAMES["memory"], report.BOUND_NAMES["memory"]],
        ["MFU, MBU", "25.0%, 50.0%", "1.0%, 50.0%"],
    ]  # fmt: skip
    found = report.phase_record(phase())
    assert (found["time_s"], found["operators_s"]["matmul"], "places_s" in found) == (0.01, 0.004, False)
    apart = phase(deployment=SimpleNamespace(math="bf16", ridge=1.0, offload="host"))
    assert report.phase_record(apart)["places_s"] == {"GPU": 0.006, "host": 0.002}


def test_operators_of_both_phases() -> None:
    """What a phase does not run has no time in it; the rest of a step is overhead."""
    first_only = phase(by_operator=lambda: {"embedding": 0.004, "attention": 0.016})
    last = phase(by_operator=lambda: {"attention": 0.006, "rest": 0.002, "matmul": 0.0})
    table = report._operators(estimate(prefill=first_only, decode=last))
    assert list(table.columns) == ["operator", "prefill", "share", "decode", "share ", "decode bound"]
    assert list(table.rows) == [
        ["embedding", "4.000 ms", "20.0%", "-", "-", "-"],
        ["attention", "16.00 ms", "80.0%", "6.000 ms", "75.0%", report.BOUND_NAMES["memory"]],
        ["rest", "-", "-", "2.000 ms", "25.0%", "overhead"],
        ["matmul", "-", "-", "0 s", "0.0%", report.BOUND_NAMES["math"]],
    ]
    empty = phase(by_operator=lambda: {"attention": 0.0})
    passes = report._operators(estimate(deployment=deployment(encodes=True), prefill=empty))
    assert list(passes.columns) == ["operator", "prefill", "share", "bound"]
    assert list(passes.rows) == [["attention", "0 s", "0.0%", report.BOUND_NAMES["memory"]]]


def test_an_estimate_for_programs() -> None:
    of = estimate(load={"before": 5.0, "media_tokens": 64.0})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "deployment_record", lambda deployment: {"model": "m"})
        whole = report.estimate_record(of)
        encoder = report.estimate_record(estimate(deployment=deployment(encodes=True)))
        blocks = estimate(Diffused, generation=GENERATION, blocks=4, step_time=0.01, block_time=0.08)
        assert report.estimate_record(blocks)["diffusion"]["block_s"] == 0.08
    assert whole["load"] == {
        "batch": 8, "samples": 1, "prompt_tokens": 1000, "media_tokens": 64, "output_tokens": 101,
        "before_answer_tokens": 5, "kv_cache": True, "all_logits": of.load.all_logits,
    }  # fmt: skip
    assert whole["basis_shares"] == {name: {"measured": 0.75, "carried": 0.25} for name in ("prefill", "decode")}
    assert (whole["ridge_flop_per_byte"], whole["rejected_because"], whole["anchor"]) == (295.25, None, None)
    assert not {"diffusion", "without"} & whole.keys() and whole["decode"]["flop"] == 2e12
    assert (encoder["load"]["output_tokens"], encoder["decode"], list(encoder["basis_shares"])) == (
        0,
        None,
        ["prefill"],
    )


GENERATION = SimpleNamespace(block=32, steps=8, block_cache=True)


def test_blocks_of_a_diffusion_model() -> None:
    of = estimate(Diffused, generation=GENERATION, blocks=4, step_time=0.01, block_time=0.08)
    assert labelled_texts(report._blocks(of)) == [
        ["denoising pass, mean", "10.00 ms"], ["block of 32 tokens in 8", "80.00 ms"]
    ]  # fmt: skip
    assert record(report._blocks(of)) == {
        "block_tokens": 32, "steps_per_block": 8, "block_cache": True, "blocks": 4, "denoising_step_s": 0.01,
        "block_s": 0.08,
    }  # fmt: skip
    assert rows(of)["denoising pass, mean"] == "10.00 ms"


# --- sentences


def test_how_far_off_an_estimate_is() -> None:
    lie = "error: 80 % of held-out measurements lie within"
    assert report.band_note(estimate()) == f"{lie} TTFT at the server 80.00 ms to 150.0 ms (docs/accuracy.md)"
    both = estimate(bands={"ttft": (0.8, 1.5), "tpot": (0.5, 2.0)}, server=None)
    assert report.band_note(both) == f"{lie} TTFT 160.0 ms to 300.0 ms, TPOT 10.00 ms to 40.00 ms (docs/accuracy.md)"
    single = estimate(bands={"ttft": (0.8, 1.5), "tpot": (0.5, 2.0)}, load={"output": 1.0})
    assert "TPOT" not in report.band_note(single)
    runs = deployment(calibration={"anchor": "runs"})
    assert report.band_note(estimate(deployment=runs)) == (
        "error: 80 % of unseen runs of a system measured like this lie within TTFT at the server 80.00 ms to 150.0 ms "
        "(docs/anchors.md)"
    )
    passes = estimate(deployment=deployment(encodes=True), server=None)
    assert report.band_note(passes).startswith(f"{lie} latency 160.0 ms")
    assert report.within_line(deployment(), [("a", 1.0, None)]) == ""


def test_errors_that_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """6 of 10 ms are of kernels without a band."""
    some = phase(costs=[cost("attention", 0.006), cost("matmul", 0.004, band=(0.5, 2.0))])
    known = phase(band=(0.5, 1.25))
    assert report.band_note(estimate(bands={}, prefill=some, decode=known)) == (
        "error: unknown; the error of attention kernel, 60% of prefill, is not known; kernels of decode x 0.50 to x "
        "1.25, but the error of the rest of a step is not known"
    )
    single = estimate(bands={}, prefill=known, load={"output": 1.0})
    assert "decode" not in report.band_note(single)
    several = phase(costs=[cost("b", np.array([1.0, 2.0])), cost("a", 3.0), cost("b", 0.0)])
    assert report._why_unknown("x", several) == "the error of a kernel, b kernel, 100% of x, is not known"
    ideal = estimate(bands={}, basis="roofline")
    assert report.band_note(ideal) == "error: unknown; no measurement supports these times"
    monkeypatch.setattr(report, "lacking", lambda deployment, forms: ["rows"])
    monkeypatch.setattr(report, "too_few", lambda missing: f"too few {missing[0]}")
    assert report.band_note(estimate(bands={})) == "error: unknown; too few rows (docs/accuracy.md)"


def test_what_times_rest_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert report.basis_note(estimate(deployment=deployment(calibration={"constants": {}}))) == report.IDEAL_NOTE
    shares = "time: carried 25%, measured 75%"
    assert report.basis_note(estimate()) == f"basis: measured, constants h100 (decode {shares})"
    assert report.basis_note(estimate(deployment=deployment(encodes=True))).endswith(f"h100 ({shares})")
    carried = deployment(calibration={"name": "transferred"})
    assert report.basis_note(estimate(deployment=carried)) == (
        "basis: measured: h100 was not measured, its constants are other GPUs'"
    )
    own = deployment(calibration={"overlay": SimpleNamespace(file="own.yaml")})
    assert report.basis_note(estimate(deployment=own)).endswith(f"({'decode '}{shares}; 25% by own.yaml)")
    calls: list[Any] = []
    monkeypatch.setattr(
        report, "correction", lambda *words: calls.append(words[1:]) or (np.array([1.0, 1.5]), np.array([0.5]))
    )
    runs = estimate(deployment=deployment(calibration={"anchor": SimpleNamespace(rows=[1, 2, 3])}))
    assert report._correction(runs) == {"runs": 3, "ttft": 1.25, "tpot": 0.5} and calls == [(8.0, 1000.0, 101.0)]
    assert report.basis_note(runs).endswith("; anchored to 3 measured runs: at this load TTFT x 1.250, TPOT x 0.500")


def test_what_the_time_at_the_server_is_made_of() -> None:
    """What is less than can be seen is not named; a batch has the time of one request."""
    assert report.server_note(estimate()) == (
        "TTFT at the server of one request = alone 80.00 ms + front end 15.00 ms + launches 1.000 ms + seen late "
        "4.000 ms (docs/glossary.md)"
    )
    assert report.server_note(estimate(server=first(launches=0.1 * report.UNSEEN), load={"batch": 1.0})) == (
        "TTFT at the server = alone 80.00 ms + front end 15.00 ms + seen late 4.000 ms (docs/glossary.md)"
    )
    unknown = report.server_note(estimate(server=None))
    assert unknown.startswith("at the server: unknown") and unknown.endswith("--engine vllm")
    named = deployment()
    named.engine.serving.source = "a source"
    assert report.server_note(estimate(server=None, deployment=named)) == ""
    assert report.server_note(estimate(server=first(server=0.0))) == "at the server: nothing is added (ideal)"
    named.engine.defaults.serving = "constants"
    assert report.server_note(estimate(server=first(server=0.0), deployment=named)) == (
        "at the server: nothing is added (its front end was not measured)"
    )
    assert report.idle_note(estimate()).startswith("on an idle server, 1,000 tokens in 100.0 ms: TTFT at the server")
    assert report.idle_note(estimate(server=None)) == report.idle_note(estimate(server=first(server=0.0))) == ""


def test_how_popular_experts_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The busiest of 4 groups has 9 rows of 8 sequences x 2 experts / 4 = 4: 2.25 times."""
    calls: list[Any] = []

    class Layer(SimpleNamespace):
        pass

    monkeypatch.setattr(report, "MoeLayer", Layer)
    monkeypatch.setattr(
        report, "busiest", lambda *words: calls.append(words) or SimpleNamespace(rows=lambda tokens: tokens + 1)
    )

    def note(skew: float | None = None, ep: int = 4, asked: Any = None, usual: bool = True, fused: bool = False) -> str:
        of = deployment(calibration={"fused": fused})
        layer = Layer(skew=skew, experts=64, top_k=2)
        of.model.sequence = (SimpleNamespace(parts=["x"]), SimpleNamespace(parts=["y", layer, Layer()]))
        of.parallel.ep, of.routing.asked, of.routing.usual = ep, asked, usual
        return report.routing_note(estimate(deployment=of))

    start = "routing: skew 0.5 (configs/routing.yaml)"
    assert note() == f"{start}; the busiest of 4 expert groups has 2.25 times the mean rows in a decode step"
    assert calls == [(64, 2, 4, 0, 0.5)]
    assert note(ep=1) == note(fused=True) == start
    assert note(usual=False, ep=1) == "routing: skew 0.5 (uniform)"
    assert note(skew=0.75, ep=1) == "routing: skew 0.75 (measured)"
    assert note(skew=0.75, ep=1, asked=1.0) == "routing: skew 0.75 (--expert-skew)"
    assert report.routing_note(estimate()) == ""


def test_sentences_below_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty ones are left out."""
    for name in ("server_note", "basis_note", "band_note", "routing_note", "lora_note"):
        monkeypatch.setattr(report, name, lambda of, name=name: "" if name == "routing_note" else name)
    of = estimate(load={"samples": 4.0}, deployment=deployment(media=SimpleNamespace(describe=lambda: "4 images")))
    assert report._notes(of) == [
        "server_note", "basis_note", "media: a request carries 4 images", "lora_note",
        "samples: 4 answers per prompt; the prompt is computed and kept once, and each answer reads it in every step "
        "(no cascade attention, docs/sampling.md)",
        "counted", "band_note", "hardware: h100, confidence high", "a size",
    ]  # fmt: skip
    assert len(report._notes(estimate())) == 7


def test_what_a_host_does() -> None:
    each = "; each replica has its own host"
    link = SimpleNamespace(name="pcie5", bandwidth=64e9)
    streamed = SimpleNamespace(
        host=SimpleNamespace(name="a host"),
        over=lambda hardware, ranks: SimpleNamespace(to_host=SimpleNamespace(name="pcie5", bandwidth=32e9)),
    )
    note = "host: a host, weights over pcie5 at 32.00 GB/s per device"
    assert report._host_note(deployment(streamed=streamed)) == note
    assert report._host_note(deployment(streamed=streamed, replicas=2)) == note + each
    for constants, said in (({}, "none, its roofline"), ({"a": 1}, "a table")):
        host = SimpleNamespace(
            calibration=SimpleNamespace(constants=constants, described="a table"),
            hardware=SimpleNamespace(name="xeon", confidence="low"),
        )
        offload = SimpleNamespace(host=host, link=link)
        assert report._host_note(deployment(offload=offload)) == (
            f"host: xeon, confidence low, constants {said}; over pcie5 of 64.00 GB/s"
        )
        assert report._host_note(deployment(offload=offload, replicas=2)).endswith(each)
    assert report._host_note(deployment()) == ""


def test_what_pruning_saves() -> None:
    small = estimate(footprint=footprint(weights=8e9, kv_per_token=65536.0), ttft=0.15, decode=phase(time=0.004))
    small.deployment.model.parameters = {"total": 4e9}
    table = report.pruning_table(small, estimate())
    assert table.title == "pruning m"
    assert list(table.rows) == [
        ["parameters", "8,000,000,000", "4,000,000,000", "0.500"],
        ["weights per device", "16.00 GB", "8.000 GB", "0.500"],
        ["KV cache per token", "131.1 kB", "65.54 kB", "0.500"],
        ["prefill FLOP", "2.000 TFLOP", "2.000 TFLOP", "1.000"],
        ["TTFT of the batch alone", "200.0 ms", "150.0 ms", "0.750"],
        ["decode step", "10.00 ms", "4.000 ms", "0.400"],
    ]
    encoder = estimate(deployment=deployment(encodes=True))
    labels = [row[0] for row in report.pruning_table(encoder, encoder).rows]
    assert labels == ["parameters", "weights per device", "prefill FLOP", "latency of the batch alone"]
