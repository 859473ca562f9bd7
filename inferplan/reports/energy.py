"""Energy by phase as people read it, and as JSON (docs/power.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from inferplan.answers.energy import JOULES_PER_KWH, EnergyAsked, PhaseEnergy, StaticEnergy, quickest
from inferplan.answers.power import RunEnergy, run_energy
from inferplan.devices.power import UNMEASURED
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import Phase
from inferplan.serving.options import Options
from inferplan.serving.result import SimulationResult
from inferplan.table import Report, Table
from inferplan.units import format_quantity, format_time

_RIGHT = frozenset({"value"})
ERROR_NOTE = (
    "energy: shares of TDP fitted to matmuls on H200 and B200; kernels of a GPU left out are off by 29 to 51 %, "
    "serving of another GPU by 9 % (docs/power.md)"
)


def asked_record(asked: EnergyAsked) -> dict[str, Any]:
    """What is counted beside the devices, as the JSON of every ``energy`` says it."""
    return {
        "scope": asked.scope,
        "pue": asked.pue,
        "host_w_per_gpu": asked.host_watts,
        "carbon_g_per_kwh": None if asked.carbon is None else asked.carbon.grams,
        "carbon_source": None if asked.carbon is None else asked.carbon.source,
    }


def energy_record(energy: StaticEnergy) -> dict[str, Any]:
    """The JSON of ``energy`` (docs/json.md)."""
    return {
        **asked_record(energy.asked),
        "prefill": _phase_record(energy, energy.prefill),
        "decode_step": None if energy.decode is None else _phase_record(energy, energy.decode),
        "decode_j_per_output_token": energy.per_token,
        "request_j": energy.per_request,
        "j_per_output_token": energy.per_output_token,
        "idle_share": energy.idle_share,
        "request_g": energy.grams(energy.per_request),
        "g_per_million_output_tokens": None
        if energy.per_output_token is None
        else energy.grams(energy.per_output_token * 1e6),
    }


def _phase_record(energy: StaticEnergy, phase: PhaseEnergy) -> dict[str, Any]:
    return {"joules": energy.whole(phase), "gpu_joules": phase.joules, "idle_joules": phase.on, "gpu_w": phase.watts}


def energy_table(energy: StaticEnergy) -> Table:
    """One replica's batch: joules of its phases, watts of a GPU, grams of CO2."""
    rows = [["prompts of the batch", _joules(energy.whole(energy.prefill))]]
    rows.append(["watts of a GPU meanwhile", f"{energy.prefill.watts:,.0f} W"])
    if energy.decode is not None and energy.per_token is not None:
        rows.append(["an output token, decoding", _joules(energy.per_token)])
        rows.append(["watts of a GPU meanwhile", f"{energy.decode.watts:,.0f} W"])
    rows.append(["a request", _joules(energy.per_request)])
    if energy.per_output_token is not None:
        rows.append(["an output token, all of it on them", _joules(energy.per_output_token)])
        kwh = energy.per_output_token * 1e6 / JOULES_PER_KWH
        rows.append(["a million output tokens", f"{kwh:,.3f} kWh"])
        if energy.asked.carbon is not None:
            rows.append(["their CO2", f"{kwh * energy.asked.carbon.grams:,.1f} g"])
    if (grams := energy.grams(energy.per_request)) is not None:
        rows.append(["CO2 of a request", f"{grams * 1e3:,.3g} mg"])
    rows.append(["share of the GPUs' that they take for being on", f"{energy.idle_share:.0%}"])
    return Table(title=f"energy ({energy.asked.scope})", columns=["energy", "value"], rows=rows, right=_RIGHT)


def energy_notes(energy: StaticEnergy) -> list[str]:
    """What the figures rest on, and what a cap assumes."""
    cap, notes = energy.estimate.deployment.cap, [ERROR_NOTE, *carbon_notes(energy.asked)]
    if cap is None or not cap.holds:
        return notes
    slow, fast = quickest(energy.estimate)
    decode = "" if energy.decode is None else f", {_lowest(energy.estimate.decode):.0%} in a decode step"
    notes.append(
        f"cap of {cap.watts:g} W: lowest clock {_lowest(energy.estimate.prefill):.0%} in the prefill{decode}; by the "
        f"law of voltage TTFT is {format_time(fast)} to {format_time(slow)}; {UNMEASURED}"
    )
    return notes


def _lowest(phase: Phase) -> float:
    return min(float(np.min(cost.clock)) for cost in phase.costs)


def run_record(found: RunEnergy, asked: EnergyAsked, result: SimulationResult) -> dict[str, Any]:
    """The JSON of a run's ``energy`` (docs/json.md)."""
    seconds, whole = found.seconds, asked.whole(found.joules, found.devices, found.seconds)
    tokens, requests = result.output_rate * result.duration, result.request_rate * result.duration
    grams = None if asked.carbon is None else whole / JOULES_PER_KWH * asked.carbon.grams
    return {
        **asked_record(asked),
        "joules": whole,
        "gpu_joules": found.joules,
        "prompt_joules": found.prompts,
        "decode_joules": found.decodes,
        "idle_joules": found.idle,
        "idle_share": found.on / found.joules,
        "gpu_w_mean": found.watts,
        "gpu_w_highest_step": found.highest,
        "w_mean": whole / seconds,
        "gpus": found.devices,
        "j_per_output_token": whole / tokens if tokens else None,
        "request_j": whole / requests if requests else None,
        "request_g": None if grams is None or not requests else grams / requests,
        "g_per_million_output_tokens": None if grams is None or not tokens else grams / tokens * 1e6,
    }


def with_run_energy(
    report: Report, run: tuple[Deployment, Options], result: SimulationResult, asked: EnergyAsked
) -> Report:
    """The report of a run with its joules. run: what was simulated. Raises ``UsageError`` without steps."""
    found = run_energy(run[0], result, run[1])
    if found is None:
        raise UsageError("a run without steps takes no energy", hint="a load that the deployment can serve")
    record = run_record(found, asked, result)
    parts = [("prompts", found.prompts), ("decoding", found.decodes), ("no step: idle", found.idle)]
    rows = [[name, _joules(joules), f"{joules / found.joules:.0%}"] for name, joules in parts]
    rows += [
        [f"all of {found.devices} GPU{'s' * (found.devices > 1)}", _joules(found.joules), "100%"],
        ["of it for being on", _joules(found.on), f"{found.on / found.joules:.0%}"],
        ["a GPU, mean", f"{found.watts:,.0f} W", ""],
        ["a GPU in the step that draws most", f"{found.highest:,.0f} W", ""],
    ]
    if record["j_per_output_token"] is not None:
        rows.append([f"an output token, {asked.scope}", _joules(record["j_per_output_token"]), ""])
        rows.append([f"a request, {asked.scope}", _joules(record["request_j"]), ""])
    if record["g_per_million_output_tokens"] is not None:
        rows.append(["CO2 of a million output tokens", f"{record['g_per_million_output_tokens']:,.1f} g", ""])
    table = Table(title="Energy", columns=["", "value", "share"], rows=rows, right=frozenset({"value", "share"}))
    notes = [*report.notes, ERROR_NOTE, *carbon_notes(asked)]
    return replace(report, record={**report.record, "energy": record}, tables=[*report.tables, table], notes=notes)


def carbon_notes(asked: EnergyAsked) -> list[str]:
    """Who says what a kWh emits."""
    if asked.carbon is None:
        return []
    return [f"CO2: {asked.carbon.grams:g} g/kWh, {asked.carbon.source}; operation alone, nothing of the making"]


def _joules(value: float) -> str:
    return format_quantity(value, "J")
