"""The JSON of a plan (docs/planning.md)."""

from __future__ import annotations

from dataclasses import asdict, replace
from math import isfinite
from typing import Any

from inferplan.answers.emit import base_note, changed_options
from inferplan.catalog.assemble import Request
from inferplan.catalog.quality import is_own, quality_of, quantised_checkpoint, sister
from inferplan.figures import record
from inferplan.planning.beside import Step
from inferplan.planning.edges import LOOSER
from inferplan.planning.option import PlanOption
from inferplan.planning.plan import Plan
from inferplan.planning.verify import Verified
from inferplan.reports.cost import cost_energy_record, load_cost_record
from inferplan.reports.plan_figures import (
    break_even_batch,
    candidate,
    cheaper_still,
    cheapest_drafting,
    cost_of,
    energy_of,
    launch_line,
    launch_of,
    people_record,
    power,
    prompts_launch_of,
    relaxation,
    runners,
    screened_costs,
    session_rate,
    terms_of,
)
from inferplan.reports.plan_load import load_record
from inferplan.reports.plan_notes import beside_api, error_unknown, forgone_form
from inferplan.reports.plan_survival import survival_record
from inferplan.reports.plan_tiers import tiers_record
from inferplan.traffic.requests import Slo

_ELSEWHERE = {"model", "gpu", "quant", "engine", "flags.token_budget", "flags.max_sequences"}
"""Options that a plan's deployment states in fields of their own."""


def plan_record(plan: Plan) -> dict[str, Any]:
    """The JSON of ``inferplan plan`` (docs/planning.md)."""
    searched, cost, energy, watts = plan.searched, cost_of(plan), energy_of(plan), power(plan)
    return {
        "question": question_record(plan),
        "plan": {
            **candidate_record(plan, plan.best),
            "requests_per_s": plan.rate,
            "users_waiting": plan.waiting,
            "people": people_record(plan),
            "classes": _classes(plan),
            "deployment": launch_record(plan),
            "launch": launch_line(plan),
            "launch_note": base_note(launch_of(plan)) or None,
            "survival": survival_record(plan),
            "binding": plan.binding,
            "capacity": capacity_record(plan),
            "confidence": plan.confidence if plan.supported and plan.has_confidences else None,
            "error_unknown": error_unknown(plan) or None,
            "miss": miss_record(plan),
            "quality": quality_record(plan),
            "measured": plan.supported and "transferred" not in bases_of(plan.best),
            "meets_at_the_slow_end": plan.holds_at_the_slow_end,
            "output_tokens_per_s_per_device": None
            if plan.option.deployment.model.encodes
            else plan.rate * plan.option.output / plan.option.devices,
            "simulation": plan.best.result.to_dict() if plan.best.result else None,
            "simulation_time_scale": plan.option.slow.step,
            "late_at_p99_s": plan.option.slow.tail,
        },
        "cost": load_cost_record(cost, beside_api(plan)) if cost else None,
        "terms": [record(row) for row in terms_of(plan)],
        "energy": cost_energy_record(energy) if energy else None,
        "power": None if watts is None else record(watts),
        "cache_tiers": tiers_record(plan),
        "at_the_other_confidence": None
        if plan.other is None
        else {"confidence": plan.other_confidence, **candidate_record(plan, plan.other)},
        "measured_alternative": None if plan.measured is None else candidate_record(plan, plan.measured),
        "native_alternative": None if plan.native is None else candidate_record(plan, plan.native),
        "unknown_alternative": None if plan.unknown is None else candidate_record(plan, plan.unknown),
        "limit_in_proportion": limit_record(plan),
        "confidence_curve": [step_record(step) for step in plan.curve],
        "forgone": None if (forgone := forgone_form(plan)) is None else asdict(forgone),
        "not_simulated": plan.unseen,
        "other_gpus": [record(row) for row in runners(plan)] if plan.question.most else None,
        "alternatives": [candidate_record(plan, verified) for verified in plan.alternatives],
        "frontier": frontier_rows(plan),
        "candidates": {name: getattr(searched, name) for name in ("evaluated", "structures", "structures_apart")},
        "speculation": speculation_record(plan),
        "rejected": dict(searched.rejections.counts.most_common()),
        "next_cheaper": _cheaper_record(plan),
        "sensitivity": [] if plan.question.demand.offline else plan.sensitivity,
        "anchor": anchor_record(plan),
        "bands": plan.bands,
        "band_s": {f"{name}_s": list(ends) for name, ends in plan.measured_between.items()},
    }


def limit_record(plan: Plan) -> dict[str, Any] | None:
    """The limit on TTFT that a workload states for much shorter prompts, in proportion to these, and what it takes."""
    limit, found = plan.question.borrowed, plan.in_proportion
    if limit is None:
        return None
    return {
        "workload": limit.workload,
        "prompt_tokens": limit.own,
        "ttft_s": limit.scaled,
        "alternative": None if found is None else candidate_record(plan, found),
    }


