"""Prices, bills and energy."""

from __future__ import annotations

import pytest

from inferplan.answers.cost import ApiPrice, Cost, Energy, Rates
from inferplan.catalog.bills import Bill, Offer
from inferplan.catalog.files import load_hardware
from inferplan.catalog.price_lists import price_book
from inferplan.errors import UsageError
from inferplan.units import HOURS_PER_MONTH

RATES = Rates(requests=2.0, prompt=1000.0, output=500.0)
OFFER = Offer(gpu="h100-sxm", gpus=None, per_hour=3.6, currency="USD", term="stated", source="--price")
BILL = Cost(bill=Bill(offer=OFFER, units=4, devices=4), rates=RATES)


def test_input_and_output_prices_sum_to_the_bill() -> None:
    seconds = 3600
    charged = (
        BILL.per_million_input * RATES.input * seconds + BILL.per_million_output * RATES.generated * seconds
    ) / 1e6
    assert charged == pytest.approx(BILL.per_hour)
    assert BILL.per_million_output == pytest.approx(4 * BILL.per_million_input)


def test_figures_by_hand() -> None:
    # 4 devices x 3.6 = 14.4 an hour = 0.004 a second, for 2 requests, 2000 input and 1000 output tokens
    assert BILL.per_hour == pytest.approx(14.4)
    assert BILL.per_request == pytest.approx(0.002)
    assert BILL.per_million_total == pytest.approx(0.004 / 3000 * 1e6)
    assert BILL.per_million_output_alone == pytest.approx(4.0)
    assert BILL.per_million_output == pytest.approx(0.004 / 1500 * 1e6)
    assert BILL.per_user_month(10) == pytest.approx(0.002 * 10 * 365 / 12)


def test_break_even_is_where_the_two_bills_meet() -> None:
    api = ApiPrice(input=1.0, output=3.0)
    requests = BILL.break_even(api)
    assert requests * (1000 * 1.0 + 500 * 3.0) / 1e6 == pytest.approx(BILL.per_hour * HOURS_PER_MONTH)


def test_energy_by_hand() -> None:
    energy = Energy(power=700.0, devices=4, rates=RATES, share=0.5, pue=1.2, grid=400.0)
    assert energy.watts == pytest.approx(700 * 4 * 0.5 * 1.2)
    assert energy.per_token == pytest.approx(1680 / 3000)
    assert energy.per_output_token == pytest.approx(1.68)
    assert energy.kwh_per_million_output == pytest.approx(1.68e6 / 3.6e6)
    assert energy.carbon_per_million_output == pytest.approx(1.68e6 / 3.6e6 * 400)
    assert "PUE 1.2" in energy.label
    with pytest.raises(UsageError):
        Energy(power=1.0, devices=1, rates=RATES, share=1.5)


def test_power_is_on_file_for_the_priced_data_centre_gpus() -> None:
    """AWS states no power of its own chips."""
    for gpu in price_book(["aws-us-east-1"]).gpus:
        device = load_hardware(gpu)
        assert bool(device.power) == (device.vendor != "AWS"), gpu
