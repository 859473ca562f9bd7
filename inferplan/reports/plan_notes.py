"""The sentences of a plan: the answer and its notes, and what the page says to people who decide."""

from __future__ import annotations

from math import isfinite
from typing import NamedTuple

from inferplan.answers.emit import base_note, checkpoint_needs, queue_note
from inferplan.devices.power import UNMEASURED
from inferplan.estimate.support import too_few
from inferplan.planning.confidence import MIDDLE
from inferplan.planning.demand import METRIC_NAMES, percentile_of, users_in_words
from inferplan.planning.finalists import is_measured
from inferplan.planning.four_bits import FORMAT, asked_with
from inferplan.planning.option import PlanOption
from inferplan.planning.plan import Plan
from inferplan.planning.verify import TOO_SHORT
from inferplan.reports.emit import cap_note
from inferplan.reports.estimate import media_note
from inferplan.reports.known_error import constants_of
from inferplan.reports.plan_figures import (
    break_even_batch,
    cheapest_drafting,
    devices,
    gpus,
    launch_line,
    launch_of,
    load_of_users,
    money,
    other_format,
    quants,
    relaxation,
    screened_costs,
    shape,
)
from inferplan.reports.plan_tiers import tier_lines
from inferplan.units import HOURS_PER_MONTH, format_time


def answer(plan: Plan) -> str:
    """The plan in one sentence."""
    option = plan.option
    held = ", ".join(
        f"{one.name}{' ' if one.name else ''}{METRIC_NAMES[name]} {percentile_of(one.slo)} of "
        f"{format_time(one.achieved[name], 3)} (limit {format_time(limit, 3)})"
        for one in plan.best.kept(plan.question.slo)
        for name, limit in one.slo.all_limits.items()
    )
    load = load_of_users(plan)
    bought = f"{devices(option)} at {money(option)}"
    text = f"{bought}" + (f" for {held}." if held else f", done in {option.hours or 0:,.1f} hours.")
    text += f" The load: {plan.question.demand.loaded()}: {load}." if load else ""
    line = confidence_line(plan)
    text += f" {line[0].upper()}{line[1:]}." if line else ""
    return text


def notes(plan: Plan) -> list[str]:
    """What the figures rest on, what would be cheaper, how to start it."""
    option = plan.option
    lines = [
        *tier_lines(plan),
        confidence_line(plan),
        measured_line(plan),
        speculation_line(plan),
        plan.forgone.text if plan.forgone else "",
        queue_line(plan),
        session_line(plan),
        cheaper_line(plan),
        *host_lines(plan),
        media_note(option.deployment),
        *option.deployment.model_lines,
        basis_line(plan),
        mask_line(plan),
        search_line(plan),
        four_bits_line(plan),
        price_line(plan),
        start_line(plan),
        base_note(launch_of(plan)),
        cap_line(plan),
    ]
    unmeasured = plan.searched.rejections.examples.get("unmeasured")
    if unmeasured:
        lines.append(f"not compared, because nothing was measured on it or its like: {unmeasured} (alone: --gpu NAME)")
    unpriced = sorted(
        {e.grid.deployment.hardware.name for e in plan.searched.grids if e.tariff is None} - {option.request.gpu}
    )
    if unpriced:
        lines.append(f"without a price, on the frontier only: {', '.join(unpriced)} (--price {unpriced[0]}=...)")
    return [text for text in lines if text]


def host_lines(plan: Plan) -> list[str]:
    """That each replica has a host which the bill does not have; what could not lie on one, and why."""
    found = []
    if plan.option.deployment.elsewhere:
        found.append(
            "each replica has a host of its own; the bill is of GPUs, and a host that they do not bring is extra"
        )
    refused = plan.searched.rejections.examples.get("host")
    if refused:
        count = plan.searched.rejections.counts["host"]
        found.append(f"not tried with weights on the host: {count:,} candidates, such as: {refused}")
    return found


def session_line(plan: Plan) -> str:
    """What a fleet for sessions of agents needs beside its replicas, and what they get from it; empty without them."""
    found = None if plan.best.result is None else plan.best.result.sessions
    if found is None:
        return ""
    mean = found.percentiles("duration")["mean"]
    lasts = "" if mean is None else f", which take {format_time(mean * plan.option.slow.step, 3)} on average"
    return (
        f"sessions: route all calls of one to the same replica; {found.cached_share:.1%} of prompt tokens are found in "
        f"its prefix cache; {found.in_system * plan.option.replicas:,.0f} sessions under way at a time{lasts}"
    )


