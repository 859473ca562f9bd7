"""Money as it is sold: whole instances, by hand from the providers' lists; laws of packing; what is refused."""

from __future__ import annotations

import datetime
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplan.api import make_plan
from inferplan.catalog.bills import Offer, Tariff
from inferplan.catalog.files import load, names
from inferplan.catalog.price_lists import CONTRACTS, Instance, PriceList, every_list, price_book
from inferplan.errors import MissingFactError, SpecError, UsageError
from tests.cases import for_each

AWS = price_book(["aws-us-east-1"])


@for_each("name", names("prices"))
def test_every_list_names_known_devices_its_date_and_its_source(name: str) -> None:
    listing = load("prices", name, PriceList)
    assert listing.name == name
    assert datetime.date(2024, 1, 1) < listing.date < datetime.date(2027, 1, 1)
    assert len(listing.source) > 10
    assert {sold.gpu for sold in listing.instances} <= set(names("hardware"))
    keys = [(sold.gpu, sold.gpus, sold.term, sold.length) for sold in listing.instances]
    assert len(keys) == len(set(keys)), "two prices of one instance on the same terms"


def test_owned_gpus_without_a_price_are_counted_by_the_hour() -> None:
    """Two replicas of three GPUs are six GPU hours an hour. What has a price, or should have, is left as it is."""
    every = price_book()
    counted = every.counting(["rtx-a6000"])
    bill = counted.bill("rtx-a6000", 3, 2)
    assert (bill.per_hour, bill.bought, counted.currency) == (6.0, 6, "GPU hours")
    assert counted.remarks(["rtx-a6000"]) == [
        "no price of rtx-a6000: costs count hours of GPUs; --price rtx-a6000=0.50 for money"
    ]
    stated = price_book(stated=["rtx-a6000=0.7"])
    assert every.counting(["rtx-a6000", "h100-sxm"]) is every
    assert AWS.counting(["rtx-a6000"]) is AWS and stated.counting(["rtx-a6000"]) is stated


@for_each(
    ("gpu", "devices", "replicas", "instance", "units", "per_hour", "idle"),
    [
        ("b200-hgx", 2, 5, "p6-b200.48xlarge", 2, 227.86, 6),  # 10 GPUs are two boxes of 8 at 113.93
        ("b200-hgx", 1, 8, "p6-b200.48xlarge", 1, 113.93, 0),
        ("b200-hgx", 1, 9, "p6-b200.48xlarge", 2, 227.86, 7),
        ("h200-sxm", 4, 6, "p5en.48xlarge", 3, 189.888, 0),  # 24 GPUs: 3 x 63.296
        ("h100-sxm", 4, 8, "p5.48xlarge", 4, 220.16, 0),  # 32 GPUs: 4 x 55.04
        ("h100-sxm", 1, 3, "p5.4xlarge", 3, 20.64, 0),  # 3 x 6.88
        ("h100-sxm", 1, 8, "p5.48xlarge", 1, 55.04, 0),  # 8 x 6.88 costs as much: one box is simpler
        ("h100-sxm", 3, 5, "p5.48xlarge", 3, 165.12, 9),  # two replicas of 3 in a box of 8, none across
        ("h100-sxm", 16, 2, "p5.48xlarge", 4, 220.16, 0),  # a replica of 16 fills two boxes
        ("l40s", 1, 7, "g6e.xlarge", 7, 13.027, 0),  # 7 x 1.861 is less than 30.13
        ("l40s", 2, 2, "g6e.12xlarge", 1, 10.49264, 0),
        ("l40s", 8, 1, "g6e.48xlarge", 1, 30.13118, 0),  # not 8 x 1.861 = 14.89: one replica is on one host
        ("a100-80gb-sxm", 1, 1, "p4de.24xlarge", 1, 27.44705, 7),
    ],
)
def test_instances_of_aws_by_hand(
    gpu: str, devices: int, replicas: int, instance: str, units: int, per_hour: float, idle: int
) -> None:
    bill = AWS.bill(gpu, devices, replicas)
    assert (bill.offer.instance, bill.units, bill.idle) == (instance, units, idle)
    assert bill.per_hour == pytest.approx(per_hour, abs=1e-9)


