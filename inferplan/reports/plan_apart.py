"""Beside a plan of one pool: what separate pools for prompts and for decodes cost, and the command that tries them."""

from __future__ import annotations

import shlex
from collections import Counter

from inferplan.catalog.assemble import Request
from inferplan.estimate.deployment import Deployment
from inferplan.planning.demand import METRIC_NAMES, Demand, percentile_of
from inferplan.planning.option import PlanOption
from inferplan.planning.plan import Plan
from inferplan.planning.question import Question
from inferplan.planning.verify import Verified, flags_of
from inferplan.reports.plan_figures import money, quants, shape
from inferplan.traffic.requests import Lengths
from inferplan.units import format_time

_DEGREES = ("tp", "pp", "ep", "dp", "cp")


def apart_line(plan: Plan) -> str:
    """What two pools would cost; empty where they were not tried, or are the plan."""
    if not plan.searched.structures_apart or plan.option.pools is not None:
        return ""
    what, found, least = "prompts and decodes on separate pools", plan.apart, plan.apart_at_least
    if least is None:
        return f"{what}: no tried option keeps the limits"
    one = (plan.as_predicted or plan.best).option
    together = f"one pool by the same prediction: {money(one)}"
    if found is None:
        bound = f"at least {money(least)} in closed form, not simulated"
        if (least.cost or 0.0) >= (one.cost or 0.0):
            return f"{what} would not cost less: {bound}; {together}"
        return f"{what}: no simulated layout that costs less keeps the limits ({bound}); {together}"
    option, slo = found.option, plan.question.slo
    held = ", ".join(
        f"{METRIC_NAMES[name]} {percentile_of(slo)} {format_time(found.achieved[name], 3)}" for name in slo.limits
    )
    saved = (one.cost or 0.0) - (option.cost or 0.0)
    return (
        f"{what}: {_sized(option)}, {held} (simulated, if the prediction is right); one pool by the same prediction: "
        f"{_sized(one)}, {saved:,.2f} more; to buy: {_bought(option, plan.option)}; {_tried(found, plan.question)}"
    )


def _sized(option: PlanOption) -> str:
    return f"{money(option)} ({option.devices} GPUs) for {shape(option)}, in {quants(option)}"


def _bought(option: PlanOption, plan: PlanOption) -> str:
    """What is bought for two pools, and why not GPUs one by one where the plan has those."""
    units = Counter[str]()
    for bill in option.purchases:
        units[bill.offer.describe()] += bill.units
    single = any(bill.offer.host is not None for bill in plan.purchases)
    why = "; the cache crosses a link, which is not known between GPUs sold one by one" if single else ""
    return " and ".join(f"{count:,} x {what}" for what, count in units.items()) + why


def _tried(found: Verified, question: Question) -> str:
    """The command that simulates two pools; a part of it where options do not say the whole load."""
    prefill, decode = found.option.pools or (1, 1)
    pools = f"--prefill-replicas {prefill} --decode-replicas {decode}"
    words = _simulate(found.option, question.demand)
    if not words:
        return f"simulate {pools} with this load tries them"
    flags, slo = flags_of(found.option, question), question.slo
    prompts = (found.option.prompts or found.option).deployment
    most = prompts.engine.defaults.tier(prompts.hardware).max_sequences
    steps = f"--max-num-batched-tokens {flags.max_num_batched_tokens} --max-num-seqs {flags.max_num_seqs}"
    limits = " ".join(f"--{name.replace('e2el', 'e2e')} {limit:g}s" for name, limit in slo.limits.items())
    steps += f" --prefill-max-num-seqs {most} {limits}"
    return f"simulate them: {shlex.join(words)} {pools} {steps}"


def _simulate(found: PlanOption, demand: Demand) -> list[str]:
    """The words of it but for the numbers of replicas and their flags; none where options do not say the load or the
    deployments."""
    lengths = _lengths(demand.prompt), _lengths(demand.output)
    decodes = _words(found.request, found.deployment)
    other = found.prompts
    prompts = decodes if other is None else _words(other.request, other.deployment)
    if demand.rate is None or decodes is None or prompts is None or not all(lengths) or _more(demand):
        return []
    words = ["inferplan", "simulate", found.request.model]
    words += [word for name, value in decodes.items() for word in (f"--{name}", value)]
    words += ["--ideal"] if found.request.ideal else []
    usual = dict.fromkeys(_DEGREES, "1") | {"quant": "native"}
    for name in dict.fromkeys([*decodes, *prompts]):
        if (value := prompts.get(name, usual.get(name, ""))) != decodes.get(name, usual.get(name)):
            words += [f"--prefill-{name}", value]
    if found.prompt_budget:
        words += ["--prefill-max-num-batched-tokens", str(found.prompt_budget)]
    if (demand.arrivals, demand.burstiness) != ("poisson", 1.0):
        words += ["--arrivals", demand.arrivals]
        words += ["--burstiness", f"{demand.burstiness:g}"] if demand.arrivals == "gamma" else []
    words += ["--prefix-hit-rate", f"{demand.hit_rate:.4g}"] if demand.hit_rate else []
    return [*words, "--rate", f"{demand.rate:.4g}", "--prompt", lengths[0], "--output", lengths[1]]


def _more(demand: Demand) -> bool:
    """Whether a load has more than a rate, lengths and hits."""
    parts = demand.trace, demand.sessions, demand.adapters, demand.structured, demand.own, demand.media, demand.classes
    return any(part is not None and part != () for part in parts) or demand.prefix.turns > 1


def _words(request: Request, deployment: Deployment) -> dict[str, str] | None:
    """Options that ask for a deployment, without dashes; ``None`` where they are more than where it runs, in which
    format and divided how."""
    parallel = deployment.parallel
    asked = {name: getattr(request, name) for name in ("model", "gpu", "quant", "parallel", "engine", "ideal")}
    if request != Request(**asked) or parallel.spread_dense or parallel.redundant:
        return None
    found = {"gpu": request.gpu} | ({"quant": request.quant} if request.quant else {})
    found |= {name: str(getattr(parallel, name)) for name in _DEGREES if getattr(parallel, name) > 1}
    return found if request.engine == Request.engine else found | {"engine": request.engine}


def _lengths(lengths: Lengths) -> str:
    """As ``--prompt`` takes them; empty for those that it does not."""
    if lengths.kind not in ("fixed", "uniform", "normal", "lognormal", "gamma") or lengths.mean != round(lengths.mean):
        return ""
    mean, cut = f"{round(lengths.mean)}", "" if lengths.most is None else f":{lengths.most}"
    return mean if lengths.kind == "fixed" else f"{lengths.kind}:{mean}:{lengths.spread:.6g}{cut}"
