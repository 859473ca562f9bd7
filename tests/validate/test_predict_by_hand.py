"""What a row asks of the simulator and what is made of the answer, of runs that are written down here."""

from __future__ import annotations

from datetime import date
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferplan.validation import predict, releases


def run(**more: Any) -> Any:
    """A closed loop of 4 users on two devices: 1,000 tokens in, 101 out."""
    shared = {"hit_rate": 0.0, "system_prompt": 0, "system_prompts": 1, "users": 1}
    waits = SimpleNamespace(poll=3, batch=5, fill=0.75, balance=7)
    found: dict[str, Any] = {
        "batch": None, "concurrency": 4, "rate": None, "requests": None, "duration": None, "warmup": 2,
        "prompt": 1000.0, "output": 101.0, "ratio_min": 1.0,
        "shared": SimpleNamespace(**shared | more.pop("shared", {})),
        "prefill": None, "draft": None, "slots": 64, "token_budget": 2048, "context": 4096,
        "memory_fraction": 0.8, "waits": waits,
        "timeout": None, "campaign": "c", "devices": 2, "decoding_devices": 1, "closed": True, "workers": 3,
    }  # fmt: skip
    return SimpleNamespace(**found | more)


# --- what is asked


def test_users_of_a_row() -> None:
    """Ten requests each where the row does not say, and those of the warm-up."""
    made: Any = predict.row_traffic(run())
    assert (made.arrivals.concurrency, made.arrivals.burst, made.arrivals.ramp) == (4, True, 0.0)
    assert made.requests_count == 42 and (made.prompt.kind, made.prompt.mean, made.output.mean) == (
        "fixed",
        1000.0,
        101.0,
    )
    assert made.prompt.spread == made.output.spread == 0.0
    some: Any = predict.row_traffic(run(requests=7, ratio_min=0.5), ramp=2.5)
    assert some.requests_count == 9 and (some.arrivals.burst, some.arrivals.ramp) == (False, 2.5)
    assert (some.prompt.kind, some.prompt.spread, some.output.kind, some.output.spread) == (
        "uniform", 0.5, "uniform", 0.5
    )  # fmt: skip


def test_a_rate_of_a_row() -> None:
    """Its requests; else those of its duration; else a thousand."""
    open_loop: dict[str, Any] = {"concurrency": None, "rate": 2.5}

    def made(**more: Any) -> Any:
        return predict.row_traffic(run(**open_loop | more))

    counts = [made(requests=7), made(duration=60.0), made(), made(duration=0.01)]
    assert [one.requests_count for one in counts] == [7, 150, 1000, 1]
    assert (made().arrivals.rate, made().arrivals.kind) == (2.5, "poisson")
    assert made(shared={"system_prompts": 2}).arrivals.kind == "constant"


def test_prompts_that_come_again() -> None:
    """Two system prompts of 600 tokens and two users: four texts in turn, whose first 37 blocks of 16 are those of the
    system prompt (37 x 16 = 592), of 62 in all."""
    shared = {"system_prompt": 600, "system_prompts": 2, "users": 2}
    made: Any = predict.row_traffic(run(concurrency=None, rate=2.0, requests=6, shared=shared, prompt=1001.0))
    block = predict._BLOCK
    first, second, third, fourth, fifth, _ = made.hashes
    alike, whole = 600 // block, 1001 // block
    assert len(first) == whole and made.hash_block == block
    assert first == fifth and first[:alike] == third[:alike] and first[alike] != third[alike]
    assert not set(first) & set(second) and second[:alike] == fourth[:alike] and second[alike] != fourth[alike]
    assert len(set(first)) == whole and len(set(first) & set(third)) == alike
    assert made.prompt.tolist() == [1001] * 6 and made.output.tolist() == [101] * 6
    assert made.arrival.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    long = predict._cycled(run(rate=1.0, shared=shared | {"system_prompt": 9999}), 2)
    assert len(long.hashes[0]) == 1000 // block  # type: ignore[index]
    assert (predict._name(0, -1, 3), predict._name(1, 0, 0)) == ((1 << 40) + 3, (2 << 40) + (1 << 20))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = SimpleNamespace(timeout=9.0, latency=None, start="together")
    monkeypatch.setattr(predict, "client_named", lambda campaign: found)
    return found


def test_flags_of_a_row(client: Any) -> None:
    made = predict.row_flags(run())
    assert (made.max_num_seqs, made.max_num_batched_tokens, made.max_model_len) == (64, 2048, 4096)
    assert (made.gpu_memory_utilization, made.poll_interval_steps, made.batch_wait_steps) == (0.8, 3, 5)
    assert (made.batch_wait_fill, made.balance_steps, made.client_timeout) == (0.75, 7, 9.0)
    assert predict.row_flags(run(timeout=5.0)).client_timeout == 5.0


