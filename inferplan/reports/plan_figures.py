"""What follows from a plan: its columns, how a replica is started, bill, power, what the limits would have to be."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from math import inf
from typing import Any

from inferplan.answers.cost import Cost, Energy, Rates
from inferplan.answers.drafting import Drafting
from inferplan.answers.emit import Drafts, Launch, command_line, launch
from inferplan.catalog.bills import STATED, Bill, no_month
from inferplan.catalog.price_lists import TERMS
from inferplan.errors import InferplanError
from inferplan.estimate.deployment import Deployment
from inferplan.figures import Figure, short_time, text
from inferplan.planning.agents import session_seconds
from inferplan.planning.amount import amount_of, in_words, option_of, rounded_down
from inferplan.planning.beside import Step
from inferplan.planning.confidence import USUAL
from inferplan.planning.demand import limits_in_words
from inferplan.planning.edges import LOOSER, Edge
from inferplan.planning.largest import Runner
from inferplan.planning.option import PlanOption
from inferplan.planning.plan import Plan
from inferplan.planning.power import PowerBudget
from inferplan.planning.verify import Verified
from inferplan.serving.techniques.speculation import break_even
from inferplan.traffic.people import in_flight_line
from inferplan.units import HOURS_PER_MONTH, format_quantity

CERTAIN = 0.995
"""A chance that is at most as much is written as 100 %, which says nothing."""


def launch_of(plan: Plan) -> Launch:
    """How one replica of a plan is started."""
    option = plan.option
    drafting = plan.question.space.drafting_of(option.speculation)
    sequences = -(-plan.best.slots // option.deployment.parallel.dp)
    flags = option.request.flags.model_copy(update={"token_budget": option.budget, "max_sequences": sequences})
    drafts = Drafts(option.speculation, (drafting.model if drafting else None) or "")
    return _served(plan, launch(replace(option.request, flags=flags), drafts=drafts))


def prompts_launch_of(plan: Plan) -> Launch | None:
    """How one server that computes prompts is started, where pools are apart."""
    option = plan.option
    if option.pools is None:
        return None
    request, deployment = option.request, option.deployment
    if option.prompts is not None:
        request, deployment = option.prompts.request, option.prompts.deployment
    request = replace(request, flags=request.flags.model_copy(update={"token_budget": option.prompt_budget}))
    return _served(plan, launch(request, drafts=Drafts(option.speculation.beside(deployment))))


def _served(plan: Plan, started: Launch) -> Launch:
    """A launch for the requests of a plan."""
    return replace(started, queue=plan.question.demand.queue, chat=plan.question.demand.of_messages)


def launch_line(plan: Plan) -> str | None:
    """The command that starts one replica; ``None`` for pools apart, and where the engine has no flags for it."""
    if plan.option.pools:
        return None
    try:
        return command_line(launch_of(plan))
    except InferplanError:
        return None


def load_of_users(plan: Plan) -> str:
    """What users make of their load: ``"31 requests/s, 130 users waiting for an answer at a time"``; empty for another
    load, and for people, with whom an answer begins (:func:`opening`).
    """
    demand = plan.question.demand
    if plan.waiting is None or demand.people is not None:
        return ""
    return f"{plan.rate:,.4g} {demand.counted}/s, {_users(plan.waiting)} waiting for an answer at a time"


def opening(plan: Plan) -> list[str]:
    """The load in the lines that an answer begins with, where it was asked for by people or by requests in flight."""
    demand = plan.question.demand
    if demand.people is not None:
        return demand.people.lines(plan.rate, plan.rate * plan.response, session_time(plan))
    return [] if demand.users is None or demand.think else [in_flight_line(demand.users, demand.chat)]


def served_line(plan: Plan) -> str:
    """How much of the load the GPUs there are, or an hourly cost, carry: all of it, or the most; empty where nothing
    bounds it."""
    question, found = plan.question, plan.capacity
    demand, sizing = question.demand, question.sizing
    if not question.bounded or found is None:
        return ""
    amount = in_words(demand, amount_of(demand))
    if question.most:
        kept = f", at {sizing.utilisation:.0%} of capacity" if sizing.utilisation < 1 else ""
        limits = limits_in_words(question.slo, demand.classes)
        sure = f", at a confidence of {plan.confidence:g}" if plan.has_confidences else ""
        return f"the most for {question.bound}: {amount}, with {limits}{sure}{kept}"
    if demand.trace is not None:
        return ""
    share = f"{amount} are {1 / found.factor:.0%} of the capacity of {devices(plan.option)} in settings for this load"
    if plan.unkept is not None:
        sure = "an even chance" if plan.supported else "its error is not known"
        share = f"not at a confidence of {USUAL:g}; if the prediction is right ({sure}), {share}"
    else:
        share = f"yes{f', at a confidence of {plan.confidence:g}' if plan.has_confidences else ''}: {share}"
    return f"{share}; the most for {question.bound}: {option_of(demand)} most"


def people_record(plan: Plan) -> dict[str, Any] | None:
    """What people make of their load, with where its figures come from; ``None`` for another load."""
    people = plan.question.demand.people
    return None if people is None else people.record(plan.rate, plan.rate * plan.response)


def session_time(plan: Plan) -> float | None:
    """Mean seconds of a session of agents, at the mean time of a call; ``None`` where there are none."""
    sessions = plan.question.demand.sessions
    return None if sessions is None else session_seconds(sessions, plan.response)


def session_rate(plan: Plan) -> float | None:
    """Sessions of agents that begin in a second of the load; ``None`` where there are none, or a trace has them."""
    sessions = plan.question.demand.sessions
    return None if sessions is None else sessions.arrivals.rate  # type: ignore[union-attr]  # plans are for open loops


def _users(number: float) -> str:
    """``"130 users"``, ``"1 user"``, ``"fewer than 1 user"``: a mean that nobody reads as none."""
    if number < 1.0:
        return "fewer than 1 user"
    return "1 user" if round(number) == 1 else f"{number:,.0f} users"


def rates_of(plan: Plan) -> Rates:
    """What is served; the one answer of a request to a model that generates nothing is no token."""
    demand, encodes = plan.question.demand, plan.option.deployment.model.encodes
    output = 0.0 if encodes else demand.output.average
    return Rates(requests=max(plan.rate, 1e-12), prompt=demand.prompt.average, output=output)


def cost_of(plan: Plan) -> Cost | None:
    """The bill at the load that is served."""
    option = plan.option
    if not option.purchases:
        return None
    *prompts, bill = option.purchases
    beside = prompts[0] if prompts else None
    return Cost(bill=bill, rates=rates_of(plan), beside=beside, tiers=option.tier_cost)


def energy_of(plan: Plan) -> Energy | None:
    """Energy at full TDP, or at the caps; ``None`` where the power is not on file."""
    option = plan.option
    try:
        watts = sum(deployment.hardware.tdp * count for deployment, count in option.kinds)
        most = PowerBudget(watts=inf).least(option.kinds)
    except InferplanError:
        return None
    power, share = watts / option.devices, min(most / watts, 1.0)
    return Energy(power=power, devices=option.devices, rates=rates_of(plan), share=share)


def cheapest_drafting(plan: Plan) -> Drafting | None:
    """The drafting of the cheapest plan with drafts, the first that was tried where there is none of these."""
    tried = plan.question.space.drafting
    if not tried:
        return None  # before anything is simulated for it
    found = plan.cheapest(True)
    return (plan.question.space.drafting_of(found.option.speculation) if found else None) or tried[0]


def screened_costs(plan: Plan) -> dict[int, float | None]:
    """Cost of the cheapest candidate by drafted tokens, 0 for none, before simulation; ``None`` without a candidate."""
    costs: dict[int, float | None] = dict.fromkeys([0, *(one.length for one in plan.question.space.drafting)])
    for option in plan.searched.options:
        known = costs.get(option.speculation.length)
        if option.cost is not None and (known is None or option.cost < known):
            costs[option.speculation.length] = option.cost
    return costs


def break_even_batch(plan: Plan, found: Verified | None) -> int | None:
    """The batch from which on the drafts lose on the devices of a finalist; ``None`` when they never do."""
    if found is None or not found.option.speculation.length:
        return None
    demand = plan.question.demand
    context = demand.prompt.average + demand.output.average / 2
    return break_even(found.option.deployment, found.option.speculation, context)


def relaxation(plan: Plan, checked: Verified) -> dict[str, float]:
    """The factors by which the limits would have to grow: those of the simulation, where it sees a miss."""
    slo = plan.question.slo
    return checked.violations(slo) or checked.option.violations(slo)


def cheaper_still(plan: Plan, checked: Verified) -> tuple[Edge, PlanOption] | None:
    """The plan with twice a limit that an idle replica barely keeps, where it costs no more than the next-cheaper
    candidate and that one would need as much."""
    factors, cost = relaxation(plan, checked), checked.option.cost
    for edge, looser in plan.edges:
        if looser is None or looser.cost is None or cost is None:
            continue
        if looser.cost <= cost and factors.get(edge.name, 1.0) >= LOOSER:
            return edge, looser
    return None


def money(option: PlanOption) -> str:
    """``"15.82 USD/h"``, or the bill of the whole job where it is offline."""
    if option.cost is None or option.tariff is None:
        return "no price"
    return f"{option.cost:,.2f} {option.tariff.currency}" + ("" if option.hours is not None else "/h")


def dated_money(option: PlanOption) -> str:
    """:func:`money` with the age of the oldest price that is paid, where that is worth a word:
    ``"15.82 USD/h (prices 80 days old)"``.
    """
    dated = [(bill.offer.date, bill.offer.age) for bill in option.purchases if bill.offer.date and bill.offer.age]
    return money(option) + (f" (prices {min(dated)[1]})" if dated else "")


def terms_of(plan: Plan) -> list[list[Figure]]:
    """What the replicas of a plan cost on demand, spot and reserved, where the lists that it asks sell all of them; of
    GPUs whose price the user states, nothing.
    """
    option, prices = plan.option, plan.question.prices
    if any(bill.offer.source == STATED for bill in option.purchases) or prices.term == "owned":
        return []
    rows = []
    for term in TERMS:
        book = prices.on(term)
        sizes = [(one.hardware.name, one.parallel, count) for one, _, count in option.sold]
        tariffs = [(book.tariff(gpu, parallel.ranks, parallel.tp), count) for gpu, parallel, count in sizes]
        sold = [(tariff, count) for tariff, count in tariffs if tariff is not None]
        lengths = dict.fromkeys(length for tariff, _ in sold for length in tariff.lengths)
        for length in lengths:
            bills = [tariff.lasting(length).bill(count) for tariff, count in sold if length in tariff.lengths]
            if len(bills) == len(sizes):
                rows.append(_on_terms(", ".join(filter(None, (term, length))), bills))
    return rows


def _on_terms(term: str, bills: list[Bill]) -> list[Figure]:
    hourly, unit, short = sum(bill.per_hour for bill in bills), bills[0].offer.currency, no_month(bills)
    month, paid = hourly * HOURS_PER_MONTH, sum(bill.bought for bill in bills)
    return [
        Figure("term", term, "terms", left=True),
        Figure("per_hour", hourly, f"{unit}/h", ",.2f"),
        Figure("per_month", None if short else month, f"{unit} per month", ",.0f", absent=short),
        text("bought", " + ".join(f"{bill.units:,} x {bill.offer.what}" for bill in bills), left=True),
        Figure("gpus_paid", paid, "GPUs paid"),
        Figure("per_gpu_hour", hourly / paid, f"{unit}/h per GPU", ",.2f"),
        Figure("list", [bill.offer.source for bill in bills], text=""),
        text("seller", " + ".join(dict.fromkeys(bill.offer.seller for bill in bills)), left=True),
        text("date", " + ".join(dict.fromkeys(str(bill.offer.date) for bill in bills)), left=True),
    ]


def alike_steps(plan: Plan) -> list[list[Step]]:
    """The curve of cost against confidence, neighbours that buy the same together."""

    def bought(step: Step) -> tuple[object, ...]:
        option = step.option
        return (step.exact, *((devices(option), shape(option), quants(option), money(option)) if option else ()))

    return [[*alike] for _, alike in groupby(plan.curve, key=bought)]


def devices(option: PlanOption) -> str:
    """``"8 x h100-sxm"``, or of two kinds ``"4 x h100-sxm + 8 x h200-sxm"``, those that compute prompts first."""
    counts: dict[str, int] = {}
    for deployment, count in option.kinds:
        name = device(deployment)
        counts[name] = counts.get(name, 0) + count
    return " + ".join(f"{count} x {name}" for name, count in counts.items())


def gpus(option: PlanOption) -> str:
    """The devices of an option by name, those that compute prompts first."""
    return " + ".join(dict.fromkeys(device(deployment) for deployment, _ in option.kinds))


def device(deployment: Deployment) -> str:
    """Its device by name, with the cap on its watts: ``"h100-sxm at 500 W"``."""
    cap = deployment.cap
    return deployment.hardware.name + ("" if cap is None else f" at {cap.watts:g} W")


def quants(option: PlanOption) -> str:
    """The formats as they were asked for, of prompts and of decodes where they differ."""
    requests = [option.request] if option.prompts is None else [option.prompts.request, option.request]
    return " + ".join(dict.fromkeys(request.quant or "native" for request in requests))


def other_format(option: PlanOption, than: PlanOption) -> str:
    """``", in fp8"`` where its formats are not those of another option; else empty."""
    named = quants(option)
    if named == quants(than):
        return ""
    return ", in the checkpoint's format" if named == "native" else f", in {named}"


def formats(option: PlanOption) -> str:
    """The formats of each deployment."""
    return " + ".join(dict.fromkeys(deployment.formats for deployment, _ in option.kinds))


def shape(option: PlanOption) -> str:
    """``"2 x tp 4, fp8"``: replicas and how each is divided."""
    parallel, drafts = option.deployment.division, with_them(option)
    if option.pools and option.prompts:
        first = option.prompts.deployment.division
        return f"{option.pools[0]} prefill ({first}) + {option.pools[1]} decode ({parallel}{drafts})"
    if option.pools:
        return f"{option.pools[0]} prefill + {option.pools[1]} decode, each {parallel}{drafts}"
    return f"{option.replicas} x ({parallel}{drafts})"


def with_them(option: PlanOption) -> str:
    """What replicas have beside their division: ``", 3 drafts, 8 adapter slots"``."""
    drafts = f", {option.speculation.length} drafts" if option.speculation.length else ""
    if option.deployment.lora is not None:
        drafts += f", {option.deployment.lora.slots} adapter slots"
    return drafts + "".join(f", {one.describe()}" for one in option.deployment.elsewhere)


def replicas_given(plan: Plan) -> str:
    """What is said of the replicas that other loads take: by their capacity, which knows of no failure."""
    return "replicas for each load" + (", if none were lost" if plan.question.sizing.survive else "")


def candidate(plan: Plan, found: Verified) -> list[Figure]:
    """A finalist of a plan: its row of JSON and CSV, and of the table of alternatives."""
    option, deployment, at = found.option, found.option.deployment, found.achieved
    parallel, encodes, lora = deployment.parallel, deployment.model.encodes, deployment.lora
    served = plan.served(found) * option.output / option.devices
    return [
        Figure("gpu", deployment.hardware.name, "GPU", text=gpus(option), left=True),
        Figure("devices", option.devices, "GPUs"),
        Figure("replicas", option.replicas, "replicas", text=shape(option), left=True),
        Figure("spare", option.spare),
        Figure("precision", deployment.formats, "format", text=quants(option), left=True),
        Figure("tp", parallel.tp),
        Figure("pp", parallel.pp),
        Figure("ep", parallel.ep),
        Figure("dp", parallel.dp),
        Figure("redundant_experts", parallel.redundant),
        Figure("two_batch_overlap", deployment.two_batches is not None),
        Figure("engine", deployment.engine.describe()),
        Figure("prefill_replicas", option.pools[0] if option.pools else None),
        Figure("decode_replicas", option.pools[1] if option.pools else None),
        *_prompts(option),
        Figure("token_budget", option.budget),
        Figure("max_num_seqs", found.slots),
        Figure("ttft_s", at["ttft"], "latency" if encodes else "TTFT", short_time, seen=option.hours is None),
        Figure("tpot_s", at["tpot"], "TPOT", short_time, seen=not encodes and option.hours is None),
        Figure("e2el_s", at["e2el"]),
        Figure("answer_ttft_s", at.get("answer_ttft")),
        Figure("verdict", found.verdict),
        Figure("screened_capacity_requests_per_s", option.rate),
        Figure("screened_output_tokens_per_s_per_device", None if encodes else option.per_device),
        Figure("output_tokens_per_s_per_user", None if encodes else 1 / at["tpot"]),
        text("requests/s/GPU" if encodes else "tokens/s/GPU", f"{served:,.0f}"),
        Figure("cost", option.cost, "cost", text=money(option)),
        Figure("currency", option.tariff.currency if option.tariff else None),
        text("at", " + ".join(dict.fromkeys(bill.offer.seller for bill in option.purchases)), left=True),
        Figure("hours", option.hours, "hours", ",.2f", seen=option.hours is not None),
        Figure("draft_tokens", option.speculation.length or None),
        Figure("on_host", [one.describe() for one in deployment.elsewhere] or None),
        Figure("max_loras", None if lora is None else lora.slots),
        Figure("calibration", deployment.calibration.described),
        Figure("power_cap_w", None if deployment.cap is None else deployment.cap.watts),
    ]


_RUNNERS = 8
"""GPUs in the table of those that carry less."""


def runner(plan: Plan, one: Runner) -> list[Figure]:
    """What another GPU carries within the bound of a plan for the most: its row of the table and of JSON."""
    option, demand = one.option, plan.question.demand
    shown = in_words(demand, rounded_down(demand, one.amount))
    by = "simulation" if one.share is None else f"closed form x {one.share:.2f}"
    return [
        Figure("gpu", option.deployment.hardware.name, "GPU", text=gpus(option), left=True),
        Figure("devices", option.devices, "GPUs"),
        Figure("replicas", option.replicas, "replicas", text=shape(option), left=True),
        Figure("precision", option.deployment.formats, "format", text=quants(option), left=True),
        Figure("carried", one.amount, "carries", text=shown),
        Figure("simulated", one.share is None, "by", text=by, left=True),
        Figure("cost", option.cost, "cost", text=money(option)),
    ]


def runners(plan: Plan) -> list[list[Figure]]:
    """The GPUs that carry most after that of a plan for the most."""
    return [runner(plan, one) for one in plan.runners[:_RUNNERS]]


def candidates(plan: Plan) -> list[list[Figure]]:
    """The plan and its alternatives, cheapest first."""
    return [candidate(plan, found) for found in [plan.best, *plan.alternatives]]


def _prompts(option: PlanOption) -> list[Figure]:
    """What computes prompts, where it is not what decodes, and its own token budget where pools are apart."""
    found = None if option.prompts is None else option.prompts.deployment
    figures = {
        "gpu": found and found.hardware.name,
        "devices": found and option.kinds[0][1],
        "precision": found and found.formats,
        **{name: found and getattr(found.parallel, name) for name in ("tp", "pp", "ep", "dp")},
        "redundant_experts": found and found.parallel.redundant,
        "two_batch_overlap": None if found is None else found.two_batches is not None,
        "token_budget": option.prompt_budget,
    }
    return [Figure(f"prefill_{name}", value) for name, value in figures.items()]


def power(plan: Plan) -> list[Figure] | None:
    """Watts of all devices by nameplate and on average, with joules of a token; ``None`` without a TDP on file."""
    budget, mean, served = plan.question.sizing.power, plan.best.watts, plan.rate * plan.option.output
    try:
        rated = (budget or PowerBudget(watts=inf)).beside
        by_name = PowerBudget(watts=inf, beside=rated).least(plan.option.kinds)
    except InferplanError:
        return None
    each = mean / served if mean is not None and served else None
    within = "" if budget is None else f", budget {budget.describe()}"
    drawn = (
        None
        if mean is None
        else f"{mean / 1e3:,.3g} kW, {format_quantity(each, 'J') if each else '-'} per output token"
    )
    return [
        Figure("nameplate_w", by_name, "power by nameplate", text=f"{by_name / 1e3:,.3g} kW{within}"),
        Figure("mean_w", mean, "mean draw at this load", text=drawn, seen=mean is not None),
        Figure("j_per_output_token", each),
        Figure("scope", rated.scope),
        Figure("budget_w", None if budget is None else budget.watts),
        Figure("provision", None if budget is None else budget.provision),
    ]
