"""A grid, as a table for people and columns for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from inferplan.answers.sweep import DEGREES, SPREAD, Sweep
from inferplan.catalog.files import load_model
from inferplan.columns import Block, Column, one_value, plain_values
from inferplan.table import Report, Table
from inferplan.units import format_time


@dataclass(frozen=True)
class _Cells:
    """The cells of the table, made when it is printed: the axes that vary, and the figures of what can run."""

    blocks: Sequence[Block]
    varied: Sequence[str]

    def __len__(self) -> int:
        return sum(block.size for block in self.blocks)

    def __contains__(self, row: object) -> bool:
        return any(row == other for other in self)

    def __iter__(self) -> Iterator[list[str]]:
        for block in self.blocks:
            for axes, figures in zip(block.parts(self.varied, _texts), block.parts([*_FIGURES, "status"], _values)):
                for row in zip(*axes, *figures):
                    yield self._row(row)

    def _row(self, row: tuple[Any, ...]) -> list[str]:
        *axes, first, each, rate, share, status = row
        if status != "ok":
            return [*axes, "-", "-", "-", "-", status]
        tpot = "-" if each is None else format_time(each)
        return [*axes, format_time(first), tpot, f"{rate:,.1f}", f"{share:,.1f}", status]


_NONE = one_value("", 3)
_FIGURES = ("ttft_s", "tpot_s", "output_tokens_per_s", "output_tokens_per_s_per_device")
_LOAD = ("batch", "prompt_tokens", "output_tokens")
NAMED = ("model", "gpu", "quant", "engine")
"""Axes whose values say what they are."""
AXES = (*NAMED, *DEGREES, *SPREAD.values(), "draft_tokens", *_LOAD)


def _values(column: Column) -> list[Any]:
    return plain_values(column)


def _texts(column: Column) -> list[str]:
    return list(map(str, plain_values(column)))


def sweep_report(result: Sweep) -> Report:
    """The points that can exist as a table of the axes that vary, and how many cannot."""
    blocks = result.columns.blocks
    priced = [block for block in blocks if "ttft_s" in block.columns]
    refused = result.impossible
    held = [{axis: block.columns[axis] for axis in AXES if axis in block.columns} for block in blocks]
    varied = [axis for axis in AXES if len({text for axes in held for text in _texts(axes.get(axis, _NONE))}) > 1]
    varied = varied or ["model", "gpu"]
    simulated = any("verdict" in block.columns for block in blocks)
    ttft = "TTFT at the server" if simulated else "TTFT alone"
    names = {name for axes in held for name in _texts(axes.get("model", _NONE)) if name}
    encoders = {name for name in names if load_model(name).encodes}
    counted = "requests" if encoders == names else "tokens"
    columns = [*varied, ttft, "TPOT", f"{counted}/s", f"{counted}/s/device", "status"]
    cells = _Cells(priced, varied)
    right = frozenset({*columns[len(varied) : -1], "batch", "prompt_tokens", "output_tokens"})
    table = Table(title=f"{len(cells)} points", columns=columns, rows=cells, right=right)
    notes = [f"{count} points cannot exist: {status}" for status, count in refused.items()]
    notes.append(
        "simulated closed loops of --batch users with one request each at a time; means (p95 in JSON and CSV)"
        if simulated
        else f"static batches: TTFT of the batch alone, no server, no queue; {counted} are "
        f"{'those' if encoders == names else 'output tokens'} of all replicas"
    )
    if encoders and encoders != names:
        notes.append(f"{', '.join(sorted(encoders))}: nothing is generated, and a request counts as one token")
    return Report(record={"points": result.columns}, tables=[table], notes=notes, rows=result.columns)
