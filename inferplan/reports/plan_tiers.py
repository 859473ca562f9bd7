"""What cache tiers are worth in a plan: each chain beside none, and the price at which it costs what it saves."""

from __future__ import annotations

from typing import Any

from inferplan.figures import Figure, record, side_by_side
from inferplan.planning.plan import Plan
from inferplan.planning.question import Chain
from inferplan.planning.tiering import Tiered
from inferplan.reports.plan_figures import devices
from inferplan.serving.techniques.tiers import CacheTier
from inferplan.table import Table
from inferplan.units import HOURS_PER_MONTH, format_bytes


def tiers_record(plan: Plan) -> list[dict[str, Any]] | None:
    """The JSON of what each chain of tiers is worth, the plan without any first; ``None`` where none was tried."""
    return [record(_side(side, plan)) for side in plan.tiered] or None


def tiers_table(plan: Plan) -> Table:
    """The plan without tiers and beside each chain: GPUs, hits, what both cost."""
    title = "value of cache tiers: the cheapest plan without and with them"
    return side_by_side(title, [_side(side, plan) for side in plan.tiered])


def _side(side: Tiered, plan: Plan) -> list[Figure]:
    """The cheapest plan beside one chain; empty cells where nothing keeps the limits."""
    option, without = None if side.best is None else side.best.option, plan.tiered[0]
    unit, none = f"{plan.question.prices.currency}/h", "" if option is None else "-"
    chosen, names = side.best is plan.best, dict.fromkeys(tier.name for one in plan.tiered for tier in one.chain)
    together = None if side.gpu_cost is None or side.tier_cost is None else side.gpu_cost + side.tier_cost
    spare = f" + {option.spare} spare" if option is not None and option.spare else ""
    return [
        Figure(
            "tiers",
            [record(_tier(tier, side, without)) for tier in side.chain],
            "tiers per device",
            text=f"{chain_text(side.chain)}{' (the plan)' if chosen else ''}",
            left=True,
        ),
        Figure("gpu", option and option.deployment.hardware.name),
        Figure(
            "devices",
            option and option.devices,
            "devices",
            text="no plan" if option is None else devices(option),
            left=True,
        ),
        Figure("replicas", option and option.replicas, "replicas", lambda count: f"{count}{spare}", absent=""),
        Figure("device_hit_rate", side.hit_rates.get("device"), "hits, device", ".1%", absent=""),
        *(Figure("", side.hit_rates.get(name), f"hits, {name}", ".1%", absent="") for name in names),
        Figure("gpu_cost_per_hour", side.gpu_cost, f"GPUs, {unit}", ",.2f", absent=none),
        Figure("tier_cost_per_hour", side.tier_cost, f"tiers, {unit}", ",.2f", absent=none and "not priced"),
        Figure("cost_per_hour", together, f"together, {unit}", ",.2f", absent=none),
        Figure("saved_on_gpus_per_hour", side.saved(without)),
        Figure("currency", plan.question.prices.currency),
        Figure("chosen", chosen),
    ]


def _tier(tier: CacheTier, side: Tiered, without: Tiered) -> list[Figure]:
    """What a tier of a chain holds, costs and may cost."""
    option = None if side.best is None else side.best.option
    return [
        Figure("name", tier.name),
        Figure("capacity_bytes", tier.capacity),
        Figure("shared", tier.shared),
        Figure("paid_bytes", option and tier.kept_by(option.devices)),
        Figure("hit_rate", side.hit_rates.get(tier.name)),
        Figure("price_per_gb_month", _monthly(tier.price and tier.price.per_gb_hour)),
        Figure("cost_per_hour", option and tier.cost(option.devices)),
        Figure("break_even_per_gb_month", _monthly(side.break_even(tier, without))),
    ]


def _monthly(price: float | None) -> float | None:
    """A price of an hour as that of a month."""
    return None if price is None else price * HOURS_PER_MONTH


def chain_text(chain: Chain) -> str:
    """``"host 256.0 GB + store 20.00 TB, shared"``; ``"none"``."""
    return " + ".join(f"{t.name} {format_bytes(t.capacity)}{', shared' if t.shared else ''}" for t in chain) or "none"


def tier_lines(plan: Plan) -> list[str]:
    """One line for each chain: the GPUs that it saves, and the price of a gigabyte that this pays for."""
    if not plan.tiered:
        return []
    without, *sides = plan.tiered
    lines = [_line(side, without, plan.question.prices.currency) for side in sides]
    if plan.option.tiers:
        lines.append("the command below starts no cache tiers: add the options of your engine for them")
    return [*lines, "planned without separate pools for prompts, which do not combine with cache tiers"]


def _line(side: Tiered, without: Tiered, unit: str) -> str:
    """``"host 512.0 GB saves 2 GPUs, 13.76 USD/h; ..."``."""
    text, saved = chain_text(side.chain), side.saved(without)
    if side.best is None or without.best is None or saved is None:
        return f"{text}: no plan keeps the limits {'with it' if side.best is None else 'without it'}"
    fewer = without.best.option.devices - side.best.option.devices
    count = f"{abs(fewer):,} GPU{'' if abs(fewer) == 1 else 's'}"
    text += f" saves {count}" if fewer > 0 else f" takes {count} more" if fewer < 0 else " saves no GPU"
    text += f" ({saved:+,.2f} {unit}/h of GPUs)"
    paid = "its cost is not known without a price"
    if side.tier_cost is not None:
        rest = saved - side.tier_cost
        paid = (
            f"it costs {side.tier_cost:,.2f} {unit}/h, so the total is {abs(rest):,.2f} "
            f"{'less' if rest > 0 else 'more'}"
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
