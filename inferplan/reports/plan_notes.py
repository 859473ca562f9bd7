"""The sentences of a plan: the answer and its notes, and what the page says to people who decide."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import NamedTuple

import numpy as np

from inferplan.answers.emit import base_note, checkpoint_needs, queue_note
from inferplan.catalog.bills import STATED, Bill, no_month
from inferplan.catalog.quality import (
    cache_line,
    floor_line,
    is_own,
    quality_in_short,
    quality_of,
    quantised_checkpoint,
)
from inferplan.devices.constants import late_share
from inferplan.devices.power import UNMEASURED
from inferplan.estimate.deployment import parts_rest_on
from inferplan.estimate.resting import outside_band
from inferplan.estimate.structured import mask_filling
from inferplan.estimate.support import FEWEST_SYSTEMS, too_few
from inferplan.figures import Figure
from inferplan.planning.amount import option_of
from inferplan.planning.confidence import MIDDLE, SAFE, USUAL
from inferplan.planning.demand import METRIC_NAMES, percentile_of, users_in_words
from inferplan.planning.edges import LITTLE
from inferplan.planning.forms import forgone_of
from inferplan.planning.option import Forgone, PlanOption
from inferplan.planning.plan import WORTH, Plan
from inferplan.planning.verify import TOO_SHORT, Verified
from inferplan.reports.emit import cap_note
from inferplan.reports.estimate import media_note
from inferplan.reports.hosted import same_load
from inferplan.reports.known_error import constants_of, late_tokens
from inferplan.reports.plan_apart import apart_line
from inferplan.reports.plan_figures import (
    CERTAIN,
    break_even_batch,
    cheaper_still,
    cheapest_drafting,
    cost_of,
    dated_money,
    devices,
    gpus,
    launch_line,
    launch_of,
    load_of_users,
    money,
    opening,
    other_format,
    quants,
    relaxation,
    screened_costs,
    served_line,
    shape,
)
from inferplan.reports.plan_tiers import tier_lines
from inferplan.reports.plan_unused import unused_lines
from inferplan.serving.session_results import SessionFigures
from inferplan.traffic.reasoning import above_at_most
from inferplan.units import HOURS_PER_MONTH, format_time

_PLAN = "inferplan plan ..."
_DRAWS = 1_000_000
"""Of which the longest are looked for."""


def answer(plan: Plan) -> str:
    """The plan in a few sentences: first what is not known of its error, then what to buy."""
    option = plan.option
    held = ", ".join(
        f"{one.name}{' ' if one.name else ''}{METRIC_NAMES[name]} {percentile_of(one.slo)} of "
        f"{format_time(one.achieved[name], 3)} (limit {format_time(limit, 3)})"
        for one in plan.best.kept(plan.question.slo)
        for name, limit in one.slo.all_limits.items()
    )
    chosen = quants(option)
    bought = devices(option) + ("" if chosen == "native" else f" in {chosen}")
    text = f"{bought} at {dated_money(option)}"
    text += f" for {held}{_at_confidence(plan)}." if held else f", done in {option.hours or 0:,.1f} hours."
    load, load_said = load_of_users(plan), opening(plan)[:1]
    text += f" The load: {load_said[0] if load_said else plan.question.demand.loaded()}" * bool(load_said or load)
    text += f": {load}." if load else "." * bool(load_said)
    api = [f"{figure.label}: {figure.shown}" for figure in beside_api(plan) if figure.label]
    lines = (
        *(quality_headline(plan), native_line(plan), confidence_line(plan), unknown_line(plan), *api),
        checkpoint_line(plan),
    )
    first = _sentences([limit_line(plan), error_unknown(plan), served_line(plan)])
    return " ".join([*first, text, *_sentences(lines)])


def limit_line(plan: Plan) -> str:
    """What has to be said before all else: that nobody stated the limit on TTFT, which was made for much shorter
    prompts, and what it costs; empty where it was stated, and where a looser one would cost no less."""
    limit, found = plan.question.borrowed, plan.in_proportion
    if limit is None:
        return ""
    if found is None:
        return limit.choice()
    cost, own = found.option.cost or 0.0, plan.option.cost or 0.0
    if cost > own * (1 - WORTH):
        return ""
    return (
        f"{limit.describe()}; in proportion, with {limit.option}, a plan costs {money(found.option)} or less, not "
        f"{money(plan.option)}; state --ttft to choose"
    )


def beside_api(plan: Plan) -> list[Figure]:
    """What an API charges for the load of the plan; nothing where none is named, or there is no bill."""
    cost, api = cost_of(plan), plan.question.api
    return [] if cost is None or api is None else same_load(cost, api, plan.carried)


def sentence(line: str) -> str:
    """A note as a sentence; empty for none."""
    return f"{line[0].upper()}{line[1:]}." if line else ""


def _sentences(lines: Iterable[str]) -> list[str]:
    return [sentence(line) for line in lines if line]


def _at_confidence(plan: Plan) -> str:
    """``", at a confidence of 0.8"``; empty where no error is known, or nothing is said of it."""
    if not plan.supported or not plan.has_confidences:
        return ""
    return f", at a confidence of {plan.confidence:g}"


def _too_late(plan: Plan) -> str:
    """That no number of GPUs would, where first tokens were measured later than predicted by more than the limit."""
    slo, result = plan.question.slo, plan.best.result
    limit, tail = slo.limits.get("ttft"), None if result is None else result.tail
    if limit is None or tail is None:
        return ""
    late = late_share(slo.percentile) * tail.at(USUAL)
    said = f" (first tokens at p{slo.percentile:g} were measured up to {format_time(late, 3)} later than predicted"
    return f"{said}: no number of GPUs keeps {format_time(limit, 3)})" if late >= limit else ""


def error_unknown(plan: Plan) -> str:
    """What has to be said first: that nobody knows how far off the plan is, or that no plan holds at the confidence
    that is usual; empty where one does."""
    if not plan.has_confidences:
        return ""
    unkept = plan.unkept is not None
    most = plan.question.sizing.max_cost
    within = "" if most is None else f" for {plan.question.bound}"
    nothing = f"no option with a known error keeps the limits at a confidence of {USUAL:g}{within}"
    if plan.supported:
        return (
            f"{nothing}{_too_late(plan)}. This plan keeps them if real times are no longer than predicted, which is an "
            "even chance"
            if unkept
            else ""
        )
    missing, calibration = plan.option.lacking, plan.option.deployment.calibration
    if calibration.basis == "roofline":
        why = "no measurements support it: times of an ideal device, and real ones are longer"
    elif missing:
        known = "too few" if any(missing.values()) else "no"
        why = f"{known} measurements support {' and '.join(missing)} ({too_few(missing)})"
    else:
        why = "no held-out measurements of its kernels"
    other = f"; {nothing}" if unkept and plan.measured is not None else ""
    return f"the error of this plan is not known: {why}{other}"


def forgone_form(plan: Plan) -> Forgone | None:
    """What a less simple form might be worth, of which measured ratios do not tell whether it is."""
    return forgone_of(plan.option, [*(verified.option for verified in plan.alternatives), *plan.outranked])


def notes(plan: Plan, command: str | None = None) -> list[str]:
    """What the figures rest on, what would be cheaper, how to start it. command: which asked for the plan."""
    option, space = plan.option, plan.question.space
    lines = [
        *edge_lines(plan),
        *tier_lines(plan),
        native_line(plan),
        apart_line(plan),
        format_line(plan),
        cache_line(dict(plan.option.request.roles).get("kv"), plan.question.space.quality),
        floor_line(plan.option.deployment.model, space.all_quants, space.quality),
        confidence_line(plan),
        unknown_line(plan),
        measured_line(plan),
        miss_line(plan),
        speculation_line(plan),
        "" if (forgone := forgone_form(plan)) is None else forgone.text,
        context_line(plan),
        queue_line(plan),
        session_line(plan),
        cheaper_line(plan),
        *host_lines(plan),
        media_note(option.deployment),
        *option.deployment.model_lines,
        option.deployment.hardware.wired_line,
        basis_line(plan),
        tail_line(plan),
        *anchor_lines(plan),
        mask_line(plan),
        sampling_line(plan),
        search_line(plan),
        *unused_lines(plan),
        price_line(plan),
        *people_notes(plan),
        start_line(plan, command),
        base_note(launch_of(plan)),
        cap_line(plan),
    ]
    unmeasured = plan.searched.rejections.examples.get("unmeasured")
    if unmeasured:
        lines.append(
            f"not compared, because neither it nor a similar GPU was measured: {unmeasured} (to plan for it: --gpu "
            "NAME)"
        )
    unpriced = sorted(
        {e.grid.deployment.hardware.name for e in plan.searched.grids if e.tariff is None} - {option.request.gpu}
    )
    if unpriced:
        lines.append(f"without a price, on the frontier only: {', '.join(unpriced)} (--price {unpriced[0]}=...)")
    return [text for text in lines if text]


def edge_lines(plan: Plan) -> list[str]:
    """Limits that an idle replica barely keeps, and what would be bought with twice each."""
    lines = []
    for edge, looser in plan.edges:
        worth = looser is not None and (looser.cost or 0.0) * LITTLE < (plan.option.cost or 0.0)
        more = f"; with {edge.looser} a plan is {devices(looser)} at {money(looser)}" if looser and worth else ""
        lines.append(edge.describe(plan.question.slo) + more)
    return lines


def people_notes(plan: Plan) -> list[str]:
    """Where the figures about people come from."""
    people = plan.question.demand.people
    return [] if people is None else people.notes()


def host_lines(plan: Plan) -> list[str]:
    """That each replica has a host which the bill does not have; what could not lie on one, and why."""
    found = []
    if plan.option.deployment.elsewhere:
        found.append(
            "each replica has its own host; the bill covers GPUs, and a host that does not come with them is extra"
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
        f"sessions: route all calls of a session to the same replica; {found.cached_share:.1%} of prompt tokens are "
        f"found in its prefix cache; {found.in_system * plan.option.replicas:,.0f} sessions under way at a "
        f"time{lasts}{_how_sure(plan, found)}"
    )


def _how_sure(plan: Plan, found: SessionFigures) -> str:
    """How well the time of a session is known where it has a limit: by far fewer sessions than there are calls."""
    slo = plan.question.slo
    if slo.session is None:
        return ""
    between, slower = found.between(slo.percentile), plan.option.slow.step
    what = f"; the time of a session {percentile_of(slo)} is of {int(found.whole.sum()):,} sessions"
    if between is None:
        return f"{what}, too few to say how sure it is"
    low, high = (format_time(value * slower, 3) for value in between)
    return f"{what} and lies between {low} and {high} (95 % confidence)"


def start_line(plan: Plan, command: str | None = None) -> str:
    """How to start a replica; where it takes more than one command, or a checkpoint of another format, what to type.
    command: which asked for the plan."""
    line, engine = launch_line(plan), plan.option.deployment.engine.name
    if line:
        return f"start each replica: {line}"
    if plan.option.deployment.model.encoder is not None:
        return "engine flags for an encoder-decoder are not supported (docs/encoder-decoders.md)"
    words = f"start it: {command or _PLAN} -o plan.json && inferplan emit {engine} plan.json"
    if named := _checkpoint(plan):
        return f"{words} {named}"
    if plan.option.pools:
        return f"{words} (prints the servers of both pools and their router)"
    return f"{words} (prints the commands of its nodes, or why {engine} has none)"


def _checkpoint(plan: Plan) -> str:
    """The option that names a checkpoint of another format, and what it must hold; empty where none is needed."""
    lacking = checkpoint_needs(launch_of(plan))
    if not lacking:
        return ""
    known = quantised_checkpoint(plan.option.deployment.model, plan.option.request.quant or "")
    return f"--checkpoint {(known and known.checkpoint) or 'ORG/NAME'} (it must hold {lacking})"


def checkpoint_line(plan: Plan) -> str:
    """The checkpoint that ``emit`` has to be given beside the file of the plan; empty where it needs none."""
    option = plan.option
    if option.request.quant is None or option.deployment.model.encoder is not None:
        return ""
    named = "" if launch_line(plan) else _checkpoint(plan)
    return f"to start it: inferplan emit {option.deployment.engine.name} FILE {named}" if named else ""


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
    helps = plan.drafts_help
    percentile, verdict = percentile_of(plan.question.slo), "helps" if helps else "does not help"
    texts = [
        f"{money(found.option)} and TPOT {percentile} {format_time(found.achieved['tpot'], 3)} {side}"
        if found
        else f"no option meets the limits {side}"
        for found, side in ((drafted, "with them"), (plain, "without"))
    ]
    where = " by the prediction itself (the error with drafts is not known)" if plan.confidence > MIDDLE else ""
    line = f"speculation ({drafting.describe()}) {verdict} at this load{where}: {'; '.join(texts)}{_tried(plan)}"
    batch = break_even_batch(plan, drafted)
    if batch is None or drafted is None:
        return line
    option = drafted.option
    where = f"{option.deployment.hardware.name}, {option.deployment.parallel.describe()}"
    return f"{line}; on {where} the drafts slow down batches of {batch:,} or more (here {option.batch:,} per rank)"


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
    if checked is None:
        known = " with a known error" if plan.confidence > MIDDLE else ""
        return f"no candidate{known} costs less, whatever the limits"
    if cheaper_still(plan, checked) is not None:
        return ""  # a line on that limit names it
    option, factors = checked.option, relaxation(plan, checked)
    drafts = f" with {option.speculation.length} drafts" if option.speculation.length else ""
    bare = " without cache tiers" if plan.option.tiers else ""
    what = f"{option.deployment.replicated(option.replicas)}{drafts}{bare} at {money(option)}"
    if checked.result is not None and not checked.violations(plan.question.slo):
        return f"{what} costs less: {TOO_SHORT} whether it keeps the limits" if checked.verdict == TOO_SHORT else ""
    if not all(isfinite(factor) for factor in factors.values()):
        return f"the cheaper candidate that comes closest, {what}, cannot keep up with the load"
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
        return f"basis: {constants_of(calibration)}; no error band is known for its kernels"
    if not plan.bands:
        what = "the time of a job" if plan.question.demand.offline else "the limited latencies"
        return f"basis: {constants_of(calibration)}; no error band is known for {what}"
    bands = ", ".join(f"{METRIC_NAMES[name]} x {low:.2f} to x {high:.2f}" for name, (low, high) in plan.bands.items())
    if calibration.anchor is not None:
        runs = len(calibration.anchor.rows)
        basis = f"{constants_of(calibration)}, anchored to {runs} measured runs"
        return f"basis: {basis}; 80 % of the means of others lie within {bands}"
    return f"basis: {constants_of(calibration)}; 80 % of held-out means lie within {bands} of the predicted means"


def tail_line(plan: Plan) -> str:
    """How late first tokens were measured beyond the 95th percentile, and how much of it the limits leave room for."""
    slo, result = plan.question.slo, plan.best.result
    share = late_share(slo.percentile)
    if result is None or not share or set(slo.all_limits) <= {"tpot"} or not plan.supported or not plan.bands:
        return ""
    if result.tail is None:
        engine = plan.option.deployment.engine.name
        why = f"fewer than {FEWEST_SYSTEMS} systems of {engine} in this form were measured"
        return f"p{slo.percentile:g}: how much later first tokens come than predicted is not known: {why}"
    kept = f"; {format_time(share * plan.option.slow.tail, 2)} are kept free for it" if plan.option.slow.tail else ""
    return f"p{slo.percentile:g}: {late_tokens(result.tail, share)}{kept}"


def anchor_lines(plan: Plan) -> list[str]:
    """Where the measured runs are from and whether they correct this plan; of a running server what was found and
    assumed, and how far off its anchor was on what it had not seen."""
    runs = plan.question.space.runs
    if runs is None:
        return []
    own = plan.option.deployment.calibration.anchor is not None
    which = "it corrects this plan" if own else "this plan is of another system, which it does not correct"
    line = f"anchor: {len(runs.rows)} runs of {runs.system.describe()}, {runs.origin}; {which}"
    return [line, *(f"anchor: {one}" for one in runs.told)]


def confidence_line(plan: Plan) -> str:
    """What the plan at the other confidence is, or why there is none."""
    if not plan.has_confidences or plan.unkept is not None:
        return ""
    other, confidence = plan.other, plan.other_confidence
    if other is None:
        return f"no option with a known error keeps the limits at a confidence of {confidence:g}"
    what = _beside(plan, other)
    if confidence == MIDDLE:
        same = other.option.cost == plan.option.cost and not other_format(other.option, plan.option)
        return "" if same else f"if the prediction were right, {what} would do (--confidence {MIDDLE:g})"
    return f"at a confidence of {confidence:g} it takes {what} (--confidence {confidence:g})"


def _beside(plan: Plan, found: Verified) -> str:
    """What else may be bought, with its format where that is another: ``"2 x (tp 4) on h100-sxm, in fp8 at ..."``."""
    kind = other_format(found.option, plan.option)
    return f"{shape(found.option)} on {gpus(found.option)}{kind} at {money(found.option)}"


def native_line(plan: Plan) -> str:
    """Beside a plan in another format the cheapest in the checkpoint's own: what the change of format buys. Empty where
    that format was not to be tried."""
    tried = plan.question.space.quants
    if quants(plan.option) == "native" or plan.question.demand.offline or (tried is not None and None not in tried):
        return ""
    if plan.native is None:
        nothing, question = "in the checkpoint's own format no tried option keeps the limits", plan.question
        if not question.bounded:
            return nothing
        most = f"{option_of(question.demand)} most --quant native"
        return f"{nothing} at this load for {question.bound}; for the most that it carries: {most}"
    cost, own = plan.option.cost, plan.native.option.cost
    factor = times_the_cost(own / cost) if cost and own else ""
    what = f"{shape(plan.native.option)} on {devices(plan.native.option)} at {money(plan.native.option)}"
    return f"in the checkpoint's own format: {what}{factor}"


def times_the_cost(factor: float) -> str:
    """``", 1.25 times the cost"``; ``", at the same cost"`` where that is 1.00."""
    return ", at the same cost" if f"{factor:.2f}" == "1.00" else f", {factor:.2f} times the cost"


def unknown_line(plan: Plan) -> str:
    """What costs less by a prediction whose error nobody knows, and what it would save were predictions right."""
    found, known = plan.unknown, plan.as_predicted
    if found is None or known is None:
        return ""
    saved = (known.option.cost or 0.0) - (found.option.cost or 0.0)
    unit = found.option.tariff.currency if found.option.tariff else ""
    why = f" ({too_few(found.option.lacking)})" if found.option.lacking else ""
    than = "" if known.option.cost == plan.option.cost else f" than {_beside(plan, known)}"
    line = f"cheaper by {saved:,.2f} {unit}/h{than} if the prediction is right, with an unknown error"
    return f"{line}: {_beside(plan, found)}{why}"


def measured_line(plan: Plan) -> str:
    """Beside a plan whose error is not known, or whose constants were carried from other devices, the cheapest that
    rests on measurements of its own."""
    if not plan.has_confidences:
        return ""
    found = plan.measured
    if plan.supported:
        return "" if found is None else f"measured alternative: {_beside(plan, found)}, on constants of its own device"
    if found is None:
        return "no option with a known error keeps the limits: measure before buying"
    return f"measured alternative: {_beside(plan, found)}, of a kind with a known error, if the prediction is right"


def miss_line(plan: Plan) -> str:
    """The chance of a miss, and what it costs; or that a cost that was stated counted for nothing."""
    risk, stated = plan.miss, plan.question.sizing.miss_cost is not None
    if risk is None or plan.option.tariff is None:
        return "--miss-cost changes nothing: the chance of a miss of this plan is not known" if stated else ""
    unit = plan.option.tariff.currency
    how = "--miss-cost" if stated else "more replicas, which would keep it"
    each = " and ".join(METRIC_NAMES[name] for name in sorted(risk.metrics, reverse=True))
    of_each = f" ({1.0 - risk.held:.0%} for each of {each})" if len(risk.metrics) > 1 else ""
    known = f"at most {risk.chance:.0%}{of_each}" if risk.chance < CERTAIN else "not bounded by what was measured"
    return (
        f"chance of a miss under the load itself: {known}; "
        f"a miss costs {risk.cost:,.2f} {unit}/h ({how}), which is {risk.expected:,.2f} {unit}/h on average"
    )


def format_line(plan: Plan) -> str:
    """Which checkpoint a plan in another format takes, and what was published of its answers; empty in the
    checkpoint's own."""
    request, deployment = plan.option.request, plan.option.deployment
    if request.quant is None or is_own(deployment.model, request.quant):
        return ""
    known = quantised_checkpoint(deployment.model, request.quant)
    named = known.checkpoint if known else ""
    words = f"quality in {request.quant}: {quality_of(deployment.model, request.quant)}"
    if not checkpoint_needs(launch_of(plan)):
        evaluated = f"; evaluated was {named}" if known and named and known.shares else ""
        return f"{words}{evaluated}; the engine converts the released checkpoint"
    return f"{words}; checkpoint: {named}" if named else words


