"""Money and energy of a service: what its devices cost, divided by what it serves (docs/cost.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import inf

from inferplan.catalog.bills import Bill
from inferplan.catalog.energy import require_pue
from inferplan.catalog.price_lists import PriceBook
from inferplan.errors import UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from inferplan.fields import SHARE, Real, Text, ask
from inferplan.money import Money, parse_money, require_one_amount
from inferplan.shown import Shown
from inferplan.units import HOURS_PER_MONTH, MOST_PUE

OUTPUT_TO_INPUT = 4.0
"""How much more an output token is charged than an input token, when nothing else is asked for: the default of the
Google GKE Inference Quickstart (google.cloud.gkerecommender_v1 ``Cost``)."""


def largest_batch(deployment: Deployment, load: StaticLoad) -> int:
    """The most sequences of ``load`` that a replica runs at once: what the memory holds and the engine admits.

    Raises ``InfeasibleError`` where not even one fits.
    """
    slots = deployment.engine.defaults.tier(deployment.hardware).max_sequences * deployment.parallel.dp
    one = estimate(deployment, replace(load, batch=1.0))
    return int(min(float(one.footprint.max_batch()), slots))


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What is served: requests a second over all replicas, and the mean tokens of one."""

    requests: float
    prompt: float
    output: float

    def __post_init__(self) -> None:
        if self.requests <= 0 or self.prompt < 0 or self.output < 0 or self.prompt + self.output <= 0:
            raise UsageError("a cost needs requests to divide by", hint="a positive --rate, --prompt and --output")

    @property
    def input(self) -> float:
        """Input tokens a second."""
        return self.requests * self.prompt

    @property
    def generated(self) -> float:
        """Output tokens a second."""
        return self.requests * self.output


@dataclass(frozen=True, kw_only=True)
class ApiPrice:
    """What a hosted API charges for a million tokens. currency: ``None`` for that of the bill."""

    input: float
    output: float
    currency: str | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Cost(Shown):
    """The bill of what serves ``rates``: idle time, spare replicas and the idle rest of an instance are paid for.

    ratio: how many input tokens one output token is charged as; the two prices then sum to the bill.
    """

    bill: Bill
    rates: Rates
    ratio: float = OUTPUT_TO_INPUT
    beside: Bill | None = None
    """What else is bought, in the same currency: where prompts are computed on other devices."""
    tiers: float = 0.0
    """What an hour of the cache tiers beside the devices costs."""

    @property
    def per_hour(self) -> float:
        """The bill of an hour."""
        return self.bill.per_hour + (0.0 if self.beside is None else self.beside.per_hour) + self.tiers

    @property
    def per_month(self) -> float:
        """The bill of a month of :data:`HOURS_PER_MONTH`."""
        return self.per_hour * HOURS_PER_MONTH

    @property
    def per_request(self) -> float:
        """The bill over the requests that are served."""
        return self.per_hour / 3600 / self.rates.requests

    @property
    def per_million_output(self) -> float:
        """``bill/s / (input/s / ratio + output/s)``, for a million."""
        return self.per_hour / 3600 / (self.rates.input / self.ratio + self.rates.generated) * 1e6

    @property
    def per_million_input(self) -> float:
        """What a million input tokens are charged."""
        return self.per_million_output / self.ratio

    @property
    def per_million_total(self) -> float:
        """The whole bill over input and output tokens alike."""
        return self.per_hour / 3600 / (self.rates.input + self.rates.generated) * 1e6

    @property
    def per_million_output_alone(self) -> float:
        """The whole bill over output tokens only: the figure of InferenceX; it does not add to any other."""
        return self.per_hour / 3600 / self.rates.generated * 1e6 if self.rates.generated else float("inf")

    def per_user_month(self, requests_a_day: float) -> float:
        """One user who sends so many requests a day, for a month of 365/12 days."""
        return self.per_request * requests_a_day * 365 / 12

    def break_even(self, api: ApiPrice) -> float:
        """Requests a month above which the devices cost less than the API; the devices are paid for busy or idle."""
        charged = (self.rates.prompt * api.input + self.rates.output * api.output) / 1e6
        return self.per_month / charged if charged > 0 else float("inf")

    def break_even_rate(self, api: ApiPrice) -> float:
        """The same as a rate that lasts all month [requests/s]."""
        return self.break_even(api) / (3600 * HOURS_PER_MONTH)

    @property
    def capacity_per_month(self) -> float:
        """Requests in a month at ``rates``."""
        return self.rates.requests * 3600 * HOURS_PER_MONTH


