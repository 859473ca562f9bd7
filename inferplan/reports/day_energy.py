"""Energy and CO2 of a day beside its policies (docs/power.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inferplan.answers.energy import EnergyAsked
from inferplan.devices.power import UNMEASURED
from inferplan.figures import Figure, record, side_by_side, text
from inferplan.planning.day import Day
from inferplan.planning.day_energy import DayEnergy
from inferplan.reports.energy import ERROR_NOTE, asked_record, carbon_notes, joules
from inferplan.table import Report

ALWAYS_ON = (
    "a GPU draws its idle share from the order of its replica on: one that starts or waits for requests draws less, so "
    "that this is too much"
)


def with_day_energy(report: Report, day: Day, asked: EnergyAsked) -> Report:
    """The report of a day with the energy of each policy; kWh and CO2 are of a day, whatever the span."""
    found = [DayEnergy(day=day, policy=one, asked=asked) for one in day.policies]
    rows = [_row(day, one, found[0]) for one in found]
    energy = {
        **asked_record(asked),
        "policies": [{**record(row), "hours": _hours(one)} for row, one in zip(rows, found)],
    }
    cap = day.work.replica.deployment.cap
    notes = [*report.notes, ERROR_NOTE, ALWAYS_ON, *carbon_notes(asked)]
    notes += [] if cap is None or not cap.holds else [f"cap of {cap.watts:g} W: {UNMEASURED}"]
    tables = [*report.tables, side_by_side(f"Energy ({asked.scope})", rows)]
    return replace(report, record={**report.record, "energy": energy}, tables=tables, notes=notes)


def _row(day: Day, one: DayEnergy, first: DayEnergy) -> list[Figure]:
    """The energy of a policy beside that of the first."""
    kwh, grams = sum(one.kwh), None if one.grams is None else sum(one.grams)
    carbon = one.asked.carbon is not None
    return [
        Figure("policy", one.policy.policy, "policy", left=True),
        Figure("kwh_per_day", kwh * day.days, "kWh a day", ",.2f"),
        text("saving", "" if one is first else f"{1.0 - kwh / sum(first.kwh):.1%}"),
        Figure("idle_share", one.idle_share, "for being on", ".0%"),
        Figure("j_per_output_token", one.per_output_token, "an output token", joules),
        Figure(
            "carbon_g_per_day",
            None if grams is None else grams * day.days,
            "kg CO2 a day",
            lambda g: f"{g / 1e3:,.3f}",
            seen=carbon,
        ),
        Figure("carbon_g_per_kwh", None if grams is None else grams / kwh, "g/kWh", ",.1f", seen=carbon),
        Figure(
            "request_g",
            None if grams is None else grams / len(day.requests),
            "CO2 of a request",
            lambda g: f"{g * 1e3:,.3g} mg",
            seen=carbon,
        ),
    ]


def _hours(one: DayEnergy) -> list[dict[str, Any]]:
    grams: list[float | None] = [*one.grams] if one.grams is not None else [None for _ in one.kwh]
    return [{"hour": hour, "kwh": kwh, "carbon_g": of} for hour, (kwh, of) in enumerate(zip(one.kwh, grams))]
