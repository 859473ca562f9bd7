"""Sessions of agents as options ask for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inferplan.catalog.sessions import parse_session_rate
from inferplan.errors import UsageError
from inferplan.traffic.requests import ArrivalKind, ClosedLoop, OpenLoop, Requests, arrivals_of

if TYPE_CHECKING:
    from inferplan.traffic.sessions import SessionTraffic

_NOT_OF_SESSIONS = ("requests_count", "warmup", "client_timeout", "prefix_hit_rate")
"""Options that are not modelled with sessions, whatever brings them."""
_THOUGHTS = ("thinking_tokens", "thinking_budget", "thinking_end", "answer_ttft")
_SIMULATED = (
    *("workload", "trace", "rate", "prompt", "output_tokens", "shared_prefix", "distinct_prefixes", "turns"),
    *("think_time", "samples", "classes", *_NOT_OF_SESSIONS),
)
_SAID = (*_SIMULATED, "loras", "requests", "deadline", "cached_prefix", "users", *_THOUGHTS)
"""Options that describe requests, which sessions bring, or that are not modelled with them: in a simulation, and in a
plan."""
_INSTEAD = {
    "rate": "--session-rate 0.2/s",
    "requests_count": "--session-count 200",
    "users": "--session-rate 0.2/s; inferplan simulate --sessions NAME --users 200 keeps 200 sessions under way on "
    "GPUs that you name",
}
_BROUGHT = "the file of the sessions says what is sent, or it is not modelled with them"
_USERS = "a plan for sessions is for so many that begin a second; how long one takes follows from the plan"
_SPELLED = {"output_tokens": "output", "requests_count": "requests"}


def require_sessions(values: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` for options of sessions where there are none."""
    names = ("session_rate", "session_count", "session_time")
    if given := [name for name in names if values.get(name) is not None]:
        raise UsageError(
            f"--{given[0].replace('_', '-')} is of sessions of agents, and there are none",
            hint="--sessions coding-agent, --trace FILE of agents, or leave it out",
        )


def refuse_beside(values: Mapping[str, Any], names: Sequence[str] = _SAID) -> None:
    """Raise ``UsageError`` for options that say what the sessions say, or that are not modelled with them."""
    given = [name for name in names if values.get(name)]
    if values.get("length_ratio_min", 1.0) != 1.0:
        given.append("length_ratio_min")
    if given:
        option = _SPELLED.get(given[0], given[0]).replace("_", "-")
        hint = _INSTEAD.get(given[0], "leave one out")
        raise UsageError(
            f"--{option} and --sessions exclude each other",
            because=_USERS if given[0] == "users" else _BROUGHT,
            hint=hint,
        )


def arrivals(values: Mapping[str, Any]) -> tuple[ArrivalKind, float]:
    """How sessions come to an open loop: kind and burstiness."""
    return arrivals_of(values["arrivals"], values["burstiness"])


def asked_sessions(values: Mapping[str, Any], closed: ClosedLoop | None) -> SessionTraffic | None:
    """The sessions that are asked for; ``None`` without ``--sessions``. Raises ``UsageError``."""
    if values["sessions"] is None:
        if values["trace"] is None:  # of agents, that may be: it is seen when it is read
            require_sessions(values)
        return None
    from inferplan.catalog.sessions import load_sessions
    from inferplan.cli.reasoning_options import thoughts_of
    from inferplan.traffic.sessions import SessionTraffic

    refuse_beside(values, _SIMULATED)
    if (values["session_rate"] is None) == (closed is None):
        raise UsageError(
            "sessions need one kind of load", hint="--session-rate 0.2/s, or --concurrency 20 for so many at a time"
        )
    found = load_sessions(values["sessions"])
    loop: ClosedLoop | OpenLoop | None = closed
    if loop is None:
        kind, burstiness = arrivals(values)
        loop = OpenLoop(rate=parse_session_rate(values["session_rate"]), kind=kind, burstiness=burstiness)
    return SessionTraffic(
        kinds=found.kinds,
        arrivals=loop,
        sessions_count=values["session_count"],
        seed=values["seed"],
        name=found.name,
        thoughts=thoughts_of(values),
    )


def sessions_of_trace(trace: Requests, values: Mapping[str, Any], closed: ClosedLoop | None) -> Requests:
    """The sessions of a trace of agents: at its own times, at ``--session-rate``, or so many at a time.

    Raises ``UsageError`` for options that are of requests, and where nothing says when sessions begin.
    """
    from inferplan.traffic.agent_traces import begun, first_sessions

    spread = ("arrivals", "burstiness") if values["session_rate"] is None else ()
    given = [name for name in (*_NOT_OF_SESSIONS, *_THOUGHTS, *spread) if values.get(name)]
    if given:
        raise UsageError(
            f"--{_SPELLED.get(given[0], given[0]).replace('_', '-')} and a trace of agents exclude each other",
            because="the trace says it, or it is not modelled with sessions",
            hint="--session-count for its first sessions" if given[0] == "requests_count" else "leave one out",
        )
    if values["session_count"] is not None:
        trace = first_sessions(trace, values["session_count"])
    if values["session_rate"] is not None:
        if closed is not None:
            raise UsageError("sessions need one kind of load", hint="--session-rate or --concurrency alone")
        kind, burstiness = arrivals(values)
        loop = OpenLoop(rate=parse_session_rate(values["session_rate"]), kind=kind, burstiness=burstiness)
        return begun(trace, loop, values["seed"])
    if closed is not None:
        return trace.in_loop(closed)
    if trace.arrival is None:
        raise UsageError(
            "the sessions of this trace have no times at which they begin",
            hint="--session-rate 0.2/s, or --concurrency 20",
        )
    return trace