def quality_headline(plan: Plan) -> str:
    """What answers keep of the original's scores, in short; empty in the checkpoint's own format."""
    quant, model = plan.option.request.quant, plan.option.deployment.model
    return "" if quant is None or is_own(model, quant) else quality_in_short(model, quant)


def context_line(plan: Plan) -> str:
    """How many requests are longer than the context, where lengths are draws: the runs of a plan need not have one, and
    a longer run or the service refuses it. Empty where none of so many is, which mostly shows without a draw."""
    context, demand = plan.option.deployment.model.max_context, plan.question.demand
    if context is None or demand.trace is not None or demand.sessions is not None:
        return ""
    kinds = [(one.share, one.prompt, one.output) for one in demand.classes] or [(1.0, demand.prompt, demand.output)]
    rng, share = np.random.default_rng(0), 0.0
    for part, *lengths in kinds:
        if any(one.kind != "fixed" for one in lengths) and above_at_most(lengths, int(context)) * _DRAWS > 1:
            total = sum(one.sample(rng, _DRAWS) for one in lengths)
            share += part * float(np.mean(total > context))
    if not share:
        return ""
    each = float(f"{1 / share:.1g}")
    return (
        f"about 1 request in {each:,.0f} is longer than the context of {context:,} tokens and is refused; to cap "
        "lengths: lognormal:1500:1.2:16k"
    )