@dataclass(frozen=True, kw_only=True, repr=False)
class Energy(Shown):
    """Energy of the accelerators alone, or of the building around them when ``pue`` is given.

    power: TDP of one device [W]. share: the share of TDP drawn on average; 1 is the upper bound. pue: power of the
    facility over power of the devices; 1 counts the devices alone. grid: grams of CO2 a kWh, where the user states it.
    tariff: what a kWh costs, the same.
    """

    power: float
    devices: int
    rates: Rates
    share: float = 1.0
    pue: float = 1.0
    grid: float | None = None
    tariff: Money | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise UsageError("a share of TDP is in (0, 1]", hint="--power-share 0.7")
        require_pue(self.pue)

    @property
    def watts(self) -> float:
        """Mean power [W], that of the building where ``pue`` is given."""
        return self.power * self.devices * self.share * self.pue

    @property
    def per_token(self) -> float:
        """Joules a token, input and output alike."""
        return self.watts / (self.rates.input + self.rates.generated)

    @property
    def per_output_token(self) -> float:
        """All joules over output tokens only."""
        return self.watts / self.rates.generated if self.rates.generated else float("inf")

    @property
    def kwh_per_million_output(self) -> float:
        """Energy of a million output tokens [kWh]."""
        return self.per_output_token * 1e6 / 3.6e6

    @property
    def kwh_per_month(self) -> float:
        """Energy of a month of :data:`HOURS_PER_MONTH` at that power [kWh]."""
        return self.watts / 1e3 * HOURS_PER_MONTH

    @property
    def carbon_per_million_output(self) -> float | None:
        """Grams of CO2 in operation for a million output tokens, where a grid factor was given."""
        return None if self.grid is None else self.kwh_per_million_output * self.grid

    @property
    def label(self) -> str:
        """What is counted."""
        scope = "GPUs only" if self.pue == 1 else f"GPUs x PUE {self.pue:g}"
        return f"{scope}, {self.share:.0%} of TDP"


def parse_api_price(text: str | None) -> ApiPrice | None:
    """``"3/15"`` as a price: input and output, for a million tokens; ``"0.9"`` for both."""
    if text is None:
        return None
    prices = list[Money]()
    for part in text.split("/"):
        try:
            prices.append(parse_money(part))
            if prices[-1].amount == inf:
                raise ValueError(part)
        except ValueError as error:
            require_one_amount("--api-price", text, error)
            negative = part.strip().startswith("-")
            because = "a price is 0 or more" if negative else f"{part.strip()!r:.40} is not an amount of money"
            break
    else:
        codes = dict.fromkeys(price.currency for price in prices if price.currency)
        if len(prices) <= 2 and len(codes) < 2:
            return ApiPrice(input=prices[0].amount, output=prices[-1].amount, currency=next(iter(codes), None))
        because = f"it has {len(prices)} prices, and APIs charge input and output tokens apart"
        if len(prices) == 2:
            because = f"{' and '.join(codes)} are two currencies"
    hint = "--api-price 3/15 (per million input/output tokens); one price for both: 0.9"
    raise UsageError(f"--api-price {text} is not a price", because=because, hint=hint)


def parse_kwh_price(text: str) -> Money:
    """``"0.30"``, ``"0.30EUR"``, ``"$0.30/kWh"``: what a kWh costs. Raises ``UsageError`` for other text."""
    try:
        found = parse_money(re.sub(r"\s*(?:/|per)\s*kwh\s*$", "", text, flags=re.IGNORECASE))
    except ValueError as error:
        require_one_amount("--kwh-price", text, error)
        found = Money(inf)
    if found.hours is not None or not found.amount < inf:
        because = "it is money per kWh, and no time" if found.hours else f"{text.strip()!r:.40} is no amount of money"
        raise UsageError(f"--kwh-price {text[:40]} is not a price", because=because, hint="--kwh-price 0.30 or 0.30EUR")
    return found


