"""Joules of a run, of steps and counts that are written down here: worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferplan.answers import energy as energies
from inferplan.answers import power
from inferplan.answers.energy import StaticEnergy
from inferplan.answers.power import RunEnergy, _Decodes, _Pool, _Step, prompt_pieces, run_energy
from inferplan.devices.power import PowerCap, PowerShares
from inferplan.serving.options import Options


def deployment(mixed: bool = True, encodes: bool = False, dp: int = 2) -> Any:
    """Four devices of 100 W; two attention ranks."""
    return SimpleNamespace(
        parallel=SimpleNamespace(dp=dp, ranks=4), engine=SimpleNamespace(batching=SimpleNamespace(mixed=mixed)),
        model=SimpleNamespace(encodes=encodes), hardware=SimpleNamespace(tdp=100.0), features={"own"},
    )  # fmt: skip


def meters(count: int = 4, **more: Any) -> list[Any]:
    """Each makes 100 steps in 5 s, 20 of them with 1,000 tokens of prompts in all, and writes 400 tokens."""
    found = {"steps": 100, "prompt_steps": 20, "decode_tokens": 400, "prompt_tokens": 1000, "busy": 5.0}
    return [SimpleNamespace(**found | more) for _ in range(count)]


def result(**more: Any) -> Any:
    """10 s; prompts of 150 tokens, a fifth of them found, and 60 in return."""
    records = SimpleNamespace(prompt=np.array([100, 200]), output=np.array([40, 80]))
    found = {
        "window": (5.0, 15.0), "records": records, "hit_rate": 0.2, "ttft": [1.0], "meters": meters(),
        "prompt_pool": (0, 0), "output_rate": 5.0,
    }  # fmt: skip
    return SimpleNamespace(**found | more)


PLAIN: Any = SimpleNamespace(tokens=1.0, width=1, passes=(), beside=lambda deployment: "beside")


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A step of decodes takes 10 ms, 2 J and 50 W; with prompts 30 ms, 8 J and 80 W. On: half of TDP while a step runs,
    a quarter while none does."""
    calls: list[Any] = []

    def step(deployment: Any, speculation: Any, decodes: Any, prompts: Any) -> _Step:
        calls.append((decodes, prompts))
        return _Step(0.01, 2.0, 50.0) if prompts is None else _Step(0.03, 8.0, 80.0)

    monkeypatch.setattr(power, "_round", step)
    monkeypatch.setattr(power, "goes_together", lambda command, features: features == {"own", "energy"})
    monkeypatch.setattr(power, "power_shares", lambda hardware: SimpleNamespace(running=0.5, standing=0.25))
    return calls


def spent(of: RunEnergy) -> list[float]:
    return [round(value, 6) for value in (of.prompts, of.decodes, of.idle, of.on, of.busy, of.highest)]


def energy(of: Any, run: Any = None, present: float = 2, decodes: bool = True, speculation: Any = PLAIN) -> Any:
    run = run or result()
    return power._pool_energy(_Pool(of, run.meters, speculation, present, decodes), run)


def test_steps_that_hold_prompts_and_decodes(rounds: list[Any]) -> None:
    """Two replicas: 100 steps of 800/100 = 8 sequences behind 150 + 30 tokens. Of 5 s 1/1.4 decode and 0.4/1.4 compute
    prompts, which take 20 ms and 6 J more than their step has without them; 200 W are on in each replica. Of 2 x 10 s
    2 x 5 are idle at 100 W."""
    found = energy(deployment())
    decoding, prompts = 2 * (200 * 5 / 1.4 + 100 * 2), 2 * (200 * 5 * 0.4 / 1.4 + 20 * 6)
    assert spent(found) == [round(prompts, 6), round(decoding, 6), 1000.0, 3000.0, 40.0, 80.0]
    assert (found.seconds, found.devices) == (10.0, 8)
    (alone, nothing), (beside, held) = rounds
    assert alone == beside == _Decodes(8.0, 180.0) and nothing is None
    pieces = prompt_pieces(150.0, 30.0, 100.0)
    assert (held.batch, held.new, held.past) == (pieces.batch, pieces.new, pieces.past)


def test_steps_of_prompts_alone(rounds: list[Any]) -> None:
    """80 steps decode 10 sequences each; of 5 s 0.8/1.4 decode and 0.6/1.4 compute prompts."""
    found = energy(deployment(mixed=False))
    decoding, prompts = 2 * (200 * 5 * 0.8 / 1.4 + 80 * 2), 2 * (200 * 5 * 0.6 / 1.4 + 20 * 8)
    assert spent(found)[:2] == [round(prompts, 6), round(decoding, 6)]
    assert rounds[0][0] == _Decodes(10.0, 180.0) and rounds[1][0] is None


