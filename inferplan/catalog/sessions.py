"""Files of sessions of agents, YAML, by name in ``configs/sessions`` or by path: see docs/agents.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from inferplan.catalog.files import at_line, find, spec_of
from inferplan.catalog.limits import LengthsText
from inferplan.catalog.people import PeopleSpec, asked_people
from inferplan.catalog.workloads import SloSpec, WorkloadSpec, load_limits
from inferplan.errors import SpecError, UsageError
from inferplan.fields import Text, Whole, ask, first_given, question_if_asked, question_of
from inferplan.spec import Field, Spec
from inferplan.traffic.classes import SUM_TOLERANCE
from inferplan.traffic.conversations import ThinkTime, parse_think_time
from inferplan.traffic.people import People
from inferplan.traffic.reasoning import outputs_of
from inferplan.traffic.requests import ClosedLoop, Lengths, OpenLoop, Requests, Slo, arrivals_of, parse_lengths
from inferplan.traffic.sessions import SAMPLE_SESSIONS, Agent, NextCall, SessionKind, SessionTraffic, Subagents
from inferplan.traffic.thoughts import ThoughtsAsked
from inferplan.units import parse_number, parse_quantity


class ReplySpec(Spec):
    """What brings a later call: new tokens and the time after the answer, written as on the command line. ``share`` of
    the calls, where a tool and a user both bring some; of the user alone."""

    prompt: LengthsText
    time: str
    share: float | None = Field(default=None, gt=0, lt=1)


class AgentSpec(Spec):
    """One context."""

    turns: LengthsText
    system: int = Field(default=0, ge=0, le=10**7)
    first: LengthsText
    output: LengthsText
    tool: ReplySpec | None = None
    user: ReplySpec | None = None


class SubagentsSpec(AgentSpec):
    """Sub-agents, and how often and how many a call starts."""

    probability: float = Field(gt=0, le=1)
    number: LengthsText


class CancelSpec(Spec):
    """When users give up: ``share`` of them, ``after`` the session began."""

    after: str
    share: float = Field(default=1.0, gt=0, le=1)


class KindSpec(AgentSpec):
    """One kind of session."""

    name: str = Field(min_length=1, max_length=40)
    share: float = Field(default=1.0, gt=0, le=1)
    subagents: SubagentsSpec | None = None
    cancel: CancelSpec | None = None


class SessionsSpec(Spec):
    """A file of sessions."""

    name: str = ""
    source: str = ""
    notes: list[str] = []
    people: PeopleSpec | None = None
    slo: SloSpec | str | None = None
    """Of a plan for which nobody states any; a name: those of the workload."""
    sessions: list[KindSpec] = Field(min_length=1, max_length=32)


def parse_session_rate(text: str) -> float:
    """Sessions a second: ``0.2/s``, ``12/min``, ``600/h``. Raises ``UsageError``."""
    number, _, unit = text.partition("/")
    try:
        rate = parse_number(number.strip()) / parse_quantity(f"1 {unit.strip()}", "seconds")
    except ValueError:
        raise UsageError(f"--session-rate {text!r} is not a rate of sessions", hint="0.2/s, 12/min, 600/h") from None
    if not 0 < rate < float("inf"):
        raise UsageError(f"--session-rate must be more than 0, not {text}", hint="0.2/s, 12/min, 600/h")
    return rate


@dataclass(frozen=True, kw_only=True)
class SessionsAsked:
    """Sessions of agents as they are asked for: by name or path, so many that begin a second in an open loop."""

    sessions: str | None = ask(
        "--sessions",
        Text(),
        "Sessions of agents, by name or path: turns, tools, users, sub-agents, users who give up (docs/agents.md).",
        None,
        metavar="FILE",
    )
    rate: float | None = ask(
        "--session-rate",
        Text(parse_session_rate),
        "Open loop: sessions begun per time, such as 0.2/s or 600/h.",
        None,
        metavar="RATE",
    )
    count: int | None = ask("--session-count", Whole(), "Sessions per run [400; 10 for each of --in-flight].", None)


class SessionKinds(NamedTuple):
    """The kinds of a file, its name, what is known of those who begin them, and the limits of a plan for which nobody
    states any."""

    name: str
    kinds: tuple[SessionKind, ...]
    people: PeopleSpec | None
    slo: Slo | None = None


def load_sessions(name: str) -> SessionKinds:
    """The kinds of session of a name or a path. Raises ``SpecError`` with file and line."""
    path = find("sessions", name)
    spec = spec_of(path, SessionsSpec)
    made = []
    for place, one in enumerate(spec.sessions):
        try:
            made.append(_kind(one))
        except UsageError as error:
            raise SpecError(_at(path, place, error.what), because=error.because, hint=error.hint) from None
    names = [one.name for one in made]
    if twice := sorted({one for one in names if names.count(one) > 1}):
        raise SpecError(f"{path}: two kinds of session are named {twice[0]!r}", hint="a name of its own for each")
    total = sum(one.share for one in made)
    if abs(total - 1.0) > SUM_TOLERANCE:
        raise SpecError(
            f"{path}: the shares of the kinds add up to {total:.6g}, not to 1",
            because=" + ".join(f"{one.share:g}" for one in made),
            hint="share: of all sessions",
        )
    found = spec.slo
    slo = load_limits(found) if isinstance(found, str) else None if found is None else found.limits()
    return SessionKinds(spec.name or path.stem, tuple(made), spec.people, slo)


def sample_of(kinds: tuple[SessionKind, ...]) -> Requests:
    """Calls of enough sessions for their means."""
    loop = OpenLoop(rate=1.0)
    return SessionTraffic(kinds=kinds, arrivals=loop, sessions_count=SAMPLE_SESSIONS).requests()


def people_of(values: Mapping[str, Any], named: WorkloadSpec | None) -> People | None:
    """The people that options ask for, who work with a workload or begin sessions of agents; ``None`` without any."""
    if values.get("sessions") and values.get("people"):
        found = load_sessions(values["sessions"])
        people = asked_people(values, found.people, f"sessions {found.name}", agents=True)
        return people and replace(people, turns=len(sample_of(found.kinds)) / SAMPLE_SESSIONS)
    spec, of = (None, "") if named is None else (named.people, f"workload {named.name}")
    return asked_people(values, spec, of)


_NOT_OF_SESSIONS = ("requests", "warmup", "client_timeout", "prefix_hit_rate")
"""Options that are not modelled with sessions, whatever brings them."""
_THOUGHTS = ("thinking_tokens", "thinking_budget", "thinking_end", "answer_ttft")
_SIMULATED = (
    *("workload", "trace", "rate", "prompt", "output", "shared_prefix", "distinct_prefixes", "turns"),
    *("think_time", "samples", "classes", *_NOT_OF_SESSIONS, "length_ratio_min"),
)
"""Options that describe requests, which sessions bring, or that are not modelled with them."""
NOT_PLANNED = ("requests", "deadline", "cached_prefix", "users", "answer_ttft")
"""Those that a plan does not know beside sessions."""
_INSTEAD = {
    "--rate": "--session-rate 0.2/s",
    "--users": "--people 200 for those who begin them, or --session-rate 0.2/s; inferplan simulate --sessions NAME "
    "--in-flight 200 keeps 200 sessions under way on GPUs that you name",
}
_BROUGHT = "the file of the sessions states the requests, or the option is not modelled with sessions"
_USERS = "a plan for sessions needs the sessions that begin per second; their duration follows from the plan"


def require_sessions(values: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` for options of sessions where there are none."""
    if option := first_given(values, ("session_rate", "session_count", "session_time")):
        raise UsageError(
            f"{option} needs sessions of agents, and there are none",
            hint="--sessions coding-agent, --trace FILE of agents, or leave it out",
        )