@dataclass(frozen=True, kw_only=True)
class CostAsked:
    """How a bill is divided. utilisation: share of time busy. ratio: the price of an output token over that of an input
    token. api: the price of a hosted API, for break-even. user_requests: requests of one user a day. share: of TDP
    drawn on average. pue: power of the facility over that of the GPUs. grid: grams of CO2 a kWh. tariff: money a kWh.
    """

    utilisation: float = ask("--utilisation", SHARE, "Share of time that the batch runs [1].", 1.0)
    ratio: float | None = ask(
        "--ratio",
        Real(0, above=True),
        "Price per output token, as a multiple of the price per input token [that of --api-price, else 4].",
        None,
    )
    api: ApiPrice | None = ask(
        "--api-price",
        Text(parse_api_price),
        "An API's price per million input/output tokens, or one for both, for break-even.",
        None,
        metavar="IN/OUT",
    )
    user_requests: float | None = ask(
        "--user-requests", Real(0, above=True), "Requests per user per day, for the price per user per month.", None
    )
    share: float = ask("--power-share", SHARE, "Mean power, as a share of TDP [1].", 1.0)
    pue: float = ask(
        "--pue", Real(1, MOST_PUE), "Power of the facility over the power of the GPUs [1: GPUs only].", 1.0
    )
    grid: float | None = ask("--grid", Real(0), "Grams of CO2 per kWh of your grid.", None, metavar="G/KWH")
    tariff: Money | None = ask(
        "--kwh-price",
        Text(parse_kwh_price),
        "What a kWh costs, for the electricity of a month: 0.30 (currency of the prices) or 0.30EUR.",
        None,
        metavar="MONEY",
    )

    @property
    def charged(self) -> float:
        """``ratio``, else that of the API, whose prices then stand beside their like; else :data:`OUTPUT_TO_INPUT`."""
        if self.ratio is None and self.api is not None and self.api.input and self.api.output:
            return self.api.output / self.api.input
        return OUTPUT_TO_INPUT if self.ratio is None else self.ratio


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class BatchCost(Shown):
    """A static batch that runs again and again, in money and energy. largest: nobody named a batch, and it is the
    largest that fits. held: the replicas for which what is bought suffices.
    """

    result: Estimate
    cost: Cost
    energy: Energy
    asked: CostAsked
    largest: bool
    held: int
    prices: PriceBook


def cost_of_batch(
    deployment: Deployment, load: StaticLoad, prices: PriceBook, asked: CostAsked, largest: bool
) -> BatchCost:
    """What a static batch costs on what is sold; with ``largest`` the batch is all that memory and engine hold.

    Raises ``UsageError`` for prices of other GPUs, ``MissingFactError`` without a price.
    """
    hardware, parallel = deployment.hardware, deployment.parallel
    prices.check([hardware.name])
    if asked.api is not None:
        prices.require_currency("--api-price", asked.api.currency)
    tariff = prices.require(hardware.name, parallel.ranks, parallel.tp)
    if largest:
        load = replace(load, batch=float(largest_batch(deployment, load)))
    result = estimate(deployment, load)
    output = 0.0 if deployment.model.encodes else float(load.output)
    rates = Rates(requests=float(result.request_rate) * asked.utilisation, prompt=float(load.prompt), output=output)
    energy = Energy(
        power=hardware.tdp,
        devices=parallel.devices,
        rates=rates,
        share=asked.share,
        pue=asked.pue,
        grid=asked.grid,
        tariff=asked.tariff and asked.tariff._replace(currency=asked.tariff.currency or prices.currency),
    )
    return BatchCost(
        result=result,
        cost=Cost(bill=tariff.bill(parallel.replicas), rates=rates, ratio=asked.charged),
        energy=energy,
        asked=asked,
        largest=largest,
        held=tariff.filled(parallel.replicas),
        prices=prices,
    )
