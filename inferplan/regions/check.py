"""An answer simulated: in each routing the busiest hour of the replicas of each region, behind one router."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from inferplan.regions.answer import Answer, Pool
from inferplan.regions.question import Routing
from inferplan.regions.reading import Read
from inferplan.regions.replicas import Seen


class Checked(NamedTuple):
    """The busiest hour of a pool of a site. hour: of UTC. seen: at the server."""

    routing: Routing
    site: int
    pool: Pool
    hour: int
    seen: Seen

    @property
    def load(self) -> float:
        """Requests a second of the busiest moment."""
        return float(self.pool.load[self.hour])

    @property
    def replicas(self) -> int:
        return int(self.pool.replicas[self.hour])

    @property
    def ttft(self) -> float:
        """As the farthest users see it."""
        return self.seen.ttft + self.pool.delay

    @property
    def e2el(self) -> float:
        """Likewise."""
        return self.seen.e2el + self.pool.delay

    def keeps(self, limits: Mapping[str, float]) -> bool:
        """Whether the farthest users have what they are promised."""
        found = {"ttft": self.ttft, "tpot": self.seen.tpot, "e2el": self.e2el}
        return self.seen.verdict != "overloaded" and all(found[name] <= most for name, most in limits.items())


def check(read: Read, answer: Answer) -> tuple[Checked, ...]:
    """Every pool of every routing; equal hours are simulated once."""
    known: dict[tuple[int, int, float], Seen] = {}
    found = []
    for routed in answer.routed:
        for site in range(len(answer.asked.sites)):
            for pool in routed.pools(site):
                hour = pool.busiest
                replicas, load = int(pool.replicas[hour]), float(pool.load[hour])
                key = (id(read.replicas[site]), replicas, round(load, 6))
                if key not in known:
                    known[key] = read.replicas[site].seen(replicas, load)
                found.append(Checked(routed.routing, site, pool, hour, known[key]))
    return tuple(found)
