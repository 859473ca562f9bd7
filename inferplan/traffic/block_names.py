"""Names of the blocks of requests that are made when somebody asks: those of all requests would fill the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, overload

from inferplan.traffic.conversations import NAME_ROOM

FINEST = 16
"""Tokens of the smallest block that a file's names are cut into: where an engine's pages are of single tokens, as of
SGLang, 16 times as many names would find some 8 tokens more of a prompt."""


def names_at(names: Sequence[Sequence[int]], order: Sequence[int]) -> Sequence[Sequence[int]]:
    """The names of some requests, made late where they are."""
    return names.at(order) if isinstance(names, (Streams, OfAdapters, FileNames)) else [names[index] for index in order]


def of_file(names: Sequence[Sequence[int]] | None) -> FileNames | None:
    """The names of a file that some names are, whoever asks for them; ``None`` for others."""
    inner = names.names if isinstance(names, OfAdapters) else names
    return inner if isinstance(inner, FileNames) else None


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


class _Prompt(NamedTuple):
    """The names that a file has of a prompt, which end at so many of its tokens."""

    names: Sequence[int]
    tokens: int


class _Recut(Sequence[int]):
    """The names of the full blocks of a prompt by another size: of each, that of the file's block which its last token
    is in, and the place there."""

    __slots__ = ("block", "every", "full", "names")

    def __init__(self, names: Sequence[int], every: int, block: int, full: int) -> None:
        self.names, self.every, self.block, self.full = names, every, block, full

    def __len__(self) -> int:
        return self.full

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        names, every, block = self.names, self.every, self.block
        if not isinstance(index, slice):
            end = (range(len(self))[index] + 1) * block - 1
            return names[end // every] * every + end % every
        places = range(len(self))[index]
        ends = range((places.start + 1) * block - 1, (places.stop + 1) * block - 1, places.step * block)
        return tuple([names[end // every] * every + end % every for end in ends])

    def __iter__(self) -> Iterator[int]:
        return iter(self[:])


class FileNames(Sequence[Sequence[int]]):
    """Names of the blocks of prompts that a file has for every ``every`` tokens, each for all up to its end, as those
    of blocks of ``block`` tokens.

    prompts: the names of each and the tokens that they end at. Two prompts share a block where they share the file's
    block that it ends in: what they share of a block that differs in the file is not known, and is not found.
    """

    def __init__(self, prompts: Sequence[_Prompt], every: int, block: int | None = None) -> None:
        self.prompts, self.every, self.block = prompts, every, block or every

    @classmethod
    def of(cls, names: Sequence[Sequence[int]], tokens: Sequence[int], every: int) -> FileNames:
        """names: of each prompt; tokens: those that they end at."""
        return cls([_Prompt(*row) for row in zip(names, tokens, strict=True)], every)

    def __len__(self) -> int:
        return len(self.prompts)

    @overload
    def __getitem__(self, index: int) -> Sequence[int]: ...
    @overload
    def __getitem__(self, index: slice) -> FileNames: ...
    def __getitem__(self, index: int | slice) -> Sequence[int] | FileNames:
        if isinstance(index, slice):
            return FileNames(self.prompts[index], self.every, self.block)
        names, tokens = self.prompts[index]
        full = tokens // self.block
        return names[:full] if self.block == self.every else _Recut(names, self.every, self.block, full)

    def at(self, order: Sequence[int]) -> FileNames:
        """Those of some requests."""
        return FileNames([self.prompts[index] for index in order], self.every, self.block)

    def cut(self, block: int) -> FileNames:
        """The same prompts in blocks of another size."""
        return FileNames(self.prompts, self.every, block)

    @property
    def hidden(self) -> int:
        """Tokens that prompts may share beyond what the names say, at most: of the file's block in which each parts
        from those before it, all that one of them is long there, less a token where both are as long; in whole blocks.
        """
        longest: dict[int | None, int] = {}
        known: set[int] = set()
        found, every, block = 0, self.every, self.block
        for names, tokens in self.prompts:
            place = next((at for at, name in enumerate(names) if name not in known), len(names))
            if place < len(names):
                own, begins = min(tokens - place * every, every), place * every
                other = longest.get(names[place - 1] if place else None, 0)
                alike = min(own, other) - (own == other)
                found += max(min(begins + alike, tokens - 1) // block - begins // block, 0) * block
            before: int | None = None
            for at, name in enumerate(names):
                if name not in known:
                    longest[before] = max(longest.get(before, 0), min(tokens - at * every, every))
                before = name
            known.update(names)
        return found


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

    def cut(self, block: int) -> OfAdapters:
        """The same in blocks of another size, where the names are those of a file."""
        inner = of_file(self)
        return self if inner is None else OfAdapters(inner.cut(block), self.adapters, self.kinds)
