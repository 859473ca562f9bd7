"""LoRA adapters (2106.09685) as they are asked for, and as operators see them.

How slots are sized is that of vLLM 0.20.2 (``vllm/lora``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inferplan.errors import UsageError
from inferplan.fields import Text, Whole, ask, require_limits
from inferplan.units import Num
from inferplan.work.formats import Format

MODULES = {name: f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")}
"""Matrices that an adapter may change, and what checkpoints call them."""
MERGED = (frozenset({"q", "k", "v"}), frozenset({"gate", "up"}))
"""Matrices that engines multiply as one: a slot holds all of them as soon as one is adapted
(``MergedQKVParallelLinearWithLoRA`` and ``MergedColumnParallelLinearWithLoRA`` of vLLM, ``column_parallel_linear.py``).
"""
USUAL_SLOTS, USUAL_RANK = 1, 16
"""vLLM's defaults of ``max_loras`` (``config/lora.py:37``) and ``max_lora_rank``."""


def parse_modules(text: str) -> tuple[str, ...]:
    """Matrices by name, ``q,v`` or ``q_proj,v_proj``. Raises ``UsageError`` for a list of nothing."""
    modules = tuple(name.strip().removesuffix("_proj") for name in text.split(",") if name.strip())
    if not modules:
        raise UsageError(f"--lora-modules {text!r} names nothing", hint="--lora-modules q,v")
    return modules


@dataclass(frozen=True, kw_only=True)
class LoraAsked:
    """What a user asks for; nothing where neither ``rank`` nor ``folder`` is given.

    rank: of a slot (``max_lora_rank``). modules: of :data:`MODULES`; empty: every linear layer, as vLLM does
    (``lora/utils.py``, ``get_supported_lora_modules``). slots: adapters in device memory (``max_loras``). active:
    different ones in a batch; ``None`` for as many as there are slots. folder: an adapter as PEFT saves it.
    """

    rank: int | None = ask(
        "--lora-rank",
        Whole(),
        f"Serve LoRA adapters of this rank (max_lora_rank) [with --loras {USUAL_RANK}, as vLLM].",
        None,
    )
    modules: tuple[str, ...] = ask(
        "--lora-modules",
        Text(parse_modules),
        f"Matrices that the adapters change, of {','.join(MODULES)}. [every linear layer]",
        (),
        metavar="LIST",
    )
    slots: int | None = ask("--max-loras", Whole(), "Adapters in device memory at once. [1, as vLLM]", None)
    active: int | None = ask("--active-loras", Whole(0), "Different adapters in a batch, at most. [--max-loras]", None)
    folder: str | None = ask(
        "--lora-folder", Text(), "An adapter as saved by PEFT, which states rank and matrices.", None, metavar="DIR"
    )

    def __post_init__(self) -> None:
        if not self.any and (self.modules or self.slots is not None or self.active is not None):
            raise UsageError("no adapters were asked for", hint="--lora-rank 16, or --lora-folder DIR")
        require_limits(self)
        unknown = [name for name in self.modules if name not in MODULES]
        if unknown:
            raise UsageError(
                f"--lora-modules: {unknown[0]!r} is not a matrix that adapters support",
                because="embeddings, the head, routed experts and recurrent layers are not priced with adapters",
                hint=f"of {','.join(MODULES)}",
            )
        if self.active is not None and self.active > (self.slots or USUAL_SLOTS):
            raise UsageError(
                f"{self.active} adapters in a batch need as many slots, and there are {self.slots or USUAL_SLOTS}",
                hint=f"--max-loras {self.active}",
            )

    @property
    def any(self) -> bool:
        """Whether there are adapters at all."""
        return self.rank is not None or self.folder is not None


@dataclass(frozen=True, kw_only=True)
class StoredAdapter:
    """An adapter in a folder: the rank of each matrix that it adapts, and what its file holds."""

    name: str
    ranks: Mapping[str, int]
    elements: int
    size: int
    dtypes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """Adapters of one rank beside a model.

    rank: of a slot. modules: matrices that adapters change. slots: adapters in device memory. active: different ones in
    a batch, at most. format: of their parameters. ranks: those of one adapter by matrix, which may change fewer than
    slots have room for; none: as the slot. in_step: exactly ``active`` of them are in every step; else as many as its
    sequences allow.
    """

    rank: int
    modules: frozenset[str]
    slots: int
    active: float
    format: Format
    ranks: Mapping[str, int] = field(default_factory=dict)
    stored: StoredAdapter | None = None
    in_step: bool = False
    different: Callable[[Num], Num] | None = None
    """How many different adapters so many sequences have on average; ``None``: each one of its own."""

    def touched(self, sequences: Num) -> Num:
        """Different adapters of a step with so many sequences: no more than it has, and no more than slots."""
        if self.in_step:
            return self.active
        least: Num = np.minimum(self.active, sequences if self.different is None else self.different(sequences))
        return float(least) if np.ndim(least) == 0 else least

    @property
    def held(self) -> frozenset[str]:
        """The matrices that a slot has room for: those adapted, and what is merged with them."""
        return self.modules.union(*(group for group in MERGED if group & self.modules))

    @property
    def own(self) -> dict[str, int]:
        """The rank of one adapter by matrix."""
        return dict(self.ranks) or dict.fromkeys(self.modules, self.rank)

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON holds it."""
        return {
            "rank": self.rank,
            "modules": [name for name in MODULES if name in self.modules],
            "max_loras": self.slots,
            "active": self.active,
            "format": self.format.name,
            "folder": None if self.stored is None else self.stored.name,
        }

    def describe(self) -> str:
        """What they are, in words."""
        names = ", ".join(name for name in MODULES if name in self.modules)
        return f"rank {self.rank} on {names}; {self.slots} slots, up to {self.active:g} in a batch"
