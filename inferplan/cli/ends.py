"""How a run ends: the exit code of a verdict, after the report has been written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import get_args

import click

from inferplan.errors import InfeasibleError, UsageError
from inferplan.fields import Text, ask
from inferplan.lists import parse_values
from inferplan.serving.flags import remedy
from inferplan.serving.outages import recovery_error
from inferplan.serving.result import SimulationResult, limits_missed
from inferplan.serving.verdict import Ending, Flow, flow_of, gave_up, near_capacity
from inferplan.traffic.people import IN_FLIGHT

_MEANT = {
    "saturated": "requests wait for longer than their prompts take",
    "rejecting": "some requests can never run",
    "overloaded": "requests arrive faster than they are answered",
}
_GIVE_UP = "clients give up before they are answered"
"""What it means that a load is overloaded whose queue does not grow."""


def _named(text: str) -> tuple[Ending, ...]:
    found = tuple(parse_values(text))
    wrong = [one for one in found if one not in get_args(Ending)]
    if wrong or not found:
        raise UsageError(
            f"--fail-on {(wrong[0] if wrong else text)!r} is no ending", hint=f"some of {','.join(get_args(Ending))}"
        )
    return found  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class EndsAsked:
    """Which endings of a run exit 3; ``None``: the usual ones."""

    fail_on: tuple[Ending, ...] | None = ask(
        "--fail-on",
        Text(_named),
        "What exits 3: saturated, overloaded, rejecting, limits (too few requests keep them) [overloaded, rejecting, "
        "and saturated where there are limits].",
        None,
        metavar="LIST",
    )


def end(result: SimulationResult, asked: EndsAsked) -> None:
    """What comes after the report: a warning on stderr, or the ``InfeasibleError`` of the verdict (exit code 3)."""
    failed = _failure(result, asked.fail_on or _usual(result))
    if failed is not None:
        raise failed
    if result.verdict in _MEANT:
        limits = "--ttft, --tpot, --slo or " if not (asked.fail_on or result.outages) else ""
        said = f"{result.verdict}: {_meant(result)} (exit code 3 with {limits}--fail-on {result.verdict})"
        click.echo(f"warning: {said}", err=True)


def _meant(result: SimulationResult) -> str:
    """What the verdict means, of those that :data:`_MEANT` names."""
    return _GIVE_UP if result.verdict == "overloaded" and _growing(result) is None else _MEANT[result.verdict]


def _growing(result: SimulationResult) -> Flow | None:
    """Arrivals and departures of an open loop whose queue grows: users of a closed one wait for their answers."""
    flow = None if result.closed else flow_of(result)
    return flow if flow is not None and flow.grows else None


def _usual(result: SimulationResult) -> tuple[Ending, ...]:
    """What exits 3 where nobody says it. A fleet that loses replicas is expected to be short of them for a while."""
    if result.outages:
        return ("rejecting",)
    limited = result.slo.all_limits or any(one.slo.limits for one in result.records.classes)
    return ("overloaded", "rejecting", "saturated") if limited else ("overloaded", "rejecting")


def _failure(result: SimulationResult, ends: tuple[Ending, ...]) -> InfeasibleError | None:
    """The error that says why a load cannot be served as it is; ``None`` when it can, or where that is no ending."""
    lost = recovery_error(result) if result.outages and result.verdict != "rejecting" else None
    if lost is not None:
        return lost
    if result.verdict in ends or (result.verdict == "overloaded" and "saturated" in ends):  # the worse of the two
        return {"overloaded": _overloaded, "rejecting": _rejecting, "saturated": _saturated}[result.verdict](result)
    missed = limits_missed(result) if "limits" in ends else ""
    return InfeasibleError("the limits are missed", because=missed, hint=_more(result)) if missed else None


_LESS = {
    "people": "fewer --people",
    "session_rate": "a lower --session-rate",
    "rate": "a lower --rate",
    "concurrency": f"fewer {IN_FLIGHT[0]}",
}
"""What makes a load smaller, by the option that asks for it."""


def _more(result: SimulationResult) -> str:
    """What would carry the load, or make it smaller: more slots of adapters first, where requests wait for those."""
    given = click.get_current_context().params
    less = next((f"{said}, " for key, said in _LESS.items() if given.get(key)), "")
    slots = _slots_waited_for(result)
    return f"{f'a larger --max-loras than {slots}, ' if slots else ''}{less}more --replicas, or a faster deployment"


def _slots_waited_for(result: SimulationResult) -> int:
    """The slots of adapters, where requests wait for those for longer than for all else; 0 where they do not."""
    waited = Counter[str]()
    for meter in result.meters:
        waited.update(meter.waited)
    return result.conditions["lora"]["max_loras"] if 2 * waited["adapters"] > waited.total() else 0


def _overloaded(result: SimulationResult) -> InfeasibleError:
    flow, near, lost = _growing(result), near_capacity(result), gave_up(result)
    because = f"{lost:.0%} of the clients give up" if lost else ""
    if flow is not None:
        because = f"{flow.arriving:.4g} requests/s arrive, {flow.leaving:.4g} leave"
    if slots := _slots_waited_for(result):
        because += f"; most of the wait is for a slot of LoRA adapters (of {slots})"
    within = ", within the error of capacity" if near else ""
    hint = f"{_more(result)}{', or a longer --client-timeout' if lost else ''}"
    return InfeasibleError(f"overloaded{within}: {_meant(result)}", because=because, hint=hint)


def _saturated(result: SimulationResult) -> InfeasibleError:
    because = f"the mean wait until admission is {float(result.wait.mean()):.3g} s" if len(result.wait) else ""
    hint = f"{_more(result)}; --fail-on overloaded,rejecting to take it"
    return InfeasibleError(f"saturated: {_MEANT['saturated']}", because=because, hint=hint)


def _rejecting(result: SimulationResult) -> InfeasibleError:
    reasons, longest = result.records.refused, max(result.records.prompt)
    return InfeasibleError(
        f"rejecting: {sum(reasons.values()):,} of {len(result.records.prompt):,} requests can never run",
        because="; ".join(reasons),
        hint=remedy(reasons, longest),
    )
