"""Top-k, top-p and penalties: what a step does with logits before it draws a token from them.

An engine filters all rows of a step where one of its requests asks for it, by kernels that differ much
(``configs/filters.yaml``); a penalty is a pointwise map over the logits and the counts of the tokens so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from inferplan.units import Num
from inferplan.work.formats import find_format
from inferplan.work.ops import Elementwise, Op

TOP_K, TOP_P, PENALTIES = "top-k", "top-p", "penalties"
ASKED = (TOP_K, TOP_P, PENALTIES)
"""What requests may sample with, in the order in which it is written."""
FEW = "-few"
"""Behind the name of a kernel: its way with few rows."""


@dataclass(frozen=True, kw_only=True)
class Filters:
    """asked: of :data:`ASKED`. kernel: that keeps the tokens of top-k and top-p, by its name on file; empty where
    neither is asked for. blocks: thread blocks of it that run at once. spread: of the passes that its rows take
    (:class:`Elementwise`). few: the rows below which it goes another way, whose constants are ``KERNEL-few``;
    0 where it has one way. penalty_bytes: that a penalty reads and writes for each logit; 0 without."""

    asked: tuple[str, ...]
    kernel: str = ""
    blocks: int = 1
    spread: float = 0.0
    few: int = 0
    penalty_bytes: float = 0.0

    @property
    def label(self) -> str:
        """The label of the kernel's constants: ``flashinfer.top-k+top-p``."""
        return label_of(self.kernel, "+".join(name for name in self.asked if name != PENALTIES))

    def ops(self, rows: Num, vocab: int, ranks: int) -> Iterator[Op]:
        """What a step of so many rows of logits runs. A step without any runs nothing."""
        logits = find_format("fp32")
        pass_over = partial(
            Elementwise, ranks=ranks, count=np.minimum(rows, 1.0), tokens=rows, width=vocab, base=logits
        )
        if self.penalty_bytes:
            yield pass_over(name="sampling.penalties", reads=self.penalty_bytes / logits.width - 1.0, flops=4.0)
        ways: dict[str, Num] = {self.label: np.where(rows >= self.few, 1.0, 0.0)} if self.kernel else {}
        if self.few:
            ways[label_of(f"{self.kernel}{FEW}", self.label.partition(".")[2])] = np.where(rows < self.few, 1.0, 0.0)
        for form, taken in ways.items():
            if np.any(taken):
                one = pass_over(name="sampling.filter", form=form, blocks=self.blocks, spread=self.spread)
                yield one if np.all(taken) else one.repeated(taken)


def label_of(kernel: str, filters: str) -> str:
    """The label of a kernel's constants for filters that are written with a plus."""
    return f"{kernel}.{filters}"
