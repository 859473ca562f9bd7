"""Why there is no plan: the nearest miss, and the smallest relaxation of the limits that would allow one."""

from __future__ import annotations

import numpy as np

from inferplan.errors import InfeasibleError
from inferplan.estimate.support import DRAFTS, lacking, too_few
from inferplan.planning.confidence import MIDDLE, slowness
from inferplan.planning.constraints import COUNTED, constraints_of
from inferplan.planning.demand import METRIC_NAMES, limits_in_words, percentile_of
from inferplan.planning.option import PlanOption
from inferplan.planning.question import Question
from inferplan.planning.search import SearchResult, nearest_miss
from inferplan.planning.verify import SHOWN, TOO_SHORT, Verified, verify
from inferplan.units import format_time

REASONS = {
    "impossible": "the model cannot be divided that way, or the device or engine lacks what is asked",
    "host": "not with weights on the host: no room there, an unknown link, or a division that is not known with it",
    "weights": "the weights do not fit",
    **COUNTED,
    "disaggregated": "no two pools of that division keep the limits, in closed form",
    "drafts": "the draft model cannot be divided that way (tried without it)",
    "unmeasured": "no constants on file: the bare roofline would flatter them",
}
_OPTIONS = {"e2el": "e2e", "answer_ttft": "answer-ttft", "session": "session-time"}
"""Options whose name is not that of the metric they limit."""


def infeasible(question: Question, searched: SearchResult, failed: list[Verified] | None = None) -> InfeasibleError:
    """The error that says so. failed: finalists that missed a limit in simulation, if the search got so far."""
    slo = question.slo
    asked = limits_in_words(slo, question.demand.classes)
    what = f"no plan serves {question.space.base.model} with {question.demand.describe()}" + (
        f" under {asked}" if asked else ""
    )
    constraints = constraints_of(slo, question.sizing)
    what = " ".join([what, *(words for one in constraints if (words := one.describe()))])
    beside = [(one, run) for run in failed or () if run.meets(slo) for one in constraints if not one.kept(run)]
    if beside:
        missed, run = min(beside, key=lambda pair: pair[1].option.cost or np.inf)
        because, hint = missed.missed(run, question)
        return InfeasibleError(what, because=because, hint=hint)
    if failed:
        return _missed_in_simulation(what, question, failed)
    nearest = searched.too_large
    if nearest is not None and not searched.options:
        because, hint = next(one for one in constraints if not one.allows(nearest)).ruled_out(nearest, question)
        return InfeasibleError(what, because=because, hint=hint)
    miss = nearest_miss(searched, question.stream)
    return _nothing_runs(what, question, searched) if miss is None else _missed(what, question, searched, miss)


def no_error_known(question: Question, searched: SearchResult) -> InfeasibleError | None:
    """The error that no candidate has an error band, so that none can be kept at a confidence; ``None`` where one has.

    It says what the candidate lacks that lacks the least.
    """
    missing, confidence = [], question.sizing.confidence
    for priced in searched.grids:
        deployment, forms = priced.grid.deployment, (DRAFTS,) if priced.grid.speculation.length else ()
        if slowness(deployment, question.demand.prompt.average, question.slo, confidence, forms) is not None:
            return None
        missing.append(lacking(deployment, forms))
    if not missing:
        return None
    least = min(missing, key=len)
    return InfeasibleError(
        f"no plan at a confidence of {confidence:g}: no error band is known of any candidate",
        because=too_few(least) if least else "no error is known of its kernels",
        hint=f"--confidence {MIDDLE:g} (the prediction itself), or a --gpu, a division and a model that were measured",
    )


def _missed_in_simulation(what: str, question: Question, failed: list[Verified]) -> InfeasibleError:
    """The finalist that comes closest, at the load that replicas are sized for, in a run that can be quoted."""
    slo = question.slo
    tried = min(failed, key=lambda verified: max(verified.violations(slo).values(), default=1.0))
    nearest = verify(tried.option, question, 1 / question.sizing.utilisation, SHOWN)
    if nearest.verdict == TOO_SHORT:
        traced = question.demand.trace is not None
        return InfeasibleError(
            what,
            because=f"no run is long enough to tell whether {_named(nearest)} keeps the limits",
            hint="a longer trace, or --rate with --prompt and --output" if traced else "a lower --percentile",
        )
    nearest = nearest if nearest.violations(slo) else tried
    factors = nearest.violations(slo)
    bounded = np.isfinite(max(factors.values(), default=np.inf))
    if nearest.refused and (not factors or (not bounded and nearest.verdict == "rejecting")):
        return InfeasibleError(what, because=nearest.refused, hint=_shorter(question, nearest.refused))
    if not factors:
        because = f"requests wait for admission longer than all other parts take under {_named(nearest)}"
        return InfeasibleError(what, because=because, hint="a lower --utilisation, or a larger --most")
    reserve = question.sizing.utilisation
    under = f" under {1 / reserve:.4g} times the load (--utilisation {reserve:g})" if reserve < 1 else ""
    over = f"the simulated {percentile_of(slo)} of {_named(nearest)} is over{under}"
    hint = _relaxation(question, factors) if bounded else "a larger --most, a lower --utilisation, or another --gpu"
    if reserve < 1 and verify(tried.option, question, precision=SHOWN).meets(slo):
        hint = f"--utilisation 1, without a reserve: the load itself is served; or {hint}"
    hint = ", or ".join([hint, *(one.looser for one in constraints_of(slo, question.sizing) if one.looser)])
    return InfeasibleError(what, because=over, hint=hint)


