"""Numbers as options take them: how click reads each kind, and what it says of others."""

from __future__ import annotations

from math import inf, isfinite, isnan
from typing import TYPE_CHECKING, Any

import click

from inferplan.catalog.people import MOST_LOAD
from inferplan.errors import UsageError
from inferplan.units import MOST, parse_count, parse_number

if TYPE_CHECKING:
    _Any = click.ParamType[Any]
else:
    _Any = click.ParamType  # generic from click 8.3 on


def _require_one(kind: _Any, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> None:
    """Fail for a list where one number is asked for."""
    if value == MOST_LOAD:
        where = "--people, --rate and --in-flight of inferplan plan alone"
        kind.fail(f"{value} is taken by {where} (--gpu 2x-h100 --people most)", param, ctx)
    parts = value.split(",") if isinstance(value, str) else []
    if len(parts) > 1 and all(part.strip() for part in parts):
        said = (
            [f"{parts[0]}.{parts[1]} with a point"]
            if len(parts) == 2 and not isinstance(kind, click.types.IntParamType)
            else []
        )
        whole = all(len(part) == 3 and part.isdigit() for part in parts[1:])  # 2,000
        said = [f"{''.join(parts)} without a comma", *said] if whole else said
        hint = ", or ".join([*said, "ask once for each"])
        kind.fail(f"{value} is {len(parts)} numbers, and this takes one: {hint}", param, ctx)


class _Digits(_Any):
    """A number in the digits 0 to 9: Python reads those of every script."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not value.isascii():
            self.fail(f"{value!r} is not a number", param, ctx)
        _require_one(self, value, param, ctx)
        return super().convert(value, param, ctx)


class WholeNumber(_Digits, click.IntRange):
    """A whole number in a range."""


class Finite(_Digits, click.types.FloatParamType):
    """A finite number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class Within(_Digits, click.FloatRange):
    """A number in a range; NaN, which compares with nothing, is refused too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if isnan(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number


class ShareWithin(Within):
    """A share in a range, such as ``0.99`` or ``99%``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if not isinstance(value, str) or not value.endswith("%"):
            return super().convert(value, param, ctx)
        try:
            number = parse_number(value[:-1]) / 100
        except ValueError:
            self.fail(f"{value!r} is not a share, such as 15% or 0.15", param, ctx)
        return super().convert(number, param, ctx)


class Positive(Finite):
    """A finite number above 0, or of ``low`` and more."""

    def __init__(self, low: float | None = None) -> None:
        self.low = low

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if number <= 0 if self.low is None else number < self.low:
            self.fail(f"{value} is not {'above 0' if self.low is None else f'{self.low:g} or more'}", param, ctx)
        return number


class Count(click.types.IntParamType):
    """A positive count: 4096, 8k, 128Ki."""

    name = "count"

    def __init__(self, low: int = 1, most: int = MOST) -> None:
        self.low, self.most = low, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        _require_one(self, value, param, ctx)
        try:
            number = value if isinstance(value, int) and not isinstance(value, bool) else parse_count(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if number < self.low:
            self.fail(f"{number} must be {self.low} or more", param, ctx)
        if number > self.most:
            self.fail(f"{number} must be at most {self.most:,}", param, ctx)
        return number


class OrMost(_Any):
    """A number of a kind, or the word ``most``."""

    def __init__(self, number: _Any) -> None:
        self.number, self.name = number, number.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == MOST_LOAD else self.number.convert(value, param, ctx)


def share(option: str, text: str | None) -> float | None:
    """The share that an option gives, such as ``5%`` or ``0.05``. Raises ``UsageError``."""
    if text is None:
        return None
    try:
        value = parse_number(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        raise UsageError(f"{option} {text} is not a share", hint="15% or 0.15") from None
    if not 0 <= value < inf:
        raise UsageError(f"{option} {text} must be 0 or more")
    return value