def anchor_record(plan: Plan) -> dict[str, Any] | None:
    """The measured runs that correct one of the candidates, with where they are from; ``None`` without any."""
    runs = plan.question.space.runs
    if runs is None:
        return None
    return {
        "system": runs.system.describe(),
        "runs": len(runs.rows),
        "corrects_the_plan": plan.option.deployment.calibration.anchor is not None,
        "provenance": runs.model_dump(mode="json")["provenance"],
    }


def step_record(step: Step) -> dict[str, Any]:
    """One confidence of the curve; nulls where nothing keeps the limits. exact: false where simulations ran out, and
    less may do."""
    option = step.option
    return {
        "confidence": step.confidence,
        "cost": None if option is None else option.cost,
        "currency": option.tariff.currency if option and option.tariff else None,
        "exact": step.exact,
        "devices": option and option.devices,
        "gpu": option and option.deployment.hardware.name,
        "quant": option and option.request.quant,
        "parallel": option and option.deployment.parallel.describe(),
        "replicas": option and option.replicas,
        "step_times": option and option.slow.step,
    }


def miss_record(plan: Plan) -> dict[str, Any] | None:
    """The chance of a miss under the load, the cost of an hour of one, and both multiplied; ``None`` where unknown."""
    risk = plan.miss
    if risk is None:
        return None
    return {
        "held_at": risk.held,
        "chance_at_most": risk.chance,
        "cost_per_h": risk.cost,
        "expected_per_h": risk.expected,
    }


def quality_record(plan: Plan) -> dict[str, Any] | None:
    """What was published of answers in the plan's format, and a checkpoint in it; ``None`` in the model's own."""
    quant, model = plan.option.request.quant, plan.option.deployment.model
    if quant is None or is_own(model, quant):
        return None
    known = quantised_checkpoint(model, quant)
    shares = known.shares if known else {}
    like = None if shares else sister(model, quant)
    return {
        "quant": quant,
        "checkpoint": (known.checkpoint or None) if known else None,
        "recovered": shares or None,
        "against": (known.against or None) if known else None,
        "lowest": known and known.lowest,
        "source": known and known.source,
        "sister": like and like.model,
        "said": quality_of(model, quant),
    }


def candidate_record(plan: Plan, found: Verified) -> dict[str, Any]:
    """One finalist as a flat record."""
    return record(candidate(plan, found))


def bases_of(verified: Verified) -> tuple[str, ...]:
    """What most of the time of the steps of its pools rests on, each once."""
    calibration = verified.option.deployment.calibration
    return (calibration.basis,) if verified.result is None else verified.result.bases


def question_record(plan: Plan) -> dict[str, Any]:
    """What was asked."""
    question, classes = plan.question, plan.question.demand.classes
    return {
        "model": question.space.base.model,
        "media": question.space.base.media.describe() or None,
        "model_counts": plan.option.deployment.model.made_from.to_dict(),
        "model_notes": plan.option.deployment.warnings,
        "demand": question.demand.describe(),
        "load": load_record(question.demand),
        "prompt_tokens": question.demand.prompt.average,
        "output_tokens": question.demand.output.average,
        "requests_per_s": question.demand.requests_per_second,
        "users": question.demand.users,
        "think_time_s": None if question.demand.users is None else question.demand.think,
        "slo": {one.name: _limits(one.slo) for one in classes} if classes else _limits(question.slo),
        "percentile": question.slo.percentile,
        "classes": [asdict(one) for one in classes] or None,
        "queue": question.demand.queue,
        "adapters": None if question.demand.adapters is None else asdict(question.demand.adapters),
        "samples": question.demand.samples,
        "structured": None if question.demand.structured is None else question.demand.structured.to_dict(),
        "lora_bandwidth_bytes_per_s": question.demand.lora_bandwidth,
        "routing": question.routing,
        "utilisation": question.sizing.utilisation,
        "spare": question.sizing.spare,
        "confidence": question.sizing.confidence,
        "miss_cost_per_h": question.sizing.miss_cost,
        "max_cost": question.sizing.max_cost,
        "most": question.most,
        "quality": question.space.quality,
        "formats_left_out": question.space.left_out or None,
    }


def _limits(slo: Slo) -> dict[str, float]:
    """Limits in seconds, by the key of their latency."""
    return {f"{name}_s": limit for name, limit in slo.all_limits.items()}


def capacity_record(plan: Plan) -> dict[str, Any] | None:
    """What the fleet carries under the limits, by simulation; ``None`` for an offline job."""
    found = plan.capacity
    if found is None:
        return None
    unit = "requests_per_s" if plan.question.demand.users is None else "users"
    of_sessions = session_rate(plan)
    return {
        unit: plan.load * found.factor,
        "sessions_per_s": None if of_sessions is None else of_sessions * found.factor,
        "times_the_load": found.factor,
        "at_least": found.open,
    }