def _shorter(question: Question, refused: str) -> str:
    """What admits requests that are refused at any size. refused: why."""
    demand = question.demand
    if demand.sessions is not None:
        shorter = "fewer turns or tokens in the file of --sessions"
    elif demand.classes:
        shorter = "the most tokens of a draw in the file of --classes: lognormal:1500:1.2:16k"
    elif demand.trace is not None:
        shorter = "a trace without them"
    else:
        shorter = "the most tokens of a draw: --prompt lognormal:1500:1.2:16k"
    return f"{shorter}; or " + ("a model with a longer context" if "max_model_len" in refused else "a larger --most")


def _nothing_runs(what: str, question: Question, searched: SearchResult) -> InfeasibleError:
    """No point of any grid keeps up with the load, whatever the limits; or nothing has a price."""
    if question.demand.offline and any(priced.grid.possible.any() for priced in searched.grids):
        return InfeasibleError(what, because="a request alone takes longer than that", hint="a longer --deadline")
    if searched.grids and all(priced.tariff is None for priced in searched.grids):
        names = sorted({priced.grid.deployment.hardware.name for priced in searched.grids})
        because = f"no price of {', '.join(names)} is known: {question.prices.searched}"
        return InfeasibleError(what, because=because, hint=question.prices.hint(names[0]))
    counts = _counts(searched)
    example = searched.rejections.examples.get("impossible")
    wider = f"a larger --most than {question.space.most}, a narrower --quant, or another --gpu"
    if example and not searched.grids:
        counts += f"; such as: {example}"
        wider += " (a figure not on file: in a copy of the YAML, --gpu FILE.yaml)"
    return InfeasibleError(what, because=counts or "no candidate exists", hint=wider)


def _missed(what: str, question: Question, searched: SearchResult, miss: PlanOption) -> InfeasibleError:
    """The candidate that comes closest, simulated: the closed form may call a miss narrow that is not."""
    slo = question.slo
    checked = verify(miss, question, precision=SHOWN)
    factors = checked.violations(slo)
    times, how = (checked.achieved, "simulated ") if checked.result is not None else ({}, "")
    if not factors or not np.isfinite([*factors.values(), *times.values()]).all():
        factors, times, how = miss.violations(slo), {}, ""
    ttft, tpot = times.get("ttft", miss.ttft), times.get("tpot", miss.tpot)
    cost = "" if miss.cost is None or miss.tariff is None else f", {miss.cost:,.2f} {miss.tariff.currency}/h"
    nearest = f"{miss.replicas} x {_named(checked)}"
    return InfeasibleError(
        what,
        because=f"of {searched.evaluated:,} candidates: {_counts(searched)}; nearest: {nearest} "
        f"({how}TTFT {format_time(ttft, 3)}, TPOT {format_time(tpot, 3)}{cost})",
        hint=_relaxation(question, factors),
    )


def _named(checked: Verified) -> str:
    """A candidate with the flags that its figures hold for."""
    option = checked.option
    sequences = -(-checked.slots // option.deployment.parallel.dp)
    flags = f"--max-num-batched-tokens {option.budget} --max-num-seqs {sequences}"
    if option.prompt_budget is not None:
        flags += f" --prefill-max-num-batched-tokens {option.prompt_budget}"
    drafts = f" --draft-tokens {option.speculation.length}" if option.speculation.length else ""
    lora = option.deployment.lora
    slots = "" if lora is None else f" --max-loras {lora.slots}"
    return f"{option.deployment.describe()} with {flags}{drafts}{slots}"


def _counts(searched: SearchResult) -> str:
    """The four most frequent reasons with their counts."""
    return ", ".join(f"{count:,} {REASONS[reason]}" for reason, count in searched.rejections.counts.most_common(4))


def _relaxation(question: Question, factors: dict[str, float]) -> str:
    """The limits, as options, that would have been met; a little above, so that rounding does not break them again. Of
    classes the factors on the limits of the one that misses them by most.
    """
    if question.demand.classes:
        texts = [f"{METRIC_NAMES[name]} x {factor * 1.005:.3g}" for name, factor in factors.items()]
        return f"relax the limits of the class that is farthest from them: {', '.join(texts)}"
    limits = question.slo.all_limits
    named = ((name, format_time(limits[name] * factor * 1.005, 3).replace(" ", "")) for name, factor in factors.items())
    return "relax to " + ", ".join(f"--{_OPTIONS.get(name, name)} {text}" for name, text in named)
