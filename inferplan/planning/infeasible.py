"""Why there is no plan: the nearest miss, and the smallest relaxation of the limits that would allow one."""

from __future__ import annotations

from operator import itemgetter
from typing import NamedTuple

import numpy as np

from inferplan.catalog.files import load_hardware, load_model
from inferplan.errors import InfeasibleError
from inferplan.estimate.support import DRAFTS, lacking, too_few
from inferplan.models.spec import longer_than
from inferplan.planning.amount import (
    amount_of,
    asks_for,
    carried_in_closed_form,
    in_words,
    lengths_in_words,
    most_replicas,
    rounded_down,
    with_amount,
)
from inferplan.planning.confidence import MIDDLE, slowness
from inferplan.planning.constraints import COUNTED, constraints_of
from inferplan.planning.demand import METRIC_NAMES, limits_in_words, percentile_of
from inferplan.planning.option import PlanOption, PricedGrid, option_at
from inferplan.planning.question import Question
from inferplan.planning.search import SearchResult, nearest_miss
from inferplan.planning.verify import SHOWN, TOO_SHORT, Verified, verify
from inferplan.serving.verdict import FEWEST_ARRIVALS, FEWEST_LIFETIMES, long_enough
from inferplan.units import format_time

REASONS = {
    "impossible": "the model cannot be divided that way, or the device or engine lacks what is asked",
    "quality": "the format keeps less than --quality of a published score, or has none",
    "host": "not with weights on the host: no room there, an unknown link, or a division that is not known with it",
    "weights": "the weights do not fit",
    **COUNTED,
    "disaggregated": "no two pools of that division keep the limits, in closed form",
    "drafts": "the draft model cannot be divided that way (tried without it)",
    "unmeasured": "never measured: times of an ideal device would make them look better than they are",
}
_HARDLY_MORE = 1.25
"""Of points that miss the limits by no more than so many times the least, the one that carries most is named."""
_SMALLER = 4
"""Loads that are tried for a size whose queue is too long, each with the reserve of the one before."""
_OPTIONS = {"e2el": "e2e", "answer_ttft": "answer-ttft", "session": "session-time"}
"""Options whose name is not that of the metric they limit."""


def infeasible(question: Question, searched: SearchResult, failed: list[Verified] | None = None) -> InfeasibleError:
    """The error that says so. failed: finalists that missed a limit in simulation, if the search got so far."""
    found, prices = _infeasible(question, searched, failed), question.prices
    sold_all = all(prices.offers(load_hardware(gpu).name) for gpu in question.space.gpus)
    if not prices.length or (sold_all and searched.grids):  # the term is not what is missing
        return found
    length = prices.length.replace(" ", "-").removesuffix("s")
    sold = f"{length} prices are on file only for {', '.join(prices.gpus)}"
    return InfeasibleError(found.what, because=f"{sold}; {found.because}", hint=f"--term reserved, or {found.hint}")


def _infeasible(question: Question, searched: SearchResult, failed: list[Verified] | None) -> InfeasibleError:
    """The same, whatever prices there are."""
    slo = question.slo
    asked = limits_in_words(slo, question.demand.classes)
    load = lengths_in_words(question.demand) if question.most else question.demand.describe()
    what = f"no plan serves {question.space.base.model} with {load}" + (f" under {asked}" if asked else "")
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
    if nearest is not None and only_too_large(searched):
        because, hint = next(one for one in constraints if not one.allows(nearest)).ruled_out(nearest, question)
        return InfeasibleError(what, because=because, hint=hint)
    if question.sizing.owned is not None and (owned := nearest_owned(searched, question)) is not None:
        return _missed_on_owned(what, owned)
    miss = nearest_miss(searched, question.stream)
    return _nothing_runs(what, question, searched) if miss is None else _missed(what, question, searched, miss)


def only_too_large(searched: SearchResult) -> bool:
    """Whether the limits are kept, in closed form, by more GPUs or watts than there are, and by nothing else."""
    return searched.too_large is not None and not searched.options


def require_within_cost(question: Question, cheapest: PlanOption) -> None:
    """Raise ``InfeasibleError`` where the cheapest plan costs more than may be spent."""
    most = question.sizing.max_cost
    if most is None or cheapest.cost is None or cheapest.cost <= most * (1 + 1e-9):
        return
    unit = question.prices.currency + ("" if question.demand.offline else "/h")
    asked = limits_in_words(question.slo, question.demand.classes)
    what, own = cheapest.deployment.replicated(cheapest.replicas), np.ceil(cheapest.cost * 100) / 100
    raise InfeasibleError(
        f"no plan serves {question.space.base.model} with {question.demand.describe()}"
        + (f" under {asked}" if asked else "")
        + f" for {most:,.2f} {unit}",
        because=f"the cheapest is {what} at {cheapest.cost:,.2f} {unit}",
        hint=f"--max-cost {own:.2f}, or {'a longer --deadline' if question.demand.offline else 'looser limits'}",
    )


