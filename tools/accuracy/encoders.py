"""Attention both ways, of towers and encoders: its constants on shapes and on GPUs that they were not fitted to.

``docs/accuracy-encoders.md``; ``python -m tools.accuracy encoders SHARED`` writes it.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from calibrate.fit import TERMS_OF, fit_stack, split, stack
from inferplan.catalog.files import load_hardware
from inferplan.devices.constants import MEMORY_CLASSES, memory_class
from inferplan.units import Array
from tools.fitting.tables.choose import gather
from tools.fitting.tables.read import ENCODER, read_table
from tools.fitting.tables.transfer import carried, pooled

KERNEL = "attention.encoder"
Ratios = dict[tuple[str, str], list[Array]]
"""Measured over predicted seconds, by GPU and engine."""
HEAD = """# Accuracy of attention both ways

Computed on DATE by `python -m tools.accuracy encoders SHARED` from the kernel tables of towers' attention
(`releases/encoder_attention`: bfloat16, 1 to 64 sequences of 26 to 65,536 positions, 1 to 32 heads of 64, 72 and 80).
The newest release of each engine counts, and rows of more than 16 positions that are no faster than the roofline.
Errors are of predicted over measured, in percent.

*Unseen shapes*: constants of the same GPU and engine, fitted to four fifths of the shapes. *Unseen GPU*: constants
fitted to the other GPUs with the same class of memory, none of this one; L40S is alone in its class and gets those of
the three others.
"""
TAIL = """
Three constants beside the two shares and the fixed part: `depth` (keys that one thread block takes one after the
other), `spread` (multiprocessors without a block) and `blocks` (query blocks of a multiprocessor). SGLang's kernel on
L40S is Triton's where the others run a FlashAttention, which no other GPU tells of. GPUs without a line here take
their constants for prompts, marked as transferred.
"""


def encoders_page(shared: Path, today: str) -> str:
    """The page, of the reference data in ``shared``."""
    seen, unseen = encoder_ratios(shared / "measured" / "kernels")
    lines = [
        "| GPU | engine | rows | unseen shapes: median | unseen GPU: median | 90 % below |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for gpu, engine in sorted(unseen):
        here, there = (np.concatenate(ratios[gpu, engine]) for ratios in (seen, unseen))
        lines.append(f"| {gpu} | {engine} | {len(there):,} | {_median(here)} | {_median(there)} | {_most(there)} |")
    every = [np.concatenate([part for parts in ratios.values() for part in parts]) for ratios in (seen, unseen)]
    lines.append(f"| all | all | {len(every[1]):,} | {_median(every[0])} | {_median(every[1])} | {_most(every[1])} |")
    return HEAD.replace("DATE", today) + "\n" + "\n".join(lines) + "\n" + TAIL


def encoder_ratios(folder: Path) -> tuple[Ratios, Ratios]:
    """Measured over predicted on shapes that the constants were not fitted to, and on GPUs that they were not."""
    devices, terms = gather(read_table(folder, ENCODER), load_hardware), TERMS_OF[KERNEL]
    seen: Ratios = defaultdict(list)
    unseen: Ratios = defaultdict(list)
    for (engine, _), measured in sorted(pooled(devices).items()):
        for hardware, rows in measured:
            train, test = split(rows)
            fit = fit_stack(stack(train, hardware, terms))
            held_out = stack(test, hardware, tuple(fit.terms))
            seen[hardware.name, engine].append(held_out.seconds / held_out.predict(fit))
        for memory in MEMORY_CLASSES:
            alike = {hardware.name for hardware, _ in measured if memory_class(hardware) == memory}
            stacks = {hardware.name: stack(rows, hardware, terms) for hardware, rows in measured}
            own = {name: one for name, one in stacks.items() if name in alike}
            other = {name: one for name, one in stacks.items() if name not in alike}
            for gpu, (stacked, fit) in carried(own, other).items():
                unseen[gpu, engine].append(stacked.seconds / stacked.predict(fit))
    return seen, unseen


def _off(ratios: Array) -> Array:
    off: Array = np.abs(1.0 / ratios - 1.0)
    return off


def _median(ratios: Array) -> str:
    return f"{100 * float(np.median(_off(ratios))):.1f}"


def _most(ratios: Array) -> str:
    return f"{100 * float(np.quantile(_off(ratios), 0.9)):.0f}"