def test_a_bill_keeps_groups_in_one_instance() -> None:
    """12 GPUs in boxes of 8 (p5.48xlarge, 55.04): two halves of 6, but groups of 4 do not divide 6, so three of 4."""
    apart, kept = AWS.bill("h100-sxm", 12, 1), AWS.bill("h100-sxm", 12, 1, together=4)
    assert (apart.units, apart.per_hour) == (2, pytest.approx(110.08, abs=1e-9))
    assert (kept.units, kept.per_hour) == (3, pytest.approx(165.12, abs=1e-9))
    assert AWS.bill("h100-sxm", devices=24, replicas=2, together=8).units == 6


QUOTED = {
    "azure-east-us": {"a100-80gb-pcie": 3.673, "h100-nvl": 6.98, "h100-sxm": 12.29, "mi300x": 6.00},
    "gcp": {"l4": 0.707, "a100-80gb-sxm": 5.069, "h100-sxm": 11.061, "h200-sxm": 10.601, "tpu-v6e": 2.70},
    "coreweave": {"a100-80gb-sxm": 2.70, "l40s": 2.25, "h100-sxm": 6.155, "h200-sxm": 6.305, "b200-hgx": 8.60,
                  "gb200": 10.50, "gh200-96gb": 6.50},
    "lambda": {"a100-80gb-sxm": 2.79, "h100-pcie": 3.29, "h100-sxm": 3.99, "b200-hgx": 6.69, "gh200-96gb": 2.29},
    "together": {"h100-sxm": 3.99, "h200-sxm": 5.99, "b200-hgx": 8.19},
    "modal": {"l4": 0.80, "l40s": 1.95, "a100-80gb-sxm": 2.50, "h100-sxm": 3.95, "h200-sxm": 4.54, "b200-hgx": 6.25},
    "owned-hyperscaler": {"h100-sxm": 1.30, "h200-sxm": 1.41, "b200-hgx": 1.95, "gb200": 2.21, "mi300x": 1.12},
    "owned-neocloud": {"h100-sxm": 1.69, "h200-sxm": 1.74, "b200-hgx": 2.34, "gb200": 2.75, "mi355x": 1.90},
    "rental-3-year": {"h100-sxm": 1.30, "h200-sxm": 1.60, "b200-hgx": 2.90, "gb200": 3.30, "mi355x": 2.10},
    "aws-us-east-1": {"l40s": 1.861, "rtx-pro-6000-server": 3.363, "a100-80gb-sxm": 3.431, "h100-sxm": 6.88,
                      "h200-sxm": 7.912, "b200-hgx": 14.242, "b300-hgx": 17.80, "a10g": 1.006, "inferentia2": 1.0818},
}  # fmt: skip
"""What the sources print for one GPU; of several sizes the cheapest."""


@for_each("name", QUOTED)
def test_instances_are_priced_at_what_the_source_prints_for_a_gpu(name: str) -> None:
    listing = load("prices", name, PriceList)
    for gpu, price in QUOTED[name].items():
        own = "on-demand" if any(sold.term == "on-demand" for sold in listing.instances) else None
        terms = listing.offers(gpu, own)
        assert min(offer.per_device for offer in terms) == pytest.approx(price, abs=2.1e-3), gpu


def test_gpus_that_are_sold_one_by_one_are_counted_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1790812800")  # 2026-10-01
    bill = price_book(["modal"]).bill("h100-sxm", 4, 3)
    assert (bill.units, bill.idle) == (12, 0)
    assert bill.per_hour == pytest.approx(12 * 3.95)
    assert bill.describe() == "12 x h100-sxm at 3.95 USD/h (on-demand, serverless modal, 2026-09-17)"
    assert [line.partition(":")[0] for line in bill.offer.remarks] == ["modal"]  # what serverless means