def start_line(plan: Plan) -> str:
    """How to start a replica; where it takes more than one command, or a checkpoint of another format, what to type."""
    line, engine = launch_line(plan), plan.option.deployment.engine.name
    if line:
        return f"start each replica: {line}"
    if plan.option.deployment.model.encoder is not None:
        return "flags of engines for an encoder-decoder are not known here (docs/encoder-decoders.md)"
    lacking = checkpoint_needs(launch_of(plan))
    words = f"start it: inferplan plan ... -o plan.json, then inferplan emit {engine} plan.json"
    if lacking:
        return f"{words} --checkpoint ORG/NAME (it must hold {lacking})"
    if plan.option.pools:
        return f"{words} prints the servers of both pools and their router"
    return f"{words} prints the commands of its nodes, or why {engine} has none"


def cap_line(plan: Plan) -> str:
    """How a cap is set and what it rests on; empty where the plan has none."""
    capped = [deployment for deployment, _ in plan.option.kinds if deployment.cap is not None]
    return "; ".join([*dict.fromkeys(map(cap_note, capped)), UNMEASURED, "see docs/power.md"]) if capped else ""


def speculation_line(plan: Plan) -> str:
    """Whether the named drafts help at this load."""
    drafting = cheapest_drafting(plan)
    if drafting is None:
        return ""
    drafted, plain = plan.cheapest(True), plan.cheapest(False)
    helps = bool(plan.option.speculation.length)
    percentile, verdict = percentile_of(plan.question.slo), "helps" if helps else "does not help"
    texts = [
        f"{money(found.option)} and TPOT {percentile} {format_time(found.achieved['tpot'], 3)} {side}"
        if found
        else f"nothing meets the limits {side}"
        for found, side in ((drafted, "with them"), (plain, "without"))
    ]
    line = f"speculation ({drafting.describe()}) {verdict} at this load: {'; '.join(texts)}{_tried(plan)}"
    batch = break_even_batch(plan, drafted)
    if batch is None or drafted is None:
        return line
    option = drafted.option
    where = f"{option.deployment.hardware.name}, {option.deployment.parallel.describe()}"
    return f"{line}; on {where} the drafts slow down a batch of {batch:,} or more (here {option.batch:,} a rank)"


def _tried(plan: Plan) -> str:
    """What the cheapest candidate costs with each number of drafts, where several were tried."""
    costs = screened_costs(plan)
    if len(costs) <= 2 or plan.option.tariff is None:
        return ""
    texts = (f"{length}: {'no plan' if cost is None else f'{cost:,.2f}'}" for length, cost in costs.items())
    return f"; by drafted tokens, before simulation, in {plan.option.tariff.currency}: {', '.join(texts)}"


def cheaper_line(plan: Plan) -> str:
    """What would have to change for the next-cheaper plan."""
    checked = plan.cheaper_verified
    if plan.question.sizing.confidence != MIDDLE:
        return ""
    if checked is None:
        return "this is the cheapest candidate, with or without the limits"
    option, factors = checked.option, relaxation(plan, checked)
    drafts = f" with {option.speculation.length} drafts" if option.speculation.length else ""
    bare = " without cache tiers" if plan.option.tiers else ""
    what = f"{option.replicas} x {option.deployment.describe()}{drafts}{bare} at {money(option)}"
    if checked.result is not None and not checked.violations(plan.question.slo):
        return f"{what} costs less: {TOO_SHORT} whether it keeps the limits" if checked.verdict == TOO_SHORT else ""
    if not all(isfinite(factor) for factor in factors.values()):
        return f"the cheaper candidate that comes closest, {what}, does not keep up with the load"
    classes, limits = plan.question.demand.classes, plan.question.slo.all_limits
    relaxed = " and ".join(
        f"{METRIC_NAMES[name]} were {factor:.2f} times as long"
        if classes
        else f"{METRIC_NAMES[name]} were {format_time(limits[name] * factor, 3)} (x {factor:.2f})"
        for name, factor in factors.items()
    )
    how = "simulated" if checked.result is not None and checked.violations(plan.question.slo) else "closed form"
    return f"cheaper if the limit on {relaxed}: {what} ({how})"


