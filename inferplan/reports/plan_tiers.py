"""What cache tiers are worth in a plan: each chain beside none, and the price at which it costs what it saves."""

from __future__ import annotations

from typing import Any

from inferplan.answers.cost import HOURS_PER_MONTH
from inferplan.planning.chains import Chain
from inferplan.planning.plan import Plan
from inferplan.planning.tiering import Tiered
from inferplan.reports.plan_figures import devices
from inferplan.serving.techniques.tiers import CacheTier
from inferplan.table import Table
from inferplan.units import format_bytes


def tiers_record(plan: Plan) -> list[dict[str, Any]] | None:
    """The JSON of what each chain of tiers is worth, the plan without any first; ``None`` where none was tried."""
    return [_record(side, plan.tiered[0], plan) for side in plan.tiered] or None


def _record(side: Tiered, without: Tiered, plan: Plan) -> dict[str, Any]:
    option = None if side.best is None else side.best.option
    tiers = [
        {
            "name": tier.name,
            "capacity_bytes": tier.capacity,
            "shared": tier.shared,
            "paid_bytes": None if option is None else tier.kept_by(option.devices),
            "hit_rate": side.hit_rates.get(tier.name),
            "price_per_gb_month": None if tier.price is None else tier.price.per_gb_hour * HOURS_PER_MONTH,
            "cost_per_hour": None if option is None else tier.cost(option.devices),
            "break_even_per_gb_month": _monthly(side.break_even(tier, without)),
        }
        for tier in side.chain
    ]
    return {
        "tiers": tiers,
        "gpu": None if option is None else option.deployment.hardware.name,
        "devices": None if option is None else option.devices,
        "replicas": None if option is None else option.replicas,
        "device_hit_rate": side.hit_rates.get("device"),
        "gpu_cost_per_hour": side.gpu_cost,
        "tier_cost_per_hour": side.tier_cost,
        "cost_per_hour": _together(side),
        "saved_on_gpus_per_hour": side.saved(without),
        "currency": plan.question.prices.currency,
        "chosen": side.best is plan.best,
    }


def _together(side: Tiered) -> float | None:
    """What GPUs and tiers cost an hour; ``None`` where a tier has no price."""
    return None if side.gpu_cost is None or side.tier_cost is None else side.gpu_cost + side.tier_cost


def _monthly(price: float | None) -> float | None:
    """A price of an hour as that of a month."""
    return None if price is None else price * HOURS_PER_MONTH


def tiers_table(plan: Plan) -> Table:
    """The plan without tiers and beside each chain: GPUs, hits, what both cost."""
    names = list(dict.fromkeys(tier.name for side in plan.tiered for tier in side.chain))
    unit = f"{plan.question.prices.currency}/h"
    columns = ["tiers of a device", "devices", "replicas", *(f"hits, {name}" for name in ("device", *names))]
    columns += [f"GPUs, {unit}", f"tiers, {unit}", f"together, {unit}"]
    rows = []
    for side in plan.tiered:
        if side.best is None:
            rows.append([chain_text(side.chain), "no plan", *[""] * (len(columns) - 2)])
            continue
        option = side.best.option
        hits = [side.hit_rates.get(name) for name in ("device", *names)]
        priced = "not priced" if side.tier_cost is None else f"{side.tier_cost:,.2f}"
        rows.append(
            [
                f"{chain_text(side.chain)}{' (the plan)' if side.best is plan.best else ''}",
                devices(option),
                f"{option.replicas}{f' + {option.spare} spare' if option.spare else ''}",
                *("" if rate is None else f"{rate:.1%}" for rate in hits),
                *(_amount(side.gpu_cost), priced, _amount(_together(side))),
            ]
        )
    title = "what cache tiers are worth: the cheapest plan without and with them"
    return Table(title=title, columns=columns, rows=rows, right=frozenset(columns[2:]))


def chain_text(chain: Chain) -> str:
    """``"host 256.0 GB + store 20.00 TB, shared"``; ``"none"``."""
    return " + ".join(f"{t.name} {format_bytes(t.capacity)}{', shared' if t.shared else ''}" for t in chain) or "none"


def _amount(cost: float | None) -> str:
    return "-" if cost is None else f"{cost:,.2f}"


def tier_lines(plan: Plan) -> list[str]:
    """One line for each chain: the GPUs that it saves, and the price of a gigabyte that this pays for."""
    if not plan.tiered:
        return []
    without, *sides = plan.tiered
    lines = [_line(side, without, plan.question.prices.currency) for side in sides]
    if plan.option.tiers:
        lines.append("the command below starts no cache tiers: add the options of your engine for them")
    return [*lines, "planned without separate pools for prompts, which cache tiers are not planned with"]


def _line(side: Tiered, without: Tiered, unit: str) -> str:
    """``"host 512.0 GB saves 2 GPUs, 13.76 USD/h; ..."``."""
    text, saved = chain_text(side.chain), side.saved(without)
    if side.best is None or without.best is None or saved is None:
        return f"{text}: nothing keeps the limits {'with it' if side.best is None else 'without it'}"
    fewer = without.best.option.devices - side.best.option.devices
    count = f"{abs(fewer):,} GPU{'' if abs(fewer) == 1 else 's'}"
    text += f" saves {count}" if fewer > 0 else f" takes {count} more" if fewer < 0 else " saves no GPU"
    text += f" ({saved:+,.2f} {unit}/h of GPUs)"
    paid = "what it costs is not known without a price"
    if side.tier_cost is not None:
        rest = saved - side.tier_cost
        paid = (
            f"it costs {side.tier_cost:,.2f} {unit}/h, so that all is {abs(rest):,.2f} {'less' if rest > 0 else 'more'}"
        )
    even = [words for tier in side.chain if (words := _break_even(tier, side, without, unit))]
    return "; ".join([text, paid, *even])


def _break_even(tier: CacheTier, side: Tiered, without: Tiered, unit: str) -> str:
    """The price of a tier at which it is worth no more than it costs; empty where another has no price."""
    even = _monthly(side.break_even(tier, without))
    if even is None:
        return ""
    whose = f" of {tier.name}" if len(side.chain) > 1 else ""
    paid = f"{format_bytes(1e9 * side.gigabytes(tier))} are paid for"
    return f"break-even price{whose} {max(even, 0.0):,.4g} {unit}/GB-month ({paid})"