def test_a_tensor_parallel_group_does_not_straddle_instances() -> None:
    """12 GPUs in boxes of 8: two boxes hold 6 each and split a group of 4; three boxes hold one group each."""
    box = Offer(gpu="x", gpus=8, per_hour=10.0, currency="USD", term="on-demand", source="list")
    assert Tariff(offers=(box,), devices=12, together=6).bill(1).units == 2
    assert Tariff(offers=(box,), devices=12, together=4).bill(1).units == 3
    assert Tariff(offers=(box,), devices=24, together=8).bill(2).units == 6
    assert Tariff(offers=(box,), devices=16, together=16).bill(1).units == 2
    small = Offer(gpu="x", gpus=4, per_hour=1.0, currency="USD", term="on-demand", source="list")
    assert Tariff(offers=(small, box), devices=8, together=4).bill(1).offer is box
    assert Tariff(offers=(small, box), devices=16, together=4).bill(1).units == 2


def test_a_group_that_no_instance_holds_is_said_to_be_across_instances() -> None:
    """A group of 2 in boxes of 1 is across them, one of 8 in a box of 8 is not, and GPUs sold singly are in a host."""
    single, box, loose = (
        Offer(gpu="x", gpus=gpus, per_hour=1.0, currency="USD", term="on-demand", source="list")
        for gpus in (1, 8, None)
    )
    cases = ((single, 2, 2, True), (single, 4, 1, False), (box, 8, 8, False), (box, 16, 8, False), (box, 16, 16, True))
    for offer, devices, together, across in (*cases, (loose, 8, 8, False)):
        bill = Tariff(offers=(offer,), devices=devices, together=together).bill(1)
        assert bill.across is across
        assert any("across instances" in line for line in bill.remarks) is across


@for_each(
    ("gpu", "devices", "replicas", "filled"),
    [
        ("b200-hgx", 2, 5, 8),
        ("b200-hgx", 3, 1, 2),
        ("b200-hgx", 3, 3, 4),
        ("b200-hgx", 16, 2, 2),
        ("l40s", 1, 7, 7),
        ("l40s", 2, 1, 2),
    ],
)
def test_what_is_paid_for_can_be_filled(gpu: str, devices: int, replicas: int, filled: int) -> None:
    """Two boxes of 8 hold eight replicas of 2, one holds two of 3 and two hold four (the fifth of 16/3
    would lie across them), g6e.12xlarge two of 2; one of 16 has two boxes."""
    tariff = AWS.require(gpu, devices)
    assert tariff.filled(replicas) == filled
    assert tariff.bill(filled).per_hour == tariff.bill(replicas).per_hour


