"""The load of people, said before an answer, in its JSON and in its notes."""

from __future__ import annotations

from dataclasses import replace

from inferplan.table import Report
from inferplan.traffic.people import People


def with_people(
    report: Report,
    people: People | None,
    rate: float,
    response: float,
    session: float | None = None,
    most: bool = False,
) -> Report:
    """The report with the load that people make; as it is without them.

    rate: requests a second; response: mean seconds of one; session: of a session of agents, where there are any. most:
    the rate is a bound.
    """
    if people is None:
        return report
    in_flight = rate * response
    return replace(
        report,
        opening=[*people.lines(rate, in_flight, session, most), *report.opening],
        record={**report.record, "people": people.record(rate, in_flight)},
        notes=[*report.notes, *people.notes()],
    )
