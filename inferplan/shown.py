"""Results that say in a line what they are, and show their tables in a notebook.

What prints them stands on a higher floor (:mod:`inferplan.reports.shown`) and is put in here by the package itself, so
that a result imports nothing from above.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Printers:
    """What prints results: a line, HTML, the record that the command prints as JSON, and its rows of CSV."""

    line: Callable[[Any], str] = field(default=lambda result: type(result).__name__)
    html: Callable[[Any], str | None] = field(default=lambda _: None)
    record: Callable[[Any], dict[str, Any]] = field(default=lambda _: {})
    rows: Callable[[Any], list[dict[str, Any]]] = field(default=lambda _: [])


PRINTERS = Printers()
"""Those in use."""


class Shown:
    """A result: ``repr`` is one line, a notebook shows what the command prints, ``to_dict`` is the command's JSON.

    A dataclass that is one says ``repr=False``.
    """

    def __repr__(self) -> str:
        return PRINTERS.line(self)

    def _repr_html_(self) -> str | None:
        return PRINTERS.html(self)

    def to_dict(self) -> dict[str, Any]:
        """The record that the command prints as JSON (docs/json.md)."""
        return PRINTERS.record(self)
