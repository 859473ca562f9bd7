"""A :class:`Cost` and an :class:`Energy` as JSON and as tables."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from math import isinf
from typing import Any

from inferplan.answers.cost import ApiPrice, BatchCost, Cost, Energy
from inferplan.catalog.assemble import Deployed
from inferplan.catalog.bills import Bill, Offer, no_month
from inferplan.figures import Figure, lines, record, short_time, text
from inferplan.money import Money
from inferplan.reports.estimate import band_note, basis_note, deployment_record
from inferplan.reports.hosted import never_even
from inferplan.serving.techniques.applied import refusal
from inferplan.table import Report, Table
from inferplan.units import HOURS_PER_MONTH, format_parameters


def batch_cost_report(found: BatchCost) -> Report:
    """What is served and how fast, the bill, the energy."""
    asked, bill, served = found.asked, found.cost.bill, _service(found)
    load, encodes = found.result.load, found.result.deployment.model.encodes
    whole = {
        **deployment_record(found.result.deployment),
        "load": {
            "batch": int(load.batch),
            "prompt_tokens": int(load.prompt),
            "output_tokens": 0 if encodes else int(load.output),
        },
        **record(served),
        "cost": cost_record(found.cost, asked.api, asked.user_requests),
        "energy": cost_energy_record(found.energy),
    }
    which = " (the largest)" if found.largest else ""
    title = (
        f"{found.result.deployment.describe()}: batch {load.batch:,.0f}{which}, {load.prompt:,.0f} tokens in"
        f"{'' if encodes else f', {load.output:,.0f} out'}"
    )
    return Report(
        record=whole,
        tables=[
            lines(title, served),
            cost_table(found.cost, asked.api, asked.user_requests),
            cost_energy_table(found.energy),
        ],
        notes=[
            *_service_notes(found),
            *bill.remarks,
            *found.prices.remarks([found.result.deployment.hardware.name]),
            basis_note(found.result),
            band_note(found.result),
            *found.result.deployment.model_lines,
        ],
    )


def _service(service: BatchCost) -> list[Figure]:
    """What is served, and how fast."""
    result, utilisation = service.result, service.asked.utilisation
    load, encodes = result.load, result.deployment.model.encodes
    ttft, tpot = float(result.ttft), float(result.tpot) if load.output > 1 else None
    rate = None if encodes else float(result.request_rate * load.output) * utilisation
    return [
        Figure("batch_is_the_largest", service.largest),
        Figure("ttft_s", ttft),
        Figure("tpot_s", tpot),
        Figure("requests_per_s", float(result.request_rate) * utilisation, "requests per second", ",.2f"),
        text("output tokens per second", f"{rate or 0.0:,.0f}", seen=not encodes),
        Figure("utilisation", utilisation, "busy", "{:.0%} of the time"),
        Figure("output_tokens_per_s", rate),
        text(f"{'latency' if encodes else 'TTFT'} of the batch alone", short_time(ttft)),
        text("each further token (TPOT)", short_time(tpot or 0.0), seen=tpot is not None),
    ]


def _service_notes(service: BatchCost) -> list[str]:
    """Why the engine would not run the batch, what it means for the price of a token, and the replicas paid for."""
    refused = refusal(service.result.deployment, service.result.load)
    lines = [f"warning: {refused}"] if refused else []
    if service.largest:
        batch = service.result.load.batch
        lines.append(
            f"batch {batch:,.0f} is the most that memory and engine hold; this gives about the lowest cost per "
            "token here, and limits on latency make it cost more (--batch N, or inferplan plan)"
        )
    if (api := service.asked.api) is not None:
        ttft = short_time(float(service.result.ttft))
        lines.append(
            f"the break-even ignores latency limits: batch {service.result.load.batch:,.0f}, with a TTFT of {ttft}; "
            f"to compare within limits, such as these: {_plan_line(service, api)}"
        )
    held = service.held
    if held > service.result.deployment.parallel.replicas:
        lines.append(f"the instances you pay for hold {held:,} replicas: --replicas {held} costs the same per hour")
    return lines


def _plan_line(service: BatchCost, api: ApiPrice) -> str:
    """The command that compares the same requests with an API within limits."""
    made, load = service.result.deployment, service.result.load
    model, gpu = made.model.name, made.hardware.name
    if isinstance(made, Deployed):
        model, gpu = made.request.model, made.request.gpu
    asked = ["--prompt", f"{load.prompt - load.media_tokens:.0f}", "--rate", "10"]
    limits = (
        ["--e2e", "2s"] if made.model.encodes else ["--output", f"{load.output:.0f}", "--ttft", "2s", "--tpot", "50ms"]
    )
    price = ["--api-price", f"{api.input:g}/{api.output:g}"]
    return shlex.join(["inferplan", "plan", model, "--gpu", gpu, *asked, *limits, *price])


def cost_record(cost: Cost, api: ApiPrice | None = None, requests_a_day: float | None = None) -> dict[str, Any]:
    """The JSON of a bill; every key names its unit, and the currency stands beside."""
    beside = None if cost.beside is None else bill_record(cost.beside)
    return {**bill_record(cost.bill), "beside": beside, **record(_bill(cost, api, requests_a_day))}


def cost_table(cost: Cost, api: ApiPrice | None = None, requests_a_day: float | None = None) -> Table:
    """The bill, one line for each way of dividing it."""
    return lines("cost", _bill(cost, api, requests_a_day))


def load_cost_table(cost: Cost, same: list[Figure]) -> Table:
    """The same of a load that was asked for, beside what an API charges for it (:mod:`inferplan.reports.hosted`)."""
    return lines("cost", [*_bill(cost, None, None), *same])


def load_cost_record(cost: Cost, same: list[Figure]) -> dict[str, Any]:
    """As JSON."""
    return {**cost_record(cost), **record(same)}


def _bill(cost: Cost, api: ApiPrice | None, requests_a_day: float | None) -> list[Figure]:
    """What is paid, and what that is of a token, a request, a user."""
    unit, bills = cost.bill.offer.currency, [*([] if cost.beside is None else [cost.beside]), cost.bill]
    generates, times = bool(cost.rates.output), "" if cost.ratio == 1 else f"{cost.ratio:g} times "

    def hour(amount: float) -> str:
        return f"{amount:,.2f} {unit}/h"

    def exact(amount: float) -> str:
        return f"{amount:,.4f} {unit}"

    figures = [
        *(line for bill in bills for line in _paid(bill, hour)),
        Figure("cache_tiers_per_hour", cost.tiers, "cache tiers", hour, seen=bool(cost.tiers)),
        Figure("per_hour", cost.per_hour, "together", hour, seen=len(bills) > 1 or bool(cost.tiers)),
        *(
            text(
                f"idle {'GPUs' if len(bills) == 1 else bill.offer.gpu} you pay for",
                f"{bill.idle} of {bill.bought} ({bill.idle / bill.bought:.0%} of the bill)",
            )
            for bill in bills
            if bill.idle
        ),
        _month(cost, bills),
        Figure("per_request", cost.per_request),
        Figure("output_to_input_ratio", cost.ratio),
        Figure(
            "per_million_input_tokens",
            cost.per_million_input,
            "per million input tokens",
            exact,
            seen=generates,
        ),
        Figure(
            "per_million_output_tokens",
            cost.per_million_output if generates else None,
            f"per million output tokens, at {times}the price of input",
            exact,
            seen=generates,
        ),
        Figure(
            "per_million_tokens_whole_bill", cost.per_million_total, "per million tokens", exact, seen=not generates
        ),
        Figure(
            "per_million_output_tokens_whole_bill",
            cost.per_million_output_alone if generates else None,
            "per million output tokens, counting input as free",
            exact,
            seen=generates,
        ),
        text("a request", f"{cost.per_request:,.6f} {unit}", seen=generates),
        # where nothing is generated a request is a fraction of what the smallest coin of it would show
        text("per million requests", exact(1e6 * cost.per_request), seen=not generates),
    ]
    if requests_a_day is not None:
        label = f"per user per month, at {requests_a_day:g} requests per day"
        figures.append(Figure("per_user_month", cost.per_user_month(requests_a_day), label, exact))
    return figures if api is None else [*figures, *_break_even(cost, api)]


def _month(cost: Cost, bills: list[Bill]) -> Figure:
    """The bill of a month, with what is let for days alone."""
    short, label = no_month(bills), f"per month of {HOURS_PER_MONTH:g} hours"
    said = f"{cost.per_month:,.0f} {cost.bill.offer.currency}{f' ({short}, so not on offer)' if short else ''}"
    return Figure("per_month", cost.per_month, label, text=said)


def _paid(bill: Bill, hour: Callable[[float], str]) -> list[Figure]:
    """What is bought, and what the same is at the list that bills are compared with."""
    found = [text(bill.describe(), hour(bill.per_hour))]
    if (listed := bill.listed) is not None:
        found.append(text(f"  at the list price: {listed.describe()}", hour(listed.per_hour)))
    return found


def _break_even(cost: Cost, api: ApiPrice) -> list[Figure]:
    """The requests of a month from which on the bill is less than that of an API."""
    volume, rate = cost.break_even(api), cost.break_even_rate(api)
    share = volume / cost.capacity_per_month
    verdict = f"{share:.0%} of capacity" if share <= 1 else f"{share:.1f} x capacity: the API costs less at any load"
    if isinf(volume):
        never, label = (
            "never: the API costs less at any load",
            f"break-even with an API at {api.input:g}/{api.output:g}",
        )
        return [
            Figure("break_even_requests_per_month", None, label, text=never),
            Figure("no_break_even", never_even(cost.rates.requests)),
        ]
    tokens = format_parameters(max(volume * (cost.rates.prompt + cost.rates.output), 1.0))
    return [
        Figure(
            "break_even_requests_per_month",
            volume,
            f"break-even with an API at {api.input:g}/{api.output:g}",
            lambda requests: (
                f"{requests:,.0f} requests per month, {tokens} tokens ({verdict}), {rate:.3g} per second on average"
            ),
        ),
        Figure("break_even_requests_per_s", rate if share <= 1 else None),
        Figure("no_break_even", None if share <= 1 else never_even(cost.rates.requests)),
        Figure("break_even_share_of_capacity", share),
    ]


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
        "list_kind": offer.kind or "provider",
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
        "price_kind": price["list_kind"],
        "list_price_per_hour": None if bill.listed is None else bill.listed.per_hour,
        "list_price_source": None if bill.listed is None else bill.listed.offer.source,
        "instance": price["instance"],
        "instance_gpus": price["instance_gpus"],
        "instances": bill.units,
        "devices": bill.devices,
        "devices_bought": bill.bought,
        "devices_idle": bill.idle,
        "across_instances": bill.across,
    }


def cost_energy_record(energy: Energy) -> dict[str, Any]:
    """The JSON of the energy; every key names its unit."""
    return {"scope": energy.label, **record(_energy(energy))}


def cost_energy_table(energy: Energy) -> Table:
    """The energy, one line for each way of dividing it."""
    return lines(f"energy ({energy.label})", _energy(energy))


def _energy(energy: Energy) -> list[Figure]:
    """Watts, joules of a token, CO2 in operation."""
    generates = bool(energy.rates.output)
    used, carbon = energy.per_token * 1e6 / 3.6e6, energy.carbon_per_million_output if generates else None
    figures = [
        Figure("power_w", energy.watts, "power", lambda watts: f"{watts / 1e3:,.2f} kW"),
        Figure("per_token_j", energy.per_token, "per token, input or output", "{:,.3f} J", seen=generates),
        text("per million tokens", f"{used:,.6f} kWh", seen=not generates),
        text(
            "  CO2 in operation",
            f"{used * (energy.grid or 0.0):,.3f} g CO2",
            seen=not generates and energy.grid is not None,
        ),
    ]
    each, month, tariff = energy.per_output_token if generates else None, energy.kwh_per_month, energy.tariff
    kwh = energy.kwh_per_million_output if generates else None
    return [
        *figures,
        Figure("per_output_token_j", each, "per output token, counting input as free", "{:,.3f} J", seen=generates),
        Figure("per_million_output_tokens_kwh", kwh, "per million output tokens", "{:,.3f} kWh", seen=generates),
        Figure(
            "per_million_output_tokens_g_co2", carbon, "  CO2 in operation", "{:,.0f} g CO2", seen=carbon is not None
        ),
        Figure("per_month_kwh", month, f"per month of {HOURS_PER_MONTH:g} hours", "{:,.1f} kWh", seen=bool(tariff)),
        *(() if tariff is None else _electricity(energy, tariff)),
    ]


def _electricity(energy: Energy, tariff: Money) -> tuple[Figure, Figure]:
    """What a month of it costs; no rent is in it."""
    amount = energy.kwh_per_month * tariff.amount
    label = f"  electricity at {tariff.amount:g} {tariff.currency} per kWh, without rent"
    return (
        Figure("electricity_per_month", amount, label, text=f"{amount:,.2f} {tariff.currency}"),
        Figure("electricity_currency", tariff.currency),
    )
