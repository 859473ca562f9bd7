"""Attention as torch can run it.

Queries are ``[batch, new, heads, d]``; keys and values ``[batch, length, kv_heads, d]``, the reachable ones only, the
last of which belongs to the last query.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from inferplan.work.ops import Mask

FLASH_HEAD = 256
"""The widest head of torch's flash attention."""
_GATHERED = 64
"""Queries whose keys are gathered at once."""


def visible(mask: Mask, new: int, past: int, device: str) -> torch.Tensor:
    """Which of all ``past + new`` keys each new token sees."""
    length = past + new
    query = torch.arange(past, length, device=device)[:, None]
    key = torch.arange(length, device=device)[None, :]
    if mask.kind == "full":
        return torch.ones(new, length, dtype=torch.bool, device=device)
    if mask.kind == "band":
        return (key - query).abs() <= mask.size // 2
    seen: torch.Tensor = key <= query
    if mask.kind == "window":
        seen = seen & (key > query - mask.size)
    if mask.kind == "chunk":
        seen = seen & (key // mask.size == query // mask.size)
    return seen


def chosen(places: torch.Tensor, keys: int) -> torch.Tensor:
    """Which of so many keys each query sees, of the places that were chosen for it; -1 is none."""
    seen = torch.zeros(len(places), keys + 1, dtype=torch.bool, device=places.device)
    return seen.scatter_(1, torch.where(places < 0, keys, places), True)[:, :keys]


def chosen_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Attention of each query to the keys of ``places [new, chosen]``, gathered for some queries at a time."""
    group, parts = q.shape[2] // k.shape[2], []
    for at, own in zip(q.split(_GATHERED, dim=1), places.split(_GATHERED)):
        keys, values = (part[:, own.clamp_min(0)] for part in (k, v))  # [batch, queries, chosen, kv_heads, d]
        rows = at.unflatten(2, (k.shape[2], group))
        scores = torch.einsum("bqgrd,bqcgd->bqgrc", rows, keys) * q.shape[-1] ** -0.5
        shares = torch.softmax(scores.masked_fill((own < 0)[:, None, None], float("-inf")), dim=-1)
        parts.append(torch.einsum("bqgrc,bqcgd->bqgrd", shares, values).flatten(2, 3))
    return torch.cat(parts, dim=1)


def explicit_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor | None) -> torch.Tensor:
    """Two products and a softmax, with the scores in memory. ``seen`` is ``None`` where every key is visible."""
    batch, new, heads, width = q.shape
    kv_heads, group = k.shape[2], heads // k.shape[2]
    rows = q.view(batch, new, kv_heads, group, width).permute(0, 2, 3, 1, 4)
    rows = rows.reshape(batch, kv_heads, group * new, width)
    scores = (rows @ k.permute(0, 2, 3, 1)) * width**-0.5
    if seen is not None:
        scores = scores.view(batch, kv_heads, group, new, -1).masked_fill(~seen, float("-inf"))
        scores = scores.view(batch, kv_heads, group * new, -1)
    out = torch.softmax(scores, dim=-1) @ v.transpose(1, 2)
    return out.view(batch, kv_heads, group, new, -1).permute(0, 3, 1, 2, 4).reshape(batch, new, heads, -1)


def flash_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask) -> torch.Tensor:
    """The flash kernel behind scaled dot-product attention, which knows windows and counts back from the last key."""
    causal = mask.kind in ("causal", "window") and q.shape[1] > 1
    left = mask.size - 1 if mask.kind == "window" and causal else None
    band = mask.size // 2 if mask.kind == "band" else None
    sides = {"window_size_left": left if band is None else band, "window_size_right": band}
    outputs = torch.ops.aten._flash_attention_forward(
        q, k, v, None, None, q.shape[1], k.shape[1], 0.0, causal, False, **sides
    )
    result: torch.Tensor = outputs[0]
    return result


def library_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask, repeat: bool = False
) -> torch.Tensor:
    """Scaled dot-product attention as torch dispatches it, without a mask tensor wherever the mask allows.

    repeat: copy the keys and values of a KV head for each of its query heads: on CUDA only flash attention knows that
    several share them, and without it torch would write the scores to memory.
    """
    batch, new, heads, width = q.shape
    length, kv_heads = k.shape[1], k.shape[2]
    if repeat and new > 1 and heads != kv_heads:
        k, v = (part.repeat_interleave(heads // kv_heads, dim=2) for part in (k, v))
        kv_heads = heads
    keys, values = k.transpose(1, 2), v.transpose(1, 2)
    if new == 1:  # every kept key is visible: the queries of one KV head become the rows of one product
        rows = q.view(batch, kv_heads, heads // kv_heads, width)
        return F.scaled_dot_product_attention(rows, keys, values).reshape(batch, 1, heads, -1)
    if mask.kind == "window" and new > mask.size:
        return _banded(q, k, v, mask)
    grouped = heads != kv_heads
    seen = None
    causal = mask.kind not in ("full", "band") and new == length
    if mask.kind == "window" and causal:
        causal = new <= mask.size
    if mask.kind != "full" and not causal:
        seen = visible(mask, new, length - new, q.device.type)
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), keys, values, attn_mask=seen, is_causal=causal, enable_gqa=grouped
    )
    return out.transpose(1, 2)


def _banded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask) -> torch.Tensor:
    """A window where the library knows none: as many queries at a time as the window is long."""
    new, length = q.shape[1], k.shape[1]
    parts = []
    for start in range(0, new, mask.size):
        stop = min(start + mask.size, new)
        end = length - new + stop
        first = max(0, end - (stop - start) - mask.size + 1)
        parts.append(library_attention(q[:, start:stop], k[:, first:end], v[:, first:end], mask))
    return torch.cat(parts, dim=1)


def pieces(new: int, past: int, size: int) -> list[tuple[int, int, int]]:
    """A chunked mask cut at its chunks: first query, query after the last, and keys of the chunk before the first."""
    cut, at = [], 0
    while at < new:
        before = (past + at) % size
        stop = min(new, at + size - before)
        cut.append((at, stop, before))
        at = stop
    return cut