class NearestOwned(NamedTuple):
    """What comes nearest to the limits of the GPUs there are. question: with the load that it carries."""

    question: Question
    option: PlanOption


def nearest_owned(searched: SearchResult, question: Question) -> NearestOwned | None:
    """The point on no more GPUs than there are that misses the limits by least; of those that miss them by hardly more,
    the one that carries most. ``None`` where nothing runs there."""
    found: list[tuple[float, float, PricedGrid, tuple[int, int]]] = []
    for priced in searched.grids:
        grid = priced.grid
        one = option_at(priced, question.demand, question.sizing, (0, 0)).sized(1)
        if priced.tariff is None or not one.allowed:
            continue
        worst = np.ones_like(grid.rate)
        for name, limit in question.slo.limits.items():
            worst = np.maximum(worst, getattr(grid, name) / limit)
        worst = np.where(grid.possible, worst, np.inf)
        near = worst <= _HARDLY_MORE * worst.min()
        at = np.unravel_index(int(np.argmax(np.where(near, grid.rate, -np.inf))), worst.shape)
        if np.isfinite(worst[at]):
            found.append((float(worst[at]), float(grid.rate[at]), priced, (int(at[0]), int(at[1]))))
    if not found:
        return None
    least = min(worst for worst, *_ in found)
    _, _, priced, place = max((one for one in found if one[0] <= _HARDLY_MORE * least), key=itemgetter(1))
    option = option_at(priced, question.demand, question.sizing, place)
    count = most_replicas(option, question)
    if not count:
        return None
    amount = carried_in_closed_form(option, count, question)
    amount = amount if question.most else min(amount, amount_of(question.demand))
    amount = rounded_down(question.demand, amount) or amount
    return NearestOwned(with_amount(question, amount), option.sized(count))


def _missed_on_owned(what: str, nearest: NearestOwned) -> InfeasibleError:
    """No load is small enough for the limits on the GPUs there are: what they would keep, and under how much. A plan
    for that load is held to it with the reserve that is planned."""
    question, option = nearest
    reserve = 1 / question.sizing.utilisation
    for _ in range(_SMALLER):
        checked = verify(option, question, reserve, SHOWN)
        factors = checked.violations(question.slo)
        if checked.result is None or checked.verdict == "stable":
            break
        question = with_amount(question, amount_of(question.demand) / reserve**2)
    amount = amount_of(question.demand)
    times = checked.achieved if checked.result is not None and factors and _finite(factors, checked.achieved) else {}
    factors = factors if times else option.violations(question.slo)
    ttft, tpot = (format_time(times.get(name, getattr(option, name)), 3) for name in ("ttft", "tpot"))
    factors = {name: factor * (1 + SHOWN.tolerance) for name, factor in factors.items()}  # a longer run says otherwise
    load = in_words(question.demand, amount)
    under = f"under {reserve:.4g} times {load}" if times and reserve > 1 else f"with {load}"
    return InfeasibleError(
        what,
        because="no load is small enough for these limits on them: the nearest is "
        f"{_named(checked, option.replicas)} ({'simulated ' if times else ''}TTFT {ttft}, TPOT {tpot} {under})",
        hint=f"{_relaxation(question, factors)} for {load} ({asks_for(question.demand, amount)}), or other GPUs",
    )


def _finite(*values: dict[str, float]) -> bool:
    return bool(np.isfinite([one for each in values for one in each.values()]).all())


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
        because = f"no run is long enough to tell whether {_named(nearest)} keeps the limits"
        had, longer = _lengths(nearest, question)
        return InfeasibleError(what, because=because + had, hint=longer)
    nearest = nearest if nearest.violations(slo) else tried
    factors = nearest.violations(slo)
    bounded = np.isfinite(max(factors.values(), default=np.inf))
    if nearest.refused and (not factors or (not bounded and nearest.verdict == "rejecting")):
        return InfeasibleError(what, because=nearest.refused, hint=_shorter(question, nearest))
    if not factors:
        because = f"requests wait for admission longer than all other parts take under {_named(nearest)}"
        return InfeasibleError(what, because=because, hint="a lower --utilisation, or a larger --most")
    reserve = question.sizing.utilisation
    under = f" under {1 / reserve:.4g} times the load (--utilisation {reserve:g})" if reserve < 1 else ""
    names = " and ".join(METRIC_NAMES[name] for name in factors)
    limits = "exceeds its limit" if len(factors) == 1 else "exceed their limits"
    over = f"the simulated {names} {percentile_of(slo)} of {_named(nearest)} {limits}{under}"
    hint = _relaxation(question, factors) if bounded else "a larger --most, a lower --utilisation, or another --gpu"
    if reserve < 1 and verify(tried.option, question, precision=SHOWN).meets(slo):
        hint = f"--utilisation 1, without a reserve: the load itself is served; or {hint}"
    hint = ", or ".join([hint, *(one.looser for one in constraints_of(slo, question.sizing) if one.looser)])
    return InfeasibleError(what, because=over, hint=hint)