def test_what_decodes_nothing_has_prompts_alone(rounds: list[Any]) -> None:
    for found in (energy(deployment(encodes=True)), energy(deployment(), decodes=False)):
        assert spent(found)[:2] == [2 * (200 * 5 + 20 * 8), 0.0] and found.highest == 80.0
    assert [decodes for decodes, _ in rounds] == [None, None]


def test_steps_without_prompts(rounds: list[Any]) -> None:
    bare = result(meters=meters(prompt_steps=0))
    assert spent(energy(deployment(), bare)) == [0.0, 2 * (200 * 5 + 100 * 2), 1000.0, 3000.0, 40.0, 50.0]
    prompts = result(meters=meters(steps=20, decode_tokens=0))
    found = energy(deployment(mixed=False), prompts)
    assert spent(found)[:2] == [2 * (200 * 5 + 20 * 8), 0.0] and found.highest == 80.0
    assert rounds[-2][0] == _Decodes(1e-9, 180.0)


def test_drafts_decode_several_tokens_a_step(rounds: list[Any]) -> None:
    drafts = SimpleNamespace(tokens=2.5)
    energy(deployment(), speculation=drafts)
    assert rounds[0][0] == _Decodes(800 / 2.5 / 100, 180.0)


def test_time_that_is_busy_is_within_the_run(rounds: list[Any]) -> None:
    """Replicas that stand idle all the time, too, and one that has fewer engines than ranks."""
    full = energy(deployment(), result(meters=meters(busy=12.0)))
    assert (full.busy, full.idle) == (80.0, 0.0)
    assert energy(deployment(), present=3.5).idle == 100 * (35 - 10)
    assert energy(deployment(), present=3.5).devices == 14
    few = energy(deployment(dp=4), result(meters=meters(2)), present=1)
    assert few.busy == 20.0


