"""Context parallelism: what its ranks send each other, by hand."""

from __future__ import annotations

from inferplan.models.layers import LayerContext, parse_layer
from inferplan.work.formats import uniform
from inferplan.work.ops import Attention, Collective, Op
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment
from tests.cases import for_each

MLA = {"kind": "mla", "heads": 16, "q_lora": 64, "kv_lora": 512, "nope_dim": 128, "rope_dim": 64, "value_dim": 128}
GQA = {"kind": "attention", "heads": 32, "kv_heads": 8, "head_dim": 128}


def operators(layer: dict[str, object], new: float, past: float, cp: int, batch: float = 1.0) -> dict[str, Op]:
    segment = Segment(batch=batch, new=new, past=past)
    context = LayerContext(d_model=1024, precision=uniform(), parallel=Parallelism(cp=cp), segments=(segment,))
    return {op.name: op for op in parse_layer(layer).ops(context)}


@for_each("cp", [2, 4])
def test_a_chunk_of_latent_attention_gathers_every_latent_so_far(cp: int) -> None:
    """Each rank has 1/cp of the latents of all 4096 + 1024 positions and gets the rest: 512 + 64 bf16 each."""
    gather = operators(MLA, 1024.0, 4096.0, cp)["attn.gather_kv"]
    assert isinstance(gather, Collective) and gather.pattern == "all_gather"
    assert gather.work().wire == (cp - 1) / cp * 5120 * 576 * 2


@for_each("cp", [2, 4])
def test_a_chunk_of_grouped_queries_gathers_every_key_and_value_so_far(cp: int) -> None:
    """8 KV heads of 128 + 128 for 5120 positions."""
    assert operators(GQA, 1024.0, 4096.0, cp)["attn.gather_kv"].work().wire == (cp - 1) / cp * 5120 * 8 * 256 * 2


def test_a_decode_merges_one_output_and_one_sum_a_head() -> None:
    """A ring all-reduce of 3 sequences x 16 heads x (512 + 1) in bf16: twice (cp - 1)/cp of it."""
    merge = operators(MLA, 1.0, 4096.0, 4, batch=3.0)["attn.merge"]
    assert merge.work().wire == 2 * 3 / 4 * 3 * 16 * 513 * 2


@for_each("layer", [MLA, GQA])
def test_ranks_share_a_prompts_queries_and_a_decodes_keys(layer: dict[str, object]) -> None:
    for new, past in ((1024.0, 4096.0), (1.0, 4096.0)):
        alone, shared = (operators(layer, new, past, cp)["attn.core"] for cp in (1, 4))
        assert isinstance(alone, Attention) and isinstance(shared, Attention)
        assert shared.work().flop == alone.work().flop / 4
