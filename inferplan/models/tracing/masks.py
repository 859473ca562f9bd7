"""Which positions a mask of transformers lets a token see: its own function, asked about real positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_FAR = 20_011
"""A position beyond most windows; where a mask names its own size, thrice that."""


def describe(function: Callable[..., Any] | None, size: int | None) -> tuple[str, int] | None:
    """Kind and size of a mask, as :class:`inferplan.work.ops.Mask` has them; ``None`` where it is none of those."""
    if function is None:
        return None
    far = max(_FAR, 3 * (size or 0) + 7)
    try:
        with torch.device("cpu"):
            rows = [_row(function, position, 3 * far) for position in (far, far + 1)]
    except Exception:
        return None  # it looks at tensors that have no numbers here
    return _named(rows, far, size)


def _row(function: Callable[..., Any], position: int, length: int) -> tuple[int, int, int] | None:
    """First and last position that a query sees, and how many."""
    zero = torch.zeros(1, dtype=torch.long)
    query = torch.tensor([position])
    keys = torch.arange(length)
    seen = torch.as_tensor(function(zero, zero, query, keys))
    if seen.device.type == "meta":
        raise ValueError("the mask depends on a tensor without numbers")
    found = torch.nonzero(seen.expand(length)).flatten()
    return (int(found[0]), int(found[-1]), int(found.numel())) if found.numel() else None


def _named(rows: list[tuple[int, int, int] | None], far: int, size: int | None) -> tuple[str, int] | None:
    first, second = rows
    if first is None or second is None or any(row[2] != row[1] - row[0] + 1 for row in (first, second)):
        return None
    if first[1] > far and first[0] == 0:
        return ("full", 0) if first[1] - far > far else None
    if first[1] > far:
        half = first[1] - far
        return ("band", 2 * half + 1) if far - first[0] == half else None
    if first[1] < far:
        return None
    if first[0] == 0:
        return "causal", 0
    if second[0] == first[0] + 1:
        return "window", first[2]
    return ("chunk", size) if size and first[0] == far // size * size else None
