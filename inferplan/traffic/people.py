"""People as a load: what they do between answers, and the requests that this makes in the busy hour.

People who are in a conversation all through the hour are a closed loop: ``N = X (R + Z)`` (Denning and Buzen, 1978, The
operational analysis of queueing network models), where an answer takes ``R`` and is followed by a think time ``Z``.
People of whom it is known how many sessions they begin in a day are an open loop of sessions, ``N S b / 3600 s``,
where ``b`` is the share of the day's ``S`` sessions that begin in its busiest hour.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, inf, log10
from typing import TYPE_CHECKING, Any, NamedTuple

from inferplan.errors import UsageError
from inferplan.units import format_time

if TYPE_CHECKING:
    from inferplan.traffic.conversations import ThinkTime

HOUR = 3600.0
"""Seconds."""
_LEAST, _MOST = 1e-5, 1e6
"""Requests a second."""
IN_FLIGHT = ("--in-flight", "--users", "--concurrency")
"""The names of the option that asks for so many requests at every moment, the first of which help shows first."""
IN_FLIGHT_HELP = (
    "Requests in flight at all times: each answer is followed by the next request at once, or after --think-time. "
    "Also --users or --concurrency."
)


class PeopleFigure(NamedTuple):
    """A figure about people: its name, its value as text, whose it is (a workload, an option), why it is that."""

    name: str
    value: str
    of: str
    source: str = ""
    assumed: bool = False

    def said(self) -> str:
        """``"think time exponential:60s (assumed; workload chat)"``."""
        return f"{self.name} {self.value} ({'assumed; ' if self.assumed else ''}{self.of})"


@dataclass(frozen=True, kw_only=True)
class People:
    """``count`` people at work in the busy hour.

    think: from an answer to the next request of the same person; ``None`` in sessions of agents, which have gaps of
    their own. turns: requests of a session. sessions_a_day: that each begins; ``None`` where all are in a session all
    through the hour. busy_hour: the share of them that begins in the busy hour. figures: those that the load
    rests on, with their sources. pause: the think time where it says how long a conversation takes, and nothing of the
    load. usual: sessions a day by the workload where nobody asked for them. other: what else asks for such people.
    Raises ``UsageError`` for people who neither think nor begin sessions, and as :meth:`require_one_each`.
    """

    count: int
    think: ThinkTime | None = None
    turns: float = 1.0
    sessions_a_day: float | None = None
    busy_hour: float | None = None
    figures: tuple[PeopleFigure, ...] = ()
    pause: PeopleFigure | None = None
    usual: float | None = None
    other: str = ""

    def __post_init__(self) -> None:
        if self.sessions_a_day is None and (self.think is None or not self.think.mean):
            raise UsageError(
                "people read and type between answers, and a think time of 0 s leaves no time for it",
                hint=f"--in-flight {self.count} for that many requests at all times, or --think-time 60s",
            )
        self.require_one_each()
        if self.think is None and self.session_rate is None:
            return
        if not _LEAST <= (rate := self.rate(0.0)) <= _MOST:
            few = rate < _LEAST
            daily = "" if self.sessions_a_day is None else f", or {'more' if few else 'fewer'} --sessions-a-day"
            raise UsageError(
                f"{self._who} make {rate:.3g} requests/s, which is out of range",
                because=f"{_LEAST:g} to {_MOST:g} requests/s are",
                hint=f"{'more' if few else 'fewer'} --people{daily}",
            )

    def require_one_each(self, response: float = 0.0) -> None:
        """Raise ``UsageError`` where a person would have to be in more than one conversation at a time (agents work in
        several). response: mean seconds of an answer; 0 where it is not known yet."""
        if self.sessions_a_day is None or self.busy_hour is None or self.think is None:
            return
        takes = self._conversation(response)
        most = HOUR / self.busy_hour / takes if takes else inf
        if self.sessions_a_day > most:
            raise UsageError(
                f"one person cannot have {self.sessions_a_day:g} conversations per day, one after another",
                because=f"{self.sessions_a_day * self.busy_hour:.3g} of them begin in the busy hour, and each takes "
                f"{format_time(takes, 3)}" + ("" if response else " without its answers"),
                hint=f"--sessions-a-day {_rounded_down(most)}, or leave it out: all are in a conversation for the "
                "whole hour",
            )

    def _conversation(self, response: float) -> float:
        """Mean seconds of one: its answers, and the think times between them."""
        assert self.think is not None
        return self.turns * response + (self.turns - 1) * self.think.mean

    @property
    def session_rate(self) -> float | None:
        """Sessions that begin in a second of the busy hour; ``None`` where all are in one all the time."""
        if self.sessions_a_day is None or self.busy_hour is None:
            return None
        return self.count * self.sessions_a_day * self.busy_hour / HOUR

    def rate(self, response: float) -> float:
        """Requests a second in the busy hour where an answer takes ``response`` seconds."""
        begin = self.session_rate
        if begin is not None:
            return begin * self.turns
        assert self.think is not None
        return self.count / (response + self.think.mean)

    def lines(self, rate: float, in_flight: float, session: float | None = None, most: bool = False) -> list[str]:
        """What an answer begins with: the load, and what it rests on. session: mean seconds of one, where it is known.
        most: the rate is a bound, of answers as fast as they can be."""
        unit = "answer" if _short(in_flight) == "1" else "answers"
        begin, other = self.session_rate, [f"another answer: {self.other}"] if self.other else []
        bound = "at most " if most and begin is None else ""
        lines = [
            f"{self._who} = {bound}{_short(rate)} requests/s = {_short(in_flight)} {unit} in flight at the busy hour",
            "; ".join(figure.said() for figure in self.figures),
        ]
        if begin is None:
            usual = "" if self.usual is None else f"; for a head count: --sessions-a-day {self.usual:g}"
            return [*lines, f"all of them are in a conversation for the whole hour{usual}", *other]
        share = f"{self.sessions_a_day:g} sessions per day x {self.busy_hour:g} of them in the busy hour"
        text = f"{begin:.3g} sessions begin per second = {self._who} x {share} / 3600 s"
        if session is None and self.think is not None and rate > 0:
            session = self._conversation(in_flight / rate)
        if session is not None:
            at_once = begin * session
            between = "" if self.pause is None else f" with {self.pause.said()}"
            text += f"; each takes {format_time(session, 3)}{between}, so {_short(at_once)} are in progress at a time"
            text += f" ({at_once / self.count:.2g} per person)"
        return [*lines, text, *other]

    @property
    def _who(self) -> str:
        return f"{self.count:,} {'person' if self.count == 1 else 'people'}"

    def notes(self) -> list[str]:
        """Where the figures come from."""
        return [
            f"{one.name} {one.value} {'is assumed' if one.assumed else 'is of'}"
            f"{'' if one.assumed else ' ' + one.of}: {one.source}"
            for one in (*self.figures, self.pause)
            if one is not None and one.source
        ]

    def record(self, rate: float, in_flight: float) -> dict[str, Any]:
        """As JSON has it (docs/json.md)."""
        return {
            "people": self.count,
            "requests_per_s": rate,
            "answers_in_flight": in_flight,
            "think_time_s": None if self.think is None else self.think.mean,
            "turns": self.turns,
            "sessions_a_day": self.sessions_a_day,
            "busy_hour_share": self.busy_hour,
            "sessions_per_s": self.session_rate,
            "figures": [one._asdict() for one in self.figures],
        }


def in_flight_line(count: int, chat: bool) -> str:
    """What so many requests in flight are. chat: they are messages, which people may have been meant to write."""
    line = f"{count:,} {'request' if count == 1 else 'requests'} in flight at all times"
    return line + (f"; for {count:,} people who read and type: --people {count}" if chat else "")


def _rounded_down(number: float) -> str:
    """Two digits that are not more than the number: ``"250"``, ``"3.8"``."""
    place = 10.0 ** (floor(log10(number)) - 1)
    return f"{floor(number / place) * place:.4g}"


def _short(number: float) -> str:
    """Two digits below 10, whole numbers above: ``"0.83"``, ``"31"``, ``"2,000"``."""
    return f"{number:,.0f}" if number >= 9.95 else f"{number:.2g}"
