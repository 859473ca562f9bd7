"""An estimate as the page draws it: memory, roofline, curves over the batch, cost."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from math import nan
from typing import Any

import numpy as np

from inferplan.answers.cost import Cost, Rates
from inferplan.catalog.price_lists import PriceBook
from inferplan.errors import InferplanError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.phase import Phase
from inferplan.estimate.roofline import OpCost
from inferplan.reports.cost import cost_record
from inferplan.reports.estimate import BOUND_NAMES, band_note
from inferplan.units import Array, Num

_PARTS = (
    ("weights", "weights", "memory.weights"),
    ("adapters", "slots of LoRA adapters", None),
    ("draft_weights", "weights of the draft", None),
    ("state", "KV cache and state", "memory.kv"),
    ("activations", "activations", "memory.activations"),
    ("reserve", "kept by the runtime", "memory.reserve"),
)
"""Parts of the memory: field of the footprint, label, the number that explains it."""


def phases(estimate: Estimate) -> dict[str, Phase]:
    """Its phases by name; one that generates nothing has no decode."""
    found = {"prefill": estimate.prefill}
    return found if estimate.deployment.model.encodes else {**found, "decode": estimate.decode}


def memory(estimate: Estimate) -> list[dict[str, Any]]:
    """Bytes of the fullest device by part; they add up to the total."""
    parts = [(name, label, term, getattr(estimate.footprint, name)) for name, label, term in _PARTS]
    return [
        {"name": name, "label": label, "bytes": float(np.max(size)), "explain": term}
        for name, label, term, size in parts
        if np.any(size) or term
    ]


def roofline_view(estimate: Estimate) -> dict[str, Any]:
    """The roofs of one device, and the operators of both phases under them."""
    deployment = estimate.deployment
    hardware, found = deployment.hardware, phases(estimate)
    bandwidth = hardware.memory.bandwidth
    maths = sorted({cost.op.math for phase in found.values() for cost in phase.costs if cost.op.math})
    return {
        "peak_flop_per_s": deployment.ridge * bandwidth,
        "bandwidth_byte_per_s": bandwidth,
        "ridge": deployment.ridge,
        "math": deployment.math,
        "roofs": [
            {"math": math, "peak_flop_per_s": hardware.peak_of(math), "ridge": hardware.ridge(math)} for math in maths
        ],
        "operators": [row for name, phase in found.items() for row in operator_rows(name, phase)],
    }


def operator_rows(name: str, phase: Phase) -> list[dict[str, Any]]:
    """The operators of a step by name, in its order; their times add up to the step's.

    Intensity and FLOP/s are those of all runs together on one device; what binds and the basis are those of the longest
    of them. The host's share has none.
    """
    runs: dict[str, list[OpCost]] = defaultdict(list)
    for cost in phase.costs:
        runs[cost.op.name].append(cost)
    whole = float(np.max(phase.time))
    rows = []
    for operator, seconds in phase.by_operator().items():
        spent = float(np.max(seconds))
        row = {"phase": name, "name": operator, "time_s": spent, "share": spent / whole}
        rows.append({**row, "explain": f"{name}.{operator}", **_run(runs[operator])})
    return rows


def _run(costs: list[OpCost]) -> dict[str, Any]:
    if not costs:
        return dict.fromkeys(("intensity", "achieved_flop_per_s", "bound", "basis", "math"))

    def whole(values: list[Num], counts: list[float]) -> float:
        return sum(float(np.max(value)) * count for value, count in zip(values, counts, strict=True))

    counts = [float(np.max(cost.op.count)) for cost in costs]
    flop = whole([cost.work.flop for cost in costs], counts)
    moved = whole([cost.work.bytes for cost in costs], counts)
    seconds = whole([cost.time for cost in costs], counts)
    longest = max(costs, key=lambda cost: float(np.max(cost.total)))
    return {
        "intensity": flop / moved if flop and moved else None,
        "achieved_flop_per_s": flop / seconds if flop and seconds else None,
        "bound": BOUND_NAMES[longest.bound],
        "basis": longest.basis,
        "math": longest.op.math or None,
    }


def batches(largest: int, points: int) -> Array:
    """Whole numbers from 1 to the largest batch, all of them or ``points`` in even ratios."""
    count = max(min(largest, points), 1)
    steps = np.arange(count)
    even = np.round(np.geomspace(1, max(largest, 1), count))
    found: Array = np.maximum.accumulate(even - steps) + steps
    return found


def most_sequences(estimate: Estimate) -> int:
    """The most sequences that memory holds and the engine runs at once."""
    deployment = estimate.deployment
    slots = deployment.engine.defaults.tier(deployment.hardware).max_sequences * deployment.parallel.dp
    return int(min(float(np.max(estimate.footprint.max_batch())), slots))


def curves(estimate: Estimate, points: int) -> dict[str, Any]:
    """The batch against latencies and throughput, from 1 to the largest, or to the one asked for if that is more."""
    largest = most_sequences(estimate)
    batch = batches(max(largest, int(estimate.load.batch)), points)
    grid = replace(estimate, load=replace(estimate.load, batch=batch))
    decodes = not estimate.deployment.model.encodes and bool(np.all(grid.load.output > 1))
    times = {"ttft": grid.ttft, **({"tpot": grid.tpot} if decodes else {}), "latency": grid.e2el}
    return {
        "batch": batch.astype(int).tolist(),
        "largest_batch": largest,
        "ttft_s": _along(grid.ttft, batch),
        "tpot_s": _along(grid.tpot, batch) if decodes else None,
        "latency_s": _along(grid.e2el, batch),
        "throughput_tokens_per_s": None if estimate.deployment.model.encodes else _along(grid.output_rate, batch),
        "requests_per_s": _along(grid.request_rate, batch),
        **curve_bands(grid, {name: np.asarray(_along(seconds, batch)) for name, seconds in times.items()}),
    }


def curve_bands(grid: Estimate, times: dict[str, Array]) -> dict[str, Any]:
    """Between which seconds 80 % of measurements lie at each point of a curve; ``None`` where no error is known."""
    found: dict[str, Any] = {}
    bands = grid.bands()
    for name, metric in (("ttft", "ttft"), ("tpot", "tpot"), ("latency", "e2el")):
        ends = bands[metric] if name in times else (nan, nan)
        for side, factors in zip(("low", "high"), ends, strict=True):
            known = bool(np.any(np.isfinite(factors)))
            found[f"{name}_{side}_s"] = (times[name] * factors).tolist() if known else None
    return found


def _along(values: Num, batch: Array) -> list[float]:
    found: list[float] = np.broadcast_to(np.asarray(values, dtype=float), batch.shape).tolist()
    return found


@dataclass(frozen=True, kw_only=True)
class Priced:
    """What an hour and a million tokens cost; without a price, why there is none."""

    cost: dict[str, Any] | None
    why: str = ""


def cost_view(estimate: Estimate, prices: PriceBook) -> Priced:
    """The batch again and again, all of the time, as ``inferplan cost --batch`` has it."""
    hardware, parallel = estimate.deployment.hardware, estimate.deployment.parallel
    try:
        prices.check([hardware.name])
        bill = prices.require(hardware.name, parallel.ranks, parallel.tp).bill(parallel.replicas)
        encodes = estimate.deployment.model.encodes
        output = 0.0 if encodes else float(estimate.load.output)
        rates = Rates(requests=float(estimate.request_rate), prompt=float(estimate.load.prompt), output=output)
        record = cost_record(Cost(bill=bill, rates=rates))
    except InferplanError as error:
        return Priced(cost=None, why=error.render())
    dollars = record["currency"] == "USD"
    short = {
        "usd_per_h": record["per_hour"] if dollars else None,
        "usd_per_million_tokens": record["per_million_tokens_whole_bill"] if dollars else None,
        "usd_per_million_output_tokens": record["per_million_output_tokens_whole_bill"] if dollars else None,
    }
    return Priced(cost={**short, **record})


def band(estimate: Estimate) -> dict[str, Any] | None:
    """Factors between which 80 % of measurements lie, by latency; ``None`` where none is known."""
    found = {name: estimate.band(name) for name in ("ttft", "tpot", "e2el")}
    known = {name: {"low": pair[0], "high": pair[1]} for name, pair in found.items() if pair is not None}
    return known or None


def view_record(estimate: Estimate, record: dict[str, Any], points: int) -> dict[str, Any]:
    """Everything but commands and cost; ``record`` is the JSON of ``inferplan estimate``."""
    known = band(estimate)
    return {
        "estimate": record,
        "memory": memory(estimate),
        "memory_total_bytes": float(np.max(estimate.footprint.total)),
        "memory_usable_bytes": estimate.footprint.usable,
        "roofline": roofline_view(estimate),
        "curves": curves(estimate, points),
        "band": known,
        "band_why": band_note(estimate),
    }
