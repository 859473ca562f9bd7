"""``--what-if``: the present load with something changed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from inferplan.errors import UsageError
from inferplan.units import parse_number
from inferplan.watching.twin import Load

_FIELDS = {"rate": "rate", "prompt": "prompt", "output": "output", "hits": "hits", "replicas": "servers"}
_FORM = re.compile(r"([a-z]+)=([x+-]?)(.+)")
_HINT = "replicas=-1, replicas=6, rate=x1.5, prompt=x2, output=x0.5, hits=0"
MOST = 16


@dataclass(frozen=True)
class WhatIf:
    """One change of a load. how: ``x`` times as much, ``+`` or ``-`` so many replicas, else the value itself."""

    text: str
    name: str
    how: str
    value: float

    @classmethod
    def parse(cls, text: str) -> WhatIf:
        """``replicas=-1``, ``prompt=x2``. Raises ``UsageError``."""
        match = _FORM.fullmatch(text.strip())
        if match is None or match[1] not in _FIELDS:
            raise UsageError(f"--what-if {text} is not a change of the load", hint=_HINT)
        name, how = match[1], match[2]
        try:
            value = parse_number(match[3])
        except ValueError as error:
            raise UsageError(f"--what-if {text}: {error}", hint=_HINT) from None
        if how in ("+", "-") and name != "replicas":
            raise UsageError(f"--what-if {text}: only replicas are added or taken away", hint=_HINT)
        whole = name == "replicas" and how != "x"
        wrong = "must be whole" if whole and value != int(value) else ""
        if name == "hits":
            wrong = "" if how == "x" or 0 <= value < 1 else "is a share, in [0, 1)"
        elif not value > 0 or value > 1e9:
            wrong = "must be more than 0, and a billion at most"
        if wrong:
            raise UsageError(f"--what-if {text}: {match[3]} {wrong}", hint=_HINT)
        return cls(text.strip(), name, how, value)

    def of(self, load: Load) -> Load | None:
        """The load with the change; ``None`` where no replica would be left."""
        now = float(getattr(load, _FIELDS[self.name]))
        changed = {"x": now * self.value, "+": now + self.value, "-": now - self.value}.get(self.how, self.value)
        if self.name == "replicas":
            return replace(load, servers=round(changed)) if round(changed) >= 1 else None
        if self.name == "hits":
            return replace(load, hits=min(changed, 0.98))
        least: dict[str, Any] = {_FIELDS[self.name]: max(changed, 1e-3 if self.name == "rate" else 1.0)}
        return replace(load, **least)
