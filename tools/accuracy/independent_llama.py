"""A Llama in plain torch that shares no line with the calibrator: what whole-model predictions are held against.

Written as one would write it by hand: separate projections, a preallocated cache of ``[batch, kv_heads, length, d]``,
``F.scaled_dot_product_attention`` with ``enable_gqa``, rotary embedding by halves. No shape of it is ever measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a Llama."""

    width: int = 2048
    layers: int = 4
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 64
    inner: int = 8192
    vocab: int = 32000


class RmsNorm(nn.Module):
    """Root mean square norm with a weight for each channel (1910.07467)."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-5)


class Attention(nn.Module):
    """Grouped queries over a cache that the caller keeps."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        super().__init__()
        self.shape = shape
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.wq = nn.Linear(shape.width, queries, bias=False, dtype=dtype)
        self.wk = nn.Linear(shape.width, keys, bias=False, dtype=dtype)
        self.wv = nn.Linear(shape.width, keys, bias=False, dtype=dtype)
        self.wo = nn.Linear(queries, shape.width, bias=False, dtype=dtype)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, past: int, turn: Callable[[Tensor], Tensor]) -> Tensor:
        batch, new, _ = x.shape
        size = self.shape.head_dim
        q = turn(self.wq(x).view(batch, new, self.shape.heads, size).transpose(1, 2))
        k = turn(self.wk(x).view(batch, new, self.shape.kv_heads, size).transpose(1, 2))
        v = self.wv(x).view(batch, new, self.shape.kv_heads, size).transpose(1, 2)
        keys[:, :, past : past + new] = k
        values[:, :, past : past + new] = v
        seen = slice(0, past + new)
        mixed = F.scaled_dot_product_attention(
            q, keys[:, :, seen], values[:, :, seen], is_causal=new > 1 and past == 0, enable_gqa=True
        )
        return self.wo(mixed.transpose(1, 2).reshape(batch, new, -1))


class FeedForward(nn.Module):
    """The gated feed-forward (2002.05202 eq. 6)."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.inner, bias=False, dtype=dtype)
        self.up = nn.Linear(shape.width, shape.inner, bias=False, dtype=dtype)
        self.down = nn.Linear(shape.inner, shape.width, bias=False, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and around a residual."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        super().__init__()
        self.before = RmsNorm(shape.width, dtype)
        self.attention = Attention(shape, dtype)
        self.between = RmsNorm(shape.width, dtype)
        self.inner = FeedForward(shape, dtype)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, past: int, turn: Callable[[Tensor], Tensor]) -> Tensor:
        x = x + self.attention(self.before(x), keys, values, past, turn)
        return x + self.inner(self.between(x))


class Llama(nn.Module):
    """Token numbers in, the next token of every sequence out."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        super().__init__()
        self.shape, self.dtype = shape, dtype
        self.embed = nn.Embedding(shape.vocab, shape.width, dtype=dtype)
        self.blocks = nn.ModuleList(Block(shape, dtype) for _ in range(shape.layers))
        self.norm = RmsNorm(shape.width, dtype)
        self.head = nn.Linear(shape.width, shape.vocab, bias=False, dtype=dtype)

    def cache(self, batch: int, length: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of every layer, filled as a prompt would have filled them."""
        sizes = (batch, self.shape.kv_heads, length, self.shape.head_dim)
        return [(torch.randn(sizes, dtype=self.dtype), torch.randn(sizes, dtype=self.dtype)) for _ in self.blocks]

    def forward(self, tokens: Tensor, cache: list[tuple[Tensor, Tensor]], past: int) -> Tensor:
        turn = rotary(self.shape.head_dim, past, tokens.shape[1], self.dtype)
        x = self.embed(tokens)
        for block, (keys, values) in zip(self.blocks, cache, strict=True):
            x = block(x, keys, values, past, turn)
        return self.head(self.norm(x[:, -1])).argmax(-1)


def rotary(size: int, past: int, new: int, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Rotary embedding (2104.09864) of positions ``past .. past + new - 1``, on ``[batch, heads, new, size]``."""
    rates = 1.0 / 10000.0 ** (torch.arange(0, size, 2) / size)
    angles = torch.outer(torch.arange(past, past + new), rates)
    cos = torch.cat((angles.cos(), angles.cos()), -1).to(dtype)
    sin = torch.cat((angles.sin(), angles.sin()), -1).to(dtype)

    def turn(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), -1) * sin

    return turn