def refuse_beside(values: Mapping[str, Any], names: Sequence[str] = NOT_PLANNED) -> None:
    """Raise ``UsageError`` for options that say what the sessions say, or that are not modelled with them."""
    if option := first_given(values, names):
        counted = option == "--requests" and "session_count" in values
        raise UsageError(
            f"{option} and --sessions exclude each other",
            because=_USERS if option == "--users" else _BROUGHT,
            hint="--session-count 200" if counted else _INSTEAD.get(option, "leave one out"),
        )


def _loop(asked: SessionsAsked, values: Mapping[str, Any]) -> OpenLoop:
    """How sessions come to an open loop."""
    kind, burstiness = arrivals_of(values["arrivals"], values["burstiness"])
    return OpenLoop(rate=asked.rate or 0.0, kind=kind, burstiness=burstiness)


def asked_sessions(
    values: Mapping[str, Any], closed: ClosedLoop | None, beside: Sequence[str] = ()
) -> SessionTraffic | None:
    """The sessions that are asked for; ``None`` without ``--sessions``. beside: options that are not known beside them,
    and are named before a load that is missing. Raises ``UsageError``."""
    asked = question_of(SessionsAsked, values)
    if asked.sessions is None:
        if values["trace"] is None:  # of agents, that may be: it is seen when it is read
            require_sessions(values)
        return None
    refuse_beside(values, (*beside, *_SIMULATED))
    if (asked.rate is None) == (closed is None):
        raise UsageError("sessions need one kind of load", hint=_begun(values, " for that many at a time"))
    return _traffic(asked, values, closed or _loop(asked, values))


def sessions_of_profile(values: Mapping[str, Any]) -> SessionTraffic | None:
    """The sessions that are asked for, which begin when a profile says; ``None`` without ``--sessions``. Raises
    ``UsageError``."""
    asked = question_of(SessionsAsked, values)
    if asked.sessions is None:
        return None
    refuse_beside(values, _SIMULATED)
    return _traffic(asked, values, _loop(replace(asked, rate=1.0), values))


