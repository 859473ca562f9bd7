"""Bugs that other performance models really had, planted in ours; test_mutants.py shows that each is caught.

The list is that of the project's design; the peers and their lines are named beside each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pytest

from inferplan import units
from inferplan.catalog import kept
from inferplan.devices.hardware import HardwareSpec
from inferplan.estimate import roofline
from inferplan.estimate.batch import Estimate
from inferplan.models.layers.attention import AttentionLayer
from inferplan.models.layers.base import Cache, LayerContext, Weight
from inferplan.models.layers.mlp import MlpLayer
from inferplan.units import Num
from inferplan.work import routing
from inferplan.work.formats import Format
from inferplan.work.ops import Attention, Mask, Matmul, Op, Work
from inferplan.work.parallel import Parallelism

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A bug: where it was seen, and how to plant it."""

    name: str
    seen: str
    plant: Plant


def kv_cache_of_query_heads(patch: pytest.MonkeyPatch) -> None:
    def cache(self: AttentionLayer) -> Cache:
        return Cache(per_token=2 * self.heads * self.head_dim, mask=self.mask, units=self.heads)

    patch.setattr(AttentionLayer, "cache", cache)


def kv_traffic_of_query_heads(patch: pytest.MonkeyPatch) -> None:
    honest = Attention.resident
    patch.setattr(Attention, "resident", lambda self: honest(replace(self, kv_heads=self.heads)))


def gib_for_gb(patch: pytest.MonkeyPatch) -> None:
    for dimension, suffix in (("bytes", ""), ("bytes/s", "/s")):
        for prefix, power in (("G", 30), ("T", 40)):
            patch.setitem(units.UNITS[dimension], f"{prefix}B{suffix}", 2.0**power)


def elements_for_bytes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Format, "width", property(lambda self: 1.0))


def macs_for_flop(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Matmul, "work", half_flop(Matmul.work, lambda op: True))


def macs_in_the_head(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Matmul, "work", half_flop(Matmul.work, lambda op: op.name == "head"))


def half_flop(honest: Callable[[Matmul], Work], which: Callable[[Matmul], bool]) -> Callable[[Matmul], Work]:
    def work(self: Matmul) -> Work:
        done = honest(self)
        return replace(done, flop=done.flop / 2) if which(self) else done

    return work


def sum_for_max(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(roofline, "soft_maximum", lambda a, b, sharpness: a + b)


def every_expert_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(routing, "touched", lambda experts, top_k, tokens: experts + 0.0 * tokens)


def only_top_k_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(routing, "touched", lambda experts, top_k, tokens: top_k + 0.0 * tokens)


def sparse_peaks(patch: pytest.MonkeyPatch) -> None:
    honest = HardwareSpec.peak_of
    patch.setattr(HardwareSpec, "peak_of", lambda self, math: 2 * honest(self, math))


def whole_ffn_on_every_rank(patch: pytest.MonkeyPatch) -> None:
    def ops(self: MlpLayer, context: LayerContext) -> Iterator[Op]:
        whole = replace(context, parallel=replace(context.parallel, tp=1))
        yield from (replace(op, ranks=context.ranks) for op in honest(self, whole))

    honest = MlpLayer.ops
    patch.setattr(MlpLayer, "ops", ops)


def ffn_weights_on_every_rank(patch: pytest.MonkeyPatch) -> None:
    honest = Weight.per_rank

    def per_rank(self: Weight, parallel: Parallelism) -> float:
        return float(self.elements) if self.name in ("gate", "up", "down") else honest(self, parallel)

    patch.setattr(Weight, "per_rank", per_rank)


def first_token_twice(patch: pytest.MonkeyPatch) -> None:
    def e2el(self: Estimate) -> Num:
        return self.ttft + self.load.output * np.nan_to_num(self.tpot)

    patch.setattr(Estimate, "e2el", property(e2el))


def batch_left_out_of_kv(patch: pytest.MonkeyPatch) -> None:
    honest = Attention.resident
    patch.setattr(Attention, "resident", lambda self: honest(replace(self, batch=1.0)))


def window_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Mask, "cached", lambda self, tokens: tokens)


MUTANTS = [
    Mutant(name="KV cache of query heads", seen="seeds 000 and 001", plant=kv_cache_of_query_heads),
    Mutant(name="KV traffic of query heads", seen="LLM-Viewer 472f71f, decode", plant=kv_traffic_of_query_heads),
    Mutant(name="GiB for GB", seen="GenZ, unit.py: G = 2^30 in bandwidths", plant=gib_for_gb),
    Mutant(name="elements for bytes", seen="LLMCompass 2e015fd, Matmul.roofline_model", plant=elements_for_bytes),
    Mutant(name="MACs for FLOP", seen="several peers", plant=macs_for_flop),
    Mutant(name="MACs in the head", seen="LLM-Viewer 472f71f, lm_head", plant=macs_in_the_head),
    Mutant(name="sum for max", seen="several peers", plant=sum_for_max),
    Mutant(name="all experts in decode", seen="llm-analysis, batch 1", plant=every_expert_read),
    Mutant(name="top-k experts only in decode", seen="GenZ, batch 32", plant=only_top_k_read),
    Mutant(name="sparse peaks", seen="vendor headlines copied", plant=sparse_peaks),
    Mutant(name="feed-forward work not sharded", seen="several peers", plant=whole_ffn_on_every_rank),
    Mutant(name="feed-forward weights not sharded", seen="several peers", plant=ffn_weights_on_every_rank),
    Mutant(name="first token counted twice", seen="seeds 000 and 001", plant=first_token_twice),
    Mutant(name="batch left out of the KV traffic", seen="seed 003", plant=batch_left_out_of_kv),
    Mutant(name="window ignored in the cache", seen="several peers", plant=window_ignored),
]


@contextmanager
def planted(mutant: Mutant | None) -> Iterator[None]:
    """The bug in place; what tests have cached is forgotten before and after."""
    with pytest.MonkeyPatch.context() as patch:
        if mutant is not None:
            mutant.plant(patch)
        forget(("inferplan.catalog",))
        yield
    forget(("inferplan.catalog",))


def forget(packages: tuple[str, ...] = ()) -> None:
    """Empty the caches of the test modules (they hold specs whose counts are cached) and of ``packages``."""
    kept._held.clear()
    for name in [name for name in sys.modules if name.startswith(("tests.", *packages))]:
        for value in list(vars(sys.modules[name]).values()):
            clear = getattr(value, "cache_clear", None)
            if callable(clear) and getattr(value, "__module__", "").startswith(("tests.", *packages)):
                clear()
