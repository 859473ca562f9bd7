"""How many people there are and what they do between answers, as options ask and files say (docs/planning.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from inferplan.catalog.files import config_root, spec_of
from inferplan.errors import UsageError
from inferplan.fields import Real, Topic, Whole, ask, first_given, question_if_asked
from inferplan.spec import Spec
from inferplan.traffic.conversations import ThinkTime, parse_think_time
from inferplan.traffic.people import IN_FLIGHT, People, PeopleFigure

_LOADS = ("users", "concurrency", "rate", "trace", "deadline", "classes", "session_rate", "peak")
MOST_LOAD = "most"
"""In place of a load: the most that is carried."""
_HINT = "--workload chat (or another with people: in its file), or --think-time 60s"


class FigureSpec(Spec):
    """A figure with its source; ``assumed`` where no public source has it."""

    value: str | float
    source: str
    assumed: bool = False


class PeopleSpec(Spec):
    """What one person does with a workload: the time from an answer to the next request (as ``--think-time`` takes
    it), requests of a conversation, conversations a day. Sessions of agents have the last alone. other: what else asks
    for the load of such people, and how that differs, in one line."""

    think_time: FigureSpec | None = None
    turns: FigureSpec | None = None
    sessions_a_day: FigureSpec
    other: str = ""


class PeopleFile(Spec):
    """``configs/people.yaml``: what holds for people whatever they do."""

    busy_hour: FigureSpec


@cache
def people_file() -> PeopleFile:
    """The shipped figures."""
    return spec_of(config_root() / "people.yaml", PeopleFile)


@dataclass(frozen=True, kw_only=True)
class PeopleAsked:
    """People as they are asked for."""

    topic: ClassVar = Topic("people", "the number of people is missing", "--people 2000")
    people: int | None = ask(
        "--people",
        Whole(most=10**9),
        "People at work in the busy hour. They read and type between answers for --think-time [of the workload].",
        None,
    )
    sessions_a_day: float | None = ask(
        "--sessions-a-day",
        Real(0, above=True),
        "With --people: conversations per person per day [everybody is in one for the whole busy hour; for agents, "
        "as in the file].",
        None,
        metavar="NUMBER",
    )


def asked_people(values: Mapping[str, Any], spec: PeopleSpec | None, of: str, agents: bool = False) -> People | None:
    """The people that options ask for; ``None`` without ``--people``.

    spec, of: what is known of them, and whose it is (``"workload chat"``). agents: they begin sessions of agents.
    Raises ``UsageError`` for another load beside them, and where nothing says how long they think, or how many sessions
    of agents they begin.
    """
    asked = question_if_asked(PeopleAsked, values)
    if asked is None or asked.people is None:
        return None
    if option := first_given(values, _LOADS):
        option = IN_FLIGHT[0] if option in IN_FLIGHT else option
        raise UsageError(f"--people and {option} both state the load", hint="leave one of them out")
    figures: list[PeopleFigure] = []
    think, turns, pause = None, 1.0, None
    daily, usual = asked.sessions_a_day, None if spec is None else _number(spec.sessions_a_day)
    if agents:
        _refuse_thinking(values, "their file states the time between two calls", "leave it out")
        daily = usual if daily is None else daily
        if daily is None:
            raise UsageError(
                "the sessions per person per day are not known",
                because=f"{of} does not say it",
                hint="--sessions-a-day 12, or people: {sessions_a_day: ...} in the file",
            )
    elif daily is None or (values.get("turns") or 1) > 1:
        think = _thinking(values, spec, of, figures)
        turns = _turns(values, spec, of, figures, counted=daily is not None)
    else:  # requests at a rate, none of which waits for the one before it
        because = "--sessions-a-day counts conversations, and no request here follows another"
        _refuse_thinking(values, because, "leave it out; in plan and simulate --turns 3 as well")
        turns = _turns(values, spec, of, figures, counted=True)
        if values.get("turns") is not None:
            think = ThinkTime()
        elif spec is not None and spec.think_time is not None:
            think, pause = _time(spec.think_time.value), _figure("think time", spec.think_time, of, None)
    if daily is not None:
        figures.append(
            _figure("sessions a day", None if spec is None else spec.sessions_a_day, of, asked.sessions_a_day)
        )
        figures.append(_figure("busy-hour share", people_file().busy_hour, "configs/people.yaml", None))
    return People(
        count=asked.people,
        think=think,
        turns=turns,
        sessions_a_day=daily,
        busy_hour=None if daily is None else _number(people_file().busy_hour),
        figures=tuple(figures),
        pause=pause,
        usual=usual if daily is None else None,
        other="" if spec is None else spec.other,
    )


def _thinking(values: Mapping[str, Any], spec: PeopleSpec | None, of: str, figures: list[PeopleFigure]) -> ThinkTime:
    given = values.get("think_time")
    usual = None if spec is None else spec.think_time
    if given is None and usual is None:
        raise UsageError(
            "the think time between an answer and the next request is not known",
            because=f"{of} does not say it" if of else "no --workload says it",
            hint=_HINT,
        )
    figures.append(_figure("think time", usual, of, given))
    return _time(given if given is not None else str(usual.value))  # type: ignore[union-attr]  # one of them is there


def _time(value: str | float) -> ThinkTime:
    return parse_think_time(value) if isinstance(value, str) else ThinkTime(mean=float(value))


def _refuse_thinking(values: Mapping[str, Any], because: str, hint: str) -> None:
    """Raise ``UsageError`` for a think time that would change nothing of the load."""
    if values.get("think_time") is not None:
        raise UsageError("--think-time changes nothing of this load", because=because, hint=hint)


def _turns(
    values: Mapping[str, Any], spec: PeopleSpec | None, of: str, figures: list[PeopleFigure], counted: bool
) -> float:
    """Requests of a conversation, which only count where conversations do."""
    given, usual = values.get("turns"), None if spec is None else spec.turns
    if counted and given is None and usual is None:
        raise UsageError(
            "the number of requests per conversation is not known",
            because="--sessions-a-day counts conversations",
            hint="--turns 3, or --workload chat",
        )
    if counted:
        figures.append(_figure("turns", usual, of, given))
    return float(given) if given is not None else 1.0 if usual is None else _number(usual)


def _figure(name: str, usual: FigureSpec | None, of: str, given: Any) -> PeopleFigure:
    """A figure as it was given, by an option, else as a file has it."""
    if given is not None:
        unit = " s" if name == "think time" and not isinstance(given, str) else ""
        text = given if isinstance(given, str) else f"{given:g}{unit}"
        return PeopleFigure(name, text, f"--{name.replace(' ', '-')}")
    assert usual is not None
    value = usual.value if isinstance(usual.value, str) else f"{usual.value:g}"
    return PeopleFigure(name, value, of, usual.source, usual.assumed)


def _number(figure: FigureSpec) -> float:
    try:
        return float(figure.value)
    except ValueError:
        raise UsageError(f"{figure.value!r:.40} is not a number", hint="value: 2.5") from None


def with_most(values: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The options with a load of one where the most is asked for, and whether it is."""
    asked = [key for key in ("people", "rate", "users") if values.get(key) == MOST_LOAD]
    return {**values, **{key: 1.0 if key == "rate" else 1 for key in asked}}, bool(asked)


def people_load(values: dict[str, Any], people: People | None, closed: str | None) -> dict[str, Any]:
    """The options of the load that people make: ``closed`` (the key of requests in flight) with a think time, or a
    rate, which without ``closed`` is the most that people send."""
    if people is None:
        return values
    if values.get("sessions"):
        return {**values, "session_rate": people.session_rate}
    think = people.think if (values.get("turns") or 1) > 1 else None
    if closed is None:
        return {**values, "rate": people.rate(0.0), "think_time": think}
    if people.session_rate is None:
        return {**values, closed: people.count, "think_time": people.think}
    return {**values, "rate": people.session_rate * people.turns, "think_time": think}