def queue_line(plan: Plan) -> str:
    """What has to be done beside the engine's command, so that it admits classes in the order of the plan."""
    note = queue_note(plan.question.demand.queue, plan.deployment.engine.name)
    return f"classes: {note}" if note else ""


def mask_line(plan: Plan) -> str:
    """What is taken for granted of masks; empty without structured decoding."""
    structured = plan.question.demand.structured
    if structured is None:
        return ""
    return (
        "structured decoding: times with masks have not been measured, and error bands are for steps without masks; "
        "the first request of each schema also waits for its grammar (docs/structured.md); "
        f"{structured.rests_on(mask_filling(plan.deployment.engine))}"
    )


def sampling_line(plan: Plan) -> str:
    """What the price of top-k, top-p and penalties rests on; empty without them."""
    filters = plan.option.deployment.filters
    if filters is None:
        return ""
    rests = parts_rest_on(plan.option.deployment)["sampling"]["said"]
    return f"sampling with {', '.join(filters.asked)}: {rests}; error bands are of steps without (docs/sampling.md)"


def search_line(plan: Plan) -> str:
    """Which formats were tried, and what was not simulated."""
    tried = list(dict.fromkeys(priced.request.quant or "native" for priced in plan.searched.grids))
    chosen = None if quants(plan.option) == "native" else quants(plan.option)
    text = f"formats tried: {', '.join(tried)} (--quant)"
    if chosen is not None:
        text += f"; check answers in {chosen} on prompts of your own; --quant native leaves narrower formats out"
    result = plan.best.result
    if result is not None and result.converged is False:
        count = result.counts["arrived"]
        text += f"; the quoted percentiles come from {count:,} requests and are known within 3 % at best"
    if plan.unseen:
        text += f"; {plan.unseen:,} structures that might be cheaper were not simulated (fewer --gpu or --quant)"
    return text


