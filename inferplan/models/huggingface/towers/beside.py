"""What a config of several modalities is read into, and what the rows of its table say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.towers.defaults import DEFAULTS
from inferplan.models.huggingface.towers.parts import Tensors

VISION, AUDIO = "vision_config", "audio_config"


@dataclass
class Media:
    """The towers of one config by the name of their tables, the tables, the whole config, the language model's."""

    outer: Reader
    text: Reader
    d_model: int
    tables: dict[str, Reader] = field(default_factory=dict)
    towers: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, table: str, tensors: Tensors) -> None:
        """Count tensors with the tower of this table."""
        self.towers[table]["tensors"] |= tensors

    def part(self, name: str, kind: str) -> Reader:
        """A further table, with what its class says where it leaves a field out."""
        return self.within(self.outer, name, kind)

    def within(self, table: Reader, name: str, kind: str, kept: str = "") -> Reader:
        """As :meth:`part`, of a table that stands in another; ``kept`` under a name where its own is taken."""
        own = table.table(name) or Reader({}, table.name, f"{table.prefix}{name}.")
        own.fill(DEFAULTS.get(kind, {}))
        self.tables[kept or name] = own
        return own

    def untied(self) -> None:
        """Refuse a tie that the class does not make: it has a head of its own, whatever the flags say."""
        self.outer.only("tie_word_embeddings", False)
        self.text.only("tie_word_embeddings", False)

    def width(self, table: str) -> int:
        """The width of a tower."""
        return int(self.towers[table]["d_model"])


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What a ``model_type`` has beside its language model.

    towers: its tables, each with the kind of tower it is where the table does not say so. join: adds the tensors
    between; run when all of its towers are there. ignored: fields of the whole config that change no count;
    text_ignored: of the language model's table. partial: some of its towers may be absent. encodes: the language model
    generates nothing, and the class of the whole config decides its head. released: writes the table of a released
    tower in the fields of its class.
    """

    towers: dict[str, str]
    join: Callable[[Media], None] = lambda media: None
    ignored: tuple[str, ...] = ()
    text_ignored: tuple[str, ...] = ()
    partial: bool = False
    encodes: bool = False
    released: Callable[[Reader], None] = lambda table: None


def vision(kind: str, join: Callable[[Media], None] = lambda media: None, *ignored: str) -> Beside:
    return Beside(towers={VISION: kind}, join=join, ignored=ignored)


def audio(kind: str, join: Callable[[Media], None] = lambda media: None, *ignored: str) -> Beside:
    return Beside(towers={AUDIO: kind}, join=join, ignored=ignored)