def launch_record(plan: Plan) -> dict[str, Any]:
    """What ``inferplan emit`` needs to start the plan."""
    option = plan.option
    started, drafting = launch_of(plan), plan.question.space.drafting_of(plan.option.speculation)
    engine = option.deployment.engine
    contexts = [
        one.context for one in (started, prompts_launch_of(plan)) if one is not None and one.context is not None
    ]
    return {
        "model": option.request.model,
        "gpu": option.request.gpu,
        "quant": option.request.quant,
        "engine": f"{engine.name} {engine.defaults.version}",
        "parallel": asdict(plan.deployment.parallel),
        "pools": {"prefill": option.pools[0], "decode": option.pools[1]} if option.pools else None,
        "prefill": _prefill_record(option),
        "context_tokens": min(contexts, default=None),
        "concurrency": plan.best.slots,
        "token_budget": option.budget,
        "queue": plan.question.demand.queue,
        "chat": plan.question.demand.of_messages,
        "speculation": asdict(drafting) if drafting else None,
        "cache_tiers": [tier.stated() for tier in option.tiers] or None,
        "options": _options(option.request),
    }


def _options(request: Request) -> dict[str, Any]:
    """What else was asked for, by its dotted name; lists as text with commas."""
    return {
        name: ",".join(value) if isinstance(value, tuple) else value
        for name, value in changed_options(request).items()
        if name not in _ELSEWHERE and not name.startswith(("parallel.", "media."))
    }


def _prefill_record(option: PlanOption) -> dict[str, Any] | None:
    """What computes prompts, where that is apart from what decodes; model and engine are the same."""
    if option.pools is None:
        return None
    request, deployment = option.request, option.deployment
    if option.prompts is not None:
        request, deployment = option.prompts.request, option.prompts.deployment
    spare = 0 if option.prompts is None else option.spare  # of pools that are alike it is either's
    return {
        "gpu": request.gpu,
        "quant": request.quant,
        "parallel": asdict(replace(deployment.parallel, replicas=option.pools[0] + spare)),
        "token_budget": option.prompt_budget,
        "max_num_seqs": deployment.engine.defaults.tier(deployment.hardware).max_sequences,
        "options": _options(request),
    }


def _classes(plan: Plan) -> list[dict[str, Any]] | None:
    """What each class of traffic has of its limits; ``None`` without classes."""
    return [
        {
            "name": one.name,
            "percentile": one.slo.percentile,
            "slo": _limits(one.slo),
            **{f"{name}_s": value for name, value in one.achieved.items()},
        }
        for one in plan.best.classes
    ] or None


def frontier_rows(plan: Plan) -> list[dict[str, Any]]:
    """The Pareto frontier over the whole space, SLO or not."""
    limits = plan.question.slo.limits
    return [
        {
            "gpu": option.deployment.hardware.name,
            "precision": option.deployment.formats,
            "parallel": option.deployment.parallel.describe(),
            "batch": option.batch,
            "output_tokens_per_s_per_user": option.per_user,
            "output_tokens_per_s_per_device": option.per_device,
            "meets_the_limits": all(getattr(option, name) <= limit for name, limit in limits.items()),
            "priced": option.tariff is not None,
        }
        for option in plan.searched.frontier
    ]


def speculation_record(plan: Plan) -> dict[str, Any] | None:
    """The cheapest plan with drafts beside the cheapest without; ``None`` where no draft was named."""
    drafting = cheapest_drafting(plan)
    if drafting is None:
        return None
    sides = {"with": plan.cheapest(True), "without": plan.cheapest(False)}
    return {
        **asdict(drafting),
        "tokens_per_step": drafting.beside(None).tokens,
        "tried": [{"draft_tokens": length, "screened_cost": cost} for length, cost in screened_costs(plan).items()],
        "helps": plan.drafts_help,
        **{f"cost_{side}": found.option.cost if found else None for side, found in sides.items()},
        **{f"tpot_{side}_s": found.achieved["tpot"] if found else None for side, found in sides.items()},
        "break_even_batch": break_even_batch(plan, sides["with"] or sides["without"]),
    }


def _cheaper_record(plan: Plan) -> dict[str, Any] | None:
    checked = plan.cheaper_verified
    if checked is None:
        return None
    if (still := cheaper_still(plan, checked)) is not None:
        edge, looser = still
        cheap = {"deployment": looser.deployment.describe(), "replicas": looser.replicas, "cost": looser.cost}
        return cheap | {"relax": {edge.name: LOOSER}, "simulated": True}
    return {
        "deployment": checked.option.deployment.describe(),
        "replicas": checked.option.replicas,
        "cost": checked.option.cost,
        "relax": {name: factor if isfinite(factor) else None for name, factor in relaxation(plan, checked).items()},
        "simulated": checked.result is not None and bool(checked.violations(plan.question.slo)),
    }