def price_line(plan: Plan) -> str:
    """Where the price comes from."""
    bills = plan.option.purchases
    if not bills:
        return ""
    idle, paid = sum(bill.idle for bill in bills), sum(bill.bought for bill in bills)
    rest = f"; you pay for {idle} idle GPUs of {paid}" if idle else ""
    looked_at = dict.fromkeys(
        [*plan.question.space.gpus, *(e.grid.deployment.hardware.name for e in plan.searched.grids)]
    )
    remarks = dict.fromkeys(
        [*(line for bill in bills for line in bill.remarks), *plan.question.prices.remarks(looked_at)]
    )
    if plan.question.prices.term in ("on-demand", "spot"):  # beside them reserved terms are shown
        remarks |= dict.fromkeys(plan.question.prices.on("reserved").without_years(_listed(bills)))
    return "; ".join([f"to buy: {' and '.join(bill.line for bill in bills)}{rest}", *remarks])


def _listed(bills: Iterable[Bill]) -> list[str]:
    """The devices of bills whose price a list states."""
    return [bill.offer.gpu for bill in bills if bill.offer.source != STATED]


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
        f"each replica is loaded to at most {question.sizing.utilisation:.0%} of its capacity; "
        f"{question.sizing.spare} spare",
        "latencies hold for the engine's flags and the traffic above",
        "prices are as of their dates; energy counts the devices at full TDP, without the building",
    ]
    drafting = question.space.drafting_of(plan.option.speculation)
    if drafting is not None:
        lines.append(f"speculative decoding: {drafting.describe()}" + (f"; {drafting.basis}" if drafting.basis else ""))
    if plan.option.pools:
        lines.append("prompts and decodes on separate pools; the cache moves over the scale-out link")
    parts = {} if plan.best.result is None else plan.best.result.conditions.get("rests_on", {})
    return [*lines, *filter(None, [outside_band(parts)])]


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
        return f"{option.cost:,.0f} {option.tariff.currency} in total"
    short = no_month(option.purchases)
    return f"{option.cost * HOURS_PER_MONTH:,.0f} {option.tariff.currency} per month{f' ({short})' if short else ''}"


