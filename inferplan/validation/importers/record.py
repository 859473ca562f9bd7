"""An object of a benchmark file, whose values are checked where they are read."""

from __future__ import annotations

import math
from typing import Any

from inferplan.units import MOST


class Malformed(ValueError):
    """A value that is not of the kind that its tool writes; the text names its place in the record."""


class Record(dict[str, Any]):
    """A JSON object and where it stands in its record: ``benchmarks[1].metrics``."""

    def __init__(self, data: dict[str, Any], where: str = "") -> None:
        super().__init__(data)
        self.where = where

    def object(self, name: str) -> Record:
        """The object of a name; an empty one where there is none. Raises ``Malformed`` for what is no object."""
        value = self.get(name)
        return self._object({} if value is None else value, self._place(name))

    def objects(self, name: str) -> list[Record]:
        """The objects of a list. Raises ``Malformed`` for what is no list of objects."""
        value = self.get(name)
        if not isinstance(value, list):
            raise Malformed(f"{self._place(name)} is {show_value(value)}, not a list")
        return [self._object(one, f"{self._place(name)}[{index}]") for index, one in enumerate(value)]

    def number(self, name: str) -> float | None:
        """A finite number of 0 or more; ``None`` where there is none, NaN or infinity. Raises ``Malformed`` for what is
        no number."""
        value = self.get(name)
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MOST:
            raise Malformed(f"{self._place(name)} is {show_value(value)}, not a number of 0 or more")
        return value

    def count(self, name: str) -> int | None:
        """A whole number of 0 or more; ``None`` where there is none. Raises ``Malformed`` for another value."""
        value = self.number(name)
        if value is not None and value != int(value):
            raise Malformed(f"{self._place(name)} is {show_value(value)}, not a whole number")
        return None if value is None else int(value)

    def _object(self, value: Any, where: str) -> Record:
        if not isinstance(value, dict):
            raise Malformed(f"{where} is {show_value(value)}, not an object")
        return Record(value, where)

    def _place(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name


def show_value(value: Any) -> str:
    """A value as an error shows it."""
    if isinstance(value, int) and abs(value) > MOST:
        return "a number that large"
    return "nothing" if value is None else f"{value!r:.40}"
