"""What the server asks of the command line, which stands above it and is handed in when it starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from inferplan.catalog.assemble import Request
from inferplan.catalog.price_lists import PriceBook
from inferplan.errors import InferplanError
from inferplan.table import Report

Options = Mapping[str, Any]
"""Options by their names on the command line without dashes, arguments among them: ``{"model": ..., "tp": 4}``."""
Progress = Callable[[int, int | None, str], None]
"""Told how far a command is: what is done, of how many (``None``: not known), and in words."""


@dataclass(frozen=True, kw_only=True)
class Answered:
    """What a command said. report and error may both be there: a simulation that is overloaded has figures.

    printed: what it wrote on stdout, where it makes no report. notes: what it wrote on stderr. command: as it is typed.
    request: the deployment that it was asked about.
    """

    command: str
    report: Report | None = None
    error: InferplanError | None = None
    printed: str = ""
    notes: tuple[str, ...] = ()
    request: Request | None = None


class Commands(Protocol):
    """The command line for programs: an object that another process can be handed."""

    def prepare(self) -> None:
        """Read what depends on the folder that this process was started in, before it goes to another."""

    def run(self, name: str, options: Options, progress: Progress | None = None) -> Answered:
        """Run a command with options that are read and refused as those that are typed."""

    def prices(self, options: Options) -> PriceBook:
        """The prices that options name. Raises ``InferplanError``."""

    def schema(self, name: str) -> dict[str, Any]:
        """The options of a command as a JSON schema, described as its help begins."""

    def common(self, name: str) -> frozenset[str]:
        """Those of its options that help shows first; empty where it shows all."""
