"""What engines take of their cache for layers that see a window or a chunk, by the rule of the version.

The rules are those of ``windows`` in ``configs/engines/*.yaml``; docs/formulas/memory.md has the formulas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from inferplan.devices.engine import Windows
from inferplan.models.layers import Cache
from inferplan.units import Num
from inferplan.work.ops import Mask

_ALIKE = 1.5
"""Kinds of layer whose numbers are within this factor make one group each, of the larger number (vLLM)."""
Kind = tuple[float, str, int]
"""Layers whose caches share a block table: elements of a token, and what they see."""


def is_bounded(mask: Mask) -> bool:
    """Whether tokens fall out of sight."""
    return mask.kind in ("window", "chunk")


def reach(mask: Mask, tokens: Num, flight: Num) -> Num:
    """Tokens that a layer of one sequence holds at most while ``flight`` of them are computed or not yet settled.

    ``min(window - 1 + flight, tokens)``, ``min(chunk + flight, tokens)``; never less than what stays when they are
    settled (vLLM v1/kv_cache_interface.py, ``max_admission_blocks_per_request``).
    """
    if not is_bounded(mask):
        return tokens
    before = mask.size - 1 if mask.kind == "window" else mask.size
    held: Num = np.minimum(tokens, np.maximum(before + flight, mask.size))
    return held


def in_pages(windows: Windows, mask: Mask, tokens: Num, block: int) -> Num:
    """The same in whole blocks; a window that starts inside a block takes one more."""
    if block == 1:
        return tokens
    whole: Num = (np.ceil(tokens / block) + (windows.spare_blocks if mask.kind == "window" else 0)) * block
    return whole


def kinds(caches: Iterable[tuple[Cache, int]]) -> Counter[Kind]:
    """Layers of each kind that caches tokens."""
    found: Counter[Kind] = Counter()
    for cache, count in caches:
        if cache.per_token:
            found[kind_of(cache)] += count
    return found


def kind_of(cache: Cache) -> Kind:
    return cache.per_token / cache.rate, cache.mask.kind, cache.mask.size


def padding(model: Counter[Kind], stage: Counter[Kind]) -> dict[Kind, float]:
    """Layers that are paid for each layer of a kind on a stage, where all block tables cover equally many layers.

    vLLM v1/core/kv_cache_planning.py, ``_get_kv_cache_groups_uniform_page_size``: a group has as many layers as the
    rarest kind, or as the commonest where that has less than 1.5 times as many; the last group of each is filled up.
    """
    if len({kind[1:] for kind in model}) < 2:
        return dict.fromkeys(stage, 1.0)
    fewest, most = min(model.values()), max(model.values())
    size = most if most < fewest * _ALIKE else fewest
    groups = {kind: -(-count // size) for kind, count in model.items()}
    width = max(-(-count // groups[kind]) for kind, count in stage.items())
    return {kind: groups[kind] * width / count for kind, count in stage.items()}