def test_a_bill_names_what_is_bought(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1790812800")  # 2026-10-01
    said = "2 x p6-b200.48xlarge (8 x b200-hgx) at 113.93 USD/h (on-demand, aws-us-east-1, 2026-09-10)"
    assert AWS.bill("b200-hgx", 2, 5).describe() == said


offers = st.lists(
    st.tuples(st.sampled_from([None, 1, 2, 3, 4, 6, 8, 72]), st.floats(0.1, 200)), min_size=1, max_size=4
).map(
    lambda sizes: tuple(
        Offer(gpu="x", gpus=size, per_hour=price, currency="USD", term="on-demand", source="list")
        for size, price in sizes
    )
)


@settings(deadline=None)
@given(offers, st.integers(1, 80), st.sampled_from([1, 2, 4, 8]))
def test_bills_rise_with_replicas_and_hold_them_all(sold: tuple[Offer, ...], devices: int, together: int) -> None:
    tariff = Tariff(offers=sold, devices=devices, together=together)
    counts = np.arange(1.0, 40.0)
    costs = np.asarray(tariff.cost(counts))
    assert np.all(np.diff(costs) >= 0)
    cheapest = min(offer.per_device for offer in sold)
    for count, cost in zip(counts.astype(int), costs):
        bill = tariff.bill(int(count))
        assert bill.per_hour == pytest.approx(cost)
        assert bill.bought >= bill.devices == count * devices
        assert cost >= count * devices * cheapest * (1 - 1e-12)
        if bill.offer.gpus is not None and devices <= bill.offer.gpus:
            whole = bill.offer.gpus // devices  # no replica is on two hosts
            assert bill.units * whole >= count > (bill.units - 1) * whole


@settings(deadline=None)
@given(offers, st.integers(1, 16))
def test_a_replica_is_on_one_host_where_any_instance_holds_it(sold: tuple[Offer, ...], devices: int) -> None:
    holds = [offer for offer in sold if offer.gpus is None or offer.gpus >= devices]
    chosen = Tariff(offers=sold, devices=devices).bill(1).offer
    assert chosen in holds or not holds


def test_an_endless_number_of_replicas_costs_without_end() -> None:
    """A point that serves nothing would need infinitely many replicas."""
    tariff = AWS.require("b200-hgx", 2)
    assert np.asarray(tariff.cost(np.array([1.0, np.inf]))).tolist() == [113.93, np.inf]


def test_a_stated_price_wins_and_aliases_are_understood() -> None:
    book = price_book(stated=["H100=2.49"])
    assert book.bill("h100-sxm", 1, 2).describe() == "2 x h100-sxm at 2.49 USD/h (stated, --price)"
    assert "aws-us-east-1" in {offer.source for offer in book.offers("h200-sxm")}


def test_a_stated_price_of_an_instance() -> None:
    book = price_book(stated=["b200=100/8", "b200=15"])
    assert book.bill("b200-hgx", 2, 3).per_hour == pytest.approx(6 * 15)  # 90 is less than a box
    assert book.bill("b200-hgx", 2, 4).per_hour == pytest.approx(100)
    assert book.bill("b200-hgx", 2, 4).describe() == "1 x instance (8 x b200-hgx) at 100.00 USD/h (stated, --price)"


@for_each(
    "text",
    [
        "h100",
        "h100=",
        "h100=-1",
        "=3",
        "h100=nan",
        "h100=inf",
        "h100=2/0",
        "h100=2/",
        "h100=2/-8",
        "h100=2/8.5",
        "a=1/x",
    ],
)
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a price"):
        price_book(stated=[text])


@for_each("text", ["h100=1e-300", "h100=1e300/8", "h100=0.00079/8", "h100=9e-5", "h100=8.1e6/8", "h100=1.1e6"])
def test_a_price_of_a_device_has_bounds(text: str) -> None:
    with pytest.raises(UsageError, match="not a price") as refused:
        price_book(stated=[text])
    assert "an hour of one GPU costs 0.0001 to 1,000,000 USD" in refused.value.because


def test_prices_at_their_bounds_are_taken() -> None:
    for text, per_hour in (("h100=1e-4", 1e-4), ("h100=0.0008/8", 0.0008), ("h100=1e6", 1e6), ("h100=8e6/8", 8e6)):
        assert price_book(stated=[text]).offers("h100-sxm")[0].per_hour == per_hour
    with pytest.raises(ValueError, match="per_hour of one GPU"):
        Instance.model_validate({"gpu": "t4", "gpus": 8, "per_hour": 1e300})
    with pytest.raises(ValueError, match="per_hour of one GPU"):
        Instance.model_validate({"gpu": "t4", "gpus": "any", "per_hour": 1e-9})


@for_each("currency", ["", " ", "US", "DOLLARS", "12A", "€€€"])
def test_what_is_no_currency_is_refused(currency: str) -> None:
    with pytest.raises(UsageError, match="is no currency"):
        price_book(stated=["h100=2.49"], currency=currency)


def test_two_prices_of_one_instance_are_refused() -> None:
    with pytest.raises(UsageError, match="two prices"):
        price_book(stated=["h100=2", "h100-sxm=3"])


def test_a_price_that_no_device_has_is_refused_with_what_was_meant() -> None:
    book = price_book(stated=["h10=2"])
    with pytest.raises(UsageError, match="did you mean --price h100-sxm"):
        book.check(["h100-sxm"])
    with pytest.raises(UsageError, match="no GPU of that name is on file"):
        price_book(stated=["my-chip=2"]).check(["h100-sxm"])
    price_book(stated=["my-chip=2"]).check(["my-chip"])  # a YAML of one's own that is looked at
    other = price_book(stated=["h100=2", "l40s=1"])  # one's own prices of all that one has, in inferplan.yaml
    other.check(["h100-sxm"])
    assert other.remarks(["h100-sxm"]) == ["--price l40s is not used: no candidate has that GPU"]
    assert other.remarks(["h100-sxm", "l40s"]) == []


def test_lists_that_are_named_are_asked_alone_and_only_for_the_terms() -> None:
    book = price_book(["lambda", "coreweave"])
    assert {offer.source for offer in book.offers("h100-sxm")} == {"lambda", "coreweave"}
    assert {offer.source for offer in book.offers("h200-sxm")} == {"coreweave"}
    assert book.bill("h100-sxm", 8, 1).per_hour == 8 * 3.99  # of lambda; coreweave asks 49.24
    assert price_book(["amd-clouds"], term="spot").bill("mi300x", 1, 1).per_hour == 1.71


def test_the_cheapest_bill_of_all_providers_is_taken_with_the_list_price_beside() -> None:
    """By the lists in configs/prices, which test_instances_are_priced_at_what_the_source_prints_for_a_gpu holds."""
    book = price_book()
    two = book.bill("h100-sxm", 2, 1)  # runpod-secure: 2 x 3.49; lambda: 8.38; AWS: a whole box
    assert (two.offer.source, two.per_hour, two.list_price) == (
        "runpod-secure", 6.98, "list: 55.04 USD/h at aws-us-east-1"
    )  # fmt: skip
    assert two.line.endswith("; list: 55.04 USD/h at aws-us-east-1")
    eight = book.bill("b200-hgx", 8, 1)
    assert (eight.offer.source, eight.per_hour) == ("lambda", pytest.approx(8 * 6.69))
    assert eight.listed is not None and eight.listed.per_hour == 113.93
    own = price_book(["aws-us-east-1"]).bill("b200-hgx", 8, 1)  # it is the list price itself
    assert (own.listed, own.list_price) == (None, "")
    assert price_book(["aws-us-east-1"]).tariff("mi300x", 2) is None  # a list that is named is asked alone
    assert price_book(stated=["h100=2"]).bill("h100-sxm", 2, 1).listed is None
    assert price_book(stated=["mi300x=2"]).remarks(["mi300x"]) == []
    (compared,) = price_book(["lambda", "coreweave"]).remarks(["h100-sxm"])
    assert "2 lists (coreweave, lambda)" in compared
    ranks = [("high", "medium", "low").index(listing.confidence) for listing in every_list()]
    assert ranks == sorted(ranks)


def test_other_kinds_of_list_are_asked_for_what_no_provider_sells() -> None:
    """A marketplace is cheaper everywhere (configs/prices/runpod-community.yaml): named, it is taken."""
    kinds = {offer.source: offer.kind for offer in price_book().offers("h100-sxm")}
    assert "runpod-community" not in kinds and "modal" not in kinds and set(kinds.values()) == {""}
    (community,) = price_book(["runpod-community"]).offers("h100-sxm")
    assert (community.per_hour, community.seller) == (2.69, "marketplace runpod-community")
    assert {offer.seller for offer in price_book().offers("a10")} == {"serverless modal"}
    assert {offer.seller for offer in price_book().offers("mi325x")} == {"survey amd-clouds"}
    assert {offer.seller for offer in price_book(term="spot").offers("mi300x")} == {"survey amd-clouds"}
    assert {offer.seller for offer in price_book(term="spot").offers("h100-sxm")} == {"gcp"}
    assert {offer.source for offer in price_book(term="owned").offers("h100-sxm")} == {"owned-neocloud"}
    assert "mi300x" in price_book().gpus and "mi325x" not in price_book().gpus


def test_gpus_that_are_sold_one_by_one_stand_on_hosts_of_eight() -> None:
    """The lists say so: 16 GPUs of a tensor-parallel group are two hosts there, as two boxes are."""
    bill = price_book(["runpod-secure"]).bill("h100-sxm", 16, 1, 16)
    assert bill.across and not price_book(["runpod-secure"]).bill("h100-sxm", 8, 1, 8).across
    both = price_book(["runpod-secure", "coreweave"])  # 16 x 3.49 is less than 2 x 49.24, of hosts that nobody joins
    assert (both.bill("h100-sxm", 16, 1, 8).offer.source, both.bill("h100-sxm", 8, 1, 8).offer.source) == (
        "coreweave", "runpod-secure"
    )  # fmt: skip
    joined = both.require("h100-sxm", 1).joined
    assert joined is not None and joined.sellers == {"coreweave"}
    assert price_book(["runpod-secure"]).require("h100-sxm", 1).joined is None
    assert price_book(stated=["h100=2"]).require("h100-sxm", 1).joined is not None
    assert price_book(["runpod-secure"]).offers("h100-sxm")[0].hosts(16) == 2


def test_pools_apart_are_bought_of_one_seller() -> None:
    """By hand: prompts 2 x 1.00 at a or 2 x 3.00 at b, decodes 4 x 5.00 at a or 4 x 1.00 at b. Apart 2 + 4 would be
    the least; of one seller b is, 6 + 4 against 2 + 20."""
    from inferplan.planning.pools import together_at

    def sold(gpu: str, **prices: float) -> Tariff:
        offers = tuple(
            Offer(gpu=gpu, gpus=None, per_hour=price, currency="USD", term="on-demand", source=source)
            for source, price in prices.items()
        )
        return Tariff(offers=offers, devices=1)

    pairs = together_at(sold("x", a=1.0, b=3.0), sold("y", a=5.0, b=1.0, c=0.1))
    costs = {one.offers[0].source: float(one.cost(2) + other.cost(4)) for one, other in pairs}
    assert costs == {"a": 22.0, "b": 10.0}


def test_a_device_without_a_price_is_refused_with_the_lists_and_terms_that_have_one() -> None:
    with pytest.raises(MissingFactError, match="--prices rental-3-year --term reserved"):
        price_book().require("mi355x", 1)
    with pytest.raises(
        MissingFactError, match="--prices azure-east-us, or --prices runpod-secure, or --prices amd-clouds"
    ):
        price_book(["aws-us-east-1"]).require("mi300x", 1)


def test_a_reservation_of_a_length() -> None:
    """Of aws-us-east-1: an H100 of p5.48xlarge is let for 23.777/8 an hour over three years, an L40S for 1.172 over one
    and 0.804 over three; an H200 for days alone, so that its three years are those of rental-3-year, at 1.60. Nobody
    on file lets an H100 for one year."""
    three, one = price_book(term="reserved-3y"), price_book(term="reserved-1y")
    assert three.bill("h100-sxm", 8, 1).per_hour == 23.777
    assert (one.bill("l40s", 1, 1).per_hour, three.bill("l40s", 1, 1).per_hour) == (1.172, 0.804)
    assert three.bill("h200-sxm", 1, 1).per_hour == 1.60
    assert price_book(term="reserved").bill("h200-sxm", 8, 1).per_hour > 8 * 1.60  # of a provider, whatever its length
    with pytest.raises(MissingFactError, match="reserved-1y") as refused:
        one.bill("h100-sxm", 8, 1)
    assert "--prices aws-us-east-1 --term reserved-3y" in refused.value.hint
    assert one.remarks(["l40s"]) == three.remarks(["h200-sxm"]) == []  # nothing of other lengths


@for_each("term", CONTRACTS)
def test_every_term_has_a_list_to_start_with(term: str) -> None:
    assert price_book(term=term).gpus  # type: ignore[arg-type]


def test_currencies_are_not_mixed() -> None:
    with pytest.raises(UsageError, match="cannot be compared"):
        price_book(["lambda"], stated=["h100=2.49"], currency="EUR")
    own = price_book(stated=["h100=2.49"], currency="EUR")
    assert own.bill("h100-sxm", 1, 2).offer.currency == "EUR"
    assert own.tariff("h200-sxm", 1) is None  # no list is in EUR


def test_an_old_price_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    offer = AWS.offers("b200-hgx")[0]  # of 2026-09-10
    day = datetime.datetime(2026, 9, 10, tzinfo=datetime.UTC)
    for days, old in ((45, False), (46, True)):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(int((day + datetime.timedelta(days=days)).timestamp())))
        assert offer.stale is old
        assert ("days old" in offer.describe()) is old


