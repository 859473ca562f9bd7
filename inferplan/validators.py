"""What types of values that are read from YAML are annotated with: functions that they go through, limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class BeforeValidator(NamedTuple):
    """In ``Annotated``: what is done with a value before its type is looked at."""

    function: Callable[[Any], Any]


class AfterValidator(NamedTuple):
    """In ``Annotated``: what is done with a value of the right type."""

    function: Callable[[Any], Any]


class Limits:
    """What ``pydantic.Field`` is given."""

    __slots__ = ("given",)

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
