"""Joules, and what serving techniques do, as people and programs read them: of figures that are written down here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferplan.errors import UsageError
from inferplan.figures import labelled_texts, record
from inferplan.reports import energy as report
from inferplan.reports import techniques
from inferplan.table import Report, Table

CARBON = SimpleNamespace(grams=400.0, source="a grid")


def asked(carbon: Any = CARBON) -> Any:
    """A facility whose meter shows twice the joules of the GPUs."""
    return SimpleNamespace(
        scope="facility", pue=1.25, host_watts=200.0, carbon=carbon, whole=lambda joules, devices, seconds: 2 * joules
    )


def static(decode: bool = True, tokens: bool = True, carbon: Any = CARBON) -> Any:
    """36 J a request, 0.072 J an output token: 72 kJ a million, 0.02 kWh, 8 g."""

    def phase(joules: float, on: float, watts: float) -> Any:
        return SimpleNamespace(joules=joules, on=on, watts=watts)

    found = SimpleNamespace(
        prefill=phase(100.0, 25.0, 650.4), decode=phase(10.0, 4.0, 1300.6) if decode else None, asked=asked(carbon),
        per_token=0.05 if tokens else None, per_output_token=0.072 if tokens else None, per_request=36.0,
        idle_share=0.375, whole=lambda phase: phase.joules * 1.5,
    )  # fmt: skip
    found.grams = lambda joules: None if carbon is None else joules / 3.6e6 * carbon.grams
    return found


def test_joules_of_a_batch() -> None:
    assert list(report.energy_table(static()).rows) == [
        ["prompts of the batch", "150.0 J"], ["  watts per GPU", "650 W"],
        ["per output token, decode only", "50.00 mJ"], ["  watts per GPU", "1,301 W"], ["a request", "36.00 J"],
        ["per output token, counting input as free", "72.00 mJ"], ["per million output tokens", "0.020 kWh"],
        ["  CO2", "8.0 g"], ["CO2 per request", "4 mg"], ["share of the GPUs' energy for being on", "38%"],
    ]  # fmt: skip
    found = report.energy_record(static())
    assert found.pop("request_g") == pytest.approx(0.004)
    assert found.pop("g_per_million_output_tokens") == pytest.approx(8.0)
    assert found == {
        "scope": "facility", "pue": 1.25, "host_w_per_gpu": 200.0, "carbon_g_per_kwh": 400.0, "carbon_source": "a grid",
        "prefill": {"joules": 150.0, "gpu_joules": 100.0, "idle_joules": 25.0, "gpu_w": 650.4},
        "decode_step": {"joules": 15.0, "gpu_joules": 10.0, "idle_joules": 4.0, "gpu_w": 1300.6},
        "decode_j_per_output_token": 0.05, "request_j": 36.0, "j_per_output_token": 0.072, "idle_share": 0.375,
    }  # fmt: skip


def test_joules_without_decodes_tokens_or_a_grid() -> None:
    rest = [["a request", "36.00 J"], ["share of the GPUs' energy for being on", "38%"]]
    first = [["prompts of the batch", "150.0 J"], ["  watts per GPU", "650 W"]]
    bare = static(decode=False, tokens=False, carbon=None)
    assert list(report.energy_table(bare).rows) == [*first, *rest]
    found = report.energy_record(bare)
    assert found["decode_step"] is found["carbon_source"] is found["carbon_g_per_kwh"] is found["request_g"] is None
    assert found["g_per_million_output_tokens"] is None
    labels = [row[0] for row in report.energy_table(static(decode=False)).rows]
    assert "per output token, decode only" not in labels and labels.count("  watts per GPU") == 1
    labels = [row[0] for row in report.energy_table(static(tokens=False)).rows]
    assert labels.count("  watts per GPU") == 1 and "  CO2" not in labels and "CO2 per request" in labels
    dark = [row[0] for row in report.energy_table(static(carbon=None)).rows]
    assert "  CO2" not in dark and "per million output tokens" in dark


def test_what_joules_rest_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lowest clock of any operator, anywhere in its array."""
    monkeypatch.setattr(report, "power_shares", lambda hardware: SimpleNamespace(error="are off by a tenth"))
    monkeypatch.setattr(report, "quickest", lambda estimate: (0.5, 0.25))

    def phase(*clocks: Any) -> Any:
        return SimpleNamespace(costs=[SimpleNamespace(clock=np.array(one)) for one in clocks])

    def notes(cap: Any, decode: bool = True, carbon: Any = None) -> list[str]:
        deployment = SimpleNamespace(hardware=None, cap=cap)
        estimate = SimpleNamespace(
            deployment=deployment, prefill=phase([1.0, 0.75], [0.9, 0.8]), decode=phase([0.95], [1.0])
        )
        return report.energy_notes(SimpleNamespace(estimate=estimate, decode=decode or None, asked=asked(carbon)))  # type: ignore[arg-type]

    first = "energy: shares of TDP are off by a tenth (docs/power.md)"
    assert notes(None) == [first]
    assert notes(SimpleNamespace(holds=False, watts=500.0)) == [first]
    holds = SimpleNamespace(holds=True, watts=500.0)
    assert notes(holds, carbon=CARBON)[1:] == [
        "CO2: 400 g/kWh, a grid; operation only, manufacture not counted",
        "cap of 500 W: lowest clock 75% in the prefill, 95% in a decode step; by the law of voltage TTFT is "
        f"250.0 ms to 500.0 ms; {report.UNMEASURED}",
    ]
    assert "75% in the prefill; by the law" in notes(holds, decode=False)[1]


