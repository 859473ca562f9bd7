"""The load that a plan was made for: as its JSON states it, and as a running service is sent it."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any, Literal

import numpy as np

from inferplan.errors import SpecError, UsageError
from inferplan.features import those
from inferplan.measuring.planned import PlannedLoad
from inferplan.planning.demand import Demand
from inferplan.serving.batch_means import fewest_values
from inferplan.spec import Field, Spec
from inferplan.traffic.conversations import ThinkTime
from inferplan.traffic.requests import ArrivalKind, Lengths, OpenLoop, SharedPrefix

_SENT = those(users=True, think_time=True, shared_text=True)
"""What a load may have beyond plain requests and can still be sent."""
FILL = 0.25
"""Share of the requests that only fill the system, as in the run that a plan is quoted from."""


class _Lengths(Spec):
    kind: Literal["fixed", "uniform", "normal", "lognormal", "gamma"]
    mean: float = Field(ge=1, allow_inf_nan=False)
    spread: float = Field(ge=0, allow_inf_nan=False)
    most: int | None = None

    def lengths(self) -> Lengths:
        return Lengths(kind=self.kind, mean=self.mean, spread=self.spread, most=self.most)


class _Think(Spec):
    kind: Literal["constant", "exponential", "lognormal"]
    mean_s: float
    spread: float


class _Load(Spec):
    """``question.load`` of a plan's JSON. not_sent: what a client that sends plain requests cannot send."""

    prompt: _Lengths | None
    output: _Lengths | None
    requests_per_s: float | None
    users: int | None
    arrivals: ArrivalKind
    burstiness: float
    think_time: _Think
    shared_prefix_tokens: int
    distinct_prefixes: int
    not_sent: list[str]

    def demand(self) -> Demand:
        """The load as a plan is asked for it. Raises ``UsageError`` for one that is not sent."""
        if self.not_sent or self.prompt is None or self.output is None:
            raise UsageError(
                "measure cannot send the load of this plan",
                because=f"it has {', '.join(self.not_sent) or 'lengths of no known kind'}",
                hint="plain requests: --rate or --in-flight, --prompt and --output or a --workload",
            )
        think = ThinkTime(kind=self.think_time.kind, mean=self.think_time.mean_s, spread=self.think_time.spread)
        prompt = self.prompt.lengths()
        return Demand(
            prompt=prompt,
            output=self.output.lengths(),
            rate=self.requests_per_s,
            users=self.users,
            arrivals=self.arrivals,
            burstiness=self.burstiness,
            prefix=SharedPrefix(tokens=self.shared_prefix_tokens, distinct=self.distinct_prefixes, think=think),
        )


def load_record(demand: Demand) -> dict[str, Any]:
    """The load in a plan's JSON, so that it can be sent again."""
    other = sorted(one.replace("-", " ") for one in demand.features - _SENT)
    prompt, think = demand.own or demand.text or demand.prompt, demand.prefix.think
    return {
        "prompt": _lengths_record(prompt),
        "output": _lengths_record(demand.output),
        "requests_per_s": demand.requests_per_second,
        "users": demand.users,
        "arrivals": demand.arrivals,
        "burstiness": demand.burstiness,
        "think_time": {"kind": think.kind, "mean_s": think.mean, "spread": think.spread},
        "shared_prefix_tokens": demand.prefix.tokens,
        "distinct_prefixes": demand.prefix.distinct,
        "not_sent": other,
    }


def _lengths_record(lengths: Lengths) -> dict[str, Any] | None:
    if lengths.kind not in ("fixed", "uniform", "normal", "lognormal", "gamma"):
        return None
    return {"kind": lengths.kind, "mean": lengths.mean, "spread": lengths.spread, "most": lengths.most}


def planned_demand(data: dict[str, Any], path: str) -> Demand:
    """The load of a plan's JSON. Raises ``SpecError`` where it states none, ``UsageError`` where it is not sent."""
    from inferplan.reports.plan_file import checked_part

    stated = data.get("question", {}).get("load")
    if not isinstance(stated, dict):
        raise SpecError(
            f"{path} does not state the load that it was planned for",
            because="plans before version 0.3 do not",
            hint="make the plan again: inferplan plan ... -o plan.json",
        )
    return checked_part(path, _Load, stated, "question.load").demand()


def planned_load(demand: Demand, shares: int, answer: float, asked: tuple[float, int | None]) -> PlannedLoad:
    """The requests to send: those of one of so many ``shares`` of the load, which replicas get that are fed in turn.

    answer: seconds of a request as planned. asked: the percentile that is to be known, and how many requests, where
    somebody says so; else as many as the percentile takes (:func:`inferplan.serving.batch_means.fewest_values`), with
    those that fill the system. Raises ``UsageError`` for no user.
    """
    percentile, stated = asked
    users = None if demand.users is None else round(demand.users / shares)
    if users == 0:
        raise UsageError("a share of the users is less than one", hint="--replicas: more of them behind the address")
    least = max(2 * (users or 0), 2)
    if stated is not None and stated < least:
        raise UsageError(
            f"{stated} requests are too few",
            because=f"each of {users} users sends at least two" if users else "a rate needs at least two",
            hint=f"--requests {least}, or more",
        )
    count = max(stated or ceil(fewest_values(percentile) / (1 - FILL)), least)
    plain = replace(demand.one_of(shares), prefix=replace(demand.prefix, tokens=0))
    traffic = plain.traffic((demand.requests_per_second or 0.0) / shares if users is None else users, count)
    if isinstance(traffic.arrivals, OpenLoop):
        traffic = replace(traffic, arrivals=replace(traffic.arrivals, exact=True))  # as the run that is quoted
    drawn, rng = traffic.requests(), np.random.default_rng(0)
    shared = demand.prefix.tokens > 0
    load = PlannedLoad(
        prompts=tuple(np.asarray(drawn.prompt).tolist()),
        outputs=tuple(np.asarray(drawn.output).tolist()),
        heads=tuple(rng.integers(0, demand.prefix.distinct, count).tolist()) if shared else (),
        head_tokens=demand.prefix.tokens,
        fill=int(FILL * count),
    )
    if users is None:
        assert drawn.arrival is not None
        arrivals = tuple((drawn.arrival - drawn.arrival[0]).tolist())
        return replace(load, arrivals=arrivals, seconds=arrivals[-1])
    cycle = answer + demand.think
    starts = tuple((np.arange(users) * cycle / users).tolist())
    think = tuple(demand.prefix.think.sample(rng, count).tolist())
    return replace(load, users=users, starts=starts, think=think, seconds=count / users * cycle)