def basis_line(plan: Plan) -> str:
    """What the times rest on, and their error bands."""
    calibration = plan.option.deployment.calibration
    if calibration.basis == "roofline":
        return (
            "basis: roofline of an ideal device: no measurement stands behind these times, and real ones are longer; "
            "the plan is a lower bound on what to buy"
        )
    if missing := plan.option.lacking:
        return f"basis: {constants_of(calibration)}; no error band: {too_few(missing)}"
    if not plan.supported:
        return f"basis: {constants_of(calibration)}; no error band: none is known of its kernels"
    if not plan.bands:
        what = "how long a job takes" if plan.question.demand.offline else "what is limited"
        return f"basis: {constants_of(calibration)}; no error band: none is known of {what}"
    bands = ", ".join(f"{METRIC_NAMES[name]} x {low:.2f} to x {high:.2f}" for name, (low, high) in plan.bands.items())
    if calibration.anchor is not None:
        runs = len(calibration.anchor.rows)
        basis = f"{constants_of(calibration)}, anchored to {runs} measured runs"
        return f"basis: {basis}; 80 % of the means of others lie within {bands}"
    return f"basis: {constants_of(calibration)}; 80 % of held-out means lie within {bands} of the predicted means"


def confidence_line(plan: Plan) -> str:
    """What the plan at the other confidence is, or why there is none."""
    if plan.question.demand.offline or not plan.question.slo.limits or plan.question.space.base.ideal:
        return ""
    other, confidence = plan.other, plan.other_confidence
    if other is None and confidence == MIDDLE:
        return ""
    if other is None and not plan.supported:
        return f"how far off these times are is not known, so there is no plan at a confidence of {confidence:g}"
    if other is None:
        return f"nothing keeps the limits at a confidence of {confidence:g}"
    kind = other_format(other.option, plan.option)
    what = f"{shape(other.option)} on {gpus(other.option)}{kind} at {money(other.option)}"
    if confidence == MIDDLE:
        return f"were the prediction right, {what} would do (--confidence {MIDDLE:g})"
    room = f"with {1 - plan.question.sizing.utilisation:.0%} of headroom there too it takes {what}"
    if plan.holds_at_the_slow_end is None:
        return f"at the slow end of an error that is known (9 in 10) it takes {what} (--confidence {confidence:g})"
    holds = "still keeps its limits, without headroom" if plan.holds_at_the_slow_end else "misses a limit"
    return f"at the slow end of the prediction's error (9 in 10) the plan {holds}; {room} (--confidence {confidence:g})"


def measured_line(plan: Plan) -> str:
    """Beside a plan of a kind that nobody measured, the cheapest of a kind that was."""
    if plan.supported or plan.question.demand.offline:
        return ""
    found = plan.measured
    if found is None:
        return "nothing whose error is known keeps the limits: measure before buying"
    return (
        f"measured alternative: {shape(found.option)} on {found.option.deployment.hardware.name}"
        f"{other_format(found.option, plan.option)} at {money(found.option)}, of a kind whose error is known"
    )


def queue_line(plan: Plan) -> str:
    """What has to be done beside the engine's command, so that it admits classes in the order of the plan."""
    note = queue_note(plan.question.demand.queue, plan.deployment.engine.name)
    return f"classes: {note}" if note else ""


def mask_line(plan: Plan) -> str:
    """What is taken for granted of masks; empty without structured decoding."""
    if plan.question.demand.structured is None:
        return ""
    return (
        "structured decoding: times with masks have not been measured, error bands are those of steps without; "
        "the first request of each schema also waits for its grammar (docs/structured.md)"
    )


def search_line(plan: Plan) -> str:
    """Which formats were tried, and what was not simulated."""
    tried = list(dict.fromkeys(priced.request.quant or "native" for priced in plan.searched.grids))
    chosen = None if quants(plan.option) == "native" else quants(plan.option)
    text = f"formats tried: {', '.join(tried)} (--quant)"
    if chosen is not None:
        text += f"; whether answers in {chosen} are good enough is yours to judge: --quant native leaves it out"
    result = plan.best.result
    if result is not None and result.converged is False:
        text += f"; the quoted percentiles come from {result.counts['arrived']:,} requests and are less sure than 3 %"
    if plan.unseen:
        text += f"; {plan.unseen} structures that might be cheaper were not simulated (fewer --gpu or --quant)"
    return text