def test_runs_that_nobody_can_say(rounds: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert energy(deployment(), result(meters=meters(steps=0, prompt_steps=0))) is None
    monkeypatch.setattr(power, "goes_together", lambda command, features: False)
    assert energy(deployment()) is None


def test_pools_of_a_run() -> None:
    """Four engines of two attention ranks are two replicas; what is lost comes back on the same devices."""

    def pools(run: Any = None, **fleet: Any) -> Any:
        told = {"disaggregated": False, "failures": None, "engines": lambda deployment: 6, "prefill_deployment": None,
                "prefill": 2, "decode": 3}  # fmt: skip
        options = SimpleNamespace(fleet=SimpleNamespace(**told | fleet), speculation=PLAIN)
        return power._pools(deployment(), run or result(), options)  # type: ignore[arg-type]

    (whole,) = pools()
    assert (len(whole.meters), whole.present, whole.speculation, whole.decodes) == (4, 2, PLAIN, True)
    assert pools(result(meters=meters(5)))[0].present == 2
    assert pools(failures="some")[0].present == 3 and pools(result(meters=meters(1)))[0].present == 1
    assert pools(failures="some", engines=lambda deployment: 1)[0].present == 1
    prompts, decodes = pools(result(meters=["a", "b", "c"], prompt_pool=(1, 2)), disaggregated=True)
    assert (prompts.meters, prompts.present, prompts.decodes, prompts.speculation) == (["a"], 2, False, "beside")
    assert (decodes.meters, decodes.present, decodes.decodes) == (["b", "c"], 3, True)
    other = deployment()
    assert pools(disaggregated=True, prefill_deployment=other)[0].deployment is other


ONE = RunEnergy(prompts=1.0, decodes=2.0, idle=3.0, on=4.0, busy=5.0, seconds=10.0, devices=6, highest=7.0)


def test_a_run_is_the_sum_of_its_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 + 2 + 3 J in 10 s on 6 devices: 0.1 W each."""
    assert (ONE.joules, ONE.watts) == (6.0, pytest.approx(0.1))
    found: list[Any] = [ONE, replace(ONE, highest=9.0), replace(ONE, highest=8.0)]
    monkeypatch.setattr(power, "_pools", lambda *_: range(len(found)))
    monkeypatch.setattr(power, "_pool_energy", lambda pool, result: found[pool])
    monkeypatch.setattr(power, "_mask_joules", lambda *_: 0.5)
    whole = run_energy(deployment(), result(window=(2.0, 12.0)))
    assert whole == RunEnergy(
        prompts=3.0, decodes=6.0, idle=9.0, on=12.0, busy=15.0, seconds=10.0, devices=18, highest=9.0
    )
    masked = replace(Options(), structured=SimpleNamespace(share=1.0))  # type: ignore[arg-type]
    assert run_energy(deployment(), result(window=(2.0, 12.0)), masked).decodes == 6.5  # type: ignore[union-attr]
    for run in (result(window=(2.0, 2.0)), result(ttft=[])):
        assert run_energy(deployment(), run) is None
    found[1] = None
    assert run_energy(deployment(), result()) is None


def test_a_step_and_the_passes_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verification of 4 tokens takes 40 ms and 4 J; two passes of a draft 1 ms and 0.1 J each, the first of them with
    the prompts 2 ms and 0.2 J. On are half of 100 W; the rest is spread over four devices."""
    calls: list[Any] = []

    def run_step(one: Any, step: Any) -> Any:
        calls.append((one, step.segments))
        width = step.segments[0].new
        return SimpleNamespace(time=0.01 * width if one is big else 0.001 * len(step.segments))

    big, draft = deployment(), SimpleNamespace(hardware="small")
    monkeypatch.setattr(power, "run_step", run_step)
    monkeypatch.setattr(power, "step_joules", lambda phase, shares, seconds: (0.0, 100 * seconds))
    monkeypatch.setattr(power, "power_shares", lambda hardware: SimpleNamespace(running=0.5))
    pieces = prompt_pieces(150.0, 30.0, 100.0)
    plain = power._round(big, PLAIN, _Decodes(8.0, 180.0), None)
    assert (plain.seconds, plain.worked, plain.watts) == (0.01, 1.0, 50 + 1.0 / 0.01 / 4)
    ((_, (segment,)),) = calls
    assert (segment.batch, segment.new, segment.past) == (8.0, 1.0, 180.0)
    drafts: Any = SimpleNamespace(width=4, passes=((draft, 1, 1.0), (draft, 2, 2.0)))
    found = power._round(big, drafts, _Decodes(8.0, 180.0), pieces)
    seconds = 0.04 + 0.002 + 2 * 0.001
    assert (found.seconds, found.worked) == (pytest.approx(seconds), pytest.approx(100 * seconds))
    assert found.watts == pytest.approx(50 + 100 / 4)
    assert [(one is big, len(segments), segments[0].new) for one, segments in calls[1:]] == [
        (True, 2, 4.0), (False, 2, 1.0), (False, 1, 2.0)
    ]  # fmt: skip
    calls.clear()
    power._round(big, drafts, None, pieces)
    assert [(one is big, len(segments)) for one, segments in calls] == [(True, 1), (False, 1)]


def test_what_a_step_takes_more() -> None:
    assert _Step(3.0, 8.0, 80.0).beyond(_Step(1.0, 2.0, 50.0)) == _Step(2.0, 6.0, 80.0)
    assert _Step(1.0, 2.0, 50.0).beyond(_Step(3.0, 8.0, 80.0)) == _Step(0.0, 0.0, 50.0)


def test_prompts_of_a_step() -> None:
    """Of prompts of 150 tokens of which 30 are known: two and a half whole ones, or half of one, which is on average
    behind half of the other 60."""
    whole, piece = prompt_pieces(150.0, 30.0, 300.0), prompt_pieces(150.0, 30.0, 60.0)
    assert (whole.batch, whole.new, whole.past) == (2.5, 120.0, 30.0)
    assert (piece.batch, piece.new, piece.past) == (1.0, 60.0, 60.0) and piece.media and whole.media
    known = prompt_pieces(150.0, 150.0, 2.0)
    assert (known.batch, known.new, known.past) == (2.0, 1.0, 150.0)


def test_joules_of_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 tokens/s in 10 s, half of them masked: 25; with drafts 4 masks for 2 tokens each. A fifth of 100 W for one."""
    op = SimpleNamespace(work=lambda: "work")
    of = deployment()
    of.runs_on = lambda op: ("hardware", "calibration", None)
    monkeypatch.setattr(power, "MaskedSteps", lambda **_: SimpleNamespace(operator=lambda sequences: op))
    monkeypatch.setattr(power, "ideal_time", lambda op, work, hardware: SimpleNamespace(math=1.0, memory=2.0))
    monkeypatch.setattr(power, "price", lambda op, hardware, calibration: SimpleNamespace(time=4.0))
    shares = SimpleNamespace(dynamic=lambda math, memory, time: (math / time * 0.2, memory / time * 0.3))
    monkeypatch.setattr(power, "power_shares", lambda hardware: shares)
    options: Any = SimpleNamespace(structured=SimpleNamespace(share=0.5), speculation=PLAIN)
    assert power._mask_joules(of, result(), options) == pytest.approx(100 * (0.05 + 0.15) * 25)
    options.speculation = SimpleNamespace(width=4, tokens=2.0)
    assert power._mask_joules(of, result(window=(0.0, 10.0)), options) == pytest.approx(2 * 100 * 0.2 * 25)


# --- a static batch


class Batch(SimpleNamespace):
    """An estimate of 8 requests of 2 answers of 101 tokens each: TTFT 500 ms, TPOT 20 ms, on two devices."""


def static(monkeypatch: pytest.MonkeyPatch, **more: Any) -> StaticEnergy:
    """The prefill takes 100 J for being on and 300 for work, a decode step 4 and 12; twice as many on the meter."""
    load = SimpleNamespace(output=101.0, sequences=16.0, batch=8.0, samples=2.0)
    prefill, decode = (SimpleNamespace(deployment=SimpleNamespace(hardware=name)) for name in ("a", "b"))
    found: dict[str, Any] = {
        "features": set(), "prefill": prefill, "decode": decode, "ttft": 0.5, "tpot": 0.02,
        "load": SimpleNamespace(**vars(load) | more),
        "deployment": SimpleNamespace(parallel=SimpleNamespace(ranks=2), model=SimpleNamespace(encodes=False)),
    }  # fmt: skip

    def joules(phase: Any, shares: Any, seconds: Any, name: Any = None) -> Any:
        assert shares == phase.deployment.hardware
        scale = float(getattr(seconds, "value", seconds)) / (0.5 if phase is prefill else 0.02)
        on, worked = (100.0 * scale, 300.0) if phase is prefill else (4.0 * scale, 12.0)
        return (on, worked) if name is None else (name(on, "on"), name(worked, "work"))

    monkeypatch.setattr(energies, "step_joules", joules)
    monkeypatch.setattr(energies, "power_shares", lambda hardware: hardware)
    asked: Any = SimpleNamespace(whole=lambda joules, devices, seconds: 2 * joules, carbon=SimpleNamespace(grams=360.0))
    return StaticEnergy(estimate=Batch(**found), asked=asked)  # type: ignore[arg-type]


def test_joules_of_a_static_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """400 J in 0.5 s on two devices are 400 W each, 16 J in 20 ms as many. By the meter: 32 J a step of 16 sequences;
    (800 + 100 x 32)/8 = 500 J a request, over 202 tokens. On: 100 + 400 of 400 + 1,600. 10 MJ are 1,000 g."""
    one = static(monkeypatch)
    assert (one.prefill.joules, one.prefill.watts) == (400.0, 400.0) and one.prefill.devices == 2
    assert one.decode is not None and (one.decode.joules, one.decode.watts) == (16.0, 400.0)
    assert (one.whole(one.prefill), one.steps, one.per_token, one.per_request) == (800.0, 100.0, 2.0, 500.0)
    assert one.per_output_token == 500 / 202 and one.idle_share == 0.25 and one.grams(1e7) == pytest.approx(1000.0)
    dark = replace(one, asked=SimpleNamespace(carbon=None))  # type: ignore[arg-type]
    assert dark.grams(1.0) is None


def test_joules_without_a_decode_step(monkeypatch: pytest.MonkeyPatch) -> None:
    single = static(monkeypatch, output=1.0)
    assert single.decode is single.per_token is None and single.steps == 0.0
    assert (single.per_request, single.per_output_token, single.idle_share) == (100.0, 50.0, 0.25)
    assert single.numbers() == ["energy.prefill", "energy.request", "watts.prefill"]
    assert float(single.terms("energy.request").evaluate()) == 50.0
    with pytest.raises(KeyError):
        single.terms("energy.decode")
    assert static(monkeypatch, output=2.0).steps == 1.0
    monkeypatch.setattr(energies, "EncodeEstimate", Batch)
    encoder = static(monkeypatch)
    encoder.estimate.deployment.model.encodes = True  # type: ignore[misc]
    assert encoder.decode is encoder.per_output_token is None


def test_joules_with_their_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the devices alone: 16 J over 16 sequences; 400/8 + 100 x 1 J x 2 samples = 250 J a request."""
    one = static(monkeypatch)
    found = {name: one.terms(name) for name in one.numbers()}
    assert {name: (float(term.evaluate()), term.unit) for name, term in found.items()} == {
        "energy.prefill": (400.0, "J"), "energy.request": (250.0, "J"), "watts.prefill": (400.0, "W"),
        "energy.decode": (1.0, "J"), "watts.decode": (pytest.approx(400.0), "W"),
    }  # fmt: skip
    assert "samples" in str(found["energy.decode"].terms) and "samples" in str(found["energy.request"].terms)
    alone = static(monkeypatch, samples=1.0, sequences=8.0)
    for name in ("energy.decode", "energy.request"):
        assert "samples" not in str(alone.terms(name).terms)
    assert float(alone.terms("energy.decode").evaluate()) == 2.0


# --- watts of a kernel


def shares(**more: float) -> PowerShares:
    """Half of TDP while a step runs, of which nothing is static; no clock lowers the voltage."""
    told: dict[str, Any] = {
        "running": 0.5, "standing": 0.25, "arithmetic": 0.5, "memory": 0.25, "moving": 0.125, "static": 0.0,
        "voltage": 0.0, "source": "s", "error": "e", "standing_source": "s", "clock_source": "s",
    }  # fmt: skip
    return PowerShares(**told | more)


def test_what_a_kernel_draws() -> None:
    """Of 2 s at most 1 is left. 1 s of FLOP and 0.5 of bytes: 0.5 + 0.0625 by the cores, 0.125 by the memory."""
    assert shares().dynamic(1.0, 0.5, 2.0) == (0.5625, 0.125)
    assert shares(arithmetic=2.0).dynamic(1.0, 0.5, 2.0) == (0.875, 0.125)
    assert shares(memory=4.0).dynamic(1.0, 0.5, 2.0) == (0.0, 1.0)


def test_what_a_clock_leaves() -> None:
    """At half of its clock a quarter is drawn by cycles, 0.25 + 0.125 by work. With a voltage that goes as the square
    root of the clock every cycle and operation takes half of it; what is static stays."""
    cap = PowerCap(watts=375.0, tdp=500.0, shares=shares())
    assert cap.drawn(0.5, (0.25, 0.125), 1.0) == 0.25 + 0.25 + 0.125
    assert cap.drawn(0.5, (0.25, 0.125), 2.0) == 0.25 + 0.125 + 0.0625
    lower = replace(cap, shares=shares(voltage=1.0, static=0.25))
    assert lower.drawn(0.5, (0.25, 0.125), 1.0) == 0.25 + 0.25 * 0.5 * 0.5 + 0.125 + 0.125
    assert cap.holds and not replace(cap, watts=500.0).holds and not replace(cap, watts=501.0).holds


def test_the_clock_under_a_cap() -> None:
    """0.5 x clock + 0.5 of TDP is the cap of 75 % at half of the clock; 0.25 more of work is no more than the cap."""
    cap = PowerCap(watts=375.0, tdp=500.0, shares=shares())
    assert cap.clock((0.5, 0.0), lambda clock: 1.0) == pytest.approx(0.5, abs=1e-12)
    assert cap.clock((0.25, 0.0), lambda clock: 1.0) == 1.0
    many = cap.clock((np.array([0.25, 0.5, 0.625]), 0.0), lambda clock: 1.0)
    assert many == pytest.approx([1.0, 0.5, 0.25], abs=1e-12)
    # of a kernel that takes 1/clock seconds: 0.5 x clock + 0.5 x clock = 0.75
    assert cap.clock((0.5, 0.0), lambda clock: 1.0 / clock) == pytest.approx(0.75, abs=1e-12)
    # voltage in proportion to the clock: 0.5 x clock^3 + 0.5 x clock^2 = 0.75 at 0.8938
    square = replace(cap, shares=shares(voltage=2.0))
    found = float(square.clock((0.5, 0.0), lambda clock: 1.0))
    assert 0.5 * found**3 + 0.5 * found**2 == pytest.approx(0.75, abs=1e-12) and 0.89 < found < 0.9


def test_the_ends_of_the_law_of_voltage() -> None:
    """TTFT where it never falls, and where it is in proportion."""

    class Estimated(SimpleNamespace):
        @property
        def ttft(self) -> Any:
            return np.array([0.1, 1.0 + self.deployment.cap.shares.voltage])

    cap = PowerCap(watts=375.0, tdp=500.0, shares=shares())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(energies, "replace", lambda value, **new: type(value)(**vars(value) | new))
        one = Estimated(deployment=SimpleNamespace(cap=cap))
        assert energies.quickest(one) == (1.0, 3.0)  # type: ignore[arg-type]
