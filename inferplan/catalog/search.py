"""Which models or devices of the catalogue a user asks to see: words of a name, and comparisons of what is on file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt
from typing import TypeVar

from inferplan.errors import UsageError
from inferplan.units import parse_count

Value = float | str | tuple[str, ...] | None
Number = Callable[[str], float]
Item = TypeVar("Item")
_CONDITION = re.compile(r"([a-z_]+)(<=|>=|<|>|=)(.+)")
_COMPARE: dict[str, Callable[[float, float], bool]] = {"<=": le, ">=": ge, "<": lt, ">": gt, "=": eq}
_BILLION = re.compile(r"(\d+(?:\.\d+)?) ?([mbt])", re.IGNORECASE)
_SCALE = {"m": 1e6, "b": 1e9, "t": 1e12}


@dataclass(frozen=True, kw_only=True)
class Filter:
    """One condition. ``compare`` is empty for a word that the name, an alias or the family must hold."""

    field: str = ""
    compare: str = ""
    value: Value = None

    def holds(self, facts: Mapping[str, Value], words: str) -> bool:
        """Whether it holds; a number that is not on file meets no condition."""
        if not self.compare:
            return str(self.value) in words
        found = facts[self.field]
        if isinstance(found, tuple):
            return str(self.value).lower() in found
        if isinstance(self.value, str) or isinstance(found, str):
            return found is not None and str(self.value).lower() == str(found).lower()
        return found is not None and isinstance(self.value, float) and _COMPARE[self.compare](found, self.value)


def parse_filter(text: str, texts: tuple[str, ...], numbers: Mapping[str, Number]) -> Filter:
    """``"parameters<40B"``, ``"context>=128k"``, ``"licence=mit"`` or a word.

    texts: the fields that are words. numbers: the others, each with what reads its number.

    Raises ``UsageError`` for a field that is none, a number that is none, and a comparison of words.
    """
    if not text.strip():
        raise UsageError(
            "--filter is empty", hint="a word of the name, or a condition such as parameters<40B or memory>=80GB"
        )
    condition = _CONDITION.fullmatch(text.strip().replace(" ", ""))
    if condition is None:
        return Filter(value=text.strip().lower())
    field, compare, value = condition.groups()
    if field in texts:
        if compare != "=":
            raise UsageError(f"cannot read --filter {text!r}", because=f"{field} is a word", hint=f"{field}={value}")
        return Filter(field=field, compare=compare, value=value)
    if field not in numbers:
        known = ", ".join([*texts, *numbers])
        raise UsageError(f"no field named {field!r} to filter by", hint=f"a word of the name, or one of {known}")
    try:
        return Filter(field=field, compare=compare, value=numbers[field](value))
    except (ValueError, UsageError) as error:
        raise UsageError(f"cannot read the number of --filter {text!r}", because=str(error)) from None


def parse_size(value: str) -> float:
    """``70B``, ``1.5B``, ``128k``, ``262144``. Raises ``ValueError`` for anything else."""
    billions = _BILLION.fullmatch(value)
    return float(billions[1]) * _SCALE[billions[2].lower()] if billions else float(parse_count(value))
