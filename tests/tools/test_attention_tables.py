"""Tables of attention: what their calls hold beside attention, so that a step counts nothing twice."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("pandas")

from inferplan.catalog.assemble import Request, assemble
from inferplan.estimate.graph import build
from inferplan.work.ops import Copy, Elementwise, Op
from inferplan.work.step import decode
from tools.fitting.tables.read import measurement_of


def timed(engine: str, version: str, **columns: object) -> tuple[Op, ...]:
    """What a call with 32 query heads, 8 KV heads of 128 and an fp8 cache holds beside attention."""
    sizes = {"num_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "kv_cache_dtype": "fp8", "latency_ms": 0.01}
    row = SimpleNamespace(framework=engine, version=version, kernel_source="any", **sizes | columns)
    return measurement_of("attention_decode", row).rest


def test_a_call_holds_the_cache_write_and_tensorrt_llms_the_rotary_embedding() -> None:
    """Four sequences write 2 x 8 x 128 elements each; 40 heads of 128 are turned by their positions. A prompt of 100
    tokens does so for each of them."""
    one = {"batch_size": 4, "isl": 1, "step": 1023}
    write, rotary = timed("TRTLLM", "1.3.0rc20", **one)
    assert isinstance(write, Copy) and isinstance(rotary, Elementwise)
    assert (write.elements, write.source.name, write.target.name) == (4 * 2048, "bf16", "fp8")
    assert (rotary.tokens, rotary.width) == (4, 40 * 128)
    for engine, version in (("SGLang", "0.5.14"), ("VLLM", "0.14.0"), ("VLLM", "0.24.0")):
        assert repr(timed(engine, version, **one)) == repr((write,))
    for version in ("0.18.0", "0.19.0", "0.22.0"):  # timed without the write: vLLM calls it apart
        assert timed("VLLM", version, **one) == ()
    (prompt,) = timed("SGLang", "0.5.14", batch_size=4, isl=100, step=0)
    assert isinstance(prompt, Copy) and prompt.elements == 4 * 100 * 2048


def test_what_is_taken_off_is_what_a_step_adds() -> None:
    """Llama-3.1-8B has 32 query heads and 8 KV heads of 128: a step's operators are those that the calls hold."""
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", engine="trtllm", roles=(("kv", "fp8"),)))
    added = {op.name: op for stage in build(deployment, decode(4.0, 1023.0)) for op in stage.ops}
    write, rotary = timed("TRTLLM", "1.3.0rc20", batch_size=4, isl=1, step=1023)
    for held, name in ((write, "attn.kv_write"), (rotary, "attn.rotary")):
        work, other = held.work(), added[name].work()
        assert (work.flop, work.read, work.write) == (other.flop, other.read, other.write)
