"""A bill beside that of an API that is paid by the token."""

from __future__ import annotations

from inferplan.answers.cost import ApiPrice, Cost
from inferplan.figures import Figure, finite


def same_load(cost: Cost, api: ApiPrice, most: float) -> list[Figure]:
    """What an API charges in a month for the load that is served, all of the month. most: the requests/s that the
    replicas carry within their limits: beyond it more of them are bought, and nothing breaks even."""
    monthly = cost.capacity_per_month * cost.per_month / cost.break_even(api)
    unit, times, rate = cost.bill.offer.currency, monthly / cost.per_month, cost.break_even_rate(api)
    never = "" if rate <= most else never_even(most)
    return [
        Figure(
            "api_per_month",
            monthly,
            f"an API at {api.input:g}/{api.output:g} for this load, all month",
            lambda charged: (
                f"{charged:,.0f} {unit} per month, {times:.2g} times this bill; "
                f"{never or f'as much as it at {rate:.3g} requests/s'}"
            ),
        ),
        Figure("break_even_requests_per_s", None if never else finite(rate)),
        Figure("no_break_even", never or None),
    ]


def never_even(most: float) -> str:
    """Why nothing breaks even, of replicas that carry so many requests/s."""
    return f"the API stays cheaper at any load these replicas carry (up to {most:.3g} requests/s)"
