"""The monthly bill, from the calendar."""

from __future__ import annotations

import pytest

from inferplan.answers.cost import ApiPrice, Cost, Rates
from inferplan.catalog.bills import Bill, Offer

OFFER = Offer(gpu="h100-sxm", gpus=None, per_hour=2.0, currency="USD", term="stated", source="--price")
BILL = Cost(bill=Bill(offer=OFFER, units=4, devices=4), rates=Rates(requests=2.0, prompt=1000.0, output=500.0))
YEAR = 365 * 24
"""Hours."""


def test_a_month_is_a_twelfth_of_a_year() -> None:
    """Four devices at 2 an hour: 70,080 a year. Two requests per second: 63,072,000 a year."""
    assert BILL.per_month * 12 == pytest.approx(4 * 2.0 * YEAR)
    assert BILL.capacity_per_month * 12 == pytest.approx(2 * 3600 * YEAR)


def test_break_even_is_the_monthly_bill_over_what_the_api_charges() -> None:
    """5,840 a month over 0.0025 a request (1000 tokens at 1 and 500 at 3 a million): 2,336,000 requests."""
    assert BILL.break_even(ApiPrice(input=1.0, output=3.0)) == pytest.approx(5840 / 0.0025)
    assert BILL.break_even_rate(ApiPrice(input=1.0, output=3.0)) == pytest.approx(2_336_000 / (730 * 3600))
