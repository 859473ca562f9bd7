"""Quantised siblings of models on file, by the words at the end of their names: Qwen2.5-7B-Instruct-AWQ."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from inferplan.models.spec import ModelSpec, Native

Table = dict[str, Any]
_AWQ: Table = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
_GPTQ: Table = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
_NF4: Table = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
_BLOCKS: Table = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def _packed(weights: Table, inputs: Table | None) -> Table:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "ignore": ["lm_head"], "config_groups": {"group_0": group}}


def _elements(bits: int, kind: str, strategy: str, **more: Any) -> Table:
    return {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, "dynamic": False} | more


_FP8_ROWS = _packed(_elements(8, "float", "channel"), _elements(8, "float", "token", dynamic=True))
_FP8_FEED_FORWARD = _FP8_ROWS | {
    "ignore": ["lm_head", "re:.*self_attn.*", r"re:.*\.layers\.0\..*", r"re:.*\.layers\.{last}\..*"]
}
_W8A8 = _packed(_elements(8, "int", "channel"), _elements(8, "int", "token", dynamic=True))
_W4A16 = _packed(_elements(4, "int", "group", group_size=128), None)
_VLLM_DOCS = "https://docs.vllm.ai/projects/llm-compressor"

SIBLINGS: list[tuple[re.Pattern[str], Table, str]] = [
    (re.compile(pattern), table, source)
    for pattern, table, source in [
        (r"(.+)-awq(?:-int4)?", _AWQ, "AWQ: 4 bits in groups of 128 with zeros (AutoAWQ's default)"),
        (r"(.+)-gptq(?:-int4)?", _GPTQ, "GPTQ: 4 bits in groups of 128 (AutoGPTQ's example, Qwen's releases)"),
        (r"(.+)-gptq-int8", _GPTQ | {"bits": 8}, "GPTQ: 8 bits in groups of 128 (Qwen's releases)"),
        (r"(.+)-fp8-dynamic", _FP8_ROWS, f"fp8 with a scale per row ({_VLLM_DOCS})"),
        (r"(.+?)(?:-quantized\.|-)w8a8", _W8A8, f"int8 with a scale per row ({_VLLM_DOCS})"),
        (r"(.+?)(?:-quantized\.|-)w4a16", _W4A16, f"int4 in groups of 128 ({_VLLM_DOCS})"),
        (r"(qwen/.+)-fp8", _BLOCKS, "fp8 in blocks of 128 x 128 (Qwen's releases)"),
        (r"(sgl-project/.+|deepseek-v4-pro)-fp8", _BLOCKS, "fp8 in blocks of 128 x 128 (SGLang's DeepSeek-V4)"),
        (r"(nvidia/.+)-fp8", {"quant_algo": "FP8"}, "fp8 with a scale per tensor (TensorRT Model Optimizer)"),
        (
            r"(meta-llama/.+)-fp8",
            _FP8_FEED_FORWARD,
            "fp8 with a scale per row; attention, the first and the last layer as they were (arXiv 2407.21783, 6.2)",
        ),
        (r"((?:nvidia/)?[^/]+)-(?:nv)?fp4", {"quant_algo": "NVFP4"}, "NVFP4 (TensorRT Model Optimizer)"),
        (r"(.+)-bnb-4bit", _NF4 | {"bnb_4bit_use_double_quant": True}, "NF4, nested (Unsloth's releases)"),
        (r"(mlx-community/.+)-4bit", {"bits": 4, "group_size": 64}, "MLX: 4 bits in groups of 64 (its default)"),
        (r"(mlx-community/.+)-8bit", {"bits": 8, "group_size": 64}, "MLX: 8 bits in groups of 64"),
    ]
]
"""Names in lower case, what their makers' tables say, and where that is from."""


def sibling(name: str, base: Callable[[str], ModelSpec | None]) -> ModelSpec | None:
    """The model on file in the formats that a name says; ``None`` where it says none, or its base is not on file.

    base: a model on file by its name. What it was made from says that the layout is that of the name alone.
    """
    from inferplan.models.huggingface.quantisation import apply, read_scheme

    for pattern, table, said in SIBLINGS:
        match = pattern.fullmatch(name.lower().rstrip("/"))
        found = base(match[1]) if match else None
        if found is None:
            continue
        plain = found.model_copy(update={"native": Native(base=found.native.base)})
        ignored = [one.replace("{last}", str(len(plain.sequence) - 1)) for one in table.get("ignore", [])]
        own = table | ({"ignore": ignored} if ignored else {})
        native, notes = apply(read_scheme(own, name), plain, nested=bool(found.towers))
        return plain.model_copy(
            update={
                "name": name.rsplit("/", 1)[-1].lower(),
                "source": f"{name}: the shape of {found.name} ({found.source})",
                "made_from": found.made_from.model_copy(update={"named": said, "tensors": False}),
                "notes": [*found.notes, *notes],
                "native": Native.model_validate({"kv": found.native.kv} | native),
                "published": None,
                "instruct_checkpoint": None,
            }
        )
    return None
