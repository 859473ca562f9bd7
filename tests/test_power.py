"""Energy by phase, caps as clocks, CO2: by hand, in closed form, and by laws (docs/power.md)."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache
from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from inferplan.answers.energy import StaticEnergy
from inferplan.answers.explain import Explainer
from inferplan.answers.power import _mask_joules, _Step, run_energy
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.carbon import Carbon, carbon_of
from inferplan.catalog.energy import EnergyAsked
from inferplan.catalog.power import power_shares
from inferplan.devices.constants import IDEAL
from inferplan.devices.power import PowerCap, PowerShares
from inferplan.errors import MissingFactError, UnknownNameError, UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.draw import step_joules
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.phase import decode_cycle
from inferplan.estimate.roofline import price
from inferplan.estimate.structured import Structured
from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.traffic.requests import ClosedLoop, Lengths, Traffic
from inferplan.work.formats import FORMATS
from inferplan.work.ops import Matmul
from inferplan.work.parallel import Parallelism
from tests.builders import chip
from tests.cases import for_each

SHARES = PowerShares(
    source="by hand",
    error="by hand",
    running=0.4,
    standing=0.1,
    standing_source="by hand",
    arithmetic=0.8,
    memory=0.3,
    static=0.2,
    voltage=1.0,
    clock_source="by hand",
)
BF16 = FORMATS["bf16"]


def matmul(m: float) -> Matmul:
    """4096 x 4096 weights: 2*4096^2*m FLOP, 2*(4096^2 + 2*4096*m) bytes."""
    return Matmul(name="ffn", m=m, k=4096, n=4096, weight=BF16, input=BF16, output=BF16)


def flop(m: float) -> float:
    return 2 * 4096**2 * m


def moved(m: float) -> float:
    return 2.0 * (4096**2 + 2 * 4096 * m)


def cap(share: float, shares: PowerShares = SHARES) -> PowerCap:
    return PowerCap(watts=1000 * share, tdp=1000.0, shares=shares)


def test_the_clock_of_a_kernel_in_closed_form() -> None:
    """At m = 8192 on 1e15 FLOP/s and 1e13 B/s the arithmetic takes a = 0.2749 ms, the memory b = 0.0168 ms, and the
    kernel a. At its own clock it would draw 0.4 + 0.8 + 0.3*b/a > 1: arithmetic gets what is left, (0.6 a - 0.3 b).
    At a clock x it takes a/x and draws 0.2 + 0.2 x^2 + ((0.6 a - 0.3 b) x + 0.3 b) x/a: a quadratic equation.
    """
    a, b = flop(8192) / 1e15, moved(8192) / 1e13
    ratio = b / a
    for share in (0.5, 0.7, 0.95):
        square, linear = 0.2 + 0.6 - 0.3 * ratio, 0.3 * ratio
        x = (-linear + sqrt(linear**2 + 4 * square * (share - 0.2))) / (2 * square)
        cost = price(matmul(8192.0), chip(1e13, 1e15), IDEAL, cap(share))
        assert cost.clock == pytest.approx(x, rel=1e-9)
        assert cost.time == pytest.approx(a / x, rel=1e-9)


def test_what_traffic_takes_in_the_cores_falls_with_their_clock() -> None:
    """1e15 FLOP/s would take no time beside 1e10 B/s: a kernel of bytes alone draws 0.4 + 0.3 of its memory and 0.2 of
    its cores at its own clock, and 0.2 + 0.2 x^2 + 0.3 + 0.2 x at a clock x, which slows none of it.
    """
    shares = SHARES.model_copy(update={"moving": 0.2})
    for share in (0.6, 0.8):
        x = (-0.2 + sqrt(0.04 + 0.8 * (share - 0.5))) / 0.4
        cost, own = (price(matmul(1.0), chip(1e10, 1e15), IDEAL, one) for one in (cap(share, shares), None))
        assert cost.clock == pytest.approx(x, rel=1e-4)
        assert cost.time == own.time


def test_laws_of_voltage_in_closed_form() -> None:
    """Without memory traffic worth a mention P = 0.2 + (0.2 + 0.6) x^(1 + voltage), whatever the kernel."""
    for voltage in (0.0, 1.0, 2.0):
        shares = SHARES.model_copy(update={"voltage": voltage})
        cost = price(matmul(8192.0), chip(1e18, 1e15), IDEAL, cap(0.6, shares))
        assert cost.clock == pytest.approx((0.4 / 0.8) ** (1 / (1 + voltage)), rel=1e-4)


def test_a_kernel_that_draws_less_than_the_cap_keeps_its_clock() -> None:
    """One row reads its weights: 0.4 + 0.3 and next to no arithmetic."""
    honest = price(matmul(1.0), chip(1e12, 1e15), IDEAL)
    capped = price(matmul(1.0), chip(1e12, 1e15), IDEAL, cap(0.71))
    assert capped.clock == 1.0
    assert capped.time == honest.time
    assert price(matmul(1.0), chip(1e12, 1e15), IDEAL, cap(0.69)).clock < 1.0


def test_clocks_of_memory_and_arithmetic() -> None:
    """A kernel that waits for memory takes as long at half the clock: 4096^2 weights at 1e12 B/s take 33.6 us, 64 rows
    of arithmetic 2.1 us."""
    cost = price(matmul(64.0), chip(1e12, 1e15), IDEAL, cap(0.6))
    assert cost.clock < 0.9
    assert cost.time == pytest.approx(moved(64) / 1e12, rel=1e-9)


def test_clocks_of_a_grid_are_those_of_its_points() -> None:
    rows = np.array([1.0, 64.0, 512.0, 4096.0])
    grid = price(matmul(rows), chip(1e12, 1e15), IDEAL, cap(0.72))
    alone = [price(matmul(float(m)), chip(1e12, 1e15), IDEAL, cap(0.72)) for m in rows]
    assert np.asarray(grid.clock) == pytest.approx([one.clock for one in alone], rel=1e-9)
    assert np.asarray(grid.time) == pytest.approx([one.time for one in alone], rel=1e-9)
    assert 0 < np.sum(np.asarray(grid.clock) < 1) < 4


@cache
def batch(watts: float | None = None, size: float = 8.0, tp: int = 1) -> Estimate:
    """Llama-3.1-8B on H100s."""
    request = Request(model="llama-3.1-8b", gpu="h100-sxm", power_cap=watts, parallel=Parallelism(tp=tp))
    return Estimate(deployment=assemble(request), load=StaticLoad(batch=size, prompt=1024.0, output=256.0))


def test_a_cap_at_tdp_changes_nothing() -> None:
    plain, capped = batch(), batch(700.0)
    for phase in ("prefill", "decode"):
        mine, theirs = getattr(plain, phase).by_operator(), getattr(capped, phase).by_operator()
        assert mine == theirs
    assert (float(plain.ttft), float(plain.tpot)) == (float(capped.ttft), float(capped.tpot))
    assert StaticEnergy(estimate=plain).per_request == StaticEnergy(estimate=capped).per_request


def test_lower_caps_are_never_faster_and_never_draw_more() -> None:
    found = [(watts, batch(watts)) for watts in (700.0, 600.0, 500.0, 400.0, 330.0)]
    energies = [StaticEnergy(estimate=one) for _, one in found]
    assert np.all(np.diff([float(one.ttft) for _, one in found]) > 0)
    assert np.all(np.diff([float(one.tpot) for _, one in found]) >= 0)
    assert np.all(np.diff([one.prefill.watts for one in energies]) < 0)
    for (watts, one), energy in zip(found, energies):
        assert energy.prefill.watts <= watts * (1 + 1e-12)
        assert energy.decode is not None and energy.decode.watts <= watts
        for cost in one.prefill.costs:  # what each kernel draws, written out here
            shares, clock = one.deployment.cap.shares, float(cost.clock)  # type: ignore[union-attr]
            own = float(price(cost.op, one.deployment.hardware, one.deployment.calibration).time)
            math = 0.0 if cost.op.math is None else float(cost.work.flop) / one.deployment.hardware.peak[cost.op.math]
            traffic = float(cost.work.bytes) / one.deployment.hardware.memory.bandwidth
            memory = shares.memory * traffic
            arithmetic = min(shares.arithmetic * math + shares.moving * traffic, (1 - shares.running) * own - memory)
            drawn = shares.static + (shares.running - shares.static) * clock ** (1 + shares.voltage)
            drawn += (arithmetic * clock**shares.voltage + memory) / float(cost.time)
            assert 700 * drawn <= watts * (1 + 1e-9)
            assert clock == 1.0 or 700 * drawn == pytest.approx(watts, rel=1e-9)


def test_decode_pays_less_for_a_cap_than_the_prefill() -> None:
    """Memory has a clock of its own: at 500 W of 700 W a decode step is as fast, a prefill a sixth slower."""
    assert float(batch(500.0).tpot / batch().tpot) == pytest.approx(1.0, abs=0.001)
    assert 1.1 < float(batch(500.0).ttft / batch().ttft) < 1.25


def test_joules_of_a_step_by_hand() -> None:
    """Of an ideal device no kernel is above TDP in decode: 700 W times 0.393 of the time, 2.539 of the seconds of its
    FLOP and 0.470 of those of its bytes."""
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", ideal=True))
    estimate = Estimate(deployment=deployment, load=StaticLoad(batch=8.0, prompt=1024.0, output=256.0))
    found = StaticEnergy(estimate=estimate).decode
    assert found is not None
    step = estimate.decode
    assert found.on == pytest.approx(700 * 0.393 * float(estimate.tpot), rel=1e-12)
    by_hand = 700 * (2.539 * float(step.flop) / 989.4e12 + 0.470 * float(step.bytes) / 3.35e12)
    assert found.worked == pytest.approx(by_hand, rel=1e-9)
    # 7.5e9 parameters in two bytes and 8 x 1152 x 131,072 B of cache: 16.2 GB, 4.84 ms; 2 x 8 x 7.5e9 FLOP, 0.12 ms
    assert found.watts == pytest.approx(700 * (0.393 + 0.470 + 2.539 * 0.12 / 4.84), rel=0.005)
    assert found.joules == pytest.approx(found.watts * found.seconds, rel=1e-12)


def test_watts_of_servers_that_were_measured() -> None:
    """Every eighth of 188 runs of vLLM on H100 and B200 (ML.ENERGY), each with its measured seconds of a step."""
    with (Path(__file__).parent / "benchmarks" / "power_serving.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[::8]
    off = []
    for row in rows:
        made = assemble(Request(model=row["model"], gpu=row["gpu"], parallel=Parallelism(tp=int(row["tp"]))))
        step = decode_cycle(made, float(row["sequences"]), 200 + float(row["output_tokens"]) / 2)
        seconds = float(row["sequences"]) / float(row["tokens_per_s"])
        joules = sum(step_joules(step, power_shares(made.hardware), seconds))
        off.append(float(joules) / seconds / float(row["watts"]) - 1)
    assert len(off) == 24
    assert np.mean(np.abs(off)) < 0.15 and abs(np.mean(off)) < 0.07


def test_phases_add_up_to_a_request() -> None:
    found = StaticEnergy(estimate=batch(), asked=EnergyAsked(pue=1.25, host_watts=100.0))
    assert found.decode is not None and found.per_token is not None and found.per_output_token is not None
    prefill = 1.25 * (found.prefill.joules + 100 * found.prefill.seconds)
    decode = 1.25 * (found.decode.joules + 100 * found.decode.seconds)
    assert found.per_request == pytest.approx((prefill + 255 * decode) / 8, rel=1e-9)
    assert found.per_token == pytest.approx(decode / 8, rel=1e-9)
    assert found.per_output_token == pytest.approx(found.per_request / 256, rel=1e-9)
    on, joules = (found.prefill.on + 255 * found.decode.on), (found.prefill.joules + 255 * found.decode.joules)
    assert found.idle_share == pytest.approx(on / joules, rel=1e-9)


def test_each_answer_to_a_prompt_has_its_share_of_a_decode_step() -> None:
    """Two prompts with four answers each: a step makes eight tokens, and every answer takes part in all 255 of them."""
    load = StaticLoad(batch=2.0, prompt=1024.0, output=256.0, samples=4)
    found = StaticEnergy(estimate=replace(batch(), load=load))
    assert found.decode is not None and found.per_token is not None and found.per_output_token is not None
    assert found.per_token == pytest.approx(found.decode.joules / 8, rel=1e-9)
    request = (found.prefill.joules + 255 * found.decode.joules) / 2
    assert found.per_request == pytest.approx(request, rel=1e-9)
    assert found.per_output_token == pytest.approx(request / (4 * 256), rel=1e-9)


def test_two_devices_are_on_for_the_same_time() -> None:
    one, two = StaticEnergy(estimate=batch()).decode, StaticEnergy(estimate=batch(tp=2)).decode
    assert one is not None and two is not None
    assert two.on == pytest.approx(2 * 700 * 0.393 * two.seconds, rel=1e-12)
    assert two.worked == pytest.approx(one.worked, rel=0.05)  # the same matrices, in halves


def test_energy_is_explained_by_its_formula() -> None:
    request = Request(model="llama-3.1-8b", gpu="h100-sxm", power_cap=500.0)
    explainer = Explainer(request=request, load=StaticLoad(batch=8.0, prompt=1024.0, output=256.0))
    energy = StaticEnergy(estimate=batch(500.0))
    assert energy.decode is not None
    values = {
        "energy.prefill": energy.prefill.joules,
        "energy.decode": energy.decode.joules / 8,
        "energy.request": energy.per_request,
        "watts.prefill": energy.prefill.watts,
        "watts.decode": energy.decode.watts,
    }
    for name, value in values.items():
        assert energy.terms(name).evaluate() == pytest.approx(value, rel=1e-9), name
        assert explainer.explain(name).value == pytest.approx(value, rel=1e-9), name
    places = {entry.symbol: entry.origin for entry in explainer.explain("energy.prefill").inputs}
    assert places["running"].startswith("configs/power.yaml:")
    assert places["TDP"].startswith("configs/hardware/h100-sxm.yaml:")
    assert places["limit"].startswith("--power-cap")
    places = {entry.symbol: entry.origin for entry in explainer.explain("energy.decode").inputs}
    assert places["clock"].startswith("--power-cap")
    assert places["static"] == "configs/power.yaml:4: clocks.static", "once for all makers"


def test_grams_between_any_moments() -> None:
    """100 g until 6:00, 500 until 18:00, 300 until midnight; an hour on both sides of midnight has 200."""
    grid = Carbon(grams=0.0, source="by hand", steps=((0.0, 100.0), (21_600.0, 500.0), (64_800.0, 300.0)))
    assert grid.between(3600.0, 7200.0) == 100.0
    assert grid.between(86_400.0 + 18_000.0, 86_400.0 + 25_200.0) == pytest.approx(300.0)
    assert grid.between(82_800.0, 90_000.0) == pytest.approx(200.0)
    assert grid.between(9 * 86_400.0 + 84_600.0, 10 * 86_400.0 + 1800.0) == pytest.approx(200.0)


def test_carbon_by_hand() -> None:
    """3.6 MJ are a kWh."""
    found = StaticEnergy(estimate=batch(), asked=EnergyAsked(carbon=Carbon(grams=380.0, source="by hand")))
    assert found.grams(3.6e6) == pytest.approx(380.0)
    assert carbon_of("deu") == Carbon(
        grams=344.14,
        source=carbon_of("DEU").source,  # type: ignore[union-attr]
    )
    assert carbon_of(None) is None
    with pytest.raises(UnknownNameError, match="DEU"):
        carbon_of("DEX")
    with pytest.raises(UsageError):
        carbon_of("-1")
    with pytest.raises(UsageError):
        carbon_of("nan")


@for_each(
    ("change", "said"),
    [
        ({"power_cap": 701.0}, "above what h100-sxm draws"),
        ({"power_cap": 317.0}, "below what the law of clocks covers"),  # (0.18 + 0.273) * 700 = 317.1 W
        ({"gpu": "tpu-v6e", "power_cap": 100.0, "memory": "30GB"}, "the power of tpu-v6e is not on file"),
    ],
)
def test_caps_that_mean_nothing_are_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises((UsageError, MissingFactError), match=said):
        assemble(replace(Request(model="llama-3.1-8b", gpu="h100-sxm"), **change))  # type: ignore[arg-type]
    assert assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", power_cap=317.2)).cap is not None


def served(watts: float | None, users: int) -> tuple[Estimate, float, float]:
    """Users who ask again and again: the estimate of their batch, and joules and TPOT of a request by simulation."""
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", power_cap=watts))
    load = Traffic(
        arrivals=ClosedLoop(concurrency=users, burst=True),
        prompt=Lengths(mean=2048.0),
        output=Lengths(mean=128.0),
        requests_count=20 * users,
    )
    result = simulate(deployment, load, Flags(), Options())
    energy = run_energy(deployment, result)
    assert energy is not None
    assert energy.prompts + energy.decodes + energy.idle == pytest.approx(energy.watts * energy.seconds, rel=1e-9)
    estimate = Estimate(deployment=deployment, load=StaticLoad(batch=float(users), prompt=2048.0, output=128.0))
    return estimate, (energy.joules - energy.idle) / (20 * users), float(np.mean(result.tpot))


@for_each(("watts", "users"), [(None, 1), (450.0, 1), (None, 8)])
def test_a_simulated_request_takes_the_joules_of_the_estimate(watts: float | None, users: int) -> None:
    """The simulator's step tables and the static estimate are two ways to the same kernels, capped or not. Of several
    users prompts come a few at a time, while the others decode."""
    estimate, joules, tpot = served(watts, users)
    assert joules == pytest.approx(StaticEnergy(estimate=estimate).per_request, rel=0.02 if users == 1 else 0.06)
    assert users > 1 or tpot == pytest.approx(float(estimate.tpot), rel=0.01)


def test_a_mixed_step_is_counted_once() -> None:
    """Of answers of 4 tokens nearly every step holds prompts: the run is such steps, one after another, and its watts
    are theirs."""
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    load = Traffic(
        arrivals=ClosedLoop(concurrency=64, burst=True),
        prompt=Lengths(mean=512.0),
        output=Lengths(mean=4.0),
        requests_count=400,
    )
    result = simulate(deployment, load, Flags(), Options())
    found = run_energy(deployment, result)
    assert found is not None
    assert sum(meter.prompt_steps for meter in result.meters) > 0.9 * sum(meter.steps for meter in result.meters)
    assert 0.98 * found.highest < found.watts < found.highest


def test_a_step_beyond_another_is_what_it_takes_more() -> None:
    mixed, alone = _Step(3.0, 5.0, 7.0), _Step(1.0, 2.0, 9.0)
    assert mixed.beyond(alone) == _Step(2.0, 3.0, 7.0)
    assert alone.beyond(mixed) == _Step(0.0, 0.0, 9.0)


def test_masks_take_joules_each() -> None:
    """One mask takes the same joules whenever it is applied: a run of which every answer has a mask at each of its
    tokens takes twice what one takes of which half do. Drafts of which 1.875 of four verified tokens are kept take
    4/1.875 of it."""
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    load = Traffic(
        arrivals=ClosedLoop(concurrency=4, burst=True),
        prompt=Lengths(mean=128.0),
        output=Lengths(mean=32.0),
        requests_count=8,
    )
    result = simulate(deployment, load, Flags(), Options())

    def joules(share: float, speculation: Speculation = PLAIN) -> float:
        masks = Structured(share=share, mask_time=1e-6, cores=32, bandwidth=63e9)
        return _mask_joules(deployment, result, Options(structured=masks, speculation=speculation))

    assert joules(1.0) == pytest.approx(2 * joules(0.5)) and joules(1.0) > 0
    drafts = Speculation(length=3, acceptance=0.5)  # 1 + 1/2 + 1/4 + 1/8 tokens of the four that a step verifies
    assert joules(1.0, drafts) == pytest.approx(joules(1.0) * 4 / 1.875)


def test_standing_idle_takes_energy() -> None:
    """Two requests a minute apart on an H100: 0.164 * 700 W for nearly all of the minute, 0.393 in the steps."""
    from inferplan.traffic.requests import Requests

    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    requests = Requests(prompt=np.full(2, 64), output=np.full(2, 8), arrival=np.array([0.0, 60.0]), hashes=None)
    found = run_energy(deployment, simulate(deployment, requests, Flags(), Options()))
    assert found is not None
    assert found.idle == pytest.approx(0.164 * 700 * 60, rel=0.01)
    assert found.on == pytest.approx(700 * (0.164 * (found.seconds - found.busy) + 0.393 * found.busy), rel=1e-12)
    assert 0.0 < found.busy < 0.2
    assert found.highest <= 700
