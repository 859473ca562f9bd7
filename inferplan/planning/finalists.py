"""The cheapest options in simulation: which of them meet the limits, with as many replicas as that takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from inferplan.planning.option import Option, replicas_needed
from inferplan.planning.question import Question
from inferplan.planning.search import SearchResult, cheapest_of_each_structure
from inferplan.planning.verify import Verified, verify

MAX_FINALISTS_PER_GPU = 4
MAX_SIMULATIONS = 48
MAX_COST_RATIO = 4.0
"""An option on another GPU that costs more than so many times the cheapest finalist is not simulated."""


def without_unmeasured(searched: SearchResult) -> SearchResult:
    """Without the options that are priced at the bare roofline, where others have constants: the two do not compare."""
    measured = [option for option in searched.options if option.deployment.calibration.basis != "roofline"]
    bare = [option for option in searched.options if option.deployment.calibration.basis == "roofline"]
    if not measured or not bare:
        return searched
    names = sorted({option.deployment.hardware.name for option in bare})
    searched.rejections.add("unmeasured", len(bare), ", ".join(names))
    return searched._replace(options=measured)


def simulate_finalists(options: list[Option], question: Question) -> tuple[list[Verified], list[Verified]]:
    """The cheapest options of each GPU that meet the limits in simulation, and those that do not.

    options: by rising cost.
    """
    passed: list[Verified] = []
    failed: list[Verified] = []
    for option in cheapest_of_each_structure(options):
        cheapest = min((verified.option.cost or np.inf for verified in passed), default=np.inf)
        gpu, cost = option.deployment.hardware.name, option.cost or 0.0
        same = sum(verified.option.deployment.hardware.name == gpu for verified in passed)
        if same >= MAX_FINALISTS_PER_GPU or (same and cost > cheapest):
            continue  # this GPU is already represented, and nothing cheaper can come
        limit = cheapest if same else MAX_COST_RATIO * cheapest
        runs = MAX_SIMULATIONS - len(passed) - len(failed)
        if runs <= 0 or cost > limit:
            break
        kept, missed = _grow_until_it_meets(option, question, limit, runs)
        passed, failed = passed + kept, failed + missed
    return passed, failed


def _grow_until_it_meets(
    option: Option, question: Question, limit: float, runs: int
) -> tuple[list[Verified], list[Verified]]:
    """One option with more and more replicas, in at most ``runs`` simulations while it costs less than ``limit``.

    The size that meets the limits (none, or one), and the sizes that do not.
    """
    failed: list[Verified] = []
    trial: Option | None = option
    before = np.inf
    while trial is not None and len(failed) < runs:
        checked = verify(trial, question.demand, question.slo)
        violations = checked.violations(question.slo)
        if not violations and not checked.verdict.startswith(("overloaded", "refused")):
            return [checked], failed
        failed.append(checked)
        worst = max(violations.values(), default=np.inf)
        if checked.refused and not np.isfinite(worst):
            break  # requests that can never run need something else than more replicas
        if trial.pools and np.isfinite(before) and worst > 0.99 * before:
            break  # a larger pool did not help: single prompts take too long, not the queue
        before = worst
        trial = _with_more_replicas(trial, question, limit, violations)
    return [], failed


def _with_more_replicas(
    option: Option, question: Question, limit: float, violations: dict[str, float]
) -> Option | None:
    """The same with 8 % more replicas, of the pool that misses its limit; ``None`` when it then costs too much."""
    if option.cost is None or option.tariff is None:
        return None
    pools = option.pools
    if pools is None:
        replicas = option.replicas + max(1, round(option.replicas * 0.08))
    else:
        late = bool({"ttft", "e2el"} & violations.keys()) or not violations
        slow = "tpot" in violations or not violations
        more = [max(1, round(size * 0.08)) if grows else 0 for size, grows in zip(pools, (late, slow))]
        pools = (pools[0] + more[0], pools[1] + more[1])
        replicas = sum(pools)
    cost = float(option.tariff.cost(replicas + option.spare)) * (option.hours or 1.0)
    grown = replicas > 1.6 * replicas_needed(option, question.demand, question.sizing) + 2
    if cost >= limit or grown:
        return None
    return replace(option, replicas=replicas, cost=cost, pools=pools)