def four_bits_line(plan: Plan) -> str:
    """What 4-bit weights would save on devices on which none were tried; empty where no such plan was found."""
    found = plan.four_bits
    if found is None:
        return ""
    how = "closed form" if found.result is None else "simulated"
    kind = "" if is_measured(found.option, plan.question) or not plan.supported else ", of a kind that nobody measured"
    return (
        f"4-bit weights, not tried on {gpus(found.option)}: {devices(found.option)} in {FORMAT} (AWQ, GPTQ) at "
        f"{money(found.option)} or less ({how}{kind}), against {devices(plan.option)} in {quants(plan.option)} at "
        f"{money(plan.option)}; --quant {asked_with(plan.question)} tries them; whether their answers are good enough "
        "is yours to judge"
    )


def price_line(plan: Plan) -> str:
    """Where the price comes from."""
    bills = plan.option.purchases
    if not bills:
        return ""
    idle, paid = sum(bill.idle for bill in bills), sum(bill.bought for bill in bills)
    rest = f"; {idle} of the {paid} GPUs are paid for and idle" if idle else ""
    looked_at = dict.fromkeys(
        [*plan.question.space.gpus, *(e.grid.deployment.hardware.name for e in plan.searched.grids)]
    )
    remarks = dict.fromkeys(
        [*(line for bill in bills for line in bill.remarks), *plan.question.prices.remarks(looked_at)]
    )
    return "; ".join([f"to buy: {' and '.join(bill.describe() for bill in bills)}{rest}", *remarks])


def assumptions(plan: Plan) -> list[str]:
    """What was taken for granted."""
    question = plan.question
    demand = question.demand
    kinds = {"poisson": "Poisson arrivals", "constant": "evenly spaced arrivals"}
    kind = kinds.get(demand.arrivals, f"{demand.arrivals} arrivals of burstiness {demand.burstiness:g}")
    arrivals = users_in_words(demand) if demand.users is not None else kind
    lines = [
        f"lengths: prompt {demand.prompt.kind} {demand.prompt.average:,.0f}, output {demand.output.kind} "
        f"{demand.output.average:,.0f} tokens; {arrivals if not demand.trace else 'arrivals as in the trace'}",
        f"a replica is given at most {question.sizing.utilisation:.0%} of its capacity; {question.sizing.spare} spare",
        "a latency is conditional on the engine's flags and on the traffic above",
        "prices are those of a moment; energy is that of the devices at full TDP, without the building",
    ]
    drafting = question.space.drafting_of(plan.option.speculation)
    if drafting is not None:
        lines.append(f"speculative decoding: {drafting.describe()}" + (f"; {drafting.basis}" if drafting.basis else ""))
    if plan.option.pools:
        lines.append("prompts and decodes on pools of their own; the cache moves over the scale-out link")
    return lines


_HELD = {
    "ttft": "the first word of an answer within {}",
    "tpot": "then one token every {} or faster",
    "e2el": "the whole answer within {}",
    "answer_ttft": "the first word after the thought within {}",
}


class KeyFigure(NamedTuple):
    """A figure of the first screen: what it is, its value, what to hold it against."""

    name: str
    value: str
    beside: str = ""


def monthly(option: PlanOption) -> str:
    """``"83,169 USD a month"``; the whole bill of a job that ends; empty without a price."""
    if option.cost is None or option.tariff is None:
        return ""
    if option.hours is not None:
        return f"{option.cost:,.0f} {option.tariff.currency} in all"
    return f"{option.cost * HOURS_PER_MONTH:,.0f} {option.tariff.currency} a month"


def recommendation(plan: Plan) -> str:
    """What to rent or buy, and what it does."""
    option = plan.option
    cost = monthly(option) or "no price is on file"
    bought = " and ".join(f"{bill.units:,} x {bill.offer.what} from {bill.offer.source}" for bill in option.purchases)
    text = f"Run {devices(option)}: {cost}" + (f" ({bought})." if bought else ".")
    if option.hours is not None:
        return f"{text} The job is done in {option.hours:,.1f} hours."
    return f"{text} {_served(plan)}"


