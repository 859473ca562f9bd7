"""Quantised checkpoints counted tensor by tensor: what each method stores, for models that transformers builds on meta.

The packers here are written from the formats' own documents and make every tensor that a method stores; which modules
are quantised is said by a plain function of their names beside each table. ``python -m tests.oracle.quantised`` prints
each table with its bytes and the difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import Any

import torch
import transformers

from inferplan.models.huggingface import import_config

Shapes = list[tuple[tuple[int, ...], torch.dtype]]
Packer = Callable[[int, int], Shapes]
"""Output rows and input columns of a matrix to the tensors that stand for it."""
Decide = Callable[[str], Packer | None]
INT32, INT64, BF16, FP16, FP32 = torch.int32, torch.int64, torch.bfloat16, torch.float16, torch.float32
BYTE, FP8 = torch.uint8, torch.float8_e4m3fn


def gptq(bits: int = 4, group: int = 128, index: bool = True) -> Packer:
    """AutoGPTQ's ``QuantLinear``: qweight, qzeros, scales and g_idx; AutoRound's has no g_idx."""

    def pack(rows: int, columns: int) -> Shapes:
        groups = ceil(columns / group) if group > 0 else 1
        beside: Shapes = [((groups, rows * bits // 32), INT32), ((groups, rows), FP16)]
        return [((columns * bits // 32, rows), INT32), *beside, *([((columns,), INT32)] if index else [])]

    return pack


def awq(group: int = 128) -> Packer:
    """AutoAWQ's ``WQLinear_GEMM``."""
    return lambda n, k: [((k, n // 8), INT32), ((k // group, n // 8), INT32), ((k // group, n), FP16)]


def packed(bits: int = 4, group: int = 128, zero: bool = False, index: bool = False) -> Packer:
    """compressed-tensors' ``pack-quantized``."""

    def pack(rows: int, columns: int) -> Shapes:
        groups = columns // group if group > 0 else 1
        tensors: Shapes = [((rows, columns * bits // 32), INT32), ((rows, groups), BF16), ((2,), INT64)]
        tensors += [((rows * bits // 32, groups), INT32)] if zero else []
        return tensors + ([((columns,), INT32)] if index else [])

    return pack


def eight(kind: torch.dtype, scale: torch.dtype | None = None) -> Packer:
    """8-bit elements with a scale for each row, or one for the whole tensor and one of its input."""
    if scale is None:
        return lambda n, k: [((n, k), kind), ((), FP32), ((), FP32)]
    return lambda n, k: [((n, k), kind), ((n, 1), scale)]


def block_fp8(n: int, k: int) -> Shapes:
    """DeepSeek-V3's ``weight_scale_inv``."""
    return [((n, k), FP8), ((ceil(n / 128), ceil(k / 128)), FP32)]


def nvfp4(n: int, k: int) -> Shapes:
    """ModelOpt's and compressed-tensors' NVFP4: two elements a byte, a scale for 16, two of the tensor."""
    return [((n, k // 2), BYTE), ((n, k // 16), FP8), ((), FP32), ((), FP32)]


def mx(bits: int) -> Packer:
    """OCP microscaling: an 8-bit exponent for 32 elements."""
    return lambda n, k: [((n, k * bits // 8), BYTE), ((n, k // 32), BYTE)]


def four_bit(nested: bool) -> Packer:
    """bitsandbytes' ``Params4bit`` with its state: absmax for 64, the map of 16 values, nested constants, a text."""

    def pack(rows: int, columns: int) -> Shapes:
        blocks = rows * columns // 64
        tensors: Shapes = [((rows * columns // 2, 1), BYTE), ((16,), FP32), ((150,), BYTE)]
        if not nested:
            return [*tensors, ((blocks,), FP32)]
        return [*tensors, ((blocks,), BYTE), ((ceil(blocks / 256),), FP32), ((256,), FP32)]

    return pack


def int8_bnb(n: int, k: int) -> Shapes:
    """bitsandbytes' ``Int8Params``: CB, SCB and weight_format."""
    return [((n, k), torch.int8), ((n,), FP32), ((), BYTE)]


def marlin24(n: int, k: int) -> Shapes:
    """compressed-tensors' ``marlin-24``, 4 bits in groups of 128: half of the elements and the int16 places of them."""
    return [((k // 32, n * 16 * 4 // 32), INT32), ((k // 32, n * 2), torch.int16), ((k // 128, n), FP16)]


def masked(kind: torch.dtype, scales: bool) -> Packer:
    """compressed-tensors' ``sparse-24-bitmask``."""

    def pack(n: int, k: int) -> Shapes:
        return [((n, k // 2), kind), ((n, k // 8), BYTE), ((2,), INT64), *([((n, 1), BF16)] if scales else [])]

    return pack


def affine(bits: int, group: int) -> Packer:
    """MLX's ``quantize``: uint32 words, 16-bit scales and biases; HQQ and torchao's int4 have the same beside."""
    return lambda n, k: [((n, k * bits // 32), INT32), ((n, k // group), BF16), ((n, k // group), BF16)]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A table, the model that has it, and the packer of each module. vocabulary: embeddings are packed as well."""

    name: str
    model: str
    table: dict[str, Any]
    decide: Decide
    vocabulary: bool = False
    key: str = "quantization_config"


DENSE = {"hidden_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 8}
DENSE |= {"vocab_size": 32000, "tie_word_embeddings": False, "head_dim": 128, "intermediate_size": 8192}
SPARSE = {"moe_intermediate_size": 1536, "num_experts_per_tok": 2}
ROUTED = SPARSE | {"num_experts": 8}
LATENT = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
LATENT |= {"n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
DELTA = {"shared_expert_intermediate_size": 1536, "linear_num_key_heads": 16, "linear_num_value_heads": 32}
MAMBA = {"mamba_expand": 2, "mamba_dt_rank": 256, "num_experts": 8, "attn_layer_period": 2, "attn_layer_offset": 1}
GEMMA = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 1536}
GEMMA |= {"global_head_dim": 256, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "sliding_window": 512}
MODELS: dict[str, dict[str, Any]] = {
    "llama": DENSE,
    "phi3": DENSE | {"pad_token_id": 0},
    "qwen3_moe": DENSE | ROUTED | {"decoder_sparse_step": 1, "mlp_only_layers": []},
    "minimax_m2": DENSE | {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 1536},
    "deepseek_v3": DENSE | LATENT | SPARSE | {"num_key_value_heads": 32, "head_dim": 64},
    "qwen3_next": DENSE | ROUTED | DELTA | {"mlp_only_layers": []},
    "jamba": {k: v for k, v in (DENSE | MAMBA).items() if k != "head_dim"} | {"num_experts_per_tok": 2},
    "gemma4_text": DENSE | GEMMA,
    "gpt_oss": DENSE | {"num_local_experts": 8, "intermediate_size": 2048},
}
WIDE = re.compile(r"norm|conv1d|A_log|\.D$|bias|router|\.gate\.weight$|expert_gate|embed|sinks|layer_scalar")
"""What no method packs: norms, convolutions, states, biases, routers, embeddings."""


@cache
def tensors(family: str) -> dict[str, tuple[int, ...]]:
    """Every parameter that transformers would write, with its shape."""
    from transformers.core_model_loading import revert_weight_conversion

    config = transformers.CONFIG_MAPPING[family](**MODELS[family])
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    parameters = revert_weight_conversion(model, dict(model.named_parameters()))
    return {name: tuple(tensor.shape) for name, tensor in parameters.items()}


@cache
def config_of(family: str) -> dict[str, Any]:
    """Its config as it is saved."""
    config: dict[str, Any] = transformers.CONFIG_MAPPING[family](**MODELS[family]).to_dict()
    return config | {"model_type": family, "dtype": "bfloat16"}


def stored(case: Case) -> int:
    """Bytes of every tensor of the quantised checkpoint, made on meta."""
    return sum(torch.empty(shape, dtype=kind, device="meta").nbytes for shape, kind in checkpoint(case))


def checkpoint(case: Case) -> Iterator[tuple[tuple[int, ...], torch.dtype]]:
    """The shape and type of each of them."""
    for name, shape in tensors(case.model).items():
        table = "embed" in name and case.vocabulary
        packer = case.decide(name.removesuffix(".weight")) if table or not WIDE.search(name) else None
        if packer is None or len(shape) < 2:
            yield shape, BF16
            continue
        for _ in range(shape[0] if len(shape) == 3 else 1):
            yield from packer(shape[-2], shape[-1])


def predicted(case: Case) -> float:
    """What inferplan counts."""
    return import_config(config_of(case.model) | {case.key: case.table}, case.name, "test").model.checkpoint_bytes


def main() -> None:
    """Print every table with its bytes."""
    from tests.oracle.quantised_tables import CASES

    worst = 0.0
    for case in CASES:
        truth, found = stored(case), predicted(case)
        worst = max(worst, abs(found / truth - 1))
        print(f"{case.model:12} {case.name:48} {truth:15,} {found / truth - 1:+.4%}")
    print(f"{len(CASES)} tables, at most {worst:.4%} off")


if __name__ == "__main__":
    main()
