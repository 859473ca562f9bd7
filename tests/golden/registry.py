"""Published numbers, each with its id, what the source prints, what is right, and the library call that gives it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from inferplan.errors import InferplanError


@dataclass(frozen=True, kw_only=True)
class Row:
    """One published number.

    id: its row in the reference table. printed: what the source prints, in its unit. value: the right value where the
    source is wrong or rounds away what we check (same unit). rel: how far we may be off. floor: ``printed`` is a
    measurement, and the ideal model must not be slower (or use more) than it.
    """

    id: str
    what: str
    compute: Callable[[], float]
    printed: float | str
    value: float | None = None
    rel: float = 1e-9
    floor: bool = False

    @property
    def expected(self) -> float:
        expected = self.printed if self.value is None else self.value
        assert isinstance(expected, (int, float)), f"{self.id} needs a value: it prints {self.printed!r}"
        return float(expected)

    def failure(self) -> str:
        """Why the library does not give this number; empty when it does."""
        try:
            ours = float(self.compute())
        except (InferplanError, ArithmeticError) as error:
            return f"{self.id} {self.what}: {error}"
        if self.floor:
            wrong = not 0.0 < ours <= self.expected
            return f"{self.id} {self.what}: ideal {ours!r} is beyond the measured {self.expected!r}" if wrong else ""
        if math.isclose(ours, self.expected, rel_tol=self.rel, abs_tol=0.0):
            return ""
        return f"{self.id} {self.what}: {ours!r}, not {self.expected!r} (within {self.rel:g})"


class Golden:
    """The rows of one source, and the ids that nothing here computes, each with the reason."""

    def __init__(self, prefix: str, source: str) -> None:
        self.prefix, self.source = prefix, source
        self.rows: list[Row] = []
        self.left_out: dict[str, str] = {}

    def row(self, number: str, what: str, compute: Callable[[], float], **fields: object) -> None:
        self.rows.append(Row(id=f"{self.prefix}-{number}", what=what, compute=compute, **fields))  # type: ignore[arg-type]

    def leave_out(self, number: str, reason: str) -> None:
        self.left_out[f"{self.prefix}-{number}"] = reason

    @property
    def ids(self) -> set[str]:
        return {row.id for row in self.rows} | set(self.left_out)

    def failures(self) -> list[str]:
        return [failure for row in self.rows if (failure := row.failure())]
