"""An explanation, as tables for people and a record for programs."""

from __future__ import annotations

from inferplan.answers.explain import Explanation
from inferplan.table import Report, Table

WHICH = {
    "ttft": " of the batch alone; at the server: ttft_at_server",
    "ttft_at_server": " of one request on an idle server; of the batch alone: ttft",
}
"""Of numbers that are easily taken for another, which they are."""


def explanation_report(found: Explanation) -> Report:
    """An explanation for people, and as JSON."""
    facts = [["value", found.shown], ["formula", found.formula], ["numbers", found.substituted], ["page", found.page]]
    tables = [Table(title=found.name + WHICH.get(found.name, ""), columns=["", ""], rows=facts)]
    if found.parts:
        rows = [[part.name, part.value, part.how] for part in found.parts]
        tables.append(Table(title="made of", columns=["part", "value", "how"], rows=rows))
    if found.inputs:
        rows = [[entry.symbol, entry.value, entry.origin] for entry in found.inputs]
        tables.append(Table(title="inputs", columns=["input", "value", "where"], rows=rows))
    shares = ["" if one.share is None else f"{one.share:.0%}" for one in found.rests_on]
    rows = [[one.part.replace("_", " "), one.kind, share, one.said] for one, share in zip(found.rests_on, shares)]
    tables.append(Table(title="rests on", columns=["part", "kind", "share", "what"], rows=rows))
    sources = list(dict.fromkeys(entry.source for entry in found.inputs if entry.source))
    record = {
        "number": found.name,
        "value": found.value,
        "unit": found.unit,
        "formula": found.formula,
        "substituted": found.substituted,
        "page": found.page,
        "inputs": [vars(entry) for entry in found.inputs],
        "parts": {part.name: part.value for part in reversed(found.parts)},
        "made_of": [vars(part) for part in found.parts],
        "rests_on": [vars(one) for one in found.rests_on],
    }
    return Report(record=record, tables=tables, notes=[f"source: {source}" for source in sources])
