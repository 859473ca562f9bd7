"""What follows from a plan: how a replica is started, the bill, the energy, what the limits would have to be."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

from inferplan.answers.cost import Cost, Energy, Rates
from inferplan.answers.drafting import Drafting
from inferplan.answers.emit import Drafts, Launch, command_line, launch
from inferplan.errors import InferplanError
from inferplan.estimate.deployment import Deployment
from inferplan.planning.option import Option
from inferplan.planning.plan import Plan
from inferplan.planning.power import PowerBudget
from inferplan.planning.verify import Verified
from inferplan.serving.techniques.speculation import break_even


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
    load.
    """
    if plan.waiting is None:
        return ""
    unit = "requests" if plan.question.demand.samples == 1 else "answers"
    hint = "" if plan.question.demand.think else "; people who read and type meanwhile: --think-time 60s"
    return f"{plan.rate:,.4g} {unit}/s, {_users(plan.waiting)} waiting for an answer at a time{hint}"


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
    tried, found = plan.question.space.drafting, plan.cheapest(True)
    if not tried:
        return None
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


def money(option: Option) -> str:
    """``"15.82 USD/h"``, or the bill of the whole job where it is offline."""
    if option.cost is None or option.tariff is None:
        return "no price"
    return f"{option.cost:,.2f} {option.tariff.currency}" + ("" if option.hours is not None else "/h")


def devices(option: Option) -> str:
    """``"8 x h100-sxm"``, or of two kinds ``"4 x h100-sxm + 8 x h200-sxm"``, those that compute prompts first."""
    counts: dict[str, int] = {}
    for deployment, count in option.kinds:
        name = device(deployment)
        counts[name] = counts.get(name, 0) + count
    return " + ".join(f"{count} x {name}" for name, count in counts.items())


def gpus(option: Option) -> str:
    """The devices of an option by name, those that compute prompts first."""
    return " + ".join(dict.fromkeys(device(deployment) for deployment, _ in option.kinds))


def device(deployment: Deployment) -> str:
    """Its device by name, with the cap on its watts: ``"h100-sxm at 500 W"``."""
    cap = deployment.cap
    return deployment.hardware.name + ("" if cap is None else f" at {cap.watts:g} W")


def power_record(plan: Plan) -> dict[str, Any] | None:
    """Watts of all devices by nameplate and on average, with joules of a token; ``None`` without a TDP on file."""
    option, budget = plan.option, plan.question.sizing.power
    try:
        rated = (budget or PowerBudget(watts=inf)).beside
        by_name = PowerBudget(watts=inf, beside=rated).least(option.kinds)
    except InferplanError:
        return None
    watts = plan.best.watts
    served = plan.rate * option.output
    return {
        "nameplate_w": by_name,
        "mean_w": watts,
        "j_per_output_token": watts / served if watts is not None and served else None,
        "scope": rated.scope,
        "budget_w": None if budget is None else budget.watts,
        "provision": None if budget is None else budget.provision,
    }


def quants(option: Option) -> str:
    """The formats as they were asked for, of prompts and of decodes where they differ."""
    requests = [option.request] if option.prompts is None else [option.prompts.request, option.request]
    return " + ".join(dict.fromkeys(request.quant or "native" for request in requests))


def other_format(option: Option, than: Option) -> str:
    """``", in fp8"`` where its formats are not those of another option; else empty."""
    named = quants(option)
    if named == quants(than):
        return ""
    return ", in the checkpoint's format" if named == "native" else f", in {named}"


def formats(option: Option) -> str:
    """The formats of each deployment."""
    return " + ".join(dict.fromkeys(deployment.formats for deployment, _ in option.kinds))


def shape(option: Option) -> str:
    """``"2 x tp 4, fp8"``: replicas and how each is divided."""
    parallel = option.deployment.division
    drafts = f", {option.speculation.length} drafts" if option.speculation.length else ""
    if option.deployment.lora is not None:
        drafts += f", {option.deployment.lora.slots} adapter slots"
    drafts += "".join(f", {one.describe()}" for one in option.deployment.elsewhere)
    if option.pools and option.prompts:
        first = option.prompts.deployment.division
        return f"{option.pools[0]} prefill ({first}) + {option.pools[1]} decode ({parallel}{drafts})"
    if option.pools:
        return f"{option.pools[0]} prefill + {option.pools[1]} decode, each {parallel}{drafts}"
    return f"{option.replicas} x ({parallel}{drafts})"
