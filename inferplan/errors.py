"""The tree of errors. Each knows its exit code; each prints as what, because, hint (see docs/cli.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Self

_CONTROL = re.compile(
    "\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""What moves a cursor, rings, colours, turns the direction of writing, or is no character at all: all but lines and
tabs."""

_PLAIN = bytes([9, 10, *range(32, 127)])


def printable(text: str) -> str:
    """Text without control characters: each as Python writes it, such as ``\\x1b``. Lines and tabs stay."""
    if text.isascii() and not text.encode("ascii").translate(None, _PLAIN):  # a hundred times faster than the pattern
        return text
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def has_control(text: str) -> bool:
    """Whether a text has control characters, other than lines and tabs."""
    return not text.isprintable() and _CONTROL.search(text) is not None


class InferplanError(Exception):
    """Base of every error a user can cause.

    Parameters: ``what`` happened, in one line; ``because``, the numbers behind it; ``hint``, what would work;
    ``picture``, lines of letters that show the numbers, where there is one.
    """

    exit_code = 2

    def __init__(self, what: str, because: str = "", hint: str = "", picture: str = "") -> None:
        self.what, self.because, self.hint, self.picture = what, because, hint, picture
        super().__init__(self.render())

    def __reduce__(self) -> tuple[type[InferplanError], tuple[str, str, str, str]]:
        """What another process makes it from: its parts, not the text that they are printed as."""
        return type(self), (self.what, self.because, self.hint, self.picture)

    def render(self) -> str:
        lines = [f"error: {self.what}"]
        if self.because:
            lines.append(f"because: {self.because}")
        if self.picture:
            lines.append(self.picture)
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return printable("\n".join(lines))

    def record(self) -> dict[str, Any]:
        """The same as JSON has it; ``picture`` where there is one."""
        words = {"what": self.what, "because": self.because, "hint": self.hint}
        return {**words, **({"picture": self.picture} if self.picture else {}), "exit_code": self.exit_code}


class UsageError(InferplanError):
    """Options that contradict each other, a value out of range (exit 2)."""


class SpecError(InferplanError):
    """A YAML or config that cannot be understood: file, line, field, reason (exit 2)."""


class UndescribedError(SpecError):
    """A type, a value or fields of a config that no table describes: another reading may know them (exit 2).

    fields: those that nobody has read, by their paths in the config; none where it is a type or a value.
    """

    fields: tuple[str, ...] = ()

    @classmethod
    def of_fields(cls, what: str, fields: Iterable[str], because: str, hint: str = "") -> Self:
        """The error that names fields."""
        error = cls(what, because, hint)
        error.fields = tuple(fields)
        return error

    def __reduce__(self) -> Any:
        return *super().__reduce__(), {"fields": self.fields}


class UnknownFamilyError(UndescribedError):
    """A config of a family of models that nobody has described (exit 2)."""


class UnknownNameError(InferplanError):
    """No model, GPU, format or engine of that name; close matches are in the hint (exit 2)."""


class IndivisibleError(UsageError):
    """A parallelism that does not divide what it splits; the divisors that work are in the hint (exit 2)."""


class MissingFactError(InferplanError):
    """A fact nobody has given: a peak for a format, a link, a memory size. Refused, never guessed (exit 2)."""


class NotFiniteError(InferplanError):
    """A price that is no number or infinite: a defect, said with the operator it came from (exit 1)."""

    exit_code = 1


class MissingExtraError(InferplanError):
    """An optional dependency is not installed; the hint is the command that installs it (exit 2)."""


class InfeasibleError(InferplanError):
    """The question is clear and the answer is no: does not fit, no plan meets the SLO (exit 3)."""

    exit_code = 3


class InputFileError(InferplanError):
    """An input file that is missing or cannot be read (exit 4)."""

    exit_code = 4


class NetworkError(InferplanError):
    """The network or the model hub did not answer (exit 5)."""

    exit_code = 5


class ToleranceError(InferplanError):
    """Outside the tolerance asked for (exit 6)."""

    exit_code = 6
