"""An answer simulated: in each routing the busiest hour of each region, with all its replicas behind one router."""

from __future__ import annotations

from typing import NamedTuple

from inferplan.regions.answer import Answer
from inferplan.regions.question import Routing
from inferplan.regions.reading import Read
from inferplan.regions.replicas import Seen


_SEEN = 1e-3
"""Requests of a day: fewer are the solver's rounding."""


class Checked(NamedTuple):
    """The busiest hour of a site. hour: of UTC. load: requests a second of its busiest moment. seen: at the server.
    delay: seconds of network of the farthest users that the site ever serves."""

    routing: Routing
    site: int
    hour: int
    load: float
    replicas: int
    seen: Seen
    delay: float

    @property
    def ttft(self) -> float:
        """As the farthest users see it."""
        return self.seen.ttft + self.delay

    @property
    def e2el(self) -> float:
        return self.seen.e2el + self.delay

    def keeps(self, limits: dict[str, float]) -> bool:
        """Whether the farthest users have what they are promised."""
        found = {"ttft": self.ttft, "tpot": self.seen.tpot, "e2el": self.e2el}
        return self.seen.verdict != "overloaded" and all(found[name] <= most for name, most in limits.items())


def check(read: Read, answer: Answer) -> tuple[Checked, ...]:
    """Every region of every routing that serves anybody; equal hours are simulated once."""
    known: dict[tuple[int, int, float], Seen] = {}
    found = []
    for routed in answer.routed:
        for site in range(len(answer.asked.sites)):
            hour = routed.busiest(site)
            if hour is None:
                continue
            replicas, load = int(routed.up(site)[hour]), float(routed.load(site)[hour])
            key = (id(read.replicas[site]), replicas, round(load, 6))
            if key not in known:
                known[key] = read.replicas[site].seen(replicas, load)
            used = [arc for path, arc in enumerate(routed.asked.paths) if routed.requests[path].sum() > _SEEN]
            delay = max(arc.delay for arc in used if arc.site == site)
            found.append(Checked(routed.routing, site, hour, load, replicas, known[key], delay))
    return tuple(found)
