"""Names of the blocks of requests that are made when somebody asks: those of all requests would fill the memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import overload

from inferplan.traffic.conversations import NAME_ROOM


def names_at(names: Sequence[Sequence[int]], order: Sequence[int]) -> Sequence[Sequence[int]]:
    """The names of some requests, made late where they are."""
    return names.at(order) if isinstance(names, (Streams, OfAdapters)) else [names[index] for index in order]


@lru_cache(maxsize=256)
def _names(text: int, common: int, stream: int, clean: int, thinking: int, full: int) -> tuple[int, ...]:
    head, own, behind = -(text * NAME_ROOM) - 1, (stream + 1) * NAME_ROOM, (thinking + 1) * NAME_ROOM
    common, clean = min(common, full), min(clean, full)
    kept = (*range(head, head - common, -1), *range(own + common, own + clean))
    return kept if clean >= full else (*kept, *range(behind + max(clean, common), behind + full))


class Streams(Sequence[Sequence[int]]):
    """Names of the full blocks of each request of sessions.

    text, common: by request, the text at its head that other streams have too, and the full blocks of it; stream: whose
    own text comes after that; full: all its full blocks. clean, thinking: its full blocks without thoughts, and whose
    text comes after those; absent where nobody thinks.
    """

    def __init__(
        self,
        text: Sequence[int],
        common: Sequence[int],
        stream: Sequence[int],
        full: Sequence[int],
        behind: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> None:
        clean, thinking = (full, stream) if behind is None else behind
        self._rows = list(zip(text, common, stream, clean, thinking, full))

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Sequence[int]: ...
    @overload
    def __getitem__(self, index: slice) -> Streams: ...
    def __getitem__(self, index: int | slice) -> Sequence[int] | Streams:
        return self.at(range(len(self))[index]) if isinstance(index, slice) else _names(*self._rows[index])

    def at(self, order: Sequence[int]) -> Streams:
        """Those of some requests."""
        made = Streams((), (), (), ())
        made._rows = [self._rows[index] for index in order]
        return made


class OfAdapters(Sequence[Sequence[int]]):
    """The names of blocks that each belong to one of ``kinds`` adapters, given by request."""

    def __init__(self, names: Sequence[Sequence[int]], adapters: Sequence[int], kinds: int) -> None:
        self.names, self.adapters, self.kinds = names, adapters, kinds

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> Sequence[int]: ...
    @overload
    def __getitem__(self, index: slice) -> OfAdapters: ...
    def __getitem__(self, index: int | slice) -> Sequence[int] | OfAdapters:
        if isinstance(index, slice):
            return OfAdapters(self.names[index], self.adapters[index], self.kinds)
        adapter, kinds = self.adapters[index], self.kinds
        return tuple(name * kinds + adapter for name in self.names[index])

    def at(self, order: Sequence[int]) -> OfAdapters:
        """Those of some requests."""
        return OfAdapters(names_at(self.names, order), [self.adapters[index] for index in order], self.kinds)