def test_terms_say_what_they_mean() -> None:
    assert "take a spot instance away" in " ".join(price_book(term="spot").offers("mi300x")[0].remarks)
    assert "does not say how many mi300x" in " ".join(price_book(["amd-clouds"]).offers("mi300x")[0].remarks)
    reserved = price_book(["rental-3-year"], term="reserved").offers("h100-sxm")[0]
    assert "reserved, 3 years" in reserved.describe()
    assert "whether it is used" in " ".join(reserved.remarks)


def test_reservations_of_years_that_are_not_on_file_are_said() -> None:
    """The lists of 2026-11: providers reserve a B200 for 182 days at most, and an H100 for three years; a survey has
    three years of both; nobody has years of an A10."""
    years = (
        "no 1-year or 3-year price from a provider is on file for b200-hgx; survey rental-3-year has 3 years: --prices "
    )
    book = price_book(term="reserved")
    assert book.without_years(["b200-hgx", "h100-sxm", "a10g"]) == [f"{years}rental-3-year"]
    assert f"{years}rental-3-year" in book.remarks(["b200-hgx"])
    assert not any("years" in line for line in price_book().remarks(["b200-hgx"]))
    assert price_book(["rental-3-year"], term="reserved").without_years(["b200-hgx"]) == []
    named = price_book(["gcp"], term="reserved").without_years(["b200-hgx"])
    assert named == [years.replace("from a provider is on file", "in the lists asked") + "rental-3-year"]
    assert price_book(stated=["b200-hgx=4"], term="reserved").without_years(["b200-hgx"]) == []


