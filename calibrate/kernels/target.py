"""What the kernels depend on: the kind of device and its generation."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Target:
    """kind: torch's name of the device. sm: compute capability of an NVIDIA GPU times ten (90 for H100). gfx: the
    architecture of an AMD GPU (``gfx942`` for MI300X)."""

    kind: str
    sm: int = 0
    gfx: str = ""

    def __str__(self) -> str:
        return f"SM{self.sm}" if self.sm else self.gfx or {"cpu": "a CPU", "mps": "MPS"}.get(self.kind, self.kind)

    @property
    def flash(self) -> bool:
        """Whether torch's own flash attention runs: it is compiled for SM80 and later, and for CDNA."""
        return self.sm >= 80 or self.gfx.startswith("gfx9")

    @property
    def fnuz(self) -> bool:
        """Whether its fp8 has no infinities and no negative zero (CDNA 3): the same bits are other numbers."""
        return self.gfx.startswith("gfx94")

    @property
    def base(self) -> str:
        """The 16-bit format of whole models: bf16, or fp16 where there are no bf16 units (before SM80)."""
        return "fp16" if self.kind == "cuda" and 0 < self.sm < 80 else "bf16"


def target_of(kind: str) -> Target:
    """The device of a kind that torch sees first."""
    if kind != "cuda":
        return Target(kind=kind)
    found = torch.cuda.get_device_properties(0)
    if torch.version.hip:
        return Target(kind=kind, gfx=found.gcnArchName.split(":")[0])
    return Target(kind=kind, sm=10 * found.major + found.minor)