def test_options_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "drafts_of", lambda run, deployment: predict.Options().speculation)
    monkeypatch.setattr(predict, "prompts_of", lambda run, deployment: prompts)
    prompts: Any = "prompts"
    made = predict.row_options(run(shared={"hit_rate": 0.25}), "d")  # type: ignore[arg-type]
    assert (made.warmup, made.hit_rate, made.fleet.disaggregated) == (2, 0.25, False)
    pool = SimpleNamespace(slots=32, token_budget=8192, memory_fraction=0.7, workers=5)
    apart = run(prefill=pool, shared={"hit_rate": 0.25})
    made = predict.row_options(apart, "d")  # type: ignore[arg-type]
    assert (made.warmup, made.hit_rate, made.fleet.prefill, made.fleet.decode) == (2, 0.25, 5, 3)
    assert made.fleet.prefill_deployment == "prompts" and made.fleet.prefill_flags is not None
    flags = made.fleet.prefill_flags
    assert (flags.max_num_seqs, flags.max_num_batched_tokens, flags.gpu_memory_utilization) == (32, 8192, 0.7)
    prompts = None
    assert not predict.row_options(apart, "d").fleet.disaggregated  # type: ignore[arg-type]


def test_how_users_begin(monkeypatch: pytest.MonkeyPatch, client: Any) -> None:
    """One after another where the client spreads them, or the row does not say how many requests there were."""
    ramps: list[float] = []
    monkeypatch.setattr(predict, "row_request_time", lambda deployment, run: 2.5)
    monkeypatch.setattr(predict, "row_traffic", lambda run, ramp: ramps.append(ramp))
    monkeypatch.setattr(predict, "row_options", lambda run, deployment: None)
    monkeypatch.setattr(predict, "simulate", lambda *words: SimpleNamespace(deployment=words[0]))
    monkeypatch.setattr(predict, "_first_burst", lambda deployment, run: 0.125)
    monkeypatch.setattr(predict, "replace", lambda value, **new: SimpleNamespace(**vars(value) | new))
    copied = SimpleNamespace(model_copy=lambda update: ("serving", update))
    engine = SimpleNamespace(serving=copied, model_copy=lambda update: ("engine", update))
    deployment: Any = SimpleNamespace(engine=engine)
    found: Any = predict.served_run(deployment, run(requests=40))
    assert found.first_burst == 0.125 and found.deployment is deployment
    predict.served_run(deployment, run())
    predict.served_run(deployment, run(closed=False))
    client.start = "spread"
    predict.served_run(deployment, run(requests=40))
    assert ramps == [0.0, 2.5, 0.0, 2.5]
    client.latency = 0.01
    found = predict.served_run(deployment, run())
    assert found.deployment.engine == ("engine", {"serving": ("serving", {"latency": 0.01})})


def test_the_first_burst() -> None:
    def share(tails: Any, anchor: Any = None, **more: Any) -> float:
        calibration = SimpleNamespace(tails=tails, anchor=anchor)
        deployment: Any = SimpleNamespace(calibration=calibration, hardware=SimpleNamespace(vendor="NVIDIA"))
        return predict._first_burst(deployment, run(**more))

    known = SimpleNamespace(vendors=("NVIDIA",), first_burst=0.125)
    assert share(known) == 0.125
    assert share(None) == share(SimpleNamespace(vendors=("AMD",), first_burst=0.125)) == 0.0
    assert share(known, closed=False) == share(known, prefill="pool") == share(known, anchor="runs") == 0.0


# --- what is made of the answer