def recommendation(plan: Plan) -> str:
    """What to rent or buy, and what it does."""
    option = plan.option
    cost = monthly(option) or "no price is on file"
    bought = " and ".join(f"{bill.units:,} x {bill.offer.what} from {bill.offer.source}" for bill in option.purchases)
    chosen = quants(option)
    what = devices(option) + ("" if chosen == "native" else f" in {chosen}")
    text = f"Run {what}: {cost}" + (f" ({bought})." if bought else ".")
    if option.hours is not None:
        return f"{text} The job is done in {option.hours:,.1f} hours."
    return f"{text} {_served(plan)}"


def _served(plan: Plan) -> str:
    slo, demand = plan.question.slo, plan.question.demand
    load = f"{plan.rate:,.4g} requests per second"
    load = f"At {load}" if demand.users is None else f"With {users_in_words(demand)} ({load})"
    held = ", ".join(_HELD[name].format(format_time(plan.best.achieved[name], 3)) for name in slo.limits)
    return f"{load}, {slo.percentile:g} of 100 requests get {held}."


def risk(plan: Plan) -> str:
    """What may be wrong with it, and by how much; and that answers in another format than the checkpoint's differ."""
    chosen = quants(plan.option)
    if chosen == "native":
        return _risk_of_times(plan)
    said = " ".join(_sentences((native_line(plan), format_line(plan))))
    return f"{_risk_of_times(plan)} The model runs in {chosen}: check that its answers are good enough. {said}".strip()


