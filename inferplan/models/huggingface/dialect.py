"""What a family of configs means: the table's row, and what a row builds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from inferplan.models.huggingface.reader import Reader

Flag = bool | tuple[str, bool]
"""A constant, or the field that says so with its value when absent."""
Layer = dict[str, Any]
"""A layer as a YAML writes it: repeat, mixer, ffn, norms, parallel."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """One family.

    build: reads the config into the mapping of a ModelSpec. tied: whether head and embedding are one table when the
    config does not say. norm, norms, parallel, embedding_norm, head_bias: as in ModelSpec and LayerGroup. qkv_bias,
    out_bias, mlp_bias: a constant or the field that says so. gated, activation: the feed-forward. qk_norm: its style
    and the switch for it. windows: which layers slide (``layer_types`` wins). kv_default: query heads are the KV heads
    when the config does not say. head_dim: it must be given. mtp: ``num_nextn_predict_layers`` modules, with their own
    copies of the vocabulary tables or with the model's. fixed: fields with the only values that are understood.
    ignored: further fields that do not matter to this family. whole: it reads the tables in its config itself, that of
    a language model too.
    """

    build: Callable[[Reader, Dialect], dict[str, Any]]
    tied: bool = False
    norm: str = "rms"
    norms: int | None = None
    parallel: bool = False
    embedding_norm: bool = False
    head_bias: Flag = False
    qkv_bias: Flag = False
    out_bias: Flag = False
    mlp_bias: Flag = False
    gated: bool = True
    activation: str = ""
    rotary: bool = True
    qk_norm: tuple[str, Flag] = ("none", False)
    windows: Callable[[Reader, int], list[int | None]] | None = None
    kv_default: bool = False
    head_dim: bool = False
    positions: int | None = None
    ffn_factor: int | None = None
    mtp: Literal["none", "own", "shared"] = "none"
    moe: Callable[[Reader, Dialect, int], list[Layer | None]] | None = None
    attention: dict[str, Any] = field(default_factory=dict)
    fixed: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    whole: bool = False


def untimed(why: str, **fields: Any) -> Layer:
    """A part that is counted and has no time."""
    return {"kind": "untimed", "why": why, **fields}


def flag(reader: Reader, value: Flag) -> bool:
    """A constant, or what the config says."""
    return value if isinstance(value, bool) else reader.flag(*value)


def compress(layers: list[Layer]) -> list[Layer]:
    """Equal neighbours and repeated patterns written once: 62 layers of 5 local and 1 global become two groups."""
    groups: list[Layer] = []
    start = 0
    while start < len(layers):
        period, repeat = _longest(layers, start)
        unit = layers[start : start + period]
        if period == 1:
            groups.append({"repeat": repeat, **unit[0]} if repeat > 1 else dict(unit[0]))
        else:
            groups.append({"repeat": repeat, "pattern": compress(unit)})
        start += period * repeat
    return groups


def _longest(layers: list[Layer], start: int) -> tuple[int, int]:
    """The period and repeats that cover most layers from ``start``; the shorter period where they cover the same."""
    best = (1, 1)
    rest = len(layers) - start
    for period in range(1, rest // 2 + 1):
        repeat = 1
        unit = layers[start : start + period]
        while layers[start + repeat * period : start + (repeat + 1) * period] == unit:
            repeat += 1
        if repeat > 1 and period * repeat > best[0] * best[1]:
            best = (period, repeat)
    return best
