"""A service as a Prometheus server kept it: its servers' scrapes as minutes, as those of a service that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from inferplan.errors import InputFileError
from inferplan.measuring.exposition import Sample
from inferplan.measuring.range_export import Exported
from inferplan.watching.counters import Counters, Span, engine_of, lacking, read_counters
from inferplan.watching.minutes import Scrapes

_Round = dict[str, tuple[float, list[Sample]]]


@dataclass(eq=False)
class ExportedService:
    """The servers of an export, read round after round: a round is one scrape of each server that was there.

    servers: the most that are there at once. notes: what the export does not hold, in words. Raises ``InputFileError``
    for servers of several engines, for metrics that are missing, and for fewer than two scrapes of each server.
    """

    kept: Sequence[Exported]
    notes: list[str] = field(default_factory=list)
    servers: int = 0

    def __post_init__(self) -> None:
        where, names = self.kept[0].where.partition(": ")[0], {name for one in self.kept for name in one.names}
        engines = {engine_of(one.names, one.where) for one in self.kept}
        if len(engines) > 1:
            raise InputFileError(
                f"{where} has servers with different engines", because=", ".join(sorted(engines)), hint="watch each"
            )
        needed, spare = lacking(engines.pop(), names)
        if needed:
            raise InputFileError(
                f"{where} lacks {', '.join(needed)}",
                because="without them a service cannot be watched",
                hint='export all metrics of the engine: {__name__=~"vllm:.+"}',
            )
        self.notes += [f"{where} lacks {', '.join(spare)}: what they count is not seen"] if spare else []
        gaps = [later[0] - earlier[0] for one in self.kept for earlier, later in pairwise(one.moments)]
        if not gaps:
            raise InputFileError(f"{where} has one moment of each server", because="counters are read between two")
        self._every = median(gaps)
        self._rounds = self._by_round()
        self.servers = max(map(len, self._rounds.values()))

    def _by_round(self) -> dict[int, _Round]:
        """Scrapes by their round. Each server is scraped at its own second of a round: the times are those of the
        first server, as if all were scraped at once."""
        began, rounds = min(one.moments[0][0] for one in self.kept), dict[int, _Round]()
        for one in self.kept:
            before = one.moments[0][0]
            number = int((before - began) // self._every)
            later = before - began - number * self._every
            for at, found in one.moments:
                number += round((at - before) / self._every)
                rounds.setdefault(number, {})[one.where] = at - later, found
                before = at
        return rounds

    def spans(self, length: float, said: Callable[[str], None]) -> Iterator[tuple[Span, float, int]]:
        """The minutes, of ``length`` seconds or more, as :class:`Scrapes` cuts them, with their ends in seconds since
        1970. A stretch of which nothing at all was kept is passed over. said: told of scrapes that cannot be read.
        """
        scrapes = Scrapes(servers=[one.where for one in self.kept], length=length)
        for number in sorted(self._rounds):
            found = {where: _counters(where, samples, said) for where, (_, samples) in self._rounds[number].items()}
            at = min(at for at, _ in self._rounds[number].values())
            ended = scrapes.add(at, found)
            if ended is not None:
                yield ended[0], at, ended[1]


def _counters(where: str, samples: list[Sample], said: Callable[[str], None]) -> Counters | None:
    try:
        return read_counters(samples, where)
    except InputFileError as error:
        said(error.render())
        return None