def _risk_of_times(plan: Plan) -> str:
    if plan.option.deployment.calibration.basis == "roofline":
        return (
            "No measurement exists for this GPU or a similar one. Real times are longer than these: measure before "
            "buying."
        )
    if not plan.supported:
        return (
            "The error of these times is not known: there are no measurements of a service of this kind. Measure first."
        )
    bands = " and ".join(
        f"{_NAMES[name]} between {low:.2f} and {high:.2f} times the predicted mean"
        for name, (low, high) in plan.bands.items()
    )
    what = "the time of a job" if plan.question.demand.offline else "the limited latencies"
    known = f"In 8 of 10 comparable measurements {bands}." if bands else f"No error band is known for {what}."
    text = f"These are predictions. {known}"
    if plan.confidence > MIDDLE and plan.has_confidences:
        text += f" Each limit is kept with a chance of {plan.confidence:.0%}, as far as the error is known."
    if plan.miss is not None:
        kept = "still kept" if plan.miss.held >= SAFE else "missed"
        text += f" On devices as slow as the slowest tenth, the limits are {kept} under this load."
    return text


_NAMES = {
    "ttft": "the mean time to the first token was",
    "tpot": "the mean time for each further token was",
    "e2el": "the mean time of the whole answer was",
    "answer_ttft": "the mean time to the first word after the thought was",
}


def alternative(plan: Plan) -> str:
    """The plan at the other confidence in one sentence; empty where there is none to speak of."""
    if not plan.has_confidences:
        return ""
    other, middle = plan.other, plan.confidence == MIDDLE
    if other is None:
        why = f"no option with a known error keeps the limits at a confidence of {USUAL:g}"
        return f"A safer plan cannot be named: {why}." if middle else ""
    same = _bought(other.option) == _bought(plan.option)
    cost = monthly(other.option) or "no price"
    what = "the same purchase" if same else _named(other.option, plan.option) + f", {cost}"
    if not middle:
        return f"If the prediction is right, this would do: {what}."
    return f"To keep each limit with a chance of {USUAL:.0%}: {what}."


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