@for_each(
    "changes",
    [{"gpus": 0}, {"gpus": -8}, {"gpus": "some"}, {"per_hour": 0}, {"per_hour": float("nan")}, {"length": "3 years"},
     {"term": "reserved"}, {"term": "lease"}],
)  # fmt: skip
def test_what_is_no_instance_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        Instance.model_validate({"gpu": "t4", "gpus": 8, "per_hour": 1.0} | changes)


def test_a_list_of_ones_own_may_use_aliases(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text(
        "{name: mine, provider: me, source: an offer of my own, date: 2026-11-01, currency: EUR, confidence: high,\n"
        " instances: [{gpu: H100, gpus: 4, per_hour: 8.0}, {gpu: my-chip, gpus: any, per_hour: 1.0}]}"
    )
    book = price_book([str(own)])
    assert (book.currency, book.gpus) == ("EUR", ["h100-sxm", "my-chip"])
    assert book.bill("h100-sxm", 2, 3).per_hour == 16.0
    own.write_text(own.read_text().replace("EUR", "euros"))
    with pytest.raises(SpecError, match="currency"):
        price_book([str(own)])
    own.write_text(own.read_text().replace("instances", "prices"))
    with pytest.raises(SpecError, match="prices: unknown field"):
        price_book([str(own)])


def test_the_list_that_the_documentation_shows_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cost.md").read_text(encoding="utf-8")
    shown = re.search(r"^    name: mine\n(?:    .*\n)+", page, re.MULTILINE)
    assert shown
    own = tmp_path / "mine.yaml"
    own.write_text(textwrap.dedent(shown[0]))
    bill = price_book([str(own)], term="reserved").bill("h200-sxm", 2, 3)
    assert bill.describe() == "2 x 4-way (4 x h200-sxm) at 14.20 EUR/h (reserved, 1 year, mine, 2026-11-02)"


def test_a_plan_of_owned_gpus_is_in_their_hours() -> None:
    """From Python as on the command line: one GPU at work is one GPU hour an hour; a price that is stated stays."""
    load = {
        "prompt": 128,
        "output": 16,
        "rate": 0.2,
        "ttft": 2.0,
        "tpot": 0.1,
        "quants": ("native",),
        "confidence": 0.5,
    }
    found = make_plan("llama-3.2-1b", gpus=["1x-rtx-a6000"], **load)
    assert (found.question.prices.currency, found.option.cost) == ("GPU hours", 1.0)
    stated = make_plan("llama-3.2-1b", gpus=["1x-rtx-a6000"], price={"rtx-a6000": 0.5}, **load)
    assert (stated.question.prices.currency, stated.option.cost) == ("USD", 0.5)
