"""What types are annotated with where a value is read from YAML: functions that it goes through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class BeforeValidator(NamedTuple):
    """In ``Annotated``: what is done with a value before its type is looked at."""

    function: Callable[[Any], Any]


class AfterValidator(NamedTuple):
    """In ``Annotated``: what is done with a value of the right type."""

    function: Callable[[Any], Any]
