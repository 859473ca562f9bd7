"""A cluster whose replicas are not alike: one pool behind one router, which gives each turns by its weight."""

from __future__ import annotations

from collections.abc import Sequence

from inferplan.errors import UsageError
from inferplan.serving.cluster import Beside, Cluster, Kind
from inferplan.serving.flags import Flags
from inferplan.serving.records import Meter
from inferplan.serving.rounds import coupled_ranks
from inferplan.serving.routing import Router
from inferplan.serving.scheduler import Scheduler


class Mixed(Cluster):
    """A cluster of a fleet that has ``others``."""

    def mix(self, kind: Kind, others: Sequence[Kind]) -> None:
        """Make the engines: the replicas of the run, and the fleet's ``others``, which are of the kinds given.

        Raises ``UsageError`` for an engine that chooses among the ranks of a replica itself.
        """
        own = Beside(kind.deployment, Flags(), kind.deployment.parallel.replicas, self.fleet.weight)
        self.kinds = (kind, kind)
        pool, weights, self.member = list[Scheduler](), list[float](), list[int]()
        for member, (one, beside) in enumerate(zip((kind, *others), (own, *self.fleet.others))):
            if one.rules.scheduler.ranks == "tokens" and coupled_ranks(one.deployment) > 1:
                raise UsageError(
                    "replicas that are not alike are fed by weight, which knows nothing of ranks",
                    hint="replicas without attention data parallelism",
                )
            ranks = one.deployment.parallel.dp
            count = beside.replicas * ranks
            pool += self.made(one, count)
            weights += [beside.weight / ranks] * count
            self.member += [member] * count
        self.front = Router(self.fleet.routing, pool, self.records, weights=weights)

    def run(self, warmup: int = 0, fill: int = 0, jobs: int = 1) -> list[Meter]:
        """As of replicas that are alike; the records then know whose replica each request went to."""
        meters = super().run(warmup, fill, jobs)
        went, count = self.front.went, len(self.records.prompt)
        self.records.served_by = [self.member[went[request]] if request in went else -1 for request in range(count)]
        return meters
