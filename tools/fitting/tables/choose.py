"""Which rows of the tables count for a device: one kernel of each library, operator and format."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from calibrate.fit import Group, Measurement
from inferplan.devices.constants import IDEAL
from inferplan.devices.hardware import HardwareSpec
from inferplan.estimate.roofline import price
from inferplan.work.ops import Attention, Op
from tools.fitting.tables.row import Row

ENGINES = ("trtllm", "vllm", "sglang")
"""Libraries that an engine brings, in the order in which one without own rows borrows: first the one whose kernels were
all timed inside graphs."""
EAGER = 4e-5
"""Seconds: a kernel whose fastest row exceeds this was bound by its launches from the host, and is left out."""
LARGEST_GROUP = 32
"""Query heads of a KV head beyond which libraries leave their grouped decode kernel for a slower one."""
FEWEST = 40
"""Rows below which a kernel is not fitted on its own."""
SLOW = ("grouped_matmul", "mla.sparse", "dispatch", "combine", "index_select")
"""Kernels that take as long whatever the host does: one thread block of sparse attention goes through all its keys."""
Pool = dict[Group, list[Measurement]]


@dataclass(frozen=True, kw_only=True)
class DeviceTables:
    """One device's rows, by library and kernel.

    impossible, fallbacks: rows left out as physically impossible, and as decode attention of very large groups.
    refused: by library and kernel, what the guard refused and what stands in (:mod:`tools.fitting.tables.guard`).
    """

    hardware: HardwareSpec
    libraries: dict[str, Pool]
    impossible: int
    fallbacks: int
    rows: int
    sources: dict[str, dict[str, str]]
    refused: dict[tuple[str, Group], str] = field(default_factory=dict)


def gather(rows: Iterable[Row], hardware_of: Callable[[str], HardwareSpec]) -> list[DeviceTables]:
    """The rows of each device with one kernel chosen for each library, operator and format.

    Rows faster than the roofline are left out: a cache served them, which serving does not see. Of several kernels of a
    library, the one nearest to the roofline counts (geometric mean over its rows); other head sizes count only
    for the kernel of the usual one. Convolutions of one token and of many are one kernel.
    """
    by_device: dict[str, dict[tuple[str, Group, str], list[Measurement]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_device[row.gpu][row.library, row.measurement.group, row.kernel].append(row.measurement)
    return [_device(hardware_of(gpu), groups) for gpu, groups in by_device.items()]


def _device(hardware: HardwareSpec, groups: Mapping[tuple[str, Group, str], list[Measurement]]) -> DeviceTables:
    candidates: dict[tuple[str, Group], dict[str, tuple[float, list[Measurement]]]] = defaultdict(dict)
    impossible = fallbacks = total = 0
    for (library, group, kernel), rows in groups.items():
        measured = [m for m in rows if not falls_back(m.op)]
        total += len(rows)
        fallbacks += len(rows) - len(measured)
        ratios = [m.seconds / roofline_seconds(m, hardware) for m in measured]
        kept = [m for m, ratio in zip(measured, ratios) if ratio > 1.0]
        impossible += len(measured) - len(kept)
        eager = min((m.seconds for m in measured), default=0.0) > EAGER and not group[0].startswith(SLOW)
        if len(kept) >= FEWEST and not eager:
            distance = float(np.mean(np.log([ratio for ratio in ratios if ratio > 1.0])))
            candidates[library, group][kernel] = distance, kept
    libraries: dict[str, Pool] = defaultdict(dict)
    sources: dict[str, dict[str, str]] = defaultdict(dict)
    for (library, group), kernels in sorted(candidates.items()):
        if group[0] == "conv":
            libraries[library][group] = [m for _, measured in kernels.values() for m in measured]
            continue
        main = sources[library].get(f"{group[0]}/{group[1].rsplit('-d', 1)[0]}")
        chosen = main or min(kernels, key=lambda kernel: kernels[kernel][0])
        if chosen not in kernels:
            continue
        libraries[library][group] = kernels[chosen][1]
        sources[library]["/".join(group)] = chosen
    return DeviceTables(
        hardware=hardware,
        libraries=dict(libraries),
        impossible=impossible,
        fallbacks=fallbacks,
        rows=total,
        sources=dict(sources),
    )


def chosen(rows: list[Measurement], hardware: HardwareSpec) -> list[Measurement]:
    """The rows of one kernel that count; none where they are too few or were bound by their launches."""
    kept = [m for m in rows if m.seconds > roofline_seconds(m, hardware)]
    slow = min((m.seconds for m in rows), default=0.0) > EAGER and not rows[0].op.kernel.startswith(SLOW)
    return [] if slow or len(kept) < FEWEST else kept


def falls_back(op: Op) -> bool:
    """Decode attention with more query heads a KV head than grouped kernels serve (MLA has kernels of its own)."""
    return isinstance(op, Attention) and op.kernel == "attention.decode" and op.heads > LARGEST_GROUP * op.kv_heads


def roofline_seconds(measurement: Measurement, hardware: HardwareSpec) -> float:
    """Seconds that the operators of the kernel take at the datasheet's rates."""
    ops = (measurement.op, *(op for op in measurement.rest if op.kernel == measurement.op.kernel))
    return sum(float(price(op, hardware, IDEAL).total) for op in ops)
