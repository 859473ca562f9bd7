"""A :class:`Cost` and an :class:`Energy` as JSON and as tables."""

from __future__ import annotations

from typing import Any

from inferplan.answers.cost import HOURS_PER_MONTH, ApiPrice, BatchCost, Cost, Energy
from inferplan.catalog.bills import Bill, Offer
from inferplan.reports.estimate import basis_note, deployment_record
from inferplan.table import Report, Table
from inferplan.units import format_time

_RIGHT = frozenset({"value"})


def batch_cost_report(found: BatchCost) -> Report:
    """What is served and how fast, the bill, the energy."""
    asked, bill = found.asked, found.cost.bill
    record = {
        **deployment_record(found.result.deployment),
        **_service_record(found),
        "cost": cost_record(found.cost, asked.api, asked.user_requests),
        "energy": energy_record(found.energy),
    }
    return Report(
        record=record,
        tables=[
            _service_table(found),
            cost_table(found.cost, asked.api, asked.user_requests),
            energy_table(found.energy),
        ],
        notes=[
            *_service_notes(found),
            *bill.remarks,
            *found.prices.remarks([found.result.deployment.hardware.name]),
            basis_note(found.result),
        ],
    )


def _service_record(service: BatchCost) -> dict[str, Any]:
    """The JSON of what is served, and how fast."""
    result, utilisation = service.result, service.asked.utilisation
    load, encodes = result.load, result.deployment.model.encodes
    return {
        "load": {
            "batch": int(load.batch),
            "prompt_tokens": int(load.prompt),
            "output_tokens": 0 if encodes else int(load.output),
        },
        "batch_is_the_largest": service.largest,
        "ttft_s": float(result.ttft),
        "tpot_s": float(result.tpot) if load.output > 1 else None,
        "requests_per_s": float(result.request_rate) * utilisation,
        "utilisation": utilisation,
        "output_tokens_per_s": None if encodes else float(result.request_rate * load.output) * utilisation,
    }


def _service_table(service: BatchCost) -> Table:
    """What is served, and how fast."""
    record, load = _service_record(service), service.result.load
    encodes = service.result.deployment.model.encodes
    rows = [
        ["requests a second", f"{record['requests_per_s']:,.2f}"],
        *([] if encodes else [["output tokens a second", f"{record['output_tokens_per_s']:,.0f}"]]),
        ["busy", f"{service.asked.utilisation:.0%} of the time"],
        [f"{'latency' if encodes else 'TTFT'} of the batch alone", format_time(record["ttft_s"], 3)],
    ]
    if record["tpot_s"] is not None:
        rows.append(["every further token (TPOT)", format_time(record["tpot_s"], 3)])
    which = " (the largest)" if service.largest else ""
    title = (
        f"{service.result.deployment.describe()}: batch {load.batch:,.0f}{which}, {load.prompt:,.0f} tokens in"
        f"{'' if encodes else f', {load.output:,.0f} out'}"
    )
    return Table(title=title, columns=["", "value"], rows=rows, right=_RIGHT)


def _service_notes(service: BatchCost) -> list[str]:
    """What the batch means for the price of a token, and the replicas that the bill pays for."""
    lines = []
    if service.largest:
        batch = service.result.load.batch
        lines.append(
            f"batch {batch:,.0f} is all that memory and engine hold, about the least that a token costs here; limits "
            "on latency make it dearer (--batch N, or inferplan plan)"
        )
    held = service.held
    if held > service.result.deployment.parallel.replicas:
        lines.append(f"what is paid for holds {held} replicas: --replicas {held} costs the same an hour")
    return lines


def cost_record(cost: Cost, api: ApiPrice | None = None, requests_a_day: float | None = None) -> dict[str, Any]:
    """The JSON of a bill; every key names its unit, and the currency stands beside."""
    record = {
        **bill_record(cost.bill),
        "beside": None if cost.beside is None else bill_record(cost.beside),
        "cache_tiers_per_hour": cost.tiers,
        "per_hour": cost.per_hour,
        "per_month": cost.per_month,
        "per_request": cost.per_request,
        "output_to_input_ratio": cost.ratio,
        "per_million_input_tokens": cost.per_million_input,
        "per_million_output_tokens": cost.per_million_output if cost.rates.output else None,
        "per_million_tokens_whole_bill": cost.per_million_total,
        "per_million_output_tokens_whole_bill": cost.per_million_output_alone if cost.rates.output else None,
    }
    if requests_a_day is not None:
        record["per_user_month"] = cost.per_user_month(requests_a_day)
    if api is not None:
        record["break_even_requests_per_month"] = cost.break_even(api)
        record["break_even_share_of_capacity"] = cost.break_even(api) / cost.capacity_per_month
    return record


def price_record(offer: Offer) -> dict[str, Any]:
    """The JSON of one price: ``per_hour`` is of one GPU, ``per_instance_hour`` of what is sold together."""
    return {
        "gpu": offer.gpu,
        "instance": offer.instance or None,
        "instance_gpus": offer.gpus or ("any" if offer.sized else "unknown"),
        "per_hour": offer.per_device,
        "per_instance_hour": offer.per_hour,
        "currency": offer.currency,
        "term": offer.term,
        "length": offer.length or None,
        "list": offer.source,
        "date": str(offer.date) if offer.date else None,
        "old": offer.stale,
        "note": offer.note,
    }


