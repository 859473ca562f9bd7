"""Beside a plan of one pool: what separate pools for prompts and for decodes would cost, and the command that tries
them."""

from __future__ import annotations

import shlex

from inferplan.catalog.assemble import Request
from inferplan.estimate.deployment import Deployment
from inferplan.planning.confidence import MIDDLE
from inferplan.planning.demand import Demand
from inferplan.planning.option import PlanOption
from inferplan.planning.plan import Plan
from inferplan.reports.plan_figures import devices, money, shape
from inferplan.traffic.requests import Lengths
from inferplan.units import format_time

_DEGREES = ("tp", "pp", "ep", "dp", "cp")


def apart_line(plan: Plan) -> str:
    """What two pools would cost; empty where they were not tried, or are the plan."""
    if not plan.searched.structures_apart or plan.option.pools is not None:
        return ""
    if plan.apart is None:
        return "prompts and decodes on separate pools: no tried option keeps the limits"
    one = plan.best if plan.confidence == MIDDLE else plan.other
    together = "" if one is None else f"; one pool: {money(one.option)}"
    found = plan.apart
    return (
        f"prompts and decodes on separate pools: at least {money(found)} for {shape(found)} on {devices(found)}, TTFT "
        f"{format_time(found.ttft, 3)}, TPOT {format_time(found.tpot, 3)} in the largest batch, {found.batch:,} "
        f"(closed form, if the prediction were right){together}; {_tried(found, plan.question.demand)}"
    )


def _tried(found: PlanOption, demand: Demand) -> str:
    """The command that simulates two pools; a part of it where options do not say the whole load."""
    prefill, decode = found.pools or (1, 1)
    pools = f"--prefill-replicas {prefill} --decode-replicas {decode}"
    words = _simulate(found, demand)
    return f"simulate them: {shlex.join(words)} {pools}" if words else f"simulate {pools} with this load tries them"


def _simulate(found: PlanOption, demand: Demand) -> list[str]:
    """The words of it but for the numbers of replicas; none where options do not say the load or the deployments."""
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
    parallel, engine = deployment.parallel, request.engine
    asked = {name: getattr(request, name) for name in ("model", "gpu", "quant", "parallel", "engine", "ideal")}
    if request != Request(**asked) or parallel.spread_dense or parallel.redundant:
        return None
    found = {"gpu": request.gpu} | ({"quant": request.quant} if request.quant else {})
    found |= {name: str(getattr(parallel, name)) for name in _DEGREES if getattr(parallel, name) > 1}
    return found if engine == "vllm" else found | {"engine": engine}


def _lengths(lengths: Lengths) -> str:
    """As ``--prompt`` takes them; empty for those that it does not."""
    if lengths.kind not in ("fixed", "uniform", "normal", "lognormal", "gamma") or lengths.mean != round(lengths.mean):
        return ""
    mean, cut = f"{round(lengths.mean)}", "" if lengths.most is None else f":{lengths.most}"
    return mean if lengths.kind == "fixed" else f"{lengths.kind}:{mean}:{lengths.spread:.6g}{cut}"
