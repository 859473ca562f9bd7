"""Money as people write it: currencies of ISO 4217, spans, and numbers that may be two amounts."""

from __future__ import annotations

import pytest

from inferplan.catalog.price_lists import parse_stated
from inferplan.errors import UsageError
from inferplan.fields import question_of
from inferplan.money import CURRENCIES, Money, parse_money
from inferplan.planning.asked import SizingAsked
from tests.cases import for_each

LIST_ONE = """
    AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BHD BIF BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF CHE CHF
    CHW CLF CLP CNY COP COU CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ GYD
    HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP LKR LRD LSL LYD
    MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN
    PYG QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD
    TWD TZS UAH UGX USD USN UYI UYU UYW UZS VED VES VND VUV WST XAD XAF XAG XAU XBA XBB XBC XBD XCD XCG XDR XOF XPD
    XPF XPT XSU XTS XUA XXX YER ZAR ZMW ZWG
"""
"""Every code in force, as pycountry 26.2.16 has them from Debian's iso-codes (16 February 2026)."""
OF_NO_COUNTRY = """
    BOV CHE CHW CLF COU MXV USN UYI UYW XAD XAG XAU XBA XBB XBC XBD XDR XPD XPT XSU XTS XUA XXX
"""
"""There: funds and units of account (BOV to UYW, XAD, XBA to XBD, XDR, XSU, XUA), metals, tests (XTS), none (XXX)."""


def test_currencies_are_those_of_iso_4217() -> None:
    assert len(LIST_ONE.split()) == 178 and len(OF_NO_COUNTRY.split()) == 23
    assert set(LIST_ONE.split()) - set(OF_NO_COUNTRY.split()) == CURRENCIES
    assert not CURRENCIES & {"ANG", "BGN", "HRK", "CUC", "DEM"}  # no longer money


AMOUNTS = {
    "2.49 USD per hour": Money(2.49, "USD", 1.0),
    "$2.49/h": Money(2.49, "USD", 1.0),
    "EUR 3,000 a month": Money(3000.0, "EUR", 730.0),
    "0.125": Money(0.125),
    "1,006.500": Money(1006.5),
    "3.0000": Money(3.0),
    "12.5k/day": Money(12500.0, None, 24.0),
}


@for_each("text, money", AMOUNTS.items())
def test_an_amount_its_currency_and_its_span(text: str, money: Money) -> None:
    assert parse_money(text) == money


@for_each("text", ["3000m", "2,49", "1/2", "20/", "-1", "20 per", "20 USD EUR", "20 ANG", "20/fortnight"])
def test_what_is_no_money(text: str) -> None:
    with pytest.raises(ValueError):
        parse_money(text)


@for_each("option", ["max_cost", "miss_cost"])
def test_a_dot_before_three_digits_is_asked_back(option: str) -> None:
    """3.000 is three in English and three thousand in German."""
    with pytest.raises(UsageError) as refused:
        question_of(SizingAsked, {option: "3.000/month"})
    assert "3000/month" in refused.value.hint and "3.0/month" in refused.value.hint
    with pytest.raises(UsageError) as refused:
        question_of(SizingAsked, {option: "1.006 EUR"})
    assert "1006 EUR" in refused.value.hint and "1.0060 EUR" in refused.value.hint


PRICES = {
    "h100-sxm=2.49 USD per hour": (2.49, None),
    "a10g=1.006": (1.006, None),
    "b200=98.320/8": (98.32, 8),
    "h100-sxm=$48/day": (2.0, None),
    "h100-sxm=1460 USD a month": (2.0, None),
    "h100-sxm=16USD/h/8": (16.0, 8),
}


@for_each("text, price", PRICES.items())
def test_a_price_of_a_gpu_is_money(text: str, price: tuple[float, int | None]) -> None:
    """Nobody pays 1,006 dollars for an hour of a GPU (AWS's g5.xlarge, an A10G, costs 1.006)."""
    offer = parse_stated(text)
    assert offer.per_hour == pytest.approx(price[0]) and offer.gpus == price[1]


@for_each(
    "text, currency, other",
    [("3.500", "KRW", "3500"), ("1.500/month", "USD", "1500/month"), ("48.500/day/8", "EUR", "48500/day/8")],
)
def test_a_price_may_be_thousands(text: str, currency: str, other: str) -> None:
    """An hour for 3,500 won is usual; so are 1,500 dollars for the 730 hours of a month, 2.05 an hour, and 48,500 euros
    for a day of eight, 253 an hour of each."""
    with pytest.raises(UsageError) as refused:
        parse_stated(f"h100-sxm={text}", currency)
    assert f"h100-sxm={other}" in refused.value.hint