def bill_record(bill: Bill) -> dict[str, Any]:
    """The JSON of what is bought; ``instances`` counts single GPUs where those are sold one by one."""
    price = price_record(bill.offer)
    return {
        "currency": price["currency"],
        "price_per_device_hour": price["per_hour"],
        "price_per_instance_hour": price["per_instance_hour"],
        "price_term": price["term"],
        "price_length": price["length"],
        "price_date": price["date"],
        "price_is_old": price["old"],
        "price_source": price["list"],
        "instance": price["instance"],
        "instance_gpus": price["instance_gpus"],
        "instances": bill.units,
        "devices": bill.devices,
        "devices_bought": bill.bought,
        "devices_idle": bill.idle,
        "across_instances": bill.across,
    }


def energy_record(energy: Energy) -> dict[str, Any]:
    """The JSON of the energy; every key names its unit."""
    generates = bool(energy.rates.output)
    return {
        "scope": energy.label,
        "power_w": energy.watts,
        "per_token_j": energy.per_token,
        "per_output_token_j": energy.per_output_token if generates else None,
        "per_million_output_tokens_kwh": energy.kwh_per_million_output if generates else None,
        "per_million_output_tokens_g_co2": energy.carbon_per_million_output if generates else None,
    }


def cost_table(cost: Cost, api: ApiPrice | None = None, requests_a_day: float | None = None) -> Table:
    """The bill, one line for each way of dividing it."""
    unit, bills = cost.bill.offer.currency, [*([] if cost.beside is None else [cost.beside]), cost.bill]
    rows = [[bill.describe(), f"{bill.per_hour:,.2f} {unit}/h"] for bill in bills]
    rows += [["cache tiers", f"{cost.tiers:,.2f} {unit}/h"]] if cost.tiers else []
    rows += [["together", f"{cost.per_hour:,.2f} {unit}/h"]] if len(bills) > 1 or cost.tiers else []
    for bill in bills:
        if bill.idle:
            idle = f"{bill.idle} of {bill.bought} ({bill.idle / bill.bought:.0%} of the bill)"
            rows.append([f"{'GPUs' if len(bills) == 1 else bill.offer.gpu} that are paid for and run nothing", idle])
    rows.append([f"a month of {HOURS_PER_MONTH:g} hours", f"{cost.per_month:,.0f} {unit}"])
    if cost.rates.output:
        rows += [
            [f"a million input tokens (1:{cost.ratio:g} split)", f"{cost.per_million_input:,.4f} {unit}"],
            [f"a million output tokens (1:{cost.ratio:g} split)", f"{cost.per_million_output:,.4f} {unit}"],
            ["a million output tokens, whole bill on them", f"{cost.per_million_output_alone:,.4f} {unit}"],
            ["a request", f"{cost.per_request:,.6f} {unit}"],
        ]
    else:  # nothing is generated, and a request is a fraction of what the smallest coin of it would show
        rows += [
            ["a million tokens", f"{cost.per_million_total:,.4f} {unit}"],
            ["a million requests", f"{1e6 * cost.per_request:,.4f} {unit}"],
        ]
    if requests_a_day is not None:
        rows.append(
            [f"a user-month of {requests_a_day:g} requests a day", f"{cost.per_user_month(requests_a_day):,.4f} {unit}"]
        )
    if api is not None:
        volume = cost.break_even(api)
        share = volume / cost.capacity_per_month
        verdict = (
            f"{share:.0%} of capacity" if share <= 1 else f"{share:.1f} x capacity: the API costs less at any load"
        )
        rows.append(
            [f"break-even with an API at {api.input:g}/{api.output:g}", f"{volume:,.0f} requests a month ({verdict})"]
        )
    return Table(title="cost", columns=["", "value"], rows=rows, right=_RIGHT)


def energy_table(energy: Energy) -> Table:
    """The energy, one line for each way of dividing it."""
    rows = [["power", f"{energy.watts / 1e3:,.2f} kW"]]
    if not energy.rates.output:
        used = energy.per_token * 1e6 / 3.6e6
        rows.append(["a million tokens", f"{used:,.6f} kWh"])
        rows += [] if energy.grid is None else [["  in operation", f"{used * energy.grid:,.3f} g CO2"]]
        return Table(title=f"energy ({energy.label})", columns=["", "value"], rows=rows, right=_RIGHT)
    rows += [
        ["a token, input or output", f"{energy.per_token:,.3f} J"],
        ["an output token, all energy on them", f"{energy.per_output_token:,.3f} J"],
        ["a million output tokens", f"{energy.kwh_per_million_output:,.3f} kWh"],
    ]
    if energy.carbon_per_million_output is not None:
        rows.append(["  in operation", f"{energy.carbon_per_million_output:,.0f} g CO2"])
    return Table(title=f"energy ({energy.label})", columns=["", "value"], rows=rows, right=_RIGHT)
