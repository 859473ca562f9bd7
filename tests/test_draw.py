"""Joules of a step, and watts of a kernel under a cap, of shares and times that are written down here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferplan.catalog.energy import EnergyAsked
from inferplan.devices.power import PowerCap, PowerShares
from inferplan.estimate import draw
from inferplan.planning.power import PowerBudget, nameplate

SHARES = PowerShares(
    source="by hand", error="by hand", running=0.4, standing=0.1, standing_source="by hand", arithmetic=0.8,
    memory=0.3, moving=0.2, static=0.1, voltage=2.0, clock_source="by hand",
)  # fmt: skip


def kernel(clock: Any = 1.0, place: str = "device", time: float = 2.0) -> Any:
    return SimpleNamespace(op=SimpleNamespace(place=place), work=None, clock=clock, time=time)


@pytest.fixture
def worked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kernel of 0.5 s of arithmetic and 1.5 s of memory traffic at the peaks."""
    times = SimpleNamespace(math=0.5, memory=1.5)
    monkeypatch.setattr(draw, "ideal_time", lambda op, work, hardware, name: times)
    phase = SimpleNamespace(deployment=SimpleNamespace(runs_on=lambda op: [None]))
    return lambda cost, shares=SHARES: draw._worked(phase, cost, shares)  # type: ignore[arg-type]


def test_what_a_kernel_takes_above_being_on(worked: Any) -> None:
    """0.8 x 0.5 + 0.2 x 1.5 in the cores, 0.3 x 1.5 in the memory; nothing on the host."""
    assert worked(kernel()) == pytest.approx(0.4 + 0.3 + 0.45)
    assert worked(kernel(), SHARES.model_copy(update={"moving": 0.0})) == pytest.approx(0.4 + 0.45)
    assert worked(kernel(place="host")) == 0.0


def test_what_a_slower_clock_saves(worked: Any) -> None:
    """At 0.8 of the clock an operation takes 0.64 of its energy; of 0.4 - 0.1 that fall with the clock 1 - 0.64 x 0.8
    is saved for the 2 s that it takes."""
    assert worked(kernel(clock=0.8)) == pytest.approx(0.7 * 0.64 + 0.45 - 0.3 * (1 - 0.512) * 2.0)
    both = worked(kernel(clock=np.array([1.0, 0.8])))
    assert both.tolist() == pytest.approx([1.15, worked(kernel(clock=0.8))])


def step(watts: float | None = None, cap: Any = None) -> Any:
    return SimpleNamespace(
        deployment=SimpleNamespace(
            parallel=SimpleNamespace(ranks=2), hardware=SimpleNamespace(tdp=500.0), cap=cap
        )
    )  # fmt: skip


def test_a_step_on_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """On for 3 s: 500 W x 0.4 x 2 x 3. Above it 2 s of TDP of work, or what is left of TDP, or of a cap of 300 W."""
    seconds = [2.0]
    monkeypatch.setattr(draw, "over_ranks", lambda phase, of, *_: seconds[0])
    assert draw.step_joules(step(), SHARES, 3.0) == pytest.approx((1200.0, 1000.0))  # type: ignore[arg-type]
    seconds[0] = 9.0
    assert draw.step_joules(step(), SHARES, 3.0)[1] == pytest.approx(500 * 0.6 * 2 * 3)  # type: ignore[arg-type]
    cap = PowerCap(watts=300.0, tdp=500.0, shares=SHARES)
    assert draw.step_joules(step(cap=cap), SHARES, 3.0)[1] == pytest.approx(500 * 0.2 * 2 * 3)  # type: ignore[arg-type]


def test_what_is_left_of_tdp_is_the_most_that_is_drawn() -> None:
    """0.6 of each of 2 s is left: 0.3 x 1.5 by the memory, and no more than the rest by the cores."""
    assert SHARES.dynamic(0.25, 1.5, 2.0) == pytest.approx((0.8 * 0.25 + 0.2 * 1.5, 0.45))
    assert SHARES.dynamic(5.0, 1.5, 2.0) == pytest.approx((1.2 - 0.45, 0.45))
    assert SHARES.dynamic(0.5, 9.0, 2.0) == pytest.approx((0.0, 1.2))


def test_watts_at_a_clock() -> None:
    """0.1, (0.4 - 0.1) x 0.5^2 x 0.5, and (0.6 x 0.25 + 0.4) s of TDP in 4 s."""
    cap = PowerCap(watts=300.0, tdp=500.0, shares=SHARES)
    assert cap.drawn(0.5, (0.6, 0.4), 4.0) == pytest.approx(0.1 + 0.3 * 0.125 + 0.55 / 4)
    assert cap.holds and not PowerCap(watts=500.0, tdp=500.0, shares=SHARES).holds


def test_the_clock_at_the_cap() -> None:
    """A kernel that takes 1 s/clock, and draws 0.6 of TDP for it: 0.1 + 0.3 c^3 + 0.6 c^3 is 0.6 at c = (5/9)^(1/3)."""
    cap = PowerCap(watts=300.0, tdp=500.0, shares=SHARES)
    assert cap.clock((0.6, 0.0), lambda clock: 1.0 / clock) == pytest.approx((5 / 9) ** (1 / 3), rel=1e-9)
    assert cap.clock((0.2, 0.0), lambda clock: 1.0 / clock) == 1.0
    both = cap.clock((np.array([0.6, 0.2]), np.zeros(2)), lambda clock: 1.0 / clock)
    assert np.asarray(both).tolist() == pytest.approx([(5 / 9) ** (1 / 3), 1.0])


def test_a_budget_of_watts() -> None:
    """Three devices of 700 W are 2.1 kW by their nameplates."""
    device = SimpleNamespace(hardware=SimpleNamespace(tdp=700.0), cap=None)
    kinds: Any = [(device, 3)]
    assert PowerBudget(watts=2100.0).least(kinds) == 2100.0 and PowerBudget(watts=2100.0).allows(kinds)
    assert not PowerBudget(watts=2099.0).allows(kinds) and PowerBudget(watts=1.0).fills
    assert not PowerBudget(watts=1.0, provision="mean").fills
    assert nameplate(SimpleNamespace(hardware=device.hardware, cap=SimpleNamespace(watts=500.0))) == 500.0  # type: ignore[arg-type]
    assert nameplate(device) == 700.0
    beside = EnergyAsked(pue=1.5, host_watts=100.0)
    assert PowerBudget(watts=1.0, beside=beside).whole(700.0, 3) == 1.5 * 800 * 3
    assert PowerBudget(watts=40000.0).describe().startswith("40 kW (nameplate, ")
    assert PowerBudget(watts=1500.0, provision="mean").describe().startswith("1.5 kW (mean draw, ")