def result(**more: Any) -> Any:
    """TTFT from 1 to 100 s, 10 tokens/s out and 90 in."""
    found: dict[str, Any] = {
        "ttft": np.arange(1.0, 101.0), "tpot": np.array([0.02, 0.04]), "e2el": np.array([]), "output_rate": 10.0,
        "input_rate": 90.0, "tail": None, "basis": "measured", "verdict": "stable",
        "band": {"ttft": (0.5, 2.0), "e2el": (0.5, 2.0)}.get,
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def test_figures_of_a_run() -> None:
    """100 tokens/s over two devices, 10 over the one that decodes."""
    found = predict._figures(result(), run())
    assert found["ttft", "mean"] == 50.5 and found["tpot", "mean"] == 0.03
    assert found["ttft", "p90"] == pytest.approx(90.1) and found["ttft", "median"] == 50.5
    assert not any(metric == "e2el" for metric, _ in found)
    assert (found["rate", "mean"], found["throughput", "mean"], found["output", "mean"]) == (10.0, 50.0, 10.0)
    assert predict._bands(result()) == {"ttft": (25.25, 101.0)}


def test_bands_of_percentiles() -> None:
    """Nothing comes before it was sent."""
    tail = SimpleNamespace(between=lambda percentile: (-95.0, 5.0) if percentile > 89 else None)
    found = predict._late(result(tail=tail))
    names = {name for name, percentile in predict._PERCENTILES.items() if percentile > 89}
    assert {name for _, name in found} == names
    assert found["ttft", "p90"] == pytest.approx((0.0, 95.1)) and found["ttft", "p99"][0] == pytest.approx(4.01)
    assert predict._late(result()) == predict._late(result(tail=tail, ttft=np.array([]))) == {}


def test_watts_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 W of each of two devices over 10 tokens/s."""
    energy: Any = SimpleNamespace(watts=500.0)
    monkeypatch.setattr(predict, "run_energy", lambda deployment, result: energy)
    of: Any = SimpleNamespace(hardware=SimpleNamespace(power=700.0))
    assert predict._power(of, result(), run()) == {("power", "mean"): 500.0, ("energy", "mean"): 100.0}
    for other in (run(prefill="pool"), run(draft="drafts")):
        assert predict._power(of, result(), other) == {}
    assert predict._power(of, result(output_rate=0.0), run()) == {}
    assert predict._power(SimpleNamespace(hardware=SimpleNamespace(power=None)), result(), run()) == {}  # type: ignore[arg-type]
    energy = None
    assert predict._power(of, result(), run()) == {}


def test_a_static_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[Any] = []

    def estimate(deployment: Any, load: Any) -> Any:
        loads.append(load)
        bands = {"ttft": (0.5, 2.0)}
        return SimpleNamespace(ttft=0.25, tpot=0.02, e2el=2.25, output_rate=400.0, basis="measured", band=bands.get)

    monkeypatch.setattr(predict, "Estimate", estimate)
    found = predict._static("d", run(batch=8))  # type: ignore[arg-type]
    assert (loads[0].batch, loads[0].prompt, loads[0].output) == (8.0, 1000.0, 101.0)
    assert found.bands == {"ttft": (0.125, 0.5)} and found.basis == "measured"
    assert (found.figures["tpot", "mean"], found.figures["e2el", "p90"]) == (0.02, 2.25)
    assert found.figures["rate", "mean"] == 400.0
    assert ("tpot", "mean") not in predict._static("d", run(batch=8, output=1.0)).figures  # type: ignore[arg-type]


def test_which_of_both_a_row_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(predict, "require_no_cadence", asked.append)
    monkeypatch.setattr(predict, "_static", lambda deployment, run: "static")
    monkeypatch.setattr(predict, "_served", lambda deployment, run: "served")
    assert (predict.predict_run(run(batch=8), "d"), asked) == ("static", ["d"])  # type: ignore[arg-type]
    assert (predict.predict_run(run(), "d"), asked) == ("served", ["d"])  # type: ignore[arg-type]


def test_what_of_a_row_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device of uncertain peaks what is faster than these is told apart from what memory cannot hold."""
    monkeypatch.setattr(predict, "impossible", lambda *words: ("tpot", "memory"))
    found = predict.Prediction(figures={}, bands={}, basis="measured")
    measured: Any = SimpleNamespace(statistic="mean")
    for uncertain, fast, above in ((False, ("tpot", "memory"), ()), (True, ("memory",), ("tpot",))):
        of: Any = SimpleNamespace(hardware=SimpleNamespace(uncertain=uncertain))
        row = predict.for_row(found, of, run(), measured, ("a note",))
        assert (row.impossible, row.above_uncertain, row.statistic, row.notes) == (fast, above, "mean", ("a note",))


@pytest.fixture
def ideal(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """An ideal step of decodes takes 10 ms and an ideal prefill 100 ms, 50 ms with hits."""
    calls: list[Any] = []
    monkeypatch.setattr(predict, "replace", lambda value, **new: ("ideal", value))

    def decode(of: Any, load: Any, context: float) -> Any:
        calls.append((of, load.batch, load.prompt, load.output, context))
        return SimpleNamespace(time=0.01)

    monkeypatch.setattr(predict, "decode_phase", decode)
    monkeypatch.setattr(
        predict, "prefill_phase", lambda of, load: calls.append(load.batch) or SimpleNamespace(time=0.1)
    )
    monkeypatch.setattr(predict, "cached_prefill", lambda *words: calls.append(words[1:]) or 0.05)
    monkeypatch.setattr(predict, "_overfull", lambda deployment, load: False)
    return calls


def measured(ttft: float | None = None, tpot: float | None = None, statistic: str = "mean") -> Any:
    return SimpleNamespace(ttft=ttft, tpot=tpot, statistic=statistic)


def cannot(of: Any, found: Any) -> tuple[str, ...]:
    return predict.impossible("d", of, found)  # type: ignore[arg-type]


def test_means_that_are_faster_than_can_be(ideal: list[Any]) -> None:
    """By Little's law 4 users x 2/(2 + 0.5) = 3.2 decode, at 1,000 + 50.5 tokens."""
    assert cannot(run(), measured(0.5, 0.02)) == ()
    assert ideal[0] == (("ideal", "d"), pytest.approx(3.2), 1000.0, 101.0, 1050.5) and ideal[1] == 1.0
    assert cannot(run(), measured(0.1, 0.01)) == () and cannot(run(), measured(0.09, 0.009)) == ("tpot", "ttft")
    assert cannot(run(), measured(None, 0.009)) == ("tpot",) and ideal[-1][1] == 4.0
    assert cannot(run(), measured(0.09, None)) == ("ttft",)
    for other in (run(rate=2.0), run()):
        assert cannot(other, measured(0.09, 0.009, "p90" if other.rate is None else "mean")) == ()
    assert cannot(run(output=1.0), measured(0.09, 0.009)) == cannot(run(draft="d"), measured(0.09, 0.009)) == ("ttft",)
    assert cannot(run(prefill="pool"), measured(0.09, 0.009)) == ("tpot",)
    ideal.clear()
    cannot(run(ratio_min=0.5), measured(0.5, 0.02))
    assert ideal[0][2:4] == (750.0, 75.75)
    cannot(run(concurrency=1), measured(9.0, 0.02))
    assert ideal[2][1] == 1.0


def test_static_batches_that_are_faster_than_can_be(ideal: list[Any]) -> None:
    assert cannot(run(concurrency=None, batch=8), measured(0.5, 0.009)) == ("tpot",)
    assert (ideal[0][1], ideal[1]) == (8.0, 8.0)
    cannot(run(concurrency=None), measured(0.5, 0.02))
    assert (ideal[2][1], ideal[3]) == (1.0, 1.0)


def test_prompts_that_were_found(ideal: list[Any]) -> None:
    hits = run(shared={"hit_rate": 0.5})
    assert cannot(hits, measured(0.06, None)) == () and cannot(hits, measured(0.04, None)) == ("ttft",)
    assert ideal == [(1.0, 1000.0, 0.5)] * 2


def test_more_than_memory_holds(ideal: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "_overfull", lambda deployment, load: deployment == "d")
    assert cannot(run(), measured(0.5, 0.02)) == ("memory",)
    for other in (run(prefill="pool"), run(shared={"hit_rate": 0.5}), run(concurrency=None, batch=8)):
        assert cannot(other, measured(0.5, 0.02)) == ()


def test_engines_that_set_aside_what_a_request_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.9 of the 64 GB that weights leave of 80 are 57.6."""
    calls: list[Any] = []

    def full(state: float, admission: str = "reserve") -> bool:
        memory = SimpleNamespace(state=state, memory_fraction=0.9, usable=80e9, weights=16e9)
        monkeypatch.setattr(predict, "Footprint", lambda **words: calls.append(words) or memory)
        scheduler = SimpleNamespace(admission=admission)
        of: Any = SimpleNamespace(engine=SimpleNamespace(defaults=SimpleNamespace(scheduler=scheduler)))
        return predict._overfull(of, SimpleNamespace(batch=8.0, prompt=1000.0, output=101.0))  # type: ignore[arg-type]

    assert [full(57e9), full(58e9), full(58e9, "grow")] == [False, True, False]
    assert (calls[0]["batch"], calls[0]["prompt"], calls[0]["context"]) == (8.0, 1000.0, 1101.0)


def test_releases_behind_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest that was out on the day of the tag, else of the row; none before the first."""
    days = {date(2026, 2, 1): "0.15", date(2026, 3, 1): "0.16"}

    def before(day: date) -> str | None:
        return max((release for at, release in days.items() if at <= day), default=None)

    known = SimpleNamespace(before=before)
    monkeypatch.setattr(releases, "release_dates", lambda: {"vllm": known})

    def found(engine: str = "vllm", **facts: str) -> tuple[str | None, tuple[str, ...]]:
        return releases.release_of(engine, facts)

    assert found(engine_version=" 0.9.1 ", date="2026-02-20") == ("0.9.1", ())
    assert found(engine_version="nightly-dev-20260216", date="2026-03-05") == (
        "0.15", ("2026-02-16: vllm 0.15 was the newest release",)
    )  # fmt: skip
    assert found(date=" 2026-03-01 ")[0] == "0.16"
    for nothing in (
        {"date": "2026-01-31"},
        {"date": "2026-02-31"},
        {"date": "soon"},
        {},
        {"engine_version": "nightly"},
    ):
        assert found(**nothing) == (None, ())
    assert found("other", date="2026-03-01") == (None, ())