def _served(plan: Plan) -> str:
    slo, demand = plan.question.slo, plan.question.demand
    load = f"{plan.rate:,.4g} requests a second"
    load = f"At {load}" if demand.users is None else f"With {users_in_words(demand)} ({load})"
    held = ", ".join(_HELD[name].format(format_time(plan.best.achieved[name], 3)) for name in slo.limits)
    return f"{load}, {slo.percentile:g} of 100 requests get {held}."


def risk(plan: Plan) -> str:
    """What may be wrong with it, and by how much; and that answers in another format than the checkpoint's differ."""
    chosen = quants(plan.option)
    if chosen == "native":
        return _risk_of_times(plan)
    return f"{_risk_of_times(plan)} The model runs in {chosen}: check that its answers are good enough."


def _risk_of_times(plan: Plan) -> str:
    if plan.option.deployment.calibration.basis == "roofline":
        return (
            "Nothing was measured on this GPU or one like it. Real times are longer than these: measure before buying."
        )
    if not plan.supported:
        return "How far off these times are is not known: nobody has measured a service of this kind. Measure first."
    bands = " and ".join(
        f"{_NAMES[name]} between {low:.2f} and {high:.2f} times the predicted mean"
        for name, (low, high) in plan.bands.items()
    )
    what = "the time of a job" if plan.question.demand.offline else "what is limited here"
    known = f"In 8 of 10 comparable measurements {bands}." if bands else f"No error band is known of {what}."
    text = f"These are predictions. {known}"
    holds = plan.holds_at_the_slow_end
    if plan.question.sizing.confidence == MIDDLE and holds is not None:
        kept = "would still be kept, with nothing to spare" if holds else "would be missed"
        text += f" Were this service as slow as the slowest tenth of them, the limits {kept}."
    return text


_NAMES = {
    "ttft": "the mean time to the first token was",
    "tpot": "the mean time for each further token was",
    "e2el": "the mean time of the whole answer was",
    "answer_ttft": "the mean time to the first word after the thought was",
}


def alternative(plan: Plan) -> str:
    """The plan at the other confidence in one sentence; empty where there is none to speak of."""
    if plan.question.demand.offline or not plan.question.slo.limits or plan.question.space.base.ideal:
        return ""
    other, middle = plan.other, plan.question.sizing.confidence == MIDDLE
    if other is None:
        known = (
            "how far off the times are is not known" if not plan.supported else "no deployment keeps the limits then"
        )
        return f"A safer plan cannot be named: {known}." if middle else ""
    same = _bought(other.option) == _bought(plan.option)
    cost = monthly(other.option) or "no price"
    what = "the same purchase" if same else _named(other.option, plan.option) + f", {cost}"
    if not middle:
        return f"Without that safety, if the prediction is right: {what}."
    free = f"{1 - plan.question.sizing.utilisation:.0%} of the capacity left free"
    return f"To be safe in 9 of 10 cases, with {free}: {what}."


def _named(option: PlanOption, beside: PlanOption) -> str:
    return f"{shape(option)} on {devices(option)}{other_format(option, beside)}"


def _bought(option: PlanOption) -> tuple[str, str, str, float | None]:
    return devices(option), shape(option), quants(option), option.cost


def key_figures(plan: Plan) -> list[KeyFigure]:
    """The first screen in figures."""
    option, slo = plan.option, plan.question.slo
    found = [KeyFigure("cost", monthly(option) or "no price", money(option)), KeyFigure("GPUs", devices(option))]
    if option.hours is not None and plan.question.demand.deadline is not None:
        within = f"limit {plan.question.demand.deadline / 3600:,.4g} h"
        found.append(KeyFigure("time of the job", f"{option.hours:,.1f} h", within))
    for name, limit in slo.limits.items():
        value = format_time(plan.best.achieved[name], 3)
        found.append(KeyFigure(f"{_SHORT[name]}, p{slo.percentile:g}", value, f"limit {format_time(limit, 3)}"))
    if plan.capacity is not None and plan.capacity.factor:
        carries = f"carries {'at least ' if plan.capacity.open else ''}{plan.capacity.factor:.2f} x this"
        found.append(KeyFigure("load", f"{1 / plan.capacity.factor:.0%} of capacity", carries))
    return found


_SHORT = {
    "ttft": "first token",
    "tpot": "each further token",
    "e2el": "whole answer",
    "answer_ttft": "first token of the answer",
}
