"""Energy by phase as people read it, and as JSON (docs/power.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from inferplan.answers.energy import JOULES_PER_KWH, PhaseEnergy, StaticEnergy, quickest
from inferplan.answers.power import RunEnergy, run_energy
from inferplan.catalog.energy import EnergyAsked
from inferplan.catalog.power import power_shares
from inferplan.devices.power import UNMEASURED
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import Phase
from inferplan.estimate.resting import PARTS, Resting
from inferplan.figures import Figure, labelled_texts, lines, record, text
from inferplan.serving.options import Options
from inferplan.serving.result import SimulationResult
from inferplan.table import Report, Table
from inferplan.units import format_quantity, format_time

WATTS: Resting = PARTS["energy"].on("published")
"""What every figure of energy rests on."""


def error_note(deployment: Deployment) -> str:
    """How far off watts and joules are."""
    return f"energy: shares of TDP {power_shares(deployment.hardware).error} (docs/power.md)"


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
    return {**asked_record(energy.asked), **record(_static(energy))}


def energy_table(energy: StaticEnergy) -> Table:
    """One replica's batch: joules of its phases, watts of a GPU, grams of CO2."""
    return lines(f"energy ({energy.asked.scope})", _static(energy), "energy")


def _static(energy: StaticEnergy) -> list[Figure]:
    """A batch of one replica: joules of its phases, watts of a GPU, grams of CO2."""
    decode, each = energy.decode, energy.per_output_token
    steps = decode is not None and energy.per_token is not None
    kwh = None if each is None else each * 1e6 / JOULES_PER_KWH
    carbon, grams = energy.asked.carbon, energy.grams(energy.per_request)
    emitted = "" if carbon is None or kwh is None else f"{kwh * carbon.grams:,.1f} g"
    return [
        _phase("prefill", energy, energy.prefill, "prompts of the batch"),
        text("  watts per GPU", f"{energy.prefill.watts:,.0f} W"),
        Figure("decode_step", None) if decode is None else _phase("decode_step", energy, decode),
        Figure("decode_j_per_output_token", energy.per_token, "per output token, decode only", joules, seen=steps),
        text("  watts per GPU", f"{decode.watts:,.0f} W" if decode is not None else "", seen=steps),
        Figure("request_j", energy.per_request, "a request", joules),
        Figure("j_per_output_token", each, "per output token, counting input as free", joules, seen=each is not None),
        Figure("", kwh, "per million output tokens", "{:,.3f} kWh", seen=kwh is not None),
        Figure("idle_share", energy.idle_share),
        Figure("request_g", grams),
        Figure(
            "g_per_million_output_tokens",
            each and energy.grams(each * 1e6),
            "  CO2",
            text=emitted,
            seen=bool(emitted),
        ),
        text("CO2 per request", f"{(grams or 0.0) * 1e3:,.3g} mg", seen=grams is not None),
        text("share of the GPUs' energy for being on", f"{energy.idle_share:.0%}"),
    ]


def _phase(key: str, energy: StaticEnergy, phase: PhaseEnergy, label: str | None = None) -> Figure:
    whole = energy.whole(phase)
    row = {"joules": whole, "gpu_joules": phase.joules, "idle_joules": phase.on, "gpu_w": phase.watts}
    return Figure(key, row, label, text=joules(whole))


def energy_notes(energy: StaticEnergy) -> list[str]:
    """What the figures rest on, and what a cap assumes."""
    cap = energy.estimate.deployment.cap
    notes = [error_note(energy.estimate.deployment), *carbon_notes(energy.asked)]
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


def with_run_energy(
    report: Report, run: tuple[Deployment, Options], result: SimulationResult, asked: EnergyAsked
) -> Report:
    """The report of a run with its joules. run: what was simulated. Raises ``UsageError`` without steps."""
    found = run_energy(run[0], result, run[1])
    if found is None:
        raise UsageError("a run without steps takes no energy", hint="a load that the deployment can serve")
    figures, whole = _run(found, asked, result), _all_of(found)
    parts = {"prompts": found.prompts, "decoding": found.decodes, "no step: idle": found.idle, whole: found.joules}
    parts["of which for being on"] = found.on
    shares = {label: f"{part / found.joules:.0%}" for label, part in parts.items()}
    rows = [[label, said, shares.get(label, "")] for label, said in labelled_texts(figures)]
    table = Table(title="Energy", columns=["", "value", "share"], rows=rows, right=frozenset({"value", "share"}))
    notes = [*report.notes, error_note(run[0]), *carbon_notes(asked)]
    given = report.record["conditions"]
    more = {"conditions": given | {"rests_on": given["rests_on"] | {"energy": WATTS}}}
    energy = {**asked_record(asked), **record(figures)}
    return replace(
        report, record={**report.record, **more, "energy": energy}, tables=[*report.tables, table], notes=notes
    )


def _all_of(found: RunEnergy) -> str:
    return f"all of {found.devices} GPU{'s' * (found.devices > 1)}"


def _run(found: RunEnergy, asked: EnergyAsked, result: SimulationResult) -> list[Figure]:
    """The joules of a run, by what they were spent on, and of a token and a request."""
    seconds, whole = found.seconds, asked.whole(found.joules, found.devices, found.seconds)
    tokens, requests = result.output_rate * result.duration, result.request_rate * result.duration
    grams = None if asked.carbon is None else whole / JOULES_PER_KWH * asked.carbon.grams
    each, request = whole / tokens if tokens else None, whole / requests if requests else None
    million = None if grams is None or not tokens else grams / tokens * 1e6
    return [
        Figure("joules", whole),
        Figure("gpu_joules", found.joules),
        Figure("prompt_joules", found.prompts, "prompts", joules),
        Figure("decode_joules", found.decodes, "decoding", joules),
        Figure("idle_joules", found.idle, "no step: idle", joules),
        text(_all_of(found), joules(found.joules)),
        Figure("idle_share", found.on / found.joules, "of which for being on", text=joules(found.on)),
        Figure("gpu_w_mean", found.watts, "per GPU, mean", "{:,.0f} W"),
        Figure("gpu_w_highest_step", found.highest, "per GPU, in the step that draws most", "{:,.0f} W"),
        Figure("w_mean", whole / seconds),
        Figure("gpus", found.devices),
        Figure("j_per_output_token", each, f"per output token, {asked.scope}", joules, seen=each is not None),
        Figure("request_j", request, f"per request, {asked.scope}", joules, seen=request is not None),
        Figure("request_g", None if grams is None or not requests else grams / requests),
        Figure(
            "g_per_million_output_tokens",
            million,
            "CO2 per million output tokens",
            "{:,.1f} g",
            seen=million is not None,
        ),
    ]


def carbon_notes(asked: EnergyAsked) -> list[str]:
    """Who says what a kWh emits."""
    if asked.carbon is None:
        return []
    return [f"CO2: {asked.carbon.grams:g} g/kWh, {asked.carbon.source}; operation only, manufacture not counted"]


def joules(value: float) -> str:
    return format_quantity(value, "J")
