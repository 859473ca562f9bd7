"""One attention at a size, its paged cache, and what the calls of libraries have in common.

Queries are ``[batch, new, heads, d]``. A paged cache is ``[pages, page, kv_heads, d]`` with a table of each sequence's
pages ``[batch, pages of a sequence]``; the pages lie in any order, as in a cache that was in use for long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from calibrate.kernels.attention import explicit_attention, visible
from calibrate.kernels.kernel import tolerance_of
from calibrate.kernels.operands import OperandPool, Operands
from inferplan.work.ops import Attention

_WORKSPACE = 394 << 20
"""Bytes of FlashInfer's workspace: vLLM's default (``VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE``)."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """One attention operator at a size: ``length`` keys are reachable, the last of which is the last query's own."""

    op: Attention
    pool: OperandPool
    batch: int
    new: int
    past: int
    length: int

    @cached_property
    def causal(self) -> bool:
        """Whether queries see different keys; a single one sees all that are kept."""
        return self.op.mask.kind in ("causal", "window") and self.new > 1

    @property
    def left(self) -> int:
        """Keys before its own that a query sees; -1 for all."""
        return self.op.mask.size - 1 if self.op.mask.kind == "window" and self.new > 1 else -1

    @property
    def window(self) -> list[int]:
        """Keys before and behind its own that a query sees; -1 for all, as FlashAttention takes it."""
        return [self.left, 0 if self.left >= 0 else -1]

    @property
    def masked(self) -> torch.Tensor | None:
        """The mask of the reference, on the CPU; ``None`` where every key is visible."""
        if self.new == 1 or self.op.mask.kind == "full":
            return None
        return visible(self.op.mask, self.new, self.past, "cpu")[:, -self.length :]

    @property
    def tolerance(self) -> float:
        """The relative error that the format allows."""
        return tolerance_of(self.op.base, 2e-2)

    def query(self) -> torch.Tensor:
        """Fresh queries."""
        return self.pool.normal((self.batch, self.new, self.op.heads, self.op.key_dim), self.op.base)

    def by_sequence(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of all sequences one after another as ``[batch, new, ...]``."""
        return rows.unflatten(0, (self.batch, self.new))

    def choices(self) -> torch.Tensor:
        """Keys that an indexer might choose for each query of a sequence, among those that it may see: ``[new, size]``,
        -1 behind the last; the same for all sequences."""
        size, keys = self.op.mask.size, self.past + self.new
        dealt = torch.Generator().manual_seed(keys)
        found = torch.full((self.new, size), -1)
        for query in range(self.new):
            seen = self.past + query + 1
            taken = torch.randperm(seen, generator=dealt)[:size] if seen > size else torch.arange(seen)
            found[query, : len(taken)] = taken
        return found

    def exact(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attention in float64."""
        return explicit_attention(q.double(), k.double(), v.double(), self.masked)


@dataclass(frozen=True, kw_only=True)
class Pages:
    """Where the pages of a load lie. size: tokens of a page."""

    load: Load
    size: int

    @property
    def each(self) -> int:
        """Pages of a sequence."""
        return -(-self.load.length // self.size)

    @property
    def count(self) -> int:
        """Pages of all sequences."""
        return self.each * self.load.batch

    @cached_property
    def table(self) -> torch.Tensor:
        """Each sequence's pages, int32."""
        return self.load.pool.order(self.count).view(self.load.batch, self.each)

    @cached_property
    def lengths(self) -> torch.Tensor:
        """Each sequence's tokens, int32."""
        return torch.full((self.load.batch,), self.load.length, dtype=torch.int32, device=self.load.pool.device)

    def cache(self, heads: int, width: int) -> torch.Tensor:
        """Fresh pages."""
        return self.load.pool.normal((self.count, self.size, heads, width), self.load.op.kv)

    def heads_first(self, heads: int, width: int) -> torch.Tensor:
        """Fresh pages with a head's tokens together, ``[pages, heads, page, width]``."""
        return self.load.pool.normal((self.count, heads, self.size, width), self.load.op.kv)

    def in_order(self, cache: torch.Tensor) -> torch.Tensor:
        """The cache as one tensor, ``[batch, length, heads, width]``."""
        return cache[self.table.cpu().long()].flatten(1, 2)[:, : self.load.length]


def first_of(returned: Any) -> torch.Tensor:
    """The output, of a version that returns other things beside it."""
    output: torch.Tensor = returned[0] if isinstance(returned, tuple) else returned
    return output


def starts(load: Load, length: int) -> torch.Tensor:
    """First rows of each sequence in a ragged tensor, and the row after the last."""
    return torch.arange(load.batch + 1, dtype=torch.int32, device=load.pool.device) * length


def prompt(load: Load) -> Callable[[], Operands]:
    """Queries, keys and values of prompts, each a tensor of all sequences' tokens one after another."""
    op, pool = load.op, load.pool

    def operands() -> Operands:
        tokens = load.batch * load.length
        keys = pool.normal((tokens, op.kv_heads, op.key_dim), op.kv)
        return load.query().flatten(0, 1), keys, pool.normal((tokens, op.kv_heads, op.value_dim), op.kv)

    return operands


def prompt_exact(load: Load) -> Callable[..., torch.Tensor]:
    def exact(*ragged: torch.Tensor) -> torch.Tensor:
        return load.exact(*(part.unflatten(0, (load.batch, -1)) for part in ragged)).flatten(0, 1)

    return exact


def workspace(load: Load, name: str) -> torch.Tensor:
    """The workspace of one of FlashInfer's libraries, zeroed before its first use."""
    return load.pool.room(name, _WORKSPACE)


def latent(load: Load, pages: Pages) -> dict[str, Any]:
    """Operands and reference of latent attention: one key head, whose first elements are the values."""
    op = load.op

    def exact(q: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        keys = pages.in_order(cache)
        return load.exact(q, keys, keys[..., : op.value_dim])

    return {
        "operands": lambda: (load.query(), pages.cache(op.kv_heads, op.key_dim)),
        "reference": exact,
        "tolerance": load.tolerance,
    }