def _lengths(nearest: Verified, question: Question) -> tuple[str, str]:
    """How long a trace is that is too short to tell, and how long it has to be; else what else helps."""
    trace = question.demand.trace
    if trace is None or trace.arrival is None or nearest.result is None:
        return "", "a lower --percentile"
    seconds, factor = float(np.max(trace.arrival) - np.min(trace.arrival)), 1 / question.sizing.utilisation
    long = max(long_enough(nearest.result) * factor, 0.0)
    had = f": the trace has {len(trace):,} requests in {format_time(seconds, 3)}"
    many = f"{FEWEST_ARRIVALS} requests or more over {format_time(long, 2)} or more"
    how = f"{FEWEST_LIFETIMES:g} times what a request takes there"
    return had, f"a longer trace: {many} ({how}), or --rate with --prompt and --output"


def _shorter(question: Question, nearest: Verified) -> str:
    """What admits requests that are refused at any size."""
    demand = question.demand
    if demand.sessions is not None:
        shorter = "fewer turns or tokens in the file of --sessions"
    elif demand.classes:
        shorter = "the most tokens of a draw in the file of --classes: lognormal:1500:1.2:16k"
    elif demand.trace is not None:
        shorter = "a trace without them"
    elif demand.prompt.kind == demand.output.kind == "fixed":
        shorter = "a shorter --prompt or --output"
    else:
        shorter = "the most tokens of a draw: --prompt lognormal:1500:1.2:16k"
    if nearest.result is None or "max_model_len" not in nearest.refused:
        return f"{shorter}; or a larger --most"
    longest = int(np.max(np.add(nearest.result.records.prompt, nearest.result.records.output)))
    return f"{shorter}; or {longer_than(load_model(question.space.base.model), longest)}"


def _nothing_runs(what: str, question: Question, searched: SearchResult) -> InfeasibleError:
    """No point of any grid keeps up with the load, whatever the limits; or nothing has a price."""
    if question.demand.offline and any(priced.grid.possible.any() for priced in searched.grids):
        return InfeasibleError(what, because="a request alone takes longer than that", hint="a longer --deadline")
    if searched.grids and all(priced.tariff is None for priced in searched.grids):
        names = sorted({priced.grid.deployment.hardware.name for priced in searched.grids})
        because = f"no price of {', '.join(names)} is known: {question.prices.searched}"
        return InfeasibleError(what, because=because, hint=question.prices.hint(names[0]))
    counts = why_none(searched)
    wider = f"a larger --most than {question.space.most}, a narrower --quant, or another --gpu"
    if searched.rejections.examples.get("impossible") and not searched.grids:
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
    nearest = _named(checked, miss.replicas)
    return InfeasibleError(
        what,
        because=f"of {searched.evaluated:,} candidates: {_counts(searched)}; nearest: {nearest} "
        f"({how}TTFT {format_time(ttft, 3)}, TPOT {format_time(tpot, 3)}{cost})",
        hint=_relaxation(question, factors),
    )


def _named(checked: Verified, replicas: int = 1) -> str:
    """A candidate, or so many replicas of it, with the flags that its figures hold for."""
    option = checked.option
    sequences = -(-checked.slots // option.deployment.parallel.dp)
    flags = f"--max-num-batched-tokens {option.budget} --max-num-seqs {sequences}"
    if option.prompt_budget is not None:
        flags += f" --prefill-max-num-batched-tokens {option.prompt_budget}"
    drafts = f" --draft-tokens {option.speculation.length}" if option.speculation.length else ""
    lora = option.deployment.lora
    slots = "" if lora is None else f" --max-loras {lora.slots}"
    return f"{option.deployment.replicated(replicas)} with {flags}{drafts}{slots}"


def _counts(searched: SearchResult) -> str:
    """The four most frequent reasons with their counts."""
    return ", ".join(f"{count:,} {REASONS[reason]}" for reason, count in searched.rejections.counts.most_common(4))


def why_none(searched: SearchResult) -> str:
    """The same, with an example where nothing could be priced at all."""
    example = "" if searched.grids else searched.rejections.examples.get("impossible")
    return _counts(searched) + (f"; such as: {example}" if example else "")


def _relaxation(question: Question, factors: dict[str, float]) -> str:
    """The limits, as options, that would have been met; a little above, so that rounding does not break them again. Of
    classes the factors on the limits of the one that misses them by most.
    """
    if question.demand.classes:
        texts = [f"{METRIC_NAMES[name]} x {factor * 1.005:.3g}" for name, factor in factors.items()]
        return f"relax the limits of the class that is farthest from them: {', '.join(texts)}"
    limits = question.slo.all_limits
    named = ((name, format_time(limits[name] * factor * 1.005, 3).replace(" ", "")) for name, factor in factors.items())
    return "relax to " + " ".join(f"--{_OPTIONS.get(name, name)} {text}" for name, text in named)
