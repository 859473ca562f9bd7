"""Energy and CO2 of a day beside its policies (docs/power.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inferplan.answers.energy import EnergyAsked
from inferplan.devices.power import UNMEASURED
from inferplan.planning.day import Day
from inferplan.planning.day_energy import DayEnergy
from inferplan.reports.energy import ERROR_NOTE, asked_record, carbon_notes
from inferplan.table import Report, Table
from inferplan.units import format_quantity

ALWAYS_ON = (
    "a GPU draws its idle share from the order of its replica on: one that starts or waits for requests draws less, so "
    "that this is too much"
)


def with_day_energy(report: Report, day: Day, asked: EnergyAsked) -> Report:
    """The report of a day with the energy of each policy; kWh and CO2 are of a day, whatever the span."""
    found = [DayEnergy(day=day, policy=one, asked=asked) for one in day.policies]
    rows = [_row(day, one) for one in found]
    record = {
        **asked_record(asked),
        "policies": [{**row, "hours": _hours(one)} for row, one in zip(rows, found)],
    }
    cap = day.work.replica.deployment.cap
    notes = [*report.notes, ERROR_NOTE, ALWAYS_ON, *carbon_notes(asked)]
    notes += [] if cap is None or not cap.holds else [f"cap of {cap.watts:g} W: {UNMEASURED}"]
    tables = [*report.tables, _table(rows, asked)]
    return replace(report, record={**report.record, "energy": record}, tables=tables, notes=notes)


def _row(day: Day, one: DayEnergy) -> dict[str, Any]:
    kwh, grams = sum(one.kwh), one.grams
    return {
        "policy": one.policy.policy,
        "kwh_per_day": kwh * day.days,
        "idle_share": one.idle_share,
        "j_per_output_token": one.per_output_token,
        "carbon_g_per_day": None if grams is None else sum(grams) * day.days,
        "carbon_g_per_kwh": None if grams is None else sum(grams) / kwh,
        "request_g": None if grams is None else sum(grams) / len(day.requests),
    }


def _hours(one: DayEnergy) -> list[dict[str, Any]]:
    grams: list[float | None] = [*one.grams] if one.grams is not None else [None for _ in one.kwh]
    return [{"hour": hour, "kwh": kwh, "carbon_g": of} for hour, (kwh, of) in enumerate(zip(one.kwh, grams))]


def _table(rows: list[dict[str, Any]], asked: EnergyAsked) -> Table:
    columns = ["policy", "kWh a day", "saving", "for being on", "an output token"]
    columns += [] if asked.carbon is None else ["kg CO2 a day", "g/kWh", "CO2 of a request"]
    cells = []
    for row in rows:
        saving = 1.0 - row["kwh_per_day"] / rows[0]["kwh_per_day"]
        cell = [row["policy"], f"{row['kwh_per_day']:,.2f}", "" if row is rows[0] else f"{saving:.1%}"]
        cell += [f"{row['idle_share']:.0%}", format_quantity(row["j_per_output_token"], "J")]
        if asked.carbon is not None:
            carbon = row["carbon_g_per_day"], row["carbon_g_per_kwh"], row["request_g"]
            cell += [f"{carbon[0] / 1e3:,.3f}", f"{carbon[1]:,.1f}", f"{carbon[2] * 1e3:,.3g} mg"]
        cells.append(cell)
    return Table(title=f"Energy ({asked.scope})", columns=columns, rows=cells, right=frozenset(columns[1:]))
