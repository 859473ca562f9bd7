"""The recurrences: one token against a counting loop, a prompt against the chunked algorithm's matmuls on meta."""

from __future__ import annotations

from collections.abc import Callable
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferplan.models.layers import LayerContext, parse_layer
from inferplan.work.formats import uniform
from inferplan.work.ops import Scan
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment
from tests.cases import for_each

_SPEC = util.spec_from_file_location("counting", Path(__file__).parents[1] / "oracle" / "counting.py")
assert _SPEC is not None and _SPEC.loader is not None
counting = util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(counting)

MAMBA1 = {"kind": "mamba1", "inner": 64, "state": 8, "dt_rank": 4}
MAMBA2 = {"kind": "mamba2", "heads": 8, "head_dim": 16, "state": 12, "groups": 2, "chunk": 32}
DELTA = {"kind": "gated_delta_net", "key_heads": 2, "value_heads": 4, "key_dim": 8, "value_dim": 12, "chunk": 32}
KIMI = {"kind": "kimi_delta", "heads": 4, "head_dim": 8, "chunk": 32}
LIGHTNING = {"kind": "lightning_attention", "heads": 4, "head_dim": 16, "chunk": 32}
RWKV = {"kind": "rwkv", "inner": 48, "width": 48}
RWKV7 = {"kind": "rwkv7", "heads": 4, "head_dim": 12, "width": 48, "decay_rank": 8, "rate_rank": 8, "gate_rank": 8}
GRIFFIN = {"kind": "gated_linear_recurrence", "inner": 48, "blocks": 4}


def scan(layer: dict[str, Any], new: float, tp: int = 1) -> Scan:
    segment = Segment(batch=1.0, new=new, past=10.0)
    parallel = Parallelism(tp=tp)
    context = LayerContext(d_model=48, precision=uniform(), parallel=parallel, segments=(segment,))
    found = [op for op in parse_layer(layer).ops(context) if isinstance(op, Scan)]
    assert len(found) == 1
    return found[0]


def flop(layer: dict[str, Any], new: float) -> float:
    return float(scan(layer, new).work().flop)


@for_each(
    ("layer", "one_token"),
    [
        (MAMBA1, lambda: counting.mamba1_step(64, 8)),
        (MAMBA2, lambda: counting.mamba2_step(8, 16, 12)),
        (DELTA, lambda: counting.delta_step(4, 8, 12)),
        (KIMI, lambda: counting.delta_step(4, 8, 8)),
        (LIGHTNING, lambda: 4 * counting.lightning_step(16, 16)),
        (RWKV, lambda: counting.rwkv4_step(48)),
        (RWKV7, lambda: counting.rwkv7_step(4, 12)),
        (GRIFFIN, lambda: counting.rglru_step(48)),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_decode_is_the_recurrence(layer: dict[str, Any], one_token: Callable[[], int]):
    assert flop(layer, 1.0) == one_token()
    assert flop(layer, 5.0) == 5 * one_token()


def matmuls(run: Callable[[Any], None]) -> int:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        run(lambda *shape: torch.empty(shape, device="meta"))
    return counter.get_total_flops()


def test_mamba2_prefill_is_the_four_steps_of_the_block_decomposition():
    """2405.21060 listing 1, one chunk of 32 tokens at a time; passing states on is a multiply and an add an element."""
    heads, width, state, groups, chunk = 8, 16, 12, 2, 32

    def run(empty: Any) -> None:
        for _ in range(groups):
            empty(chunk, state) @ empty(state, chunk)
        for _ in range(heads):
            empty(chunk, chunk) @ empty(chunk, width)
            empty(state, chunk) @ empty(chunk, width)
            empty(chunk, state) @ empty(state, width)

    chunks = 4
    assert flop(MAMBA2, chunks * 32.0) == chunks * (matmuls(run) + heads * 2 * state * width)


@for_each(("layer", "value"), [(DELTA, 12), (KIMI, 8)], ids=["gated_delta_net", "kimi_delta"])
def test_delta_prefill_is_the_chunked_rule(layer: dict[str, Any], value: int):
    heads, key, chunk = 4, 8, 32

    def run(empty: Any) -> None:
        keys, values, state = empty(chunk, key), empty(chunk, value), empty(key, value)
        keys @ keys.T
        inverse = empty(chunk, chunk)
        new_keys, new_values = inverse @ keys, inverse @ values
        new_keys @ state
        scores = empty(chunk, key) @ keys.T
        empty(chunk, key) @ state
        scores @ new_values
        keys.T @ new_values

    triangle = chunk**3 / 3
    assert flop(layer, 2.0 * chunk) == pytest.approx(2 * heads * (matmuls(run) + triangle))


def test_lightning_prefill_is_its_blocks():
    heads, width, block = 4, 16, 32

    def run(empty: Any) -> None:
        q, k, v, state = empty(block, width), empty(block, width), empty(block, width), empty(width, width)
        (q @ k.T) @ v
        q @ state
        k.T @ v

    assert flop(LIGHTNING, 3.0 * block) == 3 * heads * matmuls(run)


@for_each("layer", [MAMBA1, MAMBA2, DELTA, KIMI, LIGHTNING, RWKV, GRIFFIN], ids=lambda x: x["kind"])
def test_state_is_read_and_written_once_and_divides_over_ranks(layer: dict[str, Any]):
    whole, half = scan(layer, 1.0), scan(layer, 1.0, tp=2)
    assert half.state * 2 == whole.state
    cache = parse_layer(layer).cache()
    assert whole.state == cache.state - cache.conv
    assert whole.state_format.bits == 32


@for_each("layer", [MAMBA1, MAMBA2, DELTA, KIMI, LIGHTNING, RWKV, GRIFFIN], ids=lambda x: x["kind"])
def test_arrays_price_as_their_elements(layer: dict[str, Any]):
    sizes = np.array([17.0, 64.0, 4096.0])
    grid = scan(layer, sizes).work()
    for index, new in enumerate(sizes):
        one = scan(layer, float(new)).work()
        assert (np.broadcast_to(grid.flop, 3)[index], grid.read[index]) == (one.flop, one.read)