def _traffic(asked: SessionsAsked, values: Mapping[str, Any], arrivals: ClosedLoop | OpenLoop) -> SessionTraffic:
    """The sessions of the file that is named."""
    assert asked.sessions is not None
    found, thoughts = load_sessions(asked.sessions), question_if_asked(ThoughtsAsked, values)
    return SessionTraffic(
        kinds=found.kinds,
        arrivals=arrivals,
        sessions_count=asked.count,
        seed=values.get("seed") or 0,
        name=found.name,
        usual=found.slo,
        thoughts=None if thoughts is None else outputs_of(thoughts, Lengths()),
    )


def _begun(values: Mapping[str, Any], more: str = "") -> str:
    """What says when sessions begin: a plan has no number of them at a time (:data:`NOT_PLANNED`)."""
    begun = "--people 200, or --session-rate 0.2/s" if more else "--session-rate 0.2/s"
    return begun + (f", or --in-flight 20{more}" if "concurrency" in values else "")


def sessions_of_trace(trace: Requests, values: Mapping[str, Any], closed: ClosedLoop | None) -> Requests:
    """The sessions of a trace of agents: at its own times, at ``--session-rate``, or so many at a time.

    Raises ``UsageError`` for options that are of requests, and where nothing says when sessions begin.
    """
    from inferplan.traffic.agent_traces import first_sessions, sessions_in_open_loop

    asked = question_of(SessionsAsked, values)
    spread = ("arrivals", "burstiness") if asked.rate is None else ()
    if option := first_given(values, (*_NOT_OF_SESSIONS, *_THOUGHTS, *spread)):
        raise UsageError(
            f"{option} and a trace of agents exclude each other",
            because="the trace says it, or it is not modelled with sessions",
            hint="--session-count for its first sessions" if option == "--requests" else "leave one out",
        )
    if asked.count is not None:
        trace = first_sessions(trace, asked.count)
    if asked.rate is not None:
        if closed is not None:
            raise UsageError("sessions need one kind of load", hint="--session-rate or --in-flight alone")
        return sessions_in_open_loop(trace, _loop(asked, values), values.get("seed", 0))
    if closed is not None:
        return trace.in_loop(closed)
    if trace.arrival is None:
        raise UsageError(
            "the sessions of this trace have no times at which they begin",
            hint=_begun(values),
        )
    return trace


def _kind(spec: KindSpec) -> SessionKind:
    below, cancel = spec.subagents, spec.cancel
    return SessionKind(
        name=spec.name,
        share=spec.share,
        agent=_agent(spec),
        subagents=None
        if below is None
        else Subagents(probability=below.probability, number=_lengths(below, "number"), agent=_agent(below)),
        patience=None if cancel is None else _time(cancel.after, "cancel.after"),
        gives_up=1.0 if cancel is None else cancel.share,
    )


def _agent(spec: AgentSpec) -> Agent:
    tool, user = spec.tool, spec.user
    both = tool is not None and user is not None
    if both and (user.share is None or tool.share is not None):  # type: ignore[union-attr]  # both are there
        raise UsageError(
            "a tool and a user both bring later calls: how many of them are the user's?", hint="user: {share: 0.2, ...}"
        )
    alone = tool if user is None else user
    if not both and alone is not None and alone.share is not None:
        raise UsageError("a share of the later calls, and nothing else brings any", hint="leave share: out")
    return Agent(
        turns=_lengths(spec, "turns"),
        system=spec.system,
        first=_lengths(spec, "first"),
        output=_lengths(spec, "output"),
        tool=None if tool is None else _reply(tool, "tool"),
        user=None if user is None else _reply(user, "user"),
        user_share=(user.share if both else 1.0) if user is not None else 0.0,  # type: ignore[arg-type]  # given
    )


def _reply(spec: ReplySpec, key: str) -> NextCall:
    return NextCall(prompt=_lengths(spec, "prompt", key), time=_time(spec.time, f"{key}.time"))


def _lengths(spec: Spec, key: str, inside: str = "") -> Lengths:
    try:
        return parse_lengths(getattr(spec, key))
    except UsageError as error:
        raise UsageError(f"{inside}{'.' if inside else ''}{key}: {error.what}", error.because, error.hint) from None


def _time(text: str, key: str) -> ThinkTime:
    try:
        return parse_think_time(text)
    except UsageError as error:
        what = error.what.removeprefix("--think-time: ").replace("a think time", "a time")
        raise UsageError(f"{key}: {what}", error.because, error.hint) from None


def _at(path: Path, place: int, what: str) -> str:
    return f"{at_line(path, 'sessions', place)}: {what}"