def run(devices: int = 2, **more: Any) -> Any:
    """1,000 J of the GPUs in 10 s, 2,000 by the meter."""
    found = {
        "seconds": 10.0, "joules": 1000.0, "devices": devices, "prompts": 300.0, "decodes": 600.0, "idle": 100.0,
        "on": 250.0, "watts": 50.4, "highest": 1234.5,
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def result(output: float = 20.0, requests: float = 0.5) -> Any:
    """200 tokens and 5 requests."""
    return SimpleNamespace(output_rate=output, request_rate=requests, duration=10.0)


def test_joules_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 J are 10 a token, 400 a request; at 400 g a kWh 0.2222 g."""
    monkeypatch.setattr(report, "power_shares", lambda hardware: SimpleNamespace(error="are off"))
    monkeypatch.setattr(report, "run_energy", lambda deployment, result, options: run())
    before = Report(record={"conditions": {"rests_on": {"a": "b"}, "c": 1}}, tables=["table"], notes=["note"])  # type: ignore[list-item]
    whole = report.with_run_energy(before, (SimpleNamespace(hardware=None), "options"), result(), asked())  # type: ignore[arg-type]
    assert whole.tables[0] == "table" and [list(row) for row in whole.tables[1].rows] == [
        ["prompts", "300.0 J", "30%"], ["decoding", "600.0 J", "60%"], ["no step: idle", "100.0 J", "10%"],
        ["all of 2 GPUs", "1.000 kJ", "100%"], ["of which for being on", "250.0 J", "25%"],
        ["per GPU, mean", "50 W", ""], ["per GPU, in the step that draws most", "1,234 W", ""],
        ["per output token, facility", "10.00 J", ""], ["per request, facility", "400.0 J", ""],
        ["CO2 per million output tokens", "1,111.1 g", ""],
    ]  # fmt: skip
    assert whole.notes == [
        "note", "energy: shares of TDP are off (docs/power.md)",
        "CO2: 400 g/kWh, a grid; operation only, manufacture not counted",
    ]  # fmt: skip
    assert whole.record["conditions"] == {"rests_on": {"a": "b", "energy": report.WATTS}, "c": 1}
    found = whole.record["energy"]
    assert found["request_g"] == pytest.approx(2000 / 3.6e6 * 400 / 5) and found["w_mean"] == 200.0
    assert (found["joules"], found["gpu_joules"], found["idle_share"], found["gpus"]) == (2000.0, 1000.0, 0.25, 2)
    assert found["g_per_million_output_tokens"] == pytest.approx(2000 / 3.6e6 * 400 / 200 * 1e6)
    monkeypatch.setattr(report, "run_energy", lambda deployment, result, options: None)
    with pytest.raises(UsageError):
        report.with_run_energy(before, (SimpleNamespace(hardware=None), "options"), result(), asked())  # type: ignore[arg-type]


def test_a_run_without_tokens_requests_or_a_grid() -> None:
    assert report._all_of(run(devices=1)) == "all of 1 GPU"
    idle = record(report._run(run(), asked(), result(output=0.0, requests=0.0)))
    assert idle["j_per_output_token"] is idle["request_j"] is idle["request_g"] is None
    assert idle["g_per_million_output_tokens"] is None
    reads = report._run(run(), asked(), result(output=0.0))
    assert record(reads)["request_j"] == 400.0 and record(reads)["request_g"] is not None
    assert labelled_texts(reads)[-1] == ["per request, facility", "400.0 J"]
    assert labelled_texts(report._run(run(), asked(), result(output=0.0, requests=0.0)))[-1][0].startswith(
        "per GPU, in"
    )
    dark = report._run(run(), asked(None), result())
    assert [label for label, _ in labelled_texts(dark)][-1] == "per request, facility"
    assert record(dark)["request_g"] is record(dark)["g_per_million_output_tokens"] is None


# --- techniques


def served(**more: Any) -> Any:
    """Batches of 8 and 16; the larger figure is that of the worst."""
    used = {"speculation": SimpleNamespace(length=0), "hit_rate": 0.0, "chunk": None, "host": None}
    load = SimpleNamespace(batch=np.array([8.0, 16.0]), prompt=np.array([1000.0, 500.0]), output=np.array([101.0, 2.0]))
    return SimpleNamespace(
        techniques=SimpleNamespace(**used | more), load=load, deployment="deployment", ttft=np.array([0.5, 0.25]),
        tpot=np.array([0.02, 0.01]), cached=np.array([512.0, 256.0]), host_loads=np.array([0.125, 0.0625]),
    )  # fmt: skip


def test_no_technique_says_nothing() -> None:
    records, (table,) = techniques.technique_records(served())
    assert records == {} and list(table.rows) == []


def drafts(losing: int | None = 1234, **more: Any) -> Any:
    found = {"length": 3, "branches": 1, "draft": None, "acceptance": 0.8, "accepted": "80%", "basis": "given"}
    return SimpleNamespace(**found | more)


def test_what_drafts_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest context in the middle of the decodes: 1,000 + 99/2."""
    calls: list[Any] = []
    gain = SimpleNamespace(
        verify=np.array([0.02, 0.03]), draft=np.array([0.005, 0.004]), speedup=np.array([1.5, 2.125]), tokens=2.5
    )
    monkeypatch.setattr(techniques, "speculate", lambda *words: calls.append(words) or gain)
    monkeypatch.setattr(techniques, "break_even", lambda *words: calls.append(words) or 1234)
    figures = techniques._speculation(served(speculation=drafts(basis="published")))
    assert calls[0][3] == calls[1][2] == 1049.5
    assert labelled_texts(figures) == [
        ["drafts: tokens per verification", "2.500 (80%)"], ["  acceptance of drafts", "published"],
        ["  drafts and verification", "5.000 ms + 30.00 ms, 2.12 times as fast"],
        ["  batch from which drafts are slower", "1,234"],
    ]  # fmt: skip
    assert record(figures) == {
        "draft": None, "length": 3, "branches": 1, "acceptance": 0.8, "acceptance_basis": "published",
        "tokens_per_step": 2.5, "tpot_s": 0.02, "verification_s": 0.03, "drafts_s": 0.005, "speedup": 2.125,
        "loses_from_batch": 1234,
    }  # fmt: skip
    monkeypatch.setattr(techniques, "break_even", lambda *words: None)
    named = SimpleNamespace(model=SimpleNamespace(name="small"))
    for basis in ("given", ""):
        figures = techniques._speculation(served(speculation=drafts(basis=basis, draft=named)))
        assert [label for label, _ in labelled_texts(figures)][1] == "  drafts and verification"
        assert labelled_texts(figures)[-1][1] == "none up to 4,096" and record(figures)["draft"] == "small"
    short = served(speculation=drafts())
    short.load.output = np.array([1.0, 1.0])
    calls.clear()
    techniques._speculation(short)
    assert calls[0][3] == 1000.0


def test_what_found_prefixes_chunks_and_a_host_do(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    cut = SimpleNamespace(total=0.75, steps=4, longest_gap=0.25, cost=1.5)
    monkeypatch.setattr(techniques, "prefix_gain", lambda *words: np.array([1.25, 2.5]))
    monkeypatch.setattr(techniques, "reload_gain", lambda *words: np.array([3.0, 4.5]))
    monkeypatch.setattr(techniques, "chunked_prefill", lambda *words: calls.append(words) or cut)
    host = SimpleNamespace(capacity=256e9, bandwidth=25e9)
    records, (table,) = techniques.technique_records(served(hit_rate=0.5, chunk=256, host=host))
    assert list(table.rows) == [
        ["prefix caching", "512 tokens of each prompt found (50%)"],
        ["one prompt in 4 chunks next to 15 decodes", "1.5 times as long, longest step 250.0 ms"],
        ["cached part read from the host", "125.0 ms (computing it takes 4.5 times as long)"],
    ]
    assert calls == [("deployment", 1000, 256, 15, 1000.0)]
    assert records == {
        "prefix_caching": {"hit_rate": 0.5, "cached_tokens": 512, "ttft_s": 0.5, "speedup": 2.5},
        "chunked_prefill": {"chunk_tokens": 256, "ttft_s": 0.75, "chunks": 4, "longest_step_s": 0.25, "cost": 1.5},
        "kv_offload": {"capacity_bytes": 256e9, "bandwidth_bytes_per_s": 25e9, "load_s": 0.125, "gain": 4.5},
    }  # fmt: skip
    alone = served(chunk=256)
    alone.load.batch = np.array([1.0])
    ((label, _),) = labelled_texts(techniques._chunks(alone))
    assert label == "one prompt in 4 chunks"
    pair = served(chunk=256)
    pair.load.batch = np.array([2.0])
    ((label, _),) = labelled_texts(techniques._chunks(pair))
    assert label == "one prompt in 4 chunks next to 1 decodes"


def test_a_steady_state_before_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The band of TTFT is a fifth below and half above; of TPOT none is known."""
    calls: list[Any] = []
    beside: list[Any] = []
    state = SimpleNamespace(ttft=0.5, tpot=0.02, kv_use=0.5, to_dict=lambda: {"x": 1})
    monkeypatch.setattr(techniques, "steady_state", lambda *words, **more: calls.append((words, more)) or state)
    monkeypatch.setattr(techniques, "steady_bands", lambda *words: {"ttft": (0.8, 1.5)})
    within = ["within x"]
    monkeypatch.setattr(techniques, "within_line", lambda *words: calls.append(words) or within[0])
    monkeypatch.setattr(techniques, "band_note", lambda estimate: "error: own, error: twice")
    table = Table(title="steady", columns=[], rows=[])
    monkeypatch.setattr(techniques, "steady_report", lambda state, without: beside.append(without) or table)
    before = Report(record={"a": 1}, tables=["old"], notes=["first", "error: own, error: twice"])  # type: ignore[list-item]
    run = served(hit_rate=0.25)
    run.load = SimpleNamespace(prompt=1000.0, output=128.0)
    run.forms = None
    whole = techniques.with_steady(before, "alone", run, 7)  # type: ignore[arg-type]
    load = calls[0][0][1]
    assert (load.concurrency, load.prompt, load.output, load.hit_rate) == (7.0, 1000.0, 128.0, 0.25)
    assert calls[1][1] == [("TTFT at the server, mean", 0.5, (0.8, 1.5)), ("TPOT", 0.02, None)]
    assert whole.record == {"a": 1, "steady_state": {
        "x": 1, "ttft_low_s": 0.4, "ttft_high_s": 0.75, "tpot_low_s": None, "tpot_high_s": None,
    }}  # fmt: skip
    assert list(whole.tables) == [table, "old"] and beside == [None]
    assert whole.notes == [
        "first", "error of the steady state: within x", "error of the batch alone: own, error: twice"
    ]  # fmt: skip
    within[0] = ""
    run.load.output = 1.0
    bare = techniques.with_steady(before, "alone", run, 7)  # type: ignore[arg-type]
    assert bare.notes[1] == "error of the steady state: unknown; no band is known for its steps"
    assert "tpot_low_s" not in bare.record["steady_state"]
    run.techniques.speculation.length = 3
    drafted = techniques.with_steady(before, "alone", run, 7)  # type: ignore[arg-type]
    assert drafted.record["steady_state_without"] == {"x": 1} and beside == [None, None, state]
    assert [more for _, more in calls[-3:-1]] == [{"speculation": run.techniques.speculation}, {}]


def test_techniques_stand_in_an_estimate_that_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Report(record={"a": 1}, tables=["old"])  # type: ignore[list-item]
    monkeypatch.setattr(techniques, "estimate_report", lambda result: plain)
    assert techniques.served_report("estimate") is plain  # type: ignore[arg-type]
    monkeypatch.setattr(techniques, "ServedEstimate", SimpleNamespace)
    monkeypatch.setattr(techniques, "prefix_gain", lambda *words: 2.0)
    whole = techniques.served_report(served(hit_rate=0.5))
    assert whole.record["prefix_caching"]["speedup"] == 2.0 and whole.record["a"] == 1 and len(whole.tables) == 2
